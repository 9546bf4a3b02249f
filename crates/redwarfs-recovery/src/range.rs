//! The protected range of a file, shard by shard.

use std::io;

use redwarfs_format::recovery::Geometry;
use redwarfs_io::Source;

/// Reads data shards of a file that may be damaged, or cut at both ends.
pub(crate) struct Range<'s> {
    pub(crate) source: &'s dyn Source,
    pub(crate) geometry: Geometry,
    /// Where the range starts in the file; below 0 if the file has lost its start.
    pub(crate) start: i64,
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
        Ok(())
    }

    /// Where a data shard is in the file. None if it is in front of its start.
    pub(crate) fn position(&self, shard: u64) -> Option<u64> {
        let (at, _) = self.geometry.data_range(shard);
        self.start.checked_add_unsigned(at)?.try_into().ok()
    }
}
