//! libarchive, if the system has it: loading it, reading with it, and messages between the program and
//! a process of its own that runs the library.
//!
//! The library is loaded when the program runs, so that a program needs no libarchive until the user
//! asks for one of its formats. The crate relies on the declarations of `archive.h` and
//! `archive_entry.h`, which are stable from libarchive 3.0 (2011) on. The name of the library has an
//! ABI number, and only names with a known number are tried.

#[cfg(all(unix, feature = "libarchive"))]
mod load;
pub mod message;
#[cfg(all(unix, feature = "libarchive"))]
pub mod read;

#[cfg(all(unix, feature = "libarchive"))]
pub use load::{Library, Time, Utf8Locale, library, text, version};

/// Name and version of the library.
///
/// # Errors
/// What is wrong with it: the second half of a sentence about libarchive.
#[cfg(not(all(unix, feature = "libarchive")))]
pub fn version() -> Result<String, String> {
    Err(ABSENT.to_owned())
}

/// The second half of a sentence about libarchive, in a program without it.
pub const ABSENT: &str = "which this program was built without";
