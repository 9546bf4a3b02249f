//! Files that tools write.

use std::io;
use std::path::Path;

use redwarfs_io::place::FileLocation;
use redwarfs_io::{AtomicFile, LockedFile, Notice, Origin, Overwrite};

use super::error::{cause_at, display_path, io_cause};
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
    create_derived(path, overwrite, &[], logger)
}

/// As [`create_output`], for a file that is made from other files: a new one is readable by nobody who may not read all
/// of these.
///
/// # Errors
/// Those of [`create_output`]; the attributes of a file cannot be read. Every error names its path.
pub fn create_derived(
    path: &Path,
    overwrite: Overwrite,
    from: &[&Path],
    logger: &Logger,
) -> io::Result<AtomicFile> {
    if path == Path::new("/dev/stdout") && stdout_is_closed() {
        return Err(io::Error::other(STDOUT_IS_CLOSED));
    }
    let mut origin: Option<Origin> = None;
    for file in from {
        // Who may read an image on a server is not known here.
        let FileLocation::File(file) = FileLocation::of(file)? else {
            continue;
        };
        let found = Origin::of(file)?;
        origin = Some(match origin {
            Some(others) => others.and(&found),
            None => found,
        });
    }
    let file = match &origin {
        Some(origin) => AtomicFile::create_from(path, overwrite, origin)?,
        None => AtomicFile::create(path, overwrite)?,
    };
    if let Some(notice) = file.notice() {
        let text = format!("output {} {notice}", display_path(path));
        match notice {
            Notice::Stream(_) => logger.info(text),
            _ => logger.warn(text),
        }
    }
    Ok(file)
}

/// Starts a new regular file at `path` that is made from `from` and written in any order, for a tool that otherwise
/// fails to do `what`. The first file gets its name by a commit, after the second one was dropped.
///
/// # Errors
/// Those of [`create_derived`]; the path leads to something else than a file.
pub fn create_medium(
    path: &Path,
    from: &Path,
    what: &str,
    logger: &Logger,
) -> Result<(AtomicFile, LockedFile)> {
    let out = create_derived(path, Overwrite::No, &[from], logger)
        .map_err(|e| cannot_create(what, path, &e))?;
    let medium = out.unfinished();
    match medium.map_err(|e| ToolError::new(what).path(path).io(&e))? {
        Some(file) => Ok((out, file)),
        None => Err(ToolError::new(what).path(path).cause("is no regular file")),
    }
}

/// The error of a tool that fails to do `what`, because `path` cannot be written, and no option replaces a file.
pub fn cannot_create(what: &str, path: &Path, error: &io::Error) -> ToolError {
    let message = ToolError::new(what).path(path);
    if error.kind() == io::ErrorKind::AlreadyExists {
        return message
            .cause("file exists")
            .hint("remove it, or choose another name");
    }
    message.cause(cause_at(path, error))
}

/// Gives a file its name.
///
/// # Errors
/// Those of [`AtomicFile::commit`].
pub fn commit(file: AtomicFile, what: &str) -> Result<()> {
    file.commit()
        .map_err(|e| ToolError::new(what).cause(io_cause(&e)))
}
