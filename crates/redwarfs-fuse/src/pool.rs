//! Threads that carry out jobs of one kind.

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::{Duration, Instant};
use std::{fmt, io};

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

/// A fixed number of threads with one queue for each lane. The queues need no bound: the kernel limits the number of
/// pending requests.
pub(crate) struct Pool<J: Job> {
    inner: Arc<Inner<J>>,
    threads: Vec<JoinHandle<()>>,
    /// How long the end of the pool waits for the jobs that run. None: until they end.
    patience: Option<Duration>,
}

struct Inner<J: Job> {
    queues: Mutex<Queues<J>>,
    wake: Condvar,
    shared: J::Shared,
}

struct Queues<J> {
    lanes: HashMap<u32, Lane<J>>,
    /// Lanes with jobs that wait, in the order of their turns.
    turns: VecDeque<u32>,
    /// Threads that carry out no job.
    idle: usize,
    /// The last idle thread is only for a lane of which no job runs, so that no lane can take all threads.
    keeps_one: bool,
    closed: bool,
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

    /// The job that an idle thread carries out next.
    fn take(&mut self) -> Option<(u32, J)> {
        let spare = !self.keeps_one || self.closed || self.idle > 1;
        let may_run =
            |lane: &u32| spare || self.lanes.get(lane).is_none_or(|lane| lane.running == 0);
        let at = self.turns.iter().position(may_run)?;
        let number = self.turns.remove(at)?;
        let lane = self.lanes.get_mut(&number)?;
        let job = lane.jobs.pop_front()?;
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
            if of.running == 0 && of.jobs.is_empty() {
                self.lanes.remove(&lane);
            }
        }
    }
}

impl<J: Job> fmt::Debug for Pool<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

impl<J: Job> Pool<J> {
    /// Starts at least one thread. Their names begin with `name`. With `keeps_one`, the jobs of one lane cannot take all
    /// threads, if there are several.
    pub(crate) fn new(
        name: &str,
        shared: J::Shared,
        threads: usize,
        keeps_one: bool,
    ) -> io::Result<Self> {
        let threads = threads.max(1);
        let inner = Arc::new(Inner {
            queues: Mutex::new(Queues {
                lanes: HashMap::new(),
                turns: VecDeque::new(),
                idle: threads,
                keeps_one: keeps_one && threads > 1,
                closed: false,
            }),
            wake: Condvar::new(),
            shared,
        });
        let mut pool = Self {
            inner,
            threads: Vec::with_capacity(threads),
            patience: None,
        };
        for n in 0..threads {
            let inner = Arc::clone(&pool.inner);
            let thread = Builder::new()
                .name(format!("{name}-{n}"))
                .spawn(move || inner.serve())?;
            pool.threads.push(thread);
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
        self.inner.queues().submit(job.lane(), job);
        self.inner.wake.notify_one();
    }
}

impl<J: Job> Drop for Pool<J> {
    fn drop(&mut self) {
        self.inner.queues().closed = true;
        self.inner.wake.notify_all();
        let end = self.patience.map(|patience| Instant::now() + patience);
        for thread in self.threads.drain(..) {
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

    /// Carries out jobs until the pool is closed and no job is left.
    fn serve(&self) {
        let mut scratch = Vec::new();
        let mut queues = self.queues();
        loop {
            let Some((lane, job)) = queues.take() else {
                if queues.closed {
                    return;
                }
                let woken = self.wake.wait(queues);
                queues = woken.unwrap_or_else(PoisonError::into_inner);
                continue;
            };
            if queues.keeps_one && !queues.turns.is_empty() {
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
        keeps_one: bool,
    ) -> (Pool<Named>, Sender<&'static str>, Receiver<&'static str>) {
        let (done, ends) = channel();
        let pool = Pool::new("test", (), threads, keeps_one).unwrap();
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
        let (pool, done, ends) = pool(1, false);
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

    #[test]
    fn what_could_not_be_taken_is_not_forgotten() {
        let (pool, done, ends) = pool(3, true);
        let (a1, release_a1) = held(1, "a1", &done);
        let (b1, release_b1) = held(2, "b1", &done);
        let (b2, release_b2) = held(2, "b2", &done);
        pool.submit(a1);
        pool.submit(b1);
        let both_run = || {
            let queues = pool.inner.queues();
            queues.idle == 1 && queues.turns.is_empty()
        };
        while !both_run() {
            std::thread::yield_now();
        }
        // The idle thread is for other lanes.
        pool.submit(b2);
        pool.submit(job(1, "a2", &done));
        release_a1.send(()).unwrap();
        let patience = Duration::from_secs(20);
        assert_eq!(ends.recv_timeout(patience), Ok("a1"));
        // One thread takes `b2`, which stalls, and the idle one may take `a2` now.
        assert_eq!(ends.recv_timeout(patience), Ok("a2"));
        drop((release_b1, release_b2));
        drop(pool);
    }

    #[test]
    fn the_end_waits_for_a_job_as_long_as_it_may() {
        let (pool, done, ends) = pool(1, false);
        let pool = pool.waiting_at_most(Duration::from_millis(20));
        let (stalled, release) = held(0, "stalled", &done);
        pool.submit(stalled);
        drop(pool);
        assert!(ends.try_recv().is_err());
        release.send(()).unwrap();
        assert_eq!(ends.recv(), Ok("stalled"));
    }

    #[test]
    fn a_lane_that_stalls_leaves_a_thread_for_the_others() {
        let (pool, done, ends) = pool(3, true);
        let releases: Vec<_> = (0..5)
            .map(|_| {
                let (job, release) = held(1, "stalled", &done);
                pool.submit(job);
                release
            })
            .collect();
        pool.submit(job(2, "free", &done));
        assert_eq!(ends.recv().unwrap(), "free");
        pool.submit(job(3, "free", &done));
        assert_eq!(ends.recv().unwrap(), "free");
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
