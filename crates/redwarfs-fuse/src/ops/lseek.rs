//! LSEEK: the next data or hole of a sparse file.

use rustix::io::Errno;

use crate::image_state::ImageState;
use crate::ops::answer::{Answer, Outcome, log_op, timed};
use crate::proto::{Body, Header, Put};

pub(crate) const SEEK_DATA: u32 = 3;
pub(crate) const SEEK_HOLE: u32 = 4;

/// `SEEK_DATA` and `SEEK_HOLE`.
pub(crate) fn answer(
    state: &ImageState,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let _timer = timed(&state.timers.lseek, header);
    body.u64();
    let (offset, whence) = body.u64().zip(body.u32()).ok_or(Errno::IO)?;
    log_op!(header, "op_lseek({}, {offset}, {whence})", header.node);
    let meta = state.image.metadata();
    if meta.hole_block().is_none() && !state.settings.several {
        // No file has holes: with this reply, the kernel sends no more such requests.
        return Err(Errno::NOSYS);
    }
    let inode = state.inode(header.node)?;
    let hole_wanted = match whence {
        SEEK_DATA => false,
        SEEK_HOLE => true,
        _ => return Err(Errno::INVAL),
    };
    if offset > i64::MAX.cast_unsigned() {
        return Err(Errno::NXIO);
    }
    let found = meta
        .extents(inode)
        .and_then(|extents| extents.seek(offset, hole_wanted))
        .map_err(|cause| state.fail("seek in", inode, &cause))?;
    out.put64(found.ok_or(Errno::NXIO)?);
    Ok(Answer::Reply)
}
