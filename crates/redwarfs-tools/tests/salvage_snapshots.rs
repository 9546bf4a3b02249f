//! `dwarfsextract --salvage` and `dwarfsck --salvage-report` of a snapshot that is named.

use std::fs;

use crate::snapshots_check::Nights;
use crate::support::{DWARFSCK, DWARFSEXTRACT, must, run};

/// The exit code of a salvage of a snapshot, what it says, and the names that come out.
fn salvage(nights: &Nights, snapshot: &str) -> (i32, String, Vec<String>) {
    let (image, out, parts) = (
        nights.text("image"),
        nights.text("out"),
        nights.text("parts"),
    );
    for old in [&out, &parts] {
        fs::remove_dir_all(old).ok();
    }
    fs::create_dir(&out).unwrap();
    let options = [
        "-i",
        &image,
        "-o",
        &out,
        "--salvage",
        &parts,
        "--snapshot",
        snapshot,
    ];
    let done = run(DWARFSEXTRACT, options);
    let mut names: Vec<String> = fs::read_dir(&out)
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    names.sort();
    let said = String::from_utf8(done.stderr).unwrap();
    (done.status.code().unwrap(), said, names)
}

#[test]
fn the_snapshot_that_is_named_comes_out() {
    let nights = Nights::new();
    for number in 1..=4 {
        let snapshot = format!("s{number}");
        let (code, said, names) = salvage(&nights, &snapshot);
        assert_eq!(code, 0, "{said}");
        assert_eq!(
            names,
            ["common".to_owned(), format!("own{number}")],
            "{said}"
        );
    }
    // Without the end, and with damage in a later snapshot.
    let place = nights.sections("s3", "METADATA_V2")[0] as usize;
    let mut bytes = nights.good.clone();
    bytes[place] ^= 1;
    bytes.truncate(bytes.len() - 500);
    fs::write(nights.path("image"), &bytes).unwrap();
    let (code, said, names) = salvage(&nights, "s2");
    assert_eq!((code, names.len()), (0, 2), "{said}");
    assert_eq!(names[1], "own2");
    let report = nights.check(&["--salvage-report", "--snapshot=s2"]);
    let said = String::from_utf8(report.stdout).unwrap();
    assert!(
        report.status.success() && said.contains("every file is whole"),
        "{said}"
    );
}

/// No other snapshot comes out in its place.
#[test]
fn what_cannot_come_out_is_refused() {
    let nights = Nights::new();
    let refused = |snapshot: &str, why: &str| {
        let (code, said, names) = salvage(&nights, snapshot);
        assert_eq!((code, names.len()), (1, 0), "{said}");
        assert!(said.contains(why), "{said}");
        assert!(!nights.path("parts").exists());
        let option = format!("--snapshot={snapshot}");
        let report = nights.check(&["--salvage-report", &option]);
        let said = String::from_utf8(report.stderr).unwrap();
        assert!(
            report.status.code() == Some(1) && said.contains(why),
            "{said}"
        );
    };
    refused(
        "s9",
        "there is no snapshot 's9'; there are 's1', 's2', 's3', 's4'",
    );
    let metadata = nights.sections("s2", "METADATA_V2")[0];
    let names = ["s1", "s2", "s3", "s4"];
    let tables = names.map(|name| nights.sections(name, "SNAPSHOTS"));
    nights.damage(&[metadata]);
    refused(
        "s2",
        "snapshot 's2': its metadata is damaged (without --snapshot,",
    );
    nights.damage(&tables.concat());
    refused(
        "s2",
        "snapshot 's2': no table of snapshots is intact (without --snapshot,",
    );
    nights.damage(&[]);
    let (image, copy) = (nights.text("image"), nights.text("copy"));
    must(
        DWARFSCK,
        [&image, "--compact", &copy, "--archive", "--log-level=error"],
    );
    fs::rename(copy, image).unwrap();
    refused("s1", "snapshot 's1': it is in an archive");
    assert_eq!(salvage(&nights, "s4").2, ["common", "own4"]);
}
