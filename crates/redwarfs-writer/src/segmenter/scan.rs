//! Scanning the input: which windows are looked up, and when data leaves the buffer.

use super::compare::uniform;
use super::index::{Sums, tag};
use super::sieve::GROUP;
use super::{BlockSink, Segmenter};
use crate::error::Result;

/// The state of the scan of an extent. Positions are indices into the buffer.
#[derive(Debug, Default, Clone, Copy)]
pub(super) struct Scan {
    pub(super) written: usize,
    /// End of the window whose sums are valid, if any.
    pub(super) position: Option<usize>,
    pub(super) sums: Sums,
    /// The last match ended with the buffer, and may continue at this place.
    pub(super) resume: Option<(u32, usize)>,
    /// A run that ended with the buffer: its value and length so far.
    pub(super) run: Option<(u8, usize)>,
}

impl<S: BlockSink> Segmenter<S> {
    pub(super) fn scan(&mut self, last: bool) -> Result<()> {
        self.fresh = 0;
        let buffer = std::mem::take(&mut self.buffer);
        let mut state = self.state;
        let result = self.scan_buffer(&buffer, &mut state, last);
        self.buffer = buffer;
        if last {
            self.passed += self.buffer.len() as u64;
        }
        // Drop represented bytes. The window stays because it lies after `written`.
        if !last && state.written > 0 {
            let done = state.written;
            self.buffer.drain(..done);
            self.passed += done as u64;
            state.written = 0;
            state.position = state.position.map(|p| p - done);
        }
        self.state = state;
        result
    }

    pub(super) fn scan_buffer(
        &mut self,
        buffer: &[u8],
        state: &mut Scan,
        last: bool,
    ) -> Result<()> {
        let window = self.window;
        // Enough bytes that the length of a distant match can be determined.
        let limit = match self.lookback {
            2.. if !last => buffer.len().saturating_sub(self.far_match - window),
            _ => buffer.len(),
        };
        self.prefixes.clear();
        self.evens.clear();
        self.short_run = None;
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
                    self.looked += window as u64;
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

    /// Continues from `position` to the next flush of the plain scan, to a match, or to a place near
    /// `limit`, with the same result as the plain scan. Returns false if this was not possible: there
    /// may be a run, or the limit is near.
    ///
    /// The plain scan stops at each position that passes the filter, and one stripe after its last
    /// stop. At the first stop from `due` on, it flushes. So the filter's results are needed only near
    /// `due`, and for windows that are in the index.
    pub(super) fn leap(
        &mut self,
        buffer: &[u8],
        state: &mut Scan,
        position: usize,
        limit: usize,
        last: bool,
    ) -> Result<bool> {
        let due = state.written + self.keep + self.step.min(4096);
        // No stop up to the flush has a stripe that ends after this.
        let horizon = due + 2 * self.stripe;
        let tail = last && limit < due;
        if position >= due || (limit < due && !tail) {
            return Ok(false);
        }
        let near = horizon.min(limit);
        if self.evens.any(buffer, position, near, &mut self.looked) {
            return Ok(false);
        }
        let end = if tail { limit + 1 } else { due };
        self.looked += (self.prefixes).reach(buffer, state.written, horizon.min(limit)) as u64;
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

    /// The positions of a group that are in `from..to` and pass the filter.
    pub(super) fn passing(&self, buffer: &[u8], group: usize, from: usize, to: usize) -> u32 {
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

    /// The last position after `start` and before `end` that passes the filter, or `start`.
    pub(super) fn last_passing(&self, buffer: &[u8], start: usize, end: usize) -> usize {
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
    pub(super) fn first_passing(&self, buffer: &[u8], start: usize, end: usize) -> Option<usize> {
        (group_of(start)..end).step_by(GROUP).find_map(|group| {
            let passing = self.passing(buffer, group, start, end);
            (passing != 0).then(|| group + passing.trailing_zeros() as usize)
        })
    }

    /// Sums of the window that ends at `position`.
    pub(super) fn sums_at(&self, buffer: &[u8], position: usize) -> Sums {
        let group = group_of(position);
        let mut sums = self.prefixes.window(self.window, group);
        let outgoing = &buffer[group - self.window..];
        for (&new, &old) in buffer[group..position].iter().zip(outgoing) {
            sums.slide(old, new, self.window as u32);
        }
        sums
    }

    /// Appends the bytes that no match ending after `position` can reach backwards.
    pub(super) fn flush(&mut self, buffer: &[u8], state: &mut Scan, position: usize) -> Result<()> {
        let Some(limit) = position.checked_sub(self.keep) else {
            return Ok(());
        };
        // Portions of at least a step keep the time per byte low.
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
}

/// The multiple of [`GROUP`] at or before a position.
fn group_of(position: usize) -> usize {
    position - position % GROUP
}
