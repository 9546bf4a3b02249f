//! The threads that read requests from the kernel.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::{Builder, JoinHandle};

use rustix::io::Errno;
use tracing::{error, warn};

use crate::device::{Device, Received};
use crate::driver::{Answer, Driver};
use crate::proto::{self, InitIn, Put, op};

/// Room for one request. The largest that the kernel sends are those that set an extended attribute
/// (64 KiB and a name), which are refused.
const BUFFER: usize = 128 << 10;

/// Answers INIT, the first request.
///
/// # Errors
/// The connection has ended, or the kernel is too old.
pub(crate) fn handshake(device: &Device, driver: &mut Driver) -> io::Result<()> {
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
            // It tries again with our version.
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
        driver.init(&header, &kernel, &mut out);
        return device.reply(header.unique, &out);
    }
}

/// The threads of a mount.
#[derive(Debug)]
pub(crate) struct Session(Vec<JoinHandle<io::Result<()>>>);

impl Session {
    /// Starts `readers` threads.
    ///
    /// # Errors
    /// A thread cannot be made.
    pub(crate) fn start(device: &Arc<Device>, driver: Driver, readers: usize) -> io::Result<Self> {
        let driver = Arc::new(driver);
        let threads = (0..readers.max(1)).map(|n| {
            let device = Arc::clone(device);
            let driver = Arc::clone(&driver);
            Builder::new()
                .name(format!("fuse-{n}"))
                .spawn(move || serve(&device, &driver))
        });
        threads.collect::<io::Result<_>>().map(Self)
    }

    /// Waits for the end of the connection.
    ///
    /// # Errors
    /// The first error of a thread.
    pub(crate) fn join(self) -> io::Result<()> {
        let mut result = Ok(());
        for thread in self.0 {
            let ended = thread
                .join()
                .unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
            result = result.and(ended);
        }
        result
    }
}

/// Reads and answers requests until the connection ends.
fn serve(device: &Arc<Device>, driver: &Driver) -> io::Result<()> {
    let mut buffer = vec![0; BUFFER];
    let mut out = Vec::new();
    while let Received::Request(len) = device.receive(&mut buffer)? {
        let message = buffer.get(..len).unwrap_or_default();
        answer(device, driver, message, &mut out);
    }
    Ok(())
}

fn answer(device: &Arc<Device>, driver: &Driver, message: &[u8], out: &mut Vec<u8>) {
    let Some((header, body)) = proto::parse(message) else {
        return warn!("an incomplete request of {} bytes", message.len());
    };
    out.clear();
    // A panic must cost one request, not the mount.
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        driver.handle(device, &header, body, out)
    }));
    // An answer fails only if nobody waits for it any more.
    let _ = match outcome {
        Ok(Ok(Answer::Reply)) => device.reply(header.unique, out),
        Ok(Ok(Answer::Done)) => Ok(()),
        Ok(Err(errno)) => device.fail(header.unique, errno),
        Err(_) => {
            error!("operation {} failed by a panic", header.opcode);
            device.fail(header.unique, Errno::IO)
        }
    };
}
