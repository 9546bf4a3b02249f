//! Own files whose mode keeps the driver out.
//!
//! The kernel has checked what a program may do, by the modes that it sees. What the driver does for it besides is not the
//! program's: it copies a file into a directory that nobody may write to, or hides an empty directory that nobody may
//! read. Root may do all of this. For another user, the driver gives itself the rights for a moment.

use std::os::fd::{AsFd, BorrowedFd};
use std::sync::{PoisonError, RwLock};

use rustix::fs::{FileType, Mode, Stat, fstat};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid, getgroups};

use super::layer::path_of;

const SET_GID: u32 = 0o2000;

/// Write-locked while a mode is another one than programs are to see.
#[derive(Debug, Default)]
pub(super) struct Modes(RwLock<()>);

impl Modes {
    /// Reads attributes, with the modes that programs are to see.
    pub(super) fn true_ones(
        &self,
        stat: impl FnOnce() -> Result<Stat, Errno>,
    ) -> Result<Stat, Errno> {
        let _true = self.0.read().unwrap_or_else(PoisonError::into_inner);
        stat()
    }

    /// Changes a mode, while none is another one than programs are to see. Must not be called within [`Modes::lend`].
    pub(super) fn change<T>(&self, change: impl FnOnce() -> T) -> T {
        let _true = self.0.write().unwrap_or_else(PoisonError::into_inner);
        change()
    }

    /// Does something. If that fails with `EACCES`, does it once more while the driver has all rights of an owner for
    /// `files`, as far as it owns them. Must not be called by `work`.
    pub(super) fn lend<T>(
        &self,
        files: &[BorrowedFd<'_>],
        mut work: impl FnMut() -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        match work() {
            Err(Errno::ACCESS) => {}
            other => return other,
        }
        let _lent = self.0.write().unwrap_or_else(PoisonError::into_inner);
        let lent: Vec<Lent<'_>> = files.iter().filter_map(|file| Lent::new(*file)).collect();
        match lent.is_empty() {
            true => Err(Errno::ACCESS),
            false => work(),
        }
    }
}

/// A file with the rights of the driver, until it is dropped.
#[derive(Debug)]
struct Lent<'a>(BorrowedFd<'a>, Mode);

impl<'a> Lent<'a> {
    /// None if the driver has all rights, or may not have them.
    fn new(file: BorrowedFd<'a>) -> Option<Self> {
        let stat = fstat(file).ok()?;
        let wanted = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Directory => Mode::RWXU,
            FileType::RegularFile => Mode::RUSR | Mode::WUSR,
            _ => return None,
        };
        let mode = Mode::from_raw_mode(stat.st_mode);
        if stat.st_uid != geteuid().as_raw() || mode.contains(wanted) {
            return None;
        }
        if stat.st_mode & SET_GID != 0 && !is_own_group(stat.st_gid) {
            // The system would take this bit away for good.
            return None;
        }
        rustix::fs::chmod(path_of(file), mode | wanted).ok()?;
        Some(Self(file, mode))
    }
}

impl Drop for Lent<'_> {
    fn drop(&mut self) {
        if let Err(error) = rustix::fs::chmod(path_of(self.0.as_fd()), self.1) {
            tracing::warn!("a file of the layer keeps rights for its owner: {error}");
        }
    }
}

fn is_own_group(group: u32) -> bool {
    getegid().as_raw() == group
        || getgroups().is_ok_and(|all| all.iter().any(|own| own.as_raw() == group))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, Ordering};
    use std::thread::{scope, spawn};

    use rustix::fs::{CWD, OFlags, openat};
    use rustix::process::{Gid, Uid};
    use rustix::thread::{set_thread_res_gid, set_thread_res_uid};

    use super::*;

    /// Lets the calling thread have no privileges.
    fn be_nobody() -> (Uid, Gid) {
        let (uid, gid) = (Uid::from_raw(65534), Gid::from_raw(65534));
        if geteuid().is_root() {
            set_thread_res_gid(gid, gid, gid).unwrap();
            set_thread_res_uid(uid, uid, uid).unwrap();
        }
        (geteuid(), getegid())
    }

    #[test]
    fn programs_see_no_lent_mode() {
        const THREADS: usize = 4;
        const FILES: usize = 50;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("d");
        std::fs::create_dir(&path).unwrap();
        let (uid, gid) = spawn(be_nobody).join().unwrap();
        std::os::unix::fs::chown(&path, Some(uid.as_raw()), Some(gid.as_raw())).unwrap();
        std::fs::set_permissions(&path, std::os::unix::fs::PermissionsExt::from_mode(0o555))
            .unwrap();
        let named = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let named = openat(CWD, &path, named, Mode::empty()).unwrap();
        let modes = Modes::default();
        let ended = AtomicBool::new(false);
        let mode = || modes.true_ones(|| fstat(&named)).unwrap().st_mode & 0o7777;
        let make = |name: &str| {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            let make = || openat(&named, name, flags, Mode::RUSR);
            modes.lend(&[named.as_fd()], make).map(drop)
        };
        scope(|scope| {
            let watcher = scope.spawn(|| {
                while !ended.load(Ordering::Relaxed) {
                    assert_eq!(mode(), 0o555);
                }
            });
            let makers: Vec<_> = (0..THREADS)
                .map(|thread| {
                    let make = &make;
                    scope.spawn(move || {
                        be_nobody();
                        for file in 0..FILES {
                            make(&format!("{thread}-{file}")).unwrap();
                        }
                    })
                })
                .collect();
            let made = makers.into_iter().map(std::thread::ScopedJoinHandle::join);
            let made: Vec<_> = made.collect();
            ended.store(true, Ordering::Relaxed);
            watcher.join().unwrap();
            assert!(made.iter().all(Result::is_ok));
        });
        assert_eq!(mode(), 0o555);
        let found = std::fs::read_dir(&path).unwrap().count();
        assert_eq!(found, THREADS * FILES);
    }
}
