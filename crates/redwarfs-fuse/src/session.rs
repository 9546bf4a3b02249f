//! The threads that read requests from the kernel.

use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::{Builder, JoinHandle};
use std::time::Instant;

use rustix::io::Errno;
use tracing::{debug, warn};

use crate::device::{Device, Received};
use crate::driver::Driver;
use crate::follow::Follower;
use crate::options::MountOptions;
use crate::patience::{LOOK, Patience};
use crate::proto::{self, Body, Header, InitIn, Put, init, op};
use crate::ring::Queues;
use crate::ticket::{Ticket, Transport};

/// Room for one request. The largest requests of the kernel set an extended attribute (64 KiB and a
/// name). The driver refuses them.
const BUFFER: usize = 128 << 10;

/// Room for one request of a writable mount: WRITE with its headers.
const WRITING_BUFFER: usize = (1 << 20) + (64 << 10);

/// What answers the requests of a connection.
pub(crate) trait Answers: Send + Sync + 'static {
    /// Negotiates the parameters of the connection, and appends the reply to INIT.
    fn init(&self, header: &Header, kernel: &InitIn, over_ring: Option<u16>, out: &mut Vec<u8>);

    /// Carries out one request and replies, or lets another thread do that. `out` is a buffer for the reply.
    fn serve(&self, ticket: Ticket, header: &Header, body: Body<'_>, out: &mut Vec<u8>);

    /// Called first in each thread that serves requests.
    fn enter_thread(&self) {}

    /// Called by each of these threads when the connection has ended: others may still wait for data.
    fn ended(&self) {}
}

/// Replies to INIT, the first request. With `uring`, and if the kernel supports it, returns queues, which
/// then must be started.
///
/// # Errors
/// The connection has ended, or the kernel is too old.
pub(crate) fn handshake(
    device: &Arc<Device>,
    driver: &impl Answers,
    uring: bool,
) -> io::Result<Option<Queues>> {
    // The kernel takes no smaller one, whatever it is going to send.
    let mut buffer = vec![0; BUFFER];
    loop {
        let Received::Request(len) = device.receive(&mut buffer)? else {
            return Err(Errno::NOTCONN.into());
        };
        let message = buffer.get(..len).unwrap_or_default();
        let (header, body) =
            proto::parse(message).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        if header.opcode != op::INIT {
            device.fail(header.unique, Errno::IO)?;
            continue;
        }
        let kernel =
            InitIn::parse(body).ok_or_else(|| io::Error::from(io::ErrorKind::InvalidData))?;
        let mut out = Vec::new();
        if kernel.major > proto::MAJOR {
            // The kernel tries again with this version.
            out.put32(proto::MAJOR);
            out.put32(proto::MINOR);
            device.reply(header.unique, &out)?;
            continue;
        }
        if kernel.major < proto::MAJOR || kernel.minor < proto::OLDEST_MINOR {
            device.fail(header.unique, Errno::PROTO)?;
            let (major, minor) = (kernel.major, kernel.minor);
            return Err(io::Error::other(format!(
                "the system's FUSE version {major}.{minor} is too old"
            )));
        }
        // The reply is a promise, so everything that can fail is made before it.
        let queues = uring.then(|| queues(device, &kernel)).flatten();
        let over_ring = queues.as_ref().map(Queues::max_background);
        driver.init(&header, &kernel, over_ring, &mut out);
        device.reply(header.unique, &out)?;
        return Ok(queues);
    }
}

/// The queues of io_uring, if the kernel supports FUSE over io_uring.
fn queues(device: &Arc<Device>, kernel: &InitIn) -> Option<Queues> {
    if kernel.flags2 & init::OVER_IO_URING == 0 {
        debug!("requests come through /dev/fuse: the kernel offers no io_uring");
        return None;
    }
    Queues::prepare(device)
        .inspect_err(|error| debug!("requests come through /dev/fuse: no io_uring: {error}"))
        .ok()
}

/// The threads of a mount.
#[derive(Debug, Default)]
pub(crate) struct Session {
    readers: Vec<JoinHandle<io::Result<()>>>,
    /// They end when a reading thread ends, which happens at the end of the connection.
    queues: Arc<Mutex<Option<Queues>>>,
}

impl Session {
    /// Starts to serve requests. With `queues`, one thread reads the requests that do not come through
    /// them. Otherwise, or if the kernel refuses the queues, [`MountOptions::readers`] threads read.
    ///
    /// # Errors
    /// A thread cannot be made.
    pub(crate) fn start(
        device: &Arc<Device>,
        driver: &Arc<Driver>,
        options: &MountOptions,
        queues: Option<Queues>,
    ) -> io::Result<Self> {
        let mut session = Self::default();
        let readers = options.readers.max(1);
        let alone = (readers == 1).then_some(Alone {
            follow: options.follow,
        });
        let Some(queues) = queues else {
            session.read(device, driver, readers, alone)?;
            return Ok(session);
        };
        // First, because starting a thread can fail: a request that is in a queue when its thread dies
        // stays there until the connection ends.
        session.read(device, driver, 1, alone)?;
        match queues.start(driver) {
            Ok(queues) => *locked(&session.queues) = Some(queues),
            Err(error) => {
                debug!("requests come through /dev/fuse: no queues: {error}");
                session.read(device, driver, readers - 1, None)?;
            }
        }
        Ok(session)
    }

    /// Starts to serve requests with `count` threads that do everything themselves.
    ///
    /// # Errors
    /// A thread cannot be made.
    pub(crate) fn of_workers(
        device: &Arc<Device>,
        driver: &Arc<impl Answers>,
        count: usize,
    ) -> io::Result<Self> {
        let mut session = Self::default();
        for _ in 0..count.max(1) {
            session.read_one(device, driver, vec![0; WRITING_BUFFER], None)?;
        }
        Ok(session)
    }

    /// Starts `count` more threads that read from the device. `alone` is for the only reading thread.
    fn read(
        &mut self,
        device: &Arc<Device>,
        driver: &Arc<Driver>,
        count: usize,
        alone: Option<Alone>,
    ) -> io::Result<()> {
        for _ in 0..count {
            self.read_one(device, driver, vec![0; BUFFER], alone)?;
        }
        Ok(())
    }

    fn read_one(
        &mut self,
        device: &Arc<Device>,
        driver: &Arc<impl Answers>,
        buffer: Vec<u8>,
        alone: Option<Alone>,
    ) -> io::Result<()> {
        let device = Arc::clone(device);
        let driver = Arc::clone(driver);
        let queues = Arc::clone(&self.queues);
        let thread = Builder::new()
            .name(format!("fuse-{}", self.readers.len()))
            .spawn(move || {
                driver.enter_thread();
                let result = serve(&device, &*driver, buffer, alone);
                driver.ended();
                end(&queues);
                result
            })?;
        self.readers.push(thread);
        Ok(())
    }

    /// Waits for the end of the connection.
    ///
    /// # Errors
    /// The first error of a thread.
    pub(crate) fn join(self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.readers {
            let ended = thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            result = result.and(ended);
        }
        end(&self.queues);
        result
    }
}

fn locked(queues: &Mutex<Option<Queues>>) -> MutexGuard<'_, Option<Queues>> {
    queues.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Ends the queues, if they have not ended yet.
fn end(queues: &Mutex<Option<Queues>>) {
    // They end when this goes, which is after the lock.
    let _ended = locked(queues).take();
}

/// Rights of a reading thread that is the only one. Several threads would poll for the same requests, and
/// follow in turn.
#[derive(Debug, Clone, Copy)]
struct Alone {
    follow: bool,
}

/// Reads and serves requests until the connection ends. `alone` is for the only reading thread.
fn serve(
    device: &Arc<Device>,
    driver: &impl Answers,
    mut buffer: Vec<u8>,
    alone: Option<Alone>,
) -> io::Result<()> {
    let mut out = Vec::new();
    let mut patience = alone.map(|_| Patience::new());
    let mut follower = alone
        .filter(|alone| alone.follow)
        .and_then(|_| Follower::new(device));
    loop {
        let follows = follower.as_ref().is_some_and(Follower::waits);
        let patience = patience.as_mut().filter(|_| !follows);
        let received = receive(device, &mut buffer, patience)?;
        let Received::Request(len) = received else {
            return Ok(());
        };
        let message = buffer.get(..len).unwrap_or_default();
        match proto::parse(message) {
            Some((header, body)) => {
                if let Some(follower) = &mut follower {
                    follower.received(header.pid, proto::read_size(&header, body));
                }
                let ticket =
                    Ticket::new(Arc::clone(device) as Arc<dyn Transport>, header.unique, 0);
                driver.serve(ticket, &header, body, &mut out);
            }
            None => warn!("an incomplete request of {} bytes", message.len()),
        }
    }
}

/// Waits for a request, asleep or polling.
fn receive(
    device: &Device,
    buffer: &mut [u8],
    patience: Option<&mut Patience>,
) -> io::Result<Received> {
    let Some(patience) = patience else {
        return device.receive(buffer);
    };
    let start = Instant::now();
    if patience.looks() {
        while !device.is_ready() && start.elapsed() < LOOK {}
    }
    let received = device.receive(buffer)?;
    patience.waited(start.elapsed());
    Ok(received)
}
