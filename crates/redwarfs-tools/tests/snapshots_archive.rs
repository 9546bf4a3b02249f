//! Archives of snapshots through the programs: made, listed, read, mounted, continued, changed, and read by the reference.
#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use crate::driver::{Mount, can_mount};
use crate::support::{DWARFSCK, DWARFSEXTRACT, MKDWARFS, must, reference, run};
use redwarfs_testkit::tree::Random;
use serde_json::Value;

type Files = BTreeMap<String, Vec<u8>>;

/// An image with a snapshot for each state of a tree.
struct Nights {
    dir: tempfile::TempDir,
    random: Random,
    states: Vec<Files>,
}

impl Nights {
    fn new(count: usize) -> Self {
        let mut nights = Self {
            dir: tempfile::tempdir().unwrap(),
            random: Random::new(7),
            states: Vec::new(),
        };
        fs::create_dir_all(nights.path("tree/sub")).unwrap();
        fs::write(nights.path("tree/a"), nights.random.text(30_000)).unwrap();
        for _ in 0..count {
            nights.night();
        }
        nights
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// A snapshot more, called by its number.
    fn night(&mut self) {
        let number = self.states.len() + 1;
        let name = format!("sub/f{}", number % 3);
        fs::write(self.path("tree").join(name), self.random.text(5_000)).unwrap();
        let (tree, image, name) = (self.text("tree"), self.text("image"), format!("s{number}"));
        let fixed = ["-i", &tree, "-l3", "--no-progress", "--log-level=warn"];
        let target: &[&str] = match number {
            1 => &["-o", &image],
            _ => &["--append", &image, "--snapshot-name", &name, "--checksum"],
        };
        must(MKDWARFS, [&fixed[..], target].concat());
        if number == 1 {
            self.good(&["--rename-snapshot", "1", "s1"]);
        }
        self.states.push(files(&self.path("tree")));
    }

    fn check(&self, code: i32, more: &[&str]) -> String {
        let image = self.text("image");
        let output = run(DWARFSCK, [&[&*image], more].concat());
        let both = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&both).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        said
    }

    fn good(&self, more: &[&str]) -> String {
        self.check(0, more)
    }

    /// Puts a copy with an archive in the place of the image.
    fn archive(&self, more: &[&str]) -> String {
        let copy = self.text("copy");
        let said = self.good(&[&["--compact", &copy], more].concat());
        fs::rename(copy, self.path("image")).unwrap();
        said
    }

    fn extracted(&self, more: &[&str]) -> Files {
        let to = tempfile::tempdir().unwrap();
        let (image, out) = (self.text("image"), to.path().to_str().unwrap());
        let fixed = ["-i", &image, "-o", out, "--log-level=warn"];
        must(DWARFSEXTRACT, [&fixed[..], more].concat());
        files(to.path())
    }

    fn list(&self) -> Vec<Value> {
        let said = self.good(&["--snapshots", "-j"]);
        let lines = said.lines().map(|line| serde_json::from_str(line).unwrap());
        lines.collect()
    }

    fn all_come_back(&self) {
        for (number, state) in (1..).zip(&self.states) {
            assert!(self.extracted(&[&format!("--snapshot=s{number}")]) == *state);
        }
        assert!(self.extracted(&[]) == *self.states.last().unwrap());
    }
}

fn files(root: &Path) -> Files {
    let mut files = Files::new();
    let mut left = vec![root.to_path_buf()];
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            match path.is_dir() {
                true => left.push(path),
                false => {
                    let name = path.strip_prefix(root).unwrap().to_str().unwrap();
                    files.insert(name.to_owned(), fs::read(&path).unwrap());
                }
            }
        }
    }
    files
}

#[test]
fn old_snapshots_go_into_an_archive() {
    let mut nights = Nights::new(5);
    let before = fs::read(nights.path("image")).unwrap();
    let copy = nights.text("copy");
    let would = nights.good(&["--compact", &copy, "--archive", "-S21", "--dry-run"]);
    assert!(would.starts_with("would free "), "{would}");
    assert!(would.contains("5 snapshots, 4 of them archived"), "{would}");
    assert!(!nights.path("copy").exists());
    let did = nights.archive(&["--archive", "-S21"]);
    assert_eq!(did.replace("freed", "would free"), would);
    nights.good(&["--check-integrity", "--decode"]);
    nights.good(&["--snapshot=s2", "--check-integrity", "--decode"]);
    let listed = nights.good(&["--snapshots"]);
    assert!(
        listed.contains("s4 (archived)") && listed.ends_with("s5\n"),
        "{listed}"
    );
    nights.all_come_back();
    let list = nights.list();
    let directories: Vec<&Value> = list.iter().map(|one| &one["directory"]).collect();
    assert_eq!(directories[1], "0000000002");
    assert!(directories[4].is_null());
    let differs = nights.good(&["--diff", "s2", "s5"]);
    // The directory may have another time.
    let differs = differs.lines().filter(|line| !line.starts_with('m'));
    assert!(differs.eq(["+ sub/f0", "M sub/f1", "M sub/f2"]));

    // It goes on.
    for _ in 0..3 {
        nights.night();
    }
    nights.all_come_back();
    let refused = nights.check(1, &["--roll-back", "s3"]);
    assert!(
        refused.contains("snapshot 's3' is in an archive"),
        "{refused}"
    );
    let refused = nights.check(1, &["--roll-back", "s3", "--dry-run"]);
    assert!(refused.contains("is in an archive"), "{refused}");
    nights.good(&["--rename-snapshot", "s3", "other", "--pin-snapshot", "s2"]);
    let refused = nights.check(1, &["--delete-snapshot", "s2"]);
    assert!(refused.contains("pinned"), "{refused}");
    nights.good(&["--rename-snapshot", "other", "s3"]);
    let did = nights.archive(&["--archive=2", "--repack=3"]);
    assert!(did.contains("8 snapshots, 6 of them archived"), "{did}");
    nights.all_come_back();
    nights.good(&["--check-integrity", "--decode"]);
    let did = nights.archive(&["--repack=3"]);
    assert!(did.contains("8 snapshots, 6 of them archived"), "{did}");
    let did = nights.archive(&[]);
    assert!(did.contains("8 snapshots, 6 of them archived"), "{did}");
    nights.all_come_back();
    let did = nights.archive(&["--archive=100"]);
    assert!(
        did.contains("8 snapshots, ") && !did.contains("archived"),
        "{did}"
    );
    nights.all_come_back();
    assert!(before.len() > 1000);
    let alone = nights.check(1, &["--archive"]);
    assert!(alone.contains("--compact"), "{alone}");
}

#[test]
fn a_mount_shows_the_snapshots_of_an_archive() {
    if !can_mount("a_mount_shows_the_snapshots_of_an_archive") {
        return;
    }
    let mut nights = Nights::new(4);
    nights.archive(&["--archive"]);
    let image = nights.path("image");
    {
        let mount = Mount::background(&image, "snapshot=s2");
        assert!(files(mount.point()) == nights.states[1]);
    }
    let mount = Mount::background(&image, "snapshots=.snapshots");
    assert!(files(mount.point()) == nights.states[3]);
    let shown = mount.point().join(".snapshots");
    let mut names: Vec<_> = fs::read_dir(&shown)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    assert_eq!(names, ["s1", "s2", "s3", "s4"]);
    for (number, state) in (1..).zip(&nights.states) {
        assert!(
            files(&shown.join(format!("s{number}"))) == *state,
            "{number}"
        );
    }
    drop(mount);
    nights.night();
    let mount = Mount::background(&image, "snapshots=all");
    for (number, state) in (1..).zip(&nights.states) {
        assert!(
            files(&mount.point().join(format!("all/s{number}"))) == *state,
            "{number}"
        );
    }
}

#[test]
fn the_reference_reads_the_newest_snapshot_and_the_archive() {
    let Some(programs) = reference() else {
        return;
    };
    let mut nights = Nights::new(4);
    nights.archive(&["--archive"]);
    let extract = |image: &str| {
        let to = tempfile::tempdir().unwrap();
        let arguments = ["-i", image, "-o", to.path().to_str().unwrap()];
        must(programs.join("dwarfsextract"), arguments);
        files(to.path())
    };
    let image = nights.text("image");
    for _ in 0..2 {
        let output = must(programs.join("dwarfsck"), ["--check-integrity", &image]);
        assert!(output.stderr.is_empty(), "{output:?}");
        assert!(extract(&image) == *nights.states.last().unwrap());
        nights.night();
    }
    let first = &nights.list()[0];
    let (end, directory) = (&first["image_size"], first["directory"].as_str().unwrap());
    assert_eq!(directory, "0000000001");
    let bytes = fs::read(&image).unwrap();
    fs::write(nights.path("cut"), &bytes[..end.as_u64().unwrap() as usize]).unwrap();
    let all = extract(&nights.text("cut"));
    for (number, state) in (1..4).zip(&nights.states) {
        for (name, bytes) in state {
            assert!(
                all[&format!("{number:010}/{name}")] == *bytes,
                "{number} {name}"
            );
        }
    }
}

#[test]
fn a_check_says_what_it_leaves_out_and_finds_damaged_tables() {
    let uncovered = "of older snapshots or hidden sections";
    let mut nights = Nights::new(1);
    let said = nights.good(&["--check-integrity"]);
    assert!(said.contains("OK: ") && !said.contains(uncovered), "{said}");
    for _ in 0..6 {
        nights.night();
    }
    let said = nights.good(&["--check-integrity"]);
    assert!(said.contains(uncovered), "{said}");
    nights.archive(&["--archive"]);
    let said = nights.good(&["--check-integrity"]);
    assert!(said.contains(uncovered), "{said}");

    // The table of the archive, to which that of the newest generation leads.
    let sections = nights.good(&["--snapshot=s1", "--detail=3"]);
    let table = sections
        .lines()
        .find(|line| line.contains("type=SNAPSHOTS"));
    let (_, offset) = table.unwrap().split_once("offset=").unwrap();
    let offset: usize = offset.split(',').next().unwrap().parse().unwrap();
    let mut bytes = fs::read(nights.path("image")).unwrap();
    bytes[offset + 64 + 20] ^= 1;
    fs::write(nights.path("image"), bytes).unwrap();
    for how in [&[][..], &["--check-integrity"], &["-j"]] {
        let said = nights.check(1, how);
        assert!(said.contains("snapshots cannot be found"), "{said}");
    }
    assert!(nights.check(1, &[]).contains("damaged: 1 error"));
    let said = nights.check(1, &["--snapshots"]);
    assert!(said.contains("the table of snapshots is damaged"), "{said}");
    // The newest tree is there.
    nights.good(&["--no-check"]);
    assert!(nights.extracted(&[]) == *nights.states.last().unwrap());
}
