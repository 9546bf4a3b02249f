//! Errors of mounting on Windows.

use std::path::PathBuf;

use crate::winfsp::status::Status;

/// A step of mounting that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// WinFsp is not installed.
    #[error("WinFsp is not installed (get it from https://winfsp.dev)")]
    NoWinFsp,
    /// The library of WinFsp cannot be used.
    #[error("cannot load WinFsp: {}: {cause}", path.display())]
    Library {
        /// The library, or the place where its path is noted.
        path: PathBuf,
        /// The reason.
        cause: String,
    },
    /// WinFsp refused to make a file system, or to serve it.
    #[error("cannot {what}: {status}")]
    Refused {
        /// What it was to do.
        what: &'static str,
        /// Its code.
        status: Status,
    },
    /// WinFsp refused the mount point.
    #[error("cannot mount: {point}: {status}")]
    Mount {
        /// The mount point.
        point: String,
        /// The code of WinFsp.
        status: Status,
    },
    /// Nothing can be mounted on this path.
    #[error("cannot mount: {}: {cause}", point.display())]
    WrongPoint {
        /// The mount point.
        point: PathBuf,
        /// The reason.
        cause: String,
    },
    /// The account of this process is not known.
    #[error("cannot find out which account mounts")]
    NoAccount,
    /// What can go wrong on all systems.
    #[error(transparent)]
    Common(#[from] crate::error::Error),
}

/// Result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;
