//! The regular files of an extraction in progress: created when their first piece arrives, kept open
//! within a bound, finished when their last piece is written.

use std::collections::HashMap;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redwarfs_format::EntryIndex;
use redwarfs_format::metadata::Stat;

use crate::Progress;
use crate::error::{Error, Result};
use crate::target::{self, Target, create_file, reopen_file};
use crate::tree::Tree;

/// Independent parts of the table of open files, so that writers rarely wait for each other.
const SHARDS: usize = 16;

/// Open files per shard. With all shards full this stays far below the usual limit of 1024.
const OPEN_PER_SHARD: usize = 16;

/// Where files are written.
#[derive(Debug)]
pub(crate) struct Files<'a> {
    tree: &'a Tree<'a>,
    target: &'a Target,
    shards: Vec<Mutex<Shard>>,
    created: Vec<AtomicBool>,
    clock: AtomicU64,
    /// Directories that a thread may keep open.
    open_dirs: usize,
}

#[derive(Debug, Default)]
struct Shard {
    open: HashMap<u32, (Arc<OwnedFd>, u64)>,
}

/// The directories that a thread used last, the latest first.
#[derive(Debug, Default)]
pub(crate) struct DirCache(Vec<(u32, Arc<OwnedFd>)>);

/// Directories that all threads together keep open. With all files that may be open this stays below
/// the usual limit of 1024.
const OPEN_DIRS: usize = 512;
/// Directories that one thread keeps open at most: they are searched one by one.
const OPEN_DIRS_EACH: usize = 256;

impl DirCache {
    fn position(&self, dir: u32) -> Option<usize> {
        self.0.iter().position(|(number, _)| *number == dir)
    }
}

impl<'a> Files<'a> {
    /// For at most `threads` threads at a time.
    pub(crate) fn new(tree: &'a Tree<'a>, target: &'a Target, threads: usize) -> Self {
        Self {
            tree,
            target,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            created: tree.files.iter().map(|_| AtomicBool::new(false)).collect(),
            clock: AtomicU64::new(0),
            open_dirs: (OPEN_DIRS / threads.max(1)).clamp(1, OPEN_DIRS_EACH),
        }
    }

    /// Opens the directory with number `dir` of the tree.
    pub(crate) fn dir(&self, dir: u32, last: &mut DirCache) -> Result<Arc<OwnedFd>> {
        if let Some(at) = last.position(dir) {
            last.0[..=at].rotate_right(1);
        } else {
            let fd = self.open_dir(dir, last)?;
            last.0.truncate(self.open_dirs - 1);
            last.0.insert(0, (dir, Arc::new(fd)));
        }
        match last.0.first() {
            Some((_, fd)) => Ok(Arc::clone(fd)),
            None => Err(redwarfs_format::Error::corrupt("no directory").into()),
        }
    }

    fn open_dir(&self, dir: u32, last: &DirCache) -> Result<OwnedFd> {
        let failed = |e| match self.tree.dir_path(dir) {
            Ok(path) => target::target("cannot open directory", crate::display_path(&path), e),
            Err(e) => e,
        };
        if let Some(below) = self.tree.dirs.get(dir as usize)
            && dir > 0
            && let Some(at) = last.position(below.parent)
            && let Some((_, parent)) = last.0.get(at)
        {
            let name = self.tree.metadata().entry_name(below.entry)?;
            return self
                .target
                .open_dir_in(parent.as_fd(), &name)
                .map_err(failed);
        }
        let path = self.tree.dir_path(dir)?;
        self.target.open_dir(&path).map_err(failed)
    }

    /// Whether [`Self::create`] has succeeded for this file.
    pub(crate) fn is_created(&self, file: u32) -> bool {
        self.created
            .get(file as usize)
            .is_some_and(|flag| flag.load(Ordering::Acquire))
    }

    /// Creates a file with its holes in place. The caller keeps others from doing the same.
    pub(crate) fn create(&self, file: u32, stat: &Stat, last: &mut DirCache) -> Result<OwnedFd> {
        let fd = self.with_name(file, last, "cannot create file", |dir, name| {
            create_file(dir.as_fd(), name, stat.mode)
        })?;
        if let Some(flag) = self.created.get(file as usize) {
            flag.store(true, Ordering::Release);
        }
        if stat.allocated != stat.size {
            rustix::fs::ftruncate(&fd, stat.size)
                .map_err(|e| target::target("cannot set size", self.tree.shown_file(file), e))?;
        }
        Ok(fd)
    }

    /// An open descriptor of a file, which is created if need be.
    pub(crate) fn open(&self, file: u32, stat: &Stat, last: &mut DirCache) -> Result<Arc<OwnedFd>> {
        let mut shard = self.shard(file);
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        if let Some((fd, used)) = shard.open.get_mut(&file) {
            *used = now;
            return Ok(Arc::clone(fd));
        }
        if shard.open.len() >= OPEN_PER_SHARD {
            let oldest = shard
                .open
                .iter()
                .min_by_key(|(_, (_, used))| *used)
                .map(|(&file, _)| file);
            if let Some(oldest) = oldest {
                shard.open.remove(&oldest);
            }
        }
        let fd = if self.is_created(file) {
            self.with_name(file, last, "cannot reopen file", |dir, name| {
                reopen_file(dir.as_fd(), name)
            })?
        } else {
            self.create(file, stat, last)?
        };
        let fd = Arc::new(fd);
        shard.open.insert(file, (Arc::clone(&fd), now));
        Ok(fd)
    }

    /// Sets the attributes of a file whose contents are complete.
    pub(crate) fn finish(
        &self,
        fd: &OwnedFd,
        file: u32,
        stat: &Stat,
        progress: &dyn Progress,
    ) -> Result<()> {
        self.target
            .set_attributes(fd.as_fd(), stat, &|| self.tree.shown_file(file), progress)
    }

    /// Forgets the open descriptor of a file.
    pub(crate) fn close(&self, file: u32) {
        self.shard(file).open.remove(&file);
    }

    /// Removes whatever has the name of a file.
    pub(crate) fn remove(&self, file: u32, last: &mut DirCache) -> Result<()> {
        self.close(file);
        self.with_name(file, last, "cannot remove", |dir, name| {
            target::unlink(dir.as_fd(), name)
        })
    }

    /// Removes whatever has a certain name.
    pub(crate) fn remove_name(
        &self,
        dir: u32,
        entry: EntryIndex,
        last: &mut DirCache,
    ) -> Result<()> {
        let name = self.tree.metadata().entry_name(entry)?;
        let fd = self.dir(dir, last)?;
        target::unlink(fd.as_fd(), &name)
            .map_err(|e| target::target("cannot remove", self.tree.shown(dir, entry), e))
    }

    fn with_name<T>(
        &self,
        file: u32,
        last: &mut DirCache,
        what: &'static str,
        run: impl FnOnce(&OwnedFd, &[u8]) -> io::Result<T>,
    ) -> Result<T> {
        let Some(f) = self.tree.file(file) else {
            return Err(Error::Target {
                what,
                path: format!("file {file}"),
                source: io::ErrorKind::NotFound.into(),
            });
        };
        let dir = self.dir(f.dir, last)?;
        let name = self.tree.metadata().entry_name(f.entry)?;
        run(&dir, &name).map_err(|e| target::target(what, self.tree.shown_file(file), e))
    }

    fn shard(&self, file: u32) -> MutexGuard<'_, Shard> {
        // The modulus keeps the index in range.
        self.shards[file as usize % SHARDS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
