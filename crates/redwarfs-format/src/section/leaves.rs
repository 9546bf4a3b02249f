//! Digests of the leaves of a payload. They show whether a piece that is read again equals the verified
//! one.

use std::fmt;

use twox_hash::XxHash3_128;

/// A digest of 16 bytes (XXH3-128 with a seed) for each leaf of 16 KiB of a payload.
///
/// They are made while the payload goes by for its checksum. Later, any leaf can be read again and
/// compared without the rest. The seed is known only inside the process, so nobody can prepare other
/// bytes with the same digest.
#[derive(Clone)]
pub struct LeafDigests {
    seed: u64,
    digests: Vec<u128>,
}

impl LeafDigests {
    /// Size of all leaves but the last (16 KiB). Smaller ones take more memory, larger ones more time
    /// for a read of a few bytes.
    pub const LEAF: usize = 16 << 10;

    /// Room for the digests of a payload of `len` bytes.
    #[must_use]
    pub fn new(seed: u64, len: u64) -> Self {
        // A length that does not fit has no room beforehand.
        let leaves = usize::try_from(len.div_ceil(Self::LEAF as u64)).unwrap_or(0);
        let mut digests = Vec::new();
        // Without it, they are moved as they grow.
        let _ = digests.try_reserve_exact(leaves);
        Self { seed, digests }
    }

    /// Takes the next bytes of the payload: whole leaves, unless they are the last.
    pub fn update(&mut self, bytes: &[u8]) {
        for leaf in bytes.chunks(Self::LEAF) {
            self.digests.push(self.digest(leaf));
        }
    }

    /// Whether `bytes` are the bytes of the payload from the start of leaf number `first` on: whole
    /// leaves, except for the last one of the payload.
    #[must_use]
    pub fn matches(&self, first: usize, bytes: &[u8]) -> bool {
        let known = self.digests.get(first..).unwrap_or_default();
        let leaves = bytes.chunks(Self::LEAF);
        leaves.len() <= known.len()
            && leaves
                .zip(known)
                .all(|(leaf, digest)| self.digest(leaf) == *digest)
    }

    /// Bytes of memory that the digests take.
    #[must_use]
    pub fn memory(&self) -> u64 {
        (self.digests.capacity() * size_of::<u128>()) as u64
    }

    fn digest(&self, leaf: &[u8]) -> u128 {
        XxHash3_128::oneshot_with_seed(self.seed, leaf)
    }
}

impl fmt::Debug for LeafDigests {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The seed stays in the process.
        f.debug_struct("LeafDigests")
            .field("leaves", &self.digests.len())
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: usize = LeafDigests::LEAF;

    #[test]
    fn any_leaf_can_be_compared_and_every_change_is_seen() {
        // No two leaves are equal.
        let payload: Vec<u8> = (0..3 * LEAF + 100)
            .map(|i| (((i * 89) >> 3) ^ (i / LEAF)) as u8)
            .collect();
        let mut leaves = LeafDigests::new(7, payload.len() as u64);
        leaves.update(&payload[..2 * LEAF]);
        leaves.update(&payload[2 * LEAF..]);
        assert_eq!(leaves.memory(), 4 * 16);
        for first in 0..4 {
            for end in [(first + 1) * LEAF, payload.len()] {
                let range = first * LEAF..end.min(payload.len());
                assert!(leaves.matches(first, &payload[range.clone()]));
                assert!(!leaves.matches(first + 1, &payload[range.clone()]));
                for at in [range.start, range.end - 1] {
                    let mut changed = payload.clone();
                    changed[at] ^= 1;
                    assert!(!leaves.matches(first, &changed[range.clone()]), "{at}");
                }
            }
        }
        // Neither a part of a leaf nor more than there are.
        assert!(!leaves.matches(0, &payload[..LEAF - 1]));
        assert!(!leaves.matches(3, &payload[3 * LEAF..payload.len() - 1]));
        assert!(!leaves.matches(4, &[0]));
        assert!(leaves.matches(9, &[]));
    }

    #[test]
    fn seeds_make_different_digests() {
        let mut one = LeafDigests::new(1, 10);
        one.update(b"payload");
        let other = LeafDigests {
            seed: 2,
            ..one.clone()
        };
        assert!(one.matches(0, b"payload") && !other.matches(0, b"payload"));
    }
}
