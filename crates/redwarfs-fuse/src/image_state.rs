//! The state of an image in a mount, which all threads share.

use std::sync::Arc;

use redwarfs_format::ids::{EntryIndex, InodeNo};
use redwarfs_format::metadata::FileType;
use redwarfs_reader::Image;
use redwarfs_reader::perfmon::{Component, PerfMonitor, Timer};
use rustix::io::Errno;

use crate::analysis::Analysis;
use crate::attr::inode_no;
use crate::case::CaseIndex;
use crate::error::Result;
use crate::failures::Failures;
use crate::mount_state::MountTotals;
use crate::numbers::Numbering;
use crate::options::MountOptions;
use crate::pending_reads::PendingReads;
use crate::policy::{node_id, stat_of_name};
use crate::proto::Attr;
use crate::settings::Settings;
use crate::slots::{ROOT, SlotNo};
use crate::statistics::Counters;
use crate::xattr::{self, Describer};

/// An image in a mount: its settings, and where it is.
#[derive(Debug)]
pub(crate) struct ImageState {
    pub(crate) image: Image,
    pub(crate) settings: Settings,
    pub(crate) describer: Describer,
    pub(crate) case: Option<CaseIndex>,
    pub(crate) analysis: Option<Analysis>,
    pub(crate) failures: Failures,
    pub(crate) pending_reads: Arc<PendingReads>,
    pub(crate) counters: Arc<Counters>,
    /// The entry of the root whose place the directory of snapshots takes.
    pub(crate) hidden: Option<Arc<[u8]>>,
    /// What the image of a slot is, for those who ask.
    origin: Option<Arc<str>>,
    slot: SlotNo,
    /// Whether its root has the node id of the root of the mount, whatever the slot.
    is_root: bool,
    numbering: Numbering,
    pub(crate) timers: Timers,
    /// Number of inodes in the image.
    pub(crate) inodes: u32,
}

/// The place of an image in a mount.
#[derive(Debug)]
pub(crate) struct PlaceOfImage {
    pub(crate) slot: SlotNo,
    /// Whether its root has the node id of the root of the mount, whatever the slot.
    pub(crate) is_root: bool,
    pub(crate) numbering: Numbering,
    /// What it is, for those who ask.
    pub(crate) origin: Option<Arc<str>>,
    /// The entry of the root whose place the directory of snapshots takes.
    pub(crate) hidden: Option<Arc<[u8]>>,
}

impl ImageState {
    /// The state of the image whose root is that of the mount.
    ///
    /// # Errors
    /// The analysis file cannot be created, or the metadata is damaged.
    pub(crate) fn of_root(
        image: Image,
        options: &MountOptions,
        shared: &MountTotals,
        hidden: Option<Arc<[u8]>>,
    ) -> Result<Self> {
        let analysis = Analysis::wanted(image.metadata(), options)?;
        let place = PlaceOfImage {
            slot: SlotNo(0),
            is_root: true,
            numbering: Numbering::behind(0),
            origin: None,
            hidden,
        };
        Ok(Self {
            analysis,
            ..Self::of_slot(place, image, options, shared)?
        })
    }

    /// The state of another image in the same mount.
    ///
    /// # Errors
    /// The metadata is damaged.
    pub(crate) fn of_slot(
        place: PlaceOfImage,
        image: Image,
        options: &MountOptions,
        shared: &MountTotals,
    ) -> Result<Self> {
        Ok(Self {
            settings: Settings::new(&image, options),
            describer: Describer::new(&image),
            case: CaseIndex::wanted(image.metadata(), options)?,
            analysis: None,
            failures: Failures::default(),
            pending_reads: Arc::clone(&shared.pending_reads),
            counters: Arc::clone(&shared.counters),
            hidden: place.hidden.filter(|_| place.is_root),
            origin: place.origin,
            slot: place.slot,
            is_root: place.is_root,
            numbering: place.numbering,
            timers: Timers::new(image.perfmon()),
            inodes: image.metadata().inode_count(),
            image,
        })
    }

    /// An attribute that says which image this is; its root has them.
    pub(crate) fn about(&self, inode: InodeNo, name: &[u8]) -> Option<String> {
        let origin = self
            .origin
            .as_deref()
            .filter(|_| inode == self.image.root())?;
        match name {
            xattr::SLOT => Some(self.slot.0.to_string()),
            xattr::SOURCE => Some(origin.to_owned()),
            _ => None,
        }
    }

    /// The names of these attributes, each ended by a zero byte.
    pub(crate) fn names_about(&self, inode: InodeNo) -> &'static [u8] {
        match self.origin.is_some() && inode == self.image.root() {
            true => xattr::NAMES_OF_SLOT,
            false => b"",
        }
    }

    /// Which image of the mount it is.
    pub(crate) fn slot(&self) -> SlotNo {
        self.slot
    }

    /// The node id of an inode.
    pub(crate) fn node(&self, inode: InodeNo) -> u64 {
        if self.is_root && inode == self.image.root() {
            return ROOT;
        }
        self.slot.first_node() + node_id(inode)
    }

    /// The number of an inode that programs see.
    pub(crate) fn number(&self, inode: InodeNo) -> u64 {
        if self.is_root && inode == self.image.root() {
            return ROOT;
        }
        self.numbering.of(inode)
    }

    /// Notes that the image cannot be read here. Returns the error for the reply.
    pub(crate) fn fail(&self, what: &str, inode: InodeNo, cause: &redwarfs_format::Error) -> Errno {
        self.failures.report(what, inode, cause);
        Errno::IO
    }

    /// The inode of a node id.
    pub(crate) fn inode(&self, node: u64) -> Result<InodeNo, Errno> {
        if self.is_root && node == ROOT {
            return Ok(self.image.root());
        }
        let node = node.checked_sub(self.slot.first_node());
        node.and_then(inode_no)
            .filter(|inode| inode.0 < self.inodes)
            .ok_or(Errno::NOENT)
    }

    /// The inode of a node id, which must be a directory. `what` names the operation for the message.
    pub(crate) fn directory(&self, node: u64, what: &str) -> Result<InodeNo, Errno> {
        let inode = self.inode(node)?;
        match self.image.metadata().file_type(inode) {
            Ok(FileType::Directory) => Ok(inode),
            Ok(_) => Err(Errno::NOTDIR),
            Err(cause) => Err(self.fail(what, inode, &cause)),
        }
    }

    /// The attributes of an inode, as the mount shows them.
    pub(crate) fn attr(&self, inode: InodeNo) -> Result<Attr, Errno> {
        self.attr_of_name(inode, None)
    }

    /// The attributes of an inode under one of its names, see [`stat_of_name`]. The kernel keeps the
    /// attributes of the last looked-up name.
    pub(crate) fn attr_of_name(
        &self,
        inode: InodeNo,
        name: Option<EntryIndex>,
    ) -> Result<Attr, Errno> {
        match stat_of_name(self.image.metadata(), inode, name) {
            Ok(stat) => {
                let mut attr = self.settings.policy.attr(&stat);
                (attr.node, attr.number) = (self.node(inode), self.number(inode));
                Ok(attr)
            }
            Err(cause) => Err(self.fail("stat", inode, &cause)),
        }
    }
}

/// Timers of the operations.
#[derive(Debug)]
pub(crate) struct Timers {
    pub(crate) lookup: Timer,
    pub(crate) getattr: Timer,
    pub(crate) readlink: Timer,
    pub(crate) open: Timer,
    pub(crate) lseek: Timer,
    pub(crate) read: Timer,
    pub(crate) readdir: Timer,
    pub(crate) statfs: Timer,
    pub(crate) getxattr: Timer,
    pub(crate) listxattr: Timer,
}

impl Timers {
    fn new(perfmon: &PerfMonitor) -> Self {
        let timer = |name| perfmon.timer(Component::Fuse, name);
        Self {
            lookup: timer("op_lookup"),
            getattr: timer("op_getattr"),
            readlink: timer("op_readlink"),
            open: timer("op_open"),
            lseek: timer("op_lseek"),
            read: timer("op_read"),
            readdir: timer("op_readdir"),
            statfs: timer("op_statfs"),
            getxattr: timer("op_getxattr"),
            listxattr: timer("op_listxattr"),
        }
    }
}
