//! Creating entries in a directory, and further names of them.

use std::io;
use std::os::fd::OwnedFd;

use redwarfs_format::metadata::Stat;
use rustix::fs::{self, AtFlags, FileType, Mode, OFlags};
use rustix::io::Errno;

use super::target::{chmod_no_follow, first_mode};
use crate::create::{NameInDir, collision, folded};

/// Whether a directory treats a name and the same name in the other case as equal.
pub(crate) fn is_caseless(dir: &OwnedFd) -> bool {
    let name = format!(".case-{}", std::process::id());
    // If this fails, creating entries fails, too.
    if fs::mkdirat(dir, &name, Mode::RWXU).is_err() {
        return false;
    }
    let other = fs::statat(dir, name.to_uppercase(), AtFlags::SYMLINK_NOFOLLOW);
    let _ = fs::unlinkat(dir, &name, AtFlags::REMOVEDIR);
    other.is_ok()
}

/// A name in the other case; `None` if it has none.
fn other_case(name: &[u8]) -> Option<Vec<u8>> {
    let text = std::str::from_utf8(name).ok()?;
    let upper = text.to_uppercase();
    let other = if upper == text {
        text.to_lowercase()
    } else {
        upper
    };
    (other != text).then(|| other.into_bytes())
}

impl NameInDir<'_> {
    /// Fails if the existing entry was made for another name of the image.
    fn check_taken(&self) -> io::Result<()> {
        let other = other_case(self.name);
        let suspect = match &other {
            Some(other) => fs::statat(self.dir, &other[..], AtFlags::SYMLINK_NOFOLLOW).is_ok(),
            None => self.caseless,
        };
        if !suspect {
            return Ok(());
        }
        let Ok(own) = fs::statat(self.dir, self.name, AtFlags::SYMLINK_NOFOLLOW) else {
            return Ok(());
        };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let listed = fs::openat(self.dir, c".", flags, Mode::empty())?;
        let fold = folded(self.name);
        let mut shown = None;
        for entry in fs::Dir::read_from(&listed)? {
            let entry = entry?;
            let name = entry.file_name().to_bytes();
            if name == self.name {
                return Ok(());
            }
            let same = || {
                fs::statat(self.dir, name, AtFlags::SYMLINK_NOFOLLOW)
                    .is_ok_and(|found| (found.st_dev, found.st_ino) == (own.st_dev, own.st_ino))
            };
            if folded(name) == fold || (shown.is_none() && name != b"." && same()) {
                shown = Some(name.to_owned());
            }
        }
        // The name can be opened, but is not listed: the file system has it under another name.
        let fold = shown.as_deref().map_or(fold, folded);
        if (self.taken)(&fold) {
            let shown = shown.as_deref().unwrap_or(self.name);
            return Err(collision(shown));
        }
        Ok(())
    }

    /// Runs a creating call. If there is an existing entry, removes it and tries again.
    fn replacing<T>(&self, create: impl Fn() -> rustix::io::Result<T>) -> io::Result<T> {
        for _ in 0..8 {
            match create() {
                Err(Errno::EXIST) => {
                    self.check_taken()?;
                    self.unlink()?;
                }
                other => return Ok(other?),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Makes a directory, with the mode in `mode` as far as [`first_mode`] allows, or takes over an
    /// existing one. Anything else of that name is removed.
    pub(crate) fn make_dir(&self, mode: u32) -> io::Result<()> {
        let (dir, name) = (self.dir, self.name);
        for _ in 0..8 {
            match fs::mkdirat(dir, name, first_mode(mode, Mode::RWXU)) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST) => self.check_taken()?,
                Err(e) => return Err(e.into()),
            }
            match fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW) {
                Ok(found) if FileType::from_raw_mode(found.st_mode) == FileType::Directory => {
                    if found.st_mode & 0o700 != 0o700 {
                        // The extraction needs these rights; the final mode is set at the end. If the
                        // directory belongs to another user, using it fails.
                        let mode = Mode::from_raw_mode(found.st_mode | 0o700);
                        let _ = chmod_no_follow(dir, name, mode);
                    }
                    return Ok(());
                }
                Ok(_) => self.unlink()?,
                Err(Errno::NOENT) => {}
                Err(e) => return Err(e.into()),
            }
        }
        Err(Errno::EXIST.into())
    }

    /// Removes a name that is not a directory; no error if there is none.
    pub(crate) fn unlink(&self) -> io::Result<()> {
        match fs::unlinkat(self.dir, self.name, AtFlags::empty()) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(e) => Err(e.into()),
        }
    }

    /// Removes a name that is not a directory, unless it leads to an entry that another name of the
    /// image made.
    pub(crate) fn clear(&self) -> io::Result<()> {
        match self.check_taken() {
            Ok(()) => self.unlink(),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => Ok(()),
            Err(e) => Err(e),
        }
    }

    /// Creates a new file for writing. Unlinks an existing entry. `mode` as for [`Self::make_dir`].
    pub(crate) fn create_file(&self, mode: u32) -> io::Result<OwnedFd> {
        let flags =
            OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let mode = first_mode(mode, Mode::RUSR | Mode::WUSR);
        self.replacing(|| fs::openat(self.dir, self.name, flags, mode))
    }

    /// Opens a file that [`Self::create_file`] made, once more for writing.
    pub(crate) fn reopen_file(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let fd = fs::openat(self.dir, self.name, flags, Mode::empty())?;
        let found = fs::fstat(&fd)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile || found.st_nlink > 1 {
            return Err(io::Error::other(
                "replaced by something else during extraction",
            ));
        }
        Ok(fd)
    }

    /// Creates a symbolic link. Unlinks an existing entry.
    pub(crate) fn make_symlink(&self, to: &[u8], _to_dir: &dyn Fn() -> bool) -> io::Result<()> {
        self.replacing(|| fs::symlinkat(to, self.dir, self.name))
    }

    /// Creates a device, FIFO or socket. Unlinks an existing entry.
    pub(crate) fn make_node(&self, stat: &Stat) -> io::Result<()> {
        let kind = FileType::from_raw_mode(stat.mode);
        let device = match kind {
            FileType::CharacterDevice | FileType::BlockDevice => stat.rdev,
            _ => 0,
        };
        let mode = Mode::RUSR | Mode::WUSR;
        let made = self.replacing(|| fs::mknodat(self.dir, self.name, kind, mode, device));
        if made
            .as_ref()
            .is_err_and(|e| e.kind() != io::ErrorKind::AlreadyExists)
        {
            // Some file systems fail and leave an empty file.
            let _ = self.clear();
        }
        made
    }

    /// Creates a hard link to the file `from`. Unlinks an existing entry.
    pub(crate) fn make_hard_link(&self, from: &NameInDir<'_>) -> io::Result<()> {
        let flags = AtFlags::empty();
        self.replacing(|| fs::linkat(from.dir, from.name, self.dir, self.name, flags))
    }

    /// Creates a file with the contents of `from`: with shared blocks if the file system can do that,
    /// otherwise as a copy with the same holes.
    pub(crate) fn make_copy(&self, from: &NameInDir<'_>, mode: u32) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let source = fs::openat(from.dir, from.name, flags, Mode::empty())?;
        if FileType::from_raw_mode(fs::fstat(&source)?.st_mode) != FileType::RegularFile {
            return Err(io::Error::other(
                "the file was replaced by something else during extraction",
            ));
        }
        let copy = self.create_file(mode)?;
        if fs::ioctl_ficlone(&copy, &source).is_err()
            && let Err(e) = copy_contents(&source, &copy)
        {
            // Incomplete, and the reason is reported.
            let _ = self.unlink();
            return Err(e);
        }
        Ok(copy)
    }
}

/// Copies the data between the holes of a file.
fn copy_contents(from: &OwnedFd, to: &OwnedFd) -> io::Result<()> {
    let size = u64::try_from(fs::fstat(from)?.st_size).unwrap_or(0);
    let mut at = 0;
    while at < size {
        let start = match fs::seek(from, fs::SeekFrom::Data(at)) {
            Ok(start) => start,
            // Only a hole is left.
            Err(Errno::NXIO) => break,
            // The file system knows no holes: all bytes are data.
            Err(_) => at,
        };
        let end = match fs::seek(from, fs::SeekFrom::Hole(start)) {
            Ok(end) if end > start => end.min(size),
            _ => size,
        };
        copy_range(from, to, start, end)?;
        at = end;
    }
    set_size(to, size)
}

/// Gives a file its size, with a hole at the end or zeros, once its data is written. If possible, files
/// are written from front to back, because some drivers accept only that.
pub(crate) fn set_size(fd: &OwnedFd, size: u64) -> io::Result<()> {
    match fs::ftruncate(fd, size) {
        Err(e) if is_no_truncation(e) => {
            let found = fs::fstat(fd)?.st_size;
            if u64::try_from(found).unwrap_or(0) < size {
                rustix::io::pwrite(fd, &[0], size - 1)?;
            }
            Ok(())
        }
        other => Ok(other?),
    }
}

/// Gives a new file its size in advance, if the file system makes files longer without data.
pub(crate) fn reserve_size(fd: &OwnedFd, size: u64) -> io::Result<()> {
    match fs::ftruncate(fd, size) {
        Err(e) if is_no_truncation(e) => Ok(()),
        other => Ok(other?),
    }
}

/// Whether an error means that the file system does not make files longer without data.
fn is_no_truncation(e: Errno) -> bool {
    matches!(
        e,
        Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS
    )
}

/// Bytes copied at a time.
const PIECE: usize = 256 << 10;

fn copy_range(from: &OwnedFd, to: &OwnedFd, start: u64, end: u64) -> io::Result<()> {
    let mut buffer = vec![0; PIECE];
    let mut at = start;
    while at < end {
        let wanted = usize::try_from(end - at).unwrap_or(PIECE).min(PIECE);
        let piece = buffer.get_mut(..wanted).unwrap_or_default();
        let n = rustix::io::retry_on_intr(|| rustix::io::pread(from, &mut *piece, at))?;
        if n == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut rest = piece.get(..n).unwrap_or_default();
        while !rest.is_empty() {
            let n = rustix::io::retry_on_intr(|| rustix::io::pwrite(to, rest, at))?;
            if n == 0 {
                return Err(io::ErrorKind::WriteZero.into());
            }
            at += n as u64;
            rest = rest.get(n..).unwrap_or_default();
        }
    }
    Ok(())
}

#[cfg(test)]
pub(crate) mod tests {
    use std::os::unix::fs::{FileExt, MetadataExt};

    use super::*;

    pub(crate) fn place<'a>(dir: &'a OwnedFd, name: &'a [u8]) -> NameInDir<'a> {
        NameInDir {
            dir,
            name,
            taken: &|_| false,
            caseless: false,
        }
    }

    #[test]
    fn copies_have_the_contents_and_the_holes() {
        let temporary = tempfile::tempdir().unwrap();
        let at = |name: &str| temporary.path().join(name);
        let dir = OwnedFd::from(std::fs::File::open(temporary.path()).unwrap());
        let file = std::fs::File::create(at("empty")).unwrap();
        file.sync_all().unwrap();
        std::fs::write(at("full"), vec![7; PIECE + 5]).unwrap();
        let sparse = std::fs::File::create(at("sparse")).unwrap();
        sparse.write_all_at(b"middle", 3 << 20).unwrap();
        sparse.set_len(9 << 20).unwrap();
        for name in ["empty", "full", "sparse"] {
            let copy = format!("copy of {name}");
            let (from, to) = (place(&dir, name.as_bytes()), place(&dir, copy.as_bytes()));
            to.make_copy(&from, 0o600).unwrap();
            let same = std::fs::read(at(name)).unwrap() == std::fs::read(at(&copy)).unwrap();
            assert!(same, "{name}");
            let blocks = |name: &str| at(name).metadata().unwrap().blocks();
            assert!(blocks(&copy) <= blocks(name) + 256, "{name}");
            // The same without blocks that both have.
            let by_hand = place(&dir, b"by hand").create_file(0o600).unwrap();
            let source = OwnedFd::from(std::fs::File::open(at(name)).unwrap());
            copy_contents(&source, &by_hand).unwrap();
            let same = std::fs::read(at(name)).unwrap() == std::fs::read(at("by hand")).unwrap();
            assert!(same, "{name}");
            assert!(blocks("by hand") <= blocks(name) + 256, "{name}");
        }
        // What is no file is not copied.
        std::os::unix::fs::symlink("full", at("link")).unwrap();
        for name in [&b"link"[..], b"."] {
            assert!(
                place(&dir, b"x")
                    .make_copy(&place(&dir, name), 0o600)
                    .is_err()
            );
        }
        assert!(!at("x").exists());
    }

    #[test]
    fn other_cases_are_found_and_folded_alike() {
        for (name, other) in [
            ("README", Some("readme")),
            ("readme", Some("README")),
            ("Mixed", Some("MIXED")),
            ("\u{e9}t\u{e9}", Some("\u{c9}T\u{c9}")),
            ("123", None),
        ] {
            let found = other_case(name.as_bytes());
            assert_eq!(found.as_deref(), other.map(str::as_bytes), "{name}");
            if let Some(found) = found {
                assert_eq!(folded(&found), folded(name.as_bytes()));
            }
        }
        assert_eq!(other_case(b"bad\xff"), None);
    }
}
