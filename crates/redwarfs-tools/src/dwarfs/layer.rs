//! The directory with the changes of a writable mount.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::PathBuf;

use redwarfs_fuse::guard::Guard;
use redwarfs_fuse::{Layer, remove_tree};

use super::exit::EXIT_MOUNT;
use super::settings::LayerChoice;
use crate::common::Logger;
use crate::common::error::{Result, ToolError};

/// How many names are tried.
const NAMES: u32 = 1000;

/// A directory that is removed with all that is in it.
#[derive(Debug)]
pub(super) struct Temporary(PathBuf);

impl Temporary {
    /// Makes a directory that only this user can enter.
    fn new() -> io::Result<Self> {
        let parent = std::env::temp_dir();
        let process = std::process::id();
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for number in 0..NAMES {
            let path = parent.join(format!("dwarfs-rw-{process}-{number}"));
            match fs::DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path.canonicalize()?)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    /// Removes it now.
    pub(super) fn remove(self, logger: &Logger) {
        if let Err(error) = remove_tree(&self.0) {
            let what = ToolError::new("cannot remove temporary changes");
            logger.warn(what.path(&self.0).io(&error));
        }
        std::mem::forget(self);
    }
}

impl Drop for Temporary {
    /// After an error, which is the one to tell.
    fn drop(&mut self) {
        let _ = remove_tree(&self.0);
    }
}

/// The layer of a mount. If it is temporary, the guard removes it when this process is killed.
pub(super) fn prepare(
    choice: &LayerChoice,
    guard: Option<&mut Guard>,
) -> Result<(Layer, Option<Temporary>)> {
    match choice {
        LayerChoice::Directory(path) => Ok((Layer::Directory(path.clone()), None)),
        LayerChoice::Temporary => {
            let made = Temporary::new().map_err(|error| {
                ToolError::new("cannot make a directory for temporary changes")
                    .path(std::env::temp_dir())
                    .io(&error)
                    .code(EXIT_MOUNT)
            })?;
            if let Some(guard) = guard {
                // A guard that has ended is reported when it is to watch the mount.
                let _ = guard.remove(&made.0);
            }
            Ok((Layer::Temporary(made.0.clone()), Some(made)))
        }
    }
}
