//! The file of an image that is continued in place.

use std::path::Path;
use std::sync::Arc;

use redwarfs_io::{Append, AppendWriter, LockedFile, Medium, Source};

use crate::base::{Base, BaseOptions};
use crate::error::Result;

/// An image that this process alone continues.
#[derive(Debug)]
pub struct InPlace {
    file: Arc<dyn Medium>,
    base: Base,
}

impl InPlace {
    /// Locks a file, and opens its image.
    ///
    /// # Errors
    /// As [`Base::open`], and [`std::io::ErrorKind::ResourceBusy`] if another program has the lock.
    pub fn open(path: impl AsRef<Path>, options: BaseOptions) -> Result<Self> {
        Self::on(Arc::new(LockedFile::open(path)?), options)
    }

    /// As [`open`](Self::open), for a file that is locked.
    ///
    /// # Errors
    /// As [`Base::open`].
    pub fn on(file: Arc<dyn Medium>, options: BaseOptions) -> Result<Self> {
        let source: Arc<dyn Source> = Arc::new(Arc::clone(&file));
        Ok(Self {
            base: Base::open(source, options)?,
            file,
        })
    }

    /// The image.
    #[must_use]
    pub fn base(&self) -> &Base {
        &self.base
    }

    /// The output of the build. What it writes counts from the commit on; without one, the file gets its old
    /// end back.
    ///
    /// # Errors
    /// Those of [`Append::begin`].
    pub fn writer(&self) -> Result<AppendWriter> {
        let (end, pointer) = (self.base.end_in_file(), self.base.tail_pointer());
        let append = Append::begin(Arc::clone(&self.file), end, pointer)?;
        Ok(AppendWriter::new(append))
    }
}
