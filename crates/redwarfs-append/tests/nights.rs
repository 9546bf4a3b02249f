//! Many appends one after the other, as every night: each state comes back, and new data is found in old blocks.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use crate::support::{
    Files, append, build, build_with, changed, check, diff_of, night, open, options, read, tree_of,
};
use redwarfs_append::{Archiving, Base, BaseOptions, Compaction, TableChange};
use redwarfs_format::GenerationNo;
use redwarfs_format::metadata::Timestamp;
use redwarfs_format::section::{Opening, SectionType, SnapshotTable};
use redwarfs_io::MemorySource;
use redwarfs_reader::{Image, OpenOptions, SnapshotChoice};
use redwarfs_rewrite::merge::MergeOptions;
use redwarfs_testkit::tree::Random;
use redwarfs_writer::{Builder, Progress as _, SilentProgress};

#[test]
fn random_nights_come_back() {
    for seed in 0..12 {
        let mut random = Random::new(seed);
        let mut files: Files = (0..6_u32)
            .map(|n| (format!("f{n}"), random.text(500 << n)))
            .collect();
        let mut states = vec![files.clone()];
        let mut image = build(&files);
        for number in 0..6 {
            night(&mut random, &mut files, &states);
            let name = format!("n{number}");
            let next = append(&image, &files, &name, &options(1));
            assert!(
                next == append(&image, &files, &name, &options(3)),
                "{seed} {number}"
            );
            image = next;
            states.push(files.clone());
        }
        check(&image);
        for (number, files) in (1..).zip(&states) {
            let snapshot = number.to_string();
            assert!(
                read(&open(&image, Some(&snapshot))) == *files,
                "{seed} {number}"
            );
        }
    }
}

#[test]
fn data_of_any_generation_is_found() {
    let mut random = Random::new(3);
    let data: Vec<Vec<u8>> = (0..6).map(|_| random.bytes(20_000)).collect();
    let with = |list: &[(&str, Vec<u8>)]| -> Files {
        list.iter()
            .map(|(name, bytes)| (String::from(*name), bytes.clone()))
            .collect()
    };
    let image = build(&with(&[("a", data[0].clone()), ("b", data[1].clone())]));
    let second = with(&[("a", data[2].clone()), ("c", data[3].clone())]);
    let image = append(&image, &second, "second", &options(1));
    let third = with(&[("a", data[2].clone())]);
    let image = append(&image, &third, "third", &options(1));
    // A file that is back, parts of two others, a change in the middle of one that has moved, and new data.
    let mut moved = data[3].clone();
    moved.splice(9_000..9_100, data[5][..200].to_vec());
    let fourth = with(&[
        ("b", data[1].clone()),
        (
            "new",
            [&data[0][5_000..], &data[4][..1_000], &data[1][..8_000]].concat(),
        ),
        ("elsewhere", moved),
    ]);
    let last = append(&image, &fourth, "fourth", &options(2));
    let added = last.len() - image.len();
    assert!((1_200..3_000).contains(&added), "{added}");
    check(&last);
    assert!(read(&open(&last, None)) == fourth);
    let mut limited = options(1);
    limited.memory_limit = Some(64 << 20);
    let same = append(&image, &fourth, "fourth", &limited);
    assert_eq!(read(&open(&same, None)), fourth);
}

#[test]
fn files_of_older_generations_come_back_without_new_data() {
    let mut random = Random::new(6);
    let first: Files = [("a", 70_000), ("b", 300), ("c", 5_000)]
        .map(|(name, size)| (String::from(name), random.bytes(size)))
        .into();
    let mut image = build(&first);
    let second: Files = [(String::from("x"), random.bytes(100))].into();
    image = append(&image, &second, "second", &options(1));
    let third: Files = [(String::from("y"), random.bytes(100))].into();
    image = append(&image, &third, "third", &options(1));
    // Moved, and with its name.
    let mut fourth = first.clone();
    let moved = fourth.remove("a").unwrap();
    fourth.insert("elsewhere".into(), moved);
    fourth.insert("x".into(), second["x"].clone());
    let time = Timestamp {
        sec: 3_000,
        nsec: 0,
    };
    let source = Arc::new(MemorySource::new(image.clone()));
    let base = Base::open(source, BaseOptions::new("fourth", time)).unwrap();
    let mut out = image.clone();
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    let builder = Builder::new(options(1));
    let tree = tree_of(&fourth, 5);
    let summary = builder
        .append(&base, &tree, &mut out, &progress, &stop)
        .unwrap();
    assert_eq!(summary.block_bytes, 0);
    let found = progress.counters().files_in_base.load(Ordering::Relaxed);
    assert_eq!(found, 4);
    assert!(read(&open(&out, None)) == fourth);
    check(&out);
}

#[test]
fn a_renamed_directory_has_old_versions() {
    let mut random = Random::new(12);
    // More than what is searched of old blocks with this memory limit.
    let mut large = options(1);
    large.memory_limit = Some(64 << 20);
    let first: Files = (0..10)
        .map(|n| (format!("p-1.0/src/{n}/main"), random.bytes(1_500_000)))
        .collect();
    let mut image = build_with(&first, &large);
    let second: Files = (0..10)
        .map(|n| {
            let mut bytes = first[&format!("p-1.0/src/{n}/main")].clone();
            bytes.splice(700_000..700_010, *b"other");
            (format!("p-1.1/src/{n}/main"), bytes)
        })
        .collect();
    let old = image.len();
    image = append(&image, &second, "second", &large);
    let added = image.len() - old;
    assert!(added < 20_000, "{added}");
    assert!(read(&open(&image, None)) == second);
    check(&image);
}

#[test]
fn a_file_that_stayed_for_long_gets_fewer_references() {
    let mut random = Random::new(23);
    let old = random.bytes(20 << 10);
    // Every 800 bytes, 8 are new: what is between them is found again.
    let mut new = old.clone();
    for change in new.chunks_mut(800) {
        change[..8].copy_from_slice(&random.bytes(8));
    }
    let files = |bytes: &[u8], night: u8| {
        let other = vec![night; 100];
        Files::from([("file".into(), bytes.to_vec()), ("other".into(), other)])
    };
    let chunks = |nights: u8| {
        let mut image = build(&files(&old, 0));
        for night in 1..nights {
            image = append(
                &image,
                &files(&old, night),
                &format!("n{night}"),
                &options(1),
            );
        }
        image = append(&image, &files(&new, nights), "last", &options(1));
        assert_eq!(read(&open(&image, None)), files(&new, nights));
        check(&image);
        let image = open(&image, None);
        let view = image.metadata();
        let inode = image.find_path(b"file").unwrap().unwrap();
        let content = view.content_id(inode).unwrap();
        view.content_extents(content).unwrap().count()
    };
    let (soon, late) = (chunks(1), chunks(20));
    assert!(soon > 40, "{soon}");
    assert!(late < 5, "{late}");
}

#[test]
fn an_index_finds_data_in_blocks_that_are_not_searched() {
    let mut random = Random::new(13);
    let data = random.bytes(14_000_000);
    let with = |list: &[(&str, &[u8])]| -> Files {
        let files = list.iter();
        files
            .map(|(name, bytes)| (String::from(*name), bytes.to_vec()))
            .collect()
    };
    // More than what is searched of old blocks with this memory limit.
    let make = |index: bool| {
        let mut options = options(2);
        options.memory_limit = Some(96 << 20);
        options.block_size_bits = 20;
        options.match_index = index;
        options
    };
    let first = with(&[("first", &data[..12_000_000])]);
    let second = with(&[("second", &data[12_000_000..])]);
    // From the middle of blocks of both, in another order.
    let parts = [
        &data[13_000_000..13_700_000],
        &data[..600_000],
        &data[5_000_000..5_900_000],
    ];
    let third = with(&[("third", &parts.concat())]);
    let mut sizes = Vec::new();
    for index in [false, true] {
        let mut image = build_with(&first, &make(index));
        image = append(&image, &second, "second", &make(index));
        // It is found behind a night that has no index.
        image = append(&image, &with(&[("none", b"none")]), "none", &make(false));
        let last = append(&image, &third, "third", &make(index));
        assert!(last == append(&image, &third, "third", &make(index)));
        check(&last);
        assert!(read(&open(&last, None)) == third);
        sizes.push(last.len() - image.len());
        let trailers = open(&last, Some("2")).container().trailers.clone();
        let has = trailers
            .iter()
            .any(|section| section.ty == SectionType::MATCH);
        assert_eq!(has, index);
    }
    assert!(sizes[0] > 600_000 && sizes[1] < 30_000, "{sizes:?}");
}

#[test]
fn tables_that_lead_astray_are_ignored() {
    let files: Files = [(String::from("a"), vec![7; 5_000])].into();
    let mut image = build(&files);
    for number in 2..6 {
        image = append(&image, &files, &format!("n{number}"), &options(1));
    }
    let opened = open(&image, None);
    assert_eq!(opened.snapshots().unwrap().snapshots.len(), 5);
    let container = opened.container();
    let opening = Opening::of(container).unwrap();
    let generation = opened.generation().unwrap().unwrap();
    let last = container.trailers.last().unwrap();
    let at = last.header_offset;
    let good = opened.stored_payload(last).unwrap();
    let good = SnapshotTable::parse(&good, Some(generation)).unwrap();
    let previous = good.previous.unwrap();
    let with = |table: &SnapshotTable| {
        let (prelude, body) = (table.prelude(generation), table.encode());
        let mut bytes = image[..at as usize].to_vec();
        let (ty, number) = (SectionType::SNAPSHOTS, last.number);
        bytes.extend(opening.encode_trailer(at, number, ty, &prelude, &body));
        open(&bytes, None).snapshots().unwrap().snapshots.len()
    };
    assert_eq!(with(&good), 5);
    let size = image.len() as u64;
    let schema = container.sections[1].header_offset;
    for wrong in [at, at + 1, size, u64::MAX >> 16, previous + 1, schema, 1] {
        let mut table = good.clone();
        table.previous = Some(wrong);
        assert_eq!(with(&table), 1, "{wrong}");
    }
    // Numbers that are in both, and none at all.
    let mut table = good.clone();
    table.snapshots[0].number = GenerationNo(1);
    assert_eq!(with(&table), 1);
    table.snapshots.clear();
    assert_eq!(with(&table), 1);
    // A damaged one in the middle.
    let mut damaged = image.clone();
    damaged[previous as usize + 100] ^= 1;
    let damaged_image = open(&damaged, None);
    assert_eq!(damaged_image.snapshots().unwrap().snapshots.len(), 1);
    // Nothing is changed then: a new table would lose the snapshots.
    assert!(damaged_image.snapshot_tables().is_err());
    assert!(Compaction::of(&damaged_image).is_err());
}

#[test]
fn a_tree_under_the_name_of_another_one_is_refused() {
    let mut files: Files = [(String::from("a"), vec![7; 5_000])].into();
    let mut image = build(&files);
    for number in 2..4 {
        files.insert(format!("b{number}"), vec![number; 3000]);
        image = append(&image, &files, &format!("n{number}"), &options(1));
    }
    let opened = open(&image, None);
    let opening = Opening::of(opened.container()).unwrap();
    let generation = opened.generation().unwrap().unwrap();
    let (end, number) = (image.len() as u64, opened.container().next_number());
    let good = SnapshotTable {
        snapshots: opened.snapshots().unwrap().snapshots,
        previous: None,
    };
    let with = |table: &SnapshotTable| {
        let (prelude, body) = (table.prelude(generation), table.encode());
        let mut bytes = image.clone();
        let ty = SectionType::SNAPSHOTS;
        bytes.extend(opening.encode_trailer(end, number, ty, &prelude, &body));
        let source = Arc::new(MemorySource::new(bytes.clone()));
        let file = open(&bytes, None);
        let table = file.snapshots().unwrap();
        let by_name = |name: &str| {
            let mut options = OpenOptions::default();
            options.snapshot = Some(SnapshotChoice {
                text: name.into(),
                time: None,
            });
            Image::from_source(Arc::clone(&source) as _, &options).map(|image| read(&image).len())
        };
        let of_table = |at: usize| file.open_snapshot(&table.snapshots[at]).is_ok();
        (by_name("n2").ok(), of_table(1), of_table(2))
    };
    assert_eq!(with(&good), (Some(2), true, true));
    // The places of another one; its tree.
    for wrong in 0..3 {
        let mut table = good.clone();
        let other = table.snapshots[0].clone();
        let entry = &mut table.snapshots[1];
        match wrong {
            0 => (entry.index, entry.end) = (other.index, other.end),
            1 => entry.tree = other.tree,
            _ => entry.index = other.index,
        }
        assert_eq!(with(&table), (None, false, true), "{wrong}");
    }
}

#[test]
fn contents_of_kept_generations_are_built_anew() {
    let mut random = Random::new(8);
    let mut files: Files = (0..6_u32)
        .map(|n| (format!("f{n}"), random.text(3_000 << n)))
        .collect();
    let mut states = vec![files.clone()];
    let mut image = build(&files);
    for number in 0..5 {
        night(&mut random, &mut files, &states);
        image = append(&image, &files, &format!("n{number}"), &options(1));
        states.push(files.clone());
    }
    let delete = [2, 4].map(|number| TableChange::Delete(GenerationNo(number)));
    let image = changed(&image, &delete);
    let plan = Compaction::of(&open(&image, None)).unwrap();
    let rebuild = |workers| {
        let mut options = MergeOptions::level(4);
        options.metadata.workers = workers;
        options.version_history = false;
        let mut out = Vec::new();
        let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
        let done = plan
            .rebuild(&options, Archiving::AsBefore, &mut out, &progress, &stop)
            .unwrap();
        assert_eq!((done.snapshots, done.new_size), (4, out.len() as u64));
        out
    };
    let copy = rebuild(1);
    assert!(copy == rebuild(3));
    check(&copy);
    for number in [1_usize, 3, 5, 6] {
        let snapshot = open(&copy, Some(&number.to_string()));
        assert!(read(&snapshot) == states[number - 1], "{number}");
        let old = open(&image, Some(&number.to_string()));
        assert_eq!(
            snapshot.metadata().create_timestamp(),
            old.metadata().create_timestamp()
        );
        assert_eq!(snapshot.history().unwrap(), old.history().unwrap());
        assert!(diff_of(&old, &snapshot).is_empty());
    }
    let table = open(&copy, None).snapshots().unwrap();
    let names: Vec<&str> = table.present().map(|s| s.name.as_str()).collect();
    assert_eq!(names.len(), 4);
    assert_eq!(&names[1..], ["n1", "n3", "n4"]);
    // It is an image of its own, which goes on.
    let next = append(&copy, &states[1], "next", &options(1));
    check(&next);
    assert!(read(&open(&next, None)) == states[1]);
    let stop = AtomicBool::new(true);
    let options = MergeOptions::level(4);
    let progress = SilentProgress::default();
    assert!(
        plan.rebuild(
            &options,
            Archiving::AsBefore,
            &mut Vec::new(),
            &progress,
            &stop
        )
        .is_err()
    );
}
