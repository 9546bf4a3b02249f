//! LISTXATTR: the names of the extended attributes of an inode.

use std::borrow::Cow;

use redwarfs_format::ids::InodeNo;
use redwarfs_format::{Error, Result};
use redwarfs_reader::Image;
use rustix::io::Errno;

use crate::image_state::ImageState;
use crate::ops::answer::{Outcome, log_op, timed};
use crate::ops::xattr_value::put_value;
use crate::proto::{Body, Header};
use crate::xattr;

pub(crate) fn answer(
    state: &ImageState,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let _timer = timed(&state.timers.listxattr, header);
    let size = body.u32().ok_or(Errno::IO)?;
    log_op!(header, "op_listxattr({}, {size})", header.node);
    if !state.settings.xattrs {
        return Err(Errno::NOSYS);
    }
    let names = all(state, state.inode(header.node)?, header.uid == 0)?;
    put_value(size, &names, names.len(), out)
}

/// The names of all attributes of an inode, each ended by a zero byte.
///
/// # Errors
/// They are more than a list can have; the metadata is damaged.
pub(crate) fn all(state: &ImageState, inode: InodeNo, is_root: bool) -> Result<Vec<u8>, Errno> {
    let own = if state.settings.list_xattrs {
        match state.image.metadata().file_type(inode) {
            Ok(ty) => [xattr::names(inode, ty), state.names_about(inode)].concat(),
            Err(cause) => return Err(state.fail("stat", inode, &cause)),
        }
    } else {
        Vec::new()
    };
    if !state.settings.stored_xattrs {
        return Ok(own);
    }
    let mut names = match stored(&state.image, inode, is_root) {
        Ok(Some(names)) => names,
        Ok(None) => return Err(Errno::TOOBIG),
        Err(cause) => return Err(state.fail("list the extended attributes of", inode, &cause)),
    };
    names.extend_from_slice(&own);
    if names.len() > xattr::LARGEST {
        return Err(Errno::TOOBIG);
    }
    Ok(names)
}

/// The names of the attributes of the image, each ended by a zero byte, or nothing if these are more
/// than a list can have. Only root sees those in `trusted`.
fn stored(image: &Image, inode: InodeNo, is_root: bool) -> Result<Option<Vec<u8>>> {
    list(image.xattrs(inode)?.map(|found| found.name()), is_root)
}

fn list<'a>(
    names: impl Iterator<Item = Result<Cow<'a, [u8]>>>,
    is_root: bool,
) -> Result<Option<Vec<u8>>> {
    let mut list = Vec::new();
    let mut hidden = 0;
    let mut last = Cow::Borrowed(&b""[..]);
    for name in names {
        let name = name?;
        // No name is empty. So this ends soon, whatever the image says.
        if name <= last {
            return Err(Error::corrupt(
                "names of extended attributes are not sorted",
            ));
        }
        if is_root || !name.starts_with(b"trusted.") {
            list.extend_from_slice(&name);
            list.push(0);
        } else {
            hidden += name.len() + 1;
        }
        last = name;
        if list.len() + hidden > xattr::LARGEST {
            return Ok(None);
        }
    }
    Ok(Some(list))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(names: &[&str], is_root: bool) -> Result<Option<Vec<u8>>> {
        let names = names.iter().map(|name| Ok(Cow::Borrowed(name.as_bytes())));
        list(names, is_root)
    }

    #[test]
    fn only_root_sees_trusted_names() {
        let names = ["trusted.a", "user.a"];
        let all = of(&names, true).unwrap();
        assert_eq!(all.as_deref(), Some(&b"trusted.a\0user.a\0"[..]));
        let some = of(&names, false).unwrap();
        assert_eq!(some.as_deref(), Some(&b"user.a\0"[..]));
    }

    #[test]
    fn lists_of_wrong_names_end() {
        for is_root in [true, false] {
            for names in [&[""][..], &["user.a", "user.a"], &["user.a", "trusted.b"]] {
                assert!(of(names, is_root).is_err(), "{names:?}");
            }
            let endless = std::iter::repeat_with(|| Ok(Cow::Borrowed(&b"trusted.x"[..])));
            assert!(list(endless, is_root).is_err());
            let ascending = (0u64..).map(|i| Ok(format!("trusted.{i:020}").into_bytes().into()));
            let mut asked = 0;
            let found = list(ascending.inspect(|_| asked += 1), is_root).unwrap();
            assert_eq!((found, asked), (None, xattr::LARGEST / 29 + 1));
        }
    }
}
