//! OPEN: whether the kernel keeps the data of a file that it opens again.

use rustix::io::Errno;

use crate::image_state::ImageState;
use crate::ops::answer::{Answer, Outcome, log_op, timed};
use crate::ops::init::Agreed;
use crate::proto::{Body, Header, opened, put_opened};

const O_ACCMODE: u32 = 3;

pub(crate) fn answer(
    state: &ImageState,
    agreed: Agreed,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let _timer = timed(&state.timers.open, header);
    let flags = body.u32().ok_or(Errno::IO)?;
    log_op!(header, "op_open({}, {flags:#x})", header.node);
    if flags & O_ACCMODE != 0 {
        return Err(Errno::ROFS);
    }
    if agreed.no_open {
        return Err(Errno::NOSYS);
    }
    let inode = state.inode(header.node)?;
    let meta = state.image.metadata();
    if let Some(analysis) = &state.analysis {
        analysis.opened(meta, inode);
    }
    let keep = state.settings.keep_cache
        && (state.settings.cache_sparse || {
            let stat = meta.stat(inode);
            let stat = stat.map_err(|cause| state.fail("stat", inode, &cause))?;
            stat.allocated >= stat.size
        });
    put_opened(
        opened::NOFLUSH | if keep { opened::KEEP_CACHE } else { 0 },
        out,
    );
    Ok(Answer::Reply)
}
