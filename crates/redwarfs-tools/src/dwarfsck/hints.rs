//! Hints: which blocks a program needs first.

use std::io::Write;

use redwarfs_format::Result as FormatResult;
use redwarfs_format::hints::{HintKind, HintTable};
use redwarfs_format::section::SectionType;
use redwarfs_reader::{Image, MOST_HINTS};

use crate::common::json::JsonWriter;
use crate::common::number::{counted, format_size};

/// Stored bytes of the blocks that exist.
fn stored(image: &Image, table: &HintTable) -> u64 {
    let blocks = table.blocks.iter();
    let sections = blocks.filter_map(|hinted| image.container().block(hinted.block));
    sections.fold(0, |sum, block| sum.saturating_add(block.length))
}

/// A line for each section, and with `all` one for each block of the sections that readers look at.
pub(super) fn text(image: &Image, all: bool) -> Vec<String> {
    let mut lines = Vec::new();
    let trailers = image.container().trailers.iter();
    let count = trailers.filter(|section| section.ty == SectionType::HINTS);
    let first_listed = count.count().saturating_sub(MOST_HINTS);
    for (number, found) in image.stored_hints().enumerate() {
        let all = all && number >= first_listed;
        let table = match found.table {
            Ok(table) => table,
            Err(error) => {
                lines.push(format!("  hints: ignored: {error}"));
                continue;
            }
        };
        let what = match table.kind {
            HintKind::Start => "needed first",
            HintKind::Keep => "used often",
        };
        lines.push(format!(
            "  hints: {} {what}, {} stored",
            counted(table.blocks.len() as u64, "block", "blocks"),
            format_size(stored(image, &table))
        ));
        for hinted in table.blocks.iter().filter(|_| all) {
            let value = match table.kind {
                HintKind::Start => format!("after {} ms", hinted.value),
                HintKind::Keep => format!("weight {}", hinted.value),
            };
            let there = match image.container().block(hinted.block) {
                Some(_) => "",
                None => ", which does not exist",
            };
            lines.push(format!("    block {} {value}{there}", hinted.block));
        }
    }
    lines
}

/// The same as a list. With `all`, it has all blocks.
pub(super) fn json<W: Write>(
    image: &Image,
    all: bool,
    json: &mut JsonWriter<W>,
) -> FormatResult<()> {
    json.key("hints")?;
    json.begin_array()?;
    for found in image.stored_hints() {
        json.begin_object()?;
        match found.table {
            Ok(table) => {
                json.number_at("block_count", table.blocks.len() as u64)?;
                if all {
                    json.key("blocks")?;
                    json.begin_array()?;
                    for hinted in &table.blocks {
                        json.begin_object()?;
                        json.number_at("block", hinted.block.0)?;
                        json.number_at("value", hinted.value)?;
                        json.end_object()?;
                    }
                    json.end_array()?;
                }
                json.number_at("compressed_size", stored(image, &table))?;
                json.string_at("kind", table.kind.name())?;
            }
            Err(error) => json.string_at("ignored", &error.to_string())?,
        }
        json.number_at("offset", found.section.header_offset)?;
        json.end_object()?;
    }
    json.end_array()?;
    Ok(())
}
