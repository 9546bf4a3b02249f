//! Finding the old version of a file whose path is new: a file of the newest generation that ends like it, because a
//! directory above has another name or place.
//!
//! Memory: about 70 bytes for each regular file, from the first new path on.

use std::collections::HashMap;
use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use redwarfs_format::InodeNo;
use redwarfs_format::metadata::FileType;
use redwarfs_reader::Image;

use crate::error::Result;

/// Components at the end of a path that are compared.
const DEEPEST: usize = 4;

/// Regular files by the ends of their paths.
#[derive(Debug, Default)]
pub(crate) struct Names {
    /// The first file with each end of 1 to [`DEEPEST`] components, by the hash of the end, and whether it is the
    /// only one. An end with an equal hash leads to another file, of which the build finds nothing.
    by_end: HashMap<u64, (InodeNo, bool)>,
}

impl Names {
    /// Lists the files of a generation.
    pub(crate) fn of(image: &Image) -> Result<Self> {
        let mut names = Self::default();
        let view = image.metadata();
        for entry in image.walk() {
            let entry = entry?;
            if view.file_type(entry.inode)? == FileType::Regular {
                for end in ends(&entry.path) {
                    let known = names.by_end.entry(end);
                    known
                        .and_modify(|(_, only)| *only = false)
                        .or_insert((entry.inode, true));
                }
            }
        }
        Ok(names)
    }

    /// The file with the longest common end. The name alone is enough if no other file has it.
    pub(crate) fn find(&self, path: &[u8]) -> Option<InodeNo> {
        let ends: Vec<u64> = ends(path).collect();
        let found = ends.iter().enumerate().rev().find_map(|(before, end)| {
            let (inode, only) = self.by_end.get(end)?;
            Some((before, *inode, *only))
        });
        let (before, inode, only) = found?;
        (before > 0 || only).then_some(inode)
    }
}

/// Hashes of the last component of a path, of the last two, and so on.
fn ends(path: &[u8]) -> impl Iterator<Item = u64> + '_ {
    let components = path.rsplit(|&byte| byte == b'/').take(DEEPEST);
    components.scan(0_u64, |above, component| {
        let mut hasher = DefaultHasher::new();
        (*above, component).hash(&mut hasher);
        *above = hasher.finish();
        Some(*above)
    })
}
