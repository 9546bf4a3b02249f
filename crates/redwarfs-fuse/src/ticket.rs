//! Tickets: the right to answer a request, whichever way it came.

use std::fmt;
use std::iter;
use std::sync::Arc;

use rustix::io::Errno;

/// A way by which requests come and answers go: the device or a queue of io_uring.
pub(crate) trait Transport: fmt::Debug + Send + Sync {
    /// Answers the request `unique` with an error, which is 0 or negative, or with at most
    /// [`redwarfs_reader::MAX_PARTS`] parts. `entry` is the number that the transport gave with the
    /// ticket. If the reply cannot be sent, no process waits for it.
    fn answer(&self, unique: u64, entry: u16, error: i32, parts: &mut dyn Iterator<Item = &[u8]>);

    /// Ends the matter of a request that the kernel wants no answer to.
    fn leave(&self, unique: u64, entry: u16);

    /// Whether requests wait in a queue. If a program gets a signal while its request waits there,
    /// the kernel does not tell the driver.
    fn is_queue(&self) -> bool;
}

/// The right to answer one request, and the duty: dropped without an answer, the request fails with
/// EIO. May go to another thread.
#[derive(Debug)]
pub(crate) struct Ticket {
    unique: u64,
    entry: u16,
    /// None after use.
    transport: Option<Arc<dyn Transport>>,
}

impl Ticket {
    /// For the request `unique`. `entry` says where the transport has it.
    pub(crate) fn new(transport: Arc<dyn Transport>, unique: u64, entry: u16) -> Self {
        Self {
            unique,
            entry,
            transport: Some(transport),
        }
    }

    /// Number of the request.
    pub(crate) fn unique(&self) -> u64 {
        self.unique
    }

    /// Whether the request came through a queue, see [`Transport::is_queue`].
    pub(crate) fn is_of_queue(&self) -> bool {
        let transport = self.transport.as_ref();
        transport.is_some_and(|transport| transport.is_queue())
    }

    /// Answers with some bytes.
    pub(crate) fn reply(self, payload: &[u8]) {
        self.reply_parts(iter::once(payload));
    }

    /// Answers with several parts: at most [`redwarfs_reader::MAX_PARTS`].
    pub(crate) fn reply_parts<'a>(mut self, mut parts: impl Iterator<Item = &'a [u8]>) {
        self.send(0, &mut parts);
    }

    /// Answers with an error.
    pub(crate) fn fail(mut self, errno: Errno) {
        self.send(-errno.raw_os_error(), &mut iter::empty());
    }

    /// Ends the matter of a request that the kernel wants no answer to.
    pub(crate) fn leave(mut self) {
        if let Some(transport) = self.transport.take() {
            transport.leave(self.unique, self.entry);
        }
    }

    fn send(&mut self, error: i32, parts: &mut dyn Iterator<Item = &[u8]>) {
        if let Some(transport) = self.transport.take() {
            transport.answer(self.unique, self.entry, error, parts);
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.send(-Errno::IO.raw_os_error(), &mut iter::empty());
    }
}
