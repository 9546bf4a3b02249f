//! Entries and files of the host, one at a time.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::fs::{self, AtFlags, Mode, OFlags, ResolveFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use super::{Dir, DirRef};
use crate::os::Found;
use crate::source::extended::ExtendedAttributes;
use crate::source::{Content, DataExtent, FileIdentity, FileType, Meta, Stamp, Timestamp};

/// Attributes of an open file. Attributes that are compared with those of entries come from the same
/// syscall. In emulators and on 32-bit systems, other calls return less, for example no nanoseconds.
fn stat_of(file: BorrowedFd<'_>) -> io::Result<fs::Statx> {
    Ok(fs::statx(
        file,
        c"",
        AtFlags::EMPTY_PATH,
        StatxFlags::BASIC_STATS,
    )?)
}

/// Device and inode number.
fn identity(stat: &fs::Statx) -> (u64, u64) {
    let device = fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    (device, stat.stx_ino)
}

fn time(time: fs::StatxTimestamp) -> Timestamp {
    Timestamp {
        sec: time.tv_sec,
        nsec: time.tv_nsec,
    }
}

/// Attributes of one entry, including the target of a symlink.
pub(crate) fn find_at(dir: DirRef<'_>, name: &[u8], follow: bool) -> io::Result<Found> {
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
        StatxFlags::BASIC_STATS | StatxFlags::MNT_ID | StatxFlags::BTIME,
    )?;
    let mode = u32::from(stat.stx_mode);
    let kind = FileType::from_mode(mode).ok_or_else(|| {
        io::Error::new(
            io::ErrorKind::Unsupported,
            format!("unknown file type {mode:o}"),
        )
    })?;
    let target = match kind {
        FileType::Symlink => Some(fs::readlinkat(dir, name, Vec::new())?.into_bytes()),
        _ => None,
    };
    let meta = Meta {
        kind,
        permissions: mode & 0o7777,
        uid: stat.stx_uid,
        gid: stat.stx_gid,
        rdev: fs::makedev(stat.stx_rdev_major, stat.stx_rdev_minor),
        size: stat.stx_size,
        allocated: stat.stx_blocks.saturating_mul(512),
        nlink: u64::from(stat.stx_nlink),
        identity: identity(&stat),
        atime: time(stat.stx_atime),
        mtime: time(stat.stx_mtime),
        ctime: time(stat.stx_ctime),
        target,
        extended: ExtendedAttributes::default(),
    };
    let numbered = stat.stx_mask & StatxFlags::MNT_ID.bits() != 0;
    Ok(Found {
        meta,
        mount: numbered.then_some(stat.stx_mnt_id),
        birth: (stat.stx_mask & StatxFlags::BTIME.bits() != 0).then(|| time(stat.stx_btime)),
    })
}

/// Device and inode number of an open regular file; none for another kind.
pub(crate) fn identity_of_file(file: &impl AsFd) -> Option<(u64, u64)> {
    let stat = stat_of(file.as_fd()).ok()?;
    let is_file = FileType::from_mode(u32::from(stat.stx_mode)) == Some(FileType::Regular);
    is_file.then(|| identity(&stat))
}

/// Device and inode number of an open directory.
pub(crate) fn identity_of_dir(dir: &Dir) -> io::Result<(u64, u64)> {
    Ok(identity(&stat_of(dir.as_fd())?))
}

/// Opens the root of a tree; a symlink to a directory is followed.
pub(crate) fn open_root(path: &Path) -> io::Result<Dir> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    Ok(fs::open(path, flags, Mode::empty())?)
}

/// Opens a directory to list it.
pub(crate) fn open_dir(at: DirRef<'_>, path: &[u8], follow: bool) -> io::Result<Dir> {
    open_at(at, path, OFlags::RDONLY | OFlags::DIRECTORY, follow)
}

/// Opens a directory to look up names in it.
pub(crate) fn open_anchor(at: DirRef<'_>, path: &[u8], follow: bool) -> io::Result<Dir> {
    open_at(at, path, OFlags::PATH | OFlags::DIRECTORY, follow)
}

fn open_at(dir: DirRef<'_>, path: &[u8], flags: OFlags, follow: bool) -> io::Result<Dir> {
    let path = OsStr::from_bytes(if path.is_empty() { b"." } else { path });
    if follow {
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
        // If a parent directory has become a symlink, it must not lead out of the tree.
        match fs::openat2(dir, path, flags, Mode::empty(), ResolveFlags::NO_SYMLINKS) {
            // Old kernels, and sandboxes without this syscall.
            Err(Errno::NOSYS | Errno::PERM | Errno::INVAL) => {}
            other => return Ok(other?),
        }
    }
    Ok(fs::openat(dir, path, flags, Mode::empty())?)
}

/// Opens a regular file below a directory. `quiet`: whether to ask the system not to change access times.
pub(crate) fn open_content(
    at: DirRef<'_>,
    path: &[u8],
    follow: bool,
    quiet: &AtomicBool,
) -> io::Result<Box<dyn Content>> {
    // NONBLOCK: a FIFO that has taken the place of the file must not block the build.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK;
    // Only the owner may use NOATIME. If it fails for one file, it fails for most.
    let is_quiet = quiet.load(Ordering::Relaxed);
    let wanted = if is_quiet {
        flags | OFlags::NOATIME
    } else {
        flags
    };
    let fd = match open_at(at, path, wanted, follow) {
        Err(error) if is_quiet && error.kind() == io::ErrorKind::PermissionDenied => {
            let fd = open_at(at, path, flags, follow)?;
            quiet.store(false, Ordering::Relaxed);
            fd
        }
        other => other?,
    };
    host_file(fd)
}

/// Opens a regular file in a directory.
pub(crate) fn open_in(dir: DirRef<'_>, name: &[u8]) -> io::Result<Box<dyn Content>> {
    let flags =
        OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
    host_file(fs::openat(
        dir,
        OsStr::from_bytes(name),
        flags,
        Mode::empty(),
    )?)
}

/// The names in a directory, one after another.
pub(crate) struct Listing(fs::Dir);

impl Listing {
    pub(crate) fn new(dir: Dir) -> io::Result<Self> {
        Ok(Self(fs::Dir::new(dir)?))
    }

    /// Calls `each` with every name, except those of the directory itself and of its parent.
    pub(crate) fn each(
        &mut self,
        mut each: impl FnMut(DirRef<'_>, &[u8]) -> io::Result<()>,
    ) -> io::Result<()> {
        while let Some(entry) = self.0.read() {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name != b"." && name != b".." {
                each(self.0.fd()?, name)?;
            }
        }
        Ok(())
    }

    /// The directory.
    pub(crate) fn dir(&self) -> io::Result<DirRef<'_>> {
        Ok(self.0.fd()?)
    }
}

/// Attributes of a regular file.
pub(crate) fn meta_of_file(path: &Path) -> io::Result<Meta> {
    let meta = find_at(fs::CWD, path.as_os_str().as_bytes(), true)?.meta;
    if meta.kind != FileType::Regular {
        return Err(io::Error::other("not a regular file"));
    }
    Ok(meta)
}

/// Opens a regular file by its path.
pub(crate) fn open_file(path: &Path) -> io::Result<Box<dyn Content>> {
    // NONBLOCK: as in `open` below.
    let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC;
    host_file(fs::open(path, flags, Mode::empty())?)
}

fn host_file(fd: OwnedFd) -> io::Result<Box<dyn Content>> {
    let stat = stat_of(fd.as_fd())?;
    if FileType::from_mode(u32::from(stat.stx_mode)) != Some(FileType::Regular) {
        return Err(io::Error::other("no longer a regular file"));
    }
    let opened = Cell::new(Some(stamp(&stat)));
    Ok(Box::new(HostFile { fd, opened }))
}

struct HostFile {
    fd: OwnedFd,
    /// The attributes from `open`, for the first caller.
    opened: Cell<Option<Stamp>>,
}

fn stamp(stat: &fs::Statx) -> Stamp {
    Stamp {
        size: stat.stx_size,
        mtime: time(stat.stx_mtime),
    }
}

impl Content for HostFile {
    fn stamp(&self) -> io::Result<Stamp> {
        match self.opened.take() {
            Some(stamp) => Ok(stamp),
            None => Ok(stamp(&stat_of(self.fd.as_fd())?)),
        }
    }

    fn identity(&self) -> io::Result<Option<FileIdentity>> {
        let stat = stat_of(self.fd.as_fd())?;
        Ok(Some(FileIdentity {
            inode: stat.stx_ino,
            size: stat.stx_size,
            mtime: time(stat.stx_mtime),
            ctime: time(stat.stx_ctime),
        }))
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
