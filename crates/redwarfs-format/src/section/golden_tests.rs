//! Everything the reference wrote must be understood and, where possible, written the same.

use std::fs;
use std::path::PathBuf;

use super::tests::reader;
use super::*;
use crate::history::History;

const IMAGES: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/images");

fn images() -> Vec<(String, Vec<u8>)> {
    let mut paths: Vec<PathBuf> = fs::read_dir(IMAGES)
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|ext| ext == "dwarfs"))
        .collect();
    paths.sort();
    assert!(!paths.is_empty());
    paths
        .into_iter()
        .map(|path| {
            let name = path.file_stem().unwrap().to_string_lossy().into_owned();
            (name, fs::read(path).unwrap())
        })
        .collect()
}

#[test]
fn sections_hashes_and_index() {
    for (name, file) in images() {
        let (read, size) = (reader(&file), file.len() as u64);
        let offset = locate_image(size, &read).unwrap();
        assert_eq!(
            offset > 0,
            name.contains("header"),
            "{name}: offset {offset}"
        );
        let opened = Container::open(&read, size, offset, None).unwrap();
        let scanned = Container::open_scanning(&read, size, offset, None).unwrap();
        assert_eq!(opened.index, scanned.index, "{name}");
        let absent = name.contains("no-index");
        assert_eq!(opened.index == IndexState::Absent, absent, "{name}");
        assert_eq!(opened.index == IndexState::Valid, !absent, "{name}");
        assert_eq!(opened.version, Version::WRITTEN, "{name}");
        for (position, section) in (0..).zip(&scanned.sections) {
            let loaded = opened.load_header(&read, position).unwrap();
            assert_eq!(&loaded, section, "{name}");
            assert_eq!(opened.sections[position as usize].length, section.length);
            let start = scanned.file_offset(section) as usize;
            let payload = &file[start..start + section.length as usize];
            let header = section.header.unwrap();
            let mut hasher = SectionHasher::both(&header);
            payload.chunks(1000).for_each(|part| hasher.update(part));
            assert!(hasher.matches(), "{name}: section {position}");
            let sealed = SectionHeader::seal(position, section.ty, header.compression, payload);
            let raw = &file[start - SectionHeader::LEN..start];
            assert_eq!(sealed.encode(), raw, "{name}: section {position}");
        }
        if let Some(index) = scanned.section_of_type(SectionType::SECTION_INDEX).next() {
            let entries: Vec<_> = scanned
                .sections
                .iter()
                .map(|section| (section.ty, section.header_offset))
                .collect();
            let start = scanned.file_offset(index) as usize;
            assert_eq!(encode_section_index(&entries), file[start..], "{name}");
        }
    }
}

#[test]
fn histories_are_reproduced() {
    let mut seen = 0;
    for (name, file) in images() {
        let read = reader(&file);
        let size = file.len() as u64;
        let offset = locate_image(size, &read).unwrap();
        let container = Container::open(&read, size, offset, None).unwrap();
        for section in container.section_of_type(SectionType::HISTORY) {
            let start = container.file_offset(section) as usize;
            let stored = &file[start..start + section.length as usize];
            let payload = match section.compression.unwrap() {
                CompressionId::NONE => stored.to_vec(),
                CompressionId::ZSTD => {
                    let mut out = Vec::with_capacity(1 << 20);
                    zstd_safe::decompress(&mut out, stored).unwrap();
                    out
                }
                other => panic!("{name}: history compressed with {other}"),
            };
            let history = History::parse(&payload).unwrap();
            assert_eq!(history.encode(), payload, "{name}");
            assert!(!history.entries.is_empty(), "{name}");
            seen += 1;
        }
    }
    assert!(seen > 0);
}
