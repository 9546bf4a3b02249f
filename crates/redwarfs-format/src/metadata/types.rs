//! Types that the view returns.

use crate::ids::{BlockNo, InodeNo};

/// Type of an inode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FileType {
    /// Directory.
    Directory,
    /// Symbolic link.
    Symlink,
    /// Regular file.
    Regular,
    /// Character device.
    CharDevice,
    /// Block device.
    BlockDevice,
    /// Named pipe.
    Fifo,
    /// Socket.
    Socket,
}

impl FileType {
    /// The bits of `st_mode` that hold the type.
    pub const MASK: u32 = 0o170_000;

    /// The type in a mode, if it is a known one.
    #[must_use]
    pub fn from_mode(mode: u32) -> Option<Self> {
        Some(match mode & Self::MASK {
            0o040_000 => Self::Directory,
            0o120_000 => Self::Symlink,
            0o100_000 => Self::Regular,
            0o020_000 => Self::CharDevice,
            0o060_000 => Self::BlockDevice,
            0o010_000 => Self::Fifo,
            0o140_000 => Self::Socket,
            _ => return None,
        })
    }

    /// The type as bits of a mode.
    #[must_use]
    pub fn mode_bits(self) -> u32 {
        match self {
            Self::Directory => 0o040_000,
            Self::Symlink => 0o120_000,
            Self::Regular => 0o100_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
        }
    }

    /// Position of the type in the order of inode numbers, 0 to 4.
    #[must_use]
    pub fn rank(self) -> u8 {
        match self {
            Self::Directory => 0,
            Self::Symlink => 1,
            Self::Regular => 2,
            Self::CharDevice | Self::BlockDevice => 3,
            Self::Fifo | Self::Socket => 4,
        }
    }
}

/// A point in time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    /// Seconds since 1970, negative before.
    pub sec: i64,
    /// Nanoseconds after `sec`, below 10^9.
    pub nsec: u32,
}

/// Attributes of an inode (format chapter 04, section 9.5).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Inode number as in the image: the root is 0.
    pub ino: InodeNo,
    /// Type and permissions.
    pub mode: u32,
    /// Link count; 1 for everything but regular files.
    pub nlink: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number for devices, in the encoding of the system that wrote the image; else 0.
    pub rdev: u64,
    /// Bytes of a regular file or symlink target, number of entries of a directory, else 0.
    pub size: u64,
    /// `size` without holes.
    pub allocated: u64,
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Change time.
    pub ctime: Timestamp,
}

/// Mode, owner and times of a name, to be compared with those of another.
///
/// In images of format 2.2 and older, files with equal contents have one inode number, linked or not,
/// but each name has its own attributes (format chapter 05, section 4.3). Names of one inode number
/// with equal attributes count as links of one file, and all others as separate files.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Attributes {
    mode: u32,
    uid: u32,
    gid: u32,
    times: [(i64, u32); 3],
}

impl Stat {
    /// `st_blocks`: allocated size in units of 512 bytes.
    #[must_use]
    pub fn blocks(&self) -> u64 {
        self.allocated.div_ceil(512)
    }

    /// What tells names of one inode number apart in images of format 2.2 and older.
    #[must_use]
    pub fn attributes(&self) -> Attributes {
        let time = |time: Timestamp| (time.sec, time.nsec);
        Attributes {
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            times: [time(self.atime), time(self.mtime), time(self.ctime)],
        }
    }

    /// Type of the inode, `None` if the mode has an unknown one.
    #[must_use]
    pub fn file_type(&self) -> Option<FileType> {
        FileType::from_mode(self.mode)
    }
}

/// Sizes of the whole file system (section 10).
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Totals {
    /// Sizes of all regular inodes and symlink targets.
    pub size: u64,
    /// The same without holes.
    pub allocated: u64,
    /// Size that further links to inodes would take if they were copies.
    pub hardlink_size: u64,
}

/// Numbers of things in an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Counts {
    /// All inodes.
    pub inodes: u32,
    /// Directory entries, the root's included.
    pub entries: u32,
    /// Directory inodes.
    pub directories: u32,
    /// Symlink inodes.
    pub symlinks: u32,
    /// Regular inodes.
    pub files: u32,
    /// Character and block devices.
    pub devices: u32,
    /// Fifos and sockets.
    pub others: u32,
    /// First symlink inode (L).
    pub symlink_offset: u32,
    /// First regular inode (R).
    pub file_offset: u32,
    /// First device inode (D).
    pub device_offset: u32,
    /// First fifo or socket inode (O).
    pub other_offset: u32,
    /// Chunks.
    pub chunks: u32,
    /// Distinct file contents.
    pub contents: u32,
    /// Regular inodes whose content belongs to them alone.
    pub unique_files: u32,
    /// Regular inodes that share their content with others.
    pub shared_files: u32,
    /// Strings in the name table.
    pub names: u32,
    /// Strings in the table of symlink targets.
    pub symlink_targets: u32,
    /// Different owners.
    pub uids: u32,
    /// Different groups.
    pub gids: u32,
    /// Different modes.
    pub modes: u32,
}

/// A piece of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extent {
    /// Bytes of a block.
    Data {
        /// The block.
        block: BlockNo,
        /// First byte in the uncompressed block.
        offset: u32,
        /// Number of bytes.
        size: u32,
    },
    /// Zeros that are stored nowhere.
    Hole {
        /// Number of bytes, below 2^63.
        size: u64,
    },
}

impl Extent {
    /// Number of bytes of the file that the extent covers.
    #[must_use]
    pub fn size(&self) -> u64 {
        match *self {
            Self::Data { size, .. } => u64::from(size),
            Self::Hole { size } => size,
        }
    }
}

/// A mode in the notation of listings: `U`, `G`, `S` for the set-id and sticky bits or `-`, the
/// letter of the type, nine permission letters. 13 characters.
#[must_use]
pub fn mode_string(mode: u32) -> String {
    let mut text = String::with_capacity(13);
    for (bit, letter) in [(0o4000, 'U'), (0o2000, 'G'), (0o1000, 'S')] {
        text.push(if mode & bit != 0 { letter } else { '-' });
    }
    text.push(match mode & 0o170_000 {
        0o040_000 => 'd',
        0o120_000 => 'l',
        0o060_000 => 'b',
        0o020_000 => 'c',
        0o010_000 => 'p',
        0o140_000 => 's',
        _ => '-',
    });
    for shift in [6, 3, 0] {
        for (bit, letter) in [(4, 'r'), (2, 'w'), (1, 'x')] {
            text.push(if mode >> shift & bit != 0 {
                letter
            } else {
                '-'
            });
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn modes_out() {
        let cases = [
            (0o100_644, "----rw-r--r--"),
            (0o040_755, "---drwxr-xr-x"),
            (0o120_777, "---lrwxrwxrwx"),
            (0o107_777, "UGS-rwxrwxrwx"),
            (0o010_600, "---prw-------"),
        ];
        for (mode, want) in cases {
            assert_eq!(mode_string(mode), want);
        }
    }
}
