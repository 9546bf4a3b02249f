//! What the user hears while an extraction runs.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use redwarfs_extractor::Progress;

use crate::common::{LogLevel, Logger};

/// Passes on warnings and shows the percentage.
pub(super) struct Listener<'a> {
    logger: &'a Logger,
    percent: bool,
    total: AtomicU64,
    done: AtomicU64,
    shown: Mutex<Option<u64>>,
}

impl<'a> Listener<'a> {
    pub(super) fn new(logger: &'a Logger, percent: bool) -> Self {
        let listener = Self {
            logger,
            percent,
            total: AtomicU64::new(0),
            done: AtomicU64::new(0),
            shown: Mutex::new(None),
        };
        listener.show(0);
        listener
    }

    fn show(&self, percent: u64) {
        if !self.percent {
            return;
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.is_none_or(|old| old < percent) {
            *shown = Some(percent);
            let mut out = io::stdout().lock();
            // Whoever closed the output does not want to see it.
            let _ = write!(out, "\r{percent}%").and_then(|()| out.flush());
        }
    }

    pub(super) fn end(&self, complete: bool) {
        if complete {
            self.show(100);
        }
        if self.percent {
            let _ = writeln!(io::stdout());
        }
    }
}

impl Progress for Listener<'_> {
    fn found(&self, names: u64) {
        self.logger
            .verbose(format_args!("found {names} matching files"));
    }

    fn file(&self, path: &dyn Fn() -> String, size: u64) {
        if self.logger.enabled(LogLevel::Debug) {
            self.logger
                .debug(format_args!("extracting {} ({size} bytes)", path()));
        }
    }

    fn left_out(&self, path: &str, reason: &str) {
        self.logger
            .error(format_args!("left out: {path}: {reason}"));
    }

    fn incomplete(&self, message: &str) {
        self.logger.error(message);
    }

    fn total(&self, bytes: u64) {
        self.total.store(bytes, Ordering::Relaxed);
    }

    fn advance(&self, bytes: u64) {
        let done = self
            .done
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes);
        if self.percent {
            let total = u128::from(self.total.load(Ordering::Relaxed).max(1));
            // The end is shown when it is reached, with times and modes set.
            let percent = (u128::from(done) * 100 / total).min(99);
            self.show(u64::try_from(percent).unwrap_or(99));
        }
    }

    fn warn(&self, message: &str) {
        self.logger.warn(message);
    }

    fn damaged(&self, path: &str, cause: &str) {
        self.logger
            .error(format_args!("cannot read: {path}: {cause}"));
    }
}
