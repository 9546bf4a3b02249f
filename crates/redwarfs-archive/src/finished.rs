//! The finished tree: look-ups by path.

use std::collections::HashMap;

use crate::inode::Inodes;

/// An entry of the finished tree, in 12 bytes.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    /// Where the name begins in the arena, and in the lowest byte its length; the lower half comes first.
    name: [u32; 2],
    pub(crate) inode: u32,
}

impl Entry {
    /// `name` is the place of a name of at most 255 bytes in the first 2^56 bytes of the arena.
    pub(crate) fn new((start, length): (usize, u32), inode: u32) -> Self {
        let name = ((start as u64) << 8) | u64::from(length & 0xff);
        Self {
            name: [name as u32, (name >> 32) as u32],
            inode,
        }
    }

    fn name(&self) -> (usize, usize) {
        let name = u64::from(self.name[0]) | (u64::from(self.name[1]) << 32);
        ((name >> 8) as usize, (name & 0xff) as usize)
    }
}

/// The first of some entries, and the one after the last.
pub(crate) type EntryRange = (u32, u32);

/// A finished tree. Memory for an entry: 12 bytes, its name, and its inode.
#[derive(Debug, Default)]
pub(crate) struct Finished {
    pub(crate) root: u32,
    /// The children of the root.
    pub(crate) top: EntryRange,
    pub(crate) entries: Vec<Entry>,
    /// The children of other directories, by the number of their entry.
    pub(crate) ranges: HashMap<u32, EntryRange>,
    pub(crate) names: Vec<u8>,
    pub(crate) inodes: Inodes,
}

impl Finished {
    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        let entries = self.entries.capacity() * size_of::<Entry>() + self.ranges.capacity() * 16;
        (entries + self.names.capacity()) as u64 + self.inodes.memory()
    }

    pub(crate) fn name(&self, entry: &Entry) -> &[u8] {
        let (start, length) = entry.name();
        (self.names.get(start..start + length)).unwrap_or_default()
    }

    fn entries(&self, (start, end): EntryRange) -> &[Entry] {
        (self.entries.get(start as usize..end as usize)).unwrap_or_default()
    }

    /// The inode of a path, and its children in the order of their names.
    pub(crate) fn find(&self, path: &[u8]) -> Option<(u32, &[Entry])> {
        let (mut inode, mut children) = (self.root, self.top);
        if path.is_empty() {
            return Some((inode, self.entries(children)));
        }
        for name in path.split(|&b| b == b'/') {
            let entries = self.entries(children);
            let at = entries.binary_search_by(|entry| self.name(entry).cmp(name));
            let at = at.ok()?;
            inode = entries.get(at)?.inode;
            let number = children.0 + at as u32;
            children = self.ranges.get(&number).copied().unwrap_or_default();
        }
        Some((inode, self.entries(children)))
    }
}
