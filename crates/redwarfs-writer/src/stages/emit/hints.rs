//! Hints: from ranges of files to blocks of the image that is being written.

use redwarfs_format::hints::{HintKind, HintTable, Hints};
use redwarfs_format::metadata::MetadataView;
use redwarfs_format::section::SectionType;

use super::Emitter;
use crate::error::{Error, Result};
use crate::progress::{Level, Progress};

/// The blocks of an image with this metadata that hold the ranges of `hints`; none if it has none of them. Says how many
/// hints fit nothing, and if there are none.
///
/// # Errors
/// The metadata is wrong.
pub fn hint_table(
    hints: &Hints,
    view: &MetadataView,
    progress: &dyn Progress,
) -> Result<Option<HintTable>> {
    let found = hints.blocks(view)?;
    let all = hints.list.len();
    for (count, what) in [
        (found.unknown, "name no file of the image"),
        (found.skipped, "are about files with too many pieces"),
    ] {
        if count > 0 {
            let message = format!("{count} of {all} hints {what}");
            progress.log(Level::Warn, &message);
        }
    }
    if found.blocks.is_empty() {
        let message = "the hints name no data of the image, which gets none";
        progress.log(Level::Warn, message);
    }
    let table = HintTable {
        kind: HintKind::Start,
        blocks: found.blocks,
    };
    Ok((!table.blocks.is_empty()).then_some(table))
}

/// Writes the section of hints behind the index.
///
/// # Errors
/// As [`Emitter::trailer`].
pub fn write_hints(table: &HintTable, emitter: &mut Emitter<'_>) -> Result<()> {
    let (_, generation) = emitter
        .generation()
        .ok_or_else(|| Error::Limit("hints need a section index".into()))?;
    let prelude = HintTable::prelude(generation);
    emitter.trailer(SectionType::HINTS, &prelude, &table.encode())
}
