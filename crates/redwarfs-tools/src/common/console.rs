//! Standard error as seen by the user: scrolling lines above a frame that is redrawn in place.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use super::os::{self, AsTerminal};

/// Columns assumed when the terminal does not tell.
const DEFAULT_WIDTH: usize = 80;
/// The same for rows.
const DEFAULT_HEIGHT: usize = 24;

/// Whether `out` is a terminal that understands escape sequences. On Unix: a terminal, with `TERM`
/// set, not empty and not `dumb`.
#[must_use]
pub fn is_capable<T: IsTerminal + AsTerminal>(out: &T) -> bool {
    out.is_terminal() && os::understands_escapes(out)
}

/// Whether standard error is a terminal that understands escape sequences.
#[must_use]
pub fn stderr_is_fancy() -> bool {
    is_capable(&io::stderr())
}

/// Whether text of the process is shown as UTF-8. On Unix, the locale says so (`LC_ALL`, `LC_CTYPE`,
/// `LANG`, first one set).
#[must_use]
pub fn locale_is_utf8() -> bool {
    os::locale_is_utf8()
}

/// Columns of the terminal `out`, 80 if unknown.
#[must_use]
pub fn width_of(out: &impl AsTerminal) -> usize {
    match os::terminal_size(out) {
        Some((columns, _)) if columns > 0 => columns,
        _ => DEFAULT_WIDTH,
    }
}

/// Columns of the terminal on standard error, 80 if unknown.
#[must_use]
pub fn stderr_width() -> usize {
    width_of(&io::stderr())
}

/// Rows of the terminal `out`, 24 if unknown.
#[must_use]
pub fn height_of(out: &impl AsTerminal) -> usize {
    match os::terminal_size(out) {
        Some((_, rows)) if rows > 0 => rows,
        _ => DEFAULT_HEIGHT,
    }
}

/// Rows of the terminal on standard error, 24 if unknown.
#[must_use]
pub fn stderr_height() -> usize {
    height_of(&io::stderr())
}

/// Whether this process may draw on the terminal at standard error: not while the shell has it.
#[must_use]
pub fn stderr_is_ours() -> bool {
    os::owns_terminal()
}

/// Writes one line to standard error with a single call, ignoring a closed one.
pub fn write_stderr(line: &str) {
    let mut bytes = Vec::with_capacity(line.len() + 1);
    bytes.extend_from_slice(line.as_bytes());
    bytes.push(b'\n');
    let _ = io::stderr().lock().write_all(&bytes);
}

/// A shared output for messages and a live display. Clones refer to the same output.
///
/// Lines scroll; the frame (if any) always stays below the last line. Every change is one write, so
/// that lines of several threads never mix. A failing output is ignored: no user could see a message.
///
/// After each change the cursor is at the first character of the frame, and a frame is removed by
/// erasing everything from there. A terminal that becomes narrower wraps the lines of the frame again,
/// but keeps the cursor at its character. So the old frame can be erased without knowing its number of
/// rows. (A library such as `indicatif` leaves the cursor at the end, and goes up by the rows that it
/// drew, which does not erase all of them.)
#[derive(Clone)]
pub struct Console {
    screen: Arc<Mutex<Screen>>,
    colour: bool,
}

struct Screen {
    out: Box<dyn Write + Send>,
    frame: Vec<String>,
    /// The process is about to stop: no frame until it continues.
    paused: bool,
}

impl fmt::Debug for Console {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Console")
            .field("colour", &self.colour)
            .finish_non_exhaustive()
    }
}

impl Console {
    /// Standard error, coloured if it is a capable terminal.
    #[must_use]
    pub fn stderr() -> Self {
        Self::new(Box::new(io::stderr()), stderr_is_fancy())
    }

    /// Any writer; `colour` allows escape sequences in lines.
    #[must_use]
    pub fn new(out: Box<dyn Write + Send>, colour: bool) -> Self {
        Self {
            screen: Arc::new(Mutex::new(Screen {
                out,
                frame: Vec::new(),
                paused: false,
            })),
            colour,
        }
    }

    /// Whether lines may be coloured.
    #[must_use]
    pub fn colour(&self) -> bool {
        self.colour
    }

    /// Writes `text` (one or more lines, final newline optional) above the frame.
    pub fn line(&self, text: &str) {
        let mut screen = self.lock();
        let mut bytes = screen.erase();
        bytes.push_str(text);
        if !text.ends_with('\n') {
            bytes.push('\n');
        }
        screen.draw(&mut bytes);
        screen.write(&bytes);
    }

    /// Draws `lines` as the frame, in place of the previous one. Each line must be shorter than
    /// the terminal is wide; only for outputs that understand escape sequences.
    pub fn set_frame(&self, lines: Vec<String>) {
        let mut screen = self.lock();
        if screen.paused {
            return;
        }
        let mut bytes = screen.erase();
        screen.frame = lines;
        screen.draw(&mut bytes);
        screen.write(&bytes);
    }

    /// Removes the frame; following lines start where it began.
    pub fn clear_frame(&self) {
        self.lock().clear();
    }

    /// Removes the frame and shows none before [`resume`](Self::resume).
    pub fn pause(&self) {
        let mut screen = self.lock();
        screen.clear();
        screen.paused = true;
    }

    /// Ends a [`pause`](Self::pause).
    pub fn resume(&self) {
        self.lock().paused = false;
    }

    fn lock(&self) -> MutexGuard<'_, Screen> {
        // The screen is a list of lines: a panic elsewhere cannot leave it unusable.
        self.screen.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Screen {
    fn erase(&self) -> String {
        match self.frame.len() {
            0 => String::new(),
            _ => String::from("\r\x1b[J"),
        }
    }

    fn clear(&mut self) {
        let bytes = self.erase();
        self.frame.clear();
        self.write(&bytes);
    }

    /// Appends the frame and the way back to its first character.
    fn draw(&self, bytes: &mut String) {
        bytes.push_str(&self.frame.join("\n"));
        match self.frame.len() {
            0 => {}
            1 => bytes.push('\r'),
            n => bytes.push_str(&format!("\r\x1b[{}A", n - 1)),
        }
    }

    fn write(&mut self, bytes: &str) {
        if !bytes.is_empty() {
            let _ = self.out.write_all(bytes.as_bytes());
            let _ = self.out.flush();
        }
    }
}

/// A writer that keeps what it gets, for tests of messages.
#[derive(Debug, Clone, Default)]
pub struct Capture(Arc<Mutex<Vec<u8>>>);

impl Capture {
    /// The text written so far, as lossy UTF-8.
    #[must_use]
    pub fn text(&self) -> String {
        String::from_utf8_lossy(&self.0.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }
}

impl Write for Capture {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(buf);
        Ok(buf.len())
    }
    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_scroll_above_the_frame() {
        let capture = Capture::default();
        let console = Console::new(Box::new(capture.clone()), true);
        console.line("one");
        assert_eq!(capture.text(), "one\n");
        console.set_frame(vec!["a".into(), "b".into()]);
        assert_eq!(capture.text(), "one\na\nb\r\x1b[1A");
        console.line("two");
        assert!(capture.text().ends_with("\r\x1b[Jtwo\na\nb\r\x1b[1A"));
        console.clear_frame();
        console.line("three");
        assert!(capture.text().ends_with("\x1b[1A\r\x1b[Jthree\n"));
    }

    #[test]
    fn frames_adapt_to_a_narrower_screen() {
        let capture = Capture::default();
        let console = Console::new(Box::new(capture.clone()), true);
        let size = |n| std::num::NonZero::new(n).expect("not zero");
        let mut screen = vt100::Parser::new(size(6), size(40), 0);
        let mut seen = 0;
        let mut show = |screen: &mut vt100::Parser| {
            let text = capture.text();
            screen.process(text[seen..].replace('\n', "\r\n").as_bytes());
            seen = text.len();
            screen.screen().contents()
        };
        console.line("before");
        console.set_frame(vec!["x".repeat(39), "y".repeat(39)]);
        assert_eq!(
            show(&mut screen),
            format!("before\n{}\n{}", "x".repeat(39), "y".repeat(39))
        );
        assert_eq!(screen.screen().cursor_position(), (1, 0));
        // As a terminal leaves it that breaks lines anew: four rows, the cursor where it was.
        screen.process(b"\r\x1b[J");
        for row in ["x", "x", "y", "y"] {
            screen.process(format!("{}\r\n", row.repeat(20)).as_bytes());
        }
        screen.process(b"\x1b[4A\r");
        console.set_frame(vec!["x".repeat(19), "y".repeat(19)]);
        let want = format!("before\n{}\n{}", "x".repeat(19), "y".repeat(19));
        assert_eq!(show(&mut screen), want);
        console.line("after");
        let want = want.replace("before", "before\nafter");
        assert_eq!(show(&mut screen), want);
        console.pause();
        assert_eq!(show(&mut screen), "before\nafter");
        console.set_frame(vec!["x".into()]);
        assert_eq!(show(&mut screen), "before\nafter");
        console.resume();
        console.set_frame(vec!["x".into()]);
        assert_eq!(show(&mut screen), "before\nafter\nx");
    }
}
