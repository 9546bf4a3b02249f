//! How much memory a build takes, and what a limit leaves for blocks and compressors.
//!
//! Resident memory is bounded by the sum of what is known (lists of entries and contents, the
//! block that is filled, the blocks that are searched and their indices, small files that are
//! kept) and of what can be chosen: the number of compression threads, each with the state of
//! its codec and a payload, the number of streams that are segmented at a time, and the number
//! of blocks in flight. Compression threads come first, then so many blocks that they always have
//! something to do, then further streams. Sizes of codecs are those that
//! the codecs state; the others are upper bounds by count.

use redwarfs_codec::{CodecSpec, ContentKind};

use crate::error::{Error, Result};
use crate::options::{BuildOptions, Order};
use crate::pipeline::physical_memory;
use crate::progress::{Level, Progress};

/// The program, its stacks, and the buffers of single threads that are not counted below.
const PROGRAM: u64 = 32 << 20;
/// Buffers of a thread that reads files, or before that what it has listed ahead.
const READER: u64 = 2 << 20;
/// An entry in the tree, among the small files and in the metadata, but for its name.
const ENTRY: u64 = 200;
/// An entry of the directory that is being listed: as the source gives it and in the tree.
const LISTED: u64 = 320;
/// Copies of names and targets of symlinks that there are at the same time.
const COPIES: u64 = 3;
/// A content and its item, their places in the sequence and among the chunks, and a chunk.
const CONTENT: u64 = 130;
/// An entry and its inode in finished metadata, its name not included; twice of what is usual.
const STORED_ENTRY: u64 = 48;
/// A content in finished metadata.
const STORED_CONTENT: u64 = 24;
/// What ordering by digests takes for a content on top.
const DIGEST: u64 = 150;
/// What ordering by names and sketches takes for a content on top: 16 features, and pairs.
const SKETCH: u64 = 400;
/// What collating alone takes for a content: two sequences, and what was before it.
const PLACED: u64 = 60;
/// And for a directory: the paths in it that are compared with those of others.
const VERSION: u64 = 600;
/// An indexed window: two slots of eight bytes, and again while the index grows.
const WINDOW: u64 = 32;
/// A path of an explicit order beside its bytes: in the list and in the table that it is looked
/// up in.
const LISTED_PATH: u64 = 120;
/// The two filters in front of the index.
const FILTER: u64 = 2 << 20;
/// Small files that are kept between scan and segmenter, at most.
const SMALL_FILES: u64 = 128 << 20;
/// This part of a limit is left to what the allocator keeps for itself.
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
    /// Bytes that the source holds and the hook, and what the hook said.
    pub(crate) beside: u64,
    /// Streams to be segmented.
    pub(crate) streams: usize,
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

/// Bytes of small files that may be kept.
pub(crate) fn small_files(options: &BuildOptions) -> u64 {
    let limit = options.memory_limit.unwrap_or_else(|| machine(options));
    SMALL_FILES.min(limit / 8)
}

fn machine(options: &BuildOptions) -> u64 {
    options.machine_memory.unwrap_or_else(physical_memory)
}

/// What segmenting a stream takes.
fn segmenter(options: &BuildOptions) -> u64 {
    let block = u64::from(options.block_size());
    let own = options.categories.values();
    let lookback = own
        .clone()
        .filter_map(|own| own.lookback)
        .fold(options.lookback, u32::max);
    let windows = |bits: u32, step: u32| {
        let distance = (1u64 << bits.min(24)) >> step.min(24);
        if bits == 0 {
            0
        } else {
            block / distance.max(1)
        }
    };
    let indexed = own.fold(
        windows(options.window_bits, options.window_step),
        |most, own| {
            let bits = own.window_bits.unwrap_or(options.window_bits);
            most.max(windows(
                bits,
                own.window_step.unwrap_or(options.window_step),
            ))
        },
    );
    let searched = u64::from(lookback.max(1));
    // The one that is filled is one of those that are searched; two more wait for their reuse,
    // and one is handed over.
    (searched + 3)
        .saturating_mul(block)
        .saturating_add(searched.saturating_mul(indexed * WINDOW))
        .saturating_add(FILTER)
        .saturating_add(READER)
}

/// What does not depend on threads, but for small files that are kept.
fn fixed(options: &BuildOptions, load: Load) -> u64 {
    let mut explicit = 0u64;
    let order = match &options.order {
        Order::Explicit(list) => {
            // The list, and a table of it.
            let paths = list.iter().map(|path| path.len() as u64 + LISTED_PATH);
            explicit = paths.fold(0, u64::saturating_add);
            &options.order
        }
        Order::Script(rest) => rest,
        other => other,
    };
    let digests = match order {
        Order::Similarity | Order::Nilsimsa(_) => load.contents.saturating_mul(DIGEST),
        Order::Versions(_) => (load.contents.saturating_mul(PLACED))
            .saturating_add(load.directories.saturating_mul(VERSION)),
        Order::Families(_) => (load.contents.saturating_mul(SKETCH))
            .saturating_add(load.directories.saturating_mul(VERSION)),
        _ => 0,
    };
    // Ordering is over before blocks are made.
    common(options, load)
        .saturating_add(READER.saturating_mul(options.scanners() as u64))
        .saturating_add(load.entries.saturating_mul(ENTRY))
        .saturating_add(load.strings.saturating_mul(COPIES))
        .saturating_add(load.contents.saturating_mul(CONTENT))
        .saturating_add(segmenter(options).max(digests).max(explicit))
}

/// What is there from the beginning to the end.
fn common(options: &BuildOptions, load: Load) -> u64 {
    let header = options.header.as_ref().map_or(0, Vec::len) as u64;
    let history = options.history.as_ref();
    let arguments = history.and_then(|history| history.arguments.as_ref());
    let arguments = arguments.map_or(0, |arguments| arguments.iter().map(String::len).sum()) as u64;
    PROGRAM
        .saturating_add(header)
        // As they are, in the entry, encoded and compressed.
        .saturating_add(arguments.saturating_mul(4))
        .saturating_add(load.beside)
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

/// Whether there is room for compressing so many bytes of metadata with a codec as well. Without a
/// limit there always is, so that an image does not depend on the machine.
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
    usable(options, limit) >= needed
}

/// Compares what has been found of the input with the limit.
#[derive(Debug)]
pub(crate) struct Watch<'a> {
    options: &'a BuildOptions,
    /// What a compression thread takes, its block included.
    job: u64,
}

impl<'a> Watch<'a> {
    /// For the codecs that may be used.
    pub(crate) fn new<'c>(
        options: &'a BuildOptions,
        codecs: impl Iterator<Item = &'c CodecSpec>,
    ) -> Self {
        Self {
            options,
            job: job(options, codecs),
        }
    }

    /// `whole`: whether the input is known to its end.
    ///
    /// # Errors
    /// [`Error::MemoryLimit`] if this does not fit the limit of the options.
    pub(crate) fn check(&self, load: Load, whole: bool) -> Result<()> {
        check(self.options, self.job, load, whole)
    }

    /// How many entries the next directory may have.
    pub(crate) fn room(&self, load: Load) -> u64 {
        match self.options.memory_limit {
            None => u64::MAX,
            Some(limit) => usable(self.options, limit).saturating_sub(self.found(load)) / LISTED,
        }
    }

    /// The error of a directory that has more entries than there is [room](Self::room) for.
    pub(crate) fn too_many(&self, load: Load) -> Error {
        let directory = self.room(load).saturating_add(1).saturating_mul(LISTED);
        let needed = self.found(load).saturating_add(directory);
        refused(self.options, needed, false)
    }

    fn found(&self, load: Load) -> u64 {
        fixed(self.options, load).saturating_add(self.job)
    }
}

/// Bytes of a limit that may be planned with.
fn usable(options: &BuildOptions, limit: u64) -> u64 {
    (limit - limit / MARGIN).saturating_sub(small_files(options))
}

/// With one compression thread and one block.
fn needed(options: &BuildOptions, job: u64, load: Load) -> u64 {
    let building = fixed(options, load).saturating_add(job);
    building.max(metadata(options, load))
}

fn check(options: &BuildOptions, job: u64, load: Load, whole: bool) -> Result<()> {
    let Some(limit) = options.memory_limit else {
        return Ok(());
    };
    let needed = needed(options, job, load);
    if usable(options, limit) >= needed {
        return Ok(());
    }
    Err(refused(options, needed, whole))
}

/// The limit is not enough for so many bytes.
fn refused(options: &BuildOptions, needed: u64, whole: bool) -> Error {
    // Small files and the margin are parts of the limit themselves.
    let all = needed.saturating_add(SMALL_FILES);
    let all = all.saturating_add(all / (MARGIN - 1));
    let part = u128::from(needed) * 40 / 31;
    let part = u64::try_from(part).unwrap_or(u64::MAX);
    Error::MemoryLimit {
        limit: options.memory_limit.unwrap_or(u64::MAX),
        needed: all.min(part).saturating_add(MARGIN),
        whole,
    }
}

/// What a compression thread takes, its block included.
fn job<'a>(options: &BuildOptions, codecs: impl Iterator<Item = &'a CodecSpec>) -> u64 {
    compressor(options, codecs).saturating_add(u64::from(options.block_size()))
}

/// What a compression thread takes beside the block that it works on.
fn compressor<'a>(options: &BuildOptions, codecs: impl Iterator<Item = &'a CodecSpec>) -> u64 {
    let block = options.block_size() as usize;
    let general = options.compression.encoder_memory(block);
    let codecs = codecs.map(|codec| {
        let own = codec.encoder_memory(block);
        if codec.requires() == ContentKind::Bytes {
            own
        } else {
            // What it does not take goes to the general one.
            own.saturating_add(general)
        }
    });
    codecs.fold(0, u64::max).saturating_add(block as u64)
}

/// Chooses the number of threads and of blocks in flight.
///
/// # Errors
/// [`Error::MemoryLimit`] if the limit of the options is too low for one thread and one block.
pub(crate) fn plan<'a>(
    options: &BuildOptions,
    codecs: impl Iterator<Item = &'a CodecSpec>,
    load: Load,
    progress: &dyn Progress,
) -> Result<Plan> {
    let block = u64::from(options.block_size());
    let fixed = fixed(options, load);
    let job = job(options, codecs);
    let machine = machine(options);
    let limit = options.memory_limit.unwrap_or(machine / 4 * 3);
    check(options, job, load, true)?;
    let wanted = options.workers;
    let left = usable(options, limit).saturating_sub(fixed);
    let workers = usize::try_from(left / job.max(1)).unwrap_or(usize::MAX);
    let workers = workers.clamp(1, wanted.max(1));
    if options.memory_limit.is_some() && workers < wanted {
        progress.log(
            Level::Warn,
            &format!(
                "low memory limit: compressing with {workers} instead of {wanted} threads, each of which takes {} MiB",
                job.div_ceil(1 << 20)
            ),
        );
    }
    let mut queue = left.saturating_sub((job - block).saturating_mul(workers as u64));
    if options.memory_limit.is_none() {
        queue = queue.min(machine / 8);
    }
    // Each of them with something to hand over beside what keeps the workers busy.
    let others = queue.saturating_sub(block.saturating_mul(2 * workers as u64 + 2));
    let others = others / segmenter(options).saturating_add(block.saturating_mul(2));
    let wanted = load.streams.min(options.segmenters());
    let segmenters = usize::try_from(others)
        .unwrap_or(usize::MAX)
        .saturating_add(1)
        .clamp(1, wanted.max(1));
    queue -= segmenter(options).saturating_mul(segmenters as u64 - 1);
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
    use crate::progress::SilentProgress;

    fn plan_of(options: &BuildOptions, load: Load) -> Result<Plan> {
        let codecs = std::iter::once(&options.compression);
        plan(options, codecs, load, &SilentProgress::default())
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
            for entries in [0, 1000, 1_000_000] {
                let load = Load {
                    entries,
                    directories: entries / 10,
                    contents: entries,
                    strings: 20 * entries,
                    beside: 0,
                    streams: 9,
                };
                let mut options = BuildOptions::level(level);
                options.workers = 4;
                options.memory_limit = Some(1 << 20);
                let Err(Error::MemoryLimit { needed, .. }) = plan_of(&options, load) else {
                    panic!("level {level}: 1 MiB is enough");
                };
                options.memory_limit = Some(needed);
                assert!(plan_of(&options, load).is_ok(), "level {level}: {needed}");
                options.memory_limit = Some(needed / 20 * 17);
                assert!(plan_of(&options, load).is_err(), "level {level}: {needed}");
                assert!(needed < 3 << 30, "level {level}: {needed}");
            }
        }
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
        let load = Load {
            streams: 5,
            ..Load::default()
        };
        for gib in [2, 4, 8, 16, 64] {
            options.memory_limit = Some(gib << 30);
            let plan = plan_of(&options, load).expect("enough");
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
            let load = Load {
                streams: 20,
                ..Load::default()
            };
            let plan = plan_of(&options, load).expect("no limit");
            let block = u64::from(options.block_size());
            let job = compressor(&options, std::iter::once(&options.compression));
            let total = fixed(&options, Load::default())
                + (plan.segmenters as u64 - 1) * segmenter(&options)
                + small_files(&options)
                + plan.workers as u64 * job
                + plan.blocks as u64 * block;
            assert!(total <= 7 << 28, "level {level}: {total}");
        }
    }
}
