//! Open files and directories, and their data.

use std::collections::HashMap;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};

use rustix::fs::{
    FallocateFlags, OFlags, SeekFrom, copy_file_range, fallocate, fstat, fsync, seek,
};
use rustix::io::Errno;

use super::listing::Listing;
use super::nodes::Node;
use super::tree::{Tree, sync_file};
use super::wire::{OPEN_KILLS, WRITE_CACHE, WRITE_KILLS, WriteIn, put_opened, put_written};
use crate::ops::answer::{Answer, Outcome};
use crate::ops::lseek::{SEEK_DATA, SEEK_HOLE};
use crate::proto::{Body, Header, MAX_REQUEST, Put, opened};
use crate::ticket::Ticket;

const ACCESS_MODE: u32 = 3;
const O_TRUNC: u32 = OFlags::TRUNC.bits();
const O_APPEND: u32 = OFlags::APPEND.bits();
const FSYNC_DATA: u32 = 1;

/// An open file or directory.
#[derive(Debug)]
pub(super) struct Open {
    pub(super) node: Arc<Node>,
    /// The file of `upper`, from the first use on.
    file: OnceLock<Arc<OwnedFd>>,
    /// Of a directory: its entries when it was read from the start.
    pub(super) listing: Mutex<Option<Arc<Listing>>>,
}

/// All open files and directories.
#[derive(Debug, Default)]
pub(super) struct Handles {
    open: Mutex<HashMap<u64, Arc<Open>>>,
    next: AtomicU64,
}

impl Handles {
    fn open(&self) -> MutexGuard<'_, HashMap<u64, Arc<Open>>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, node: Arc<Node>, file: Option<OwnedFd>) -> u64 {
        let open = Open {
            node,
            file: file.map_or_else(OnceLock::new, |file| OnceLock::from(Arc::new(file))),
            listing: Mutex::default(),
        };
        let handle = self.next.fetch_add(1, Ordering::Relaxed) + 1;
        self.open().insert(handle, Arc::new(open));
        handle
    }

    pub(super) fn get(&self, handle: u64) -> Result<Arc<Open>, Errno> {
        self.open().get(&handle).cloned().ok_or(Errno::BADF)
    }

    /// Closes a file after the lock.
    pub(super) fn close(&self, handle: u64) -> Option<Arc<Open>> {
        self.open().remove(&handle)
    }
}

/// The file of `upper` of an open file, if it is there.
pub(super) fn upper_file(tree: &Tree, open: &Open) -> Result<Option<Arc<OwnedFd>>, Errno> {
    if let Some(file) = open.file.get() {
        return Ok(Some(Arc::clone(file)));
    }
    if !open.node.has_upper() {
        return Ok(None);
    }
    // It was opened for reading before the file was copied.
    let file = {
        let _reading = tree.reading();
        tree.open_own(&open.node)?
    };
    Ok(Some(Arc::clone(open.file.get_or_init(|| Arc::new(file)))))
}

/// Opens a file for a program. Returns the handle and the flags of the reply.
pub(super) fn open_node(
    tree: &Tree,
    handles: &Handles,
    node: Arc<Node>,
    flags: u32,
    how: u32,
) -> Result<(u64, u32), Errno> {
    let writes = flags & ACCESS_MODE != 0 || flags & O_TRUNC != 0;
    if writes {
        tree.copy_up(&node, (flags & O_TRUNC != 0).then_some(0))?;
    }
    let file = match node.has_upper() {
        true => {
            let kept = (OFlags::SYNC | OFlags::DSYNC | OFlags::TRUNC).bits() | ACCESS_MODE;
            let flags = OFlags::from_bits_retain(flags & kept);
            let file = {
                let _reading = tree.reading();
                tree.open(&node, flags)?
            };
            if flags.contains(OFlags::TRUNC) && how & OPEN_KILLS != 0 {
                tree.kill_ids(&file)?;
            }
            Some(file)
        }
        false => None,
    };
    Ok((handles.add(node, file), reply_flags(tree, writes)))
}

/// The flags of the reply to OPEN and CREATE.
pub(super) fn reply_flags(tree: &Tree, writes: bool) -> u32 {
    let keep = match tree.state.settings.keep_cache {
        true => opened::KEEP_CACHE,
        false => 0,
    };
    keep | if writes { 0 } else { opened::NOFLUSH }
}

pub(super) fn open(
    tree: &Tree,
    handles: &Handles,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let (flags, how) = body.u32().zip(body.u32()).ok_or(Errno::IO)?;
    let (handle, flags) = open_node(tree, handles, tree.node(header.node)?, flags, how)?;
    put_opened(handle, flags, out);
    Ok(Answer::Reply)
}

pub(super) fn read(
    tree: &Tree,
    handles: &Handles,
    ticket: &mut Option<Ticket>,
    header: &Header,
    body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let mut parts = body;
    let (handle, offset) = parts.u64().zip(parts.u64()).ok_or(Errno::IO)?;
    let size = parts.u32().ok_or(Errno::IO)?.min(MAX_REQUEST) as usize;
    let open = handles.get(handle)?;
    let Some(file) = upper_file(tree, &open)? else {
        let lower = open.node.lower.ok_or(Errno::IO)?;
        return tree.lower.read(lower, ticket, header, body, out);
    };
    out.resize(size, 0);
    let mut done = 0;
    while done < size {
        let room = out.get_mut(done..).unwrap_or_default();
        match rustix::io::pread(&*file, room, offset.saturating_add(done as u64)) {
            Ok(0) => break,
            Ok(read) => done += read,
            Err(Errno::INTR) => {}
            Err(error) => return Err(error),
        }
    }
    out.truncate(done);
    Ok(Answer::Reply)
}

pub(super) fn write(tree: &Tree, handles: &Handles, body: Body<'_>, out: &mut Vec<u8>) -> Outcome {
    let write = WriteIn::parse(body).ok_or(Errno::IO)?;
    let open = handles.get(write.handle)?;
    let file = upper_file(tree, &open)?.ok_or(Errno::BADF)?;
    if write.flags & WRITE_KILLS != 0 {
        tree.kill_ids(&file)?;
    }
    let mut start = write.offset;
    if write.open_flags & O_APPEND != 0 && write.flags & WRITE_CACHE == 0 {
        // The kernel does not know the end yet if another process has just truncated the file by opening it.
        start = start.min(fstat(&file)?.st_size as u64);
    }
    // What was written before an error counts.
    let mut done = 0;
    while done < write.data.len() {
        let (at, rest) = (start + done as u64, write.data.get(done..));
        match rustix::io::pwrite(&*file, rest.unwrap_or_default(), at) {
            Ok(0) => break,
            Ok(written) => done += written,
            Err(Errno::INTR) => {}
            Err(_) if done > 0 => break,
            Err(error) => return Err(error),
        }
    }
    put_written(done, out);
    Ok(Answer::Reply)
}

pub(super) fn release(handles: &Handles, mut body: Body<'_>) -> Outcome {
    drop(handles.close(body.u64().ok_or(Errno::IO)?));
    Ok(Answer::Reply)
}

pub(super) fn sync(tree: &Tree, handles: &Handles, mut body: Body<'_>) -> Outcome {
    let (handle, flags) = body.u64().zip(body.u32()).ok_or(Errno::IO)?;
    let open = handles.get(handle)?;
    if let Some(file) = upper_file(tree, &open)? {
        sync_file(&file, flags & FSYNC_DATA != 0)?;
        tree.sync_names(&open.node)?;
    }
    Ok(Answer::Reply)
}

pub(super) fn sync_directory(tree: &Tree, handles: &Handles, mut body: Body<'_>) -> Outcome {
    let open = handles.get(body.u64().ok_or(Errno::IO)?)?;
    if open.node.has_upper() {
        let dir = {
            let _reading = tree.reading();
            tree.open_own(&open.node)?
        };
        fsync(&dir)?;
        tree.sync_names(&open.node)?;
    }
    Ok(Answer::Reply)
}

pub(super) fn allocate(
    tree: &Tree,
    handles: &Handles,
    header: &Header,
    mut body: Body<'_>,
) -> Outcome {
    let (handle, offset) = body.u64().zip(body.u64()).ok_or(Errno::IO)?;
    let (length, mode) = body.u64().zip(body.u32()).ok_or(Errno::IO)?;
    let open = handles.get(handle)?;
    let file = upper_file(tree, &open)?.ok_or(Errno::BADF)?;
    kill_ids_for(tree, header, &file)?;
    fallocate(
        &*file,
        FallocateFlags::from_bits_retain(mode),
        offset,
        length,
    )?;
    Ok(Answer::Reply)
}

pub(super) fn seek_in(
    tree: &Tree,
    handles: &Handles,
    header: &Header,
    body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let mut parts = body;
    let (handle, offset) = parts.u64().zip(parts.u64()).ok_or(Errno::IO)?;
    let whence = parts.u32().ok_or(Errno::IO)?;
    let open = handles.get(handle)?;
    let Some(file) = upper_file(tree, &open)? else {
        let lower = open.node.lower.ok_or(Errno::IO)?;
        return tree.lower.lseek(lower, header, body, out);
    };
    // Reading and writing do not use the position.
    let found = seek(
        &*file,
        match whence {
            SEEK_DATA => SeekFrom::Data(offset),
            SEEK_HOLE => SeekFrom::Hole(offset),
            _ => return Err(Errno::INVAL),
        },
    )?;
    out.put64(found);
    Ok(Answer::Reply)
}

/// For a request that has no flag for this: another user than root takes set-user-id and set-group-id from a file.
fn kill_ids_for(tree: &Tree, header: &Header, file: &OwnedFd) -> Result<(), Errno> {
    match header.uid {
        0 => Ok(()),
        _ => tree.kill_ids(file),
    }
}

/// Copies between two files of `upper`. The kernel copies other data itself.
pub(super) fn copy_range(
    tree: &Tree,
    handles: &Handles,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    /// At a time: the reply has 32 bits.
    const MOST: u64 = 1 << 30;
    let (handle, mut from) = body.u64().zip(body.u64()).ok_or(Errno::IO)?;
    let _node = body.u64();
    let (handle_to, mut to) = body.u64().zip(body.u64()).ok_or(Errno::IO)?;
    let length = body.u64().ok_or(Errno::IO)?.min(MOST);
    let length = usize::try_from(length).map_err(|_| Errno::INVAL)?;
    let (source, target) = (handles.get(handle)?, handles.get(handle_to)?);
    let source = upper_file(tree, &source)?.ok_or(Errno::OPNOTSUPP)?;
    let target = upper_file(tree, &target)?.ok_or(Errno::BADF)?;
    kill_ids_for(tree, header, &target)?;
    let copied = copy_file_range(
        source.as_fd(),
        Some(&mut from),
        target.as_fd(),
        Some(&mut to),
        length,
    )?;
    put_written(copied, out);
    Ok(Answer::Reply)
}
