//! Standard error as seen by the user: scrolling lines above a frame that is redrawn in place.

use std::fmt;
use std::io::{self, IsTerminal, Write};
use std::os::fd::AsFd;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Columns assumed when the terminal does not tell.
const DEFAULT_WIDTH: usize = 80;

/// Whether `out` is a terminal that understands escape sequences: a terminal, with `TERM` set,
/// not empty and not `dumb`.
#[must_use]
pub fn is_capable(out: &impl IsTerminal) -> bool {
    let term = std::env::var_os("TERM").unwrap_or_default();
    out.is_terminal() && !term.is_empty() && term != "dumb"
}

/// Whether standard error is a terminal that understands escape sequences.
#[must_use]
pub fn stderr_is_fancy() -> bool {
    is_capable(&io::stderr())
}

/// Whether the locale of the process uses UTF-8 (`LC_ALL`, `LC_CTYPE`, `LANG`, first one set).
#[must_use]
pub fn locale_is_utf8() -> bool {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|value| !value.is_empty())
        .is_some_and(|value| {
            let value = value.to_ascii_lowercase();
            value.contains("utf-8") || value.contains("utf8")
        })
}

/// Columns of the terminal `out`, 80 if unknown.
#[must_use]
pub fn width_of(out: &impl AsFd) -> usize {
    match rustix::termios::tcgetwinsize(out) {
        Ok(size) if size.ws_col > 0 => usize::from(size.ws_col),
        _ => DEFAULT_WIDTH,
    }
}

/// Columns of the terminal on standard error, 80 if unknown.
#[must_use]
pub fn stderr_width() -> usize {
    width_of(&io::stderr())
}

/// Rows of the terminal on standard error, 24 if unknown.
#[must_use]
pub fn stderr_height() -> usize {
    match rustix::termios::tcgetwinsize(io::stderr()) {
        Ok(size) if size.ws_row > 0 => usize::from(size.ws_row),
        _ => 24,
    }
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
/// Lines scroll; the frame (if any) always stays below the last line. Every change is one write,
/// so that lines of several threads never mix. A failing output is ignored: there is nobody left
/// to tell.
#[derive(Clone)]
pub struct Console {
    state: Arc<Mutex<State>>,
    colour: bool,
}

struct State {
    out: Box<dyn Write + Send>,
    frame: Vec<String>,
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
            state: Arc::new(Mutex::new(State {
                out,
                frame: Vec::new(),
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
        let mut state = self.lock();
        let mut bytes = state.erase();
        bytes.push_str(text);
        if !text.ends_with('\n') {
            bytes.push('\n');
        }
        state.draw(&mut bytes);
        state.write(&bytes);
    }

    /// Draws `lines` as the frame, in place of the previous one. Each line must fit the terminal;
    /// only for outputs that understand escape sequences.
    pub fn set_frame(&self, lines: Vec<String>) {
        let mut state = self.lock();
        let mut bytes = String::new();
        // Overwriting in place and erasing only line ends avoids flicker.
        if !state.frame.is_empty() {
            bytes.push_str(&format!("\x1b[{}A\r", state.frame.len()));
        }
        state.frame = lines;
        state.draw(&mut bytes);
        bytes.push_str("\x1b[J");
        state.write(&bytes);
    }

    /// Removes the frame; following lines start where it began.
    pub fn clear_frame(&self) {
        let mut state = self.lock();
        let bytes = state.erase();
        state.frame.clear();
        state.write(&bytes);
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // The state is a list of lines: a panic elsewhere cannot leave it unusable.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl State {
    fn erase(&self) -> String {
        match self.frame.len() {
            0 => String::new(),
            n => format!("\x1b[{n}A\r\x1b[J"),
        }
    }

    fn draw(&self, bytes: &mut String) {
        for line in &self.frame {
            bytes.push_str(line);
            bytes.push_str("\x1b[K\n");
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
    /// What was written so far, lossy UTF-8.
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
        assert_eq!(capture.text(), "one\na\x1b[K\nb\x1b[K\n\x1b[J");
        console.line("two");
        assert!(
            capture
                .text()
                .ends_with("\x1b[2A\r\x1b[Jtwo\na\x1b[K\nb\x1b[K\n")
        );
        console.clear_frame();
        console.line("three");
        assert!(capture.text().ends_with("\x1b[2A\r\x1b[Jthree\n"));
    }
}
