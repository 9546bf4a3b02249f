//! Joining images, and changing their trees: the result is what a build of the same tree shows.

use std::collections::{BTreeMap, BTreeSet};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::AtomicBool;

use crate::common::{open, try_open};
use redwarfs_reader::{CheckOptions, Image, VerifyMode};
use redwarfs_rewrite::Error;
use redwarfs_rewrite::merge::{MergeOptions, MergeSummary, Part, Selection, Whiteouts, merge};
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::mutate::{self, Parts, Rng};
use redwarfs_testkit::{Fields, Golden, Manifest, compat_images, golden_images};
use redwarfs_writer::{
    BuildOptions, Builder, FileType, MemoryExtent, MemoryNode, MemoryTree, SilentProgress,
    TimeResolution, Timestamp,
};

fn options() -> MergeOptions {
    let mut options = MergeOptions::level(1);
    options.rewrite.workers = 2;
    options.metadata.keep_all_times = true;
    options
}

struct Merged {
    bytes: Vec<u8>,
    image: Image,
    summary: MergeSummary,
}

fn merged(parts: &[(&str, &Image)], options: &MergeOptions) -> Result<Merged, Error> {
    with_added(parts, &[], options)
}

fn with_added(
    parts: &[(&str, &Image)],
    added: &[(&str, &Image)],
    options: &MergeOptions,
) -> Result<Merged, Error> {
    let list = |parts: &[(&str, &Image)]| -> Vec<(Vec<u8>, Image)> {
        let parts = parts.iter();
        parts
            .map(|(at, image)| (at.as_bytes().to_vec(), (*image).clone()))
            .collect()
    };
    let (parts, added) = (list(parts), list(added));
    let parts: Vec<Part<'_>> = parts
        .iter()
        .map(|(at, image)| Part::new(image, at))
        .collect();
    let added: Vec<Part<'_>> = added
        .iter()
        .map(|(at, image)| Part::new(image, at))
        .collect();
    let mut bytes = Vec::new();
    let progress = SilentProgress::default();
    let stop = AtomicBool::new(false);
    let summary = merge(&parts, &added, options, &mut bytes, &progress, &stop)?;
    assert_eq!(summary.rewritten.image_size, bytes.len() as u64);
    Ok(Merged {
        image: open(&bytes),
        bytes,
        summary,
    })
}

fn manifest(image: &Image) -> Manifest {
    Manifest::from_image(image, true).unwrap()
}

fn intact(image: &Image, what: &str) {
    let mut check = CheckOptions::default();
    check.mode = VerifyMode::Integrity;
    let report = image.check_sections(&check).unwrap();
    assert!(report.is_ok(), "{what}: {:?}", report.findings);
    let sizes = image.container().blocks().map(|section| {
        let (section, payload) = image
            .stored_block(redwarfs_format::BlockNo(section.position))
            .unwrap();
        let raw = image.decode_stored_block(&section, &payload).unwrap();
        raw.map_or(payload.len(), |raw| raw.len()) as u64
    });
    let sizes: Vec<u64> = sizes.collect();
    image
        .metadata()
        .check(image.container().block_count(), Some(&sizes))
        .unwrap();
}

const SAME: Fields = Fields {
    ino: false,
    ..Fields::ALL
};

fn build(tree: &MemoryTree, level: u8, bits: u32) -> Image {
    let mut options = BuildOptions::level(level);
    options.block_size_bits = bits;
    options.workers = 2;
    options.keep_all_times = true;
    options.time_resolution = TimeResolution::NANOSECOND;
    options.with_devices = true;
    options.with_specials = true;
    let mut image = Vec::new();
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    let builder = Builder::new(options);
    builder.build(tree, &mut image, &progress, &stop).unwrap();
    open(&image)
}

fn check_golden(golden: &Golden) {
    let what = &golden.name;
    let before = open(&std::fs::read(&golden.image).unwrap());
    let legacy = before.metadata().is_legacy();
    let mut want = manifest(&before);
    if legacy {
        want = want.linked_by_attributes();
    }
    let after = merged(&[("", &before)], &options()).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(after.summary.errors, 0, "{what}");
    intact(&after.image, what);
    want.assert_same(&manifest(&after.image), SAME, what);
    assert_eq!(
        after.image.metadata().category_names().unwrap(),
        before.metadata().category_names().unwrap(),
        "{what}"
    );
    // Twice side by side: all blocks are equal.
    let twice = merged(&[("a", &before), ("b/c", &before)], &options()).unwrap();
    intact(&twice.image, what);
    let count = |image: &Image| image.container().block_count();
    assert_eq!(count(&twice.image), count(&after.image), "{what}");
    let shown = manifest(&twice.image);
    let below = |prefix: &str| {
        let entries = shown.0.iter().filter_map(|(path, entry)| {
            let rest = path.strip_prefix(prefix.as_bytes())?;
            let rest = match rest {
                [] => b".",
                [b'/', rest @ ..] => rest,
                _ => return None,
            };
            Some((rest.to_vec(), entry.clone()))
        });
        Manifest(entries.collect())
    };
    for prefix in ["a", "b/c"] {
        want.assert_same(&below(prefix), SAME, &format!("{what}, {prefix}"));
    }
    // Half of the files, with everything moved that can be.
    let mut half = options();
    half.repack = 100;
    half.filter = Some(Selection::new(|path, kind| {
        kind != FileType::Regular || path.iter().map(|&b| u32::from(b)).sum::<u32>() % 2 == 0
    }));
    let after = merged(&[("", &before)], &half).unwrap();
    intact(&after.image, what);
    let kept = manifest(&after.image);
    for (path, entry) in &kept.0 {
        let old = &want.0[path];
        let content = Fields {
            ino: false,
            ..Fields::ALL
        };
        let one = |entry: &redwarfs_testkit::Entry| {
            let mut entry = entry.clone();
            // Links and entries are gone.
            entry.nlink = 1;
            if entry.mode & 0o170_000 == 0o040_000 {
                (entry.size, entry.blocks) = (0, 0);
            }
            Manifest(BTreeMap::from([(path.clone(), entry)]))
        };
        one(old).assert_same(&one(entry), content, what);
    }
}

#[test]
fn golden_images_stay_what_they_are() {
    for golden in golden_images() {
        check_golden(&golden);
    }
}

#[test]
fn images_of_old_releases_are_joined() {
    for golden in compat_images() {
        check_golden(&golden);
    }
}

/// A random tree, by path.
fn random_tree(rng: &mut Rng) -> MemoryTree {
    let mut tree = MemoryTree::new();
    let mut directories = vec![String::new()];
    let mut contents: Vec<Vec<MemoryExtent>> = Vec::new();
    let mut linked = 0;
    for n in 0..rng.below(40) + 3 {
        let above = directories[rng.below(directories.len())].clone();
        let path = match above.as_str() {
            "" => format!("n{n}"),
            above => format!("{above}/n{n}"),
        };
        let mut node = match rng.below(10) {
            0..=1 => {
                directories.push(path.clone());
                MemoryNode::new(FileType::Directory)
            }
            2 => MemoryNode::symlink(format!("to {}", rng.below(4))),
            3 => {
                let mut node = MemoryNode::new(FileType::CharDevice);
                node.meta.rdev = 1 + rng.below(300) as u64;
                node
            }
            4 => MemoryNode::new(FileType::Fifo),
            5 if !contents.is_empty() => {
                let old = contents[rng.below(contents.len())].clone();
                MemoryNode::sparse(old)
            }
            _ => {
                let size = rng.below(3000);
                let (word, step) = (rng.bits() as u8 % 5, rng.below(40) + 1);
                let data = (0..size).map(|i| word.wrapping_add((i / step) as u8));
                let mut pieces = vec![MemoryExtent::Data(data.collect())];
                if rng.one_in(4) {
                    pieces.push(MemoryExtent::Hole(5000));
                    pieces.push(MemoryExtent::Data(vec![1; 10]));
                }
                contents.push(pieces.clone());
                MemoryNode::sparse(pieces)
            }
        };
        node.meta.uid = rng.below(3) as u32;
        node.meta.mtime = Timestamp {
            sec: rng.below(1000) as i64 - 500,
            nsec: rng.below(1000) as u32,
        };
        if rng.one_in(4) {
            let value = vec![7; [3, 2000, 9000][rng.below(3)]];
            node.meta.extended.set(*b"user.x", value);
        }
        if rng.one_in(6) {
            node.meta.extended.set_flags(0x80);
        }
        if rng.one_in(3) {
            node.meta.extended.set_birth(Timestamp { sec: 9, nsec: 0 });
        }
        if node.meta.kind == FileType::Regular && rng.one_in(5) {
            linked += 1;
            node.meta.nlink = 2;
            node.meta.identity = (1, linked);
            tree.insert(format!("{path}-link"), node.clone());
        }
        tree.insert(path, node);
    }
    tree
}

/// Birth times, flags and extended attributes by path.
type More = BTreeMap<Vec<u8>, (Option<Timestamp>, u32, Vec<(Vec<u8>, Vec<u8>)>)>;

fn more(image: &Image) -> More {
    let view = image.metadata();
    let walk = image.walk().map(|entry| {
        let entry = entry.unwrap();
        let list = image.xattrs(entry.inode).unwrap().map(|xattr| {
            let value = image.xattr_value(&xattr).unwrap().into_owned();
            (xattr.name().unwrap().into_owned(), value)
        });
        let list: Vec<_> = list.collect();
        let birth = view.birth_time(entry.inode).unwrap();
        let birth = birth.or_else(|| Some(image.stat(entry.inode).unwrap().mtime));
        (
            entry.path,
            (birth, view.file_flags(entry.inode).unwrap(), list),
        )
    });
    walk.collect()
}

fn same_tree(want: &Image, got: &Image, what: &str) {
    manifest(want).assert_same(&manifest(got), SAME, what);
    assert_eq!(more(want), more(got), "{what}");
}

fn paths(tree: &MemoryTree) -> Vec<Vec<u8>> {
    tree.iter().map(|(path, _)| path.to_vec()).collect()
}

fn is_below(path: &[u8], above: &[u8]) -> bool {
    path == above
        || path
            .strip_prefix(above)
            .is_some_and(|rest| rest.starts_with(b"/"))
}

#[test]
fn random_splits_join_to_the_whole_tree() {
    for seed in 0..150 {
        let rng = &mut Rng::new(seed);
        let whole = random_tree(rng);
        let count = 1 + rng.below(4);
        let mut shards = vec![MemoryTree::new(); count];
        // Links of a file must be in one shard to stay links.
        let mut of_link: BTreeMap<(u64, u64), usize> = BTreeMap::new();
        for (path, node) in whole.iter() {
            let random = rng.below(count);
            let at = match node.meta.identity {
                (0, 0) => random,
                identity => *of_link.entry(identity).or_insert(random),
            };
            for (number, shard) in shards.iter_mut().enumerate() {
                if number == at || node.meta.kind == FileType::Directory {
                    shard.insert(path.to_vec(), node.clone());
                }
            }
        }
        let bits = [10, 12, 16];
        let images: Vec<Image> = shards
            .iter()
            .map(|shard| build(shard, [1, 4][rng.below(2)], bits[rng.below(3)]))
            .collect();
        let parts: Vec<(&str, &Image)> = images.iter().map(|image| ("", image)).collect();
        let mut options = options();
        options.repack = [0, 50, 100][rng.below(3)];
        let after = merged(&parts, &options).unwrap();
        let what = format!("seed {seed}");
        intact(&after.image, &what);
        same_tree(&build(&whole, 1, 16), &after.image, &what);
        assert_eq!(
            after.image.metadata().block_size(),
            images
                .iter()
                .map(|i| i.metadata().block_size())
                .max()
                .unwrap(),
        );
        options.rewrite.workers = 5;
        assert!(
            merged(&parts, &options).unwrap().bytes == after.bytes,
            "{what}"
        );
    }
}

#[test]
fn random_changes_are_those_of_the_tree() {
    for seed in 1000..1150 {
        let rng = &mut Rng::new(seed);
        let mut tree = random_tree(rng);
        let image = build(&tree, 1, 12);
        let mut options = options();
        options.repack = [0, 30, 100][rng.below(3)];
        if rng.one_in(2) {
            let odd = rng.below(2) as u8;
            let keep = move |path: &[u8]| path.last().is_none_or(|b| b % 5 != odd);
            options.filter = Some(Selection::new(move |path, _| keep(path)));
            let gone: Vec<_> = paths(&tree)
                .into_iter()
                .filter(|path| !keep(path))
                .collect();
            tree = without(&tree, &gone);
        }
        for _ in 0..rng.below(3) {
            let all = paths(&tree);
            let path = all[rng.below(all.len())].clone();
            if !path.is_empty() {
                tree = without(&tree, std::slice::from_ref(&path));
                options.remove.push(path);
            }
        }
        for n in 0..rng.below(3) {
            let all = paths(&tree);
            let old = all[rng.below(all.len())].clone();
            let directories: Vec<&[u8]> = tree
                .iter()
                .filter(|(path, node)| {
                    node.meta.kind == FileType::Directory && !is_below(path, &old)
                })
                .map(|(path, _)| path)
                .collect();
            if old.is_empty() || directories.is_empty() {
                continue;
            }
            let above = directories[rng.below(directories.len())];
            let new = [above, format!("/moved{n}").as_bytes()].concat();
            let new = new.strip_prefix(b"/").unwrap_or(&new).to_vec();
            let mut moved = MemoryTree::new();
            for (path, node) in tree.iter() {
                let path = match is_below(path, &old) {
                    true => [&new[..], &path[old.len()..]].concat(),
                    false => path.to_vec(),
                };
                moved.insert(path, node.clone());
            }
            tree = moved;
            options.rename.push((old, new));
        }
        let after = merged(&[("", &image)], &options).unwrap();
        let what = format!("seed {seed}");
        intact(&after.image, &what);
        same_tree(&build(&tree, 1, 16), &after.image, &what);
    }
}

fn without(tree: &MemoryTree, gone: &[Vec<u8>]) -> MemoryTree {
    let mut left = MemoryTree::new();
    for (path, node) in tree.iter() {
        if !gone.iter().any(|gone| is_below(path, gone)) {
            left.insert(path.to_vec(), node.clone());
        }
    }
    left
}

fn noise(seed: u64, size: usize) -> Vec<u8> {
    let mut rng = Rng::new(seed);
    (0..size).map(|_| rng.bits() as u8).collect()
}

fn files(list: &[(&str, Vec<u8>)]) -> MemoryTree {
    let mut tree = MemoryTree::new();
    for (path, data) in list {
        let mut at = String::new();
        for part in path.split('/') {
            if !at.is_empty() {
                if tree.get(at.as_bytes()).is_none() {
                    tree.insert(at.clone(), MemoryNode::new(FileType::Directory));
                }
                at.push('/');
            }
            at.push_str(part);
        }
        tree.insert(*path, MemoryNode::file(data.clone()));
    }
    tree
}

#[test]
fn equal_files_are_stored_once_and_unused_blocks_left_out() {
    // Different levels compress the same data differently.
    let (a, b) = (noise(1, 9000), noise(2, 3000));
    let one = build(&files(&[("x", a.clone()), ("y", b.clone())]), 1, 16);
    let two = build(&files(&[("p/x", a.clone())]), 4, 16);
    let after = merged(&[("", &one), ("", &two)], &options()).unwrap();
    assert_eq!(after.image.container().block_count(), 1);
    assert_eq!((after.summary.old_blocks, after.summary.left_out), (2, 1));
    assert_eq!(after.summary.contents, 2);
    let counts = after.image.metadata().counts();
    assert_eq!((counts.contents, counts.shared_files), (2, 2));
    // A block with other data stays anyway, so it is not decoded, unless its data can move.
    let two = build(&files(&[("p/x", a.clone()), ("p/z", noise(3, 400))]), 4, 16);
    let parts: &[(&str, &Image)] = &[("", &one), ("", &two)];
    let after = merged(parts, &options()).unwrap();
    assert_eq!(after.summary.contents, 4);
    let mut repack = options();
    repack.repack = 50;
    let after = merged(parts, &repack).unwrap();
    assert_eq!((after.summary.contents, after.summary.repacked), (3, 1));
    assert!(
        after.bytes.len() < 9000 + 3000 + 400 + 2000,
        "{}",
        after.bytes.len()
    );
    let want = files(&[
        ("x", a.clone()),
        ("y", b),
        ("p/x", a),
        ("p/z", noise(3, 400)),
    ]);
    same_tree(&build(&want, 1, 16), &after.image, "repacked");
}

#[test]
fn data_of_removed_files_is_gone_after_repacking() {
    let list: Vec<(String, Vec<u8>)> = (0..20)
        .map(|n| (format!("f{n:02}"), noise(n, 3000)))
        .collect();
    let list: Vec<(&str, Vec<u8>)> = list.iter().map(|(n, d)| (n.as_str(), d.clone())).collect();
    let image = build(&files(&list), 1, 14);
    let mut options = options();
    options.remove = (0..18).map(|n| format!("/f{n:02}").into_bytes()).collect();
    let kept = merged(&[("", &image)], &options).unwrap();
    assert!(kept.summary.left_out >= 2, "{:?}", kept.summary);
    options.repack = 100;
    let moved = merged(&[("", &image)], &options).unwrap();
    assert!(moved.bytes.len() < 6000 + 1500, "{}", moved.bytes.len());
    let want = build(&files(&list[18..]), 1, 14);
    same_tree(&want, &kept.image, "kept");
    same_tree(&want, &moved.image, "moved");
}

#[test]
fn later_layers_win_and_whiteouts_do_what_they_say() {
    let data = |n: u8| vec![n; 10];
    let below = build(
        &files(&[
            ("a", data(1)),
            ("d/old", data(2)),
            ("d/gone", data(3)),
            ("o/hidden", data(4)),
            ("o2/hidden", data(4)),
            ("m/marked", data(6)),
            ("w", data(7)),
        ]),
        1,
        12,
    );
    let mut tree = files(&[
        ("a", data(9)),
        ("d/.wh.gone", vec![]),
        ("d/new", data(5)),
        ("o/.wh..wh..opq", vec![]),
        ("o/shown", data(8)),
        ("o2/shown", data(8)),
        ("m/marked", vec![]),
        (".wh..wh.plnk", vec![]),
    ]);
    let mut device = MemoryNode::new(FileType::CharDevice);
    device.meta.rdev = 0;
    tree.insert("w", device);
    let mut node = tree.get(b"o2").unwrap().clone();
    node.meta.extended.set(*b"trusted.overlay.opaque", *b"y");
    tree.insert("o2", node);
    let mut node = tree.get(b"m").unwrap().clone();
    node.meta.extended.set(*b"user.overlay.opaque", *b"x");
    tree.insert("m", node);
    let mut node = tree.get(b"m/marked").unwrap().clone();
    node.meta.extended.set(*b"user.overlay.whiteout", *b"");
    tree.insert("m/marked", node);
    let above = build(&tree, 1, 12);
    let names = |whiteouts| {
        let mut options = options();
        options.whiteouts = whiteouts;
        let after = merged(&[("", &below), ("", &above)], &options).unwrap();
        intact(&after.image, "layers");
        let names: BTreeSet<String> = manifest(&after.image)
            .0
            .keys()
            .map(|path| String::from_utf8_lossy(path).into_owned())
            .collect();
        (names, after.image)
    };
    let set = |names: &[&str]| -> BTreeSet<String> {
        names.iter().map(|&name| name.to_owned()).collect()
    };
    let (keep, _) = names(Whiteouts::Keep);
    assert_eq!(keep.len(), 1 + 7 + 6 + 4, "{keep:?}");
    let (apply, image) = names(Whiteouts::Apply);
    let left = [
        ".", "a", "d", "d/new", "d/old", "m", "o", "o/shown", "o2", "o2/shown",
    ];
    assert_eq!(apply, set(&left));
    assert!(more(&image).values().all(|(_, _, list)| list.is_empty()));
    let (overlay, image) = names(Whiteouts::Overlay);
    let more_names: BTreeSet<String> = set(&["d/gone", "w", "m/marked"]);
    assert_eq!(overlay, &set(&left) | &more_names);
    let attributes = more(&image);
    assert_eq!(
        attributes[&b"o"[..]].2,
        [(b"trusted.overlay.opaque".to_vec(), b"y".to_vec())]
    );
    let gone = image.find_path(b"d/gone").unwrap().unwrap();
    let stat = image.stat(gone).unwrap();
    assert_eq!(
        (stat.file_type(), stat.rdev),
        (Some(FileType::CharDevice), 0)
    );
}

#[test]
fn an_added_tree_lies_over_the_others() {
    let data = |n: u8| vec![n; 100];
    let old = build(
        &files(&[("a/b", data(1)), ("a/c", data(2)), ("d", data(3))]),
        1,
        12,
    );
    let new = build(&files(&[("c", data(9)), ("e/f", data(3))]), 1, 16);
    let mut options = options();
    options.remove.push(b"a/b".to_vec());
    let after = with_added(&[("", &old)], &[("a", &new), ("x/y", &new)], &options).unwrap();
    let want = files(&[
        ("a/c", data(9)),
        ("a/e/f", data(3)),
        ("d", data(3)),
        ("x/y/c", data(9)),
        ("x/y/e/f", data(3)),
    ]);
    let fields = Fields {
        mtime: false,
        atime: false,
        ctime: false,
        ..SAME
    };
    let want = manifest(&build(&want, 1, 12));
    want.assert_same(&manifest(&after.image), fields, "added");
    assert_eq!(after.image.metadata().block_size(), 1 << 16);
    assert_eq!(after.summary.contents, 2);
}

#[test]
fn errors_say_what_does_not_fit() {
    let image = build(&files(&[("a/b", vec![1])]), 1, 12);
    let error = |parts: &[(&str, &Image)], change: &dyn Fn(&mut MergeOptions)| {
        let mut options = options();
        change(&mut options);
        merged(parts, &options).map(|_| ()).unwrap_err().to_string()
    };
    let one: &[(&str, &Image)] = &[("", &image)];
    assert_eq!(
        error(&[("x", &image), ("x", &image)], &|_| {}),
        "two images have the name 'x'"
    );
    assert_eq!(
        error(one, &|o| o.remove.push(b"q".to_vec())),
        "/q: there is no such entry"
    );
    assert_eq!(error(&[], &|_| {}), "invalid option: no image to merge");
    let added = with_added(one, &[("a/b/c", &image)], &options()).map(|_| ());
    assert_eq!(
        added.unwrap_err().to_string(),
        "/a/b/c: an entry on the way is not a directory"
    );
}

#[test]
fn history_is_joined() {
    let image = open(&std::fs::read(golden("basic-default").image).unwrap());
    let mut options = options();
    options.rewrite.history = Some(redwarfs_writer::HistoryOptions::default());
    let once = merged(&[("", &image)], &options).unwrap().image;
    let old = image.history().unwrap().entries;
    let new = once.history().unwrap().entries;
    assert_eq!(new[..new.len() - 1], old[..]);
    let joined = merged(&[("a", &once), ("b", &image)], &options)
        .unwrap()
        .image;
    assert_eq!(joined.history().unwrap().entries.len(), new.len() + 1);
}

#[test]
fn damaged_images_are_refused_and_never_panic() {
    let other = build(&files(&[("a/b", vec![1; 5000])]), 1, 12);
    for name in [
        "basic-default",
        "basic-lz4",
        "names-auto",
        "many-fragmented",
    ] {
        let parts = Parts::of(&std::fs::read(golden(name).image).unwrap());
        for seed in 0..120 {
            let (bytes, how) = mutate::image(&parts, &mut Rng::new(seed));
            let outcome = catch_unwind(AssertUnwindSafe(|| {
                let Ok(image) = try_open(&bytes) else { return };
                let mut options = options();
                options.rewrite.check = false;
                options.repack = 60;
                options.whiteouts = Whiteouts::Apply;
                options.filter = Some(Selection::new(|path, _| !path.ends_with(b"a")));
                // Whatever is written can be opened.
                if let Ok(after) = merged(&[("", &other), ("", &image)], &options) {
                    assert!(after.image.metadata().counts().entries > 0);
                }
            }));
            assert!(outcome.is_ok(), "{name}, seed {seed}: {how}");
        }
    }
}
