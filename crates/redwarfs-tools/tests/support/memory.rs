//! Programs under a memory limit of their own.

use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use redwarfs_testkit::process::{self, End, Limits, Run};

use crate::support::MKDWARFS;

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

/// What a refusal of such a limit says is needed, in MiB, and the limit in MiB that it says is enough.
fn needed(refused: &Run, limit: &str, what: &str) -> (f64, f64) {
    assert_eq!(refused.end, End::Code(1), "{what}: {}", refused.stderr);
    let text = refused.stderr.trim_end();
    assert_eq!(text.lines().count(), 1, "{what}: {text}");
    let (_, needed) = text
        .split_once(&format!("memory limit of {limit} is too low ("))
        .unwrap_or_else(|| panic!("{what}: {text}"));
    let least = needed.strip_prefix("at least ");
    let (needed, enough) = least
        .unwrap_or(needed)
        .split_once(" are needed, -L ")
        .unwrap_or_else(|| panic!("{what}: {text}"));
    let (number, unit) = needed.split_once(' ').unwrap_or_default();
    let number: f64 = number.parse().unwrap_or_default();
    let mib = match unit {
        "MiB" => number,
        "GiB" => number * 1024.0,
        other => panic!("{what}: {other}"),
    };
    let (enough, rest) = enough.split_once("m is enough").unwrap_or_default();
    assert!(
        rest == ")" || (least.is_some() && rest.starts_with(" for ")),
        "{what}: {text}"
    );
    let enough: f64 = enough.parse().unwrap_or_default();
    assert!(enough >= mib.floor(), "{what}: {text}");
    (mib, enough)
}

/// `mkdwarfs` with these arguments refuses 1 MiB, and limits that it says are needed at least until
/// it knows its input. It stays in the one that it says it needs, and each one that it says is enough is enough.
pub(crate) fn assert_limit_is_kept<S: AsRef<OsStr>>(place: &Path, args: &[S], what: &str) {
    let (mut mib, enough) = needed(&run(place, args, "1m"), "1 MiB", what);
    let is_enough = |enough: f64| {
        let run = run(place, args, &format!("{enough}m"));
        assert_eq!(
            run.end,
            End::Code(0),
            "{what}: {enough} MiB: {}",
            run.stderr
        );
        assert!(run.peak as f64 <= enough * MIB, "{what}: {enough} MiB");
    };
    is_enough(enough);
    // More is needed with each directory that is listed.
    for _ in 0..8 {
        // Rounded when it is shown.
        let limit = (mib * 1.02).ceil() + 4.0;
        let run = run(place, args, &format!("{limit}m"));
        assert!(
            run.peak as f64 <= limit * MIB,
            "{what}: {} of {limit} MiB",
            run.peak as f64 / MIB
        );
        if run.end == End::Code(0) {
            return;
        }
        let said = format!("{limit} MiB");
        let (more, enough) = match limit {
            1024.0.. => panic!("{what}: {limit} MiB for so little"),
            _ => needed(&run, &said, what),
        };
        assert!(more > mib, "{what}: {more} after {mib}");
        mib = more;
        is_enough(enough);
    }
    panic!("{what}: {mib} MiB are not enough either");
}

/// `mkdwarfs` with these arguments refuses 50 MiB, and stays in them until then.
pub(crate) fn assert_refused_in_the_limit<S: AsRef<OsStr>>(place: &Path, args: &[S]) {
    const LIMIT: f64 = 50.0;
    let refused = run(place, args, &format!("{LIMIT}m"));
    assert_eq!(refused.end, End::Code(1), "{}", refused.stderr);
    let text = refused.stderr.trim_end();
    assert!(text.contains("is too low (at least "), "{text}");
    assert!(refused.peak as f64 <= LIMIT * MIB, "{}", refused.peak);
}
