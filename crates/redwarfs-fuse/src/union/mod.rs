//! Images as layers of one tree: directories merge, and the uppermost image that has a name decides what it is.
//!
//! Every directory has a node of its own in slot 0. It consists of *parts*: directories of layers, the uppermost one first.
//! All other inodes are those of their layer. A directory is merged when somebody looks into it (`merge.rs`), and the
//! result is kept while there is room. Nodes stay for the life of the mount, because the kernel may know them.

mod merge;

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use redwarfs_format::ids::InodeNo;
use redwarfs_format::metadata::Timestamp;
use rustix::io::Errno;

use crate::error::{Error, Result};
use crate::image_state::{ImageState, PlaceOfImage};
use crate::images::NamedImage;
use crate::mount_state::{MountState, MountTotals};
use crate::numbers::Numbering;
use crate::ops;
use crate::ops::answer::Outcome;
use crate::ops::listing::DOTS;
use crate::ops::statfs::Totals;
use crate::ops::xattr_value::put_value;
use crate::options::{MountOptions, Whiteouts};
use crate::order::Order;
use crate::proto::{Attr, Body, Header, Validity};
use crate::slots::{ROOT, SlotNo};
use crate::synthetic::{AddEntry, Listed, Synthetic};
use crate::xattr;
use merge::{Entry, Part, merge};

/// Names of directories whose merged entries are kept.
const KEPT: usize = 1 << 18;
/// Directories with more than half as many names that are kept beside them.
const KEPT_LARGE: usize = 2;
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

/// Merged directories.
#[derive(Debug, Default)]
struct Kept {
    small: Recent,
    /// Those with more than half of [`KEPT`] names. They are apart, because listing one takes many requests, and
    /// other directories that are looked into meanwhile would let each of them merge it again.
    large: Recent,
}

impl Kept {
    fn get(&mut self, node: u64) -> Option<Arc<[Entry]>> {
        self.small.get(node).or_else(|| self.large.get(node))
    }

    fn insert(&mut self, node: u64, entries: &Arc<[Entry]>) {
        match entries.len() > KEPT / 2 {
            true => self.large.insert(node, entries, 1, KEPT_LARGE),
            false => self.small.insert(node, entries, entries.len() + 1, KEPT),
        }
    }
}

/// Some of them, in the order of their use.
#[derive(Debug, Default)]
struct Recent {
    by_node: HashMap<u64, (usize, Arc<[Entry]>)>,
    order: Order<u64>,
    weight: usize,
}

impl Recent {
    fn get(&mut self, node: u64) -> Option<Arc<[Entry]>> {
        let (_, entries) = self.by_node.get(&node)?;
        self.order.touch(node);
        Some(Arc::clone(entries))
    }

    /// Drops the least recently used ones, until all others together have at most the weight `most`. One stays.
    fn insert(&mut self, node: u64, entries: &Arc<[Entry]>, weight: usize, most: usize) {
        if self.by_node.contains_key(&node) {
            return;
        }
        self.weight += weight;
        self.order.touch(node);
        self.by_node.insert(node, (weight, Arc::clone(entries)));
        while self.weight > most && self.order.len() > 1 {
            let Some(least) = self.order.iter().next() else {
                break;
            };
            self.order.remove(least);
            if let Some((weight, _)) = self.by_node.remove(&least) {
                self.weight -= weight;
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
        shared: &MountTotals,
    ) -> Result<Self> {
        let mut layers = Vec::new();
        let mut inodes = 0;
        for (slot, named) in (1..).zip(images) {
            let image = (named.open)().map_err(Error::Layer)?;
            let numbering = Numbering::behind(inodes);
            inodes += u64::from(image.metadata().inode_count());
            let place = PlaceOfImage {
                slot: SlotNo(slot),
                is_root: false,
                numbering,
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
        if node == ROOT {
            attr.number = ROOT;
        }
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
        self.kept().insert(node, &entries);
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

    /// The directory of a node.
    pub(crate) fn at(&self, node: u64) -> UnionDirectory<'_> {
        UnionDirectory { union: self, node }
    }

    /// Whether an attribute is one that says how a directory merges.
    fn hides_xattr(&self, name: &[u8]) -> bool {
        self.whiteouts != Whiteouts::Show && OWN.iter().any(|own| name.starts_with(own))
    }
}

/// A directory of a union. Its uppermost part answers for it, where the parts do not merge.
#[derive(Debug)]
pub(crate) struct UnionDirectory<'m> {
    union: &'m Union,
    node: u64,
}

impl UnionDirectory<'_> {
    fn upper(&self) -> Result<(&Arc<ImageState>, InodeNo), Errno> {
        self.union.upper(&self.union.directory(self.node)?)
    }

    /// The header of a request for the uppermost part.
    fn header(&self, header: &Header) -> Result<(&Arc<ImageState>, Header), Errno> {
        let (layer, inode) = self.upper()?;
        let node = layer.node(inode);
        Ok((layer, Header { node, ..*header }))
    }
}

impl Synthetic for UnionDirectory<'_> {
    fn attr(&self, _mount: &MountState) -> Result<Attr, Errno> {
        self.union.attr(self.node)
    }

    fn parent(&self, _mount: &MountState) -> Result<Attr, Errno> {
        self.union.attr(self.union.directory(self.node)?.parent)
    }

    fn birth(&self) -> Result<Option<Timestamp>, Errno> {
        let (layer, inode) = self.upper()?;
        let birth = layer.image.metadata().birth_time(inode);
        birth.map_err(|cause| layer.fail("stat", inode, &cause))
    }

    fn find(&self, name: &[u8]) -> Result<Attr, Errno> {
        let entries = self.union.entries(self.node)?;
        let found = entries.binary_search_by(|entry| (*entry.name).cmp(name));
        match found.ok().and_then(|at| entries.get(at)) {
            Some(entry) if entry.is_foreign => Err(Errno::IO),
            Some(entry) => self.union.attr_of_entry(entry, self.node),
            None => Ok(Attr::default()),
        }
    }

    fn list(
        &self,
        _mount: &MountState,
        position: u64,
        plus: bool,
        add: AddEntry<'_>,
    ) -> Result<(), Errno> {
        let union = self.union;
        let entries = union.entries(self.node)?;
        let skipped = usize::try_from(position - DOTS).unwrap_or(usize::MAX);
        let rest = entries.get(skipped..).unwrap_or_default();
        for (next, entry) in (position.saturating_add(1)..).zip(rest) {
            let layer = union.layers.get(entry.layer).ok_or(Errno::NOENT)?;
            let wanted = plus && !entry.is_foreign;
            let attr = wanted.then(|| union.attr_of_entry(entry, self.node));
            let attr = attr.transpose()?;
            let listed = Listed {
                number: layer.number(entry.inode),
                mode: entry.mode,
                next,
                name: &entry.name,
                attr: attr.as_ref(),
            };
            if add(&listed) {
                break;
            }
        }
        Ok(())
    }

    fn validity_of_names(&self, mount: &MountState) -> Validity {
        mount.settings.names
    }

    fn access(&self, header: &Header, body: Body<'_>) -> Outcome {
        let (layer, header) = self.header(header)?;
        ops::access::answer(layer, &header, body)
    }

    fn get_xattr(
        &self,
        mount: &MountState,
        header: &Header,
        body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let mut parts = body;
        let size = parts.u32().ok_or(Errno::IO)?;
        parts.u32();
        let name = parts.name().ok_or(Errno::IO)?;
        if self.union.hides_xattr(name) {
            return Err(Errno::NODATA);
        }
        if self.node == ROOT
            && let Some(value) = xattr::of_driver(&mount.perfmon, name)
        {
            return put_value(size, &value.bytes, value.announced, out);
        }
        let (layer, header) = self.header(header)?;
        ops::getxattr::answer(layer, &header, body, out)
    }

    fn list_xattrs(
        &self,
        _mount: &MountState,
        header: &Header,
        mut body: Body<'_>,
        out: &mut Vec<u8>,
    ) -> Outcome {
        let (layer, inode) = self.upper()?;
        let all = ops::listxattr::all(layer, inode, header.uid == 0)?;
        let shown = all.split_inclusive(|&byte| byte == 0);
        let shown = shown.filter(|name| !self.union.hides_xattr(name)).flatten();
        let shown: Vec<u8> = shown.copied().collect();
        put_value(body.u32().ok_or(Errno::IO)?, &shown, shown.len(), out)
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
            mode: 0,
            parts: None,
            is_foreign: false,
        };
        (0..count).map(entry).collect()
    }

    #[test]
    fn the_least_recently_used_directory_goes_first() {
        let mut kept = Recent::default();
        for node in 1..=3 {
            kept.insert(node, &of(10), 11, 33);
        }
        assert!(kept.get(1).is_some());
        kept.insert(4, &of(10), 11, 33);
        assert!(kept.get(2).is_none());
        assert!([1, 3, 4].iter().all(|&node| kept.get(node).is_some()));
        // One is kept, however large it is.
        kept.insert(5, &of(100), 101, 33);
        assert_eq!(
            (kept.weight, kept.by_node.len(), kept.order.len()),
            (101, 1, 1)
        );
        kept.insert(5, &of(100), 101, 33);
        assert_eq!((kept.weight, kept.order.len()), (101, 1));
    }

    #[test]
    fn small_directories_do_not_drop_a_large_one() {
        let mut kept = Kept::default();
        kept.insert(1, &of(KEPT + 1));
        kept.insert(2, &of(KEPT));
        for node in 3..20 {
            kept.insert(node, &of(KEPT / 8));
        }
        let has = |kept: &mut Kept, node| kept.get(node).is_some();
        assert!(has(&mut kept, 1) && has(&mut kept, 2) && has(&mut kept, 19));
        assert!(!has(&mut kept, 3));
        kept.insert(20, &of(KEPT));
        assert!(!has(&mut kept, 1) && has(&mut kept, 2) && has(&mut kept, 20));
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
