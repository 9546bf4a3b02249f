//! Reads that take their time, and what happens if the reader is signalled or killed meanwhile.
//!
//! The kernel tells us once (INTERRUPT) that a thread which waits for an answer got a signal, and
//! lets it go only when the answer is there, even if it is killed. So a read from an image that
//! stalls must be answered with `EINTR`. But programs rarely expect that from a file: a signal
//! that merely arrives during a decompression must not fail the read. Therefore
//!
//! * a thread that is being killed is answered at once,
//! * any other one only if its read is still unanswered a second after the signal.
//!
//! A thread looks after signalled reads, and exists only while there are some.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use tracing::warn;

use crate::device::Device;

/// How long a read may go on after a signal that does not kill.
const PATIENCE: Duration = Duration::from_secs(1);
/// How often signalled reads are looked at.
const PERIOD: Duration = Duration::from_millis(50);

/// A read in the hands of a worker.
#[derive(Debug)]
struct Pending {
    device: Arc<Device>,
    pid: u32,
    signalled: Option<Instant>,
}

#[derive(Debug, Default)]
struct State {
    pending: HashMap<u64, Pending>,
    watched: bool,
}

/// All reads that workers have not answered yet.
#[derive(Debug, Clone, Default)]
pub(crate) struct Interrupts(Arc<Mutex<State>>);

impl Interrupts {
    fn state(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Registers a request that will be answered later; `pid` is the thread that waits.
    pub(crate) fn begin(&self, unique: u64, pid: u32, device: &Arc<Device>) {
        let pending = Pending {
            device: Arc::clone(device),
            pid,
            signalled: None,
        };
        self.state().pending.insert(unique, pending);
    }

    /// Takes a request out, in order to answer it; false if it was answered already.
    pub(crate) fn finish(&self, unique: u64) -> bool {
        self.state().pending.remove(&unique).is_some()
    }

    /// The thread that waits for the answer to `unique` got a signal. False if there is no such
    /// request (yet).
    pub(crate) fn interrupt(&self, unique: u64) -> bool {
        let mut state = self.state();
        let Some(pending) = state.pending.get_mut(&unique) else {
            return false;
        };
        pending.signalled = Some(Instant::now());
        look_after(&mut state);
        if !state.watched && state.any_signalled() {
            let all = self.clone();
            let watcher = thread::Builder::new()
                .name(String::from("fuse-signals"))
                .spawn(move || all.watch());
            match watcher {
                Ok(_) => state.watched = true,
                Err(error) => warn!("cannot watch signalled reads: {error}"),
            }
        }
        true
    }

    fn watch(&self) {
        loop {
            thread::sleep(PERIOD);
            let mut state = self.state();
            look_after(&mut state);
            if !state.any_signalled() {
                state.watched = false;
                return;
            }
        }
    }
}

impl State {
    fn any_signalled(&self) -> bool {
        self.pending.values().any(|read| read.signalled.is_some())
    }
}

/// Answers the signalled reads that have to be given up.
fn look_after(state: &mut State) {
    state.pending.retain(|&unique, read| {
        let Some(since) = read.signalled else {
            return true;
        };
        if since.elapsed() < PATIENCE && !is_dying(read.pid) {
            return true;
        }
        // Nobody waits any more if this fails.
        let _ = read.device.fail(unique, Errno::INTR);
        false
    });
}

/// Whether a thread has been killed and only waits for us to let it go.
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

    #[test]
    fn every_request_is_answered_once() {
        let null = std::fs::File::create("/dev/null").expect("the null device");
        let device = Arc::new(Device::new(null.into()));
        let all = Interrupts::default();
        assert!(!all.interrupt(1));
        all.begin(1, 0, &device);
        all.begin(2, 0, &device);
        assert!(all.finish(2) && !all.finish(2));
        assert!(all.interrupt(1));
        let end = Instant::now() + Duration::from_secs(20);
        while !all.state().pending.is_empty() {
            assert!(Instant::now() < end, "a signalled read is never given up");
            thread::sleep(PERIOD);
        }
        assert!(!all.finish(1));
    }
}
