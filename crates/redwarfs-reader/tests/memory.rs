//! Memory goes back to the system when blocks are dropped. Alone in its process, since it looks at
//! the memory of the whole process.
#![cfg(target_os = "linux")]
#![allow(clippy::unwrap_used)]

use std::time::Duration;

use redwarfs_format::BlockNo;
use redwarfs_format::metadata::{
    Chunk, DirEntry, Directory, FsOptions, InodeData, Metadata, freeze,
};
use redwarfs_format::section::{CompressionId, SectionHeader, SectionType};
use redwarfs_reader::{BlockAllocator, CacheOptions, Image, OpenOptions, Preload};

const BLOCKS: u32 = 48;
const BLOCK_SIZE: u32 = 1 << 20;

/// An image with one file of 48 MiB.
fn image() -> Vec<u8> {
    let mut image = Vec::new();
    let mut number = 0;
    let mut section = |ty, payload: &[u8]| {
        image.extend(SectionHeader::seal(number, ty, CompressionId::NONE, payload).encode());
        image.extend(payload);
        number += 1;
    };
    for block in 0..BLOCKS {
        section(
            SectionType::BLOCK,
            &vec![block as u8 + 1; BLOCK_SIZE as usize],
        );
    }
    let entry = |name_index, inode_num| DirEntry {
        name_index,
        inode_num,
    };
    let directory = |first_entry| Directory {
        first_entry,
        ..Directory::default()
    };
    let metadata = Metadata {
        chunks: (0..BLOCKS)
            .map(|block| Chunk {
                block,
                offset: 0,
                size: BLOCK_SIZE,
            })
            .collect(),
        directories: vec![directory(1), directory(2)],
        inodes: vec![
            InodeData::default(),
            InodeData {
                mode_index: 1,
                ..InodeData::default()
            },
        ],
        chunk_table: vec![0, BLOCKS],
        uids: vec![0],
        gids: vec![0],
        modes: vec![0o040_755, 0o100_644],
        names: vec![b"file".to_vec()],
        block_size: BLOCK_SIZE,
        total_fs_size: u64::from(BLOCKS * BLOCK_SIZE),
        devices: Some(Vec::new()),
        options: Some(FsOptions {
            mtime_only: true,
            ..FsOptions::default()
        }),
        dir_entries: Some(vec![entry(0, 0), entry(0, 1)]),
        ..Metadata::default()
    };
    let frozen = freeze(&metadata).unwrap();
    section(SectionType::METADATA_V2_SCHEMA, &frozen.schema);
    section(SectionType::METADATA_V2, &frozen.data);
    image
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
