//! Compression in any order, output in order.
//!
//! The segmenter runs in a thread of its own and hands blocks to the workers; the calling
//! thread writes. A token per block in flight bounds memory: the segmenter takes one before it
//! hands over a block, the writer gives it back once the block is written. Blocks are taken up
//! in order, so the block that the writer waits for always has a token, whatever the limit.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{Scope, ScopedJoinHandle};

use crossbeam_channel::{Receiver, Sender, bounded, unbounded};
use redwarfs_codec::{CodecSpec, Compressor, Content};
use redwarfs_format::section::{SectionHeader, SectionType};

use crate::emit::Emitter;
use crate::error::{Error, Result};
use crate::memory::Plan;
use crate::options::BuildOptions;
use crate::progress::{Counters, Progress, add, thread_cpu_ns};
use crate::segment::BlockSink;

/// A compressed payload.
enum Payload {
    Raw(Arc<Vec<u8>>),
    Compressed(Vec<u8>),
}

impl Payload {
    fn bytes(&self) -> &[u8] {
        match self {
            Payload::Raw(data) => data,
            Payload::Compressed(data) => data,
        }
    }
}

/// Where the segmenter puts its blocks.
pub(crate) struct BlockQueue<'a> {
    tokens: Sender<()>,
    jobs: Sender<Job>,
    spare: Receiver<Vec<u8>>,
    counters: &'a Counters,
    /// Stream of the next blocks.
    stream: u32,
}

impl BlockQueue<'_> {
    /// The following blocks belong to this stream.
    pub(crate) fn set_stream(&mut self, stream: u32) {
        self.stream = stream;
    }
}

/// A block to be compressed.
struct Job {
    number: u32,
    stream: u32,
    raw: Arc<Vec<u8>>,
}

/// How the blocks of a stream are compressed.
#[derive(Debug, Clone)]
pub(crate) struct StreamCodec {
    pub(crate) spec: CodecSpec,
    pub(crate) content: Content,
}

impl BlockSink for BlockQueue<'_> {
    fn block(&mut self, number: u32, data: Arc<Vec<u8>>) -> Result<()> {
        add(&self.counters.blocks_created, 1);
        add(&self.counters.block_bytes, data.len() as u64);
        // Both fail only when the other side has given up; the reason is known there.
        self.tokens.send(()).map_err(|_| Error::Interrupted)?;
        self.jobs
            .send(Job {
                number,
                stream: self.stream,
                raw: data,
            })
            .map_err(|_| Error::Interrupted)
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.spare.try_recv().unwrap_or_default()
    }
}

/// Offers the memory of a block that nobody needs any more to the segmenter.
fn recycle(spare: &Sender<Vec<u8>>, block: Arc<Vec<u8>>) {
    if let Some(mut memory) = Arc::into_inner(block) {
        memory.clear();
        // A full queue means that there is enough already.
        let _ = spare.try_send(memory);
    }
}

type Finished = (u32, Result<(SectionHeader, Payload)>);

/// Bytes of memory that this machine has.
#[must_use]
pub fn physical_memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

/// Runs `produce` beside a pool of compression threads and writes the blocks that it makes.
/// `codecs` are those of the streams.
pub(crate) fn blocks<T: Send>(
    options: &BuildOptions,
    codecs: &[StreamCodec],
    plan: Plan,
    emitter: &mut Emitter<'_>,
    progress: &dyn Progress,
    stop: &AtomicBool,
    produce: impl FnOnce(BlockQueue<'_>) -> Result<T> + Send,
) -> Result<T> {
    let counters = progress.counters();
    let (token_in, token_out) = bounded(plan.blocks);
    let (job_in, job_out) = unbounded::<Job>();
    let (done_in, done_out) = unbounded::<Finished>();
    let (spare_in, spare_out) = bounded(2);
    // Set when the output fails: work that is queued is of no use any more.
    let abort = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let queue = BlockQueue {
            tokens: token_in,
            jobs: job_in,
            spare: spare_out,
            counters,
            stream: 0,
        };
        // Workers first: without any of them the producer would wait for ever. When starting
        // a thread fails, those that run end as soon as the queues are dropped.
        for _ in 0..plan.workers {
            let (jobs, done, spare) = (job_out.clone(), done_in.clone(), spare_in.clone());
            let abort = &abort;
            thread(scope, "compress", move || {
                let useless = || abort.load(Ordering::Relaxed) || stop.load(Ordering::Relaxed);
                compress(options, codecs, &jobs, &done, &spare, counters, &useless);
            })?;
        }
        let producer = thread(scope, "segment", move || {
            let start = thread_cpu_ns();
            let result = produce(queue);
            add(
                &counters.segment_cpu_ns,
                thread_cpu_ns().saturating_sub(start),
            );
            result
        })?;
        drop((job_out, done_in));
        let result = write_in_order(emitter, &done_out, token_out, &spare_in, counters);
        abort.store(result.is_err(), Ordering::Relaxed);
        let produced = match producer.join() {
            Ok(produced) => produced,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        match (result, produced) {
            _ if stop.load(Ordering::Relaxed) => Err(Error::Interrupted),
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(()), Ok(value)) => Ok(value),
        }
    })
}

/// Starts a thread with a name.
pub(crate) fn thread<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn_scoped(scope, run)
        .map_err(Error::Thread)
}

fn compress(
    options: &BuildOptions,
    codecs: &[StreamCodec],
    jobs: &Receiver<Job>,
    done: &Sender<Finished>,
    spare: &Sender<Vec<u8>>,
    counters: &Counters,
    useless: &dyn Fn() -> bool,
) {
    if options.compress_niceness != 0 {
        // A thread that may not be slowed down works all the same.
        let thread = Some(rustix::thread::gettid());
        let before = rustix::process::getpriority_process(thread).unwrap_or(0);
        let nice = before.saturating_add(options.compress_niceness).min(19);
        let _ = rustix::process::setpriority_process(thread, nice);
    }
    let unknown = StreamCodec {
        spec: options.compression.clone(),
        content: Content::Bytes,
    };
    // Streams come one after the other: a compressor is given up when another one is needed.
    let mut current: Option<(CodecSpec, Compressor)> = None;
    while let Ok(Job {
        number,
        stream,
        raw,
    }) = jobs.recv()
    {
        if useless() {
            return;
        }
        let start = thread_cpu_ns();
        let StreamCodec { spec, content } = codecs.get(stream as usize).unwrap_or(&unknown);
        if current.as_ref().is_some_and(|(of, _)| of != spec) {
            current = None;
        }
        let (_, compressor) = current.get_or_insert_with(|| {
            // What the codecs for audio and pixels do not take is compressed like anything else.
            let compressor = spec.compressor().with_fallback(&options.compression);
            (spec.clone(), compressor)
        });
        let result = compressor
            .compress_with(&raw, content)
            .map_err(Error::from)
            .map(|compressed| {
                let payload = match compressed.data {
                    Some(data) => {
                        recycle(spare, raw);
                        Payload::Compressed(data)
                    }
                    None => Payload::Raw(raw),
                };
                let header =
                    SectionHeader::seal(number, SectionType::BLOCK, compressed.id, payload.bytes());
                (header, payload)
            });
        add(
            &counters.compress_cpu_ns,
            thread_cpu_ns().saturating_sub(start),
        );
        if done.send((number, result)).is_err() {
            return;
        }
    }
}

fn write_in_order(
    emitter: &mut Emitter<'_>,
    done: &Receiver<Finished>,
    tokens: Receiver<()>,
    spare: &Sender<Vec<u8>>,
    counters: &Counters,
) -> Result<()> {
    let mut early = BTreeMap::new();
    let mut next = 0u32;
    while let Ok((number, result)) = done.recv() {
        early.insert(number, result?);
        while let Some((header, payload)) = early.remove(&next) {
            emitter.sealed(&header, payload.bytes())?;
            add(&counters.blocks_written, 1);
            add(&counters.compressed_size, payload.bytes().len() as u64);
            if let Payload::Raw(raw) = payload {
                recycle(spare, raw);
            }
            // The token of this block was taken before the block was handed over.
            let _ = tokens.recv();
            next += 1;
        }
    }
    Ok(())
}
