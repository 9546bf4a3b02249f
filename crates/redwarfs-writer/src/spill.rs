//! What a build says about tables that go to a temporary file under a low memory limit.

use std::io;
use std::path::Path;

use crate::progress::{Level, Progress};

/// Logs what an attempt to move `what` to a temporary file in `directory` came to: the size of the file, none if files there
/// are in memory themselves, or the error for which everything stays in memory.
pub fn log_spilled(
    what: &str,
    directory: &Path,
    moved: &io::Result<Option<u64>>,
    progress: &dyn Progress,
) {
    let directory = directory.display();
    let (level, text) = match moved {
        Ok(Some(size)) => (
            Level::Verbose,
            format!("{what} wait in a temporary file of {size} bytes"),
        ),
        Ok(None) => (
            Level::Verbose,
            format!("{what} stay in memory, because {directory} is in memory, too"),
        ),
        Err(error) => (
            Level::Warn,
            format!("{what} stay in memory: cannot write a temporary file in {directory}: {error}"),
        ),
    };
    progress.log(level, &text);
}
