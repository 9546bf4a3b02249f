//! Cutting contents into blocks, with references to data that is already there.
//!
//! A window is `W` consecutive bytes of a block. The segmenter indexes each window whose end is a multiple
//! of `step`. The key has 32 bits and is made from a rolling checksum. This checksum has two parts of 32
//! bits, like that of rsync: the running sum, and the sum of prefix sums. It also runs over the input,
//! byte by byte. If a position passes a small bit
//! filter ([`filter`]), the segmenter looks it up, compares the bytes and extends the match both ways.
//! So it finds every duplicate of at least `W + step` bytes within the block, with two exceptions: runs of
//! one value (see below), and very repetitive data, for which it stops comparing after a while ([`matches`]).
//!
//! The segmenter also searches the last finished blocks. [`SegmentOptions::lookback`] says how many. Of
//! these the index keeps fewer windows: those that end at multiples of `W / 2`, or of `step` if `step` is
//! larger. The segmenter uses a match in a finished block only if it has at least `2 W` bytes, because
//! each such match makes a content depend on one more block. If the current block has a match, too, the
//! segmenter takes this one, and searches again after its end. Blocks that are older than `lookback` are
//! searched by digests of pieces ([`distant`]).
//!
//! If steps and windows are long enough, a second filter ([`sieve`]) rules out eight positions at a time. The
//! first filter then tests only the remaining positions. It also tests positions near the next flush (the
//! step that moves bytes of the input into the block), because the place of a flush depends on its
//! results.
//!
//! Runs of one byte value are not in the index. Instead, the current block records its longest run of each
//! value, and a long run in the input becomes a few references to it. If the recorded run is short in
//! comparison, the segmenter first stores more of the input run. This keeps the number of references
//! small.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::contents::{Chunk, HOLE};
use crate::error::{Error, Result};
use crate::settings::SegmentOptions;

mod compare;
mod distant;
mod filter;
mod front;
mod index;
mod matches;
mod scan;
mod sieve;
pub(crate) mod together;

use compare::{EVEN, Evens};
use distant::Distant;
use filter::Filter;
pub(crate) use front::Front;
use index::{Sums, WindowIndex};
use matches::Patience;
use scan::Scan;
use sieve::{Prefixes, Sieve};

/// Bytes of an extent that are scanned at a time, if this is at least a window. The result does not
/// depend on where reads end.
const PORTION: usize = 256 << 10;

/// Takes finished blocks, numbered from 0 without gaps.
pub(crate) trait BlockSink {
    fn block(&mut self, number: u32, data: Arc<Vec<u8>>) -> Result<()>;

    /// An empty buffer for the next block, with the memory of an earlier block if one is free.
    fn buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }
}

/// Number of indexed windows for this many bytes of a block.
pub(crate) fn windows(options: &SegmentOptions, bytes: u64) -> u64 {
    let distance = (1u64 << options.window_bits.min(24)) >> options.window_step.min(24);
    if options.window_bits == 0 {
        return 0;
    }
    bytes / distance.max(1).saturating_mul(options.granularity as u64)
}

/// Largest memory of the search in older blocks for this many bytes of input.
pub(crate) fn remembered(options: &SegmentOptions, bytes: u64) -> u64 {
    if options.window_bits > 0 && options.lookback > 1 {
        distant::memory(bytes)
    } else {
        0
    }
}

/// Largest number of bytes of an extent that are in memory at a time.
pub(crate) fn buffered(options: &SegmentOptions) -> u64 {
    let window = (options.granularity as u64) << options.window_bits.min(24);
    // Bytes that are kept so that matches can grow backwards, bytes that are read ahead for long
    // matches, and the bytes of a read.
    window.saturating_mul(5).saturating_add(PORTION as u64)
}

/// Cuts a sequence of contents into blocks.
pub(crate) struct Segmenter<S> {
    sink: S,
    block_size: usize,
    granularity: usize,
    window: usize,
    step: usize,
    lookback: usize,
    /// Distance of the windows of finished blocks that are kept.
    far_step: usize,
    /// Smallest number of bytes of a match in a finished block.
    far_match: usize,
    /// Bytes before a position that stay in the buffer, so that matches can grow backwards.
    keep: usize,
    /// Positions that are scanned between two bookkeeping steps.
    stripe: usize,
    matching: bool,
    portion: usize,

    number: u32,
    current: Block,
    /// Finished blocks that are still searched, oldest first.
    recent: VecDeque<(u32, Finished)>,
    filter: Filter,
    /// Present if positions can be ruled out in groups.
    sieve: Option<Sieve>,
    /// The sums of the buffer, as far as they were needed.
    prefixes: Prefixes,
    /// The same.
    evens: Evens,
    /// A run in the buffer that is too short to be treated as a run: its start and end.
    short_run: Option<(usize, usize)>,
    patience: Patience,
    /// Bytes that have left the buffer.
    passed: u64,
    /// Bytes that were compared, summed again or moved, beyond one step of the checksum for each byte.
    /// This number must not depend on the window size.
    looked: u64,

    /// Blocks that are not searched any longer.
    distant: Option<Box<Distant>>,
    chunks: Vec<Chunk>,
    /// Bytes of the content that they represent.
    represented: u64,
    /// Whether the last chunk may be continued.
    open: bool,
    /// Bytes of the extent that are not represented by chunks yet, and the bytes that were read after
    /// them.
    buffer: Vec<u8>,
    /// Bytes at the end of the buffer that were not there in the last scan.
    fresh: usize,
    state: Scan,
    saved: u64,
    /// Bytes in finished blocks.
    finished: u64,
    /// Present if some contents are wanted in front in their blocks.
    front: Option<Front>,
}

/// The block that is filled.
struct Block {
    data: Arc<Vec<u8>>,
    index: WindowIndex,
    /// Windows that stay when the block is finished.
    far: Vec<FarWindow>,
}

/// A block that is searched for long matches.
struct Finished {
    data: Arc<Vec<u8>>,
    index: WindowIndex,
    windows: Vec<FarWindow>,
}

/// 16 bytes each.
struct FarWindow {
    tag: u32,
    /// In the block.
    end: u32,
    /// Sums of its second half, if that consists of whole pieces.
    half: Sums,
}

impl<S: BlockSink> Segmenter<S> {
    pub(crate) fn new(options: SegmentOptions, sink: S) -> Self {
        let granularity = options.granularity.max(1);
        let units = 1usize << options.window_bits;
        let window = units.saturating_mul(granularity);
        let step = (units >> options.window_step).max(1) * granularity;
        let matching =
            options.window_bits > 0 && options.lookback > 0 && window <= options.block_size;
        let far_step = step.max(window / 2);
        let far_windows =
            (options.block_size / far_step).saturating_mul(options.lookback.saturating_sub(1));
        let windows = (options.block_size / step).saturating_add(far_windows);
        let stripe = step.clamp(64, 256).min((window / 2).max(1));
        let sieved = matching
            && granularity == 1
            // With shorter steps most positions decide when data leaves the buffer.
            && stripe >= 4 * EVEN
            && step <= window / 2;
        Self {
            sink,
            block_size: options.block_size,
            granularity,
            window,
            step,
            lookback: options.lookback,
            far_step,
            far_match: window.saturating_mul(2),
            keep: window + if options.lookback > 1 { far_step } else { step },
            stripe,
            matching,
            portion: PORTION.max(window),
            number: 0,
            current: Block {
                data: Arc::new(Vec::new()),
                index: WindowIndex::new(window, step),
                far: Vec::new(),
            },
            recent: VecDeque::new(),
            filter: Filter::new(if matching { windows } else { 0 }, options.filter_bits),
            sieve: sieved.then(|| Sieve::new(window, windows)),
            prefixes: Prefixes::default(),
            evens: Evens::default(),
            short_run: None,
            patience: Patience::new(window),
            passed: 0,
            looked: 0,
            distant: (matching && options.lookback > 1)
                .then(|| Box::new(Distant::new(granularity))),
            chunks: Vec::new(),
            represented: 0,
            open: false,
            buffer: Vec::new(),
            fresh: 0,
            state: Scan::default(),
            saved: 0,
            finished: 0,
            front: options.rearranged.then(Front::default),
        }
    }

    /// Says whether the contents that follow are wanted in front.
    pub(crate) fn choose(&mut self, chosen: bool) {
        if let Some(front) = &mut self.front {
            front.choose(chosen);
        }
    }

    /// Where bytes have moved to; call it behind [`finish`](Self::finish).
    pub(crate) fn take_front(&mut self) -> Option<Front> {
        self.front.take().filter(|front| !front.is_empty())
    }

    /// The part of `size` that consists of whole units.
    fn whole(&self, size: usize) -> usize {
        if self.granularity == 1 {
            size
        } else {
            size - size % self.granularity
        }
    }

    /// Bytes replaced by references so far.
    pub(crate) fn saved(&self) -> u64 {
        self.saved
    }

    /// Appends a hole to the content. Call only between extents.
    pub(crate) fn hole(&mut self, size: u64) {
        if size > 0 {
            self.chunks.push(Chunk::hole(size));
            self.represented += size;
            self.open = false;
            if let Some(far) = &mut self.distant {
                far.hole(size);
            }
        }
    }

    /// Appends data of the image that the build continues. Call only between extents.
    pub(crate) fn base(&mut self, block: u32, offset: u32, size: u32) {
        self.chunks.push(Chunk::base(block, offset, size));
        self.represented += u64::from(size);
        self.open = false;
        if let Some(far) = &mut self.distant {
            far.hole(u64::from(size));
        }
    }

    /// Appends the next bytes of the current data extent.
    pub(crate) fn data(&mut self, data: &[u8]) -> Result<()> {
        let Some(mut far) = self.distant.take() else {
            return self.feed(data);
        };
        let result = self.look_far(&mut far, data, false);
        self.distant = Some(far);
        result
    }

    /// The next bytes of the extent that are to be searched for.
    fn feed(&mut self, mut data: &[u8]) -> Result<()> {
        if !self.matching {
            return self.append(data);
        }
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(self.portion - self.fresh));
            self.buffer.extend_from_slice(now);
            self.fresh += now.len();
            if self.fresh == self.portion {
                self.scan(false)?;
            }
            data = later;
        }
        Ok(())
    }

    /// Ends the current data extent.
    pub(crate) fn end_extent(&mut self) -> Result<()> {
        let mut far = self.distant.take();
        if let Some(far) = &mut far {
            self.look_far(far, &[], true)?;
        }
        self.end_scan()?;
        self.open = false;
        if let Some(far) = &mut far {
            self.remember(far);
            far.end_extent();
        }
        self.distant = far;
        Ok(())
    }

    /// Call it before the first content of `size` bytes that belong together. The share of them that
    /// will be found in blocks is estimated by the share so far.
    pub(crate) fn keep_together(&mut self, size: u32) -> Result<()> {
        let filled = self.current.data.len();
        let stored = self.finished.saturating_add(filled as u64);
        let all = stored.saturating_add(self.saved).max(1);
        // Not more than `size`.
        let size = (u128::from(size) * u128::from(stored) / u128::from(all)) as u32;
        if filled > 0 && together::ends_before(size, self.block_size - filled, self.block_size) {
            self.rotate()?;
        }
        Ok(())
    }

    /// Ends the content and moves its chunks to `out`.
    pub(crate) fn take_chunks(&mut self, out: &mut Vec<Chunk>) {
        self.open = false;
        self.represented = 0;
        if let Some(far) = &mut self.distant {
            far.end_content();
        }
        out.append(&mut self.chunks);
    }

    /// Drops the chunks of the current content. Data in blocks stays there.
    pub(crate) fn discard(&mut self) -> Result<()> {
        self.passed += self.buffer.len() as u64;
        self.buffer.clear();
        self.fresh = 0;
        self.state = Scan::default();
        let unfinished = self.current.data.len() % self.granularity;
        if unfinished > 0 {
            self.append(&vec![0; self.granularity - unfinished])?;
        }
        self.chunks.clear();
        self.represented = 0;
        if let Some(far) = &mut self.distant {
            far.end_content();
        }
        self.open = false;
        Ok(())
    }

    /// Hands over the last block; returns the number of blocks.
    pub(crate) fn finish(&mut self) -> Result<u32> {
        if !self.current.data.is_empty() {
            self.rotate()?;
        }
        Ok(self.number)
    }

    /// The receiver of the blocks.
    pub(crate) fn into_sink(self) -> S {
        self.sink
    }

    /// Emits a chunk that refers to data which is in a block already.
    fn reference(&mut self, number: u32, offset: usize, size: usize) {
        self.saved += size as u64;
        self.emit(number, offset, size);
    }

    fn emit(&mut self, block: u32, offset: usize, size: usize) {
        if size == 0 {
            return;
        }
        self.represented += size as u64;
        if let Some(front) = self.front.as_mut().filter(|_| block == self.number) {
            front.add(offset, size);
        }
        let (offset, size) = (offset as u32, size as u32);
        if self.open
            && let Some(previous) = self.chunks.last_mut()
            && previous.block == block
            && previous.offset + previous.size == offset
        {
            previous.size += size;
            return;
        }
        self.chunks.push(Chunk {
            block,
            offset,
            size,
        });
        self.open = true;
    }

    /// Puts bytes into the current block, starting new ones as they fill up.
    fn append(&mut self, mut data: &[u8]) -> Result<()> {
        while !data.is_empty() {
            let offset = self.current.data.len();
            let (now, later) = data.split_at(data.len().min(self.block_size - offset));
            // The only other owner appears when the block is finished.
            Arc::make_mut(&mut self.current.data).extend_from_slice(now);
            self.emit(self.number, offset, now.len());
            if self.matching {
                let filter = &mut self.filter;
                let mut sieve = self.sieve.as_mut();
                let data = self.current.data.as_slice();
                let mut far = (self.lookback > 1).then_some(&mut self.current.far);
                let far_step = self.far_step;
                self.current.index.update(data, |tag, end, half| {
                    filter.add(tag);
                    if let Some(far) = &mut far
                        && end % far_step == 0
                    {
                        let end = end as u32;
                        far.push(FarWindow { tag, end, half });
                    }
                    if let Some(sieve) = &mut sieve {
                        sieve.add(data, end, half);
                    }
                });
            }
            if self.current.data.len() == self.block_size {
                self.rotate()?;
            }
            data = later;
        }
        Ok(())
    }

    /// Adds a finished block to the searched blocks, in place of the oldest one.
    fn keep_searching(&mut self, number: u32, data: Arc<Vec<u8>>, windows: Vec<FarWindow>) {
        let mut index = WindowIndex::new(self.window, self.step);
        for window in &windows {
            index.insert(window.tag, window.end);
        }
        while self.recent.len() + 1 >= self.lookback {
            self.recent.pop_front();
        }
        let block = Finished {
            data,
            index,
            windows,
        };
        self.recent.push_back((number, block));
    }

    /// Hands over the current block and starts a new one.
    fn rotate(&mut self) -> Result<()> {
        let fresh = Block {
            data: Arc::new(self.sink.buffer()),
            index: WindowIndex::new(self.window, self.step),
            far: Vec::new(),
        };
        let done = std::mem::replace(&mut self.current, fresh);
        let number = self.number;
        let front = self.front.as_mut();
        let data = match front.and_then(|front| front.end_block(number, &done.data)) {
            Some(moved) => Arc::new(moved),
            None => Arc::clone(&done.data),
        };
        self.finished = self.finished.saturating_add(data.len() as u64);
        if self.matching {
            self.current.index.recycle(done.index);
            if self.lookback > 1 {
                self.keep_searching(number, done.data, done.far);
            }
            self.filter.clear();
            if let Some(sieve) = &mut self.sieve {
                sieve.clear();
            }
            for (_, block) in &self.recent {
                for window in &block.windows {
                    self.filter.add(window.tag);
                    if let Some(sieve) = &mut self.sieve {
                        sieve.add(&block.data, window.end as usize, window.half);
                    }
                }
            }
        }
        self.number = number
            .checked_add(1)
            .filter(|&n| n != HOLE)
            .ok_or_else(Error::too_many_blocks)?;
        self.sink.block(number, data)
    }
}

#[cfg(test)]
mod tests;
