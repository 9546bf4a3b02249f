//! What lies below the writable layer: a tree that does not change.

use std::fmt;
use std::io;
use std::sync::Arc;

use redwarfs_format::ids::{EntryIndex, InodeNo};
use redwarfs_format::metadata::FileType;
use rustix::io::Errno;

use crate::image_state::ImageState;
use crate::ops;
use crate::ops::answer::Outcome;
use crate::ops::listing::is_listable;
use crate::ops::read::{ReadContext, ReadJob};
use crate::pool::{Lanes, Pool};
use crate::proto::{Attr, Body, Header};
use crate::ticket::Ticket;

/// A file or directory of the lower tree. A file with several names has a number for each name, because copying it up breaks
/// its links.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct LowerNo(pub(crate) u64);

/// An entry of a directory of the lower tree.
#[derive(Debug)]
pub(crate) struct LowerEntry {
    /// Inode number for programs.
    pub(crate) shown: u64,
    /// Type, as in a mode.
    pub(crate) mode: u32,
    pub(crate) name: Vec<u8>,
}

/// Name and value of an extended attribute.
pub(crate) type LowerXattr = (Vec<u8>, Vec<u8>);

/// A tree that does not change. Character devices with the number 0 are whiteouts of an overlay, so it has none.
pub(crate) trait Lower: fmt::Debug + Send + Sync {
    fn root(&self) -> LowerNo;

    /// No inode number for programs, and no [`LowerNo`] with 1 added, is this large.
    fn first_free(&self) -> u64;

    /// Inode numbers for programs that are larger, and below 2³², are free.
    fn last_small(&self) -> u64;

    /// The entry with this name in a directory.
    fn find(&self, dir: LowerNo, name: &[u8]) -> Result<Option<LowerNo>, Errno>;

    /// Attributes with the inode number for programs.
    fn attr(&self, of: LowerNo) -> Result<Attr, Errno>;

    fn entries(&self, dir: LowerNo) -> Result<Vec<LowerEntry>, Errno>;

    /// The target of a symbolic link.
    fn target(&self, of: LowerNo) -> Result<Vec<u8>, Errno>;

    /// The next range with data from `offset` on: its start and its end.
    fn next_data(&self, of: LowerNo, offset: u64) -> Result<Option<(u64, u64)>, Errno>;

    /// Reads from a regular file; less than asked for only at its end.
    fn read_at(&self, of: LowerNo, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno>;

    /// Names and values of all extended attributes, which a copy needs.
    fn xattrs(&self, of: LowerNo) -> Result<Vec<LowerXattr>, Errno>;

    /// Lets all who wait for data fail, at the end of the mount.
    fn abandon(&self);

    /// Answers READ, at once or later from another thread.
    fn read(
        &self,
        of: LowerNo,
        ticket: &mut Option<Ticket>,
        header: &Header,
        body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome;

    /// Answers LSEEK.
    fn lseek(&self, of: LowerNo, header: &Header, body: Body<'_>, out: &mut Vec<u8>) -> Outcome;

    /// Answers GETXATTR.
    fn getxattr(&self, of: LowerNo, header: &Header, body: Body<'_>, out: &mut Vec<u8>) -> Outcome;

    /// Answers LISTXATTR.
    fn listxattr(&self, of: LowerNo, header: &Header, body: Body<'_>, out: &mut Vec<u8>)
    -> Outcome;
}

/// Numbers from here on are of names, the others of inodes.
const NAMES: u64 = 1 << 32;

/// An image as the lower tree.
#[derive(Debug)]
pub(crate) struct ImageLower {
    state: Arc<ImageState>,
    pool: Pool<ReadJob>,
}

impl ImageLower {
    /// Starts `workers` threads for reads that need decoding.
    ///
    /// # Errors
    /// A thread cannot be made.
    pub(crate) fn new(state: &Arc<ImageState>, workers: usize) -> io::Result<Self> {
        let context = ReadContext { pusher: None };
        Ok(Self {
            state: Arc::clone(state),
            pool: Pool::new("fuse-read", context, workers, Lanes::Together)?,
        })
    }

    fn name(of: LowerNo) -> Option<EntryIndex> {
        let entry = u32::try_from(of.0.checked_sub(NAMES)?).ok()?;
        Some(EntryIndex(entry))
    }

    fn inode(&self, of: LowerNo) -> Result<InodeNo, Errno> {
        match Self::name(of) {
            Some(name) => {
                let inode = self.state.image.metadata().entry_inode(name);
                inode.map_err(|cause| self.state.fail("look up", self.state.image.root(), &cause))
            }
            None => u32::try_from(of.0).map(InodeNo).map_err(|_| Errno::NOENT),
        }
    }

    /// The number of an entry; none for a whiteout.
    fn number(&self, inode: InodeNo, entry: EntryIndex) -> Result<Option<(LowerNo, u32)>, Errno> {
        let meta = self.state.image.metadata();
        let fail = |cause: redwarfs_format::Error| self.state.fail("stat", inode, &cause);
        let file_type = meta.file_type(inode).map_err(fail)?;
        let of_inode = LowerNo(u64::from(inode.0));
        let number = match file_type {
            FileType::Directory => of_inode,
            _ => {
                let stat = meta.stat(inode).map_err(fail)?;
                if file_type == FileType::CharDevice && stat.rdev == 0 {
                    return Ok(None);
                }
                match stat.nlink > 1 || meta.is_legacy() {
                    true => LowerNo(NAMES + u64::from(entry.0)),
                    false => of_inode,
                }
            }
        };
        Ok(Some((number, file_type.mode_bits())))
    }

    /// The header of a request for the image.
    fn header(&self, of: LowerNo, header: &Header) -> Result<Header, Errno> {
        Ok(Header {
            node: self.state.node(self.inode(of)?),
            ..*header
        })
    }
}

impl Lower for ImageLower {
    fn root(&self) -> LowerNo {
        LowerNo(u64::from(self.state.image.root().0))
    }

    fn first_free(&self) -> u64 {
        NAMES << 2
    }

    fn last_small(&self) -> u64 {
        u64::from(self.state.image.metadata().inode_count()) + 1
    }

    fn find(&self, dir: LowerNo, name: &[u8]) -> Result<Option<LowerNo>, Errno> {
        let dir = self.inode(dir)?;
        let meta = self.state.image.metadata();
        let fail = |cause: redwarfs_format::Error| {
            let what = "look up a name in";
            self.state.fail(what, dir, &cause)
        };
        let Some(entry) = meta.find(dir, name).map_err(fail)? else {
            return Ok(None);
        };
        let inode = meta.entry_inode(entry).map_err(fail)?;
        Ok(self.number(inode, entry)?.map(|(number, _)| number))
    }

    fn attr(&self, of: LowerNo) -> Result<Attr, Errno> {
        (self.state).attr_of_name(self.inode(of)?, Self::name(of))
    }

    fn entries(&self, dir: LowerNo) -> Result<Vec<LowerEntry>, Errno> {
        let dir = self.inode(dir)?;
        let meta = self.state.image.metadata();
        let fail = |cause: redwarfs_format::Error| self.state.fail("list", dir, &cause);
        let range = meta.entries(dir).map_err(fail)?;
        let mut entries = Vec::new();
        for index in range {
            let entry = EntryIndex(index);
            let name = meta.entry_name(entry).map_err(fail)?;
            if !is_listable(&name) {
                let shown = self.state.node(dir);
                let text = format!("directory {shown}: a name that cannot be shown");
                self.state.failures.mention(&text);
                continue;
            }
            let inode = meta.entry_inode(entry).map_err(fail)?;
            if let Some((_, mode)) = self.number(inode, entry)? {
                entries.push(LowerEntry {
                    shown: self.state.number(inode),
                    mode,
                    name: name.into_owned(),
                });
            }
        }
        Ok(entries)
    }

    fn target(&self, of: LowerNo) -> Result<Vec<u8>, Errno> {
        let inode = self.inode(of)?;
        let target = self.state.image.metadata().symlink(inode);
        match target {
            // The kernel takes a page.
            Ok(target) if target.len() >= 4096 => Err(Errno::NAMETOOLONG),
            Ok(target) => Ok(target.to_vec()),
            Err(cause) => Err(self.state.fail("read link", inode, &cause)),
        }
    }

    fn next_data(&self, of: LowerNo, offset: u64) -> Result<Option<(u64, u64)>, Errno> {
        let inode = self.inode(of)?;
        let meta = self.state.image.metadata();
        let seek = |from, hole| {
            meta.extents(inode)
                .and_then(|extents| extents.seek(from, hole))
                .map_err(|cause| self.state.fail("seek in", inode, &cause))
        };
        let Some(start) = seek(offset, false)? else {
            return Ok(None);
        };
        Ok(seek(start, true)?.map(|end| (start, end)))
    }

    fn read_at(&self, of: LowerNo, offset: u64, buffer: &mut [u8]) -> Result<usize, Errno> {
        let inode = self.inode(of)?;
        let read = self.state.image.read_at(inode, offset, buffer);
        read.map_err(|cause| self.state.fail("read", inode, &cause))
    }

    fn xattrs(&self, of: LowerNo) -> Result<Vec<LowerXattr>, Errno> {
        if !self.state.settings.stored_xattrs {
            return Ok(Vec::new());
        }
        let inode = self.inode(of)?;
        let image = &self.state.image;
        let all = || -> redwarfs_reader::Result<Vec<LowerXattr>> {
            let mut all = Vec::new();
            let mut last = Vec::new();
            for xattr in image.xattrs(inode)? {
                let name = xattr.name()?.into_owned();
                // No name is empty. So this ends soon, whatever the image says.
                if name <= last {
                    let what = "names of extended attributes are not sorted";
                    return Err(redwarfs_format::Error::corrupt(what));
                }
                last.clone_from(&name);
                all.push((name, image.xattr_value(&xattr)?.into_owned()));
            }
            Ok(all)
        };
        all().map_err(|cause| {
            let what = "read the extended attributes of";
            self.state.fail(what, inode, &cause)
        })
    }

    fn abandon(&self) {
        if self.state.settings.owns_image {
            self.state.image.source().abandon();
        }
    }

    fn read(
        &self,
        of: LowerNo,
        ticket: &mut Option<Ticket>,
        header: &Header,
        body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let header = self.header(of, header)?;
        ops::read::answer(&self.state, None, &self.pool, ticket, &header, body, out)
    }

    fn lseek(&self, of: LowerNo, header: &Header, body: Body<'_>, out: &mut Vec<u8>) -> Outcome {
        match ops::lseek::answer(&self.state, &self.header(of, header)?, body, out) {
            // It would be about all files, also those of the writable layer.
            Err(Errno::NOSYS) => {
                let (mut body, size) = (body, self.attr(of)?.size);
                body.u64();
                let (offset, whence) = body.u64().zip(body.u32()).ok_or(Errno::IO)?;
                super::wire::put_seek_without_holes(offset, whence, size, out)
            }
            other => other,
        }
    }

    fn getxattr(&self, of: LowerNo, header: &Header, body: Body<'_>, out: &mut Vec<u8>) -> Outcome {
        ops::getxattr::answer(&self.state, &self.header(of, header)?, body, out)
    }

    fn listxattr(
        &self,
        of: LowerNo,
        header: &Header,
        body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        ops::listxattr::answer(&self.state, &self.header(of, header)?, body, out)
    }
}

impl Drop for ImageLower {
    /// Before the workers are awaited.
    fn drop(&mut self) {
        self.abandon();
    }
}
