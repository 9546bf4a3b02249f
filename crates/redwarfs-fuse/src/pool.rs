//! Threads that carry out jobs of one kind.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io};

use crate::follow::Home;

/// Largest number of threads of a pool whose lanes are [apart](Lanes::Apart), if it was not made with more.
pub(crate) const MOST_THREADS: usize = 256;
/// How long a thread that was added waits for another job before it ends.
const LINGER: Duration = Duration::from_secs(1);
/// Time between two looks whether a thread has ended.
const LOOK: Duration = Duration::from_millis(5);

/// A job of a pool.
pub(crate) trait Job: Send + 'static {
    /// What all jobs share.
    type Shared: Send + Sync + 'static;

    /// What the job is for. Those of each lane are begun in their order, and the lanes take turns.
    fn lane(&self) -> u32 {
        0
    }

    /// Carries out the job. `scratch` is a buffer of the thread.
    fn run(&self, shared: &Self::Shared, scratch: &mut Vec<u8>);

    /// Called instead of the rest of [`run`](Self::run) if that panics, or if no thread is left.
    fn fail(&self, shared: &Self::Shared);
}

/// How the lanes of a pool share its threads.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Lanes {
    /// One lane can take all threads.
    Together,
    /// A lane whose jobs stall holds up no other one: a lane of which no job runs always gets a thread, up to
    /// [`MOST_THREADS`]. The pool starts one if none is free.
    Apart,
}

/// Threads with one queue for each lane. The queues need no bound: the kernel limits the number of pending requests.
pub(crate) struct Pool<J: Job> {
    inner: Arc<Inner<J>>,
    /// How long the end of the pool waits for the jobs that run. None: until they end.
    patience: Option<Duration>,
}

struct Inner<J: Job> {
    name: String,
    /// CPUs and policy of new threads.
    home: Home,
    queues: Mutex<Queues<J>>,
    wake: Condvar,
    shared: J::Shared,
}

struct Queues<J> {
    lanes: HashMap<u32, Lane<J>>,
    /// Lanes with jobs that wait, in the order of their turns.
    turns: VecDeque<u32>,
    threads: usize,
    /// Threads that carry out no job.
    idle: usize,
    /// Threads that stay when there is nothing to do.
    kept: usize,
    sharing: Lanes,
    /// Jobs that run beside another one of their lane.
    beside: usize,
    closed: bool,
    /// To wait for at the end.
    handles: Vec<JoinHandle<()>>,
}

struct Lane<J> {
    jobs: VecDeque<J>,
    running: usize,
}

impl<J> Queues<J> {
    fn submit(&mut self, lane: u32, job: J) {
        let place = self.lanes.entry(lane).or_insert_with(|| Lane {
            jobs: VecDeque::new(),
            running: 0,
        });
        place.jobs.push_back(job);
        if place.jobs.len() == 1 {
            self.turns.push_back(lane);
        }
    }

    /// Whether no job of a lane runs.
    fn rests(&self, lane: u32) -> bool {
        self.lanes.get(&lane).is_none_or(|lane| lane.running == 0)
    }

    /// The job that an idle thread carries out next.
    fn take(&mut self) -> Option<(u32, J)> {
        // So all jobs that run beside another one of their lane, and one more, need no more than the kept threads.
        let spare = self.closed || self.sharing == Lanes::Together || self.beside + 1 < self.kept;
        let may_run = |&lane: &u32| spare || self.rests(lane);
        let at = self.turns.iter().position(may_run)?;
        let number = self.turns.remove(at)?;
        let lane = self.lanes.get_mut(&number)?;
        let job = lane.jobs.pop_front()?;
        self.beside += usize::from(lane.running > 0);
        lane.running += 1;
        if !lane.jobs.is_empty() {
            self.turns.push_back(number);
        }
        self.idle -= 1;
        Some((number, job))
    }

    /// Notes that a job of a lane has ended.
    fn ended(&mut self, lane: u32) {
        self.idle += 1;
        if let Some(of) = self.lanes.get_mut(&lane) {
            of.running -= 1;
            self.beside -= usize::from(of.running > 0);
            if of.running == 0 && of.jobs.is_empty() {
                self.lanes.remove(&lane);
            }
        }
    }

    /// Whether a lane of which no job runs has no thread to wait for.
    fn needs_thread(&self) -> bool {
        self.sharing == Lanes::Apart
            && self.threads < MOST_THREADS
            && self.idle < self.turns.len()
            && self.turns.iter().filter(|&&lane| self.rests(lane)).count() > self.idle
    }
}

impl<J: Job> fmt::Debug for Pool<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.inner.queues().threads)
            .finish_non_exhaustive()
    }
}

impl<J: Job> Pool<J> {
    /// Starts at least one thread, with the CPUs and the policy of the calling one. Their names begin with `name`.
    pub(crate) fn new(
        name: &str,
        shared: J::Shared,
        threads: usize,
        sharing: Lanes,
    ) -> io::Result<Self> {
        let threads = threads.max(1);
        let inner = Arc::new(Inner {
            name: name.to_owned(),
            home: Home::of_this_thread(),
            queues: Mutex::new(Queues {
                lanes: HashMap::new(),
                turns: VecDeque::new(),
                threads: 0,
                idle: 0,
                kept: threads,
                sharing,
                beside: 0,
                closed: false,
                handles: Vec::with_capacity(threads),
            }),
            wake: Condvar::new(),
            shared,
        });
        let pool = Self {
            inner,
            patience: None,
        };
        for _ in 0..threads {
            pool.inner.start_thread(&mut pool.inner.queues())?;
        }
        Ok(pool)
    }

    /// Lets the end of the pool wait for jobs for this time only. The threads of others end with their job.
    pub(crate) fn waiting_at_most(mut self, patience: Duration) -> Self {
        self.patience = Some(patience);
        self
    }

    /// Queues a job.
    pub(crate) fn submit(&self, job: J) {
        let mut queues = self.inner.queues();
        queues.submit(job.lane(), job);
        self.inner.grow(&mut queues);
        drop(queues);
        self.inner.wake.notify_one();
    }
}

impl<J: Job> Drop for Pool<J> {
    fn drop(&mut self) {
        self.inner.queues().closed = true;
        self.inner.wake.notify_all();
        let end = self.patience.map(|patience| Instant::now() + patience);
        loop {
            // One that runs may start another one.
            let thread = self.inner.queues().handles.pop();
            let Some(thread) = thread else { break };
            if let Some(end) = end {
                while !thread.is_finished() && Instant::now() < end {
                    std::thread::sleep(LOOK);
                }
                if !thread.is_finished() {
                    continue;
                }
            }
            // A worker catches panics of its jobs, so there is no outcome to look at.
            let _ = thread.join();
        }
    }
}

impl<J: Job> Inner<J> {
    fn queues(&self) -> MutexGuard<'_, Queues<J>> {
        self.queues.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn start_thread(self: &Arc<Self>, queues: &mut Queues<J>) -> io::Result<()> {
        queues.handles.retain(|thread| !thread.is_finished());
        let inner = Arc::clone(self);
        let thread = Builder::new()
            .name(format!("{}-{}", self.name, queues.threads))
            .spawn(move || {
                inner.home.enter();
                inner.serve();
            })?;
        queues.handles.push(thread);
        queues.threads += 1;
        queues.idle += 1;
        Ok(())
    }

    /// Starts the threads that lanes need which have none.
    fn grow(self: &Arc<Self>, queues: &mut Queues<J>) {
        while queues.needs_thread() {
            if let Err(error) = self.start_thread(queues) {
                // The jobs wait for a thread that ends another one.
                tracing::debug!("cannot start one more thread: {error}");
                return;
            }
        }
    }

    /// Carries out jobs until the pool is closed and no job is left, or nothing needs this thread for some time.
    fn serve(self: &Arc<Self>) {
        let mut scratch = Vec::new();
        let mut queues = self.queues();
        let mut idle_since = None;
        loop {
            let Some((lane, job)) = queues.take() else {
                if queues.closed {
                    return;
                }
                if queues.threads <= queues.kept {
                    let woken = self.wake.wait(queues);
                    queues = woken.unwrap_or_else(PoisonError::into_inner);
                    continue;
                }
                let since = *idle_since.get_or_insert_with(Instant::now);
                let left = LINGER.saturating_sub(since.elapsed());
                if left.is_zero() {
                    queues.threads -= 1;
                    queues.idle -= 1;
                    return;
                }
                let woken = self.wake.wait_timeout(queues, left);
                queues = woken.unwrap_or_else(PoisonError::into_inner).0;
                continue;
            };
            idle_since = None;
            self.grow(&mut queues);
            if queues.sharing == Lanes::Apart && !queues.turns.is_empty() {
                // What no idle thread could take when it came may be for one of them by now.
                self.wake.notify_one();
            }
            drop(queues);
            // A panic must cost one job, not the worker.
            let run = AssertUnwindSafe(|| job.run(&self.shared, &mut scratch));
            if catch_unwind(run).is_err() {
                scratch = Vec::new();
                // The job must not keep what it refers to.
                let _ = catch_unwind(AssertUnwindSafe(|| job.fail(&self.shared)));
            }
            drop(job);
            queues = self.queues();
            queues.ended(lane);
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};

    use super::*;

    const PATIENCE: Duration = Duration::from_secs(20);

    /// Waits for its release, and tells its name.
    struct Named {
        lane: u32,
        name: &'static str,
        release: Mutex<Option<Receiver<()>>>,
        done: Sender<&'static str>,
    }

    impl Job for Named {
        type Shared = ();

        fn lane(&self) -> u32 {
            self.lane
        }

        fn run(&self, (): &(), _: &mut Vec<u8>) {
            let release = self.release.lock().unwrap().take();
            if let Some(release) = release {
                let _ = release.recv();
            }
            assert_ne!(self.name, "panic", "expected by the test");
            self.done.send(self.name).unwrap();
        }

        fn fail(&self, (): &()) {
            self.done.send("failed").unwrap();
        }
    }

    /// A pool, and what submits a job and returns what releases it.
    fn pool(
        threads: usize,
        sharing: Lanes,
    ) -> (Pool<Named>, Sender<&'static str>, Receiver<&'static str>) {
        let (done, ends) = channel();
        let pool = Pool::new("test", (), threads, sharing).unwrap();
        (pool, done, ends)
    }

    fn job(lane: u32, name: &'static str, done: &Sender<&'static str>) -> Named {
        Named {
            lane,
            name,
            release: Mutex::default(),
            done: done.clone(),
        }
    }

    fn held(lane: u32, name: &'static str, done: &Sender<&'static str>) -> (Named, Sender<()>) {
        let (release, waits) = channel();
        let job = job(lane, name, done);
        *job.release.lock().unwrap() = Some(waits);
        (job, release)
    }

    #[test]
    fn lanes_take_turns() {
        let (pool, done, ends) = pool(1, Lanes::Together);
        let (first, release) = held(0, "first", &done);
        pool.submit(first);
        for name in ["a1", "a2", "a3"] {
            pool.submit(job(1, name, &done));
        }
        pool.submit(job(2, "b1", &done));
        release.send(()).unwrap();
        let order: Vec<_> = (0..5).map(|_| ends.recv().unwrap()).collect();
        assert_eq!(order, ["first", "a1", "b1", "a2", "a3"]);
        drop(pool);
    }

    fn wait_until(pool: &Pool<Named>, condition: impl Fn(&Queues<Named>) -> bool) {
        let end = Instant::now() + PATIENCE;
        while !condition(&pool.inner.queues()) {
            assert!(Instant::now() < end, "waited too long");
            std::thread::sleep(LOOK);
        }
    }

    #[test]
    fn what_could_not_be_taken_is_not_forgotten() {
        let (pool, done, ends) = pool(2, Lanes::Apart);
        let (a1, release_a1) = held(1, "a1", &done);
        let (a2, release_a2) = held(1, "a2", &done);
        let (b1, release_b1) = held(2, "b1", &done);
        pool.submit(a1);
        wait_until(&pool, |queues| queues.idle == 1);
        pool.submit(a2);
        wait_until(&pool, |queues| queues.beside == 1);
        // This one gets a thread, and then all that may run beside another one do.
        pool.submit(b1);
        wait_until(&pool, |queues| queues.idle == 0 && queues.turns.is_empty());
        pool.submit(job(1, "a3", &done));
        pool.submit(job(2, "b2", &done));
        // The thread of `a1` takes one of them. The other one must not wait for `a2` and `b1`.
        release_a1.send(()).unwrap();
        let mut order: Vec<_> = (0..3)
            .map(|_| ends.recv_timeout(PATIENCE).unwrap())
            .collect();
        order.sort_unstable();
        assert_eq!(order, ["a1", "a3", "b2"]);
        drop((release_a2, release_b1));
        drop(pool);
    }

    #[test]
    fn the_end_waits_for_a_job_as_long_as_it_may() {
        let (pool, done, ends) = pool(1, Lanes::Together);
        let pool = pool.waiting_at_most(Duration::from_millis(20));
        let (stalled, release) = held(0, "stalled", &done);
        pool.submit(stalled);
        drop(pool);
        assert!(ends.try_recv().is_err());
        release.send(()).unwrap();
        assert_eq!(ends.recv(), Ok("stalled"));
    }

    #[test]
    fn lanes_that_stall_stop_no_other() {
        for threads in [1, 3] {
            let (pool, done, ends) = pool(threads, Lanes::Apart);
            let mut releases = Vec::new();
            for lane in 1..=10 {
                for _ in 0..5 {
                    let (job, release) = held(lane, "stalled", &done);
                    pool.submit(job);
                    releases.push(release);
                }
            }
            for lane in [11, 12, 11] {
                pool.submit(job(lane, "free", &done));
                assert_eq!(ends.recv_timeout(PATIENCE), Ok("free"));
            }
            // One for each lane, and one less than at the start for further jobs of all of them.
            let most = 12 + (threads - 1) + 1;
            assert!(pool.inner.queues().threads <= most, "{pool:?}");
            drop(releases);
            for _ in 0..50 {
                assert_eq!(ends.recv_timeout(PATIENCE), Ok("stalled"));
            }
            wait_until(&pool, |queues| queues.threads == threads);
            let queues = pool.inner.queues();
            assert_eq!((queues.idle, queues.beside), (threads, 0));
            assert!(queues.lanes.is_empty() && queues.turns.is_empty());
        }
    }

    #[test]
    fn there_is_a_largest_number_of_threads() {
        let (pool, done, ends) = pool(1, Lanes::Apart);
        let lanes = 0..MOST_THREADS as u32 + 10;
        let releases: Vec<_> = lanes
            .clone()
            .map(|lane| {
                let (job, release) = held(lane, "stalled", &done);
                pool.submit(job);
                release
            })
            .collect();
        assert_eq!(pool.inner.queues().threads, MOST_THREADS);
        drop(releases);
        for _ in lanes {
            assert_eq!(ends.recv_timeout(PATIENCE), Ok("stalled"));
        }
    }

    #[test]
    fn one_lane_gets_no_more_threads_than_there_were() {
        let (pool, done, ends) = pool(3, Lanes::Apart);
        let releases: Vec<_> = (0..5)
            .map(|_| {
                let (job, release) = held(1, "stalled", &done);
                pool.submit(job);
                release
            })
            .collect();
        wait_until(&pool, |queues| queues.idle == 0);
        assert_eq!(pool.inner.queues().threads, 3);
        drop(releases);
        for _ in 0..5 {
            assert_eq!(ends.recv().unwrap(), "stalled");
        }
        // All that waits is done before the end.
        for name in ["last", "panic"] {
            pool.submit(job(1, name, &done));
        }
        drop(pool);
        let mut rest: Vec<_> = ends.try_iter().collect();
        rest.sort_unstable();
        assert_eq!(rest, ["failed", "last"]);
    }
}
