//! Images of which the end is missing: what is said, and that it leads to a whole image.

use std::fs;

use crate::snapshots_check::Nights;
use crate::support::{DWARFSCK, MKDWARFS, must, run};
use serde_json::Value;

/// The number behind `truncate -s`, if it is advised.
fn advised(said: &str) -> Option<u64> {
    let rest = said.split("'truncate -s ").nth(1)?;
    rest.split(' ').next()?.parse().ok()
}

/// Wherever the file was cut, every change of it names the state that is whole, and how to go back to it.
#[test]
fn the_state_that_is_whole_is_named() {
    let nights = Nights::new();
    let (tree, image) = (nights.text("tree"), nights.text("image"));
    let listed = nights.check(&["--snapshots", "-j"]);
    let listed = String::from_utf8(listed.stdout).unwrap();
    let sizes: Vec<u64> = listed
        .lines()
        .map(|line| {
            serde_json::from_str::<Value>(line).unwrap()["image_size"]
                .as_u64()
                .unwrap()
        })
        .collect();
    let (third, whole) = (sizes[2], nights.good.len() as u64);
    let cuts = (third + 700..whole)
        .step_by(1500)
        .chain([whole - 1, whole - 9]);
    let mut counted = 0;
    for cut in cuts {
        fs::write(nights.path("image"), &nights.good[..cut as usize]).unwrap();
        let copy = nights.text("copy");
        let changes = [
            vec!["--roll-back", "s2"],
            vec!["--pin-snapshot", "s1"],
            vec!["--compact", &*copy],
            vec!["--add-recovery=5%"],
        ];
        let mut said: Vec<String> = changes
            .iter()
            .map(|change| {
                let output = nights.check(change);
                assert_eq!(output.status.code(), Some(1), "{cut} {change:?}");
                String::from_utf8(output.stderr).unwrap()
            })
            .collect();
        let output = run(
            MKDWARFS,
            ["-i", &tree, "--append", &image, "--log-level=warn"],
        );
        assert_eq!(output.status.code(), Some(1), "{cut}");
        said.push(String::from_utf8(output.stderr).unwrap());
        assert!(fs::metadata(&image).unwrap().len() == cut && !nights.path("copy").exists());
        let end = advised(&said[0]).unwrap_or_else(|| panic!("{cut}: {said:?}"));
        for said in &said {
            assert_eq!(advised(said), Some(end), "{cut}: {said}");
            assert!(said.contains("with snapshot 3 's3'"), "{cut}: {said}");
        }
        let file = fs::File::options().write(true).open(&image).unwrap();
        file.set_len(end).unwrap();
        let (all, _) = nights.all(0, &[]);
        assert!(
            all.contains("  3  s3: ok, 2 files\nOK: 3 snapshots"),
            "{cut}: {all}"
        );
        must(DWARFSCK, ["--roll-back", "s2", &image]);
        counted += 1;
    }
    assert!(counted > 5, "{counted}");
    // A list warns, because it may lack some.
    fs::write(nights.path("image"), &nights.good[..nights.good.len() - 9]).unwrap();
    let output = nights.check(&["--snapshots"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(said.contains("the end is missing"), "{said}");
    // A whole file gives no advice.
    fs::write(nights.path("image"), &nights.good).unwrap();
    let output = nights.check(&["--roll-back", "nothing"]);
    let said = String::from_utf8(output.stderr).unwrap();
    assert!(
        said.contains("there are 's1', 's2', 's3', 's4' (--snapshots lists all)"),
        "{said}"
    );
}

/// What is given back of a deleted snapshot need not be blocks.
#[test]
fn space_of_metadata_is_no_block() {
    let dir = tempfile::tempdir().unwrap();
    let path = |name: &str| dir.path().join(name).to_str().unwrap().to_owned();
    fs::create_dir(path("tree")).unwrap();
    for number in 0..4000 {
        let name = format!("tree/{:x}", number * 7919 % 65_521);
        fs::write(path(&name), if number < 9 { "text" } else { "" }).unwrap();
    }
    let (tree, image) = (path("tree"), path("image"));
    must(
        MKDWARFS,
        ["-i", &tree, "-o", &image, "-l1", "--log-level=warn"],
    );
    fs::write(path("tree/another name"), "").unwrap();
    must(
        MKDWARFS,
        ["-i", &tree, "--append", &image, "-l1", "--log-level=warn"],
    );
    must(DWARFSCK, ["--delete-snapshot=1", &image]);
    let output = must(DWARFSCK, ["--punch", "--dry-run", &image]);
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(
        said.contains("B in the metadata of 1 deleted snapshot") && !said.contains(" 0 B "),
        "{said}"
    );
}
