//! The contents of all files, block by block.
//!
//! ```text
//! plan: pieces sorted by block -> decoder threads -> writer threads
//!             ^                                          |
//!             +------------- room for one more block <---+
//! ```
//!
//! A block is planned when there is room for it. It is decoded once, up to the end of the last needed
//! piece. The writers that need a part of it share it, and the last one drops it. The first ones are
//! decoded while directories are made.

mod plan;
mod write;

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{self, Scope};

use crossbeam_channel::{Receiver, Sender, bounded};
use redwarfs_format::BlockNo;
use redwarfs_reader::{BlockMemory, CpuSet, Image};

use crate::error::{Error, Result};
use crate::files::{DirCache, Files};
use crate::losses::Losses;
use crate::tree::Tree;
use crate::{ExtractOptions, Progress};
use plan::{Need, PIECES_PER_WINDOW, Pieces, Window};

/// Smallest number of pieces for a writer, unless the block has fewer.
const PIECES_PER_JOB: usize = 64;

/// Number of blocks per decoder that are decoded last, in an order of decreasing work, so that all
/// decoders are busy almost to the end.
const LAST_PER_DECODER: usize = 4;

/// Blocks that an image on a server begins to fetch at a time, before they are decoded.
const FETCHED_AHEAD: usize = 8;

/// The present and the largest amount of decoded data in memory.
#[derive(Debug, Default)]
struct Gauge {
    now: AtomicU64,
    peak: AtomicU64,
}

/// Permission to hold one decoded block. Dropping it returns the permission.
#[derive(Debug)]
struct Room {
    back: Sender<()>,
    gauge: Arc<Gauge>,
    bytes: u64,
}

impl Room {
    fn hold(&mut self, bytes: u64) {
        self.bytes += bytes;
        let now = self.gauge.now.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.gauge.peak.fetch_max(now, Ordering::Relaxed);
    }
}

impl Drop for Room {
    fn drop(&mut self) {
        self.gauge.now.fetch_sub(self.bytes, Ordering::Relaxed);
        // Fails only if the producer has ended, and then no thread waits for room.
        let _ = self.back.try_send(());
    }
}

/// Memory of finished blocks: at most one for each block for which there is room.
type Spare = Mutex<Vec<BlockMemory>>;

#[derive(Debug)]
struct Decoded {
    memory: BlockMemory,
    spare: Arc<Spare>,
    /// Returned after the memory.
    _room: Room,
}

impl Decoded {
    fn bytes(&self) -> &[u8] {
        self.memory.bytes()
    }
}

impl Drop for Decoded {
    fn drop(&mut self) {
        let memory = std::mem::take(&mut self.memory);
        let mut spare = self.spare.lock().unwrap_or_else(PoisonError::into_inner);
        spare.push(memory);
    }
}

/// A needed block, and its pieces in the window.
#[derive(Debug)]
struct Planned {
    block: BlockNo,
    pieces: Range<usize>,
    /// See [`BlockJob::end`].
    end: u64,
}

/// A block for a decoder, with its pieces; `None`: too many to plan.
#[derive(Debug)]
struct BlockJob {
    block: BlockNo,
    /// End of the last piece, in bytes from the start of the block.
    end: u64,
    pieces: Option<(Arc<Window>, Range<usize>)>,
    room: Room,
}

/// A part of a decoded (or undecodable) block for a writer.
#[derive(Debug)]
struct WriteJob {
    block: Arc<std::result::Result<Decoded, String>>,
    pieces: Pieces,
}

/// Drains the queue of the decoders if there are no writers: blocks in the queue take the room for
/// which other threads wait.
struct Undelivered<'a> {
    jobs: Option<Receiver<WriteJob>>,
    stop: &'a AtomicBool,
}

impl Drop for Undelivered<'_> {
    fn drop(&mut self) {
        if let Some(jobs) = self.jobs.take() {
            self.stop.store(true, Ordering::Relaxed);
            // To the end of the last decoder.
            jobs.into_iter().for_each(drop);
        }
    }
}

/// The results for the contents.
#[derive(Debug, Default)]
pub(crate) struct Outcome {
    /// Bytes of file contents, including holes.
    pub(crate) bytes: u64,
    /// Files without their additional names.
    pub(crate) files: u64,
    /// Blocks decoded.
    pub(crate) blocks: u64,
    /// Decoded bytes of these blocks.
    pub(crate) block_bytes: u64,
    /// Largest number of bytes of decoded blocks at a time.
    pub(crate) peak: u64,
}

/// The data that all writers share.
pub(crate) struct Common<'a> {
    pub(crate) image: &'a Image,
    pub(crate) tree: &'a Tree<'a>,
    pub(crate) files: &'a Files<'a>,
    pub(crate) losses: &'a Losses<'a>,
    pub(crate) options: &'a ExtractOptions,
    pub(crate) progress: &'a dyn Progress,
}

struct Run<'a> {
    image: &'a Image,
    tree: &'a Tree<'a>,
    files: &'a Files<'a>,
    losses: &'a Losses<'a>,
    options: &'a ExtractOptions,
    progress: &'a dyn Progress,
    /// For each content, the number of remaining pieces.
    remaining: Vec<AtomicU32>,
    /// Contents that cannot be read, with the error.
    damaged: Mutex<HashMap<u32, String>>,
    any_damage: AtomicBool,
    failure: Mutex<Option<Error>>,
    stop: AtomicBool,
    bytes: AtomicU64,
    finished: AtomicU64,
    /// Blocks given to the decoders.
    decoded: AtomicU64,
    decoded_bytes: AtomicU64,
    gauge: Arc<Gauge>,
    spare: Arc<Spare>,
}

/// Creates and fills all regular files of the tree. `make_directories` is called once, unless there is
/// an error before, and makes the directories of the files.
pub(crate) fn write_contents(
    common: &Common<'_>,
    make_directories: impl FnOnce() -> Result<()>,
) -> Result<Outcome> {
    let mut run = Run {
        image: common.image,
        tree: common.tree,
        files: common.files,
        losses: common.losses,
        options: common.options,
        progress: common.progress,
        remaining: Vec::new(),
        damaged: Mutex::default(),
        any_damage: AtomicBool::new(false),
        failure: Mutex::default(),
        stop: AtomicBool::new(false),
        bytes: AtomicU64::new(0),
        finished: AtomicU64::new(0),
        decoded: AtomicU64::new(0),
        decoded_bytes: AtomicU64::new(0),
        gauge: Arc::default(),
        spare: Arc::default(),
    };
    let needs = run.count_pieces()?;
    let create = || make_directories().and_then(|()| run.finish_without_data());
    let result = run.work(&needs, create);
    let failure = run
        .failure
        .lock()
        .unwrap_or_else(PoisonError::into_inner)
        .take();
    // Errors count in the order of the data, not in time: entries first, then contents.
    if let Some(e) = result.err().or(failure) {
        run.remove_incomplete();
        return Err(e);
    }
    Ok(Outcome {
        bytes: run.bytes.load(Ordering::Relaxed),
        files: run.finished.load(Ordering::Relaxed),
        blocks: run.decoded.load(Ordering::Relaxed),
        block_bytes: run.decoded_bytes.load(Ordering::Relaxed),
        peak: run.gauge.peak.load(Ordering::Relaxed),
    })
}

/// The blocks of a window that are needed.
fn planned(needs: &[Need], window: Range<usize>) -> impl Iterator<Item = Planned> {
    let mut at = 0_usize;
    let blocks = needs.iter().enumerate().take(window.end).skip(window.start);
    blocks.filter_map(move |(block, need)| {
        let start = at;
        // Fits, because the window holds them all, or they are not used as a range.
        at = start.saturating_add(usize::try_from(need.pieces).unwrap_or(usize::MAX));
        (need.pieces > 0).then(|| Planned {
            block: BlockNo(u32::try_from(block).unwrap_or(u32::MAX)),
            pieces: start..at,
            end: need.end,
        })
    })
}

impl Run<'_> {
    /// Creates the files that need no block, and gives up files with invalid extents.
    fn finish_without_data(&self) -> Result<()> {
        let mut last = DirCache::default();
        for content in 0..self.tree.content_count() {
            if self.remaining_of(content).load(Ordering::Relaxed) == 0 {
                self.finish(content, &mut last)?;
            }
        }
        Ok(())
    }

    /// Runs the threads over all blocks. `create` makes the entries that must exist before contents are
    /// written.
    fn work(&self, needs: &[Need], create: impl FnOnce() -> Result<()>) -> Result<()> {
        let used = needs.iter().filter(|need| need.pieces > 0).count();
        if used == 0 {
            return create();
        }
        let decoders = self.options.decoder_threads().min(used);
        let writers = self.options.writer_threads();
        let block_size = u64::from(self.image.metadata().block_size()).max(1);
        let fitting = usize::try_from(self.options.memory / block_size).unwrap_or(usize::MAX);
        // Writers share a block. More buffers would only take new memory: the memory of written buffers
        // is still in the CPU caches when it is reused.
        let room = fitting.clamp(1, decoders + writers.div_ceil(2));

        let (room_back, rooms) = bounded(room);
        for _ in 0..room {
            // The channel has exactly this capacity.
            let _ = room_back.try_send(());
        }
        let (blocks_in, blocks_out) = bounded::<BlockJob>(room);
        let (writes_in, writes_out) = bounded::<WriteJob>(writers * 4);
        thread::scope(|scope| {
            self.spawn(scope, decoders, "decode", self.options.decoder_cpus, || {
                let (jobs, out) = (blocks_out.clone(), writes_in.clone());
                move || self.decode_all(&jobs, &out, writers)
            })?;
            drop((blocks_out, writes_in));
            self.spawn(scope, 1, "plan", None, || {
                let (jobs, rooms, room_back) =
                    (blocks_in.clone(), rooms.clone(), room_back.clone());
                move || {
                    if let Err(e) = self.produce(needs, decoders, &jobs, &rooms, &room_back) {
                        self.fail(e);
                    }
                }
            })?;
            drop((blocks_in, rooms, room_back));
            let mut undelivered = Undelivered {
                jobs: Some(writes_out.clone()),
                stop: &self.stop,
            };
            create()?;
            self.spawn(scope, writers, "write", self.options.writer_cpus, || {
                let jobs = writes_out.clone();
                move || self.write_all(&jobs)
            })?;
            undelivered.jobs = None;
            drop(writes_out);
            Ok(())
        })
    }

    /// Starts up to `count` threads. One is enough to continue.
    fn spawn<'scope, F: FnOnce() + Send + 'scope>(
        &self,
        scope: &'scope Scope<'scope, '_>,
        count: usize,
        name: &str,
        cpus: Option<CpuSet>,
        mut body: impl FnMut() -> F,
    ) -> Result<()> {
        for started in 0..count {
            let body = body();
            let spawned =
                thread::Builder::new()
                    .name(name.to_owned())
                    .spawn_scoped(scope, move || {
                        if let Some(cpus) = cpus {
                            // If the system has none of these CPUs, the thread runs anywhere.
                            let _ = cpus.pin_current_thread();
                        }
                        body();
                    });
            if let Err(e) = spawned
                && started == 0
            {
                self.stop.store(true, Ordering::Relaxed);
                return Err(Error::Thread(e));
            }
        }
        Ok(())
    }

    /// Plans one window after the other, and hands out blocks while there is room.
    fn produce(
        &self,
        needs: &[Need],
        decoders: usize,
        jobs: &Sender<BlockJob>,
        rooms: &Receiver<()>,
        room_back: &Sender<()>,
    ) -> Result<()> {
        let mut start = 0;
        while let Some(first) = needs.get(start) {
            let mut end = start + 1;
            let mut sum = first.pieces;
            while let Some(next) = needs.get(end)
                && sum + next.pieces <= PIECES_PER_WINDOW
            {
                sum += next.pieces;
                end += 1;
            }
            let window = if sum > 0 && sum <= PIECES_PER_WINDOW {
                Some(self.plan(needs, start..end)?)
            } else {
                None
            };
            let upcoming: Vec<BlockNo> = match self.image.is_remote() {
                true => planned(needs, start..end)
                    .map(|planned| planned.block)
                    .collect(),
                false => Vec::new(),
            };
            let (sent, announced) = (Cell::new(0), Cell::new(0));
            let send = |Planned { block, pieces, end }| {
                // In groups, so that neighbours are one request.
                if sent.get() + FETCHED_AHEAD >= announced.get() {
                    let to = (announced.get() + FETCHED_AHEAD).min(upcoming.len());
                    let group = upcoming.get(announced.get()..to).unwrap_or_default();
                    self.image.will_need_blocks(group.iter().copied());
                    announced.set(to.max(sent.get()));
                }
                sent.set(sent.get() + 1);
                if rooms.recv().is_err() || self.stop.load(Ordering::Relaxed) {
                    return false;
                }
                let job = BlockJob {
                    block,
                    end,
                    pieces: window.as_ref().map(|window| (Arc::clone(window), pieces)),
                    room: Room {
                        back: room_back.clone(),
                        gauge: Arc::clone(&self.gauge),
                        bytes: 0,
                    },
                };
                jobs.send(job).is_ok()
            };
            let last = if needs.iter().skip(end).all(|need| need.pieces == 0) {
                decoders.saturating_mul(LAST_PER_DECODER)
            } else {
                0
            };
            let first = planned(needs, start..end).count().saturating_sub(last);
            let mut blocks = planned(needs, start..end);
            if !blocks.by_ref().take(first).all(&send) {
                return Ok(());
            }
            let mut last: Vec<Planned> = blocks.collect();
            if decoders > 1 {
                last.sort_by_key(|planned| Reverse(self.effort(planned)));
            }
            if !last.into_iter().all(send) {
                return Ok(());
            }
            start = end;
        }
        Ok(())
    }

    /// Relative time for a block: about proportional to the stored bytes of its needed part.
    fn effort(&self, planned: &Planned) -> u64 {
        let section = self.image.container().block(planned.block);
        let stored = section.map_or(0, |section| section.length);
        let block_size = u64::from(self.image.metadata().block_size()).max(1);
        stored.saturating_mul(planned.end) / block_size
    }

    fn decode_all(&self, jobs: &Receiver<BlockJob>, out: &Sender<WriteJob>, writers: usize) {
        let mut payload = Vec::new();
        for BlockJob {
            block,
            end,
            pieces,
            mut room,
        } in jobs
        {
            if self.stop.load(Ordering::Relaxed) {
                continue;
            }
            self.decoded.fetch_add(1, Ordering::Relaxed);
            let spare = self
                .spare
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .pop();
            let mut memory = spare.unwrap_or_default();
            let result = self
                .image
                .decode_block_start(block, end, &mut payload, &mut memory);
            let decoded = match result {
                Ok(()) => {
                    let bytes = memory.bytes().len() as u64;
                    self.decoded_bytes.fetch_add(bytes, Ordering::Relaxed);
                    room.hold(bytes);
                    Ok(Decoded {
                        memory,
                        spare: Arc::clone(&self.spare),
                        _room: room,
                    })
                }
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
