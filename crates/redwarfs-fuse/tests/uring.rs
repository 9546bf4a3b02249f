//! Requests over io_uring. Where the kernel does not offer it, the same tests show that mounts work
//! without; each says which of the two it tested.

mod support;

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, MetadataExt, OpenOptionsExt};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread;

use redwarfs_fuse::MountOptions;
use redwarfs_reader::OpenOptions as ImageOptions;
use rustix::mount::{UnmountFlags, unmount};
use rustix::thread::{CpuSet, sched_getcpu, sched_setaffinity};
use support::{BLOCK, FilePart, Gate, Maker, Mount, can_mount, ring_is_offered, wait_until};

/// Entries of a queue.
const DEPTH: usize = 16;

fn over_ring() -> MountOptions {
    let mut mount = MountOptions::default();
    mount.uring = true;
    mount
}

/// Bytes that differ from place to place.
fn noise(len: usize, seed: usize) -> Vec<u8> {
    (0..len)
        .map(|n| (n.wrapping_mul(2_654_435_761).wrapping_add(seed * 97) >> 7) as u8)
        .collect()
}

fn tree() -> Maker {
    let mut maker = Maker::new();
    maker
        .dir("d")
        .dir("d/e")
        .file("empty", "")
        .link("link", "d/small")
        .link("long", "x/".repeat(1500))
        .fifo("pipe")
        .file_with_mode("private", "x", 0o600)
        .same("zwei", "private");
    for n in 0..300 {
        maker.file(format!("d/e/{n:03}-{}", "n".repeat(n % 200)), noise(n, n));
    }
    // Several requests, and one of the largest kind.
    let large: Vec<FilePart> = (0..40)
        .map(|n| FilePart::Data(noise(BLOCK as usize, n)))
        .collect();
    maker.pieces("large", &large);
    maker.pieces(
        "holes",
        &[
            FilePart::Data(noise(700, 1)),
            FilePart::Hole(200_000),
            FilePart::Data(noise(700, 2)),
        ],
    );
    maker
}

/// Everything that programs can see below a directory.
fn seen(dir: &Path, out: &mut Vec<String>) {
    let mut names: Vec<_> = fs::read_dir(dir)
        .expect("readable")
        .map(|entry| entry.expect("an entry").path())
        .collect();
    names.sort();
    for path in names {
        let meta = fs::symlink_metadata(&path).expect("stat");
        let mut line = format!(
            "{:?} {:o} {} {} {} {} {}",
            path.file_name(),
            meta.mode(),
            meta.ino(),
            meta.nlink(),
            meta.size(),
            meta.blocks(),
            meta.mtime()
        );
        if meta.is_symlink() {
            line += &format!(" {:?}", fs::read_link(&path).expect("a target"));
        } else if meta.is_file() {
            let data = fs::read(&path).expect("readable");
            assert_eq!(data.len() as u64, meta.size());
            line += &format!(" {:?}", data.iter().map(|&b| u64::from(b)).sum::<u64>());
            let mut value = vec![0; 4096];
            let len = rustix::fs::lgetxattr(&path, "user.dwarfs.inodeinfo", &mut value);
            line += &String::from_utf8_lossy(&value[..len.expect("an attribute")]);
        }
        out.push(line);
        if meta.is_dir() {
            seen(&path, out);
        }
    }
    let missing = fs::metadata(dir.join("missing")).expect_err("not there");
    assert_eq!(missing.kind(), ErrorKind::NotFound);
}

/// Names of the threads of this process.
fn threads() -> BTreeSet<String> {
    let tasks = fs::read_dir("/proc/self/task").expect("its threads");
    tasks
        .filter_map(|task| fs::read_to_string(task.ok()?.path().join("comm")).ok())
        .map(|name| name.trim().to_owned())
        .collect()
}

#[test]
fn both_ways_show_the_same() {
    const NAME: &str = "both_ways_show_the_same";
    if !can_mount(NAME) {
        return;
    }
    let offered = ring_is_offered(NAME);
    let maker = tree();
    let plain = Mount::new(&maker, &MountOptions::default());
    let mount = Mount::new(&maker, &over_ring());
    let (mut expected, mut got) = (Vec::new(), Vec::new());
    seen(plain.point(), &mut expected);
    seen(mount.point(), &mut got);
    assert_eq!(expected.len(), 310);
    assert_eq!(got, expected);
    assert_eq!(
        fs::read(mount.path("large")).expect("readable"),
        fs::read(plain.path("large")).expect("readable")
    );
    let requests = mount.count("requests over io_uring");
    if offered {
        // At least those for directories; contents may have been pushed.
        assert!(requests > 4, "{requests}");
        assert!(threads().contains("fuse-cpu-0"), "{:?}", threads());
    } else {
        assert_eq!(requests, 0);
    }
    let not_asked = MountOptions::default();
    if support::as_asked(&not_asked) == not_asked {
        assert_eq!(plain.count("requests over io_uring"), 0);
    }
}

/// Reads of all sizes by many threads, most of which workers answer.
#[test]
fn many_reads_at_the_same_time() {
    const NAME: &str = "many_reads_at_the_same_time";
    if !can_mount(NAME) {
        return;
    }
    let offered = ring_is_offered(NAME);
    let maker = tree();
    let expected: Vec<u8> = (0..40).flat_map(|n| noise(BLOCK as usize, n)).collect();
    let mut open = ImageOptions::default();
    open.cache.size = u64::from(BLOCK) * 4;
    let mount = Mount::with(Gate::new(maker.image().0), &open, &over_ring());
    thread::scope(|scope| {
        for reader in 0..3 * DEPTH {
            let (path, expected) = (mount.path("large"), &expected);
            scope.spawn(move || {
                let file = OpenOptions::new()
                    .read(true)
                    .custom_flags(libc::O_DIRECT)
                    .open(path)
                    .expect("readable");
                let mut data = vec![0; 1 << 20];
                for n in 0..40 {
                    let size = 4096 << ((reader + n) % 9);
                    let offset = (reader * 7 + n * 13) % 600 * 4096;
                    let wanted = expected.get(offset..).unwrap_or_default();
                    let wanted = &wanted[..size.min(wanted.len())];
                    let len = file
                        .read_at(&mut data[..size], offset as u64)
                        .expect("readable");
                    assert!(data[..len] == *wanted, "{size} bytes at {offset}");
                }
            });
        }
    });
    assert!(mount.count("reads by workers") > 0);
    if offered {
        let requests = mount.count("requests over io_uring");
        assert!(requests >= mount.count("requests op_read"), "{requests}");
    }
}

/// Two blocks of which the second cannot be read, what keeps it from that, and the reads that workers have answered before.
fn stalling(options: &MountOptions) -> (Mount, Arc<Gate>, u64) {
    let mut maker = Maker::new();
    for name in ["one", "two"] {
        maker.file(name, noise(BLOCK as usize, name.len()));
    }
    let (bytes, starts) = maker.image();
    let gate = Gate::new(bytes);
    let mount = Mount::with(
        Arc::clone(&gate) as Arc<_>,
        &ImageOptions::default(),
        options,
    );
    assert_eq!(
        fs::read(mount.path("one")).expect("readable").len(),
        BLOCK as usize
    );
    let second = starts[1] as u64 - 64;
    gate.close(second..second + u64::from(BLOCK));
    let before = mount.count("reads by workers");
    (mount, gate, before)
}

/// Programs that read past the kernel's cache, all on one CPU: more than its queue has entries.
fn readers(path: &Path) -> Vec<Child> {
    // Programs inherit this from the thread that starts them.
    let mut set = CpuSet::new();
    set.set(sched_getcpu());
    sched_setaffinity(None, &set).expect("where it is already");
    let start = |_| {
        Command::new("dd")
            .arg(format!("if={}", path.display()))
            .args(["of=/dev/null", "bs=4096", "count=1", "iflag=direct"])
            .stderr(Stdio::null())
            .spawn()
            .expect("dd can be started")
    };
    (0..DEPTH + 8).map(start).collect()
}

/// More programs wait for a stalled image than a queue has entries: those whose requests wait for
/// an entry can be killed like the others, and afterwards everything goes on.
#[test]
fn everybody_who_waits_can_be_killed() {
    const NAME: &str = "everybody_who_waits_can_be_killed";
    if !can_mount(NAME) {
        return;
    }
    ring_is_offered(NAME);
    let (mount, gate, before) = stalling(&over_ring());
    let mut readers = readers(&mount.path("two"));
    wait_until("all entries are in use", || {
        mount.count("reads by workers") >= before + DEPTH as u64
    });
    for reader in &mut readers {
        reader.kill().expect("killed");
    }
    wait_until("the readers are gone", || {
        readers
            .iter_mut()
            .all(|reader| reader.try_wait().expect("a child").is_some())
    });
    let list = fs::read_dir(mount.point()).expect("readable");
    assert_eq!(list.count(), 2);
    assert_eq!(
        fs::read(mount.path("one")).expect("readable")[..3],
        noise(3, 3)
    );
    gate.open();
    assert_eq!(
        fs::read(mount.path("two")).expect("readable"),
        noise(BLOCK as usize, 3)
    );
}

/// The connection is aborted while workers have requests and others wait for an entry.
#[test]
fn aborting_with_requests_on_their_way() {
    const NAME: &str = "aborting_with_requests_on_their_way";
    if !can_mount(NAME) {
        return;
    }
    ring_is_offered(NAME);
    let (mut mount, gate, before) = stalling(&over_ring());
    let mut readers = readers(&mount.path("two"));
    wait_until("all entries are in use", || {
        mount.count("reads by workers") >= before + DEPTH as u64
    });
    // It is busy, but with this flag the connection ends before that is found out.
    let _ = unmount(mount.point(), UnmountFlags::FORCE);
    wait_until("the readers are gone", || {
        readers
            .iter_mut()
            .all(|reader| reader.try_wait().expect("a child").is_some())
    });
    for mut reader in readers {
        assert!(!reader.wait().expect("a child").success());
    }
    // The workers still wait for the image.
    gate.open();
    mount.take().wait().expect("a regular end");
    assert_eq!(fs::read_dir(mount.point()).expect("plain").count(), 0);
}

/// A file system in use is detached, and ends when the last reader is done.
#[test]
fn unmounting_with_requests_on_their_way() {
    const NAME: &str = "unmounting_with_requests_on_their_way";
    if !can_mount(NAME) {
        return;
    }
    ring_is_offered(NAME);
    let (mut mount, gate, before) = stalling(&over_ring());
    let path = mount.path("two");
    let readers: Vec<_> = (0..DEPTH / 2)
        .map(|_| {
            let path = path.clone();
            thread::spawn(move || {
                let file = OpenOptions::new()
                    .read(true)
                    .custom_flags(libc::O_DIRECT)
                    .open(path)
                    .expect("readable");
                let mut data = vec![0; 4096];
                file.read_exact_at(&mut data, 4096).expect("readable");
                data
            })
        })
        .collect();
    wait_until("the reads stall", || {
        mount.count("reads by workers") >= before + (DEPTH / 2) as u64
    });
    let mounted = mount.take();
    let unmounted = mounted.unmounter().unmount().expect("detached");
    assert_eq!(unmounted, redwarfs_fuse::Unmounted::Detached);
    gate.open();
    for reader in readers {
        let data = reader.join().expect("no panic");
        assert!(data == noise(BLOCK as usize, 3)[4096..8192]);
    }
    mounted.wait().expect("a regular end");
}
