//! Damaged images and failing media: an error or the right data, never a panic, never wrong data.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;

use redwarfs_format::{Error, InodeNo, Result};
use redwarfs_io::{Fault, FaultSource, MemorySource};
use redwarfs_reader::check::{FindingKind, SectionList};
use redwarfs_reader::{CheckOptions, Image, ImageOffset, OpenOptions, VerifyMode};

fn bytes(name: &str) -> Vec<u8> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/images");
    let path = PathBuf::from(dir).join(format!("{name}.dwarfs"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn options() -> OpenOptions {
    let mut open = OpenOptions::default();
    open.offset = ImageOffset::At(0);
    open.check = true;
    open
}

fn from_bytes(bytes: &[u8]) -> Result<Image> {
    Image::from_source(Arc::new(MemorySource::new(bytes)), &options())
}

/// Size, target or content of one entry.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Shown {
    stat: redwarfs_format::metadata::Stat,
    target: Option<Vec<u8>>,
    data: Vec<u8>,
}

fn read_all(image: &Image, inode: InodeNo) -> Result<Vec<u8>> {
    let size = image.stat(inode)?.size;
    // Very large files are looked at in their first and last part.
    let limit = 1 << 16;
    let mut data = vec![0; size.min(limit) as usize];
    let n = image.read_at(inode, 0, &mut data)?;
    data.truncate(n);
    if size > limit {
        let mut tail = vec![0; limit as usize];
        let n = image.read_at(inode, size - limit, &mut tail)?;
        data.extend(&tail[..n]);
    }
    Ok(data)
}

/// Everything an image shows, or its first error.
fn show(image: &Image) -> Result<BTreeMap<Vec<u8>, Shown>> {
    let mut all = BTreeMap::new();
    for item in image.walk() {
        let item = item?;
        let stat = image.stat(item.inode)?;
        let ty = stat.mode & 0o170_000;
        let shown = Shown {
            stat,
            target: if ty == 0o120_000 {
                Some(image.read_link(item.inode)?)
            } else {
                None
            },
            data: if ty == 0o100_000 {
                read_all(image, item.inode)?
            } else {
                Vec::new()
            },
        };
        all.insert(item.path, shown);
    }
    Ok(all)
}

#[test]
fn truncated_anywhere_is_an_error() {
    for name in ["one", "empty", "basic-hollow"] {
        let whole = bytes(name);
        let expected = show(&from_bytes(&whole).unwrap()).unwrap();
        for len in 0..whole.len() {
            // Cutting off whole sections from the end may leave an image, without its index
            // or its history.
            if let Ok(shown) = from_bytes(&whole[..len]).and_then(|image| show(&image)) {
                assert_eq!(shown, expected, "{name} cut to {len} bytes");
            }
        }
    }
}

#[test]
fn every_flipped_bit_is_found_or_harmless() {
    let mut image_bytes = bytes("one");
    let expected = show(&from_bytes(&image_bytes).unwrap()).unwrap();
    let mut errors = 0;
    for at in 0..image_bytes.len() {
        for bit in 0..8 {
            image_bytes[at] ^= 1 << bit;
            match from_bytes(&image_bytes).and_then(|image| {
                image.history()?;
                let report = image.check_sections(&CheckOptions::default())?;
                if report.outcomes.iter().any(|outcome| !outcome.is_ok()) {
                    return Err(Error::corrupt("a section"));
                }
                show(&image)
            }) {
                Ok(shown) => assert_eq!(shown, expected, "bit {bit} of byte {at}"),
                Err(_) => errors += 1,
            }
            image_bytes[at] ^= 1 << bit;
        }
    }
    assert!(errors > image_bytes.len(), "{errors} errors");
}

#[test]
fn the_checker_finds_every_flipped_payload_bit() {
    let image_bytes = bytes("empty");
    let image = from_bytes(&image_bytes).unwrap();
    for section in &image.container().sections {
        let end = section.payload_offset + section.length;
        for offset in section.payload_offset..end {
            let source = FaultSource::new(MemorySource::new(image_bytes.clone()));
            let source = Arc::new(source);
            let image = Image::from_source(source.clone(), &options()).unwrap();
            source.add(Fault::Flip { offset, mask: 0x10 });
            for mode in [VerifyMode::Fast, VerifyMode::Integrity] {
                let mut options = CheckOptions::default();
                options.mode = mode;
                let report = image.check_sections(&options).unwrap();
                let outcomes = (0..).zip(&report.outcomes);
                let failed = outcomes.filter(|(_, outcome)| !outcome.is_ok());
                let failed: Vec<u32> = failed.map(|(position, _)| position).collect();
                assert_eq!(failed, [section.position]);
                // A damaged index is also unusable, which is a finding of its own.
                let mut places = report.findings.iter().filter_map(|f| f.section);
                assert!(!report.is_ok() && places.all(|p| p.position == section.position));
            }
        }
    }
}

#[test]
fn the_checker_reports_what_is_wrong_with_the_whole() {
    // A second copy of the first section that is not a block, at the end. Behind an index it
    // would not belong to the image.
    let mut twice = bytes("one");
    let image = from_bytes(&twice).unwrap();
    let index = image.container().sections.last().unwrap();
    twice.truncate(index.header_offset as usize);
    let image = from_bytes(&twice).unwrap();
    let schema = image.container().sections[1].clone();
    let range = schema.header_offset..schema.payload_offset + schema.length;
    let copy = twice[range.start as usize..range.end as usize].to_vec();
    let mut options = CheckOptions::default();
    options.threads = 2;
    assert!(image.check_sections(&options).unwrap().is_ok());
    twice.extend(copy);
    let source = MemorySource::new(twice);
    let list = SectionList::read(&source, 0, None).unwrap();
    let report = list.check(&source, &options, &|_| {});
    let mut findings = report.findings.iter();
    let finding = findings.find(|finding| finding.kind == FindingKind::Duplicate);
    let text = finding.expect("it is there twice").to_string();
    assert!(text.contains("METADATA_V2_SCHEMA"), "{text}");
}

#[test]
fn an_image_inside_a_file_is_found() {
    let one = bytes("one");
    let mut file = b"#!/bin/sh\nexit 0\n".to_vec();
    let start = file.len() as u64;
    file.extend(&one);
    file.extend(b"trailing bytes");
    let open = |offset, image_size| {
        let mut options = OpenOptions::default();
        options.offset = offset;
        options.image_size = image_size;
        Image::from_source(Arc::new(MemorySource::new(file.clone())), &options)
    };
    assert!(open(ImageOffset::Auto, Some(one.len() as u64 + 1)).is_err());
    for (offset, size) in [
        (ImageOffset::Auto, None),
        (ImageOffset::Auto, Some(one.len() as u64)),
        (ImageOffset::At(start), Some(one.len() as u64)),
    ] {
        let image = open(offset, size).unwrap();
        assert_eq!(image.trailing_bytes(), 14);
        assert_eq!(image.header_bytes().unwrap(), b"#!/bin/sh\nexit 0\n");
        assert_eq!(show(&image).unwrap().len(), 2);
        let mut options = CheckOptions::default();
        options.mode = VerifyMode::Integrity;
        options.threads = 2;
        assert!(image.check_sections(&options).unwrap().is_ok());
    }
    for offset in [ImageOffset::At(0), ImageOffset::At(1 << 40)] {
        let e = open(offset, Some(one.len() as u64)).unwrap_err();
        assert!(matches!(e, Error::NotAnImage(_)), "{e}");
    }
}
