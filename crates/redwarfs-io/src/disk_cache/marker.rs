//! The file that says what a directory is for. So nothing is stored in a directory that its user means for something else,
//! and nothing is removed from it.

use std::fs;
use std::io::{self, Write as _};
use std::path::Path;

/// The name of the file.
pub(super) const NAME: &str = ".redwarfs-store";

/// No text of a marker is longer.
const MOST: u64 = 64;

/// What a directory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Marker {
    Cache,
    /// And whether the directory was made for it.
    Checkpoint {
        made: bool,
    },
}

/// What a directory says about itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Found {
    /// It has no marker, or one whose writer was killed before it wrote.
    Nothing,
    Marker(Marker),
    /// Something else has the name.
    Foreign,
}

impl Marker {
    pub(super) fn text(self) -> &'static [u8] {
        match self {
            Self::Cache => b"RedwarFS cache\n",
            Self::Checkpoint { made: false } => b"RedwarFS checkpoint\n",
            Self::Checkpoint { made: true } => b"RedwarFS checkpoint with its directory\n",
        }
    }

    /// The marker of a directory.
    pub(super) fn of(directory: &Path) -> io::Result<Found> {
        let path = directory.join(NAME);
        let text = match fs::metadata(&path) {
            Ok(found) if !found.is_file() || found.len() > MOST => return Ok(Found::Foreign),
            Ok(_) => fs::read(&path)?,
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Found::Nothing),
            Err(e) => return Err(e),
        };
        if text.is_empty() {
            return Ok(Found::Nothing);
        }
        let all = [
            Self::Cache,
            Self::Checkpoint { made: false },
            Self::Checkpoint { made: true },
        ];
        let found = all.into_iter().find(|marker| marker.text() == text);
        Ok(found.map_or(Found::Foreign, Found::Marker))
    }
}

/// Adds the marker of a directory that has none.
pub(super) fn add(directory: &Path, marker: Marker) -> io::Result<()> {
    let mut file = super::store::new_file().open(directory.join(NAME))?;
    file.write_all(marker.text())
}

/// Whether there is something in a directory, other than its marker.
pub(super) fn is_in_use(directory: &Path) -> io::Result<bool> {
    for entry in fs::read_dir(directory)? {
        if entry?.file_name() != NAME {
            return Ok(true);
        }
    }
    Ok(false)
}
