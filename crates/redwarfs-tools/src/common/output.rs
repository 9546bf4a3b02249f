//! Files that tools write.

use std::io;
use std::path::Path;

use redwarfs_io::{AtomicFile, Notice, Overwrite};

use super::error::display_path;
use super::os::stdout_is_closed;
use super::{Logger, Result, ToolError};

/// Why nothing can be written to standard output.
pub const STDOUT_IS_CLOSED: &str = "it is closed";

/// For tools whose result goes to standard output.
///
/// # Errors
/// If the process was started without one.
pub fn need_stdout() -> Result<()> {
    if stdout_is_closed() {
        return Err(ToolError::new("cannot write to standard output").cause(STDOUT_IS_CLOSED));
    }
    Ok(())
}

/// Starts the output file `path`, and warns if the output is unusual.
///
/// # Errors
/// Those of [`AtomicFile::create`]; a closed standard output.
pub fn create_output(path: &Path, overwrite: Overwrite, logger: &Logger) -> io::Result<AtomicFile> {
    if path == Path::new("/dev/stdout") && stdout_is_closed() {
        return Err(io::Error::other(STDOUT_IS_CLOSED));
    }
    let file = AtomicFile::create(path, overwrite)?;
    if let Some(notice) = file.notice() {
        let text = format!("output {} {notice}", display_path(path));
        match notice {
            Notice::Stream(_) => logger.info(text),
            _ => logger.warn(text),
        }
    }
    Ok(file)
}
