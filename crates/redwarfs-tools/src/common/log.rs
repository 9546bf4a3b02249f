//! Messages: `L HH:MM:SS.uuuuuu message` on standard error or in a file, or lines for the system
//! log.

use std::fmt::{self, Write as _};
use std::fs::OpenOptions;
use std::io;
use std::panic::Location;
use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::console::Console;
use super::log_level::LogLevel;
use super::number::format_duration;
use super::os::Syslog;
use super::time::{LocalTime, clock};

/// Formats a message. Following lines of a multi-line message repeat the letter, with dots for
/// the time and spaces for the context. Carriage returns are dropped.
#[must_use]
pub fn format_message(
    level: LogLevel,
    time: &str,
    context: Option<&str>,
    message: &str,
    colour: bool,
) -> String {
    let message: String = message.chars().filter(|&c| c != '\r').collect();
    let message = if message.is_empty() {
        "<<< no log message >>>"
    } else {
        message.as_str()
    };
    let (on, off) = match level.colour() {
        "" => ("", ""),
        on if colour => (on, "\x1b[0m"),
        _ => ("", ""),
    };
    let mut out = String::with_capacity(message.len() + 32);
    for (i, line) in message.lines().enumerate() {
        if i > 0 {
            out.push('\n');
        }
        let _ = write!(out, "{on}{} ", level.letter());
        if i == 0 {
            out.push_str(time);
        } else {
            out.extend(std::iter::repeat_n('.', time.chars().count()));
        }
        out.push(' ');
        if let Some(context) = context {
            if i == 0 {
                let _ = write!(out, "[{context}] ");
            } else {
                out.extend(std::iter::repeat_n(' ', context.chars().count() + 3));
            }
        }
        escape_controls(line, &mut out);
        out.push_str(off);
    }
    out
}

/// Tabs are layout; other control characters could drive the terminal.
fn escape_controls(line: &str, out: &mut String) {
    for c in line.chars() {
        if c.is_control() && c != '\t' {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
}

/// Prints messages up to a level. Cheap to clone; usable from any thread.
#[derive(Debug, Clone)]
pub struct Logger {
    sink: Arc<Sink>,
}

#[derive(Debug)]
struct Sink {
    console: Console,
    /// Gets the messages instead of the console.
    syslog: Option<Syslog>,
    /// The date of the last message, where messages should be preceded by the date when it
    /// changes.
    date: Option<Mutex<String>>,
    level: LogLevel,
    context: bool,
}

impl Logger {
    /// A logger on standard error. `with_context` asks for the source of each message, which is
    /// shown anyway from level `verbose`.
    #[must_use]
    pub fn stderr(level: LogLevel, with_context: bool) -> Self {
        Self::new(
            Console::stderr(),
            level,
            with_context || level >= LogLevel::Verbose,
        )
    }

    /// A logger on `console`; `context` decides whether the source of a message is shown.
    #[must_use]
    pub fn new(console: Console, level: LogLevel, context: bool) -> Self {
        Self::with(console, None, None, level, context)
    }

    /// A logger that appends to a file, which is made if needed. A line with the date precedes the
    /// first message and each first one of another day.
    ///
    /// # Errors
    /// The file cannot be opened or made.
    pub fn file(path: &Path, level: LogLevel, context: bool) -> io::Result<Self> {
        let file = OpenOptions::new().append(true).create(true).open(path)?;
        let console = Console::new(Box::new(file), false);
        let date = Some(Mutex::new(String::new()));
        Ok(Self::with(console, None, date, level, context))
    }

    /// A logger that sends lines to the system log, which adds the time itself.
    #[must_use]
    pub fn syslog(syslog: Syslog, level: LogLevel, context: bool) -> Self {
        Self::with(Console::stderr(), Some(syslog), None, level, context)
    }

    fn with(
        console: Console,
        syslog: Option<Syslog>,
        date: Option<Mutex<String>>,
        level: LogLevel,
        context: bool,
    ) -> Self {
        Self {
            sink: Arc::new(Sink {
                console,
                syslog,
                date,
                level,
                context,
            }),
        }
    }

    /// Where the messages go.
    #[must_use]
    pub fn console(&self) -> &Console {
        &self.sink.console
    }

    /// The least important level that is shown.
    #[must_use]
    pub fn level(&self) -> LogLevel {
        self.sink.level
    }

    /// Whether messages of `level` are shown. Ask before composing a costly message.
    #[must_use]
    pub fn enabled(&self, level: LogLevel) -> bool {
        level <= self.sink.level
    }

    /// Prints a message of `level`. Where it comes from is where this is called, as for the
    /// methods below.
    #[track_caller]
    pub fn log(&self, level: LogLevel, message: impl fmt::Display) {
        if self.enabled(level) {
            let place = Location::caller();
            self.print(level, Some(&context(place.file(), place.line())), message);
        }
    }

    /// Prints a message with its source (`file:line` or a target name).
    pub fn log_from(&self, level: LogLevel, context: Option<&str>, message: impl fmt::Display) {
        if self.enabled(level) {
            self.print(level, context, message);
        }
    }

    /// Prints a message that an option other than the level requests.
    pub fn always(&self, level: LogLevel, message: impl fmt::Display) {
        self.print(level, None, message);
    }

    fn print(&self, level: LogLevel, context: Option<&str>, message: impl fmt::Display) {
        let context = context.filter(|_| self.sink.context);
        let message = message.to_string();
        if let Some(syslog) = &self.sink.syslog {
            for line in message.lines().filter(|line| !line.is_empty()) {
                let mut text = context.map_or_else(String::new, |at| format!("[{at}] "));
                escape_controls(line.trim_end_matches('\r'), &mut text);
                syslog.send(level, &text);
            }
            return;
        }
        let now = SystemTime::now();
        let time = clock(now);
        let colour = self.sink.console.colour();
        let mut text = format_message(level, &time, context, &message, colour);
        if let Some(last) = &self.sink.date {
            let since = now.duration_since(UNIX_EPOCH).unwrap_or_default();
            let today = LocalTime::from_unix(i64::try_from(since.as_secs()).unwrap_or(0));
            let today = today.date_time();
            let today = today.split(' ').next().unwrap_or_default();
            let mut last = last.lock().unwrap_or_else(PoisonError::into_inner);
            if *last != today {
                today.clone_into(&mut last);
                let date = format!("date: {today}");
                let date = format_message(LogLevel::Info, &time, None, &date, false);
                text.insert_str(0, &format!("{date}\n"));
            }
        }
        self.sink.console.line(&text);
    }

    /// Prints a message followed by how long the thing took: ` [1.105ms]`.
    #[track_caller]
    pub fn timed(&self, level: LogLevel, message: impl fmt::Display, took: Duration) {
        self.log(level, format_args!("{message} [{}]", format_duration(took)));
    }

    /// Prints an error.
    #[track_caller]
    pub fn error(&self, message: impl fmt::Display) {
        self.log(LogLevel::Error, message);
    }

    /// Prints a warning.
    #[track_caller]
    pub fn warn(&self, message: impl fmt::Display) {
        self.log(LogLevel::Warn, message);
    }

    /// Prints an informational message.
    #[track_caller]
    pub fn info(&self, message: impl fmt::Display) {
        self.log(LogLevel::Info, message);
    }

    /// Prints a detail.
    #[track_caller]
    pub fn verbose(&self, message: impl fmt::Display) {
        self.log(LogLevel::Verbose, message);
    }

    /// Prints a message for those who look for a defect.
    #[track_caller]
    pub fn debug(&self, message: impl fmt::Display) {
        self.log(LogLevel::Debug, message);
    }

    /// Prints a message of the finest level.
    #[track_caller]
    pub fn trace(&self, message: impl fmt::Display) {
        self.log(LogLevel::Trace, message);
    }
}

/// A place in the sources, without directories.
fn context(file: &str, line: u32) -> String {
    let file = file.rsplit('/').next().unwrap_or(file);
    format!("{file}:{line}")
}

/// Sends `tracing` events of the libraries to `logger`, for the whole process. A second call has
/// no effect.
pub fn install_tracing(logger: &Logger) {
    let _ = tracing::subscriber::set_global_default(Bridge {
        logger: logger.clone(),
    });
}

/// A subscriber for events only: spans are accepted and ignored.
#[derive(Debug)]
struct Bridge {
    logger: Logger,
}

/// `tracing` has no level between info and debug: events of level info have it whose target ends
/// in this.
const VERBOSE: &str = "::verbose";

fn level_of(metadata: &tracing::Metadata<'_>) -> LogLevel {
    match *metadata.level() {
        tracing::Level::ERROR => LogLevel::Error,
        tracing::Level::WARN => LogLevel::Warn,
        tracing::Level::INFO if metadata.target().ends_with(VERBOSE) => LogLevel::Verbose,
        tracing::Level::INFO => LogLevel::Info,
        tracing::Level::DEBUG => LogLevel::Debug,
        tracing::Level::TRACE => LogLevel::Trace,
    }
}

impl tracing::Subscriber for Bridge {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.is_event()
            && metadata.target().starts_with("redwarfs")
            && self.logger.enabled(level_of(metadata))
    }

    fn max_level_hint(&self) -> Option<tracing::level_filters::LevelFilter> {
        use tracing::level_filters::LevelFilter;
        Some(match self.logger.level() {
            LogLevel::Error => LevelFilter::ERROR,
            LogLevel::Warn => LevelFilter::WARN,
            LogLevel::Info | LogLevel::Verbose => LevelFilter::INFO,
            LogLevel::Debug => LevelFilter::DEBUG,
            LogLevel::Trace => LevelFilter::TRACE,
        })
    }

    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let metadata = event.metadata();
        let mut text = EventText::default();
        event.record(&mut text);
        let context = match (metadata.file(), metadata.line()) {
            (Some(file), Some(line)) => context(file, line),
            _ => metadata.target().to_owned(),
        };
        self.logger
            .log_from(level_of(metadata), Some(&context), text.finish());
    }
}

#[derive(Default)]
struct EventText {
    message: String,
    fields: String,
}

impl EventText {
    fn finish(mut self) -> String {
        self.message.push_str(&self.fields);
        self.message
    }
}

impl tracing::field::Visit for EventText {
    fn record_str(&mut self, field: &tracing::field::Field, value: &str) {
        self.record_debug(field, &format_args!("{value}"));
    }

    fn record_debug(&mut self, field: &tracing::field::Field, value: &dyn fmt::Debug) {
        let _ = if field.name() == "message" {
            write!(self.message, "{value:?}")
        } else {
            write!(self.fields, ", {}={value:?}", field.name())
        };
    }
}

#[cfg(test)]
mod tests {
    use super::super::console::Capture;
    use super::*;

    #[test]
    fn level_names() {
        for level in LogLevel::ALL {
            assert_eq!(level.name().parse(), Ok(level));
        }
        assert_eq!(
            "foo".parse::<LogLevel>(),
            Err(
                "invalid logger level: foo (one of error, warn, info, verbose, debug, trace)"
                    .to_owned()
            )
        );
        assert!("INFO".parse::<LogLevel>().is_err());
    }

    #[test]
    fn messages_say_where_they_come_from() {
        let capture = Capture::default();
        let console = Console::new(Box::new(capture.clone()), false);
        let logger = Logger::new(console, LogLevel::Info, true);
        logger.info("here");
        let line = line!() - 1;
        logger.timed(LogLevel::Warn, "there", Duration::from_secs(1));
        let text = capture.text();
        assert!(text.contains(&format!(" [log.rs:{line}] here\n")), "{text}");
        assert!(
            text.contains(&format!(" [log.rs:{}] there [1s]\n", line + 2)),
            "{text}"
        );
    }

    #[test]
    fn message_layout() {
        let time = "18:45:33.334526";
        let f = |context, text| format_message(LogLevel::Verbose, time, context, text, false);
        assert_eq!(f(None, "x"), "V 18:45:33.334526 x");
        assert_eq!(
            f(Some("a:1"), "x\r\ny"),
            "V 18:45:33.334526 [a:1] x\nV ...............       y"
        );
        assert_eq!(f(None, ""), "V 18:45:33.334526 <<< no log message >>>");
        assert_eq!(f(None, "\x1b[2J"), "V 18:45:33.334526 \\u{1b}[2J");
        assert_eq!(
            format_message(LogLevel::Error, time, None, "x", true),
            "\x1b[1;31mE 18:45:33.334526 x\x1b[0m"
        );
        assert_eq!(
            format_message(LogLevel::Info, time, None, "x", true),
            "I 18:45:33.334526 x"
        );
    }

    #[test]
    fn threshold_and_timed() {
        let capture = Capture::default();
        let console = Console::new(Box::new(capture.clone()), false);
        let logger = Logger::new(console, LogLevel::Warn, false);
        logger.info("hidden");
        logger.timed(LogLevel::Warn, "shown", Duration::from_micros(1105));
        let text = capture.text();
        assert!(
            text.starts_with("W ") && text.ends_with(" shown [1.105ms]\n"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1);
    }

    #[test]
    fn files_get_dates_and_syslog_gets_lines() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let path = dir.path().join("log");
        for text in ["one", "two\nlines"] {
            let logger = Logger::file(&path, LogLevel::Info, false).expect("a file");
            logger.verbose("hidden");
            logger.warn(text);
            logger.always(LogLevel::Verbose, "shown");
        }
        let text = std::fs::read_to_string(&path).expect("text");
        let cut: Vec<_> = text
            .lines()
            .map(|line| (&line[..1], line[18..].split(' ').next().unwrap_or_default()))
            .collect();
        let want = [
            "I date:", "W one", "V shown", "I date:", "W two", "W lines", "V shown",
        ];
        let want: Vec<_> = want
            .iter()
            .map(|w| w.split_once(' ').expect("two"))
            .collect();
        assert_eq!(cut, want, "{text}");
        assert!(Logger::file(dir.path(), LogLevel::Info, false).is_err());

        let socket = dir.path().join("socket");
        let server = std::os::unix::net::UnixDatagram::bind(&socket).expect("bind");
        let syslog = Syslog::connect(&socket, "x").expect("connect");
        let logger = Logger::syslog(syslog, LogLevel::Info, true);
        logger.log_from(LogLevel::Warn, Some("a:1"), "one\r\n\ntwo\u{1b}");
        let mut buffer = [0; 200];
        for want in ["]: [a:1] one", "]: [a:1] two\\u{1b}"] {
            let length = server.recv(&mut buffer).expect("a message");
            let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
            assert!(text.starts_with("<28>") && text.ends_with(want), "{text}");
        }
    }

    #[test]
    fn tracing_events_become_messages() {
        let capture = Capture::default();
        let console = Console::new(Box::new(capture.clone()), false);
        let logger = Logger::new(console, LogLevel::Debug, true);
        tracing::subscriber::with_default(Bridge { logger }, || {
            tracing::warn!(block = 3, name = "x", "bad block");
            tracing::trace!("hidden");
            tracing::info!(target: "other_crate", "hidden");
        });
        let text = capture.text();
        let capture = Capture::default();
        let console = Console::new(Box::new(capture.clone()), false);
        let logger = Logger::new(console, LogLevel::Verbose, false);
        tracing::subscriber::with_default(Bridge { logger }, || {
            tracing::info!(target: "redwarfs_x::verbose", files = 3, "listed");
            tracing::info!("said");
            tracing::debug!("hidden");
        });
        let more = capture.text();
        let (first, second) = more.split_once('\n').expect("two lines");
        assert!(first.starts_with("V ") && first.ends_with(" listed, files=3"));
        assert!(second.starts_with("I ") && second.ends_with(" said\n"));
        assert!(
            text.contains("[log.rs:") && text.ends_with("bad block, block=3, name=x\n"),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1);
    }
}
