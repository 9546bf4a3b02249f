//! The attributes that a mount shows, whatever the system it is for.

use redwarfs_format::Result;
use redwarfs_format::ids::{EntryIndex, InodeNo};
use redwarfs_format::metadata::{MetadataView, Stat};

use crate::options::MountOptions;

/// Number of an inode in a mount: the root of a FUSE mount is always 1.
pub(crate) fn node_id(inode: InodeNo) -> u64 {
    u64::from(inode.0) + 1
}

/// The changes of a mount to the attributes of the image.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Policy {
    uid: Option<u32>,
    gid: Option<u32>,
    mode_mask: u32,
    /// Preferred size of reads, which not all systems ask for.
    #[cfg_attr(not(unix), allow(dead_code))]
    pub(crate) block_size: u32,
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

    /// Owner and group of a directory that is of no image.
    #[cfg(unix)]
    pub(crate) fn owner(&self, uid: u32, gid: u32) -> (u32, u32) {
        (self.uid.unwrap_or(uid), self.gid.unwrap_or(gid))
    }

    pub(crate) fn mode(&self, stat: &Stat) -> u32 {
        stat.mode & self.mode_mask
    }
}

/// The attributes of an inode under one of its names, if it has one. In images of format 2.2 and older,
/// names that share an inode can have different attributes.
///
/// # Errors
/// The metadata is corrupt.
pub(crate) fn stat_of_name(
    meta: &MetadataView,
    inode: InodeNo,
    name: Option<EntryIndex>,
) -> Result<Stat> {
    match name.filter(|_| meta.is_legacy()) {
        None => meta.stat(inode),
        Some(entry) => meta.entry_stat(entry),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ids() {
        assert_eq!(node_id(InodeNo(0)), 1);
        assert_eq!(node_id(InodeNo(u32::MAX)), 1 << 32);
    }
}
