//! The regular files of an extraction in progress: they are created when their first piece arrives,
//! kept open within a bound, and finished when their last piece is written.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redwarfs_format::EntryIndex;
use redwarfs_format::metadata::Stat;

use crate::Progress;
use crate::create::{self, NameInDir};
use crate::error::{Error, Result, cause, target};
use crate::flags::Flags;
use crate::losses::Losses;
use crate::os::{self, Dir, OutFile, Target};
use crate::tree::{Link, Tree};

/// Independent parts of the table of open files, so that writers rarely wait for each other.
const SHARDS: usize = 16;

/// Open files per shard. With all shards full this stays far below the usual limit of 1024.
const OPEN_PER_SHARD: usize = 16;

/// States of a file without a name.
const NOT_YET: u32 = u32::MAX;
const LOST: u32 = u32::MAX - 1;

/// The place of the files.
pub(crate) struct Files<'a> {
    tree: &'a Tree<'a>,
    target: &'a Target,
    losses: &'a Losses<'a>,
    flags: &'a Flags,
    shards: Vec<Mutex<Shard>>,
    /// For each file, [`NOT_YET`], [`LOST`], or the number of the name under which it was created: 0
    /// for the first name, and from 1 on the additional ones.
    names: Vec<AtomicU32>,
    /// Whether the target treats names that differ only in case as equal. If so, each name that equals
    /// an earlier one of its directory, with that name.
    caseless: bool,
    collisions: HashMap<EntryIndex, EntryIndex>,
    /// Directories that could not be created.
    lost_dirs: Vec<AtomicBool>,
    clock: AtomicU64,
    /// Directories that a thread may keep open.
    open_dirs: usize,
    /// Whether the warning about copies instead of links was given.
    copied: AtomicBool,
}

#[derive(Debug, Default)]
struct Shard {
    open: HashMap<u32, (Arc<OutFile>, u64)>,
}

/// The directories that a thread used last, the latest first.
#[derive(Debug, Default)]
pub(crate) struct DirCache(Vec<(u32, Arc<Dir>)>);

/// Number of directories that all threads together keep open. Together with all open files, this is
/// below the usual limit of 1024.
const OPEN_DIRS: usize = 512;
/// Largest number of directories that one thread keeps open, because they are searched one by one.
const OPEN_DIRS_EACH: usize = 256;

impl DirCache {
    fn position(&self, dir: u32) -> Option<usize> {
        self.0.iter().position(|(number, _)| *number == dir)
    }
}

impl<'a> Files<'a> {
    /// For at most `threads` threads at a time.
    pub(crate) fn new(
        tree: &'a Tree<'a>,
        target: &'a Target,
        losses: &'a Losses<'a>,
        flags: &'a Flags,
        threads: usize,
    ) -> Result<Self> {
        let names = tree.files.iter().map(|_| AtomicU32::new(NOT_YET));
        let caseless = target.is_caseless();
        let collisions = if caseless {
            tree.case_collisions()?
        } else {
            HashMap::new()
        };
        Ok(Self {
            tree,
            caseless,
            collisions,
            target,
            losses,
            flags,
            shards: (0..SHARDS).map(|_| Mutex::default()).collect(),
            names: names.collect(),
            lost_dirs: tree.dirs.iter().map(|_| AtomicBool::new(false)).collect(),
            clock: AtomicU64::new(0),
            open_dirs: (OPEN_DIRS / threads.max(1)).clamp(1, OPEN_DIRS_EACH),
            copied: AtomicBool::new(false),
        })
    }

    /// Opens the directory with number `dir` of the tree.
    pub(crate) fn dir(&self, dir: u32, last: &mut DirCache) -> Result<Arc<Dir>> {
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

    fn open_dir(&self, dir: u32, last: &DirCache) -> Result<Dir> {
        let failed = |e| match self.tree.dir_path(dir) {
            Ok(path) => target("cannot open directory", crate::display_path(&path), e),
            Err(e) => e,
        };
        if let Some(below) = self.tree.dirs.get(dir as usize)
            && dir > 0
            && let Some(at) = last.position(below.parent)
            && let Some((_, parent)) = last.0.get(at)
        {
            let name = self.tree.metadata().entry_name(below.entry)?;
            return self.target.open_dir_in(parent, &name).map_err(failed);
        }
        let path = self.tree.dir_path(dir)?;
        self.target.open_dir(&path).map_err(failed)
    }

    /// Whether a directory could not be created. The error was reported.
    pub(crate) fn is_lost_dir(&self, dir: u32) -> bool {
        self.lost_dirs
            .get(dir as usize)
            .is_some_and(|flag| flag.load(Ordering::Acquire))
    }

    /// Remembers that a directory could not be created.
    pub(crate) fn lose_dir(&self, dir: u32) {
        if let Some(flag) = self.lost_dirs.get(dir as usize) {
            flag.store(true, Ordering::Release);
        }
    }

    /// Calls a function with a name in a directory.
    pub(crate) fn at<T>(
        &self,
        dir: u32,
        entry: EntryIndex,
        last: &mut DirCache,
        what: &'static str,
        run: impl FnOnce(NameInDir<'_>) -> io::Result<T>,
    ) -> Result<T> {
        let fd = self.dir(dir, last)?;
        let name = self.tree.metadata().entry_name(entry)?;
        let place = NameInDir {
            dir: &fd,
            name: &name,
            taken: &|folded| {
                let left_out = &self.collisions;
                self.tree.has_other_name(dir, &name, folded, left_out)
            },
            caseless: self.caseless,
        };
        let first = self.collisions.get(&entry);
        let made = match first.map(|&first| self.tree.metadata().entry_name(first)) {
            Some(first) => Err(create::collision(&first?)),
            None => run(place),
        };
        made.map_err(|e| target(what, self.tree.shown(dir, entry), e))
    }

    fn state(&self, file: u32) -> u32 {
        self.names
            .get(file as usize)
            .map_or(LOST, |name| name.load(Ordering::Acquire))
    }

    fn set_state(&self, file: u32, state: u32) {
        if let Some(name) = self.names.get(file as usize) {
            name.store(state, Ordering::Release);
        }
    }

    /// Whether [`Self::create`] succeeded for this file, and the file was not given up later.
    pub(crate) fn is_created(&self, file: u32) -> bool {
        !matches!(self.state(file), NOT_YET | LOST)
    }

    /// Whether a file was given up.
    pub(crate) fn is_lost(&self, file: u32) -> bool {
        self.state(file) == LOST
    }

    /// The directory and entry under which a file was or will be created.
    pub(crate) fn place(&self, file: u32) -> Option<(u32, EntryIndex)> {
        let first = self.tree.file(file)?;
        match self.state(file) {
            0 | NOT_YET | LOST => Some((first.dir, first.entry)),
            n => {
                let link = self.tree.links_of(file).get(n as usize - 1)?;
                Some((link.dir, link.entry))
            }
        }
    }

    /// The names that a file gets after it was created.
    pub(crate) fn further_names(&self, file: u32) -> &[Link] {
        let links = self.tree.links_of(file);
        match self.state(file) {
            NOT_YET | LOST => &[],
            n => links.get(n as usize..).unwrap_or_default(),
        }
    }

    /// Creates a file with its holes in place. The caller prevents other threads from creating the same
    /// file. If the first name fails, the file gets the next one. `None` if all names fail; the errors
    /// were reported.
    pub(crate) fn create(
        &self,
        file: u32,
        stat: &Stat,
        last: &mut DirCache,
    ) -> Result<Option<OutFile>> {
        let first = self.tree.file(file).map(|f| (f.dir, f.entry));
        let links = self.tree.links_of(file).iter();
        let names = first.into_iter().chain(links.map(|l| (l.dir, l.entry)));
        for (number, (dir, entry)) in (0_u32..).zip(names) {
            if self.is_lost_dir(dir) {
                self.losses.count(1);
                continue;
            }
            let flags = self.flags.of(stat.ino)?;
            let made = self.at(dir, entry, last, "cannot create file", |place| {
                let fd = place.create_file(stat.mode)?;
                os::set_first_flags(&fd, flags);
                if stat.allocated != stat.size
                    && let Err(e) = os::reserve_size(&fd, stat.size)
                {
                    // The error is reported, and the name is not needed otherwise.
                    let _ = place.unlink();
                    return Err(e);
                }
                Ok(fd)
            });
            if let Some(fd) = self.losses.settle(made)? {
                self.set_state(file, number);
                return Ok(Some(fd));
            }
        }
        self.set_state(file, LOST);
        Ok(None)
    }

    /// Gives up a file because of an error of all its names, if the extraction continues.
    pub(crate) fn give_up(&self, file: u32, reason: Error, last: &mut DirCache) -> Result<()> {
        let started = self.is_created(file);
        let further = self.further_names(file);
        self.losses.settle::<()>(Err(reason))?;
        for link in further {
            let path = self.tree.shown(link.dir, link.entry);
            self.losses.lose(&path, "its contents could not be written");
        }
        if started {
            let removed = self.remove(file, last);
            self.losses.settle(removed)?;
        }
        self.set_state(file, LOST);
        Ok(())
    }

    /// Gives up a file whose loss the caller reports. Existing entries with its names are removed,
    /// because they would look like the file.
    pub(crate) fn forget(&self, file: u32, last: &mut DirCache) -> Result<()> {
        if self.is_created(file) {
            let removed = self.remove(file, last);
            self.losses.settle(removed)?;
        }
        self.set_state(file, LOST);
        let first = self.tree.file(file).map(|f| (f.dir, f.entry));
        let links = self.tree.links_of(file).iter();
        for (dir, entry) in first.into_iter().chain(links.map(|l| (l.dir, l.entry))) {
            if !self.is_lost_dir(dir) {
                let cleared = self.at(dir, entry, last, "cannot remove", |p| p.clear());
                self.losses.settle(cleared)?;
            }
        }
        Ok(())
    }

    /// An open descriptor of a file. The file is created if necessary. `None` as for [`Self::create`],
    /// and for a file that was given up.
    pub(crate) fn open(
        &self,
        file: u32,
        stat: &Stat,
        last: &mut DirCache,
    ) -> Result<Option<Arc<OutFile>>> {
        let mut shard = self.shard(file);
        let now = self.clock.fetch_add(1, Ordering::Relaxed);
        if let Some((fd, used)) = shard.open.get_mut(&file) {
            *used = now;
            return Ok(Some(Arc::clone(fd)));
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
            self.with_name(file, last, "cannot reopen file", |p| p.reopen_file())?
        } else if self.is_lost(file) {
            return Ok(None);
        } else {
            match self.create(file, stat, last)? {
                Some(fd) => fd,
                None => return Ok(None),
            }
        };
        let fd = Arc::new(fd);
        shard.open.insert(file, (Arc::clone(&fd), now));
        Ok(Some(fd))
    }

    /// Sets the attributes of a file whose contents are complete.
    pub(crate) fn finish(
        &self,
        fd: &OutFile,
        file: u32,
        stat: &Stat,
        progress: &dyn Progress,
    ) -> Result<()> {
        self.target
            .set_attributes(fd, stat, &|| self.tree.shown_file(file), progress)
    }

    /// Forgets the open descriptor of a file.
    pub(crate) fn close(&self, file: u32) {
        self.shard(file).open.remove(&file);
    }

    /// Removes an existing entry with the name of a file.
    pub(crate) fn remove(&self, file: u32, last: &mut DirCache) -> Result<()> {
        self.close(file);
        self.with_name(file, last, "cannot remove", |p| p.unlink())
    }

    fn with_name<T>(
        &self,
        file: u32,
        last: &mut DirCache,
        what: &'static str,
        run: impl FnOnce(NameInDir<'_>) -> io::Result<T>,
    ) -> Result<T> {
        let Some((dir, entry)) = self.place(file) else {
            return Err(Error::Target {
                what,
                path: format!("file {file}"),
                source: io::ErrorKind::NotFound.into(),
            });
        };
        self.at(dir, entry, last, what, run)
    }

    /// Gives a file another name: a link or, if that is not possible, a copy. Later names of the file
    /// are links to the latest copy. Returns whether it is a copy.
    pub(crate) fn link(
        &self,
        from: (u32, EntryIndex),
        to: &Link,
        dirs: &mut (DirCache, DirCache),
        stat: &dyn Fn() -> Result<Stat>,
        progress: &dyn Progress,
    ) -> Result<bool> {
        let (from_dirs, to_dirs) = dirs;
        let from_fd = self.dir(from.0, from_dirs)?;
        let from_name = self.tree.metadata().entry_name(from.1)?;
        let from = NameInDir {
            dir: &from_fd,
            name: &from_name,
            taken: &|_| false,
            caseless: self.caseless,
        };
        let what = "cannot create hard link";
        let linked = self.at(to.dir, to.entry, to_dirs, what, |place| {
            match place.make_hard_link(&from) {
                Ok(()) => Ok(None),
                Err(e) if os::is_no_link(&e) => Ok(Some(e)),
                Err(e) => Err(e),
            }
        })?;
        let Some(reason) = linked else {
            return Ok(false);
        };
        let shown = || self.tree.shown(to.dir, to.entry);
        if !self.copied.swap(true, Ordering::Relaxed) {
            let path = shown();
            let cause = cause(&reason);
            progress.warn(&format!("{what}: {path}: {cause}; copied (said once)"));
        }
        let stat = stat()?;
        let what = "cannot copy";
        let copy = self.at(to.dir, to.entry, to_dirs, what, |place| {
            place.make_copy(&from, stat.mode)
        })?;
        let set = self.target.set_attributes(&copy, &stat, &shown, progress);
        self.losses.settle_attributes(set)?;
        Ok(true)
    }

    fn shard(&self, file: u32) -> MutexGuard<'_, Shard> {
        // The modulus keeps the index in range.
        self.shards[file as usize % SHARDS]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}
