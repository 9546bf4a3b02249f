//! The contents of all files, block by block.
//!
//! ```text
//! plan: pieces sorted by block -> decoder threads -> writer threads
//!             ^                                          |
//!             +------------- room for one more block <---+
//! ```
//!
//! A block is planned when there is room for it, decoded once, shared by the writers that need a part
//! of it, and dropped when the last of them is done.

use std::collections::HashMap;
use std::io::{self, IoSlice};
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd};
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope};

use crossbeam_channel::{Receiver, Sender, bounded};
use redwarfs_format::BlockNo;
use redwarfs_format::metadata::{Extent, Stat};
use redwarfs_reader::Image;

use crate::error::{Error, Result};
use crate::files::{Files, LastDir};
use crate::target;
use crate::tree::Tree;
use crate::{ExtractOptions, Progress};

/// Pieces planned at a time; each takes 16 bytes.
const PIECES_PER_WINDOW: u64 = 4 << 20;

/// Pieces handed to a writer at least, unless the block has fewer.
const PIECES_PER_JOB: usize = 64;

/// Pieces per job of a block that is not planned but searched for.
const PIECES_PER_SEARCHED_JOB: usize = 64 << 10;

/// Pieces written with one call at most.
const MAX_GATHER: usize = 256;

/// A position in a file and the slices of a block that follow each other from there on.
type Piecewise<'b> = (u64, Vec<&'b [u8]>);

/// One extent of one content, filed under its block.
#[derive(Debug, Clone, Copy, Default)]
struct Piece {
    content: u32,
    /// Which extent of the content.
    extent: u32,
    /// Position in the file.
    offset: u64,
}

/// The pieces of some consecutive blocks.
#[derive(Debug)]
struct Window {
    pieces: Vec<Piece>,
}

/// Pieces of one block that one writer handles.
#[derive(Debug)]
enum Pieces {
    Planned(Arc<Window>, Range<usize>),
    Searched(Vec<Piece>),
}

impl Pieces {
    fn as_slice(&self) -> &[Piece] {
        match self {
            Self::Planned(window, range) => window.pieces.get(range.clone()).unwrap_or_default(),
            Self::Searched(pieces) => pieces,
        }
    }
}

/// Permission to hold one decoded block; gives itself back.
#[derive(Debug)]
struct Room(Sender<()>);

impl Drop for Room {
    fn drop(&mut self) {
        // Fails only when the producer is gone, and then nobody waits for room.
        let _ = self.0.try_send(());
    }
}

#[derive(Debug)]
struct Decoded {
    bytes: Vec<u8>,
    _room: Room,
}

/// A block for a decoder, with the pieces that lie in it; `None`: too many to plan.
#[derive(Debug)]
struct BlockJob {
    block: BlockNo,
    pieces: Option<(Arc<Window>, Range<usize>)>,
    room: Room,
}

/// A part of a decoded (or undecodable) block for a writer.
#[derive(Debug)]
struct WriteJob {
    block: Arc<std::result::Result<Decoded, String>>,
    pieces: Pieces,
}

/// What became of the contents.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Bytes of file contents, holes included.
    pub(crate) bytes: u64,
    /// Files without their additional names.
    pub(crate) files: u64,
    /// Per content: whether it was lost.
    pub(crate) lost: Vec<bool>,
    /// Names (links included) that do not exist because of that.
    pub(crate) lost_names: u64,
}

struct Run<'a> {
    image: &'a Image,
    tree: &'a Tree<'a>,
    files: &'a Files<'a>,
    options: &'a ExtractOptions,
    progress: &'a dyn Progress,
    /// Per content, the pieces not yet dealt with.
    remaining: Vec<AtomicU32>,
    /// Contents that cannot be read, and why.
    damaged: Mutex<HashMap<u32, String>>,
    any_damage: AtomicBool,
    failure: Mutex<Option<Error>>,
    stop: AtomicBool,
    bytes: AtomicU64,
    finished: AtomicU64,
    lost_names: AtomicU64,
}

/// Creates and fills all regular files of the tree.
pub(crate) fn write_contents(
    image: &Image,
    tree: &Tree<'_>,
    files: &Files<'_>,
    options: &ExtractOptions,
    progress: &dyn Progress,
) -> Result<Outcome> {
    let mut run = Run {
        image,
        tree,
        files,
        options,
        progress,
        remaining: Vec::new(),
        damaged: Mutex::default(),
        any_damage: AtomicBool::new(false),
        failure: Mutex::default(),
        stop: AtomicBool::new(false),
        bytes: AtomicU64::new(0),
        finished: AtomicU64::new(0),
        lost_names: AtomicU64::new(0),
    };
    let counts = run.count_pieces()?;
    let result = run.finish_without_data().and_then(|()| run.work(&counts));
    if let Err(e) = result {
        run.fail(e);
    }
    if let Some(e) = run
        .failure
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take()
    {
        run.remove_incomplete();
        return Err(e);
    }
    let mut lost = vec![false; tree.content_count() as usize];
    for content in run
        .damaged
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .keys()
    {
        if let Some(flag) = lost.get_mut(*content as usize) {
            *flag = true;
        }
    }
    Ok(Outcome {
        bytes: run.bytes.load(Ordering::Relaxed),
        files: run.finished.load(Ordering::Relaxed),
        lost,
        lost_names: run.lost_names.load(Ordering::Relaxed),
    })
}

impl Run<'_> {
    /// Counts the pieces per block and per content, and announces the total size.
    fn count_pieces(&mut self) -> Result<Vec<u64>> {
        let mut counts = vec![0_u64; self.image.container().block_count() as usize];
        let mut total = 0_u64;
        for content in 0..self.tree.content_count() {
            let mut number = 0_u32;
            let result = self.each_piece(content, |block, _| {
                let count = counts
                    .get_mut(block.0 as usize)
                    .ok_or_else(|| no_such_block(block))?;
                *count += 1;
                number += 1;
                Ok(())
            });
            if let Err(e) = result {
                // Take back what was counted before the error.
                let mut left = number;
                let _ = self.each_piece(content, |block, _| {
                    if left == 0 {
                        return Err(no_such_block(block));
                    }
                    left -= 1;
                    if let Some(count) = counts.get_mut(block.0 as usize) {
                        *count -= 1;
                    }
                    Ok(())
                });
                number = 0;
                self.content_error(content, e)?;
            }
            self.remaining.push(AtomicU32::new(number));
            for file in self.tree.files_of(content) {
                if let Some(f) = self.tree.file(file) {
                    total = total.saturating_add(self.image.stat(f.ino)?.size);
                }
            }
        }
        self.progress.total(total);
        Ok(counts)
    }

    /// Calls `visit` for each data extent of a content.
    fn each_piece(
        &self,
        content: u32,
        mut visit: impl FnMut(BlockNo, Piece) -> redwarfs_format::Result<()>,
    ) -> redwarfs_format::Result<()> {
        let Some(ino) = self.tree.inode_of(content) else {
            return Ok(());
        };
        let mut offset = 0_u64;
        for (extent, item) in self.image.metadata().extents(ino)?.enumerate() {
            let size = match item? {
                Extent::Data { block, size, .. } => {
                    let extent = u32::try_from(extent).map_err(|_| {
                        redwarfs_format::Error::corrupt("more than 2^32 extents in a file")
                    })?;
                    visit(
                        block,
                        Piece {
                            content,
                            extent,
                            offset,
                        },
                    )?;
                    u64::from(size)
                }
                Extent::Hole { size } => size,
            };
            offset = offset
                .checked_add(size)
                .ok_or_else(|| redwarfs_format::Error::corrupt("file size overflows"))?;
        }
        Ok(())
    }

    /// Creates the files that need no block, and gives up those whose extents make no sense.
    fn finish_without_data(&self) -> Result<()> {
        let mut last = LastDir::default();
        for content in 0..self.tree.content_count() {
            if self.remaining_of(content).load(Ordering::Relaxed) == 0 {
                self.finish(content, &mut last)?;
            }
        }
        Ok(())
    }

    /// Runs the threads over all blocks.
    fn work(&self, counts: &[u64]) -> Result<()> {
        if counts.iter().all(|&n| n == 0) {
            return Ok(());
        }
        let used = counts.iter().filter(|&&n| n > 0).count();
        let decoders = self.options.decoder_threads().min(used);
        let writers = self.options.writer_threads();
        let block_size = u64::from(self.image.metadata().block_size()).max(1);
        let fitting = usize::try_from(self.options.memory / block_size).unwrap_or(usize::MAX);
        let room = fitting.clamp(1, decoders + writers + 1);

        let (room_back, rooms) = bounded(room);
        for _ in 0..room {
            // The channel has exactly this capacity.
            let _ = room_back.try_send(());
        }
        let (blocks_in, blocks_out) = bounded::<BlockJob>(room);
        let (writes_in, writes_out) = bounded::<WriteJob>(writers * 4);
        thread::scope(|scope| {
            self.spawn(scope, decoders, "decode", || {
                let (jobs, out) = (blocks_out.clone(), writes_in.clone());
                move || self.decode_all(&jobs, &out, writers)
            })?;
            self.spawn(scope, writers, "write", || {
                let jobs = writes_out.clone();
                move || self.write_all(&jobs)
            })?;
            drop((blocks_out, writes_in, writes_out));
            let result = self.produce(counts, &blocks_in, &rooms, &room_back);
            drop(blocks_in);
            result
        })
    }

    /// Starts up to `count` threads. One is enough to go on with.
    fn spawn<'scope, F: FnOnce() + Send + 'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        count: usize,
        name: &str,
        mut body: impl FnMut() -> F,
    ) -> Result<()> {
        for started in 0..count {
            let spawned = thread::Builder::new()
                .name(name.to_owned())
                .spawn_scoped(scope, body());
            if let Err(e) = spawned
                && started == 0
            {
                self.stop.store(true, Ordering::Relaxed);
                return Err(Error::Thread(e));
            }
        }
        Ok(())
    }

    /// Plans window after window and hands out blocks while there is room.
    fn produce(
        &self,
        counts: &[u64],
        jobs: &Sender<BlockJob>,
        rooms: &Receiver<()>,
        room_back: &Sender<()>,
    ) -> Result<()> {
        let mut start = 0;
        while let Some(&first) = counts.get(start) {
            let mut end = start + 1;
            let mut sum = first;
            while let Some(&next) = counts.get(end)
                && sum + next <= PIECES_PER_WINDOW
            {
                sum += next;
                end += 1;
            }
            let planned = if sum == 0 {
                None
            } else if sum <= PIECES_PER_WINDOW {
                Some(self.plan(counts, start..end)?)
            } else {
                None
            };
            let mut at = 0_usize;
            for (block, &count) in counts.iter().enumerate().take(end).skip(start) {
                // Fits: the window holds them all, or they are not used as a range.
                let next = at.saturating_add(usize::try_from(count).unwrap_or(usize::MAX));
                if count > 0 {
                    if self.stop.load(Ordering::Relaxed) || rooms.recv().is_err() {
                        return Ok(());
                    }
                    let job = BlockJob {
                        block: BlockNo(u32::try_from(block).unwrap_or(u32::MAX)),
                        pieces: planned
                            .as_ref()
                            .map(|window| (Arc::clone(window), at..next)),
                        room: Room(room_back.clone()),
                    };
                    if jobs.send(job).is_err() {
                        return Ok(());
                    }
                }
                at = next;
            }
            start = end;
        }
        Ok(())
    }

    /// Sorts the pieces of a range of blocks by block, in the order of contents within a block.
    fn plan(&self, counts: &[u64], blocks: Range<usize>) -> Result<Arc<Window>> {
        let mut cursors = Vec::with_capacity(blocks.len());
        let mut sum = 0_usize;
        for &count in counts.get(blocks.clone()).unwrap_or_default() {
            cursors.push(sum);
            sum = sum.saturating_add(usize::try_from(count).unwrap_or(usize::MAX));
        }
        let mut pieces = vec![Piece::default(); sum];
        for content in 0..self.tree.content_count() {
            if self.remaining_of(content).load(Ordering::Relaxed) == 0 {
                continue;
            }
            self.each_piece(content, |block, piece| {
                let cursor = (block.0 as usize)
                    .checked_sub(blocks.start)
                    .and_then(|i| cursors.get_mut(i));
                if let Some(cursor) = cursor {
                    if let Some(slot) = pieces.get_mut(*cursor) {
                        *slot = piece;
                    }
                    *cursor += 1;
                }
                Ok(())
            })?;
        }
        Ok(Arc::new(Window { pieces }))
    }

    fn decode_all(&self, jobs: &Receiver<BlockJob>, out: &Sender<WriteJob>, writers: usize) {
        for BlockJob {
            block,
            pieces,
            room,
        } in jobs
        {
            if self.stop.load(Ordering::Relaxed) {
                continue;
            }
            let decoded = match self.image.decode_block(block) {
                Ok(bytes) => Ok(Decoded { bytes, _room: room }),
                Err(e) if self.options.continue_on_error => Err(e.to_string()),
                Err(e) => {
                    self.fail(self.blame(block, pieces.as_ref(), e));
                    continue;
                }
            };
            let decoded = Arc::new(decoded);
            let sent = match pieces {
                Some((window, range)) => self.hand_out(&decoded, &window, range, writers, out),
                None => self.search(block, &decoded, out),
            };
            if let Err(e) = sent {
                self.fail(e);
            }
        }
    }

    /// Names a file that needs a block that cannot be decoded.
    fn blame(
        &self,
        block: BlockNo,
        pieces: Option<&(Arc<Window>, Range<usize>)>,
        source: redwarfs_format::Error,
    ) -> Error {
        let content = pieces
            .and_then(|(window, range)| window.pieces.get(range.start))
            .map(|p| p.content);
        match content {
            Some(content) => Error::Content {
                path: self.tree.shown_file(self.tree.files_of(content).start),
                source,
            },
            None => Error::Content {
                path: format!("block {block}"),
                source,
            },
        }
    }

    /// Splits the pieces of a block between the writers, never within a content.
    fn hand_out(
        &self,
        block: &Arc<std::result::Result<Decoded, String>>,
        window: &Arc<Window>,
        range: Range<usize>,
        writers: usize,
        out: &Sender<WriteJob>,
    ) -> Result<()> {
        let share = range.len().div_ceil(writers).max(PIECES_PER_JOB);
        let mut start = range.start;
        while start < range.end {
            let mut end = start.saturating_add(share).min(range.end);
            while end < range.end
                && let (Some(a), Some(b)) = (window.pieces.get(end - 1), window.pieces.get(end))
                && a.content == b.content
            {
                end += 1;
            }
            let pieces = Pieces::Planned(Arc::clone(window), start..end);
            if out
                .send(WriteJob {
                    block: Arc::clone(block),
                    pieces,
                })
                .is_err()
            {
                return Ok(());
            }
            start = end;
        }
        Ok(())
    }

    /// For a block with more pieces than can be planned: finds them anew and sends them in portions.
    fn search(
        &self,
        wanted: BlockNo,
        block: &Arc<std::result::Result<Decoded, String>>,
        out: &Sender<WriteJob>,
    ) -> Result<()> {
        let mut batch = Vec::new();
        let send = |batch: &mut Vec<Piece>| {
            let pieces = Pieces::Searched(std::mem::take(batch));
            // Fails only when no writer is left, which has been reported then.
            let _ = out.send(WriteJob {
                block: Arc::clone(block),
                pieces,
            });
        };
        for content in 0..self.tree.content_count() {
            if self.remaining_of(content).load(Ordering::Relaxed) == 0 {
                continue;
            }
            self.each_piece(content, |found, piece| {
                if found == wanted {
                    batch.push(piece);
                    if batch.len() >= PIECES_PER_SEARCHED_JOB {
                        send(&mut batch);
                    }
                }
                Ok(())
            })?;
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        if !batch.is_empty() {
            send(&mut batch);
        }
        Ok(())
    }

    fn write_all(&self, jobs: &Receiver<WriteJob>) {
        let mut last = LastDir::default();
        for WriteJob { block, pieces } in jobs {
            for group in pieces.as_slice().chunk_by(|a, b| a.content == b.content) {
                if self.stop.load(Ordering::Relaxed) {
                    break;
                }
                if let Err(e) = self.write_group(&block, group, &mut last) {
                    self.fail(e);
                }
            }
        }
    }

    /// Writes the pieces of one content that are in one block.
    fn write_group(
        &self,
        block: &std::result::Result<Decoded, String>,
        group: &[Piece],
        last: &mut LastDir,
    ) -> Result<()> {
        let Some(content) = group.first().map(|p| p.content) else {
            return Ok(());
        };
        let number = u32::try_from(group.len()).unwrap_or(u32::MAX);
        match block {
            Err(cause) => self.note_damage(content, cause.clone()),
            Ok(_) if self.is_damaged(content) => {}
            Ok(decoded) => match self.gather(content, group, &decoded.bytes) {
                Ok(runs) => {
                    // Nothing else is or will be at work on this content: no need for the table.
                    let alone = self.remaining_of(content).load(Ordering::Acquire) == number;
                    for file in self.tree.files_of(content) {
                        self.write_runs(file, &runs, alone, last)?;
                    }
                    if alone && !self.is_damaged(content) {
                        self.remaining_of(content).store(0, Ordering::Release);
                        return Ok(());
                    }
                }
                Err(e) => self.content_error(content, e)?,
            },
        }
        if self
            .remaining_of(content)
            .fetch_sub(number, Ordering::AcqRel)
            == number
        {
            self.finish(content, last)?;
        }
        Ok(())
    }

    /// Joins pieces that follow each other in the file.
    fn gather<'b>(
        &self,
        content: u32,
        group: &[Piece],
        bytes: &'b [u8],
    ) -> redwarfs_format::Result<Vec<Piecewise<'b>>> {
        let mut runs: Vec<Piecewise<'_>> = Vec::new();
        let Some(ino) = self.tree.inode_of(content) else {
            return Ok(runs);
        };
        let extents = self.image.metadata().extents(ino)?;
        let mut expected = None;
        for piece in group {
            let Extent::Data {
                block,
                offset,
                size,
            } = extents.get(piece.extent as usize)?
            else {
                return Err(redwarfs_format::Error::corrupt("extent changed its kind"));
            };
            let data = (offset as usize)
                .checked_add(size as usize)
                .and_then(|end| bytes.get(offset as usize..end))
                .ok_or_else(|| {
                    redwarfs_format::Error::corrupt(format!(
                        "chunk of {size} bytes at {offset} reaches beyond block {block} of {} bytes",
                        bytes.len()
                    ))
                })?;
            match runs.last_mut() {
                Some((_, slices))
                    if expected == Some(piece.offset) && slices.len() < MAX_GATHER =>
                {
                    slices.push(data);
                }
                _ => runs.push((piece.offset, vec![data])),
            }
            expected = piece.offset.checked_add(u64::from(size));
        }
        Ok(runs)
    }

    fn write_runs(
        &self,
        file: u32,
        runs: &[Piecewise<'_>],
        alone: bool,
        last: &mut LastDir,
    ) -> Result<()> {
        let Some(f) = self.tree.file(file) else {
            return Ok(());
        };
        let stat = self.image.stat(f.ino)?;
        let write = |fd: BorrowedFd<'_>| -> Result<()> {
            for (offset, slices) in runs {
                let written = write_at(fd, *offset, slices)
                    .map_err(|e| target::target("cannot write", self.tree.shown_file(file), e))?;
                self.bytes.fetch_add(written, Ordering::Relaxed);
                self.progress.advance(written);
            }
            Ok(())
        };
        if alone && !self.files.is_created(file) {
            let fd = self.files.create(file, &stat, last)?;
            write(fd.as_fd())?;
            self.complete(&fd, file, &stat)
        } else {
            let fd = self.files.open(file, &stat, last)?;
            write(fd.as_fd())?;
            if alone {
                self.files.close(file);
                self.complete(&fd, file, &stat)?;
            }
            Ok(())
        }
    }

    fn complete(&self, fd: &std::os::fd::OwnedFd, file: u32, stat: &Stat) -> Result<()> {
        self.progress
            .file(&|| self.tree.shown_file(file), stat.size);
        self.files.finish(fd, file, stat, self.progress)?;
        let holes = stat.size.saturating_sub(stat.allocated);
        self.bytes.fetch_add(holes, Ordering::Relaxed);
        self.progress.advance(holes);
        self.finished.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }

    /// All pieces of a content have been dealt with: sets the attributes of its files, or removes them.
    fn finish(&self, content: u32, last: &mut LastDir) -> Result<()> {
        if self.is_damaged(content) {
            return self.give_up(content, last);
        }
        for file in self.tree.files_of(content) {
            let Some(f) = self.tree.file(file) else {
                continue;
            };
            let stat = self.image.stat(f.ino)?;
            let fd = self.files.open(file, &stat, last)?;
            self.files.close(file);
            self.complete(&fd, file, &stat)?;
        }
        Ok(())
    }

    fn give_up(&self, content: u32, last: &mut LastDir) -> Result<()> {
        let cause = {
            let damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
            damaged.get(&content).cloned().unwrap_or_default()
        };
        let cause = format!("{cause}; not extracted");
        for file in self.tree.files_of(content) {
            self.files.remove(file, last)?;
            self.lost_names.fetch_add(1, Ordering::Relaxed);
            self.progress.damaged(&self.tree.shown_file(file), &cause);
            for link in self.tree.links_of(file) {
                self.files.remove_name(link.dir, link.entry, last)?;
                self.lost_names.fetch_add(1, Ordering::Relaxed);
                self.progress
                    .damaged(&self.tree.shown(link.dir, link.entry), &cause);
            }
        }
        Ok(())
    }

    /// After a fatal error: files that miss some of their contents do not stay behind.
    fn remove_incomplete(&self) {
        let mut last = LastDir::default();
        for content in 0..self.tree.content_count() {
            if self.remaining_of(content).load(Ordering::Acquire) == 0 {
                continue;
            }
            for file in self.tree.files_of(content) {
                if self.files.is_created(file) {
                    // The extraction has failed already, for the reason that will be reported.
                    let _ = self.files.remove(file, &mut last);
                }
            }
        }
    }

    fn remaining_of(&self, content: u32) -> &AtomicU32 {
        static NONE: AtomicU32 = AtomicU32::new(0);
        self.remaining.get(content as usize).unwrap_or(&NONE)
    }

    fn is_damaged(&self, content: u32) -> bool {
        self.any_damage.load(Ordering::Acquire)
            && self
                .damaged
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .contains_key(&content)
    }

    fn note_damage(&self, content: u32, cause: String) {
        let mut damaged = self.damaged.lock().unwrap_or_else(PoisonError::into_inner);
        damaged.entry(content).or_insert(cause);
        self.any_damage.store(true, Ordering::Release);
    }

    /// Remembers that a content cannot be read, or fails if that is to end the extraction.
    fn content_error(&self, content: u32, source: redwarfs_format::Error) -> Result<()> {
        if self.options.continue_on_error {
            self.note_damage(content, source.to_string());
            return Ok(());
        }
        Err(Error::Content {
            path: self.tree.shown_file(self.tree.files_of(content).start),
            source,
        })
    }

    fn fail(&self, e: Error) {
        let mut failure = self.failure.lock().unwrap_or_else(PoisonError::into_inner);
        failure.get_or_insert(e);
        self.stop.store(true, Ordering::Relaxed);
    }
}

fn no_such_block(block: BlockNo) -> redwarfs_format::Error {
    redwarfs_format::Error::corrupt(format!("reference to block {block}, which does not exist"))
}

/// Writes slices one after another at a position; returns how many bytes that were.
fn write_at(fd: BorrowedFd<'_>, mut offset: u64, slices: &[&[u8]]) -> io::Result<u64> {
    let start = offset;
    let mut vectors: Vec<IoSlice<'_>> = slices.iter().map(|s| IoSlice::new(s)).collect();
    let mut rest = &mut vectors[..];
    // Drops empty slices, so that writing nothing means an error.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match rustix::io::pwritev(fd, rest, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                offset += n as u64;
                IoSlice::advance_slices(&mut rest, n);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(offset - start)
}
