//! Blocks on their way from the segmenters through the compression threads to the output.
//!
//! Several streams are segmented in parallel, but written one after the other. So two numbers identify
//! a block: the number of its stream, in the order of writing, and its number in the stream. A block
//! gets its section number when all streams before its own have ended. The checksums of the section
//! depend on that number.
//!
//! The number of blocks in flight is bounded. The first stream that has not ended may use all of them.
//! Later streams must leave some of them to it. So the block for which the output waits never waits for
//! room, for any limit and any order of the threads.

use std::collections::BTreeMap;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use redwarfs_codec::CompressionId;
use redwarfs_format::section::SectionHeader;

use crate::error::{Error, Result};

/// Stream in the order of writing, and number of the block in it.
pub(super) type BlockPlace = (u32, u32);

/// A payload as it will be written.
pub(super) enum Payload {
    Raw(Arc<Vec<u8>>),
    Compressed(Vec<u8>),
}

impl Payload {
    pub(super) fn bytes(&self) -> &[u8] {
        match self {
            Payload::Raw(data) => data,
            Payload::Compressed(data) => data,
        }
    }
}

/// A job of a worker.
pub(super) enum Task {
    /// Compress a block of this stream.
    Compress(u32, Arc<Vec<u8>>),
    /// Make the header of a block that was compressed before its number was known.
    Seal(u32, CompressionId, Payload),
}

/// What a worker has done.
enum Done {
    /// Waits for its number.
    Compressed(CompressionId, Payload),
    Sealed(SectionHeader, Payload),
}

/// Blocks in flight, and how far streams and output are.
#[derive(Default)]
struct Traffic {
    /// Lowest places are taken up first.
    tasks: BTreeMap<BlockPlace, Task>,
    done: BTreeMap<BlockPlace, Done>,
    /// Streams at their end that are not written yet, and their numbers of blocks.
    ends: BTreeMap<u32, u32>,
    /// The block for which the writer waits.
    next: BlockPlace,
    /// Number of the first block of that stream.
    base: u64,
    in_flight: usize,
    /// Memory of blocks that can be reused.
    spare: Vec<Vec<u8>>,
    /// All streams are at their ends.
    closed: bool,
    /// Nothing of this is needed further.
    aborted: bool,
    error: Option<Error>,
}

impl Traffic {
    /// The first stream that is not at its end.
    fn front(&self) -> u32 {
        let mut front = self.next.0;
        while self.ends.contains_key(&front) {
            front += 1;
        }
        front
    }

    /// Number of a block, if the streams before it are at their ends.
    fn number(&self, place: BlockPlace) -> Option<Result<u32>> {
        let mut number = self.base + u64::from(place.1);
        for stream in self.next.0..place.0 {
            number += u64::from(*self.ends.get(&stream)?);
        }
        Some(u32::try_from(number).map_err(|_| Error::too_many_blocks()))
    }

    fn fail(&mut self, error: Error) {
        self.aborted = true;
        self.error.get_or_insert(error);
    }

    /// Lets workers seal compressed blocks whose numbers are known.
    fn seal(&mut self) {
        let waiting: Vec<BlockPlace> = self
            .done
            .iter()
            .filter(|(_, done)| matches!(done, Done::Compressed(..)))
            .map(|(&place, _)| place)
            .collect();
        for place in waiting {
            let number = match self.number(place) {
                Some(Ok(number)) => number,
                Some(Err(error)) => return self.fail(error),
                None => return,
            };
            if let Some(Done::Compressed(id, payload)) = self.done.remove(&place) {
                let task = Task::Seal(number, id, payload);
                self.tasks.insert(place, task);
            }
        }
    }
}

/// Where segmenters, compressors and the writer meet.
pub(super) struct Exchange {
    state: Mutex<Traffic>,
    /// For segmenters: a block may be handed over.
    room: Condvar,
    /// For workers.
    work: Condvar,
    /// For the writer.
    ready: Condvar,
    /// Most blocks in flight.
    blocks: usize,
    /// Of these, for the first stream alone.
    reserved: usize,
    /// Most buffers that wait for their use.
    spare: usize,
}

impl Exchange {
    /// An exchange for a number of blocks in flight and of `spare` buffers. Of these blocks, `reserved`
    /// are for the first stream. Both numbers of blocks are at least 1. The first block gets section number
    /// `first`.
    pub(super) fn new(first: u32, blocks: usize, reserved: usize, spare: usize) -> Self {
        let state = Traffic {
            base: u64::from(first),
            ..Traffic::default()
        };
        Self {
            state: Mutex::new(state),
            room: Condvar::new(),
            work: Condvar::new(),
            ready: Condvar::new(),
            blocks: blocks.max(1),
            reserved: reserved.max(1),
            spare,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Traffic> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wake_all(&self) {
        self.room.notify_all();
        self.work.notify_all();
        self.ready.notify_all();
    }

    /// Hands over a block to be compressed as those of `stream` are; waits until there is room.
    ///
    /// # Errors
    /// [`Error::Interrupted`] if the build is given up; the reason is known elsewhere.
    pub(super) fn hand_over(
        &self,
        place: BlockPlace,
        stream: u32,
        raw: Arc<Vec<u8>>,
    ) -> Result<()> {
        let mut state = self.lock();
        loop {
            if state.aborted {
                return Err(Error::Interrupted);
            }
            let left = if state.front() >= place.0 {
                0
            } else {
                self.reserved
            };
            if state.in_flight + left < self.blocks {
                break;
            }
            state = wait(&self.room, state);
        }
        state.in_flight += 1;
        state.tasks.insert(place, Task::Compress(stream, raw));
        drop(state);
        self.work.notify_one();
        Ok(())
    }

    /// A stream ends after this number of blocks.
    pub(super) fn end(&self, stream: u32, blocks: u32) {
        let mut state = self.lock();
        state.ends.insert(stream, blocks);
        state.seal();
        drop(state);
        self.wake_all();
    }

    /// No more streams begin.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.wake_all();
    }

    /// Ends everything early.
    pub(super) fn abort(&self) {
        let mut state = self.lock();
        state.aborted = true;
        state.tasks.clear();
        state.done.clear();
        drop(state);
        self.wake_all();
    }

    /// Ends everything early because of an error, which the writer returns.
    pub(super) fn fail(&self, error: Error) {
        self.lock().fail(error);
        self.wake_all();
    }

    /// The next thing to do for a worker; `None` at the end.
    pub(super) fn task(&self) -> Option<(BlockPlace, Task)> {
        let mut state = self.lock();
        loop {
            if state.aborted {
                return None;
            }
            if let Some(task) = state.tasks.pop_first() {
                return Some(task);
            }
            if state.closed {
                return None;
            }
            state = wait(&self.work, state);
        }
    }

    /// A block is compressed. Gives it back with its number if that is known: then the worker
    /// seals it at once.
    pub(super) fn compressed(
        &self,
        place: BlockPlace,
        id: CompressionId,
        payload: Payload,
    ) -> Option<(u32, Payload)> {
        let mut state = self.lock();
        match state.number(place) {
            Some(Ok(number)) => Some((number, payload)),
            Some(Err(error)) => {
                state.fail(error);
                drop(state);
                self.wake_all();
                None
            }
            None => {
                state.done.insert(place, Done::Compressed(id, payload));
                None
            }
        }
    }

    /// A block is ready to be written.
    pub(super) fn sealed(&self, place: BlockPlace, header: SectionHeader, payload: Payload) {
        let mut state = self.lock();
        state.done.insert(place, Done::Sealed(header, payload));
        let awaited = state.next == place;
        drop(state);
        if awaited {
            self.ready.notify_one();
        }
    }

    /// The next section for the writer; `None` at the end.
    ///
    /// # Errors
    /// What [`fail`](Self::fail) was told.
    pub(super) fn next(&self) -> Result<Option<(SectionHeader, Payload)>> {
        let mut state = self.lock();
        loop {
            if let Some(error) = state.error.take() {
                return Err(error);
            }
            if state.aborted {
                return Ok(None);
            }
            let place = state.next;
            if matches!(state.done.get(&place), Some(Done::Sealed(..)))
                && let Some(Done::Sealed(header, payload)) = state.done.remove(&place)
            {
                state.next.1 += 1;
                return Ok(Some((header, payload)));
            }
            match state.ends.get(&place.0) {
                Some(&blocks) if blocks == place.1 => {
                    state.ends.remove(&place.0);
                    state.base += u64::from(blocks);
                    state.next = (place.0 + 1, 0);
                }
                None if state.closed => return Ok(None),
                _ => state = wait(&self.ready, state),
            }
        }
    }

    /// A block is written.
    pub(super) fn written(&self) {
        self.lock().in_flight -= 1;
        self.room.notify_all();
    }

    /// Offers the memory of an unused block to segmenters.
    pub(super) fn recycle(&self, block: Arc<Vec<u8>>) {
        let Some(mut memory) = Arc::into_inner(block) else {
            return;
        };
        memory.clear();
        let mut state = self.lock();
        if state.spare.len() < self.spare {
            state.spare.push(memory);
        }
    }

    /// An empty buffer for a block.
    pub(super) fn buffer(&self) -> Vec<u8> {
        self.lock().spare.pop().unwrap_or_default()
    }
}

fn wait<'a>(condition: &Condvar, state: MutexGuard<'a, Traffic>) -> MutexGuard<'a, Traffic> {
    condition
        .wait(state)
        .unwrap_or_else(PoisonError::into_inner)
}

/// Ends everything early when it is dropped during a panic, so that no thread waits for this one.
pub(super) struct Alarm<'a>(pub(super) &'a Exchange);

impl Drop for Alarm<'_> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.abort();
        }
    }
}

#[cfg(test)]
mod tests {
    use redwarfs_format::section::SectionType;

    use super::*;

    /// Runs `streams` of so many blocks through an exchange, with a segmenter for each. Returns
    /// number, stream and place in the stream of what is written.
    fn run(streams: &[u32], blocks: usize, reserved: usize, workers: usize) -> Vec<(u32, u8, u8)> {
        let exchange = &Exchange::new(0, blocks, reserved, 2);
        let seal = |number, payload: &Payload| {
            let id = CompressionId::NONE;
            SectionHeader::seal(number, SectionType::BLOCK, id, payload.bytes())
        };
        let work = || {
            while let Some((place, task)) = exchange.task() {
                let sealed = match task {
                    Task::Seal(number, _, payload) => Some((number, payload)),
                    Task::Compress(_, raw) => {
                        let payload = Payload::Raw(raw);
                        exchange.compressed(place, CompressionId::NONE, payload)
                    }
                };
                if let Some((number, payload)) = sealed {
                    exchange.sealed(place, seal(number, &payload), payload);
                }
            }
        };
        std::thread::scope(|scope| {
            for _ in 0..workers {
                scope.spawn(work);
            }
            scope.spawn(|| {
                std::thread::scope(|scope| {
                    // The last ones have the longest start.
                    for (at, &count) in streams.iter().enumerate().rev() {
                        let at = at as u32;
                        scope.spawn(move || {
                            for block in 0..count {
                                let raw = Arc::new(vec![at as u8, block as u8]);
                                exchange.hand_over((at, block), 0, raw).unwrap();
                            }
                            exchange.end(at, count);
                        });
                    }
                });
                exchange.close();
            });
            let mut written = Vec::new();
            while let Some((header, payload)) = exchange.next().unwrap() {
                let number = written.len() as u32;
                assert_eq!(header, seal(number, &payload));
                let bytes = payload.bytes();
                written.push((number, bytes[0], bytes[1]));
                exchange.written();
            }
            written
        })
    }

    #[test]
    fn streams_are_written_one_after_the_other() {
        for streams in [
            &[][..],
            &[0],
            &[3],
            &[5, 0, 7],
            &[1, 30, 2, 0, 0, 9],
            &[40, 40],
        ] {
            let expected: Vec<(u8, u8)> = (0u8..)
                .zip(streams)
                .flat_map(|(at, &count)| (0..count as u8).map(move |block| (at, block)))
                .collect();
            for (blocks, reserved) in [(1, 1), (2, 1), (3, 2), (16, 8), (1000, 1)] {
                for workers in [1, 3] {
                    let written = run(streams, blocks, reserved, workers);
                    let places: Vec<_> = written.iter().map(|w| (w.1, w.2)).collect();
                    assert_eq!(places, expected, "{blocks} {reserved} {workers}");
                }
            }
        }
    }

    #[test]
    fn errors_reach_the_writer_and_end_the_rest() {
        let exchange = Exchange::new(0, 1, 1, 0);
        exchange.hand_over((0, 0), 0, Arc::default()).unwrap();
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| exchange.hand_over((0, 1), 0, Arc::default()));
            exchange.fail(Error::too_many_blocks());
            assert!(matches!(waiting.join().unwrap(), Err(Error::Interrupted)));
        });
        assert!(exchange.task().is_none());
        assert!(matches!(exchange.next(), Err(Error::Limit(_))));
    }
}
