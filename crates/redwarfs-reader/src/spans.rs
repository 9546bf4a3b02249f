//! From a range of a file to the parts of blocks that hold it.

use std::io;

use redwarfs_format::metadata::{Extent, Extents, FileType, MetadataView};
use redwarfs_format::{BlockNo, Error, InodeNo, Result};

use crate::error::wrong_type;

fn advance(offset: u64, size: u64) -> Result<u64> {
    offset
        .checked_add(size)
        .ok_or_else(|| Error::corrupt("a file of more than 2^64 bytes"))
}

/// The spans of a range of a file, in order.
pub(crate) struct Spans<'a> {
    extents: Extents<'a>,
    next: usize,
    /// File offset of the extent `next`.
    offset: u64,
    /// The range that is still wanted.
    at: u64,
    end: u64,
}

/// Part of an extent.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Span {
    Data {
        block: BlockNo,
        offset: u64,
        len: usize,
    },
    Zeros {
        len: usize,
    },
}

impl Span {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Data { len, .. } | Self::Zeros { len } => len,
        }
    }
}

impl<'a> Spans<'a> {
    pub(crate) fn new(view: &'a MetadataView, inode: InodeNo, at: u64, len: usize) -> Result<Self> {
        match view.file_type(inode)? {
            FileType::Regular => {}
            FileType::Directory => {
                return Err(wrong_type(io::ErrorKind::IsADirectory, "is a directory"));
            }
            _ => {
                return Err(wrong_type(
                    io::ErrorKind::InvalidInput,
                    "not a regular file",
                ));
            }
        }
        let extents = view.extents(inode)?;
        let (next, offset) = extents.near(at)?;
        Ok(Self {
            extents,
            next,
            offset,
            at,
            end: at.saturating_add(len as u64),
        })
    }

    pub(crate) fn has_more(&self) -> bool {
        self.at < self.end && self.next < self.extents.len()
    }

    pub(crate) fn next(&mut self) -> Result<Option<Span>> {
        while self.at < self.end && self.next < self.extents.len() {
            let extent = self.extents.get(self.next)?;
            self.next += 1;
            let start = self.offset;
            self.offset = advance(start, extent.size())?;
            if self.offset <= self.at {
                continue;
            }
            let skip = self.at - start;
            let len = self.end.min(self.offset) - self.at;
            self.at += len;
            // Fits: the range came from a buffer length.
            let len = usize::try_from(len).map_err(|_| Error::corrupt("a huge range"))?;
            return Ok(Some(match extent {
                Extent::Data { block, offset, .. } => Span::Data {
                    block,
                    offset: u64::from(offset) + skip,
                    len,
                },
                Extent::Hole { .. } => Span::Zeros { len },
            }));
        }
        Ok(None)
    }
}
