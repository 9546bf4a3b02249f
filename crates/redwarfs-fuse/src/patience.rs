//! Waiting for the next request: asleep, or polling.
//!
//! A thread that sleeps until the next request takes no CPU time, but must be woken. In virtual machines
//! a wake-up often takes 20 to 60 us, because the host must start an idle CPU. With small requests,
//! wake-ups can then be most of the time that a program waits. In this case, the reading thread polls for
//! the next request for a moment before it sleeps.
//!
//! The thread measures whether polling helps. If most requests come at intervals that suggest slow
//! wake-ups, it polls for a window of requests. If that at least halves the median time between a reply and the
//! next request, it continues to poll. It stops when requests come too late, and compares again from time to
//! time. After each failed attempt, the pause before the next one doubles.
//!
//! So the CPU time for polling is bounded. A successful poll takes the time between a reply and the next
//! request. At the last comparison, at most 1024 requests ago, this was at most half of the time with
//! sleeping. A failed poll takes [`LOOK`]; after at most two windows of these, the thread sleeps again.

use std::time::Duration;

/// How long the thread polls for a request.
pub(crate) const LOOK: Duration = Duration::from_micros(50);
/// Waits that are judged together.
const WINDOW: usize = 16;
/// Number of waits of a window that must be as expected.
const MOST: usize = 12;
/// Waits that may consist mostly of a wake-up.
const SLOW: std::ops::Range<Duration> = Duration::from_micros(20)..Duration::from_micros(200);
/// Windows after which polling is compared again with sleeping.
const LASTS: u32 = 64;
/// Pause after the first failed attempt, in windows; it doubles each time, up to the second number.
const PAUSES: (u32, u32) = (4, 1024);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Sleeping,
    /// Polling, to compare it with sleeping.
    Trying,
    Looking,
}

/// The waits of a reading thread, and the decision whether it polls.
#[derive(Debug)]
pub(crate) struct Patience {
    mode: Mode,
    /// The waits of this window, and their number.
    times: [Duration; WINDOW],
    waits: usize,
    /// Median of the last window in which the thread slept.
    slept: Duration,
    /// Windows until the next attempt, or until the end of polling.
    left: u32,
    pause: u32,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self {
            mode: Mode::Sleeping,
            times: [Duration::ZERO; WINDOW],
            waits: 0,
            slept: Duration::ZERO,
            left: 0,
            pause: PAUSES.0,
        }
    }

    /// Whether to poll for the next request.
    pub(crate) fn looks(&self) -> bool {
        self.mode != Mode::Sleeping
    }

    /// Notes the length of a wait.
    pub(crate) fn waited(&mut self, time: Duration) {
        if let Some(place) = self.times.get_mut(self.waits) {
            *place = time;
        }
        self.waits += 1;
        if self.waits >= WINDOW {
            self.waits = 0;
            self.judge();
        }
    }

    /// Decides after a window whether to poll.
    fn judge(&mut self) {
        self.times.sort_unstable();
        let median = self.times[WINDOW / 2];
        let most = |expected: &dyn Fn(&Duration) -> bool| {
            self.times.iter().filter(|time| expected(time)).count() >= MOST
        };
        let slow = most(&|time| SLOW.contains(time));
        let found = most(&|time| *time < LOOK);
        match self.mode {
            Mode::Sleeping => {
                self.slept = median;
                if self.left > 0 {
                    self.left -= 1;
                } else if slow {
                    self.mode = Mode::Trying;
                }
            }
            Mode::Trying if found && median * 2 <= self.slept => {
                (self.mode, self.left) = (Mode::Looking, LASTS);
                self.pause = PAUSES.0;
            }
            Mode::Trying => {
                (self.mode, self.left) = (Mode::Sleeping, self.pause);
                self.pause = (self.pause * 2).min(PAUSES.1);
            }
            Mode::Looking if !found => (self.mode, self.left) = (Mode::Sleeping, PAUSES.0),
            Mode::Looking => {
                self.left -= 1;
                if self.left == 0 {
                    self.mode = Mode::Sleeping;
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Plays waits that take so many microseconds asleep and awake; how many were awake.
    fn play(patience: &mut Patience, waits: impl Iterator<Item = (u64, u64)>) -> usize {
        let mut looked = 0;
        for (asleep, awake) in waits {
            looked += usize::from(patience.looks());
            let time = if patience.looks() { awake } else { asleep };
            patience.waited(Duration::from_micros(time));
        }
        looked
    }

    fn steady(asleep: u64, awake: u64, count: usize) -> impl Iterator<Item = (u64, u64)> {
        std::iter::repeat_n((asleep, awake), count)
    }

    #[test]
    fn looks_where_waking_is_slow() {
        let mut patience = Patience::new();
        let looked = play(&mut patience, steady(70, 20, 10_000));
        assert!((9_700..9_900).contains(&looked), "{looked}");
        // The window that has begun, and perhaps one more.
        let looked = play(&mut patience, steady(5_000, 5_000, 1_000));
        assert!(looked < 2 * WINDOW, "{looked}");
        let looked = play(&mut patience, steady(70, 20, 10_000));
        assert!((9_600..9_900).contains(&looked), "{looked}");
    }

    #[test]
    fn a_few_long_waits_decide_nothing() {
        let long = |n: usize| n.is_multiple_of(4);
        let waits = |asleep, awake, other: u64| {
            (0..10_000).map(move |n| {
                if long(n) {
                    (other, other)
                } else {
                    (asleep, awake)
                }
            })
        };
        let looked = play(&mut Patience::new(), waits(70, 15, 1_000));
        assert!(looked > 9_600, "{looked}");
        for other in [180, 300] {
            let looked = play(&mut Patience::new(), waits(25, 25, other));
            assert!(looked < 10 * WINDOW, "{looked}");
        }
    }

    #[test]
    fn sleeps_where_waking_is_quick_or_requests_are_rare() {
        for asleep in [5, 15, 300, 100_000] {
            assert_eq!(play(&mut Patience::new(), steady(asleep, 10, 10_000)), 0);
        }
    }

    #[test]
    fn attempts_in_vain_become_rare() {
        // Because nothing comes while somebody looks, or because it is not quicker.
        for (asleep, awake) in [(100, 100), (60, 31)] {
            let mut patience = Patience::new();
            let looked = play(&mut patience, steady(asleep, awake, 100_000));
            assert!((5 * WINDOW..15 * WINDOW).contains(&looked), "{looked}");
            // The next ones come all the same: the machine may have another load by then.
            assert!(play(&mut patience, steady(asleep, awake, 40_000)) > 0);
        }
    }
}
