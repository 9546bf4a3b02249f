//! A range of an object on its way into memory.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::Limits;
use crate::failure::Failure;
use crate::fetch::{Attempts, FOREVER};
use crate::runtime::STOP_POLL;

/// Most ranges of a transfer that are remembered as read: what is read in smaller parts counts as unread.
const MOST_RANGES: usize = 1 << 10;

/// A reader waits for so long after the fetching side should have ended: that one knows the cause.
const GRACE: Duration = Duration::from_secs(1);

/// A range that is being fetched, or was. Its bytes arrive in order, and can be read as soon as they are there.
#[derive(Debug)]
pub(crate) struct Transfer {
    pub(crate) range: Range<u64>,
    /// Whether the server sends no part of these bytes.
    only: bool,
    state: Mutex<Received>,
    changed: Condvar,
    /// Somebody waits for it.
    urgent: Notify,
}

#[derive(Debug, Default)]
struct Received {
    bytes: Vec<u8>,
    failed: Option<Arc<Failure>>,
    /// What was copied out, and what nobody has asked for, from the start of the transfer on.
    read: Covered,
    /// When the first attempt began, when the last read that waits for it came, and when bytes came.
    began: Option<Instant>,
    awaited: Option<Instant>,
    moved: Option<Instant>,
    /// Why the last attempt failed.
    trouble: Option<Failure>,
}

/// Ranges that do not touch each other, by their starts.
#[derive(Debug, Default)]
struct Covered {
    ends: BTreeMap<u64, u64>,
    bytes: u64,
}

impl Covered {
    fn add(&mut self, range: Range<u64>) {
        let Range { mut start, mut end } = range;
        if start >= end {
            return;
        }
        let before = self.ends.range(..=start).next_back();
        if let Some((first, _)) = before.filter(|(_, last)| **last >= start) {
            start = *first;
        }
        let touching: Vec<u64> = self.ends.range(start..=end).map(|(at, _)| *at).collect();
        for at in touching {
            if let Some(last) = self.ends.remove(&at) {
                self.bytes -= last - at;
                end = end.max(last);
            }
        }
        if self.ends.len() < MOST_RANGES {
            self.ends.insert(start, end);
            self.bytes += end - start;
        }
    }
}

impl Received {
    /// When to give up, for somebody who waits since a moment. Each byte that comes gives more time, but a transfer never gets more
    /// than a slow line takes for it.
    fn deadline(&self, since: Instant, limits: &Limits, len: u64) -> Instant {
        let moved = self.moved.map_or(since, |moved| moved.max(since));
        let whole = since + Attempts::time(limits, len).min(FOREVER);
        whole.min(moved + limits.read.min(FOREVER))
    }
}

impl Transfer {
    #[cfg(test)]
    pub(crate) fn new(range: Range<u64>) -> Arc<Self> {
        Self::joined(range, &[])
    }

    /// One that is to be fetched. Nobody has asked for the gaps in it.
    pub(crate) fn joined(range: Range<u64>, gaps: &[Range<u64>]) -> Arc<Self> {
        let mut state = Received::default();
        for gap in gaps {
            let from = |at: u64| at.saturating_sub(range.start);
            state.read.add(from(gap.start)..from(gap.end));
        }
        Arc::new(Self {
            range,
            only: false,
            state: Mutex::new(state),
            changed: Condvar::new(),
            urgent: Notify::new(),
        })
    }

    /// With all its bytes.
    pub(crate) fn complete(start: u64, bytes: Vec<u8>) -> Arc<Self> {
        Self::with(start, bytes, false)
    }

    /// With all its bytes, which the server sends in this way only.
    pub(crate) fn only(start: u64, bytes: Vec<u8>) -> Arc<Self> {
        Self::with(start, bytes, true)
    }

    fn with(start: u64, bytes: Vec<u8>, only: bool) -> Arc<Self> {
        Arc::new(Self {
            range: start..start.saturating_add(bytes.len() as u64),
            only,
            state: Mutex::new(Received {
                bytes,
                ..Received::default()
            }),
            changed: Condvar::new(),
            urgent: Notify::new(),
        })
    }

    pub(crate) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn lock(&self) -> MutexGuard<'_, Received> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that a read waits for it from here on.
    pub(crate) fn awaited(&self) {
        self.lock().awaited = Some(Instant::now());
        self.urgent.notify_one();
    }

    /// Says that the first attempt begins.
    pub(crate) fn begins(&self) {
        self.lock().began = Some(Instant::now());
        self.changed.notify_all();
    }

    /// Says why an attempt failed.
    pub(crate) fn has_trouble(&self, failure: &Failure) {
        self.lock().trouble = Some(failure.clone());
    }

    /// When the fetching side gives up, as things are. The time before somebody waited for it does not count.
    pub(crate) fn deadline(&self, limits: &Limits) -> Instant {
        let state = self.lock();
        let since = state.began.max(state.awaited);
        state.deadline(since.unwrap_or_else(Instant::now), limits, self.len())
    }

    /// Waits until somebody waits for it.
    pub(crate) async fn hurried(&self) {
        self.urgent.notified().await;
    }

    /// How many bytes are there.
    pub(crate) fn arrived(&self) -> u64 {
        self.lock().bytes.len() as u64
    }

    /// The bytes that are there, from its start on.
    pub(crate) fn bytes(&self) -> Vec<u8> {
        self.lock().bytes.clone()
    }

    /// Whether a read could not have it fetched again.
    pub(crate) fn is_only(&self) -> bool {
        self.only
    }

    /// Whether all bytes are there.
    pub(crate) fn is_complete(&self) -> bool {
        self.arrived() >= self.len()
    }

    /// Whether it ended without all bytes.
    pub(crate) fn has_failed(&self) -> bool {
        self.lock().failed.is_some()
    }

    /// Whether half of its bytes were read, or nobody has asked for them.
    pub(crate) fn is_mostly_read(&self) -> bool {
        self.lock().read.bytes >= self.len().div_ceil(2)
    }

    /// Whether nothing will arrive any more.
    pub(crate) fn is_settled(&self) -> bool {
        let state = self.lock();
        state.failed.is_some() || state.bytes.len() as u64 >= self.len()
    }

    /// Adds bytes. False if they are more than were asked for.
    pub(crate) fn add(&self, bytes: &[u8]) -> bool {
        let mut state = self.lock();
        let room = self.len() - state.bytes.len() as u64;
        if bytes.len() as u64 > room {
            return false;
        }
        state.bytes.extend_from_slice(bytes);
        state.moved = Some(Instant::now());
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Nothing more comes.
    pub(crate) fn fail(&self, failure: Failure) {
        self.lock().failed = Some(Arc::new(failure));
        self.changed.notify_all();
    }

    /// Copies bytes from an absolute offset on, and waits for them as long as the limits say, or until `stop` is set. They
    /// must be inside the range.
    /// Returns whether all bytes of the transfer that somebody asked for were copied at some time.
    pub(crate) fn copy(
        &self,
        offset: u64,
        out: &mut [u8],
        limits: &Limits,
        stop: Option<&AtomicBool>,
    ) -> Result<bool, Arc<Failure>> {
        let since = Instant::now();
        let mut state = self.lock();
        loop {
            let from = offset - self.range.start;
            if let Some(all) = Self::take(&mut state, self.len(), from, out) {
                return Ok(all);
            }
            if let Some(failure) = &state.failed {
                return Err(Arc::clone(failure));
            }
            let limit = match state.began {
                // Other transfers may be before this one in the queue.
                None => {
                    since
                        + Attempts::time(limits, self.len())
                            .saturating_mul(4)
                            .min(FOREVER)
                }
                Some(began) => state.deadline(began.max(since), limits, self.len()),
            };
            if stop.is_some_and(|stop| stop.load(Ordering::Relaxed)) {
                return Err(Arc::new(Failure::interrupted()));
            }
            let left = (limit + GRACE).saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                let what = "the server does not answer in time";
                let late = || Failure::last(std::io::ErrorKind::TimedOut, what);
                return Err(Arc::new(state.trouble.clone().unwrap_or_else(late)));
            }
            let turn = stop.map_or(left, |_| left.min(STOP_POLL));
            let waited = self.changed.wait_timeout(state, turn);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Copies bytes that are there already; none otherwise. Returns whether all bytes of the transfer that somebody asked for were
    /// copied at some time.
    pub(crate) fn try_copy(&self, offset: u64, out: &mut [u8]) -> Option<bool> {
        Self::take(&mut self.lock(), self.len(), offset - self.range.start, out)
    }

    fn take(state: &mut Received, len: u64, from: u64, out: &mut [u8]) -> Option<bool> {
        let start = usize::try_from(from).unwrap_or(usize::MAX);
        let bytes = state.bytes.get(start..start.saturating_add(out.len()))?;
        out.copy_from_slice(bytes);
        state.read.add(from..from.saturating_add(out.len() as u64));
        Some(state.read.bytes >= len)
    }
}

#[cfg(test)]
// A list of one range is meant.
#[allow(clippy::single_range_in_vec_init)]
mod tests {
    use super::*;

    fn limits(millis: u64) -> Limits {
        Limits {
            read: Duration::from_millis(millis),
            ..Limits::default()
        }
    }

    #[test]
    fn bytes_can_be_read_as_they_arrive() {
        let transfer = Transfer::new(10..16);
        let limits = limits(60_000);
        assert_eq!(transfer.try_copy(10, &mut [0; 1]), None);
        assert!(transfer.add(b"abc"));
        let mut out = [0; 2];
        assert!(!transfer.copy(11, &mut out, &limits, None).unwrap());
        assert_eq!(&out, b"bc");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut out = [0; 4];
                (transfer.copy(12, &mut out, &limits, None).unwrap(), out)
            });
            assert!(transfer.add(b"def"));
            assert_eq!(reader.join().unwrap(), (false, *b"cdef"));
        });
        assert!(transfer.is_settled() && !transfer.add(b"g"));
        assert_eq!(transfer.try_copy(10, &mut out), Some(true));
    }

    #[test]
    fn a_transfer_is_read_in_any_order() {
        let all = |order: &[u64]| {
            let transfer = Transfer::joined(0..40, &[10..20]);
            transfer.add(&[7; 40]);
            let ends = order.iter().map(|at| transfer.try_copy(*at, &mut [0; 5]));
            let mut ends: Vec<_> = ends.collect();
            let last = ends.pop();
            assert!(ends.iter().all(|end| *end == Some(false)), "{order:?}");
            last == Some(Some(true))
        };
        assert!(all(&[35, 30, 25, 20, 5, 0]));
        assert!(all(&[0, 5, 20, 25, 30, 35]));
        assert!(all(&[30, 0, 35, 33, 20, 5, 7, 25]));
        assert!(!all(&[35, 30, 25, 25, 20, 20, 0, 0]));
    }

    #[test]
    fn what_was_read_takes_little_memory() {
        let mut read = Covered::default();
        (0..4096).for_each(|at| read.add(3 * at..3 * at + 1));
        assert_eq!(read.ends.len(), MOST_RANGES);
        read.add(5..6);
        read.add(0..1 << 40);
        assert_eq!((read.ends.len(), read.bytes), (1, 1 << 40));
        read.add(7..9);
        assert_eq!(read.bytes, 1 << 40);
    }

    #[test]
    fn waiting_ends_with_a_failure_or_in_time() {
        let transfer = Transfer::new(0..4);
        let soon = limits(5);
        let failure = transfer.copy(0, &mut [0; 1], &soon, None).unwrap_err();
        assert_eq!(failure.kind, std::io::ErrorKind::TimedOut);
        transfer.begins();
        transfer.has_trouble(&Failure::passing(std::io::ErrorKind::Other, "it rains"));
        let failure = transfer.copy(0, &mut [0; 1], &soon, None).unwrap_err();
        assert_eq!(failure.what, "it rains");
        transfer.add(b"a");
        transfer.fail(Failure::changed());
        transfer.copy(0, &mut [0; 1], &soon, None).unwrap();
        let failure = transfer.copy(0, &mut [0; 2], &soon, None).unwrap_err();
        assert!(failure.what.contains("changed"));
    }

    #[test]
    fn the_length_of_a_transfer_does_not_make_an_outage_longer() {
        let limits = limits(60_000);
        let long = Transfer::new(0..8 << 20);
        let begin = Instant::now();
        long.begins();
        let left = |transfer: &Transfer| transfer.deadline(&limits).duration_since(begin).as_secs();
        assert!((60..62).contains(&left(&long)), "{}", left(&long));
        // As long as bytes come, it has the time of a slow line.
        let at = |secs| begin + Duration::from_secs(secs);
        long.lock().moved = Some(at(100));
        assert_eq!(left(&long), 160);
        long.lock().moved = Some(at(180));
        assert_eq!(left(&long), 60 + 128);
        // A read that comes late has all its time.
        long.lock().awaited = Some(at(170));
        assert_eq!(left(&long), 180 + 60);
    }
}
