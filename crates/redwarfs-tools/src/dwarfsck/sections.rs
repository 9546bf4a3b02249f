//! Sizes of sections and one line for each.

use redwarfs_codec::raw_size;
use redwarfs_format::BlockNo;
use redwarfs_format::section::{CompressionId, IndexState, Section, SectionHeader, SectionType};
use redwarfs_reader::{Image, SectionOutcome, SectionReport};

use super::Output;
use super::verify::Verified;
use crate::common::Result;
use crate::common::error::one_line;
use crate::common::number::format_ratio;

/// Enough of a payload for what precedes the data in every codec but xz.
const PREFIX: u64 = 4096;

/// Enough of an xz stream for its index, which has a few bytes per block of the stream.
const TAIL: u64 = 4096;

/// Length of a section header of formats 2.0 and 2.1.
const SHORT_HEADER: u64 = 8;

/// Where the payload of a reported section starts, relative to the image.
pub(crate) fn payload_offset(image: &Image, report: &SectionReport) -> u64 {
    let container = image.container();
    let header = if container.has_hashes() {
        SectionHeader::LEN as u64
    } else {
        SHORT_HEADER
    };
    report
        .offset
        .saturating_sub(container.offset)
        .saturating_add(header)
}

/// Sizes of a payload.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Sizes {
    pub(crate) compression: CompressionId,
    /// Stored, in bytes.
    pub(crate) stored: u64,
    /// Uncompressed, in bytes, where that is recorded.
    pub(crate) raw: Option<u64>,
}

/// Reads what is needed to know the sizes of a section of the image's container.
pub(crate) fn sizes(image: &Image, section: &Section) -> redwarfs_format::Result<Sizes> {
    let loaded;
    let section = if section.compression.is_some() {
        section
    } else {
        let source = image.source();
        loaded = image
            .container()
            .load_header(&|at, buf| source.read_exact_at(at, buf), section.position)?;
        &loaded
    };
    let compression = section.compression.unwrap_or(CompressionId::NONE);
    let start = image
        .container()
        .offset
        .saturating_add(section.payload_offset);
    Ok(sizes_at(image, compression, start, section.length))
}

fn sizes_at(image: &Image, compression: CompressionId, start: u64, stored: u64) -> Sizes {
    let read = |from: u64, length: u64| -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(length).ok()?];
        image
            .source()
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
    Sizes {
        compression,
        stored,
        raw,
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

/// The name of a category, or of its number.
pub(crate) fn category_name(names: &[Vec<u8>], number: u32) -> String {
    names.get(number as usize).map_or_else(
        || format!("category {number}"),
        |name| one_line(&String::from_utf8_lossy(name)),
    )
}

/// Prints a line for each section.
pub(crate) fn print(image: &Image, verified: &Verified, out: &mut Output) -> Result<()> {
    let container = image.container();
    let categories = image.metadata().category_names()?.unwrap_or_default();
    let mut blocks = 0_u32;
    for report in &verified.reports {
        let stored = report.length;
        let offset = payload_offset(image, report);
        let compression = report.compression.unwrap_or(CompressionId::NONE);
        let start = container.offset.saturating_add(offset);
        let mut line = format!(
            "SECTION [V{}] num={}, type={}, compression={compression}, length={stored}",
            container.version, report.number, report.ty
        );
        if let Some(hash) = stored_hash(image, report) {
            line.push_str(&format!(", checksum=0x{hash:016x}"));
        }
        line.push_str(match &report.outcome {
            SectionOutcome::NoHash => "",
            SectionOutcome::Good => " [OK]",
            SectionOutcome::Mismatch => " [CHECKSUM ERROR]",
            SectionOutcome::Failed(_) => " [READ ERROR]",
        });
        line.push_str(&format!(", offset={offset}"));
        match sizes_at(image, compression, start, stored).raw {
            Some(raw) => {
                let ratio = if raw == 0 {
                    "N/A".to_owned()
                } else {
                    percent(stored, raw)
                };
                line.push_str(&format!(", blocksize={raw}, ratio={ratio}"));
            }
            None => line.push_str(&format!(", blocksize={stored} (estimate)")),
        }
        if report.ty == SectionType::BLOCK {
            let block = BlockNo(blocks);
            blocks = blocks.saturating_add(1);
            if let Ok(Some(category)) = image.metadata().block_category(block) {
                line.push_str(&format!(
                    ", category={}",
                    category_name(&categories, category.0)
                ));
            }
            if let Ok(Some(json)) = image.metadata().block_metadata(block) {
                line.push_str(&format!(
                    ", metadata={}",
                    one_line(&String::from_utf8_lossy(&json))
                ));
            }
        }
        if report.ty == SectionType::SECTION_INDEX {
            line.push_str(match container.index {
                IndexState::Valid => " [VALID]",
                _ => " [INVALID]",
            });
        }
        out.line(&line)?;
    }
    Ok(())
}

/// The XXH3 hash in the header of a section.
fn stored_hash(image: &Image, report: &SectionReport) -> Option<u64> {
    if !image.container().has_hashes() {
        return None;
    }
    let mut bytes = [0; SectionHeader::LEN];
    image
        .source()
        .read_exact_at(report.offset, &mut bytes)
        .ok()?;
    SectionHeader::parse(&bytes).ok().map(|header| header.xxh)
}

/// A percentage with two decimals.
pub(crate) fn percent(part: u64, whole: u64) -> String {
    if whole == 0 {
        return format_ratio(part, whole);
    }
    format!("{:.2}%", part as f64 * 100.0 / whole as f64)
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

    #[test]
    fn percentages() {
        assert_eq!(percent(1, 1), "100.00%");
        assert_eq!(percent(20794, 73509), "28.29%");
        assert_eq!(percent(0, 0), "N/A");
    }
}
