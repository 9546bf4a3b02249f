//! Failures of the runtime: one line for the user, and an exit code.

use std::fmt::Display;
use std::io;
use std::path::Path;

use redwarfs_fuse::io_text;

/// Exit code if the program could not be started, as shells and the AppImage runtime have it.
pub(crate) const EXIT_NOT_RUN: u8 = 127;
/// Exit code of a wrong option or of an extraction that failed.
pub(crate) const EXIT_FAILURE: u8 = 1;
/// Exit code of an extraction whose patterns match nothing.
pub(crate) const EXIT_NO_MATCH: u8 = 3;

/// What to do if nothing can be made in the directory for mounts and copies.
pub(crate) const ELSEWHERE: &str =
    ": set TMPDIR to a directory that you can write to and that has room";
/// What to do if `TMPDIR` itself cannot be used.
pub(crate) const ANOTHER: &str =
    ": set TMPDIR to a directory that exists and that you can write to";
/// What to do if no program may run from a copy.
pub(crate) const EXECUTABLE: &str = ": set TMPDIR to a directory on a file system without noexec, or use \
     --appimage-extract in such a directory and start squashfs-root/AppRun";

/// Result with [`Failure`].
pub(crate) type Result<T, E = Failure> = std::result::Result<T, E>;

/// What ends the runtime.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Failure {
    /// `what: path: cause`, in one line.
    pub(crate) text: String,
    pub(crate) code: u8,
}

impl Failure {
    pub(crate) fn new(text: impl Display) -> Self {
        Self {
            text: one_line(&text.to_string()),
            code: EXIT_NOT_RUN,
        }
    }

    /// A failure of the operating system at a path.
    pub(crate) fn io(what: &str, path: &Path, error: &io::Error) -> Self {
        Self::new(format_args!(
            "{what}: {}: {}",
            path.display(),
            io_text(error)
        ))
    }

    /// With what the user can do.
    pub(crate) fn hint(mut self, hint: &str) -> Self {
        self.text.push_str(&one_line(hint));
        self
    }

    pub(crate) fn code(mut self, code: u8) -> Self {
        self.code = code;
        self
    }
}

/// `text` without characters that would end the line or change the terminal.
pub(crate) fn one_line(text: &str) -> String {
    text.chars()
        .map(|c| if c.is_control() { '\u{fffd}' } else { c })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_one_line() {
        let missing = io::Error::from_raw_os_error(2);
        let failure = Failure::io("cannot open", Path::new("/a\nb"), &missing);
        assert_eq!(
            failure.text,
            "cannot open: /a\u{fffd}b: no such file or directory"
        );
        assert_eq!(failure.code, 127);
        assert_eq!(failure.code(3).code, 3);
    }
}
