//! Which requests may take long, and the end of those whose process was killed.
//!
//! The threads that receive requests copy no data, so that they answer others meanwhile. If a request turns out to need a
//! copy, it is refused there, before it has changed anything. A thread for long requests then carries it out from its start.
//! Its ticket waits in [`PendingReads`], where it gets `EINTR` when its process is killed. Before a request has an effect
//! that the kernel must hear of, it *claims* its ticket: from then on, it runs to its end.

use std::cell::RefCell;
use std::sync::atomic::{AtomicBool, Ordering};

use rustix::io::Errno;

use crate::pending_reads::PendingReads;
use crate::ticket::Ticket;

/// The request that a thread carries out.
#[derive(Debug)]
enum Request {
    Short {
        /// It needs a copy.
        refused: bool,
    },
    Long {
        pending: PendingReads,
        unique: u64,
        /// Once it is claimed.
        ticket: Option<Ticket>,
    },
}

thread_local! {
    static REQUEST: RefCell<Request> = const { RefCell::new(Request::Short { refused: false }) };
}

/// Carries out a request that must not take long. None if it would: then it has changed nothing.
pub(super) fn short<T>(work: impl FnOnce() -> T) -> Option<T> {
    REQUEST.set(Request::Short { refused: false });
    let result = work();
    let refused =
        REQUEST.with_borrow(|request| matches!(request, Request::Short { refused: true }));
    (!refused).then_some(result)
}

/// Carries out a request that may take long and whose ticket is pending. Returns what it comes to with the ticket. None if
/// the request got its reply meanwhile.
pub(super) fn long<T>(
    pending: &PendingReads,
    unique: u64,
    work: impl FnOnce() -> T,
) -> Option<(T, Ticket)> {
    /// Also after a panic.
    struct End;
    impl Drop for End {
        fn drop(&mut self) {
            drop(REQUEST.replace(Request::Short { refused: false }));
        }
    }
    if !pending.has(unique) {
        return None;
    }
    let end = End;
    REQUEST.set(Request::Long {
        pending: pending.clone(),
        unique,
        ticket: None,
    });
    let result = work();
    claim().ok()?;
    let ticket = REQUEST.with_borrow_mut(|request| match request {
        Request::Long { ticket, .. } => ticket.take(),
        Request::Short { .. } => None,
    });
    drop(end);
    Some((result, ticket?))
}

/// Lets the request of this thread run to its end.
///
/// # Errors
/// `EINTR`: its process was killed.
pub(super) fn claim() -> Result<(), Errno> {
    REQUEST.with_borrow_mut(|request| {
        if let Request::Long {
            pending,
            unique,
            ticket: ticket @ None,
        } = request
        {
            *ticket = Some(pending.finish(*unique).ok_or(Errno::INTR)?);
        }
        Ok(())
    })
}

/// The copies of a mount.
#[derive(Debug, Default)]
pub(super) struct Copies {
    /// Nobody waits for them: the connection to the kernel has ended.
    ended: AtomicBool,
}

impl Copies {
    /// Lets all copies fail.
    pub(super) fn end(&self) {
        self.ended.store(true, Ordering::Relaxed);
    }

    /// Whether the request of this thread may copy data, or go on to do so.
    ///
    /// # Errors
    /// `EAGAIN`: another thread has to carry it out. `EINTR`: nobody waits for it.
    pub(super) fn check(&self) -> Result<(), Errno> {
        if self.ended.load(Ordering::Relaxed) {
            return Err(Errno::INTR);
        }
        REQUEST.with_borrow_mut(|request| match request {
            Request::Short { refused } => {
                *refused = true;
                Err(Errno::AGAIN)
            }
            Request::Long {
                ticket: Some(_), ..
            } => Ok(()),
            Request::Long {
                pending, unique, ..
            } => match pending.has(*unique) {
                true => Ok(()),
                false => Err(Errno::INTR),
            },
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::device::Device;

    fn pending(unique: u64) -> PendingReads {
        let null = std::fs::File::create("/dev/null").unwrap();
        let pending = PendingReads::default();
        let device = Arc::new(Device::new(null.into()));
        pending.begin_long(Ticket::new(device, unique, 0), 0);
        pending
    }

    #[test]
    fn a_short_request_does_not_copy() {
        let copies = Copies::default();
        assert_eq!(short(|| 1), Some(1));
        assert_eq!(short(|| copies.check()), None);
        // The next one is another one.
        assert_eq!(short(claim), Some(Ok(())));
    }

    #[test]
    fn a_long_request_ends_with_its_process_until_it_is_claimed() {
        let copies = Copies::default();
        let of = pending(7);
        let ended = long(&of, 7, || {
            assert_eq!(copies.check(), Ok(()));
            drop(of.finish(7));
            (copies.check(), claim())
        });
        assert!(ended.is_none());
        assert!(long(&of, 7, || ()).is_none(), "it has its reply");
        let of = pending(7);
        let (outcome, ticket) = long(&of, 7, || {
            assert_eq!(claim(), Ok(()));
            assert!(of.finish(7).is_none());
            (copies.check(), claim())
        })
        .unwrap();
        assert_eq!((outcome, ticket.unique()), ((Ok(()), Ok(())), 7));
        // What is not claimed is so at the end.
        let of = pending(7);
        assert!(long(&of, 7, || ()).is_some() && of.finish(7).is_none());
        copies.end();
        let of = pending(7);
        assert_eq!(long(&of, 7, || copies.check()).unwrap().0, Err(Errno::INTR));
    }
}
