//! What the structures of a build take for an entry, and for a hundred million of them.

use redwarfs_format::metadata::{Chunk as StoredChunk, DirEntry, InodeData};

use crate::contents::{Chunk, ChunkRange, Content, Item};
use crate::source::Timestamp;
use crate::tree::{Dir, File};

const NUMBER: usize = size_of::<u32>();
/// Length of a name that no other entry has.
const NAME: usize = 20;
/// Files in a directory.
const FILES: usize = 100;

/// Parents, names and inodes of entries.
const ENTRY: usize = 3 * NUMBER;
/// Attributes, details and one time of inodes.
const INODE: usize = 2 * NUMBER + size_of::<Timestamp>();
/// The tree, for a file with a name of its own, and its part of a directory.
const TREE: usize = ENTRY + INODE + size_of::<File>() + size_of::<Dir>() / FILES;
/// A name and its end.
const STRING: usize = NAME + NUMBER;

/// While the tree is listed: with the table of names at its worst.
fn listing() -> usize {
    TREE + STRING + 12
}

/// While contents are stored: their list, items, the sequence, and chunks with their ranges.
fn storing() -> usize {
    let content = size_of::<Content>() + size_of::<Item>() + NUMBER;
    TREE + STRING + content + size_of::<Chunk>() + size_of::<ChunkRange>()
}

/// While inodes become metadata: three numberings, and the chunk table beside them.
fn inodes() -> usize {
    let chunks = size_of::<StoredChunk>() + NUMBER;
    TREE + STRING + 3 * NUMBER + chunks + size_of::<InodeData>()
}

/// While entries become metadata: inodes of the tree are gone, names have two orders, entries a place.
fn entries() -> usize {
    let chunks = size_of::<StoredChunk>() + NUMBER;
    let tree = ENTRY + STRING + 2 * NUMBER;
    tree + 3 * NUMBER + chunks + size_of::<InodeData>() + size_of::<DirEntry>()
}

#[test]
fn structures_have_the_sizes_that_the_documentation_names() {
    assert_eq!((ENTRY, INODE), (12, 24));
    assert_eq!((size_of::<File>(), size_of::<Dir>()), (24, 12));
    assert_eq!((size_of::<Content>(), size_of::<Item>()), (72, 24));
    assert_eq!((size_of::<Chunk>(), size_of::<ChunkRange>()), (12, 8));
    assert_eq!((size_of::<StoredChunk>(), size_of::<DirEntry>()), (12, 8));
    assert_eq!(size_of::<InodeData>(), 88);
}

#[test]
fn a_hundred_million_files_have_less_than_300_bytes_each() {
    let phases = [listing(), storing(), inodes(), entries()];
    assert_eq!(phases, [96, 204, 200, 168]);
    let most = phases.into_iter().max().unwrap_or(0) as u64;
    assert!(most < 300);
    // Numbers of entries and inodes have room, and all of it is 19 GiB.
    let count = 100_000_000_u64;
    assert!(count < i32::MAX as u64 && most * count < 20 << 30);
    // Distinct names have offsets of 32 bits, which is the first limit.
    assert!(NAME as u64 * count < u64::from(u32::MAX));
}
