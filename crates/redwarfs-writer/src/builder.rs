//! The build as a whole.

use std::io::Write;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

use redwarfs_format::history::History;
use redwarfs_format::metadata::freeze;
use redwarfs_format::section::SectionType;

use crate::emit::{Emitter, history_entry};
use crate::error::{Error, Result};
use crate::hash::FileHash;
use crate::meta::{self, Stored};
use crate::options::BuildOptions;
use crate::order;
use crate::pipeline;
use crate::progress::{Phase, Progress, add, get, thread_cpu_ns};
use crate::scan::{self, Content, Files, Part, ReadError, Scanned};
use crate::segment::{BlockSink, SegmentOptions, Segmenter};
use crate::source::Source;
use crate::tree::{self, Reporter, Tree};

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

        progress.phase(Phase::Scanning);
        let tree = tree::list(options, reporter, stop)?;
        counters.set_current(b"");
        progress.phase(Phase::Hashing);
        let mut scanned = scan::scan(options, &tree, reporter, stop)?;
        add(&counters.fragments_found, scanned.contents.len() as u64);

        progress.phase(Phase::Ordering);
        let start = thread_cpu_ns();
        let limited = options.max_similarity_size.is_some();
        let sequence = order::order(&options.order, limited, &tree, &scanned.contents, source);
        add(
            &counters.order_cpu_ns,
            thread_cpu_ns().saturating_sub(start),
        );
        if interrupted() {
            return Err(Error::Interrupted);
        }

        progress.phase(Phase::Segmenting);
        let mut emitter = Emitter::new(out, counters);
        if let Some(header) = &options.header {
            emitter.leading(header)?;
        }
        let (stored, blocks) = pipeline::blocks(options, &mut emitter, progress, stop, |queue| {
            let segment = SegmentOptions {
                block_size: options.block_size() as usize,
                window_bits: options.window_bits,
                window_step: options.window_step,
                lookback: options.lookback as usize,
            };
            let store = Store {
                options,
                tree: &tree,
                reporter,
                stop,
                segmenter: Segmenter::new(segment, queue),
                buffer: Vec::new(),
            };
            store.run(&mut scanned, &sequence)
        })?;
        drop(scanned.cache);

        progress.phase(Phase::Metadata);
        add(&counters.chunks, stored.chunks.len() as u64);
        let metadata = meta::build(options, &tree, &scanned.contents, &stored, blocks)?;
        let inodes = metadata.inodes.len() as u64;
        let chunks = metadata.chunks.len() as u64;
        add(&counters.inodes, inodes);
        drop((tree, stored, sequence, scanned.contents));
        let frozen = freeze(&metadata)?;
        drop(metadata);
        if interrupted() {
            return Err(Error::Interrupted);
        }
        let metadata_size = frozen.data.len() as u64;
        emitter.section(
            SectionType::METADATA_V2_SCHEMA,
            &options.schema_compression,
            frozen.schema,
        )?;
        emitter.section(
            SectionType::METADATA_V2,
            &options.metadata_compression,
            frozen.data,
        )?;
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

/// Puts contents into blocks.
struct Store<'a, S> {
    options: &'a BuildOptions,
    tree: &'a Tree,
    reporter: Reporter<'a>,
    stop: &'a AtomicBool,
    segmenter: Segmenter<S>,
    buffer: Vec<u8>,
}

impl<S: BlockSink> Store<'_, S> {
    fn run(mut self, scanned: &mut Scanned, sequence: &[u32]) -> Result<(Stored, u32)> {
        let counters = self.reporter.counters();
        let mut stored = Stored {
            chunks: Vec::new(),
            ranges: vec![(0, 0); scanned.contents.len()],
        };
        for &content in sequence {
            self.content(scanned, content as usize, &mut stored)?;
            add(&counters.fragments_written, 1);
        }
        let blocks = self.segmenter.finish()?;
        self.reporter.counters().set_current(b"");
        self.reporter.progress.phase(Phase::Compressing);
        Ok((stored, blocks))
    }

    /// Stores one content, from the first of its files that is still what it was when it was
    /// hashed. Files that are not any more become contents of their own.
    fn content(
        &mut self,
        scanned: &mut Scanned,
        content: usize,
        stored: &mut Stored,
    ) -> Result<()> {
        let counters = self.reporter.counters();
        let (size, failed) = (
            scanned.contents[content].size,
            scanned.contents[content].failed,
        );
        if failed || size == 0 {
            return Ok(());
        }
        if self.options.hollow {
            self.segmenter.hole(size);
            self.keep(content, stored);
            return Ok(());
        }
        let files = scanned.contents[content].files.clone();
        let shared = files.len() > 1;
        for (at, &file) in files.iter().enumerate() {
            let saved = self.segmenter.saved();
            if let Some(bytes) = scanned.cache.remove(&file) {
                self.segmenter.data(&bytes)?;
                self.segmenter.end_extent()?;
                self.keep(content, stored);
                add(
                    &counters.saved_by_segmentation,
                    self.segmenter.saved() - saved,
                );
                return Ok(());
            }
            let path = self.tree.file_path(file);
            let mut hasher = self
                .options
                .file_hash
                .filter(|_| shared)
                .map(FileHash::hasher);
            let segmenter = &mut self.segmenter;
            let read = scan::read_file(
                self.tree,
                file,
                self.options,
                self.reporter,
                self.stop,
                &mut self.buffer,
                |part| match part {
                    Part::Data(data) => {
                        if let Some(hasher) = &mut hasher {
                            hasher.update(data);
                        }
                        segmenter.data(data)
                    }
                    Part::EndOfExtent => segmenter.end_extent(),
                    Part::Hole(size) => {
                        if let Some(hasher) = &mut hasher {
                            hasher.update_zeros(size);
                        }
                        add(&counters.hole_bytes, size);
                        segmenter.hole(size);
                        Ok(())
                    }
                },
            );
            add(
                &counters.saved_by_segmentation,
                self.segmenter.saved() - saved,
            );
            let last = at + 1 == files.len();
            match read {
                Err(ReadError::Fatal(error)) => return Err(error),
                Err(ReadError::Input(error)) => {
                    self.segmenter.discard();
                    // Its content was read once; another file with it stands in.
                    let what = if last {
                        "storing it empty"
                    } else {
                        "using an equal file"
                    };
                    self.reporter
                        .problem(&path, &format!("cannot read file, {what}: {error}"));
                }
                Ok(outcome) => {
                    let as_hashed = match (hasher, &scanned.contents[content].digest) {
                        (Some(hasher), Some(digest)) => hasher.finish() == *digest,
                        _ => true,
                    };
                    if outcome.changed {
                        self.reporter
                            .problem(&path, "file has changed while the image was built");
                    } else if !as_hashed {
                        self.reporter
                            .problem(&path, "file content has changed while the image was built");
                    }
                    if as_hashed {
                        self.keep(content, stored);
                        return Ok(());
                    }
                    // Not equal to the others any more.
                    let fresh = scanned.contents.len();
                    scanned.contents[content].files.remove(file);
                    scanned.contents.push(Content {
                        size: outcome.size,
                        prefix: 0,
                        digest: None,
                        similarity: None,
                        files: Files::One(file),
                        failed: false,
                    });
                    stored.ranges.push((0, 0));
                    self.keep(fresh, stored);
                }
            }
        }
        // Every file is unreadable or became a content of its own. Unreadable ones stay here
        // and are empty. Without any the content goes; its place is taken by one of the new
        // ones, which are last and not part of the sequence.
        if scanned.contents[content].files.is_empty() {
            scanned.contents.swap_remove(content);
            stored.ranges.swap_remove(content);
        }
        Ok(())
    }

    fn keep(&mut self, content: usize, stored: &mut Stored) {
        let first = stored.chunks.len();
        self.segmenter.take_chunks(&mut stored.chunks);
        if let Some(range) = stored.ranges.get_mut(content) {
            *range = (first, stored.chunks.len() - first);
        }
    }
}
