//! Files that are needed first, from a list.

use std::collections::HashSet;

use crate::source::FileType;
use crate::source::list::plain_path;
use crate::tree::Tree;

/// Paths of hot files, relative to the root.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct HotPaths(Vec<Vec<u8>>);

/// A path that the list names twice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("duplicate path in hotness list: '{}'", String::from_utf8_lossy(.0))]
pub struct HotPathsError(pub Vec<u8>);

impl HotPaths {
    /// Reads a list with one path per line, in any spelling of [`plain_path`]. Empty lines are
    /// skipped.
    ///
    /// # Errors
    /// If a path occurs twice.
    pub fn parse(text: &[u8]) -> Result<Self, HotPathsError> {
        let mut seen = HashSet::new();
        let mut paths = Vec::new();
        for line in text.split(|&b| b == b'\n') {
            let path = plain_path(line);
            if path.is_empty() {
                continue;
            }
            if !seen.insert(path.clone()) {
                return Err(HotPathsError(path));
            }
            paths.push(path);
        }
        Ok(Self(paths))
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The files of the tree that have one of the paths, by whichever of their names.
    pub(crate) fn files(&self, tree: &Tree) -> HashSet<u32> {
        let files = self.0.iter().filter_map(|path| find(tree, path));
        files.collect()
    }
}

/// The file with this path.
fn find(tree: &Tree, path: &[u8]) -> Option<u32> {
    let mut entry = 0u32;
    for name in path.split(|&b| b == b'/') {
        let inode = *tree.inodes.get(entry as usize)?;
        if tree.kind(inode) != FileType::Directory {
            return None;
        }
        let dir = tree.dirs.get(*tree.details.get(inode as usize)? as usize)?;
        let (mut low, mut high) = (dir.first, dir.first.checked_add(dir.count)?);
        // Children are sorted by name.
        while low < high {
            let middle = low + (high - low) / 2;
            if tree.name(middle) < name {
                low = middle + 1;
            } else {
                high = middle;
            }
        }
        if low == dir.first + dir.count || tree.name(low) != name {
            return None;
        }
        entry = low;
    }
    let inode = *tree.inodes.get(entry as usize)?;
    (tree.kind(inode) == FileType::Regular)
        .then(|| tree.details.get(inode as usize).copied())
        .flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists() {
        let list = HotPaths::parse(b"/a/b\n\nc\n/\nd e").unwrap();
        assert_eq!(list.0, [b"a/b".to_vec(), b"c".to_vec(), b"d e".to_vec()]);
        assert!(!list.is_empty() && HotPaths::parse(b"\n").unwrap().is_empty());
        let error = HotPaths::parse(b"a\nb\n/a\n").unwrap_err();
        assert_eq!(error.to_string(), "duplicate path in hotness list: 'a'");
    }
}
