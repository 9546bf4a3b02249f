//! The files of a cache: finding, writing and dropping entries.

use std::ffi::OsStr;
use std::fs::{self, DirEntry, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant, SystemTime};

use super::entry::CacheEntry;
use super::{CacheKey, Counters, count};

/// Names of files that are being written begin like this.
const TEMPORARY: &str = ".new-";

/// A file that is being written for longer was left by a process that is gone.
const ABANDONED_AFTER: Duration = Duration::from_secs(3600);

/// A use within this time after another one need not be noted.
const SAME_USE: Duration = Duration::from_secs(60);

/// How long nothing is stored after the disk has refused.
const PAUSE: Duration = Duration::from_secs(30);

#[derive(Debug)]
pub(super) struct Store {
    path: PathBuf,
    /// What messages call it.
    what: &'static str,
    limit: u64,
    pub(super) counters: Counters,
    used: Mutex<Used>,
    refused: Mutex<Option<Instant>>,
    said: AtomicBool,
    /// Makes names of files that are being written different from each other.
    number: AtomicU64,
}

/// What entries take, as far as this process knows.
#[derive(Debug, Default)]
struct Used {
    /// None before the directory was looked at.
    bytes: Option<u64>,
    /// Bytes that this process has written since it looked. Other processes write, too.
    written: u64,
}

/// An entry in the directory.
struct Found {
    path: PathBuf,
    bytes: u64,
    used: SystemTime,
}

impl Store {
    pub(super) fn open(path: &Path, what: &'static str, limit: u64) -> io::Result<Self> {
        let named = |e: io::Error| io::Error::new(e.kind(), format!("{}: {e}", path.display()));
        match fs::metadata(path) {
            Ok(found) if found.is_dir() => only_ours(&found).map_err(named)?,
            Ok(_) => return Err(named(io::ErrorKind::NotADirectory.into())),
            Err(_) => make_directory(path).map_err(named)?,
        }
        Ok(Self {
            // The driver changes its directory.
            path: fs::canonicalize(path).map_err(named)?,
            what,
            limit,
            counters: Counters::default(),
            used: Mutex::default(),
            refused: Mutex::default(),
            said: AtomicBool::new(false),
            number: AtomicU64::new(0),
        })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The file of an entry. Directories of many thousand files are slow on some file systems, so there are 256.
    pub(super) fn file_of(&self, key: &CacheKey) -> PathBuf {
        let name = &key.0;
        let last = name.get(name.len().saturating_sub(2)..).unwrap_or(name);
        self.path.join(last).join(name)
    }

    pub(super) fn contains(&self, key: &CacheKey) -> bool {
        fs::metadata(self.file_of(key)).is_ok()
    }

    pub(super) fn find(&self, key: &CacheKey) -> Option<CacheEntry> {
        let path = self.file_of(key);
        let file = File::open(&path).ok()?;
        note_use(&file);
        let entry = CacheEntry::parse(file, key);
        if entry.is_none() {
            count(&self.counters.damaged);
            self.remove(key);
        }
        entry
    }

    pub(super) fn remove(&self, key: &CacheKey) {
        let path = self.file_of(key);
        let bytes = fs::metadata(&path).map_or(0, |found| found.len());
        if fs::remove_file(&path).is_ok() {
            let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
            used.bytes = used.bytes.map(|all| all.saturating_sub(bytes));
        }
    }

    /// Writes an entry, unless the disk has just refused one. Returns whether it is there.
    pub(super) fn write(&self, key: &CacheKey, note: &[u8], body: &[u8]) -> bool {
        let Some(head) = CacheEntry::head(key, note, body.len() as u64) else {
            count(&self.counters.left_out);
            return false;
        };
        let bytes = (head.len() + body.len()) as u64;
        // One that takes a large part would push out all others.
        if self.is_refusing() || bytes > self.limit / 2 {
            count(&self.counters.left_out);
            return false;
        }
        self.make_room(bytes);
        match self.write_file(key, &head, body) {
            Ok(()) => {
                count(&self.counters.stored);
                let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
                used.bytes = used.bytes.map(|all| all.saturating_add(bytes));
                used.written = used.written.saturating_add(bytes);
                true
            }
            Err(e) => {
                self.refuse(&e);
                false
            }
        }
    }

    /// An entry was left out for a reason that others share. The log says so once, and nothing is stored for a while.
    pub(super) fn refuse(&self, error: &io::Error) {
        count(&self.counters.left_out);
        *self.refused.lock().unwrap_or_else(PoisonError::into_inner) = Some(Instant::now());
        if !self.said.swap(true, Ordering::Relaxed) {
            tracing::warn!(
                "cannot write to the {}: {}: {error}: continuing without it",
                self.what,
                self.path.display()
            );
        }
    }

    /// Number of entries, and their bytes. No other process may use the directory.
    pub(super) fn usage(&self) -> (u64, u64) {
        Self::sum(&self.entries(None))
    }

    /// Number of entries, and their bytes, while other processes may use the directory.
    pub(super) fn shared_usage(&self) -> (u64, u64) {
        Self::sum(&self.entries(Some(ABANDONED_AFTER)))
    }

    fn sum(found: &[Found]) -> (u64, u64) {
        (found.len() as u64, found.iter().map(|e| e.bytes).sum())
    }

    pub(super) fn limit(&self) -> u64 {
        self.limit
    }

    /// Removes all entries but those with names to keep, and the directories that are empty then. No other process may use the
    /// directory.
    pub(super) fn clear(&self, keep: impl Fn(&OsStr) -> bool) {
        for entry in self.entries(None) {
            if !entry.path.file_name().is_some_and(&keep) {
                let _ = fs::remove_file(&entry.path);
            }
        }
        for byte in 0..=u8::MAX {
            // What is in use for something else is not empty.
            let _ = fs::remove_dir(self.path.join(format!("{byte:02x}")));
        }
    }

    /// Lets no entry be written until this is dropped.
    #[cfg(test)]
    pub(super) fn hold(&self) -> std::sync::MutexGuard<'_, Option<Instant>> {
        self.refused.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn is_refusing(&self) -> bool {
        let refused = *self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.is_some_and(|since| since.elapsed() < PAUSE)
    }

    fn write_file(&self, key: &CacheKey, head: &[u8], body: &[u8]) -> io::Result<()> {
        let path = self.file_of(key);
        let parent = path.parent().unwrap_or(&self.path);
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let temporary = parent.join(format!("{TEMPORARY}{}-{number}", std::process::id()));
        let create = || new_file().open(&temporary);
        let mut file = match create() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                make_directory(parent)?;
                create()?
            }
            // Of an earlier process with this id.
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                fs::remove_file(&temporary)?;
                create()?
            }
            other => other?,
        };
        let written = file.write_all(head).and_then(|()| file.write_all(body));
        drop(file);
        let done = written.and_then(|()| fs::rename(&temporary, &path));
        if done.is_err() {
            let _ = fs::remove_file(&temporary);
        }
        done
    }

    /// Drops the entries that were not used for the longest time, if there is no room for `bytes` more.
    fn make_room(&self, bytes: u64) {
        let mut used = self.used.lock().unwrap_or_else(PoisonError::into_inner);
        let known = used.bytes.filter(|_| used.written < self.limit / 16);
        if known.is_some_and(|all| all.saturating_add(bytes) <= self.limit) {
            return;
        }
        let mut found = self.entries(Some(ABANDONED_AFTER));
        let mut all: u64 = found.iter().map(|entry| entry.bytes).sum();
        if all.saturating_add(bytes) > self.limit {
            // Some more, so that this is not done for each entry.
            let goal = (self.limit - self.limit / 10).saturating_sub(bytes);
            found.sort_by_key(|entry| entry.used);
            for entry in found {
                if all <= goal {
                    break;
                }
                // Another process may have been faster.
                let _ = fs::remove_file(&entry.path);
                all -= entry.bytes;
            }
        }
        *used = Used {
            bytes: Some(all),
            written: 0,
        };
    }

    /// All entries. Files that processes have left behind are removed: those of an age, or all of them.
    fn entries(&self, abandoned_after: Option<Duration>) -> Vec<Found> {
        let now = SystemTime::now();
        let list = |path: &Path| -> Vec<DirEntry> {
            fs::read_dir(path).map_or_else(|_| Vec::new(), |all| all.flatten().collect())
        };
        let mut found = Vec::new();
        for directory in list(&self.path) {
            if directory.file_name().len() != 2 {
                continue;
            }
            for file in list(&directory.path()) {
                // Nothing else is counted or removed: the directory may be another than the user thinks.
                let name = file.file_name();
                let temporary = name.to_string_lossy().starts_with(TEMPORARY);
                if !temporary && !CacheKey::is_name(&name, &directory.file_name()) {
                    continue;
                }
                let Ok(metadata) = file.metadata() else {
                    continue;
                };
                let used = metadata.modified().unwrap_or(now);
                if temporary {
                    let age = now.duration_since(used);
                    if abandoned_after.is_none_or(|after| age.is_ok_and(|age| age > after)) {
                        let _ = fs::remove_file(file.path());
                    }
                } else if metadata.is_file() {
                    found.push(Found {
                        path: file.path(),
                        bytes: metadata.len(),
                        used,
                    });
                }
            }
        }
        found
    }
}

/// Notes that an entry was used, in the time of its file.
fn note_use(file: &File) {
    let now = SystemTime::now();
    let before = file.metadata().and_then(|metadata| metadata.modified());
    let recently =
        before.is_ok_and(|used| now.duration_since(used).is_ok_and(|age| age < SAME_USE));
    if !recently {
        // On a disk that cannot be written to, nothing is dropped either.
        let _ = file.set_modified(now);
    }
}

/// Whoever may write to the directory decides what programs read from images.
#[cfg(unix)]
fn only_ours(found: &fs::Metadata) -> io::Result<()> {
    use std::os::unix::fs::MetadataExt as _;
    let ours = [0, rustix::process::geteuid().as_raw()].contains(&found.uid());
    match ours && found.mode() & 0o022 == 0 {
        true => Ok(()),
        false => Err(io::Error::new(
            io::ErrorKind::PermissionDenied,
            "other users can write to this directory",
        )),
    }
}

#[cfg(not(unix))]
fn only_ours(_found: &fs::Metadata) -> io::Result<()> {
    Ok(())
}

fn make_directory(path: &Path) -> io::Result<()> {
    make(path, true)
}

fn make(path: &Path, recursive: bool) -> io::Result<()> {
    let mut builder = fs::DirBuilder::new();
    builder.recursive(recursive);
    #[cfg(unix)]
    std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
    builder.create(path)
}

/// Makes a directory, and those above it. Returns whether it was missing, and is there now.
pub(super) fn make_one(path: &Path) -> bool {
    if let Some(parent) = path.parent().filter(|parent| *parent != Path::new("")) {
        let _ = make_directory(parent);
    }
    make(path, false).is_ok()
}

pub(super) fn new_file() -> OpenOptions {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options
}
