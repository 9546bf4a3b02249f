//! The check of all snapshots of an image, and what changes of snapshots say: messages, JSON and exit codes.

use std::fs;
use std::path::PathBuf;
use std::process::Output;

use crate::support::{DWARFSCK, MKDWARFS, must, run};
use redwarfs_testkit::tree::Random;
use serde_json::Value;

/// An image with the snapshots `s1` to `s4`. Each has a file of its own beside a common one.
pub(crate) struct Nights {
    dir: tempfile::TempDir,
    pub(crate) good: Vec<u8>,
}

impl Nights {
    pub(crate) fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let mut nights = Self {
            dir,
            good: Vec::new(),
        };
        let mut random = Random::new(21);
        fs::create_dir(nights.path("tree")).unwrap();
        fs::write(nights.path("tree/common"), random.bytes(20_000)).unwrap();
        for number in 1..=4 {
            if number > 1 {
                fs::remove_file(nights.path(&format!("tree/own{}", number - 1))).unwrap();
            }
            let own = nights.path(&format!("tree/own{number}"));
            fs::write(own, random.bytes(16_000)).unwrap();
            let (tree, image, name) = (
                nights.text("tree"),
                nights.text("image"),
                format!("s{number}"),
            );
            let fixed = ["-i", &tree, "-l3", "--no-progress", "--log-level=warn"];
            let target: &[&str] = match number {
                1 => &["-o", &image],
                _ => &["--append", &image, "--snapshot-name", &name, "--checksum"],
            };
            must(MKDWARFS, [&fixed[..], target].concat());
            if number == 1 {
                must(DWARFSCK, ["--rename-snapshot", "1", "s1", &image]);
            }
        }
        nights.good = fs::read(nights.path("image")).unwrap();
        nights
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// The image with other bytes at some places.
    pub(crate) fn damage(&self, places: &[u64]) {
        let mut bytes = self.good.clone();
        for &at in places {
            bytes[at as usize] ^= 1;
        }
        fs::write(self.path("image"), bytes).unwrap();
    }

    pub(crate) fn check(&self, more: &[&str]) -> Output {
        let image = self.text("image");
        run(DWARFSCK, [&[&*image], more].concat())
    }

    /// What a check of all generations says, on both outputs.
    pub(crate) fn all(&self, code: i32, more: &[&str]) -> (String, String) {
        let output = self.check(&[&["--all-generations", "-d0"], more].concat());
        let [out, err] = [output.stdout, output.stderr].map(|bytes| text(&bytes));
        assert_eq!(output.status.code(), Some(code), "{out}{err}");
        (out, err)
    }

    /// Offsets of the payloads of sections of a type in a snapshot.
    pub(crate) fn sections(&self, snapshot: &str, ty: &str) -> Vec<u64> {
        let output = self.check(&["--snapshot", snapshot, "-j", "-d3"]);
        let found: Value = serde_json::from_slice(&output.stdout).unwrap();
        let sections = found["sections"].as_array().unwrap().iter();
        let of_type = sections.filter(|section| section["type"] == ty);
        of_type
            .map(|section| section["offset"].as_u64().unwrap())
            .collect()
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Why a check in JSON leaves bytes out.
fn reasons(said: &str) -> Vec<String> {
    let found: Value = serde_json::from_str(said).unwrap();
    let all = found["uncovered"].as_array().unwrap().iter();
    all.map(|one| one["reason"].as_str().unwrap().to_owned())
        .collect()
}

#[test]
fn each_snapshot_has_a_verdict() {
    let nights = Nights::new();
    let (said, errors) = nights.all(0, &["--check-integrity", "--decode"]);
    assert_eq!(errors, "");
    let lines: Vec<&str> = said.lines().collect();
    let from = lines.iter().position(|line| *line == "snapshots:").unwrap();
    for number in 1..=4 {
        let line = format!("  {number}  s{number}: ok, 2 files");
        assert_eq!(lines[from + number], line);
    }
    let last = lines.last().unwrap();
    assert!(
        last.starts_with("OK: 4 snapshots, ") && last.ends_with(" sections, no errors"),
        "{last}"
    );
    let (quiet, _) = nights.all(0, &["-q"]);
    assert_eq!(quiet, "");
    // A check of the newest one says that it leaves out the others.
    assert_eq!(
        reasons(&text(&nights.check(&["-j"]).stdout)),
        ["digests", "older"]
    );
    assert_eq!(reasons(&nights.all(0, &["-j"]).0), ["digests"]);

    // The file that only the second snapshot has, its tree in the third one, and what they share.
    let own = *nights.sections("s2", "BLOCK").last().unwrap();
    let tree = nights.sections("s3", "METADATA_V2")[0];
    let common = nights.sections("s1", "BLOCK")[0];
    nights.damage(&[own, tree]);
    // The newest one lists the block, and needs it for nothing.
    let (said, errors) = nights.all(1, &[]);
    for line in [
        "  1  s1: ok, 2 files",
        "  2  s2: damaged: 1 error, 1 file affected",
        "  3  s3: cannot be opened: ",
        "  4  s4: ok, 2 files",
        "damaged: 3 errors, 2 of 4 snapshots affected",
    ] {
        assert!(
            said.lines().any(|one| one.starts_with(line)),
            "{line}: {said}"
        );
    }
    assert!(
        errors.contains("snapshot 3 's3': checksum error in "),
        "{errors}"
    );
    let (quiet, again) = nights.all(1, &["-q"]);
    assert_eq!(quiet, "");
    assert_eq!(again.lines().count(), errors.lines().count());
    nights.damage(&[common]);
    let (said, _) = nights.all(1, &[]);
    assert!(
        said.ends_with("damaged: 1 error, 4 of 4 snapshots affected\n"),
        "{said}"
    );

    nights.damage(&[own, tree]);
    let (said, _) = nights.all(1, &["-j"]);
    let found: Value = serde_json::from_str(&said).unwrap();
    let snapshots = found["snapshots"].as_array().unwrap();
    let verdicts: Vec<&str> = snapshots
        .iter()
        .map(|one| one["verdict"].as_str().unwrap())
        .collect();
    assert_eq!(verdicts, ["ok", "damaged", "lost", "ok"]);
    assert_eq!(
        (&snapshots[1]["affected_files"], &snapshots[1]["files"]),
        (&1.into(), &2.into())
    );
    assert_eq!(
        (&snapshots[1]["errors"], &snapshots[2]["name"]),
        (&1.into(), &"s3".into())
    );
    assert!(
        snapshots[2]["reason"]
            .as_str()
            .unwrap()
            .contains("checksum")
    );
    let of: Vec<&Value> = found["errors"]
        .as_array()
        .unwrap()
        .iter()
        .map(|one| &one["snapshot"])
        .collect();
    assert_eq!(of, [&Value::Null, &3.into(), &3.into()]);
    assert!(found["errors"][0].get("snapshot").is_none());
}

#[test]
fn older_snapshots_are_checked_without_the_newest_one() {
    let nights = Nights::new();
    let newest = nights.sections("s4", "METADATA_V2")[0];
    nights.damage(&[newest]);
    let (said, errors) = nights.all(1, &[]);
    assert!(
        said.contains("  3  s3: ok, 2 files\n  4  s4: cannot be opened: "),
        "{said}"
    );
    assert!(said.ends_with(", 1 of 4 snapshots affected\n"), "{said}");
    assert!(
        errors.lines().last().unwrap().contains("cannot open image"),
        "{errors}"
    );
    let (said, _) = nights.all(1, &["-j"]);
    let found: Value = serde_json::from_str(&said).unwrap();
    assert_eq!(found["snapshots"][3]["verdict"], "lost");
}

#[test]
fn what_no_snapshot_has_is_checked() {
    let nights = Nights::new();
    let history = nights.sections("s2", "HISTORY")[0];
    must(DWARFSCK, ["--delete-snapshot=s2", &nights.text("image")]);
    let mut bytes = fs::read(nights.path("image")).unwrap();
    let (said, _) = nights.all(0, &[]);
    assert!(said.contains("OK: 3 snapshots, "), "{said}");
    bytes[history as usize] ^= 1;
    fs::write(nights.path("image"), &bytes).unwrap();
    assert_eq!(nights.check(&[]).status.code(), Some(0));
    let (said, errors) = nights.all(1, &[]);
    assert!(
        said.ends_with("damaged: 1 error, 0 of 3 snapshots affected\n"),
        "{said}"
    );
    assert!(errors.contains(": no snapshot needs it"), "{errors}");
    bytes[history as usize] ^= 1;
    fs::write(nights.path("image"), &bytes).unwrap();
    assert_eq!(reasons(&nights.all(0, &["-j"]).0), ["digests"]);
    // What is in the holes means nothing.
    must(DWARFSCK, ["--punch", &nights.text("image")]);
    assert_eq!(reasons(&nights.all(0, &["-j"]).0), ["digests", "unused"]);
}

/// Whatever is damaged, in whatever snapshot, and whether all snapshots are asked for or not.
#[test]
fn a_scrub_covers_all_snapshots() {
    let nights = Nights::new();
    let state = format!("--scrub={}", nights.text("state"));
    let scrub = |more: &[&str]| {
        fs::remove_file(nights.path("state")).ok();
        let output = nights.check(&[&[&*state], more].concat());
        let said = text(&[output.stdout, output.stderr].concat());
        (output.status.code().unwrap(), said)
    };
    for more in [&[][..], &["--all-generations"]] {
        let (code, said) = scrub(more);
        assert!(code == 0 && said.starts_with("OK; "), "{said}");
    }
    // As many sections as the check verifies.
    let (all, _) = nights.all(0, &[]);
    let sections = all.rsplit_once(" sections").unwrap().0;
    let sections = sections.rsplit_once(' ').unwrap().1;
    assert!(scrub(&[]).1.contains(&format!("OK; {sections} sections ")));
    let own = nights.sections("s2", "BLOCK");
    let is_own = |at: &&u64| !nights.sections("s1", "BLOCK").contains(*at);
    let own = *own.iter().find(is_own).unwrap();
    let places = [
        (own, "snapshot 2 's2': damaged: 1 error, 1 file affected"),
        (
            nights.sections("s1", "METADATA_V2")[0],
            "snapshot 1 's1': cannot be opened: ",
        ),
        (
            nights.sections("s3", "SECTION_INDEX")[0],
            "snapshot 3 's3': cannot be opened: ",
        ),
        (
            nights.sections("s1", "HISTORY")[0],
            "snapshot 1 's1': damaged: 1 error",
        ),
        // A header.
        (own - 20, "snapshot 2 's2': damaged: "),
    ];
    for (at, expected) in places {
        nights.damage(&[at]);
        let (code, said) = scrub(&[]);
        assert_eq!(code, 1, "{at}: {said}");
        assert!(said.contains(expected), "{at}: {said}");
        assert!(
            said.contains("damaged: 1 section, 1 of 4 snapshots affected; "),
            "{at}: {said}"
        );
    }
    // The table of an older snapshot is a section that the newest one does not have.
    let table = nights.sections("s3", "SNAPSHOTS")[0];
    nights.damage(&[table]);
    let (code, said) = scrub(&[]);
    assert!(
        code == 1 && said.contains("(SNAPSHOTS): checksum error"),
        "{said}"
    );
}

/// States of a scrub of the newest snapshot alone name sections by their positions.
#[test]
fn a_scrub_begins_anew_with_the_state_of_another_file() {
    let nights = Nights::new();
    let path = nights.path("state");
    let old = r#"{"image":"0123","next":2,"began":1700000000,"damaged":[1],"finished":0}"#;
    fs::write(&path, old).unwrap();
    let state = format!("--scrub={}", path.display());
    let output = nights.check(&[&state]);
    assert_eq!(output.status.code(), Some(0));
    assert!(text(&output.stdout).starts_with("OK; "));
    assert!(text(&output.stderr).contains("a new pass begins"));
    let output = nights.check(&[&state]);
    assert!(output.stderr.is_empty(), "{}", text(&output.stderr));
}

#[test]
fn it_is_a_check_of_all() {
    let nights = Nights::new();
    for more in [
        &["--snapshot=s1"][..],
        &["--no-check"],
        &["--print-header"],
        &["--snapshots"],
        &["--punch"],
        &["--check-recovery"],
        &["--check-digests"],
    ] {
        let output = nights.check(&[&["--all-generations"], more].concat());
        assert_eq!(output.status.code(), Some(1), "{more:?}");
    }
    let listed = nights.check(&["--all-generations", "-l"]);
    assert_eq!(text(&listed.stdout), "common\nown4\n");
    // An image without snapshots has one.
    must(
        MKDWARFS,
        [
            "-i",
            &nights.text("tree"),
            "-o",
            &nights.text("image"),
            "--force",
            "--log-level=warn",
        ],
    );
    let (said, _) = nights.all(0, &[]);
    assert!(said.contains(": ok, 2 files\nOK: 1 snapshot, "), "{said}");
}

#[test]
fn changes_are_said_before_and_after() {
    let nights = Nights::new();
    let said = |code: i32, more: &[&str]| {
        let output = nights.check(more);
        let [out, err] = [output.stdout, output.stderr].map(|bytes| text(&bytes));
        assert_eq!(output.status.code(), Some(code), "{more:?}: {out}{err}");
        match code {
            0 => out,
            _ => err,
        }
    };
    let is_same = || fs::read(nights.path("image")).unwrap() == nights.good;
    // A dry run has the errors of the changes.
    for (more, why) in [
        (&["--delete-snapshot=s4"][..], "newest"),
        (&["--rename-snapshot", "s1", "s2"], "already"),
        (&["--rename-snapshot", "s1", "a/b"], "slash"),
        (&["--pin-snapshot=s1", "--delete-snapshot=s1"], "pinned"),
        (&["--keep-last=0", "--keep-daily=0"], "keep no snapshot"),
        (&["--keep-within=0"], "keep no snapshot"),
    ] {
        let dry = said(1, &[more, &["--dry-run"]].concat());
        assert!(dry.contains(why), "{dry}");
        assert_eq!(said(1, more), dry);
    }
    // Nor can a file be changed behind whose image there is something else.
    fs::write(
        nights.path("image"),
        [&nights.good, &b"other data"[..]].concat(),
    )
    .unwrap();
    for more in [
        &["--roll-back=s1"][..],
        &["--delete-snapshot=s1"],
        &["--punch"],
    ] {
        let dry = said(1, &[more, &["--dry-run"]].concat());
        assert!(dry.contains("other data follows the image"), "{dry}");
        assert_eq!(said(1, more), dry);
    }
    fs::write(nights.path("image"), &nights.good).unwrap();
    // Rules see the pins and names of the same command.
    let command = [
        "--rename-snapshot",
        "s2",
        "second",
        "--pin-snapshot=s3",
        "--keep-last=1",
    ];
    let would = said(0, &[&command[..], &["--dry-run"]].concat());
    assert_eq!(
        would,
        "would rename snapshot 2 's2' to 'second'\nwould pin snapshot 3 's3'\nwould delete snapshot 1 's1'\n\
         would delete snapshot 2 'second'\n"
    );
    let would = said(0, &[&command[..], &["--dry-run", "-j"]].concat());
    let would: Value = serde_json::from_str(&would).unwrap();
    let second = serde_json::json!([{"number": 2, "name": "second"}]);
    assert_eq!(
        (&would["dry_run"], &would["renamed"]),
        (&true.into(), &second)
    );
    assert_eq!(would["deleted"].as_array().unwrap().len(), 2);
    assert!(is_same());
    assert_eq!(
        said(0, &["--keep-within=1d", "--dry-run"]),
        "would delete no snapshot\n"
    );
    let back: Value =
        serde_json::from_str(&said(0, &["--roll-back=s3", "--dry-run", "-j"])).unwrap();
    assert_eq!(
        (&back["rolled_back"]["name"], &back["rolled_back"]["later"]),
        (&"s3".into(), &1.into())
    );
    let cut = back["rolled_back"]["bytes"].as_u64().unwrap();
    assert!((16_000..20_000).contains(&cut), "{cut}");
    assert!(is_same());
    let did: Value = serde_json::from_str(&said(0, &[&command[..], &["-j"]].concat())).unwrap();
    assert_eq!((&did["dry_run"], &did["renamed"]), (&false.into(), &second));
    assert_eq!(
        (&did["deleted"], &did["pinned"]),
        (&would["deleted"], &would["pinned"])
    );
    assert_eq!(
        said(0, &["--unpin-snapshot=s3"]),
        "unpinned snapshot 3 's3'\n"
    );
    assert_eq!(said(0, &["-q", "--delete-snapshot=s3"]), "");
    let copy = nights.text("copy");
    let would: Value =
        serde_json::from_str(&said(0, &["--compact", &copy, "--dry-run", "-j"])).unwrap();
    let did: Value = serde_json::from_str(&said(0, &["--compact", &copy, "-j"])).unwrap();
    assert_eq!(would["compacted"], did["compacted"]);
    assert_eq!(
        did["compacted"]["new_size"],
        fs::metadata(&copy).unwrap().len()
    );
    let would: Value = serde_json::from_str(&said(0, &["--punch", "--dry-run", "-j"])).unwrap();
    assert_eq!(would["punched"]["snapshots"], 3);
}

#[test]
fn what_is_shown_of_an_image_has_its_snapshots() {
    let nights = Nights::new();
    let shown = text(&nights.check(&[]).stdout);
    let line = shown.lines().find(|line| line.contains("snapshots;"));
    let line = line.unwrap_or_else(|| panic!("{shown}"));
    assert!(
        line.starts_with("  4 snapshots; the newest is 's4' (") && line.ends_with(" added)"),
        "{line}"
    );
    let said = text(&nights.check(&["-j"]).stdout);
    let found: Value = serde_json::from_str(&said).unwrap();
    let found = &found["extensions"]["snapshots"];
    assert_eq!(found["count"], 4);
    assert_eq!(found["archived"], 0);
    assert_eq!(found["newest_name"], "s4");
    let added = found["newest_added"].as_u64().unwrap();
    assert!((16_000..20_000).contains(&added), "{added}");
    // Of an older snapshot, they are not the question.
    let shown = text(&nights.check(&["--snapshot=s2"]).stdout);
    assert!(!shown.contains("snapshots;"), "{shown}");
    // An image that was never continued has nothing of the kind.
    let target = nights.text("image");
    let tree = nights.text("tree");
    must(
        MKDWARFS,
        ["-i", &tree, "-o", &target, "--force", "--log-level=warn"],
    );
    let shown = text(&nights.check(&[]).stdout);
    assert!(!shown.contains("snapshot"), "{shown}");
}
