//! Decodes blocks. One thread at a time reads, verifies and decodes a block, while the others wait.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use redwarfs_codec::Decoder;
use redwarfs_format::section::CompressionId;
use redwarfs_format::{Error, Result};

use super::shared::SharedCache;
use super::slot::{Decoding, Plain, SEGMENT, Slot, Turn};
use super::stats::count;
use crate::ahead::Urgency;
use crate::error::in_section;

/// Bytes that are decoded and published at a time (1 MiB) if a whole block is requested, and its
/// decoder needs less memory than the decoded block.
const LEAP: usize = 1 << 20;

/// The memory of a block is prepared at once if it is not larger than this multiple of the payload.
const PLAUSIBLE_RATIO: u64 = 64;

impl SharedCache {
    /// Returns when the bytes `..end` are decoded.
    pub(super) fn ensure(&self, slot: &Arc<Slot>, end: u64) -> Result<()> {
        loop {
            if slot.has(end) {
                return Ok(());
            }
            match self.wait_or_take(slot, end)? {
                Some(turn) => self.advance(turn, end, Urgency::Wanted)?,
                None if slot.has(end) => return Ok(()),
                None => {
                    // The medium may have failed only for a while, so the next request tries again.
                    self.forget(slot);
                    return Err(self.too_short(slot, end));
                }
            }
        }
    }

    /// Returns when the whole block is decoded. No request waits for that: those that need the block keep the right of way.
    pub(super) fn ensure_all(&self, slot: &Arc<Slot>) -> Result<()> {
        while let Some(turn) = self.wait_or_take(slot, u64::MAX)? {
            self.advance(turn, u64::MAX, Urgency::Ahead)?;
        }
        Ok(())
    }

    fn wait_or_take(&self, slot: &Arc<Slot>, end: u64) -> Result<Option<Turn>> {
        let joined = || count(&self.group.counters.merged);
        slot.wait_or_take(end, &joined).inspect_err(|_| {
            // The failing thread has usually done this, but not if it panicked.
            self.forget(slot);
        })
    }

    fn too_short(&self, slot: &Slot, end: u64) -> Error {
        let have = slot.available();
        let e = Error::corrupt(format!(
            "a file needs {end} bytes of block {}, which has {have}",
            slot.block
        ));
        self.payloads.in_block(e, slot.block)
    }

    /// Decodes a block up to `end`, or to the end of the block.
    pub(super) fn advance(&self, mut turn: Turn, end: u64, urgency: Urgency) -> Result<()> {
        let block = u64::from(turn.slot().block.0);
        let timer = self.timers.process.start_with(&[("block", block)]);
        let active = self.group.counters.active.enter();
        let result = self.advance_inner(&mut turn, end, urgency);
        drop((active, timer));
        let slot = Arc::clone(turn.slot());
        match result {
            Ok(()) if slot.raw_size().is_some_and(|size| slot.available() >= size) => {
                if let Some(work) = turn.complete() {
                    self.group.scratch.put(work.decoder.into_payload());
                }
                Ok(())
            }
            Ok(()) => {
                turn.pause();
                Ok(())
            }
            Err(e) => {
                let e = Arc::new(e);
                self.forget(&slot);
                turn.fail(Arc::clone(&e));
                Err(e.replicate())
            }
        }
    }

    fn advance_inner(&self, turn: &mut Turn, mut end: u64, urgency: Urgency) -> Result<()> {
        let block = turn.slot().block;
        if turn.slot().raw_size().is_none() {
            end = self.load(turn, end)?;
        }
        let Some(mut work) = turn.work.take() else {
            return Ok(());
        };
        let slot = Arc::clone(turn.slot());
        let gives_way = || urgency == Urgency::Speculative && !slot.is_awaited();
        if gives_way() && self.group.gate.is_crowded() {
            turn.work = Some(work);
            return Ok(());
        }
        let ahead = || urgency != Urgency::Wanted && !slot.is_awaited();
        let mut pass = self.group.gate.pass(ahead());
        let result = loop {
            let len = turn.next_len();
            if len == 0 || slot.available() >= end.max(1) {
                break Ok(());
            }
            if pass.is_over() {
                if gives_way() {
                    break Ok(());
                }
                drop(pass);
                pass = self.group.gate.pass(ahead());
            }
            self.make_room(len as u64);
            // A payload that decodes to far less than it announces must not take more memory.
            if len as u64 <= SEGMENT as u64 + work.stored.saturating_mul(PLAUSIBLE_RATIO) {
                work.filler.prepare(len);
            }
            let timer = self
                .timers
                .decompress
                .start_with(&[("block", u64::from(block.0))]);
            if let Err(e) = work.filler.decode(&mut work.decoder, len) {
                break Err(e);
            }
            drop(timer);
            // The last bytes are published after the end of the stream is verified.
            let raw_size = work.decoder.raw_size();
            if work.decoder.position() >= raw_size
                && let Err(e) = work.decoder.finish()
            {
                break Err(e);
            }
            self.group
                .counters
                .decoded
                .fetch_add(len as u64, Ordering::Relaxed);
            turn.publish(&mut work.filler, len);
            work.discard_spent(&slot);
        };
        drop(pass);
        turn.work = Some(work);
        result.map_err(|e| self.payloads.in_block(e, block))
    }

    /// Reads and verifies the payload, and determines size and steps of the block. Returns the end of
    /// this turn.
    fn load(&self, turn: &mut Turn, end: u64) -> Result<u64> {
        let block = turn.slot().block;
        let section = self.payloads.block_section(block)?;
        let wrap = |e| in_section(e, &section);
        let id = self.payloads.compression(&section)?;
        // From a server, each later read would be a request.
        if id == CompressionId::NONE && !self.payloads.is_remote() {
            let leaves = self.payloads.verify_in_leaves(&section)?;
            for counter in [
                &self.group.counters.decoded,
                &self.group.counters.decoded_of,
            ] {
                counter.fetch_add(section.length, Ordering::Relaxed);
            }
            turn.is_plain(Plain { section, leaves });
            self.make_room(0);
            return Ok(end);
        }
        let payload = self
            .payloads
            .read_reusing(&section, self.group.scratch.take(section.length))?;
        let stored = payload.len() as u64;
        let decoder = Decoder::new(id, payload, self.payloads.block_size()).map_err(wrap)?;
        let raw_size = decoder.raw_size();
        // Almost the whole block is needed, by this or waiting requests, or steps would save nothing.
        // Then it is faster to decode to the end at once.
        let whole = !decoder.is_incremental()
            || raw_size <= SEGMENT as u64
            || end >= self.rest.wanted_share(raw_size).max(1)
            || (self.rest.is_read_at_random(turn.slot().jumps(), raw_size)
                && self.group.gate.is_crowded());
        let size = usize::try_from(raw_size).unwrap_or(usize::MAX);
        let step = match whole {
            // Memory that was just cleared is still in the CPU caches, and requests for the first part
            // need not wait for the last one.
            true if decoder.state_size() < raw_size => LEAP,
            true => size,
            false => SEGMENT,
        };
        // With steps, only a part of the memory would be counted.
        let spare = if whole {
            self.make_room_for(size)
        } else {
            None
        };
        let filler = turn
            .shape(raw_size, step, self.allocator, spare)
            .map_err(wrap)?;
        self.group
            .counters
            .decoded_of
            .fetch_add(raw_size, Ordering::Relaxed);
        // A decoder that lives for one turn is not kept, so it need not be counted.
        let charge = if whole {
            0
        } else {
            stored.saturating_add(decoder.state_size())
        };
        self.make_room(charge);
        turn.slot().charge(charge);
        turn.work = Some(Decoding {
            decoder: Box::new(decoder),
            filler,
            stored,
            charge,
            discarded: 0,
        });
        Ok(if whole { u64::MAX } else { end })
    }
}
