//! Ruling out several positions of the input at once.
//!
//! If a window of `W` bytes equals an indexed one, their halves are equal as well. The block side
//! therefore records the half windows that end at each of the last [`GROUP`] positions up to the end of
//! an indexed window. The input side examines one in [`GROUP`] positions. If the half window there is
//! not recorded, none of the next [`GROUP`] windows is in the index.

use super::index::{Sums, tag};

/// Positions that are ruled out together.
pub(super) const GROUP: usize = 8;
/// Log2 of the bits for each half window: at most one in 16 positions of random data passes.
const BITS: u32 = 3;
/// Log2 of the largest number of bits: 1 MiB.
const LARGEST: u32 = 23;

/// Number of unused sums that may stay in [`Prefixes`], so that all sums fit into the fastest cache.
const SPARE: usize = 1 << 10;

/// A bit set of half windows. A window whose halves are not in it is in no index.
#[derive(Debug)]
pub(super) struct Sieve {
    half: usize,
    shift: u32,
    words: Vec<u64>,
}

impl Sieve {
    /// For this number of windows in the index.
    pub(super) fn new(window: usize, windows: usize) -> Self {
        let parts = windows.saturating_mul(GROUP).max(64).next_power_of_two();
        let bits = (parts.trailing_zeros() + BITS).min(LARGEST);
        Self {
            half: window / 2,
            shift: u32::BITS + 6 - bits,
            words: vec![0; 1 << (bits - 6)],
        }
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }

    /// Adds the window of `data` that ends at `end`; `sums` are the sums of its second half.
    pub(super) fn add(&mut self, data: &[u8], end: usize, mut sums: Sums) {
        self.set(sums);
        let half = self.half;
        let Some(start) = end.checked_sub(half + GROUP - 1) else {
            return;
        };
        let leaving = data.get(end - (GROUP - 1)..end).unwrap_or_default();
        let entering = data.get(start..start + GROUP - 1).unwrap_or_default();
        for (&leaving, &entering) in leaving.iter().zip(entering).rev() {
            sums.slide_back(entering, leaving, half as u32);
            self.set(sums);
        }
    }

    /// The word for these sums, and their bits in it.
    #[inline(always)]
    fn place(&self, sums: Sums) -> (usize, u64) {
        let tag = tag(sums);
        let bits = (1 << (tag & 63)) | (1 << ((tag >> 6) & 63));
        ((tag >> self.shift) as usize, bits)
    }

    #[inline(always)]
    fn set(&mut self, sums: Sums) {
        let (place, bits) = self.place(sums);
        if let Some(word) = self.words.get_mut(place) {
            *word |= bits;
        }
    }

    /// Whether a window that ends less than a group after the half window with these sums may be in the
    /// index.
    #[inline(always)]
    fn has(&self, sums: Sums) -> bool {
        let (place, bits) = self.place(sums);
        self.words
            .get(place)
            .is_some_and(|word| word & bits == bits)
    }

    /// The first group that may match: at `position`, a multiple of [`GROUP`], or later, and before
    /// `end`.
    #[inline(never)]
    pub(super) fn next(&self, prefixes: &Prefixes, position: usize, end: usize) -> Option<usize> {
        let now = prefixes.from(position);
        let then = prefixes.from(position - self.half);
        let groups = end.saturating_sub(position).div_ceil(GROUP);
        now.iter()
            .zip(then)
            .take(groups)
            .position(|(now, &then)| self.has(now.since(then, self.half as u32)))
            .map(|i| position + i * GROUP)
    }
}

/// For every multiple of [`GROUP`] in a buffer, from a start on: the sums of all bytes before it. The
/// sums of a window follow from the sums at its ends.
#[derive(Debug, Default)]
pub(super) struct Prefixes {
    start: usize,
    sums: Vec<Sums>,
}

impl Prefixes {
    /// Forgets everything: the buffer has changed.
    pub(super) fn clear(&mut self) {
        self.sums.clear();
    }

    /// Computes the sums from `from` to the last group that begins at or before `to`, which must be in
    /// the buffer. Returns the number of bytes that it has moved.
    pub(super) fn reach(&mut self, buffer: &[u8], from: usize, to: usize) -> usize {
        let from = from - from % GROUP;
        let mut end = self.start + self.sums.len() * GROUP;
        if self.sums.is_empty() || end <= from || from < self.start {
            self.sums.clear();
            self.sums.push(Sums::default());
            self.start = from;
            end = from + GROUP;
        }
        if end > to {
            return 0;
        }
        let old = (from - self.start) / GROUP;
        let mut moved = 0;
        // Long windows need many sums: the number of moved sums must not exceed the number of dropped
        // ones.
        if old > SPARE.max(self.sums.len() / 2) {
            self.sums.drain(..old);
            moved = self.sums.len() * size_of::<Sums>();
            self.start = from;
        }
        let Some(&(mut sums)) = self.sums.last() else {
            return moved;
        };
        let data = buffer.get(end - GROUP..to).unwrap_or_default();
        let groups = data.as_chunks::<GROUP>().0.iter();
        self.sums.extend(groups.map(|group| {
            sums = sums.followed_by(Sums::of_group(*group), GROUP as u32);
            sums
        }));
        moved
    }

    /// The sums from a multiple of [`GROUP`] on.
    fn from(&self, position: usize) -> &[Sums] {
        let first = position.wrapping_sub(self.start) / GROUP;
        self.sums.get(first..).unwrap_or_default()
    }

    /// Sums of the window that ends at a multiple of [`GROUP`].
    pub(super) fn window(&self, window: usize, end: usize) -> Sums {
        let at = |position| self.from(position).first().copied().unwrap_or_default();
        at(end).since(at(end - window), window as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(seed: u32, values: u32, len: u32) -> Vec<u8> {
        let mixed = |i: u32| (i ^ seed).wrapping_mul(2_654_435_761).rotate_left(11);
        (0..len)
            .map(|i| (mixed(mixed(i)) >> 16) as u8 % values.min(255) as u8)
            .collect()
    }

    #[test]
    fn windows_follow_from_prefixes() {
        let data = bytes(1, 255, 6000);
        let mut prefixes = Prefixes::default();
        for (from, to) in [
            (0, 700),
            (5, 701),
            (16, 2000),
            (3003, 4100),
            (3010, 6000),
            (9, 5555),
        ] {
            prefixes.reach(&data, from, to);
            let first = from - from % GROUP;
            for end in (first + 512..=to).step_by(GROUP) {
                assert_eq!(
                    prefixes.window(512, end),
                    Sums::of(&data[end - 512..end]),
                    "{from} {to} {end}"
                );
            }
        }
    }

    #[test]
    fn prefixes_go_on_where_they_end() {
        let data = bytes(6, 255, 40_000);
        for from in [9000, 9008, 9016, 20_000] {
            let mut prefixes = Prefixes::default();
            prefixes.reach(&data, 0, 9001);
            prefixes.reach(&data, from, from + 8000);
            for end in (from + 512..=from + 8000).step_by(GROUP) {
                let plain = Sums::of(&data[end - 512..end]);
                assert_eq!(prefixes.window(512, end), plain, "{from} {end}");
            }
            assert!(prefixes.sums.len() < 3 * SPARE);
        }
    }

    #[test]
    fn nothing_that_is_in_the_index_is_ruled_out() {
        for values in [255, 2] {
            let block = bytes(2, values, 20_000);
            let (window, step) = (256, 128);
            let mut sieve = Sieve::new(window, block.len() / step);
            for end in (window..=block.len()).step_by(step) {
                sieve.add(&block, end, Sums::of(&block[end - window / 2..end]));
            }
            for shift in 0..3 * GROUP {
                let input = [&bytes(3, values, 300 + shift as u32), &block[..8000]].concat();
                let mut prefixes = Prefixes::default();
                prefixes.reach(&input, 0, input.len());
                for end in (window..8000).step_by(step) {
                    let at = 300 + shift + end;
                    let group = at - at % GROUP;
                    assert_eq!(sieve.next(&prefixes, group, at + 1), Some(group));
                }
            }
            sieve.clear();
            let mut prefixes = Prefixes::default();
            prefixes.reach(&block, 0, block.len());
            assert_eq!(sieve.next(&prefixes, window, block.len()), None);
        }
    }

    #[test]
    fn most_of_what_is_not_in_the_index_is_ruled_out() {
        let block = bytes(4, 255, 100_000);
        let (window, step) = (256, 128);
        let mut sieve = Sieve::new(window, block.len() / step);
        for end in (window..=block.len()).step_by(step) {
            sieve.add(&block, end, Sums::of(&block[end - window / 2..end]));
        }
        let input = bytes(5, 250, 80_000);
        let mut prefixes = Prefixes::default();
        prefixes.reach(&input, 0, input.len());
        let mut passed = 0;
        let mut at = window;
        while let Some(group) = sieve.next(&prefixes, at, input.len()) {
            passed += 1;
            at = group + GROUP;
        }
        assert!(passed < 10_000 / 12, "{passed}");
    }
}
