//! Drives the `mkdwarfs` program and reads its images back.

use redwarfs_format::metadata::FileType;
use redwarfs_reader::{Image, OpenOptions};
use rustix::process::{Pid, Signal};
use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::Duration;

pub(crate) fn mkdwarfs() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_mkdwarfs"));
    command.env_remove("SOURCE_DATE_EPOCH").stdin(Stdio::null());
    command
}

/// A directory with an input tree `in` and room for outputs.
pub(crate) struct TestDir {
    pub(crate) dir: tempfile::TempDir,
}

impl TestDir {
    pub(crate) fn new() -> Self {
        let place = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let root = place.path("in");
        fs::create_dir_all(root.join("sub/deeper")).unwrap();
        fs::create_dir(root.join("empty")).unwrap();
        fs::write(root.join("hello"), b"hello, world\n").unwrap();
        fs::write(root.join("nothing"), b"").unwrap();
        let mut text = Vec::new();
        for i in 0..40_000_u32 {
            text.extend_from_slice(
                format!("line {} of the text\n", i.wrapping_mul(2_654_435_761) >> 7).as_bytes(),
            );
        }
        fs::write(root.join("sub/text"), &text).unwrap();
        fs::write(root.join("sub/copy"), &text).unwrap();
        fs::hard_link(root.join("hello"), root.join("sub/deeper/link")).unwrap();
        symlink("../hello", root.join("sub/sym")).unwrap();
        fs::set_permissions(root.join("hello"), fs::Permissions::from_mode(0o640)).unwrap();
        place
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Runs the tool at level 1 without progress, with `-i` and `-o`.
    pub(crate) fn run(&self, output: &str, more: &[&str]) -> Output {
        mkdwarfs()
            .arg("-i")
            .arg(self.path("in"))
            .arg("-o")
            .arg(self.path(output))
            .arg("-l1")
            .args(more)
            .output()
            .unwrap()
    }

    pub(crate) fn build(&self, output: &str, more: &[&str]) -> Vec<u8> {
        let done = self.run(output, more);
        assert!(done.status.success(), "{more:?}: {}", stderr(&done));
        fs::read(self.path(output)).unwrap()
    }

    /// Everything in the directory besides the input.
    pub(crate) fn leftovers(&self) -> Vec<String> {
        let names = fs::read_dir(self.dir.path()).unwrap();
        let mut names: Vec<String> = names
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.retain(|name| name != "in");
        names.sort();
        names
    }
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// A file system object, as far as both sides know it.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Seen {
    mode: u32,
    uid: u32,
    mtime: i64,
    content: Vec<u8>,
}

pub(crate) fn seen_on_disk(root: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let mut all = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let stat = fs::symlink_metadata(&path).unwrap();
        let content = if stat.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
            Vec::new()
        } else if stat.is_symlink() {
            fs::read_link(&path)
                .unwrap()
                .as_os_str()
                .as_bytes()
                .to_vec()
        } else {
            fs::read(&path).unwrap()
        };
        let name = path
            .strip_prefix(root)
            .unwrap()
            .as_os_str()
            .as_bytes()
            .to_vec();
        all.insert(
            name,
            Seen {
                mode: stat.mode(),
                uid: stat.uid(),
                mtime: stat.mtime(),
                content,
            },
        );
    }
    all
}

pub(crate) fn seen_in_image(path: &Path) -> BTreeMap<Vec<u8>, Seen> {
    let image = Image::open(path, &{
        let mut open = OpenOptions::default();
        open.check = true;
        open
    })
    .unwrap();
    let mut all = BTreeMap::new();
    for entry in image.walk() {
        let entry = entry.unwrap();
        let stat = image.stat(entry.inode).unwrap();
        let content = match image.metadata().file_type(entry.inode).unwrap() {
            FileType::Regular => {
                let mut content = vec![0; usize::try_from(stat.size).unwrap()];
                assert_eq!(
                    image.read_at(entry.inode, 0, &mut content).unwrap(),
                    content.len()
                );
                content
            }
            FileType::Symlink => image.read_link(entry.inode).unwrap(),
            _ => Vec::new(),
        };
        let name = entry
            .path
            .strip_prefix(b"/")
            .unwrap_or(&entry.path)
            .to_vec();
        all.insert(
            name,
            Seen {
                mode: stat.mode,
                uid: stat.uid,
                mtime: stat.mtime.sec,
                content,
            },
        );
    }
    all
}

#[test]
fn image_holds_the_tree() {
    let place = TestDir::new();
    for level in ["-l0", "-l1", "-l3", "-l5"] {
        let done = mkdwarfs()
            .args(["-i".as_ref(), place.path("in").as_os_str()])
            .args(["-fo".as_ref(), place.path("out").as_os_str()])
            .arg(level)
            .output()
            .unwrap();
        assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
        assert!(done.stdout.is_empty());
        assert!(
            stderr(&done).contains("out, created without errors\n"),
            "{}",
            stderr(&done)
        );
        assert!(
            stderr(&done)
                .contains("content:  4 files (1 equal to others), 4 directories, 1 symbolic link, 1 hard link in "),
            "{}",
            stderr(&done)
        );
        assert_eq!(
            seen_in_image(&place.path("out")),
            seen_on_disk(&place.path("in")),
            "{level}"
        );
    }
    assert_eq!(place.leftovers(), ["out"]);
}

#[test]
fn quiet_means_silent() {
    let place = TestDir::new();
    let done = place.run("out", &["--log-level=error"]);
    assert_eq!((done.status.code(), stderr(&done).as_str()), (Some(0), ""));
}

#[test]
fn standard_output_gets_the_same_bytes() {
    let place = TestDir::new();
    let options = ["--no-history", "--no-create-timestamp"];
    let file = place.build("out", &options);
    let done = mkdwarfs()
        .arg("-i")
        .arg(place.path("in"))
        .args(["-o", "-", "-l1"])
        .args(options)
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", stderr(&done));
    assert!(done.stdout == file, "the image on standard output differs");
}

#[test]
fn images_are_reproducible() {
    let place = TestDir::new();
    let options = [
        "--no-history-timestamps",
        "--no-history-command-line",
        "--no-create-timestamp",
    ];
    let first = place.build("a", &options);
    for workers in ["-N1", "-N5"] {
        let again = place.build("b", &[&options[..], &["-f", workers]].concat());
        assert!(first == again, "{workers}");
    }
    let epoch = |value: &str| {
        mkdwarfs()
            .arg("-i")
            .arg(place.path("in"))
            .args(["-o", "-", "-l1"])
            .env("SOURCE_DATE_EPOCH", value)
            .output()
            .unwrap()
    };
    let (first, again) = (epoch("1234567890"), epoch("1234567890"));
    assert!(first.status.success() && first.stdout == again.stdout);
    fs::write(place.path("epoch"), &first.stdout).unwrap();
    let image = Image::open(place.path("epoch"), &OpenOptions::default()).unwrap();
    assert_eq!(image.metadata().create_timestamp(), Some(1_234_567_890));
    let history = image.history().unwrap();
    assert_eq!(
        history.entries.last().unwrap().timestamp,
        Some(1_234_567_890)
    );
    let bad = epoch("yesterday");
    assert_eq!(bad.status.code(), Some(1));
    assert_eq!(
        stderr(&bad),
        "mkdwarfs: invalid SOURCE_DATE_EPOCH: yesterday: not a number of seconds since 1970\n"
    );
}

#[test]
fn metadata_options_reach_the_image() {
    let place = TestDir::new();
    place.build(
        "out",
        &[
            "--set-owner=4000000000",
            "--set-group=root",
            "--set-time=2020-05-17 13:44:05",
        ],
    );
    let image = Image::open(place.path("out"), &OpenOptions::default()).unwrap();
    for entry in image.walk() {
        let stat = image.stat(entry.unwrap().inode).unwrap();
        assert_eq!(
            (stat.uid, stat.gid, stat.mtime.sec),
            (4_000_000_000, 0, 1_589_723_045)
        );
    }
    assert!(
        image.history().unwrap().entries[0]
            .arguments
            .as_ref()
            .unwrap()
            .contains(&"-l1".to_owned())
    );
}

#[test]
fn header_and_section_index() {
    let place = TestDir::new();
    fs::write(place.path("head"), b"#!/bin/sh\nexit 0\n").unwrap();
    let head = place.path("head");
    let image = place.build("out", &["--header", head.to_str().unwrap()]);
    assert!(image.starts_with(b"#!/bin/sh\nexit 0\nDWARFS"));
    assert_eq!(
        seen_in_image(&place.path("out")),
        seen_on_disk(&place.path("in"))
    );
    let image = place.build(
        "plain",
        &["--no-section-index", "-P", "all", "--order=revpath"],
    );
    assert!(image.starts_with(b"DWARFS"));
    assert_eq!(
        seen_in_image(&place.path("plain")),
        seen_on_disk(&place.path("in"))
    );
}

#[test]
fn input_list_selects_entries() {
    let place = TestDir::new();
    fs::write(
        place.path("list"),
        "hello\n\nsub/sym\nhello\nmissing\n/etc/hostname\n",
    )
    .unwrap();
    let list = place.path("list");
    let done = place.run("out", &["--input-list", list.to_str().unwrap()]);
    assert_eq!(done.status.code(), Some(2), "{}", stderr(&done));
    assert!(
        stderr(&done).contains("ignoring path '/etc/hostname' not below input path"),
        "{}",
        stderr(&done)
    );
    assert!(
        stderr(&done).contains("skipping duplicate entry 'hello' in input list"),
        "{}",
        stderr(&done)
    );
    assert!(
        stderr(&done).contains("error reading entry: missing: "),
        "{}",
        stderr(&done)
    );
    let names: Vec<Vec<u8>> = seen_in_image(&place.path("out")).into_keys().collect();
    assert_eq!(names, [&b""[..], b"hello", b"sub", b"sub/sym"]);
}

#[test]
fn replaced_output_inside_the_input_is_left_out() {
    let place = TestDir::new();
    let before = seen_on_disk(&place.path("in"));
    for _ in 0..2 {
        place.build("in/out", &["-f"]);
        let mut image = seen_in_image(&place.path("in/out"));
        // The directory itself changes when a file appears in it.
        let (root, mut rest) = (image.remove(&b""[..]).unwrap(), before.keys().skip(1));
        assert_eq!(root.mode, before[&b""[..]].mode);
        assert!(image.keys().all(|name| rest.next() == Some(name)) && rest.next().is_none());
    }
}

#[test]
fn help_and_version_succeed() {
    for (args, wanted, unwanted) in [
        (&["--version"][..], "mkdwarfs 0.", "Usage"),
        (&["-h"], "--compress-level", "--window-size"),
        (
            &["--help"],
            "Usage: mkdwarfs -i DIR|ARCHIVE|IMAGE -o FILE|-",
            "--window-size",
        ),
        (&["-H"], "--window-size", "--extract-wrapped-binary"),
        (
            &["--long-help"],
            "Compression levels:",
            "--extract-wrapped-binary",
        ),
    ] {
        let done = mkdwarfs().args(args).output().unwrap();
        let text = String::from_utf8_lossy(&done.stdout);
        assert_eq!(done.status.code(), Some(0), "{args:?}");
        assert!(
            text.contains(wanted) && !text.contains(unwanted),
            "{args:?}: {text}"
        );
    }
}

#[test]
fn closed_pipe_is_an_error() {
    let place = TestDir::new();
    let mut child = mkdwarfs()
        .arg("-i")
        .arg(place.path("in"))
        .args(["-o", "-", "-l0", "--log-level=error"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().unwrap();
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(
        stderr(&done),
        "mkdwarfs: cannot write image: standard output: broken pipe\n"
    );
}

#[test]
fn full_disk_keeps_the_old_file() {
    let place = TestDir::new();
    let mount = place.path("small");
    fs::create_dir(&mount).unwrap();
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "-o", "size=64k", "tmpfs"])
        .arg(&mount)
        .stderr(Stdio::null())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        eprintln!("SKIPPED: cannot mount a small tmpfs (needs root)");
        return;
    }
    let mut results = Vec::new();
    fs::write(mount.join("old"), b"precious").unwrap();
    for (name, options) in [
        ("out", &["-l0", "--log-level=error"][..]),
        ("old", &["-l0", "-f", "--log-level=error"]),
    ] {
        let out = mount.join(name);
        let done = mkdwarfs()
            .arg("-i")
            .arg(place.path("in"))
            .arg("-o")
            .arg(&out)
            .args(options)
            .output()
            .unwrap();
        results.push((
            done,
            format!(
                "mkdwarfs: cannot write image: {}: no space left on device\n",
                out.display()
            ),
        ));
    }
    let mut names: Vec<_> = fs::read_dir(&mount)
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    names.sort();
    let old = fs::read(mount.join("old"));
    let unmounted = Command::new("umount").arg(&mount).status().unwrap();
    assert!(unmounted.success());
    for (done, want) in results {
        assert_eq!((done.status.code(), stderr(&done)), (Some(1), want));
    }
    assert_eq!(names, ["old"]);
    assert_eq!(old.unwrap(), b"precious");
}

#[test]
fn unreadable_file_is_counted() {
    let place = TestDir::new();
    let secret = place.path("in/secret");
    fs::write(&secret, b"secret").unwrap();
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o000)).unwrap();
    if fs::File::open(&secret).is_ok() {
        eprintln!("SKIPPED: this user may read everything");
        return;
    }
    let done = place.run("out", &[]);
    assert_eq!(done.status.code(), Some(2), "{}", stderr(&done));
    assert!(stderr(&done).contains("secret"), "{}", stderr(&done));
    assert!(
        stderr(&done).contains("out, created with 1 error\n"),
        "{}",
        stderr(&done)
    );
    assert_eq!(
        seen_in_image(&place.path("out"))[&b"secret"[..]].content,
        b""
    );
}

/// An input that takes a while: data that does not repeat, compressed hard.
/// Enough to keep the slowest codec busy for much longer than any test waits.
fn slow_input(place: &TestDir) {
    let mut state = 0x9e37_79b9_7f4a_7c15_u64;
    for i in 0..8 {
        let data: Vec<u8> = (0..8_000_000)
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                b'a' + (state % 20) as u8
            })
            .collect();
        fs::write(place.path(&format!("in/slow{i}")), data).unwrap();
    }
}

/// Whether `SIGINT` is in one of the masks of a process: `SigCgt`, which are handled, or `SigIgn`.
fn interrupt_is_in(mask: &str, pid: u32) -> bool {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("it runs");
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    let (_, mask) = lines.find(|(name, _)| *name == mask).expect("a mask");
    let mask = u64::from_str_radix(mask.trim(), 16).expect("a mask");
    mask & (1 << (2 - 1)) != 0
}

#[test]
fn stopped_builds_leave_nothing() {
    let place = TestDir::new();
    slow_input(&place);
    fs::write(place.path("old"), b"precious").unwrap();
    for (signal, output, code) in [
        (Signal::INT, "out", Some(130)),
        (Signal::TERM, "old", Some(143)),
        (Signal::KILL, "out", None),
        (Signal::KILL, "old", None),
    ] {
        for delay in [0, 20, 150, 600] {
            // Where a shell runs the tests in the background, programs ignore interrupts until
            // they have a handler.
            let ignored = signal == Signal::INT && interrupt_is_in("SigIgn", std::process::id());
            if delay < 150 && ignored {
                continue;
            }
            let mut child = mkdwarfs()
                .arg("-i")
                .arg(place.path("in"))
                .arg("-fo")
                .arg(place.path(output))
                .args(["-C", "lzma:level=9:extreme", "-S16", "--log-level=error"])
                .stderr(Stdio::piped())
                .spawn()
                .unwrap();
            std::thread::sleep(Duration::from_millis(delay));
            while delay >= 150 && !interrupt_is_in("SigCgt", child.id()) {
                std::thread::sleep(Duration::from_millis(10));
            }
            rustix::process::kill_process(Pid::from_child(&child), signal).unwrap();
            let mut text = String::new();
            child
                .stderr
                .take()
                .unwrap()
                .read_to_string(&mut text)
                .unwrap();
            let status = child.wait().unwrap();
            assert!(
                !status.success(),
                "{signal:?} after {delay} ms came too late"
            );
            // Before the handler is in place the signal ends the process by itself.
            if delay >= 150 {
                assert_eq!(status.code(), code, "{signal:?} {delay}: {text}");
                let want = if code.is_some() {
                    "mkdwarfs: interrupted, no image was written\n"
                } else {
                    ""
                };
                assert_eq!(text, want, "{signal:?} {delay}");
            }
            assert_eq!(place.leftovers(), ["old"], "{signal:?} {delay}");
            assert_eq!(fs::read(place.path("old")).unwrap(), b"precious");
        }
    }
}

#[test]
fn simple_progress_goes_off_terminal() {
    let place = TestDir::new();
    for mode in ["simple", "unicode", "ascii"] {
        let done = place.run("out", &["-f", "--log-level=error", "--progress", mode]);
        let text = stderr(&done);
        assert!(text.contains("==> 100% done, "), "{text}");
        assert!(text.contains("\nleft out: nothing\n"), "{text}");
        assert!(!text.contains('\x1b'), "{text}");
    }
}

#[test]
fn universal_program_runs_mkdwarfs() {
    let place = TestDir::new();
    let universal = env!("CARGO_BIN_EXE_redwarfs");
    let done = Command::new(universal)
        .args(["--tool=mkdwarfs", "--version"])
        .output()
        .unwrap();
    assert!(String::from_utf8_lossy(&done.stdout).starts_with("mkdwarfs "));
    for (tool, help) in [
        ("mkdwarfs", "-h"),
        ("mkdwarfs", "-H"),
        ("dwarfs", "-h"),
        ("dwarfsck", "--help"),
        ("dwarfsextract", "-h"),
    ] {
        let by_name = Command::new(universal).args([tool, help]).output().unwrap();
        let by_option = Command::new(universal)
            .args([&format!("--tool={tool}"), help])
            .output()
            .unwrap();
        assert_eq!(by_name.status.code(), Some(0), "{tool}");
        assert!(!by_name.stdout.is_empty(), "{tool}");
        assert_eq!(by_name.stdout, by_option.stdout, "{tool}");
    }
    let done = Command::new(universal)
        .args(["mkdwarfs-2", "-h"])
        .output()
        .unwrap();
    assert_eq!(done.status.code(), Some(1));
    let link = place.path("mkdwarfs-1.0");
    symlink(universal, &link).unwrap();
    let done = Command::new(&link).arg("--version").output().unwrap();
    assert!(String::from_utf8_lossy(&done.stdout).starts_with("mkdwarfs "));
    assert_eq!(stderr(&done), "running mkdwarfs-1.0 as mkdwarfs\n");
    let done = Command::new(universal).output().unwrap();
    assert_eq!(done.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&done.stdout).contains("Tools:"));
}
