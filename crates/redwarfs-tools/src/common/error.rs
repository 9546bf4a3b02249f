//! The one error type of the tools: a single line for the user, which may end with advice.

use std::ffi::OsStr;
use std::fmt;
use std::path::Path;

use redwarfs_io::place::shown_name;

/// Exit code of a successful run.
pub const EXIT_OK: u8 = 0;
/// Exit code of a run that failed.
pub const EXIT_FAILURE: u8 = 1;
/// Exit code of a run that finished although some entries could not be handled.
pub const EXIT_PARTIAL: u8 = 2;

/// Result of a step of a tool.
pub type Result<T, E = ToolError> = std::result::Result<T, E>;

/// A failure that ends a tool: `what: path: cause (advice)`, each part optional but the first.
///
/// ```
/// use redwarfs_tools::common::ToolError;
/// let error = ToolError::new("cannot open image").path("a.dwarfs").cause("permission denied");
/// assert_eq!(error.line("dwarfsck"), "dwarfsck: cannot open image: a.dwarfs: permission denied");
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ToolError {
    message: String,
    hint: Option<String>,
    quiet: bool,
    code: u8,
}

impl ToolError {
    /// An error that says `what` failed; exit code 1.
    pub fn new(what: impl Into<String>) -> Self {
        Self {
            message: one_line(&what.into()),
            hint: None,
            quiet: false,
            code: EXIT_FAILURE,
        }
    }

    /// An error that prints nothing, for failures that were already reported (or a closed pipe).
    #[must_use]
    pub fn silent(code: u8) -> Self {
        Self {
            message: String::new(),
            hint: None,
            quiet: true,
            code,
        }
    }

    /// Appends the path concerned.
    #[must_use]
    pub fn path(mut self, path: impl AsRef<Path>) -> Self {
        self.push(&display_path(path.as_ref()));
        self
    }

    /// Appends the cause.
    #[must_use]
    pub fn cause(mut self, cause: impl fmt::Display) -> Self {
        self.push(&one_line(&cause.to_string()));
        self
    }

    /// Appends an I/O error as its cause, without the number the operating system gives it.
    #[must_use]
    pub fn io(mut self, cause: &std::io::Error) -> Self {
        self.push(&io_cause(cause));
        self
    }

    /// Adds advice, shown in parentheses at the end of the line.
    #[must_use]
    pub fn hint(mut self, hint: impl Into<String>) -> Self {
        self.hint = Some(one_line(&hint.into()));
        self
    }

    /// Replaces the exit code (1).
    #[must_use]
    pub fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }

    /// The exit code.
    #[must_use]
    pub fn exit_code(&self) -> u8 {
        self.code
    }

    /// The line for the user without the advice, starting with the name of the tool.
    #[must_use]
    pub fn line(&self, tool: &str) -> String {
        format!("{tool}: {}", self.message)
    }

    /// The line with the advice.
    #[must_use]
    pub fn full_line(&self, tool: &str) -> String {
        match &self.hint {
            Some(hint) => format!("{} ({hint})", self.line(tool)),
            None => self.line(tool),
        }
    }

    /// Prints the error to standard error and returns the exit code. After a signal that asked the process to stop, that is
    /// the code of the signal.
    pub fn report(&self, tool: &str) -> u8 {
        if !self.quiet {
            super::console::write_stderr(&self.full_line(tool));
        }
        super::os::stop_code().unwrap_or(self.code)
    }

    fn push(&mut self, part: &str) {
        if !self.message.is_empty() {
            self.message.push_str(": ");
        }
        self.message.push_str(part);
    }
}

impl fmt::Display for ToolError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message)
    }
}

impl std::error::Error for ToolError {}

impl From<redwarfs_format::Error> for ToolError {
    fn from(error: redwarfs_format::Error) -> Self {
        match error {
            redwarfs_format::Error::Io(error) => Self::new(io_cause(&error)),
            other => Self::new(other.to_string()),
        }
    }
}

/// The text of an I/O error, without ` (os error N)`, and in lower case what the system says, which may follow a path.
#[must_use]
pub fn io_cause(error: &std::io::Error) -> String {
    let text = error.to_string();
    let Some(end) = text.find(" (os error ") else {
        return one_line(&text);
    };
    // Texts of Windows are sentences.
    let text = one_line(text[..end].trim_end_matches('.'));
    let start = text.rfind(": ").map_or(0, |found| found + 2);
    let (path, of_system) = text.split_at(start);
    format!("{path}{}", uncapitalized(of_system))
}

/// A text without the capital that texts of systems begin with ("No such file ..."). "I/O error" must stay.
fn uncapitalized(text: &str) -> String {
    let mut chars = text.chars();
    match (chars.next(), chars.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() || second == ' ' => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}

/// The cause alone, in the same form, of an error whose text may begin with `path`.
#[must_use]
pub fn cause_at(path: &Path, error: &std::io::Error) -> String {
    let text = io_cause(error);
    let named = format!("{}: ", display_path(path));
    uncapitalized(text.strip_prefix(&named).unwrap_or(&text))
}

/// A path for a message: lossy UTF-8, control characters escaped so that it stays on its line, and a URL without
/// secrets.
#[must_use]
pub fn display_path(path: &Path) -> String {
    display_name(shown_name(path).as_os_str())
}

/// As [`display_path`], for any string of the operating system.
#[must_use]
pub fn display_name(name: &OsStr) -> String {
    one_line(&name.to_string_lossy())
}

/// Replaces control characters by escapes, so that untrusted text cannot forge lines or drive
/// the terminal.
#[must_use]
pub fn one_line(text: &str) -> String {
    if !text.contains(char::is_control) {
        return text.to_owned();
    }
    let mut out = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        if c.is_control() {
            out.extend(c.escape_default());
        } else {
            out.push(c);
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_are_joined_by_colons() {
        let e = ToolError::new("cannot write image")
            .path("/x/y")
            .cause("file exists");
        assert_eq!(
            e.line("mkdwarfs"),
            "mkdwarfs: cannot write image: /x/y: file exists"
        );
        assert_eq!(e.exit_code(), EXIT_FAILURE);
    }

    #[test]
    fn io_errors_lose_their_number_and_capital() {
        #[cfg(unix)]
        for (code, want) in [
            (libc::ENOENT, "no such file or directory"),
            (libc::ENOSPC, "no space left on device"),
            (libc::EISDIR, "is a directory"),
        ] {
            assert_eq!(io_cause(&std::io::Error::from_raw_os_error(code)), want);
        }
        let text = io_cause(&std::io::Error::from_raw_os_error(2));
        assert!(
            text.starts_with(char::is_lowercase) && !text.ends_with('.'),
            "{text}"
        );
        assert_eq!(io_cause(&std::io::Error::other("FooBar")), "FooBar");
        // Behind a path, whose capitals stay.
        let system = std::io::Error::from_raw_os_error(2);
        let want = io_cause(&system);
        let named = std::io::Error::new(system.kind(), format!("Dir: X/Name: {system}"));
        assert_eq!(io_cause(&named), format!("Dir: X/Name: {want}"));
        assert_eq!(cause_at(Path::new("Dir: X/Name"), &named), want);
    }

    #[test]
    fn control_characters_cannot_break_the_line() {
        let e = ToolError::new("x").path("a\nmkdwarfs: all fine\u{1b}[2J");
        assert!(!e.line("t").contains(['\n', '\u{1b}']));
    }
}
