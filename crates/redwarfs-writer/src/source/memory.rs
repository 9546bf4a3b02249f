//! A tree in memory as a source, for tests and for generated input.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use super::extended::ExtendedAttributes;
use super::{Content, DataExtent, DirItem, FileType, Meta, Source, Stamp, Timestamp};

/// One entry of a [`MemoryTree`].
#[derive(Debug, Clone)]
pub struct MemoryNode {
    /// Attributes. `size` and `allocated` follow from the content.
    pub meta: Meta,
    /// Bytes of a regular file, as pieces: data or holes of a length.
    pub pieces: Arc<Vec<MemoryExtent>>,
    /// Reading fails from this offset on.
    pub fail_at: Option<u64>,
    /// Opening (a file) or listing (a directory) fails.
    pub unreadable: bool,
    /// The size that the listing announces, if it differs from the real one.
    pub listed_size: Option<u64>,
}

/// A piece of a file in memory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryExtent {
    /// Bytes.
    Data(Vec<u8>),
    /// A hole of this many bytes.
    Hole(u64),
}

impl MemoryExtent {
    fn len(&self) -> u64 {
        match self {
            MemoryExtent::Data(data) => data.len() as u64,
            MemoryExtent::Hole(size) => *size,
        }
    }
}

impl MemoryNode {
    /// An entry of the given type without content, mode 0755 for directories and 0644 else.
    pub fn new(kind: FileType) -> Self {
        Self {
            meta: Meta {
                kind,
                permissions: if kind == FileType::Directory {
                    0o755
                } else {
                    0o644
                },
                uid: 0,
                gid: 0,
                rdev: 0,
                size: 0,
                allocated: 0,
                nlink: 1,
                identity: (0, 0),
                atime: Timestamp::default(),
                mtime: Timestamp::default(),
                ctime: Timestamp::default(),
                target: None,
                extended: ExtendedAttributes::default(),
            },
            pieces: Arc::new(Vec::new()),
            fail_at: None,
            unreadable: false,
            listed_size: None,
        }
    }

    /// A regular file.
    pub fn file(data: impl Into<Vec<u8>>) -> Self {
        Self::sparse(vec![MemoryExtent::Data(data.into())])
    }

    /// A regular file made of pieces.
    pub fn sparse(pieces: Vec<MemoryExtent>) -> Self {
        let mut node = Self::new(FileType::Regular);
        node.meta.size = pieces.iter().map(MemoryExtent::len).sum();
        node.meta.allocated = pieces
            .iter()
            .filter(|p| matches!(p, MemoryExtent::Data(_)))
            .map(MemoryExtent::len)
            .sum();
        node.pieces = Arc::new(pieces);
        node
    }

    /// A symlink.
    pub fn symlink(target: impl Into<Vec<u8>>) -> Self {
        let mut node = Self::new(FileType::Symlink);
        node.meta.permissions = 0o777;
        node.meta.target = Some(target.into());
        node
    }
}

/// A tree in memory: paths (relative, joined by `/`) to entries. Parents of every entry must be
/// present and be directories; the root is there from the start.
#[derive(Debug, Clone)]
pub struct MemoryTree {
    nodes: BTreeMap<Vec<u8>, MemoryNode>,
}

impl Default for MemoryTree {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryTree {
    /// A tree with an empty root directory.
    pub fn new() -> Self {
        let mut nodes = BTreeMap::new();
        nodes.insert(Vec::new(), MemoryNode::new(FileType::Directory));
        Self { nodes }
    }

    /// Adds or replaces an entry; the empty path is the root.
    pub fn insert(&mut self, path: impl Into<Vec<u8>>, node: MemoryNode) {
        self.nodes.insert(path.into(), node);
    }

    /// The entry at a path.
    pub fn get(&self, path: &[u8]) -> Option<&MemoryNode> {
        self.nodes.get(path)
    }

    /// All entries with their paths, in byte order of the paths.
    pub fn iter(&self) -> impl Iterator<Item = (&[u8], &MemoryNode)> {
        self.nodes
            .iter()
            .map(|(path, node)| (path.as_slice(), node))
    }

    fn node(&self, path: &[u8]) -> io::Result<&MemoryNode> {
        self.nodes
            .get(path)
            .ok_or_else(|| io::Error::from(io::ErrorKind::NotFound))
    }
}

impl Source for MemoryTree {
    fn root(&self) -> io::Result<Meta> {
        Ok(self.node(b"")?.meta.clone())
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
        if self.node(path)?.unreadable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        let mut prefix = path.to_vec();
        if !prefix.is_empty() {
            prefix.push(b'/');
        }
        Ok(self
            .nodes
            .range(prefix.clone()..)
            .take_while(|(key, _)| key.starts_with(&prefix))
            .filter_map(|(key, node)| {
                let name = key.get(prefix.len()..)?;
                if name.is_empty() || name.contains(&b'/') {
                    return None;
                }
                let mut meta = node.meta.clone();
                if let Some(size) = node.listed_size {
                    meta.size = size;
                }
                Some(DirItem {
                    name: name.to_vec(),
                    meta: Ok(meta),
                })
            })
            .collect())
    }

    fn lists_in_parallel(&self) -> bool {
        true
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Content>> {
        let node = self.node(path)?;
        if node.unreadable {
            return Err(io::ErrorKind::PermissionDenied.into());
        }
        Ok(Box::new(MemoryContent { node: node.clone() }))
    }
}

struct MemoryContent {
    node: MemoryNode,
}

impl MemoryContent {
    fn size(&self) -> u64 {
        self.node.pieces.iter().map(MemoryExtent::len).sum()
    }
}

impl Content for MemoryContent {
    fn stamp(&self) -> io::Result<Stamp> {
        Ok(Stamp {
            size: self.size(),
            mtime: self.node.meta.mtime,
        })
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let mut start = 0u64;
        for piece in self.node.pieces.iter() {
            let end = start + piece.len();
            if offset < end {
                if self.node.fail_at.is_some_and(|fail| offset >= fail) {
                    return Err(io::Error::other("injected read error"));
                }
                let mut size = (end - offset).min(buf.len() as u64);
                if let Some(fail) = self.node.fail_at {
                    size = size.min(fail - offset);
                }
                let size = size as usize;
                let inside = (offset - start) as usize;
                match piece {
                    MemoryExtent::Data(data) => {
                        buf[..size].copy_from_slice(&data[inside..inside + size]);
                    }
                    MemoryExtent::Hole(_) => buf[..size].fill(0),
                }
                return Ok(size);
            }
            start = end;
        }
        Ok(0)
    }

    fn next_data(&self, offset: u64, end: u64) -> io::Result<Option<DataExtent>> {
        let mut start = 0u64;
        for piece in self.node.pieces.iter() {
            let stop = (start + piece.len()).min(end);
            if matches!(piece, MemoryExtent::Data(_)) && offset < stop && start < stop {
                let from = start.max(offset);
                return Ok(Some(DataExtent {
                    offset: from,
                    size: stop - from,
                }));
            }
            start += piece.len();
        }
        Ok(None)
    }
}
