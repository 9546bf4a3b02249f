//! LISTXATTR: the names of the extended attributes of an inode.

use redwarfs_format::ids::InodeNo;
use redwarfs_reader::{Image, Result};
use rustix::io::Errno;

use crate::mount_state::MountState;
use crate::ops::answer::{Outcome, log_op, timed};
use crate::ops::xattr_value::put_value;
use crate::proto::{Body, Header};
use crate::xattr;

pub(crate) fn answer(
    state: &MountState,
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
    let inode = state.inode(header.node)?;
    let own = if state.settings.list_xattrs {
        match state.image.metadata().file_type(inode) {
            Ok(ty) => xattr::names(inode, ty),
            Err(cause) => return Err(state.fail("stat", inode, &cause)),
        }
    } else {
        b""
    };
    if !state.settings.stored_xattrs {
        return put_value(size, own, own.len(), out);
    }
    let mut names = match stored(&state.image, inode, header.uid == 0) {
        Ok(names) => names,
        Err(cause) => return Err(state.fail("list the extended attributes of", inode, &cause)),
    };
    names.extend_from_slice(own);
    if names.len() > xattr::LARGEST {
        return Err(Errno::TOOBIG);
    }
    put_value(size, &names, names.len(), out)
}

/// The names of the attributes of the image, each ended by a zero byte, as far as a list can be long.
/// Only root sees those in `trusted`.
fn stored(image: &Image, inode: InodeNo, is_root: bool) -> Result<Vec<u8>> {
    let mut names = Vec::new();
    for found in image.xattrs(inode)? {
        let name = found.name()?;
        if is_root || !name.starts_with(b"trusted.") {
            names.extend_from_slice(&name);
            names.push(0);
        }
        if names.len() > xattr::LARGEST {
            break;
        }
    }
    Ok(names)
}
