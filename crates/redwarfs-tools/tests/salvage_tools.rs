//! `dwarfsextract --salvage` and `dwarfsck --salvage-report` on damaged images.

use std::fs;
use std::path::Path;

use crate::support::lasting::{TestDir, noise, said};

/// With eight small files and a large one.
fn place() -> TestDir {
    let make = |tree: &Path| {
        fs::create_dir(tree.join("sub")).unwrap();
        for number in 0..8_u64 {
            let file = tree.join(format!("sub/small{number}"));
            fs::write(file, noise(20_000, number + 1)).unwrap();
        }
        fs::write(tree.join("large"), noise(500_000, 99)).unwrap();
    };
    TestDir::of(make, &["-l1", "-S16"])
}

fn report(place: &TestDir, options: &[&str]) -> (i32, String) {
    let out = place.run_check(&[&["--salvage-report"], options].concat());
    (out.status.code().unwrap(), said(&out))
}

/// Files of the tree that are in `to`, all of them with the right contents.
fn whole(place: &TestDir, to: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let names = (0..8).map(|n| format!("sub/small{n}"));
    for name in names.chain(["large".to_owned()]) {
        if let Ok(bytes) = fs::read(to.join(&name)) {
            let expected = fs::read(place.tree().join(&name)).unwrap();
            assert!(bytes == expected, "{name}");
            found.push(name);
        }
    }
    found
}

#[test]
fn whole_files_and_parts_come_out() {
    let place = place();
    let (out, to, parts) = place.salvage("intact", &[]);
    assert!(out.status.success(), "{out:?}");
    assert_eq!(whole(&place, &to).len(), 9);
    assert!(!parts.join("files").exists() && parts.join("report.json").exists());
    // A block in the middle, the index, and the start.
    place.damage(|bytes| {
        let (middle, len) = (bytes.len() / 2, bytes.len());
        bytes[middle] ^= 1;
        bytes.truncate(len - 9);
        bytes.drain(..10);
    });
    let (out, to, parts) = place.salvage("damaged", &[]);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    let whole = whole(&place, &to);
    assert!((1..9).contains(&whole.len()), "{whole:?}");
    let report = fs::read_to_string(parts.join("report.json")).unwrap();
    assert!(report.contains("\"lost\": true"), "{report}");
    // The large file needs the block in the middle.
    assert!(!to.join("large").exists());
    let part = fs::read(parts.join("files/large")).unwrap();
    let mut expected = fs::read(place.tree().join("large")).unwrap();
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
        place.salvage("damaged", &[])
    };
    assert_eq!(out.status.code(), Some(1), "{out:?}");
}

#[test]
fn reports_say_what_is_lost() {
    let place = place();
    let (code, text) = report(&place, &[]);
    assert!(
        code == 0 && text.contains("salvage:  every file is whole"),
        "{text}"
    );
    place.damage(|bytes| {
        let middle = bytes.len() / 2;
        bytes[middle..middle + 10].fill(0);
    });
    let (code, text) = report(&place, &[]);
    assert!(code == 1 && text.contains("damaged:  large: "), "{text}");
    assert!(
        text.contains("tree:     at offset") && text.contains("the section index"),
        "{text}"
    );
    let (code, json) = report(&place, &["-j"]);
    assert!(
        code == 1 && json.contains("\"path\":\"large\"") && json.contains("\"lost\":true"),
        "{json}"
    );
    // Without metadata.
    place.damage(|bytes| bytes.truncate(bytes.len() - 600));
    let (code, text) = report(&place, &[]);
    assert!(code == 1 && text.contains("no usable metadata"), "{text}");
    let (out, _, parts) = place.salvage("blocks", &[]);
    assert_eq!(out.status.code(), Some(2), "{out:?}");
    assert!(fs::read_dir(parts.join("blocks")).unwrap().count() > 4);
    fs::write(&place.image, "no image at all").unwrap();
    let (code, text) = report(&place, &[]);
    assert!(
        code == 1 && text.contains("no section of an image was found"),
        "{text}"
    );
}

#[test]
fn recovery_data_repairs_first() {
    let place = place();
    place.good(&["-q", "--add-recovery=10%"]);
    place.damage(|bytes| {
        let middle = bytes.len() / 2;
        bytes[middle..middle + 1000].fill(0);
        bytes[..100].fill(0);
    });
    let (out, to, parts) = place.salvage("repaired", &[]);
    assert!(out.status.success(), "{out:?}");
    assert_eq!(whole(&place, &to).len(), 9);
    assert!(parts.join("repaired.dwarfs").exists());
}
