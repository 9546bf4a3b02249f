//! Command lines of programs and scripts that others have written for the reference, verbatim
//! (`docs/callers.md`), and what such callers leave behind in a process that they start.

use std::fs::{self, File};
use std::io::Write;
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};

use crate::driver;
use crate::driver::{
    DWARFS, LINK_IN_SBIN, Mount, as_user, can_mount, driver_of, in_namespace, kill, stderr, stdout,
    table_line, temp, unmount, wait_until,
};
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::{is_installed, skip};
use rustix::process::Signal;
use tempfile::TempDir;

/// Where the image begins in a file with a runtime in front.
const OFFSET: usize = 12_345;

/// Lines that mount: where, and the line. The shell fills in what a script fills in.
const MOUNTS: [(&str, &str); 13] = [
    // uruntime
    (
        "point",
        "dwarfs $IMAGE $MOUNT -f -o uid=$U,gid=$G -o offset=$N,cachesize=1536M,workers=$CPUS -o ro,nodev,tidy_strategy=time,seq_detector=1,cache_files -o blocksize=512K -o readahead=32M -o clone_fd,tidy_interval=2s,tidy_max_age=10s -o debuglevel=error -o preload_category=hotness -o block_allocator=malloc",
    ),
    (
        "point",
        "dwarfs $IMAGE $MOUNT -f -o uid=$U,gid=$G -o offset=$N,cachesize=128M,workers=1 -o ro,nodev,tidy_strategy=time,seq_detector=1,cache_files -o blocksize=512K -o readahead=32M -o tidy_interval=500ms,tidy_max_age=1s -o debuglevel=debug -o preload_all -o analysis_file=profile -o block_allocator=mmap",
    ),
    // RunImage
    (
        "point",
        "dwarfs -f -o ro,nodev,noatime,clone_fd -o cache_files,no_cache_image -o cachesize=512M -o blocksize=512K -o tidy_strategy=time,tidy_interval=500ms,tidy_max_age=1s -o workers=2 -o uid=$U,gid=$G -o offset=$N -o debuglevel=error $IMAGE $MOUNT",
    ),
    // AppBundle
    (
        "point",
        "dwarfs -o ro,nodev,noatime,auto_unmount -o cache_files,no_cache_image,clone_fd -o tidy_strategy=time,tidy_interval=500ms,tidy_max_age=1s -o debuglevel=error -o cachesize=256M -o readahead=32M -o blocksize=512K -o workers=2 -o offset=$N $IMAGE $MOUNT",
    ),
    // Conty
    (
        "point",
        "dwarfs $IMAGE $MOUNT -o offset=$N -o debuglevel=error -o workers=2 -o mlock=try -o no_cache_image -o cache_files -o cachesize=128M -o decratio=0.6 -o tidy_strategy=swap -o tidy_interval=5m",
    ),
    // FlatImage
    (
        "point",
        "dwarfs $IMAGE $MOUNT -f -o uid=$U,gid=$G,auto_unmount,offset=$N,imagesize=$SIZE",
    ),
    (
        "point",
        "dwarfs -o offset=$N -o imagesize=$SIZE $IMAGE $MOUNT",
    ),
    // jc141
    (
        ".groot-mnt",
        "dwarfs groot.dwarfs .groot-mnt -o cachesize=${KB}k -o clone_fd -o cache_image",
    ),
    (
        "prefix-mnt",
        "dwarfs prefix.dwarfs prefix-mnt -o cache_image",
    ),
    // shells
    (
        "point",
        "dwarfs -o offset=auto -o tidy_strategy=swap -o workers=4 $IMAGE $MOUNT",
    ),
    ("point", "dwarfs $IMAGE $MOUNT -o offset=auto"),
    // mount.fuse3, for fstab of Nix
    ("point", "dwarfs groot.dwarfs $MOUNT -o rw,nofail,dev,suid"),
    // mount(8), for fstab with the link
    (
        "point",
        "mount.dwarfs groot.dwarfs $MOUNT -o rw,nofail,allow_other,x-systemd.automount",
    ),
];

/// Other lines: what has to be there afterwards, and the line.
const OTHERS: [(&str, &str); 19] = [
    (
        "App.AppImage",
        "mkdwarfs -f --set-owner 0 --set-group 0 --no-history --no-create-timestamp --categorize=hotness --hotness-list=app.dwfsprof --compression zstd:level=22 -S26 -B32 --header uruntime -N 4 -i ./AppDir -o App.AppImage",
    ),
    (
        "out/App.AppImage",
        "mkdwarfs --force --set-owner 0 --set-group 0 --no-history --no-create-timestamp --header uruntime --input ./AppDir -C zstd:level=22 -S26 -B6 --output out/App.AppImage",
    ),
    (
        "conty.img",
        "mkdwarfs -i AppDir -o conty.img -l7 -C zstd:level=19 --metadata-compression null -S 22 -B 1 --order nilsimsa -W 12 -w 4 --no-history-timestamps --no-create-timestamp",
    ),
    ("DST", "mkdwarfs -f -i AppDir -o DST -l 7 --input-list LIST"),
    ("dist.layer", "mkdwarfs -i AppDir -o dist.layer"),
    (
        "new-prefix.dwarfs",
        "mkdwarfs -l7 -B5 -i AppDir -o new-prefix.dwarfs",
    ),
    ("", "dwarfsck --check-integrity -i groot.dwarfs"),
    (
        "groot/only",
        "dwarfsextract --stdout-progress -i groot.dwarfs -o groot",
    ),
    (
        "OUT/only",
        "dwarfsextract --input $IMAGE --log-level=error --cache-size=1536M --image-offset=$N --num-workers=2 --output OUT --stdout-progress",
    ),
    (
        "OUT/only",
        "dwarfsextract --input $IMAGE --log-level=error --cache-size=512M --image-offset=$N --num-workers=2 --output OUT --stdout-progress --pattern only",
    ),
    (
        "SCRIPT_files/only",
        "dwarfsextract -i $IMAGE -o SCRIPT_files -O $N",
    ),
    ("OUT/only", "dwarfsextract -i $IMAGE -o OUT -O auto"),
    ("PELF/only", "dwarfsextract -o PELF -O $N $IMAGE"),
    ("", "dwarfsextract -o /dev/null -f gnutar -i groot.dwarfs"),
    (
        "",
        "dwarfsextract -n 2 -s 2g -i groot.dwarfs -o /dev/null -f gnutar",
    ),
    (
        "again.dwarfs",
        "mkdwarfs -o again.dwarfs --recompress -i groot.dwarfs",
    ),
    (
        "root.dwarfs",
        "mkdwarfs -i AppDir -o root.dwarfs --compression zstd --filter \"- /proc/**\" --filter \"- /sys/**\"",
    ),
    ("test.dwarfs", "mkdwarfs -i AppDir -o test.dwarfs -l4"),
    ("", "dwarfsck groot.dwarfs; dwarfsck groot.dwarfs -j"),
];

/// A directory with everything that the lines name.
struct TestDir {
    dir: TempDir,
    size: u64,
}

impl TestDir {
    fn new() -> Self {
        let dir = temp();
        let at = |name: &str| dir.path().join(name);
        let image = fs::read(golden("one").image).expect("read");
        let runtime = vec![b'#'; OFFSET];
        fs::write(at("app.run"), [&runtime[..], &image].concat()).expect("write");
        fs::write(at("uruntime"), &runtime).expect("write");
        for name in ["groot.dwarfs", "prefix.dwarfs"] {
            fs::write(at(name), &image).expect("write");
        }
        for name in [
            "bin",
            "point",
            ".groot-mnt",
            "prefix-mnt",
            "groot",
            "out",
            "OUT",
            "SCRIPT_files",
            "PELF",
            "AppDir",
            "AppDir/usr",
        ] {
            fs::create_dir(at(name)).expect("mkdir");
        }
        fs::write(at("AppDir/AppRun"), "#!/bin/sh\n").expect("write");
        fs::write(at("AppDir/usr/data"), "data".repeat(5000)).expect("write");
        symlink("AppRun", at("AppDir/link")).expect("symlink");
        fs::write(at("app.dwfsprof"), "AppRun\n").expect("write");
        fs::write(at("LIST"), "AppRun\nusr\nusr/data\nlink\n").expect("write");
        for (name, program) in [
            ("dwarfs", DWARFS),
            ("mount.dwarfs", DWARFS),
            ("mkdwarfs", env!("CARGO_BIN_EXE_mkdwarfs")),
            ("dwarfsck", env!("CARGO_BIN_EXE_dwarfsck")),
            ("dwarfsextract", env!("CARGO_BIN_EXE_dwarfsextract")),
        ] {
            symlink(program, at("bin").join(name)).expect("symlink");
        }
        Self {
            dir,
            size: image.len() as u64,
        }
    }

    fn shell(&self, line: &str) -> Command {
        let path = std::env::var("PATH").unwrap_or_default();
        let bin = self.dir.path().join("bin");
        let mut command = Command::new("sh");
        command
            .args(["-euc", line])
            .current_dir(self.dir.path())
            .env("PATH", format!("{}:{path}", bin.display()))
            .env("IMAGE", self.dir.path().join("app.run"))
            .env("MOUNT", self.dir.path().join("point"))
            .env("N", OFFSET.to_string())
            .env("SIZE", self.size.to_string())
            .envs([("U", "1000"), ("G", "1000"), ("CPUS", "2"), ("KB", "65536")])
            .stdin(Stdio::null());
        command
    }
}

/// Waits for a mount of a child, or for its end.
fn wait_for_mount(child: &mut Child, point: &Path, line: &str) {
    wait_until("the mount", || {
        let ended = child.try_wait().expect("wait");
        assert!(ended.is_none(), "{line}: {ended:?}");
        table_line(point).is_some() && fs::metadata(point.join("only")).is_ok()
    });
}

#[test]
fn lines_that_mount() {
    if !can_mount("lines_that_mount") {
        return;
    }
    let place = TestDir::new();
    let want = {
        let mount = Mount::background(&golden("one").image, "");
        fs::read(mount.point().join("only")).expect("read")
    };
    for (point, line) in MOUNTS {
        let point = place.dir.path().join(point);
        let foreground = line.contains(" -f");
        let mut child = None;
        if foreground {
            let mut started = place
                .shell(&format!("exec {line}"))
                .stderr(Stdio::piped())
                .spawn()
                .expect("a shell");
            wait_for_mount(&mut started, &point, line);
            child = Some(started);
        } else {
            let output = place.shell(line).output().expect("a shell");
            assert!(output.status.success(), "{line}: {}", stderr(&output));
        }
        let pid = driver_of(&point);
        assert_eq!(fs::read(point.join("only")).expect("read"), want, "{line}");
        unmount(&point);
        match child {
            Some(child) => {
                let output = child.wait_with_output().expect("the end");
                assert!(output.status.success(), "{line}: {}", stderr(&output));
            }
            None => wait_until("the end of the driver", || !driver::alive(pid)),
        }
    }
}

#[test]
fn lines_that_build_check_and_extract() {
    let place = TestDir::new();
    for (made, line) in OTHERS {
        let made = place.dir.path().join(made);
        if made.is_file() {
            fs::remove_file(&made).expect("remove");
        }
        let output = place.shell(line).output().expect("a shell");
        assert!(output.status.success(), "{line}: {}", stderr(&output));
        assert!(made.exists(), "{line}: {}", made.display());
    }
    // Without -o into the current directory.
    let line = "cd out; dwarfsextract -i ../groot.dwarfs";
    let output = place.shell(line).output().expect("a shell");
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(place.dir.path().join("out/only").exists());
    let line = "dwarfs --version; mkdwarfs --version";
    let output = place.shell(line).output().expect("a shell");
    assert_eq!(
        stdout(&output).matches(env!("CARGO_PKG_VERSION")).count(),
        2
    );
}

/// What does not fit this image or this program is a warning.
#[test]
fn values_that_do_not_apply_are_warnings() {
    if !can_mount("values_that_do_not_apply_are_warnings") {
        return;
    }
    let categories = golden("audio-categorize").image;
    for (image, options, warning) in [
        (
            golden("one").image,
            "preload_category=hotness",
            "no such category: hotness",
        ),
        (categories, "preload_category=hotness", "the image has: "),
        (
            golden("one").image,
            "perfmon=fuse+other",
            "no such performance monitor component: other",
        ),
        (
            golden("one").image,
            "perfmon_trace=/dev/null",
            "no effect without perfmon",
        ),
        (golden("one").image, "rw", "the mount is read-only"),
    ] {
        let mount = Mount::on(Mount::new_dir());
        let output = driver::dwarfs()
            .arg(&image)
            .arg(mount.point())
            .args(["-o", options])
            .output()
            .expect("the program can be started");
        assert!(output.status.success(), "{options}: {}", stderr(&output));
        assert!(
            stderr(&output).contains(warning),
            "{options}: {}",
            stderr(&output)
        );
        assert_eq!(stderr(&output).lines().count(), 1, "{}", stderr(&output));
        unmount(mount.point());
        // Callers ask for silence so.
        let quiet = Mount::background(&image, &format!("{options},debuglevel=error"));
        assert!(table_line(quiet.point()).is_some());
    }
}

/// `FUSERMOUNT_PROG` names the helper program.
#[test]
fn the_helper_program_can_be_named() {
    let test = "the_helper_program_can_be_named";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let point = dir.path().join("mnt");
    fs::create_dir(&point).expect("mkdir");
    std::os::unix::fs::chown(&point, Some(65534), Some(65534)).expect("chown");
    let helper = dir.path().join("my helper");
    fs::write(
        &helper,
        "#!/bin/sh\necho called >&2\nexec fusermount3 \"$@\"\n",
    )
    .expect("write");
    fs::set_permissions(&helper, fs::Permissions::from_mode(0o755)).expect("chmod");
    // Passed as they are: a helper that fails says so in its own words.
    let script = r#"
        printf '#!/bin/sh\necho "not today" >&2; exit 1\n' >"$1/refuses"; chmod 755 "$1/refuses"
        FUSERMOUNT_PROG="$1/my helper" user "$2" "$3" "$1/mnt"; cat "$1/mnt/only" | wc -c
        umount "$1/mnt"
        if FUSERMOUNT_PROG="$1/refuses" user "$2" "$3" "$1/mnt"; then exit 90; fi
        FUSERMOUNT_PROG=/no/such/helper user "$2" "$3" "$1/mnt"; umount "$1/mnt""#;
    let image = golden("one").image.canonicalize().expect("a path");
    let Some(output) = as_user(test, script, dir.path(), &[image.as_os_str()]) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{errors}");
    assert!(
        errors.contains("dwarfs: cannot mount: not today"),
        "{errors}"
    );
}

/// fstab with the link: mounted once, changed by `remount`, unmounted by either name.
#[test]
fn fstab_and_remount() {
    let test = "fstab_and_remount";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let image = dir.path().join("a,b.dwarfs");
    fs::copy(golden("one").image, &image).expect("copy");
    fs::create_dir(dir.path().join("mnt")).expect("mkdir");
    fs::create_dir(dir.path().join("none")).expect("mkdir");
    let script = format!(
        r#"{LINK_IN_SBIN}
        flags() {{ grep " $1/mnt " /proc/self/mounts | cut -d' ' -f4; }}
        printf '%s %s dwarfs defaults,nofail,allow_other,x-systemd.automount 0 0\n' "$3" "$1/mnt" >"$1/fstab"
        mount --bind "$1/fstab" /etc/fstab
        mount -a; mount -a; grep -c " $1/mnt " /proc/self/mounts
        mount -o remount,ro "$1/mnt"; flags "$1"
        mount -o remount,ro,noexec "$1/mnt"; flags "$1"
        mount -o remount,rw "$1/mnt"; flags "$1"
        /sbin/mount.dwarfs "$3" "$1/mnt" -o ro,remount,suid,noexec; flags "$1"
        umount "$3"; mount "$1/mnt"; umount "$1/mnt"
        mount -t dwarfs -o ro "$3" "$1/mnt"; umount "$1/mnt"
        if /sbin/mount.dwarfs "$3" "$1/none" -o remount,ro; then exit 90; fi"#
    );
    let Some(output) = in_namespace(test, &script, dir.path(), &[image.as_os_str()]) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{errors}");
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines[0], "1", "mounted once: {text}");
    let has = |line: &str, flag| line.split(',').any(|f| f == flag);
    for line in &lines[1..5] {
        assert!(
            has(line, "ro") && has(line, "nodev") && has(line, "allow_other"),
            "{text}"
        );
    }
    // mount(8) hands over all flags that are on, and none that are off.
    let seen = |line| (has(line, "nosuid"), has(line, "noexec"));
    let wanted = [(true, false), (true, true), (true, false), (false, true)];
    for (line, wanted) in lines[1..].iter().zip(wanted) {
        assert_eq!(seen(line), wanted, "{text}");
    }
    assert_eq!(
        errors.matches("the mount is read-only").count(),
        1,
        "{errors}"
    );
    assert!(
        errors.contains("no FUSE file system is mounted there"),
        "{errors}"
    );
}

/// A device that is opened and mounted, as Apptainer and mount.fuse3 hand it over.
fn mounted_device(point: &Path) -> File {
    let device = File::options()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .expect("the device");
    let data = format!(
        "fd={},rootmode=40000,user_id=0,group_id=0,allow_other",
        device.as_raw_fd()
    );
    let data = std::ffi::CString::new(data).expect("no zero");
    rustix::mount::mount(
        "caller",
        point,
        "fuse.theirs",
        rustix::mount::MountFlags::RDONLY,
        data.as_c_str(),
    )
    .expect("mounting");
    rustix::io::fcntl_setfd(device.as_fd(), rustix::io::FdFlags::empty()).expect("inherited");
    device
}

#[test]
fn a_device_that_the_caller_has_mounted() {
    if !can_mount("a_device_that_the_caller_has_mounted") {
        return;
    }
    let image = golden("one").image;
    for foreground in [true, false] {
        let mount = Mount::on(Mount::new_dir());
        let device = mounted_device(mount.point());
        let target = format!("/dev/fd/{}", device.as_raw_fd());
        let mut command = driver::dwarfs();
        command.arg(&image).arg(&target);
        let mut child = None;
        if foreground {
            child = Some(command.arg("-f").spawn().expect("a driver"));
            // Until it serves, everybody waits.
            drop(device);
        } else {
            let output = command.output().expect("a driver");
            assert!(output.status.success(), "{}", stderr(&output));
            drop(device);
        }
        assert!(fs::read(mount.point().join("only")).is_ok());
        let pid = driver_of(mount.point());
        let line = table_line(mount.point()).expect("a mount");
        assert!(line.starts_with("caller "), "{line}");
        unmount(mount.point());
        match &mut child {
            Some(child) => assert!(child.wait().expect("the end").success()),
            None => wait_until("the end of the driver", || !driver::alive(pid)),
        }
    }
    // A signal ends the driver; the mount is the caller's to take off.
    let mount = Mount::on(Mount::new_dir());
    let device = mounted_device(mount.point());
    let target = format!("/dev/fd/{}", device.as_raw_fd());
    let mut child = driver::dwarfs()
        .args(["-f".as_ref(), image.as_os_str(), target.as_ref()])
        .spawn()
        .expect("a driver");
    drop(device);
    assert!(fs::read(mount.point().join("only")).is_ok());
    kill(child.id(), Signal::TERM);
    assert!(child.wait().expect("the end").success());
    assert!(table_line(mount.point()).is_some());
    // What is no such device is refused.
    let null = File::open("/dev/null").expect("open");
    rustix::io::fcntl_setfd(null.as_fd(), rustix::io::FdFlags::empty()).expect("inherited");
    for (number, text) in [
        (null.as_raw_fd(), "not an open /dev/fuse"),
        (987, "no such descriptor"),
    ] {
        let target = format!("/dev/fd/{number}");
        let output = driver::run(&[image.as_os_str(), target.as_ref()]);
        assert_eq!(output.status.code(), Some(4), "{}", stderr(&output));
        assert!(stderr(&output).contains(text), "{}", stderr(&output));
    }
}

fn sh(script: &str, arguments: &[&Path]) -> Output {
    Command::new("sh")
        .args(["-euc", script, "sh"])
        .args(arguments)
        .stdin(Stdio::null())
        .output()
        .expect("sh can be started")
}

#[test]
fn a_driver_in_the_background_keeps_nothing_of_its_caller() {
    let test = "a_driver_in_the_background_keeps_nothing_of_its_caller";
    if !can_mount(test) {
        return;
    }
    if !is_installed("flock") {
        return skip(test, "there is no flock");
    }
    let image = golden("one").image;
    let dir = temp();
    // A lock on a descriptor, a pipe that somebody reads until its end, and an image, a log and a
    // profile that are named by descriptors.
    let script = r#"
        exec 9>"$1/lock"; flock 9
        text=$("$2" /dev/fd/8 "$4" -o "$5" --log-file=/dev/fd/6 7>&1 8<"$3" 6>>"$1/log")
        [ -s "$1/log" ]
        exec 9>&-
        flock -n "$1/lock" true"#;
    for options in ["guard", "auto_unmount", "no_guard"] {
        let mount = Mount::on(Mount::new_dir());
        let paths = [
            dir.path(),
            DWARFS.as_ref(),
            &image,
            mount.point(),
            options.as_ref(),
        ];
        let output = sh(script, &paths);
        assert!(output.status.success(), "{options}: {}", stderr(&output));
        assert!(mount.point().join("only").exists());
        let pid = driver_of(mount.point());
        let open = fs::read_dir(format!("/proc/{pid}/fd")).expect("its descriptors");
        for entry in open {
            let target = fs::read_link(entry.expect("an entry").path()).expect("a link");
            assert!(!target.ends_with("lock"), "{options}: {}", target.display());
        }
        unmount(mount.point());
        wait_until("the end of the driver", || !driver::alive(pid));
    }
}

#[test]
fn hiding_something_is_said() {
    if !can_mount("hiding_something_is_said") {
        return;
    }
    let image = golden("one").image;
    let dir = temp();
    let point = dir.path().join("point");
    fs::create_dir(&point).expect("mkdir");
    let run = |options: &str| {
        let output = driver::dwarfs()
            .arg(&image)
            .arg(&point)
            .args(["-o", options])
            .output()
            .expect("the program can be started");
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    assert_eq!(run("ro"), "", "an empty directory");
    // Another mount is something, too.
    let text = run("ro");
    assert!(text.contains("hides") && text.contains("point"), "{text}");
    assert_eq!(run("nonempty"), "");
    for _ in 0..3 {
        unmount(&point);
    }
    File::create(point.join("x"))
        .and_then(|mut file| file.write_all(b"x"))
        .expect("write");
    let text = run("ro");
    assert!(
        text.contains("hides") && text.contains("-o nonempty"),
        "{text}"
    );
    unmount(&point);
    assert_eq!(run("nonempty"), "");
    unmount(&point);
}

#[test]
fn an_idle_mount_is_taken_off() {
    if !can_mount("an_idle_mount_is_taken_off") {
        return;
    }
    let dir = temp();
    let log = dir.path().join("log");
    let options = format!("timeout=1,debuglevel=verbose,log_file={}", log.display());
    let mount = Mount::background(&golden("one").image, &options);
    let pid = driver_of(mount.point());
    let held = File::open(mount.point().join("only")).expect("open");
    wait_until("an attempt", || {
        fs::read_to_string(&log).is_ok_and(|text| text.contains("something is in use"))
    });
    assert!(table_line(mount.point()).is_some(), "what is open keeps it");
    drop(held);
    wait_until("the unmount", || table_line(mount.point()).is_none());
    wait_until("the end of the driver", || !driver::alive(pid));
    // A user needs the helper program for that.
    let test = "an_idle_mount_is_taken_off";
    let point = dir.path().join("mnt");
    fs::create_dir(&point).expect("mkdir");
    std::os::unix::fs::chown(&point, Some(65534), Some(65534)).expect("chown");
    let script = r#"user "$2" "$3" "$1/mnt" -o timeout=1
        for n in $(seq 400); do grep -q " $1/mnt " /proc/self/mounts || exit 0; sleep 0.05; done
        exit 90"#;
    let image = golden("one").image.canonicalize().expect("a path");
    if let Some(output) = as_user(test, script, dir.path(), &[image.as_os_str()]) {
        assert!(output.status.success(), "{}", stderr(&output));
    }
}
