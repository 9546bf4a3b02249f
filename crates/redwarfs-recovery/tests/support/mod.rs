//! Images of random bytes, and damage.
#![allow(clippy::unwrap_used, dead_code)] // a test fails by panicking; not every test needs everything

use std::ops::Range;
use std::sync::atomic::AtomicBool;

use redwarfs_format::section::{
    CompressionId, Container, SectionHeader, SectionType, encode_section_index,
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
