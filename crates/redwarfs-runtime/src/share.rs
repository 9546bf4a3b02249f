//! A directory that all processes which run one image share.
//!
//! It has the mount point or the extracted tree in it, and three files whose locks (`flock`) say who does what:
//!
//! | file | lock | held by |
//! |---|---|---|
//! | `setup` | exclusive | a process that starts to use the image, or a keeper that ends, while it looks at the others |
//! | `users` | shared | each process that uses the image, and its children; a program inherits the open file |
//! | `keeper` | exclusive | the keeper, as long as it lives |
//!
//! The system releases the locks of a process that dies, so nothing is left over, however a process ends. The
//! keeper waits for an exclusive lock on `users`, takes `setup` to keep new users out, looks again, and removes
//! everything. A process that waited for `setup` meanwhile finds another file there, or none, and begins again.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read, Seek, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FlockOperation, OFlags, flock};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::geteuid;

use crate::error::{ELSEWHERE, Failure, Result};

const SETUP: &str = "setup";
const USERS: &str = "users";
const KEEPER: &str = "keeper";

/// Smallest number of the descriptor that programs inherit. Scripts use the small ones.
const INHERITED_FROM: i32 = 400;

/// How often a directory that was removed meanwhile is made again.
const ATTEMPTS: usize = 100;

/// How long the first user may be about to mount while a second one starts, in the event that the first one died.
const KEEPER_STARTS: Duration = Duration::from_millis(10);
const KEEPER_LOOKS: usize = 500;

/// A shared directory while this process has its `setup`.
#[derive(Debug)]
pub(crate) struct Share {
    directory: PathBuf,
    setup: File,
}

/// The right to use what is in a shared directory. Programs that this process starts inherit it.
#[derive(Debug)]
pub(crate) struct Use(#[expect(dead_code, reason = "it is held, not looked at")] File);

/// What a keeper says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct KeeperRecord {
    pub(crate) process: u32,
    /// The namespace of mounts, if the keeper made one.
    pub(crate) namespace: Option<u64>,
}

/// What holds a lock, and whether others may hold it too.
fn lock(file: &File, operation: FlockOperation) -> io::Result<()> {
    loop {
        match flock(file, operation) {
            Err(Errno::INTR) => {}
            other => return Ok(other?),
        }
    }
}

/// Takes a lock if nobody holds it in a way that excludes it. Whether that worked.
fn try_lock(file: &File, operation: FlockOperation) -> io::Result<bool> {
    match lock(file, operation) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(false),
        other => other.map(|()| true),
    }
}

/// Opens a file of a shared directory. Only those who set it up, with the lock of `setup`, make files: a keeper that
/// made one while another thread removes them would leave it behind.
fn open_made(directory: &Path, name: &str) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(directory.join(name))
}

fn open(directory: &Path, name: &str) -> io::Result<File> {
    OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .custom_flags(OFlags::NOFOLLOW.bits().cast_signed())
        .open(directory.join(name))
}

/// Whether the file `setup` that was locked is still the one that others find. Whoever waited for its lock may have
/// got it from a keeper that has removed it.
fn is_there(setup: &File, directory: &Path) -> bool {
    let Ok(ours) = setup.metadata() else {
        return false;
    };
    fs::symlink_metadata(directory.join(SETUP))
        .is_ok_and(|found| (found.dev(), found.ino()) == (ours.dev(), ours.ino()))
}

/// Makes a directory for this user alone, or takes the one that is there if it is such a one.
fn make_private(directory: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(directory) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
        other => return other,
    }
    if is_private(directory) {
        return Ok(());
    }
    Err(io::Error::new(
        io::ErrorKind::PermissionDenied,
        "it belongs to somebody else, or others may enter it",
    ))
}

/// Whether there is a directory that only this user may enter.
pub(crate) fn is_private(directory: &Path) -> bool {
    fs::symlink_metadata(directory).is_ok_and(|found| {
        found.is_dir() && found.uid() == geteuid().as_raw() && found.mode() & 0o077 == 0
    })
}

impl Share {
    /// Makes the directory, or waits until nobody else sets it up.
    pub(crate) fn open(directory: &Path) -> Result<Self> {
        let cannot = |error: io::Error| {
            Failure::io("cannot create directory", directory, &error).hint(ELSEWHERE)
        };
        for _ in 0..ATTEMPTS {
            make_private(directory).map_err(cannot)?;
            let setup = match open(directory, SETUP) {
                // Removed in this moment.
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other.map_err(cannot)?,
            };
            lock(&setup, FlockOperation::LockExclusive).map_err(cannot)?;
            let share = Self {
                directory: directory.to_owned(),
                setup,
            };
            if is_there(&share.setup, directory) {
                open(directory, USERS).map_err(cannot)?;
                return Ok(share);
            }
        }
        Err(cannot(Errno::BUSY.into()))
    }

    pub(crate) fn directory(&self) -> &Path {
        &self.directory
    }

    /// The lock of the keeper, if there is none.
    pub(crate) fn claim_keeper(&self) -> Result<Option<File>> {
        let path = self.directory.join(KEEPER);
        let cannot = |error: io::Error| Failure::io("cannot lock", &path, &error);
        let file = open(&self.directory, KEEPER).map_err(cannot)?;
        let free = try_lock(&file, FlockOperation::NonBlockingLockExclusive).map_err(cannot)?;
        if free {
            // What the last one said.
            file.set_len(0).map_err(cannot)?;
        }
        Ok(free.then_some(file))
    }

    /// What the living keeper says; none if it ended meanwhile or says nothing.
    pub(crate) fn keeper(&self) -> Option<KeeperRecord> {
        for _ in 0..KEEPER_LOOKS {
            let file = open_made(&self.directory, KEEPER).ok()?;
            let mut text = String::new();
            (&file).take(256).read_to_string(&mut text).ok()?;
            if let Some(state) = KeeperRecord::parse(&text) {
                return Some(state);
            }
            if try_lock(&file, FlockOperation::NonBlockingLockShared).ok()? {
                return None;
            }
            sleep(KEEPER_STARTS);
        }
        None
    }

    /// Becomes a user, and lets others set up.
    pub(crate) fn join(self) -> Result<Use> {
        let path = self.directory.join(USERS);
        let join = || -> io::Result<File> {
            let file = open(&self.directory, USERS)?;
            lock(&file, FlockOperation::LockShared)?;
            let high = fcntl_dupfd_cloexec(&file, INHERITED_FROM);
            let inherited = high.map_or(file, File::from);
            fcntl_setfd(&inherited, FdFlags::empty())?;
            Ok(inherited)
        };
        join()
            .map(Use)
            .map_err(|error| Failure::io("cannot lock", &path, &error))
    }

    /// Removes the directory after an attempt to fill it failed, unless somebody uses it. `contents` is empty.
    pub(crate) fn discard(self, contents: &Path) {
        let _ = fs::remove_dir(contents);
        let users = open(&self.directory, USERS);
        let unused = users.and_then(|users| {
            let unused = try_lock(&users, FlockOperation::NonBlockingLockExclusive)?;
            Ok(unused.then_some(users))
        });
        if let Ok(Some(_users)) = unused {
            let ending = Ending {
                directory: self.directory,
                _setup: self.setup,
            };
            ending.remove();
        }
    }

    /// Waits until there is no keeper.
    pub(crate) fn wait_for_keeper(directory: &Path) -> io::Result<()> {
        let path = directory.join(KEEPER);
        match File::open(path) {
            Ok(file) => lock(&file, FlockOperation::LockShared),
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }
}

impl KeeperRecord {
    fn parse(text: &str) -> Option<Self> {
        let (process, namespace) = text.strip_suffix('\n')?.split_once(' ')?;
        Some(Self {
            process: process.parse().ok()?,
            namespace: match namespace {
                "-" => None,
                number => Some(number.parse().ok()?),
            },
        })
    }

    /// Says it to those who come later, in the locked file of the keeper.
    pub(crate) fn write(self, mut keeper: &File) -> io::Result<()> {
        let namespace = self.namespace.map(|number| number.to_string());
        let namespace = namespace.as_deref().unwrap_or("-");
        keeper.rewind()?;
        keeper.write_all(format!("{} {namespace}\n", self.process).as_bytes())
    }
}

/// The keeper's side of a shared directory.
#[derive(Debug, Clone)]
pub(crate) struct Kept {
    pub(crate) directory: PathBuf,
}

/// A shared directory that nobody uses or can begin to use.
#[derive(Debug)]
pub(crate) struct Ending {
    directory: PathBuf,
    _setup: File,
}

impl Kept {
    /// Waits until nobody uses the directory. Somebody may begin to in the same moment.
    pub(crate) fn wait_until_unused(&self) -> io::Result<()> {
        let users = open_made(&self.directory, USERS)?;
        lock(&users, FlockOperation::LockExclusive)
    }

    /// Keeps new users out, if there are none. The directory may be that of another keeper already; then there is
    /// nothing to end.
    pub(crate) fn end(&self) -> io::Result<Option<Ending>> {
        let setup = open_made(&self.directory, SETUP)?;
        lock(&setup, FlockOperation::LockExclusive)?;
        if !is_there(&setup, &self.directory) {
            return Ok(None);
        }
        let users = open_made(&self.directory, USERS)?;
        let unused = try_lock(&users, FlockOperation::NonBlockingLockExclusive)?;
        Ok(unused.then(|| Ending {
            directory: self.directory.clone(),
            _setup: setup,
        }))
    }

    /// Gives the lock of the keeper back, waits until nobody uses the directory, and keeps new users out if no
    /// other keeper has come.
    pub(crate) fn end_without_keeping(&self, keeper: &File) -> io::Result<Option<Ending>> {
        lock(keeper, FlockOperation::Unlock)?;
        loop {
            self.wait_until_unused()?;
            let ending = self.end()?;
            let keeper = open_made(&self.directory, KEEPER)?;
            let alone = try_lock(&keeper, FlockOperation::NonBlockingLockExclusive)?;
            if ending.is_some() || !alone {
                return Ok(ending.filter(|_| alone));
            }
            // A user has come, or another thread that waited for the last one has the lock for a moment.
        }
    }
}

impl Ending {
    /// Removes the directory, whose contents are gone.
    pub(crate) fn remove(&self) {
        // What is left is used again by the next process.
        for name in [USERS, KEEPER, SETUP] {
            let _ = fs::remove_file(self.directory.join(name));
        }
        let _ = fs::remove_dir(&self.directory);
    }
}

/// Whether another file system is mounted on `directory`, and answers.
pub(crate) fn is_mounted(directory: &Path) -> bool {
    let device = |path: &Path| fs::metadata(path).map(|meta| meta.dev()).ok();
    let (Some(on), Some(around)) = (device(directory), directory.parent().and_then(device)) else {
        return false;
    };
    on != around
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn states() {
        let dir = tempfile::tempdir().unwrap();
        let share = Share::open(&dir.path().join("x")).unwrap();
        assert_eq!(share.keeper(), None);
        let keeper = share.claim_keeper().unwrap().unwrap();
        for namespace in [Some(7), None] {
            let state = KeeperRecord {
                process: 12,
                namespace,
            };
            keeper.set_len(0).unwrap();
            state.write(&keeper).unwrap();
            assert_eq!(share.keeper(), Some(state));
        }
        assert!(share.claim_keeper().unwrap().is_none());
        drop(keeper);
        assert!(share.claim_keeper().unwrap().is_some());
        for wrong in ["", "12 -", "x -\n", "12\n", "1 x\n"] {
            assert_eq!(KeeperRecord::parse(wrong), None, "{wrong}");
        }
    }

    #[test]
    fn a_keeper_ends_after_the_last_user() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("x");
        let kept = Kept {
            directory: directory.clone(),
        };
        let first = Share::open(&directory).unwrap().join().unwrap();
        let second = Share::open(&directory).unwrap().join().unwrap();
        drop(first);
        assert!(kept.end().unwrap().is_none());
        drop(second);
        kept.wait_until_unused().unwrap();
        kept.end().unwrap().unwrap().remove();
        assert!(!directory.exists());
        // The next user makes it again.
        Share::open(&directory).unwrap();
        assert!(directory.exists());
    }

    #[test]
    fn a_lock_of_a_removed_file_is_no_right() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("x");
        drop(Share::open(&directory).unwrap());
        let waits = File::open(directory.join(SETUP)).unwrap();
        assert!(is_there(&waits, &directory));
        let kept = Kept {
            directory: directory.clone(),
        };
        kept.end().unwrap().unwrap().remove();
        assert!(!is_there(&waits, &directory));
        assert!(kept.end().is_err(), "the next one makes it");
        let _next = Share::open(&directory).unwrap();
        assert!(!is_there(&waits, &directory));
    }

    #[test]
    fn whoever_stops_keeping_leaves_it_to_the_next_keeper() {
        let dir = tempfile::tempdir().unwrap();
        let directory = dir.path().join("x");
        let share = Share::open(&directory).unwrap();
        let first = share.claim_keeper().unwrap().unwrap();
        drop(share);
        let kept = Kept {
            directory: directory.clone(),
        };
        rustix::fs::flock(&first, FlockOperation::Unlock).unwrap();
        let share = Share::open(&directory).unwrap();
        let second = share.claim_keeper().unwrap().unwrap();
        drop(share);
        assert!(kept.end_without_keeping(&first).unwrap().is_none());
        drop(second);
        assert!(kept.end_without_keeping(&first).unwrap().is_some());
    }

    #[test]
    fn another_thread_that_waits_does_not_stop_the_end() {
        let dir = tempfile::tempdir().unwrap();
        for round in 0..50 {
            let directory = dir.path().join(round.to_string());
            let kept = Kept {
                directory: directory.clone(),
            };
            let share = Share::open(&directory).unwrap();
            let keeper = share.claim_keeper().unwrap().unwrap();
            let user = share.join().unwrap();
            std::thread::scope(|scope| {
                // Until the directory is gone.
                scope.spawn(|| while kept.wait_until_unused().is_ok() {});
                drop(user);
                let ending = kept.end_without_keeping(&keeper).unwrap();
                ending.expect("nobody uses it").remove();
            });
            assert!(!directory.exists());
        }
    }

    #[test]
    fn directories_of_others_are_refused() {
        let dir = tempfile::tempdir().unwrap();
        let open = dir.path().join("open");
        DirBuilder::new().mode(0o755).create(&open).unwrap();
        let link = dir.path().join("link");
        std::os::unix::fs::symlink(dir.path(), &link).unwrap();
        for directory in [open, link] {
            let failure = Share::open(&directory).unwrap_err();
            assert!(failure.text.contains("somebody else"), "{failure:?}");
        }
    }
}
