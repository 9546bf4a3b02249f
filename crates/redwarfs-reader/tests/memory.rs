//! Memory goes back to the system when blocks are dropped. Alone in its process, since it looks at
//! the memory of the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

mod common;

use std::path::PathBuf;
use std::time::Duration;

use common::one_file;
use redwarfs_format::BlockNo;
use redwarfs_format::metadata::Chunk;
use redwarfs_reader::{BlockAllocator, Image, OpenOptions, Preload};

const BLOCKS: u32 = 48;
const BLOCK_SIZE: u32 = 1 << 20;

/// An image with one file of 48 MiB.
fn image(codec: &str) -> Vec<u8> {
    let blocks: Vec<Vec<u8>> = (1..=BLOCKS)
        .map(|value| vec![value as u8; BLOCK_SIZE as usize])
        .collect();
    let chunk = |block| Chunk {
        block,
        offset: 0,
        size: BLOCK_SIZE,
    };
    one_file(codec, &blocks, (0..BLOCKS).map(chunk).collect(), |_| {})
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

/// Both look at the memory of the process, one after the other.
#[test]
fn memory_of_blocks() {
    memory_falls_when_blocks_are_dropped();
    plain_blocks_stay_in_the_file();
}

fn file(codec: &str) -> PathBuf {
    let name = format!("redwarfs-memory-{}-{codec}.dwarfs", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, image(codec)).unwrap();
    path
}

fn plain_blocks_stay_in_the_file() {
    let path = file("null");
    let image = Image::open(&path, &OpenOptions::default()).unwrap();
    let inode = image.find_path(b"file").unwrap().unwrap();
    let before = resident();
    let mut scratch = Vec::new();
    for at in 0..u64::from(BLOCKS * 8) {
        let read = image.read_pinned(inode, at << 17, 1 << 17, &mut scratch);
        let read = read.unwrap();
        let right = |part: &[u8]| part.iter().all(|&b| u64::from(b) == at / 8 + 1);
        assert!(read.len() == 1 << 17 && read.parts().all(right));
    }
    let summary = image.preload(Preload::All).unwrap().wait();
    assert_eq!(summary.loaded, BLOCKS as usize);
    assert!(resident() <= before + 4, "{before} -> {}", resident());
    assert!(image.cache_stats().peak < 1 << 20);
    std::fs::remove_file(&path).unwrap();
}

fn memory_falls_when_blocks_are_dropped() {
    let path = file("lz4");
    for allocator in [BlockAllocator::Malloc, BlockAllocator::Mmap] {
        let mut options = OpenOptions::default();
        options.cache.allocator = allocator;
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
