//! Decoding that no request waits for: read-ahead on the threads of the pool, and preloading.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redwarfs_format::{BlockNo, Result};

use super::BlockCache;
use super::evict::Reservation;
use super::slot::Slot;
use super::stats::count;
use crate::ahead::Need;

impl BlockCache {
    /// Lets another thread decode the needed bytes, unless they are decoded. False if the threads are
    /// too busy.
    pub(crate) fn submit(&self, need: Need) -> bool {
        self.contains(need.block, need.end) || self.decode_soon(need)
    }

    /// Lets a thread of the pool decode the needed bytes. Returns whether a job was queued: not if the
    /// threads are too busy, or if there is no such block.
    pub(super) fn decode_soon(&self, need: Need) -> bool {
        let shared = &self.shared;
        if shared.payloads.container().block(need.block).is_none() {
            return false;
        }
        // While the job waits for a thread.
        if shared.payloads.is_remote() && shared.table().entry(need.block).is_none() {
            shared.payloads.announce([need.block]);
        }
        // Found or made by the job itself, so that a waiting job keeps nothing in the cache.
        let (shared, since) = (Arc::clone(shared), shared.table().asks());
        self.shared.group.pool.try_submit(Box::new(move || {
            if shared.closed.load(Ordering::Relaxed) {
                return;
            }
            let Some(slot) = shared.find_or_insert_ahead(need.block, since) else {
                count(&shared.group.counters.expired);
                return;
            };
            // A request that needs the block gets the error.
            match slot.try_take() {
                Some(turn) => {
                    let _ = shared.advance(turn, need.end, need.urgency);
                }
                None => count(&shared.group.counters.expired),
            }
            drop(slot);
            shared.make_room(0);
        }))
    }

    /// The same for a need that follows from a request for another block.
    pub(super) fn decode_next(&self, need: Need) {
        let shared = &self.shared;
        if !self.has_room_ahead() || shared.table().entry(need.block).is_some() {
            return;
        }
        if self.decode_soon(need) {
            count(&shared.group.counters.prefetches);
        }
    }

    /// Lets a thread of the pool decode the rest of a block, if the rule applies.
    pub(super) fn finish_soon(&self, slot: &Arc<Slot>) {
        let Some(raw_size) = slot.raw_size() else {
            return;
        };
        let available = slot.available();
        if self.is_planned() || slot.is_busy() {
            return;
        }
        // Other threads must not wait for bytes that may not be needed.
        let is_idle =
            || self.shared.group.pool.is_idle() && self.shared.group.gate.has_room_for_two();
        let rule = &self.shared.rest;
        let rest = rule.rest(slot.block, raw_size, available, slot.jumps(), is_idle);
        let Some(need) = rest else {
            return;
        };
        let Some(finishing) = slot.begin_to_finish() else {
            return;
        };
        let shared = Arc::clone(&self.shared);
        // Found by the job itself, as in `decode_soon`. If the block was dropped in the meantime, or
        // dropped and begun again, no request waits for its rest.
        self.shared.group.pool.try_submit(Box::new(move || {
            if shared.closed.load(Ordering::Relaxed) {
                return;
            }
            let slot = {
                let table = shared.table();
                table.entry(need.block).map(|e| Arc::clone(&e.slot))
            };
            let turn = slot
                .filter(|slot| slot.available() >= available)
                .and_then(|slot| slot.try_take());
            match turn {
                Some(turn) => {
                    let _ = shared.advance(turn, need.end, need.urgency);
                }
                None => count(&shared.group.counters.expired),
            }
            drop(finishing);
            shared.make_room(0);
        }));
    }

    /// Decodes a whole block into the cache, unless this would evict other blocks. Returns false if
    /// there is no room.
    pub(crate) fn preload(&self, block: BlockNo) -> Result<bool> {
        let shared = &self.shared;
        let size = shared.payloads.block_size();
        if shared
            .table()
            .entry(block)
            .is_some_and(|e| e.slot.is_complete())
        {
            return Ok(true);
        }
        // Other blocks that are being preloaded count with their whole size.
        let reservation = Reservation::new(shared, size);
        if shared
            .group
            .account
            .used()
            .saturating_add(reservation.total)
            > shared.group.limit
        {
            return Ok(false);
        }
        let slot = shared.find_or_insert(block);
        let result = shared.ensure_all(&slot);
        drop(slot);
        drop(reservation);
        self.trim();
        result.map(|()| true)
    }
}
