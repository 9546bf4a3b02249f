//! Input lists: the paths that make up a tree.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::io;
use std::path::{Component, Path, PathBuf};

use super::{FileType, Meta};

/// The result of reading an input list.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ListReport {
    /// Paths that appeared before.
    pub duplicates: Vec<PathBuf>,
    /// Absolute paths outside of the root, or paths that leave it with `..`.
    pub outside: Vec<PathBuf>,
    /// Paths that do not exist, with the error.
    pub missing: Vec<(PathBuf, String)>,
}

/// The directories named by an input list, each with its listed children, and the position of
/// every listed path.
///
/// Symlinks on the way to a path are not followed.
#[derive(Debug, Default)]
pub struct InputList {
    children: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>,
    positions: HashMap<Vec<u8>, u64>,
}

impl InputList {
    /// Examines `paths` with `stat`, which takes paths relative to `root`.
    pub fn new(
        root: &Path,
        paths: impl IntoIterator<Item = PathBuf>,
        stat: impl Fn(&[u8]) -> io::Result<Meta>,
    ) -> (Self, ListReport) {
        let mut list = InputList::default();
        let mut report = ListReport::default();
        for (position, path) in paths.into_iter().enumerate() {
            let Some(components) = below(root, &path) else {
                report.outside.push(path);
                continue;
            };
            if components.is_empty() {
                continue;
            }
            let key = joined(&components);
            if list.positions.contains_key(&key) {
                report.duplicates.push(path);
                continue;
            }
            let directories = components.split_last().map_or(&[][..], |(_, up)| up);
            if let Err(error) = list
                .check_directories(directories, &stat)
                .and_then(|()| stat(&key))
            {
                report.missing.push((path, error.to_string()));
                continue;
            }
            list.positions.insert(key, position as u64);
            let mut parent = Vec::new();
            for name in components {
                list.children
                    .entry(parent.clone())
                    .or_default()
                    .insert(name.to_vec());
                if !parent.is_empty() {
                    parent.push(b'/');
                }
                parent.extend_from_slice(&name);
            }
        }
        (list, report)
    }

    /// A symlink to a directory does not count as one: entries below it have another path.
    fn check_directories(
        &self,
        names: &[Cow<'_, [u8]>],
        stat: &impl Fn(&[u8]) -> io::Result<Meta>,
    ) -> io::Result<()> {
        for end in 1..=names.len() {
            let path = joined(names.get(..end).unwrap_or_default());
            if self.children.contains_key(&path) {
                continue;
            }
            let what = match stat(&path)?.kind {
                FileType::Directory => continue,
                FileType::Symlink => "a symbolic link, which is not followed",
                _ => "not a directory",
            };
            let path = String::from_utf8_lossy(&path);
            return Err(io::Error::other(format!("'{path}' is {what}")));
        }
        Ok(())
    }

    /// Names in a directory; `None` if the list has none.
    pub fn children(&self, path: &[u8]) -> Option<&BTreeSet<Vec<u8>>> {
        self.children.get(path)
    }

    /// Upper bound of the memory in bytes: each path is stored with its position, and again as names.
    pub fn memory(&self) -> u64 {
        let paths: usize = self.positions.keys().map(Vec::len).sum();
        let names: usize = self.children.values().map(BTreeSet::len).sum();
        let directories: usize = self.children.keys().map(|path| path.len() + 100).sum();
        (2 * paths + 120 * self.positions.len() + 60 * names + directories) as u64
    }

    /// Position of a path in the list, from 0.
    pub fn position(&self, path: &[u8]) -> Option<u64> {
        self.positions.get(path).copied()
    }
}

/// A path in the form of sources: without leading and trailing slashes, empty components and `.`.
#[must_use]
pub fn plain_path(path: &[u8]) -> Vec<u8> {
    let names = path.split(|&b| b == b'/');
    let names: Vec<&[u8]> = names
        .filter(|name| !name.is_empty() && *name != b".")
        .collect();
    names.join(&b'/')
}

fn joined(names: &[Cow<'_, [u8]>]) -> Vec<u8> {
    let names: Vec<&[u8]> = names.iter().map(|name| &**name).collect();
    names.join(&b'/')
}

/// The components of a path below `root`, or `None` if it is elsewhere.
fn below<'p>(root: &Path, path: &'p Path) -> Option<Vec<Cow<'p, [u8]>>> {
    let inside = if path.is_absolute() {
        path.strip_prefix(root).ok()?
    } else {
        path
    };
    let mut components = Vec::new();
    for component in inside.components() {
        match component {
            Component::Normal(name) => components.push(redwarfs_io::path::bytes(name)),
            Component::CurDir => {}
            _ => return None,
        }
    }
    Some(components)
}
