//! Files of very many pieces, which no golden image has.

use std::sync::Arc;

use crate::common::one_file;
use redwarfs_format::metadata::Chunk;
use redwarfs_io::MemorySource;
use redwarfs_reader::{Image, ImageOffset, MAX_PARTS, OpenOptions};

const HOLE: u32 = 1;

/// An image with one file of `pieces` pieces, some of them holes, and its content. The pieces
/// have 1 to 11 times `unit` bytes.
fn fragmented(pieces: u32, unit: u32) -> (Vec<u8>, Vec<u8>) {
    let block: Vec<u8> = (0..4096 * unit).map(|i| (i % 251) as u8 + 1).collect();
    let mut content = Vec::new();
    let mut chunks = Vec::new();
    for i in 0..pieces {
        let (offset, size) = (i * 37 % 4000 * unit, (i % 11 + 1) * unit);
        if i % 7 == 3 {
            chunks.push(Chunk {
                block: HOLE,
                offset: size,
                size: 0,
            });
            content.resize(content.len() + size as usize, 0);
        } else {
            chunks.push(Chunk {
                block: 0,
                offset,
                size,
            });
            content.extend(&block[offset as usize..(offset + size) as usize]);
        }
    }
    let image = one_file("lz4", &[block], chunks, |metadata| {
        metadata.total_fs_size = content.len() as u64;
        metadata.features = Some([b"sparsefiles".to_vec()].into());
        metadata.hole_block_index = Some(HOLE);
        metadata.large_hole_size = Some(Vec::new());
    });
    (image, content)
}

#[test]
fn any_range_of_a_file_of_many_pieces() {
    for pieces in [200, 256, 257, 320, 5000] {
        let (image, content) = fragmented(pieces, 1);
        let mut options = OpenOptions::default();
        options.offset = ImageOffset::At(0);
        options.check = true;
        let image = Image::from_source(Arc::new(MemorySource::new(image)), &options).unwrap();
        let inode = image.find_path(b"file").unwrap().unwrap();
        assert_eq!(image.stat(inode).unwrap().size, content.len() as u64);
        for start in (0..content.len() + 20).step_by(13) {
            let mut buf = [0xff; 100];
            let n = image.read_at(inode, start as u64, &mut buf).unwrap();
            let rest = content.get(start..).unwrap_or_default();
            assert_eq!(buf[..n], rest[..rest.len().min(100)], "at {start}");
            let mut out = Vec::new();
            assert!(
                image
                    .try_read_cached(inode, start as u64, 100, &mut out)
                    .unwrap()
            );
            assert_eq!(out, buf[..n]);
        }
    }
}

#[test]
fn pieces_of_a_block_are_not_copied_unless_they_are_small_or_many() {
    let (bytes, content) = fragmented(300, 256);
    let mut options = OpenOptions::default();
    options.offset = ImageOffset::At(0);
    let image = Image::from_source(Arc::new(MemorySource::new(bytes)), &options).unwrap();
    let inode = image.find_path(b"file").unwrap().unwrap();
    let (mut scratch, mut first, mut second) = (Vec::new(), Vec::new(), Vec::new());
    let none = image.try_read_pinned(inode, 0, 10, &mut scratch).unwrap();
    assert!(none.is_none());
    let mut most = 0;
    for len in [1, 511, 512, 5000, 70_000, content.len() + 10] {
        for start in (0..content.len() + 300).step_by(1777) {
            let rest = content.get(start..).unwrap_or_default();
            let expected = &rest[..rest.len().min(len)];
            let read = image.read_pinned(inode, start as u64, len, &mut first);
            let read = read.unwrap();
            let again = image.try_read_pinned(inode, start as u64, len, &mut second);
            let again = again.unwrap().unwrap();
            for read in [&read, &again] {
                let parts: Vec<&[u8]> = read.parts().collect();
                assert!(parts.iter().all(|part| !part.is_empty()));
                assert!(parts.len() <= MAX_PARTS);
                most = most.max(parts.len());
                assert_eq!(read.len(), expected.len());
                assert_eq!(read.is_empty(), expected.is_empty());
                assert!(parts.concat() == expected, "{len} bytes at {start}");
            }
        }
    }
    assert_eq!(most, MAX_PARTS);
    // A large piece is the memory of the cache itself, a small one is not.
    let at = |len| {
        let (mut a, mut b) = (Vec::new(), Vec::new());
        let first = image.read_pinned(inode, 256, len, &mut a).unwrap();
        let second = image.read_pinned(inode, 256, len, &mut b).unwrap();
        let start = |parts: Option<&[u8]>| parts.unwrap().as_ptr();
        start(first.parts().next()) == start(second.parts().next())
    };
    assert!(at(512));
    assert!(!at(511));
}
