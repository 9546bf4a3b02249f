//! Damaged images and failing media: an error or the right data, never a panic, never wrong data.
#![allow(clippy::unwrap_used)]

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use redwarfs_format::{Error, InodeNo, Result};
use redwarfs_io::{Fault, FaultSource, MemorySource, Source};
use redwarfs_reader::{Image, ImageOffset, OpenOptions, VerifyMode};

fn bytes(name: &str) -> Vec<u8> {
    let dir = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tests/fixtures/images");
    let path = PathBuf::from(dir).join(format!("{name}.dwarfs"));
    std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

fn options() -> OpenOptions {
    OpenOptions {
        offset: ImageOffset::At(0),
        check: true,
        ..OpenOptions::default()
    }
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
                image.verify(VerifyMode::Fast, 1, &mut |_| {})?;
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
                let mut failed = Vec::new();
                let summary = image
                    .verify(mode, 1, &mut |report| {
                        if !report.outcome.is_ok() {
                            failed.push(report.position);
                        }
                    })
                    .unwrap();
                assert_eq!(failed, [section.position]);
                assert_eq!(summary.failed, 1);
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
    let good = image.verify(VerifyMode::Fast, 2, &mut |_| {}).unwrap();
    assert!(good.is_ok());
    let source = Arc::new(Switchable::new(twice.clone()));
    let image = Image::from_source(source.clone(), &options()).unwrap();
    twice.extend(copy);
    source.set(twice);
    let summary = image.verify(VerifyMode::Fast, 2, &mut |_| {}).unwrap();
    assert!(!summary.is_ok());
    let text = summary.problems.join("\n");
    assert!(text.contains("more than one METADATA_V2_SCHEMA"), "{text}");
}

/// A source whose bytes can be exchanged.
#[derive(Debug)]
struct Switchable(std::sync::RwLock<MemorySource>);

impl Switchable {
    fn new(bytes: Vec<u8>) -> Self {
        Self(std::sync::RwLock::new(bytes.into()))
    }

    fn set(&self, bytes: Vec<u8>) {
        *self.0.write().unwrap() = bytes.into();
    }
}

impl Source for Switchable {
    fn len(&self) -> std::io::Result<u64> {
        self.0.read().unwrap().len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        self.0.read().unwrap().read_exact_at(offset, buf)
    }
}

#[test]
fn a_failing_read_is_an_error_and_the_next_try_succeeds() {
    let image_bytes = bytes("basic-zstd-small-blocks");
    let source = Arc::new(FaultSource::new(MemorySource::new(image_bytes.clone())));
    let image = Image::from_source(source.clone(), &options()).unwrap();
    let reads_to_open = source.reads();
    for number in 0..reads_to_open {
        let source = FaultSource::new(MemorySource::new(image_bytes.clone()));
        let source = Arc::new(source.with(Fault::FailRead(number)));
        let e = Image::from_source(source.clone(), &options()).unwrap_err();
        assert!(matches!(e, Error::Io(_)), "read {number}: {e}");
        Image::from_source(source, &options()).unwrap();
    }

    let expected = show(&image).unwrap();
    let mut options = options();
    options.cache.size = 0;
    let image = Image::from_source(source.clone(), &options).unwrap();
    let mut failures = 0;
    for item in image.walk() {
        let item = item.unwrap();
        let shown = &expected[&item.path];
        if shown.data.is_empty() {
            continue;
        }
        // With nothing in the cache, the first read of the source is one for this file.
        image.tidy_cache(Duration::ZERO);
        source.add(Fault::FailFrom(0));
        match read_all(&image, item.inode) {
            // A file that is one hole needs no block.
            Ok(data) => assert_eq!(data, shown.data),
            Err(e) => {
                assert!(matches!(e, Error::Io(_)), "{e}");
                assert!(e.to_string().contains("section"), "{e}");
                failures += 1;
            }
        }
        source.heal();
        assert_eq!(read_all(&image, item.inode).unwrap(), shown.data);
    }
    assert!(failures > 5);
}

#[test]
fn each_read_of_a_file_may_fail_once() {
    let image_bytes = bytes("basic-zstd-small-blocks");
    let plain = from_bytes(&image_bytes).unwrap();
    let largest = plain
        .walk()
        .map(Result::unwrap)
        .filter(|item| plain.stat(item.inode).unwrap().mode & 0o170_000 == 0o100_000)
        .max_by_key(|item| plain.stat(item.inode).unwrap().allocated)
        .unwrap();
    let expected = read_all(&plain, largest.inode).unwrap();
    let mut options = options();
    options.cache.seq_detector = 0;
    // No room ahead, so that all reads happen on this thread.
    options.cache.size = 1;
    for number in 0.. {
        let source = Arc::new(FaultSource::new(MemorySource::new(image_bytes.clone())));
        let image = Image::from_source(source.clone(), &options).unwrap();
        source.add(Fault::FailRead(source.reads() + number));
        let before = source.reads();
        let result = read_all(&image, largest.inode);
        if source.reads() - before <= number {
            assert!(number > 0, "nothing was read");
            assert_eq!(result.unwrap(), expected);
            break;
        }
        let e = result.unwrap_err();
        assert!(e.to_string().contains("injected"), "{e}");
        assert_eq!(read_all(&image, largest.inode).unwrap(), expected);
    }
}

#[test]
fn a_damaged_block_spoils_only_its_files() {
    let image_bytes = bytes("basic-zstd-small-blocks");
    let good = from_bytes(&image_bytes).unwrap();
    let expected = show(&good).unwrap();
    let victim = good.container().blocks().nth(1).unwrap().clone();
    let mut damaged = image_bytes;
    damaged[victim.payload_offset as usize + 7] ^= 1;
    let image = from_bytes(&damaged).unwrap();
    let (mut bad, mut fine) = (0, 0);
    for item in image.walk() {
        let item = item.unwrap();
        if expected[&item.path].data.is_empty() {
            continue;
        }
        match read_all(&image, item.inode) {
            Ok(data) => {
                assert_eq!(data, expected[&item.path].data);
                fine += 1;
            }
            Err(e) => {
                let place = format!(
                    "section {} at offset {}",
                    victim.position, victim.header_offset
                );
                assert!(e.to_string().contains(&place), "{e}");
                assert!(e.to_string().contains("checksum"), "{e}");
                bad += 1;
            }
        }
    }
    assert!(bad > 0 && fine > 0, "{bad} bad, {fine} fine");
}

#[test]
fn an_image_inside_a_file_is_found() {
    let one = bytes("one");
    let mut file = b"#!/bin/sh\nexit 0\n".to_vec();
    let start = file.len() as u64;
    file.extend(&one);
    file.extend(b"trailing bytes");
    let open = |offset, image_size| {
        let options = OpenOptions {
            offset,
            image_size,
            ..OpenOptions::default()
        };
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
        let summary = image.verify(VerifyMode::Integrity, 2, &mut |_| {}).unwrap();
        assert!(summary.is_ok());
    }
    for offset in [ImageOffset::At(0), ImageOffset::At(1 << 40)] {
        let e = open(offset, Some(one.len() as u64)).unwrap_err();
        assert!(matches!(e, Error::NotAnImage(_)), "{e}");
    }
}
