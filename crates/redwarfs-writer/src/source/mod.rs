//! The source of entries, and the sources that the crate provides.

use std::fmt::Debug;
use std::io;

use self::extended::ExtendedAttributes;
use crate::base::BaseContent;
pub use redwarfs_format::metadata::{FileType, Timestamp};
use redwarfs_io::spill::{Record, number};

pub(crate) mod declared;
pub(crate) mod directory;
pub(crate) mod extended;
pub(crate) mod list;
pub(crate) mod memory;
pub(crate) mod timed;

/// Attributes of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Meta {
    /// Type.
    pub kind: FileType,
    /// Permission bits, `07777`; other bits are ignored.
    pub permissions: u32,
    /// Owner.
    pub uid: u32,
    /// Group.
    pub gid: u32,
    /// Device number of devices, in the encoding of the host.
    pub rdev: u64,
    /// Size of a regular file.
    pub size: u64,
    /// Bytes allocated for a regular file; less than `size` hints at holes.
    pub allocated: u64,
    /// Link count. Only regular files with more than one link are looked up by `identity`.
    pub nlink: u64,
    /// Identity of the inode: device and inode number.
    pub identity: (u64, u64),
    /// Access time.
    pub atime: Timestamp,
    /// Modification time.
    pub mtime: Timestamp,
    /// Change time.
    pub ctime: Timestamp,
    /// Target of a symlink.
    pub target: Option<Vec<u8>>,
    /// Extended attributes, birth time and flags.
    pub extended: ExtendedAttributes,
}

/// A time in 12 bytes, without the padding of a [`Timestamp`].
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PackedTime([u32; 3]);

impl PackedTime {
    /// Packs a time.
    #[must_use]
    pub fn of(time: Timestamp) -> Self {
        let sec = time.sec.cast_unsigned();
        Self([(sec >> 32) as u32, sec as u32, time.nsec])
    }

    /// The time.
    #[must_use]
    pub fn get(self) -> Timestamp {
        let [high, low, nsec] = self.0;
        let sec = (u64::from(high) << 32) | u64::from(low);
        Timestamp {
            sec: sec.cast_signed(),
            nsec,
        }
    }
}

impl Record for PackedTime {
    const SIZE: usize = 12;

    fn write(&self, out: &mut Vec<u8>) {
        self.0.iter().for_each(|part| part.write(out));
    }

    fn read(mut bytes: &[u8]) -> Self {
        Self([(); 3].map(|()| u32::from_le_bytes(number(&mut bytes))))
    }
}

/// One entry of a directory.
#[derive(Debug)]
pub struct DirItem {
    /// Name: not empty, not `.` or `..`, without `/` and NUL.
    pub name: Vec<u8>,
    /// Attributes, or the error of reading them. In the second case the entry is left out and counted.
    pub meta: io::Result<Meta>,
}

impl DirItem {
    /// Its memory in entries of ordinary size: extended attributes count.
    pub(crate) fn weight(&self) -> usize {
        let extended = self.meta.as_ref().map_or(0, |meta| meta.extended.memory());
        1 + extended / USUAL_ITEM
    }
}

/// Memory of an entry of ordinary size in bytes, less than `memory::LISTED`.
const USUAL_ITEM: usize = 256;

/// Attributes that show that a file has changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stamp {
    /// Size in bytes.
    pub size: u64,
    /// Modification time.
    pub mtime: Timestamp,
}

/// The state of a file, as far as the system tells. On a file system that can be written to, two states with different contents
/// differ in it, unless they follow each other within the resolution of its times. Mounted images give what they have stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileIdentity {
    /// Inode number.
    pub inode: u64,
    /// Size in bytes.
    pub size: u64,
    /// Modification time.
    pub mtime: Timestamp,
    /// Change time, which no program can set on a file system that can be written to.
    pub ctime: Timestamp,
}

impl FileIdentity {
    /// Coarsest resolution of times that counts, in seconds.
    const RESOLUTION: i64 = 2;

    /// Whether a change from here on shows in the times.
    pub(crate) fn is_settled(&self) -> bool {
        let now = std::time::SystemTime::UNIX_EPOCH.elapsed();
        let now = now.map_or(0, |now| i64::try_from(now.as_secs()).unwrap_or(i64::MAX));
        let latest = self.ctime.sec.max(self.mtime.sec);
        latest.saturating_add(Self::RESOLUTION) < now
    }
}

/// A range of a file that is not a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DataExtent {
    /// First byte.
    pub offset: u64,
    /// Number of bytes, not zero.
    pub size: u64,
}

/// An opened regular file.
pub trait Content: Send {
    /// The present size and time.
    ///
    /// # Errors
    /// The error of the system.
    fn stamp(&self) -> io::Result<Stamp>;

    /// The present state, if the source can tell by it that a file has not changed. Without it, nothing about the file is
    /// kept in a checkpoint.
    ///
    /// # Errors
    /// The error of the system.
    fn identity(&self) -> io::Result<Option<FileIdentity>> {
        Ok(None)
    }

    /// Reads at most `buf.len()` bytes at `offset`; 0 only at the end of the file.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// The data at or after `offset`, before `end`: `None` if there is only a hole. The default
    /// implementation reports no holes.
    ///
    /// # Errors
    /// Whatever the system reports.
    fn next_data(&self, offset: u64, end: u64) -> io::Result<Option<DataExtent>> {
        Ok((offset < end).then(|| DataExtent {
            offset,
            size: end - offset,
        }))
    }
}

/// A tree of entries to build an image from.
///
/// Paths are relative to the root, components joined by `/`, no leading `/`; the root itself is
/// the empty path. They are bytes, not text.
pub trait Source: Send + Sync + Debug {
    /// Attributes of the root, which must be a directory.
    ///
    /// # Errors
    /// Errors here end the build.
    fn root(&self) -> io::Result<Meta>;

    /// The entries of a directory, in any order.
    ///
    /// # Errors
    /// The directory is then stored as an empty one, and counted as an error.
    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>>;

    /// Whether several directories can be listed at the same time, by
    /// [`read_dir_beside`](Source::read_dir_beside).
    fn lists_in_parallel(&self) -> bool {
        false
    }

    /// As [`read_dir`](Source::read_dir), in parallel with other listings. `more` is called before an
    /// entry is added, with the number of entries so far. If it returns false, the listing may end with
    /// [`io::ErrorKind::QuotaExceeded`]. It does not use [`most_entries`](Source::most_entries),
    /// [`activity`](Source::activity) and [`asking_about`](Source::asking_about).
    ///
    /// # Errors
    /// As [`read_dir`](Source::read_dir).
    fn read_dir_beside(
        &self,
        path: &[u8],
        _more: &dyn Fn(usize) -> bool,
    ) -> io::Result<Vec<DirItem>> {
        self.read_dir(path)
    }

    /// Bytes of memory that the source holds itself, such as a list of paths.
    fn memory(&self) -> u64 {
        0
    }

    /// A listing with more entries than this does not fit the memory: it may end with
    /// [`io::ErrorKind::QuotaExceeded`], which ends the build.
    fn most_entries(&self, _most: u64) {}

    /// Opens a regular file without following symlinks.
    ///
    /// # Errors
    /// The file is then stored as an empty one, and counted as an error.
    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Content>>;

    /// What keeps the source from telling its entries, such as an error of a file of its own. Entries that are missing for this
    /// reason are no problems of the input: the build ends with this error.
    fn failure(&self) -> Option<io::Error> {
        None
    }

    /// Whether regular files can be opened by number. The second part of [`Meta::identity`] is then this number, below 2^32. A
    /// build notes the numbers, calls [`all_listed`](Source::all_listed), and opens no file by its path.
    fn numbers_files(&self) -> bool {
        false
    }

    /// Opens a regular file by its number.
    ///
    /// # Errors
    /// As [`open`](Source::open); [`io::ErrorKind::Unsupported`] if files have no numbers.
    fn open_number(&self, _number: u32) -> io::Result<Box<dyn Content>> {
        Err(io::ErrorKind::Unsupported.into())
    }

    /// Nothing is listed or opened by its path from here on, so a source that [numbers files](Source::numbers_files) may free
    /// what it needs for that.
    fn all_listed(&self) {}

    /// Nothing is listed or opened from here on, so the source may free its memory. A build calls this before it makes
    /// metadata.
    fn no_more_reads(&self) {}

    /// The content of a regular file that the source has from the image that the build continues
    /// ([`BaseImage`](crate::BaseImage)). Such a file is not read. The size is that of the listing.
    fn stored(&self, _path: &[u8]) -> Option<BaseContent> {
        None
    }

    /// Position of a path in an explicit input list, for [`Order::None`](crate::Order::None).
    fn list_position(&self, _path: &[u8]) -> Option<u64> {
        None
    }

    /// A number that grows while a long listing makes progress.
    fn activity(&self) -> u64 {
        0
    }

    /// The entry whose attributes a listing is reading. If it does not answer,
    /// [`leave_alone`](Source::leave_alone) can be called with it, and the directory be listed again.
    fn asking_about(&self) -> Option<Vec<u8>> {
        None
    }

    /// An entry that no listing may read from here on; it gets an error.
    fn leave_alone(&self, _path: &[u8]) {}

    /// A path for messages.
    fn display_path(&self, path: &[u8]) -> String {
        format!("/{}", String::from_utf8_lossy(path))
    }
}

/// The path of an entry of a directory, relative to the root, whose path is empty.
#[must_use]
pub fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
    let mut whole = Vec::with_capacity(path.len() + name.len() + 1);
    whole.extend_from_slice(path);
    if !whole.is_empty() {
        whole.push(b'/');
    }
    whole.extend_from_slice(name);
    whole
}
