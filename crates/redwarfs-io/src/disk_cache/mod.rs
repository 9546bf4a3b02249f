//! A cache on disk for bytes that are slow to fetch: blocks of images on servers, and what opening such an image needs.
//!
//! An entry is a file below the directory of the cache. It gets its name when it is complete, so several processes
//! can share a directory, and a process that is killed leaves no partial entry. Nothing is synced: what a power
//! failure damages is found when the entry is used, and fetched anew.
//!
//! A cache is never in the way. Entries are written by a thread of their own, and left out while 64 MiB wait for it.
//! If the disk is full or cannot be written to, the log says so once, and nothing is stored for half a minute.
//!
//! ```
//! use redwarfs_io::{CacheKey, DiskCache};
//!
//! # let dir = tempfile::tempdir()?;
//! let cache = DiskCache::open(dir.path(), 1 << 30)?;
//! let key = CacheKey::of("block", &[1, 2, 3]);
//! cache.insert(&key, b"a note".to_vec(), b"the bytes".to_vec());
//! cache.flush();
//! let entry = cache.find(&key).unwrap();
//! let mut body = vec![0; entry.len() as usize];
//! entry.read_exact_at(0, &mut body)?;
//! assert_eq!((entry.note(), &body[..]), (&b"a note"[..], &b"the bytes"[..]));
//! # Ok::<(), std::io::Error>(())
//! ```

mod checkpoint;
mod entry;
mod marker;
mod store;
#[cfg(test)]
mod tests;
mod writer;

use std::ffi::OsStr;
use std::fmt;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

pub use checkpoint::Checkpoint;
pub use entry::CacheEntry;
use marker::{Found, Marker};
use store::Store;
use writer::Writer;

/// The name of an entry: the same bytes have the same key, in every process.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct CacheKey(String);

impl CacheKey {
    /// The key of a kind of bytes (letters and digits) and what identifies them among that kind: at most 64 bytes, for
    /// example a digest.
    #[must_use]
    pub fn of(kind: &str, identity: &[u8]) -> Self {
        debug_assert!(
            kind.bytes().all(|byte| byte.is_ascii_alphanumeric()) && identity.len() <= 64
        );
        let digits: String = identity.iter().map(|byte| format!("{byte:02x}")).collect();
        Self(format!("{kind}-{digits}"))
    }

    /// Whether a file in a directory can be an entry, by its name.
    fn is_name(name: &OsStr, directory: &OsStr) -> bool {
        let (Some(name), Some(directory)) = (name.to_str(), directory.to_str()) else {
            return false;
        };
        name.split_once('-').is_some_and(|(kind, digits)| {
            kind.bytes().all(|byte| byte.is_ascii_alphanumeric())
                && digits.bytes().all(|byte| byte.is_ascii_hexdigit())
                && digits.len() >= 2
                && digits.ends_with(directory)
        })
    }
}

/// What a cache has done in this process.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct DiskCacheStats {
    /// Entries that were found.
    pub hits: u64,
    /// Entries that were looked for and not there.
    pub misses: u64,
    /// Entries that were written.
    pub stored: u64,
    /// Entries that were not written, because too many waited or the disk refused.
    pub left_out: u64,
    /// Entries that were dropped because they were damaged.
    pub damaged: u64,
}

#[derive(Debug, Default)]
struct Counters {
    hits: AtomicU64,
    misses: AtomicU64,
    stored: AtomicU64,
    left_out: AtomicU64,
    damaged: AtomicU64,
}

fn count(counter: &AtomicU64) {
    counter.fetch_add(1, Ordering::Relaxed);
}

/// A directory of entries, with a limit for their size. Clones are the same cache.
#[derive(Clone)]
pub struct DiskCache {
    shared: Arc<SharedDiskCache>,
    offline: bool,
}

#[derive(Debug)]
struct SharedDiskCache {
    store: Arc<Store>,
    writer: Writer,
}

impl DiskCache {
    /// Bytes that entries may take, unless the user says otherwise (10 GiB).
    pub const DEFAULT_LIMIT: u64 = 10 << 30;

    /// Uses the directory `path`, which is made if it is missing, readable by its owner only. Entries take at most about
    /// `limit` bytes: those that were not used for the longest time go first.
    ///
    /// # Errors
    /// The directory is missing and cannot be made, or is no directory, or users other than this one and root can write to
    /// it. [`io::ErrorKind::AlreadyExists`] if it is a [`Checkpoint`]. The text has the path.
    pub fn open(path: &Path, limit: u64) -> io::Result<Self> {
        let store = Arc::new(Store::open(path, "cache", limit)?);
        match Marker::of(store.path()) {
            Ok(Found::Marker(Marker::Checkpoint { .. })) => {
                return Err(io::Error::new(
                    io::ErrorKind::AlreadyExists,
                    format!("{}: it is the checkpoint of a build", path.display()),
                ));
            }
            Ok(Found::Nothing) => {
                // A cache that cannot be written to is a cache as well.
                let _ = marker::add(store.path(), Marker::Cache);
            }
            _ => {}
        }
        Ok(Self {
            shared: Arc::new(SharedDiskCache {
                writer: Writer::new(Arc::clone(&store)),
                store,
            }),
            offline: false,
        })
    }

    /// The same cache. With `offline`, what it lacks is an error: servers are not asked.
    #[must_use]
    pub fn offline(self, offline: bool) -> Self {
        Self { offline, ..self }
    }

    /// Whether servers are not to be asked.
    #[must_use]
    pub fn is_offline(&self) -> bool {
        self.offline
    }

    /// The directory.
    #[must_use]
    pub fn path(&self) -> &Path {
        self.shared.store.path()
    }

    /// Finds an entry, and marks it as used. Its note is intact. Its body is not verified: who finds out that it is
    /// damaged calls [`DiskCache::remove_damaged`].
    #[must_use]
    pub fn find(&self, key: &CacheKey) -> Option<CacheEntry> {
        let store = &self.shared.store;
        let found = store.find(key);
        count(match found {
            Some(_) => &store.counters.hits,
            None => &store.counters.misses,
        });
        found
    }

    /// Whether there is an entry, or one that waits to be written would be written again.
    #[must_use]
    pub fn contains(&self, key: &CacheKey) -> bool {
        self.shared.store.contains(key)
    }

    /// Adds an entry in the background: a note of at most 1 MiB, which is kept with its own checksum, and the body.
    /// Returns false if it is left out.
    pub fn insert(&self, key: &CacheKey, note: Vec<u8>, body: Vec<u8>) -> bool {
        let queued = self.shared.writer.submit(key, note, body);
        if !queued {
            count(&self.shared.store.counters.left_out);
        }
        queued
    }

    /// Removes an entry whose body is damaged.
    pub fn remove_damaged(&self, key: &CacheKey) {
        count(&self.shared.store.counters.damaged);
        self.shared.store.remove(key);
    }

    /// Waits until all entries are written that were inserted before, at most 10 seconds.
    pub fn flush(&self) {
        self.shared.writer.settle(0);
    }

    /// Waits until there is room for more entries, at most 10 seconds: for callers that fill the cache, and would rather
    /// wait than leave entries out.
    pub fn wait_for_room(&self) {
        self.shared.writer.settle(writer::MOST_WAITING / 2);
    }

    /// Number of entries in the directory, and the bytes that they take. Looks at each of them.
    #[must_use]
    pub fn usage(&self) -> (u64, u64) {
        self.shared.store.shared_usage()
    }

    /// Bytes that entries may take.
    #[must_use]
    pub fn limit(&self) -> u64 {
        self.shared.store.limit()
    }

    /// What was done so far.
    #[must_use]
    pub fn stats(&self) -> DiskCacheStats {
        let c = &self.shared.store.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        DiskCacheStats {
            hits: get(&c.hits),
            misses: get(&c.misses),
            stored: get(&c.stored),
            left_out: get(&c.left_out),
            damaged: get(&c.damaged),
        }
    }
}

impl PartialEq for DiskCache {
    /// Whether both are the same cache.
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.shared, &other.shared) && self.offline == other.offline
    }
}

impl fmt::Debug for DiskCache {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("DiskCache")
            .field("path", &self.path())
            .field("offline", &self.offline)
            .finish_non_exhaustive()
    }
}
