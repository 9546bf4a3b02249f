//! What the driver writes down: its log, the analysis file, and counters.

use crate::driver;
use crate::driver::{
    Mount, can_mount, driver_of, kill, run, stderr, table_line, wait_until, xattr,
};
use crate::dwarfs_options::temp;
use redwarfs_testkit::golden::golden;
use rustix::process::Signal;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::os::unix::ffi::OsStrExt;

#[test]
fn levels_of_the_log() {
    if !can_mount("levels_of_the_log") {
        return;
    }
    let dir = temp();
    let letters = |options: &[&str]| {
        let log = dir.path().join("log");
        let _ = fs::remove_file(&log);
        let mut mount = Mount::foreground(
            &golden("one").image,
            &[
                &["-o", &format!("cache_image,log_file={}", log.display())][..],
                options,
            ]
            .concat(),
        );
        fs::read(mount.point().join("only")).expect("read");
        mount.signal(Signal::TERM);
        assert_eq!(mount.finish().0, Some(0));
        let text = fs::read_to_string(log).expect("a log");
        let mut letters: Vec<char> = text.lines().filter_map(|l| l.chars().next()).collect();
        // The date comes before the first message, whatever that is.
        if !text.is_empty() {
            assert!(text.starts_with("I ") && text.contains(" date: "), "{text}");
            letters.remove(0);
        }
        letters.sort_unstable();
        letters.dedup();
        letters.into_iter().collect::<String>()
    };
    assert_eq!(letters(&[]), "IW");
    assert_eq!(letters(&["-odebuglevel=error"]), "");
    assert_eq!(letters(&["-odebuglevel=warn"]), "W");
    assert_eq!(letters(&["-odebuglevel=verbose"]), "IVW");
    assert_eq!(letters(&["-odebuglevel=debug"]), "DIVW");
    assert_eq!(letters(&["-d"]), "DIVW");
    assert_eq!(letters(&["-odebug"]), "DIVW");
    assert_eq!(letters(&["-d", "-odebuglevel=info"]), "IW");
}

#[test]
fn requests_are_logged_with_their_source_only_from_debug() {
    if !can_mount("requests_are_logged_with_their_source_only_from_debug") {
        return;
    }
    let log = |level: &str| {
        let mut mount = Mount::foreground(&golden("one").image, &["-o", level]);
        fs::read(mount.point().join("only")).expect("read");
        mount.signal(Signal::TERM);
        mount.finish().1
    };
    let text = log("debuglevel=verbose");
    assert!(text.contains(" V ") || text.contains("\nV "), "{text}");
    assert!(!text.contains(".rs:"), "{text}");
    let text = log("debuglevel=debug");
    assert!(text.contains(".rs:") && text.contains("op_"), "{text}");
}

#[test]
fn analysis_file_lists_first_openings() {
    if !can_mount("analysis_file_lists_first_openings") {
        return;
    }
    let dir = temp();
    let list = dir.path().join("an,alysis");
    fs::write(&list, "of another run\n").expect("write");
    let image = golden("basic-default");
    let option = format!("analysis_file={}", list.display()).replace(',', "\\,");
    let mount = Mount::background(&image.image, &option);
    assert_eq!(fs::read(&list).expect("a list"), b"");
    let files: Vec<Vec<u8>> = image
        .manifest()
        .0
        .iter()
        .filter(|(_, entry)| entry.mode & 0o170_000 == 0o100_000)
        .map(|(name, _)| name.clone())
        .filter(|name| name == b"text.txt" || name.contains(&b'/'))
        .take(4)
        .collect();
    assert!(files.len() >= 2, "{files:?}");
    let mut want = Vec::new();
    for name in files.iter().rev().chain(&files) {
        let path = mount.point().join(OsStr::from_bytes(name));
        File::open(&path).expect("open");
        if want.iter().all(|seen| seen != name) {
            want.push(name.clone());
        }
        // At once, not at the end.
        let mut lines: Vec<u8> = want.join(&b'\n');
        lines.push(b'\n');
        assert_eq!(fs::read(&list).expect("a list"), lines);
    }
    drop(mount);

    let point = Mount::new_dir();
    let output = run(&[
        image.image.as_os_str(),
        point.path().as_os_str(),
        OsStr::new("-oanalysis_file=/no/such/dir/list"),
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "dwarfs: cannot create analysis file: /no/such/dir/list: no such file or directory\n"
    );
    assert!(table_line(point.path()).is_none());
}

#[test]
fn perfmon_in_attribute_log_and_trace() {
    if !can_mount("perfmon_in_attribute_log_and_trace") {
        return;
    }
    let dir = temp();
    let (log, trace) = (dir.path().join("log"), dir.path().join("trace"));
    let image = golden("basic-default").image;
    let attribute = "user.dwarfs.driver.perfmon";
    let mount = Mount::background(&image, "");
    assert_eq!(
        xattr(mount.point(), attribute).expect("the attribute"),
        "performance monitor is disabled\n"
    );
    drop(mount);

    let options = format!(
        "perfmon=block_cache+fuse,log_file={},debuglevel=warn,perfmon_trace={}",
        log.display(),
        trace.display()
    );
    let mount = Mount::background(&image, &options);
    fs::read(mount.point().join("text.txt")).expect("read");
    let text = xattr(mount.point(), attribute).expect("the attribute");
    for part in ["[block_cache.", "[fuse.op_", "samples: ", "p99 latency: "] {
        assert!(text.contains(part), "{part} in {text}");
    }
    for part in ["[filesystem_v2.", "[inode_reader_v2."] {
        assert!(!text.contains(part), "{part} in {text}");
    }
    let shown = |text: &str| text.matches("[block_cache.get]").count();
    let read = || fs::read_to_string(&log).unwrap_or_default();
    let pid = driver_of(mount.point());
    // On request, in spite of the level, and again at the end.
    kill(pid, Signal::USR1);
    wait_until("statistics", || {
        shown(&read()) == 1 && read().contains("blocks created: ")
    });
    assert!(fs::read(mount.point().join("text.txt")).is_ok());
    kill(pid, Signal::TERM);
    wait_until("the end of the driver", || !driver::alive(pid));
    let text = read();
    assert_eq!(shown(&text), 2, "{text}");
    assert!(text.lines().all(|line| line.starts_with("I ")), "{text}");

    let events = fs::read_to_string(&trace).expect("a trace");
    assert!(events.trim_start().starts_with('['), "{events}");
    assert!(events.trim_end().ends_with(']'), "{events}");
    let count = |what: &str| events.matches(what).count();
    assert!(count("\"ph\": \"B\"") > 0);
    assert_eq!(count("\"ph\": \"B\""), count("\"ph\": \"E\""));
    assert!(count("\"cat\": \"fuse\"") > 0);
    drop(mount);

    let point = Mount::new_dir();
    let output = run(&[
        image.as_os_str(),
        point.path().as_os_str(),
        OsStr::new("-operfmon=fuse,perfmon_trace=/no/such/dir/trace"),
    ]);
    assert_eq!(output.status.code(), Some(1));
    assert_eq!(
        stderr(&output),
        "dwarfs: cannot create trace file: /no/such/dir/trace: no such file or directory\n"
    );
}
