//! Memory goes back to the system when blocks are dropped. Alone in its process, since it looks at
//! the memory of the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use std::time::Duration;

use common::one_file;
use redwarfs_format::BlockNo;
use redwarfs_format::metadata::Chunk;
use redwarfs_reader::{BlockAllocator, CacheOptions, Image, OpenOptions, Preload};

const BLOCKS: u32 = 48;
const BLOCK_SIZE: u32 = 1 << 20;

/// An image with one file of 48 MiB.
fn image() -> Vec<u8> {
    let blocks: Vec<Vec<u8>> = (1..=BLOCKS)
        .map(|value| vec![value as u8; BLOCK_SIZE as usize])
        .collect();
    let chunk = |block| Chunk {
        block,
        offset: 0,
        size: BLOCK_SIZE,
    };
    one_file(&blocks, (0..BLOCKS).map(chunk).collect(), |_| {})
}

/// Resident memory of this process that no file backs, in MiB.
fn resident() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status
        .lines()
        .find_map(|line| line.strip_prefix("RssAnon:"));
    let kib: u64 = line
        .unwrap()
        .trim()
        .trim_end_matches(" kB")
        .parse()
        .unwrap();
    kib >> 10
}

#[test]
fn memory_falls_when_blocks_are_dropped() {
    let dir = std::env::temp_dir();
    let path = dir.join(format!("redwarfs-memory-{}.dwarfs", std::process::id()));
    std::fs::write(&path, image()).unwrap();
    for allocator in [BlockAllocator::Malloc, BlockAllocator::Mmap] {
        let options = OpenOptions {
            cache: CacheOptions {
                allocator,
                ..CacheOptions::default()
            },
            ..OpenOptions::default()
        };
        let image = Image::open(&path, &options).unwrap();
        let before = resident();
        let summary = image.preload(Preload::All).unwrap().wait();
        assert_eq!(summary.loaded, BLOCKS as usize);
        let full = resident();
        assert!(full >= before + 40, "{allocator:?}: {before} -> {full} MiB");
        assert_eq!(image.tidy_cache(Duration::ZERO), u64::from(BLOCKS));
        let stats = image.cache_stats();
        assert_eq!((stats.blocks, stats.used), (0, 0));
        assert_eq!(stats.blocks_tidied, u64::from(BLOCKS));
        let after = resident();
        assert!(
            after < before + 8,
            "{allocator:?}: {before}, {full}, {after} MiB"
        );
        assert!(
            image
                .decode_block(BlockNo(1))
                .unwrap()
                .iter()
                .all(|&b| b == 2)
        );
    }
    std::fs::remove_file(&path).unwrap();
}
