//! Errors that name the place.

use std::io;

use redwarfs_format::Error;
use redwarfs_format::section::Section;

/// Adds the section's position and the offset of its payload in the image to `error`. Lists and reports
/// of damage name a section by the same offset.
pub(crate) fn in_section(error: Error, section: &Section) -> Error {
    let offset = section.payload_offset;
    let place = format!("section {} at offset {offset}", section.position);
    match error {
        Error::Unsupported(s) => Error::Unsupported(format!("{s} ({place})")),
        Error::Limit(s) => Error::Limit(format!("{s} ({place})")),
        Error::Unverified(s) => Error::Unverified(format!("{s} ({place})")),
        Error::Io(e) => Error::Io(io::Error::new(e.kind(), format!("{e} ({place})"))),
        other => other.at(section.position, offset),
    }
}

/// The request does not fit the kind of inode.
pub(crate) fn wrong_type(kind: io::ErrorKind, what: &str) -> Error {
    Error::Io(io::Error::new(kind, what.to_owned()))
}
