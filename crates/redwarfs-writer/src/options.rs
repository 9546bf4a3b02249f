//! The options of a build.

use std::collections::BTreeMap;
use std::fmt;
use std::num::NonZeroU64;
use std::path::PathBuf;
use std::sync::Arc;

use redwarfs_codec::CodecSpec;
use redwarfs_format::hints::Hints;
use redwarfs_format::metadata::Packing;
use redwarfs_io::Checkpoint;

use crate::category::{Categorizer, Category};
use crate::hash::FileHash;
use crate::hook::EntryHook;
use crate::source::extended::{Xattr, XattrFilter};

/// Sequence in which file contents enter the blocks.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
#[non_exhaustive]
pub enum Order {
    /// The order of discovery: depth first by name, or the order of the input list.
    None,
    /// Full path as a byte string.
    #[default]
    Path,
    /// Path components compared from the last to the first.
    RevPath,
    /// Similarity digest of the content (format/08 section 3.2).
    Similarity,
    /// Neighbours by the Nilsimsa digest of the content: clusters, and chains through them
    /// (format/08 section 3.3). Takes 250 bytes of memory per content, and time that grows with
    /// the square of the size of clusters.
    Nilsimsa(NilsimsaOptions),
    /// By path, with versions of a directory collated if samples of their contents say that this
    /// saves space with LZ4, as far as locality allows. Takes up to 60 bytes of memory per content.
    Versions(FamilyOptions),
    /// By path, with versions of a directory collated, and similar contents next to each other, as far
    /// as locality allows. It gives the smallest images, and fast reading of directories. Takes up to
    /// 400 bytes of memory per content.
    Families(FamilyOptions),
    /// Position of the path (relative to the root, no leading `/`) in this list; contents that
    /// are not listed follow in order of discovery.
    Explicit(Vec<Vec<u8>>),
    /// The keys that [`BuildOptions::hook`] gives, smallest first, and where they are equal the
    /// full path. Any name of a content counts, the one with the smallest key. Contents without a
    /// key follow in the order inside.
    Script(Box<Order>),
}

impl Order {
    /// Its name, without parameters.
    pub(crate) fn name(&self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Path => "path",
            Self::RevPath => "revpath",
            Self::Similarity => "similarity",
            Self::Nilsimsa(_) => "nilsimsa",
            Self::Versions(_) => "versions",
            Self::Families(_) => "families",
            Self::Explicit(_) => "explicit",
            Self::Script(_) => "script",
        }
    }
}

/// Parameters of [`Order::Nilsimsa`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct NilsimsaOptions {
    /// Clusters into which a cluster is divided at most.
    pub max_children: NonZeroU64,
    /// Clusters with more contents than this are divided, as far as their digests differ.
    pub max_cluster_size: NonZeroU64,
}

impl Default for NilsimsaOptions {
    /// 16384 each.
    fn default() -> Self {
        const USUAL: NonZeroU64 = NonZeroU64::MIN.saturating_add(16383);
        Self {
            max_children: USUAL,
            max_cluster_size: USUAL,
        }
    }
}

/// Parameters of [`Order::Families`] and [`Order::Versions`].
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct FamilyOptions {
    /// What a directory must save to be spread over one more block than its paths need, in thousandths
    /// of a block, 0..=1000. At 0 only size counts. Moves of single files
    /// ([`Order::Families`]) may always spread a directory over half as many blocks again as its data needs.
    pub least_saving: u32,
}

impl FamilyOptions {
    /// The parameters with this [`least_saving`](Self::least_saving).
    #[must_use]
    pub fn new(least_saving: u32) -> Self {
        Self { least_saving }
    }

    /// Bytes that a directory must save for each further block. Both deciders use it: `families.rs` for
    /// files, `collate.rs` for versions of a directory.
    pub(crate) fn share(self, block: u64) -> u128 {
        u128::from(block) * u128::from(self.least_saving) / 1000
    }
}

impl Default for FamilyOptions {
    /// One percent of a block.
    fn default() -> Self {
        Self::new(10)
    }
}

/// Granularity of stored times: a whole number of seconds, or a divisor of one second.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeResolution {
    nanos: u64,
}

/// A duration that cannot be a time resolution.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TimeResolutionError {
    /// Zero.
    #[error("the time resolution must be nonzero")]
    Zero,
    /// Above one second and not a whole number of seconds, or too many of them.
    #[error(
        "cannot handle a resolution that is larger than one second but not a whole number of seconds"
    )]
    NotWhole,
    /// Below one second and not a divisor of it.
    #[error("cannot handle a resolution that is not a whole divisor of one second")]
    NotDivisor,
}

impl TimeResolution {
    /// One second, the default.
    pub const SECOND: TimeResolution = TimeResolution {
        nanos: 1_000_000_000,
    };
    /// One nanosecond, the finest.
    pub const NANOSECOND: TimeResolution = TimeResolution { nanos: 1 };

    /// A resolution of `nanos` nanoseconds.
    ///
    /// # Errors
    /// If it is zero, or neither a whole number of seconds (at most `u32::MAX`) nor a divisor
    /// of one second.
    pub fn from_nanos(nanos: u64) -> std::result::Result<Self, TimeResolutionError> {
        const SECOND: u64 = 1_000_000_000;
        if nanos == 0 {
            Err(TimeResolutionError::Zero)
        } else if nanos >= SECOND {
            if !nanos.is_multiple_of(SECOND) || nanos / SECOND > u64::from(u32::MAX) {
                Err(TimeResolutionError::NotWhole)
            } else {
                Ok(Self { nanos })
            }
        } else if !SECOND.is_multiple_of(nanos) {
            Err(TimeResolutionError::NotDivisor)
        } else {
            Ok(Self { nanos })
        }
    }

    /// The resolution in nanoseconds.
    pub fn nanos(self) -> u64 {
        self.nanos
    }

    /// Seconds per unit, at least 1.
    #[must_use]
    pub fn seconds(self) -> u32 {
        u32::try_from(self.nanos / 1_000_000_000)
            .unwrap_or(u32::MAX)
            .max(1)
    }

    /// Nanoseconds per sub-second unit, or `None` for one second and above.
    #[must_use]
    pub fn multiplier(self) -> Option<u32> {
        (self.nanos < 1_000_000_000).then_some(self.nanos as u32)
    }
}

impl Default for TimeResolution {
    fn default() -> Self {
        Self::SECOND
    }
}

/// Changes `st_mode` values (type bits included in the argument; only the lower twelve bits of
/// the result are used). Must be a pure function.
#[derive(Clone)]
pub struct ModeTransform(Arc<dyn Fn(u32) -> u32 + Send + Sync>);

impl ModeTransform {
    /// Wraps a function from `st_mode` to permission bits.
    pub fn new(f: impl Fn(u32) -> u32 + Send + Sync + 'static) -> Self {
        Self(Arc::new(f))
    }

    /// The mode, type bits included, of what had `mode`.
    #[must_use]
    pub fn apply(&self, mode: u32) -> u32 {
        (mode & !0o7777) | ((self.0)(mode) & 0o7777)
    }
}

impl fmt::Debug for ModeTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ModeTransform(..)")
    }
}

/// Changes user or group ids. Must be a pure function.
#[derive(Clone)]
pub struct IdTransform(Arc<dyn Fn(u32) -> u32 + Send + Sync>);

impl IdTransform {
    /// Wraps a function from old to new ids.
    pub fn new(f: impl Fn(u32) -> u32 + Send + Sync + 'static) -> Self {
        Self(Arc::new(f))
    }

    /// The id that takes the place of `id`.
    pub fn apply(&self, id: u32) -> u32 {
        (self.0)(id)
    }
}

impl fmt::Debug for IdTransform {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("IdTransform(..)")
    }
}

/// What a thread of a build is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ThreadGroup {
    /// Listing, hashing, categorizing, digests.
    Scanner,
    /// Clusters of similar contents.
    Ordering,
    /// Segmenting.
    Segmenter,
    /// Compression and checksums.
    Compress,
}

/// It is called in every thread of a group when the thread starts, for instance to bind it to CPUs.
#[derive(Clone)]
pub struct ThreadStart(Arc<dyn Fn(ThreadGroup) + Send + Sync>);

impl ThreadStart {
    /// Wraps a function.
    pub fn new(f: impl Fn(ThreadGroup) + Send + Sync + 'static) -> Self {
        Self(Arc::new(f))
    }
}

impl fmt::Debug for ThreadStart {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("ThreadStart(..)")
    }
}

/// Contents of the history entry of a new image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct HistoryOptions {
    /// The command line, the program first; `None` leaves it out.
    pub arguments: Option<Vec<String>>,
    /// Unix time of writing; `None` leaves it out.
    pub timestamp: Option<u64>,
}

/// Settings of one category. For `None`, the setting of [`BuildOptions`] applies.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct CategoryOptions {
    /// Codec of the blocks.
    pub compression: Option<CodecSpec>,
    /// Sequence of the fragments.
    pub order: Option<Order>,
    /// Log2 of the match window, 0..=24; 0 switches matching off. The unit is a sample of all channels,
    /// a pixel, or for all other data a byte.
    pub window_bits: Option<u32>,
    /// Windows are indexed every `window >> step` frames, 0..=8.
    pub window_step: Option<u32>,
    /// Number of blocks that are searched, see [`BuildOptions::lookback`].
    pub lookback: Option<u32>,
    /// See [`BuildOptions::bloom_filter_size`].
    pub bloom_filter_size: Option<u32>,
}

/// All knobs of a build. Make one with [`level`](Self::level) or [`default`](Self::default) and
/// change fields; [`check`](Self::check) verifies ranges, and so does every build.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BuildOptions {
    /// Log2 of the block size, 10..=30.
    pub block_size_bits: u32,
    /// Codec of file data.
    pub compression: CodecSpec,
    /// Codec of the metadata schema.
    pub schema_compression: CodecSpec,
    /// Codec of the metadata.
    pub metadata_compression: CodecSpec,
    /// This codec is used instead if it makes the image smaller by one percent, and if `memory_limit`
    /// leaves room to try.
    pub metadata_alternative: Option<CodecSpec>,
    /// Codec of the history.
    pub history_compression: CodecSpec,
    /// Log2 of the match window in bytes, 0..=24; 0 switches matching off.
    pub window_bits: u32,
    /// Windows are indexed every `window >> step` bytes, 0..=8.
    pub window_step: u32,
    /// Number of blocks that are searched for duplicate segments, the one being filled included; 0
    /// switches matching off. In the others only segments of at least two windows are found. They stay
    /// in memory. With 2 or more, segments of at least 32 KiB are found in all earlier blocks of the
    /// stream, up to 24 GiB back, by digests of their pieces. These take up to 224 MiB.
    pub lookback: u32,
    /// Log2 of the bits per window in the filter before the match index, 0..=10. More make the search
    /// faster, up to the size of the caches. Where a duplicate that crosses the end of a piece of data
    /// is cut can depend on it.
    pub bloom_filter_size: u32,
    /// What cuts files into fragments of categories, in order of precedence; none stores
    /// everything in one stream.
    pub categorizers: Vec<Categorizer>,
    /// Settings of single categories. Those of categories that do not occur have no effect.
    pub categories: BTreeMap<Category, CategoryOptions>,
    /// Is asked about every entry: may leave it out, and give files a category and a place.
    pub hook: Option<Arc<dyn EntryHook>>,
    /// Store names of categories, and the category of each block.
    pub category_names: bool,
    /// Store the parameters of audio and pixels with their blocks; needs `category_names`.
    pub category_metadata: bool,
    /// Sequence of contents.
    pub order: Order,
    /// Path of a directory, without `/` at the start. What its files need is in front in each block, so that a reader of this
    /// directory decodes little else, although its files share blocks with others. Among versions of a
    /// directory, this one comes first in the orders that know versions. Long values of extended attributes stay where they
    /// are, and so do audio and images that have a category. If a later file of the directory finds a match in a finished block,
    /// a little of it is stored again, and the rest stays there. The image may be a little larger. A path that is no directory
    /// has no effect.
    pub front: Option<Vec<u8>>,
    /// Contents larger than this get no similarity digest and come first, largest first.
    pub max_similarity_size: Option<u64>,
    /// Hash that finds duplicate files; `None` stores every file on its own.
    pub file_hash: Option<FileHash>,
    /// Threads for compression, and for other stages that have no own number; at least 1.
    pub workers: usize,
    /// Threads for scanning if not `workers`, at least 1.
    pub scanner_workers: Option<usize>,
    /// Threads for ordering and segmenting if not `workers`, at least 1.
    pub segmenter_workers: Option<usize>,
    /// Is called in every thread that is started. With it no group works in the thread of the
    /// caller.
    pub thread_start: Option<ThreadStart>,
    /// Added to the niceness of compression threads, 0..=19.
    pub compress_niceness: i32,
    /// Bytes of resident memory below which a build stays: by using fewer compression threads than
    /// `workers`, and by the number of blocks between segmenter and output. If the limit is too low for
    /// the input, the error names the needed amount. `None` aims at three quarters of `machine_memory`,
    /// and never fails.
    pub memory_limit: Option<u64>,
    /// Directory for a temporary file. If `memory_limit` could be too low, the inodes wait in it. The image is the same. Without
    /// a directory, or if there can be no file in it, they stay in memory.
    pub spool: Option<PathBuf>,
    /// Bytes of memory by which `memory_limit` is chosen; `None` asks for the physical memory of
    /// the machine.
    pub machine_memory: Option<u64>,
    /// Where a build keeps results of expensive steps, and takes those of an earlier build that was interrupted. It
    /// never changes the image. The caller [removes](Checkpoint::remove) it.
    pub checkpoint: Option<Checkpoint>,
    /// Compare the bytes of files whose hashes say that they are equal, before one takes the place
    /// of the other. Reads every such file once more, unless it is small and still in memory.
    pub verify_duplicates: bool,
    /// Store each name of a file with several hard links as a separate file. The content is still
    /// stored once.
    pub dissolve_hard_links: bool,
    /// Store character and block devices.
    pub with_devices: bool,
    /// Store FIFOs and sockets.
    pub with_specials: bool,
    /// Store holes of sparse files as holes.
    pub sparse: bool,
    /// Store every file as one hole of its size; needs `sparse`.
    pub hollow: bool,
    /// Drop directories without any content, recursively.
    pub remove_empty_dirs: bool,
    /// Store access and change times too.
    pub keep_all_times: bool,
    /// Granularity of stored times.
    pub time_resolution: TimeResolution,
    /// Owner of everything.
    pub set_owner: Option<u32>,
    /// Group of everything.
    pub set_group: Option<u32>,
    /// Change of owners, unless `set_owner` is there.
    pub map_owner: Option<IdTransform>,
    /// Change of groups, unless `set_group` is there.
    pub map_group: Option<IdTransform>,
    /// Time of everything, seconds since 1970.
    pub set_time: Option<i64>,
    /// Latest time of anything, seconds since 1970: later ones are stored as this one.
    pub latest_time: Option<i64>,
    /// Change of permissions.
    pub chmod: Option<ModeTransform>,
    /// Which extended attributes are stored.
    pub xattrs: XattrFilter,
    /// Extended attributes of everything, in addition to those of the source and in their place. Those
    /// in `user` go to regular files and directories only, as on Linux.
    pub set_xattrs: Vec<Xattr>,
    /// Store birth times. An entry whose birth time the source does not know gets its modification
    /// time.
    pub keep_birth_times: bool,
    /// Store the flags that `chattr` sets.
    pub file_flags: bool,
    /// Creation time in the metadata, Unix seconds.
    pub create_timestamp: Option<u64>,
    /// Content of the history; `None` writes no history section.
    pub history: Option<HistoryOptions>,
    /// Write a section index.
    pub section_index: bool,
    /// Write an index of the data of new blocks, by which later appends find data in old blocks. It takes 12 bytes
    /// for each 4 KiB of data, and needs `section_index`.
    pub match_index: bool,
    /// What a program reads first: the image gets the blocks with it as hints, which needs `section_index`. Hints
    /// about files that the image does not have are left out, with a warning.
    pub hints: Option<Hints>,
    /// Store link counts.
    pub hardlink_table: bool,
    /// Bytes before the image.
    pub header: Option<Vec<u8>>,
    /// How the metadata tables are packed.
    pub packing: Packing,
}

impl Default for BuildOptions {
    fn default() -> Self {
        Self::level(7)
    }
}

/// The codec that a preset names, which this build may be without. The strings are part of this file
/// and covered by a test.
fn codec(spec: &str) -> CodecSpec {
    CodecSpec::preset(spec).unwrap_or_else(|_| CodecSpec::none())
}

/// As small as zstd level 22, or nearly, in half the time, for blocks of up to 16 MiB.
const STRONG: &str = "zstd:level=19:wlog=24:hlog=22:clog=24:slog=5:mml=3:tlen=128:strat=9:deep=32";
/// The same where there is much to win; what gets small anyway takes a tenth of the time.
const ADAPTIVE: &str =
    "zstd:level=19:wlog=24:hlog=22:clog=24:slog=5:mml=3:tlen=128:strat=9:quick=12:deep=32";

/// The presets for single categories (format/07 section 1.5).
fn category_presets(level: u8) -> BTreeMap<Category, CategoryOptions> {
    let mut presets = BTreeMap::new();
    let stored = CategoryOptions {
        compression: Some(CodecSpec::none()),
        ..CategoryOptions::default()
    };
    presets.insert(Category::Incompressible, stored);
    // Longer windows find less for the same time.
    let (flac, window) = match level {
        0 => return presets,
        1..=4 => ("flac:level=3", 0),
        5..=7 => ("flac:level=5", 16),
        _ => ("flac:level=8", 16),
    };
    let by_name = Some(Order::RevPath);
    let waveform = CategoryOptions {
        // A build without FLAC has nothing better than the general one; the same for pixels.
        compression: flac.parse().ok(),
        window_bits: Some(window),
        order: by_name.clone().filter(|_| level < 8),
        ..CategoryOptions::default()
    };
    let image = CategoryOptions {
        compression: "ricepp".parse().ok(),
        window_bits: Some(0),
        order: by_name,
        ..CategoryOptions::default()
    };
    presets.insert(Category::PcmWaveform, waveform);
    presets.insert(Category::FitsImage, image);
    presets
}

impl BuildOptions {
    /// Highest preset.
    pub const MAX_LEVEL: u8 = 9;

    /// The preset `level`, 0..=9 (format/08 section 6); higher numbers mean 9.
    pub fn level(level: u8) -> Self {
        let level = level.min(Self::MAX_LEVEL);
        let (bits, data, metadata, window, step) = match level {
            0 => (20, "null", "null", 0, 0),
            1 => (20, "lz4", "null", 0, 0),
            2 => (20, "lz4hc:level=9", "null", 12, 2),
            3 => (21, "lz4hc:level=9", "null", 12, 2),
            4 => (22, "zstd:level=11", "zstd:level=12", 11, 2),
            5 => (23, ADAPTIVE, "zstd:level=12", 11, 3),
            6 => (24, ADAPTIVE, "zstd:level=12", 11, 3),
            7 => (24, STRONG, "zstd:level=19", 11, 3),
            8 => (24, "lzma:level=9:binary=auto", "lzma:level=9", 11, 3),
            _ => (26, "lzma:level=9:binary=auto", "lzma:level=9", 11, 3),
        };
        // Including the block being filled, 16 to 128 MiB.
        let lookback = match level {
            0 | 1 => 1,
            2 | 3 => 16,
            4 | 5 => 8,
            6..=8 => 4,
            _ => 2,
        };
        let alternative = (level == 7).then(|| codec("lzma:level=9"));
        let small = if level == 0 { "null" } else { "zstd:level=16" };
        let order = match level {
            0 => Order::None,
            1 => Order::Versions(FamilyOptions::default()),
            _ => Order::Families(FamilyOptions::default()),
        };
        Self {
            block_size_bits: bits,
            compression: codec(data),
            schema_compression: codec(small),
            metadata_compression: codec(metadata),
            metadata_alternative: alternative,
            history_compression: codec(small),
            window_bits: window,
            window_step: step,
            lookback,
            bloom_filter_size: 4,
            categorizers: Vec::new(),
            categories: category_presets(level),
            hook: None,
            category_names: true,
            category_metadata: true,
            order,
            front: None,
            max_similarity_size: None,
            file_hash: Some(FileHash::Xxh3_128),
            workers: std::thread::available_parallelism().map_or(1, usize::from),
            scanner_workers: None,
            segmenter_workers: None,
            thread_start: None,
            compress_niceness: 5,
            memory_limit: None,
            spool: None,
            machine_memory: None,
            checkpoint: None,
            verify_duplicates: true,
            dissolve_hard_links: false,
            with_devices: false,
            with_specials: false,
            sparse: true,
            hollow: false,
            remove_empty_dirs: false,
            keep_all_times: false,
            time_resolution: TimeResolution::SECOND,
            set_owner: None,
            set_group: None,
            map_owner: None,
            map_group: None,
            set_time: None,
            latest_time: None,
            chmod: None,
            xattrs: XattrFilter::all(),
            set_xattrs: Vec::new(),
            keep_birth_times: false,
            file_flags: false,
            create_timestamp: None,
            history: Some(HistoryOptions::default()),
            section_index: true,
            match_index: false,
            hints: None,
            hardlink_table: true,
            header: None,
            packing: Packing::auto(),
        }
    }

    /// Threads for ordering, and, if there is enough memory, for segmenting.
    pub(crate) fn segmenters(&self) -> usize {
        self.segmenter_workers.unwrap_or(self.workers)
    }

    /// The calling thread begins to work for a group.
    pub(crate) fn begin(&self, group: ThreadGroup) {
        if let Some(start) = &self.thread_start {
            (start.0)(group);
        }
    }

    /// Threads for scanning.
    pub(crate) fn scanners(&self) -> usize {
        self.scanner_workers.unwrap_or(self.workers)
    }

    /// Codec of the blocks of a category.
    #[must_use]
    pub fn codec_of(&self, category: Category) -> &CodecSpec {
        let own = self.categories.get(&category);
        own.and_then(|own| own.compression.as_ref())
            .unwrap_or(&self.compression)
    }

    /// Whether anything is ordered by the keys of the hook.
    #[must_use]
    pub fn uses_keys(&self) -> bool {
        let own = self
            .categories
            .values()
            .filter_map(|own| own.order.as_ref());
        let mut orders = own.chain([&self.order]);
        orders.any(|order| matches!(order, Order::Script(_)))
    }

    /// Block size in bytes.
    pub fn block_size(&self) -> u32 {
        1 << self.block_size_bits.clamp(10, 30)
    }
}
