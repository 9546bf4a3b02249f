//! LISTXATTR: the names of the extended attributes of an inode.

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
    let inode = state.inode(header.node)?;
    let names = if state.settings.list_xattrs {
        match state.image.metadata().file_type(inode) {
            Ok(ty) => xattr::names(inode, ty),
            Err(cause) => return Err(state.fail("stat", inode, &cause)),
        }
    } else {
        b""
    };
    put_value(size, names, names.len(), out)
}
