//! Entries, files and threads on Unix.

mod extended;
mod files;

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

pub(crate) use std::os::fd::AsFd as AsFile;

pub(crate) use extended::read_extended;
pub(crate) use files::{
    Listing, find_at, identity_of_dir, identity_of_file, meta_of_file, open_anchor, open_content,
    open_dir, open_file, open_in, open_root,
};

/// An open directory.
pub(crate) type Dir = OwnedFd;

/// A borrowed [`Dir`].
pub(crate) type DirRef<'a> = BorrowedFd<'a>;

/// Borrows a directory.
pub(crate) fn dir_ref(dir: &Dir) -> DirRef<'_> {
    dir.as_fd()
}

/// Adds `by` to the niceness of the calling thread.
pub(crate) fn lower_priority(by: i32) {
    let thread = Some(rustix::thread::gettid());
    let before = rustix::process::getpriority_process(thread).unwrap_or(0);
    let nice = before.saturating_add(by).min(19);
    let _ = rustix::process::setpriority_process(thread, nice);
}

/// CPU time of the calling thread in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    let t = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    (t.tv_sec as u64)
        .wrapping_mul(1_000_000_000)
        .wrapping_add(t.tv_nsec as u64)
}

/// Bytes of memory that this machine has.
pub(crate) fn physical_memory() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}
