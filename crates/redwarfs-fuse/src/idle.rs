//! Whether anybody still uses a mount.
//!
//! Whoever uses it asks the driver, but not about what the kernel knows already. So with a limit the
//! kernel keeps names and attributes for a quarter of it only, and the mount counts as idle that much
//! later: then nobody has used it for the whole limit. What is open or runs is not seen here; it
//! keeps the mount from being taken off.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::mount_state::MountState;
use crate::settings::validity;

/// Tells when a mount has been idle for long enough.
#[derive(Debug)]
pub struct IdleWatch {
    mount: Arc<MountState>,
    time: IdleTime,
}

impl IdleWatch {
    pub(crate) fn new(mount: Arc<MountState>, limit: Duration) -> Self {
        let uses = mount.counters.uses();
        Self {
            mount,
            time: IdleTime {
                limit: limit.saturating_add(Duration::from_secs(validity(limit))),
                uses,
                since: Instant::now(),
            },
        }
    }

    /// How long to wait before [`IdleWatch::is_over`] is asked again.
    #[must_use]
    pub fn period(&self) -> Duration {
        (self.time.limit / 8).min(Duration::from_secs(10))
    }

    /// Whether nobody has used the mount for the whole limit. The next yes comes after another one.
    pub fn is_over(&mut self) -> bool {
        self.time
            .is_over(self.mount.counters.uses(), Instant::now())
    }
}

/// How long nobody has used the mount.
#[derive(Debug)]
struct IdleTime {
    limit: Duration,
    /// How often the mount had been used at `since`.
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
