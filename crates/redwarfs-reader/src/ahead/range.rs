//! The blocks that a range of a file needs.

use std::ops::Range;

use redwarfs_format::metadata::MetadataView;
use redwarfs_format::{BlockNo, InodeNo, Result};

use super::need::{Need, Submit};
use crate::spans::{Span, Spans};

/// Largest number of spans of a file that are examined. A read of more small spans takes long anyway.
const MAX_SPANS: usize = 1024;

/// The needs of a range of a file, one for each run of spans in the same block.
pub(super) struct RangeNeeds<'a> {
    spans: Spans<'a>,
    /// Number of spans that may still be examined.
    left: usize,
    /// Offset in the file after the last span.
    at: u64,
    /// Spans that start here or later are left out.
    until: u64,
    /// The need of the last spans, and the offset in the file where they start.
    current: Option<(Need, u64)>,
    without_first: bool,
    /// The first block, if it is left out.
    first: Option<BlockNo>,
}

impl<'a> RangeNeeds<'a> {
    /// The needs of `len` bytes at `offset`.
    pub(super) fn of_range(
        view: &'a MetadataView,
        inode: InodeNo,
        offset: u64,
        len: usize,
    ) -> Result<Self> {
        Ok(Self {
            spans: Spans::new(view, inode, offset, len)?,
            left: MAX_SPANS,
            at: offset,
            until: u64::MAX,
            current: None,
            without_first: false,
            first: None,
        })
    }

    /// The needs of all spans that `range` touches, each to its end, so that a block is decoded at
    /// once.
    pub(super) fn of_stream(
        view: &'a MetadataView,
        inode: InodeNo,
        range: Range<u64>,
    ) -> Result<Self> {
        Ok(Self {
            until: range.end,
            ..Self::of_range(view, inode, range.start, usize::MAX)?
        })
    }

    /// The same, but without the first block.
    pub(super) fn without_first_block(self) -> Self {
        Self {
            without_first: true,
            ..self
        }
    }

    /// The next need, and the offset in the file where its bytes start.
    fn next(&mut self) -> Result<Option<(Need, u64)>> {
        while self.left > 0 && self.at < self.until {
            self.left -= 1;
            let Some(span) = self.spans.next()? else {
                // The end of the file.
                self.at = u64::MAX;
                self.left = 0;
                break;
            };
            let start = self.at;
            self.at = start.saturating_add(span.len() as u64);
            let Span::Data { block, offset, len } = span else {
                continue;
            };
            let end = offset + len as u64;
            if self.without_first {
                self.first.get_or_insert(block);
            }
            match &mut self.current {
                Some((same, _)) if same.block == block => same.end = end.max(same.end),
                current => {
                    if let Some(done) = current.replace((Need::ahead(block, end), start))
                        && Some(done.0.block) != self.first
                    {
                        return Ok(Some(done));
                    }
                }
            }
        }
        let last = self.current.take();
        Ok(last.filter(|(need, _)| Some(need.block) != self.first))
    }

    /// Submits all needs. Returns the offset in the file up to which that was possible.
    pub(super) fn submit_to(&mut self, submit: &mut Submit<'_>) -> Result<u64> {
        while let Some((need, start)) = self.next()? {
            if !submit(need) {
                // The threads are too busy. The next read submits this need and the rest.
                return Ok(start);
            }
        }
        Ok(self.at)
    }
}
