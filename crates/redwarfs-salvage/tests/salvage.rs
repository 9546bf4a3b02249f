//! Damaged images of which everything is saved that is there, and nothing else.
#![allow(clippy::unwrap_used)] // a test fails by panicking

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_format::section::{Container, SectionType};
use redwarfs_io::{Fault, FaultSource, MemorySource, Source as _};
use redwarfs_reader::OpenOptions;
use redwarfs_salvage::{DamagedFile, Error, Missing, Salvage};
use redwarfs_testkit::mutate::Rng;
use redwarfs_writer::{
    BuildOptions, Builder, MemoryExtent, MemoryNode, MemoryTree, SilentProgress,
};

type Files = BTreeMap<String, Vec<u8>>;

fn go() -> AtomicBool {
    AtomicBool::new(false)
}

/// Files of many sizes, of random bytes.
fn files(seed: u64) -> Files {
    let mut rng = Rng::new(seed);
    let mut out = Files::new();
    for number in 0..40 {
        let len = rng.below(30_000) + 1;
        let bytes = (0..len).map(|_| rng.bits() as u8).collect();
        out.insert(format!("dir{}/file{number}", number % 4), bytes);
    }
    out.insert("dir0/empty".into(), Vec::new());
    out
}

fn build(files: &Files) -> Vec<u8> {
    let mut tree = MemoryTree::new();
    for number in 0..4 {
        let node = MemoryNode::new(redwarfs_writer::FileType::Directory);
        tree.insert(format!("dir{number}"), node);
    }
    for (name, bytes) in files {
        tree.insert(name.as_bytes(), MemoryNode::file(bytes.clone()));
    }
    let mut options = BuildOptions::level(1);
    options.block_size_bits = 15;
    let mut image = Vec::new();
    Builder::new(options)
        .build(&tree, &mut image, &SilentProgress::default(), &go())
        .unwrap();
    image
}

fn container(image: &[u8]) -> Container {
    let source = MemorySource::new(image.to_vec());
    let read = |at, out: &mut [u8]| source.read_exact_at(at, out);
    Container::open(&read, image.len() as u64, 0, None).unwrap()
}

fn salvage(bytes: &[u8]) -> Result<Salvage, Error> {
    let source = Arc::new(MemorySource::new(bytes.to_vec()));
    Salvage::of(source, &OpenOptions::default(), &|_| {}, &go())
}

fn damaged(found: &Salvage) -> BTreeMap<String, DamagedFile> {
    let mut out = BTreeMap::new();
    found
        .for_each_damaged(&mut |file| {
            out.insert(String::from_utf8(file.path.clone()).unwrap(), file);
            Ok(())
        })
        .unwrap();
    out
}

/// Compares everything that is read with the source: whole files, parts, and the lists of what is lost. Returns the
/// number of whole files.
fn compare(found: &Salvage, files: &Files) -> usize {
    let image = found.image().unwrap();
    let lost = damaged(found);
    let mut whole = 0;
    for (name, expected) in files {
        let inode = image.find_path(name.as_bytes()).unwrap().unwrap();
        let mut bytes = vec![0; expected.len()];
        let read = image.read_at(inode, 0, &mut bytes);
        match lost.get(name) {
            None => {
                assert_eq!(read.unwrap(), expected.len(), "{name}");
                assert!(bytes == *expected, "{name} is not what it was");
                whole += 1;
            }
            Some(file) => {
                assert!(read.is_err(), "{name} is passed off as good");
                assert_eq!(file.size, expected.len() as u64);
                // What is not missing can be read, and is right.
                let mut at = 0;
                let end = Missing {
                    offset: file.size,
                    length: 0,
                };
                for range in file.missing.iter().copied().chain([end]) {
                    let (from, to) = (at as usize, range.offset as usize);
                    let mut part = vec![0; to - from];
                    let n = image.read_at(inode, at, &mut part).unwrap();
                    assert_eq!(n, part.len(), "{name} at {at}");
                    assert!(part == expected[from..to], "{name} at {at}");
                    at = range.offset + range.length;
                }
                assert_eq!(at, file.size);
            }
        }
    }
    // The parts on disk say the same.
    let dir = tempfile::tempdir().unwrap();
    let parts = dir.path().join("parts");
    let written = found.write_parts(&parts, &mut |_| Ok(())).unwrap();
    let mut partial = 0;
    for (name, file) in &lost {
        let expected = &files[name];
        if file.lost() == file.size {
            assert!(!parts.join(name).exists());
            continue;
        }
        partial += 1;
        let part = fs::read(parts.join(name)).unwrap();
        let map = fs::read_to_string(parts.join(format!("{name}.missing"))).unwrap();
        let mut wanted = expected.clone();
        for line in map.lines() {
            let (offset, length) = line.split_once(' ').unwrap();
            let offset: usize = offset.parse().unwrap();
            let length: usize = length.parse().unwrap();
            wanted[offset..offset + length].fill(0);
        }
        assert!(part == wanted, "{name}");
    }
    assert_eq!((written.files, written.unnamed), (partial, 0));
    assert_eq!(written.gone + partial, lost.len() as u64);
    whole
}

#[test]
fn intact_images_are_whole() {
    let files = files(1);
    let image = build(&files);
    let found = salvage(&image).unwrap();
    assert!(found.is_indexed() && found.sections().iter().all(|s| s.intact));
    assert_eq!(compare(&found, &files), files.len());
    // Behind something else, and in front of it.
    let moved = [b"#!/bin/sh\n", &image[..], b"more"].concat();
    assert_eq!(compare(&salvage(&moved).unwrap(), &files), files.len());
}

#[test]
fn every_tenth_block_is_bad() {
    let files = files(2);
    let image = build(&files);
    let container = container(&image);
    for what in [0, 1, 2] {
        let mut bytes = image.clone();
        for block in container.blocks().step_by(10) {
            let (at, len) = (block.header_offset as usize, 64 + block.length as usize);
            match what {
                // A bit of the payload, the header, or all of it.
                0 => bytes[at + len / 2] ^= 1,
                1 => bytes[at..at + 64].fill(0),
                _ => bytes[at..at + len].fill(0),
            }
        }
        for index in [true, false] {
            if !index {
                let index = container.sections.last().unwrap().header_offset as usize;
                bytes[index..].fill(0xff);
            }
            let found = salvage(&bytes).unwrap();
            assert_eq!(found.is_indexed(), index);
            let lost = found.lost_blocks().unwrap();
            assert_eq!(lost.len(), container.blocks().step_by(10).count());
            let whole = compare(&found, &files);
            assert!(whole > 5 && whole < files.len(), "{whole}");
        }
    }
}

#[test]
fn the_start_is_lost() {
    let files = files(3);
    let image = build(&files);
    for lost in [1, 63, 64, 1000, 100_000] {
        for index in [true, false] {
            let mut bytes = image[lost..].to_vec();
            if !index {
                let len = bytes.len();
                bytes.truncate(len - 20);
            }
            let found = salvage(&bytes).unwrap();
            assert_eq!(found.is_indexed(), index);
            assert!(!found.lost_blocks().unwrap().is_empty());
            assert!(compare(&found, &files) > 5);
        }
    }
}

#[test]
fn the_last_tenth_is_lost() {
    let files = files(4);
    let image = build(&files);
    let cut = &image[..image.len() * 9 / 10];
    let found = salvage(cut).unwrap();
    assert!(found.image().is_none() && found.lost_blocks().is_none());
    let dir = tempfile::tempdir().unwrap();
    let blocks = dir.path().join("blocks");
    let written = found
        .write_blocks(&blocks, &mut |_, _| Ok(()), &go())
        .unwrap();
    // The contents of all blocks are those of the files, one after the other.
    let container = container(&image);
    let whole = container
        .blocks()
        .filter(|block| block.payload_offset + 64 < cut.len() as u64)
        .count() as u64;
    assert!(
        written.blocks + 1 >= whole && written.blocks > 10,
        "{written:?}"
    );
    let mut total = 0;
    for entry in fs::read_dir(&blocks).unwrap() {
        let bytes = fs::read(entry.unwrap().path()).unwrap();
        total += bytes.len() as u64;
        let sample = &bytes[bytes.len() / 2..][..16];
        assert!(
            files
                .values()
                .any(|file| file.windows(16).any(|w| w == sample))
                || bytes.len() < 64
        );
    }
    assert_eq!(total, written.bytes);
}

#[test]
fn metadata_is_damaged() {
    let files = files(5);
    let image = build(&files);
    let metadata = container(&image)
        .only_section_of_type(SectionType::METADATA_V2)
        .unwrap()
        .payload_offset as usize;
    let mut bytes = image.clone();
    bytes[metadata + 5] ^= 1;
    assert!(salvage(&bytes).unwrap().image().is_none());
    // An older image in front of it is another one, whose blocks are its own.
    let older = build(&self::files(6));
    let both = [&older[..], &bytes[..]].concat();
    let found = salvage(&both).unwrap();
    assert_eq!(found.newer_damaged().count(), 1);
    assert_eq!(compare(&found, &self::files(6)), files.len());
    // The newer one counts as soon as its metadata is intact, also without its index.
    let mut both = [&older[..], &image[..]].concat();
    let len = both.len();
    both.truncate(len - 30);
    let found = salvage(&both).unwrap();
    assert_eq!(compare(&found, &files), files.len());
    // Its lost first block is not that of the older one.
    both[older.len() + 80] ^= 1;
    let found = salvage(&both).unwrap();
    assert_eq!(found.lost_blocks().unwrap().len(), 1);
    assert!(compare(&found, &files) < files.len());
}

#[test]
fn unreadable_places_are_lost() {
    let files = files(7);
    let image = build(&files);
    let source = FaultSource::new(MemorySource::new(image.clone()));
    let start = image.len() as u64 / 3;
    source.add(Fault::FailRange(start..start + 5000));
    let source = Arc::new(source);
    let found = Salvage::of(source, &OpenOptions::default(), &|_| {}, &go()).unwrap();
    assert!(found.unreadable() > 0);
    let whole = compare(&found, &files);
    assert!(whole > 5 && whole < files.len());
}

#[test]
fn nothing_is_nothing() {
    for bytes in [&b""[..], b"DWARFS", &[0; 10_000], b"some text"] {
        assert!(matches!(salvage(bytes), Err(Error::Nothing)));
    }
    let stop = AtomicBool::new(true);
    let source = Arc::new(MemorySource::new(build(&files(8))));
    let stopped = Salvage::of(source, &OpenOptions::default(), &|_| {}, &stop);
    assert!(matches!(stopped, Err(Error::Interrupted)));
}

/// Bursts, flips, lost sectors, cuts at both ends and moved starts: whatever is returned is what was stored.
#[test]
fn random_damage() {
    let cases = std::env::var("REDWARFS_SALVAGE_CASES").map_or(60, |n| n.parse().unwrap());
    let files = files(9);
    let image = build(&files);
    let mut rng = Rng::new(10);
    let (mut trees, mut blocks) = (0, 0);
    for case in 0..cases {
        let mut bytes = image.clone();
        for _ in 0..=rng.below(4) {
            let len = bytes.len();
            match rng.below(6) {
                0 => {
                    let (at, n) = (rng.below(len), rng.below(len / 10) + 1);
                    bytes[at..(at + n).min(len)].fill(rng.bits() as u8);
                }
                1 => {
                    for _ in 0..rng.below(20) {
                        let at = rng.below(len);
                        bytes[at] ^= 1 << rng.below(8);
                    }
                }
                2 => {
                    for _ in 0..rng.below(5) {
                        let at = rng.below(len) / 512 * 512;
                        bytes[at..(at + 512).min(len)].fill(0);
                    }
                }
                3 => bytes.truncate(len - rng.below(len / 20 + 1)),
                4 => drop(bytes.drain(..rng.below(len / 20 + 1))),
                _ => {
                    let n = rng.below(5000);
                    bytes = [vec![0x20; n], bytes].concat();
                }
            }
        }
        let found = salvage(&bytes).unwrap_or_else(|e| panic!("{case}: {e}"));
        if found.image().is_some() {
            compare(&found, &files);
            trees += 1;
        } else {
            let dir = tempfile::tempdir().unwrap();
            let dir = dir.path().join("blocks");
            let written = found.write_blocks(&dir, &mut |_, _| Ok(()), &go()).unwrap();
            blocks += usize::from(written.blocks > 0);
        }
    }
    assert!(
        trees > cases / 4 && trees + blocks > cases * 9 / 10,
        "{trees} {blocks}"
    );
}

/// A name that leads elsewhere is not written.
/// Holes of any size are neither read nor written.
#[cfg(unix)]
#[test]
fn holes_of_damaged_files_stay_holes() {
    use std::os::unix::fs::MetadataExt as _;
    let mut rng = Rng::new(8);
    let mut data = || -> Vec<u8> { (0..60_000).map(|_| rng.bits() as u8).collect() };
    let (first, last) = (data(), data());
    let mut tree = MemoryTree::new();
    let hole = 1 << 42;
    // The second one is larger than most file systems allow.
    for (name, hole) in [("large", hole), ("larger", 1 << 60)] {
        let node = MemoryNode::sparse(vec![
            MemoryExtent::Data(first.clone()),
            MemoryExtent::Hole(hole),
            MemoryExtent::Data(last.clone()),
            MemoryExtent::Hole(hole),
        ]);
        tree.insert(name, node);
    }
    let mut options = BuildOptions::level(1);
    options.block_size_bits = 15;
    let mut image = Vec::new();
    Builder::new(options)
        .build(&tree, &mut image, &SilentProgress::default(), &go())
        .unwrap();
    for block in container(&image).blocks().step_by(2) {
        image[block.payload_offset as usize + 9] ^= 1;
    }
    let found = salvage(&image).unwrap();
    let lost = damaged(&found);
    assert_eq!(lost.len(), 2);
    let missing = &lost["large"].missing;
    assert!(!missing.is_empty() && missing.iter().all(|range| range.length < 60_000));
    let dir = tempfile::tempdir().unwrap();
    let parts = dir.path().join("parts");
    let written = found.write_parts(&parts, &mut |_| Ok(())).unwrap();
    assert_eq!(written.files + written.too_large, 2, "{written:?}");
    let path = parts.join("large");
    let size = 2 * (60_000 + hole);
    let facts = fs::metadata(&path).unwrap();
    assert_eq!(facts.len(), size);
    assert!(facts.blocks() * 512 < 1 << 20, "{} blocks", facts.blocks());
    let file = redwarfs_io::FileSource::open(&path).unwrap();
    for (start, mut expected) in [(0, first), (60_000 + hole, last)] {
        for range in missing.iter().filter(|range| range.offset >= start) {
            let from = (range.offset - start) as usize;
            if let Some(part) = expected.get_mut(from..from.saturating_add(range.length as usize)) {
                part.fill(0);
            }
        }
        let mut bytes = vec![0; 60_000];
        file.read_exact_at(start, &mut bytes).unwrap();
        assert!(bytes == expected, "{start}");
    }
}

#[test]
fn long_names_have_shorter_maps() {
    let mut rng = Rng::new(12);
    let mut files = Files::new();
    let names = ["a".repeat(255), "é".repeat(120), "b".repeat(248)];
    for name in &names {
        let bytes = (0..100_000).map(|_| rng.bits() as u8).collect();
        files.insert(name.clone(), bytes);
    }
    let mut image = build(&files);
    for block in container(&image).blocks().step_by(2) {
        image[block.payload_offset as usize + 9] ^= 1;
    }
    let dir = tempfile::tempdir().unwrap();
    let parts = dir.path().join("parts");
    let found = salvage(&image).unwrap();
    let written = found.write_parts(&parts, &mut |_| Ok(())).unwrap();
    assert_eq!((written.files, written.unnamed), (3, 0));
    let there: Vec<String> = fs::read_dir(&parts)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    assert_eq!(there.len(), 6);
    for name in &names {
        assert!(there.contains(name));
        let map = |other: &&String| {
            let start = other.strip_suffix(".missing");
            start.is_some_and(|start| name.starts_with(start))
        };
        assert_eq!(there.iter().filter(map).count(), 1);
    }
}

#[test]
fn no_part_is_written_outside() {
    let dir = tempfile::tempdir().unwrap();
    let existing = dir.path().join("parts");
    fs::create_dir(&existing).unwrap();
    let files = files(11);
    let mut image = build(&files);
    image[100] ^= 1;
    let found = salvage(&image).unwrap();
    let error = found.write_parts(&existing, &mut |_| Ok(())).unwrap_err();
    assert!(matches!(error, Error::Io(_)), "{error}");
    assert!(fs::read_dir(Path::new(&existing)).unwrap().next().is_none());
}
