//! The threads that talk to servers.

use std::future::Future;
use std::io;
use std::pin::pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use futures_util::future::{Either, select};
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
    process: u32,
    clients: Arc<Clients>,
}

impl Threads {
    /// Those of this process.
    ///
    /// # Errors
    /// They cannot be started.
    pub(crate) fn get() -> io::Result<Self> {
        static STARTED: Mutex<Option<Threads>> = Mutex::new(None);
        let process = std::process::id();
        let mut started = STARTED.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(threads) = started.as_ref().filter(|found| found.process == process) {
            return Ok(threads.clone());
        }
        let runtime = Builder::new_multi_thread()
            .worker_threads(THREADS)
            .max_blocking_threads(RESOLVERS)
            .thread_name("redwarfs-net")
            .enable_all()
            .build()?;
        let threads = Self {
            runtime: Arc::new(runtime),
            process,
            clients: Arc::new(Clients::new()),
        };
        // Those of the parent, if there are any, do not exist here: nothing can be ended.
        std::mem::forget(started.replace(threads.clone()));
        Ok(threads)
    }

    /// Whether this is the process that they run in.
    ///
    /// # Errors
    /// It is not.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.process == std::process::id() {
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
