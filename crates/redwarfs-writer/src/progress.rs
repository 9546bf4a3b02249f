//! What a build reports while it runs: phases, log lines and counters.

use std::sync::Mutex;
use std::sync::atomic::{AtomicU64, Ordering};

/// Target of the events that are of interest to users who want to know more: between info and
/// debug.
pub(crate) const VERBOSE: &str = "redwarfs_writer::verbose";

/// Importance of a log line, most important first.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Level {
    /// Something in the image is not as in the input; counted in [`Counters::errors`].
    Error,
    /// Probably a mistake.
    Warn,
    /// Normal milestones and totals.
    Info,
    /// More detail.
    Verbose,
    /// For developers.
    Debug,
    /// For developers, per entry.
    Trace,
}

/// Phases of a build or of a rewrite, in the order in which they begin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[non_exhaustive]
pub enum Phase {
    /// Verifying the checksums of an image that is to be rewritten.
    Checking,
    /// Copying and compressing the sections of an image.
    Rewriting,
    /// Reading archives whose entries are the input.
    Reading,
    /// Listing directories.
    Scanning,
    /// Hashing files of equal size and computing similarity digests.
    Hashing,
    /// Putting contents into order.
    Ordering,
    /// Cutting contents into blocks; compression and writing run at the same time.
    Segmenting,
    /// All blocks are cut; compression and writing still run.
    Compressing,
    /// Building, compressing and writing metadata, history and index.
    Metadata,
    /// The image is complete.
    Done,
}

/// Receives events of a build. All methods may be called from any thread of the build.
pub trait Progress: Send + Sync {
    /// The counters of this build; a display may read them at any time.
    fn counters(&self) -> &Counters;
    /// A phase begins.
    fn phase(&self, _phase: Phase) {}
    /// A log line, without line end.
    fn log(&self, _level: Level, _message: &str) {}
}

/// Keeps counters and drops everything else.
#[derive(Debug, Default)]
pub struct SilentProgress {
    counters: Counters,
}

impl Progress for SilentProgress {
    fn counters(&self) -> &Counters {
        &self.counters
    }
}

macro_rules! counters {
    ($($(#[$doc:meta])* $name:ident,)*) => {
        /// Counters of a build. They only grow, and may be read while it runs.
        #[derive(Debug, Default)]
        pub struct Counters {
            $($(#[$doc])* pub $name: AtomicU64,)*
            current: Mutex<Vec<u8>>,
        }

        impl Counters {
            /// All counters by name, for machine-readable output.
            pub fn snapshot(&self) -> Vec<(&'static str, u64)> {
                vec![$((stringify!($name), self.$name.load(Ordering::Relaxed)),)*]
            }
        }
    };
}

counters! {
    /// Bytes of input archives read, as they are compressed.
    archive_bytes,
    /// Bytes of those input archives whose size is known.
    archive_size,
    /// Directories found, the root included.
    dirs,
    /// Symlinks found.
    symlinks,
    /// Regular file names beyond the first of their inode.
    hardlinks,
    /// Regular files found, hard links not counted.
    files_found,
    /// Regular files whose scan (hash, similarity) is finished or was not needed.
    files_scanned,
    /// Devices stored.
    devices,
    /// FIFOs and sockets stored.
    specials,
    /// Bytes of regular files (each inode once) and symlink targets.
    original_size,
    /// The same with the allocated size of sparse files.
    allocated_size,
    /// Bytes of symlink targets, part of `original_size`.
    symlink_size,
    /// Known bytes to read in order to find equal and similar files. In the end this is at least the
    /// sum of `hash_bytes` and `similarity_bytes`, if no file changes.
    scan_bytes,
    /// Bytes hashed to find duplicate files.
    hash_bytes,
    /// Files hashed.
    hash_files,
    /// Bytes read for similarity digests.
    similarity_bytes,
    /// Contents with a similarity digest.
    similarity_files,
    /// Bytes of contents that categorizers have judged.
    categorized_bytes,
    /// Bytes saved by storing equal files once.
    saved_by_deduplication,
    /// Files that are duplicates of another one.
    duplicate_files,
    /// Files whose content the image that the build continues has.
    files_in_base,
    /// Bytes of these files.
    bytes_in_base,
    /// Bytes replaced by references to earlier data.
    saved_by_segmentation,
    /// Bytes not stored because they are holes.
    hole_bytes,
    /// Bytes put into blocks, uncompressed.
    block_bytes,
    /// Blocks started and handed to compression.
    blocks_created,
    /// Chunks in the chunk table.
    chunks,
    /// Contents to store, also called fragments.
    fragments_found,
    /// Contents stored.
    fragments_written,
    /// Inodes in the image.
    inodes,
    /// Bytes of blocks that have been through compression.
    compression_input,
    /// What became of them, without section headers.
    compression_output,
    /// Blocks whose compressed data came from a checkpoint.
    blocks_reused,
    /// Bytes of these blocks, uncompressed.
    block_bytes_reused,
    /// Hashes and similarity digests of files that came from a checkpoint.
    files_reused,
    /// Bytes of files that were not read because of that. `hash_bytes` and `similarity_bytes` count them, too.
    file_bytes_reused,
    /// Blocks compressed and written.
    blocks_written,
    /// Bytes of compressed blocks written, without section headers.
    compressed_size,
    /// Bytes written to the output so far, everything included.
    bytes_written,
    /// Inodes with extended attributes in the image.
    extended_attributes,
    /// Those of them with access control lists.
    access_lists,
    /// Those of them with file capabilities.
    file_capabilities,
    /// Extended attributes that the options do not select.
    extended_left_out,
    /// Devices that are not stored.
    devices_left_out,
    /// FIFOs and sockets that are not stored.
    specials_left_out,
    /// Inputs that differ in the image from those on disk. The image is still valid.
    errors,
    /// CPU time of hashing and similarity digests, nanoseconds over all threads.
    scan_cpu_ns,
    /// CPU time of ordering, nanoseconds.
    order_cpu_ns,
    /// CPU time of segmenting, nanoseconds.
    segment_cpu_ns,
    /// CPU time of compressing, nanoseconds over all threads.
    compress_cpu_ns,
}

impl Counters {
    /// Path of the entry that is being worked on, relative to the root; empty if none.
    pub fn current(&self) -> Vec<u8> {
        self.current.lock().map(|c| c.clone()).unwrap_or_default()
    }

    /// Says which entry is being worked on.
    pub fn set_current(&self, path: &[u8]) {
        // Threads that do this at the same time need not wait for each other.
        if let Ok(mut current) = self.current.try_lock() {
            current.clear();
            current.extend_from_slice(path);
        }
    }
}

pub(crate) fn add(counter: &AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

pub(crate) fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// CPU time of the calling thread in nanoseconds.
#[must_use]
pub fn thread_cpu_ns() -> u64 {
    crate::os::thread_cpu_ns()
}

/// Adds the CPU time of the calling thread, from here until it is dropped there, to a counter of
/// nanoseconds.
pub(crate) struct CpuTime<'a> {
    counter: &'a AtomicU64,
    start: u64,
}

impl<'a> CpuTime<'a> {
    pub(crate) fn counted_in(counter: &'a AtomicU64) -> Self {
        let start = thread_cpu_ns();
        Self { counter, start }
    }
}

impl Drop for CpuTime<'_> {
    fn drop(&mut self) {
        add(self.counter, thread_cpu_ns().saturating_sub(self.start));
    }
}
