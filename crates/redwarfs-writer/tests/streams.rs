//! Several streams at a time: the image depends neither on the number of threads nor on memory.

use std::sync::atomic::AtomicBool;

use crate::common::{build, compare, open};
use proptest::prelude::*;
use redwarfs_testkit::media::{Samples, fits, sky, wav};
use redwarfs_testkit::tree::Random;
use redwarfs_writer::{
    BuildOptions, Builder, Categorizer, Error, FileType, Incompressible, MemoryNode, MemoryTree,
    SilentProgress,
};

/// Files of several categories, some of which begin alike.
fn tree(seed: u64, files: usize, size: u64) -> MemoryTree {
    let mut random = Random::new(seed);
    let mut tree = MemoryTree::new();
    let common = random.text(size as usize);
    for i in 0..files {
        let len = random.below(size) as usize;
        let data = match random.below(6) {
            0 => random.text(len),
            1 => [&common[..len], &random.text(100)].concat(),
            2 => random.bytes(len),
            3 => {
                let mut elf = b"\x7fELF\x02\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x3e\0".to_vec();
                elf.extend(random.text(len));
                elf
            }
            4 => wav(&Samples::CD, &Samples::CD.walk(len / 4 + 1, seed)),
            _ => fits(30, 30, i % 2 == 0, &sky(900, i as u32 % 6, seed)),
        };
        let directory = format!("{}", i % 7);
        let path = format!("{directory}/{i}");
        tree.insert(directory, MemoryNode::new(FileType::Directory));
        tree.insert(path, MemoryNode::file(data));
    }
    tree
}

fn options(block_bits: u32, lookback: u32) -> BuildOptions {
    let mut options = BuildOptions::level(3);
    options.block_size_bits = block_bits;
    options.lookback = lookback;
    options.window_bits = 8;
    options.categorizers = vec![
        Categorizer::Fits,
        Categorizer::PcmAudio,
        Categorizer::Binary,
        Categorizer::Incompressible(Incompressible::default()),
    ];
    options
}

/// Builds with no more memory than needed.
fn build_tight(options: &BuildOptions, tree: &MemoryTree) -> Vec<u8> {
    let mut options = options.clone();
    options.memory_limit = Some(1);
    loop {
        let mut bytes = Vec::new();
        let progress = SilentProgress::default();
        let builder = Builder::new(options.clone());
        match builder.build(tree, &mut bytes, &progress, &AtomicBool::new(false)) {
            Err(Error::MemoryLimit { needed, .. }) => {
                assert!(options.memory_limit < Some(needed));
                options.memory_limit = Some(needed);
            }
            result => {
                result.unwrap();
                return bytes;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_number_of_segmenters_and_memory_do_not_matter(
        seed in any::<u64>(),
        files in 1usize..60,
        size in 100u64..60_000,
        block_bits in 10u32..17,
        lookback in 1u32..4,
        segmenters in 1usize..=8,
        workers in 1usize..=8,
    ) {
        let tree = tree(seed, files, size);
        let mut options = options(block_bits, lookback);
        options.workers = 1;
        let (plain, summary) = build(&options, &tree);
        prop_assert_eq!(summary.errors, 0);
        options.workers = workers;
        options.segmenter_workers = Some(segmenters);
        prop_assert!(build(&options, &tree).0 == plain, "threads change the image");
        prop_assert!(build_tight(&options, &tree) == plain, "the memory limit changes the image");
        compare(&open(plain), &tree, &options);
    }
}
