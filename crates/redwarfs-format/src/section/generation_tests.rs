//! Trailers, unused tails and generations, on files that are put together here.

use proptest::prelude::*;

use super::tests::{SECTIONS, image, reader};
use super::*;
use crate::error::{Error, Result};

const B: SectionType = SectionType::BLOCK;
const S: SectionType = SectionType::METADATA_V2_SCHEMA;
const M: SectionType = SectionType::METADATA_V2;
const H: SectionType = SectionType::HISTORY;

fn open(file: &[u8]) -> Result<Container> {
    Container::open(&reader(file), file.len() as u64, 0, None)
}

fn index_of(file: &[u8]) -> u64 {
    open(file).unwrap().sections.last().unwrap().header_offset
}

fn hidden(number: u32, ty: SectionType, body: &[u8], index: Option<u64>) -> Vec<u8> {
    let prelude = Prelude {
        tag: *b"TEST",
        major: 1,
        minor: 0,
        flags: 0,
        binding: Binding::None,
    };
    let footer = Footer {
        open_offset: 1,
        open_length: 2,
        index,
    };
    encode_hidden_section(number, ty, &prelude, body, &footer)
}

/// An image with two trailers.
fn with_trailers() -> (Vec<u8>, Vec<u8>) {
    let plain = image(SECTIONS, true);
    let own = index_of(&plain);
    let mut file = plain.clone();
    file.extend(hidden(7, SectionType::SNAPSHOTS, b"table", Some(own)));
    file.extend(hidden(8, SectionType(0x44f0), b"", Some(own)));
    (plain, file)
}

/// Appends a generation with `blocks` of its own, which leaves out the last block before it.
fn append(file: &mut Vec<u8>, tree: &[u8], drop_block: bool) {
    let old = open(file).unwrap();
    file.truncate(old.size as usize);
    let mut number = (old.sections.len() + old.trailers.len()) as u32;
    let mut entries: Vec<_> = old.blocks().map(|s| (B, s.header_offset)).collect();
    if drop_block && entries.len() > 1 {
        entries.pop();
    }
    file.extend(hidden(number, SectionType::LINK, b"link", None));
    for (ty, payload) in [(B, tree), (S, b"schema"), (M, tree), (H, b"history")] {
        number += 1;
        entries.push((ty, file.len() as u64));
        file.extend(SectionHeader::seal(number, ty, CompressionId::NONE, payload).encode());
        file.extend(payload);
    }
    let own = file.len() as u64;
    entries.push((SectionType::SECTION_INDEX, own));
    let payload = encode_section_index(&entries);
    let ty = SectionType::SECTION_INDEX;
    file.extend(SectionHeader::seal(number + 1, ty, CompressionId::NONE, &payload).encode());
    file.extend(&payload);
    file.extend(hidden(number + 2, SectionType::SNAPSHOTS, tree, Some(own)));
}

fn tree_of(file: &[u8], container: &Container) -> Vec<u8> {
    let section = container.only_section_of_type(M).unwrap();
    let start = container.file_offset(section) as usize;
    file[start..start + section.length as usize].to_vec()
}

#[test]
fn hidden_sections_round_trip() {
    let prelude = Prelude {
        tag: *b"DWSN",
        major: 1,
        minor: 3,
        flags: 0x8000_0001,
        binding: Binding::Generation(GenerationId::of(b"index")),
    };
    let footer = Footer {
        open_offset: 77,
        open_length: 1 << 40,
        index: Some((1 << 48) - 1),
    };
    let bytes = encode_hidden_section(9, SectionType::SNAPSHOTS, &prelude, b"body", &footer);
    let (header, payload) = bytes.split_first_chunk().unwrap();
    let header = SectionHeader::parse(header).unwrap();
    assert_eq!((header.number, header.ty), (9, SectionType::SNAPSHOTS));
    assert!(header.xxh_matches(payload) && header.sha_matches(payload));
    let parsed = HiddenPayload::parse(payload).unwrap();
    assert_eq!(parsed.prelude, prelude);
    assert_eq!((parsed.body, parsed.footer), (&b"body"[..], footer));
    // The layout of the description, byte for byte.
    assert_eq!(payload[..8], *b"DWSN\x01\x03\x20\x00");
    assert_eq!(payload[12..16], [2, 0, 0, 0]);
    let end = payload.len();
    assert_eq!(payload[end - 8..], [255, 255, 255, 255, 255, 255, 9, 0]);
    // A prelude of a later version is longer.
    let mut longer = payload.to_vec();
    longer.splice(32..32, *b"more");
    longer[6] = 36;
    assert_eq!(HiddenPayload::parse(&longer).unwrap().body, b"body");
    for cut in 0..payload.len() {
        if let Ok(parsed) = HiddenPayload::parse(&payload[..cut]) {
            assert!(parsed.body.len() < 4, "{cut}");
        }
    }
    longer[6] = 31;
    assert!(HiddenPayload::parse(&longer).is_err());
    longer[6..8].fill(255);
    assert!(HiddenPayload::parse(&longer).is_err());
    longer[6..8].copy_from_slice(&[36, 0]);
    longer[12] = 3;
    assert!(matches!(
        HiddenPayload::parse(&longer),
        Err(Error::Unsupported(_))
    ));
}

#[test]
fn identities() {
    let id = MetadataId::of(b"schema", b"metadata");
    assert_eq!(id, MetadataId::of(b"schemameta", b"data"));
    assert_ne!(id, MetadataId::of(b"schema", b"metadatb"));
    // The empty input has the value that the description of XXH3-128 gives, low half first.
    let empty = GenerationId::of(b"").0;
    assert_eq!(
        u128::from_le_bytes(empty),
        0x99aa_06d3_0147_98d8_6001_c324_468d_497f
    );
}

#[test]
fn classes_by_type() {
    let class = |ty: u16| SectionType(ty).hidden_class().map(HiddenClass::name);
    for (ty, name) in [
        (0x43ff, None),
        (0x4400, Some("copy")),
        (0x443f, Some("copy")),
        (0x4440, Some("meta")),
        (0x4480, Some("bytes")),
        (0x44bf, Some("bytes")),
        (0x44c0, Some("critical")),
        (0x44ff, Some("critical")),
        (0x4500, None),
        (10, None),
    ] {
        assert_eq!(class(ty), name, "{ty:#x}");
    }
}

#[test]
fn trailers_are_found_by_the_pointer_and_by_walking() {
    let (plain, file) = with_trailers();
    for cut in [0, 1] {
        // With a damaged end, the last trailer does not count.
        let mut file = file.clone();
        if cut == 1 {
            let last = file.len() - 1;
            file[last] ^= 1;
        }
        let container = open(&file).unwrap();
        let types: Vec<u16> = container.trailers.iter().map(|s| s.ty.0).collect();
        assert_eq!(types, [0x4480, 0x44f0][..2 - cut]);
        assert_eq!(container.sections.len(), SECTIONS.len() + 1);
        assert_eq!(container.trailers[0].position as usize, SECTIONS.len() + 1);
        assert_eq!(container.index == IndexState::Valid, cut == 0);
        assert_eq!(container.unused_tail, 0);
    }
    // Cut off behind any trailer, it is a valid image.
    let container = open(&file).unwrap();
    let ends = [
        plain.len() as u64,
        container.trailers[1].header_offset,
        container.size,
    ];
    assert_eq!(container.size, file.len() as u64);
    for (trailers, end) in ends.into_iter().enumerate() {
        let container = open(&file[..end as usize]).unwrap();
        assert_eq!((container.trailers.len(), container.size), (trailers, end));
        assert_eq!(container.index, IndexState::Valid);
    }
}

#[test]
fn whatever_is_between_index_and_pointer_is_unused() {
    let (plain, file) = with_trailers();
    let own = index_of(&plain);
    let other = image(&[(B, b"b"), (S, b"s"), (M, b"m")], true);
    for (base, trailers) in [(&plain, 0), (&file, 2)] {
        for between in [
            &b"junk"[..],
            &[0; 4096],
            &hidden(9, SectionType::PAD, b"of another index", Some(own + 1)),
            &hidden(9, SectionType::PAD, b"", None),
            &other[64..],
        ] {
            let file = [base, between, &tail_pointer(own).to_le_bytes()].concat();
            let container = open(&file).unwrap();
            assert_eq!(container.index, IndexState::Valid);
            assert_eq!(container.trailers.len(), trailers);
            assert_eq!(container.size, base.len() as u64);
            assert_eq!(container.unused_tail, between.len() as u64 + 8);
        }
    }
    // Two equal images have equal ends.
    let container = open(&[&plain[..], &plain].concat()).unwrap();
    assert_eq!(
        (container.size, container.unused_tail),
        (plain.len() as u64, 0)
    );
}

#[test]
fn the_newest_generation_counts() {
    let mut file = image(SECTIONS, true);
    let mut ends = vec![file.len()];
    let trees: [&[u8]; 3] = [b"second", b"third", b"fourth"];
    for (i, tree) in trees.iter().enumerate() {
        append(&mut file, tree, i == 1);
        ends.push(file.len());
        let container = open(&file).unwrap();
        assert_eq!(tree_of(&file, &container), *tree);
        assert_eq!(container.index, IndexState::Valid);
        assert_eq!(container.trailers.len(), 1);
        assert_eq!(container.size, file.len() as u64);
    }
    // Two of the first image, and one of each generation, but for the one that the third leaves out.
    assert_eq!(open(&file).unwrap().block_count(), 2 + 3 - 1);
    // Each end of a generation is an image of its time.
    for (end, tree) in ends.iter().zip([b"metadata", trees[0], trees[1], trees[2]]) {
        let container = open(&file[..*end]).unwrap();
        assert_eq!(tree_of(&file, &container), *tree);
    }
    // Without the pointer, the last complete generation is found by walking; cut off anywhere, none is
    // ever mixed with another.
    for cut in ends[0]..=file.len() {
        let container = open(&file[..cut]).unwrap();
        let complete = ends.iter().filter(|end| **end <= cut).count();
        let tree = tree_of(&file, &container);
        let may = [&b"metadata"[..], trees[0], trees[1], trees[2]];
        // The index of a generation may be complete before its trailers are.
        let found = may.iter().position(|t| *t == tree).unwrap();
        assert!(
            found + 1 == complete || found == complete,
            "{cut}: {found} {complete}"
        );
    }
}

#[test]
fn damaged_generations_are_passed_over() {
    let mut file = image(SECTIONS, true);
    append(&mut file, b"second", false);
    let middle = file.len();
    append(&mut file, b"third!", false);
    let container = open(&file).unwrap();
    // The footer of the last trailer, so that the end leads nowhere.
    let end = file.len() - 1;
    file[end] ^= 0xff;
    assert_eq!(tree_of(&file, &open(&file).unwrap()), b"third!");
    for ty in [S, M, SectionType::SECTION_INDEX] {
        let section = container.only_section_of_type(ty).unwrap();
        let mut file = file.clone();
        file[section.payload_offset as usize] ^= 1;
        let older = open(&file).unwrap();
        assert_eq!(tree_of(&file, &older), b"second", "{ty}");
        assert!(matches!(older.index, IndexState::Invalid(_)), "{ty}");
        assert_eq!(older.size as usize, middle);
    }
    // Without any index, the last pair that is intact.
    let mut file = file.clone();
    for at in 0..file.len() - 64 {
        let header: [u8; 64] = file[at..at + 64].try_into().unwrap();
        if SectionHeader::parse(&header).is_ok_and(|h| h.ty == SectionType::SECTION_INDEX) {
            file[at + 64] ^= 1;
        }
    }
    let container = open(&file).unwrap();
    assert_eq!(tree_of(&file, &container), b"third!");
    assert_eq!(container.block_count(), 4);
    assert!(matches!(container.index, IndexState::Invalid(_)));
    let at = container.only_section_of_type(M).unwrap().payload_offset;
    file[at as usize] ^= 1;
    assert_eq!(tree_of(&file, &open(&file).unwrap()), b"second");
}

#[test]
fn an_unfinished_append_is_the_old_image() {
    let plain = image(SECTIONS, true);
    let own = index_of(&plain);
    let mut whole = plain.clone();
    append(&mut whole, b"second", false);
    let reserve = whole.len() + 100;
    for written in (plain.len()..whole.len()).step_by(7) {
        let mut file = whole[..written].to_vec();
        file.resize(reserve, 0);
        file.extend(tail_pointer(own).to_le_bytes());
        let container = open(&file).unwrap();
        assert_eq!(tree_of(&file, &container), b"metadata");
        assert_eq!(container.size as usize, plain.len());
        assert_eq!(container.unused_tail as usize, file.len() - plain.len());
    }
}

proptest! {
    #[test]
    fn damage_to_generations_does_no_harm(
        edits in proptest::collection::vec((any::<proptest::sample::Index>(), any::<u8>()), 1..8),
        cut in any::<proptest::sample::Index>(),
        size in proptest::option::of(0..4096_u64),
    ) {
        let (_, mut file) = with_trailers();
        append(&mut file, b"second", true);
        for (at, value) in edits {
            let at = at.index(file.len());
            file[at] = value;
        }
        file.truncate(cut.index(file.len()) + 1);
        let len = file.len() as u64;
        if let Ok(container) = Container::open(&reader(&file), len, 0, size) {
            prop_assert!(container.size + container.unused_tail <= len);
            for section in container.sections.iter().chain(&container.trailers) {
                prop_assert!(section.payload_offset + section.length <= container.size);
            }
        }
    }
}
