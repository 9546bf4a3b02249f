//! Answers the requests of a writable mount.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::sync::Arc;

use rustix::io::Errno;
use rustix::param::page_size;

use super::directory::MarkKind;
use super::files::{self, Handles};
use super::layer::Layer;
use super::lower::ImageLower;
use super::threads::have_no_mask;
use super::tree::Tree;
use super::{attributes, copies, listing, names, rename, wire};
use crate::descriptors::allow_many_files;
use crate::driver::{is_refused, reply, send};
use crate::mount_state::MountState;
use crate::ops;
use crate::ops::answer::{Answer, Outcome, log_op};
use crate::options::MountOptions;
use crate::pending_reads::PendingReads;
use crate::pool::{Job, Lanes, Pool};
use crate::proto::{Body, Header, InitIn, InitOut, MAX_REQUEST, init, op};
use crate::session::Answers;
use crate::slots::{Purpose, Waiting};
use crate::ticket::Ticket;

/// Requests on their way that no program waits for.
const MAX_BACKGROUND: u16 = 64;

/// Threads that copy data to the layer. Others serve meanwhile.
const COPYING: usize = 4;
/// The lane of requests that copy data to the layer.
const COPIES: u32 = 0;

/// Serves a mount that programs may write to.
#[derive(Debug)]
pub(crate) struct WritableDriver {
    core: Arc<Core>,
    /// Carries out what may take long.
    long: Pool<LongJob>,
}

/// What all threads share.
#[derive(Debug)]
struct Core {
    tree: Tree,
    handles: Handles,
}

/// A request that may take long. Its ticket is in `pending_reads`.
#[derive(Debug)]
struct LongJob {
    request: Waiting,
    lane: u32,
}

impl Job for LongJob {
    type Shared = Arc<Core>;

    fn lane(&self) -> u32 {
        self.lane
    }

    fn run(&self, core: &Arc<Core>, scratch: &mut Vec<u8>) {
        have_no_mask();
        let request = &self.request;
        scratch.clear();
        let carried_out = copies::long(core.pending(), request.header.unique, || {
            core.handle(&mut None, &request.header, request.body(), scratch)
        });
        if let Some((outcome, ticket)) = carried_out {
            send(ticket, outcome, scratch);
        }
    }

    fn fail(&self, core: &Arc<Core>) {
        if let Some(ticket) = core.pending().finish(self.request.header.unique) {
            ticket.fail(Errno::IO);
        }
    }
}

impl WritableDriver {
    /// Opens the layer in `directory`. Without `keeps`, the changes need not survive a crash.
    ///
    /// # Errors
    /// The directory cannot be used, or a thread cannot be made.
    pub(crate) fn new(
        state: &Arc<MountState>,
        options: &MountOptions,
        directory: &Path,
        keeps: bool,
    ) -> io::Result<Self> {
        let tree = open(state, options.workers, directory, keeps)?;
        // Each file that a program has open is open here, too.
        allow_many_files();
        let core = Arc::new(Core {
            tree,
            handles: Handles::default(),
        });
        Ok(Self {
            long: Pool::new("fuse-long", Arc::clone(&core), COPYING, Lanes::Apart)?,
            core,
        })
    }

    /// Lets another thread carry out a request.
    fn put_off(&self, ticket: &mut Option<Ticket>, lane: u32, header: &Header, body: Body<'_>) {
        if let Some(ticket) = ticket.take() {
            self.core.pending().begin_long(ticket, header.pid);
        }
        let request = Waiting::new(header, body, Purpose::Answer);
        self.long.submit(LongJob { request, lane });
    }
}

/// Opens the layer in `directory`, and makes it if it is missing.
fn open(
    state: &Arc<MountState>,
    workers: usize,
    directory: &Path,
    keeps: bool,
) -> io::Result<Tree> {
    let image = state.main();
    let image = image.ok_or_else(|| io::Error::other("several images have no layer"))?;
    let layer = Layer::open(directory, keeps)?;
    // An image without an index has no identity that is known at once.
    let own = image.image.generation().unwrap_or_default();
    if !layer.note(own)? {
        let shown = directory.display();
        tracing::warn!(
            "the changes in {shown} were made on top of another image, or of another snapshot of this one"
        );
    }
    let lower = Box::new(ImageLower::new(image, workers)?);
    Ok(Tree::new(state, lower, layer)?)
}

/// A layer for the kernel's overlayfs.
#[derive(Debug)]
pub(crate) struct ForKernel {
    /// Whether its marks are in `user`, and not in `trusted`; or why the kernel does not understand them.
    pub(crate) in_user: io::Result<bool>,
    /// As long as it is open, no other mount uses the layer.
    pub(crate) lock: OwnedFd,
}

impl ForKernel {
    /// As [`WritableDriver::new`], but nothing serves the layer.
    pub(crate) fn open(state: &Arc<MountState>, directory: &Path, keeps: bool) -> io::Result<Self> {
        let layer = open(state, 1, directory, keeps)?.layer;
        let refused = |text| Err(io::Error::new(io::ErrorKind::Unsupported, text));
        let in_user = match layer.recorded_kind()? {
            Some(MarkKind::Trusted) => Ok(false),
            Some(MarkKind::User) => Ok(true),
            Some(MarkKind::Mixed) => refused(
                "the layer has marks of several kinds, which only the own driver understands",
            ),
            None => refused("it is not known whether the layer has marks in trusted or in user"),
        };
        Ok(Self {
            in_user,
            lock: layer.into_lock(),
        })
    }
}

/// The lane of a request that may take as long as the medium of the layer needs: that of its file.
fn lane_of_long(header: &Header) -> Option<u32> {
    let is_long = matches!(
        header.opcode,
        op::FSYNC | op::FSYNCDIR | op::FALLOCATE | op::COPY_FILE_RANGE
    );
    is_long.then_some((header.node as u32).max(COPIES + 1))
}

impl Core {
    fn pending(&self) -> &PendingReads {
        &self.tree.state.shared.pending_reads
    }

    fn handle(
        &self,
        ticket: &mut Option<Ticket>,
        header: &Header,
        body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let (tree, handles) = (&self.tree, &self.handles);
        log_op!(header, "operation {} of {}", header.opcode, header.node);
        match header.opcode {
            op::LOOKUP => names::look_up(tree, header, body, out),
            op::FORGET => {
                self.forget(header.node, { body }.u64().unwrap_or(1));
                Ok(Answer::NoReply)
            }
            op::BATCH_FORGET => {
                let mut body = body;
                // Number of items and padding.
                body.u64();
                while let (Some(node), Some(count)) = (body.u64(), body.u64()) {
                    self.forget(node, count);
                }
                Ok(Answer::NoReply)
            }
            op::GETATTR => attributes::getattr(tree, header, out),
            op::SETATTR => attributes::setattr(tree, handles, header, body, out),
            op::READLINK => attributes::readlink(tree, header, out),
            op::SYMLINK => names::symlink(tree, header, body, out),
            op::MKNOD => names::mknod(tree, header, body, out),
            op::MKDIR => names::mkdir(tree, header, body, out),
            op::UNLINK => names::remove(tree, header, body, false),
            op::RMDIR => names::remove(tree, header, body, true),
            op::RENAME => rename::rename(tree, header, body),
            op::RENAME2 => rename::rename2(tree, header, body),
            op::LINK => names::link(tree, header, body, out),
            op::CREATE => names::create(tree, handles, header, body, out),
            op::TMPFILE => names::temporary_file(tree, handles, header, body, out),
            op::OPEN => files::open(tree, handles, header, body, out),
            op::READ => files::read(tree, handles, ticket, header, body, out),
            op::WRITE => files::write(tree, handles, body, out),
            op::RELEASE | op::RELEASEDIR => files::release(handles, body),
            op::FSYNC => files::sync(tree, handles, body),
            op::FSYNCDIR => files::sync_directory(tree, handles, body),
            op::FALLOCATE => files::allocate(tree, handles, header, body),
            op::LSEEK => files::seek_in(tree, handles, header, body, out),
            op::COPY_FILE_RANGE => files::copy_range(tree, handles, header, body, out),
            op::OPENDIR => listing::open(tree, handles, header, out),
            op::READDIR => listing::read(tree, handles, false, body, out),
            op::READDIRPLUS => listing::read(tree, handles, true, body, out),
            op::STATFS => attributes::statfs(tree, out),
            op::GETXATTR => attributes::getxattr(tree, header, body, out),
            op::LISTXATTR => attributes::listxattr(tree, header, body, out),
            op::SETXATTR => attributes::setxattr(tree, header, body),
            op::REMOVEXATTR => attributes::removexattr(tree, header, body),
            op::INTERRUPT => ops::interrupt::answer(&tree.state, body),
            op::DESTROY => Ok(Answer::Reply),
            op::NOTIFY_REPLY => Ok(Answer::NoReply),
            // After this reply, the kernel sends no further ones: without ACCESS it checks as told by
            // `default_permissions`, without FLUSH closing needs no request, without STATX it asks with GETATTR.
            op::ACCESS | op::FLUSH | op::STATX => Err(Errno::NOSYS),
            other => {
                log_op!(header, "unknown operation {other}");
                Err(Errno::NOSYS)
            }
        }
    }

    fn forget(&self, node: u64, count: u64) {
        self.tree.nodes.forget(node, count);
    }
}

impl Answers for WritableDriver {
    fn init(&self, _header: &Header, kernel: &InitIn, _over_ring: Option<u16>, out: &mut Vec<u8>) {
        let settings = &self.core.tree.state.settings;
        // All changes come through this connection, so the kernel drops no data because of changed attributes.
        let mut wanted = init::ASYNC_READ
            | init::DO_READDIRPLUS
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::CACHE_SYMLINKS
            | init::EXPLICIT_INVAL_DATA
            | wire::init::ATOMIC_O_TRUNC
            | wire::init::BIG_WRITES
            | wire::init::HANDLE_KILLPRIV_V2;
        if settings.lists {
            wanted |= init::POSIX_ACL;
        }
        let answer = InitOut {
            max_readahead: kernel.max_readahead,
            flags: wanted & kernel.flags,
            flags2: 0,
            max_background: MAX_BACKGROUND,
            congestion_threshold: MAX_BACKGROUND / 4 * 3,
            max_write: wire::MAX_WRITE,
            max_pages: (MAX_REQUEST as usize / page_size()) as u16,
        };
        answer.put(kernel.minor, out);
    }

    fn serve(&self, ticket: Ticket, header: &Header, body: Body<'_>, out: &mut Vec<u8>) {
        let state = &self.core.tree.state;
        reply(ticket, header, out, |ticket, out| {
            state.shared.counters.request(header.opcode);
            if is_refused(state, header) {
                return Err(Errno::ACCESS);
            }
            let lane = match lane_of_long(header) {
                Some(lane) => lane,
                None => match copies::short(|| self.core.handle(ticket, header, body, out)) {
                    Some(outcome) => return outcome,
                    None => COPIES,
                },
            };
            self.put_off(ticket, lane, header, body);
            Ok(Answer::Passed)
        });
    }

    fn ended(&self) {
        self.core.tree.copies.end();
        self.core.tree.lower.abandon();
    }

    fn enter_thread(&self) {
        have_no_mask();
    }
}
