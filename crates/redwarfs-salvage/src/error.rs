//! Errors.

/// The result of the functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What keeps an image from being salvaged.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// No section was found in the file.
    #[error("no section of an image was found")]
    Nothing,
    /// The tree of a chosen snapshot cannot be told from others.
    #[error("snapshot '{name}': {why}")]
    Snapshot {
        /// What the caller calls it.
        name: String,
        /// The reason.
        why: String,
    },
    /// The tree contradicts itself.
    #[error(transparent)]
    Format(#[from] redwarfs_format::Error),
    /// Reading or writing failed.
    #[error("I/O error: {0}")]
    Io(#[from] std::io::Error),
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}
