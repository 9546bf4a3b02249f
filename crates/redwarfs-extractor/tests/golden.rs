//! The golden images, taken apart, show what a mount of them shows.

#![cfg(unix)]

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::sync::Mutex;

use redwarfs_extractor::{
    ExtractOptions, Progress, Silent, TarFormat, extract_to_archive, extract_to_directory,
};
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::{
    Fields, Golden, Manifest, compat_images, golden_images, is_installed, skip,
};

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn open(golden: &Golden) -> Image {
    Image::open(&golden.image, &OpenOptions::default()).unwrap()
}

/// What the file system can show: the mode of symbolic links is not recorded there.
fn want_on_disk(golden: &Golden) -> Manifest {
    let mut want = golden.manifest();
    for entry in want.0.values_mut() {
        if entry.mode & 0o170_000 == 0o120_000 {
            entry.mode = 0o120_777;
        }
    }
    want
}

fn check(golden: &Golden, options: &ExtractOptions) {
    let out = tempfile::tempdir().unwrap();
    extract_to_directory(&open(golden), out.path(), options, &Silent)
        .unwrap_or_else(|e| panic!("{}: {e}", golden.name));
    let got = Manifest::from_directory(out.path(), true).unwrap();
    let fields = Fields {
        atime: false,
        ..Fields::EXTRACTED
    };
    want_on_disk(golden).assert_same(&got, fields, &golden.name);
}

#[test]
fn directories_equal_the_manifests() {
    if !is_root() {
        return skip("extraction with owners and devices", "needs root");
    }
    for golden in golden_images().iter() {
        check(golden, &ExtractOptions::default());
    }
}

#[test]
fn old_images_equal_the_manifests() {
    if !is_root() {
        return skip("extraction with owners and devices", "needs root");
    }
    for golden in compat_images() {
        let out = tempfile::tempdir().unwrap();
        extract_to_directory(
            &open(&golden),
            out.path(),
            &ExtractOptions::default(),
            &Silent,
        )
        .unwrap();
        let want = want_on_disk(&golden).linked_by_attributes();
        let got = Manifest::from_directory(out.path(), true).unwrap();
        want.assert_same(&got, Fields::EXTRACTED, &golden.name);
    }
}

/// Names of one inode number have attributes of their own in images before format 2.3.
#[test]
fn names_of_old_images_keep_their_own_attributes() {
    if !is_root() {
        return skip("extraction with owners and devices", "needs root");
    }
    let mut different = 0;
    for golden in compat_images() {
        let image = open(&golden);
        if !image.metadata().is_legacy() {
            continue;
        }
        let out = tempfile::tempdir().unwrap();
        let options = ExtractOptions::default();
        let summary = extract_to_directory(&image, out.path(), &options, &Silent).unwrap();
        let mut inodes = std::collections::HashMap::new();
        for item in image.walk().map(Result::unwrap) {
            let stat = image.metadata().entry_stat(item.entry).unwrap();
            if stat.mode & 0o170_000 != 0o100_000 {
                continue;
            }
            let path = out.path().join(std::str::from_utf8(&item.path).unwrap());
            let found = std::fs::symlink_metadata(path).unwrap();
            assert_eq!(
                (found.mode(), found.uid(), found.gid(), found.mtime()),
                (stat.mode, stat.uid, stat.gid, stat.mtime.sec),
                "{}: {:?}",
                golden.name,
                item.path
            );
            // Equal ones are links, others are files of their own.
            let names = inodes.entry((item.inode, stat.attributes()));
            assert_eq!(
                *names.or_insert(found.ino()),
                found.ino(),
                "{}",
                golden.name
            );
            if stat != image.stat(item.inode).unwrap() {
                different += 1;
            }
        }
        assert_eq!(summary.files, inodes.len() as u64, "{}", golden.name);
    }
    assert!(different > 0, "no image has names that differ");
}

#[test]
fn threads_and_memory_do_not_matter() {
    if !is_root() {
        return skip("extraction with owners and devices", "needs root");
    }
    for (threads, writers, memory) in [(1, 1, 0), (8, 3, 1 << 20), (2, 8, u64::MAX)] {
        let mut options = ExtractOptions::default();
        options.threads = threads;
        options.writers = writers;
        options.memory = memory;
        check(&golden("many-fragmented"), &options);
        check(&golden("basic-zstd-small-blocks"), &options);
    }
}

#[test]
fn holes_stay_holes() {
    let mut with_holes = 0;
    for golden in golden_images() {
        let image = open(&golden);
        let sizes = image.metadata().totals();
        if sizes.allocated == sizes.size {
            continue;
        }
        let out = tempfile::tempdir().unwrap();
        extract_to_directory(&image, out.path(), &ExtractOptions::default(), &Silent).unwrap();
        for item in image.walk() {
            let item = item.unwrap();
            let stat = image.stat(item.inode).unwrap();
            if stat.allocated < stat.size {
                with_holes += 1;
                let path = out.path().join(OsStr::from_bytes(&item.path));
                let found = std::fs::symlink_metadata(&path).unwrap();
                assert_eq!(found.size(), stat.size);
                assert!(
                    found.blocks() * 512 <= stat.allocated + (1 << 20),
                    "{}",
                    path.display()
                );
            }
        }
    }
    assert!(with_holes > 0);
}

fn have(tool: &str) -> bool {
    let found = is_installed(tool);
    if !found {
        skip(tool, "not installed");
    }
    found
}

fn archive(golden: &Golden, format: TarFormat, to: &Path) -> Result<(), redwarfs_extractor::Error> {
    let mut options = ExtractOptions::default();
    options.skip_specials = true;
    let mut file = std::io::BufWriter::new(std::fs::File::create(to).unwrap());
    extract_to_archive(&open(golden), &mut file, &format.into(), &options, &Silent).map(|_| ())
}

/// What extraction of an archive shows, against what the image shows.
fn compare_archive(golden: &Golden, format: TarFormat, tool: &str) {
    let dir = tempfile::tempdir().unwrap();
    let tar = dir.path().join("a.tar");
    match archive(golden, format, &tar) {
        Ok(()) => {}
        Err(e @ redwarfs_extractor::Error::NotRepresentable { .. })
            if format == TarFormat::Ustar =>
        {
            return skip(&golden.name, &e.to_string());
        }
        Err(e) => panic!("{}: {format}: {e}", golden.name),
    }
    let out = dir.path().join("out");
    std::fs::create_dir(&out).unwrap();
    let mut command = Command::new(tool);
    let output = if tool == "python3" {
        let script = "import sys, tarfile\n\
                      tar = tarfile.open(sys.argv[1])\n\
                      tar.extractall(sys.argv[2], numeric_owner=True)\n";
        command
            .args(["-c", script])
            .args([&tar, &out])
            .output()
            .unwrap()
    } else {
        let options = ["-x", "-p", "--numeric-owner", "-f"];
        command
            .args(options)
            .arg(&tar)
            .arg("-C")
            .arg(&out)
            .output()
            .unwrap()
    };
    let what = format!("{}: {format} by {tool}", golden.name);
    assert!(
        output.status.success(),
        "{what}: {}",
        String::from_utf8_lossy(&output.stderr)
    );
    let mut want = golden.manifest();
    want.0
        .retain(|_, e| !matches!(e.mode & 0o170_000, 0o140_000 | 0o010_000));
    let mut got = Manifest::from_directory(&out, true).unwrap();
    if format != TarFormat::Pax || tool == "python3" {
        // Whole seconds, in the format or in what the program makes of a decimal fraction.
        for e in want.0.values_mut().chain(got.0.values_mut()) {
            e.mtime_ns = e.mtime_ns.div_euclid(1_000_000_000);
            if format == TarFormat::Ustar {
                e.mtime_ns = e.mtime_ns.max(0);
            }
        }
    }
    // Symbolic links keep no time with every program.
    let mut fields = Fields::EXTRACTED;
    if tool == "python3" {
        fields.mtime = false;
    }
    want.assert_same(&got, fields, &what);
}

#[test]
fn archives_hold_the_tree() {
    if !is_root() {
        return skip("extraction with owners and devices", "needs root");
    }
    let names = [
        "basic-default",
        "basic-all-times-ns",
        "empty",
        "one",
        "many-fragmented",
        "names-auto",
    ];
    let images = names.map(golden);
    for tool in ["tar", "bsdtar", "python3"] {
        if !have(tool) {
            continue;
        }
        for format in TarFormat::ALL {
            for golden in &images {
                // Zeros instead of holes would make these huge.
                let manifest = golden.manifest();
                let total: u64 = manifest
                    .0
                    .values()
                    .filter(|e| e.sha256.is_some())
                    .map(|e| e.size)
                    .sum();
                if total <= 256 << 20 || (format == TarFormat::Pax && tool == "tar") {
                    compare_archive(golden, format, tool);
                }
            }
        }
    }
}

/// Remembers what is reported.
#[derive(Debug, Default)]
struct Reports(Mutex<Vec<String>>);

impl Progress for Reports {
    fn damaged(&self, path: &str, _cause: &str) {
        self.0.lock().unwrap().push(path.to_owned());
    }
}

/// A copy of a golden image with a flipped byte in the payload of a block.
fn damaged(name: &str, block: u32) -> (tempfile::TempDir, Image) {
    let golden = golden(name);
    let mut bytes = std::fs::read(&golden.image).unwrap();
    let image = open(&golden);
    let container = image.container();
    let section = container.block(redwarfs_format::BlockNo(block)).unwrap();
    let at = container.offset + section.payload_offset + section.length / 2;
    bytes[usize::try_from(at).unwrap()] ^= 0x55;
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("damaged");
    std::fs::write(&path, bytes).unwrap();
    let image = Image::open(&path, &OpenOptions::default()).unwrap();
    (dir, image)
}

#[test]
fn damage_ends_the_extraction_or_is_reported_by_name() {
    let (_dir, image) = damaged("basic-zstd-small-blocks", 0);
    let out = tempfile::tempdir().unwrap();
    let mut options = ExtractOptions::default();
    options.skip_devices = true;
    assert!(extract_to_directory(&image, out.path(), &options, &Silent).is_err());

    let out = tempfile::tempdir().unwrap();
    options.continue_on_error = true;
    let reports = Reports::default();
    let summary = extract_to_directory(&image, out.path(), &options, &reports).unwrap();
    let mut lost = reports.0.into_inner().unwrap();
    lost.sort();
    assert_eq!(summary.damaged, lost.len() as u64);
    assert!(!lost.is_empty());
    for item in image.walk() {
        let item = item.unwrap();
        let metadata = image.metadata();
        if metadata.file_type(item.inode).unwrap() != redwarfs_format::metadata::FileType::Regular {
            continue;
        }
        let affected = metadata.extents(item.inode).unwrap().any(|extent| {
            matches!(extent.unwrap(), redwarfs_format::metadata::Extent::Data { block, .. } if block.0 == 0)
        });
        let shown = redwarfs_extractor::display_path(&item.path);
        use std::os::unix::ffi::OsStrExt;
        let exists = out
            .path()
            .join(std::ffi::OsStr::from_bytes(&item.path))
            .symlink_metadata()
            .is_ok();
        assert_eq!(affected, lost.binary_search(&shown).is_ok(), "{shown}");
        assert_eq!(affected, !exists, "{shown}");
    }

    let mut options = ExtractOptions::default();
    options.skip_specials = true;
    options.continue_on_error = true;
    let reports = Reports::default();
    let summary = extract_to_archive(
        &image,
        &mut Vec::new(),
        &TarFormat::Pax.into(),
        &options,
        &reports,
    )
    .unwrap();
    let mut in_archive = reports.0.into_inner().unwrap();
    in_archive.sort();
    assert_eq!(in_archive, lost);
    assert_eq!(summary.damaged, lost.len() as u64);
}

#[test]
fn a_second_extraction_replaces_the_first() {
    if !is_root() {
        return skip("extraction with owners and devices", "needs root");
    }
    let golden = golden("basic-default");
    let out = tempfile::tempdir().unwrap();
    std::fs::write(out.path().join("bystander"), "kept").unwrap();
    for _ in 0..2 {
        extract_to_directory(
            &open(&golden),
            out.path(),
            &ExtractOptions::default(),
            &Silent,
        )
        .unwrap();
    }
    assert_eq!(
        std::fs::read(out.path().join("bystander")).unwrap(),
        b"kept"
    );
    std::fs::remove_file(out.path().join("bystander")).unwrap();
    let mut want = want_on_disk(&golden);
    let mut got = Manifest::from_directory(out.path(), true).unwrap();
    want.0.remove(&b"."[..]);
    got.0.remove(&b"."[..]);
    want.assert_same(&got, Fields::EXTRACTED, "extracted twice");
}
