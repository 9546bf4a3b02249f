//! Images as layers of one tree: directories merge, and the uppermost image that has a name decides what it is.
//!
//! Every directory has a node of its own in slot 0. It consists of *parts*: directories of layers, the uppermost one first.
//! All other inodes are those of their layer. A directory is merged when somebody looks into it (`merge.rs`), and the
//! result is kept while there is room. Nodes stay for the life of the mount, so that inode numbers do.

mod merge;

use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redwarfs_format::ids::InodeNo;
use redwarfs_reader::perfmon::PerfMonitor;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::image_state::{ImageState, PlaceOfImage};
use crate::images::NamedImage;
use crate::mount_state::{MountState, Shared};
use crate::ops::answer::{Answer, Outcome};
use crate::ops::init::Agreed;
use crate::ops::listing::{self, DOTS};
use crate::ops::statfs::Totals;
use crate::ops::xattr_value::put_value;
use crate::ops::{self, opendir};
use crate::options::{MountOptions, Whiteouts};
use crate::proto::{Attr, Body, Header, dirent_size, op, put_dirent};
use crate::slots::{ROOT, SlotNo};
use crate::xattr;
use merge::{Entry, Part, merge};

/// Names of directories whose merged entries are kept.
const KEPT: usize = 1 << 18;
/// What the attributes of overlayfs begin with.
const OWN: [&[u8]; 2] = [b"trusted.overlay.", b"user.overlay."];

/// Several images as layers of one tree.
#[derive(Debug)]
pub(crate) struct Union {
    /// The uppermost one first. The number of its slot is its place, from 1 on.
    layers: Vec<Arc<ImageState>>,
    whiteouts: Whiteouts,
    nodes: Mutex<Nodes>,
    kept: Mutex<Kept>,
}

/// A directory.
#[derive(Debug, Clone)]
struct Directory {
    parts: Arc<[Part]>,
    parent: u64,
}

/// The directories that somebody has seen, from the root on, whose node id is 1.
#[derive(Debug, Default)]
struct Nodes {
    all: Vec<Directory>,
    /// By the uppermost part: a directory of a layer is in one place.
    known: HashMap<Part, u64>,
}

impl Nodes {
    /// The node of a directory.
    fn node(&mut self, parts: &Arc<[Part]>, parent: u64) -> u64 {
        let first = parts.first().copied();
        if let Some(&node) = first.and_then(|first| self.known.get(&first)) {
            return node;
        }
        self.all.push(Directory {
            parts: Arc::clone(parts),
            parent,
        });
        let node = self.all.len() as u64;
        if let Some(first) = first {
            self.known.insert(first, node);
        }
        node
    }
}

/// Merged directories, the least recently used one first.
#[derive(Debug, Default)]
struct Kept {
    by_node: HashMap<u64, (u64, Arc<[Entry]>)>,
    order: BTreeMap<u64, u64>,
    tick: u64,
    names: usize,
}

impl Kept {
    fn get(&mut self, node: u64) -> Option<Arc<[Entry]>> {
        self.tick += 1;
        let (tick, entries) = self.by_node.get_mut(&node)?;
        self.order.remove(tick);
        *tick = self.tick;
        self.order.insert(self.tick, node);
        Some(Arc::clone(entries))
    }

    fn insert(&mut self, node: u64, entries: &Arc<[Entry]>, most: usize) {
        if self.by_node.contains_key(&node) {
            return;
        }
        self.tick += 1;
        self.names += entries.len() + 1;
        self.order.insert(self.tick, node);
        self.by_node.insert(node, (self.tick, Arc::clone(entries)));
        while self.names > most && self.by_node.len() > 1 {
            let Some((_, least)) = self.order.pop_first() else {
                break;
            };
            if let Some((_, gone)) = self.by_node.remove(&least) {
                self.names -= gone.len() + 1;
            }
        }
    }
}

impl Union {
    /// Opens the layers, the uppermost one first.
    ///
    /// # Errors
    /// [`Error::Layer`]: one of them cannot be opened; [`Error::Image`]: its metadata is damaged.
    pub(crate) fn open(
        images: Vec<NamedImage>,
        whiteouts: Whiteouts,
        options: &MountOptions,
        shared: &Shared,
    ) -> Result<Self> {
        let mut layers = Vec::new();
        for (slot, named) in (1..).zip(images) {
            let image = (named.open)().map_err(Error::Layer)?;
            let place = PlaceOfImage {
                slot: SlotNo(slot),
                is_root: false,
                origin: Some(Arc::from(named.source)),
                hidden: None,
            };
            layers.push(Arc::new(ImageState::of_slot(
                place, image, options, shared,
            )?));
        }
        let parts = layers.iter().enumerate().map(|(layer, of)| Part {
            layer,
            inode: of.image.root(),
        });
        let mut nodes = Nodes::default();
        nodes.node(&merge::of_root(&layers, whiteouts, parts)?, ROOT);
        Ok(Self {
            layers,
            whiteouts,
            nodes: Mutex::new(nodes),
            kept: Mutex::default(),
        })
    }

    fn nodes(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn kept(&self) -> MutexGuard<'_, Kept> {
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The layer of a slot.
    pub(crate) fn layer(&self, slot: SlotNo) -> Option<&Arc<ImageState>> {
        self.layers
            .get(usize::try_from(slot.0.checked_sub(1)?).ok()?)
    }

    /// The size of all layers.
    pub(crate) fn totals(&self) -> Totals {
        self.layers.iter().map(|layer| Totals::of(layer)).sum()
    }

    /// Lets reads fail that wait for a server.
    pub(crate) fn abandon(&self) {
        for layer in &self.layers {
            layer.image.source().abandon();
        }
    }

    fn directory(&self, node: u64) -> Result<Directory, Errno> {
        let index = node
            .checked_sub(ROOT)
            .and_then(|at| usize::try_from(at).ok());
        let nodes = self.nodes();
        let found = index.and_then(|at| nodes.all.get(at));
        found.cloned().ok_or(Errno::NOENT)
    }

    /// The uppermost part of a directory.
    fn upper(&self, directory: &Directory) -> Result<(&Arc<ImageState>, InodeNo), Errno> {
        let part = directory.parts.first().ok_or(Errno::NOENT)?;
        let layer = self.layers.get(part.layer).ok_or(Errno::NOENT)?;
        Ok((layer, part.inode))
    }

    fn attr(&self, node: u64) -> Result<Attr, Errno> {
        let directory = self.directory(node)?;
        let (layer, inode) = self.upper(&directory)?;
        let mut attr = layer.attr(inode)?;
        attr.node = node;
        if directory.parts.len() > 1 {
            // Nobody has counted the directories in it.
            attr.nlink = 1;
        }
        Ok(attr)
    }

    /// The attributes of the root.
    pub(crate) fn root_attr(&self) -> Result<Attr, Errno> {
        self.attr(ROOT)
    }

    /// The entries of a directory, in the order of their names.
    fn entries(&self, node: u64) -> Result<Arc<[Entry]>, Errno> {
        if let Some(kept) = self.kept().get(node) {
            return Ok(kept);
        }
        let directory = self.directory(node)?;
        let merged = merge(&self.layers, self.whiteouts, &directory.parts);
        let entries: Arc<[Entry]> = merged
            .map_err(|cause| match self.upper(&directory) {
                Ok((layer, inode)) => layer.fail("list", inode, &cause),
                Err(errno) => errno,
            })?
            .into();
        self.kept().insert(node, &entries, KEPT);
        Ok(entries)
    }

    fn attr_of_entry(&self, entry: &Entry, parent: u64) -> Result<Attr, Errno> {
        match &entry.parts {
            Some(parts) => {
                let node = self.nodes().node(parts, parent);
                self.attr(node)
            }
            None => {
                let layer = self.layers.get(entry.layer).ok_or(Errno::NOENT)?;
                layer.attr_of_name(entry.inode, Some(entry.index))
            }
        }
    }

    fn look_up(&self, node: u64, name: &[u8]) -> Result<Attr, Errno> {
        match name {
            b"." => self.attr(node),
            b".." => self.attr(self.directory(node)?.parent),
            _ => {
                let entries = self.entries(node)?;
                let found = entries.binary_search_by(|entry| (*entry.name).cmp(name));
                match found.ok().and_then(|at| entries.get(at)) {
                    Some(entry) if entry.is_foreign => Err(Errno::IO),
                    Some(entry) => self.attr_of_entry(entry, node),
                    None => Ok(Attr::default()),
                }
            }
        }
    }

    /// Carries out a request for a directory.
    pub(crate) fn answer(
        &self,
        mount: &MountState,
        agreed: Agreed,
        header: &Header,
        mut body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let settings = &mount.settings;
        let (names, attributes) = (settings.names, settings.attributes);
        let node = header.node;
        match header.opcode {
            op::LOOKUP => {
                let attr = self.look_up(node, body.name().ok_or(Errno::IO)?)?;
                attr.put_entry(names, attributes, out);
                Ok(Answer::Reply)
            }
            op::GETATTR => {
                self.attr(node)?.put_attr(attributes, out);
                Ok(Answer::Reply)
            }
            op::STATX => {
                let directory = self.directory(node)?;
                let (layer, inode) = self.upper(&directory)?;
                let birth = layer.image.metadata().birth_time(inode);
                let birth = birth.map_err(|cause| layer.fail("stat", inode, &cause))?;
                self.attr(node)?.put_statx(birth, attributes, out);
                Ok(Answer::Reply)
            }
            op::OPENDIR => opendir::answer(settings, agreed, header, out),
            op::READDIR | op::READDIRPLUS => {
                let (position, room) = listing::part(&mut body)?;
                let plus = header.opcode == op::READDIRPLUS;
                self.list(mount, node, plus, position, room, out)
            }
            op::GETXATTR | op::LISTXATTR if !settings.xattrs => Err(Errno::NOSYS),
            op::GETXATTR => self.get_xattr(&mount.perfmon, header, body, out),
            op::LISTXATTR => {
                let directory = self.directory(node)?;
                let (layer, inode) = self.upper(&directory)?;
                let all = ops::listxattr::all(layer, inode, header.uid == 0)?;
                let shown = all.split_inclusive(|&byte| byte == 0);
                let shown = shown.filter(|name| !self.hides_xattr(name)).flatten();
                let shown: Vec<u8> = shown.copied().collect();
                put_value(body.u32().ok_or(Errno::IO)?, &shown, shown.len(), out)
            }
            op::ACCESS => {
                let directory = self.directory(node)?;
                let (layer, inode) = self.upper(&directory)?;
                let header = Header {
                    node: layer.node(inode),
                    ..*header
                };
                ops::access::answer(layer, &header, body)
            }
            op::OPEN | op::READ => Err(Errno::ISDIR),
            op::READLINK | op::LSEEK => Err(Errno::INVAL),
            _ => Err(Errno::ROFS),
        }
    }

    /// Whether an attribute is one that says how a directory merges.
    fn hides_xattr(&self, name: &[u8]) -> bool {
        self.whiteouts != Whiteouts::Show && OWN.iter().any(|own| name.starts_with(own))
    }

    fn get_xattr(
        &self,
        perfmon: &PerfMonitor,
        header: &Header,
        mut body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let whole = body;
        let size = body.u32().ok_or(Errno::IO)?;
        body.u32();
        let name = body.name().ok_or(Errno::IO)?;
        if self.hides_xattr(name) {
            return Err(Errno::NODATA);
        }
        if header.node == ROOT
            && let Some(value) = xattr::of_driver(perfmon, name)
        {
            return put_value(size, &value.bytes, value.announced, out);
        }
        let directory = self.directory(header.node)?;
        let (layer, inode) = self.upper(&directory)?;
        let header = Header {
            node: layer.node(inode),
            ..*header
        };
        ops::getxattr::answer(layer, &header, whole, out)
    }

    fn list(
        &self,
        mount: &MountState,
        node: u64,
        plus: bool,
        position: u64,
        room: usize,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let settings = &mount.settings;
        // An entry without an inode has to be looked up before it is used.
        let unknown = Attr::default();
        let mut add = |attr: &Attr, known: bool, next: u64, name: &[u8]| {
            if out.len() + dirent_size(name, plus) > room {
                return true;
            }
            if plus {
                let entry = if known { attr } else { &unknown };
                entry.put_entry(settings.names, settings.attributes, out);
            }
            put_dirent(attr.node, next, attr.mode, name, out);
            false
        };
        if position == 0 && add(&self.attr(node)?, true, 1, b".") {
            return Ok(Answer::Reply);
        }
        let parent = self.directory(node)?.parent;
        if position <= 1 && add(&self.attr(parent)?, true, DOTS, b"..") {
            return Ok(Answer::Reply);
        }
        let entries = self.entries(node)?;
        let skipped = usize::try_from(position.saturating_sub(DOTS)).unwrap_or(usize::MAX);
        let rest = entries.get(skipped..).unwrap_or_default();
        for (next, entry) in (position.max(DOTS).saturating_add(1)..).zip(rest) {
            let attr = self.attr_of_entry(entry, node)?;
            if add(&attr, !entry.is_foreign, next, &entry.name) {
                break;
            }
        }
        Ok(Answer::Reply)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(count: usize) -> Arc<[Entry]> {
        let entry = |number: usize| Entry {
            name: number.to_string().into_bytes().into(),
            layer: 0,
            inode: InodeNo(0),
            index: redwarfs_format::ids::EntryIndex(0),
            parts: None,
            is_foreign: false,
        };
        (0..count).map(entry).collect()
    }

    #[test]
    fn the_least_recently_used_directory_goes_first() {
        let mut kept = Kept::default();
        for node in 1..=3 {
            kept.insert(node, &of(10), 33);
        }
        assert!(kept.get(1).is_some());
        kept.insert(4, &of(10), 33);
        assert!(kept.get(2).is_none());
        assert!([1, 3, 4].iter().all(|&node| kept.get(node).is_some()));
        // One is kept, however large it is.
        kept.insert(5, &of(100), 33);
        assert_eq!(
            (kept.names, kept.by_node.len(), kept.order.len()),
            (101, 1, 1)
        );
        assert!(kept.get(5).is_some());
    }

    #[test]
    fn directories_keep_their_nodes() {
        let mut nodes = Nodes::default();
        let parts = |inodes: &[u32]| -> Arc<[Part]> {
            let part = |(layer, &inode): (usize, &u32)| Part {
                layer,
                inode: InodeNo(inode),
            };
            inodes.iter().enumerate().map(part).collect()
        };
        assert_eq!(nodes.node(&parts(&[0, 0]), ROOT), ROOT);
        assert_eq!(nodes.node(&parts(&[1, 2]), ROOT), 2);
        assert_eq!(nodes.node(&parts(&[3]), 2), 3);
        assert_eq!(nodes.node(&parts(&[1, 2]), ROOT), 2);
        assert_eq!(nodes.all[2].parent, 2);
        // In a damaged layer, a directory may have several parents. There are no more nodes than directories.
        assert_eq!(nodes.node(&parts(&[1, 5]), ROOT), 2);
    }
}
