//! The contents that a merge keeps: which are equal, and which parts of blocks they need.

use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::metadata::{FileType, XattrData};
use redwarfs_format::{EntryIndex, Error as FormatError};
use redwarfs_writer::ValueDigest;
use sha2::{Digest as _, Sha256};

use super::blocks::{BlockTable, ContentChunk};
use super::options::Part;
use super::tree::{Origin, Tree};
use crate::error::{Error, Result};
use crate::stored::LONGEST_VALUE;

/// Not a content.
const NONE: u32 = u32::MAX;
/// Most decoded blocks that are kept while contents are compared, in bytes.
const KEPT: u64 = 256 << 20;

/// The distinct contents of the new image.
#[derive(Debug, Default)]
pub(crate) struct Contents {
    /// Content by part and by number in that part.
    of: Vec<Vec<u32>>,
    /// Pieces of each distinct content.
    pub(crate) pieces: Vec<Box<[ContentChunk]>>,
    /// Values of extended attributes that lie in blocks.
    pub(crate) values: Vec<(ValueDigest, Box<[ContentChunk]>)>,
}

/// What a content is, besides its data.
type Shape = (u64, Vec<(u64, u64)>);

impl Contents {
    /// The contents of all files of `tree`. Contents with the same pieces become one.
    pub(crate) fn used(
        parts: &[Part<'_>],
        tree: &Tree,
        blocks: &BlockTable,
        stop: &AtomicBool,
    ) -> Result<Self> {
        let mut this = Self {
            of: parts
                .iter()
                .map(|part| vec![NONE; part.image.metadata().counts().contents as usize])
                .collect(),
            ..Self::default()
        };
        let mut known: HashMap<Box<[ContentChunk]>, u32> = HashMap::new();
        let mut values: BTreeMap<ValueDigest, Box<[ContentChunk]>> = BTreeMap::new();
        let mut read: HashSet<Box<[ContentChunk]>> = HashSet::new();
        let mut add = |node: u32, number: u32, entry: EntryIndex| -> Result<()> {
            let Some(part) = parts.get(number as usize) else {
                return Ok(());
            };
            let view = part.image.metadata();
            let inode = view.entry_inode(entry)?;
            if view.has_xattrs() && !view.is_legacy() {
                for xattr in part.image.xattrs(inode)? {
                    if stop.load(Ordering::Relaxed) {
                        return Err(Error::interrupted());
                    }
                    // A longer one is refused when the metadata is made.
                    if let XattrData::Blocks(extents) = xattr.value()?
                        && xattr.size()? <= LONGEST_VALUE
                    {
                        let pieces = blocks.pieces(number, extents.into_iter().map(Ok))?;
                        if read.insert(pieces.clone()) {
                            let value = ValueDigest::of(&part.image.xattr_value(&xattr)?);
                            values.entry(value).or_insert(pieces);
                        }
                    }
                }
            }
            if tree.kind(node) != FileType::Regular {
                return Ok(());
            }
            let content = view.content_id(inode)?;
            let slot = this.of.get_mut(number as usize);
            let slot = slot.and_then(|of| of.get_mut(content as usize));
            let slot = slot.ok_or_else(|| FormatError::corrupt("content out of range"))?;
            if *slot == NONE {
                let pieces = blocks.pieces(number, view.content_extents(content)?)?;
                let next = this.pieces.len() as u32;
                *slot = *known.entry(pieces.clone()).or_insert(next);
                if *slot == next {
                    this.pieces.push(pieces);
                }
            }
            Ok(())
        };
        tree.each(&mut |node| match tree.origin(node) {
            _ if stop.load(Ordering::Relaxed) => Err(Error::interrupted()),
            Origin::Part(number, entry) => {
                add(node, number, entry).map_err(|error| error.of_part(number as usize))
            }
            Origin::Directory | Origin::Whiteout => Ok(()),
        })?;
        this.values = values.into_iter().collect();
        Ok(this)
    }

    /// The number of a content of a part.
    pub(crate) fn number(&self, part: u32, content: u32) -> Option<u32> {
        let number = self.of.get(part as usize)?.get(content as usize).copied();
        number.filter(|&number| number != NONE)
    }

    /// Finds equal data in different pieces, and keeps it once. It decodes contents of several parts that
    /// have the same size: with `all` all of them, otherwise those by which a whole block can become unused.
    pub(crate) fn compare(
        &mut self,
        parts: &[Part<'_>],
        blocks: &BlockTable,
        all: bool,
        memory: u64,
        stop: &AtomicBool,
    ) -> Result<()> {
        let mut groups: BTreeMap<Shape, Vec<u32>> = BTreeMap::new();
        for (number, pieces) in (0u32..).zip(&self.pieces) {
            let shape = shape(pieces);
            if shape.0 > 0 {
                groups.entry(shape).or_default().push(number);
            }
        }
        // Within an image, equal files have equal pieces already.
        let part_of = |content: u32| {
            let pieces = self.pieces.get(content as usize);
            let first = pieces.and_then(|pieces| pieces.iter().find(|piece| !piece.is_hole()));
            first.map_or(0, |piece| blocks.part_of(piece.block))
        };
        let mut groups: Vec<Vec<u32>> = groups.into_values().collect();
        groups.retain(|group| {
            let first = group.first().map(|&content| part_of(content));
            group.iter().any(|&content| Some(part_of(content)) != first)
        });
        if !all {
            self.keep_promising(&mut groups, blocks);
        }
        let mut wanted: Vec<(u32, u32)> = Vec::new();
        for (group, contents) in (0u32..).zip(&groups) {
            wanted.extend(contents.iter().map(|&content| (content, group)));
        }
        let place = |content: u32| {
            let pieces = self.pieces.get(content as usize);
            let first = pieces.and_then(|pieces| pieces.iter().find(|piece| !piece.is_hole()));
            first.map(|piece| (piece.block, piece.offset))
        };
        wanted.sort_by_cached_key(|&(content, _)| (place(content), content));
        let mut decoded = Decoded {
            blocks: VecDeque::new(),
            most: memory.min(KEPT),
        };
        let mut known: HashMap<(u32, [u8; 32]), u32> = HashMap::new();
        // The content that takes the place of a content.
        let mut instead: HashMap<u32, u32> = HashMap::new();
        for (content, group) in wanted {
            let mut hash = Sha256::new();
            for piece in self.pieces.get(content as usize).into_iter().flatten() {
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::interrupted());
                }
                if !piece.is_hole() {
                    let part = blocks.part_of(piece.block) as usize;
                    decoded
                        .with(parts, blocks, *piece, &mut |bytes| hash.update(bytes))
                        .map_err(|error| error.of_part(part))?;
                }
            }
            // Blocks of earlier parts have smaller numbers, so the first one is the one to keep.
            let first = *known
                .entry((group, hash.finalize().into()))
                .or_insert(content);
            if first != content {
                instead.insert(content, first);
            }
        }
        if !instead.is_empty() {
            self.replace(&instead);
        }
        Ok(())
    }

    /// Leaves the groups that have a content by which a block can become unused: all its other contents
    /// have candidates in earlier parts, too.
    fn keep_promising(&self, groups: &mut Vec<Vec<u32>>, blocks: &BlockTable) {
        let first_part = |content: u32| {
            let pieces = self.pieces.get(content as usize).into_iter().flatten();
            let parts = pieces.filter(|piece| !piece.is_hole());
            parts.map(|piece| blocks.part_of(piece.block)).min()
        };
        let mut droppable = vec![false; self.pieces.len()];
        for group in groups.iter() {
            let earliest = group
                .iter()
                .filter_map(|&content| first_part(content))
                .min();
            for &content in group {
                if let Some(slot) = droppable.get_mut(content as usize) {
                    *slot = first_part(content) > earliest;
                }
            }
        }
        let mut hopeful = vec![true; blocks.len()];
        let mut keep = |pieces: &[ContentChunk]| {
            for piece in pieces.iter().filter(|piece| !piece.is_hole()) {
                if let Some(hopeful) = hopeful.get_mut(piece.block as usize) {
                    *hopeful = false;
                }
            }
        };
        for (pieces, droppable) in self.pieces.iter().zip(&droppable) {
            if !droppable {
                keep(pieces);
            }
        }
        for (_, pieces) in &self.values {
            keep(pieces);
        }
        let promises = |content: &u32| {
            let pieces = self.pieces.get(*content as usize).into_iter().flatten();
            let mut data = pieces.filter(|piece| !piece.is_hole());
            data.any(|piece| hopeful.get(piece.block as usize) == Some(&true))
        };
        groups.retain(|group| group.iter().any(promises));
    }

    /// Drops contents that others replace, and numbers the rest again.
    fn replace(&mut self, instead: &HashMap<u32, u32>) {
        let mut numbers = vec![NONE; self.pieces.len()];
        let old = std::mem::take(&mut self.pieces);
        for ((number, slot), pieces) in (0u32..).zip(&mut numbers).zip(old) {
            if !instead.contains_key(&number) {
                *slot = self.pieces.len() as u32;
                self.pieces.push(pieces);
            }
        }
        for number in self
            .of
            .iter_mut()
            .flatten()
            .filter(|number| **number != NONE)
        {
            let kept = instead.get(number).unwrap_or(number);
            *number = numbers.get(*kept as usize).copied().unwrap_or(NONE);
        }
    }
}

/// Size of the data, and the holes in it: position and size.
fn shape(pieces: &[ContentChunk]) -> Shape {
    let (mut data, mut at, mut holes) = (0u64, 0u64, Vec::new());
    for piece in pieces {
        if piece.is_hole() {
            holes.push((at, piece.len()));
        } else {
            data = data.saturating_add(piece.len());
        }
        at = at.saturating_add(piece.len());
    }
    (data, holes)
}

/// The blocks that were decoded last.
struct Decoded {
    blocks: VecDeque<(u32, Vec<u8>)>,
    /// Most bytes, unless there is only one block.
    most: u64,
}

impl Decoded {
    fn with(
        &mut self,
        parts: &[Part<'_>],
        blocks: &BlockTable,
        piece: ContentChunk,
        take: &mut dyn FnMut(&[u8]),
    ) -> Result<()> {
        let at = self
            .blocks
            .iter()
            .position(|(block, _)| *block == piece.block);
        let block = match at.and_then(|at| self.blocks.remove(at)) {
            Some(block) => block,
            None => {
                let (image, number) = blocks.home(parts, piece.block)?;
                // Room comes first: for the stored block, too.
                let size = 2 * u64::from(image.metadata().block_size());
                let held = |all: &VecDeque<(u32, Vec<u8>)>| -> u64 {
                    all.iter().map(|(_, data)| data.len() as u64).sum()
                };
                while !self.blocks.is_empty() && held(&self.blocks) + size > self.most {
                    self.blocks.pop_front();
                }
                (piece.block, image.decode_block(number)?)
            }
        };
        take(slice(&block.1, piece)?);
        self.blocks.push_back(block);
        Ok(())
    }
}

/// The bytes of a piece in its block.
pub(crate) fn slice(block: &[u8], piece: ContentChunk) -> Result<&[u8]> {
    let start = piece.offset as usize;
    let range = start..start.saturating_add(piece.size as usize);
    let outside = || FormatError::corrupt("a piece of a file reaches beyond its block");
    Ok(block.get(range).ok_or_else(outside)?)
}
