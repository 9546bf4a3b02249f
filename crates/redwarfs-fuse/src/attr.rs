//! From the image's attributes to those of the FUSE protocol.

use std::time::{Duration, SystemTime};

use fuser::{FileAttr, FileType, INodeNo};
use redwarfs_format::ids::InodeNo;
use redwarfs_format::metadata::{self, Stat, Timestamp};
use redwarfs_format::{Error, Result};

use crate::MountOptions;

/// Node id of an inode: the root of a FUSE mount is always 1.
pub(crate) fn node_id(inode: InodeNo) -> INodeNo {
    INodeNo(u64::from(inode.0) + 1)
}

/// The inode of a node id, if the image can have it at all.
pub(crate) fn inode_no(node: INodeNo) -> Option<InodeNo> {
    u32::try_from(node.0.checked_sub(1)?).ok().map(InodeNo)
}

/// Kind of an inode in FUSE's words.
pub(crate) fn kind(ty: metadata::FileType) -> FileType {
    match ty {
        metadata::FileType::Directory => FileType::Directory,
        metadata::FileType::Symlink => FileType::Symlink,
        metadata::FileType::Regular => FileType::RegularFile,
        metadata::FileType::CharDevice => FileType::CharDevice,
        metadata::FileType::BlockDevice => FileType::BlockDevice,
        metadata::FileType::Fifo => FileType::NamedPipe,
        metadata::FileType::Socket => FileType::Socket,
    }
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

    /// The attributes as the kernel gets them; `Corrupt` if the mode has no known type.
    pub(crate) fn attr(&self, stat: &Stat) -> Result<FileAttr> {
        let ty = stat
            .file_type()
            .ok_or_else(|| Error::corrupt(format!("file type in mode {:o}", stat.mode)))?;
        let mtime = system_time(stat.mtime);
        Ok(FileAttr {
            ino: node_id(stat.ino),
            size: stat.size,
            blocks: stat.allocated.div_ceil(512),
            atime: system_time(stat.atime),
            mtime,
            ctime: system_time(stat.ctime),
            crtime: mtime,
            kind: kind(ty),
            perm: (self.mode(stat) & 0o7777) as u16,
            nlink: stat.nlink,
            uid: self.uid(stat),
            gid: self.gid(stat),
            // The image holds the C library's device number, whose low half is the kernel's
            // 32-bit encoding (12 bits of major, 20 bits of minor).
            rdev: stat.rdev as u32,
            blksize: self.block_size,
            flags: 0,
        })
    }

    /// Attributes of nothing: an entry with node id 0 makes the kernel remember that a name does
    /// not exist.
    pub(crate) fn nothing() -> FileAttr {
        FileAttr {
            ino: INodeNo(0),
            size: 0,
            blocks: 0,
            atime: SystemTime::UNIX_EPOCH,
            mtime: SystemTime::UNIX_EPOCH,
            ctime: SystemTime::UNIX_EPOCH,
            crtime: SystemTime::UNIX_EPOCH,
            kind: FileType::RegularFile,
            perm: 0,
            nlink: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            blksize: 0,
            flags: 0,
        }
    }
}

/// Times that the system cannot express become the epoch.
fn system_time(time: Timestamp) -> SystemTime {
    let whole = Duration::from_secs(time.sec.unsigned_abs());
    let base = if time.sec < 0 {
        SystemTime::UNIX_EPOCH.checked_sub(whole)
    } else {
        SystemTime::UNIX_EPOCH.checked_add(whole)
    };
    base.and_then(|base| base.checked_add(Duration::from_nanos(u64::from(time.nsec))))
        .unwrap_or(SystemTime::UNIX_EPOCH)
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
        assert_eq!(node_id(InodeNo(0)).0, 1);
        assert_eq!(node_id(InodeNo(u32::MAX)).0, 1 << 32);
        assert_eq!(inode_no(INodeNo(1)), Some(InodeNo(0)));
        assert_eq!(inode_no(INodeNo(0)), None);
        assert_eq!(inode_no(INodeNo(u64::MAX)), None);
        assert_eq!(inode_no(INodeNo((1 << 32) + 1)), None);
    }

    #[test]
    fn times() {
        let at = |sec, nsec| system_time(Timestamp { sec, nsec });
        let epoch = SystemTime::UNIX_EPOCH;
        assert_eq!(at(0, 0), epoch);
        assert_eq!(at(5, 7), epoch + Duration::new(5, 7));
        assert_eq!(at(-1, 999_999_999), epoch - Duration::from_nanos(1));
        for sec in [i64::MIN, i64::MAX] {
            let _ = at(sec, u32::MAX);
        }
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
