//! Threads with a file mode mask of their own.
#![allow(unsafe_code)]

use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Separates mask and working directory of the calling thread from those of the other threads. If the system refuses that, all
/// threads have what this one sets.
pub(super) fn have_own_mask() {
    // SAFETY: of what the function may take from a thread, this takes mask, working directory and root directory, which memory
    // safety does not depend on. No descriptor is affected.
    if let Err(error) = unsafe { unshare_unsafe(UnshareFlags::FS) } {
        tracing::debug!("threads share the file mode mask: {error}");
    }
}
