//! Answers to requests, whatever way the requests came.

use std::iter;
use std::sync::Arc;

use rustix::io::Errno;

use crate::device::Device;
use crate::ring::{Queue, Slot};

/// The right to answer one request, and the duty: dropped without an answer, the request fails with
/// EIO. May go to another thread.
#[derive(Debug)]
pub(crate) struct Ticket {
    unique: u64,
    /// None as soon as it is used.
    way: Option<Way>,
}

#[derive(Debug)]
enum Way {
    Device(Arc<Device>),
    Ring(Arc<Queue>, Slot),
}

impl Ticket {
    /// For the request `unique` that was read from the device.
    pub(crate) fn of_device(device: &Arc<Device>, unique: u64) -> Self {
        Self {
            unique,
            way: Some(Way::Device(Arc::clone(device))),
        }
    }

    /// For the request `unique` in a slot of a queue.
    pub(crate) fn of_queue(queue: &Arc<Queue>, slot: Slot, unique: u64) -> Self {
        Self {
            unique,
            way: Some(Way::Ring(Arc::clone(queue), slot)),
        }
    }

    /// Number of the request.
    pub(crate) fn unique(&self) -> u64 {
        self.unique
    }

    /// Whether the kernel can fail to tell us that the reader was signalled: if that happens after
    /// it has put the request into a queue and before we take it out.
    pub(crate) fn misses_signals(&self) -> bool {
        matches!(self.way, Some(Way::Ring(..)))
    }

    /// Answers with some bytes.
    pub(crate) fn reply(self, payload: &[u8]) {
        self.reply_parts(iter::once(payload));
    }

    /// Answers with several parts: at most [`redwarfs_reader::MAX_PARTS`].
    pub(crate) fn reply_parts<'a>(mut self, parts: impl Iterator<Item = &'a [u8]>) {
        self.send(0, parts);
    }

    /// Answers with an error.
    pub(crate) fn fail(mut self, errno: Errno) {
        self.send(-errno.raw_os_error(), iter::empty());
    }

    /// Ends the matter of a request that the kernel wants no answer to.
    pub(crate) fn leave(mut self) {
        match self.way.take() {
            Some(Way::Ring(queue, slot)) => queue.answer(slot, self.unique, 0, iter::empty()),
            Some(Way::Device(_)) | None => {}
        }
    }

    fn send<'a>(&mut self, error: i32, parts: impl Iterator<Item = &'a [u8]>) {
        match self.way.take() {
            // An answer fails only if nobody waits for it any more.
            Some(Way::Device(device)) => {
                let _ = device.answer(self.unique, error, parts);
            }
            Some(Way::Ring(queue, slot)) => queue.answer(slot, self.unique, error, parts),
            None => {}
        }
    }
}

impl Drop for Ticket {
    fn drop(&mut self) {
        self.send(-Errno::IO.raw_os_error(), iter::empty());
    }
}
