//! Putting contents into blocks, one stream after the other.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::AtomicBool;

use crate::category::StoredCategories;
use crate::error::Result;
use crate::hash::FileHash;
use crate::options::BuildOptions;
use crate::pipeline::BlockQueue;
use crate::progress::{Phase, add};
use crate::scan::{self, Content, Files, Item, Part, ReadError, Scanned};
use crate::segment::{BlockSink, Chunk, SegmentOptions, Segmenter};
use crate::tree::{Reporter, Tree};

/// The stream of everything that is in no category.
const DEFAULT_STREAM: u32 = 0;
/// Source of zeros.
const ZEROS: [u8; 4096] = [0; 4096];

/// Some of the chunks: first and number.
type ChunkRange = (usize, usize);

/// Where all contents are.
#[derive(Default)]
pub(crate) struct Stored {
    pub(crate) chunks: Vec<Chunk>,
    /// Per content, if all its chunks are together.
    ranges: Vec<ChunkRange>,
    /// The others: one range for each of their parts.
    split: HashMap<u32, Vec<ChunkRange>>,
    pub(crate) categories: StoredCategories,
}

impl Stored {
    /// The chunks of a content, in order.
    pub(crate) fn chunks_of(&self, content: u32) -> impl Iterator<Item = &Chunk> {
        let whole = self.ranges.get(content as usize).copied();
        let (whole, split) = match self.split.get(&content) {
            Some(split) => (None, split.as_slice()),
            None => (whole, &[][..]),
        };
        whole
            .into_iter()
            .chain(split.iter().copied())
            .flat_map(|(first, count)| self.chunks.get(first..first + count).unwrap_or_default())
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> u32 {
        self.categories.blocks.last().map_or(0, |&(_, end)| end)
    }
}

/// What storing needs to know.
#[derive(Clone, Copy)]
pub(crate) struct StoreJob<'a> {
    pub(crate) options: &'a BuildOptions,
    pub(crate) tree: &'a Tree,
    pub(crate) reporter: Reporter<'a>,
    pub(crate) stop: &'a AtomicBool,
}

impl StoreJob<'_> {
    /// Stores everything. `sequences` holds, for each stream that occurs, indices into its items.
    pub(crate) fn run(
        self,
        scanned: &mut Scanned,
        sequences: &[Vec<u32>],
        mut queue: BlockQueue<'_>,
    ) -> Result<Stored> {
        let mut stored = Stored {
            ranges: vec![(0, 0); scanned.contents.len()],
            ..Stored::default()
        };
        stored.categories.sizes = vec![0; scanned.streams.len()];
        let items = std::mem::take(&mut scanned.items);
        let streams = items.chunk_by(|a, b| a.stream == b.stream);
        let mut again = BTreeSet::new();
        for (items, sequence) in streams.zip(sequences) {
            let Some(stream) = items.first().map(|item| item.stream) else {
                continue;
            };
            if let Some(size) = stored.categories.sizes.get_mut(stream as usize) {
                *size = items.iter().map(|item| item.size).sum();
            }
            let mut store = self.stream(scanned, stream, &stored, &mut queue);
            for item in sequence.iter().filter_map(|&i| items.get(i as usize)) {
                store.item(scanned, item, &mut stored, &mut again)?;
            }
            let end = store.segmenter.finish()?;
            stored.categories.blocks.push((stream, end));
        }
        self.whole(scanned, again, &mut stored, &mut queue)?;
        self.reporter.counters().set_current(b"");
        self.reporter.progress.phase(Phase::Compressing);
        Ok(stored)
    }

    /// Stores contents in one piece that have changed since they were cut into parts, or that
    /// can no longer be read: by now the parts may mean nothing.
    fn whole(
        self,
        scanned: &mut Scanned,
        contents: BTreeSet<u32>,
        stored: &mut Stored,
        queue: &mut BlockQueue<'_>,
    ) -> Result<()> {
        if contents.is_empty() {
            return Ok(());
        }
        let mut store = self.stream(scanned, DEFAULT_STREAM, stored, queue);
        for content in contents {
            stored.split.remove(&content);
            scanned.contents[content as usize].parts = None;
            store.content(scanned, content as usize, stored)?;
        }
        let end = store.segmenter.finish()?;
        stored.categories.blocks.push((DEFAULT_STREAM, end));
        Ok(())
    }

    /// Begins a stream behind what is stored already.
    fn stream<'s, 'q>(
        self,
        scanned: &Scanned,
        stream: u32,
        stored: &Stored,
        queue: &'s mut BlockQueue<'q>,
    ) -> Store<'s, &'s mut BlockQueue<'q>>
    where
        Self: 's,
    {
        let key = scanned.stream(stream);
        let own = self.options.categories.get(&key.category);
        let options = self.options;
        let choose = |own: Option<u32>, general: u32| own.unwrap_or(general);
        // A frame has at most 32 bytes, a block at least 1024.
        let granularity = key.granularity() as usize;
        let block_size = options.block_size() as usize;
        let segment = SegmentOptions {
            block_size: block_size - block_size % granularity,
            granularity,
            window_bits: choose(own.and_then(|o| o.window_bits), options.window_bits),
            window_step: choose(own.and_then(|o| o.window_step), options.window_step),
            lookback: choose(own.and_then(|o| o.lookback), options.lookback) as usize,
            filter_bits: choose(
                own.and_then(|o| o.bloom_filter_size),
                options.bloom_filter_size,
            ),
            first_block: stored.blocks(),
        };
        queue.set_stream(stream);
        Store {
            job: self,
            segmenter: Segmenter::new(segment, queue),
            granularity: granularity as u64,
            buffer: Vec::new(),
        }
    }
}

/// Puts fragments into the blocks of one stream.
struct Store<'a, S> {
    job: StoreJob<'a>,
    segmenter: Segmenter<S>,
    granularity: u64,
    buffer: Vec<u8>,
}

impl<S: BlockSink> Store<'_, S> {
    fn item(
        &mut self,
        scanned: &mut Scanned,
        item: &Item,
        stored: &mut Stored,
        again: &mut BTreeSet<u32>,
    ) -> Result<()> {
        let counters = self.job.reporter.counters();
        if scanned.contents[item.content as usize].parts.is_none() {
            self.content(scanned, item.content as usize, stored)?;
        } else if !again.contains(&item.content) {
            let saved = self.segmenter.saved();
            if !self.parts(scanned, item, stored)? {
                self.segmenter.discard()?;
                again.insert(item.content);
            }
            let saved = self.segmenter.saved() - saved;
            add(&counters.saved_by_segmentation, saved);
        }
        add(&counters.fragments_written, 1);
        Ok(())
    }

    /// Stores those parts of a content that belong to this stream. Returns whether the file is
    /// still what it was when it was cut.
    fn parts(&mut self, scanned: &Scanned, item: &Item, stored: &mut Stored) -> Result<bool> {
        let content = &scanned.contents[item.content as usize];
        let file = content.first_file();
        let count = content.parts.as_ref().map_or(0, |parts| parts.len());
        let places: Vec<usize> = content
            .parts
            .iter()
            .flatten()
            .enumerate()
            .filter(|(_, (stream, _))| *stream == item.stream)
            .map(|(at, _)| at)
            .collect();
        let ranges = content.ranges_of(item.stream);
        for (place, range) in places.into_iter().zip(ranges) {
            let size = range.end - range.start;
            if let Some(bytes) = scanned.cache.get(&file) {
                let part = usize::try_from(range.start)
                    .ok()
                    .zip(usize::try_from(range.end).ok())
                    .and_then(|(start, end)| bytes.get(start..end));
                let Some(part) = part else {
                    return Ok(false);
                };
                self.segmenter.data(part)?;
            } else {
                let end = range.end;
                let mut frames = Frames {
                    segmenter: &mut self.segmenter,
                    granularity: self.granularity,
                    position: 0,
                };
                let hole_bytes = &self.job.reporter.counters().hole_bytes;
                let read = scan::read_range(
                    self.job.tree,
                    file,
                    range,
                    self.job.options,
                    self.job.reporter,
                    self.job.stop,
                    &mut self.buffer,
                    |part| {
                        if let Part::Hole(size) = part {
                            add(hole_bytes, size);
                        }
                        frames.part(part)
                    },
                );
                let read_all = frames.position == size;
                match read {
                    Ok(outcome) if read_all && outcome.size == end && !outcome.changed => {}
                    Err(ReadError::Fatal(error)) => return Err(error),
                    Ok(_) | Err(ReadError::Input(_)) => return Ok(false),
                }
            }
            self.segmenter.end_extent()?;
            let first = stored.chunks.len();
            self.segmenter.take_chunks(&mut stored.chunks);
            let split = stored.split.entry(item.content);
            let split = split.or_insert_with(|| vec![(0, 0); count]);
            if let Some(range) = split.get_mut(place) {
                *range = (first, stored.chunks.len() - first);
            }
        }
        Ok(true)
    }

    /// Stores one content, from the first of its files that is still what it was when it was
    /// hashed. Files that are not any more become contents of their own.
    fn content(
        &mut self,
        scanned: &mut Scanned,
        content: usize,
        stored: &mut Stored,
    ) -> Result<()> {
        let job = self.job;
        let counters = job.reporter.counters();
        let (size, failed) = (
            scanned.contents[content].size,
            scanned.contents[content].failed,
        );
        if failed || size == 0 {
            return Ok(());
        }
        if job.options.hollow {
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
            let path = job.tree.file_path(file);
            let mut hasher = job
                .options
                .file_hash
                .filter(|_| shared)
                .map(FileHash::hasher);
            let segmenter = &mut self.segmenter;
            let read = scan::read_file(
                job.tree,
                file,
                job.options,
                job.reporter,
                job.stop,
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
                    self.segmenter.discard()?;
                    // Its content was read once; another file with it stands in.
                    let what = if last {
                        "storing it empty"
                    } else {
                        "using an equal file"
                    };
                    job.reporter
                        .problem(&path, &format!("cannot read file, {what}: {error}"));
                }
                Ok(outcome) => {
                    let as_hashed = match (hasher, &scanned.contents[content].digest) {
                        (Some(hasher), Some(digest)) => hasher.finish() == *digest,
                        _ => true,
                    };
                    if outcome.changed {
                        job.reporter
                            .problem(&path, "file has changed while the image was built");
                    } else if !as_hashed {
                        job.reporter
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
                        files: Files::One(file),
                        failed: false,
                        parts: None,
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

/// Feeds a part of a file to a segmenter such that extents consist of whole units: holes shrink
/// to whole ones, and what is left of them becomes zeros.
struct Frames<'s, S> {
    segmenter: &'s mut Segmenter<S>,
    granularity: u64,
    /// In the part, which begins with a whole unit.
    position: u64,
}

impl<S: BlockSink> Frames<'_, S> {
    fn part(&mut self, part: Part<'_>) -> Result<()> {
        match part {
            Part::Data(data) => {
                self.position += data.len() as u64;
                self.segmenter.data(data)
            }
            Part::EndOfExtent => self.end_of_extent(),
            Part::Hole(size) => {
                let end = self.position + size;
                let unit = self.granularity;
                let first = self.position.next_multiple_of(unit).min(end);
                let last = (end - end % unit).max(first);
                self.zeros(first)?;
                if first < last {
                    self.segmenter.end_extent()?;
                    self.segmenter.hole(last - first);
                    self.position = last;
                }
                self.zeros(end)?;
                self.end_of_extent()
            }
        }
    }

    /// An extent that ends within a unit goes on with what follows it.
    fn end_of_extent(&mut self) -> Result<()> {
        if self.position.is_multiple_of(self.granularity) {
            self.segmenter.end_extent()?;
        }
        Ok(())
    }

    fn zeros(&mut self, end: u64) -> Result<()> {
        while self.position < end {
            let wanted = (end - self.position).min(ZEROS.len() as u64);
            let zeros = ZEROS.get(..wanted as usize).unwrap_or_default();
            self.segmenter.data(zeros)?;
            self.position += zeros.len() as u64;
        }
        Ok(())
    }
}
