//! What differs between two trees.

use std::cmp::Ordering;
use std::iter::Peekable;
use std::ops::ControlFlow;

use redwarfs_format::metadata::{Extent, FileType};
use redwarfs_format::{Error, InodeNo, Result};
use redwarfs_reader::{DirEntry, Image, ReadDir};

/// Bytes that are compared at once.
const STEP: usize = 256 << 10;
/// Deepest directory, and longest path: beyond them is no tree that a file system could hold.
const DEPTH: usize = 1 << 14;
const LONGEST: usize = 64 << 10;

/// How a path differs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChangeKind {
    /// Only the second tree has it.
    Added,
    /// Only the first tree has it.
    Removed,
    /// Its content, its target, its device or its type is another one.
    Content,
    /// Only attributes differ: mode, owner, group, modification time, extended attributes.
    Attributes,
}

/// A path that differs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Change {
    /// How.
    pub kind: ChangeKind,
    /// The path, from the root, without a leading slash; empty for the root.
    pub path: Vec<u8>,
    /// The type: in the second tree, if it is there.
    pub file_type: FileType,
    /// Bytes of a regular file, or of a target: before.
    pub old_size: u64,
    /// The same, after.
    pub new_size: u64,
}

/// Compares two trees, and calls `found` with each path that differs, in the order of the paths, until it
/// breaks. `same_file` says that both images are generations of one file: then equal places mean equal
/// contents, and only other contents are read.
///
/// # Errors
/// Those of reading the images.
pub fn diff(
    old: &Image,
    new: &Image,
    same_file: bool,
    found: &mut dyn FnMut(Change) -> ControlFlow<()>,
) -> Result<()> {
    let mut walk = Walk {
        old,
        new,
        same_file,
        path: Vec::new(),
        stack: vec![Step {
            length: 0,
            work: Work::Pair(Some(InodeNo::ROOT), Some(InodeNo::ROOT)),
        }],
        buffers: [vec![0; STEP], vec![0; STEP]],
    };
    while let Some(Step { length, work }) = walk.stack.pop() {
        walk.path.truncate(length);
        let change = match work {
            Work::Pair(old, new) => walk.pair(old, new)?,
            Work::List(list) => {
                walk.list(list)?;
                None
            }
        };
        if let Some(change) = change
            && found(change).is_break()
        {
            return Ok(());
        }
    }
    Ok(())
}

/// Something to do at a path of `length` bytes.
struct Step<'a> {
    length: usize,
    work: Work<'a>,
}

enum Work<'a> {
    /// An entry of one tree, or of both.
    Pair(Option<InodeNo>, Option<InodeNo>),
    /// The rest of a directory.
    List(List<'a>),
}

/// A directory of one tree, or of both.
struct List<'a> {
    old: Option<Peekable<ReadDir<'a>>>,
    new: Option<Peekable<ReadDir<'a>>>,
}

struct Walk<'a> {
    old: &'a Image,
    new: &'a Image,
    same_file: bool,
    path: Vec<u8>,
    stack: Vec<Step<'a>>,
    buffers: [Vec<u8>; 2],
}

impl<'a> Walk<'a> {
    fn push(&mut self, work: Work<'a>) -> Result<()> {
        if self.stack.len() >= DEPTH || self.path.len() > LONGEST {
            return Err(Error::Limit("directories are nested too deep".into()));
        }
        let length = self.path.len();
        self.stack.push(Step { length, work });
        Ok(())
    }

    fn change(
        &self,
        kind: ChangeKind,
        old: Option<InodeNo>,
        new: Option<InodeNo>,
    ) -> Result<Change> {
        let look = |image: &Image, inode: Option<InodeNo>| -> Result<_> {
            let Some(inode) = inode else {
                return Ok(None);
            };
            let kind = image.metadata().file_type(inode)?;
            let size = match kind {
                FileType::Directory => 0,
                _ => image.stat(inode)?.size,
            };
            Ok(Some((kind, size)))
        };
        let (before, after) = (look(self.old, old)?, look(self.new, new)?);
        Ok(Change {
            kind,
            path: self.path.clone(),
            file_type: after.or(before).map_or(FileType::Regular, |(kind, _)| kind),
            old_size: before.map_or(0, |(_, size)| size),
            new_size: after.map_or(0, |(_, size)| size),
        })
    }

    /// An entry. What is below a directory comes later.
    fn pair(&mut self, old: Option<InodeNo>, new: Option<InodeNo>) -> Result<Option<Change>> {
        let kind = |image: &Image, inode: Option<InodeNo>| {
            let kind = inode.map(|inode| image.metadata().file_type(inode));
            kind.transpose()
        };
        let (before, after) = (kind(self.old, old)?, kind(self.new, new)?);
        let directory = Some(FileType::Directory);
        if old.is_some() && new.is_some() && before != after {
            if before == directory || after == directory {
                self.push(Work::Pair(None, new))?;
                self.push(Work::Pair(old, None))?;
                return Ok(None);
            }
            return Ok(Some(self.change(ChangeKind::Content, old, new)?));
        }
        if before == directory || after == directory {
            let list = |image: &'a Image, inode: Option<InodeNo>| {
                let list = inode.map(|inode| image.read_dir(inode));
                Ok::<_, Error>(list.transpose()?.map(Iterator::peekable))
            };
            let (old_image, new_image) = (self.old, self.new);
            let list = List {
                old: list(old_image, old)?,
                new: list(new_image, new)?,
            };
            self.push(Work::List(list))?;
        }
        let kind = match (old, new) {
            (Some(old), Some(new)) => match self.compare(old, new)? {
                Some(kind) => kind,
                None => return Ok(None),
            },
            (None, _) => ChangeKind::Added,
            (_, None) => ChangeKind::Removed,
        };
        Ok(Some(self.change(kind, old, new)?))
    }

    /// How two entries of one type differ.
    fn compare(&mut self, old: InodeNo, new: InodeNo) -> Result<Option<ChangeKind>> {
        let same = match self.old.metadata().file_type(old)? {
            FileType::Regular => self.same_contents(old, new)?,
            FileType::Symlink => self.old.read_link(old)? == self.new.read_link(new)?,
            FileType::CharDevice | FileType::BlockDevice => {
                self.old.stat(old)?.rdev == self.new.stat(new)?.rdev
            }
            FileType::Directory | FileType::Fifo | FileType::Socket => true,
        };
        Ok(if !same {
            Some(ChangeKind::Content)
        } else if !self.same_attributes(old, new)? {
            Some(ChangeKind::Attributes)
        } else {
            None
        })
    }

    /// The next entry of a directory.
    fn list(&mut self, mut list: List<'a>) -> Result<()> {
        let name = |list: &mut Option<Peekable<ReadDir<'a>>>| match list.as_mut()?.peek()? {
            Ok(entry) => Some(entry.name.to_vec()),
            // It is next, and ends the comparison.
            Err(_) => Some(Vec::new()),
        };
        let names = (name(&mut list.old), name(&mut list.new));
        let order = match &names {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.cmp(new),
        };
        let take = |image: &Image, list: &mut Option<Peekable<ReadDir<'a>>>| {
            let entry = list.as_mut().and_then(Iterator::next).transpose();
            let Some(DirEntry { index, inode, .. }) = entry? else {
                return Ok(None);
            };
            let view = image.metadata();
            // Otherwise a directory could be in itself.
            if view.file_type(inode)? == FileType::Directory && view.self_entry(inode)? != index {
                return Err(Error::corrupt("a directory is in two directories"));
            }
            Ok(Some(inode))
        };
        let old = match order {
            Ordering::Greater => None,
            _ => take(self.old, &mut list.old)?,
        };
        let new = match order {
            Ordering::Less => None,
            _ => take(self.new, &mut list.new)?,
        };
        self.push(Work::List(list))?;
        if !self.path.is_empty() {
            self.path.push(b'/');
        }
        let name = if old.is_some() { names.0 } else { names.1 };
        self.path.extend_from_slice(&name.unwrap_or_default());
        self.push(Work::Pair(old, new))
    }

    fn same_attributes(&self, old: InodeNo, new: InodeNo) -> Result<bool> {
        let (a, b) = (self.old.stat(old)?, self.new.stat(new)?);
        let basic = (a.mode, a.uid, a.gid, a.mtime) == (b.mode, b.uid, b.gid, b.mtime);
        Ok(basic && attributes(self.old, old)? == attributes(self.new, new)?)
    }

    fn same_contents(&mut self, old: InodeNo, new: InodeNo) -> Result<bool> {
        let size = self.old.stat(old)?.size;
        if size != self.new.stat(new)?.size {
            return Ok(false);
        }
        if self.same_file && places(self.old, old)? == places(self.new, new)? {
            return Ok(true);
        }
        let [a, b] = &mut self.buffers;
        let mut at = 0;
        while at < size {
            let wanted = usize::try_from(size - at).map_or(STEP, |left| left.min(STEP));
            let (Some(a), Some(b)) = (a.get_mut(..wanted), b.get_mut(..wanted)) else {
                return Ok(false);
            };
            let read = [self.old.read_at(old, at, a)?, self.new.read_at(new, at, b)?];
            if read != [wanted; 2] || a != b {
                return Ok(false);
            }
            at += wanted as u64;
        }
        Ok(true)
    }
}

/// The extended attributes of an inode, in the order of their names.
fn attributes(image: &Image, inode: InodeNo) -> Result<Vec<(Vec<u8>, Vec<u8>)>> {
    let mut all = Vec::new();
    for xattr in image.xattrs(inode)? {
        all.push((
            xattr.name()?.into_owned(),
            image.xattr_value(&xattr)?.into_owned(),
        ));
    }
    all.sort_unstable();
    Ok(all)
}

/// A part of a file by its place in the image file.
#[derive(PartialEq, Eq)]
enum StoredExtent {
    Hole(u64),
    /// Offset of the header of the block, offset in the block, size.
    Data(u64, u32, u32),
}

fn places(image: &Image, inode: InodeNo) -> Result<Vec<StoredExtent>> {
    let mut places = Vec::new();
    for extent in image.metadata().extents(inode)? {
        places.push(match extent? {
            Extent::Hole { size } => StoredExtent::Hole(size),
            Extent::Data {
                block,
                offset,
                size,
            } => {
                let section = image.container().block(block);
                let section =
                    section.ok_or_else(|| Error::corrupt(format!("there is no block {block}")))?;
                StoredExtent::Data(section.header_offset, offset, size)
            }
        });
    }
    Ok(places)
}
