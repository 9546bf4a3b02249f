//! Listings of merged directories.

use std::collections::HashSet;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::{Arc, PoisonError};

use rustix::fs::{Dir, FileType, fstat};
use rustix::io::{Errno, fcntl_dupfd_cloexec};

use super::files::Handles;
use super::layer::UpperEntry;
use super::lower::LowerNo;
use super::names::lookup;
use super::nodes::{Node, UpperNo};
use super::tree::{Found, Tree};
use super::wire::{put_entry, put_opened};
use crate::ops::answer::{Answer, Outcome};
use crate::ops::listing::part;
use crate::proto::{Attr, Body, Header, dirent_size, put_dirent};
use crate::synthetic::DIRECTORY_MODE;

/// An entry of a directory.
#[derive(Debug)]
pub(super) struct Listed {
    name: Vec<u8>,
    /// Inode number for programs.
    number: u64,
    /// Type, as in a mode.
    mode: u32,
}

/// The entries of a directory, with `.` and `..`.
pub(super) type Listing = Vec<Listed>;

/// The entries of a directory. Needs one of the locks.
pub(super) fn merge(tree: &Tree, node: &Arc<Node>) -> Result<Listing, Errno> {
    let number = |node: &Arc<Node>| tree.attr(node).map(|attr| attr.number);
    let own = number(node)?;
    let parent = node.place().map_or(Ok(own), |place| number(&place.dir))?;
    let mut listing = Vec::new();
    for (name, number) in [(&b"."[..], own), (b"..", parent)] {
        listing.push(Listed {
            name: name.to_vec(),
            number,
            mode: DIRECTORY_MODE,
        });
    }
    if node.is_removed() {
        return Ok(listing);
    }
    let mut covered = HashSet::new();
    if node.has_upper() {
        let dir = tree.open_own(node)?;
        above(tree, node, &dir, &mut listing, &mut covered)?;
    }
    if let Some(lower) = node.lower {
        let entries = tree.lower.entries(lower)?.into_iter();
        let shown = entries.filter(|entry| !covered.contains(&entry.name));
        listing.extend(shown.map(|entry| Listed {
            name: entry.name,
            number: entry.shown,
            mode: entry.mode,
        }));
    }
    Ok(listing)
}

/// The entries of `upper`. `covered` gets their names, and those of whiteouts.
fn above(
    tree: &Tree,
    node: &Arc<Node>,
    dir: &OwnedFd,
    listing: &mut Listing,
    covered: &mut HashSet<Vec<u8>>,
) -> Result<(), Errno> {
    let mut like = fstat(dir)?;
    let files = tree.layer.has_file_whiteouts(dir.as_fd())?;
    // The mode may not let it be opened again.
    for entry in Dir::new(fcntl_dupfd_cloexec(dir, 0)?)? {
        let entry = entry?;
        let name = entry.file_name().to_bytes();
        if matches!(name, b"." | b"..") {
            continue;
        }
        covered.insert(name.to_vec());
        let mut file_type = entry.file_type();
        let looks = match file_type {
            FileType::CharacterDevice | FileType::Unknown => true,
            FileType::RegularFile => files,
            _ => false,
        };
        if looks {
            match tree.layer.entry(dir.as_fd(), name) {
                Ok(UpperEntry::Some(stat)) => file_type = FileType::from_raw_mode(stat.st_mode),
                // One that cannot be shown.
                Err(Errno::IO) => {}
                Err(error) => return Err(error),
                Ok(_) => continue,
            }
        }
        let number = match file_type == FileType::Directory {
            // The type of the field differs between processors.
            #[allow(clippy::useless_conversion)]
            false => {
                like.st_ino = entry.ino().into();
                tree.number(UpperNo::of(&like), None)
            }
            true => {
                let stat = tree.layer.stat_in(dir.as_fd(), name)?;
                let merged: Option<LowerNo> = tree.merged(node, name, &stat)?;
                tree.number(UpperNo::of(&stat), merged)
            }
        };
        listing.push(Listed {
            name: name.to_vec(),
            number,
            mode: file_type.as_raw_mode(),
        });
    }
    Ok(())
}

/// Whether a directory shows no entry. Needs one of the locks.
pub(super) fn is_empty(tree: &Tree, node: &Arc<Node>) -> Result<bool, Errno> {
    Ok(merge(tree, node)?.len() <= 2)
}

pub(super) fn open(tree: &Tree, handles: &Handles, header: &Header, out: &mut Vec<u8>) -> Outcome {
    let handle = handles.add(tree.node(header.node)?, None);
    put_opened(handle, 0, out);
    Ok(Answer::Reply)
}

pub(super) fn read(
    tree: &Tree,
    handles: &Handles,
    plus: bool,
    mut body: Body<'_>,
    out: &mut Vec<u8>,
) -> Outcome {
    let handle = { body }.u64().ok_or(Errno::IO)?;
    let (position, room) = part(&mut body)?;
    let open = handles.get(handle)?;
    let listing = listing(tree, &open.node, position, &open.listing)?;
    let start = usize::try_from(position).unwrap_or(usize::MAX);
    for (at, entry) in listing.iter().enumerate().skip(start) {
        if out.len() + dirent_size(&entry.name, plus) > room {
            break;
        }
        let next = at as u64 + 1;
        let mut number = entry.number;
        if plus {
            // The kernel uses no attributes of `.` and `..`, nor of what has no node. One file that cannot be used does
            // not end the listing.
            let found = match at < 2 {
                true => None,
                false => lookup(tree, &open.node, &entry.name).unwrap_or_default(),
            };
            match found {
                Some((node, attr)) => {
                    number = attr.node;
                    put_entry(node.id, &attr, tree.valid_of(&node, &attr), out);
                }
                None => put_entry(0, &Attr::default(), tree.valid, out),
            }
        }
        put_dirent(number, next, entry.mode, &entry.name, out);
    }
    Ok(Answer::Reply)
}

/// The listing of an open directory, which is made when it is read from the start.
fn listing(
    tree: &Tree,
    node: &Arc<Node>,
    position: u64,
    kept: &std::sync::Mutex<Option<Arc<Listing>>>,
) -> Result<Arc<Listing>, Errno> {
    let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(listing) = kept.as_ref().filter(|_| position != 0) {
        return Ok(Arc::clone(listing));
    }
    let made = {
        let _reading = tree.reading();
        Arc::new(merge(tree, node)?)
    };
    *kept = Some(Arc::clone(&made));
    Ok(made)
}

/// Whether it is a directory.
pub(super) fn is_directory(tree: &Tree, found: &Found) -> Result<bool, Errno> {
    Ok(match found {
        Found::Upper(stat, _) => FileType::from_raw_mode(stat.st_mode) == FileType::Directory,
        Found::Lower(lower) => tree.is_directory(*lower)?,
    })
}
