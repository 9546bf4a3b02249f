//! Errors.

use std::io;
use std::path::{Path, PathBuf};

/// Why an archive cannot be read. There is no image then. What concerns a single entry is a
/// [problem](crate#problems) instead.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The file cannot be opened or read.
    #[error("{}: {source}", .path.display())]
    Read {
        /// The archive.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The archive ends too early.
    #[error("{}: truncated {}", .path.display(), .place)]
    Truncated {
        /// The archive.
        path: PathBuf,
        /// Where it ends, and which entry is incomplete.
        place: ArchivePosition,
    },
    /// The bytes are not those of a valid archive.
    #[error("{}: damaged {place}: {what}", .path.display())]
    Damaged {
        /// The archive.
        path: PathBuf,
        /// Where it is damaged.
        place: ArchivePosition,
        /// What is wrong there.
        what: String,
    },
    /// A valid archive that this program does not read.
    #[error("{}: {what}", .path.display())]
    Unsupported {
        /// The archive.
        path: PathBuf,
        /// What is not supported, and what to do.
        what: String,
    },
    /// The temporary file for contents cannot be written.
    #[error("cannot write the temporary file in {}: {source}", .directory.display())]
    Spool {
        /// Its directory.
        directory: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The entries do not fit the memory.
    #[error("the memory limit of {limit} bytes is too low for the entries of the archive")]
    Memory {
        /// The limit in bytes.
        limit: u64,
    },
    /// The stop flag was set.
    #[error("interrupted")]
    Interrupted,
}

/// A place in an archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArchivePosition {
    /// Offset in bytes, in the decompressed archive.
    pub offset: u64,
    /// The entry that the place belongs to, or the last entry before it.
    pub entry: Option<String>,
    /// Bytes of the contents of `entry` that are missing.
    pub missing: u64,
    /// Entries that were read before.
    pub entries: u64,
}

impl std::fmt::Display for ArchivePosition {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "at byte {}", self.offset)?;
        match &self.entry {
            Some(entry) if self.missing > 0 => {
                write!(f, ", {} bytes of '{entry}' are missing", self.missing)?;
            }
            Some(entry) => write!(f, ", after '{entry}'")?,
            None => {}
        }
        write!(f, ", complete entries before it: {}", self.entries)
    }
}

/// Result of reading archives.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What goes wrong inside an archive, before its name and the place are known.
#[derive(Debug)]
pub(crate) enum Fault {
    /// The system does not deliver the bytes.
    Read(io::Error),
    Truncated,
    Damaged(String),
    Unsupported(String),
    Spool(io::Error),
    Memory,
    Interrupted,
}

impl Fault {
    pub(crate) fn damaged(what: impl Into<String>) -> Self {
        Self::Damaged(what.into())
    }

    pub(crate) fn unsupported(what: impl Into<String>) -> Self {
        Self::Unsupported(what.into())
    }

    /// With the archive, and where it happened.
    pub(crate) fn at(
        self,
        path: &Path,
        place: ArchivePosition,
        options: &crate::ArchiveOptions,
    ) -> Error {
        let path = path.to_owned();
        match self {
            Self::Read(source) => Error::Read { path, source },
            Self::Truncated => Error::Truncated { path, place },
            Self::Damaged(what) => Error::Damaged { path, place, what },
            Self::Unsupported(what) => Error::Unsupported { path, what },
            Self::Spool(source) => Error::Spool {
                directory: options.spool.clone(),
                source,
            },
            Self::Memory => Error::Memory {
                limit: options.memory_limit.unwrap_or(u64::MAX),
            },
            Self::Interrupted => Error::Interrupted,
        }
    }
}
