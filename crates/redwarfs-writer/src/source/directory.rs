//! A directory of the host as a source.

use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::{Component, Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self, AtFlags, Mode, OFlags, ResolveFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use super::{Content, DataExtent, DirItem, FileType, Meta, Source, Stamp, Timestamp};

/// Longest relative path given to the system in one call; longer ones are opened in steps.
const PATH_STEP: usize = 3800;

/// Decides which entries exist: called with the path relative to the root and the type;
/// `false` leaves the entry (and everything below it) out. Never called for the root.
pub type EntryFilter = Box<dyn Fn(&[u8], FileType) -> bool + Send + Sync>;

/// What became of an input list.
#[derive(Debug, Default, Clone, PartialEq, Eq)]
pub struct ListReport {
    /// Paths that appeared before.
    pub duplicates: Vec<PathBuf>,
    /// Absolute paths outside of the root, or paths that leave it with `..`.
    pub outside: Vec<PathBuf>,
    /// Paths that do not exist, with the reason.
    pub missing: Vec<(PathBuf, String)>,
}

/// A directory of the host. Entries are taken as they are: symlinks are not followed, mount
/// points are crossed, names are raw bytes.
pub struct DirectorySource {
    root: PathBuf,
    fd: OwnedFd,
    filter: Option<EntryFilter>,
    skipped: BTreeSet<(u64, u64)>,
    /// Ask the system to leave access times alone.
    quiet: AtomicBool,
    list: Option<InputList>,
}

/// The directories named by an input list, each with its listed children, and the position of
/// every listed path.
#[derive(Debug, Default)]
struct InputList {
    children: BTreeMap<Vec<u8>, BTreeSet<Vec<u8>>>,
    positions: HashMap<Vec<u8>, u64>,
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

    /// Restricts the tree to these paths: relative to the root, or absolute and below it.
    /// Parents are added as needed; a listed directory comes without its content.
    ///
    /// # Errors
    /// If an entry is needed as a directory and is none.
    pub fn with_list(
        mut self,
        paths: impl IntoIterator<Item = PathBuf>,
    ) -> io::Result<(Self, ListReport)> {
        let mut list = InputList::default();
        let mut report = ListReport::default();
        for (position, path) in paths.into_iter().enumerate() {
            let inside = if path.is_absolute() {
                match path.strip_prefix(&self.root) {
                    Ok(inside) => inside,
                    Err(_) => {
                        report.outside.push(path);
                        continue;
                    }
                }
            } else {
                path.as_path()
            };
            let mut components = Vec::new();
            let mut left = false;
            for component in inside.components() {
                match component {
                    Component::Normal(name) => components.push(name.as_bytes()),
                    Component::CurDir => {}
                    _ => left = true,
                }
            }
            if left {
                report.outside.push(path);
                continue;
            }
            if components.is_empty() {
                continue;
            }
            let key = components.join(&b'/');
            if list.positions.contains_key(&key) {
                report.duplicates.push(path);
                continue;
            }
            match self.stat(&key) {
                Ok(_) => {}
                Err(error) if error.kind() == io::ErrorKind::NotADirectory => return Err(error),
                Err(error) => {
                    report.missing.push((path, error.to_string()));
                    continue;
                }
            }
            list.positions.insert(key, position as u64);
            let mut parent = Vec::new();
            for name in components {
                list.children
                    .entry(parent.clone())
                    .or_default()
                    .insert(name.to_vec());
                if !parent.is_empty() {
                    parent.push(b'/');
                }
                parent.extend_from_slice(name);
            }
        }
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
        meta_at(at.as_ref().unwrap_or(&self.fd).as_fd(), rest)
    }

    fn keep(&self, path: &[u8], name: &[u8], meta: &Meta) -> bool {
        if self.skipped.contains(&meta.identity) {
            return false;
        }
        match &self.filter {
            None => true,
            Some(filter) => {
                let mut full = Vec::with_capacity(path.len() + name.len() + 1);
                full.extend_from_slice(path);
                if !full.is_empty() {
                    full.push(b'/');
                }
                full.extend_from_slice(name);
                filter(&full, meta.kind)
            }
        }
    }
}

/// Attributes of one entry, target of a symlink included.
fn meta_at(dir: rustix::fd::BorrowedFd<'_>, name: &[u8]) -> io::Result<Meta> {
    let name = OsStr::from_bytes(name);
    let stat = fs::statx(
        dir,
        name,
        AtFlags::SYMLINK_NOFOLLOW | AtFlags::NO_AUTOMOUNT,
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

impl Source for DirectorySource {
    fn root(&self) -> io::Result<Meta> {
        self.stat(b"")
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
        let mut items = Vec::new();
        if let Some(list) = &self.list {
            let Some(names) = list.children.get(path) else {
                return Ok(items);
            };
            let (at, rest) = self.resolve(path)?;
            let dir = self.open_at(at.as_ref(), rest, OFlags::PATH | OFlags::DIRECTORY)?;
            for name in names {
                let meta = meta_at(dir.as_fd(), name);
                if meta
                    .as_ref()
                    .map_or(true, |meta| self.keep(path, name, meta))
                {
                    items.push(DirItem {
                        name: name.clone(),
                        meta,
                    });
                }
            }
            return Ok(items);
        }
        let (at, rest) = self.resolve(path)?;
        let dir = self.open_at(at.as_ref(), rest, OFlags::RDONLY | OFlags::DIRECTORY)?;
        let mut entries = fs::Dir::new(dir)?;
        while let Some(entry) = entries.read() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == b"." || name == b".." {
                continue;
            }
            match entries
                .fd()
                .map_err(io::Error::from)
                .and_then(|dir| meta_at(dir, name))
            {
                Ok(meta) => {
                    if self.keep(path, name, &meta) {
                        items.push(DirItem {
                            name: name.to_vec(),
                            meta: Ok(meta),
                        });
                    }
                }
                Err(error) => items.push(DirItem {
                    name: name.to_vec(),
                    meta: Err(error),
                }),
            }
        }
        Ok(items)
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
        let stat = fs::fstat(&fd)?;
        if FileType::from_mode(stat.st_mode) != Some(FileType::Regular) {
            return Err(io::Error::other("no longer a regular file"));
        }
        let opened = Cell::new(Some(stamp(&stat)));
        Ok(Box::new(HostFile { fd, opened }))
    }

    fn list_position(&self, path: &[u8]) -> Option<u64> {
        self.list.as_ref()?.positions.get(path).copied()
    }

    fn display_path(&self, path: &[u8]) -> String {
        if path.is_empty() {
            return self.root.display().to_string();
        }
        self.root
            .join(OsStr::from_bytes(path))
            .display()
            .to_string()
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
