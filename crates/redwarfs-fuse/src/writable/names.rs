//! Names of directories: found, made, linked and removed.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Gid, Mode, OFlags, XattrFlags, chownat, fchmod, fstat, mkdirat, mknodat,
    openat, renameat, statat, symlinkat, unlinkat,
};
use rustix::io::Errno;

use super::files::{Handles, open_node, reply_flags};
use super::layer::{NAMES, UpperEntry, path_of, type_of};
use super::listing::{is_directory, is_empty};
use super::nodes::{Node, UpperNo};
use super::tree::{Found, Tree};
use super::wire::{device_number, put_entry, put_opened};
use crate::ops::answer::{Answer, Outcome};
use crate::proto::{Attr, Body, Header};

/// The bits of a mode that giving a file away takes.
const SET_IDS: u32 = 0o6000;
const SET_GID: u32 = 0o2000;
const DEFAULT_LIST: &str = "system.posix_acl_default";

/// Who makes a file.
#[derive(Debug, Clone, Copy)]
pub(super) struct Owner {
    uid: u32,
    gid: u32,
}

impl Owner {
    pub(super) fn of(header: &Header) -> Self {
        Self {
            uid: header.uid,
            gid: header.gid,
        }
    }
}

/// The node with a name in a directory, of which the kernel is told, and its attributes.
pub(super) fn lookup(
    tree: &Tree,
    dir: &Arc<Node>,
    name: &[u8],
) -> Result<Option<(Arc<Node>, Attr)>, Errno> {
    let _reading = tree.reading();
    let found = tree.find(dir, name)?;
    found.map(|found| tree.enter(&found, dir, name)).transpose()
}

/// LOOKUP.
pub(super) fn look_up(
    tree: &Tree,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let name = body.name().ok_or(Errno::IO)?;
    match lookup(tree, &tree.node(header.node)?, name)? {
        Some((node, attr)) => put_entry(node.id, &attr, tree.valid_of(&node, &attr), out),
        // Node id 0 makes the kernel remember that the name does not exist.
        None => put_entry(0, &Attr::default(), tree.valid, out),
    }
    Ok(Answer::Reply)
}

/// A directory in which names change, and the name.
struct Slot<'a> {
    dir: Arc<Node>,
    /// The directory in `upper`.
    upper: OwnedFd,
    name: &'a [u8],
    entry: UpperEntry,
    /// Whether the lower tree has the name.
    below: bool,
}

impl<'a> Slot<'a> {
    /// Needs the lock for changes. The directory is in `upper`.
    fn new(tree: &Tree, dir: &Arc<Node>, name: &'a [u8]) -> Result<Self, Errno> {
        if dir.is_removed() {
            return Err(Errno::NOENT);
        }
        let upper = tree.directory(dir)?;
        let entry = tree.layer.entry(upper.as_fd(), name)?;
        Ok(Self {
            dir: Arc::clone(dir),
            below: tree.below(dir, name)?.is_some(),
            upper,
            name,
            entry,
        })
    }

    /// Whether there is nothing under this name.
    fn is_free(&self) -> bool {
        match self.entry {
            UpperEntry::None => !self.below,
            UpperEntry::Whiteout => true,
            UpperEntry::Some(_) => false,
        }
    }
}

/// Makes a file under a name that is free. `build` makes it, in the given directory under the given name.
fn make<T>(
    tree: &Tree,
    header: &Header,
    name: &[u8],
    mode: u32,
    build: impl FnOnce(BorrowedFd<'_>, &[u8]) -> Result<T, Errno>,
) -> Result<(Arc<Node>, Attr, T), Errno> {
    let dir = tree.node(header.node)?;
    {
        // A directory is not copied in vain.
        let _reading = tree.reading();
        if tree.find(&dir, name)?.is_some() {
            return Err(Errno::EXIST);
        }
    }
    tree.copy_up(&dir, None)?;
    let _changing = tree.changing();
    let slot = Slot::new(tree, &dir, name)?;
    if !slot.is_free() {
        return Err(Errno::EXIST);
    }
    let owner = Owner::of(header);
    let made = if let UpperEntry::Whiteout = slot.entry {
        let temporary = tree.layer.temporary();
        let built = build_apart(tree, &temporary, &slot, |dir, name| {
            let made = build(dir, name)?;
            finish(tree, dir, name, &slot, mode, owner)?;
            Ok(made)
        });
        let placed = built.and_then(|made| {
            place(tree, &temporary, &slot)?;
            Ok(made)
        });
        if placed.is_err() {
            tree.layer.discard(&temporary);
        }
        placed?
    } else {
        let made = build(slot.upper.as_fd(), name)?;
        finish(tree, slot.upper.as_fd(), name, &slot, mode, owner)?;
        made
    };
    let (node, attr) = entered(tree, &slot)?;
    Ok((node, attr, made))
}

/// The node of what is in `upper` under a name, for the first time.
fn entered(tree: &Tree, slot: &Slot<'_>) -> Result<(Arc<Node>, Attr), Errno> {
    let stat = statat(&slot.upper, slot.name, AtFlags::SYMLINK_NOFOLLOW)?;
    // Never merged: where the lower tree has the name, it is opaque.
    let found = Found::Upper(stat, None);
    let (node, attr) = tree.enter(&found, &slot.dir, slot.name)?;
    node.set_fresh();
    Ok((node, attr))
}

/// Gives a new file to its owner, and the bits of its mode that this takes.
fn finish(
    tree: &Tree,
    dir: BorrowedFd<'_>,
    name: &[u8],
    slot: &Slot<'_>,
    mode: u32,
    owner: Owner,
) -> Result<(), Errno> {
    if !tree.layer.gives_away {
        return Ok(());
    }
    let named = openat(dir, name, NAMES, Mode::empty())?;
    let parent = fstat(&slot.upper)?;
    let is_directory = type_of(&fstat(&named)?) == FileType::Directory;
    let inherits = parent.st_mode & SET_GID != 0;
    let gid = if inherits { parent.st_gid } else { owner.gid };
    tree.own(&named, owner.uid, gid)?;
    if inherits && is_directory {
        // In `work` it has not inherited that.
        let mode = fstat(&named)?.st_mode | SET_GID;
        rustix::fs::chmod(path_of(&named), Mode::from_raw_mode(mode & 0o7777))?;
    } else if mode & SET_IDS != 0 && !is_directory {
        rustix::fs::chmod(path_of(&named), Mode::from_raw_mode(mode & 0o7777))?;
    }
    Ok(())
}

/// Makes something in `work` that has what it would have got from the directory of the slot: its access control list and its
/// group.
fn build_apart<T>(
    tree: &Tree,
    temporary: &std::ffi::CString,
    slot: &Slot<'_>,
    build: impl FnOnce(BorrowedFd<'_>, &[u8]) -> Result<T, Errno>,
) -> Result<T, Errno> {
    let (layer, work, name) = (&tree.layer, tree.layer.work(), temporary.to_bytes());
    let parent = fstat(&slot.upper)?;
    let list = default_list(&slot.upper)?;
    if list.is_none() && parent.st_mode & SET_GID == 0 {
        return build(work, name);
    }
    let apart = layer.temporary();
    mkdirat(work, &apart, Mode::RWXU)?;
    let make = || {
        let dir = openat(work, &apart, NAMES | OFlags::DIRECTORY, Mode::empty())?;
        if parent.st_mode & SET_GID != 0 {
            let group = Some(Gid::from_raw(parent.st_gid));
            // A user outside of the group may not do this, and in the directory the file would have the group.
            if chownat(&dir, "", None, group, AtFlags::EMPTY_PATH).is_ok() {
                rustix::fs::chmod(path_of(&dir), Mode::RWXU | Mode::SGID)?;
            }
        }
        if let Some(list) = list {
            let flags = XattrFlags::empty();
            rustix::fs::setxattr(path_of(&dir), DEFAULT_LIST, &list, flags)?;
        }
        let made = build(dir.as_fd(), name)?;
        let named = openat(&dir, name, NAMES, Mode::empty())?;
        // A directory that moves must be writable.
        (layer.modes).lend(&[named.as_fd()], || renameat(&dir, name, work, name))?;
        Ok(made)
    };
    let made = make();
    layer.discard(&apart);
    made
}

/// The access control list that new files in a directory get.
fn default_list(dir: &OwnedFd) -> Result<Option<Vec<u8>>, Errno> {
    let mut list = vec![0; crate::xattr::LARGEST];
    match rustix::fs::getxattr(path_of(dir), DEFAULT_LIST, list.as_mut_slice()) {
        Ok(length) => {
            list.truncate(length);
            Ok(Some(list))
        }
        Err(Errno::NODATA | Errno::OPNOTSUPP) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Moves something from `work` to where a whiteout is.
fn place(tree: &Tree, temporary: &std::ffi::CString, slot: &Slot<'_>) -> Result<(), Errno> {
    let work = tree.layer.work();
    let named = openat(work, temporary, NAMES, Mode::empty())?;
    if type_of(&fstat(&named)?) != FileType::Directory {
        return renameat(work, temporary, &slot.upper, slot.name);
    }
    if slot.below {
        tree.layer.make_opaque(named.as_fd())?;
    }
    tree.layer
        .exchange(temporary, slot.upper.as_fd(), slot.name)?;
    // The whiteout.
    tree.layer.discard(temporary);
    Ok(())
}

fn put_made(tree: &Tree, node: &Node, attr: &Attr, out: &mut Vec<u8>) -> Outcome {
    put_entry(node.id, attr, tree.valid_of(node, attr), out);
    Ok(Answer::Reply)
}

pub(super) fn mkdir(
    tree: &Tree,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let (mode, _umask) = body.u32().zip(body.u32()).ok_or(Errno::IO)?;
    let name = body.name().ok_or(Errno::IO)?;
    let bits = Mode::from_raw_mode(mode & 0o1777);
    let made = make(tree, header, name, mode, |dir, name| {
        mkdirat(dir, name, bits)
    });
    let (node, attr, ()) = made?;
    put_made(tree, &node, &attr, out)
}

pub(super) fn mknod(
    tree: &Tree,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let (mode, rdev) = body.u32().zip(body.u32()).ok_or(Errno::IO)?;
    let _umask = body.u64();
    let name = body.name().ok_or(Errno::IO)?;
    let file_type = FileType::from_raw_mode(mode);
    if file_type == FileType::CharacterDevice && rdev == 0 {
        // It would be a whiteout.
        return Err(Errno::PERM);
    }
    let bits = Mode::from_raw_mode(mode & 0o7777);
    let (node, attr, ()) = make(tree, header, name, mode, |dir, name| {
        mknodat(dir, name, file_type, bits, device_number(rdev))
    })?;
    put_made(tree, &node, &attr, out)
}

pub(super) fn symlink(
    tree: &Tree,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let (name, target) = body.name().zip(body.name()).ok_or(Errno::IO)?;
    let (node, attr, ()) = make(tree, header, name, 0, |dir, name| {
        symlinkat(target, dir, name)
    })?;
    put_made(tree, &node, &attr, out)
}

pub(super) fn create(
    tree: &Tree,
    handles: &Handles,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let (flags, mode) = body.u32().zip(body.u32()).ok_or(Errno::IO)?;
    let (_umask, how) = body.u32().zip(body.u32()).ok_or(Errno::IO)?;
    let name = body.name().ok_or(Errno::IO)?;
    let exclusive = OFlags::EXCL.bits();
    let kept = (OFlags::SYNC | OFlags::DSYNC | OFlags::ACCMODE).bits();
    let how_to_open = OFlags::from_bits_retain(flags & kept)
        | OFlags::CREATE
        | OFlags::EXCL
        | OFlags::NOFOLLOW
        | OFlags::CLOEXEC;
    let bits = Mode::from_raw_mode(mode & 0o7777);
    let made = make(tree, header, name, mode, |dir, name| {
        openat(dir, name, how_to_open, bits)
    });
    let (node, attr, handle, reply) = match made {
        Ok((node, attr, file)) => {
            let handle = handles.add(Arc::clone(&node), Some(file));
            (node, attr, handle, reply_flags(tree, true))
        }
        // Another program was faster.
        Err(Errno::EXIST) if flags & exclusive == 0 => {
            let dir = tree.node(header.node)?;
            let (node, _) = lookup(tree, &dir, name)?.ok_or(Errno::NOENT)?;
            let opened = open_node(tree, handles, Arc::clone(&node), flags, how);
            let of = opened.and_then(|opened| {
                let _reading = tree.reading();
                Ok((opened, tree.attr(&node)?))
            });
            match of {
                Ok(((handle, reply), attr)) => (node, attr, handle, reply),
                Err(error) => {
                    tree.nodes.forget(node.id, 1);
                    return Err(error);
                }
            }
        }
        Err(error) => return Err(error),
    };
    put_entry(node.id, &attr, tree.valid_of(&node, &attr), out);
    put_opened(handle, reply, out);
    Ok(Answer::Reply)
}

pub(super) fn link(tree: &Tree, header: &Header, mut body: Body<'_>, out: &mut Vec<u8>) -> Outcome {
    let node = tree.node(body.u64().ok_or(Errno::IO)?)?;
    let name = body.name().ok_or(Errno::IO)?;
    let dir = tree.node(header.node)?;
    {
        let _reading = tree.reading();
        if tree.find(&dir, name)?.is_some() {
            return Err(Errno::EXIST);
        }
    }
    tree.copy_up(&node, None)?;
    tree.copy_up(&dir, None)?;
    let _changing = tree.changing();
    let slot = Slot::new(tree, &dir, name)?;
    if !slot.is_free() {
        return Err(Errno::EXIST);
    }
    let file = tree.name_of(&node)?;
    if let UpperEntry::Whiteout = slot.entry {
        let temporary = tree.layer.temporary();
        let work = tree.layer.work();
        tree.layer.link(file.as_fd(), work, temporary.to_bytes())?;
        if let Err(error) = renameat(work, &temporary, &slot.upper, name) {
            tree.layer.discard(&temporary);
            return Err(error);
        }
    } else {
        tree.layer.link(file.as_fd(), slot.upper.as_fd(), name)?;
    }
    let (node, attr) = entered(tree, &slot)?;
    put_made(tree, &node, &attr, out)
}

/// Notes that a name leads to nothing now. `pin` is what it led to, if that is in `upper` and the kernel knows it.
pub(super) fn lost(
    tree: &Tree,
    found: &Found,
    dir: &Node,
    name: &[u8],
    known: Option<Arc<Node>>,
    pin: Option<OwnedFd>,
) {
    if let Some(node) = known
        && node.is_at(dir, name)
    {
        node.lose_name(pin);
    }
    if let Found::Upper(stat, _) = found
        && (type_of(stat) == FileType::Directory || stat.st_nlink <= 1)
    {
        tree.nodes.removed(UpperNo::of(stat));
    }
}

/// The file itself, for a node that loses its name.
pub(super) fn pin(
    found: &Found,
    known: Option<&Arc<Node>>,
    dir: BorrowedFd<'_>,
    name: &[u8],
) -> Result<Option<OwnedFd>, Errno> {
    match found {
        Found::Upper(..) if known.is_some() => openat(dir, name, NAMES, Mode::empty()).map(Some),
        _ => Ok(None),
    }
}

/// UNLINK and RMDIR.
pub(super) fn remove(tree: &Tree, header: &Header, mut body: Body<'_>, directory: bool) -> Outcome {
    let name = body.name().ok_or(Errno::IO)?;
    let dir = tree.node(header.node)?;
    {
        let _reading = tree.reading();
        removable(tree, &dir, name, directory)?;
    }
    tree.copy_up(&dir, None)?;
    let _changing = tree.changing();
    let found = removable(tree, &dir, name, directory)?;
    let slot = Slot::new(tree, &dir, name)?;
    let known = tree.known(&found);
    let upper = slot.upper.as_fd();
    let pin = pin(&found, known.as_ref(), upper, name)?;
    let above = matches!(found, Found::Upper(..));
    match (directory && above, slot.below) {
        (true, true) => tree.layer.cover_directory(upper, name)?,
        (false, true) => tree.layer.cover(upper, name)?,
        (false, false) => unlinkat(upper, name, AtFlags::empty())?,
        (true, false) => match unlinkat(upper, name, AtFlags::REMOVEDIR) {
            // Whiteouts, of which nothing is left below.
            Err(Errno::NOTEMPTY | Errno::EXIST) => {
                tree.layer.take_out(upper, name)?;
            }
            other => other?,
        },
    }
    lost(tree, &found, &dir, name, known, pin);
    Ok(Answer::Reply)
}

/// What is under a name that is to be removed. Needs one of the locks.
pub(super) fn removable(
    tree: &Tree,
    dir: &Arc<Node>,
    name: &[u8],
    directory: bool,
) -> Result<Found, Errno> {
    let found = tree.find(dir, name)?.ok_or(Errno::NOENT)?;
    match (is_directory(tree, &found)?, directory) {
        (true, false) => return Err(Errno::ISDIR),
        (false, true) => return Err(Errno::NOTDIR),
        (false, false) => return Ok(found),
        (true, true) => {}
    }
    match holds_nothing(tree, &found, dir, name)? {
        true => Ok(found),
        false => Err(Errno::NOTEMPTY),
    }
}

/// Whether a directory shows no entry. Needs one of the locks.
pub(super) fn holds_nothing(
    tree: &Tree,
    found: &Found,
    dir: &Arc<Node>,
    name: &[u8],
) -> Result<bool, Errno> {
    let (node, _) = tree.enter(found, dir, name)?;
    let empty = is_empty(tree, &node);
    let id = node.id;
    drop(node);
    tree.nodes.forget(id, 1);
    empty
}

/// TMPFILE: a file without a name.
pub(super) fn temporary_file(
    tree: &Tree,
    handles: &Handles,
    header: &Header,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let (flags, mode) = body.u32().zip(body.u32()).ok_or(Errno::IO)?;
    let kept = (OFlags::SYNC | OFlags::DSYNC | OFlags::ACCMODE | OFlags::EXCL).bits();
    let flags = OFlags::from_bits_retain(flags & kept) | OFlags::TMPFILE | OFlags::CLOEXEC;
    let bits = Mode::from_raw_mode(mode & 0o7777);
    let file = openat(tree.layer.work(), ".", flags, bits)?;
    let parent = {
        let _reading = tree.reading();
        tree.attr(&tree.node(header.node)?)?
    };
    if tree.layer.gives_away {
        let inherits = parent.mode & SET_GID != 0;
        let gid = if inherits { parent.gid } else { header.gid };
        tree.own(&file, header.uid, gid)?;
        if mode & SET_IDS != 0 {
            fchmod(&file, bits)?;
        }
    }
    let named = rustix::fs::open(
        path_of(&file),
        OFlags::PATH | OFlags::CLOEXEC,
        Mode::empty(),
    )?;
    let (node, attr) = tree.enter_nameless(named)?;
    let handle = handles.add(Arc::clone(&node), Some(file));
    put_entry(node.id, &attr, tree.valid_of(&node, &attr), out);
    put_opened(handle, reply_flags(tree, true), out);
    Ok(Answer::Reply)
}
