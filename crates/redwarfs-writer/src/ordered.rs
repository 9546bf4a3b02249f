//! The ordered worker pool: several threads do jobs in any order, and the calling thread takes
//! the results in the order of their numbers.
//!
//! Hashing, categorizing, digests and the comparison of equal files use it through a list of
//! jobs. Rewriting an image uses it through a queue that another thread fills.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError, mpsc};
use std::thread::{Scope, ScopedJoinHandle};

use crate::error::{Error, Result};
use crate::progress::CpuTime;

/// What a worker did when it was called once.
#[derive(Debug)]
pub enum Turn<R> {
    /// The job with this number, and its result. No two jobs have the same number, and from the
    /// first number on none is left out.
    Done(u32, R),
    /// A job without a place in the order.
    Aside,
    /// There are no more jobs.
    End,
}

/// Lets results wait in their threads that are too far ahead of the next one.
struct Gate {
    /// The number of the next result. None if nobody takes it.
    next: Mutex<Option<u32>>,
    moved: Condvar,
    ahead: u32,
}

impl Gate {
    fn new(first: u32, ahead: u32) -> Self {
        Self {
            next: Mutex::new(Some(first)),
            moved: Condvar::new(),
            ahead,
        }
    }

    fn lock(&self) -> MutexGuard<'_, Option<u32>> {
        self.next.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the result with a number may be handed over. False if nobody takes it.
    fn wait(&self, number: u32) -> bool {
        let mut next = self.lock();
        loop {
            match *next {
                None => return false,
                Some(next) if number.saturating_sub(next) < self.ahead => return true,
                Some(_) => {}
            }
            next = self
                .moved
                .wait(next)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    fn moves_to(&self, number: u32) {
        let mut next = self.lock();
        *next = next.map(|_| number);
        self.moved.notify_all();
    }

    fn end(&self) {
        *self.lock() = None;
        self.moved.notify_all();
    }
}

/// Ends a gate when it is dropped: always, or only if its thread panics.
struct Ending<'g> {
    gate: &'g Gate,
    always: bool,
}

impl Drop for Ending<'_> {
    fn drop(&mut self) {
        if self.always || std::thread::panicking() {
            self.gate.end();
        }
    }
}

/// Starts `count` threads and takes their results in the order of their numbers, from `first` on.
///
/// With `ahead`, at most so many results wait for an earlier one, and each thread holds one more. The jobs must be begun in the
/// order of their numbers then. Otherwise nothing bounds the number of results that wait.
///
/// Each thread calls `start` once, and the worker that it returns until that says [`Turn::End`]. When
/// all threads have started, the calling thread calls `started`, and then `take` with each result,
/// while the threads continue. There is never a list of all results.
///
/// # Errors
/// The first error of `started` and `take`, or [`Error::Thread`]. Later results are dropped, and each
/// worker ends after its present job. The caller must wake workers that wait for a job.
pub fn run<R, W, E>(
    name: &str,
    count: usize,
    first: u32,
    ahead: Option<u32>,
    start: impl FnOnce() -> W + Clone + Send,
    started: impl FnOnce() -> Result<(), E>,
    mut take: impl FnMut(R) -> Result<(), E>,
) -> Result<(), E>
where
    R: Send,
    W: FnMut() -> Turn<R>,
    E: From<Error>,
{
    let gate = Gate::new(first, ahead.map_or(u32::MAX, |ahead| ahead.max(1)));
    let gate = &gate;
    std::thread::scope(|scope| {
        // However this ends, no thread goes on waiting.
        let _ending = Ending { gate, always: true };
        // When this function ends early it drops the receiver, which ends the threads.
        let (results, arriving) = mpsc::channel();
        let mut threads = Vec::with_capacity(count);
        for _ in 0..count {
            let (start, results) = (start.clone(), results.clone());
            threads.push(thread(scope, name, move || {
                let _ending = Ending {
                    gate,
                    always: false,
                };
                let mut worker = start();
                loop {
                    match worker() {
                        Turn::Done(number, result) => {
                            if !gate.wait(number) || results.send((number, result)).is_err() {
                                break;
                            }
                        }
                        Turn::Aside => {}
                        Turn::End => break,
                    }
                }
            })?);
        }
        // What these hold must not keep a queue open whose workers have all ended.
        drop((start, results));
        started()?;
        let mut early = BTreeMap::new();
        let mut next = first;
        for (number, result) in &arriving {
            early.insert(number, result);
            while let Some(result) = early.remove(&next) {
                next += 1;
                take(result)?;
                gate.moves_to(next);
            }
        }
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        Ok(())
    })
}

/// The threads that do a list of jobs.
#[derive(Clone, Copy)]
pub(crate) struct Threads<'a> {
    pub(crate) name: &'static str,
    pub(crate) count: usize,
    /// Called in each of them when it starts. Without it the calling thread does the jobs if one
    /// thread is enough.
    pub(crate) begin: Option<&'a (dyn Fn() + Sync)>,
    /// Counts their CPU time in nanoseconds.
    pub(crate) cpu_ns: &'a AtomicU64,
}

/// Jobs that a thread takes at a time.
const BATCH: usize = 16;

/// Calls `work` with every job of a list, each thread with its own state, and `take` with the results
/// in the order of the list.
pub(crate) fn list<T: Send, S>(
    threads: Threads<'_>,
    jobs: &[u32],
    state: impl Fn() -> S + Sync,
    work: impl Fn(&mut S, u32) -> T + Sync,
    mut take: impl FnMut(u32, T) -> Result<()>,
) -> Result<()> {
    let count = threads.count.min(jobs.len().div_ceil(BATCH)).max(1);
    if count == 1 && threads.begin.is_none() {
        let _cpu = CpuTime::counted_in(threads.cpu_ns);
        let mut state = state();
        return (jobs.iter()).try_for_each(|&job| take(job, work(&mut state, job)));
    }
    let next = AtomicUsize::new(0);
    let (state, work, next) = (&state, &work, &next);
    let start = || {
        if let Some(begin) = threads.begin {
            begin();
        }
        let cpu = CpuTime::counted_in(threads.cpu_ns);
        let mut state = state();
        move || {
            let _until_the_end = &cpu;
            let number = next.fetch_add(1, Ordering::Relaxed);
            let batch = jobs.chunks(BATCH).nth(number);
            batch.map_or(Turn::End, |batch| {
                let results = batch.iter().map(|&job| work(&mut state, job));
                Turn::Done(number as u32, results.collect::<Vec<T>>())
            })
        }
    };
    let mut done = jobs.chunks(BATCH);
    let take_batch = |results: Vec<T>| {
        let batch = done.next().unwrap_or_default().iter();
        (batch.zip(results)).try_for_each(|(&job, result)| take(job, result))
    };
    run(threads.name, count, 0, None, start, || Ok(()), take_batch)
}

/// Starts a thread with a name.
///
/// # Errors
/// [`Error::Thread`] if the system refuses.
pub fn thread<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    name: &str,
    run: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>> {
    std::thread::Builder::new()
        .name(name.to_owned())
        .spawn_scoped(scope, run)
        .map_err(Error::Thread)
}

/// Adds `by` to the niceness of the calling thread. A thread that may not be slowed down works at
/// its old priority.
pub fn lower_priority(by: i32) {
    if by != 0 {
        crate::os::lower_priority(by);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use super::*;

    fn threads(count: usize, cpu_ns: &AtomicU64) -> Threads<'_> {
        Threads {
            name: "test",
            count,
            begin: None,
            cpu_ns,
        }
    }

    #[test]
    fn results_come_in_the_order_of_the_jobs() {
        let cpu_ns = AtomicU64::new(0);
        for (count, jobs) in [(1, 5), (3, 0), (3, 1), (4, 1000), (100, 33)] {
            let jobs: Vec<u32> = (0..jobs).map(|job| job * 7).collect();
            let mut taken = Vec::new();
            let begun = AtomicUsize::new(0);
            let begin = || {
                begun.fetch_add(1, Ordering::Relaxed);
            };
            let mut threads = threads(count, &cpu_ns);
            threads.begin = Some(&begin);
            let work = |seen: &mut u32, job| {
                *seen += 1;
                if job % 5 == 0 {
                    std::thread::yield_now();
                }
                job + 1
            };
            let take = |job, result| {
                assert_eq!(result, job + 1);
                taken.push(job);
                Ok(())
            };
            list(threads, &jobs, || 0, work, take).unwrap();
            assert_eq!(taken, jobs);
            let expected = count.min(jobs.len().div_ceil(BATCH)).max(1);
            assert_eq!(begun.into_inner(), expected);
        }
    }

    #[test]
    fn the_first_error_ends_the_work() {
        let (cpu_ns, worked) = (AtomicU64::new(0), AtomicUsize::new(0));
        let jobs: Vec<u32> = (0..100_000).collect();
        let work = |_: &mut (), _| worked.fetch_add(1, Ordering::Relaxed);
        let result = list(
            threads(3, &cpu_ns),
            &jobs,
            || (),
            work,
            |job, _| {
                if job == 40 {
                    return Err(Error::Interrupted);
                }
                assert!(job < 40);
                Ok(())
            },
        );
        assert!(matches!(result, Err(Error::Interrupted)));
    }

    #[test]
    fn jobs_come_from_a_queue_that_is_filled_meanwhile() {
        let (jobs, queue) = mpsc::channel::<u32>();
        let queue = Mutex::new(queue);
        let start = || {
            || match queue.lock().unwrap().recv() {
                Ok(job) if job % 3 == 0 => Turn::Aside,
                Ok(job) => Turn::Done(10 + job - job / 3 - 1, job),
                Err(_) => Turn::End,
            }
        };
        let started = || {
            // In no order.
            for job in (0..30).rev() {
                jobs.send(job).unwrap();
            }
            drop(jobs);
            Ok(())
        };
        let mut taken = Vec::new();
        let take = |job| {
            taken.push(job);
            Ok::<(), Error>(())
        };
        run("test", 3, 10, None, start, started, take).unwrap();
        let expected: Vec<u32> = (0..30).filter(|job| job % 3 != 0).collect();
        assert_eq!(taken, expected);
    }

    const AHEAD: u32 = 8;

    /// Jobs from 0 on, of which `slow` does the first one while others are done. Returns what was taken.
    fn with_a_slow_job(
        slow: impl Fn(&AtomicUsize) + Sync,
        take: impl Fn(u32) -> Result<()>,
    ) -> Result<Vec<u32>> {
        let (next, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let start = || {
            || {
                let number = next.fetch_add(1, Ordering::Relaxed) as u32;
                match number {
                    0 => slow(&done),
                    1000.. => return Turn::End,
                    _ => {
                        done.fetch_add(1, Ordering::Relaxed);
                    }
                }
                Turn::Done(number, number)
            }
        };
        let mut taken = Vec::new();
        let take = |number| {
            taken.push(number);
            take(number)
        };
        run("test", 3, 0, Some(AHEAD), start, || Ok(()), take)?;
        Ok(taken)
    }

    fn wait_until_full(done: &AtomicUsize) {
        // The others hold one result each.
        let most = AHEAD as usize - 1 + 2;
        while done.load(Ordering::Relaxed) < most {
            std::thread::yield_now();
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        assert_eq!(done.load(Ordering::Relaxed), most);
    }

    #[test]
    fn a_slow_job_holds_the_others_up() {
        let taken = with_a_slow_job(wait_until_full, |_| Ok(())).unwrap();
        assert_eq!(taken, (0..1000).collect::<Vec<u32>>());
    }

    #[test]
    fn nobody_waits_for_a_result_that_does_not_come() {
        for failing in [0, 1, 500] {
            let fail = |number| match number == failing {
                true => Err(Error::Interrupted),
                false => Ok(()),
            };
            let result = with_a_slow_job(wait_until_full, fail);
            assert!(matches!(result, Err(Error::Interrupted)), "{failing}");
        }
        let panics = std::panic::AssertUnwindSafe(|| {
            with_a_slow_job(
                |done| {
                    wait_until_full(done);
                    panic!("a job");
                },
                |_| Ok(()),
            )
        });
        let panicked = std::panic::catch_unwind(panics);
        assert!(panicked.is_err());
        let takes = std::panic::AssertUnwindSafe(|| {
            with_a_slow_job(wait_until_full, |_| panic!("what takes the results"))
        });
        assert!(std::panic::catch_unwind(takes).is_err());
    }
}
