//! A flag that SIGINT, SIGTERM and SIGHUP raise.

use std::io;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, LazyLock};

use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};

/// The flag of this process.
static STOP: LazyLock<Arc<AtomicBool>> = LazyLock::new(Arc::default);
/// The signal that has raised it; 0 is none.
static SIGNAL: LazyLock<Arc<AtomicUsize>> = LazyLock::new(Arc::default);

/// Registers a flag that becomes true when the user or the system asks the process to stop.
/// The second request ends the process at once, in case the first one is noticed too late.
///
/// # Errors
/// If the handlers cannot be registered.
pub(crate) fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let flag = &*STOP;
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        let code = i32::from(code_of(signal));
        // Order matters: the shutdown handler must see the flag from before this signal.
        signal_hook::flag::register_conditional_shutdown(signal, code, Arc::clone(flag))?;
        let number = usize::try_from(signal).unwrap_or_default();
        signal_hook::flag::register_usize(signal, Arc::clone(&SIGNAL), number)?;
        signal_hook::flag::register(signal, Arc::clone(flag))?;
    }
    Ok(Arc::clone(flag))
}

/// The flag, which nothing raises before [`stop_flag`].
#[cfg(feature = "remote")]
pub(crate) fn stop_request() -> Arc<AtomicBool> {
    Arc::clone(&STOP)
}

/// The exit code of a process that a signal has asked to stop.
pub(crate) fn stop_code() -> Option<u8> {
    let signal = i32::try_from(SIGNAL.load(Ordering::Relaxed)).ok()?;
    (signal != 0).then(|| code_of(signal))
}

/// The exit code of a process that a signal has ended, as shells have it: 130 for SIGINT, 143 for SIGTERM.
pub(crate) fn code_of(signal: i32) -> u8 {
    u8::try_from(signal).map_or(u8::MAX, |signal| signal.saturating_add(128))
}
