//! How a reader waits for the next request.
//!
//! A thread that sleeps until the next request costs nothing meanwhile, but has to be woken. Where
//! that is quick there is nothing better. In virtual machines it often takes 20 to 60 us, because the
//! host has to start an idle processor again, and with small requests a program then waits for that
//! more than for everything else. There a reader looks for the next request for a moment before it
//! sleeps.
//!
//! Whether that pays is measured, not assumed: if most requests come at intervals at which waking
//! could be what takes the time, some are looked for, and if that at least halves the time between
//! an answer and the next request, it goes on. It ends when requests do not come soon enough, and is
//! put to the test again now and then. Where it does not pay, attempts become rare.
//!
//! So the price is bounded: [`LOOK`] of processor time for a request that did not come, for a few
//! requests out of a [`WINDOW`] at most, and about the time between answer and request for the others, which is less
//! than it takes to wake a thread where looking is used at all. 2,000 random small files of a
//! mount on 2 virtual processors took 0.58 of the time (medians are in `docs/bench`).

use std::time::Duration;

/// How long a request is looked for.
pub(crate) const LOOK: Duration = Duration::from_micros(50);
/// Waits that are judged together.
const WINDOW: u32 = 16;
/// Of these, so many have to fulfil an expectation.
const MOST: u32 = 12;
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
    /// Of this window: waits, those as expected, and their time.
    waits: u32,
    fulfilled: u32,
    sum: Duration,
    /// Time of the last window that was slept through.
    slept: Duration,
    /// Windows until the next attempt, or to the end of looking.
    left: u32,
    pause: u32,
}

impl Patience {
    pub(crate) fn new() -> Self {
        Self {
            mode: Mode::Sleeping,
            waits: 0,
            fulfilled: 0,
            sum: Duration::ZERO,
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
        self.waits += 1;
        self.sum += time.min(SLOW.end);
        let as_expected = match self.mode {
            Mode::Sleeping => SLOW.contains(&time),
            Mode::Trying | Mode::Looking => time < LOOK,
        };
        self.fulfilled += u32::from(as_expected);
        if self.waits < WINDOW {
            return;
        }
        let most = self.fulfilled >= MOST;
        let sum = std::mem::take(&mut self.sum);
        (self.waits, self.fulfilled) = (0, 0);
        match self.mode {
            Mode::Sleeping => {
                self.slept = sum;
                if self.left > 0 {
                    self.left -= 1;
                } else if most {
                    self.mode = Mode::Trying;
                }
            }
            Mode::Trying if most && sum * 2 <= self.slept => {
                (self.mode, self.left) = (Mode::Looking, LASTS);
                self.pause = PAUSES.0;
            }
            Mode::Trying => {
                (self.mode, self.left) = (Mode::Sleeping, self.pause);
                self.pause = (self.pause * 2).min(PAUSES.1);
            }
            Mode::Looking if !most => (self.mode, self.left) = (Mode::Sleeping, PAUSES.0),
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

    /// Plays `count` waits that take so many microseconds asleep and awake; how many were awake.
    fn play(patience: &mut Patience, count: u32, asleep: u64, awake: u64) -> u32 {
        let mut looked = 0;
        for _ in 0..count {
            looked += u32::from(patience.looks());
            let time = if patience.looks() { awake } else { asleep };
            patience.waited(Duration::from_micros(time));
        }
        looked
    }

    #[test]
    fn looks_where_waking_is_slow() {
        let mut patience = Patience::new();
        let looked = play(&mut patience, 10_000, 70, 20);
        assert!((9_700..9_900).contains(&looked), "{looked}");
        // What is left of a window, and no more.
        let looked = play(&mut patience, 1_000, 5_000, 5_000);
        assert!(looked < 2 * WINDOW, "{looked}");
        let looked = play(&mut patience, 10_000, 70, 20);
        assert!((9_600..9_900).contains(&looked), "{looked}");
    }

    #[test]
    fn sleeps_where_waking_is_quick_or_requests_are_rare() {
        for asleep in [5, 15, 300, 100_000] {
            assert_eq!(play(&mut Patience::new(), 10_000, asleep, 10), 0);
        }
    }

    #[test]
    fn attempts_in_vain_become_rare() {
        // Because nothing comes while somebody looks, or because it is not quicker.
        for (asleep, awake) in [(100, 100), (60, 31)] {
            let mut patience = Patience::new();
            let looked = play(&mut patience, 100_000, asleep, awake);
            assert!((5 * WINDOW..15 * WINDOW).contains(&looked), "{looked}");
            // The next ones come all the same: the machine may have another load by then.
            assert!(play(&mut patience, 40_000, asleep, awake) > 0);
        }
    }
}
