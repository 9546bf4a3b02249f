//! The order by names and contents: versions side by side, everything else where its path is.

use std::collections::{BTreeMap, BTreeSet};

use crate::common::{blocks, build, open};
use redwarfs_format::metadata::{Extent, FileType};
use redwarfs_reader::Image;
use redwarfs_writer::{BuildOptions, Categorizer, FamilyOptions, MemoryNode, MemoryTree, Order};

/// Random bytes that have nothing to do with those of other seeds.
fn noise(seed: u32, len: usize) -> Vec<u8> {
    let number = |i: u64| {
        let mut z = (u64::from(seed) << 32 | i).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        (z ^ (z >> 31)).to_le_bytes()
    };
    let mut bytes: Vec<u8> = (0..len.div_ceil(8) as u64).flat_map(number).collect();
    bytes.truncate(len);
    bytes
}

fn options(order: Order) -> BuildOptions {
    let mut build = BuildOptions::level(4);
    build.order = order;
    build.block_size_bits = 20;
    build.compression = "zstd:level=3".parse().unwrap();

    // What is found in other blocks makes up for a bad order.
    build.lookback = 1;
    build.workers = 2;
    build
}

fn families() -> Order {
    Order::Families(FamilyOptions::default())
}

fn add(tree: &mut MemoryTree, path: &str, data: Vec<u8>) {
    for (at, _) in path.match_indices('/') {
        tree.insert(&path[..at], MemoryNode::new(FileType::Directory));
    }
    tree.insert(path, MemoryNode::file(data));
}

/// Block and offset of the first byte of every file.
fn places(image: &Image) -> BTreeMap<String, (u32, u32)> {
    let mut places = BTreeMap::new();
    for step in image.walk() {
        let step = step.unwrap();
        let extent = match image.metadata().file_type(step.inode).unwrap() {
            FileType::Regular => image.metadata().extents(step.inode).unwrap().next(),
            _ => None,
        };
        if let Some(Ok(Extent::Data { block, offset, .. })) = extent {
            let path = String::from_utf8(step.path).unwrap();
            places.insert(path, (block.0, offset));
        }
    }
    places
}

/// Blocks that each folder at the top touches.
fn spread(image: &Image) -> BTreeMap<String, BTreeSet<u32>> {
    let mut spread: BTreeMap<String, BTreeSet<u32>> = BTreeMap::new();
    for step in image.walk() {
        let step = step.unwrap();
        if image.metadata().file_type(step.inode).unwrap() != FileType::Regular {
            continue;
        }
        let path = String::from_utf8(step.path).unwrap();
        let top = path.split('/').next().unwrap().to_owned();
        for extent in image.metadata().extents(step.inode).unwrap() {
            if let Extent::Data { block, .. } = extent.unwrap() {
                spread.entry(top.clone()).or_default().insert(block.0);
            }
        }
    }
    spread
}

/// Twelve releases of 3 MB, each with a few changes in every file, and names that sort badly.
fn releases() -> MemoryTree {
    let mut tree = MemoryTree::new();
    for version in 0..12u32 {
        for file in 0..30 {
            let mut data = noise(file + 1, 100_000);
            for change in 0..version {
                let at = (change as usize * 7919 + file as usize * 31) % 99_000;
                data[at..at + 100].copy_from_slice(&noise(1000 + change, 100));
            }
            let path = format!("program-1.{version}/part{}/file{file}", file % 5);
            add(&mut tree, &path, data);
        }
    }
    tree
}

#[test]
fn versions_are_side_by_side() {
    let tree = releases();
    let (bytes, _) = build(&options(families()), &tree);
    let (by_path, _) = build(&options(Order::Path), &tree);
    assert!(
        bytes.len() * 3 < by_path.len(),
        "{} {}",
        bytes.len(),
        by_path.len()
    );
    let image = open(bytes);
    crate::common::compare(&image, &tree, &options(families()));
    let places = places(&image);
    let place = |version: u32, file: u32| {
        let path = format!("program-1.{version}/part{}/file{file}", file % 5);
        places[&path]
    };
    // The releases of a file before the next file, in the order of their numbers.
    for file in [0, 7, 29] {
        let versions: Vec<_> = (0..12).map(|version| place(version, file)).collect();
        assert!(versions.is_sorted(), "{versions:?}");
    }
    let mut first: Vec<_> = (0..30)
        .map(|file| (place(0, file), place(11, file)))
        .collect();
    first.sort_unstable();
    for pair in first.windows(2) {
        assert!(pair[0].1 <= pair[1].0, "{pair:?}");
    }
}

#[test]
fn folders_with_the_same_names_but_other_data_stay_together() {
    let mut tree = MemoryTree::new();
    for day in 1..=8u32 {
        for file in 0..20 {
            let path = format!("2024-03-{day:02}/host{file}/log");
            add(&mut tree, &path, noise(day * 100 + file, 120_000));
        }
    }
    let (bytes, _) = build(&options(families()), &tree);
    let (by_path, _) = build(&options(Order::Path), &tree);
    let (image, by_path) = (open(bytes), open(by_path));
    assert_eq!(spread(&image), spread(&by_path));
}

#[test]
fn locality_has_a_price() {
    // Two releases with little in common: together they save a twentieth.
    let mut tree = MemoryTree::new();
    for version in 1..=6u32 {
        for file in 0..40 {
            let mut data = noise(file + 1, 5_000);
            data.extend(noise(version * 1000 + file, 95_000));
            add(
                &mut tree,
                &format!("v{version}/d{}/f{file}", file % 4),
                data,
            );
        }
    }
    let image = |gain| {
        let options = options(Order::Families(FamilyOptions::new(gain)));
        open(build(&options, &tree).0)
    };
    let blocks = |image: &Image| spread(image).values().map(BTreeSet::len).sum::<usize>();
    let (free, dear) = (blocks(&image(0)), blocks(&image(500)));
    assert!(free > 2 * dear, "{free} {dear}");
    assert!(dear <= 6 * 5, "{dear}");
}

#[test]
fn large_blocks_end_between_directories() {
    let mut tree = MemoryTree::new();
    // A block of 32 MiB has room for one and a half of them, one of 16 for less.
    for directory in 0..3_u32 {
        for file in 0..7 {
            let path = format!("d{directory}/part{}/f{file}", file / 3);
            add(&mut tree, &path, noise(10 * directory + file, 3 << 20));
        }
    }
    let blocks = |block_size_bits, order| {
        let options = {
            let mut build = options(order);
            build.block_size_bits = block_size_bits;
            build.compression = "null".parse().unwrap();
            build
        };
        let (bytes, _) = build(&options, &tree);
        let image = open(bytes);
        crate::common::compare(&image, &tree, &options);
        spread(&image)
    };
    for order in [families(), Order::Path] {
        let own: Vec<_> = blocks(25, order.clone()).into_values().collect();
        assert_eq!(own, [0, 1, 2].map(|block| BTreeSet::from([block])));
        let filled: Vec<_> = blocks(24, order).into_values().collect();
        assert_eq!(filled, [[0, 1], [1, 2], [2, 3]].map(BTreeSet::from));
    }
}

#[test]
fn blocks_that_end_early_are_searched() {
    let mut tree = MemoryTree::new();
    for directory in 0..3_u32 {
        for file in 0..7 {
            // The last directory is the first one again, with other beginnings.
            let mut data = noise(10 * (directory % 2) + file, 3 << 20);
            data[..100].copy_from_slice(&noise(1000 + directory, 100));
            add(&mut tree, &format!("d{directory}/f{file}"), data);
        }
    }
    let image = |workers| {
        let options = {
            let mut build = options(Order::Path);
            build.block_size_bits = 25;
            build.compression = "null".parse().unwrap();
            build.lookback = 4;
            build.workers = workers;
            build
        };
        let (bytes, _) = build(&options, &tree);
        crate::common::compare(&open(bytes.clone()), &tree, &options);
        bytes
    };
    let bytes = image(1);
    assert!(bytes.len() < 45 << 20, "{}", bytes.len());
    let found = spread(&open(bytes.clone()));
    assert_eq!(found["d1"], BTreeSet::from([1]));
    assert!(found["d2"].contains(&0));
    assert!(image(8) == bytes);
}

#[test]
fn files_that_cannot_be_sketched_have_a_place_too() {
    let mut tree = releases();
    add(&mut tree, "empty", Vec::new());
    add(&mut tree, "program-1.3/tiny", b"tiny".to_vec());
    add(&mut tree, "zeros", vec![0; 3 << 20]);
    for limit in [None, Some(50_000)] {
        let options = {
            let mut build = options(families());
            build.max_similarity_size = limit;
            build
        };
        crate::common::compare(&open(build(&options, &tree).0), &tree, &options);
    }
    let mut unreadable = MemoryNode::file(noise(9, 5000));
    unreadable.unreadable = true;
    tree.insert("program-1.4/unreadable", unreadable);
    let (bytes, summary) = build(&options(families()), &tree);
    assert_eq!(summary.errors, 1);
    let image = open(bytes);
    let inode = image.find_path(b"program-1.4/unreadable").unwrap().unwrap();
    assert_eq!(image.stat(inode).unwrap().size, 0);
}

#[test]
fn threads_do_not_matter() {
    let tree = releases();
    let image = |workers| {
        let options = {
            let mut build = options(families());
            build.workers = workers;
            build
        };
        build(&options, &tree).0
    };
    let one = image(1);
    assert!((2..=8).all(|workers| image(workers) == one));
}

/// Sound, between a head and a tail that are none.
fn wave(seed: u32) -> Vec<u8> {
    let samples: Vec<u8> = (0..20_000i32)
        .flat_map(|at| (((at % 300) * (at % 300) % 900 + seed as i32) as i16).to_le_bytes())
        .collect();
    let mut tail = b"LIST\x80\x00\x00\x00".to_vec();
    tail.extend(noise(seed, 128));
    let mut wave = b"RIFF".to_vec();
    wave.extend((36 + samples.len() as u32 + tail.len() as u32).to_le_bytes());
    wave.extend_from_slice(b"WAVEfmt \x10\x00\x00\x00\x01\x00\x01\x00\x44\xac\x00\x00\x88\x58\x01\x00\x02\x00\x10\x00data");
    wave.extend((samples.len() as u32).to_le_bytes());
    [wave, samples, tail].concat()
}

/// Of each block, the bytes that files below a directory need, and where the last of them ends.
fn needed(image: &Image, directory: &str) -> BTreeMap<u32, (usize, usize)> {
    let mut used: BTreeMap<u32, BTreeSet<u32>> = BTreeMap::new();
    for step in image.walk() {
        let step = step.unwrap();
        let regular = image.metadata().file_type(step.inode).unwrap() == FileType::Regular;
        if !regular || !step.path.starts_with(directory.as_bytes()) {
            continue;
        }
        for extent in image.metadata().extents(step.inode).unwrap() {
            if let Extent::Data {
                block,
                offset,
                size,
            } = extent.unwrap()
            {
                used.entry(block.0)
                    .or_default()
                    .extend(offset..offset + size);
            }
        }
    }
    let summary = |bytes: BTreeSet<u32>| {
        (
            bytes.len(),
            bytes.last().map_or(0, |&last| last as usize + 1),
        )
    };
    used.into_iter()
        .map(|(block, bytes)| (block, summary(bytes)))
        .collect()
}

#[test]
fn what_one_directory_needs_is_in_front_in_each_block() {
    let mut tree = releases();
    // Shared with an older release, and cut by categories.
    add(
        &mut tree,
        "program-1.3/part0/old",
        [noise(1, 50_000), noise(900, 9_000)].concat(),
    );
    add(&mut tree, "program-1.7/new/noise", noise(77, 200_000));
    // One file with two names.
    for version in [3, 7] {
        let mut node = MemoryNode::file(noise(78, 30_000));
        (node.meta.nlink, node.meta.identity) = (2, (1, 7));
        tree.insert(format!("program-1.{version}/part1/linked"), node);
    }
    for version in [7, 8] {
        let path = format!("program-1.{version}/new/sound.wav");
        add(&mut tree, &path, wave(version));
    }
    for order in [families(), Order::Path] {
        let mut plain = options(order.clone());
        plain.categorizers = vec![Categorizer::PcmAudio];
        let mut front = plain.clone();
        front.front = Some(b"program-1.7".to_vec());
        let (bytes, _) = build(&front, &tree);
        let image = open(bytes.clone());
        crate::common::compare(&image, &tree, &front);
        let newest = needed(&image, "program-1.7/");
        assert!(newest.len() > 1);
        for (block, (used, end)) in newest {
            assert_eq!(used, end, "block {block}, {order:?}");
        }
        let others = needed(&image, "program-1.3/");
        assert!(others.values().any(|(used, end)| used < end));
        let categories: BTreeSet<String> =
            blocks(&image).into_iter().map(|(name, _)| name).collect();
        assert!(categories.contains("pcmaudio/waveform"), "{categories:?}");
        front.workers = 5;
        assert!(build(&front, &tree).0 == bytes);
        let (plain, _) = build(&plain, &tree);
        assert!(
            bytes.len() * 100 < plain.len() * 104,
            "{} {}",
            bytes.len(),
            plain.len()
        );
    }
    // It is the first of its versions: its files are whole, but for ends of blocks, and others refer to them.
    let mut front = options(families());
    front.front = Some(b"program-1.7".to_vec());
    let image = open(build(&front, &tree).0);
    let extents = |version: u32, file: u32| {
        let path = format!("program-1.{version}/part{}/file{file}", file % 5);
        let inode = image.find_path(path.as_bytes()).unwrap().unwrap();
        image.metadata().extents(inode).unwrap().count()
    };
    for file in 0..30 {
        assert!(extents(7, file) <= 2, "{file}: {}", extents(7, file));
    }
    assert!((0..30).all(|file| extents(0, file) > 2));
    // A path that is no directory has no effect.
    let (usual, _) = build(&options(families()), &tree);
    for path in [
        &b"program"[..],
        b"program-1.7/part2/file7",
        b"nothing/at/all",
    ] {
        front.front = Some(path.to_vec());
        assert!(build(&front, &tree).0 == usual);
    }
}
