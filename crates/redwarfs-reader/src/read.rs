//! Reading file contents.

use std::io;

use redwarfs_format::metadata::{Extent, Extents, FileType};
use redwarfs_format::{BlockNo, Error, InodeNo, Result};

use crate::cache::BlockData;
use crate::error::wrong_type;
use crate::image::{Image, Inner};
use crate::pinned::read_context;

fn advance(offset: u64, size: u64) -> Result<u64> {
    offset
        .checked_add(size)
        .ok_or_else(|| Error::corrupt("a file of more than 2^64 bytes"))
}

/// Pieces of a file that are looked at for decoding ahead; a read of more small pieces takes
/// long enough by itself.
pub(crate) const MAX_AHEAD: usize = 1024;

/// Which blocks of a range are decoded ahead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ahead {
    /// All but the one that the reader begins with.
    AfterFirstBlock,
    Everything,
}

/// The pieces of a range of a file, in order.
pub(crate) struct Pieces<'a> {
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
pub(crate) enum Piece {
    Data {
        block: BlockNo,
        offset: u64,
        len: usize,
    },
    Zeros {
        len: usize,
    },
}

impl Piece {
    pub(crate) fn len(self) -> usize {
        match self {
            Self::Data { len, .. } | Self::Zeros { len } => len,
        }
    }
}

impl<'a> Pieces<'a> {
    pub(crate) fn new(inner: &'a Inner, inode: InodeNo, at: u64, len: usize) -> Result<Self> {
        match inner.view.file_type(inode)? {
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
        let extents = inner.view.extents(inode)?;
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

    pub(crate) fn next(&mut self) -> Result<Option<Piece>> {
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
                Extent::Data { block, offset, .. } => Piece::Data {
                    block,
                    offset: u64::from(offset) + skip,
                    len,
                },
                Extent::Hole { .. } => Piece::Zeros { len },
            }));
        }
        Ok(None)
    }
}

/// What [`Image::plan_reads`] was told; dropping it ends the plan.
#[derive(Debug)]
#[must_use = "the plan ends with it"]
pub struct PlannedReads<'a>(&'a Image);

impl Drop for PlannedReads<'_> {
    fn drop(&mut self) {
        self.0.0.cache.plan([]);
    }
}

impl Image {
    /// Reads from a regular file at `offset`; returns the number of bytes, which is less than
    /// the length of `buf` only at the end of the file.
    ///
    /// Finding the place takes a few microseconds, however many pieces the file has; the first
    /// read in a file of more than 256 pieces looks at all chunks of the image once.
    ///
    /// # Errors
    /// [`io::ErrorKind::IsADirectory`] or [`io::ErrorKind::InvalidInput`] as [`Error::Io`] for
    /// other inodes. If a block that is needed cannot be read, verified or decoded, the error
    /// names its section; other reads are not affected, and the next one tries again. The
    /// contents of `buf` are unspecified after an error.
    pub fn read_at(&self, inode: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inner = &*self.0;
        let context = read_context(inode, offset, buf.len());
        let _timer = inner.timers.read.start_with(&context);
        if buf.is_empty() {
            Pieces::new(inner, inode, offset, 0)?;
            return Ok(0);
        }
        let mut pieces = Pieces::new(inner, inode, offset, buf.len())?;
        let Some(first) = pieces.next()? else {
            return Ok(0);
        };
        if first.len() < buf.len() && pieces.has_more() && inner.cache.has_room_ahead() {
            self.decode_ahead(inode, offset, buf.len(), Ahead::AfterFirstBlock)?;
        }
        let timer = inner.timers.inode_read.start_with(&context);
        let result = self.fill(first, pieces, buf);
        drop(timer);
        inner.cache.trim();
        if result.is_ok() {
            self.read_ahead(inode, offset, buf.len());
        }
        result
    }

    /// Says what will be read while the returned guard exists: the blocks in the order of their first
    /// use, and up to where each is needed, in bytes from its start; any number of times. They are
    /// decoded ahead by other threads in that order and so far, and nothing else is. Reading something else
    /// works all the same. Afterwards it is guessed again what will be read.
    ///
    /// An image has one plan at a time, the last one. Takes up to 64 bytes for each block.
    pub fn plan_reads(&self, needs: impl IntoIterator<Item = (BlockNo, u64)>) -> PlannedReads<'_> {
        self.0.cache.plan(needs);
        PlannedReads(self)
    }

    /// Lets other threads decode what may be asked for after a read.
    pub(crate) fn read_ahead(&self, inode: InodeNo, offset: u64, len: usize) {
        if self.0.cache.is_planned() || !self.0.cache.has_room_ahead() {
            return;
        }
        self.follow(inode, offset, len);
        let ahead = self.0.cache.readahead();
        if ahead > 0 {
            let from = offset.saturating_add(len as u64);
            // Whoever asks for those bytes gets the error.
            let _ = self.decode_ahead(inode, from, ahead, Ahead::Everything);
        }
    }

    /// Lets another thread decode `..end` of a block if it is not there; false if they are busy.
    pub(crate) fn decode_soon(&self, block: BlockNo, end: u64) -> bool {
        self.0.cache.contains(block, end) || self.0.cache.prefetch(block, end)
    }

    fn fill(&self, first: Piece, mut pieces: Pieces<'_>, buf: &mut [u8]) -> Result<usize> {
        let cache = &self.0.cache;
        let mut done = 0;
        let mut piece = first;
        let mut last: Option<BlockData> = None;
        let mut scratch = Vec::new();
        loop {
            // Pieces of one range never exceed it together.
            let (_, rest) = buf.split_at_mut(done);
            let (out, _) = rest.split_at_mut(piece.len());
            match piece {
                Piece::Zeros { .. } => out.fill(0),
                Piece::Data { block, offset, len } => {
                    let end = offset + len as u64;
                    let data = match last.take() {
                        Some(data) if data.block() == block && data.has(end) => data,
                        _ => cache.get(block, offset, end)?,
                    };
                    cache.copy(&data, offset, out, &mut scratch)?;
                    last = Some(data);
                }
            }
            done += piece.len();
            match pieces.next()? {
                Some(next) => piece = next,
                None => return Ok(done),
            }
        }
    }

    /// Lets other threads decode what a range needs.
    pub(crate) fn decode_ahead(
        &self,
        inode: InodeNo,
        offset: u64,
        len: usize,
        what: Ahead,
    ) -> Result<()> {
        let mut pieces = Pieces::new(&self.0, inode, offset, len)?;
        let mut current: Option<(BlockNo, u64)> = None;
        // The block that is left out.
        let mut first = None;
        let submit = |(block, end): (BlockNo, u64)| self.decode_soon(block, end);
        for _ in 0..MAX_AHEAD {
            let Some(piece) = pieces.next()? else {
                break;
            };
            let Piece::Data { block, offset, len } = piece else {
                continue;
            };
            let end = offset + len as u64;
            if what == Ahead::AfterFirstBlock {
                first.get_or_insert(block);
            }
            match &mut current {
                Some((b, e)) if *b == block => *e = end.max(*e),
                _ => {
                    if let Some(done) = current.replace((block, end))
                        && Some(done.0) != first
                        && !submit(done)
                    {
                        return Ok(());
                    }
                }
            }
        }
        if let Some(done) = current
            && Some(done.0) != first
        {
            submit(done);
        }
        Ok(())
    }
}
