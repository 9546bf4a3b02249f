//! A source whose unreadable places are zeros: checksums tell what was lost with them.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redwarfs_io::Source;

/// What is read at a time where a larger piece fails: a sector of most media.
const SMALL: usize = 4096;

pub(crate) struct Tolerant {
    source: Arc<dyn Source>,
    unreadable: AtomicU64,
}

impl fmt::Debug for Tolerant {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tolerant").finish_non_exhaustive()
    }
}

impl Tolerant {
    pub(crate) fn new(source: Arc<dyn Source>) -> Self {
        Self {
            source,
            unreadable: AtomicU64::new(0),
        }
    }

    /// Bytes that could not be read, each time that they were asked for.
    pub(crate) fn unreadable(&self) -> u64 {
        self.unreadable.load(Ordering::Relaxed)
    }
}

impl Source for Tolerant {
    fn len(&self) -> io::Result<u64> {
        self.source.len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let error = match self.source.read_exact_at(offset, buf) {
            Ok(()) => return Ok(()),
            Err(error) => error,
        };
        if error.kind() == io::ErrorKind::UnexpectedEof {
            return Err(error);
        }
        for (number, small) in (0_u64..).zip(buf.chunks_mut(SMALL)) {
            let at = offset.saturating_add(number * SMALL as u64);
            if self.source.read_exact_at(at, small).is_err() {
                small.fill(0);
                self.unreadable
                    .fetch_add(small.len() as u64, Ordering::Relaxed);
            }
        }
        Ok(())
    }
}
