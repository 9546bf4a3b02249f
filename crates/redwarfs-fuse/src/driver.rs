//! The requests of the kernel, answered from an image.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;

use redwarfs_format::ids::{EntryIndex, InodeNo};
use redwarfs_format::metadata::FileType;
use redwarfs_reader::perfmon::{Running, Timer};
use rustix::io::Errno;
use rustix::param::page_size;
use rustix::process::geteuid;
use tracing::{debug, error};

use crate::analysis::Analysis;
use crate::attr::{Policy, inode_no, node_id};
use crate::case::CaseIndex;
use crate::device::Device;
use crate::idle;
use crate::kernel::lets_others_in;
use crate::pool::{Pool, ReadJob};
use crate::prepared::Prepared;
use crate::proto::{
    self, Attr, Body, Header, InitIn, InitOut, Put, Validity, dirent_size, init, op, opened,
};
use crate::push::Pusher;
use crate::ring;
use crate::shared::Shared;
use crate::statistics::Counters;
use crate::ticket::Ticket;
use crate::xattr::Describer;
use crate::{Access, MountOptions};

/// How long the kernel may keep names and attributes: an image does not change.
const FOREVER: Validity = 365 * 24 * 60 * 60;
/// Largest request that the kernel sends with the default limits; also the bound of our buffers.
pub(crate) const MAX_REQUEST: u32 = 1 << 20;
const MAX_BACKGROUND: u16 = 64;
/// Positions of a directory: 0 is `.`, 1 is `..`, the entries follow.
const DOTS: u64 = 2;
/// Longest name that the kernel takes in a listing (4095 since Linux 6.17, before that 1024).
const LONGEST_NAME: usize = 1024;

const O_ACCMODE: u32 = 3;
const SEEK_DATA: u32 = 3;
const SEEK_HOLE: u32 = 4;

/// How a request is answered.
#[derive(Debug, PartialEq, Eq)]
enum Answer {
    /// With the bytes in the buffer.
    Reply,
    /// Not at all, or by whoever took the ticket.
    Done,
}

type Outcome = std::result::Result<Answer, Errno>;

/// Logs an operation with the one who asked for it.
macro_rules! log_op {
    ($header:expr, $($text:tt)*) => {
        tracing::debug!(
            "{} [pid={}, uid={}, gid={}]",
            format_args!($($text)*),
            $header.pid,
            $header.uid,
            $header.gid
        )
    };
}

mod attributes;

/// One mounted image.
#[derive(Debug)]
pub(crate) struct Driver {
    shared: Arc<Shared>,
    inodes: u32,
    policy: Policy,
    keep_cache: bool,
    cache_sparse: bool,
    /// Only root and this user may ask. As the kernel lets everybody in, it must ask every time.
    only_for: Option<u32>,
    /// The kernel takes ENOSYS for "never send OPEN again".
    no_open: bool,
    no_opendir: bool,
    /// How long names and attributes are valid.
    names: Validity,
    attributes: Validity,
    /// Every opening of a directory has to be seen.
    ask_opendir: bool,
    describer: Describer,
    /// Extended attributes are listed.
    list_xattrs: bool,
    case: Option<CaseIndex>,
    analysis: Option<Analysis>,
    pusher: Option<Arc<Pusher>>,
    pool: Pool,
    /// Ends when the last handle of the pusher is gone.
    _pushing: Option<Pushing>,
}

/// Waits for the pushing thread at the end.
#[derive(Debug)]
struct Pushing(Option<JoinHandle<()>>);

impl Drop for Pushing {
    fn drop(&mut self) {
        if let Some(thread) = self.0.take() {
            // It catches its own panics.
            let _ = thread.join();
        }
    }
}

impl Driver {
    pub(crate) fn new(
        shared: &Arc<Shared>,
        prepared: Prepared,
        device: &Arc<Device>,
        options: &MountOptions,
    ) -> io::Result<Self> {
        let image = &shared.image;
        let only_for = (options.access == Access::OwnerAndRoot && lets_others_in(options))
            .then(|| geteuid().as_raw());
        let valid = options.idle.map_or(FOREVER, idle::validity);
        let sparse = image.metadata().hole_block().is_some();
        let cache_sparse = options.cache_sparse || !sparse;
        // Pages that the kernel drops at the next opening need not be pushed.
        let (pusher, pushing) = if options.push && options.keep_cache && Pusher::is_for(image) {
            let (pusher, thread) = Pusher::new(shared, device, cache_sparse)?;
            (Some(Arc::new(pusher)), Some(thread))
        } else {
            (None, None)
        };
        Ok(Self {
            inodes: image.metadata().inode_count(),
            policy: Policy::new(options),
            keep_cache: options.keep_cache,
            cache_sparse,
            only_for,
            no_open: false,
            no_opendir: false,
            names: if only_for.is_some() { 0 } else { valid },
            attributes: valid,
            ask_opendir: only_for.is_some() || options.idle.is_some(),
            describer: Describer::new(image),
            list_xattrs: options.list_xattrs,
            case: prepared.case,
            analysis: prepared.analysis,
            pool: Pool::new(shared, pusher.as_ref(), options.workers)?,
            pusher,
            shared: Arc::clone(shared),
            _pushing: pushing.map(|thread| Pushing(Some(thread))),
        })
    }

    /// What is counted.
    pub(crate) fn counters(&self) -> &Counters {
        &self.shared.counters
    }

    /// Negotiates: appends the answer to INIT. `over_ring`: agrees to requests over io_uring, which
    /// the kernel must have offered.
    pub(crate) fn init(
        &mut self,
        header: &Header,
        kernel: &InitIn,
        over_ring: bool,
        out: &mut Vec<u8>,
    ) {
        let _timer = self.shared.timers.init.start();
        log_op!(header, "op_init()");
        // EXPLICIT_INVAL_DATA keeps the kernel from dropping cached data when it thinks that a
        // file changed; READDIRPLUS_AUTO is left out because it falls back to one request per
        // entry. EXPORT_SUPPORT: `.` and `..` can be looked up, which NFS needs. ASYNC_DIO is left
        // out because a reader with O_DIRECT could then not be killed while the image stalls.
        let mut wanted = init::ASYNC_READ
            | init::EXPORT_SUPPORT
            | init::DO_READDIRPLUS
            | init::PARALLEL_DIROPS
            | init::MAX_PAGES
            | init::CACHE_SYMLINKS
            | init::EXPLICIT_INVAL_DATA;
        if !self.ask_opendir {
            wanted |= init::NO_OPENDIR_SUPPORT;
        }
        let sees_openings = self.only_for.is_some() || self.analysis.is_some();
        if self.keep_cache && self.cache_sparse && !sees_openings {
            wanted |= init::NO_OPEN_SUPPORT;
        }
        let mut flags = wanted & kernel.flags;
        let mut flags2 = 0;
        let mut max_background = MAX_BACKGROUND;
        if over_ring {
            flags |= init::INIT_EXT;
            flags2 = init::OVER_IO_URING;
            max_background = ring::MAX_BACKGROUND;
        }
        self.no_open = flags & init::NO_OPEN_SUPPORT != 0;
        self.no_opendir = flags & init::NO_OPENDIR_SUPPORT != 0;
        let answer = InitOut {
            max_readahead: kernel.max_readahead,
            flags,
            flags2,
            max_background,
            congestion_threshold: max_background / 4 * 3,
            // Nothing is written.
            max_write: 4096,
            max_pages: (MAX_REQUEST as usize / page_size()) as u16,
        };
        answer.put(kernel.minor, out);
    }

    /// Carries out one request and answers it, or lets a worker do that. `out` is room for the
    /// answer.
    pub(crate) fn serve(&self, ticket: Ticket, header: &Header, body: Body<'_>, out: &mut Vec<u8>) {
        out.clear();
        let mut ticket = Some(ticket);
        // A panic must cost one request, not the mount.
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
            Ok(Ok(Answer::Done)) => ticket.leave(),
            Ok(Err(errno)) => ticket.fail(errno),
            Err(_) => ticket.fail(Errno::IO),
        }
    }

    /// Carries out one request. `out` is empty. Whoever takes the ticket answers.
    fn handle(
        &self,
        ticket: &mut Option<Ticket>,
        header: &Header,
        body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        self.shared.counters.request(header.opcode);
        if let Some(owner) = self.only_for
            && header.uid != owner
            && header.uid != 0
            // The kernel sends these for nobody in particular.
            && !matches!(
                header.opcode,
                op::FORGET | op::BATCH_FORGET | op::INTERRUPT | op::RELEASE | op::RELEASEDIR
                    | op::READ | op::FSYNC | op::FSYNCDIR | op::DESTROY
            )
        {
            return Err(Errno::ACCESS);
        }
        match header.opcode {
            op::LOOKUP => self.lookup(header, body, out),
            op::FORGET => {
                self.forget(header.node);
                Ok(Answer::Done)
            }
            op::BATCH_FORGET => self.batch_forget(body),
            op::GETATTR => self.getattr(header, out),
            op::READLINK => self.readlink(header, out),
            op::OPEN => self.open(header, body, out),
            op::READ => self.read(ticket, header, body, out),
            op::STATFS => self.statfs(header, out),
            op::OPENDIR => self.opendir(header, out),
            op::READDIR => self.readdir(header, body, out),
            op::READDIRPLUS => self.readdirplus(header, body, out),
            op::GETXATTR => self.getxattr(header, body, out),
            op::LISTXATTR => self.listxattr(header, body, out),
            op::ACCESS => self.access(header, body),
            op::LSEEK => self.lseek(header, body, out),
            op::INTERRUPT => self.interrupt(body),
            op::RELEASE | op::RELEASEDIR | op::FSYNC | op::FSYNCDIR | op::DESTROY => {
                Ok(Answer::Reply)
            }
            op::NOTIFY_REPLY => Ok(Answer::Done),
            // The mount is read-only, so the kernel refuses these itself. Should one arrive (a
            // remount made the mount writable), the answer is the same.
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
            // FLUSH is among the rest: ENOSYS, once, spares all further ones.
            op::FLUSH => Err(Errno::NOSYS),
            other => {
                log_op!(header, "unknown operation {other}");
                Err(Errno::NOSYS)
            }
        }
    }

    fn fail(&self, what: &str, inode: InodeNo, cause: &redwarfs_format::Error) -> Errno {
        self.shared.failures.report(what, inode, cause)
    }

    /// The inode of a node id.
    fn inode(&self, node: u64) -> Result<InodeNo, Errno> {
        inode_no(node)
            .filter(|inode| inode.0 < self.inodes)
            .ok_or(Errno::NOENT)
    }

    fn directory(&self, node: u64, what: &str) -> Result<InodeNo, Errno> {
        let inode = self.inode(node)?;
        match self.shared.image.metadata().file_type(inode) {
            Ok(FileType::Directory) => Ok(inode),
            Ok(_) => Err(Errno::NOTDIR),
            Err(cause) => Err(self.fail(what, inode, &cause)),
        }
    }

    fn attr(&self, inode: InodeNo) -> Result<Attr, Errno> {
        match self.shared.image.metadata().stat(inode) {
            Ok(stat) => Ok(self.policy.attr(&stat)),
            Err(cause) => Err(self.fail("stat", inode, &cause)),
        }
    }

    /// The inode with a name in a directory.
    fn find(&self, node: u64, name: &[u8]) -> Result<Option<InodeNo>, Errno> {
        let meta = self.shared.image.metadata();
        match name {
            // Asked when a file handle (of NFS) is turned into a file: for any kind of inode.
            b"." => return self.inode(node).map(Some),
            b".." => {
                let inode = self.directory(node, "look up the parent of")?;
                let parent = meta.parent(inode);
                return parent
                    .map(Some)
                    .map_err(|cause| self.fail("look up the parent of", inode, &cause));
            }
            _ => {}
        }
        let dir = self.directory(node, "look up a name in")?;
        let found = meta
            .find(dir, name)
            .and_then(|found| match (found, &self.case) {
                (None, Some(case)) => case.find(meta, dir, name),
                _ => Ok(found),
            });
        found
            .and_then(|entry| entry.map(|entry| meta.entry_inode(entry)).transpose())
            .map_err(|cause| self.fail("look up a name in", dir, &cause))
    }

    fn lookup(&self, header: &Header, mut body: Body<'_>, out: &mut Vec<u8>) -> Outcome {
        let _timer = timed(&self.shared.timers.lookup, header);
        let name = body.name().ok_or(Errno::IO)?;
        log_op!(
            header,
            "op_lookup({}, {})",
            header.node,
            String::from_utf8_lossy(name)
        );
        match self.find(header.node, name)? {
            Some(inode) => {
                let attr = self.attr(inode)?;
                if let Some(pusher) = &self.pusher {
                    pusher.knows(inode);
                }
                attr.put_entry(self.names, self.attributes, out);
            }
            // Node id 0 makes the kernel remember that the name does not exist.
            None => Attr::default().put_entry(self.names, self.attributes, out),
        }
        Ok(Answer::Reply)
    }

    fn forget(&self, node: u64) {
        if let Some(pusher) = &self.pusher
            && let Some(inode) = inode_no(node)
        {
            pusher.forgets(inode);
        }
    }

    fn batch_forget(&self, mut body: Body<'_>) -> Outcome {
        // Number of items and padding; each is a node and how many lookups it had.
        body.u64();
        while let (Some(node), Some(_)) = (body.u64(), body.u64()) {
            self.forget(node);
        }
        Ok(Answer::Done)
    }

    fn getattr(&self, header: &Header, out: &mut Vec<u8>) -> Outcome {
        let _timer = timed(&self.shared.timers.getattr, header);
        log_op!(header, "op_getattr({})", header.node);
        self.attr(self.inode(header.node)?)?
            .put_attr(self.attributes, out);
        Ok(Answer::Reply)
    }

    fn readlink(&self, header: &Header, out: &mut Vec<u8>) -> Outcome {
        let _timer = timed(&self.shared.timers.readlink, header);
        log_op!(header, "op_readlink({})", header.node);
        let inode = self.inode(header.node)?;
        match self.shared.image.metadata().symlink(inode) {
            // The kernel takes a page.
            Ok(target) if target.len() >= 4096 => Err(Errno::NAMETOOLONG),
            Ok(target) => {
                out.extend_from_slice(&target);
                Ok(Answer::Reply)
            }
            Err(cause) => Err(self.fail("read link", inode, &cause)),
        }
    }

    fn open(&self, header: &Header, mut body: Body<'_>, out: &mut Vec<u8>) -> Outcome {
        let _timer = timed(&self.shared.timers.open, header);
        let flags = body.u32().ok_or(Errno::IO)?;
        log_op!(header, "op_open({}, {flags:#x})", header.node);
        if flags & O_ACCMODE != 0 {
            return Err(Errno::ROFS);
        }
        if self.no_open {
            return Err(Errno::NOSYS);
        }
        let inode = self.inode(header.node)?;
        let meta = self.shared.image.metadata();
        if let Some(analysis) = &self.analysis {
            analysis.opened(meta, inode);
        }
        let keep = self.keep_cache
            && (self.cache_sparse || {
                let stat = meta.stat(inode);
                let stat = stat.map_err(|cause| self.fail("stat", inode, &cause))?;
                stat.allocated >= stat.size
            });
        put_opened(
            opened::NOFLUSH | if keep { opened::KEEP_CACHE } else { 0 },
            out,
        );
        Ok(Answer::Reply)
    }

    fn read(
        &self,
        ticket: &mut Option<Ticket>,
        header: &Header,
        mut body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let timer = timed(&self.shared.timers.read, header);
        body.u64();
        let (offset, size) = body.u64().zip(body.u32()).ok_or(Errno::IO)?;
        debug!("op_read({}, {size}, {offset})", header.node);
        let inode = self.inode(header.node)?;
        let size = size.min(MAX_REQUEST) as usize;
        match self.shared.image.try_read_pinned(inode, offset, size, out) {
            Ok(Some(read)) => {
                if let Some(pusher) = &self.pusher {
                    pusher.was_read(inode, offset, read.len());
                }
                // Whoever has the answer must find this read in the statistics.
                drop(timer);
                if let Some(ticket) = ticket.take() {
                    ticket.reply_parts(read.parts());
                }
                Ok(Answer::Done)
            }
            Ok(None) => {
                // The worker takes the time.
                std::mem::forget(timer);
                self.shared.counters.deferred();
                if let Some(ticket) = ticket.take() {
                    self.shared.interrupts.begin(ticket, header.pid);
                }
                self.pool.submit(ReadJob {
                    inode,
                    offset,
                    size,
                    unique: header.unique,
                });
                Ok(Answer::Done)
            }
            Err(cause) => Err(self.fail("read", inode, &cause)),
        }
    }

    fn interrupt(&self, mut body: Body<'_>) -> Outcome {
        let unique = body.u64().ok_or(Errno::IO)?;
        debug!("interrupt({unique})");
        if self.shared.interrupts.interrupt(unique) {
            Ok(Answer::Done)
        } else {
            // Either it was answered just now, then the kernel ignores this; or another thread has
            // it and has not registered it yet, then the kernel asks again.
            Err(Errno::AGAIN)
        }
    }

    fn statfs(&self, header: &Header, out: &mut Vec<u8>) -> Outcome {
        let _timer = self.shared.timers.statfs.start();
        log_op!(header, "op_statfs({})", header.node);
        out.put64(self.shared.image.metadata().totals().allocated);
        // Free and available blocks.
        out.put64(0);
        out.put64(0);
        out.put64(u64::from(self.inodes));
        // Free inodes.
        out.put64(0);
        // Block size, longest name, fragment size, padding.
        for value in [1, 4096, 1, 0] {
            out.put32(value);
        }
        out.extend_from_slice(&[0; 6 * 4]);
        Ok(Answer::Reply)
    }

    fn opendir(&self, header: &Header, out: &mut Vec<u8>) -> Outcome {
        log_op!(header, "op_opendir({})", header.node);
        if self.no_opendir {
            return Err(Errno::NOSYS);
        }
        // A listing in the kernel's cache could be read without asking us.
        put_opened(
            if self.only_for.is_some() {
                0
            } else {
                opened::KEEP_CACHE | opened::CACHE_DIR
            },
            out,
        );
        Ok(Answer::Reply)
    }

    /// Calls `add(inode, next position, name)` from `position` on until it says that the buffer is
    /// full.
    fn list(
        &self,
        dir: InodeNo,
        position: u64,
        mut add: impl FnMut(InodeNo, u64, &[u8]) -> Result<bool, Errno>,
    ) -> Result<(), Errno> {
        let meta = self.shared.image.metadata();
        let fail = |cause: redwarfs_format::Error| self.fail("list", dir, &cause);
        if position == 0 && add(dir, 1, b".")? {
            return Ok(());
        }
        if position <= 1 && add(meta.parent(dir).map_err(fail)?, DOTS, b"..")? {
            return Ok(());
        }
        let range = meta.entries(dir).map_err(fail)?;
        let skip = u32::try_from(position.saturating_sub(DOTS)).unwrap_or(u32::MAX);
        let first = range.start.saturating_add(skip);
        for index in first..range.end {
            let entry = EntryIndex(index);
            let name = meta.entry_name(entry).map_err(fail)?;
            if !is_listable(&name) {
                // One such name would make the kernel refuse the whole listing.
                let text = format!("directory {}: a name that cannot be shown", node_id(dir));
                self.shared.failures.mention(&text);
                continue;
            }
            let inode = meta.entry_inode(entry).map_err(fail)?;
            if add(inode, u64::from(index - range.start) + DOTS + 1, &name)? {
                break;
            }
        }
        Ok(())
    }

    fn readdir(&self, header: &Header, mut body: Body<'_>, out: &mut Vec<u8>) -> Outcome {
        let _timer = timed(&self.shared.timers.readdir, header);
        let (position, room) = directory_part(&mut body)?;
        log_op!(header, "op_readdir({}, {position})", header.node);
        let meta = self.shared.image.metadata();
        let dir = self.directory(header.node, "list")?;
        self.list(dir, position, |inode, next, name| {
            if out.len() + dirent_size(name, false) > room {
                return Ok(true);
            }
            let ty = meta.file_type(inode);
            let ty = ty.map_err(|cause| self.fail("stat", inode, &cause))?;
            proto::put_dirent(node_id(inode), next, ty.mode_bits(), name, out);
            Ok(false)
        })?;
        Ok(Answer::Reply)
    }

    fn readdirplus(&self, header: &Header, mut body: Body<'_>, out: &mut Vec<u8>) -> Outcome {
        let _timer = timed(&self.shared.timers.readdir, header);
        let (position, room) = directory_part(&mut body)?;
        log_op!(header, "op_readdirplus({}, {position})", header.node);
        let dir = self.directory(header.node, "list")?;
        // The kernel ignores the attributes of `.` and `..` but shows their numbers.
        self.list(dir, position, |inode, next, name| {
            if out.len() + dirent_size(name, true) > room {
                return Ok(true);
            }
            let attr = self.attr(inode)?;
            attr.put_entry(self.names, self.attributes, out);
            proto::put_dirent(attr.node, next, attr.mode, name, out);
            if let Some(pusher) = &self.pusher {
                pusher.knows(inode);
            }
            Ok(false)
        })?;
        Ok(Answer::Reply)
    }

    /// `SEEK_DATA` and `SEEK_HOLE`.
    fn lseek(&self, header: &Header, mut body: Body<'_>, out: &mut Vec<u8>) -> Outcome {
        let _timer = timed(&self.shared.timers.lseek, header);
        body.u64();
        let (offset, whence) = body.u64().zip(body.u32()).ok_or(Errno::IO)?;
        log_op!(header, "op_lseek({}, {offset}, {whence})", header.node);
        let meta = self.shared.image.metadata();
        if meta.hole_block().is_none() {
            // No file has holes: the kernel answers by itself from now on.
            return Err(Errno::NOSYS);
        }
        let inode = self.inode(header.node)?;
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
            .map_err(|cause| self.fail("seek in", inode, &cause))?;
        out.put64(found.ok_or(Errno::NXIO)?);
        Ok(Answer::Reply)
    }
}

/// Times the operation that a request asks for.
fn timed<'a>(timer: &'a Timer, header: &Header) -> Running<'a> {
    timer.start_with(&[("inode", header.node)])
}

/// Position and room of a request to list a directory.
fn directory_part(body: &mut Body<'_>) -> Result<(u64, usize), Errno> {
    body.u64();
    let (position, size) = body.u64().zip(body.u32()).ok_or(Errno::IO)?;
    Ok((position, size.min(MAX_REQUEST) as usize))
}

/// Whether the kernel takes a name in a listing.
fn is_listable(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..")
        && name.len() <= LONGEST_NAME
        && !name.iter().any(|&byte| byte == b'/' || byte == 0)
}

fn put_opened(flags: u32, out: &mut Vec<u8>) {
    // File handle, flags, padding.
    out.put64(0);
    out.put32(flags);
    out.put32(0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_the_kernel_refuses() {
        for name in [&b""[..], b".", b"..", b"a/b", b"/", b"a\0", &[b'x'; 1025]] {
            assert!(!is_listable(name), "{name:?}");
        }
        for name in [&b"..."[..], b"a b", b"\xff\n", &[b'x'; 1024]] {
            assert!(is_listable(name), "{name:?}");
        }
    }
}
