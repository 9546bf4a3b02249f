//! A checkpoint: results of expensive steps, for a program that is started again after it was killed.
//!
//! It is a cache of one process at a time, without a limit. An entry is written before the call that adds it returns, so a
//! killed process loses nothing that it has added. An entry that is added some seconds after the last sync is synced
//! together with all before it. A power failure loses at most those after that. Bodies have a checksum.

use std::collections::{BTreeSet, HashSet};
use std::ffi::OsStr;
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock};
use std::time::{Duration, Instant};

use twox_hash::XxHash3_128;

use super::CacheKey;
use super::marker::{self, Found, Marker};
use super::store::Store;
use crate::in_place::{LockedFile, Medium as _};
use crate::os;

/// How often a directory is looked at again that another process has just given up, and how often an entry is waited for.
const ATTEMPTS: u32 = 10;

/// An entry that is added so long after the last sync is synced, with all before it.
const SYNC_EVERY: Duration = Duration::from_secs(10);

/// Space that entries leave free: this part of a file system, and at most so many bytes.
const RESERVED_PART: u64 = 32;
const RESERVED: u64 = 1 << 30;

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
    shared: Arc<SharedCheckpoint>,
}

struct SharedCheckpoint {
    store: Store,
    /// The marker. Whoever has the lock on it uses the directory. Held until all clones are gone.
    lock: LockedFile,
    /// Behind the lock, so that it is dropped after it.
    made: MadeDirectory,
    /// Whether nothing is added any more. Whoever adds an entry holds this.
    closed: RwLock<bool>,
    /// Hashes of the names of entries that this process has found or added.
    used: Mutex<HashSet<u128>>,
    unsynced: Mutex<Unsynced>,
}

/// The directory, and what goes with it. Some systems remove a directory only when no file is open in it.
struct MadeDirectory {
    path: PathBuf,
    /// Whether it was made for the checkpoint, and goes with it.
    made: bool,
    /// Whether it is still there without its marker.
    left: AtomicBool,
}

impl MadeDirectory {
    /// Removes it, or does so when it is dropped.
    fn remove(&self) {
        let left = self.made && fs::remove_dir(&self.path).is_err();
        self.left.store(left, Ordering::Relaxed);
    }
}

impl Drop for MadeDirectory {
    fn drop(&mut self) {
        if self.left.load(Ordering::Relaxed) {
            self.remove();
        }
    }
}

/// Files that a power failure may take.
struct Unsynced {
    since: Instant,
    files: Vec<PathBuf>,
}

impl Checkpoint {
    /// Uses the directory `path`, which is made if it is missing, readable by its owner only. Otherwise it must be empty, or be
    /// a checkpoint already. A file in it says that it is one.
    ///
    /// # Errors
    /// [`io::ErrorKind::ResourceBusy`] if another process uses it; [`io::ErrorKind::AlreadyExists`] if something else is in it, such
    /// as a [`DiskCache`](super::DiskCache): then nothing is changed. Otherwise as
    /// [`DiskCache::open`](super::DiskCache::open). The text has the path.
    pub fn open(path: &Path) -> io::Result<Self> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        for _ in 0..ATTEMPTS {
            let made = super::store::make_one(path);
            let store = Store::open(path, "checkpoint", u64::MAX)?;
            match lock(store.path(), made) {
                Ok(Some((lock, made))) => return Ok(Self::with(store, lock, made)),
                // Whoever had it has removed it meanwhile.
                Ok(None) => {}
                Err(e) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => {
                    if made {
                        let _ = fs::remove_dir(store.path());
                    }
                    return Err(named(e));
                }
            }
        }
        Err(named(busy()))
    }

    fn with(store: Store, lock: LockedFile, made: bool) -> Self {
        let made = MadeDirectory {
            path: store.path().to_owned(),
            made,
            left: AtomicBool::new(false),
        };
        Self {
            shared: Arc::new(SharedCheckpoint {
                store,
                lock,
                made,
                closed: RwLock::new(false),
                used: Mutex::default(),
                unsynced: Mutex::new(Unsynced {
                    since: Instant::now(),
                    files: Vec::new(),
                }),
            }),
        }
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
        match found {
            Some(_) => self.note_use(key),
            None => {
                super::count(&store.counters.damaged);
                store.remove(key);
            }
        }
        found
    }

    /// Adds an entry, with a note of less than 1 MiB. Returns whether it is there; if the disk is nearly full or cannot be
    /// written to, the log says so once, and nothing is added for half a minute.
    pub fn add(&self, key: &CacheKey, note: &[u8], body: &[u8]) -> bool {
        let SharedCheckpoint { store, closed, .. } = &*self.shared;
        let closed = closed.read().unwrap_or_else(PoisonError::into_inner);
        if *closed || store.is_refusing() {
            return false;
        }
        if let Some((free, whole)) = os::space(self.path()) {
            let reserved = u64::min(whole / RESERVED_PART, RESERVED);
            if free < reserved.saturating_add(body.len() as u64) {
                let what = "little space is left on its file system";
                store.refuse(&io::Error::new(io::ErrorKind::StorageFull, what));
                return false;
            }
        }
        let note = [note, &checksum(body)].concat();
        let added = store.write(key, &note, body);
        drop(closed);
        if added {
            self.note_use(key);
            self.sync_if_due(store.file_of(key));
        }
        added
    }

    fn note_use(&self, key: &CacheKey) {
        let used = &self.shared.used;
        let mut used = used.lock().unwrap_or_else(PoisonError::into_inner);
        used.insert(hash_of(OsStr::new(&key.0)));
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

    /// Removes all entries. The directory goes with the last clone, if it was made for the checkpoint and nothing else is in it.
    pub fn remove(&self) {
        self.shared.store.clear(|_| false);
    }

    /// Removes the entries that this process has neither found nor added.
    pub fn remove_unused(&self) {
        let used = &self.shared.used;
        let used = used.lock().unwrap_or_else(PoisonError::into_inner);
        self.shared
            .store
            .clear(|name| used.contains(&hash_of(name)));
    }

    /// Whether what is written to the file `path` takes space from the checkpoint, as far as the system says.
    #[must_use]
    pub fn shares_disk(&self, path: &Path) -> bool {
        let named = fs::canonicalize(path).ok();
        let path = named.as_deref().unwrap_or(path);
        // Files of some file systems are on another device than their directory says.
        let parent = path.parent().filter(|parent| *parent != Path::new(""));
        let disk = os::disk(parent.unwrap_or(Path::new(".")));
        disk.is_some() && disk == os::disk(self.path())
    }

    /// Makes room: removes all entries, and adds none from here on. Returns how many bytes the entries took.
    pub fn give_way(&self) -> u64 {
        let SharedCheckpoint { store, closed, .. } = &*self.shared;
        *closed.write().unwrap_or_else(PoisonError::into_inner) = true;
        let (_, bytes) = store.usage();
        self.remove();
        bytes
    }

    /// Ends the use of a checkpoint by a process that will not drop it. It goes if it has no entries. Returns their number.
    pub fn leave(&self) -> u64 {
        let shared = &*self.shared;
        // A disk may hang.
        let closed = (0..ATTEMPTS).any(|attempt| {
            if attempt > 0 {
                std::thread::sleep(Duration::from_millis(20));
            }
            let closed = shared.closed.try_write();
            closed.is_ok_and(|mut closed| {
                *closed = true;
                true
            })
        });
        let (entries, _) = shared.store.usage();
        if closed && entries == 0 {
            shared.remove_marker();
        }
        entries
    }
}

impl SharedCheckpoint {
    fn remove_marker(&self) {
        let _ = fs::remove_file(self.lock.path());
        self.made.remove();
    }
}

impl Drop for SharedCheckpoint {
    /// A checkpoint in which there is nothing leaves nothing behind.
    fn drop(&mut self) {
        if self.lock.is_at_its_path() && self.store.usage().0 == 0 {
            self.store.clear(|_| false);
            self.remove_marker();
        }
    }
}

/// Refuses a directory that is something else.
fn check(directory: &Path) -> io::Result<()> {
    let what = match Marker::of(directory)? {
        Found::Marker(Marker::Checkpoint { .. }) => return Ok(()),
        Found::Marker(Marker::Cache) => "it is a cache of images",
        Found::Nothing if !marker::is_in_use(directory)? => return Ok(()),
        Found::Nothing | Found::Foreign => "it is not empty, and no checkpoint",
    };
    Err(io::Error::new(io::ErrorKind::AlreadyExists, what))
}

/// Locks the marker of a directory, which gets one if it has none. Also says whether the directory was made for the
/// checkpoint. None if another process has removed the marker meanwhile.
fn lock(directory: &Path, made: bool) -> io::Result<Option<(LockedFile, bool)>> {
    check(directory)?;
    let path = directory.join(marker::NAME);
    let mut options = OpenOptions::new();
    options.append(true).create(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(&path)?;
    let lock = match LockedFile::open(&path) {
        Ok(lock) => lock,
        Err(e) if e.kind() == io::ErrorKind::ResourceBusy => return Err(busy()),
        Err(e) => return Err(e),
    };
    if !lock.is_at_its_path() {
        return Ok(None);
    }
    check(directory)?;
    let made = match Marker::of(directory)? {
        Found::Marker(found) => found == Marker::Checkpoint { made: true },
        _ => {
            lock.write_all_at(0, Marker::Checkpoint { made }.text())?;
            // A power failure must not leave entries without it.
            lock.sync()?;
            made
        }
    };
    Ok(Some((lock, made)))
}

fn busy() -> io::Error {
    io::Error::new(io::ErrorKind::ResourceBusy, "another program uses it")
}

fn hash_of(name: &OsStr) -> u128 {
    XxHash3_128::oneshot(name.as_encoded_bytes())
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
        let e = Checkpoint::open(&dir.path().join("a/b")).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::AlreadyExists);
        assert!(other.exists());
    }

    /// Everything in a directory, with what is in files.
    fn all(path: &Path) -> Vec<(PathBuf, Option<Vec<u8>>)> {
        let mut found = Vec::new();
        for entry in fs::read_dir(path).unwrap() {
            let path = entry.unwrap().path();
            found.push((path.clone(), fs::read(&path).ok()));
            if path.is_dir() {
                found.extend(all(&path));
            }
        }
        found.sort();
        found
    }

    #[test]
    fn directories_of_others_are_refused_and_stay() {
        let dir = tempfile::tempdir().unwrap();
        for name in ["lock", "notes", marker::NAME, "03"] {
            let path = dir.path().join(name);
            fs::create_dir(&path).unwrap();
            fs::write(path.join(name), b"mine").unwrap();
            let before = all(&path);
            let e = Checkpoint::open(&path).unwrap_err();
            assert_eq!(e.kind(), io::ErrorKind::AlreadyExists, "{name}");
            assert!(
                e.to_string()
                    .ends_with("it is not empty, and no checkpoint"),
                "{e}"
            );
            assert_eq!(all(&path), before);
        }
        // An empty directory is used, and stays.
        let path = dir.path().join("empty");
        fs::create_dir(&path).unwrap();
        for killed in [true, false] {
            let checkpoint = Checkpoint::open(&path).unwrap();
            assert!(checkpoint.add(&key(1), b"", b"one"));
            if !killed {
                checkpoint.remove();
            }
        }
        assert!(all(&path).is_empty());
        // One that was made goes, also after another process has made it.
        let path = dir.path().join("made");
        for killed in [true, false] {
            let checkpoint = Checkpoint::open(&path).unwrap();
            assert!(checkpoint.add(&key(1), b"", b"one"));
            if !killed {
                checkpoint.remove();
            }
        }
        assert!(!path.exists());
    }

    #[test]
    fn caches_and_checkpoints_refuse_each_other() {
        use crate::DiskCache;
        let dir = tempfile::tempdir().unwrap();
        let (cache, checkpoint) = (dir.path().join("cache"), dir.path().join("checkpoint"));
        let open = |path: &Path| DiskCache::open(path, 1 << 20);
        drop(open(&cache).unwrap());
        let before = all(&cache);
        let e = Checkpoint::open(&cache).unwrap_err();
        assert!(e.to_string().ends_with("it is a cache of images"), "{e}");
        assert_eq!(all(&cache), before);
        open(&cache).unwrap();
        // One of an earlier version has no marker.
        let filled = open(&cache).unwrap();
        assert!(filled.insert(&key(1), Vec::new(), b"one".to_vec()));
        filled.flush();
        drop(filled);
        fs::remove_file(cache.join(marker::NAME)).unwrap();
        assert!(Checkpoint::open(&cache).is_err());
        assert!(open(&cache).unwrap().contains(&key(1)));

        let kept = Checkpoint::open(&checkpoint).unwrap();
        assert!(kept.add(&key(1), b"", b"one"));
        let e = open(&checkpoint).unwrap_err();
        let what = "checkpoint: it is the checkpoint of a build";
        assert!(e.to_string().ends_with(what), "{e}");
        drop(kept);
        assert!(open(&checkpoint).is_err());
    }

    #[test]
    fn what_is_not_used_can_go() {
        let (_dir, checkpoint) = open();
        for number in 0..3 {
            assert!(checkpoint.add(&key(number), b"", &[number]));
        }
        let path = checkpoint.path().to_owned();
        drop(checkpoint);
        let next = Checkpoint::open(&path).unwrap();
        assert!(next.find(&key(1), 1).is_some());
        assert!(next.add(&key(7), b"", b"7"));
        next.remove_unused();
        let there = |number| next.find(&key(number), 1).is_some();
        assert_eq!([0, 1, 2, 7].map(there), [false, true, false, true]);
        assert_eq!(next.usage().0, 2);
    }

    #[test]
    fn it_gives_way() {
        let (dir, checkpoint) = open();
        assert!(checkpoint.shares_disk(&dir.path().join("image")));
        #[cfg(target_os = "linux")]
        assert!(!checkpoint.shares_disk(Path::new("/proc/image")));
        assert!(checkpoint.add(&key(1), b"", b"one"));
        assert!(checkpoint.give_way() > 3);
        assert!(!checkpoint.add(&key(1), b"", b"one"));
        assert_eq!(checkpoint.give_way(), 0);
        assert!(checkpoint.path().exists());
        let path = checkpoint.path().to_owned();
        drop(checkpoint);
        assert!(!path.exists());
    }

    // Wine 8 keeps the name of a removed file until it is closed.
    #[cfg(unix)]
    #[test]
    fn a_process_that_exits_leaves_only_results() {
        let (_dir, checkpoint) = open();
        assert_eq!(checkpoint.leave(), 0);
        assert!(!checkpoint.path().exists());
        assert!(!checkpoint.add(&key(1), b"", b"one"));
        // Another one may use the directory now.
        let next = Checkpoint::open(checkpoint.path()).unwrap();
        assert!(next.add(&key(1), b"", b"one"));
        drop(checkpoint);
        assert_eq!(next.leave(), 1);
        assert!(next.path().join(marker::NAME).exists());
    }

    // Wine 8 keeps the name of a removed file until it is closed.
    #[cfg(unix)]
    #[test]
    fn a_lock_of_a_marker_that_is_gone_does_not_count() {
        let (_dir, checkpoint) = open();
        let shared = &checkpoint.shared;
        assert!(shared.lock.is_at_its_path());
        fs::remove_file(shared.lock.path()).unwrap();
        assert!(!shared.lock.is_at_its_path());
        fs::write(shared.lock.path(), b"").unwrap();
        assert!(!shared.lock.is_at_its_path());
        // It belongs to another process now.
        let path = checkpoint.path().to_owned();
        drop(checkpoint);
        assert!(path.join(marker::NAME).exists());
    }

    #[test]
    fn many_that_come_and_go_never_share() {
        let (_dir, checkpoint) = open();
        let path = checkpoint.path().to_owned();
        drop(checkpoint);
        let inside = std::sync::atomic::AtomicU32::new(0);
        let opened = std::sync::atomic::AtomicU32::new(0);
        let order = std::sync::atomic::Ordering::SeqCst;
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| {
                    for _ in 0..40 {
                        if let Ok(checkpoint) = Checkpoint::open(&path) {
                            assert_eq!(inside.fetch_add(1, order), 0);
                            opened.fetch_add(1, order);
                            std::thread::yield_now();
                            inside.fetch_sub(1, order);
                            drop(checkpoint);
                        }
                    }
                });
            }
        });
        assert!(opened.load(order) > 0);
        assert!(!path.join(marker::NAME).exists());
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
