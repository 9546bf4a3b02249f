//! `--appimage-check`.

use std::ffi::OsStr;

use redwarfs_reader::check::CheckOptions;

use crate::environment::Settings;
use crate::error::{EXIT_FAILURE, Failure, Result};
use crate::keeper::open_image;
use crate::program::Program;

/// Compares every section of the image with its checksum. The program in front has none.
pub(crate) fn run(program: &Program, settings: &Settings) -> Result<()> {
    let path = program.path.display();
    let image = open_image(program, program.image_offset()?, settings)
        .map_err(|failure| failure.code(EXIT_FAILURE))?;
    let mut options = CheckOptions::default();
    options.threads = settings.cache.workers.max(options.threads);
    let report = image.check_sections(&options).map_err(|error| {
        Failure::new(format_args!("cannot check: {path}: {error}")).code(EXIT_FAILURE)
    })?;
    match report.findings.first() {
        None => crate::print(OsStr::new("the image is intact")),
        Some(finding) => {
            let advice = program.advice();
            let failure = Failure::new(format_args!("damaged: {path}: {finding}{advice}"));
            Err(failure.code(EXIT_FAILURE))
        }
    }
}
