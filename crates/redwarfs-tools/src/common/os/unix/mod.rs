//! Terminals, signals, users and files on Unix.

mod bus;
mod requests;
mod signal;
mod stdio;
mod syslog;
mod time;

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::os::unix::fs::{FileTypeExt, MetadataExt};
use std::path::{Path, PathBuf};

pub(crate) use std::os::fd::AsFd as AsTerminal;

pub(crate) use bus::explain_bus_errors;
pub(crate) use requests::Requests;
#[cfg(feature = "remote")]
pub(crate) use signal::stop_request;
pub(crate) use signal::{code_of, stop_code, stop_flag};
pub(crate) use stdio::stdout_is_closed;
pub(crate) use syslog::Syslog;
pub(crate) use time::local_time;

use crate::common::error::{Result, ToolError};
use syslog::SOCKET;

/// The bytes of an argument.
pub(crate) fn argument_bytes(argument: &OsStr) -> Cow<'_, [u8]> {
    argument.as_bytes().into()
}

/// The argument with these bytes.
pub(crate) fn argument(bytes: Vec<u8>) -> OsString {
    OsString::from_vec(bytes)
}

/// Whether a backslash in a list of options takes the following byte literally.
pub(crate) fn is_escaped(_next: u8) -> bool {
    true
}

/// Connects to the log of the system.
pub(crate) fn open_syslog(program: &str) -> Result<Syslog> {
    Syslog::connect(Path::new(SOCKET), program).map_err(|error| {
        ToolError::new("cannot reach the system log")
            .path(SOCKET)
            .io(&error)
    })
}

/// Whether the type of a terminal, which the environment has, understands escape sequences.
pub(crate) fn understands_escapes(_terminal: &impl AsTerminal) -> bool {
    let term = std::env::var_os("TERM").unwrap_or_default();
    !term.is_empty() && term != "dumb"
}

/// Columns and rows of a terminal.
pub(crate) fn terminal_size(out: &impl AsTerminal) -> Option<(usize, usize)> {
    let size = rustix::termios::tcgetwinsize(out).ok()?;
    Some((size.ws_col.into(), size.ws_row.into()))
}

/// Whether this process may draw on the terminal at standard error.
pub(crate) fn owns_terminal() -> bool {
    match rustix::termios::tcgetpgrp(io::stderr()) {
        Ok(group) => group == rustix::process::getpgrp(),
        // Not the controlling terminal of this process: no other process uses it.
        Err(_) => true,
    }
}

/// Whether the locale of the process uses UTF-8.
pub(crate) fn locale_is_utf8() -> bool {
    ["LC_ALL", "LC_CTYPE", "LANG"]
        .iter()
        .filter_map(|name| std::env::var(name).ok())
        .find(|value| !value.is_empty())
        .is_some_and(|value| {
            let value = value.to_ascii_lowercase();
            value.contains("utf-8") || value.contains("utf8")
        })
}

/// Standard output without the buffer of the library, which looks for line ends in everything.
pub(crate) fn raw_stdout() -> io::Result<File> {
    let copy = io::stdout().as_fd().try_clone_to_owned()?;
    Ok(File::from(copy))
}

/// The number of a user with this name.
pub(crate) fn user_id(name: &str) -> Option<u32> {
    uzers::get_user_by_name(name).map(|user| user.uid())
}

/// The number of a group with this name.
pub(crate) fn group_id(name: &str) -> Option<u32> {
    uzers::get_group_by_name(name).map(|group| group.gid())
}

/// The umask of this process.
pub(crate) fn umask() -> u32 {
    // There is no way to ask without setting it. No other thread runs at this time.
    let umask = rustix::process::umask(rustix::fs::Mode::empty());
    rustix::process::umask(umask);
    umask.bits()
}

/// Resident memory of this process in bytes.
pub(crate) fn memory_in_use() -> Option<u64> {
    let text = std::fs::read_to_string("/proc/self/statm").ok()?;
    let pages: u64 = text.split_ascii_whitespace().nth(1)?.parse().ok()?;
    pages.checked_mul(rustix::param::page_size() as u64)
}

/// Whether it is a block device.
pub(crate) fn is_block_device(metadata: &Metadata) -> bool {
    metadata.file_type().is_block_device()
}

/// Whether any user may execute a file.
pub(crate) fn is_executable(metadata: &Metadata) -> bool {
    metadata.mode() & 0o111 != 0
}

/// Time of the last change: seconds since 1970, and nanoseconds.
pub(crate) fn modified(metadata: &Metadata) -> (i64, u32) {
    let nanoseconds = u32::try_from(metadata.mtime_nsec()).unwrap_or(0);
    (metadata.mtime(), nanoseconds)
}

/// Opens a file to compare it with others, without any access to its contents.
pub(crate) fn open_to_compare(path: &Path) -> io::Result<File> {
    let flags = rustix::fs::OFlags::PATH | rustix::fs::OFlags::CLOEXEC;
    let opened = rustix::fs::open(path, flags, rustix::fs::Mode::empty())?;
    Ok(File::from(opened))
}

/// The absolute path without links.
pub(crate) fn canonical(path: &Path) -> io::Result<PathBuf> {
    std::fs::canonicalize(path)
}

/// The file of this program, also if it has no name.
pub(crate) fn own_program() -> Option<PathBuf> {
    Some("/proc/self/exe".into())
}
