//! Images that are followed by something else.

use super::tests::{SECTIONS, image, reader, v1_image};
use super::*;
use crate::error::{Error, Result};

fn open_at(file: &[u8], offset: u64) -> Result<Container> {
    let opened = Container::open(&reader(file), file.len() as u64, offset, None);
    let scanned = Container::open_scanning(&reader(file), file.len() as u64, offset, None);
    match (&opened, &scanned) {
        (Ok(a), Ok(b)) => assert_eq!(a.size, b.size),
        (Err(a), Err(b)) => assert_eq!(a.to_string(), b.to_string()),
        _ => panic!("{opened:?} but {scanned:?}"),
    }
    opened
}

fn nth(file: &[u8], number: u32) -> Result<u64> {
    locate_image_number(number, file.len() as u64, &reader(file), &Ok)
}

/// An image of every kind.
fn images() -> Vec<Vec<u8>> {
    vec![
        image(SECTIONS, true),
        image(SECTIONS, false),
        image(&SECTIONS[..5], false),
        v1_image(),
    ]
}

#[test]
fn the_end_is_found_whatever_follows() {
    let mut others = images();
    for filler in [0_u8, b'D', 0xff] {
        others.extend([1, 7, 8, 63, 64, 65, 1000].map(|len| vec![filler; len]));
    }
    others.push(b"DWARF".to_vec().repeat(20));
    others.push(b"text that is longer than a section header and ends with a magic DWARFS".to_vec());
    for first in images() {
        for other in &others {
            // The beginning of another header cannot be told from a truncated section.
            let truncated = other.len() < SectionHeader::LEN
                && MAGIC.starts_with(&other[..other.len().min(6)])
                && first[7] >= 2
                && first.len() != images()[0].len();
            let file = [first.as_slice(), other].concat();
            match open_at(&file, 0) {
                Ok(container) => {
                    assert!(!truncated);
                    assert_eq!(container.size, first.len() as u64);
                    let alone = open_at(&first, 0).unwrap();
                    assert_eq!(container.sections.len(), alone.sections.len());
                    assert_eq!(container.index, alone.index);
                }
                Err(e) => assert!(truncated, "{e} with {} bytes behind", other.len()),
            }
        }
    }
}

#[test]
fn images_have_numbers() {
    let parts = [
        b"#!/bin/sh\n".to_vec(),
        images()[0].clone(),
        images()[1].clone(),
        vec![0; 3000],
        images()[3].clone(),
        images()[0].clone(),
        b"tail".to_vec(),
    ];
    let file = parts.concat();
    let start = |n: usize| parts[..n].iter().map(Vec::len).sum::<usize>() as u64;
    for (number, part) in [(1, 1), (2, 2), (3, 4), (4, 5)] {
        let at = nth(&file, number).unwrap();
        assert_eq!(at, start(part), "image {number}");
        let container = open_at(&file, at).unwrap();
        assert_eq!(container.size, parts[part].len() as u64);
    }
    let e = nth(&file, 5).unwrap_err().to_string();
    assert!(
        e.contains("no filesystem number 5, the file holds 4 images"),
        "{e}"
    );
    assert!(nth(&file, u32::MAX).is_err() && nth(&file, 0).is_err());
    assert!(matches!(nth(b"nothing", 1), Err(Error::NotAnImage(_))));
}

#[test]
fn an_image_inside_a_block_is_not_one_of_the_file() {
    let inner = image(SECTIONS, true);
    let mut sections = SECTIONS.to_vec();
    sections[0].1 = &inner;
    let outer = image(&sections, true);
    let file = [outer.as_slice(), &inner].concat();
    assert_eq!(nth(&file, 1).unwrap(), 0);
    assert_eq!(nth(&file, 2).unwrap(), outer.len() as u64);
    assert!(nth(&file, 3).is_err());
}

#[test]
fn a_cut_image_is_truncated() {
    for whole in images() {
        let alone = open_at(&whole, 0).unwrap();
        let metadata = alone
            .only_section_of_type(SectionType::METADATA_V2)
            .unwrap();
        let needed = (metadata.payload_offset + metadata.length) as usize;
        let ends: Vec<usize> = alone
            .sections
            .iter()
            .map(|section| (section.payload_offset + section.length) as usize)
            .collect();
        for len in 8..whole.len() {
            let opened = open_at(&whole[..len], 0);
            if len < needed || !ends.contains(&len) {
                let cut_at_section = ends.contains(&len);
                match opened {
                    Err(e) => assert!(e.to_string().contains("truncated section"), "{len}: {e}"),
                    // Without metadata, which whoever opens the image misses.
                    Ok(_) => assert!(cut_at_section || len == 8, "{len}"),
                }
            } else {
                assert_eq!(opened.unwrap().size, len as u64);
            }
        }
    }
}

#[test]
fn damaged_headers_behind_the_metadata_are_no_end() {
    let whole = image(SECTIONS, true);
    let alone = open_at(&whole, 0).unwrap();
    for section in &alone.sections[5..] {
        let mut damaged = whole.clone();
        damaged[section.header_offset as usize] ^= 1;
        let opened = Container::open_scanning(&reader(&damaged), damaged.len() as u64, 0, None);
        let e = opened.unwrap_err().to_string();
        assert!(e.contains("magic"), "{e}");
    }
}

#[test]
fn an_explicit_size_is_meant() {
    let file = [image(SECTIONS, true), b"behind".to_vec()].concat();
    let open = |size| Container::open(&reader(&file), file.len() as u64, 0, Some(size));
    let len = file.len() as u64;
    assert_eq!(open(len - 6).unwrap().size, len - 6);
    let e = open(len).unwrap_err().to_string();
    assert!(e.contains("truncated section header"), "{e}");
}

#[test]
fn holes_are_skipped() {
    let mut file = vec![0; 8 << 20];
    file.extend(image(SECTIONS, true));
    let bytes = std::cell::Cell::new(0);
    let inner = reader(&file);
    let read = |at: u64, out: &mut [u8]| {
        bytes.set(bytes.get() + out.len());
        inner(at, out)
    };
    let hole = 4096..(8_u64 << 20) - 4096;
    let next = |at: u64| Ok(if hole.contains(&at) { hole.end } else { at });
    let size = file.len() as u64;
    let found = locate_image_number(1, size, &read, &next).unwrap();
    assert_eq!(found, 8 << 20);
    assert!(bytes.get() < 2 << 20, "{}", bytes.get());
    // One that goes back or says that there is nothing is survived.
    assert_eq!(
        locate_image_number(1, size, &read, &|_| Ok(0)).unwrap(),
        found
    );
    assert!(locate_image_number(1, size, &read, &|_| Ok(size)).is_err());
}

/// Many heads that lead to one long tail of sections would each list the whole tail.
#[test]
fn listing_sections_again_and_again_is_limited() {
    let header = |number, length| {
        let mut header = SectionHeader::seal(number, SectionType::BLOCK, CompressionId::NONE, b"");
        header.length = length;
        header.encode()
    };
    let (heads, tail) = (500_u64, 500_u64);
    let len = SectionHeader::LEN as u64;
    let mut file = Vec::new();
    for head in 0..heads {
        file.extend(header(0, (heads - head - 1) * len));
    }
    for section in 0..tail {
        file.extend(header(section as u32 + 1, 0));
    }
    file.push(b'!');
    let reads = std::cell::Cell::new(0_u64);
    let inner = reader(&file);
    let read = |at: u64, out: &mut [u8]| {
        reads.set(reads.get() + 1);
        inner(at, out)
    };
    let found = locate_image_number(400, file.len() as u64, &read, &Ok);
    assert!(matches!(found, Err(Error::Limit(_))), "{found:?}");
    assert!(reads.get() < 20_000, "{}", reads.get());
}
