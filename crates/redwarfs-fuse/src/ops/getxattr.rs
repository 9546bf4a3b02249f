//! GETXATTR: an extended attribute that describes the driver or an inode.

use rustix::io::Errno;

use crate::mount_state::MountState;
use crate::ops::answer::{Outcome, log_op, timed};
use crate::ops::xattr_value::put_value;
use crate::proto::{Body, Header};

pub(crate) fn answer(
    state: &MountState,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let _timer = timed(&state.timers.getxattr, header);
    let size = body.u32().ok_or(Errno::IO)?;
    body.u32();
    let name = body.name().ok_or(Errno::IO)?;
    log_op!(
        header,
        "op_getxattr({}, {}, {size})",
        header.node,
        String::from_utf8_lossy(name)
    );
    let inode = state.inode(header.node)?;
    let image = &state.image;
    match state
        .describer
        .value(image, &state.settings.policy, inode, name)
    {
        Ok(Some(value)) => put_value(size, &value.bytes, value.announced, out),
        Ok(None) => Err(Errno::NODATA),
        Err(cause) => Err(state.fail("describe", inode, &cause)),
    }
}
