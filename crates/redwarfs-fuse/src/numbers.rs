//! Inode numbers that programs see.
//!
//! Node ids, which the kernel sees, have the number of the slot in their upper bits. A program for a 32-bit system without
//! large file support fails with `EOVERFLOW` if a number needs more than 32 bits. So the numbers for programs are smaller:
//!
//! - With an image at the root, its numbers are its node ids, from 1 on.
//! - An image in a slot has a range of 2²² numbers. Ranges depend on the slot alone, not on which images were opened before.
//!   Images with more inodes, and those in slots for which no range is left, have their node ids as numbers, but their roots
//!   have small ones as long as ranges are left.
//! - The layers of a union have their numbers one behind the other. A directory has the number of its uppermost part.

use redwarfs_format::ids::InodeNo;

use crate::slots::{ROOT, SlotNo};

/// Bits of a number within a range.
const RANGE_BITS: u32 = 22;
/// Ranges below 2³². The last one is for directories of no image.
const RANGES: u64 = 1 << (32 - RANGE_BITS);
/// The number of the directory of snapshots.
pub(crate) const SNAPSHOTS: u64 = u32::MAX as u64;

/// The inode numbers of an image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Numbering {
    /// That of inode 0, which is the root.
    root: u64,
    /// Inode `n` has the number `first` + `n`.
    first: u64,
}

impl Numbering {
    /// For an image that is alone, and for a layer of a union: `before` is the number of inodes of the layers above.
    pub(crate) fn behind(before: u64) -> Self {
        Self {
            root: ROOT + before,
            first: ROOT + before,
        }
    }

    /// The number of an inode.
    pub(crate) fn of(self, inode: InodeNo) -> u64 {
        match inode.0 {
            0 => self.root,
            other => self.first + u64::from(other),
        }
    }
}

/// The ranges of the slots of a mount.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ranges {
    /// Those that the image at the root takes, without the first one.
    taken: u64,
}

impl Ranges {
    /// Beside an image at the root, which has so many inodes.
    pub(crate) fn beside(inodes: u32) -> Self {
        Self {
            taken: u64::from(inodes) >> RANGE_BITS,
        }
    }

    fn range(self, slot: SlotNo) -> Option<u64> {
        let index = self.taken + u64::from(slot.0);
        (index < RANGES - 1).then_some(index << RANGE_BITS)
    }

    /// The number of the root of the image of a slot.
    pub(crate) fn root(self, slot: SlotNo) -> u64 {
        self.range(slot).unwrap_or(slot.first_node()) + ROOT
    }

    /// The numbers of the image of a slot.
    pub(crate) fn numbering(self, slot: SlotNo, inodes: u32) -> Numbering {
        let range = self.range(slot).filter(|_| inodes < 1 << RANGE_BITS);
        Numbering {
            root: self.root(slot),
            first: range.unwrap_or(slot.first_node()) + ROOT,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LARGEST: u32 = (1 << RANGE_BITS) - 1;

    #[test]
    fn ranges_are_apart_and_small() {
        let mut last = 0;
        for slot in (1..1023).map(SlotNo) {
            let numbering = Ranges::default().numbering(slot, LARGEST);
            let (first, end) = (numbering.of(InodeNo(0)), numbering.of(InodeNo(LARGEST - 1)));
            assert_eq!(first, Ranges::default().root(slot));
            assert_eq!(end - first, u64::from(LARGEST) - 1);
            assert!(first > last, "{slot:?}");
            last = end;
        }
        assert!(last < SNAPSHOTS);
    }

    #[test]
    fn large_images_and_late_slots_have_large_numbers() {
        let ranges = Ranges::default();
        let large = ranges.numbering(SlotNo(3), LARGEST + 1);
        assert_eq!(large.of(InodeNo(0)), ranges.root(SlotNo(3)));
        assert_eq!(large.of(InodeNo(7)), SlotNo(3).first_node() + 8);
        let late = ranges.numbering(SlotNo(1023), 10);
        assert_eq!(late.of(InodeNo(0)), SlotNo(1023).first_node() + 1);
        assert_eq!(late.of(InodeNo(7)), SlotNo(1023).first_node() + 8);
    }

    #[test]
    fn the_image_at_the_root_keeps_its_numbers() {
        for inodes in [1, LARGEST, LARGEST + 1, 10 * LARGEST, u32::MAX] {
            let last = Numbering::behind(0).of(InodeNo(inodes - 1));
            assert_eq!(last, u64::from(inodes));
            assert!(Ranges::beside(inodes).root(SlotNo(1)) > last);
        }
    }
}
