//! A regular file of an image, with a position.

use std::fmt;
use std::io::{self, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use redwarfs_format::InodeNo;
use redwarfs_format::metadata::Stat;

use crate::error::{Error, Result, into_io};

/// An open regular file of an [`Image`](crate::Image), as [`std::fs::File`] is one of the system.
///
/// It keeps the image open. Each clone has its own position, so several threads can read one file.
/// Holes read as zeros.
#[derive(Clone)]
pub struct File {
    image: redwarfs_reader::Image,
    inode: InodeNo,
    path: PathBuf,
    len: u64,
    position: u64,
}

impl File {
    pub(crate) fn new(
        image: redwarfs_reader::Image,
        inode: InodeNo,
        path: PathBuf,
        len: u64,
    ) -> Self {
        Self {
            image,
            inode,
            path,
            len,
            position: 0,
        }
    }

    /// The path under which the file was opened.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Length in bytes.
    #[must_use]
    pub fn len(&self) -> u64 {
        self.len
    }

    /// Whether the file has no bytes.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Attributes of the file.
    ///
    /// # Errors
    /// [`Error::Read`] if its metadata is damaged.
    pub fn metadata(&self) -> Result<Stat> {
        self.image.stat(self.inode).map_err(Error::read(&self.path))
    }

    /// Reads at `offset` without a change of the position. Returns the number of bytes, which is less
    /// than the length of `buf` only at the end of the file.
    ///
    /// # Errors
    /// [`Error::Read`] if a block that is needed cannot be read or is damaged.
    pub fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<usize> {
        self.image
            .read_at(self.inode, offset, buf)
            .map_err(Error::read(&self.path))
    }
}

impl Read for File {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        let count = self
            .image
            .read_at(self.inode, self.position, buf)
            .map_err(into_io)?;
        self.position = self.position.saturating_add(count as u64);
        Ok(count)
    }
}

impl Seek for File {
    fn seek(&mut self, to: SeekFrom) -> io::Result<u64> {
        let position = match to {
            SeekFrom::Start(offset) => Some(offset),
            SeekFrom::End(offset) => self.len.checked_add_signed(offset),
            SeekFrom::Current(offset) => self.position.checked_add_signed(offset),
        };
        self.position = position.ok_or_else(|| {
            io::Error::new(
                io::ErrorKind::InvalidInput,
                "seek to a position before the start or beyond 2^64",
            )
        })?;
        Ok(self.position)
    }
}

impl fmt::Debug for File {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("File")
            .field("path", &self.path)
            .field("len", &self.len)
            .field("position", &self.position)
            .finish_non_exhaustive()
    }
}
