//! Signals to processes that wait for a read.
//!
//! If a thread that waits for a reply gets a signal, the kernel sends one INTERRUPT request. The thread
//! continues only when the driver replies, even if it was killed. So if an image file does not answer,
//! the driver must reply with `EINTR`. But programs rarely expect `EINTR` from a file: a signal that
//! arrives during a decompression must not fail the read. Therefore
//!
//! * if the thread was killed, the driver replies at once,
//! * otherwise the driver replies with `EINTR` if the read is still pending a second after the signal.
//!
//! A watching thread does this. It exists only while there are reads to watch.
//!
//! With io_uring, the kernel sends no INTERRUPT for a signal that arrives while the read is in a queue.
//! It also does not repeat an INTERRUPT if the driver does not know the read yet. So the driver
//! remembers signals of unknown reads for a while. It also checks the threads of all reads over
//! io_uring that are pending for more than a second.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tracing::warn;

use crate::ticket::Ticket;

/// Time that a read may take after a signal that does not kill.
const PATIENCE: Duration = Duration::from_secs(1);
/// Time between two checks of signalled reads.
const PERIOD: Duration = Duration::from_millis(50);
/// Largest number of remembered signals of unknown reads.
const REMEMBERED: usize = 64;

/// A read that a worker carries out.
#[derive(Debug)]
struct Pending {
    ticket: Ticket,
    pid: u32,
    begun: Instant,
    signalled: Option<Instant>,
    /// Whether only the end of its process ends it.
    is_long: bool,
}

impl Pending {
    /// Whether the watching thread must check it.
    fn is_watched(&self) -> bool {
        self.signalled.is_some() || self.ticket.is_of_queue()
    }

    fn is_to_be_given_up(&self) -> bool {
        match self.signalled {
            Some(since) => (since.elapsed() >= PATIENCE && !self.is_long) || is_dying(self.pid),
            None => {
                self.ticket.is_of_queue() && self.begun.elapsed() >= PATIENCE && is_dying(self.pid)
            }
        }
    }
}

#[derive(Debug, Default)]
struct Reads {
    pending: HashMap<u64, Pending>,
    /// Signalled reads that were unknown at that time.
    unknown: VecDeque<u64>,
    watched: bool,
}

/// The pending reads, and the thread that watches them.
#[derive(Debug, Default)]
struct Register {
    reads: Mutex<Reads>,
    /// Tells the watching thread of a signal.
    signal: Condvar,
}

/// All reads of workers, requests that wait for their image, and long requests of a writable mount, that have no reply yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct PendingReads(Arc<Register>);

impl PendingReads {
    fn reads(&self) -> MutexGuard<'_, Reads> {
        self.0.reads.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request that gets its reply later; thread `pid` waits for it.
    pub(crate) fn begin(&self, ticket: Ticket, pid: u32) {
        self.begin_as(ticket, pid, false);
    }

    /// As [`begin`](Self::begin), for a request that only the end of its process ends: a program with a timer that tries
    /// again would never come to its end.
    #[cfg(any(feature = "layer", test))]
    pub(crate) fn begin_long(&self, ticket: Ticket, pid: u32) {
        self.begin_as(ticket, pid, true);
    }

    fn begin_as(&self, ticket: Ticket, pid: u32, is_long: bool) {
        let mut reads = self.reads();
        let unique = ticket.unique();
        let begun = Instant::now();
        let known = reads.unknown.iter().position(|&other| other == unique);
        let signalled = known
            .and_then(|place| reads.unknown.remove(place))
            .map(|_| begun);
        let pending = Pending {
            ticket,
            pid,
            begun,
            signalled,
            is_long,
        };
        reads.pending.insert(unique, pending);
        self.watch_if_needed(&mut reads);
    }

    /// Whether a request has no reply yet.
    #[cfg(any(feature = "layer", test))]
    pub(crate) fn has(&self, unique: u64) -> bool {
        self.reads().pending.contains_key(&unique)
    }

    /// Takes a request out, in order to reply; none if it has a reply already.
    pub(crate) fn finish(&self, unique: u64) -> Option<Ticket> {
        Some(self.reads().pending.remove(&unique)?.ticket)
    }

    /// Notes that the thread that waits for the reply to `unique` got a signal. Returns false if there is
    /// no such request, or not yet.
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let mut reads = self.reads();
        let Some(pending) = reads.pending.get_mut(&unique) else {
            if reads.unknown.len() >= REMEMBERED {
                reads.unknown.pop_front();
            }
            reads.unknown.push_back(unique);
            return false;
        };
        pending.signalled = Some(Instant::now());
        look_after(&mut reads);
        self.watch_if_needed(&mut reads);
        true
    }

    /// Starts the watching thread, or wakes it up.
    fn watch_if_needed(&self, reads: &mut Reads) {
        if reads.watched {
            if reads.any_signalled() {
                self.0.signal.notify_one();
            }
        } else if reads.any_watched() {
            let all = self.clone();
            let watcher = thread::Builder::new()
                .name(String::from("fuse-signals"))
                .spawn(move || {
                    crate::follow::stay_behind();
                    all.watch();
                });
            match watcher {
                Ok(_) => reads.watched = true,
                Err(error) => warn!("cannot watch signalled reads: {error}"),
            }
        }
    }

    fn watch(&self) {
        let mut reads = self.reads();
        loop {
            let period = if reads.any_signalled() {
                PERIOD
            } else {
                PATIENCE
            };
            let waited = self.0.signal.wait_timeout(reads, period);
            reads = waited.unwrap_or_else(PoisonError::into_inner).0;
            look_after(&mut reads);
            if !reads.any_watched() {
                reads.watched = false;
                return;
            }
        }
    }
}

impl Reads {
    fn any_signalled(&self) -> bool {
        self.pending.values().any(|read| read.signalled.is_some())
    }

    fn any_watched(&self) -> bool {
        self.pending.values().any(Pending::is_watched)
    }
}

/// Replies to the reads that must be given up.
fn look_after(reads: &mut Reads) {
    let given_up = |_: &u64, read: &mut Pending| read.is_to_be_given_up();
    for (_, read) in reads.pending.extract_if(given_up) {
        read.ticket.fail(Errno::INTR);
    }
}

/// Whether a thread was killed, and only waits for the reply.
fn is_dying(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/status")).is_ok_and(|text| kill_is_pending(&text))
}

/// Looks for `SIGKILL` among the pending signals in the text of `/proc/PID/status`. Any signal that
/// ends the process appears to its threads as this one.
fn kill_is_pending(status: &str) -> bool {
    const KILL: u64 = 1 << 8;
    status
        .lines()
        .filter_map(|line| {
            line.strip_prefix("SigPnd:")
                .or_else(|| line.strip_prefix("ShdPnd:"))
        })
        .filter_map(|mask| u64::from_str_radix(mask.trim(), 16).ok())
        .any(|mask| mask & KILL != 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;

    #[test]
    fn pending_signals() {
        let text = |own: u64, shared: u64| {
            format!(
                "Name:\tcat\nSigQ:\t0/1\nSigPnd:\t{own:016x}\nShdPnd:\t{shared:016x}\nSigBlk:\tffffffffffffffff\n"
            )
        };
        assert!(kill_is_pending(&text(1 << 8, 0)));
        assert!(kill_is_pending(&text(0, 1 << 8 | 1)));
        assert!(!kill_is_pending(&text(1 << 1, 1 << 14)));
        assert!(!kill_is_pending("SigPnd: x\n"));
        assert!(!is_dying(std::process::id()));
        assert!(!is_dying(0));
    }

    fn ticket(unique: u64) -> Ticket {
        let null = std::fs::File::create("/dev/null").expect("the null device");
        Ticket::new(Arc::new(Device::new(null.into())), unique, 0)
    }

    fn wait_for_the_end(all: &PendingReads) {
        let end = Instant::now() + Duration::from_secs(20);
        while !all.reads().pending.is_empty() {
            assert!(Instant::now() < end, "a signalled read is never given up");
            thread::sleep(PERIOD);
        }
    }

    #[test]
    fn every_request_is_answered_once() {
        let all = PendingReads::default();
        all.begin(ticket(1), 0);
        all.begin(ticket(2), 0);
        assert!(all.finish(2).is_some() && all.finish(2).is_none());
        assert!(all.interrupt(1));
        wait_for_the_end(&all);
        assert!(all.finish(1).is_none());
    }

    #[test]
    fn a_signal_that_does_not_kill_ends_no_long_request() {
        let all = PendingReads::default();
        let here = std::process::id();
        all.begin(ticket(1), here);
        all.begin_long(ticket(2), here);
        assert!(all.interrupt(1) && all.interrupt(2));
        let end = Instant::now() + Duration::from_secs(20);
        while all.has(1) {
            assert!(Instant::now() < end, "a signalled read is never given up");
            thread::sleep(PERIOD);
        }
        assert!(all.finish(2).is_some());
    }

    #[test]
    fn signals_that_come_early_count() {
        let all = PendingReads::default();
        assert!(!all.interrupt(1));
        all.begin(ticket(1), 0);
        all.begin(ticket(2), 0);
        assert!(all.reads().pending[&1].signalled.is_some());
        assert!(all.reads().pending[&2].signalled.is_none());
        all.finish(2);
        wait_for_the_end(&all);
        for unique in 0..2 * REMEMBERED as u64 {
            assert!(!all.interrupt(unique));
        }
        assert_eq!(all.reads().unknown.len(), REMEMBERED);
        all.begin(ticket(1), 0);
        assert!(all.reads().pending[&1].signalled.is_none());
    }
}
