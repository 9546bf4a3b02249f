//! Helpers that only tests use: the golden images with their manifests, makers of awkward
//! directory trees, and comparisons that name every difference.
//!
//! Helpers panic when the test set-up itself is broken; differences between what an image shows
//! and what it should show are returned as text, so that a test prints all of them at once.

pub mod assorted;
#[cfg(feature = "faulty")]
pub mod faulty;
pub mod fuzz;
pub mod golden;
pub mod hostile;
pub mod layout;
pub mod manifest;
pub mod media;
pub mod mutate;
pub mod pairwise;
pub mod process;
pub mod reproduce;
pub mod soak;
pub mod tree;

pub use golden::{Golden, compat_images, golden_images};
pub use manifest::{Entry, Fields, Manifest};

/// Prints the note that tells a skipped check from one that passed.
pub fn skip(what: &str, why: &str) {
    use std::io::Write as _;
    // Written to the stream itself: the test harness swallows what `eprintln!` prints in a test
    // that passes, and this note is for exactly those.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}: {why}");
}
