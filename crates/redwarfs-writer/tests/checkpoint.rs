//! Builds that end early and go on with a checkpoint: the image is that of a build without interruption.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};
use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use crate::common::build;
use proptest::prelude::*;
use redwarfs_io::Checkpoint;
use redwarfs_testkit::media::{Samples, wav};
use redwarfs_testkit::tree::Random;
use redwarfs_writer::{
    BuildOptions, Builder, Categorizer, Content, DataExtent, DirItem, Error, FamilyOptions,
    FileIdentity, FileType, MemoryNode, MemoryTree, Meta, NilsimsaOptions, Order, Progress as _,
    SilentProgress, Source, Stamp, Timestamp,
};

/// Sets the stop flag of a build after a number of steps: openings, reads and writes.
#[derive(Debug)]
struct Countdown<'a> {
    left: AtomicI64,
    stop: &'a AtomicBool,
}

impl Countdown<'_> {
    fn step(&self) {
        if self.left.fetch_sub(1, Ordering::Relaxed) <= 0 {
            self.stop.store(true, Ordering::Relaxed);
        }
    }

    fn done(&self, steps: i64) -> i64 {
        steps - self.left.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
struct Stopping<'a> {
    tree: &'a MemoryTree,
    countdown: &'static Countdown<'static>,
}

struct StoppingContent {
    content: Box<dyn Content>,
    inode: u64,
    countdown: &'static Countdown<'static>,
}

impl Source for Stopping<'_> {
    fn root(&self) -> io::Result<Meta> {
        self.tree.root()
    }

    fn read_dir(&self, path: &[u8]) -> io::Result<Vec<DirItem>> {
        self.countdown.step();
        self.tree.read_dir(path)
    }

    fn open(&self, path: &[u8]) -> io::Result<Box<dyn Content>> {
        self.countdown.step();
        Ok(Box::new(StoppingContent {
            content: self.tree.open(path)?,
            inode: number_of(path),
            countdown: self.countdown,
        }))
    }
}

impl Content for StoppingContent {
    fn stamp(&self) -> io::Result<Stamp> {
        self.content.stamp()
    }

    fn identity(&self) -> io::Result<Option<FileIdentity>> {
        let Stamp { size, mtime } = self.content.stamp()?;
        Ok(Some(FileIdentity {
            inode: self.inode,
            size,
            mtime,
            ctime: mtime,
        }))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.countdown.step();
        self.content.read_at(offset, buf)
    }

    fn next_data(&self, offset: u64, end: u64) -> io::Result<Option<DataExtent>> {
        self.content.next_data(offset, end)
    }
}

fn number_of(path: &[u8]) -> u64 {
    let mut hasher = DefaultHasher::new();
    path.hash(&mut hasher);
    hasher.finish()
}

struct StoppingOutput<'a>(Vec<u8>, &'a Countdown<'a>);

impl Write for StoppingOutput<'_> {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        self.1.step();
        self.0.write(buf)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// What a build with a checkpoint came to.
struct Run {
    image: Option<Vec<u8>>,
    steps: i64,
    /// Blocks that were not compressed again.
    reused: u64,
    /// Digests of files that were not computed again.
    files: u64,
}

/// Builds until a number of steps are done.
fn run(options: &BuildOptions, tree: &MemoryTree, checkpoint: &Path, steps: i64) -> Run {
    let stop: &'static AtomicBool = Box::leak(Box::new(AtomicBool::new(false)));
    let countdown: &'static Countdown<'_> = Box::leak(Box::new(Countdown {
        left: AtomicI64::new(steps),
        stop,
    }));
    let mut options = options.clone();
    options.checkpoint = Some(Checkpoint::open(checkpoint).unwrap());
    let source = Stopping { tree, countdown };
    let (mut out, progress) = (
        StoppingOutput(Vec::new(), countdown),
        SilentProgress::default(),
    );
    let done = Builder::new(options).build(&source, &mut out, &progress, stop);
    let image = match done {
        Ok(_) => Some(out.0),
        Err(Error::Interrupted) => None,
        Err(e) => panic!("{e}"),
    };
    Run {
        image,
        steps: countdown.done(steps),
        reused: progress.counters().blocks_reused.load(Ordering::Relaxed),
        files: progress.counters().files_reused.load(Ordering::Relaxed),
    }
}

/// Number of blocks in a checkpoint.
fn blocks(path: &Path) -> u64 {
    let list = |path: &Path| std::fs::read_dir(path).into_iter().flatten().flatten();
    let files = list(path).flat_map(|directory| list(&directory.path()).collect::<Vec<_>>());
    files
        .filter(|file| file.file_name().to_string_lossy().starts_with("block-"))
        .count() as u64
}

/// Texts, some of them equal or similar, and sounds.
fn tree(seed: u64, files: usize, size: u64) -> MemoryTree {
    let mut random = Random::new(seed);
    let mut tree = MemoryTree::new();
    let common = random.text(size as usize);
    for i in 0..files {
        let len = random.below(size) as usize;
        let data = match random.below(5) {
            0 => common[..len].to_vec(),
            1 => [&common[..len], &random.text(50)].concat(),
            2 => random.bytes(len),
            3 => wav(&Samples::CD, &Samples::CD.walk(len / 4 + 1, seed)),
            _ => random.text(len),
        };
        let directory = format!("{}", i % 5);
        let path = format!("{directory}/{i}");
        tree.insert(directory, MemoryNode::new(FileType::Directory));
        tree.insert(path, MemoryNode::file(data));
    }
    tree
}

fn options(level: u8, block_bits: u32) -> BuildOptions {
    let mut options = BuildOptions::level(level);
    options.block_size_bits = block_bits;
    options.categorizers = vec![Categorizer::PcmAudio];
    options
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn builds_that_end_anywhere_go_on(
        seed in any::<u64>(),
        files in 1usize..50,
        size in 100u64..40_000,
        level in 1u8..=6,
        block_bits in 10u32..16,
        ends in prop::collection::vec((0.0f64..1.0, 1usize..=8), 1..5),
    ) {
        let tree = tree(seed, files, size);
        let mut options = options(level, block_bits);
        options.workers = 1;
        let (whole, summary) = build(&options, &tree);
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        let all = run(&options, &tree, &path, i64::MAX);
        prop_assert!(all.image.as_ref() == Some(&whole), "a checkpoint changes the image");
        // Equal blocks are one entry, which the second one of them may find.
        let equal = summary.blocks - blocks(&path);
        prop_assert!(all.reused <= equal, "{} {equal}", all.reused);
        Checkpoint::open(&path).unwrap().remove();
        let mut before = 0;
        for (part, workers) in ends {
            options.workers = workers;
            let steps = (part * all.steps as f64) as i64;
            let ended = run(&options, &tree, &path, steps);
            prop_assert!(ended.image.is_none_or(|image| image == whole));
            prop_assert!(ended.reused <= equal || before > 0);
            before = u64::max(before, blocks(&path));
        }
        let last = run(&options, &tree, &path, i64::MAX);
        prop_assert!(last.image == Some(whole), "an interruption changes the image");
        prop_assert!(last.reused >= before && last.reused <= summary.blocks, "{before} {}", last.reused);
        let again = run(&options, &tree, &path, i64::MAX);
        prop_assert_eq!(again.reused, summary.blocks);
    }
}

#[test]
fn the_number_of_threads_does_not_matter() {
    let tree = tree(7, 60, 30_000);
    let mut options = options(5, 12);
    options.workers = 1;
    let (whole, summary) = build(&options, &tree);
    let dir = tempfile::tempdir().unwrap();
    for workers in 1..=8 {
        options.workers = workers;
        let path = dir.path().join(format!("{workers}"));
        let first = run(&options, &tree, &path, i64::MAX);
        assert_eq!(first.image.as_ref(), Some(&whole));
        options.workers = 9 - workers;
        let second = run(&options, &tree, &path, i64::MAX);
        assert_eq!(second.image.as_ref(), Some(&whole));
        assert_eq!(second.reused, summary.blocks);
    }
}

#[test]
fn files_are_read_once_unless_they_change() {
    for order in [
        Order::Families(FamilyOptions::default()),
        Order::Similarity,
        Order::Nilsimsa(NilsimsaOptions::default()),
    ] {
        let mut options = options(5, 14);
        options.order = order;
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("checkpoint");
        let mut tree = tree(3, 300, 9000);
        let first = run(&options, &tree, &path, i64::MAX);
        assert_eq!(first.files, 0);
        let second = run(&options, &tree, &path, i64::MAX);
        assert_eq!(second.image, first.image);
        // Small files that were in memory are read again.
        assert!(second.files > 100, "{}", second.files);
        // Some files change, with another time, and one comes.
        let mut random = Random::new(1);
        for n in [7, 100, 299] {
            let mut node = MemoryNode::file(random.text(700));
            node.meta.mtime = Timestamp {
                sec: 1_000_000,
                nsec: n,
            };
            node.meta.ctime = node.meta.mtime;
            tree.insert(format!("{}/{n}", n % 5), node);
        }
        tree.insert("2/9999", MemoryNode::file(random.text(4000)));
        let whole = build(&options, &tree).0;
        let third = run(&options, &tree, &path, i64::MAX);
        assert!(third.image == Some(whole));
        assert!(
            third.files > 80 && third.reused > 0,
            "{} {}",
            third.files,
            third.reused
        );
    }
}

#[test]
fn digests_of_one_kind_are_none_of_another() {
    let tree = tree(11, 200, 9000);
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint");
    for order in [
        Order::Similarity,
        Order::Families(FamilyOptions::default()),
        Order::Nilsimsa(NilsimsaOptions::default()),
        Order::Families(FamilyOptions::default()),
    ] {
        let mut options = options(5, 14);
        options.order = order;
        let whole = build(&options, &tree).0;
        assert!(run(&options, &tree, &path, i64::MAX).image == Some(whole));
    }
}

#[test]
fn damaged_digests_are_computed_again() {
    let options = options(4, 12);
    let tree = tree(9, 80, 5000);
    let whole = build(&options, &tree).0;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("checkpoint");
    run(&options, &tree, &path, i64::MAX);
    let mut random = Random::new(2);
    for directory in std::fs::read_dir(&path).unwrap().flatten() {
        // Not the marker.
        if !directory.path().is_dir() {
            continue;
        }
        for file in std::fs::read_dir(directory.path()).unwrap().flatten() {
            let mut bytes = std::fs::read(file.path()).unwrap();
            let at = random.below(bytes.len() as u64) as usize;
            bytes[at] ^= 1 << random.below(8);
            std::fs::write(file.path(), bytes).unwrap();
        }
    }
    let after = run(&options, &tree, &path, i64::MAX);
    assert!(after.image == Some(whole));
    assert_eq!((after.files, after.reused), (0, 0));
}
