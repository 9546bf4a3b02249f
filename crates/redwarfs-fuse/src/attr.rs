//! Converts the attributes of the image to those of the FUSE protocol.

use redwarfs_format::ids::InodeNo;
use redwarfs_format::metadata::Stat;

use crate::policy::{Policy, node_id};
use crate::proto::Attr;

/// The inode of a node id, if images can have it.
pub(crate) fn inode_no(node: u64) -> Option<InodeNo> {
    u32::try_from(node.checked_sub(1)?).ok().map(InodeNo)
}

impl Policy {
    /// The attributes for the kernel.
    pub(crate) fn attr(&self, stat: &Stat) -> Attr {
        Attr {
            node: node_id(stat.ino),
            number: node_id(stat.ino),
            // The kernel accepts no larger ones.
            size: stat.size.min(i64::MAX.cast_unsigned()),
            blocks: stat.blocks(),
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
            mode: self.mode(stat),
            nlink: stat.nlink,
            uid: self.uid(stat),
            gid: self.gid(stat),
            // The image holds the C library's device number, whose low half is the kernel's
            // 32-bit encoding (12 bits of major, 20 bits of minor).
            rdev: stat.rdev as u32,
            block_size: self.block_size,
        }
    }
}

/// Whether opening would succeed in the way that `access(2)` asks about, in a mount without permission
/// checks. `wanted` is the sum of 4 (read), 2 (write), 1 (execute). Every file can be read, and every
/// directory entered. A file can be executed if its mode allows that for anybody.
pub(crate) fn opens(mode: u32, wanted: u32) -> bool {
    let directory = mode & 0o170_000 == 0o040_000;
    let bits = 6 | u32::from(directory || mode & 0o111 != 0);
    wanted & 7 & !bits == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ids() {
        assert_eq!(inode_no(1), Some(InodeNo(0)));
        assert_eq!(inode_no(0), None);
        assert_eq!(inode_no(u64::MAX), None);
        assert_eq!(inode_no((1 << 32) + 1), None);
    }

    #[test]
    fn access_without_checks() {
        for mode in [0o100_000, 0o100_640, 0o100_666] {
            assert!(opens(mode, 6) && opens(mode, 0), "{mode:o}");
            assert!(!opens(mode, 1) && !opens(mode, 5), "{mode:o}");
        }
        for mode in [0o100_001, 0o100_700, 0o040_000, 0o040_700] {
            assert!(opens(mode, 7), "{mode:o}");
        }
    }
}
