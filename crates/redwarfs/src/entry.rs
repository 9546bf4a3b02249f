//! What directories hold.

use std::ffi::{OsStr, OsString};
use std::fmt;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

use redwarfs_format::InodeNo;
use redwarfs_format::metadata::{FileType, Stat};

use crate::error::{Error, REGULAR_FILE, Result, SYMBOLIC_LINK};
use crate::file::File;

/// One entry of an image, found by [`Image::read_dir`](crate::Image::read_dir) or
/// [`Image::walk`](crate::Image::walk). Its methods do not follow symbolic links.
#[derive(Clone)]
pub struct DirEntry {
    image: redwarfs_reader::Image,
    inode: InodeNo,
    path: PathBuf,
}

impl DirEntry {
    pub(crate) fn new(image: redwarfs_reader::Image, inode: InodeNo, path: PathBuf) -> Self {
        Self { image, inode, path }
    }

    /// Path from the root of the image, without a leading slash; empty for the root.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The last name of the path; empty for the root.
    #[must_use]
    pub fn file_name(&self) -> &OsStr {
        self.path.file_name().unwrap_or_default()
    }

    /// Number of the inode. Names of one file with several hard links have the same.
    #[must_use]
    pub fn inode(&self) -> InodeNo {
        self.inode
    }

    /// Type of the entry.
    ///
    /// # Errors
    /// [`Error::Read`] if its metadata is damaged.
    pub fn file_type(&self) -> Result<FileType> {
        self.image
            .metadata()
            .file_type(self.inode)
            .map_err(Error::read(&self.path))
    }

    /// Attributes of the entry.
    ///
    /// # Errors
    /// [`Error::Read`] if its metadata is damaged.
    pub fn metadata(&self) -> Result<Stat> {
        self.image.stat(self.inode).map_err(Error::read(&self.path))
    }

    /// Opens a regular file.
    ///
    /// # Errors
    /// [`Error::WrongType`] for another type, [`Error::Read`] if its metadata is damaged.
    pub fn open(&self) -> Result<File> {
        self.expect(FileType::Regular, REGULAR_FILE)?;
        let len = self.metadata()?.size;
        Ok(File::new(
            self.image.clone(),
            self.inode,
            self.path.clone(),
            len,
        ))
    }

    /// The stored target of a symbolic link.
    ///
    /// # Errors
    /// [`Error::WrongType`] for another type, [`Error::Read`] if its metadata is damaged.
    pub fn read_link(&self) -> Result<PathBuf> {
        self.expect(FileType::Symlink, SYMBOLIC_LINK)?;
        let target = self
            .image
            .read_link(self.inode)
            .map_err(Error::read(&self.path))?;
        Ok(OsString::from_vec(target).into())
    }

    pub(crate) fn expect(&self, wanted: FileType, words: &'static str) -> Result<()> {
        let found = self.file_type()?;
        if found == wanted {
            return Ok(());
        }
        Err(Error::WrongType {
            path: self.path.clone(),
            wanted: words,
            found,
        })
    }
}

impl fmt::Debug for DirEntry {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("DirEntry").field(&self.path).finish()
    }
}

/// The entries of a directory in the order of their names, from
/// [`Image::read_dir`](crate::Image::read_dir).
#[derive(Debug)]
pub struct ReadDir<'a> {
    pub(crate) image: &'a redwarfs_reader::Image,
    pub(crate) entries: redwarfs_reader::ReadDir<'a>,
    pub(crate) dir: PathBuf,
}

impl Iterator for ReadDir<'_> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.entries.next()?.map_err(Error::read(&self.dir));
        Some(entry.map(|entry| {
            let path = self.dir.join(OsStr::from_bytes(&entry.name));
            DirEntry::new(self.image.clone(), entry.inode, path)
        }))
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        self.entries.size_hint()
    }
}

/// All entries of an image, from [`Image::walk`](crate::Image::walk).
///
/// The walk ends for every image: a directory that is reached by a second path, as only happens in
/// damaged images, gives an error. After an error, the walk continues with the next entry.
#[derive(Debug)]
pub struct Walk<'a> {
    pub(crate) image: &'a redwarfs_reader::Image,
    pub(crate) entries: redwarfs_reader::Walk<'a>,
}

impl Iterator for Walk<'_> {
    type Item = Result<DirEntry>;

    fn next(&mut self) -> Option<Self::Item> {
        let entry = self.entries.next()?.map_err(Error::read(Path::new("")));
        Some(entry.map(|entry| {
            let path = OsString::from_vec(entry.path).into();
            DirEntry::new(self.image.clone(), entry.inode, path)
        }))
    }
}
