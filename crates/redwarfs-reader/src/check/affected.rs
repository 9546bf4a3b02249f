//! Finds the files that damaged blocks affect: their contents, or their extended attributes.

use std::collections::{BTreeMap, BTreeSet};

use redwarfs_format::metadata::{Extent, FileType, MetadataView, XattrData};
use redwarfs_format::{BlockNo, Error, InodeNo, Result};

use super::finding::{AffectedPaths, Finding};
use crate::image::Image;
use crate::users::{BlockUsers, for_each_path_of};

/// Largest number of paths that a finding names.
const FIRST: usize = 3;
/// Largest number of damaged blocks whose findings name paths; for other blocks, paths are counted.
const NAMED_BLOCKS: usize = 1000;

/// Most attributes and pieces of them that are looked at: hostile tables may use each piece often.
const PIECES: u64 = 1 << 28;

/// Takes an affected path and the damaged blocks that hold data of it.
type Visitor<'a> = dyn FnMut(&[u8], &BTreeSet<BlockNo>) -> Result<()> + 'a;

/// The files with data or extended attributes in damaged blocks. Directories and other entries count, too.
#[derive(Debug, Default)]
pub struct AffectedFiles {
    blocks: BTreeSet<BlockNo>,
    /// One bit for each inode.
    inodes: Vec<u64>,
}

impl AffectedFiles {
    /// Finds the inodes of a tree that use the lost blocks of `findings`. The image has so many `block_count`. It takes a
    /// bit for each inode.
    ///
    /// # Errors
    /// Those of [`Image::block_users`].
    pub(super) fn of(view: &MetadataView, block_count: u32, findings: &[Finding]) -> Result<Self> {
        let blocks: BTreeSet<BlockNo> = findings.iter().filter_map(Finding::lost_block).collect();
        let mut inodes = Vec::new();
        if !blocks.is_empty() {
            let users = BlockUsers::of(view, block_count)?;
            inodes = vec![0_u64; view.inode_count() as usize / 64 + 1];
            let mut add = |inode: InodeNo| {
                if let Some(word) = inodes.get_mut(inode.0 as usize / 64) {
                    *word |= 1 << (inode.0 % 64);
                }
            };
            for inode in blocks.iter().flat_map(|block| users.inodes(*block)) {
                add(inode);
            }
            let damaged = |block| blocks.contains(&block);
            view.xattrs_in_blocks(damaged, add)?;
        }
        Ok(Self { blocks, inodes })
    }

    fn has(&self, inode: InodeNo) -> bool {
        self.inodes
            .get(inode.0 as usize / 64)
            .is_some_and(|word| word >> (inode.0 % 64) & 1 == 1)
    }

    /// Calls `visit` with every affected path and the damaged blocks that hold data of it, in tree
    /// order.
    ///
    /// # Errors
    /// [`Error::Corrupt`](crate::Error::Corrupt) if the tree cannot be walked, and the errors of
    /// `visit`.
    pub fn for_each(&self, image: &Image, visit: &mut Visitor<'_>) -> Result<()> {
        self.for_each_in(image.metadata(), visit)
    }

    /// The same with the tree in which they were found.
    pub(super) fn for_each_in(&self, view: &MetadataView, visit: &mut Visitor<'_>) -> Result<()> {
        if self.blocks.is_empty() {
            return Ok(());
        }
        let mut budget = PIECES;
        for_each_path_of(view, |inode| self.has(inode), &mut |inode, path| {
            let mut blocks = BTreeSet::new();
            let mut add = |extent: &Extent| {
                if let Extent::Data { block, .. } = extent
                    && self.blocks.contains(block)
                {
                    blocks.insert(*block);
                }
            };
            if view.file_type(inode)? == FileType::Regular {
                for extent in view.extents(inode)? {
                    add(&extent?);
                }
            }
            for xattr in view.xattrs(inode)? {
                let value = xattr.value()?;
                let pieces = match &value {
                    XattrData::Blocks(extents) => extents.len() as u64,
                    XattrData::Inline(_) => 0,
                };
                budget = budget.checked_sub(1 + pieces).ok_or_else(|| {
                    Error::Limit("too many extended attributes in damaged blocks".into())
                })?;
                if let XattrData::Blocks(extents) = value {
                    extents.iter().for_each(&mut add);
                }
            }
            visit(&path, &blocks)
        })
    }

    /// Adds to each finding the number of the paths that it affects and the first of them.
    ///
    /// # Errors
    /// As [`AffectedFiles::for_each`].
    pub(super) fn add_to(&self, view: &MetadataView, findings: &mut [Finding]) -> Result<()> {
        let mut affected: BTreeMap<BlockNo, AffectedPaths> = self
            .blocks
            .iter()
            .map(|block| (*block, AffectedPaths::default()))
            .collect();
        let mut named = 0;
        self.for_each_in(view, &mut |path, blocks| {
            for block in blocks {
                let Some(affected) = affected.get_mut(block) else {
                    continue;
                };
                affected.count = affected.count.saturating_add(1);
                if affected.first.len() < FIRST && named < NAMED_BLOCKS * FIRST {
                    affected.first.push(path.to_vec());
                    named += 1;
                }
            }
            Ok(())
        })?;
        for finding in findings {
            if let Some(block) = finding.lost_block() {
                finding.affected = affected.get(&block).cloned();
            }
        }
        Ok(())
    }
}
