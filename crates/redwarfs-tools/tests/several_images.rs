//! Several images side by side in one mount, and their control socket.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Output;
use std::thread::sleep;
use std::time::Duration;

use crate::driver;
use crate::driver::{
    DWARFS, Mount, can_mount, driver_of, dwarfs, errno, stat_field, stderr, wait_until, xattr,
};
use crate::support::{MKDWARFS, must};
use rustix::process::Signal;

/// Images in a directory.
pub(crate) struct Images(tempfile::TempDir);

impl Images {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn text(&self, name: &str) -> String {
        self.path(name).to_str().unwrap().to_owned()
    }

    /// An image whose file `who` has its text, beside a directory with a larger file.
    pub(crate) fn make(&self, name: &str, text: &str) -> PathBuf {
        self.make_with(name, text, &["-l3"])
    }

    fn make_with(&self, name: &str, text: &str, options: &[&str]) -> PathBuf {
        let tree = tempfile::tempdir().unwrap();
        fs::write(tree.path().join("who"), text).unwrap();
        fs::create_dir(tree.path().join("sub")).unwrap();
        fs::write(tree.path().join("sub/large"), text.repeat(20_000)).unwrap();
        let (tree, image) = (tree.path().to_str().unwrap(), self.text(name));
        let fixed = [
            "-i",
            tree,
            "-o",
            &image,
            "-f",
            "--no-progress",
            "--log-level=error",
        ];
        must(MKDWARFS, [&fixed[..], options].concat());
        self.path(name)
    }
}

/// Mounts side by side, in the background.
pub(crate) fn mount(options: &str, images: &[&str]) -> Mount {
    let (mount, output) = try_mount(options, images);
    assert!(output.status.success(), "{}", stderr(&output));
    mount
}

pub(crate) fn try_mount(options: &str, images: &[&str]) -> (Mount, Output) {
    let mount = Mount::on(Mount::new_dir());
    let dir = format!("dir={},{options}", mount.point().display());
    let output = dwarfs().arg("-o").arg(dir).args(images).output().unwrap();
    (mount, output)
}

pub(crate) fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    let names = entries.map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect::<BTreeSet<_>>().into_iter().collect()
}

pub(crate) fn ctl(target: &Path, command: &[&str]) -> Result<String, String> {
    let output = dwarfs()
        .arg("--ctl")
        .arg(target)
        .args(command)
        .output()
        .unwrap();
    match output.status.success() {
        true => Ok(String::from_utf8(output.stdout).unwrap()),
        false => Err(stderr(&output)),
    }
}

/// The list of a mount, by name.
pub(crate) fn list(target: &Path) -> Vec<serde_json::Value> {
    let text = ctl(target, &["list", "--json"]).unwrap();
    let lines = text.lines();
    lines
        .map(|line| serde_json::from_str(line).unwrap())
        .collect()
}

pub(crate) fn status(target: &Path, name: &str) -> String {
    let list = list(target);
    let found = list.iter().find(|one| one["name"] == name).unwrap();
    found["status"].as_str().unwrap().to_owned()
}

#[test]
fn images_are_directories_of_one_mount() {
    if !can_mount("images_are_directories_of_one_mount") {
        return;
    }
    let images = Images::new();
    let first = images.make("a.dwarfs", "first");
    let second = images.make("b.dwarfs", "second");
    fs::create_dir(images.path("sub")).unwrap();
    let third = images.make("sub/a.dwarfs", "third");
    let all = [
        first.to_str().unwrap(),
        &format!("own name={}", second.display()),
        third.to_str().unwrap(),
    ];
    let mount = mount("list_xattrs", &all);
    let root = mount.point();
    assert_eq!(names(root), ["a", "a-2", "own name"]);
    // A listing opens nothing.
    assert!(list(root).iter().all(|one| one["status"] == "closed"));
    let mut numbers = BTreeSet::new();
    for (slot, name, text) in [
        (1, "a", "first"),
        (2, "own name", "second"),
        (3, "a-2", "third"),
    ] {
        let dir = root.join(name);
        assert_eq!(fs::read_to_string(dir.join("who")).unwrap(), text);
        assert_eq!(
            fs::read_to_string(dir.join("sub/large")).unwrap(),
            text.repeat(20_000)
        );
        assert_eq!(names(&dir), ["sub", "who"]);
        for path in [
            dir.clone(),
            dir.join("who"),
            dir.join("sub"),
            dir.join("sub/large"),
        ] {
            let found = fs::metadata(&path).unwrap();
            // Programs for 32-bit systems take no larger ones.
            assert_eq!(found.ino() >> 22, slot);
            assert_eq!(found.dev(), fs::metadata(root).unwrap().dev());
            assert!(numbers.insert(found.ino()));
        }
        assert_eq!(fs::metadata(&dir).unwrap().ino(), slot << 22 | 1);
        let listed = fs::read_dir(root).unwrap().map(Result::unwrap);
        let mut listed = listed.filter(|entry| entry.file_name() == name);
        use std::os::unix::fs::DirEntryExt;
        assert_eq!(listed.next().unwrap().ino(), slot << 22 | 1);
        let up = fs::metadata(dir.join("..")).unwrap();
        assert_eq!(up.ino(), 1);
        assert_eq!(xattr(&dir, "user.dwarfs.slot").unwrap(), slot.to_string());
        let source = xattr(&dir, "user.dwarfs.source").unwrap();
        assert!(source.ends_with(".dwarfs"), "{source}");
        assert!(xattr(&dir.join("sub"), "user.dwarfs.slot").is_err());
        assert_eq!(errno(File::create(dir.join("new"))), libc::EROFS);
    }
    assert_eq!(errno(fs::create_dir(root.join("new"))), libc::EROFS);
    assert_eq!(errno(fs::metadata(root.join("other"))), libc::ENOENT);
    let found = fs::metadata(root).unwrap();
    assert_eq!((found.ino(), found.mode()), (1, 0o040_555));
    // The sum of all.
    let whole = rustix::fs::statvfs(root).unwrap();
    let bytes: u64 = ["first", "second", "third"]
        .map(|text| text.len() as u64 * 20_001)
        .iter()
        .sum();
    assert_eq!((whole.f_blocks, whole.f_files), (bytes, 12));
    let listed = list(root);
    assert_eq!(listed.len(), 3);
    assert!(
        listed
            .iter()
            .all(|one| one["status"] == "open" && one["inodes"] == 4)
    );
    // What `cp -a` takes along.
    let mut buffer = [0; 4096];
    let length = rustix::fs::listxattr(root.join("a"), &mut buffer[..]).unwrap();
    let text = String::from_utf8_lossy(&buffer[..length]).into_owned();
    assert!(
        text.contains("user.dwarfs.slot\0user.dwarfs.source\0"),
        "{text}"
    );
}

#[test]
fn a_broken_image_is_broken_alone() {
    if !can_mount("a_broken_image_is_broken_alone") {
        return;
    }
    let images = Images::new();
    let good = images.text("good.dwarfs");
    images.make("good.dwarfs", "good");
    fs::write(images.path("broken.dwarfs"), "no image").unwrap();
    let (broken, absent) = (images.text("broken.dwarfs"), images.text("absent.dwarfs"));
    let (mount, output) = try_mount("", &[&broken, &good, &absent]);
    assert!(output.status.success());
    assert!(
        stderr(&output).contains("absent.dwarfs: no such file"),
        "{}",
        stderr(&output)
    );
    let root = mount.point();
    assert_eq!(names(root), ["absent", "broken", "good"]);
    assert_eq!(fs::read_to_string(root.join("good/who")).unwrap(), "good");
    for name in ["broken", "absent"] {
        let dir = root.join(name);
        assert!(names(&dir).is_empty());
        assert_eq!(errno(File::open(dir.join("who"))), libc::ENOENT);
        let why = xattr(&dir, "user.dwarfs.error").unwrap();
        assert!(why.contains(&format!("{name}.dwarfs: ")), "{why}");
        assert_eq!(status(root, name), "failed");
        let up = fs::metadata(dir.join("..")).unwrap();
        assert_eq!(up.ino(), 1);
    }
    let text = ctl(root, &["list"]).unwrap();
    assert_eq!(text.lines().count(), 3);
    assert!(
        text.contains("failed") && text.contains("no such file"),
        "{text}"
    );
    // They appear when they are there.
    images.make("broken.dwarfs", "repaired");
    wait_until("the repaired image", || {
        fs::read_to_string(root.join("broken/who")).is_ok_and(|text| text == "repaired")
    });
    assert!(xattr(&root.join("broken"), "user.dwarfs.error").is_err());
    assert_eq!(names(&root.join("broken")), ["sub", "who"]);
    assert_eq!(fs::read_to_string(root.join("good/who")).unwrap(), "good");
}

#[test]
fn idle_images_are_closed_and_others_in_their_place_are_found() {
    if !can_mount("idle_images_are_closed_and_others_in_their_place_are_found") {
        return;
    }
    let images = Images::new();
    let image = images.make("a.dwarfs", "before");
    let mount = mount(
        "close_after=200ms,no_cache_files",
        &[image.to_str().unwrap()],
    );
    let root = mount.point();
    let who = root.join("a/who");
    let closed = || wait_until("the image is closed", || status(root, "a") == "closed");
    assert_eq!(fs::read_to_string(&who).unwrap(), "before");
    let before = fs::metadata(&who).unwrap();
    closed();
    // Names, numbers and open files stay.
    let open = File::open(&who).unwrap();
    assert_eq!(fs::metadata(&who).unwrap().ino(), before.ino());
    closed();
    let mut bytes = [0; 6];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert_eq!(&bytes, b"before");
    let large = File::open(root.join("a/sub/large")).unwrap();
    closed();
    fs::remove_file(&image).unwrap();
    images.make("a.dwarfs", "after!");
    assert_eq!(fs::read_to_string(&who).unwrap(), "after!");
    let after = fs::metadata(&who).unwrap();
    assert_eq!((before.ino() >> 22, after.ino() >> 22), (1, 2));
    assert_eq!(names(root), ["a"]);
    // What was open is of the other image.
    assert_eq!(errno(large.read_exact_at(&mut bytes, 0)), libc::ESTALE);
}

#[test]
fn an_image_of_equal_metadata_in_the_place_of_a_closed_one_is_found() {
    if !can_mount("an_image_of_equal_metadata_in_the_place_of_a_closed_one_is_found") {
        return;
    }
    let images = Images::new();
    let options = [
        "-Cnull",
        "--no-history",
        "--set-time=0",
        "--no-create-timestamp",
    ];
    let image = images.make_with("a.dwarfs", "before", &options);
    let size = fs::metadata(&image).unwrap().len();
    let mount = mount("close_after=100ms", &[image.to_str().unwrap()]);
    let root = mount.point();
    let who = root.join("a/who");
    assert_eq!(fs::read_to_string(&who).unwrap(), "before");
    assert_eq!(names(&root.join("a")), ["sub", "who"]);
    wait_until("the image is closed", || status(root, "a") == "closed");
    images.make_with("new", "after!", &options);
    assert_eq!(fs::metadata(images.path("new")).unwrap().len(), size);
    fs::rename(images.path("new"), &image).unwrap();
    // Also for those who only list it.
    wait_until("the listing of the new image", || {
        fs::read_dir(root.join("a")).is_ok_and(|mut dir| dir.next().is_some_and(|one| one.is_ok()))
            && fs::metadata(root.join("a")).unwrap().ino() >> 22 == 2
    });
    assert_eq!(names(&root.join("a")), ["sub", "who"]);
    assert_eq!(fs::read_to_string(&who).unwrap(), "after!");
}

/// A process that is stopped until this is dropped.
struct Stopped(u32);

impl Stopped {
    fn new(pid: u32) -> Self {
        driver::kill(pid, Signal::STOP);
        // A thread of it can answer a request until it sees the signal itself.
        wait_until("all threads of the driver stand", || {
            fs::read_dir(format!("/proc/{pid}/task"))
                .unwrap()
                .all(|task| {
                    let stat = fs::read_to_string(task.unwrap().path().join("stat"));
                    // A thread that ended meanwhile answers nothing, either. The name of a program may have brackets.
                    stat.map_or(true, |stat| {
                        stat.rsplit(") ").next().unwrap().starts_with('T')
                    })
                })
        });
        Self(pid)
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        driver::kill(self.0, Signal::CONT);
    }
}

/// A mount with images whose driver can be stopped: so they are on a slow medium.
fn slow_medium(names: &[&str]) -> (Images, Mount) {
    let images = Images::new();
    for name in names {
        images.make(&format!("{name}.dwarfs"), name);
    }
    let outer = Images::new();
    let (tree, image) = (images.0.path().to_str().unwrap(), outer.text("outer"));
    must(
        MKDWARFS,
        [
            "-i",
            tree,
            "-o",
            &image,
            "-l0",
            "--no-progress",
            "--log-level=error",
        ],
    );
    let mount = Mount::background(Path::new(&image), "");
    (outer, mount)
}

#[test]
fn a_slow_image_stops_no_other() {
    if !can_mount("a_slow_image_stops_no_other") {
        return;
    }
    let (_outer, below) = slow_medium(&["slow"]);
    let images = Images::new();
    let good = images.make("good.dwarfs", "good");
    images.make("late.dwarfs", "late");
    let slow = below.point().join("slow.dwarfs");
    let (slow, good) = (slow.to_str().unwrap(), good.to_str().unwrap());
    let socket = images.path("socket");
    // The first one is opened when the driver mounts.
    let mount = mount(&format!("ctl={}", socket.display()), &[good, slow]);
    let root = mount.point().to_owned();
    // If the first one took long to open, the driver has looked at the slow one, too.
    let file = fs::File::open(slow).unwrap();
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
    drop(file);
    let stopped = Stopped::new(driver_of(below.point()));
    let (send, received) = std::sync::mpsc::channel();
    let path = root.join("slow/who");
    let reader = std::thread::spawn(move || fs::read_to_string(path).unwrap());
    wait_until("somebody waits for the slow image", || {
        status(&socket, "slow") == "open"
    });
    // One who connects and says nothing stops nobody.
    let _silent = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    std::thread::spawn({
        let (root, socket, late) = (root.clone(), socket.clone(), images.text("late.dwarfs"));
        move || {
            ctl(&socket, &["add", &late]).unwrap();
            assert_eq!(names(&root), ["good", "late", "slow"]);
            for name in ["good", "late"] {
                let who = root.join(name).join("who");
                assert_eq!(fs::read_to_string(who).unwrap(), name);
            }
            ctl(&root, &["remove", "good"]).unwrap();
            assert_eq!(names(&root), ["late", "slow"]);
            assert_eq!(errno(fs::metadata(root.join("good"))), libc::ENOENT);
            send.send(()).unwrap();
        }
    });
    received.recv_timeout(driver::PATIENCE).unwrap();
    assert!(!reader.is_finished());
    drop(stopped);
    assert_eq!(reader.join().unwrap(), "slow");
}

#[test]
fn the_driver_ends_while_an_image_is_being_opened() {
    if !can_mount("the_driver_ends_while_an_image_is_being_opened") {
        return;
    }
    let (outer, below) = slow_medium(&["slow"]);
    let slow = below.point().join("slow.dwarfs");
    let good = outer.make("good.dwarfs", "good");
    let socket = outer.path("socket");
    // The first one is opened when the driver mounts.
    let mount = mount(
        &format!("ctl={}", socket.display()),
        &[good.to_str().unwrap(), slow.to_str().unwrap()],
    );
    let pid = driver_of(mount.point());
    let _stopped = Stopped::new(driver_of(below.point()));
    let mut reader = std::process::Command::new("cat")
        .arg(mount.point().join("slow/who"))
        .spawn()
        .unwrap();
    wait_until("somebody waits for the slow image", || {
        status(&socket, "slow") == "open"
    });
    reader.kill().unwrap();
    reader.wait().unwrap();
    driver::unmount(mount.point());
    wait_until("the end of the driver", || !driver::alive(pid));
}

#[test]
fn few_descriptors_are_enough_for_many_images() {
    if !can_mount("few_descriptors_are_enough_for_many_images") {
        return;
    }
    let images = Images::new();
    let first = images.make("0.dwarfs", "text");
    for number in 1..400 {
        fs::copy(&first, images.path(&format!("{number}.dwarfs"))).unwrap();
    }
    let mount = Mount::on(Mount::new_dir());
    let output = std::process::Command::new("prlimit")
        .args(["--nofile=32:32", DWARFS, "-oopen_images=1000,close_after=0"])
        .arg(images.0.path())
        .arg(mount.point())
        .output();
    let output = output.expect("prlimit can be started");
    assert!(output.status.success(), "{}", stderr(&output));
    for number in 0..400 {
        let who = mount.point().join(format!("{number}/who"));
        assert_eq!(fs::read_to_string(who).unwrap(), "text");
    }
}

#[test]
fn images_come_and_go_while_they_are_mounted() {
    if !can_mount("images_come_and_go_while_they_are_mounted") {
        return;
    }
    let images = Images::new();
    for name in ["a", "b", "c"] {
        images.make(&format!("{name}.dwarfs"), name);
    }
    let socket = images.path("socket");
    let options = format!("ctl={}", socket.display());
    let mount = mount(&options, &[&images.text("a.dwarfs")]);
    let root = mount.point();
    assert_eq!(
        fs::metadata(&socket).unwrap().permissions().mode() & 0o777,
        0o600
    );
    assert_eq!(
        xattr(root, "user.dwarfs.driver.ctl").unwrap(),
        socket.to_str().unwrap()
    );
    // What the kernel knows is not there appears.
    assert_eq!(errno(fs::metadata(root.join("b"))), libc::ENOENT);
    assert_eq!(names(root), ["a"]);
    // A relative path is one of the client.
    let added = dwarfs()
        .current_dir(images.0.path())
        .arg("--ctl")
        .arg(&socket)
        .args(["add", "b.dwarfs", "new=c.dwarfs"])
        .output()
        .unwrap();
    assert!(added.status.success(), "{}", stderr(&added));
    assert_eq!(names(root), ["a", "b", "new"]);
    assert_eq!(fs::read_to_string(root.join("b/who")).unwrap(), "b");
    assert_eq!(fs::read_to_string(root.join("new/who")).unwrap(), "c");

    let open = File::open(root.join("b/sub/large")).unwrap();
    ctl(root, &["remove", "b"]).unwrap();
    assert_eq!(names(root), ["a", "new"]);
    assert_eq!(errno(fs::metadata(root.join("b/who"))), libc::ENOENT);
    let mut bytes = [0; 20_000];
    open.read_exact_at(&mut bytes, 0).unwrap();
    assert!(bytes.iter().all(|&byte| byte == b'b'));
    // Who does not use it loses it.
    let files = || {
        fs::read_dir(format!("/proc/{}/fd", driver_of(root)))
            .unwrap()
            .count()
    };
    let before = files();
    wait_until("the removed image is closed", || files() < before);
    // The name is free, and the numbers are new.
    let b = format!("b={}", images.text("c.dwarfs"));
    ctl(&socket, &["add", &b]).unwrap();
    let found = fs::metadata(root.join("b/who")).unwrap();
    assert_eq!(found.ino() >> 22, 4);

    for (command, cause) in [
        (&["add", &b][..], "there is an image 'b' already"),
        (&["remove", "b2"], "there is no image 'b2'"),
        (
            &["add", "x=/nowhere"],
            "cannot add image: /nowhere: no such file",
        ),
        (&["add", "x=/tmp"], "/tmp: is a directory"),
        (&["add", "x=/dev/null"], "is neither a regular file"),
        (&["grow"], "no such command: grow"),
    ] {
        let error = ctl(root, command).unwrap_err();
        assert!(error.contains(cause), "{error}");
    }
    let error = ctl(images.0.path(), &["list"]).unwrap_err();
    assert!(error.contains("no control socket"), "{error}");
    // A request that is none costs nothing.
    use std::io::{Read, Write};
    let mut stream = std::os::unix::net::UnixStream::connect(&socket).unwrap();
    stream.write_all(&[b'x'; 100]).unwrap();
    stream.shutdown(std::net::Shutdown::Write).unwrap();
    let mut reply = Vec::new();
    stream.read_to_end(&mut reply).unwrap();
    assert_eq!(reply.first(), Some(&b'-'));
    assert_eq!(list(root).len(), 3);
    driver::kill(driver_of(root), Signal::TERM);
    wait_until("the socket is gone", || !socket.exists());
}

#[test]
fn a_pattern_in_the_place_of_the_image_means_several() {
    if !can_mount("a_pattern_in_the_place_of_the_image_means_several") {
        return;
    }
    let images = Images::new();
    for name in ["a1", "a2", "b1"] {
        images.make(&format!("{name}.dwarfs"), name);
    }
    let mount = Mount::background(&images.path("a*.dwarfs"), "cachesize=1m");
    assert_eq!(names(mount.point()), ["a1", "a2"]);
}

#[test]
fn a_directory_of_120_images_is_one_process() {
    if !can_mount("a_directory_of_120_images_is_one_process") {
        return;
    }
    const COUNT: usize = 120;
    let images = Images::new();
    let first = images.make("0.dwarfs", "the text of a small image");
    for number in 1..COUNT {
        fs::copy(&first, images.path(&format!("{number}.dwarfs"))).unwrap();
    }
    fs::write(images.path("other"), "not meant").unwrap();
    // A directory in the place of the image means all images in it.
    let mount = Mount::background(images.0.path(), "open_images=20,cachesize=1m");
    let root = mount.point();
    let pid = driver_of(root);
    let memory = || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let line = status
            .lines()
            .find(|line| line.starts_with("RssAnon:"))
            .unwrap();
        line.split_whitespace()
            .nth(1)
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    let (before, threads) = (memory(), stat_field(pid, 17).unwrap());
    assert_eq!(names(root).len(), COUNT);
    for number in 0..COUNT {
        let dir = root.join(number.to_string());
        assert_eq!(
            fs::read_to_string(dir.join("who")).unwrap(),
            "the text of a small image"
        );
        let large = fs::read(dir.join("sub/large")).unwrap();
        assert_eq!(large.len(), 25 * 20_000);
    }
    let open = list(root)
        .iter()
        .filter(|one| one["status"] == "open")
        .count();
    assert_eq!(open, 20);
    let files = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count();
    assert!(files < 20 + 30, "{files} open files");
    // The threads of the block cache start late, but there are not two for each image.
    let (after, now) = (memory(), stat_field(pid, 17).unwrap());
    let [threads, now] = [threads, now].map(|text| text.parse::<u64>().unwrap());
    assert!(now <= threads + 6, "{threads} threads, then {now}");
    assert!(after < before + 32_768, "{before} KiB, then {after} KiB");
}

#[test]
fn patterns_and_mistakes() {
    if !can_mount("patterns_and_mistakes") {
        return;
    }
    let images = Images::new();
    for name in ["a1", "a2", "b"] {
        images.make(&format!("{name}.dwarfs"), name);
    }
    let mount = mount(
        "cachesize=2m,timeout=300",
        &[&images.text("a*.dwarfs"), &images.text("b.dwarfs")],
    );
    assert_eq!(names(mount.point()), ["a1", "a2", "b"]);
    assert_eq!(
        fs::read_to_string(mount.point().join("a2/who")).unwrap(),
        "a2"
    );
    sleep(Duration::from_millis(10));
    let a = images.text("a1.dwarfs");
    for (options, images, cause) in [
        (
            "snapshots=x",
            &[&*a][..],
            "snapshots cannot be used with several images",
        ),
        (
            "imagesize=10",
            &[&a],
            "imagesize cannot be used with several images",
        ),
        (
            "follow_newest",
            &[&a],
            "follow_newest cannot be used with several images",
        ),
        ("", &[&images.text("z*")], "no image found"),
        ("", &["x="], "no image behind the name"),
        (
            "",
            &[&format!("..={a}")],
            "no directory can have the name '..'",
        ),
        ("", &["https://host/*.dwarfs"], "there are no patterns"),
        (
            "ctl=/nowhere/s",
            &[&a],
            "cannot make the control socket: /nowhere/s",
        ),
    ] {
        let (_mount, output) = try_mount(options, images);
        assert!(!output.status.success());
        assert!(stderr(&output).contains(cause), "{}", stderr(&output));
    }
    let none = std::process::Command::new(DWARFS)
        .arg(OsStr::new("-odir=/x"))
        .output()
        .unwrap();
    assert!(stderr(&none).contains("no filesystem image specified"));
}
