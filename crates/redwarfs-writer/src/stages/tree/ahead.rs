//! Listing directories before it is their turn.
//!
//! One thread puts the tree together, in one order. Most of the time goes into asking the system about
//! every entry. So other threads list the directories that come next, and the listings wait for their
//! turn. The
//! listing of a directory does not depend on the thread that makes it.

use std::collections::{BTreeMap, HashSet};
use std::io;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::options::{BuildOptions, ThreadGroup};
use crate::source::{DirItem, Source};

/// Number of next directories that are listed ahead, for each thread.
const AHEAD: usize = 32;
/// Entries of a directory that is listed ahead, at most; larger ones are listed in their turn.
const LARGEST: usize = 2048;
/// If this number of listed entries for each thread waits for its turn, only directories that are
/// needed earlier are listed. With the existing ones these are three times as many, or 2 MiB for each
/// thread: the memory that the thread later has for reading files.
const WAITING: usize = 2048;

/// The entries of a directory, or why they could not be had.
pub(super) type Listing = io::Result<Vec<DirItem>>;

/// Directories that are listed ahead. They are identified by their place in the list of all directories
/// to come, which is used from its end: small numbers are needed last.
pub(super) struct Ahead<'a> {
    source: &'a dyn Source,
    stop: &'a AtomicBool,
    threads: usize,
    state: Mutex<Listings>,
    /// There is something to list, or it is over.
    work: Condvar,
    /// Something has been listed, or will not be.
    listed: Condvar,
}

/// Listings that wait for their turn, and directories to list.
#[derive(Default)]
struct Listings {
    /// Paths of the directories to list.
    wanted: BTreeMap<usize, Vec<u8>>,
    running: HashSet<usize>,
    done: BTreeMap<usize, Listing>,
    /// Entries in `done`.
    waiting: usize,
    /// Threads without anything to list.
    idle: usize,
    /// The directory for which the caller waits.
    awaited: Option<usize>,
    over: bool,
}

impl Listings {
    fn remove(&mut self, place: usize) -> Option<Listing> {
        let listing = self.done.remove(&place)?;
        self.waiting -= length(&listing);
        Some(listing)
    }
}

fn length(listing: &Listing) -> usize {
    listing
        .as_ref()
        .map_or(0, |items| items.iter().map(DirItem::weight).sum())
}

impl<'a> Ahead<'a> {
    /// Nothing if directories are better listed one after the other.
    pub(super) fn new(
        source: &'a dyn Source,
        options: &BuildOptions,
        stop: &'a AtomicBool,
    ) -> Option<Self> {
        let threads = options.scanners();
        (threads > 1 && source.lists_in_parallel()).then(|| Self {
            source,
            stop,
            threads,
            state: Mutex::default(),
            work: Condvar::new(),
            listed: Condvar::new(),
        })
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    fn state(&self) -> MutexGuard<'_, Listings> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Number of next directories to list ahead.
    pub(super) fn distance(&self) -> usize {
        AHEAD * self.threads
    }

    /// Asks for directories that will be needed soon.
    pub(super) fn want(&self, directories: Vec<(usize, Vec<u8>)>) {
        if !directories.is_empty() {
            let mut state = self.state();
            state.wanted.extend(directories);
            // Waking costs a system call, needed or not.
            if state.idle > 0 {
                self.work.notify_all();
            }
        }
    }

    /// Whether there would be too many with this number of entries less.
    fn is_full(&self, state: &Listings, less: usize) -> bool {
        state.waiting >= WAITING * self.threads + less
    }

    /// The directory to list next, if any.
    fn next(&self, state: &mut Listings) -> Option<(usize, Vec<u8>)> {
        let (&place, _) = state.wanted.last_key_value()?;
        let last = state.done.keys().next();
        if self.is_full(state, 0) && last.is_none_or(|&last| last > place) {
            return None;
        }
        state.wanted.pop_last()
    }

    /// The listing of a directory whose turn it is; `None` if it was not listed.
    pub(super) fn take(&self, place: usize) -> Option<Listing> {
        let mut state = self.state();
        if state.wanted.remove(&place).is_some() {
            return None;
        }
        while state.running.contains(&place) && !state.over {
            state.awaited = Some(place);
            state = (self.listed.wait(state)).unwrap_or_else(PoisonError::into_inner);
        }
        state.awaited = None;
        let was_full = self.is_full(&state, 0);
        let listing = state.remove(place);
        if was_full && state.idle > 0 {
            self.work.notify_all();
        }
        listing
    }

    /// Ends all threads when it is dropped.
    pub(super) fn ending(&self) -> impl Drop + use<'_, 'a> {
        Ending(self)
    }

    /// What a thread does.
    pub(super) fn run(&self, options: &BuildOptions) {
        options.begin(ThreadGroup::Scanner);
        // A listing that panics is waited for no longer.
        let _ending = self.ending();
        let mut state = self.state();
        while !state.over {
            let Some((place, path)) = self.next(&mut state) else {
                state.idle += 1;
                state = (self.work.wait(state)).unwrap_or_else(PoisonError::into_inner);
                state.idle -= 1;
                continue;
            };
            state.running.insert(place);
            drop(state);
            let few = |entries: usize| entries < LARGEST && !self.stop.load(Ordering::Relaxed);
            let listing = self.source.read_dir_beside(&path, &few);
            state = self.state();
            state.running.remove(&place);
            let too_large =
                matches!(&listing, Err(error) if error.kind() == io::ErrorKind::QuotaExceeded);
            if !too_large {
                state.waiting += length(&listing);
                state.done.insert(place, listing);
                // Directories that are needed last are listed again later.
                while self.is_full(&state, 1)
                    && let Some(&last) = state.done.keys().next()
                    && last != place
                {
                    state.remove(last);
                }
            }
            if state.awaited == Some(place) {
                self.listed.notify_all();
            }
        }
    }
}

struct Ending<'s, 'a>(&'s Ahead<'a>);

impl Drop for Ending<'_, '_> {
    fn drop(&mut self) {
        self.0.state().over = true;
        self.0.work.notify_all();
        self.0.listed.notify_all();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::source::FileType;
    use crate::source::memory::{MemoryNode, MemoryTree};

    #[test]
    fn what_is_needed_last_is_given_up_first() {
        let mut tree = MemoryTree::new();
        for dir in 0..4 {
            tree.insert(format!("{dir}"), MemoryNode::new(FileType::Directory));
            for file in 0..WAITING {
                tree.insert(format!("{dir}/{file}"), MemoryNode::file(""));
            }
        }
        let mut options = BuildOptions::level(1);
        options.workers = 2;
        let stop = AtomicBool::new(false);
        let ahead = Ahead::new(&tree, &options, &stop).unwrap();
        assert_eq!(ahead.distance(), 2 * AHEAD);
        let path = |place: usize, dir: usize| (place, format!("{dir}").into_bytes());
        ahead.want(vec![path(0, 0), path(1, 1), path(2, 2), path(3, 3)]);
        let wait_for = |places: [usize; 2]| {
            while !ahead.state().done.keys().eq(&places) {
                std::thread::yield_now();
            }
        };
        std::thread::scope(|scope| {
            let _ending = ahead.ending();
            scope.spawn(|| ahead.run(&options));
            // The next one is the last one that was wanted. Then there are enough.
            wait_for([2, 3]);
            assert_eq!(ahead.state().waiting, 2 * WAITING);
            // But for one that is needed before them.
            ahead.want(vec![path(4, 3)]);
            wait_for([3, 4]);
            assert!(ahead.take(2).is_none());
            assert_eq!(length(&ahead.take(4).unwrap()), WAITING);
            wait_for([1, 3]);
        });
        assert_eq!(ahead.state().waiting, 2 * WAITING);
        // What has not begun is left to whoever asks.
        assert!(ahead.take(0).is_none());
        assert!(ahead.state().wanted.is_empty());
        assert_eq!(length(&ahead.take(1).unwrap()), WAITING);
    }
}
