//! A small process that unmounts if the driver dies without unmounting.
//!
//! A killed driver leaves a dead mount, on which every operation fails with `ENOTCONN`. The guard holds
//! one end of a pipe. If the other end closes without a farewell message, the driver has died, and the
//! guard unmounts: with the system call if it may, otherwise with `fusermount3`. It acts only if the
//! mount table still shows the device of the driver on top of the mount point, and that file system is
//! dead. So it never removes a mount that another program made there.
//!
//! If the guard is started early, it has 64 KiB of private memory, and shares the rest with the driver
//! (1.1 MiB resident in an x86-64 debug build). It has no open file except the pipe, and ignores the
//! signals that a terminal or a shutdown sends. It runs in a separate session, so that it survives when
//! the process group of the driver is killed.
#![allow(unsafe_code)]

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::OwnedFd;
use std::path::Path;

use rustix::pipe::{PipeFlags, pipe_with};

mod child;

/// The driver's end of the pipe to its guard. Dropping it without [`Guard::dismiss`] has the same effect
/// as the death of the driver.
#[derive(Debug)]
pub struct Guard {
    pipe: File,
    process: rustix::process::Pid,
}

impl Guard {
    /// Starts the guard: a copy of this process made by `fork`, in a separate session, without any other
    /// open file.
    ///
    /// Must be called while the process has only one thread.
    ///
    /// # Errors
    /// The process has several threads, or no further process can be made.
    pub fn spawn() -> io::Result<Self> {
        if threads()? != 1 {
            return Err(io::Error::other("the process has several threads"));
        }
        let (read, write): (OwnedFd, OwnedFd) = pipe_with(PipeFlags::CLOEXEC)?;
        // The guard closes its copy of `held`, like all descriptors of the driver.
        let (closed, held): (OwnedFd, OwnedFd) = pipe_with(PipeFlags::CLOEXEC)?;
        // SAFETY: this process has one thread, as just counted, so the child inherits no lock that
        // another thread holds, and may continue as an ordinary process.
        match unsafe { libc::fork() } {
            -1 => Err(io::Error::last_os_error()),
            0 => {
                drop(write);
                child::run(read);
            }
            process => {
                drop(held);
                // Returns when the last copy of the other end is closed, also if the guard could not start.
                let _ = File::from(closed).read(&mut [0]);
                Ok(Self {
                    pipe: write.into(),
                    process: rustix::process::Pid::from_raw(process)
                        .ok_or_else(|| io::Error::other("fork gave no process"))?,
                })
            }
        }
    }

    /// Tells the guard the mount to remove if this process dies: the file system with the number `device`
    /// (`st_dev` of its root) on the absolute path `mountpoint`. The last call counts.
    ///
    /// # Errors
    /// The guard has ended.
    pub fn watch(&mut self, mountpoint: &Path, device: u64) -> io::Result<()> {
        self.pipe
            .write_all(&child::Message::Watch(mountpoint, device).encode())
    }

    /// The same for an overlay of the kernel on `mountpoint` whose lower directory `lower` this process serves, and whose
    /// name no other one has: it is dead when this process has died.
    ///
    /// # Errors
    /// The guard has ended.
    pub fn watch_overlay(&mut self, mountpoint: &Path, lower: &Path) -> io::Result<()> {
        self.pipe
            .write_all(&child::Message::Overlay(lower).encode())?;
        self.pipe
            .write_all(&child::Message::Watch(mountpoint, 0).encode())
    }

    /// Tells the guard a directory to remove, with all that is in it, if this process dies: an absolute path. The last call
    /// counts.
    ///
    /// # Errors
    /// The guard has ended.
    pub fn remove(&mut self, directory: &Path) -> io::Result<()> {
        self.pipe
            .write_all(&child::Message::Remove(directory).encode())
    }

    /// Ends the guard without any action and waits for its end.
    pub fn dismiss(mut self) {
        // A guard that has ended needs no farewell.
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
