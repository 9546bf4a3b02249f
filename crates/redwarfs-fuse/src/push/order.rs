//! The regular files of an image in the order of their data.

use redwarfs_format::ids::InodeNo;
use redwarfs_format::metadata::{Extent, MetadataView};

/// A place in the data of the image: block and offset.
pub(super) type Position = (u32, u64);

/// Inodes, sorted by the beginning of their data. It takes 4 bytes per file that has data, and half as
/// much more while it is made.
#[derive(Debug)]
pub(super) struct DataOrder(Vec<u32>);

/// Where the data of a file begins; none if it has none.
fn start(meta: &MetadataView, inode: InodeNo) -> Option<Position> {
    match meta.extents(inode).ok()?.next()?.ok()? {
        Extent::Data { block, offset, .. } => Some((block.0, u64::from(offset))),
        Extent::Hole { .. } => None,
    }
}

impl DataOrder {
    pub(super) fn new(meta: &MetadataView) -> Self {
        let counts = meta.counts();
        let mut files: Vec<u32> = (counts.file_offset..counts.device_offset)
            .filter(|&n| start(meta, InodeNo(n)).is_some())
            .collect();
        // The files are usually sorted, or consist of long sorted runs: then this is one pass.
        files.sort_by_key(|&n| start(meta, InodeNo(n)));
        Self(files)
    }

    /// The files whose data begins at `from` or later, in order.
    pub(super) fn after<'a>(
        &'a self,
        meta: &'a MetadataView,
        from: Position,
    ) -> impl Iterator<Item = (Position, InodeNo)> + 'a {
        let first = self
            .0
            .partition_point(|&n| start(meta, InodeNo(n)).is_some_and(|at| at < from));
        let rest = self.0.get(first..).unwrap_or_default();
        rest.iter()
            .map(|&n| InodeNo(n))
            .filter_map(move |inode| Some((start(meta, inode)?, inode)))
    }
}
