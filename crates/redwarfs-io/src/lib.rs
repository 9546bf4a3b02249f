//! Positional reads with one trait for all sources, and output files that appear complete or not at
//! all.
//!
//! Only this crate touches image files. Images are read from any [`Source`]: a file, memory, a memory
//! map, or a network. They are written to an [`AtomicFile`], which gets its name when it is complete. A [`DiskCache`]
//! keeps bytes that are slow to fetch, and a [`Checkpoint`] results that are slow to compute.
//!
//! ```
//! use std::io::Write;
//! use redwarfs_io::{AtomicFile, FileSource, Overwrite, Source};
//!
//! # let dir = tempfile::tempdir()?;
//! # let path = dir.path().join("out");
//! let mut file = AtomicFile::create(&path, Overwrite::No)?;
//! file.write_all(b"all or nothing")?;
//! assert!(!path.exists());
//! file.commit()?;
//!
//! let source = FileSource::open(&path)?;
//! let mut word = [0; 7];
//! source.read_exact_at(7, &mut word)?;
//! assert_eq!(&word, b"nothing");
//! # Ok::<(), std::io::Error>(())
//! ```

mod atomic;
mod disk_cache;
mod fault;
mod in_place;
mod joined;
mod map;
mod os;
pub mod path;
pub mod place;
pub mod process;
mod source;
pub mod spill;

pub use atomic::{AtomicFile, Notice, Origin, Overwrite, is_in_memory, temporary_file};
pub use disk_cache::{CacheEntry, CacheKey, Checkpoint, DiskCache, DiskCacheStats};
pub use fault::{Fault, FaultSource};
pub use in_place::{Append, AppendWriter, LockedFile, Medium};
pub use joined::JoinedSource;
pub use map::MapSource;
pub use os::trim_heap;
pub use source::{FileSource, Line, MemorySource, Revision, Source};
