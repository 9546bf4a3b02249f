//! The finished tree: look-ups by path.

use std::collections::HashMap;

use crate::tree::Inode;

/// An entry of the finished tree.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Entry {
    pub(crate) name: (usize, u32),
    pub(crate) inode: u32,
    pub(crate) node: u32,
}

/// A finished tree.
#[derive(Debug)]
pub(crate) struct Finished {
    pub(crate) root: u32,
    pub(crate) entries: Vec<Entry>,
    /// The children of a directory, by its number.
    pub(crate) ranges: HashMap<u32, (u32, u32)>,
    pub(crate) names: Vec<u8>,
    pub(crate) inodes: Vec<Inode>,
    /// Bytes that entries of variable size take.
    pub(crate) variable: u64,
}

impl Finished {
    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        let entries = self.entries.capacity() * size_of::<Entry>() + self.ranges.capacity() * 16;
        let inodes = self.inodes.capacity() * size_of::<Inode>();
        (entries + inodes + self.names.capacity()) as u64 + self.variable
    }

    pub(crate) fn name(&self, entry: &Entry) -> &[u8] {
        let (start, length) = entry.name;
        (self.names.get(start..start + length as usize)).unwrap_or_default()
    }

    fn children_of(&self, node: u32) -> &[Entry] {
        let (start, end) = self.ranges.get(&node).copied().unwrap_or_default();
        (self.entries.get(start as usize..end as usize)).unwrap_or_default()
    }

    /// The inode of a path, and its children in the order of their names.
    pub(crate) fn find(&self, path: &[u8]) -> Option<(u32, &[Entry])> {
        let (mut inode, mut children) = (self.root, self.children_of(0));
        if path.is_empty() {
            return Some((inode, children));
        }
        for name in path.split(|&b| b == b'/') {
            let at = children.binary_search_by(|entry| self.name(entry).cmp(name));
            let entry = children.get(at.ok()?)?;
            inode = entry.inode;
            children = self.children_of(entry.node);
        }
        Some((inode, children))
    }

    pub(crate) fn inode(&self, number: u32) -> Option<&Inode> {
        self.inodes.get(number as usize)
    }
}
