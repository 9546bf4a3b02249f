//! How far the verification of an image is.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use redwarfs_reader::check::SectionList;

use super::args::Args;
use crate::common::Logger;
use crate::common::number::{format_duration, format_rate, format_size, format_size_pair};
use crate::common::progress::{Activity, Display, ProgressMode, Status, Stopwatch};
use crate::common::progress::{permille, time_left};

/// Counts the bytes that were worked on.
#[derive(Debug)]
struct Meter {
    activity: &'static str,
    total: u64,
    done: AtomicU64,
    stopwatch: Stopwatch,
}

impl Meter {
    fn rate(&self) -> String {
        let seconds = self.stopwatch.elapsed().as_secs_f64().max(1e-6);
        format_rate((self.done.load(Ordering::Relaxed) as f64 / seconds) as u64)
    }
}

impl Activity for Meter {
    fn status(&self) -> Status {
        let done = self.done.load(Ordering::Relaxed);
        Status {
            activity: self.activity,
            permille: Some(permille(done, self.total)),
            left: time_left(done, self.total, self.stopwatch.elapsed()),
            facts: vec![format_size_pair(done, self.total), self.rate()],
            ..Status::default()
        }
    }

    fn stopwatch(&self) -> &Stopwatch {
        &self.stopwatch
    }
}

/// Runs `check`, which is given a function that counts bytes, and shows how far it is.
pub(super) fn with_meter<T>(
    args: &Args,
    list: SectionList,
    logger: &Logger,
    check: impl FnOnce(SectionList, &(dyn Fn(u64) + Sync)) -> T,
) -> T {
    let sections = list.sections.len();
    let total = list.payload_bytes();
    let (result, took) = with_bytes(args, "checking", total, logger, |done| check(list, done));
    logger.verbose(format_args!("verified {sections} sections, {took}"));
    result
}

/// Runs `work` on `total` bytes, and shows how far it is. Also returns bytes, duration and rate as a text.
pub(super) fn with_bytes<T>(
    args: &Args,
    activity: &'static str,
    total: u64,
    logger: &Logger,
    work: impl FnOnce(&(dyn Fn(u64) + Sync)) -> T,
) -> (T, String) {
    let meter = Arc::new(Meter {
        activity,
        total,
        done: AtomicU64::new(0),
        stopwatch: Stopwatch::default(),
    });
    let mode = match args.quiet {
        true => ProgressMode::None,
        false => args.progress.mode(),
    };
    // Without it the work is the same.
    let display = Display::start(&meter, logger.console(), mode).ok();
    let result = work(&|bytes| {
        meter.done.fetch_add(bytes, Ordering::Relaxed);
    });
    drop(display);
    let took = format!(
        "{} in {}, {}",
        format_size(meter.total),
        format_duration(meter.stopwatch.elapsed()),
        meter.rate()
    );
    (result, took)
}
