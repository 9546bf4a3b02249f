//! Answers the requests of a writable mount.

use std::io;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::Mode;
use rustix::io::Errno;
use rustix::param::page_size;

use super::files::{self, Handles};
use super::layer::Layer;
use super::lower::ImageLower;
use super::tree::Tree;
use super::{attributes, listing, names, rename, wire};
use crate::descriptors::allow_many_files;
use crate::driver::{is_refused, reply};
use crate::mount_state::MountState;
use crate::ops;
use crate::ops::answer::{Answer, Outcome, log_op};
use crate::options::MountOptions;
use crate::proto::{Body, Header, InitIn, InitOut, MAX_REQUEST, init, op};
use crate::session::Answers;
use crate::ticket::Ticket;

/// Requests on their way that no program waits for.
const MAX_BACKGROUND: u16 = 64;

/// Serves a mount that programs may write to.
#[derive(Debug)]
pub(crate) struct WritableDriver {
    tree: Tree,
    handles: Handles,
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
        let image = state.main();
        let image = image.ok_or_else(|| io::Error::other("several images have no layer"))?;
        let layer = Layer::open(directory, keeps)?;
        // Each file that a program has open is open here, too.
        allow_many_files();
        let lower = Box::new(ImageLower::new(image, options.workers)?);
        Ok(Self {
            tree: Tree::new(state, lower, layer)?,
            handles: Handles::default(),
        })
    }

    fn handle(
        &self,
        ticket: &mut Option<Ticket>,
        header: &Header,
        body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let (tree, handles) = (&self.tree, &self.handles);
        tree.state.shared.counters.request(header.opcode);
        if is_refused(&tree.state, header) {
            return Err(Errno::ACCESS);
        }
        super::copies::carry_out(header);
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
            op::INTERRUPT => match { body }.u64() {
                Some(unique) if tree.copies.interrupt(unique) => Ok(Answer::NoReply),
                _ => ops::interrupt::answer(&tree.state, body),
            },
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
        let settings = &self.tree.state.settings;
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
        reply(ticket, header, out, |ticket, out| {
            self.handle(ticket, header, body, out)
        });
    }

    fn ended(&self) {
        self.tree.lower.abandon();
    }

    /// The modes of new files are those of the request, whatever the mask of this process.
    fn enter_thread(&self) {
        super::threads::have_own_mask();
        rustix::process::umask(Mode::empty());
    }
}
