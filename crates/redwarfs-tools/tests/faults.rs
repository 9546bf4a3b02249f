//! What happens when the medium under a mounted image fails, ends, changes or stalls, and when
//! the driver dies. Where mounting is impossible the tests say so and pass.

use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use crate::support::{DWARFS, build};
use redwarfs_format::metadata::Extent;
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_testkit::can_mount;
use redwarfs_testkit::faulty::{FaultyFile, Medium};
use redwarfs_testkit::tree::Random;
use rustix::process::Signal;
use tempfile::TempDir;

/// For what happens soon on any machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// How long nothing must happen where nothing can.
const MOMENT: Duration = Duration::from_millis(300);
/// Files of the image, each of [`SIZE`] bytes, a little more than one block.
const FILES: usize = 12;
const SIZE: usize = 150_000;

fn content(number: usize) -> Vec<u8> {
    let mut random = Random::new(number as u64);
    // Half of it is stored as it is, half is compressed.
    if number.is_multiple_of(2) {
        random.bytes(SIZE)
    } else {
        random.text(SIZE)
    }
}

/// A tree, its image, and which bytes of the image each file needs.
struct Fixture {
    dir: TempDir,
    image: Vec<u8>,
}

impl Fixture {
    fn new() -> Self {
        let dir = TempDir::with_prefix("redwarfs-faults-").unwrap();
        let tree = dir.path().join("tree");
        fs::create_dir_all(&tree).unwrap();
        for number in 0..FILES {
            fs::write(tree.join(format!("{number:02}")), content(number)).unwrap();
        }
        let path = dir.path().join("image.dwarfs");
        build(&tree, &path, &["-l3", "-S17", "--order=path"]);
        let image = fs::read(&path).unwrap();
        fs::create_dir(dir.path().join("mnt")).unwrap();
        fs::create_dir(dir.path().join("disk")).unwrap();
        Self { dir, image }
    }

    fn file(&self) -> PathBuf {
        self.dir.path().join("image.dwarfs")
    }

    fn on_faulty_disk(&self) -> FaultyFile {
        FaultyFile::mount(&self.dir.path().join("disk"), self.image.clone()).unwrap()
    }

    /// Whether each file has a piece in a block for which `bad` holds of its place in the image.
    fn touched(&self, bad: impl Fn(u64, u64) -> bool) -> Vec<bool> {
        let image = Image::open(self.file(), &OpenOptions::default()).unwrap();
        let container = image.container();
        let bad_block: Vec<bool> = container
            .blocks()
            .map(|block| {
                let start = container.file_offset(block);
                bad(start, start + block.length)
            })
            .collect();
        (0..FILES)
            .map(|number| {
                let name = format!("{number:02}");
                let inode = image.find_path(name.as_bytes()).unwrap().unwrap();
                image.metadata().extents(inode).unwrap().any(|extent| {
                    matches!(extent.unwrap(), Extent::Data { block, .. } if bad_block[block.index()])
                })
            })
            .collect()
    }
}

/// A driver in the foreground.
struct Driver {
    child: Child,
    point: PathBuf,
    log: PathBuf,
}

impl Driver {
    fn start(fixture: &Fixture, image: &Path, options: &str) -> Self {
        let point = fixture.dir.path().join("mnt");
        let log = fixture.dir.path().join("log");
        let child = Command::new(DWARFS)
            .arg("-f")
            .arg(image)
            .arg(&point)
            .arg("-o")
            .arg(format!(
                "cachesize=64k,no_cache_files,debuglevel=warn{options}"
            ))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&log).unwrap())
            .spawn()
            .unwrap();
        let mut driver = Self { child, point, log };
        wait_until("the mount", || {
            assert!(
                driver.child.try_wait().unwrap().is_none(),
                "{}",
                driver.log()
            );
            is_mounted(&driver.point)
        });
        driver
    }

    fn log(&self) -> String {
        fs::read_to_string(&self.log).unwrap()
    }

    fn path(&self, number: usize) -> PathBuf {
        self.point.join(format!("{number:02}"))
    }

    /// What reading a whole file gives: its contents must be right, or the error `EIO`.
    fn read(&self, number: usize) -> bool {
        match fs::read(self.path(number)) {
            Ok(bytes) => {
                assert!(bytes == content(number), "wrong bytes in file {number}");
                true
            }
            Err(e) => {
                assert_eq!(e.raw_os_error(), Some(libc::EIO), "file {number}: {e}");
                false
            }
        }
    }

    fn read_all(&self) -> Vec<bool> {
        (0..FILES).map(|number| self.read(number)).collect()
    }

    fn signal(&self, signal: Signal) {
        let pid = i32::try_from(self.child.id()).unwrap();
        let pid = rustix::process::Pid::from_raw(pid).unwrap();
        rustix::process::kill_process(pid, signal).unwrap();
    }

    fn wait_for_end(&mut self) -> std::process::ExitStatus {
        let mut status = None;
        wait_until("the end of the driver", || {
            status = self.child.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = rustix::mount::unmount(&self.point, rustix::mount::UnmountFlags::DETACH);
        // Not for ever: the medium may be stalled by a test that failed.
        let end = Instant::now() + PATIENCE;
        while matches!(self.child.try_wait(), Ok(None)) && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn is_mounted(point: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").unwrap();
    let point = point.to_str().unwrap();
    table
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(point))
}

/// Runs something that may take long in a thread.
fn in_background<T: Send + 'static>(work: impl FnOnce() -> T + Send + 'static) -> Receiver<T> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(work()));
    receiver
}

/// The bytes of the image from the middle on.
fn second_half(fixture: &Fixture) -> std::ops::Range<u64> {
    let size = fixture.image.len() as u64;
    size / 2..size
}

/// What must hold while some blocks are bad, and when they are good again.
fn bad_blocks_concern_their_files_only(
    fixture: &Fixture,
    driver: &Driver,
    bad: impl Fn(u64, u64) -> bool,
    heal: impl FnOnce(),
) {
    let touched = fixture.touched(&bad);
    assert!(
        touched.contains(&true) && touched.contains(&false),
        "{touched:?}"
    );
    for _ in 0..2 {
        let good: Vec<bool> = driver.read_all().iter().map(|ok| !ok).collect();
        assert_eq!(good, touched, "{}", driver.log());
    }
    // Everything that needs no block works.
    let listed = fs::read_dir(&driver.point).unwrap().count();
    assert_eq!(listed, FILES);
    let first_bad = touched.iter().position(|bad| *bad).unwrap();
    let meta = fs::metadata(driver.path(first_bad)).unwrap();
    assert_eq!(meta.len(), SIZE as u64);
    // Each complaint is one line, and says what and why.
    let log = driver.log();
    assert!(log.contains("cannot read"), "{log}");
    for line in log.lines() {
        assert!(line.starts_with("E ") || line.starts_with("W "), "{log}");
    }
    heal();
    assert_eq!(
        driver.read_all(),
        [true; FILES],
        "after healing: {}",
        driver.log()
    );
}

#[test]
fn large_metadata_do_not_need_the_medium_for_long() {
    if !can_mount("large_metadata_do_not_need_the_medium_for_long") {
        return;
    }
    let mut fixture = Fixture::new();
    let names = fixture.dir.path().join("names");
    fs::create_dir(&names).unwrap();
    for number in 0..6000 {
        File::create(names.join(format!("{number:060}"))).unwrap();
    }
    build(
        &names,
        &fixture.file(),
        &["-l1", "--pack-metadata=none", "--force"],
    );
    fixture.image = fs::read(fixture.file()).unwrap();
    // Much more than from where on it is loaded later.
    assert!(fixture.image.len() > 360_000, "{}", fixture.image.len());
    let disk = fixture.on_faulty_disk();
    let driver = Driver::start(&fixture, &disk.path(), "");
    let listed = || {
        let entries = fs::read_dir(&driver.point)?.collect::<Result<Vec<_>, _>>()?;
        entries.iter().try_for_each(|entry| {
            fs::symlink_metadata(entry.path()).map(|stat| assert_eq!(stat.len(), 0))
        })?;
        Ok::<_, std::io::Error>(entries.len())
    };
    wait_until("the metadata", || {
        disk.set(Medium::Fails(0..u64::MAX));
        let count = listed();
        disk.set(Medium::Good);
        // Longer than a failing medium takes, so that loading mostly finds a good one.
        std::thread::sleep(Duration::from_millis(1500));
        count.is_ok_and(|count| count == 6000)
    });
}

#[test]
fn failing_sectors_concern_their_files_only_and_heal() {
    if !can_mount("failing sectors") {
        return;
    }
    let fixture = Fixture::new();
    let disk = fixture.on_faulty_disk();
    let driver = Driver::start(&fixture, &disk.path(), "");
    assert_eq!(driver.read_all(), [true; FILES]);
    let middle = fixture.image.len() as u64 / 2;
    disk.set(Medium::Fails(middle..middle + 512));
    let bad = |start, end| start < middle + 512 && middle < end;
    bad_blocks_concern_their_files_only(&fixture, &driver, bad, || disk.set(Medium::Good));
}

#[test]
fn an_image_that_ends_early_concerns_files_behind_only_and_heals() {
    if !can_mount("an image that ends early") {
        return;
    }
    let fixture = Fixture::new();
    let disk = fixture.on_faulty_disk();
    let driver = Driver::start(&fixture, &disk.path(), "");
    let half = second_half(&fixture);
    disk.set(Medium::EndsAt(half.start));
    let bad = |_, end| end > half.start;
    bad_blocks_concern_their_files_only(&fixture, &driver, bad, || disk.set(Medium::Good));
}

#[test]
fn an_image_that_is_replaced_never_gives_wrong_bytes_and_heals() {
    if !can_mount("an image that is replaced") {
        return;
    }
    let fixture = Fixture::new();
    let disk = fixture.on_faulty_disk();
    let driver = Driver::start(&fixture, &disk.path(), "");
    let half = second_half(&fixture).start as usize;

    let mut zeros = fixture.image.clone();
    zeros[half..].fill(0);
    disk.set(Medium::Holds(zeros));
    let bad = |_, end| end > half as u64;
    bad_blocks_concern_their_files_only(&fixture, &driver, bad, || disk.set(Medium::Good));
}

#[test]
fn another_image_in_its_place_gives_errors_not_its_bytes() {
    if !can_mount("another image in its place") {
        return;
    }
    let fixture = Fixture::new();
    let disk = fixture.on_faulty_disk();
    let driver = Driver::start(&fixture, &disk.path(), "");
    // Another image of the same size: every byte of it is shifted.
    let mut other = fixture.image.clone();
    other.rotate_right(4096);
    disk.set(Medium::Holds(other));
    assert_eq!(driver.read_all(), [false; FILES], "{}", driver.log());
    assert_eq!(fs::read_dir(&driver.point).unwrap().count(), FILES);
    // A short one.
    disk.set(Medium::Holds(
        fs::read(redwarfs_testkit::golden::golden("one").image).unwrap(),
    ));
    assert_eq!(driver.read_all(), [false; FILES], "{}", driver.log());
    disk.set(Medium::Good);
    assert_eq!(driver.read_all(), [true; FILES], "{}", driver.log());
}

#[test]
fn a_failing_read_is_logged_once() {
    if !can_mount("the log of a failing read") {
        return;
    }
    let fixture = Fixture::new();
    let disk = fixture.on_faulty_disk();
    let driver = Driver::start(&fixture, &disk.path(), "");
    let number = 4;
    let file = File::open(driver.path(number)).unwrap();
    // One page, so that the kernel asks for it alone; it asks twice before it gives up.
    rustix::fs::fadvise(&file, 0, None, rustix::fs::Advice::Random).unwrap();
    disk.set(Medium::Fails(0..u64::MAX));
    let mut page = [0; 4096];
    assert!(file.read_exact_at(&mut page, 0).is_err());
    let log = driver.log();
    let lines: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("cannot read"))
        .collect();
    assert!((1..=2).contains(&lines.len()), "{log}");
    // Who reads the log wants to know which image and what went wrong with it.
    assert!(lines[0].contains("Input/output error"), "{log}");
    disk.set(Medium::Good);
    file.read_exact_at(&mut page, 0).unwrap();
    assert!(page == content(number)[..4096]);
}

#[test]
fn a_stalled_read_holds_up_nothing_else_and_goes_on() {
    if !can_mount("a stalled read") {
        return;
    }
    let fixture = Fixture::new();
    let disk = fixture.on_faulty_disk();
    let driver = Driver::start(&fixture, &disk.path(), ",cachesize=64m,cache_files");
    assert!(driver.read(0));
    disk.stall();
    let path = driver.path(9);
    let stalled = in_background(move || fs::read(path));
    // Names, attributes and what is cached need no medium.
    assert_eq!(fs::read_dir(&driver.point).unwrap().count(), FILES);
    assert_eq!(fs::metadata(driver.path(10)).unwrap().len(), SIZE as u64);
    assert!(driver.read(0));
    assert_eq!(
        stalled.recv_timeout(MOMENT).unwrap_err(),
        RecvTimeoutError::Timeout
    );
    disk.go_on();
    let bytes = stalled.recv_timeout(PATIENCE).expect("the read goes on");
    assert!(bytes.unwrap() == content(9));
    assert_eq!(driver.read_all(), [true; FILES]);
}

#[test]
fn many_stalled_reads_hold_up_no_metadata() {
    if !can_mount("many stalled reads") {
        return;
    }
    let fixture = Fixture::new();
    let disk = fixture.on_faulty_disk();
    let driver = Driver::start(&fixture, &disk.path(), "");
    disk.stall();
    let stalled: Vec<_> = (0..FILES)
        .map(|number| {
            let path = driver.path(number);
            in_background(move || fs::read(path))
        })
        .collect();
    let point = driver.point.clone();
    let listed = in_background(move || {
        let names = fs::read_dir(&point).unwrap();
        let sizes = names.map(|entry| fs::metadata(entry.unwrap().path()).unwrap().len());
        sizes.sum::<u64>()
    });
    let sum = listed
        .recv_timeout(PATIENCE)
        .expect("listing needs no medium");
    assert_eq!(sum, (FILES * SIZE) as u64);
    disk.go_on();
    for (number, read) in stalled.iter().enumerate() {
        let bytes = read
            .recv_timeout(PATIENCE)
            .expect("the read goes on")
            .unwrap();
        assert!(bytes == content(number));
    }
}

#[test]
fn signals_end_a_driver_whose_medium_stalls() {
    if !can_mount("signals during a stall") {
        return;
    }
    for signal in [Signal::TERM, Signal::INT, Signal::KILL] {
        let fixture = Fixture::new();
        let disk = fixture.on_faulty_disk();
        let mut driver = Driver::start(&fixture, &disk.path(), "");
        disk.stall();
        let path = driver.path(3);
        let stalled = in_background(move || fs::read(path).map(drop));
        assert_eq!(
            stalled.recv_timeout(MOMENT).unwrap_err(),
            RecvTimeoutError::Timeout
        );
        driver.signal(signal);
        let status = driver.wait_for_end();
        if signal != Signal::KILL {
            assert_eq!(status.code(), Some(0), "{signal:?}: {}", driver.log());
        }
        let result = stalled
            .recv_timeout(PATIENCE)
            .expect("whoever waited is told");
        assert!(result.is_err());
        wait_until("the mount point to be free", || !is_mounted(&driver.point));
        assert_eq!(fs::read_dir(&driver.point).unwrap().count(), 0);
        disk.go_on();
    }
}

#[test]
fn a_killed_driver_leaves_its_mount_point_free() {
    if !can_mount("a killed driver") {
        return;
    }
    let fixture = Fixture::new();
    let mut driver = Driver::start(&fixture, &fixture.file(), "");
    assert!(driver.read(1));
    // A file that is open does not matter.
    let mut open = File::open(driver.path(2)).unwrap();
    driver.signal(Signal::KILL);
    driver.wait_for_end();
    wait_until("the mount point to be free", || !is_mounted(&driver.point));
    let mut byte = [0];
    assert!(open.read(&mut byte).is_err());
    // And it can be mounted on again, after which nobody cleans up by mistake.
    let again = Driver::start(&fixture, &fixture.file(), "");
    std::thread::sleep(MOMENT);
    assert!(again.read(1) && is_mounted(&again.point));
}

#[test]
fn a_real_file_that_shrinks_or_is_overwritten() {
    if !can_mount("a real file that shrinks") {
        return;
    }
    let fixture = Fixture::new();
    let image = fixture.dir.path().join("changing.dwarfs");
    fs::write(&image, &fixture.image).unwrap();
    let half = second_half(&fixture);
    let file = File::options().write(true).open(&image).unwrap();
    let driver = Driver::start(&fixture, &image, "");
    file.set_len(half.start).unwrap();
    let bad = |_, end| end > half.start;
    let rest = &fixture.image[half.start as usize..];
    bad_blocks_concern_their_files_only(&fixture, &driver, bad, || {
        file.write_all_at(rest, half.start).unwrap();
    });
    file.write_all_at(&vec![0; rest.len()], half.start).unwrap();
    bad_blocks_concern_their_files_only(&fixture, &driver, bad, || {
        file.write_all_at(rest, half.start).unwrap();
    });
    // Removed: the driver still has it open.
    fs::remove_file(&image).unwrap();
    assert_eq!(driver.read_all(), [true; FILES]);
}

#[test]
fn a_failing_medium_at_the_start_is_an_error_with_the_path() {
    if !can_mount("a medium that fails from the start") {
        return;
    }
    let fixture = Fixture::new();
    let disk = fixture.on_faulty_disk();
    disk.set(Medium::Fails(0..u64::MAX));
    let point = fixture.dir.path().join("mnt");
    let out = Command::new(DWARFS)
        .arg(disk.path())
        .arg(&point)
        .output()
        .unwrap();
    assert_eq!(out.status.code(), Some(1));
    let text = String::from_utf8_lossy(&out.stderr);
    let path = disk.path();
    assert!(text.contains(path.to_str().unwrap()), "{text}");
    assert!(text.contains("offset 0: input/output error"), "{text}");
    assert!(!is_mounted(&point));
}
