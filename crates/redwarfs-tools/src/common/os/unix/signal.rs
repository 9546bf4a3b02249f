//! A flag that SIGINT, SIGTERM and SIGHUP raise.

use std::io;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// Registers a flag that becomes true when the user or the system asks the process to stop.
/// The second request ends the process at once with exit code 1, in case the first one is
/// noticed too late.
///
/// # Errors
/// If the handlers cannot be registered.
pub(crate) fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let flag = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        // Order matters: the shutdown handler must see the flag from before this signal.
        signal_hook::flag::register_conditional_shutdown(signal, 1, Arc::clone(&flag))?;
        signal_hook::flag::register(signal, Arc::clone(&flag))?;
    }
    Ok(flag)
}
