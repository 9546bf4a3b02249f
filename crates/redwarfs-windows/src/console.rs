//! The console: its size, escape sequences, and Ctrl-C.
#![allow(unsafe_code)]

use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use windows_sys::Win32::System::Console::{
    CONSOLE_SCREEN_BUFFER_INFO, CTRL_CLOSE_EVENT, CTRL_LOGOFF_EVENT, CTRL_SHUTDOWN_EVENT,
    ENABLE_VIRTUAL_TERMINAL_PROCESSING, GetConsoleMode, GetConsoleScreenBufferInfo,
    SetConsoleCtrlHandler, SetConsoleMode,
};

/// Columns and rows of the window of a console; `None` if `out` is no console.
#[must_use]
pub fn size(out: &impl AsHandle) -> Option<(usize, usize)> {
    let mut info = CONSOLE_SCREEN_BUFFER_INFO::default();
    // SAFETY: the handle is open during the call, which fills the structure.
    if unsafe { GetConsoleScreenBufferInfo(out.as_handle().as_raw_handle(), &raw mut info) } == 0 {
        return None;
    }
    let length =
        |first: i16, last: i16| usize::try_from(i32::from(last) - i32::from(first) + 1).ok();
    let window = info.srWindow;
    Some((
        length(window.Left, window.Right)?,
        length(window.Top, window.Bottom)?,
    ))
}

/// Lets a console understand escape sequences; false if `out` is no console, or it cannot.
#[must_use]
pub fn enable_escape_sequences(out: &impl AsHandle) -> bool {
    let handle = out.as_handle().as_raw_handle();
    let mut mode = 0;
    // SAFETY: the handle is open during both calls; the first one fills a number, the second takes one.
    unsafe {
        GetConsoleMode(handle, &raw mut mode) != 0
            && SetConsoleMode(handle, mode | ENABLE_VIRTUAL_TERMINAL_PROCESSING) != 0
    }
}

/// The flag that a request to stop sets.
static STOP: OnceLock<Arc<AtomicBool>> = OnceLock::new();

/// How long the process may take to clean up when its console is closed. Windows ends it after 5 s.
const GRACE: Duration = Duration::from_secs(4);

/// Windows calls this in a thread of its own.
extern "system" fn on_request(kind: u32) -> i32 {
    let Some(stop) = STOP.get() else {
        return 0;
    };
    if stop.swap(true, Ordering::Relaxed) {
        // The second request: the first one may be noticed too late.
        std::process::exit(1);
    }
    if matches!(
        kind,
        CTRL_CLOSE_EVENT | CTRL_LOGOFF_EVENT | CTRL_SHUTDOWN_EVENT
    ) {
        // The process ends when this returns.
        std::thread::sleep(GRACE);
    }
    1
}

/// A flag that becomes true at Ctrl-C, Ctrl-Break, and when the console is closed. The second request ends
/// the process with exit code 1.
///
/// # Errors
/// The error of the system.
pub fn stop_flag() -> io::Result<Arc<AtomicBool>> {
    let flag = STOP.get_or_init(Arc::default);
    // SAFETY: the handler has the type that Windows calls, lives as long as the process, and neither unwinds
    // nor uses anything of the thread that it interrupts, because it runs in another one.
    match unsafe { SetConsoleCtrlHandler(Some(on_request), 1) } {
        0 => Err(io::Error::last_os_error()),
        _ => Ok(Arc::clone(flag)),
    }
}

/// The flag of [`stop_flag`], which nothing raises before that.
#[must_use]
pub fn stop_request() -> Arc<AtomicBool> {
    Arc::clone(STOP.get_or_init(Arc::default))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_sets_the_flag() {
        let flag = stop_flag().unwrap();
        assert!(!flag.load(Ordering::Relaxed));
        assert_eq!(on_request(0), 1);
        assert!(flag.load(Ordering::Relaxed));
    }

    #[test]
    fn files_are_no_consoles() {
        let file = tempfile::tempfile().unwrap();
        assert_eq!(size(&file), None);
        assert!(!enable_escape_sequences(&file));
    }
}
