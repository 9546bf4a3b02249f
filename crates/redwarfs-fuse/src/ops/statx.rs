//! STATX: the attributes of an inode with its birth time.

use rustix::io::Errno;

use crate::image_state::ImageState;
use crate::ops::answer::{Answer, Outcome, log_op, timed};
use crate::proto::Header;

pub(crate) fn answer(state: &ImageState, header: &Header, out: &mut Vec<u8>) -> Outcome {
    let _timer = timed(&state.timers.getattr, header);
    log_op!(header, "op_statx({})", header.node);
    let inode = state.inode(header.node)?;
    match state.image.metadata().birth_time(inode) {
        Ok(birth) if birth.is_some() || state.settings.several => {
            let attr = state.attr(inode)?;
            attr.put_statx(birth, state.settings.attributes, out);
            Ok(Answer::Reply)
        }
        // The kernel sends no further ones, and asks for the other attributes by GETATTR.
        Ok(_) => Err(Errno::NOSYS),
        Err(cause) => Err(state.fail("stat", inode, &cause)),
    }
}
