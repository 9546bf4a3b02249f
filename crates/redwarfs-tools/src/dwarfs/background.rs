//! Going to the background: a child process that serves the mount, and a parent that waits until
//! the mount is there (or is known to fail) and passes the outcome on.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{Mode, OFlags};
use rustix::pipe::{PipeFlags, pipe_with};
use rustix::process::{Pid, WaitOptions, waitpid};

/// Which process goes on.
#[derive(Debug)]
pub(super) enum Fork {
    /// The one the user started.
    Parent(Outcome),
    /// The driver.
    Child(Report),
}

/// The parent's end: the exit code to come.
#[derive(Debug)]
pub(super) struct Outcome {
    pipe: File,
    child: Option<Pid>,
}

/// The child's end.
#[derive(Debug)]
pub(super) struct Report(File);

/// Splits the process in two. Must be called while the process has one thread.
pub(super) fn fork() -> io::Result<Fork> {
    let (read, write): (OwnedFd, OwnedFd) = pipe_with(PipeFlags::CLOEXEC)?;
    // SAFETY: the caller guarantees that there is no other thread, so the child inherits no lock
    // that somebody holds and may go on as an ordinary process. `fork` itself touches no memory
    // of ours.
    match unsafe { libc::fork() } {
        -1 => Err(io::Error::last_os_error()),
        0 => {
            drop(read);
            Ok(Fork::Child(Report(write.into())))
        }
        child => {
            drop(write);
            Ok(Fork::Parent(Outcome {
                pipe: read.into(),
                child: Pid::from_raw(child),
            }))
        }
    }
}

impl Outcome {
    /// Waits for the child's exit code; none if it was killed.
    pub(super) fn wait(mut self) -> Option<u8> {
        let mut code = [0];
        // `read_exact` goes on after an interrupting signal.
        if self.pipe.read_exact(&mut code).is_ok() {
            return Some(code[0]);
        }
        // A signal handler ends the child without a word but with an exit code.
        loop {
            match waitpid(self.child, WaitOptions::empty()) {
                Err(rustix::io::Errno::INTR) => {}
                Ok(Some((_, status))) => {
                    return status
                        .exit_status()
                        .and_then(|code| u8::try_from(code).ok());
                }
                _ => return None,
            }
        }
    }
}

impl Report {
    /// Leaves the terminal and the working directory, and lets the parent end with success.
    pub(super) fn ready(mut self) -> io::Result<()> {
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
