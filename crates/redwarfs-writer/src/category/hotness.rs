//! The list of files that are needed first.

use std::collections::HashSet;

use crate::source::list::plain_path;

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

    /// The paths, in the order of the list.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.0.iter().map(Vec::as_slice)
    }
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
