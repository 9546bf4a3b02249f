//! Requests of the terminal.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use signal_hook::consts::{SIGTSTP, SIGWINCH};

use crate::common::console::Console;

/// Requests of the terminal. They matter only while there is a frame. Without a frame, the process
/// stops at once, as without this handler.
#[derive(Debug)]
pub(crate) struct Requests {
    stop: Arc<AtomicBool>,
    resized: Arc<AtomicBool>,
    idle: Arc<AtomicBool>,
}

impl Requests {
    pub(crate) fn new() -> io::Result<Self> {
        let flag = || Arc::new(AtomicBool::new(false));
        let (stop, resized, idle) = (flag(), flag(), flag());
        signal_hook::flag::register_conditional_default(SIGTSTP, Arc::clone(&idle))?;
        signal_hook::flag::register(SIGTSTP, Arc::clone(&stop))?;
        signal_hook::flag::register(SIGWINCH, Arc::clone(&resized))?;
        Ok(Self {
            stop,
            resized,
            idle,
        })
    }

    /// Whether the size of the terminal has changed since the last call.
    pub(crate) fn take_resized(&self) -> bool {
        self.resized.swap(false, Ordering::Relaxed)
    }

    /// Stops the process if Ctrl-Z was pressed, with a clean terminal. Returns the time for which it
    /// was stopped.
    pub(crate) fn obey_stop(&self, console: &Console) -> Option<Duration> {
        if !self.stop.swap(false, Ordering::Relaxed) {
            return None;
        }
        let leader = rustix::process::getsid(None).ok();
        if leader == Some(rustix::process::getpgrp()) {
            // No shell could continue the process; the system ignores such a request, too.
            return None;
        }
        let since = Instant::now();
        console.pause();
        let _ = signal_hook::low_level::emulate_default_handler(SIGTSTP);
        console.resume();
        Some(since.elapsed())
    }
}

impl Drop for Requests {
    fn drop(&mut self) {
        self.idle.store(true, Ordering::Relaxed);
    }
}
