//! Which bytes of new data are in old data.

use std::collections::HashMap;

/// Bytes of a window. Windows of the old data begin at multiples of this.
const WINDOW: usize = 64;
/// Shortest match. Shorter ones are more often chance than useful.
pub(super) const SHORTEST: usize = 256;
/// Bytes that may be compared without a result, for each byte of the new data.
const PATIENCE: usize = 8;

/// Bytes that are equal in two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Match {
    pub(super) new: usize,
    pub(super) old: usize,
    pub(super) size: usize,
}

/// A multiplier of the rolling checksum: any odd number with mixed bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

fn checksum(window: &[u8]) -> u64 {
    let step = |sum: u64, &byte: &u8| sum.wrapping_mul(FACTOR).wrapping_add(u64::from(byte) + 1);
    window.iter().fold(0, step)
}

/// Where windows of old data begin, by their checksums.
#[derive(Debug, Default)]
pub(super) struct Windows(HashMap<u64, u32>);

impl Windows {
    /// Makes the table of other data.
    pub(super) fn index(&mut self, old: &[u8]) {
        self.0.clear();
        self.0.reserve(old.len() / WINDOW);
        for (number, window) in (0..).zip(old.chunks_exact(WINDOW)) {
            self.0.entry(checksum(window)).or_insert(number);
        }
    }

    /// Ranges of `new` that are in `old`, of which this is the table, in ascending order, without overlaps.
    pub(super) fn matches(&self, new: &[u8], old: &[u8]) -> Vec<Match> {
        let mut found = Vec::new();
        if new.len() < SHORTEST || old.len() < SHORTEST {
            return found;
        }
        let windows = &self.0;
        let oldest = (0..WINDOW).fold(1_u64, |power, _| power.wrapping_mul(FACTOR));
        let mut left = new.len().saturating_mul(PATIENCE);
        let (mut at, mut done) = (0, 0);
        let mut sum = checksum(new.get(..WINDOW).unwrap_or_default());
        while at + WINDOW <= new.len() {
            let candidate = windows.get(&sum).map(|&number| number as usize * WINDOW);
            if let Some(place) = candidate
                && left > 0
            {
                let behind = common(new.get(at..), old.get(place..));
                let before = common_end(new.get(done..at), old.get(..place));
                let size = before + behind;
                if behind >= WINDOW && size >= SHORTEST {
                    found.push(Match {
                        new: at - before,
                        old: place - before,
                        size,
                    });
                    at += behind;
                    done = at;
                    sum = checksum(new.get(at..at + WINDOW).unwrap_or_default());
                    continue;
                }
                left = left.saturating_sub(size.max(1));
            }
            let (Some(&out), Some(&next)) = (new.get(at), new.get(at + WINDOW)) else {
                break;
            };
            sum = sum
                .wrapping_mul(FACTOR)
                .wrapping_add(u64::from(next) + 1)
                .wrapping_sub((u64::from(out) + 1).wrapping_mul(oldest));
            at += 1;
        }
        found
    }
}

/// Number of equal bytes at the start of two.
pub(super) fn common(a: Option<&[u8]>, b: Option<&[u8]>) -> usize {
    let (a, b) = (a.unwrap_or_default(), b.unwrap_or_default());
    let words = a.chunks_exact(64).zip(b.chunks_exact(64));
    let equal = words.take_while(|(a, b)| a == b).count() * 64;
    let rest = |bytes: &'_ [u8]| bytes.get(equal..).map_or(0, <[u8]>::len);
    let (a_rest, b_rest) = (rest(a), rest(b));
    let pairs = a.iter().zip(b).skip(equal).take(a_rest.min(b_rest).min(64));
    equal + pairs.take_while(|(a, b)| a == b).count()
}

/// Number of equal bytes at the end of two.
pub(super) fn common_end(a: Option<&[u8]>, b: Option<&[u8]>) -> usize {
    let (a, b) = (a.unwrap_or_default(), b.unwrap_or_default());
    let pairs = a.iter().rev().zip(b.iter().rev());
    pairs.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use redwarfs_testkit::tree::Random;

    use super::*;

    /// Checks matches, and returns the bytes that they do not cover.
    fn rest(new: &[u8], old: &[u8]) -> usize {
        let mut done = 0;
        let mut rest = new.len();
        let mut windows = Windows::default();
        windows.index(old);
        for found in windows.matches(new, old) {
            assert!(found.new >= done && found.size >= SHORTEST);
            assert_eq!(
                new[found.new..found.new + found.size],
                old[found.old..found.old + found.size]
            );
            done = found.new + found.size;
            rest -= found.size;
        }
        rest
    }

    #[test]
    fn what_stays_is_found() {
        let mut random = Random::new(1);
        let old = random.bytes(100_000);
        assert_eq!(rest(&old, &old), 0);
        let mut new = old.clone();
        new[50_000] ^= 1;
        assert!(rest(&new, &old) <= 1);
        new.splice(20_000..20_010, random.bytes(500));
        new.drain(70_000..70_100);
        assert!((490..=502).contains(&rest(&new, &old)));
        // The other way round, and cut.
        new.rotate_left(30_000);
        assert!(rest(&new, &old) < 600);
        assert!(rest(&new[..5000], &old[..3000]) <= 5000);
        let other = random.bytes(100_000);
        assert_eq!(rest(&other, &old), 100_000);
    }

    #[test]
    fn short_and_monotonous_data_ends() {
        for (new, old) in [
            (vec![0; 500_000], vec![0; 300_000]),
            (vec![1; 100], vec![1; 100]),
            (Vec::new(), vec![1; 5000]),
            (b"ab".repeat(100_000), b"aba".repeat(100_000)),
        ] {
            assert!(rest(&new, &old) <= new.len());
        }
    }

    #[test]
    fn equal_starts_and_ends() {
        let data: Vec<u8> = (0..300_u32).map(|n| n as u8).collect();
        for equal in 0..200 {
            let mut other = data.clone();
            other[equal] ^= 1;
            assert_eq!(common(Some(&data), Some(&other)), equal);
            other.reverse();
            let back: Vec<u8> = data.iter().rev().copied().collect();
            assert_eq!(common_end(Some(&back), Some(&other)), equal);
        }
        assert_eq!(common(Some(&data), Some(&data[..131])), 131);
    }
}
