//! A set of inodes that several threads change.

use std::sync::atomic::{AtomicU64, Ordering};

use redwarfs_format::ids::InodeNo;

/// One bit for each inode.
#[derive(Debug)]
pub(crate) struct Bits(Vec<AtomicU64>);

impl Bits {
    /// An empty set for `count` inodes.
    pub(crate) fn new(count: u32) -> Self {
        let words = count.div_ceil(64);
        Self((0..words).map(|_| AtomicU64::new(0)).collect())
    }

    fn place(&self, inode: InodeNo) -> Option<(&AtomicU64, u64)> {
        let word = self.0.get(inode.index() / 64)?;
        Some((word, 1 << (inode.0 % 64)))
    }

    /// Adds an inode. Returns false if it was in the set already, or is out of range.
    pub(crate) fn insert(&self, inode: InodeNo) -> bool {
        let Some((word, bit)) = self.place(inode) else {
            return false;
        };
        // Most calls change nothing, and a plain load is cheaper.
        word.load(Ordering::Relaxed) & bit == 0 && word.fetch_or(bit, Ordering::Relaxed) & bit == 0
    }

    /// Removes an inode.
    #[cfg(any(unix, test))]
    pub(crate) fn remove(&self, inode: InodeNo) {
        if let Some((word, bit)) = self.place(inode) {
            word.fetch_and(!bit, Ordering::Relaxed);
        }
    }

    #[cfg(any(unix, test))]
    pub(crate) fn contains(&self, inode: InodeNo) -> bool {
        self.place(inode)
            .is_some_and(|(word, bit)| word.load(Ordering::Relaxed) & bit != 0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits() {
        let bits = Bits::new(65);
        for n in [0, 63, 64] {
            assert!(!bits.contains(InodeNo(n)));
            assert!(bits.insert(InodeNo(n)));
            assert!(!bits.insert(InodeNo(n)));
            assert!(bits.contains(InodeNo(n)));
        }
        bits.remove(InodeNo(63));
        assert!(bits.contains(InodeNo(64)) && !bits.contains(InodeNo(63)));
        assert!(!bits.insert(InodeNo(1 << 20)));
        assert!(!bits.contains(InodeNo(u32::MAX)));
    }
}
