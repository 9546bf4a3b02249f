//! Signals to processes whose request copies a file.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use rustix::io::Errno;

use crate::pending_reads::is_dying;
use crate::proto::Header;

thread_local! {
    /// Number and process of the request that this thread carries out.
    static REQUEST: Cell<(u64, u32)> = const { Cell::new((0, 0)) };
}

/// Notes which request the calling thread carries out.
pub(super) fn carry_out(header: &Header) {
    REQUEST.set((header.unique, header.pid));
}

/// The requests that copy data, and whether their processes got a signal.
#[derive(Debug, Default)]
pub(super) struct Copies(Mutex<HashMap<u64, bool>>);

impl Copies {
    fn all(&self) -> MutexGuard<'_, HashMap<u64, bool>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For a copy that the request of this thread needs.
    pub(super) fn begin(&self) -> Copying<'_> {
        let (unique, pid) = REQUEST.get();
        self.all().insert(unique, false);
        Copying {
            all: self,
            unique,
            pid,
        }
    }

    /// Notes a signal to the process that waits for a request. False if this request copies nothing now.
    pub(super) fn interrupt(&self, unique: u64) -> bool {
        let mut all = self.all();
        let Some(signalled) = all.get_mut(&unique) else {
            return false;
        };
        *signalled = true;
        true
    }
}

/// A copy that is being made.
#[derive(Debug)]
pub(super) struct Copying<'a> {
    all: &'a Copies,
    unique: u64,
    pid: u32,
}

impl Copying<'_> {
    /// Fails with `EINTR` if the process was killed. Other signals do not count: a program with a timer that tries again
    /// would never get a copy.
    pub(super) fn check(&self) -> Result<(), Errno> {
        self.check_with(is_dying)
    }

    fn check_with(&self, is_dying: impl Fn(u32) -> bool) -> Result<(), Errno> {
        let signalled = self.all.all().get(&self.unique).copied();
        match signalled == Some(true) && is_dying(self.pid) {
            true => Err(Errno::INTR),
            false => Ok(()),
        }
    }
}

impl Drop for Copying<'_> {
    fn drop(&mut self) {
        self.all.all().remove(&self.unique);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_kill_ends_a_copy() {
        let copies = Copies::default();
        REQUEST.set((7, std::process::id()));
        let copying = copies.begin();
        assert_eq!(copying.check_with(|_| true), Ok(()));
        assert!(!copies.interrupt(8) && copies.interrupt(7));
        assert_eq!(copying.check(), Ok(()));
        let killed = |pid| pid == std::process::id();
        assert_eq!(copying.check_with(killed), Err(Errno::INTR));
        drop(copying);
        assert!(!copies.interrupt(7));
        assert_eq!(copies.begin().check_with(killed), Ok(()));
    }
}
