//! Cutting contents into blocks, with references to data that is already there.
//!
//! Every window of `W` bytes of a block that ends at a multiple of `step` is indexed by a
//! rolling checksum (running sum and sum of prefix sums, like rsync's, but 32 bits each). While
//! a content is read the same checksum runs over it byte by byte; a position whose checksum
//! passes a small bit filter is looked up, compared byte for byte and extended both ways. So
//! every duplicate of at least `W + step` bytes within the block is found.
//!
//! Of finished blocks within the lookback only the windows that end at multiples of `W / 2`, or of
//! the step if that is more, are kept, and only matches of at least `2 W` bytes are taken, all of which are found: whoever
//! reads the content needs one more block for each of them. Where there is a match in the block
//! it is taken, and one far away goes on behind it.
//!
//! Whether a position passes that filter need not be known everywhere. Where windows are long
//! enough a second filter rules out eight positions at a time ([`sieve`]); the first one is asked
//! only about positions that are left, and about those that decide when data leaves the buffer.
//!
//! Runs of one byte value are kept out of the index. The longest run of each value in a block
//! is recorded instead, and a long run in the input becomes a few references to it; if the
//! recorded run is short in comparison, more of the input run is stored first, so that the
//! number of references stays small.

use std::collections::VecDeque;
use std::sync::Arc;

use crate::error::{Error, Result};
use crate::together;

mod filter;
mod index;
mod sieve;

use filter::Filter;
use index::{Sums, WindowIndex, tag};
use sieve::{GROUP, Prefixes, Sieve};

/// Bytes of an extent that are scanned at a time, if that is at least a window. Where reads end
/// does not matter.
const PORTION: usize = 256 << 10;

/// Bytes of one value at such a multiple may belong to a run. At most half the stripes of a
/// search by groups, so that a run has some in every stripe.
const EVEN: usize = 64;

/// Block number of hole chunks until the real one is known.
pub(crate) const HOLE: u32 = u32::MAX;

/// A piece of a content: `size` bytes at `offset` of `block`. With `block` = [`HOLE`] it is a
/// hole whose length has its low half in `offset` and its high half in `size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) block: u32,
    pub(crate) offset: u32,
    pub(crate) size: u32,
}

impl Chunk {
    fn hole(size: u64) -> Self {
        Self {
            block: HOLE,
            offset: size as u32,
            size: (size >> 32) as u32,
        }
    }

    /// Length of a hole.
    pub(crate) fn hole_size(&self) -> Option<u64> {
        (self.block == HOLE).then(|| u64::from(self.offset) | (u64::from(self.size) << 32))
    }

    /// Bytes that the chunk stands for.
    pub(crate) fn len(&self) -> u64 {
        self.hole_size().unwrap_or(u64::from(self.size))
    }
}

/// Takes finished blocks, numbered from 0 without gaps.
pub(crate) trait BlockSink {
    fn block(&mut self, number: u32, data: Arc<Vec<u8>>) -> Result<()>;

    /// An empty buffer for the next block: memory of an earlier one, if there is any to spare.
    fn buffer(&mut self) -> Vec<u8> {
        Vec::new()
    }
}

/// Parameters of a segmenter.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SegmentOptions {
    /// A multiple of the granularity.
    pub(crate) block_size: usize,
    /// Bytes that belong together, at least 1: every extent consists of whole units, no chunk
    /// and no block ends within one, and windows are counted in them.
    pub(crate) granularity: usize,
    /// Log2 of the window, 0: no matching.
    pub(crate) window_bits: u32,
    pub(crate) window_step: u32,
    /// Blocks searched, the one that is filled included, 0: no matching.
    pub(crate) lookback: usize,
    /// Log2 of the bits that the filter spends on a window.
    pub(crate) filter_bits: u32,
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
    /// Bytes of a match in a finished block, at least.
    far_match: usize,
    /// Bytes in front of a position that stay in the buffer, for matches to grow backwards.
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
    /// Where positions can be ruled out in groups.
    sieve: Option<Sieve>,
    /// Those of the buffer, as far as they were needed.
    prefixes: Prefixes,

    chunks: Vec<Chunk>,
    /// Whether the last chunk may be continued.
    open: bool,
    /// Bytes of the extent that are not represented by chunks yet, and what was read beyond.
    buffer: Vec<u8>,
    /// Bytes at the end of the buffer that were not there in the last scan.
    fresh: usize,
    state: Scan,
    saved: u64,
    /// Bytes in finished blocks.
    finished: u64,
}

/// The block that is filled.
struct Block {
    data: Arc<Vec<u8>>,
    index: WindowIndex,
    /// Windows that stay when it is finished.
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

/// Where the scan of an extent stands; positions are indices into the buffer.
#[derive(Debug, Default, Clone, Copy)]
struct Scan {
    written: usize,
    /// End of the window whose sums are valid, if any.
    position: Option<usize>,
    sums: Sums,
    /// The last match ended with the buffer: it may go on at this place.
    resume: Option<(u32, usize)>,
    /// A run that ended with the buffer: its value and length so far.
    run: Option<(u8, usize)>,
}

struct Match {
    number: u32,
    /// Start in the block.
    offset: usize,
    /// Start in the buffer.
    start: usize,
    size: usize,
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
            chunks: Vec::new(),
            open: false,
            buffer: Vec::new(),
            fresh: 0,
            state: Scan::default(),
            saved: 0,
            finished: 0,
        }
    }

    /// As much of `size` as consists of whole units.
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
            self.open = false;
        }
    }

    /// Appends the next bytes of the current data extent.
    pub(crate) fn data(&mut self, mut data: &[u8]) -> Result<()> {
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
        if self.matching {
            self.scan(true)?;
            self.buffer.clear();
            self.state = Scan::default();
        }
        self.open = false;
        Ok(())
    }

    /// To be called before a content with which `size` bytes begin that belong together. As much of them
    /// is expected to be found in blocks as was found so far.
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
        out.append(&mut self.chunks);
    }

    /// Forgets the chunks of the current content; data that is in blocks already stays there.
    pub(crate) fn discard(&mut self) -> Result<()> {
        self.buffer.clear();
        self.fresh = 0;
        self.state = Scan::default();
        let unfinished = self.current.data.len() % self.granularity;
        if unfinished > 0 {
            self.append(&vec![0; self.granularity - unfinished])?;
        }
        self.chunks.clear();
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

    /// What the blocks went to.
    pub(crate) fn into_sink(self) -> S {
        self.sink
    }

    fn scan(&mut self, last: bool) -> Result<()> {
        self.fresh = 0;
        let buffer = std::mem::take(&mut self.buffer);
        let mut state = self.state;
        let result = self.scan_buffer(&buffer, &mut state, last);
        self.buffer = buffer;
        // Drop what is represented; the window stays because it lies behind `written`.
        if !last && state.written > 0 {
            let done = state.written;
            self.buffer.drain(..done);
            state.written = 0;
            state.position = state.position.map(|p| p - done);
        }
        self.state = state;
        result
    }

    fn scan_buffer(&mut self, buffer: &[u8], state: &mut Scan, last: bool) -> Result<()> {
        let window = self.window;
        // So far that how long a match far away is can be seen.
        let limit = match self.lookback {
            2.. if !last => buffer.len().saturating_sub(self.far_match - window),
            _ => buffer.len(),
        };
        self.prefixes.clear();
        if let Some((number, offset)) = state.resume.take() {
            self.resume(buffer, state, number, offset, last);
        }
        loop {
            let position = match state.position {
                Some(position) => position,
                None => {
                    if limit.saturating_sub(state.written) < window {
                        break;
                    }
                    let position = state.written + window;
                    state.sums = Sums::of(&buffer[state.written..position]);
                    state.position = Some(position);
                    if self.filter.has(tag(state.sums))
                        && self.try_match(buffer, state, position, last)?
                    {
                        continue;
                    }
                    position
                }
            };
            if position >= limit {
                break;
            }
            if self.sieve.is_some() && self.leap(buffer, state, position, limit, last)? {
                continue;
            }
            let end = (position + self.stripe).min(limit);
            if let Some(value) = uniform(&buffer[position..end])
                && (end - position == self.stripe || last)
                && self.run(buffer, state, position, end, value)?
            {
                continue;
            }
            let (at, hit) = self.filter.slide(
                &mut state.sums,
                window as u32,
                &buffer[position..end],
                &buffer[position - window..end - window],
            );
            let at = position + at;
            state.position = Some(at);
            if hit && self.try_match(buffer, state, at, last)? {
                continue;
            }
            self.flush(buffer, state, at)?;
        }
        if last {
            let rest = &buffer[state.written..];
            self.append(rest)?;
            state.written = buffer.len();
        }
        Ok(())
    }

    /// Goes on from `position` to where the plain scan would flush next, to a match, or to where
    /// `limit` is near, with the same outcome. Returns whether that could be done: not if
    /// there may be a run, or at the limit.
    ///
    /// The plain scan stops at each position that passes the filter, and a stripe after it stopped
    /// last; at the first stop from `due` on it flushes. So what passes has to be known around
    /// `due` only, apart from windows that are in the index.
    fn leap(
        &mut self,
        buffer: &[u8],
        state: &mut Scan,
        position: usize,
        limit: usize,
        last: bool,
    ) -> Result<bool> {
        let due = state.written + self.keep + self.step.min(4096);
        // No stop up to the flush has a stripe that ends behind this.
        let horizon = due + 2 * self.stripe;
        let tail = last && limit < due;
        if position >= due || (limit < due && !tail) || even(buffer, position, horizon.min(limit)) {
            return Ok(false);
        }
        let end = if tail { limit + 1 } else { due };
        self.prefixes
            .reach(buffer, state.written, horizon.min(limit));
        let mut group = group_of(position + 1);
        while let Some(found) = self
            .sieve
            .as_ref()
            .and_then(|sieve| sieve.next(&self.prefixes, group, end))
        {
            let mut passing = self.passing(buffer, found, position + 1, end);
            while passing != 0 {
                let at = found + passing.trailing_zeros() as usize;
                passing &= passing - 1;
                state.sums = self.sums_at(buffer, at);
                if self.try_match(buffer, state, at, last)? {
                    return Ok(true);
                }
            }
            group = found + GROUP;
        }
        if tail {
            state.position = Some(limit);
            return Ok(true);
        }
        let stop = self.last_passing(buffer, position, due);
        let latest = stop + (due - stop).next_multiple_of(self.stripe);
        if horizon > limit {
            let before = latest - self.stripe;
            state.sums = self.sums_at(buffer, before);
            state.position = Some(before);
            return Ok(before > position);
        }
        let hit = self.first_passing(buffer, due, latest + 1);
        let at = hit.unwrap_or(latest);
        state.sums = self.sums_at(buffer, at);
        state.position = Some(at);
        let group = group_of(at);
        let matched = hit.is_some()
            && self
                .sieve
                .as_ref()
                .is_some_and(|sieve| sieve.next(&self.prefixes, group, at + 1).is_some())
            && self.try_match(buffer, state, at, last)?;
        if !matched {
            self.flush(buffer, state, at)?;
        }
        Ok(true)
    }

    /// Which positions of a group, if they are in `from..to`, pass the filter.
    fn passing(&self, buffer: &[u8], group: usize, from: usize, to: usize) -> u32 {
        let outgoing = group - self.window;
        let bits = self.filter.passing(
            self.prefixes.window(self.window, group),
            self.window as u32,
            &buffer[group..buffer.len().min(group + GROUP - 1)],
            &buffer[outgoing..outgoing + GROUP - 1],
        );
        let above = u32::MAX << from.saturating_sub(group).min(GROUP);
        let below = (1u32 << to.saturating_sub(group).min(GROUP)) - 1;
        bits & above & below
    }

    /// The last position behind `start` and in front of `end` that passes the filter, or `start`.
    fn last_passing(&self, buffer: &[u8], start: usize, end: usize) -> usize {
        let mut group = group_of(end - 1);
        loop {
            let passing = self.passing(buffer, group, start + 1, end);
            if passing != 0 {
                return group + passing.ilog2() as usize;
            }
            if group <= start + 1 {
                return start;
            }
            group -= GROUP;
        }
    }

    /// The first position of `start..end` that passes the filter.
    fn first_passing(&self, buffer: &[u8], start: usize, end: usize) -> Option<usize> {
        (group_of(start)..end).step_by(GROUP).find_map(|group| {
            let passing = self.passing(buffer, group, start, end);
            (passing != 0).then(|| group + passing.trailing_zeros() as usize)
        })
    }

    /// Sums of the window that ends at `position`.
    fn sums_at(&self, buffer: &[u8], position: usize) -> Sums {
        let group = group_of(position);
        let mut sums = self.prefixes.window(self.window, group);
        let outgoing = &buffer[group - self.window..];
        for (&new, &old) in buffer[group..position].iter().zip(outgoing) {
            sums.slide(old, new, self.window as u32);
        }
        sums
    }

    /// Appends what no match ending after `position` can reach backwards to.
    fn flush(&mut self, buffer: &[u8], state: &mut Scan, position: usize) -> Result<()> {
        let Some(limit) = position.checked_sub(self.keep) else {
            return Ok(());
        };
        // Portions of at least a step keep the cost per byte low.
        if limit < state.written + self.step.min(4096) {
            return Ok(());
        }
        // The buffer begins with a whole unit.
        let limit = self.whole(limit);
        if limit <= state.written {
            return Ok(());
        }
        self.append(&buffer[state.written..limit])?;
        state.written = limit;
        Ok(())
    }

    /// What is in a block that is searched.
    fn block(&self, number: u32) -> Option<&[u8]> {
        if number == self.number {
            return Some(&self.current.data);
        }
        let mut recent = self.recent.iter().rev();
        let found = recent.find(|(n, _)| *n == number);
        found.map(|(_, block)| block.data.as_slice())
    }

    /// Looks for the longest match of the window that ends at `position` and represents it.
    fn try_match(
        &mut self,
        buffer: &[u8],
        state: &mut Scan,
        position: usize,
        last: bool,
    ) -> Result<bool> {
        let start = position - self.window;
        if self.whole(start) != start {
            return Ok(false);
        }
        let near = (self.number, self.current.data.as_slice());
        let mut best = self.longest(buffer, state, position, near, &self.current.index);
        if best.is_none() {
            // Newest first: of equal matches that one stays.
            for (number, block) in self.recent.iter().rev() {
                let far = (*number, block.data.as_slice());
                let found = self.longest(buffer, state, position, far, &block.index);
                let enough = best.as_ref().map_or(self.far_match, |best| best.size + 1);
                best = found.filter(|found| found.size >= enough).or(best);
            }
        }
        let Some(mut found) = best else {
            return Ok(false);
        };
        self.append(&buffer[state.written..found.start])?;
        // What was appended just now may continue the match.
        if let Some(block) = self.block(found.number) {
            found.size += self.whole(common_prefix(
                block.get(found.offset + found.size..).unwrap_or_default(),
                &buffer[found.start + found.size..],
            ));
        }
        self.reference(found.number, found.offset, found.size);
        state.written = found.start + found.size;
        state.position = None;
        if !last && buffer.len() - state.written < self.granularity {
            state.resume = Some((found.number, found.offset + found.size));
        }
        Ok(true)
    }

    /// The longest match in a block of the window that ends at `position`; of equal ones the
    /// last.
    fn longest(
        &self,
        buffer: &[u8],
        state: &Scan,
        position: usize,
        (number, data): (u32, &[u8]),
        index: &WindowIndex,
    ) -> Option<Match> {
        let start = position - self.window;
        let needle = &buffer[start..position];
        let mut best: Option<Match> = None;
        for end in index.candidates(tag(state.sums)) {
            let end = end as usize;
            let Some(offset) = end.checked_sub(self.window) else {
                continue;
            };
            if data.get(offset..end) != Some(needle) {
                continue;
            }
            let back = self.whole(common_suffix(
                &data[..offset],
                &buffer[state.written..start],
            ));
            let ahead = self.whole(common_prefix(&data[end..], &buffer[position..]));
            let found = Match {
                number,
                offset: offset - back,
                start: start - back,
                size: back + self.window + ahead,
            };
            let better = best
                .as_ref()
                .is_none_or(|b| (found.size, found.offset) > (b.size, b.offset));
            if better {
                best = Some(found);
            }
        }
        best
    }

    /// Continues a match that ended only because the buffer did.
    fn resume(&mut self, buffer: &[u8], state: &mut Scan, number: u32, offset: usize, last: bool) {
        let Some(block) = self.block(number) else {
            return;
        };
        let size = self.whole(common_prefix(
            block.get(offset..).unwrap_or_default(),
            &buffer[state.written..],
        ));
        if size == 0 {
            return;
        }
        self.reference(number, offset, size);
        state.written += size;
        if !last && buffer.len() - state.written < self.granularity {
            state.resume = Some((number, offset + size));
        }
    }

    /// Represents a run of `value` that covers `from..to` and perhaps more. Returns whether it
    /// was long enough to be treated as one.
    fn run(
        &mut self,
        buffer: &[u8],
        state: &mut Scan,
        from: usize,
        to: usize,
        value: u8,
    ) -> Result<bool> {
        let start = state.written + trailing(&buffer[state.written..from], value);
        let end = self.whole(to + leading(&buffer[to..], value));
        let start = end.min(self.whole(start + self.granularity - 1));
        // Too short, or perhaps only because the rest has not been read yet: then the plain
        // scan goes on and looks again at the next stripe.
        if end - start < self.window + self.step {
            return Ok(false);
        }
        self.append(&buffer[state.written..start])?;
        state.written = start;
        state.position = None;
        let before = match state.run.take() {
            Some((of, size)) if of == value && start == 0 => size,
            _ => 0,
        };
        let cap = (1usize << 20)
            .min(self.block_size / 4)
            .max(self.window + self.step);
        while state.written < end {
            let rest = end - state.written;
            // A short rest is left to whatever follows.
            if rest < self.window / 4 {
                break;
            }
            let target = ((before + rest) / 8).max(self.window + self.step).min(cap);
            let target = self.whole(target + self.granularity - 1);
            // What is recorded of a stored run can be up to a step shorter than the run.
            // Runs of other blocks are not worth a look: what is stored of this one takes nothing
            // when it is compressed.
            let known = self.current.index.run(value);
            if let Some((offset, size)) = known.filter(|(_, size)| size + self.step >= target) {
                let size = size.min(rest);
                self.reference(self.number, offset, size);
                state.written += size;
            } else {
                if rest < self.window + self.step {
                    break;
                }
                let literal = target.min(rest);
                self.append(&buffer[state.written..state.written + literal])?;
                state.written += literal;
            }
        }
        if buffer.len() - end < self.granularity {
            state.run = Some((value, before + (end - start)));
        }
        Ok(true)
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

    /// Adds a finished block to those that are searched, in place of the oldest one.
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
        let data = Arc::clone(&done.data);
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

/// The multiple of [`GROUP`] at or in front of a position.
fn group_of(position: usize) -> usize {
    position - position % GROUP
}

/// Whether bytes at a multiple of [`EVEN`] have one value, if some of them may belong to the same
/// run as a byte of `from..to`.
fn even(buffer: &[u8], from: usize, to: usize) -> bool {
    let first = from.saturating_sub(EVEN) / EVEN * EVEN;
    let groups = buffer.get(first..to).unwrap_or_default();
    groups.as_chunks::<EVEN>().0.iter().any(|group| {
        let start = u64::from_le_bytes(*group.first_chunk().unwrap_or(&[0; 8]));
        start == start.rotate_left(8) && uniform(group).is_some()
    })
}

/// The value of a slice of one repeated byte.
fn uniform(data: &[u8]) -> Option<u8> {
    let (&first, rest) = data.split_first()?;
    // Nearly all data fails at the first or the last byte.
    if rest.last().is_some_and(|&l| l != first) || rest.first().is_some_and(|&b| b != first) {
        return None;
    }
    rest.iter().all(|&b| b == first).then_some(first)
}

/// Index at which the final run of `value` begins.
fn trailing(data: &[u8], value: u8) -> usize {
    data.iter().rposition(|&b| b != value).map_or(0, |i| i + 1)
}

fn leading(data: &[u8], value: u8) -> usize {
    data.iter().position(|&b| b != value).unwrap_or(data.len())
}

fn common_prefix(a: &[u8], b: &[u8]) -> usize {
    const STEP: usize = 256;
    let size = a.len().min(b.len());
    let (a, b) = (&a[..size], &b[..size]);
    let mut done = 0;
    for (x, y) in a.chunks_exact(STEP).zip(b.chunks_exact(STEP)) {
        if x != y {
            break;
        }
        done += STEP;
    }
    let (words, rest) = a[done..].as_chunks();
    let (others, other_rest) = b[done..].as_chunks();
    for (&x, &y) in words.iter().zip(others) {
        let differing = u64::from_le_bytes(x) ^ u64::from_le_bytes(y);
        if differing != 0 {
            return done + differing.trailing_zeros() as usize / 8;
        }
        done += size_of::<u64>();
    }
    let rest = rest.iter().zip(other_rest);
    done + rest.take_while(|(x, y)| x == y).count()
}

fn common_suffix(a: &[u8], b: &[u8]) -> usize {
    let size = a.len().min(b.len());
    let (rest, words) = a[a.len() - size..].as_rchunks();
    let (other_rest, others) = b[b.len() - size..].as_rchunks();
    let mut done = 0;
    for (&x, &y) in words.iter().zip(others).rev() {
        let differing = u64::from_le_bytes(x) ^ u64::from_le_bytes(y);
        if differing != 0 {
            return done + differing.leading_zeros() as usize / 8;
        }
        done += size_of::<u64>();
    }
    let rest = rest.iter().zip(other_rest).rev();
    done + rest.take_while(|(x, y)| x == y).count()
}

#[cfg(test)]
mod tests;
