//! The block cache: every block is decoded by one thread at a time, only as far as somebody
//! needs it, and kept while there is room.
//!
//! * A request for bytes up to some offset of a block finds its slot or makes one. Whoever
//!   comes first reads the payload, verifies it and decodes; others wait and are woken as soon
//!   as their bytes are there. When the one who decodes has what it needs, another one that
//!   needs more goes on with the same decoder.
//! * Decoded bytes are published in segments that never change again, so copying from them
//!   takes no lock, also while the rest is being decoded.
//! * An error goes to everybody who waits for that block. The slot has left the cache by then,
//!   so that the next request tries again.
//! * The limit counts decoded bytes, payloads of unfinished blocks, and for each unfinished
//!   block its raw size once more for the state of the decoder, of which codecs hold at most
//!   about that much. Blocks in use are never evicted: the cache exceeds its limit only by
//!   blocks that are being read at that moment, and by the payload and decoder state of those
//!   that are decoded in one step at that moment.

mod pool;
mod slot;

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redwarfs_codec::Decoder;
use redwarfs_format::section::CompressionId;
use redwarfs_format::{BlockNo, Error, Result};

use crate::error::{in_section, replicate};
use crate::options::{CacheOptions, CpuSet};
use crate::payload::Payloads;
use crate::perfmon::{Component, PerfMonitor, Timer};
use pool::Pool;
use slot::{Account, SEGMENT, Slot, Turn, Work};

/// What the block cache has done so far.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct CacheStats {
    /// Limit in bytes.
    pub limit: u64,
    /// Bytes held now, as counted for the limit.
    pub used: u64,
    /// Most bytes held at any time, blocks in use included.
    pub peak: u64,
    /// Blocks held now.
    pub blocks: u64,
    /// Blocks that entered the cache.
    pub blocks_created: u64,
    /// Blocks that were dropped to make room.
    pub blocks_evicted: u64,
    /// Blocks that were dropped because they were idle.
    pub blocks_tidied: u64,
    /// Requests for bytes of a block.
    pub requests: u64,
    /// Blocks that were decoded because the ones before were read in sequence.
    pub sequential_prefetches: u64,
    /// Requests whose bytes were there while the block was being decoded for somebody else.
    pub active_hits_fast: u64,
    /// Requests that waited for a block that was being decoded for somebody else.
    pub active_hits_slow: u64,
    /// Requests whose bytes were there.
    pub cache_hits_fast: u64,
    /// Requests that continued a partly decoded block.
    pub cache_hits_slow: u64,
    /// Requests for a block that was not in the cache.
    pub misses: u64,
    /// Bytes that were decoded.
    pub bytes_decoded: u64,
    /// Raw sizes of all blocks of which something was decoded.
    pub bytes_of_decoded_blocks: u64,
    /// Requests that ended in an error.
    pub errors: u64,
}

impl CacheStats {
    /// Decoded share of the blocks that were touched, 0 to 1.
    pub fn average_decoded(&self) -> f64 {
        ratio(self.bytes_decoded, self.bytes_of_decoded_blocks)
    }

    /// Share of requests that were answered at once, 0 to 1.
    pub fn fast_hit_rate(&self) -> f64 {
        ratio(self.active_hits_fast + self.cache_hits_fast, self.requests)
    }

    /// Share of requests that found the block, but not yet all of its bytes, 0 to 1.
    pub fn slow_hit_rate(&self) -> f64 {
        ratio(self.active_hits_slow + self.cache_hits_slow, self.requests)
    }

    /// Share of requests that did not find the block, 0 to 1.
    pub fn miss_rate(&self) -> f64 {
        ratio(self.misses, self.requests)
    }
}

fn ratio(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

#[derive(Debug, Default)]
struct Counters {
    created: AtomicU64,
    evicted: AtomicU64,
    tidied: AtomicU64,
    requests: AtomicU64,
    prefetches: AtomicU64,
    active_fast: AtomicU64,
    active_slow: AtomicU64,
    cache_fast: AtomicU64,
    cache_slow: AtomicU64,
    misses: AtomicU64,
    decoded: AtomicU64,
    decoded_of: AtomicU64,
    errors: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

#[derive(Debug)]
struct Entry {
    slot: Arc<Slot>,
    /// Key in `Table::order`.
    tick: u64,
    used_at: Instant,
}

/// Which blocks are in the cache, and in which order they were used.
#[derive(Debug, Default)]
struct Table {
    entries: HashMap<BlockNo, Entry>,
    /// Oldest first.
    order: BTreeMap<u64, BlockNo>,
    tick: u64,
    /// The last different blocks that were asked for.
    recent: VecDeque<BlockNo>,
}

impl Table {
    fn touch(&mut self, block: BlockNo) -> Option<Arc<Slot>> {
        let entry = self.entries.get_mut(&block)?;
        entry.used_at = Instant::now();
        if entry.tick != self.tick {
            self.order.remove(&entry.tick);
            self.tick += 1;
            entry.tick = self.tick;
            self.order.insert(self.tick, block);
        }
        Some(Arc::clone(&entry.slot))
    }

    fn insert(&mut self, block: BlockNo, slot: Arc<Slot>) {
        self.tick += 1;
        self.order.insert(self.tick, block);
        let entry = Entry {
            slot,
            tick: self.tick,
            used_at: Instant::now(),
        };
        self.entries.insert(block, entry);
    }

    fn remove(&mut self, block: BlockNo) -> Option<Arc<Slot>> {
        let entry = self.entries.remove(&block)?;
        self.order.remove(&entry.tick);
        Some(entry.slot)
    }

    /// The block after the last `n` requested ones, if those are consecutive.
    fn next_in_sequence(&mut self, block: BlockNo, n: usize) -> Option<BlockNo> {
        if n == 0 || self.recent.contains(&block) {
            return None;
        }
        if self.recent.len() >= n {
            self.recent.pop_front();
        }
        self.recent.push_back(block);
        if self.recent.len() < n {
            return None;
        }
        // All different, so they are consecutive if they span exactly their number.
        let first = self.recent.iter().min()?.0;
        let last = self.recent.iter().max()?.0;
        if u64::from(last - first) + 1 == n as u64 {
            last.checked_add(1).map(BlockNo)
        } else {
            None
        }
    }
}

/// The part of the cache that its threads share.
#[derive(Debug)]
struct Core {
    payloads: Payloads,
    limit: u64,
    partial_ratio: f64,
    account: Arc<Account>,
    table: Mutex<Table>,
    counters: Counters,
    closed: AtomicBool,
    timers: Timers,
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
    affinity: Option<CpuSet>,
}

/// Bytes of a block, up to some end, that stay readable while this exists.
#[derive(Debug)]
pub(crate) struct BlockData(Arc<Slot>);

impl BlockData {
    /// Copies from the block; false if the bytes were not asked for.
    pub(crate) fn copy(&self, offset: u64, out: &mut [u8]) -> bool {
        self.0.copy(offset, out)
    }

    pub(crate) fn has(&self, end: u64) -> bool {
        self.0.has(end)
    }

    pub(crate) fn block(&self) -> BlockNo {
        self.0.block
    }
}

/// Longest sequence that the detector looks at; more would make every request slower.
const MAX_SEQUENCE: usize = 64;

impl BlockCache {
    pub(crate) fn new(payloads: Payloads, options: &CacheOptions, perfmon: &PerfMonitor) -> Self {
        let partial_ratio = if options.partial_ratio.is_nan() {
            1.0
        } else {
            options.partial_ratio
        };
        Self {
            core: Arc::new(Core {
                payloads,
                limit: options.size,
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
            }),
            pool: Pool::new(options.workers, options.affinity),
            sequence: options.seq_detector.min(MAX_SEQUENCE),
            affinity: options.affinity,
        }
    }

    /// Number of threads of the pool.
    pub(crate) fn workers(&self) -> usize {
        self.pool.threads()
    }

    /// Where the threads of the cache run.
    pub(crate) fn affinity(&self) -> Option<CpuSet> {
        self.affinity
    }

    /// The bytes `..end` of a block, decoded if necessary.
    pub(crate) fn get(&self, block: BlockNo, end: u64) -> Result<BlockData> {
        let core = &self.core;
        count(&core.counters.requests);
        let (slot, next) = {
            let mut table = core.table();
            let slot = match table.touch(block) {
                Some(slot) => {
                    core.count_hit(&slot, end);
                    slot
                }
                None => {
                    count(&core.counters.misses);
                    core.insert(&mut table, block)
                }
            };
            (slot, table.next_in_sequence(block, self.sequence))
        };
        if let Some(next) = next {
            self.prefetch_sequential(next);
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
        let slot = self.core.table().touch(block)?;
        if !slot.has(end) {
            return None;
        }
        count(&self.core.counters.requests);
        self.core.count_hit(&slot, end);
        Some(BlockData(slot))
    }

    /// Whether `..end` of a block is there.
    pub(crate) fn contains(&self, block: BlockNo, end: u64) -> bool {
        let table = self.core.table();
        table
            .entries
            .get(&block)
            .is_some_and(|entry| entry.slot.has(end))
    }

    /// Whether decoding ahead makes sense: two blocks have to fit, or the one ahead would push
    /// out the one being read.
    pub(crate) fn has_room_ahead(&self) -> bool {
        self.core.payloads.block_size().saturating_mul(2) <= self.core.limit
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
        let shared = Arc::clone(core);
        self.pool.try_submit(Box::new(move || {
            if shared.closed.load(Ordering::Relaxed) {
                return;
            }
            let slot = shared.find_or_insert(block);
            // An error is told to whoever needs the block; a prefetch does not.
            if !slot.has(end)
                && let Some(turn) = slot.try_take()
            {
                let _ = shared.advance(turn, end);
            }
            drop(slot);
            shared.make_room(0);
        }))
    }

    fn prefetch_sequential(&self, block: BlockNo) {
        let core = &self.core;
        if !self.has_room_ahead() || core.table().entries.contains_key(&block) {
            return;
        }
        if self.prefetch(block, core.payloads.block_size()) {
            count(&core.counters.prefetches);
        }
    }

    /// Lets a thread of the pool decode the rest of a block of which most has been decoded.
    fn finish_soon(&self, slot: &Arc<Slot>) {
        let Some(raw_size) = slot.raw_size() else {
            return;
        };
        let available = slot.available();
        // A block that does not fit leaves the cache with this request.
        if raw_size > self.core.limit {
            return;
        }
        if available >= raw_size || available < self.core.wanted_share(raw_size) || slot.is_busy() {
            return;
        }
        let (core, block) = (Arc::clone(&self.core), slot.block);
        // Found by the job itself, as in `prefetch`. If the block has been dropped, or dropped
        // and begun anew, in the meantime, nobody is waiting for its rest.
        self.pool.try_submit(Box::new(move || {
            if core.closed.load(Ordering::Relaxed) {
                return;
            }
            let slot = {
                let table = core.table();
                table.entries.get(&block).map(|e| Arc::clone(&e.slot))
            };
            if let Some(slot) = slot.filter(|slot| slot.available() >= available)
                && let Some(turn) = slot.try_take()
            {
                let _ = core.advance(turn, raw_size);
            }
            core.make_room(0);
        }));
    }

    /// Decodes a whole block into the cache, unless that would push others out. False if there
    /// is no room.
    pub(crate) fn preload(&self, block: BlockNo) -> Result<bool> {
        let core = &self.core;
        let size = core.payloads.block_size();
        if core.account.used().saturating_add(size) > core.limit {
            return Ok(false);
        }
        let slot = core.find_or_insert(block);
        let result = core.ensure_all(&slot);
        drop(slot);
        self.trim();
        result.map(|()| true)
    }

    /// Drops blocks that were not used for `age`; returns their number.
    pub(crate) fn tidy(&self, age: Duration) -> u64 {
        let now = Instant::now();
        let mut dropped = Vec::new();
        {
            let mut table = self.core.table();
            let old: Vec<BlockNo> = table
                .order
                .values()
                .filter_map(|block| Some((block, table.entries.get(block)?)))
                .take_while(|(_, entry)| now.saturating_duration_since(entry.used_at) >= age)
                .filter(|(_, entry)| Arc::strong_count(&entry.slot) == 1)
                .map(|(block, _)| *block)
                .collect();
            dropped.extend(old.into_iter().filter_map(|block| table.remove(block)));
        }
        let n = dropped.len() as u64;
        self.core.counters.tidied.fetch_add(n, Ordering::Relaxed);
        n
    }

    pub(crate) fn stats(&self) -> CacheStats {
        let core = &self.core;
        let c = &core.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        CacheStats {
            limit: core.limit,
            used: core.account.used(),
            peak: core.account.peak(),
            blocks: core.table().entries.len() as u64,
            blocks_created: get(&c.created),
            blocks_evicted: get(&c.evicted),
            blocks_tidied: get(&c.tidied),
            requests: get(&c.requests),
            sequential_prefetches: get(&c.prefetches),
            active_hits_fast: get(&c.active_fast),
            active_hits_slow: get(&c.active_slow),
            cache_hits_fast: get(&c.cache_fast),
            cache_hits_slow: get(&c.cache_slow),
            misses: get(&c.misses),
            bytes_decoded: get(&c.decoded),
            bytes_of_decoded_blocks: get(&c.decoded_of),
            errors: get(&c.errors),
        }
    }
}

impl Drop for BlockCache {
    fn drop(&mut self) {
        self.core.closed.store(true, Ordering::Relaxed);
    }
}

impl Core {
    fn table(&self) -> MutexGuard<'_, Table> {
        self.table.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn insert(&self, table: &mut Table, block: BlockNo) -> Arc<Slot> {
        count(&self.counters.created);
        let slot = Arc::new(Slot::new(block, &self.account));
        table.insert(block, Arc::clone(&slot));
        slot
    }

    fn find_or_insert(&self, block: BlockNo) -> Arc<Slot> {
        let mut table = self.table();
        match table.touch(block) {
            Some(slot) => slot,
            None => self.insert(&mut table, block),
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
                Some(turn) => self.advance(turn, end)?,
                None if slot.has(end) => return Ok(()),
                None => return Err(self.too_short(slot, end)),
            }
        }
    }

    /// Returns when the whole block is there.
    fn ensure_all(&self, slot: &Arc<Slot>) -> Result<()> {
        while let Some(turn) = self.wait_or_take(slot, u64::MAX)? {
            self.advance(turn, u64::MAX)?;
        }
        Ok(())
    }

    fn wait_or_take(&self, slot: &Arc<Slot>, end: u64) -> Result<Option<Turn>> {
        slot.wait_or_take(end).inspect_err(|_| {
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

    /// Brings a block forward to `end` or to its own end.
    fn advance(&self, mut turn: Turn, end: u64) -> Result<()> {
        let result = self.advance_inner(&mut turn, end);
        let slot = Arc::clone(turn.slot());
        match result {
            Ok(()) if slot.raw_size().is_some_and(|size| slot.available() >= size) => {
                turn.complete();
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
                Err(replicate(&e))
            }
        }
    }

    fn advance_inner(&self, turn: &mut Turn, end: u64) -> Result<()> {
        let block = turn.slot().block;
        if turn.slot().raw_size().is_none() {
            self.load(turn, end)?;
        }
        let Some(mut work) = turn.work.take() else {
            return Ok(());
        };
        let slot = Arc::clone(turn.slot());
        let result = loop {
            let len = turn.next_len();
            if len == 0 || slot.available() >= end.max(1) {
                break Ok(());
            }
            self.make_room(len as u64);
            let mut segment = match buffer(len) {
                Ok(segment) => segment,
                Err(e) => break Err(e),
            };
            if let Err(e) = work.decoder.fill(&mut segment) {
                break Err(e);
            }
            // The last bytes wait for the verdict on the end of the stream.
            let raw_size = work.decoder.raw_size();
            if work.decoder.position() >= raw_size
                && let Err(e) = work.decoder.finish()
            {
                break Err(e);
            }
            self.counters
                .decoded
                .fetch_add(len as u64, Ordering::Relaxed);
            turn.publish(segment.into_boxed_slice());
        };
        turn.work = Some(work);
        result.map_err(|e| self.payloads.in_block(e, block))
    }

    /// Reads and verifies the payload and finds out the shape of the block.
    fn load(&self, turn: &mut Turn, end: u64) -> Result<()> {
        let block = turn.slot().block;
        let section = self.payloads.block_section(block)?;
        let wrap = |e| in_section(e, &section);
        let id = self.payloads.compression(&section)?;
        if id == CompressionId::NONE {
            self.make_room(section.length);
            let data = self.payloads.read_vec(&section)?;
            let size = data.len() as u64;
            turn.shape(size, data.len()).map_err(wrap)?;
            self.counters.decoded.fetch_add(size, Ordering::Relaxed);
            self.counters.decoded_of.fetch_add(size, Ordering::Relaxed);
            turn.publish(data.into_boxed_slice());
            return Ok(());
        }
        let payload = self.payloads.read_shared(&section)?;
        let stored = payload.len() as u64;
        let decoder = Decoder::new(id, payload, self.payloads.block_size()).map_err(wrap)?;
        let raw_size = decoder.raw_size();
        // Nearly everything is wanted, or steps would gain nothing: one step is faster.
        let whole = !decoder.is_incremental()
            || raw_size <= SEGMENT as u64
            || end >= self.wanted_share(raw_size).max(1);
        let segment = match usize::try_from(raw_size) {
            Ok(size) if whole => size,
            _ => SEGMENT,
        };
        turn.shape(raw_size, segment).map_err(wrap)?;
        self.counters
            .decoded_of
            .fetch_add(raw_size, Ordering::Relaxed);
        // A decoder that lives for one step is not kept, so it need not be counted.
        let charge = if whole {
            0
        } else {
            stored.saturating_add(raw_size)
        };
        self.make_room(charge);
        turn.slot().charge(charge);
        turn.work = Some(Work {
            decoder: Box::new(decoder),
            charge,
        });
        Ok(())
    }

    /// Takes a failed slot out of the cache, unless another one is already in its place.
    fn forget(&self, slot: &Arc<Slot>) {
        let mut table = self.table();
        let same = table
            .entries
            .get(&slot.block)
            .is_some_and(|entry| Arc::ptr_eq(&entry.slot, slot));
        let removed = if same { table.remove(slot.block) } else { None };
        drop(table);
        drop(removed);
    }

    /// Drops the blocks that were not used for the longest time until `extra` bytes fit. Blocks
    /// in use stay, so this may fall short.
    fn make_room(&self, extra: u64) {
        let excess = |freed: u64| {
            let wanted = self.account.used().saturating_add(extra);
            wanted.saturating_sub(freed) > self.limit
        };
        if !excess(0) {
            return;
        }
        let mut dropped = Vec::new();
        {
            let mut table = self.table();
            let mut freed = 0;
            let mut from = 0;
            while excess(freed) {
                // Only the table hands out references, and it is locked: a count of one
                // stays one.
                let idle = table.order.range(from..).find_map(|(&tick, block)| {
                    let entry = table.entries.get(block)?;
                    (Arc::strong_count(&entry.slot) == 1).then_some((tick, *block))
                });
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
    }
}

/// A zeroed buffer, or an error where `vec!` would abort.
///
/// Unlike `resize`, `vec!` takes large buffers from the system without touching them. So a block
/// that announces far more than its payload yields costs address space, not memory.
fn buffer(len: usize) -> Result<Vec<u8>> {
    Vec::<u8>::new()
        .try_reserve_exact(len)
        .map_err(|_| Error::Limit(format!("no memory for {len} bytes of a block")))?;
    Ok(vec![0; len])
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod table_tests {
    use super::*;

    #[test]
    fn sequences_are_found_in_any_order_and_only_once() {
        let mut table = Table::default();
        let mut ask = |n| table.next_in_sequence(BlockNo(n), 3).map(|b| b.0);
        assert_eq!(ask(4), None);
        assert_eq!(ask(5), None);
        assert_eq!(ask(5), None);
        assert_eq!(ask(6), Some(7));
        assert_eq!(ask(6), None);
        assert_eq!(ask(8), None);
        assert_eq!(ask(7), Some(9));
        assert_eq!(ask(20), None);
        assert_eq!(ask(u32::MAX), None);
        assert_eq!(table.next_in_sequence(BlockNo(1), 0), None);
    }

    #[test]
    fn least_recently_used_is_first_in_order() {
        let account = Arc::default();
        let mut table = Table::default();
        for n in 0..3 {
            table.insert(BlockNo(n), Arc::new(Slot::new(BlockNo(n), &account)));
        }
        assert!(table.touch(BlockNo(0)).is_some());
        assert!(table.touch(BlockNo(7)).is_none());
        let order: Vec<u32> = table.order.values().map(|b| b.0).collect();
        assert_eq!(order, [1, 2, 0]);
        drop(table);
        assert_eq!(account.used(), 0);
    }
}
