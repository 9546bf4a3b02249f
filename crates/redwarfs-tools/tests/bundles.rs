//! Programs that are several tools.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsRawFd;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Output};

use crate::support::build;
use redwarfs_testkit::skip;
use rustix::fs::MemfdFlags;

const UNIVERSAL: &str = env!("CARGO_BIN_EXE_redwarfs");
const FUSE_EXTRACT: &str = env!("CARGO_BIN_EXE_redwarfs-fuse-extract");

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A copy of a program without a name in any file system.
struct Unnamed(File);

impl Unnamed {
    fn new(program: &str) -> Option<Self> {
        let fd = rustix::fs::memfd_create("program", MemfdFlags::empty()).ok()?;
        let mut copy = File::from(fd);
        io::copy(&mut File::open(program).unwrap(), &mut copy).unwrap();
        Some(Self(copy))
    }

    fn run(&self, called: &str, args: &[&str], dir: &Path) -> Output {
        Command::new(format!("/proc/self/fd/{}", self.0.as_raw_fd()))
            .arg0(called)
            .args(args)
            .current_dir(dir)
            .output()
            .unwrap()
    }
}

#[test]
fn tools_run_from_a_file_without_a_name() {
    let name = "tools_run_from_a_file_without_a_name";
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    fs::write(tree.join("file"), "contents").unwrap();
    for program in [UNIVERSAL, FUSE_EXTRACT] {
        let Some(unnamed) = Unnamed::new(program) else {
            return skip(name, "no memfd here");
        };
        let must = |called: &str, args: &[&str]| {
            let done = unnamed.run(called, args, dir.path());
            let said = text(&done.stderr);
            assert_eq!(done.status.code(), Some(0), "{called} {args:?}: {said}");
            text(&done.stdout)
        };
        if program == UNIVERSAL {
            must(
                "mkdwarfs",
                &["-i", "tree", "-o", "image", "--force", "--log-level=warn"],
            );
            must("/usr/bin/dwarfsck", &["-q", "image"]);
        } else {
            build(&tree, &dir.path().join("image"), &["--force"]);
        }
        assert_eq!(
            must("dwarfsextract", &["-i", "image", "--stdout", "file"]),
            "contents"
        );
        assert_eq!(
            must("any", &["dwarfsextract", "-i", "image", "--stdout", "file"]),
            "contents"
        );
        // The library for other formats is in a process of its own, which is the same program.
        if redwarfs_extractor::libarchive_version().is_some() {
            let listed = must("dwarfsextract", &["-i", "image", "-f", "mtree"]);
            assert!(listed.contains("./file "), "{listed}");
        }
        let point = dir.path().join("mnt");
        fs::create_dir_all(&point).unwrap();
        let mounted = unnamed.run("dwarfs", &["image", "mnt"], dir.path());
        if !mounted.status.success() {
            skip(name, "mounting is not possible here");
            continue;
        }
        let read = fs::read_to_string(point.join("file"));
        let unmounted = Command::new("umount").arg(&point).status().unwrap();
        assert_eq!(read.unwrap(), "contents");
        assert!(unmounted.success());
    }
}

#[test]
fn each_version_names_what_the_program_was_built_without() {
    let parts = [
        ("lua", cfg!(feature = "lua")),
        ("libarchive", cfg!(feature = "libarchive")),
        ("remote", cfg!(feature = "remote")),
    ];
    let tools = ["mkdwarfs", "dwarfs", "dwarfsck", "dwarfsextract"];
    let small = ["dwarfs", "dwarfsextract"];
    let calls = tools
        .iter()
        .map(|tool| (UNIVERSAL, Some(*tool)))
        .chain(small.iter().map(|tool| (FUSE_EXTRACT, Some(*tool))))
        .chain([(UNIVERSAL, None), (FUSE_EXTRACT, None)]);
    for (program, tool) in calls {
        let mut command = Command::new(program);
        command.args(tool).arg("--version");
        let shown = text(&command.output().unwrap().stdout);
        let name =
            tool.unwrap_or_else(|| Path::new(program).file_name().unwrap().to_str().unwrap());
        let start = format!("{name} {} (RedwarFS", env!("CARGO_PKG_VERSION"));
        let rest = shown
            .strip_prefix(&start)
            .and_then(|rest| rest.strip_suffix(")\n"));
        let rest = rest.unwrap_or_else(|| panic!("{shown}"));
        let list = rest.strip_prefix(", without ");
        assert!(list.is_some() || rest.is_empty(), "{shown}");
        let without: Vec<_> = list.unwrap_or_default().split(", ").collect();
        for (part, built) in parts {
            assert_eq!(without.contains(&part), !built, "{part}: {shown}");
        }
    }
}

#[test]
fn the_small_program_mounts_and_extracts_only() {
    let run = |args: &[&str]| Command::new(FUSE_EXTRACT).args(args).output().unwrap();
    let listed = run(&[]);
    assert_eq!(listed.status.code(), Some(0));
    let listed = text(&listed.stdout);
    assert!(
        listed.contains("\n  dwarfs ") && listed.contains("\n  dwarfsextract "),
        "{listed}"
    );
    assert!(
        !listed.contains("mkdwarfs") && !listed.contains("dwarfsck"),
        "{listed}"
    );
    for tool in ["dwarfs", "dwarfsextract"] {
        let by_option = run(&[&format!("--tool={tool}"), "--version"]);
        assert!(text(&by_option.stdout).starts_with(&format!("{tool} ")));
        let dir = tempfile::tempdir().unwrap();
        let link = dir.path().join(format!("{tool}-1.0"));
        symlink(FUSE_EXTRACT, &link).unwrap();
        let by_name = Command::new(&link).arg("--version").output().unwrap();
        assert_eq!(by_name.stdout, by_option.stdout);
    }
    let done = run(&["--tool=mkdwarfs", "-i", "x"]);
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(
        text(&done.stderr),
        "redwarfs-fuse-extract: no tool 'mkdwarfs' (one of dwarfs, dwarfsextract)\n"
    );
    let manual = run(&["--man"]);
    assert_eq!(manual.status.code(), Some(0));
    assert!(text(&manual.stdout).contains("SYNOPSIS"));
}
