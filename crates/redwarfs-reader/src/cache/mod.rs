//! The block cache: keeps decoded blocks while there is room.
//!
//! At most one thread at a time decodes a given block. It stops when it has decoded all
//! bytes that requests need or will probably need. Different blocks are decoded in parallel.
//!
//! * **Request.** A request names a block and an end offset. It finds the *slot* of the block (its place
//!   in the cache), or makes one. The first thread reads the payload, verifies it and decodes. Other threads wait, and wake
//!   up as soon as their bytes are decoded. If one of them needs more bytes than the first, it
//!   continues with the same decoder (`decode.rs`, `slot.rs`).
//! * **Memory.** A block is decoded into one buffer (`memory.rs`). After each step, the decoding
//!   thread *publishes* the new bytes: now other threads may read them. Published bytes never change, so
//!   reading them takes no lock.
//! * **Uncompressed blocks.** The first request verifies the whole block. After that the reader reads it
//!   directly from the image file, in leaves of 16 KiB, and compares each leaf with its digest
//!   (`plain.rs`). Only the digests stay in memory, 1/1024 of the block.
//! * **Errors.** If decoding fails, the cache first drops the slot, so that the next request tries again.
//!   Then every thread that waits for the block gets the error.
//! * **Limit.** The limit counts decoded bytes, digests, and a fixed amount for each slot. A *turn* is
//!   the work of one thread on a block. If a turn ends in the middle of the block, the decoder and the
//!   payload stay in memory. The limit counts both until the block is decoded completely. The memory of a
//!   large zstd payload is freed step by step. A zstd decoder
//!   needs little memory: it finds earlier bytes in the buffer of the block, and keeps no copy of them. Other decoders need about as much memory as the
//!   decoded block, and the limit counts them with that size.
//! * **Eviction.** The least recently used block goes first (`evict.rs`). Blocks in use stay, whatever
//!   their size: the blocks that a request holds, and the last few blocks that were not read to their end
//!   ([`Table::in_use`](table::Table::in_use)). Without this rule, a sequential read of a block larger than
//!   the cache would decode it from its start for every request. The memory may exceed
//!   the limit in two cases. First, the blocks in use may be larger than the limit. Second, if one turn decodes a whole block, the limit does not
//!   count its payload and decoder, because both are freed at the end of the turn.
//! * **Several images.** Images of one group (`group.rs`) share the limit, the order of use, and the threads. Each has a
//!   table of its own. Without a group, an image is alone in one.
//! * **Servers.** Blocks near a requested one are fetched before they are requested, if `ahead/` decides so (`fetch.rs`).
//! * **Background.** `ahead/` decides which bytes to decode before they are requested, and the threads
//!   of the pool decode them (`background.rs`, `pool.rs`). `gate.rs` limits how many threads decode at
//!   once.

mod background;
mod decode;
mod evict;
mod fetch;
mod gate;
mod group;
mod memory;
mod plain;
mod pool;
mod scratch;
mod shared;
mod slot;
mod stats;
mod table;
mod tidier;
mod tidy;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redwarfs_format::{BlockNo, Result};

use self::shared::SharedCache;
use crate::ahead::RestRule;
use crate::options::{CacheOptions, CpuSet};
use crate::payload::Payloads;
use crate::perfmon::PerfMonitor;
pub(crate) use group::ArchiveKey;
pub use group::CacheGroup;
use slot::{SLOT_OVERHEAD, Slot};
use stats::count;
pub use stats::{ActiveSetSize, CacheStats};

/// Decoded blocks of one image, in the cache of its group.
#[derive(Debug)]
pub(crate) struct BlockCache {
    shared: Arc<SharedCache>,
    /// Whether there is a plan.
    planned: AtomicBool,
}

/// Bytes of a block, up to some end, that stay readable while this exists.
#[derive(Debug, Clone)]
pub(crate) struct BlockData(Arc<Slot>);

impl BlockData {
    /// The decoded part of the block, which may be larger than the requested part. It is empty if the
    /// block is read from the image file.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// Whether the block is read from the image file, with [`BlockCache::append`].
    pub(crate) fn is_plain(&self) -> bool {
        self.0.plain().is_some()
    }

    pub(crate) fn has(&self, end: u64) -> bool {
        self.0.has(end)
    }

    pub(crate) fn block(&self) -> BlockNo {
        self.0.block
    }

    /// Notes that a caller takes this many bytes from [`BlockData::bytes`].
    pub(crate) fn served(&self, bytes: usize) {
        self.0.served(bytes as u64);
    }
}

impl BlockCache {
    /// A cache for one image.
    #[cfg(test)]
    pub(crate) fn new(payloads: Payloads, options: &CacheOptions, perfmon: &PerfMonitor) -> Self {
        Self::in_group(&CacheGroup::new(options), payloads, options, perfmon)
    }

    /// The part of the cache of a group that has the blocks of one image.
    pub(crate) fn in_group(
        group: &CacheGroup,
        payloads: Payloads,
        options: &CacheOptions,
        perfmon: &PerfMonitor,
    ) -> Self {
        Self {
            shared: SharedCache::new(group, payloads, options, perfmon),
            planned: AtomicBool::new(false),
        }
    }

    /// Sets a plan: the blocks that will be requested, in the order of their first use, each with the
    /// end of its needed bytes. With a plan, nothing else is decoded ahead. An empty plan ends it.
    pub(crate) fn plan(&self, needs: impl IntoIterator<Item = (BlockNo, u64)>) {
        // So an image cannot make the plan larger than its list of blocks.
        let exists = |block| self.shared.payloads.container().block(block).is_some();
        let mut table = self.shared.table();
        let planned = table
            .ahead
            .plan(needs.into_iter().filter(|&(block, _)| exists(block)));
        self.planned.store(planned, Ordering::Relaxed);
    }

    /// Whether there is a plan.
    pub(crate) fn is_planned(&self) -> bool {
        self.planned.load(Ordering::Relaxed)
    }

    /// Number of threads of the pool.
    pub(crate) fn workers(&self) -> usize {
        self.shared.group.pool.threads()
    }

    /// The CPUs of the threads of the cache.
    pub(crate) fn affinity(&self) -> Option<CpuSet> {
        self.shared.affinity
    }

    /// The bytes `start..end` of a block, and all bytes before them. They are decoded if necessary.
    pub(crate) fn get(&self, block: BlockNo, start: u64, end: u64) -> Result<BlockData> {
        let shared = &self.shared;
        let _timer = shared
            .timers
            .get
            .start_with(&[("block", u64::from(block.0))]);
        count(&shared.group.counters.requests);
        shared.group.counters.active.sample();
        let mut needs = Vec::new();
        let (slot, missing) = {
            let mut table = shared.table();
            table.ask(block);
            let cached = table.touch(block);
            let missing = cached.is_none();
            let slot = match cached {
                Some(slot) => {
                    shared.count_hit(&slot, end);
                    slot
                }
                None => {
                    count(&shared.group.counters.misses);
                    shared.insert(&mut table, block)
                }
            };
            table.ahead.after_request(block, missing, &mut needs);
            (slot, missing)
        };
        needs.into_iter().for_each(|need| self.decode_next(need));
        self.fetch_neighbours(&slot, missing);
        if !slot.has(end) {
            let size = slot.raw_size().unwrap_or(shared.payloads.block_size());
            slot.asked_for(start, end, RestRule::far(size));
        }
        let result = shared.ensure(&slot, end);
        if let Err(e) = result {
            count(&shared.group.counters.errors);
            return Err(e);
        }
        self.finish_soon(&slot);
        Ok(BlockData(slot))
    }

    /// The bytes `..end` of a block, if they are available without work.
    pub(crate) fn get_cached(&self, block: BlockNo, end: u64) -> Option<BlockData> {
        let slot = {
            let mut table = self.shared.table();
            let slot = table.touch(block)?;
            if !slot.has(end) {
                return None;
            }
            table.ask(block);
            slot
        };
        count(&self.shared.group.counters.requests);
        self.shared.group.counters.active.sample();
        self.shared.count_hit(&slot, end);
        self.fetch_neighbours(&slot, false);
        Some(BlockData(slot))
    }

    /// Whether the bytes `..end` of a block are decoded.
    pub(crate) fn contains(&self, block: BlockNo, end: u64) -> bool {
        let table = self.shared.table();
        table.entry(block).is_some_and(|entry| entry.slot.has(end))
    }

    /// Whether a block is in the cache, or somebody is decoding it.
    pub(crate) fn knows(&self, block: BlockNo) -> bool {
        self.shared.table().entry(block).is_some()
    }

    /// Whether a block of `size` bytes fits.
    pub(crate) fn has_room_for(&self, size: u64) -> bool {
        size.saturating_add(SLOT_OVERHEAD) <= self.shared.group.limit
    }

    /// How many blocks of the largest size fit.
    pub(crate) fn blocks_that_fit(&self) -> usize {
        let block = self.shared.payloads.block_size().max(1);
        let fitting = self.shared.group.limit / block.saturating_add(SLOT_OVERHEAD);
        usize::try_from(fitting).unwrap_or(usize::MAX)
    }

    /// Number of open images that share this cache, at least 1.
    pub(crate) fn images(&self) -> usize {
        self.shared.group.members().len().max(1)
    }

    /// Whether decoding ahead is useful: two blocks must fit, because otherwise the next block would
    /// evict the one being read.
    pub(crate) fn has_room_ahead(&self) -> bool {
        self.shared.has_room_ahead()
    }

    /// Call it after the last [`BlockData`] of a request was dropped: then blocks that did not fit into
    /// the cache together with blocks in use can be dropped.
    pub(crate) fn trim(&self) {
        self.shared.make_room(0);
    }

    /// Drops blocks that were not used for `age`; returns their number.
    pub(crate) fn tidy(&self, age: Duration) -> u64 {
        self.shared.tidy_old(age)
    }

    /// The group.
    pub(crate) fn group(&self) -> CacheGroup {
        CacheGroup(Arc::clone(&self.shared.group))
    }

    pub(crate) fn stats(&self) -> CacheStats {
        self.group().stats()
    }
}

impl Drop for BlockCache {
    fn drop(&mut self) {
        self.shared.closed.store(true, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod idle_tests;
#[cfg(test)]
mod in_use_tests;
#[cfg(test)]
mod tests;
