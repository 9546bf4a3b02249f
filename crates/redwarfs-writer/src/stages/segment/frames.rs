//! Parts of files as whole units of their data, such as samples of all channels.

use crate::error::Result;
use crate::read::FilePart;
use crate::segmenter::{BlockSink, Segmenter};

/// Source of zeros.
const ZEROS: [u8; 4096] = [0; 4096];

/// Feeds a part of a file to a segmenter, such that extents consist of whole units. Holes shrink to
/// whole units, and their remaining bytes become zeros.
pub(super) struct Frames<'s, S> {
    pub(super) segmenter: &'s mut Segmenter<S>,
    pub(super) granularity: u64,
    /// In the part, which begins with a whole unit.
    pub(super) position: u64,
}

impl<S: BlockSink> Frames<'_, S> {
    pub(super) fn part(&mut self, part: FilePart<'_>) -> Result<()> {
        match part {
            FilePart::Data(data) => {
                self.position += data.len() as u64;
                self.segmenter.data(data)
            }
            FilePart::EndOfExtent => self.end_of_extent(),
            FilePart::Hole(size) => {
                let end = self.position + size;
                let unit = self.granularity;
                let first = self.position.next_multiple_of(unit).min(end);
                let last = (end - end % unit).max(first);
                self.zeros(first)?;
                if first < last {
                    self.segmenter.end_extent()?;
                    self.segmenter.hole(last - first);
                    self.position = last;
                }
                self.zeros(end)?;
                self.end_of_extent()
            }
        }
    }

    /// An extent that ends within a unit is joined with the next one.
    fn end_of_extent(&mut self) -> Result<()> {
        if self.position.is_multiple_of(self.granularity) {
            self.segmenter.end_extent()?;
        }
        Ok(())
    }

    fn zeros(&mut self, end: u64) -> Result<()> {
        while self.position < end {
            let wanted = (end - self.position).min(ZEROS.len() as u64);
            let zeros = ZEROS.get(..wanted as usize).unwrap_or_default();
            self.segmenter.data(zeros)?;
            self.position += zeros.len() as u64;
        }
        Ok(())
    }
}
