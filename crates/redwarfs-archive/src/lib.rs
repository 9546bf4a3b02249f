//! Archives as input of a build: [`read`] makes an [`ArchiveSource`] of tar and cpio archives, which
//! `redwarfs_writer::Builder` takes like a directory.
//!
//! An archive is read once, from front to back, so it may be a pipe. Contents that cannot be read again
//! are copied to a temporary file, in compressed pieces, and the build reads them from there. The
//! contents of an uncompressed archive that is a regular file stay where they are.
//!
//! | module | what it does |
//! |---|---|
//! | `stream` | bytes of an archive, with a look ahead; skips in regular files |
//! | `decompress` | gzip, bzip2, xz, LZMA, lzip, zstd, LZ4 |
//! | `tar`, `cpio` | from bytes to members: attributes and data |
//! | `tree` | from members to a tree: names, duplicates, hard links, layers |
//! | `store` | the temporary file, and archives whose data stays in them |
//! | `read` | all this in a row |
//! | `source` | the tree as a source |
//!
//! # Rules
//!
//! The image is the one that a build makes from the directory to which the archives were unpacked.
//!
//! | in the archive | in the tree |
//! |---|---|
//! | `/` at the beginning of a name | removed |
//! | `..` in a name, an empty name | the entry is left out, as a [problem](#problems) |
//! | a name for the second time | the last entry counts; a directory keeps its contents if a directory follows |
//! | an entry below a symlink, or below a file | left out, as a problem |
//! | a hard link to a later entry | resolved at the end of the archive |
//! | a hard link to an entry that does not exist | left out, as a problem |
//! | no entry for a directory above an entry | mode 0755, owner and group 0, the latest time in the archives |
//! | owner and group | by number; names are ignored |
//! | access and change time | if the archive has none, the modification time |
//! | names in any encoding | kept as bytes |
//! | more after the end mark | ignored, with a warning that says how many bytes |
//!
//! # Problems
//!
//! A problem with one entry is logged as an error and counted in `Counters::errors`, and the build
//! continues. An archive that is truncated or damaged is an [`Error`], and there is no image.

mod cpio;
mod decompress;
mod error;
mod member;
mod read;
mod source;
mod store;
mod stream;
mod tar;
mod tree;

use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use redwarfs_writer::Progress;

pub use error::{Error, Place, Result};
pub use source::ArchiveSource;

/// An archive to read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Archive {
    /// The file; `-` is standard input.
    pub path: PathBuf,
    /// The directory for its entries, components joined by `/`; `None` for the root.
    pub name: Option<Vec<u8>>,
}

/// The format of archives. Compression is recognised in any case.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Format {
    /// By the first bytes.
    #[default]
    Auto,
    /// tar: v7, ustar, pax, GNU.
    Tar,
    /// cpio: newc, odc, binary.
    Cpio,
}

/// What becomes of whiteouts: entries whose names begin with `.wh.`, by which a layer of a container
/// image removes entries of the layers below.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Whiteouts {
    /// They are entries like others.
    #[default]
    Keep,
    /// They remove what the archives before have.
    Apply,
    /// They become what overlayfs takes for whiteouts: devices with the number 0, and the attribute
    /// `trusted.overlay.opaque` of directories.
    Overlay,
}

/// How archives are read.
#[derive(Debug, Clone)]
pub struct ArchiveOptions {
    /// The format of all archives.
    pub format: Format,
    /// Treatment of whiteouts.
    pub whiteouts: Whiteouts,
    /// Directory of the temporary file for contents.
    pub spool: PathBuf,
    /// Most memory for entries, in bytes.
    pub memory_limit: Option<u64>,
}

impl Default for ArchiveOptions {
    fn default() -> Self {
        Self {
            format: Format::Auto,
            whiteouts: Whiteouts::Keep,
            spool: std::env::temp_dir(),
            memory_limit: None,
        }
    }
}

/// Reads archives, one after the other. Entries of later ones take the place of entries of earlier ones
/// with the same path.
///
/// `progress` gets the phase [`Reading`](redwarfs_writer::Phase::Reading), the counters, and messages
/// about entries. `stop` ends the work soon after it is set.
///
/// # Errors
/// An archive cannot be read, is damaged or truncated, or has a format that is not known; or the
/// temporary file cannot be written.
pub fn read(
    archives: &[Archive],
    options: &ArchiveOptions,
    progress: &dyn Progress,
    stop: &AtomicBool,
) -> Result<ArchiveSource> {
    read::read(archives, options, progress, stop)
}
