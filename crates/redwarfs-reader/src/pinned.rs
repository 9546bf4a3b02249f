//! Reads file contents without a copy: the caller gets the memory of the cache.

use redwarfs_format::{BlockNo, InodeNo, Result};

use crate::cache::BlockData;
use crate::image::{Image, OpenImage};
use crate::read::read_context;
use crate::spans::{Span, Spans};

/// Shorter spans are copied: a copy takes less time than an entry in a list of spans, and a file of
/// tiny pieces would make long lists.
const PIN_FROM: usize = 512;

/// Largest number of parts of a result. If there are this many parts, the rest is copied into the last
/// one.
pub const MAX_PARTS: usize = 32;

/// Number of blocks that a result without decoding may pin.
const CACHED_BLOCKS: usize = 2;
/// The same if further blocks are decoded meanwhile. One thread may use the memory of a payload,
/// decoded bytes and a pinned block.
const DECODED_BLOCKS: usize = 1;

/// Bytes of a file, if possible in the memory of the cache.
///
/// While this exists, it keeps at most two blocks in the cache.
#[derive(Debug)]
pub struct PinnedRead<'a> {
    inner: &'a OpenImage,
    parts: Vec<PinnedPart>,
    /// Copied bytes: holes, small spans, spans that would pin too much memory, and spans that are not
    /// in the cache.
    copied: &'a mut Vec<u8>,
    len: usize,
    /// Blocks that may be pinned.
    blocks: usize,
}

#[derive(Debug)]
enum PinnedPart {
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
    fn new(inner: &'a OpenImage, copied: &'a mut Vec<u8>, blocks: usize) -> Self {
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
            PinnedPart::Pinned { data, at, len } => data
                .bytes()
                .get(*at..)
                .and_then(|bytes| bytes.get(..*len))
                .unwrap_or_default(),
            PinnedPart::Copied { at, len } => self
                .copied
                .get(*at..)
                .and_then(|bytes| bytes.get(..*len))
                .unwrap_or_default(),
        })
    }

    /// Whether one more span of a block may be pinned.
    fn may_pin(&self, block: BlockNo) -> bool {
        // One part is left for copied bytes.
        if self.parts.len() + 1 >= MAX_PARTS {
            return false;
        }
        let mut others = 0;
        // Consecutive spans of one block count once, all others each time.
        let mut last = None;
        for part in &self.parts {
            if let PinnedPart::Pinned { data, .. } = part {
                if data.block() == block {
                    return true;
                }
                others += usize::from(last != Some(data.block()));
                last = Some(data.block());
            }
        }
        others < self.blocks
    }

    /// Appends zeros.
    fn zeros(&mut self, len: usize) {
        let end = self.copied.len();
        self.copied.resize(end + len, 0);
        self.copied_to(end, end, len);
    }

    /// Appends bytes of a block, and returns the block. `None` if this must wait and `wait` forbids
    /// that.
    fn push(
        &mut self,
        data: BlockData,
        offset: u64,
        len: usize,
        wait: bool,
    ) -> Result<Option<BlockData>> {
        let cache = &self.inner.cache;
        if data.is_plain() || len < PIN_FROM || !self.may_pin(data.block()) {
            let end = self.copied.len();
            let Some(at) = cache.append(&data, offset, len, wait, self.copied)? else {
                return Ok(None);
            };
            self.copied_to(end, at, len);
            return Ok(Some(data));
        }
        let at = usize::try_from(offset).ok();
        let at = at.filter(|at| {
            data.bytes()
                .get(*at..)
                .is_some_and(|rest| rest.len() >= len)
        });
        let at = at.ok_or_else(|| cache.missing(&data))?;
        data.served(len);
        let again = data.clone();
        self.parts.push(PinnedPart::Pinned { data, at, len });
        self.len += len;
        Ok(Some(again))
    }

    /// Takes the last `len` copied bytes, which begin at `at`. The bytes between `end` and `at` are not
    /// needed.
    fn copied_to(&mut self, end: usize, mut at: usize, len: usize) {
        // A separate part is an entry in a list, as above; the last entry is for copied bytes.
        if at > end && (len < PIN_FROM || self.parts.len() + 1 >= MAX_PARTS) {
            self.copied.copy_within(at.., end);
            self.copied.truncate(end + len);
            at = end;
        }
        match self.parts.last_mut() {
            Some(PinnedPart::Copied {
                at: start,
                len: before,
            }) if *start + *before == at => *before += len,
            _ => self.parts.push(PinnedPart::Copied { at, len }),
        }
        self.len += len;
    }

    /// Appends all spans. Returns false as soon as `get` has no block, or an operation must wait and
    /// `wait` forbids that.
    fn collect(
        &mut self,
        first: Option<Span>,
        spans: &mut Spans<'_>,
        wait: bool,
        mut get: impl FnMut(BlockNo, u64, u64) -> Result<Option<BlockData>>,
    ) -> Result<bool> {
        let mut last: Option<BlockData> = None;
        let mut next = match first {
            Some(span) => Some(span),
            None => spans.next()?,
        };
        while let Some(span) = next {
            match span {
                Span::Zeros { len } => self.zeros(len),
                Span::Data { block, offset, len } => {
                    let end = offset + len as u64;
                    // Before another block is decoded, only pinned blocks are held.
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
                    last = self.push(data, offset, len, wait)?;
                    if last.is_none() {
                        return Ok(false);
                    }
                }
            }
            next = spans.next()?;
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
    /// As [`Image::read_at`], for `len` bytes. Large spans of few blocks are not copied out of the
    /// cache. `scratch` takes the rest; its previous contents are lost.
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
        self.note_read(inode, offset, len);
        let mut read = PinnedRead::new(inner, scratch, DECODED_BLOCKS);
        let context = read_context(inode, offset, len);
        let _timer = inner.timers.read.start_with(&context);
        let mut spans = Spans::new(&inner.view, inode, offset, len)?;
        let Some(first) = spans.next()? else {
            return Ok(read);
        };
        if first.len() < len && spans.has_more() && inner.cache.has_room_ahead() {
            self.decode_within(inode, offset, len)?;
        }
        let timer = inner.timers.inode_read.start_with(&context);
        let get = |block, start, end| inner.cache.get(block, start, end).map(Some);
        let result = read.collect(Some(first), &mut spans, true, get);
        drop(timer);
        result?;
        self.decode_behind(inode, offset, len);
        Ok(read)
    }

    /// As [`Image::read_pinned`] if that needs neither decoding nor waiting, otherwise none.
    /// Uncompressed blocks are read from the source, if the source can tell that this does not wait.
    ///
    /// # Errors
    /// As [`Image::read_at`], for wrong inodes and metadata, and for uncompressed blocks that have
    /// changed.
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
        let mut spans = Spans::new(&inner.view, inode, offset, len)?;
        let get = |block, _, end| Ok(inner.cache.get_cached(block, end));
        let complete = read.collect(None, &mut spans, false, get)?;
        drop(timer);
        if !complete {
            return Ok(None);
        }
        self.note_read(inode, offset, len);
        self.decode_behind(inode, offset, len);
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
