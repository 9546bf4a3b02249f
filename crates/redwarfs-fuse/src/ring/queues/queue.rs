//! One queue: the entries that wait for a reply, and the entries that have one.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use rustix::event::{EventfdFlags, eventfd};
use rustix::io::Errno;
use tracing::error;

use super::os::{DEPTH, Slot};
use crate::ticket::Transport;

/// The part of a queue that its thread shares with workers.
#[derive(Debug)]
pub(super) struct Queue {
    /// Entries of pending requests, by their numbers.
    held: Mutex<[Option<Slot>; DEPTH as usize]>,
    answered: Mutex<Answered>,
    /// An event descriptor. A write tells the thread to look at `answered`.
    wake: OwnedFd,
}

#[derive(Debug, Default)]
struct Answered {
    slots: Vec<Slot>,
    /// Whether the thread is in the kernel, or about to enter it.
    waiting: bool,
    end: bool,
}

impl Queue {
    pub(super) fn new() -> io::Result<Arc<Self>> {
        Ok(Arc::new(Self {
            held: Mutex::default(),
            answered: Mutex::default(),
            wake: descriptor()?,
        }))
    }

    fn answered(&self) -> MutexGuard<'_, Answered> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn held(&self) -> MutexGuard<'_, [Option<Slot>; DEPTH as usize]> {
        self.held.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps an entry until its request has a reply. Returns its number.
    pub(super) fn hold(&self, slot: Slot) -> u16 {
        let entry = slot.index();
        if let Some(place) = self.held().get_mut(usize::from(entry)) {
            *place = Some(slot);
        }
        entry
    }

    /// Takes the entries that have a reply. From here on, a further reply interrupts the wait of the thread.
    /// Returns false if the thread must end.
    pub(super) fn take_answered(&self, slots: &mut Vec<Slot>) -> bool {
        let mut answered = self.answered();
        if answered.end {
            return false;
        }
        std::mem::swap(&mut answered.slots, slots);
        answered.waiting = true;
        true
    }

    /// Notes that the thread has left the kernel.
    pub(super) fn has_woken(&self) {
        self.answered().waiting = false;
    }

    /// The descriptor that interrupts the wait.
    pub(super) fn wake(&self) -> BorrowedFd<'_> {
        self.wake.as_fd()
    }

    /// Makes the thread end.
    pub(super) fn end(&self) {
        self.change(|answered| answered.end = true);
    }

    fn change(&self, change: impl FnOnce(&mut Answered)) {
        let mut answered = self.answered();
        change(&mut answered);
        let waiting = std::mem::take(&mut answered.waiting);
        drop(answered);
        if waiting {
            // Fails only after 2^64 writes.
            let _ = rustix::io::write(&self.wake, &1u64.to_ne_bytes());
        }
    }
}

impl Transport for Queue {
    fn answer(&self, unique: u64, entry: u16, error: i32, parts: &mut dyn Iterator<Item = &[u8]>) {
        let held = self
            .held()
            .get_mut(usize::from(entry))
            .and_then(Option::take);
        let Some(mut slot) = held else {
            return error!("a request is answered twice");
        };
        if !slot.answer(unique, error, parts) {
            error!("an answer does not fit");
            slot.answer(unique, -Errno::IO.raw_os_error(), &mut std::iter::empty());
        }
        self.change(|answered| answered.slots.push(slot));
    }

    /// Returns the entry to the kernel, with a reply that the kernel ignores.
    fn leave(&self, unique: u64, entry: u16) {
        self.answer(unique, entry, 0, &mut std::iter::empty());
    }

    fn is_queue(&self) -> bool {
        true
    }
}

/// A new event descriptor.
pub(super) fn descriptor() -> io::Result<OwnedFd> {
    Ok(eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK)?)
}
