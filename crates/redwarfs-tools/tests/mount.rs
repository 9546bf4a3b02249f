//! The `dwarfs` program with real mounts. Where mounting is impossible the tests say so and pass.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Read, Seek, SeekFrom};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::driver::{
    Mount, can_mount, driver_of, dwarfs, errno, kill, run, stderr, table_line, wait_until, xattr,
};

use redwarfs_format::metadata::{DirEntry, Directory, InodeData, Metadata, freeze};
use redwarfs_format::section::{CompressionId, SectionHeader, SectionType};
use redwarfs_testkit::golden::{golden, golden_images};
use redwarfs_testkit::{Fields, Manifest, skip};
use tempfile::TempDir;

/// One directory with `count` empty files and nothing else.
fn big_directory(count: u32) -> Vec<u8> {
    let empty = Metadata {
        block_size: 1 << 16,
        ..Metadata::default()
    };
    let file = InodeData {
        mode_index: 1,
        ..InodeData::default()
    };
    let mut inodes = vec![file; count as usize + 1];
    inodes[0].mode_index = 0;
    let mut entries = vec![DirEntry {
        name_index: 0,
        inode_num: 0,
    }];
    entries.extend((0..count).map(|n| DirEntry {
        name_index: n,
        inode_num: n + 1,
    }));
    let directory = Directory {
        parent_entry: 0,
        first_entry: 1,
        self_entry: 0,
    };
    let metadata = Metadata {
        directories: vec![
            directory,
            Directory {
                first_entry: count + 1,
                ..directory
            },
        ],
        inodes,
        chunk_table: vec![0; count as usize + 1],
        uids: vec![0],
        gids: vec![0],
        modes: vec![0o040_755, 0o100_644],
        names: (0..count).map(|n| name_of(n).into_bytes()).collect(),
        dir_entries: Some(entries),
        ..empty
    };
    let frozen = freeze(&metadata).expect("small enough");
    let mut image = Vec::new();
    for (number, ty, payload) in [
        (0, SectionType::METADATA_V2_SCHEMA, &frozen.schema),
        (1, SectionType::METADATA_V2, &frozen.data),
    ] {
        let header = SectionHeader::seal(number, ty, CompressionId::NONE, payload);
        image.extend_from_slice(&header.encode());
        image.extend_from_slice(payload);
    }
    image
}

fn name_of(n: u32) -> String {
    format!("a-file-with-a-name-of-some-length-{n:06}")
}

#[test]
fn golden_images_look_as_they_should() {
    if !can_mount("golden_images_look_as_they_should") {
        return;
    }
    for image in golden_images() {
        let options = match image.name.as_str() {
            name if name.contains("header") => "offset=auto,blocksize=0",
            _ => "blocksize=0",
        };
        let mount = Mount::background(&image.image, options);
        let seen = Manifest::from_directory(mount.point(), true).expect("a readable tree");
        image
            .manifest()
            .assert_same(&seen, Fields::ALL, &image.name);
    }
}

#[test]
fn foreground_ends_cleanly_on_signals() {
    if !can_mount("foreground_ends_cleanly_on_signals") {
        return;
    }
    use rustix::process::Signal;
    let image = golden("one").image;
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let mut mount = Mount::foreground(&image, &[]);
        assert!(mount.point().join("only").exists());
        mount.signal(signal);
        let (code, log) = mount.finish();
        assert_eq!(code, Some(0), "{signal:?}: {log}");
        assert!(table_line(mount.point()).is_none(), "{signal:?}");
        assert!(log.contains("file system initialized ["), "{log}");
    }
    let mut mount = Mount::foreground(&image, &[]);
    // The mount table shows it before the driver has tried it; one that is taken off that early
    // was never ready, which is a failure.
    let pipe = mount.child.as_mut().and_then(|child| child.stderr.take());
    let mut log = BufReader::new(pipe.expect("a pipe")).lines();
    let ready = log.find(|line| line.as_ref().is_ok_and(|l| l.contains("initialized [")));
    assert!(ready.is_some(), "the driver says when it is ready");
    rustix::mount::unmount(mount.point(), rustix::mount::UnmountFlags::empty()).expect("unmount");
    assert_eq!(mount.finish().0, Some(0));
}

#[test]
fn the_start_reads_no_attributes_through_the_mount() {
    if !can_mount("the_start_reads_no_attributes_through_the_mount") {
        return;
    }
    // Two processes that read the attributes of a new inode at once can see half of the first reply.
    let log = |look: bool| {
        let mut mount = Mount::foreground(&golden("one").image, &["-o", "debuglevel=debug"]);
        let pipe = mount.child.as_mut().and_then(|child| child.stderr.take());
        let mut lines = BufReader::new(pipe.expect("a pipe")).lines();
        let mut text = String::new();
        for line in lines.by_ref() {
            text += &line.expect("text");
            if text.contains("initialized [") {
                break;
            }
        }
        if look {
            fs::symlink_metadata(mount.point()).expect("attributes");
        }
        mount.signal(rustix::process::Signal::TERM);
        lines.for_each(|line| text += &line.expect("text"));
        assert_eq!(mount.finish().0, Some(0));
        text
    };
    let text = log(false);
    assert!(
        text.contains("op_statfs") && !text.contains("op_getattr"),
        "{text}"
    );
    assert!(log(true).contains("op_getattr"));
}

#[test]
fn signal_while_busy_detaches() {
    if !can_mount("signal_while_busy_detaches") {
        return;
    }
    let mut mount = Mount::foreground(&golden("one").image, &[]);
    let held = File::open(mount.point().join("only")).expect("open");
    mount.signal(rustix::process::Signal::TERM);
    let (code, log) = mount.finish();
    assert_eq!(code, Some(0), "{log}");
    assert!(log.contains("in use"), "{log}");
    assert!(table_line(mount.point()).is_none());
    drop(held);
}

#[test]
fn relative_paths_and_background() {
    if !can_mount("relative_paths_and_background") {
        return;
    }
    let dir = TempDir::new().expect("a temporary directory");
    let image = dir.path().join("an,image\\x.dwarfs");
    fs::copy(golden("one").image, &image).expect("copy");
    let mount = Mount {
        dir: Mount::new_dir(),
        child: None,
    };
    let parent = mount.point().parent().expect("a parent");
    let name = mount.point().file_name().expect("a name");
    let output = dwarfs()
        .current_dir(parent)
        .arg(&image)
        .arg(name)
        .output()
        .expect("the program can be started");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let line = table_line(mount.point()).expect("mounted");
    let fields: Vec<_> = line.split(' ').collect();
    assert_eq!(fields[2], "fuse.dwarfs");
    // The mount table shows a backslash as \134.
    let source = fields[0].replace("\\134", "\\");
    assert_eq!(
        source,
        format!("{}/an,image\\x.dwarfs", dir.path().display())
    );
    for flag in ["ro", "nosuid", "nodev", "default_permissions"] {
        assert!(fields[3].split(',').any(|f| f == flag), "{line}");
    }

    let pid = driver_of(mount.point());
    assert_eq!(
        fs::read_link(format!("/proc/{pid}/cwd")).expect("alive"),
        Path::new("/")
    );
    for stream in 0..3 {
        let target = fs::read_link(format!("/proc/{pid}/fd/{stream}")).expect("open");
        assert_eq!(target, Path::new("/dev/null"));
    }
    kill(pid, rustix::process::Signal::TERM);
    wait_until("the unmount", || table_line(mount.point()).is_none());
}

mod libc_errno {
    pub(crate) const ENOENT: i32 = 2;
    pub(crate) const EIO: i32 = 5;
    pub(crate) const ENXIO: i32 = 6;
    pub(crate) const EROFS: i32 = 30;
    pub(crate) const ENODATA: i32 = 61;
}
use libc_errno::{EIO, ENODATA, ENOENT, ENXIO, EROFS};

#[test]
fn nothing_can_be_changed() {
    if !can_mount("nothing_can_be_changed") {
        return;
    }
    let mount = Mount::background(&golden("basic-default").image, "");
    let at = |name: &str| mount.point().join(name);
    let write = |path: PathBuf| File::options().write(true).open(path);
    assert_eq!(errno(write(at("text.txt"))), EROFS);
    assert_eq!(
        errno(File::options().append(true).open(at("text.txt"))),
        EROFS
    );
    assert_eq!(errno(File::create(at("new"))), EROFS);
    assert_eq!(errno(fs::create_dir(at("newdir"))), EROFS);
    assert_eq!(errno(fs::remove_file(at("text.txt"))), EROFS);
    assert_eq!(errno(fs::remove_dir(at("empty dir"))), EROFS);
    assert_eq!(errno(fs::rename(at("text.txt"), at("other"))), EROFS);
    assert_eq!(errno(fs::hard_link(at("text.txt"), at("other"))), EROFS);
    assert_eq!(errno(std::os::unix::fs::symlink("x", at("other"))), EROFS);
    let mode = fs::Permissions::from_mode(0o600);
    assert_eq!(errno(fs::set_permissions(at("text.txt"), mode)), EROFS);
    assert_eq!(
        errno(std::os::unix::fs::chown(at("text.txt"), Some(1), None)),
        EROFS
    );
    let set = rustix::fs::setxattr(
        at("text.txt"),
        "user.x",
        b"1",
        rustix::fs::XattrFlags::empty(),
    );
    assert_eq!(errno(set.map_err(io::Error::from)), EROFS);
}

#[test]
fn lookups_statfs_attributes_and_holes() {
    if !can_mount("lookups_statfs_attributes_and_holes") {
        return;
    }
    let image = golden("basic-default");
    let mount = Mount::background(&image.image, "uid=12,gid=34,readonly");
    let at = |name: &str| mount.point().join(name);
    for _ in 0..3 {
        assert_eq!(errno(fs::symlink_metadata(at("missing"))), ENOENT);
        assert_eq!(errno(fs::symlink_metadata(at("a/missing"))), ENOENT);
    }
    let meta = fs::metadata(at("text.txt")).expect("stat");
    assert_eq!((meta.uid(), meta.gid()), (12, 34));
    assert_eq!(meta.mode() & 0o222, 0);
    assert_eq!(meta.blksize(), 512 << 10);

    let stat = rustix::fs::statvfs(mount.point()).expect("statfs");
    let inodes: std::collections::BTreeSet<u64> =
        image.manifest().0.values().map(|entry| entry.ino).collect();
    assert_eq!(stat.f_files, inodes.len() as u64);
    assert_eq!((stat.f_bsize, stat.f_frsize), (1, 1));
    assert_eq!((stat.f_bfree, stat.f_bavail, stat.f_ffree), (0, 0, 0));
    assert_eq!(stat.f_namemax, 4096);
    assert!(stat.f_blocks > 0);

    assert_eq!(errno(xattr(&at("text.txt"), "user.other")), ENODATA);
    assert_eq!(
        errno(xattr(&at("text.txt"), "user.dwarfs.driver.pid")),
        ENODATA
    );
    let info = xattr(&at("text.txt"), "user.dwarfs.inodeinfo").expect("the attribute");
    assert!(
        info.starts_with("{\"chunks\":[{\"block\":") && info.ends_with("\"uid\":12}\n"),
        "{info}"
    );
    assert!(info.contains("\"modestring\":\"----r--r--r--\""), "{info}");
    let mut names = vec![0u8; 256];
    let length = rustix::fs::listxattr(at("text.txt"), &mut names[..]).expect("list");
    assert_eq!(&names[..length], b"", "by name only");

    // `all-hole` is 70000 bytes of nothing.
    let mut file = File::open(at("all-hole")).expect("open");
    let seek = |whence| rustix::fs::seek(&file, whence).map_err(io::Error::from);
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(5)).expect("hole"), 5);
    assert_eq!(errno(seek(rustix::fs::SeekFrom::Data(0))), ENXIO);
    assert_eq!(file.seek(SeekFrom::End(0)).expect("end"), 70_000);
    let data = File::open(at("text.txt")).expect("open");
    let size = meta.size();
    let seek = |whence| rustix::fs::seek(&data, whence).map_err(io::Error::from);
    assert_eq!(seek(rustix::fs::SeekFrom::Data(1)).expect("data"), 1);
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(1)).expect("end"), size);
    // Past the end there is nothing.
    let mut buffer = [0; 8];
    assert_eq!(data.read_at(&mut buffer, size).expect("read"), 0);
}

#[test]
fn permissions_are_enforced_for_others() {
    if !can_mount("permissions_are_enforced_for_others") {
        return;
    }
    let image = golden("basic-default");
    // `none` has mode 000. `setpriv` becomes somebody else for one command.
    let read = |mount: &Mount| {
        Command::new("setpriv")
            .args(["--reuid=65534", "--regid=65534", "--clear-groups", "cat"])
            .arg(mount.point().join("none"))
            .output()
    };
    let mount = Mount::background(&image.image, "allow_other");
    let Ok(refused) = read(&mount) else {
        return skip("permissions_are_enforced_for_others", "no setpriv here");
    };
    assert!(!refused.status.success());
    assert!(stderr(&refused).contains("Permission denied"));
    drop(mount);
    let mount = Mount::background(&image.image, "allow_other,no_default_permissions");
    let allowed = read(&mount).expect("setpriv worked before");
    assert!(allowed.status.success(), "{}", stderr(&allowed));
    drop(mount);
    let mount = Mount::background(&image.image, "");
    let refused = read(&mount).expect("setpriv worked before");
    assert!(!refused.status.success());
}

#[test]
fn big_directories_list_completely() {
    if !can_mount("big_directories_list_completely") {
        return;
    }
    const COUNT: u32 = 10_000;
    let dir = TempDir::new().expect("a temporary directory");
    let image = dir.path().join("big.dwarfs");
    fs::write(&image, big_directory(COUNT)).expect("write");
    let mount = Mount::background(&image, "");
    for _ in 0..2 {
        let names: Vec<String> = fs::read_dir(mount.point())
            .expect("list")
            .map(|entry| {
                let name = entry.expect("entry").file_name();
                name.into_string().expect("plain names")
            })
            .collect();
        assert_eq!(names.len(), COUNT as usize);
        assert!(
            names.iter().map(String::as_str).eq((0..COUNT)
                .map(name_of)
                .collect::<Vec<_>>()
                .iter()
                .map(String::as_str))
        );
    }
    for n in [0, 1, 4_999, COUNT - 1] {
        let meta = fs::metadata(mount.point().join(name_of(n))).expect("stat");
        assert_eq!(meta.ino(), u64::from(n) + 2);
    }
    assert_eq!(
        errno(fs::metadata(mount.point().join(name_of(COUNT)))),
        ENOENT
    );
}

#[test]
fn parallel_reads_agree() {
    if !can_mount("parallel_reads_agree") {
        return;
    }
    let image = golden("basic-zstd-small-blocks");
    let wanted = image.manifest();
    // Without cache every read decompresses; without kept pages every open reads again.
    let mount = Mount::background(&image.image, "cachesize=0,no_cache_files,workers=3");
    std::thread::scope(|scope| {
        for _ in 0..6 {
            scope.spawn(|| {
                let seen = Manifest::from_directory(mount.point(), true).expect("readable");
                let fields = Fields {
                    blocks: true,
                    ..Fields::ALL
                };
                wanted.assert_same(&seen, fields, "parallel");
            });
        }
    });
}

#[test]
fn corrupt_block_fails_alone() {
    if !can_mount("corrupt_block_fails_alone") {
        return;
    }
    let image = golden("basic-zstd-small-blocks");
    let mut bytes = fs::read(&image.image).expect("read");
    // The first section is the first block: damage its payload.
    let length = bytes.len();
    bytes[100..110].fill(0x5a);
    assert!(length > 1000);
    let dir = TempDir::new().expect("a temporary directory");
    let path = dir.path().join("damaged.dwarfs");
    fs::write(&path, bytes).expect("write");
    let mut mount = Mount::foreground(&path, &[]);
    let (mut good, mut bad) = (0, 0);
    for (name, entry) in &image.manifest().0 {
        if entry.sha256.is_none() || !(1..1 << 20).contains(&entry.size) {
            continue;
        }
        let name = mount
            .point()
            .join(OsStr::new(std::str::from_utf8(name).unwrap_or("text.txt")));
        match fs::read(&name) {
            Ok(data) => {
                assert_eq!(data.len() as u64, entry.size);
                good += 1;
            }
            Err(error) => {
                assert_eq!(error.raw_os_error(), Some(EIO));
                bad += 1;
            }
        }
    }
    assert!(good > 0 && bad > 0, "{good} good, {bad} bad");
    mount.signal(rustix::process::Signal::TERM);
    let (code, log) = mount.finish();
    assert_eq!(code, Some(0));
    let line = log
        .lines()
        .find(|line| line.starts_with("E "))
        .expect("a log line");
    assert!(line.contains("cannot read inode"), "{line}");
}

#[test]
fn mistakes_have_their_exit_codes() {
    let image = golden("one").image;
    let image = image.to_str().expect("plain path");
    let dir = TempDir::new().expect("a temporary directory");
    let dir = dir.path().to_str().expect("plain path");
    let text = golden_images()[0].image.with_extension("json.gz");
    let text = text.to_str().expect("plain path");
    let nowhere = format!("{dir}/nowhere");
    let cases: [(&[&str], i32, String); 9] = [
        (&["-f"], 1, "no filesystem image specified".into()),
        (&[image], 1, "no mountpoint specified".into()),
        (
            &[image, dir, "x"],
            1,
            "too many non-option arguments".into(),
        ),
        (
            &["/x.dwarfs", dir],
            1,
            "cannot open image: /x.dwarfs: no such file or directory".into(),
        ),
        (&[text, dir], 1, format!("cannot open image: {text}: ")),
        (
            &[image, dir, "-o", "bogus"],
            3,
            "unknown option: -o bogus".into(),
        ),
        (
            &[image, dir, "-o", "cachesize=5q"],
            1,
            "unsupported size suffix: q (one of k, m, g, t)".into(),
        ),
        (
            &[image, &nowhere],
            4,
            format!("cannot access mount point: {nowhere}: no such file or directory"),
        ),
        (
            &[image, image],
            4,
            format!("cannot access mount point: {image}: not a directory"),
        ),
    ];
    for (arguments, code, message) in cases {
        for foreground in [false, true] {
            if !Path::new("/dev/fuse").exists() && code == 4 {
                continue;
            }
            let mut command = dwarfs();
            command.args(arguments);
            if foreground {
                command.args(["-f", "-odebuglevel=warn"]);
            }
            let output = command.output().expect("the program can be started");
            let text = stderr(&output);
            assert_eq!(output.status.code(), Some(code), "{arguments:?}: {text}");
            let first = text.lines().next().unwrap_or_default();
            assert!(
                first.starts_with(&format!("dwarfs: {message}")),
                "{arguments:?}: {text}"
            );
            assert_eq!(text.lines().count(), 1, "{text}");
        }
    }
    let help = run(&[OsStr::new("--help")]);
    assert_eq!(help.status.code(), Some(0));
    assert!(String::from_utf8_lossy(&help.stdout).contains("cachesize=SIZE"));
    assert_eq!(run(&[]).status.code(), Some(1));
    assert_eq!(run(&[OsStr::new("--version")]).status.code(), Some(0));
}

#[test]
fn the_kernel_asks_only_for_what_it_does_not_know() {
    if !can_mount("the_kernel_asks_only_for_what_it_does_not_know") {
        return;
    }
    let image = golden("many-default");
    let manifest = image.manifest();
    let is = |mode: u32, kind: u32| mode & 0o170_000 == kind;
    let directories = manifest.0.values().filter(|e| is(e.mode, 0o040_000));
    let files = manifest.0.values().filter(|e| is(e.mode, 0o100_000));
    let (directories, files) = (directories.count(), files.count());

    let mut mount = Mount::foreground(&image.image, &["-o", "debuglevel=debug,blocksize=0"]);
    // The log has to be read while it is written: a pipe holds little.
    let mut pipe = mount
        .child
        .as_mut()
        .and_then(|child| child.stderr.take())
        .expect("a pipe");
    let log = std::thread::spawn(move || {
        let mut text = String::new();
        pipe.read_to_string(&mut text).map(|_| text)
    });
    for _ in 0..2 {
        let seen = Manifest::from_directory(mount.point(), true).expect("a readable tree");
        manifest.assert_same(&seen, Fields::ALL, "with a log");
    }
    mount.signal(rustix::process::Signal::TERM);
    assert_eq!(mount.finish().0, Some(0));
    let log = log.join().expect("a reader").expect("text");
    let count = |request: &str| log.matches(&format!(" {request}(")).count();
    // One request with the entries of each directory, one that finds the end; attributes come
    // along. Opening is refused once and not tried again. Each file is read once.
    assert_eq!(count("op_lookup"), 0, "{log}");
    assert!(count("op_getattr") <= 2, "{log}");
    assert!(count("op_open") <= 1 && count("op_opendir") <= 1, "{log}");
    assert_eq!(count("op_readdir"), 0);
    assert_eq!(count("op_readdirplus"), 2 * directories);
    assert!(count("op_read") <= files, "{} reads", count("op_read"));
}

#[test]
fn directories_can_be_read_from_anywhere() {
    if !can_mount("directories_can_be_read_from_anywhere") {
        return;
    }
    const COUNT: u32 = 3_000;
    let dir = TempDir::new().expect("a temporary directory");
    let image = dir.path().join("big.dwarfs");
    fs::write(&image, big_directory(COUNT)).expect("write");
    // Not empty: what is in it is hidden while mounted.
    let mut mount = Mount {
        dir: Mount::new_dir(),
        child: None,
    };
    fs::write(mount.point().join("hidden"), "x").expect("write");
    let output = run(&[image.as_os_str(), mount.point().as_os_str()]);
    assert!(output.status.success(), "{}", stderr(&output));

    let open = || {
        use rustix::fs::OFlags;
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        rustix::fs::open(mount.point(), flags, rustix::fs::Mode::empty()).expect("open")
    };
    // Reads with small buffers, each from its own position, in several threads at once.
    let list = |from: u64| {
        let dir = open();
        rustix::fs::seek(&dir, rustix::fs::SeekFrom::Start(from)).expect("seek");
        let mut space = [std::mem::MaybeUninit::uninit(); 512];
        let mut entries = rustix::fs::RawDir::new(&dir, &mut space);
        let mut names = Vec::new();
        while let Some(entry) = entries.next() {
            let entry = entry.expect("an entry");
            let name = entry.file_name().to_str().expect("plain names").to_owned();
            names.push((entry.next_entry_cookie(), name));
        }
        names
    };
    let all = list(0);
    assert_eq!(all.len(), COUNT as usize + 2);
    assert_eq!((all[0].1.as_str(), all[1].1.as_str()), (".", ".."));
    assert_eq!(all[2].1, name_of(0));
    std::thread::scope(|scope| {
        for step in [1usize, 2, 700, 1_500, 2_999, 3_001] {
            let (all, list) = (&all, &list);
            scope.spawn(move || {
                for _ in 0..3 {
                    assert_eq!(list(all[step].0), all[step + 1..], "after entry {step}");
                }
            });
        }
    });
    // Past the end there is nothing, however far.
    for from in [u64::from(COUNT) + 2, 1 << 33, i64::MAX as u64] {
        assert_eq!(list(from), []);
    }

    // Programs that other tests start hold what is open for a moment.
    wait_until("the unmount", || {
        rustix::mount::unmount(mount.point(), rustix::mount::UnmountFlags::empty()).is_ok()
    });
    assert!(mount.point().join("hidden").exists());
    mount.child = None;
}

#[test]
fn other_mounts_are_left_alone() {
    if !can_mount("other_mounts_are_left_alone") {
        return;
    }
    let mut lower = Mount::foreground(&golden("one").image, &["-o", "debuglevel=warn"]);
    let upper = dwarfs()
        .arg(golden("many-default").image)
        .arg(lower.point())
        .output()
        .expect("the program can be started");
    assert!(upper.status.success(), "{}", stderr(&upper));
    lower.signal(rustix::process::Signal::TERM);
    let (code, log) = lower.finish();
    assert_eq!(code, Some(1));
    assert_eq!(
        log,
        format!(
            "dwarfs: cannot unmount: {}: another file system is mounted on top of it\n",
            lower.point().display()
        )
    );
    let seen = fs::read_dir(lower.point()).expect("the upper one is there");
    assert!(seen.count() > 1);
    rustix::mount::unmount(lower.point(), rustix::mount::UnmountFlags::DETACH).expect("unmount");
}
