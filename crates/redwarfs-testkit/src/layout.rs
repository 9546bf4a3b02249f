//! Where the data of files lies in an image.

use redwarfs_format::metadata::{Extent, FileType};
use redwarfs_reader::Image;

/// A name of a regular file that has data.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub struct Placed {
    /// Block in which its data begins.
    pub block: u32,
    /// Offset in that block.
    pub offset: u32,
    /// Path below the root.
    pub path: String,
    /// Category of the block, if the image names it.
    pub category: Option<String>,
}

/// All regular files with data by the place where their data begins, names of one content by
/// their paths.
///
/// # Panics
/// If the image is broken, or a path is not UTF-8.
#[must_use]
pub fn placed_files(image: &Image) -> Vec<Placed> {
    let view = image.metadata();
    let names = view.category_names().expect("names of categories");
    let names = names.unwrap_or_default();
    let mut found = Vec::new();
    for entry in image.walk() {
        let entry = entry.expect("an entry");
        if view.file_type(entry.inode).expect("a type") != FileType::Regular {
            continue;
        }
        let extents = view.extents(entry.inode).expect("extents");
        let data = extents.map(|extent| extent.expect("an extent"));
        let first = data.into_iter().find_map(|extent| match extent {
            Extent::Data { block, offset, .. } => Some((block, offset)),
            Extent::Hole { .. } => None,
        });
        let Some((block, offset)) = first else {
            continue;
        };
        let category = view.block_category(block).expect("a category");
        let name = category.and_then(|category| names.get(category.index()));
        found.push(Placed {
            block: block.0,
            offset,
            path: String::from_utf8(entry.path.clone()).expect("UTF-8"),
            category: name.map(|name| String::from_utf8_lossy(name).into_owned()),
        });
    }
    found.sort();
    found
}
