//! Entries that were selected, but not extracted: reported and counted.

use std::io;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::Progress;
use crate::error::{Error, Result, cause};

/// Decides whether an extraction continues after an error of one entry, and counts the lost names.
pub(crate) struct Losses<'a> {
    go_on: bool,
    progress: &'a dyn Progress,
    names: AtomicU64,
}

impl<'a> Losses<'a> {
    /// `go_on`: whether the extraction continues after an error of one entry.
    pub(crate) fn new(go_on: bool, progress: &'a dyn Progress) -> Self {
        Self {
            go_on,
            progress,
            names: AtomicU64::new(0),
        }
    }

    /// `None` if the result is an error of only one entry. The error is then reported and counted.
    pub(crate) fn settle<T>(&self, result: Result<T>) -> Result<Option<T>> {
        match result {
            Ok(done) => Ok(Some(done)),
            Err(Error::Target { what, path, source }) if self.go_on && is_of_entry(&source) => {
                self.lose(&path, &format!("{what}: {}", cause(&source)));
                Ok(None)
            }
            Err(e) => Err(e),
        }
    }

    /// As [`Self::settle`] for an entry that was extracted, but differs from the image.
    pub(crate) fn settle_attributes(&self, result: Result<()>) -> Result<()> {
        match result {
            Err(Error::Target { what, path, source }) if self.go_on && is_of_entry(&source) => {
                let text = format!("{what}: {path}: {}", cause(&source));
                self.progress.incomplete(&text);
                self.count(1);
                Ok(())
            }
            other => other,
        }
    }

    /// Reports and counts a name.
    pub(crate) fn lose(&self, path: &str, reason: &str) {
        self.progress.left_out(path, reason);
        self.count(1);
    }

    /// Counts names below a reported directory.
    pub(crate) fn count(&self, names: u64) {
        self.names.fetch_add(names, Ordering::Relaxed);
    }

    /// The number of names so far.
    pub(crate) fn names(&self) -> u64 {
        self.names.load(Ordering::Relaxed)
    }
}

/// Whether an error of the target concerns only one entry. If there is no room, no target or no
/// descriptor, all other entries would fail, too.
#[must_use]
pub fn is_of_entry(e: &io::Error) -> bool {
    e.kind() != io::ErrorKind::WriteZero && !crate::os::is_of_target(e)
}

#[cfg(all(test, unix))]
mod tests {
    use rustix::io::Errno;

    use super::*;

    fn failed(e: Errno) -> Result<()> {
        Err(Error::Target {
            what: "cannot create file",
            path: "a".to_owned(),
            source: e.into(),
        })
    }

    #[test]
    fn errors_of_entries_are_counted_and_others_end_the_extraction() {
        let losses = Losses::new(true, &crate::Silent);
        for e in [
            Errno::PERM,
            Errno::INVAL,
            Errno::FBIG,
            Errno::ILSEQ,
            Errno::MLINK,
        ] {
            assert!(matches!(losses.settle(failed(e)), Ok(None)), "{e}");
        }
        assert_eq!(losses.names(), 5);
        for e in [Errno::NOSPC, Errno::DQUOT, Errno::ROFS, Errno::MFILE] {
            assert!(losses.settle(failed(e)).is_err(), "{e}");
        }
        let image = Err::<(), _>(redwarfs_format::Error::corrupt("x").into());
        assert!(losses.settle(image).is_err());
        assert!(matches!(losses.settle(Ok(7)), Ok(Some(7))));
        assert_eq!(losses.names(), 5);
        let strict = Losses::new(false, &crate::Silent);
        assert!(strict.settle(failed(Errno::PERM)).is_err());
        assert_eq!(strict.names(), 0);
    }
}
