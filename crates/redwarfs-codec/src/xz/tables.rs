//! Compressing tables of records: one `.xz` stream with a block for each table.
//!
//! Each block has its own filter chain. Where records count upwards, a delta filter turns them into the
//! same few bytes again and again, and the coder of LZMA is told how long a record is. Which chain is
//! best is tried.

#![allow(unsafe_code)]

use std::mem;
use std::ops::Range;
use std::ptr;

use liblzma_sys as sys;

use super::coder::encoder_error;
use super::layout::crc32;
use super::options::{LzmaOptions, lzma_options};
use crate::table::Table;
use crate::{Error, Result};

/// Bytes of a table that chains are tried with.
const SAMPLE: usize = 1 << 20;
/// Smallest size of a separate block in bytes.
const SMALL: usize = 512;
/// Longest record that a delta filter can take, in bytes.
const MAX_RECORD: usize = 256;

/// Filters for one block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Chain {
    /// Distance of the delta filter in bytes, 1..=256.
    delta: Option<u32>,
    /// Parameters of LZMA: bits of literal context, of literal position, of position.
    literal_context: u32,
    literal_position: u32,
    position: u32,
}

impl Chain {
    const TEXT: Chain = Chain {
        delta: None,
        literal_context: 3,
        literal_position: 0,
        position: 0,
    };

    /// The filters to try for records of this many bytes.
    fn candidates(record: usize) -> Vec<Chain> {
        if record == 0 || record > MAX_RECORD {
            return vec![Chain::TEXT];
        }
        // Positions count if they repeat with the record.
        let bits = if record.is_power_of_two() {
            record.trailing_zeros().min(4)
        } else {
            0
        };
        let plain = Chain {
            delta: None,
            literal_context: 0,
            literal_position: bits,
            position: bits,
        };
        let delta = Some(record as u32);
        vec![
            Chain { delta, ..plain },
            Chain {
                delta,
                ..Chain::TEXT
            },
            plain,
            Chain {
                position: bits.min(2),
                ..Chain::TEXT
            },
        ]
    }
}

/// The payload, or `None` if it would not be smaller than the input and than `limit`.
pub(super) fn compress(
    options: &LzmaOptions,
    raw: &[u8],
    tables: &[Table],
    limit: usize,
) -> Result<Option<Vec<u8>>> {
    let limit = limit.min(raw.len());
    let mut out = vec![0; sys::LZMA_STREAM_HEADER_SIZE as usize];
    let mut flags = stream_flags();
    // SAFETY: the output has the size that the function fills.
    let verdict = unsafe { sys::lzma_stream_header_encode(&flags, out.as_mut_ptr()) };
    check(verdict)?;
    let mut records = Vec::new();
    for (part, record) in parts(raw.len(), tables) {
        let data = &raw[part];
        let chain = best(options, data, record)?;
        let space = limit.saturating_sub(out.len());
        let Some(unpadded) = block(options, chain, data, &mut out, space)? else {
            return Ok(None);
        };
        records.push((unpadded, data.len() as u64));
    }
    let index = out.len();
    write_index(&records, &mut out);
    flags.backward_size = (out.len() - index) as u64;
    let footer = out.len();
    out.resize(footer + sys::LZMA_STREAM_HEADER_SIZE as usize, 0);
    // SAFETY: as above, for the bytes after the index.
    let verdict = unsafe { sys::lzma_stream_footer_encode(&flags, out[footer..].as_mut_ptr()) };
    check(verdict)?;
    Ok((out.len() < limit).then_some(out))
}

/// Cuts `len` bytes into tables and the data between them. Each part has the size of a record, or 0.
fn parts(len: usize, tables: &[Table]) -> Vec<(Range<usize>, usize)> {
    let mut parts: Vec<(Range<usize>, usize)> = Vec::new();
    let mut done = 0;
    for table in tables {
        let Range { start, end } = table.range;
        if start < done || end > len || start > end || end - start < SMALL {
            continue;
        }
        if start > done {
            parts.push((done..start, 0));
        }
        parts.push((start..end, table.record));
        done = end;
    }
    if done < len {
        parts.push((done..len, 0));
    }
    // Short stretches join the previous part, or else the next one.
    let mut joined: Vec<(Range<usize>, usize)> = Vec::new();
    for (range, record) in parts {
        match joined.last_mut() {
            Some((last, _)) if range.len() < SMALL => last.end = range.end,
            Some((last, of)) if last.len() < SMALL => (last.end, *of) = (range.end, record),
            _ => joined.push((range, record)),
        }
    }
    joined
}

/// The chain that makes the least of the middle of `data`.
fn best(options: &LzmaOptions, data: &[u8], record: usize) -> Result<Chain> {
    let candidates = Chain::candidates(record);
    let skipped = data.len().saturating_sub(SAMPLE) / 2;
    let start = skipped - skipped % record.max(1);
    let sample = &data[start..data.len().min(start + SAMPLE)];
    let mut best = (usize::MAX, Chain::TEXT);
    if let [only] = candidates[..] {
        return Ok(only);
    }
    for chain in candidates {
        let mut out = Vec::new();
        let made = block(options, chain, sample, &mut out, usize::MAX)?;
        if made.is_some() && out.len() < best.0 {
            best = (out.len(), chain);
        }
    }
    Ok(best.1)
}

/// Appends a block with `data`, of at most `space` bytes. Returns its size without padding, as the index wants it. `None` if
/// it does not fit.
fn block(
    options: &LzmaOptions,
    chain: Chain,
    data: &[u8],
    out: &mut Vec<u8>,
    space: usize,
) -> Result<Option<u64>> {
    let mut lzma = lzma_options(options, data.len());
    lzma.lc = chain.literal_context;
    lzma.lp = chain.literal_position;
    lzma.pb = chain.position;
    let mut delta = delta_options(chain.delta.unwrap_or(1));
    let end = sys::lzma_filter {
        id: sys::LZMA_VLI_UNKNOWN,
        options: ptr::null_mut(),
    };
    let last = sys::lzma_filter {
        id: sys::LZMA_FILTER_LZMA2,
        options: ptr::from_mut(&mut lzma).cast(),
    };
    let mut filters = match chain.delta {
        Some(_) => {
            let first = sys::lzma_filter {
                id: sys::LZMA_FILTER_DELTA,
                options: ptr::from_mut(&mut delta).cast(),
            };
            [first, last, end]
        }
        None => [last, end, end],
    };
    // SAFETY: the function computes; it has no preconditions.
    let bound = unsafe { sys::lzma_block_buffer_bound(data.len()) };
    if bound == 0 {
        return Err(Error::Limit("too much data for an xz block".into()));
    }
    let start = out.len();
    out.resize(start + bound.min(space), 0);
    let mut position = start;
    // SAFETY: all-zero is a valid value of the plain C struct. The filters, their options and
    // both buffers live through the calls, which stay within the given lengths.
    let (verdict, unpadded) = unsafe {
        let mut info: sys::lzma_block = mem::zeroed();
        info.version = 0;
        info.check = sys::LZMA_CHECK_CRC32;
        info.filters = filters.as_mut_ptr();
        let verdict = sys::lzma_block_buffer_encode(
            &mut info,
            ptr::null(),
            data.as_ptr(),
            data.len(),
            out.as_mut_ptr(),
            &mut position,
            out.len(),
        );
        (verdict, sys::lzma_block_unpadded_size(&info))
    };
    if verdict == sys::LZMA_BUF_ERROR {
        return Ok(None);
    }
    check(verdict)?;
    out.truncate(position);
    Ok(Some(unpadded))
}

fn delta_options(distance: u32) -> sys::lzma_options_delta {
    // SAFETY: all-zero is a valid value of the plain C struct.
    let mut options: sys::lzma_options_delta = unsafe { mem::zeroed() };
    options.type_ = sys::lzma_delta_type_LZMA_DELTA_TYPE_BYTE;
    options.dist = distance;
    options
}

fn stream_flags() -> sys::lzma_stream_flags {
    // SAFETY: all-zero is a valid value of the plain C struct.
    let mut flags: sys::lzma_stream_flags = unsafe { mem::zeroed() };
    flags.version = 0;
    flags.check = sys::LZMA_CHECK_CRC32;
    flags
}

/// The index of a stream: the size of each block without padding, and the size of its data.
fn write_index(records: &[(u64, u64)], out: &mut Vec<u8>) {
    let start = out.len();
    out.push(0);
    write_number(records.len() as u64, out);
    for &(unpadded, raw) in records {
        write_number(unpadded, out);
        write_number(raw, out);
    }
    while !(out.len() - start).is_multiple_of(4) {
        out.push(0);
    }
    let sum = crc32(&out[start..]);
    out.extend_from_slice(&sum.to_le_bytes());
}

/// Seven bits in each byte, the lowest first.
fn write_number(mut number: u64, out: &mut Vec<u8>) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

fn check(verdict: sys::lzma_ret) -> Result<()> {
    if verdict == sys::LZMA_OK {
        Ok(())
    } else {
        Err(encoder_error(verdict))
    }
}
