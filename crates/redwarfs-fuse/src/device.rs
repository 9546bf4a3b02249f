//! The device through which requests come and answers go.
#![allow(unsafe_code)]

use std::fs::OpenOptions;
use std::io::{self, IoSlice};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::OFlags;
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
    /// Nothing within the time.
    Nothing,
    /// The file system is not mounted any more.
    End,
}

impl Device {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// A further channel to the same mount, for one more thread that reads requests. Reading from
    /// it does not block: see [`Device::receive_within`].
    pub(crate) fn clone_channel(&self) -> io::Result<Self> {
        let file = OpenOptions::new().read(true).write(true).open(PATH)?;
        let source: RawFd = self.0.as_raw_fd();
        // SAFETY: the request takes a pointer to a 32-bit descriptor, which it only reads, and both
        // descriptors are open.
        let result = unsafe { libc::ioctl(file.as_raw_fd(), CLONE, &raw const source) };
        if result != 0 {
            return Err(io::Error::last_os_error());
        }
        let flags = rustix::fs::fcntl_getfl(&file)?;
        rustix::fs::fcntl_setfl(&file, flags | OFlags::NONBLOCK)?;
        Ok(Self(file.into()))
    }

    /// Waits for a request.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(count) => return Ok(Received::Request(count)),
                // NOENT: the request was taken back before we got it.
                Err(Errno::INTR | Errno::NOENT) => {}
                Err(Errno::AGAIN) => return Ok(Received::Nothing),
                Err(Errno::NODEV) => return Ok(Received::End),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Waits for a request, but not forever. Only for a channel from [`Device::clone_channel`].
    pub(crate) fn receive_within(
        &self,
        buffer: &mut [u8],
        patience: &Timespec,
    ) -> io::Result<Received> {
        let first = self.receive(buffer)?;
        if first != Received::Nothing {
            return Ok(first);
        }
        match poll(&mut [PollFd::new(&self.0, PollFlags::IN)], Some(patience)) {
            Ok(_) | Err(Errno::INTR) => self.receive(buffer),
            Err(error) => Err(error.into()),
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

/// `FUSE_DEV_IOC_CLONE`: "read", 4 bytes, group 229, number 0. Where the direction has other bits,
/// that is taken into account.
const CLONE: libc::Ioctl = {
    let read: u32 = if cfg!(any(
        target_arch = "mips",
        target_arch = "mips64",
        target_arch = "powerpc",
        target_arch = "powerpc64",
        target_arch = "sparc",
        target_arch = "sparc64"
    )) {
        0x4000_0000
    } else {
        0x8000_0000
    };
    (read | 4 << 16 | 229 << 8) as libc::Ioctl
};
