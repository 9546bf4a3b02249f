//! `dwarfsextract --salvage` and `dwarfsck --salvage-report` on damaged images.
#![allow(clippy::unwrap_used)] // a test fails by panicking

mod support;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use support::{DWARFSCK, DWARFSEXTRACT, build, run};

fn noise(len: usize, mut state: u64) -> Vec<u8> {
    let mut out = Vec::with_capacity(len + 8);
    while out.len() < len {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        out.extend((state ^ state >> 29).to_le_bytes());
    }
    out.truncate(len);
    out
}

struct Place {
    dir: tempfile::TempDir,
    tree: PathBuf,
    image: PathBuf,
}

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(tree.join("sub")).unwrap();
        for number in 0..8_u64 {
            fs::write(
                tree.join(format!("sub/small{number}")),
                noise(20_000, number + 1),
            )
            .unwrap();
        }
        fs::write(tree.join("large"), noise(500_000, 99)).unwrap();
        let image = dir.path().join("image");
        build(&tree, &image, &["-l1", "-S16"]);
        Self { dir, tree, image }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn damage(&self, change: impl FnOnce(&mut Vec<u8>)) {
        let mut bytes = fs::read(&self.image).unwrap();
        change(&mut bytes);
        fs::write(&self.image, bytes).unwrap();
    }

    fn extract(&self, name: &str) -> (Output, PathBuf, PathBuf) {
        let (to, parts) = (self.path(name), self.path(&format!("{name}-parts")));
        fs::create_dir(&to).unwrap();
        let salvage = format!("--salvage={}", parts.display());
        let args = [
            "-i",
            self.image.to_str().unwrap(),
            "-o",
            to.to_str().unwrap(),
            &salvage,
        ];
        (run(DWARFSEXTRACT, args), to, parts)
    }

    fn report(&self, options: &[&str]) -> (i32, String) {
        let mut args = vec![self.image.to_str().unwrap(), "--salvage-report"];
        args.extend(options);
        let out = run(DWARFSCK, args);
        let text = String::from_utf8([out.stdout, out.stderr].concat()).unwrap();
        (out.status.code().unwrap(), text)
    }

    /// Files of the tree that are in `to`, all of them with the right contents.
    fn whole(&self, to: &Path) -> Vec<String> {
        let mut found = Vec::new();
        let names = (0..8).map(|n| format!("sub/small{n}"));
        for name in names.chain(["large".to_owned()]) {
            if let Ok(bytes) = fs::read(to.join(&name)) {
                assert!(bytes == fs::read(self.tree.join(&name)).unwrap(), "{name}");
                found.push(name);
            }
        }
        found
    }
}

#[test]
fn whole_files_and_parts_come_out() {
    let place = Place::new();
    let (out, to, parts) = place.extract("intact");
    assert!(out.status.success(), "{out:?}");
    assert_eq!(place.whole(&to).len(), 9);
    assert!(!parts.join("files").exists() && parts.join("report.json").exists());
    // A block in the middle, the index, and the start.
    place.damage(|bytes| {
        let (middle, len) = (bytes.len() / 2, bytes.len());
        bytes[middle] ^= 1;
        bytes.truncate(len - 9);
        bytes.drain(..10);
    });
    let (out, to, parts) = place.extract("damaged");
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    let whole = place.whole(&to);
    assert!((1..9).contains(&whole.len()), "{whole:?}");
    let report = fs::read_to_string(parts.join("report.json")).unwrap();
    assert!(report.contains("\"lost\": true"), "{report}");
    // The large file needs the block in the middle.
    assert!(!to.join("large").exists());
    let part = fs::read(parts.join("files/large")).unwrap();
    let mut expected = fs::read(place.tree.join("large")).unwrap();
    assert_eq!(part.len(), expected.len());
    let map = fs::read_to_string(parts.join("files/large.missing")).unwrap();
    for line in map.lines() {
        let (offset, length) = line.split_once(' ').unwrap();
        let (offset, length): (usize, usize) = (offset.parse().unwrap(), length.parse().unwrap());
        expected[offset..offset + length].fill(0);
    }
    assert!(part == expected && !map.is_empty());
    // What is there is not overwritten.
    let (out, _, _) = {
        fs::remove_dir_all(&to).unwrap();
        place.extract("damaged")
    };
    assert_eq!(out.status.code(), Some(1), "{out:?}");
}

#[test]
fn reports_say_what_is_lost() {
    let place = Place::new();
    let (code, text) = place.report(&[]);
    assert!(
        code == 0 && text.contains("salvage:  every file is whole"),
        "{text}"
    );
    place.damage(|bytes| {
        let middle = bytes.len() / 2;
        bytes[middle..middle + 10].fill(0);
    });
    let (code, text) = place.report(&[]);
    assert!(code == 1 && text.contains("damaged:  large: "), "{text}");
    assert!(
        text.contains("tree:     at offset") && text.contains("the section index"),
        "{text}"
    );
    let (code, json) = place.report(&["-j"]);
    assert!(
        code == 1 && json.contains("\"path\":\"large\"") && json.contains("\"lost\":true"),
        "{json}"
    );
    // Without metadata.
    place.damage(|bytes| bytes.truncate(bytes.len() - 600));
    let (code, text) = place.report(&[]);
    assert!(code == 1 && text.contains("no usable metadata"), "{text}");
    let (out, _, parts) = place.extract("blocks");
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    assert!(fs::read_dir(parts.join("blocks")).unwrap().count() > 4);
    fs::write(&place.image, "no image at all").unwrap();
    let (code, text) = place.report(&[]);
    assert!(
        code == 1 && text.contains("no section of an image was found"),
        "{text}"
    );
}

#[test]
fn recovery_data_repairs_first() {
    let place = Place::new();
    let args = [place.image.to_str().unwrap(), "-q", "--add-recovery=10%"];
    assert!(run(DWARFSCK, args).status.success());
    place.damage(|bytes| {
        let middle = bytes.len() / 2;
        bytes[middle..middle + 1000].fill(0);
        bytes[..100].fill(0);
    });
    let (out, to, parts) = place.extract("repaired");
    assert!(out.status.success(), "{out:?}");
    assert_eq!(place.whole(&to).len(), 9);
    assert!(parts.join("repaired.dwarfs").exists());
}
