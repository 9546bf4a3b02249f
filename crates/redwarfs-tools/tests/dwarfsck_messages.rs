//! Messages, progress, help and refusals of `dwarfsck`.

use crate::dwarfsck_output::{check, refused, shown, text};
use crate::support::{DWARFSCK, must, run};
use redwarfs_testkit::golden::golden;
use std::fs;
use std::path::Path;
use std::process::Command;

#[test]
fn exclusions_between_options() {
    let header = "--print-header is mutually exclusive with --json, --export-metadata, \
                  --check-integrity, --list and --checksum";
    for option in [
        "-j",
        "--export-metadata=-",
        "--check-integrity",
        "-l",
        "--checksum=md5",
    ] {
        assert_eq!(refused(&["-H", option]), header, "{option}");
    }
    assert_eq!(
        refused(&["--no-check", "--check-integrity"]),
        "--no-check and --check-integrity are mutually exclusive"
    );
    assert_eq!(
        refused(&["--no-check", "--decode"]),
        "--no-check and --decode are mutually exclusive"
    );
    for option in ["-j", "-l", "--checksum=md5"] {
        assert_eq!(
            refused(&["--export-metadata=-", option]),
            "--export-metadata=- is mutually exclusive with --json, --list and --checksum"
        );
    }
    assert_eq!(
        refused(&["-l", "--checksum=md5"]),
        "--list and --checksum are mutually exclusive"
    );
    assert_eq!(
        refused(&["-l", "-0", "-j"]),
        "--null and --json are mutually exclusive"
    );
    let image = golden("one").image;
    let name = image.to_str().unwrap();
    assert_eq!(
        refused(&["-i", name]),
        "option '--input' cannot be specified more than once"
    );
    assert_eq!(shown(Path::new("-i"), &[name, "-l"]), "only\n");
    let none = run::<&str>(DWARFSCK, []);
    assert_eq!(none.status.code(), Some(1));
}

#[test]
fn quiet_is_quiet() {
    let image = golden("basic-default").image;
    assert_eq!(shown(&image, &["-q"]), "");
    assert_eq!(shown(&image, &["--quiet", "-d7", "--json"]), "");
    assert!(!shown(&golden("one").image, &["-q", "--checksum=md5"]).is_empty());
    assert!(!shown(&image, &["-q", "--export-metadata=-"]).is_empty());
}

#[test]
fn bad_values_are_refused() {
    assert!(refused(&["-n", "0"]).contains("must be a number from 1 to 1024"));
    for size in ["0", "1k", "-1", "+1"] {
        let refused = refused(&[&format!("--image-size={size}")]);
        assert!(refused.contains("must be a number of bytes"), "{refused}");
    }
    assert!(refused(&["-s", "5q"]).contains("unsupported size suffix: q"));
    assert_eq!(
        refused(&["--log-level=loud"]),
        "invalid logger level: loud (one of error, warn, info, verbose, debug, trace)"
    );
    assert!(refused(&["--bogus"]).starts_with("unrecognised option '--bogus'"));
}

#[test]
fn messages_can_be_chosen() {
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(golden("one").image).unwrap();
    // In the history: a warning when the image is opened, an error of the check.
    bytes[1870] ^= 1;
    let damaged = dir.path().join("damaged");
    fs::write(&damaged, bytes).unwrap();
    let said = |options: &[&str]| {
        let done = check(&damaged, &[&["-q"], options].concat());
        assert_eq!(done.status.code(), Some(1));
        text(&done.stderr)
    };
    let usual = said(&[]);
    assert!(usual.starts_with("W ") && usual.contains("\nE "), "{usual}");
    let errors = said(&["--log-level=error"]);
    assert!(
        errors.starts_with("E ") && !errors.contains("W "),
        "{errors}"
    );
    assert!(!usual.contains('['), "{usual}");
    let context = said(&["--log-with-context"]);
    assert!(context.contains('['), "{context}");

    let good = golden("one").image;
    let said = |options: &[&str]| {
        let done = check(&good, options);
        assert_eq!(done.status.code(), Some(0));
        text(&done.stderr)
    };
    assert_eq!(said(&["--log-level=info"]), "");
    let verbose = said(&["--log-level=verbose"]);
    for part in [" opened the image, version=", " verified 5 sections, "] {
        assert!(verbose.contains(part), "{verbose}");
    }
    let trace = said(&["--log-level=trace"]);
    assert!(trace.contains("] verifying section 0 "), "{trace}");
}

#[test]
fn progress_can_be_chosen() {
    let image = golden("one").image;
    let said = |options: &[&str]| text(&check(&image, options).stderr);
    for mode in ["simple", "ascii", "unicode"] {
        let text = said(&["--progress", mode]);
        assert!(text.contains("==> checking 100%, "), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }
    for none in [
        &[][..],
        &["--no-progress"],
        &["--progress=none"],
        &["-q", "--progress=simple"],
    ] {
        assert_eq!(said(none), "");
    }
}

#[test]
fn help_and_version() {
    let version = must(DWARFSCK, ["--version"]).stdout;
    assert_eq!(
        text(&version),
        format!("dwarfsck {} (RedwarFS)\n", env!("CARGO_PKG_VERSION"))
    );
    for flag in ["-h", "--help"] {
        let help = text(&must(DWARFSCK, [flag]).stdout);
        for option in [
            "--input",
            "--detail",
            "--quiet",
            "--verbose",
            "--image-offset",
            "--print-header",
            "--list",
            "--null",
            "--checksum",
            "--num-workers",
            "--cache-size",
            "--check-integrity",
            "--decode",
            "--no-check",
            "--json",
            "--export-metadata",
            "--log-level",
            "--log-with-context",
        ] {
            assert!(help.contains(option), "{option}");
        }
        assert!(!help.contains("not supported"), "{help}");
    }
}

#[test]
fn workers_follow_the_environment() {
    let image = golden("basic-default").image;
    let done = Command::new(DWARFSCK)
        .arg(&image)
        .arg("-q")
        .env("DWARFS_OVERRIDE_HARDWARE_CONCURRENCY", "3")
        .env("DWARFS_WORKER_GROUP_AFFINITY", "fscheck=0:checksum=0")
        .output()
        .unwrap();
    assert_eq!(
        (done.status.code(), text(&done.stderr)),
        (Some(0), String::new())
    );
    let done = Command::new(DWARFSCK)
        .arg(golden("one").image)
        .arg("--checksum=sha1")
        .env("DWARFS_IOLAYER_OPTS", "open_mode=read")
        .env("DWARFS_OVERRIDE_HARDWARE_CONCURRENCY", "many")
        .output()
        .unwrap();
    assert!(done.status.success());
    assert!(text(&done.stderr).contains("DWARFS_OVERRIDE_HARDWARE_CONCURRENCY"));
}
