//! Lists directories and walks the tree.

use std::borrow::Cow;
use std::ops::Range;

use redwarfs_format::metadata::{FileType, MetadataView};
use redwarfs_format::{EntryIndex, Error, InodeNo, Result};

/// One name in a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DirEntry<'a> {
    /// Index in the table of all entries.
    pub index: EntryIndex,
    /// The inode of the name.
    pub inode: InodeNo,
    /// The name.
    pub name: Cow<'a, [u8]>,
}

/// The entries of a directory, sorted by name, without `.` and `..`.
///
/// The position counts entries from 0 and can be set, so that a listing can be continued.
#[derive(Debug, Clone)]
pub struct ReadDir<'a> {
    view: &'a MetadataView,
    entries: Range<u32>,
    at: u32,
}

impl<'a> ReadDir<'a> {
    pub(crate) fn new(view: &'a MetadataView, entries: Range<u32>) -> Self {
        let at = entries.start;
        Self { view, entries, at }
    }

    /// Number of entries of the directory, wherever the position is.
    pub fn entry_count(&self) -> u32 {
        self.entries.end.saturating_sub(self.entries.start)
    }

    /// Number of entries before the next one.
    pub fn position(&self) -> u32 {
        self.at - self.entries.start
    }

    /// Goes to a position; beyond the end is the end.
    pub fn seek(&mut self, position: u32) {
        self.at = self
            .entries
            .start
            .saturating_add(position)
            .min(self.entries.end.max(self.entries.start));
    }
}

impl<'a> Iterator for ReadDir<'a> {
    type Item = Result<DirEntry<'a>>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.at >= self.entries.end {
            return None;
        }
        let index = EntryIndex(self.at);
        self.at += 1;
        Some(self.view.entry_inode(index).and_then(|inode| {
            let name = self.view.entry_name(index)?;
            Ok(DirEntry { index, inode, name })
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        let left = self.entries.end.saturating_sub(self.at) as usize;
        (left, Some(left))
    }
}

impl ExactSizeIterator for ReadDir<'_> {}
impl std::iter::FusedIterator for ReadDir<'_> {}

/// One step of a [`Walk`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WalkEntry {
    /// Path relative to the root, without leading slash; empty for the root.
    pub path: Vec<u8>,
    /// The inode.
    pub inode: InodeNo,
    /// Number of directories above: 0 for the root.
    pub depth: u32,
    /// Index in the table of all entries.
    pub entry: EntryIndex,
}

/// Longest path of a walk in bytes (64 KiB), sixteen times what systems accept. Every entry has a full
/// path, so the paths of a chain of a million directories would take terabytes.
const LONGEST_PATH: usize = 64 << 10;

/// All entries of an image, depth first, every directory before its contents, sorted by name.
///
/// Takes no recursion. A directory that is reached a second time, which only happens in corrupt images,
/// gives an error and is not entered again; so every image ends. A path of more than 64 KiB is an
/// error, too. After an error, the walk continues with the next entry.
#[derive(Debug)]
pub struct Walk<'a> {
    view: &'a MetadataView,
    /// Remaining entries of each open directory, and the length of its path.
    open: Vec<(Range<u32>, usize)>,
    path: Vec<u8>,
    visited: Vec<u64>,
    /// Entries that may still be shown: an entry has one place in a tree.
    budget: u32,
    started: bool,
}

impl<'a> Walk<'a> {
    pub(crate) fn new(view: &'a MetadataView) -> Self {
        Self {
            view,
            open: Vec::new(),
            path: Vec::new(),
            visited: Vec::new(),
            budget: view.entry_count(),
            started: false,
        }
    }

    /// Marks a directory as visited; an error if it already was.
    fn enter(&mut self, dir: InodeNo) -> Result<()> {
        if self.visited.is_empty() {
            self.visited = vec![0; self.view.inode_count() as usize / 64 + 1];
        }
        let mask = 1 << (dir.0 % 64);
        match self.visited.get_mut(dir.0 as usize / 64) {
            Some(word) if *word & mask == 0 => *word |= mask,
            _ => {
                return Err(Error::corrupt(format!(
                    "directory inode {dir} is reached by more than one path"
                )));
            }
        }
        let entries = self.view.entries(dir)?;
        self.open.push((entries, self.path.len()));
        Ok(())
    }

    fn visit(&mut self, entry: EntryIndex, depth: u32) -> Result<WalkEntry> {
        let inode = self.view.entry_inode(entry)?;
        let name = self.view.entry_name(entry)?;
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        self.path.extend_from_slice(&name);
        if self.path.len() > LONGEST_PATH {
            return Err(Error::Limit(format!(
                "a path of {} bytes (entry {entry})",
                self.path.len()
            )));
        }
        let path = self.path.clone();
        if self.view.file_type(inode)? == FileType::Directory {
            self.enter(inode)?;
        }
        Ok(WalkEntry {
            path,
            inode,
            depth,
            entry,
        })
    }

    fn start(&mut self) -> Result<WalkEntry> {
        self.enter(InodeNo::ROOT)?;
        Ok(WalkEntry {
            path: Vec::new(),
            inode: InodeNo::ROOT,
            depth: 0,
            entry: self.view.root_entry(),
        })
    }
}

impl Iterator for Walk<'_> {
    type Item = Result<WalkEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        if !self.started {
            self.started = true;
            return Some(self.start());
        }
        loop {
            let depth = u32::try_from(self.open.len()).unwrap_or(u32::MAX);
            let (entries, path_len) = self.open.last_mut()?;
            let Some(index) = entries.next() else {
                self.open.pop();
                continue;
            };
            let Some(budget) = self.budget.checked_sub(1) else {
                self.open.clear();
                return Some(Err(Error::corrupt("directories share entries")));
            };
            self.budget = budget;
            let path_len = *path_len;
            self.path.truncate(path_len);
            return Some(self.visit(EntryIndex(index), depth));
        }
    }
}
