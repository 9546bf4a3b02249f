//! The directory of snapshots: each generation of the file as a directory.
//!
//! The mount shows one generation. A name in its root, which listings leave out, leads to a directory with
//! all generations that are not deleted. [`crate::generations`] opens them.

use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};

use redwarfs_format::metadata::Timestamp;
use redwarfs_format::section::Snapshot;
use redwarfs_reader::Image;
use rustix::io::Errno;

use crate::error::Result;
use crate::generations::{Generations, MOST_SLOTS, ROOT, SlotNo};
use crate::mount_state::MountState;
use crate::ops::answer::{Answer, Outcome};
use crate::ops::init::Agreed;
use crate::ops::listing::{self, DOTS};
use crate::ops::xattr_value::put_value;
use crate::ops::{opendir, statfs};
use crate::options::MountOptions;
use crate::proto::{Attr, Body, Header, dirent_size, op, put_dirent};

/// The directory itself.
pub(crate) const DIRECTORY: u64 = ((MOST_SLOTS as u64) << 40) + ROOT;

const DIRECTORY_MODE: u32 = 0o040_555;

/// What a request is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum PlaceOfNode {
    /// The image that was mounted, or nothing at all.
    Image,
    /// An inode of a generation.
    Generation(SlotNo),
    /// The entry of a generation in the directory of snapshots.
    RootOf(SlotNo),
    /// The directory of snapshots.
    Directory,
    /// The name of this directory in the root, or the parent of the root of a snapshot.
    Entry,
}

/// What a request is for.
pub(crate) fn place(state: &MountState, header: &Header, mut body: Body<'_>) -> PlaceOfNode {
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
    if any {
        return PlaceOfNode::Image;
    }
    let Some(generations) = &state.generations else {
        return PlaceOfNode::Image;
    };
    let slot = match header.node {
        ROOT => generations.current(),
        node => SlotNo::of(node),
    };
    if let Some(directory) = &state.snapshots
        && (header.node == ROOT || slot.0 > 0)
    {
        let name = (header.opcode == op::LOOKUP).then(|| body.name()).flatten();
        match (header.node, name) {
            (ROOT, Some(name)) if directory.has_name(name) => return PlaceOfNode::Entry,
            (DIRECTORY, Some(name)) => {
                let found = directory.slot(name);
                return found.map_or(PlaceOfNode::Directory, PlaceOfNode::RootOf);
            }
            (DIRECTORY, None) => return PlaceOfNode::Directory,
            (node, Some(b"..")) if node == slot.first_node() + ROOT => return PlaceOfNode::Entry,
            _ => {}
        }
    }
    match slot {
        SlotNo(0) => PlaceOfNode::Image,
        slot => PlaceOfNode::Generation(slot),
    }
}

/// A snapshot that the directory shows.
#[derive(Debug)]
pub(crate) struct Listed {
    pub(crate) name: String,
    slot: SlotNo,
    time: Timestamp,
}

/// The generations of the file of an image.
#[derive(Debug)]
pub(crate) struct SnapshotDirectory {
    name: Arc<[u8]>,
    /// In the order of their numbers.
    listed: Mutex<Arc<[Listed]>>,
}

impl SnapshotDirectory {
    /// The directory, if the options ask for it.
    ///
    /// # Errors
    /// The table of snapshots cannot be read.
    pub(crate) fn wanted(
        image: &Image,
        options: &MountOptions,
        generations: &Generations,
    ) -> Result<Option<Self>> {
        let Some(name) = &options.snapshots else {
            return Ok(None);
        };
        let directory = Self {
            name: name.as_bytes().into(),
            listed: Mutex::new([].into()),
        };
        directory.warn_if_it_hides(image)?;
        directory.renew(image, generations)?;
        Ok(Some(directory))
    }

    /// Shows the snapshots that the file of an image has. Returns what was shown before.
    ///
    /// # Errors
    /// The table of snapshots cannot be read.
    pub(crate) fn renew(&self, image: &Image, generations: &Generations) -> Result<Arc<[Listed]>> {
        let table = image.snapshots_of_file()?;
        let shown = |snapshot: &Snapshot| {
            snapshot.end?;
            Some(Listed {
                name: snapshot.name.clone(),
                slot: generations.add(image, snapshot, false)?,
                time: Timestamp {
                    sec: snapshot.seconds,
                    nsec: snapshot.nanoseconds,
                },
            })
        };
        let listed: Arc<[Listed]> = table.present().filter_map(shown).collect();
        let left_out = table.present().count() - listed.len();
        if left_out > 0 {
            tracing::warn!("{left_out} snapshots are not shown: their data is gone");
        }
        let mut shown = self.listed.lock().unwrap_or_else(PoisonError::into_inner);
        Ok(std::mem::replace(&mut *shown, listed))
    }

    /// Warns if an image has an entry in whose place the directory is.
    ///
    /// # Errors
    /// The metadata is damaged.
    pub(crate) fn warn_if_it_hides(&self, image: &Image) -> Result<()> {
        if image.metadata().find(image.root(), &self.name)?.is_some() {
            let name = String::from_utf8_lossy(&self.name);
            tracing::warn!("the directory of snapshots hides '{name}' of the image");
        }
        Ok(())
    }

    /// Its name in the root of the mount.
    pub(crate) fn name(&self) -> &Arc<[u8]> {
        &self.name
    }

    /// What is shown.
    pub(crate) fn listed(&self) -> Arc<[Listed]> {
        Arc::clone(&self.listed.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Whether the directory has this name.
    pub(crate) fn has_name(&self, name: &[u8]) -> bool {
        *self.name == *name
    }

    fn slot(&self, name: &[u8]) -> Option<SlotNo> {
        let listed = self.listed();
        let found = listed.iter().rfind(|one| one.name.as_bytes() == name);
        found.map(|one| one.slot)
    }

    fn attr(&self, mount: &MountState) -> Result<Attr, Errno> {
        let root = mount.attr(mount.image.root())?;
        let listed = self.listed();
        let time = listed
            .last()
            .map_or_else(Timestamp::default, |last| last.time);
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
            // A snapshot's name is in another place.
            _ => Attr::default(),
        };
        attr.put_entry(mount.settings.names, mount.settings.attributes, out);
        Ok(Answer::Reply)
    }

    /// Lists the snapshots. With `plus`, the entries have no attributes: the kernel asks for those that it needs, so that
    /// a listing opens no snapshot.
    fn list(&self, plus: bool, position: u64, room: usize, out: &mut Vec<u8>) {
        let dots = [(DIRECTORY, &b"."[..]), (ROOT, b"..")];
        let listed = self.listed();
        let entries = listed
            .iter()
            .map(|one| (one.slot.first_node() + ROOT, one.name.as_bytes()));
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
