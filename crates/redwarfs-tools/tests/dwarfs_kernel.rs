//! What the driver and the kernel agree on: what is cached, pushed and followed, and io_uring.

use crate::driver;
use crate::driver::{Mount, can_mount, driver_of, kill, table_line, wait_until};
use crate::dwarfs_options::{Logged, big_image, statistic, temp};
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::{Fields, Manifest};
use rustix::process::Signal;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering};

/// How often the driver is asked for data of a file when it is read twice.
fn reads_of(image: &Path, name: &str, options: &str) -> usize {
    let dir = temp();
    let log = dir.path().join("log");
    let all = format!(
        "log_file={},debuglevel=debug,no_push,{options}",
        log.display()
    );
    let mount = Mount::background(image, &all);
    for _ in 0..2 {
        fs::read(mount.point().join(name)).expect("read");
    }
    let text = fs::read_to_string(&log).expect("a log");
    text.matches(" op_read(").count()
}

#[test]
fn the_kernel_keeps_what_it_is_allowed_to() {
    if !can_mount("the_kernel_keeps_what_it_is_allowed_to") {
        return;
    }
    let image = golden("basic-default").image;
    // Without holes.
    let once = reads_of(&image, "text.txt", "");
    assert!(once > 0);
    assert_eq!(
        reads_of(&image, "text.txt", "no_cache_files,cache_files"),
        once
    );
    assert_eq!(reads_of(&image, "text.txt", "no_cache_files"), 2 * once);
    // With holes.
    let once = reads_of(&image, "all-hole", "cache_sparse");
    assert!(once > 0);
    assert_eq!(reads_of(&image, "all-hole", ""), 2 * once);
    assert_eq!(reads_of(&image, "all-hole", "no_cache_sparse"), 2 * once);
    assert_eq!(
        reads_of(&image, "all-hole", "cache_sparse,no_cache_files"),
        2 * once
    );
}

#[test]
fn small_files_are_pushed_unless_forbidden() {
    if !can_mount("small_files_are_pushed_unless_forbidden") {
        return;
    }
    let image = golden("many-default");
    let pushed = |options: &str| {
        let logged = Logged::new(&image.image, options);
        let seen = Manifest::from_directory(logged.point(), true).expect("a readable tree");
        image
            .manifest()
            .assert_same(&seen, Fields::EXTRACTED, options);
        statistic(&logged.end(), "files pushed").expect("statistics")
    };
    assert_eq!(pushed("no_push"), 0);
    assert_eq!(pushed("push,no_push"), 0);
}

#[test]
fn a_reader_follows_unless_forbidden() {
    const NAME: &str = "a_reader_follows_unless_forbidden";
    if !can_mount(NAME) {
        return;
    }
    let status = fs::read_to_string("/proc/self/status").expect("a status");
    let capabilities = status
        .lines()
        .find_map(|line| line.strip_prefix("CapEff:"))
        .and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    // CAP_SYS_NICE.
    let may = capabilities.is_some_and(|mask| mask & (1 << 23) != 0);
    if !may || std::thread::available_parallelism().map_or(1, usize::from) < 2 {
        redwarfs_testkit::skip(NAME, "needs two processors and the capability SYS_NICE");
        return;
    }
    let image = golden("many-default");
    let watched = |options: &str, rounds: usize| {
        let mount = Mount::foreground(&image.image, &["-o", options]);
        let pid = mount.child.as_ref().expect("in the foreground").id();
        (0..rounds).any(|round| {
            // Names that the kernel has not asked for yet.
            for n in 0..200 {
                assert!(!mount.point().join(format!("{round}-{n}")).exists());
            }
            let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("threads");
            threads
                .filter_map(|thread| fs::read_to_string(thread.ok()?.path().join("comm")).ok())
                .any(|name| name.trim() == "fuse-follow")
        })
    };
    assert!(watched("follow", 1_000), "nobody looks after the reader");
    assert!(!watched("no_follow", 20));
}

/// Whether the kernel offers io_uring for FUSE, said aloud: the tests below show the one or the other.
fn ring_is_offered(test: &str) -> bool {
    let value = |path| fs::read_to_string(path).unwrap_or_default();
    let offered = value("/sys/module/fuse/parameters/enable_uring").trim() == "Y"
        && value("/proc/sys/kernel/io_uring_disabled").trim() == "0";
    let what = if offered {
        "over io_uring"
    } else {
        "falling back to /dev/fuse, because the kernel does not offer io_uring"
    };
    // Past the capture of the test harness.
    let mut stderr = std::io::stderr();
    std::io::Write::write_fmt(&mut stderr, format_args!("{test}: {what}\n")).expect("stderr");
    offered
}

#[test]
fn uring_is_used_where_it_is_offered() {
    const NAME: &str = "uring_is_used_where_it_is_offered";
    if !can_mount(NAME) {
        return;
    }
    let offered = ring_is_offered(NAME);
    let image = golden("many-default");
    for (options, asked) in [("uring", true), ("uring,no_uring", false)] {
        let logged = Logged::new(&image.image, &format!("{options},debuglevel=debug"));
        let seen = Manifest::from_directory(logged.point(), true).expect("a readable tree");
        image
            .manifest()
            .assert_same(&seen, Fields::EXTRACTED, options);
        let log = logged.end();
        let (over, back) = (
            "requests come over io_uring",
            "requests come through /dev/fuse",
        );
        assert_eq!(log.contains(over), asked && offered, "{log}");
        assert_eq!(log.contains(back), asked && !offered, "{log}");
        let requests = statistic(&log, "requests over io_uring").unwrap_or_default();
        assert_eq!(requests > 0, asked && offered, "{log}");
    }
}

/// Whatever is missing for io_uring, a mount works that works without: each number of open files makes
/// something else fail.
#[test]
fn uring_falls_back_where_something_is_missing() {
    const NAME: &str = "uring_falls_back_where_something_is_missing";
    if !can_mount(NAME) {
        return;
    }
    let offered = ring_is_offered(NAME);
    let image = golden("one").image;
    // Whether the driver mounts, and whether requests come over io_uring then.
    let mounts = |limit: &str, options: &str| {
        let dir = temp();
        let log = dir.path().join("log");
        let mount = Mount::on(Mount::new_dir());
        let output = Command::new("prlimit")
            .args([limit, driver::DWARFS])
            .arg(&image)
            .arg(mount.point())
            .arg("-o")
            .arg(format!("log_file={},{options}", log.display()))
            .output()
            .expect("prlimit can be started");
        if !output.status.success() {
            return None;
        }
        let read = fs::read(mount.point().join("only"));
        assert!(read.is_ok(), "{limit} {options}: {read:?}");
        kill(driver_of(mount.point()), Signal::USR1);
        let mut text = String::new();
        wait_until("statistics", || {
            text = fs::read_to_string(&log).expect("a log");
            statistic(&text, "bytes pushed").is_some()
        });
        Some(statistic(&text, "requests over io_uring").is_some())
    };
    let (mut fallen, mut over) = (0, 0);
    for files in 6..50 {
        let limit = format!("--nofile={files}");
        if mounts(&limit, "no_uring").is_none() {
            continue;
        }
        match mounts(&limit, "uring") {
            None => panic!("{limit}: not mounted with io_uring"),
            Some(true) => over += 1,
            Some(false) => fallen += 1,
        }
    }
    assert_eq!(over > 0, offered);
    assert!(fallen > 0);
}

/// The driver ends while several threads read: they get what they ask for, or an error.
#[test]
fn uring_ends_on_a_signal_while_files_are_read() {
    const NAME: &str = "uring_ends_on_a_signal_while_files_are_read";
    if !can_mount(NAME) {
        return;
    }
    ring_is_offered(NAME);
    let dir = temp();
    let (image, content) = big_image(dir.path(), &["-l1", "-S16"]);
    for signal in [Signal::TERM, Signal::KILL] {
        for _ in 0..5 {
            let options = ["-o", "uring,no_cache_files,cachesize=64k,debuglevel=error"];
            let mut mount = Mount::foreground(&image, &options);
            let started = AtomicUsize::new(0);
            std::thread::scope(|scope| {
                for reader in 0..4 {
                    let (path, content) = (mount.point().join("big"), &content);
                    let started = &started;
                    scope.spawn(move || {
                        for n in 0.. {
                            let Ok(file) = File::open(&path) else {
                                // The directory below the mount.
                                break;
                            };
                            let offset = (n * 7919 + reader * 104_729) % (content.len() - 4096);
                            let mut data = [0; 4096];
                            let read = file.read_exact_at(&mut data, offset as u64);
                            started.fetch_add(1, Ordering::Relaxed);
                            if read.is_err() {
                                break;
                            }
                            assert_eq!(data[..], content[offset..offset + 4096]);
                        }
                    });
                }
                wait_until("files are read", || started.load(Ordering::Relaxed) > 50);
                mount.signal(signal);
                let (code, log) = mount.finish();
                let expected = (signal == Signal::TERM).then_some(0);
                assert_eq!(code, expected, "{log}");
                wait_until("the mount is gone", || table_line(mount.point()).is_none());
            });
        }
    }
}
