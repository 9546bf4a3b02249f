//! Errors of mounting.

use std::io;
use std::path::PathBuf;

/// A step of mounting that failed.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The mount point does not exist, or cannot be accessed (for example, it is a dead mount).
    #[error("cannot access mount point: {}: {}{}", path.display(), io_text(source), point_hint(source))]
    MountPoint {
        /// The given path.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// `/dev/fuse` cannot be opened.
    #[error("cannot open FUSE device: /dev/fuse: {}{}", io_text(.0), device_hint(.0))]
    Device(#[source] io::Error),
    /// The kernel refused the mount.
    #[error("cannot mount: {}: {}", path.display(), io_text(source))]
    Mount {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The mount needs the helper program, which is not installed.
    #[error("cannot mount: fusermount3: {} (install the package fuse3)", io_text(.0))]
    HelperMissing(#[source] io::Error),
    /// The helper program refused; its message.
    #[error("cannot mount: {0}")]
    Helper(String),
    /// The analysis file cannot be created.
    #[error("cannot create analysis file: {}: {}", path.display(), io_text(source))]
    AnalysisFile {
        /// The path as given.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The directory of the writable layer cannot be used.
    #[error("cannot use writable layer: {}: {}", path.display(), io_text(source))]
    Changes {
        /// The path as given.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The kernel's overlayfs cannot be the driver of the writable layer.
    #[error("cannot mount an overlay of the kernel: {}: {}", path.display(), io_text(source))]
    Overlay {
        /// The mount point.
        path: PathBuf,
        /// The reason.
        source: io::Error,
    },
    /// The image's metadata cannot be used.
    #[error("cannot read metadata: {0}")]
    Image(#[from] redwarfs_format::Error),
    /// A layer of a union cannot be opened.
    #[error("{0}")]
    Layer(#[source] Box<dyn std::error::Error + Send + Sync>),
    /// No directory of the mount can have the name of an image; says which.
    #[error("cannot mount: {0}")]
    Name(String),
    /// The connection to the kernel could not be set up, or failed.
    #[error("FUSE session failed: {}", io_text(.0))]
    Session(#[source] io::Error),
}

/// Result with [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

fn point_hint(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::NotFound => " (create the directory first)",
        io::ErrorKind::NotADirectory => " (a mount point has to be a directory)",
        // The dead mount of a driver that was killed.
        io::ErrorKind::NotConnected => " (unmount what is left there first: fusermount3 -u)",
        _ => "",
    }
}

fn device_hint(error: &io::Error) -> &'static str {
    if error.kind() == io::ErrorKind::NotFound {
        " (try 'modprobe fuse')"
    } else {
        ""
    }
}

/// The text of an I/O error for the middle of a line: system texts begin with a small letter and
/// have no `(os error 2)`.
#[must_use]
pub fn io_text(error: &io::Error) -> String {
    let mut text = error.to_string();
    if let Some(start) = text.rfind(" (os error ") {
        text.truncate(start);
        // Sentences of Windows.
        text.truncate(text.trim_end_matches('.').len());
        let mut chars = text.chars();
        // "I/O error" stays.
        if let (Some(first), Some(second)) = (chars.next(), chars.clone().next())
            && (second.is_lowercase() || second == ' ')
        {
            return first.to_lowercase().chain(chars).collect();
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn texts_name_step_and_cause() {
        let missing = || io::Error::from_raw_os_error(2);
        let cause = io_text(&missing());
        match cfg!(unix) {
            true => assert_eq!(cause, "no such file or directory"),
            false => assert!(cause.starts_with(char::is_lowercase) && !cause.ends_with('.')),
        }
        assert_eq!(io_text(&io::Error::other("plain")), "plain");
        assert_eq!(
            Error::MountPoint {
                path: "/x".into(),
                source: missing()
            }
            .to_string(),
            format!("cannot access mount point: /x: {cause} (create the directory first)")
        );
        assert_eq!(
            Error::Device(missing()).to_string(),
            format!("cannot open FUSE device: /dev/fuse: {cause} (try 'modprobe fuse')")
        );
    }
}
