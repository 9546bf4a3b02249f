//! RENAME and RENAME2.

use std::os::fd::AsFd;
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode, RenameFlags, mkdirat, openat, renameat, renameat_with, unlinkat,
};
use rustix::io::Errno;

use super::layer::{NAMES, UpperEntry, type_of};
use super::listing::is_directory;
use super::names::{holds_nothing, lost, pin};
use super::nodes::{NameInDir, Node};
use super::tree::{Found, Tree};
use crate::ops::answer::{Answer, Outcome};
use crate::proto::{Body, Header};

const NO_REPLACE: u32 = 1;

/// The names of a request.
#[derive(Debug, Clone, Copy)]
pub(super) struct Names<'a> {
    from: &'a [u8],
    to: &'a [u8],
}

pub(super) fn rename(tree: &Tree, header: &Header, mut body: Body<'_>) -> Outcome {
    let to = body.u64().ok_or(Errno::IO)?;
    rename_to(tree, header.node, to, 0, body)
}

pub(super) fn rename2(tree: &Tree, header: &Header, mut body: Body<'_>) -> Outcome {
    let (to, flags) = body.u64().zip(body.u32()).ok_or(Errno::IO)?;
    body.u32();
    rename_to(tree, header.node, to, flags, body)
}

fn rename_to(tree: &Tree, from: u64, to: u64, flags: u32, mut body: Body<'_>) -> Outcome {
    let (old, new) = body.name().zip(body.name()).ok_or(Errno::IO)?;
    let names = Names { from: old, to: new };
    if flags & !NO_REPLACE != 0 {
        return Err(Errno::INVAL);
    }
    let no_replace = flags & NO_REPLACE != 0;
    let (dir, target) = (tree.node(from)?, tree.node(to)?);
    let copied = {
        let _reading = tree.reading();
        let (found, _) = check(tree, &dir, &target, names, no_replace)?;
        match found {
            Found::Lower(_) => {
                let (node, _) = tree.enter(&found, &dir, names.from)?;
                Some(node)
            }
            Found::Upper(..) => None,
        }
    };
    if let Some(node) = copied {
        let done = tree.copy_up(&node, None);
        let id = node.id;
        drop(node);
        tree.nodes.forget(id, 1);
        done?;
    }
    tree.copy_up(&dir, None)?;
    tree.copy_up(&target, None)?;
    let _changing = tree.changing();
    let (source, replaced) = check(tree, &dir, &target, names, no_replace)?;
    if let Found::Lower(_) = source {
        // Something else took the name meanwhile.
        return Err(Errno::AGAIN);
    }
    move_entry(tree, &dir, &target, names, &source, replaced.as_ref())?;
    Ok(Answer::Reply)
}

/// What is moved, and what it replaces. Needs one of the locks.
fn check(
    tree: &Tree,
    dir: &Arc<Node>,
    target: &Arc<Node>,
    names: Names<'_>,
    no_replace: bool,
) -> Result<(Found, Option<Found>), Errno> {
    let source = tree.find(dir, names.from)?.ok_or(Errno::NOENT)?;
    if target.is_removed() {
        return Err(Errno::NOENT);
    }
    let moves_directory = is_directory(tree, &source)?;
    let from_lower = matches!(source, Found::Lower(_) | Found::Upper(_, Some(_)));
    if moves_directory && from_lower {
        // As overlayfs: programs copy the directory.
        return Err(Errno::XDEV);
    }
    let replaced = tree.find(target, names.to)?;
    if let Some(replaced) = &replaced {
        if no_replace {
            return Err(Errno::EXIST);
        }
        match (moves_directory, is_directory(tree, replaced)?) {
            (true, false) => return Err(Errno::NOTDIR),
            (false, true) => return Err(Errno::ISDIR),
            (true, true) if !holds_nothing(tree, replaced, target, names.to)? => {
                return Err(Errno::NOTEMPTY);
            }
            _ => {}
        }
    }
    Ok((source, replaced))
}

/// Moves what is in `upper`.
fn move_entry(
    tree: &Tree,
    dir: &Arc<Node>,
    target: &Arc<Node>,
    names: Names<'_>,
    source: &Found,
    replaced: Option<&Found>,
) -> Result<(), Errno> {
    let (from, to) = (tree.directory(dir)?, tree.directory(target)?);
    let moved = tree.known(source);
    let replaced_node = replaced.and_then(|found| tree.known(found));
    if let (Some(a), Some(b)) = (&moved, &replaced_node)
        && Arc::ptr_eq(a, b)
    {
        // Two names of one file: both stay. The kernel does not ask then.
        return Ok(());
    }
    let pinned = match replaced {
        Some(found) => pin(found, replaced_node.as_ref(), to.as_fd(), names.to)?,
        None => None,
    };
    let hides = tree.below(dir, names.from)?.is_some();
    let is_directory = match source {
        Found::Upper(stat, _) => type_of(stat) == FileType::Directory,
        Found::Lower(_) => false,
    };
    if is_directory {
        let below = tree.below(target, names.to)?.is_some();
        move_directory(
            tree,
            (from.as_fd(), names.from),
            (to.as_fd(), names.to),
            hides,
            below,
        )?;
    } else if hides {
        tree.layer
            .move_and_cover((from.as_fd(), names.from), (to.as_fd(), names.to))?;
    } else {
        renameat(&from, names.from, &to, names.to)?;
    }
    if let Some(found) = replaced {
        lost(tree, found, target, names.to, replaced_node, pinned);
    }
    if let Some(node) = moved {
        let place = NameInDir {
            dir: Arc::clone(target),
            name: names.to.into(),
        };
        node.put(place, true);
    }
    Ok(())
}

/// A directory in `upper`, and a name in it.
type At<'a> = (std::os::fd::BorrowedFd<'a>, &'a [u8]);

/// Moves a directory that shows nothing of the lower tree. What is in its new place has no entries. `hides` and `below`: the
/// lower tree has something under the old name, and under the new one.
fn move_directory(
    tree: &Tree,
    from: At<'_>,
    to: At<'_>,
    hides: bool,
    below: bool,
) -> Result<(), Errno> {
    let layer = &tree.layer;
    if below {
        let named = openat(from.0, from.1, NAMES, Mode::empty())?;
        layer.make_opaque(named.as_fd())?;
    }
    if let UpperEntry::Some(_) = layer.entry(to.0, to.1)? {
        // An empty one, which the rename replaces at once, or one with whiteouts.
        clear(tree, to)?;
    }
    match layer.entry(to.0, to.1)? {
        UpperEntry::Whiteout => {
            if hides {
                layer.announce_whiteout(from.0)?;
            }
            exchange(from, to)?;
            match hides {
                true => Ok(()),
                false => unlinkat(from.0, from.1, AtFlags::empty()),
            }
        }
        _ if hides => layer.move_and_cover(from, to),
        _ => renameat(from.0, from.1, to.0, to.1),
    }
}

/// Lets a directory that shows no entries have none, and show nothing of the lower tree.
fn clear(tree: &Tree, of: At<'_>) -> Result<(), Errno> {
    let layer = &tree.layer;
    let temporary = layer.temporary();
    mkdirat(layer.work(), &temporary, Mode::from_raw_mode(0o700))?;
    let cleared = openat(layer.work(), &temporary, NAMES, Mode::empty())
        .and_then(|named| layer.make_opaque(named.as_fd()))
        .and_then(|()| layer.exchange(&temporary, of.0, of.1));
    // The old one, or the new one.
    layer.discard(&temporary);
    cleared
}

/// Exchanges a directory and a whiteout.
fn exchange(from: At<'_>, to: At<'_>) -> Result<(), Errno> {
    match renameat_with(from.0, from.1, to.0, to.1, RenameFlags::EXCHANGE) {
        Err(Errno::INVAL | Errno::NOSYS) => {}
        other => return other,
    }
    // Not at once. A crash in between shows what is below.
    unlinkat(to.0, to.1, AtFlags::empty())?;
    renameat(from.0, from.1, to.0, to.1)
}
