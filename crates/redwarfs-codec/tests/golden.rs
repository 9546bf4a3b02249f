//! Every section of the golden images decodes, whole and in steps.

use std::collections::BTreeMap;
use std::path::Path;
use std::{fs, io};

use redwarfs_codec::{CodecSpec, CompressionId as Id, Content, Decoder, decompress, raw_size};
use redwarfs_format::block_header::RiceppBlockHeader;
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
    let container = Container::open(&read, size, start, None).unwrap();
    let sections = container.sections.iter();
    sections
        .map(|section| {
            let section = container.load_header(&read, section.position).unwrap();
            let payload = (start + section.payload_offset) as usize;
            let payload = &image[payload..][..section.length as usize];
            (section.compression.unwrap(), payload)
        })
        .collect()
}

/// Compresses the data of a FLAC or RICEPP payload again, with what the payload says about it.
/// RICEPP has to give the same bytes.
fn encode_again(id: Id, payload: &[u8], raw: &[u8], what: &str) -> bool {
    let content = Content::of_payload(id, payload).unwrap();
    let spec = match id {
        Id::FLAC => "flac".to_owned(),
        Id::RICEPP => {
            let prefix = payload.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
            let (header, _) = RiceppBlockHeader::parse(&payload[prefix..]).unwrap();
            format!("ricepp:block_size={}", header.block_size)
        }
        _ => return false,
    };
    assert_eq!(
        Content::from_json(&content.to_json().unwrap()).unwrap(),
        content
    );
    let spec: CodecSpec = spec.parse().unwrap();
    let again = spec.compressor().compress_with(raw, &content).unwrap();
    match again.data {
        Some(again) if id == Id::RICEPP => assert!(again == payload, "{what}"),
        Some(again) => assert!(decompress(id, &again, LIMIT).unwrap() == raw, "{what}"),
        // The reference keeps payloads that are no smaller.
        None => assert!(payload.len() + 100 > raw.len(), "{what}"),
    }
    true
}

#[test]
fn golden_sections_decode() {
    let directory = Path::new(concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/../../tests/fixtures/images"
    ));
    let mut seen = BTreeMap::<u16, usize>::new();
    let mut images = 0;
    let mut reencoded = 0;
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
            reencoded += usize::from(encode_again(id, payload, &raw, &what));
        }
    }
    assert!(reencoded > 10, "{reencoded} media blocks");
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
