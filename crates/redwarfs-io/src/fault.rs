//! A source that misbehaves on request, for tests.

use std::io;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError};

use crate::Source;

/// One way to misbehave.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Fault {
    /// The read with this number, counted from 0, fails.
    FailRead(u64),
    /// Every read from this number on fails.
    FailFrom(u64),
    /// Every read that touches one of these bytes fails.
    FailRange(Range<u64>),
    /// Every read that touches one of these bytes waits until the source is healed, and then succeeds.
    Stall(Range<u64>),
    /// The source ends here: reads beyond give `UnexpectedEof`, and the length is this offset.
    Truncate(u64),
    /// The bits of `mask` are inverted in the byte at `offset`.
    Flip {
        /// Absolute offset of the byte.
        offset: u64,
        /// Bits to invert.
        mask: u8,
    },
}

/// Wraps another source and applies [`Fault`]s, which may be changed while it is in use.
#[derive(Debug)]
pub struct FaultSource {
    inner: Arc<dyn Source>,
    faults: Mutex<Vec<Fault>>,
    healed: Condvar,
    reads: AtomicU64,
    stalled: AtomicU64,
}

impl FaultSource {
    /// A source without faults.
    pub fn new(inner: impl Source + 'static) -> Self {
        Self {
            inner: Arc::new(inner),
            faults: Mutex::default(),
            healed: Condvar::new(),
            reads: AtomicU64::new(0),
            stalled: AtomicU64::new(0),
        }
    }

    /// Adds a fault.
    #[must_use]
    pub fn with(self, fault: Fault) -> Self {
        self.add(fault);
        self
    }

    /// Adds a fault to a source that is in use.
    pub fn add(&self, fault: Fault) {
        self.lock().push(fault);
    }

    /// Removes all faults. Stalled reads continue.
    pub fn heal(&self) {
        self.lock().clear();
        self.healed.notify_all();
    }

    /// Number of stalled reads.
    pub fn stalled(&self) -> u64 {
        self.stalled.load(Ordering::SeqCst)
    }

    /// Waits while the range is stalled. Returns the remaining faults.
    fn settle(&self, offset: u64, end: u64) -> Vec<Fault> {
        let stalls = |fault: &Fault| match fault {
            Fault::Stall(range) => offset < range.end && range.start < end,
            _ => false,
        };
        let mut faults = self.lock();
        if faults.iter().any(stalls) {
            self.stalled.fetch_add(1, Ordering::SeqCst);
            while faults.iter().any(stalls) {
                faults = self
                    .healed
                    .wait(faults)
                    .unwrap_or_else(PoisonError::into_inner);
            }
            self.stalled.fetch_sub(1, Ordering::SeqCst);
        }
        faults.clone()
    }

    /// Number of requested reads, including failed ones.
    pub fn reads(&self) -> u64 {
        self.reads.load(Ordering::SeqCst)
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Fault>> {
        self.faults.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Source for FaultSource {
    fn len(&self) -> io::Result<u64> {
        let mut len = self.inner.len()?;
        for fault in self.lock().iter() {
            if let Fault::Truncate(end) = fault {
                len = len.min(*end);
            }
        }
        Ok(len)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let number = self.reads.fetch_add(1, Ordering::SeqCst);
        let end = offset.saturating_add(buf.len() as u64);
        let faults = self.settle(offset, end);
        for fault in &faults {
            let fails = match fault {
                Fault::FailRead(n) => number == *n,
                Fault::FailFrom(n) => number >= *n,
                Fault::FailRange(range) => offset < range.end && range.start < end,
                Fault::Truncate(limit) => {
                    if end > *limit {
                        return Err(io::ErrorKind::UnexpectedEof.into());
                    }
                    false
                }
                Fault::Flip { .. } | Fault::Stall(_) => false,
            };
            if fails {
                return Err(io::Error::other(format!(
                    "injected failure of read {number} ({} bytes at {offset})",
                    buf.len()
                )));
            }
        }
        self.inner.read_exact_at(offset, buf)?;
        for fault in &faults {
            if let Fault::Flip { offset: at, mask } = fault
                && let Some(index) = at.checked_sub(offset)
                && let Some(byte) = usize::try_from(index).ok().and_then(|i| buf.get_mut(i))
            {
                *byte ^= mask;
            }
        }
        Ok(())
    }

    fn next_data(&self, offset: u64) -> io::Result<u64> {
        self.inner.next_data(offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemorySource;

    fn source(faults: &[Fault]) -> FaultSource {
        let source = FaultSource::new(MemorySource::new((0..16).collect::<Vec<u8>>()));
        for fault in faults {
            source.add(fault.clone());
        }
        source
    }

    #[test]
    fn each_fault_does_what_it_says() {
        let mut buf = [0; 4];
        let s = source(&[Fault::FailRead(1)]);
        assert!(s.read_exact_at(0, &mut buf).is_ok());
        assert!(s.read_exact_at(0, &mut buf).is_err());
        assert!(s.read_exact_at(0, &mut buf).is_ok());
        assert_eq!(s.reads(), 3);

        let s = source(&[Fault::FailFrom(1)]);
        assert!(s.read_exact_at(0, &mut buf).is_ok());
        assert!(s.read_exact_at(0, &mut buf).is_err());
        assert!(s.read_exact_at(0, &mut buf).is_err());
        s.heal();
        assert!(s.read_exact_at(0, &mut buf).is_ok());

        let s = source(&[Fault::FailRange(4..5)]);
        assert!(s.read_exact_at(0, &mut buf).is_ok());
        assert!(s.read_exact_at(1, &mut buf).is_err());
        assert!(s.read_exact_at(4, &mut buf).is_err());
        assert!(s.read_exact_at(5, &mut buf).is_ok());

        let s = source(&[Fault::Truncate(6)]);
        assert_eq!(s.len().unwrap(), 6);
        assert!(s.read_exact_at(2, &mut buf).is_ok());
        let e = s.read_exact_at(3, &mut buf).unwrap_err();
        assert_eq!(e.kind(), io::ErrorKind::UnexpectedEof);

        let s = source(&[Fault::Flip {
            offset: 5,
            mask: 0x81,
        }]);
        s.read_exact_at(4, &mut buf).unwrap();
        assert_eq!(buf, [4, 0x84, 6, 7]);
        s.read_exact_at(6, &mut buf).unwrap();
        assert_eq!(buf, [6, 7, 8, 9]);
    }

    #[test]
    fn a_stalled_read_waits_until_the_source_is_healed() {
        let s = source(&[Fault::Stall(4..6)]);
        let mut buf = [0; 4];
        s.read_exact_at(6, &mut buf).unwrap();
        s.read_exact_at(0, &mut buf).unwrap();
        std::thread::scope(|scope| {
            let reader = scope.spawn(|| {
                let mut buf = [0; 4];
                s.read_exact_at(2, &mut buf).map(|()| buf)
            });
            while s.stalled() == 0 {
                std::thread::yield_now();
            }
            assert!(!reader.is_finished());
            // Something else may happen to the source meanwhile.
            s.add(Fault::FailRange(0..1));
            s.heal();
            assert_eq!(reader.join().unwrap().unwrap(), [2, 3, 4, 5]);
        });
        assert_eq!(s.stalled(), 0);
        s.read_exact_at(4, &mut buf).unwrap();
    }
}
