//! `--appimage-extract`.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::io;
use std::path::Path;

use redwarfs_extractor::{ExtractOptions, Progress, Selection, extract_to_directory};

use crate::environment::Settings;
use crate::error::{EXIT_FAILURE, EXIT_NO_MATCH, Failure, Result};
use crate::keeper::open_image;
use crate::pattern::Patterns;
use crate::program::Program;

/// Where the AppImage runtime puts what it extracts, and scripts look for it.
const TARGET: &str = "squashfs-root";

/// Tells on standard error what the target does not take.
struct Warnings;

impl Progress for Warnings {
    fn warn(&self, message: &str) {
        crate::say(message);
    }
}

/// Extracts what matches one of the patterns, or everything, to the working directory.
pub(crate) fn run(program: &Program, settings: &Settings, patterns: Vec<OsString>) -> Result<()> {
    let image = open_image(program, program.image_offset()?, settings)
        .map_err(|failure| failure.code(EXIT_FAILURE))?;
    let named: Vec<_> = patterns.iter().map(|p| p.to_string_lossy()).collect();
    let named = named.join(", ");
    let patterns = Patterns::new(patterns)?;
    let mut options = ExtractOptions::default();
    options.threads = settings.cache.workers.max(options.threads);
    let any = !patterns.is_empty();
    if any {
        options.select = Some(Selection::new(move |path, _| patterns.match_path(path)));
    }
    let target = Path::new(TARGET);
    let made = match fs::create_dir(target) {
        Ok(()) => true,
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => false,
        Err(error) => {
            return Err(Failure::io("cannot create directory", target, &error).code(EXIT_FAILURE));
        }
    };
    let summary = extract_to_directory(&image, target, &options, &Warnings).map_err(|error| {
        Failure::new(format_args!("cannot extract: {TARGET}: {error}")).code(EXIT_FAILURE)
    })?;
    if any && summary.matched + summary.directories == 0 {
        if made {
            // A script must not take it for a result.
            let _ = fs::remove_dir(target);
        }
        return Err(Failure::new(format_args!(
            "nothing in the image matches {named}: {}",
            program.path.display()
        ))
        .code(EXIT_NO_MATCH));
    }
    crate::print(OsStr::new(&format!("extracted to {TARGET}")))
}
