//! Detects that a mount is not in use.
//!
//! Processes that use a mount cause requests, except for names and attributes that the kernel has
//! cached. So with a time limit, the kernel may cache these only for a quarter of the limit, and the mount
//! counts as idle a quarter later. Open files and running programs cause no requests either, but they
//! prevent unmounting.

use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// How long names and attributes are valid in a mount that is unmounted after `limit`, in seconds.
pub(crate) fn validity(limit: Duration) -> u64 {
    (limit.as_secs() / 4).max(1)
}

/// A mount that counts how often it is used.
pub(crate) trait Uses: fmt::Debug + Send + Sync {
    /// Number of requests so far from processes that use the files.
    fn uses(&self) -> u64;
}

/// Detects when a mount has been idle for the time limit.
#[derive(Debug)]
pub struct IdleWatch {
    mount: Arc<dyn Uses>,
    time: IdleTime,
}

impl IdleWatch {
    pub(crate) fn new(mount: Arc<dyn Uses>, limit: Duration) -> Self {
        let uses = mount.uses();
        Self {
            mount,
            time: IdleTime {
                limit: limit.saturating_add(Duration::from_secs(validity(limit))),
                uses,
                since: Instant::now(),
            },
        }
    }

    /// Time between two calls of [`IdleWatch::is_over`].
    #[must_use]
    pub fn period(&self) -> Duration {
        (self.time.limit / 8).min(Duration::from_secs(10))
    }

    /// Whether the mount was idle for the whole limit. After true, the time starts again.
    pub fn is_over(&mut self) -> bool {
        self.time.is_over(self.mount.uses(), Instant::now())
    }
}

/// The time since the last use of the mount.
#[derive(Debug)]
struct IdleTime {
    limit: Duration,
    /// Number of uses at `since`.
    uses: u64,
    since: Instant,
}

impl IdleTime {
    fn is_over(&mut self, uses: u64, now: Instant) -> bool {
        let over = uses == self.uses && now.duration_since(self.since) >= self.limit;
        if over || uses != self.uses {
            (self.uses, self.since) = (uses, now);
        }
        over
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_use_begins_the_time_anew() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut state = IdleTime {
            limit: Duration::from_secs(10),
            uses: 5,
            since: start,
        };
        assert!(!state.is_over(5, at(9)));
        assert!(!state.is_over(6, at(11)));
        assert!(!state.is_over(6, at(20)));
        assert!(state.is_over(6, at(21)));
        assert!(!state.is_over(6, at(30)));
        assert!(state.is_over(6, at(31)));
    }

    #[test]
    fn the_kernel_forgets_before_the_mount_counts_as_idle() {
        for (limit, valid) in [(0, 1), (1, 1), (7, 1), (8, 2), (3600, 900)] {
            assert_eq!(validity(Duration::from_secs(limit)), valid);
        }
    }
}
