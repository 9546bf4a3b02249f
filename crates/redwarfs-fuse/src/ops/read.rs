//! READ: data of a file, from the cache at once or from a worker later.

use std::sync::Arc;

use redwarfs_format::ids::InodeNo;
use redwarfs_reader::PinnedRead;
use rustix::io::Errno;
use tracing::debug;

use crate::image_state::ImageState;
use crate::ops::answer::{Answer, Outcome, timed};
use crate::pool::{Job, Pool};
use crate::proto::{Body, Header, MAX_REQUEST, ReadIn};
use crate::push::Pusher;
use crate::ticket::Ticket;

/// Replies if all bytes of the read are decoded, or are not compressed and in the page cache. Otherwise a worker gets the read, and its ticket waits
/// in `pending_reads`.
pub(crate) fn answer(
    state: &Arc<ImageState>,
    pusher: Option<&Pusher>,
    pool: &Pool<ReadJob>,
    ticket: &mut Option<Ticket>,
    header: &Header,
    body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let timer = timed(&state.timers.read, header);
    let ReadIn { offset, size } = ReadIn::parse(body).ok_or(Errno::IO)?;
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
            Ok(Answer::Passed)
        }
        Ok(None) => {
            // The worker takes the time.
            timer.discard();
            state.counters.deferred();
            if let Some(ticket) = ticket.take() {
                state.pending_reads.begin(ticket, header.pid);
            }
            pool.submit(ReadJob {
                state: Arc::clone(state),
                pushes: pusher.is_some(),
                inode,
                offset,
                size,
                unique: header.unique,
            });
            Ok(Answer::Passed)
        }
        Err(cause) => Err(state.fail("read", inode, &cause)),
    }
}

/// A read that needs decompression or waits for the medium. Its ticket is in `pending_reads`.
#[derive(Debug)]
pub(crate) struct ReadJob {
    state: Arc<ImageState>,
    /// Whether the pusher hears of it.
    pushes: bool,
    inode: InodeNo,
    offset: u64,
    size: usize,
    unique: u64,
}

/// What all reads share.
pub(crate) struct ReadContext {
    pub(crate) pusher: Option<Arc<Pusher>>,
}

impl Job for ReadJob {
    type Shared = ReadContext;

    fn lane(&self) -> u32 {
        self.state.slot().0
    }

    fn run(&self, context: &ReadContext, scratch: &mut Vec<u8>) {
        let state = &self.state;
        let inode = state.node(self.inode);
        let timer = state.timers.read.start_with(&[("inode", inode)]);
        let read = state
            .image
            .read_pinned(self.inode, self.offset, self.size, scratch);
        // The statistics must count this read before the process gets the reply.
        drop(timer);
        match read {
            Ok(read) => {
                if let Some(pusher) = &context.pusher
                    && self.pushes
                {
                    pusher.was_read(self.inode, self.offset, read.len());
                }
                self.reply(Ok(&read));
            }
            Err(error) => {
                let errno = state.fail("read", self.inode, &error);
                self.reply(Err(errno));
            }
        }
    }

    fn fail(&self, _: &ReadContext) {
        self.reply(Err(Errno::IO));
    }
}

impl ReadJob {
    /// Replies, unless that happened before because the reader was signalled.
    fn reply(&self, answer: Result<&PinnedRead<'_>, Errno>) {
        let Some(ticket) = self.state.pending_reads.finish(self.unique) else {
            return;
        };
        match answer {
            Ok(read) => ticket.reply_parts(read.parts()),
            Err(errno) => ticket.fail(errno),
        }
    }
}
