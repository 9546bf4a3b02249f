//! Writable mounts whose driver is the overlayfs of the kernel: `-o rw_driver=kernel`.
#![cfg(target_os = "linux")]

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::driver;
use crate::driver::{
    Mount, as_user, can_mount, driver_of, dwarfs, kill, run, stderr, stdout, table_line, temp,
    wait_until,
};
use redwarfs_testkit::skip;
use rustix::process::Signal;

const MKDWARFS: &str = env!("CARGO_BIN_EXE_mkdwarfs");

/// An image of a small tree.
fn image(dir: &Path) -> PathBuf {
    let tree = dir.join("tree");
    fs::create_dir_all(tree.join("sub/deep")).expect("mkdir");
    fs::write(tree.join("settings"), "one\n").expect("write");
    fs::write(tree.join("data"), vec![7; 300_000]).expect("write");
    fs::write(tree.join("sub/deep/old"), "old\n").expect("write");
    let image = dir.join("image.dwarfs");
    let built = Command::new(MKDWARFS)
        .args(["--log-level=warn", "-l1", "-i"])
        .arg(&tree)
        .arg("-o")
        .arg(&image)
        .output()
        .expect("mkdwarfs can be started");
    assert!(built.status.success(), "{}", stderr(&built));
    image
}

/// Whether the kernel mounts an overlay on this file system.
fn has_overlay(test: &str, dir: &Path) -> bool {
    let script = r#"mkdir "$1/l" "$1/u" "$1/w" "$1/m"
        mount -t overlay none -o "lowerdir=$1/l,upperdir=$1/u,workdir=$1/w" "$1/m"; umount "$1/m""#;
    let tried = Command::new("sh")
        .args(["-ec", script, "sh"])
        .arg(dir)
        .output();
    let works = tried.is_ok_and(|output| output.status.success());
    if !works {
        skip(test, "the kernel mounts no overlay here");
    }
    works
}

/// A driver in the foreground, whose private files are in `dir`.
fn start(dir: &Path, image: &Path, point: &Path, options: &str) -> Child {
    let mut child = dwarfs()
        .env("TMPDIR", dir)
        .args(["-f", "-o", options])
        .arg(image)
        .arg(point)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program can be started");
    wait_until("the mount", || {
        assert!(child.try_wait().expect("wait").is_none(), "ended early");
        table_line(point).is_some()
    });
    child
}

/// Names and mounts that the driver makes for itself.
fn private(dir: &Path) -> Vec<String> {
    let names = fs::read_dir(dir).expect("readable");
    let names = names.map(|entry| entry.expect("an entry").file_name());
    let names = names.map(|name| name.to_string_lossy().into_owned());
    let own = names.filter(|name| name.starts_with("dwarfs-"));
    let table = fs::read("/proc/self/mounts").expect("the mount table");
    let table = String::from_utf8_lossy(&table).into_owned();
    let lines = table.lines().map(str::to_owned);
    let place = format!(" {}/dwarfs-lower-", dir.display());
    own.chain(lines.filter(|line| line.contains(&place)))
        .collect()
}

#[test]
fn every_end_of_an_overlay_ends_the_driver() {
    let test = "every_end_of_an_overlay_ends_the_driver";
    let dir = temp();
    if !can_mount(test) || !has_overlay(test, dir.path()) {
        return;
    }
    let image = image(dir.path());
    let layer = dir.path().join("a,layer:of b");
    let escaped = layer.display().to_string().replace(',', "\\,");
    let options = format!("rw={escaped},rw_driver=kernel,allow_other");
    let point = dir.path().join("m");
    for (number, way) in ["umount", "fusermount3", "lazy", "TERM", "INT", "KILL"]
        .into_iter()
        .enumerate()
    {
        let mut child = start(dir.path(), &image, &point, &options);
        let line = table_line(&point).expect("mounted");
        assert!(line.contains(" overlay rw,nosuid,nodev,"), "{way}: {line}");
        wait_until("the private mount to go", || private(dir.path()).is_empty());
        let read = |name: &str| fs::read_to_string(point.join(name)).expect("readable");
        if number == 0 {
            assert_eq!(read("settings"), "one\n");
            fs::remove_dir_all(point.join("sub/deep")).expect("rm -r");
            fs::create_dir(point.join("sub/deep")).expect("mkdir");
        }
        assert!(!point.join("sub/deep/old").exists(), "{way}");
        fs::write(point.join("settings"), format!("{way}\n")).expect("writable");
        assert_eq!(
            fs::read(point.join("data")).expect("readable").len(),
            300_000
        );
        let point_text = point.to_str().expect("plain");
        match way {
            "umount" => driver::unmount(&point),
            "fusermount3" => {
                let done = Command::new("fusermount3")
                    .args(["-u", point_text])
                    .output();
                match done {
                    Ok(done) => assert!(done.status.success()),
                    Err(error) => {
                        println!("SKIPPED: an overlay ended by fusermount3: {error}");
                        driver::unmount(&point);
                    }
                }
            }
            "lazy" => {
                let open = fs::File::open(point.join("data")).expect("open");
                let done = Command::new("umount").args(["-l", point_text]).status();
                assert!(done.expect("umount").success());
                drop(open);
            }
            "TERM" => kill(child.id(), Signal::TERM),
            "INT" => kill(child.id(), Signal::INT),
            _ => kill(child.id(), Signal::KILL),
        }
        let mut status = None;
        wait_until("the end of the driver", || {
            status = child.try_wait().expect("wait");
            status.is_some()
        });
        if way != "KILL" {
            assert_eq!(status.and_then(|status| status.code()), Some(0), "{way}");
        }
        // The guard takes it off if the driver was killed.
        wait_until("the mount to go", || table_line(&point).is_none());
        assert_eq!(private(dir.path()), [""; 0], "{way}");
        let kept = fs::read_to_string(layer.join("upper/settings")).expect("kept");
        assert_eq!(kept, format!("{way}\n"));
    }
    // The own driver shows the same.
    let options = format!("rw={escaped}");
    let mount = Mount::background(&image, &options);
    let read = fs::read_to_string(mount.point().join("settings")).expect("readable");
    assert_eq!(read, "KILL\n");
    assert!(!mount.point().join("sub/deep/old").exists());
    assert!(mount.point().join("sub/deep").is_dir());
}

#[test]
fn temporary_changes_of_an_overlay_are_forgotten() {
    let test = "temporary_changes_of_an_overlay_are_forgotten";
    let dir = temp();
    if !can_mount(test) || !has_overlay(test, dir.path()) {
        return;
    }
    let image = image(dir.path());
    let point = dir.path().join("m");
    for signal in [Signal::TERM, Signal::KILL] {
        let options = "rw=tmp,rw_driver=kernel,allow_other";
        let mut child = start(dir.path(), &image, &point, options);
        assert_eq!(
            fs::read_to_string(point.join("settings")).expect("readable"),
            "one\n"
        );
        fs::write(point.join("settings"), "two\n").expect("writable");
        wait_until("the private mount to go", || private(dir.path()).len() == 1);
        kill(child.id(), signal);
        child.wait().expect("wait");
        wait_until("the changes to go", || private(dir.path()).is_empty());
        wait_until("the mount to go", || table_line(&point).is_none());
    }
}

#[test]
fn what_the_kernel_cannot_serve_the_own_driver_serves() {
    let test = "what_the_kernel_cannot_serve_the_own_driver_serves";
    let dir = temp();
    if !can_mount(test) || !has_overlay(test, dir.path()) {
        return;
    }
    let image = image(dir.path());
    let layer = dir.path().join("layer");
    let rw = format!("rw={}", layer.display());
    let try_one = |driver: &str, options: &str| {
        let mount = Mount::on(Mount::new_dir());
        let options = format!("{rw},rw_driver={driver},debuglevel=verbose,{options}");
        let output = run(&[
            image.as_os_str(),
            mount.point().as_os_str(),
            OsStr::new("-o"),
            OsStr::new(&options),
        ]);
        (mount, output)
    };
    let check = |options: &str, cause: &str| {
        let (mount, output) = try_one("kernel", options);
        assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
        let text = stderr(&output);
        assert!(
            text.contains("cannot mount an overlay of the kernel: ") && text.contains(cause),
            "{text}"
        );
        assert!(table_line(mount.point()).is_none());
        let (mount, output) = try_one("auto", options);
        let text = stderr(&output);
        assert!(output.status.success(), "{text}");
        assert!(
            text.contains("the own driver writes to the layer") && text.contains(cause),
            "{text}"
        );
        let line = table_line(mount.point()).expect("mounted");
        assert!(line.contains(" fuse.dwarfs "), "{line}");
        assert_eq!(
            fs::read_to_string(mount.point().join("settings")).expect("readable"),
            "one\n"
        );
        assert!(driver_of(mount.point()) > 0);
        driver::unmount(mount.point());
    };
    check("", "give allow_other if that is wanted");
    check("allow_other,timeout=60", "timeout does not go with it");
    // Marks that it may not know.
    let record = layer.join("image");
    let before = fs::read_to_string(&record).expect("the record");
    assert!(before.ends_with("\nmarks trusted\n"), "{before}");
    fs::write(&record, before.replace("trusted", "user")).expect("write");
    check("allow_other", "the layer has marks of several kinds");
    fs::remove_file(&record).expect("rm");
    check("allow_other", "it is not known");
    fs::write(&record, before).expect("write");
    // An overlay as upper directory is what the kernel itself refuses.
    let over = dir.path().join("over");
    for name in ["over", "over-u", "over-w"] {
        fs::create_dir(dir.path().join(name)).expect("mkdir");
    }
    let base = dir.path().display();
    let options = format!("lowerdir={base}/l,upperdir={base}/over-u,workdir={base}/over-w");
    let mounted = Command::new("mount")
        .args(["-t", "overlay", "none", "-o", &options])
        .arg(&over)
        .status();
    assert!(mounted.expect("mount").success());
    let on_overlay = format!("rw={},allow_other", over.join("layer").display());
    check(&on_overlay, "");
    driver::unmount(&over);
    let (mount, output) = try_one("auto", "allow_other");
    assert!(output.status.success(), "{}", stderr(&output));
    let line = table_line(mount.point()).expect("mounted");
    assert!(line.contains(" overlay "), "{line}");
    let unknown = run(&[
        image.as_os_str(),
        mount.point().as_os_str(),
        OsStr::new("-orw=x,rw_driver=y"),
    ]);
    assert!(stderr(&unknown).contains("no such driver of a layer: y"));
}

#[test]
fn owners_of_a_namespace_have_overlays() {
    let test = "owners_of_a_namespace_have_overlays";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let image = image(dir.path());
    for name in ["mnt", "layer"] {
        fs::create_dir(dir.path().join(name)).expect("mkdir");
        let path = dir.path().join(name);
        std::os::unix::fs::chown(path, Some(65534), Some(65534)).expect("chown");
    }
    let script = r#"
        user unshare -rm true 2>/dev/null || { echo none; exit 0; }
        user unshare -rm sh -ec '"$1" "$2" "$3" -o "rw=$4,rw_driver=kernel,allow_other"
            grep -c " $3 overlay " /proc/self/mounts
            cat "$3/settings"; echo two >"$3/settings"; rm -r "$3/sub/deep"; mkdir "$3/sub/deep"
            ls "$3/sub/deep"; umount "$3"' sh "$2" "$3" "$1/mnt" "$1/layer" || { echo refused; exit 0; }
        user "$2" "$3" "$1/mnt" -o "rw=$1/layer"
        user cat "$1/mnt/settings"; user ls "$1/mnt/sub/deep"; user fusermount3 -u "$1/mnt"
        tail -1 "$1/layer/image""#;
    let Some(output) = as_user(test, script, dir.path(), &[image.as_os_str()]) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{errors}");
    match &*text {
        "none\n" => skip(test, "users may not make namespaces here"),
        "refused\n" => skip(test, &format!("no overlays of users here: {errors}")),
        text => assert_eq!(text, "1\none\ntwo\nmarks user\n", "{errors}"),
    }
}
