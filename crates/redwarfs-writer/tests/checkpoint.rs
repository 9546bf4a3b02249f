//! Builds that end early and go on with a checkpoint: the image is that of a build without interruption.

#![allow(missing_docs, clippy::unwrap_used)]

mod common;

use std::io::{self, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};

use common::build;
use proptest::prelude::*;
use redwarfs_io::Checkpoint;
use redwarfs_testkit::media::{Samples, wav};
use redwarfs_testkit::tree::Random;
use redwarfs_writer::{
    BuildOptions, Builder, Categorizer, Content, DataExtent, DirItem, Error, FileType, MemoryNode,
    MemoryTree, Meta, Progress as _, SilentProgress, Source, Stamp,
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
            countdown: self.countdown,
        }))
    }
}

impl Content for StoppingContent {
    fn stamp(&self) -> io::Result<Stamp> {
        self.content.stamp()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.countdown.step();
        self.content.read_at(offset, buf)
    }

    fn next_data(&self, offset: u64, end: u64) -> io::Result<Option<DataExtent>> {
        self.content.next_data(offset, end)
    }
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
    }
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
        prop_assert_eq!(all.reused, 0);
        prop_assert!(all.image.as_ref() == Some(&whole), "a checkpoint changes the image");
        Checkpoint::open(&path).unwrap().remove();
        let mut before = 0;
        for (part, workers) in ends {
            options.workers = workers;
            let steps = (part * all.steps as f64) as i64;
            let ended = run(&options, &tree, &path, steps);
            prop_assert!(ended.image.is_none_or(|image| image == whole));
            before = u64::max(before, Checkpoint::open(&path).map_or(0, |c| c.usage().0));
        }
        let last = run(&options, &tree, &path, i64::MAX);
        prop_assert!(last.image == Some(whole), "an interruption changes the image");
        // Equal blocks are one entry.
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
