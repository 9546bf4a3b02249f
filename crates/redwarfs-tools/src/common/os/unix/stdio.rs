//! Whether there was a standard output when the process began.
//!
//! If a standard stream is closed, Rust opens `/dev/null` in its place before `main` runs. Output to it
//! would vanish without an error.
#![allow(unsafe_code)]

use std::sync::atomic::{AtomicBool, Ordering};

static CLOSED: AtomicBool = AtomicBool::new(false);

extern "C" fn look() {
    if rustix::io::fcntl_getfd(rustix::stdio::stdout()) == Err(rustix::io::Errno::BADF) {
        CLOSED.store(true, Ordering::Relaxed);
    }
}

// SAFETY: the section holds pointers to functions, which the C runtime calls before `main`, in the
// only thread that there is then. `look` has their type (arguments that it does not take are passed
// in registers), needs nothing of the Rust runtime, and neither allocates nor unwinds.
#[used]
#[cfg_attr(
    any(target_os = "linux", target_os = "freebsd"),
    unsafe(link_section = ".init_array")
)]
#[cfg_attr(target_os = "macos", unsafe(link_section = "__DATA,__mod_init_func"))]
static LOOK: extern "C" fn() = look;

/// Whether the process was started without a standard output, as with `>&-` in a shell.
#[must_use]
pub(crate) fn stdout_is_closed() -> bool {
    CLOSED.load(Ordering::Relaxed)
}
