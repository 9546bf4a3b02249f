//! Mounts that move to newer snapshots of their image.
#![cfg(target_os = "linux")]

use std::collections::BTreeSet;
use std::fs::{self, File};
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};

use crate::driver;
use crate::driver::{DWARFS, Mount, can_mount, dwarfs, errno, stderr, wait_until};
use crate::support::{DWARFSCK, MKDWARFS, must};
use rustix::process::Signal;

/// An image and the tree that it gets snapshots of.
struct Night {
    dir: tempfile::TempDir,
}

impl Night {
    /// With one snapshot, `first`.
    fn new() -> Self {
        let night = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        fs::create_dir_all(night.tree().join("sub/deep")).unwrap();
        night.write("same", "same");
        night.write("changed", "1");
        night.write("gone", "gone");
        night.write("sub/deep/file", "1");
        night.add("first");
        night.check(&["--rename-snapshot", "1", "first"]);
        night
    }

    fn tree(&self) -> PathBuf {
        self.dir.path().join("tree")
    }

    fn image(&self) -> PathBuf {
        self.dir.path().join("image")
    }

    fn write(&self, name: &str, text: &str) {
        fs::write(self.tree().join(name), text).unwrap();
    }

    fn check(&self, arguments: &[&str]) {
        let image = self.image();
        must(DWARFSCK, [&[image.to_str().unwrap()], arguments].concat());
    }

    fn arguments(&self, name: &str) -> Vec<String> {
        let (tree, image) = (self.tree(), self.image());
        let (tree, image) = (tree.to_str().unwrap(), image.to_str().unwrap());
        let fixed = ["-i", tree, "-l3", "--no-progress", "--log-level=error"];
        let more: &[&str] = match self.image().exists() {
            true => &["--append", image, "--snapshot-name", name, "--checksum"],
            false => &["-o", image],
        };
        fixed
            .iter()
            .chain(more)
            .map(|text| (*text).to_owned())
            .collect()
    }

    fn add(&self, name: &str) {
        let arguments = self.arguments(name);
        must(
            MKDWARFS,
            arguments.iter().map(String::as_str).collect::<Vec<_>>(),
        );
    }

    /// Changes everything but `same`, and adds a snapshot.
    fn second(&self) {
        self.write("changed", "2, and longer");
        self.write("sub/deep/file", "2");
        self.write("new", "new");
        fs::remove_file(self.tree().join("gone")).unwrap();
        self.add("second");
    }
}

fn text(path: PathBuf) -> String {
    fs::read_to_string(path).unwrap()
}

fn names(dir: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// A foreground driver whose messages go to a file.
fn mounted(image: &Path, options: &[&str], log: &Path) -> Mount {
    let dir = Mount::new_dir();
    let child: Child = Command::new(DWARFS)
        .arg("-f")
        .args(options)
        .arg(image)
        .arg(dir.path())
        .stdin(Stdio::null())
        .stderr(File::create(log).unwrap())
        .spawn()
        .unwrap();
    let mut mount = Mount::on(dir);
    mount.child = Some(child);
    wait_until("the mount", || driver::table_line(mount.point()).is_some());
    mount
}

/// Looks at everything in the first snapshot, so that the kernel knows it: also what is not there.
fn see_the_first(root: &Path) {
    assert_eq!(
        names(root),
        ["changed", "gone", "same", "sub"].map(str::to_owned).into()
    );
    assert_eq!(text(root.join("same")), "same");
    assert_eq!(text(root.join("changed")), "1");
    assert_eq!(text(root.join("gone")), "gone");
    assert_eq!(text(root.join("sub/deep/file")), "1");
    assert_eq!(errno(fs::metadata(root.join("new"))), libc::ENOENT);
}

fn see_the_second(root: &Path) {
    assert_eq!(text(root.join("changed")), "2, and longer");
    assert_eq!(fs::metadata(root.join("changed")).unwrap().len(), 13);
    assert_eq!(text(root.join("same")), "same");
    assert_eq!(text(root.join("sub/deep/file")), "2");
    assert_eq!(text(root.join("new")), "new");
    assert_eq!(errno(fs::metadata(root.join("gone"))), libc::ENOENT);
    assert_eq!(
        names(root),
        ["changed", "new", "same", "sub"].map(str::to_owned).into()
    );
    let listed: BTreeSet<u64> = fs::read_dir(root)
        .unwrap()
        .map(|entry| std::os::unix::fs::DirEntryExt::ino(&entry.unwrap()))
        .collect();
    assert_eq!(listed.len(), 4);
    for entry in fs::read_dir(root).unwrap() {
        let entry = entry.unwrap();
        let number = std::os::unix::fs::DirEntryExt::ino(&entry);
        assert_eq!(entry.metadata().unwrap().ino(), number);
    }
}

#[test]
fn a_mount_follows_the_image() {
    if !can_mount("a_mount_follows_the_image") {
        return;
    }
    for options in ["follow_newest", "follow_newest,snapshots=.s"] {
        let night = Night::new();
        let log = night.dir.path().join("log");
        let mount = mounted(&night.image(), &["-o", options], &log);
        let root = mount.point();
        see_the_first(root);
        let (changed, gone) = (root.join("changed"), root.join("gone"));
        let number = fs::metadata(&changed).unwrap().ino();
        let (open, removed) = (File::open(&changed).unwrap(), File::open(&gone).unwrap());
        let sub = rustix::fs::open(
            root.join("sub"),
            rustix::fs::OFlags::DIRECTORY,
            rustix::fs::Mode::empty(),
        )
        .unwrap();
        night.second();
        wait_until("the move", || {
            text(log.clone()).contains("moved to snapshot 2 'second'")
        });
        see_the_second(root);
        // What is open is as it was.
        let mut bytes = [0; 20];
        assert_eq!(open.read_at(&mut bytes, 0).unwrap(), 1);
        assert_eq!(bytes[0], b'1');
        assert_eq!(open.metadata().unwrap().len(), 1);
        assert_eq!(open.metadata().unwrap().ino(), number);
        assert_ne!(fs::metadata(&changed).unwrap().ino(), number);
        assert_eq!(removed.read_at(&mut bytes, 0).unwrap(), 4);
        let path = format!(
            "/proc/self/fd/{}/deep/file",
            std::os::fd::AsRawFd::as_raw_fd(&sub)
        );
        assert_eq!(text(path.into()), "1");
        if options.contains(".s") {
            let all = root.join(".s");
            assert_eq!(names(&all), ["first", "second"].map(str::to_owned).into());
            assert_eq!(text(all.join("first/changed")), "1");
            assert_eq!(text(all.join("second/changed")), "2, and longer");
        }
        // And so on, and back.
        for number in 3..7 {
            night.write("changed", &number.to_string());
            night.add(&format!("s{number}"));
            wait_until("another move", || {
                text(root.join("changed")) == number.to_string()
            });
        }
        assert_eq!(open.read_at(&mut bytes, 0).unwrap(), 1);
        night.check(&["--roll-back", "second"]);
        wait_until("the way back", || {
            fs::read_to_string(&changed).is_ok_and(|text| text == "2, and longer")
        });
        see_the_second(root);
        night.write("changed", "other 3");
        night.add("third");
        wait_until("another third", || text(root.join("changed")) == "other 3");
    }
}

#[test]
fn a_signal_moves_the_mount() {
    if !can_mount("a_signal_moves_the_mount") {
        return;
    }
    let night = Night::new();
    let log = night.dir.path().join("log");
    let mount = mounted(&night.image(), &[], &log);
    let root = mount.point();
    see_the_first(root);
    mount.signal(Signal::USR2);
    wait_until("an answer", || {
        text(log.clone()).contains("this is the newest snapshot")
    });
    night.second();
    // Without a signal, it stays.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    see_the_first(root);
    mount.signal(Signal::USR2);
    wait_until("the move", || {
        text(log.clone()).contains("moved to snapshot 2 'second'")
    });
    see_the_second(root);
}

#[test]
fn a_damaged_snapshot_is_not_shown() {
    if !can_mount("a_damaged_snapshot_is_not_shown") {
        return;
    }
    let night = Night::new();
    let log = night.dir.path().join("log");
    let first = fs::read(night.image()).unwrap();
    night.second();
    let second = fs::read(night.image()).unwrap();
    fs::write(night.image(), &first).unwrap();
    let mount = mounted(&night.image(), &["-o", "follow_newest"], &log);
    let root = mount.point();
    see_the_first(root);
    // The end is that of the second snapshot. Its metadata is damaged.
    let mut damaged = second.clone();
    let new = &second[first.len()..];
    let is_metadata =
        |at: &usize| new[*at..].starts_with(b"DWARFS\x02\x05") && new[*at + 52..*at + 54] == [8, 0];
    let at = (0..new.len() - 64).find(is_metadata).unwrap();
    damaged[first.len() + at + 70] ^= 0x10;
    let file = File::options().write(true).open(night.image()).unwrap();
    file.write_all_at(&damaged[first.len()..], first.len() as u64)
        .unwrap();
    let said = || text(log.clone());
    wait_until("a message", || {
        said().contains("cannot move to the newest snapshot")
    });
    std::thread::sleep(std::time::Duration::from_millis(2500));
    assert_eq!(said().matches("cannot move").count(), 1, "{}", said());
    see_the_first(root);
    // Repaired, and asked for.
    file.write_all_at(&second[first.len()..], first.len() as u64)
        .unwrap();
    mount.signal(Signal::USR2);
    wait_until("the move", || {
        said().contains("moved to snapshot 2 'second'")
    });
    see_the_second(root);
}

#[test]
fn files_are_read_while_the_image_grows() {
    if !can_mount("files_are_read_while_the_image_grows") {
        return;
    }
    let night = Night::new();
    // A file of many blocks, which is all of one snapshot.
    let filled = |number: u8| vec![number; 300_000];
    fs::write(night.tree().join("large"), filled(1)).unwrap();
    night.add("2");
    let log = night.dir.path().join("log");
    let mount = mounted(&night.image(), &["-o", "follow_newest"], &log);
    let path = mount.point().join("large");
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                let mut last = 0;
                while !over.load(Ordering::Relaxed) {
                    let bytes = fs::read(&path).unwrap();
                    assert_eq!(bytes.len(), 300_000);
                    assert!(bytes.iter().all(|&byte| byte == bytes[0]));
                    assert!(bytes[0] >= last, "{} after {last}", bytes[0]);
                    last = bytes[0];
                }
            });
        }
        for number in 2..8 {
            fs::write(night.tree().join("large"), filled(number)).unwrap();
            if number == 5 {
                // One that is killed on the way.
                let arguments = night.arguments("killed");
                let mut child = Command::new(MKDWARFS).args(&arguments).spawn().unwrap();
                std::thread::sleep(std::time::Duration::from_millis(30));
                let _ = child.kill();
                child.wait().unwrap();
            }
            night.add(&format!("night {number}"));
            wait_until("the move", || fs::read(&path).unwrap()[0] == number);
        }
        over.store(true, Ordering::Relaxed);
    });
}

#[test]
fn bytes_behind_an_image_move_nothing() {
    if !can_mount("bytes_behind_an_image_move_nothing") {
        return;
    }
    let night = Night::new();
    let log = night.dir.path().join("log");
    let file = File::options().append(true).open(night.image()).unwrap();
    std::io::Write::write_all(&mut &file, b"no pointer").unwrap();
    let mount = mounted(&night.image(), &["-o", "follow_newest"], &log);
    let number = fs::metadata(mount.point().join("same")).unwrap().ino();
    see_the_first(mount.point());
    for _ in 0..2 {
        std::io::Write::write_all(&mut &file, b"more bytes").unwrap();
        std::thread::sleep(std::time::Duration::from_millis(1300));
    }
    assert!(!text(log.clone()).contains("move"), "{}", text(log));
    let now = fs::metadata(mount.point().join("same")).unwrap().ino();
    assert_eq!(now, number);
}

#[test]
fn the_directory_of_snapshots_follows_the_table_and_keeps_its_name() {
    if !can_mount("the_directory_of_snapshots_follows_the_table_and_keeps_its_name") {
        return;
    }
    let night = Night::new();
    fs::create_dir(night.tree().join(".s")).unwrap();
    night.write(".s/own", "own");
    night.second();
    let log = night.dir.path().join("log");
    let options = ["-o", "follow_newest,snapshots=.s"];
    let mount = mounted(&night.image(), &options, &log);
    let all = mount.point().join(".s");
    let expect = |wanted: &[&str]| {
        let wanted: BTreeSet<String> = wanted.iter().map(|&name| name.to_owned()).collect();
        wait_until("the snapshots", || names(&all) == wanted);
        assert!(!names(mount.point()).contains(".s"));
        assert_eq!(names(&all), wanted);
    };
    expect(&["first", "second"]);
    assert_eq!(text(all.join("first/changed")), "1");
    night.write("changed", "3");
    night.add("third");
    expect(&["first", "second", "third"]);
    assert_eq!(text(mount.point().join("changed")), "3");
    // Changes of the table alone.
    night.check(&["--rename-snapshot", "2", "other"]);
    expect(&["first", "other", "third"]);
    assert_eq!(text(all.join("other/changed")), "2, and longer");
    night.check(&["--delete-snapshot", "1"]);
    expect(&["other", "third"]);
    assert_eq!(errno(fs::metadata(all.join("first"))), libc::ENOENT);
}

#[test]
fn blocks_of_another_generation_are_never_shown() {
    if !can_mount("blocks_of_another_generation_are_never_shown") {
        return;
    }
    let night = Night::new();
    let filled = |seed| redwarfs_testkit::tree::Random::new(seed).bytes(300_000);
    fs::write(night.tree().join("large"), filled(1)).unwrap();
    night.add("second");
    let log = night.dir.path().join("log");
    let mount = mounted(&night.image(), &[], &log);
    let path = mount.point().join("large");
    assert_eq!(fs::metadata(&path).unwrap().len(), 300_000);
    night.check(&["--roll-back", "first"]);
    // Its block is where that of the other second snapshot was.
    fs::write(night.tree().join("large"), filled(2)).unwrap();
    night.add("other second");
    assert_eq!(errno(fs::read(&path)), libc::EIO);
    let said = "is not in the file any more";
    assert!(text(log.clone()).contains(said), "{}", text(log));
    drop(mount);
    let mount = mounted(&night.image(), &[], &log);
    assert!(fs::read(mount.point().join("large")).unwrap() == filled(2));
}

#[test]
fn what_cannot_be_followed_is_refused() {
    for other in ["snapshot=1", "imagesize=100", "case_insensitive"] {
        let options = format!("follow_newest,{other}");
        let output = dwarfs().args(["image", "point", "-o", &options]).output();
        let said = stderr(&output.unwrap());
        assert!(said.contains("follow_newest cannot be used with"), "{said}");
    }
}
