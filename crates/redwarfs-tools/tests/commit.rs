//! `mkdwarfs --commit`: changes of a writable layer become a snapshot.
#![cfg(target_os = "linux")]

#[allow(dead_code, reason = "the tests of the driver use more of it")]
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use crate::driver;
use crate::driver::{Mount, can_mount, kill, run, stderr, temp};
use crate::writable_support;
use crate::writable_support::{Picture, Random, Step, assert_same, picture};
use redwarfs_testkit::skip;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

const MKDWARFS: &str = env!("CARGO_BIN_EXE_mkdwarfs");
/// Number of random programs.
const CASES: &str = "REDWARFS_COMMIT_CASES";
const IN_THE_GATE: u64 = 8;
/// The steps of each.
const STEPS: usize = 60;

fn mkdwarfs(arguments: &[&str]) -> Output {
    let mut command = Command::new(MKDWARFS);
    command.args(["--log-level=warn", "--no-progress", "--time-resolution=1ns"]);
    command.args(arguments).output().unwrap()
}

fn must(arguments: &[&str]) {
    let output = mkdwarfs(arguments);
    assert!(output.status.success(), "{}", stderr(&output));
}

fn private(path: &Path) {
    fs::set_permissions(path, PermissionsExt::from_mode(0o700)).unwrap();
}

fn set_mark(path: &Path, mark: &str, value: &str) {
    let name = format!("trusted.overlay.{mark}");
    let flags = rustix::fs::XattrFlags::empty();
    rustix::fs::setxattr(path, name, value.as_bytes(), flags).unwrap();
}

fn text(path: &Path) -> &str {
    path.to_str().unwrap()
}

/// A place with an image of a tree.
struct TestDir {
    dir: tempfile::TempDir,
    image: PathBuf,
    layer: PathBuf,
}

impl TestDir {
    fn new() -> Self {
        let dir = temp();
        let tree = dir.path().join("tree");
        let write = |name: &str, size: usize| {
            let mut random = Random::new(size as u64);
            let data: Vec<u8> = (0..size).map(|_| random.below(256) as u8).collect();
            fs::write(tree.join(name), data).unwrap();
        };
        for name in ["dir/sub", "dir/dir", "sub/sub/dir", "deep/a/b/c"] {
            fs::create_dir_all(tree.join(name)).unwrap();
        }
        write("a", 50_000);
        write("b", 5);
        write("dir/a", 60_000);
        write("dir/b", 0);
        write("dir/sub/a", 9);
        write("sub/b", 5000);
        write("sub/sub/a", 333);
        write("deep/a/b/c/file", 777);
        fs::write(tree.join("dir/c"), "#!/bin/sh\n").unwrap();
        fs::set_permissions(tree.join("dir/c"), PermissionsExt::from_mode(0o4755)).unwrap();
        symlink("dir/a", tree.join("c")).unwrap();
        symlink("nowhere", tree.join("sub/a")).unwrap();
        rustix::fs::setxattr(
            tree.join("b"),
            "user.x1",
            b"one",
            rustix::fs::XattrFlags::empty(),
        )
        .unwrap();
        let image = dir.path().join("image.dwarfs");
        must(&[
            "-l1",
            "-i",
            text(&tree),
            "-o",
            text(&image),
            "--with-specials",
        ]);
        let layer = dir.path().join("layer");
        Self { dir, image, layer }
    }

    /// Mounts with the layer, and shows what a program does, and the tree afterwards.
    fn change(&self, change: impl FnOnce(&Path)) -> Picture {
        let mount = Mount::background(&self.image, &format!("rw={}", text(&self.layer)));
        change(mount.point());
        let seen = picture(mount.point());
        driver::unmount(mount.point());
        seen
    }

    /// What the image shows.
    fn shown(&self) -> Picture {
        let mount = Mount::background(&self.image, "");
        let seen = picture(mount.point());
        driver::unmount(mount.point());
        seen
    }

    fn commit(&self, more: &[&str]) -> Output {
        let arguments = [
            "--append",
            text(&self.image),
            "--commit",
            text(&self.layer),
            "-l1",
        ];
        mkdwarfs(&[&arguments[..], more].concat())
    }

    /// As [`commit`](Self::commit), without some capabilities.
    fn commit_without(&self, capabilities: &str) -> Output {
        let mut command = Command::new("setpriv");
        command.arg(format!("--bounding-set={capabilities}"));
        command.args([MKDWARFS, "--log-level=warn", "--no-progress", "-l1"]);
        command.arg("--time-resolution=1ns");
        command.arg("--append").arg(&self.image);
        command.arg("--commit").arg(&self.layer).output().unwrap()
    }

    fn upper(&self, name: &str) -> PathBuf {
        self.layer.join("upper").join(name)
    }

    fn record(&self) -> PathBuf {
        self.layer.join("image")
    }

    fn must_commit(&self, more: &[&str]) {
        let output = self.commit(more);
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
    }

    /// Expects that a commit is refused, and that the image stays as it is.
    fn refused(&self, more: &[&str], cause: &str) {
        let before = fs::read(&self.image).unwrap();
        let output = self.commit(more);
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        assert!(stderr(&output).contains(cause), "{}", stderr(&output));
        assert!(fs::read(&self.image).unwrap() == before);
    }
}

#[test]
fn a_snapshot_is_what_the_mount_showed() {
    if !can_mount("a_snapshot_is_what_the_mount_showed") {
        return;
    }
    let cases = std::env::var(CASES).ok();
    let cases = cases.map_or(IN_THE_GATE, |text| text.parse().unwrap());
    for seed in 1..=cases {
        let place = TestDir::new();
        let mut random = Random::new(seed);
        for round in 0..2 {
            let wanted = place.change(|point| {
                let mut open = Vec::new();
                for _ in 0..STEPS {
                    let step = Step::random(&mut random, open.len());
                    let _ = writable_support::run(point, &mut open, &step);
                }
            });
            place.must_commit(&[]);
            let what = format!("seed {seed}, round {round}");
            assert_same(&what, &place.shown(), &wanted);
            // The layer belongs to the new snapshot, and changes nothing of it.
            assert_same(&what, &place.change(|_| {}), &wanted);
        }
    }
}

/// Layers as the kernel writes them, with renamed directories and files of which only attributes are copied.
#[test]
fn layers_of_overlayfs_are_understood() {
    let test = "layers_of_overlayfs_are_understood";
    if !can_mount(test) {
        return;
    }
    for options in [
        "redirect_dir=on,metacopy=on,index=off",
        "redirect_dir=off,metacopy=off,index=off",
        "userxattr,index=off",
    ] {
        let place = TestDir::new();
        let lower = Mount::background(&place.image, "");
        let (upper, work) = (place.layer.join("upper"), place.layer.join("work"));
        let over = place.dir.path().join("over");
        for dir in [&upper, &work, &over] {
            fs::create_dir_all(dir).unwrap();
        }
        private(&place.layer);
        let data = format!(
            "lowerdir={},upperdir={},workdir={},{options}",
            text(lower.point()),
            text(&upper),
            text(&work)
        );
        let data = std::ffi::CString::new(data).unwrap();
        if let Err(error) = mount("none", &over, "overlay", MountFlags::empty(), &*data) {
            return skip(test, &format!("the kernel mounts no overlay: {error}"));
        }
        let script = r#"
            cd "$1"
            chmod 600 a; chown 7:8 dir/c; setfattr -n user.x2 -v two sub/b 2>/dev/null || true
            mv deep other 2>/dev/null || true
            mv sub/sub moved 2>/dev/null || true
            echo more >>dir/a; mv dir/a dir/z; ln dir/z z; rm b; mkdir b; echo new >b/new
            rm -r dir/dir; mkdir dir/dir; mv dir/sub/a top; rm c; ln -s b c; mkfifo pipe"#;
        let done = Command::new("sh")
            .args(["-ec", script, "sh", text(&over)])
            .output()
            .unwrap();
        assert!(done.status.success(), "{options}: {}", stderr(&done));
        let wanted = picture(&over);
        let busy = "uses it";
        place.refused(&[], busy);
        unmount(&over, UnmountFlags::empty()).unwrap();
        driver::unmount(lower.point());
        place.must_commit(&[]);
        assert_same(options, &place.shown(), &wanted);
    }
}

#[test]
fn what_has_not_changed_is_not_read() {
    if !can_mount("what_has_not_changed_is_not_read") {
        return;
    }
    let place = TestDir::new();
    place.change(|point| {
        fs::set_permissions(point.join("dir"), PermissionsExt::from_mode(0o700)).unwrap();
        fs::write(point.join("new"), "new").unwrap();
    });
    // Blocks come first in an image. With this one damaged, no file can be read.
    let mut bytes = fs::read(&place.image).unwrap();
    bytes[64..50_000].fill(0xa5);
    fs::write(&place.image, bytes).unwrap();
    place.must_commit(&[]);
    let mount = Mount::background(&place.image, "");
    assert_eq!(fs::read(mount.point().join("new")).unwrap(), b"new");
    assert_eq!(fs::metadata(mount.point().join("a")).unwrap().len(), 50_000);
    assert!(fs::read(mount.point().join("a")).is_err());
}

#[test]
fn layers_that_do_not_fit_are_refused() {
    if !can_mount("layers_that_do_not_fit_are_refused") {
        return;
    }
    let place = TestDir::new();
    place.refused(&[], "cannot commit layer");
    fs::create_dir(&place.layer).unwrap();
    private(&place.layer);
    place.refused(&[], "it is no writable layer");
    place.change(|point| fs::write(point.join("a"), "changed").unwrap());
    for (more, cause) in [
        (&["-i", "."][..], "cannot combine"),
        (&["--checksum"], "cannot combine"),
        (&["-F", "- a"], "cannot combine"),
        (&["--empty-layer", "-o", "x"], "cannot combine"),
    ] {
        place.refused(more, cause);
    }
    {
        let mount = Mount::background(&place.image, &format!("rw={}", text(&place.layer)));
        place.refused(&[], "another mount uses it");
        driver::unmount(mount.point());
    }
    // An index of hard links, as overlayfs keeps it with `index=on`.
    fs::create_dir(place.layer.join("work/index")).unwrap();
    fs::write(place.layer.join("work/index/00fb"), "").unwrap();
    place.refused(&[], "index of hard links");
    fs::remove_dir_all(place.layer.join("work/index")).unwrap();
    // Another snapshot came in between.
    let tree = place.dir.path().join("tree");
    fs::write(tree.join("b"), "other").unwrap();
    must(&["--append", text(&place.image), "-i", text(&tree), "-l1"]);
    place.refused(&[], "on top of another image, or of another snapshot");
    let mount = Mount::on(Mount::new_dir());
    let options = format!("rw={}", text(&place.layer));
    let output = run(&[
        place.image.as_os_str(),
        mount.point().as_os_str(),
        "-o".as_ref(),
        options.as_ref(),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(
        stderr(&output).contains("were made on top of another image"),
        "{}",
        stderr(&output)
    );
    driver::unmount(mount.point());
}

#[test]
fn a_layer_is_emptied_when_the_image_has_it() {
    if !can_mount("a_layer_is_emptied_when_the_image_has_it") {
        return;
    }
    let place = TestDir::new();
    let before = place.shown();
    let change = |name: &'static str| {
        place.change(move |point| {
            fs::write(point.join("a"), name).unwrap();
            fs::create_dir(point.join(name)).unwrap();
        })
    };
    let first = change("first");
    place.must_commit(&["--snapshot-name", "first", "--empty-layer"]);
    assert!(!place.layer.join("upper").exists());
    assert_same("first", &place.shown(), &first);
    assert_same("nothing", &place.change(|_| {}), &first);
    let second = change("second");
    // The image stays as it is.
    let copy = place.dir.path().join("copy.dwarfs");
    let size = fs::metadata(&place.image).unwrap().len();
    place.must_commit(&["-o", text(&copy)]);
    place.must_commit(&["--delta-out", text(&place.dir.path().join("delta"))]);
    assert_eq!(fs::metadata(&place.image).unwrap().len(), size);
    place.must_commit(&["--snapshot-name", "second"]);
    assert_same("second", &place.shown(), &second);
    let copied = Mount::background(&copy, "");
    assert_same("copy", &picture(copied.point()), &second);
    for (name, wanted) in [("first", &first), ("1", &before)] {
        let mount = Mount::background(&place.image, &format!("snapshot={name}"));
        assert_same(name, &picture(mount.point()), wanted);
    }
}

/// A killed commit leaves the old image and the layer, or the new image.
#[test]
fn a_killed_commit_loses_nothing() {
    if !can_mount("a_killed_commit_loses_nothing") {
        return;
    }
    let place = TestDir::new();
    let before = place.shown();
    let after = place.change(|point| {
        for number in 0..40 {
            fs::write(point.join(format!("new-{number}")), vec![number; 70_000]).unwrap();
        }
    });
    let image = fs::read(&place.image).unwrap();
    for delay in [0, 5, 20, 40, 80] {
        fs::write(&place.image, &image).unwrap();
        let mut child = Command::new(MKDWARFS)
            .args(["--no-progress", "--log-level=error", "-l1", "-N1"])
            .args(["--time-resolution=1ns", "--empty-layer", "--append"])
            .arg(&place.image)
            .arg("--commit")
            .arg(&place.layer)
            .spawn()
            .unwrap();
        std::thread::sleep(std::time::Duration::from_millis(delay));
        let ended = child.try_wait().unwrap();
        if ended.is_none() {
            kill(child.id(), rustix::process::Signal::KILL);
        }
        child.wait().unwrap();
        let shown = place.shown();
        let committed = shown.len() == after.len();
        assert_same("image", &shown, if committed { &after } else { &before });
        // Of a commit, the layer may be there wholly, in part, or not at all.
        assert_same("with the layer", &place.change(|_| {}), &after);
        if committed {
            break;
        }
    }
}

/// Without the rights for attributes in `trusted`, deleted files would be there again.
#[test]
fn marks_that_cannot_be_read_are_needed() {
    if !can_mount("marks_that_cannot_be_read_are_needed") {
        return;
    }
    let place = TestDir::new();
    place.change(|point| {
        fs::remove_dir_all(point.join("dir")).unwrap();
        fs::create_dir(point.join("dir")).unwrap();
    });
    let before = fs::read(&place.image).unwrap();
    let record = fs::read_to_string(place.record()).unwrap();
    let mixed = record.replace("marks trusted", "marks mixed");
    for text in [Some(&record), Some(&mixed), None] {
        match text {
            Some(text) => fs::write(place.record(), text).unwrap(),
            None => fs::remove_file(place.record()).unwrap(),
        }
        let output = place.commit_without("-sys_admin");
        assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
        let cause = "that only root can read";
        assert!(stderr(&output).contains(cause), "{}", stderr(&output));
        assert!(fs::read(&place.image).unwrap() == before);
    }
    // In such a layer, there are none.
    fs::write(
        place.record(),
        record.replace("marks trusted", "marks user"),
    )
    .unwrap();
    let output = place.commit_without("-sys_admin");
    assert!(output.status.success(), "{}", stderr(&output));
}

#[test]
fn declared_files_take_the_place_of_stored_ones() {
    if !can_mount("declared_files_take_the_place_of_stored_ones") {
        return;
    }
    let place = TestDir::new();
    place.change(|point| fs::write(point.join("new"), "new").unwrap());
    let file = place.dir.path().join("other");
    // As long as the file of the image.
    fs::write(&file, "OTHER").unwrap();
    let pseudo = place.dir.path().join("pseudo");
    fs::write(&pseudo, format!("b f 644 0 0 {}\n", text(&file))).unwrap();
    assert_eq!(
        fs::metadata(place.dir.path().join("tree/b")).unwrap().len(),
        5
    );
    place.must_commit(&["--pseudo-file", text(&pseudo)]);
    let mount = Mount::background(&place.image, "");
    assert_eq!(fs::read(mount.point().join("b")).unwrap(), b"OTHER");
    assert_eq!(fs::read(mount.point().join("new")).unwrap(), b"new");
}

#[test]
fn others_do_not_choose_what_is_committed() {
    if !can_mount("others_do_not_choose_what_is_committed") {
        return;
    }
    let place = TestDir::new();
    place.change(|point| fs::write(point.join("new"), "new").unwrap());
    fs::set_permissions(&place.layer, PermissionsExt::from_mode(0o777)).unwrap();
    place.refused(&[], "others may enter it");
    private(&place.layer);
    let aside = place.dir.path().join("aside");
    fs::rename(place.upper(""), &aside).unwrap();
    symlink(&aside, place.layer.join("upper")).unwrap();
    place.refused(&[], "there is no directory 'upper' in it");
    fs::remove_file(place.layer.join("upper")).unwrap();
    fs::rename(&aside, place.layer.join("upper")).unwrap();
    place.must_commit(&[]);
}

/// A snapshot without a part of the tree would hide it, and the layer could never be committed again.
#[test]
fn errors_leave_the_image_as_it_is() {
    if !can_mount("errors_leave_the_image_as_it_is") {
        return;
    }
    let place = TestDir::new();
    place.change(|point| {
        fs::write(point.join("dir/new"), "new").unwrap();
        let mode = PermissionsExt::from_mode(0o000);
        fs::set_permissions(point.join("dir"), mode).unwrap();
    });
    let before = fs::read(&place.image).unwrap();
    let failed = |output: &Output| {
        assert_eq!(output.status.code(), Some(2), "{}", stderr(output));
        let cause = "1 error, so the image gets no snapshot";
        assert!(stderr(output).contains(cause), "{}", stderr(output));
        assert!(fs::read(&place.image).unwrap() == before);
    };
    let output = place.commit_without("-dac_override,-dac_read_search");
    failed(&output);
    assert!(stderr(&output).contains("upper/dir"), "{}", stderr(&output));
    // A directory of the image cannot be in two places.
    for name in ["one", "two"] {
        fs::create_dir(place.upper(name)).unwrap();
        set_mark(&place.upper(name), "redirect", "/sub");
    }
    symlink("/dev/null", place.upper("sub")).unwrap();
    failed(&place.commit(&["--empty-layer"]));
    fs::remove_dir(place.upper("two")).unwrap();
    place.must_commit(&[]);
    let mount = Mount::background(&place.image, "");
    assert_eq!(fs::read(mount.point().join("dir/new")).unwrap(), b"new");
    let sizes = ["dir/a", "one/b"].map(|name| fs::metadata(mount.point().join(name)));
    assert_eq!(sizes.map(|meta| meta.unwrap().len()), [60_000, 5000]);
}

#[test]
fn an_opaque_directory_shows_nothing_of_the_image() {
    if !can_mount("an_opaque_directory_shows_nothing_of_the_image") {
        return;
    }
    let place = TestDir::new();
    place.change(|point| fs::write(point.join("new"), "new").unwrap());
    for name in ["dir", "other"] {
        fs::create_dir(place.upper(name)).unwrap();
        fs::write(place.upper(name).join("own"), "own").unwrap();
        set_mark(&place.upper(name), "opaque", "y");
        set_mark(&place.upper(name), "redirect", "/dir");
    }
    place.must_commit(&[]);
    let mount = Mount::background(&place.image, "");
    for name in ["dir", "other"] {
        let entries = fs::read_dir(mount.point().join(name)).unwrap();
        let names: Vec<_> = entries.map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(names, ["own"]);
    }
}

/// A commit that was killed after the image had the snapshot.
#[test]
fn a_commit_that_could_not_say_so_is_known() {
    if !can_mount("a_commit_that_could_not_say_so_is_known") {
        return;
    }
    let place = TestDir::new();
    let wanted = place.change(|point| fs::write(point.join("new"), "new").unwrap());
    let before = fs::read_to_string(place.record()).unwrap();
    place.must_commit(&[]);
    let after = fs::read_to_string(place.record()).unwrap();
    let line = after.lines().next().unwrap();
    assert!(
        !before.contains(line) && after.lines().count() == 2,
        "{after}"
    );
    let next = line.replace("generation", "next");
    fs::write(place.record(), format!("{before}{next} moved\n")).unwrap();
    place.refused(&[], "the image has its changes");
    // A mount and a commit know it.
    fs::write(place.record(), format!("{before}{next}\n")).unwrap();
    assert_same("mounted", &place.change(|_| {}), &wanted);
    assert_eq!(fs::read_to_string(place.record()).unwrap(), after);
    fs::write(place.record(), format!("{before}{next}\n")).unwrap();
    place.must_commit(&["--snapshot-name=again", "--empty-layer"]);
    assert_same("again", &place.shown(), &wanted);
}

#[test]
fn a_layer_that_cannot_be_written_is_refused_at_once() {
    let test = "a_layer_that_cannot_be_written_is_refused_at_once";
    if !can_mount(test) {
        return;
    }
    let place = TestDir::new();
    place.change(|point| fs::write(point.join("new"), "new").unwrap());
    let script = "mount --bind \"$1\" \"$1\" && mount -o remount,bind,ro \"$1\"";
    let done = Command::new("sh")
        .args(["-ec", script, "sh", text(&place.layer)])
        .output()
        .unwrap();
    assert!(done.status.success(), "{}", stderr(&done));
    place.refused(&[], "read-only");
    let copy = place.dir.path().join("copy.dwarfs");
    place.must_commit(&["-o", text(&copy)]);
    unmount(&place.layer, UnmountFlags::empty()).unwrap();
}

#[test]
fn what_is_written_is_no_change() {
    if !can_mount("what_is_written_is_no_change") {
        return;
    }
    let mut place = TestDir::new();
    place.change(|point| fs::write(point.join("new"), "new").unwrap());
    let checkpoint = place.upper("checkpoint");
    place.refused(
        &["--checkpoint", text(&checkpoint)],
        "the checkpoint is among its changes",
    );
    assert!(!checkpoint.exists());
    let output = place.upper("output");
    place.refused(&["-o", text(&output)], "the output is among its changes");
    let inside = place.upper("image");
    fs::copy(&place.image, &inside).unwrap();
    place.image = inside;
    place.refused(&["--empty-layer"], "the image is among its changes");
}
