//! Decoding and compressing in any order, writing in order, within a memory budget.
//!
//! One thread plans: it submits jobs in the order of the sections to the [ordered
//! pool](redwarfs_writer::ordered). The calling thread writes. The planner submits a job if its cost
//! fits the budget together with all jobs that are not yet written, or if there are no such jobs. Jobs
//! enter in order, so the section for which the writer waits always has its memory.
//!
//! If blocks are cut anew, the same workers decode old blocks ahead. The budget does not count
//! these: their number is fixed, and no job waits for them.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::ScopedJoinHandle;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use redwarfs_codec::{CompressionId, Compressor, Content, raw_size};
use redwarfs_format::BlockNo;
use redwarfs_format::section::{Section, SectionHeader, SectionType, Version};
use redwarfs_reader::Image;
use redwarfs_writer::emit::{Emitter, records};
use redwarfs_writer::ordered::{self, Turn, lower_priority, thread};
use redwarfs_writer::{Counters, thread_cpu_ns};

use crate::error::{Error, Result};
use crate::memory::Allowance;
use crate::options::RewriteOptions;
use crate::plan::Plan;

/// Time between two checks for a stop while a thread waits for memory.
const POLL: Duration = Duration::from_millis(50);

/// The job for one section of the new image.
pub(crate) enum Work {
    /// Copy the stored section.
    Copy(Section),
    /// Decode and compress a block.
    Recompress {
        block: BlockNo,
        codec: usize,
        content: Content,
    },
    /// Decode and compress another section, with the given codec.
    Recode(Section, redwarfs_codec::CodecSpec),
    /// Compress new data.
    Compress {
        raw: Vec<u8>,
        codec: usize,
        content: Content,
    },
}

enum Job {
    /// The work for the section with this number.
    Section {
        number: u32,
        cost: u64,
        image: Image,
        part: Option<usize>,
        work: Box<Work>,
    },
    /// Decode a block for the submitter.
    Decode {
        image: Image,
        block: BlockNo,
        reply: Sender<Result<Vec<u8>>>,
    },
}

/// A block that is being decoded.
pub(crate) struct Pending(Receiver<Result<Vec<u8>>>);

impl Pending {
    /// Waits for the data.
    ///
    /// # Errors
    /// Those of decoding; [`redwarfs_writer::Error::Interrupted`] if the work was cancelled.
    pub(crate) fn wait(self) -> Result<Vec<u8>> {
        self.0.recv().map_err(|_| Error::interrupted())?
    }
}

struct Ready {
    header: SectionHeader,
    payload: Vec<u8>,
    /// Bytes to which the payload decodes.
    raw: u64,
    /// The part of its cost that is still to be returned.
    cost: u64,
}

/// Adds to a counter.
pub(crate) fn add(counter: &std::sync::atomic::AtomicU64, n: u64) {
    counter.fetch_add(n, Ordering::Relaxed);
}

/// An idle compressor.
struct Idle {
    codec: usize,
    cost: u64,
    compressor: Compressor,
}

#[derive(Default)]
struct Account {
    /// Reserved bytes, including those of idle compressors.
    used: u64,
    idle: Vec<Idle>,
}

/// Memory that jobs may take together.
struct Budget {
    limit: u64,
    account: Mutex<Account>,
    freed: Condvar,
}

impl Budget {
    fn lock(&self) -> MutexGuard<'_, Account> {
        self.account.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `cost` fits. Returns false if the work was cancelled.
    fn take(&self, cost: u64, give_up: &dyn Fn() -> bool) -> bool {
        let mut account = self.lock();
        loop {
            if give_up() {
                return false;
            }
            if account.used == 0 || account.used.saturating_add(cost) <= self.limit {
                account.used = account.used.saturating_add(cost);
                return true;
            }
            if let Some(idle) = account.idle.pop() {
                account.used = account.used.saturating_sub(idle.cost);
                continue;
            }
            account = self
                .freed
                .wait_timeout(account, POLL)
                .map_or_else(|e| e.into_inner().0, |(account, _)| account);
        }
    }

    fn give(&self, cost: u64) {
        let mut account = self.lock();
        account.used = account.used.saturating_sub(cost);
        drop(account);
        self.freed.notify_all();
    }

    /// An idle compressor. The job that takes it also takes over its memory.
    fn compressor(&self, codec: usize) -> Option<Compressor> {
        let mut account = self.lock();
        let at = account.idle.iter().rposition(|idle| idle.codec == codec)?;
        let idle = account.idle.swap_remove(at);
        account.used = account.used.saturating_sub(idle.cost);
        Some(idle.compressor)
    }

    /// Keeps a compressor for the next job, and keeps `cost` of the present job for it.
    fn keep(&self, codec: usize, cost: u64, compressor: Compressor) {
        self.lock().idle.push(Idle {
            codec,
            cost,
            compressor,
        });
    }
}

/// The submitter of jobs.
pub(crate) struct Queue<'a> {
    next: u32,
    /// The image of the sections.
    image: Image,
    /// Its number among several.
    part: Option<usize>,
    jobs: Sender<Job>,
    budget: &'a Budget,
    give_up: &'a (dyn Fn() -> bool + Sync),
}

impl Queue<'_> {
    /// Names the image that all later work is about, and its number among several.
    pub(crate) fn of(&mut self, part: usize, image: &Image) {
        self.image = image.clone();
        self.part = Some(part);
    }

    /// Submits the work for the next section. `cost` is an upper bound of the bytes that it
    /// takes, from reading to writing.
    ///
    /// # Errors
    /// [`redwarfs_writer::Error::Interrupted`] if the work was cancelled; the reason is reported
    /// elsewhere.
    pub(crate) fn submit(&mut self, cost: u64, work: Work) -> Result<()> {
        if !self.budget.take(cost, self.give_up) {
            return Err(Error::interrupted());
        }
        let number = self.next;
        self.next = number
            .checked_add(1)
            .ok_or_else(|| Error::limit("too many sections"))?;
        self.jobs
            .send(Job::Section {
                number,
                cost,
                image: self.image.clone(),
                part: self.part,
                work: Box::new(work),
            })
            .map_err(|_| Error::interrupted())
    }

    /// Lets a worker decode a block, for which the caller has reserved memory.
    ///
    /// # Errors
    /// As [`submit`](Self::submit).
    pub(crate) fn decode(&self, block: BlockNo) -> Result<Pending> {
        let (reply, data) = bounded(1);
        self.jobs
            .send(Job::Decode {
                image: self.image.clone(),
                block,
                reply,
            })
            .map_err(|_| Error::interrupted())?;
        Ok(Pending(data))
    }
}

/// The data that all jobs share.
pub(crate) struct Task<'a> {
    /// The image that work is about unless [`Queue::of`] names another one.
    pub(crate) image: &'a Image,
    pub(crate) options: &'a RewriteOptions,
    pub(crate) plan: &'a Plan,
    pub(crate) counters: &'a Counters,
}

/// The task and the memory that the threads share.
struct Workshop<'a> {
    task: Task<'a>,
    budget: Budget,
}

/// Runs `produce` in parallel with a pool of workers, and writes the resulting sections. The workers
/// stay within the budget unless a single job exceeds it.
pub(crate) fn run<T: Send>(
    task: Task<'_>,
    allowance: Allowance,
    emitter: &mut Emitter<'_>,
    stop: &AtomicBool,
    produce: impl FnOnce(Queue<'_>) -> Result<T> + Send,
) -> Result<T> {
    let (job_in, job_out) = unbounded::<Job>();
    let workshop = Workshop {
        task,
        budget: Budget {
            limit: allowance.jobs,
            account: Mutex::default(),
            freed: Condvar::new(),
        },
    };
    let abort = AtomicBool::new(false);
    let give_up = || abort.load(Ordering::Relaxed) || stop.load(Ordering::Relaxed);
    std::thread::scope(|scope| {
        let (workshop, give_up) = (&workshop, &give_up);
        let queue = Queue {
            next: emitter.number(),
            image: workshop.task.image.clone(),
            part: None,
            jobs: job_in,
            budget: &workshop.budget,
            give_up,
        };
        let first = queue.next;
        // Each worker has its own receiver, so that the queue closes when all have ended.
        let abort = &abort;
        let start = move || {
            lower_priority(workshop.task.options.compress_niceness);
            let guard = AbortOnPanic(abort);
            move || {
                let _until_the_end = &guard;
                match job_out.recv() {
                    Ok(job) if !give_up() => workshop.turn(job),
                    _ => Turn::End,
                }
            }
        };
        let mut producer = None;
        let started = || {
            producer = Some(thread(scope, "plan", move || produce(queue))?);
            Ok(())
        };
        let take = |ready: Result<Ready>| {
            let written = ready.and_then(|ready| workshop.write(emitter, ready));
            // The producer may wait for memory that will not be returned.
            abort.fetch_or(written.is_err(), Ordering::Relaxed);
            written
        };
        let written = ordered::run(
            "compress",
            allowance.workers,
            first,
            None,
            start,
            started,
            take,
        );
        let produced = match producer.map(ScopedJoinHandle::join) {
            Some(Ok(produced)) => produced,
            Some(Err(panic)) => std::panic::resume_unwind(panic),
            None => Err(Error::interrupted()),
        };
        match (written, produced) {
            _ if stop.load(Ordering::Relaxed) => Err(Error::interrupted()),
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(()), Ok(value)) => Ok(value),
        }
    })
}

/// Ends the work if the thread that owns it panics. Its job never returns its memory, for which the
/// producer may wait.
struct AbortOnPanic<'a>(&'a AtomicBool);

impl Drop for AbortOnPanic<'_> {
    fn drop(&mut self) {
        self.0.fetch_or(std::thread::panicking(), Ordering::Relaxed);
    }
}

impl Workshop<'_> {
    /// Does one job.
    fn turn(&self, job: Job) -> Turn<Result<Ready>> {
        let start = thread_cpu_ns();
        let turn = match job {
            Job::Section {
                number,
                cost,
                image,
                part,
                work,
            } => {
                let result = self
                    .perform(&image, number, *work)
                    .map(|(mut ready, kept)| {
                        // From here on, only the payload takes memory, until it is written.
                        let left = (ready.payload.len() as u64).min(cost);
                        self.budget
                            .give(cost.saturating_sub(left).saturating_sub(kept));
                        ready.cost = left;
                        ready
                    });
                let result = result.map_err(|error| match part {
                    Some(part) => error.of_part(part),
                    None => error,
                });
                Turn::Done(number, result)
            }
            Job::Decode {
                image,
                block,
                reply,
            } => {
                let data = image.decode_block(block);
                match reply.send(data.map_err(Error::from)) {
                    Ok(()) => Turn::Aside,
                    // The work was cancelled, so no thread waits.
                    Err(_) => Turn::End,
                }
            }
        };
        let used = thread_cpu_ns().saturating_sub(start);
        add(&self.task.counters.compress_cpu_ns, used);
        turn
    }

    /// Writes a section, and releases its memory.
    fn write(&self, emitter: &mut Emitter<'_>, ready: Ready) -> Result<()> {
        emitter.sealed(&ready.header, &ready.payload)?;
        if ready.header.ty == SectionType::BLOCK {
            let counters = self.task.counters;
            add(&counters.blocks_written, 1);
            add(&counters.block_bytes, ready.raw);
            add(&counters.compressed_size, ready.payload.len() as u64);
        }
        let cost = ready.cost;
        drop(ready);
        self.budget.give(cost);
        Ok(())
    }

    /// Does a job. Returns the section, and the part of the cost that an idle compressor keeps.
    fn perform(&self, image: &Image, number: u32, work: Work) -> Result<(Ready, u64)> {
        match work {
            Work::Copy(section) => Ok((copy(image, number, &section)?, 0)),
            Work::Recompress {
                block,
                codec,
                content,
            } => {
                let (section, payload) = image.stored_block(block)?;
                let decoded = image.decode_stored_block(&section, &payload)?;
                let raw = decoded.unwrap_or(payload);
                self.compress(number, codec, &content, raw)
            }
            Work::Compress {
                raw,
                codec,
                content,
            } => self.compress(number, codec, &content, raw),
            Work::Recode(section, spec) => {
                let raw = image.decode_section(&section)?;
                let mut compressor = spec.compressor();
                let compressed = match section.ty {
                    SectionType::METADATA_V2 => {
                        let tables = records(&image.metadata().memory_usage()?.tables());
                        compressor.compress_tables(&raw, &tables, raw.len())?
                    }
                    _ => compressor.compress(&raw)?,
                };
                let size = raw.len() as u64;
                let payload = compressed.data.unwrap_or(raw);
                let header = SectionHeader::seal(number, section.ty, compressed.id, &payload);
                Ok((ready(header, payload, size), 0))
            }
        }
    }

    fn compress(
        &self,
        number: u32,
        codec: usize,
        content: &Content,
        raw: Vec<u8>,
    ) -> Result<(Ready, u64)> {
        let choice = self.task.plan.codec(codec);
        let mut compressor = self
            .budget
            .compressor(codec)
            .unwrap_or_else(|| choice.spec.compressor().with_fallback(&choice.fallback));
        let compressed = compressor.compress_with(&raw, content)?;
        let kept = choice.memory(raw.len());
        let size = raw.len() as u64;
        let payload = match compressed.data {
            Some(mut data) => {
                drop(raw);
                data.shrink_to_fit();
                data
            }
            None => raw,
        };
        let header = SectionHeader::seal(number, SectionType::BLOCK, compressed.id, &payload);
        self.budget.keep(codec, kept, compressor);
        Ok((ready(header, payload, size), kept))
    }
}

/// A stored section. If its number does not change, neither do its checksums.
fn copy(image: &Image, number: u32, section: &Section) -> Result<Ready> {
    let section = image.section_with_header(section)?;
    let payload = image.stored_payload(&section)?;
    let compression = section.compression.unwrap_or(CompressionId::NONE);
    let header = match section.header {
        Some(header) if header.number == number => SectionHeader {
            version: Version::WRITTEN,
            ..header
        },
        _ => SectionHeader::seal(number, section.ty, compression, &payload),
    };
    let raw = raw_size(compression, &payload).unwrap_or(payload.len() as u64);
    Ok(ready(header, payload, raw))
}

fn ready(header: SectionHeader, payload: Vec<u8>, raw: u64) -> Ready {
    Ready {
        header,
        payload,
        raw,
        cost: 0,
    }
}
