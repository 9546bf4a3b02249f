//! The driver: chooses the operation for each request.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rustix::io::Errno;
use tracing::error;

use crate::device::Device;
use crate::mount_state::MountState;
use crate::ops;
use crate::ops::answer::{Answer, Outcome, log_op};
use crate::ops::init::Agreed;
use crate::ops::read::{ReadContext, ReadJob};
use crate::options::MountOptions;
use crate::pool::Pool;
use crate::proto::{Body, Header, InitIn, op};
use crate::push::{PushThread, Pusher};
use crate::snapshots::PlaceOfNode;
use crate::ticket::Ticket;

/// Serves one mounted image.
#[derive(Debug)]
pub(crate) struct Driver {
    state: Arc<MountState>,
    agreed: Agreed,
    pusher: Option<Arc<Pusher>>,
    pool: Pool<ReadJob>,
    /// Ends when the last handle of the pusher is gone.
    _push_thread: Option<PushThread>,
}

impl Driver {
    /// Starts the workers and the pushing thread.
    ///
    /// # Errors
    /// A thread cannot be made.
    pub(crate) fn new(
        state: &Arc<MountState>,
        device: &Arc<Device>,
        options: &MountOptions,
    ) -> io::Result<Self> {
        // Pages that the kernel drops at the next opening need not be pushed.
        let pushes = options.push && options.keep_cache && Pusher::is_for(&state.image);
        let (pusher, push_thread) = if pushes {
            let (pusher, thread) = Pusher::new(state, device)?;
            (Some(Arc::new(pusher)), Some(thread))
        } else {
            (None, None)
        };
        let context = ReadContext {
            pusher: pusher.clone(),
        };
        Ok(Self {
            state: Arc::clone(state),
            agreed: Agreed::default(),
            pool: Pool::new("fuse-read", context, options.workers)?,
            pusher,
            _push_thread: push_thread,
        })
    }

    /// Negotiates the parameters of the connection, see [`ops::init::answer`].
    pub(crate) fn init(
        &mut self,
        header: &Header,
        kernel: &InitIn,
        over_ring: Option<u16>,
        out: &mut Vec<u8>,
    ) {
        self.agreed = ops::init::answer(&self.state, header, kernel, over_ring, out);
    }

    /// Carries out one request and replies, or lets a worker do that. `out` is a buffer for the reply.
    pub(crate) fn serve(&self, ticket: Ticket, header: &Header, body: Body<'_>, out: &mut Vec<u8>) {
        out.clear();
        let mut ticket = Some(ticket);
        // A panic must fail one request, not the mount.
        let outcome = catch_unwind(AssertUnwindSafe(|| {
            self.handle(&mut ticket, header, body, out)
        }));
        if outcome.is_err() {
            error!("operation {} failed by a panic", header.opcode);
        }
        let Some(ticket) = ticket else {
            return;
        };
        match outcome {
            Ok(Ok(Answer::Reply)) => ticket.reply(out),
            Ok(Ok(Answer::NoReply | Answer::Passed)) => ticket.leave(),
            Ok(Err(errno)) => ticket.fail(errno),
            Err(_) => ticket.fail(Errno::IO),
        }
    }

    /// Carries out one request. `out` is empty. The owner of the ticket replies.
    fn handle(
        &self,
        ticket: &mut Option<Ticket>,
        header: &Header,
        body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        self.state.counters.request(header.opcode);
        if ticket.as_ref().is_some_and(Ticket::is_of_queue) {
            self.state.counters.over_ring();
        }
        if let Some(owner) = self.state.settings.only_for
            && header.uid != owner
            && header.uid != 0
            // These requests of the kernel belong to no process.
            && !matches!(
                header.opcode,
                op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::RELEASE | op::RELEASEDIR
                    | op::READ | op::FSYNC | op::FSYNCDIR | op::DESTROY
            )
        {
            return Err(Errno::ACCESS);
        }
        match &self.state.snapshots {
            None => {
                let pusher = self.pusher.as_deref();
                self.answer(&self.state, pusher, ticket, header, body, out)
            }
            Some(snapshots) => match snapshots.place(header, body) {
                PlaceOfNode::Image => {
                    let pusher = self.pusher.as_deref();
                    self.answer(&self.state, pusher, ticket, header, body, out)
                }
                PlaceOfNode::Snapshot(number) => {
                    let state = snapshots.opened(&self.state, number)?;
                    self.answer(&state, None, ticket, header, body, out)
                }
                PlaceOfNode::Directory => {
                    snapshots.answer(&self.state, self.agreed, header, body, out)
                }
                PlaceOfNode::Entry => snapshots.entry(&self.state, out),
            },
        }
    }

    /// Carries out a request for an inode of the image of `state`.
    fn answer(
        &self,
        state: &Arc<MountState>,
        pusher: Option<&Pusher>,
        ticket: &mut Option<Ticket>,
        header: &Header,
        body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let agreed = self.agreed;
        match header.opcode {
            op::LOOKUP => ops::lookup::answer(state, pusher, header, body, out),
            op::FORGET => ops::forget::one(pusher, header.node),
            op::BATCH_FORGET => ops::forget::many(pusher, body),
            op::GETATTR => ops::getattr::answer(state, header, out),
            op::STATX => ops::statx::answer(state, header, out),
            op::READLINK => ops::readlink::answer(state, header, out),
            op::OPEN => ops::open::answer(state, agreed, header, body, out),
            op::READ => ops::read::answer(state, pusher, &self.pool, ticket, header, body, out),
            op::STATFS => ops::statfs::answer(state, header, out),
            op::OPENDIR => ops::opendir::answer(state, agreed, header, out),
            op::READDIR => ops::readdir::answer(state, header, body, out),
            op::READDIRPLUS => ops::readdirplus::answer(state, pusher, header, body, out),
            op::GETXATTR => ops::getxattr::answer(state, header, body, out),
            op::LISTXATTR => ops::listxattr::answer(state, header, body, out),
            op::ACCESS => ops::access::answer(state, header, body),
            op::LSEEK => ops::lseek::answer(state, header, body, out),
            op::INTERRUPT => ops::interrupt::answer(state, body),
            op::RELEASE | op::RELEASEDIR | op::FSYNC | op::FSYNCDIR | op::DESTROY => {
                Ok(Answer::Reply)
            }
            op::NOTIFY_REPLY => Ok(Answer::NoReply),
            // The mount is read-only, so the kernel refuses these itself. If one arrives (a remount
            // made the mount writable), the reply is the same.
            op::SETATTR
            | op::SYMLINK
            | op::MKNOD
            | op::MKDIR
            | op::UNLINK
            | op::RMDIR
            | op::RENAME
            | op::RENAME2
            | op::LINK
            | op::WRITE
            | op::CREATE
            | op::TMPFILE
            | op::SETXATTR
            | op::REMOVEXATTR
            | op::FALLOCATE
            | op::COPY_FILE_RANGE => Err(Errno::ROFS),
            // FLUSH is one of the rest: after one ENOSYS, the kernel sends no further ones.
            op::FLUSH => Err(Errno::NOSYS),
            other => {
                log_op!(header, "unknown operation {other}");
                Err(Errno::NOSYS)
            }
        }
    }
}
