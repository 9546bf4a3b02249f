//! Limits the number of threads that decode in parallel.
//!
//! A decoder refers back to all bytes of the block that it has already decoded. If more decoders run
//! than there are CPUs, every context switch replaces the contents of the CPU caches. On two CPUs, four
//! programs that read blocks of 16 MiB (zstd 22) at random need 6 % to 16 % more CPU time without this
//! limit. So threads take turns, in the order in which they came. If another thread waits, a turn ends
//! after [`LONG`]. Codecs that decode a block as a whole finish it first. While a thread decodes ahead,
//! one more thread may decode, so that read-ahead never holds up a request.

use std::num::NonZero;
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::available_parallelism;
use std::time::{Duration, Instant};

/// Time that a thread decodes before it lets another one pass: a few times the time to refill the CPU
/// caches afterwards.
const LONG: Duration = Duration::from_millis(20);

/// Lets a number of threads pass, and the next ones when these have finished.
#[derive(Debug)]
pub(super) struct Gate {
    width: u64,
    passes: Mutex<Passes>,
    wake: Condvar,
}

/// Number of threads that have come and gone.
#[derive(Debug, Default)]
struct Passes {
    come: u64,
    gone: u64,
    /// Threads inside that decode ahead.
    ahead: u64,
}

impl Passes {
    /// Number of waiting threads if there is room for `width`.
    fn waiting(&self, width: u64) -> u64 {
        let inside = width + u64::from(self.ahead > 0);
        self.come.saturating_sub(self.gone + inside)
    }
}

/// The right to decode.
#[derive(Debug)]
pub(super) struct Pass<'a> {
    gate: &'a Gate,
    since: Instant,
    ahead: bool,
}

impl Gate {
    /// A gate for as many threads as this process has CPUs.
    pub(super) fn new() -> Self {
        Self::of_width(available_parallelism().map_or(1, NonZero::get))
    }

    fn of_width(width: usize) -> Self {
        Self {
            width: width as u64,
            passes: Mutex::default(),
            wake: Condvar::new(),
        }
    }

    fn passes(&self) -> MutexGuard<'_, Passes> {
        self.passes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until it is this thread's turn. A thread that holds a pass must not request another pass,
    /// nor wait for a thread that does. `ahead`: no request waits for the decoded bytes.
    pub(super) fn pass(&self, ahead: bool) -> Pass<'_> {
        let mut passes = self.passes();
        let number = passes.come;
        passes.come += 1;
        while number >= passes.gone + self.width + u64::from(passes.ahead > 0) {
            passes = self
                .wake
                .wait(passes)
                .unwrap_or_else(PoisonError::into_inner);
        }
        if ahead {
            passes.ahead += 1;
            self.wake_others(passes);
        }
        Pass {
            gate: self,
            since: Instant::now(),
            ahead,
        }
    }

    /// Call it when there may be room for a waiting thread.
    fn wake_others(&self, passes: MutexGuard<'_, Passes>) {
        let any = passes.come - passes.gone > self.width;
        drop(passes);
        if any {
            self.wake.notify_all();
        }
    }

    /// Whether a thread could pass in addition to one more.
    pub(super) fn has_room_for_two(&self) -> bool {
        let passes = self.passes();
        let inside = passes.come - passes.gone;
        inside == 0 || inside + 2 <= self.width
    }

    /// Whether a thread waits.
    pub(super) fn is_crowded(&self) -> bool {
        self.passes().waiting(self.width) > 0
    }

    /// The number of waiting threads, and whether one more would have to wait.
    #[cfg(test)]
    pub(super) fn waiting(&self) -> (u64, bool) {
        let passes = self.passes();
        let full = passes.come >= passes.gone + self.width;
        (passes.waiting(self.width), full)
    }
}

impl Pass<'_> {
    /// Whether it is the turn of another thread.
    pub(super) fn is_over(&self) -> bool {
        self.since.elapsed() >= LONG && self.gate.is_crowded()
    }
}

impl Drop for Pass<'_> {
    fn drop(&mut self) {
        let mut passes = self.gate.passes();
        let before = passes.waiting(self.gate.width);
        passes.gone += 1;
        passes.ahead -= u64::from(self.ahead);
        if before > 0 {
            drop(passes);
            self.gate.wake.notify_all();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[test]
    fn no_more_than_fit_and_everybody_in_the_end() {
        for width in [1, 3] {
            let gate = Gate::of_width(width);
            let (inside, most, done) = Default::default();
            let (inside, most, done): (&AtomicUsize, &AtomicUsize, &AtomicUsize) =
                (&inside, &most, &done);
            std::thread::scope(|scope| {
                for _ in 0..8 {
                    scope.spawn(|| {
                        for _ in 0..200 {
                            let pass = gate.pass(false);
                            let now = inside.fetch_add(1, Ordering::SeqCst) + 1;
                            most.fetch_max(now, Ordering::SeqCst);
                            std::thread::yield_now();
                            inside.fetch_sub(1, Ordering::SeqCst);
                            drop(pass);
                            done.fetch_add(1, Ordering::SeqCst);
                        }
                    });
                }
            });
            assert_eq!(done.load(Ordering::SeqCst), 1600);
            assert!((1..=width).contains(&most.load(Ordering::SeqCst)));
            assert!(!gate.is_crowded());
        }
    }

    #[test]
    fn over_when_somebody_waits() {
        let gate = Gate::of_width(1);
        assert!(gate.has_room_for_two());
        let pass = gate.pass(false);
        assert!(!gate.has_room_for_two() && !gate.is_crowded());
        std::thread::sleep(LONG);
        assert!(!pass.is_over());
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(gate.pass(false)));
            while !pass.is_over() {
                std::thread::yield_now();
            }
            drop(pass);
            waiter.join().unwrap();
        });
        assert!(gate.has_room_for_two());
    }

    #[test]
    fn readers_pass_whoever_decodes_ahead() {
        let gate = Gate::of_width(2);
        let both = [gate.pass(true), gate.pass(true)];
        let reader = gate.pass(false);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| drop(gate.pass(false)));
            while !gate.is_crowded() {
                std::thread::yield_now();
            }
            drop(both);
            waiter.join().unwrap();
        });
        drop(reader);
        assert_eq!(gate.waiting(), (0, false));
    }
}
