//! Matches and runs: comparing candidates, and turning matches into references.

use super::compare::{common_prefix, common_suffix, leading, trailing};
use super::index::{WindowIndex, tag};
use super::scan::Scan;
use super::{BlockSink, Segmenter};
use crate::error::Result;

struct Match {
    number: u32,
    /// Start in the block.
    offset: usize,
    /// Start in the buffer.
    start: usize,
    size: usize,
}

/// The budget for comparisons without a result: an amount for each byte of input, and a largest amount.
///
/// Repetitive data may have an equal window at every position, but only matches that are too short.
/// Each of them takes a comparison of a whole window.
#[derive(Debug)]
pub(super) struct Patience {
    /// Negative if the last comparison exceeded the budget.
    left: i64,
    most: i64,
    /// The input position of the last call.
    position: u64,
}

impl Patience {
    const PER_BYTE: u64 = 16;
    /// Much more than ordinary data needs.
    const WINDOWS: u64 = 64;
    const AT_ONCE: u64 = 16 << 20;

    pub(super) fn new(window: usize) -> Self {
        let most = (window as u64).saturating_mul(Self::WINDOWS);
        let most = signed(most.max(Self::AT_ONCE));
        Self {
            left: most,
            most,
            position: 0,
        }
    }

    /// Whether data may be compared at this position, which must be after all positions of earlier
    /// calls.
    pub(super) fn has_any(&mut self, position: u64) -> bool {
        let gained = position.saturating_sub(self.position);
        self.position = position;
        let gained = signed(gained.saturating_mul(Self::PER_BYTE));
        self.left = self.left.saturating_add(gained).min(self.most);
        self.left > 0
    }

    pub(super) fn spend(&mut self, bytes: u64) {
        self.left = self.left.saturating_sub(signed(bytes));
    }
}

fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

impl<S: BlockSink> Segmenter<S> {
    /// The contents of a block that is searched.
    pub(super) fn block(&self, number: u32) -> Option<&[u8]> {
        if number == self.number {
            return Some(&self.current.data);
        }
        let mut recent = self.recent.iter().rev();
        let found = recent.find(|(n, _)| *n == number);
        found.map(|(_, block)| block.data.as_slice())
    }

    /// Whether the present content had better store bytes again than refer to them in a block; then they are counted.
    fn stores_again(&mut self, number: u32, offset: usize, size: usize) -> bool {
        let front = self.front.as_mut().filter(|_| number != self.number);
        front.is_some_and(|front| front.stores_again(number, offset, size))
    }

    /// How many bytes at an offset of a block the present content may refer to.
    fn referable(&self, number: u32, offset: usize, size: usize) -> usize {
        match &self.front {
            Some(front) if number != self.number => front.referable(number, offset, size),
            _ => size,
        }
    }

    /// Finds the longest match of the window that ends at `position`, and represents it.
    pub(super) fn try_match(
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
        if !self.patience.has_any(self.passed + position as u64) {
            return Ok(false);
        }
        let mut compared = 0;
        let near = (self.number, self.current.data.as_slice());
        let near_index = &self.current.index;
        let mut best = self.longest(buffer, state, position, near, near_index, &mut compared);
        if best.is_none() {
            let mut again: Option<Match> = None;
            // Newest block first: it wins among equal matches.
            for (number, block) in self.recent.iter().rev() {
                let far = (*number, block.data.as_slice());
                let index = &block.index;
                let found = self.longest(buffer, state, position, far, index, &mut compared);
                let Some(found) = found else { continue };
                let all = self.referable(*number, found.offset, found.size) == found.size;
                let best = if all { &mut best } else { &mut again };
                let enough = best.as_ref().map_or(self.far_match, |best| best.size + 1);
                if found.size >= enough {
                    *best = Some(found);
                }
            }
            best = best.or(again);
        }
        self.looked += compared;
        let Some(mut found) = best else {
            self.patience.spend(compared);
            return Ok(false);
        };
        self.append(&buffer[state.written..found.start])?;
        state.position = None;
        // Asked now: the present block may just have been finished.
        if self.stores_again(found.number, found.offset, found.size) {
            state.written = found.start + found.size;
            self.append(&buffer[found.start..state.written])?;
            return Ok(true);
        }
        // The bytes that were just appended may continue the match.
        if let Some(block) = self.block(found.number) {
            found.size += self.whole(common_prefix(
                block.get(found.offset + found.size..).unwrap_or_default(),
                &buffer[found.start + found.size..],
            ));
            found.size = self.referable(found.number, found.offset, found.size);
        }
        self.reference(found.number, found.offset, found.size);
        state.written = found.start + found.size;
        if !last && buffer.len() - state.written < self.granularity {
            state.resume = Some((found.number, found.offset + found.size));
        }
        Ok(true)
    }

    /// The longest match in a block of the window that ends at `position`, and the last one among equal
    /// matches. Adds the number of equal bytes to `compared`.
    fn longest(
        &self,
        buffer: &[u8],
        state: &Scan,
        position: usize,
        (number, data): (u32, &[u8]),
        index: &WindowIndex,
        compared: &mut u64,
    ) -> Option<Match> {
        let start = position - self.window;
        let needle = &buffer[start..position];
        let mut best: Option<Match> = None;
        for end in index.candidates(tag(state.sums)) {
            let end = end as usize;
            let Some(offset) = end.checked_sub(self.window) else {
                continue;
            };
            let equal = common_prefix(data.get(offset..end).unwrap_or_default(), needle);
            *compared += equal as u64;
            if equal < self.window {
                continue;
            }
            let back = self.whole(common_suffix(
                &data[..offset],
                &buffer[state.written..start],
            ));
            let ahead = self.whole(common_prefix(&data[end..], &buffer[position..]));
            *compared += (back + ahead) as u64;
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
    pub(super) fn resume(
        &mut self,
        buffer: &[u8],
        state: &mut Scan,
        number: u32,
        offset: usize,
        last: bool,
    ) {
        let Some(block) = self.block(number) else {
            return;
        };
        let size = self.whole(common_prefix(
            block.get(offset..).unwrap_or_default(),
            &buffer[state.written..],
        ));
        let size = self.referable(number, offset, size);
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
    pub(super) fn run(
        &mut self,
        buffer: &[u8],
        state: &mut Scan,
        from: usize,
        to: usize,
        value: u8,
    ) -> Result<bool> {
        let (start, raw_end) = match self.short_run {
            Some((start, end)) if start <= from && to <= end => (start.max(state.written), end),
            _ => {
                let start = state.written + trailing(&buffer[state.written..from], value);
                let end = to + leading(&buffer[to..], value);
                self.looked += (end - start) as u64;
                (start, end)
            }
        };
        let found = (start, raw_end);
        let end = self.whole(raw_end);
        let start = end.min(self.whole(start + self.granularity - 1));
        // Too short, perhaps only because the rest was not read yet. Then the plain scan continues, and
        // tries again at the next stripe.
        if end - start < self.window + self.step {
            self.short_run = Some(found);
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
            // The record of a stored run can be up to a step shorter than the run. Runs in other blocks
            // are not searched: a stored run takes almost no space after compression.
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
}
