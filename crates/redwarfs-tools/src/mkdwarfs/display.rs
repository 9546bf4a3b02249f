//! What a build says about itself while it runs.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use redwarfs_writer::{Counters, Level, Phase, Progress};

use crate::common::number::{
    counted, format_grouped, format_rate, format_ratio, format_size, format_size_pair,
};
use crate::common::progress::{Activity, Status, Stopwatch, permille, time_left};
use crate::common::{LogLevel, Logger, os};

/// Receives the events of a build.
#[derive(Debug)]
pub(crate) struct Report {
    logger: Logger,
    counters: Counters,
    stopwatch: Stopwatch,
    phases: Mutex<Phases>,
    /// Permille of the phase that are done, so that the display never goes back.
    done: AtomicU64,
    /// An image is rewritten, not built.
    rewriting: bool,
    /// Show details.
    verbose: bool,
}

#[derive(Debug, Default)]
struct Phases {
    current: Option<Phase>,
    /// By the stopwatch.
    since: Duration,
    /// How long files were read to be compared.
    scan_took: Duration,
    /// When the first block was begun.
    blocks_since: Duration,
}

impl Report {
    /// For a build, or for an image that is made from another one.
    pub(crate) fn new(logger: Logger, rewriting: bool, verbose: bool) -> Self {
        Self {
            logger,
            counters: Counters::default(),
            stopwatch: Stopwatch::default(),
            phases: Mutex::default(),
            done: AtomicU64::new(0),
            rewriting,
            verbose,
        }
    }

    pub(crate) fn logger(&self) -> &Logger {
        &self.logger
    }

    /// The current phase, and how long it and all work on blocks have been running.
    fn now(&self) -> (Option<Phase>, Duration, Duration) {
        let phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.stopwatch.elapsed();
        (
            phases.current,
            now.saturating_sub(phases.since),
            now.saturating_sub(phases.blocks_since),
        )
    }

    /// Part of the current phase that is done, never less than before. None while it is not known
    /// how much there is.
    fn permille(&self, phase: Option<Phase>) -> Option<u64> {
        let c = &self.counters;
        let now = match phase? {
            Phase::Reading if get(&c.archive_size) > 0 => {
                permille(get(&c.archive_bytes), get(&c.archive_size))
            }
            Phase::Hashing => permille(scanned_bytes(c), get(&c.scan_bytes)),
            Phase::Segmenting | Phase::Compressing => {
                let (stored, to_store) = stored_bytes(c);
                permille(stored, to_store)
            }
            Phase::Rewriting => self.rewritten(),
            Phase::Done => 1000,
            _ => return None,
        };
        Some(self.done.fetch_max(now, Ordering::Relaxed).max(now))
    }

    /// The slower one of blocks read and blocks written.
    fn rewritten(&self) -> u64 {
        let c = &self.counters;
        let read = permille(get(&c.fragments_written), get(&c.fragments_found));
        let written = permille(get(&c.blocks_written), get(&c.blocks_created));
        read.min(written)
    }

    /// More about a build than there is room for in two lines.
    pub(crate) fn details(&self) -> Vec<String> {
        let c = &self.counters;
        let memory = os::memory_in_use().map_or_else(String::new, |bytes| {
            format!(", {} of memory in use", format_size(bytes))
        });
        let blocks = format!(
            "blocks: {} made, {} written, {}{memory}",
            format_grouped(get(&c.blocks_created)),
            format_grouped(get(&c.blocks_written)),
            format_size(get(&c.bytes_written)),
        );
        if self.rewriting {
            return vec![blocks];
        }
        let phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        let scan_took = match phases.current {
            Some(Phase::Hashing) => self.stopwatch.elapsed().saturating_sub(phases.since),
            _ => phases.scan_took,
        };
        drop(phases);
        vec![
            format!(
                "compared: {} hashed, {} for similarity, {} equal to others ({})",
                format_size(get(&c.hash_bytes)),
                format_size(get(&c.similarity_bytes)),
                counted(get(&c.duplicate_files), "file", "files"),
                format_size(get(&c.saved_by_deduplication)),
            ),
            format!(
                "repeated data: {}, holes: {}, categorizing: {}",
                format_size(get(&c.saved_by_segmentation)),
                format_size(get(&c.hole_bytes)),
                rate(get(&c.categorized_bytes), scan_took),
            ),
            blocks,
        ]
    }

    fn facts(&self, phase: Option<Phase>, took: Duration, blocks_took: Duration) -> Vec<String> {
        let c = &self.counters;
        match phase {
            None | Some(Phase::Checking) => Vec::new(),
            Some(Phase::Reading) => {
                let (done, all) = (get(&c.archive_bytes), get(&c.archive_size));
                let size = match all >= done {
                    true => format_size_pair(done, all),
                    // Of standard input, nobody knows the size.
                    false => format_size(done),
                };
                vec![size, rate(done, took)]
            }
            Some(Phase::Scanning) => {
                let entries = get(&c.dirs)
                    + get(&c.files_found)
                    + get(&c.symlinks)
                    + get(&c.hardlinks)
                    + get(&c.devices)
                    + get(&c.specials);
                vec![
                    counted(entries, "entry", "entries"),
                    format_size(get(&c.original_size)),
                ]
            }
            Some(Phase::Hashing) => {
                let done = scanned_bytes(c);
                vec![
                    format_size_pair(done, get(&c.scan_bytes).max(done)),
                    rate(done, took),
                ]
            }
            Some(Phase::Ordering) => vec![format!(
                "{} of {} to store",
                counted(get(&c.fragments_found), "content", "contents"),
                format_size(stored_bytes(c).1)
            )],
            _ => {
                let (input, output) = if self.rewriting {
                    (get(&c.block_bytes), get(&c.compressed_size))
                } else {
                    (get(&c.compression_input), get(&c.compression_output))
                };
                let mut facts = if self.rewriting {
                    let total = counted(get(&c.blocks_created), "block", "blocks");
                    let done = format_grouped(get(&c.blocks_written));
                    vec![format!("{done} of {total}"), rate(input, blocks_took)]
                } else {
                    let (stored, to_store) = stored_bytes(c);
                    vec![
                        format_size_pair(stored, to_store),
                        rate(stored, blocks_took),
                    ]
                };
                if input > 0 {
                    facts.push(format!("compressed to {}", format_ratio(output, input)));
                }
                facts
            }
        }
    }
}

impl Activity for Report {
    fn status(&self) -> Status {
        let (phase, took, blocks_took) = self.now();
        let c = &self.counters;
        let left = match phase {
            Some(Phase::Segmenting | Phase::Compressing) => {
                let (stored, to_store) = stored_bytes(c);
                time_left(stored, to_store, blocks_took)
            }
            Some(Phase::Rewriting) => time_left(self.rewritten(), 1000, blocks_took),
            _ => None,
        };
        let shows_path = matches!(
            phase,
            Some(Phase::Reading | Phase::Scanning | Phase::Hashing | Phase::Segmenting)
        );
        let path = match shows_path {
            true => String::from_utf8_lossy(&c.current()).into_owned(),
            false => String::new(),
        };
        Status {
            activity: match phase {
                None => "starting",
                Some(Phase::Checking) => "checking",
                Some(Phase::Rewriting) => "rewriting",
                Some(Phase::Reading) => "reading",
                Some(Phase::Scanning) => "listing",
                Some(Phase::Hashing) => "comparing",
                Some(Phase::Ordering) => "ordering",
                Some(Phase::Segmenting | Phase::Compressing) => "compressing",
                Some(Phase::Done) => "done",
                Some(_) => "finishing",
            },
            permille: self.permille(phase),
            left,
            facts: self.facts(phase, took, blocks_took),
            path,
            details: match self.verbose {
                true => self.details(),
                false => Vec::new(),
            },
        }
    }

    fn stopwatch(&self) -> &Stopwatch {
        &self.stopwatch
    }
}

impl Progress for Report {
    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn phase(&self, phase: Phase) {
        let mut phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.stopwatch.elapsed();
        if phases.current == Some(Phase::Hashing) {
            phases.scan_took = now.saturating_sub(phases.since);
        }
        // Compression continues in both steps.
        if phase != Phase::Compressing {
            self.done.store(0, Ordering::Relaxed);
        }
        phases.current = Some(phase);
        phases.since = now;
        if matches!(phase, Phase::Segmenting | Phase::Rewriting) {
            phases.blocks_since = phases.since;
        }
    }

    fn log(&self, level: Level, message: &str) {
        let level = match level {
            Level::Error => LogLevel::Error,
            Level::Warn => LogLevel::Warn,
            Level::Info => LogLevel::Info,
            Level::Verbose => LogLevel::Verbose,
            Level::Debug => LogLevel::Debug,
            Level::Trace => LogLevel::Trace,
        };
        self.logger
            .log_from(level, Some("redwarfs_writer"), message);
    }
}

fn get(counter: &AtomicU64) -> u64 {
    counter.load(Ordering::Relaxed)
}

/// Bytes that were read to find equal and similar files.
fn scanned_bytes(c: &Counters) -> u64 {
    get(&c.hash_bytes).saturating_add(get(&c.similarity_bytes))
}

/// Bytes of contents that are compressed or need not be, and all of them.
fn stored_bytes(c: &Counters) -> (u64, u64) {
    let all = get(&c.original_size)
        .saturating_sub(get(&c.saved_by_deduplication))
        .saturating_sub(get(&c.symlink_size));
    let done = get(&c.compression_input)
        .saturating_add(get(&c.saved_by_segmentation))
        .saturating_add(get(&c.hole_bytes));
    (done.min(all), all)
}

fn rate(bytes: u64, time: Duration) -> String {
    match time.as_micros() {
        0 => format_rate(0),
        us => format_rate(u64::try_from(u128::from(bytes) * 1_000_000 / us).unwrap_or(u64::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::Console;
    use crate::common::console::Capture;

    fn report() -> Report {
        let console = Console::new(Box::new(Capture::default()), false);
        Report::new(Logger::new(console, LogLevel::Info, false), false, true)
    }

    fn set(counter: &AtomicU64, value: u64) {
        counter.store(value, Ordering::Relaxed);
    }

    #[test]
    fn a_count_while_listing_and_a_part_of_what_is_known_then() {
        let report = report();
        let c = report.counters();
        assert_eq!(report.status().permille, None);
        report.phase(Phase::Scanning);
        set(&c.dirs, 2);
        set(&c.files_found, 1298);
        set(&c.original_size, 1000 << 10);
        let status = report.status();
        assert_eq!((status.activity, status.permille), ("listing", None));
        assert_eq!(status.facts, ["1,300 entries", "1000 KiB"]);

        report.phase(Phase::Hashing);
        set(&c.scan_bytes, 1000 << 10);
        set(&c.hash_bytes, 100 << 10);
        set(&c.similarity_bytes, 400 << 10);
        let status = report.status();
        assert_eq!((status.activity, status.permille), ("comparing", Some(500)));
        assert_eq!(status.facts[0], "500 of 1000 KiB");

        report.phase(Phase::Ordering);
        assert_eq!(report.status().permille, None);

        report.phase(Phase::Segmenting);
        assert_eq!(report.status().permille, Some(0));
        // Blocks that are not compressed yet are not done.
        set(&c.block_bytes, 900 << 10);
        assert_eq!(report.status().permille, Some(0));
        set(&c.compression_input, 400 << 10);
        set(&c.compression_output, 100 << 10);
        set(&c.saved_by_segmentation, 100 << 10);
        let status = report.status();
        assert_eq!(
            (status.activity, status.permille),
            ("compressing", Some(500))
        );
        assert_eq!(status.facts[0], "500 of 1000 KiB");
        assert_eq!(status.facts[2], "compressed to 25%");
        // Too early to tell.
        assert_eq!(status.left, None);

        set(&c.compression_input, 900 << 10);
        report.phase(Phase::Compressing);
        assert_eq!(report.status().permille, Some(1000));
        report.phase(Phase::Metadata);
        assert_eq!(report.status().permille, None);
        report.phase(Phase::Done);
        assert_eq!(report.status().permille, Some(1000));
    }

    #[test]
    fn progress_never_goes_back() {
        let report = report();
        let c = report.counters();
        report.phase(Phase::Segmenting);
        set(&c.original_size, 1000);
        set(&c.compression_input, 500);
        assert_eq!(report.status().permille, Some(500));
        set(&c.original_size, 10_000);
        assert_eq!(report.status().permille, Some(500));
    }

    #[test]
    fn no_word_of_the_inside() {
        let report = report();
        for phase in [
            Phase::Scanning,
            Phase::Hashing,
            Phase::Ordering,
            Phase::Segmenting,
            Phase::Compressing,
            Phase::Metadata,
        ] {
            report.phase(phase);
            let status = report.status();
            let mut all = status.facts;
            all.extend(status.details);
            all.push(status.activity.to_owned());
            for word in ["fragment", "chunk", "inode", "segment"] {
                assert!(!all.join(" ").contains(word), "{all:?}");
            }
        }
    }
}
