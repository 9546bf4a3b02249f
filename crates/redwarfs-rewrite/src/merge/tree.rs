//! The tree of a merge, in memory: names, and where each entry comes from.
//!
//! An entry takes about 90 bytes and the length of its name.

use std::collections::{BTreeMap, BTreeSet};

use redwarfs_format::EntryIndex;
use redwarfs_format::metadata::FileType;
use redwarfs_writer::plain_path;

use super::Error as MergeError;
use crate::error::{Error, Result};

/// Number of the root.
pub(crate) const ROOT: u32 = 0;
/// Longest path in bytes, as for walks of an image: sixteen times what systems accept.
const LONGEST_PATH: usize = 64 << 10;

/// Where an entry comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// An entry of the part with this number.
    Part(u32, EntryIndex),
    /// A directory that no part has.
    Directory,
    /// The device that overlayfs takes for a whiteout.
    Whiteout,
}

#[derive(Debug)]
struct Node {
    origin: Origin,
    kind: FileType,
    /// Entries by name; empty unless it is a directory.
    children: BTreeMap<Box<[u8]>, u32>,
}

/// The namespace of an attribute of overlayfs, which depends on how it is mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Space {
    Trusted,
    User,
}

/// The tree.
#[derive(Debug)]
pub(crate) struct Tree {
    nodes: Vec<Node>,
    /// Directories that get the attribute by which overlayfs knows opaque ones.
    opaque: BTreeSet<(u32, Space)>,
}

fn shown(path: &[u8]) -> String {
    format!("/{}", String::from_utf8_lossy(&plain_path(path)))
}

pub(crate) fn refuse(path: &[u8], why: &'static str) -> Error {
    MergeError::Path {
        path: shown(path),
        why,
    }
    .into()
}

/// The components of a path; empty ones and `.` do not count.
fn components(path: &[u8]) -> Result<Vec<&[u8]>> {
    let names: Vec<&[u8]> = path
        .split(|&b| b == b'/')
        .filter(|name| !name.is_empty() && *name != b".")
        .collect();
    if names.contains(&&b".."[..]) {
        return Err(refuse(path, "it contains '..'"));
    }
    Ok(names)
}

impl Tree {
    pub(crate) fn new() -> Self {
        Self {
            nodes: vec![Node {
                origin: Origin::Directory,
                kind: FileType::Directory,
                children: BTreeMap::new(),
            }],
            opaque: BTreeSet::new(),
        }
    }

    fn node(&self, node: u32) -> Option<&Node> {
        self.nodes.get(node as usize)
    }

    fn children_mut(&mut self, node: u32) -> Option<&mut BTreeMap<Box<[u8]>, u32>> {
        self.nodes
            .get_mut(node as usize)
            .map(|node| &mut node.children)
    }

    pub(crate) fn origin(&self, node: u32) -> Origin {
        self.node(node)
            .map_or(Origin::Directory, |node| node.origin)
    }

    pub(crate) fn kind(&self, node: u32) -> FileType {
        self.node(node)
            .map_or(FileType::Directory, |node| node.kind)
    }

    pub(crate) fn set_origin(&mut self, node: u32, origin: Origin) {
        if let Some(node) = self.nodes.get_mut(node as usize) {
            node.origin = origin;
        }
    }

    pub(crate) fn is_opaque(&self, node: u32, space: Space) -> bool {
        self.opaque.contains(&(node, space))
    }

    pub(crate) fn set_opaque(&mut self, node: u32, space: Space) {
        self.opaque.insert((node, space));
    }

    /// The entries of a directory, by name.
    pub(crate) fn children(&self, node: u32) -> impl Iterator<Item = (&[u8], u32)> {
        let node = self.node(node).into_iter();
        node.flat_map(|node| node.children.iter().map(|(name, &child)| (&**name, child)))
    }

    pub(crate) fn child(&self, node: u32, name: &[u8]) -> Option<u32> {
        self.node(node)?.children.get(name).copied()
    }

    /// Puts an entry into a directory, in place of the one with this name. A directory takes over the
    /// entries of a directory.
    pub(crate) fn put(
        &mut self,
        parent: u32,
        name: &[u8],
        origin: Origin,
        kind: FileType,
    ) -> Result<u32> {
        if let Some(old) = self.child(parent, name)
            && kind == FileType::Directory
            && self.kind(old) == kind
        {
            self.set_origin(old, origin);
            return Ok(old);
        }
        let new = u32::try_from(self.nodes.len()).map_err(|_| Error::limit("too many entries"))?;
        self.nodes.push(Node {
            origin,
            kind,
            children: BTreeMap::new(),
        });
        if let Some(children) = self.children_mut(parent) {
            children.insert(name.into(), new);
        }
        Ok(new)
    }

    /// Takes an entry out of its directory. Returns whether there was one.
    pub(crate) fn take(&mut self, parent: u32, name: &[u8]) -> Option<u32> {
        self.children_mut(parent)?.remove(name)
    }

    /// Takes all entries out of a directory.
    pub(crate) fn empty(&mut self, node: u32) {
        if let Some(children) = self.children_mut(node) {
            children.clear();
        }
    }

    /// The directory with a path, made if it is not there.
    pub(crate) fn directory(&mut self, path: &[u8]) -> Result<u32> {
        let mut at = ROOT;
        for name in components(path)? {
            at = match self.child(at, name) {
                Some(child) if self.kind(child) == FileType::Directory => child,
                Some(_) => return Err(refuse(path, "an entry on the way is not a directory")),
                None => self.put(at, name, Origin::Directory, FileType::Directory)?,
            };
        }
        Ok(at)
    }

    /// The directory of an entry, and the entry.
    fn place<'a>(&self, path: &'a [u8]) -> Result<(u32, &'a [u8], u32)> {
        let missing = || refuse(path, "there is no such entry");
        let mut names = components(path)?;
        let name = names
            .pop()
            .ok_or_else(|| refuse(path, "the root cannot be removed or renamed"))?;
        let mut at = ROOT;
        for name in names {
            at = self.child(at, name).ok_or_else(missing)?;
        }
        let found = self.child(at, name).ok_or_else(missing)?;
        Ok((at, name, found))
    }

    /// Removes an entry and everything below it.
    pub(crate) fn remove(&mut self, path: &[u8]) -> Result<()> {
        let (parent, name, _) = self.place(path)?;
        self.take(parent, name);
        Ok(())
    }

    /// Gives an entry another path.
    pub(crate) fn rename(&mut self, old: &[u8], new: &[u8]) -> Result<()> {
        let (parent, name, moved) = self.place(old)?;
        let (from, mut to) = (components(old)?, components(new)?);
        if to.starts_with(&from) {
            return Err(refuse(new, "it is the old path, or lies below it"));
        }
        let last = to
            .pop()
            .ok_or_else(|| refuse(new, "an entry with this path exists"))?;
        let above = to.join(&b'/');
        let target = self.directory(&above)?;
        if self.child(target, last).is_some() {
            return Err(refuse(new, "an entry with this path exists"));
        }
        self.take(parent, name);
        if let Some(children) = self.children_mut(target) {
            children.insert(last.into(), moved);
        }
        Ok(())
    }

    /// Removes the entries for which `keep` returns false, with everything below them.
    pub(crate) fn retain(&mut self, keep: &dyn Fn(&[u8], FileType) -> bool) -> Result<()> {
        let mut todo = vec![(ROOT, Vec::new())];
        while let Some((directory, path)) = todo.pop() {
            let mut gone: Vec<Box<[u8]>> = Vec::new();
            for (name, child) in self.children(directory) {
                let below = join(&path, name)?;
                let kind = self.kind(child);
                if !keep(&below, kind) {
                    gone.push(name.into());
                } else if kind == FileType::Directory {
                    todo.push((child, below));
                }
            }
            for name in gone {
                self.take(directory, &name);
            }
        }
        Ok(())
    }

    /// Calls `visit` with every entry that has a path, the root first and directories before what they
    /// hold.
    pub(crate) fn each(&self, visit: &mut dyn FnMut(u32) -> Result<()>) -> Result<()> {
        let mut todo = vec![ROOT];
        while let Some(node) = todo.pop() {
            visit(node)?;
            let start = todo.len();
            todo.extend(self.children(node).map(|(_, child)| child));
            if let Some(added) = todo.get_mut(start..) {
                added.reverse();
            }
        }
        Ok(())
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        self.nodes.len() as u64 * 96
    }
}

/// The way to the entry that was found last. Paths that begin alike are found from there.
#[derive(Debug, Default)]
pub(crate) struct Way {
    path: Vec<u8>,
    /// Of each directory on the way, and of the entry: the end of its path, and its number.
    nodes: Vec<(usize, u32)>,
}

impl Way {
    /// The entry with a path of `tree`, without a leading slash.
    pub(crate) fn find(&mut self, tree: &Tree, path: &[u8]) -> Option<u32> {
        let same = self.path.iter().zip(path).take_while(|(a, b)| a == b);
        let same = same.count();
        let ends_at = |end: usize| end == path.len() || path.get(end) == Some(&b'/');
        while self
            .nodes
            .last()
            .is_some_and(|&(end, _)| end > same || !ends_at(end))
        {
            self.nodes.pop();
        }
        self.path.truncate(same);
        self.path.extend_from_slice(path.get(same..)?);
        let (mut end, mut at) = self.nodes.last().copied().unwrap_or((0, ROOT));
        for name in path.get(end..)?.split(|&b| b == b'/') {
            if name.is_empty() {
                continue;
            }
            at = tree.child(at, name)?;
            end += name.len() + usize::from(end > 0);
            self.nodes.push((end, at));
        }
        Some(at)
    }
}

/// A path with another name at its end.
pub(crate) fn join(path: &[u8], name: &[u8]) -> Result<Vec<u8>> {
    if path.len() + name.len() >= LONGEST_PATH {
        return Err(Error::limit("a path is longer than 64 KiB"));
    }
    Ok(match path {
        [] => name.to_vec(),
        path => [path, name].join(&b'/'),
    })
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    fn tree(paths: &[&str]) -> Tree {
        let mut tree = Tree::new();
        for path in paths {
            let (above, name) = path.rsplit_once('/').unwrap_or(("", path));
            let parent = tree.directory(above.as_bytes()).unwrap();
            let name = name.as_bytes();
            tree.put(parent, name, Origin::Whiteout, FileType::Regular)
                .unwrap();
        }
        tree
    }

    fn paths(tree: &Tree) -> Vec<String> {
        let mut found = Vec::new();
        let mut todo = vec![(ROOT, String::new())];
        while let Some((node, path)) = todo.pop() {
            for (name, child) in tree.children(node) {
                let below = format!("{path}/{}", String::from_utf8_lossy(name));
                found.push(below.clone());
                todo.push((child, below));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn entries_are_removed_and_renamed() {
        let mut tree = tree(&["a/b", "a/c", "d"]);
        tree.remove(b"/a/b/").unwrap();
        tree.rename(b"a", b"x/./y").unwrap();
        tree.rename(b"d", b"x/y/d").unwrap();
        assert_eq!(paths(&tree), ["/x", "/x/y", "/x/y/c", "/x/y/d"]);
        for (old, new, why) in [
            ("q", "r", "/q: there is no such entry"),
            ("", "r", "/: the root cannot be removed or renamed"),
            ("x", "x/z", "/x/z: it is the old path, or lies below it"),
            ("x", "x", "/x: it is the old path, or lies below it"),
            ("x/y", "x", "/x: an entry with this path exists"),
            ("x", "/", "/: an entry with this path exists"),
            (
                "x/y/c",
                "x/y/d/e",
                "/x/y/d: an entry on the way is not a directory",
            ),
            ("x/../x", "z", "/x/../x: it contains '..'"),
        ] {
            let error = tree.rename(old.as_bytes(), new.as_bytes()).unwrap_err();
            assert_eq!(error.to_string(), why, "{old} {new}");
        }
        assert_eq!(paths(&tree), ["/x", "/x/y", "/x/y/c", "/x/y/d"]);
    }

    #[test]
    fn the_way_leads_to_every_entry() {
        let tree = tree(&["a/b/c", "a/bb/c", "a/b/d", "ab", "e"]);
        let way = &mut Way::default();
        let plain = |path: &str| {
            let mut names = path.split('/').filter(|name| !name.is_empty());
            names.try_fold(ROOT, |at, name| tree.child(at, name.as_bytes()))
        };
        let paths = [
            "", "a", "a/b", "a/b/c", "a/b/d", "a/b/x", "a/bb", "a/bb/c", "a/b/c", "ab", "ab/c",
            "a/b", "abc", "a", "", "e", "e/f", "a/b/c",
        ];
        for path in paths {
            assert_eq!(way.find(&tree, path.as_bytes()), plain(path), "{path}");
        }
    }

    #[test]
    fn what_is_below_an_excluded_directory_is_not_examined() {
        let mut tree = tree(&["a/b", "a/c", "d/b"]);
        tree.retain(&|path, _| {
            assert!(!path.starts_with(b"a/"));
            path != b"a" && path != b"d/b"
        })
        .unwrap();
        assert_eq!(paths(&tree), ["/d"]);
    }

    #[test]
    fn a_directory_takes_over_entries_and_other_entries_replace() {
        let mut tree = tree(&["a/b", "c"]);
        let origin = Origin::Part(1, EntryIndex(7));
        let a = tree.put(ROOT, b"a", origin, FileType::Directory).unwrap();
        assert_eq!(tree.origin(a), origin);
        tree.put(ROOT, b"c", origin, FileType::Directory).unwrap();
        assert_eq!(paths(&tree), ["/a", "/a/b", "/c"]);
        tree.put(ROOT, b"a", origin, FileType::Regular).unwrap();
        assert_eq!(paths(&tree), ["/a", "/c"]);
    }
}
