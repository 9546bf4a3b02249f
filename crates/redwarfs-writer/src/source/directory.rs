//! A directory of the host as a source.

use std::cell::{Cell, RefCell};
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use redwarfs_io::path::shown;

use super::extended::XattrFilter;
use super::list::{InputList, ListReport};
use super::timed::{Helpers, late};
use super::{Content, DirItem, FileType, Meta, Source, join};
use crate::os::{self, Dir, DirRef, EntryLocation, Found, PATH_STEP, Wanted};

/// Selects entries. It is called with the path relative to the root, and the type. `false` leaves out
/// the entry and everything below it. It is never called for the root.
pub type EntryFilter = Box<dyn Fn(&[u8], FileType) -> bool + Send + Sync>;

/// Treatment of symlinks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Symlinks {
    /// Symlinks are stored as symlinks.
    #[default]
    Keep,
    /// Their targets are stored in their place. A symlink without target is an error.
    Follow,
    /// They are left out.
    Drop,
}

/// The mark of a directory whose contents are left out.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Tag {
    /// An entry of this name.
    Name(Vec<u8>),
    /// A file `CACHEDIR.TAG` with the signature of the Cache Directory Tagging Specification.
    Cache,
}

const CACHE_TAG: &[u8] = b"CACHEDIR.TAG";
const CACHE_SIGNATURE: &[u8] = b"Signature: 8a477f597d28d172789f06886806bc55";

impl Tag {
    /// Name of the entry that is the mark.
    #[must_use]
    pub fn name(&self) -> &[u8] {
        match self {
            Tag::Name(name) => name,
            Tag::Cache => CACHE_TAG,
        }
    }
}

/// A directory of the host. By default, symlinks are not followed, and mount points are crossed. Names
/// are raw bytes.
pub struct DirectorySource {
    root: PathBuf,
    dir: Dir,
    filter: Option<EntryFilter>,
    skipped: BTreeSet<(u64, u64)>,
    /// Whether to ask the system not to change access times.
    quiet: AtomicBool,
    list: Option<InputList>,
    symlinks: Symlinks,
    /// The only file system to store, if there is a restriction.
    only: Option<FileSystem>,
    /// Paths on other file systems: directories that were not entered, and entries.
    elsewhere: Mutex<BTreeSet<Vec<u8>>>,
    tags: Vec<Tag>,
    /// The extended attributes that are read.
    xattrs: XattrFilter,
    /// Whether to read flags, and birth times.
    flags: bool,
    births: bool,
    /// Entries that were listed so far.
    listed: AtomicU64,
    /// Entries that a listing may have.
    most: AtomicU64,
    asking: Mutex<Asking>,
}

/// The file system of a directory.
#[derive(Debug, Clone, Copy)]
struct FileSystem {
    device: u64,
    /// Absent if the kernel does not number mounts (before Linux 5.8).
    mount: Option<u64>,
}

impl FileSystem {
    /// Whether a directory with this device number belongs to another file system.
    fn excludes_directory(self, device: u64) -> bool {
        device != self.device
    }

    /// Whether an entry that is no directory belongs to another file system. The device number alone is
    /// not enough: overlayfs shows the device number of the layer for each file. Unless a single file
    /// is a mount point, it belongs where its directory belongs.
    fn excludes_entry(self, found: &Found) -> bool {
        let mounted = matches!((found.mount, self.mount), (Some(its), Some(own)) if its != own);
        mounted && found.meta.identity.0 != self.device
    }
}

/// The entry for which a listing waits.
#[derive(Debug, Default)]
struct Asking {
    /// Number of the last listing. Results of an abandoned listing are ignored.
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
    /// The root cannot be opened, or is not a directory.
    pub fn new(root: impl Into<PathBuf>) -> io::Result<Self> {
        let root = root.into();
        let dir = os::open_root(&root)?;
        Ok(Self::of(dir, root))
    }

    /// A directory that is open, maybe only to look up names in it. `path` is for messages.
    #[cfg(unix)]
    pub fn at(dir: std::os::fd::OwnedFd, path: impl Into<PathBuf>) -> Self {
        Self::of(dir, path.into())
    }

    fn of(dir: Dir, root: PathBuf) -> Self {
        Self {
            root,
            dir,
            filter: None,
            skipped: BTreeSet::new(),
            quiet: AtomicBool::new(true),
            list: None,
            symlinks: Symlinks::Keep,
            only: None,
            elsewhere: Mutex::default(),
            tags: Vec::new(),
            xattrs: XattrFilter::all(),
            flags: false,
            births: false,
            listed: AtomicU64::new(0),
            most: AtomicU64::new(u64::MAX),
            asking: Mutex::default(),
        }
    }

    /// The directory that was opened.
    pub fn path(&self) -> &Path {
        &self.root
    }

    /// Leaves out entries for which `filter` returns false.
    #[must_use]
    pub fn with_filter(mut self, filter: EntryFilter) -> Self {
        self.filter = Some(filter);
        self
    }

    /// Leaves out a regular file, such as the image that is being written. An entry of another kind, or
    /// a file whose attributes cannot be read, has no effect.
    #[must_use]
    pub fn skip_file(mut self, file: impl os::AsFile) -> Self {
        self.skipped.extend(os::identity_of_file(&file));
        self
    }

    /// Leaves out a directory, such as one for temporary files.
    ///
    /// # Errors
    /// It cannot be opened. [`io::ErrorKind::InvalidInput`] if it is the root.
    pub fn skip_directory(&mut self, path: &Path) -> io::Result<()> {
        let identity = os::identity_of_dir(&os::open_root(path)?)?;
        if identity == os::identity_of_dir(&self.dir)? {
            return Err(io::ErrorKind::InvalidInput.into());
        }
        self.skipped.insert(identity);
        Ok(())
    }

    /// Reads only these extended attributes. Without this call, it reads all that an image can have.
    #[must_use]
    pub fn with_xattrs(mut self, filter: XattrFilter) -> Self {
        self.xattrs = filter;
        self
    }

    /// Reads the flags of files and directories, too, which opens each of them.
    #[must_use]
    pub fn with_file_flags(mut self) -> Self {
        self.flags = true;
        self
    }

    /// Passes on birth times, too.
    #[must_use]
    pub fn with_birth_times(mut self) -> Self {
        self.births = true;
        self
    }

    /// What becomes of symlinks.
    #[must_use]
    pub fn with_symlinks(mut self, symlinks: Symlinks) -> Self {
        self.symlinks = symlinks;
        self
    }

    /// Stays on the file system of the root: directories of others are empty, and single files of
    /// others that are mounted over a file are left out. [`elsewhere`](Self::elsewhere) lists them.
    ///
    /// # Errors
    /// The file system of the root cannot be determined.
    pub fn one_file_system(mut self) -> io::Result<Self> {
        let root = self.find(b"")?;
        self.only = Some(FileSystem {
            device: root.meta.identity.0,
            mount: root.mount,
        });
        Ok(self)
    }

    /// Paths of other file systems that were met so far: directories that were not entered, and
    /// entries that were left out.
    pub fn elsewhere(&self) -> Vec<Vec<u8>> {
        self.lock_elsewhere().iter().cloned().collect()
    }

    fn lock_elsewhere(&self) -> MutexGuard<'_, BTreeSet<Vec<u8>>> {
        self.elsewhere
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Leaves out the contents of directories below the root that have one of these tags, except the
    /// tag itself.
    #[must_use]
    pub fn without_tagged(mut self, tags: Vec<Tag>) -> Self {
        self.tags = tags;
        self
    }

    /// Restricts the tree to these paths: relative to the root, or absolute and below it. Parents are
    /// added as needed; a listed directory comes without its content. Paths that do not exist are left
    /// out, and the report names them.
    pub fn with_list(mut self, paths: impl IntoIterator<Item = PathBuf>) -> (Self, ListReport) {
        let (list, report) = InputList::new(&self.root, paths, |path| self.stat(path));
        self.list = Some(list);
        (self, report)
    }

    /// The same, with a time limit for each path. A path that does not answer in this time counts as
    /// missing, with everything below it.
    ///
    /// # Errors
    /// The root cannot be opened again.
    pub fn with_list_in_time(
        mut self,
        paths: impl IntoIterator<Item = PathBuf>,
        limit: Duration,
    ) -> io::Result<(Self, ListReport)> {
        // If a call never ends, its thread keeps another clone than this one.
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
        let (list, report) = InputList::new(&self.root, paths, stat);
        self.list = Some(list);
        Ok((self, report))
    }

    /// Opens the directory that holds the last component, and returns the rest of the path.
    fn resolve<'p>(&self, path: &'p [u8]) -> io::Result<(Option<Dir>, &'p [u8])> {
        let mut at: Option<Dir> = None;
        let mut rest = path;
        while rest.len() > PATH_STEP {
            let head = rest.get(..PATH_STEP).unwrap_or(rest);
            let Some(cut) = head.iter().rposition(|&b| b == b'/') else {
                break;
            };
            let (step, tail) = rest.split_at(cut);
            at = Some(os::open_dir(self.below(at.as_ref()), step, self.follows())?);
            rest = tail.get(1..).unwrap_or_default();
        }
        Ok((at, rest))
    }

    /// The directory that was opened last, or the root.
    fn below<'a>(&'a self, at: Option<&'a Dir>) -> DirRef<'a> {
        os::dir_ref(at.unwrap_or(&self.dir))
    }

    fn follows(&self) -> bool {
        self.symlinks == Symlinks::Follow
    }

    /// Attributes of an entry, without extended ones. The empty path is that of the directory itself.
    ///
    /// # Errors
    /// The error of the system.
    pub fn stat(&self, path: &[u8]) -> io::Result<Meta> {
        Ok(self.find(path)?.meta)
    }

    fn find(&self, path: &[u8]) -> io::Result<Found> {
        let (at, rest) = self.resolve(path)?;
        let rest = if rest.is_empty() { b"." } else { rest };
        self.find_at(self.below(at.as_ref()), rest)
    }

    fn find_at(&self, dir: DirRef<'_>, name: &[u8]) -> io::Result<Found> {
        os::find_at(dir, name, self.follows())
    }

    fn keep(&self, path: &[u8], name: &[u8], found: &Found) -> bool {
        let meta = &found.meta;
        if self.skipped.contains(&meta.identity)
            || (meta.kind == FileType::Symlink && self.symlinks == Symlinks::Drop)
            || (self.filter.as_ref()).is_some_and(|filter| !filter(&join(path, name), meta.kind))
        {
            return false;
        }
        let elsewhere = meta.kind != FileType::Directory
            && self.only.is_some_and(|only| only.excludes_entry(found));
        if elsewhere {
            self.lock_elsewhere().insert(join(path, name));
        }
        !elsewhere
    }
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

    /// The same, as long as `more` accepts the number of entries. With `listing`, the entry for which
    /// it waits is recorded.
    fn list_while(
        &self,
        path: &[u8],
        listing: Option<u64>,
        more: &dyn Fn(usize) -> bool,
    ) -> io::Result<Vec<(DirItem, bool)>> {
        let weight = Cell::new(0);
        let add = |items: &mut Vec<(DirItem, bool)>, item: (DirItem, bool)| {
            weight.set(weight.get() + item.0.weight());
            items.push(item);
        };
        let may_grow = || {
            if more(weight.get()) {
                return Ok(());
            }
            Err(io::Error::from(io::ErrorKind::QuotaExceeded))
        };
        let item = |dir: DirRef<'_>, name: &[u8]| match listing {
            Some(listing) => self.item(dir, path, name, listing),
            None => self.kept(dir, path, name, self.find_at(dir, name)),
        };
        let mut items = Vec::new();
        if let Some(list) = &self.list {
            let Some(names) = list.children(path) else {
                return Ok(items);
            };
            let (at, rest) = self.resolve(path)?;
            let dir = os::open_anchor(self.below(at.as_ref()), rest, self.follows())?;
            for name in names {
                may_grow()?;
                add(&mut items, item(os::dir_ref(&dir), name));
            }
            return Ok(items);
        }
        let (at, rest) = self.resolve(path)?;
        let dir = os::open_dir(self.below(at.as_ref()), rest, self.follows())?;
        if let Some(only) = self.only
            && !path.is_empty()
            && os::identity_of_dir(&dir).is_ok_and(|(device, _)| only.excludes_directory(device))
        {
            self.lock_elsewhere().insert(path.to_vec());
            return Ok(items);
        }
        let mut listing = os::Listing::new(dir)?;
        listing.each(|dir, name| {
            may_grow()?;
            add(&mut items, item(dir, name));
            Ok(())
        })?;
        if !path.is_empty()
            && let Some(tag) = self.tag_of(listing.dir()?, &items)
        {
            for (item, kept) in &mut items {
                *kept &= item.name == tag.name();
            }
        }
        Ok(items)
    }

    fn item(&self, dir: DirRef<'_>, path: &[u8], name: &[u8], listing: u64) -> (DirItem, bool) {
        let mute = {
            let mut asking = self.asking();
            let whole = join(path, name);
            let mute = asking.mute.contains(&whole);
            asking.tell(listing, Some(whole));
            mute
        };
        let found = if mute {
            Err(io::Error::new(io::ErrorKind::TimedOut, "given up"))
        } else {
            self.find_at(dir, name)
        };
        let item = self.kept(dir, path, name, found);
        self.asking().tell(listing, None);
        self.listed.fetch_add(1, Ordering::Relaxed);
        item
    }

    /// An entry, and whether it is part of the tree.
    fn kept(
        &self,
        dir: DirRef<'_>,
        path: &[u8],
        name: &[u8],
        found: io::Result<Found>,
    ) -> (DirItem, bool) {
        let kept = (found.as_ref()).map_or(true, |found| self.keep(path, name, found));
        let meta = match found {
            Ok(found) if kept => self.extended(dir, path, name, found),
            other => other.map(|found| found.meta),
        };
        let name = name.to_vec();
        (DirItem { name, meta }, kept)
    }

    /// Attributes of an entry with the extended ones. If it has vanished meanwhile, this is an error, as
    /// if it had vanished before.
    fn extended(
        &self,
        dir: DirRef<'_>,
        path: &[u8],
        name: &[u8],
        found: Found,
    ) -> io::Result<Meta> {
        let mut meta = found.meta;
        if let Some(birth) = found.birth.filter(|_| self.births) {
            meta.extended.set_birth(birth);
        }
        let place = EntryLocation {
            root: &self.root,
            path,
            dir,
            name,
            follow: self.follows(),
        };
        let wanted = Wanted {
            xattrs: &self.xattrs,
            flags: self.flags,
        };
        os::read_extended(&place, &mut meta, wanted)?;
        Ok(meta)
    }

    fn asking(&self) -> MutexGuard<'_, Asking> {
        self.asking.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn tag_of(&self, dir: DirRef<'_>, items: &[(DirItem, bool)]) -> Option<&Tag> {
        self.tags.iter().find(|tag| {
            let is_there = items.iter().any(|(item, _)| item.name == tag.name());
            is_there && (**tag != Tag::Cache || is_cache_tag(dir))
        })
    }
}

fn is_cache_tag(dir: DirRef<'_>) -> bool {
    let begins = || -> io::Result<bool> {
        let file = os::open_in(dir, CACHE_TAG)?;
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
        let found = self.find(b"")?;
        self.extended(os::dir_ref(&self.dir), b"", b".", found)
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
        os::open_content(self.below(at.as_ref()), rest, self.follows(), &self.quiet)
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
        let whole = self.root.join(shown(path));
        let mut line = String::new();
        for c in whole.to_string_lossy().chars() {
            if c.is_control() {
                line.extend(c.escape_default());
            } else {
                line.push(c);
            }
        }
        line
    }
}
