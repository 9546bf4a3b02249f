//! `--layer`: a tree without what an image has already, and with whiteouts for what it has no more.
//!
//! The result is an upper layer: an overlay or a union of it and the image is the tree. The whole tree is compared
//! before the build, because a directory in which nothing differs is left out, too. What is compared are the attributes
//! that the build stores.
//!
//! The entries that are left are in memory from the comparison to the build. With a memory limit, they and the
//! directories that are being compared must fit it.

use std::cell::Cell;
use std::collections::{HashMap, HashSet};
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use redwarfs_format::ids::InodeNo;
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_writer::{
    BaseContent, BuildOptions, Content, DirItem, ExtendedAttributes, FileType, Meta, Source,
    Timestamp,
};

use super::args::Args;
use super::output::interrupted;
use super::run::limit_error;
use crate::common::open::{Spelling, open_image};
use crate::common::{Result, ToolError};

/// Bytes of a file that are compared at once.
const PIECE: usize = 1 << 20;

/// The image below the layer.
pub(super) struct Below<'a> {
    path: &'a Path,
    image: Image,
    /// Contents are compared, too.
    checksum: bool,
}

impl<'a> Below<'a> {
    /// Opens the image that the options name, if they do.
    pub(super) fn open(args: &'a Args) -> Result<Option<Self>> {
        let Some(path) = args.append.layer.as_deref() else {
            return Ok(None);
        };
        let spelling = Spelling {
            auto: "a copy that begins with the image",
            size: None,
        };
        let image = open_image(path, &OpenOptions::default(), spelling)?;
        Ok(Some(Self {
            path,
            image,
            checksum: args.append.checksum,
        }))
    }

    /// What a tree has beyond the image.
    pub(super) fn difference(
        &self,
        inner: Arc<dyn Source>,
        options: &BuildOptions,
        stop: &AtomicBool,
    ) -> Result<Arc<dyn Source>> {
        let scan = Scan {
            inner: &*inner,
            below: self,
            options,
            held: Cell::new(0),
            stop,
        };
        inner.most_entries(scan.room() / ITEM);
        let mut kept = HashMap::new();
        let scanned = scan.directory(b"", self.image.root(), DEEPEST, &mut kept);
        if stop.load(Ordering::Relaxed) {
            return Err(interrupted());
        }
        if let (Err(error), Some(limit)) = (&scanned, options.memory_limit)
            && error.kind() == io::ErrorKind::QuotaExceeded
        {
            return Err(limit_error(limit));
        }
        scanned.map_err(|error| {
            ToolError::new("cannot compare with")
                .path(self.path)
                .io(&error)
        })?;
        inner.most_entries(u64::MAX);
        let held = AtomicU64::new(scan.held.get());
        let kept = kept.into_iter().map(|(path, items)| (path, Some(items)));
        Ok(Arc::new(Difference {
            held,
            kept: Mutex::new(kept.collect()),
            inner,
        }))
    }
}

/// What a tree has beyond an image.
#[derive(Debug)]
struct Difference {
    inner: Arc<dyn Source>,
    /// The entries that are left of directories that the image has, too, until they are listed.
    kept: Mutex<HashMap<Vec<u8>, Option<Vec<DirItem>>>>,
    /// Bytes of memory of `kept`.
    held: AtomicU64,
}

/// Most levels of directories. Directories of the system have no more, because a path has at most 4,096 bytes; archives could.
const DEEPEST: usize = 2048;

struct Scan<'a> {
    inner: &'a dyn Source,
    below: &'a Below<'a>,
    /// Of the build.
    options: &'a BuildOptions,
    /// Bytes of memory of entries.
    held: Cell<u64>,
    stop: &'a AtomicBool,
}

/// Memory of an entry without its name, and of its name in the set of names of its directory.
const ITEM: u64 = 320;
/// Memory of a directory.
const DIRECTORY: u64 = 128;

fn memory(item: &DirItem) -> u64 {
    let more = item.meta.as_ref().map_or(0, |meta| {
        meta.extended.memory() + meta.target.as_ref().map_or(0, Vec::len)
    });
    ITEM + (2 * item.name.len() + more) as u64
}

impl Scan<'_> {
    /// Bytes that entries may take. The build itself needs the rest of a limit.
    fn room(&self) -> u64 {
        self.options
            .memory_limit
            .map_or(u64::MAX, |limit| limit / 2)
    }

    fn hold(&self, bytes: u64) -> io::Result<()> {
        let held = self.held.get().saturating_add(bytes);
        self.held.set(held);
        match held > self.room() {
            true => Err(io::ErrorKind::QuotaExceeded.into()),
            false => Ok(()),
        }
    }

    fn release(&self, bytes: u64) {
        self.held.set(self.held.get().saturating_sub(bytes));
    }

    /// Compares a directory, and as many levels as `levels` with it. Returns whether anything below it differs.
    fn directory(
        &self,
        path: &[u8],
        directory: InodeNo,
        levels: usize,
        kept: &mut HashMap<Vec<u8>, Vec<DirItem>>,
    ) -> io::Result<bool> {
        let Some(levels) = levels.checked_sub(1) else {
            let text = format!("directories are nested more than {DEEPEST} levels deep");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, text));
        };
        if self.stop.load(Ordering::Relaxed) {
            return Err(io::Error::new(io::ErrorKind::Interrupted, "interrupted"));
        }
        let items = match self.inner.read_dir(path) {
            Ok(items) => items,
            Err(error) if error.kind() == io::ErrorKind::QuotaExceeded => return Err(error),
            // The build lists it again, and counts the error. Nothing in it counts as deleted.
            Err(_) => return Ok(true),
        };
        let listed: u64 = items.iter().map(memory).sum();
        self.hold(listed)?;
        let image = &self.below.image;
        let meta = image.metadata();
        let mut present = HashSet::new();
        let mut left = Vec::new();
        for item in items {
            let own = match path.is_empty() {
                true => item.name.clone(),
                false => [path, b"/", &item.name].concat(),
            };
            present.insert(item.name.clone());
            let found = meta.find(directory, &item.name).map_err(to_io)?;
            let found = found.map(|entry| meta.entry_inode(entry)).transpose();
            let (Some(inode), Ok(attributes)) = (found.map_err(to_io)?, &item.meta) else {
                left.push(item);
                continue;
            };
            let mut differs = self.differs(&own, attributes, inode)?;
            if attributes.kind == FileType::Directory
                && meta.file_type(inode).map_err(to_io)? == FileType::Directory
            {
                differs |= self.directory(&own, inode, levels, kept)?;
                if !differs && kept.remove(&own).is_some() {
                    self.release(DIRECTORY + own.len() as u64);
                }
            }
            if differs {
                left.push(item);
            }
        }
        for index in meta.entries(directory).map_err(to_io)? {
            let index = redwarfs_format::ids::EntryIndex(index);
            let name = meta.entry_name(index).map_err(to_io)?;
            if !present.contains(&*name) {
                let inode = meta.entry_inode(index).map_err(to_io)?;
                let time = image.stat(inode).map_err(to_io)?.mtime;
                left.push(whiteout(name.into_owned(), time));
            }
        }
        self.release(listed);
        self.hold(DIRECTORY + path.len() as u64 + left.iter().map(memory).sum::<u64>())?;
        let differs = !left.is_empty();
        kept.insert(path.to_vec(), left);
        Ok(differs)
    }

    /// Whether an entry, without what is below it, differs from an inode of the image.
    fn differs(&self, path: &[u8], entry: &Meta, inode: InodeNo) -> io::Result<bool> {
        let image = &self.below.image;
        let stat = image.stat(inode).map_err(to_io)?;
        let entry = &self.options.stored_meta(entry);
        let meta = image.metadata();
        if meta.file_type(inode).map_err(to_io)? != entry.kind
            || stat.mode & 0o7777 != entry.permissions & 0o7777
            || (stat.uid, stat.gid) != (entry.uid, entry.gid)
            || !self.has_time(stat.mtime, entry.mtime)
            || self.xattrs_differ(&entry.extended, inode)?
        {
            return Ok(true);
        }
        match entry.kind {
            FileType::Regular if stat.size != entry.size => Ok(true),
            FileType::Regular if self.below.checksum => self.contents_differ(path, inode),
            FileType::Symlink => {
                let target = meta.symlink(inode).map_err(to_io)?;
                Ok(Some(&*target) != entry.target.as_deref())
            }
            FileType::CharDevice | FileType::BlockDevice => Ok(stat.rdev != entry.rdev),
            _ => Ok(false),
        }
    }

    /// Whether a time is the stored one, as exactly as the image has it.
    fn has_time(&self, stored: Timestamp, found: Timestamp) -> bool {
        let options = self.below.image.metadata().options();
        let unit = i64::from(options.time_resolution_sec.unwrap_or(1).max(1));
        let multiplier = options.subsecond_resolution_nsec_multiplier;
        let nanoseconds = multiplier.map_or(0, |m| found.nsec / m.max(1) * m);
        found.sec.div_euclid(unit) == stored.sec.div_euclid(unit) && nanoseconds == stored.nsec
    }

    fn xattrs_differ(&self, entry: &ExtendedAttributes, inode: InodeNo) -> io::Result<bool> {
        let image = &self.below.image;
        let own = entry.xattrs().iter();
        let mut own: Vec<_> = own
            .map(|xattr| (xattr.name.clone(), xattr.value.clone()))
            .collect();
        own.sort_unstable();
        let mut stored = Vec::new();
        for found in image.xattrs(inode).map_err(to_io)? {
            let name = found.name().map_err(to_io)?.into_owned();
            stored.push((name, image.xattr_value(&found).map_err(to_io)?.into_owned()));
        }
        stored.sort_unstable();
        Ok(own != stored)
    }

    fn contents_differ(&self, path: &[u8], inode: InodeNo) -> io::Result<bool> {
        // The build opens it again, and counts the error.
        let Ok(content) = self.inner.open(path) else {
            return Ok(true);
        };
        let (mut own, mut stored) = (vec![0; PIECE], vec![0; PIECE]);
        let mut at = 0;
        loop {
            let Ok(read) = content.read_at(at, &mut own) else {
                return Ok(true);
            };
            let Some(own) = own.get(..read).filter(|own| !own.is_empty()) else {
                return Ok(false);
            };
            let stored = stored.get_mut(..read).unwrap_or_default();
            let found = self.below.image.read_at(inode, at, stored).map_err(to_io)?;
            if found != read || own != stored {
                return Ok(true);
            }
            at += read as u64;
        }
    }
}

fn to_io(error: redwarfs_format::Error) -> io::Error {
    match error {
        redwarfs_format::Error::Io(error) => error,
        other => io::Error::other(other.to_string()),
    }
}

/// What overlayfs takes for a name that is not there.
fn whiteout(name: Vec<u8>, time: Timestamp) -> DirItem {
    DirItem {
        name,
        meta: Ok(Meta {
            kind: FileType::CharDevice,
            permissions: 0,
            uid: 0,
            gid: 0,
            rdev: 0,
            size: 0,
            allocated: 0,
            nlink: 1,
            identity: (0, 0),
            atime: time,
            mtime: time,
            ctime: time,
            target: None,
            extended: ExtendedAttributes::default(),
        }),
    }
}

impl Source for Difference {
    fn root(&self) -> io::Result<Meta> {
        self.inner.root()
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
        let mut kept = self.kept.lock().unwrap_or_else(PoisonError::into_inner);
        match kept.get_mut(path) {
            Some(items) => {
                let items = items
                    .take()
                    .ok_or_else(|| io::Error::other("a directory is listed twice"))?;
                // The tree of the build has them now.
                let bytes = items.iter().map(memory).sum();
                let left = self.held.load(Ordering::Relaxed).saturating_sub(bytes);
                self.held.store(left, Ordering::Relaxed);
                Ok(items)
            }
            None => {
                drop(kept);
                self.inner.read_dir(path)
            }
        }
    }

    fn memory(&self) -> u64 {
        let held = self.held.load(Ordering::Relaxed);
        self.inner.memory().saturating_add(held)
    }

    fn failure(&self) -> Option<io::Error> {
        self.inner.failure()
    }

    fn no_more_reads(&self) {
        self.inner.no_more_reads();
    }

    fn most_entries(&self, most: u64) {
        self.inner.most_entries(most);
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Content>> {
        self.inner.open(path)
    }

    fn stored(&self, path: &[u8]) -> Option<BaseContent> {
        self.inner.stored(path)
    }

    fn list_position(&self, path: &[u8]) -> Option<u64> {
        self.inner.list_position(path)
    }

    fn activity(&self) -> u64 {
        self.inner.activity()
    }

    fn asking_about(&self) -> Option<Vec<u8>> {
        self.inner.asking_about()
    }

    fn leave_alone(&self, path: &[u8]) {
        self.inner.leave_alone(path);
    }

    fn display_path(&self, path: &[u8]) -> String {
        self.inner.display_path(path)
    }
}

#[cfg(test)]
mod tests {
    use redwarfs_io::MemorySource;
    use redwarfs_writer::{Builder, MemoryNode, MemoryTree, SilentProgress};

    use super::*;

    #[test]
    fn entries_fit_the_memory_limit() {
        let stop = AtomicBool::new(false);
        let mut bytes = Vec::new();
        let build = Builder::new(BuildOptions::level(1));
        let empty = MemoryTree::new();
        build
            .build(&empty, &mut bytes, &SilentProgress::default(), &stop)
            .unwrap();
        let source = Arc::new(MemorySource::new(bytes));
        let below = Below {
            path: Path::new("image"),
            image: Image::from_source(source, &OpenOptions::default()).unwrap(),
            checksum: false,
        };
        let mut tree = MemoryTree::new();
        for number in 0..100 {
            let node = MemoryNode::new(FileType::Fifo);
            tree.insert(format!("pipe-{number}"), node);
        }
        let tree: Arc<dyn Source> = Arc::new(tree);
        let mut options = BuildOptions::level(1);
        for (limit, fits) in [(None, true), (Some(1 << 20), true), (Some(60_000), false)] {
            options.memory_limit = limit;
            let difference = below.difference(Arc::clone(&tree), &options, &stop);
            assert_eq!(difference.is_ok(), fits, "{limit:?}");
            let Ok(difference) = difference else { continue };
            let memory = difference.memory();
            assert!((32_000..64_000).contains(&memory), "{memory}");
            assert_eq!(difference.read_dir(b"").unwrap().len(), 100);
            let memory = difference.memory();
            assert!(memory < 1000, "{memory}");
        }
    }
}
