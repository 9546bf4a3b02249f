//! Finds the files that use a block, and the paths of files.

use std::collections::BTreeSet;

use redwarfs_format::metadata::{Extent, MetadataView};
use redwarfs_format::{BlockNo, Error, InodeNo, Result};

use crate::image::Image;
use crate::tree::Walk;

/// Bytes of paths that [`Image::paths_of`] collects (256 MiB).
const PATHS_LIMIT: usize = 256 << 20;

/// The inodes that use each block.
///
/// Memory: 4 bytes for each pair of a block and a file content that uses it, 16 bytes per block, and 8
/// bytes per inode that shares its content with another inode. A content counts once for each block,
/// for any number of pieces in it.
#[derive(Debug, Clone)]
pub struct BlockUsers {
    /// Start of the contents of each block, and an end.
    first: Vec<u64>,
    /// Contents, block after block, ascending in each block.
    contents: Vec<u32>,
    /// First inode of a regular file.
    first_file: u32,
    /// Contents below this number belong to one inode each, in the order of inodes.
    unique: u32,
    /// Content and inode of the other files, sorted.
    shared: Vec<(u32, InodeNo)>,
}

impl BlockUsers {
    /// The inodes of the regular files that have data in a block. A block that does not exist
    /// has none.
    pub fn inodes(&self, block: BlockNo) -> impl Iterator<Item = InodeNo> + '_ {
        self.contents_of(block).iter().flat_map(|&content| {
            let single = (content < self.unique)
                .then(|| self.first_file.checked_add(content).map(InodeNo))
                .flatten();
            let from = self.shared.partition_point(|&(c, _)| c < content);
            let shared = self.shared.get(from..).unwrap_or_default();
            let shared = shared.iter().take_while(move |&&(c, _)| c == content);
            single.into_iter().chain(shared.map(|&(_, inode)| inode))
        })
    }

    /// Whether no file has data in a block.
    #[must_use]
    pub fn is_unused(&self, block: BlockNo) -> bool {
        self.contents_of(block).is_empty()
    }

    fn contents_of(&self, block: BlockNo) -> &[u32] {
        let index = block.index();
        let range = index
            .checked_add(1)
            .and_then(|next| Some((*self.first.get(index)?, *self.first.get(next)?)))
            .and_then(|(a, b)| Some(usize::try_from(a).ok()?..usize::try_from(b).ok()?));
        range
            .and_then(|range| self.contents.get(range))
            .unwrap_or_default()
    }
}

impl BlockUsers {
    /// Those of a tree whose image has so many blocks; see [`Image::block_users`].
    pub(crate) fn of(view: &MetadataView, blocks: u32) -> Result<Self> {
        let blocks = blocks as usize;
        let counts = view.counts();
        let mut budget = u64::from(counts.chunks);
        // Number of contents per block, in the place of the block after it.
        let mut first = vec![0_u64; blocks + 1];
        for_each_pair(
            view,
            blocks,
            counts.contents,
            &mut budget,
            &mut |block, _| {
                if let Some(n) = first.get_mut(block + 1) {
                    *n += 1;
                }
            },
        )?;
        let mut sum = 0;
        for n in &mut first {
            sum += *n;
            *n = sum;
        }
        let total = usize::try_from(sum).map_err(|_| Error::Limit("too many chunks".into()))?;
        let mut contents = Vec::new();
        contents
            .try_reserve_exact(total)
            .map_err(|_| Error::Limit(format!("no memory for the users of {blocks} blocks")))?;
        contents.resize(total, 0);
        let mut next: Vec<u64> = first.clone();
        let mut budget = u64::from(counts.chunks);
        for_each_pair(
            view,
            blocks,
            counts.contents,
            &mut budget,
            &mut |block, content| {
                if let Some(at) = next.get_mut(block) {
                    let cell = usize::try_from(*at).ok().and_then(|i| contents.get_mut(i));
                    if let Some(cell) = cell {
                        *cell = content;
                    }
                    *at += 1;
                }
            },
        )?;
        let mut shared = Vec::new();
        let unique = counts.unique_files;
        for number in unique..counts.files {
            let inode = InodeNo(counts.file_offset.saturating_add(number));
            shared.push((view.content_id(inode)?, inode));
        }
        shared.sort_unstable();
        Ok(Self {
            first,
            contents,
            first_file: counts.file_offset,
            unique,
            shared,
        })
    }
}

impl Image {
    /// Determines the inodes that use each block, in two passes over all chunks.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if metadata is wrong. In particular, files must not overlap in the table of
    /// chunks, because then the result could be far larger than the image.
    pub fn block_users(&self) -> Result<BlockUsers> {
        BlockUsers::of(self.metadata(), self.container().block_count())
    }

    /// All paths of the given inodes, relative to the root, in the order of [`Image::walk`]: every hard
    /// link of a file, and one path of any other inode.
    ///
    /// # Errors
    /// As [`Image::for_each_path_of`]; [`Error::Limit`] if the paths take more than 256 MiB.
    pub fn paths_of(&self, inodes: &BTreeSet<InodeNo>) -> Result<Vec<(InodeNo, Vec<u8>)>> {
        let mut paths = Vec::new();
        let mut size = 0;
        self.for_each_path_of(|inode| inodes.contains(&inode), &mut |inode, path| {
            size += path.len();
            if size > PATHS_LIMIT {
                return Err(Error::Limit(format!(
                    "more than {PATHS_LIMIT} bytes of paths"
                )));
            }
            paths.push((inode, path));
            Ok(())
        })?;
        Ok(paths)
    }

    /// Calls `found` for each path of the wanted inodes, in the order of [`Image::walk`].
    ///
    /// # Errors
    /// [`Error::Corrupt`] if metadata on the way is wrong, and those of `found`.
    pub fn for_each_path_of(
        &self,
        wanted: impl Fn(InodeNo) -> bool,
        found: &mut dyn FnMut(InodeNo, Vec<u8>) -> Result<()>,
    ) -> Result<()> {
        for_each_path_of(self.metadata(), wanted, found)
    }
}

/// See [`Image::for_each_path_of`].
pub(crate) fn for_each_path_of(
    view: &MetadataView,
    wanted: impl Fn(InodeNo) -> bool,
    found: &mut dyn FnMut(InodeNo, Vec<u8>) -> Result<()>,
) -> Result<()> {
    for entry in Walk::new(view) {
        let entry = entry?;
        if wanted(entry.inode) {
            found(entry.inode, entry.path)?;
        }
    }
    Ok(())
}

/// Calls `found` once for every block that a content uses, content by content. Blocks that do not exist
/// are left out. `budget` is the number of chunks that may be examined.
fn for_each_pair(
    view: &MetadataView,
    blocks: usize,
    contents: u32,
    budget: &mut u64,
    found: &mut dyn FnMut(usize, u32),
) -> Result<()> {
    // For each block the last content that was found to use it, plus one.
    let mut seen = vec![0_u32; blocks];
    for content in 0..contents {
        let extents = view.content_extents(content)?;
        *budget = budget
            .checked_sub(extents.len() as u64)
            .ok_or_else(|| Error::corrupt("files overlap in the table of chunks"))?;
        for extent in extents {
            let Extent::Data { block, .. } = extent? else {
                continue;
            };
            if let Some(last) = seen.get_mut(block.index())
                && *last != content + 1
            {
                *last = content + 1;
                found(block.index(), content);
            }
        }
    }
    Ok(())
}
