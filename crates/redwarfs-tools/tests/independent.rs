//! Other implementations read what we write, and we read what they write.
//!
//! The independent reader is the crate `dwarfs`: names in UTF-8, no sparse files, no packed shared
//! files table. The reference is used where its programs are installed.

use std::collections::BTreeMap;
use std::path::Path;

use crate::support::{DWARFSCK, DWARFSEXTRACT, Mount, build, must, reference, whole_seconds};
use dwarfs::{Archive, AsChunks};
use redwarfs_testkit::{Fields, Manifest, tree::Random};

/// A tree of what every reader can show.
fn plain_tree(root: &Path, seed: u64) {
    let mut random = Random::new(seed);
    for d in 0..12 {
        let dir = root.join(format!("dir-{d}/sub"));
        std::fs::create_dir_all(&dir).unwrap();
        for f in 0..random.below(40) {
            let len = random.below(40_000) as usize;
            let body = if f % 5 == 0 {
                random.bytes(len)
            } else {
                random.text(len)
            };
            std::fs::write(dir.join(format!("file-{f}-\u{e9}")), body).unwrap();
        }
        std::fs::copy(dir.join("file-0-\u{e9}"), dir.join("copy")).ok();
        std::os::unix::fs::symlink(format!("../t{d}"), dir.join("link")).unwrap();
    }
    std::fs::write(root.join("empty"), b"").unwrap();
    std::fs::hard_link(root.join("empty"), root.join("empty-2")).unwrap();
}

/// Path to (mode, uid, gid, mtime, content or target) as the independent reader shows it.
type Listing = BTreeMap<String, (u32, u32, u32, u64, Vec<u8>)>;

fn independent(image: &Path) -> Listing {
    let file = std::fs::File::open(image).unwrap();
    let (index, mut archive) = Archive::new(file).unwrap();
    let mut out = Listing::new();
    let mut todo = vec![(String::new(), index.root())];
    while let Some((prefix, dir)) = todo.pop() {
        for entry in dir.entries() {
            let path = format!("{prefix}{}", entry.name());
            let inode = entry.inode();
            let body = match inode.classify() {
                dwarfs::InodeKind::Directory(sub) => {
                    todo.push((format!("{path}/"), sub));
                    Vec::new()
                }
                dwarfs::InodeKind::File(file) => file.read_to_vec(&mut archive).unwrap(),
                dwarfs::InodeKind::Symlink(link) => link.target().as_bytes().to_vec(),
                other => panic!("{path}: unexpected kind {other:?}"),
            };
            let meta = inode.metadata();
            let shown = (
                meta.file_type_mode().0,
                meta.uid(),
                meta.gid(),
                meta.mtime(),
                body,
            );
            out.insert(path, shown);
        }
    }
    out
}

fn on_disk(root: &Path) -> Listing {
    Manifest::from_directory(root, false)
        .unwrap()
        .0
        .into_iter()
        .filter(|(path, _)| path != b".")
        .map(|(path, entry)| {
            let path = String::from_utf8(path).unwrap();
            let body = match entry.mode & 0o170_000 {
                0o100_000 => std::fs::read(root.join(&path)).unwrap(),
                0o120_000 => entry.target.unwrap(),
                _ => Vec::new(),
            };
            let seconds = u64::try_from(entry.mtime_ns / 1_000_000_000).unwrap();
            (path, (entry.mode, entry.uid, entry.gid, seconds, body))
        })
        .collect()
}

#[test]
fn the_independent_reader_agrees() {
    let dir = tempfile::tempdir().unwrap();
    let options: [&[&str]; 8] = [
        &["-l0"],
        &["-l1"],
        &["-l4", "-S14"],
        &["-l5", "-W8", "-w1", "-B4", "-S13"],
        &["-l7"],
        &["-l8", "-S16"],
        &[
            "-l3",
            "-P",
            "names,symlinks,names_index,symlinks_index,force",
        ],
        &[
            "-l3",
            "-P",
            "chunk_table,directories",
            "--no-hardlink-table",
        ],
    ];
    for (seed, options) in options.iter().enumerate() {
        let source = dir.path().join(format!("source-{seed}"));
        std::fs::create_dir(&source).unwrap();
        plain_tree(&source, seed as u64 + 1);
        let image = dir.path().join(format!("image-{seed}"));
        build(&source, &image, options);
        let (want, got) = (on_disk(&source), independent(&image));
        assert!(want.keys().eq(got.keys()), "{options:?}: names differ");
        for (path, entry) in &want {
            assert!(entry == &got[path], "{options:?}: {path} differs");
        }
    }
}

#[test]
fn the_reference_reads_what_we_write() {
    let Some(reference) = reference() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    redwarfs_testkit::tree::awkward_tree(&source).unwrap();
    let want = whole_seconds(Manifest::from_directory(&source, true).unwrap());
    let options: [&[&str]; 10] = [
        &["-l0"],
        &["-l1"],
        &["-l2", "-S12", "-W9", "-w2", "-B6"],
        &["-l5"],
        &["-l7"],
        &["-l9", "-S18"],
        &["-l3", "-P", "all,force"],
        &["-l3", "-P", "plain"],
        &[
            "-C",
            "brotli:quality=5:lgwin=26",
            "--no-section-index",
            "--no-hardlink-table",
        ],
        &[
            "-C",
            "lzma:level=3:binary=x86",
            "--no-history",
            "--no-create-timestamp",
            "-P",
            "none",
        ],
    ];
    for (i, options) in options.iter().enumerate() {
        let image = dir.path().join(format!("image-{i}"));
        build(
            &source,
            &image,
            &[options, &["--with-devices", "--with-specials"][..]].concat(),
        );
        must(
            reference.join("dwarfsck"),
            [
                image.as_os_str(),
                "--check-integrity".as_ref(),
                "-q".as_ref(),
            ],
        );
        let mnt = dir.path().join("mnt");
        if let Some(mount) = Mount::with(reference.join("dwarfs"), &image, &mnt, &[]) {
            let got = Manifest::from_directory(&mnt, true).unwrap();
            want.assert_same(
                &got,
                Fields::EXTRACTED,
                &format!("{options:?} in the reference"),
            );
            drop(mount);
        }
        // Both drivers must show the same in every field, inode numbers included.
        let (theirs, ours) = (dir.path().join("theirs"), dir.path().join("ours"));
        let theirs_mount = Mount::with(reference.join("dwarfs"), &image, &theirs, &[]);
        if let (Some(_a), Some(_b)) = (theirs_mount, Mount::new(&image, &ours, &[])) {
            let theirs = Manifest::from_directory(&theirs, false).unwrap();
            let ours = Manifest::from_directory(&ours, false).unwrap();
            theirs.assert_same(&ours, Fields::ALL, &format!("{options:?} in both drivers"));
        }
    }
}

#[test]
fn we_read_what_the_reference_writes() {
    let Some(reference) = reference() else {
        return;
    };
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("source");
    std::fs::create_dir(&source).unwrap();
    redwarfs_testkit::tree::awkward_tree(&source).unwrap();
    let want = whole_seconds(Manifest::from_directory(&source, true).unwrap());
    for options in [
        &["-l1"][..],
        &["-l7"],
        &["-l9"],
        &["-l3", "-P", "all", "-S14", "-B8"],
    ] {
        let image = dir.path().join("image");
        let mut args = vec![
            "-i",
            source.to_str().unwrap(),
            "-o",
            image.to_str().unwrap(),
            "-f",
        ];
        args.extend(["--with-devices", "--with-specials", "--no-progress"]);
        args.extend(options);
        must(reference.join("mkdwarfs"), args);
        must(
            DWARFSCK,
            [
                image.as_os_str(),
                "--check-integrity".as_ref(),
                "-q".as_ref(),
            ],
        );
        let out = dir.path().join("out");
        std::fs::create_dir(&out).unwrap();
        must(
            DWARFSEXTRACT,
            [
                "-i".as_ref(),
                image.as_os_str(),
                "-o".as_ref(),
                out.as_os_str(),
            ],
        );
        let got = Manifest::from_directory(&out, true).unwrap();
        want.assert_same(&got, Fields::EXTRACTED, &format!("{options:?}"));
        std::fs::remove_dir_all(&out).unwrap();
    }
}
