//! The directory that receives a tree: opens entries below it, and only there, and sets attributes.
//!
//! Callers hand in names that [`crate::tree`] has checked to be single path components. Directories are
//! opened relative to the target, without following symbolic links or leaving the target. So no link
//! can lead elsewhere, whether it comes from the image or is made by another process during the
//! extraction.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::metadata::Stat;
use redwarfs_reader::Image;
use rustix::fs::{
    self, AtFlags, FileType, Gid, Mode, OFlags, ResolveFlags, Timespec, Timestamps, Uid, XattrFlags,
};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use crate::Progress;
use crate::error::{Error, Result, cause, target};
use crate::unset::Unset;
use crate::xattrs::{CAPABILITY, Stored, Xattr};

/// Longest path for one syscall. The limit of the system is 4096, including the final NUL.
const MAX_PATH: usize = 4000;

/// Permission bits without the set-id bits.
const PERMISSIONS: u32 = 0o1777;
const SET_ID: u32 = 0o6000;
/// Set-id and sticky bits, and the write bits for other users than the owner.
const NOT_AT_ONCE: u32 = 0o7022;

/// Write permission of the owner.
const OWNER_WRITES: u32 = 0o200;

/// An entry that gets extended attributes.
#[derive(Clone, Copy)]
enum Entry<'a> {
    Open(&'a OwnedFd),
    /// A name in a directory. If it is a symbolic link, it is not followed.
    Name(&'a OwnedFd, &'a [u8]),
}

impl Entry<'_> {
    /// Sets an extended attribute. Attributes in `user` need write permission, which the owner of a
    /// read-only entry gives himself meanwhile.
    fn set_xattr(self, xattr: &Xattr) -> rustix::io::Result<()> {
        match self.set_as_is(xattr) {
            Err(refused @ (Errno::ACCESS | Errno::PERM)) if xattr.name.starts_with(b"user.") => {
                let Some(mode) = self.read_only_mode() else {
                    return Err(refused);
                };
                if self.chmod(mode | OWNER_WRITES).is_err() {
                    return Err(refused);
                }
                let set = self.set_as_is(xattr);
                self.chmod(mode)?;
                set
            }
            other => other,
        }
    }

    fn set_as_is(self, xattr: &Xattr) -> rustix::io::Result<()> {
        let (name, value) = (xattr.name.as_slice(), xattr.value.as_slice());
        match self {
            Self::Open(fd) => fs::fsetxattr(fd, name, value, XattrFlags::empty()),
            Self::Name(dir, entry) => setxattr_no_follow(dir, entry, name, value),
        }
    }

    /// The permission bits of a file or directory that its owner may not write.
    fn read_only_mode(self) -> Option<u32> {
        let found = match self {
            Self::Open(fd) => fs::fstat(fd),
            Self::Name(dir, name) => fs::statat(dir, name, AtFlags::SYMLINK_NOFOLLOW),
        };
        let mode = found.ok()?.st_mode;
        let kind = FileType::from_raw_mode(mode);
        let has_users = matches!(kind, FileType::RegularFile | FileType::Directory);
        (has_users && mode & OWNER_WRITES == 0).then_some(mode & (PERMISSIONS | SET_ID))
    }

    fn chmod(self, mode: u32) -> rustix::io::Result<()> {
        let mode = Mode::from_raw_mode(mode);
        match self {
            Self::Open(fd) => fs::fchmod(fd, mode),
            Self::Name(dir, name) => chmod_no_follow(dir, name, mode),
        }
    }
}

/// The directory that receives a tree.
#[derive(Debug)]
pub(crate) struct Target {
    root: OwnedFd,
    /// The default owner and group of new files.
    own: (u32, u32),
    /// Whether the kernel resolves whole paths with restrictions (Linux 5.6 or later, and not
    /// filtered). Otherwise paths are opened name by name.
    whole_paths: AtomicBool,
    owners: Unset,
    modes: Unset,
    times: Unset,
    /// The extended attributes of the image, if there are any.
    stored: Option<Stored>,
    xattrs: Unset,
    pub(super) flags: Unset,
}

impl Target {
    /// Opens an existing directory. The path itself may contain symbolic links, because the user gives
    /// it.
    pub(crate) fn open(path: &Path, stored: Option<Stored>) -> Result<Self> {
        let root = fs::open(
            path,
            OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC,
            Mode::empty(),
        )
        .map_err(|e| {
            target(
                "cannot open output directory",
                path.display().to_string(),
                e,
            )
        })?;
        Ok(Self {
            root,
            own: (geteuid().as_raw(), getegid().as_raw()),
            whole_paths: AtomicBool::new(true),
            owners: Unset::default(),
            modes: Unset::default(),
            times: Unset::default(),
            stored,
            xattrs: Unset::default(),
            flags: Unset::default(),
        })
    }

    /// The same: birth times cannot be set.
    pub(crate) fn with_births(self, _image: &Image) -> Self {
        self
    }

    /// Whether the target has no entries; false if it cannot be listed.
    pub(crate) fn is_empty(&self) -> bool {
        let listed = self.open_root().and_then(|fd| Ok(fs::Dir::read_from(&fd)?));
        listed.is_ok_and(|mut dir| {
            dir.all(|entry| entry.is_ok_and(|e| matches!(e.file_name().to_bytes(), b"." | b"..")))
        })
    }

    /// Whether the target treats names that differ only in case as equal.
    pub(crate) fn is_caseless(&self) -> bool {
        self.open_root()
            .is_ok_and(|fd| super::place::is_caseless(&fd))
    }

    pub(super) fn open_root(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(fs::openat(&self.root, c".", flags, Mode::empty())?)
    }

    /// Sets owner, mode and times of the target itself.
    pub(crate) fn set_root_attributes(&self, stat: &Stat, progress: &dyn Progress) -> Result<()> {
        let shown = || ".".to_owned();
        let fd = self
            .open_root()
            .map_err(|e| target("cannot open output directory", shown(), e))?;
        self.set_attributes(&fd, stat, &shown, progress)
    }

    /// Opens the directory at a path below the target (empty: the target), for use as an anchor only.
    pub(crate) fn open_dir(&self, path: &[u8]) -> io::Result<OwnedFd> {
        let mut current = None;
        let mut rest = path;
        while !rest.is_empty() {
            let (head, tail) = split_path(rest);
            let anchor = current.as_ref().map_or(self.root.as_fd(), OwnedFd::as_fd);
            current = Some(self.open_piece(anchor, head)?);
            rest = tail;
        }
        match current {
            Some(fd) => Ok(fd),
            None => self.root.try_clone(),
        }
    }

    fn open_piece(&self, anchor: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        if self.whole_paths.load(Ordering::Relaxed) {
            let resolve =
                ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
            for _ in 0..16 {
                match fs::openat2(anchor, path, flags, Mode::empty(), resolve) {
                    // The tree was renamed under the walk.
                    Err(Errno::AGAIN) => {}
                    Err(Errno::NOSYS | Errno::PERM) => {
                        self.whole_paths.store(false, Ordering::Relaxed);
                        break;
                    }
                    other => return Ok(other?),
                }
            }
        }
        let mut current: Option<OwnedFd> = None;
        for name in path.split(|&b| b == b'/') {
            let at = current.as_ref().map_or(anchor, OwnedFd::as_fd);
            current = Some(fs::openat(at, name, flags, Mode::empty())?);
        }
        current.ok_or_else(|| io::ErrorKind::InvalidInput.into())
    }

    /// Opens a directory in an open one, for use as an anchor only.
    pub(crate) fn open_dir_in(&self, parent: &OwnedFd, name: &[u8]) -> io::Result<OwnedFd> {
        self.open_piece(parent.as_fd(), name)
    }

    /// Whether an entry already has this owner, group and mode: checking takes less time than setting
    /// them. `found` is called only if a new file would have them.
    fn has_owner_and_mode(
        &self,
        stat: &Stat,
        found: impl FnOnce() -> rustix::io::Result<fs::Stat>,
    ) -> bool {
        let same = |found: fs::Stat| {
            (found.st_uid, found.st_gid) == (stat.uid, stat.gid)
                && FileType::from_raw_mode(found.st_mode) == FileType::from_raw_mode(stat.mode)
                && found.st_mode & (PERMISSIONS | SET_ID) == stat.mode & (PERMISSIONS | SET_ID)
        };
        (stat.uid, stat.gid) == self.own && may_have_at_once(stat.mode) && found().is_ok_and(same)
    }

    /// Sets owner, mode and times of an open file.
    pub(crate) fn set_attributes(
        &self,
        fd: &OwnedFd,
        stat: &Stat,
        shown: &dyn Fn() -> String,
        progress: &dyn Progress,
    ) -> Result<()> {
        let entry = Entry::Open(fd);
        if self.has_owner_and_mode(stat, || fs::fstat(fd)) {
            let lost = self.set_xattrs(stat, entry, true, shown, progress)?;
            self.times_result(fs::futimens(fd, &times(stat)), shown, progress)?;
            return lost.map_or(Ok(()), Err);
        }
        let owned = self.owner_result(
            fs::fchown(fd, owner(stat), group(stat)),
            || fs::fchown(fd, None, group(stat)),
            stat,
            shown,
            progress,
        )?;
        let mode = permissions(stat, owned);
        self.mode_result(fs::fchmod(fd, mode), shown, progress)?;
        let lost = self.set_xattrs(stat, entry, owned, shown, progress)?;
        self.times_result(fs::futimens(fd, &times(stat)), shown, progress)?;
        lost.map_or(Ok(()), Err)
    }

    /// Sets the possible attributes of entries without a file descriptor for [`Self::set_attributes`]:
    /// symbolic links, devices, FIFOs, sockets, directories. Never follows a link.
    pub(crate) fn set_attributes_at(
        &self,
        dir: &OwnedFd,
        name: &[u8],
        stat: &Stat,
        shown: &dyn Fn() -> String,
        progress: &dyn Progress,
    ) -> Result<()> {
        let no_follow = AtFlags::SYMLINK_NOFOLLOW;
        let entry = Entry::Name(dir, name);
        if self.has_owner_and_mode(stat, || fs::statat(dir, name, no_follow)) {
            let lost = self.set_xattrs(stat, entry, true, shown, progress)?;
            let set = fs::utimensat(dir, name, &times(stat), no_follow);
            self.times_result(set, shown, progress)?;
            return lost.map_or(Ok(()), Err);
        }
        let owned = self.owner_result(
            fs::chownat(dir, name, owner(stat), group(stat), no_follow),
            || fs::chownat(dir, name, None, group(stat), no_follow),
            stat,
            shown,
            progress,
        )?;
        if FileType::from_raw_mode(stat.mode) != FileType::Symlink {
            self.mode_result(
                chmod_no_follow(dir, name, permissions(stat, owned)),
                shown,
                progress,
            )?;
        }
        let lost = self.set_xattrs(stat, entry, owned, shown, progress)?;
        self.times_result(
            fs::utimensat(dir, name, &times(stat), no_follow),
            shown,
            progress,
        )?;
        lost.map_or(Ok(()), Err)
    }

    /// Sets the extended attributes of an entry, after its owner and mode, because changes of these remove
    /// capabilities. An entry with some that cannot be set counts once. Like set-id bits, capabilities are
    /// not given to an entry that could not get the owner of the image. Returns the error of a value that
    /// cannot be read.
    fn set_xattrs(
        &self,
        stat: &Stat,
        entry: Entry<'_>,
        owned: bool,
        shown: &dyn Fn() -> String,
        progress: &dyn Progress,
    ) -> Result<Option<Error>> {
        let Some(stored) = &self.stored else {
            return Ok(None);
        };
        let mut unset = None;
        let (xattrs, lost) = stored.of(stat.ino, shown)?;
        for xattr in xattrs {
            let set = if xattr.name == CAPABILITY && !owned {
                Err(Errno::PERM)
            } else {
                entry.set_xattr(&xattr)
            };
            match set {
                Ok(()) => {}
                Err(e) if is_unsupported(e) || is_too_much(e) => {
                    unset.get_or_insert((xattr.name, e));
                }
                Err(e) => return Err(target("cannot set extended attributes", shown(), e)),
            }
        }
        if let Some((name, e)) = unset {
            self.xattrs.note(|| {
                let (path, cause) = (shown(), cause(&e.into()));
                let name = name.escape_ascii();
                progress.warn(&format!(
                    "cannot set extended attribute: {path}: {name}: {cause} (said once)"
                ));
            });
        }
        Ok(lost)
    }

    /// Whether owner and group are as in the image after the attempt to set both.
    fn owner_result(
        &self,
        result: rustix::io::Result<()>,
        group_only: impl FnOnce() -> rustix::io::Result<()>,
        stat: &Stat,
        shown: &dyn Fn() -> String,
        progress: &dyn Progress,
    ) -> Result<bool> {
        match result {
            Ok(()) => Ok(true),
            Err(e) if is_unsupported(e) => {
                // An ordinary user may still give files to his own groups.
                let _ = group_only();
                self.owners.note(|| {
                    let (path, uid, gid) = (shown(), stat.uid, stat.gid);
                    progress.warn(&format!(
                        "cannot set owner: {path}: not permitted to set user {uid} and group {gid} (said once)"
                    ));
                });
                Ok(false)
            }
            Err(e) => Err(target("cannot set owner", shown(), e)),
        }
    }

    fn mode_result(
        &self,
        result: rustix::io::Result<()>,
        shown: &dyn Fn() -> String,
        progress: &dyn Progress,
    ) -> Result<()> {
        settle(&self.modes, "cannot set mode", result, shown, progress)
    }

    fn times_result(
        &self,
        result: rustix::io::Result<()>,
        shown: &dyn Fn() -> String,
        progress: &dyn Progress,
    ) -> Result<()> {
        settle(&self.times, "cannot set times", result, shown, progress)
    }

    /// Reports how many entries lack an attribute, after a warning about the first one. Returns the sum.
    pub(crate) fn report(&self, progress: &dyn Progress) -> u64 {
        let mut sum = 0;
        for (what, unset) in [
            ("owner", &self.owners),
            ("mode", &self.modes),
            ("times", &self.times),
            ("extended attributes", &self.xattrs),
            ("file flags", &self.flags),
        ] {
            unset.report(what, progress);
            sum += unset.number();
        }
        sum
    }
}

/// Counts an attribute that cannot be set here, and passes on other errors.
fn settle(
    unset: &Unset,
    what: &'static str,
    result: rustix::io::Result<()>,
    shown: &dyn Fn() -> String,
    progress: &dyn Progress,
) -> Result<()> {
    match result {
        Err(e) if is_unsupported(e) => {
            unset.note(|| {
                let (path, cause) = (shown(), cause(&e.into()));
                progress.warn(&format!("{what}: {path}: {cause} (said once)"));
            });
            Ok(())
        }
        other => other.map_err(|e| target(what, shown(), e)),
    }
}

/// Whether an attribute cannot be set because the user may not set it, or the file system has no such
/// attribute.
fn is_unsupported(e: Errno) -> bool {
    matches!(
        e,
        Errno::PERM | Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::OVERFLOW
    )
}

/// Whether a file system has no room for an extended attribute. A full disk shows in the contents of files.
fn is_too_much(e: Errno) -> bool {
    matches!(
        e,
        Errno::NOSPC | Errno::TOOBIG | Errno::RANGE | Errno::ACCESS
    )
}

/// Splits a path before [`MAX_PATH`] bytes, at a slash.
fn split_path(path: &[u8]) -> (&[u8], &[u8]) {
    if path.len() <= MAX_PATH {
        return (path, &[]);
    }
    let (front, back) = path.split_at(MAX_PATH);
    let cut = front.iter().rposition(|&b| b == b'/').unwrap_or_else(|| {
        // A single name of this length: the system will say that it is too long.
        MAX_PATH + back.iter().position(|&b| b == b'/').unwrap_or(back.len())
    });
    let (head, tail) = path.split_at(cut);
    (head, tail.get(1..).unwrap_or_default())
}

/// Whether an entry can be created with its final mode before it has its final group, without giving
/// rights to users who do not have them in the end.
fn may_have_at_once(mode: u32) -> bool {
    let rights = |shift: u32| mode >> shift & 7;
    mode & NOT_AT_ONCE == 0 && rights(3) == rights(0)
}

/// The mode with which an entry is created: the mode of the image if that is safe, and the owner's
/// rights that the extraction needs.
pub(crate) fn first_mode(mode: u32, needed: Mode) -> Mode {
    let first = if may_have_at_once(mode) {
        mode & 0o777
    } else {
        0
    };
    Mode::from_raw_mode(first) | needed
}

/// `chmod` on a name that must not be a symbolic link.
///
/// There is no such system call before Linux 6.6. An anchor descriptor pins the inode, and its entry in
/// `/proc` names it even if the directory is renamed. Without `/proc`, the mode is set by name.
pub(crate) fn chmod_no_follow(dir: &OwnedFd, name: &[u8], mode: Mode) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let pinned = fs::openat(dir, name, flags, Mode::empty())?;
    if FileType::from_raw_mode(fs::fstat(&pinned)?.st_mode) == FileType::Symlink {
        return Err(Errno::LOOP);
    }
    match fs::chmod(format!("/proc/self/fd/{}", pinned.as_raw_fd()), mode) {
        Err(Errno::NOENT) => fs::chmodat(dir, name, mode, AtFlags::empty()),
        other => other,
    }
}

/// Sets an extended attribute of a name that is not followed if it is a symbolic link. There is no such
/// system call relative to a directory before Linux 6.13, so it works as [`chmod_no_follow`].
fn setxattr_no_follow(
    dir: &OwnedFd,
    name: &[u8],
    xattr: &[u8],
    value: &[u8],
) -> rustix::io::Result<()> {
    let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let pinned = fs::openat(dir, name, flags, Mode::empty())?;
    let path = format!("/proc/self/fd/{}", pinned.as_raw_fd());
    match fs::setxattr(path, xattr, value, XattrFlags::empty()) {
        // There is no `/proc`.
        Err(Errno::NOENT) => Err(Errno::OPNOTSUPP),
        other => other,
    }
}

/// The permission bits to set. Set-id bits are dropped if the file could not get the owner of the
/// image.
fn permissions(stat: &Stat, owned: bool) -> Mode {
    let mask = if owned {
        PERMISSIONS | SET_ID
    } else {
        PERMISSIONS
    };
    Mode::from_raw_mode(stat.mode & mask)
}

// For the system, an id of all ones means that the owner does not change. No owner has this id.
fn owner(stat: &Stat) -> Option<Uid> {
    (stat.uid != u32::MAX).then(|| Uid::from_raw(stat.uid))
}

fn group(stat: &Stat) -> Option<Gid> {
    (stat.gid != u32::MAX).then(|| Gid::from_raw(stat.gid))
}

fn times(stat: &Stat) -> Timestamps {
    // Greater values have special meanings to the system.
    let spec = |sec: i64, nsec: u32| Timespec {
        tv_sec: sec,
        tv_nsec: nsec.min(999_999_999).into(),
    };
    Timestamps {
        last_access: spec(stat.atime.sec, stat.atime.nsec),
        last_modification: spec(stat.mtime.sec, stat.mtime.nsec),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::os::unix::place::tests::place;

    #[test]
    fn long_paths_are_split_at_slashes() {
        assert_eq!(split_path(b"a/b"), (&b"a/b"[..], &b""[..]));
        let long = [vec![b'x'; 3000], vec![b'/'], vec![b'y'; 3000]].concat();
        assert_eq!(split_path(&long), (&long[..3000], &long[3001..]));
        let one = vec![b'z'; 5000];
        assert_eq!(split_path(&one), (&one[..], &b""[..]));
    }

    #[test]
    fn first_modes_give_nothing_away() {
        let file = |mode| first_mode(mode, Mode::RUSR | Mode::WUSR).as_raw_mode();
        for (mode, first) in [
            (0o644, 0o644),
            (0o755, 0o755),
            (0o600, 0o600),
            (0o444, 0o644),
            (0o000, 0o600),
            (0o640, 0o600),
            (0o604, 0o600),
            (0o664, 0o600),
            (0o666, 0o600),
            (0o4755, 0o600),
            (0o2755, 0o600),
            (0o1777, 0o600),
        ] {
            assert_eq!(file(mode | 0o100_000), first, "{mode:o}");
        }
    }

    #[test]
    fn attributes_are_set_whatever_the_first_mode_was() {
        let dir = tempfile::tempdir().unwrap();
        let target = Target::open(dir.path(), None).unwrap();
        let root = target.open_dir(b"").unwrap();
        let time = |sec| redwarfs_format::metadata::Timestamp { sec, nsec: 5 };
        let mut stat = Stat {
            ino: redwarfs_format::InodeNo(1),
            mode: 0,
            nlink: 1,
            uid: target.own.0,
            gid: target.own.1,
            rdev: 0,
            size: 0,
            allocated: 0,
            atime: time(7),
            mtime: time(8),
            ctime: time(9),
        };
        let shown = String::new;
        for mode in [0o644, 0o600, 0o444, 0o640, 0o666, 0o4755, 0o755] {
            // What the process or somebody else may have made of the mode meanwhile.
            for between in [None, Some(0o600), Some(0o777)] {
                stat.mode = 0o100_000 | mode;
                let fd = place(&root, b"f").create_file(stat.mode).unwrap();
                stat.mode = 0o040_000 | mode;
                place(&root, b"d").make_dir(stat.mode).unwrap();
                if let Some(between) = between {
                    for name in [b"f", b"d"] {
                        chmod_no_follow(&root, name, Mode::from_raw_mode(between)).unwrap();
                    }
                }
                target
                    .set_attributes_at(&root, b"d", &stat, &shown, &crate::Silent)
                    .unwrap();
                stat.mode = 0o100_000 | mode;
                target
                    .set_attributes(&fd, &stat, &shown, &crate::Silent)
                    .unwrap();
                for (name, kind) in [(b"f", 0o100_000), (b"d", 0o040_000)] {
                    let found = fs::statat(&root, &name[..], AtFlags::empty()).unwrap();
                    assert_eq!(found.st_mode, kind | mode, "{mode:o} {between:?}");
                    assert_eq!((found.st_atime, found.st_mtime), (7, 8));
                }
            }
        }
    }

    #[test]
    fn links_are_not_followed() {
        let outside = tempfile::tempdir().unwrap();
        let inside = tempfile::tempdir().unwrap();
        std::os::unix::fs::symlink(outside.path(), inside.path().join("link")).unwrap();
        std::fs::create_dir_all(inside.path().join("a/b")).unwrap();
        for whole in [true, false] {
            let target = Target::open(inside.path(), None).unwrap();
            target.whole_paths.store(whole, Ordering::Relaxed);
            assert!(target.open_dir(b"link").is_err());
            assert!(target.open_dir(b"a/b").is_ok());
            assert!(target.open_dir(b"").is_ok());
            let root = target.open_dir(b"").unwrap();
            assert!(place(&root, b"link").reopen_file().is_err());
        }
    }

    #[test]
    fn whatever_is_in_the_way_goes_but_directories_stay() {
        let outside = tempfile::tempdir().unwrap();
        let inside = tempfile::tempdir().unwrap();
        std::fs::write(outside.path().join("precious"), "x").unwrap();
        std::os::unix::fs::symlink(outside.path().join("precious"), inside.path().join("f"))
            .unwrap();
        std::os::unix::fs::symlink(outside.path(), inside.path().join("d")).unwrap();
        std::fs::create_dir(inside.path().join("old")).unwrap();
        std::fs::write(inside.path().join("old/kept"), "k").unwrap();
        let target = Target::open(inside.path(), None).unwrap();
        let root = target.open_dir(b"").unwrap();
        let fd = place(&root, b"f").create_file(0o644).unwrap();
        rustix::io::write(&fd, b"new").unwrap();
        place(&root, b"d").make_dir(0o755).unwrap();
        place(&root, b"old").make_dir(0o755).unwrap();
        assert!(inside.path().join("d").symlink_metadata().unwrap().is_dir());
        assert_eq!(std::fs::read(inside.path().join("f")).unwrap(), b"new");
        assert_eq!(
            std::fs::read(outside.path().join("precious")).unwrap(),
            b"x"
        );
        assert_eq!(std::fs::read(inside.path().join("old/kept")).unwrap(), b"k");
        assert!(place(&root, b"old").create_file(0o644).is_err());
    }
}
