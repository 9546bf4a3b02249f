//! Workers for reads that need decompression.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};
use std::{fmt, io};

use crossbeam_channel::{Receiver, Sender, unbounded};
use redwarfs_format::ids::InodeNo;
use redwarfs_reader::PinnedRead;
use rustix::io::Errno;

use crate::mount_state::MountState;
use crate::push::Pusher;

/// One read of a file. The replying thread takes the ticket from the interrupts.
#[derive(Debug)]
pub(crate) struct ReadJob {
    pub(crate) inode: InodeNo,
    pub(crate) offset: u64,
    pub(crate) size: usize,
    pub(crate) unique: u64,
}

impl ReadJob {
    /// Replies, unless there was a reply already because of a signal.
    fn answer(&self, state: &MountState, answer: Result<&PinnedRead<'_>, Errno>) {
        let Some(ticket) = state.interrupts.finish(self.unique) else {
            return;
        };
        match answer {
            Ok(read) => ticket.reply_parts(read.parts()),
            Err(errno) => ticket.fail(errno),
        }
    }
}

/// A fixed number of threads with one queue. The queue needs no bound: the kernel limits the number of
/// pending requests.
pub(crate) struct Pool {
    queue: Option<Sender<ReadJob>>,
    threads: Vec<JoinHandle<()>>,
    state: Arc<MountState>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

impl Pool {
    pub(crate) fn new(
        state: &Arc<MountState>,
        pusher: Option<&Arc<Pusher>>,
        threads: usize,
    ) -> io::Result<Self> {
        let (queue, jobs) = unbounded::<ReadJob>();
        let threads = (0..threads.max(1))
            .map(|n| {
                let state = Arc::clone(state);
                let pusher = pusher.cloned();
                let jobs = jobs.clone();
                Builder::new()
                    .name(format!("fuse-read-{n}"))
                    .spawn(move || serve(&state, pusher.as_deref(), &jobs))
            })
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self {
            queue: Some(queue),
            threads,
            state: Arc::clone(state),
        })
    }

    /// Queues a read that was registered with the interrupts. If no worker is left, it fails with EIO.
    pub(crate) fn submit(&self, job: ReadJob) {
        let refused = match &self.queue {
            Some(queue) => queue.send(job).err().map(|back| back.0),
            None => Some(job),
        };
        if let Some(job) = refused {
            job.answer(&self.state, Err(Errno::IO));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            // A worker catches panics of its jobs, so it returns no error.
            let _ = thread.join();
        }
    }
}

fn serve(state: &MountState, pusher: Option<&Pusher>, jobs: &Receiver<ReadJob>) {
    let mut scratch = Vec::new();
    for job in jobs {
        // A panic must fail one read, not the worker.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            run(state, pusher, &job, &mut scratch);
        }));
        if outcome.is_err() {
            scratch = Vec::new();
            job.answer(state, Err(Errno::IO));
        }
    }
}

fn run(state: &MountState, pusher: Option<&Pusher>, job: &ReadJob, scratch: &mut Vec<u8>) {
    let timer = state
        .timers
        .read
        .start_with(&[("inode", u64::from(job.inode.0) + 1)]);
    let read = state
        .image
        .read_pinned(job.inode, job.offset, job.size, scratch);
    // The statistics must count this read before the process gets the reply.
    drop(timer);
    match read {
        Ok(read) => {
            if let Some(pusher) = pusher {
                pusher.was_read(job.inode, job.offset, read.len());
            }
            job.answer(state, Ok(&read));
        }
        Err(error) => {
            let errno = state.failures.report("read", job.inode, &error);
            job.answer(state, Err(errno));
        }
    }
}
