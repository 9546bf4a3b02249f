//! Decoding the blocks of an `.xz` stream.

#![allow(unsafe_code)]

use std::mem;
use std::num::NonZeroUsize;
use std::ptr;
use std::sync::{Mutex, PoisonError};
use std::thread;

use liblzma_sys as sys;

use super::coder::{Coder, check_decoder, decoder_error};
use super::layout::{self, Layout};
use crate::codec::{Decode, Part};
use crate::{Error, Result};

/// The smallest dictionary that liblzma accepts, in bytes.
const DICT_MIN: u64 = 4096;

/// Bytes that a decoder may take besides a dictionary as large as the data: the
/// probability tables of LZMA2 and the small states of the other filters. What
/// liblzma needs is about 64 KiB; a dictionary is cut to the raw size first, so
/// even a stream made with a dictionary of 1.5 GiB stays within this.
const DECODER_OVERHEAD: u64 = 1 << 20;

/// Decodes the blocks of one stream in order.
///
/// Memory: a dictionary of at most the raw size of the current block (4 KiB at
/// least) plus [`DECODER_OVERHEAD`].
pub(super) struct XzDecoder {
    layout: Layout,
    coder: Coder,
    /// Description of the current block, to which the coder keeps a pointer.
    block: Option<BlockInfo>,
    /// Where the next record of the index is.
    next_record: usize,
    /// Records that have been taken from the index.
    records_taken: u64,
    /// Where decoding stands in the payload.
    position: usize,
    /// Where the current block ends, or the last one has ended.
    block_end: usize,
}

impl XzDecoder {
    pub(super) fn new(payload: &[u8]) -> Result<Self> {
        let layout = Layout::parse(payload)?;
        Ok(Self {
            next_record: layout.records,
            records_taken: 0,
            position: layout.blocks,
            block_end: layout.blocks,
            coder: Coder::new(),
            block: None,
            layout,
        })
    }

    /// Decodes all blocks of a stream of which nothing has been decoded into `out`, which has its raw
    /// size, by up to `threads` threads, the largest blocks first. Takes 40 bytes for each block, and a
    /// dictionary for each thread. Of several errors, the error of the first block counts; later blocks
    /// need not be decoded.
    fn fill_apart(&mut self, payload: &[u8], out: &mut [u8], threads: usize) -> Result<()> {
        // A record takes two bytes of the index at least, which has been walked.
        let mut jobs = Vec::with_capacity(usize::try_from(self.layout.count).unwrap_or(0));
        let (mut start, mut rest) = (self.block_end, out);
        while let Some(record) = self.take_record(payload)? {
            let (data, behind) = usize::try_from(record.raw)
                .ok()
                .and_then(|raw| mem::take(&mut rest).split_at_mut_checked(raw))
                .ok_or_else(|| Error::corrupt("xz block exceeds the data"))?;
            jobs.push((start, record, data));
            rest = behind;
            start = self.end_of_block(start, record)?;
        }
        let workers = threads.min(jobs.len());
        jobs.sort_unstable_by_key(|(start, record, _)| (record.raw, *start));
        let (jobs, failed) = (Mutex::new(jobs), Mutex::new(None));
        let layout = &self.layout;
        let work = || {
            // The lock is not held while a block is decoded.
            let next = || lock(&jobs).pop();
            let first_failed = || {
                lock(&failed)
                    .as_ref()
                    .map_or(usize::MAX, |(start, _): &(usize, Error)| *start)
            };
            while let Some((start, record, data)) = next() {
                if start > first_failed() {
                    continue;
                }
                if let Err(e) = Self::decode_block(layout, payload, start, record, data) {
                    let mut failed = lock(&failed);
                    if failed.as_ref().is_none_or(|(first, _)| start < *first) {
                        *failed = Some((start, e));
                    }
                }
            }
        };
        thread::scope(|scope| {
            for _ in 1..workers {
                // Where no thread can be started the others do it all.
                let _ = thread::Builder::new().spawn_scoped(scope, work);
            }
            work();
        });
        self.block_end = start;
        match failed.into_inner().unwrap_or_else(PoisonError::into_inner) {
            Some((_, e)) => Err(e),
            None => Ok(()),
        }
    }

    /// Decodes the block at `start` as a whole and verifies its end.
    fn decode_block(
        layout: &Layout,
        payload: &[u8],
        start: usize,
        record: layout::Record,
        out: &mut [u8],
    ) -> Result<()> {
        let mut alone = Self::alone(layout, payload, start, record)?;
        alone.fill(payload, out, 0, true)?;
        alone.finish(payload)
    }

    /// A decoder for the block at `start`. In a box, because the coder has begun and stays where it is.
    fn alone(
        layout: &Layout,
        payload: &[u8],
        start: usize,
        record: layout::Record,
    ) -> Result<Box<Self>> {
        let mut alone = Box::new(Self {
            layout: layout.clone(),
            coder: Coder::new(),
            block: None,
            next_record: layout.records,
            // No block follows it.
            records_taken: layout.count,
            position: start,
            block_end: start,
        });
        alone.enter_block(payload, record)?;
        Ok(alone)
    }

    /// Runs the coder once over the current block. Returns how many bytes it
    /// produced; none only if the block has ended or input has been consumed.
    fn step(&mut self, payload: &[u8], out: &mut [u8]) -> Result<usize> {
        let input = payload
            .get(self.position..self.block_end)
            .ok_or_else(|| Error::corrupt("xz block exceeds the stream"))?;
        let (verdict, consumed, produced) = self.coder.run(input, out, sys::LZMA_RUN);
        self.position += consumed;
        match verdict {
            sys::LZMA_STREAM_END => {
                if self.position != self.block_end {
                    return Err(Error::corrupt("xz block is shorter than the index says"));
                }
                self.block = None;
            }
            sys::LZMA_OK if consumed > 0 || produced > 0 => {}
            sys::LZMA_OK => return Err(Error::corrupt("LZMA stream is incomplete")),
            other => return Err(decoder_error(other)),
        }
        Ok(produced)
    }

    /// Takes the next record of the index and prepares the coder for its block.
    /// False if there are no more blocks.
    fn start_block(&mut self, payload: &[u8]) -> Result<bool> {
        match self.take_record(payload)? {
            Some(record) => self.enter_block(payload, record).map(|()| true),
            None => Ok(false),
        }
    }

    /// The next record of the index, if there is one more.
    fn take_record(&mut self, payload: &[u8]) -> Result<Option<layout::Record>> {
        if self.records_taken == self.layout.count {
            return Ok(None);
        }
        let record = layout::next_record(payload, &mut self.next_record)
            .ok_or_else(|| Error::corrupt("xz index is damaged"))?;
        self.records_taken += 1;
        Ok(Some(record))
    }

    /// Where the block that begins at `start` ends in the payload.
    fn end_of_block(&self, start: usize, record: layout::Record) -> Result<usize> {
        usize::try_from(record.total())
            .ok()
            .and_then(|total| start.checked_add(total))
            .filter(|&end| end <= self.layout.index)
            .ok_or_else(|| Error::corrupt("xz block exceeds the stream"))
    }

    /// Prepares the coder for the block that begins where the last one has ended.
    fn enter_block(&mut self, payload: &[u8], record: layout::Record) -> Result<()> {
        let start = self.block_end;
        let end = self.end_of_block(start, record)?;
        let block_bytes = payload
            .get(start..end)
            .ok_or_else(|| Error::corrupt("xz block exceeds the stream"))?;
        let size_byte = block_bytes.first().copied().unwrap_or(0);
        let header_size = (usize::from(size_byte) + 1) * 4;
        if size_byte == 0 || header_size > block_bytes.len() {
            return Err(Error::corrupt("xz block header is damaged"));
        }

        // The coder is about to be pointed at the new description.
        self.block = None;
        let mut info = BlockInfo::new(self.layout.check, header_size as u32);
        let mut filters = FilterChain::new();
        info.decode_header(block_bytes, &mut filters)?;
        info.set_sizes(record)?;
        filters.shrink_dictionary(record.raw);
        let needed = filters.decoder_memory();
        if needed > record.raw.max(DICT_MIN).saturating_add(DECODER_OVERHEAD) {
            return Err(Error::Limit(format!(
                "xz block of {} bytes needs {needed} bytes to decode",
                record.raw
            )));
        }
        info.init_coder(&mut self.coder, &mut filters)?;
        self.block = Some(info);
        self.position = start + header_size;
        self.block_end = end;
        Ok(())
    }
}

impl Decode for XzDecoder {
    fn fill(&mut self, payload: &[u8], out: &mut [u8], _done: u64, _whole: bool) -> Result<()> {
        let mut filled = 0;
        while filled < out.len() {
            if self.block.is_none() && !self.start_block(payload)? {
                return Err(Error::corrupt("LZMA stream ends early"));
            }
            filled += self.step(payload, &mut out[filled..])?;
        }
        Ok(())
    }

    /// Decodes the rest, which must hold no data: the end of the last block with its check value, and
    /// empty blocks.
    fn finish(&mut self, payload: &[u8]) -> Result<()> {
        let mut surplus = [0];
        while self.block.is_some() || self.start_block(payload)? {
            if self.step(payload, &mut surplus)? > 0 {
                return Err(Error::corrupt("LZMA stream holds more than it announces"));
            }
        }
        Ok(())
    }

    fn fill_by_parts(
        &mut self,
        payload: &[u8],
        out: &mut [u8],
        threads: NonZeroUsize,
    ) -> Result<()> {
        self.fill_apart(payload, out, threads.get())
    }

    fn apart(&self, payload: &[u8]) -> Result<Option<Vec<Part>>> {
        let mut parts = Vec::new();
        let mut next_record = self.layout.records;
        let mut start = self.layout.blocks;
        for _ in 0..self.layout.count {
            let record = layout::next_record(payload, &mut next_record)
                .ok_or_else(|| Error::corrupt("xz index is damaged"))?;
            let end = self.end_of_block(start, record)?;
            let block = payload
                .get(start..end)
                .ok_or_else(|| Error::corrupt("xz block exceeds the stream"))?;
            let layout = Layout {
                index: block.len(),
                ..self.layout.clone()
            };
            let mut stream = Self::alone(&layout, block, 0, record)?;
            if record.raw == 0 {
                stream.finish(block)?;
            } else {
                parts.push(Part {
                    payload: block.to_vec(),
                    raw_size: record.raw,
                    stream,
                });
            }
            start = end;
        }
        Ok(Some(parts))
    }

    /// Each block can be decoded separately.
    fn parts(&self) -> u64 {
        self.layout.count
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A heap-allocated `lzma_block`. The coder writes to it while it runs, so it is
/// reached through a raw pointer only.
struct BlockInfo(ptr::NonNull<sys::lzma_block>);

// SAFETY: the allocation is owned and used only together with the coder that the
// same decoder owns.
unsafe impl Send for BlockInfo {}

impl BlockInfo {
    fn new(check: u8, header_size: u32) -> Self {
        // SAFETY: all-zero is a valid value of the plain C struct.
        let mut block: sys::lzma_block = unsafe { mem::zeroed() };
        block.version = 1;
        block.check = sys::lzma_check::from(check);
        block.header_size = header_size;
        Self(ptr::NonNull::from(Box::leak(Box::new(block))))
    }

    /// Parses the block header at the front of `bytes`, which holds at least the
    /// header's size.
    fn decode_header(&mut self, bytes: &[u8], filters: &mut FilterChain) -> Result<()> {
        // SAFETY: `bytes` holds the whole header, whose size is set; the filter
        // array has the five entries that the function fills.
        let verdict = unsafe {
            let block = self.0.as_ptr();
            (*block).filters = filters.0.as_mut_ptr();
            sys::lzma_block_header_decode(block, ptr::null(), bytes.as_ptr())
        };
        check_decoder(verdict)
    }

    /// Holds the header's sizes against the index and fills in missing ones, so
    /// that the coder enforces them.
    fn set_sizes(&mut self, record: layout::Record) -> Result<()> {
        // SAFETY: the allocation is valid and nothing else refers to it yet.
        let verdict = unsafe {
            let block = self.0.as_ptr();
            let announced = (*block).uncompressed_size;
            if announced != sys::LZMA_VLI_UNKNOWN && announced != record.raw {
                return Err(Error::corrupt("xz block header and index disagree"));
            }
            (*block).uncompressed_size = record.raw;
            sys::lzma_block_compressed_size(block, record.unpadded)
        };
        check_decoder(verdict)
    }

    fn init_coder(&mut self, coder: &mut Coder, filters: &mut FilterChain) -> Result<()> {
        // SAFETY: the filters live through the call, which copies the needed values. The description
        // stays at its address until the coder is not used any longer.
        let verdict = unsafe {
            let block = self.0.as_ptr();
            (*block).filters = filters.0.as_mut_ptr();
            let verdict = sys::lzma_block_decoder(&mut coder.0, block);
            (*block).filters = ptr::null_mut();
            verdict
        };
        check_decoder(verdict)
    }
}

impl Drop for BlockInfo {
    fn drop(&mut self) {
        // SAFETY: the pointer comes from a leaked box and is freed once. A coder
        // that still holds it is only ended or initialised anew, neither of which
        // reads it.
        drop(unsafe { Box::from_raw(self.0.as_ptr()) });
    }
}

/// Filters of a block with the options that liblzma allocated for them.
struct FilterChain([sys::lzma_filter; sys::LZMA_FILTERS_MAX as usize + 1]);

impl FilterChain {
    fn new() -> Self {
        Self(
            [sys::lzma_filter {
                id: sys::LZMA_VLI_UNKNOWN,
                options: ptr::null_mut(),
            }; sys::LZMA_FILTERS_MAX as usize + 1],
        )
    }

    /// Cuts the dictionary to what `raw_size` bytes can make use of. No match
    /// reaches back further than the data produced so far.
    fn shrink_dictionary(&mut self, raw_size: u64) {
        let useful = u32::try_from(raw_size.max(DICT_MIN)).unwrap_or(u32::MAX);
        for filter in &mut self.0 {
            if filter.id == sys::LZMA_VLI_UNKNOWN {
                break;
            }
            if filter.id == sys::LZMA_FILTER_LZMA2 && !filter.options.is_null() {
                // SAFETY: liblzma allocates exactly this struct for an LZMA2 filter.
                let options = unsafe { &mut *filter.options.cast::<sys::lzma_options_lzma>() };
                options.dict_size = options.dict_size.min(useful);
            }
        }
    }

    /// Bytes that a decoder for the chain takes; `u64::MAX` if there is none.
    fn decoder_memory(&self) -> u64 {
        // SAFETY: the array is terminated and its options are those of liblzma.
        unsafe { sys::lzma_raw_decoder_memusage(self.0.as_ptr()) }
    }
}

impl Drop for FilterChain {
    fn drop(&mut self) {
        // SAFETY: the array is terminated. Its options were allocated by liblzma's default allocator,
        // which null selects, or are null.
        unsafe { sys::lzma_filters_free(self.0.as_mut_ptr(), ptr::null()) };
    }
}
