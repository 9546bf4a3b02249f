//! Converts the attributes of the image to those of the FUSE protocol.

use redwarfs_format::ids::InodeNo;
use redwarfs_format::metadata::Stat;

use crate::options::MountOptions;
use crate::proto::Attr;

/// Node id of an inode: the root of a FUSE mount is always 1.
pub(crate) fn node_id(inode: InodeNo) -> u64 {
    u64::from(inode.0) + 1
}

/// The inode of a node id, if images can have it.
pub(crate) fn inode_no(node: u64) -> Option<InodeNo> {
    u32::try_from(node.checked_sub(1)?).ok().map(InodeNo)
}

/// The changes of a mount to the attributes of the image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    uid: Option<u32>,
    gid: Option<u32>,
    mode_mask: u32,
    block_size: u32,
}

impl Policy {
    pub(crate) fn new(options: &MountOptions) -> Self {
        Self {
            uid: options.uid,
            gid: options.gid,
            mode_mask: if options.hide_write_bits { !0o222 } else { !0 },
            block_size: options.block_size,
        }
    }

    pub(crate) fn uid(&self, stat: &Stat) -> u32 {
        self.uid.unwrap_or(stat.uid)
    }

    pub(crate) fn gid(&self, stat: &Stat) -> u32 {
        self.gid.unwrap_or(stat.gid)
    }

    pub(crate) fn mode(&self, stat: &Stat) -> u32 {
        stat.mode & self.mode_mask
    }

    /// The attributes for the kernel.
    pub(crate) fn attr(&self, stat: &Stat) -> Attr {
        Attr {
            node: node_id(stat.ino),
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
        assert_eq!(node_id(InodeNo(0)), 1);
        assert_eq!(node_id(InodeNo(u32::MAX)), 1 << 32);
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
