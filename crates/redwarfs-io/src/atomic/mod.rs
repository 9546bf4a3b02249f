//! Output files that appear under their name only when they are complete.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub use unix::{AtomicFile, Origin, is_in_memory, temporary_file};
#[cfg(windows)]
pub use windows::{AtomicFile, Origin, is_in_memory, temporary_file};

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::io;
use std::path::Path;

use crate::place::shown_name;

/// Largest number of temporary names that are tried.
const NAME_ATTEMPTS: u32 = 1000;

/// Whether an existing regular file may be replaced.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Overwrite {
    /// An existing file is an error, and stays unchanged.
    No,
    /// An existing file is replaced in one step when the new one is complete.
    Yes,
}

/// The difference from an ordinary new file, for a message to the user.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Notice {
    /// The output is written directly, because it is no regular file, or open already. The text has its
    /// kind.
    Stream(&'static str),
    /// The old contents are overwritten when the new ones are complete, because the file cannot be
    /// replaced. The text has the reason.
    InPlace(&'static str),
    /// The new file does not have the owner and the group of the old one.
    Owner,
}

impl fmt::Display for Notice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(what) => write!(f, "is {what}, which is written to directly"),
            Self::InPlace(why) => write!(
                f,
                "cannot be replaced, because {why}; it is overwritten when the new content is complete"
            ),
            Self::Owner => f.write_str("loses its owner or group, which only root can keep"),
        }
    }
}

fn with_path(path: &Path, e: &io::Error) -> io::Error {
    let shown = shown_name(path);
    io::Error::new(e.kind(), format!("{}: {e}", shown.display()))
}

/// `.NAME.XXXXXX.tmp` with six characters that differ between processes and attempts.
fn hidden_name(name: &OsStr, attempt: u32) -> OsString {
    use std::hash::{BuildHasher, RandomState};
    const ALPHABET: &[u8; 32] = b"abcdefghijkmnpqrstuvwxyz23456789";
    let mut bits = RandomState::new().hash_one(attempt);
    let mut temp = OsString::from(".");
    temp.push(name);
    temp.push(".");
    for _ in 0..6 {
        let letter = ALPHABET[(bits % 32) as usize];
        temp.push(char::from(letter).encode_utf8(&mut [0; 4]));
        bits /= 32;
    }
    temp.push(".tmp");
    temp
}
