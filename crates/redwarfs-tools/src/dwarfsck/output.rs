//! Standard output, and what could not be written to it.

use std::io::{self, BufWriter, Write};

use redwarfs_extractor::display_path;
use redwarfs_format::Error;

use crate::common::error::{EXIT_FAILURE, io_cause};
use crate::common::{Logger, Result, ToolError};

/// How the entries of a list are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Form {
    /// A line each, made printable.
    Lines,
    /// Without escapes, with a NUL after each name.
    Null,
    /// A line of JSON each.
    Json,
}

/// A path of the image for a message.
pub(super) fn shown(path: &[u8]) -> String {
    display_path(path)
}

/// The line for a file with which something is wrong.
pub(super) fn file_error(what: &str, path: &[u8], e: &Error) -> String {
    format!("{what}: {}: {e}", shown(path))
}

/// Standard output, buffered; a reader that went away ends the tool quietly.
#[derive(Debug)]
pub(super) struct Output(BufWriter<io::Stdout>);

impl Output {
    pub(super) fn new() -> Self {
        Self(BufWriter::new(io::stdout()))
    }

    pub(super) fn line(&mut self, text: &str) -> Result<()> {
        self.bytes(text.as_bytes())?;
        self.bytes(b"\n")
    }

    pub(super) fn lines(&mut self, lines: &[String]) -> Result<()> {
        lines.iter().try_for_each(|line| self.line(line))
    }

    pub(super) fn bytes(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.write_all(bytes).map_err(|e| output_error(&e))
    }

    pub(super) fn finish(mut self) -> Result<()> {
        self.0.flush().map_err(|e| output_error(&e))
    }
}

impl Write for Output {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.0.write(buf)
    }

    fn write_all(&mut self, buf: &[u8]) -> io::Result<()> {
        self.0.write_all(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.0.flush()
    }
}

/// The error for standard output.
pub(super) fn output_error(e: &io::Error) -> ToolError {
    if e.kind() == io::ErrorKind::BrokenPipe {
        ToolError::silent(EXIT_FAILURE)
    } else {
        ToolError::new("cannot write to standard output").io(e)
    }
}

/// Counts what could not be shown of a damaged image; each is logged.
#[derive(Debug)]
pub(super) struct Failures<'a> {
    logger: &'a Logger,
    count: u64,
}

impl<'a> Failures<'a> {
    pub(super) fn new(logger: &'a Logger) -> Self {
        Self { logger, count: 0 }
    }

    pub(super) fn count(&self) -> u64 {
        self.count
    }

    pub(super) fn add(&mut self, what: &str, path: Option<&[u8]>, error: &Error) {
        self.count = self.count.saturating_add(1);
        match path {
            Some(path) => self.logger.error(file_error(what, path, error)),
            None => self.logger.error(format_args!("{what}: {error}")),
        }
    }

    /// Counts a failure, unless the output failed: the data comes from memory, so every I/O error is
    /// one of the output.
    pub(super) fn absorb(&mut self, what: &str, done: redwarfs_format::Result<()>) -> Result<()> {
        match done {
            Ok(()) => Ok(()),
            Err(Error::Io(e)) => Err(output_error(&e)),
            Err(e) => {
                self.add(what, None, &e);
                Ok(())
            }
        }
    }
}

/// The text of an error without the parts of other layers.
pub(super) fn error_text(error: &Error) -> String {
    match error {
        Error::Io(e) => io_cause(e),
        other => other.to_string(),
    }
}
