//! Reads that hand out the memory of the cache instead of a copy.

use redwarfs_format::{BlockNo, Error, InodeNo, Result};

use crate::cache::BlockData;
use crate::image::{Image, Inner};
use crate::read::{Ahead, Piece, Pieces};

/// Pieces that are shorter are copied: a copy costs less than an entry in a list of pieces, and a
/// file of crumbs would make long lists.
const PIN_FROM: usize = 512;

/// Parts that one result has at most. Once there are so many, the rest is copied into the last.
pub const MAX_PARTS: usize = 32;

/// Blocks that a result without decoding may pin.
const CACHED_BLOCKS: usize = 2;
/// The same if further blocks are decoded meanwhile: payload, decoded bytes and the pinned block
/// are what one thread may use.
const DECODED_BLOCKS: usize = 1;

/// Bytes of a file that were read: in the memory of the cache where possible.
///
/// As long as this exists, at most two blocks cannot be dropped from the cache on account of it.
#[derive(Debug)]
pub struct PinnedRead<'a> {
    inner: &'a Inner,
    parts: Vec<Part>,
    /// Holes and small pieces, and what would pin too much.
    copied: &'a mut Vec<u8>,
    len: usize,
    /// Blocks that may be pinned.
    blocks: usize,
}

#[derive(Debug)]
enum Part {
    Pinned {
        data: BlockData,
        at: usize,
        len: usize,
    },
    Copied {
        at: usize,
        len: usize,
    },
}

impl<'a> PinnedRead<'a> {
    fn new(inner: &'a Inner, copied: &'a mut Vec<u8>, blocks: usize) -> Self {
        copied.clear();
        Self {
            inner,
            parts: Vec::new(),
            copied,
            len: 0,
            blocks,
        }
    }

    /// Number of bytes.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The bytes in order, in at most [`MAX_PARTS`] parts.
    pub fn parts(&self) -> impl Iterator<Item = &[u8]> {
        self.parts.iter().map(|part| match part {
            Part::Pinned { data, at, len } => data
                .bytes()
                .get(*at..)
                .and_then(|bytes| bytes.get(..*len))
                .unwrap_or_default(),
            Part::Copied { at, len } => self
                .copied
                .get(*at..)
                .and_then(|bytes| bytes.get(..*len))
                .unwrap_or_default(),
        })
    }

    /// Whether one more piece of a block may be pinned.
    fn may_pin(&self, block: BlockNo) -> bool {
        // One part is left for what is copied.
        if self.parts.len() + 1 >= MAX_PARTS {
            return false;
        }
        let mut others = 0;
        // Pieces of one block that follow each other count once, others each time.
        let mut last = None;
        for part in &self.parts {
            if let Part::Pinned { data, .. } = part {
                if data.block() == block {
                    return true;
                }
                others += usize::from(last != Some(data.block()));
                last = Some(data.block());
            }
        }
        others < self.blocks
    }

    /// Appends what `fill` adds to the end of the copied bytes: exactly `len`.
    fn copy(&mut self, len: usize, fill: impl FnOnce(&mut Vec<u8>)) {
        let at = self.copied.len();
        fill(self.copied);
        match self.parts.last_mut() {
            // Copied bytes only ever follow each other.
            Some(Part::Copied { len: before, .. }) => *before += len,
            _ => self.parts.push(Part::Copied { at, len }),
        }
        self.len += len;
    }

    /// Appends bytes of a block, which comes back; none if they are not there.
    fn push(&mut self, data: BlockData, offset: u64, len: usize) -> Option<BlockData> {
        let at = usize::try_from(offset).ok()?;
        let bytes = data.bytes().get(at..)?.get(..len)?;
        if len < PIN_FROM || !self.may_pin(data.block()) {
            self.copy(len, |copied| copied.extend_from_slice(bytes));
            return Some(data);
        }
        let again = data.clone();
        self.parts.push(Part::Pinned { data, at, len });
        self.len += len;
        Some(again)
    }

    /// Appends all pieces; false as soon as `get` has no block.
    fn collect(
        &mut self,
        first: Option<Piece>,
        pieces: &mut Pieces<'_>,
        mut get: impl FnMut(BlockNo, u64, u64) -> Result<Option<BlockData>>,
    ) -> Result<bool> {
        let mut last: Option<BlockData> = None;
        let mut next = match first {
            Some(piece) => Some(piece),
            None => pieces.next()?,
        };
        while let Some(piece) = next {
            match piece {
                Piece::Zeros { len } => self.copy(len, |copied| {
                    copied.resize(copied.len() + len, 0);
                }),
                Piece::Data { block, offset, len } => {
                    let end = offset + len as u64;
                    // Before another block is decoded, nothing but the pinned ones is held.
                    let data = match last.take() {
                        Some(data) if data.block() == block && data.has(end) => data,
                        other => {
                            drop(other);
                            match get(block, offset, end)? {
                                Some(data) => data,
                                None => return Ok(false),
                            }
                        }
                    };
                    last = self.push(data, offset, len);
                    if last.is_none() {
                        let e = Error::corrupt(format!("bytes of block {block} are missing"));
                        return Err(self.inner.payloads.in_block(e, block));
                    }
                }
            }
            next = pieces.next()?;
        }
        Ok(true)
    }
}

impl Drop for PinnedRead<'_> {
    fn drop(&mut self) {
        self.parts.clear();
        self.inner.cache.trim();
    }
}

impl Image {
    /// As [`Image::read_at`], for `len` bytes, without copying them out of the cache where they
    /// are large enough pieces of few blocks. `scratch` takes the rest; what it held is lost.
    ///
    /// # Errors
    /// As [`Image::read_at`].
    pub fn read_pinned<'a>(
        &'a self,
        inode: InodeNo,
        offset: u64,
        len: usize,
        scratch: &'a mut Vec<u8>,
    ) -> Result<PinnedRead<'a>> {
        let inner = &*self.0;
        let mut read = PinnedRead::new(inner, scratch, DECODED_BLOCKS);
        let context = read_context(inode, offset, len);
        let _timer = inner.timers.read.start_with(&context);
        let mut pieces = Pieces::new(inner, inode, offset, len)?;
        let Some(first) = pieces.next()? else {
            return Ok(read);
        };
        if first.len() < len && pieces.has_more() && inner.cache.has_room_ahead() {
            self.decode_ahead(inode, offset, len, Ahead::AfterFirstBlock)?;
        }
        let timer = inner.timers.inode_read.start_with(&context);
        let get = |block, start, end| inner.cache.get(block, start, end).map(Some);
        let result = read.collect(Some(first), &mut pieces, get);
        drop(timer);
        result?;
        self.read_ahead(inode, offset, len);
        Ok(read)
    }

    /// As [`Image::read_pinned`] if that needs neither decoding nor waiting, otherwise none.
    ///
    /// # Errors
    /// As [`Image::read_at`], for wrong inodes and metadata.
    pub fn try_read_pinned<'a>(
        &'a self,
        inode: InodeNo,
        offset: u64,
        len: usize,
        scratch: &'a mut Vec<u8>,
    ) -> Result<Option<PinnedRead<'a>>> {
        let inner = &*self.0;
        let mut read = PinnedRead::new(inner, scratch, CACHED_BLOCKS);
        let timer = inner
            .timers
            .read_cached
            .start_with(&read_context(inode, offset, len));
        let mut pieces = Pieces::new(inner, inode, offset, len)?;
        let get = |block, _, end| Ok(inner.cache.get_cached(block, end));
        let complete = read.collect(None, &mut pieces, get)?;
        drop(timer);
        if !complete {
            return Ok(None);
        }
        self.read_ahead(inode, offset, len);
        Ok(Some(read))
    }

    /// Appends up to `len` bytes at `offset` to `out` if that needs neither decoding nor
    /// waiting. False, with `out` as before, if it does.
    ///
    /// # Errors
    /// As [`Image::try_read_pinned`].
    pub fn try_read_cached(
        &self,
        inode: InodeNo,
        offset: u64,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<bool> {
        let mut scratch = Vec::new();
        let Some(read) = self.try_read_pinned(inode, offset, len, &mut scratch)? else {
            return Ok(false);
        };
        for part in read.parts() {
            out.extend_from_slice(part);
        }
        Ok(true)
    }
}

/// What a trace shows about a read.
pub(crate) fn read_context(inode: InodeNo, offset: u64, len: usize) -> [(&'static str, u64); 3] {
    [
        ("inode", u64::from(inode.0)),
        ("offset", offset),
        ("size", len as u64),
    ]
}
