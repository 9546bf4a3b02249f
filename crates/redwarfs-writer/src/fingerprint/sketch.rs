//! Sketches of contents: the smallest hashes of their 16-byte windows.
//!
//! A gear hash (Xia et al., "Ddelta: a deduplication-inspired fast delta compression approach", 2014)
//! runs over the bytes and moves by four bits, so that it depends on the last 16 bytes. Multiplied by
//! an odd number, its high bits depend on all of these. The more windows two contents share, the more
//! of their smallest values are equal (Broder, "On the resemblance and containment of documents",
//! 1997).

/// Number of bytes on which a feature depends.
const WINDOW: usize = 16;
/// Largest number of features of a content.
pub(crate) const FEATURES: usize = 16;
/// Only windows with a hash below this count: one in 64.
const CANDIDATES: u64 = 1 << 58;
/// Candidates between two clean-ups.
const PENDING: usize = 256;
/// An odd number with well mixed bits (the golden ratio).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

/// A random number for each byte.
static GEAR: [u64; 256] = gear();

const fn gear() -> [u64; 256] {
    let mut table = [0u64; 256];
    let mut state = 0u64;
    let mut i = 0;
    while i < table.len() {
        state = state.wrapping_add(MIX);
        table[i] = mix(state);
        i += 1;
    }
    table
}

/// The finalizer of SplitMix64.
pub(crate) const fn mix(mut z: u64) -> u64 {
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Makes the sketch of a content. It takes 2.5 KiB.
pub(crate) struct Sketcher {
    hash: u64,
    /// Bytes that are missing until the first whole window.
    missing: usize,
    /// Only smaller hashes are candidates.
    limit: u64,
    kept: Vec<u64>,
}

impl Sketcher {
    pub(crate) fn new() -> Self {
        Self {
            hash: 0,
            missing: WINDOW - 1,
            limit: CANDIDATES,
            kept: Vec::new(),
        }
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        let (start, data) = data.split_at(self.missing.min(data.len()));
        self.hash = start.iter().fold(self.hash, |hash, &byte| step(hash, byte));
        self.missing -= start.len();
        for part in data.chunks(1 << 14) {
            let (mut hash, limit) = (self.hash, self.limit);
            for &byte in part {
                hash = step(hash, byte);
                let value = hash.wrapping_mul(MIX);
                if value < limit {
                    self.kept.push(value);
                }
            }
            self.hash = hash;
            if self.kept.len() > PENDING {
                self.clean_up();
            }
        }
    }

    fn clean_up(&mut self) {
        self.kept.sort_unstable();
        self.kept.dedup();
        self.kept.truncate(FEATURES);
        if let Some(&last) = self.kept.get(FEATURES - 1) {
            self.limit = last;
        }
    }

    pub(crate) fn finish(mut self) -> Sketch {
        self.clean_up();
        // Kept values begin with zeros.
        let features = self.kept.iter().map(|&value| (mix(value) >> 32) as u32);
        Sketch(features.collect())
    }
}

#[inline(always)]
fn step(hash: u64, byte: u8) -> u64 {
    (hash << 4).wrapping_add(GEAR[usize::from(byte)])
}

/// Features of a content, smallest hash first.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Sketch(Box<[u32]>);

impl Sketch {
    pub(crate) fn from_features(features: impl Iterator<Item = u32>) -> Self {
        Self(features.take(FEATURES).collect())
    }

    pub(crate) fn features(&self) -> &[u32] {
        &self.0
    }
}

/// Sketches by number: 8 bytes each, and 4 for each feature. A content has about one feature for 64
/// bytes, and at most 16.
#[derive(Debug, Default)]
pub(crate) struct Sketches {
    ends: Vec<u64>,
    features: Vec<u32>,
}

impl Sketches {
    /// Adds one and returns its number.
    pub(crate) fn push(&mut self, sketch: &Sketch) -> u32 {
        self.features.extend_from_slice(&sketch.0);
        self.ends.push(self.features.len() as u64);
        self.ends.len() as u32 - 1
    }

    /// Number of features.
    pub(crate) fn features(&self) -> u64 {
        self.features.len() as u64
    }

    /// The features of one; none if there is no such number.
    pub(crate) fn get(&self, number: u32) -> &[u32] {
        let number = number as usize;
        let start = number.checked_sub(1).and_then(|i| self.ends.get(i));
        let start = start.map_or(0, |&end| end as usize);
        let end = self.ends.get(number).map_or(start, |&end| end as usize);
        self.features.get(start..end).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sketch(data: &[u8]) -> Sketch {
        let mut sketcher = Sketcher::new();
        sketcher.update(data);
        sketcher.finish()
    }

    fn random(seed: u64, size: usize) -> Vec<u8> {
        (0..size as u64)
            .map(|i| mix(seed.wrapping_mul(MIX).wrapping_add(i)) as u8)
            .collect()
    }

    #[test]
    fn pieces_do_not_matter() {
        let data = random(1, 100_000);
        for size in [1, 7, 15, 16, 17, 4096] {
            let mut pieces = Sketcher::new();
            for part in data.chunks(size) {
                pieces.update(part);
            }
            assert_eq!(pieces.finish(), sketch(&data), "{size}");
        }
    }

    #[test]
    fn what_is_alike_has_features_in_common() {
        let data = random(2, 50_000);
        let mut other = random(3, 1000);
        other.extend_from_slice(&data);
        other.drain(20_000..21_000);
        let (a, b) = (sketch(&data), sketch(&other));
        let common = a.0.iter().filter(|f| b.0.contains(f)).count();
        assert_eq!(a.0.len(), FEATURES);
        assert!(common >= FEATURES / 2, "{common}");
        let foreign = sketch(&random(4, 50_000));
        assert!(!foreign.0.iter().any(|f| a.0.contains(f)));
    }

    #[test]
    fn little_and_uniform_data_have_few_features() {
        assert_eq!(sketch(b"").0.len(), 0);
        assert_eq!(sketch(&random(5, 15)).0.len(), 0);
        assert!(sketch(&[0; 100_000]).0.len() <= 1);
    }

    #[test]
    fn sketches_are_kept_apart() {
        let mut sketches = Sketches::default();
        let all = [
            sketch(b""),
            sketch(&random(6, 900)),
            sketch(&random(7, 9000)),
        ];
        for (number, sketch) in (0..).zip(&all) {
            assert_eq!(sketches.push(sketch), number);
        }
        for (number, sketch) in (0..).zip(&all) {
            assert_eq!(*sketches.get(number), *sketch.0);
        }
        assert!(sketches.get(3).is_empty());
    }
}
