//! Images of random bytes, and damage.
#![allow(clippy::unwrap_used, dead_code)] // a test fails by panicking; not every test needs everything

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use redwarfs_format::GenerationNo;
use redwarfs_format::section::{
    CompressionId, Container, GenerationId, Link, MetadataId, Opening, Section, SectionHeader,
    SectionType, Snapshot, SnapshotTable, encode_section_index,
};
use redwarfs_io::MemorySource;
use redwarfs_testkit::mutate::Rng;

/// An image whose blocks have random bytes, behind `leading`.
pub(crate) fn image(leading: &[u8], blocks: &[usize], rng: &mut Rng) -> Vec<u8> {
    let mut file = leading.to_vec();
    let mut entries = Vec::new();
    let mut sections: Vec<_> = Vec::new();
    for len in blocks {
        sections.push((SectionType::BLOCK, bytes(*len, rng)));
    }
    sections.push((SectionType::METADATA_V2_SCHEMA, b"schema".to_vec()));
    sections.push((SectionType::METADATA_V2, bytes(3000, rng)));
    for (number, (ty, payload)) in (0..).zip(sections) {
        entries.push((ty, (file.len() - leading.len()) as u64));
        file.extend(SectionHeader::seal(number, ty, CompressionId::NONE, &payload).encode());
        file.extend(payload);
    }
    let ty = SectionType::SECTION_INDEX;
    entries.push((ty, (file.len() - leading.len()) as u64));
    let payload = encode_section_index(&entries);
    let number = entries.len() as u32 - 1;
    file.extend(SectionHeader::seal(number, ty, CompressionId::NONE, &payload).encode());
    file.extend(payload);
    file
}

pub(crate) fn bytes(len: usize, rng: &mut Rng) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        out.extend(rng.bits().to_le_bytes());
    }
    out.truncate(len);
    out
}

pub(crate) fn go() -> AtomicBool {
    AtomicBool::new(false)
}

pub(crate) fn flip(file: &mut [u8], range: Range<usize>, times: usize, rng: &mut Rng) {
    for _ in 0..times {
        let at = range.start + rng.below(range.len());
        file[at] ^= 1_u8 << rng.below(8);
    }
}

pub(crate) fn container(file: &[u8], offset: u64) -> Container {
    let source = MemorySource::new(file.to_vec());
    let read = |at, out: &mut [u8]| redwarfs_io::Source::read_exact_at(&source, at, out);
    Container::open(&read, file.len() as u64, offset, None).unwrap()
}

/// Continues an image at `offset` of a file with a block, and with a table of both generations.
pub(crate) fn append(file: &[u8], offset: u64, rng: &mut Rng) -> Vec<u8> {
    let old = container(file, offset);
    let mut number = old.next_number();
    let mut out = file.to_vec();
    let mut entries: Vec<_> = old
        .blocks()
        .map(|block| (block.ty, block.header_offset))
        .collect();
    let payload = |section: &Section| {
        let at = (offset + section.payload_offset) as usize;
        &file[at..at + section.length as usize]
    };
    let index = old.sections.last().unwrap();
    let generation = GenerationId::of(payload(index));
    let link = Link {
        base_size: old.size,
        base: generation,
        generation: GenerationNo(2),
    };
    out.extend(link.encode(number));
    number += 1;
    let mut put = |out: &mut Vec<u8>, ty, payload: &[u8]| {
        entries.push((ty, out.len() as u64 - offset));
        if ty == SectionType::SECTION_INDEX {
            let payload = encode_section_index(&entries);
            out.extend(SectionHeader::seal(number, ty, CompressionId::NONE, &payload).encode());
            out.extend(&payload);
        } else {
            out.extend(SectionHeader::seal(number, ty, CompressionId::NONE, payload).encode());
            out.extend(payload);
        }
        number += 1;
    };
    let block = bytes(1 + rng.below(60_000), rng);
    put(&mut out, SectionType::BLOCK, &block);
    put(&mut out, SectionType::METADATA_V2_SCHEMA, b"schema");
    let metadata = bytes(2000, rng);
    put(&mut out, SectionType::METADATA_V2, &metadata);
    put(&mut out, SectionType::SECTION_INDEX, b"");
    let now = out.len() as u64 - offset;
    let tables = old
        .trailers
        .iter()
        .rfind(|s| s.ty == SectionType::SNAPSHOTS);
    let mut table = match tables {
        Some(section) => SnapshotTable::parse(payload(section), Some(generation)).unwrap(),
        None => SnapshotTable::default(),
    };
    if table.snapshots.is_empty() {
        let end = index.payload_offset + index.length;
        table.snapshots.push(snapshot(1, index.header_offset, end));
    }
    let opening = Opening::of_sections(entries.iter().copied()).unwrap();
    let next = table.snapshots.len() as u32 + 1;
    table.snapshots.push(snapshot(next, opening.index(), now));
    let at = opening.index() as usize + offset as usize + SectionHeader::LEN;
    let prelude = table.prelude(GenerationId::of(&out[at..]));
    let ty = SectionType::SNAPSHOTS;
    out.extend(opening.encode_trailer(now, number, ty, &prelude, &table.encode()));
    out
}

fn snapshot(number: u32, index: u64, end: u64) -> Snapshot {
    Snapshot {
        number: GenerationNo(number),
        name: format!("snapshot {number}"),
        index,
        end: Some(end),
        pinned: false,
        deleted: false,
        archived: false,
        seconds: 0,
        nanoseconds: 0,
        tree: MetadataId([0; 16]),
        size: 0,
        added: 0,
        inodes: 0,
        parent: None,
    }
}

/// Adds a table behind an image at `offset` of a file, as a change of a name or a pin does.
pub(crate) fn retable(file: &[u8], offset: u64) -> Vec<u8> {
    let image = container(file, offset);
    let payload = |section: &Section| {
        let at = (offset + section.payload_offset) as usize;
        &file[at..at + section.length as usize]
    };
    let index = image.sections.last().unwrap();
    let generation = GenerationId::of(payload(index));
    let mut tables = image.trailers.iter();
    let mut table = match tables.rfind(|s| s.ty == SectionType::SNAPSHOTS) {
        Some(section) => SnapshotTable::parse(payload(section), Some(generation)).unwrap(),
        None => SnapshotTable::default(),
    };
    if table.snapshots.is_empty() {
        let end = index.payload_offset + index.length;
        table.snapshots.push(snapshot(1, index.header_offset, end));
    }
    for one in &mut table.snapshots {
        one.pinned = !one.pinned;
    }
    let opening = Opening::of(&image).unwrap();
    let (ty, prelude) = (SectionType::SNAPSHOTS, table.prelude(generation));
    let number = image.next_number();
    let section = opening.encode_trailer(image.size, number, ty, &prelude, &table.encode());
    [file, &section].concat()
}
