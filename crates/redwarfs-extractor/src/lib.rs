//! Extracts an image to a directory tree or an archive.
//!
//! ```
//! use redwarfs_extractor::{ExtractOptions, Silent, TarFormat, extract_to_archive, extract_to_directory};
//! use redwarfs_reader::{Image, OpenOptions};
//!
//! let path = "../../tests/fixtures/compat/compat-v0.9.10.dwarfs";
//! let image = Image::open(path, &OpenOptions::default())?;
//! let mut options = ExtractOptions::default();
//! options.skip_devices = true;
//! options.skip_specials = true;
//! # options.skip_symlinks = cfg!(windows);
//!
//! # let dir = tempfile::tempdir()?;
//! # let target = dir.path();
//! let on_disk = extract_to_directory(&image, target, &options, &Silent)?;
//!
//! let mut tar = Vec::new();
//! let in_tar = extract_to_archive(&image, &mut tar, &TarFormat::Pax.into(), &options, &Silent)?;
//! assert_eq!(on_disk.files, in_tar.files);
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! [`extract_to_directory`] decodes each needed block once, for any distribution of the files. It sorts
//! the chunks of all files by block. While a block is in memory, its bytes go to all files that need
//! them. If only the first part of a block is needed and its codec can stop there, the extractor
//! decodes up to the end of that part. It still verifies the checksum of the whole payload. Images of
//! formats 2.0 and 2.1 have no checksums, so their blocks are decoded to the end.
//!
//! Memory of [`extract_to_directory`]:
//!
//! | for each | bytes |
//! |---|---|
//! | block, file | 16 |
//! | directory | 17 |
//! | additional hard link, distinct content | 12 |
//! | chunk, at most 4 Mi of them at a time | 16 |
//! | decoded block: [`ExtractOptions::threads`] and one for every two writers, within [`ExtractOptions::memory`] | its size |
//!
//! Images with more chunks are extracted in windows of consecutive blocks. Each window needs another
//! pass over the chunk table. One decoded block is always allowed.
//!
//! The extractor creates nothing outside the target directory and follows no symbolic link below it. It
//! checks names, and opens every directory relative to the target without resolution of links.
//!
//! [`extract_to_archive`] streams an archive in the order of the data in the image, in many formats.
//! [`extract_file`] copies the contents of one file.

mod archive;
mod create;
mod directory;
mod error;
mod files;
mod flags;
mod libarchive;
mod losses;
mod os;
mod pipeline;
mod single;
mod subtrees;
mod tree;
mod unset;
mod xattrs;

pub use archive::{ArchiveSpec, TarFormat, extract_to_archive};
pub use directory::extract_to_directory;
pub use error::{Error, Result, display_path};
pub use libarchive::{ArchiveProcess, serve as serve_archive_process};
pub use losses::is_of_entry;
pub use single::extract_file;
pub use xattrs::XattrSelection;

use std::fmt;
use std::num::NonZeroUsize;
use std::sync::Arc;

use redwarfs_format::metadata::FileType;
use redwarfs_reader::CpuSet;

/// Name and version of the libarchive for formats and filters; `None` if there is none.
#[must_use]
pub fn libarchive_version() -> Option<String> {
    libarchive::version().ok()
}

/// Selects entries.
#[derive(Clone)]
pub struct Selection(Arc<Judge>);

type Judge = dyn Fn(&[u8], FileType) -> bool + Send + Sync;

impl Selection {
    /// `wanted` gets the path below the root, without a leading slash, and the type of every entry
    /// except the root. It returns whether to extract the entry. Parent directories of selected entries
    /// are also extracted, with their attributes. `wanted` need only accept other directories.
    pub fn new(wanted: impl Fn(&[u8], FileType) -> bool + Send + Sync + 'static) -> Self {
        Self(Arc::new(wanted))
    }

    fn wants(&self, path: &[u8], kind: FileType) -> bool {
        (self.0)(path, kind)
    }
}

impl fmt::Debug for Selection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Selection")
    }
}

/// Largest default number of writing threads. More threads would only wait for each other.
const MAX_WRITERS: usize = 32;

/// Options of an extraction.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct ExtractOptions {
    /// Threads that decode blocks; at least one runs.
    pub threads: usize,
    /// Threads that write files to disk; 0 lets the library choose.
    pub writers: usize,
    /// CPUs for the threads that decode blocks.
    pub decoder_cpus: Option<CpuSet>,
    /// CPUs for the threads that write files to disk.
    pub writer_cpus: Option<CpuSet>,
    /// Upper bound for decoded blocks in memory, in bytes; one block is always allowed.
    pub memory: u64,
    /// Leave out character and block devices.
    pub skip_devices: bool,
    /// Leave out FIFOs and sockets.
    pub skip_specials: bool,
    /// Leave out symbolic links.
    pub skip_symlinks: bool,
    /// Leave out all names of a file except the first one.
    pub skip_hard_links: bool,
    /// Continue after an entry whose contents cannot be read, or that cannot be written for a reason
    /// such as its name. On disk such a file is removed; see [`extract_to_archive`] for archives.
    pub continue_on_error: bool,
    /// The selection; `None` is everything.
    pub select: Option<Selection>,
    /// The extended attributes to restore; by default all of the image.
    pub xattrs: XattrSelection,
    /// Restore file flags, such as immutable. They are set when everything else is done. By default true.
    pub file_flags: bool,
    /// The command for the separate process of libarchive, which calls [`serve_archive_process`]. A
    /// crash of the library is then an error. Without a separate process, it also ends this process.
    pub archive_process: Option<ArchiveProcess>,
}

impl Default for ExtractOptions {
    fn default() -> Self {
        Self {
            threads: 4,
            writers: 0,
            decoder_cpus: None,
            writer_cpus: None,
            memory: 512 << 20,
            skip_devices: false,
            skip_specials: false,
            skip_symlinks: false,
            skip_hard_links: false,
            continue_on_error: false,
            select: None,
            xattrs: XattrSelection::all(),
            file_flags: true,
            archive_process: None,
        }
    }
}

impl ExtractOptions {
    /// Whether entries of a type are left out on request.
    fn skips(&self, kind: FileType) -> bool {
        match kind {
            FileType::CharDevice | FileType::BlockDevice => self.skip_devices,
            FileType::Fifo | FileType::Socket => self.skip_specials,
            FileType::Symlink => self.skip_symlinks,
            _ => false,
        }
    }

    /// The number of writer threads to use.
    fn writer_threads(&self) -> usize {
        if self.writers > 0 {
            return self.writers.min(MAX_WRITERS);
        }
        std::thread::available_parallelism()
            .map_or(1, NonZeroUsize::get)
            .min(4)
    }

    /// The number of decoder threads to use.
    fn decoder_threads(&self) -> usize {
        self.threads.clamp(1, 256)
    }
}

/// The result of an extraction.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ExtractSummary {
    /// Directories, without the root.
    pub directories: u64,
    /// Regular files, without additional hard links.
    pub files: u64,
    /// Additional names of files that are links.
    pub hard_links: u64,
    /// Additional names of files that are copies, because the target could not link them.
    pub copies: u64,
    /// Symbolic links.
    pub symlinks: u64,
    /// Devices, FIFOs and sockets.
    pub specials: u64,
    /// Devices, FIFOs, sockets and links that were left out on request.
    pub skipped: u64,
    /// Bytes of file contents, including holes.
    pub bytes: u64,
    /// Names that were left out because they cannot be read, or because the target or the archive cannot
    /// hold them.
    pub damaged: u64,
    /// Entries that lack their owner, mode, times, birth times, extended attributes or file flags, because the
    /// user may not set them or the target cannot hold them; an entry counts for each. For archives, entries
    /// whose extended attributes or file flags the format cannot hold.
    pub unset: u64,
    /// Names, other than of directories, that were selected (all of them without a selection).
    pub matched: u64,
    /// Blocks decoded by an extraction to a directory. Each needed block counts once.
    pub blocks: u64,
    /// Decoded bytes of these blocks: each block from its start to about the end of its needed part.
    pub block_bytes: u64,
    /// Largest number of bytes of decoded blocks in memory, in an extraction to a directory.
    pub peak_block_bytes: u64,
}

/// Gets the events of a running extraction. It is called from several threads.
pub trait Progress: Send + Sync {
    /// The number of names to extract, without directories. Called once.
    fn found(&self, names: u64) {
        let _ = names;
    }

    /// A regular file is extracted. `path` builds its path, which takes time.
    fn file(&self, path: &dyn Fn() -> String, size: u64) {
        let _ = (path, size);
    }

    /// The number of bytes of file contents that will be written; called once, before any content.
    fn total(&self, bytes: u64) {
        let _ = bytes;
    }

    /// This many further bytes are done.
    fn advance(&self, bytes: u64) {
        let _ = bytes;
    }

    /// A result differs from the image, but the extraction continues.
    fn warn(&self, message: &str) {
        let _ = message;
    }

    /// With [`ExtractOptions::continue_on_error`]: the file at `path` cannot be read. `cause` may have
    /// several errors, and ends with the result for the file.
    fn damaged(&self, path: &str, cause: &str) {
        let _ = (path, cause);
    }

    /// With [`ExtractOptions::continue_on_error`]: the entry at `path` is not extracted, because the
    /// target or the format of the archive cannot hold it. The loss of a directory includes everything
    /// below it.
    fn left_out(&self, path: &str, reason: &str) {
        let _ = (path, reason);
    }

    /// With [`ExtractOptions::continue_on_error`]: an entry was extracted, but an attribute could not
    /// be set, although the file system has this kind of attribute.
    fn incomplete(&self, message: &str) {
        let _ = message;
    }
}

/// A [`Progress`] that ignores all events.
#[derive(Debug, Clone, Copy, Default)]
pub struct Silent;

impl Progress for Silent {}
