//! Small images that announce or unfold to something huge are refused before that costs memory
//! or time.

use std::sync::Arc;

use redwarfs_codec::CodecSpec;
use redwarfs_format::metadata::{DirEntry, Directory, InodeData, Metadata};
use redwarfs_format::section::{CompressionId, SectionType};
use redwarfs_io::MemorySource;
use redwarfs_reader::{Error, Image, ImageOffset, OpenOptions, Result};
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::mutate::{Part, Parts};

fn one() -> Parts {
    Parts::of(&std::fs::read(golden("one").image).unwrap())
}

fn open(parts: &Parts) -> Result<Image> {
    let mut options = OpenOptions::default();
    options.offset = ImageOffset::At(0);
    Image::from_source(Arc::new(MemorySource::new(parts.assemble())), &options)
}

fn set(parts: &mut Parts, ty: SectionType, raw: &[u8]) {
    let compressed = "zstd:level=1"
        .parse::<CodecSpec>()
        .unwrap()
        .compressor()
        .compress(raw)
        .unwrap();
    let part = parts.0.iter_mut().find(|part| part.ty == ty).unwrap();
    part.compression = compressed.id;
    part.payload = compressed.data.unwrap_or_else(|| raw.to_vec());
}

#[test]
fn metadata_of_zeros_is_not_unfolded() {
    let mut parts = one();
    set(&mut parts, SectionType::METADATA_V2, &vec![0; 80 << 20]);
    let e = open(&parts).unwrap_err();
    assert!(matches!(e, Error::Limit(_)), "{e}");
}

#[test]
fn a_history_of_empty_entries_is_refused() {
    let mut parts = one();
    // A struct with the list 1 of very many structs, which are all empty.
    let mut history = vec![0x19, 0xfc, 0x80, 0x80, 0x80, 0x04];
    history.resize(history.len() + (8 << 20) + 1, 0);
    set(&mut parts, SectionType::HISTORY, &history);
    let e = open(&parts).unwrap().history().unwrap_err();
    assert!(matches!(e, Error::Limit(_)), "{e}");

    // Many sections do not add up either.
    history.truncate(6);
    history[2..6].copy_from_slice(&[0xff, 0x9f, 0x80, 0x00]);
    history.resize(history.len() + (1 << 12), 0);
    let at = parts
        .0
        .iter()
        .position(|part| part.ty == SectionType::HISTORY)
        .unwrap();
    parts.0[at] = Part {
        ty: SectionType::HISTORY,
        compression: CompressionId::NONE,
        payload: history,
    };
    assert_eq!(open(&parts).unwrap().history().unwrap().entries.len(), 4095);
    for _ in 0..4 {
        parts.0.push(parts.0[at].clone());
    }
    let e = open(&parts).unwrap().history().unwrap_err();
    assert!(matches!(e, Error::Limit(_)), "{e}");
}

#[test]
fn features_of_great_length_are_refused() {
    let mut parts = one();
    let mut m = parts.metadata().unwrap();
    m.features = Some((0..8u8).map(|n| vec![n; 9000]).collect());
    parts.set_metadata(&m).unwrap();
    let e = open(&parts).unwrap_err();
    assert!(matches!(e, Error::Limit(_)), "{e}");
}

#[test]
fn paths_do_not_grow_without_end() {
    // A chain of directories with names of 300 bytes.
    const DEPTH: u32 = 1000;
    let m = Metadata {
        inodes: vec![InodeData::default(); DEPTH as usize],
        dir_entries: Some(
            (0..DEPTH)
                .map(|inode_num| DirEntry {
                    name_index: 0,
                    inode_num,
                })
                .collect(),
        ),
        directories: (0..=DEPTH)
            .map(|inode| Directory {
                parent_entry: if inode == DEPTH {
                    0
                } else {
                    inode.saturating_sub(1)
                },
                first_entry: (inode + 1).min(DEPTH),
                self_entry: if inode == DEPTH { 0 } else { inode },
            })
            .collect(),
        chunk_table: vec![0],
        modes: vec![0o040_755],
        names: vec![vec![b'n'; 300]],
        block_size: 1 << 20,
        ..one().metadata().unwrap()
    };
    let m = Metadata {
        chunks: Vec::new(),
        symlinks: Vec::new(),
        symlink_table: Vec::new(),
        compact_names: None,
        compact_symlinks: None,
        devices: None,
        shared_files_table: None,
        reg_file_size_cache: None,
        uids: vec![0],
        gids: vec![0],
        ..m
    };
    let mut parts = one();
    parts.set_metadata(&m).unwrap();
    let image = open(&parts).unwrap();
    image.metadata().check(1, None).unwrap();
    let items: Vec<_> = image.walk().collect();
    assert!(items.len() > 200 && items.len() < DEPTH as usize);
    let (last, good) = items.split_last().unwrap();
    assert!(good.iter().all(Result::is_ok));
    assert!(matches!(last, Err(Error::Limit(_))), "{last:?}");
}
