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
//!
//! If a limit could be too low, the inodes of the listed tree go to a temporary file (`Tree::spill`).

mod enough;

use redwarfs_codec::{CodecSpec, ContentKind};

use crate::contents::{Fragments, Item};
use crate::error::{Error, Result};
use crate::options::{BuildOptions, Order, TimeResolution};
use crate::progress::{Level, Progress};
use crate::segmenter;
use crate::settings::StreamSettings;
use enough::Known;

/// The program, its stacks, and the buffers of single threads that are not counted below.
const PROGRAM: u64 = 32 << 20;
/// Buffers of a thread that reads files, or, before that, the entries that it has listed ahead.
const READER: u64 = 2 << 20;
/// An entry in the tree and in the table of small files, without its name.
const ENTRY: u64 = 72;
/// Two more times of an entry.
const TIMES: u64 = 24;
/// An entry in the tree, in lists of numbers and in encoded tables, while metadata is made.
const NUMBERED: u64 = 80;
/// An entry in lists of numbers, in the order of names and in encoded tables, while names become metadata.
const NAMED: u64 = 60;
/// A content in the chunk table, with its number.
const STORED_CHUNK: u64 = 20;
/// What of an entry in the tree can be in a temporary file, except two more times.
pub(crate) const IN_FILE: u64 = 24;
/// An entry of the directory that is being listed: as the source gives it and in the tree.
const LISTED: u64 = 320;
/// Copies of names and targets of symlinks while metadata is made, beside those of the tree, if they are not compressed one by
/// one.
const COPIES: u64 = 1;
/// A content, its digest, and the tables in which equal ones are looked for.
const COMPARED: u64 = 88;
/// A content with its item, or later with its place in the sequence and among the chunks, and a chunk. Digests are gone by then.
const CONTENT: u64 = 80;
/// The second chunk of a content, and the place of the first one, while bytes of blocks have moved.
const MOVED_CONTENT: u64 = 28;
/// The files of a content, its chunk, and their places, while metadata is made.
const PLACED_CONTENT: u64 = 64;
/// An entry and its inode in finished metadata, without its name. The entry has two numbers of four bytes. The inode has
/// at most four bytes for the time, and usually a byte each for mode, owner, group and links. Four bytes are to spare.
const STORED_ENTRY: u64 = 20;
/// And so much more for a time in less than seconds.
const FINE_TIME: u64 = 4;
/// A content in finished metadata.
const STORED_CONTENT: u64 = 16;
/// What ordering by digests that are no part of an item takes for a content on top.
const DIGEST: u64 = 150;
/// What ordering by names and sketches takes for a content on top, without its features.
const SKETCH: u64 = 72;
/// What it takes for a feature, pairs included.
const FEATURE: u64 = 21;
/// A content has about one feature for so many bytes, and at most so many.
const FEATURES: (u64, u64) = (64, 16);
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
    /// Memory of different names and targets of symlinks.
    pub(crate) strings: u64,
    /// Bytes of these strings, and of their places: what copies of them take.
    pub(crate) text: u64,
    /// The inodes are in a temporary file.
    pub(crate) spilled: bool,
    /// Features of all contents, when they are known.
    pub(crate) features: u64,
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
        // A block whose bytes move is there twice.
        let moved = u64::from(segment.rearranged);
        let blocks = searched.saturating_add(3);
        let blocks = blocks.min(self.blocks().saturating_add(moved));
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

    /// How it orders what a script has no key for.
    fn usual_order(&self) -> &Order {
        match self.settings.order {
            Order::Script(rest) => rest,
            order => order,
        }
    }

    /// Additional memory for ordering its items, without the memory that all streams share.
    fn order(&self) -> u64 {
        let items = self.items;
        match self.usual_order() {
            Order::Nilsimsa(_) => items.saturating_mul(DIGEST),
            Order::Versions(_) => items.saturating_mul(PLACED),
            Order::Families(_) => items.saturating_mul(SKETCH),
            Order::Explicit(list) => (list.len() as u64).saturating_mul(POSITION),
            _ => 0,
        }
    }

    /// Whether that compares features of contents.
    fn has_sketches(&self) -> bool {
        matches!(self.usual_order(), Order::Families(_))
    }

    /// Whether that looks for versions of directories.
    fn collates(&self) -> bool {
        matches!(self.usual_order(), Order::Versions(_) | Order::Families(_))
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
    let (_, each) = FEATURES;
    let sketched = streams.iter().filter(|stream| stream.has_sketches());
    let sketched = sketched.map(|stream| stream.items.saturating_mul(each));
    let features = load.features.min(sketched.fold(0, u64::saturating_add));
    ordering = ordering.saturating_add(features.saturating_mul(FEATURE));
    if streams.iter().any(StreamLoad::collates) {
        ordering = ordering.saturating_add(load.directories.saturating_mul(VERSION));
    }
    // A reader has something to do.
    let readers = (options.scanners() as u64).min(load.entries + 1);
    // Ordering is over before blocks are made.
    let later = most(streams, StreamLoad::segmenter).max(ordering);
    let moved = streams.iter().any(|of| of.settings.segment.rearranged);
    let content = CONTENT + if moved { MOVED_CONTENT } else { 0 };
    let later = later.saturating_add(load.contents.saturating_mul(content));
    common(options, load)
        .saturating_add(READER.saturating_mul(readers))
        .saturating_add(load.entries.saturating_mul(entry(ENTRY, options, load)))
        .saturating_add(load.strings)
        .saturating_add(load.contents.saturating_mul(COMPARED).max(later))
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

/// What is in memory of an entry that takes `usual` bytes without all times.
fn entry(usual: u64, options: &BuildOptions, load: Load) -> u64 {
    match (load.spilled, options.keep_all_times) {
        (true, _) => usual - IN_FILE,
        (false, true) => usual + TIMES,
        (false, false) => usual,
    }
}

/// What making the metadata takes: there are no blocks and no threads by then.
fn tables(options: &BuildOptions, load: Load) -> u64 {
    let compressed = options.metadata_compression != CodecSpec::none();
    let packing = options.packing.for_metadata(compressed);
    let copies = COPIES + u64::from(packing.names || packing.plain);
    // Targets of symlinks are copied while inodes are numbered.
    let numbered = (load.entries.saturating_mul(entry(NUMBERED, options, load)))
        .saturating_add(load.strings)
        .saturating_add(load.text.saturating_mul(COPIES))
        .saturating_add(load.contents.saturating_mul(PLACED_CONTENT));
    // Inodes, and the files of contents, are gone before names are copied.
    let times = if options.keep_all_times { TIMES } else { 0 };
    let named = (load.entries.saturating_mul(NAMED + times))
        .saturating_add(load.strings)
        .saturating_add(load.text.saturating_mul(copies))
        .saturating_add(load.contents.saturating_mul(STORED_CHUNK));
    common(options, load).saturating_add(numbered.max(named))
}

/// What compressing the metadata takes: everything else is gone by then.
fn metadata(options: &BuildOptions, load: Load) -> u64 {
    let times = match (
        options.keep_all_times,
        options.time_resolution == TimeResolution::SECOND,
    ) {
        (true, _) => TIMES,
        (false, true) => 0,
        (false, false) => FINE_TIME,
    };
    let frozen = (load.entries.saturating_mul(STORED_ENTRY + times))
        .saturating_add(load.contents.saturating_mul(STORED_CONTENT))
        .saturating_add(load.text);
    let codec = usize::try_from(frozen).map_or(u64::MAX, |frozen| {
        options.metadata_compression.encoder_memory(frozen)
    });
    // Before, there are the tables that it is made from. The codec counts its output.
    common(options, load)
        .saturating_add(frozen)
        .saturating_add(codec.max(frozen))
}

/// Whether there is room to compress this many bytes of metadata with a further codec, beside the payload of so many
/// bytes that the first one has made. Without a limit there always is, so that an image does not depend on the machine.
pub(crate) fn has_room(
    options: &BuildOptions,
    codec: &CodecSpec,
    load: Load,
    (frozen, payload): (usize, usize),
) -> bool {
    let Some(limit) = options.memory_limit else {
        return true;
    };
    // The other payload is smaller than this one.
    let needed = common(options, load)
        .saturating_add(frozen as u64)
        .saturating_add((payload as u64).saturating_mul(2))
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

    /// With a tree that is listed.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] if this does not fit the limit of the options.
    pub(crate) fn check(&self, load: Load) -> Result<()> {
        accept(self.options, load, &[self.stream(load)], Known::Listed)
    }

    /// As [`check`](Self::check), when nothing is known of the input.
    pub(crate) fn check_options(&self) -> Result<()> {
        let load = Load::default();
        accept(self.options, load, &[self.stream(load)], Known::Part)
    }

    /// As [`check`](Self::check), while entries are listed. The inodes may still go to a file.
    pub(crate) fn check_listing(&self, load: Load) -> Result<()> {
        let Some(limit) = self.options.memory_limit else {
            return Ok(());
        };
        let spilled = self.options.spool.is_some();
        let later = Load { spilled, ..load };
        accept(self.options, later, &[self.stream(later)], Known::Part)?;
        let found = self.found(load);
        match usable(self.options, limit, load) >= found {
            true => Ok(()),
            false => Err(refused(self.options, found, load, Known::Part)),
        }
    }

    /// Whether the limit could be too low, if all of so many files are different.
    pub(crate) fn could_be_too_low(&self, load: Load, files: u64) -> bool {
        let (bytes, most) = FEATURES;
        let features = files.saturating_mul(most).min(load.listed / bytes);
        let load = Load {
            contents: files,
            bytes: load.listed,
            features,
            ..load
        };
        let stream = StreamLoad {
            settings: &self.general,
            items: files,
            bytes: load.listed,
        };
        accept(self.options, load, &[stream], Known::All).is_err()
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
        refused(self.options, needed, load, Known::Part)
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
    let made = tables(options, load).max(metadata(options, load));
    // There are no small files in memory by then.
    building.max(made.saturating_sub(small_files(options).min(load.listed)))
}

/// Compares the memory that the input needs with the limit of the options.
///
/// # Errors
/// [`Error::MemoryLimit`] if that is more.
pub(crate) fn check(options: &BuildOptions, load: Load, streams: &[StreamLoad<'_>]) -> Result<()> {
    accept(options, load, streams, Known::All)
}

fn accept(
    options: &BuildOptions,
    load: Load,
    streams: &[StreamLoad<'_>],
    known: Known,
) -> Result<()> {
    let Some(limit) = options.memory_limit else {
        return Ok(());
    };
    let needed = needed(options, load, streams);
    if usable(options, limit, load) >= needed {
        return Ok(());
    }
    Err(refused(options, needed, load, known))
}

/// The limit is too low for this number of bytes.
fn refused(options: &BuildOptions, needed: u64, load: Load, known: Known) -> Error {
    let (enough, entries) = enough::enough(options, load, needed, known);
    Error::MemoryLimit {
        limit: options.memory_limit.unwrap_or(u64::MAX),
        needed: enough::limit_for(needed, load.listed),
        whole: known == Known::All,
        enough,
        entries,
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
    accept(options, load, streams, Known::All)?;
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
mod tests;
