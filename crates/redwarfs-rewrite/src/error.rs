//! Errors that end a rewrite.

use redwarfs_writer::Error as WriteError;

/// Why no image was made.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An option is out of its range, contradicts another one, or does not fit the image.
    #[error("{0}")]
    InvalidOption(String),
    /// The source has sections with wrong checksums, or that cannot be read.
    #[error("input filesystem is corrupt: detected {errors} error(s), first: {first}")]
    CorruptInput {
        /// Number of sections that are wrong, plus one for each fault of the whole.
        errors: usize,
        /// The first fault.
        first: String,
    },
    /// Not even one block at a time can be handled within the memory limit.
    #[error("memory limit of {limit} bytes is too low, {needed} bytes are needed")]
    MemoryLimit {
        /// The limit in bytes.
        limit: u64,
        /// Bytes with which a single worker gets along.
        needed: u64,
    },
    /// The output cannot be written.
    #[error("cannot write the output: {0}")]
    Output(std::io::Error),
    /// The system refuses to start a thread.
    #[error("cannot start a thread: {0}")]
    Thread(std::io::Error),
    /// The source cannot be read, decoding or encoding failed.
    #[error(transparent)]
    Format(#[from] redwarfs_format::Error),
    /// More chunks, inodes or blocks than the format can number.
    #[error("limit exceeded: {0}")]
    Limit(String),
    /// The stop flag was set.
    #[error("interrupted")]
    Interrupted,
}

impl From<WriteError> for Error {
    fn from(error: WriteError) -> Self {
        match error {
            WriteError::Output(e) => Self::Output(e),
            WriteError::Thread(e) => Self::Thread(e),
            WriteError::Format(e) => Self::Format(e),
            WriteError::Limit(what) => Self::Limit(what),
            WriteError::Interrupted => Self::Interrupted,
            other => Self::InvalidOption(other.to_string()),
        }
    }
}

/// Result of rewriting.
pub type Result<T, E = Error> = std::result::Result<T, E>;
