//! Reads file contents into the memory of the caller.

use std::cell::RefCell;

use redwarfs_format::{BlockNo, InodeNo, Result};

use crate::ahead;
use crate::cache::BlockData;
use crate::image::Image;
use crate::spans::{Span, Spans};

thread_local! {
    /// Memory for leaves of uncompressed blocks, at most 768 KiB. New memory for each read would have to be filled with zeros.
    static SCRATCH: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
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
    /// Finding the offset takes a few microseconds for any number of spans. The first read in a file of
    /// more than 256 spans also walks over all chunks of the image once.
    ///
    /// # Errors
    /// [`IsADirectory`](std::io::ErrorKind::IsADirectory) or
    /// [`InvalidInput`](std::io::ErrorKind::InvalidInput) as [`Error::Io`](redwarfs_format::Error::Io)
    /// for other inodes. If a needed block cannot be read, verified or decoded, the error names its
    /// section. Other reads are not affected, and the next read tries again. The contents of `buf` are
    /// unspecified after an error.
    pub fn read_at(&self, inode: InodeNo, offset: u64, buf: &mut [u8]) -> Result<usize> {
        let inner = &*self.0;
        let context = read_context(inode, offset, buf.len());
        let _timer = inner.timers.read.start_with(&context);
        if buf.is_empty() {
            Spans::new(&inner.view, inode, offset, 0)?;
            return Ok(0);
        }
        self.note_read(inode, offset, buf.len());
        let mut spans = Spans::new(&inner.view, inode, offset, buf.len())?;
        let Some(first) = spans.next()? else {
            return Ok(0);
        };
        if first.len() < buf.len() && spans.has_more() && inner.cache.has_room_ahead() {
            self.decode_within(inode, offset, buf.len())?;
        }
        let timer = inner.timers.inode_read.start_with(&context);
        // A thread that ends may have none.
        let mut scratch = SCRATCH.try_with(RefCell::take).unwrap_or_default();
        let result = self.fill(first, spans, buf, &mut scratch);
        let _ = SCRATCH.try_with(|kept| kept.replace(scratch));
        drop(timer);
        inner.cache.trim();
        if result.is_ok() {
            self.decode_behind(inode, offset, buf.len());
        }
        result
    }

    /// Announces the reads that follow while the returned guard exists. The plan has the blocks in the
    /// order of their first use, each with the number of bytes from its start that are needed. A block
    /// can be read any number of times. They are decoded ahead by other threads in that order and so
    /// far, and nothing else is. Other reads still work. Afterwards it is guessed again what will be
    /// read.
    ///
    /// An image has one plan at a time, the last one. Takes up to 64 bytes for each block.
    pub fn plan_reads(&self, needs: impl IntoIterator<Item = (BlockNo, u64)>) -> PlannedReads<'_> {
        self.0.cache.plan(needs);
        PlannedReads(self)
    }

    /// Lets other threads decode the blocks of a read but the first one.
    pub(crate) fn decode_within(&self, inode: InodeNo, offset: u64, len: usize) -> Result<()> {
        let inner = &*self.0;
        if inner.payloads.is_remote() {
            // All at once, so that neighbours are one request.
            let blocks = ahead::blocks_within(&inner.view, inode, offset, len)?;
            let blocks: Vec<BlockNo> = blocks.iter().map(|need| need.block).collect();
            self.announce_missing(&blocks);
        }
        let submit = &mut |need| inner.cache.submit(need);
        ahead::within_read(&inner.view, inode, offset, len, submit)
    }

    /// Lets other threads decode what readers may ask for after a read.
    pub(crate) fn decode_behind(&self, inode: InodeNo, offset: u64, len: usize) {
        let inner = &*self.0;
        if inner.cache.is_planned() || !inner.cache.has_room_ahead() {
            return;
        }
        let submit = &mut |need| inner.cache.submit(need);
        let announce = |blocks: &[BlockNo]| {
            let missing = self.announce_missing(blocks);
            inner.cache.announced_ahead(&missing);
            let is_refused = |block: &BlockNo| !inner.payloads.is_at_hand(*block);
            missing.into_iter().find(is_refused)
        };
        let line = inner.payloads.is_remote().then(|| ahead::ToServer {
            measured: inner.payloads.source().line(),
            announce: &announce,
        });
        let read = (inode, offset, len);
        inner.ahead.after_read(&inner.view, read, line, submit);
    }

    /// Lets a source on a server fetch blocks of which the cache has nothing: the others were fetched before.
    fn announce_missing(&self, blocks: &[BlockNo]) -> Vec<BlockNo> {
        let inner = &*self.0;
        let blocks = blocks.iter().copied();
        let knows = |block| inner.cache.knows(block);
        let missing: Vec<_> = blocks.filter(|block| !knows(*block)).collect();
        inner
            .payloads
            .announce_missing(missing.iter().copied(), knows);
        missing
    }

    fn fill(
        &self,
        first: Span,
        mut spans: Spans<'_>,
        buf: &mut [u8],
        scratch: &mut Vec<u8>,
    ) -> Result<usize> {
        let cache = &self.0.cache;
        let mut done = 0;
        let mut span = first;
        let mut last: Option<BlockData> = None;
        loop {
            // Spans of one range never exceed it together.
            let (_, rest) = buf.split_at_mut(done);
            let (out, _) = rest.split_at_mut(span.len());
            match span {
                Span::Zeros { .. } => out.fill(0),
                Span::Data { block, offset, len } => {
                    let end = offset + len as u64;
                    let data = match last.take() {
                        Some(data) if data.block() == block && data.has(end) => data,
                        _ => cache.get(block, offset, end)?,
                    };
                    cache.copy(&data, offset, out, scratch)?;
                    last = Some(data);
                }
            }
            done += span.len();
            match spans.next()? {
                Some(next) => span = next,
                None => return Ok(done),
            }
        }
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
