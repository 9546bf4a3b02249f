//! One block in the cache. It is decoded from its start, as far as requests need it.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError};

use redwarfs_codec::Decoder;
use redwarfs_format::section::Section;
use redwarfs_format::{BlockNo, Error, Result};

use super::memory::{Buffer, Filler};
use super::scratch::LARGEST;
use crate::options::BlockAllocator;
use crate::sys;
use crate::verify::KnownLeaves;

/// Bytes decoded and published at a time (64 KiB). A waiting thread is woken at most this many bytes
/// late.
pub(super) const SEGMENT: usize = 64 << 10;

/// Bytes of a payload that are released at a time (256 KiB), because each release is a syscall.
const DISCARDED: usize = 256 << 10;

/// Memory of a slot without the data. It is charged, so that very many tiny blocks count, too.
pub(super) const SLOT_OVERHEAD: u64 = 512;

/// Bytes that the cache holds, for its limit and its statistics.
#[derive(Debug, Default)]
pub(super) struct Account {
    used: AtomicU64,
    peak: AtomicU64,
}

impl Account {
    pub(super) fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak.load(Ordering::Relaxed)
    }

    fn add(&self, bytes: u64) {
        let now = self.used.fetch_add(bytes, Ordering::Relaxed) + bytes;
        self.peak.fetch_max(now, Ordering::Relaxed);
    }

    fn sub(&self, bytes: u64) {
        self.used.fetch_sub(bytes, Ordering::Relaxed);
    }
}

/// The bytes of a block, after its payload was read.
#[derive(Debug)]
enum BlockBytes {
    Decoded {
        raw_size: u64,
        /// Bytes decoded and published at a time; at least 1.
        step: usize,
        /// Published bytes never change, so reading them takes no lock.
        buffer: Arc<Buffer>,
    },
    Plain(Plain),
}

/// A block that is not compressed and was verified as a whole. Its bytes stay where they are stored.
#[derive(Debug)]
pub(super) struct Plain {
    pub(super) section: Section,
    /// The expected checksum; `None` if it is missing, or not compared.
    pub(super) leaves: Option<KnownLeaves>,
}

/// The progress of a block. A thread that finds `New` or `Partial` and needs more takes the work and
/// leaves `Busy`. All other threads wait.
#[derive(Debug)]
pub(super) enum SlotState {
    /// Nothing has been read yet.
    New,
    /// One thread is reading, verifying or decoding.
    Busy,
    /// A part is decoded, and this decoder can continue.
    Partial(Decoding),
    /// Everything is decoded.
    Complete,
    /// The work failed. The slot has left the cache. Waiting requests get the error.
    Failed(Arc<Error>),
}

/// A decoder between two steps, with the bytes that are charged for it.
#[derive(Debug)]
pub(super) struct Decoding {
    pub(super) decoder: Box<Decoder>,
    /// The filler of the buffer into which this decoder decodes.
    pub(super) filler: Filler,
    /// Length of the payload.
    pub(super) stored: u64,
    pub(super) charge: u64,
    /// Bytes of the payload that were returned to the system.
    pub(super) discarded: usize,
}

impl Decoding {
    /// Releases the decoded part of a large payload.
    pub(super) fn discard_spent(&mut self, slot: &Slot) {
        if self.stored <= LARGEST as u64 {
            return;
        }
        let spent = self.decoder.spent();
        let all = spent.len();
        let new = spent.get_mut(self.discarded..).unwrap_or_default();
        if new.len() < DISCARDED {
            return;
        }
        sys::discard(new);
        let saved = (new.len() as u64).min(self.charge);
        self.discarded = all;
        self.charge -= saved;
        slot.discharge(saved);
    }
}

#[derive(Debug)]
pub(super) struct Slot {
    pub(super) block: BlockNo,
    account: Arc<Account>,
    charged: AtomicU64,
    body: OnceLock<BlockBytes>,
    busy: AtomicBool,
    /// End of the requested bytes.
    asked: AtomicU64,
    /// Requests that began far beyond that end and the decoded bytes.
    jumps: AtomicU32,
    /// Whether a request came for the block since it is here.
    requested: AtomicBool,
    /// Bytes that callers have taken from the block. When this reaches the size of the block, the count
    /// begins again.
    served: AtomicU64,
    /// The job that decodes the rest holds a reference.
    finishing: Arc<AtomicBool>,
    /// Requests that wait.
    waiting: AtomicU64,
    /// The smallest number of bytes for which one of them waits; only used while `state` is locked.
    wanted: AtomicU64,
    state: Mutex<SlotState>,
    wake: Condvar,
}

impl Slot {
    pub(super) fn new(block: BlockNo, account: &Arc<Account>) -> Self {
        account.add(SLOT_OVERHEAD);
        Self {
            block,
            account: Arc::clone(account),
            charged: AtomicU64::new(SLOT_OVERHEAD),
            body: OnceLock::new(),
            busy: AtomicBool::new(false),
            asked: AtomicU64::new(0),
            jumps: AtomicU32::new(0),
            requested: AtomicBool::new(false),
            served: AtomicU64::new(0),
            finishing: Arc::default(),
            waiting: AtomicU64::new(0),
            wanted: AtomicU64::new(u64::MAX),
            state: Mutex::new(SlotState::New),
            wake: Condvar::new(),
        }
    }

    pub(super) fn charge(&self, bytes: u64) {
        self.charged.fetch_add(bytes, Ordering::Relaxed);
        self.account.add(bytes);
    }

    pub(super) fn discharge(&self, bytes: u64) {
        self.charged.fetch_sub(bytes, Ordering::Relaxed);
        self.account.sub(bytes);
    }

    /// Bytes to subtract from the account when the slot is dropped.
    pub(super) fn charged(&self) -> u64 {
        self.charged.load(Ordering::Relaxed)
    }

    /// Uncompressed size in bytes, if it is known.
    pub(super) fn raw_size(&self) -> Option<u64> {
        self.body.get().map(|body| match body {
            BlockBytes::Decoded { raw_size, .. } => *raw_size,
            BlockBytes::Plain(plain) => plain.section.length,
        })
    }

    /// Number of bytes that can be read.
    pub(super) fn available(&self) -> u64 {
        self.body.get().map_or(0, |body| match body {
            BlockBytes::Decoded { buffer, .. } => buffer.published() as u64,
            BlockBytes::Plain(plain) => plain.section.length,
        })
    }

    /// Memory of the published bytes. It may grow.
    fn buffer(&self) -> Option<&Arc<Buffer>> {
        match self.body.get()? {
            BlockBytes::Decoded { buffer, .. } => Some(buffer),
            BlockBytes::Plain(_) => None,
        }
    }

    /// The place of the bytes, if they are not in memory.
    pub(super) fn plain(&self) -> Option<&Plain> {
        match self.body.get()? {
            BlockBytes::Decoded { .. } => None,
            BlockBytes::Plain(plain) => Some(plain),
        }
    }

    /// Notes the bytes that a caller took.
    pub(super) fn served(&self, bytes: u64) {
        if self.is_used_up() {
            self.served.store(bytes, Ordering::Relaxed);
        } else {
            self.served.fetch_add(bytes, Ordering::Relaxed);
        }
    }

    /// Whether as many bytes were read as the block has: then a sequential read has reached its end.
    pub(super) fn is_used_up(&self) -> bool {
        let served = self.served.load(Ordering::Relaxed);
        self.raw_size().is_some_and(|size| served >= size)
    }

    /// Notes a request for `start..end`, of which a part is not decoded. It counts as a jump if it
    /// begins more than `far` after the decoded and the requested bytes.
    pub(super) fn asked_for(&self, start: u64, end: u64, far: u64) {
        let before = self.asked.fetch_max(end, Ordering::Relaxed);
        if start.saturating_sub(self.available().max(before)) > far {
            self.jumps.fetch_add(1, Ordering::Relaxed);
        }
    }

    /// The right to queue a job that decodes the rest, if there is no such job.
    pub(super) fn begin_to_finish(&self) -> Option<Finishing> {
        let queued = self.finishing.swap(true, Ordering::Relaxed);
        (!queued).then(|| Finishing(Arc::clone(&self.finishing)))
    }

    /// Notes a request. Returns whether it is the first one.
    pub(super) fn is_requested_first(&self) -> bool {
        // Later ones write nothing that other threads read.
        !self.requested.load(Ordering::Relaxed) && !self.requested.swap(true, Ordering::Relaxed)
    }

    pub(super) fn jumps(&self) -> u32 {
        self.jumps.load(Ordering::Relaxed)
    }

    /// Whether a request waits for more of the block.
    pub(super) fn is_awaited(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) > 0
    }

    pub(super) fn is_busy(&self) -> bool {
        self.busy.load(Ordering::Relaxed)
    }

    /// Whether the whole block is decoded.
    pub(super) fn is_complete(&self) -> bool {
        matches!(*self.lock(), SlotState::Complete)
    }

    /// Whether bytes up to `end` can be copied at once.
    pub(super) fn has(&self, end: u64) -> bool {
        self.body.get().is_some() && self.available() >= end
    }

    fn lock(&self) -> MutexGuard<'_, SlotState> {
        // The state is a plain value that is replaced as a whole: valid after a panic, too.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `end` bytes are decoded, or gives the work to the caller.
    ///
    /// `Ok(None)`: there is nothing to do, because the bytes are decoded, or the block is shorter.
    ///
    /// `joined` is called if other threads wait already.
    pub(super) fn wait_or_take(
        self: &Arc<Self>,
        end: u64,
        joined: &dyn Fn(),
    ) -> Result<Option<Turn>> {
        let mut state = self.lock();
        let mut waiting: Option<Waiting<'_>> = None;
        loop {
            if self.has(end) {
                return Ok(None);
            }
            match &*state {
                SlotState::Complete => return Ok(None),
                SlotState::Failed(e) => return Err(e.replicate()),
                SlotState::Busy => {
                    if waiting.is_none() {
                        if self.waiting.fetch_add(1, Ordering::Relaxed) > 0 {
                            joined();
                        }
                        waiting = Some(Waiting(&self.waiting));
                    }
                    self.wanted.fetch_min(end, Ordering::Relaxed);
                    state = self
                        .wake
                        .wait(state)
                        .unwrap_or_else(PoisonError::into_inner);
                }
                SlotState::New | SlotState::Partial(_) => return Ok(Some(self.take(&mut state))),
            }
        }
    }

    /// Gives the work to the caller, if there is any and no other thread has it.
    pub(super) fn try_take(self: &Arc<Self>) -> Option<Turn> {
        let mut state = self.lock();
        matches!(*state, SlotState::New | SlotState::Partial(_)).then(|| self.take(&mut state))
    }

    fn take(self: &Arc<Self>, state: &mut SlotState) -> Turn {
        self.busy.store(true, Ordering::Relaxed);
        let work = match std::mem::replace(state, SlotState::Busy) {
            SlotState::Partial(work) => Some(work),
            _ => None,
        };
        Turn {
            slot: Arc::clone(self),
            work,
            settled: false,
        }
    }

    fn settle(&self, new: SlotState) {
        let old = {
            let mut state = self.lock();
            self.busy.store(false, Ordering::Relaxed);
            self.wanted.store(u64::MAX, Ordering::Relaxed);
            std::mem::replace(&mut *state, new)
        };
        self.wake.notify_all();
        drop(old);
    }

    /// The published bytes; none if the bytes of the block are not in memory.
    pub(super) fn bytes(&self) -> &[u8] {
        self.buffer().map_or(&[], |buffer| buffer.bytes())
    }

    /// The memory of a block to which there is no other reference, if it suits a block of `len` bytes.
    /// The block then has no bytes.
    pub(super) fn reclaim(slot: &mut Arc<Self>, len: usize) -> Option<Buffer> {
        let slot = Arc::get_mut(slot)?;
        if !slot.buffer()?.is_reusable_for(len) {
            return None;
        }
        // A decoder that can continue also refers to the memory.
        *slot.state.get_mut().unwrap_or_else(PoisonError::into_inner) = SlotState::New;
        match slot.body.take()? {
            BlockBytes::Decoded { buffer, .. } => Arc::into_inner(buffer),
            BlockBytes::Plain(_) => None,
        }
    }

    /// Copies published bytes. Returns false if some of them are not published.
    pub(super) fn copy(&self, offset: u64, out: &mut [u8]) -> bool {
        let found = usize::try_from(offset)
            .ok()
            .and_then(|at| self.bytes().get(at..)?.get(..out.len()));
        match found {
            Some(bytes) => out.copy_from_slice(bytes),
            None => return false,
        }
        true
    }
}

/// Exists while a job is queued or running. It keeps no bytes of the block in memory.
#[derive(Debug)]
pub(super) struct Finishing(Arc<AtomicBool>);

impl Drop for Finishing {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

/// Removes a request from the waiting ones.
struct Waiting<'a>(&'a AtomicU64);

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for Slot {
    fn drop(&mut self) {
        self.account.sub(*self.charged.get_mut());
    }
}

/// The exclusive right to bring a slot forward. If it is dropped unsettled, because the thread panics,
/// the slot fails, so that no request waits forever.
#[derive(Debug)]
pub(super) struct Turn {
    slot: Arc<Slot>,
    pub(super) work: Option<Decoding>,
    settled: bool,
}

impl Turn {
    pub(super) fn slot(&self) -> &Arc<Slot> {
        &self.slot
    }

    /// Declares the shape of the block: `raw_size` bytes that are decoded in steps of `step`. Returns
    /// the filler for them. `spare` is memory that may be reused.
    pub(super) fn shape(
        &self,
        raw_size: u64,
        step: usize,
        allocator: BlockAllocator,
        spare: Option<Buffer>,
    ) -> Result<Filler> {
        let size = usize::try_from(raw_size)
            .map_err(|_| Error::Limit(format!("a block of {raw_size} bytes")))?;
        let (buffer, filler) = match spare.filter(|spare| spare.is_reusable_for(size)) {
            Some(spare) => spare.again(),
            None => Buffer::new(allocator, size)?,
        };
        self.shape_is(BlockBytes::Decoded {
            raw_size,
            step: step.max(1),
            buffer,
        });
        Ok(filler)
    }

    /// Declares that the bytes of the block stay in the image file.
    pub(super) fn is_plain(&self, plain: Plain) {
        let memory = plain.leaves.as_ref().map_or(0, KnownLeaves::memory);
        self.slot.charge(memory);
        self.shape_is(BlockBytes::Plain(plain));
    }

    fn shape_is(&self, body: BlockBytes) {
        // Only the holder of the turn that loads the block gets here, once per slot.
        let _ = self.slot.body.set(body);
    }

    /// Length of the next step in bytes; 0 if everything is decoded.
    pub(super) fn next_len(&self) -> usize {
        let Some(BlockBytes::Decoded { raw_size, step, .. }) = self.slot.body.get() else {
            return 0;
        };
        let left = raw_size - self.slot.available();
        usize::try_from(left).map_or(*step, |left| left.min(*step))
    }

    /// Publishes the next `len` bytes, which must be in the buffer of `filler`. Wakes the waiting
    /// threads if one of them has the bytes that it needs.
    pub(super) fn publish(&self, filler: &mut Filler, len: usize) {
        let slot = &self.slot;
        let (memory, wake) = {
            // Under the lock, because otherwise a thread between its check and its wait would miss it.
            let _state = slot.lock();
            let memory = filler.publish(len);
            // Otherwise no thread is woken: with many threads that wait for a large block, each step
            // would wake them all. A woken thread that needs more waits again.
            let wake = slot.available() >= slot.wanted.load(Ordering::Relaxed);
            if wake {
                slot.wanted.store(u64::MAX, Ordering::Relaxed);
            }
            (memory, wake)
        };
        slot.charge(memory);
        if wake {
            slot.wake.notify_all();
        }
    }

    /// Ends the turn: everything is decoded. Returns the resources of the work.
    pub(super) fn complete(mut self) -> Option<Decoding> {
        self.settled = true;
        let work = self.work.take();
        if let Some(work) = &work {
            self.slot.discharge(work.charge);
        }
        self.slot.settle(SlotState::Complete);
        work
    }

    /// Ends the turn before the end of the block. Another thread may continue.
    pub(super) fn pause(mut self) {
        self.settled = true;
        match self.work.take() {
            Some(work) => self.slot.settle(SlotState::Partial(work)),
            None => self.slot.settle(SlotState::New),
        }
    }

    /// Ends the turn: all waiting requests get `error`.
    pub(super) fn fail(mut self, error: Arc<Error>) {
        self.settled = true;
        self.slot.settle(SlotState::Failed(error));
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        if !self.settled {
            let what = format!("decoding block {} was abandoned", self.slot.block);
            let error = Error::Io(std::io::Error::other(what));
            self.slot.settle(SlotState::Failed(Arc::new(error)));
        }
    }
}
