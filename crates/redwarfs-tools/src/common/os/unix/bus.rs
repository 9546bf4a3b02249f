//! Prints a hint when the process dies because a mapped file cannot be read.
#![allow(unsafe_code)]

use std::sync::Once;

use signal_hook::consts::SIGBUS;

const HINT: &[u8] = b"\
*****************************************************************************\n\
* The image could not be read: it was cut short, or its medium failed while  *\n\
* it was mapped into memory. Set DWARFS_IOLAYER_OPTS=open_mode=read to get   *\n\
* errors for single files instead.                                           *\n\
*****************************************************************************\n";

/// Lets a bus error print a hint on standard error before it ends the process.
pub(crate) fn explain_bus_errors() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: the handler only calls `write`, and functions that restore and raise the signal. A
        // signal handler may call all of these. It does not allocate, lock or unwind.
        let registered = unsafe {
            signal_hook::low_level::register(SIGBUS, || {
                let _ = rustix::io::write(rustix::stdio::stderr(), HINT);
                let _ = signal_hook::low_level::emulate_default_handler(SIGBUS);
            })
        };
        // Without the handler the process dies of the same error, only without the hint.
        drop(registered);
    });
}
