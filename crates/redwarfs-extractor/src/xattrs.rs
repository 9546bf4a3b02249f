//! Extended attributes of extracted entries.

use std::fmt;
use std::io;
use std::sync::Arc;

use redwarfs_format::{Error as FormatError, InodeNo};
use redwarfs_reader::Image;

use crate::ExtractOptions;
use crate::error::{Error, Result, target};

type Judge = dyn Fn(&[u8]) -> bool + Send + Sync;

/// Selects extended attributes by name.
#[derive(Clone)]
pub struct XattrSelection(Option<Arc<Judge>>);

impl XattrSelection {
    /// Everything.
    #[must_use]
    pub fn all() -> Self {
        Self(None)
    }

    /// The attributes for whose full name `wanted` returns true.
    pub fn new(wanted: impl Fn(&[u8]) -> bool + Send + Sync + 'static) -> Self {
        Self(Some(Arc::new(wanted)))
    }

    fn wants(&self, name: &[u8]) -> bool {
        self.0.as_ref().is_none_or(|wanted| wanted(name))
    }
}

impl Default for XattrSelection {
    fn default() -> Self {
        Self::all()
    }
}

impl fmt::Debug for XattrSelection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("XattrSelection")
    }
}

/// The access list of an entry.
pub(crate) const ACCESS: &[u8] = b"system.posix_acl_access";
/// The list that new entries of a directory get.
pub(crate) const DEFAULT: &[u8] = b"system.posix_acl_default";
/// The capabilities of a program.
pub(crate) const CAPABILITY: &[u8] = b"security.capability";

/// Longest names of an inode together, in bytes, with one more for each: the limit of Linux.
const MAX_NAMES: u64 = 64 << 10;
/// Longest names and values of an inode together, in bytes.
const MAX_TOGETHER: u64 = 64 << 20;

/// Bounds what the attributes of an inode take, whatever an image says.
#[derive(Debug, Default)]
struct Bounds {
    last: Option<Vec<u8>>,
    names: u64,
    values: u64,
}

impl Bounds {
    fn add_name(&mut self, name: &[u8]) -> Result<()> {
        if self.last.as_deref().is_some_and(|last| last >= name) {
            return Err(FormatError::corrupt("names of extended attributes are not sorted").into());
        }
        self.last = Some(name.to_vec());
        self.names += name.len() as u64 + 1;
        self.check()
    }

    fn add_value(&mut self, size: u64) -> Result<()> {
        self.values = self.values.saturating_add(size);
        self.check()
    }

    fn check(&self) -> Result<()> {
        if self.names > MAX_NAMES || self.names.saturating_add(self.values) > MAX_TOGETHER {
            return Err(FormatError::Limit(
                "extended attributes of an inode are too long together".into(),
            )
            .into());
        }
        Ok(())
    }
}

/// The selected attributes of an image.
#[derive(Debug, Clone)]
pub(crate) struct Stored {
    image: Image,
    selection: XattrSelection,
}

/// An attribute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Xattr {
    pub(crate) name: Vec<u8>,
    pub(crate) value: Vec<u8>,
}

impl Stored {
    /// Those that the options select; nothing if the image has none.
    pub(crate) fn new(image: &Image, options: &ExtractOptions) -> Option<Self> {
        image.metadata().has_xattrs().then(|| Self {
            image: image.clone(),
            selection: options.xattrs.clone(),
        })
    }

    /// The attributes of an inode in the order in which they are set: access lists, all others, and at last
    /// capabilities, which other changes would remove. `shown` is the path of the entry. Also returns an error
    /// for the first value that cannot be read.
    ///
    /// # Errors
    /// `Corrupt` if the names do not ascend, and `Limit` if names and values are too long together.
    pub(crate) fn of(
        &self,
        ino: InodeNo,
        shown: &dyn Fn() -> String,
    ) -> Result<(Vec<Xattr>, Option<Error>)> {
        let mut xattrs = Vec::new();
        let mut lost = None;
        let mut bounds = Bounds::default();
        for xattr in self.image.xattrs(ino)? {
            let name = xattr.name()?;
            bounds.add_name(&name)?;
            // No system call takes such names; the full check refuses them.
            if self.selection.wants(&name) && !name.is_empty() && !name.contains(&0) {
                bounds.add_value(xattr.size()?)?;
                match self.image.xattr_value(&xattr) {
                    Ok(value) => xattrs.push(Xattr {
                        value: value.into_owned(),
                        name: name.into_owned(),
                    }),
                    Err(e) => {
                        lost.get_or_insert_with(|| {
                            let path = format!("{}: {}", shown(), name.escape_ascii());
                            target("cannot read extended attribute", path, io::Error::other(e))
                        });
                    }
                }
            }
        }
        xattrs.sort_by_key(|xattr| match xattr.name.as_slice() {
            ACCESS | DEFAULT => 0,
            CAPABILITY => 2,
            _ => 1,
        });
        Ok((xattrs, lost))
    }
}

/// The text form of an access list in archives, such as `user::rwx,user:1000:r-x,group::r-x,mask::r-x,other::---`;
/// nothing if the value is no list.
pub(crate) fn list_as_text(value: &[u8]) -> Option<String> {
    let (version, rest) = value.split_first_chunk::<4>()?;
    if u32::from_le_bytes(*version) != 2 || rest.len() % 8 != 0 {
        return None;
    }
    let mut texts = Vec::new();
    for entry in rest.chunks_exact(8) {
        let (tag, rest) = entry.split_first_chunk::<2>()?;
        let (permissions, id) = rest.split_first_chunk::<2>()?;
        let id = u32::from_le_bytes(*id.first_chunk()?);
        let permissions = u16::from_le_bytes(*permissions);
        let who = match u16::from_le_bytes(*tag) {
            0x01 => "user:".to_owned(),
            0x02 => format!("user:{id}"),
            0x04 => "group:".to_owned(),
            0x08 => format!("group:{id}"),
            0x10 => "mask:".to_owned(),
            0x20 => "other:".to_owned(),
            _ => return None,
        };
        let letter = |bit: u16, letter| if permissions & bit != 0 { letter } else { '-' };
        let (r, w, x) = (letter(4, 'r'), letter(2, 'w'), letter(1, 'x'));
        texts.push(format!("{who}:{r}{w}{x}"));
    }
    Some(texts.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sets_are_bounded() {
        let mut bounds = Bounds::default();
        bounds.add_name(b"").unwrap();
        bounds.add_name(b"user.a").unwrap();
        bounds.add_value(16 << 20).unwrap();
        bounds.add_name(b"user.b").unwrap();
        for wrong in [&b"user.b"[..], b"user.a", b""] {
            let error = bounds.add_name(wrong).unwrap_err().to_string();
            assert!(error.contains("not sorted"), "{error}");
        }
        bounds.add_value(47 << 20).unwrap();
        let error = bounds.add_value(1 << 20).unwrap_err().to_string();
        assert!(error.contains("too long together"), "{error}");

        let mut bounds = Bounds::default();
        let names = (0u32..).map(|i| format!("user.{i:0250}"));
        let added = names
            .take(1000)
            .position(|name| bounds.add_name(name.as_bytes()).is_err());
        assert_eq!(added, Some(256));
    }

    #[test]
    fn lists_have_a_text() {
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, permissions, id) in [
            (1u16, 7u16, !0u32),
            (2, 5, 1000),
            (4, 4, !0),
            (8, 6, 50),
            (16, 7, !0),
            (32, 0, !0),
        ] {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend(id.to_le_bytes());
        }
        let text = "user::rwx,user:1000:r-x,group::r--,group:50:rw-,mask::rwx,other::---";
        assert_eq!(list_as_text(&value).as_deref(), Some(text));
        for broken in [&b""[..], b"x", &[1, 0, 0, 0], &value[..value.len() - 1]] {
            assert_eq!(list_as_text(broken), None);
        }
        value[4] = 77;
        assert_eq!(list_as_text(&value), None);
    }
}
