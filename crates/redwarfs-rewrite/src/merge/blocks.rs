//! The blocks of all parts: which are equal, what they hold, and where they are in the new image.
//!
//! Blocks of all parts have one numbering, part after part. A block takes 4 bytes, and its kind once.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_codec::{CompressionId, raw_size};
use redwarfs_format::metadata::Extent;
use redwarfs_format::section::{SectionHeader, SectionType};
use redwarfs_format::{BlockNo, Error as FormatError};
use redwarfs_reader::Image;
use redwarfs_writer::BlockCategories;

use super::contents::Contents;
use super::options::Part;
use crate::error::{Error, Result};
use crate::plan::{BlockKind, Plan};
use crate::recut::{granularity, whole_units};

/// Block number of holes.
const HOLE: u32 = u32::MAX;

/// A piece of a content: bytes of a block, by the numbering of all parts, or a hole.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct ContentChunk {
    pub(crate) block: u32,
    /// Of a hole, the lower half of its size.
    pub(crate) offset: u32,
    /// Of a hole, the upper half of its size.
    pub(crate) size: u32,
}

impl ContentChunk {
    pub(crate) fn is_hole(&self) -> bool {
        self.block == HOLE
    }

    /// Bytes of the content.
    pub(crate) fn len(&self) -> u64 {
        match self.is_hole() {
            true => u64::from(self.offset) | (u64::from(self.size) << 32),
            false => u64::from(self.size),
        }
    }

    fn end(&self) -> u64 {
        u64::from(self.offset) + u64::from(self.size)
    }
}

/// What a block holds, without numbers that only one part knows.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct Kind {
    category: Option<Vec<u8>>,
    kind: BlockKind,
}

/// All blocks.
#[derive(Debug)]
pub(crate) struct BlockTable {
    /// Number of the first block of each part, and one for the end.
    starts: Vec<u32>,
    /// Names of all categories, in the order of the parts, each once.
    names: Vec<Vec<u8>>,
    kinds: Vec<Kind>,
    /// Index in `kinds` by block.
    kind_of: Vec<u32>,
    /// The first block with the same bytes, by block.
    same: Vec<u32>,
}

impl BlockTable {
    /// The blocks of `parts`. Those with the same compressed bytes and of the same kind become one.
    /// `plans` belong to the parts.
    pub(crate) fn new(parts: &[Part<'_>], plans: &[Plan], stop: &AtomicBool) -> Result<Self> {
        let mut this = Self {
            starts: Vec::new(),
            names: Vec::new(),
            kinds: Vec::new(),
            kind_of: Vec::new(),
            same: Vec::new(),
        };
        let mut known: HashMap<Kind, u32> = HashMap::new();
        let mut named: HashSet<Vec<u8>> = HashSet::new();
        // Blocks by kind, compression and length.
        let mut alike: HashMap<(u32, CompressionId, u64), Vec<u32>> = HashMap::new();
        for (at, (part, plan)) in parts.iter().zip(plans).enumerate() {
            this.starts.push(this.number()?);
            let view = part.image.metadata();
            let names = view.category_names()?;
            for name in names.iter().flatten() {
                if named.insert(name.clone()) {
                    this.names.push(name.clone());
                }
            }
            for (number, section) in (0u32..).zip(part.image.container().blocks()) {
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::interrupted());
                }
                let of = |error: FormatError| Error::from(error).of_part(at);
                let section = part.image.section_with_header(section).map_err(of)?;
                let kind = plan.kind(part.image, BlockNo(number), &section);
                let mut kind = kind.map_err(|error| error.of_part(at))?;
                let category = match (kind.category.take(), &names) {
                    (Some(category), Some(names)) => {
                        let outside = || FormatError::corrupt("category out of range");
                        Some(names.get(category.index()).ok_or_else(outside)?.clone())
                    }
                    _ => None,
                };
                let kind = Kind { category, kind };
                let next = this.kinds.len() as u32;
                let index = *known.entry(kind.clone()).or_insert(next);
                if index == next {
                    this.kinds.push(kind);
                }
                let block = this.number()?;
                this.kind_of.push(index);
                this.same.push(block);
                let compression = section.compression.unwrap_or(CompressionId::NONE);
                let key = (index, compression, section.length);
                alike.entry(key).or_default().push(block);
            }
        }
        this.starts.push(this.number()?);
        let mut alike: Vec<Vec<u32>> = alike.into_values().filter(|all| all.len() > 1).collect();
        alike.sort_unstable();
        for blocks in alike {
            let mut digests: HashMap<[u8; 32], u32> = HashMap::new();
            for block in blocks {
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::interrupted());
                }
                let (image, number) = this.home(parts, block)?;
                let stored = image.stored_block(number).map_err(Error::from);
                let part = this.part_of(block) as usize;
                let (section, payload) = stored.map_err(|error| error.of_part(part))?;
                let id = section.compression.unwrap_or(CompressionId::NONE);
                // The number of the section is part of its checksum.
                let sealed = SectionHeader::seal(0, SectionType::BLOCK, id, &payload);
                let first = *digests.entry(sealed.sha).or_insert(block);
                if let Some(same) = this.same.get_mut(block as usize) {
                    *same = first;
                }
            }
        }
        Ok(this)
    }

    pub(crate) fn len(&self) -> usize {
        self.kind_of.len()
    }

    fn number(&self) -> Result<u32> {
        u32::try_from(self.kind_of.len())
            .ok()
            .filter(|&number| number < HOLE)
            .ok_or_else(|| Error::limit("too many blocks"))
    }

    /// The part of a block.
    pub(crate) fn part_of(&self, block: u32) -> u32 {
        let after = self.starts.partition_point(|&start| start <= block);
        // Parts without blocks start where the next one does.
        after.saturating_sub(1) as u32
    }

    /// The image of a block, and its number there.
    pub(crate) fn home<'a>(&self, parts: &[Part<'a>], block: u32) -> Result<(&'a Image, BlockNo)> {
        let part = self.part_of(block) as usize;
        let start = self.starts.get(part).copied().unwrap_or(0);
        let missing = || FormatError::corrupt("a block that does not exist");
        let part = parts.get(part).ok_or_else(missing)?;
        Ok((part.image, BlockNo(block - start)))
    }

    /// The pieces of a content of a part, as long as possible.
    pub(crate) fn pieces(
        &self,
        part: u32,
        extents: impl IntoIterator<Item = Result<Extent, FormatError>>,
    ) -> Result<Box<[ContentChunk]>> {
        let bounds = self.starts.get(part as usize..).unwrap_or_default();
        let &[start, end, ..] = bounds else {
            return Ok(Box::default());
        };
        let mut pieces: Vec<ContentChunk> = Vec::new();
        let mut hole = 0u64;
        let put_hole = |pieces: &mut Vec<ContentChunk>, hole: &mut u64| {
            if *hole > 0 {
                pieces.push(ContentChunk {
                    block: HOLE,
                    offset: *hole as u32,
                    size: (*hole >> 32) as u32,
                });
            }
            *hole = 0;
        };
        for extent in extents {
            match extent? {
                Extent::Hole { size } => hole = hole.saturating_add(size),
                // Programs that read old images accept such pieces, but they must not be written.
                Extent::Data { size: 0, .. } => {}
                Extent::Data {
                    block,
                    offset,
                    size,
                } => {
                    put_hole(&mut pieces, &mut hole);
                    let number = start.checked_add(block.0).filter(|&number| number < end);
                    let missing = || FormatError::corrupt(format!("block {block} does not exist"));
                    let number = number.ok_or_else(missing)?;
                    let block = self.same.get(number as usize).copied().unwrap_or(number);
                    let piece = ContentChunk {
                        block,
                        offset,
                        size,
                    };
                    match pieces.last_mut() {
                        Some(last)
                            if last.block == block
                                && last.end() == u64::from(offset)
                                && last.size.checked_add(size).is_some() =>
                        {
                            last.size += size;
                        }
                        _ => pieces.push(piece),
                    }
                }
            }
        }
        put_hole(&mut pieces, &mut hole);
        Ok(pieces.into())
    }

    fn kind(&self, block: u32) -> Result<&Kind> {
        let index = self.kind_of.get(block as usize).copied();
        let kind = index.and_then(|index| self.kinds.get(index as usize));
        Ok(kind.ok_or_else(|| FormatError::corrupt("a block that does not exist"))?)
    }

    /// What a block of a part holds, with its category in that part.
    pub(crate) fn kind_in_part(&self, parts: &[Part<'_>], block: u32) -> Result<BlockKind> {
        let (image, number) = self.home(parts, block)?;
        Ok(BlockKind {
            category: image.metadata().block_category(number)?,
            ..self.kind(block)?.kind.clone()
        })
    }
}

/// Data that is in use, of a block whose data moves.
#[derive(Debug)]
pub(crate) struct Moved {
    pub(crate) block: u32,
    /// Ranges of the block in ascending order.
    pub(crate) ranges: Vec<(u32, u32)>,
    /// Position of the first range in the stream.
    position: u64,
}

/// Data of blocks of one kind that moves to new blocks.
#[derive(Debug)]
pub(crate) struct Stream {
    pub(crate) blocks: Vec<Moved>,
    /// Bytes of each new block, except the last one.
    pub(crate) unit: u64,
    pub(crate) size: u64,
    /// The first new block.
    first: u32,
}

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum BlockTarget {
    /// Nothing uses it.
    Nowhere,
    /// It is copied, as the block with this number.
    Block(u32),
    /// Its data moves: the stream, and the place there.
    Stream(u32, u32),
}

/// The blocks of the new image.
#[derive(Debug)]
pub(crate) struct Layout {
    places: Vec<BlockTarget>,
    /// Blocks that are copied, in order.
    pub(crate) copied: Vec<u32>,
    /// Follow the copied blocks.
    pub(crate) streams: Vec<Stream>,
    /// Number of blocks.
    pub(crate) count: u32,
}

/// Ranges of each block that are in use, ascending and apart.
fn live(blocks: &BlockTable, contents: &Contents) -> Vec<Vec<(u32, u32)>> {
    let mut live: Vec<Vec<(u32, u32)>> = vec![Vec::new(); blocks.len()];
    let values = contents.values.iter().map(|(_, pieces)| pieces);
    for piece in contents.pieces.iter().chain(values).flatten() {
        if let Some(ranges) = live.get_mut(piece.block as usize) {
            ranges.push((piece.offset, piece.offset.saturating_add(piece.size)));
        }
    }
    for ranges in &mut live {
        ranges.sort_unstable();
        ranges.dedup_by(|next, last| {
            let joins = next.0 <= last.1;
            if joins {
                last.1 = last.1.max(next.1);
            }
            joins
        });
        ranges.shrink_to_fit();
    }
    live
}

impl Layout {
    /// Blocks that nothing uses are left out. Blocks of which less than `repack` per cent are in use
    /// move into blocks of `block_size` bytes.
    pub(crate) fn new(
        parts: &[Part<'_>],
        blocks: &BlockTable,
        contents: &Contents,
        block_size: u32,
        repack: u8,
        stop: &AtomicBool,
    ) -> Result<Self> {
        let mut this = Self {
            places: vec![BlockTarget::Nowhere; blocks.len()],
            copied: Vec::new(),
            streams: Vec::new(),
            count: 0,
        };
        let mut streams: BTreeMap<u32, u32> = BTreeMap::new();
        for (block, mut ranges) in (0u32..).zip(live(blocks, contents)) {
            if ranges.is_empty() {
                continue;
            }
            if stop.load(Ordering::Relaxed) {
                return Err(Error::interrupted());
            }
            let of = |error: Error| error.of_part(blocks.part_of(block) as usize);
            let moves =
                repack > 0 && mostly_dead(parts, blocks, block, &mut ranges, repack).map_err(of)?;
            let place = if moves {
                let kind = blocks.kind_of.get(block as usize).copied().unwrap_or(0);
                let next = this.streams.len() as u32;
                let number = *streams.entry(kind).or_insert(next);
                if number == next {
                    let unit = granularity(&blocks.kind(block)?.kind.content);
                    this.streams.push(Stream {
                        blocks: Vec::new(),
                        unit: whole_units(block_size as usize, unit) as u64,
                        size: 0,
                        first: 0,
                    });
                }
                let Some(stream) = this.streams.get_mut(number as usize) else {
                    continue;
                };
                let position = stream.size;
                stream.size += ranges.iter().map(|(a, b)| u64::from(b - a)).sum::<u64>();
                stream.blocks.push(Moved {
                    block,
                    ranges,
                    position,
                });
                BlockTarget::Stream(number, stream.blocks.len() as u32 - 1)
            } else {
                this.copied.push(block);
                BlockTarget::Block(this.copied.len() as u32 - 1)
            };
            if let Some(slot) = this.places.get_mut(block as usize) {
                *slot = place;
            }
        }
        let mut count = this.copied.len() as u64;
        for stream in &mut this.streams {
            stream.first = u32::try_from(count).unwrap_or(HOLE);
            count += stream.size.div_ceil(stream.unit.max(1));
        }
        this.count = u32::try_from(count)
            .ok()
            .filter(|&count| count < HOLE)
            .ok_or_else(|| Error::limit("too many blocks; use a larger block size"))?;
        Ok(this)
    }

    /// The extents of the new image that hold these pieces.
    pub(crate) fn extents(&self, pieces: &[ContentChunk]) -> Result<Vec<Extent>> {
        let missing = || FormatError::corrupt("a piece of a file that is in no block");
        let mut extents: Vec<Extent> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            if piece.is_hole() {
                extents.push(Extent::Hole { size: piece.len() });
                continue;
            }
            match self.places.get(piece.block as usize).copied() {
                None | Some(BlockTarget::Nowhere) => return Err(missing().into()),
                Some(BlockTarget::Block(number)) => extents.push(Extent::Data {
                    block: BlockNo(number),
                    offset: piece.offset,
                    size: piece.size,
                }),
                Some(BlockTarget::Stream(stream, at)) => {
                    let stream = self.streams.get(stream as usize).ok_or_else(missing)?;
                    let moved = stream.blocks.get(at as usize).ok_or_else(missing)?;
                    let mut position = moved.position_of(piece).ok_or_else(missing)?;
                    let mut left = u64::from(piece.size);
                    while left > 0 {
                        let within = position % stream.unit;
                        let size = left.min(stream.unit - within);
                        let block = u64::from(stream.first) + position / stream.unit;
                        extents.push(Extent::Data {
                            block: BlockNo(block as u32),
                            offset: within as u32,
                            size: size as u32,
                        });
                        position += size;
                        left -= size;
                    }
                }
            }
        }
        Ok(extents)
    }

    /// Categories of the new blocks, if a part records them. Blocks of parts that do not have the default
    /// one.
    pub(crate) fn categories(&self, blocks: &BlockTable) -> Result<Option<BlockCategories>> {
        if blocks.names.is_empty() {
            return Ok(None);
        }
        let mut categories = BlockCategories {
            names: blocks.names.clone(),
            ..BlockCategories::default()
        };
        let known = blocks.names.iter().cloned();
        let mut names: HashMap<Vec<u8>, u32> = known.zip(0..).collect();
        let mut descriptions: HashMap<Vec<u8>, u32> = HashMap::new();
        let mut add = |block: u32, count: u64| -> Result<()> {
            let kind = blocks.kind(block)?;
            let name = kind.category.as_deref().unwrap_or(b"<default>");
            let next = categories.names.len() as u32;
            let name_index = *names.entry(name.to_vec()).or_insert(next);
            if name_index == next {
                categories.names.push(name.to_vec());
            }
            for _ in 0..count {
                let number = categories.of_block.len() as u32;
                categories.of_block.push(name_index);
                if let Some(text) = &kind.kind.description {
                    let next = categories.descriptions.len() as u32;
                    let index = *descriptions.entry(text.clone()).or_insert(next);
                    if index == next {
                        categories.descriptions.push(text.clone());
                    }
                    categories.description_of.insert(number, index);
                }
            }
            Ok(())
        };
        for &block in &self.copied {
            add(block, 1)?;
        }
        for stream in &self.streams {
            if let Some(first) = stream.blocks.first() {
                add(first.block, stream.size.div_ceil(stream.unit.max(1)))?;
            }
        }
        Ok(Some(categories))
    }
}

impl Moved {
    /// Position of a piece in the stream.
    fn position_of(&self, piece: &ContentChunk) -> Option<u64> {
        let mut position = self.position;
        for &(start, end) in &self.ranges {
            if (start..end).contains(&piece.offset) {
                return Some(position + u64::from(piece.offset - start));
            }
            position += u64::from(end - start);
        }
        None
    }
}

/// Whether less than `percent` of a block is in use. Then the ranges become whole samples or pixels.
fn mostly_dead(
    parts: &[Part<'_>],
    blocks: &BlockTable,
    block: u32,
    ranges: &mut Vec<(u32, u32)>,
    percent: u8,
) -> Result<bool> {
    let (image, number) = blocks.home(parts, block)?;
    let used: u64 = ranges.iter().map(|(a, b)| u64::from(b - a)).sum();
    // No block is larger.
    let most = u64::from(image.metadata().block_size());
    if used * 100 >= most * u64::from(percent) {
        return Ok(false);
    }
    let (section, payload) = image.stored_block(number)?;
    let size = match section.compression {
        None | Some(CompressionId::NONE) => payload.len() as u64,
        Some(id) => raw_size(id, &payload)?,
    };
    if ranges.last().is_some_and(|&(_, end)| u64::from(end) > size) {
        return Err(FormatError::corrupt("a piece of a file reaches beyond its block").into());
    }
    if used * 100 >= size * u64::from(percent) {
        return Ok(false);
    }
    let unit = granularity(&blocks.kind(block)?.kind.content) as u64;
    if unit > 1 {
        for (start, end) in ranges.iter_mut() {
            let (first, last) = (u64::from(*start) / unit, u64::from(*end).div_ceil(unit));
            *start = (first * unit) as u32;
            *end = (last * unit).min(size) as u32;
        }
        ranges.dedup_by(|next, last| {
            let joins = next.0 <= last.1;
            if joins {
                last.1 = last.1.max(next.1);
            }
            joins
        });
    }
    Ok(true)
}
