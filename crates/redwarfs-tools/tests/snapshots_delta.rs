//! A delta file between two images that know nothing of each other.

use std::fs;
use std::path::{Path, PathBuf};

use crate::support::{DWARFSCK, DWARFSEXTRACT, MKDWARFS, must, reference, run};
use redwarfs_testkit::tree::Random;

struct TestDir {
    dir: tempfile::TempDir,
}

impl TestDir {
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// Two images of trees that have most of their data in common.
    fn new() -> Self {
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let mut random = Random::new(8);
        let (same, mut large) = (random.bytes(300_000), random.bytes(500_000));
        for name in ["old", "new"] {
            fs::create_dir_all(place.path(name).join("dir")).unwrap();
        }
        let write = |path: &str, bytes: &[u8]| fs::write(place.path(path), bytes).unwrap();
        write("old/same", &same);
        write("new/dir/moved", &same);
        write("old/large", &large);
        large[250_000] ^= 1;
        write("new/large", &large);
        write("old/gone", b"gone");
        write("new/added", &random.bytes(20_000));
        #[cfg(unix)]
        {
            std::os::unix::fs::symlink("large", place.path("new/link")).unwrap();
            fs::hard_link(place.path("new/added"), place.path("new/dir/hard")).unwrap();
        }
        for (name, level) in [("old", "-l3"), ("new", "-l5")] {
            let (tree, image) = (place.text(name), place.text(&format!("{name}.im")));
            must(
                MKDWARFS,
                [
                    "-i",
                    &tree,
                    "-o",
                    &image,
                    level,
                    "--no-progress",
                    "--log-level=error",
                ],
            );
        }
        place
    }

    fn delta(&self, more: &[&str]) -> std::process::Output {
        let (old, new, out) = (self.text("old.im"), self.text("new.im"), self.text("delta"));
        let fixed = [
            "--delta",
            &old,
            &new,
            "-o",
            &out,
            "-f",
            "--no-progress",
            "--log-level=error",
        ];
        run(MKDWARFS, [&fixed[..], more].concat())
    }
}

/// Names, attributes and contents of an image.
fn tree(image: &str) -> String {
    let list = must(DWARFSCK, [image, "-l", "-j"]).stdout;
    let sums = must(DWARFSCK, [image, "--checksum=sha256"]).stdout;
    let mut lines: Vec<String> = [list, sums]
        .iter()
        .flat_map(|text| {
            String::from_utf8_lossy(text)
                .lines()
                .map(str::to_owned)
                .collect::<Vec<_>>()
        })
        .collect();
    lines.sort();
    lines.join("\n")
}

fn without_inodes(text: &str) -> Vec<String> {
    // Numbers of inodes and of entries follow from the order of the contents.
    let lines = text.lines().map(|line| {
        let Ok(mut value) = serde_json::from_str::<serde_json::Value>(line) else {
            return line.to_owned();
        };
        if let Some(object) = value.as_object_mut() {
            object.retain(|key, _| !key.contains("inode"));
        }
        value.to_string()
    });
    let mut lines: Vec<String> = lines.collect();
    lines.sort();
    lines
}

#[test]
fn a_delta_file_leads_from_one_image_to_another() {
    let place = TestDir::new();
    let (before_old, before_new) = (
        fs::read(place.path("old.im")).unwrap(),
        fs::read(place.path("new.im")).unwrap(),
    );
    let output = place.delta(&[]);
    assert!(output.status.success(), "{output:?}");
    assert!(fs::read(place.path("old.im")).unwrap() == before_old);
    assert!(fs::read(place.path("new.im")).unwrap() == before_new);
    // 20,000 bytes are new.
    let delta = fs::read(place.path("delta")).unwrap();
    assert!((20_000..30_000).contains(&delta.len()), "{}", delta.len());
    let joined = format!("{}+{}", place.text("old.im"), place.text("delta"));
    let (wanted, found) = (tree(&place.text("new.im")), tree(&joined));
    assert_eq!(without_inodes(&found), without_inodes(&wanted));
    must(DWARFSCK, [&joined, "--check-integrity", "-q"]);
    let whole = place.path("whole.im");
    fs::write(&whole, [before_old, delta.clone()].concat()).unwrap();
    let whole = place.text("whole.im");
    must(DWARFSCK, [&whole, "--check-integrity", "-q"]);
    let to = place.path("first");
    fs::create_dir(&to).unwrap();
    must(
        DWARFSEXTRACT,
        [
            "-i",
            &whole,
            "-o",
            to.to_str().unwrap(),
            "--snapshot",
            "1",
            "--log-level=warn",
        ],
    );
    assert_eq!(fs::read(to.join("gone")).unwrap(), b"gone");
    if let Some(programs) = reference() {
        must(programs.join("dwarfsck"), ["--check-integrity", &whole]);
        let to = place.path("by the reference");
        fs::create_dir(&to).unwrap();
        let to = to.to_str().unwrap();
        must(programs.join("dwarfsextract"), ["-i", &whole, "-o", to]);
        let added = fs::read(Path::new(to).join("added")).unwrap();
        assert_eq!(added, fs::read(place.path("new/added")).unwrap());
    }
    // They are joined for reading alone.
    let cat = format!(
        "('cat {} {} >NEW' joins them; then use NEW)",
        place.text("old.im"),
        place.text("delta")
    );
    for task in [
        "--sign=none",
        "--add-digests",
        "--add-recovery=5%",
        "--check-recovery",
        "--pin-snapshot=1",
        "--roll-back=1",
        "--punch",
        "--scrub=none",
        "--salvage-report",
    ] {
        let output = run(DWARFSCK, [&joined, task]);
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(
            output.status.code() == Some(1) && said.contains(&cat),
            "{task}: {said}"
        );
    }
    let output = run(MKDWARFS, ["-i", &place.text("new"), "--append", &joined]);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains(&cat), "{said}");
    // The same again, with any number of threads.
    for threads in ["-N1", "-N4"] {
        let again = place.delta(&[threads, "--no-history"]);
        assert!(again.status.success(), "{again:?}");
    }
    // A name for it.
    let named = place.delta(&["--snapshot-name", "tuesday"]);
    assert!(named.status.success(), "{named:?}");
    let listed = must(DWARFSCK, [&joined, "--snapshots"]).stdout;
    assert!(String::from_utf8_lossy(&listed).contains("tuesday"));
}

#[test]
fn what_is_no_pair_of_images_is_refused() {
    let place = TestDir::new();
    let (old, new, out) = (
        place.text("old.im"),
        place.text("new.im"),
        place.text("delta"),
    );
    let fails = |arguments: &[&str]| {
        let output = run(MKDWARFS, arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        assert!(!place.path("delta").exists());
        String::from_utf8_lossy(&output.stderr).into_owned()
    };
    fails(&["--delta", &old, &new]);
    fails(&["--delta", &old, "-o", &out]);
    fails(&["--delta", &old, &new, "-o", &out, "-i", &old]);
    let tree = place.text("new/large");
    let said = fails(&["--delta", &old, &tree, "-o", &out]);
    assert!(said.contains("new/large"), "{said}");
    let said = fails(&["--delta", &tree, &new, "-o", &out]);
    assert!(said.contains("new/large"), "{said}");
    let mut damaged = fs::read(place.path("new.im")).unwrap();
    for byte in &mut damaged[1000..1100] {
        *byte ^= 0x5a;
    }
    fs::write(place.path("new.im"), damaged).unwrap();
    let output = run(MKDWARFS, ["--delta", &old, &new, "-o", &out]);
    assert_ne!(output.status.code(), Some(0));
}
