//! The directory to mount on, which may have to be made.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::common::error::{Result, ToolError};

/// Where to mount.
#[derive(Debug)]
pub(super) enum MountPoint {
    /// A directory that was there before.
    Given(PathBuf),
    /// A directory made for the mount; removed at the end.
    Made(PathBuf),
}

impl MountPoint {
    /// The image's path without its extension: an absent or empty directory.
    pub(super) fn automatic(image: &Path) -> Result<Self> {
        // The path must stay good after a change of the working directory.
        let image = image
            .canonicalize()
            .map_err(|error| ToolError::new("cannot open image").path(image).io(&error))?;
        if image.extension().is_none() {
            return Err(ToolError::new(
                "cannot select mountpoint directory for file with no extension",
            ));
        }
        let path = image.with_extension("");
        match fs::create_dir(&path) {
            Ok(()) => Ok(Self::Made(path)),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let empty = fs::read_dir(&path).is_ok_and(|mut list| list.next().is_none());
                if empty {
                    Ok(Self::Given(path))
                } else {
                    Err(ToolError::new(
                        "cannot find a suitable empty mountpoint directory",
                    ))
                }
            }
            Err(error) => Err(ToolError::new("unable to create mountpoint directory")
                .path(&path)
                .io(&error)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Given(path) | Self::Made(path) => path,
        }
    }
}

impl Drop for MountPoint {
    fn drop(&mut self) {
        if let Self::Made(path) = self {
            // Fails harmlessly if something is in it, or still mounted on it.
            let _ = fs::remove_dir(path);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn automatic_directories() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let image = dir.path().join("a.dwarfs");
        fs::write(&image, "").expect("write");
        let made = MountPoint::automatic(&image).expect("absent directory");
        assert!(made.path().is_dir());
        let made_path = made.path().to_owned();
        drop(made);
        assert!(!made_path.exists());

        fs::create_dir(&made_path).expect("mkdir");
        drop(MountPoint::automatic(&image).expect("empty directory"));
        assert!(made_path.exists());
        fs::write(made_path.join("x"), "").expect("write");
        assert!(MountPoint::automatic(&image).is_err());

        let plain = dir.path().join("plain");
        fs::write(&plain, "").expect("write");
        let error = MountPoint::automatic(&plain).expect_err("no extension");
        assert!(error.line("dwarfs").contains("no extension"));
    }
}
