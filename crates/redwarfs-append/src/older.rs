//! Contents that older generations of an image have, as a build sees them that continues it.
//!
//! The newest older generations are opened, as far as they have [`MOST_INODES`] together. So a file that was removed or
//! changed is found again when it comes back, whatever the size of the image. An archive is opened once for all its snapshots
//! that are within the bound. If it has more than [`MOST_INODES_OF_ARCHIVES`], deleted trees among them, it is not opened.
//!
//! Memory: the metadata of the open generations, and 40 bytes for each content that no newer generation has. While an archive
//! is searched, 32 bytes more for each content of its trees.

use std::collections::{HashMap, HashSet};
use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::sync::Arc;

use redwarfs_format::metadata::{Extent, FileType};
use redwarfs_format::section::{Snapshot, SnapshotTable};
use redwarfs_format::{BlockNo, InodeNo};
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_writer::BaseContent;

use crate::error::Result;

/// Inodes of all older generations that are opened.
const MOST_INODES: u64 = 1 << 20;
/// Inodes of all archives that are opened, whatever is used of them: 8 to 16 bytes each.
const MOST_INODES_OF_ARCHIVES: u64 = 1 << 22;
/// Most older snapshots that are searched.
const MOST: usize = 64;
/// Block cache of each of them (16 MiB), beside blocks in use.
const CACHE: u64 = 16 << 20;

/// A content of an older generation.
#[derive(Debug)]
struct OldContent {
    /// Index in the generations.
    generation: u32,
    content: u32,
    inode: InodeNo,
}

#[derive(Debug)]
struct Generation {
    image: Image,
    /// The directories of an archive that are trees of snapshots within the bounds, the newest one first. Empty if the root is
    /// the tree.
    trees: Vec<String>,
    /// The numbers that its blocks have in the newest generation.
    blocks: Vec<Option<u32>>,
}

/// The older generations of an image.
#[derive(Debug, Default)]
pub(crate) struct Older {
    /// The newest one first.
    generations: Vec<Generation>,
    /// Numbered from `first` on.
    contents: Vec<OldContent>,
    first: u32,
    /// The number of each content, by generation and its number there.
    numbers: HashMap<(u32, u32), BaseContent>,
    /// In how many generations each content is.
    held: HashMap<BaseContent, u32>,
}

impl Older {
    /// Opens the older generations of an image, whose newest one has the contents `newest`.
    pub(crate) fn open(
        image: &Image,
        table: &SnapshotTable,
        newest: impl Iterator<Item = BaseContent>,
    ) -> Result<Self> {
        let mut older = Self::default();
        let openings = Opening::all(table);
        if openings.is_empty() {
            return Ok(older);
        }
        let container = image.container();
        let places: HashMap<u64, u32> = container
            .blocks()
            .zip(0..)
            .map(|(block, number)| (block.header_offset, number))
            .collect();
        // Contents by where they lie.
        let mut known: HashMap<u64, BaseContent> = HashMap::new();
        for content in newest {
            let extents = image.metadata().content_extents(content.0)?;
            let extents: Vec<Extent> = extents.collect::<redwarfs_format::Result<_>>()?;
            known.insert(key(&extents), content);
            older.first = older.first.max(content.0.saturating_add(1));
        }
        for Opening { snapshot, trees } in openings {
            let mut options = OpenOptions::default();
            options.cache.size = CACHE;
            let source = Arc::clone(image.source());
            let opened = Image::from_snapshot(source, container.offset, &snapshot, &options)
                .map_err(crate::Error::from)
                .and_then(|image| older.add(image, trees, &places, &mut known));
            match opened {
                Ok(()) => {}
                Err(error @ crate::Error::Io(_)) => return Err(error),
                // What is damaged is stored again.
                Err(error) => tracing::warn!("snapshot {}: {error}", snapshot.number),
            }
        }
        Ok(older)
    }

    fn add(
        &mut self,
        image: Image,
        trees: Vec<String>,
        places: &HashMap<u64, u32>,
        known: &mut HashMap<u64, BaseContent>,
    ) -> Result<()> {
        let number = self.generations.len() as u32;
        let blocks = image.container().blocks();
        let generation = Generation {
            blocks: blocks
                .map(|block| places.get(&block.header_offset).copied())
                .collect(),
            trees,
            image,
        };
        for (content, inode, held) in generation.contents()? {
            let Some(extents) = generation.extents(content)? else {
                continue;
            };
            let Some(next) = u32::try_from(self.contents.len())
                .ok()
                .and_then(|count| count.checked_add(self.first))
            else {
                break;
            };
            let found = *known.entry(key(&extents)).or_insert(BaseContent(next));
            self.numbers.insert((number, content), found);
            *self.held.entry(found).or_insert(0) += held;
            if found.0 == next {
                self.contents.push(OldContent {
                    generation: number,
                    content,
                    inode,
                });
            }
        }
        self.generations.push(generation);
        Ok(())
    }

    fn get(&self, content: BaseContent) -> Option<(&Generation, &OldContent)> {
        let at = content.0.checked_sub(self.first)?;
        let old = self.contents.get(at as usize)?;
        Some((self.generations.get(old.generation as usize)?, old))
    }

    /// All contents that no newer generation has, with their sizes.
    pub(crate) fn contents(&self) -> Result<Vec<(BaseContent, u64)>> {
        let sized = (self.first..)
            .zip(&self.contents)
            .filter_map(|(number, old)| {
                let generation = self.generations.get(old.generation as usize)?;
                let stat = generation.image.stat(old.inode);
                Some(stat.map(|stat| (BaseContent(number), stat.size)))
            });
        Ok(sized.collect::<redwarfs_format::Result<_>>()?)
    }

    /// In how many of these generations a content is.
    pub(crate) fn held(&self, content: BaseContent) -> u32 {
        self.held.get(&content).copied().unwrap_or(0)
    }

    /// The generations, the newest one first.
    pub(crate) fn images(&self) -> impl Iterator<Item = &Image> {
        self.generations.iter().map(|generation| &generation.image)
    }

    /// The newest content of a file.
    pub(crate) fn at(&self, path: &[u8]) -> Option<BaseContent> {
        (0..)
            .zip(&self.generations)
            .find_map(|(number, generation)| {
                let inode = generation.find(path)?;
                let view = generation.image.metadata();
                let regular = view.file_type(inode).ok()? == FileType::Regular;
                let content = view.content_id(inode).ok().filter(|_| regular)?;
                self.numbers.get(&(number, content)).copied()
            })
    }

    /// The extents of a content, with the block numbers of the newest generation. None for contents that this
    /// generation has.
    pub(crate) fn extents(&self, content: BaseContent) -> Result<Option<Vec<Extent>>> {
        let Some((generation, old)) = self.get(content) else {
            return Ok(None);
        };
        generation.extents(old.content)
    }

    /// The generation and the inode of a content. None as for [`extents`](Self::extents).
    pub(crate) fn inode(&self, content: BaseContent) -> Option<(&Image, InodeNo)> {
        let (generation, old) = self.get(content)?;
        Some((&generation.image, old.inode))
    }
}

/// What is opened.
struct Opening {
    /// The generation, without the flag *archived*.
    snapshot: Snapshot,
    /// As in [`Generation`].
    trees: Vec<String>,
}

impl Opening {
    /// The newest older generations within the bounds. All trees of an archive are opened together.
    fn all(table: &SnapshotTable) -> Vec<Self> {
        let mut of_archives: HashMap<u64, u64> = HashMap::new();
        for one in table.snapshots.iter().filter(|one| one.archived) {
            *of_archives.entry(one.index).or_insert(0) += u64::from(one.inodes);
        }
        let mut archives_left = MOST_INODES_OF_ARCHIVES;
        let mut left = MOST_INODES;
        let mut openings: Vec<Self> = Vec::new();
        let snapshots = table.present().rev().skip(1).take(MOST);
        for snapshot in snapshots.filter(|snapshot| snapshot.end.is_some()) {
            let rest = left.checked_sub(u64::from(snapshot.inodes));
            let Some(rest) = rest else { break };
            let tree = snapshot.directory();
            let last = openings.last_mut();
            match (last, tree) {
                (Some(last), Some(tree))
                    if !last.trees.is_empty() && last.snapshot.index == snapshot.index =>
                {
                    last.trees.push(tree);
                }
                (_, tree) => {
                    if tree.is_some() {
                        let all = of_archives.get(&snapshot.index).copied().unwrap_or(0);
                        match archives_left.checked_sub(all) {
                            Some(rest) => archives_left = rest,
                            None => break,
                        }
                    }
                    openings.push(Self {
                        trees: tree.into_iter().collect(),
                        snapshot: Snapshot {
                            archived: false,
                            ..snapshot.clone()
                        },
                    });
                }
            }
            left = rest;
        }
        openings
    }
}

impl Generation {
    /// The newest file with a path.
    fn find(&self, path: &[u8]) -> Option<InodeNo> {
        if self.trees.is_empty() {
            return self.image.find_path(path).ok()?;
        }
        let mut trees = self.trees.iter();
        trees.find_map(|tree| {
            let path = [tree.as_bytes(), b"/", path].concat();
            self.image.find_path(&path).ok()?
        })
    }

    /// The contents of its trees, each with an inode, and the number of trees that have it. Those of other trees of an
    /// archive may have no data.
    fn contents(&self) -> Result<Vec<(u32, InodeNo, u32)>> {
        let view = self.image.metadata();
        let mut contents: Vec<(u32, InodeNo, u32)> = Vec::new();
        if self.trees.is_empty() {
            let mut seen = HashSet::new();
            for inode in (0..view.inode_count()).map(InodeNo) {
                if view.file_type(inode)? == FileType::Regular {
                    let content = view.content_id(inode)?;
                    if seen.insert(content) {
                        contents.push((content, inode, 1));
                    }
                }
            }
            return Ok(contents);
        }
        let trees: HashMap<&[u8], usize> =
            self.trees.iter().map(String::as_bytes).zip(0..).collect();
        // By content: its place in the list, and the last tree that has it.
        let mut known: HashMap<u32, (usize, usize)> = HashMap::new();
        for entry in self.image.walk() {
            let entry = entry?;
            let first = entry.path.split(|&byte| byte == b'/').next();
            let Some(&tree) = first.and_then(|first| trees.get(first)) else {
                continue;
            };
            if view.file_type(entry.inode)? != FileType::Regular {
                continue;
            }
            let content = view.content_id(entry.inode)?;
            match known.get_mut(&content) {
                None => {
                    known.insert(content, (contents.len(), tree));
                    contents.push((content, entry.inode, 1));
                }
                // All entries of a tree follow one another.
                Some((at, last)) if *last != tree => {
                    *last = tree;
                    if let Some((_, _, held)) = contents.get_mut(*at) {
                        *held += 1;
                    }
                }
                Some(_) => {}
            }
        }
        Ok(contents)
    }

    /// None if the newest generation does not list a block of it.
    fn extents(&self, content: u32) -> Result<Option<Vec<Extent>>> {
        let mut all = Vec::new();
        for extent in self.image.metadata().content_extents(content)? {
            let extent = match extent? {
                Extent::Data {
                    block,
                    offset,
                    size,
                } => match self.blocks.get(block.index()).copied().flatten() {
                    Some(number) => Extent::Data {
                        block: BlockNo(number),
                        offset,
                        size,
                    },
                    None => return Ok(None),
                },
                hole @ Extent::Hole { .. } => hole,
            };
            all.push(extent);
        }
        Ok(Some(all))
    }
}

/// Says where extents lie, in 64 bits. Equal keys of other extents only mean that a content is not found.
fn key(extents: &[Extent]) -> u64 {
    let mut hasher = DefaultHasher::new();
    for extent in extents {
        match *extent {
            Extent::Hole { size } => (u32::MAX, 0_u32, size).hash(&mut hasher),
            Extent::Data {
                block,
                offset,
                size,
            } => (block.0, offset, u64::from(size)).hash(&mut hasher),
        }
    }
    hasher.finish()
}
