//! Joining layers, images with other times, and images of which one is damaged.

use std::sync::atomic::AtomicBool;

use crate::common::{open, try_open};
use redwarfs_reader::Image;
use redwarfs_rewrite::Error;
use redwarfs_rewrite::merge::{Error as MergeError, MergeOptions, Part, Whiteouts, merge};
use redwarfs_writer::{
    BuildOptions, Builder, FileType, MemoryNode, MemoryTree, SilentProgress, TimeResolution,
    Timestamp,
};

const OPAQUE: &str = "trusted.overlay.opaque";

fn bytes(tree: &MemoryTree, resolution: TimeResolution) -> Vec<u8> {
    let mut options = BuildOptions::level(1);
    options.block_size_bits = 12;
    options.workers = 1;
    options.time_resolution = resolution;
    options.with_devices = true;
    let mut image = Vec::new();
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    let builder = Builder::new(options);
    builder.build(tree, &mut image, &progress, &stop).unwrap();
    image
}

fn build(tree: &MemoryTree) -> Image {
    open(&bytes(tree, TimeResolution::SECOND))
}

fn options(whiteouts: Whiteouts) -> MergeOptions {
    let mut options = MergeOptions::level(1);
    options.rewrite.workers = 1;
    options.whiteouts = whiteouts;
    options
}

fn joined(parts: &[Part<'_>], added: &[Part<'_>], options: &MergeOptions) -> Result<Image, Error> {
    let mut out = Vec::new();
    let (progress, stop) = (SilentProgress::default(), AtomicBool::new(false));
    merge(parts, added, options, &mut out, &progress, &stop)?;
    Ok(open(&out))
}

fn layers(images: &[Image], whiteouts: Whiteouts) -> Image {
    let parts: Vec<Part<'_>> = images.iter().map(|image| Part::new(image, b"")).collect();
    joined(&parts, &[], &options(whiteouts)).unwrap()
}

fn tree(files: &[&str]) -> MemoryTree {
    let mut tree = MemoryTree::new();
    for path in files {
        for (end, _) in path.match_indices('/') {
            tree.insert(&path[..end], MemoryNode::new(FileType::Directory));
        }
        tree.insert(*path, MemoryNode::file(b"data".to_vec()));
    }
    tree
}

fn mark(tree: &mut MemoryTree, path: &str, name: &str, value: &[u8]) {
    let mut node = tree.get(path.as_bytes()).unwrap().clone();
    node.meta.extended.set(name, value);
    tree.insert(path, node);
}

fn attribute(image: &Image, path: &str, name: &str) -> Option<Vec<u8>> {
    let inode = image.find_path(path.as_bytes()).unwrap().unwrap();
    let found = image.xattrs(inode).unwrap().find(name.as_bytes()).unwrap();
    found.map(|found| image.xattr_value(&found).unwrap().into_owned())
}

fn is_whiteout(image: &Image, path: &str) -> bool {
    let inode = image.find_path(path.as_bytes()).unwrap().unwrap();
    let stat = image.stat(inode).unwrap();
    stat.file_type() == Some(FileType::CharDevice) && stat.rdev == 0
}

#[test]
fn a_directory_over_another_entry_stays_opaque() {
    let device = {
        let mut device = MemoryTree::new();
        let mut node = MemoryNode::new(FileType::CharDevice);
        node.meta.rdev = 0;
        device.insert("d", node);
        device
    };
    for (what, middle) in [
        ("name", tree(&[".wh.d"])),
        ("device", device),
        ("file", tree(&["d"])),
    ] {
        let images = [
            build(&tree(&["d/old"])),
            build(&middle),
            build(&tree(&["d/new"])),
        ];
        let image = layers(&images, Whiteouts::Overlay);
        let mark = attribute(&image, "d", OPAQUE);
        assert_eq!(mark.as_deref(), Some(&b"y"[..]), "{what}");
        assert!(image.find_path(b"d/old").unwrap().is_none(), "{what}");
        assert!(image.find_path(b"d/new").unwrap().is_some(), "{what}");
        // Also if it is added.
        let parts: Vec<Part<'_>> = images[..2]
            .iter()
            .map(|image| Part::new(image, b""))
            .collect();
        let added = [Part::new(&images[2], b"")];
        let image = joined(&parts, &added, &options(Whiteouts::Overlay)).unwrap();
        assert!(attribute(&image, "d", OPAQUE).is_some(), "{what}");
        let image = layers(&images, Whiteouts::Apply);
        assert_eq!(attribute(&image, "d", OPAQUE), None, "{what}");
    }
    // Over a directory, it is none.
    let images = [build(&tree(&["d/old"])), build(&tree(&["d/new"]))];
    let image = layers(&images, Whiteouts::Overlay);
    assert_eq!(attribute(&image, "d", OPAQUE), None);
}

#[test]
fn marks_of_overlayfs_stay_when_a_later_layer_has_the_directory() {
    let user = "user.overlay.opaque";
    for name in [OPAQUE, user] {
        let mut middle = tree(&["d/middle"]);
        mark(&mut middle, "d", name, b"y");
        let images = [
            build(&tree(&["d/old"])),
            build(&middle),
            build(&tree(&["d/new"])),
        ];
        let image = layers(&images, Whiteouts::Overlay);
        assert_eq!(attribute(&image, "d", name).unwrap(), b"y");
        let other = if name == user { OPAQUE } else { user };
        assert_eq!(attribute(&image, "d", other), None);
        assert!(image.find_path(b"d/old").unwrap().is_none());
        assert!(image.find_path(b"d/middle").unwrap().is_some());
    }
    let mut middle = tree(&["d/gone"]);
    middle.insert("d/gone", MemoryNode::file(Vec::new()));
    mark(&mut middle, "d", user, b"x");
    mark(&mut middle, "d/gone", "user.overlay.whiteout", b"");
    let images = [
        build(&tree(&["d/gone"])),
        build(&middle),
        build(&tree(&["d/new"])),
    ];
    let image = layers(&images, Whiteouts::Overlay);
    assert!(is_whiteout(&image, "d/gone"));
    // A file of the last layer replaces the whiteout.
    let images = [&images[..], &[build(&tree(&["d/gone"]))]].concat();
    assert!(!is_whiteout(&layers(&images, Whiteouts::Overlay), "d/gone"));
}

#[test]
fn attributes_of_what_is_added_stay() {
    let mut marked = tree(&["d/a"]);
    mark(&mut marked, "d", OPAQUE, b"y");
    let marked = build(&marked);
    let image = joined(
        &[Part::new(&marked, b"")],
        &[Part::new(&marked, b"new")],
        &options(Whiteouts::Apply),
    );
    let image = image.unwrap();
    assert_eq!(attribute(&image, "d", OPAQUE), None);
    assert_eq!(attribute(&image, "new/d", OPAQUE).unwrap(), b"y");
}

#[test]
fn times_do_not_change_when_no_resolution_divides_the_other() {
    let image = |seconds: u64, time: i64| {
        let mut tree = MemoryTree::new();
        let mut node = MemoryNode::file(b"x".to_vec());
        node.meta.mtime = Timestamp { sec: time, nsec: 0 };
        tree.insert("f", node);
        let resolution = TimeResolution::from_nanos(seconds * 1_000_000_000).unwrap();
        open(&bytes(&tree, resolution))
    };
    let (a, b) = (image(2, 1_000_004), image(3, 999_999));
    let parts = [Part::new(&a, b"a"), Part::new(&b, b"b")];
    let mut options = options(Whiteouts::Keep);
    let after = joined(&parts, &[], &options).unwrap();
    for (path, old) in [("a/f", &a), ("b/f", &b)] {
        let time = |image: &Image, path: &str| {
            let inode = image.find_path(path.as_bytes()).unwrap().unwrap();
            image.stat(inode).unwrap().mtime
        };
        assert_eq!(time(&after, path), time(old, "f"), "{path}");
    }
    // A resolution that the user wants has to fit all images.
    options.coarsen = true;
    options.metadata.time_resolution = TimeResolution::from_nanos(4_000_000_000).unwrap();
    let error = joined(&parts, &[], &options).unwrap_err().to_string();
    assert!(
        error.contains("cannot convert time to a coarser"),
        "{error}"
    );
    options.metadata.time_resolution = TimeResolution::from_nanos(6_000_000_000).unwrap();
    joined(&parts, &[], &options).unwrap();
}

#[test]
fn errors_say_which_image_is_damaged() {
    let noise = |seed: u32| -> Vec<u8> {
        let next = |x: &mut u32| {
            *x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            Some((*x >> 24) as u8)
        };
        std::iter::from_fn({
            let mut x = seed;
            move || next(&mut x)
        })
        .take(9000)
        .collect()
    };
    let image = |seed: u32| {
        let mut tree = MemoryTree::new();
        tree.insert("f", MemoryNode::file(noise(seed)));
        bytes(&tree, TimeResolution::SECOND)
    };
    let (good, mut bad) = (open(&image(1)), image(2));
    bad[200] ^= 1;
    let bad = try_open(&bad).unwrap();
    for check in [true, false] {
        for (parts, added, number) in [
            (vec![&good, &bad], vec![], 1),
            (vec![&bad, &good], vec![], 0),
            (vec![&good], vec![&bad], 1),
        ] {
            let list = |images: Vec<&'_ Image>,
                        names: [&'static [u8]; 2]|
             -> Vec<(Image, &'static [u8])> {
                let images = images.into_iter().cloned();
                images.zip(names).collect()
            };
            let (parts, added) = (list(parts, [b"a", b"b"]), list(added, [b"c", b"d"]));
            let parts: Vec<_> = parts.iter().map(|(i, at)| Part::new(i, at)).collect();
            let added: Vec<_> = added.iter().map(|(i, at)| Part::new(i, at)).collect();
            let mut options = options(Whiteouts::Keep);
            options.rewrite.check = check;
            match joined(&parts, &added, &options) {
                Err(Error::Part { number: found, .. }) => assert_eq!(found, number, "{check}"),
                other => panic!("{check}: {other:?}"),
            }
        }
    }
    let unnamed = build(&tree(&["d/.wh."]));
    let parts = [Part::new(&good, b""), Part::new(&unnamed, b"")];
    let error = joined(&parts, &[], &options(Whiteouts::Apply)).unwrap_err();
    assert!(matches!(error, Error::Part { number: 1, .. }), "{error:?}");
    assert_eq!(error.to_string(), "/d/.wh.: a whiteout has no name");
}

#[test]
fn places_must_be_apart() {
    let image = build(&tree(&["b/c"]));
    let place = |at: &'static str| Part::new(&image, at.as_bytes());
    let refused = |parts: &[Part<'_>]| {
        let error = joined(parts, &[], &options(Whiteouts::Keep)).unwrap_err();
        assert!(matches!(
            error,
            Error::Merge(MergeError::Name(_) | MergeError::Nested { .. })
        ));
        error.to_string()
    };
    assert_eq!(
        refused(&[place("x/a/b"), place("ab"), place("x//a/")]),
        "the name 'x/a/b' is inside of 'x/a', the name of another image"
    );
    assert_eq!(
        refused(&[place("a/b"), place("a//b")]),
        "two images have the name 'a/b'"
    );
    joined(
        &[place("a"), place("ab"), place("b/a"), place("b/c")],
        &[],
        &options(Whiteouts::Keep),
    )
    .unwrap();
}
