//! Which blocks a generation uses.

use std::collections::BTreeSet;

use redwarfs_format::InodeNo;
use redwarfs_format::metadata::{Extent, FileType, XattrData};
use redwarfs_reader::Image;

use crate::error::Result;

/// Offsets of the headers of the blocks of which the open generation uses any byte.
pub(crate) fn blocks_in_use(image: &Image) -> Result<BTreeSet<u64>> {
    let (view, container) = (image.metadata(), image.container());
    let mut used = vec![false; container.block_count() as usize];
    let mut note = |extent: Extent| {
        if let Extent::Data { block, .. } = extent
            && let Some(used) = used.get_mut(block.index())
        {
            *used = true;
        }
    };
    let mut seen = BTreeSet::new();
    for number in 0..view.inode_count() {
        let inode = InodeNo(number);
        for xattr in image.xattrs(inode)? {
            if let XattrData::Blocks(extents) = xattr.value()? {
                extents.into_iter().for_each(&mut note);
            }
        }
        if view.file_type(inode)? == FileType::Regular && seen.insert(view.content_id(inode)?) {
            for extent in view.extents(inode)? {
                note(extent?);
            }
        }
    }
    let blocks = container.blocks().zip(used);
    let used = blocks.filter(|(_, used)| *used);
    Ok(used.map(|(block, _)| block.header_offset).collect())
}
