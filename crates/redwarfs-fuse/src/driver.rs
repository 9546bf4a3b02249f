//! The requests of the kernel, answered from an image.

use std::cell::RefCell;
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::time::Duration;

use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, InitFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyLseek,
    ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use redwarfs_format::ids::{EntryIndex, InodeNo};
use redwarfs_format::metadata::{Extent, FileType};
use redwarfs_reader::Image;
use tracing::{debug, error};

use crate::MountOptions;
use crate::attr::{Policy, inode_no, kind, node_id, permits};
use crate::pool::{Pool, ReadJob};
use crate::xattr;

/// How long the kernel may keep names and attributes: an image does not change.
const FOREVER: Duration = Duration::from_secs(365 * 24 * 60 * 60);
/// Numbers of inodes are never used again, so one generation serves all.
const GENERATION: Generation = Generation(1);
/// Largest request that the kernel sends with the default limits; also the bound of our buffers.
const MAX_REQUEST: u32 = 1 << 20;
const MAX_BACKGROUND: u16 = 64;
/// Positions of a directory: 0 is `.`, 1 is `..`, the entries follow.
const DOTS: u64 = 2;

thread_local! {
    /// Data of reads that are answered at once.
    static BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}

/// One mounted image.
#[derive(Debug)]
pub(crate) struct Driver {
    image: Image,
    inodes: u32,
    policy: Policy,
    keep_cache: bool,
    /// The kernel takes ENOSYS for "never send OPEN again".
    no_open: bool,
    no_opendir: bool,
    pool: Pool,
}

/// Logs a failed request on one line and gives the answer for it.
pub(crate) fn report(what: &str, inode: InodeNo, cause: &redwarfs_format::Error) -> Errno {
    error!("cannot {what} inode {}: {cause}", u64::from(inode.0) + 1);
    Errno::EIO
}

impl Driver {
    pub(crate) fn new(image: Image, options: &MountOptions) -> io::Result<Self> {
        Ok(Self {
            inodes: image.metadata().inode_count(),
            policy: Policy::new(options),
            keep_cache: options.keep_cache,
            no_open: false,
            no_opendir: false,
            pool: Pool::new(&image, options.workers)?,
            image,
        })
    }

    /// The inode of a node id.
    fn inode(&self, node: INodeNo) -> Result<InodeNo, Errno> {
        inode_no(node)
            .filter(|inode| inode.0 < self.inodes)
            .ok_or(Errno::ENOENT)
    }

    fn attr(&self, inode: InodeNo) -> Result<fuser::FileAttr, Errno> {
        let meta = self.image.metadata();
        meta.stat(inode)
            .and_then(|stat| self.policy.attr(&stat))
            .map_err(|cause| report("stat", inode, &cause))
    }

    /// Attributes for `name` in `parent`; those of nothing if there is no such name.
    fn entry(&self, parent: INodeNo, name: &OsStr) -> Result<fuser::FileAttr, Errno> {
        let parent = self.inode(parent)?;
        match self.image.lookup(parent, name.as_bytes()) {
            Ok(Some(inode)) => self.attr(inode),
            Ok(None) => Ok(Policy::nothing()),
            Err(cause) => Err(report("look up a name in", parent, &cause)),
        }
    }

    /// Calls `add(inode, next position, name, entry)` from `position` on until it says that the
    /// buffer is full.
    fn list(
        &self,
        node: INodeNo,
        position: u64,
        mut add: impl FnMut(InodeNo, u64, &[u8]) -> Result<bool, Errno>,
    ) -> Result<(), Errno> {
        let dir = self.inode(node)?;
        let meta = self.image.metadata();
        let fail = |cause: &redwarfs_format::Error| report("list", dir, cause);
        if meta.file_type(dir).map_err(|cause| fail(&cause))? != FileType::Directory {
            return Err(Errno::ENOTDIR);
        }
        if position == 0 && add(dir, 1, b".")? {
            return Ok(());
        }
        if position <= 1 {
            let parent = meta.parent(dir).map_err(|cause| fail(&cause))?;
            if add(parent, DOTS, b"..")? {
                return Ok(());
            }
        }
        let range = meta.entries(dir).map_err(|cause| fail(&cause))?;
        let skip = u32::try_from(position.saturating_sub(DOTS)).unwrap_or(u32::MAX);
        let first = range.start.saturating_add(skip);
        for index in first..range.end {
            let entry = EntryIndex(index);
            let inode = meta.entry_inode(entry).map_err(|cause| fail(&cause))?;
            let name = meta.entry_name(entry).map_err(|cause| fail(&cause))?;
            let next = u64::from(index - range.start) + DOTS + 1;
            if add(inode, next, &name)? {
                break;
            }
        }
        Ok(())
    }

    /// Answers a read at once if the data is at hand, and hands it to a worker otherwise.
    fn serve_read(&self, inode: InodeNo, offset: u64, size: usize, reply: ReplyData) {
        BUFFER.with_borrow_mut(|buffer| {
            buffer.clear();
            match self.image.try_read_cached(inode, offset, size, buffer) {
                Ok(true) => reply.data(buffer),
                Ok(false) => self.pool.submit(ReadJob {
                    inode,
                    offset,
                    size,
                    reply,
                }),
                Err(cause) => reply.error(report("read", inode, &cause)),
            }
        });
    }

    /// `SEEK_DATA` and `SEEK_HOLE`.
    fn seek(&self, node: INodeNo, offset: i64, whence: i32) -> Result<i64, Errno> {
        let inode = self.inode(node)?;
        let hole_wanted = match whence {
            SEEK_DATA => false,
            SEEK_HOLE => true,
            _ => return Err(Errno::EINVAL),
        };
        let offset = u64::try_from(offset).map_err(|_| Errno::ENXIO)?;
        let extents = self
            .image
            .metadata()
            .extents(inode)
            .map_err(|cause| report("seek in", inode, &cause))?;
        let found = seek_extents(extents, offset, hole_wanted)
            .map_err(|cause| report("seek in", inode, &cause))?;
        found
            .and_then(|position| i64::try_from(position).ok())
            .ok_or(Errno::ENXIO)
    }

    fn xattr_value(&self, inode: InodeNo, name: &OsStr) -> Result<Vec<u8>, Errno> {
        match xattr::value(&self.image, &self.policy, inode, name.as_bytes()) {
            Ok(Some(value)) => Ok(value),
            Ok(None) => Err(Errno::NO_XATTR),
            Err(cause) => Err(report("describe", inode, &cause)),
        }
    }
}

const SEEK_DATA: i32 = 3;
const SEEK_HOLE: i32 = 4;

/// The first position from `offset` on that lies in a hole (or in data). The end of the file counts
/// as a hole. None: there is none, or `offset` is not inside the file.
fn seek_extents(
    extents: impl IntoIterator<Item = redwarfs_format::Result<Extent>>,
    offset: u64,
    hole_wanted: bool,
) -> redwarfs_format::Result<Option<u64>> {
    let mut position = 0u64;
    for extent in extents {
        let (length, hole) = match extent? {
            Extent::Data { size, .. } => (u64::from(size), false),
            Extent::Hole { size } => (size, true),
        };
        let end = position.saturating_add(length);
        if hole == hole_wanted && end > offset {
            return Ok(Some(position.max(offset)));
        }
        position = end;
    }
    Ok((hole_wanted && offset < position).then_some(position))
}

fn answer_xattr(reply: ReplyXattr, size: u32, value: Result<Vec<u8>, Errno>) {
    match value {
        Err(errno) => reply.error(errno),
        Ok(value) => match u32::try_from(value.len()) {
            Ok(length) if size == 0 => reply.size(length),
            Ok(length) if length <= size => reply.data(&value),
            _ => reply.error(Errno::ERANGE),
        },
    }
}

#[allow(clippy::too_many_arguments)]
impl Filesystem for Driver {
    fn init(&mut self, _req: &Request, config: &mut KernelConfig) -> io::Result<()> {
        // EXPLICIT_INVAL_DATA keeps the kernel from dropping cached data when it thinks that a
        // file changed; READDIRPLUS_AUTO is left out because it falls back to one request per entry.
        for flag in [
            InitFlags::FUSE_ASYNC_READ,
            InitFlags::FUSE_ASYNC_DIO,
            InitFlags::FUSE_PARALLEL_DIROPS,
            InitFlags::FUSE_CACHE_SYMLINKS,
            InitFlags::FUSE_EXPLICIT_INVAL_DATA,
            InitFlags::FUSE_DO_READDIRPLUS,
            InitFlags::FUSE_MAX_PAGES,
        ] {
            // An older kernel without it is served all the same.
            let _ = config.add_capabilities(flag);
        }
        let capabilities = config.capabilities();
        if self.keep_cache && capabilities.contains(InitFlags::FUSE_NO_OPEN_SUPPORT) {
            self.no_open = config
                .add_capabilities(InitFlags::FUSE_NO_OPEN_SUPPORT)
                .is_ok();
        }
        self.no_opendir = config
            .add_capabilities(InitFlags::FUSE_NO_OPENDIR_SUPPORT)
            .is_ok();
        // Nothing is written, but the size of read requests is derived from this.
        let _ = config.set_max_write(MAX_REQUEST);
        let _ = config.set_max_background(MAX_BACKGROUND);
        Ok(())
    }

    fn lookup(&self, _req: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        debug!("op_lookup({}, {})", parent.0, name.display());
        match self.entry(parent, name) {
            Ok(attr) => reply.entry(&FOREVER, &attr, GENERATION),
            Err(errno) => reply.error(errno),
        }
    }

    fn forget(&self, _req: &Request, _ino: INodeNo, _nlookup: u64) {}

    fn getattr(&self, _req: &Request, ino: INodeNo, _fh: Option<FileHandle>, reply: ReplyAttr) {
        debug!("op_getattr({})", ino.0);
        match self.inode(ino).and_then(|inode| self.attr(inode)) {
            Ok(attr) => reply.attr(&FOREVER, &attr),
            Err(errno) => reply.error(errno),
        }
    }

    fn readlink(&self, _req: &Request, ino: INodeNo, reply: ReplyData) {
        debug!("op_readlink({})", ino.0);
        let inode = match self.inode(ino) {
            Ok(inode) => inode,
            Err(errno) => return reply.error(errno),
        };
        match self.image.metadata().symlink(inode) {
            Ok(target) => reply.data(&target),
            Err(cause) => reply.error(report("read link", inode, &cause)),
        }
    }

    fn open(&self, _req: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        debug!("op_open({}, {:#x})", ino.0, flags);
        if self.no_open {
            return reply.error(Errno::ENOSYS);
        }
        let cached = FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_NOFLUSH;
        reply.opened(
            FileHandle(0),
            if self.keep_cache {
                cached
            } else {
                FopenFlags::FOPEN_NOFLUSH
            },
        );
    }

    fn read(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyData,
    ) {
        debug!("op_read({}, {size}, {offset})", ino.0);
        let inode = match self.inode(ino) {
            Ok(inode) => inode,
            Err(errno) => return reply.error(errno),
        };
        let size = size.min(MAX_REQUEST) as usize;
        self.serve_read(inode, offset, size, reply);
    }

    fn flush(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _lock_owner: LockOwner,
        reply: ReplyEmpty,
    ) {
        // ENOSYS, once, spares all further ones.
        reply.error(Errno::ENOSYS);
    }

    fn opendir(&self, _req: &Request, ino: INodeNo, _flags: OpenFlags, reply: ReplyOpen) {
        debug!("op_opendir({})", ino.0);
        if self.no_opendir {
            return reply.error(Errno::ENOSYS);
        }
        reply.opened(
            FileHandle(0),
            FopenFlags::FOPEN_KEEP_CACHE | FopenFlags::FOPEN_CACHE_DIR,
        );
    }

    fn readdir(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        debug!("op_readdir({}, {offset})", ino.0);
        let meta = self.image.metadata();
        let listed = self.list(ino, offset, |inode, next, name| {
            let ty = meta
                .file_type(inode)
                .map_err(|cause| report("stat", inode, &cause))?;
            Ok(reply.add(node_id(inode), next, kind(ty), OsStr::from_bytes(name)))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn readdirplus(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        debug!("op_readdirplus({}, {offset})", ino.0);
        // The kernel ignores the attributes of `.` and `..` but shows their numbers.
        let listed = self.list(ino, offset, |inode, next, name| {
            let attr = self.attr(inode)?;
            Ok(reply.add(
                attr.ino,
                next,
                OsStr::from_bytes(name),
                &FOREVER,
                &attr,
                GENERATION,
            ))
        });
        match listed {
            Ok(()) => reply.ok(),
            Err(errno) => reply.error(errno),
        }
    }

    fn statfs(&self, _req: &Request, ino: INodeNo, reply: ReplyStatfs) {
        debug!("op_statfs({})", ino.0);
        let totals = self.image.metadata().totals();
        let inodes = u64::from(self.inodes);
        reply.statfs(totals.allocated, 0, 0, inodes, 0, 1, 4096, 1);
    }

    fn getxattr(&self, _req: &Request, ino: INodeNo, name: &OsStr, size: u32, reply: ReplyXattr) {
        debug!("op_getxattr({}, {}, {size})", ino.0, name.display());
        let value = self
            .inode(ino)
            .and_then(|inode| self.xattr_value(inode, name));
        answer_xattr(reply, size, value);
    }

    fn listxattr(&self, _req: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        debug!("op_listxattr({}, {size})", ino.0);
        let names = self.inode(ino).map(|inode| xattr::names(inode).to_vec());
        answer_xattr(reply, size, names);
    }

    fn access(&self, req: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        debug!("op_access({}, {mask})", ino.0);
        let inode = match self.inode(ino) {
            Ok(inode) => inode,
            Err(errno) => return reply.error(errno),
        };
        match self.image.metadata().stat(inode) {
            Ok(stat) => {
                let owner = (self.policy.uid(&stat), self.policy.gid(&stat));
                let caller = (req.uid(), req.gid());
                let wanted = mask.bits().unsigned_abs();
                if permits(self.policy.mode(&stat), owner, caller, wanted) {
                    reply.ok();
                } else {
                    reply.error(Errno::EACCES);
                }
            }
            Err(cause) => reply.error(report("stat", inode, &cause)),
        }
    }

    fn lseek(
        &self,
        _req: &Request,
        ino: INodeNo,
        _fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        debug!("op_lseek({}, {offset}, {whence})", ino.0);
        match self.seek(ino, offset, whence) {
            Ok(position) => reply.offset(position),
            Err(errno) => reply.error(errno),
        }
    }

    // The mount is read-only, so the kernel refuses these itself. Should one arrive (a remount made
    // the mount writable), the answer is the same.

    fn setattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _mode: Option<u32>,
        _uid: Option<u32>,
        _gid: Option<u32>,
        _size: Option<u64>,
        _atime: Option<TimeOrNow>,
        _mtime: Option<TimeOrNow>,
        _ctime: Option<std::time::SystemTime>,
        _fh: Option<FileHandle>,
        _crtime: Option<std::time::SystemTime>,
        _chgtime: Option<std::time::SystemTime>,
        _bkuptime: Option<std::time::SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        reply.error(Errno::EROFS);
    }

    fn mknod(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _rdev: u32,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EROFS);
    }

    fn mkdir(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EROFS);
    }

    fn unlink(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn rmdir(&self, _req: &Request, _parent: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn symlink(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _link_name: &OsStr,
        _target: &std::path::Path,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EROFS);
    }

    fn rename(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _newparent: INodeNo,
        _newname: &OsStr,
        _flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EROFS);
    }

    fn link(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _newparent: INodeNo,
        _newname: &OsStr,
        reply: ReplyEntry,
    ) {
        reply.error(Errno::EROFS);
    }

    fn write(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        _data: &[u8],
        _write_flags: WriteFlags,
        _flags: OpenFlags,
        _lock_owner: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::EROFS);
    }

    fn create(
        &self,
        _req: &Request,
        _parent: INodeNo,
        _name: &OsStr,
        _mode: u32,
        _umask: u32,
        _flags: i32,
        reply: ReplyCreate,
    ) {
        reply.error(Errno::EROFS);
    }

    fn setxattr(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _name: &OsStr,
        _value: &[u8],
        _flags: i32,
        _position: u32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EROFS);
    }

    fn removexattr(&self, _req: &Request, _ino: INodeNo, _name: &OsStr, reply: ReplyEmpty) {
        reply.error(Errno::EROFS);
    }

    fn fallocate(
        &self,
        _req: &Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: u64,
        _length: u64,
        _mode: i32,
        reply: ReplyEmpty,
    ) {
        reply.error(Errno::EROFS);
    }

    fn copy_file_range(
        &self,
        _req: &Request,
        _ino_in: INodeNo,
        _fh_in: FileHandle,
        _offset_in: u64,
        _ino_out: INodeNo,
        _fh_out: FileHandle,
        _offset_out: u64,
        _len: u64,
        _flags: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        reply.error(Errno::EROFS);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use redwarfs_format::ids::BlockNo;

    #[test]
    fn seeking() {
        let data = |size| {
            Ok(Extent::Data {
                block: BlockNo(0),
                offset: 0,
                size,
            })
        };
        let hole = |size| Ok(Extent::Hole { size });
        // 0..10 data, 10..30 hole, 30..35 data, 35..40 hole
        let seek = |offset, hole_wanted| {
            seek_extents(
                [data(4), data(6), hole(20), data(5), hole(5)],
                offset,
                hole_wanted,
            )
            .expect("no corrupt extent in the list")
        };
        let table = [
            (0, Some(0), Some(10)),
            (9, Some(9), Some(10)),
            (10, Some(30), Some(10)),
            (29, Some(30), Some(29)),
            (34, Some(34), Some(35)),
            (36, None, Some(36)),
            (40, None, None),
            (u64::MAX, None, None),
        ];
        for (offset, next_data, next_hole) in table {
            assert_eq!(seek(offset, false), next_data, "data from {offset}");
            assert_eq!(seek(offset, true), next_hole, "hole from {offset}");
        }
        let plain = |offset| seek_extents([data(4)], offset, true).expect("not corrupt");
        assert_eq!(plain(2), Some(4));
        assert_eq!(plain(4), None);
    }
}
