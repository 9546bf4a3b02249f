//! Joining images, and changing their trees, without their sources.
//!
//! | step | module | what it does |
//! |---|---|---|
//! | tree | `tree`, `layers` | joins the trees of all parts, and removes, filters and renames entries |
//! | blocks | `blocks` | finds equal blocks by their bytes |
//! | contents | `contents` | finds equal files, and what is in use of each block |
//! | layout | `blocks` | leaves out blocks that nothing uses, and plans which data moves |
//! | write | `mod` | copies blocks as they are, compresses data that moves |
//! | metadata | `source` | gives the tree to the writer, which makes the metadata |
//! | generations | `generations` | instead of the steps from blocks on: builds several trees anew with common blocks |
//!
//! The memory follows from the metadata of the parts: about 200 bytes for each entry, and 24 for each
//! chunk. Beside it there are a few decoded blocks, within the memory limit.

mod blocks;
mod contents;
mod generations;
mod layers;
mod options;
mod places;
mod source;
mod tree;

use std::collections::HashSet;
use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use redwarfs_format::history::History;
use redwarfs_format::metadata::{MetadataHistoryEntry, MetadataView, XattrScope};
use redwarfs_format::section::{Section, SectionType};
use redwarfs_reader::Image;
use redwarfs_writer::emit::{Emitter, history_entry};
use redwarfs_writer::{
    BaseImage, BuildOptions, BuildSummary, Builder, Level, Phase, Placed, Progress, TimeResolution,
    assemble, plain_path,
};

use self::blocks::{BlockTable, Layout};
use self::contents::{Contents, slice};
pub use self::generations::{Finish, Generations, NamedTree, generations};
use self::layers::How;
pub use self::options::{MergeOptions, Part, Selection, Whiteouts};
use self::source::MergedSource;
use self::tree::Tree;
use crate::attributes;
use crate::error::{Error as RewriteError, Result};
use crate::hidden;
use crate::memory::{self, MergeMemory, block_job};
use crate::options::{Rebuild, RewriteOptions};
use crate::plan::{Plan, check_categories};
use crate::pool::{self, Queue, Task, Work, add};
use crate::rewriter::{self, RewriteSummary};

/// Errors of changing a tree.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A change does not fit the tree.
    #[error("{path}: {why}")]
    Path {
        /// The path, with a leading slash.
        path: String,
        /// The reason.
        why: &'static str,
    },
    /// Two images have the same place.
    #[error("two images have the name '{0}'")]
    Name(String),
    /// The place of an image is inside that of another one.
    #[error("the name '{inner}' is inside of '{outer}', the name of another image")]
    Nested {
        /// The place inside.
        inner: String,
        /// The place around it.
        outer: String,
    },
}

/// The result of a merge.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct MergeSummary {
    /// The new image.
    pub rewritten: RewriteSummary,
    /// Blocks of all parts.
    pub old_blocks: u64,
    /// Blocks that nothing uses, and blocks with the same bytes as others.
    pub left_out: u64,
    /// Blocks of which the used data moved to new blocks.
    pub repacked: u64,
    /// Distinct files in the new image.
    pub contents: u64,
    /// Entries that could not be stored.
    pub errors: u64,
}

/// Joins `parts` in this order, later ones over earlier ones, and changes the tree as `options` say. Then
/// puts the trees of `added` over it. Writes the new image to `out`, from front to back and without
/// seeking.
///
/// Blocks are copied as they are. Equal blocks are stored once. Equal files are stored once where a whole
/// block can be left out by that, and with `repack` everywhere. Blocks that nothing uses are left out.
/// Hidden sections of the first parts are kept if they do not depend on content.
///
/// # Errors
/// As [`rewrite`](crate::rewrite), and [`Error`] if a change does not fit the tree. Errors about one of the
/// images are [`Part`](RewriteError::Part).
pub fn merge(
    parts: &[Part<'_>],
    added: &[Part<'_>],
    options: &MergeOptions,
    out: &mut dyn Write,
    progress: &dyn Progress,
    stop: &AtomicBool,
) -> Result<MergeSummary> {
    let started = Instant::now();
    let counters = progress.counters();
    let own = &options.rewrite;
    own.check()?;
    if parts.is_empty() {
        return Err(RewriteError::invalid("no image to merge"));
    }
    let all: Vec<Part<'_>> = parts.iter().chain(added).copied().collect();
    if own.check {
        progress.phase(Phase::Checking);
    }
    for (number, part) in all.iter().enumerate() {
        let examine = || {
            if own.check {
                rewriter::check(part.image, own, stop)?;
            }
            // All indices are used without further checks.
            let blocks = part.image.container().block_count();
            part.image.metadata().check(blocks, None)?;
            rewriter::warn_of_unknown_members(part.image, progress)
        };
        examine().map_err(|error: RewriteError| error.of_part(number))?;
    }

    progress.phase(Phase::Scanning);
    let tree = joined(parts, added, options, stop)?;
    let images: Vec<_> = all.iter().map(|part| part.image).collect();
    check_categories(&images, own)?;
    let plans = images.iter().map(|image| Plan::new(image, own));
    let plans: Vec<Plan> = plans.collect::<Result<_>>()?;
    let blocks = BlockTable::new(&all, &plans, stop)?;
    let mut contents = Contents::used(&all, &tree, &blocks, stop)?;
    let build = build_options(&all, options)?;
    let block_size = build.block_size();
    let memory = MergeMemory {
        tree: tree.memory(),
        // They hold blocks with values of extended attributes.
        caches: match images.iter().any(|image| image.metadata().has_xattrs()) {
            true => options.caches,
            false => 0,
        },
        block_size,
        moves: options.repack > 0,
    };
    let allowance = memory::plan_merge(&images, own, &plans, memory, progress)?;
    progress.phase(Phase::Hashing);
    let everything = options.repack > 0;
    contents.compare(&all, &blocks, everything, allowance.jobs, stop)?;
    let layout = Layout::new(&all, &blocks, &contents, block_size, options.repack, stop)?;
    let history = history(&all, own)?;

    progress.phase(Phase::Rewriting);
    add(&counters.fragments_found, blocks.len() as u64);
    let mut emitter = Emitter::new(out, counters);
    if let Some(first) = images.first() {
        rewriter::leading(first, &own.leading, &mut emitter)?;
    }
    if let (Some(first), Some(plan)) = (images.first(), plans.first()) {
        let task = Task {
            image: first,
            options: own,
            plan,
            counters,
        };
        pool::run(task, allowance, &mut emitter, stop, |queue| {
            let job = Sections {
                parts: &all,
                plans: &plans,
                blocks: &blocks,
                layout: &layout,
                progress,
            };
            job.submit(queue)
        })?;
    }

    progress.phase(Phase::Metadata);
    let mut placed = Placed::new(layout.count);
    for pieces in &contents.pieces {
        placed.content(layout.extents(pieces)?)?;
    }
    for (value, pieces) in std::mem::take(&mut contents.values) {
        placed.value(value, layout.extents(&pieces)?)?;
    }
    placed.categories = layout.categories(&blocks)?;
    placed.versions = options
        .version_history
        .then(|| versions(parts))
        .transpose()?;
    placed.scope = all
        .iter()
        .filter_map(|part| part.image.metadata().xattr_scope())
        .fold(XattrScope::default(), XattrScope::with);
    let distinct = contents.pieces.len() as u64;
    let left_out = blocks.len() - layout.copied.len();
    let repacked: usize = layout
        .streams
        .iter()
        .map(|stream| stream.blocks.len())
        .sum();
    drop(layout);
    let source = MergedSource::new(&all, parts.len(), &tree, options.whiteouts)?;
    let content_of = |path: &[u8]| {
        let (part, content) = source.content(path)?;
        contents.number(part, content)
    };
    assemble(
        &build,
        &source,
        &content_of,
        placed,
        history,
        &mut emitter,
        progress,
        stop,
    )?;
    report_unstorable(&source, progress);
    for (number, part) in parts.iter().enumerate() {
        let rewritten = hidden::Rewritten {
            rebuilt: true,
            // Blocks of several images get other numbers.
            recut: true,
            indexed: own.section_index,
            hinted: own.hints.is_some(),
        };
        hidden::keep(part.image, rewritten, &mut emitter, progress)
            .map_err(|error| error.of_part(number))?;
    }
    emitter.finish()?;
    if stop.load(Ordering::Relaxed) {
        return Err(RewriteError::interrupted());
    }
    progress.phase(Phase::Done);
    let get = |counter: &std::sync::atomic::AtomicU64| counter.load(Ordering::Relaxed);
    Ok(MergeSummary {
        rewritten: RewriteSummary {
            blocks: get(&counters.blocks_written),
            block_bytes: get(&counters.block_bytes),
            image_size: emitter.written(),
            compress_cpu_ns: get(&counters.compress_cpu_ns),
            wall_ns: u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        },
        old_blocks: blocks.len() as u64,
        left_out: left_out.saturating_sub(repacked) as u64,
        repacked: repacked as u64,
        contents: distinct,
        errors: get(&counters.errors),
    })
}

/// Writes what continues the image `base` so that it has the tree of `image` as its newest generation: contents that
/// `base` has become references, and only others are compressed. Of `options`, those about changes of trees do not
/// count.
///
/// # Errors
/// As [`Builder::append`], and if the metadata of `image` is damaged.
pub fn continued(
    image: &Image,
    base: &dyn BaseImage,
    options: &MergeOptions,
    out: &mut dyn Write,
    progress: &dyn Progress,
    stop: &AtomicBool,
) -> Result<BuildSummary> {
    // All indices are used without further checks.
    let blocks = image.container().block_count();
    image.metadata().check(blocks, None)?;
    let mut metadata = options.metadata.clone();
    // What the image has is kept.
    metadata.keep_all_times = true;
    metadata.keep_birth_times = true;
    metadata.file_flags = true;
    let options = &MergeOptions {
        metadata,
        ..MergeOptions::default()
    };
    let parts = [Part::new(image, b"")];
    let tree = joined(&parts, &[], options, stop)?;
    let source = MergedSource::new(&parts, 1, &tree, Whiteouts::Keep)?;
    let own = &options.metadata;
    let mut build = build_options(&parts, options)?;
    build.block_size_bits = own.block_size_bits;
    build.schema_compression = own.schema_compression.clone();
    build.metadata_compression = own.metadata_compression.clone();
    build.metadata_alternative = own.metadata_alternative.clone();
    build.history_compression = own.history_compression.clone();
    build.create_timestamp = image.metadata().create_timestamp();
    build.section_index = true;
    let done = Builder::new(build).append(base, &source, out, progress, stop)?;
    report_unstorable(&source, progress);
    Ok(done)
}

/// The tree after all changes.
fn joined(
    parts: &[Part<'_>],
    added: &[Part<'_>],
    options: &MergeOptions,
    stop: &AtomicBool,
) -> Result<Tree> {
    check_places(parts)?;
    let mut tree = Tree::new();
    let layer = options.whiteouts == Whiteouts::Overlay;
    let add = |tree: &mut Tree, number: u32, part: &Part<'_>, whiteouts| {
        let how = How { whiteouts, layer };
        let done = layers::add(tree, number, *part, how, stop);
        done.map_err(|error| error.of_part(number as usize))
    };
    for (number, part) in (0u32..).zip(parts) {
        add(&mut tree, number, part, options.whiteouts)?;
    }
    if let Some(filter) = &options.filter {
        tree.retain(&|path, kind| filter.keeps(path, kind))?;
    }
    for path in &options.remove {
        tree.remove(path)?;
    }
    for (old, new) in &options.rename {
        tree.rename(old, new)?;
    }
    let first = u32::try_from(parts.len()).unwrap_or(u32::MAX);
    for (number, part) in (first..).zip(added) {
        add(&mut tree, number, part, Whiteouts::Keep)?;
    }
    Ok(tree)
}

/// Refuses directories that are the place of two parts, or inside of such a place.
fn check_places(parts: &[Part<'_>]) -> Result<()> {
    let places = parts.iter().map(|part| plain_path(part.at));
    let places: Vec<Vec<u8>> = places.filter(|place| !place.is_empty()).collect();
    let mut known: HashSet<&[u8]> = HashSet::new();
    let shown = |path: &[u8]| String::from_utf8_lossy(path).into_owned();
    for place in &places {
        if !known.insert(place) {
            return Err(Error::Name(shown(place)).into());
        }
    }
    for place in &places {
        let ends = place.iter().enumerate().filter(|&(_, &byte)| byte == b'/');
        let mut above = ends.filter_map(|(end, _)| place.get(..end));
        if let Some(outer) = above.find(|above| known.contains(above)) {
            let (inner, outer) = (shown(place), shown(outer));
            return Err(Error::Nested { inner, outer }.into());
        }
    }
    Ok(())
}

fn gcd(a: u64, b: u64) -> u64 {
    match b {
        0 => a,
        b => gcd(b, a % b),
    }
}

/// Options of the metadata that keep what the parts have.
fn build_options(parts: &[Part<'_>], options: &MergeOptions) -> Result<BuildOptions> {
    let mut build = options.metadata.clone();
    let views = || parts.iter().map(|part| part.image.metadata());
    let largest = views().map(MetadataView::block_size).max().unwrap_or(1);
    build.block_size_bits = largest.max(1).next_power_of_two().ilog2().max(10);
    build.with_devices = true;
    build.with_specials = true;
    build.sparse = true;
    build.hollow = false;
    build.header = None;
    build.hook = None;
    build.latest_time = None;
    build.section_index = options.rewrite.section_index;
    build.schema_compression = options.rewrite.schema_compression.clone();
    build.metadata_compression = options.rewrite.metadata_compression.clone();
    build.metadata_alternative = options.rewrite.metadata_alternative.clone();
    build.history_compression = options.rewrite.history_compression.clone();
    build.keep_all_times = build.keep_all_times && views().any(|view| !view.options().mtime_only);
    build.keep_birth_times = build.keep_birth_times && views().any(|view| view.options().has_btime);
    let rebuild = Rebuild {
        time_resolution: options.coarsen.then_some(build.time_resolution),
        ..Rebuild::default()
    };
    // No time changes in a resolution that divides those of all parts.
    let mut nanos = 0;
    for (number, view) in views().enumerate() {
        let own = attributes::resolution(view.options(), &rebuild);
        nanos = gcd(own.map_err(|error| error.of_part(number))?.nanos(), nanos);
    }
    build.time_resolution = TimeResolution::from_nanos(nanos)
        .map_err(|_| RewriteError::invalid("no resolution of times fits all images"))?;
    Ok(build)
}

/// The history entries of all parts in their order, each once, and a new one.
fn history(parts: &[Part<'_>], options: &RewriteOptions) -> Result<Option<History>> {
    let Some(own) = &options.history else {
        return Ok(None);
    };
    let mut joined = History::default();
    let mut known: HashSet<String> = HashSet::new();
    for (number, part) in parts.iter().enumerate() {
        let read = || -> Result<History> {
            let history = part.image.history()?;
            // A reader can skip damaged parts. A merge would lose them for good.
            let container = part.image.container();
            for section in container.section_of_type(SectionType::HISTORY) {
                let section = part.image.section_with_header(section)?;
                part.image.stored_payload(&section)?;
            }
            Ok(history)
        };
        let history = read().map_err(|error| error.of_part(number))?;
        for entry in history.entries {
            if known.insert(format!("{entry:?}")) {
                joined.entries.push(entry);
            }
        }
    }
    joined.entries.push(history_entry(own));
    Ok(Some(joined))
}

/// The versions of the metadata of all parts, each once.
fn versions(parts: &[Part<'_>]) -> Result<Vec<MetadataHistoryEntry>> {
    let mut versions: Vec<MetadataHistoryEntry> = Vec::new();
    let mut known: HashSet<String> = HashSet::new();
    for part in parts {
        let old = part.image.metadata().thaw()?;
        let version = part.image.container().version;
        let present = MetadataHistoryEntry {
            major: version.major,
            minor: version.minor,
            dwarfs_version: old.dwarfs_version,
            block_size: old.block_size,
            options: old.options,
        };
        let earlier = old.metadata_version_history.unwrap_or_default();
        for version in earlier.into_iter().chain([present]) {
            if known.insert(format!("{version:?}")) {
                versions.push(version);
            }
        }
    }
    Ok(versions)
}

/// The sections in front of the metadata.
struct Sections<'a> {
    parts: &'a [Part<'a>],
    plans: &'a [Plan],
    blocks: &'a BlockTable,
    layout: &'a Layout,
    progress: &'a dyn Progress,
}

impl Sections<'_> {
    /// Submits all of them in their order.
    fn submit(&self, mut queue: Queue<'_>) -> Result<()> {
        let counters = self.progress.counters();
        add(&counters.blocks_created, u64::from(self.layout.count));
        for &block in &self.layout.copied {
            self.copy(block, &mut queue)?;
            add(&counters.fragments_written, 1);
        }
        for stream in &self.layout.streams {
            self.moved(stream, &mut queue)?;
        }
        self.unknown(&mut queue)
    }

    fn plan(&self, block: u32) -> Result<&Plan> {
        let part = self.blocks.part_of(block) as usize;
        let missing = || redwarfs_format::Error::corrupt("a block that does not exist");
        Ok(self.plans.get(part).ok_or_else(missing)?)
    }

    fn copy(&self, block: u32, queue: &mut Queue<'_>) -> Result<()> {
        let (image, number) = self.blocks.home(self.parts, block)?;
        let part = self.blocks.part_of(block) as usize;
        queue.of(part, image);
        let section = image.container().block(number);
        let missing = || redwarfs_format::Error::corrupt("a block that does not exist");
        let section = image.section_with_header(section.ok_or_else(missing)?);
        let section = section.map_err(|error| RewriteError::from(error).of_part(part))?;
        let plan = self.plan(block)?;
        let kind = self.blocks.kind_in_part(self.parts, block)?;
        match plan.codec_of(&kind, number)? {
            None => queue.submit(section.length, Work::Copy(section)),
            Some(codec) => {
                let raw = u64::from(image.metadata().block_size());
                let memory = plan.codec(codec).memory(raw as usize);
                let work = Work::Recompress {
                    block: number,
                    codec,
                    content: kind.content,
                };
                queue.submit(block_job(section.length, raw, memory), work)
            }
        }
    }

    /// Joins the used data of old blocks into new ones.
    fn moved(&self, stream: &blocks::Stream, queue: &mut Queue<'_>) -> Result<()> {
        let counters = self.progress.counters();
        let Some(first) = stream.blocks.first() else {
            return Ok(());
        };
        let plan = self.plan(first.block)?;
        let (_, number) = self.blocks.home(self.parts, first.block)?;
        let kind = self.blocks.kind_in_part(self.parts, first.block)?;
        let codec = plan.codec_anew(&kind, number)?;
        let unit = usize::try_from(stream.unit).unwrap_or(usize::MAX);
        let mut out: Vec<u8> = Vec::new();
        let mut left = stream.size;
        let emit = |out: Vec<u8>, queue: &mut Queue<'_>| {
            let memory = plan.codec(codec).memory(out.len());
            let cost = block_job(0, out.len() as u64, memory);
            let work = Work::Compress {
                raw: out,
                codec,
                content: kind.content,
            };
            queue.submit(cost, work)
        };
        for moved in &stream.blocks {
            let (image, number) = self.blocks.home(self.parts, moved.block)?;
            let part = self.blocks.part_of(moved.block) as usize;
            queue.of(part, image);
            let data = queue.decode(number)?.wait();
            let data = data.map_err(|error| error.of_part(part))?;
            for &(start, end) in &moved.ranges {
                let piece = blocks::ContentChunk {
                    block: moved.block,
                    offset: start,
                    size: end - start,
                };
                let mut rest = slice(&data, piece)?;
                left -= rest.len() as u64;
                while !rest.is_empty() {
                    let (part, more) = rest.split_at(rest.len().min(unit - out.len()));
                    out.extend_from_slice(part);
                    rest = more;
                    if out.len() == unit {
                        emit(std::mem::take(&mut out), queue)?;
                    }
                }
            }
            add(&counters.fragments_written, 1);
        }
        debug_assert_eq!(left, 0);
        match out.is_empty() {
            true => Ok(()),
            false => emit(out, queue),
        }
    }

    /// Copies sections of types that this version does not know: of each type those of the first image
    /// that has any, because a reader expects one.
    fn unknown(&self, queue: &mut Queue<'_>) -> Result<()> {
        let mut known: HashSet<u16> = HashSet::new();
        let mut dropped = 0u32;
        for (number, part) in self.parts.iter().enumerate() {
            queue.of(number, part.image);
            let sections = part.image.container().sections.iter();
            let unknown: Vec<&Section> = sections.filter(|s| s.ty.name().is_none()).collect();
            for section in &unknown {
                if known.contains(&section.ty.0) {
                    dropped += 1;
                } else {
                    queue.submit(section.length, Work::Copy((*section).clone()))?;
                }
            }
            known.extend(unknown.iter().map(|section| section.ty.0));
        }
        if dropped > 0 {
            let message = format!(
                "dropping {dropped} section(s) of unknown types that an image before has, too"
            );
            self.progress.log(Level::Warn, &message);
        }
        Ok(())
    }
}

/// Says how many attributes of a source are left out.
fn report_unstorable(source: &MergedSource<'_>, progress: &dyn Progress) {
    let unstorable = source.unstorable();
    if unstorable > 0 {
        let message = format!(
            "{unstorable} extended attribute(s) with names that no image can have are left out"
        );
        progress.log(Level::Warn, &message);
    }
}
