//! The error type of the whole family of libraries.

use std::fmt;

/// Where in an image something was found to be wrong.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Location {
    /// Position of the section in file order, starting from 0.
    pub section: Option<u32>,
    /// Offset of the section's payload, or of a header that cannot be read, in bytes from the start of
    /// the image.
    pub offset: Option<u64>,
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (self.section, self.offset) {
            (None, None) => Ok(()),
            (Some(section), None) => write!(f, " (section {section})"),
            (None, Some(offset)) => write!(f, " (at offset {offset})"),
            (Some(section), Some(offset)) => write!(f, " (section {section} at offset {offset})"),
        }
    }
}

/// Errors of this crate. The variants differ in what a user can do about them.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The input holds no image: no magic, too small, or a search found nothing.
    #[error("not a DwarFS image: {0}")]
    NotAnImage(String),
    /// The image may be fine, but needs a version, feature or codec that is not available.
    #[error("unsupported: {0}")]
    Unsupported(String),
    /// The image has no such snapshot. The text says which it has.
    #[error("{0}")]
    NoSnapshot(String),
    /// The image contradicts itself or its checksums.
    #[error("corrupt image: {what}{at}")]
    Corrupt {
        /// The problem.
        what: String,
        /// The place, as far as it is known.
        at: Location,
    },
    /// The image is not what the caller trusts: it has no digests or no signature, or another one.
    #[error("not verified: {0}")]
    Unverified(String),
    /// The image asks for more than a configured or built-in limit allows.
    #[error("limit exceeded: {0}")]
    Limit(String),
    /// Reading or writing failed.
    #[error("I/O error: {0}")]
    Io(#[from] std::io::Error),
}

impl Error {
    /// A [`Error::Corrupt`] with unknown location.
    pub fn corrupt(what: impl Into<String>) -> Self {
        Self::Corrupt {
            what: what.into(),
            at: Location::default(),
        }
    }

    /// A [`Error::Corrupt`] in the section at position `section`, at `offset`.
    pub fn corrupt_at(what: impl Into<String>, section: u32, offset: u64) -> Self {
        Self::corrupt(what).at(section, offset)
    }

    /// Fills in the location of a [`Error::Corrupt`] that has none. Anything else is unchanged.
    #[must_use]
    pub fn at(self, section: u32, offset: u64) -> Self {
        match self {
            Self::Corrupt { what, at } if at == Location::default() => Self::Corrupt {
                what,
                at: Location {
                    section: Some(section),
                    offset: Some(offset),
                },
            },
            other => other,
        }
    }

    /// A copy for another receiver; the source of an I/O error becomes its text.
    #[must_use]
    pub fn replicate(&self) -> Self {
        match self {
            Self::NotAnImage(s) => Self::NotAnImage(s.clone()),
            Self::Unsupported(s) => Self::Unsupported(s.clone()),
            Self::NoSnapshot(s) => Self::NoSnapshot(s.clone()),
            Self::Corrupt { what, at } => Self::Corrupt {
                what: what.clone(),
                at: *at,
            },
            Self::Unverified(s) => Self::Unverified(s.clone()),
            Self::Limit(s) => Self::Limit(s.clone()),
            Self::Io(e) => Self::Io(std::io::Error::new(e.kind(), e.to_string())),
        }
    }
}

/// Result with [`Error`] as the default error type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn location_is_filled_once_and_displayed() {
        let error = Error::corrupt("bad sum");
        assert_eq!(error.to_string(), "corrupt image: bad sum");
        let error = error.at(4, 80619).at(5, 1);
        assert_eq!(
            error.to_string(),
            "corrupt image: bad sum (section 4 at offset 80619)"
        );
        let error = Error::Unsupported("codec".into()).at(1, 2);
        assert_eq!(error.to_string(), "unsupported: codec");
    }

    #[test]
    fn a_copy_says_the_same() {
        let io = std::io::Error::new(std::io::ErrorKind::NotFound, "gone");
        for error in [
            Error::NotAnImage("text".into()),
            Error::Unsupported("codec".into()),
            Error::NoSnapshot("there is none".into()),
            Error::corrupt_at("bad sum", 4, 80619),
            Error::Unverified("no digests".into()),
            Error::Limit("large".into()),
            io.into(),
        ] {
            assert_eq!(format!("{:?}", error.replicate()), format!("{error:?}"));
        }
    }
}
