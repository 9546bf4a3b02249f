//! Entries and files of the host, one at a time.

use std::cell::Cell;
use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use rustix::fs::{self, AtFlags, Mode, OFlags, SeekFrom, StatxFlags};
use rustix::io::Errno;

use super::extended::ExtendedAttributes;
use super::{Content, DataExtent, FileType, Meta, Stamp, Timestamp};

/// Attributes of an entry, and the number of the mount that shows it.
pub(super) struct Found {
    pub(super) meta: Meta,
    /// Absent if the kernel does not number mounts (before Linux 5.8).
    pub(super) mount: Option<u64>,
}

/// Attributes of an open file. Attributes that are compared with those of entries come from the same
/// syscall. In emulators and on 32-bit systems, other calls return less, for example no nanoseconds.
pub(super) fn stat_of(file: BorrowedFd<'_>) -> io::Result<fs::Statx> {
    Ok(fs::statx(
        file,
        c"",
        AtFlags::EMPTY_PATH,
        StatxFlags::BASIC_STATS,
    )?)
}

/// Device and inode number.
pub(super) fn identity(stat: &fs::Statx) -> (u64, u64) {
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
pub(super) fn find_at(dir: BorrowedFd<'_>, name: &[u8], follow: bool) -> io::Result<Found> {
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
        StatxFlags::BASIC_STATS | StatxFlags::MNT_ID,
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
    })
}

/// Attributes of a regular file.
pub(super) fn meta_of_file(path: &Path) -> io::Result<Meta> {
    let meta = find_at(fs::CWD, path.as_os_str().as_bytes(), true)?.meta;
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

pub(super) fn host_file(fd: OwnedFd) -> io::Result<Box<dyn Content>> {
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
