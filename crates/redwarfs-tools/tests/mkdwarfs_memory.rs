//! Memory limits of `mkdwarfs` when it builds and when it rewrites.
#![allow(clippy::unwrap_used)]

mod support;

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

use redwarfs_testkit::skip;
use support::memory;

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
    let (tree, image) = (place.join("in"), place.join("out"));
    for level in ["-l1", "-l5", "-l7", "-l9"] {
        let args = [
            "-i".as_ref(),
            tree.as_os_str(),
            "-o".as_ref(),
            image.as_os_str(),
            level.as_ref(),
        ];
        memory::assert_limit_is_kept(place, &args, level);
    }
}

#[test]
fn what_is_needed_follows_from_what_is_there() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let (tree, image) = (place.join("in"), place.join("out"));
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "abc").unwrap();
    let run = |options: &[&str]| {
        let mut command = std::process::Command::new(support::MKDWARFS);
        command.arg("-i").arg(&tree).arg("-fo").arg(&image);
        let done = command.args(options).output().unwrap();
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    };
    for level in 0..=9 {
        let level = format!("-l{level}");
        let (code, text) = run(&[&level, "-L", "64m", "-N2", "--log-level=warn"]);
        assert_eq!((code, text.as_str()), (Some(0), ""), "{level}");
        // Nothing is said before what is wrong.
        let (code, text) = run(&[&level, "-L", "1"]);
        assert_eq!(code, Some(1), "{level}");
        assert!(text.starts_with("mkdwarfs: memory limit of 1 B is too low (at least "));
        assert_eq!(text.lines().count(), 1, "{level}: {text}");
    }
    // Too little for what is there, and enough for that.
    fill(place);
    let (code, text) = run(&["-l9", "-L", "64m", "-N2", "--log-level=warn"]);
    assert_eq!((code, text.lines().count()), (Some(1), 1), "{text}");
    let (code, text) = run(&["-l9", "-L", "400m", "-N2", "--log-level=warn"]);
    assert_eq!((code, text.as_str()), (Some(0), ""));
}

#[test]
fn limits_of_rewriting_are_kept_or_refused_with_what_is_needed() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    fill(place);
    let (source, image) = (place.join("source"), place.join("out"));
    support::build(&place.join("in"), &source, &["-l3", "-S21"]);
    for options in [
        &["--recompress", "-l1"][..],
        &["--recompress", "-l5"],
        &["--recompress", "-l9"],
        &["--recompress", "-C", "brotli:quality=9"],
        &["--recompress=none"],
        &["--rebuild-metadata"],
        &["--change-block-size", "-S18", "-l5"],
        &["--change-block-size", "-S23", "-l8"],
    ] {
        let mut args = vec![
            "-i".as_ref(),
            source.as_os_str(),
            "-o".as_ref(),
            image.as_os_str(),
        ];
        args.extend(options.iter().map(OsStr::new));
        memory::assert_limit_is_kept(place, &args, &format!("{options:?}"));
    }
}

#[test]
fn limits_that_entries_make_too_low_are_refused_while_listing() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    let tree = place.join("in");
    for directory in 0..4 {
        let at = tree.join(format!("{directory}"));
        fs::create_dir_all(&at).unwrap();
        for file in 0..20_000 {
            fs::File::create(at.join(format!("{file:05}"))).unwrap();
        }
    }
    let args = [
        "-i".as_ref(),
        tree.as_os_str(),
        "-o".as_ref(),
        OsStr::new("-"),
        "-l1".as_ref(),
    ];
    memory::assert_refused_in_the_limit(place, &args);
}

/// A memory group of the system that allows so many bytes.
struct Group(PathBuf);

impl Group {
    fn new(bytes: u64) -> Result<Self, String> {
        let name = format!("redwarfs-test-{}", std::process::id());
        let kinds = [
            ("/sys/fs/cgroup/memory", "memory.limit_in_bytes"),
            ("/sys/fs/cgroup", "memory.max"),
        ];
        for (mount, limit) in kinds {
            let group = Self(Path::new(mount).join(&name));
            if fs::create_dir(&group.0).is_ok()
                && fs::write(group.0.join(limit), bytes.to_string()).is_ok()
            {
                return Ok(group);
            }
        }
        Err("no memory group can be made".into())
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

#[test]
fn without_a_limit_that_of_the_control_group_counts() {
    const ALLOWED: u64 = 224 << 20;
    let group = match Group::new(ALLOWED) {
        Ok(group) => group,
        Err(why) => {
            skip("a build in a control group", &why);
            return;
        }
    };
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    // 16 threads of level 5 take four times as much.
    for copy in 0..5 {
        fill(&place.join(format!("all/{copy}")));
    }
    let script = format!(
        "echo $$ > {}/cgroup.procs && exec {} -i {} -o {} -l5 -N16 --num-scanner-workers=2 -C zstd:level=5 -B0 --log-level=warn",
        group.0.display(),
        support::MKDWARFS,
        place.join("all").display(),
        place.join("out").display(),
    );
    let done = std::process::Command::new("sh")
        .args(["-c", &script])
        .output();
    let done = done.unwrap();
    assert!(
        done.status.success(),
        "{}: {}",
        done.status,
        String::from_utf8_lossy(&done.stderr)
    );
}
