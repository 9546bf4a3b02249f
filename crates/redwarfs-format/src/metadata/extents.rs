//! The pieces of a file.

use std::iter::FusedIterator;
use std::ops::Range;

use super::types::Extent;
use super::view::{MetadataView, bad};
use crate::error::Result;
use crate::ids::BlockNo;

/// `offset` of a hole whose size is listed in `large_hole_size`.
pub(super) const LARGE_HOLE: u32 = u32::MAX;

/// The pieces of a file: an iterator with random access.
#[derive(Debug, Clone)]
pub struct Extents<'a> {
    view: &'a MetadataView,
    first: u32,
    next: Range<u32>,
}

impl<'a> Extents<'a> {
    pub(super) fn new(view: &'a MetadataView, chunks: Range<u32>) -> Self {
        Self {
            view,
            first: chunks.start,
            next: chunks,
        }
    }

    pub(super) fn view(&self) -> &'a MetadataView {
        self.view
    }

    /// The chunks of the file, whatever has been iterated over.
    pub(super) fn chunks(&self) -> Range<u32> {
        self.first..self.next.end
    }

    /// Number of pieces of the file, whatever has been iterated over.
    #[must_use]
    pub fn len(&self) -> usize {
        (self.next.end - self.first) as usize
    }

    /// True for an empty file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.next.end == self.first
    }

    /// Piece number `i` of the file, counted from 0 and independent of the iteration.
    ///
    /// # Errors
    /// `Corrupt` if there is no such piece or it is a hole of unknown size.
    pub fn get(&self, i: usize) -> Result<Extent> {
        let chunk = u32::try_from(i)
            .ok()
            .and_then(|i| self.first.checked_add(i));
        match chunk {
            Some(chunk) if chunk < self.next.end => self.view.extent(chunk),
            _ => Err(bad("chunk index out of range")),
        }
    }
}

impl MetadataView {
    /// Chunk `i` of the table of all chunks.
    #[inline]
    pub(super) fn extent(&self, i: u32) -> Result<Extent> {
        let (t, data) = (&self.t, self.data());
        let block = t.chunk_block.get32(data, i)?;
        let offset = t.chunk_offset.get32(data, i)?;
        let size = t.chunk_size.get32(data, i)?;
        if t.hole_block != Some(block) {
            return Ok(Extent::Data {
                block: BlockNo(block),
                offset,
                size,
            });
        }
        let size = if offset == LARGE_HOLE {
            match &t.large_holes {
                Some(table) if size < table.len() => table.get(data, size)?,
                _ => return Err(bad("size of a hole is missing")),
            }
        } else {
            // At most (2^32 - 1) * 2^32.
            u64::from(size) * u64::from(t.block_size) + u64::from(offset)
        };
        if size >> 63 != 0 {
            return Err(bad("hole too large"));
        }
        Ok(Extent::Hole { size })
    }
}

impl Iterator for Extents<'_> {
    type Item = Result<Extent>;

    fn next(&mut self) -> Option<Self::Item> {
        self.next.next().map(|i| self.view.extent(i))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.next.size_hint()
    }

    fn nth(&mut self, n: usize) -> Option<Self::Item> {
        self.next.nth(n).map(|i| self.view.extent(i))
    }
}

impl FusedIterator for Extents<'_> {}
