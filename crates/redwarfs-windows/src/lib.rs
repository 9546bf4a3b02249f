//! Safe bindings to the parts of Windows that the standard library lacks, and its rules for names.
//!
//! Names in images are bytes, names on Windows are UTF-16. [`name`] converts them, and finds the names
//! that Windows cannot hold. This module is compiled on all systems, so that its tests run on all of
//! them. Everything else exists on Windows only.

pub mod name;

#[cfg(windows)]
pub mod console;
#[cfg(windows)]
pub mod file;
#[cfg(windows)]
pub mod process;
#[cfg(windows)]
pub mod time;
