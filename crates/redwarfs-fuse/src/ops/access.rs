//! ACCESS: whether the requesting user may open a file as asked.

use rustix::io::Errno;

use crate::attr::opens;
use crate::image_state::ImageState;
use crate::ops::answer::{Answer, Outcome, log_op};
use crate::proto::{Body, Header};

/// Says what opening would do. The kernel asks only if it does not check permissions itself.
pub(crate) fn answer(state: &ImageState, header: &Header, mut body: Body<'_>) -> Outcome {
    let wanted = body.u32().ok_or(Errno::IO)?;
    log_op!(header, "op_access({}, {wanted})", header.node);
    let inode = state.inode(header.node)?;
    match state.image.metadata().stat(inode) {
        Ok(stat) if opens(state.settings.policy.mode(&stat), wanted) => Ok(Answer::Reply),
        Ok(_) => Err(Errno::ACCESS),
        Err(cause) => Err(state.fail("stat", inode, &cause)),
    }
}
