//! Extended attributes of a directory of the host.

#![cfg(target_os = "linux")]

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;

use crate::common::{build, open};
use redwarfs_reader::Image;
use redwarfs_writer::{BuildOptions, DirectorySource, Symlinks, XattrFilter};
use rustix::fs::{XattrFlags, lsetxattr};

type Set = BTreeMap<Vec<u8>, Vec<u8>>;

/// Sets an attribute; false if the file system or the user cannot.
fn set(path: &Path, name: &str, value: &[u8]) -> bool {
    lsetxattr(path, name, value, XattrFlags::empty()).is_ok()
}

fn of(image: &Image, path: &str) -> Set {
    let ino = image.find_path(path.as_bytes()).unwrap().unwrap();
    let xattrs = image.xattrs(ino).unwrap();
    xattrs
        .map(|xattr| {
            let value = image.xattr_value(&xattr).unwrap();
            (xattr.name().unwrap().into_owned(), value.into_owned())
        })
        .collect()
}

fn expected(xattrs: &[(&str, &[u8])]) -> Set {
    let owned = |(name, value): &(&str, &[u8])| (name.as_bytes().to_vec(), value.to_vec());
    xattrs.iter().map(owned).collect()
}

fn options() -> BuildOptions {
    let mut options = BuildOptions::level(1);
    options.workers = 2;
    options
}

#[test]
fn attributes_of_the_host_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    fs::write(at("plain"), "x").unwrap();
    if !set(&at("plain"), "user.probe", b"1") {
        eprintln!("skipped: the file system has no extended attributes");
        return;
    }
    fs::remove_file(at("plain")).unwrap();
    fs::write(at("plain"), "x").unwrap();
    fs::write(at("file"), "x").unwrap();
    fs::create_dir(at("sub")).unwrap();
    fs::write(at("sub/inside"), "y").unwrap();
    symlink("file", at("link")).unwrap();
    fs::write(at("deep"), "z").unwrap();
    let long = vec![b'l'; 2000];
    assert!(set(dir.path(), "user.root", b"root"));
    assert!(set(&at("file"), "user.empty", b""));
    assert!(set(&at("file"), "user.long", &long));
    assert!(set(&at("sub"), "user.sub", b"\0\xff"));
    assert!(set(&at("sub/inside"), "user.inside", b"in"));
    // More names than a usual list has room for.
    let many = (0..40).all(|i| set(&at("deep"), &format!("user.{i:030}"), b"v"));
    let capability = [
        1, 0, 0, 2, 0, 0x20, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
    ];
    let is_root = set(&at("plain"), "security.capability", &capability)
        && set(&at("link"), "trusted.link", b"of the link");

    let source = DirectorySource::new(dir.path()).unwrap();
    let (bytes, summary) = build(&options(), &source);
    assert_eq!(summary.errors, 0);
    let image = open(bytes.clone());
    assert_eq!(of(&image, ""), expected(&[("user.root", b"root")]));
    let file = [("user.empty", &b""[..]), ("user.long", &long)];
    assert_eq!(of(&image, "file"), expected(&file));
    assert_eq!(of(&image, "sub"), expected(&[("user.sub", b"\0\xff")]));
    assert_eq!(
        of(&image, "sub/inside"),
        expected(&[("user.inside", b"in")])
    );
    assert_eq!(
        of(&image, "deep").len(),
        if many { 40 } else { of(&image, "deep").len() }
    );
    if is_root {
        let plain = expected(&[("security.capability", &capability)]);
        assert_eq!(of(&image, "plain"), plain);
        let link = expected(&[("trusted.link", b"of the link")]);
        assert_eq!(of(&image, "link"), link);
    }
    assert_eq!(
        image
            .metadata()
            .birth_time(redwarfs_format::InodeNo::ROOT)
            .unwrap(),
        None
    );

    // What follows a symlink has the attributes of the target.
    let source = DirectorySource::new(dir.path())
        .unwrap()
        .with_symlinks(Symlinks::Follow);
    let image = open(build(&options(), &source).0);
    assert_eq!(of(&image, "link"), expected(&file));

    // Read, but not selected, or not read at all: the same image, without any.
    let mut none = options();
    none.xattrs = XattrFilter::none();
    let source = DirectorySource::new(dir.path()).unwrap();
    let without = build(&none, &source).0;
    let quiet = DirectorySource::new(dir.path())
        .unwrap()
        .with_xattrs(XattrFilter::none());
    assert!(build(&options(), &quiet).0 == without);
    assert!(!open(without).metadata().has_xattrs());

    // A path that must be opened in steps.
    let mut long = dir.path().to_owned();
    for _ in 0..20 {
        long.push("d".repeat(200));
    }
    let mut dir_fd = rustix::fs::open(
        dir.path(),
        rustix::fs::OFlags::PATH,
        rustix::fs::Mode::empty(),
    )
    .unwrap();
    let name = "d".repeat(200);
    for _ in 0..20 {
        rustix::fs::mkdirat(&dir_fd, &name, 0o755.into()).unwrap();
        dir_fd = rustix::fs::openat(
            &dir_fd,
            &name,
            rustix::fs::OFlags::RDONLY,
            rustix::fs::Mode::empty(),
        )
        .unwrap();
    }
    rustix::fs::fsetxattr(&dir_fd, "user.far", b"away", XattrFlags::empty()).unwrap();
    let source = DirectorySource::new(dir.path()).unwrap();
    let image = open(build(&options(), &source).0);
    let path = vec![name; 20].join("/");
    assert_eq!(of(&image, &path), expected(&[("user.far", b"away")]));
}

#[test]
fn birth_times_and_flags_of_the_host_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "x").unwrap();
    let Ok(birth) = fs::metadata(&file).unwrap().created() else {
        eprintln!("skipped: the file system has no birth times");
        return;
    };
    let opened = fs::File::open(&file).unwrap();
    let nodump = rustix::fs::IFlags::NODUMP;
    let flags = rustix::fs::ioctl_setflags(&opened, nodump).is_ok();
    let source = DirectorySource::new(dir.path()).unwrap();
    let source = source.with_birth_times().with_file_flags();
    let mut options = options();
    options.keep_birth_times = true;
    options.file_flags = true;
    let image = open(build(&options, &source).0);
    let ino = image.find_path(b"file").unwrap().unwrap();
    let stored = image.metadata().birth_time(ino).unwrap().unwrap();
    let since = birth.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(stored.sec as u64, since.as_secs());
    if flags {
        assert_eq!(image.metadata().file_flags(ino).unwrap(), 0x40);
    }
}
