//! How important messages are.

use std::fmt;
use std::str::FromStr;

use super::suggest::unknown;

/// Importance of a message; later values are less important.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum LogLevel {
    /// Something failed.
    Error,
    /// Something looks wrong.
    Warn,
    /// Normal progress.
    Info,
    /// More about what happens.
    Verbose,
    /// For those who look for a defect.
    Debug,
    /// Everything.
    Trace,
}

impl LogLevel {
    /// All levels, most important first.
    pub const ALL: [LogLevel; 6] = [
        Self::Error,
        Self::Warn,
        Self::Info,
        Self::Verbose,
        Self::Debug,
        Self::Trace,
    ];

    /// The name used on the command line.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Error => "error",
            Self::Warn => "warn",
            Self::Info => "info",
            Self::Verbose => "verbose",
            Self::Debug => "debug",
            Self::Trace => "trace",
        }
    }

    /// The letter at the start of a line.
    #[must_use]
    pub fn letter(self) -> char {
        match self {
            Self::Error => 'E',
            Self::Warn => 'W',
            Self::Info => 'I',
            Self::Verbose => 'V',
            Self::Debug => 'D',
            Self::Trace => 'T',
        }
    }

    /// The escape sequence of its lines.
    pub(super) fn colour(self) -> &'static str {
        match self {
            Self::Error => "\x1b[1;31m",
            Self::Warn => "\x1b[1;33m",
            Self::Info => "",
            Self::Verbose => "\x1b[2;36m",
            Self::Debug => "\x1b[2;33m",
            Self::Trace => "\x1b[90m",
        }
    }
}

impl fmt::Display for LogLevel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for LogLevel {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|level| level.name() == text)
            .ok_or_else(|| {
                let names = Self::ALL.map(Self::name);
                unknown(format_args!("invalid logger level: {text}"), names)
            })
    }
}
