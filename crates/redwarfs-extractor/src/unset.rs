//! Attributes that entries cannot have in the target.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::Progress;

/// Number of entries without an attribute that they cannot have here.
#[derive(Debug, Default)]
pub(crate) struct Unset(AtomicU64);

impl Unset {
    /// Counts one more entry, and calls `say` for the first one.
    pub(crate) fn note(&self, say: impl FnOnce()) {
        if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
            say();
        }
    }

    /// Number of these entries.
    pub(crate) fn number(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }

    /// Reports how many entries lack the attribute, after a warning about the first one.
    pub(crate) fn report(&self, what: &str, progress: &dyn Progress) {
        let number = self.number();
        if number > 1 {
            progress.warn(&format!("cannot set {what}: {number} entries in all"));
        }
    }
}
