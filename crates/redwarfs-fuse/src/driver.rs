//! The driver: chooses the operation for each request.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::mpsc::{RecvTimeoutError, Sender, channel};
use std::sync::{Arc, OnceLock};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use rustix::io::Errno;
use tracing::{error, warn};

use crate::device::Device;
use crate::image_state::ImageState;
use crate::images::{FailedImage, NAMES_VALID};
use crate::mount_state::{HAS_SEVERAL, MountState, Root};
use crate::ops;
use crate::ops::answer::{Answer, Outcome, log_op};
use crate::ops::init::Agreed;
use crate::ops::read::{ReadContext, ReadJob};
use crate::options::MountOptions;
use crate::pool::{Job, Lanes, Pool};
use crate::proto::{Body, Header, InitIn, op};
use crate::push::{PushThread, Pusher};
use crate::routing::{PlaceOfNode, place};
use crate::session::Answers;
use crate::slots::{Found, OPENERS, Purpose, SlotNo, Waiting};
use crate::synthetic;
use crate::ticket::Ticket;

/// Longest time between two looks for images that nobody uses.
const LONGEST_LOOK: Duration = Duration::from_secs(1);
/// How long the end of the connection waits for images that are being opened.
const FAREWELL: Duration = Duration::from_secs(5);
/// Shortest time between two looks for images that nobody uses.
const SHORTEST_LOOK: Duration = Duration::from_millis(100);

/// What answers requests.
#[derive(Debug)]
struct Core {
    state: Arc<MountState>,
    /// Known from INIT on.
    agreed: OnceLock<Agreed>,
    pusher: Option<Arc<Pusher>>,
    pool: Pool<ReadJob>,
}

/// Serves one mount.
#[derive(Debug)]
pub(crate) struct Driver {
    /// Opens the images of slots. Made with the driver if the options ask for others than the one at the root, because a
    /// thread inherits processors and priority of the one that makes it; otherwise when one is needed.
    opener: OnceLock<Pool<OpenJob>>,
    core: Arc<Core>,
    /// Ends when the last handle of the pusher is gone.
    _push_thread: Option<PushThread>,
    /// Closes images that nobody uses.
    _closer: Option<Closer>,
}

impl Drop for Driver {
    /// Before the workers are awaited.
    fn drop(&mut self) {
        if HAS_SEVERAL {
            self.core.state.slots.end();
        }
        self.core.state.abandon();
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
        let pushes = options.push && options.keep_cache;
        let main = state.main().filter(|_| pushes);
        let (pusher, push_thread) = match main.filter(|main| Pusher::is_for(&main.image)) {
            Some(main) => {
                let (pusher, thread) = Pusher::new(main, device)?;
                (Some(Arc::new(pusher)), Some(thread))
            }
            None => (None, None),
        };
        let context = ReadContext {
            pusher: pusher.clone(),
        };
        let lanes = lanes(state);
        let driver = Self {
            opener: OnceLock::new(),
            core: Arc::new(Core {
                state: Arc::clone(state),
                agreed: OnceLock::new(),
                pool: Pool::new("fuse-read", context, options.workers, lanes)?,
                pusher,
            }),
            _push_thread: push_thread,
            _closer: match state.images() {
                Some(_) => Some(Closer::start(state, options.close_after)?),
                None => None,
            },
        };
        if options.snapshots.is_some() || options.follow_newest || state.images().is_some() {
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
        state.shared.counters.request(header.opcode);
        if ticket.as_ref().is_some_and(Ticket::is_of_queue) {
            state.shared.counters.over_ring();
        }
        if is_refused(state, header) {
            return Err(Errno::ACCESS);
        }
        if let Some(outcome) = core.of_connection(header, body) {
            return outcome;
        }
        match place(state, header, body) {
            PlaceOfNode::Image(image) => {
                let pusher = core.pusher.as_deref();
                core.answer(image, pusher, ticket, header, body, out)
            }
            _ if !HAS_SEVERAL => Err(Errno::NOENT),
            PlaceOfNode::Slot(slot) => {
                self.of_slot(slot, Purpose::Answer, ticket, header, body, out)
            }
            PlaceOfNode::RootOf(slot) => {
                self.of_slot(slot, Purpose::Root, ticket, header, body, out)
            }
            PlaceOfNode::Directory(directory) => {
                synthetic::answer(directory, state, core.agreed(), header, body, out)
            }
            PlaceOfNode::Failed(failed) => {
                synthetic::answer(&failed, state, core.agreed(), header, body, out)
            }
            PlaceOfNode::Union(directory) => {
                synthetic::answer(&directory, state, core.agreed(), header, body, out)
            }
            PlaceOfNode::Entry(directory) => directory.entry(state, out),
            PlaceOfNode::Whole(totals) => ops::statfs::put(totals, out),
            PlaceOfNode::Nothing => Err(Errno::NOENT),
        }
    }

    /// Carries out a request for the image of a slot, or lets it wait until that is open.
    fn of_slot(
        &self,
        slot: SlotNo,
        purpose: Purpose,
        ticket: &mut Option<Ticket>,
        header: &Header,
        body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let state = &self.core.state;
        let waiting = || {
            if let Some(ticket) = ticket.take() {
                state.shared.pending_reads.begin(ticket, header.pid);
            }
            Waiting::new(header, body, purpose)
        };
        match state.slots.find(slot, waiting) {
            Found::Open(of) => (self.core).answer_of(&of, purpose, ticket, header, body, out),
            Found::Failed(errno) => self.core.failed(slot, purpose, errno, out),
            Found::Waits => Ok(Answer::Passed),
            Found::Begins => {
                let job = OpenJob::new(slot);
                match self.opener() {
                    Some(pool) => pool.submit(job),
                    None => job.fail(&self.core),
                }
                Ok(Answer::Passed)
            }
        }
    }

    /// The threads that open images. None if they cannot be made now.
    fn opener(&self) -> Option<&Pool<OpenJob>> {
        if self.opener.get().is_none() {
            let lanes = lanes(&self.core.state);
            let made = Pool::new("fuse-open", Arc::clone(&self.core), OPENERS, lanes)
                .map(|pool| pool.waiting_at_most(FAREWELL))
                .inspect_err(|error| warn!("images cannot be opened: {error}"));
            // Another thread may have been faster.
            let _made = self.opener.set(made.ok()?);
        }
        self.opener.get()
    }
}

/// A thread that closes images that nobody uses. It ends with this.
#[derive(Debug)]
struct Closer {
    end: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Closer {
    fn start(state: &Arc<MountState>, after: Option<Duration>) -> io::Result<Self> {
        let (end, ended) = channel::<()>();
        let state = Arc::clone(state);
        let period = after.map_or(LONGEST_LOOK, |after| after / 4);
        let period = period.clamp(SHORTEST_LOOK, LONGEST_LOOK);
        let thread = Builder::new()
            .name(String::from("fuse-close"))
            .spawn(move || {
                crate::follow::stay_behind();
                while ended.recv_timeout(period) == Err(RecvTimeoutError::Timeout) {
                    state.slots.close_idle(after);
                }
            })?;
        Ok(Self {
            end: Some(end),
            thread: Some(thread),
        })
    }
}

impl Drop for Closer {
    fn drop(&mut self) {
        drop(self.end.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// How the images of a mount share threads. Generations of one image are on one medium.
fn lanes(state: &MountState) -> Lanes {
    match state.root {
        Root::Image(_) => Lanes::Together,
        Root::Images(_) | Root::Union(_) => Lanes::Apart,
    }
}

/// Whether the user of a request may not use the mount.
pub(crate) fn is_refused(state: &MountState, header: &Header) -> bool {
    let Some(owner) = state.settings.only_for else {
        return false;
    };
    header.uid != owner
        && header.uid != 0
        // These requests of the kernel belong to no process.
        && !matches!(
            header.opcode,
            op::FORGET
                | op::BATCH_FORGET
                | op::INTERRUPT
                | op::RELEASE
                | op::RELEASEDIR
                | op::READ
                | op::WRITE
                | op::FSYNC
                | op::FSYNCDIR
                | op::DESTROY
        )
}

/// Replies with what `handle` comes to, unless it passes the ticket on.
pub(crate) fn reply(
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
    if let Some(ticket) = ticket {
        send(ticket, outcome.unwrap_or(Err(Errno::IO)), out);
    }
}

/// Replies with an outcome.
pub(crate) fn send(ticket: Ticket, outcome: Outcome, out: &[u8]) {
    match outcome {
        Ok(Answer::Reply) => ticket.reply(out),
        Ok(Answer::NoReply | Answer::Passed) => ticket.leave(),
        Err(errno) => ticket.fail(errno),
    }
}

/// An image that requests wait for.
#[derive(Debug)]
struct OpenJob {
    /// That of an image which takes the place of the first one, if another one was found there.
    slot: AtomicU32,
}

impl OpenJob {
    fn new(slot: SlotNo) -> Self {
        Self {
            slot: AtomicU32::new(slot.0),
        }
    }

    fn slot(&self) -> SlotNo {
        SlotNo(self.slot.load(Ordering::Relaxed))
    }

    /// Opens the image, and answers the requests that wait for it. Returns the slot of the image that is to be opened next,
    /// because another one was found in this place.
    fn open(&self, core: &Core, scratch: &mut Vec<u8>) -> Option<SlotNo> {
        let (state, slot) = (&core.state, self.slot());
        let (opened, settled) = state.slots.open(state, slot);
        let mut next = None;
        for one in settled.waiting {
            let mut opened = opened.clone();
            if let (Err(Errno::STALE), Some(new)) = (&opened, core.renewed(&one)) {
                let waits = one.clone();
                opened = match state.slots.find(new, move || waits) {
                    Found::Open(state) => Ok(state),
                    Found::Failed(errno) => Err(errno),
                    Found::Waits => continue,
                    Found::Begins => {
                        next = Some(new);
                        continue;
                    }
                };
            }
            // Otherwise it has a reply already, because its process was killed.
            let Some(ticket) = state.shared.pending_reads.finish(one.header.unique) else {
                continue;
            };
            reply(ticket, &one.header, scratch, |ticket, out| match &opened {
                Ok(of) => core.answer_of(of, one.purpose, ticket, &one.header, one.body(), out),
                Err(errno) => core.failed(slot, one.purpose, *errno, out),
            });
        }
        next
    }
}

impl Job for OpenJob {
    type Shared = Arc<Core>;

    fn lane(&self) -> u32 {
        self.slot().0
    }

    fn run(&self, core: &Arc<Core>, scratch: &mut Vec<u8>) {
        while let Some(next) = self.open(core, scratch) {
            self.slot.store(next.0, Ordering::Relaxed);
        }
    }

    fn fail(&self, core: &Arc<Core>) {
        for one in core.state.slots.fail(self.slot()).waiting {
            if let Some(ticket) = core.state.shared.pending_reads.finish(one.header.unique) {
                ticket.fail(Errno::IO);
            }
        }
    }
}

impl Answers for Driver {
    fn init(&self, header: &Header, kernel: &InitIn, over_ring: Option<u16>, out: &mut Vec<u8>) {
        Self::init(self, header, kernel, over_ring, out);
    }

    fn serve(&self, ticket: Ticket, header: &Header, body: Body<'_>, out: &mut Vec<u8>) {
        Self::serve(self, ticket, header, body, out);
    }
}

impl Core {
    fn agreed(&self) -> Agreed {
        self.agreed.get().copied().unwrap_or_default()
    }

    /// Carries out a request that is for no inode, or needs nothing of it.
    fn of_connection(&self, header: &Header, body: Body<'_>) -> Option<Outcome> {
        let pusher = self.pusher.as_deref();
        Some(match header.opcode {
            op::FORGET => ops::forget::one(pusher, header.node),
            op::BATCH_FORGET => ops::forget::many(pusher, body),
            op::INTERRUPT => ops::interrupt::answer(&self.state, body),
            op::RELEASE | op::RELEASEDIR | op::FSYNC | op::FSYNCDIR | op::DESTROY => {
                Ok(Answer::Reply)
            }
            op::NOTIFY_REPLY => Ok(Answer::NoReply),
            _ => return None,
        })
    }

    /// Carries out a request for the image of a slot.
    fn answer_of(
        &self,
        of: &Arc<ImageState>,
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
                let names = match &self.state.root {
                    Root::Images(_) => settings.names.min(NAMES_VALID),
                    _ => settings.names,
                };
                of.attr(of.image.root())?
                    .put_entry(names, settings.attributes, out);
                Ok(Answer::Reply)
            }
        }
    }

    /// The slot of the image that has taken the place of a stale one whose directory a request looks up.
    fn renewed(&self, request: &Waiting) -> Option<SlotNo> {
        let images = self.state.images()?;
        let name = (request.purpose == Purpose::Root).then(|| request.body().name());
        images.slot(name.flatten()?, &self.state.slots)
    }

    /// Answers for an image that cannot be opened. If its directory is looked up, there is an empty one.
    fn failed(&self, slot: SlotNo, purpose: Purpose, errno: Errno, out: &mut Vec<u8>) -> Outcome {
        match (&self.state.root, purpose) {
            (Root::Images(_), Purpose::Root) if errno != Errno::STALE => {
                FailedImage::of(slot).put_entry(&self.state, out);
                Ok(Answer::Reply)
            }
            _ => Err(errno),
        }
    }

    /// Carries out a request for an inode of the image of `state`.
    fn answer(
        &self,
        state: &Arc<ImageState>,
        pusher: Option<&Pusher>,
        ticket: &mut Option<Ticket>,
        header: &Header,
        body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let agreed = self.agreed();
        match header.opcode {
            op::LOOKUP => ops::lookup::answer(state, pusher, header, body, out),
            op::GETATTR => ops::getattr::answer(state, header, out),
            op::STATX => ops::statx::answer(state, header, out),
            op::READLINK => ops::readlink::answer(state, header, out),
            op::OPEN => ops::open::answer(state, agreed, header, body, out),
            op::READ => ops::read::answer(state, pusher, &self.pool, ticket, header, body, out),
            op::STATFS => ops::statfs::answer(state, header, out),
            op::OPENDIR => ops::opendir::answer(&state.settings, agreed, header, out),
            op::READDIR => ops::readdir::answer(state, header, body, out),
            op::READDIRPLUS => ops::readdirplus::answer(state, pusher, header, body, out),
            op::GETXATTR => ops::getxattr::answer(state, header, body, out),
            op::LISTXATTR => ops::listxattr::answer(state, header, body, out),
            op::ACCESS => ops::access::answer(state, header, body),
            op::LSEEK => ops::lseek::answer(state, header, body, out),
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
