//! Contents of several generations of one file that lie at the same place.
//!
//! Each image decodes blocks for itself. So a content that many generations have is read through the first one of them.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use redwarfs_format::metadata::{Extent, FileType};
use redwarfs_format::{Error as FormatError, InodeNo};
use redwarfs_reader::Image;

use super::options::Part;
use crate::error::Result;

/// A piece of a content: where a block begins in the file, and what of it; or a hole.
type StoredRange = (u64, u64);

/// A file of each content in the first part that has it, by part and content.
#[derive(Debug, Default)]
pub(super) struct Places(HashMap<(u32, u32), (u32, InodeNo)>);

impl Places {
    /// Those of parts that are generations of the file of the first one. Memory: 16 bytes for each piece of a distinct
    /// content, while this is made, and 32 bytes for each content of each part.
    pub(super) fn of(parts: &[Part<'_>]) -> Result<Self> {
        let mut places = HashMap::new();
        let mut first: HashMap<Vec<StoredRange>, (u32, InodeNo)> = HashMap::new();
        let same_file = |image: &Image| {
            let own = parts.first().map(|part| part.image);
            own.is_some_and(|own| {
                Arc::ptr_eq(own.source(), image.source())
                    && own.container().offset == image.container().offset
            })
        };
        for (part, number) in parts.iter().zip(0..) {
            let image = part.image;
            if !same_file(image) {
                continue;
            }
            let view = image.metadata();
            for inode in (0..view.inode_count()).map(InodeNo) {
                if view.file_type(inode)? != FileType::Regular {
                    continue;
                }
                if let Entry::Vacant(place) = places.entry((number, view.content_id(inode)?)) {
                    let pieces = pieces(image, inode)?;
                    place.insert(*first.entry(pieces).or_insert((number, inode)));
                }
            }
        }
        Ok(Self(places))
    }

    /// The part and the file through which a content is read.
    pub(super) fn get(&self, part: u32, content: u32) -> Option<(u32, InodeNo)> {
        self.0.get(&(part, content)).copied()
    }
}

fn pieces(image: &Image, inode: InodeNo) -> Result<Vec<StoredRange>> {
    let mut pieces = Vec::new();
    for extent in image.metadata().extents(inode)? {
        pieces.push(match extent? {
            Extent::Hole { size } => (u64::MAX, size),
            Extent::Data {
                block,
                offset,
                size,
            } => {
                let section = image.container().block(block);
                let missing = || FormatError::corrupt("a block that does not exist");
                let place = section.ok_or_else(missing)?.header_offset;
                (place, u64::from(offset) << 32 | u64::from(size))
            }
        });
    }
    Ok(pieces)
}
