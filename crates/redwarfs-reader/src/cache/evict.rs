//! Makes room: drops blocks that are not in use, the least recently used one of all images first (`group.rs`).

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::memory::Buffer;
use super::shared::SharedCache;
use super::slot::Slot;

/// Room in the cache for a block that is about to be preloaded.
pub(super) struct Reservation<'a> {
    shared: &'a SharedCache,
    size: u64,
    /// Bytes of all reservations, including this one.
    pub(super) total: u64,
}

impl<'a> Reservation<'a> {
    pub(super) fn new(shared: &'a SharedCache, size: u64) -> Self {
        let before = shared.group.reserved.fetch_add(size, Ordering::Relaxed);
        Self {
            shared,
            size,
            total: before.saturating_add(size),
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.shared
            .group
            .reserved
            .fetch_sub(self.size, Ordering::Relaxed);
    }
}

impl SharedCache {
    /// Drops the blocks that were not used for the longest time until `extra` bytes fit. Blocks in use
    /// stay, whatever their size, so there may still be too little room.
    pub(super) fn make_room(&self, extra: u64) {
        drop(self.evict(extra));
    }

    /// The same for a block of `len` bytes; returns the memory of a dropped one if it fits.
    pub(super) fn make_room_for(&self, len: usize) -> Option<Buffer> {
        let mut dropped = self.evict(len as u64);
        dropped.iter_mut().find_map(|slot| Slot::reclaim(slot, len))
    }

    fn evict(&self, extra: u64) -> Vec<Arc<Slot>> {
        let group = &self.group;
        group.evict(&|freed| {
            let wanted = group.account.used().saturating_add(extra);
            wanted.saturating_sub(freed) > group.limit
        })
    }
}
