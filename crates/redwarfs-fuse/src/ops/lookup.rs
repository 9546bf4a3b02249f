//! LOOKUP: the inode that a name in a directory refers to.

use redwarfs_format::ids::{EntryIndex, InodeNo};
use rustix::io::Errno;

use crate::case;
use crate::image_state::ImageState;
use crate::ops::answer::{Answer, Outcome, log_op, timed};
use crate::proto::{Attr, Body, Header};
use crate::push::Pusher;

pub(crate) fn answer(
    state: &ImageState,
    pusher: Option<&Pusher>,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let _timer = timed(&state.timers.lookup, header);
    let name = body.name().ok_or(Errno::IO)?;
    log_op!(
        header,
        "op_lookup({}, {})",
        header.node,
        String::from_utf8_lossy(name)
    );
    match find(state, header.node, name)? {
        Some((inode, entry)) => {
            let attr = state.attr_of_name(inode, entry)?;
            if let Some(pusher) = pusher {
                pusher.knows(inode);
            }
            attr.put_entry(state.settings.names, state.settings.attributes, out);
        }
        // Node id 0 makes the kernel remember that the name does not exist.
        None => Attr::default().put_entry(state.settings.names, state.settings.attributes, out),
    }
    Ok(Answer::Reply)
}

/// The inode with a name in a directory, and the entry; `.` and `..` have none.
fn find(
    state: &ImageState,
    node: u64,
    name: &[u8],
) -> Result<Option<(InodeNo, Option<EntryIndex>)>, Errno> {
    let meta = state.image.metadata();
    match name {
        // Asked when a file handle (of NFS) is turned into a file: for any kind of inode.
        b"." => return state.inode(node).map(|inode| Some((inode, None))),
        b".." => {
            let inode = state.directory(node, "look up the parent of")?;
            let parent = meta.parent(inode);
            return parent
                .map(|parent| Some((parent, None)))
                .map_err(|cause| state.fail("look up the parent of", inode, &cause));
        }
        _ => {}
    }
    let dir = state.directory(node, "look up a name in")?;
    case::find(meta, state.case.as_ref(), dir, name)
        .and_then(|entry| {
            entry
                .map(|entry| Ok((meta.entry_inode(entry)?, Some(entry))))
                .transpose()
        })
        .map_err(|cause| state.fail("look up a name in", dir, &cause))
}
