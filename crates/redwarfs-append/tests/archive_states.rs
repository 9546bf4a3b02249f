//! Archives in unusual states: nights with other options, empty and deleted trees, and files that end too early.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::support::{
    Files, append, append_tree, archived, archived_in, build, build_tree, build_with, changed,
    check, medium, nights, open, options, punched, read, rebuilt, rich_options, told, tree_of,
};
use redwarfs_append::{
    Archiving, Base, BaseOptions, Compaction, Error, Punching, TableChange, Trust, change,
};
use redwarfs_format::frozen::FrozenBytes;
use redwarfs_format::metadata::{FileType, Timestamp};
use redwarfs_format::section::{Section, SectionType};
use redwarfs_format::{GenerationNo, InodeNo};
use redwarfs_io::{MemorySource, Source};
use redwarfs_reader::{CacheGroup, Image, ImageOffset, OpenOptions};
use redwarfs_rewrite::merge::MergeOptions;
use redwarfs_testkit::tree::Random;
use redwarfs_writer::{Builder, MemoryNode, MemoryTree, SilentProgress, TimeResolution};

fn delete(image: &[u8], numbers: &[u32]) -> Vec<u8> {
    let delete = |number: &u32| TableChange::Delete(GenerationNo(*number));
    changed(image, &numbers.iter().map(delete).collect::<Vec<_>>())
}

/// A night whose root and files have attributes of its own.
fn night_of(number: u32) -> MemoryTree {
    let mut random = Random::new(u64::from(number));
    let files: Files = (0..3)
        .map(|n| (format!("d/f{n}"), random.text(400)))
        .collect();
    let mut tree = tree_of(&files, 5);
    let seconds = i64::from(number) * 10;
    let at = |sec| Timestamp {
        sec,
        nsec: 500_000_000,
    };
    for path in ["", "d", "d/f1"] {
        let mut node = match path {
            "d/f1" => MemoryNode::file(random.text(300)),
            _ => MemoryNode::new(FileType::Directory),
        };
        let meta = &mut node.meta;
        meta.permissions = [0o700, 0o750, 0o2755, 0o1777][number as usize % 4];
        (meta.uid, meta.gid) = (number, number + 1);
        (meta.mtime, meta.atime, meta.ctime) = (at(seconds), at(seconds + 1), at(seconds + 2));
        meta.extended.set_birth(at(seconds - 3));
        if number.is_multiple_of(2) {
            meta.extended.set(*b"user.night", number.to_string());
            meta.extended.set_flags(0x10);
        }
        tree.insert(path, node);
    }
    tree
}

#[test]
fn nights_with_other_options_stay_as_they_were() {
    let mut image = Vec::new();
    let mut model = BTreeMap::new();
    for number in 1..=10_u32 {
        // Two nights of each kind.
        let mut options = rich_options(1);
        match (number - 1) / 2 {
            0 => options.keep_birth_times = false,
            1 => {}
            2 => options.keep_all_times = false,
            3 => options.time_resolution = TimeResolution::from_nanos(1_000_000).unwrap(),
            _ => options.create_timestamp = None,
        }
        let tree = night_of(number);
        let built = build_tree(&tree, &options);
        model.insert(number, told(&open(&built, None)));
        image = match number {
            1 => built,
            _ => append_tree(&image, &tree, &format!("n{number}"), &options),
        };
    }
    let (archive, done) = rebuilt(&image, Archiving::AllBut(1), 1);
    assert_eq!((done.archived, archived_in(&archive).len()), (9, 9));
    let table = open(&archive, None).snapshots().unwrap();
    let mut places: Vec<u64> = table.snapshots.iter().map(|one| one.index).collect();
    places.dedup();
    // Those of a kind are together, and the newest one is alone.
    assert_eq!(places.len(), 6);
    let mut copy = Vec::new();
    let plan = Compaction::of(&open(&archive, None)).unwrap();
    plan.write(&mut copy, &AtomicBool::new(false)).unwrap();
    let apart = rebuilt(&archive, Archiving::AllBut(100), 1).0;
    assert!(archived_in(&apart).is_empty());
    let again = rebuilt(&apart, Archiving::AllBut(1), 1).0;
    for image in [&archive, &copy, &apart, &again] {
        check(image);
        for (number, expected) in &model {
            let snapshot = open(image, Some(&number.to_string()));
            assert_eq!(told(&snapshot), *expected, "{number}");
        }
    }
}

#[test]
fn the_root_of_each_night_and_empty_trees_come_back() {
    let options = rich_options(1);
    let trees = [
        night_of(1),
        MemoryTree::new(),
        night_of(2),
        night_of(3),
        night_of(4),
    ];
    let mut image = build_tree(&trees[0], &options);
    let mut model = vec![told(&open(&image, None))];
    for (number, tree) in (2..).zip(&trees[1..]) {
        image = append_tree(&image, tree, &format!("n{number}"), &options);
        model.push(told(&open(&build_tree(tree, &options), None)));
    }
    let image = archived(&image, 1);
    check(&image);
    let modes: Vec<u32> = (1..=5)
        .map(|number| {
            let snapshot = open(&image, Some(&number.to_string()));
            assert_eq!(told(&snapshot), model[number - 1], "{number}");
            snapshot.stat(InodeNo::ROOT).unwrap().mode
        })
        .collect();
    assert!(modes[0] != modes[2] && modes[2] != modes[3], "{modes:?}");
}

/// The offset of the end of the archive with its trailers.
fn end_of_archive(image: &[u8]) -> usize {
    let table = open(image, None).snapshots().unwrap();
    let archive = table.snapshots.first().unwrap();
    let next = table.snapshots.iter().find(|one| !one.archived).unwrap();
    let end = archive.end.unwrap() as usize;
    // The blocks of a rebuilt copy are in front. Behind the archive comes its table, and then the next schema.
    let newest = open(image, Some(&next.number.to_string()));
    let schema = |section: &&Section| section.ty == SectionType::METADATA_V2_SCHEMA;
    let next = newest.container().sections.iter().find(schema).unwrap();
    assert!(next.header_offset as usize > end);
    next.header_offset as usize
}

#[test]
fn an_archive_at_the_end_of_a_file_is_not_taken_for_a_tree() {
    let (image, states) = nights(21, 5);
    let image = archived(&image, 1);
    let end = end_of_archive(&image);
    let metadata = open(&image, None);
    let metadata = metadata
        .container()
        .only_section_of_type(SectionType::METADATA_V2);
    let metadata = metadata.unwrap().payload_offset as usize;
    // Nothing behind it, a part of the next generation, and one whose metadata and index are damaged.
    let cut = image[..end].to_vec();
    let short = image[..metadata + 5].to_vec();
    let mut damaged = image.clone();
    damaged[metadata..metadata + 4].fill(0xff);
    let last = damaged.len() - 8;
    damaged[last..].fill(0);
    for (bytes, is_whole) in [(&cut, true), (&short, false), (&damaged, false)] {
        let opened = open(bytes, None);
        assert!(opened.is_archived());
        assert!(read(&opened) == states[3]);
        let table = opened.snapshots().unwrap();
        assert_eq!(table.present().count(), 4);
        for (number, state) in (1..).zip(&states[..4]) {
            assert!(read(&open(bytes, Some(&format!("{number}")))) == *state);
        }
        let time = Timestamp {
            sec: 3_000,
            nsec: 0,
        };
        let source = Arc::new(MemorySource::new(bytes.clone()));
        let refused = Base::open(source, BaseOptions::new("next", time)).unwrap_err();
        assert!(matches!(refused, Error::OnlyArchive), "{refused}");
        let (file, changing) = medium(bytes);
        let rename = TableChange::Rename(GenerationNo(2), "other".into());
        let refused = change(&changing, ImageOffset::Auto, &[rename]).unwrap_err();
        assert!(matches!(refused, Error::OnlyArchive), "{refused}");
        assert!(std::fs::read(file.path()).unwrap() == *bytes);
        if !is_whole {
            continue;
        }
        let plan = Compaction::of(&opened).unwrap();
        let refused = plan.write(&mut Vec::new(), &AtomicBool::new(false));
        assert!(matches!(refused, Err(Error::OnlyArchive)));
        // With all its data anew, it can be continued.
        let healed = rebuilt(bytes, Archiving::AsBefore, 1).0;
        assert_eq!(archived_in(&healed), [1, 2, 3]);
        assert!(read(&open(&healed, None)) == states[3]);
        let next = append(&healed, &states[4], "next", &options(1));
        check(&next);
        assert!(read(&open(&next, None)) == states[4]);
        assert!(read(&open(&next, Some("2"))) == states[1]);
    }
}

#[test]
fn deleted_snapshots_of_an_archive_are_no_source_of_contents() {
    let mut random = Random::new(17);
    let with = |name: &str, bytes: &[u8]| Files::from([(name.to_owned(), bytes.to_vec())]);
    let data: Vec<Vec<u8>> = (0..4).map(|_| random.bytes(200_000)).collect();
    let mut image = build(&with("first", &data[0]));
    for (number, bytes) in (2..).zip(&data[1..]) {
        image = append(
            &image,
            &with("later", bytes),
            &format!("n{number}"),
            &options(1),
        );
    }
    let image = delete(&archived(&image, 1), &[2]);
    let mut copy = Vec::new();
    let plan = Compaction::of(&open(&image, None)).unwrap();
    plan.write(&mut copy, &AtomicBool::new(false)).unwrap();
    let punched = punched(&image).map(|(punched, _)| punched);
    for image in [copy].into_iter().chain(punched) {
        check(&image);
        // Of the third one nothing is stored again, of the second one, whose data is gone, all.
        for (number, is_new) in [(2, false), (1, true)] {
            let next = with("again", &data[number]);
            let made = append(&image, &next, "next", &options(1));
            check(&made);
            assert!(read(&open(&made, None)) == next);
            assert_eq!(made.len() - image.len() > 60_000, is_new, "{number}");
        }
    }
}

#[test]
fn a_deleted_archive_goes_as_a_whole() {
    let (image, states) = nights(23, 5);
    let image = archived(&image, 2);
    let sum = |image: &[u8]| {
        let table = open(image, None).snapshots().unwrap();
        table.present().map(|one| one.added).sum::<u64>()
    };
    let all = sum(&image);
    // What the archive has added stays known as long as one of it is left.
    let image = delete(&image, &[1]);
    assert_eq!(sum(&image), all);
    let image = delete(&image, &[3]);
    assert_eq!(sum(&image), all);
    let mut copy = Vec::new();
    let plan = Compaction::of(&open(&image, None)).unwrap();
    plan.write(&mut copy, &AtomicBool::new(false)).unwrap();
    assert!(read(&open(&copy, Some("2"))) == states[1]);
    assert_eq!(sum(&copy), all);
    let image = delete(&image, &[2]);
    let Some((left, done)) = punched(&image) else {
        return;
    };
    assert_eq!(done.snapshots, 3);
    check(&left);
    assert!(read(&open(&left, Some("4"))) == states[3]);
    let next = append(&left, &states[0], "next", &options(1));
    check(&next);
    assert!(read(&open(&next, None)) == states[0]);
    assert!(archived(&next, 1).len() < next.len() * 2);
}

/// Counts how often a place is read.
#[derive(Debug)]
struct Counting {
    bytes: MemorySource,
    place: u64,
    reads: AtomicU64,
}

impl Source for Counting {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        if offset == self.place && buf.len() > 8 {
            self.reads.fetch_add(1, Ordering::Relaxed);
        }
        self.bytes.read_exact_at(offset, buf)
    }
}

#[test]
fn the_metadata_of_an_archive_is_decoded_once() {
    let (image, states) = nights(25, 12);
    let image = archived(&image, 1);
    let first = open(&image, Some("1"));
    let metadata = first
        .container()
        .only_section_of_type(SectionType::METADATA_V2);
    let place = metadata.unwrap().payload_offset;
    let source = Arc::new(Counting {
        bytes: MemorySource::new(image.clone()),
        place,
        reads: AtomicU64::new(0),
    });
    let reads = || source.reads.swap(0, Ordering::Relaxed);
    let newest = Image::from_source(source.clone(), &OpenOptions::default()).unwrap();
    assert_eq!(reads(), 0);
    let plan = Compaction::of(&newest).unwrap();
    assert_eq!(reads(), 1);
    // A rebuild takes what the plan has decoded.
    let mut merge = MergeOptions::level(1);
    merge.version_history = false;
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    let made = plan.rebuild(
        &merge,
        Archiving::AsBefore,
        &mut io::sink(),
        &progress,
        &stop,
    );
    assert_eq!((made.unwrap().archived, reads()), (11, 0));
    drop(plan);
    Punching::of(&newest).unwrap();
    assert_eq!(reads(), 1);
    let time = Timestamp {
        sec: 3_000,
        nsec: 0,
    };
    let mut options = BaseOptions::new("next", time);
    options.trust = Trust::Nothing;
    let base = Base::open(source.clone(), options).unwrap();
    assert_eq!(reads(), 1);
    let mut out = image.clone();
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    let summary = Builder::new(crate::support::options(1))
        .append(&base, &tree_of(&states[2], 5), &mut out, &progress, &stop)
        .unwrap();
    assert_eq!((summary.block_bytes, reads()), (0, 0));
    // As in a mount: while one is open, the others share what it holds. Afterwards it is free.
    let table = newest.snapshots().unwrap();
    let file = newest.file();
    for _ in 0..2 {
        let opened: Vec<Image> = table.snapshots[..11]
            .iter()
            .map(|one| file.open_snapshot(one).unwrap())
            .collect();
        assert!(
            opened
                .iter()
                .zip(&states)
                .all(|(image, state)| read(image) == *state)
        );
        assert_eq!(reads(), 1);
    }
    // Another group knows nothing of it.
    let mut options = OpenOptions::default();
    options.cache_group = Some(CacheGroup::new(&options.cache));
    let open = |number: usize| {
        Image::from_snapshot(source.clone(), 0, &table.snapshots[number], &options).unwrap()
    };
    let (first, second) = (open(0), open(1));
    assert!(read(&first) == states[0] && read(&second) == states[1]);
    assert_eq!(reads(), 1);
}

#[test]
fn all_metadata_of_a_snapshot_is_in_memory_and_read_once() {
    let mut random = Random::new(28);
    let mut name = || {
        let bytes = random.bytes(40);
        let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
        digits.collect::<String>()
    };
    let mut files: Files = (0..9_000)
        .map(|_| (format!("d/{}", name()), Vec::new()))
        .collect();
    files.insert("data".into(), b"something".to_vec());
    let mut plain = options(1);
    plain.metadata_compression = "null".parse().unwrap();
    plain.metadata_alternative = None;
    let image = build_with(&files, &plain);
    let image = append(&image, &Files::new(), "empty", &options(1));
    let first = open(&image, Some("1"));
    let metadata = first
        .container()
        .only_section_of_type(SectionType::METADATA_V2)
        .unwrap();
    assert!(metadata.length > 256 << 10);
    let source = Arc::new(Counting {
        bytes: MemorySource::new(image),
        place: metadata.payload_offset,
        reads: AtomicU64::new(0),
    });
    let mut lazy = OpenOptions::default();
    lazy.lazy_metadata = true;
    let newest = Image::from_source(source.clone(), &lazy).unwrap();
    let table = newest.snapshots().unwrap();
    let opened = newest.file().open_snapshot(&table.snapshots[0]).unwrap();
    assert_eq!(source.reads.load(Ordering::Relaxed), 1);
    assert!(matches!(opened.metadata().bytes(), FrozenBytes::Whole(_)));
    assert_eq!(read(&opened), files);
    assert_eq!(source.reads.load(Ordering::Relaxed), 1);
}
