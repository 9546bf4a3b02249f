//! Where the data of the contents is in the blocks.

use redwarfs_format::section::Anchor;
use std::collections::HashMap;

use crate::category::StoredCategories;

/// Block number of hole chunks until the real one is known.
pub(crate) const HOLE: u32 = u32::MAX;

/// Marks the numbers of blocks of the image that the build continues, until streams are joined.
const BASE: u32 = 1 << 31;
/// Numbers of blocks are below this.
pub(crate) const MOST_BLOCKS: u32 = BASE;

/// A part of a content: `size` bytes at `offset` of `block`. With `block` = [`HOLE`] it is a
/// hole whose length has its low half in `offset` and its high half in `size`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Chunk {
    pub(crate) block: u32,
    pub(crate) offset: u32,
    pub(crate) size: u32,
}

impl Chunk {
    pub(crate) fn hole(size: u64) -> Self {
        Self {
            block: HOLE,
            offset: size as u32,
            size: (size >> 32) as u32,
        }
    }

    /// Data of the image that the build continues.
    pub(crate) fn base(block: u32, offset: u32, size: u32) -> Self {
        Self {
            block: block | BASE,
            offset,
            size,
        }
    }

    /// Counts the block from the start of the image instead of the stream, of which `before` is the first
    /// block.
    pub(crate) fn settle(&mut self, before: u32) {
        match self.block {
            HOLE => {}
            block if block & BASE != 0 => self.block = block & !BASE,
            _ => self.block += before,
        }
    }

    /// Length of a hole.
    pub(crate) fn hole_size(&self) -> Option<u64> {
        (self.block == HOLE).then(|| u64::from(self.offset) | (u64::from(self.size) << 32))
    }

    /// Bytes that the chunk represents.
    pub(crate) fn len(&self) -> u64 {
        self.hole_size().unwrap_or(u64::from(self.size))
    }
}

/// Some of the chunks: first and number. There cannot be more than these numbers can count.
pub(crate) type ChunkRange = (u32, u32);

/// Where all contents are.
#[derive(Debug, Default)]
pub(crate) struct Stored {
    pub(crate) chunks: Vec<Chunk>,
    /// Per content, if all its chunks are together.
    pub(crate) ranges: Vec<ChunkRange>,
    /// The others: one range for each of their parts.
    pub(crate) split: HashMap<u32, Vec<ChunkRange>>,
    pub(crate) categories: StoredCategories,
    pub(crate) values: StoredValues,
    /// Of each new block, if an index of them is wanted.
    pub(crate) anchors: Vec<Vec<Anchor>>,
}

/// Where the long values of extended attributes are.
#[derive(Debug, Default)]
pub(crate) struct StoredValues {
    pub(crate) chunks: Vec<Chunk>,
    /// By the number of the value.
    pub(crate) ranges: HashMap<u32, ChunkRange>,
}

impl StoredValues {
    /// The chunks of a value, in order.
    pub(crate) fn chunks_of(&self, value: u32) -> impl Iterator<Item = &Chunk> {
        let (first, count) = self.ranges.get(&value).copied().unwrap_or((0, 0));
        let (first, count) = (first as usize, count as usize);
        self.chunks.get(first..first + count).into_iter().flatten()
    }
}

impl Stored {
    /// The chunks of a content, in order.
    pub(crate) fn chunks_of(&self, content: u32) -> impl Iterator<Item = &Chunk> {
        let whole = self.ranges.get(content as usize).copied();
        let (whole, split) = match self.split.get(&content) {
            Some(split) => (None, split.as_slice()),
            None => (whole, &[][..]),
        };
        whole
            .into_iter()
            .chain(split.iter().copied())
            .flat_map(|(first, count)| {
                let (first, count) = (first as usize, count as usize);
                self.chunks.get(first..first + count).unwrap_or_default()
            })
    }

    /// Number of blocks.
    pub(crate) fn blocks(&self) -> u32 {
        self.categories.block_count()
    }
}
