//! The life of a driver: starting, the background, signals, being killed, exit codes.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::driver;
use crate::driver::{
    DWARFS, Mount, PRIVATE_DEV, alive, as_user, can_mount, driver_of, dwarfs, errno, in_namespace,
    kill, run, stderr, stdout, table_line, temp, wait_until,
};
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::skip;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use tempfile::TempDir;

const ENOTCONN: i32 = 107;

#[test]
fn relative_mount_point_is_unmounted_by_a_signal() {
    if !can_mount("relative_mount_point_is_unmounted_by_a_signal") {
        return;
    }
    let dir = temp();
    fs::create_dir(dir.path().join("mnt")).expect("mkdir");
    fs::copy(golden("one").image, dir.path().join("i")).expect("copy");
    let point = dir.path().join("mnt");
    for (foreground, signal) in [
        (true, Signal::TERM),
        (true, Signal::INT),
        (false, Signal::TERM),
        (false, Signal::HUP),
    ] {
        let mut child = dwarfs()
            .current_dir(dir.path())
            .args(["i", "./mnt"])
            .args(foreground.then_some("-f"))
            .stderr(Stdio::null())
            .spawn()
            .expect("the program can be started");
        wait_until("the mount", || point.join("only").exists());
        kill(driver_of(&point), signal);
        wait_until("the unmount", || table_line(&point).is_none());
        let status = child.wait().expect("wait");
        assert_eq!(status.code(), Some(0), "{foreground} {signal:?}");
        // Nothing is left that answers with an error.
        assert_eq!(fs::read_dir(&point).expect("a plain directory").count(), 0);
    }
}

/// The session of a process; 0 if its leader is outside this PID namespace,
/// which is usual in containers.
fn session_of(pid: u32) -> u32 {
    let session = driver::stat_field(pid, 3).expect("the process is alive");
    session.parse().expect("a number")
}

#[test]
fn background_start_returns_when_ready() {
    if !can_mount("background_start_returns_when_ready") {
        return;
    }
    for _ in 0..5 {
        let mount = Mount::background(&golden("one").image, "");
        // No waiting: what the command said is true at once.
        assert_eq!(fs::read_dir(mount.point()).expect("list").count(), 1);
        let pid = driver_of(mount.point());
        assert_ne!(session_of(pid), session_of(std::process::id()));
        driver::unmount(mount.point());
        wait_until("the end of the driver", || !alive(pid));
    }
}

#[test]
fn a_killed_driver_leaves_no_stuck_mount() {
    if !can_mount("a_killed_driver_leaves_no_stuck_mount") {
        return;
    }
    let image = golden("one").image;
    let mut mount = Mount::foreground(&image, &[]);
    let pid = driver_of(mount.point());
    // The guard is told what to watch before the driver calls itself ready.
    let pipe = mount.child.as_mut().and_then(|child| child.stderr.take());
    let mut log = BufReader::new(pipe.expect("a pipe")).lines();
    let ready = log.find(|line| line.as_ref().is_ok_and(|l| l.contains("initialized [")));
    assert!(ready.is_some(), "the driver says when it is ready");
    mount.signal(Signal::KILL);
    let status = mount.child.take().expect("a child").wait().expect("wait");
    assert_eq!(status.signal(), Some(9));
    wait_until("the guard", || table_line(mount.point()).is_none());
    assert!(!alive(pid));

    let mount = Mount::background(&image, "");
    assert!(mount.point().join("only").exists());
    let held = File::open(mount.point().join("only")).expect("open");
    kill(driver_of(mount.point()), Signal::KILL);
    wait_until("the guard", || table_line(mount.point()).is_none());
    drop(held);
    // The directory can be used again at once.
    assert_eq!(fs::read_dir(mount.point()).expect("list").count(), 0);
    let output = run(&[image.as_os_str(), mount.point().as_os_str()]);
    assert!(output.status.success(), "{}", stderr(&output));

    // Without the guard the mount remains, and everything says so.
    let mut mount = Mount::foreground(&image, &["-ono_guard"]);
    mount.signal(Signal::KILL);
    mount.child.take().expect("a child").wait().expect("wait");
    assert_eq!(errno(fs::read_dir(mount.point())), ENOTCONN);
    let output = run(&[image.as_os_str(), mount.point().as_os_str()]);
    assert_eq!(output.status.code(), Some(4));
    let text = stderr(&output);
    assert!(
        text.contains("transport endpoint is not connected"),
        "{text}"
    );
    driver::unmount(mount.point());
    let again = Mount::background(&image, "");
    assert!(again.point().join("only").exists());
}

#[test]
fn auto_unmount_helps_too() {
    if !can_mount("auto_unmount_helps_too") {
        return;
    }
    let mount = Mount::on(Mount::new_dir());
    let output = run(&[
        golden("one").image.as_os_str(),
        mount.point().as_os_str(),
        OsStr::new("-oauto_unmount,no_guard"),
    ]);
    if !output.status.success() && stderr(&output).contains("fusermount3") {
        return skip("auto_unmount_helps_too", "no fusermount3 here");
    }
    assert!(output.status.success(), "{}", stderr(&output));
    kill(driver_of(mount.point()), Signal::KILL);
    wait_until("the helper to unmount", || {
        table_line(mount.point()).is_none()
    });
}

#[test]
fn a_plain_user_mounts_and_may_kill_the_driver() {
    let test = "a_plain_user_mounts_and_may_kill_the_driver";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let point = dir.path().join("mnt");
    fs::create_dir(&point).expect("mkdir");
    std::os::unix::fs::chown(&point, Some(65534), Some(65534)).expect("chown");
    fs::copy(golden("one").image, dir.path().join("x.dwarfs")).expect("copy");
    let script = r#"
        mnt=$1/mnt; image=$1/x.dwarfs
        gone() {
            for n in $(seq 400); do
                grep -q " $mnt " /proc/self/mounts || return 0
                sleep 0.05
            done
            echo "still mounted after $1"; return 1
        }
        driver() {
            for p in /proc/[0-9]*; do
                if [ "$(cat "$p/comm" 2>/dev/null)" = dwarfs ] &&
                    tr '\0' ' ' <"$p/cmdline" 2>/dev/null | grep -q "$image"; then
                    echo "${p#/proc/}"
                fi
            done
        }
        for signal in TERM KILL; do
            user "$2" "$image" "$mnt"
            grep " $mnt " /proc/self/mounts
            user cat "$mnt/only" >/dev/null
            kill -$signal $(driver); gone "$signal"
        done
        if user "$2" "$image" "$mnt" -o allow_other; then
            grep -q '^user_allow_other' /etc/fuse.conf; user fusermount3 -u "$mnt"
        else
            echo "code $?"
        fi"#;
    let Some(output) = as_user(test, script, dir.path(), &[]) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{errors}");
    assert_eq!(text.matches("user_id=65534").count(), 2, "{text}");
    if text.contains("code ") {
        assert!(text.ends_with("code 4\n"), "{text}");
        assert!(errors.contains("user_allow_other"), "{errors}");
        assert_eq!(errors.lines().count(), 1, "{errors}");
    }
}

/// A driver whose image lies on a mount that does not answer.
struct Stalled {
    lower: Mount,
    driver: u32,
    image: PathBuf,
    _dir: TempDir,
}

impl Stalled {
    /// An image inside an image; the outer driver is stopped.
    fn new() -> Self {
        let dir = temp();
        let tree = dir.path().join("tree");
        fs::create_dir(&tree).expect("mkdir");
        fs::copy(golden("one").image, tree.join("inner.dwarfs")).expect("copy");
        let outer = dir.path().join("outer.dwarfs");
        let output = Command::new(env!("CARGO_BIN_EXE_mkdwarfs"))
            .args(["-l1", "--log-level=warn", "-i"])
            .args([&tree, Path::new("-o"), &outer])
            .output()
            .expect("the program can be started");
        assert!(output.status.success(), "{}", stderr(&output));
        let lower = Mount::background(&outer, "no_cache_files");
        let driver = driver_of(lower.point());
        kill(driver, Signal::STOP);
        // A thread that takes a request and stops then keeps its sender from being killed.
        wait_until("all threads to stop", || {
            let tasks = fs::read_dir(format!("/proc/{driver}/task")).expect("alive");
            tasks.flatten().all(|task| {
                let stat = fs::read_to_string(task.path().join("stat")).unwrap_or_default();
                stat.rsplit(") ")
                    .next()
                    .is_some_and(|rest| rest.starts_with('T'))
            })
        });
        Self {
            image: lower.point().join("inner.dwarfs"),
            lower,
            driver,
            _dir: dir,
        }
    }

    /// Starts a driver for the image and waits until it hangs.
    fn start(&self, point: &Path, options: &[&str]) -> Child {
        let child = dwarfs()
            .args(options)
            .arg(&self.image)
            .arg(point)
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        wait_until("the driver to wait for the image", || {
            let waiting = |pid: u32| {
                let path = format!("/proc/{pid}/syscall");
                let call = fs::read_to_string(path).unwrap_or_default();
                let number = call.split(' ').next().unwrap_or_default().to_owned();
                // open, stat, pread64, openat, newfstatat, statx
                ["2", "4", "17", "257", "262", "332"].contains(&number.as_str())
            };
            waiting(self.serving(&child))
        });
        child
    }

    /// The process that opens the image: the child of the one that was started, or itself.
    fn serving(&self, child: &Child) -> u32 {
        let list = format!("/proc/{0}/task/{0}/children", child.id());
        let text = fs::read_to_string(list).unwrap_or_default();
        // A foreground driver has its guard as a child.
        let first = text.split_whitespace().next().and_then(|p| p.parse().ok());
        let name = |pid: u32| fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        match first {
            Some(pid) if name(pid).trim_end() == "dwarfs" => pid,
            _ => child.id(),
        }
    }
}

impl Drop for Stalled {
    fn drop(&mut self) {
        if alive(self.driver) {
            kill(self.driver, Signal::CONT);
        }
        let _ = unmount(self.lower.point(), UnmountFlags::DETACH);
    }
}

/// How a driver ended: exit code or signal, and standard error.
fn finish(mut child: Child) -> (Result<i32, Option<i32>>, String) {
    let mut text = String::new();
    let mut pipe = child.stderr.take().expect("a pipe");
    pipe.read_to_string(&mut text).expect("text");
    let status = child.wait().expect("wait");
    (status.code().ok_or(status.signal()), text)
}

#[test]
fn interrupted_or_killed_before_the_mount() {
    let test = "interrupted_or_killed_before_the_mount";
    if !can_mount(test) {
        return;
    }
    if !Path::new("/proc/self/syscall").exists() || !cfg!(target_arch = "x86_64") {
        return skip(test, "processes do not show what they wait for");
    }
    let stalled = Stalled::new();
    let point = Mount::new_dir();
    for (options, signal, end, text) in [
        (
            &["-f", "-odebuglevel=warn"][..],
            Signal::TERM,
            Err(Some(15)),
            "",
        ),
        (&[], Signal::TERM, Ok(143), "dwarfs: interrupted\n"),
        (
            &["-ono_guard"],
            Signal::TERM,
            Ok(143),
            "dwarfs: interrupted\n",
        ),
        (
            &[],
            Signal::KILL,
            Ok(5),
            "dwarfs: the driver died while mounting\n",
        ),
    ] {
        let child = stalled.start(point.path(), options);
        kill(stalled.serving(&child), signal);
        assert_eq!(finish(child), (end, text.to_owned()), "{options:?}");
        assert!(table_line(point.path()).is_none());
    }
    // And without any of this it mounts as soon as the image can be read.
    let child = stalled.start(point.path(), &[]);
    kill(stalled.driver, Signal::CONT);
    assert_eq!(finish(child), (Ok(0), String::new()));
    assert!(point.path().join("only").exists());
    driver::unmount(point.path());
}

#[test]
fn resources_that_are_missing_have_their_exit_codes() {
    let test = "resources_that_are_missing_have_their_exit_codes";
    if !can_mount(test) {
        return;
    }
    let image = golden("one").image;
    let point = Mount::new_dir();
    // A second descriptor is too many.
    let output = Command::new("prlimit")
        .args(["--nofile=4:4", DWARFS, "-f"])
        .args([&image, point.path()])
        .output();
    let Ok(output) = output else {
        return skip(test, "no prlimit here");
    };
    assert_eq!(output.status.code(), Some(6), "{}", stderr(&output));
    let text = stderr(&output);
    let last = text.lines().last().unwrap_or_default();
    assert_eq!(
        last,
        "dwarfs: cannot install signal handlers: too many open files"
    );
    // A pipe to the background is too much.
    let output = Command::new("prlimit")
        .args(["--nofile=4:4", DWARFS])
        .args([&image, point.path()])
        .output()
        .expect("prlimit worked before");
    assert_eq!(output.status.code(), Some(5), "{}", stderr(&output));
    assert_eq!(
        stderr(&output),
        "dwarfs: cannot go to the background: too many open files\n"
    );
    assert!(table_line(point.path()).is_none());
}

#[test]
fn without_fuse_the_exit_code_is_three() {
    let test = "without_fuse_the_exit_code_is_three";
    if !can_mount(test) {
        return;
    }
    let image = golden("one").image;
    let try_it = r#"
        if "$2" "$3" "$1/mnt"; then exit 99; else exit $?; fi"#;
    for (prepare, code, message) in [
        (
            r#"rm "$new/fuse" 2>/dev/null || { umount "$new/fuse"; rm "$new/fuse"; }"#,
            3,
            "dwarfs: cannot open FUSE device: /dev/fuse: no such file or directory (try 'modprobe fuse')\n",
        ),
        (
            // A device that is no FUSE device.
            r#"umount "$new/fuse"; mount --bind "$new/null" "$new/fuse""#,
            3,
            "dwarfs: cannot open FUSE device: /dev/fuse: something else is in its place\n",
        ),
    ] {
        let dir = temp();
        fs::create_dir(dir.path().join("mnt")).expect("mkdir");
        let script = format!("{PRIVATE_DEV}\n{prepare}\nmount --move \"$new\" /dev\n{try_it}");
        let Some(output) = in_namespace(test, &script, dir.path(), &[image.as_os_str()]) else {
            return;
        };
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.starts_with(message), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

#[test]
fn images_that_cannot_be_opened_are_named() {
    let dir = temp();
    let point = Mount::new_dir();
    let empty = dir.path().join("empty");
    fs::write(&empty, "").expect("write");
    for (image, cause) in [
        (dir.path().join("missing"), "no such file or directory"),
        (dir.path().to_owned(), "is a directory without images"),
        (empty, ""),
    ] {
        let output = run(&[image.as_os_str(), point.path().as_os_str()]);
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(1), "{text}");
        let start = format!("dwarfs: cannot open image: {}: {cause}", image.display());
        assert!(text.starts_with(&start), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

/// The connection ends from outside: what is left is removed, and the driver ends.
#[test]
fn an_aborted_connection_leaves_no_mount() {
    let test = "an_aborted_connection_leaves_no_mount";
    if !can_mount(test) {
        return;
    }
    let mount = Mount::background(&golden("one").image, "");
    let pid = driver_of(mount.point());
    let device = rustix::fs::stat(mount.point()).expect("stat").st_dev;
    let minor = rustix::fs::minor(device);
    let dir = temp();
    // The control files may not be visible here.
    let script = r#"mount -t fusectl none "$1"; echo 1 >"$1/$3/abort""#;
    let minor = minor.to_string();
    let Some(output) = in_namespace(test, script, dir.path(), &[OsStr::new(&minor)]) else {
        return;
    };
    if !output.status.success() {
        return skip(test, "connections cannot be aborted here");
    }
    wait_until("the end of the driver", || !alive(pid));
    wait_until("the unmount", || table_line(mount.point()).is_none());
}
