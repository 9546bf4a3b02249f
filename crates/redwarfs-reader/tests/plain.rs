//! Files in blocks that are not compressed: bytes, parts and errors.

use std::sync::Arc;
use std::time::Duration;

use crate::common::one_file;
use redwarfs_format::InodeNo;
use redwarfs_format::metadata::Chunk;
use redwarfs_io::{Fault, FaultSource, MemorySource, Source};
use redwarfs_reader::{Image, MAX_PARTS, OpenOptions};

const BLOCK: usize = 200_000;
const BLOCKS: usize = 5;

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0 % n as u64) as usize
    }
}

/// A file of pieces of up to `longest` bytes of plain blocks, and its contents.
fn scattered(longest: usize) -> (Vec<u8>, Vec<u8>) {
    let mut random = Random(longest as u64);
    let blocks: Vec<Vec<u8>> = (0..BLOCKS)
        .map(|_| (0..BLOCK).map(|_| random.below(256) as u8).collect())
        .collect();
    let mut contents = Vec::new();
    let mut chunks = Vec::new();
    while contents.len() < 900_000 {
        let block = random.below(BLOCKS);
        let offset = random.below(BLOCK - 1);
        let size = 1 + random.below(longest.min(BLOCK - offset));
        contents.extend_from_slice(&blocks[block][offset..offset + size]);
        chunks.push(Chunk {
            block: block as u32,
            offset: offset as u32,
            size: size as u32,
        });
    }
    (one_file("null", &blocks, chunks, |_| ()), contents)
}

fn open(source: Arc<dyn Source>, size: u64) -> (Image, InodeNo) {
    let mut options = OpenOptions::default();
    options.cache.size = size;
    let image = Image::from_source(source, &options).unwrap();
    let inode = image.find_path(b"file").unwrap().unwrap();
    (image, inode)
}

#[test]
fn random_ranges_of_scattered_files() {
    for longest in [300, 3000, 40_000, 150_000] {
        let (bytes, contents) = scattered(longest);
        for size in [0, 3000, 512 << 20] {
            let (image, inode) = open(Arc::new(MemorySource::new(bytes.clone())), size);
            let mut random = Random(longest as u64 + size + 1);
            let mut scratch = Vec::new();
            for _ in 0..60 {
                let offset = random.below(contents.len());
                let len = 1 + random.below(200_000);
                let rest = &contents[offset..];
                let expected = &rest[..rest.len().min(len)];
                let read = image
                    .read_pinned(inode, offset as u64, len, &mut scratch)
                    .unwrap();
                assert_eq!(read.len(), expected.len());
                let parts: Vec<&[u8]> = read.parts().collect();
                assert!(parts.len() <= MAX_PARTS);
                assert!(parts.concat() == expected, "{longest}: {offset}");
                drop(read);
                let mut buf = vec![0; len];
                let n = image.read_at(inode, offset as u64, &mut buf).unwrap();
                assert!(buf[..n] == *expected, "{longest}: {offset}");
                let mut out = b"before".to_vec();
                // Memory needs no waiting, but blocks have to be verified first.
                if image
                    .try_read_cached(inode, offset as u64, len, &mut out)
                    .unwrap()
                {
                    assert!(out[6..] == *expected, "{longest}: {offset}");
                } else {
                    assert_eq!(out, b"before");
                    assert!(size < 512 << 20, "verified a moment ago");
                }
            }
        }
    }
}

#[test]
fn what_has_changed_is_an_error_and_comes_back() {
    let (bytes, contents) = scattered(40_000);
    let source = Arc::new(FaultSource::new(MemorySource::new(bytes)));
    let (image, inode) = open(source.clone(), 512 << 20);
    let mut buf = vec![0; contents.len()];
    assert_eq!(image.read_at(inode, 0, &mut buf).unwrap(), contents.len());
    assert!(buf == contents);
    // One bit in each block.
    for section in &image.container().sections[..BLOCKS] {
        let offset = image.container().file_offset(section) + 100_000;
        source.add(Fault::Flip { offset, mask: 0x80 });
    }
    let e = image.read_at(inode, 0, &mut buf).unwrap_err().to_string();
    assert!(e.contains("BLOCK has changed since it was verified"), "{e}");
    let e = image
        .read_pinned(inode, 0, contents.len(), &mut Vec::new())
        .unwrap_err()
        .to_string();
    assert!(
        e.contains("checksum error") || e.contains("has changed"),
        "{e}"
    );
    source.heal();
    assert_eq!(image.read_at(inode, 0, &mut buf).unwrap(), contents.len());
    assert!(buf == contents);
}

#[test]
fn a_file_is_read_without_waiting_once_it_is_verified() {
    let (bytes, contents) = scattered(40_000);
    let name = format!("redwarfs-plain-{}.dwarfs", std::process::id());
    let path = std::env::temp_dir().join(name);
    std::fs::write(&path, bytes).unwrap();
    let file = Arc::new(redwarfs_io::FileSource::open(&path).unwrap());
    std::fs::remove_file(&path).unwrap();
    let (image, inode) = open(file.clone(), 512 << 20);
    let mut out = Vec::new();
    assert!(!image.try_read_cached(inode, 0, 10, &mut out).unwrap());
    let mut buf = vec![0; contents.len()];
    image.read_at(inode, 0, &mut buf).unwrap();
    if !file.try_read_exact_at(0, &mut [0; 10]) {
        return redwarfs_testkit::skip(
            "reads without waiting",
            "the file system of temporary files cannot tell what is in memory",
        );
    }
    assert!(image.try_read_cached(inode, 7, 300_000, &mut out).unwrap());
    assert!(out == contents[7..300_007]);
    image.tidy_cache(Duration::ZERO);
    assert!(!image.try_read_cached(inode, 7, 300_000, &mut out).unwrap());
}
