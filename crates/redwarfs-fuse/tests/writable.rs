//! Mounts with a writable layer.

mod support;
mod writable_support;

use std::ffi::CString;
use std::fs;
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use redwarfs_fuse::{Access, Layer, LayerDriver, MountOptions};
use redwarfs_testkit::skip;
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use support::{FilePart, Maker, Mount, can_mount};
use tempfile::TempDir;
use writable_support::{Picture, Random, Step, assert_same, layered, picture, run};

/// Number of random programs.
const CASES: &str = "REDWARFS_LAYER_CASES";
const IN_THE_GATE: u64 = 30;
/// The steps of each.
const STEPS: usize = 80;

fn image() -> Maker {
    let noise = |seed: u64, size: usize| -> Vec<u8> {
        let mut random = Random::new(seed);
        (0..size).map(|_| random.below(256) as u8).collect()
    };
    let mut maker = Maker::new();
    maker
        .dir("dir")
        .dir("dir/sub")
        .dir("dir/dir")
        .dir("sub")
        .dir("sub/sub")
        .dir("sub/sub/dir")
        .file("a", noise(1, 50_000))
        .file_with_mode("b", "small", 0o640)
        .file("dir/a", noise(2, 60_000))
        .file("dir/b", "")
        .file_with_mode("dir/c", "#!/bin/sh\n", 0o4755)
        .file("dir/sub/a", noise(3, 9))
        .file("sub/b", noise(4, 5000))
        .file("sub/sub/a", noise(5, 333))
        .pieces(
            "sub/c",
            &[
                FilePart::Data(noise(6, 4096)),
                FilePart::Hole(70_000),
                FilePart::Data(noise(7, 100)),
            ],
        )
        .link("c", "dir/a")
        .link("sub/a", "nowhere")
        .fifo("dir/sub/b");
    maker
}

/// Something mounted by a test.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let _ = unmount(self.0, UnmountFlags::DETACH);
    }
}

/// What the kernel's overlayfs shows of an image and a layer; none if it cannot mount here.
fn by_the_kernel(image: &Maker, layer: &Path) -> Option<Picture> {
    let lower = Mount::new(image, &MountOptions::default());
    let merged = TempDir::new().expect("a temporary directory");
    let data = format!(
        "lowerdir={},upperdir={},workdir={}",
        lower.point().display(),
        layer.join("upper").display(),
        layer.join("work").display()
    );
    let data = CString::new(data).expect("no zero");
    let flags = MountFlags::empty();
    if let Err(error) = mount("overlay", merged.path(), "overlay", flags, data.as_c_str()) {
        skip("the kernel's overlayfs", &error.to_string());
        return None;
    }
    let _mounted = Mounted(merged.path());
    Some(picture(merged.path()))
}

/// Copies what a mount shows, so that a program can run on both.
fn copy(from: &Path, to: &Path) {
    let status = Command::new("cp")
        .args(["-a", "--"])
        .arg(from.join("."))
        .arg(to)
        .status();
    assert!(status.expect("cp").success());
}

fn outcome(result: &io::Result<String>) -> Result<&str, Option<i32>> {
    match result {
        Ok(text) => Ok(text),
        Err(error) => Err(error.raw_os_error()),
    }
}

/// Runs a random program on a mount and on a plain directory.
fn compare(seed: u64, by: LayerDriver) {
    let image = image();
    // Copies are synced, which takes time on a disk.
    let memory = Path::new("/dev/shm");
    let new = || match !seed.is_multiple_of(4) && memory.is_dir() {
        true => TempDir::new_in(memory).expect("a temporary directory"),
        false => TempDir::new().expect("a temporary directory"),
    };
    let (layer, plain) = (new(), new());
    let mut options = layered(layer.path());
    options.layer_driver = by;
    let kernel = by == LayerDriver::Kernel;
    if kernel {
        options.access = Access::Everyone;
    }
    let mut mounted = Mount::new(&image, &options);
    copy(mounted.point(), plain.path());
    let case = |what: &str| format!("{CASES}: program {seed}: {what}");
    assert_same(
        &case("at first"),
        &picture(mounted.point()),
        &picture(plain.path()),
    );
    let mut random = Random::new(seed);
    let (mut open, mut open_plain) = (Vec::new(), Vec::new());
    let mut log = Vec::new();
    for _ in 0..STEPS {
        let step = match Step::random(&mut random, open.len()) {
            // The kernel goes on to show the old data of a file that was opened so.
            Step::Open(path, libc::O_RDONLY) if kernel => Step::Open(path, libc::O_RDWR),
            step => step,
        };
        let found = run(mounted.point(), &mut open, &step);
        log.push(format!("{step:?}: {found:?}"));
        if let Step::Rename(from, _) | Step::RenameNew(from, _) = &step
            && found
                .as_ref()
                .is_err_and(|error| error.raw_os_error() == Some(libc::EXDEV))
        {
            // Documented: programs copy such directories.
            assert!(
                plain.path().join(from).is_dir(),
                "{}",
                case(&log.join("\n"))
            );
            continue;
        }
        let expected = run(plain.path(), &mut open_plain, &step);
        let same = outcome(&found) == outcome(&expected);
        assert!(same, "{}\nexpected {expected:?}", case(&log.join("\n")));
    }
    let expected = picture(plain.path());
    let log = log.join("\n");
    assert_same(&case(&log), &picture(mounted.point()), &expected);
    drop((open, open_plain));
    mounted.unmount();
    let mut again = Mount::new(&image, &options);
    assert_same(&case(&log), &picture(again.point()), &expected);
    again.unmount();
    let left = fs::read_dir(layer.path().join("work")).expect("work");
    let left = left.map(|entry| entry.expect("an entry").file_name());
    // The kernel keeps a directory of its own, which is empty.
    let left: Vec<_> = left.filter(|name| !kernel || name != "work").collect();
    assert!(left.is_empty(), "{}: {left:?}", case(&log));
    if let Some(found) = by_the_kernel(&image, layer.path()) {
        assert_same(&case(&format!("by the kernel\n{log}")), &found, &expected);
    }
}

#[test]
fn random_programs_see_a_plain_directory() {
    if !can_mount("random_programs_see_a_plain_directory") {
        return;
    }
    let (first, count) = match std::env::var(CASES) {
        // One program: `=7`.
        Ok(text) => match text.strip_prefix('=') {
            Some(one) => (one.parse().expect("a number"), 1),
            None => (0, text.parse().expect("a number")),
        },
        Err(_) => (0, IN_THE_GATE),
    };
    for seed in first..first + count {
        compare(seed, LayerDriver::Own);
    }
    if !kernel_mounts_overlays() {
        return;
    }
    for seed in first..first + count.div_ceil(2) {
        compare(seed, LayerDriver::Kernel);
    }
}

/// Whether the kernel takes a layer in a temporary directory; says so if it does not.
fn kernel_mounts_overlays() -> bool {
    let layer = TempDir::new().expect("a temporary directory");
    let mut options = layered(layer.path());
    options.layer_driver = LayerDriver::Kernel;
    options.access = Access::Everyone;
    let (bytes, _) = image().image();
    let open = redwarfs_reader::OpenOptions::default();
    let image = redwarfs_reader::Image::from_source(support::Gate::new(bytes), &open);
    let point = TempDir::new().expect("a temporary directory");
    match redwarfs_fuse::mount(image.expect("a valid image"), point.path(), &options) {
        Ok(mounted) => {
            mounted.unmounter().unmount().expect("unmounting works");
            mounted.wait().expect("the session ends well");
            true
        }
        Err(error) => {
            skip("the kernel's overlayfs as driver", &error.to_string());
            false
        }
    }
}

#[test]
fn links_of_the_image_break_as_in_overlayfs() {
    if !can_mount("links_of_the_image_break_as_in_overlayfs") {
        return;
    }
    let mut maker = Maker::new();
    maker.file("one", "data").same("two", "one");
    let layer = TempDir::new().expect("a temporary directory");
    let mount = Mount::new(&maker, &layered(layer.path()));
    let stat = |name: &str| fs::metadata(mount.path(name)).expect("stat");
    assert_eq!(
        (stat("one").ino(), stat("one").nlink()),
        (stat("two").ino(), 2)
    );
    fs::write(mount.path("one"), "changed").expect("writable");
    assert_eq!(fs::read_to_string(mount.path("two")).expect("read"), "data");
    assert_eq!(
        fs::read_to_string(mount.path("one")).expect("read"),
        "changed"
    );
    assert_ne!(stat("one").ino(), stat("two").ino());
    assert_eq!(stat("one").nlink(), 1);
    // A link that is made in the mount is one.
    fs::hard_link(mount.path("one"), mount.path("three")).expect("link");
    fs::write(mount.path("three"), "both").expect("writable");
    assert_eq!(fs::read_to_string(mount.path("one")).expect("read"), "both");
    assert_eq!(
        (stat("one").ino(), stat("one").nlink()),
        (stat("three").ino(), 2)
    );
}

#[test]
fn open_files_see_changes_and_outlive_their_names() {
    if !can_mount("open_files_see_changes_and_outlive_their_names") {
        return;
    }
    use std::os::unix::fs::FileExt;
    let layer = TempDir::new().expect("a temporary directory");
    let mount = Mount::new(&image(), &layered(layer.path()));
    let number = fs::metadata(mount.path("b")).expect("stat").ino();
    let open = fs::File::open(mount.path("b")).expect("open");
    fs::write(mount.path("b"), "other").expect("writable");
    let mut data = [0; 5];
    open.read_exact_at(&mut data, 0).expect("read");
    assert_eq!(&data, b"other");
    assert_eq!(fs::metadata(mount.path("b")).expect("stat").ino(), number);
    fs::remove_file(mount.path("b")).expect("unlink");
    open.set_permissions(std::os::unix::fs::PermissionsExt::from_mode(0o600))
        .expect("fchmod");
    let stat = open.metadata().expect("fstat");
    assert_eq!((stat.mode() & 0o777, stat.nlink()), (0o600, 0));
    // One that is not in the layer when it loses its name.
    let open = fs::File::open(mount.path("dir/a")).expect("open");
    fs::remove_file(mount.path("dir/a")).expect("unlink");
    let times = fs::FileTimes::new().set_modified(std::time::SystemTime::UNIX_EPOCH);
    open.set_times(times).expect("futimens");
    assert_eq!(open.metadata().expect("fstat").mtime(), 0);
    let mut data = vec![0; 60_000];
    open.read_exact_at(&mut data, 0).expect("read");
    assert!(!mount.path("dir/a").exists());
}

#[test]
fn a_layer_has_one_mount() {
    if !can_mount("a_layer_has_one_mount") {
        return;
    }
    let layer = TempDir::new().expect("a temporary directory");
    let _mount = Mount::new(&image(), &layered(layer.path()));
    let (bytes, _) = image().image();
    let open = redwarfs_reader::OpenOptions::default();
    let second = redwarfs_reader::Image::from_source(support::Gate::new(bytes), &open);
    let point = TempDir::new().expect("a temporary directory");
    let error = redwarfs_fuse::mount(
        second.expect("a valid image"),
        point.path(),
        &layered(layer.path()),
    );
    let text = error.expect_err("refused").to_string();
    assert!(text.contains("another mount uses it"), "{text}");
    assert!(text.contains(&layer.path().display().to_string()), "{text}");
}

#[test]
fn temporary_layers_work() {
    if !can_mount("temporary_layers_work") {
        return;
    }
    let layer = TempDir::new().expect("a temporary directory");
    let mut options = layered(layer.path());
    options.layer = Some(Layer::Temporary(layer.path().to_owned()));
    let mount = Mount::new(&image(), &options);
    fs::write(mount.path("a"), "x").expect("writable");
    fs::File::open(mount.path("a"))
        .expect("open")
        .sync_all()
        .expect("sync");
    assert_eq!(
        fs::read_to_string(layer.path().join("upper/a")).expect("read"),
        "x"
    );
}

#[test]
fn programs_open_more_files_than_usual() {
    use rustix::process::{Resource, getrlimit, setrlimit};
    let test = "programs_open_more_files_than_usual";
    if !can_mount(test) {
        return;
    }
    let mut limit = getrlimit(Resource::Nofile);
    if limit.maximum.is_some_and(|maximum| maximum < 8000) {
        return skip(test, "this process may not open many files");
    }
    limit.current = Some(1024);
    setrlimit(Resource::Nofile, limit).expect("setrlimit");
    let layer = TempDir::new().expect("a temporary directory");
    let mount = Mount::new(&image(), &layered(layer.path()));
    let open: Vec<_> = (0..1500)
        .map(|number| fs::File::create(mount.path(format!("new-{number}"))).expect("create"))
        .collect();
    assert_eq!(open.len(), 1500);
}

#[test]
fn a_layer_of_root_is_private() {
    if !can_mount("a_layer_of_root_is_private") {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        skip("a_layer_of_root_is_private", "not root");
        return;
    }
    let layer = TempDir::new().expect("a temporary directory");
    let options = layered(layer.path());
    let refused = |what: &str| {
        let (bytes, _) = image().image();
        let open = redwarfs_reader::OpenOptions::default();
        let image = redwarfs_reader::Image::from_source(support::Gate::new(bytes), &open);
        let point = TempDir::new().expect("a temporary directory");
        let mounted = redwarfs_fuse::mount(image.expect("a valid image"), point.path(), &options);
        let text = mounted.expect_err(what).to_string();
        let advice = format!("chmod 700 {}", layer.path().display());
        assert!(text.contains(&advice), "{what}: {text}");
    };
    for mode in [0o755, 0o710, 0o701] {
        fs::set_permissions(layer.path(), PermissionsExt::from_mode(mode)).expect("chmod");
        refused(&format!("{mode:o}"));
    }
    fs::set_permissions(layer.path(), PermissionsExt::from_mode(0o744)).expect("chmod");
    drop(Mount::new(&image(), &options));
    std::os::unix::fs::chown(layer.path(), Some(65534), None).expect("chown");
    refused("of another user");
}

#[test]
fn entries_with_data_or_names_elsewhere_are_errors() {
    if !can_mount("entries_with_data_or_names_elsewhere_are_errors") {
        return;
    }
    let layer = TempDir::new().expect("a temporary directory");
    let upper = layer.path().join("upper");
    fs::create_dir_all(upper.join("moved")).expect("mkdir");
    fs::write(upper.join("a"), [0; 100]).expect("write");
    fs::write(upper.join("own"), "x").expect("write");
    let mark = |name: &str, mark: &str, value: &[u8]| {
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(upper.join(name), mark, value, flags)
    };
    if let Err(error) = mark("a", "user.overlay.metacopy", b"") {
        skip(
            "entries_with_data_or_names_elsewhere_are_errors",
            &error.to_string(),
        );
        return;
    }
    mark(
        "moved",
        "user.overlay.redirect",
        b"/dir/sub/a/very/long/name",
    )
    .expect("setxattr");
    let mount = Mount::new(&image(), &layered(layer.path()));
    for name in ["a", "moved"] {
        let error = fs::metadata(mount.path(name)).expect_err(name);
        assert_eq!(error.raw_os_error(), Some(libc::EIO), "{name}");
    }
    assert_eq!(fs::read_to_string(mount.path("own")).expect("read"), "x");
    let names = fs::read_dir(mount.point()).expect("list").count();
    assert_eq!(names, 5 + 2, "all are listed");
}

#[test]
fn set_user_id_goes_with_every_change_of_data() {
    let test = "set_user_id_goes_with_every_change_of_data";
    if !can_mount(test) {
        return;
    }
    if !rustix::process::geteuid().is_root() {
        skip(test, "not root");
        return;
    }
    let layer = TempDir::new().expect("a temporary directory");
    let mut options = layered(layer.path());
    options.access = redwarfs_fuse::Access::Everyone;
    let mount = Mount::new(&image(), &options);
    fs::set_permissions(mount.point(), PermissionsExt::from_mode(0o755)).expect("chmod");
    let mode = |uid: u32| {
        let path = mount.path("file");
        fs::write(&path, "data").expect("write");
        std::os::unix::fs::chown(&path, Some(65534), Some(65534)).expect("chown");
        fs::set_permissions(&path, PermissionsExt::from_mode(0o6755)).expect("chmod");
        let output = Command::new("fallocate")
            .args(["-l", "100000"])
            .arg(&path)
            .current_dir("/")
            .uid(uid)
            .gid(uid)
            .output();
        let output = output.expect("fallocate can be started");
        assert!(output.status.success(), "{output:?}");
        fs::metadata(&path).expect("stat").mode() & 0o7777
    };
    assert_eq!(mode(65534), 0o755);
    assert_eq!(mode(0), 0o6755);
}

#[test]
fn a_mount_ends_while_a_copy_waits() {
    if !can_mount("a_mount_ends_while_a_copy_waits") {
        return;
    }
    let layer = TempDir::new().expect("a temporary directory");
    let (bytes, _) = image().image();
    let gate = support::Gate::new(bytes);
    let open = redwarfs_reader::OpenOptions::default();
    let mut options = layered(layer.path());
    options.owns_image = true;
    let mut mount = Mount::with(gate.clone(), &open, &options);
    gate.close(0..u64::MAX);
    let path = mount.path("dir/a");
    let writer = std::thread::spawn(move || fs::OpenOptions::new().append(true).open(path));
    let work = layer.path().join("work");
    support::wait_until("the copy", || {
        fs::read_dir(&work).expect("work").count() > 0
    });
    // Ends the connection.
    let _ = unmount(mount.point(), UnmountFlags::FORCE);
    assert!(writer.join().expect("no panic").is_err());
    let _ = unmount(mount.point(), UnmountFlags::DETACH);
    let (done, end) = std::sync::mpsc::channel();
    let mounted = mount.take();
    std::thread::spawn(move || done.send(mounted.wait().is_ok()));
    let ended = end.recv_timeout(std::time::Duration::from_secs(20));
    gate.open();
    assert!(ended.is_ok(), "the driver waits for the image");
}

#[test]
fn truncating_while_a_copy_waits_blocks_nothing_and_makes_no_hole() {
    if !can_mount("truncating_while_a_copy_waits_blocks_nothing_and_makes_no_hole") {
        return;
    }
    let layer = TempDir::new().expect("a temporary directory");
    let (bytes, _) = image().image();
    let gate = support::Gate::new(bytes);
    let open = redwarfs_reader::OpenOptions::default();
    let mut options = layered(layer.path());
    options.owns_image = true;
    let mount = Mount::with(gate.clone(), &open, &options);
    gate.close(0..u64::MAX);
    let path = mount.path("dir/a");
    let mut programs = Vec::new();
    let appended = path.clone();
    programs.push(std::thread::spawn(move || {
        let mut file = fs::OpenOptions::new().append(true).open(appended)?;
        file.write_all(b"A\n")
    }));
    let work = layer.path().join("work");
    support::wait_until("the copy", || {
        fs::read_dir(&work).expect("work").count() > 0
    });
    for _ in 0..24 {
        let path = path.clone();
        programs.push(std::thread::spawn(move || fs::File::create(path).map(drop)));
    }
    // They have sent their requests, or will.
    std::thread::sleep(Duration::from_millis(200));
    let (done, names) = std::sync::mpsc::channel();
    let other = mount.path("sub/sub");
    std::thread::spawn(move || done.send(fs::read_dir(other).expect("a directory").count()));
    let names = names.recv_timeout(Duration::from_secs(20));
    gate.open();
    for program in programs {
        program.join().expect("no panic").expect("open and write");
    }
    assert_eq!(names, Ok(2), "the mount waits for the copy");
    let content = fs::read_to_string(&path).expect("the file");
    assert!(content.is_empty() || content == "A\n", "{content:?}");
}

#[test]
fn appending_after_a_truncation_that_the_kernel_does_not_know_makes_no_hole() {
    if !can_mount("appending_after_a_truncation_that_the_kernel_does_not_know_makes_no_hole") {
        return;
    }
    let layer = TempDir::new().expect("a temporary directory");
    let (bytes, _) = image().image();
    let open = redwarfs_reader::OpenOptions::default();
    let mount = Mount::with(support::Gate::new(bytes), &open, &layered(layer.path()));
    let path = mount.path("dir/a");
    let mut file = fs::OpenOptions::new()
        .append(true)
        .open(&path)
        .expect("open");
    file.write_all(b"A\n").expect("write");
    let upper = layer.path().join("upper/dir/a");
    fs::File::create(&upper).expect("truncate");
    file.write_all(b"B\n").expect("write");
    assert_eq!(fs::read_to_string(&upper).expect("the file"), "B\n");
    assert_eq!(fs::read_to_string(&path).expect("the file"), "B\n");
}

#[test]
fn what_takes_a_removed_name_inherits_as_any_new_file() {
    let test = "what_takes_a_removed_name_inherits_as_any_new_file";
    if !can_mount(test) {
        return;
    }
    const LIST: &str = "system.posix_acl_default";
    let layer = TempDir::new().expect("a temporary directory");
    let mount = Mount::new(&image(), &layered(layer.path()));
    // Owner, a user, group, mask, others.
    let none = u32::MAX;
    let mut list = 2u32.to_le_bytes().to_vec();
    for (tag, bits, id) in [
        (1u16, 7u16, none),
        (2, 4, 1234),
        (4, 5, none),
        (16, 7, none),
        (32, 0, none),
    ] {
        list.extend([tag.to_le_bytes(), bits.to_le_bytes()].concat());
        list.extend(id.to_le_bytes());
    }
    let sub = mount.path("sub");
    if let Err(error) = std::os::unix::fs::chown(&sub, None, Some(77)) {
        return skip(test, &error.to_string());
    }
    fs::set_permissions(&sub, PermissionsExt::from_mode(0o2775)).expect("chmod");
    let flags = rustix::fs::XattrFlags::empty();
    if let Err(error) = rustix::fs::setxattr(&sub, LIST, &list, flags) {
        return skip(test, &error.to_string());
    }
    fs::remove_file(sub.join("b")).expect("unlink");
    fs::remove_dir_all(sub.join("sub")).expect("rm -r");
    for name in ["b", "new"] {
        fs::write(sub.join(name), "x").expect("write");
    }
    for name in ["sub", "made"] {
        fs::create_dir(sub.join(name)).expect("mkdir");
    }
    let of = |name: &str, list: &str| {
        let mut value = [0; 200];
        let length = rustix::fs::getxattr(sub.join(name), list, &mut value);
        let length = length.unwrap_or_else(|error| panic!("{name}: {list}: {error}"));
        let meta = fs::metadata(sub.join(name)).expect("stat");
        (value[..length].to_vec(), meta.mode(), meta.gid())
    };
    let access = "system.posix_acl_access";
    assert_eq!(of("b", access), of("new", access));
    assert_eq!(of("sub", access), of("made", access));
    assert_eq!(of("sub", LIST), of("made", LIST));
    assert_eq!(of("sub", LIST).0, list);
    assert_eq!(of("b", access).2, 77);
    let kept = fs::read_dir(layer.path().join("work")).expect("work");
    assert_eq!(kept.count(), 0);
}

#[test]
fn new_files_have_small_numbers() {
    if !can_mount("new_files_have_small_numbers") {
        return;
    }
    let layer = TempDir::new().expect("a temporary directory");
    let mount = Mount::new(&image(), &layered(layer.path()));
    fs::write(mount.path("new"), "x").expect("write");
    let upper = fs::metadata(layer.path().join("upper/new")).expect("stat");
    let shown = fs::metadata(mount.path("new")).expect("stat").ino();
    match upper.ino() < u64::from(u32::MAX / 2) {
        true => assert!(shown > upper.ino() && shown <= u64::from(u32::MAX)),
        false => assert!(shown > 1 << 34),
    }
}
