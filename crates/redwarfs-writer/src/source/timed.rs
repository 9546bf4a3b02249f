//! A source that gives up on files that do not answer in time.

use std::cell::RefCell;
use std::collections::HashSet;
use std::fmt;
use std::io;
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, SyncSender, channel, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use super::{Content, DataExtent, DirItem, FileIdentity, Meta, Source, Stamp};
use crate::base::BaseContent;

/// A source that wraps another one, and whose calls all end in time.
///
/// Reading a bad sector can take minutes. Reading from a lost network drive can take forever, and no
/// signal ends such a syscall. So separate threads make the calls. If a call takes too long, its thread
/// is abandoned with the file for which it waits, and the file counts as unreadable.
///
/// All calls for one file together may take the time-out, plus a second for every MiB that was read.
/// Listing a directory may take the time-out for every entry, and continues without an entry that takes
/// longer.
///
/// Each call takes a thread switch, and a copy of the bytes that are read. Memory: up to 1 MiB for
/// every thread that reads at the same time.
pub struct TimedSource {
    helpers: Arc<Helpers>,
    inner: Arc<dyn Source>,
    limit: Duration,
    /// Files that were given up: they are not tried a second time.
    lost: Arc<Mutex<HashSet<Vec<u8>>>>,
}

impl fmt::Debug for TimedSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TimedSource")
            .field("inner", &self.inner)
            .field("limit", &self.limit)
            .finish_non_exhaustive()
    }
}

impl TimedSource {
    /// Limits the time of `inner` to `limit` per file.
    pub fn new(inner: Arc<dyn Source>, limit: Duration) -> Self {
        Self {
            helpers: Arc::new(Helpers::default()),
            inner,
            limit,
            lost: Arc::default(),
        }
    }

    fn give_up<T>(&self, path: &[u8]) -> io::Result<T> {
        let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.insert(path.to_vec());
        Err(late(self.limit))
    }

    fn is_lost(&self, path: &[u8]) -> bool {
        let lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
        lost.contains(path)
    }
}

pub(super) fn late(limit: Duration) -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!("given up after {limit:?} without an answer"),
    )
}

impl Source for TimedSource {
    fn root(&self) -> io::Result<Meta> {
        let inner = Arc::clone(&self.inner);
        match self.helpers.run(self.limit, move || inner.root()) {
            Some(meta) => meta,
            None => self.give_up(b""),
        }
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
        let start = || {
            let (inner, owned) = (Arc::clone(&self.inner), path.to_vec());
            self.helpers.start(move || inner.read_dir(&owned))
        };
        let mut answer = start();
        loop {
            let before = self.inner.activity();
            match answer.recv_timeout(self.limit) {
                Ok(items) => return items,
                Err(RecvTimeoutError::Timeout) if self.inner.activity() != before => {}
                Err(RecvTimeoutError::Timeout) => match self.inner.asking_about() {
                    // The other entries are listed without it.
                    Some(entry) => {
                        self.inner.leave_alone(&entry);
                        answer = start();
                    }
                    None => return self.give_up(path),
                },
                Err(RecvTimeoutError::Disconnected) => return self.give_up(path),
            }
        }
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Content>> {
        if self.is_lost(path) {
            return Err(late(self.limit));
        }
        let (inner, owned) = (Arc::clone(&self.inner), path.to_vec());
        let start = Instant::now();
        let content = match self.helpers.run(self.limit, move || inner.open(&owned)) {
            Some(content) => content?,
            None => return self.give_up(path),
        };
        Ok(Box::new(TimedContent {
            helpers: Arc::clone(&self.helpers),
            limit: self.limit,
            path: path.to_vec(),
            lost: Arc::clone(&self.lost),
            state: RefCell::new(OpenContent {
                content: Some(content),
                buffer: Vec::new(),
                left: self.limit.saturating_sub(start.elapsed()),
            }),
        }))
    }

    fn memory(&self) -> u64 {
        self.inner.memory()
    }

    fn failure(&self) -> Option<io::Error> {
        self.inner.failure()
    }

    fn no_more_reads(&self) {
        self.inner.no_more_reads();
    }

    fn most_entries(&self, most: u64) {
        self.inner.most_entries(most);
    }

    fn stored(&self, path: &[u8]) -> Option<BaseContent> {
        self.inner.stored(path)
    }

    fn list_position(&self, path: &[u8]) -> Option<u64> {
        self.inner.list_position(path)
    }

    fn display_path(&self, path: &[u8]) -> String {
        self.inner.display_path(path)
    }

    fn activity(&self) -> u64 {
        self.inner.activity()
    }

    fn asking_about(&self) -> Option<Vec<u8>> {
        self.inner.asking_about()
    }

    fn leave_alone(&self, path: &[u8]) {
        self.inner.leave_alone(path);
    }
}

struct TimedContent {
    helpers: Arc<Helpers>,
    limit: Duration,
    path: Vec<u8>,
    lost: Arc<Mutex<HashSet<Vec<u8>>>>,
    state: RefCell<OpenContent>,
}

/// A content whose calls are timed, and its last request.
struct OpenContent {
    /// Lost with its thread if a call does not end.
    content: Option<Box<dyn Content>>,
    /// The last bytes that were read, for the next read.
    buffer: Vec<u8>,
    /// Time left for further calls.
    left: Duration,
}

impl TimedContent {
    fn call<T: Send + 'static>(
        &self,
        work: impl FnOnce(&dyn Content) -> io::Result<T> + Send + 'static,
    ) -> io::Result<T> {
        let mut state = self.state.borrow_mut();
        let Some(content) = state.content.take() else {
            return Err(late(self.limit));
        };
        let start = Instant::now();
        let done = self.helpers.run(state.left, move || {
            let result = work(&*content);
            (content, result)
        });
        state.left = state.left.saturating_sub(start.elapsed());
        match done {
            Some((content, result)) => {
                state.content = Some(content);
                result
            }
            None => {
                let mut lost = self.lost.lock().unwrap_or_else(PoisonError::into_inner);
                lost.insert(self.path.clone());
                Err(late(self.limit))
            }
        }
    }
}

impl Content for TimedContent {
    fn stamp(&self) -> io::Result<Stamp> {
        self.call(|content| content.stamp())
    }

    fn identity(&self) -> io::Result<Option<FileIdentity>> {
        self.call(|content| content.identity())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut owned = std::mem::take(&mut self.state.borrow_mut().buffer);
        owned.resize(buf.len(), 0);
        let (owned, got) = self.call(move |content| {
            let got = content.read_at(offset, &mut owned)?;
            Ok((owned, got))
        })?;
        let got = got.min(buf.len());
        if let (Some(to), Some(from)) = (buf.get_mut(..got), owned.get(..got)) {
            to.copy_from_slice(from);
        }
        let mut state = self.state.borrow_mut();
        state.buffer = owned;
        state.left = state
            .left
            .saturating_add(Duration::from_secs(got as u64) / (1 << 20));
        Ok(got)
    }

    fn next_data(&self, offset: u64, end: u64) -> io::Result<Option<DataExtent>> {
        self.call(move |content| content.next_data(offset, end))
    }
}

type Job = Box<dyn FnOnce() + Send>;

/// Threads that wait for jobs. A thread that does not return is replaced: the next job gets a new one.
#[derive(Default)]
pub(super) struct Helpers {
    idle: Mutex<Vec<SyncSender<Job>>>,
}

impl Helpers {
    fn idle(&self) -> std::sync::MutexGuard<'_, Vec<SyncSender<Job>>> {
        self.idle.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The result of `work`, or `None` if it does not come within `limit`.
    pub(super) fn run<T: Send + 'static>(
        self: &Arc<Self>,
        limit: Duration,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Option<T> {
        self.start(work).recv_timeout(limit).ok()
    }

    /// Starts `work`; its result arrives at the receiver.
    fn start<T: Send + 'static>(
        self: &Arc<Self>,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Receiver<T> {
        let (answer, result): (Sender<T>, Receiver<T>) = channel();
        let helper = self.idle().pop().or_else(spawn);
        // If there is no thread, no result arrives, and the file is given up.
        if let Some(helper) = helper {
            let (helpers, again) = (Arc::downgrade(self), helper.clone());
            let job: Job = Box::new(move || {
                let done = work();
                // The thread is free for other callers before the result is sent.
                if let Some(helpers) = helpers.upgrade() {
                    helpers.idle().push(again);
                }
                let _ = answer.send(done);
            });
            let _ = helper.send(job);
        }
        result
    }
}

fn spawn() -> Option<SyncSender<Job>> {
    let (jobs, queue) = sync_channel::<Job>(1);
    std::thread::Builder::new()
        .name("read".into())
        .spawn(move || {
            while let Ok(job) = queue.recv() {
                job();
            }
        })
        .ok()
        .map(|_| jobs)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;
    use crate::source::memory::{MemoryNode, MemoryTree};
    use std::sync::Condvar;
    use std::sync::atomic::{AtomicU64, Ordering};

    /// Calls for paths that begin with `stuck` wait for the gate.
    #[derive(Debug)]
    struct Slow {
        inner: MemoryTree,
        gate: Arc<(Mutex<bool>, Condvar)>,
        waits: Arc<AtomicU64>,
    }

    fn wait(gate: &(Mutex<bool>, Condvar), waits: &AtomicU64) {
        waits.fetch_add(1, Ordering::SeqCst);
        let open = gate.0.lock().unwrap();
        drop(gate.1.wait_while(open, |open| !*open).unwrap());
    }

    impl Source for Slow {
        fn root(&self) -> io::Result<Meta> {
            self.inner.root()
        }

        fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
            if path.starts_with(b"stuck") {
                wait(&self.gate, &self.waits);
            }
            self.inner.read_dir(path)
        }

        fn open(&self, path: &[u8]) -> io::Result<Box<dyn Content>> {
            if path == b"stuck-open" {
                wait(&self.gate, &self.waits);
            }
            let content = self.inner.open(path)?;
            let stuck = path == b"stuck-read";
            let (gate, waits) = (Arc::clone(&self.gate), Arc::clone(&self.waits));
            Ok(Box::new(SlowContent {
                content,
                stuck,
                gate,
                waits,
            }))
        }
    }

    struct SlowContent {
        content: Box<dyn Content>,
        stuck: bool,
        gate: Arc<(Mutex<bool>, Condvar)>,
        waits: Arc<AtomicU64>,
    }

    impl Content for SlowContent {
        fn stamp(&self) -> io::Result<Stamp> {
            self.content.stamp()
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
            if self.stuck && offset > 0 {
                wait(&self.gate, &self.waits);
            }
            self.content.read_at(offset, buf)
        }
    }

    #[test]
    fn what_hangs_is_left_behind_once() {
        let mut inner = MemoryTree::new();
        for name in ["good", "stuck-open", "stuck-read"] {
            inner.insert(name, MemoryNode::file("some text"));
        }
        inner.insert("stuck", MemoryNode::new(crate::FileType::Directory));
        let gate: Arc<(Mutex<bool>, Condvar)> = Arc::default();
        let waits: Arc<AtomicU64> = Arc::default();
        let slow = Slow {
            inner,
            gate: Arc::clone(&gate),
            waits: Arc::clone(&waits),
        };
        let source = TimedSource::new(Arc::new(slow), Duration::from_millis(300));
        let late = |error: io::Error| assert_eq!(error.kind(), io::ErrorKind::TimedOut);

        assert_eq!(source.root().unwrap().kind, crate::FileType::Directory);
        assert_eq!(source.read_dir(b"").unwrap().len(), 4);
        late(source.read_dir(b"stuck").unwrap_err());
        for _ in 0..2 {
            late(source.open(b"stuck-open").map(|_| ()).unwrap_err());
        }
        let content = source.open(b"stuck-read").unwrap();
        let mut buf = [0; 5];
        assert_eq!(content.read_at(0, &mut buf).unwrap(), 5);
        assert_eq!(&buf, b"some ");
        for _ in 0..3 {
            late(content.read_at(5, &mut buf).unwrap_err());
        }
        late(content.stamp().unwrap_err());
        late(source.open(b"stuck-read").map(|_| ()).unwrap_err());
        // The directory, one open, one read.
        assert_eq!(waits.load(Ordering::SeqCst), 3);

        let content = source.open(b"good").unwrap();
        let mut buf = [0; 20];
        assert_eq!(content.read_at(5, &mut buf).unwrap(), 4);
        assert_eq!(&buf[..4], b"text");
        assert_eq!(content.stamp().unwrap().size, 9);
        assert!(content.next_data(0, 9).unwrap().is_some());
        // One helper for all calls that ended.
        assert_eq!(source.helpers.idle().len(), 1);
        *gate.0.lock().unwrap() = true;
        gate.1.notify_all();
    }
}
