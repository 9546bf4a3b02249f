use std::cell::Cell;
use std::io;

use proptest::prelude::*;

use super::*;
use crate::error::{Error, Result};
use crate::ids::BlockNo;

/// Reads from a slice as from a file.
pub(crate) fn reader(file: &[u8]) -> impl Fn(u64, &mut [u8]) -> io::Result<()> {
    move |at, out| {
        let bytes = usize::try_from(at)
            .ok()
            .and_then(|at| file.get(at..)?.get(..out.len()))
            .ok_or(io::ErrorKind::UnexpectedEof)?;
        out.copy_from_slice(bytes);
        Ok(())
    }
}

fn open(file: &[u8]) -> Result<Container> {
    Container::open(&reader(file), file.len() as u64, 0, None)
}

fn scan(file: &[u8]) -> Result<Container> {
    Container::open_scanning(&reader(file), file.len() as u64, 0, None)
}

fn locate(file: &[u8]) -> Option<u64> {
    match locate_image(file.len() as u64, &reader(file)) {
        Ok(at) => Some(at),
        Err(Error::NotAnImage(_)) => None,
        Err(error) => panic!("{error}"),
    }
}

/// An image of the given sections, with an index if `index`.
pub(crate) fn image(sections: &[(SectionType, &[u8])], index: bool) -> Vec<u8> {
    let mut out = Vec::new();
    let mut entries = Vec::new();
    for (number, (ty, payload)) in (0..).zip(sections) {
        entries.push((*ty, out.len() as u64));
        out.extend(SectionHeader::seal(number, *ty, CompressionId::NONE, payload).encode());
        out.extend(*payload);
    }
    if index {
        entries.push((SectionType::SECTION_INDEX, out.len() as u64));
        append_index(&mut out, &entries);
    }
    out
}

fn append_index(out: &mut Vec<u8>, entries: &[(SectionType, u64)]) {
    let payload = encode_section_index(entries);
    let number = entries.len() as u32 - 1;
    let ty = SectionType::SECTION_INDEX;
    out.extend(SectionHeader::seal(number, ty, CompressionId::NONE, &payload).encode());
    out.extend(payload);
}

pub(crate) const SECTIONS: &[(SectionType, &[u8])] = &[
    (SectionType::BLOCK, b"hello"),
    (SectionType(77), b"future"),
    (SectionType::BLOCK, b""),
    (SectionType::METADATA_V2_SCHEMA, b"schema"),
    (SectionType::METADATA_V2, b"metadata"),
    (SectionType::HISTORY, b"history"),
];

pub(crate) fn v1_image() -> Vec<u8> {
    let mut out = b"DWARFS\x02\x00".to_vec();
    for (ty, payload) in [(0_u16, "abc"), (0, "de"), (7, "schema"), (8, "metadata")] {
        out.extend(ty.to_le_bytes());
        out.extend([3, 0]);
        out.extend((payload.len() as u32).to_le_bytes());
        out.extend(payload.as_bytes());
    }
    out
}

fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    (0..digits.len() / 2)
        .map(|i| u8::from_str_radix(&digits[2 * i..2 * i + 2], 16).unwrap())
        .collect()
}

#[test]
fn header_vectors_of_the_description() {
    let block = hex("44 57 41 52 46 53 02 05
        4e394c23a50794cd33f3058279a8ec551996ab787ba24be337c7476c70972f17
        77 96 bd aa 6d 6b 31 fa
        00 00 00 00  00 00  00 00  11 00 00 00 00 00 00 00");
    let metadata = hex("44 57 41 52 46 53 02 05
        8e5c96f0b4c5b5e6fdb65f37fbf14f249421457bdc8df866003c0f5ec2d99a9c
        66 bc cf 64 33 7c 75 46
        02 00 00 00  08 00  00 00  8a 00 00 00 00 00 00 00");
    let data = hex(
        "eab9ffe4e573141040b20c0000f9b7dbf35b6c8dcfaf81df0101b06b41690004
        2294550924e80364ed41a481ffa100a84d4c0a6c6962647761726673207630
        2e31352e332d31332d676530343635613933353320
        6f6e206272616e6368206d61696e612e747874622e747874632e74787
        46c696e6b737562a0a8372d612e7478742800000000 00000000",
    );
    let zero = SectionType::BLOCK;
    for (bytes, number, ty, payload) in [
        (block, 0, zero, &b"other data\nhello\n"[..]),
        (metadata, 2, SectionType::METADATA_V2, &data[..]),
    ] {
        let sealed = SectionHeader::seal(number, ty, CompressionId::NONE, payload);
        assert_eq!(sealed.encode()[..], bytes[..]);
        let parsed = SectionHeader::parse(bytes.as_slice().try_into().unwrap()).unwrap();
        assert_eq!(parsed, sealed);
        assert!(parsed.xxh_matches(payload) && parsed.sha_matches(payload));
        let pieces = |take: &mut dyn FnMut(&[u8])| {
            payload.chunks(3).for_each(take);
            Ok::<_, ()>(())
        };
        let length = payload.len() as u64;
        assert_eq!(
            SectionHeader::seal_in_pieces(number, ty, length, pieces),
            Ok(sealed)
        );
        assert!(!parsed.xxh_matches(b"x") && !parsed.sha_matches(b"x"));
        for make in [SectionHasher::xxh, SectionHasher::sha, SectionHasher::both] {
            let mut hasher = make(&parsed);
            payload.chunks(5).for_each(|part| hasher.update(part));
            assert!(hasher.clone().matches());
            hasher.update(b"x");
            assert!(!hasher.matches());
        }
    }
}

fn parse_index(payload: &[u8], own: u64) -> Result<Vec<(SectionType, u64)>, String> {
    let mut parser = index::IndexParser::default();
    parser.add(payload)?;
    parser.finish(own)
}

#[test]
fn index_vector_of_the_description() {
    let entries = [
        (SectionType::BLOCK, 0),
        (SectionType::METADATA_V2_SCHEMA, 0x51),
        (SectionType::METADATA_V2, 0x4ac),
        (SectionType::HISTORY, 0x576),
        (SectionType::SECTION_INDEX, 0x699),
    ];
    let payload = hex("0000000000000000 5100000000000700 ac04000000000800
        7605000000000a00 9906000000000900");
    assert_eq!(encode_section_index(&entries), payload);
    assert_eq!(parse_index(&payload, 0x699).unwrap(), entries);
    assert!(parse_index(&payload, 0x69a).is_err());
    assert!(parse_index(&payload[1..], 0x699).is_err());
    assert!(parse_index(&payload[..16], 0x51).is_err());
}

/// The index claims most of a file that is nearly all hole.
#[test]
fn a_huge_index_is_not_read_to_its_end() {
    let size = 1_u64 << 45;
    let body = image(SECTIONS, false);
    let own = body.len() as u64;
    let mut header = SectionHeader::seal(6, SectionType::SECTION_INDEX, CompressionId::NONE, b"");
    header.length = size - own - SectionHeader::LEN as u64;
    let file = [body, header.encode().to_vec()].concat();
    let last = encode_section_index(&[(SectionType::SECTION_INDEX, own)]);
    let bytes = Cell::new(0);
    let read = |at: u64, out: &mut [u8]| {
        bytes.set(bytes.get() + out.len());
        out.fill(0);
        if at + 8 == size {
            out.copy_from_slice(&last);
        } else if let Some(there) = usize::try_from(at).ok().and_then(|at| file.get(at..)) {
            let length = there.len().min(out.len());
            out[..length].copy_from_slice(&there[..length]);
        }
        Ok(())
    };
    let container = Container::open(&read, size, 0, None).unwrap();
    assert!(matches!(container.index, IndexState::Invalid(_)));
    assert_eq!(container.sections.len(), 7);
    assert!(bytes.get() < 1 << 20, "{} bytes read", bytes.get());
}

#[test]
fn names() {
    assert_eq!(SectionType::HISTORY.to_string(), "HISTORY");
    assert_eq!(SectionType(6).to_string(), "UNKNOWN(6)");
    assert_eq!(CompressionId::RICEPP.to_string(), "RICEPP");
    assert_eq!(CompressionId(8).to_string(), "UNKNOWN(8)");
    assert_eq!(Version::WRITTEN.to_string(), "2.5");
}

#[test]
fn same_sections_with_and_without_index() {
    let (with, without) = (image(SECTIONS, true), image(SECTIONS, false));
    for container in [open(&with).unwrap(), scan(&with).unwrap()] {
        assert_eq!(container.index, IndexState::Valid);
        assert_eq!(container.sections.len(), SECTIONS.len() + 1);
        assert_eq!(container.block_count(), 2);
        assert_eq!(container.block(BlockNo(1)).unwrap().position, 2);
        assert_eq!(container.block(BlockNo(2)), None);
        assert_eq!(container.blocks().count(), 2);
        assert_eq!(container.sections[1].ty, SectionType(77));
    }
    let (indexed, scanned) = (open(&with).unwrap(), scan(&with).unwrap());
    let plain = open(&without).unwrap();
    assert_eq!(plain.index, IndexState::Absent);
    assert_eq!(plain.sections, scanned.sections[..SECTIONS.len()]);
    let read = reader(&with);
    for (position, section) in (0..).zip(&indexed.sections) {
        let block = section.ty == SectionType::BLOCK;
        assert_eq!(section.compression.is_none(), block);
        let full = &scanned.sections[position as usize];
        assert_eq!(section.length, full.length);
        assert_eq!(&indexed.load_header(&read, position).unwrap(), full);
    }
    assert!(indexed.load_header(&read, 7).is_err());
    let schema = SectionType::METADATA_V2_SCHEMA;
    assert_eq!(plain.only_section_of_type(schema).unwrap().position, 3);
    assert!(plain.only_section_of_type(SectionType::BLOCK).is_err());
    assert!(plain.only_section_of_type(SectionType(9)).is_err());
    assert_eq!(plain.file_offset(&plain.sections[0]), 64);
}

#[test]
fn an_index_saves_reading_block_headers() {
    let blocks: Vec<_> = vec![(SectionType::BLOCK, &b"x"[..]); 100];
    let file = image(&[&blocks, &SECTIONS[3..]].concat(), true);
    let read = reader(&file);
    let calls = Cell::new(0);
    let counting = |at: u64, out: &mut [u8]| {
        calls.set(calls.get() + 1);
        read(at, out)
    };
    Container::open(&counting, file.len() as u64, 0, None).unwrap();
    assert!(calls.get() < 10, "{} reads", calls.get());
}

#[test]
fn bad_indexes_are_ignored() {
    let body = image(SECTIONS, false);
    let mut good: Vec<_> = scan(&body)
        .unwrap()
        .sections
        .iter()
        .map(|section| (section.ty, section.header_offset))
        .collect();
    good.push((SectionType::SECTION_INDEX, body.len() as u64));
    type Edit = fn(&mut Vec<(SectionType, u64)>);
    let table: &[(&str, Edit, &str)] = &[
        ("first", |e| e[0].1 = 1, "first offset"),
        ("order", |e| e.swap(2, 3), "does not follow"),
        ("equal", |e| e[3].1 = e[2].1, "does not follow"),
        (
            "type",
            |e| e[5].0 = SectionType::METADATA_V2,
            "but METADATA_V2 in",
        ),
        ("magic", |e| e[4].1 += 1, "no magic"),
        ("few", |e| drop(e.drain(1..6)), "only 2 entries"),
    ];
    for (what, edit, reason) in table {
        let mut entries = good.clone();
        edit(&mut entries);
        let mut file = body.clone();
        append_index(&mut file, &entries);
        let container = open(&file).unwrap();
        let IndexState::Invalid(text) = &container.index else {
            panic!("{what}: {:?}", container.index);
        };
        assert!(text.contains(reason), "{what}: {text}");
        assert_eq!(container.sections.len(), good.len(), "{what}");
        assert!(matches!(scan(&file).unwrap().index, IndexState::Invalid(_)));
    }
    let file = {
        let mut file = body.clone();
        append_index(&mut file, &good);
        file
    };
    // Each bit of the index section matters, except version, digest and the final entry's
    // type, without which there is no index at all.
    let start = body.len();
    for at in (start..start + 6).chain(start + 0x28..file.len()) {
        let mut damaged = file.clone();
        damaged[at] ^= 1;
        match open(&damaged) {
            Ok(container) => assert_ne!(container.index, IndexState::Valid, "byte {at}"),
            // The walk stumbles over the same byte.
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
        }
    }
    // An index that lacks sections is believed when opening and noticed when scanning.
    let mut file = body;
    append_index(&mut file, &[&good[..1], &good[3..]].concat());
    assert_eq!(open(&file).unwrap().index, IndexState::Valid);
    assert!(matches!(scan(&file).unwrap().index, IndexState::Invalid(_)));
}

#[test]
fn a_section_that_reaches_into_the_next_one_is_not_taken_from_an_index() {
    let plain = image(SECTIONS, false);
    let sections = scan(&plain).unwrap().sections;
    let listed = [
        SectionType::METADATA_V2_SCHEMA,
        SectionType::METADATA_V2,
        SectionType::HISTORY,
    ];
    for ty in listed {
        let mut file = image(SECTIONS, true);
        let section = sections.iter().find(|s| s.ty == ty).unwrap();
        // The length is in the last eight bytes of the header.
        file[section.payload_offset as usize - 8] += 1;
        match open(&file) {
            Ok(container) => assert_ne!(container.index, IndexState::Valid, "{ty}"),
            Err(error) => assert!(matches!(error, Error::Corrupt { .. }), "{error}"),
        }
        let container =
            Container::open_by_index(&reader(&file), &|_| {}, file.len() as u64, 0, None);
        assert!(container.unwrap().is_none(), "{ty}");
    }
}

#[test]
fn index_is_looked_for_since_minor_4() {
    for (minor, want) in [
        (2, IndexState::Absent),
        (3, IndexState::Absent),
        (4, IndexState::Valid),
    ] {
        let mut file = image(SECTIONS, true);
        file[7] = minor;
        assert_eq!(open(&file).unwrap().index, want, "minor {minor}");
    }
}

#[test]
fn v1_headers() {
    let file = v1_image();
    let container = open(&file).unwrap();
    assert_eq!(container.version.to_string(), "2.0");
    assert!(!container.has_hashes());
    assert_eq!(container.block_count(), 2);
    let section = container.block(BlockNo(1)).unwrap();
    let payload = section.payload_offset as usize;
    assert_eq!(&file[payload..payload + section.length as usize], b"de");
    assert_eq!(section.compression, Some(CompressionId::LZ4));
    assert_eq!(container.load_header(&reader(&file), 1).unwrap(), *section);
    for (what, at, value) in [("type", 8, 1), ("type", 9, 1), ("compression", 10, 8)] {
        let mut file = file.clone();
        file[at] = value;
        assert!(matches!(open(&file), Err(Error::Corrupt { .. })), "{what}");
    }
    // Trailing zeros are empty blocks if they are said to belong to the image.
    let all = |file: &[u8]| {
        let size = file.len() as u64;
        Container::open(&reader(file), size, 0, Some(size))
    };
    let longer = [&file[..], &[0; 16]].concat();
    assert_eq!(all(&longer).unwrap().block_count(), 4);
    assert_eq!(open(&longer).unwrap().block_count(), 2);
    assert!(all(&longer[..file.len() + 7]).is_err());
    let endless = [&file[..], &vec![0; 9 << 20]].concat();
    assert!(matches!(all(&endless), Err(Error::Limit(_))));
    assert_eq!(open(&endless).unwrap().size, file.len() as u64);
    // Without metadata there is no end to be found.
    let endless = [b"DWARFS\x02\x00", &vec![0; 9 << 20][..]].concat();
    assert!(matches!(open(&endless), Err(Error::Limit(_))));
}

#[test]
fn first_bytes_decide() {
    let with = |at: usize, value: u8| {
        let mut file = image(SECTIONS, true);
        file[at] = value;
        open(&file)
    };
    assert!(matches!(with(0, b'd'), Err(Error::NotAnImage(_))));
    assert!(matches!(with(6, 1), Err(Error::Unsupported(_))));
    assert!(matches!(with(6, 3), Err(Error::Unsupported(_))));
    assert!(matches!(with(7, 7), Err(Error::Unsupported(_))));
    assert!(with(7, 6).is_ok());
    assert!(matches!(open(b"DWARFS\x02"), Err(Error::NotAnImage(_))));
    assert!(matches!(open(b""), Err(Error::NotAnImage(_))));
}

#[test]
fn size_and_trailing_bytes() {
    let body = image(SECTIONS, true);
    let leading = b"#!/bin/sh\n";
    let file = [leading, &body[..], b"trailing"].concat();
    let (read, size) = (reader(&file), file.len() as u64);
    let open = |offset, image_size| Container::open(&read, size, offset, image_size);
    let at = leading.len() as u64;
    let container = open(at, Some(body.len() as u64)).unwrap();
    assert_eq!((container.offset, container.size), (at, body.len() as u64));
    assert_eq!(container.index, IndexState::Valid);
    let container = open(at, None).unwrap();
    assert_eq!((container.offset, container.size), (at, body.len() as u64));
    assert_eq!(container.index, IndexState::Valid);
    let text = open(at, Some(size - at)).unwrap_err().to_string();
    assert!(text.contains("truncated section header"), "{text}");
    assert!(open(at, Some(7)).is_err());
    assert!(open(at, Some(u64::MAX)).is_err());
    assert!(matches!(open(size, None), Err(Error::NotAnImage(_))));
    assert!(matches!(open(u64::MAX, None), Err(Error::NotAnImage(_))));
    let cut = Container::open(&read, size - 9, at, None);
    assert!(
        cut.unwrap_err()
            .to_string()
            .contains("truncated section data")
    );
    let mut file = body;
    file[0x38..0x40].fill(0xff);
    let text = scan(&file).unwrap_err().to_string();
    assert!(
        text.contains("section length overflow (section 0"),
        "{text}"
    );
}

/// Candidates of all kinds, the real image after them.
#[test]
fn false_matches_do_not_hide_an_image() {
    let real = image(SECTIONS, true);
    let mut far = SectionHeader::seal(0, SectionType::BLOCK, CompressionId::NONE, b"");
    far.length = 1 << 20;
    let mut overflow = far;
    overflow.length = u64::MAX - 70;
    let mut other_number = far;
    (other_number.number, other_number.length) = (1, 0);
    let mut no_successor = far;
    no_successor.length = 3;
    for (what, noise) in [
        ("nothing", vec![]),
        ("text", b"DWARFSDWARFS\x01DWARF".to_vec()),
        ("overlapping magic", b"DWARFS\x02DWARFS\x02".to_vec()),
        ("length beyond the end", far.encode().to_vec()),
        ("length overflow", overflow.encode().to_vec()),
        ("number 1", other_number.encode().to_vec()),
        ("no second header", no_successor.encode().to_vec()),
        (
            "v1",
            b"DWARFS\x02\x00\x00\x00\x00\x00\xff\xff\xff\xff".to_vec(),
        ),
        (
            "v1, empty",
            b"DWARFS\x02\x01\x00\x00\x00\x00\x00\x00\x00\x00".to_vec(),
        ),
    ] {
        let file = [&noise, &real[..]].concat();
        assert_eq!(locate(&file), Some(noise.len() as u64), "{what}");
        assert_eq!(locate(&noise), None, "{what}");
    }
    let v1 = v1_image();
    let file = [b"header", &v1[..], &real].concat();
    assert_eq!(locate(&file), Some(6));
    let read = reader(&file);
    let from = |start| locate_image_from(start, file.len() as u64, &read).ok();
    assert_eq!(from(6), Some(6));
    assert_eq!(from(7), Some(6 + v1.len() as u64));
    assert_eq!(from(7 + v1.len() as u64), None);
    assert_eq!(from(u64::MAX), None);
    assert_eq!(locate(&real[..64]), None);
    assert_eq!(locate(&v1[..20]), None);
}

#[test]
fn images_at_window_edges_are_found() {
    let real = image(SECTIONS, false);
    let v1 = v1_image();
    let window = 1 << 20;
    let mut file = vec![0x44_u8; 3 * window];
    for at in (window - 70..=window + 2).chain([2 * window - 64, 3 * window - real.len()]) {
        for image in [&real, &v1] {
            let end = at + image.len();
            file[at..end].copy_from_slice(image);
            assert_eq!(locate(&file), Some(at as u64));
            file[at..end].fill(0x44);
        }
    }
}

#[test]
fn a_search_costs_a_bounded_number_of_reads() {
    // Every 64 bytes a candidate that points somewhere else.
    let size = 4 << 20;
    let mut file = Vec::with_capacity(size);
    while file.len() < size {
        let mut header = SectionHeader::seal(0, SectionType::BLOCK, CompressionId::NONE, b"");
        header.length = (size / 2 - file.len() / 4) as u64;
        file.extend(header.encode());
    }
    let read = reader(&file);
    let bytes = Cell::new(0);
    let counting = |at: u64, out: &mut [u8]| {
        bytes.set(bytes.get() + out.len());
        read(at, out)
    };
    assert!(locate_image(file.len() as u64, &counting).is_err());
    assert!(bytes.get() <= 3 * size, "{} bytes read", bytes.get());
}

proptest! {
    #[test]
    fn header_round_trip(bytes in any::<[u8; 32]>(), more in any::<[u8; 26]>()) {
        let raw: Vec<u8> = [&MAGIC[..], &bytes, &more].concat();
        let raw: [u8; 64] = raw.try_into().unwrap();
        prop_assert_eq!(SectionHeader::parse(&raw).unwrap().encode(), raw);
    }

    #[test]
    fn containers_round_trip(
        payloads in proptest::collection::vec(
            (0..12_u16, proptest::collection::vec(any::<u8>(), 0..100)), 2..20),
        index: bool,
        leading in proptest::collection::vec(any::<u8>(), 0..100),
    ) {
        let sections: Vec<_> = payloads.iter()
            .map(|(ty, payload)| (SectionType(*ty), payload))
            .filter(|(ty, _)| ![SectionType::SECTION_INDEX, SectionType::METADATA_V2].contains(ty))
            .map(|(ty, payload)| (ty, &payload[..]))
            .chain([(SectionType::METADATA_V2, &b"x"[..]), (SectionType::HISTORY, &b"y"[..])])
            .collect();
        let file = [leading.clone(), image(&sections, index)].concat();
        let read = reader(&file);
        let at = locate_image(file.len() as u64, &read).unwrap();
        prop_assert_eq!(at, leading.len() as u64);
        for open in [Container::open, Container::open_scanning] {
            let container = open(&read, file.len() as u64, at, None).unwrap();
            prop_assert_eq!(container.sections.len(), sections.len() + usize::from(index));
            prop_assert_eq!(container.index == IndexState::Valid, index);
            for (position, (ty, payload)) in (0..).zip(&sections) {
                let section = container.load_header(&read, position).unwrap();
                prop_assert_eq!(section.ty, *ty);
                let start = container.file_offset(&section) as usize;
                let found = &file[start..start + section.length as usize];
                prop_assert_eq!(found, *payload);
                prop_assert!(section.header.unwrap().sha_matches(found));
            }
        }
    }

    #[test]
    fn damage_does_no_harm(
        at in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..6),
        v1: bool, cut in any::<proptest::sample::Index>(),
    ) {
        let mut file = if v1 { v1_image() } else { image(SECTIONS, true) };
        for (at, value) in at {
            let at = at.index(file.len());
            file[at] = value;
        }
        let file = &file[..cut.index(file.len() + 1)];
        let _ = locate(file);
        let _ = scan(file);
        if let Ok(container) = open(file) {
            for position in 0..container.sections.len() as u32 {
                let _ = container.load_header(&reader(file), position);
            }
        }
    }
}
