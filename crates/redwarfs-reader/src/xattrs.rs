//! Extended attributes of inodes.

use std::borrow::Cow;

use redwarfs_format::metadata::{Extent, Xattr, XattrData, Xattrs};
use redwarfs_format::{Error, InodeNo, Result};

use crate::image::Image;

impl Image {
    /// The extended attributes of an inode, sorted by name. Their values are read when they are asked
    /// for, with [`Image::xattr_value`].
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is no such inode, or the tables are inconsistent.
    pub fn xattrs(&self, inode: InodeNo) -> Result<Xattrs<'_>> {
        self.metadata().xattrs(inode)
    }

    /// The value of the extended attribute `name` of an inode, if it has one.
    ///
    /// # Errors
    /// As [`Image::xattrs`] and [`Image::xattr_value`].
    pub fn xattr(&self, inode: InodeNo, name: &[u8]) -> Result<Option<Cow<'_, [u8]>>> {
        match self.xattrs(inode)?.find(name)? {
            Some(xattr) => self.xattr_value(&xattr).map(Some),
            None => Ok(None),
        }
    }

    /// The value of an extended attribute of this image. Reads blocks if it lies there.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the tables are inconsistent, [`Error::Limit`] if the value is longer than
    /// [`MAX_XATTR_VALUE`](redwarfs_format::metadata::MAX_XATTR_VALUE). If a needed block cannot be read,
    /// verified or decoded, the error names its section.
    pub fn xattr_value<'a>(&self, xattr: &Xattr<'a>) -> Result<Cow<'a, [u8]>> {
        let extents = match xattr.value()? {
            XattrData::Inline(bytes) => return Ok(bytes),
            XattrData::Blocks(extents) => extents,
        };
        let cache = &self.0.cache;
        let mut value = Vec::new();
        let mut scratch = Vec::new();
        for extent in extents {
            let Extent::Data {
                block,
                offset,
                size,
            } = extent
            else {
                return Err(Error::corrupt("an extended attribute with a hole"));
            };
            let offset = u64::from(offset);
            // Fails for an extent that is not in the block, before memory is taken for it.
            let data = cache.get(block, offset, offset + u64::from(size))?;
            let start = value.len();
            value.resize(start + size as usize, 0);
            let out = value.get_mut(start..).unwrap_or_default();
            cache.copy(&data, offset, out, &mut scratch)?;
        }
        cache.trim();
        Ok(Cow::Owned(value))
    }
}
