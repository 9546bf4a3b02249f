//! Extended attributes of extracted entries.

use std::fmt;
use std::sync::Arc;

use redwarfs_format::InodeNo;
use redwarfs_reader::Image;

use crate::ExtractOptions;
use crate::error::Result;

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
const CAPABILITY: &[u8] = b"security.capability";

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
    /// capabilities, which other changes would remove.
    pub(crate) fn of(&self, ino: InodeNo) -> Result<Vec<Xattr>> {
        let mut xattrs = Vec::new();
        for xattr in self.image.xattrs(ino)? {
            let name = xattr.name()?;
            // No system call takes such names; the full check refuses them.
            if self.selection.wants(&name) && !name.is_empty() && !name.contains(&0) {
                xattrs.push(Xattr {
                    value: self.image.xattr_value(&xattr)?.into_owned(),
                    name: name.into_owned(),
                });
            }
        }
        xattrs.sort_by_key(|xattr| match xattr.name.as_slice() {
            ACCESS | DEFAULT => 0,
            CAPABILITY => 2,
            _ => 1,
        });
        Ok(xattrs)
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
