//! Directories beside the file that its program uses in place of the user's.

use std::fs::DirBuilder;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};

use crate::error::{EXIT_FAILURE, Failure, Result};
use crate::program::with_ending;

/// Which of the user's directories.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Portable {
    Home,
    Config,
    Share,
    Cache,
}

impl Portable {
    const ALL: [Self; 4] = [Self::Home, Self::Config, Self::Share, Self::Cache];

    /// Ending of the directory, and of the option.
    fn ending(self) -> &'static str {
        match self {
            Self::Home => "home",
            Self::Config => "config",
            Self::Share => "share",
            Self::Cache => "cache",
        }
    }

    /// The variable that tells the program where the directory is.
    fn variable(self) -> &'static str {
        match self {
            Self::Home => "HOME",
            Self::Config => "XDG_CONFIG_HOME",
            Self::Share => "XDG_DATA_HOME",
            Self::Cache => "XDG_CACHE_HOME",
        }
    }

    /// What an option without its prefix stands for.
    pub(crate) fn of_option(name: &[u8]) -> Option<Self> {
        let ending = name.strip_prefix(b"portable-")?;
        Self::ALL
            .into_iter()
            .find(|portable| portable.ending().as_bytes() == ending)
    }

    fn directory(self, file: &Path) -> PathBuf {
        with_ending(file, &format!(".{}", self.ending()))
    }

    /// Creates the directory for a file, for its user alone.
    pub(crate) fn create(self, file: &Path) -> Result<PathBuf> {
        let directory = self.directory(file);
        match DirBuilder::new().mode(0o700).create(&directory) {
            Err(error) if error.kind() != io::ErrorKind::AlreadyExists => {
                Err(Failure::io("cannot create directory", &directory, &error).code(EXIT_FAILURE))
            }
            _ => Ok(directory),
        }
    }
}

/// The variables for the directories that a file has.
pub(crate) fn variables(file: &Path) -> impl Iterator<Item = (&'static str, PathBuf)> {
    Portable::ALL
        .into_iter()
        .map(|portable| (portable.variable(), portable.directory(file)))
        .filter(|(_, directory)| directory.is_dir())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directories_beside_the_file_become_variables() {
        let place = tempfile::tempdir().unwrap();
        let file = place.path().join("x.AppImage");
        assert_eq!(variables(&file).count(), 0);
        for portable in [Portable::Home, Portable::Cache] {
            let made = portable.create(&file).unwrap();
            assert_eq!(portable.create(&file).unwrap(), made);
        }
        let found: Vec<_> = variables(&file).collect();
        assert_eq!(
            found,
            [
                ("HOME", place.path().join("x.AppImage.home")),
                ("XDG_CACHE_HOME", place.path().join("x.AppImage.cache")),
            ]
        );
        assert_eq!(Portable::of_option(b"portable-x"), None);
    }
}
