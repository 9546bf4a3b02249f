//! The state of a mount, which all its threads share.

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
use crate::generations::{Generations, ROOT, SlotNo};
use crate::idle::Uses;
use crate::options::MountOptions;
use crate::pending_reads::PendingReads;
use crate::policy::{node_id, stat_of_name};
use crate::proto::Attr;
use crate::settings::Settings;
use crate::snapshots::SnapshotDirectory;
use crate::statistics::Counters;
use crate::xattr::Describer;

/// The image, the settings of the mount, and the counters of requests.
#[derive(Debug)]
pub(crate) struct MountState {
    pub(crate) image: Image,
    pub(crate) settings: Settings,
    pub(crate) describer: Describer,
    pub(crate) case: Option<CaseIndex>,
    pub(crate) analysis: Option<Analysis>,
    pub(crate) failures: Failures,
    /// Of the whole mount: also for reads of snapshots.
    pub(crate) pending_reads: Arc<PendingReads>,
    pub(crate) counters: Arc<Counters>,
    /// None in the state of one of them.
    pub(crate) generations: Option<Generations>,
    /// None as `generations`.
    pub(crate) snapshots: Option<SnapshotDirectory>,
    /// The entry of the root whose place the directory of snapshots takes.
    pub(crate) hidden: Option<Arc<[u8]>>,
    slot: SlotNo,
    /// Whether its root has the node id of the root of the mount, whatever the slot.
    is_root: bool,
    pub(crate) timers: Timers,
    /// Number of inodes in the image.
    pub(crate) inodes: u32,
}

impl MountState {
    /// Makes all state that depends only on image and options. The caller does this before it mounts,
    /// so that errors are found before the mount.
    ///
    /// # Errors
    /// The analysis file cannot be created, or the metadata is damaged.
    pub(crate) fn new(image: Image, options: &MountOptions) -> Result<Self> {
        let generations = Generations::new(&image, options);
        let snapshots = SnapshotDirectory::wanted(&image, options, &generations)?;
        Ok(Self {
            settings: Settings::new(&image, options),
            describer: Describer::new(&image),
            case: CaseIndex::wanted(image.metadata(), options)?,
            analysis: Analysis::wanted(image.metadata(), options)?,
            failures: Failures::default(),
            pending_reads: Arc::default(),
            counters: Arc::default(),
            generations: Some(generations),
            hidden: snapshots.as_ref().map(|of| Arc::clone(of.name())),
            snapshots,
            slot: SlotNo(0),
            is_root: true,
            timers: Timers::new(image.perfmon()),
            inodes: image.metadata().inode_count(),
            image,
        })
    }

    /// The state of another generation in the same mount.
    ///
    /// # Errors
    /// The metadata is damaged.
    pub(crate) fn of_slot(
        &self,
        slot: SlotNo,
        is_root: bool,
        image: Image,
        options: &MountOptions,
    ) -> Result<Self> {
        Ok(Self {
            settings: Settings::new(&image, options),
            describer: Describer::new(&image),
            case: CaseIndex::wanted(image.metadata(), options)?,
            analysis: None,
            failures: Failures::default(),
            pending_reads: Arc::clone(&self.pending_reads),
            counters: Arc::clone(&self.counters),
            generations: None,
            snapshots: None,
            hidden: self.hidden.clone().filter(|_| is_root),
            slot,
            is_root,
            timers: Timers::new(image.perfmon()),
            inodes: image.metadata().inode_count(),
            image,
        })
    }

    /// The node id of an inode.
    pub(crate) fn node(&self, inode: InodeNo) -> u64 {
        if self.is_root && inode == self.image.root() {
            return ROOT;
        }
        self.slot.first_node() + node_id(inode)
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
                attr.node = self.node(inode);
                Ok(attr)
            }
            Err(cause) => Err(self.fail("stat", inode, &cause)),
        }
    }
}

impl Uses for MountState {
    fn uses(&self) -> u64 {
        self.counters.uses()
    }
}

/// Timers of the operations.
#[derive(Debug)]
pub(crate) struct Timers {
    pub(crate) init: Timer,
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
            init: timer("op_init"),
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
