//! Terminals, Ctrl-C and files on Windows.

use std::borrow::Cow;
use std::ffi::{OsStr, OsString};
use std::fs::{File, Metadata};
use std::io;
use std::os::windows::io::{AsHandle, AsRawHandle};
use std::path::{Path, PathBuf};
use std::time::{Duration, UNIX_EPOCH};

use redwarfs_format::date_time::unix_from_utc;
use redwarfs_windows::{console, file, name};

pub(crate) use std::os::windows::io::AsHandle as AsTerminal;

#[cfg(feature = "remote")]
pub(crate) use redwarfs_windows::console::stop_request;
pub(crate) use redwarfs_windows::console::{
    enable_escape_sequences as understands_escapes, size as terminal_size, stop_flag,
};
pub(crate) use redwarfs_windows::process::memory_in_use;

use crate::common::console::Console;
use crate::common::error::{Result, ToolError};
use crate::common::log_level::LogLevel;
use crate::common::time::LocalTime;

/// Nothing: Windows has no signals.
pub(crate) fn stop_code() -> Option<u8> {
    None
}

/// The bytes of an argument.
pub(crate) fn argument_bytes(argument: &OsStr) -> Cow<'_, [u8]> {
    name::bytes(argument)
}

/// The argument with these bytes, which are those of another one, or a part of it.
pub(crate) fn argument(bytes: Vec<u8>) -> OsString {
    let text = name::os_string(&bytes);
    text.unwrap_or_else(|| String::from_utf8_lossy(&bytes).into_owned().into())
}

/// Whether a backslash in a list of options takes the following byte literally. Other backslashes
/// separate the components of paths.
pub(crate) fn is_escaped(next: u8) -> bool {
    next == b','
}

/// The log of the system, which programs on Unix have.
#[derive(Debug)]
pub enum Syslog {}

impl Syslog {
    /// Does nothing: there is no such log.
    pub fn send(&self, _level: LogLevel, _text: &str) {
        match *self {}
    }
}

/// Says that there is no such log.
pub(crate) fn open_syslog(_program: &str) -> Result<Syslog> {
    Err(ToolError::new("there is no system log on Windows")
        .hint("-o log_file=FILE writes to a file"))
}

/// Requests of the terminal.
#[derive(Debug)]
pub(crate) struct Requests {
    size: std::cell::Cell<Option<(usize, usize)>>,
}

impl Requests {
    pub(crate) fn new() -> io::Result<Self> {
        Ok(Self {
            size: std::cell::Cell::new(console::size(&io::stderr())),
        })
    }

    /// Whether the size of the terminal has changed since the last call.
    pub(crate) fn take_resized(&self) -> bool {
        let size = console::size(&io::stderr());
        self.size.replace(size) != size
    }

    /// No program is stopped and continued on Windows.
    pub(crate) fn obey_stop(&self, _console: &Console) -> Option<Duration> {
        None
    }
}

/// A failed read of a mapped file ends the process with a message of the system.
pub(crate) fn explain_bus_errors() {}

/// The console belongs to all its programs.
pub(crate) fn owns_terminal() -> bool {
    true
}

/// The library writes Unicode to consoles, and files get UTF-8.
pub(crate) fn locale_is_utf8() -> bool {
    true
}

/// Whether the process was started without a standard output.
pub(crate) fn stdout_is_closed() -> bool {
    io::stdout().as_raw_handle().is_null()
}

/// Standard output without the buffer of the library, which looks for line ends in everything.
pub(crate) fn raw_stdout() -> io::Result<File> {
    let copy = io::stdout().as_handle().try_clone_to_owned()?;
    Ok(File::from(copy))
}

/// The time in the time zone of the user; `None` if the system cannot convert it.
pub(crate) fn local_time(seconds: i64) -> Option<LocalTime> {
    let [year, month, day, hour, minute, second] =
        redwarfs_windows::time::local(seconds)?.map(u32::from);
    let year = i64::from(year);
    let as_utc = unix_from_utc(year, month, day, hour, minute, second)?;
    Some(LocalTime {
        year,
        month,
        day,
        hour,
        minute,
        second,
        offset: i32::try_from(as_utc - seconds).ok()?,
    })
}

/// Users have no numbers.
pub(crate) fn user_id(_name: &str) -> Option<u32> {
    None
}

/// Groups have no numbers.
pub(crate) fn group_id(_name: &str) -> Option<u32> {
    None
}

/// The usual umask of other systems.
pub(crate) fn umask() -> u32 {
    0o022
}

/// Programs see no block devices as files.
pub(crate) fn is_block_device(_metadata: &Metadata) -> bool {
    false
}

/// Whether the attributes allow execution, which only the name of a file decides here.
pub(crate) fn is_executable(_metadata: &Metadata) -> bool {
    true
}

/// Time of the last change: seconds since 1970, and nanoseconds.
pub(crate) fn modified(metadata: &Metadata) -> (i64, u32) {
    let after = |time: Duration| {
        (
            i64::try_from(time.as_secs()).unwrap_or(i64::MAX),
            time.subsec_nanos(),
        )
    };
    match metadata
        .modified()
        .unwrap_or(UNIX_EPOCH)
        .duration_since(UNIX_EPOCH)
    {
        Ok(time) => after(time),
        Err(before) => match after(before.duration()) {
            (seconds, 0) => (-seconds, 0),
            (seconds, nanoseconds) => (-seconds - 1, 1_000_000_000 - nanoseconds),
        },
    }
}

/// Opens a file to compare it with others, without any access to its contents.
pub(crate) fn open_to_compare(path: &Path) -> io::Result<File> {
    file::open_following(path, file::Access::Examine)
}

/// The absolute path without links, in the form that users write.
pub(crate) fn canonical(path: &Path) -> io::Result<PathBuf> {
    let path = std::fs::canonicalize(path)?;
    let Some(text) = path.to_str() else {
        return Ok(path);
    };
    Ok(match text.strip_prefix(r"\\?\") {
        Some(rest) => match rest.strip_prefix(r"UNC\") {
            Some(share) => format!(r"\\{share}").into(),
            None if rest.as_bytes().get(1) == Some(&b':') => rest.into(),
            None => path,
        },
        None => path,
    })
}

/// No part of a program runs in another process: archives need no library here.
pub(crate) fn own_program() -> Option<PathBuf> {
    None
}
