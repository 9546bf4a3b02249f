//! Entries and files of an image, as a source gives them to a build.

use std::io;

use redwarfs_format::metadata::{Extent, FileType, Stat};
use redwarfs_format::{Error as FormatError, InodeNo, Result};
use redwarfs_reader::Image;
use redwarfs_writer::{Content, DataExtent, ExtendedAttributes, Meta, Stamp, can_be_stored};

/// Longest value of an extended attribute in bytes: the limit of Linux.
pub(crate) const LONGEST_VALUE: u64 = 64 << 10;

/// Attributes of an entry of an image.
#[derive(Debug)]
pub struct StoredMeta {
    /// The attributes. The device of the identity is what the caller chose, the inode is that of the image and one.
    pub meta: Meta,
    /// Number of the extended attributes that were left out because no image can have them.
    pub unstorable: u64,
}

impl StoredMeta {
    /// Reads the attributes of an entry. `device` tells inodes of different images apart, and `keeps` chooses the
    /// extended attributes by their names.
    ///
    /// # Errors
    /// The metadata is damaged.
    pub fn read(
        image: &Image,
        stat: &Stat,
        device: u64,
        keeps: impl Fn(&[u8]) -> bool,
    ) -> Result<Self> {
        let kind = stat.file_type();
        let kind = kind.ok_or_else(|| FormatError::corrupt("an inode of an unknown type"))?;
        let (extended, unstorable) = match image.metadata().is_legacy() {
            true => Default::default(),
            false => extended(image, stat.ino, keeps)?,
        };
        let meta = Meta {
            kind,
            permissions: stat.mode & 0o7777,
            uid: stat.uid,
            gid: stat.gid,
            rdev: stat.rdev,
            size: stat.size,
            allocated: stat.allocated,
            nlink: u64::from(stat.nlink),
            identity: (device, u64::from(stat.ino.0) + 1),
            atime: stat.atime,
            mtime: stat.mtime,
            ctime: stat.ctime,
            target: match kind {
                FileType::Symlink => Some(image.read_link(stat.ino)?),
                _ => None,
            },
            extended,
        };
        Ok(Self { meta, unstorable })
    }
}

fn extended(
    image: &Image,
    inode: InodeNo,
    keeps: impl Fn(&[u8]) -> bool,
) -> Result<(ExtendedAttributes, u64)> {
    let view = image.metadata();
    let mut extended = ExtendedAttributes::default();
    let mut unstorable = 0;
    if view.options().has_btime
        && let Some(birth) = view.birth_time(inode)?
    {
        extended.set_birth(birth);
    }
    if view.has_file_flags() {
        extended.set_flags(view.file_flags(inode)?);
    }
    if view.has_xattrs() {
        for xattr in image.xattrs(inode)? {
            let name = xattr.name()?;
            if !keeps(&name) {
                continue;
            }
            if !can_be_stored(&name) {
                unstorable += 1;
                continue;
            }
            // The writer refuses one that is too long, and needs no more than that to know.
            let value = match xattr.size()? {
                0..=LONGEST_VALUE => image.xattr_value(&xattr)?.into_owned(),
                _ => vec![0; LONGEST_VALUE as usize + 1],
            };
            extended.set(name.into_owned(), value);
        }
    }
    Ok((extended, unstorable))
}

/// A file of an image.
#[derive(Debug)]
pub struct StoredContent {
    image: Image,
    inode: InodeNo,
    stamp: Stamp,
    /// Ends of data and holes in turns, beginning with data.
    ends: Vec<u64>,
}

impl StoredContent {
    /// Opens the regular file with these attributes.
    ///
    /// # Errors
    /// The metadata is damaged.
    pub fn open(image: &Image, stat: &Stat) -> Result<Self> {
        let mut ends = vec![0_u64];
        for extent in image.metadata().extents(stat.ino)? {
            let extent = extent?;
            let is_hole = matches!(extent, Extent::Hole { .. });
            let end = ends
                .last()
                .map_or(0, |end| end.saturating_add(extent.size()));
            // An even number of ends: the last one is that of a hole.
            let same = is_hole == ends.len().is_multiple_of(2);
            match ends.last_mut() {
                Some(last) if same => *last = end,
                _ => ends.push(end),
            }
        }
        Ok(Self {
            image: image.clone(),
            inode: stat.ino,
            stamp: Stamp {
                size: stat.size,
                mtime: stat.mtime,
            },
            ends,
        })
    }
}

impl Content for StoredContent {
    fn stamp(&self) -> io::Result<Stamp> {
        Ok(self.stamp)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let read = self.image.read_at(self.inode, offset, buf);
        read.map_err(|error| match error {
            FormatError::Io(error) => error,
            other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
        })
    }

    fn next_data(&self, offset: u64, end: u64) -> io::Result<Option<DataExtent>> {
        let mut start = 0;
        for (number, &until) in self.ends.iter().enumerate() {
            let (from, to) = (start.max(offset), until.min(end));
            if number.is_multiple_of(2) && from < to {
                return Ok(Some(DataExtent {
                    offset: from,
                    size: to - from,
                }));
            }
            start = until;
        }
        Ok(None)
    }
}
