//! The directory with the changes, in the format of overlayfs.
//!
//! `upper` has what is different from the lower tree. Two marks belong to no program:
//!
//! - A *whiteout* hides a name of the lower tree. It is a character device with the number 0. If the file system or the
//!   system lets the driver make none, it is an empty file with the attribute `overlay.whiteout`, in a directory whose
//!   attribute `overlay.opaque` is `x`.
//! - A directory whose attribute `overlay.opaque` is `y` shows nothing of the lower tree.
//!
//! The attributes begin with `trusted.` where the driver may set such, and with `user.` otherwise, as for overlayfs with
//! `userxattr`. Both are understood.
//!
//! `work` has files that are not complete yet. A rename puts them in their place. Nothing outside of both is touched: all
//! paths begin at an open directory and lead through no symbolic link.

use std::ffi::CString;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redwarfs_format::section::GenerationId;
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, RenameFlags, ResolveFlags, Stat, XattrFlags, fstat,
    linkat, mkdirat, mknodat, openat, openat2, renameat, renameat_with, statat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;
use rustix::thread::CapabilitySet;

use super::access::Modes;
use super::directory::{MarkKind, Record, lock};
use super::marks::Marks;
use crate::failures::Failures;
use crate::removal::remove_at;

/// Flags of descriptors that only name a file.
pub(super) const NAMES: OFlags = OFlags::PATH.union(OFlags::NOFOLLOW).union(OFlags::CLOEXEC);
/// Longest path that is opened at once.
const LONGEST: usize = 4000;
/// What the names of incomplete files begin with.
pub(super) const TEMPORARY: &str = "#rw-";

/// What attributes of the layer begin with.
const TRUSTED: &str = "trusted.overlay.";
const USER: &str = "user.overlay.";

/// An open directory.
type DirFd<'a> = BorrowedFd<'a>;

/// The directory with the changes.
#[derive(Debug)]
pub(super) struct Layer {
    /// Locked while it is used.
    directory: OwnedFd,
    upper: OwnedFd,
    work: OwnedFd,
    /// Of the next file in `work`.
    next: AtomicU64,
    /// Whether whiteouts are devices.
    devices: AtomicBool,
    /// What the attributes begin with that mark directories and whiteouts.
    pub(super) marks: &'static str,
    pub(super) modes: Modes,
    /// What was said about entries that cannot be shown.
    failures: Failures,
    /// Whether the driver may give files to other users.
    pub(super) gives_away: bool,
    /// Whether a copy is on the medium before it takes its place.
    pub(super) syncs: bool,
    /// The directory was made for this mount: the root of `upper` has no attributes of its own yet.
    pub(super) is_new: bool,
}

/// What is in a directory of `upper` under a name.
#[derive(Debug)]
pub(super) enum UpperEntry {
    None,
    Whiteout,
    Some(Stat),
}

/// Whether this process may give files to other users, and set any attribute.
pub(crate) fn is_privileged() -> bool {
    rustix::thread::capabilities(None)
        .is_ok_and(|sets| sets.effective.contains(CapabilitySet::CHOWN))
        && has_users()
}

/// Whether this process knows other users: not in a user namespace of one.
fn has_users() -> bool {
    let all = |map: String| {
        // Number there, number here, count.
        let mut counts = map
            .lines()
            .filter_map(|line| line.split_whitespace().nth(2));
        counts.next().is_some_and(|count| count != "1") || counts.next().is_some()
    };
    std::fs::read_to_string("/proc/self/uid_map").map_or(true, all)
}

/// The type of what an entry is about.
pub(super) fn type_of(stat: &Stat) -> FileType {
    FileType::from_raw_mode(stat.st_mode)
}

/// A path of the system that leads to an open file, whatever its names are.
pub(super) fn path_of(file: impl AsFd) -> String {
    format!("/proc/self/fd/{}", file.as_fd().as_raw_fd())
}

impl Layer {
    /// Opens the layer in a directory, which it makes if it is missing.
    ///
    /// # Errors
    /// It cannot be used, or another driver uses it ([`ResourceBusy`](io::ErrorKind::ResourceBusy)).
    pub(super) fn open(path: &Path, syncs: bool) -> io::Result<Self> {
        const DIRECTORY: OFlags = OFlags::DIRECTORY.union(OFlags::CLOEXEC);
        let private = Mode::from_raw_mode(0o700);
        match mkdirat(CWD, path.as_os_str().as_bytes(), private) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(error) => return Err(error.into()),
        }
        let directory = openat(CWD, path.as_os_str().as_bytes(), DIRECTORY, Mode::empty())?;
        let gives_away = is_privileged();
        check_private(path, &directory)?;
        lock(&directory, path)?;
        let part = |name: &str, mode, how: OFlags| -> io::Result<(OwnedFd, bool)> {
            let made = match mkdirat(&directory, name, Mode::from_raw_mode(mode)) {
                Ok(()) => true,
                Err(Errno::EXIST) => false,
                Err(error) => return Err(error.into()),
            };
            let flags = DIRECTORY | OFlags::NOFOLLOW | how;
            Ok((openat(&directory, name, flags, Mode::empty())?, made))
        };
        // Its mode is that of the root of the mount, which may let nobody read it.
        let (upper, is_new) = part("upper", 0o755, OFlags::PATH)?;
        let (work, _) = part("work", 0o700, OFlags::empty())?;
        if fstat(&upper)?.st_dev != fstat(&work)?.st_dev {
            return Err(io::Error::other(
                "upper and work are on different file systems",
            ));
        }
        let layer = Self {
            directory,
            upper,
            work,
            next: AtomicU64::new(0),
            devices: AtomicBool::new(true),
            marks: TRUSTED,
            modes: Modes::default(),
            failures: Failures::default(),
            gives_away,
            syncs,
            is_new,
        };
        layer.clear_work()?;
        layer.with_marks()
    }

    /// Notes what the layer is about, and which marks it gets. Returns false if it is about another generation: the changes
    /// may not fit. Nothing is known of a layer that was made elsewhere.
    pub(super) fn note(&self, own: Option<GenerationId>) -> io::Result<bool> {
        let directory = self.directory.as_fd();
        if self.is_new {
            let record = Record {
                generation: own,
                marks: Some(self.kind()),
                next: None,
            };
            record.write(directory)?;
            return Ok(true);
        }
        let Some(mut record) = Record::read(directory)? else {
            return Ok(true);
        };
        let mut is_new = record.settle(own);
        if record.marks.is_some_and(|marks| marks != self.kind()) {
            record.marks = Some(MarkKind::Mixed);
            is_new = true;
        }
        if is_new {
            record.write(directory)?;
        }
        let (recorded, own) = (record.generation, own);
        Ok(recorded.is_none() || own.is_none() || recorded == own)
    }

    /// The kind of marks that this driver makes.
    fn kind(&self) -> MarkKind {
        match self.devices.load(Ordering::Relaxed) {
            false => MarkKind::Mixed,
            true if self.marks == USER => MarkKind::User,
            true => MarkKind::Trusted,
        }
    }

    /// The kind of all marks of the layer, after [`note`](Self::note). None if it is not known.
    pub(super) fn recorded_kind(&self) -> io::Result<Option<MarkKind>> {
        let record = Record::read(self.directory.as_fd())?;
        Ok(record.and_then(|record| record.marks))
    }

    /// The directory. As long as it is open, no other mount uses the layer.
    pub(super) fn into_lock(self) -> OwnedFd {
        self.directory
    }

    /// Finds out which marks it may make.
    fn with_marks(mut self) -> io::Result<Self> {
        let name = self.temporary();
        mkdirat(&self.work, &name, Mode::from_raw_mode(0o700))?;
        let outcome = self.try_marks(&name);
        let _ = unlinkat(&self.work, &name, AtFlags::REMOVEDIR);
        self.marks = outcome?;
        let whiteout = self.whiteout_device().or_else(|_| {
            self.devices.store(false, Ordering::Relaxed);
            self.whiteout()
        });
        unlinkat(&self.work, &whiteout?, AtFlags::empty())?;
        Ok(self)
    }

    fn try_marks(&self, name: &CString) -> io::Result<&'static str> {
        let directory = openat(&self.work, name, NAMES, Mode::empty())?;
        let try_one = |marks: &'static str| {
            let name = format!("{marks}opaque");
            rustix::fs::setxattr(path_of(&directory), name, b"y", XattrFlags::empty())
                .map(|()| marks)
        };
        try_one(TRUSTED)
            .or_else(|_| try_one(USER))
            .map_err(|error| match error {
                Errno::OPNOTSUPP => {
                    io::Error::other("its file system has no extended attributes for users")
                }
                other => other.into(),
            })
    }

    /// Removes what a driver that died has left.
    fn clear_work(&self) -> io::Result<()> {
        for entry in Dir::read_from(&self.work)? {
            let entry = entry?;
            if entry
                .file_name()
                .to_bytes()
                .starts_with(TEMPORARY.as_bytes())
            {
                remove_at(self.work.as_fd(), entry.file_name().to_bytes())?;
            }
        }
        Ok(())
    }

    pub(super) fn upper(&self) -> DirFd<'_> {
        self.upper.as_fd()
    }

    pub(super) fn work(&self) -> DirFd<'_> {
        self.work.as_fd()
    }

    /// A name in `work` that is free.
    pub(super) fn temporary(&self) -> CString {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let text = format!("{TEMPORARY}{number}");
        CString::new(text).unwrap_or_default()
    }

    /// Opens the directory that is reached from another one by some names, of which the last comes first.
    pub(super) fn open_below(
        &self,
        from: DirFd<'_>,
        names: &[Box<[u8]>],
    ) -> Result<OwnedFd, Errno> {
        let flags = NAMES | OFlags::DIRECTORY;
        if names.is_empty() {
            return self.open_in(from, b".", flags);
        }
        let length: usize = names.iter().map(|name| name.len() + 1).sum();
        if length < LONGEST {
            let mut path = Vec::with_capacity(length);
            for name in names.iter().rev() {
                path.extend_from_slice(name);
                path.push(b'/');
            }
            path.pop();
            let resolve = ResolveFlags::BENEATH
                | ResolveFlags::NO_SYMLINKS
                | ResolveFlags::NO_MAGICLINKS
                | ResolveFlags::NO_XDEV;
            match openat2(from, path.as_slice(), flags, Mode::empty(), resolve) {
                // Before Linux 5.6, or kept from it; the third one also after a rename by somebody else.
                Err(Errno::NOSYS | Errno::PERM | Errno::AGAIN | Errno::ACCESS) => {}
                other => return other,
            }
        }
        let mut at = None::<OwnedFd>;
        for name in names.iter().rev() {
            let from = at.as_ref().map_or(from, AsFd::as_fd);
            at = Some(self.open_in(from, name, flags)?);
        }
        at.ok_or(Errno::NOENT)
    }

    /// Opens something in a directory of `upper`.
    pub(super) fn open_in(
        &self,
        dir: DirFd<'_>,
        name: &[u8],
        flags: OFlags,
    ) -> Result<OwnedFd, Errno> {
        let flags = flags | OFlags::CLOEXEC;
        (self.modes).lend(&[dir], || openat(dir, name, flags, Mode::empty()))
    }

    /// Attributes of something in a directory of `upper`.
    pub(super) fn stat_in(&self, dir: DirFd<'_>, name: &[u8]) -> Result<Stat, Errno> {
        let stat = || statat(dir, name, AtFlags::SYMLINK_NOFOLLOW);
        match self.modes.true_ones(stat) {
            // Rights for the directory do not change the modes of what is in it.
            Err(Errno::ACCESS) => self.modes.lend(&[dir], stat),
            other => other,
        }
    }

    /// What a directory of `upper` has under a name.
    pub(super) fn entry(&self, dir: DirFd<'_>, name: &[u8]) -> Result<UpperEntry, Errno> {
        let stat = match self.stat_in(dir, name) {
            Ok(stat) => stat,
            Err(Errno::NOENT) => return Ok(UpperEntry::None),
            Err(error) => return Err(error),
        };
        let hides = match type_of(&stat) {
            FileType::CharacterDevice => stat.st_rdev == 0,
            FileType::RegularFile | FileType::Directory => {
                let marks = Marks::of(self.open_in(dir, name, NAMES)?.as_fd())?;
                if let Some(mark) = marks.foreign {
                    self.mention(dir, name, mark);
                    return Err(Errno::IO);
                }
                marks.whiteout && stat.st_size == 0 && type_of(&stat) == FileType::RegularFile
            }
            _ => false,
        };
        Ok(match hides {
            true => UpperEntry::Whiteout,
            false => UpperEntry::Some(stat),
        })
    }

    /// Says that an entry cannot be shown.
    fn mention(&self, dir: DirFd<'_>, name: &[u8], mark: &str) {
        let path = rustix::fs::readlinkat(CWD, path_of(dir), Vec::new()).unwrap_or_default();
        let (path, name) = (path.to_string_lossy(), String::from_utf8_lossy(name));
        let text = format!("cannot show {path}/{name}: it has the attribute {mark}");
        self.failures.mention(&text);
    }

    fn whiteout_device(&self) -> Result<CString, Errno> {
        let name = self.temporary();
        let mode = Mode::empty();
        mknodat(&self.work, &name, FileType::CharacterDevice, mode, 0)?;
        Ok(name)
    }

    /// A new whiteout in `work`.
    pub(super) fn whiteout(&self) -> Result<CString, Errno> {
        if self.devices.load(Ordering::Relaxed) {
            return self.whiteout_device();
        }
        let name = self.temporary();
        let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
        let file = openat(&self.work, &name, flags, Mode::from_raw_mode(0o600))?;
        match self.set_mark(file.as_fd(), "whiteout", b"y") {
            Ok(()) => Ok(name),
            Err(error) => {
                self.discard(&name);
                Err(error)
            }
        }
    }

    /// Hides a name of the lower tree. What is under this name in `upper`, which must be no directory, is replaced.
    pub(super) fn cover(&self, dir: DirFd<'_>, name: &[u8]) -> Result<(), Errno> {
        let whiteout = self.whiteout()?;
        let placed = self
            .announce_whiteout(dir)
            .and_then(|()| renameat(&self.work, &whiteout, dir, name));
        if placed.is_err() {
            self.discard(&whiteout);
        }
        placed
    }

    /// Marks a directory that will have a whiteout, if whiteouts need that.
    pub(super) fn announce_whiteout(&self, dir: DirFd<'_>) -> Result<(), Errno> {
        match self.devices.load(Ordering::Relaxed) || self.mark(dir, "opaque")?.is_some() {
            true => Ok(()),
            false => self.set_mark(dir, "opaque", b"x"),
        }
    }

    /// As [`cover`](Self::cover), for a name under which `upper` has a directory.
    pub(super) fn cover_directory(&self, dir: DirFd<'_>, name: &[u8]) -> Result<(), Errno> {
        self.announce_whiteout(dir)?;
        let whiteout = self.whiteout()?;
        let placed = self.exchange(&whiteout, dir, name);
        // It is what was exchanged, or the whiteout.
        self.discard(&whiteout);
        placed
    }

    /// Exchanges a file in `work` and one of `upper`, of which one is a directory. Not at once if the file system cannot
    /// do so. Then a crash in between leaves the name without both.
    pub(super) fn exchange(
        &self,
        temporary: &CString,
        dir: DirFd<'_>,
        name: &[u8],
    ) -> Result<(), Errno> {
        let one = openat(&self.work, temporary, NAMES, Mode::empty())?;
        let other = self.open_in(dir, name, NAMES)?;
        // Directories that move must be writable, too.
        (self.modes).lend(&[dir, one.as_fd(), other.as_fd()], || {
            self.exchange_now(temporary, dir, name)
        })
    }

    fn exchange_now(&self, temporary: &CString, dir: DirFd<'_>, name: &[u8]) -> Result<(), Errno> {
        let flags = RenameFlags::EXCHANGE;
        match renameat_with(&self.work, temporary, dir, name, flags) {
            Err(Errno::INVAL | Errno::NOSYS) => {}
            other => return other,
        }
        let aside = self.temporary();
        renameat(dir, name, &self.work, &aside)?;
        if let Err(error) = renameat(&self.work, temporary, dir, name) {
            let _ = renameat(&self.work, &aside, dir, name);
            return Err(error);
        }
        renameat(&self.work, &aside, &self.work, temporary)
    }

    /// Moves a directory of `upper` away, to remove it.
    pub(super) fn take_out(&self, dir: DirFd<'_>, name: &[u8]) -> Result<(), Errno> {
        let temporary = self.temporary();
        let taken = self.open_in(dir, name, NAMES)?;
        (self.modes).lend(&[dir, taken.as_fd()], || {
            renameat(dir, name, &self.work, &temporary)
        })?;
        self.discard(&temporary);
        Ok(())
    }

    /// Moves a file, and hides its old name.
    pub(super) fn move_and_cover(
        &self,
        from: (DirFd<'_>, &[u8]),
        to: (DirFd<'_>, &[u8]),
    ) -> Result<(), Errno> {
        if self.devices.load(Ordering::Relaxed) {
            let flags = RenameFlags::WHITEOUT;
            match renameat_with(from.0, from.1, to.0, to.1, flags) {
                Err(Errno::INVAL | Errno::NOSYS | Errno::PERM) => {}
                other => return other,
            }
        }
        // Not at once. A crash in between shows the file of the lower tree again.
        self.announce_whiteout(from.0)?;
        let whiteout = self.whiteout()?;
        let moved = renameat(from.0, from.1, to.0, to.1)
            .and_then(|()| renameat(&self.work, &whiteout, from.0, from.1));
        if moved.is_err() {
            self.discard(&whiteout);
        }
        moved
    }

    /// Removes something in `work`. What cannot be removed now is removed by the next mount.
    pub(super) fn discard(&self, name: &CString) {
        if let Err(error) = remove_at(self.work.as_fd(), name.to_bytes())
            && error != Errno::NOENT
        {
            tracing::warn!("cannot remove work/{}: {error}", name.to_string_lossy());
        }
    }

    /// Gives a file of `upper` another name.
    pub(super) fn link(&self, file: DirFd<'_>, dir: DirFd<'_>, name: &[u8]) -> Result<(), Errno> {
        linkat(CWD, path_of(file), dir, name, AtFlags::SYMLINK_FOLLOW)
    }
}

/// Whether nobody else can reach what is in a directory, if this process is privileged. The copies of a privileged driver
/// keep their owners, their set-user-ID bits and their device numbers, and the flags of the mount do not apply to them
/// there. Whoever could change the layer would choose the files that a privileged commit reads.
pub(super) fn check_private(path: &Path, directory: &OwnedFd) -> io::Result<()> {
    const OTHERS_ENTER: u32 = 0o011;
    let may_have_more = is_privileged() || (geteuid().is_root() && has_users());
    if !may_have_more {
        return Ok(());
    }
    let stat = fstat(directory)?;
    let own = stat.st_uid == geteuid().as_raw();
    if own && stat.st_mode & OTHERS_ENTER == 0 {
        return Ok(());
    }
    let whose = if own {
        ""
    } else {
        "it belongs to another user, and "
    };
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        format!(
            "{whose}others may enter it, and would find set-user-ID programs and devices there: chmod 700 {}",
            path.display()
        ),
    ))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    fn layer() -> (tempfile::TempDir, Layer) {
        let dir = tempfile::tempdir().unwrap();
        std::fs::set_permissions(dir.path(), PermissionsExt::from_mode(0o700)).unwrap();
        let layer = Layer::open(dir.path(), true).unwrap();
        (dir, layer)
    }

    #[test]
    fn one_driver_at_a_time() {
        let (dir, layer) = layer();
        let error = Layer::open(dir.path(), true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::ResourceBusy);
        drop(layer);
        assert!(!Layer::open(dir.path(), true).unwrap().is_new);
    }

    #[test]
    fn whiteouts_of_both_kinds_hide_names() {
        let (dir, layer) = layer();
        std::fs::write(dir.path().join("upper/file"), "x").unwrap();
        std::fs::write(dir.path().join("upper/empty"), "").unwrap();
        let upper = layer.upper();
        for devices in [true, false] {
            layer.devices.store(devices, Ordering::Relaxed);
            layer.cover(upper, b"file").unwrap();
            layer.cover(upper, b"other").unwrap();
            for name in [&b"file"[..], b"other"] {
                let entry = layer.entry(upper, name).unwrap();
                assert!(matches!(entry, UpperEntry::Whiteout), "{name:?}");
            }
        }
        assert!(layer.has_file_whiteouts(upper).unwrap() && !layer.is_opaque(upper).unwrap());
        let empty = layer.entry(upper, b"empty").unwrap();
        assert!(matches!(empty, UpperEntry::Some(_)));
        layer.make_opaque(upper).unwrap();
        assert!(layer.is_opaque(upper).unwrap());
    }

    #[test]
    fn leftovers_go_and_foreign_files_stay() {
        let (dir, layer) = layer();
        drop(layer);
        let work = dir.path().join("work");
        std::fs::create_dir_all(work.join("#rw-7/a/b")).unwrap();
        std::fs::write(work.join("#rw-7/a/file"), "x").unwrap();
        std::fs::write(work.join("other"), "x").unwrap();
        let _layer = Layer::open(dir.path(), true).unwrap();
        assert!(!work.join("#rw-7").exists() && work.join("other").exists());
    }

    #[test]
    fn directories_are_covered_with_what_is_in_them() {
        let (dir, layer) = layer();
        std::fs::create_dir_all(dir.path().join("upper/d/e")).unwrap();
        layer.cover_directory(layer.upper(), b"d").unwrap();
        let entry = layer.entry(layer.upper(), b"d").unwrap();
        assert!(matches!(entry, UpperEntry::Whiteout));
        assert_eq!(
            std::fs::read_dir(dir.path().join("work")).unwrap().count(),
            0
        );
    }

    #[test]
    fn paths_lead_through_no_link() {
        let (dir, layer) = layer();
        std::fs::create_dir(dir.path().join("upper/real")).unwrap();
        std::os::unix::fs::symlink("real", dir.path().join("upper/link")).unwrap();
        let open = |name: &[u8]| layer.open_below(layer.upper(), &[name.into()]);
        assert!(open(b"real").is_ok());
        assert!(open(b"link").is_err() && open(b"..").is_err());
    }
}
