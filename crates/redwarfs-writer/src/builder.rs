//! The whole build: the stages one after the other.

use std::io::Write;
use std::sync::atomic::AtomicBool;
use std::time::Instant;

use redwarfs_io::trim_heap;

use crate::base::BaseImage;
use crate::category::{Category, StreamKey};
use crate::contents::Fragments;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::memory::{self, Load, StreamLoad, Watch};
use crate::options::BuildOptions;
use crate::progress::{Phase, Progress, add, get};
use crate::report::Report;
use crate::settings::StreamSettings;
use crate::source::Source;
use crate::stages::segment::{self, SegmentJob};
use crate::stages::{categorize, compress, digest, emit, hash, order, tree};
use crate::tree::Tree;

/// Builds images with one set of options.
#[derive(Debug, Clone)]
pub struct Builder {
    options: BuildOptions,
}

/// What a finished build amounts to. The full set of numbers is in
/// [`Counters`](crate::Counters).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildSummary {
    /// Inputs that differ in the image from those on disk (exit code 2 for a tool).
    pub errors: u64,
    /// Bytes of regular files (each inode once) and symlink targets.
    pub original_size: u64,
    /// The same with allocated sizes of sparse files.
    pub allocated_size: u64,
    /// Bytes in blocks, uncompressed.
    pub block_bytes: u64,
    /// Number of blocks.
    pub blocks: u64,
    /// Bytes of the image, header included.
    pub image_size: u64,
    /// Uncompressed size of the metadata.
    pub metadata_size: u64,
    /// Inodes in the image.
    pub inodes: u64,
    /// Chunks in the chunk table.
    pub chunks: u64,
    /// CPU time of compression, nanoseconds.
    pub compress_cpu_ns: u64,
    /// Wall time of the build, nanoseconds.
    pub wall_ns: u64,
}

impl Builder {
    /// A builder with these options.
    pub fn new(options: BuildOptions) -> Self {
        Self { options }
    }

    /// The options.
    pub fn options(&self) -> &BuildOptions {
        &self.options
    }

    /// Builds an image from `source` and writes it to `out`, front to back, without seeking.
    /// `stop` is polled; when it is set the build ends with
    /// [`Error::Interrupted`](crate::Error::Interrupted).
    ///
    /// # Errors
    /// If the root cannot be read, the output cannot be written, options are invalid, or the
    /// stop flag is set. Problems with single entries are counted, not returned.
    pub fn build(
        &self,
        source: &dyn Source,
        out: &mut dyn Write,
        progress: &dyn Progress,
        stop: &AtomicBool,
    ) -> Result<BuildSummary> {
        self.run(None, source, out, progress, stop)
    }

    /// Builds a new generation of an image, and writes to `out` what follows the image. Contents that the
    /// image has are not stored again. As [`build`](Self::build) otherwise.
    ///
    /// # Errors
    /// As [`build`](Self::build), for options that need an image of their own, and for damage of the
    /// metadata of the old image.
    pub fn append(
        &self,
        base: &dyn BaseImage,
        source: &dyn Source,
        out: &mut dyn Write,
        progress: &dyn Progress,
        stop: &AtomicBool,
    ) -> Result<BuildSummary> {
        let unfit = |what| Err(Error::InvalidOption(format!("an append {what}")));
        if self.options.header.is_some() {
            return unfit("has no header of its own");
        }
        if !self.options.section_index {
            return unfit("needs a section index");
        }
        self.run(Some(base), source, out, progress, stop)
    }

    fn run(
        &self,
        base: Option<&dyn BaseImage>,
        source: &dyn Source,
        out: &mut dyn Write,
        progress: &dyn Progress,
        stop: &AtomicBool,
    ) -> Result<BuildSummary> {
        self.options.check()?;
        if self.options.match_index && !self.options.section_index {
            let what = "an index of anchors needs a section index";
            return Err(Error::InvalidOption(what.into()));
        }
        if self.options.hints.is_some() && !self.options.section_index {
            return Err(Error::InvalidOption("hints need a section index".into()));
        }
        let started = Instant::now();
        let options = &self.options;
        let context = Context {
            options,
            source,
            base,
            progress,
            stop,
            watch: &Watch::new(options),
        };
        let counters = context.counters();
        let mut report = Report::new(counters, started);

        progress.phase(Phase::Scanning);
        let tree = tree::list(context)?;
        not_failed(source)?;
        trim(&tree);
        report.listed();

        progress.phase(Phase::Hashing);
        let contents = hash::group(context, &tree);
        // Whatever went wrong, a table that cannot be read may be the reason.
        tree.check()?;
        let mut contents = contents?;
        let mut fragments = categorize::cut(context, &tree, &mut contents)?;
        if tree.extended.long_bytes() > 0 {
            let key = StreamKey::plain(Category::of_xattrs());
            fragments.streams.push(StreamSettings::new(options, key));
        }
        let digests = digest::digest(context, &tree, &mut contents, &mut fragments);
        tree.check()?;
        let digests = digests?;
        // Lists that grew have left holes.
        trim(&tree);
        let load = Load {
            contents: contents.list.len() as u64,
            features: digests.sketches.features(),
            ..tree.load()
        };
        let mut loads = StreamLoad::of_all(&fragments, options.hollow);
        if let Some(settings) = fragments.streams.last()
            && tree.extended.long_bytes() > 0
        {
            loads.push(StreamLoad {
                settings,
                items: tree.extended.long_values().count() as u64,
                bytes: tree.extended.long_bytes(),
            });
        }
        memory::check(options, load, &loads)?;
        add(&counters.fragments_found, fragments.items.len() as u64);
        report.compared();

        progress.phase(Phase::Ordering);
        let sequences = order::arrange(context, &tree, &contents, &fragments, &digests)?;
        drop(digests);
        report.ordered(&loads);

        progress.phase(Phase::Segmenting);
        let mut emitter = match base {
            Some(base) => emit::Emitter::behind(base, out, counters)?,
            None => emit::Emitter::new(out, counters),
        };
        if let Some(header) = &options.header {
            emitter.leading(header)?;
        }
        let plan = memory::plan(options, load, &loads, progress)?;
        report.planned(&loads, plan);
        // Their order is all that is needed from here on.
        let Fragments { items, streams } = fragments;
        drop(items);
        trim(&tree);
        let front = segment::in_front(context, &tree);
        let job = SegmentJob {
            context,
            tree: &tree,
            streams: &streams,
            segmenters: plan.segmenters,
            front: &front,
        };
        let stored = compress::blocks(context, &streams, plan, &mut emitter, |queue| {
            job.run(&mut contents, &sequences, &queue)
        });
        tree.check()?;
        let (mut stored, anchors) = stored?;
        drop(sequences);
        stored.anchors = anchors;
        let blocks = stored.blocks();
        report.compressed(blocks);

        not_failed(source)?;
        progress.phase(Phase::Metadata);
        source.no_more_reads();
        let load = Load {
            beside: load.beside.saturating_sub(tree.until_metadata()),
            ..load
        };
        let emitted = emit::finish(
            context,
            &mut emitter,
            tree,
            contents.list,
            stored,
            &streams,
            load,
        )?;
        report.finished(&emitted, emitter.written());
        progress.phase(Phase::Done);
        Ok(BuildSummary {
            errors: get(&counters.errors),
            original_size: get(&counters.original_size),
            allocated_size: get(&counters.allocated_size),
            block_bytes: get(&counters.block_bytes),
            blocks: u64::from(blocks),
            image_size: emitter.written(),
            metadata_size: emitted.metadata_size,
            inodes: emitted.inodes,
            chunks: emitted.chunks,
            compress_cpu_ns: get(&counters.compress_cpu_ns),
            wall_ns: u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        })
    }
}

/// Files of a tree from which on a build gives unused memory back. For fewer, it is not worth looking through the heap of the
/// process.
const MANY_FILES: usize = 100_000;

fn trim(tree: &Tree) {
    if tree.files.len() >= MANY_FILES {
        trim_heap();
    }
}

/// What a failing source did not tell must not be missing in an image.
fn not_failed(source: &dyn Source) -> Result<()> {
    source.failure().map_or(Ok(()), |e| Err(Error::Source(e)))
}
