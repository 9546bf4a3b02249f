//! The existing entry with the name of an output file, and whether a new file can replace it.

use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, Mode, OFlags, Statx, StatxAttributes, StatxFlags};
use rustix::io::Errno;

use super::permissions::Permissions;

/// Longest chain of symbolic links that is followed, as in the Linux kernel.
const MAX_LINKS: u32 = 40;

/// A name in a directory.
#[derive(Debug)]
pub(super) struct NameInDir {
    pub(super) dir: OwnedFd,
    pub(super) name: OsString,
    path: PathBuf,
}

impl NameInDir {
    /// The place of `path`, without following a final link.
    pub(super) fn of(path: &Path) -> io::Result<Self> {
        let name = path.file_name().ok_or(Errno::ISDIR)?.to_owned();
        let parent = match path.parent() {
            Some(parent) if !parent.as_os_str().is_empty() => parent,
            _ => Path::new("."),
        };
        let dir = rustix::fs::open(
            parent,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )?;
        Ok(Self {
            dir,
            name,
            path: path.to_owned(),
        })
    }

    /// The place at which a file must be created so that `path` leads to it.
    pub(super) fn behind_links(path: &Path) -> io::Result<Self> {
        let mut path = path.to_owned();
        for _ in 0..MAX_LINKS {
            match std::fs::read_link(&path) {
                Ok(target) => path = path.parent().unwrap_or(Path::new("")).join(target),
                Err(e)
                    if matches!(
                        e.kind(),
                        io::ErrorKind::InvalidInput | io::ErrorKind::NotFound
                    ) =>
                {
                    return Self::of(&path);
                }
                Err(e) => return Err(e),
            }
        }
        Err(Errno::LOOP.into())
    }

    fn statx(&self) -> io::Result<Statx> {
        let flags = AtFlags::SYMLINK_NOFOLLOW;
        let stat = rustix::fs::statx(&self.dir, &self.name, flags, StatxFlags::BASIC_STATS)?;
        Ok(stat)
    }

    /// Opens the existing entry for writing.
    pub(super) fn open(&self) -> Result<File, Errno> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NOCTTY | OFlags::CLOEXEC;
        rustix::fs::openat(&self.dir, &self.name, flags, Mode::empty()).map(File::from)
    }
}

/// A file that is to be replaced.
pub(super) struct Old {
    pub(super) permissions: Permissions,
    /// The reason why no other file can replace it.
    pub(super) obstacle: Option<&'static str>,
}

impl Old {
    /// Examines the regular file with the name, if there is one.
    pub(super) fn find(place: &NameInDir) -> io::Result<Option<Self>> {
        let stat = match place.statx() {
            Ok(stat) => stat,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(e) => return Err(e),
        };
        let mode = u32::from(stat.stx_mode);
        Ok(Some(Self {
            permissions: Permissions::with_acl(mode, stat.stx_uid, stat.stx_gid, &place.path),
            obstacle: obstacle(place, &stat),
        }))
    }
}

/// The reason why no other file can replace this one.
fn obstacle(place: &NameInDir, stat: &Statx) -> Option<&'static str> {
    let has = |attribute| stat.stx_attributes.contains(attribute);
    if has(StatxAttributes::MOUNT_ROOT) {
        return Some("it is a mount point");
    }
    if has(StatxAttributes::IMMUTABLE) {
        return Some("it is immutable (see lsattr)");
    }
    if has(StatxAttributes::APPEND) {
        return Some("it is append-only (see lsattr)");
    }
    // Removing the name as a directory fails if it is none. But first the system checks whether the
    // name may be taken away at all, which it does for a rename in the same way. Other errors may be
    // about directories only, as those of a security module.
    match rustix::fs::unlinkat(&place.dir, &place.name, AtFlags::REMOVEDIR) {
        Err(Errno::PERM) => {}
        _ => return None,
    }
    let sticky = rustix::fs::statat(&place.dir, "", AtFlags::EMPTY_PATH)
        .is_ok_and(|dir| Mode::from_raw_mode(dir.st_mode).contains(Mode::SVTX));
    Some(if sticky {
        "it belongs to another user, in a directory with the sticky bit"
    } else {
        "the system does not permit it"
    })
}

/// Opens the entry at `path` if it is written directly: an entry that is no regular file, or a file
/// that this process has open. Also returns its kind.
pub(super) fn open_stream(path: &Path) -> io::Result<Option<(File, &'static str)>> {
    if let Some(file) = standard_descriptor(path) {
        return Ok(Some((writable(file?)?, "an open file")));
    }
    let metadata = match std::fs::metadata(path) {
        Ok(metadata) => metadata,
        Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(e) => return Err(e),
    };
    let kind = metadata.file_type();
    if kind.is_dir() {
        return Err(Errno::ISDIR.into());
    }
    let mut flags = OFlags::WRONLY | OFlags::NOCTTY | OFlags::CLOEXEC;
    let what = if kind.is_file() {
        if !names_descriptor(path) {
            return Ok(None);
        }
        "an open file"
    } else if kind.is_block_device() {
        // Fails if a file system on it is mounted.
        flags |= OFlags::EXCL;
        "a block device"
    } else if kind.is_fifo() {
        "a pipe"
    } else {
        "a device"
    };
    let file = rustix::fs::open(path, flags, Mode::empty())?;
    Ok(Some((File::from(file), what)))
}

/// One more descriptor for a standard stream that `path` names: it shares the position, which a
/// file that is opened by this path does not.
fn standard_descriptor(path: &Path) -> Option<io::Result<File>> {
    fn again(fd: &impl AsFd) -> io::Result<File> {
        Ok(File::from(rustix::io::fcntl_dupfd_cloexec(fd, 3)?))
    }
    let number = match path.to_str() {
        Some("/dev/stdout") => Some("1"),
        Some("/dev/stderr") => Some("2"),
        _ if names_descriptor(path) => path.file_name().and_then(|name| name.to_str()),
        _ => None,
    };
    match number {
        Some("1") => Some(again(&io::stdout())),
        Some("2") => Some(again(&io::stderr())),
        _ => None,
    }
}

fn writable(file: File) -> io::Result<File> {
    let mode = rustix::fs::fcntl_getfl(&file)? & OFlags::RWMODE;
    if mode == OFlags::RDONLY {
        return Err(Errno::BADF.into());
    }
    Ok(file)
}

/// Whether the path names a descriptor of this process, such as `/dev/fd/3`. A regular file behind a
/// descriptor belongs to the opener, and must not be replaced by another one.
fn names_descriptor(path: &Path) -> bool {
    if ["/dev/stdout", "/dev/stderr", "/dev/stdin"]
        .iter()
        .any(|p| path == Path::new(p))
    {
        return true;
    }
    path.parent().is_some_and(|parent| {
        parent == Path::new("/dev/fd")
            || std::fs::canonicalize(parent).is_ok_and(|p| p.starts_with("/proc"))
    })
}

/// Whether `file` is a block device, which writes its data only when told to.
pub(super) fn is_block_device(file: BorrowedFd<'_>) -> bool {
    rustix::fs::fstat(file).is_ok_and(|stat| {
        rustix::fs::FileType::from_raw_mode(stat.st_mode) == rustix::fs::FileType::BlockDevice
    })
}
