//! A small bit set that rules out most windows that are not in an index.

use super::index::{Sums, tag};

/// Possible sizes of a filter in 64-bit words. They are constants in the loop below, which therefore
/// needs no variable shift and no bounds check per byte.
const SMALL: usize = 1 << 8;
const MEDIUM: usize = 1 << 11;
const LARGE: usize = 1 << 14;
/// A larger filter would not fit into the CPU caches.
const LARGEST: usize = 1 << 17;

/// Positions that are tested together: one branch for all of them.
const GROUP: usize = 8;
/// Bytes by which a window is moved to test all positions of a group.
const AHEAD: usize = super::sieve::GROUP - 1;

/// One bit per value of the top bits of a tag.
#[derive(Debug)]
pub(super) struct Filter {
    words: Vec<u64>,
}

impl Filter {
    /// A filter for `windows` windows with `2^bits` bits for each. Unless it has reached its size
    /// limit, at most one random tag in `2^bits` passes it.
    pub(super) fn new(windows: usize, bits: u32) -> Self {
        let wanted = windows.saturating_mul(1 << bits.min(16)).div_ceil(64);
        let size = [SMALL, MEDIUM, LARGE]
            .into_iter()
            .find(|&size| size >= wanted)
            .unwrap_or(LARGEST);
        Self {
            words: vec![0; size],
        }
    }

    pub(super) fn clear(&mut self) {
        self.words.fill(0);
    }

    fn shift(words: usize) -> u32 {
        u32::BITS - 6 - words.trailing_zeros()
    }

    pub(super) fn add(&mut self, tag: u32) {
        let bit = tag >> Self::shift(self.words.len());
        if let Some(word) = self.words.get_mut((bit >> 6) as usize) {
            *word |= 1 << (bit & 63);
        }
    }

    /// Whether a window with this tag may be in an index.
    pub(super) fn has(&self, tag: u32) -> bool {
        let bit = tag >> Self::shift(self.words.len());
        let word = self.words.get((bit >> 6) as usize).copied().unwrap_or(0);
        word >> (bit & 63) & 1 != 0
    }

    /// The windows that pass the filter. Bit 0 is the window with these sums. The higher bits are the
    /// windows moved by 1 to [`AHEAD`] bytes, as far as `incoming` and `outgoing` have these bytes.
    pub(super) fn passing(&self, sums: Sums, window: u32, incoming: &[u8], outgoing: &[u8]) -> u32 {
        let words = self.words.as_slice();
        let (Some(new), Some(old)) = (incoming.first_chunk(), outgoing.first_chunk()) else {
            let mut now = sums;
            let mut bits = u32::from(self.has(tag(now)));
            for ((&new, &old), i) in incoming.iter().zip(outgoing).zip(1..) {
                now.slide(old, new, window);
                bits |= u32::from(self.has(tag(now))) << i;
            }
            return bits;
        };
        if let Some(words) = words.first_chunk::<LARGEST>() {
            passing(words, sums, window, new, old)
        } else if let Some(words) = words.first_chunk::<LARGE>() {
            passing(words, sums, window, new, old)
        } else if let Some(words) = words.first_chunk::<MEDIUM>() {
            passing(words, sums, window, new, old)
        } else if let Some(words) = words.first_chunk::<SMALL>() {
            passing(words, sums, window, new, old)
        } else {
            0
        }
    }

    /// Moves a window by as many bytes as `incoming` and `outgoing` have, or until its sums
    /// pass the filter; returns by how many, and whether they pass.
    pub(super) fn slide(
        &self,
        sums: &mut Sums,
        window: u32,
        incoming: &[u8],
        outgoing: &[u8],
    ) -> (usize, bool) {
        let words = self.words.as_slice();
        if let Some(words) = words.first_chunk::<LARGEST>() {
            slide(words, sums, window, incoming, outgoing)
        } else if let Some(words) = words.first_chunk::<LARGE>() {
            slide(words, sums, window, incoming, outgoing)
        } else if let Some(words) = words.first_chunk::<MEDIUM>() {
            slide(words, sums, window, incoming, outgoing)
        } else if let Some(words) = words.first_chunk::<SMALL>() {
            slide(words, sums, window, incoming, outgoing)
        } else {
            (0, false)
        }
    }
}

/// The lowest bit is 1 if a tag passes. The other bits have no meaning.
#[inline(always)]
fn bit<const WORDS: usize>(words: &[u64; WORDS], tag: u32) -> u64 {
    let bit = tag >> const { u32::BITS - 6 - WORDS.trailing_zeros() };
    words[(bit >> 6) as usize] >> (bit & 63)
}

#[inline(never)]
fn passing<const WORDS: usize>(
    words: &[u64; WORDS],
    sums: Sums,
    window: u32,
    incoming: &[u8; AHEAD],
    outgoing: &[u8; AHEAD],
) -> u32 {
    let mut now = sums;
    let mut bits = bit(words, tag(now)) as u32 & 1;
    for i in 0..AHEAD {
        now.slide(outgoing[i], incoming[i], window);
        bits |= (bit(words, tag(now)) as u32 & 1) << (i + 1);
    }
    bits
}

#[inline(never)]
fn slide<const WORDS: usize>(
    words: &[u64; WORDS],
    sums: &mut Sums,
    window: u32,
    incoming: &[u8],
    outgoing: &[u8],
) -> (usize, bool) {
    let (new_groups, new_rest) = incoming.as_chunks::<GROUP>();
    let (old_groups, old_rest) = outgoing.as_chunks::<GROUP>();
    let mut now = *sums;
    let mut done = 0;
    for (new, old) in new_groups.iter().zip(old_groups) {
        let before = now;
        let mut passing = 0;
        for (&new, &old) in new.iter().zip(old) {
            now.slide(old, new, window);
            passing |= bit(words, tag(now));
        }
        if passing & 1 != 0 {
            now = before;
            for (&new, &old) in new.iter().zip(old) {
                now.slide(old, new, window);
                done += 1;
                if bit(words, tag(now)) & 1 != 0 {
                    break;
                }
            }
            *sums = now;
            return (done, true);
        }
        done += GROUP;
    }
    for (&new, &old) in new_rest.iter().zip(old_rest) {
        now.slide(old, new, window);
        done += 1;
        if bit(words, tag(now)) & 1 != 0 {
            *sums = now;
            return (done, true);
        }
    }
    *sums = now;
    (done, false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sliding_stops_at_the_first_window_that_passes() {
        let data: Vec<u8> = (0..4000u32)
            .map(|i| (i.wrapping_mul(2_654_435_761) >> 12) as u8)
            .collect();
        let window = 64usize;
        for windows in [0, 10_000, 100_000, 1_000_000] {
            for at in [window + 1, window + 7, window + 8, window + 9, 3999, 4000] {
                let mut filter = Filter::new(windows, 5);
                let wanted = Sums::of(&data[at - window..at]);
                filter.add(tag(wanted));
                let mut sums = Sums::of(&data[..window]);
                let mut position = window;
                loop {
                    let (moved, hit) = filter.slide(
                        &mut sums,
                        window as u32,
                        &data[position..],
                        &data[position - window..data.len() - window],
                    );
                    position += moved;
                    assert!(hit && filter.has(tag(sums)), "{windows} {at} {position}");
                    assert_eq!(sums, Sums::of(&data[position - window..position]));
                    if position == at {
                        break;
                    }
                    assert!(position < at);
                }
                filter.clear();
                assert!(!filter.has(tag(wanted)));
            }
        }
    }
}
