//! Cutting the data of an image into blocks of another size.
//!
//! Blocks of the same category and content form a group, in the order of their first blocks. The data
//! of a group is one stream, which is cut anew. Groups follow one another. Data does not move within a
//! group, and there is no new search for duplicates, so reading a file needs as many blocks as before.

use std::collections::{HashMap, VecDeque};

use redwarfs_codec::Content;
use redwarfs_format::BlockNo;
use redwarfs_format::metadata::Extent;
use redwarfs_reader::Image;
use redwarfs_writer::Counters;

use crate::error::{Error, Result};
use crate::memory::block_job;
use crate::plan::{BlockKind, Plan};
use crate::pool::{Pending, Queue, Work, add};

/// Blocks that go into one stream.
struct Group {
    kind: BlockKind,
    codec: usize,
    blocks: Vec<u32>,
}

/// The place of a stream in the new image.
struct Stream {
    /// Number of its first block.
    first: u32,
    /// Size of its blocks, except the last one.
    unit: u64,
    kind: BlockKind,
}

/// The new places of the data of the old blocks.
pub(crate) struct Recut {
    streams: Vec<Stream>,
    /// Stream and position of the start of each old block.
    starts: Vec<(usize, u64)>,
    /// Raw size of each old block.
    pub(crate) old_sizes: Vec<u64>,
    /// Stream of each new block.
    of_block: Vec<usize>,
}

/// A range of a block of the new image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct BlockRange {
    pub(crate) block: u32,
    pub(crate) offset: u32,
    pub(crate) size: u32,
}

/// Size of a unit that must not be split.
pub(crate) fn granularity(content: &Content) -> usize {
    match content {
        Content::Bytes => 1,
        Content::Pcm(format) => format.frame_bytes(),
        Content::Pixels(format) => format.group_bytes(),
    }
}

/// Groups the blocks of `image`.
fn groups(image: &Image, plan: &Plan) -> Result<Vec<Group>> {
    let mut known: HashMap<BlockKind, usize> = HashMap::new();
    let mut groups: Vec<Group> = Vec::new();
    for (number, section) in (0u32..).zip(image.container().blocks()) {
        let block = BlockNo(number);
        let kind = plan.kind(image, block, section)?;
        let at = match known.get(&kind) {
            Some(&at) => at,
            None => {
                let codec = plan.codec_of(&kind, block)?.unwrap_or(0);
                known.insert(kind.clone(), groups.len());
                groups.push(Group {
                    kind,
                    codec,
                    blocks: Vec::new(),
                });
                groups.len() - 1
            }
        };
        if let Some(group) = groups.get_mut(at) {
            group.blocks.push(number);
        }
    }
    Ok(groups)
}

/// Blocks in the order in which they are cut, decoded ahead.
struct Ahead {
    blocks: std::vec::IntoIter<u32>,
    /// Blocks that are decoded or being decoded: at most `most`, including the one in use.
    pending: VecDeque<Pending>,
    most: usize,
}

impl Ahead {
    fn new(groups: &[Group], most: usize) -> Self {
        let blocks: Vec<u32> = groups.iter().flat_map(|g| g.blocks.clone()).collect();
        Self {
            blocks: blocks.into_iter(),
            pending: VecDeque::new(),
            most: most.max(1),
        }
    }

    /// The data of the next block. The previous one must be dropped first.
    fn next(&mut self, queue: &Queue<'_>) -> Result<Vec<u8>> {
        while self.pending.len() < self.most
            && let Some(block) = self.blocks.next()
        {
            self.pending.push_back(queue.decode(BlockNo(block))?);
        }
        match self.pending.pop_front() {
            Some(pending) => pending.wait(),
            None => Ok(Vec::new()),
        }
    }
}

/// Decodes all blocks, `ahead` of them at a time, cuts their data into blocks of `block_size` bytes,
/// and submits these.
pub(crate) fn cut(
    image: &Image,
    plan: &Plan,
    counters: &Counters,
    block_size: u32,
    ahead: usize,
    queue: &mut Queue<'_>,
) -> Result<Recut> {
    let blocks = image.container().block_count() as usize;
    let old_size = image.metadata().block_size() as usize;
    let mut recut = Recut {
        streams: Vec::new(),
        starts: vec![(0, 0); blocks],
        old_sizes: vec![0; blocks],
        of_block: Vec::new(),
    };
    let groups = groups(image, plan)?;
    let mut decoded = Ahead::new(&groups, ahead);
    for group in groups {
        let content = group.kind.content;
        let unit = whole_units(block_size as usize, granularity(&content));
        let first = recut.block_count()?;
        let stream = recut.streams.len();
        let emit = |raw: Vec<u8>, of_block: &mut Vec<usize>, queue: &mut Queue<'_>| {
            add(&counters.blocks_created, 1);
            of_block.push(stream);
            let size = raw.len() as u64;
            let memory = plan.codec(group.codec).memory(raw.len());
            let work = Work::Compress {
                raw,
                codec: group.codec,
                content,
            };
            queue.submit(block_job(0, size, memory), work)
        };
        let mut position = 0u64;
        let mut out: Vec<u8> = Vec::new();
        // There is no more data than this.
        let most = group.blocks.len().saturating_mul(old_size);
        for number in group.blocks {
            let data = decoded.next(queue)?;
            if let (Some(start), Some(size)) = (
                recut.starts.get_mut(number as usize),
                recut.old_sizes.get_mut(number as usize),
            ) {
                *start = (stream, position);
                *size = data.len() as u64;
            }
            position += data.len() as u64;
            let mut rest = data.as_slice();
            while !rest.is_empty() {
                if out.is_empty() {
                    out.try_reserve_exact(unit.min(most))
                        .map_err(|_| Error::limit(format!("no memory for {unit} bytes")))?;
                }
                let (part, more) = rest.split_at(rest.len().min(unit - out.len()));
                out.extend_from_slice(part);
                rest = more;
                if out.len() == unit {
                    emit(std::mem::take(&mut out), &mut recut.of_block, queue)?;
                }
            }
            add(&counters.fragments_written, 1);
        }
        if !out.is_empty() {
            out.shrink_to_fit();
            emit(out, &mut recut.of_block, queue)?;
        }
        recut.streams.push(Stream {
            first,
            unit: unit as u64,
            kind: group.kind,
        });
    }
    Ok(recut)
}

/// The largest number of bytes up to `block_size` that is a multiple of `unit`.
pub(crate) fn whole_units(block_size: usize, unit: usize) -> usize {
    match block_size - block_size % unit.max(1) {
        0 => block_size,
        size => size,
    }
}

impl Recut {
    /// Number of new blocks.
    pub(crate) fn block_count(&self) -> Result<u32> {
        u32::try_from(self.of_block.len())
            .ok()
            .filter(|&count| count < u32::MAX)
            .ok_or_else(|| Error::limit("too many blocks; use a larger block size"))
    }

    /// The contents of each new block.
    pub(crate) fn kinds(&self) -> impl Iterator<Item = Option<&BlockKind>> {
        self.of_block
            .iter()
            .map(|&stream| self.streams.get(stream).map(|stream| &stream.kind))
    }

    /// Calls `sink` with the pieces of the new blocks that hold a piece of an old one.
    pub(crate) fn map(
        &self,
        block: BlockNo,
        offset: u32,
        size: u32,
        sink: &mut dyn FnMut(BlockRange) -> Result<()>,
    ) -> Result<()> {
        let missing = || redwarfs_format::Error::corrupt(format!("block {block} does not exist"));
        let &(stream, start) = self.starts.get(block.index()).ok_or_else(missing)?;
        let stream = self.streams.get(stream).ok_or_else(missing)?;
        // Both are bounded by the data that was decoded, and the check of the metadata.
        let mut position = start + u64::from(offset);
        let mut left = u64::from(size);
        while left > 0 {
            let within = position % stream.unit;
            let part = left.min(stream.unit - within);
            let block = u64::from(stream.first) + position / stream.unit;
            sink(BlockRange {
                block: u32::try_from(block).map_err(|_| missing())?,
                offset: within as u32,
                size: part as u32,
            })?;
            position += part;
            left -= part;
        }
        Ok(())
    }
}

/// Collects pieces, and joins adjacent ones.
#[derive(Default)]
pub(crate) struct Joiner {
    last: Option<BlockRange>,
}

/// An extent of the new image.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NewExtent {
    Data(BlockRange),
    Hole(u64),
}

impl Joiner {
    fn data(
        &mut self,
        piece: BlockRange,
        sink: &mut dyn FnMut(NewExtent) -> Result<()>,
    ) -> Result<()> {
        if let Some(last) = &mut self.last {
            let end = u64::from(last.offset) + u64::from(last.size);
            if last.block == piece.block && end == u64::from(piece.offset) {
                // Stays below the block size.
                last.size += piece.size;
                return Ok(());
            }
            sink(NewExtent::Data(*last))?;
        }
        self.last = Some(piece);
        Ok(())
    }

    pub(crate) fn flush(&mut self, sink: &mut dyn FnMut(NewExtent) -> Result<()>) -> Result<()> {
        match self.last.take() {
            Some(last) => sink(NewExtent::Data(last)),
            None => Ok(()),
        }
    }

    /// Takes an extent of the old image.
    pub(crate) fn extent(
        &mut self,
        extent: Extent,
        recut: Option<&Recut>,
        sink: &mut dyn FnMut(NewExtent) -> Result<()>,
    ) -> Result<()> {
        match (extent, recut) {
            // Programs that read old images accept such pieces, but they must not be written.
            (Extent::Hole { size: 0 } | Extent::Data { size: 0, .. }, _) => Ok(()),
            (Extent::Hole { size }, _) => {
                self.flush(sink)?;
                sink(NewExtent::Hole(size))
            }
            (
                Extent::Data {
                    block,
                    offset,
                    size,
                },
                None,
            ) => sink(NewExtent::Data(BlockRange {
                block: block.0,
                offset,
                size,
            })),
            (
                Extent::Data {
                    block,
                    offset,
                    size,
                },
                Some(recut),
            ) => recut.map(block, offset, size, &mut |piece| self.data(piece, sink)),
        }
    }
}
