//! Errors.

use redwarfs_format::recovery::GeometryError;

/// The result of the functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What keeps recovery data from being made or used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Parity cannot be made so.
    #[error(transparent)]
    Geometry(#[from] GeometryError),
    /// There is no recovery data, or none that is intact enough to be found.
    #[error("no recovery data found")]
    NotFound,
    /// Recovery data of another file, or of this one before nearly all of it was changed.
    #[error("the recovery data is that of another file")]
    Foreign,
    /// The file has an intact image that is not the one that the sidecar was made for: another generation, or sections
    /// with right checksums that differ.
    #[error("the image was changed after the sidecar was made")]
    Changed,
    /// The image ends with recovery data already.
    #[error("the image has recovery data already")]
    Present,
    /// Something of the image, such as a table of snapshots, follows its recovery data.
    #[error("something that was added later follows the recovery data")]
    NotLast,
    /// The image has no section index, or data behind it that is not its own.
    #[error("{0}")]
    Unfit(&'static str),
    /// Bytes at the start of the file are gone, so that what follows is not where it was.
    #[error("the file has lost its start")]
    LostStart,
    /// Bytes at the start of the file are gone, so many that the parity cannot restore them.
    #[error("the file has lost {0} bytes at its start, more than the parity can restore")]
    LostTooMuch(u64),
    /// More is damaged than the parity can restore.
    #[error("{groups} of {of} groups have more damage than the parity can restore")]
    TooMuch {
        /// Groups with too much damage.
        groups: u32,
        /// All groups.
        of: u32,
    },
    /// Bytes that were restored do not have the checksums that they had: the checksums themselves are wrong.
    #[error("what was restored in group {0} does not match its checksums")]
    Mismatch(u32),
    /// The image or its recovery data contradicts itself.
    #[error(transparent)]
    Format(#[from] redwarfs_format::Error),
    /// Reading or writing failed.
    #[error("I/O error: {0}")]
    Io(#[from] std::io::Error),
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}
