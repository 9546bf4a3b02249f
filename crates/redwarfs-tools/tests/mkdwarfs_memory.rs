//! Memory limits of `mkdwarfs` when it builds.
#![allow(clippy::unwrap_used)]

mod support;

use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use redwarfs_testkit::process::{self, End, Limits, Run};
use support::MKDWARFS;

const MIB: f64 = 1048576.0;

fn build(place: &Path, level: u32, limit: &str) -> Run {
    let mut command = Command::new(MKDWARFS);
    command.arg("-i").arg(place.join("in"));
    command.arg("-o").arg(place.join("out")).arg("--force");
    command.args([
        "-N2",
        "--log-level=warn",
        &format!("-l{level}"),
        "-L",
        limit,
    ]);
    let limits = Limits {
        processor: Duration::from_secs(300),
        time: Duration::from_secs(600),
        address_space: 64 << 30,
        file_size: 1 << 30,
        ..Limits::default()
    };
    process::run(&mut command, limits, place).unwrap()
}

/// Some text, different in every file.
fn fill(place: &Path) {
    let mut x = 1u32;
    for file in 0..120 {
        let mut text = String::new();
        while text.len() < 64 << 10 {
            x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            text.push_str(&format!("{} of {}\n", x >> 12, x >> 28));
        }
        let dir = place.join("in").join(format!("{}", file % 7));
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(format!("file{file}")), text).unwrap();
    }
}

#[test]
fn limits_are_kept_or_refused_with_what_is_needed() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    fill(place);
    for level in [1, 5, 7, 9] {
        let refused = build(place, level, "1m");
        assert_eq!(refused.end, End::Code(1), "{}", refused.stderr);
        let text = refused.stderr.trim_end();
        let (_, needed) = text
            .split_once("memory limit of 1 MiB is too low (")
            .unwrap_or_else(|| panic!("{text}"));
        let (number, unit) = needed.split_once(' ').unwrap();
        let number: f64 = number.parse().unwrap();
        let mib = match unit {
            "MiB are needed)" => number,
            "GiB are needed)" => number * 1024.0,
            other => panic!("{other}"),
        };
        // Rounded when it is shown, and the input is not yet known then.
        let limit = (mib * 1.02).ceil() + 4.0;
        let run = build(place, level, &format!("{limit}m"));
        assert_eq!(run.end, End::Code(0), "level {level}: {}", run.stderr);
        assert!(
            run.peak as f64 <= limit * MIB,
            "level {level}: {} of {limit} MiB",
            run.peak as f64 / MIB
        );
    }
}
