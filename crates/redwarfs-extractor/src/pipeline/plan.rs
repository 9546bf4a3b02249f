//! The pieces of files in each block.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use crossbeam_channel::Sender;
use redwarfs_format::BlockNo;
use redwarfs_format::metadata::Extent;

use super::{Decoded, Run, WriteJob};
use crate::error::Result;

/// Largest number of pieces that are planned at a time; each takes 16 bytes.
pub(super) const PIECES_PER_WINDOW: u64 = 4 << 20;

/// Pieces per job of a block whose pieces are not planned, but searched.
const PIECES_PER_SEARCHED_JOB: usize = 64 << 10;

/// One extent of one content, sorted by its block.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct PlannedExtent {
    pub(super) content: u32,
    /// Number of the extent in the content.
    pub(super) extent: u32,
    /// Position in the file.
    pub(super) offset: u64,
}

/// The source of a piece.
#[derive(Debug, Clone, Copy)]
pub(super) struct ExtentSource {
    pub(super) block: BlockNo,
    /// Its end, in bytes from the start of the block.
    pub(super) end: u64,
}

/// The pieces of some consecutive blocks.
#[derive(Debug)]
pub(super) struct Window {
    pub(super) pieces: Vec<PlannedExtent>,
}

/// The needed part of one block.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Need {
    /// Number of pieces.
    pub(super) pieces: u64,
    /// End of the last piece, in bytes from the start of the block.
    pub(super) end: u64,
}

/// Pieces of one block that one writer handles.
#[derive(Debug)]
pub(super) enum Pieces {
    Planned(Arc<Window>, Range<usize>),
    Searched(Vec<PlannedExtent>),
}

impl Pieces {
    pub(super) fn as_slice(&self) -> &[PlannedExtent] {
        match self {
            Self::Planned(window, range) => window.pieces.get(range.clone()).unwrap_or_default(),
            Self::Searched(pieces) => pieces,
        }
    }
}

impl Run<'_> {
    /// Counts the pieces per block and per content, determines their ends, and announces the total
    /// size.
    pub(super) fn count_pieces(&mut self) -> Result<Vec<Need>> {
        let mut needs = vec![Need::default(); self.image.container().block_count() as usize];
        let mut total = 0_u64;
        for content in 0..self.tree.content_count() {
            let mut number = 0_u32;
            let result = self.each_piece(content, |place, _| {
                let need = needs
                    .get_mut(place.block.0 as usize)
                    .ok_or_else(|| no_such_block(place.block))?;
                need.pieces += 1;
                need.end = need.end.max(place.end);
                number += 1;
                Ok(())
            });
            if let Err(e) = result {
                // Undo the counts from before the error. The ends stay, because decoding a block
                // further than necessary does no harm.
                let mut left = number;
                let _ = self.each_piece(content, |place, _| {
                    if left == 0 {
                        return Err(no_such_block(place.block));
                    }
                    left -= 1;
                    if let Some(need) = needs.get_mut(place.block.0 as usize) {
                        need.pieces -= 1;
                    }
                    Ok(())
                });
                number = 0;
                self.content_error(content, e)?;
            }
            self.remaining.push(AtomicU32::new(number));
            for file in self.tree.files_of(content) {
                if let Some(f) = self.tree.file(file) {
                    total = total.saturating_add(self.tree.stat(f)?.size);
                }
            }
        }
        self.progress.total(total);
        Ok(needs)
    }

    /// Calls `visit` for each data extent of a content.
    pub(super) fn each_piece(
        &self,
        content: u32,
        mut visit: impl FnMut(ExtentSource, PlannedExtent) -> redwarfs_format::Result<()>,
    ) -> redwarfs_format::Result<()> {
        let Some(ino) = self.tree.inode_of(content) else {
            return Ok(());
        };
        let mut offset = 0_u64;
        for (extent, item) in self.image.metadata().extents(ino)?.enumerate() {
            let size = match item? {
                Extent::Data {
                    block,
                    offset: start,
                    size,
                } => {
                    let extent = u32::try_from(extent).map_err(|_| {
                        redwarfs_format::Error::corrupt("more than 2^32 extents in a file")
                    })?;
                    visit(
                        ExtentSource {
                            block,
                            end: u64::from(start) + u64::from(size),
                        },
                        PlannedExtent {
                            content,
                            extent,
                            offset,
                        },
                    )?;
                    u64::from(size)
                }
                Extent::Hole { size } => size,
            };
            offset = offset
                .checked_add(size)
                .ok_or_else(|| redwarfs_format::Error::corrupt("file size overflows"))?;
        }
        Ok(())
    }

    /// Sorts the pieces of a range of blocks by block, in the order of contents within a block.
    pub(super) fn plan(&self, needs: &[Need], blocks: Range<usize>) -> Result<Arc<Window>> {
        let mut cursors = Vec::with_capacity(blocks.len());
        let mut sum = 0_usize;
        for need in needs.get(blocks.clone()).unwrap_or_default() {
            cursors.push(sum);
            sum = sum.saturating_add(usize::try_from(need.pieces).unwrap_or(usize::MAX));
        }
        let mut pieces = vec![PlannedExtent::default(); sum];
        for content in 0..self.tree.content_count() {
            if self.remaining_of(content).load(Ordering::Relaxed) == 0 {
                continue;
            }
            self.each_piece(content, |place, piece| {
                let cursor = (place.block.0 as usize)
                    .checked_sub(blocks.start)
                    .and_then(|i| cursors.get_mut(i));
                if let Some(cursor) = cursor {
                    if let Some(slot) = pieces.get_mut(*cursor) {
                        *slot = piece;
                    }
                    *cursor += 1;
                }
                Ok(())
            })?;
        }
        // Within a block, pieces are sorted by directory, so that few directories are in use at a time.
        // Each writer gets a run of pieces, so writers do not wait for each other in the same
        // directory.
        let dir = |piece: &PlannedExtent| {
            let first = self.tree.files_of(piece.content).start;
            self.tree.file(first).map(|file| file.dir)
        };
        let mut start = 0;
        for end in cursors {
            if let Some(block) = pieces.get_mut(start..end) {
                block.sort_unstable_by_key(|piece| (dir(piece), piece.content, piece.extent));
            }
            start = end;
        }
        Ok(Arc::new(Window { pieces }))
    }

    /// For a block with more pieces than can be planned: searches them again, and sends them in
    /// portions.
    pub(super) fn search(
        &self,
        wanted: BlockNo,
        block: &Arc<std::result::Result<Decoded, String>>,
        out: &Sender<WriteJob>,
    ) -> Result<()> {
        let mut batch = Vec::new();
        let send = |batch: &mut Vec<PlannedExtent>| {
            let pieces = Pieces::Searched(std::mem::take(batch));
            // Fails only when there is no writer, for a reason that is reported.
            let _ = out.send(WriteJob {
                block: Arc::clone(block),
                pieces,
            });
        };
        for content in 0..self.tree.content_count() {
            if self.remaining_of(content).load(Ordering::Relaxed) == 0 {
                continue;
            }
            self.each_piece(content, |place, piece| {
                if place.block == wanted {
                    batch.push(piece);
                    if batch.len() >= PIECES_PER_SEARCHED_JOB {
                        send(&mut batch);
                    }
                }
                Ok(())
            })?;
            if self.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
        }
        if !batch.is_empty() {
            send(&mut batch);
        }
        Ok(())
    }
}

fn no_such_block(block: BlockNo) -> redwarfs_format::Error {
    redwarfs_format::Error::corrupt(format!("reference to block {block}, which does not exist"))
}
