//! Images made in memory, for real mounts and for the tests of the library itself.

use std::collections::BTreeMap;

use redwarfs_format::metadata::FsOptions;
use redwarfs_format::metadata::{Chunk, DirEntry, Directory, InodeData, Metadata, freeze};
use redwarfs_format::section::{CompressionId, SectionHeader, SectionType};

pub const BLOCK: u32 = 1 << 16;

/// A piece of a file.
#[derive(Clone)]
pub enum FilePart {
    Data(Vec<u8>),
    Hole(u32),
}

#[derive(Clone)]
enum Node {
    Dir,
    File(Vec<FilePart>),
    Link(Vec<u8>),
    /// Another name of a file.
    Same(Vec<u8>),
    Fifo,
}

/// Collects a tree and writes it as an image without compression.
#[derive(Default)]
pub struct Maker {
    nodes: BTreeMap<Vec<u8>, (Node, u32)>,
    categories: Option<Vec<Vec<u8>>>,
}

impl Maker {
    pub fn new() -> Self {
        Self::default()
    }

    fn add(&mut self, path: &[u8], node: Node, mode: u32) -> &mut Self {
        self.nodes.insert(path.to_vec(), (node, mode));
        self
    }

    pub fn dir(&mut self, path: impl AsRef<[u8]>) -> &mut Self {
        self.add(path.as_ref(), Node::Dir, 0o755)
    }

    pub fn file(&mut self, path: impl AsRef<[u8]>, data: impl AsRef<[u8]>) -> &mut Self {
        self.file_with_mode(path, data, 0o644)
    }

    pub fn file_with_mode(
        &mut self,
        path: impl AsRef<[u8]>,
        data: impl AsRef<[u8]>,
        mode: u32,
    ) -> &mut Self {
        let pieces = match data.as_ref() {
            b"" => Vec::new(),
            data => vec![FilePart::Data(data.to_vec())],
        };
        self.add(path.as_ref(), Node::File(pieces), mode)
    }

    pub fn pieces(&mut self, path: impl AsRef<[u8]>, pieces: &[FilePart]) -> &mut Self {
        self.add(path.as_ref(), Node::File(pieces.to_vec()), 0o644)
    }

    pub fn link(&mut self, path: impl AsRef<[u8]>, target: impl AsRef<[u8]>) -> &mut Self {
        self.add(path.as_ref(), Node::Link(target.as_ref().to_vec()), 0o777)
    }

    /// Another name for a file that sorts before it.
    pub fn same(&mut self, path: impl AsRef<[u8]>, other: impl AsRef<[u8]>) -> &mut Self {
        self.add(path.as_ref(), Node::Same(other.as_ref().to_vec()), 0)
    }

    pub fn fifo(&mut self, path: impl AsRef<[u8]>) -> &mut Self {
        self.add(path.as_ref(), Node::Fifo, 0o600)
    }

    /// One category for all blocks.
    pub fn category(&mut self, name: impl AsRef<[u8]>) -> &mut Self {
        self.categories = Some(vec![name.as_ref().to_vec()]);
        self
    }

    /// The bytes of the image, and where the payload of each block begins.
    pub fn image(&self) -> (Vec<u8>, Vec<usize>) {
        let rank = |node: &Node| match node {
            Node::Dir => Some(0),
            Node::Link(_) => Some(1),
            Node::File(_) => Some(2),
            Node::Fifo => Some(3),
            Node::Same(_) => None,
        };
        let mut nodes = self.nodes.clone();
        nodes.insert(Vec::new(), (Node::Dir, 0o755));
        let mut inode_of = BTreeMap::new();
        let mut inodes = Vec::new();
        let mut modes = Vec::new();
        let mut made = Metadata {
            block_size: BLOCK,
            uids: vec![0],
            gids: vec![0],
            names: Vec::new(),
            options: Some(FsOptions {
                mtime_only: true,
                inodes_have_nlink: true,
                ..FsOptions::default()
            }),
            ..Metadata::default()
        };
        let mut blocks: Vec<Vec<u8>> = Vec::new();
        let mut current: Vec<u8> = Vec::new();
        let hole_block = 1_000_000;
        let mut sparse = false;
        for wanted in 0..4 {
            for (path, (node, mode)) in &nodes {
                if rank(node) != Some(wanted) {
                    continue;
                }
                inode_of.insert(path.clone(), inodes.len() as u32);
                let ty = [0o040_000, 0o120_000, 0o100_000, 0o010_000][wanted];
                let links = nodes
                    .values()
                    .filter(|(other, _)| matches!(other, Node::Same(to) if to == path))
                    .count();
                inodes.push(InodeData {
                    mode_index: modes.len() as u32,
                    mtime_offset: 1_000_000 + inodes.len() as u64,
                    nlink_minus_one: links as u32,
                    ..InodeData::default()
                });
                modes.push(ty | mode);
                match node {
                    Node::Link(target) => {
                        made.symlink_table.push(made.symlinks.len() as u32);
                        made.symlinks.push(target.clone());
                    }
                    Node::File(pieces) => {
                        made.chunk_table.push(made.chunks.len() as u32);
                        for piece in pieces {
                            match piece {
                                FilePart::Hole(size) => {
                                    sparse = true;
                                    made.chunks.push(Chunk {
                                        block: hole_block,
                                        offset: size % BLOCK,
                                        size: size / BLOCK,
                                    });
                                    made.total_fs_size += u64::from(*size);
                                }
                                FilePart::Data(data) => {
                                    assert!(data.len() <= BLOCK as usize);
                                    if current.len() + data.len() > BLOCK as usize {
                                        blocks.push(std::mem::take(&mut current));
                                    }
                                    made.chunks.push(Chunk {
                                        block: blocks.len() as u32,
                                        offset: current.len() as u32,
                                        size: data.len() as u32,
                                    });
                                    current.extend_from_slice(data);
                                    made.total_fs_size += data.len() as u64;
                                }
                            }
                        }
                    }
                    _ => {}
                }
            }
        }
        if !current.is_empty() {
            blocks.push(current);
        }
        made.chunk_table.push(made.chunks.len() as u32);
        if sparse {
            made.hole_block_index = Some(hole_block);
            made.features = Some([b"sparsefiles".to_vec()].into());
        }
        for (path, (node, _)) in &nodes {
            if let Node::Same(other) = node {
                inode_of.insert(path.clone(), inode_of[other]);
            }
        }
        let mut entries = vec![DirEntry {
            name_index: 0,
            inode_num: 0,
        }];
        let dirs: Vec<&Vec<u8>> = nodes
            .iter()
            .filter(|(_, (node, _))| matches!(node, Node::Dir))
            .map(|(path, _)| path)
            .collect();
        let split = |path: &[u8]| -> (Vec<u8>, Vec<u8>) {
            match path.iter().rposition(|&b| b == b'/') {
                Some(at) => (path[..at].to_vec(), path[at + 1..].to_vec()),
                None => (Vec::new(), path.to_vec()),
            }
        };
        let mut entry_of: BTreeMap<Vec<u8>, u32> = [(Vec::new(), 0)].into();
        for dir in &dirs {
            made.directories.push(Directory {
                parent_entry: 0,
                first_entry: entries.len() as u32,
                self_entry: 0,
            });
            let mut children: Vec<(Vec<u8>, &Vec<u8>)> = nodes
                .keys()
                .filter(|path| !path.is_empty() && split(path).0 == **dir)
                .map(|path| (split(path).1, path))
                .collect();
            children.sort();
            for (name, path) in children {
                entry_of.insert(path.clone(), entries.len() as u32);
                entries.push(DirEntry {
                    name_index: made.names.len() as u32,
                    inode_num: inode_of[path],
                });
                made.names.push(name);
            }
        }
        for (dir, place) in dirs.iter().zip(&mut made.directories) {
            place.self_entry = entry_of[*dir];
            place.parent_entry = entry_of[&split(dir).0];
        }
        made.directories.push(Directory {
            parent_entry: 0,
            first_entry: entries.len() as u32,
            self_entry: 0,
        });
        if made.names.is_empty() {
            made.names.push(Vec::new());
        }
        made.inodes = inodes;
        made.modes = modes;
        made.dir_entries = Some(entries);
        if let Some(names) = &self.categories {
            made.category_names = Some(names.clone());
            made.block_categories = Some(vec![0; blocks.len()]);
        }
        let frozen = freeze(&made).expect("small enough");
        let mut image = Vec::new();
        let mut starts = Vec::new();
        let mut number = 0;
        let mut section = |ty, payload: &[u8]| {
            let header = SectionHeader::seal(number, ty, CompressionId::NONE, payload);
            number += 1;
            image.extend_from_slice(&header.encode());
            if ty == SectionType::BLOCK {
                starts.push(image.len());
            }
            image.extend_from_slice(payload);
        };
        for block in &blocks {
            section(SectionType::BLOCK, block);
        }
        section(SectionType::METADATA_V2_SCHEMA, &frozen.schema);
        section(SectionType::METADATA_V2, &frozen.data);
        (image, starts)
    }
}
