//! The thread that writes entries.

use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::CacheKey;
use super::store::Store;
use crate::process::Process;

/// Bytes that wait to be written. Beyond them, entries are left out.
pub(super) const MOST_WAITING: u64 = 64 << 20;

/// Longest time that somebody waits for a disk.
const PATIENCE: Duration = Duration::from_secs(10);

struct Job {
    key: CacheKey,
    note: Vec<u8>,
    body: Vec<u8>,
}

impl Job {
    fn bytes(&self) -> u64 {
        (self.note.len() + self.body.len()) as u64 + 1
    }
}

/// Bytes that wait to be written.
#[derive(Debug, Default)]
struct Waiting {
    bytes: Mutex<u64>,
    changed: Condvar,
}

/// The thread of one process. It starts with the first entry, and ends with the cache.
pub(super) struct Writer {
    store: Arc<Store>,
    thread: Mutex<Option<Running>>,
    /// Somebody has waited in vain.
    is_slow: AtomicBool,
}

struct Running {
    /// A forked process has none of the threads of its parent.
    process: Process,
    jobs: Sender<Job>,
    waiting: Arc<Waiting>,
}

impl Writer {
    pub(super) fn new(store: Arc<Store>) -> Self {
        Self {
            store,
            thread: Mutex::default(),
            is_slow: AtomicBool::new(false),
        }
    }

    /// Hands an entry to the thread. False if it is left out.
    pub(super) fn submit(&self, key: &CacheKey, note: Vec<u8>, body: Vec<u8>) -> bool {
        let job = Job {
            key: key.clone(),
            note,
            body,
        };
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        let running = match thread.take() {
            Some(running) if running.process.is_current() => Some(running),
            _ => start(&self.store),
        };
        let Some(running) = running else { return false };
        let running = thread.insert(running);
        let bytes = job.bytes();
        {
            let mut waiting = running
                .waiting
                .bytes
                .lock()
                .unwrap_or_else(PoisonError::into_inner);
            if *waiting > 0 && *waiting + bytes > MOST_WAITING {
                return false;
            }
            *waiting += bytes;
        }
        running.jobs.send(job).is_ok()
    }

    /// Waits until at most `bytes` wait to be written, or the patience is over.
    pub(super) fn settle(&self, bytes: u64) {
        let waiting = {
            let thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
            let running = thread.as_ref().filter(|t| t.process.is_current());
            running.map(|running| Arc::clone(&running.waiting))
        };
        let Some(waiting) = waiting else { return };
        let count = waiting.bytes.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = waiting
            .changed
            .wait_timeout_while(count, PATIENCE, |count| *count > bytes);
        let waited = waited.unwrap_or_else(PoisonError::into_inner);
        if waited.1.timed_out() {
            self.is_slow.store(true, Ordering::Relaxed);
        }
    }
}

fn start(store: &Arc<Store>) -> Option<Running> {
    let (jobs, receiver) = channel();
    let waiting = Arc::new(Waiting::default());
    let (store, shared) = (Arc::clone(store), Arc::clone(&waiting));
    let thread = std::thread::Builder::new().name("redwarfs-cache".into());
    let started = thread.spawn(move || run(&store, &receiver, &shared));
    started.ok().map(|_detached| Running {
        process: Process::current(),
        jobs,
        waiting,
    })
}

fn run(store: &Store, jobs: &Receiver<Job>, waiting: &Waiting) {
    for job in jobs {
        store.write(&job.key, &job.note, &job.body);
        *waiting.bytes.lock().unwrap_or_else(PoisonError::into_inner) -= job.bytes();
        waiting.changed.notify_all();
    }
}

impl Drop for Writer {
    /// Entries that wait are written, if the disk is not too slow.
    fn drop(&mut self) {
        if !self.is_slow.load(Ordering::Relaxed) {
            self.settle(0);
        }
    }
}

impl fmt::Debug for Writer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Writer")
    }
}
