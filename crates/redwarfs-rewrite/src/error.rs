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
