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
    #[error("cannot open image: {}{}", prefix(path), without(path, source))]
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

    /// What an image must prove is not understood, or names a key that cannot be used.
    #[cfg(feature = "signatures")]
    #[error("cannot use the verification: {}: {source}", .text.escape_debug())]
    Verification {
        /// The text.
        text: String,
        /// The cause.
        source: redwarfs_signature::Error,
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

/// The text of an error, without the path where that of the system or of a server begins with it.
fn without(path: &Path, error: &redwarfs_format::Error) -> String {
    let redwarfs_format::Error::Io(error) = error else {
        return error.to_string();
    };
    let text = error.to_string();
    let named = format!("{}: ", path.display());
    match text.strip_prefix(&named) {
        Some(cause) => cause.to_owned(),
        None => text,
    }
}

impl Error {
    /// The path that the error is about, in the image or outside; `None` if there is no single one.
    #[must_use]
    pub fn path(&self) -> Option<&Path> {
        let path = match self {
            Self::Open { path, .. }
            | Self::NotFound(path)
            | Self::WrongType { path, .. }
            | Self::TooManyLinks(path)
            | Self::Read { path, .. }
            | Self::Input { path, .. } => path,
            Self::Incomplete(_) | Self::Build(_) | Self::Output(_) | Self::Extract(_) => {
                return None;
            }
            #[cfg(feature = "signatures")]
            Self::Verification { .. } => return None,
        };
        Some(path.as_path()).filter(|path| !path.as_os_str().is_empty())
    }

    /// The message without the path, for interfaces that show the [`path`](Self::path) themselves.
    #[must_use]
    pub fn cause(&self) -> String {
        match self {
            Self::Open { path, source } => without(path, source),
            Self::Read { source, .. } => source.to_string(),
            Self::Input { source, .. } => source.to_string(),
            Self::NotFound(_) => "not found in the image".to_owned(),
            Self::WrongType { wanted, .. } => format!("not a {wanted} in the image"),
            Self::TooManyLinks(_) => "too many symbolic links in the image".to_owned(),
            other => other.to_string(),
        }
    }

    pub(crate) fn read(path: &Path) -> impl FnOnce(redwarfs_format::Error) -> Self {
        |source| Self::Read {
            path: path.to_owned(),
            source,
        }
    }
}

/// What kind of failure an [`Error`] is, for interfaces that need a short list of codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// The system or a medium failed; [`Error::errno`] says how.
    Io,
    /// The input holds no image.
    NotAnImage,
    /// The image contradicts itself or its checksums.
    Corrupt,
    /// The image does not prove what [`OpenOptions`](crate::OpenOptions) asks for: it is not signed by the key, for example.
    Unverified,
    /// The image needs a version, feature or codec that is not available.
    Unsupported,
    /// More is asked for than a limit allows.
    Limit,
    /// The image has no such entry.
    NotFound,
    /// The operation needs a directory.
    NotADirectory,
    /// The operation does not work with a directory.
    IsADirectory,
    /// The entry has another wrong type.
    WrongType,
    /// A path leads through too many symbolic links.
    Links,
    /// An option, or a combination of options, is invalid.
    Option,
    /// An entry of the input cannot be stored unchanged, or the build failed for another reason.
    Build,
    /// The extraction failed.
    Extract,
    /// The caller ended the operation.
    Interrupted,
}

impl Error {
    /// The kind of failure.
    #[must_use]
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Open { source, .. } | Self::Read { source, .. } => kind_of(source),
            Self::NotFound(_) => ErrorKind::NotFound,
            Self::WrongType { wanted, .. } if *wanted == DIRECTORY => ErrorKind::NotADirectory,
            Self::WrongType { found, .. } if *found == FileType::Directory => {
                ErrorKind::IsADirectory
            }
            Self::WrongType { .. } => ErrorKind::WrongType,
            Self::TooManyLinks(_) => ErrorKind::Links,
            Self::Input { .. } | Self::Output(_) => ErrorKind::Io,
            #[cfg(feature = "signatures")]
            Self::Verification { source, .. } => match source {
                redwarfs_signature::Error::Io(_) => ErrorKind::Io,
                _ => ErrorKind::Option,
            },
            Self::Incomplete(_) => ErrorKind::Build,
            Self::Build(e) => match e {
                redwarfs_writer::Error::InvalidOption(_) => ErrorKind::Option,
                redwarfs_writer::Error::Source(_) | redwarfs_writer::Error::Output(_) => {
                    ErrorKind::Io
                }
                redwarfs_writer::Error::Interrupted => ErrorKind::Interrupted,
                redwarfs_writer::Error::Limit(_) => ErrorKind::Limit,
                _ => ErrorKind::Build,
            },
            Self::Extract(e) => match e {
                redwarfs_extractor::Error::Image(source)
                | redwarfs_extractor::Error::Content { source, .. } => kind_of(source),
                redwarfs_extractor::Error::Target { .. } | redwarfs_extractor::Error::Output(_) => {
                    ErrorKind::Io
                }
                _ => ErrorKind::Extract,
            },
        }
    }

    /// The number of the error as in `errno.h`, for interfaces that need one. If no number of the
    /// system is known, it is the one that fits the [`kind`](Self::kind).
    #[must_use]
    pub fn errno(&self) -> i32 {
        use rustix::io::Errno;
        let number = match self {
            // The entry is there, but the object that the image is in is gone.
            Self::Read {
                source: redwarfs_format::Error::Io(e),
                ..
            } if e.kind() == io::ErrorKind::NotFound && e.raw_os_error().is_none() => {
                Some(Errno::STALE)
            }
            Self::Open { source, .. } | Self::Read { source, .. } => errno_of(source),
            Self::Input { source, .. } | Self::Output(source) => Some(errno_of_io(source)),
            #[cfg(feature = "signatures")]
            Self::Verification {
                source: redwarfs_signature::Error::Io(e),
                ..
            } => Some(errno_of_io(e)),
            Self::Build(e) => match e {
                redwarfs_writer::Error::Source(e)
                | redwarfs_writer::Error::Output(e)
                | redwarfs_writer::Error::Thread(e) => Some(errno_of_io(e)),
                redwarfs_writer::Error::MemoryLimit { .. } => Some(Errno::NOMEM),
                _ => None,
            },
            Self::Extract(e) => match e {
                redwarfs_extractor::Error::Image(source)
                | redwarfs_extractor::Error::Content { source, .. } => errno_of(source),
                redwarfs_extractor::Error::Target { source, .. }
                | redwarfs_extractor::Error::Output(source)
                | redwarfs_extractor::Error::Thread(source) => Some(errno_of_io(source)),
                _ => None,
            },
            _ => None,
        };
        let number = number.unwrap_or(match self.kind() {
            ErrorKind::NotFound => Errno::NOENT,
            ErrorKind::NotADirectory => Errno::NOTDIR,
            ErrorKind::IsADirectory => Errno::ISDIR,
            ErrorKind::NotAnImage | ErrorKind::WrongType | ErrorKind::Option => Errno::INVAL,
            ErrorKind::Links => Errno::LOOP,
            ErrorKind::Unsupported => Errno::NOTSUP,
            ErrorKind::Limit => Errno::FBIG,
            ErrorKind::Interrupted => Errno::INTR,
            ErrorKind::Io
            | ErrorKind::Corrupt
            | ErrorKind::Unverified
            | ErrorKind::Build
            | ErrorKind::Extract => Errno::IO,
        });
        number.raw_os_error()
    }
}

fn kind_of(error: &redwarfs_format::Error) -> ErrorKind {
    match error {
        redwarfs_format::Error::NotAnImage(_) => ErrorKind::NotAnImage,
        redwarfs_format::Error::Corrupt { .. } => ErrorKind::Corrupt,
        redwarfs_format::Error::Unverified(_) => ErrorKind::Unverified,
        redwarfs_format::Error::Unsupported(_) => ErrorKind::Unsupported,
        redwarfs_format::Error::NoSnapshot(_) => ErrorKind::NotFound,
        redwarfs_format::Error::Limit(_) => ErrorKind::Limit,
        redwarfs_format::Error::Io(e) if e.kind() == io::ErrorKind::IsADirectory => {
            ErrorKind::IsADirectory
        }
        redwarfs_format::Error::Io(e) if e.kind() == io::ErrorKind::NotADirectory => {
            ErrorKind::NotADirectory
        }
        redwarfs_format::Error::Io(e) if e.kind() == io::ErrorKind::Unsupported => {
            ErrorKind::Unsupported
        }
        _ => ErrorKind::Io,
    }
}

fn errno_of(error: &redwarfs_format::Error) -> Option<rustix::io::Errno> {
    match error {
        redwarfs_format::Error::Io(e) => Some(errno_of_io(e)),
        _ => None,
    }
}

/// The number that the system gave, or one that has the same meaning as the kind.
fn errno_of_io(error: &io::Error) -> rustix::io::Errno {
    use rustix::io::Errno;
    if let Some(number) = error.raw_os_error() {
        return Errno::from_raw_os_error(number);
    }
    match error.kind() {
        io::ErrorKind::NotFound => Errno::NOENT,
        io::ErrorKind::PermissionDenied => Errno::ACCESS,
        io::ErrorKind::AlreadyExists => Errno::EXIST,
        io::ErrorKind::IsADirectory => Errno::ISDIR,
        io::ErrorKind::NotADirectory => Errno::NOTDIR,
        io::ErrorKind::InvalidInput => Errno::INVAL,
        io::ErrorKind::StorageFull => Errno::NOSPC,
        io::ErrorKind::ReadOnlyFilesystem => Errno::ROFS,
        io::ErrorKind::QuotaExceeded => Errno::DQUOT,
        io::ErrorKind::FileTooLarge => Errno::FBIG,
        io::ErrorKind::BrokenPipe => Errno::PIPE,
        io::ErrorKind::NotConnected => Errno::NOTCONN,
        io::ErrorKind::ConnectionAborted => Errno::CONNABORTED,
        io::ErrorKind::OutOfMemory => Errno::NOMEM,
        io::ErrorKind::TimedOut => Errno::TIMEDOUT,
        io::ErrorKind::Interrupted => Errno::INTR,
        io::ErrorKind::Unsupported => Errno::NOTSUP,
        _ => Errno::IO,
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
