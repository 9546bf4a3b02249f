//! Images made in memory, and real mounts of them in this process.
// Each test program uses a part of it.
#![allow(dead_code, unreachable_pub)]

use std::collections::BTreeMap;
use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Condvar, Mutex};
use std::time::{Duration, Instant};

use redwarfs_format::metadata::FsOptions;
use redwarfs_format::metadata::{Chunk, DirEntry, Directory, InodeData, Metadata, freeze};
use redwarfs_format::section::{CompressionId, SectionHeader, SectionType};
use redwarfs_fuse::{MountOptions, Mounted, Observer, mount};
use redwarfs_io::Source;
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_testkit::skip;
use tempfile::TempDir;

pub const PATIENCE: Duration = Duration::from_secs(30);
pub const BLOCK: u32 = 1 << 16;

/// With this variable in the environment (any value) all mounts ask for io_uring.
pub const OVER_RING: &str = "REDWARFS_TEST_URING";
/// Says whether the kernel offers io_uring for FUSE.
const RING_PARAMETER: &str = "/sys/module/fuse/parameters/enable_uring";

/// The options, with io_uring if the environment asks for it.
pub fn as_asked(options: &MountOptions) -> MountOptions {
    let mut mount = options.clone();
    mount.uring = options.uring || std::env::var_os(OVER_RING).is_some();
    mount
}

/// Whether mounts that ask for io_uring get it, said aloud.
pub fn ring_is_offered(test: &str) -> bool {
    let parameter = std::fs::read_to_string(RING_PARAMETER).unwrap_or_default();
    let disabled = std::fs::read_to_string("/proc/sys/kernel/io_uring_disabled");
    let offered = parameter.trim() == "Y" && disabled.is_ok_and(|value| value.trim() == "0");
    let what = if offered {
        "over io_uring"
    } else {
        "falling back to /dev/fuse, because the kernel does not offer io_uring"
    };
    let line = format!("{test}: {what}\n");
    // Past the capture of the test harness.
    io::Write::write_all(&mut io::stderr(), line.as_bytes()).expect("stderr");
    offered
}

/// False, with a note, if this machine or user cannot mount.
pub fn can_mount(test: &str) -> bool {
    let reason = if !Path::new("/dev/fuse").exists() {
        "there is no /dev/fuse"
    } else if !rustix::process::geteuid().is_root() {
        "it needs root"
    } else {
        return true;
    };
    skip(test, reason);
    false
}

pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A piece of a file.
#[derive(Clone)]
pub enum Piece {
    Data(Vec<u8>),
    Hole(u32),
}

#[derive(Clone)]
enum Node {
    Dir,
    File(Vec<Piece>),
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
            data => vec![Piece::Data(data.to_vec())],
        };
        self.add(path.as_ref(), Node::File(pieces), mode)
    }

    pub fn pieces(&mut self, path: impl AsRef<[u8]>, pieces: &[Piece]) -> &mut Self {
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
                                Piece::Hole(size) => {
                                    sparse = true;
                                    made.chunks.push(Chunk {
                                        block: hole_block,
                                        offset: size % BLOCK,
                                        size: size / BLOCK,
                                    });
                                    made.total_fs_size += u64::from(*size);
                                }
                                Piece::Data(data) => {
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

/// Bytes in memory, of which some may be withheld for a while.
pub struct Gate {
    bytes: Vec<u8>,
    /// Reads that begin in this range wait.
    closed: Mutex<Option<std::ops::Range<u64>>>,
    changed: Condvar,
}

impl fmt::Debug for Gate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Gate")
    }
}

impl Gate {
    pub fn new(bytes: Vec<u8>) -> Arc<Self> {
        Arc::new(Self {
            bytes,
            closed: Mutex::new(None),
            changed: Condvar::new(),
        })
    }

    pub fn close(&self, range: std::ops::Range<u64>) {
        *self.closed.lock().expect("not poisoned") = Some(range);
    }

    pub fn open(&self) {
        *self.closed.lock().expect("not poisoned") = None;
        self.changed.notify_all();
    }
}

impl Source for Gate {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut closed = self.closed.lock().expect("not poisoned");
        while closed.as_ref().is_some_and(|range| range.contains(&offset)) {
            closed = self.changed.wait(closed).expect("not poisoned");
        }
        drop(closed);
        let start = usize::try_from(offset).expect("a small image");
        let data = self.bytes.get(start..start + buf.len());
        buf.copy_from_slice(data.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn try_read_exact_at(&self, offset: u64, buf: &mut [u8]) -> bool {
        let closed = self.closed.lock().expect("not poisoned").clone();
        !closed.is_some_and(|range| range.contains(&offset))
            && self.read_exact_at(offset, buf).is_ok()
    }
}

/// A mount in this process; taken off at the end.
pub struct Mount {
    mounted: Option<Mounted>,
    pub observer: Observer,
    dir: TempDir,
}

impl Mount {
    pub fn new(maker: &Maker, options: &MountOptions) -> Self {
        Self::with(Gate::new(maker.image().0), &OpenOptions::default(), options)
    }

    pub fn with(source: Arc<dyn Source>, open: &OpenOptions, options: &MountOptions) -> Self {
        let image = Image::from_source(source, open).expect("a valid image");
        let dir = TempDir::with_prefix("redwarfs-fuse-").expect("a temporary directory");
        let mounted = mount(image, dir.path(), &as_asked(options)).expect("mounting works");
        Self {
            observer: mounted.observer(),
            mounted: Some(mounted),
            dir,
        }
    }

    pub fn point(&self) -> &Path {
        self.dir.path()
    }

    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn device(&self) -> u64 {
        self.mounted.as_ref().expect("mounted").device()
    }

    /// A number from the statistics; 0 if it is not there.
    pub fn count(&self, name: &str) -> u64 {
        let text = self.observer.statistics();
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix(name)?.strip_prefix(": "));
        line.map_or(0, |value| value.parse().expect("a number"))
    }

    /// Takes the mount out of this, to be ended in another way.
    pub fn take(&mut self) -> Mounted {
        self.mounted.take().expect("mounted")
    }

    pub fn unmount(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            mounted.unmounter().unmount().expect("unmounting works");
            mounted.wait().expect("the session ends well");
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if let Some(mounted) = self.mounted.take() {
            let _ = mounted.unmounter().unmount();
            if !std::thread::panicking() {
                let _ = mounted.wait();
            }
        }
    }
}
