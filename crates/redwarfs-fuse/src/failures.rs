//! Failed requests in the log: one line for each cause, and from time to time the number of
//! repetitions.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use redwarfs_format::ids::InodeNo;
use tracing::{error, warn};

use crate::policy::node_id;

/// Time after a log message in which the same cause is not logged again.
const QUIET: Duration = Duration::from_secs(60);
/// Number of remembered causes, a few hundred bytes each. If there are more, all are dropped, and may
/// be logged again.
const REMEMBERED: usize = 1024;

#[derive(Debug)]
struct Cause {
    logged: Instant,
    suppressed: u64,
}

/// The failures so far.
#[derive(Debug, Default)]
pub(crate) struct Failures(Mutex<HashMap<String, Cause>>);

impl Failures {
    /// Notes a failure.
    ///
    /// A damaged block fails for every file and every attempt to read it. Its error names the
    /// section, so the text of the error tells causes apart.
    pub(crate) fn report(&self, what: &str, inode: InodeNo, cause: &redwarfs_format::Error) {
        let text = cause.to_string();
        if let Some(before) = self.note(&text, Instant::now()) {
            let node = node_id(inode);
            if before == 0 {
                error!("cannot {what} inode {node}: {text}");
            } else {
                error!(
                    "cannot {what} inode {node}: {text} (and {before} times since the last line)"
                );
            }
        }
    }

    /// Logs a warning that fails no request, as rarely as failures.
    pub(crate) fn mention(&self, text: &str) {
        if self.note(text, Instant::now()).is_some() {
            warn!("{text}");
        }
    }

    /// Whether to log the cause; if so, the number of times that it was not logged since the last time.
    fn note(&self, text: &str, now: Instant) -> Option<u64> {
        let mut known = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(cause) = known.get_mut(text) {
            if now.saturating_duration_since(cause.logged) < QUIET {
                cause.suppressed += 1;
                return None;
            }
            cause.logged = now;
            return Some(std::mem::take(&mut cause.suppressed));
        }
        if known.len() >= REMEMBERED {
            known.clear();
        }
        let cause = Cause {
            logged: now,
            suppressed: 0,
        };
        known.insert(text.to_owned(), cause);
        Some(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_line_for_each_cause() {
        let failures = Failures::default();
        let start = Instant::now();
        assert_eq!(failures.note("a", start), Some(0));
        assert_eq!(failures.note("a", start), None);
        assert_eq!(failures.note("b", start), Some(0));
        assert_eq!(failures.note("a", start + QUIET / 2), None);
        assert_eq!(failures.note("a", start + QUIET), Some(2));
        assert_eq!(failures.note("a", start + QUIET), None);
        for n in 0..REMEMBERED * 2 {
            failures.note(&n.to_string(), start);
        }
        let known = failures.0.lock().expect("not poisoned").len();
        assert!(known <= REMEMBERED, "{known}");
    }
}
