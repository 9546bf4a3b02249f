//! READDIR: names and types of the entries of a directory.

use crate::image_state::ImageState;
use crate::ops::answer::{Answer, Outcome, log_op, timed};
use crate::ops::listing;
use crate::proto::{Body, Header, dirent_size, put_dirent};

pub(crate) fn answer(
    state: &ImageState,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let _timer = timed(&state.timers.readdir, header);
    let (position, room) = listing::part(&mut body)?;
    log_op!(header, "op_readdir({}, {position})", header.node);
    let meta = state.image.metadata();
    let dir = state.directory(header.node, "list")?;
    listing::list(state, dir, position, |inode, _, next, name| {
        if out.len() + dirent_size(name, false) > room {
            return Ok(true);
        }
        let ty = meta.file_type(inode);
        let ty = ty.map_err(|cause| state.fail("stat", inode, &cause))?;
        put_dirent(state.number(inode), next, ty.mode_bits(), name, out);
        Ok(false)
    })?;
    Ok(Answer::Reply)
}
