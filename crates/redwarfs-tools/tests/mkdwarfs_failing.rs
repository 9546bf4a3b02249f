//! Input that fails, lies or is larger than usual: each has a defined outcome and exit code.

use std::ffi::OsStr;
use std::fs;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::builder::{Done, TestDir};
use crate::support::{DWARFSCK, must};
use redwarfs_testkit::skip;
use rustix::fs::{Mode, OFlags, mkdirat, openat};

const OTHERS: u32 = 65534;

/// The command as somebody who may not read everything.
fn as_somebody(command: &mut Command) -> Done {
    if rustix::process::geteuid().is_root() {
        command.uid(OTHERS).gid(OTHERS);
    }
    command.output().unwrap().into()
}

#[test]
fn what_may_not_be_read_is_empty_and_counted() {
    let place = TestDir::new(&["open", "closed", "dir/x", "look/y", "nothing"]);
    fs::write(place.path("in/nothing"), "").unwrap();
    for (name, mode) in [
        ("closed", 0o000),
        ("nothing", 0o000),
        ("dir", 0o311),
        ("look", 0o444),
    ] {
        let at = place.path("in").join(name);
        fs::set_permissions(at, fs::Permissions::from_mode(mode)).unwrap();
    }
    let permissions = fs::Permissions::from_mode(0o777);
    fs::set_permissions(place.path(""), permissions).unwrap();
    let done = as_somebody(&mut place.command::<&str>(&[]));
    // A directory that may be listed, but whose entries nobody may ask about.
    fs::set_permissions(place.path("in/look"), fs::Permissions::from_mode(0o755)).unwrap();
    fs::set_permissions(place.path("in/dir"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(done.code, Some(2), "{}", done.stderr);
    for part in [
        "closed': cannot read file, storing it empty: ",
        "dir': cannot read directory, storing it empty: ",
        "look/y': cannot read entry, leaving it out: ",
    ] {
        assert!(done.stderr.contains(part), "{part}: {}", done.stderr);
    }
    assert!(done.stderr.contains("with 3 errors"), "{}", done.stderr);
    let built = place.built();
    assert_eq!(built.paths(), ["closed", "dir", "look", "nothing", "open"]);
    assert_eq!(
        (built.read("closed"), built.read("open")),
        (b"".to_vec(), b"open".to_vec())
    );
}

#[test]
fn an_input_that_may_not_be_entered_is_fatal() {
    let place = TestDir::new(&["x"]);
    fs::set_permissions(place.path("in"), fs::Permissions::from_mode(0o000)).unwrap();
    fs::set_permissions(place.path(""), fs::Permissions::from_mode(0o777)).unwrap();
    let done = as_somebody(&mut place.command::<&str>(&[]));
    fs::set_permissions(place.path("in"), fs::Permissions::from_mode(0o755)).unwrap();
    assert_eq!(done.code, Some(1), "{}", done.stderr);
    assert!(
        done.stderr.starts_with("mkdwarfs: cannot read input: "),
        "{}",
        done.stderr
    );
    assert!(!place.path("out").exists());
}

#[test]
fn twenty_thousand_hard_links_are_one_file() {
    const LINKS: usize = 20_000;
    let place = TestDir::new(&["file"]);
    for i in 1..LINKS {
        let link = place.path("in").join(format!("{i}"));
        if let Err(error) = fs::hard_link(place.path("in/file"), link) {
            skip("twenty thousand hard links", &error.to_string());
            return;
        }
    }
    let built = place.image::<&str>(&[]);
    assert_eq!(built.stat("file").nlink as usize, LINKS);
    assert_eq!(built.0.metadata().inode_count(), 2);
    assert_eq!(built.read("19999"), b"file");
    drop(built);
    let built = place.image(&["--hard-links=dissolve"]);
    assert_eq!(built.0.metadata().inode_count() as usize, LINKS + 1);
    assert_eq!(built.read("19999"), b"file");
}

#[test]
fn a_hundred_thousand_entries_in_one_directory() {
    const COUNT: usize = 100_000;
    let place = TestDir::new(&[]);
    for i in 0..COUNT {
        fs::File::create(place.path("in").join(format!("{i:06}"))).unwrap();
    }
    fs::write(place.path("in/099999"), "last").unwrap();
    let built = place.image::<&str>(&[]);
    assert_eq!(built.0.metadata().entry_count() as usize, COUNT + 1);
    assert_eq!(built.read("099999"), b"last");
    drop(built);
    must(DWARFSCK, [place.path("out").as_os_str(), "-q".as_ref()]);
}

#[test]
fn paths_that_no_system_call_takes() {
    let place = TestDir::new(&["short"]);
    let name = "n".repeat(255);
    let root = fs::File::open(place.path("in")).unwrap();
    let mut at: OwnedFd = root.into();
    for _ in 0..40 {
        mkdirat(&at, &name, Mode::RWXU).unwrap();
        at = openat(&at, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let file = openat(&at, &name, OFlags::CREATE | OFlags::RDWR, Mode::RWXU).unwrap();
    rustix::io::write(&file, b"deep").unwrap();
    let target = "t".repeat(4095);
    symlink(&target, place.path("in/link")).unwrap();
    let odd = OsStr::from_bytes(b"\xff\n\x1b[0m\"\\");
    fs::write(place.path("in").join(odd), "odd").unwrap();
    let done = place.run::<&str>(&[]);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    let image = place.built().0;
    let path = vec![name.as_str(); 41].join("/");
    assert!(path.len() > 2 * 4096);
    let leaf = image.find_path(path.as_bytes()).unwrap().unwrap();
    let mut data = [0; 4];
    assert_eq!(image.read_at(leaf, 0, &mut data).unwrap(), 4);
    assert_eq!(&data, b"deep");
    let link = image.find_path(b"link").unwrap().unwrap();
    assert_eq!(image.read_link(link).unwrap(), target.as_bytes());
    assert!(image.find_path(odd.as_bytes()).unwrap().is_some());
    // Messages about such names stay on their lines.
    fs::remove_file(place.path("in").join(odd)).unwrap();
    symlink("nowhere", place.path("in").join(odd)).unwrap();
    let done = place.run(&["--symlinks=follow"]);
    assert_eq!(done.code, Some(2));
    assert!(!done.stderr.contains('\x1b'), "{:?}", done.stderr);
    // The two links that point to nowhere, and the number of errors.
    assert_eq!(done.stderr.lines().count(), 3, "{}", done.stderr);
}

#[test]
fn pipes_and_sockets_in_the_way_do_not_block() {
    let place = TestDir::new(&["a", "dir/b"]);
    for name in ["in/pipe", "in/dir/CACHEDIR.TAG", "in/.skip"] {
        let made = Command::new("mkfifo").arg(place.path(name)).status();
        assert!(made.unwrap().success());
    }
    let _socket = std::os::unix::net::UnixListener::bind(place.path("in/socket")).unwrap();
    symlink("pipe", place.path("in/to-pipe")).unwrap();
    let args = [
        "--symlinks=follow",
        "--exclude-caches",
        "--exclude-if-present=.skip",
    ];
    assert_eq!(place.image(&args).paths(), ["a", "dir", "dir/b"]);
    let all = place.image(&["--with-specials"]).paths();
    assert_eq!(
        all,
        [
            ".skip",
            "a",
            "dir",
            "dir/CACHEDIR.TAG",
            "dir/b",
            "pipe",
            "socket",
            "to-pipe"
        ]
    );
}

#[test]
fn loops_end() {
    let place = TestDir::new(&["a/b/file", "c/"]);
    symlink("..", place.path("in/a/b/up")).unwrap();
    symlink(place.path("in"), place.path("in/c/top")).unwrap();
    let done = place.run(&["--symlinks=follow"]);
    assert_eq!(done.code, Some(2));
    for part in [
        "a/b/up': directory contains itself",
        "c/top': directory contains itself",
    ] {
        assert!(done.stderr.contains(part), "{}", done.stderr);
    }
    let paths = place.built().paths();
    assert_eq!(paths, ["a", "a/b", "a/b/file", "a/b/up", "c", "c/top"]);
    // Looking at what filters do comes to an end, too.
    let done = place.run(&["--symlinks=follow", "--debug-filter=included-files"]);
    assert_eq!(done.code, Some(0));
    assert_eq!(String::from_utf8(done.stdout).unwrap().lines().count(), 1);

    let mounted = Command::new("mount")
        .arg("--bind")
        .arg(place.path("in/a"))
        .arg(place.path("in/a/b"))
        .stderr(std::process::Stdio::null())
        .status();
    if !mounted.is_ok_and(|status| status.success()) {
        skip("loops of bind mounts", "mounting needs root");
        return;
    }
    let done = place.run::<&str>(&[]);
    let status = Command::new("umount")
        .arg("-l")
        .arg(place.path("in/a/b"))
        .status();
    assert!(status.unwrap().success());
    assert_eq!(done.code, Some(2));
    assert!(
        done.stderr.contains("a/b': directory contains itself"),
        "{}",
        done.stderr
    );
    assert_eq!(place.built().paths(), ["a", "a/b", "c", "c/top"]);
}
