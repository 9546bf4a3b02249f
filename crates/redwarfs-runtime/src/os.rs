//! Calls of the system that need `unsafe`.
#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsRawFd, BorrowedFd, RawFd};

use rustix::process::Pid;
use rustix::thread::{UnshareFlags, unshare_unsafe};

/// Splits the process in two. The result is `None` in the child.
///
/// # Errors
/// The process has several threads, or no other process can be made.
pub(crate) fn fork() -> io::Result<Option<Pid>> {
    if std::fs::read_dir("/proc/self/task").is_ok_and(|tasks| tasks.count() != 1) {
        return Err(io::Error::other("the process has several threads"));
    }
    // SAFETY: this process has one thread: nothing here starts one before it forks, which has just been checked
    // where /proc is there. So the child inherits no lock that another thread holds, and may go on as an
    // ordinary process.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        child => Ok(Pid::from_raw(child)),
    }
}

/// Ends this process without running anything of the process that it was forked from.
pub(crate) fn leave(code: i32) -> ! {
    // SAFETY: `_exit` ends the process at once and runs no handlers.
    unsafe { libc::_exit(code) }
}

/// Closes every descriptor behind the standard streams but some. Whoever owns the others in this copy of the
/// process must not use them again.
pub(crate) fn close_all_but(kept: &[BorrowedFd<'_>]) {
    /// Most numbers that are tried one by one.
    const MOST: RawFd = 1 << 16;
    let mut numbers: Vec<RawFd> = kept.iter().map(AsRawFd::as_raw_fd).collect();
    numbers.push(RawFd::MAX);
    numbers.sort_unstable();
    let mut first = 3;
    let mut closed = true;
    for number in numbers {
        if first < number {
            // SAFETY: closes files of the process that this one was forked from. The caller guarantees that
            // nobody here uses them.
            closed &= unsafe { libc::syscall(libc::SYS_close_range, first, number - 1, 0) } == 0;
        }
        first = first.max(number.saturating_add(1));
    }
    if closed {
        return;
    }
    // Systems before Linux 5.9 do not know the call.
    for number in 3..MOST {
        if !kept.iter().any(|fd| fd.as_raw_fd() == number) {
            // SAFETY: as above.
            unsafe { libc::close(number) };
        }
    }
}

/// Moves this process to new namespaces of users and mounts.
pub(crate) fn unshare_users_and_mounts() -> io::Result<()> {
    // SAFETY: the table of descriptors stays shared.
    Ok(unsafe { unshare_unsafe(UnshareFlags::NEWUSER | UnshareFlags::NEWNS) }?)
}

/// Ignores the signals that a terminal or a shutdown sends.
pub(crate) fn ignore_signals() {
    for signal in [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGPIPE,
    ] {
        // SAFETY: SIG_IGN is a valid disposition for these signals and runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
}

/// Lets SIGINT, SIGTERM and SIGQUIT end this process. A script that starts it in the background has them ignored.
pub(crate) fn end_by_signals() {
    for signal in [libc::SIGINT, libc::SIGTERM, libc::SIGQUIT] {
        // SAFETY: SIG_DFL is a valid disposition for these signals and runs no code.
        unsafe { libc::signal(signal, libc::SIG_DFL) };
    }
}
