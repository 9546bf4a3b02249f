//! Read, build and extract DwarFS images: compressed, deduplicated, read-only file systems in one
//! file.
//!
//! [`Builder`] packs a directory into an image, [`Image`] opens an image, and [`extract`] unpacks it.
//! [`Collection`] holds entries for an image that come from a program and not from a directory.
//!
//! ```
//! use std::io::{Read, Seek, SeekFrom};
//! use redwarfs::{Builder, Image};
//!
//! # let work = tempfile::tempdir()?;
//! # let (dir, path, out) = (work.path().join("docs"), work.path().join("docs.dwarfs"), work.path().join("out"));
//! # std::fs::create_dir_all(dir.join("guide"))?;
//! # std::fs::write(dir.join("guide/start.txt"), "Begin at the beginning.")?;
//! Builder::new(&dir).level(4).write_to(&path)?;
//!
//! let image = Image::open(&path)?;
//! for entry in image.read_dir("guide")? {
//!     let entry = entry?;
//!     println!("{} {}", entry.path().display(), entry.metadata()?.size);
//! }
//!
//! let mut file = image.file("guide/start.txt")?;
//! file.seek(SeekFrom::Start(13))?;
//! let mut text = String::new();
//! file.read_to_string(&mut text)?;
//! assert_eq!(text, "beginning.");
//!
//! redwarfs::extract(&image, &out)?;
//! assert_eq!(std::fs::read(out.join("guide/start.txt"))?, b"Begin at the beginning.");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! # What you can rely on
//!
//! * The crate treats an image as untrusted input. A damaged or hostile image gives an [`Error`] and
//!   never a panic, and extraction never leaves its target directory.
//! * The reader verifies the checksum of every block before it returns a byte of it. Images of the oldest
//!   formats have no checksums, and [`OpenOptions`] can switch the check off.
//! * With [`OpenOptions::verification`](OpenOptions), a reader refuses each byte that is not what a trusted key has signed:
//!   [`verification`] understands what the tools understand, such as `signed:key.pub`.
//! * The same directory, options and version give the same image for any number of threads.
//! * An output file gets its name when it is complete. If a build fails, an existing file of that name
//!   stays unchanged. A file that cannot be replaced, such as a mount point, is overwritten when the
//!   image is complete.
//! * [`Image`] and [`File`] are `Send` and `Sync`, and cloning them is cheap.
//!
//! # Paths in an image
//!
//! A path is relative to the root of the image. The empty path and `/` are the root; leading, trailing
//! and repeated slashes do not matter. Names are bytes, as on Linux. Methods follow symbolic links as
//! `std::fs` does, but inside the image. An absolute target starts at the root of the image, and `..`
//! in the root is the root.
//!
//! # Asynchronous programs
//!
//! Reading decompresses, so it blocks for milliseconds. Run it on threads for blocking work, as
//! `examples/async_read.rs` does for tokio.
//!
//! # More control
//!
//! This crate re-exports the libraries that it builds on: [`reader`] (inodes, blocks, cache, checks),
//! [`writer`] (sources, categorizers, progress), [`extractor`] (archives), [`codec`], [`io`] and
//! [`mod@format`]. [`Image::reader`] returns the [`reader::Image`] underneath, for everything that this
//! crate does not wrap. Rewriting and mounting are in separate crates, `redwarfs-rewrite` and
//! `redwarfs-fuse`.
//!
//! # Features
//!
//! `zstd`, `lzma`, `lz4`, `brotli`, `ricepp` and `flac` are the codecs; all are on by default. `flac` builds libFLAC,
//! which needs cmake. Reading a block with a codec that is off gives [`FormatError::Unsupported`]. `libarchive` (on)
//! adds the archive formats that libarchive writes, if the library can be loaded. `signatures` (on) adds [`verification`],
//! with the keys of minisign and SSH. `remote` (off) opens images on servers by their URL.
#![forbid(unsafe_code)]

mod builder;
mod collection;
mod entry;
mod error;
mod extract;
mod file;
mod image;
mod many;
mod messages;
mod named;
mod resolve;
mod source;
#[cfg(feature = "signatures")]
mod verification;

pub use redwarfs_codec as codec;
pub use redwarfs_extractor as extractor;
pub use redwarfs_format as format;
pub use redwarfs_io as io;
pub use redwarfs_reader as reader;
#[cfg(feature = "signatures")]
pub use redwarfs_signature as signature;
pub use redwarfs_writer as writer;

pub use builder::{Builder, Built};
pub use collection::{Attributes, Collection};
pub use entry::{DirEntry, ReadDir, Walk};
pub use error::{Error, ErrorKind, Result};
pub use extract::{Extracted, extract, extract_with};
pub use file::File;
pub use image::Image;
pub use named::{OPTION_NAMES, set_option};
pub use source::open_source;
#[cfg(feature = "signatures")]
pub use verification::verification;

pub use redwarfs_extractor::{Error as ExtractError, ExtractOptions, ExtractSummary};
pub use redwarfs_format::Error as FormatError;
pub use redwarfs_format::metadata::{FileType, Stat, Timestamp};
pub use redwarfs_io::Source;
pub use redwarfs_reader::{CacheOptions, OpenOptions, SnapshotChoice, Verification, Verified};
pub use redwarfs_writer::{BuildOptions, BuildSummary, Error as BuildError};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
