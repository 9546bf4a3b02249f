//! How much memory a build takes, and what a limit leaves for blocks and compressors.
//!
//! Two parts bound the resident memory. The input decides the first part:
//!
//! - lists of entries and contents
//! - the block that is filled, the blocks that are searched, and their indices
//! - small files that stay in memory
//!
//! The build chooses the second part, in this order:
//!
//! 1. the number of compression threads, each with the state of its codec and a payload
//! 2. the number of blocks in flight, so that these threads always have something to do
//! 3. the number of streams that are segmented at the same time
//!
//! Codecs state their own sizes. All other sizes are upper bounds by count. If a stream is smaller
//! than a block, its blocks and compressors count with the size of the stream.
//!
//! The number of contents is known when all files have been compared. Before that only certain things
//! count: entries, and contents of different sizes if there is one stream only.

use redwarfs_codec::{CodecSpec, ContentKind};

use crate::contents::{Fragments, Item};
use crate::error::{Error, Result};
use crate::options::{BuildOptions, Order};
use crate::progress::{Level, Progress};
use crate::segmenter;
use crate::settings::StreamSettings;

/// The program, its stacks, and the buffers of single threads that are not counted below.
const PROGRAM: u64 = 32 << 20;
/// Buffers of a thread that reads files, or, before that, the entries that it has listed ahead.
const READER: u64 = 2 << 20;
/// An entry in the tree and in the table of small files, without its name.
const ENTRY: u64 = 90;
/// Two more times of an entry.
const TIMES: u64 = 32;
/// An entry in the tree, in lists of numbers and in encoded tables, while metadata is made.
const NUMBERED: u64 = 110;
/// An entry of the directory that is being listed: as the source gives it and in the tree.
const LISTED: u64 = 320;
/// Names and targets of symlinks with their places, while the list of them grows.
const STRINGS: u64 = 2;
/// Copies of them while metadata is made.
const COPIES: u64 = 3;
/// A content and its item, their places in the sequence and among the chunks, and a chunk.
const CONTENT: u64 = 120;
/// The files of a content, its chunk, and their places, while metadata is made.
const PLACED_CONTENT: u64 = 64;
/// An entry and its inode in finished metadata, without its name; twice the usual value.
const STORED_ENTRY: u64 = 48;
/// A content in finished metadata.
const STORED_CONTENT: u64 = 24;
/// What ordering by digests takes for a content on top.
const DIGEST: u64 = 150;
/// What ordering by names and sketches takes for a content on top: 16 features, and pairs.
const SKETCH: u64 = 400;
/// Memory of collating for a content: two sequences, and the previous one.
const PLACED: u64 = 60;
/// And for a directory: the paths in it that are compared with those of others.
const VERSION: u64 = 600;
/// An indexed window: two slots of eight bytes, and again while the index grows.
const WINDOW: u64 = 32;
/// A path of an explicit order in addition to its bytes, including the lookup table.
const LISTED_PATH: u64 = 48;
const POSITION: u64 = 72;
/// The two filters before the index.
const FILTER: u64 = 2 << 20;
/// Small files that are kept between scan and segmenter, at most.
const SMALL_FILES: u64 = 128 << 20;
/// This part of a limit is left to the overhead of the allocator.
const MARGIN: u64 = 10;
/// More blocks in flight for each thread only cost memory.
const BLOCKS_PER_WORKER: usize = 64;

/// Number of things in the input.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Load {
    pub(crate) entries: u64,
    /// Those of the entries that are directories and have been listed.
    pub(crate) directories: u64,
    pub(crate) contents: u64,
    /// Bytes of different names and targets of symlinks.
    pub(crate) strings: u64,
    /// Bytes of the source, of the hook, and of the results of the hook.
    pub(crate) beside: u64,
    /// Bytes of all files.
    pub(crate) listed: u64,
    /// Bytes that different contents have at least. Counts while streams are not known.
    pub(crate) bytes: u64,
}

/// The input of a stream.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StreamLoad<'a> {
    pub(crate) settings: &'a StreamSettings<'a>,
    pub(crate) items: u64,
    pub(crate) bytes: u64,
}

impl<'a> StreamLoad<'a> {
    /// Of each stream that has items; `hollow` says that none of their data is stored.
    pub(crate) fn of_all(fragments: &'a Fragments<'_>, hollow: bool) -> Vec<Self> {
        let load = |(items, settings): (&[Item], _)| {
            let bytes = items.iter().map(|item| item.size);
            Self {
                settings,
                items: items.len() as u64,
                bytes: if hollow { 0 } else { bytes.sum() },
            }
        };
        fragments.by_stream().map(load).collect()
    }

    /// Bytes of its largest block.
    fn block(&self) -> u64 {
        (self.settings.segment.block_size as u64).min(self.bytes)
    }

    /// Number of its blocks, at most.
    fn blocks(&self) -> u64 {
        self.bytes
            .div_ceil((self.settings.segment.block_size as u64).max(1))
    }

    /// What segmenting it takes.
    fn segmenter(&self) -> u64 {
        let segment = &self.settings.segment;
        let searched = (segment.lookback.max(1) as u64).min(self.blocks());
        // The block being filled is one of the searched blocks. Two more wait for reuse, and one is
        // handed over.
        let blocks = searched.saturating_add(3).min(self.blocks());
        let windows = segmenter::windows(segment, self.block());
        (blocks.saturating_mul(self.block()))
            .saturating_add(searched.saturating_mul(windows.saturating_mul(WINDOW)))
            .saturating_add(segmenter::buffered(segment).min(self.bytes))
            .saturating_add(segmenter::remembered(segment, self.bytes))
            .saturating_add(FILTER)
            .saturating_add(READER)
    }

    /// Memory of a compression thread, in addition to its present block.
    fn compressor(&self, options: &BuildOptions) -> u64 {
        let block = self.block();
        let memory = |codec: &CodecSpec| {
            usize::try_from(block).map_or(u64::MAX, |block| codec.encoder_memory(block))
        };
        let codec = &self.settings.codec;
        let mut state = memory(codec);
        if codec.requires() != ContentKind::Bytes {
            // Data that it rejects goes to the general codec.
            state = state.saturating_add(memory(&options.compression));
        }
        state.saturating_add(block)
    }

    /// What a compression thread takes, its block included.
    fn job(&self, options: &BuildOptions) -> u64 {
        self.compressor(options).saturating_add(self.block())
    }

    /// Additional memory for ordering its items, without the memory that all streams share.
    fn order(&self) -> u64 {
        let mut order = self.settings.order;
        if let Order::Script(rest) = order {
            order = rest;
        }
        let items = self.items;
        match order {
            Order::Similarity | Order::Nilsimsa(_) => items.saturating_mul(DIGEST),
            Order::Versions(_) => items.saturating_mul(PLACED),
            Order::Families(_) => items.saturating_mul(SKETCH),
            Order::Explicit(list) => (list.len() as u64).saturating_mul(POSITION),
            _ => 0,
        }
    }

    /// Whether that looks for versions of directories.
    fn collates(&self) -> bool {
        let mut order = self.settings.order;
        if let Order::Script(rest) = order {
            order = rest;
        }
        matches!(order, Order::Versions(_) | Order::Families(_))
    }
}

/// What a build may use.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Plan {
    /// Compression threads.
    pub(crate) workers: usize,
    /// Streams that are segmented at a time.
    pub(crate) segmenters: usize,
    /// Blocks between segmenter and output.
    pub(crate) blocks: usize,
}

/// Bytes of memory that this machine has.
#[must_use]
pub fn physical_memory() -> u64 {
    crate::os::physical_memory()
}

/// Bytes of small files that may be kept.
pub(crate) fn small_files(options: &BuildOptions) -> u64 {
    let limit = options.memory_limit.unwrap_or_else(|| machine(options));
    SMALL_FILES.min(limit / 8)
}

fn machine(options: &BuildOptions) -> u64 {
    options.machine_memory.unwrap_or_else(physical_memory)
}

/// The most that one of the streams takes of something.
fn most<'s>(streams: &[StreamLoad<'s>], of: impl Fn(&StreamLoad<'s>) -> u64) -> u64 {
    streams.iter().map(of).fold(0, u64::max)
}

/// Memory that does not depend on threads, except kept small files.
fn fixed(options: &BuildOptions, load: Load, streams: &[StreamLoad<'_>]) -> u64 {
    let digests = streams.iter().map(StreamLoad::order);
    let mut ordering = digests.fold(0, u64::saturating_add);
    if streams.iter().any(StreamLoad::collates) {
        ordering = ordering.saturating_add(load.directories.saturating_mul(VERSION));
    }
    // A reader has something to do.
    let readers = (options.scanners() as u64).min(load.entries + 1);
    // Ordering is over before blocks are made.
    common(options, load)
        .saturating_add(READER.saturating_mul(readers))
        .saturating_add(load.entries.saturating_mul(ENTRY + times(options)))
        .saturating_add(load.strings.saturating_mul(STRINGS))
        .saturating_add(load.contents.saturating_mul(CONTENT))
        .saturating_add(most(streams, StreamLoad::segmenter).max(ordering))
}

/// Lists of the orders that are explicit.
fn lists(options: &BuildOptions) -> u64 {
    fn bytes(order: &Order) -> u64 {
        match order {
            Order::Explicit(list) => {
                let paths = list.iter().map(|path| path.len() as u64 + LISTED_PATH);
                paths.fold(0, u64::saturating_add)
            }
            Order::Script(rest) => bytes(rest),
            _ => 0,
        }
    }
    let own = options.categories.values();
    let orders = own.filter_map(|own| own.order.as_ref());
    let orders = orders.chain([&options.order]);
    orders.map(bytes).fold(0, u64::saturating_add)
}

/// Memory from the beginning to the end.
fn common(options: &BuildOptions, load: Load) -> u64 {
    let header = options.header.as_ref().map_or(0, Vec::len) as u64;
    let history = options.history.as_ref();
    let arguments = history.and_then(|history| history.arguments.as_ref());
    let arguments = arguments.map_or(0, |arguments| arguments.iter().map(String::len).sum()) as u64;
    PROGRAM
        .saturating_add(header)
        // Raw, in the entry, encoded and compressed.
        .saturating_add(arguments.saturating_mul(4))
        .saturating_add(lists(options))
        .saturating_add(load.beside)
}

/// What the times of an entry take that not every build keeps.
fn times(options: &BuildOptions) -> u64 {
    if options.keep_all_times { TIMES } else { 0 }
}

/// What making the metadata takes: there are no blocks and no threads by then.
fn tables(options: &BuildOptions, load: Load) -> u64 {
    common(options, load)
        .saturating_add(load.entries.saturating_mul(NUMBERED + times(options)))
        .saturating_add(load.strings.saturating_mul(COPIES))
        .saturating_add(load.contents.saturating_mul(PLACED_CONTENT))
}

/// What compressing the metadata takes: everything else is gone by then.
fn metadata(options: &BuildOptions, load: Load) -> u64 {
    let frozen = (load.entries.saturating_mul(STORED_ENTRY))
        .saturating_add(load.contents.saturating_mul(STORED_CONTENT))
        .saturating_add(load.strings);
    let codec = usize::try_from(frozen).map_or(u64::MAX, |frozen| {
        options.metadata_compression.encoder_memory(frozen)
    });
    common(options, load)
        .saturating_add(frozen.saturating_mul(2))
        .saturating_add(codec)
}

/// Whether there is room to compress this many bytes of metadata with a further codec. Without a limit
/// there always is, so that an image does not depend on the machine.
pub(crate) fn has_room(
    options: &BuildOptions,
    codec: &CodecSpec,
    load: Load,
    frozen: usize,
) -> bool {
    let Some(limit) = options.memory_limit else {
        return true;
    };
    let needed = common(options, load)
        .saturating_add((frozen as u64).saturating_mul(3))
        .saturating_add(codec.encoder_memory(frozen));
    usable(options, limit, load) >= needed
}

/// Compares the input found so far with the limit, before streams are known.
#[derive(Debug)]
pub(crate) struct Watch<'o> {
    options: &'o BuildOptions,
    general: StreamSettings<'o>,
}

impl<'o> Watch<'o> {
    pub(crate) fn new(options: &'o BuildOptions) -> Self {
        Self {
            options,
            general: StreamSettings::general(options),
        }
    }

    /// # Errors
    /// [`Error::MemoryLimit`] if this does not fit the limit of the options.
    pub(crate) fn check(&self, load: Load) -> Result<()> {
        if self.options.memory_limit.is_none() {
            return Ok(());
        }
        accept(self.options, load, &[self.stream(load)], false)
    }

    /// How many entries the next directory may have.
    pub(crate) fn room(&self, load: Load) -> u64 {
        match self.options.memory_limit {
            None => u64::MAX,
            Some(limit) => {
                usable(self.options, limit, load).saturating_sub(self.found(load)) / LISTED
            }
        }
    }

    /// The error of a directory that has more entries than there is [room](Self::room) for.
    pub(crate) fn too_many(&self, load: Load) -> Error {
        let directory = self.room(load).saturating_add(1).saturating_mul(LISTED);
        let needed = self.found(load).saturating_add(directory);
        refused(self.options, needed, load, false)
    }

    fn found(&self, load: Load) -> u64 {
        let stream = self.stream(load);
        fixed(self.options, load, &[stream]).saturating_add(stream.job(self.options))
    }

    /// The input that goes to the general stream for certain.
    fn stream(&self, load: Load) -> StreamLoad<'_> {
        let only = self.options.categorizers.is_empty() && self.options.hook.is_none();
        StreamLoad {
            settings: &self.general,
            items: if only { load.contents } else { 0 },
            bytes: if only { load.bytes } else { 0 },
        }
    }
}

/// Bytes of a limit that may be planned with.
fn usable(options: &BuildOptions, limit: u64, load: Load) -> u64 {
    (limit - limit / MARGIN).saturating_sub(small_files(options).min(load.listed))
}

/// With one compression thread and one block.
fn needed(options: &BuildOptions, load: Load, streams: &[StreamLoad<'_>]) -> u64 {
    let job = most(streams, |stream| stream.job(options));
    let building = fixed(options, load, streams).saturating_add(job);
    building
        .max(tables(options, load))
        .max(metadata(options, load))
}

/// Compares the memory that the input needs with the limit of the options.
///
/// # Errors
/// [`Error::MemoryLimit`] if that is more.
pub(crate) fn check(options: &BuildOptions, load: Load, streams: &[StreamLoad<'_>]) -> Result<()> {
    accept(options, load, streams, true)
}

fn accept(
    options: &BuildOptions,
    load: Load,
    streams: &[StreamLoad<'_>],
    whole: bool,
) -> Result<()> {
    let Some(limit) = options.memory_limit else {
        return Ok(());
    };
    let needed = needed(options, load, streams);
    if usable(options, limit, load) >= needed {
        return Ok(());
    }
    Err(refused(options, needed, load, whole))
}

/// The limit is too low for this number of bytes.
fn refused(options: &BuildOptions, needed: u64, load: Load, whole: bool) -> Error {
    // Small files and the margin are parts of the limit themselves.
    let all = needed.saturating_add(SMALL_FILES.min(load.listed));
    let all = all.saturating_add(all / (MARGIN - 1));
    let part = u128::from(needed) * 40 / 31;
    let part = u64::try_from(part).unwrap_or(u64::MAX);
    Error::MemoryLimit {
        limit: options.memory_limit.unwrap_or(u64::MAX),
        needed: all.min(part).saturating_add(MARGIN),
        whole,
    }
}

/// Chooses the number of threads and of blocks in flight.
///
/// # Errors
/// [`Error::MemoryLimit`] if the limit of the options is too low for one thread and one block.
pub(crate) fn plan(
    options: &BuildOptions,
    load: Load,
    streams: &[StreamLoad<'_>],
    progress: &dyn Progress,
) -> Result<Plan> {
    let block = u64::from(options.block_size());
    let fixed = fixed(options, load, streams);
    let job = most(streams, |stream| stream.job(options));
    let segmenter = most(streams, StreamLoad::segmenter);
    let machine = machine(options);
    let limit = options.memory_limit.unwrap_or(machine / 4 * 3);
    accept(options, load, streams, true)?;
    let wanted = options.workers;
    let left = usable(options, limit, load).saturating_sub(fixed);
    let workers = usize::try_from(left / job.max(1)).unwrap_or(usize::MAX);
    let workers = workers.clamp(1, wanted.max(1));
    let blocks = streams.iter().map(StreamLoad::blocks);
    let blocks = blocks.fold(0, u64::saturating_add);
    if options.memory_limit.is_some() && workers < wanted && (workers as u64) < blocks {
        progress.log(
            Level::Warn,
            &format!(
                "low memory limit: compressing with {workers} instead of {wanted} threads, each of which takes {} MiB",
                job.div_ceil(1 << 20)
            ),
        );
    }
    let beside = most(streams, |stream| stream.compressor(options));
    let mut queue = left.saturating_sub(beside.saturating_mul(workers as u64));
    if options.memory_limit.is_none() {
        queue = queue.min(machine / 8);
    }
    // Each of them has a block to hand over, in addition to the blocks that keep the workers busy.
    let others = queue.saturating_sub(block.saturating_mul(2 * workers as u64 + 2));
    let others = others / segmenter.saturating_add(block.saturating_mul(2));
    let wanted = streams.len().min(options.segmenters());
    let segmenters = usize::try_from(others)
        .unwrap_or(usize::MAX)
        .saturating_add(1)
        .clamp(1, wanted.max(1));
    queue -= segmenter.saturating_mul(segmenters as u64 - 1);
    let most = workers.saturating_mul(BLOCKS_PER_WORKER);
    let blocks = usize::try_from(queue / block).unwrap_or(usize::MAX);
    Ok(Plan {
        workers,
        segmenters,
        blocks: blocks.clamp(1, most),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::category::{Category, StreamKey};
    use crate::options::{CategoryOptions, FamilyOptions, NilsimsaOptions};
    use crate::progress::SilentProgress;

    /// Of a build with one stream, of so many bytes.
    fn plan_of(options: &BuildOptions, load: Load, bytes: u64) -> Result<Plan> {
        let settings = StreamSettings::general(options);
        let stream = StreamLoad {
            settings: &settings,
            items: load.contents,
            bytes,
        };
        plan(options, load, &[stream], &SilentProgress::default())
    }

    #[test]
    fn a_second_codec_needs_room_under_a_limit_only() {
        let mut options = BuildOptions::level(7);
        let lzma: CodecSpec = "lzma:level=9".parse().unwrap();
        let has_room = |options: &BuildOptions, frozen| {
            super::has_room(options, &lzma, Load::default(), frozen)
        };
        assert!(has_room(&options, 64 << 20));
        options.memory_limit = Some(300 << 20);
        assert!(has_room(&options, 1 << 20));
        assert!(!has_room(&options, 64 << 20));
    }

    #[test]
    fn what_is_said_to_be_needed_is_enough() {
        for level in 0..=9 {
            for (entries, bytes) in [
                (0, 0),
                (1, 3),
                (1, 1 << 40),
                (1000, 1 << 24),
                (1_000_000, 1 << 36),
            ] {
                let load = Load {
                    entries,
                    directories: entries / 10,
                    contents: entries,
                    strings: 20 * entries,
                    listed: bytes,
                    ..Load::default()
                };
                let mut options = BuildOptions::level(level);
                options.workers = 4;
                options.memory_limit = Some(1 << 20);
                let Err(Error::MemoryLimit { needed, .. }) = plan_of(&options, load, bytes) else {
                    panic!("level {level}: 1 MiB is enough");
                };
                options.memory_limit = Some(needed);
                let plan = plan_of(&options, load, bytes);
                assert!(plan.is_ok(), "level {level}: {needed}");
                options.memory_limit = Some(needed / 20 * 17);
                let plan = plan_of(&options, load, bytes);
                assert!(plan.is_err(), "level {level}: {needed}");
                assert!(needed < 3 << 30, "level {level}: {needed}");
            }
        }
    }

    #[test]
    fn little_input_needs_little() {
        for level in 0..=9 {
            let mut options = BuildOptions::level(level);
            options.workers = 2;
            let mut last = 0;
            for (bytes, most) in [(0, 56), (3, 56), (100 << 10, 64), (4 << 20, 192)] {
                options.memory_limit = Some(1);
                let load = Load {
                    entries: 2,
                    contents: 1,
                    listed: bytes,
                    ..Load::default()
                };
                let Err(Error::MemoryLimit { needed, .. }) = plan_of(&options, load, bytes) else {
                    panic!("level {level}: 1 byte is enough");
                };
                assert!(needed < most << 20, "level {level}, {bytes}: {needed}");
                assert!(needed >= last, "level {level}, {bytes}: {needed}");
                last = needed;
            }
        }
    }

    /// What an order takes counts wherever it comes from.
    #[test]
    fn orders_of_categories_count() {
        let load = Load {
            entries: 2_000_000,
            contents: 2_000_000,
            listed: 1 << 33,
            ..Load::default()
        };
        let needed = |general: Order, own: Option<Order>| {
            let mut options = BuildOptions::level(1);
            options.order = general;
            options.memory_limit = Some(1 << 20);
            let category = CategoryOptions {
                order: own,
                ..CategoryOptions::default()
            };
            options.categories.insert(Category::Hotness, category);
            let general = StreamSettings::general(&options);
            let hot = StreamSettings::new(&options, StreamKey::plain(Category::Hotness));
            let of = |settings, items| StreamLoad {
                settings,
                items,
                bytes: 1 << 30,
            };
            let streams = [of(&general, 1000), of(&hot, load.contents)];
            match plan(&options, load, &streams, &SilentProgress::default()) {
                Err(Error::MemoryLimit { needed, .. }) => needed,
                _ => 0,
            }
        };
        let families = || Order::Families(FamilyOptions::default());
        let plain = needed(Order::Path, None);
        for order in [Order::Nilsimsa(NilsimsaOptions::default()), families()] {
            let everywhere = needed(order.clone(), None);
            assert!(everywhere > plain + 128 * load.contents);
            let own = needed(Order::Path, Some(order));
            assert!(own > everywhere / 20 * 19, "{own} {everywhere}");
        }
        assert!(needed(families(), Some(Order::Path)) < plain + (2 << 20));
    }

    #[test]
    fn more_memory_means_more_threads_and_blocks() {
        let mut options = BuildOptions::level(9);
        options.workers = 8;
        let mut last = Plan {
            workers: 0,
            segmenters: 0,
            blocks: 0,
        };
        for gib in [2, 4, 8, 16, 64] {
            options.memory_limit = Some(gib << 30);
            let settings = StreamSettings::general(&options);
            let stream = StreamLoad {
                settings: &settings,
                items: 1,
                bytes: 1 << 40,
            };
            let progress = SilentProgress::default();
            let plan = plan(&options, Load::default(), &[stream; 5], &progress).expect("enough");
            assert!(plan.workers >= last.workers, "{gib}");
            assert!(plan.segmenters >= last.segmenters, "{gib}");
            assert!(plan.blocks >= plan.workers, "{gib}");
            last = plan;
        }
        assert_eq!((last.workers, last.segmenters), (8, 5));
    }

    #[test]
    fn the_default_fits_two_gib() {
        for level in 0..=9 {
            let mut options = BuildOptions::level(level);
            options.workers = 16;
            options.machine_memory = Some(2 << 30);
            let settings = StreamSettings::general(&options);
            let streams = [StreamLoad {
                settings: &settings,
                items: 0,
                bytes: 1 << 40,
            }; 20];
            let load = Load {
                listed: 1 << 40,
                ..Load::default()
            };
            let plan = plan(&options, load, &streams, &SilentProgress::default());
            let plan = plan.expect("no limit");
            let block = u64::from(options.block_size());
            let job = streams[0].compressor(&options);
            let total = fixed(&options, load, &streams)
                + (plan.segmenters as u64 - 1) * streams[0].segmenter()
                + small_files(&options)
                + plan.workers as u64 * job
                + plan.blocks as u64 * block;
            assert!(total <= 7 << 28, "level {level}: {total}");
        }
    }
}
