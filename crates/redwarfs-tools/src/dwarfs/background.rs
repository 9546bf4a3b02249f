//! Going to the background: a child process serves the mount. Its parent waits until the mount is ready
//! or has failed, and returns the outcome.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
#[cfg(target_os = "linux")]
use rustix::process::Signal;
use rustix::process::{Pid, WaitOptions, waitpid};

/// The process that continues.
#[derive(Debug)]
pub(super) enum Fork {
    /// The one the user started.
    Parent(Start),
    /// The driver.
    Child(Report),
}

/// How the start of a driver ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outcome {
    /// It said so: 0 when it serves the mount.
    Code(u8),
    /// It was killed by this signal.
    Signal(i32),
    Unknown,
}

/// The parent's end: the outcome to come.
#[derive(Debug)]
pub(super) struct Start {
    pipe: File,
    child: Option<Pid>,
}

/// The child's end.
#[derive(Debug)]
pub(super) struct Report(File);

/// Splits the process in two. Must be called while the process has one thread.
pub(super) fn fork() -> io::Result<Fork> {
    let (read, write): (OwnedFd, OwnedFd) = pipe_with(PipeFlags::CLOEXEC)?;
    let parent = rustix::process::getpid();
    // SAFETY: the caller guarantees that there is no other thread, so the child inherits no lock of
    // another thread, and may continue as an ordinary process. `fork` itself touches no memory of ours.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(read);
            end_with(parent)?;
            Ok(Fork::Child(Report(write.into())))
        }
        child => {
            drop(write);
            Ok(Fork::Parent(Start {
                pipe: read.into(),
                child: Pid::from_raw(child),
            }))
        }
    }
}

/// Until the mount is there, the driver ends with the process of the user, also while it waits for a server. Other systems
/// find out when they report.
#[cfg(target_os = "linux")]
fn end_with(parent: Pid) -> io::Result<()> {
    rustix::process::set_parent_process_death_signal(Some(Signal::TERM))?;
    // It may have ended before. One outside of the PID namespace has no number.
    match rustix::process::getppid() {
        Some(found) if found != parent => {
            Err(io::Error::other("the process that started it has ended"))
        }
        _ => Ok(()),
    }
}

#[cfg(not(target_os = "linux"))]
fn end_with(_parent: Pid) -> io::Result<()> {
    Ok(())
}

impl Start {
    /// Waits until the driver serves the mount or has ended.
    pub(super) fn wait(mut self) -> Outcome {
        let mut code = [0];
        // `read_exact` continues after an interrupting signal.
        if self.pipe.read_exact(&mut code).is_ok() {
            return Outcome::Code(code[0]);
        }
        // It ended without a word.
        loop {
            match waitpid(self.child, WaitOptions::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(Some((_, status))) => {
                    return status
                        .terminating_signal()
                        .map_or(Outcome::Unknown, Outcome::Signal);
                }
                _ => return Outcome::Unknown,
            }
        }
    }
}

impl Report {
    /// Leaves the terminal and the working directory, and lets the parent end with success.
    pub(super) fn ready(mut self) -> io::Result<()> {
        #[cfg(target_os = "linux")]
        rustix::process::set_parent_process_death_signal(None)?;
        // Fails only for a process group leader, which a child is not.
        rustix::process::setsid()?;
        rustix::process::chdir("/")?;
        let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
        rustix::stdio::dup2_stdin(&null)?;
        rustix::stdio::dup2_stdout(&null)?;
        rustix::stdio::dup2_stderr(&null)?;
        self.0.write_all(&[0])
    }

    /// Lets the parent end with `code`. The parent may be gone.
    pub(super) fn failed(mut self, code: u8) {
        let _ = self.0.write_all(&[code]);
    }
}
