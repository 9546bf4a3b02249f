//! Moving a mount to the newest generation of its file.
//!
//! The root of the mount becomes that of the new generation, whose other inodes get node ids of their own. So
//! what the kernel knows about inodes stays true: open files and working directories keep what they had. Only
//! the names in the root, and the attributes of the root, are withdrawn from the kernel.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, Weak};

use redwarfs_format::GenerationNo;
use redwarfs_format::ids::EntryIndex;
use redwarfs_reader::{Image, TailOfFile};
use rustix::io::Errno;

use crate::device::Device;
use crate::error::{Error, Result};
use crate::image_state::ImageState;
use crate::mount_state::MountState;
use crate::slots::ROOT;
use crate::snapshots::{DIRECTORY, Listed, SnapshotDirectory};

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
    /// The generation that the mount shows. None in a mount of several images.
    image: Option<Image>,
    /// The end of the file at the last look.
    tail: Option<TailOfFile>,
    /// Whether that look has failed.
    failed: bool,
}

impl Mover {
    pub(crate) fn new(state: &Arc<MountState>, device: &Arc<Device>) -> Self {
        Self(Arc::new(Inner {
            state: Arc::clone(state),
            device: Arc::downgrade(device),
            seen: Mutex::new(Seen {
                image: state.main().map(|main| main.image.clone()),
                tail: None,
                failed: false,
            }),
        }))
    }

    /// Moves the mount to the newest generation of its file. If the file has not changed since the last look, one small
    /// read finds this out. With `again`, a generation that could not be opened is tried again also then.
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
        let Some(image) = &mut seen.image else {
            return Err(unfit("it shows several images"));
        };
        let tail = match image.tail_of_file() {
            Ok(Some(tail)) => tail,
            Ok(None) => return Err(unfit("its file cannot grow")),
            // It was cut off between two steps of the look: there will be another one.
            Err(cause) if cause.kind() == io::ErrorKind::UnexpectedEof => return Ok(Move::None),
            Err(cause) => return Err(redwarfs_format::Error::Io(cause).into()),
        };
        let known = match &seen.tail {
            Some(before) => *before == tail && !(seen.failed && again),
            // The file of the mount is as it was.
            None => image.has_tail(&tail),
        };
        if known {
            seen.tail = Some(tail);
            return Ok(Move::None);
        }
        let moved = self.0.look(image);
        seen.tail = Some(tail);
        seen.failed = moved.is_err();
        moved
    }
}

fn unfit(why: &str) -> Error {
    redwarfs_format::Error::Unsupported(why.to_owned()).into()
}

impl Inner {
    /// Opens the newest generation, and moves the mount to it if it is not `shown`.
    fn look(&self, shown: &mut Image) -> Result<Move> {
        let state = &self.state;
        if state.settings.layered {
            return Err(unfit("it has a writable layer"));
        }
        let slots = &state.slots;
        if state.main().is_some_and(|main| main.case.is_some()) {
            // The kernel knows names in spellings that nobody has listed.
            return Err(unfit(
                "names are found without regard to upper and lower case",
            ));
        }
        let image = shown.open_newest()?;
        if image.is_same_generation(shown)? {
            // What is behind it may have changed: names of snapshots, or which there are.
            if let Some(directory) = &state.snapshots {
                let before = directory.renew(&image, slots)?;
                self.withdraw_snapshots(directory, &before);
            }
            return Ok(Move::None);
        }
        let table = image.snapshots()?;
        let index = image.container().sections.last();
        let index = index.map(|section| section.header_offset);
        let found = table.snapshots.iter();
        let snapshot = found.rev().find(|one| Some(one.index) == index);
        let snapshot = snapshot.ok_or_else(|| unfit("its table of snapshots does not list it"))?;
        let too_many = || unfit("this mount has moved too often");
        let slot = slots.add_snapshot(&image, snapshot, true);
        let slot = slot.ok_or_else(too_many)?;
        let place = slots.place(state, slot, true, &snapshot.name, &image);
        let new = ImageState::of_slot(place, image.clone(), slots.options(), &state.shared)?;
        if new.settings.lists && !state.settings.lists {
            return Err(unfit(
                "it has access control lists, which this mount does not enforce",
            ));
        }
        let mut names = BTreeSet::new();
        for image in [&*shown, &image] {
            let metadata = image.metadata();
            for entry in metadata.entries(image.root())? {
                names.insert(metadata.entry_name(EntryIndex(entry))?.into_owned());
            }
        }
        let mut listed = None;
        if let Some(directory) = &state.snapshots {
            directory.warn_if_it_hides(&image)?;
            listed = Some((directory, directory.renew(&image, slots)?));
        }
        // From here on, nothing fails.
        slots.move_to(slot, Arc::new(new));
        *shown = image;
        self.withdraw(ROOT, names.iter().map(Vec::as_slice));
        if let Some((directory, before)) = listed {
            self.withdraw_snapshots(directory, &before);
        }
        Ok(Move::To {
            name: snapshot.name.clone(),
            number: snapshot.number,
        })
    }

    /// Lets the kernel forget the names of the directory of snapshots, of which it showed `before`.
    fn withdraw_snapshots(&self, directory: &SnapshotDirectory, before: &[Listed]) {
        let after = directory.listed();
        let names: BTreeSet<&[u8]> = before
            .iter()
            .chain(&*after)
            .map(|one| one.name.as_bytes())
            .collect();
        self.withdraw(DIRECTORY, names.into_iter());
    }

    fn withdraw<'n>(&self, directory: u64, names: impl Iterator<Item = &'n [u8]>) {
        withdraw(&self.device, directory, names);
    }
}

/// Lets the kernel forget names in a directory, and the directory's attributes.
pub(crate) fn withdraw<'n>(
    device: &Weak<Device>,
    directory: u64,
    names: impl Iterator<Item = &'n [u8]>,
) {
    // Without a device, the connection is over, and the kernel knows nothing any more.
    let Some(device) = device.upgrade() else {
        return;
    };
    for name in names {
        match device.forget_name(directory, name) {
            Ok(()) => {}
            // The kernel takes no such name, so it knows none.
            Err(error) if error.raw_os_error() == Some(Errno::NAMETOOLONG.raw_os_error()) => {}
            Err(error) => {
                let name = name.escape_ascii();
                tracing::warn!("the kernel may still show the old '{name}': {error}");
            }
        }
    }
    if let Err(error) = device.forget_inode(directory) {
        tracing::warn!("the kernel may still show old attributes of the root: {error}");
    }
}
