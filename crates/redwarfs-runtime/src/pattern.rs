//! Patterns of `--appimage-extract`.
#![allow(unsafe_code)]

use std::ffi::{CString, OsString};
use std::os::unix::ffi::OsStringExt;

use crate::error::{EXIT_FAILURE, Failure, Result};

/// As GNU's extension `FNM_LEADING_DIR`, which musl has, too: a match may end before a slash.
const LEADING_DIRECTORY: libc::c_int = 1 << 3;
const FLAGS: libc::c_int = libc::FNM_PATHNAME | LEADING_DIRECTORY;

/// Patterns of the function `fnmatch` of the C library for paths below the root of the image. What
/// a pattern matches stands for everything below it; `*` and `?` match no slash.
#[derive(Debug)]
pub(crate) struct Patterns(Vec<CString>);

impl Patterns {
    pub(crate) fn new(patterns: Vec<OsString>) -> Result<Self> {
        let patterns = patterns.into_iter().map(|pattern| {
            let mut pattern = pattern.into_vec();
            // Shells complete a directory so. No path in the image ends in a slash.
            while pattern.len() > 1 && pattern.ends_with(b"/") {
                pattern.pop();
            }
            CString::new(pattern)
                .map_err(|_| Failure::new("a pattern has a zero byte").code(EXIT_FAILURE))
        });
        patterns.collect::<Result<_>>().map(Self)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether one of the patterns matches a path without a leading slash.
    pub(crate) fn match_path(&self, path: &[u8]) -> bool {
        // Names in an image have no zero byte: the extractor refuses them.
        let Ok(path) = CString::new(path) else {
            return false;
        };
        self.0.iter().any(|pattern| {
            // SAFETY: both are C strings, which live through the call. The function keeps neither of them.
            unsafe { libc::fnmatch(pattern.as_ptr(), path.as_ptr(), FLAGS) == 0 }
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_match_stands_for_what_is_below() {
        let matches = |pattern: &str, path: &str| {
            let patterns = Patterns::new(vec![pattern.into()]).unwrap();
            patterns.match_path(path.as_bytes())
        };
        for (pattern, path) in [
            ("usr", "usr"),
            ("usr", "usr/bin/x"),
            ("usr/", "usr"),
            ("usr/bin//", "usr/bin/x"),
            ("usr/*", "usr/bin/x"),
            ("*.desktop", "a.desktop"),
            ("[ab]?", "bx"),
        ] {
            assert!(matches(pattern, path), "{pattern} {path}");
        }
        for (pattern, path) in [
            ("usr", "usr2"),
            ("bin", "usr/bin"),
            ("*.desktop", "usr/a.desktop"),
            ("usr/*", "usr"),
        ] {
            assert!(!matches(pattern, path), "{pattern} {path}");
        }
    }
}
