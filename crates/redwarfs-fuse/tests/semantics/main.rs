//! What programs see of a mount.
#![allow(unsafe_code)]

mod reading;
mod reports;
#[path = "../support/mod.rs"]
mod support;

use std::collections::BTreeSet;
use std::ffi::{CStr, CString, OsStr};
use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};

use redwarfs_fuse::{Access, MountOptions, Unmounter};
use redwarfs_reader::OpenOptions as ImageOptions;
use rustix::fs::XattrFlags;
use rustix::io::Errno;
use support::{FilePart, Gate, Maker, Mount, can_mount};

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
            FilePart::Data(vec![1; 700]),
            FilePart::Hole(200_000),
            FilePart::Data(vec![2; 700]),
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
