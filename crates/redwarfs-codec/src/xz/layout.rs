//! The container of an `.xz` stream: header, index and footer.

#![allow(unsafe_code)]

use crate::{Error, Result};

const HEADER_MAGIC: [u8; 6] = [0xfd, b'7', b'z', b'X', b'Z', 0];
const FOOTER_MAGIC: [u8; 2] = *b"YZ";
/// Length of the stream header and of the footer.
const EDGE: usize = 12;
/// The smallest size of a block without its padding.
const UNPADDED_MIN: u64 = 5;

/// Integrity checks that payloads may use, by their id in the stream flags:
/// none, CRC32, CRC64, SHA-256.
const CHECKS: [u8; 4] = [0, 1, 4, 10];

/// Where the parts of a payload with exactly one stream are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Layout {
    /// Id of the integrity check of each block.
    pub(super) check: u8,
    /// Where the first block starts.
    pub(super) blocks: usize,
    /// Where the index starts, and so the blocks end.
    pub(super) index: usize,
    /// Where the index's records start.
    pub(super) records: usize,
    /// Number of records, one per block.
    pub(super) count: u64,
    /// Sum of the blocks' raw sizes.
    pub(super) raw_size: u64,
}

/// One record of the index.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Record {
    /// Size of the block in the stream without its padding to four bytes.
    pub(super) unpadded: u64,
    /// Size of its data.
    pub(super) raw: u64,
}

impl Record {
    /// Size of the block in the stream.
    pub(super) fn total(self) -> u64 {
        // A record's size has at most 63 bits.
        self.unpadded.next_multiple_of(4)
    }
}

/// The announced size, from the index.
pub(super) fn raw_size(payload: &[u8]) -> Result<u64> {
    Layout::parse(payload).map(|layout| layout.raw_size)
}

impl Layout {
    /// Reads header, footer and index. Checks that they and the blocks make up the whole payload,
    /// except stream padding.
    pub(super) fn parse(payload: &[u8]) -> Result<Self> {
        let end = without_padding(payload)?;
        let stream = &payload[..end];
        let header = stream
            .first_chunk::<EDGE>()
            .filter(|header| header.starts_with(&HEADER_MAGIC))
            .ok_or_else(|| Error::corrupt("LZMA payload does not start with an xz stream"))?;
        let footer = stream
            .get(EDGE..)
            .and_then(|rest| rest.last_chunk::<EDGE>())
            .filter(|footer| footer.ends_with(&FOOTER_MAGIC))
            .ok_or_else(|| Error::corrupt("LZMA payload does not end with an xz footer"))?;
        let flags = [header[6], header[7]];
        if crc32(&flags) != le32(&header[8..12]) {
            return Err(Error::corrupt("xz stream header is damaged"));
        }
        if crc32(&footer[4..10]) != le32(&footer[0..4]) {
            return Err(Error::corrupt("xz footer is damaged"));
        }
        if footer[8..10] != flags {
            return Err(Error::corrupt("xz header and footer disagree"));
        }
        let check = flags[1];
        if flags[0] != 0 || !CHECKS.contains(&check) {
            return Err(Error::Unsupported(format!(
                "xz stream flags {:02x}{:02x}",
                flags[0], flags[1]
            )));
        }

        let index_size = (u64::from(le32(&footer[4..8])) + 1) * 4;
        let index_end = end - EDGE;
        let index = usize::try_from(index_size)
            .ok()
            .and_then(|size| index_end.checked_sub(size))
            .filter(|&index| index >= EDGE)
            .ok_or_else(|| Error::corrupt("xz footer points before the stream"))?;
        let (count, records, sizes) = walk_index(&stream[index..index_end])?;
        if sizes.total != (index - EDGE) as u64 {
            return Err(Error::corrupt("xz index does not describe the stream"));
        }
        Ok(Self {
            check,
            blocks: EDGE,
            index,
            records: index + records,
            count,
            raw_size: sizes.raw,
        })
    }
}

#[derive(Debug, Default, Clone, Copy)]
struct Sizes {
    total: u64,
    raw: u64,
}

/// Checks an index and sums it up. Returns the number of records, where they start
/// and the sums.
fn walk_index(index: &[u8]) -> Result<(u64, usize, Sizes)> {
    let damaged = || Error::corrupt("xz index is damaged");
    let (body, crc) = index.split_last_chunk::<4>().ok_or_else(damaged)?;
    if crc32(body) != u32::from_le_bytes(*crc) || body.first() != Some(&0) {
        return Err(damaged());
    }
    let mut position = 1;
    let count = vli(body, &mut position).ok_or_else(damaged)?;
    let records = position;
    let mut sizes = Sizes::default();
    // Each turn consumes at least two bytes, so a wild count ends early.
    for _ in 0..count {
        let record = next_record(body, &mut position).ok_or_else(damaged)?;
        sizes.total = sizes
            .total
            .checked_add(record.total())
            .ok_or_else(damaged)?;
        sizes.raw = sizes.raw.checked_add(record.raw).ok_or_else(damaged)?;
    }
    let padding = body.get(position..).ok_or_else(damaged)?;
    if padding.len() > 3 || padding.iter().any(|&byte| byte != 0) {
        return Err(damaged());
    }
    Ok((count, records, sizes))
}

/// Reads the record at `position` and moves on.
pub(super) fn next_record(bytes: &[u8], position: &mut usize) -> Option<Record> {
    let unpadded = vli(bytes, position)?;
    let raw = vli(bytes, position)?;
    (unpadded >= UNPADDED_MIN).then_some(Record { unpadded, raw })
}

/// Reads a variable-length integer of at most 63 bits, in its shortest form.
fn vli(bytes: &[u8], position: &mut usize) -> Option<u64> {
    let mut value = 0u64;
    for i in 0..9 {
        let byte = *bytes.get(*position)?;
        *position += 1;
        value |= u64::from(byte & 0x7f) << (7 * i);
        if byte & 0x80 == 0 {
            return (byte != 0 || i == 0).then_some(value);
        }
    }
    None
}

/// The length of the payload without trailing stream padding, which consists of
/// zeros and comes in multiples of four bytes.
fn without_padding(payload: &[u8]) -> Result<usize> {
    let end = payload
        .iter()
        .rposition(|&byte| byte != 0)
        .map_or(0, |last| last + 1);
    if !end.is_multiple_of(4) || !payload.len().is_multiple_of(4) {
        return Err(Error::corrupt("LZMA payload has an odd size"));
    }
    Ok(end)
}

fn le32(bytes: &[u8]) -> u32 {
    bytes
        .first_chunk()
        .map_or(0, |bytes| u32::from_le_bytes(*bytes))
}

pub(super) fn crc32(bytes: &[u8]) -> u32 {
    // SAFETY: the function reads exactly the slice.
    unsafe { liblzma_sys::lzma_crc32(bytes.as_ptr(), bytes.len(), 0) }
}
