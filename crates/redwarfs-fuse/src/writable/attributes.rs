//! Attributes, and extended attributes.

use std::os::fd::OwnedFd;

use rustix::fs::OFlags;
use rustix::fs::{
    AtFlags, FileType, Gid, Mode, Timespec, Timestamps, UTIME_NOW, UTIME_OMIT, Uid, XattrFlags,
    chownat, fstatvfs, ftruncate, utimensat,
};
use rustix::io::Errno;

use super::files::{Handles, upper_file};
use super::layer::path_of;
use super::marks::is_mark;
use super::nodes::ROOT;
use super::tree::Tree;
use super::wire::{SetAttrIn, set};
use crate::ops::answer::{Answer, Outcome};
use crate::ops::xattr_value::put_value;
use crate::proto::{Body, Header, Put};
use crate::xattr;

pub(super) fn getattr(tree: &Tree, header: &Header, out: &mut Vec<u8>) -> Outcome {
    let node = tree.node(header.node)?;
    let _reading = tree.reading();
    let attr = tree.attr(&node)?;
    attr.put_attr(tree.valid_of(&node, &attr).attributes, out);
    Ok(Answer::Reply)
}

pub(super) fn readlink(tree: &Tree, header: &Header, out: &mut Vec<u8>) -> Outcome {
    let node = tree.node(header.node)?;
    match node.lower {
        // The target of a link does not change.
        Some(lower) => out.extend_from_slice(&tree.lower.target(lower)?),
        None => {
            let named = {
                let _reading = tree.reading();
                tree.name_of(&node)?
            };
            let target = rustix::fs::readlinkat(&*named, "", Vec::new())?;
            out.extend_from_slice(target.to_bytes());
        }
    }
    Ok(Answer::Reply)
}

pub(super) fn setattr(
    tree: &Tree,
    handles: &Handles,
    header: &Header,
    body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let wanted = SetAttrIn::parse(body).ok_or(Errno::IO)?;
    let node = tree.node(header.node)?;
    tree.copy_up(&node, wanted.has(set::SIZE).then_some(wanted.size))?;
    if wanted.has(set::SIZE) {
        let open = match wanted.has(set::HANDLE) {
            true => Some(handles.get(wanted.handle)?),
            false => None,
        };
        let file = match open {
            Some(open) => upper_file(tree, &open)?,
            None => None,
        };
        match file {
            Some(file) => resize(tree, &file, &wanted)?,
            None => {
                let file = {
                    let _reading = tree.reading();
                    tree.open(&node, OFlags::WRONLY)?
                };
                resize(tree, &file, &wanted)?;
            }
        }
    }
    let named = {
        let _reading = tree.reading();
        tree.name_of(&node)?
    };
    let path = path_of(&*named);
    if wanted.has(set::UID | set::GID) {
        let owner = wanted.has(set::UID).then(|| Uid::from_raw(wanted.uid));
        let group = wanted.has(set::GID).then(|| Gid::from_raw(wanted.gid));
        // Takes set-user-id and set-group-id from files.
        chownat(&*named, "", owner, group, AtFlags::EMPTY_PATH)?;
    }
    if wanted.has(set::MODE) {
        if FileType::from_raw_mode(wanted.mode) == FileType::Symlink {
            return Err(Errno::OPNOTSUPP);
        }
        let mode = Mode::from_raw_mode(wanted.mode & 0o7777);
        tree.layer
            .modes
            .change(|| rustix::fs::chmod(&*path, mode))?;
    }
    if wanted.has(set::ATIME | set::MTIME | set::ATIME_NOW | set::MTIME_NOW) {
        set_times(&named, &wanted)?;
    }
    let _reading = tree.reading();
    let attr = tree.attr(&node)?;
    attr.put_attr(tree.valid_of(&node, &attr).attributes, out);
    Ok(Answer::Reply)
}

fn resize(tree: &Tree, file: &OwnedFd, wanted: &SetAttrIn) -> Result<(), Errno> {
    ftruncate(file, wanted.size)?;
    match wanted.has(set::KILLS) {
        true => tree.kill_ids(file),
        false => Ok(()),
    }
}

// The types of the fields differ between processors.
#[allow(clippy::useless_conversion)]
fn set_times(named: &OwnedFd, wanted: &SetAttrIn) -> Result<(), Errno> {
    let time = |now: u32, some: u32, time: redwarfs_format::metadata::Timestamp| {
        let (tv_sec, tv_nsec) = if wanted.has(now) {
            (0, UTIME_NOW)
        } else if wanted.has(some) {
            (time.sec, time.nsec.into())
        } else {
            (0, UTIME_OMIT)
        };
        Timespec { tv_sec, tv_nsec }
    };
    let times = Timestamps {
        last_access: time(set::ATIME_NOW, set::ATIME, wanted.atime),
        last_modification: time(set::MTIME_NOW, set::MTIME, wanted.mtime),
    };
    utimensat(rustix::fs::CWD, path_of(named), &times, AtFlags::empty())
}

pub(super) fn statfs(tree: &Tree, out: &mut Vec<u8>) -> Outcome {
    let stat = fstatvfs(tree.layer.upper())?;
    for value in [
        stat.f_blocks,
        stat.f_bfree,
        stat.f_bavail,
        stat.f_files,
        stat.f_ffree,
    ] {
        out.put64(value);
    }
    let small = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    for value in [
        small(stat.f_bsize),
        small(stat.f_namemax),
        small(stat.f_frsize),
        0,
    ] {
        out.put32(value);
    }
    out.extend_from_slice(&[0; 6 * 4]);
    Ok(Answer::Reply)
}

/// Whether an attribute is one of the driver itself, which is answered from the image.
fn is_own(node: u64, name: &[u8]) -> bool {
    node == ROOT && name.starts_with(xattr::OWN)
}

pub(super) fn getxattr(tree: &Tree, header: &Header, body: Body<'_>, out: &mut Vec<u8>) -> Outcome {
    let mut parts = body;
    let (size, _) = parts.u32().zip(parts.u32()).ok_or(Errno::IO)?;
    let name = parts.name().ok_or(Errno::IO)?;
    if !tree.state.settings.xattrs {
        // The kernel asks for no further ones.
        return Err(Errno::NOSYS);
    }
    if is_mark(name) {
        return Err(Errno::NODATA);
    }
    let node = tree.node(header.node)?;
    if let Some(lower) = node.lower
        && (!node.has_upper() || is_own(node.id, name))
    {
        return tree.lower.getxattr(lower, header, body, out);
    }
    let named = {
        let _reading = tree.reading();
        tree.name_of(&node)?
    };
    let mut value = vec![0; xattr::LARGEST];
    let length = rustix::fs::getxattr(path_of(&*named), name, value.as_mut_slice())?;
    value.truncate(length);
    put_value(size, &value, length, out)
}

pub(super) fn listxattr(
    tree: &Tree,
    header: &Header,
    body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let size = { body }.u32().ok_or(Errno::IO)?;
    if !tree.state.settings.xattrs {
        return Err(Errno::NOSYS);
    }
    let node = tree.node(header.node)?;
    if let Some(lower) = node.lower
        && !node.has_upper()
    {
        return tree.lower.listxattr(lower, header, body, out);
    }
    let named = {
        let _reading = tree.reading();
        tree.name_of(&node)?
    };
    let mut all = vec![0; xattr::LARGEST];
    let length = rustix::fs::listxattr(path_of(&*named), all.as_mut_slice())?;
    all.truncate(length);
    let mut shown = Vec::new();
    for name in all.split_inclusive(|&byte| byte == 0) {
        // Only root sees those in `trusted`.
        if !is_mark(name) && (header.uid == 0 || !name.starts_with(b"trusted.")) {
            shown.extend_from_slice(name);
        }
    }
    put_value(size, &shown, shown.len(), out)
}

pub(super) fn setxattr(tree: &Tree, header: &Header, mut body: Body<'_>) -> Outcome {
    let (size, flags) = body.u32().zip(body.u32()).ok_or(Errno::IO)?;
    let name = body.name().ok_or(Errno::IO)?;
    let value = body.rest().get(..size as usize).ok_or(Errno::IO)?;
    let named = for_change(tree, header, name)?;
    let flags = XattrFlags::from_bits_retain(flags);
    rustix::fs::setxattr(path_of(&*named), name, value, flags)?;
    Ok(Answer::Reply)
}

pub(super) fn removexattr(tree: &Tree, header: &Header, mut body: Body<'_>) -> Outcome {
    let name = body.name().ok_or(Errno::IO)?;
    let named = for_change(tree, header, name)?;
    rustix::fs::removexattr(path_of(&*named), name)?;
    Ok(Answer::Reply)
}

/// The file whose attribute is to be changed.
fn for_change(tree: &Tree, header: &Header, name: &[u8]) -> Result<std::sync::Arc<OwnedFd>, Errno> {
    if !tree.state.settings.xattrs {
        return Err(Errno::NOSYS);
    }
    if is_mark(name) || name.starts_with(xattr::OWN) {
        return Err(Errno::PERM);
    }
    let node = tree.node(header.node)?;
    tree.copy_up(&node, None)?;
    let _reading = tree.reading();
    tree.name_of(&node)
}
