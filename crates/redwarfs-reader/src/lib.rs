//! Reads DwarFS images: opens them, finds paths, lists directories, reads ranges of files, and checks
//! images for damage.
//!
//! Everything starts from [`Image`]. It is `Send + Sync`, all operations take `&self`, and no thread
//! holds a lock while it decompresses. At opening, the reader checks section headers and the layout of the
//! metadata. It checks values of the metadata when it uses them. If the image has checksums, it verifies a payload
//! before its first use. [`OpenOptions::trust_blocks`] switches this off for blocks.
//! With [`OpenOptions::verification`], signed digests take the place of checksums (`verify.rs`). An error names the section if the reader knows it.
//!
//! # The path of a read
//!
//! [`Image::read_at`] (`read.rs`) and [`Image::read_pinned`] (`pinned.rs`, without a copy) take these
//! steps:
//!
//! 1. **Inode to spans** (`spans.rs`): the metadata view of `redwarfs-format` lists the chunks of the
//!    inode. `Spans` cuts them to the requested range. Each span is a range of a block, or a run of zeros.
//! 2. **Read-ahead** (`ahead/`): decides, before, during and after the next steps, which other blocks to
//!    decode in the background.
//! 3. **Span to block** (`cache/mod.rs`): `BlockCache::get` finds the block in the cache (`cache/table.rs`)
//!    or adds it, and drops others if there is no room (`cache/evict.rs`). `BlockCache::get_cached` is for
//!    callers that must not wait: it returns nothing if the bytes are not there.
//! 4. **Decoding** (`cache/decode.rs`): one thread reads the payload (`payload.rs`), verifies its checksum
//!    and decodes as far as needed. Other threads wait for their bytes (`cache/slot.rs`). Uncompressed
//!    blocks are read directly from the image file, without a copy in the cache (`cache/plain.rs`).
//! 5. **Reply**: the bytes are copied to the caller, or the caller gets the memory of the cache.
//!
//! With [`OpenOptions::disk_cache`], step 4 takes payloads from a cache on disk, and adds those that it lacks (`disk.rs`).
//!
//! [`check`] finds damage and the files that it affects. `preload.rs` decodes whole blocks before any
//! program reads them, and `hints.rs` says which ones a program needs first, as `record.rs` has recorded it. `whole.rs` decodes a block, or its first part, without the cache, for extraction to a
//! directory. Rewriting uses [`Image::decode_block`] (`image.rs`).
//!
//! # Example
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

mod ahead;
mod cache;
pub mod check;
mod disk;
mod error;
mod hints;
mod identity;
mod image;
mod locate;
mod options;
mod payload;
pub mod perfmon;
mod pinned;
mod preload;
mod read;
mod record;
mod sections;
mod snapshots;
mod spans;
mod sys;
mod tree;
mod users;
mod verify;
mod when_needed;
mod whole;
mod xattrs;

pub use cache::{ActiveSetSize, CacheGroup, CacheStats};
pub use check::{CheckOptions, CheckReport, VerifyMode};
pub use hints::{MOST_HINTS, StoredHints};
pub use identity::ImageIdentity;
pub use image::Image;
pub use options::{
    BlockAllocator, CacheOptions, CpuSet, ImageOffset, OpenOptions, ParseOffsetError, Preload,
    Tidy, UnknownAllocator,
};
pub use perfmon::PerfMonitor;
pub use pinned::{MAX_PARTS, PinnedRead};
pub use preload::{PreloadHandle, PreloadSummary};
pub use read::PlannedReads;
pub use record::Recording;
pub use redwarfs_format::{Error, Result};
pub use snapshots::{FileOfImage, SnapshotChoice, TailOfFile, sections_of_snapshot};
pub use tree::{DirEntry, ReadDir, Walk, WalkEntry};
pub use users::BlockUsers;
pub use verify::{
    StoredDigests, StoredSignature, Verification, Verified, VerifySignature, stored_digests,
    stored_signatures,
};
pub use whole::BlockMemory;
