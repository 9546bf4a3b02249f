//! What programs see of a mount.
#![allow(unsafe_code)]

mod support;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;

use redwarfs_fuse::{Access, MountOptions, Unmounter};
use redwarfs_reader::OpenOptions as ImageOptions;
use redwarfs_reader::perfmon::{Component, PerfMonitor};
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use support::{BLOCK, Gate, Maker, Mount, Piece, can_mount, wait_until};

fn errno<T: std::fmt::Debug>(result: std::io::Result<T>) -> Option<i32> {
    result.expect_err("an error").raw_os_error()
}

fn small_tree() -> Maker {
    let mut maker = Maker::new();
    maker
        .dir("d")
        .file("d/inner", "inner")
        .file("plain", "some text")
        .file("empty", "")
        .file_with_mode("private", "x", 0o600)
        .link("link", "plain")
        .fifo("pipe")
        .file("two", "linked")
        .same("zwei", "two");
    maker
}

#[test]
fn changing_operations_answer_read_only() {
    if !can_mount("changing_operations_answer_read_only") {
        return;
    }
    let mount = Mount::new(&small_tree(), &MountOptions::default());
    let at = |name: &str| mount.path(name);
    let rofs = Some(Errno::ROFS.raw_os_error());
    assert_eq!(errno(File::create(at("new"))), rofs);
    assert_eq!(
        errno(OpenOptions::new().write(true).open(at("plain"))),
        rofs
    );
    assert_eq!(
        errno(OpenOptions::new().append(true).open(at("plain"))),
        rofs
    );
    assert_eq!(
        errno(
            OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(at("plain"))
        ),
        rofs
    );
    assert_eq!(errno(fs::remove_file(at("plain"))), rofs);
    assert_eq!(errno(fs::remove_dir(at("d"))), rofs);
    assert_eq!(errno(fs::create_dir(at("e"))), rofs);
    assert_eq!(errno(fs::rename(at("plain"), at("other"))), rofs);
    assert_eq!(errno(fs::hard_link(at("plain"), at("hard"))), rofs);
    assert_eq!(errno(symlink("x", at("soft"))), rofs);
    let mode = fs::Permissions::from_mode(0o777);
    assert_eq!(errno(fs::set_permissions(at("plain"), mode)), rofs);
    assert_eq!(
        errno(std::os::unix::fs::chown(at("plain"), Some(1), None)),
        rofs
    );
    let path = CString::new(at("plain").as_os_str().as_bytes()).expect("no zero");
    // SAFETY: the path is a C string that lives through the call.
    assert_eq!(unsafe { libc::truncate(path.as_ptr(), 1) }, -1);
    assert_eq!(std::io::Error::last_os_error().raw_os_error(), rofs);
    let fifo = rustix::fs::mknodat(
        rustix::fs::CWD,
        at("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    );
    assert_eq!(fifo, Err(Errno::ROFS));
    let set = rustix::fs::setxattr(at("plain"), "user.x", b"1", XattrFlags::empty());
    assert_eq!(set, Err(Errno::ROFS));
    let removed = rustix::fs::removexattr(at("plain"), "user.dwarfs.inodeinfo");
    assert_eq!(removed, Err(Errno::ROFS));
    let times = rustix::fs::Timestamps {
        last_access: rustix::fs::Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        },
        last_modification: rustix::fs::Timespec {
            tv_sec: 1,
            tv_nsec: 0,
        },
    };
    let touched = rustix::fs::utimensat(
        rustix::fs::CWD,
        at("plain"),
        &times,
        rustix::fs::AtFlags::empty(),
    );
    assert_eq!(touched, Err(Errno::ROFS));
    assert_eq!(fs::read(at("plain")).expect("still there"), b"some text");
}

/// Even if somebody makes the mount writable, requests reach the driver and are refused.
#[test]
fn a_remount_does_not_make_it_writable() {
    if !can_mount("a_remount_does_not_make_it_writable") {
        return;
    }
    use rustix::mount::{MountFlags, mount_remount};
    let mount = Mount::new(&small_tree(), &MountOptions::default());
    mount_remount(mount.point(), MountFlags::empty(), c"").expect("root may");
    let rofs = Some(Errno::ROFS.raw_os_error());
    let at = |name: &str| mount.path(name);
    assert_eq!(errno(File::create(at("new"))), rofs);
    assert_eq!(
        errno(
            OpenOptions::new()
                .write(true)
                .truncate(true)
                .open(at("plain"))
        ),
        rofs
    );
    assert_eq!(errno(fs::remove_file(at("plain"))), rofs);
    assert_eq!(errno(fs::create_dir(at("e"))), rofs);
    assert_eq!(errno(fs::rename(at("plain"), at("other"))), rofs);
    assert_eq!(errno(symlink("x", at("soft"))), rofs);
    let mode = fs::Permissions::from_mode(0o777);
    assert_eq!(errno(fs::set_permissions(at("plain"), mode)), rofs);
    let value = vec![b'x'; 60_000];
    for value in [&b"1"[..], &value] {
        let set = rustix::fs::setxattr(at("plain"), "user.x", value, XattrFlags::empty());
        assert_eq!(set, Err(Errno::ROFS));
    }
    assert_eq!(fs::read(at("plain")).expect("still there"), b"some text");
}

#[test]
fn attributes() {
    if !can_mount("attributes") {
        return;
    }
    let mut maker = small_tree();
    maker.pieces(
        "holes",
        &[
            Piece::Data(vec![1; 700]),
            Piece::Hole(200_000),
            Piece::Data(vec![2; 700]),
        ],
    );
    let mut options = MountOptions::default();
    options.block_size = 1 << 15;
    let mount = Mount::new(&maker, &options);
    let stat = |name: &str| fs::symlink_metadata(mount.path(name)).expect(name);
    let plain = stat("plain");
    assert_eq!(
        (plain.size(), plain.blocks(), plain.blksize()),
        (9, 1, 1 << 15)
    );
    let holes = stat("holes");
    assert_eq!(
        (holes.size(), holes.blocks()),
        (201_400, 1400_u64.div_ceil(512))
    );
    assert_eq!(stat("two").nlink(), 2);
    assert_eq!(stat("two").ino(), stat("zwei").ino());
    assert_eq!(stat("").ino(), 1);
    assert_eq!((stat("d").nlink(), stat("d").size()), (1, 1));
    assert_eq!(stat("link").size(), 5);
    let vfs = rustix::fs::statvfs(mount.point()).expect("statvfs");
    assert_eq!((vfs.f_bsize, vfs.f_frsize), (1, 1));
    assert_eq!((vfs.f_bfree, vfs.f_bavail, vfs.f_ffree), (0, 0, 0));
    assert_eq!(vfs.f_files, 10);
    assert_eq!(vfs.f_namemax, 4096);
    assert!(vfs.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY));
    // `access` as root: everything may be read, nothing written or run.
    use rustix::fs::{Access, access};
    assert_eq!(access(mount.path("private"), Access::READ_OK), Ok(()));
    assert_eq!(
        access(mount.path("private"), Access::WRITE_OK),
        Err(Errno::ROFS)
    );
    assert_eq!(
        access(mount.path("private"), Access::EXEC_OK),
        Err(Errno::ACCESS)
    );
    assert_eq!(access(mount.path("d"), Access::EXEC_OK), Ok(()));
    assert_eq!(
        access(mount.path("none"), Access::EXISTS),
        Err(Errno::NOENT)
    );
}

/// `access` must not refuse what opening allows: programs ask it first.
#[test]
fn access_says_what_opening_does_where_the_kernel_does_not_check() {
    if !can_mount("access_says_what_opening_does_where_the_kernel_does_not_check") {
        return;
    }
    use std::os::unix::process::CommandExt;
    let mut options = MountOptions::default();
    options.default_permissions = Some(false);
    options.access = Access::Everyone;
    let mut maker = small_tree();
    maker.file_with_mode("program", "x", 0o700);
    let mount = Mount::new(&maker, &options);
    for uid in [0, 65534] {
        let test = |question: &str, name: &str| {
            std::process::Command::new("test")
                .arg(question)
                .arg(mount.path(name))
                .uid(uid)
                .gid(uid)
                .status()
                .expect("test can be started")
                .success()
        };
        for name in ["plain", "private", "program", "d"] {
            assert!(test("-r", name), "{uid} {name}");
        }
        assert!(test("-x", "program") && test("-x", "d"), "{uid}");
        assert!(!test("-x", "private") && !test("-w", "private"), "{uid}");
        let cat = std::process::Command::new("cat")
            .arg(mount.path("private"))
            .uid(uid)
            .gid(uid)
            .output()
            .expect("cat can be started");
        assert_eq!(cat.stdout, b"x", "{uid}");
    }
}

/// Entries of a directory as the C library reads them, with the position before each.
fn entries_with_positions(dir: *mut libc::DIR) -> Vec<(libc::c_long, Vec<u8>, u64, u8)> {
    let mut found = Vec::new();
    loop {
        // SAFETY: the directory stream is open, and the entry is copied before the next call.
        unsafe {
            let position = libc::telldir(dir);
            let entry = libc::readdir(dir);
            if entry.is_null() {
                return found;
            }
            let name = CStr::from_ptr((*entry).d_name.as_ptr()).to_bytes().to_vec();
            found.push((position, name, (*entry).d_ino, (*entry).d_type));
        }
    }
}

#[test]
fn directory_positions_are_stable() {
    if !can_mount("directory_positions_are_stable") {
        return;
    }
    let mut maker = Maker::new();
    maker.dir("d").dir("d/sub").link("d/zz", "x");
    for n in 0..3000 {
        maker.file(format!("d/file-number-{n:05}"), "");
    }
    let mount = Mount::new(&maker, &MountOptions::default());
    let path = CString::new(mount.path("d").as_os_str().as_bytes()).expect("no zero");
    // SAFETY: the path is a C string.
    let dir = unsafe { libc::opendir(path.as_ptr()) };
    assert!(!dir.is_null());
    let all = entries_with_positions(dir);
    assert_eq!(all.len(), 3004);
    assert_eq!((&all[0].1[..], &all[1].1[..]), (&b"."[..], &b".."[..]));
    assert_eq!(all[1].2, 1, "the parent is the root");
    let own = fs::metadata(mount.path("d")).expect("stat").ino();
    assert_eq!(all[0].2, own);
    let kinds: BTreeSet<u8> = all.iter().map(|entry| entry.3).collect();
    assert_eq!(kinds, [libc::DT_DIR, libc::DT_REG, libc::DT_LNK].into());
    let names: BTreeSet<_> = all.iter().map(|entry| &entry.1).collect();
    assert_eq!(names.len(), all.len());
    for n in [3003, 0, 1, 2, 1500, 190, 191, 192, 2999] {
        // SAFETY: the stream is open and the position came from it.
        unsafe { libc::seekdir(dir, all[n].0) };
        let rest = entries_with_positions(dir);
        let names = |list: &[(libc::c_long, Vec<u8>, u64, u8)]| {
            list.iter().map(|entry| entry.1.clone()).collect::<Vec<_>>()
        };
        assert_eq!(names(&rest), names(&all[n..]), "from entry {n}");
    }
    // SAFETY: open until here, not used afterwards.
    unsafe { libc::closedir(dir) };
    let up = fs::metadata(mount.path("d/sub/../..")).expect("stat");
    assert_eq!(up.ino(), 1);
}

/// A name that the kernel cannot take must not hide the others.
#[test]
fn impossible_names_do_not_hide_the_others() {
    if !can_mount("impossible_names_do_not_hide_the_others") {
        return;
    }
    let mut maker = small_tree();
    maker
        .file("d/..", "bad")
        .file(b"d/a\0b", "bad")
        .file(b"d/", "bad");
    let (bytes, _) = maker.image();
    let Ok(image) =
        redwarfs_reader::Image::from_source(Gate::new(bytes.clone()), &ImageOptions::default())
    else {
        // Refusing the whole image is as good.
        return;
    };
    drop(image);
    let mount = Mount::with(
        Gate::new(bytes),
        &ImageOptions::default(),
        &MountOptions::default(),
    );
    let names: Vec<_> = fs::read_dir(mount.path("d"))
        .expect("readable")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(names, ["inner"]);
}

fn xattr(path: &Path, name: &str) -> Result<Vec<u8>, Errno> {
    let mut value = vec![0; 65536];
    let len = rustix::fs::lgetxattr(path, name, &mut value)?;
    value.truncate(len);
    Ok(value)
}

fn xattr_names(path: &Path) -> Vec<String> {
    let mut list = vec![0; 65536];
    let len = rustix::fs::llistxattr(path, &mut list).expect("listxattr");
    list.truncate(len);
    list.split(|&byte| byte == 0)
        .filter(|name| !name.is_empty())
        .map(|name| String::from_utf8(name.to_vec()).expect("plain names"))
        .collect()
}

#[test]
fn extended_attributes() {
    if !can_mount("extended_attributes") {
        return;
    }
    let mut maker = small_tree();
    maker
        .category(b"a\"b\\c\n\xff\x01")
        .pieces("nine", &vec![Piece::Data(vec![7; 3]); 9])
        .pieces(
            "holes",
            &[Piece::Data(vec![1; 4096]), Piece::Hole(3_145_728)],
        );
    let all = [
        "user.dwarfs.driver.pid",
        "user.dwarfs.driver.perfmon",
        "user.dwarfs.inodeinfo",
    ];
    // Listed only if asked for, and only what can then be had.
    let mut listing = MountOptions::default();
    listing.list_xattrs = true;
    let mount = Mount::new(&maker, &listing);
    assert_eq!(xattr_names(mount.point()), all);
    for name in ["d", "plain"] {
        assert_eq!(xattr_names(&mount.path(name)), all[2..], "{name}");
    }
    for name in ["link", "pipe"] {
        assert!(xattr_names(&mount.path(name)).is_empty(), "{name}");
    }
    drop(mount);
    let mount = Mount::new(&maker, &MountOptions::default());
    for name in ["", "d", "plain", "link", "pipe"] {
        assert!(xattr_names(&mount.path(name)).is_empty(), "{name}");
    }
    let root = mount.point();
    let pid = std::process::id().to_string();
    assert_eq!(xattr(root, all[0]), Ok(pid.into_bytes()));
    let off = b"performance monitor is disabled\n".to_vec();
    assert_eq!(xattr(root, all[1]), Ok(off));
    for (name, attribute) in [
        ("d", all[0]),
        ("d", all[1]),
        ("plain", "user.dwarfs.other"),
        ("plain", "security.selinux"),
        ("plain", "trusted.overlay.opaque"),
        ("plain", "user.inodeinfo"),
    ] {
        assert_eq!(
            xattr(&mount.path(name), attribute),
            Err(Errno::NODATA),
            "{attribute}"
        );
    }
    // The system refuses `user.` attributes of these before anybody is asked.
    for name in ["link", "pipe"] {
        assert!(xattr(&mount.path(name), all[2]).is_err());
    }
    let info = |name: &str| {
        let text = xattr(&mount.path(name), all[2]).expect(name);
        let text = String::from_utf8(text).expect("UTF-8");
        let value: serde_json::Value = serde_json::from_str(&text).expect("valid JSON");
        (text, value)
    };
    assert_eq!(
        info("d").0,
        "{\"gid\":0,\"mode\":16877,\"modestring\":\"---drwxr-xr-x\",\"uid\":0}\n"
    );
    assert_eq!(
        info("empty").0,
        "{\"gid\":0,\"mode\":33188,\"modestring\":\"----rw-r--r--\",\"uid\":0}\n"
    );
    assert_eq!(
        info("nine").0,
        "{\"chunks\":\"too many chunks (9)\",\"gid\":0,\"mode\":33188,\
         \"modestring\":\"----rw-r--r--\",\"uid\":0}\n"
    );
    let (text, value) = info("holes");
    assert!(
        text.contains("{\"kind\":\"hole\",\"size\":3145728}"),
        "{text}"
    );
    let category = value["chunks"][0]["category"].as_str();
    assert_eq!(category, Some("a\"b\\c\n\u{fffd}\u{1}"));
    let keys = "{\"chunks\":[{\"block\":0,\"category\":";
    assert!(text.starts_with(keys), "{text}");
    assert!(text.contains("\"kind\":\"data\",\"offset\":"), "{text}");
    // Too little room.
    let mut little = [0; 4];
    let result = rustix::fs::getxattr(mount.path("d"), all[2], &mut little);
    assert_eq!(result, Err(Errno::RANGE));
}

#[test]
fn performance_monitor() {
    if !can_mount("performance_monitor") {
        return;
    }
    let mut open = ImageOptions::default();
    open.perfmon = PerfMonitor::new(&[Component::Fuse], false);
    let mount = Mount::with(
        Gate::new(small_tree().image().0),
        &open,
        &MountOptions::default(),
    );
    fs::read(mount.path("plain")).expect("readable");
    fs::read_link(mount.path("link")).expect("readable");
    fs::read_dir(mount.path("d")).expect("readable").count();
    xattr_names(&mount.path("d"));
    let name = "user.dwarfs.driver.perfmon";
    let value = String::from_utf8(xattr(mount.point(), name).expect("a value")).expect("UTF-8");
    for operation in [
        "op_init",
        "op_lookup",
        "op_getattr",
        "op_readlink",
        "op_read",
        "op_readdir",
        "op_statfs",
        "op_listxattr",
    ] {
        let head = format!("[fuse.{operation}]\n      samples: ");
        assert!(value.contains(&head), "{operation} in {value}");
    }
    // One read, whether it was answered at once or by a worker.
    assert!(
        value.contains("[fuse.op_read]\n      samples: 1\n"),
        "{value}"
    );
    let path = CString::new(mount.point().as_os_str().as_bytes()).expect("no zero");
    let name = CString::new(name).expect("no zero");
    // SAFETY: both are C strings, and without room nothing is written.
    let size = unsafe { libc::getxattr(path.as_ptr(), name.as_ptr(), std::ptr::null_mut(), 0) };
    let least = value.len() + 4096 - 100;
    assert!(usize::try_from(size).expect("a size") >= least, "{size}");
    let summary = mount.observer.perfmon_summary().expect("it is on");
    assert!(summary.contains("[fuse.op_getxattr]"), "{summary}");
}

#[test]
fn analysis_file() {
    if !can_mount("analysis_file") {
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let list = dir.path().join("list");
    fs::write(&list, "old\n").expect("writable");
    let mut options = MountOptions::default();
    options.analysis_file = Some(list.clone());
    let mut maker = small_tree();
    maker.dir("d/e").file("d/e/deep", "deep");
    let mut mount = Mount::new(&maker, &options);
    let seen = || fs::read_to_string(&list).expect("readable");
    assert_eq!(seen(), "");
    for name in ["plain", "d/e/deep", "plain", "zwei", "two", "empty", "link"] {
        fs::read(mount.path(name)).expect(name);
    }
    fs::read_dir(mount.path("d")).expect("readable").count();
    fs::metadata(mount.path("private")).expect("stat");
    // There at once, each file once: also one with two names, and an empty one.
    let expected = "plain\nd/e/deep\ntwo\nempty\n";
    assert_eq!(seen(), expected);
    mount.unmount();
    assert_eq!(seen(), expected);

    let point = tempfile::tempdir().expect("a temporary directory");
    let mut options = MountOptions::default();
    options.analysis_file = Some(dir.path().join("no/such/dir"));
    let image =
        redwarfs_reader::Image::from_source(Gate::new(maker.image().0), &ImageOptions::default())
            .expect("a valid image");
    let error = redwarfs_fuse::mount(image, point.path(), &options).expect_err("no such directory");
    let text = error.to_string();
    assert!(text.starts_with("cannot create analysis file: "), "{text}");
    assert!(
        text.contains("no/such/dir: no such file or directory"),
        "{text}"
    );
}

#[test]
fn case_insensitive_names() {
    if !can_mount("case_insensitive_names") {
        return;
    }
    let mut maker = Maker::new();
    maker
        .dir("Dir")
        .file("Dir/ReadMe.TXT", "readme")
        .file("Dir/Straße", "street")
        .file("Dir/lower", "lower")
        .file(b"Dir/\xffBytes", "bytes")
        .dir("two")
        .file("two/FILE", "upper")
        .file("two/File", "mixed")
        .file("two/file", "lower");
    let exact = Mount::new(&maker, &MountOptions::default());
    assert!(!exact.path("dir").exists());
    let mut options = MountOptions::default();
    options.case_insensitive = true;
    let mount = Mount::new(&maker, &options);
    let read = |name: &str| fs::read_to_string(mount.path(name)).ok();
    // Also what was looked up in vain before, and again.
    for _ in 0..2 {
        assert_eq!(read("dIR/readme.md"), None);
        assert_eq!(read("dIR/readme.txt").as_deref(), Some("readme"));
        assert_eq!(read("DIR/README.TXT").as_deref(), Some("readme"));
        assert_eq!(read("Dir/ReadMe.TXT").as_deref(), Some("readme"));
        assert_eq!(read("dir/STRASSE").as_deref(), Some("street"));
        assert_eq!(read("dir/LOWER").as_deref(), Some("lower"));
        // The exact name wins, in any order of asking.
        assert_eq!(read("two/File").as_deref(), Some("mixed"));
        assert_eq!(read("two/file").as_deref(), Some("lower"));
        assert_eq!(read("two/FILE").as_deref(), Some("upper"));
        assert_eq!(read("two/fILE").as_deref(), Some("lower"));
        assert_eq!(read("two/missing"), None);
        let odd = |name: &[u8]| mount.path("Dir").join(OsStr::from_bytes(name)).exists();
        assert!(odd(b"\xffBytes") && !odd(b"\xffbytes"));
    }
    let names: Vec<_> = fs::read_dir(mount.path("TWO"))
        .expect("readable")
        .map(|entry| entry.expect("an entry").file_name())
        .collect();
    assert_eq!(names, ["FILE", "File", "file"]);
}

#[test]
fn seeking_holes_and_data() {
    if !can_mount("seeking_holes_and_data") {
        return;
    }
    let mut maker = small_tree();
    maker.pieces(
        "holes",
        &[
            Piece::Data(vec![1; 5000]),
            Piece::Hole(100_000),
            Piece::Data(vec![2; 10]),
            Piece::Hole(70),
        ],
    );
    let mount = Mount::new(&maker, &MountOptions::default());
    let file = File::open(mount.path("holes")).expect("readable");
    let seek = |from| rustix::fs::seek(&file, from);
    use rustix::fs::SeekFrom::{Data, Hole};
    assert_eq!(seek(Data(0)), Ok(0));
    assert_eq!(seek(Hole(0)), Ok(5000));
    assert_eq!(seek(Data(5000)), Ok(105_000));
    assert_eq!(seek(Hole(105_001)), Ok(105_010));
    assert_eq!(seek(Data(105_010)), Err(Errno::NXIO));
    assert_eq!(seek(Hole(105_080)), Err(Errno::NXIO));
    let mut data = vec![9; 105_080];
    file.read_exact_at(&mut data, 0).expect("readable");
    assert_eq!(data.iter().map(|&b| u32::from(b)).sum::<u32>(), 5020);
    let plain = Mount::new(&small_tree(), &MountOptions::default());
    let file = File::open(plain.path("plain")).expect("readable");
    assert_eq!(rustix::fs::seek(&file, Hole(3)), Ok(9));
    assert_eq!(rustix::fs::seek(&file, Data(3)), Ok(3));
}

/// Reads all files below a directory in order; returns their contents.
fn read_all(dir: &Path) -> Vec<Vec<u8>> {
    let mut names: Vec<_> = fs::read_dir(dir)
        .expect("readable")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    names.sort();
    let mut read = Vec::new();
    for name in names {
        fs::metadata(&name).expect("stat");
        read.push(fs::read(name).expect("readable"));
    }
    read
}

fn many_files() -> (Maker, Vec<Vec<u8>>) {
    let mut maker = Maker::new();
    let mut contents = Vec::new();
    maker.dir("d");
    for n in 0..600_usize {
        let data = vec![(n % 251) as u8; n * 7 % 300 + 1];
        maker.file(format!("d/{n:04}"), &data);
        contents.push(data);
    }
    (maker, contents)
}

#[test]
fn files_are_pushed_in_sequence_only() {
    if !can_mount("files_are_pushed_in_sequence_only") {
        return;
    }
    let (maker, contents) = many_files();
    let mut off = MountOptions::default();
    off.push = false;
    let mount = Mount::new(&maker, &off);
    assert_eq!(read_all(&mount.path("d")), contents);
    assert_eq!(mount.count("requests op_read"), 600);
    assert_eq!(mount.count("files pushed"), 0);

    let mount = Mount::new(&maker, &MountOptions::default());
    let names: Vec<_> = fs::read_dir(mount.path("d"))
        .expect("readable")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    assert_eq!(names.len(), 600);
    fs::read(mount.path("d/0000")).expect("readable");
    assert_eq!(mount.count("files pushed"), 0, "one file is no sequence");
    fs::read(mount.path("d/0001")).expect("readable");
    wait_until("a window is pushed", || mount.count("files pushed") >= 64);
    let reads = mount.count("requests op_read");
    // The next two are left to the reader.
    for (n, expected) in contents.iter().enumerate().take(68).skip(2) {
        let data = fs::read(mount.path(format!("d/{n:04}"))).expect("readable");
        assert_eq!(data, *expected, "file {n}");
    }
    assert_eq!(
        mount.count("requests op_read"),
        reads + 2,
        "the others were pushed"
    );
    assert_eq!(
        mount.count("files pushed"),
        64,
        "who stops reading stops the pushing"
    );
    // The first file after the window goes on.
    assert_eq!(
        fs::read(mount.path("d/0068")).expect("readable"),
        contents[68]
    );
    wait_until("the next window is pushed", || {
        mount.count("files pushed") >= 128
    });
    assert_eq!(read_all(&mount.path("d")), contents);
    // A file is counted after it was pushed, when a reader may have it already.
    wait_until("each file is read or pushed", || {
        mount.count("requests op_read") + mount.count("files pushed") >= 600
    });

    // Backwards is no sequence.
    let mount = Mount::new(&maker, &MountOptions::default());
    fs::read_dir(mount.path("d")).expect("readable").count();
    for n in (0..600).rev() {
        let data = fs::read(mount.path(format!("d/{n:04}"))).expect("readable");
        assert_eq!(data, contents[n], "file {n}");
    }
    assert_eq!(mount.count("files pushed"), 0);
}

/// What the kernel forgets may be pushed again; nothing is pushed twice before.
#[test]
fn pushing_survives_forgetting_and_unmounting() {
    if !can_mount("pushing_survives_forgetting_and_unmounting") {
        return;
    }
    let (maker, contents) = many_files();
    let mut mount = Mount::new(&maker, &MountOptions::default());
    for _ in 0..3 {
        assert_eq!(read_all(&mount.path("d")), contents);
        let pushed = mount.count("files pushed");
        assert!(pushed <= 600, "{pushed}");
    }
    // An unmount while windows are being pushed.
    let fresh = Mount::new(&maker, &MountOptions::default());
    fs::read_dir(fresh.path("d")).expect("readable").count();
    for n in 0..3 {
        fs::read(fresh.path(format!("d/{n:04}"))).expect("readable");
    }
    drop(fresh);
    mount.unmount();
}

/// Nothing is decoded in order to push it.
#[test]
fn only_decoded_blocks_are_pushed() {
    if !can_mount("only_decoded_blocks_are_pushed") {
        return;
    }
    let mut maker = Maker::new();
    maker.dir("d");
    for n in 0..12 {
        maker.file(format!("d/{n:02}"), vec![n; BLOCK as usize / 4]);
    }
    let mut open = ImageOptions::default();
    open.cache.seq_detector = 0;
    let mount = Mount::with(Gate::new(maker.image().0), &open, &MountOptions::default());
    fs::read_dir(mount.path("d")).expect("readable").count();
    for n in 0..2 {
        fs::read(mount.path(format!("d/{n:02}"))).expect("readable");
    }
    for n in 2..4 {
        fs::read(mount.path(format!("d/{n:02}"))).expect("readable");
    }
    assert!(
        mount.count("files pushed") <= 2,
        "the rest of the first block"
    );
    assert_eq!(mount.count("blocks created"), 1);
}

#[test]
fn file_handles_work_after_everything_was_forgotten() {
    if !can_mount("file_handles_work_after_everything_was_forgotten") {
        return;
    }
    #[repr(C)]
    struct Handle {
        bytes: u32,
        kind: i32,
        data: [u8; 128],
    }
    let open_handle = |mount: &Mount, handle: &mut Handle| {
        let root = File::open(mount.point()).expect("readable");
        // SAFETY: the handle was filled by the system for a file system of the same kind.
        let fd = unsafe {
            libc::open_by_handle_at(
                root.as_raw_fd(),
                (&raw mut *handle).cast(),
                libc::O_RDONLY | libc::O_CLOEXEC,
            )
        };
        if fd < 0 {
            return Err(std::io::Error::last_os_error());
        }
        // SAFETY: a new descriptor that nobody else owns.
        Ok(unsafe { <File as std::os::fd::FromRawFd>::from_raw_fd(fd) })
    };
    let mut maker = small_tree();
    maker.dir("d/e").file("d/e/deep", "deep");
    let mount = Mount::new(&maker, &MountOptions::default());
    let mut handles = Vec::new();
    for name in ["d/e/deep", "d/e", "plain", "two"] {
        let path = CString::new(mount.path(name).as_os_str().as_bytes()).expect("no zero");
        let mut handle = Handle {
            bytes: 128,
            kind: 0,
            data: [0; 128],
        };
        let mut id = 0;
        // SAFETY: the handle has room for as many bytes as it says.
        let result = unsafe {
            libc::name_to_handle_at(
                libc::AT_FDCWD,
                path.as_ptr(),
                (&raw mut handle).cast(),
                &raw mut id,
                0,
            )
        };
        assert_eq!(result, 0, "{name}: {}", std::io::Error::last_os_error());
        handles.push((name, handle));
    }
    // A fresh mount of the same image: the kernel knows nothing but the root.
    let fresh = Mount::new(&maker, &MountOptions::default());
    for (name, handle) in &mut handles {
        for mount in [&fresh, &mount] {
            let mut file = match open_handle(mount, handle) {
                Ok(file) => file,
                Err(error) => panic!("{name}: {error}"),
            };
            let meta = file.metadata().expect("stat");
            assert_eq!(
                meta.ino(),
                fs::metadata(mount.path(*name)).expect("stat").ino()
            );
            if meta.is_file() {
                let mut data = Vec::new();
                file.read_to_end(&mut data).expect("readable");
                assert_eq!(data, fs::read(mount.path(*name)).expect("readable"));
            } else {
                let link = fs::read_link(format!("/proc/self/fd/{}", file.as_raw_fd()));
                assert_eq!(link.expect("connected"), mount.path(*name));
            }
        }
    }
    // A number that no inode has.
    let (_, handle) = &mut handles[0];
    handle.data[..4].copy_from_slice(&0x7fff_fff0_u32.to_ne_bytes());
    handle.data[4..8].copy_from_slice(&0_u32.to_ne_bytes());
    let error = open_handle(&fresh, handle).expect_err("no such inode");
    assert_eq!(error.raw_os_error(), Some(Errno::STALE.raw_os_error()));
}

/// A reader that is killed while the image stalls must not hang.
#[test]
fn a_stalled_read_can_be_killed() {
    if !can_mount("a_stalled_read_can_be_killed") {
        return;
    }
    let mut maker = Maker::new();
    maker
        .file("one", vec![1; BLOCK as usize])
        .file("two", vec![2; BLOCK as usize]);
    let (bytes, starts) = maker.image();
    let gate = Gate::new(bytes);
    let mount = Mount::with(
        Arc::clone(&gate) as Arc<_>,
        &ImageOptions::default(),
        &MountOptions::default(),
    );
    assert_eq!(
        fs::read(mount.path("one")).expect("readable").len(),
        BLOCK as usize
    );
    let second = starts[1] as u64 - 64;
    gate.close(second..second + u64::from(BLOCK));
    for flag in ["iflag=direct", "iflag=nonblock"] {
        let before = mount.count("reads by workers");
        let mut reader = std::process::Command::new("dd")
            .arg(format!("if={}", mount.path("two").display()))
            .args(["of=/dev/null", "bs=4096", "count=1", flag])
            .stderr(std::process::Stdio::null())
            .spawn()
            .expect("dd can be started");
        wait_until("the read stalls", || {
            mount.count("reads by workers") > before
        });
        reader.kill().expect("killed");
        wait_until("the reader is gone", || {
            reader.try_wait().expect("a child").is_some()
        });
    }
    // Cached data is still served, and after the stall everything is.
    assert_eq!(fs::read(mount.path("one")).expect("readable")[0], 1);
    gate.open();
    assert_eq!(
        fs::read(mount.path("two")).expect("readable"),
        vec![2; BLOCK as usize]
    );
}

/// A signal that somebody handles ends a read that stalls, but not at once.
#[test]
fn a_stalled_read_can_be_interrupted() {
    if !can_mount("a_stalled_read_can_be_interrupted") {
        return;
    }
    extern "C" fn nothing(_: libc::c_int) {}
    // SAFETY: the handler does nothing, so it may run anywhere.
    unsafe {
        let mut action: libc::sigaction = std::mem::zeroed();
        action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as usize;
        assert_eq!(
            libc::sigaction(libc::SIGUSR1, &raw const action, std::ptr::null_mut()),
            0
        );
    }
    let mut maker = Maker::new();
    maker.file("one", vec![1; BLOCK as usize]);
    let (bytes, starts) = maker.image();
    let gate = Gate::new(bytes);
    let mount = Mount::with(
        Arc::clone(&gate) as Arc<_>,
        &ImageOptions::default(),
        &MountOptions::default(),
    );
    gate.close(0..starts[0] as u64 + u64::from(BLOCK));
    let path = mount.path("one");
    let (sender, thread_id) = std::sync::mpsc::channel();
    let reader = std::thread::spawn(move || {
        let file = OpenOptions::new()
            .read(true)
            .custom_flags(libc::O_DIRECT)
            .open(path)
            .expect("readable");
        // SAFETY: asks for a number.
        sender.send(unsafe { libc::gettid() }).expect("listened to");
        let mut data = vec![0; 4096];
        file.read_at(&mut data, 0).map_err(|error| error.kind())
    });
    let thread = thread_id.recv().expect("the thread says its number");
    wait_until("the read stalls", || mount.count("reads by workers") > 0);
    // SAFETY: a signal with a handler, to a thread of this process that is not joined yet.
    unsafe { libc::syscall(libc::SYS_tgkill, libc::getpid(), thread, libc::SIGUSR1) };
    wait_until("the read is given up", || reader.is_finished());
    assert_eq!(
        reader.join().expect("no panic"),
        Err(ErrorKind::Interrupted)
    );
    gate.open();
    assert_eq!(fs::read(mount.path("one")).expect("readable")[0], 1);
}

#[test]
fn sparse_files_are_opened_by_request() {
    if !can_mount("sparse_files_are_opened_by_request") {
        return;
    }
    let mut maker = small_tree();
    maker.pieces("holes", &[Piece::Hole(8192), Piece::Data(vec![1; 10])]);
    let opens = |options: &MountOptions| {
        let mount = Mount::new(&maker, options);
        for _ in 0..3 {
            for name in ["plain", "holes"] {
                fs::read(mount.path(name)).expect("readable");
            }
        }
        (
            mount.count("requests op_open"),
            mount.count("requests op_read"),
        )
    };
    let (opened, read) = opens(&MountOptions::default());
    assert_eq!(opened, 6);
    // The plain file stays in the kernel's cache, the sparse one is read each time.
    assert_eq!(read, 1 + 3);
    let mut keep = MountOptions::default();
    keep.cache_sparse = true;
    assert_eq!(opens(&keep), (1, 2));
    let mut drop = MountOptions::default();
    drop.keep_cache = false;
    assert_eq!(opens(&drop), (6, 6));
}

#[test]
fn only_those_meant_may_enter() {
    if !can_mount("only_those_meant_may_enter") {
        return;
    }
    use std::os::unix::process::CommandExt;
    for (access, others) in [
        (Access::Owner, false),
        (Access::OwnerAndRoot, false),
        (Access::Everyone, true),
    ] {
        let mut options = MountOptions::default();
        options.access = access;
        let mount = Mount::new(&small_tree(), &options);
        let cat = |name: &str, uid: u32| {
            std::process::Command::new("cat")
                .arg(mount.path(name))
                .uid(uid)
                .gid(uid)
                .output()
                .expect("cat can be started")
                .status
                .success()
        };
        // Root first, so that the kernel has everything in its cache.
        assert!(cat("plain", 0) && cat("private", 0), "{access:?}");
        assert_eq!(cat("plain", 65534), others, "{access:?}");
        assert!(!cat("private", 65534), "{access:?}: the mode counts");
    }
}

#[test]
fn statistics_can_be_asked_from_anywhere() {
    fn shared<T: Send + Sync + Clone + 'static>() {}
    shared::<redwarfs_fuse::Observer>();
    shared::<Unmounter>();
}
