//! The driver: chooses the operation for each request.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, OnceLock};

use rustix::io::Errno;
use tracing::{error, warn};

use crate::device::Device;
use crate::generations::{Found, MOST_OPEN, Purpose, SlotNo, Waiting};
use crate::mount_state::MountState;
use crate::ops;
use crate::ops::answer::{Answer, Outcome, log_op};
use crate::ops::init::Agreed;
use crate::ops::read::{ReadContext, ReadJob};
use crate::options::MountOptions;
use crate::pool::{Job, Pool};
use crate::proto::{Body, Header, InitIn, op};
use crate::push::{PushThread, Pusher};
use crate::snapshots::{PlaceOfNode, place};
use crate::ticket::Ticket;

/// What answers requests.
#[derive(Debug)]
struct Core {
    state: Arc<MountState>,
    /// Known from INIT on.
    agreed: OnceLock<Agreed>,
    pusher: Option<Arc<Pusher>>,
    pool: Pool<ReadJob>,
}

/// Serves one mounted image.
#[derive(Debug)]
pub(crate) struct Driver {
    /// Opens generations. Made with the driver if the options ask for others than the one that is mounted, because a
    /// thread inherits processors and priority of the one that makes it; otherwise when one is needed.
    opener: OnceLock<Pool<OpenJob>>,
    core: Arc<Core>,
    /// Ends when the last handle of the pusher is gone.
    _push_thread: Option<PushThread>,
}

impl Drop for Driver {
    /// Before the workers are awaited.
    fn drop(&mut self) {
        if self.core.state.settings.owns_image {
            self.core.state.image.source().abandon();
        }
    }
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
        let driver = Self {
            opener: OnceLock::new(),
            core: Arc::new(Core {
                state: Arc::clone(state),
                agreed: OnceLock::new(),
                pool: Pool::new("fuse-read", context, options.workers)?,
                pusher,
            }),
            _push_thread: push_thread,
        };
        if options.snapshots.is_some() || options.follow_newest {
            driver.opener();
        }
        Ok(driver)
    }

    /// Negotiates the parameters of the connection, see [`ops::init::answer`].
    pub(crate) fn init(
        &self,
        header: &Header,
        kernel: &InitIn,
        over_ring: Option<u16>,
        out: &mut Vec<u8>,
    ) {
        let agreed = ops::init::answer(&self.core.state, header, kernel, over_ring, out);
        let _first = self.core.agreed.set(agreed);
    }

    /// Carries out one request and replies, or lets a worker do that. `out` is a buffer for the reply.
    pub(crate) fn serve(&self, ticket: Ticket, header: &Header, body: Body<'_>, out: &mut Vec<u8>) {
        reply(ticket, header, out, |ticket, out| {
            self.handle(ticket, header, body, out)
        });
    }

    /// Carries out one request. `out` is empty. The owner of the ticket replies.
    fn handle(
        &self,
        ticket: &mut Option<Ticket>,
        header: &Header,
        body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let (core, state) = (&self.core, &self.core.state);
        state.counters.request(header.opcode);
        if ticket.as_ref().is_some_and(Ticket::is_of_queue) {
            state.counters.over_ring();
        }
        if let Some(owner) = state.settings.only_for
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
        match place(state, header, body) {
            PlaceOfNode::Image => {
                let pusher = core.pusher.as_deref();
                core.answer(state, pusher, ticket, header, body, out)
            }
            PlaceOfNode::Generation(slot) => {
                self.of_generation(slot, Purpose::Answer, ticket, header, body, out)
            }
            PlaceOfNode::RootOf(slot) => {
                self.of_generation(slot, Purpose::Root, ticket, header, body, out)
            }
            PlaceOfNode::Directory => match &state.snapshots {
                Some(directory) => directory.answer(state, core.agreed(), header, body, out),
                None => Err(Errno::NOENT),
            },
            PlaceOfNode::Entry => match &state.snapshots {
                Some(directory) => directory.entry(state, out),
                None => Err(Errno::NOENT),
            },
        }
    }

    /// Carries out a request for another generation, or lets it wait until that is open.
    fn of_generation(
        &self,
        slot: SlotNo,
        purpose: Purpose,
        ticket: &mut Option<Ticket>,
        header: &Header,
        body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let state = &self.core.state;
        let Some(generations) = &state.generations else {
            return Err(Errno::NOENT);
        };
        let waiting = || {
            if let Some(ticket) = ticket.take() {
                state.pending_reads.begin(ticket, header.pid);
            }
            Waiting::new(header, body, purpose)
        };
        match generations.find(slot, waiting) {
            Found::Open(of) => (self.core).answer_of(&of, purpose, ticket, header, body, out),
            Found::Failed(errno) => Err(errno),
            Found::Waits => Ok(Answer::Passed),
            Found::Begins => {
                let job = OpenJob { slot };
                match self.opener() {
                    Some(pool) => pool.submit(job),
                    None => job.fail(&self.core),
                }
                Ok(Answer::Passed)
            }
        }
    }

    /// The threads that open generations. None if they cannot be made now.
    fn opener(&self) -> Option<&Pool<OpenJob>> {
        if self.opener.get().is_none() {
            let made = Pool::new("fuse-open", Arc::clone(&self.core), MOST_OPEN)
                .inspect_err(|error| warn!("snapshots cannot be opened: {error}"));
            // Another thread may have been faster.
            let _made = self.opener.set(made.ok()?);
        }
        self.opener.get()
    }
}

/// Replies with what `handle` comes to, unless it passes the ticket on.
fn reply(
    ticket: Ticket,
    header: &Header,
    out: &mut Vec<u8>,
    handle: impl FnOnce(&mut Option<Ticket>, &mut Vec<u8>) -> Outcome,
) {
    out.clear();
    let mut ticket = Some(ticket);
    // A panic must fail one request, not the mount.
    let outcome = catch_unwind(AssertUnwindSafe(|| handle(&mut ticket, out)));
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

/// A generation that requests wait for.
#[derive(Debug)]
struct OpenJob {
    slot: SlotNo,
}

impl Job for OpenJob {
    type Shared = Arc<Core>;

    fn run(&self, core: &Arc<Core>, scratch: &mut Vec<u8>) {
        let state = &core.state;
        let Some(generations) = &state.generations else {
            return;
        };
        let (opened, settled) = generations.open(state, self.slot);
        for one in settled.waiting {
            // Otherwise it has a reply already, because its process was killed.
            let Some(ticket) = state.pending_reads.finish(one.header.unique) else {
                continue;
            };
            match &opened {
                Ok(of) => reply(ticket, &one.header, scratch, |ticket, out| {
                    core.answer_of(of, one.purpose, ticket, &one.header, one.body(), out)
                }),
                Err(errno) => ticket.fail(*errno),
            }
        }
    }

    fn fail(&self, core: &Arc<Core>) {
        let Some(generations) = &core.state.generations else {
            return;
        };
        for one in generations.fail(self.slot).waiting {
            if let Some(ticket) = core.state.pending_reads.finish(one.header.unique) {
                ticket.fail(Errno::IO);
            }
        }
    }
}

impl Core {
    fn agreed(&self) -> Agreed {
        self.agreed.get().copied().unwrap_or_default()
    }

    /// Carries out a request for another generation.
    fn answer_of(
        &self,
        of: &Arc<MountState>,
        purpose: Purpose,
        ticket: &mut Option<Ticket>,
        header: &Header,
        body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        match purpose {
            Purpose::Answer => self.answer(of, None, ticket, header, body, out),
            Purpose::Root => {
                let settings = &of.settings;
                of.attr(of.image.root())?
                    .put_entry(settings.names, settings.attributes, out);
                Ok(Answer::Reply)
            }
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
        let agreed = self.agreed();
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
