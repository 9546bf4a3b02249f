//! Changes of the list of snapshots, and copies without some of them.

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::UNIX_EPOCH;

use crate::snapshots::{OLD, TestDir, extracted, files, text};
use crate::support::{DWARFSCK, MKDWARFS, must, reference};

#[test]
fn dry_runs_say_what_would_be_in_the_way() {
    let mut place = TestDir::new();
    place.write("a", 20_001);
    place.snapshot("s2");
    let (copy, image) = (place.dir.path().join("copy"), place.bytes());
    let compact = ["--compact", copy.to_str().unwrap()];
    let changes: [&[&str]; 4] = [
        &["--delete-snapshot=1"],
        &["--roll-back=1"],
        &["--punch"],
        &compact,
    ];
    let dry = |change: &[&str]| {
        let output = place.check(&[change, &["--dry-run"]].concat());
        assert!(output.status.success(), "{change:?}");
        assert!(text(&output.stdout).contains("would "), "{change:?}");
        text(&output.stderr)
    };
    for change in changes {
        assert_eq!(dry(change), "", "{change:?}");
    }
    assert!(!copy.exists());
    fs::write(&copy, "mine").unwrap();
    let warning = dry(&compact);
    assert!(
        warning.contains("without --dry-run, this would fail: cannot write image: "),
        "{warning}"
    );
    let pipe = place.dir.path().join("pipe");
    rustix::fs::mkfifoat(rustix::fs::CWD, &pipe, rustix::fs::Mode::RWXU).unwrap();
    assert_eq!(dry(&["--compact", pipe.to_str().unwrap()]), "");
    let _writer = redwarfs_io::LockedFile::open(&place.image).unwrap();
    for change in &changes[..3] {
        let warning = dry(change);
        assert!(
            warning.contains("another program is changing it"),
            "{warning}"
        );
    }
    assert_eq!(fs::read(&copy).unwrap(), b"mine");
    assert!(place.bytes() == image);
}

#[test]
fn snapshots_are_renamed_pinned_deleted_and_left_behind() {
    let mut place = TestDir::new();
    let mut images = vec![place.bytes()];
    let mut trees = vec![files(&place.tree())];
    for number in 2..6 {
        place.write("a", 20_000 + number);
        place.snapshot(&format!("s{number}"));
        images.push(place.bytes());
        trees.push(files(&place.tree()));
    }
    place.good(&["--rename-snapshot", "s3", "third"]);
    place.good(&["--pin-snapshot", "third", "--pin-snapshot", "1"]);
    let list = place.good(&["--snapshots"]);
    assert!(list.contains("third (pinned)"), "{list}");
    assert!(
        place
            .bad(&["--rename-snapshot", "s2", "third"])
            .contains("already")
    );
    assert!(
        place
            .bad(&["--rename-snapshot", "s2", "a/b"])
            .contains("slash")
    );
    assert!(
        place
            .bad(&["--delete-snapshot", "third"])
            .contains("--unpin-snapshot")
    );
    assert!(place.bad(&["--delete-snapshot", "s5"]).contains("newest"));
    let before = place.bytes();
    let said = place.good(&["--keep-last", "1", "--dry-run"]);
    assert_eq!(
        said,
        "would delete snapshot 2 's2'\nwould delete snapshot 4 's4'\n"
    );
    // Rules count what is left when the named ones are gone.
    let said = place.good(&["--delete-snapshot=s4", "--keep-last=3", "--dry-run"]);
    assert_eq!(said, "would delete snapshot 4 's4'\n");
    let plan = place.good(&["--compact", "unused", "--dry-run"]);
    assert!(
        plan.starts_with("would free ") && plan.contains("5 snapshots"),
        "{plan}"
    );
    let back = place.good(&["--roll-back", "third", "--dry-run"]);
    assert!(back.contains(" and 2 later snapshots"), "{back}");
    assert_eq!(place.bytes(), before);
    let said = place.good(&["--keep-last", "1"]);
    assert_eq!(said, "deleted snapshot 2 's2'\ndeleted snapshot 4 's4'\n");
    assert!(
        place
            .bad(&["--snapshot", "s2", "-l"])
            .contains("no snapshot 's2'")
    );
    place.good(&["--check-integrity"]);

    let copy = place.dir.path().join("copy");
    let said = place.good(&["--compact", copy.to_str().unwrap()]);
    assert!(
        said.starts_with("freed ") && said.contains("3 snapshots"),
        "{said}"
    );
    let freed = place.bytes().len() - fs::read(&copy).unwrap().len();
    assert!((40_000..50_000).contains(&freed), "{freed}");
    must(
        DWARFSCK,
        [
            copy.to_str().unwrap(),
            "--check-integrity",
            "--decode",
            "-q",
        ],
    );
    for (number, tree) in [(1, 0), (3, 2), (5, 4)] {
        let snapshot = format!("--snapshot={number}");
        assert!(extracted(&copy, &[&snapshot]) == trees[tree], "{number}");
    }
    // A file is never replaced by a copy.
    let copy = copy.to_str().unwrap();
    let said = place.bad(&["--compact", copy]);
    let exists = "file exists (remove it, or choose another name)";
    let want = format!("cannot write image: {copy}: {exists}");
    assert!(said.contains(&want), "{said}");

    let said = place.good(&["--roll-back", "third"]);
    assert!(said.contains("rolled back to snapshot 'third'"), "{said}");
    assert!(place.bytes() == images[2]);
    assert!(place.extracted(&[]) == trees[2]);
}

#[test]
fn a_repacked_copy_has_the_kept_snapshots() {
    let mut place = TestDir::new();
    let mut trees = vec![files(&place.tree())];
    for number in 2..6 {
        place.write("a", 20_000 + number);
        place.write(&format!("n{number}"), 1000);
        place.snapshot(&format!("s{number}"));
        trees.push(files(&place.tree()));
    }
    place.good(&["--delete-snapshot", "s2", "--delete-snapshot", "s4"]);
    let copy = place.dir.path().join("copy");
    let said = place.good(&["--compact", copy.to_str().unwrap(), "--repack=3"]);
    assert!(
        said.starts_with("freed ") && said.contains("3 snapshots"),
        "{said}"
    );
    let output = place.check(&["--repack=3"]);
    assert!(!output.status.success(), "it needs --compact");
    place.image = copy;
    place.good(&["--check-integrity", "--decode"]);
    let mut cuts = Vec::new();
    for line in place.good(&["--snapshots", "-j"]).lines() {
        let snapshot: serde_json::Value = serde_json::from_str(line).unwrap();
        let number = snapshot["number"].as_u64().unwrap();
        cuts.push((number, snapshot["image_size"].as_u64().unwrap()));
    }
    for (number, end) in cuts {
        let tree = &trees[number as usize - 1];
        assert!(place.extracted(&[&format!("--snapshot={number}")]) == *tree);
        let Some(reference) = reference() else {
            continue;
        };
        let cut = place.dir.path().join("cut");
        fs::write(&cut, &place.bytes()[..end as usize]).unwrap();
        let out = tempfile::tempdir().unwrap();
        let output = Command::new(reference.join("dwarfsextract"))
            .args([
                "-i",
                cut.to_str().unwrap(),
                "-o",
                out.path().to_str().unwrap(),
            ])
            .output()
            .unwrap();
        assert!(output.status.success(), "{}", text(&output.stderr));
        assert!(files(out.path()) == *tree, "{number}");
    }
    place.write("b", 500);
    place.snapshot("next");
    assert!(place.extracted(&[]) == files(&place.tree()));
    let json = place.good(&["--snapshots", "-j"]);
    assert_eq!(json.lines().count(), 4);
}

/// Contents that are built anew get the blocks of the level, or those that are asked for.
#[test]
fn a_rebuilt_copy_has_the_blocks_that_are_asked_for() {
    let mut place = TestDir::new();
    let image = place.image.to_str().unwrap().to_owned();
    place.write("b", 300_000);
    must(
        MKDWARFS,
        place.arguments(&["-l3", "-S12", "-f", "-o", &image]),
    );
    place.write("a", 100_000);
    let appended = place.append(&["-S12"]);
    assert!(appended.status.success());
    let tree = files(&place.tree());
    let block = |image: &Path| {
        let image = redwarfs_reader::Image::open(image, &Default::default()).unwrap();
        let size = image.metadata().block_size();
        assert!(image.container().block_count() > 0);
        (size, image.container().block_count())
    };
    let (small, count) = block(&place.image);
    assert_eq!(small, 1 << 12);
    let copy = place.dir.path().join("copy");
    let compact = ["--compact", copy.to_str().unwrap()];
    let larger =
        "instead of 4 KiB, so that damage in one place affects more files: -S12 keeps the size";
    let anew: [&[&str]; 3] = [
        &["--repack=3"],
        &["--archive"],
        &["--archive", "--repack=5"],
    ];
    for options in anew {
        for (bits, warns) in [
            (None, true),
            (Some("-S12"), false),
            (Some("--block-size-bits=13"), false),
        ] {
            let arguments: Vec<&str> = compact.iter().chain(options).copied().chain(bits).collect();
            let dry = place.check(&[&arguments[..], &["--dry-run"]].concat());
            assert_eq!(text(&dry.stderr).contains(larger), warns, "{arguments:?}");
            let done = place.check(&arguments);
            let said = text(&done.stderr);
            assert!(done.status.success(), "{arguments:?}: {said}");
            assert_eq!(said.contains(larger), warns, "{arguments:?}: {said}");
            let (size, blocks) = block(&copy);
            match bits {
                None => assert!(size >= 1 << 20, "{arguments:?}: {size}"),
                Some("-S12") => assert!(size == 1 << 12 && blocks > count / 2, "{arguments:?}"),
                Some(_) => assert_eq!(size, 1 << 13, "{arguments:?}"),
            }
            assert!(extracted(&copy, &[]) == tree, "{arguments:?}");
            fs::remove_file(&copy).unwrap();
        }
    }
    // A plain copy has the old blocks.
    let plain = place.check(&compact);
    assert!(plain.status.success() && plain.stderr.is_empty());
    assert_eq!(block(&copy), (small, count));
    for refused in [
        &[compact[0], compact[1], "-S12"][..],
        &["-S12"],
        &[compact[0], compact[1], "--repack=3", "-S9"],
    ] {
        let said = place.check(refused);
        assert_eq!(said.status.code(), Some(1), "{refused:?}");
    }
    let said = place.bad(&[compact[0], compact[1], "-S12"]);
    assert!(
        said.contains("--block-size-bits needs --repack or --archive"),
        "{said}"
    );
}

#[test]
fn names_that_are_numbers_of_others_confuse_nothing() {
    let mut place = TestDir::new();
    let first = files(&place.tree());
    place.write("a", 20_000);
    fs::remove_file(place.tree().join("b")).unwrap();
    place.snapshot("1");
    let second = files(&place.tree());
    place.write("c", 10);
    place.snapshot("2");
    let image = place.image.clone();
    for repack in [None, Some("--repack=3")] {
        let copy = place.dir.path().join(repack.unwrap_or("plain"));
        place.image = image.clone();
        let mut arguments = vec!["--compact", copy.to_str().unwrap()];
        arguments.extend(repack);
        place.good(&arguments);
        place.image = copy;
        for name in ["1", "2"] {
            place.good(&["--rename-snapshot", name, &format!("named {name}")]);
        }
        assert!(place.extracted(&["--snapshot=1"]) == first, "{repack:?}");
        assert!(place.extracted(&["--snapshot=2"]) == second, "{repack:?}");
    }
}

#[test]
fn a_damaged_table_of_snapshots_stops_changes() {
    let mut place = TestDir::new();
    for name in ["s2", "s3", "s4"] {
        place.write("a", 20_000);
        place.snapshot(name);
    }
    let mut bytes = place.bytes();
    let is_table = |at: &usize| {
        bytes[*at..].starts_with(b"DWARFS") && bytes[*at + 52..*at + 54] == [0x80, 0x44]
    };
    let tables: Vec<usize> = (0..bytes.len() - 64).filter(is_table).collect();
    assert!(tables.len() >= 3);
    for at in tables {
        bytes[at + 64 + 70] ^= 1;
    }
    fs::write(&place.image, &bytes).unwrap();
    let copy = place.dir.path().join("copy");
    for refused in [
        &["--compact", copy.to_str().unwrap()][..],
        &["--rename-snapshot", "1", "x"],
        &["--roll-back", "1"],
    ] {
        let said = place.check(refused);
        assert_eq!(said.status.code(), Some(1), "{refused:?}");
        let said = text(&said.stderr);
        assert!(said.contains("would be lost"), "{said}");
    }
    let said = place.append(&["--snapshot-name", "s5"]);
    assert_eq!(said.status.code(), Some(1));
    assert!(text(&said.stderr).contains("would be lost"));
    assert!(place.bytes() == bytes);
}

#[test]
fn a_repacked_copy_keeps_all_times() {
    use redwarfs_reader::{Image, OpenOptions};
    let place = TestDir::new();
    let file = fs::File::options()
        .append(true)
        .open(place.tree().join("a"))
        .unwrap();
    let read = UNIX_EPOCH + OLD * 2 / 3;
    file.set_times(
        fs::FileTimes::new()
            .set_accessed(read)
            .set_modified(UNIX_EPOCH + OLD),
    )
    .unwrap();
    let image = place.dir.path().join("times");
    let image = image.to_str().unwrap();
    must(
        MKDWARFS,
        place.arguments(&["-l3", "--keep-all-times", "--keep-btime", "-o", image]),
    );
    let more = ["-l3", "--keep-all-times", "--keep-btime", "--append", image];
    must(MKDWARFS, place.arguments(&more));
    let copy = place.dir.path().join("copy");
    must(
        DWARFSCK,
        [image, "--compact", copy.to_str().unwrap(), "--repack=3"],
    );
    let stat = |path: &Path| {
        let image = Image::open(path, &OpenOptions::default()).unwrap();
        let inode = image.find_path(b"a").unwrap().unwrap();
        let birth = image.metadata().birth_time(inode).unwrap();
        let stat = image.metadata().stat(inode).unwrap();
        (stat.atime.sec, stat.mtime.sec, stat.ctime.sec, birth)
    };
    let kept = stat(Path::new(image));
    assert_eq!(kept.0, (OLD * 2 / 3).as_secs() as i64);
    assert_eq!(stat(&copy), kept);
}
