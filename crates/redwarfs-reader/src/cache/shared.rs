//! The part of the cache of an image that its threads share, and the lookup of blocks. `decode.rs` has its methods that
//! decode, `evict.rs` those that drop blocks.

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redwarfs_format::BlockNo;

use super::group::{CacheGroup, Group};
use super::slot::{SLOT_OVERHEAD, Slot};
use super::stats::count;
use super::table::Table;
use crate::ahead::{AheadOfBlocks, Neighbours, RestRule};
use crate::options::{BlockAllocator, CacheOptions, CpuSet};
use crate::payload::Payloads;
use crate::perfmon::{Component, PerfMonitor, Timer};

/// The part of the cache that its threads share.
#[derive(Debug)]
pub(super) struct SharedCache {
    pub(super) payloads: Payloads,
    pub(super) group: Arc<Group>,
    pub(super) rest: RestRule,
    pub(super) table: Mutex<Table>,
    /// What is fetched from a server before it is requested, unless this is switched off.
    pub(super) neighbours: Option<Mutex<Neighbours>>,
    pub(super) closed: AtomicBool,
    pub(super) timers: Timers,
    pub(super) allocator: BlockAllocator,
    pub(super) affinity: Option<CpuSet>,
}

/// The measured operations: a request, the work of one thread for a block, and decoding alone.
#[derive(Debug)]
pub(super) struct Timers {
    pub(super) get: Timer,
    pub(super) process: Timer,
    pub(super) decompress: Timer,
}

impl SharedCache {
    pub(super) fn new(
        group: &CacheGroup,
        payloads: Payloads,
        options: &CacheOptions,
        perfmon: &PerfMonitor,
    ) -> Arc<Self> {
        let group = Arc::clone(&group.0);
        let block_size = payloads.block_size();
        let blocks = u64::from(payloads.container().block_count());
        let fit = |blocks: u64| {
            let block = block_size.saturating_add(SLOT_OVERHEAD);
            blocks.saturating_mul(block) <= group.limit
        };
        let ahead = AheadOfBlocks::new(options, block_size);
        let fetches = payloads.is_remote() && options.seq_detector > 0;
        let shared = Arc::new(Self {
            neighbours: fetches.then(Mutex::default),
            rest: RestRule::new(options, fit(2), fit(blocks)),
            table: Mutex::new(Table::new(ahead, &group.clock)),
            closed: AtomicBool::new(false),
            timers: Timers {
                get: perfmon.timer(Component::BlockCache, "get"),
                process: perfmon.timer(Component::BlockCache, "process"),
                decompress: perfmon.timer(Component::BlockCache, "decompress"),
            },
            allocator: options.allocator,
            affinity: options.affinity,
            payloads,
            group: Arc::clone(&group),
        });
        group.add(&shared);
        shared
    }

    pub(super) fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn insert(self: &Arc<Self>, table: &mut Table, block: BlockNo) -> Arc<Slot> {
        count(&self.group.counters.created);
        tracing::trace!("block {} comes into the cache", block.0);
        self.group.start_tidying();
        let slot = Arc::new(Slot::new(block, &self.group.account));
        table.insert(block, Arc::clone(&slot));
        slot
    }

    pub(super) fn find_or_insert(self: &Arc<Self>, block: BlockNo) -> Arc<Slot> {
        let mut table = self.table();
        match table.touch(block) {
            Some(slot) => slot,
            None => self.insert(&mut table, block),
        }
    }

    /// The same for decoding ahead that was planned at `since`; `None` if the block was requested in
    /// the meantime and is gone, because then no request waits for it.
    pub(super) fn find_or_insert_ahead(
        self: &Arc<Self>,
        block: BlockNo,
        since: u64,
    ) -> Option<Arc<Slot>> {
        let mut table = self.table();
        match table.touch(block) {
            Some(slot) => Some(slot),
            None if table.was_asked_since(block, since) => None,
            None => Some(self.insert(&mut table, block)),
        }
    }

    pub(super) fn count_hit(&self, slot: &Slot, end: u64) {
        let c = &self.group.counters;
        count(match (slot.has(end), slot.is_busy()) {
            (true, true) => &c.active_fast,
            (true, false) => &c.cache_fast,
            (false, true) => &c.active_slow,
            (false, false) => &c.cache_slow,
        });
    }

    /// Whether two blocks fit.
    pub(super) fn has_room_ahead(&self) -> bool {
        let block = self.payloads.block_size().saturating_add(SLOT_OVERHEAD);
        block.saturating_mul(2) <= self.group.limit
    }

    /// Takes a failed slot out of the cache, unless another one is already in its place.
    pub(super) fn forget(&self, slot: &Arc<Slot>) {
        let mut table = self.table();
        let same = table
            .entry(slot.block)
            .is_some_and(|entry| Arc::ptr_eq(&entry.slot, slot));
        let removed = if same { table.remove(slot.block) } else { None };
        drop(table);
        drop(removed);
    }
}
