//! Images made by hand.

use redwarfs_format::metadata::{
    Chunk, DirEntry, Directory, FsOptions, InodeData, Metadata, freeze,
};
use redwarfs_format::section::{CompressionId, SectionHeader, SectionType};

/// An image with the file `file`, which consists of `chunks` of these blocks, all stored plain and
/// of the size of the first at most. `change` has the last word on the metadata.
pub(crate) fn one_file(
    blocks: &[Vec<u8>],
    chunks: Vec<Chunk>,
    change: impl FnOnce(&mut Metadata),
) -> Vec<u8> {
    let entry = |name_index, inode_num| DirEntry {
        name_index,
        inode_num,
    };
    let directory = |first_entry| Directory {
        first_entry,
        ..Directory::default()
    };
    let mut metadata = Metadata {
        chunk_table: vec![0, chunks.len() as u32],
        total_fs_size: chunks.iter().map(|chunk| u64::from(chunk.size)).sum(),
        chunks,
        directories: vec![directory(1), directory(2)],
        inodes: vec![
            InodeData::default(),
            InodeData {
                mode_index: 1,
                ..InodeData::default()
            },
        ],
        uids: vec![0],
        gids: vec![0],
        modes: vec![0o040_755, 0o100_644],
        names: vec![b"file".to_vec()],
        block_size: blocks[0].len() as u32,
        devices: Some(Vec::new()),
        options: Some(FsOptions {
            mtime_only: true,
            ..FsOptions::default()
        }),
        dir_entries: Some(vec![entry(0, 0), entry(0, 1)]),
        ..Metadata::default()
    };
    change(&mut metadata);
    let frozen = freeze(&metadata).unwrap();
    let tables = [
        (SectionType::METADATA_V2_SCHEMA, &frozen.schema),
        (SectionType::METADATA_V2, &frozen.data),
    ];
    let blocks = blocks.iter().map(|block| (SectionType::BLOCK, block));
    let mut image = Vec::new();
    for (number, (ty, payload)) in (0..).zip(blocks.chain(tables)) {
        image.extend(SectionHeader::seal(number, ty, CompressionId::NONE, payload).encode());
        image.extend(payload);
    }
    image
}
