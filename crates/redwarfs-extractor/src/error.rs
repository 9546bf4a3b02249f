//! Errors of an extraction.

use std::io;

/// Shorthand for results of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error that ends an extraction.
///
/// Every variant displays as `what: path: cause` in one line. Paths are relative to the image root,
/// with escapes for control characters and bytes that are not UTF-8.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// An error of the image itself, not of a single file.
    #[error(transparent)]
    Image(#[from] redwarfs_format::Error),

    /// The contents of one file cannot be read from the image.
    #[error("cannot read: {path}: {source}")]
    Content {
        /// Path below the image root.
        path: String,
        /// The error of the reading library.
        source: redwarfs_format::Error,
    },

    /// The operating system refused to create, write or change an entry in the target directory.
    #[error("{what}: {path}: {source}")]
    Target {
        /// The operation, such as `cannot create device`.
        what: &'static str,
        /// Path below the image root, or the target directory.
        path: String,
        /// The cause.
        source: io::Error,
    },

    /// A name in the image would lead out of the directory that holds it.
    #[error("unsafe name in image: {path}: {reason}")]
    UnsafeName {
        /// Path of the entry, the offending name last.
        path: String,
        /// The rule that it breaks.
        reason: &'static str,
    },

    /// The archive format has no way to express an entry.
    #[error("{format} cannot hold: {path}: {reason}")]
    NotRepresentable {
        /// Name of the format.
        format: String,
        /// Path below the image root.
        path: String,
        /// The kind of the entry, such as `sockets`.
        what: &'static str,
        /// The field that does not fit.
        reason: String,
    },

    /// No such archive format, filter or option.
    #[error("{0}")]
    Spec(String),

    /// libarchive failed.
    #[error("cannot write {format} archive: {text}")]
    Library {
        /// Name of the format.
        format: String,
        /// The message of the library.
        text: String,
    },

    /// The requested path is no regular file of the image.
    #[error("{path}: {reason}")]
    NotAFile {
        /// The given path.
        path: String,
        /// The kind of entry at the path.
        reason: String,
    },

    /// The archive cannot be written.
    #[error("cannot write archive: {0}")]
    Output(#[source] io::Error),

    /// A worker thread could not be started.
    #[error("cannot start thread: {0}")]
    Thread(#[source] io::Error),
}

impl Error {
    /// Whether the other end of a pipe was closed, which ends the program without a message.
    #[must_use]
    pub fn is_broken_pipe(&self) -> bool {
        matches!(self, Self::Output(e) if e.kind() == io::ErrorKind::BrokenPipe)
    }
}

/// Builds the error of a failed operation on the target.
pub(crate) fn target(what: &'static str, path: String, cause: impl Into<io::Error>) -> Error {
    Error::Target {
        what,
        path,
        source: cause.into(),
    }
}

/// The text of an error of the system for the middle of a line, without its number.
pub(crate) fn cause(e: &std::io::Error) -> String {
    let text = e.to_string();
    let text = match text.split_once(" (os error ") {
        // Texts of Windows are sentences.
        Some((text, _)) => text.trim_end_matches('.'),
        None => &text,
    };
    let mut chars = text.chars();
    match (chars.next(), chars.clone().next()) {
        (Some(first), Some(second)) if second.is_lowercase() => {
            first.to_lowercase().chain(chars).collect()
        }
        _ => text.to_owned(),
    }
}

/// A path for messages: bytes that are not printable UTF-8 appear as `\xNN` or `\n`.
#[must_use]
pub fn display_path(path: &[u8]) -> String {
    let mut out = String::with_capacity(path.len());
    for part in path.utf8_chunks() {
        for c in part.valid().chars() {
            if c.is_control() {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        for byte in part.invalid() {
            out.push_str(&format!("\\x{byte:02x}"));
        }
    }
    if out.is_empty() {
        out.push('.');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::display_path;

    #[test]
    fn paths_are_printable() {
        assert_eq!(display_path(b""), ".");
        assert_eq!(display_path("a/ä b".as_bytes()), "a/ä b");
        assert_eq!(display_path(b"a\nb\xff"), "a\\nb\\xff");
    }
}
