//! The block cache: every block is decoded by one thread at a time, as far as somebody needs it or
//! is likely to, and kept while there is room.
//!
//! * A request for bytes up to some offset of a block finds its slot or makes one. Whoever
//!   comes first reads the payload, verifies it and decodes; others wait and are woken as soon
//!   as their bytes are there. When the one who decodes has what it needs, another one that
//!   needs more goes on with the same decoder.
//! * A block is decoded into one buffer. The part that is published never changes again, so
//!   reading it takes no lock, also while the rest is being decoded.
//! * A block that is not compressed is verified as a whole when it is first needed, and then read
//!   where it is stored, a leaf of 16 KiB at a time, which is compared with what was verified
//!   ([`plain`]). Nothing of it stays in memory but the digests of its leaves, 1/1024 of its size.
//! * An error goes to everybody who waits for that block. The slot has left the cache by then,
//!   so that the next request tries again.
//! * The limit counts decoded bytes, digests of leaves, the rest of the payloads of unfinished blocks,
//!   and for each unfinished block the state of the decoder: little for zstd, which looks back into
//!   the buffer, the raw size once more for others, which hold at most about that much.
//! * Blocks in use are never evicted, whatever their size: those that a request holds, and the last
//!   few (one for each thread of the pool, and one more) that were read but not to their end
//!   ([`Table::in_use`]). Otherwise whoever goes through a block that does not fit would have it
//!   decoded from its start for every request. The cache exceeds its limit only by those, and by the
//!   payload and decoder state of blocks that are decoded as a whole at that moment.

mod decode;
mod gate;
mod memory;
mod plain;
mod plan;
mod pool;
mod scratch;
mod slot;
mod stats;
mod table;
mod tidy;

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redwarfs_format::{BlockNo, Error, Result};

use crate::options::{BlockAllocator, CacheOptions, CpuSet};
use crate::payload::Payloads;
use crate::perfmon::{Component, PerfMonitor, Timer};
use gate::Gate;
use memory::Buffer;
use plan::Plan;
use pool::Pool;
use scratch::Scratch;
use slot::{Account, SLOT_OVERHEAD, Slot, Turn};
pub use stats::{ActiveSetSize, CacheStats};
use stats::{Counters, count};
use table::Table;
use tidy::Tidier;

/// The part of the cache that its threads share.
#[derive(Debug)]
struct Core {
    payloads: Payloads,
    limit: u64,
    /// Most blocks in use that no request holds.
    in_use: usize,
    partial_ratio: f64,
    account: Arc<Account>,
    table: Mutex<Table>,
    counters: Counters,
    closed: AtomicBool,
    timers: Timers,
    allocator: BlockAllocator,
    affinity: Option<CpuSet>,
    tidier: Tidier,
    /// Bytes that blocks being preloaded will take.
    reserved: AtomicU64,
    scratch: Scratch,
    gate: Gate,
}

/// What is timed: a request, what one thread does for a block, and decoding alone.
#[derive(Debug)]
struct Timers {
    get: Timer,
    process: Timer,
    decompress: Timer,
}

/// Decoded blocks of one image.
#[derive(Debug)]
pub(crate) struct BlockCache {
    core: Arc<Core>,
    pool: Pool,
    sequence: usize,
    readahead: u64,
    /// Blocks that are decoded ahead where it is known which ones will be asked for.
    planned_ahead: usize,
    /// Whether that is known.
    planned: AtomicBool,
}

/// Bytes of a block, up to some end, that stay readable while this exists.
#[derive(Debug, Clone)]
pub(crate) struct BlockData(Arc<Slot>);

impl BlockData {
    /// What is decoded of the block; perhaps more than was asked for. Nothing if the block is read
    /// where it is stored.
    pub(crate) fn bytes(&self) -> &[u8] {
        self.0.bytes()
    }

    /// Whether the block is read where it is stored, with [`BlockCache::append`].
    pub(crate) fn is_plain(&self) -> bool {
        self.0.plain().is_some()
    }

    pub(crate) fn has(&self, end: u64) -> bool {
        self.0.has(end)
    }

    pub(crate) fn block(&self) -> BlockNo {
        self.0.block
    }

    /// Takes note that a reader gets so many bytes out of [`BlockData::bytes`].
    pub(crate) fn served(&self, bytes: usize) {
        self.0.served(bytes as u64);
    }
}

/// Why a block is decoded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Urgency {
    /// Somebody waits for it.
    Wanted,
    /// Somebody will need it soon.
    Ahead,
    /// Perhaps somebody will. Gives way to others that want to decode something.
    Speculative,
}

/// Most blocks in use that no request holds, without one.
const MAX_IN_USE: usize = 1 << 10;

/// Longest sequence that the detector looks at; more would make every request slower.
const MAX_SEQUENCE: usize = 64;

/// Jumps (requests that begin far beyond what is decoded or asked for of a block) after which the
/// rest of a block is decoded, too. If they are at random places, each halves what is left, so that
/// a quarter of the block is decoded in vain if nobody comes any more; if many come, they find it
/// decoded instead of waiting for each other. Where the cache has room for the whole image, so that
/// no block has to be decoded twice, one is enough. A thread of the pool does it if it is not in the
/// way of readers; if others wait to decode when a block is begun, whoever begins it does it, as changing
/// between blocks costs more.
const JUMPS: u32 = 2;

/// What is far: this part of a block.
const FAR: u64 = 16;

/// The most that is decoded on account of jumps (16 MiB).
const EAGER: u64 = 16 << 20;

impl BlockCache {
    pub(crate) fn new(payloads: Payloads, options: &CacheOptions, perfmon: &PerfMonitor) -> Self {
        let partial_ratio = if options.partial_ratio.is_nan() {
            1.0
        } else {
            options.partial_ratio
        };
        // One for each thread, as far as they fit beside the one that is being read. An unfinished one
        // may take up to three times its size, with payload and decoder.
        let fitting = options.size / payloads.block_size().saturating_mul(3).max(1);
        let fitting = usize::try_from(fitting.saturating_sub(1)).unwrap_or(usize::MAX);
        let planned_ahead = options.workers.clamp(1, fitting.max(1));
        Self {
            core: Arc::new(Core {
                payloads,
                limit: options.size,
                in_use: options.workers.clamp(1, MAX_IN_USE) + 1,
                partial_ratio,
                account: Arc::default(),
                table: Mutex::default(),
                counters: Counters::default(),
                closed: AtomicBool::new(false),
                timers: Timers {
                    get: perfmon.timer(Component::BlockCache, "get"),
                    process: perfmon.timer(Component::BlockCache, "process"),
                    decompress: perfmon.timer(Component::BlockCache, "decompress"),
                },
                allocator: options.allocator,
                affinity: options.affinity,
                tidier: Tidier::new(options.tidy),
                reserved: AtomicU64::new(0),
                scratch: Scratch::default(),
                gate: Gate::new(),
            }),
            pool: Pool::new(options.workers, options.affinity),
            sequence: options.seq_detector.min(MAX_SEQUENCE),
            readahead: options.readahead,
            planned_ahead,
            planned: AtomicBool::new(false),
        }
    }

    /// What will be asked for from now on: blocks, and the end of what is needed of them. Nothing
    /// else is decoded ahead then. Without any, it is guessed again.
    pub(crate) fn plan(&self, needs: impl IntoIterator<Item = (BlockNo, u64)>) {
        // So an image cannot make the plan larger than its list of blocks.
        let exists = |block| self.core.payloads.container().block(block).is_some();
        let plan = Plan::new(needs.into_iter().filter(|&(block, _)| exists(block)));
        let mut table = self.core.table();
        self.planned.store(plan.is_some(), Ordering::Relaxed);
        table.plan = plan;
    }

    /// Whether it is known what will be asked for.
    pub(crate) fn is_planned(&self) -> bool {
        self.planned.load(Ordering::Relaxed)
    }

    /// Number of threads of the pool.
    pub(crate) fn workers(&self) -> usize {
        self.pool.threads()
    }

    /// Bytes to decode behind each request: no more than half of what fits.
    pub(crate) fn readahead(&self) -> usize {
        usize::try_from(self.readahead.min(self.core.limit / 2)).unwrap_or(usize::MAX)
    }

    /// Where the threads of the cache run.
    pub(crate) fn affinity(&self) -> Option<CpuSet> {
        self.core.affinity
    }

    /// The bytes `start..end` of a block, and with them all before, decoded if necessary.
    pub(crate) fn get(&self, block: BlockNo, start: u64, end: u64) -> Result<BlockData> {
        let core = &self.core;
        let _timer = core.timers.get.start_with(&[("block", u64::from(block.0))]);
        count(&core.counters.requests);
        core.counters.active.sample();
        let (slot, next) = {
            let mut table = core.table();
            table.ask(block);
            let cached = table.touch(block);
            let missing = cached.is_none();
            let slot = match cached {
                Some(slot) => {
                    core.count_hit(&slot, end);
                    slot
                }
                None => {
                    count(&core.counters.misses);
                    core.insert(&mut table, block)
                }
            };
            let mut next = Vec::new();
            match &mut table.plan {
                Some(plan) => {
                    next.extend_from_slice(plan.behind(block, missing, self.planned_ahead));
                }
                None => next.extend(
                    table
                        .next_in_sequence(block, self.sequence)
                        .map(|next| (next, core.payloads.block_size())),
                ),
            }
            (slot, next)
        };
        for (next, end) in next {
            self.prefetch_next(next, end);
        }
        if !slot.has(end) {
            let size = slot.raw_size().unwrap_or(core.payloads.block_size());
            slot.asked_for(start, end, size / FAR);
        }
        let result = core.ensure(&slot, end);
        if let Err(e) = result {
            count(&core.counters.errors);
            return Err(e);
        }
        self.finish_soon(&slot);
        Ok(BlockData(slot))
    }

    /// The bytes `..end` of a block if they can be had without any work.
    pub(crate) fn get_cached(&self, block: BlockNo, end: u64) -> Option<BlockData> {
        let slot = {
            let mut table = self.core.table();
            let slot = table.touch(block)?;
            if !slot.has(end) {
                return None;
            }
            table.ask(block);
            slot
        };
        count(&self.core.counters.requests);
        self.core.counters.active.sample();
        self.core.count_hit(&slot, end);
        Some(BlockData(slot))
    }

    /// Whether `..end` of a block is there.
    pub(crate) fn contains(&self, block: BlockNo, end: u64) -> bool {
        let table = self.core.table();
        table.entry(block).is_some_and(|entry| entry.slot.has(end))
    }

    /// Whether a block of `size` bytes fits.
    pub(crate) fn has_room_for(&self, size: u64) -> bool {
        size.saturating_add(SLOT_OVERHEAD) <= self.core.limit
    }

    /// Whether decoding ahead makes sense: two blocks have to fit, or the one ahead would push
    /// out the one being read.
    pub(crate) fn has_room_ahead(&self) -> bool {
        self.core.has_room_ahead()
    }

    /// To be called after the last [`BlockData`] of a request is gone: what did not fit beside
    /// blocks in use can be dropped now.
    pub(crate) fn trim(&self) {
        self.core.make_room(0);
    }

    /// Starts to decode `..end` of a block in the background; does nothing if the threads are
    /// too busy. Returns whether a job was queued.
    pub(crate) fn prefetch(&self, block: BlockNo, end: u64) -> bool {
        let core = &self.core;
        if core.payloads.container().block(block).is_none() {
            return false;
        }
        // Found or made by the job itself, so that a waiting job keeps nothing in the cache.
        let (shared, since) = (Arc::clone(core), core.table().asks());
        self.pool.try_submit(Box::new(move || {
            if shared.closed.load(Ordering::Relaxed) {
                return;
            }
            let Some(slot) = shared.find_or_insert_ahead(block, since) else {
                count(&shared.counters.expired);
                return;
            };
            // An error is told to whoever needs the block; a prefetch does not.
            match slot.try_take() {
                Some(turn) => {
                    let _ = shared.advance(turn, end, Urgency::Ahead);
                }
                None => count(&shared.counters.expired),
            }
            drop(slot);
            shared.make_room(0);
        }))
    }

    fn prefetch_next(&self, block: BlockNo, end: u64) {
        let core = &self.core;
        if !self.has_room_ahead() || core.table().entry(block).is_some() {
            return;
        }
        if self.prefetch(block, end) {
            count(&core.counters.prefetches);
        }
    }

    /// Lets a thread of the pool decode the rest of a block of which most has been decoded, or which
    /// is read at random.
    fn finish_soon(&self, slot: &Arc<Slot>) {
        let Some(raw_size) = slot.raw_size() else {
            return;
        };
        let available = slot.available();
        let complete = available >= raw_size || self.is_planned();
        if complete || slot.is_busy() {
            return;
        }
        // Nobody else has to wait for what may not be needed.
        let at_random = || {
            self.core.is_read_at_random(slot, raw_size - available)
                && self.pool.is_idle()
                && self.core.gate.has_room_for_two()
        };
        let urgency = if available >= self.core.wanted_share(raw_size) {
            Urgency::Ahead
        } else if at_random() {
            Urgency::Speculative
        } else {
            return;
        };
        let Some(finishing) = slot.begin_to_finish() else {
            return;
        };
        let (core, block) = (Arc::clone(&self.core), slot.block);
        // Found by the job itself, as in `prefetch`. If the block has been dropped, or dropped
        // and begun anew, in the meantime, nobody is waiting for its rest.
        self.pool.try_submit(Box::new(move || {
            if core.closed.load(Ordering::Relaxed) {
                return;
            }
            let slot = {
                let table = core.table();
                table.entry(block).map(|e| Arc::clone(&e.slot))
            };
            let turn = slot
                .filter(|slot| slot.available() >= available)
                .and_then(|slot| slot.try_take());
            match turn {
                Some(turn) => {
                    let _ = core.advance(turn, raw_size, urgency);
                }
                None => count(&core.counters.expired),
            }
            drop(finishing);
            core.make_room(0);
        }));
    }

    /// Decodes a whole block into the cache, unless that would push others out. False if there
    /// is no room.
    pub(crate) fn preload(&self, block: BlockNo) -> Result<bool> {
        let core = &self.core;
        let size = core.payloads.block_size();
        if core
            .table()
            .entry(block)
            .is_some_and(|e| e.slot.is_complete())
        {
            return Ok(true);
        }
        // Others that preload at the same time count with what they will take.
        let reservation = Reservation::new(core, size);
        if core.account.used().saturating_add(reservation.total) > core.limit {
            return Ok(false);
        }
        let slot = core.find_or_insert(block);
        let result = core.ensure_all(&slot);
        drop(slot);
        drop(reservation);
        self.trim();
        result.map(|()| true)
    }

    /// Drops blocks that were not used for `age`; returns their number.
    pub(crate) fn tidy(&self, age: Duration) -> u64 {
        self.core.tidy_old(age)
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let core = &self.core;
        let c = &core.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStats {
            limit: core.limit,
            used: core.account.used(),
            peak: core.account.peak(),
            blocks: core.table().len() as u64,
            blocks_created: get(&c.created),
            blocks_evicted: get(&c.evicted),
            blocks_tidied: get(&c.tidied),
            request_sets_merged: get(&c.merged),
            requests: get(&c.requests),
            sequential_prefetches: get(&c.prefetches),
            active_hits_fast: get(&c.active_fast),
            active_hits_slow: get(&c.active_slow),
            cache_hits_fast: get(&c.cache_fast),
            cache_hits_slow: get(&c.cache_slow),
            misses: get(&c.misses),
            bytes_decoded: get(&c.decoded),
            bytes_of_decoded_blocks: get(&c.decoded_of),
            expired_active_requests: get(&c.expired),
            active_set_size: c.active.quantiles(),
            errors: get(&c.errors),
        }
    }
}

impl Drop for BlockCache {
    fn drop(&mut self) {
        self.core.closed.store(true, Ordering::Relaxed);
    }
}

/// Room in the cache for a block that is about to be preloaded.
struct Reservation<'a> {
    core: &'a Core,
    size: u64,
    /// Bytes reserved by all, this one included.
    total: u64,
}

impl<'a> Reservation<'a> {
    fn new(core: &'a Core, size: u64) -> Self {
        let before = core.reserved.fetch_add(size, Ordering::Relaxed);
        Self {
            core,
            size,
            total: before.saturating_add(size),
        }
    }
}

impl Drop for Reservation<'_> {
    fn drop(&mut self) {
        self.core.reserved.fetch_sub(self.size, Ordering::Relaxed);
    }
}

impl Core {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(self: &Arc<Self>, table: &mut Table, block: BlockNo) -> Arc<Slot> {
        count(&self.counters.created);
        tracing::trace!("block {} comes into the cache", block.0);
        self.tidier.start(self);
        let slot = Arc::new(Slot::new(block, &self.account));
        table.insert(block, Arc::clone(&slot));
        slot
    }

    fn find_or_insert(self: &Arc<Self>, block: BlockNo) -> Arc<Slot> {
        let mut table = self.table();
        match table.touch(block) {
            Some(slot) => slot,
            None => self.insert(&mut table, block),
        }
    }

    /// The same for whoever decodes ahead since `since`; `None` if the block was asked for in the meantime
    /// and is gone: nobody waits for it.
    fn find_or_insert_ahead(self: &Arc<Self>, block: BlockNo, since: u64) -> Option<Arc<Slot>> {
        let mut table = self.table();
        match table.touch(block) {
            Some(slot) => Some(slot),
            None if table.was_asked_since(block, since) => None,
            None => Some(self.insert(&mut table, block)),
        }
    }

    fn count_hit(&self, slot: &Slot, end: u64) {
        let c = &self.counters;
        count(match (slot.has(end), slot.is_busy()) {
            (true, true) => &c.active_fast,
            (true, false) => &c.cache_fast,
            (false, true) => &c.active_slow,
            (false, false) => &c.cache_slow,
        });
    }

    /// Whether two blocks fit.
    fn has_room_ahead(&self) -> bool {
        let block = self.payloads.block_size().saturating_add(SLOT_OVERHEAD);
        block.saturating_mul(2) <= self.limit
    }

    /// Whether a `rest` of a block is to be decoded because of the jumps into it.
    fn is_read_at_random(&self, slot: &Slot, rest: u64) -> bool {
        let blocks = u64::from(self.payloads.container().block_count());
        let block = self.payloads.block_size().saturating_add(SLOT_OVERHEAD);
        let fits = blocks.saturating_mul(block) <= self.limit;
        let enough = if fits { 1 } else { JUMPS };
        self.partial_ratio < 1.0 && rest <= EAGER && slot.jumps() >= enough && self.has_room_ahead()
    }

    /// Decoded bytes of a block from which on the rest is decoded, too.
    fn wanted_share(&self, raw_size: u64) -> u64 {
        // Exact enough: it only chooses between two ways to the same result.
        (raw_size as f64 * self.partial_ratio).ceil() as u64
    }

    /// Returns when `..end` is there.
    fn ensure(&self, slot: &Arc<Slot>, end: u64) -> Result<()> {
        loop {
            if slot.has(end) {
                return Ok(());
            }
            match self.wait_or_take(slot, end)? {
                Some(turn) => self.advance(turn, end, Urgency::Wanted)?,
                None if slot.has(end) => return Ok(()),
                None => {
                    // Perhaps the medium held something else for a while: the next request looks
                    // at it again.
                    self.forget(slot);
                    return Err(self.too_short(slot, end));
                }
            }
        }
    }

    /// Returns when the whole block is there.
    fn ensure_all(&self, slot: &Arc<Slot>) -> Result<()> {
        while let Some(turn) = self.wait_or_take(slot, u64::MAX)? {
            self.advance(turn, u64::MAX, Urgency::Wanted)?;
        }
        Ok(())
    }

    fn wait_or_take(&self, slot: &Arc<Slot>, end: u64) -> Result<Option<Turn>> {
        let joined = || count(&self.counters.merged);
        slot.wait_or_take(end, &joined).inspect_err(|_| {
            // Normally done already by the thread that failed, but not if it panicked.
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

    /// Takes a failed slot out of the cache, unless another one is already in its place.
    fn forget(&self, slot: &Arc<Slot>) {
        let mut table = self.table();
        let same = table
            .entry(slot.block)
            .is_some_and(|entry| Arc::ptr_eq(&entry.slot, slot));
        let removed = if same { table.remove(slot.block) } else { None };
        drop(table);
        drop(removed);
    }

    /// Drops the blocks that were not used for the longest time until `extra` bytes fit. Blocks
    /// in use stay, whatever their size, so this may fall short.
    fn make_room(&self, extra: u64) {
        drop(self.evict(extra));
    }

    /// The same for a block of `len` bytes; returns the memory of a dropped one if it fits.
    fn make_room_for(&self, len: usize) -> Option<Buffer> {
        let mut dropped = self.evict(len as u64);
        dropped.iter_mut().find_map(|slot| Slot::reclaim(slot, len))
    }

    fn evict(&self, extra: u64) -> Vec<Arc<Slot>> {
        let excess = |freed: u64| {
            let wanted = self.account.used().saturating_add(extra);
            wanted.saturating_sub(freed) > self.limit
        };
        let mut dropped = Vec::new();
        if !excess(0) {
            return dropped;
        }
        {
            let mut table = self.table();
            let in_use = table.in_use(self.in_use);
            let mut freed = 0;
            let mut from = 0;
            while excess(freed) {
                let idle = table.first_idle(from, &in_use);
                let Some((tick, block)) = idle else {
                    break;
                };
                from = tick;
                if let Some(slot) = table.remove(block) {
                    freed += slot.charged();
                    dropped.push(slot);
                }
            }
        }
        let n = dropped.len() as u64;
        self.counters.evicted.fetch_add(n, Ordering::Relaxed);
        dropped
    }
}

#[cfg(test)]
mod idle_tests;
#[cfg(test)]
mod in_use_tests;
#[cfg(test)]
mod tests;
