//! What a format says about an entry, before the rules for names apply.

use redwarfs_writer::{DataExtent, ExtendedAttributes, Timestamp};

use crate::error::Fault;

/// Type of a member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) enum Kind {
    #[default]
    Regular,
    Directory,
    Symlink(Vec<u8>),
    /// Another name of the entry with this path.
    HardLink(Vec<u8>),
    CharDevice(u64),
    BlockDevice(u64),
    Fifo,
    Socket,
}

/// One member of an archive.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Member {
    /// As it is in the archive.
    pub(crate) path: Vec<u8>,
    pub(crate) kind: Kind,
    /// Permission bits, `07777`.
    pub(crate) permissions: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    /// Bytes of a regular file, holes included. `None` if only the end of the data tells.
    pub(crate) size: Option<u64>,
    pub(crate) mtime: Timestamp,
    pub(crate) atime: Option<Timestamp>,
    pub(crate) ctime: Option<Timestamp>,
    /// Data in a sparse file: ascending, not empty, not overlapping.
    pub(crate) map: Option<Vec<DataExtent>>,
    /// Inode of a format that repeats the attributes for each name of a file.
    pub(crate) inode: Option<(u64, u64)>,
    /// Extended attributes, birth time and flags.
    pub(crate) extended: ExtendedAttributes,
    /// Why the entry cannot be stored.
    pub(crate) refused: Option<&'static str>,
    /// What is odd about an entry that is stored.
    pub(crate) remark: Option<String>,
}

/// Most bytes of the names of all attributes of a member, each with an end: as many as Linux lists.
const MOST_NAMES: usize = 64 << 10;

/// Sets extended attributes while their names are not too many.
#[derive(Debug, Default)]
pub(crate) struct AttributeNames(usize);

impl AttributeNames {
    /// Sets an attribute, or counts it as one that cannot be read: it has no value, or too many come
    /// before it. Of the latter the first is named, and the list stands for the others.
    pub(crate) fn set(&mut self, all: &mut ExtendedAttributes, name: &[u8], value: Option<&[u8]>) {
        let had = self.0;
        self.0 = had.saturating_add(name.len() + 1);
        match value {
            _ if had > MOST_NAMES => {}
            _ if self.0 > MOST_NAMES => {
                all.add_unreadable(name.get(..255.min(name.len())).unwrap_or_default());
                all.add_unreadable(Vec::new());
            }
            Some(value) => all.set(name, value),
            None => all.add_unreadable(name),
        }
    }
}

/// The members of an archive, one after the other.
pub(crate) trait Members {
    /// The next member. Data of the previous one that was not taken is skipped.
    fn next(&mut self) -> Result<Option<Member>, Fault>;

    /// The next bytes of the current member: their offset in the file, and how many they are.
    fn data(&mut self, buf: &mut [u8]) -> Result<Option<(u64, usize)>, Fault>;

    /// Where the data of the current member is in the archive: offset in the file, number of bytes,
    /// offset in the archive. `None` if it must be copied.
    fn in_place(&self) -> Option<Vec<Part>>;

    /// Reads what follows the last member. Returns how many bytes it has, without padding.
    fn finish(&mut self) -> Result<u64, Fault>;

    /// Whether the archive says where it ends, once the last member has been read.
    fn is_marked(&self) -> bool {
        true
    }

    /// Offset in the decompressed archive.
    fn position(&self) -> u64;

    /// Bytes of data of the current member that are still to come, if that is known.
    fn left(&self) -> u64;
}

/// A piece of the data of a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Part {
    /// First byte in the file.
    pub(crate) offset: u64,
    /// Number of bytes, not zero.
    pub(crate) size: u64,
    /// First byte in the store.
    pub(crate) at: u64,
}
