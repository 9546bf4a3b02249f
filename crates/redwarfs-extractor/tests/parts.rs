//! Selections that need a part of a large block.

use std::ops::Range;
use std::path::Path;
use std::sync::{Arc, Mutex};

use redwarfs_codec::CodecSpec;
use redwarfs_extractor::{
    ExtractOptions, ExtractSummary, Progress, Result, Selection, Silent, extract_to_directory,
};
use redwarfs_format::metadata::{Chunk, DirEntry, Directory, InodeData, Metadata, freeze};
use redwarfs_format::section::{CompressionId, SectionHeader, SectionType};
use redwarfs_io::MemorySource;
use redwarfs_reader::{Image, OpenOptions};

/// Files of the image, `f0` and so on, one after another in its only block.
const FILES: usize = 16;
const SIZE: usize = 64 << 10;

/// Every codec with the number of bytes that it decodes for the first half of the block.
const CODECS: [(&str, usize); 6] = [
    ("zstd:level=5", FILES * SIZE / 2),
    ("lzma:level=1", FILES * SIZE / 2),
    ("brotli:quality=4:lgwin=20", FILES * SIZE / 2),
    ("lz4", FILES * SIZE),
    ("lz4hc:level=5", FILES * SIZE),
    ("null", FILES * SIZE),
];

/// Lines of numbers, which compress but never repeat.
fn contents() -> Vec<u8> {
    let mut out = Vec::with_capacity(FILES * SIZE + 64);
    let mut value = 1_u64;
    while out.len() < FILES * SIZE {
        value = value.wrapping_mul(6_364_136_223_846_793_005) + 1;
        out.extend_from_slice(format!("line {:016x}\n", value >> 16).as_bytes());
    }
    out.truncate(FILES * SIZE);
    out
}

fn metadata() -> Metadata {
    let files = 0..FILES as u32;
    // The first one is the root, whose name is of no use.
    let entry = |inode_num: u32| DirEntry {
        name_index: inode_num.saturating_sub(1),
        inode_num,
    };
    let directory = |first_entry| Directory {
        parent_entry: 0,
        first_entry,
        self_entry: 0,
    };
    Metadata {
        chunks: files
            .clone()
            .map(|n| Chunk {
                block: 0,
                offset: n * SIZE as u32,
                size: SIZE as u32,
            })
            .collect(),
        directories: vec![directory(1), directory(FILES as u32 + 1)],
        inodes: (0..=FILES as u32)
            .map(|n| InodeData {
                mode_index: n.min(1),
                ..InodeData::default()
            })
            .collect(),
        chunk_table: (0..=FILES as u32).collect(),
        uids: vec![0],
        gids: vec![0],
        modes: vec![0o040_755, 0o100_644],
        names: files.map(|n| format!("f{n:02}").into()).collect(),
        block_size: 1 << 20,
        total_fs_size: (FILES * SIZE) as u64,
        dir_entries: Some((0..=FILES as u32).map(entry).collect()),
        ..Metadata::default()
    }
}

/// Compresses `raw`.
fn payload(codec: &str, raw: &[u8]) -> (CompressionId, Vec<u8>) {
    let spec: CodecSpec = codec.parse().unwrap();
    let compressed = spec.compressor().compress(raw).unwrap();
    (
        compressed.id,
        compressed.data.unwrap_or_else(|| raw.to_vec()),
    )
}

/// What is special about an image.
#[derive(Debug, Default)]
struct Special {
    /// What of the block is damaged after the checksum was made.
    damage: Option<Range<usize>>,
    /// Checksums are not looked at.
    trusted: bool,
    /// Format 2.0, which has no checksums.
    old: bool,
}

/// An image whose block is stored as `stored`.
fn image(id: CompressionId, stored: &[u8], special: Special) -> Image {
    let frozen = freeze(&metadata()).unwrap();
    let mut bytes = Vec::new();
    if special.old {
        bytes.extend_from_slice(b"DWARFS\x02\x00");
    }
    let sections: [(SectionType, CompressionId, &[u8]); 3] = [
        (SectionType::BLOCK, id, stored),
        (
            SectionType::METADATA_V2_SCHEMA,
            CompressionId::NONE,
            &frozen.schema,
        ),
        (SectionType::METADATA_V2, CompressionId::NONE, &frozen.data),
    ];
    for (number, (ty, id, payload)) in (0..).zip(sections) {
        if special.old {
            bytes.extend_from_slice(&ty.0.to_le_bytes());
            bytes.extend_from_slice(&id.0.to_le_bytes());
            bytes.extend_from_slice(&(payload.len() as u32).to_le_bytes());
        } else {
            bytes.extend_from_slice(&SectionHeader::seal(number, ty, id, payload).encode());
        }
        let start = bytes.len();
        bytes.extend_from_slice(payload);
        if let Some(range) = &special.damage
            && ty == SectionType::BLOCK
        {
            for byte in &mut bytes[start..][range.clone()] {
                *byte ^= 0x55;
            }
        }
    }
    let mut options = OpenOptions::default();
    options.trust_blocks = special.trusted;
    Image::from_source(Arc::new(MemorySource::new(bytes)), &options).unwrap()
}

fn intact(codec: &str) -> Image {
    let (id, stored) = payload(codec, &contents());
    assert_eq!(codec == "null", id == CompressionId::NONE, "{codec}");
    image(id, &stored, Special::default())
}

/// Extracts the files with the given numbers.
fn extract(
    image: &Image,
    wanted: &'static [usize],
    to: &Path,
    go_on: bool,
    progress: &dyn Progress,
) -> Result<ExtractSummary> {
    let mut options = ExtractOptions::default();
    options.continue_on_error = go_on;
    options.select = Some(Selection::new(|path, _| {
        wanted.iter().any(|n| format!("f{n:02}").as_bytes() == path)
    }));
    extract_to_directory(image, to, &options, progress)
}

/// The files in `dir` are the wanted ones, with the right bytes.
fn check(dir: &Path, wanted: &[usize], what: &str) {
    let raw = contents();
    for (n, expected) in raw.chunks(SIZE).enumerate() {
        let found = std::fs::read(dir.join(format!("f{n:02}"))).ok();
        let expected = wanted.contains(&n).then_some(expected);
        assert!(found.as_deref() == expected, "{what}: file {n}");
    }
}

#[test]
fn selected_files_have_their_bytes() {
    const SELECTIONS: [&[usize]; 6] = [&[0], &[7, 8], &[15], &[3, 11], &[0, 15], &[14]];
    for (codec, _) in CODECS {
        let image = intact(codec);
        for wanted in SELECTIONS {
            let dir = tempfile::tempdir().unwrap();
            let summary = extract(&image, wanted, dir.path(), false, &Silent).unwrap();
            check(dir.path(), wanted, codec);
            assert_eq!(summary.files, wanted.len() as u64);
            let end = (wanted.iter().max().unwrap() + 1) * SIZE;
            assert!(summary.block_bytes >= end as u64, "{codec}: {wanted:?}");
        }
    }
}

#[test]
fn blocks_are_decoded_to_the_last_byte_that_is_needed() {
    for (codec, half) in CODECS {
        let image = intact(codec);
        let decoded = |wanted: &'static [usize]| {
            let dir = tempfile::tempdir().unwrap();
            let summary = extract(&image, wanted, dir.path(), false, &Silent).unwrap();
            assert_eq!(summary.blocks, wanted.len().min(1) as u64, "{codec}");
            assert_eq!(summary.peak_block_bytes, summary.block_bytes, "{codec}");
            summary.block_bytes
        };
        assert_eq!(decoded(&[7]), half as u64, "{codec}");
        assert_eq!(decoded(&[2, 7]), half as u64, "{codec}");
        // What is left then is not worth stopping for.
        assert_eq!(decoded(&[14]), (FILES * SIZE) as u64, "{codec}");
        assert_eq!(decoded(&[]), 0, "{codec}");
    }
}

/// Remembers what is reported.
#[derive(Debug, Default)]
struct Reports(Mutex<Vec<(String, String)>>);

impl Progress for Reports {
    fn damaged(&self, path: &str, cause: &str) {
        let mut reports = self.0.lock().unwrap();
        reports.push((path.to_owned(), cause.to_owned()));
    }
}

#[test]
fn checksums_cover_what_is_not_decoded() {
    for (codec, _) in CODECS {
        let (id, stored) = payload(codec, &contents());
        let special = Special {
            damage: Some(stored.len() - 1..stored.len()),
            ..Special::default()
        };
        let image = image(id, &stored, special);
        let dir = tempfile::tempdir().unwrap();
        let error = extract(&image, &[0], dir.path(), false, &Silent).unwrap_err();
        let text = error.to_string();
        assert!(text.starts_with("cannot read: f00: "), "{codec}: {text}");
        assert!(text.contains("checksum error"), "{codec}: {text}");
        check(dir.path(), &[], codec);

        let reports = Reports::default();
        let summary = extract(&image, &[0, 1], dir.path(), true, &reports).unwrap();
        check(dir.path(), &[], codec);
        assert_eq!((summary.files, summary.damaged), (0, 2), "{codec}");
        assert_eq!((summary.blocks, summary.block_bytes), (1, 0), "{codec}");
        let mut reports = reports.0.into_inner().unwrap();
        reports.sort();
        let paths: Vec<_> = reports.iter().map(|(path, _)| path.as_str()).collect();
        assert_eq!(paths, ["f00", "f01"], "{codec}");
        for (_, cause) in reports {
            assert!(cause.contains("checksum error"), "{codec}: {cause}");
            assert!(cause.ends_with("; not extracted"), "{codec}: {cause}");
        }
    }
}

/// A part of a payload that is needed for the files from the 13th or so on. In a zstd frame it is how one
/// of the parts begins, behind the header of that part: headers are looked at beforehand, all of them.
fn damage(id: CompressionId, stored: &[u8]) -> Range<usize> {
    let target = stored.len() / 16 * 13;
    if id != CompressionId::ZSTD {
        return target..target + 2000;
    }
    let descriptor = stored[4];
    let single = descriptor >> 5 & 1;
    let mut at = 5
        + usize::from(1 - single)
        + match descriptor >> 6 {
            0 => usize::from(single),
            n => 1 << n,
        };
    loop {
        let header = u32::from_le_bytes([stored[at], stored[at + 1], stored[at + 2], 0]);
        let (compressed, size) = (header >> 1 & 3 == 2, (header >> 3) as usize);
        assert!(compressed, "at {at}");
        at += 3;
        if at > target && size > 16 {
            return at..at + 16;
        }
        at += size;
    }
}

/// What was compressed wrong has a right checksum: only those who need it can notice.
#[test]
fn data_that_cannot_be_decoded_is_an_error_for_those_who_need_it() {
    for codec in ["zstd:level=5", "lzma:level=1", "brotli:quality=4:lgwin=20"] {
        let (id, mut stored) = payload(codec, &contents());
        let damage = damage(id, &stored);
        stored[damage].fill(0xff);
        let image = image(id, &stored, Special::default());
        let dir = tempfile::tempdir().unwrap();
        extract(&image, &[0, 3], dir.path(), false, &Silent).unwrap();
        check(dir.path(), &[0, 3], codec);
        let dir = tempfile::tempdir().unwrap();
        let error = extract(&image, &[2, 14], dir.path(), false, &Silent).unwrap_err();
        assert!(!error.to_string().contains("checksum"), "{codec}: {error}");
        check(dir.path(), &[], codec);
    }
}

#[test]
fn without_checksums_damage_is_safe() {
    for (codec, _) in CODECS {
        let (id, stored) = payload(codec, &contents());
        let special = Special {
            damage: Some(damage(id, &stored)),
            trusted: true,
            old: false,
        };
        let image = image(id, &stored, special);
        let dir = tempfile::tempdir().unwrap();
        let result = extract(&image, &[0, 3], dir.path(), false, &Silent);
        if !codec.starts_with("lz4") {
            result.unwrap();
            check(dir.path(), &[0, 3], codec);
        }
    }
}

/// Where nothing but the codec can tell that a block is damaged, it is asked about all of it.
#[test]
fn images_of_old_formats_have_whole_blocks_decoded() {
    let (id, stored) = payload("lzma:level=1", &contents());
    for damage in [None, Some(damage(id, &stored))] {
        let intact = damage.is_none();
        let special = Special {
            damage,
            trusted: false,
            old: true,
        };
        let image = image(id, &stored, special);
        assert!(!image.container().has_hashes());
        let dir = tempfile::tempdir().unwrap();
        let result = extract(&image, &[0], dir.path(), false, &Silent);
        if intact {
            assert_eq!(result.unwrap().block_bytes, (FILES * SIZE) as u64);
            check(dir.path(), &[0], "format 2.0");
        } else {
            assert!(result.is_err());
            check(dir.path(), &[], "format 2.0, damaged");
        }
    }
}
