//! Programs in front of images: what the tools make of them, and what they say.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use crate::builder::{Done, TestDir, mkdwarfs};
use crate::support::{DWARFSCK, DWARFSEXTRACT};

/// Sections as in the runtime of an AppImage: a name and its range in the program.
const SECTIONS: [(&str, std::ops::Range<usize>); 3] = [
    (".upd_info", 100..1_124),
    (".sha256_sig", 2_000..3_024),
    (".sig_key", 4_000..12_192),
];

/// A program with those sections, in which they are empty.
fn program() -> Vec<u8> {
    let sections = SECTIONS.map(|(name, place)| (name, place.start as u64, place.len() as u64));
    let mut contents = vec![7; 13_000];
    for (_, place) in SECTIONS {
        contents[place.start - 64..place.end - 64].fill(0);
    }
    redwarfs_testkit::program::elf_with(&sections, &contents)
}

fn run(place: &TestDir, args: &[&str]) -> Done {
    let mut command = mkdwarfs();
    command.args(["--log-level=warn"]).args(args);
    Done::from(command.current_dir(place.path("")).output().unwrap())
}

fn check(place: &TestDir, args: &[&str]) -> Done {
    let mut command = std::process::Command::new(DWARFSCK);
    command.args(args).current_dir(place.path(""));
    Done::from(command.output().unwrap())
}

fn is_executable(path: &Path) -> bool {
    fs::metadata(path).unwrap().permissions().mode() & 0o111 != 0
}

#[test]
fn a_program_in_front_makes_the_file_executable() {
    let place = TestDir::new(&["a"]);
    for (header, says) in [
        (&program()[..], None),
        (b"#!/bin/sh\n", None),
        (b"a text\n", Some("it is neither an ELF file nor a script")),
        (b"", Some("it is empty")),
    ] {
        place.file("header", header);
        let done = run(
            &place,
            &["-i", "in", "-fo", "out", "-l1", "--header=header"],
        );
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        assert_eq!(is_executable(&place.path("out")), says.is_none());
        match says {
            None => assert_eq!(done.stderr, ""),
            Some(why) => {
                let said = format!("the output will not run: header: {why}");
                assert!(done.stderr.contains(&said), "{}", done.stderr);
            }
        }
        // The same for a rewrite of an image that nobody may execute.
        run(&place, &["-i", "in", "-fo", "plain", "-l1"]);
        let done = run(
            &place,
            &[
                "-i",
                "plain",
                "-fo",
                "new",
                "--recompress=none",
                "--header=header",
            ],
        );
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        assert_eq!(is_executable(&place.path("new")), says.is_none());
        assert_eq!(done.stderr.is_empty(), says.is_none(), "{}", done.stderr);
        for output in ["out", "plain", "new"] {
            fs::remove_file(place.path(output)).unwrap();
        }
    }
    // An old file that may be executed makes one that may, whatever is in front.
    place.file("header", b"#!/bin/sh\n");
    run(&place, &["-i", "in", "-o", "out", "-l1", "--header=header"]);
    place.file("header", b"a text\n");
    run(
        &place,
        &[
            "-i",
            "out",
            "-o",
            "new",
            "--recompress=none",
            "--header=header",
        ],
    );
    assert!(is_executable(&place.path("new")));
    run(
        &place,
        &[
            "-i",
            "out",
            "-o",
            "bare",
            "--recompress=none",
            "--remove-header",
        ],
    );
    assert!(!is_executable(&place.path("bare")));
}

#[test]
fn the_summary_says_what_is_in_front() {
    let place = TestDir::new(&["a"]);
    place.file("program", program());
    let text = |args: &[&str]| {
        let mut command = mkdwarfs();
        command.args(args).current_dir(place.path(""));
        let done = Done::from(command.output().unwrap());
        assert_eq!(done.code, Some(0), "{}", done.stderr);
        done.stderr
    };
    let line = |text: &str, start: &str| {
        let line = text.lines().find(|line| line.starts_with(start));
        line.map(str::to_owned)
    };
    let plain = text(&[
        "-i",
        "in",
        "-o",
        "plain",
        "-l1",
        "--no-history",
        "--no-create-timestamp",
    ]);
    assert_eq!(line(&plain, "in front:"), None);
    let with = text(&[
        "-i",
        "in",
        "-o",
        "with",
        "-l1",
        "--no-history",
        "--no-create-timestamp",
        "--header=program",
    ]);
    assert_eq!(line(&with, "size:"), line(&plain, "size:"));
    let front = line(&with, "in front:").unwrap();
    assert!(
        front.starts_with("in front: 13.") && front.ends_with(" KiB, program (x86_64)"),
        "{front}"
    );
    let again = text(&["-i", "with", "-o", "again", "--recompress=none"]);
    let front = line(&again, "in front:").unwrap();
    assert!(front.ends_with(" KiB, as it was"), "{front}");
    let bare = text(&[
        "-i",
        "with",
        "-o",
        "bare",
        "--recompress=none",
        "--remove-header",
    ]);
    assert_eq!(line(&bare, "in front:"), None);
}

#[test]
fn a_rewrite_takes_out_the_signature_of_the_old_file() {
    let place = TestDir::new(&["a"]);
    place.file("program", program());
    run(
        &place,
        &["-i", "in", "-o", "out", "-l1", "--header=program"],
    );
    let mut bytes = fs::read(place.path("out")).unwrap();
    let length = program().len();
    let [update, signature, key] = SECTIONS.map(|(_, place)| place);
    // Without a signature, nothing is said, and all stays.
    bytes[update.start] = b'z';
    bytes[key.start] = b'k';
    fs::write(place.path("out"), &bytes).unwrap();
    let rewrite = ["-i", "out", "-fo", "new", "--recompress=none"];
    let done = run(&place, &rewrite);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    assert_eq!(
        fs::read(place.path("new")).unwrap()[..length],
        bytes[..length]
    );
    bytes[signature.end - 1] = b's';
    fs::write(place.path("out"), &bytes).unwrap();
    let done = run(&place, &rewrite);
    assert_eq!(done.code, Some(0));
    assert!(
        done.stderr
            .contains("the signature in front of the image is left out"),
        "{}",
        done.stderr
    );
    bytes[signature].fill(0);
    bytes[key].fill(0);
    let new = fs::read(place.path("new")).unwrap();
    assert_eq!(new[..length], bytes[..length]);
    assert_eq!(new[update.start], b'z');
    assert_eq!(check(&place, &["new", "-q"]).code, Some(0));
    // The same if the runtime of a signed file becomes the header of another one.
    let header = check(&place, &["out", "-H"]).stdout;
    place.file("old", &header);
    let done = run(&place, &["-i", "in", "-o", "next", "-l1", "--header=old"]);
    assert!(
        done.stderr.contains("the signature in old is left out"),
        "{}",
        done.stderr
    );
    assert_eq!(
        fs::read(place.path("next")).unwrap()[..length],
        bytes[..length]
    );
}

#[test]
fn recovery_data_lets_tools_write_into_their_sections() {
    let place = TestDir::new(&["a"]);
    place.file("program", program());
    run(
        &place,
        &[
            "-i",
            "in",
            "-o",
            "out",
            "-l1",
            "--header=program",
            "--recovery=20",
        ],
    );
    let mut bytes = fs::read(place.path("out")).unwrap();
    for (_, range) in SECTIONS {
        bytes[range].fill(b'x');
    }
    fs::write(place.path("out"), &bytes).unwrap();
    let but_for =
        "but for 10,240 bytes in sections of the program (.upd_info, .sha256_sig, .sig_key)";
    for (task, expected) in [
        (
            &["--check-recovery"][..],
            format!("OK: the file is as it was {but_for}, which are not compared\n"),
        ),
        (
            &["--repair"],
            format!("repaired: nothing, the file is intact {but_for}"),
        ),
        (&["--check-recovery", "-j"], "\"left_out\":10240".to_owned()),
    ] {
        let done = check(&place, &[&["out"], task].concat());
        let text = String::from_utf8(done.stdout).unwrap();
        assert!(done.code == Some(0) && text.contains(&expected), "{text}");
    }
    let mut damaged = bytes.clone();
    damaged[SECTIONS[0].1.end] ^= 1;
    fs::write(place.path("out"), &damaged).unwrap();
    assert_eq!(check(&place, &["out", "--check-recovery"]).code, Some(1));
    assert_eq!(check(&place, &["out", "--repair"]).code, Some(0));
    assert_eq!(fs::read(place.path("out")).unwrap(), bytes);
    // A signature does not fit a file that has changed.
    let said = "the signature in it covers the file as it was: sign it again";
    let done = check(&place, &["out", "--remove-recovery"]);
    assert!(
        done.code == Some(0) && done.stderr.contains(said),
        "{}",
        done.stderr
    );
    let done = check(&place, &["out", "--add-recovery=20"]);
    assert!(
        done.code == Some(0) && done.stderr.contains(said),
        "{}",
        done.stderr
    );
    let text = String::from_utf8(done.stdout).unwrap();
    assert!(
        text.contains("left out: 10,240 bytes of sections"),
        "{text}"
    );
    assert_eq!(fs::read(place.path("out")).unwrap(), bytes);
}

#[test]
fn squashfs_images_are_named() {
    let place = TestDir::new(&["a"]);
    let mut squashfs = vec![0; 4096];
    squashfs[..4].copy_from_slice(b"hsqs");
    // Block size, compressor and its logarithm, version.
    for (at, value) in [(14, 2), (20, 1), (22, 17), (28, 4)] {
        squashfs[at] = value;
    }
    // Length, and places of the tables.
    for (at, value) in [(40, 4096_u64), (64, 96), (72, 200)] {
        squashfs[at..at + 8].copy_from_slice(&value.to_le_bytes());
    }
    let front = program();
    let padded = [&front[..], &[0; 100]].concat();
    let script = b"#!/bin/sh\nexec mount -t squashfs\n";
    for front in [&b""[..], &front, &padded, script] {
        place.file("old", [front, &squashfs].concat());
        let at = front.len();
        let said = format!("unsquashfs -o {at} extracts it");
        let mut extract = std::process::Command::new(DWARFSEXTRACT);
        extract.args(["-i", "old", "-o", "in"]);
        let extracted = Done::from(extract.current_dir(place.path("")).output().unwrap());
        for done in [
            run(&place, &["-i", "old", "-o", "out"]),
            run(&place, &["-i", "old", "-o", "out", "--recompress"]),
            check(&place, &["old"]),
            extracted,
        ] {
            assert_eq!(done.code, Some(1));
            assert_eq!(done.stderr.lines().count(), 1, "{}", done.stderr);
            let what = format!("it has a SquashFS image at byte {at}");
            assert!(
                done.stderr.contains(&what) && done.stderr.contains(&said),
                "{}",
                done.stderr
            );
        }
    }
}

#[test]
fn the_directory_below_is_suggested() {
    let place = TestDir::new(&["AppDir/AppRun", "other/x", "file"]);
    let runtime = place.file("runtime", b"#!/bin/sh\n");
    let build = || {
        let mut command = mkdwarfs();
        command.args([
            "-i",
            "in",
            "-fo",
            "out",
            "-l1",
            "--header=runtime",
            "--log-level=warn",
        ]);
        command.env("REDWARFS_RUNTIME", &runtime);
        Done::from(command.current_dir(place.path("")).output().unwrap()).stderr
    };
    let said = build();
    assert!(said.ends_with("/in/AppDir?)\n"), "{said}");
    // Not if there are two.
    fs::write(place.path("in/other/AppRun"), "").unwrap();
    let said = build();
    assert!(said.ends_with("no such file or directory\n"), "{said}");
}

#[test]
fn a_list_without_its_categorizer_is_named() {
    let place = TestDir::new(&["a"]);
    place.file("list", "a\n");
    let said = "the hotness list has no effect without --categorize=hotness: list\n";
    for (more, warned) in [
        (&[][..], true),
        (&["--categorize"], true),
        (&["--categorize=binary,hotness"], false),
    ] {
        let args = ["-i", "in", "-fo", "out", "-l1", "--hotness-list=list"];
        let done = run(&place, &[&args[..], more].concat());
        assert_eq!(done.code, Some(0));
        assert_eq!(done.stderr.ends_with(said), warned, "{}", done.stderr);
    }
    place.file("list", "gone\nlost\n");
    let args = [
        "-i",
        "in",
        "-fo",
        "out",
        "-l1",
        "--hotness-list=list",
        "--categorize=hotness",
    ];
    let done = run(&place, &args);
    assert!(
        done.stderr.ends_with("and so is 1 more path\n"),
        "{}",
        done.stderr
    );
}
