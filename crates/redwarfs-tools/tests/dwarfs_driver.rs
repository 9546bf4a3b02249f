//! The life of a driver: starting, the background, signals, logs, being killed, mount(8), exit
//! codes.

mod driver;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Read};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixDatagram;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use driver::{
    Mount, alive, can_mount, driver_of, dwarfs, errno, in_namespace, kill, run, stderr, stdout,
    table_line, wait_until,
};
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::skip;
use rustix::mount::{UnmountFlags, unmount};
use rustix::process::Signal;
use tempfile::TempDir;

const DWARFS: &str = env!("CARGO_BIN_EXE_dwarfs");
const ENOTCONN: i32 = 107;

fn temp() -> TempDir {
    TempDir::with_prefix("redwarfs-driver-").expect("a temporary directory")
}

/// An image whose first block is damaged, and one file that lies in it.
fn damaged(dir: &Path) -> PathBuf {
    let mut bytes = fs::read(golden("basic-zstd-small-blocks").image).expect("read");
    bytes[100..110].fill(0x5a);
    let path = dir.join("damaged.dwarfs");
    fs::write(&path, bytes).expect("write");
    path
}

/// Reads all files of a mounted tree, but not the huge ones; number of those that could not be read.
fn read_all(point: &Path) -> usize {
    let mut failed = 0;
    for entry in fs::read_dir(point).expect("list").flatten() {
        let kind = entry.file_type().expect("a type");
        if kind.is_dir() {
            failed += read_all(&entry.path());
        } else if kind.is_file() && entry.metadata().expect("stat").len() < 1 << 20 {
            failed += usize::from(fs::read(entry.path()).is_err());
        }
    }
    failed
}

#[test]
fn auto_mountpoint_comes_and_goes() {
    if !can_mount("auto_mountpoint_comes_and_goes") {
        return;
    }
    let dir = temp();
    // Names with everything that lists, tables and shells treat in a special way.
    for (image, point) in [
        (&b"x.dwarfs"[..], &b"x"[..]),
        (b"a b,c\\d.v1.dwarfs", b"a b,c\\d.v1"),
        (b"new\nline\ttab.img", b"new\nline\ttab"),
        (b"not utf8 \xff\xfe.d", b"not utf8 \xff\xfe"),
        (b"-dash.dwarfs", b"-dash"),
    ] {
        let image = dir.path().join(OsStr::from_bytes(image));
        let point = dir.path().join(OsStr::from_bytes(point));
        fs::copy(golden("one").image, &image).expect("copy");
        let output = run(&[image.as_os_str(), OsStr::new("--auto-mountpoint")]);
        assert!(output.status.success(), "{point:?}: {}", stderr(&output));
        assert!(point.join("only").exists(), "{point:?}");
        driver::unmount(&point);
        wait_until("the directory to go", || !point.exists());
    }
    // Relative, ended by a signal.
    let output = dwarfs()
        .current_dir(dir.path())
        .args(["--auto-mountpoint", "x.dwarfs"])
        .output()
        .expect("the program can be started");
    assert!(output.status.success(), "{}", stderr(&output));
    let point = dir.path().join("x");
    kill(driver_of(&point), Signal::TERM);
    wait_until("the directory to go", || !point.exists());
    // An empty directory that is there stays.
    fs::create_dir(&point).expect("mkdir");
    let output = run(&[
        dir.path().join("x.dwarfs").as_os_str(),
        OsStr::new("--auto-mountpoint"),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let pid = driver_of(&point);
    driver::unmount(&point);
    wait_until("the end of the driver", || !alive(pid));
    assert!(point.exists());
    // One for the link, not for what it leads to.
    let link = dir.path().join("link.dwarfs");
    symlink("x.dwarfs", &link).expect("symlink");
    let output = run(&[link.as_os_str(), OsStr::new("--auto-mountpoint")]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(dir.path().join("link/only").exists());
    driver::unmount(&dir.path().join("link"));
}

#[test]
fn auto_mountpoint_errors() {
    let dir = temp();
    let image = dir.path().join("x.dwarfs");
    fs::copy(golden("one").image, &image).expect("copy");
    let plain = dir.path().join("plain");
    fs::copy(&image, &plain).expect("copy");
    let auto = OsStr::new("--auto-mountpoint");
    let failed = |arguments: &[&OsStr]| {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        stderr(&output)
    };
    assert_eq!(
        failed(&[image.as_os_str(), dir.path().as_os_str(), auto]),
        "dwarfs: cannot combine <mountpoint> with --auto-mountpoint\n"
    );
    assert_eq!(
        failed(&[plain.as_os_str(), auto]),
        "dwarfs: cannot select mountpoint directory for file with no extension\n"
    );
    let point = dir.path().join("x");
    let unsuitable = format!(
        "dwarfs: cannot find a suitable empty mountpoint directory: {}\n",
        point.display()
    );
    fs::write(&point, "a file").expect("write");
    assert_eq!(failed(&[image.as_os_str(), auto]), unsuitable);
    fs::remove_file(&point).expect("remove");
    fs::create_dir(&point).expect("mkdir");
    fs::write(point.join("y"), "").expect("write");
    assert_eq!(failed(&[image.as_os_str(), auto]), unsuitable);
    assert_eq!(
        failed(&[image.as_os_str()]),
        "dwarfs: no mountpoint specified\n"
    );
    // A damaged image leaves no directory behind.
    let broken = dir.path().join("broken.dwarfs");
    fs::write(&broken, "no image").expect("write");
    failed(&[broken.as_os_str(), auto]);
    assert!(!dir.path().join("broken").exists());
    // Nobody may make a directory in /proc.
    let link = dir.path().join("far");
    symlink("/proc", &link).expect("symlink");
    let output = failed(&[OsStr::new("/proc/self/no.dwarfs"), auto]);
    assert!(output.starts_with("dwarfs: cannot open image: /proc/self/no.dwarfs: "));
}

/// A directory where nothing can be made.
#[test]
fn auto_mountpoint_without_permission() {
    let test = "auto_mountpoint_without_permission";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("mkdir");
    fs::copy(golden("one").image, tree.join("x.dwarfs")).expect("copy");
    // A read-only mount refuses even root.
    let script = r#"mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"
        if "$2" "$1/x.dwarfs" --auto-mountpoint; then exit 99; else exit $?; fi"#;
    let Some(output) = in_namespace(test, script, &[tree.as_os_str(), OsStr::new(DWARFS)]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(
        stderr(&output),
        format!(
            "dwarfs: unable to create mountpoint directory: {}/x: read-only file system\n",
            tree.display()
        )
    );
}

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
fn log_file_survives_the_background() {
    if !can_mount("log_file_survives_the_background") {
        return;
    }
    let dir = temp();
    let image = damaged(dir.path());
    fs::write(dir.path().join("lo,g"), "kept\n").expect("write");
    let log = dir.path().join("lo,g");
    let point = Mount::new_dir();
    // Relative, with a comma, through the long option.
    let output = dwarfs()
        .current_dir(dir.path())
        .args(["--log-file", "lo,g", "damaged.dwarfs"])
        .arg(point.path())
        .output()
        .expect("the program can be started");
    assert!(output.status.success(), "{}", stderr(&output));
    assert_eq!(stderr(&output), "");
    let mount = Mount {
        dir: point,
        child: None,
    };
    assert!(read_all(mount.point()) > 0);
    let text = fs::read_to_string(&log).expect("a log");
    assert!(text.starts_with("kept\nI "), "{text}");
    assert!(text.contains(" file system initialized ["), "{text}");
    let errors: Vec<&str> = text.lines().filter(|l| l.starts_with("E ")).collect();
    assert!(!errors.is_empty(), "{text}");
    assert!(errors.iter().all(|line| line.contains("inode")), "{text}");
    // Rotation by copying and truncating.
    File::options()
        .write(true)
        .truncate(true)
        .open(&log)
        .expect("truncate");
    let pid = driver_of(mount.point());
    kill(pid, Signal::USR1);
    let text = || fs::read_to_string(&log).expect("a log");
    wait_until("statistics", || text().contains("bytes pushed"));
    assert!(text().starts_with("I "), "{}", text());
    kill(pid, Signal::HUP);
    wait_until("the end of the driver", || !alive(pid));
    assert!(text().ends_with(" file system unmounted\n"), "{}", text());
    drop(mount);

    // What keeps the command from mounting is on standard error, and in the log.
    let point = Mount::new_dir();
    let option = format!("log_file={}", log.display()).replace(',', "\\,");
    let output = run(&[
        OsStr::new("/no/such/image"),
        point.path().as_os_str(),
        OsStr::new("-o"),
        OsStr::new(&option),
    ]);
    assert_eq!(output.status.code(), Some(1));
    let line = "cannot open image: /no/such/image: no such file or directory";
    assert_eq!(stderr(&output), format!("dwarfs: {line}\n"));
    assert!(text().ends_with(&format!(" {line}\n")), "{}", text());

    let output = run(&[
        image.as_os_str(),
        point.path().as_os_str(),
        OsStr::new("-olog_file=/no/such/dir/log"),
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "dwarfs: cannot open log file: /no/such/dir/log: no such file or directory\n"
    );
}

/// Sets up `/dev` of a mount namespace with a log socket of the test.
const PRIVATE_DEV: &str = r#"
    new=$1/dev; mkdir "$new"; mount -t tmpfs none "$new"
    for node in null zero fuse; do
        if [ -e "/dev/$node" ]; then : >"$new/$node"; mount --bind "/dev/$node" "$new/$node"; fi
    done
"#;

#[test]
fn syslog_survives_the_background() {
    let test = "syslog_survives_the_background";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let image = damaged(dir.path());
    let server = UnixDatagram::bind(dir.path().join("socket")).expect("bind");
    server
        .set_read_timeout(Some(Duration::from_secs(20)))
        .expect("a limit");
    fs::create_dir(dir.path().join("mnt")).expect("mkdir");
    let script = format!(
        r#"{PRIVATE_DEV}
        ln -s "$1/socket" "$new/log"; mount --move "$new" /dev
        "$2" "$3" "$1/mnt" -o "$4"
        cat "$1"/mnt/* >/dev/null 2>&1 || true
        umount "$1/mnt""#
    );
    for option in ["syslog", "log_target=syslog"] {
        let arguments = [
            dir.path().as_os_str(),
            OsStr::new(DWARFS),
            image.as_os_str(),
            OsStr::new(option),
        ];
        let Some(output) = in_namespace(test, &script, &arguments) else {
            return;
        };
        assert!(output.status.success(), "{}", stderr(&output));
        assert_eq!(stderr(&output), "");
        let mut lines: Vec<String> = Vec::new();
        let mut buffer = [0; 9_000];
        while !lines
            .last()
            .is_some_and(|l| l.ends_with("file system unmounted"))
        {
            let length = server.recv(&mut buffer).expect("a message");
            lines.push(String::from_utf8_lossy(&buffer[..length]).into_owned());
        }
        assert!(
            lines.iter().all(|line| line.contains(" dwarfs[")),
            "{lines:?}"
        );
        let has = |start: &str, part: &str| {
            let found = |line: &&String| line.starts_with(start) && line.contains(part);
            assert!(lines.iter().any(|line| found(&line)), "{part}: {lines:?}");
        };
        has("<30>", "]: dwarfs (RedwarFS ");
        has("<30>", "]: file system initialized [");
        has("<27>", "inode");
        fs::remove_dir(dir.path().join("dev")).expect("empty outside");
    }
}

#[test]
fn syslog_that_is_not_there() {
    let test = "syslog_that_is_not_there";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let script = format!(
        r#"{PRIVATE_DEV}
        mount --move "$new" /dev; mkdir "$1/mnt"
        if "$2" "$3" "$1/mnt" -o syslog; then exit 99; else exit $?; fi"#
    );
    let image = golden("one").image;
    let arguments = [
        dir.path().as_os_str(),
        OsStr::new(DWARFS),
        image.as_os_str(),
    ];
    let Some(output) = in_namespace(test, &script, &arguments) else {
        return;
    };
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "dwarfs: cannot reach the system log: /dev/log: no such file or directory\n"
    );
}

#[test]
fn statistics_on_sigusr1_and_at_the_end() {
    if !can_mount("statistics_on_sigusr1_and_at_the_end") {
        return;
    }
    let image = golden("basic-default").image;
    let dir = temp();
    let log = dir.path().join("log");
    let option = format!("debuglevel=warn,log_file={}", log.display());
    let mount = Mount::background(&image, &option);
    let pid = driver_of(mount.point());
    let text = || fs::read_to_string(&log).unwrap_or_default();
    // While others read, and more than once.
    std::thread::scope(|scope| {
        let reader = scope.spawn(|| (0..20).map(|_| read_all(mount.point())).sum::<usize>());
        for round in 1..=3 {
            kill(pid, Signal::USR1);
            wait_until("statistics", || {
                text().matches("bytes pushed").count() == round
            });
        }
        assert_eq!(reader.join().expect("a reader"), 0);
    });
    let lines = text();
    for name in [
        "blocks created",
        "total requests",
        "miss rate",
        "total bytes decompressed",
    ] {
        assert_eq!(lines.matches(&format!(" {name}: ")).count(), 3, "{lines}");
    }
    assert!(lines.lines().all(|line| line.starts_with("I ")), "{lines}");
    kill(pid, Signal::TERM);
    wait_until("the end of the driver", || !alive(pid));
    // At the end only those get it who want details.
    assert_eq!(text().lines().count(), lines.lines().count(), "{}", text());
    drop(mount);
    let mut mount = Mount::foreground(&image, &["-odebuglevel=verbose"]);
    read_all(mount.point());
    mount.signal(Signal::TERM);
    let (code, log) = mount.finish();
    assert_eq!(code, Some(0));
    for name in [
        "FUSE loop exited with status: 0",
        "blocks created: ",
        "miss rate: ",
    ] {
        let line = log.lines().find(|line| line.contains(name));
        assert!(
            line.is_some_and(|line| line.starts_with("V ")),
            "{name}: {log}"
        );
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
    let mount = Mount {
        dir: Mount::new_dir(),
        child: None,
    };
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
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o755)).expect("chmod");
    std::os::unix::fs::chown(&point, Some(65534), Some(65534)).expect("chown");
    fs::copy(golden("one").image, dir.path().join("x.dwarfs")).expect("copy");
    // The device may be root's alone outside.
    let script = format!(
        r#"{PRIVATE_DEV}
        umount "$new/fuse"; rm "$new/fuse"; mknod -m 666 "$new/fuse" c 10 229
        mount --move "$new" /dev
        user() {{ setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }}
        mnt=$1/mnt; image=$1/x.dwarfs
        user fusermount3 -V >/dev/null && user "$2" --version >/dev/null || exit 77
        gone() {{
            for n in $(seq 400); do
                grep -q " $mnt " /proc/self/mounts || return 0
                sleep 0.05
            done
            echo "still mounted after $1"; return 1
        }}
        driver() {{
            for p in /proc/[0-9]*; do
                if [ "$(cat "$p/comm" 2>/dev/null)" = dwarfs ] &&
                    tr '\0' ' ' <"$p/cmdline" 2>/dev/null | grep -q "$image"; then
                    echo "${{p#/proc/}}"
                fi
            done
        }}
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
        fi"#
    );
    let arguments = [dir.path().as_os_str(), OsStr::new(DWARFS)];
    let Some(output) = in_namespace(test, &script, &arguments) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    if output.status.code() == Some(77) {
        return skip(
            test,
            "no setpriv, no fusermount3, or the program cannot be reached by users",
        );
    }
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
        (&[], Signal::TERM, Ok(8), "dwarfs: interrupted\n"),
        (
            &["-ono_guard"],
            Signal::TERM,
            Ok(8),
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
fn without_fuse_the_exit_code_is_three_or_four() {
    let test = "without_fuse_the_exit_code_is_three_or_four";
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
            4,
            "dwarfs: cannot mount: ",
        ),
    ] {
        let dir = temp();
        fs::create_dir(dir.path().join("mnt")).expect("mkdir");
        let script = format!("{PRIVATE_DEV}\n{prepare}\nmount --move \"$new\" /dev\n{try_it}");
        let arguments = [
            dir.path().as_os_str(),
            OsStr::new(DWARFS),
            image.as_os_str(),
        ];
        let Some(output) = in_namespace(test, &script, &arguments) else {
            return;
        };
        let text = stderr(&output);
        assert_eq!(output.status.code(), Some(code), "{text}");
        assert!(text.starts_with(message), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
}

/// The file system that mount(8) looks for, made visible by a link.
fn helper_link(dir: &Path) -> PathBuf {
    let link = dir.join("mount.dwarfs");
    symlink(DWARFS, &link).expect("symlink");
    link
}

#[test]
fn mount_dwarfs_understands_what_mount_says() {
    if !can_mount("mount_dwarfs_understands_what_mount_says") {
        return;
    }
    let dir = temp();
    let helper = helper_link(dir.path());
    let image = golden("one").image;
    let mount = Mount {
        dir: Mount::new_dir(),
        child: None,
    };
    let call = |extra: &[&str], source: &OsStr| {
        let output = Command::new(&helper)
            .arg(source)
            .arg(mount.point())
            .args(extra)
            .stdin(Stdio::null())
            .output();
        output.expect("the program can be started")
    };
    // "Fake": everything but the mount.
    let output = call(&["-f", "-o", "rw"], image.as_os_str());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(table_line(mount.point()).is_none());
    let output = call(&["-f"], OsStr::new("/no/such/image"));
    assert_eq!(output.status.code(), Some(1));
    let output = call(&["-f", "-obogus"], image.as_os_str());
    assert_eq!(output.status.code(), Some(3));

    let mut source = std::ffi::OsString::from("dwarfs#");
    source.push(&image);
    for (flags, source) in [
        (&["-o", "rw,noauto,user=me,fsname=z"][..], image.as_os_str()),
        (
            &["-n", "-s", "-r", "-t", "dwarfs", "-o", "allow_other"],
            &source,
        ),
        (&["-w", "-v", "-N", "/proc/self/ns/mnt"], &source),
    ] {
        let output = call(flags, source);
        let text = stderr(&output);
        assert!(output.status.success(), "{flags:?}: {text}");
        assert_eq!(
            text.contains("file system initialized"),
            flags.contains(&"-v")
        );
        assert!(mount.point().join("only").exists());
        driver::unmount(mount.point());
    }
}

/// `/sbin` of a mount namespace gets the link that an installation makes.
const LINK_IN_SBIN: &str = r#"
    sbin=$(readlink -f /sbin)
    mkdir "$1/up"
    mount -t tmpfs none "$1/up"; mkdir "$1/up/u" "$1/up/w"
    mount -t overlay none -o "lowerdir=$sbin,upperdir=$1/up/u,workdir=$1/up/w" "$sbin"
    ln -s "$2" /sbin/mount.dwarfs
"#;

#[test]
fn mount_of_the_system_with_the_link() {
    let test = "mount_of_the_system_with_the_link";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    fs::create_dir(dir.path().join("mnt")).expect("mkdir");
    let script = format!(
        r#"{LINK_IN_SBIN}
        look() {{ cat "$1/mnt/only" | wc -c; grep " $1/mnt " /proc/self/mounts; umount "$1/mnt"; }}
        mount -t dwarfs "$3" "$1/mnt" -o allow_other,cachesize=1m; look "$1"
        mount -r -v -t dwarfs "dwarfs#$3" "$1/mnt" 2>/dev/null; look "$1"
        mount -f -t dwarfs "$3" "$1/mnt"; grep -c " $1/mnt " /proc/self/mounts || true
        printf '%s %s dwarfs noauto,user,nofail,x-test,fsname=tab 0 0\n' "$3" "$1/mnt" >"$1/fstab"
        mount --bind "$1/fstab" /etc/fstab
        mount "$1/mnt"; look "$1"
        if mount -t dwarfs /no/such/image "$1/mnt"; then exit 99; fi
        if mount -t dwarfs "$3" "$1/mnt" -o bogus; then exit 98; fi"#
    );
    let image = golden("one").image.canonicalize().expect("a path");
    let arguments = [
        dir.path().as_os_str(),
        OsStr::new(DWARFS),
        image.as_os_str(),
    ];
    let Some(output) = in_namespace(test, &script, &arguments) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    if !output.status.success() && errors.contains("overlay") {
        return skip(test, "there is no overlay file system for /sbin");
    }
    assert!(output.status.success(), "{text}{errors}");
    let lines: Vec<&str> = text.lines().collect();
    let size = fs::metadata(&image).map(|_| lines[0]).expect("an image");
    assert!(size.parse::<u64>().is_ok_and(|n| n > 0), "{text}");
    let mounts: Vec<&&str> = lines
        .iter()
        .filter(|l| l.contains(" fuse.dwarfs ro,"))
        .collect();
    assert_eq!(mounts.len(), 3, "{text}");
    assert!(mounts[0].contains("allow_other"), "{text}");
    assert!(
        mounts[0].starts_with(image.to_str().expect("a plain path")),
        "{text}"
    );
    assert!(mounts[2].starts_with("tab "), "{text}");
    assert!(lines.contains(&"0"), "nothing is mounted with -f: {text}");
    assert!(
        errors.contains("dwarfs: cannot open image: /no/such/image: no such file or directory"),
        "{errors}"
    );
    assert!(
        errors.contains("dwarfs: unknown option: -o bogus"),
        "{errors}"
    );
}

#[test]
fn mount_of_the_system_through_the_fuse_helper() {
    let test = "mount_of_the_system_through_the_fuse_helper";
    if !can_mount(test) {
        return;
    }
    if !["/sbin/mount.fuse3", "/sbin/mount.fuse"]
        .iter()
        .any(|helper| Path::new(helper).exists())
    {
        return skip(test, "neither mount.fuse3 nor mount.fuse is installed");
    }
    let dir = temp();
    fs::create_dir(dir.path().join("mnt")).expect("mkdir");
    // The helper searches in the directories of the system only.
    let script = r#"
        ln -s "$2" /sbin/dwarfs
        look() { wc -c <"$1/mnt/only"; grep " $1/mnt " /proc/self/mounts; umount "$1/mnt"; }
        mount -t fuse.dwarfs "$3" "$1/mnt"; look "$1"
        mount -t fuse.dwarfs "$3" "$1/mnt" -o ro,allow_other,nosuid,nodev,cachesize=1m; look "$1"
        mount -t fuse "dwarfs#$3" "$1/mnt" -o readonly; look "$1"
        for line in "dwarfs#$3 $1/mnt fuse noauto,defaults,user,cachesize=1g 0 0" \
            "$3 $1/mnt fuse.dwarfs defaults,allow_other,ro 0 0"; do
            printf '%s\n' "$line" >"$1/fstab"
            mount --bind "$1/fstab" /etc/fstab
            mount "$1/mnt"; look "$1"
            umount /etc/fstab
        done"#;
    let image = golden("one").image.canonicalize().expect("a path");
    let arguments = [
        dir.path().as_os_str(),
        OsStr::new(DWARFS),
        image.as_os_str(),
    ];
    let script = format!("{LINK_IN_SBIN}\n{script}");
    let Some(output) = in_namespace(test, &script, &arguments) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    if !output.status.success() && errors.contains("overlay") {
        return skip(test, "there is no overlay file system for /sbin");
    }
    assert!(output.status.success(), "{text}{errors}");
    let mounts: Vec<&str> = text
        .lines()
        .filter(|l| l.contains(" fuse.dwarfs ro,"))
        .collect();
    assert_eq!(mounts.len(), 5, "{text}{errors}");
    for line in &mounts {
        assert!(
            line.starts_with(image.to_str().expect("a plain path")),
            "{line}"
        );
    }
    assert!(
        mounts[1].contains("nosuid") && mounts[1].contains("allow_other"),
        "{text}"
    );
}

#[test]
fn versions_helps_and_manuals() {
    for (tool, path) in [
        ("mkdwarfs", env!("CARGO_BIN_EXE_mkdwarfs")),
        ("dwarfs", DWARFS),
        ("dwarfsck", env!("CARGO_BIN_EXE_dwarfsck")),
        ("dwarfsextract", env!("CARGO_BIN_EXE_dwarfsextract")),
        ("redwarfs", env!("CARGO_BIN_EXE_redwarfs")),
    ] {
        let run = |arguments: &[&str]| {
            let output = Command::new(path)
                .args(arguments)
                .stdin(Stdio::null())
                .output();
            let output = output.expect("the program can be started");
            assert_eq!(output.status.code(), Some(0), "{tool} {arguments:?}");
            assert_eq!(stderr(&output), "", "{tool} {arguments:?}");
            stdout(&output)
        };
        assert_eq!(
            run(&["--version"]),
            format!("{tool} {} (RedwarFS)\n", env!("CARGO_PKG_VERSION"))
        );
        let help = run(&["--help"]);
        assert!(help.contains(&format!("\nUsage: {tool} ")), "{help}");
        let manual = run(&["--man"]);
        assert!(manual.starts_with(&format!("{tool}(1) -- ")), "{manual}");
        for title in [
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "EXIT STATUS",
            "SEE ALSO",
        ] {
            assert!(
                manual.contains(&format!("\n{title}\n        ")),
                "{tool} {title}"
            );
        }
        assert!(!manual.contains('\u{1b}'), "{tool}");
        if tool == "dwarfs" {
            assert_eq!(run(&["-V"]), run(&["--version"]));
            assert_eq!(run(&["-h"]), help);
            let long = |line: &&str| line.chars().count() > 80;
            assert_eq!(help.lines().find(long), None);
        }
    }
}

#[test]
fn manual_on_a_terminal_uses_the_pager_and_the_width() {
    let test = "manual_on_a_terminal_uses_the_pager_and_the_width";
    let terminal = |pager: Option<&str>, term: &str, width: u32| {
        let line = format!("stty cols {width}; exec '{DWARFS}' --man");
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]);
        command.env_remove("PAGER").env("TERM", term);
        if let Some(pager) = pager {
            command.env("PAGER", pager);
        }
        let output = command.stdin(Stdio::null()).output().ok()?;
        Some(stdout(&output).replace('\r', ""))
    };
    let Some(plain) = terminal(Some("cat"), "dumb", 60) else {
        return skip(test, "no program 'script' here");
    };
    if !plain.contains("SYNOPSIS") {
        return skip(test, "no terminal can be made here");
    }
    assert!(!plain.contains('\u{1b}'));
    let width = |text: &str| {
        let running = text
            .lines()
            .filter(|line| !line.contains("  dwarfs") && !line.contains("/data"));
        running
            .map(|line| line.chars().count())
            .filter(|&n| n < 130)
            .max()
    };
    let text = plain.split("EXAMPLES").next().unwrap_or_default();
    let text = text.split("MOUNT(8)").next().unwrap_or_default();
    assert!(
        width(text).is_some_and(|n| (50..60).contains(&n)),
        "{plain}"
    );
    let wide = terminal(Some("cat"), "dumb", 120).expect("worked before");
    assert!(wide.lines().count() < plain.lines().count());
    let fancy = terminal(Some("\"cat\""), "xterm", 60).expect("worked before");
    assert!(fancy.contains("\u{1b}[1mSYNOPSIS\u{1b}[22m"), "{fancy}");
    let paged = terminal(Some("sed s/^/page:/"), "xterm", 60).expect("worked before");
    assert!(
        paged.lines().all(|line| line.starts_with("page:")),
        "{paged}"
    );
    let missing = terminal(Some("/no/such/pager"), "xterm", 60).expect("worked before");
    assert!(missing.contains("SYNOPSIS"), "{missing}");
}

#[test]
fn images_that_cannot_be_opened_are_named() {
    let dir = temp();
    let point = Mount::new_dir();
    let empty = dir.path().join("empty");
    fs::write(&empty, "").expect("write");
    for (image, cause) in [
        (dir.path().join("missing"), "no such file or directory"),
        (dir.path().to_owned(), "is a directory"),
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
    let script = r#"mount -t fusectl none "$1"; echo 1 >"$1/$2/abort""#;
    let minor = minor.to_string();
    let arguments = [dir.path().as_os_str(), OsStr::new(&minor)];
    let Some(output) = in_namespace(test, script, &arguments) else {
        return;
    };
    if !output.status.success() {
        return skip(test, "connections cannot be aborted here");
    }
    wait_until("the end of the driver", || !alive(pid));
    wait_until("the unmount", || table_line(mount.point()).is_none());
}
