//! The line to a server, as requests measure it: how long an answer takes, and how many bytes arrive in a second.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use redwarfs_io::Line;

/// Measurements that count: the last ones. The best of them tells what the line can do, the others were in the way of each
/// other.
const RECENT: usize = 64;

/// Shortest time in which bytes are counted: shorter ones show how the system hands them on.
const SHORTEST: Duration = Duration::from_millis(50);

/// Bytes of which an answer that is alone must have so many to count (64 KiB).
const ENOUGH: u64 = 64 << 10;

/// What is known of the line to one server.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<Measured>);

#[derive(Debug, Default)]
struct Measured {
    /// Requests that are running.
    running: usize,
    /// Since when bytes are counted, and those that came.
    since: Option<Instant>,
    bytes: u64,
    /// No interval has ended since the first of these requests, so the present one includes the delay.
    is_first: bool,
    /// Bytes in a second.
    rates: VecDeque<u64>,
    delays: VecDeque<Duration>,
}

fn note<T>(list: &mut VecDeque<T>, value: T) {
    if list.len() >= RECENT {
        list.pop_front();
    }
    list.push_back(value);
}

impl Measured {
    fn delay(&self) -> Option<Duration> {
        self.delays.iter().min().copied()
    }

    /// Ends an interval, and begins the next one.
    fn turn(&mut self, now: Instant, elapsed: Duration) {
        let nanos = elapsed.as_nanos().max(1);
        let rate = u128::from(self.bytes) * 1_000_000_000 / nanos;
        note(&mut self.rates, u64::try_from(rate).unwrap_or(u64::MAX));
        self.since = Some(now);
        self.bytes = 0;
        self.is_first = false;
    }

    fn begin(&mut self, now: Instant) {
        self.running += 1;
        if self.since.is_none() {
            self.since = Some(now);
            self.bytes = 0;
            self.is_first = true;
        }
    }

    fn receive(&mut self, now: Instant, bytes: u64) {
        self.bytes += bytes;
        let elapsed = now.saturating_duration_since(self.since.unwrap_or(now));
        if elapsed >= SHORTEST.max(self.delay().unwrap_or_default()) {
            self.turn(now, elapsed);
        }
    }

    fn end(&mut self, now: Instant) {
        self.running = self.running.saturating_sub(1);
        if self.running > 0 {
            return;
        }
        let since = self.since.take().unwrap_or(now);
        let elapsed = now.saturating_duration_since(since);
        // What is left in a buffer comes at any speed.
        if self.bytes >= ENOUGH && (self.is_first || elapsed >= SHORTEST) {
            self.turn(now, elapsed);
            self.since = None;
        }
    }

    fn line(&self) -> Option<Line> {
        Some(Line {
            rate: *self.rates.iter().max()?,
            delay: self.delay()?,
        })
    }
}

impl Meter {
    fn lock(&self) -> MutexGuard<'_, Measured> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// A request is sent.
    pub(crate) fn ask(self: &Arc<Self>) -> Asked {
        let now = Instant::now();
        self.lock().begin(now);
        Asked {
            meter: Arc::clone(self),
            at: now,
        }
    }

    /// The line, if something was measured.
    pub(crate) fn line(&self) -> Option<Line> {
        self.lock().line()
    }
}

/// A request. It ends when it is dropped.
#[derive(Debug)]
pub(crate) struct Asked {
    meter: Arc<Meter>,
    at: Instant,
}

impl Asked {
    /// The head of the answer is there.
    pub(crate) fn answered(&self) {
        let delay = self.at.elapsed();
        note(&mut self.meter.lock().delays, delay);
    }

    /// So many bytes of the body have arrived.
    pub(crate) fn received(&self, bytes: u64) {
        self.meter.lock().receive(Instant::now(), bytes);
    }
}

impl Drop for Asked {
    fn drop(&mut self) {
        self.meter.lock().end(Instant::now());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn in_flight(meter: &Measured) -> Option<u64> {
        meter.line().map(|line| line.in_flight())
    }

    const MS: Duration = Duration::from_millis(1);

    #[test]
    fn bandwidth_and_delay_are_measured() {
        let mut line = Measured::default();
        assert_eq!(in_flight(&line), None);
        let mut now = Instant::now();
        // 10 MB a second, with a delay of 100 ms, 300 ms at first.
        line.begin(now);
        note(&mut line.delays, 300 * MS);
        for _ in 0..100 {
            now += 10 * MS;
            line.receive(now, 100_000);
        }
        assert_eq!(in_flight(&line), Some(3_000_000));
        line.begin(now);
        note(&mut line.delays, 100 * MS);
        assert_eq!(in_flight(&line), Some(1_000_000));
        line.end(now);
        line.end(now);
        // Nothing runs, so this time does not count.
        now += 10_000 * MS;
        line.begin(now);
        for _ in 0..100 {
            now += 10 * MS;
            line.receive(now, 200_000);
        }
        assert_eq!(in_flight(&line), Some(2_000_000));
        line.end(now);
        // A line that gets slower.
        line.begin(now);
        for _ in 0..10 * RECENT {
            now += 10 * MS;
            line.receive(now, 1000);
        }
        assert_eq!(in_flight(&line), Some(10_000));
    }

    #[test]
    fn one_short_answer_counts_if_it_has_enough_bytes() {
        for (bytes, want) in [(1000, None), (64 << 10, Some(64 << 10))] {
            let mut line = Measured::default();
            let now = Instant::now();
            line.begin(now);
            note(&mut line.delays, 20 * MS);
            line.receive(now + 15 * MS, bytes);
            line.end(now + 20 * MS);
            assert_eq!(in_flight(&line), want);
            assert!(line.since.is_none() && line.running == 0);
        }
    }
}
