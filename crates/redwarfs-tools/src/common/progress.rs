//! Shows the progress of an operation: two lines that are redrawn in place, or lines that scroll.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use clap::ValueEnum;
use unicode_width::{UnicodeWidthChar, UnicodeWidthStr};

use super::console::{
    Console, locale_is_utf8, stderr_height, stderr_is_fancy, stderr_is_ours, stderr_width,
};
use super::error::one_line;
use super::os::Requests;
use super::time::clock;

/// Time between two frames.
const FRAME: Duration = Duration::from_millis(200);
/// Time between two lines of the simple mode.
const LINE: Duration = Duration::from_secs(2);
/// Time between two checks for requests to stop and for new sizes of the terminal.
const POLL: Duration = Duration::from_millis(25);
/// Shorter operations end before a user could read their name.
const PATIENCE: Duration = Duration::from_millis(100);
/// Fewest columns of a bar.
const MIN_BAR: usize = 4;
/// Columns of the name of an activity.
const NAME: usize = 11;
/// Fewest columns of a path; fewer would not identify it.
const MIN_PATH: usize = 12;

/// How progress is shown.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ProgressMode {
    /// Not at all
    None,
    /// A line every two seconds
    Simple,
    /// Redrawn in place, ASCII only
    Ascii,
    /// Redrawn in place
    Unicode,
}

impl ProgressMode {
    /// The mode to use: `wanted`, if standard error can show it.
    #[must_use]
    pub fn on_stderr(wanted: Option<Self>) -> Self {
        let fancy = stderr_is_fancy();
        match wanted {
            // Redrawing needs a terminal; elsewhere it would only leave escape sequences.
            Some(Self::Ascii | Self::Unicode) if !fancy => Self::Simple,
            Some(mode) => mode,
            None if !fancy => Self::None,
            None if locale_is_utf8() => Self::Unicode,
            None => Self::Ascii,
        }
    }
}

fn progress_mode(text: &str) -> Result<ProgressMode, String> {
    ProgressMode::from_str(text, false)
        .map_err(|_| format!("invalid progress mode '{text}' (none, simple, ascii, unicode)"))
}

/// The options of tools that show progress. Flatten it into the arguments of a tool.
#[derive(Debug, Clone, clap::Args)]
pub struct ProgressArgs {
    /// How to show progress: none, simple, ascii, unicode [default: by terminal]
    #[arg(long, value_name = "MODE", help_heading = "Advanced options", value_parser = super::cli::whole(progress_mode))]
    pub progress: Option<ProgressMode>,

    /// Same as --progress=none
    #[arg(long, help_heading = "Advanced options", conflicts_with = "progress")]
    pub no_progress: bool,
}

impl ProgressArgs {
    /// The mode that the options and the terminal lead to.
    #[must_use]
    pub fn mode(&self) -> ProgressMode {
        if self.no_progress {
            return ProgressMode::None;
        }
        ProgressMode::on_stderr(self.progress)
    }
}

/// Measures time, except the time in which the process was stopped.
#[derive(Debug)]
pub struct Stopwatch {
    started: Instant,
    paused_ns: AtomicU64,
}

impl Default for Stopwatch {
    fn default() -> Self {
        Self {
            started: Instant::now(),
            paused_ns: AtomicU64::new(0),
        }
    }
}

impl Stopwatch {
    /// Time since the beginning in which the process ran.
    #[must_use]
    pub fn elapsed(&self) -> Duration {
        let paused = Duration::from_nanos(self.paused_ns.load(Ordering::Relaxed));
        self.started.elapsed().saturating_sub(paused)
    }

    fn pause(&self, time: Duration) {
        let ns = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
        self.paused_ns.fetch_add(ns, Ordering::Relaxed);
    }
}

/// The present state of an operation.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Status {
    /// Name of the step, in one word: `compressing`.
    pub activity: &'static str,
    /// Finished part of the step; none while the total is unknown.
    pub permille: Option<u64>,
    /// Estimated time left, if there is an estimate.
    pub left: Option<Duration>,
    /// Numbers, most important first. Texts without room are left out.
    pub facts: Vec<String>,
    /// The present file; may be empty.
    pub path: String,
    /// More lines, where there is room for them.
    pub details: Vec<String>,
}

/// Something that takes its time.
pub trait Activity: Send + Sync {
    /// How far it is.
    fn status(&self) -> Status;
    /// How long it has been running.
    fn stopwatch(&self) -> &Stopwatch;
}

/// Time left when `done` of `total` took `time`. None while there is too little to go by.
#[must_use]
pub fn time_left(done: u64, total: u64, time: Duration) -> Option<Duration> {
    const LEAST: Duration = Duration::from_secs(2);
    if done == 0 || time < LEAST || u128::from(done) * 50 < u128::from(total) {
        return None;
    }
    let left = total.saturating_sub(done) as f64 / done as f64;
    Duration::try_from_secs_f64(time.as_secs_f64() * left).ok()
}

/// Permille of `total`, at most 1000; 0 if there is nothing.
#[must_use]
pub fn permille(done: u64, total: u64) -> u64 {
    match total {
        0 => 0,
        _ => u64::try_from(u128::from(done.min(total)) * 1000 / u128::from(total)).unwrap_or(1000),
    }
}

/// `0:07`, `12:34`, `1:02:03`.
#[must_use]
pub fn minutes(time: Duration) -> String {
    let seconds = time.as_secs();
    let (hours, minutes) = (seconds / 3600, seconds / 60 % 60);
    let seconds = seconds % 60;
    match hours {
        0 => format!("{minutes}:{seconds:02}"),
        _ => format!("{hours}:{minutes:02}:{seconds:02}"),
    }
}

#[derive(Debug, Clone, Copy)]
struct Screen {
    width: usize,
    height: usize,
    unicode: bool,
    colour: bool,
}

impl Status {
    fn times(&self, elapsed: Duration) -> String {
        match self.left {
            Some(left) => format!("{}, {} left", minutes(elapsed), minutes(left)),
            None => minutes(elapsed),
        }
    }

    fn frame(&self, screen: Screen, elapsed: Duration) -> Vec<String> {
        // Nothing reaches the last column, so that no line is continued in the next row.
        let width = screen.width.saturating_sub(1);
        let name = fit(&format!(" {:<NAME$} ", self.activity), width);
        let tail = match self.permille {
            Some(permille) => format!(" {:3}%  {}", permille / 10, self.times(elapsed)),
            None => format!(" {}", self.times(elapsed)),
        };
        let room = width
            .saturating_sub(name.width())
            .saturating_sub(tail.width());
        let middle = match self.permille {
            Some(permille) if room >= MIN_BAR => bar(permille, room, screen.unicode),
            _ => " ".repeat(room),
        };
        let rest = fit(
            &format!("{middle}{tail}"),
            width.saturating_sub(name.width()),
        );
        let mut lines = vec![match screen.colour {
            true => format!("\x1b[1;36m{name}\x1b[0m{rest}"),
            false => format!("{name}{rest}"),
        }];
        if screen.height > 2 {
            lines.push(self.second_line(width));
        }
        let more = screen.height.saturating_sub(6);
        let details = self.details.iter().take(more);
        lines.extend(details.map(|line| fit(&format!(" {line}"), width)));
        lines
    }

    fn second_line(&self, width: usize) -> String {
        let mut line = String::from(" ");
        for (at, fact) in self.facts.iter().enumerate() {
            let joint = if at == 0 { "" } else { ", " };
            if line.width() + joint.len() + fact.width() > width {
                break;
            }
            line.push_str(joint);
            line.push_str(fact);
        }
        let room = width.saturating_sub(line.width() + 3);
        if !self.path.is_empty() && room >= MIN_PATH {
            let gap = if self.facts.is_empty() { "" } else { "   " };
            line.push_str(gap);
            line.push_str(&shorten(&one_line(&self.path), room));
        }
        fit(&line, width)
    }

    fn simple_line(&self, elapsed: Duration) -> String {
        let done = match self.permille {
            Some(1000) if self.activity == "done" => "100% done".to_owned(),
            Some(permille) => format!("{} {}%", self.activity, permille / 10),
            None => self.activity.to_owned(),
        };
        let mut parts = vec![done];
        parts.extend(self.facts.iter().cloned());
        parts.push(self.times(elapsed));
        format!("==> {}", parts.join(", "))
    }
}

/// A bar of `width` columns.
fn bar(permille: u64, width: usize, unicode: bool) -> String {
    let permille = permille.min(1000) as usize;
    if unicode {
        const EIGHTHS: [&str; 8] = ["", "▏", "▎", "▍", "▌", "▋", "▊", "▉"];
        let eighths = width * 8 * permille / 1000;
        let mut text = "█".repeat(eighths / 8);
        text.push_str(EIGHTHS[eighths % 8]);
        let empty = width - (eighths / 8 + usize::from(!eighths.is_multiple_of(8)));
        text.extend(std::iter::repeat_n('·', empty));
        text
    } else {
        let inner = width.saturating_sub(2);
        let full = inner * permille / 1000;
        format!("[{}{}]", "#".repeat(full), "-".repeat(inner - full))
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

/// The thread that shows an [`Activity`] while it runs.
#[derive(Debug)]
pub struct Display {
    stop: Option<Sender<()>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Display {
    /// Starts showing `activity` on `console`, which is standard error; nothing to do in mode
    /// `none`.
    ///
    /// # Errors
    /// If no thread can be started, or signals cannot be handled.
    pub fn start<A: Activity + 'static>(
        activity: &Arc<A>,
        console: &Console,
        mode: ProgressMode,
    ) -> io::Result<Self> {
        if mode == ProgressMode::None {
            return Ok(Self {
                stop: None,
                thread: Mutex::new(None),
            });
        }
        let (activity, console) = (Arc::clone(activity), console.clone());
        let (stop, stopped) = channel::<()>();
        let wait =
            move |time| !matches!(stopped.recv_timeout(time), Err(RecvTimeoutError::Timeout));
        let builder = std::thread::Builder::new().name("progress".to_owned());
        let thread = if mode == ProgressMode::Simple {
            builder.spawn(move || scroll(&*activity, &console, wait))?
        } else {
            let requests = Requests::new()?;
            let unicode = mode == ProgressMode::Unicode;
            builder.spawn(move || redraw(&*activity, &console, unicode, &requests, wait))?
        };
        Ok(Self {
            stop: Some(stop),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Removes the display.
    pub fn finish(&mut self) {
        drop(self.stop.take());
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(thread) = thread.take() {
            let _ = thread.join();
        }
    }
}

impl Drop for Display {
    fn drop(&mut self) {
        self.finish();
    }
}

/// A line from time to time, if there is something new. `over` waits, and says whether work is over.
fn scroll(activity: &dyn Activity, console: &Console, over: impl Fn(Duration) -> bool) {
    let mut last = Status::default();
    loop {
        let ended = over(LINE);
        let status = activity.status();
        if (&status.facts, status.permille) != (&last.facts, last.permille) {
            let line = status.simple_line(activity.stopwatch().elapsed());
            console.line(&format!("- {} {line}", clock(SystemTime::now())));
            last = status;
        }
        if ended {
            return;
        }
    }
}

/// A frame from time to time, and at once when the terminal has changed.
fn redraw(
    activity: &dyn Activity,
    console: &Console,
    unicode: bool,
    requests: &Requests,
    over: impl Fn(Duration) -> bool,
) {
    let mut due = Instant::now() + PATIENCE;
    while !over(POLL) {
        let stopped = requests.obey_stop(console);
        if let Some(time) = stopped {
            activity.stopwatch().pause(time);
        }
        let resized = requests.take_resized();
        if stopped.is_none() && !resized && Instant::now() < due {
            continue;
        }
        due = Instant::now() + FRAME;
        if !stderr_is_ours() {
            console.clear_frame();
            continue;
        }
        let screen = Screen {
            width: stderr_width(),
            height: stderr_height(),
            unicode,
            colour: console.colour(),
        };
        console.set_frame(
            activity
                .status()
                .frame(screen, activity.stopwatch().elapsed()),
        );
    }
    console.clear_frame();
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bars() {
        assert_eq!(bar(0, 4, false), "[--]");
        assert_eq!(bar(500, 6, false), "[##--]");
        assert_eq!(bar(1000, 4, false), "[##]");
        assert_eq!(bar(500, 1, true), "▌");
        assert_eq!(bar(0, 2, true), "··");
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

    fn status() -> Status {
        Status {
            activity: "compressing",
            permille: Some(431),
            left: Some(Duration::from_secs(50)),
            facts: vec![
                "1.204 of 2.801 GiB".to_owned(),
                "31.2 MiB/s".to_owned(),
                "stored as 25.2%".to_owned(),
            ],
            path: "usr/lib/x86_64-linux-gnu/libexample.so.1.2.3".to_owned(),
            details: vec!["one".to_owned(), "two".to_owned()],
        }
    }

    #[test]
    fn frames_look_good_on_usual_screens() {
        let screen = |width| Screen {
            width,
            height: 7,
            unicode: false,
            colour: false,
        };
        let frame = |status: &Status, width| {
            status
                .frame(screen(width), Duration::from_secs(38))
                .join("\n")
        };
        assert_eq!(
            frame(&status(), 80),
            " compressing [##################------------------------]  43%  0:38, 0:50 left\n \
             1.204 of 2.801 GiB, 31.2 MiB/s, stored as 25.2%   ...x-gnu/libexample.so.1.2.3\n one"
        );
        assert_eq!(
            frame(&status(), 50),
            " compressing [#####-------]  43%  0:38, 0:50 left\n \
             1.204 of 2.801 GiB, 31.2 MiB/s, stored as 25.2%\n one"
        );
        let listing = Status {
            activity: "listing",
            facts: vec!["12,345 entries, 1.8 GiB".to_owned()],
            ..Status::default()
        };
        assert_eq!(
            frame(&listing, 50),
            " listing                                     0:38\n 12,345 entries, 1.8 GiB"
        );
    }

    #[test]
    fn frames_fit_the_screen() {
        for width in 1..120 {
            for height in [1, 2, 3, 7, 40] {
                for unicode in [false, true] {
                    for permille in [None, Some(0), Some(1000)] {
                        let screen = Screen {
                            width,
                            height,
                            unicode,
                            colour: false,
                        };
                        let status = Status {
                            permille,
                            ..status()
                        };
                        let frame = status.frame(screen, Duration::from_secs(100_000));
                        assert!(frame.len() <= height.max(1), "{height}");
                        for line in frame {
                            assert!(line.width() < width.max(1) || line.is_empty(), "{line:?}");
                        }
                    }
                }
            }
        }
    }

    #[test]
    fn time_is_told_when_it_can_be() {
        let seconds = Duration::from_secs;
        assert_eq!(time_left(50, 100, seconds(10)), Some(seconds(10)));
        assert_eq!(time_left(100, 100, seconds(10)), Some(seconds(0)));
        // Too early, too little, nothing.
        assert_eq!(time_left(50, 100, seconds(1)), None);
        assert_eq!(time_left(1, 100, seconds(10)), None);
        assert_eq!(time_left(0, 0, seconds(10)), None);
        for (time, want) in [(7, "0:07"), (754, "12:34"), (3723, "1:02:03")] {
            assert_eq!(minutes(seconds(time)), want);
        }
    }

    #[test]
    fn parts_of_unknown_and_known_wholes() {
        assert_eq!(permille(0, 0), 0);
        assert_eq!(permille(1, 3), 333);
        assert_eq!(permille(9, 3), 1000);
        assert_eq!(permille(u64::MAX, u64::MAX), 1000);
    }
}
