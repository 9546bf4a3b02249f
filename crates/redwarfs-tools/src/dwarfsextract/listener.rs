//! Messages and progress during an extraction.

use std::io::{self, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};

use redwarfs_extractor::Progress;

use crate::common::number::{counted, format_rate, format_size_pair};
use crate::common::progress::{Activity, Status, Stopwatch, permille, time_left};
use crate::common::{LogLevel, Logger};

/// Passes on warnings and knows how far the extraction is.
#[derive(Debug)]
pub(super) struct Listener {
    logger: Logger,
    /// Show the percentage on standard output.
    percent: bool,
    files: AtomicU64,
    /// None until it is known how much there is.
    total: Mutex<Option<u64>>,
    done: AtomicU64,
    shown: Mutex<Option<u64>>,
    stopwatch: Stopwatch,
}

impl Listener {
    pub(super) fn new(logger: &Logger, percent: bool) -> Self {
        let listener = Self {
            logger: logger.clone(),
            percent,
            files: AtomicU64::new(0),
            total: Mutex::new(None),
            done: AtomicU64::new(0),
            shown: Mutex::new(None),
            stopwatch: Stopwatch::default(),
        };
        listener.show(0);
        listener
    }

    fn known_total(&self) -> Option<u64> {
        *self.total.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn show(&self, percent: u64) {
        if !self.percent {
            return;
        }
        let mut shown = self.shown.lock().unwrap_or_else(PoisonError::into_inner);
        if shown.is_none_or(|old| old < percent) {
            *shown = Some(percent);
            let mut out = io::stdout().lock();
            // If the output is closed, its reader does not need the rest.
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

    /// Bytes of contents per second so far.
    pub(super) fn rate(&self) -> String {
        let seconds = self.stopwatch.elapsed().as_secs_f64().max(1e-6);
        format_rate((self.done.load(Ordering::Relaxed) as f64 / seconds) as u64)
    }
}

impl Activity for Listener {
    fn status(&self) -> Status {
        let done = self.done.load(Ordering::Relaxed);
        let total = self.known_total();
        let files = counted(self.files.load(Ordering::Relaxed), "file", "files");
        Status {
            activity: "extracting",
            // The end is shown when it is reached, with times and modes set.
            permille: total.map(|total| permille(done, total).min(999)),
            left: total.and_then(|total| time_left(done, total, self.stopwatch.elapsed())),
            facts: match total {
                Some(total) => vec![format_size_pair(done, total), self.rate(), files],
                None => vec![files],
            },
            ..Status::default()
        }
    }

    fn stopwatch(&self) -> &Stopwatch {
        &self.stopwatch
    }
}

impl Progress for Listener {
    fn found(&self, names: u64) {
        self.logger
            .verbose(format_args!("found {names} matching files"));
    }

    fn file(&self, path: &dyn Fn() -> String, size: u64) {
        self.files.fetch_add(1, Ordering::Relaxed);
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
        *self.total.lock().unwrap_or_else(PoisonError::into_inner) = Some(bytes);
    }

    fn advance(&self, bytes: u64) {
        let done = self
            .done
            .fetch_add(bytes, Ordering::Relaxed)
            .saturating_add(bytes);
        if self.percent {
            let total = u128::from(self.known_total().unwrap_or(0).max(1));
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::Console;
    use crate::common::console::Capture;

    #[test]
    fn a_count_until_the_whole_is_known() {
        let console = Console::new(Box::new(Capture::default()), false);
        let listener = Listener::new(&Logger::new(console, LogLevel::Info, false), false);
        listener.file(&|| "x".to_owned(), 5);
        let status = listener.status();
        assert_eq!((status.permille, status.left), (None, None));
        assert_eq!(status.facts, ["1 file"]);
        listener.total(4 << 20);
        listener.advance(1 << 20);
        let status = listener.status();
        assert_eq!(status.permille, Some(250));
        assert_eq!(status.facts[0], "1 of 4 MiB");
        listener.advance(3 << 20);
        assert_eq!(listener.status().permille, Some(999));
    }
}
