//! Threads with a file mode mask of their own.
#![allow(unsafe_code)]

use std::cell::Cell;

use rustix::fs::Mode;
use rustix::process::umask;
use rustix::thread::{UnshareFlags, unshare_unsafe};

thread_local! {
    static HAS_OWN: Cell<bool> = const { Cell::new(false) };
}

/// Lets the calling thread have no file mode mask: the modes of new files are those of the request. If the system refuses
/// to separate its mask from that of the other threads, they have none either.
pub(super) fn have_no_mask() {
    if HAS_OWN.replace(true) {
        return;
    }
    separate();
    umask(Mode::empty());
}

/// Separates mask and working directory of the calling thread from those of the other threads. If the system refuses that, all
/// threads have what this one sets.
fn separate() {
    // SAFETY: of what the function may take from a thread, this takes mask, working directory and root directory, which memory
    // safety does not depend on. No descriptor is affected.
    if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::FS) } {
        tracing::debug!("threads share the file mode mask: {error}");
    }
}
