//! The tree of archives as a source of a build.

use std::collections::VecDeque;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard};

use redwarfs_writer::{
    Content, DataExtent, DirItem, EntryFilter, FileType, InputList, ListReport, Meta, Source,
    Stamp, Symlinks, Tag,
};

use crate::finished::{EntryRange, Finished};
use crate::inode::{Data, Inode};
use crate::store::Stores;

/// Entries of a tree in a temporary file that a listing has in memory beside its result, up to 1.1 MB with their names.
const AT_ONCE: u32 = 1 << 12;
/// Most symlinks on the way to an entry.
const MOST_LINKS: usize = 40;
/// Signature of the Cache Directory Tagging Specification.
const CACHE_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

/// The entries of one or more archives.
///
/// Memory: 52 bytes for each entry and the length of its name. An entry with a target, extended attributes, or times other than
/// that of its last change takes 56 more, and their lengths. Contents are in the archives, or in a temporary file that
/// disappears with the source.
pub struct ArchiveSource {
    tree: RwLock<Finished>,
    once: bool,
    stores: Arc<Stores>,
    label: String,
    filter: Option<EntryFilter>,
    symlinks: Symlinks,
    tags: Vec<Tag>,
    list: Option<InputList>,
    /// Entries of a directory that fit the memory.
    most: AtomicU64,
}

impl fmt::Debug for ArchiveSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ArchiveSource")
            .field("label", &self.label)
            .finish_non_exhaustive()
    }
}

fn missing() -> io::Error {
    io::ErrorKind::NotFound.into()
}

impl ArchiveSource {
    pub(crate) fn new(tree: Finished, stores: Stores, label: String) -> Self {
        Self {
            tree: RwLock::new(tree),
            once: false,
            stores: Arc::new(stores),
            label,
            filter: None,
            symlinks: Symlinks::Keep,
            tags: Vec::new(),
            list: None,
            most: AtomicU64::new(u64::MAX),
        }
    }

    /// Frees the entries when a build needs nothing more of the source ([`Source::no_more_reads`]). Nothing can be listed or
    /// opened after that.
    #[must_use]
    pub fn for_one_build(self) -> Self {
        Self { once: true, ..self }
    }

    fn tree(&self) -> RwLockReadGuard<'_, Finished> {
        self.tree.read().unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves out entries for which `filter` returns false.
    #[must_use]
    pub fn with_filter(mut self, filter: EntryFilter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// What becomes of symlinks. [`Symlinks::Follow`] finds targets in the archives only, and absolute
    /// targets start at the root of the tree.
    #[must_use]
    pub fn with_symlinks(mut self, symlinks: Symlinks) -> Self {
        self.symlinks = symlinks;
        self
    }

    /// Leaves out the contents of directories below the root that have one of these tags, except the
    /// tag itself.
    #[must_use]
    pub fn without_tagged(mut self, tags: Vec<Tag>) -> Self {
        self.tags = tags;
        self
    }

    /// Restricts the tree to these paths, relative to the root or with a leading `/`. Parents are added
    /// as needed. Paths that do not exist are left out, and the report names them.
    #[must_use]
    pub fn with_list(mut self, paths: impl IntoIterator<Item = PathBuf>) -> (Self, ListReport) {
        let (list, report) = InputList::new(Path::new("/"), paths, |path| {
            let tree = self.tree();
            let (number, _) = self.resolve(&tree, path)?.ok_or_else(missing)?;
            meta(&tree, number)
        });
        self.list = Some(list);
        (self, report)
    }

    /// The inode of a path and its children. Symlinks are followed if they are to be.
    fn resolve(&self, tree: &Finished, path: &[u8]) -> io::Result<Option<(u32, EntryRange)>> {
        if self.symlinks != Symlinks::Follow {
            return tree.find(path);
        }
        let names = |path: &[u8]| {
            let names = path.split(|&b| b == b'/');
            let names = names.filter(|name| !name.is_empty() && *name != b".");
            names.map(<[u8]>::to_vec).collect::<Vec<_>>()
        };
        let mut todo: VecDeque<Vec<u8>> = names(path).into();
        let mut at: Vec<Vec<u8>> = Vec::new();
        let mut links = 0;
        while let Some(name) = todo.pop_front() {
            if name == b".." {
                at.pop();
                continue;
            }
            at.push(name);
            let Some((number, _)) = tree.find(&at.join(&b'/'))? else {
                return Ok(None);
            };
            if let Some(target) = tree.inodes.target(number)? {
                links += 1;
                if links > MOST_LINKS {
                    return Ok(None);
                }
                at.pop();
                if target.starts_with(b"/") {
                    at.clear();
                }
                for name in names(target).into_iter().rev() {
                    todo.push_front(name);
                }
            }
        }
        tree.find(&at.join(&b'/'))
    }

    fn item(
        &self,
        tree: &Finished,
        path: &[u8],
        (name, inode): (&[u8], u32),
    ) -> io::Result<(DirItem, bool)> {
        let name = name.to_vec();
        let found = tree.inodes.get(inode)?;
        let link = found.as_ref().is_some_and(|found| found.target.is_some());
        let whole = if path.is_empty() {
            name.clone()
        } else {
            [path, b"/", &name].concat()
        };
        let meta = if link && self.symlinks == Symlinks::Follow {
            let to = self.resolve(tree, &whole)?.ok_or_else(missing);
            to.and_then(|(number, _)| meta(tree, number))
        } else {
            let found = found.ok_or_else(missing);
            found.map(|found| meta_of(inode, found))
        };
        let kept = (!link || self.symlinks != Symlinks::Drop)
            && match (&self.filter, &meta) {
                (Some(filter), Ok(meta)) => filter(&whole, meta.kind),
                _ => true,
            };
        Ok((DirItem { name, meta }, kept))
    }

    /// The entries of a directory, and of each whether it is part of the tree.
    ///
    /// # Errors
    /// There is no such directory, or the temporary file with the entries cannot be read.
    pub fn list(&self, path: &[u8]) -> io::Result<Vec<(DirItem, bool)>> {
        let tree = self.tree();
        let (_, children) = self.resolve(&tree, path)?.ok_or_else(missing)?;
        let names = match &self.list {
            Some(list) => match list.children(path) {
                Some(names) => Some(names),
                None => return Ok(Vec::new()),
            },
            None => None,
        };
        let (mut from, end) = children;
        let all = u64::from(end.saturating_sub(from));
        let wanted = names.map_or(all, |names| all.min(names.len() as u64));
        if wanted > self.most.load(Ordering::Relaxed) {
            return Err(io::ErrorKind::QuotaExceeded.into());
        }
        let mut items = Vec::new();
        while from < end {
            // Those of a tree in a file are copied for this.
            let to = end.min(from.saturating_add(AT_ONCE));
            for child in tree.children((from, to))?.iter() {
                if names.is_none_or(|names| names.contains(child.0)) {
                    items.push(self.item(&tree, path, child)?);
                }
            }
            from = to;
        }
        if !path.is_empty()
            && self.list.is_none()
            && let Some(tag) = (self.tags.iter()).find(|tag| self.has_tag(&tree, children, tag))
        {
            for (item, kept) in &mut items {
                *kept &= item.name == tag.name();
            }
        }
        Ok(items)
    }

    fn has_tag(&self, tree: &Finished, children: EntryRange, tag: &Tag) -> bool {
        let Ok(Some((_, inode))) = tree.child(children, tag.name()) else {
            return false;
        };
        if *tag != Tag::Cache {
            return true;
        }
        let begins = || -> io::Result<bool> {
            let file = self.opened(tree, inode)?;
            let mut begin = [0; CACHE_SIGNATURE.len()];
            let mut done = 0;
            while let Some(space) = begin.get_mut(done..).filter(|space| !space.is_empty()) {
                match file.read_at(done as u64, space)? {
                    0 => return Ok(false),
                    n => done += n,
                }
            }
            Ok(begin == *CACHE_SIGNATURE)
        };
        begins().unwrap_or(false)
    }

    fn opened(&self, tree: &Finished, number: u32) -> io::Result<Opened> {
        let inode = tree.inodes.get(number)?.ok_or_else(missing)?;
        if inode.kind != FileType::Regular {
            return Err(io::Error::other("not a regular file"));
        }
        Ok(Opened {
            stamp: Stamp {
                size: inode.size,
                mtime: inode.mtime,
            },
            data: inode.data,
            stores: Arc::clone(&self.stores),
        })
    }
}

fn meta(tree: &Finished, number: u32) -> io::Result<Meta> {
    let inode = tree.inodes.get(number)?.ok_or_else(missing)?;
    Ok(meta_of(number, inode))
}

fn meta_of(number: u32, inode: Inode) -> Meta {
    let allocated = match &inode.data {
        Data::Parts { parts, .. } => parts.iter().map(|part| part.size).sum(),
        _ => inode.size,
    };
    Meta {
        kind: inode.kind,
        permissions: inode.permissions,
        uid: inode.uid,
        gid: inode.gid,
        rdev: inode.rdev,
        size: inode.size,
        allocated,
        nlink: inode.names.into(),
        // File systems without inode numbers show zeros.
        identity: (0, u64::from(number) + 1),
        atime: inode.atime.unwrap_or(inode.mtime),
        mtime: inode.mtime,
        ctime: inode.ctime.unwrap_or(inode.mtime),
        target: inode.target.map(<[u8]>::into_vec),
        extended: inode.extended,
    }
}

impl Source for ArchiveSource {
    fn root(&self) -> io::Result<Meta> {
        let tree = self.tree();
        let (number, _) = tree.find(b"")?.ok_or_else(missing)?;
        meta(&tree, number)
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
        let items = self.list(path)?.into_iter();
        Ok(items
            .filter_map(|(item, kept)| kept.then_some(item))
            .collect())
    }

    fn memory(&self) -> u64 {
        let list = self.list.as_ref().map_or(0, InputList::memory);
        self.tree().memory() + self.stores.memory() + list
    }

    fn most_entries(&self, most: u64) {
        self.most.store(most, Ordering::Relaxed);
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Content>> {
        let tree = self.tree();
        let (number, _) = self.resolve(&tree, path)?.ok_or_else(missing)?;
        Ok(Box::new(self.opened(&tree, number)?))
    }

    fn numbers_files(&self) -> bool {
        self.once
    }

    fn open_number(&self, number: u32) -> io::Result<Box<dyn Content>> {
        let number = number.checked_sub(1).ok_or_else(missing)?;
        Ok(Box::new(self.opened(&self.tree(), number)?))
    }

    fn all_listed(&self) {
        if self.once {
            let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
            tree.forget_names();
        }
    }

    fn failure(&self) -> Option<io::Error> {
        self.tree().failure()
    }

    fn no_more_reads(&self) {
        if self.once {
            let mut tree = self.tree.write().unwrap_or_else(PoisonError::into_inner);
            *tree = Finished::default();
        }
    }

    fn list_position(&self, path: &[u8]) -> Option<u64> {
        self.list.as_ref()?.position(path)
    }

    fn display_path(&self, path: &[u8]) -> String {
        let mut line = format!("{}/", self.label);
        for c in String::from_utf8_lossy(path).chars() {
            match c.is_control() {
                true => line.extend(c.escape_default()),
                false => line.push(c),
            }
        }
        line
    }
}

/// The contents of a file.
struct Opened {
    stamp: Stamp,
    data: Data,
    stores: Arc<Stores>,
}

impl Content for Opened {
    fn stamp(&self) -> io::Result<Stamp> {
        match self.data {
            Data::Empty => {}
            Data::Whole { store, .. } | Data::Parts { store, .. } => self.stores.check(store)?,
        }
        Ok(self.stamp)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.stamp.size.saturating_sub(offset);
        let wanted = left.min(buf.len() as u64) as usize;
        let buf = buf.get_mut(..wanted).unwrap_or_default();
        if buf.is_empty() {
            return Ok(0);
        }
        match &self.data {
            Data::Empty => Ok(0),
            Data::Whole { store, at } => self.stores.read_at(*store, at + offset, buf),
            Data::Parts { store, parts } => {
                let next = parts.partition_point(|part| part.offset + part.size <= offset);
                let room = |to: u64| (to - offset).min(wanted as u64) as usize;
                match parts.get(next) {
                    Some(part) if part.offset <= offset => {
                        let n = room(part.offset + part.size);
                        let buf = buf.get_mut(..n).unwrap_or_default();
                        self.stores
                            .read_at(*store, part.at + offset - part.offset, buf)
                    }
                    after => {
                        let n = after.map_or(wanted, |part| room(part.offset));
                        buf.get_mut(..n).unwrap_or_default().fill(0);
                        Ok(n)
                    }
                }
            }
        }
    }

    fn next_data(&self, offset: u64, end: u64) -> io::Result<Option<DataExtent>> {
        let Data::Parts { parts, .. } = &self.data else {
            return Ok((offset < end).then(|| DataExtent {
                offset,
                size: end - offset,
            }));
        };
        let next = parts.partition_point(|part| part.offset + part.size <= offset);
        let part = parts.get(next).filter(|part| part.offset < end);
        Ok(part.map(|part| {
            let from = part.offset.max(offset);
            DataExtent {
                offset: from,
                size: (part.offset + part.size).min(end) - from,
            }
        }))
    }
}
