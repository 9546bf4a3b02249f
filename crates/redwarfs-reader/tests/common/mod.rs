//! Images made by hand.

use redwarfs_codec::CodecSpec;
use redwarfs_format::metadata::{
    Chunk, DirEntry, Directory, FsOptions, InodeData, Metadata, freeze,
};
use redwarfs_format::section::{CompressionId, SectionHeader, SectionType};

/// An image with the file `file`, which consists of `chunks` of these blocks, all compressed by
/// `codec` and of the size of the first at most. `change` has the last word on the metadata.
pub(crate) fn one_file(
    codec: &str,
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
    let codec: CodecSpec = codec.parse().unwrap();
    let mut compressor = codec.compressor();
    let mut image = Vec::new();
    let mut number = 0;
    let mut add = |ty, id, payload: &[u8]| {
        image.extend(SectionHeader::seal(number, ty, id, payload).encode());
        image.extend(payload);
        number += 1;
    };
    for block in blocks {
        let compressed = compressor.compress(block).unwrap();
        let payload = compressed.data.as_ref().unwrap_or(block);
        add(SectionType::BLOCK, compressed.id, payload);
    }
    let none = CompressionId::NONE;
    add(SectionType::METADATA_V2_SCHEMA, none, &frozen.schema);
    add(SectionType::METADATA_V2, none, &frozen.data);
    image
}
