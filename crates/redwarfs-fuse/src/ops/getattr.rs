//! GETATTR: the attributes of an inode.

use crate::image_state::ImageState;
use crate::ops::answer::{Answer, Outcome, log_op, timed};
use crate::proto::Header;

pub(crate) fn answer(state: &ImageState, header: &Header, out: &mut Vec<u8>) -> Outcome {
    let _timer = timed(&state.timers.getattr, header);
    log_op!(header, "op_getattr({})", header.node);
    state
        .attr(state.inode(header.node)?)?
        .put_attr(state.settings.attributes, out);
    Ok(Answer::Reply)
}
