//! The description of an entry for all formats, and their result.

use std::io;

use super::fields::Fields;
use crate::error::Error;
use crate::xattrs::Xattr;

/// The type of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Directory,
    Regular,
    Symlink,
    CharDevice,
    BlockDevice,
    Fifo,
    Socket,
}

impl Kind {
    /// The type bits of a mode.
    pub(crate) fn mode(self) -> u32 {
        match self {
            Self::Directory => 0o040_000,
            Self::Regular => 0o100_000,
            Self::Symlink => 0o120_000,
            Self::CharDevice => 0o020_000,
            Self::BlockDevice => 0o060_000,
            Self::Fifo => 0o010_000,
            Self::Socket => 0o140_000,
        }
    }

    /// For messages.
    pub(crate) fn plural(self) -> &'static str {
        match self {
            Self::Directory => "directories",
            Self::Regular => "files",
            Self::Symlink => "symbolic links",
            Self::CharDevice => "character devices",
            Self::BlockDevice => "block devices",
            Self::Fifo => "fifos",
            Self::Socket => "sockets",
        }
    }
}

/// An entry of an archive.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    /// Below the image root, without a slash at either end; `.` for the root.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    /// Permissions and set-id bits.
    pub(crate) mode: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Bytes of contents, including holes; 0 for hard links and entries without contents.
    pub(crate) size: u64,
    pub(crate) mtime: (i64, u32),
    /// Access time, if the image has one.
    pub(crate) atime: Option<(i64, u32)>,
    /// Target of a symbolic link.
    pub(crate) symlink: Vec<u8>,
    /// The earlier path of the same file, in formats with such references.
    pub(crate) hard_link: Option<Vec<u8>>,
    /// In the notation of the operating system.
    pub(crate) rdev: u64,
    /// At least 1, different for each file.
    pub(crate) ino: u64,
    /// Names of this file in the archive.
    pub(crate) nlink: u32,
    /// The parts that are not holes, if there are holes.
    pub(crate) ranges: Option<Vec<(u64, u64)>>,
    /// Birth time, if the image has one.
    pub(crate) birth: Option<(i64, u32)>,
    /// File flags.
    pub(crate) flags: u32,
    pub(crate) xattrs: Vec<Xattr>,
}

#[cfg(test)]
impl Entry {
    /// An entry for tests.
    pub(crate) fn sample(kind: Kind) -> Self {
        Self {
            path: b"a/b".to_vec(),
            kind,
            mode: 0o644,
            uid: 1000,
            gid: 100,
            size: 0,
            mtime: (1_600_000_000, 0),
            atime: None,
            symlink: Vec::new(),
            hard_link: None,
            rdev: 0,
            ino: 7,
            nlink: 1,
            ranges: None,
            birth: None,
            flags: 0,
            xattrs: Vec::new(),
        }
    }
}

/// How a format treats further names of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Links {
    /// As a reference to the first one.
    Reference,
    /// By the number of the file; the last name has the contents.
    LastHasContents,
    /// By the number of the file if at all; every name has the contents.
    EachHasContents,
}

/// What a format wants to have instead of holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Holes {
    /// Nothing: the ranges of the entry say where they are.
    Left,
    /// Zeros.
    Zeros,
}

/// Why a step failed.
#[derive(Debug)]
pub(crate) enum Refusal {
    /// The format has no way to express this entry; nothing was written.
    Entry(String),
    /// The archive cannot be written any further.
    Archive(Error),
}

impl From<io::Error> for Refusal {
    fn from(e: io::Error) -> Self {
        Self::Archive(Error::Output(e))
    }
}

/// A format in the act of writing.
pub(crate) trait Sink {
    /// The name of the format, for messages.
    fn name(&self) -> &str;

    fn links(&self) -> Links;

    fn holes(&self) -> Holes;

    /// The ranges of the fields of the format. Entries that they do not hold never get to
    /// [`Self::begin`].
    fn fields(&self) -> Fields;

    /// Whether the archive has directories at all.
    fn has_directories(&self) -> bool {
        true
    }

    /// Whether directories follow their entries. Programs that unpack in one pass, such as GNU tar, set
    /// the times of a directory when they have left it, and files that come later change them.
    fn directories_last(&self) -> bool {
        false
    }

    /// Whether the root directory is an entry.
    fn has_root(&self) -> bool {
        false
    }

    /// Begins an entry; may return a warning about it.
    fn begin(&mut self, entry: &Entry) -> Result<Option<String>, Refusal>;

    /// Appends to the contents of the entry, of which exactly the announced number of bytes comes.
    fn data(&mut self, bytes: &[u8]) -> Result<(), Refusal>;

    /// Ends an entry.
    fn end(&mut self) -> Result<Option<String>, Refusal>;

    /// Completes the archive.
    fn close(&mut self) -> Result<Option<String>, Refusal>;
}
