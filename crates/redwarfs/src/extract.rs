//! An image becomes a directory.

use std::fs;
use std::path::Path;

use redwarfs_extractor::{ExtractOptions, ExtractSummary, Progress, extract_to_directory};

use crate::error::{Error, Result};
use crate::image::Image;
use crate::messages::Messages;

/// The result of [`extract`].
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Extracted {
    /// Numbers of entries and bytes.
    pub summary: ExtractSummary,
    /// Messages about differences from the image, such as owners that only root can set; at most 1,000.
    pub warnings: Vec<String>,
}

/// Extracts all of an image into a directory, which is created if it does not exist.
///
/// Modes, times, hard links, symbolic links, holes and, for root, owners and devices are restored.
/// Entries of the target that are in the way are replaced; nothing outside the target is touched. The
/// first file that cannot be read or written ends the extraction.
///
/// # Errors
/// [`Error::Output`] if the directory cannot be created, [`Error::Extract`] for everything else.
pub fn extract(image: &Image, dir: impl AsRef<Path>) -> Result<Extracted> {
    let warnings = Warnings::default();
    let summary = extract_with(image, dir, &ExtractOptions::default(), &warnings)?;
    Ok(Extracted {
        summary,
        warnings: warnings.0.take(),
    })
}

/// As [`extract`], with a selection of entries, other options, and a listener.
///
/// # Errors
/// As [`extract`].
pub fn extract_with(
    image: &Image,
    dir: impl AsRef<Path>,
    options: &ExtractOptions,
    progress: &dyn Progress,
) -> Result<ExtractSummary> {
    let dir = dir.as_ref();
    fs::create_dir_all(dir).map_err(|e| {
        let text = format!("{}: {e}", dir.display());
        Error::Output(std::io::Error::new(e.kind(), text))
    })?;
    Ok(extract_to_directory(
        image.reader(),
        dir,
        options,
        progress,
    )?)
}

#[derive(Default)]
struct Warnings(Messages);

impl Progress for Warnings {
    fn warn(&self, message: &str) {
        self.0.push(message);
    }
}
