//! The tree that the entries of archives make, one after the other.
//!
//! Names are followed by the tree alone: an entry below a symlink, or below `..`, is refused, so that no
//! archive reaches anything outside of itself.

mod whiteouts;

use std::collections::{HashMap, HashSet};

use hashbrown::HashTable;
use redwarfs_io::spill::Records;
use redwarfs_writer::{FileType, Timestamp};
use twox_hash::XxHash3_64;

use crate::finished::{Entry, Finished};
use crate::inode::{Data, Inode, Inodes};
use crate::member::{Kind, Member};

/// An entry: a name in a directory.
#[derive(Debug, Clone, Copy)]
struct Node {
    parent: u32,
    /// In the arena of names.
    name: (usize, u32),
    inode: u32,
    /// The last layer that has an entry for it or below it.
    layer: u32,
    /// Whiteouts of this layer remove it and everything below it that older layers have.
    whited: u32,
    /// The layer whose opaque mark removes what older layers have in this directory.
    opaque: u32,
    /// Another entry has not taken its place.
    current: bool,
}

/// Bit of `Node::inode` for a hard link whose other name is not known yet.
const PENDING: u32 = 1 << 31;
/// Most entries, and most inodes.
const MOST: u32 = PENDING - 1;

/// A hard link to an entry that had not come.
#[derive(Debug)]
struct Pending {
    node: u32,
    target: Vec<u8>,
    /// For messages.
    path: Vec<u8>,
    /// Contents that came with the link, as some programs write them.
    own: Option<u32>,
}

/// What became of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Placed {
    /// The inode that gets the contents of the entry.
    Inode(u32),
    /// The entry has no contents, or they are not needed.
    Done,
}

/// The tree.
pub(crate) struct Tree {
    nodes: Vec<Node>,
    names: Vec<u8>,
    table: HashTable<u32>,
    inodes: Inodes,
    pending: Vec<Pending>,
    /// Inodes of the archive that is being read, by the numbers in it.
    numbers: HashMap<(u64, u64), u32>,
    /// The number of the archive that is being read, from 1.
    layer: u32,
    /// Directory under which its entries go.
    base: Vec<u8>,
    newest: Option<Timestamp>,
    /// Extended attributes for the inodes that nodes have in the end.
    attributes: Vec<(u32, Vec<u8>, Vec<u8>)>,
    /// Devices that stand for whiteouts.
    devices: HashSet<u32>,
    variable: u64,
}

/// Longest path in bytes, as in an image.
const LONGEST_PATH: usize = 64 << 10;
/// Longest name of an entry in its directory, in bytes.
const LONGEST_NAME: usize = 255;

/// Why an entry is not in the tree.
pub(crate) type Refusal = &'static str;

/// The components of a path: without `/` at the beginning and end, and without `.`.
///
/// # Errors
/// The path is empty or too long, or contains `..` or NUL.
pub(crate) fn components(path: &[u8]) -> Result<Vec<&[u8]>, Refusal> {
    if path.is_empty() {
        return Err("its name is empty");
    }
    if path.len() > LONGEST_PATH {
        return Err("its name is longer than 64 KiB");
    }
    if path.contains(&0) {
        return Err("its name contains NUL");
    }
    let parts = path.split(|&b| b == b'/');
    let parts = parts.filter(|part| !part.is_empty() && *part != b".");
    let parts: Vec<&[u8]> = parts.collect();
    if parts.iter().any(|part| part.len() > LONGEST_NAME) {
        return Err("a part of its name is longer than 255 bytes");
    }
    match parts.contains(&&b".."[..]) {
        true => Err("its name contains '..'"),
        false => Ok(parts),
    }
}

impl Tree {
    pub(crate) fn new() -> Self {
        let mut inodes = Inodes::default();
        inodes.push(Inode::directory());
        Self {
            nodes: vec![Node {
                parent: 0,
                name: (0, 0),
                inode: 0,
                layer: 0,
                whited: 0,
                opaque: 0,
                current: true,
            }],
            names: Vec::new(),
            table: HashTable::new(),
            inodes,
            pending: Vec::new(),
            numbers: HashMap::new(),
            layer: 0,
            base: Vec::new(),
            newest: None,
            attributes: Vec::new(),
            devices: HashSet::new(),
            variable: 0,
        }
    }

    /// Bytes of memory.
    pub(crate) fn memory(&self) -> u64 {
        let nodes = self.nodes.capacity() * size_of::<Node>() + self.table.capacity() * 8;
        let numbers = self.numbers.capacity() * 40;
        let pending = self.pending.capacity() * size_of::<Pending>();
        let devices = self.devices.capacity() * 8;
        let all = nodes + numbers + pending + devices + self.names.capacity();
        all as u64 + self.inodes.memory() + self.variable
    }

    /// The next archive; its entries go under the directory `base`.
    pub(crate) fn begin(&mut self, base: &[u8]) -> Result<(), Refusal> {
        self.layer += 1;
        self.base = base.to_vec();
        let base = base.to_vec();
        self.directory(&components_or_none(&base)?)?;
        Ok(())
    }

    fn name(&self, node: u32) -> &[u8] {
        let (start, length) = self.nodes[node as usize].name;
        (self.names.get(start..start + length as usize)).unwrap_or_default()
    }

    fn hash(parent: u32, name: &[u8]) -> u64 {
        XxHash3_64::oneshot_with_seed(parent.into(), name)
    }

    fn child(&self, parent: u32, name: &[u8]) -> Option<u32> {
        let found = self.table.find(Self::hash(parent, name), |&node| {
            self.nodes[node as usize].parent == parent && self.name(node) == name
        });
        found.copied()
    }

    /// The node of a path that is visible in the layer which is being read.
    fn find(&self, parts: &[&[u8]]) -> Option<u32> {
        let mut at = 0;
        let mut cut = self.nodes[0].opaque;
        for name in parts {
            at = self.child(at, name)?;
            let node = self.nodes[at as usize];
            if node.layer < cut.max(node.whited) {
                return None;
            }
            cut = cut.max(node.whited).max(node.opaque);
        }
        Some(at)
    }

    fn kind(&self, node: u32) -> Option<FileType> {
        let inode = self.nodes[node as usize].inode;
        // A hard link that waits for its other name is no directory.
        self.inodes.kind(inode).filter(|_| inode & PENDING == 0)
    }

    fn add_inode(&mut self, inode: Inode) -> Result<u32, Refusal> {
        match self.inodes.len() < MOST as usize {
            true => Ok(self.inodes.push(inode)),
            false => Err("there are too many entries"),
        }
    }

    /// Adds an entry, or puts another one in its place.
    fn put(&mut self, parent: u32, name: &[u8], inode: u32) -> Result<u32, Refusal> {
        let number = self.nodes.len() as u32;
        if number >= MOST {
            return Err("there are too many entries");
        }
        let node = Node {
            parent,
            name: (self.names.len(), name.len() as u32),
            inode,
            layer: self.layer,
            whited: 0,
            opaque: 0,
            current: true,
        };
        if let Some(old) = self.child(parent, name) {
            let same = self.nodes[old as usize].name;
            self.nodes[old as usize].current = false;
            self.nodes.push(Node { name: same, ..node });
            let (nodes, names) = (&self.nodes, &self.names);
            let found = self.table.find_mut(Self::hash(parent, name), |&node| {
                let node = nodes[node as usize];
                let (start, length) = node.name;
                node.parent == parent && names.get(start..start + length as usize) == Some(name)
            });
            if let Some(found) = found {
                *found = number;
            }
            return Ok(number);
        }
        self.names.extend_from_slice(name);
        self.nodes.push(node);
        let (nodes, names) = (&self.nodes, &self.names);
        self.table
            .insert_unique(Self::hash(parent, name), number, |&node| {
                let node = nodes[node as usize];
                let (start, length) = node.name;
                let name = names.get(start..start + length as usize);
                Self::hash(node.parent, name.unwrap_or_default())
            });
        Ok(number)
    }

    /// The directory with this path. Directories that do not exist are added.
    fn directory(&mut self, parts: &[&[u8]]) -> Result<u32, Refusal> {
        let mut at = 0;
        let mut cut = self.nodes[0].opaque;
        self.nodes[0].layer = self.layer;
        for name in parts {
            let found = self.child(at, name).filter(|&node| {
                let node = self.nodes[node as usize];
                node.layer >= cut.max(node.whited)
            });
            at = match found {
                Some(node) => match self.kind(node) {
                    Some(FileType::Directory) => node,
                    Some(FileType::Symlink) => {
                        return Err(
                            "a directory above it is a symbolic link, which is not followed",
                        );
                    }
                    _ if self.devices.contains(&node) => {
                        let inode = self.add_inode(Inode::directory())?;
                        let node = self.put(at, name, inode)?;
                        self.set_opaque(node);
                        node
                    }
                    _ => return Err("an entry above it is not a directory"),
                },
                None => {
                    let inode = self.add_inode(Inode::directory())?;
                    self.put(at, name, inode)?
                }
            };
            let node = self.nodes[at as usize];
            cut = cut.max(node.whited).max(node.opaque);
        }
        // What is above a new entry of this layer is part of the layer, whatever whiteouts come.
        let mut up = at;
        while up != 0 && self.nodes[up as usize].layer < self.layer {
            self.nodes[up as usize].layer = self.layer;
            up = self.nodes[up as usize].parent;
        }
        Ok(at)
    }

    fn based<'p>(&self, base: &'p [u8], path: &'p [u8]) -> Result<Vec<&'p [u8]>, Refusal> {
        let mut parts = components_or_none(base)?;
        parts.extend(components(path)?);
        match base.len() + path.len() < LONGEST_PATH {
            true => Ok(parts),
            false => Err("its name is longer than 64 KiB"),
        }
    }

    /// Adds an entry.
    ///
    /// # Errors
    /// Why it is left out.
    pub(crate) fn add(&mut self, member: &Member) -> Result<Placed, Refusal> {
        if let Some(refused) = member.refused {
            return Err(refused);
        }
        if matches!(&member.kind, Kind::Symlink(target) if target.is_empty()) {
            return Err("it is a symbolic link without a target");
        }
        let base = self.base.clone();
        let parts = self.based(&base, &member.path)?;
        if self
            .newest
            .is_none_or(|newest| (newest.sec, newest.nsec) < (member.mtime.sec, member.mtime.nsec))
        {
            self.newest = Some(member.mtime);
        }
        let Some((name, above)) = parts.split_last().filter(|_| parts.len() > base_len(&base))
        else {
            // The root, or the directory that stands for it.
            if member.kind != Kind::Directory {
                return Err("it would take the place of the root directory");
            }
            let at = self.directory(&parts)?;
            let inode = self.add_inode(Inode::of(member))?;
            self.nodes[at as usize].inode = inode;
            return Ok(Placed::Done);
        };
        let parent = self.directory(above)?;
        if let Kind::HardLink(target) = &member.kind {
            return self.link(&base, parent, name, &parts, target, member);
        }
        if let Some(&inode) = member.inode.and_then(|number| self.numbers.get(&number)) {
            self.put(parent, name, inode)?;
            // One of the names comes with the data, or each does.
            return Ok(match member.size {
                Some(0) => Placed::Done,
                _ => Placed::Inode(inode),
            });
        }
        let inode = self.add_inode(Inode::of(member))?;
        let visible = self.find(&parts);
        match visible.filter(|&old| self.kind(old) == Some(FileType::Directory)) {
            Some(old) if member.kind == Kind::Directory => {
                let node = &mut self.nodes[old as usize];
                (node.inode, node.layer) = (inode, self.layer);
            }
            _ => {
                let node = self.put(parent, name, inode)?;
                let whiteout = visible.is_some_and(|old| self.devices.contains(&old));
                if whiteout && member.kind == Kind::Directory {
                    self.set_opaque(node);
                }
            }
        }
        if let Some(number) = member.inode {
            self.numbers.insert(number, inode);
        }
        Ok(match member.kind {
            Kind::Regular => Placed::Inode(inode),
            _ => Placed::Done,
        })
    }

    /// Adds a hard link.
    fn link(
        &mut self,
        base: &[u8],
        parent: u32,
        name: &[u8],
        parts: &[&[u8]],
        target: &[u8],
        member: &Member,
    ) -> Result<Placed, Refusal> {
        let others = self
            .based(base, target)
            .map_err(|_| "the other name of this hard link is invalid")?;
        if others == parts {
            // What is there stays.
            return match self.find(parts) {
                Some(_) => Ok(Placed::Done),
                None => Err("it is a hard link to itself"),
            };
        }
        if let Some(other) = self.find(&others) {
            let inode = self.nodes[other as usize].inode;
            if inode & PENDING == 0 {
                if self.inodes.kind(inode) == Some(FileType::Directory) {
                    return Err("it is a hard link to a directory");
                }
                self.put(parent, name, inode)?;
                return Ok(Placed::Done);
            }
        }
        let number = self.pending.len() as u32;
        if number >= MOST {
            return Err("there are too many entries");
        }
        let has_data = member.size.is_some_and(|size| size > 0);
        let own = has_data
            .then(|| self.add_inode(Inode::of(member)))
            .transpose()?;
        let node = self.put(parent, name, number | PENDING)?;
        self.variable += (target.len() + member.path.len()) as u64;
        self.pending.push(Pending {
            node,
            target: others.join(&b'/'),
            path: member.path.clone(),
            own,
        });
        Ok(own.map_or(Placed::Done, Placed::Inode))
    }

    /// Gives a regular file its contents.
    pub(crate) fn set_contents(&mut self, inode: u32, size: u64, data: Data) {
        self.inodes.set_contents(inode, size, data);
    }

    /// The archive has ended. Returns the hard links whose other name does not exist.
    pub(crate) fn end(&mut self) -> Vec<Vec<u8>> {
        self.numbers = HashMap::new();
        let pending = std::mem::take(&mut self.pending);
        let mut missing = Vec::new();
        let mut resolved: Vec<Option<Option<u32>>> = vec![None; pending.len()];
        // The chain to which a link belongs, from 1.
        let mut chains = vec![0; pending.len()];
        for first in 0..pending.len() {
            let mut chain = Vec::new();
            let mut at = first;
            let inode = loop {
                match resolved.get(at).copied().flatten() {
                    Some(known) => break known,
                    // Links that lead to each other.
                    None if chains.get(at) == Some(&(first + 1)) => break None,
                    None => {}
                }
                let (Some(link), Some(mark)) = (pending.get(at), chains.get_mut(at)) else {
                    break None;
                };
                *mark = first + 1;
                chain.push(at);
                let parts: Vec<&[u8]> = link.target.split(|&b| b == b'/').collect();
                let found = self
                    .find(&parts)
                    .map(|node| self.nodes[node as usize].inode);
                match found {
                    Some(inode) if inode & PENDING != 0 => at = (inode & !PENDING) as usize,
                    Some(inode) if self.inodes.kind(inode) != Some(FileType::Directory) => {
                        break Some(inode);
                    }
                    _ => break None,
                }
            };
            // All links of the chain are names of the same file.
            let mut inode = inode;
            for link in chain.into_iter().rev() {
                inode = inode.or_else(|| pending.get(link)?.own);
                if let Some(slot) = resolved.get_mut(link) {
                    *slot = Some(inode);
                }
            }
        }
        for (number, link) in pending.into_iter().enumerate() {
            let node = &mut self.nodes[link.node as usize];
            if !node.current {
                continue;
            }
            match resolved.get(number).copied().flatten().flatten() {
                Some(inode) => node.inode = inode,
                None => {
                    node.current = false;
                    missing.push(link.path);
                }
            }
        }
        missing
    }

    /// Ends the tree.
    pub(crate) fn finish(mut self) -> Finished {
        let count = self.nodes.len();
        // Parents have smaller numbers than their children.
        let mut cuts = vec![0; count];
        let mut live = vec![false; count];
        let mut gone = vec![false; count];
        for at in 0..count {
            let node = self.nodes[at];
            let up = node.parent as usize;
            gone[at] = !node.current || gone[up];
            let cut = cuts[up].max(node.whited);
            live[at] = !gone[at] && node.layer >= cut;
            cuts[at] = cut.max(node.opaque);
        }
        for at in (1..count).rev() {
            let up = self.nodes[at].parent as usize;
            live[up] = live[up] || live[at];
        }
        live[0] = true;
        drop((cuts, gone));
        self.table = HashTable::new();
        let attributes = std::mem::take(&mut self.attributes).into_iter();
        let attributes = attributes.filter(|(node, ..)| live[*node as usize]);
        let attributes =
            attributes.map(|(node, name, value)| (self.nodes[node as usize].inode, name, value));
        let attributes = attributes.collect();
        let newest = self.newest.unwrap_or_default();
        self.inodes.finish(newest, attributes);
        // Sorted by parent and name.
        let mut order: Vec<u32> = (1..count as u32).filter(|&at| live[at as usize]).collect();
        order.sort_unstable_by(|&a, &b| {
            let key = |at: u32| (self.nodes[at as usize].parent, self.name(at));
            key(a).cmp(&key(b))
        });
        let mut ranges = HashMap::new();
        for (at, &node) in (0u32..).zip(&order) {
            let node = self.nodes[node as usize];
            let range = ranges.entry(node.parent).or_insert((at, at));
            range.1 = at + 1;
            self.inodes.add_name(node.inode);
        }
        let top = ranges.remove(&0).unwrap_or_default();
        let by_entry = (0u32..).zip(&order);
        let by_entry = by_entry.filter_map(|(at, node)| Some((at, ranges.remove(node)?)));
        let by_entry = by_entry.collect();
        let entries = order.iter().map(|&at| {
            let node = self.nodes[at as usize];
            Entry::new(node.name, node.inode)
        });
        Finished {
            root: self.nodes[0].inode,
            top,
            entries: Records::Memory(entries.collect()),
            ranges: by_entry,
            names: Records::Memory(self.names),
            inodes: self.inodes,
            ..Finished::default()
        }
    }
}

fn components_or_none(path: &[u8]) -> Result<Vec<&[u8]>, Refusal> {
    match path.is_empty() {
        true => Ok(Vec::new()),
        false => components(path),
    }
}

fn base_len(base: &[u8]) -> usize {
    components_or_none(base).map_or(0, |parts| parts.len())
}
