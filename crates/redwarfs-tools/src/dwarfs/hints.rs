//! The file of `-o hints_file`: what a program reads first. A mount writes it, and later ones load what it names.

use std::fs::File;
use std::io::{self, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use redwarfs_format::hints::{Hints, MAX_HINTS_TEXT};
use redwarfs_io::{AtomicFile, Overwrite};
use redwarfs_reader::{Image, Preload, Recording};

use super::settings::Settings;
use crate::common::error::{Result, ToolError, display_path};
use crate::common::{LogLevel, Logger};

/// What a mount does with hints.
#[derive(Debug, Default)]
pub(super) struct HintsOfMount {
    /// What it loads.
    pub(super) preload: Option<Preload>,
    /// What it records, and for which file.
    record: Option<(Recording, PathBuf)>,
}

impl HintsOfMount {
    /// Reads the file, and begins to record unless it is about this generation of the image.
    ///
    /// # Errors
    /// The file cannot be read or written, or is none of hints.
    pub(super) fn begin(settings: &Settings, image: &Image) -> Result<Self> {
        let mut own = Self::default();
        let mut found = None;
        if let Some(path) = &settings.hints_file {
            let failed = |what: &str, error: &io::Error| ToolError::new(what).path(path).io(error);
            // The process may change its directory.
            let path = std::path::absolute(path)
                .map_err(|error| failed("cannot find the file of hints", &error))?;
            found = read(&path)?;
            let generation = image.generation_id();
            let known = |hints: &Hints| generation.is_some() && hints.generation == generation;
            if !found.as_ref().is_some_and(known) {
                // Later, nobody would see the error.
                AtomicFile::create(&path, Overwrite::Yes)
                    .map_err(|error| failed("cannot write hints", &error))?;
                own.record = Some((image.record_reads(settings.hints_time()), path));
            }
        }
        own.preload = settings.hints.then(|| Preload::Hints(found.map(Arc::new)));
        Ok(own)
    }

    /// Whether reads are recorded. Then all of them must come to the driver.
    #[cfg(unix)]
    pub(super) fn records(&self) -> bool {
        self.record.is_some()
    }

    /// Writes what was recorded so far, unless nothing was.
    pub(super) fn write(&self, logger: &Logger) {
        let Some((recording, path)) = &self.record else {
            return;
        };
        if recording.is_empty() {
            return logger.verbose(format_args!(
                "nothing was read, so no hints are written: {}",
                display_path(path)
            ));
        }
        let cannot = || ToolError::new("cannot write hints").path(path);
        let hints = match recording.hints() {
            Ok(hints) => hints,
            Err(error) => return logger.error(cannot().cause(error)),
        };
        match write(path, &hints) {
            Ok(()) => logger.log(
                LogLevel::Verbose,
                format_args!("wrote {} hints", hints.list.len()),
            ),
            Err(error) => logger.error(cannot().io(&error)),
        }
    }
}

fn write(path: &Path, hints: &Hints) -> io::Result<()> {
    let mut file = AtomicFile::create(path, Overwrite::Yes)?;
    file.write_all(&hints.encode())?;
    file.commit()
}

/// The hints in a file that a mount has written; none if it is not there, or empty.
fn read(path: &Path) -> Result<Option<Hints>> {
    let cannot = || ToolError::new("cannot read hints").path(path);
    // Opening a named pipe would wait.
    if std::fs::metadata(path).is_ok_and(|found| !found.is_file()) {
        return Err(cannot().cause("it is no regular file"));
    }
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(cannot().io(&error)),
    };
    let mut text = Vec::new();
    file.take(MAX_HINTS_TEXT as u64 + 1)
        .read_to_end(&mut text)
        .map_err(|error| cannot().io(&error))?;
    if text.is_empty() {
        return Ok(None);
    }
    if !Hints::is_recorded(&text) {
        // It would be replaced.
        return Err(cannot().cause("it is no file of hints"));
    }
    Hints::parse(&text)
        .map(Some)
        .map_err(|error| cannot().cause(error))
}
