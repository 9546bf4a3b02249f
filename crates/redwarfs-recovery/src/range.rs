//! The protected range of a file, shard by shard.

use std::io;
use std::ops::Range as Bytes;

use redwarfs_format::recovery::{Blank, Geometry, HeaderPage};
use redwarfs_io::Source;

/// Reads data shards of a file that may be damaged, or cut at both ends.
pub(crate) struct Range<'s> {
    pub(crate) source: &'s dyn Source,
    pub(crate) geometry: Geometry,
    /// Where the range starts in the file; below 0 if the file has lost its start.
    pub(crate) start: i64,
    /// What counts as zeros.
    pub(crate) blanks: [Blank; HeaderPage::BLANKS],
}

impl Range<'_> {
    /// Reads as many shards as `out` has room for, from number `first` on. The last one of the range is
    /// filled up with zeros.
    pub(crate) fn read(&self, first: u64, out: &mut [u8]) -> io::Result<()> {
        let (at, _) = self.geometry.data_range(first);
        let there = self.geometry.length().saturating_sub(at);
        let there = usize::try_from(there).unwrap_or(usize::MAX).min(out.len());
        let (data, filling) = out.split_at_mut(there);
        let at = self.position(first).ok_or(io::ErrorKind::UnexpectedEof)?;
        self.source.read_exact_at(at, data)?;
        filling.fill(0);
        for part in self.blanks_in(first, out.len()) {
            out.get_mut(part).unwrap_or_default().fill(0);
        }
        Ok(())
    }

    /// Puts into a restored shard what the file has in the ranges that count as zeros.
    pub(crate) fn keep_blanks(&self, shard: u64, bytes: &mut [u8]) -> io::Result<()> {
        let at = self.position(shard).ok_or(io::ErrorKind::UnexpectedEof)?;
        for part in self.blanks_in(shard, bytes.len()) {
            let at = at + part.start as u64;
            self.source
                .read_exact_at(at, bytes.get_mut(part).unwrap_or_default())?;
        }
        Ok(())
    }

    /// Parts of `length` bytes of shards, from number `first` on, that count as zeros.
    fn blanks_in(&self, first: u64, length: usize) -> impl Iterator<Item = Bytes<usize>> {
        let (at, _) = self.geometry.data_range(first);
        let from = self.geometry.start().saturating_add_unsigned(at);
        self.blanks.into_iter().filter_map(move |blank| {
            // Places in the shards; what is in front of them, or behind, is cut off.
            let place = |at: i64| usize::try_from(at.saturating_sub(from).max(0));
            let end = blank.start.saturating_add_unsigned(blank.length);
            let place = place(blank.start).ok()?..place(end).ok()?.min(length);
            (!place.is_empty()).then_some(place)
        })
    }

    /// Where a data shard is in the file. None if it is in front of its start.
    pub(crate) fn position(&self, shard: u64) -> Option<u64> {
        let (at, _) = self.geometry.data_range(shard);
        self.start.checked_add_unsigned(at)?.try_into().ok()
    }
}
