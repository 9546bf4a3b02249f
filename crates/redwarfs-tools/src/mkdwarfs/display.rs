//! Progress of a build on standard error.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use redwarfs_writer::{Counters, Level, Phase, Progress};
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::args::ProgressMode;
use crate::common::console::{stderr_height, stderr_width};
use crate::common::error::one_line;
use crate::common::number::{format_rate, format_ratio, format_size};
use crate::common::time::clock;
use crate::common::{LogLevel, Logger};

/// Time between two frames.
const FRAME: Duration = Duration::from_millis(200);
/// Time between two lines of the simple mode.
const LINE: Duration = Duration::from_secs(2);
/// Fewer columns than this have no room for a bar.
const MIN_WIDTH: usize = 20;

/// Receives the events of a build.
#[derive(Debug)]
pub(crate) struct Report {
    logger: Logger,
    counters: Counters,
    phases: Mutex<Phases>,
    /// Permille done, so that the display never goes back.
    done: AtomicU64,
    /// An image is rewritten, not built.
    rewriting: bool,
}

#[derive(Debug)]
struct Phases {
    current: Option<Phase>,
    since: Instant,
    hashing: Duration,
}

impl Report {
    pub(crate) fn new(logger: Logger) -> Self {
        Self {
            logger,
            counters: Counters::default(),
            phases: Mutex::new(Phases {
                current: None,
                since: Instant::now(),
                hashing: Duration::ZERO,
            }),
            done: AtomicU64::new(0),
            rewriting: false,
        }
    }

    /// As [`new`](Self::new), for an image that is made from another one.
    pub(crate) fn rewriting(logger: Logger) -> Self {
        Self {
            rewriting: true,
            ..Self::new(logger)
        }
    }

    fn current_phase(&self) -> (Option<Phase>, Duration) {
        let phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
        let running = match phases.current {
            Some(Phase::Hashing) => phases.since.elapsed(),
            _ => Duration::ZERO,
        };
        (phases.current, phases.hashing + running)
    }

    /// Part that is done, 0..=1000, never less than before.
    fn permille(&self) -> u64 {
        let now = if self.current_phase().0 == Some(Phase::Done) {
            1000
        } else {
            fraction(&self.counters, self.rewriting)
        };
        self.done.fetch_max(now, Ordering::Relaxed).max(now)
    }

    /// The lines of numbers: six for a build, two for a rewrite.
    pub(crate) fn statistics(&self) -> Vec<String> {
        let c = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        let size = |counter: &AtomicU64| format_size(get(counter));
        let memory = match memory_in_use() {
            Some(bytes) => format!(", using {} of RAM", format_size(bytes)),
            None => String::new(),
        };
        if self.rewriting {
            return vec![
                format!(
                    "filesystem: {} in {} blocks ({} chunks, {} inodes)",
                    size(&c.block_bytes),
                    get(&c.blocks_created),
                    get(&c.chunks),
                    get(&c.inodes),
                ),
                format!(
                    "compressed filesystem: {}/{} blocks/{} written{memory}",
                    get(&c.blocks_written),
                    get(&c.blocks_created),
                    size(&c.compressed_size),
                ),
            ];
        }
        let (_, hashing) = self.current_phase();
        let rate = |bytes: u64| match hashing.as_micros() {
            0 => format_rate(0),
            us => {
                format_rate(u64::try_from(u128::from(bytes) * 1_000_000 / us).unwrap_or(u64::MAX))
            }
        };
        let original = size(&c.original_size);
        let allocated = match size(&c.allocated_size) {
            same if same == original => String::new(),
            allocated => format!(" ({allocated})"),
        };
        vec![
            format!(
                "{} dirs, {}/{} soft/hard links, {}/{} files, {} other",
                get(&c.dirs),
                get(&c.symlinks),
                get(&c.hardlinks),
                get(&c.files_scanned),
                get(&c.files_found),
                get(&c.devices) + get(&c.specials),
            ),
            format!(
                "original size: {original}{allocated}, hashed: {} ({} files, {})",
                size(&c.hash_bytes),
                get(&c.hash_files),
                rate(get(&c.hash_bytes)),
            ),
            format!(
                "scanned: {} ({} files, {}), categorizing: {}",
                size(&c.similarity_bytes),
                get(&c.similarity_files),
                rate(get(&c.similarity_bytes)),
                rate(get(&c.categorized_bytes)),
            ),
            format!(
                "saved by deduplication: {} ({} files), saved by segmenting: {}",
                size(&c.saved_by_deduplication),
                get(&c.duplicate_files),
                size(&c.saved_by_segmentation),
            ),
            format!(
                "filesystem: {} in {} blocks ({} chunks, {}/{} fragments, {} inodes)",
                size(&c.block_bytes),
                get(&c.blocks_created),
                get(&c.chunks),
                get(&c.fragments_written),
                get(&c.fragments_found),
                get(&c.inodes),
            ),
            format!(
                "compressed filesystem: {} blocks/{} written{memory}",
                get(&c.blocks_written),
                size(&c.compressed_size),
            ),
        ]
    }

    fn status(&self, width: usize) -> String {
        let path = self.counters.current();
        let path = one_line(&String::from_utf8_lossy(&path));
        let with_path = |what: &str| {
            if path.is_empty() {
                what.to_owned()
            } else {
                let room = width.saturating_sub(what.len() + 2);
                format!("{what}: {}", shorten(&path, room))
            }
        };
        match self.current_phase().0 {
            None => "starting".to_owned(),
            Some(Phase::Checking) => "checking input filesystem".to_owned(),
            Some(Phase::Rewriting) => "rewriting blocks".to_owned(),
            Some(Phase::Scanning) => with_path("scanning"),
            Some(Phase::Hashing) => with_path("hashing"),
            Some(Phase::Ordering) => "ordering".to_owned(),
            Some(Phase::Segmenting) => with_path("writing"),
            Some(Phase::Compressing) => "waiting for block compression to finish".to_owned(),
            Some(Phase::Metadata) => "writing metadata".to_owned(),
            Some(_) => "done".to_owned(),
        }
    }

    fn frame(&self, screen: Screen, tick: usize) -> Vec<String> {
        // Nothing reaches the last column: there, erasing the rest of a line would hit it.
        let width = screen.width.saturating_sub(1);
        let mut lines = Vec::with_capacity(9);
        let rule = if screen.unicode { "⎯" } else { "-" };
        let mut status = fit(&self.status(width), width);
        if screen.colour {
            status = format!("\x1b[1;36m{status}\x1b[0m");
        }
        let full = screen.height > 10;
        if full {
            lines.push(rule.repeat(width));
        }
        lines.push(status);
        if full {
            lines.extend(self.statistics().iter().map(|line| fit(line, width)));
        }
        let permille = self.permille();
        let spinner = if screen.unicode {
            MOON[tick % MOON.len()]
        } else {
            LINE_SPINNER[tick % LINE_SPINNER.len()]
        };
        let tail = format!(" {:3}% {spinner}", permille / 10);
        if width >= MIN_WIDTH {
            lines.push(format!(
                "{}{tail}",
                bar(permille, width - 8, screen.unicode)
            ));
        } else {
            lines.push(fit(tail.trim_start(), width));
        }
        lines
    }

    fn simple_line(&self) -> String {
        format!(
            "==> {}% done, {} blocks/{} written",
            self.permille() / 10,
            self.counters.blocks_written.load(Ordering::Relaxed),
            format_size(self.counters.compressed_size.load(Ordering::Relaxed)),
        )
    }
}

impl Progress for Report {
    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn phase(&self, phase: Phase) {
        {
            let mut phases = self.phases.lock().unwrap_or_else(PoisonError::into_inner);
            if phases.current == Some(Phase::Hashing) {
                let took = phases.since.elapsed();
                phases.hashing += took;
            }
            phases.current = Some(phase);
            phases.since = Instant::now();
        }
        let c = &self.counters;
        let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        match phase {
            Phase::Checking => self.logger.info("checking input filesystem..."),
            Phase::Rewriting => self.logger.info("rewriting blocks..."),
            Phase::Hashing => self.logger.info("waiting for background scanners..."),
            Phase::Ordering => {
                let (saved, original) = (get(&c.saved_by_deduplication), get(&c.original_size));
                self.logger.info(format_args!(
                    "saved {} / {} ({}) in {}/{} duplicate files",
                    format_size(saved),
                    format_size(original),
                    format_ratio(saved, original),
                    get(&c.duplicate_files),
                    get(&c.files_found),
                ));
                self.logger.info("ordering file data...");
            }
            Phase::Segmenting => self.logger.info("building blocks..."),
            Phase::Compressing => self.logger.info("waiting for compression to finish..."),
            Phase::Metadata => self.logger.info("saving metadata..."),
            _ => {}
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
        self.logger.log(level, message);
    }
}

const LINE_SPINNER: [&str; 4] = ["-", "\\", "|", "/"];
const MOON: [&str; 8] = ["🌑", "🌒", "🌓", "🌔", "🌕", "🌖", "🌗", "🌘"];

/// Permille done: the mean of (bytes placed / bytes to place) and (blocks written / made). When
/// `rewriting`, blocks of the source stand for the bytes.
fn fraction(c: &Counters, rewriting: bool) -> u64 {
    let get = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
    let todo = get(&c.original_size)
        .saturating_sub(get(&c.saved_by_deduplication))
        .saturating_sub(get(&c.symlink_size));
    let placed = get(&c.block_bytes)
        .saturating_add(get(&c.saved_by_segmentation))
        .saturating_add(get(&c.hole_bytes));
    let part = |a: u64, b: u64| {
        if b == 0 {
            0
        } else {
            (u128::from(a.min(b)) * 1000 / u128::from(b)) as u64
        }
    };
    let (placed, todo) = if rewriting {
        (get(&c.fragments_written), get(&c.fragments_found))
    } else {
        (placed, todo)
    };
    // Below the whole: only a finished image is 100 %.
    ((part(placed, todo) + part(get(&c.blocks_written), get(&c.blocks_created))) / 2).min(999)
}

/// A bar of `width` columns.
fn bar(permille: u64, width: usize, unicode: bool) -> String {
    let permille = permille.min(1000) as usize;
    if unicode {
        const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        let eighths = width * 8 * permille / 1000;
        let mut text = "█".repeat(eighths / 8);
        text.push_str(EIGHTHS[eighths % 8]);
        text.extend(std::iter::repeat_n(
            ' ',
            width - (eighths / 8 + usize::from(!eighths.is_multiple_of(8))),
        ));
        text
    } else {
        let full = width * permille / 1000;
        format!("{}{}", "=".repeat(full), " ".repeat(width - full))
    }
}

/// Cuts `text` at the end so that it takes at most `width` columns.
fn fit(text: &str, width: usize) -> String {
    let mut used = 0;
    text.chars()
        .take_while(|c| {
            used += c.width().unwrap_or(0);
            used <= width
        })
        .collect()
}

/// Shortens `path` from the left with `...` so that it takes at most `width` columns.
fn shorten(path: &str, width: usize) -> String {
    if path.width() <= width {
        return path.to_owned();
    }
    if width <= 3 {
        return fit("...", width);
    }
    let mut room = width - 3;
    let mut start = path.len();
    for (at, c) in path.char_indices().rev() {
        let columns = c.width().unwrap_or(0);
        if columns > room {
            break;
        }
        room -= columns;
        start = at;
    }
    format!("...{}", &path[start..])
}

/// Resident memory of this process in bytes.
fn memory_in_use() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

#[derive(Debug, Clone, Copy)]
struct Screen {
    width: usize,
    height: usize,
    unicode: bool,
    colour: bool,
}

/// The thread that shows a [`Report`] while a build runs.
#[derive(Debug)]
pub(crate) struct Display {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Display {
    /// Starts showing `report`; nothing to do in mode `none`.
    ///
    /// # Errors
    /// If no thread can be started.
    pub(crate) fn start(report: &Arc<Report>, mode: ProgressMode) -> std::io::Result<Self> {
        let interval = match mode {
            ProgressMode::None => {
                return Ok(Self {
                    stop: None,
                    thread: None,
                });
            }
            ProgressMode::Simple => LINE,
            ProgressMode::Ascii | ProgressMode::Unicode => FRAME,
        };
        let (stop, stopped) = channel::<()>();
        let report = Arc::clone(report);
        let thread = std::thread::Builder::new()
            .name("progress".to_owned())
            .spawn(move || {
                let console = report.logger.console().clone();
                let mut last = String::new();
                let mut tick = 0;
                loop {
                    let ended = !matches!(
                        stopped.recv_timeout(interval),
                        Err(RecvTimeoutError::Timeout)
                    );
                    if mode == ProgressMode::Simple {
                        let line = report.simple_line();
                        if line != last {
                            console.line(&format!("- {} {line}", clock(SystemTime::now())));
                            last = line;
                        }
                    } else if !ended {
                        let screen = Screen {
                            width: stderr_width(),
                            height: stderr_height(),
                            unicode: mode == ProgressMode::Unicode,
                            colour: console.colour(),
                        };
                        console.set_frame(report.frame(screen, tick));
                        tick += 1;
                    }
                    if ended {
                        console.clear_frame();
                        return;
                    }
                }
            })?;
        Ok(Self {
            stop: Some(stop),
            thread: Some(thread),
        })
    }

    /// Removes the display.
    pub(crate) fn finish(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.finish();
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::common::Console;
    use crate::common::console::Capture;

    fn report() -> Report {
        let console = Console::new(Box::new(Capture::default()), false);
        Report::new(Logger::new(console, LogLevel::Info, false))
    }

    #[test]
    fn bars() {
        assert_eq!(bar(0, 4, false), "    ");
        assert_eq!(bar(500, 4, false), "==  ");
        assert_eq!(bar(1000, 4, false), "====");
        assert_eq!(bar(500, 1, true), "▌");
        assert_eq!(bar(999, 2, true), "█▉");
        for permille in 0..=1000 {
            assert_eq!(bar(permille, 17, true).width(), 17);
            assert_eq!(bar(permille, 17, false).width(), 17);
        }
    }

    #[test]
    fn paths_are_shortened_from_the_left() {
        let cases = [
            ("a/b", 10, "a/b"),
            ("abcdefgh", 8, "abcdefgh"),
            ("abcdefghi", 8, "...efghi"),
            ("日本語日本語", 8, "...本語"),
            ("abcdef", 2, ".."),
            ("", 0, ""),
        ];
        for (path, width, want) in cases {
            assert_eq!(shorten(path, width), want, "{path}");
        }
    }

    #[test]
    fn frames_fit_the_screen() {
        let report = report();
        report.phase(Phase::Segmenting);
        for width in 1..120 {
            for height in [5, 40] {
                for unicode in [false, true] {
                    let screen = Screen {
                        width,
                        height,
                        unicode,
                        colour: false,
                    };
                    let frame = report.frame(screen, width);
                    assert_eq!(frame.len(), if height > 10 { 9 } else { 2 });
                    for line in frame {
                        assert!(line.width() <= width.saturating_sub(1), "{width}: {line:?}");
                    }
                }
            }
        }
    }

    #[test]
    fn progress_never_goes_back() {
        let report = report();
        let c = report.counters();
        c.original_size.store(1000, Ordering::Relaxed);
        c.block_bytes.store(500, Ordering::Relaxed);
        assert_eq!(report.permille(), 250);
        c.original_size.store(10_000, Ordering::Relaxed);
        assert_eq!(report.permille(), 250);
        report.phase(Phase::Done);
        assert_eq!(report.permille(), 1000);
    }

    #[test]
    fn statistics_layout() {
        let report = report();
        let c = report.counters();
        for (counter, value) in [
            (&c.dirs, 9),
            (&c.symlinks, 2),
            (&c.hardlinks, 1),
            (&c.files_found, 15),
            (&c.files_scanned, 15),
        ] {
            counter.store(value, Ordering::Relaxed);
        }
        c.original_size.store(6_033_510, Ordering::Relaxed);
        c.allocated_size.store(794_931, Ordering::Relaxed);
        let lines = report.statistics();
        assert_eq!(lines.len(), 6);
        assert_eq!(
            lines[0],
            "9 dirs, 2/1 soft/hard links, 15/15 files, 0 other"
        );
        assert_eq!(
            lines[1],
            "original size: 5.754 MiB (776.3 KiB), hashed: 0 B (0 files, 0 B/s)"
        );
        assert_eq!(
            lines[4],
            "filesystem: 0 B in 0 blocks (0 chunks, 0/0 fragments, 0 inodes)"
        );
        assert!(lines[5].starts_with("compressed filesystem: 0 blocks/0 B written"));
    }
}
