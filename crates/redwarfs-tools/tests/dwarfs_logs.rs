//! What a driver tells: log file, system log, statistics.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::net::UnixDatagram;
use std::path::{Path, PathBuf};
use std::time::Duration;

use crate::driver::{
    Mount, PRIVATE_DEV, alive, can_mount, driver_of, dwarfs, in_namespace, kill, run, stderr, temp,
    wait_until,
};
use redwarfs_testkit::golden::golden;
use rustix::process::Signal;

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
    let mount = Mount::on(point);
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
        let Some(output) = in_namespace(
            test,
            &script,
            dir.path(),
            &[image.as_os_str(), OsStr::new(option)],
        ) else {
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
    let Some(output) = in_namespace(test, &script, dir.path(), &[image.as_os_str()]) else {
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
    assert_eq!(text().matches("bytes pushed").count(), 3, "{}", text());
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
