//! `DWARFS_WORKER_GROUP_AFFINITY`: which threads run where.

use std::collections::BTreeMap;
use std::fs;
use std::io::Read;
use std::process::{Child, Stdio};
use std::time::{Duration, Instant};

use crate::builder::{TestDir, mkdwarfs};
use redwarfs_testkit::skip;

const AFFINITY: &str = "DWARFS_WORKER_GROUP_AFFINITY";

/// Two processors that this process may use.
fn two_processors() -> Option<(usize, usize)> {
    let allowed = rustix::thread::sched_getaffinity(None).unwrap();
    let mut each = (0..rustix::thread::CpuSet::MAX_CPU).filter(|&cpu| allowed.is_set(cpu));
    Some((each.next()?, each.next()?))
}

/// The processors of the threads of a process, by the names of the threads.
fn threads(child: &Child) -> BTreeMap<String, String> {
    let tasks = fs::read_dir(format!("/proc/{}/task", child.id())).unwrap();
    let found = tasks.filter_map(|task| {
        let task = task.ok()?.path();
        let name = fs::read_to_string(task.join("comm")).ok()?;
        let status = fs::read_to_string(task.join("status")).ok()?;
        let allowed = status
            .lines()
            .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
        Some((name.trim().to_owned(), allowed.trim().to_owned()))
    });
    found.collect()
}

#[test]
fn groups_of_threads_run_where_they_are_told() {
    let Some((a, b)) = two_processors() else {
        skip("binding threads", "only one processor");
        return;
    };
    let place = TestDir::new(&[]);
    // More than a pipe and the queues between the threads take, of a kind that nothing makes
    // smaller.
    let mut x = 1u32;
    let noise = (0..1 << 24).map(|_| {
        x = x.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (x >> 24) as u8
    });
    fs::write(place.path("in/noise"), noise.collect::<Vec<u8>>()).unwrap();
    let mut command = mkdwarfs();
    command
        .arg("-i")
        .arg(place.path("in"))
        .args(["-o", "-", "-l1", "-S16", "-N2"])
        .env(AFFINITY, format!("blockify={a}:compress={b}"))
        .stdout(Stdio::piped())
        .stderr(Stdio::null());
    let mut child = command.spawn().unwrap();
    // Nobody reads: it does not end.
    let start = Instant::now();
    let found = loop {
        let found = threads(&child);
        let bound = |name: &str, cpu: usize| found.get(name) == Some(&cpu.to_string());
        let all = bound("segment", a) && bound("compress", b);
        // Threads start before they are bound.
        let late = start.elapsed() > Duration::from_secs(60);
        if all || late || child.try_wait().unwrap().is_some() {
            break found;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    let mut image = Vec::new();
    child
        .stdout
        .take()
        .unwrap()
        .read_to_end(&mut image)
        .unwrap();
    assert!(child.wait().unwrap().success());
    assert_eq!(found.get("segment"), Some(&a.to_string()), "{found:?}");
    assert_eq!(found.get("compress"), Some(&b.to_string()), "{found:?}");
}

#[test]
fn scanning_threads_run_where_they_are_told() {
    let Some((_, b)) = two_processors() else {
        skip("binding threads", "only one processor");
        return;
    };
    let place = TestDir::new(&[]);
    // Equal sizes have to be hashed, and that takes longer than it takes to look.
    for name in ["in/a", "in/b"] {
        let file = fs::File::create(place.path(name)).unwrap();
        file.set_len(16 << 30).unwrap();
    }
    let mut command = place.command(&["--no-sparse-files", "-N2"]);
    command.env(AFFINITY, format!("scanner={b}"));
    command.stdout(Stdio::null());
    let mut child = command.spawn().unwrap();
    let start = Instant::now();
    let mut found = BTreeMap::new();
    while found.get("scan") != Some(&b.to_string())
        && start.elapsed() < Duration::from_secs(60)
        && child.try_wait().unwrap().is_none()
    {
        found = threads(&child);
        std::thread::sleep(Duration::from_millis(2));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    assert_eq!(found.get("scan"), Some(&b.to_string()), "{found:?}");
}
