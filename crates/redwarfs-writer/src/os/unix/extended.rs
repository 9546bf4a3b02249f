//! Extended attributes and flags of entries.

use std::ffi::OsStr;
use std::io;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use redwarfs_format::metadata::STORED_FLAGS;
use rustix::fs::{self, AtFlags, Mode, OFlags, StatxFlags};
use rustix::io::Errno;

use crate::os::{EntryLocation, PATH_STEP, Wanted};
use crate::source::FileType;
use crate::source::Meta;
use crate::source::extended::{ExtendedAttributes, XattrFilter};

/// Enough for nearly all lists of names, and nearly all values.
const USUAL: usize = 1024;
/// The longest list and the longest value that the kernel returns.
const LONGEST: usize = 1 << 16;
/// A list or a value that grows while it is read is read this often.
const ATTEMPTS: u32 = 8;

/// An opened entry, for attributes only.
enum Opened {
    /// The path of the descriptor in `/proc`, which is the entry itself and no symlink.
    Descriptor(
        PathBuf,
        #[expect(dead_code, reason = "keeps the path valid")] OwnedFd,
    ),
    /// A path, without a `/proc`.
    Path(PathBuf, bool),
}

impl Opened {
    fn list(&self, names: &mut [u8]) -> Result<usize, Errno> {
        match self {
            Self::Descriptor(path, _) | Self::Path(path, true) => fs::listxattr(path, names),
            Self::Path(path, false) => fs::llistxattr(path, names),
        }
    }

    fn get(&self, name: &[u8], value: &mut [u8]) -> Result<usize, Errno> {
        let name = OsStr::from_bytes(name);
        match self {
            Self::Descriptor(path, _) | Self::Path(path, true) => fs::getxattr(path, name, value),
            Self::Path(path, false) => fs::lgetxattr(path, name, value),
        }
    }
}

/// Calls `read` with buffers until the result fits.
fn whole(mut read: impl FnMut(&mut [u8]) -> Result<usize, Errno>) -> Result<Vec<u8>, Errno> {
    let mut usual = [0; USUAL];
    match read(&mut usual) {
        Ok(length) => return Ok(usual.get(..length).unwrap_or_default().to_vec()),
        Err(Errno::RANGE) => {}
        Err(error) => return Err(error),
    }
    let mut long = vec![0; LONGEST];
    for _ in 0..ATTEMPTS {
        match read(&mut long) {
            Ok(length) => {
                long.truncate(length);
                long.shrink_to_fit();
                return Ok(long);
            }
            Err(Errno::RANGE) => {}
            Err(error) => return Err(error),
        }
    }
    Err(Errno::RANGE)
}

fn plain_path(place: &EntryLocation<'_>) -> Option<PathBuf> {
    let mut whole = place.root.as_os_str().as_bytes().to_vec();
    if whole.len() + place.path.len() + place.name.len() >= PATH_STEP {
        return None;
    }
    for part in [place.path, place.name] {
        if !part.is_empty() {
            whole.push(b'/');
            whole.extend_from_slice(part);
        }
    }
    Some(PathBuf::from(OsStr::from_bytes(&whole)))
}

/// Whether an entry may have any attributes. An entry without support for them has none, which says
/// nothing about other entries of its file system. A path of ordinary length
/// takes half the time of a descriptor, and tells this for nearly all entries. The attributes themselves
/// are never read by this path, which may lead elsewhere if a directory is replaced meanwhile.
fn may_have(place: &EntryLocation<'_>) -> bool {
    let Some(path) = plain_path(place) else {
        return true;
    };
    let length = match place.follow {
        true => fs::listxattr_query(&path),
        false => fs::llistxattr_query(&path),
    };
    match length {
        Ok(length) => length > 0,
        Err(error) => error != Errno::OPNOTSUPP,
    }
}

/// Opens the entry that `meta` describes.
fn open(place: &EntryLocation<'_>, meta: &Meta) -> io::Result<Opened> {
    let links = match place.follow {
        true => OFlags::empty(),
        false => OFlags::NOFOLLOW,
    };
    let flags = OFlags::PATH | OFlags::CLOEXEC | links;
    let name = OsStr::from_bytes(place.name);
    let fd = fs::openat(place.dir, name, flags, Mode::empty())?;
    let stat = fs::statx(&fd, c"", AtFlags::EMPTY_PATH, StatxFlags::BASIC_STATS)?;
    let device = fs::makedev(stat.stx_dev_major, stat.stx_dev_minor);
    if (device, stat.stx_ino) != meta.identity {
        return Err(io::Error::from(io::ErrorKind::StaleNetworkFileHandle));
    }
    let path = PathBuf::from(format!("/proc/self/fd/{}", fd.as_raw_fd()));
    if let Err(Errno::NOENT | Errno::NOTDIR) = fs::listxattr_query(&path)
        && let Some(path) = plain_path(place)
    {
        return Ok(Opened::Path(path, place.follow));
    }
    Ok(Opened::Descriptor(path, fd))
}

/// Reads what is wanted of an entry into `meta`.
///
/// Attributes that vanish meanwhile are left out. Those that cannot be read are named in `meta`.
///
/// # Errors
/// The entry has vanished meanwhile.
pub(crate) fn read_extended(
    place: &EntryLocation<'_>,
    meta: &mut Meta,
    wanted: Wanted<'_>,
) -> io::Result<()> {
    let filter = wanted.xattrs;
    if wanted.flags && matches!(meta.kind, FileType::Regular | FileType::Directory) {
        let flags = flags_of(place, meta);
        meta.extended.set_flags(flags);
    }
    if filter.is_none() || !may_have(place) {
        return Ok(());
    }
    let opened = match open(place, meta) {
        Ok(opened) => opened,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Err(error),
        Err(_) => {
            meta.extended.add_unreadable("");
            return Ok(());
        }
    };
    let mut extended = std::mem::take(&mut meta.extended);
    read(&opened, filter, &mut extended);
    meta.extended = extended;
    Ok(())
}

fn read(opened: &Opened, filter: &XattrFilter, extended: &mut ExtendedAttributes) {
    let names = match whole(|names| opened.list(names)) {
        Ok(names) => names,
        Err(Errno::OPNOTSUPP) => return,
        Err(_) => {
            extended.add_unreadable("");
            return;
        }
    };
    for name in names.split(|&b| b == 0) {
        if name.is_empty() {
            continue;
        }
        if !filter.keeps(name) {
            extended.leave_out(name);
            continue;
        }
        match whole(|value| opened.get(name, value)) {
            Ok(value) => extended.set(name, value),
            Err(Errno::NODATA) => {}
            Err(_) => extended.add_unreadable(name),
        }
    }
}

/// Flags of a file or directory; those that `statx` tells if it cannot be opened.
fn flags_of(place: &EntryLocation<'_>, meta: &Meta) -> u32 {
    let name = OsStr::from_bytes(place.name);
    let links = match place.follow {
        true => OFlags::empty(),
        false => OFlags::NOFOLLOW,
    };
    let open = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOCTTY | OFlags::CLOEXEC | links;
    let quiet = fs::openat(place.dir, name, open | OFlags::NOATIME, Mode::empty());
    let fd = quiet.or_else(|_| fs::openat(place.dir, name, open, Mode::empty()));
    if let Ok(fd) = fd
        && let Ok(stat) = fs::statx(
            fd.as_fd(),
            c"",
            AtFlags::EMPTY_PATH,
            StatxFlags::BASIC_STATS,
        )
        && (
            fs::makedev(stat.stx_dev_major, stat.stx_dev_minor),
            stat.stx_ino,
        ) == meta.identity
        && let Ok(flags) = fs::ioctl_getflags(&fd)
    {
        return flags.bits() & STORED_FLAGS;
    }
    let links = match place.follow {
        true => AtFlags::empty(),
        false => AtFlags::SYMLINK_NOFOLLOW,
    };
    let links = links | AtFlags::NO_AUTOMOUNT;
    match fs::statx(place.dir, name, links, StatxFlags::BASIC_STATS) {
        // The numbers of these four are the same.
        Ok(stat) => (stat.stx_attributes.bits() as u32) & (0x4 | 0x10 | 0x20 | 0x40),
        Err(_) => 0,
    }
}
