//! READDIRPLUS: names and attributes of the entries of a directory.

use crate::image_state::ImageState;
use crate::ops::answer::{Answer, Outcome, log_op, timed};
use crate::ops::listing;
use crate::proto::{Body, Header, dirent_size, put_dirent};
use crate::push::Pusher;

pub(crate) fn answer(
    state: &ImageState,
    pusher: Option<&Pusher>,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let _timer = timed(&state.timers.readdir, header);
    let (position, room) = listing::part(&mut body)?;
    log_op!(header, "op_readdirplus({}, {position})", header.node);
    let dir = state.directory(header.node, "list")?;
    // The kernel ignores the attributes of `.` and `..` but shows their numbers.
    listing::list(state, dir, position, |inode, entry, next, name| {
        if out.len() + dirent_size(name, true) > room {
            return Ok(true);
        }
        let attr = state.attr_of_name(inode, entry)?;
        attr.put_entry(state.settings.names, state.settings.attributes, out);
        put_dirent(attr.number, next, attr.mode, name, out);
        if let Some(pusher) = pusher {
            pusher.knows(inode);
        }
        Ok(false)
    })?;
    Ok(Answer::Reply)
}
