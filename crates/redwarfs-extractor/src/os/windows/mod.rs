//! The target on Windows.
//!
//! There are no calls relative to an open directory. Instead, each directory in use is open in a way that
//! forbids all programs to rename or remove it, or a directory above it. As long as it is open, its path
//! leads to it. All paths have the verbatim form (`\\?\`), in which Windows changes no names and allows
//! more than 260 characters.

mod place;
mod target;

use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::windows::fs::FileExt;
use std::path::PathBuf;
use std::process::{Command, ExitStatus};

use redwarfs_windows::file;

pub(crate) use target::Target;

/// Why birth times cannot be set.
pub(crate) const NO_BIRTH_TIMES: Option<&str> = None;

/// Windows has no such flags.
pub(crate) fn set_first_flags(_file: &OutFile, _flags: u32) {}

/// An open directory of the target.
#[derive(Debug)]
pub(crate) struct Dir {
    path: PathBuf,
    /// Keeps the directory in its place.
    _held: File,
}

/// A file of the target, open for writing.
pub(crate) type OutFile = File;

const ERROR_INVALID_FUNCTION: i32 = 1;
const ERROR_TOO_MANY_OPEN_FILES: i32 = 4;
const ERROR_NOT_ENOUGH_MEMORY: i32 = 8;
const ERROR_OUTOFMEMORY: i32 = 14;
const ERROR_NOT_SAME_DEVICE: i32 = 17;
const ERROR_WRITE_PROTECT: i32 = 19;
const ERROR_NOT_READY: i32 = 21;
const ERROR_HANDLE_DISK_FULL: i32 = 39;
const ERROR_NOT_SUPPORTED: i32 = 50;
const ERROR_BAD_NETPATH: i32 = 53;
const ERROR_DEV_NOT_EXIST: i32 = 55;
const ERROR_NETNAME_DELETED: i32 = 64;
const ERROR_INVALID_PARAMETER: i32 = 87;
const ERROR_DISK_FULL: i32 = 112;
const ERROR_CALL_NOT_IMPLEMENTED: i32 = 120;
const ERROR_TOO_MANY_LINKS: i32 = 1142;
const ERROR_DISK_QUOTA_EXCEEDED: i32 = 1295;
const ERROR_PRIVILEGE_NOT_HELD: i32 = 1314;
const ERROR_NO_SYSTEM_RESOURCES: i32 = 1450;

/// Whether an error means that the file system has no hard links, or allows no further one of this
/// file.
pub(crate) fn is_no_link(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(
            ERROR_TOO_MANY_LINKS
                | ERROR_NOT_SUPPORTED
                | ERROR_INVALID_FUNCTION
                | ERROR_NOT_SAME_DEVICE
                | ERROR_CALL_NOT_IMPLEMENTED
        )
    )
}

/// Whether an error of the target concerns all its entries.
pub(crate) fn is_of_target(e: &io::Error) -> bool {
    matches!(
        e.raw_os_error(),
        Some(
            ERROR_DISK_FULL
                | ERROR_HANDLE_DISK_FULL
                | ERROR_DISK_QUOTA_EXCEEDED
                | ERROR_WRITE_PROTECT
                | ERROR_TOO_MANY_OPEN_FILES
                | ERROR_NOT_ENOUGH_MEMORY
                | ERROR_OUTOFMEMORY
                | ERROR_NO_SYSTEM_RESOURCES
                | ERROR_NOT_READY
                | ERROR_DEV_NOT_EXIST
                | ERROR_BAD_NETPATH
                | ERROR_NETNAME_DELETED
        )
    )
}

/// Writes slices one after another at a position. Returns the number of bytes.
pub(crate) fn write_at(file: &OutFile, mut offset: u64, slices: &[&[u8]]) -> io::Result<u64> {
    let start = offset;
    for slice in slices {
        let mut rest = *slice;
        while !rest.is_empty() {
            match file.seek_write(rest, offset) {
                Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
                Ok(n) => {
                    offset += n as u64;
                    rest = rest.get(n..).unwrap_or_default();
                }
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(offset - start)
}

/// Gives a file its size, with a hole at the end, once its data is written.
pub(crate) fn set_size(file: &OutFile, size: u64) -> io::Result<()> {
    file.set_len(size)
}

/// Gives a new file with holes its size in advance.
pub(crate) fn reserve_size(file: &OutFile, size: u64) -> io::Result<()> {
    file::make_sparse(file);
    file.set_len(size)
}

/// Windows has no separate name of a process.
pub(crate) fn set_name(_command: &mut Command, _name: &OsStr) {}

/// No signals end processes on Windows.
pub(crate) fn signal(_status: ExitStatus) -> Option<i32> {
    None
}
