//! The threads that talk to servers.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use futures_util::future::{Either, select};
use redwarfs_io::process::Process;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::time::sleep;

use crate::client::Clients;
use crate::failure::Failure;

/// Threads that move bytes; decoding happens elsewhere.
const THREADS: usize = 2;
/// Largest number of threads that ask for the addresses of hosts. One waits as long as the system does for a name server that
/// does not answer.
const RESOLVERS: usize = 64;
/// How often a request to stop is looked for.
pub(crate) const STOP_POLL: Duration = Duration::from_millis(50);

/// The threads of this process. They start with the first use, so that a program may fork before it. A forked process
/// has none of the threads of its parent, and gets its own.
#[derive(Debug, Clone)]
pub(crate) struct Threads {
    runtime: Arc<Runtime>,
    process: Process,
    clients: Arc<Clients>,
}

/// The threads of one process, and those of the children that have used them. A child does not end those of its parent:
/// they do not exist there. It takes no lock, which a thread that does not exist there could hold.
struct Started {
    threads: Threads,
    next: OnceLock<Box<Started>>,
}

impl Threads {
    /// Those of this process.
    ///
    /// # Errors
    /// They cannot be started.
    pub(crate) fn get() -> io::Result<Self> {
        static FIRST: OnceLock<Box<Started>> = OnceLock::new();
        let mut place = &FIRST;
        loop {
            match place.get() {
                Some(started) if started.threads.process.is_current() => {
                    return Ok(started.threads.clone());
                }
                Some(started) => place = &started.next,
                None => {
                    let started = Started {
                        threads: Self::start()?,
                        next: OnceLock::new(),
                    };
                    if let Err(late) = place.set(Box::new(started)) {
                        // Another thread was faster. An asynchronous program must not wait here.
                        if let Some(runtime) = Arc::into_inner(late.threads.runtime) {
                            runtime.shutdown_background();
                        }
                    }
                }
            }
        }
    }

    fn start() -> io::Result<Self> {
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(RESOLVERS)
            .thread_name("redwarfs-net")
            .enable_all()
            .build()?;
        Ok(Self {
            runtime: Arc::new(runtime),
            process: Process::current(),
            clients: Arc::new(Clients::new()),
        })
    }

    /// Whether this is the process that they run in.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.process.is_current() {
            return Ok(());
        }
        Err(io::Error::other(
            "the connection belongs to the parent of this process: open the image again",
        ))
    }

    /// Those of all objects.
    pub(crate) fn clients(&self) -> &Clients {
        &self.clients
    }

    pub(crate) fn handle(&self) -> &Handle {
        self.runtime.handle()
    }

    /// Runs a future to its end, or until `stop` is set: then it is dropped, and there is an error.
    pub(crate) fn block_on_until<T: Send>(
        &self,
        stop: &AtomicBool,
        future: impl Future<Output = T> + Send,
    ) -> Result<T, Failure> {
        let stopped = async {
            while !stop.load(Ordering::Relaxed) {
                sleep(STOP_POLL).await;
            }
        };
        self.block_on(async {
            match select(pin!(future), pin!(stopped)).await {
                Either::Left((done, _)) => Ok(done),
                Either::Right(_) => Err(Failure::interrupted()),
            }
        })
    }

    /// Runs a future to its end. A thread of an asynchronous program must not wait inside its runtime, so another one
    /// does it.
    pub(crate) fn block_on<T: Send>(&self, future: impl Future<Output = T> + Send) -> T {
        if Handle::try_current().is_err() {
            return self.runtime.block_on(future);
        }
        let done = std::thread::scope(|scope| {
            let waiting = scope.spawn(|| self.runtime.block_on(future));
            waiting.join()
        });
        done.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}
