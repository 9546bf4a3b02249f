//! The listed tree in a compact arena.
//!
//! | for each | bytes |
//! |---|---|
//! | entry | 12 |
//! | inode | 20, or 44 with all times |
//! | regular file | 16, and 4 if the source numbers files |
//! | directory | 12 |
//! | distinct name | its length and 4, and 6 to 12 more while the tree is listed, or 17 while the table of names grows |
//!
//! The children of a directory have consecutive numbers, sorted by name, and directories follow each
//! other depth first. The number of an entry is its index in the image's table of directory entries.
//!
//! Under a low memory limit, the inodes, and which inode an entry has, wait in a temporary file ([`Tree::spill`]). Reading a
//! file needs two of their records. Metadata needs all of them.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use hashbrown::HashTable;
use redwarfs_io::spill::{Records, Spill, SpillFile};
use twox_hash::XxHash3_64;

use crate::error::{Error, Result};
use crate::hook::Marks;
use crate::memory::Load;
use crate::options::BuildOptions;
use crate::source::{FileType, Meta, PackedTime, Stamp, Timestamp};
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

    /// Bytes of memory. The table of names has another one beside it when it grows.
    pub(crate) fn memory(&self) -> u64 {
        self.bytes() + (self.table.allocation_size() * 3 / 2) as u64
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

/// A regular file: one inode, any number of names. 16 bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct File {
    pub(crate) size: u64,
    /// First entry with this inode.
    pub(crate) entry: u32,
    /// Names of this inode in the tree, and [`SPARSE`].
    names: u32,
}

/// Bit of `File::names`: less is allocated than the size, and holes are to be stored as such.
const SPARSE: u32 = 1 << 31;

impl File {
    pub(crate) fn new(size: u64, sparse: bool, entry: u32) -> Self {
        Self {
            size,
            entry,
            names: 1 | if sparse { SPARSE } else { 0 },
        }
    }

    /// Whether less is allocated, and holes are to be stored as such.
    pub(crate) fn sparse(&self) -> bool {
        self.names & SPARSE != 0
    }

    /// Names of this inode in the tree.
    pub(crate) fn links(&self) -> u32 {
        self.names & !SPARSE
    }

    /// Counts another name.
    pub(crate) fn add_link(&mut self) -> Result<()> {
        if self.links() == !SPARSE {
            return Err(Error::Limit("too many hard links to a file".into()));
        }
        self.names += 1;
        Ok(())
    }
}

/// The listed tree.
#[derive(Default)]
pub(crate) struct Tree {
    pub(crate) parents: Vec<u32>,
    pub(crate) name_ids: Vec<u32>,
    /// Inode per entry: an index into the following tables, in order of discovery.
    pub(crate) inodes: Records<u32>,

    attributes: Records<u32>,
    mtimes: Records<PackedTime>,
    /// Empty unless all times are kept.
    atimes: Records<PackedTime>,
    ctimes: Records<PackedTime>,
    /// By type: number of the directory, symlink target, file, device; 0 for others.
    details: Records<u32>,
    /// The temporary file, if inodes are in one.
    file: Option<Arc<SpillFile>>,

    pub(crate) distinct: Vec<Attributes>,
    distinct_ids: HashMap<Attributes, u32>,
    pub(crate) dirs: Vec<Dir>,
    pub(crate) files: Vec<File>,
    /// By file, if the source opens files by number.
    pub(crate) numbers: Vec<u32>,
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
            strings: self.names.memory() + self.targets.memory(),
            text: self.names.bytes() + self.targets.bytes(),
            spilled: self.file.is_some(),
            beside: self.beside
                + self.marks.memory()
                + self.extended.memory()
                + self.until_metadata(),
            listed: self.file_bytes,
            ..Load::default()
        }
    }

    /// Bytes of what is given up before metadata is compressed.
    pub(crate) fn until_metadata(&self) -> u64 {
        let cache = self.file.as_ref().map_or(0, |file| file.memory());
        cache + (size_of::<u32>() * self.numbers.len()) as u64
    }

    /// Gives up everything that is known about inodes, for when it is metadata.
    pub(crate) fn drop_inodes(&mut self) {
        let all = std::mem::take(self);
        (self.parents, self.name_ids, self.inodes) = (all.parents, all.name_ids, all.inodes);
        (self.dirs, self.names) = (all.dirs, all.names);
    }

    pub(crate) fn attributes(&self, inode: u32) -> Attributes {
        self.distinct[self.attributes.at(inode) as usize]
    }

    pub(crate) fn mtime(&self, inode: u32) -> Timestamp {
        self.mtimes.at(inode).get()
    }

    /// Times of access and change; the default ones unless all times are kept.
    pub(crate) fn other_times(&self, inode: u32) -> [Timestamp; 2] {
        [&self.atimes, &self.ctimes].map(|times| times.at(inode).get())
    }

    /// Number of the directory, symlink target, file, or device that an inode is; 0 for others.
    pub(crate) fn detail(&self, inode: u32) -> u32 {
        self.details.at(inode)
    }

    pub(crate) fn set_detail(&mut self, inode: u32, detail: u32) {
        self.details.set(inode, detail);
    }

    pub(crate) fn inode_count(&self) -> usize {
        self.details.len()
    }

    pub(crate) fn file_inode(&self, file: u32) -> u32 {
        self.inodes.at(self.files[file as usize].entry)
    }

    /// Size and time of a file as it was listed.
    pub(crate) fn stamp(&self, file: u32) -> Stamp {
        Stamp {
            size: self.files[file as usize].size,
            mtime: self.mtime(self.file_inode(file)),
        }
    }

    /// Moves the inodes, and which inode an entry has, to a temporary file in `directory`. Returns its size in bytes; none if
    /// files there are in memory themselves. Everything then stays where it is, as after an error. Nothing can be added
    /// afterwards.
    ///
    /// # Errors
    /// There can be no file, or there is no room; [`io::ErrorKind::Interrupted`] when `stop` is set.
    pub(crate) fn spill(&mut self, directory: &Path, stop: &AtomicBool) -> io::Result<Option<u64>> {
        let Some(mut spill) = Spill::new(directory, stop)? else {
            return Ok(None);
        };
        let mut numbers = [&mut self.inodes, &mut self.attributes, &mut self.details];
        let mut times = [&mut self.mtimes, &mut self.atimes, &mut self.ctimes];
        let write = numbers.each_ref().map(|table| spill.records(table));
        let [inodes, attributes, details] = write;
        let all_numbers = [inodes?, attributes?, details?];
        let write = times.each_ref().map(|table| spill.records(table));
        let [mtimes, atimes, ctimes] = write;
        let all_times = [mtimes?, atimes?, ctimes?];
        let file = spill.finish("the temporary file of the inodes")?;
        for (table, moved) in numbers.iter_mut().zip(all_numbers) {
            **table = moved.in_file(&file);
        }
        for (table, moved) in times.iter_mut().zip(all_times) {
            **table = moved.in_file(&file);
        }
        let size = file.size();
        self.file = Some(file);
        Ok(Some(size))
    }

    /// # Errors
    /// [`Error::Spill`] if the temporary file could not be read. What the tree has told since then may be wrong.
    pub(crate) fn check(&self) -> Result<()> {
        check(self.file.as_ref())
    }

    /// The temporary file, for when the tree is gone.
    pub(crate) fn file(&self) -> Option<Arc<SpillFile>> {
        self.file.clone()
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
        let inode = self.inodes.at(self.entry_at(path)?);
        (self.kind(inode) == FileType::Regular).then(|| self.detail(inode))
    }

    /// The entry of the directory with this path.
    pub(crate) fn directory_at(&self, path: &[u8]) -> Option<u32> {
        let entry = self.entry_at(path)?;
        (self.kind(self.inodes.at(entry)) == FileType::Directory).then_some(entry)
    }

    /// Whether an entry is somewhere below a directory.
    pub(crate) fn is_below(&self, entry: u32, directory: u32) -> bool {
        let mut at = entry;
        while at != 0 {
            at = self.parents[at as usize];
            if at == directory {
                return true;
            }
        }
        false
    }

    /// The entry with this path below the root.
    fn entry_at(&self, path: &[u8]) -> Option<u32> {
        let mut entry = 0u32;
        for name in path.split(|&b| b == b'/') {
            let inode = self.inodes.at(entry);
            if self.kind(inode) != FileType::Directory {
                return None;
            }
            let dir = self.dirs.get(self.detail(inode) as usize)?;
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
        Some(entry)
    }

    /// Adds an inode as the options want it; it has no name yet.
    pub(crate) fn add_inode(&mut self, meta: &Meta, options: &BuildOptions) -> Result<u32> {
        let inode = u32::try_from(self.details.len())
            .ok()
            .filter(|&i| i < i32::MAX as u32)
            .ok_or_else(|| Error::Limit("too many inodes".into()))?;
        let attributes = options.attributes(meta);
        // Nearly always the same as those of the one before.
        let last = self.attributes.len().checked_sub(1);
        let last = last.map(|at| self.attributes.at(at as u32));
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
        self.mtimes.push(PackedTime::of(meta.mtime));
        if options.keep_all_times {
            self.atimes.push(PackedTime::of(meta.atime));
            self.ctimes.push(PackedTime::of(meta.ctime));
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

/// # Errors
/// [`Error::Spill`] if a temporary file could not be read.
pub(crate) fn check(file: Option<&Arc<SpillFile>>) -> Result<()> {
    let failure = file.and_then(|file| file.failure());
    failure.map_or(Ok(()), |error| Err(Error::Spill(error)))
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
        let directory = old.kind(old.inodes.at(entry as u32)) == FileType::Directory;
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
        tree.inodes.push(old.inodes.at(entry as u32));
    }
    for parent in &mut tree.parents {
        *parent = moved[*parent as usize];
    }
    let mut details = old.details;
    for dir in old.dirs.iter().filter(|dir| keep[dir.entry as usize]) {
        let children = dir.first as usize..(dir.first + dir.count) as usize;
        let count = keep[children.clone()].iter().filter(|&&k| k).count() as u32;
        // The children of all directories before this one have been counted already.
        let first = tree.dirs.last().map_or(1, |d: &Dir| d.first + d.count);
        details.set(old.inodes.at(dir.entry), tree.dirs.len() as u32);
        tree.dirs.push(Dir {
            entry: moved[dir.entry as usize],
            first,
            count,
        });
    }
    tree.marks = old.marks;
    tree.numbers = old.numbers;
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
