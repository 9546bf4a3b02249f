//! A range of an object on its way into memory.

use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use tokio::sync::Notify;

use crate::failure::Failure;

/// A range that is being fetched, or was. Its bytes arrive in order, and can be read as soon as they are there.
#[derive(Debug)]
pub(crate) struct Piece {
    pub(crate) range: Range<u64>,
    /// Whether the server sends no part of these bytes.
    only: bool,
    state: Mutex<State>,
    changed: Condvar,
    /// Somebody waits for it.
    urgent: Notify,
}

#[derive(Debug, Default)]
struct State {
    bytes: Vec<u8>,
    failed: Option<Arc<Failure>>,
    /// Bytes that were copied out, those that were copied twice counted twice.
    read: u64,
}

impl Piece {
    pub(crate) fn new(range: Range<u64>) -> Arc<Self> {
        Arc::new(Self {
            range,
            only: false,
            state: Mutex::default(),
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
            state: Mutex::new(State {
                bytes,
                ..State::default()
            }),
            changed: Condvar::new(),
            urgent: Notify::new(),
        })
    }

    pub(crate) fn len(&self) -> u64 {
        self.range.end - self.range.start
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that somebody waits for it.
    pub(crate) fn hurry(&self) {
        self.urgent.notify_one();
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
        drop(state);
        self.changed.notify_all();
        true
    }

    /// Nothing more comes.
    pub(crate) fn fail(&self, failure: Failure) {
        self.lock().failed = Some(Arc::new(failure));
        self.changed.notify_all();
    }

    /// Copies bytes from an absolute offset on, and waits for them until `limit`. They must be inside the range. Returns
    /// whether all bytes of the piece were copied at some time, and these were the last ones.
    pub(crate) fn copy(
        &self,
        offset: u64,
        out: &mut [u8],
        limit: Instant,
    ) -> Result<bool, Arc<Failure>> {
        let start = usize::try_from(offset - self.range.start).unwrap_or(usize::MAX);
        let end = start.saturating_add(out.len());
        let mut state = self.lock();
        loop {
            if let Some(bytes) = state.bytes.get(start..end) {
                out.copy_from_slice(bytes);
                state.read = state.read.saturating_add(out.len() as u64);
                return Ok(end as u64 == self.len() && state.read >= self.len());
            }
            if let Some(failure) = &state.failed {
                return Err(Arc::clone(failure));
            }
            let left = limit.saturating_duration_since(Instant::now());
            if left == Duration::ZERO {
                let what = "the server does not answer in time";
                return Err(Arc::new(Failure::last(std::io::ErrorKind::TimedOut, what)));
            }
            let waited = self.changed.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Copies bytes that are there already; false otherwise.
    pub(crate) fn try_copy(&self, offset: u64, out: &mut [u8]) -> bool {
        let start = usize::try_from(offset - self.range.start).unwrap_or(usize::MAX);
        let mut state = self.lock();
        let Some(bytes) = state.bytes.get(start..start.saturating_add(out.len())) else {
            return false;
        };
        out.copy_from_slice(bytes);
        state.read = state.read.saturating_add(out.len() as u64);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_can_be_read_as_they_arrive() {
        let piece = Piece::new(10..16);
        let limit = Instant::now() + Duration::from_secs(60);
        assert!(!piece.try_copy(10, &mut [0; 1]));
        assert!(piece.add(b"abc"));
        let mut out = [0; 2];
        assert!(!piece.copy(11, &mut out, limit).unwrap());
        assert_eq!(&out, b"bc");
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut out = [0; 4];
                (piece.copy(12, &mut out, limit).unwrap(), out)
            });
            assert!(piece.add(b"def"));
            assert_eq!(reader.join().unwrap(), (true, *b"cdef"));
        });
        assert!(piece.is_settled() && !piece.add(b"g"));
    }

    #[test]
    fn waiting_ends_with_a_failure_or_in_time() {
        let piece = Piece::new(0..4);
        let soon = Instant::now() + Duration::from_millis(5);
        let failure = piece.copy(0, &mut [0; 1], soon).unwrap_err();
        assert_eq!(failure.kind, std::io::ErrorKind::TimedOut);
        piece.add(b"a");
        piece.fail(Failure::changed());
        piece.copy(0, &mut [0; 1], soon).unwrap();
        assert!(
            piece
                .copy(0, &mut [0; 2], soon)
                .unwrap_err()
                .what
                .contains("changed")
        );
    }
}
