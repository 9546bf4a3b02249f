//! The guard process. A program of its own, without the test harness: the guard has to be made
//! while the process has one thread.

mod support;

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, Command, Stdio};

use redwarfs_fuse::guard::Guard;
use redwarfs_fuse::{MountOptions, mount};
use redwarfs_reader::{Image, OpenOptions};
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use support::{Maker, as_asked, can_mount, wait_until};
use tempfile::TempDir;

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).map(String::as_str) == Some("--drive") {
        return drive(Path::new(&args[2]), Path::new(&args[3]));
    }
    if args.iter().any(|arg| arg == "--list") {
        return;
    }
    if !can_mount("guard") {
        return;
    }
    type Test = fn(&Fixture);
    let tests: [(&str, Test); 5] = [
        (
            "a_killed_driver_leaves_no_mount",
            a_killed_driver_leaves_no_mount,
        ),
        (
            "an_orderly_end_dismisses_the_guard",
            an_orderly_end_dismisses_the_guard,
        ),
        ("another_mount_on_top_stays", another_mount_on_top_stays),
        ("a_mount_made_later_stays", a_mount_made_later_stays),
        ("the_guard_is_small", the_guard_is_small),
    ];
    let fixture = Fixture::new();
    for (name, test) in tests {
        test(&fixture);
        println!("test {name} ... ok");
    }
}

/// The driver in a process of its own: says the number of its guard when it is ready, ends when its
/// input ends.
fn drive(image: &Path, point: &Path) {
    let mut guard = Guard::spawn().expect("one thread so far");
    let image = Image::open(image, &OpenOptions::default()).expect("a valid image");
    let mounted = mount(image, point, &as_asked(&MountOptions::default())).expect("mounted");
    guard
        .watch(mounted.mountpoint(), mounted.device())
        .expect("the guard lives");
    // Too late for another one.
    assert!(Guard::spawn().is_err());
    println!("{}", guard.process_id());
    std::io::stdin().read_to_end(&mut Vec::new()).expect("read");
    mounted.unmounter().unmount().expect("unmounted");
    mounted.wait().expect("a regular end");
    guard.dismiss();
}

struct Fixture {
    dir: TempDir,
    image: PathBuf,
}

struct Driver {
    child: Child,
    stdin: Option<ChildStdin>,
    guard: u32,
    point: PathBuf,
}

impl Fixture {
    fn new() -> Self {
        let dir = TempDir::with_prefix("redwarfs-guard-").expect("a temporary directory");
        let image = dir.path().join("image.dwarfs");
        let (bytes, _) = Maker::new().file("file", "contents").image();
        fs::write(&image, bytes).expect("writable");
        Self { dir, image }
    }

    fn drive(&self, name: &str) -> Driver {
        let point = self.dir.path().join(name);
        fs::create_dir(&point).expect("mkdir");
        let mut child = Command::new(std::env::current_exe().expect("a program"))
            .arg("--drive")
            .arg(&self.image)
            .arg(&point)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("started");
        let stdin = child.stdin.take();
        let mut line = String::new();
        BufReader::new(child.stdout.take().expect("a pipe"))
            .read_line(&mut line)
            .expect("ready");
        assert_eq!(
            fs::read_to_string(point.join("file")).expect("mounted"),
            "contents"
        );
        Driver {
            child,
            stdin,
            guard: line.trim().parse().expect("a process id"),
            point,
        }
    }
}

impl Driver {
    fn kill(&mut self) {
        self.child.kill().expect("killed");
        self.child.wait().expect("a child");
    }

    /// Also if nobody has waited for it: in containers process 1 often does not.
    fn guard_is_gone(&self) -> bool {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.guard)).unwrap_or_default();
        let state = stat.rsplit_once(')').map(|(_, fields)| fields.trim_start());
        state.is_none_or(|state| state.starts_with(['Z', 'X']))
    }
}

impl Drop for Driver {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        while unmount(&self.point, UnmountFlags::DETACH).is_ok() {}
    }
}

fn is_mounted(path: &Path) -> bool {
    let table = fs::read_to_string("/proc/self/mounts").expect("the mount table");
    let path = path.to_str().expect("plain");
    table
        .lines()
        .any(|line| line.split(' ').nth(1) == Some(path))
}

fn a_killed_driver_leaves_no_mount(fixture: &Fixture) {
    let mut driver = fixture.drive("killed");
    // Somebody stands in it: the mount is detached all the same.
    let inside = fs::File::open(driver.point.join("file")).expect("readable");
    driver.kill();
    wait_until("the mount is gone", || !is_mounted(&driver.point));
    wait_until("the guard is gone", || driver.guard_is_gone());
    assert_eq!(
        fs::read_dir(&driver.point)
            .expect("a plain directory")
            .count(),
        0
    );
    drop(inside);
}

fn an_orderly_end_dismisses_the_guard(fixture: &Fixture) {
    let mut driver = fixture.drive("orderly");
    drop(driver.stdin.take());
    assert!(driver.child.wait().expect("a child").success());
    assert!(driver.guard_is_gone());
    assert!(!is_mounted(&driver.point));
}

/// Mounts something else on the mount point of a driver, which dies then.
fn another_mount_survives(mut driver: Driver) {
    rustix::mount::mount(
        "tmpfs",
        &driver.point,
        "tmpfs",
        MountFlags::empty(),
        c"size=1m",
    )
    .expect("root may");
    driver.kill();
    wait_until("the guard is gone", || driver.guard_is_gone());
    assert!(is_mounted(&driver.point));
    fs::write(driver.point.join("x"), "x").expect("the other file system works");
}

fn another_mount_on_top_stays(fixture: &Fixture) {
    let driver = fixture.drive("covered");
    another_mount_survives(driver);
}

fn a_mount_made_later_stays(fixture: &Fixture) {
    let driver = fixture.drive("replaced");
    unmount(&driver.point, UnmountFlags::DETACH).expect("root may");
    // With luck it gets the same device number.
    another_mount_survives(driver);
}

fn the_guard_is_small(fixture: &Fixture) {
    let mut driver = fixture.drive("small");
    let rollup = fs::read_to_string(format!("/proc/{}/smaps_rollup", driver.guard));
    let rollup = rollup.expect("the guard's memory");
    let field = |name: &str| -> u64 {
        let line = rollup.lines().find(|line| line.starts_with(name));
        let number = line.and_then(|line| line.split_whitespace().nth(1));
        number.expect(name).parse().expect("kB")
    };
    let own = field("Private_Dirty:");
    writeln!(
        std::io::stderr(),
        "guard: private {own} kB, proportional {} kB",
        field("Pss:")
    )
    .expect("stderr");
    assert!(own < 1024, "{own} kB");
    // Three standard streams and the pipe, as soon as it has let go of the others.
    wait_until("the guard has four files", || {
        let files = fs::read_dir(format!("/proc/{}/fd", driver.guard));
        files.expect("its files").count() == 4
    });
    driver.kill();
    wait_until("the mount is gone", || !is_mounted(&driver.point));
}
