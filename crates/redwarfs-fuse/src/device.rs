//! The device through which requests come and answers go.

use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;

use rustix::io::Errno;

/// Path of the device.
pub(crate) const PATH: &str = "/dev/fuse";
/// Code of the notification that puts data into the kernel's page cache.
const NOTIFY_STORE: i32 = 4;

/// An open channel to the kernel. Messages are atomic in both directions, so any number of threads
/// may use it.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

/// What came from the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// So many bytes of a request.
    Request(usize),
    /// The file system is not mounted any more.
    End,
}

impl Device {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Waits for a request.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(count) => return Ok(Received::Request(count)),
                // NOENT: the request was taken back before we got it.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(Received::End),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Answers a request. Failure means that nobody waits any more.
    pub(crate) fn reply(&self, unique: u64, payload: &[u8]) -> io::Result<()> {
        self.send(0, unique, &[payload])
    }

    /// Answers a request with an error.
    pub(crate) fn fail(&self, unique: u64, errno: Errno) -> io::Result<()> {
        self.send(-errno.raw_os_error(), unique, &[])
    }

    /// Puts the whole contents of a file into the kernel's cache. Waits for the kernel if it is
    /// reading the same file: never to be called by a thread that may have to answer that read.
    pub(crate) fn store(&self, node: u64, data: &[u8]) -> io::Result<()> {
        let size = u32::try_from(data.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut head = [0; 24];
        head[..8].copy_from_slice(&node.to_ne_bytes());
        head[16..20].copy_from_slice(&size.to_ne_bytes());
        self.send(NOTIFY_STORE, 0, &[&head, data])
    }

    /// Sends one message of at most two parts.
    fn send(&self, error: i32, unique: u64, parts: &[&[u8]]) -> io::Result<()> {
        let len = parts.iter().map(|part| part.len()).sum::<usize>() + 16;
        let len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut head = [0; 16];
        head[..4].copy_from_slice(&len.to_ne_bytes());
        head[4..8].copy_from_slice(&error.to_ne_bytes());
        head[8..].copy_from_slice(&unique.to_ne_bytes());
        let part = |n: usize| IoSlice::new(parts.get(n).copied().unwrap_or_default());
        let all = [IoSlice::new(&head), part(0), part(1)];
        loop {
            match rustix::io::writev(&self.0, all.get(..=parts.len()).unwrap_or(&all)) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}
