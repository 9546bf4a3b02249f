//! A directory of the host as a source.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{self, AtFlags, Mode, OFlags, ResolveFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use super::list::{InputList, ListReport};
use super::timed::{Helpers, late};
use super::{Content, DataExtent, DirItem, FileType, Meta, Source, Stamp, Timestamp, join};

/// Longest relative path given to the system in one call; longer ones are opened in steps.
const PATH_STEP: usize = 3800;

/// Decides which entries exist: called with the path relative to the root and the type;
/// `false` leaves the entry (and everything below it) out. Never called for the root.
pub type EntryFilter = Box<dyn Fn(&[u8], FileType) -> bool + Send + Sync>;

/// What becomes of symlinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Symlinks {
    /// They are stored as they are.
    #[default]
    Keep,
    /// What they point to is stored in their place; those that point to nothing are errors.
    Follow,
    /// They are left out.
    Drop,
}

/// What marks a directory whose content is not wanted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tag {
    /// An entry of this name.
    Name(Vec<u8>),
    /// A file `CACHEDIR.TAG` that begins as the Cache Directory Tagging Specification says.
    Cache,
}

const CACHE_TAG: &[u8] = b"CACHEDIR.TAG";
const CACHE_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

impl Tag {
    fn name(&self) -> &[u8] {
        match self {
            Tag::Name(name) => name,
            Tag::Cache => CACHE_TAG,
        }
    }
}

/// A directory of the host. Unless asked otherwise, entries are taken as they are: symlinks are
/// not followed, mount points are crossed. Names are raw bytes.
pub struct DirectorySource {
    root: PathBuf,
    fd: OwnedFd,
    filter: Option<EntryFilter>,
    skipped: BTreeSet<(u64, u64)>,
    /// Ask the system to leave access times alone.
    quiet: AtomicBool,
    list: Option<InputList>,
    symlinks: Symlinks,
    /// The only device that is entered.
    device: Option<u64>,
    tags: Vec<Tag>,
    /// Entries that were listed so far.
    listed: AtomicU64,
    /// Entries that a listing may have.
    most: AtomicU64,
    asking: Mutex<Asking>,
}

/// What a listing waits for.
#[derive(Debug, Default)]
struct Asking {
    /// Number of the last listing; one that was left behind is not heard any more.
    listing: u64,
    about: Option<Vec<u8>>,
    /// Entries that do not answer.
    mute: HashSet<Vec<u8>>,
}

impl Asking {
    fn tell(&mut self, listing: u64, about: Option<Vec<u8>>) {
        if self.listing == listing {
            self.about = about;
        }
    }
}

impl fmt::Debug for DirectorySource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DirectorySource")
            .field("root", &self.root)
            .finish_non_exhaustive()
    }
}

impl DirectorySource {
    /// Opens the directory `root`; a symlink to a directory is followed.
    ///
    /// # Errors
    /// If it cannot be opened or is not a directory.
    pub fn new(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        let fd = fs::open(
            &root,
            OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self {
            root,
            fd,
            filter: None,
            skipped: BTreeSet::new(),
            quiet: AtomicBool::new(true),
            list: None,
            symlinks: Symlinks::Keep,
            device: None,
            tags: Vec::new(),
            listed: AtomicU64::new(0),
            most: AtomicU64::new(u64::MAX),
            asking: Mutex::default(),
        })
    }

    /// The directory that was opened.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Leaves out what `filter` refuses.
    #[must_use]
    pub fn with_filter(mut self, filter: EntryFilter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Leaves out the entry with this device and inode number: the file that is being written.
    #[must_use]
    pub fn skip_inode(mut self, device: u64, inode: u64) -> Self {
        self.skipped.insert((device, inode));
        self
    }

    /// What becomes of symlinks.
    #[must_use]
    pub fn with_symlinks(mut self, symlinks: Symlinks) -> Self {
        self.symlinks = symlinks;
        self
    }

    /// Stays on the file system of the root: directories of others are empty, files of others are
    /// left out.
    ///
    /// # Errors
    /// If the root cannot be asked for its file system.
    pub fn one_file_system(mut self) -> io::Result<Self> {
        self.device = Some(self.stat(b"")?.identity.0);
        Ok(self)
    }

    /// Leaves out the content of directories below the root that carry one of these tags, but for
    /// the tag itself.
    #[must_use]
    pub fn without_tagged(mut self, tags: Vec<Tag>) -> Self {
        self.tags = tags;
        self
    }

    /// Restricts the tree to these paths: relative to the root, or absolute and below it.
    /// Parents are added as needed; a listed directory comes without its content.
    ///
    /// # Errors
    /// If an entry is needed as a directory and is none.
    pub fn with_list(
        mut self,
        paths: impl IntoIterator<Item = PathBuf>,
    ) -> io::Result<(Self, ListReport)> {
        let (list, report) = InputList::new(&self.root, paths, |path| self.stat(path))?;
        self.list = Some(list);
        Ok((self, report))
    }

    /// The same, but nothing about a path may take longer than `limit`: what does not answer until
    /// then is missing, with everything below it.
    ///
    /// # Errors
    /// As [`with_list`](Self::with_list), and if the root cannot be opened again.
    pub fn with_list_in_time(
        mut self,
        paths: impl IntoIterator<Item = PathBuf>,
        limit: Duration,
    ) -> io::Result<(Self, ListReport)> {
        // A call that never ends keeps another one than this.
        let asked = Arc::new(Self::new(&self.root)?.with_symlinks(self.symlinks));
        let helpers = Arc::new(Helpers::default());
        let lost = RefCell::new(HashSet::<Vec<u8>>::new());
        let stat = |path: &[u8]| {
            let slashes = path.iter().enumerate().filter(|&(_, &b)| b == b'/');
            let mut ends = slashes.map(|(at, _)| at).chain([path.len()]);
            if ends.any(|end| path.get(..end).is_some_and(|up| lost.borrow().contains(up))) {
                return Err(late(limit));
            }
            let (asked, owned) = (Arc::clone(&asked), path.to_vec());
            helpers
                .run(limit, move || asked.stat(&owned))
                .unwrap_or_else(|| {
                    lost.borrow_mut().insert(path.to_vec());
                    Err(late(limit))
                })
        };
        let (list, report) = InputList::new(&self.root, paths, stat)?;
        self.list = Some(list);
        Ok((self, report))
    }

    /// Opens the directory that holds the last component, and returns the rest of the path.
    fn resolve<'p>(&self, path: &'p [u8]) -> io::Result<(Option<OwnedFd>, &'p [u8])> {
        let mut at: Option<OwnedFd> = None;
        let mut rest = path;
        while rest.len() > PATH_STEP {
            let head = rest.get(..PATH_STEP).unwrap_or(rest);
            let Some(cut) = head.iter().rposition(|&b| b == b'/') else {
                break;
            };
            let (step, tail) = rest.split_at(cut);
            at = Some(self.open_at(at.as_ref(), step, OFlags::RDONLY | OFlags::DIRECTORY)?);
            rest = tail.get(1..).unwrap_or_default();
        }
        Ok((at, rest))
    }

    fn open_at(&self, at: Option<&OwnedFd>, path: &[u8], flags: OFlags) -> io::Result<OwnedFd> {
        let dir = at.unwrap_or(&self.fd);
        let path = OsStr::from_bytes(if path.is_empty() { b"." } else { path });
        if self.symlinks == Symlinks::Follow {
            return Ok(fs::openat(
                dir,
                path,
                flags | OFlags::CLOEXEC,
                Mode::empty(),
            )?);
        }
        let flags = flags | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if !flags.contains(OFlags::PATH) {
            let flags = flags | OFlags::NOCTTY;
            // A directory on the way that has become a symlink must not lead out of the tree.
            match fs::openat2(dir, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
                // Old kernels, and sandboxes that do not know the call.
                Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => {}
                other => return Ok(other?),
            }
        }
        Ok(fs::openat(dir, path, flags, Mode::empty())?)
    }

    fn stat(&self, path: &[u8]) -> io::Result<Meta> {
        let (at, rest) = self.resolve(path)?;
        let rest = if rest.is_empty() { b"." } else { rest };
        self.meta_at(at.as_ref().unwrap_or(&self.fd).as_fd(), rest)
    }

    fn meta_at(&self, dir: rustix::fd::BorrowedFd<'_>, name: &[u8]) -> io::Result<Meta> {
        meta_at(dir, name, self.symlinks == Symlinks::Follow)
    }

    fn keep(&self, path: &[u8], name: &[u8], meta: &Meta) -> bool {
        let elsewhere = self.device.is_some_and(|device| device != meta.identity.0);
        if self.skipped.contains(&meta.identity)
            || (meta.kind == FileType::Symlink && self.symlinks == Symlinks::Drop)
            || (elsewhere && meta.kind != FileType::Directory)
        {
            return false;
        }
        match &self.filter {
            None => true,
            Some(filter) => filter(&join(path, name), meta.kind),
        }
    }
}

/// Attributes of one entry, target of a symlink included.
fn meta_at(dir: rustix::fd::BorrowedFd<'_>, name: &[u8], follow: bool) -> io::Result<Meta> {
    let name = OsStr::from_bytes(name);
    let links = if follow {
        AtFlags::empty()
    } else {
        AtFlags::SYMLINK_NOFOLLOW
    };
    let stat = fs::statx(
        dir,
        name,
        links | AtFlags::NO_AUTOMOUNT,
        StatxFlags::BASIC_STATS,
    )?;
    let mode = u32::from(stat.stx_mode);
    let kind = FileType::from_mode(mode).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::Unsupported,
            format!("unknown file type {mode:o}"),
        )
    })?;
    let time = |t: fs::StatxTimestamp| Timestamp {
        sec: t.tv_sec,
        nsec: t.tv_nsec,
    };
    let target = match kind {
        FileType::Symlink => Some(fs::readlinkat(dir, name, Vec::new())?.into_bytes()),
        _ => None,
    };
    Ok(Meta {
        kind,
        permissions: mode & 0o7777,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        allocated: stat.stx_blocks.saturating_mul(512),
        nlink: u64::from(stat.stx_nlink),
        identity: (
            fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            stat.stx_ino,
        ),
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        target,
    })
}

/// Attributes of a regular file.
pub(super) fn meta_of_file(path: &Path) -> io::Result<Meta> {
    let meta = meta_at(fs::CWD, path.as_os_str().as_bytes(), true)?;
    if meta.kind != FileType::Regular {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(meta)
}

/// Opens a regular file by its path.
pub(super) fn open_file(path: &Path) -> io::Result<Box<dyn Content>> {
    // NONBLOCK: as in `open` below.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    host_file(fs::open(path, flags, Mode::empty())?)
}

fn host_file(fd: OwnedFd) -> io::Result<Box<dyn Content>> {
    let stat = fs::fstat(&fd)?;
    if FileType::from_mode(stat.st_mode) != Some(FileType::Regular) {
        return Err(io::Error::other("no longer a regular file"));
    }
    let opened = Cell::new(Some(stamp(&stat)));
    Ok(Box::new(HostFile { fd, opened }))
}

impl DirectorySource {
    /// The entries of a directory, and of each whether it is part of the tree.
    ///
    /// # Errors
    /// As [`Source::read_dir`].
    pub fn list(&self, path: &[u8]) -> io::Result<Vec<(DirItem, bool)>> {
        let listing = {
            let mut asking = self.asking();
            asking.listing += 1;
            asking.about = None;
            asking.listing
        };
        let few = |entries: usize| (entries as u64) < self.most.load(Ordering::Relaxed);
        self.list_while(path, Some(listing), &few)
    }

    /// The same, as long as `more` wants more than so many entries. A `listing` says what it waits
    /// for.
    fn list_while(
        &self,
        path: &[u8],
        listing: Option<u64>,
        more: &dyn Fn(usize) -> bool,
    ) -> io::Result<Vec<(DirItem, bool)>> {
        let may_grow = |items: &[_]| {
            if more(items.len()) {
                return Ok(());
            }
            Err(io::Error::from(io::ErrorKind::QuotaExceeded))
        };
        let item = |dir: rustix::fd::BorrowedFd<'_>, name: &[u8]| match listing {
            Some(listing) => self.item(dir, path, name, listing),
            None => self.kept(path, name, self.meta_at(dir, name)),
        };
        let mut items = Vec::new();
        if let Some(list) = &self.list {
            let Some(names) = list.children(path) else {
                return Ok(items);
            };
            let (at, rest) = self.resolve(path)?;
            let dir = self.open_at(at.as_ref(), rest, OFlags::PATH | OFlags::DIRECTORY)?;
            for name in names {
                may_grow(&items)?;
                items.push(item(dir.as_fd(), name));
            }
            return Ok(items);
        }
        let (at, rest) = self.resolve(path)?;
        let dir = self.open_at(at.as_ref(), rest, OFlags::RDONLY | OFlags::DIRECTORY)?;
        if self.device.is_some_and(|device| {
            !path.is_empty() && fs::fstat(&dir).is_ok_and(|stat| stat.st_dev != device)
        }) {
            return Ok(items);
        }
        let mut entries = fs::Dir::new(dir)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                may_grow(&items)?;
                items.push(item(entries.fd()?, name));
            }
        }
        if !path.is_empty()
            && let Some(tag) = self.tag_of(entries.fd()?, &items)
        {
            for (item, kept) in &mut items {
                *kept &= item.name == tag.name();
            }
        }
        Ok(items)
    }

    fn item(
        &self,
        dir: rustix::fd::BorrowedFd<'_>,
        path: &[u8],
        name: &[u8],
        listing: u64,
    ) -> (DirItem, bool) {
        let mute = {
            let mut asking = self.asking();
            let whole = join(path, name);
            let mute = asking.mute.contains(&whole);
            asking.tell(listing, Some(whole));
            mute
        };
        let meta = if mute {
            Err(io::Error::new(io::ErrorKind::TimedOut, "given up"))
        } else {
            self.meta_at(dir, name)
        };
        self.asking().tell(listing, None);
        self.listed.fetch_add(1, Ordering::Relaxed);
        self.kept(path, name, meta)
    }

    /// An entry, and whether it is part of the tree.
    fn kept(&self, path: &[u8], name: &[u8], meta: io::Result<Meta>) -> (DirItem, bool) {
        let kept = (meta.as_ref()).map_or(true, |meta| self.keep(path, name, meta));
        let name = name.to_vec();
        (DirItem { name, meta }, kept)
    }

    fn asking(&self) -> MutexGuard<'_, Asking> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tag_of(&self, dir: rustix::fd::BorrowedFd<'_>, items: &[(DirItem, bool)]) -> Option<&Tag> {
        self.tags.iter().find(|tag| {
            let is_there = items.iter().any(|(item, _)| item.name == tag.name());
            is_there && (**tag != Tag::Cache || is_cache_tag(dir))
        })
    }
}

fn is_cache_tag(dir: rustix::fd::BorrowedFd<'_>) -> bool {
    let flags =
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    let begins = || -> io::Result<bool> {
        let fd = fs::openat(dir, OsStr::from_bytes(CACHE_TAG), flags, Mode::empty())?;
        let file = host_file(fd)?;
        let mut begin = [0; CACHE_SIGNATURE.len()];
        Ok(file.read_at(0, &mut begin)? == begin.len() && begin == *CACHE_SIGNATURE)
    };
    begins().unwrap_or(false)
}

fn only_kept(items: Vec<(DirItem, bool)>) -> Vec<DirItem> {
    let items = items.into_iter();
    items
        .filter_map(|(item, kept)| kept.then_some(item))
        .collect()
}

impl Source for DirectorySource {
    fn root(&self) -> io::Result<Meta> {
        self.stat(b"")
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
        Ok(only_kept(self.list(path)?))
    }

    fn lists_in_parallel(&self) -> bool {
        true
    }

    fn read_dir_beside(
        &self,
        path: &[u8],
        more: &dyn Fn(usize) -> bool,
    ) -> io::Result<Vec<DirItem>> {
        Ok(only_kept(self.list_while(path, None, more)?))
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Content>> {
        let (at, rest) = self.resolve(path)?;
        // NONBLOCK: a FIFO that has taken the place of the file must not block the build.
        let flags = OFlags::RDONLY | OFlags::NONBLOCK;
        // Only the owner may ask for NOATIME; where one file refuses it, most do.
        let quiet = self.quiet.load(Ordering::Relaxed);
        let wanted = if quiet {
            flags | OFlags::NOATIME
        } else {
            flags
        };
        let fd = match self.open_at(at.as_ref(), rest, wanted) {
            Err(error) if quiet && error.kind() == io::ErrorKind::PermissionDenied => {
                let fd = self.open_at(at.as_ref(), rest, flags)?;
                self.quiet.store(false, Ordering::Relaxed);
                fd
            }
            other => other?,
        };
        host_file(fd)
    }

    fn memory(&self) -> u64 {
        self.list.as_ref().map_or(0, InputList::memory)
    }

    fn most_entries(&self, most: u64) {
        self.most.store(most, Ordering::Relaxed);
    }

    fn list_position(&self, path: &[u8]) -> Option<u64> {
        self.list.as_ref()?.position(path)
    }

    fn activity(&self) -> u64 {
        self.listed.load(Ordering::Relaxed)
    }

    fn asking_about(&self) -> Option<Vec<u8>> {
        self.asking().about.clone()
    }

    fn leave_alone(&self, path: &[u8]) {
        self.asking().mute.insert(path.to_vec());
    }

    fn display_path(&self, path: &[u8]) -> String {
        if path.is_empty() {
            return self.root.display().to_string();
        }
        // A name must not break the line of a message.
        let whole = self.root.join(OsStr::from_bytes(path));
        let mut shown = String::new();
        for c in whole.to_string_lossy().chars() {
            if c.is_control() {
                shown.extend(c.escape_default());
            } else {
                shown.push(c);
            }
        }
        shown
    }
}

struct HostFile {
    fd: OwnedFd,
    /// What `open` has just found out, for the first who asks.
    opened: Cell<Option<Stamp>>,
}

fn stamp(stat: &fs::Stat) -> Stamp {
    Stamp {
        size: u64::try_from(stat.st_size).unwrap_or(0),
        mtime: Timestamp {
            sec: stat.st_mtime,
            nsec: u32::try_from(stat.st_mtime_nsec).unwrap_or(0),
        },
    }
}

impl Content for HostFile {
    fn stamp(&self) -> io::Result<Stamp> {
        match self.opened.take() {
            Some(stamp) => Ok(stamp),
            None => Ok(stamp(&fs::fstat(&self.fd)?)),
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        loop {
            match rustix::io::pread(&self.fd, &mut *buf, offset) {
                Err(Errno::INTR) => {}
                other => return Ok(other?),
            }
        }
    }

    fn next_data(&self, offset: u64, end: u64) -> io::Result<Option<DataExtent>> {
        if offset >= end {
            return Ok(None);
        }
        let whole = Ok(Some(DataExtent {
            offset,
            size: end - offset,
        }));
        let start = match fs::seek(&self.fd, SeekFrom::Data(offset)) {
            Ok(start) => start.max(offset),
            Err(Errno::NXIO) => return Ok(None),
            // File systems that cannot tell where their holes are.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => return whole,
            Err(error) => return Err(error.into()),
        };
        if start >= end {
            return Ok(None);
        }
        let stop = match fs::seek(&self.fd, SeekFrom::Hole(start)) {
            Ok(stop) => stop.min(end),
            Err(_) => end,
        };
        // A hole that begins at or before the data it follows: the file changed in between.
        if stop <= start {
            return whole;
        }
        Ok(Some(DataExtent {
            offset: start,
            size: stop - start,
        }))
    }
}
