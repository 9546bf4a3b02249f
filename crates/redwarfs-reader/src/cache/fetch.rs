//! Lets a server send blocks before they are requested.

use std::ops::Range;
use std::sync::PoisonError;
use std::sync::atomic::{AtomicU64, Ordering};

use redwarfs_format::BlockNo;
use redwarfs_io::Line;

use super::BlockCache;
use super::shared::SharedCache;
use super::slot::Slot;
use crate::ahead::{AheadCounts, Fetch, Stored};

impl Stored for SharedCache {
    fn place(&self, block: BlockNo) -> Option<Range<u64>> {
        self.payloads.place(block)
    }

    fn is_missing(&self, block: BlockNo) -> bool {
        self.table().entry(block).is_none() && !self.payloads.is_on_disk(block)
    }

    fn line(&self) -> Option<Line> {
        self.payloads.source().line()
    }
}

impl SharedCache {
    fn count_ahead(&self, counts: AheadCounts) {
        let counters = &self.group.counters;
        if counts == AheadCounts::default() {
            return;
        }
        let add = |counter: &AtomicU64, number| counter.fetch_add(number, Ordering::Relaxed);
        add(&counters.fetched_ahead, counts.fetched);
        add(&counters.fetched_used, counts.used);
        add(&counters.fetched_unused, counts.unused);
        add(&counters.fetched_unused_bytes, counts.unused_bytes);
    }
}

impl SharedCache {
    /// Lets the server send what a request leads to. Returns the blocks that it is not asked for: there is no room for them.
    fn fetch(&self, block: BlockNo, missing: bool, fetch: Fetch) -> Vec<BlockNo> {
        let Fetch { following, others } = fetch;
        let mut all = [&following[..], &others[..]].concat();
        if missing {
            let row = std::iter::once(block).chain(following);
            self.payloads.announce(row);
            self.payloads.announce_around(others);
        } else {
            self.payloads.announce_around(all.iter().copied());
        }
        all.retain(|block| !self.payloads.is_coming(*block));
        all
    }
}

impl BlockCache {
    /// Lets the server send a requested block, and others with it, if the rules say so. `missing` if the block was not in
    /// memory.
    pub(super) fn fetch_neighbours(&self, slot: &Slot, missing: bool) {
        let (shared, block) = (&*self.shared, slot.block);
        let Some(rule) = &shared.neighbours else {
            return;
        };
        // Later requests for a block that stays in memory say nothing about what was fetched.
        let first = slot.is_requested_first();
        if !(first || missing) || self.is_planned() {
            return;
        }
        let missing = missing && !shared.payloads.is_on_disk(block);
        let counts = {
            let mut rule = rule.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(fetch) = rule.requested(block, missing, shared) {
                let refused = shared.fetch(block, missing, fetch);
                rule.refused(&refused);
            }
            rule.take_counts()
        };
        shared.count_ahead(counts);
    }

    /// Notes blocks that were announced because a file is read from front to back. Those count that the server sends.
    pub(crate) fn announced_ahead(&self, blocks: &[BlockNo]) {
        let shared = &*self.shared;
        if let Some(rule) = &shared.neighbours {
            let coming = blocks.iter().copied();
            let coming = coming.filter(|block| shared.payloads.is_coming(*block));
            let coming: Vec<BlockNo> = coming.collect();
            let mut rule = rule.lock().unwrap_or_else(PoisonError::into_inner);
            rule.announced(&coming, shared);
            let counts = rule.take_counts();
            drop(rule);
            shared.count_ahead(counts);
        }
    }
}
