//! The events that a build logs after its stages, for users who want to know more.

use std::time::{Duration, Instant};

use crate::memory::{Plan, StreamLoad};
use crate::progress::{Counters, VERBOSE, get};
use crate::stages::emit::Emitted;

/// Logs what each stage came to, and the wall time since the stage before.
pub(crate) struct Report<'a> {
    counters: &'a Counters,
    lap: Instant,
}

impl<'a> Report<'a> {
    pub(crate) fn new(counters: &'a Counters, started: Instant) -> Self {
        Self {
            counters,
            lap: started,
        }
    }

    /// The wall time since the last call.
    fn took(&mut self) -> Duration {
        let took = self.lap.elapsed();
        self.lap = Instant::now();
        took
    }

    pub(crate) fn listed(&mut self) {
        let (counters, took) = (self.counters, self.took());
        counters.set_current(b"");
        tracing::info!(
            target: VERBOSE,
            directories = get(&counters.dirs),
            files = get(&counters.files_found),
            links = get(&counters.symlinks) + get(&counters.hardlinks),
            bytes = get(&counters.original_size),
            ?took,
            "listed the input"
        );
    }

    pub(crate) fn compared(&mut self) {
        let (counters, took) = (self.counters, self.took());
        tracing::info!(
            target: VERBOSE,
            hashed = get(&counters.hash_files),
            hashed_bytes = get(&counters.hash_bytes),
            similarity_bytes = get(&counters.similarity_bytes),
            equal_files = get(&counters.duplicate_files),
            equal_bytes = get(&counters.saved_by_deduplication),
            ?took,
            "compared the files"
        );
    }

    pub(crate) fn ordered(&mut self, streams: &[StreamLoad<'_>]) {
        let took = self.took();
        tracing::info!(
            target: VERBOSE,
            contents = get(&self.counters.fragments_found),
            categories = streams.len(),
            ?took,
            "put the contents into order"
        );
    }

    pub(crate) fn planned(&self, streams: &[StreamLoad<'_>], plan: Plan) {
        for stream in streams {
            let settings = stream.settings;
            tracing::debug!(
                codec = %settings.codec,
                order = settings.order.name(),
                contents = stream.items,
                bytes = stream.bytes,
                "category {}",
                settings.key.category
            );
        }
        tracing::debug!(
            compressing = plan.workers,
            segmenting = plan.segmenters,
            blocks = plan.blocks,
            "threads, and blocks in memory"
        );
    }

    pub(crate) fn compressed(&mut self, blocks: u32) {
        let (counters, took) = (self.counters, self.took());
        tracing::info!(
            target: VERBOSE,
            blocks,
            bytes = get(&counters.block_bytes),
            compressed = get(&counters.compressed_size),
            repeated = get(&counters.saved_by_segmentation),
            cpu = ?Duration::from_nanos(get(&counters.compress_cpu_ns)),
            ?took,
            "compressed the contents"
        );
    }

    pub(crate) fn finished(&mut self, emitted: &Emitted, image: u64) {
        let took = self.took();
        tracing::info!(
            target: VERBOSE,
            inodes = emitted.inodes,
            chunks = emitted.chunks,
            bytes = emitted.metadata_size,
            image,
            ?took,
            "wrote the metadata"
        );
    }
}
