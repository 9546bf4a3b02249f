//! Helpers that only tests use: the golden images with their manifests, makers of awkward
//! directory trees, and comparisons that name every difference.
//!
//! Helpers panic if the set-up of a test fails. They return differences between an image and its
//! expected contents as text, so that a test can print all of them at once. Modules that need Unix are
//! missing on other systems.

#[cfg(unix)]
pub mod assorted;
#[cfg(all(unix, feature = "faulty"))]
pub mod faulty;
pub mod fuzz;
pub mod golden;
#[cfg(unix)]
pub mod hostile;
pub mod layout;
pub mod manifest;
pub mod media;
pub mod mutate;
pub mod pairwise;
pub mod parity;
#[cfg(unix)]
pub mod process;
pub mod program;
#[cfg(unix)]
pub mod reproduce;
#[cfg(unix)]
pub mod soak;
pub mod tree;
pub mod web;

pub use golden::{Golden, compat_images, golden_images};
pub use manifest::{Entry, Fields, Manifest};

/// Prints the line that distinguishes a skipped check from a passed one.
pub fn skip(what: &str, why: &str) {
    use std::io::Write as _;
    // Written to the stream itself: the test harness swallows what `eprintln!` prints in a test
    // that passes, and this note is for exactly those.
    let _ = writeln!(std::io::stderr(), "SKIPPED: {what}: {why}");
}

/// Whether a program of this name can be started.
#[must_use]
pub fn is_installed(program: &str) -> bool {
    let done = std::process::Command::new(program)
        .arg("--version")
        .output();
    // An emulator of a processor starts a process first, which then ends with 127.
    done.is_ok_and(|done| done.status.code() != Some(127))
}

/// Why no image can be mounted here, if that is so.
#[must_use]
pub fn no_mount() -> Option<&'static str> {
    if !std::path::Path::new("/dev/fuse").exists() {
        Some("there is no /dev/fuse")
    } else if std::env::var_os("REDWARFS_EMULATOR").is_some() {
        // The kernel speaks FUSE with the byte order of its own processor, and an emulator has threads of its own.
        Some("the driver does not run in an emulator")
    } else {
        None
    }
}

/// Why a test cannot mount an image as root, if that is so.
#[cfg(unix)]
#[must_use]
pub fn no_mount_as_root() -> Option<&'static str> {
    let others = (!rustix::process::geteuid().is_root()).then_some("it needs root");
    no_mount().or(others)
}

/// Whether a test can mount an image as root. Says why it is skipped, if not.
#[cfg(unix)]
#[must_use]
pub fn can_mount(test: &str) -> bool {
    let reason = no_mount_as_root();
    if let Some(reason) = reason {
        skip(test, reason);
    }
    reason.is_none()
}
