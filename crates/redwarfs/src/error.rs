//! The error of the whole crate.

use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use redwarfs_format::metadata::FileType;

/// Errors of this crate. Every message is one line and names the path that it is about.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The image cannot be opened.
    #[error("cannot open image: {}{source}", prefix(path))]
    Open {
        /// Path of the image file; empty if the image is no file.
        path: PathBuf,
        /// The cause.
        source: redwarfs_format::Error,
    },

    /// The image has no such entry.
    #[error("not found in the image: {}", shown(.0))]
    NotFound(PathBuf),

    /// The entry has another type than the operation needs.
    #[error("not a {wanted} in the image: {}", shown(path))]
    WrongType {
        /// Path in the image.
        path: PathBuf,
        /// The type that the operation needs, in words.
        wanted: &'static str,
        /// The type of the entry.
        found: FileType,
    },

    /// A path leads through too many symbolic links, probably in a circle.
    #[error("too many symbolic links in the image: {}", shown(.0))]
    TooManyLinks(PathBuf),

    /// Data of the image cannot be read, or is damaged.
    #[error("cannot read from the image: {}: {source}", shown(path))]
    Read {
        /// Path in the image.
        path: PathBuf,
        /// The cause.
        source: redwarfs_format::Error,
    },

    /// The directory that is to be packed cannot be opened.
    #[error("cannot open directory: {}: {source}", shown(path))]
    Input {
        /// The directory.
        path: PathBuf,
        /// The cause.
        source: io::Error,
    },

    /// An entry of the input cannot be stored unchanged, so no image was written. See
    /// [`Builder::continue_on_error`](crate::Builder::continue_on_error).
    #[error("cannot pack: {0}")]
    Incomplete(String),

    /// The build failed.
    #[error(transparent)]
    Build(#[from] redwarfs_writer::Error),

    /// The output file cannot be created or completed. The message names it.
    #[error("cannot write: {0}")]
    Output(#[source] io::Error),

    /// The extraction failed.
    #[error(transparent)]
    Extract(#[from] redwarfs_extractor::Error),
}

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// A path in one line, whatever bytes it has; `.` for the root.
fn shown(path: &Path) -> String {
    redwarfs_extractor::display_path(path.as_os_str().as_bytes())
}

/// A path and what separates it from the cause, unless it is empty.
fn prefix(path: &Path) -> String {
    match path.as_os_str().is_empty() {
        true => String::new(),
        false => format!("{}: ", shown(path)),
    }
}

impl Error {
    pub(crate) fn read(path: &Path) -> impl FnOnce(redwarfs_format::Error) -> Self {
        |source| Self::Read {
            path: path.to_owned(),
            source,
        }
    }
}

/// The same failure for an interface of the standard library.
pub(crate) fn into_io(error: redwarfs_format::Error) -> io::Error {
    match error {
        redwarfs_format::Error::Io(e) => e,
        other => io::Error::new(io::ErrorKind::InvalidData, other),
    }
}

impl From<Error> for io::Error {
    fn from(error: Error) -> Self {
        let kind = match &error {
            Error::NotFound(_) => io::ErrorKind::NotFound,
            Error::WrongType { wanted, .. } if *wanted == DIRECTORY => io::ErrorKind::NotADirectory,
            Error::WrongType { found, .. } if *found == FileType::Directory => {
                io::ErrorKind::IsADirectory
            }
            Error::WrongType { .. } => io::ErrorKind::InvalidInput,
            Error::Open { source, .. } | Error::Read { source, .. } => match source {
                redwarfs_format::Error::Io(e) => e.kind(),
                redwarfs_format::Error::Unsupported(_) => io::ErrorKind::Unsupported,
                _ => io::ErrorKind::InvalidData,
            },
            Error::Input { source, .. } | Error::Output(source) => source.kind(),
            Error::Build(redwarfs_writer::Error::Interrupted) => io::ErrorKind::Interrupted,
            _ => io::ErrorKind::Other,
        };
        io::Error::new(kind, error)
    }
}

/// [`Error::WrongType::wanted`] where a directory is needed.
pub(crate) const DIRECTORY: &str = "directory";
/// [`Error::WrongType::wanted`] where a regular file is needed.
pub(crate) const REGULAR_FILE: &str = "regular file";
/// [`Error::WrongType::wanted`] where a symbolic link is needed.
pub(crate) const SYMBOLIC_LINK: &str = "symbolic link";
