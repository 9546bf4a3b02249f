//! Reading a file of the source from front to back.

use std::io;
use std::ops::Range;

use crate::context::Context;
use crate::error::{Error, Result};
use crate::source::{self, FileIdentity};
use crate::tree::Tree;

/// Bytes per read of larger files.
const READ_SIZE: usize = 1 << 20;

/// What reading a file gives, one after the other.
pub(crate) enum FilePart<'a> {
    /// Bytes; consecutive ones belong to one extent.
    Data(&'a [u8]),
    /// The data extent ends.
    EndOfExtent,
    /// That many zero bytes without storage.
    Hole(u64),
}

/// What reading a file came to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ReadOutcome {
    /// Where reading ended.
    pub(crate) size: u64,
    /// The file differs from its listing, or changed while it was read.
    pub(crate) changed: bool,
    /// There are holes.
    pub(crate) sparse: bool,
    /// The state of the file while it was read, if there is a checkpoint, and later changes show in it.
    pub(crate) identity: Option<FileIdentity>,
}

/// Why reading ended early.
pub(crate) enum ReadError {
    /// The file cannot be read.
    Input(io::Error),
    /// The build ends.
    Fatal(Error),
}

impl From<Error> for ReadError {
    fn from(error: Error) -> Self {
        ReadError::Fatal(error)
    }
}

/// Reads a file from front to back: no more than its size when it was opened.
pub(crate) fn read_file(
    context: Context<'_>,
    tree: &Tree,
    file: u32,
    buffer: &mut Vec<u8>,
    part: impl FnMut(FilePart<'_>) -> Result<()>,
) -> Result<ReadOutcome, ReadError> {
    let all = 0..u64::MAX;
    read_range(context, tree, file, all, buffer, part)
}

/// Reads a range of a file from front to back: no more than its size when it was opened.
pub(crate) fn read_range(
    context: Context<'_>,
    tree: &Tree,
    file: u32,
    range: Range<u64>,
    buffer: &mut Vec<u8>,
    mut part: impl FnMut(FilePart<'_>) -> Result<()>,
) -> Result<ReadOutcome, ReadError> {
    let listed = tree.files[file as usize];
    let path = tree.file_path(file);
    context.counters().set_current(&path);
    tracing::trace!("reading '{}'", context.source.display_path(&path));
    let content = context.open(tree, file).map_err(ReadError::Input)?;
    let before = content.stamp().map_err(ReadError::Input)?;
    let identity = || {
        let wanted = context.options.checkpoint.is_some();
        wanted.then(|| content.identity().ok().flatten()).flatten()
    };
    let state = identity().filter(FileIdentity::is_settled);
    let mut outcome = ReadOutcome {
        changed: before != tree.stamp(file),
        size: range.start,
        ..ReadOutcome::default()
    };
    let holes = listed.sparse();
    let end = before.size.min(range.end);
    'extents: while outcome.size < end {
        let extent = if holes {
            content
                .next_data(outcome.size, end)
                .map_err(ReadError::Input)?
        } else {
            Some(source::DataExtent {
                offset: outcome.size,
                size: end - outcome.size,
            })
        };
        let data_start = extent.map_or(end, |e| e.offset.clamp(outcome.size, end));
        if data_start > outcome.size {
            outcome.sparse = true;
            part(FilePart::Hole(data_start - outcome.size))?;
            outcome.size = data_start;
        }
        let Some(extent) = extent else { break };
        let data_end = extent.offset.saturating_add(extent.size).min(end);
        if data_end <= outcome.size {
            // A source that does not advance would never end.
            break;
        }
        while outcome.size < data_end {
            context.check_stop()?;
            let wanted = (data_end - outcome.size).min(READ_SIZE as u64) as usize;
            if buffer.len() < wanted {
                buffer.resize(wanted, 0);
            }
            // Always all of it, as if it had been kept in memory: where data is cut must not
            // depend on how much comes at a time.
            let mut got = 0;
            while let Some(space) = buffer.get_mut(got..wanted).filter(|s| !s.is_empty()) {
                let offset = outcome.size + got as u64;
                match content.read_at(offset, space).map_err(ReadError::Input)? {
                    0 => break,
                    n => got += n.min(space.len()),
                }
            }
            if got == 0 {
                outcome.changed = true;
                part(FilePart::EndOfExtent)?;
                break 'extents;
            }
            part(FilePart::Data(buffer.get(..got).unwrap_or_default()))?;
            outcome.size += got as u64;
        }
        part(FilePart::EndOfExtent)?;
    }
    let after = content.stamp().map_err(ReadError::Input)?;
    outcome.changed |= after != before;
    outcome.identity = state.filter(|state| !outcome.changed && identity() == Some(*state));
    Ok(outcome)
}
