//! How to open an image.

use std::fmt;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use redwarfs_format::BlockNo;
use redwarfs_format::hints::Hints;
use redwarfs_io::DiskCache;

use crate::cache::CacheGroup;
use crate::perfmon::PerfMonitor;
use crate::snapshots::SnapshotChoice;
use crate::verify::Verification;

/// Where the image starts in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum ImageOffset {
    /// Search for it (format chapter 01, section 6).
    #[default]
    Auto,
    /// Search for the n-th image of the file, counted from 1.
    Nth(u32),
    /// At this byte.
    At(u64),
}

impl FromStr for ImageOffset {
    type Err = ParseOffsetError;

    /// Accepts `auto`, `auto:N` with N from 1, or a decimal number.
    fn from_str(s: &str) -> Result<Self, Self::Err> {
        if s == "auto" {
            return Ok(Self::Auto);
        }
        if let Some(number) = s.strip_prefix("auto:")
            && number.bytes().all(|b| b.is_ascii_digit())
            && let Ok(number) = number.parse()
            && number > 0
        {
            return Ok(Self::Nth(number));
        }
        if let Some(digits) = s.strip_prefix('-')
            && !digits.is_empty()
            && digits.bytes().all(|b| b.is_ascii_digit())
        {
            return Err(ParseOffsetError("image offset must be positive".to_owned()));
        }
        if !s.starts_with('+')
            && let Ok(offset) = s.parse()
        {
            return Ok(Self::At(offset));
        }
        Err(ParseOffsetError(format!(
            "failed to parse image offset: {s}"
        )))
    }
}

impl fmt::Display for ImageOffset {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Auto => f.write_str("auto"),
            Self::Nth(number) => write!(f, "auto:{number}"),
            Self::At(offset) => offset.fmt(f),
        }
    }
}

/// The text is no image offset.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ParseOffsetError(String);

/// Everything that can be chosen when opening an image.
///
/// Start from the default and set fields:
///
/// ```
/// use redwarfs_reader::OpenOptions;
///
/// let mut options = OpenOptions::default();
/// options.check = true;
/// options.cache.size = 64 << 20;
/// ```
#[derive(Debug, Clone, PartialEq, Default)]
#[non_exhaustive]
pub struct OpenOptions {
    /// Where the image starts. Searched for by default.
    pub offset: ImageOffset,
    /// Size of the image in bytes if it ends before the end of the file.
    pub image_size: Option<u64>,
    /// Open this generation of the file instead of the newest one.
    pub snapshot: Option<SnapshotChoice>,
    /// Check the consistency of all metadata (format chapter 04, section 12). Images whose sections
    /// have 8-byte headers have no checksums. They are always checked.
    pub check: bool,
    /// If the metadata is uncompressed and has at least 256 KiB, only verify it at first, and load its
    /// parts when they are needed. If it has at least 1 MiB in several separate LZMA blocks, decode each one as far as it is needed.
    /// Then every operation may fail, or wait for the source or for decoding; see
    /// [`Image::load_metadata`](crate::Image::load_metadata). Not together with `check`.
    pub lazy_metadata: bool,
    /// The block cache.
    pub cache: CacheOptions,
    /// The images with which this one shares its block cache. None by default: it has a cache of its own, and so do other
    /// generations of its file together with it.
    pub cache_group: Option<CacheGroup>,
    /// The operations that are measured. Off by default.
    pub perfmon: PerfMonitor,
    /// Use blocks without verifying their checksums. Damage then shows as wrong contents, or as an
    /// error of the decompression at best. Everything else is still verified.
    pub trust_blocks: bool,
    /// Open the image as if it had no extended attributes and no file flags. Their tables may then be
    /// wrong.
    pub ignore_xattrs: bool,
    /// What the image must prove: that its checksums are right (the default), that it has the digests that
    /// it states, or that a trusted key has signed these. The last two verify all blocks, whatever
    /// `trust_blocks` says.
    pub verification: Verification,
    /// A cache on disk for blocks as they are stored, for images on slow media and on servers. What it lacks is read from
    /// the image and added.
    pub disk_cache: Option<DiskCache>,
}

/// Options of the block cache.
#[derive(Debug, Clone, Copy, PartialEq)]
#[non_exhaustive]
pub struct CacheOptions {
    /// Bytes that blocks not in use may take; 512 MiB by default. A block is in use if a request holds
    /// it, or if it is one of the last `workers + 1` blocks that were read, but not to their end. With
    /// 0, only blocks in use stay.
    pub size: u64,
    /// Threads that decode in the background; 2 by default, 0 counts as 1. They start when they are
    /// first needed.
    pub workers: usize,
    /// If the last `seq_detector` requested blocks are consecutive, the next block is decoded ahead; 4
    /// by default, 0 is off. Unless it is off, blocks are also decoded ahead in files of more than 1 MiB
    /// that are read from front to back: two blocks or 4 MiB, whichever is more. For all files together,
    /// this is at most a third of `size`. From a server, blocks near requested ones are fetched, too.
    pub seq_detector: usize,
    /// If at least this share (0 to 1) of a block is decoded, the block is decoded to its end, which
    /// frees the decoder. The default is 0.8; a value above 1 means never. If the value is below 1,
    /// blocks that are read at random are also finished in the background, if the rest has at most 16
    /// MiB. Reading at random means two requests far beyond the decoded and requested bytes: by more
    /// than a sixteenth of the block. If the cache has room for the whole image, one such request is
    /// enough.
    pub partial_ratio: f64,
    /// Number of bytes after each request that are decoded in the background; 0 by default.
    pub readahead: u64,
    /// When idle blocks are dropped although there is room. Never by default.
    pub tidy: Tidy,
    /// Where the memory of blocks comes from.
    pub allocator: BlockAllocator,
    /// CPUs on which the threads of the cache run, if not on all.
    pub affinity: Option<CpuSet>,
}

/// When blocks leave the cache although there is room for them. A thread of the cache checks after each
/// interval. It starts with the first block, and sleeps while the cache is empty.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Tidy {
    /// Never.
    #[default]
    None,
    /// When they were not used for some time.
    Time {
        /// Time between two looks; at least a millisecond.
        interval: Duration,
        /// Age from which on a block is dropped.
        max_age: Duration,
    },
    /// When the system has swapped out at least a part of them. Blocks that were used since the
    /// last look stay.
    Swap {
        /// Time between two looks; at least a millisecond.
        interval: Duration,
    },
}

/// Where the memory of decoded blocks comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum BlockAllocator {
    /// The allocator of the process, which may keep memory for later. Blocks of 128 KiB and more get
    /// separate mappings here, too.
    #[default]
    Malloc,
    /// Separate mappings, which return to the system with the block. Slower for small blocks, and each
    /// piece takes whole pages.
    Mmap,
}

impl FromStr for BlockAllocator {
    type Err = UnknownAllocator;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        match s {
            "malloc" => Ok(Self::Malloc),
            "mmap" => Ok(Self::Mmap),
            _ => Err(UnknownAllocator(s.to_owned())),
        }
    }
}

/// There is no allocator of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such block allocator: {0}")]
pub struct UnknownAllocator(String);

/// The blocks to decode before they are requested.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Preload {
    /// All blocks.
    All,
    /// The blocks of the category with this name.
    Category(String),
    /// Those that these hints, and the hints in the image, name, in this order: as many as fit into the cache, or into half of it
    /// if only the image names them. Nothing if it has none.
    Hints(Option<Arc<Hints>>),
    /// These blocks. With [`OpenOptions::disk_cache`], they are only fetched into that cache, so they need no room in
    /// memory.
    Blocks(Vec<BlockNo>),
}

/// A set of CPUs with numbers from 0 to 1023.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct CpuSet([u64; 16]);

impl CpuSet {
    /// Number of CPUs that a set can hold.
    pub const CAPACITY: usize = 1024;

    /// Adds a CPU. Returns false if its number is too large.
    pub fn add(&mut self, cpu: usize) -> bool {
        match self.0.get_mut(cpu / 64) {
            Some(word) => {
                *word |= 1 << (cpu % 64);
                true
            }
            None => false,
        }
    }

    /// Whether a CPU is in the set.
    #[must_use]
    pub fn contains(&self, cpu: usize) -> bool {
        self.0
            .get(cpu / 64)
            .is_some_and(|word| word & (1 << (cpu % 64)) != 0)
    }

    /// The CPUs in the set, ascending.
    pub fn iter(&self) -> impl Iterator<Item = usize> {
        let set = *self;
        (0..Self::CAPACITY).filter(move |&cpu| set.contains(cpu))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0 == [0; 16]
    }

    /// The CPUs on which the calling thread may run, as far as a set can hold them.
    ///
    /// # Errors
    /// The error of the system.
    pub fn of_current_thread() -> std::io::Result<Self> {
        crate::sys::affinity()
    }

    /// Lets the calling thread run only on these CPUs.
    ///
    /// # Errors
    /// The error of the system, for example if it has none of them.
    pub fn pin_current_thread(&self) -> std::io::Result<()> {
        crate::sys::set_affinity(self)
    }
}

impl FromIterator<usize> for CpuSet {
    /// Numbers that are too large are left out.
    fn from_iter<I: IntoIterator<Item = usize>>(cpus: I) -> Self {
        let mut set = Self::default();
        for cpu in cpus {
            set.add(cpu);
        }
        set
    }
}

impl fmt::Debug for CpuSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter()).finish()
    }
}

impl Default for CacheOptions {
    fn default() -> Self {
        Self {
            size: 512 << 20,
            workers: 2,
            seq_detector: 4,
            partial_ratio: 0.8,
            readahead: 0,
            tidy: Tidy::None,
            allocator: BlockAllocator::Malloc,
            affinity: None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn offsets_parse() {
        let good = [
            ("auto", ImageOffset::Auto),
            ("0", ImageOffset::At(0)),
            ("18446744073709551615", ImageOffset::At(u64::MAX)),
            ("auto:1", ImageOffset::Nth(1)),
            ("auto:4294967295", ImageOffset::Nth(u32::MAX)),
        ];
        for (text, offset) in good {
            assert_eq!(text.parse(), Ok(offset));
            assert_eq!(offset.to_string(), text);
        }
        for (text, message) in [
            ("-1", "image offset must be positive"),
            ("foo", "failed to parse image offset: foo"),
            ("", "failed to parse image offset: "),
            ("+1", "failed to parse image offset: +1"),
            ("1k", "failed to parse image offset: 1k"),
            ("auto:", "failed to parse image offset: auto:"),
            ("auto:0", "failed to parse image offset: auto:0"),
            ("auto:+1", "failed to parse image offset: auto:+1"),
            ("auto:-1", "failed to parse image offset: auto:-1"),
            (
                "18446744073709551616",
                "failed to parse image offset: 18446744073709551616",
            ),
        ] {
            let e = text.parse::<ImageOffset>().unwrap_err();
            assert_eq!(e.to_string(), message);
        }
    }

    #[test]
    fn allocators_parse() {
        assert_eq!("malloc".parse(), Ok(BlockAllocator::Malloc));
        assert_eq!("mmap".parse(), Ok(BlockAllocator::Mmap));
        let e = "foo".parse::<BlockAllocator>().unwrap_err().to_string();
        assert_eq!(e, "no such block allocator: foo");
    }

    #[test]
    fn sets_of_processors() {
        let mut set: CpuSet = [0, 63, 64, 1023, 5000].into_iter().collect();
        assert_eq!(set.iter().collect::<Vec<_>>(), [0, 63, 64, 1023]);
        assert!(set.contains(63) && !set.contains(62) && !set.contains(5000));
        assert!(!set.add(1024) && set.add(2));
        assert!(!set.is_empty() && CpuSet::default().is_empty());
        assert_eq!(format!("{set:?}"), "{0, 2, 63, 64, 1023}");
    }

    #[test]
    fn a_thread_can_be_pinned() {
        std::thread::spawn(|| {
            let all = CpuSet::of_current_thread().unwrap();
            let one: CpuSet = all.iter().take(1).collect();
            assert!(!one.is_empty());
            one.pin_current_thread().unwrap();
            assert_eq!(CpuSet::of_current_thread().unwrap(), one);
            assert!(CpuSet::default().pin_current_thread().is_err());
        })
        .join()
        .unwrap();
    }
}
