//! Putting contents into blocks: items in their [`Sequences`](crate::contents::Sequences) ->
//! blocks, and [`Stored`].
//!
//! Several streams are segmented in parallel, as far as memory allows. Each stream is segmented as if it
//! were alone: its blocks are numbered from 0. When all streams have ended, their results are joined
//! in the order of the streams. So the number of threads changes nothing.
//!
//! Memory: 12 bytes for each chunk. Each content needs 12 bytes until the streams have ended, and 8 bytes
//! from then on. If blocks are large, each content of a stream needs 4 more bytes while the stream is
//! being segmented. If bytes of blocks move ([`Front`](crate::segmenter::Front)), there are chunks twice at
//! the end of a stream, and 8 bytes for each content.

mod against;
mod frames;
mod joined;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};

use redwarfs_format::metadata::Extent;

use self::against::{Against, OldBlocks};
use self::frames::Frames;
use self::joined::{Changed, StoredStream, append, chunk_number};
use crate::base::BaseImage;
use crate::contents::{
    Chunk, ChunkRange, Content, Contents, MOST_BLOCKS, Origin, Sequence, SharedKept, Stored,
    StoredValues,
};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::hash::FileHash;
use crate::options::ThreadGroup;
use crate::ordered::thread;
use crate::progress::{CpuTime, Phase, add};
use crate::read::{FilePart, ReadError, read_file, read_range};
use crate::segmenter::{Segmenter, together};
use crate::settings::StreamSettings;
use crate::source::FileType;
use crate::stages::compress::{BlockQueue, StreamQueue};
use crate::tree::Tree;

/// The stream of everything that is in no category.
const DEFAULT_STREAM: u32 = 0;

/// Stores the items of all streams.
#[derive(Clone, Copy)]
pub(crate) struct SegmentJob<'a> {
    pub(crate) context: Context<'a>,
    pub(crate) tree: &'a Tree,
    pub(crate) streams: &'a [StreamSettings<'a>],
    /// Streams that are segmented at a time, at least 1.
    pub(crate) segmenters: usize,
    /// By number, whether a file is wanted in front in its blocks ([`in_front`]); empty if none is.
    pub(crate) front: &'a [bool],
}

/// Says of each file whether one of its names is below the directory that is wanted in front. Takes a byte for each
/// file. Empty if there is no such directory.
pub(crate) fn in_front(context: Context<'_>, tree: &Tree) -> Vec<bool> {
    let path = context.options.front.as_deref();
    let Some(directory) = path.and_then(|path| tree.directory_at(path)) else {
        return Vec::new();
    };
    let mut chosen = vec![false; tree.files.len()];
    for entry in 1..tree.parents.len() as u32 {
        let inode = tree.inodes.at(entry);
        if tree.is_below(entry, directory)
            && tree.kind(inode) == FileType::Regular
            && let Some(file) = chosen.get_mut(tree.detail(inode) as usize)
        {
            *file = true;
        }
    }
    chosen
}

impl SegmentJob<'_> {
    /// Stores the contents of all streams that have any.
    pub(crate) fn run(
        self,
        contents: &mut Contents,
        sequences: &[Sequence],
        queue: &BlockQueue<'_>,
    ) -> Result<Stored> {
        let mut stored = Stored::default();
        stored.categories.sizes = vec![0; self.streams.len()];
        stored.categories.base = self.context.base.map_or_else(Vec::new, BaseImage::blocks);
        let mut kept = std::mem::take(&mut contents.kept).share();
        let old = (self.context.base).map(|image| OldBlocks::new(image, self.context.options));
        let old = old.as_ref();
        let list = &mut contents.list;
        for of in sequences {
            if let Some(size) = stored.categories.sizes.get_mut(of.stream as usize) {
                *size = of.size;
            }
        }
        let done = self.streams(list, &kept, old, sequences, queue)?;
        stored.ranges = vec![(0, 0); list.len()];
        self.base(list, &mut stored)?;
        let before = done.len() as u32;
        let mut again = BTreeSet::new();
        for stream in done {
            again.extend(stream.again.iter().copied());
            append(&mut stored, list, stream)?;
        }
        let repeated = !again.is_empty();
        if repeated {
            // In one piece each, after everything else.
            for &content in &again {
                stored.split.remove(&content);
                let content = &mut list[content as usize];
                content.parts = None;
                kept.forget(content.first_file());
            }
            let mut store = self.stream(list, &kept, old, DEFAULT_STREAM, before, queue);
            for content in again {
                store.choose(content as usize);
                store.content(content as usize)?;
            }
            let done = store.end()?;
            append(&mut stored, list, done)?;
        }
        self.values(
            list,
            &kept,
            before + u32::from(repeated),
            queue,
            &mut stored,
        )?;
        self.context.counters().set_current(b"");
        self.context.progress.phase(Phase::Compressing);
        Ok(stored)
    }

    /// Refers to the contents that are in the image which the build continues.
    fn base(self, list: &[Content], stored: &mut Stored) -> Result<()> {
        let Some(image) = self.context.base else {
            return Ok(());
        };
        for (content, range) in list.iter().zip(&mut stored.ranges) {
            let Origin::Base(base) = content.origin else {
                continue;
            };
            let first = chunk_number(stored.chunks.len())?;
            for extent in image.extents(base)? {
                match extent {
                    Extent::Hole { size: 0 } | Extent::Data { size: 0, .. } => {}
                    Extent::Hole { size } => stored.chunks.push(Chunk::hole(size)),
                    Extent::Data {
                        block,
                        offset,
                        size,
                    } => stored.chunks.push(Chunk {
                        block: block.0,
                        offset,
                        size,
                    }),
                }
            }
            *range = (first, chunk_number(stored.chunks.len())? - first);
        }
        Ok(())
    }

    /// Stores the long values of extended attributes in the last stream, after `before` others.
    fn values(
        self,
        list: &[Content],
        kept: &SharedKept,
        before: u32,
        queue: &BlockQueue<'_>,
        stored: &mut Stored,
    ) -> Result<()> {
        let attributes = &self.tree.extended;
        if attributes.long_bytes() == 0 {
            return Ok(());
        }
        let stream = (self.streams.len() as u32).saturating_sub(1);
        if let Some(size) = stored.categories.sizes.last_mut() {
            *size = attributes.long_bytes();
        }
        let mut store = self.stream(list, kept, None, stream, before, queue);
        for (number, value) in attributes.long_values() {
            store.segmenter.data(value)?;
            store.segmenter.end_extent()?;
            let chunks = store.take_chunks()?;
            store.stored.whole.push((number, chunks));
        }
        let mut done = store.end()?;
        let first = stored.blocks();
        let end = first
            .checked_add(done.blocks)
            .filter(|&end| end < MOST_BLOCKS);
        let end = end.ok_or_else(Error::too_many_blocks)?;
        stored.categories.blocks.push((stream, end));
        for chunk in &mut done.chunks {
            chunk.block += first;
        }
        stored.values = StoredValues {
            chunks: done.chunks,
            ranges: done.whole.into_iter().collect(),
        };
        Ok(())
    }

    /// Stores streams, several at a time; results in their order.
    fn streams(
        self,
        list: &[Content],
        kept: &SharedKept,
        old: Option<&OldBlocks<'_>>,
        streams: &[Sequence],
        queue: &BlockQueue<'_>,
    ) -> Result<Vec<StoredStream>> {
        let next = AtomicUsize::new(0);
        // Streams begin in their order, so the first unfinished stream never waits for others.
        let work = || {
            let _alarm = queue.alarm();
            let mut done = Vec::new();
            loop {
                let at = next.fetch_add(1, Ordering::Relaxed);
                let Some(sequence) = streams.get(at) else {
                    return Ok(done);
                };
                let mut store = self.stream(list, kept, old, sequence.stream, at as u32, queue);
                store.stored.chunks.reserve(sequence.contents.len());
                store.stored.whole.reserve(sequence.contents.len());
                let together = store.together(&sequence.contents);
                let mut together = together.into_iter().chain(std::iter::repeat(0));
                let result = sequence.contents.iter().try_for_each(|&content| {
                    store
                        .segmenter
                        .keep_together(together.next().unwrap_or(0))?;
                    store.fragments(content)
                });
                match result.and_then(|()| store.end()) {
                    Ok(stored) => done.push((at, stored)),
                    Err(error) => {
                        // Others may wait for this stream.
                        queue.abort();
                        return Err(error);
                    }
                }
            }
        };
        let threads = self.segmenters.min(streams.len());
        let mut done = std::thread::scope(|scope| {
            let counters = self.context.counters();
            let others: Vec<_> = (1..threads)
                .map(|_| {
                    thread(scope, "segment", || {
                        self.context.options.begin(ThreadGroup::Segmenter);
                        let _cpu = CpuTime::counted_in(&counters.segment_cpu_ns);
                        work()
                    })
                })
                .collect();
            let mut results = vec![work()];
            results.extend(others.into_iter().map(|other| match other?.join() {
                Ok(result) => result,
                Err(panic) => std::panic::resume_unwind(panic),
            }));
            // Interruptions follow from other errors.
            let mut all = Vec::with_capacity(streams.len());
            let mut failed = None;
            for result in results {
                match (result, &failed) {
                    (Ok(done), _) => all.extend(done),
                    (Err(error), None | Some(Error::Interrupted)) => failed = Some(error),
                    (Err(_), Some(_)) => {}
                }
            }
            failed.map_or(Ok(all), Err)
        })?;
        done.sort_by_key(|(at, _)| *at);
        Ok(done.into_iter().map(|(_, stored)| stored).collect())
    }

    /// Begins a stream that is written after `before` others.
    fn stream<'s>(
        self,
        list: &'s [Content],
        kept: &'s SharedKept,
        old: Option<&'s OldBlocks<'s>>,
        stream: u32,
        before: u32,
        queue: &BlockQueue<'s>,
    ) -> StreamStore<'s>
    where
        Self: 's,
    {
        let segment = match self.streams.get(stream as usize) {
            Some(settings) => settings.segment,
            None => StreamSettings::general(self.context.options).segment,
        };
        StreamStore {
            job: self,
            list,
            kept,
            old,
            segmenter: Segmenter::new(segment, queue.stream(before, stream)),
            granularity: segment.granularity as u64,
            buffer: Vec::new(),
            stored: StoredStream {
                stream,
                ..StoredStream::default()
            },
        }
    }
}

/// Puts fragments into the blocks of one stream.
struct StreamStore<'a> {
    job: SegmentJob<'a>,
    list: &'a [Content],
    kept: &'a SharedKept,
    old: Option<&'a OldBlocks<'a>>,
    segmenter: Segmenter<StreamQueue<'a>>,
    granularity: u64,
    buffer: Vec<u8>,
    stored: StoredStream,
}

impl<'a> StreamStore<'a> {
    /// How much of what begins with each content is to be in one block; nothing if it does not matter.
    fn together(&self, contents: &[u32]) -> Vec<u32> {
        let block_size = self.job.context.options.block_size() as usize;
        if !together::matters(block_size) || self.job.context.options.hollow {
            return Vec::new();
        }
        let tree = self.job.tree;
        let parent = |entry: u32| tree.parents.get(entry as usize).copied().unwrap_or(0);
        let files = contents.iter().map(|&content| {
            let content = &self.list[content as usize];
            let file = &tree.files[content.first_file() as usize];
            // How much of a file is holes is not known yet.
            let size = if file.sparse() {
                0
            } else {
                content.size_in(self.stored.stream)
            };
            (size, parent(file.entry))
        });
        together::sizes(files, contents.len(), parent, block_size)
    }

    /// Says whether a content is wanted in front.
    fn choose(&mut self, content: usize) {
        let chosen = self.job.front;
        if !chosen.is_empty() {
            let mut files = self.list[content].files.iter();
            let chosen = files.any(|&file| chosen.get(file as usize) == Some(&true));
            self.segmenter.choose(chosen);
        }
    }

    /// Stores everything of a content that belongs to this stream.
    fn fragments(&mut self, content: u32) -> Result<()> {
        let counters = self.job.context.counters();
        self.choose(content as usize);
        if self.list[content as usize].parts.is_none() {
            self.content(content as usize)?;
        } else {
            let saved = self.segmenter.saved();
            if !self.parts(content)? {
                self.segmenter.discard()?;
                self.stored.again.push(content);
            }
            let saved = self.segmenter.saved() - saved;
            add(&counters.saved_by_segmentation, saved);
        }
        add(&counters.fragments_written, 1);
        Ok(())
    }

    /// Stores those parts of a content that belong to this stream. Returns whether the file is
    /// unchanged since it was cut.
    fn parts(&mut self, number: u32) -> Result<bool> {
        let (list, of_stream) = (self.list, self.stored.stream);
        let content = &list[number as usize];
        let file = content.first_file();
        let places: Vec<usize> = content
            .parts
            .iter()
            .flat_map(|parts| parts.iter())
            .enumerate()
            .filter(|(_, (stream, _))| *stream == of_stream)
            .map(|(at, _)| at)
            .collect();
        let ranges = content.ranges_of(of_stream);
        for (place, range) in places.into_iter().zip(ranges) {
            let size = range.end - range.start;
            if let Some(bytes) = self.kept.get(file) {
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
                let hole_bytes = &self.job.context.counters().hole_bytes;
                let read = read_range(
                    self.job.context,
                    self.job.tree,
                    file,
                    range,
                    &mut self.buffer,
                    |part| {
                        if let FilePart::Hole(size) = part {
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
            let chunks = self.take_chunks()?;
            self.stored.parts.push((number, place, chunks));
        }
        Ok(true)
    }

    /// Stores one content, from the first of its files that is unchanged since it was hashed. Files
    /// that have changed become separate contents.
    fn content(&mut self, number: usize) -> Result<()> {
        let job = self.job;
        let counters = job.context.counters();
        let list = self.list;
        let content = &list[number];
        if !content.origin.is_new() || content.size == 0 {
            return Ok(());
        }
        if job.context.options.hollow {
            self.segmenter.hole(content.size);
            self.keep(number)?;
            return Ok(());
        }
        let mut against = self.against(content);
        let files = &content.files;
        let shared = files.len() > 1;
        for (at, &file) in files.iter().enumerate() {
            let saved = self.segmenter.saved();
            if let Some(bytes) = self.kept.get(file) {
                match &mut against {
                    Some(against) => {
                        against.data(&mut self.segmenter, &bytes)?;
                        against.flush(&mut self.segmenter)?;
                        add(&counters.saved_by_segmentation, against.found);
                    }
                    None => self.segmenter.data(&bytes)?,
                }
                self.kept.release(file);
                self.segmenter.end_extent()?;
                self.keep(number)?;
                add(
                    &counters.saved_by_segmentation,
                    self.segmenter.saved() - saved,
                );
                return Ok(());
            }
            let path = job.tree.file_path(file);
            let mut hasher = job
                .context
                .options
                .file_hash
                .filter(|_| shared)
                .map(FileHash::hasher);
            let segmenter = &mut self.segmenter;
            let old = &mut against;
            let read = read_file(
                job.context,
                job.tree,
                file,
                &mut self.buffer,
                |part| match part {
                    FilePart::Data(data) => {
                        if let Some(hasher) = &mut hasher {
                            hasher.update(data);
                        }
                        match old {
                            Some(old) => old.data(segmenter, data),
                            None => segmenter.data(data),
                        }
                    }
                    FilePart::EndOfExtent => {
                        if let Some(old) = old {
                            old.flush(segmenter)?;
                        }
                        segmenter.end_extent()
                    }
                    FilePart::Hole(size) => {
                        if let Some(hasher) = &mut hasher {
                            hasher.update_zeros(size);
                        }
                        add(&counters.hole_bytes, size);
                        match old {
                            Some(old) => old.hole(segmenter, size),
                            None => {
                                segmenter.hole(size);
                                Ok(())
                            }
                        }
                    }
                },
            );
            // Another file with this content is stored without the old version.
            if let Some(old) = against.take() {
                add(&counters.saved_by_segmentation, old.found);
            }
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
                    job.context
                        .problem(&path, &format!("cannot read file, {what}: {error}"));
                }
                Ok(outcome) => {
                    let as_hashed = match (hasher, content.files.digest()) {
                        (Some(hasher), Some(digest)) => hasher.finish() == *digest,
                        _ => true,
                    };
                    if outcome.changed {
                        job.context
                            .problem(&path, "file has changed while the image was built");
                    } else if !as_hashed {
                        job.context
                            .problem(&path, "file content has changed while the image was built");
                    }
                    if as_hashed {
                        self.keep(number)?;
                        return Ok(());
                    }
                    // It differs from the others.
                    let chunks = self.take_chunks()?;
                    self.stored.changed.push(Changed {
                        content: number,
                        file,
                        size: outcome.size,
                        chunks,
                    });
                }
            }
        }
        // Every file is unreadable, or has become a separate content. Unreadable ones stay here and are
        // empty.
        Ok(())
    }

    /// The search for the data of a content in the image that the build continues.
    fn against(&self, content: &Content) -> Option<Against<'a>> {
        let image = self.job.context.base.filter(|_| self.granularity == 1)?;
        let path = self.job.tree.file_path(content.first_file());
        Against::new(image, image.at(&path), content.size, self.old?)
    }

    fn keep(&mut self, content: usize) -> Result<()> {
        let chunks = self.take_chunks()?;
        self.stored.whole.push((content as u32, chunks));
        Ok(())
    }

    /// The chunks since the last call.
    fn take_chunks(&mut self) -> Result<ChunkRange> {
        let first = chunk_number(self.stored.chunks.len())?;
        self.segmenter.take_chunks(&mut self.stored.chunks);
        let end = chunk_number(self.stored.chunks.len())?;
        Ok((first, end - first))
    }

    /// Ends the stream.
    fn end(mut self) -> Result<StoredStream> {
        let blocks = self.segmenter.finish()?;
        if let Some(front) = self.segmenter.take_front() {
            self.stored.settle(&front)?;
        }
        self.segmenter.into_sink().end(blocks);
        self.stored.blocks = blocks;
        Ok(self.stored)
    }
}
