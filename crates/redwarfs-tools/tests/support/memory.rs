//! Programs under a memory limit of their own.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use redwarfs_testkit::process::{self, End, Limits, Run};

use super::MKDWARFS;

const MIB: f64 = 1_048_576.0;

/// Runs `mkdwarfs` with two workers and `-L LIMIT`.
fn run<S: AsRef<OsStr>>(place: &Path, args: &[S], limit: &str) -> Run {
    let mut command = Command::new(MKDWARFS);
    command.args(args);
    command.args(["--force", "-N2", "--log-level=warn", "-L", limit]);
    let limits = Limits {
        processor: Duration::from_secs(300),
        time: Duration::from_secs(600),
        address_space: 64 << 30,
        file_size: 1 << 30,
        ..Limits::default()
    };
    process::run(&mut command, limits, place).expect("a program that starts")
}

/// `mkdwarfs` with these arguments refuses 1 MiB, and stays in the limit that it says it needs.
pub(crate) fn assert_limit_is_kept<S: AsRef<OsStr>>(place: &Path, args: &[S], what: &str) {
    let refused = run(place, args, "1m");
    assert_eq!(refused.end, End::Code(1), "{what}: {}", refused.stderr);
    let text = refused.stderr.trim_end();
    let (_, needed) = text
        .split_once("memory limit of 1 MiB is too low (")
        .unwrap_or_else(|| panic!("{what}: {text}"));
    // The input of a build is not listed when so little is refused.
    let needed = needed.strip_prefix("at least ").unwrap_or(needed);
    let (number, unit) = needed.split_once(' ').unwrap_or_default();
    let number: f64 = number.parse().unwrap_or_default();
    let mib = match unit {
        "MiB are needed)" => number,
        "GiB are needed)" => number * 1024.0,
        other => panic!("{what}: {other}"),
    };
    // Rounded when it is shown, and the input is not yet known then.
    let limit = (mib * 1.02).ceil() + 4.0;
    let run = run(place, args, &format!("{limit}m"));
    assert_eq!(run.end, End::Code(0), "{what}: {}", run.stderr);
    assert!(
        run.peak as f64 <= limit * MIB,
        "{what}: {} of {limit} MiB",
        run.peak as f64 / MIB
    );
}

/// `mkdwarfs` with these arguments refuses 76 MiB, and stays in them until then.
pub(crate) fn assert_refused_in_the_limit<S: AsRef<OsStr>>(place: &Path, args: &[S]) {
    const LIMIT: f64 = 76.0;
    let refused = run(place, args, &format!("{LIMIT}m"));
    assert_eq!(refused.end, End::Code(1), "{}", refused.stderr);
    let text = refused.stderr.trim_end();
    assert!(text.contains("is too low (at least "), "{text}");
    assert!(refused.peak as f64 <= LIMIT * MIB, "{}", refused.peak);
}
