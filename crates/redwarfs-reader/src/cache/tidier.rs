//! The cache's handle to its tidying thread.

use std::fmt;
use std::sync::Mutex;
#[cfg(test)]
use std::sync::PoisonError;

use crossbeam_channel::Sender;

use crate::options::{CpuSet, Tidy};

/// Tells whether a part of a block is swapped out.
pub(super) type SwapProbe = dyn FnMut(&[u8]) -> bool + Send;

/// A thread that tidies the cache from time to time. It starts with the first block, so that a
/// process may still fork after opening an image, and ends with the cache.
pub(super) struct Tidier {
    pub(super) tidy: Tidy,
    /// The CPUs of the thread, if not all.
    pub(super) affinity: Option<CpuSet>,
    /// Dropping it ends the thread.
    pub(super) alive: Mutex<Option<Sender<()>>>,
    /// What a thread that looks for swapped blocks asks, if not the system.
    pub(super) probe: Mutex<Option<Box<SwapProbe>>>,
}

impl Tidier {
    pub(super) fn new(tidy: Tidy, affinity: Option<CpuSet>) -> Self {
        Self {
            tidy,
            affinity,
            alive: Mutex::default(),
            probe: Mutex::default(),
        }
    }

    #[cfg(test)]
    pub(super) fn set_probe(&self, probe: Box<SwapProbe>) {
        *self.probe.lock().unwrap_or_else(PoisonError::into_inner) = Some(probe);
    }
}

impl fmt::Debug for Tidier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Tidier")
            .field("tidy", &self.tidy)
            .finish_non_exhaustive()
    }
}
