//! Which entries the user wants.

use std::ffi::OsStr;
use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::metadata::FileType;
use redwarfs_io::path::bytes;

use crate::common::error::{display_name, one_line};
use crate::common::glob::Glob;
use crate::common::{Result, ToolError};

/// The patterns of a command line.
#[derive(Debug)]
pub(crate) struct Patterns(Vec<Pattern>);

#[derive(Debug)]
struct Pattern {
    text: String,
    glob: Glob,
    /// For a pattern without special characters: everything below.
    below: Option<Glob>,
    used: AtomicBool,
}

impl Patterns {
    /// # Errors
    /// The text of a bad pattern's error.
    pub(crate) fn new<'a>(texts: impl Iterator<Item = &'a OsStr>) -> Result<Self> {
        texts.map(Pattern::new).collect::<Result<_>>().map(Self)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Whether any pattern wants an entry. All are asked, so that each knows whether it was of use.
    pub(crate) fn want(&self, path: &[u8], kind: FileType) -> bool {
        let mut wanted = false;
        for pattern in &self.0 {
            if pattern.wants(path, kind) {
                pattern.used.store(true, Ordering::Relaxed);
                wanted = true;
            }
        }
        wanted
    }

    /// The patterns that wanted nothing so far.
    pub(crate) fn unused(&self) -> Vec<&str> {
        self.0
            .iter()
            .filter(|pattern| !pattern.used.load(Ordering::Relaxed))
            .map(|pattern| pattern.text.as_str())
            .collect()
    }

    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }
}

impl Pattern {
    fn new(text: &OsStr) -> Result<Self> {
        let bytes = bytes(text);
        let (ignore_case, pattern) = match bytes.strip_prefix(b"i:") {
            Some(rest) => (true, rest),
            None => (false, bytes.strip_prefix(b":").unwrap_or(&bytes)),
        };
        let compile = |pattern: &[u8]| {
            Glob::new(pattern, ignore_case).map_err(|e| ToolError::new(one_line(&e.to_string())))
        };
        let mut glob = compile(pattern)?;
        let mut below = None;
        if glob.is_plain() && !pattern.is_empty() {
            let path = plain_path(pattern);
            if path.is_empty() {
                below = Some(compile(b"**")?);
            } else {
                glob = compile(path)?;
                below = Some(compile(&[path, b"/**"].concat())?);
            }
        }
        Ok(Self {
            text: display_name(text),
            glob,
            below,
            used: AtomicBool::new(false),
        })
    }

    fn wants(&self, path: &[u8], kind: FileType) -> bool {
        match &self.below {
            Some(below) => self.glob.matches(path) || below.matches(path),
            None => kind != FileType::Directory && self.glob.matches(path),
        }
    }
}

/// Drops what people put around a path: `./`, a leading slash, one at the end.
fn plain_path(mut path: &[u8]) -> &[u8] {
    loop {
        path = match path {
            [b'/', rest @ ..] | [b'.', b'/', rest @ ..] => rest,
            // An escaped slash is still one, without its backslash.
            [rest @ .., b'\\', b'/'] if !rest.ends_with(b"\\") => rest,
            [rest @ .., b'/'] | [rest @ .., b'/', b'.'] => rest,
            b"." => b"",
            _ => return path,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn wants(pattern: &str, path: &str, kind: FileType) -> bool {
        let patterns = Patterns::new([OsStr::new(pattern)].into_iter()).unwrap();
        patterns.want(path.as_bytes(), kind)
    }

    #[test]
    fn globs_want_files_and_paths_want_trees() {
        use FileType::{Directory, Regular, Symlink};
        for (pattern, path, kind) in [
            ("*.txt", "a.txt", Regular),
            ("docs/**", "docs/a/b", Symlink),
            ("docs", "docs", Directory),
            ("docs", "docs/a/b", Regular),
            ("docs", "docs/empty", Directory),
            ("./docs/", "docs/a", Regular),
            ("/docs/a", "docs/a", Regular),
            ("docs/.", "docs/a", Regular),
            (".", "a", Regular),
            ("i:DOCS", "docs/a", Regular),
            (":i:x", "i:x", Regular),
            ("::x", ":x", Regular),
            ("a\\*", "a*/b", Regular),
        ] {
            assert!(wants(pattern, path, kind), "{pattern} {path}");
        }
        for (pattern, path, kind) in [
            ("docs*", "docs", Directory),
            ("docs", "docs2", Regular),
            ("docs", "a/docs", Regular),
            ("docs/**", "docs/empty", Directory),
            ("DOCS", "docs", Regular),
            ("", "a", Regular),
        ] {
            assert!(!wants(pattern, path, kind), "{pattern} {path}");
        }
    }

    #[test]
    fn what_was_of_no_use_is_known() {
        let texts = ["a", "b*"].map(OsStr::new);
        let patterns = Patterns::new(texts.into_iter()).unwrap();
        assert_eq!(patterns.unused(), ["a", "b*"]);
        assert!(patterns.want(b"bb", FileType::Regular));
        assert_eq!(patterns.unused(), ["a"]);
        assert_eq!(patterns.len(), 2);
    }
}
