//! Workers for reads that need decompression.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread::{Builder, JoinHandle};
use std::{fmt, io};

use crossbeam_channel::{Receiver, Sender, unbounded};
use fuser::{Errno, ReplyData};
use redwarfs_format::ids::InodeNo;
use redwarfs_reader::Image;

use crate::driver::report;

/// One read of a file, with the means to answer it.
#[derive(Debug)]
pub(crate) struct ReadJob {
    pub(crate) inode: InodeNo,
    pub(crate) offset: u64,
    pub(crate) size: usize,
    pub(crate) reply: ReplyData,
}

/// A fixed number of threads with one queue. The queue needs no bound of its own: the kernel limits
/// the number of unanswered requests.
pub(crate) struct Pool {
    queue: Option<Sender<ReadJob>>,
    threads: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("threads", &self.threads.len())
            .finish_non_exhaustive()
    }
}

impl Pool {
    pub(crate) fn new(image: &Image, threads: usize) -> io::Result<Self> {
        let (queue, jobs) = unbounded::<ReadJob>();
        let threads = (0..threads.max(1))
            .map(|n| {
                let image = image.clone();
                let jobs = jobs.clone();
                Builder::new()
                    .name(format!("fuse-read-{n}"))
                    .spawn(move || serve(&image, &jobs))
            })
            .collect::<io::Result<Vec<_>>>()?;
        Ok(Self {
            queue: Some(queue),
            threads,
        })
    }

    /// Queues a read. If no worker is left, the request is answered with EIO.
    pub(crate) fn submit(&self, job: ReadJob) {
        let refused = match &self.queue {
            Some(queue) => queue.send(job).err().map(|back| back.0),
            None => Some(job),
        };
        if let Some(job) = refused {
            job.reply.error(Errno::EIO);
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.queue = None;
        for thread in self.threads.drain(..) {
            // A worker catches panics of its jobs, so there is no outcome to look at.
            let _ = thread.join();
        }
    }
}

fn serve(image: &Image, jobs: &Receiver<ReadJob>) {
    let mut buffer = Vec::new();
    for job in jobs {
        // A panic must cost one read, not the worker: dropping the reply answers EIO.
        let outcome = catch_unwind(AssertUnwindSafe(|| run(image, job, &mut buffer)));
        if outcome.is_err() {
            buffer = Vec::new();
        }
    }
}

fn run(image: &Image, job: ReadJob, buffer: &mut Vec<u8>) {
    if buffer.len() < job.size {
        buffer.resize(job.size, 0);
    }
    let Some(target) = buffer.get_mut(..job.size) else {
        return job.reply.error(Errno::EIO);
    };
    match image.read_at(job.inode, job.offset, target) {
        Ok(count) => job.reply.data(target.get(..count).unwrap_or_default()),
        Err(error) => job.reply.error(report("read", job.inode, &error)),
    }
}
