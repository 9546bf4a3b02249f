//! Every section of the golden images decodes, whole and in steps.

#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use redwarfs_codec::{CompressionId as Id, Decoder, decompress, raw_size};
use redwarfs_format::section::{Container, locate_image};

const LIMIT: u64 = 1 << 28;

/// Sections of an image: compression and payload.
fn sections(image: &[u8]) -> Vec<(Id, &[u8])> {
    let read = |offset: u64, out: &mut [u8]| {
        let part = image
            .get(offset as usize..)
            .and_then(|rest| rest.get(..out.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(part);
        Ok(())
    };
    let size = image.len() as u64;
    let start = locate_image(size, &read).unwrap();
    let container = Container::open_scanning(&read, size, start, None).unwrap();
    let sections = container.sections.iter();
    sections
        .map(|section| {
            let payload = (start + section.payload_offset) as usize;
            let payload = &image[payload..][..section.length as usize];
            (section.compression.unwrap(), payload)
        })
        .collect()
}

#[test]
fn golden_sections_decode() {
    let directory = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/images"
    ));
    let mut seen = BTreeMap::<u16, usize>::new();
    let mut images = 0;
    for entry in fs::read_dir(directory).unwrap() {
        let path = entry.unwrap().path();
        if path
            .extension()
            .is_none_or(|extension| extension != "dwarfs")
        {
            continue;
        }
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if !["basic-", "many-", "names-", "bin-", "audio-", "fits-"]
            .iter()
            .any(|kind| name.starts_with(kind))
        {
            continue;
        }
        images += 1;
        let image = fs::read(&path).unwrap();
        for (number, (id, payload)) in sections(&image).into_iter().enumerate() {
            let what = format!("{name}, section {number}, {id}");
            *seen.entry(id.0).or_default() += 1;
            let size = raw_size(id, payload).unwrap_or_else(|e| panic!("{what}: {e}"));
            let raw = decompress(id, payload, LIMIT).unwrap_or_else(|e| panic!("{what}: {e}"));
            assert_eq!(raw.len() as u64, size, "{what}");
            // The reference stores the payloads of these codecs even if they are larger.
            let media = matches!(id, Id::FLAC | Id::RICEPP);
            assert!(
                id == Id::NONE || media || payload.len() < raw.len(),
                "{what}"
            );
            let mut decoder = Decoder::new(id, payload, LIMIT).unwrap();
            for expected in raw.chunks(8192) {
                let mut part = vec![0; expected.len()];
                decoder
                    .fill(&mut part)
                    .unwrap_or_else(|e| panic!("{what}: {e}"));
                assert!(part == expected, "{what}");
            }
            decoder.finish().unwrap();
        }
    }
    assert!(images > 25, "{images} images");
    for id in [
        Id::NONE,
        Id::LZMA,
        Id::ZSTD,
        Id::LZ4,
        Id::BROTLI,
        Id::FLAC,
        Id::RICEPP,
    ] {
        assert!(seen.contains_key(&id.0), "no {id} section in {seen:?}");
    }
}
