//! Safe bindings to the parts of Windows that the standard library lacks, and its rules for names.
//!
//! Names in images are bytes, names on Windows are UTF-16. [`name`] converts them, and finds the names
//! that Windows cannot hold. [`time`] converts times. These modules are compiled on all systems, so that
//! their tests run on all of them. Everything else exists on Windows only.

pub mod name;
pub mod time;

#[cfg(windows)]
pub mod account;
#[cfg(windows)]
pub mod console;
#[cfg(windows)]
pub mod file;
#[cfg(windows)]
pub mod process;
#[cfg(windows)]
pub mod registry;
