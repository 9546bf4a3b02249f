//! Images on servers that are away, or refuse, when a tool opens them.
#![cfg(all(feature = "remote", target_os = "linux"))]

use std::ffi::OsString;
use std::io::Read as _;
use std::os::unix::process::ExitStatusExt as _;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use redwarfs_testkit::web::WebFault;
use rustix::process::Signal;

use crate::driver::{Mount, can_mount, kill, stderr, table_line, wait_until};
use crate::remote::Site;
use crate::support::{DWARFS, DWARFSCK, DWARFSEXTRACT, MKDWARFS, run};

/// What a signal ends soon.
const SOON: Duration = Duration::from_secs(15);
/// In the warning, if nothing has failed so far.
const SLOW: &str = ": no answer so far: waiting for the server";

/// The tools, each with arguments with which it opens the image of a URL and makes something in a directory. `dwarfs` is the
/// last one.
fn tools(url: &str, dir: &Path) -> Vec<(&'static str, Vec<OsString>)> {
    let path = |name: &str| dir.join(name).into_os_string();
    let with = |before: &[&str], after: &[OsString]| {
        let before = before.iter().map(OsString::from);
        before.chain(after.iter().cloned()).collect()
    };
    vec![
        (
            MKDWARFS,
            with(
                &["-i", url, "--recompress=none", "--no-progress", "-o"],
                &[path("new")],
            ),
        ),
        (
            MKDWARFS,
            with(
                &["--merge=side", "-i", url, "-i", url, "-o"],
                &[path("new")],
            ),
        ),
        (DWARFSCK, with(&[url], &[])),
        (DWARFSCK, with(&["--check-digests", url], &[])),
        (DWARFSEXTRACT, with(&["-i", url, "-o"], &[dir.into()])),
        (DWARFS, with(&[url], &[dir.into()])),
        (DWARFS, with(&["-f", url], &[dir.into()])),
    ]
}

/// The number that a shell has for the end of a program.
fn code(status: ExitStatus) -> Option<i32> {
    status.code().or(status.signal().map(|signal| 128 + signal))
}

fn start(program: &str, args: &[OsString]) -> Child {
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::null());
    command.stdout(Stdio::null()).stderr(Stdio::piped());
    command.spawn().unwrap()
}

/// The messages of a program that has ended, and of the processes that it has left.
fn messages(child: &mut Child) -> String {
    let mut text = String::new();
    let mut pipe = child.stderr.take().unwrap();
    pipe.read_to_string(&mut text).unwrap();
    text
}

#[test]
fn a_server_that_is_away_for_a_moment_is_waited_for() {
    let site = Site::new(&[]);
    let mut seen = 0;
    for faults in [
        vec![WebFault::Status(503, vec![("Retry-After", "2".into())])],
        vec![WebFault::Status(429, vec![("Retry-After", "2".into())])],
        vec![WebFault::Refuse; 6],
    ] {
        for number in 0..tools(&site.url, Path::new("")).len() {
            let mounted = Mount::on(Mount::new_dir());
            let (program, args) = tools(&site.url, mounted.point()).swap_remove(number);
            let is = |text: &str| args.iter().any(|arg| arg.to_str() == Some(text));
            // The image has no digests, there is no second one, and a driver in the foreground stays.
            if is("--check-digests") || is("--merge=side") || is("-f") {
                continue;
            }
            if program == DWARFS && !can_mount("a server that is away for a moment") {
                continue;
            }
            site.server.fail(faults.clone());
            let done = run(program, &args);
            let text = stderr(&done);
            assert!(done.status.success(), "{program} {faults:?}: {text}");
            let lines: Vec<_> = text
                .lines()
                .filter(|line| line.contains("waiting for the server, for up to 30 s"))
                .collect();
            // A busy machine may take a second for the first answer.
            if faults.len() == 1 {
                assert_eq!(lines.len(), 1, "{program}: {text}");
                assert!(lines[0].contains(&format!("{}: ", site.url)), "{text}");
                assert!(
                    lines[0].contains("the server answers ") || lines[0].contains(SLOW),
                    "{text}"
                );
            }
            assert!(lines.len() <= 1, "{program}: {text}");
            seen += 1;
        }
    }
    assert!(seen >= 9, "{seen}");
}

/// The messages without the warning of a machine on which the first answer takes longer than a second.
fn without_warning(text: &str) -> String {
    let lines = text.lines().filter(|line| !line.contains(SLOW));
    lines.map(|line| format!("{line}\n")).collect()
}

#[test]
fn what_waiting_does_not_change_is_an_error_at_once() {
    let site = Site::new(&[]);
    let refused = |url: &str| {
        let out = run(DWARFSCK, [url]);
        let text = without_warning(&stderr(&out));
        assert_eq!(out.status.code(), Some(1), "{text}");
        assert!(
            text.starts_with(&format!("dwarfsck: cannot open image: {url}: ")),
            "{text}"
        );
        assert_eq!(text.lines().count(), 1, "{text}");
        text
    };
    for status in [401, 403, 404, 410] {
        site.server.take_requests();
        site.server.fail([WebFault::Status(status, vec![])]);
        let text = refused(&site.url);
        assert!(text.contains(&status.to_string()), "{text}");
        assert_eq!(site.server.take_requests().len(), 1, "{status}");
    }
    // No resolver asks for a name that no name can be.
    let text = refused(&format!("http://{}.example/a", "x".repeat(64)));
    assert!(text.contains("no address for the host 'xxx"), "{text}");
    assert!(!text.contains("attempt"), "{text}");
}

#[test]
fn a_server_without_ranges_is_named_as_such() {
    let site = Site::new(&[]);
    site.server.put("/large", vec![7; 65 << 20]);
    site.server.without_ranges();
    let url = site.server.url("/large");
    let text = without_warning(&stderr(&run(DWARFSCK, [&url])));
    let want = format!(
        "dwarfsck: cannot open image: {url}: the server does not support range requests (it answers 200 instead of \
         206), and an image of 65 MiB is too large to be fetched as a whole: download it to a file, or use a server \
         that supports them, such as nginx\n"
    );
    assert_eq!(text, want);
    // Small ones come as a whole.
    let out = run(DWARFSCK, [&site.url]);
    assert!(out.status.success(), "{}", stderr(&out));
}

#[test]
fn signals_end_a_tool_that_waits_for_a_server() {
    let site = Site::new(&[]);
    let dir = Mount::new_dir();
    let mounts = can_mount("signals while dwarfs waits for a server");
    let ignored = interrupt_is_ignored();
    for faults in [WebFault::Stall(0), WebFault::Status(503, vec![])] {
        for (program, args) in tools(&site.url, dir.path()) {
            if program == DWARFS && !mounts {
                continue;
            }
            for (signal, want) in [(Signal::TERM, 143), (Signal::INT, 130)] {
                if signal == Signal::INT && ignored {
                    continue;
                }
                let faults = std::iter::repeat_n(faults.clone(), 200);
                site.server.fail(faults);
                site.server.take_requests();
                let mut child = start(program, &args);
                wait_until("the request", || !site.server.take_requests().is_empty());
                std::thread::sleep(Duration::from_millis(100));
                let began = Instant::now();
                kill(child.id(), signal);
                let text = messages(&mut child);
                let status = child.wait().unwrap();
                let what = format!("{program} {args:?} {signal:?}: {status:?}: {text}");
                assert!(began.elapsed() < SOON, "{what}");
                assert_eq!(code(status), Some(want), "{what}");
                assert!(!text.contains("panic"), "{what}");
                assert!(table_line(dir.path()).is_none(), "{what}");
                assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "{what}");
                site.server.release();
            }
        }
    }
}

#[test]
fn signals_end_a_tool_that_waits_for_the_rest_of_an_image() {
    let site = Site::new(&[]);
    let dir = Mount::new_dir();
    for (program, args) in tools(&site.url, dir.path()) {
        if program == DWARFS {
            continue;
        }
        // The first request is for the end, and has no first byte.
        site.server.fail_in(0..u64::MAX, WebFault::Stall(0));
        site.server.take_requests();
        let mut child = start(program, &args);
        let mut asked = Vec::new();
        wait_until("the second request", || {
            asked.extend(site.server.take_requests());
            asked.iter().any(|request| request.first().is_some())
        });
        std::thread::sleep(Duration::from_millis(100));
        let began = Instant::now();
        kill(child.id(), Signal::TERM);
        let text = messages(&mut child);
        let status = child.wait().unwrap();
        assert!(began.elapsed() < SOON, "{program} {args:?}: {text}");
        assert_eq!(code(status), Some(143), "{program} {args:?}: {text}");
        site.server.release();
    }
}

/// Whether a shell runs the tests in the background: then programs without a handler ignore interrupts.
fn interrupt_is_ignored() -> bool {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let mut lines = status.lines();
    let mask = lines.find_map(|line| line.strip_prefix("SigIgn:")).unwrap();
    let mask = u64::from_str_radix(mask.trim(), 16).unwrap();
    mask & (1 << (2 - 1)) != 0
}
