//! Opening snapshots of a mount: what waits for it, and how often it is tried.
#![cfg(target_os = "linux")]

use std::fs;
use std::io;
use std::ops::Range;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::time::Duration;

use crate::driver::{can_mount, errno, wait_until};
use crate::support::{DWARFSCK, MKDWARFS, must};
use redwarfs_fuse::{MountOptions, Mounted};
use redwarfs_io::{MemorySource, Source};
use redwarfs_reader::{Image, OpenOptions};

#[derive(Debug, Default)]
struct GateReads {
    /// Reads that touch this range wait.
    closed: Option<Range<u64>>,
    /// Reads that wait.
    waiting: usize,
    /// How often each byte of a range was read.
    counted: Option<Range<u64>>,
    count: usize,
}

/// A file of which a part may be withheld.
#[derive(Debug)]
struct Gate {
    bytes: MemorySource,
    state: Mutex<GateReads>,
    changed: Condvar,
}

impl Gate {
    fn set(&self, change: impl FnOnce(&mut GateReads)) {
        change(&mut self.state.lock().unwrap());
        self.changed.notify_all();
    }
}

fn touches(range: Option<&Range<u64>>, offset: u64, length: usize) -> bool {
    range.is_some_and(|range| offset < range.end && offset + length as u64 > range.start)
}

impl Source for Gate {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut state = self.state.lock().unwrap();
        if touches(state.counted.as_ref(), offset, buf.len()) {
            state.count += 1;
        }
        state.waiting += 1;
        while touches(state.closed.as_ref(), offset, buf.len()) {
            state = self.changed.wait(state).unwrap();
        }
        state.waiting -= 1;
        drop(state);
        self.bytes.read_exact_at(offset, buf)
    }
}

/// A mount of this process, which is taken off at the end.
struct InProcess {
    dir: tempfile::TempDir,
    mounted: Option<Mounted>,
    gate: Arc<Gate>,
}

impl InProcess {
    fn new(bytes: Vec<u8>) -> Self {
        let gate = Arc::new(Gate {
            bytes: MemorySource::new(bytes),
            state: Mutex::default(),
            changed: Condvar::new(),
        });
        let source = Arc::clone(&gate) as Arc<dyn Source>;
        let image = Image::from_source(source, &OpenOptions::default()).unwrap();
        let mut options = MountOptions::default();
        options.snapshots = Some("all".into());
        let dir = tempfile::tempdir().unwrap();
        let mounted = redwarfs_fuse::mount(image, dir.path(), &options).unwrap();
        Self {
            dir,
            mounted: Some(mounted),
            gate,
        }
    }

    fn point(&self) -> &Path {
        self.dir.path()
    }
}

impl Drop for InProcess {
    fn drop(&mut self) {
        self.gate.set(|state| state.closed = None);
        if let Some(mounted) = self.mounted.take() {
            let _ = mounted.unmounter().unmount();
            let _ = mounted.wait();
        }
    }
}

/// An image with five snapshots, and where the part of the file begins and ends that each has added.
fn image() -> (Vec<u8>, Vec<Range<u64>>) {
    let dir = tempfile::tempdir().unwrap();
    let (tree, image) = (dir.path().join("tree"), dir.path().join("image"));
    fs::create_dir(&tree).unwrap();
    let (tree_name, image_name) = (tree.to_str().unwrap(), image.to_str().unwrap());
    for number in 1..=5 {
        let text = format!("{number}").repeat(5000);
        fs::write(tree.join("file"), text).unwrap();
        let name = format!("s{number}");
        let fixed = ["-i", tree_name, "-l3", "--no-progress", "--log-level=error"];
        let more: &[&str] = match number {
            1 => &["-o", image_name],
            _ => &["--append", image_name, "--snapshot-name", &name],
        };
        must(MKDWARFS, [&fixed[..], more].concat());
    }
    must(DWARFSCK, [image_name, "--rename-snapshot", "1", "s1"]);
    let listed = must(DWARFSCK, [image_name, "--snapshots", "-j"]);
    let ends = String::from_utf8_lossy(&listed.stdout).into_owned();
    let ends = ends.lines().map(|line| {
        let line: serde_json::Value = serde_json::from_str(line).unwrap();
        line["image_size"].as_u64().unwrap()
    });
    let mut start = 0;
    let ranges = ends.map(|end| std::mem::replace(&mut start, end)..end);
    let ranges = ranges.collect();
    (fs::read(&image).unwrap(), ranges)
}

#[test]
fn opening_a_snapshot_keeps_nobody_else_waiting() {
    if !can_mount("opening_a_snapshot_keeps_nobody_else_waiting") {
        return;
    }
    let (bytes, ranges) = image();
    let mount = InProcess::new(bytes);
    let root = mount.point().to_owned();
    let all = root.join("all");
    // Its index.
    let closed = ranges[1].end - 100..ranges[1].end;
    mount.gate.set(|state| state.closed = Some(closed));
    // A process that waits for the snapshot can be killed.
    let mut cat = Command::new("cat")
        .arg(all.join("s2/file"))
        .stdout(Stdio::null())
        .spawn()
        .unwrap();
    wait_until("a read", || mount.gate.state.lock().unwrap().waiting > 0);
    std::thread::sleep(Duration::from_millis(300));
    assert!(cat.try_wait().unwrap().is_none());
    cat.kill().unwrap();
    wait_until("the end of the process", || {
        cat.try_wait().unwrap().is_some()
    });
    let (done, outcome) = channel();
    let second = {
        let path = all.join("s2/file");
        std::thread::spawn(move || fs::read_to_string(path).unwrap())
    };
    wait_until("a read", || mount.gate.state.lock().unwrap().waiting > 0);
    // Others get their answers, also if they need another snapshot to be opened.
    let others = {
        let (root, all) = (root.clone(), all.clone());
        std::thread::spawn(move || {
            assert!(
                fs::read_to_string(root.join("file"))
                    .unwrap()
                    .starts_with('5')
            );
            assert_eq!(fs::read_dir(&all).unwrap().count(), 5);
            for number in [1, 3, 4, 5] {
                let text = fs::read_to_string(all.join(format!("s{number}/file"))).unwrap();
                assert_eq!(text, format!("{number}").repeat(5000));
            }
            done.send(()).unwrap();
        })
    };
    outcome
        .recv_timeout(Duration::from_secs(20))
        .expect("an answer while a snapshot is opened");
    others.join().unwrap();
    assert!(!second.is_finished());
    mount.gate.set(|state| state.closed = None);
    assert_eq!(second.join().unwrap(), "2".repeat(5000));
}

#[test]
fn a_snapshot_that_cannot_be_opened_is_not_tried_again() {
    if !can_mount("a_snapshot_that_cannot_be_opened_is_not_tried_again") {
        return;
    }
    let (mut bytes, ranges) = image();
    let part = ranges[2].clone();
    let own = &mut bytes[part.start as usize..part.end as usize];
    let is_metadata =
        |at: &usize| own[*at..].starts_with(b"DWARFS\x02\x05") && own[*at + 52..*at + 54] == [8, 0];
    let at = (0..own.len() - 64).find(is_metadata).unwrap();
    own[at + 70] ^= 0x10;
    let mount = InProcess::new(bytes);
    mount.gate.set(|state| state.counted = Some(part));
    let all = mount.point().join("all");
    assert_eq!(errno(fs::metadata(all.join("s3"))), libc::EIO);
    let count = || mount.gate.state.lock().unwrap().count;
    let tried = count();
    assert!(tried > 0);
    for _ in 0..3 {
        assert_eq!(errno(fs::metadata(all.join("s3"))), libc::EIO);
        assert_eq!(errno(fs::read(all.join("s3/file"))), libc::EIO);
    }
    assert_eq!(count(), tried);
    let other = fs::read_to_string(all.join("s4/file")).unwrap();
    assert_eq!(other, "4".repeat(5000));
}

#[test]
fn a_snapshot_that_many_wait_for_is_opened_once() {
    if !can_mount("a_snapshot_that_many_wait_for_is_opened_once") {
        return;
    }
    let (bytes, ranges) = image();
    let index = ranges[3].end - 8..ranges[3].end;
    let mount = InProcess::new(bytes);
    mount.gate.set(|state| state.counted = Some(index));
    let all = mount.point().join("all");
    std::thread::scope(|scope| {
        for _ in 0..16 {
            scope.spawn(|| {
                let text = fs::read_to_string(all.join("s4/file")).unwrap();
                assert_eq!(text, "4".repeat(5000));
            });
        }
    });
    let many = mount.gate.state.lock().unwrap().count;
    // The same for one process.
    let (bytes, ranges) = image();
    let index = ranges[3].end - 8..ranges[3].end;
    let mount = InProcess::new(bytes);
    mount.gate.set(|state| state.counted = Some(index));
    let text = fs::read_to_string(mount.point().join("all/s4/file")).unwrap();
    assert_eq!(text, "4".repeat(5000));
    assert_eq!(many, mount.gate.state.lock().unwrap().count);
}
