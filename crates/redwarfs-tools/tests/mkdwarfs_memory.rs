//! Memory limits of `mkdwarfs` when it builds and when it rewrites.
#![cfg(unix)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

#[path = "support/memory.rs"]
mod memory;
#[allow(dead_code, reason = "the other tests use the rest")]
mod support;

use std::ffi::OsStr;
use std::fs;
use std::io::{BufWriter, Write as _};
use std::path::{Path, PathBuf};

use redwarfs_testkit::skip;

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

/// Writes a tar archive with so many small files. It is never in memory, which would count for programs that this process starts.
fn many(path: &Path, count: usize) {
    let mut out = BufWriter::new(fs::File::create(path).unwrap());
    for file in 0..count {
        let mut header = [0u8; 512];
        let name = format!("{}/a-file-with-number-{file:06}", file / 500);
        header[..name.len()].copy_from_slice(name.as_bytes());
        for (at, text) in [(100, "0000644"), (108, "0000001"), (116, "0000002")] {
            header[at..at + 7].copy_from_slice(text.as_bytes());
        }
        header[124..135].copy_from_slice(format!("{:011o}", 1 + file % 3).as_bytes());
        header[136..147].copy_from_slice(format!("{file:011o}").as_bytes());
        header[148..156].fill(b' ');
        header[156] = b'0';
        header[257..265].copy_from_slice(b"ustar\x0000");
        let sum: u64 = header.iter().map(|&byte| u64::from(byte)).sum();
        header[148..155].copy_from_slice(format!("{sum:06o}\0").as_bytes());
        out.write_all(&header).unwrap();
        header.fill(0);
        header[..1 + file % 3].fill(b'a' + (file % 7) as u8);
        out.write_all(&header).unwrap();
    }
    out.write_all(&[0; 1024]).unwrap();
    out.flush().unwrap();
}

#[test]
fn entries_of_archives_wait_in_a_file_under_a_low_limit() {
    let place = tempfile::tempdir().unwrap();
    let place = place.path();
    many(&place.join("tar"), 90_000);
    let spool = place.join("spool");
    fs::create_dir(&spool).unwrap();
    let run = |name: &str, options: &[&OsStr]| {
        let mut command = std::process::Command::new(support::MKDWARFS);
        command.arg("-i").arg(place.join("tar")).arg("-fo");
        command.arg(place.join(name)).args(options);
        let common = ["-l1", "-N2", "--no-history", "--no-create-timestamp"];
        let done = command.args(common).output().unwrap();
        (done.status.code(), String::from_utf8(done.stderr).unwrap())
    };
    let verbose = OsStr::new("--log-level=verbose");
    let waits = "entries wait in a temporary file of ";
    let (code, text) = run("usual", &[verbose]);
    assert_eq!((code, text.contains(waits)), (Some(0), false), "{text}");
    let limited = [
        OsStr::new("-L"),
        "96m".as_ref(),
        "--spool".as_ref(),
        spool.as_ref(),
    ];
    let (code, text) = run("limited", &[&limited[..], &[verbose]].concat());
    assert_eq!((code, text.contains(waits)), (Some(0), true), "{text}");
    let [usual, low] = ["usual", "limited"].map(|name| fs::read(place.join(name)).unwrap());
    assert!(usual == low, "the image depends on the limit");
    assert_eq!(fs::read_dir(&spool).unwrap().count(), 0);
    // Without a place for the file, as far as memory lasts.
    let nowhere = place.join("none");
    let options = [
        "-L".as_ref(),
        "96m".as_ref(),
        "--spool".as_ref(),
        nowhere.as_ref(),
    ];
    let (code, text) = run("nowhere", &options);
    let says = format!(
        "entries stay in memory: cannot write a temporary file in {}: ",
        nowhere.display()
    );
    assert_eq!((code, text.contains(&says)), (Some(0), true), "{text}");
    // A file system in memory is no such place.
    let mounted = std::process::Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=1m", "tmpfs"])
        .arg(&spool)
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        skip(
            "a temporary directory in memory",
            "cannot mount a small tmpfs",
        );
        return;
    }
    let (code, text) = run("memory", &[&limited[..], &[verbose]].concat());
    let unmounted = std::process::Command::new("umount").arg(&spool).status();
    assert!(unmounted.unwrap().success());
    let says = format!(
        "entries stay in memory, because {} is in memory, too",
        spool.display()
    );
    assert_eq!((code, text.contains(&says)), (Some(0), true), "{text}");
    for name in ["nowhere", "memory"] {
        assert!(usual == fs::read(place.join(name)).unwrap(), "{name}");
    }
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
