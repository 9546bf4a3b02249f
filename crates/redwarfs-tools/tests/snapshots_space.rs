//! The space of deleted snapshots, given back in place.
#![cfg(target_os = "linux")]

use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};

use crate::driver::{Mount, can_mount};
use crate::support::{DWARFSCK, DWARFSEXTRACT, MKDWARFS, must, reference, run};
use redwarfs_testkit::tree::Random;

/// An image of the three snapshots `s1`, `s2` and `s3`, each with another file of 400,000 bytes.
struct TestDir {
    dir: tempfile::TempDir,
    files: Vec<Vec<u8>>,
}

impl TestDir {
    fn new(more: &[&str]) -> Self {
        let mut random = Random::new(4);
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
            files: (0..3).map(|_| random.bytes(400_000)).collect(),
        };
        fs::create_dir(place.path("tree")).unwrap();
        for number in 1..=3 {
            place.add(number, more);
        }
        place.check(0, &["--rename-snapshot", "1", "s1"]);
        place
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn image(&self) -> PathBuf {
        self.path("image")
    }

    fn add(&self, number: usize, more: &[&str]) -> String {
        self.add_as(&format!("s{number}"), number, more)
    }

    fn add_as(&self, name: &str, number: usize, more: &[&str]) -> String {
        fs::write(self.path("tree/file"), &self.files[number - 1]).unwrap();
        let (tree, image) = (self.path("tree"), self.image());
        let (tree, image) = (tree.to_str().unwrap(), image.to_str().unwrap());
        let fixed = [
            "-i",
            tree,
            "-l3",
            "-S16",
            "--no-progress",
            "--log-level=warn",
        ];
        let place: &[&str] = match self.image().exists() {
            true => &["--append", image, "--snapshot-name", name, "--checksum"],
            false => &["-o", image],
        };
        let output = must(MKDWARFS, [&fixed[..], place, more].concat());
        String::from_utf8_lossy(&output.stderr).into_owned()
    }

    /// What dwarfsck says, in both outputs.
    fn check(&self, code: i32, arguments: &[&str]) -> String {
        let image = self.image();
        let output = run(DWARFSCK, [&[image.to_str().unwrap()], arguments].concat());
        let both = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&both).into_owned();
        assert_eq!(output.status.code(), Some(code), "{said}");
        said
    }

    fn extracted(&self, more: &[&str]) -> Vec<u8> {
        let to = tempfile::tempdir().unwrap();
        let (image, out) = (self.image(), to.path().to_str().unwrap());
        let fixed = ["-i", image.to_str().unwrap(), "-o", out, "--log-level=warn"];
        must(DWARFSEXTRACT, [&fixed[..], more].concat());
        fs::read(to.path().join("file")).unwrap()
    }

    /// Bytes that the file takes on the disk.
    fn allocated(&self) -> u64 {
        let file = File::open(self.image()).unwrap();
        file.sync_all().unwrap();
        file.metadata().unwrap().blocks() * 512
    }
}

#[test]
fn deleted_snapshots_become_holes() {
    let place = TestDir::new(&[]);
    place.check(0, &["--delete-snapshot", "s2"]);
    let before = fs::read(place.image()).unwrap();
    let taken = place.allocated();
    let said = place.check(0, &["--punch", "--dry-run"]);
    assert!(said.starts_with("would free 3"), "{said}");
    assert!(said.contains("in 6 blocks of 1 deleted snapshot"), "{said}");
    assert!(fs::read(place.image()).unwrap() == before);
    let said = place.check(0, &["--punch"]);
    assert!(said.starts_with("freed 3"), "{said}");
    let freed = taken.saturating_sub(place.allocated());
    assert!(freed > 350_000, "{freed}");
    assert!(fs::metadata(place.image()).unwrap().len() >= before.len() as u64);
    place.check(0, &["--check-integrity"]);
    assert!(place.extracted(&[]) == place.files[2]);
    assert!(place.extracted(&["--snapshot", "s1"]) == place.files[0]);
    let refused = place.check(1, &["--roll-back", "2"]);
    assert!(refused.contains("there is no snapshot"), "{refused}");
    if let Some(programs) = reference() {
        let image = place.image();
        let image = image.to_str().unwrap();
        let output = must(programs.join("dwarfsck"), ["--check-integrity", image]);
        assert!(output.stderr.is_empty(), "{output:?}");
        let to = tempfile::tempdir().unwrap();
        let out = to.path().to_str().unwrap();
        must(programs.join("dwarfsextract"), ["-i", image, "-o", out]);
        assert!(fs::read(to.path().join("file")).unwrap() == place.files[2]);
        let plain = place.path("plain");
        let plain_name = plain.to_str().unwrap();
        must(
            programs.join("mkdwarfs"),
            [
                "-i",
                image,
                "-o",
                plain_name,
                "--recompress=none",
                "--no-progress",
            ],
        );
        must(programs.join("dwarfsck"), ["--check-integrity", plain_name]);
    }
    // The file goes on: a file that was given up is stored again.
    place.add(2, &[]);
    assert!(place.extracted(&[]) == place.files[1]);
    place.check(0, &["--check-integrity"]);
    let copy = place.path("copy");
    place.check(0, &["--compact", copy.to_str().unwrap()]);
    let said = place.check(0, &["--punch"]);
    assert!(
        said.starts_with("freed 0 B in 0 blocks of 0 deleted snapshots"),
        "{said}"
    );
}

#[test]
fn a_mount_goes_on_while_space_is_given_back() {
    if !can_mount("a_mount_goes_on_while_space_is_given_back") {
        return;
    }
    let place = TestDir::new(&[]);
    place.check(0, &["--delete-snapshot", "s2"]);
    let mount = Mount::background(&place.image(), "snapshots=.s");
    let file = File::open(mount.point().join("file")).unwrap();
    place.check(0, &["--punch"]);
    let mut bytes = vec![0; 400_000];
    file.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes == place.files[2]);
    assert!(fs::read(mount.point().join(".s/s1/file")).unwrap() == place.files[0]);
}

#[test]
fn recovery_data_is_not_outdated_unasked() {
    let place = TestDir::new(&["--recovery=5%"]);
    place.check(0, &["--delete-snapshot", "s2"]);
    let before = fs::read(place.image()).unwrap();
    let said = place.check(1, &["--punch"]);
    assert!(
        said.contains("has recovery data") && said.contains("--remove-recovery"),
        "{said}"
    );
    assert!(fs::read(place.image()).unwrap() == before);
}

#[test]
fn signatures_that_do_not_cover_the_newest_snapshot_are_named() {
    let place = TestDir::new(&[]);
    let keys = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/keys");
    let key = keys.join("minisign.key");
    place.check(0, &["--sign", key.to_str().unwrap()]);
    assert!(!place.check(0, &[]).contains("is not signed"));
    let said = place.add_as("again", 1, &[]);
    assert!(
        said.contains("its signature does not cover the new snapshot"),
        "{said}"
    );
    // There is nothing to say about an image that is not signed.
    let listed = place.check(0, &["--snapshots"]);
    let signed: Vec<&str> = listed
        .lines()
        .filter(|line| line.contains("(signed)"))
        .collect();
    assert!(signed.len() == 1 && signed[0].contains("s3"), "{listed}");
    let json = place.check(0, &["--snapshots", "-j"]);
    assert_eq!(json.matches("\"signed\":true").count(), 1, "{json}");
    let said = place.check(0, &["-q"]);
    let line = "the newest snapshot is not signed; the last one that is: 3 's3'";
    assert_eq!(said.matches(line).count(), 1, "{said}");
    place.check(0, &["--sign", key.to_str().unwrap()]);
    assert!(!place.check(0, &[]).contains("is not signed"));
    let listed = place.check(0, &["--snapshots"]);
    assert_eq!(listed.matches("(signed)").count(), 2, "{listed}");
}
