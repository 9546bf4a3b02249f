//! The directory of snapshots in a mount.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::driver::{Mount, can_mount, dwarfs, errno, stderr};
use crate::support::{DWARFSCK, MKDWARFS, must};

/// An image with a snapshot for each of its trees.
struct History {
    dir: tempfile::TempDir,
}

impl History {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir_all(dir.path().join("tree/sub")).unwrap();
        Self { dir }
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn check(&self, arguments: &[&str]) {
        let image = self.image();
        must(DWARFSCK, [&[image.to_str().unwrap()], arguments].concat());
    }

    /// Makes the image, or adds the tree as it is.
    fn add(&self, name: &str) {
        let (tree, image) = (self.tree(), self.image());
        let (tree, image) = (tree.to_str().unwrap(), image.to_str().unwrap());
        let fixed = ["-i", tree, "-l3", "--no-progress", "--log-level=error"];
        if self.image().exists() {
            let more = ["--append", image, "--snapshot-name", name];
            must(MKDWARFS, [&fixed[..], &more].concat());
        } else {
            must(MKDWARFS, [&fixed[..], &["-o", image]].concat());
        }
    }

    /// Twelve snapshots, more than a mount keeps open. Each has a file of its own, and `same` with its number.
    fn of_twelve() -> Self {
        let history = Self::new();
        for number in 1..=12 {
            fs::write(history.tree().join("same"), format!("{number:04}")).unwrap();
            let own = history.tree().join(format!("sub/own{number}"));
            fs::write(own, vec![number as u8; 20_000]).unwrap();
            history.add(&format!("s{number}"));
        }
        history.check(&["--rename-snapshot", "1", "s1"]);
        history
    }
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

fn seek(file: &mut File, whence: SeekFrom) -> u64 {
    file.seek(whence).unwrap()
}

#[test]
fn every_snapshot_is_a_directory() {
    if !can_mount("every_snapshot_is_a_directory") {
        return;
    }
    let history = History::of_twelve();
    history.check(&["--delete-snapshot", "s5"]);
    for options in ["snapshots=.snapshots", "snapshots=.snapshots,snapshot=s3"] {
        let mount = Mount::background(&history.image(), options);
        let root = mount.point();
        assert_eq!(names(root), ["same", "sub"].map(str::to_owned).into());
        let all = root.join(".snapshots");
        let wanted: Vec<u8> = (1..=12).filter(|number| *number != 5).collect();
        let listed = wanted.iter().map(|number| format!("s{number}"));
        assert_eq!(names(&all), listed.collect());
        assert_eq!(errno(fs::metadata(all.join("s5"))), libc::ENOENT);
        assert_eq!(errno(fs::metadata(all.join("other"))), libc::ENOENT);
        assert_eq!(errno(File::create(all.join("new"))), libc::EROFS);
        assert_eq!(errno(fs::create_dir(all.join("s1/new"))), libc::EROFS);
        assert!(fs::metadata(&all).unwrap().is_dir());

        // Files that are open, and names that the kernel knows, outlive that their snapshot is closed.
        let early = File::open(all.join("s1/sub/own1")).unwrap();
        let mut numbers = BTreeSet::new();
        for round in 0..2 {
            for &number in &wanted {
                let snapshot = all.join(format!("s{number}"));
                let same = snapshot.join("same");
                assert_eq!(fs::read_to_string(&same).unwrap(), format!("{number:04}"));
                let own = (1..=number).map(|own| format!("own{own}")).collect();
                assert_eq!(names(&snapshot.join("sub")), own);
                let own = fs::read(snapshot.join(format!("sub/own{number}"))).unwrap();
                assert_eq!(own, vec![number; 20_000]);
                let metadata = fs::metadata(&same).unwrap();
                assert_eq!(metadata.dev(), fs::metadata(root).unwrap().dev());
                assert_eq!(numbers.insert(metadata.ino()), round == 0);
                // Programs for 32-bit systems take no larger ones.
                assert!(metadata.ino() <= u64::from(u32::MAX));
                let up = fs::metadata(snapshot.join("..")).unwrap();
                assert_eq!(up.ino(), fs::metadata(&all).unwrap().ino());
            }
        }
        let up = fs::metadata(all.join("..")).unwrap();
        assert_eq!(up.ino(), fs::metadata(root).unwrap().ino());
        let mut bytes = [0; 20_000];
        early.read_exact_at(&mut bytes, 0).unwrap();
        assert!(bytes.iter().all(|&byte| byte == 1));

        let newest = if options.contains("s3") { 3 } else { 12 };
        let shown = fs::read_to_string(root.join("same")).unwrap();
        assert_eq!(shown, format!("{newest:04}"));
    }
}

#[test]
fn a_mount_keeps_its_list_of_snapshots() {
    if !can_mount("a_mount_keeps_its_list_of_snapshots") {
        return;
    }
    let history = History::of_twelve();
    let mount = Mount::background(&history.image(), "snapshots=old");
    fs::write(history.tree().join("same"), "0013").unwrap();
    history.add("s13");
    let all = mount.point().join("old");
    assert_eq!(names(&all).len(), 12);
    assert_eq!(fs::read_to_string(all.join("s2/same")).unwrap(), "0002");
    assert_eq!(errno(fs::metadata(all.join("s13"))), libc::ENOENT);
    let fresh = Mount::background(&history.image(), "snapshots=old");
    let added = fresh.point().join("old/s13/same");
    assert_eq!(fs::read_to_string(added).unwrap(), "0013");
}

#[test]
fn what_one_snapshot_has_is_shown_where_others_have_none() {
    if !can_mount("what_one_snapshot_has_is_shown_where_others_have_none") {
        return;
    }
    let history = History::new();
    let path = history.tree().join("file");
    let mut file = File::create(&path).unwrap();
    file.write_all(&[1; 4096]).unwrap();
    file.set_len(8 << 20).unwrap();
    file.write_all_at(&[2; 4096], (8 << 20) - 4096).unwrap();
    history.add("holes");
    fs::remove_file(&path).unwrap();
    fs::write(&path, [3; 4096]).unwrap();
    history.add("none");
    let mount = Mount::background(&history.image(), "snapshots=.s");
    let mut newest = File::open(mount.point().join("file")).unwrap();
    assert_eq!(seek(&mut newest, SeekFrom::End(0)), 4096);
    let first = names(&mount.point().join(".s"));
    let first = first.iter().find(|name| *name != "none").unwrap();
    let mut old = File::open(mount.point().join(".s").join(first).join("file")).unwrap();
    let hole = rustix::fs::seek(&old, rustix::fs::SeekFrom::Hole(0)).unwrap();
    assert!((4096..1 << 20).contains(&hole), "{hole}");
    let data = rustix::fs::seek(&old, rustix::fs::SeekFrom::Data(hole)).unwrap();
    assert!(data > 7 << 20, "{data}");
    assert_eq!(seek(&mut old, SeekFrom::Start(0)), 0);
    let mut bytes = Vec::new();
    old.read_to_end(&mut bytes).unwrap();
    assert_eq!((bytes.len(), bytes[0], bytes[5000]), (8 << 20, 1, 0));
    assert_eq!(bytes.last(), Some(&2));
}

#[test]
fn a_damaged_snapshot_fails_alone() {
    if !can_mount("a_damaged_snapshot_fails_alone") {
        return;
    }
    let history = History::of_twelve();
    // The metadata of the first snapshot: the section in front of its history.
    let listed = must(
        DWARFSCK,
        [history.image().to_str().unwrap(), "--snapshots", "-j"],
    );
    let text = String::from_utf8_lossy(&listed.stdout).into_owned();
    let first: serde_json::Value = serde_json::from_str(text.lines().next().unwrap()).unwrap();
    let end = first["image_size"].as_u64().unwrap();
    let mut bytes = fs::read(history.image()).unwrap();
    let old = &mut bytes[..end as usize];
    let is_metadata =
        |at: &usize| old[*at..].starts_with(b"DWARFS\x02\x05") && old[*at + 52..*at + 54] == [8, 0];
    let at = (0..old.len() - 64).find(is_metadata).unwrap();
    old[at + 70] ^= 0x10;
    fs::write(history.image(), &bytes).unwrap();
    let mut mount = Mount::foreground(&history.image(), &["-o", "snapshots=.snapshots"]);
    let all = mount.point().join(".snapshots");
    assert_eq!(names(&all).len(), 12);
    for _ in 0..3 {
        assert_eq!(errno(fs::metadata(all.join("s1"))), libc::EIO);
    }
    assert_eq!(fs::read_to_string(all.join("s2/same")).unwrap(), "0002");
    mount.signal(rustix::process::Signal::TERM);
    let (_, said) = mount.finish();
    assert_eq!(
        said.matches("cannot open snapshot 's1'").count(),
        1,
        "{said}"
    );
    assert!(said.contains("checksum"), "{said}");
}

#[test]
fn an_entry_of_the_image_does_not_take_the_place_of_the_directory() {
    if !can_mount("an_entry_of_the_image_does_not_take_the_place_of_the_directory") {
        return;
    }
    let history = History::new();
    fs::create_dir(history.tree().join(".snapshots")).unwrap();
    fs::write(history.tree().join(".snapshots/own"), "own").unwrap();
    history.add("first");
    history.add("second");
    let mount = Mount::background(&history.image(), "snapshots=.snapshots");
    let directory = mount.point().join(".snapshots");
    for _ in 0..2 {
        assert!(names(&directory).contains("second"));
        // A listing with attributes of all that it shows.
        for entry in fs::read_dir(mount.point()).unwrap() {
            let entry = entry.unwrap();
            assert_ne!(entry.file_name(), ".snapshots");
            entry.metadata().unwrap();
        }
    }
    let own = fs::read_to_string(directory.join("second/.snapshots/own"));
    assert_eq!(own.unwrap(), "own");
}

#[test]
fn names_of_the_directory_are_names() {
    for bad in ["snapshots=a/b", "snapshots=", "snapshots=.."] {
        let output = dwarfs()
            .args(["image", "point", "-o", bad])
            .output()
            .unwrap();
        assert!(!output.status.success());
        let said = stderr(&output);
        assert!(said.contains("option 'snapshots'"), "{said}");
    }
}
