//! Similarity digests of contents.

mod nilsimsa;
mod sketch;

pub(crate) use nilsimsa::Digest;
use nilsimsa::Nilsimsa;
pub(crate) use sketch::{FEATURES, Sketch, Sketcher, Sketches, mix as mix_feature};

use crate::options::Order;

/// Counts the changes of these digests. What is kept of earlier results has it in its key. A test pins the digests, so that it
/// cannot be forgotten.
pub(crate) const DIGESTS: u32 = 1;

/// Computes the digest for an order.
pub(crate) enum Fingerprint {
    Similarity(Box<Similarity>),
    Nilsimsa(Box<Nilsimsa>),
    Sketch(Box<Sketcher>),
}

/// A finished digest.
pub(crate) enum Print {
    Similarity(u32),
    Nilsimsa(Digest),
    Sketch(Sketch),
}

impl Print {
    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        match self {
            Self::Similarity(digest) => digest.to_le_bytes().to_vec(),
            Self::Nilsimsa(digest) => digest.iter().flat_map(|n| n.to_le_bytes()).collect(),
            Self::Sketch(sketch) => {
                let features = sketch.features().iter();
                features.flat_map(|n| n.to_le_bytes()).collect()
            }
        }
    }

    /// The digest of a kind with these bytes.
    pub(crate) fn from_bytes(kind: &Fingerprint, bytes: &[u8]) -> Option<Self> {
        Some(match kind {
            Fingerprint::Similarity(_) => {
                Self::Similarity(u32::from_le_bytes(bytes.try_into().ok()?))
            }
            Fingerprint::Nilsimsa(_) => {
                let bytes: &[u8; 32] = bytes.try_into().ok()?;
                let mut digest = Digest::default();
                for (number, bytes) in digest.iter_mut().zip(bytes.as_chunks().0) {
                    *number = u64::from_le_bytes(*bytes);
                }
                Self::Nilsimsa(digest)
            }
            Fingerprint::Sketch(_) => {
                let (features, rest) = bytes.as_chunks();
                if !rest.is_empty() || features.len() > FEATURES {
                    return None;
                }
                let features = features.iter().map(|bytes| u32::from_le_bytes(*bytes));
                Self::Sketch(Sketch::from_features(features))
            }
        })
    }
}

impl Fingerprint {
    /// The name of its kind.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::Similarity(_) => "similarity",
            Self::Nilsimsa(_) => "nilsimsa",
            Self::Sketch(_) => "sketch",
        }
    }

    /// No digest, for orders that do not need contents.
    pub(crate) fn new(order: &Order) -> Option<Self> {
        match order {
            Order::Similarity => Some(Self::Similarity(Box::new(Similarity::new()))),
            Order::Nilsimsa(_) => Some(Self::Nilsimsa(Box::new(Nilsimsa::new()))),
            Order::Families(_) => Some(Self::Sketch(Box::new(Sketcher::new()))),
            // For items without a key.
            Order::Script(rest) => Self::new(rest),
            _ => None,
        }
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        match self {
            Self::Similarity(digest) => digest.update(data),
            Self::Nilsimsa(digest) => digest.update(data),
            Self::Sketch(sketch) => sketch.update(data),
        }
    }

    pub(crate) fn finish(self) -> Print {
        match self {
            Self::Similarity(digest) => Print::Similarity(digest.finish()),
            Self::Nilsimsa(digest) => Print::Nilsimsa(digest.finish()),
            Self::Sketch(sketch) => Print::Sketch(sketch.finish()),
        }
    }
}

/// Histogram of hashed four-byte sequences for the similarity digest (format/08 section 3.2).
pub(crate) struct Similarity {
    counts: [u64; 256],
    /// The last four bytes.
    last: u32,
    /// Number of bytes so far, at most 4.
    seen: u32,
}

impl Similarity {
    pub(crate) fn new() -> Self {
        Self {
            counts: [0; 256],
            last: 0,
            seen: 0,
        }
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        // Four histograms, so that increments of equal consecutive buckets do not wait for each other.
        let mut partial = [[0u32; 256]; 4];
        let bucket = |x: u32| (mix(x.wrapping_add(0x9e37_79b9)) >> 24) as usize;
        for part in data.chunks(1 << 20) {
            let (start, rest) = part.split_at(part.len().min(3));
            for &byte in start {
                self.last = (self.last << 8) | u32::from(byte);
                self.seen = (self.seen + 1).min(4);
                if self.seen == 4 {
                    partial[0][bucket(self.last)] += 1;
                }
            }
            // From here on, every sequence lies within the part.
            if !rest.is_empty() {
                let [p0, p1, p2, p3] = &mut partial;
                let mut done = 0;
                for eight in part.windows(8).step_by(4) {
                    let Ok(eight) = <[u8; 8]>::try_from(eight) else {
                        break;
                    };
                    let x = u64::from_be_bytes(eight);
                    p0[bucket((x >> 32) as u32)] += 1;
                    p1[bucket((x >> 24) as u32)] += 1;
                    p2[bucket((x >> 16) as u32)] += 1;
                    p3[bucket((x >> 8) as u32)] += 1;
                    done += 4;
                }
                for four in part.get(done..).unwrap_or_default().windows(4) {
                    if let Ok(four) = <[u8; 4]>::try_from(four) {
                        self.last = u32::from_be_bytes(four);
                        p0[bucket(self.last)] += 1;
                    }
                }
                self.seen = 4;
            }
            for counts in &mut partial {
                for (total, count) in self.counts.iter_mut().zip(counts.iter_mut()) {
                    *total += u64::from(std::mem::take(count));
                }
            }
        }
    }

    /// The four fullest buckets, fullest first, one byte each.
    pub(crate) fn finish(&self) -> u32 {
        let mut best = [(0u64, 0u32); 4];
        let mut filled = 0usize;
        for (bucket, &count) in (0u32..).zip(&self.counts) {
            let place = best
                .iter()
                .take(filled)
                .position(|b| count > b.0)
                .unwrap_or(filled);
            if place < 4 {
                filled = (filled + 1).min(4);
                if let Some(tail) = best.get_mut(place..filled) {
                    tail.rotate_right(1);
                    if let Some(slot) = tail.first_mut() {
                        *slot = (count, bucket);
                    }
                }
            }
        }
        best.iter()
            .fold(0, |digest, (_, bucket)| (digest << 8) | bucket)
    }
}

fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x21f0_aaad);
    x ^= x >> 15;
    x = x.wrapping_mul(0x735a_2d97);
    x ^ (x >> 15)
}

#[cfg(test)]
mod tests {
    use twox_hash::XxHash3_64;

    use super::*;

    fn digest(data: &[u8]) -> u32 {
        let mut similarity = Similarity::new();
        similarity.update(data);
        similarity.finish()
    }

    #[test]
    fn digests_change_with_their_number_only() {
        let data: Vec<u8> = (0..50_000u32).map(|i| ((i * i) >> 7) as u8).collect();
        let made = [
            Fingerprint::Similarity(Box::new(Similarity::new())),
            Fingerprint::Nilsimsa(Box::new(Nilsimsa::new())),
            Fingerprint::Sketch(Box::new(Sketcher::new())),
        ]
        .map(|mut kind| {
            kind.update(&data);
            XxHash3_64::oneshot(&kind.finish().to_bytes())
        });
        let pinned = [
            0xd805_e63d_dff9_2336,
            0x09f2_191a_0690_855a,
            0xd399_083e_e0be_62eb,
        ];
        assert_eq!((DIGESTS, made), (1, pinned));
    }

    #[test]
    fn short_contents_have_the_empty_digest() {
        assert_eq!(digest(b""), 0x0001_0203);
        assert_eq!(digest(b"abc"), 0x0001_0203);
    }

    #[test]
    fn one_bucket_comes_first() {
        let bucket = mix(0u32.wrapping_add(0x9e37_79b9)) >> 24;
        let value = digest(&[0; 100]);
        assert_eq!(value >> 24, bucket);
        let mut expected: Vec<u32> = (0..256).filter(|&b| b != bucket).take(3).collect();
        expected.insert(0, bucket);
        assert_eq!(value.to_be_bytes().map(u32::from).to_vec(), expected);
    }

    #[test]
    fn pieces_do_not_matter() {
        let data: Vec<u8> = (0..10_000u32).map(|i| ((i * i) >> 5) as u8).collect();
        let mut pieces = Similarity::new();
        for part in data.chunks(7) {
            pieces.update(part);
        }
        assert_eq!(pieces.finish(), digest(&data));
    }
}
