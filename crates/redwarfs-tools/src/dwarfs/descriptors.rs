//! The descriptors that the caller has left open in this process.
//!
//! A driver in the background outlives its caller. A descriptor that stays open can hold a lock, keep
//! the reader of a pipe waiting, or keep a file system busy. The driver cannot close them at the start,
//! because the image, a log file or the mount point can be named as `/dev/fd/N`.
#![allow(unsafe_code)]

use std::fs;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};

use rustix::process::{Resource, getrlimit};

/// The first descriptor after the standard streams.
const FIRST: RawFd = 3;
/// Most numbers that are tried where the system does not list them.
const MOST: u64 = 1 << 16;

/// The descriptors that were open when the program started, except the standard streams. Programs that
/// this one starts do not get them. Dropped, they are closed.
#[derive(Debug)]
pub(super) struct Inherited(Vec<OwnedFd>);

impl Inherited {
    /// Takes them over. Call it before this process opens a file itself.
    pub(super) fn take_over() -> Self {
        let mut numbers = listed().unwrap_or_else(tried);
        // The order of the system is not defined, and one number must have one owner.
        numbers.sort_unstable();
        numbers.dedup();
        let is_open = |number: &RawFd| {
            // SAFETY: touches no memory, and changes only a flag of a descriptor that no other code in
            // this process knows. An error means that it is not open.
            let result = unsafe { libc::fcntl(*number, libc::F_SETFD, libc::FD_CLOEXEC) };
            result == 0
        };
        let owned = numbers.into_iter().filter(is_open).map(|number| {
            // SAFETY: it is open, and this process has opened nothing, so no other code owns it.
            unsafe { OwnedFd::from_raw_fd(number) }
        });
        Self(owned.collect())
    }

    /// The descriptor with this number.
    pub(super) fn take(&mut self, number: RawFd) -> Option<OwnedFd> {
        let at = self.0.iter().position(|fd| fd.as_raw_fd() == number)?;
        Some(self.0.swap_remove(at))
    }

    /// Closes them.
    pub(super) fn close(&mut self) {
        self.0.clear();
    }
}

/// The numbers that the system lists, including the number of the list itself, which is closed
/// afterwards.
fn listed() -> Option<Vec<RawFd>> {
    let list = fs::read_dir("/proc/self/fd").ok()?;
    let numbers = list.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    Some(numbers.filter(|&number| number >= FIRST).collect())
}

/// All numbers that there can be.
fn tried() -> Vec<RawFd> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(MOST);
    let end = RawFd::try_from(limit.min(MOST)).unwrap_or(RawFd::MAX);
    (FIRST..end).collect()
}
