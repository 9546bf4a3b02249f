//! The target on Unix.

mod flags;
mod place;
mod target;

use std::ffi::OsStr;
use std::io::{self, IoSlice};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus};

use rustix::io::Errno;

pub(crate) use flags::set_first_flags;
pub(crate) use place::{reserve_size, set_size};
pub(crate) use target::Target;

/// Why birth times cannot be set.
pub(crate) const NO_BIRTH_TIMES: Option<&str> = Some("the system has no call for this");

/// An open directory of the target.
pub(crate) type Dir = OwnedFd;

/// A file of the target, open for writing.
pub(crate) type OutFile = OwnedFd;

/// Whether an error means that the file system has no hard links, or allows no further one of this
/// file.
pub(crate) fn is_no_link(e: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(e),
        Some(Errno::PERM | Errno::MLINK | Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV)
    )
}

/// Whether an error of the target concerns all its entries.
pub(crate) fn is_of_target(e: &io::Error) -> bool {
    matches!(
        Errno::from_io_error(e),
        Some(
            Errno::NOSPC
                | Errno::DQUOT
                | Errno::ROFS
                | Errno::MFILE
                | Errno::NFILE
                | Errno::NOMEM
                | Errno::NODEV
                | Errno::NXIO
                | Errno::SHUTDOWN
                | Errno::NOTCONN
                | Errno::CONNABORTED
                | Errno::STALE
        )
    )
}

/// Writes slices one after another at a position. Returns the number of bytes.
pub(crate) fn write_at(fd: &OutFile, mut offset: u64, slices: &[&[u8]]) -> io::Result<u64> {
    let start = offset;
    let mut vectors: Vec<IoSlice<'_>> = slices.iter().map(|s| IoSlice::new(s)).collect();
    let mut rest = &mut vectors[..];
    // Drops empty slices, so that a write of 0 bytes means an error.
    IoSlice::advance_slices(&mut rest, 0);
    while !rest.is_empty() {
        match rustix::io::pwritev(fd, rest, offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                offset += n as u64;
                IoSlice::advance_slices(&mut rest, n);
            }
            Err(rustix::io::Errno::INTR) => {}
            Err(e) => return Err(e.into()),
        }
    }
    Ok(offset - start)
}

/// Gives a process its first argument.
pub(crate) fn set_name(command: &mut Command, name: &OsStr) {
    command.arg0(name);
}

/// The signal that ended a process.
pub(crate) fn signal(status: ExitStatus) -> Option<i32> {
    status.signal()
}
