//! What the structures of a build take for an entry, and for a hundred million of them.

use redwarfs_format::frozen::Widths;
use redwarfs_format::metadata::{
    Chunk as StoredChunk, DirEntry, EncodedTables, InodeData, Metadata,
};

use crate::contents::{Chunk, ChunkRange, Content, Files, Item};
use crate::hash::Digest;
use crate::memory;
use crate::source::PackedTime;
use crate::tree::{Dir, File};

const NUMBER: usize = size_of::<u32>();
/// Length of a name that no other entry has.
const NAME: usize = 20;
/// Files in a directory.
const FILES: usize = 100;

/// Parents, names and inodes of entries.
const ENTRY: usize = 3 * NUMBER;
/// Attributes, details and one time of inodes.
const INODE: usize = 2 * NUMBER + size_of::<PackedTime>();
/// The tree, for a file with a name of its own, and its part of a directory.
const TREE: usize = ENTRY + INODE + size_of::<File>() + size_of::<Dir>() / FILES;
/// What of it is in a temporary file under a low memory limit: the inode, and which one the entry has.
const IN_FILE: usize = NUMBER + INODE;
/// A name and its end.
const STRING: usize = NAME + NUMBER;
/// Where the bytes of a small file are.
const KEPT: usize = size_of::<u64>();

/// An inode and an entry in encoded tables.
const ENCODED_INODE: usize = 8;
const ENCODED_ENTRY: usize = size_of::<DirEntry>();

/// While the tree is listed: with the table of names at its worst.
fn listing() -> usize {
    TREE + STRING + 12
}

/// While files are compared: contents, their digests, the table of digests, and the list of files to hash.
fn comparing() -> usize {
    let content = size_of::<Content>() + size_of::<Option<Digest>>() + 2 * NUMBER;
    TREE + STRING + KEPT + content + NUMBER
}

/// While contents are ordered: items and the sequence, without what an order adds.
fn ordering() -> usize {
    TREE + STRING + KEPT + size_of::<Content>() + size_of::<Item>() + NUMBER
}

/// While contents are stored: their list, the sequence, and chunks with their ranges.
fn storing() -> usize {
    let content = size_of::<Content>() + NUMBER;
    TREE + STRING + KEPT + content + size_of::<Chunk>() + size_of::<(u32, ChunkRange)>()
}

/// While inodes get their numbers: six lists, and the places of contents, of which only the files are left.
fn numbering() -> usize {
    let contents = size_of::<Files>() + size_of::<Chunk>() + size_of::<ChunkRange>();
    TREE + STRING + contents + 6 * NUMBER + size_of::<(u32, u32, u32)>()
}

/// While inodes become metadata: three numberings, and the chunk table beside them.
fn inodes() -> usize {
    let chunks = size_of::<StoredChunk>() + NUMBER;
    TREE + STRING + 3 * NUMBER + chunks + ENCODED_INODE
}

/// While entries become metadata: inodes of the tree are gone, names have two orders, entries a place.
fn entries() -> usize {
    let chunks = size_of::<StoredChunk>() + NUMBER;
    let tree = ENTRY + STRING + 2 * NUMBER;
    tree + 3 * NUMBER + chunks + ENCODED_INODE + ENCODED_ENTRY
}

#[test]
fn structures_have_the_sizes_that_the_documentation_names() {
    assert_eq!((ENTRY, INODE), (12, 20));
    assert_eq!((size_of::<File>(), size_of::<Dir>()), (16, 12));
    assert_eq!((size_of::<Content>(), size_of::<Item>()), (40, 24));
    assert_eq!((size_of::<Chunk>(), size_of::<ChunkRange>()), (12, 8));
    assert_eq!((size_of::<StoredChunk>(), size_of::<DirEntry>()), (12, 8));
    assert_eq!(IN_FILE as u64, memory::IN_FILE);
}

#[test]
fn an_encoded_inode_takes_8_bytes() {
    // Some modes and owners, and times of forty years.
    let inode = |i: u32| InodeData {
        mode_index: i % 20,
        owner_index: i % 7,
        group_index: i % 5,
        mtime_offset: u64::from(i) * 12_600,
        ..InodeData::default()
    };
    let count = 100_000;
    for widths in [Widths::Minimal, Widths::Bytes] {
        let mut tables = EncodedTables::new(widths);
        let numbers = 0..count;
        tables.inodes(|| numbers.clone().map(inode)).unwrap();
        let frozen = tables.freeze(&Metadata::default()).unwrap();
        assert!(frozen.data.len() <= ENCODED_INODE * count as usize + 100);
    }
}

#[test]
fn a_hundred_million_files_have_less_than_300_bytes_each() {
    let before = [listing(), comparing(), ordering(), storing()];
    assert_eq!(before, [84, 156, 148, 148]);
    let made = [numbering(), inodes(), entries()];
    assert_eq!(made, [144, 108, 88]);
    let most = before.into_iter().chain(made).max().unwrap_or(0) as u64;
    assert!(most < 300);
    // Numbers of entries and inodes have room, and all of it is 15 GiB.
    let count = 100_000_000_u64;
    assert!(count < i32::MAX as u64 && most * count < 15 << 30);
    // Distinct names have offsets of 32 bits, which is the first limit.
    assert!(NAME as u64 * count < u64::from(u32::MAX));
}

#[test]
fn less_is_in_memory_when_inodes_are_in_a_file() {
    let later = [comparing(), ordering(), storing(), numbering(), inodes()];
    assert_eq!(later.map(|bytes| bytes - IN_FILE), [132, 124, 124, 120, 84]);
}
