//! Finds the files that damaged blocks affect.

use std::collections::{BTreeMap, BTreeSet};

use redwarfs_format::metadata::Extent;
use redwarfs_format::{BlockNo, InodeNo, Result};

use super::finding::{AffectedPaths, Finding};
use crate::image::Image;

/// Largest number of paths that a finding names.
const FIRST: usize = 3;
/// Largest number of damaged blocks whose findings name paths; for other blocks, paths are counted.
const NAMED_BLOCKS: usize = 1000;

/// Takes an affected path and the damaged blocks that hold data of it.
type Visitor<'a> = dyn FnMut(&[u8], &BTreeSet<BlockNo>) -> Result<()> + 'a;

/// The files with data in damaged blocks.
#[derive(Debug, Default)]
pub struct AffectedFiles {
    blocks: BTreeSet<BlockNo>,
    /// One bit for each inode.
    inodes: Vec<u64>,
}

impl AffectedFiles {
    /// Finds the inodes that use the lost blocks of `findings`. It takes a bit for each inode.
    ///
    /// # Errors
    /// Those of [`Image::block_users`].
    pub(super) fn of(image: &Image, findings: &[Finding]) -> Result<Self> {
        let blocks: BTreeSet<BlockNo> = findings.iter().filter_map(Finding::lost_block).collect();
        let mut inodes = Vec::new();
        if !blocks.is_empty() {
            let users = image.block_users()?;
            inodes = vec![0_u64; image.metadata().inode_count() as usize / 64 + 1];
            for inode in blocks.iter().flat_map(|block| users.inodes(*block)) {
                if let Some(word) = inodes.get_mut(inode.0 as usize / 64) {
                    *word |= 1 << (inode.0 % 64);
                }
            }
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
        if self.blocks.is_empty() {
            return Ok(());
        }
        image.for_each_path_of(|inode| self.has(inode), &mut |inode, path| {
            let mut blocks = BTreeSet::new();
            for extent in image.metadata().extents(inode)? {
                if let Extent::Data { block, .. } = extent?
                    && self.blocks.contains(&block)
                {
                    blocks.insert(block);
                }
            }
            visit(&path, &blocks)
        })
    }

    /// Adds to each finding the number of the paths that it affects and the first of them.
    ///
    /// # Errors
    /// As [`AffectedFiles::for_each`].
    pub(super) fn add_to(&self, image: &Image, findings: &mut [Finding]) -> Result<()> {
        let mut affected: BTreeMap<BlockNo, AffectedPaths> = self
            .blocks
            .iter()
            .map(|block| (*block, AffectedPaths::default()))
            .collect();
        let mut named = 0;
        self.for_each(image, &mut |path, blocks| {
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
