//! A checkpoint: results of expensive steps, for a program that is started again after it was killed.
//!
//! It is a cache of one process at a time, without a limit. An entry is written before the call that adds it returns, so a
//! killed process loses nothing that it has added. Every few seconds the entries are synced: a power failure
//! loses at most those of the last seconds. Bodies have a checksum.

use std::collections::BTreeSet;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use twox_hash::XxHash3_128;

use super::CacheKey;
use super::store::Store;
use crate::in_place::LockedFile;

/// Whoever has the lock on this file uses the directory.
const LOCK: &str = "lock";

/// Entries that are older than this are synced.
const SYNC_EVERY: Duration = Duration::from_secs(10);

/// Bytes of a checksum.
const SUM: usize = 16;

/// A directory with results of a program. Clones are the same checkpoint.
///
/// ```
/// use redwarfs_io::{CacheKey, Checkpoint};
///
/// # let dir = tempfile::tempdir()?;
/// let path = dir.path().join("checkpoint");
/// let key = CacheKey::of("square", &[12]);
/// let first = Checkpoint::open(&path)?;
/// assert!(first.add(&key, b"a note", b"144"));
/// drop(first);
/// // In the next process:
/// let next = Checkpoint::open(&path)?;
/// assert_eq!(next.find(&key, 100).unwrap(), (b"a note".to_vec(), b"144".to_vec()));
/// next.remove();
/// drop(next);
/// assert!(!path.exists());
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Clone)]
pub struct Checkpoint {
    shared: Arc<Shared>,
}

struct Shared {
    store: Store,
    /// Held until all clones are gone.
    lock: LockedFile,
    unsynced: Mutex<Unsynced>,
}

/// Files that a power failure may take.
struct Unsynced {
    since: Instant,
    files: Vec<PathBuf>,
}

impl Checkpoint {
    /// Uses the directory `path`, which is made if it is missing, readable by its owner only.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if another process uses it. Otherwise as
    /// [`DiskCache::open`](super::DiskCache::open). The text has the path.
    pub fn open(path: &Path) -> io::Result<Self> {
        let named = |kind, what: &dyn fmt::Display| {
            io::Error::new(kind, format!("{}: {what}", path.display()))
        };
        let store = Store::open(path, "checkpoint", u64::MAX)?;
        let lock = store.path().join(LOCK);
        if let Err(e) = create(&lock) {
            return Err(named(e.kind(), &e));
        }
        let lock = LockedFile::open(&lock).map_err(|e| match e.kind() {
            io::ErrorKind::ResourceBusy => named(e.kind(), &"another program uses it"),
            _ => e,
        })?;
        Ok(Self {
            shared: Arc::new(Shared {
                store,
                lock,
                unsynced: Mutex::new(Unsynced {
                    since: Instant::now(),
                    files: Vec::new(),
                }),
            }),
        })
    }

    /// The directory, as an absolute path.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.shared.store.path()
    }

    /// Number of entries, and the bytes that they take. Removes what a killed process has not finished.
    #[must_use]
    pub fn usage(&self) -> (u64, u64) {
        self.shared.store.usage()
    }

    /// Note and body of an entry, if it is there and intact. One that has a body of more than `most` bytes, or is damaged,
    /// is removed.
    #[must_use]
    pub fn find(&self, key: &CacheKey, most: u64) -> Option<(Vec<u8>, Vec<u8>)> {
        let store = &self.shared.store;
        let entry = store.find(key)?;
        let read = || {
            let (note, sum) = entry.note().split_last_chunk::<SUM>()?;
            let len = usize::try_from(entry.len()).ok()?;
            let mut body = Vec::new();
            if entry.len() > most || body.try_reserve_exact(len).is_err() {
                return None;
            }
            body.resize(len, 0);
            entry.read_exact_at(0, &mut body).ok()?;
            (checksum(&body) == *sum).then(|| (note.to_vec(), body))
        };
        let found = read();
        if found.is_none() {
            super::count(&store.counters.damaged);
            store.remove(key);
        }
        found
    }

    /// Adds an entry, with a note of less than 1 MiB. Returns whether it is there; if the disk is full or cannot be written
    /// to, the log says so once, and nothing is added for half a minute.
    pub fn add(&self, key: &CacheKey, note: &[u8], body: &[u8]) -> bool {
        let note = [note, &checksum(body)].concat();
        let added = self.shared.store.write(key, &note, body);
        if added {
            self.sync_if_due(self.shared.store.file_of(key));
        }
        added
    }

    /// Syncs what was added, if that was not done for a while. One thread does this, and others go on.
    fn sync_if_due(&self, added: PathBuf) {
        let due = {
            let unsynced = &self.shared.unsynced;
            let mut unsynced = unsynced.lock().unwrap_or_else(PoisonError::into_inner);
            unsynced.files.push(added);
            if unsynced.since.elapsed() < SYNC_EVERY {
                return;
            }
            unsynced.since = Instant::now();
            std::mem::take(&mut unsynced.files)
        };
        // Without success, the entry may be damaged after a power failure, and is then computed again.
        let mut directories = BTreeSet::new();
        for file in &due {
            if let Ok(file) = OpenOptions::new().write(true).open(file) {
                let _ = file.sync_data();
            }
            directories.extend(file.parent());
        }
        directories.insert(self.path());
        for directory in directories {
            if let Ok(directory) = File::open(directory) {
                let _ = directory.sync_all();
            }
        }
    }

    /// Removes all entries. The directory goes with the last clone, if nothing else is in it.
    pub fn remove(&self) {
        self.shared.store.clear();
    }
}

impl Drop for Shared {
    /// A checkpoint in which there is nothing leaves nothing behind.
    fn drop(&mut self) {
        let _ = fs::remove_file(self.lock.path());
        let _ = fs::remove_dir(self.store.path());
    }
}

/// A file that is there from here on.
fn create(path: &Path) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(|_file| ())
}

fn checksum(body: &[u8]) -> [u8; SUM] {
    XxHash3_128::oneshot(body).to_le_bytes()
}

impl PartialEq for Checkpoint {
    /// Whether both are the same checkpoint.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared)
    }
}

impl fmt::Debug for Checkpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Checkpoint").field(&self.path()).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(number: u8) -> CacheKey {
        CacheKey::of("t", &[number; 16])
    }

    fn open() -> (tempfile::TempDir, Checkpoint) {
        let dir = tempfile::tempdir().unwrap();
        let checkpoint = Checkpoint::open(&dir.path().join("a/b")).unwrap();
        (dir, checkpoint)
    }

    #[test]
    fn one_process_uses_it_at_a_time() {
        let (_dir, checkpoint) = open();
        assert!(checkpoint.add(&key(1), b"", b"one"));
        let path = checkpoint.path().to_owned();
        let e = Checkpoint::open(&path).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::ResourceBusy);
        assert!(e.to_string().ends_with("b: another program uses it"), "{e}");
        drop(checkpoint);
        let again = Checkpoint::open(&path).unwrap();
        assert_eq!(again.find(&key(1), 3).unwrap().1, b"one");
        assert_eq!(again.usage().0, 1);
    }

    #[test]
    fn no_damage_is_returned() {
        let (_dir, checkpoint) = open();
        let (note, body) = (b"note".to_vec(), vec![7; 100]);
        assert!(checkpoint.add(&key(1), &note, &body));
        let file = checkpoint.shared.store.file_of(&key(1));
        let good = fs::read(&file).unwrap();
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            fs::write(&file, &bad).unwrap();
            assert!(checkpoint.find(&key(1), 1000).is_none(), "{at}");
            assert!(!file.exists());
            fs::write(&file, &good[..at]).unwrap();
            assert!(checkpoint.find(&key(1), 1000).is_none(), "{at}");
        }
        fs::write(&file, &good).unwrap();
        assert_eq!(checkpoint.find(&key(1), 100).unwrap(), (note, body));
        assert!(checkpoint.find(&key(1), 99).is_none());
    }

    #[test]
    fn removal_leaves_files_of_others() {
        let (dir, checkpoint) = open();
        for number in 0..10 {
            assert!(checkpoint.add(&key(number), b"", &[number]));
        }
        let other = checkpoint.path().join("03/notes");
        fs::write(&other, b"mine").unwrap();
        let partial = checkpoint.path().join("04/.new-1-1");
        fs::write(&partial, b"partial").unwrap();
        checkpoint.remove();
        assert!(other.exists() && !partial.exists());
        let path = checkpoint.path().to_owned();
        drop(checkpoint);
        let left: Vec<_> = fs::read_dir(&path).unwrap().collect();
        assert_eq!(left.len(), 1);
        let again = Checkpoint::open(&dir.path().join("a/b")).unwrap();
        assert_eq!(again.usage(), (0, 0));
        fs::remove_file(&other).unwrap();
        again.remove();
        drop(again);
        assert!(!path.exists());
    }

    #[test]
    fn a_disk_that_refuses_ends_nothing() {
        let (_dir, checkpoint) = open();
        // A file where a directory must be: also root cannot write there.
        fs::write(checkpoint.path().join("02"), b"").unwrap();
        assert!(!checkpoint.add(&key(2), b"", b"two"));
        assert!(checkpoint.find(&key(2), 10).is_none());
    }
}
