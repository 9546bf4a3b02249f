//! Compressed metadata whose tables are decoded when they are needed.
//!
//! A table of LZMA-compressed metadata is a block of its `.xz` stream, and gets a decoder of its own. The root and what
//! is in it are at the start of most tables, so the first requests need little of a table. A table of which more is needed is
//! decoded to its end, so that few decoders hold a dictionary at a time.

use std::io;
use std::ops::Range;
use std::sync::Mutex;

use redwarfs_codec::Decoder;
use redwarfs_format::frozen::LazyBytes;
use redwarfs_format::section::Section;
use redwarfs_format::{Error, Result};

use crate::error::{in_section, replicate};

/// Bytes at the start of a table that are decoded as far as they are needed (1 MiB).
const START: usize = 1 << 20;

/// The bytes that `decoder` makes, of which none were made so far. Until all of a table is decoded, its
/// decoder and its stored bytes stay in memory.
///
/// # Errors
/// Those of the codec, with the place of the section: framing that is wrong.
pub(crate) fn decode_when_needed(decoder: Decoder, section: &Section) -> Result<LazyBytes> {
    let mut end = 0;
    let decoders = decoder.apart().map_err(|e| in_section(e, section))?;
    let tables = decoders.into_iter().map(|decoder| {
        let start = end;
        // The sum of all sizes fits into memory; that was checked before.
        end += usize::try_from(decoder.raw_size()).unwrap_or(0);
        Table::new(start..end, decoder)
    });
    let tables: Vec<_> = tables.collect();
    let ends: Vec<_> = tables.iter().map(|table| table.end).collect();
    let section = section.clone();
    Ok(LazyBytes::of_tables(&ends, move |part, put| {
        let of_part = tables.partition_point(|table| table.end <= part.start);
        let decoded = tables.get(of_part).map(|table| table.decode(part.end, put));
        decoded
            .unwrap_or(Ok(()))
            .map_err(|e| in_section(e, &section))
    }))
}

/// A table, or everything.
struct Table {
    /// Where it is in the metadata.
    start: usize,
    end: usize,
    state: Mutex<State>,
}

/// What is left of a table.
struct State {
    /// Where decoding stands in the metadata.
    at: usize,
    left: Left,
}

enum Left {
    Some(Box<Decoder>),
    Nothing,
    Failed(Error),
}

impl Table {
    fn new(range: Range<usize>, decoder: Decoder) -> Self {
        Self {
            start: range.start,
            end: range.end,
            state: Mutex::new(State {
                at: range.start,
                left: Left::Some(Box::new(decoder)),
            }),
        }
    }

    /// Decodes at least up to the end of a part, and puts all parts that this makes. If another thread decodes the table, it
    /// waits.
    fn decode(&self, end: usize, put: &dyn Fn(usize, Box<[u8]>)) -> Result<()> {
        let far = end - self.start > START;
        let end = if far { self.end } else { end };
        // After a panic, decoder and place may not fit together.
        let state = self.state.lock();
        let mut state =
            state.map_err(|_| io::Error::other("a thread that decoded has panicked"))?;
        while state.at < end {
            let start = state.at;
            let to = start.saturating_add(LazyBytes::PART).min(self.end);
            let decoder = match &mut state.left {
                Left::Some(decoder) => decoder,
                Left::Failed(e) => return Err(replicate(e)),
                Left::Nothing => return Err(Error::corrupt("metadata ends early")),
            };
            let mut bytes = vec![0; to - start].into_boxed_slice();
            if let Err(e) = decoder.fill(&mut bytes) {
                state.left = Left::Failed(replicate(&e));
                return Err(e);
            }
            state.at = to;
            if to == self.end {
                state.left = Left::Nothing;
            }
            // Before the lock is given back: whoever finds the table decoded finds the part.
            put(start, bytes);
        }
        Ok(())
    }
}
