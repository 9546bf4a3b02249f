//! How much of an old image an append reads.

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use redwarfs_append::{Base, BaseOptions, Trust};
use redwarfs_format::history::HistoryEntry;
use redwarfs_format::metadata::{Extent, Timestamp};
use redwarfs_format::section::SectionType;
use redwarfs_io::MemorySource;
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_testkit::tree::Random;
use redwarfs_writer::emit::Emitter;
use redwarfs_writer::{
    BaseBlock, BaseContent, BaseImage, BuildOptions, Builder, MemoryExtent, MemoryNode, MemoryTree,
    NewGeneration, Progress as _, SilentProgress,
};

/// An image that counts the bytes of contents that are read.
#[derive(Debug)]
struct Counted {
    base: Base,
    bytes: AtomicU64,
    reads: AtomicU64,
    /// Is set when this many reads were made.
    stop_after: u64,
    stop: AtomicBool,
}

impl BaseImage for Counted {
    fn sections(&self) -> Vec<(SectionType, u64)> {
        self.base.sections()
    }

    fn blocks(&self) -> Vec<BaseBlock> {
        self.base.blocks()
    }

    fn end(&self) -> u64 {
        self.base.end()
    }

    fn next_number(&self) -> u32 {
        self.base.next_number()
    }

    fn start(&self, number: u32) -> (Vec<u8>, u32) {
        self.base.start(number)
    }

    fn block_size(&self) -> u32 {
        self.base.block_size()
    }

    fn held(&self, content: BaseContent) -> u32 {
        self.base.held(content)
    }

    fn history(&self) -> Vec<HistoryEntry> {
        self.base.history()
    }

    fn unchanged(&self, path: &[u8], size: u64, mtime: Timestamp) -> Option<BaseContent> {
        self.base.unchanged(path, size, mtime)
    }

    fn at(&self, path: &[u8]) -> Option<BaseContent> {
        self.base.at(path)
    }

    fn of_size(&self, size: u64) -> &[BaseContent] {
        self.base.of_size(size)
    }

    fn extents(&self, content: BaseContent) -> redwarfs_writer::Result<Vec<Extent>> {
        self.base.extents(content)
    }

    fn read_at(&self, content: BaseContent, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let n = self.base.read_at(content, offset, buf)?;
        self.bytes.fetch_add(n as u64, Ordering::Relaxed);
        if self.reads.fetch_add(1, Ordering::Relaxed) + 1 == self.stop_after {
            self.stop.store(true, Ordering::Relaxed);
        }
        Ok(n)
    }

    fn block_start(&self, block: u32, most: usize) -> io::Result<Vec<u8>> {
        self.base.block_start(block, most)
    }

    fn find_anchor(&self, hash: u32, found: &mut Vec<(u32, u32)>) {
        self.base.find_anchor(hash, found);
    }

    fn match_table(&self) -> Option<u64> {
        self.base.match_table()
    }

    fn trailers(
        &self,
        new: &NewGeneration,
        emitter: &mut Emitter<'_>,
    ) -> redwarfs_writer::Result<()> {
        self.base.trailers(new, emitter)
    }
}

fn options() -> BuildOptions {
    let mut options = BuildOptions::level(0);
    options.block_size_bits = 20;
    options.workers = 1;
    options.create_timestamp = Some(1_000);
    options
}

fn tree_of(node: MemoryNode) -> MemoryTree {
    let mut tree = MemoryTree::new();
    tree.insert("file", node);
    tree
}

fn build(node: MemoryNode) -> Vec<u8> {
    let mut out = Vec::new();
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    Builder::new(options())
        .build(&tree_of(node), &mut out, &progress, &stop)
        .unwrap();
    out
}

fn counted(image: &[u8], name: &str, stop_after: u64) -> Counted {
    let mut base = BaseOptions::new(name, Timestamp::default());
    base.trust = Trust::Nothing;
    Counted {
        base: Base::open(Arc::new(MemorySource::new(image.to_vec())), base).unwrap(),
        bytes: AtomicU64::new(0),
        reads: AtomicU64::new(0),
        stop_after,
        stop: AtomicBool::new(false),
    }
}

/// Adds a night to an image. Returns the bytes of old contents that were read, and how many files were found whole.
fn append(image: &mut Vec<u8>, node: MemoryNode, name: &str) -> (u64, u64) {
    let base = counted(image, name, 0);
    let progress = SilentProgress::default();
    Builder::new(options())
        .append(&base, &tree_of(node), image, &progress, &base.stop)
        .unwrap();
    let whole = progress.counters().files_in_base.load(Ordering::Relaxed);
    (base.bytes.into_inner(), whole)
}

/// As a database: its size and its first bytes stay.
fn nights(count: usize, size: usize) -> Vec<Vec<u8>> {
    let mut random = Random::new(5);
    let mut file = random.bytes(size);
    (0..count)
        .map(|_| {
            let at = size / 2 + random.below(size as u64 / 4) as usize;
            file.splice(at..at + 1000, random.bytes(1000));
            file.clone()
        })
        .collect()
}

#[test]
fn old_versions_of_a_file_of_constant_size_are_hashed_in_proportion_to_it() {
    const SIZE: usize = 2 << 20;
    const COUNT: usize = 24;
    let nights = nights(COUNT, SIZE);
    let mut image = build(MemoryNode::file(nights[0].clone()));
    let mut read = 0;
    for (number, file) in nights.iter().enumerate().skip(1) {
        let before = image.len();
        (read, _) = append(
            &mut image,
            MemoryNode::file(file.clone()),
            &number.to_string(),
        );
        // A piece around the change.
        assert!(image.len() - before < 20_000, "{}", image.len() - before);
    }
    // All old versions have 46 MiB. Of these, four times the new file and 16 MiB are hashed. The
    // file is compared with its last version. And of each old version, the first bytes are read once.
    let most = (4 * SIZE + (16 << 20) + SIZE + COUNT * 4096) as u64;
    assert!(read <= most, "{read} of {most}");
    assert!(read > (20 << 20), "{read}");
    // The last versions are found.
    let before = image.len();
    let node = MemoryNode::file(nights[COUNT - 3].clone());
    let (_, whole) = append(&mut image, node, "again");
    assert_eq!(whole, 1);
    assert!(image.len() - before < 6000, "{}", image.len() - before);
    let opened =
        Image::from_source(Arc::new(MemorySource::new(image)), &OpenOptions::default()).unwrap();
    let inode = opened.find_path(b"file").unwrap().unwrap();
    let mut bytes = vec![0; SIZE];
    opened.read_at(inode, 0, &mut bytes).unwrap();
    assert!(bytes == nights[COUNT - 3]);
}

#[test]
fn looking_at_old_contents_can_be_interrupted() {
    let nights = nights(6, 2 << 20);
    let mut image = build(MemoryNode::file(nights[0].clone()));
    for (number, file) in nights.iter().enumerate().skip(1).take(4) {
        append(
            &mut image,
            MemoryNode::file(file.clone()),
            &number.to_string(),
        );
    }
    for reads in 1..4 {
        let base = counted(&image, "last", reads);
        let stopped = Builder::new(options()).append(
            &base,
            &tree_of(MemoryNode::file(nights[5].clone())),
            &mut Vec::new(),
            &SilentProgress::default(),
            &base.stop,
        );
        assert!(matches!(stopped, Err(redwarfs_writer::Error::Interrupted)));
        assert_eq!(base.reads.into_inner(), reads);
    }
}

#[test]
fn the_old_version_of_a_file_with_many_extents_is_read_once() {
    const EXTENTS: usize = 3000;
    const SIZE: usize = 1000;
    let mut random = Random::new(9);
    let mut data: Vec<Vec<u8>> = (0..EXTENTS).map(|_| random.bytes(SIZE)).collect();
    let node = |data: &[Vec<u8>]| {
        let pieces = data.iter().flat_map(|data| {
            [
                MemoryExtent::Data(data.clone()),
                MemoryExtent::Hole(64 << 10),
            ]
        });
        MemoryNode::sparse(pieces.collect())
    };
    let mut image = build(node(&data));
    let before = image.len();
    data[EXTENTS / 2] = random.bytes(SIZE);
    data.push(random.bytes(SIZE));
    let (read, _) = append(&mut image, node(&data), "second");
    assert!(read <= (EXTENTS * SIZE) as u64, "{read}");
    // Two extents are new.
    let added = image.len() - before;
    assert!((2 * SIZE..60_000).contains(&added), "{added}");
}
