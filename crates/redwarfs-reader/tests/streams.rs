//! What is decoded ahead of readers that go through a file from front to back.

use std::sync::Arc;
use std::time::{Duration, Instant};

use crate::common::one_file;
use redwarfs_format::InodeNo;
use redwarfs_format::metadata::Chunk;
use redwarfs_io::MemorySource;
use redwarfs_reader::{CacheOptions, Image, OpenOptions};

const MIB: usize = 1 << 20;
const BLOCKS: usize = 12;
const PIECE: usize = 128 << 10;

fn byte(at: usize) -> u8 {
    (at % 251) as u8 ^ (at >> 16) as u8
}

/// A file of twelve blocks of 1 MiB.
fn open(cache: CacheOptions) -> (Image, InodeNo) {
    let blocks: Vec<Vec<u8>> = (0..BLOCKS)
        .map(|block| (block * MIB..(block + 1) * MIB).map(byte).collect())
        .collect();
    let chunks = (0..BLOCKS as u32)
        .map(|block| Chunk {
            block,
            offset: 0,
            size: MIB as u32,
        })
        .collect();
    let bytes = one_file("zstd:level=1", &blocks, chunks, |_| ());
    let mut options = OpenOptions::default();
    options.cache = cache;
    let image = Image::from_source(Arc::new(MemorySource::new(bytes)), &options).unwrap();
    let inode = image.find_path(b"file").unwrap().unwrap();
    (image, inode)
}

fn read(image: &Image, inode: InodeNo, at: usize) {
    let mut buf = vec![0; PIECE];
    assert_eq!(image.read_at(inode, at as u64, &mut buf).unwrap(), PIECE);
    let right = buf.iter().zip(at..).all(|(&found, at)| found == byte(at));
    assert!(right, "at {at}");
}

/// Whether there are `count` blocks soon.
fn reaches(image: &Image, count: u64) -> bool {
    let start = Instant::now();
    while image.cache_stats().blocks < count {
        if start.elapsed() > Duration::from_secs(20) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

#[test]
fn blocks_ahead_are_decoded() {
    let (image, inode) = open(CacheOptions::default());
    for at in (0..MIB).step_by(PIECE) {
        read(&image, inode, at);
    }
    // Four more than the one that has been read.
    assert!(reaches(&image, 5), "{:?}", image.cache_stats());
    assert_eq!(image.cache_stats().blocks, 5);
    for at in (MIB..BLOCKS * MIB).step_by(PIECE) {
        read(&image, inode, at);
    }
    assert!(reaches(&image, BLOCKS as u64));
    let stats = image.cache_stats();
    assert_eq!(stats.blocks_created, BLOCKS as u64);
    assert_eq!(stats.bytes_decoded, (BLOCKS * MIB) as u64);
}

#[test]
fn nothing_is_decoded_ahead_without_the_detector_or_for_others() {
    let (image, inode) = open({
        let mut cache = CacheOptions::default();
        cache.seq_detector = 0;
        cache
    });
    for at in (0..2 * MIB).step_by(PIECE) {
        read(&image, inode, at);
    }
    let (scattered, inode) = open(CacheOptions::default());
    for number in 0..100 {
        read(&scattered, inode, [0, 4, 8][number % 3] * MIB);
    }
    // By then a thread that had something to do has done it.
    let (other, inode) = open(CacheOptions::default());
    for at in (0..2 * MIB).step_by(PIECE) {
        read(&other, inode, at);
    }
    assert!(reaches(&other, 6));
    assert_eq!(image.cache_stats().blocks_created, 2);
    assert_eq!(scattered.cache_stats().blocks_created, 3);
}

#[test]
fn a_small_cache_is_not_flooded() {
    for blocks in [0, 1, 2, 3, 4, 8] {
        let size = (blocks * MIB) as u64;
        let (image, inode) = open({
            let mut cache = CacheOptions::default();
            cache.size = size;
            cache
        });
        for at in (0..BLOCKS * MIB).step_by(PIECE) {
            read(&image, inode, at);
        }
        let stats = image.cache_stats();
        // What was decoded ahead is still there when it is asked for, but for a race now and then.
        if blocks >= 2 {
            assert!(
                stats.bytes_decoded <= ((BLOCKS + 2) * MIB) as u64,
                "{stats:?}"
            );
        }
    }
}
