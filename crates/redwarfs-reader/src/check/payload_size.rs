//! Finds the decoded size of a payload from the few bytes that record it. Small payloads are decoded.

use redwarfs_codec::{decompress, raw_size};
use redwarfs_format::section::{CompressionId, Section, SectionType};
use redwarfs_format::{Error, Result};
use redwarfs_io::Source;

/// Bytes at the start of a payload that hold the raw size, for every codec but xz.
const PREFIX: u64 = 4096;

/// Bytes at the end of an xz stream that hold its index. The index has a few bytes for each block of
/// the stream.
const TAIL: u64 = 4096;

/// Largest history or schema, stored or raw (16 MiB); opening an image has the same limit.
const SMALL: u64 = 16 << 20;

/// Sizes of a payload.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PayloadSize {
    /// Compression.
    pub compression: CompressionId,
    /// Stored size in bytes.
    pub stored: u64,
    /// Uncompressed size in bytes, if the payload records it.
    pub raw: Option<u64>,
}

impl PayloadSize {
    /// Reads the sizes of a section. The image starts at `base`.
    pub(super) fn read(source: &dyn Source, base: u64, section: &Section) -> Self {
        let compression = section.compression.unwrap_or(CompressionId(u16::MAX));
        let stored = section.length;
        let start = base.saturating_add(section.payload_offset);
        let read = |from: u64, length: u64| -> Option<Vec<u8>> {
            let mut bytes = vec![0; usize::try_from(length).ok()?];
            source
                .read_exact_at(start.checked_add(from)?, &mut bytes)
                .ok()?;
            Some(bytes)
        };
        let raw = match compression {
            CompressionId::NONE => Some(stored),
            CompressionId::LZMA => {
                let length = stored.min(TAIL);
                read(stored - length, length).and_then(|tail| xz_size(&tail))
            }
            CompressionId::FLAC | CompressionId::RICEPP => {
                read(0, stored.min(PREFIX)).and_then(|prefix| varint(&mut prefix.as_slice()))
            }
            _ => read(0, stored.min(PREFIX)).and_then(|prefix| raw_size(compression, &prefix).ok()),
        };
        Self {
            compression,
            stored,
            raw,
        }
    }
}

/// Decodes the payload of a history or schema. Returns nothing for any other section: opening the
/// image decodes metadata, and an index is not compressed.
///
/// # Errors
/// `Limit` for more than 16 MiB, `Io`, and those of the codec.
pub(super) fn decode_small(source: &dyn Source, base: u64, section: &Section) -> Result<Vec<u8>> {
    if section.ty != SectionType::HISTORY && section.ty != SectionType::METADATA_V2_SCHEMA {
        return Ok(Vec::new());
    }
    if section.length > SMALL {
        return Err(Error::Limit(format!("{} bytes", section.length)));
    }
    let mut payload = vec![0; usize::try_from(section.length).unwrap_or(0)];
    source.read_exact_at(base.saturating_add(section.payload_offset), &mut payload)?;
    match section.compression {
        None | Some(CompressionId::NONE) => Ok(payload),
        Some(id) => decompress(id, &payload, SMALL),
    }
}

/// The uncompressed size recorded in the index at the end of an xz stream (the .xz file format,
/// sections 2.1.2 and 4).
fn xz_size(tail: &[u8]) -> Option<u64> {
    let (rest, footer) = tail.split_at_checked(tail.len().checked_sub(12)?)?;
    if footer.get(10..)? != b"YZ" {
        return None;
    }
    let backward = u32::from_le_bytes(footer.get(4..8)?.try_into().ok()?);
    let length = usize::try_from((u64::from(backward) + 1) * 4).ok()?;
    let mut index = rest.get(rest.len().checked_sub(length)?..)?;
    let (&indicator, after) = index.split_first()?;
    if indicator != 0 {
        return None;
    }
    index = after;
    let records = varint(&mut index)?;
    let mut sum = 0_u64;
    for _ in 0..records {
        varint(&mut index)?;
        sum = sum.checked_add(varint(&mut index)?)?;
    }
    Some(sum)
}

/// An unsigned LEB128 number.
fn varint(bytes: &mut &[u8]) -> Option<u64> {
    let mut value = 0_u64;
    for shift in (0..63).step_by(7) {
        let (&byte, rest) = bytes.split_first()?;
        *bytes = rest;
        value |= u64::from(byte & 0x7f) << shift;
        if byte & 0x80 == 0 {
            return Some(value);
        }
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn varints() {
        assert_eq!(varint(&mut &[0x05][..]), Some(5));
        assert_eq!(varint(&mut &[0x80, 0x01][..]), Some(128));
        assert_eq!(varint(&mut &[0x80][..]), None);
        assert_eq!(varint(&mut &[0xff; 20][..]), None);
        assert_eq!(xz_size(b""), None);
        assert_eq!(xz_size(&[0; 64]), None);
    }
}
