//! The memory of a rewrite, and the part of a limit that is left for jobs.
//!
//! The estimate is the sum of three parts:
//!
//! - the open image: its metadata and its tables of sections
//! - the metadata that is rebuilt
//! - the jobs between reading and writing, each with its compressor
//!
//! Codecs state their own sizes. All other sizes are upper bounds by count.

use redwarfs_format::metadata::MetadataView;
use redwarfs_format::section::{Section, SectionType};
use redwarfs_reader::Image;
use redwarfs_writer::{Error as WriteError, Level, Progress};

use crate::error::Result;
use crate::options::{Leading, RewriteOptions};
use crate::plan::Plan;

/// The program with its stacks, and the history.
const PROGRAM: u64 = 24 << 20;
/// Stack of a thread, and its buffer for verifying checksums.
const WORKER: u64 = 2 << 20;
/// A section in the tables of the old and of the new image.
const SECTION: u64 = 192;
/// An inode while metadata is rebuilt.
const INODE: u64 = 250;
/// An entry or a chunk while metadata is rebuilt.
const ROW: u64 = 40;
/// This part of a limit is left to the overhead of the allocator.
const MARGIN: u64 = 10;

/// The resources of a rewrite.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Allowance {
    /// Threads.
    pub(crate) workers: usize,
    /// Bytes that jobs may take together.
    pub(crate) jobs: u64,
    /// Blocks that are decoded ahead while one is cut, including that one.
    pub(crate) ahead: usize,
}

/// Bytes of a job that turns a block of `raw` bytes into a payload, from reading to writing: first the
/// stored and the decoded bytes, then the decoded bytes and the new payload.
pub(crate) fn block_job(stored: u64, raw: u64, codec: u64) -> u64 {
    stored
        .saturating_add(raw.saturating_mul(2))
        .saturating_add(codec)
}

/// Bytes of the job that recompresses the metadata.
pub(crate) fn metadata_job(image: &Image, options: &RewriteOptions, section: &Section) -> u64 {
    let raw = image.metadata().bytes().len();
    let codec = options.metadata_compression.encoder_memory(raw);
    block_job(section.length, raw as u64, codec)
}

/// The largest job.
fn largest_job(image: &Image, options: &RewriteOptions, plan: &Plan, rebuild: bool) -> u64 {
    let recut = options.block_size_bits.map(|bits| 1u64 << bits);
    let memory = |raw: u64| plan.most_memory(usize::try_from(raw).unwrap_or(usize::MAX));
    let old = u64::from(image.metadata().block_size());
    let jobs = image
        .container()
        .sections
        .iter()
        .map(|section| match (section.ty, recut) {
            (SectionType::HISTORY | SectionType::SECTION_INDEX, _) => 0,
            (SectionType::BLOCK, Some(new)) => block_job(0, new, memory(new)),
            (SectionType::BLOCK, None) if options.blocks => {
                block_job(section.length, old, memory(old))
            }
            (SectionType::METADATA_V2 | SectionType::METADATA_V2_SCHEMA, _) if rebuild => 0,
            (SectionType::METADATA_V2, _) if options.metadata => {
                metadata_job(image, options, section)
            }
            _ => section.length,
        });
    jobs.max().unwrap_or(0)
}

/// Memory of an open image, and of its tables.
fn opened(image: &Image, options: &RewriteOptions) -> u64 {
    let view = image.metadata();
    let counts = view.counts();
    // Packed tables are expanded.
    let expanded = u64::from(counts.directories)
        .saturating_mul(12)
        .saturating_add(u64::from(counts.inodes).saturating_mul(8));
    let sections = image.container().sections.len() as u64;
    let front = match &options.leading {
        Leading::Replace(bytes) => bytes.len() as u64,
        Leading::Keep | Leading::Remove => 0,
    };
    WORKER
        .saturating_mul(options.workers as u64)
        .saturating_add(view.bytes().len() as u64)
        .saturating_add(expanded)
        .saturating_add(sections.saturating_mul(SECTION))
        .saturating_add(front)
}

/// Additional memory for rebuilding the metadata.
fn rebuilding(view: &MetadataView, options: &RewriteOptions) -> u64 {
    let counts = view.counts();
    let data = view.bytes().len() as u64;
    let new_chunks = options
        .block_size_bits
        .map_or(0, |bits| view.totals().allocated >> bits);
    let rows = u64::from(counts.entries)
        .saturating_add(u64::from(counts.chunks))
        .saturating_add(new_chunks);
    // Names take twice their length. If they are compressed, this is their largest size.
    let tables = u64::from(counts.inodes)
        .saturating_mul(INODE)
        .saturating_add(rows.saturating_mul(ROW))
        .saturating_add(data.saturating_mul(4));
    // Names are compressed when the metadata is frozen. At that time the tables are dropped.
    let frozen = data
        .saturating_mul(2)
        .saturating_add(rows.saturating_mul(16));
    let codec = usize::try_from(frozen).map_or(u64::MAX, |frozen| {
        options.metadata_compression.encoder_memory(frozen)
    });
    tables.max(frozen.saturating_mul(2).saturating_add(codec))
}

/// Decides the number of threads, and the memory for jobs.
///
/// # Errors
/// [`WriteError::MemoryLimit`] if the limit of the options is too low for a single job at a time.
pub(crate) fn plan(
    image: &Image,
    options: &RewriteOptions,
    plan: &Plan,
    rebuild: bool,
    progress: &dyn Progress,
) -> Result<Allowance> {
    let job = largest_job(image, options, plan, rebuild);
    // While data is cut again, there are a few decoded blocks, and the block being filled.
    let (unit, filled) = match options.block_size_bits {
        Some(bits) => {
            let stored = image.container().blocks().map(|section| section.length);
            let old = u64::from(image.metadata().block_size());
            (block_job(stored.max().unwrap_or(0), old, 0), 1 << bits)
        }
        None => (0, 0),
    };
    let mut fixed = PROGRAM
        .saturating_add(opened(image, options))
        .saturating_add(filled);
    if rebuild {
        fixed = fixed.saturating_add(rebuilding(image.metadata(), options));
    }
    allow(fixed, job, unit, options, progress)
}

/// What a merge needs besides its images.
#[derive(Debug, Clone, Copy)]
pub(crate) struct MergeMemory {
    /// Bytes of the tree.
    pub(crate) tree: u64,
    /// Bytes of the block caches of all images.
    pub(crate) caches: u64,
    /// Bytes of a new block.
    pub(crate) block_size: u32,
    /// Whether data moves to new blocks.
    pub(crate) moves: bool,
}

/// As [`plan`], for a merge of images with these `plans`.
pub(crate) fn plan_merge(
    images: &[&Image],
    options: &RewriteOptions,
    plans: &[Plan],
    more: MergeMemory,
    progress: &dyn Progress,
) -> Result<Allowance> {
    let block_size = more.block_size;
    let mut fixed = PROGRAM
        .saturating_add(more.tree)
        .saturating_add(more.caches);
    if more.moves {
        // An old block that is being decoded, and the part of a new one.
        let size = u64::from(block_size);
        fixed = fixed.saturating_add(block_job(size, size, size));
    }
    let (mut job, mut unit) = (0, 0);
    for (image, plan) in images.iter().zip(plans) {
        fixed = fixed
            .saturating_add(opened(image, options))
            .saturating_add(rebuilding(image.metadata(), options));
        job = job.max(largest_job(image, options, plan, true));
        // A block whose data moves, and a new one.
        let memory = plan.most_memory(block_size as usize);
        unit = unit.max(block_job(
            u64::from(block_size),
            u64::from(block_size),
            memory,
        ));
    }
    allow(fixed, job.max(unit), 0, options, progress)
}

/// The resources that are left beside `fixed` bytes. A job takes up to `job` bytes, and `unit` bytes more
/// are for data that it needs.
fn allow(
    fixed: u64,
    job: u64,
    unit: u64,
    options: &RewriteOptions,
    progress: &dyn Progress,
) -> Result<Allowance> {
    let each = job.saturating_add(unit);
    let wanted = options.workers;
    let left = match options.memory_limit {
        None => {
            let machine = options
                .machine_memory
                .unwrap_or_else(redwarfs_writer::physical_memory);
            (machine / 2).saturating_sub(fixed)
        }
        Some(limit) => {
            let needed = fixed.saturating_add(each);
            let usable = limit - limit / MARGIN;
            if usable < needed {
                let needed = needed.saturating_add(needed / (MARGIN - 1) + MARGIN);
                return Err(WriteError::MemoryLimit {
                    limit,
                    needed,
                    whole: true,
                    enough: needed,
                    entries: None,
                }
                .into());
            }
            usable - fixed
        }
    };
    let workers = usize::try_from(left / each.max(1)).unwrap_or(usize::MAX);
    let workers = workers.clamp(1, wanted.max(1));
    if options.memory_limit.is_some() && workers < wanted {
        progress.log(
            Level::Warn,
            &format!(
                "low memory limit: working with {workers} instead of {wanted} threads, each of \
                 which takes {} MiB",
                each.div_ceil(1 << 20)
            ),
        );
    }
    Ok(Allowance {
        workers,
        jobs: left.saturating_sub(unit.saturating_mul(workers as u64)),
        ahead: workers,
    })
}
