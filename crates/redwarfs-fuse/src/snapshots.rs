//! The directory of snapshots: each generation of the file as a directory.
//!
//! The mount shows one generation. A name in its root, which listings leave out, leads to a directory with
//! all generations that are not deleted. [`crate::slots`] opens them.

use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};

use redwarfs_format::metadata::Timestamp;
use redwarfs_format::section::Snapshot;
use redwarfs_reader::Image;
use rustix::io::Errno;

use crate::error::Result;
use crate::mount_state::MountState;
use crate::numbers;
use crate::ops::answer::{Answer, Outcome};
use crate::ops::listing::DOTS;
use crate::options::MountOptions;
use crate::proto::Attr;
use crate::slots::{MOST_SLOTS, ROOT, SlotNo, Slots};
use crate::synthetic::{self, AddEntry, DIRECTORY_MODE, Synthetic};

/// The directory itself.
pub(crate) const DIRECTORY: u64 = ((MOST_SLOTS as u64) << 40) + ROOT;

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
        slots: &Slots,
    ) -> Result<Option<Self>> {
        let Some(name) = &options.snapshots else {
            return Ok(None);
        };
        let directory = Self {
            name: name.as_bytes().into(),
            listed: Mutex::new([].into()),
        };
        directory.warn_if_it_hides(image)?;
        directory.renew(image, slots)?;
        Ok(Some(directory))
    }

    /// Shows the snapshots that the file of an image has. Returns what was shown before.
    ///
    /// # Errors
    /// The table of snapshots cannot be read.
    pub(crate) fn renew(&self, image: &Image, slots: &Slots) -> Result<Arc<[Listed]>> {
        let table = image.snapshots_of_file()?;
        let shown = |snapshot: &Snapshot| {
            snapshot.end?;
            Some(Listed {
                name: snapshot.name.clone(),
                slot: slots.add_snapshot(image, snapshot, false)?,
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

    /// The slot of the snapshot with a name.
    pub(crate) fn slot(&self, name: &[u8]) -> Option<SlotNo> {
        let listed = self.listed();
        let found = listed.iter().rfind(|one| one.name.as_bytes() == name);
        found.map(|one| one.slot)
    }

    /// The answer to a lookup that finds the directory.
    pub(crate) fn entry(&self, mount: &MountState, out: &mut Vec<u8>) -> Outcome {
        let settings = &mount.settings;
        self.attr(mount)?
            .put_entry(settings.names, settings.attributes, out);
        Ok(Answer::Reply)
    }
}

impl Synthetic for SnapshotDirectory {
    fn attr(&self, mount: &MountState) -> std::result::Result<Attr, Errno> {
        let root = mount.root_attr()?;
        let listed = self.listed();
        let time = listed
            .last()
            .map_or_else(Timestamp::default, |last| last.time);
        Ok(Attr {
            node: DIRECTORY,
            number: numbers::SNAPSHOTS,
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

    fn parent(&self, mount: &MountState) -> std::result::Result<Attr, Errno> {
        mount.root_attr()
    }

    fn list(
        &self,
        mount: &MountState,
        position: u64,
        _plus: bool,
        add: AddEntry<'_>,
    ) -> std::result::Result<(), Errno> {
        let listed = self.listed();
        let skipped = usize::try_from(position - DOTS).unwrap_or(usize::MAX);
        for (next, one) in (DOTS + 1..).zip(&*listed).skip(skipped) {
            let entry = synthetic::Listed {
                number: mount.slots.ranges().root(one.slot),
                mode: DIRECTORY_MODE,
                next,
                name: one.name.as_bytes(),
                attr: None,
            };
            if add(&entry) {
                break;
            }
        }
        Ok(())
    }
}
