//! The mount point that the user leaves to the program.

use std::path::{Path, PathBuf};

use redwarfs_io::place::is_remote;

use crate::common::error::{Result, ToolError};

/// The image's path without its extension.
pub(super) fn beside(image: &Path) -> Result<PathBuf> {
    if is_remote(image) {
        return Err(ToolError::new("cannot select mountpoint directory")
            .path(image)
            .cause("the image is on a server")
            .hint("name the mount point"));
    }
    // The path must stay good after a change of the working directory. Symbolic links are not
    // resolved: the mount appears next to the given path.
    let image = std::path::absolute(image)
        .map_err(|error| ToolError::new("cannot open image").path(image).io(&error))?;
    if image.extension().is_none() {
        return Err(ToolError::new(
            "cannot select mountpoint directory for file with no extension",
        ));
    }
    Ok(image.with_extension(""))
}
