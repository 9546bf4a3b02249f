//! Hints in images: whatever they say, the image opens and reads as without them.

use std::sync::Arc;

use redwarfs_format::BlockNo;
use redwarfs_format::hints::{HintKind, HintTable, HintedBlock, Hints};
use redwarfs_format::section::{
    Container, GenerationId, Opening, Prelude, SectionHeader, SectionType,
};
use redwarfs_io::MemorySource;
use redwarfs_reader::check::DeclaredImage;
use redwarfs_reader::{CacheGroup, CacheOptions, CheckOptions, Error, Image, OpenOptions, Preload};
use redwarfs_testkit::mutate::Rng;

/// An image of several blocks.
fn golden() -> Vec<u8> {
    let path = "../../tests/fixtures/images/basic-zstd-small-blocks.dwarfs";
    std::fs::read(path).unwrap()
}

fn open(bytes: Vec<u8>) -> Image {
    let source = Arc::new(MemorySource::new(bytes));
    Image::from_source(source, &OpenOptions::default()).unwrap()
}

fn generation() -> GenerationId {
    let image = open(golden());
    let id = image.generation_id().unwrap();
    // It is computed from what was read at opening.
    assert_eq!(image.generation().unwrap(), Some(id));
    id
}

/// The image with HINTS sections.
fn with(sections: &[(Prelude, Vec<u8>)]) -> Vec<u8> {
    let mut bytes = golden();
    for (prelude, body) in sections {
        let size = bytes.len() as u64;
        let read = |at: u64, out: &mut [u8]| {
            let at = at as usize;
            out.copy_from_slice(
                bytes
                    .get(at..at + out.len())
                    .ok_or(std::io::ErrorKind::UnexpectedEof)?,
            );
            Ok(())
        };
        let container = Container::open(&read, size, 0, None).unwrap();
        let opening = Opening::of(&container).unwrap();
        let number = container.next_number();
        let section = opening.encode_trailer(size, number, SectionType::HINTS, prelude, body);
        bytes.extend(section);
    }
    bytes
}

fn table(kind: HintKind, blocks: &[(u32, u32)]) -> Vec<u8> {
    let blocks = blocks.iter().map(|&(block, value)| HintedBlock {
        block: BlockNo(block),
        value,
    });
    HintTable {
        kind,
        blocks: blocks.collect(),
    }
    .encode()
}

/// Number of blocks that are loaded.
fn loaded(image: &Image, given: Option<Hints>) -> usize {
    let handle = image.preload(Preload::Hints(given.map(Arc::new))).unwrap();
    let summary = handle.wait();
    assert_eq!((summary.loaded, summary.failed), (summary.wanted, 0));
    summary.loaded
}

fn findings(image: &Image) -> Vec<String> {
    let list = image.list_sections().unwrap();
    let declared = DeclaredImage::default();
    let report = image.check(list, declared, &CheckOptions::default(), &|_| {});
    let findings = report.unwrap().findings;
    findings.iter().map(ToString::to_string).collect()
}

#[test]
fn hinted_blocks_are_loaded() {
    let prelude = HintTable::prelude(generation());
    let start = |blocks: &[(u32, u32)]| (prelude, table(HintKind::Start, blocks));
    let keep = |blocks: &[(u32, u32)]| (prelude, table(HintKind::Keep, blocks));
    let image = open(golden());
    assert!(!image.has_hints() && image.stored_hints().next().is_none());
    assert_eq!(loaded(&image, None), 0);

    let image = open(with(&[start(&[(2, 0), (0, 5), (2, 9)])]));
    assert!(image.has_hints());
    assert_eq!(loaded(&image, None), 2);
    assert_eq!(image.cache_stats().blocks, 2);
    assert_eq!(findings(&image), Vec::<String>::new());
    // The last section of each kind counts.
    let image = open(with(&[
        start(&[(0, 0), (1, 0)]),
        keep(&[(2, 7), (3, 9)]),
        start(&[(3, 0)]),
    ]));
    assert_eq!(loaded(&image, None), 2);
    // Hints of a file come on top.
    let large = image
        .walk()
        .map(Result::unwrap)
        .max_by_key(|entry| image.stat(entry.inode).unwrap().size)
        .unwrap();
    let hints = Hints::parse(&large.path).unwrap();
    let blocks = hints.blocks(image.metadata()).unwrap().blocks;
    assert!(!blocks.is_empty());
    let more = blocks
        .iter()
        .filter(|b| !matches!(b.block.0, 2 | 3))
        .count();
    let image = open(with(&[start(&[(3, 0)]), keep(&[(2, 0)])]));
    assert_eq!(loaded(&image, Some(hints)), 2 + more);
}

#[test]
fn only_the_last_sections_are_looked_at() {
    let prelude = HintTable::prelude(generation());
    let section = |kind, block| (prelude, table(kind, &[(block, 0)]));
    let damaged = (prelude, vec![1]);
    let mut sections = vec![section(HintKind::Keep, 0)];
    sections.extend((0..5).map(|_| section(HintKind::Start, 1)));
    sections.extend([section(HintKind::Start, 2), damaged.clone()]);
    let kinds = |sections: &[(Prelude, Vec<u8>)]| {
        let tables = open(with(sections)).hints().unwrap();
        let found = tables.iter().map(|t| (t.kind, t.blocks[0].block.0));
        found.collect::<Vec<_>>()
    };
    let both = [(HintKind::Keep, 0), (HintKind::Start, 2)];
    assert_eq!(kinds(&sections), both);
    sections.push(damaged);
    assert_eq!(kinds(&sections), both[1..]);
    assert_eq!(open(with(&sections)).stored_hints().count(), 9);
}

#[test]
fn what_nobody_asks_for_leaves_room_for_others() {
    let body = table(HintKind::Start, &[(0, 0), (1, 0), (2, 0), (3, 0)]);
    let bytes = with(&[(HintTable::prelude(generation()), body)]);
    let mut options = OpenOptions::default();
    let mut cache = CacheOptions::default();
    cache.size = 9 * u64::from(open(golden()).metadata().block_size());
    options.cache_group = Some(CacheGroup::new(&cache));
    let source = Arc::new(MemorySource::new(bytes));
    let first = Image::from_source(source.clone(), &options).unwrap();
    assert_eq!(loaded(&first, None), 4);
    let second = Image::from_source(source, &options).unwrap();
    assert_eq!(loaded(&second, None), 2);
}

#[test]
fn no_more_than_fits_is_loaded() {
    let all: Vec<(u32, u32)> = (0..1000).map(|block| (block, 0)).collect();
    let body = table(HintKind::Start, &all);
    let bytes = with(&[(HintTable::prelude(generation()), body)]);
    let mut options = OpenOptions::default();
    let block = u64::from(open(golden()).metadata().block_size());
    options.cache.size = 3 * block;
    let image = Image::from_source(Arc::new(MemorySource::new(bytes)), &options).unwrap();
    let handle = image.preload(Preload::Hints(None)).unwrap();
    assert!((1..=3).contains(&handle.wait().wanted));
    assert!(image.cache_stats().used <= options.cache.size);
}

#[test]
fn bad_hints_change_nothing() {
    let (right, count) = (
        HintTable::prelude(generation()),
        open(golden()).container().block_count(),
    );
    let body = table(HintKind::Start, &[(1, 0), (0, 0)]);
    let mut many = body.clone();
    many[4..8].fill(0xff);
    let mut kind = body.clone();
    kind[0] = 77;
    let stale = HintTable::prelude(GenerationId([1; 16]));
    let later = Prelude { major: 9, ..right };
    let far = table(HintKind::Start, &[(count, 0), (u32::MAX, 1), (0, 2)]);
    let decode = "cannot decode section";
    for (prelude, body, blocks, finding) in [
        (right, Vec::new(), 0, Some(decode)),
        (right, many, 0, Some(decode)),
        (right, body[..10].to_vec(), 0, Some(decode)),
        (
            Prelude {
                tag: *b"NONE",
                ..right
            },
            body.clone(),
            0,
            Some(decode),
        ),
        (right, kind, 0, None),
        (stale, body.clone(), 0, None),
        (later, body.clone(), 0, None),
        (right, far, 1, Some("names 2 blocks that do not exist")),
    ] {
        let image = open(with(&[(prelude, body)]));
        assert_eq!(loaded(&image, None), blocks, "{prelude:?}");
        let found = findings(&image);
        match finding {
            Some(text) => assert!(found.len() == 1 && found[0].contains(text), "{found:?}"),
            None => assert!(found.is_empty(), "{found:?}"),
        }
    }
    // More than a reader takes.
    let image = open(with(&[(right, vec![0; 17 << 20])]));
    assert_eq!(loaded(&image, None), 0);
    assert!(matches!(
        image.stored_hints().next().expect("a section").table,
        Err(Error::Limit(_))
    ));
}

#[test]
fn random_damage_of_hints_changes_nothing() {
    let body = table(HintKind::Start, &[(2, 0), (0, 5), (1, 9)]);
    let bytes = with(&[(HintTable::prelude(generation()), body)]);
    let from = golden().len();
    let trees = |image: &Image| -> Vec<Vec<u8>> {
        let entries = image.walk();
        entries.map(|entry| entry.unwrap().path).collect()
    };
    let want = trees(&open(golden()));
    let mut rng = Rng::new(5);
    for round in 0..400 {
        let mut damaged = bytes.clone();
        for _ in 0..=round % 4 {
            let at = from + rng.below(bytes.len() - from - 8);
            damaged[at] ^= 1 << rng.below(8);
        }
        if round % 2 == 0 {
            // With a right checksum, so that the contents are looked at.
            let payload = damaged[from + SectionHeader::LEN..].to_vec();
            let number = open(golden()).container().next_number();
            let none = redwarfs_format::section::CompressionId::NONE;
            let header = SectionHeader::seal(number, SectionType::HINTS, none, &payload);
            damaged[from..from + SectionHeader::LEN].copy_from_slice(&header.encode());
        }
        let image = open(damaged);
        assert_eq!(trees(&image), want);
        assert!(loaded(&image, None) <= 3);
        findings(&image);
    }
}

#[test]
fn reads_are_recorded() {
    let image = open(golden());
    let again = image.clone();
    let recording = image.record_reads(std::time::Duration::from_secs(60));
    assert!(recording.is_empty());
    let files: Vec<_> = image
        .walk()
        .map(Result::unwrap)
        .filter(|entry| {
            image
                .stat(entry.inode)
                .is_ok_and(|stat| stat.mode & 0o170_000 == 0o100_000 && stat.size > 100)
        })
        .take(3)
        .collect();
    let mut buffer = vec![0; 50];
    again.read_at(files[1].inode, 10, &mut buffer).unwrap();
    let mut scratch = Vec::new();
    drop(image.read_pinned(files[0].inode, 0, 1 << 20, &mut scratch));
    drop(image.try_read_pinned(files[1].inode, 20, 10, &mut scratch));
    let hints = recording.hints().unwrap();
    assert_eq!(hints.generation, image.generation_id());
    let list: Vec<_> = hints
        .list
        .iter()
        .map(|hint| (hint.offset, hint.length))
        .collect();
    let size = image.stat(files[0].inode).unwrap().size;
    assert_eq!(list, [(10, 50), (0, size)]);
    // Files go by their first path, which can be another one of a hard link.
    for (hint, file) in hints.list.iter().zip([&files[1], &files[0]]) {
        assert_eq!(image.find_path(&hint.path).unwrap(), Some(file.inode));
    }
    // What comes later belongs to another recording.
    let newer = image.record_reads(std::time::Duration::from_secs(60));
    again.read_at(files[2].inode, 0, &mut buffer).unwrap();
    assert_eq!(recording.hints().unwrap(), hints);
    assert_eq!(newer.hints().unwrap().list.len(), 1);
}
