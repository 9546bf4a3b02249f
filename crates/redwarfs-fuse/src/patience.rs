//! How a reader waits for the next request.
//!
//! A thread that sleeps until the next request costs nothing meanwhile, but has to be woken. Where
//! that is quick there is nothing better. In virtual machines it often takes 20 to 60 us, because the
//! host has to start an idle processor again, and with small requests a program then waits for that
//! more than for everything else. There a reader looks for the next request for a moment before it
//! sleeps.
//!
//! Whether that pays is measured, not assumed: if most requests come at intervals at which waking
//! could be what takes the time, some are looked for, and if that at least halves the typical time
//! between an answer and the next request, it goes on. It ends when requests do not come soon enough,
//! and has to prove itself again now and then. Where it does not pay, attempts become rare.
//!
//! So the price is bounded. For a request that comes, it is the time since the last answer, which was
//! at most half of what it is with sleeping when that was compared last, at most 1024 requests ago. For
//! waits in vain it is [`LOOK`] each, and after at most two windows of those the thread sleeps again.

use std::time::Duration;

/// How long a request is looked for.
pub(crate) const LOOK: Duration = Duration::from_micros(50);
/// Waits that are judged together.
const WINDOW: usize = 16;
/// Of these, so many have to be as expected.
const MOST: usize = 12;
/// Waits that are long enough for waking to be a large part of them, and short enough for that, too.
const SLOW: std::ops::Range<Duration> = Duration::from_micros(20)..Duration::from_micros(200);
/// Windows after which looking has to prove itself again.
const LASTS: u32 = 64;
/// Windows between the first attempts in vain; twice as many each time, up to the second number.
const PAUSES: (u32, u32) = (4, 1024);

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Sleeping,
    /// Looking, to see what that is worth.
    Trying,
    Looking,
}

/// What one reader has learned about its waits.
#[derive(Debug)]
pub(crate) struct Patience {
    mode: Mode,
    /// The waits of this window, and their number.
    times: [Duration; WINDOW],
    waits: usize,
    /// Median of the last window that was slept through.
    slept: Duration,
    /// Windows until the next attempt, or to the end of looking.
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

    /// Whether to look for the next request.
    pub(crate) fn looks(&self) -> bool {
        self.mode != Mode::Sleeping
    }

    /// Takes note of how long a wait took.
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

    /// Decides what to do after a window.
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
