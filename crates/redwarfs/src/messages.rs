//! The messages of a build or an extraction, kept for the caller.

use std::sync::{Mutex, MutexGuard, PoisonError};

/// Messages that are kept. The rest is only counted, so that memory has a bound.
pub(crate) const MAX_MESSAGES: usize = 1000;

/// A bounded list that several threads append to.
#[derive(Debug, Default)]
pub(crate) struct Messages(Mutex<Vec<String>>);

impl Messages {
    pub(crate) fn push(&self, message: &str) {
        let mut messages = self.lock();
        if messages.len() < MAX_MESSAGES {
            messages.push(message.to_owned());
        }
    }

    pub(crate) fn first(&self) -> Option<String> {
        self.lock().first().cloned()
    }

    pub(crate) fn take(&self) -> Vec<String> {
        std::mem::take(&mut self.lock())
    }

    fn lock(&self) -> MutexGuard<'_, Vec<String>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
