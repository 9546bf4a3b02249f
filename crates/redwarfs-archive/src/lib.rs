//! Archives as input of a build: [`read`] makes an [`ArchiveSource`] of archives, which
//! `redwarfs_writer::Builder` takes like a directory.
//!
//! An archive is read once, from front to back, so it may be a pipe. Contents that cannot be read again
//! are copied to a temporary file, in compressed pieces, and the build reads them from there. The
//! contents of an uncompressed archive that is a regular file stay where they are.
//!
//! | module | what it does |
//! |---|---|
//! | `stream` | bytes of an archive, with a look ahead; skips in regular files |
//! | `detect` | formats, recognised by the first bytes |
//! | `decompress` | gzip, bzip2, xz, LZMA, lzip, zstd, LZ4 |
//! | `tar`, `cpio`, `ar`, `rpm` | from bytes to members: attributes and data |
//! | `image` | container images: which layers they have |
//! | `library` | the same by libarchive, in another process, for other formats |
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
//! | a path of more than 64 KiB, or more than 255 bytes between two `/` | left out, as a problem |
//! | a symlink without a target | left out, as a problem |
//! | extended attributes whose names have more than 64 KiB together | those that fit; the rest is a problem |
//! | a name for the second time | the last entry counts; a directory keeps its contents if a directory follows |
//! | an entry below a symlink, or below a file | left out, as a problem |
//! | a hard link to a later entry | resolved at the end of the archive |
//! | a hard link to an entry that does not exist | left out, as a problem |
//! | no entry for a directory above an entry | mode 0755, owner and group 0, the latest time in the archives |
//! | owner and group | by number; names are ignored |
//! | users and groups in access control lists | by number; names without a number by [`Accounts`] |
//! | access and change time | if the archive has none, the modification time |
//! | names in any encoding | kept as bytes |
//! | more after the end mark | ignored, with a warning that says how many bytes |
//!
//! # Problems
//!
//! A problem with one entry is logged as an error and counted in `Counters::errors`, and the build
//! continues. An archive that is truncated or damaged is an [`Error`], and there is no image.

mod accounts;
mod acl;
mod ar;
mod cpio;
mod decompress;
mod detect;
mod error;
mod finished;
mod image;
mod inode;
mod library;
mod member;
mod read;
mod rpm;
mod source;
mod store;
mod stream;
mod tar;
mod tree;

use std::ffi::OsString;
use std::io::Read;
use std::path::PathBuf;
use std::sync::atomic::AtomicBool;

use redwarfs_writer::Progress;

pub use accounts::{Account, Accounts};
pub use detect::is_archive;
pub use error::{ArchivePosition, Error, Result};
pub use library::serve;
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
    /// ar: the members. A Debian package has three of them.
    Ar,
    /// A Debian package: the files that it installs.
    Deb,
    /// An RPM package: the files that it installs.
    Rpm,
    /// A container image with its layers, as `docker save` and `podman save` write it, or an OCI layout in a
    /// tar archive: the files of the layers. This is never guessed. Use it with [`Whiteouts::Apply`].
    Oci,
    /// A format that libarchive reads.
    Library(LibraryFormat),
}

/// A format that only libarchive reads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum LibraryFormat {
    /// zip.
    Zip,
    /// 7-Zip.
    SevenZip,
    /// ISO 9660, with Rock Ridge or Joliet.
    Iso,
    /// A list of files of this machine, with their attributes. The paths start at the working directory,
    /// and `contents=` can name any file, so this format is never guessed.
    Mtree,
    /// xar.
    Xar,
    /// Cabinet.
    Cab,
    /// LHA.
    Lha,
    /// RAR.
    Rar,
    /// WARC.
    Warc,
}

impl LibraryFormat {
    /// All formats.
    pub const ALL: [Self; 9] = [
        Self::Zip,
        Self::SevenZip,
        Self::Iso,
        Self::Mtree,
        Self::Xar,
        Self::Cab,
        Self::Lha,
        Self::Rar,
        Self::Warc,
    ];

    /// The usual name.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Zip => "zip",
            Self::SevenZip => "7z",
            Self::Iso => "iso",
            Self::Mtree => "mtree",
            Self::Xar => "xar",
            Self::Cab => "cab",
            Self::Lha => "lha",
            Self::Rar => "rar",
            Self::Warc => "warc",
        }
    }
}

/// How to start a process that calls [`serve`]. A crash of libarchive then ends this process only.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LibraryProcess {
    /// The program.
    pub program: PathBuf,
    /// Its name for itself.
    pub name: OsString,
    /// Its arguments. Names of formats follow them.
    pub arguments: Vec<OsString>,
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
    /// `trusted.overlay.opaque` of directories. An entry of the same layer counts more than its whiteout; a
    /// directory becomes opaque then.
    Overlay,
}

/// How archives are read.
#[derive(Debug, Clone)]
pub struct ArchiveOptions {
    /// The format of all archives.
    pub format: Format,
    /// Treatment of whiteouts.
    pub whiteouts: Whiteouts,
    /// Directory of the temporary files for contents and entries.
    pub spool: PathBuf,
    /// Most memory for entries, in bytes. When they have been read, they wait in a temporary file if they take more than a 16th
    /// of it. They stay in memory, and a message says so, if there can be no file, or if files in `spool` are in memory
    /// themselves.
    pub memory_limit: Option<u64>,
    /// Numbers of users and groups that access control lists have only by name.
    pub accounts: Accounts,
    /// A process for libarchive; without one, the library runs in a thread of this process.
    pub library: Option<LibraryProcess>,
}

impl Default for ArchiveOptions {
    fn default() -> Self {
        Self {
            format: Format::Auto,
            whiteouts: Whiteouts::Keep,
            spool: std::env::temp_dir(),
            memory_limit: None,
            accounts: Accounts::default(),
            library: None,
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
    read::read(archives, None, options, progress, stop)
}

/// Reads one archive from a stream. `name` is its name in messages and errors.
///
/// # Errors
/// As [`read`].
pub fn read_stream(
    stream: impl Read,
    name: impl Into<PathBuf>,
    options: &ArchiveOptions,
    progress: &dyn Progress,
    stop: &AtomicBool,
) -> Result<ArchiveSource> {
    let archive = Archive {
        path: name.into(),
        name: None,
    };
    let given = Some(Box::new(stream) as Box<dyn Read + '_>);
    read::read(&[archive], given, options, progress, stop)
}
