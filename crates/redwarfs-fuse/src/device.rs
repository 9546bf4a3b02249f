//! The device for requests and replies.

use std::io::{self, IoSlice};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use redwarfs_reader::MAX_PARTS;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FileType, OFlags, fcntl_getfl, fcntl_setfl, fstat, makedev};
use rustix::io::Errno;

use crate::ticket::Transport;

/// Path of the device.
pub(crate) const PATH: &str = "/dev/fuse";
/// Its device number.
const NUMBER: (u32, u32) = (10, 229);
/// Codes of notifications: the kernel forgets attributes and data of an inode; forgets a name; puts data into its page
/// cache.
const NOTIFY_INVAL_INODE: i32 = 2;
const NOTIFY_INVAL_ENTRY: i32 = 3;
const NOTIFY_STORE: i32 = 4;

/// An open channel to the kernel. Messages are atomic in both directions, so any number of threads
/// may use it.
#[derive(Debug)]
pub(crate) struct Device(OwnedFd);

/// A message from the kernel.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Received {
    /// A request of this many bytes.
    Request(usize),
    /// The file system is no longer mounted.
    End,
}

impl Device {
    pub(crate) fn new(fd: OwnedFd) -> Self {
        Self(fd)
    }

    /// Checks that a descriptor of the caller is one of a FUSE device, and makes it blocking.
    pub(crate) fn check(fd: &OwnedFd) -> io::Result<()> {
        let stat = fstat(fd)?;
        let (major, minor) = NUMBER;
        if FileType::from_raw_mode(stat.st_mode) != FileType::CharacterDevice
            || stat.st_rdev != makedev(major, minor)
        {
            return Err(io::Error::other("not an open /dev/fuse"));
        }
        let flags = fcntl_getfl(fd)?;
        Ok(fcntl_setfl(fd, flags - OFlags::NONBLOCK)?)
    }

    /// Whether there is a request, or the end.
    pub(crate) fn is_ready(&self) -> bool {
        let mut events = [PollFd::new(&self.0, PollFlags::IN)];
        // Receiving reports what is wrong.
        !matches!(poll(&mut events, Some(&Timespec::default())), Ok(0))
    }

    /// Waits for a request.
    pub(crate) fn receive(&self, buffer: &mut [u8]) -> io::Result<Received> {
        loop {
            match rustix::io::read(&self.0, &mut *buffer) {
                Ok(count) => return Ok(Received::Request(count)),
                // NOENT: the kernel withdrew the request.
                Err(Errno::INTR | Errno::NOENT | Errno::AGAIN) => {}
                Err(Errno::NODEV) => return Ok(Received::End),
                Err(error) => return Err(error.into()),
            }
        }
    }

    /// Replies to a request. Failure means that no process waits for it.
    pub(crate) fn reply(&self, unique: u64, payload: &[u8]) -> io::Result<()> {
        self.send(0, unique, &[], &mut std::iter::once(payload))
    }

    /// Replies to a request with an error.
    pub(crate) fn fail(&self, unique: u64, errno: Errno) -> io::Result<()> {
        self.send(-errno.raw_os_error(), unique, &[], &mut std::iter::empty())
    }

    /// Puts the whole contents of a file, `len` bytes in at most [`MAX_PARTS`] parts, into the kernel's
    /// cache. Waits while the kernel reads the same file. Never call this in a thread that may have to
    /// serve that read.
    pub(crate) fn store<'a>(
        &self,
        node: u64,
        len: usize,
        mut parts: impl Iterator<Item = &'a [u8]>,
    ) -> io::Result<()> {
        let size = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut head = [0; 24];
        head[..8].copy_from_slice(&node.to_ne_bytes());
        head[16..20].copy_from_slice(&size.to_ne_bytes());
        self.send(NOTIFY_STORE, 0, &head, &mut parts)
    }

    /// Lets the kernel forget attributes and data of an inode, if it knows it.
    pub(crate) fn forget_inode(&self, node: u64) -> io::Result<()> {
        // All of its data: from offset 0, without an end.
        let mut head = [0; 24];
        head[..8].copy_from_slice(&node.to_ne_bytes());
        self.notify(NOTIFY_INVAL_INODE, &head, &[])
    }

    /// Lets the kernel forget what a name in a directory leads to, or that there is none. Waits for lookups in this directory.
    /// Never call this in a thread that may have to serve them.
    pub(crate) fn forget_name(&self, directory: u64, name: &[u8]) -> io::Result<()> {
        let length = u32::try_from(name.len()).map_err(|_| io::ErrorKind::InvalidInput)?;
        let mut head = [0; 16];
        head[..8].copy_from_slice(&directory.to_ne_bytes());
        head[8..12].copy_from_slice(&length.to_ne_bytes());
        self.notify(NOTIFY_INVAL_ENTRY, &head, &[name, b"\0"])
    }

    /// Sends a message about something that the kernel may not know.
    fn notify(&self, code: i32, head: &[u8], parts: &[&[u8]]) -> io::Result<()> {
        match self.send(code, 0, head, &mut parts.iter().copied()) {
            // The kernel does not know it.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => other,
        }
    }

    /// Sends one message: `first`, followed by at most [`MAX_PARTS`] parts.
    fn send(
        &self,
        error: i32,
        unique: u64,
        first: &[u8],
        parts: &mut dyn Iterator<Item = &[u8]>,
    ) -> io::Result<()> {
        let mut head = [0; 16];
        let mut all = [IoSlice::new(&[]); MAX_PARTS + 2];
        all[1] = IoSlice::new(first);
        let (mut count, mut len) = (2, head.len() + first.len());
        for part in parts {
            let place = all.get_mut(count).ok_or(io::ErrorKind::InvalidInput)?;
            *place = IoSlice::new(part);
            count += 1;
            len += part.len();
        }
        let len = u32::try_from(len).map_err(|_| io::ErrorKind::InvalidInput)?;
        head[..4].copy_from_slice(&len.to_ne_bytes());
        head[4..8].copy_from_slice(&error.to_ne_bytes());
        head[8..].copy_from_slice(&unique.to_ne_bytes());
        all[0] = IoSlice::new(&head);
        loop {
            match rustix::io::writev(&self.0, all.get(..count).unwrap_or(&all)) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// For commands other than reading and writing.
impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

/// The device copies no part of a reply, and identifies requests only by their number.
impl Transport for Device {
    fn answer(&self, unique: u64, _entry: u16, error: i32, parts: &mut dyn Iterator<Item = &[u8]>) {
        // A reply fails only if no process waits for it.
        let _ = self.send(error, unique, &[], parts);
    }

    fn leave(&self, _unique: u64, _entry: u16) {}

    fn is_queue(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ready_when_there_is_something_or_the_end() {
        let (reader, writer) = io::pipe().unwrap();
        let device = Device::new(reader.into());
        assert!(!device.is_ready());
        rustix::io::write(&writer, b"request").unwrap();
        assert!(device.is_ready());
        let mut buffer = [0; 16];
        assert_eq!(device.receive(&mut buffer).unwrap(), Received::Request(7));
        assert!(!device.is_ready());
        drop(writer);
        assert!(device.is_ready());
    }
}
