//! Reads parts of uncompressed payloads, and compares them with the digests of their leaves.

use std::ops::Range;

use redwarfs_format::section::{LeafDigests, Section};
use redwarfs_format::{Error, Result};

use super::{HASHED_AT_ONCE, Payloads, changed};
use crate::error::in_section;
use crate::verify::KnownLeaves;

/// Bytes of an uncompressed payload that are copied at a time into the memory of a caller (256 KiB): a few leaves, which
/// stay in the CPU caches.
const COPIED: usize = 16 * LeafDigests::LEAF;

impl Payloads {
    /// Appends a range of a payload with verified leaves to `out`, including the leaves at its ends
    /// that must be compared. Returns where the range begins in `out`; it ends at the end of `out`.
    /// `None`, with `out` as before, if reading must wait and `wait` forbids that.
    pub(crate) fn read_leaves(
        &self,
        section: &Section,
        leaves: Option<&KnownLeaves>,
        range: Range<u64>,
        wait: bool,
        out: &mut Vec<u8>,
    ) -> Result<Option<usize>> {
        let Range { start, end } = match leaves {
            Some(leaves) => whole_leaves(leaves, section, &range),
            None => range.clone(),
        };
        let long = || {
            let e = Error::Limit(format!("{} bytes at once", end.saturating_sub(start)));
            in_section(e, section)
        };
        let len = |from: u64, to: u64| usize::try_from(to.saturating_sub(from)).map_err(|_| long());
        let (head, wanted) = (len(start, range.start)?, len(range.start, range.end)?);
        let before = out.len();
        out.try_reserve(len(start, end)?).map_err(|_| long())?;
        out.resize(before + len(start, end)?, 0);
        let read = out.get_mut(before..).unwrap_or_default();
        let read = self.fill_from_leaves(section, leaves, start, wait, read);
        let there = matches!(read, Ok(true));
        out.truncate(before + if there { head + wanted } else { 0 });
        Ok(read?.then_some(before + head))
    }

    /// Reads a range of a payload with verified leaves into `out`. `scratch` is memory for whole leaves, which keeps its
    /// size: its contents are lost.
    pub(crate) fn copy_leaves(
        &self,
        section: &Section,
        leaves: Option<&KnownLeaves>,
        mut at: u64,
        out: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<()> {
        let Some(known) = leaves else {
            return self
                .fill_from_leaves(section, None, at, true, out)
                .map(|_| ());
        };
        let short = || {
            let e = Error::Limit(format!("leaves of {} bytes", known.size()));
            in_section(e, section)
        };
        for piece in out.chunks_mut(COPIED) {
            let wanted = at..at.saturating_add(piece.len() as u64);
            let whole = whole_leaves(known, section, &wanted);
            let len =
                usize::try_from(whole.end.saturating_sub(whole.start)).map_err(|_| short())?;
            if scratch.len() < len {
                let more = len - scratch.len();
                scratch.try_reserve_exact(more).map_err(|_| short())?;
                scratch.resize(len, 0);
            }
            let read = scratch.get_mut(..len).unwrap_or_default();
            self.fill_from_leaves(section, leaves, whole.start, true, read)?;
            let head = usize::try_from(at.saturating_sub(whole.start)).map_err(|_| short())?;
            let found = read.get(head..).and_then(|rest| rest.get(..piece.len()));
            piece.copy_from_slice(found.ok_or_else(short)?);
            at = wanted.end;
        }
        Ok(())
    }

    /// Reads a payload from `at` on, and compares it with its leaves, if it has any. Returns false if
    /// reading must wait and `wait` forbids that.
    fn fill_from_leaves(
        &self,
        section: &Section,
        leaves: Option<&KnownLeaves>,
        mut at: u64,
        wait: bool,
        buf: &mut [u8],
    ) -> Result<bool> {
        // The compared bytes are still in the CPU caches.
        for piece in buf.chunks_mut(HASHED_AT_ONCE) {
            let place = self.container.file_offset(section).saturating_add(at);
            if wait {
                self.source
                    .read_exact_at(place, piece)
                    .map_err(|e| in_section(e.into(), section))?;
            } else if !self.source.try_read_exact_at(place, piece) {
                return Ok(false);
            }
            let differs = |leaves: &KnownLeaves| {
                let first = usize::try_from(at / leaves.size()).unwrap_or(usize::MAX);
                !leaves.matches(first, piece)
            };
            if leaves.is_some_and(differs) {
                return Err(match leaves {
                    Some(KnownLeaves::Trusted { .. }) => self.mismatch(section),
                    _ => changed(section),
                });
            }
            at = at.saturating_add(piece.len() as u64);
        }
        Ok(true)
    }
}

/// The leaves that a range of a payload lies in.
fn whole_leaves(leaves: &KnownLeaves, section: &Section, range: &Range<u64>) -> Range<u64> {
    let start = range.start / leaves.size() * leaves.size();
    let end = range.end.next_multiple_of(leaves.size());
    start..end.min(section.length)
}
