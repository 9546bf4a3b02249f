//! Compressing blocks: blocks of all streams, in any order -> sealed sections, in order.
//!
//! Segmenters run in separate threads, several in parallel if there are several streams. They hand
//! blocks to the compression threads. The calling thread writes. The number of blocks between
//! segmenters and output bounds memory ([`exchange`]).
//!
//! This is not the [ordered pool](crate::ordered): a block enters before its section number is
//! known, because the streams before it have not ended yet.

mod exchange;

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, PoisonError};

use redwarfs_codec::{CodecSpec, Compressor};
use redwarfs_format::section::{Anchor, MATCH_BITS, SectionHeader, SectionType, anchors};

use self::exchange::{Alarm, Exchange, Payload, Task};
use crate::checkpoint::{Results, key_of_block};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::memory::Plan;
use crate::options::ThreadGroup;
use crate::ordered::{lower_priority, thread};
use crate::progress::{Counters, CpuTime, add};
use crate::segmenter::BlockSink;
use crate::settings::StreamSettings;
use crate::stages::emit::Emitter;

/// Where segmenters put their blocks.
pub(crate) struct BlockQueue<'a> {
    exchange: &'a Exchange,
    counters: &'a Counters,
    anchors: Option<&'a BlockAnchors>,
}

/// Anchors of blocks, by the number of streams before, and the number in the stream.
type BlockAnchors = Mutex<BTreeMap<(u32, u32), Vec<Anchor>>>;

impl<'a> BlockQueue<'a> {
    /// The place for the blocks of a stream that is written after `before` others. Streams begin in the
    /// order in which they are written: a later one may wait for an earlier one.
    pub(crate) fn stream(&self, before: u32, stream: u32) -> StreamQueue<'a> {
        StreamQueue {
            exchange: self.exchange,
            counters: self.counters,
            anchors: self.anchors,
            before,
            stream,
        }
    }

    /// Ends what other threads do with the queue. They get [`Error::Interrupted`].
    pub(crate) fn abort(&self) {
        self.exchange.abort();
    }

    /// Aborts if the thread panics before this is dropped.
    pub(crate) fn alarm(&self) -> impl Drop + use<'a> {
        Alarm(self.exchange)
    }
}

/// Takes the blocks of one stream, numbered from 0.
pub(crate) struct StreamQueue<'a> {
    exchange: &'a Exchange,
    counters: &'a Counters,
    anchors: Option<&'a BlockAnchors>,
    before: u32,
    stream: u32,
}

impl StreamQueue<'_> {
    /// The stream has ended with this number of blocks.
    pub(crate) fn end(self, blocks: u32) {
        self.exchange.end(self.before, blocks);
    }
}

impl BlockSink for StreamQueue<'_> {
    fn block(&mut self, number: u32, data: Arc<Vec<u8>>) -> Result<()> {
        add(&self.counters.blocks_created, 1);
        add(&self.counters.block_bytes, data.len() as u64);
        if let Some(all) = self.anchors {
            let mut found = Vec::new();
            anchors(&data, MATCH_BITS, |anchor| found.push(anchor));
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.insert((self.before, number), found);
        }
        self.exchange
            .hand_over((self.before, number), self.stream, data)
    }

    fn buffer(&mut self) -> Vec<u8> {
        self.exchange.buffer()
    }
}

/// Runs `produce` in parallel with a pool of compression threads, and writes its blocks. `streams` says
/// how each of them is compressed. Also returns the anchors of each block, if the options ask for them.
pub(crate) fn blocks<T: Send>(
    context: Context<'_>,
    streams: &[StreamSettings<'_>],
    plan: Plan,
    emitter: &mut Emitter<'_>,
    produce: impl FnOnce(BlockQueue<'_>) -> Result<T> + Send,
) -> Result<(T, Vec<Vec<Anchor>>)> {
    let (options, counters) = (context.options, context.counters());
    let anchors = BlockAnchors::default();
    let wanted = options.match_index.then_some(&anchors);
    // A few blocks for each worker keep all of them busy with the first stream.
    let reserved = (2 * plan.workers).min(plan.blocks / 2);
    let exchange = Exchange::new(emitter.number(), plan.blocks, reserved, plan.segmenters + 1);
    let exchange = &exchange;
    let produced = std::thread::scope(|scope| {
        let _alarm = Alarm(exchange);
        let start = || {
            // Workers first: without any of them the producer would wait for ever.
            for _ in 0..plan.workers {
                thread(scope, "compress", move || {
                    options.begin(ThreadGroup::Compress);
                    let _alarm = Alarm(exchange);
                    compress(context, streams, exchange);
                })?;
            }
            thread(scope, "segment", move || {
                options.begin(ThreadGroup::Segmenter);
                let _alarm = Alarm(exchange);
                let queue = BlockQueue {
                    exchange,
                    counters,
                    anchors: wanted,
                };
                let _cpu = CpuTime::counted_in(&counters.segment_cpu_ns);
                let result = produce(queue);
                match result {
                    Ok(_) => exchange.close(),
                    Err(_) => exchange.abort(),
                }
                result
            })
        };
        let producer = match start() {
            Ok(producer) => producer,
            Err(error) => {
                // Running threads end.
                exchange.abort();
                return Err(error);
            }
        };
        let result = write_in_order(emitter, exchange, counters);
        if result.is_err() {
            exchange.abort();
        }
        let produced = match producer.join() {
            Ok(produced) => produced,
            Err(panic) => std::panic::resume_unwind(panic),
        };
        match (result, produced) {
            _ if context.stopped() => Err(Error::Interrupted),
            (Err(error), _) | (_, Err(error)) => Err(error),
            (Ok(()), Ok(value)) => Ok(value),
        }
    })?;
    let anchors = anchors.into_inner().unwrap_or_else(PoisonError::into_inner);
    Ok((produced, anchors.into_values().collect()))
}

/// What a compression thread does.
fn compress(context: Context<'_>, streams: &[StreamSettings<'_>], exchange: &Exchange) {
    let (options, counters) = (context.options, context.counters());
    lower_priority(options.compress_niceness);
    let unknown = StreamSettings::general(options);
    let results = Results::of(options, counters);
    // Usually consecutive blocks belong to one stream. The compressor is replaced when another stream
    // comes.
    let mut current: Option<(CodecSpec, Compressor)> = None;
    while let Some((place, task)) = exchange.task() {
        if context.stopped() {
            return exchange.abort();
        }
        let cpu = CpuTime::counted_in(&counters.compress_cpu_ns);
        let (number, id, payload) = match task {
            Task::Seal(number, id, payload) => (number, id, payload),
            Task::Compress(stream, raw) => {
                let settings = streams.get(stream as usize).unwrap_or(&unknown);
                let (spec, content) = (&settings.codec, settings.key.content());
                if current.as_ref().is_some_and(|(of, _)| of != spec) {
                    current = None;
                }
                let earlier = results.map(|results| {
                    let key = key_of_block(options, settings, &raw);
                    (results.block(&key, &raw), results, key)
                });
                let compressed = if let Some((Some(compressed), ..)) = earlier {
                    compressed
                } else {
                    let (_, compressor) = current.get_or_insert_with(|| {
                        // The general codec compresses data that the codecs for audio and pixels reject.
                        let compressor = spec.compressor().with_fallback(&options.compression);
                        (spec.clone(), compressor)
                    });
                    let compressed = match compressor.compress_with(&raw, &content) {
                        Ok(compressed) => compressed,
                        Err(error) => return exchange.fail(error.into()),
                    };
                    if let Some((_, results, key)) = earlier {
                        results.keep_block(&key, &compressed);
                    }
                    compressed
                };
                add(&counters.compression_input, raw.len() as u64);
                let result = compressed.data.as_ref().unwrap_or(&raw).len();
                add(&counters.compression_output, result as u64);
                let payload = match compressed.data {
                    Some(data) => {
                        exchange.recycle(raw);
                        Payload::Compressed(data)
                    }
                    None => Payload::Raw(raw),
                };
                match exchange.compressed(place, compressed.id, payload) {
                    Some((number, payload)) => (number, compressed.id, payload),
                    None => continue,
                }
            }
        };
        let header = SectionHeader::seal(number, SectionType::BLOCK, id, payload.bytes());
        drop(cpu);
        exchange.sealed(place, header, payload);
    }
}

fn write_in_order(
    emitter: &mut Emitter<'_>,
    exchange: &Exchange,
    counters: &Counters,
) -> Result<()> {
    while let Some((header, payload)) = exchange.next()? {
        emitter.sealed(&header, payload.bytes())?;
        add(&counters.blocks_written, 1);
        add(&counters.compressed_size, payload.bytes().len() as u64);
        if let Payload::Raw(raw) = payload {
            exchange.recycle(raw);
        }
        exchange.written();
    }
    Ok(())
}
