//! What tells a process from its parents.
//!
//! After a fork, the child has the memory of the parent but not its threads. Whoever has threads, or waits for some, remembers
//! the [`Process`] they belong to, and makes new ones in another.
//!
//! ```
//! use redwarfs_io::process::{Process, forked};
//!
//! let here = Process::current();
//! assert!(here.is_current());
//! forked();
//! assert!(!here.is_current());
//! ```

use std::sync::atomic::{AtomicU64, Ordering};

/// Number of forks above this process that [`forked`] has heard of.
static FORKS: AtomicU64 = AtomicU64::new(0);

/// A process. Its id tells it from its parent, and the number of forks from an earlier one that had the same id.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Process {
    forks: u64,
    id: u32,
}

impl Process {
    /// The calling one.
    #[must_use]
    pub fn current() -> Self {
        Self {
            forks: FORKS.load(Ordering::Relaxed),
            id: std::process::id(),
        }
    }

    /// Whether it is the calling one.
    #[must_use]
    pub fn is_current(self) -> bool {
        self == Self::current()
    }
}

/// A program that can, such as an interpreter, calls this in the child after each fork.
pub fn forked() {
    FORKS.fetch_add(1, Ordering::Relaxed);
}
