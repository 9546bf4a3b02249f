//! An open image.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use redwarfs_format::metadata::{FileType, Stat};
use redwarfs_io::Source;
use redwarfs_io::place::shown_name;
use redwarfs_reader::OpenOptions;

use crate::entry::{DirEntry, ReadDir, Walk};
use crate::error::{DIRECTORY, Error, Result};
use crate::file::File;
use crate::resolve::{LastLink, resolve};
use crate::source::open_source;

/// An open image. Clones share the image and its cache of decompressed blocks.
///
/// ```
/// use redwarfs::{Builder, FileType, Image};
///
/// # let work = tempfile::tempdir()?;
/// # let (dir, path) = (work.path().join("tree"), work.path().join("tree.dwarfs"));
/// # std::fs::create_dir_all(dir.join("bin"))?;
/// # std::fs::write(dir.join("bin/tool-1.2"), "#!/bin/sh\n")?;
/// # std::os::unix::fs::symlink("tool-1.2", dir.join("bin/tool"))?;
/// # Builder::new(&dir).level(1).write_to(&path)?;
/// let image = Image::open(&path)?;
///
/// // Links are followed inside the image, except by `symlink_metadata` and `read_link`.
/// assert_eq!(image.metadata("bin/tool")?.size, 10);
/// assert_eq!(image.symlink_metadata("bin/tool")?.file_type(), Some(FileType::Symlink));
/// assert_eq!(image.read_link("bin/tool")?.to_str(), Some("tool-1.2"));
///
/// let paths: Vec<_> = image.walk().map(|entry| Ok(entry?.path().to_owned())).collect::<redwarfs::Result<_>>()?;
/// assert_eq!(paths.len(), 4); // the root, bin, bin/tool, bin/tool-1.2
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug, Clone)]
pub struct Image(redwarfs_reader::Image);

impl Image {
    /// Opens an image file. Other bytes may precede the image in its file, such as a program that
    /// mounts it.
    ///
    /// With the cargo feature `remote`, a URL of a server is a path, too: `https://`, `http://`, `s3://`, `gs://` and
    /// `az://`. A URL `file://` always is.
    ///
    /// # Errors
    /// [`Error::Open`] if the file cannot be read, holds no image, or the image is damaged where
    /// opening needs it.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        Self::open_with(path, &OpenOptions::default())
    }

    /// Opens an image file with options, such as the size of the block cache, or the snapshot of the file that is wanted.
    ///
    /// ```
    /// use redwarfs::{Image, OpenOptions, SnapshotChoice};
    ///
    /// # let path = "../../tests/fixtures/snapshots/nights.dwarfs";
    /// let mut options = OpenOptions::default();
    /// options.snapshot = Some(SnapshotChoice::from("night-5"));
    /// let image = Image::open_with(path, &options)?;
    /// assert_eq!(image.metadata("docs/log")?.size, 3_500);
    /// # Ok::<(), redwarfs::Error>(())
    /// ```
    ///
    /// # Errors
    /// As [`Image::open`].
    pub fn open_with(path: impl AsRef<Path>, options: &OpenOptions) -> Result<Self> {
        let path = path.as_ref();
        let source = open_source(path, options.disk_cache.as_ref(), None)?;
        let image = redwarfs_reader::Image::from_source(source, options);
        image.map(Self).map_err(|source| Error::Open {
            path: shown_name(path).into_owned(),
            source,
        })
    }

    /// Opens an image that a [`Source`] holds: memory, a part of a file, a network.
    ///
    /// ```
    /// # let work = tempfile::tempdir()?;
    /// # std::fs::write(work.path().join("note"), "x")?;
    /// let mut bytes = Vec::new();
    /// redwarfs::Builder::new(work.path()).level(1).write(&mut bytes)?;
    /// let source = redwarfs::io::MemorySource::new(bytes);
    /// let image = redwarfs::Image::from_source(std::sync::Arc::new(source), &Default::default())?;
    /// assert_eq!(image.metadata("note")?.size, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Image::open`], with an empty path.
    pub fn from_source(source: Arc<dyn Source>, options: &OpenOptions) -> Result<Self> {
        let image = redwarfs_reader::Image::from_source(source, options);
        image.map(Self).map_err(|source| Error::Open {
            path: PathBuf::new(),
            source,
        })
    }

    /// Opens a regular file of the image.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::WrongType`], [`Error::TooManyLinks`], or [`Error::Read`] if
    /// metadata on the way is damaged.
    pub fn file(&self, path: impl AsRef<Path>) -> Result<File> {
        self.entry(path)?.open()
    }

    /// Lists a directory of the image in the order of its names, without `.` and `..`.
    ///
    /// # Errors
    /// As [`Image::file`].
    pub fn read_dir(&self, path: impl AsRef<Path>) -> Result<ReadDir<'_>> {
        let dir = self.entry(path)?;
        dir.expect(FileType::Directory, DIRECTORY)?;
        let entries = self.0.read_dir(dir.inode());
        Ok(ReadDir {
            image: &self.0,
            entries: entries.map_err(Error::read(dir.path()))?,
            dir: dir.path().to_owned(),
        })
    }

    /// All entries of the image, the root first: depth first, each directory before its contents and
    /// sorted by name. Links are not followed.
    #[must_use]
    pub fn walk(&self) -> Walk<'_> {
        Walk {
            image: &self.0,
            entries: self.0.walk(),
        }
    }

    /// Attributes of the entry at a path, or of the target if it is a symbolic link.
    ///
    /// # Errors
    /// [`Error::NotFound`], [`Error::TooManyLinks`], or [`Error::Read`] if metadata on the way is
    /// damaged.
    pub fn metadata(&self, path: impl AsRef<Path>) -> Result<Stat> {
        self.entry(path)?.metadata()
    }

    /// Attributes of the entry at a path; of the link itself if it is a symbolic link.
    ///
    /// # Errors
    /// As [`Image::metadata`].
    pub fn symlink_metadata(&self, path: impl AsRef<Path>) -> Result<Stat> {
        self.symlink_entry(path)?.metadata()
    }

    /// The stored target of a symbolic link.
    ///
    /// # Errors
    /// As [`Image::file`].
    pub fn read_link(&self, path: impl AsRef<Path>) -> Result<PathBuf> {
        self.symlink_entry(path)?.read_link()
    }

    /// What the image has proved, if [`OpenOptions::verification`](OpenOptions) asked for more than checksums: the key that
    /// has signed it, and the time of its digests. If that is older than it should be, somebody has put an older image in its
    /// place.
    #[must_use]
    pub fn verified(&self) -> Option<&redwarfs_reader::Verified> {
        self.0.verified()
    }

    /// The reader below: inodes, blocks, cache, checks of all sections.
    #[must_use]
    pub fn reader(&self) -> &redwarfs_reader::Image {
        &self.0
    }

    /// The entry at a path, or the target if it is a symbolic link. The entry has the given path.
    ///
    /// ```
    /// # let work = tempfile::tempdir()?;
    /// # std::fs::write(work.path().join("note"), "x")?;
    /// # let mut bytes = Vec::new();
    /// # redwarfs::Builder::new(work.path()).level(1).write(&mut bytes)?;
    /// # let source = std::sync::Arc::new(redwarfs::io::MemorySource::new(bytes));
    /// # let image = redwarfs::Image::from_source(source, &Default::default())?;
    /// let inode = image.entry("note")?.inode();
    /// assert_eq!(image.reader().stat(inode)?.size, 1);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    ///
    /// # Errors
    /// As [`Image::metadata`].
    pub fn entry(&self, path: impl AsRef<Path>) -> Result<DirEntry> {
        self.find(path.as_ref(), LastLink::Follow)
    }

    /// The entry at a path; the link itself if it is a symbolic link.
    ///
    /// # Errors
    /// As [`Image::metadata`].
    pub fn symlink_entry(&self, path: impl AsRef<Path>) -> Result<DirEntry> {
        self.find(path.as_ref(), LastLink::Keep)
    }

    fn find(&self, path: &Path, last: LastLink) -> Result<DirEntry> {
        let inode = resolve(&self.0, path, last)?;
        let path = path.strip_prefix("/").unwrap_or(path);
        Ok(DirEntry::new(self.0.clone(), inode, path.to_owned()))
    }
}

impl From<redwarfs_reader::Image> for Image {
    fn from(image: redwarfs_reader::Image) -> Self {
        Self(image)
    }
}
