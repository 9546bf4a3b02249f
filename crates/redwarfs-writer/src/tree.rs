//! The listed tree in a compact arena.
//!
//! | for each | bytes |
//! |---|---|
//! | entry | 12 |
//! | inode | 24, or 56 with all times |
//! | regular file | 24 |
//! | directory | 12 |
//! | distinct name | its length and 4, and 6 to 12 more while the tree is listed |
//!
//! The children of a directory have consecutive numbers, sorted by name, and directories follow each
//! other depth first. The number of an entry is its index in the image's table of directory entries.

use std::cmp::Ordering;
use std::collections::HashMap;

use hashbrown::HashTable;
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::hook::Marks;
use crate::memory::Load;
use crate::options::BuildOptions;
use crate::source::{FileType, Meta, Timestamp};
use crate::stored::Attributes;
use crate::xattrs;

/// Distinct byte strings, numbered in order of first use.
#[derive(Default)]
pub(crate) struct Interner {
    bytes: Vec<u8>,
    ends: Vec<u32>,
    /// Empty when the last one has been added.
    table: HashTable<u32>,
}

impl Interner {
    pub(crate) fn get(&self, id: u32) -> &[u8] {
        let id = id as usize;
        let start = id
            .checked_sub(1)
            .and_then(|i| self.ends.get(i))
            .copied()
            .unwrap_or(0);
        self.ends
            .get(id)
            .and_then(|&end| self.bytes.get(start as usize..end as usize))
            .unwrap_or_default()
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// Bytes of all strings, and of their places.
    pub(crate) fn bytes(&self) -> u64 {
        (self.bytes.len() + size_of::<u32>() * self.ends.len()) as u64
    }

    pub(crate) fn intern(&mut self, string: &[u8]) -> Result<u32> {
        let hash = XxHash3_64::oneshot(string);
        let (bytes, ends) = (&self.bytes, &self.ends);
        let piece = |id: u32| {
            let id = id as usize;
            let start = if id == 0 { 0 } else { ends[id - 1] };
            &bytes[start as usize..ends[id] as usize]
        };
        if let Some(&id) = self.table.find(hash, |&id| piece(id) == string) {
            return Ok(id);
        }
        let id = u32::try_from(self.ends.len())
            .map_err(|_| Error::Limit("too many different names or attributes".into()))?;
        let end = u32::try_from(self.bytes.len() + string.len())
            .map_err(|_| Error::Limit("too many bytes of different names or attributes".into()))?;
        self.table
            .insert_unique(hash, id, |&id| XxHash3_64::oneshot(piece(id)));
        self.bytes.extend_from_slice(string);
        self.ends.push(end);
        Ok(id)
    }

    /// No entry will be added later.
    pub(crate) fn seal(&mut self) {
        self.table = HashTable::new();
    }
}

/// A directory: its entry and the range of its children.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Dir {
    pub(crate) entry: u32,
    pub(crate) first: u32,
    pub(crate) count: u32,
}

/// A regular file: one inode, any number of names.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File {
    pub(crate) size: u64,
    /// Less is allocated, and holes are to be stored as such.
    pub(crate) sparse: bool,
    /// First entry with this inode.
    pub(crate) entry: u32,
    /// Names of this inode in the tree.
    pub(crate) links: u32,
    pub(crate) inode: u32,
}

/// The listed tree.
#[derive(Default)]
pub(crate) struct Tree {
    pub(crate) parents: Vec<u32>,
    pub(crate) name_ids: Vec<u32>,
    /// Inode per entry: an index into the following vectors, in order of discovery.
    pub(crate) inodes: Vec<u32>,

    attributes: Vec<u32>,
    pub(crate) mtimes: Vec<Timestamp>,
    /// Empty unless all times are kept.
    pub(crate) atimes: Vec<Timestamp>,
    pub(crate) ctimes: Vec<Timestamp>,
    /// By type: number of the directory, symlink target, file, device; 0 for others.
    pub(crate) details: Vec<u32>,

    pub(crate) distinct: Vec<Attributes>,
    distinct_ids: HashMap<Attributes, u32>,
    pub(crate) dirs: Vec<Dir>,
    pub(crate) files: Vec<File>,
    /// The results of the hook for files.
    pub(crate) marks: Marks,
    pub(crate) rdevs: Vec<u64>,
    pub(crate) names: Interner,
    pub(crate) targets: Interner,
    /// Extended attributes, birth times and flags.
    pub(crate) extended: xattrs::Attributes,
    /// Bytes that source and hook hold.
    pub(crate) beside: u64,
    /// Sizes of all files together.
    pub(crate) file_bytes: u64,
}

impl Tree {
    /// The known data: no content yet.
    pub(crate) fn load(&self) -> Load {
        Load {
            entries: self.inodes.len() as u64,
            directories: self.dirs.len() as u64,
            strings: (self.names.bytes.len() + self.targets.bytes.len()) as u64,
            beside: self.beside + self.marks.memory() + self.extended.memory(),
            listed: self.file_bytes,
            ..Load::default()
        }
    }

    /// Gives up everything that is known about inodes, for when it is metadata.
    pub(crate) fn drop_inodes(&mut self) {
        let all = std::mem::take(self);
        (self.parents, self.name_ids, self.inodes) = (all.parents, all.name_ids, all.inodes);
        (self.dirs, self.names) = (all.dirs, all.names);
    }

    pub(crate) fn attributes(&self, inode: u32) -> Attributes {
        self.distinct[self.attributes[inode as usize] as usize]
    }

    pub(crate) fn kind(&self, inode: u32) -> FileType {
        // Modes are composed from a kind in `add_inode`.
        FileType::from_mode(self.attributes(inode).mode).unwrap_or(FileType::Regular)
    }

    pub(crate) fn name(&self, entry: u32) -> &[u8] {
        if entry == 0 {
            b""
        } else {
            self.names.get(self.name_ids[entry as usize])
        }
    }

    /// Path relative to the root.
    pub(crate) fn path(&self, entry: u32) -> Vec<u8> {
        let mut chain = Vec::new();
        let mut at = entry;
        while at != 0 {
            chain.push(at);
            at = self.parents[at as usize];
        }
        let mut path = Vec::new();
        for (i, &entry) in chain.iter().rev().enumerate() {
            if i > 0 {
                path.push(b'/');
            }
            path.extend_from_slice(self.name(entry));
        }
        path
    }

    pub(crate) fn file_path(&self, file: u32) -> Vec<u8> {
        self.path(self.files[file as usize].entry)
    }

    /// The regular file that has this path among its names.
    pub(crate) fn file_at(&self, path: &[u8]) -> Option<u32> {
        let mut entry = 0u32;
        for name in path.split(|&b| b == b'/') {
            let inode = *self.inodes.get(entry as usize)?;
            if self.kind(inode) != FileType::Directory {
                return None;
            }
            let dir = self.dirs.get(*self.details.get(inode as usize)? as usize)?;
            let (mut low, mut high) = (dir.first, dir.first.checked_add(dir.count)?);
            // Children are sorted by name.
            while low < high {
                let middle = low + (high - low) / 2;
                if self.name(middle) < name {
                    low = middle + 1;
                } else {
                    high = middle;
                }
            }
            if low == dir.first + dir.count || self.name(low) != name {
                return None;
            }
            entry = low;
        }
        let inode = *self.inodes.get(entry as usize)?;
        (self.kind(inode) == FileType::Regular)
            .then(|| self.details.get(inode as usize).copied())
            .flatten()
    }

    /// Adds an inode as the options want it; it has no name yet.
    pub(crate) fn add_inode(&mut self, meta: &Meta, options: &BuildOptions) -> Result<u32> {
        let inode = u32::try_from(self.details.len())
            .ok()
            .filter(|&i| i < i32::MAX as u32)
            .ok_or_else(|| Error::Limit("too many inodes".into()))?;
        let attributes = options.attributes(meta);
        // Nearly always the same as those of the one before.
        let last = self.attributes.last().copied();
        let last = last.filter(|&id| self.distinct.get(id as usize) == Some(&attributes));
        let id = last.unwrap_or_else(|| {
            let next = self.distinct.len() as u32;
            let id = *self.distinct_ids.entry(attributes).or_insert(next);
            if id == next {
                self.distinct.push(attributes);
            }
            id
        });
        self.attributes.push(id);
        self.mtimes.push(meta.mtime);
        if options.keep_all_times {
            self.atimes.push(meta.atime);
            self.ctimes.push(meta.ctime);
        }
        self.details.push(0);
        Ok(inode)
    }

    /// Adds a name of an inode.
    pub(crate) fn add_entry(&mut self, parent: u32, name: u32, inode: u32) -> Result<u32> {
        let entry = u32::try_from(self.inodes.len())
            .ok()
            .filter(|&e| e < u32::MAX - 1)
            .ok_or_else(|| Error::Limit("too many directory entries".into()))?;
        self.parents.push(parent);
        self.name_ids.push(name);
        self.inodes.push(inode);
        Ok(entry)
    }
}

/// Compares two entries by path components from the last to the first; a path that runs out
/// first is smaller.
pub(crate) fn reverse_path(tree: &Tree, a: u32, b: u32) -> Ordering {
    let (mut a, mut b) = (a, b);
    while a != b {
        match (a, b) {
            (0, _) => return Ordering::Less,
            (_, 0) => return Ordering::Greater,
            _ => {}
        }
        if tree.name_ids[a as usize] != tree.name_ids[b as usize] {
            return tree.name(a).cmp(tree.name(b));
        }
        a = tree.parents[a as usize];
        b = tree.parents[b as usize];
    }
    Ordering::Equal
}

/// Compares the full paths of two entries as byte strings, without building them.
pub(crate) fn forward_path(tree: &Tree, a: u32, b: u32) -> Ordering {
    let depth = |mut entry: u32| {
        let mut depth = 0usize;
        while entry != 0 {
            entry = tree.parents[entry as usize];
            depth += 1;
        }
        depth
    };
    if a == b {
        return Ordering::Equal;
    }
    let (mut x, mut y) = (a, b);
    let (dx, dy) = (depth(a), depth(b));
    for _ in dy..dx {
        x = tree.parents[x as usize];
    }
    for _ in dx..dy {
        y = tree.parents[y as usize];
    }
    if x == y {
        return dx.cmp(&dy);
    }
    while tree.parents[x as usize] != tree.parents[y as usize] {
        x = tree.parents[x as usize];
        y = tree.parents[y as usize];
    }
    // Siblings with different names.
    tail(tree, x, x == a).cmp(tail(tree, y, y == b))
}

/// The name of an entry, followed by a slash unless it is the last component of a path.
pub(crate) fn tail(tree: &Tree, entry: u32, last: bool) -> impl Iterator<Item = &u8> {
    let slash: &[u8] = if last { b"" } else { b"/" };
    tree.name(entry).iter().chain(slash)
}

/// Copies the tree without directories that hold nothing but such directories. The root stays.
pub(crate) fn without_empty_directories(old: Tree) -> Tree {
    let mut keep = vec![false; old.inodes.len()];
    if let Some(root) = keep.first_mut() {
        *root = true;
    }
    for entry in 1..old.inodes.len() {
        let directory = old.kind(old.inodes[entry]) == FileType::Directory;
        let mut at = entry;
        // Everything above something that is not a directory stays.
        while !directory && at != 0 && !keep[at] {
            keep[at] = true;
            at = old.parents[at] as usize;
        }
    }
    let mut tree = Tree {
        names: old.names,
        beside: old.beside,
        file_bytes: old.file_bytes,
        ..Tree::default()
    };
    let mut moved = vec![0u32; old.inodes.len()];
    for (entry, place) in moved
        .iter_mut()
        .enumerate()
        .filter(|(entry, _)| keep[*entry])
    {
        *place = tree.inodes.len() as u32;
        // Parents precede their children, so the parent's place is final after this loop.
        tree.parents.push(old.parents[entry]);
        tree.name_ids.push(old.name_ids[entry]);
        tree.inodes.push(old.inodes[entry]);
    }
    for parent in &mut tree.parents {
        *parent = moved[*parent as usize];
    }
    let mut details = old.details.clone();
    for dir in old.dirs.iter().filter(|dir| keep[dir.entry as usize]) {
        let children = dir.first as usize..(dir.first + dir.count) as usize;
        let count = keep[children.clone()].iter().filter(|&&k| k).count() as u32;
        // The children of all directories before this one have been counted already.
        let first = tree.dirs.last().map_or(1, |d: &Dir| d.first + d.count);
        details[old.inodes[dir.entry as usize] as usize] = tree.dirs.len() as u32;
        tree.dirs.push(Dir {
            entry: moved[dir.entry as usize],
            first,
            count,
        });
    }
    tree.marks = old.marks;
    tree.files = old.files;
    for file in &mut tree.files {
        file.entry = moved[file.entry as usize];
    }
    tree.attributes = old.attributes;
    tree.mtimes = old.mtimes;
    tree.atimes = old.atimes;
    tree.ctimes = old.ctimes;
    tree.details = details;
    tree.distinct = old.distinct;
    tree.rdevs = old.rdevs;
    tree.targets = old.targets;
    tree.extended = old.extended;
    tree
}
