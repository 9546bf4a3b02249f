//! Moving a mount to the newest generation of its file.
//!
//! The root of the mount becomes that of the new generation, whose other inodes get node ids of their own. So
//! what the kernel knows about inodes stays true: open files and working directories keep what they had. Only
//! the names in the root, and the attributes of the root, are withdrawn from the kernel.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, Weak};

use redwarfs_format::GenerationNo;
use redwarfs_reader::{Image, TailOfFile};

use crate::device::Device;
use crate::error::{Error, Result};
use crate::generations::ROOT;
use crate::mount_state::MountState;
use crate::snapshots::DIRECTORY;

/// What [`Mover::move_on`] has done.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub enum Move {
    /// The mount shows the newest generation already.
    None,
    /// The mount shows another generation.
    To {
        /// Its name.
        name: String,
        /// Its number.
        number: GenerationNo,
    },
}

/// Moves a mount to the newest generation of its file, when the caller asks for it. One thread should do so, and none
/// that serves requests.
#[derive(Debug, Clone)]
pub struct Mover(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    state: Arc<MountState>,
    /// Ends with the connection.
    device: Weak<Device>,
    seen: Mutex<Seen>,
}

#[derive(Debug)]
struct Seen {
    /// The generation that the mount shows.
    image: Image,
    /// The end of the file of the last try that failed.
    failed: Option<TailOfFile>,
}

impl Mover {
    pub(crate) fn new(state: &Arc<MountState>, device: &Arc<Device>) -> Self {
        Self(Arc::new(Inner {
            state: Arc::clone(state),
            device: Arc::downgrade(device),
            seen: Mutex::new(Seen {
                image: state.image.clone(),
                failed: None,
            }),
        }))
    }

    /// Moves the mount to the newest generation of its file. If that is what it shows, one small read finds this out. A
    /// generation that could not be opened is tried again when the file has changed, or with `again`.
    ///
    /// Programs that have a file or a directory open keep what they have. A listing of the root that goes on meanwhile may
    /// show names of both generations. What is mounted on directories of the mount is taken off.
    ///
    /// # Errors
    /// The newest generation cannot be opened, or has what this mount cannot show. The mount keeps what it shows.
    pub fn move_on(&self, again: bool) -> Result<Move> {
        let mut seen = self.0.seen.lock();
        let seen = match &mut seen {
            Ok(seen) => &mut **seen,
            Err(poisoned) => &mut **poisoned.get_mut(),
        };
        let tail = seen
            .image
            .tail_of_file()
            .map_err(redwarfs_format::Error::Io)?;
        let Some(tail) = tail else {
            return Err(unfit("its file cannot grow"));
        };
        if seen.image.has_tail(&tail) {
            seen.failed = None;
            return Ok(Move::None);
        }
        if seen.failed.as_ref() == Some(&tail) && !again {
            return Ok(Move::None);
        }
        let moved = self.0.open(&seen.image).inspect_err(|_| {
            seen.failed = Some(tail);
        })?;
        let (image, name, number) = moved;
        seen.image = image;
        seen.failed = None;
        Ok(Move::To { name, number })
    }
}

fn unfit(why: &str) -> Error {
    redwarfs_format::Error::Unsupported(why.to_owned()).into()
}

impl Inner {
    fn open(&self, before: &Image) -> Result<(Image, String, GenerationNo)> {
        let state = &self.state;
        let Some(generations) = &state.generations else {
            return Err(unfit("it is a part of a mount"));
        };
        if state.case.is_some() {
            // The kernel knows names in spellings that nobody has listed.
            return Err(unfit(
                "names are found without regard to upper and lower case",
            ));
        }
        let image = before.open_newest(state.image.cache_options())?;
        let table = image.snapshots()?;
        let index = image.container().sections.last();
        let index = index.map(|section| section.header_offset);
        let found = table.snapshots.iter();
        let snapshot = found.rev().find(|one| Some(one.index) == index);
        let snapshot = snapshot.ok_or_else(|| unfit("its table of snapshots does not list it"))?;
        let too_many = || unfit("this mount has moved too often");
        let slot = generations.add(&image, snapshot, true);
        let slot = slot.ok_or_else(too_many)?;
        let new = state.of_slot(slot, true, image.clone(), generations.options())?;
        if new.settings.lists && !state.settings.lists {
            return Err(unfit(
                "it has access control lists, which this mount does not enforce",
            ));
        }
        let mut names = BTreeSet::new();
        for image in [before, &image] {
            let metadata = image.metadata();
            for entry in metadata.entries(image.root())? {
                names.insert(
                    metadata
                        .entry_name(redwarfs_format::ids::EntryIndex(entry))?
                        .into_owned(),
                );
            }
        }
        generations.move_to(slot, Arc::new(new));
        let Some(device) = self.device.upgrade() else {
            return Err(Error::Session(io::ErrorKind::NotConnected.into()));
        };
        let forget = |directory, name: &[u8]| device.forget_name(directory, name);
        let mut told = names.iter().try_for_each(|name| forget(ROOT, name));
        told = told.and(device.forget_inode(ROOT));
        if let Some(directory) = &state.snapshots {
            let before = directory.renew(&image, generations)?;
            let after = directory.listed();
            let names: BTreeSet<&str> =
                before.iter().chain(&*after).map(|one| &*one.name).collect();
            let mut names = names.into_iter();
            told = told
                .and_then(|()| names.try_for_each(|name| forget(DIRECTORY, name.as_bytes())))
                .and_then(|()| device.forget_inode(DIRECTORY));
        }
        told.map_err(Error::Session)?;
        Ok((image, snapshot.name.clone(), snapshot.number))
    }
}
