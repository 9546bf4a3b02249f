//! The build as a whole.

use std::io::Write;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use redwarfs_format::history::History;
use redwarfs_format::section::SectionType;

use crate::category::{StreamKey, describe};
use crate::emit::{Emitter, MetadataCodecs, freeze_for, history_entry};
use crate::error::{Error, Result};
use crate::fingerprint::Sketches;
use crate::memory::{self, Load, StreamLoad, Watch};
use crate::meta;
use crate::options::BuildOptions;
use crate::order::OrderJob;
use crate::pipeline;
use crate::progress::{Phase, Progress, VERBOSE, add, get, thread_cpu_ns};
use crate::scan;
use crate::source::Source;
use crate::store::StoreJob;
use crate::tree::{self, Reporter};

/// Builds images with one set of options.
#[derive(Debug, Clone)]
pub struct Builder {
    options: BuildOptions,
}

/// What a finished build amounts to. The full set of numbers is in
/// [`Counters`](crate::Counters).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BuildSummary {
    /// Inputs that are not in the image as they are on disk (exit code 2 for a tool).
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

/// Measures one phase after the other.
struct Lap(Instant);

impl Lap {
    fn end(&mut self) -> Duration {
        let took = self.0.elapsed();
        self.0 = Instant::now();
        took
    }
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
        self.options.check()?;
        let started = Instant::now();
        let options = &self.options;
        let counters = progress.counters();
        let reporter = Reporter { source, progress };
        let interrupted = || stop.load(Ordering::Relaxed);

        let watch = Watch::new(options);
        progress.phase(Phase::Scanning);
        let tree = tree::list(options, reporter, stop, &watch)?;
        counters.set_current(b"");
        let mut lap = Lap(started);
        tracing::info!(
            target: VERBOSE,
            directories = get(&counters.dirs),
            files = get(&counters.files_found),
            links = get(&counters.symlinks) + get(&counters.hardlinks),
            bytes = get(&counters.original_size),
            took = ?lap.end(),
            "listed the input"
        );
        progress.phase(Phase::Hashing);
        let (mut scanned, streams) = scan::scan(options, &tree, reporter, stop, &watch)?;
        let load = Load {
            contents: scanned.contents.len() as u64,
            ..tree.load()
        };
        let loads: Vec<StreamLoad<'_>> = scanned
            .items
            .chunk_by(|a, b| a.stream == b.stream)
            .filter_map(|items| {
                let settings = streams.get(items.first()?.stream as usize)?;
                let bytes = items.iter().map(|item| item.size);
                Some(StreamLoad {
                    settings,
                    items: items.len() as u64,
                    bytes: if options.hollow { 0 } else { bytes.sum() },
                })
            })
            .collect();
        memory::check(options, load, Some(&loads))?;
        add(&counters.fragments_found, scanned.items.len() as u64);

        tracing::info!(
            target: VERBOSE,
            hashed = get(&counters.hash_files),
            hashed_bytes = get(&counters.hash_bytes),
            similarity_bytes = get(&counters.similarity_bytes),
            equal_files = get(&counters.duplicate_files),
            equal_bytes = get(&counters.saved_by_deduplication),
            took = ?lap.end(),
            "compared the files"
        );
        progress.phase(Phase::Ordering);
        let start = thread_cpu_ns();
        let job = OrderJob {
            options,
            limited: options.max_similarity_size.is_some(),
            tree: &tree,
            contents: &scanned.contents,
            digests: &scanned.nilsimsa,
            sketches: &scanned.sketches,
            versions: &OnceLock::new(),
            kept: &scanned.kept,
            block: u64::from(options.block_size()),
            source,
            workers: options.segmenters(),
            stop,
            cpu_ns: &counters.order_cpu_ns,
        };
        // Per stream, indices into its items.
        let sequences: Vec<Vec<u32>> = scanned
            .items
            .chunk_by(|a, b| a.stream == b.stream)
            .zip(&loads)
            .map(|(items, load)| job.run(load.settings.order, items))
            .collect::<Result<_>>()?;
        scanned.nilsimsa = Vec::new();
        scanned.sketches = Sketches::default();
        add(
            &counters.order_cpu_ns,
            thread_cpu_ns().saturating_sub(start),
        );
        if interrupted() {
            return Err(Error::Interrupted);
        }
        tracing::info!(
            target: VERBOSE,
            contents = scanned.items.len(),
            categories = loads.len(),
            took = ?lap.end(),
            "put the contents into order"
        );

        progress.phase(Phase::Segmenting);
        let mut emitter = Emitter::new(out, counters);
        if let Some(header) = &options.header {
            emitter.leading(header)?;
        }
        for load in &loads {
            let settings = load.settings;
            tracing::debug!(
                codec = %settings.codec,
                order = settings.order.name(),
                contents = load.items,
                bytes = load.bytes,
                "category {}",
                settings.key.category
            );
        }
        let plan = memory::plan(options, load, &loads, progress)?;
        tracing::debug!(
            compressing = plan.workers,
            segmenting = plan.segmenters,
            blocks = plan.blocks,
            "threads, and blocks in memory"
        );
        let mut stored = pipeline::blocks(
            options,
            &streams,
            plan,
            &mut emitter,
            progress,
            stop,
            |queue| {
                let job = StoreJob {
                    options,
                    settings: &streams,
                    tree: &tree,
                    reporter,
                    stop,
                    segmenters: plan.segmenters,
                };
                job.run(&mut scanned, &sequences, &queue)
            },
        )?;
        let blocks = stored.blocks();
        tracing::info!(
            target: VERBOSE,
            blocks,
            bytes = get(&counters.block_bytes),
            compressed = get(&counters.compressed_size),
            repeated = get(&counters.saved_by_segmentation),
            cpu = ?Duration::from_nanos(get(&counters.compress_cpu_ns)),
            took = ?lap.end(),
            "compressed the contents"
        );

        progress.phase(Phase::Metadata);
        add(&counters.chunks, stored.chunks.len() as u64);
        drop(sequences);
        let stored_categories = std::mem::take(&mut stored.categories);
        let categories = !options.categorizers.is_empty() || tree.marks.has_categories();
        let mut metadata = meta::build(options, tree, scanned.contents, stored, blocks)?;
        if categories && options.category_names {
            let parameters = options.category_metadata;
            let keys: Vec<StreamKey> = streams.iter().map(|stream| stream.key).collect();
            describe(&keys, &stored_categories, parameters, &mut metadata);
        }
        let inodes = metadata.inodes.len() as u64;
        let chunks = metadata.chunks.len() as u64;
        add(&counters.inodes, inodes);
        let frozen = freeze_for(&metadata, &options.metadata_compression)?;
        drop(metadata);
        if interrupted() {
            return Err(Error::Interrupted);
        }
        let metadata_size = frozen.data.len() as u64;
        let codecs = MetadataCodecs {
            schema: &options.schema_compression,
            main: &options.metadata_compression,
            alternative: options
                .metadata_alternative
                .as_ref()
                .filter(|codec| memory::has_room(options, codec, load, metadata_size as usize)),
        };
        emitter.metadata(frozen, &codecs)?;
        if let Some(history) = &options.history {
            let payload = History {
                entries: vec![history_entry(history)],
            }
            .encode();
            emitter.section(SectionType::HISTORY, &options.history_compression, payload)?;
        }
        if options.section_index {
            emitter.index()?;
        }
        emitter.finish()?;
        if interrupted() {
            return Err(Error::Interrupted);
        }
        tracing::info!(
            target: VERBOSE,
            inodes,
            chunks,
            bytes = metadata_size,
            image = emitter.written(),
            took = ?lap.end(),
            "wrote the metadata"
        );
        progress.phase(Phase::Done);
        Ok(BuildSummary {
            errors: get(&counters.errors),
            original_size: get(&counters.original_size),
            allocated_size: get(&counters.allocated_size),
            block_bytes: get(&counters.block_bytes),
            blocks: u64::from(blocks),
            image_size: emitter.written(),
            metadata_size,
            inodes,
            chunks,
            compress_cpu_ns: get(&counters.compress_cpu_ns),
            wall_ns: u64::try_from(started.elapsed().as_nanos()).unwrap_or(u64::MAX),
        })
    }
}
