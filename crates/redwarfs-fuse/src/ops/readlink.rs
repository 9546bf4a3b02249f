//! READLINK: the target of a symbolic link.

use rustix::io::Errno;

use crate::image_state::ImageState;
use crate::ops::answer::{Answer, Outcome, log_op, timed};
use crate::proto::Header;

pub(crate) fn answer(state: &ImageState, header: &Header, out: &mut Vec<u8>) -> Outcome {
    let _timer = timed(&state.timers.readlink, header);
    log_op!(header, "op_readlink({})", header.node);
    let inode = state.inode(header.node)?;
    match state.image.metadata().symlink(inode) {
        // The kernel takes a page.
        Ok(target) if target.len() >= 4096 => Err(Errno::NAMETOOLONG),
        Ok(target) => {
            out.extend_from_slice(&target);
            Ok(Answer::Reply)
        }
        Err(cause) => Err(state.fail("read link", inode, &cause)),
    }
}
