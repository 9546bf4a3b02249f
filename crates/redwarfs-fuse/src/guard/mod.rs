//! A small process that cleans up after a driver which died without unmounting.
//!
//! A driver that is killed leaves a mount behind that answers everything with `ENOTCONN` until
//! somebody unmounts it. The guard holds one end of a pipe; when the other end closes without
//! farewell, the driver is gone, and the guard removes the dead mount: with the system call if it
//! may, with `fusermount3` otherwise. It acts only if the mount table still shows the driver's own
//! device on top of the mount point and that file system is dead; so it never takes off a mount
//! that somebody else made there.
//!
//! A guard that was made early, as it should be, has 64 KiB of memory of its own and shares the
//! rest with the driver (1.1 MiB resident, measured with an x86-64 debug build). It has no file but
//! the pipe, ignores the signals that a terminal or a shutdown sends, and is in a session of its
//! own, so that killing the driver's process group leaves it to do its work.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::pipe::{PipeFlags, pipe_with};

mod child;

/// The driver's hold on its guard. Dropped without [`Guard::dismiss`] it has the same effect as
/// the death of the driver.
#[derive(Debug)]
pub struct Guard {
    pipe: File,
    process: rustix::process::Pid,
}

impl Guard {
    /// Starts the guard: a copy of this process made by `fork`, in a session of its own, without
    /// any other open file.
    ///
    /// Must be called while the process has one thread; otherwise it is refused.
    ///
    /// # Errors
    /// The process has several threads, or no further process can be made.
    pub fn spawn() -> io::Result<Self> {
        if threads()? != 1 {
            return Err(io::Error::other("the process has several threads"));
        }
        let (read, write): (OwnedFd, OwnedFd) = pipe_with(PipeFlags::CLOEXEC)?;
        // The guard closes its copy of `held` with everything else that it has from us.
        let (closed, held): (OwnedFd, OwnedFd) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: this process has one thread, as just counted, so the child inherits no lock that
        // somebody else holds and may go on as an ordinary process.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(write);
                child::run(read);
            }
            process => {
                drop(held);
                // Ends with the last copy, also if the guard could not start.
                let _ = File::from(closed).read(&mut [0]);
                Ok(Self {
                    pipe: write.into(),
                    process: rustix::process::Pid::from_raw(process)
                        .ok_or_else(|| io::Error::other("fork gave no process"))?,
                })
            }
        }
    }

    /// Tells the guard what to take off if this process goes away: the file system with the number
    /// `device` (`st_dev` of its root) on the absolute path `mountpoint`. The last call counts.
    ///
    /// # Errors
    /// The guard does not exist any more.
    pub fn watch(&mut self, mountpoint: &Path, device: u64) -> io::Result<()> {
        self.pipe
            .write_all(&child::Message::Watch(mountpoint, device).encode())
    }

    /// Ends the guard without any action and waits for its end.
    pub fn dismiss(mut self) {
        // A guard that is gone needs no farewell.
        let _ = self.pipe.write_all(&child::Message::Farewell.encode());
        drop(self.pipe);
        let options = rustix::process::WaitOptions::empty();
        while let Err(rustix::io::Errno::INTR) =
            rustix::process::waitpid(Some(self.process), options)
        {}
    }

    /// Process id of the guard.
    #[must_use]
    pub fn process_id(&self) -> u32 {
        self.process.as_raw_nonzero().get().unsigned_abs()
    }
}

/// Number of threads of this process.
fn threads() -> io::Result<usize> {
    std::fs::read_dir("/proc/self/task").map(Iterator::count)
}
