//! Reading DwarFS images: open, look up, list, stat, read ranges, verify.
//!
//! [`Image`] is the whole interface. It is `Send + Sync`, all operations take `&self`, and no
//! lock is held while something is decompressed. What comes from an image is checked at opening
//! (structure) or at use (payloads), and errors name the section.
//!
//! ```no_run
//! use redwarfs_reader::{Image, OpenOptions};
//!
//! let image = Image::open("photos.dwarfs", &OpenOptions::default())?;
//! if let Some(inode) = image.find_path(b"2024/index.html")? {
//!     let mut buf = vec![0; image.stat(inode)?.size as usize];
//!     let n = image.read_at(inode, 0, &mut buf)?;
//!     buf.truncate(n);
//! }
//! # Ok::<(), redwarfs_format::Error>(())
//! ```

mod cache;
pub mod check;
mod error;
mod image;
mod options;
mod payload;
pub mod perfmon;
mod pinned;
mod preload;
mod read;
mod sections;
mod streams;
mod sys;
mod tree;
mod users;
mod whole;

pub use cache::{ActiveSetSize, CacheStats};
pub use check::{CheckOptions, CheckReport, VerifyMode};
pub use image::Image;
pub use options::{
    BlockAllocator, CacheOptions, CpuSet, ImageOffset, OpenOptions, ParseOffsetError, Preload,
    Tidy, UnknownAllocator,
};
pub use perfmon::PerfMonitor;
pub use pinned::{MAX_PARTS, PinnedRead};
pub use preload::{PreloadHandle, PreloadSummary};
pub use read::PlannedReads;
pub use redwarfs_format::{Error, Result};
pub use tree::{DirEntry, ReadDir, Walk, WalkEntry};
pub use users::BlockUsers;
pub use whole::BlockMemory;
