//! The directory of snapshots: each generation of the file as a directory.
//!
//! The mount shows one generation. A name in its root, which listings leave out, leads to a directory with
//! all generations that are not deleted. An inode of a generation has the number of the generation
//! in the upper 24 bits of its node id, so node ids stay valid when a generation is closed. A request opens its generation
//! again.

use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};

use redwarfs_format::GenerationNo;
use redwarfs_format::metadata::Timestamp;
use redwarfs_format::section::Snapshot;
use redwarfs_reader::{CacheOptions, Image};
use rustix::io::Errno;

use crate::error::Result;
use crate::mount_state::MountState;
use crate::ops::answer::{Answer, Outcome};
use crate::ops::init::Agreed;
use crate::ops::listing::{self, DOTS};
use crate::ops::xattr_value::put_value;
use crate::ops::{opendir, statfs};
use crate::options::MountOptions;
use crate::proto::{Attr, Body, Header, dirent_size, op, put_dirent};

/// Bits of a node id below the number of the generation.
const NODE_BITS: u32 = 40;

/// Generations from this number on are not shown.
const FIRST_HIDDEN: u32 = (1 << (64 - NODE_BITS)) - 1;

/// The root of the mount.
const ROOT: u64 = 1;

/// The directory itself.
const DIRECTORY: u64 = ((FIRST_HIDDEN as u64) << NODE_BITS) + ROOT;

/// Generations that are open at a time.
const MOST_OPEN: usize = 8;

const DIRECTORY_MODE: u32 = 0o040_555;

/// What is added to the node ids of the inodes of a generation.
pub(crate) fn first_node(number: GenerationNo) -> u64 {
    u64::from(number.0) << NODE_BITS
}

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaceOfNode {
    /// The image of the mount, or nothing at all.
    Image,
    /// An inode of a generation.
    Snapshot(GenerationNo),
    /// The directory of snapshots.
    Directory,
    /// The name of this directory in the root, or the parent of the root of a snapshot.
    Entry,
}

/// The generations of the file of an image.
#[derive(Debug)]
pub(crate) struct SnapshotDirectory {
    name: Vec<u8>,
    /// In the order of their numbers.
    snapshots: Vec<Snapshot>,
    options: MountOptions,
    cache: CacheOptions,
    /// The least recently used one is the first.
    opened: Mutex<Vec<(GenerationNo, Arc<MountState>)>>,
}

impl SnapshotDirectory {
    /// The directory, if the options ask for it.
    ///
    /// # Errors
    /// The table of snapshots cannot be read.
    pub(crate) fn wanted(image: &Image, options: &MountOptions) -> Result<Option<Self>> {
        let Some(name) = &options.snapshots else {
            return Ok(None);
        };
        let name = name.as_bytes().to_vec();
        let root = image.root();
        if image.metadata().find(root, &name)?.is_some() {
            let name = String::from_utf8_lossy(&name);
            tracing::warn!("the directory of snapshots hides '{name}' of the image");
        }
        let table = image.snapshots_of_file()?;
        let shown =
            |snapshot: &&Snapshot| snapshot.end.is_some() && snapshot.number.0 < FIRST_HIDDEN;
        let snapshots: Vec<_> = table.present().filter(shown).cloned().collect();
        let left_out = table.present().count() - snapshots.len();
        if left_out > 0 {
            tracing::warn!("{left_out} snapshots are not shown: their data is gone");
        }
        let mut cache = *image.cache_options();
        cache.size /= MOST_OPEN as u64;
        Ok(Some(Self {
            name,
            snapshots,
            options: MountOptions {
                analysis_file: None,
                ..options.clone()
            },
            cache,
            opened: Mutex::default(),
        }))
    }

    /// Whether the directory has this name.
    pub(crate) fn has_name(&self, name: &[u8]) -> bool {
        self.name == name
    }

    /// What a request is for.
    pub(crate) fn place(&self, header: &Header, mut body: Body<'_>) -> PlaceOfNode {
        // These are for no inode, or need nothing of it.
        let any = matches!(
            header.opcode,
            op::FORGET
                | op::BATCH_FORGET
                | op::INTERRUPT
                | op::RELEASE
                | op::RELEASEDIR
                | op::FSYNC
                | op::FSYNCDIR
                | op::DESTROY
                | op::NOTIFY_REPLY
        );
        let name = (header.opcode == op::LOOKUP).then(|| body.name()).flatten();
        let looks_up = |wanted: &[u8]| name == Some(wanted);
        let number = (header.node >> NODE_BITS) as u32;
        match header.node {
            _ if any => PlaceOfNode::Image,
            ROOT if looks_up(&self.name) => PlaceOfNode::Entry,
            DIRECTORY => PlaceOfNode::Directory,
            _ if number == 0 => PlaceOfNode::Image,
            node if node == (first_node(GenerationNo(number)) + ROOT) && looks_up(b"..") => {
                PlaceOfNode::Entry
            }
            _ => PlaceOfNode::Snapshot(GenerationNo(number)),
        }
    }

    /// A generation, which is opened if it is not.
    ///
    /// # Errors
    /// `ENOENT` if there is none, `EIO` if it cannot be opened.
    pub(crate) fn opened(
        &self,
        mount: &MountState,
        number: GenerationNo,
    ) -> Result<Arc<MountState>, Errno> {
        let mut opened = self.opened.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = opened.iter().position(|(of, _)| *of == number) {
            let found = opened.remove(at);
            let state = Arc::clone(&found.1);
            opened.push(found);
            return Ok(state);
        }
        let found = self.snapshots.binary_search_by_key(&number, |s| s.number);
        let snapshot = found.ok().and_then(|at| self.snapshots.get(at));
        let snapshot = snapshot.ok_or(Errno::NOENT)?;
        let state = mount
            .image
            .open_snapshot(snapshot, &self.cache)
            .map_err(crate::error::Error::from)
            .and_then(|image| mount.of_snapshot(number, image, &self.options));
        match state {
            Ok(state) => {
                let state = Arc::new(state);
                if opened.len() >= MOST_OPEN {
                    opened.remove(0);
                }
                opened.push((number, Arc::clone(&state)));
                Ok(state)
            }
            Err(cause) => {
                let name = &snapshot.name;
                mount
                    .failures
                    .mention(&format!("cannot open snapshot '{name}': {cause}"));
                Err(Errno::IO)
            }
        }
    }

    fn attr(&self, mount: &MountState) -> Result<Attr, Errno> {
        let root = mount.attr(mount.image.root())?;
        let newest = self.snapshots.last();
        let time = newest.map_or_else(Timestamp::default, |snapshot| Timestamp {
            sec: snapshot.seconds,
            nsec: snapshot.nanoseconds,
        });
        Ok(Attr {
            node: DIRECTORY,
            mode: DIRECTORY_MODE,
            nlink: 2,
            size: 0,
            blocks: 0,
            atime: time,
            mtime: time,
            ctime: time,
            ..root
        })
    }

    /// The answer to a lookup that finds the directory.
    pub(crate) fn entry(&self, mount: &MountState, out: &mut Vec<u8>) -> Outcome {
        let settings = &mount.settings;
        self.attr(mount)?
            .put_entry(settings.names, settings.attributes, out);
        Ok(Answer::Reply)
    }

    /// Carries out a request for the directory.
    pub(crate) fn answer(
        &self,
        mount: &MountState,
        agreed: Agreed,
        header: &Header,
        mut body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let settings = &mount.settings;
        match header.opcode {
            op::LOOKUP => self.look_up(mount, body.name().ok_or(Errno::IO)?, out),
            op::GETATTR => {
                self.attr(mount)?.put_attr(settings.attributes, out);
                Ok(Answer::Reply)
            }
            op::STATX => {
                self.attr(mount)?.put_statx(None, settings.attributes, out);
                Ok(Answer::Reply)
            }
            op::OPENDIR => opendir::answer(mount, agreed, header, out),
            op::READDIR | op::READDIRPLUS => {
                let (position, room) = listing::part(&mut body)?;
                self.list(header.opcode == op::READDIRPLUS, position, room, out);
                Ok(Answer::Reply)
            }
            op::ACCESS => Ok(Answer::Reply),
            op::STATFS => statfs::answer(mount, header, out),
            op::GETXATTR | op::LISTXATTR if !settings.xattrs => Err(Errno::NOSYS),
            op::GETXATTR => Err(Errno::NODATA),
            op::LISTXATTR => put_value(body.u32().ok_or(Errno::IO)?, b"", 0, out),
            op::OPEN | op::READ => Err(Errno::ISDIR),
            op::READLINK | op::LSEEK => Err(Errno::INVAL),
            _ => Err(Errno::ROFS),
        }
    }

    fn look_up(&self, mount: &MountState, name: &[u8], out: &mut Vec<u8>) -> Outcome {
        let attr = match name {
            b"." => self.attr(mount)?,
            b".." => mount.attr(mount.image.root())?,
            _ => {
                let named = |snapshot: &&Snapshot| snapshot.name.as_bytes() == name;
                match self.snapshots.iter().rfind(named) {
                    None => Attr::default(),
                    Some(snapshot) => {
                        let state = self.opened(mount, snapshot.number)?;
                        state.attr(state.image.root())?
                    }
                }
            }
        };
        attr.put_entry(mount.settings.names, mount.settings.attributes, out);
        Ok(Answer::Reply)
    }

    /// Lists the snapshots. With `plus`, the entries have no attributes: the kernel asks for those that it needs, so that
    /// a listing opens no snapshot.
    fn list(&self, plus: bool, position: u64, room: usize, out: &mut Vec<u8>) {
        let dots = [(DIRECTORY, &b"."[..]), (ROOT, b"..")];
        let entries = self
            .snapshots
            .iter()
            .map(|snapshot| (first_node(snapshot.number) + ROOT, snapshot.name.as_bytes()));
        debug_assert_eq!(dots.len() as u64, DOTS);
        let skipped = usize::try_from(position).unwrap_or(usize::MAX);
        for (next, (node, name)) in (1..).zip(dots.into_iter().chain(entries)).skip(skipped) {
            if out.len() + dirent_size(name, plus) > room {
                break;
            }
            if plus {
                Attr::default().put_entry(0, 0, out);
            }
            put_dirent(node, next, DIRECTORY_MODE, name, out);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn node_ids_of_generations_are_apart() {
        let largest = first_node(GenerationNo(FIRST_HIDDEN - 1)) + (1 << 32);
        assert!(largest < DIRECTORY);
        assert_eq!(first_node(GenerationNo(1)) >> NODE_BITS, 1);
        assert!(u64::from(u32::MAX) + 1 < first_node(GenerationNo(1)));
    }
}
