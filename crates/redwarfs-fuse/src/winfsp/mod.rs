//! Mounting on Windows, through WinFsp.
//!
//! WinFsp is a driver with a library, which the user installs. Windows sends the requests for a mount to the
//! driver, and the library calls this program for each of them.
//!
//! | step | file |
//! |---|---|
//! | The program finds and loads the library. | `binding/library.rs` |
//! | It makes a file system with callbacks, mounts it, and starts the threads of the library. | `mount.rs`, `binding/mod.rs` |
//! | A thread of the library calls a callback. | `binding/callbacks.rs` |
//! | The volume answers: it looks up paths, and reads attributes, listings and data. | `volume.rs` |
//! | Names, attributes, rights and links get the form of Windows. | `names.rs`, `attributes.rs`, `security.rs`, `reparse.rs` |
//!
//! The threads of the library carry out all requests, also those that decode. Windows keeps attributes and
//! data in its cache, because an image does not change.
//!
//! Everything except the search for the library is compiled for the tests on other systems, too. There, a
//! fake of the library (`binding/fake.rs`) calls the callbacks.

mod attributes;
mod binding;
mod error;
mod mount;
mod names;
mod reparse;
mod security;
mod status;
#[cfg(test)]
mod tests;
mod volume;

pub use error::{Error, Result};
#[cfg(windows)]
pub use mount::mount;
pub use mount::{Mounted, Observer};
pub use status::Status;
