//! Threads that carry out jobs of one kind.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::{fmt, io};

use crossbeam_channel::{Receiver, Sender, unbounded};

/// A job of a pool.
pub(crate) trait Job: Send + 'static {
    /// What all jobs share.
    type Shared: Send + Sync + 'static;

    /// Carries out the job. `scratch` is a buffer of the thread.
    fn run(&self, shared: &Self::Shared, scratch: &mut Vec<u8>);

    /// Called instead of the rest of [`run`](Self::run) if that panics, or if no thread is left.
    fn fail(&self, shared: &Self::Shared);
}

/// A fixed number of threads with one queue. The queue needs no bound: the kernel limits the number of
/// pending requests.
pub(crate) struct Pool<J: Job> {
    queue: Option<Sender<J>>,
    threads: Vec<JoinHandle<()>>,
    shared: Arc<J::Shared>,
}

impl<J: Job> fmt::Debug for Pool<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

impl<J: Job> Pool<J> {
    /// Starts at least one thread. Their names begin with `name`.
    pub(crate) fn new(name: &str, shared: J::Shared, threads: usize) -> io::Result<Self> {
        let shared = Arc::new(shared);
        let (queue, jobs) = unbounded::<J>();
        let threads = (0..threads.max(1))
            .map(|n| {
                let (shared, jobs) = (Arc::clone(&shared), jobs.clone());
                Builder::new()
                    .name(format!("{name}-{n}"))
                    .spawn(move || serve::<J>(&shared, &jobs))
            })
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self {
            queue: Some(queue),
            threads,
            shared,
        })
    }

    /// Queues a job. If no thread is left, it fails.
    pub(crate) fn submit(&self, job: J) {
        let refused = match &self.queue {
            Some(queue) => queue.send(job).err().map(|back| back.0),
            None => Some(job),
        };
        if let Some(job) = refused {
            job.fail(&self.shared);
        }
    }
}

impl<J: Job> Drop for Pool<J> {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            // A worker catches panics of its jobs, so there is no outcome to look at.
            let _ = thread.join();
        }
    }
}

fn serve<J: Job>(shared: &J::Shared, jobs: &Receiver<J>) {
    let mut scratch = Vec::new();
    for job in jobs {
        // A panic must cost one job, not the worker.
        let outcome = catch_unwind(AssertUnwindSafe(|| job.run(shared, &mut scratch)));
        if outcome.is_err() {
            scratch = Vec::new();
            job.fail(shared);
        }
    }
}
