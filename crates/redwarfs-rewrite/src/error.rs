//! Errors that end a rewrite.

use redwarfs_writer::Error as WriteError;

/// Errors of a rewrite.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The source has sections with wrong checksums, or that cannot be read.
    #[error("input filesystem is corrupt: detected {errors} error(s), first: {first}")]
    CorruptInput {
        /// Number of damaged sections, plus one for each fault of the whole image.
        errors: usize,
        /// The first fault.
        first: String,
    },
    /// An error about one of several images.
    #[error("{error}")]
    Part {
        /// Number of the image: the parts of the merge come first, then what is added.
        number: usize,
        /// The error.
        error: Box<Error>,
    },
    /// A change does not fit the tree of a merge.
    #[error(transparent)]
    Merge(#[from] crate::merge::Error),
    /// Errors that also end a build: invalid options, limits, an output that cannot be written, a
    /// request to stop. [`WriteError::Format`] is also about reading the source.
    #[error(transparent)]
    Write(#[from] WriteError),
}

impl Error {
    pub(crate) fn invalid(option: impl Into<String>) -> Self {
        WriteError::InvalidOption(option.into()).into()
    }

    pub(crate) fn limit(what: impl Into<String>) -> Self {
        WriteError::Limit(what.into()).into()
    }

    /// The error as one about the image with this number, if it is about an image.
    pub(crate) fn of_part(self, number: usize) -> Self {
        match self {
            Self::CorruptInput { .. }
            | Self::Merge(_)
            | Self::Write(WriteError::Format(_) | WriteError::Limit(_)) => Self::Part {
                number,
                error: Box::new(self),
            },
            other => other,
        }
    }

    pub(crate) const fn interrupted() -> Self {
        Self::Write(WriteError::Interrupted)
    }
}

impl From<redwarfs_format::Error> for Error {
    fn from(error: redwarfs_format::Error) -> Self {
        WriteError::Format(error).into()
    }
}

/// Result of rewriting.
pub type Result<T, E = Error> = std::result::Result<T, E>;
