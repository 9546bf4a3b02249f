//! The golden image of snapshots: each one is read as it was when the image was made, whatever version reads it.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::support::{append_tree, archived_in, build_tree, changed, open, rebuilt, rich_options};
use redwarfs_append::{Archiving, TableChange};
use redwarfs_format::GenerationNo;
use redwarfs_format::metadata::{FileType, Timestamp};
use redwarfs_format::section::SectionType;
use redwarfs_io::{MemorySource, Source};
use redwarfs_reader::check::{
    CheckOptions, DeclaredImage, GenerationsCheck, SnapshotVerdict, VerifyMode,
};
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_testkit::tree::Random;
use redwarfs_testkit::{Fields, Manifest};
use redwarfs_writer::{MemoryNode, MemoryTree};

/// Writes the image and its manifests, instead of only making them.
const MAKE: &str = "REDWARFS_MAKE_GOLDEN";
/// Snapshots, the deleted one among them.
const SNAPSHOTS: u32 = 8;
const ARCHIVED: [u32; 3] = [1, 2, 3];
const PINNED: u32 = 5;
const DELETED: u32 = 6;

fn directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/snapshots")
}

fn manifest(number: u32) -> PathBuf {
    directory().join(format!("nights.{number}.json.gz"))
}

fn present() -> impl Iterator<Item = u32> {
    (1..=SNAPSHOTS).filter(|number| *number != DELETED)
}

/// The tree of a night. Some files stay, some change, and some come and go.
fn night(number: u32) -> MemoryTree {
    let at = |sec: i64| Timestamp { sec, nsec: 0 };
    let random = |seed: u32| Random::new(u64::from(seed));
    let mut tree = MemoryTree::new();
    for name in ["docs", "docs/old", "src"] {
        let mut node = MemoryNode::new(FileType::Directory);
        node.meta.mtime = at(1_700_000_000 + i64::from(number));
        tree.insert(name, node);
    }
    let mut put = |path: &str, data: Vec<u8>, seconds: i64| {
        let mut node = MemoryNode::file(data);
        (node.meta.uid, node.meta.gid) = (1000, 100);
        (node.meta.mtime, node.meta.atime) = (at(seconds), at(seconds + 1));
        node.meta.ctime = at(seconds + 2);
        node.meta.extended.set_birth(at(seconds - 1));
        if path.ends_with("main") {
            node.meta.permissions = 0o755;
            node.meta.extended.set(*b"user.night", number.to_string());
        }
        tree.insert(path, node);
    };
    put("docs/always", random(1).text(9_000), 1_600_000_000);
    // It grows.
    let log: Vec<u8> = (1..=number)
        .flat_map(|n| random(100 + n).text(700))
        .collect();
    put("docs/log", log, 1_700_000_000 + i64::from(number));
    put(
        "src/main",
        random(200 + number / 3).bytes(2_500),
        1_650_000_000,
    );
    put(
        &format!("src/only-{number}"),
        random(300 + number).text(1_200),
        1_660_000_000,
    );
    if number.is_multiple_of(2) {
        put("docs/old/even", random(2).bytes(3_000), 1_610_000_000);
    }
    tree.insert("src/link", MemoryNode::symlink(format!("only-{number}")));
    tree
}

/// An archive of the first nights, and later nights, one of them deleted.
fn make(workers: usize) -> Vec<u8> {
    let mut options = rich_options(workers);
    options.match_index = true;
    let name = |number: u32| format!("night-{number}");
    let mut image = build_tree(&night(1), &options);
    image = changed(&image, &[TableChange::Rename(GenerationNo(1), name(1))]);
    for number in 2..=4 {
        image = append_tree(&image, &night(number), &name(number), &options);
    }
    image = rebuilt(&image, Archiving::AllBut(1), workers).0;
    for number in 5..=SNAPSHOTS {
        image = append_tree(&image, &night(number), &name(number), &options);
    }
    let number = GenerationNo;
    let pin = TableChange::Pin(number(PINNED), true);
    changed(&image, &[pin, TableChange::Delete(number(DELETED))])
}

fn seen(image: &[u8], number: u32) -> Manifest {
    Manifest::from_image(&open(image, Some(&number.to_string())), true).unwrap()
}

#[test]
fn the_golden_image_can_be_made() {
    let image = make(1);
    assert!(make(3) == image);
    let but_numbers = Fields {
        ino: false,
        ..Fields::ALL
    };
    for number in present() {
        let alone = build_tree(&night(number), &rich_options(1));
        let alone = Manifest::from_image(&open(&alone, None), true).unwrap();
        alone.assert_same(&seen(&image, number), but_numbers, &number.to_string());
    }
    if std::env::var_os(MAKE).is_some() {
        std::fs::create_dir_all(directory()).unwrap();
        std::fs::write(directory().join("nights.dwarfs"), &image).unwrap();
        for number in present() {
            seen(&image, number).save(&manifest(number)).unwrap();
        }
    }
}

#[test]
fn each_snapshot_is_what_its_manifest_says() {
    let image = std::fs::read(directory().join("nights.dwarfs")).unwrap();
    let newest = open(&image, None);
    let table = newest.snapshots().unwrap();
    let numbers: Vec<u32> = table.present().map(|one| one.number.0).collect();
    assert_eq!(numbers, present().collect::<Vec<_>>());
    assert_eq!(archived_in(&image), ARCHIVED);
    for one in &table.snapshots {
        assert_eq!(one.name, format!("night-{}", one.number));
        assert_eq!(one.pinned, one.number.0 == PINNED);
        assert_eq!(one.deleted, one.number.0 == DELETED);
    }
    let has_anchors = |number: u32| {
        let image = open(&image, Some(&number.to_string()));
        let mut trailers = image.container().trailers.iter();
        trailers.any(|section| section.ty == SectionType::MATCH)
    };
    assert!(present().any(has_anchors));
    for number in present() {
        let golden = Manifest::load(&manifest(number));
        golden.assert_same(&seen(&image, number), Fields::ALL, &number.to_string());
    }
    // Without a choice it is the newest one, and other readers see it, too.
    let golden = Manifest::load(&manifest(SNAPSHOTS));
    let shown = Manifest::from_image(&newest, true).unwrap();
    golden.assert_same(&shown, Fields::ALL, "newest");

    let main = |image: &Image| {
        let inode = image.find_path(b"src/main").unwrap().unwrap();
        let xattr = image.xattrs(inode).unwrap().next().unwrap();
        image.xattr_value(&xattr).unwrap().into_owned()
    };
    assert_eq!(main(&open(&image, Some("night-2"))), b"2");

    let source: Arc<dyn Source> = Arc::new(MemorySource::new(image.clone()));
    let mut options = CheckOptions::default();
    (options.mode, options.decode) = (VerifyMode::Integrity, true);
    let list = newest.list_sections().unwrap();
    let declared = DeclaredImage::default();
    let first = newest.check(list, declared, &options, &|_| {}).unwrap();
    let all = GenerationsCheck::find(source, &OpenOptions::default()).unwrap();
    let all = all.check(&first, &options, &|_| {});
    assert!(
        first.is_ok() && all.findings.is_empty(),
        "{:?}",
        all.findings
    );
    let good = |verdict: &SnapshotVerdict| matches!(verdict, SnapshotVerdict::Good { .. });
    assert!(all.snapshots.iter().all(|one| good(&one.verdict)));

    // It can be continued, and nothing of it changes.
    let next = append_tree(&image, &night(9), "next", &rich_options(1));
    assert!(next.starts_with(&image));
    for number in present() {
        assert_eq!(seen(&next, number), seen(&image, number));
    }
}
