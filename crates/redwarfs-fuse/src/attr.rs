//! From the image's attributes to those of the FUSE protocol.

use redwarfs_format::ids::InodeNo;
use redwarfs_format::metadata::Stat;

use crate::MountOptions;
use crate::proto::Attr;

/// Node id of an inode: the root of a FUSE mount is always 1.
pub(crate) fn node_id(inode: InodeNo) -> u64 {
    u64::from(inode.0) + 1
}

/// The inode of a node id, if an image can have it at all.
pub(crate) fn inode_no(node: u64) -> Option<InodeNo> {
    u32::try_from(node.checked_sub(1)?).ok().map(InodeNo)
}

/// What the mount changes in the attributes of the image.
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

    /// The attributes as the kernel gets them.
    pub(crate) fn attr(&self, stat: &Stat) -> Attr {
        Attr {
            node: node_id(stat.ino),
            // The kernel takes no larger ones.
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

/// `access(2)` from the permission bits, for mounts where the kernel does not check them. `wanted`
/// is the sum of 4 (read), 2 (write), 1 (execute).
pub(crate) fn permits(mode: u32, owner: (u32, u32), caller: (u32, u32), wanted: u32) -> bool {
    let bits = if caller.0 == 0 {
        // Root reads and writes everything, and executes what anybody may execute.
        let directory = mode & 0o170_000 == 0o040_000;
        6 | u32::from(directory || mode & 0o111 != 0)
    } else if caller.0 == owner.0 {
        mode >> 6
    } else if caller.1 == owner.1 {
        mode >> 3
    } else {
        mode
    };
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
    fn access_from_mode() {
        let file = 0o100_640;
        let table = [
            ((1, 1), 6, true),
            ((1, 1), 1, false),
            ((2, 1), 4, true),
            ((2, 1), 2, false),
            ((2, 2), 4, false),
            ((2, 2), 0, true),
            ((0, 0), 6, true),
            ((0, 0), 1, false),
        ];
        for (caller, wanted, expected) in table {
            assert_eq!(permits(file, (1, 1), caller, wanted), expected);
        }
        assert!(permits(0o040_000, (1, 1), (0, 0), 7));
    }
}
