//! Names at which entries are created, and names that the target treats as equal.
//!
//! An existing entry with the name is removed first, but never one that the same extraction made.
//! Otherwise, a file system that treats two names of the image as equal would lose the first one
//! silently.

use std::fmt;
use std::io;

use crate::os::Dir;

/// A name in an open directory.
#[derive(Clone, Copy)]
pub(crate) struct NameInDir<'a> {
    pub(crate) dir: &'a Dir,
    pub(crate) name: &'a [u8],
    /// Whether the image has another name in this directory that equals the given one in [`folded`] form.
    pub(crate) taken: &'a dyn Fn(&str) -> bool,
    /// Whether the target is known to ignore case.
    #[cfg_attr(
        windows,
        expect(dead_code, reason = "Windows tells the listed name of an entry")
    )]
    pub(crate) caseless: bool,
}

/// The reason why a name is missing: the file system treats it as equal to another name of the image.
#[derive(Debug)]
struct Collision(String);

impl fmt::Display for Collision {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "the file system takes it for {}, which is in the image, too",
            self.0
        )
    }
}

impl std::error::Error for Collision {}

/// The error of a name that the file system treats as equal to `other`.
pub(crate) fn collision(other: &[u8]) -> io::Error {
    let collision = Collision(crate::display_path(other));
    io::Error::new(io::ErrorKind::AlreadyExists, collision)
}

/// A name without differences of case.
pub(crate) fn folded(name: &[u8]) -> String {
    String::from_utf8_lossy(name).to_lowercase()
}
