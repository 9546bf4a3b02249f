//! Archives: many old trees in one generation, side by side. Each comes back as it was, whatever follows.

use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, Write};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};

use crate::support::{
    Files, append, append_tree, archived, archived_in, build, build_tree, changed, check, choice,
    medium, night, nights, open, options, punched, read, rebuilt, rebuilt_in, rich_options, told,
    tree_of,
};
use redwarfs_append::{
    Archiving, Base, BaseOptions, Compacted, Compaction, Error, TableChange, roll_back,
};
use redwarfs_format::metadata::{
    Chunk, Extent, FileType, FsOptions, Metadata, MetadataView, Timestamp, XattrPair, freeze,
};
use redwarfs_format::section::{Opening, Section, SectionType, Snapshot, SnapshotTable};
use redwarfs_format::{GenerationNo, InodeNo};
use redwarfs_io::{MemorySource, Source};
use redwarfs_reader::{Image, ImageOffset, OpenOptions};
use redwarfs_rewrite::merge::MergeOptions;
use redwarfs_rewrite::{RewriteOptions, rewrite};
use redwarfs_testkit::fuzz::tree_is_bounded;
use redwarfs_testkit::mutate::{self, Rng};
use redwarfs_testkit::tree::Random;
use redwarfs_writer::{
    Builder, MemoryExtent, MemoryNode, MemoryTree, Progress as _, SilentProgress,
};

/// Attributes of all kinds.
fn dressed(mut node: MemoryNode, random: &mut Random) -> MemoryNode {
    let time = i64::try_from(random.below(1000)).unwrap() - 100;
    let at = |sec| Timestamp { sec, nsec: 0 };
    let meta = &mut node.meta;
    (meta.uid, meta.gid) = (random.below(3) as u32 * 1000, random.below(3) as u32);
    (meta.atime, meta.ctime) = (at(time), at(time + 7));
    meta.extended.set_birth(at(time - 7));
    if random.below(2) == 0 {
        let length = [3, 3, 5_000][random.below(3) as usize];
        let name = format!("user.{}", random.below(3));
        meta.extended.set(name, random.text(length));
        meta.extended.set(*b"user.same", *b"value");
    }
    if random.below(3) == 0 {
        meta.extended.set_flags(0x10 << random.below(2));
    }
    node
}

/// Files, and entries of all types with all kinds of attributes.
fn rich(random: &mut Random, files: &Files) -> MemoryTree {
    let mut tree = tree_of(files, 5);
    for directory in 0..random.below(4) {
        let mut put = |name: &str, node: MemoryNode| {
            tree.insert(format!("d{directory}{name}"), node);
        };
        put("", dressed(MemoryNode::new(FileType::Directory), random));
        if random.below(3) == 0 {
            continue;
        }
        let target = format!("../f{}", random.below(3));
        put("/link", dressed(MemoryNode::symlink(target), random));
        put("/fifo", dressed(MemoryNode::new(FileType::Fifo), random));
        let mut device = MemoryNode::new(FileType::BlockDevice);
        device.meta.rdev = random.below(500);
        put("/device", dressed(device, random));
        let sparse = MemoryNode::sparse(vec![
            MemoryExtent::Data(random.bytes(4096)),
            MemoryExtent::Hole((4096 * (1 + random.below(3))) << (16 * random.below(2))),
            MemoryExtent::Data(random.text(10)),
        ]);
        put("/sparse", dressed(sparse, random));
        // The bytes of another file.
        if let Some(bytes) = files.values().next() {
            put("/same", dressed(MemoryNode::file(bytes.clone()), random));
        }
        let mut linked = dressed(MemoryNode::file(random.text(900)), random);
        linked.meta.nlink = 2;
        linked.meta.identity = (1, directory + 1);
        put("/one", linked.clone());
        put("/two", linked);
    }
    tree
}

#[test]
fn random_archives_come_back() {
    for seed in 0..6 {
        let mut random = Random::new(seed);
        let mut files: Files = (0..4_u32)
            .map(|n| (format!("f{n}"), random.text(500 << n)))
            .collect();
        let mut older = vec![files.clone()];
        let options = rich_options(1);
        let tree = rich(&mut random, &files);
        let mut image = build_tree(&tree, &options);
        // What a build of each tree tells, by number.
        let mut model = BTreeMap::from([(1_u32, told(&open(&image, None)))]);
        let mut next = 2;
        for round in 0..4 {
            for _ in 0..1 + random.below(3) {
                night(&mut random, &mut files, &older);
                older.push(files.clone());
                let tree = rich(&mut random, &files);
                let of_build = told(&open(&build_tree(&tree, &options), None));
                let name = format!("n{next}");
                let made = append_tree(&image, &tree, &name, &options);
                assert!(made == append_tree(&image, &tree, &name, &rich_options(3)));
                image = made;
                model.insert(next, of_build);
                next += 1;
            }
            if random.below(2) == 0 && model.len() > 2 {
                let numbers: Vec<u32> = model.keys().copied().collect();
                let number = numbers[random.below(numbers.len() as u64 - 1) as usize];
                image = changed(&image, &[TableChange::Delete(GenerationNo(number))]);
                model.remove(&number);
            }
            let newest = 1 + u32::try_from(random.below(3)).unwrap();
            let (made, done) = rebuilt(&image, Archiving::AllBut(newest), 1);
            assert!(
                made == rebuilt(&image, Archiving::AllBut(newest), 3).0,
                "{seed} {round}"
            );
            let archived = (model.len() as u32).saturating_sub(newest);
            assert_eq!(
                (done.snapshots, done.archived),
                (model.len() as u32, archived)
            );
            image = made;
            check(&image);
            let file = open(&image, None);
            assert_eq!(told(&file), model[&(next - 1)], "{seed} {round}");
            for (number, expected) in &model {
                let snapshot = open(&image, Some(&number.to_string()));
                let blocks = snapshot.container().block_count();
                snapshot.metadata().check(blocks, None).unwrap();
                assert_eq!(told(&snapshot), *expected, "{seed} {round} {number}");
                let entry = file.snapshots().unwrap();
                let entry = entry.number(GenerationNo(*number)).unwrap();
                assert_eq!(entry.inodes, snapshot.metadata().inode_count());
                assert_eq!(entry.size, snapshot.metadata().totals().size);
            }
        }
        // A copy without a rebuild has the same, and a rebuild can take them out again.
        let mut copy = Vec::new();
        let plan = Compaction::of(&open(&image, None)).unwrap();
        let done = plan.write(&mut copy, &AtomicBool::new(false)).unwrap();
        assert_eq!((done, done.new_size), (plan.result(), copy.len() as u64));
        assert_eq!(archived_in(&copy), archived_in(&image));
        let (as_before, done) = rebuilt(&image, Archiving::AsBefore, 1);
        assert_eq!(done.archived as usize, archived_in(&image).len());
        let (apart, done) = rebuilt(&image, Archiving::AllBut(u32::MAX), 1);
        assert_eq!((done.archived, archived_in(&apart).len()), (0, 0));
        for image in [copy, as_before, apart] {
            check(&image);
            for (number, expected) in &model {
                let snapshot = open(&image, Some(&number.to_string()));
                assert_eq!(told(&snapshot), *expected, "{seed} {number}");
            }
        }
    }
}

#[test]
fn files_of_an_archive_come_back_without_new_data() {
    let mut random = Random::new(6);
    let first: Files = [("a", 70_000), ("b", 300), ("c", 5_000)]
        .map(|(name, size)| (String::from(name), random.bytes(size)))
        .into();
    let mut image = build(&first);
    for name in ["second", "third", "fourth"] {
        let files: Files = [(String::from(name), random.bytes(100))].into();
        image = append(&image, &files, name, &options(1));
    }
    let image = archived(&image, 1);
    assert_eq!(archived_in(&image), [1, 2, 3]);
    let mut next = first.clone();
    let moved = next.remove("a").unwrap();
    next.insert("elsewhere".into(), moved);
    let source = Arc::new(MemorySource::new(image.clone()));
    let time = Timestamp {
        sec: 3_000,
        nsec: 0,
    };
    let base = Base::open(source, BaseOptions::new("next", time)).unwrap();
    let mut out = image.clone();
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    let summary = Builder::new(options(1))
        .append(&base, &tree_of(&next, 5), &mut out, &progress, &stop)
        .unwrap();
    assert_eq!(summary.block_bytes, 0);
    let found = progress.counters().files_in_base.load(Ordering::Relaxed);
    assert_eq!(found, 3);
    assert!(read(&open(&out, None)) == next);
    check(&out);
}

#[test]
fn the_index_of_anchors_is_made_anew() {
    let mut random = Random::new(13);
    let data = random.bytes(14_000_000);
    // More than what is searched of old blocks with this memory limit.
    let make = |index: bool| {
        let mut options = options(2);
        options.memory_limit = Some(96 << 20);
        options.block_size_bits = 20;
        options.match_index = index;
        options
    };
    let with = |name: &str, bytes: &[u8]| Files::from([(name.to_owned(), bytes.to_vec())]);
    let mut sizes = Vec::new();
    for index in [false, true] {
        let options = make(index);
        let first = tree_of(&with("first", &data[..13_500_000]), 0);
        let mut image = build_tree(&first, &options);
        image = append(&image, &with("b", &data[13_500_000..]), "second", &options);
        image = append(&image, &with("c", b"third"), "third", &options);
        let image = rebuilt_in(20, &image, Archiving::AllBut(1), 1).0;
        let trailers = open(&image, None).container().trailers.clone();
        let has = |section: &Section| section.ty == SectionType::MATCH;
        assert_eq!(trailers.iter().any(has), index);
        // From the middle of blocks.
        let parts = [&data[..600_000], &data[5_000_000..5_900_000]].concat();
        let next = with("next", &parts);
        let last = append(&image, &next, "next", &options);
        check(&last);
        assert!(read(&open(&last, None)) == next);
        sizes.push(last.len() - image.len());
    }
    assert!(sizes[0] > 400_000 && sizes[1] < 30_000, "{sizes:?}");
}

#[test]
fn an_archive_costs_what_one_build_of_its_trees_costs() {
    let mut random = Random::new(31);
    let mut files: Files = (0..300)
        .map(|n| (format!("d{}/f{n}", n % 7), random.text(50)))
        .collect();
    let mut image = build(&files);
    for number in 2..20 {
        files.insert(format!("d1/f{number}"), random.text(50));
        image = append(&image, &files, &format!("n{number}"), &options(1));
    }
    let metadata = |image: &[u8]| {
        let list = open(image, None).container().sections.clone();
        list.iter()
            .filter(|section| section.ty == SectionType::METADATA_V2)
            .map(|section| section.length)
            .sum::<u64>()
    };
    let apart = rebuilt(&image, Archiving::AllBut(100), 1).0;
    let together = archived(&image, 1);
    // Each has the whole metadata of one tree beside what they share.
    let (apart, together) = (apart.len() as u64, together.len() as u64);
    assert!(
        together + 14 * metadata(&image) < apart,
        "{apart} {together}"
    );
}

/// Of the blocks that an image uses: their bytes that it needs, and those up to the last of them, which are decoded.
fn needed_and_decoded(image: &Image) -> (u64, u64) {
    let mut used: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for step in image.walk() {
        let inode = step.unwrap().inode;
        if image.metadata().file_type(inode).unwrap() == FileType::Regular {
            for extent in image.metadata().extents(inode).unwrap() {
                if let Extent::Data {
                    block,
                    offset,
                    size,
                } = extent.unwrap()
                {
                    let bytes = used.entry(block.0).or_default();
                    bytes.extend(offset..offset + size);
                }
            }
        }
    }
    let needed = used.values().map(|bytes| bytes.len() as u64).sum();
    let ends = used.values().filter_map(BTreeSet::last);
    (needed, ends.map(|&last| u64::from(last) + 1).sum())
}

#[test]
fn a_copy_with_an_archive_has_the_newest_tree_in_front_in_each_block() {
    let mut random = Random::new(17);
    let mut files: Files = (0..120)
        .map(|n| (format!("d{}/f{n}", n % 7), random.text(3000)))
        .collect();
    let mut image = build(&files);
    for number in 2..10 {
        for data in files.values_mut() {
            let at = random.below(data.len() as u64 - 200) as usize;
            data.splice(at..at + 100, random.text(100));
        }
        image = append(&image, &files, &format!("n{number}"), &options(1));
    }
    let (needed, decoded) = needed_and_decoded(&open(&image, None));
    assert!(decoded > needed * 5 / 4, "{needed} {decoded}");
    let ratio = |copy: &[u8], snapshot: Option<&str>| {
        let (needed, decoded) = needed_and_decoded(&open(copy, snapshot));
        decoded as f64 / needed as f64
    };
    let copy = rebuilt_in(20, &image, Archiving::AllBut(1), 1).0;
    check(&copy);
    assert!(read(&open(&copy, None)) == files);
    let ratios = [None, Some("1")].map(|snapshot| ratio(&copy, snapshot));
    // The oldest tree shares its blocks.
    assert!(ratios[0] <= 1.02 && ratios[1] > 1.1, "{ratios:?}");
    let few = rebuilt_in(20, &image, Archiving::AsBefore, 1).0;
    assert!(ratio(&few, None) > 1.1);
}

#[test]
fn snapshots_of_an_archive_are_changed_like_others() {
    let (image, states) = nights(8, 6);
    let image = archived(&image, 2);
    assert_eq!(archived_in(&image), [1, 2, 3, 4]);
    let number = GenerationNo;
    let image = changed(
        &image,
        &[
            TableChange::Rename(number(2), "other".into()),
            TableChange::Pin(number(3), true),
            TableChange::Delete(number(4)),
        ],
    );
    assert!(read(&open(&image, Some("other"))) == states[1]);
    let table = open(&image, None).snapshots().unwrap();
    assert!(table.number(number(3)).unwrap().pinned);
    assert_eq!(table.present().count(), 5);
    // The file cannot end behind one of them, but behind any other.
    let (file, going_back) = medium(&image);
    let refused = roll_back(&going_back, ImageOffset::Auto, &choice("other")).unwrap_err();
    assert!(matches!(refused, Error::Archived(name) if name == "other"));
    assert!(std::fs::read(file.path()).unwrap() == image);
    roll_back(&going_back, ImageOffset::Auto, &choice("5")).unwrap();
    let back = std::fs::read(file.path()).unwrap();
    check(&back);
    assert!(read(&open(&back, None)) == states[4]);
    assert!(read(&open(&back, Some("1"))) == states[0]);
    // A deleted one is not in the next archive.
    let again = archived(&image, 1);
    assert_eq!(archived_in(&again), [1, 2, 3, 5]);
    assert!(read(&open(&again, Some("other"))) == states[1]);
    assert!(read(&open(&again, Some("3"))) == states[2]);
    assert!(
        open(&again, None)
            .snapshots()
            .unwrap()
            .number(number(4))
            .is_none()
    );
}

#[test]
fn the_space_of_a_part_of_an_archive_is_given_back() {
    let mut random = Random::new(15);
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
    let image = archived(&image, 1);
    let image = changed(&image, &[TableChange::Delete(GenerationNo(2))]);
    let Some((left, done)) = punched(&image) else {
        return;
    };
    assert_eq!(done.snapshots, 1);
    assert!(done.bytes > 100_000, "{done:?}");
    for (number, bytes) in [(1, &data[0]), (3, &data[2]), (4, &data[3])] {
        let snapshot = open(&left, Some(&number.to_string()));
        assert!(read(&snapshot).values().eq([bytes]), "{number}");
    }
}

#[test]
fn a_snapshot_of_an_archive_becomes_an_image() {
    let (image, states) = nights(9, 4);
    let image = archived(&image, 1);
    let snapshot = open(&image, Some("2"));
    assert!(snapshot.is_archived() && !open(&image, None).is_archived());
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    let mut out = Vec::new();
    let options = RewriteOptions::level(4);
    rewrite(&snapshot, &options, &mut out, &progress, &stop).unwrap();
    assert!(read(&open(&out, None)) == states[1]);
    check(&out);
}

#[test]
fn entries_that_lead_astray_are_refused() {
    let (image, states) = nights(10, 4);
    let image = archived(&image, 2);
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
        let file = open(&bytes, None);
        let table = file.snapshots().unwrap();
        let opened = table.snapshots.iter().map(|one| file.open_snapshot(one));
        opened
            .map(|image| image.ok().map(|image| read(&image)))
            .collect::<Vec<_>>()
    };
    let all: Vec<Option<Files>> = states.iter().cloned().map(Some).collect();
    assert!(with(&good) == all);
    for wrong in 0..5 {
        let mut table = good.clone();
        let newest = table.snapshots[3].clone();
        let entry = &mut table.snapshots[1];
        match wrong {
            // The place of one that is no archive, another tree, another index.
            0 => (entry.index, entry.end, entry.tree) = (newest.index, newest.end, newest.tree),
            1 => entry.tree = newest.tree,
            2 => entry.index -= 64,
            // A number that no tree has.
            3 => table.snapshots[3].number = GenerationNo(9),
            _ => entry.end = None,
        }
        if wrong == 3 {
            table.snapshots[3].archived = true;
            let first = table.snapshots[0].clone();
            let entry = &mut table.snapshots[3];
            (entry.index, entry.end, entry.tree) = (first.index, first.end, first.tree);
        }
        let left = with(&table);
        let bad = if wrong == 3 { 3 } else { 1 };
        assert!(left[bad].is_none(), "{wrong}");
        assert!(left[0] == all[0] && left[2] == all[2], "{wrong}");
    }
}

#[test]
fn the_cost_of_a_tree_is_bounded_whatever_the_metadata_says() {
    let mut random = Random::new(3);
    let mut files: Files = (0..3)
        .map(|n| (format!("f{n}"), random.text(2_000)))
        .collect();
    let mut image = build_tree(&rich(&mut random, &files), &rich_options(1));
    for number in 2..5 {
        let before = [files.clone()];
        night(&mut random, &mut files, &before);
        let tree = rich(&mut random, &files);
        image = append_tree(&image, &tree, &format!("n{number}"), &rich_options(1));
    }
    let image = archived(&image, 1);
    let file = open(&image, None);
    let first = file.snapshots().unwrap().snapshots[0].clone();
    let whole = Snapshot {
        archived: false,
        ..first
    };
    let whole = file.open_snapshot(&whole).unwrap();
    let (good, blocks) = (
        whole.metadata().thaw().unwrap(),
        whole.container().block_count(),
    );
    let mut rng = Rng::new(5);
    let (mut right, mut wrong) = (0, 0);
    for round in 0..3_000 {
        let mut metadata = good.clone();
        match round % 4 {
            0 => mutate::metadata(&mut metadata, &mut rng),
            1 => mutate::names(&mut metadata, &mut rng),
            2 => mutate::directories(&mut metadata, &mut rng),
            _ => mutate::files(&mut metadata, &mut rng),
        }
        let Ok(frozen) = freeze(&metadata) else {
            continue;
        };
        let length = frozen.data.len();
        let Ok(view) = MetadataView::parse(&frozen.schema, frozen.data) else {
            continue;
        };
        let is_right = view.check(blocks, None).is_ok();
        for dir in 0..view.counts().directories {
            let tree = view.subtree(InodeNo(dir), blocks);
            assert!(tree.is_ok() || !is_right, "{round} {dir}: {tree:?}");
            let Ok(tree) = tree else {
                wrong += 1;
                continue;
            };
            assert!(tree.inodes.len() <= view.inode_count() as usize);
            tree_is_bounded(&tree, length as u64);
            let frozen = freeze(&tree).unwrap();
            let own = MetadataView::parse(&frozen.schema, frozen.data);
            let own = own.and_then(|own| own.check(blocks, None));
            assert!(own.is_ok() || !is_right, "{round} {dir}: {own:?}");
            right += 1;
        }
    }
    assert!(right > 1_000 && wrong > 100, "{right} {wrong}");
    // Directories, files and attributes that share what they have would cost more than there is.
    let fails = |change: &dyn Fn(&mut Metadata)| {
        let mut metadata = good.clone();
        metadata.options = Some(FsOptions {
            packed_chunk_table: false,
            ..good.options.unwrap()
        });
        metadata.chunk_table = (0..=whole.metadata().counts().contents).collect();
        change(&mut metadata);
        let frozen = freeze(&metadata).unwrap();
        let Ok(view) = MetadataView::parse(&frozen.schema, frozen.data) else {
            return true;
        };
        let tree = view.subtree(InodeNo::ROOT, blocks);
        if let Ok(tree) = &tree {
            tree_is_bounded(tree, view.bytes().len() as u64);
        }
        tree.is_err()
    };
    assert!(!fails(&|_| {}));
    assert!(fails(&|metadata| {
        let all = metadata.chunks.len() as u32;
        let table = metadata.chunk_table.iter_mut();
        table
            .enumerate()
            .for_each(|(at, place)| *place = if at % 2 == 0 { 0 } else { all });
    }));
    assert!(fails(&|metadata| {
        let entries = metadata.dir_entries.as_mut().unwrap();
        // A directory in itself.
        entries.last_mut().unwrap().inode_num = 1;
    }));
    // Elements without any bits cost nothing in the metadata. Some of them are no harm.
    let filler = || Some(vec![b'x'; 300 << 10]);
    for (count, too_many) in [(100_000, false), (1_000_000, true)] {
        let failed = fails(&|metadata| {
            metadata.dwarfs_version = filler();
            metadata.chunks = vec![Chunk::default(); count];
            metadata.chunk_table.fill(count as u32);
            metadata.chunk_table[0] = 0;
        });
        assert_eq!(failed, too_many, "{count} chunks");
    }
    for (count, too_many) in [(4_000, false), (1_000_000, true)] {
        let failed = fails(&|metadata| {
            metadata.dwarfs_version = filler();
            metadata.category_names = Some(vec![Vec::new(); count]);
        });
        assert_eq!(failed, too_many, "{count} categories");
    }
    let failed = fails(&|metadata| {
        metadata.dwarfs_version = filler();
        let tables = metadata.xattrs.as_mut().unwrap();
        tables.pairs = vec![XattrPair::default(); 1_200_000];
        tables.set_start.fill(1_200_000);
        tables.set_start[..2].fill(0);
    });
    assert!(failed);
}

/// Fails at a write.
struct Full {
    left: usize,
}

impl Write for Full {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        match self.left.checked_sub(1) {
            Some(left) => self.left = left,
            None => return Err(io::ErrorKind::StorageFull.into()),
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Fails at a read.
#[derive(Debug)]
struct Failing {
    bytes: Vec<u8>,
    left: Mutex<usize>,
}

impl Source for Failing {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.len() as u64)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut left = self.left.lock().unwrap();
        *left = left.checked_sub(1).ok_or(io::ErrorKind::Other)?;
        MemorySource::new(self.bytes.clone()).read_exact_at(offset, buf)
    }
}

#[test]
fn what_fails_on_the_way_is_an_error() {
    let (image, _) = nights(11, 4);
    let make = |source: Arc<dyn Source>, out: &mut dyn Write| -> Result<Compacted, String> {
        let image = Image::from_source(source, &OpenOptions::default());
        let image = image.map_err(|error| error.to_string())?;
        let plan = Compaction::of(&image).map_err(|error| error.to_string())?;
        let mut options = MergeOptions::level(1);
        options.metadata.workers = 1;
        let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
        plan.rebuild(&options, Archiving::AllBut(1), out, &progress, &stop)
            .map_err(|error| error.to_string())
    };
    let mut writes = 0;
    loop {
        let source = Arc::new(MemorySource::new(image.clone()));
        match make(source, &mut Full { left: writes }) {
            Ok(_) => break,
            Err(error) => assert!(!error.is_empty()),
        }
        writes += 1;
    }
    assert!(writes > 10, "{writes}");
    let mut whole = Vec::new();
    make(Arc::new(MemorySource::new(image.clone())), &mut whole).unwrap();
    let mut reads = 0;
    loop {
        let left = Mutex::new(reads);
        let bytes = image.clone();
        let mut out = Vec::new();
        match make(Arc::new(Failing { bytes, left }), &mut out) {
            // Nothing is missing in what counts as complete.
            Ok(_) => {
                assert!(out == whole, "{reads}");
                break;
            }
            Err(error) => assert!(!error.is_empty()),
        }
        reads += 1;
    }
    assert!(reads > 20, "{reads}");
}
