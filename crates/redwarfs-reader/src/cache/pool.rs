//! The threads that decode in the background.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Mutex, PoisonError};

use crossbeam_channel::{Sender, TrySendError, bounded};

use crate::options::CpuSet;

type Job = Box<dyn FnOnce() + Send>;

/// A fixed number of named threads that take jobs from a bounded queue. The threads start with the
/// first job, so that a process may still fork after opening an image, and end when the pool is
/// dropped. They have the CPUs and policy of the thread that made the pool, not those of the thread
/// with the first job.
pub(super) struct Pool {
    threads: usize,
    affinity: Option<CpuSet>,
    /// CPUs and policy of the thread that made the pool.
    home: Option<CpuSet>,
    policy: crate::sys::Policy,
    queue: Mutex<Option<Sender<Job>>>,
}

/// Largest number of waiting jobs per thread.
const QUEUE_PER_THREAD: usize = 4;

impl Pool {
    /// A pool of `threads` threads, at least one.
    pub(super) fn new(threads: usize, affinity: Option<CpuSet>) -> Self {
        Self {
            threads: threads.max(1),
            affinity,
            home: CpuSet::of_current_thread().ok(),
            policy: crate::sys::policy(),
            queue: Mutex::default(),
        }
    }

    pub(super) fn threads(&self) -> usize {
        self.threads
    }

    /// Queues `job`. Returns false if the queue is full, or no thread could be started.
    pub(super) fn try_submit(&self, job: Job) -> bool {
        let mut queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        if queue.is_none() {
            *queue = self.start();
        }
        let Some(sender) = &*queue else {
            return false;
        };
        match sender.try_send(job) {
            Ok(()) => true,
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => false,
        }
    }

    /// Whether no job waits.
    pub(super) fn is_idle(&self) -> bool {
        let queue = self.queue.lock().unwrap_or_else(PoisonError::into_inner);
        queue.as_ref().is_none_or(Sender::is_empty)
    }

    fn start(&self) -> Option<Sender<Job>> {
        let (sender, receiver) = bounded::<Job>(self.threads.saturating_mul(QUEUE_PER_THREAD));
        let mut started = 0;
        for number in 0..self.threads {
            let receiver = receiver.clone();
            let (affinity, home, policy) = (self.affinity, self.home, self.policy);
            let thread = std::thread::Builder::new()
                .name(format!("redwarfs-dec{number}"))
                .spawn(move || {
                    crate::sys::take_policy(policy);
                    if affinity.is_some() {
                        crate::sys::pin(affinity);
                    } else if home != CpuSet::of_current_thread().ok() {
                        // If those CPUs are gone, the thread keeps its CPUs.
                        let _ = home.map(|home| home.pin_current_thread());
                    }
                    for job in receiver {
                        // If a job panics, unwinding fails its block, and the thread stays for other
                        // jobs.
                        let _ = catch_unwind(AssertUnwindSafe(job));
                    }
                });
            match thread {
                Ok(_detached) => started += 1,
                Err(e) => tracing::warn!("cannot start a decoder thread: {e}"),
            }
        }
        (started > 0).then_some(sender)
    }
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crossbeam_channel::bounded;

    #[test]
    fn runs_jobs_survives_panics_and_bounds_its_queue() {
        let pool = Pool::new(1, None);
        let (tx, rx) = bounded(10);
        assert!(pool.try_submit(Box::new(|| panic!("expected by the test"))));
        let sent = tx.clone();
        assert!(pool.try_submit(Box::new(move || sent.send(1).unwrap())));
        assert_eq!(rx.recv().unwrap(), 1);

        let (release, gate) = bounded::<()>(0);
        let (started, has_started) = bounded::<()>(1);
        assert!(pool.try_submit(Box::new(move || {
            started.send(()).unwrap();
            let _ = gate.recv();
        })));
        has_started.recv().unwrap();
        let accepted = (0..100)
            .filter(|_| pool.try_submit(Box::new(|| {})))
            .count();
        assert_eq!(accepted, QUEUE_PER_THREAD);
        drop(release);
    }

    #[test]
    fn threads_are_not_bound_to_where_the_first_job_comes_from() {
        let all = CpuSet::of_current_thread().unwrap();
        let pool = Pool::new(1, None);
        let (tx, rx) = bounded(1);
        std::thread::scope(|scope| {
            scope.spawn(|| {
                let one: CpuSet = all.iter().take(1).collect();
                one.pin_current_thread().unwrap();
                let report = move || tx.send(CpuSet::of_current_thread().unwrap()).unwrap();
                assert!(pool.try_submit(Box::new(report)));
            });
        });
        assert_eq!(rx.recv().unwrap(), all);
    }

    #[test]
    #[cfg(target_os = "linux")]
    fn threads_do_not_take_over_the_policy_of_who_has_the_first_job() {
        let pool = Pool::new(1, None);
        let (tx, rx) = bounded(1);
        let may_return = std::thread::scope(|scope| {
            let first = scope.spawn(|| {
                crate::sys::idle();
                assert_eq!(crate::sys::policy(), libc::SCHED_IDLE);
                let report = move || tx.send(crate::sys::policy()).unwrap();
                assert!(pool.try_submit(Box::new(report)));
                crate::sys::take_policy(libc::SCHED_OTHER);
                crate::sys::policy() == libc::SCHED_OTHER
            });
            first.join().unwrap()
        });
        let found = rx.recv().unwrap();
        if may_return {
            assert_eq!(found, libc::SCHED_OTHER);
        } else {
            redwarfs_testkit::skip(
                "policies of decoder threads",
                "no right to leave SCHED_IDLE",
            );
        }
    }
}
