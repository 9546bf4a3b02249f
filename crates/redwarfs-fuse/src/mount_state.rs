//! The state of a mount, which all its threads share.

use std::sync::Arc;

use redwarfs_format::metadata::Timestamp;
use redwarfs_reader::perfmon::{Component, PerfMonitor, Timer};
use redwarfs_reader::{CacheGroup, Image};
use rustix::io::Errno;
use rustix::process::{getegid, geteuid};

use crate::error::Result;
use crate::idle::Uses;
use crate::image_state::ImageState;
use crate::images::{ImageDirectory, ImageSet};
use crate::options::MountOptions;
use crate::pending_reads::PendingReads;
use crate::proto::Attr;
use crate::settings::Settings;
use crate::slots::Slots;
use crate::snapshots::SnapshotDirectory;
use crate::statistics::Counters;
use crate::synthetic::DIRECTORY_MODE;
use crate::union::Union;

/// Whether a mount can have more than the image at its root: further images, or snapshots. It is constant, so that a build
/// without the feature has no code for that.
pub(crate) const HAS_SEVERAL: bool = cfg!(feature = "several");

/// What is at the root of a mount.
#[derive(Debug)]
pub(crate) enum Root {
    /// The root of an image, whose inodes have slot 0.
    Image(Arc<ImageState>),
    /// A directory with several images.
    Images(ImageDirectory),
    /// Several images as layers.
    Union(Box<Union>),
}

/// What the images of a mount share, and the counters of requests.
#[derive(Debug)]
pub(crate) struct MountState {
    pub(crate) root: Root,
    /// Those of the root.
    pub(crate) settings: Settings,
    /// The images and generations that are not at the root.
    pub(crate) slots: Slots,
    pub(crate) snapshots: Option<SnapshotDirectory>,
    pub(crate) shared: MountTotals,
    pub(crate) perfmon: PerfMonitor,
    pub(crate) cache: CacheGroup,
    pub(crate) init: Timer,
}

/// What the states of all images of a mount refer to.
#[derive(Debug, Clone, Default)]
pub(crate) struct MountTotals {
    pub(crate) pending_reads: Arc<PendingReads>,
    pub(crate) counters: Arc<Counters>,
}

impl MountState {
    /// Makes all state that depends only on image and options. The caller does this before it mounts,
    /// so that errors are found before the mount.
    ///
    /// # Errors
    /// The analysis file cannot be created, the metadata is damaged, or this build shows no snapshots.
    pub(crate) fn new(image: Image, options: &MountOptions) -> Result<Self> {
        if options.snapshots.is_some() || options.follow_newest {
            check_several()?;
        }
        let shared = MountTotals::default();
        let slots = Slots::of_generations(options, image.metadata().inode_count());
        let snapshots = match HAS_SEVERAL {
            true => SnapshotDirectory::wanted(&image, options, &slots)?,
            false => None,
        };
        let hidden = snapshots.as_ref().map(|of| Arc::clone(of.name()));
        let perfmon = image.perfmon().clone();
        let cache = image.cache_group();
        let state = ImageState::of_root(image, options, &shared, hidden)?;
        Ok(Self {
            settings: state.settings.clone(),
            root: Root::Image(Arc::new(state)),
            slots,
            snapshots,
            shared,
            init: perfmon.timer(Component::Fuse, "op_init"),
            perfmon,
            cache,
        })
    }

    /// The same for several images.
    ///
    /// # Errors
    /// A layer of a union cannot be opened, no directory can have the name of an image, or this build mounts one image only.
    pub(crate) fn of_images(set: ImageSet, options: &MountOptions) -> Result<Self> {
        check_several()?;
        let slots = Slots::of_images(options);
        let shared = MountTotals::default();
        let root = match options.union {
            Some(whiteouts) => Root::Union(Box::new(Union::open(
                set.images, whiteouts, options, &shared,
            )?)),
            None => Root::Images(ImageDirectory::new(set.images, &slots)?),
        };
        Ok(Self {
            root,
            settings: Settings::of_several(options),
            slots,
            snapshots: None,
            shared,
            init: set.perfmon.timer(Component::Fuse, "op_init"),
            perfmon: set.perfmon,
            cache: set.cache,
        })
    }

    /// The image at the root.
    pub(crate) fn main(&self) -> Option<&Arc<ImageState>> {
        match &self.root {
            Root::Image(state) => Some(state),
            Root::Images(_) | Root::Union(_) => None,
        }
    }

    /// The images at the root.
    pub(crate) fn images(&self) -> Option<&ImageDirectory> {
        match &self.root {
            Root::Images(images) if HAS_SEVERAL => Some(images),
            _ => None,
        }
    }

    /// Lets reads fail that wait for a server: the connection to the kernel has ended.
    pub(crate) fn abandon(&self) {
        if self.settings.owns_image {
            match &self.root {
                Root::Image(state) => state.image.source().abandon(),
                Root::Union(union) if HAS_SEVERAL => union.abandon(),
                Root::Images(_) | Root::Union(_) => {}
            }
            if HAS_SEVERAL {
                self.slots.abandon();
            }
        }
    }

    /// Attributes of a directory that no image has, which belongs to the user who mounts.
    pub(crate) fn directory_attr(&self, node: u64, number: u64, time: Timestamp) -> Attr {
        let policy = &self.settings.policy;
        let (uid, gid) = policy.owner(geteuid().as_raw(), getegid().as_raw());
        Attr {
            node,
            number,
            mode: DIRECTORY_MODE,
            nlink: 2,
            uid,
            gid,
            atime: time,
            mtime: time,
            ctime: time,
            block_size: policy.block_size,
            ..Attr::default()
        }
    }

    /// The attributes of the root.
    pub(crate) fn root_attr(&self) -> Result<Attr, Errno> {
        match &self.root {
            Root::Image(state) => state.attr(state.image.root()),
            _ if !HAS_SEVERAL => Err(Errno::NOENT),
            Root::Images(images) => Ok(images.root_attr(self)),
            Root::Union(union) => union.root_attr(),
        }
    }
}

/// # Errors
/// This build mounts one image only.
fn check_several() -> Result<()> {
    match HAS_SEVERAL {
        true => Ok(()),
        false => Err(redwarfs_format::Error::Unsupported(
            "this program was built without mounts of several images or snapshots".into(),
        )
        .into()),
    }
}

impl Uses for MountState {
    fn uses(&self) -> u64 {
        self.shared.counters.uses()
    }
}
