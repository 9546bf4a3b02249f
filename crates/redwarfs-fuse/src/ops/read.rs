//! READ: data of a file, from the cache at once or from a worker later.

use rustix::io::Errno;
use tracing::debug;

use crate::mount_state::MountState;
use crate::ops::answer::{Answer, Outcome, timed};
use crate::pool::{Pool, ReadJob};
use crate::proto::{Body, Header, MAX_REQUEST};
use crate::push::Pusher;
use crate::ticket::Ticket;

/// Replies if all blocks of the read are decoded. Otherwise a worker gets the read and its ticket.
pub(crate) fn answer(
    state: &MountState,
    pusher: Option<&Pusher>,
    pool: &Pool,
    ticket: &mut Option<Ticket>,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let timer = timed(&state.timers.read, header);
    body.u64();
    let (offset, size) = body.u64().zip(body.u32()).ok_or(Errno::IO)?;
    debug!("op_read({}, {size}, {offset})", header.node);
    let inode = state.inode(header.node)?;
    let size = size.min(MAX_REQUEST) as usize;
    match state.image.try_read_pinned(inode, offset, size, out) {
        Ok(Some(read)) => {
            if let Some(pusher) = pusher {
                pusher.was_read(inode, offset, read.len());
            }
            // The statistics must count this read before the process gets the reply.
            drop(timer);
            if let Some(ticket) = ticket.take() {
                ticket.reply_parts(read.parts());
            }
            Ok(Answer::Done)
        }
        Ok(None) => {
            // The worker takes the time.
            timer.discard();
            state.counters.deferred();
            if let Some(ticket) = ticket.take() {
                state.interrupts.begin(ticket, header.pid);
            }
            pool.submit(ReadJob {
                inode,
                offset,
                size,
                unique: header.unique,
            });
            Ok(Answer::Done)
        }
        Err(cause) => Err(state.fail("read", inode, &cause)),
    }
}
