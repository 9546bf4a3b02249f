//! A driver among the other programs of a system: mount points made by itself, mount(8), manuals.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::driver;
use crate::driver::{
    DWARFS, LINK_IN_SBIN, Mount, alive, can_mount, driver_of, dwarfs, in_namespace, kill, run,
    stderr, stdout, table_line, temp, wait_until,
};
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::skip;
use rustix::process::Signal;

#[test]
fn auto_mountpoint_comes_and_goes() {
    if !can_mount("auto_mountpoint_comes_and_goes") {
        return;
    }
    let dir = temp();
    // Names with everything that lists, tables and shells treat in a special way.
    for (image, point) in [
        (&b"x.dwarfs"[..], &b"x"[..]),
        (b"a b,c\\d.v1.dwarfs", b"a b,c\\d.v1"),
        (b"new\nline\ttab.img", b"new\nline\ttab"),
        (b"not utf8 \xff\xfe.d", b"not utf8 \xff\xfe"),
        (b"-dash.dwarfs", b"-dash"),
    ] {
        let image = dir.path().join(OsStr::from_bytes(image));
        let point = dir.path().join(OsStr::from_bytes(point));
        fs::copy(golden("one").image, &image).expect("copy");
        let output = run(&[image.as_os_str(), OsStr::new("--auto-mountpoint")]);
        assert!(output.status.success(), "{point:?}: {}", stderr(&output));
        assert!(point.join("only").exists(), "{point:?}");
        driver::unmount(&point);
        wait_until("the directory to go", || !point.exists());
    }
    // Relative, ended by a signal.
    let output = dwarfs()
        .current_dir(dir.path())
        .args(["--auto-mountpoint", "x.dwarfs"])
        .output()
        .expect("the program can be started");
    assert!(output.status.success(), "{}", stderr(&output));
    let point = dir.path().join("x");
    kill(driver_of(&point), Signal::TERM);
    wait_until("the directory to go", || !point.exists());
    // An empty directory that is there stays.
    fs::create_dir(&point).expect("mkdir");
    let output = run(&[
        dir.path().join("x.dwarfs").as_os_str(),
        OsStr::new("--auto-mountpoint"),
    ]);
    assert!(output.status.success(), "{}", stderr(&output));
    let pid = driver_of(&point);
    driver::unmount(&point);
    wait_until("the end of the driver", || !alive(pid));
    assert!(point.exists());
    // One for the link, not for what it leads to.
    let link = dir.path().join("link.dwarfs");
    symlink("x.dwarfs", &link).expect("symlink");
    let output = run(&[link.as_os_str(), OsStr::new("--auto-mountpoint")]);
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(dir.path().join("link/only").exists());
    driver::unmount(&dir.path().join("link"));
}

#[test]
fn auto_mountpoint_errors() {
    let dir = temp();
    let image = dir.path().join("x.dwarfs");
    fs::copy(golden("one").image, &image).expect("copy");
    let plain = dir.path().join("plain");
    fs::copy(&image, &plain).expect("copy");
    let auto = OsStr::new("--auto-mountpoint");
    let failed = |arguments: &[&OsStr]| {
        let output = run(arguments);
        assert_eq!(output.status.code(), Some(1), "{arguments:?}");
        stderr(&output)
    };
    assert_eq!(
        failed(&[image.as_os_str(), dir.path().as_os_str(), auto]),
        "dwarfs: cannot combine <mountpoint> with --auto-mountpoint\n"
    );
    assert_eq!(
        failed(&[plain.as_os_str(), auto]),
        "dwarfs: cannot select mountpoint directory for file with no extension\n"
    );
    let point = dir.path().join("x");
    let unsuitable = format!(
        "dwarfs: cannot find a suitable empty mountpoint directory: {}\n",
        point.display()
    );
    fs::write(&point, "a file").expect("write");
    assert_eq!(failed(&[image.as_os_str(), auto]), unsuitable);
    fs::remove_file(&point).expect("remove");
    fs::create_dir(&point).expect("mkdir");
    fs::write(point.join("y"), "").expect("write");
    assert_eq!(failed(&[image.as_os_str(), auto]), unsuitable);
    assert_eq!(
        failed(&[image.as_os_str()]),
        "dwarfs: no mountpoint specified (dwarfs IMAGE MOUNTPOINT)\n"
    );
    // A damaged image leaves no directory behind.
    let broken = dir.path().join("broken.dwarfs");
    fs::write(&broken, "no image").expect("write");
    failed(&[broken.as_os_str(), auto]);
    assert!(!dir.path().join("broken").exists());
    // Nobody may make a directory in /proc.
    let link = dir.path().join("far");
    symlink("/proc", &link).expect("symlink");
    let output = failed(&[OsStr::new("/proc/self/no.dwarfs"), auto]);
    assert!(output.starts_with("dwarfs: cannot open image: /proc/self/no.dwarfs: "));
}

/// A directory where nothing can be made.
#[test]
fn auto_mountpoint_without_permission() {
    let test = "auto_mountpoint_without_permission";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).expect("mkdir");
    fs::copy(golden("one").image, tree.join("x.dwarfs")).expect("copy");
    // A read-only mount refuses even root.
    let script = r#"mount --bind "$1" "$1"; mount -o remount,bind,ro "$1"
        if "$2" "$1/x.dwarfs" --auto-mountpoint; then exit 99; else exit $?; fi"#;
    let Some(output) = in_namespace(test, script, &tree, &[]) else {
        return;
    };
    assert_eq!(output.status.code(), Some(1), "{}", stderr(&output));
    assert_eq!(
        stderr(&output),
        format!(
            "dwarfs: unable to create mountpoint directory: {}/x: read-only file system\n",
            tree.display()
        )
    );
}

/// The file system that mount(8) looks for, made visible by a link.
fn helper_link(dir: &Path) -> PathBuf {
    let link = dir.join("mount.dwarfs");
    symlink(DWARFS, &link).expect("symlink");
    link
}

#[test]
fn mount_dwarfs_understands_what_mount_says() {
    if !can_mount("mount_dwarfs_understands_what_mount_says") {
        return;
    }
    let dir = temp();
    let helper = helper_link(dir.path());
    let image = golden("one").image;
    let mount = Mount::on(Mount::new_dir());
    let call = |extra: &[&str], source: &OsStr| {
        let output = Command::new(&helper)
            .arg(source)
            .arg(mount.point())
            .args(extra)
            .stdin(Stdio::null())
            .output();
        output.expect("the program can be started")
    };
    // "Fake": everything but the mount.
    let output = call(&["-f", "-o", "rw"], image.as_os_str());
    assert!(output.status.success(), "{}", stderr(&output));
    assert!(table_line(mount.point()).is_none());
    let output = call(&["-f"], OsStr::new("/no/such/image"));
    assert_eq!(output.status.code(), Some(1));
    let output = call(&["-f", "-obogus"], image.as_os_str());
    assert_eq!(output.status.code(), Some(3));

    let mut source = std::ffi::OsString::from("dwarfs#");
    source.push(&image);
    for (flags, source) in [
        (&["-o", "rw,noauto,user=me,fsname=z"][..], image.as_os_str()),
        (
            &["-n", "-s", "-r", "-t", "dwarfs", "-o", "allow_other"],
            &source,
        ),
        (&["-w", "-v", "-N", "/proc/self/ns/mnt"], &source),
    ] {
        let output = call(flags, source);
        let text = stderr(&output);
        assert!(output.status.success(), "{flags:?}: {text}");
        assert_eq!(
            text.contains("file system initialized"),
            flags.contains(&"-v")
        );
        assert!(mount.point().join("only").exists());
        driver::unmount(mount.point());
    }
}

#[test]
fn mount_of_the_system_with_the_link() {
    let test = "mount_of_the_system_with_the_link";
    if !can_mount(test) {
        return;
    }
    let dir = temp();
    fs::create_dir(dir.path().join("mnt")).expect("mkdir");
    let script = format!(
        r#"{LINK_IN_SBIN}
        look() {{ cat "$1/mnt/only" | wc -c; grep " $1/mnt " /proc/self/mounts; umount "$1/mnt"; }}
        mount -t dwarfs "$3" "$1/mnt" -o allow_other,cachesize=1m; look "$1"
        mount -r -v -t dwarfs "dwarfs#$3" "$1/mnt" 2>/dev/null; look "$1"
        mount -f -t dwarfs "$3" "$1/mnt"; grep -c " $1/mnt " /proc/self/mounts || true
        printf '%s %s dwarfs noauto,user,nofail,x-test,fsname=tab 0 0\n' "$3" "$1/mnt" >"$1/fstab"
        mount --bind "$1/fstab" /etc/fstab
        mount "$1/mnt"; look "$1"
        if mount -t dwarfs /no/such/image "$1/mnt"; then exit 99; fi
        if mount -t dwarfs "$3" "$1/mnt" -o bogus; then exit 98; fi"#
    );
    let image = golden("one").image.canonicalize().expect("a path");
    let Some(output) = in_namespace(test, &script, dir.path(), &[image.as_os_str()]) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{errors}");
    let lines: Vec<&str> = text.lines().collect();
    let size = fs::metadata(&image).map(|_| lines[0]).expect("an image");
    assert!(size.parse::<u64>().is_ok_and(|n| n > 0), "{text}");
    let mounts: Vec<&&str> = lines
        .iter()
        .filter(|l| l.contains(" fuse.dwarfs ro,"))
        .collect();
    assert_eq!(mounts.len(), 3, "{text}");
    assert!(mounts[0].contains("allow_other"), "{text}");
    assert!(
        mounts[0].starts_with(image.to_str().expect("a plain path")),
        "{text}"
    );
    assert!(mounts[2].starts_with("tab "), "{text}");
    assert!(lines.contains(&"0"), "nothing is mounted with -f: {text}");
    assert!(
        errors.contains("dwarfs: cannot open image: /no/such/image: no such file or directory"),
        "{errors}"
    );
    assert!(
        errors.contains("dwarfs: unknown option: -o bogus"),
        "{errors}"
    );
}

#[test]
fn mount_of_the_system_through_the_fuse_helper() {
    let test = "mount_of_the_system_through_the_fuse_helper";
    if !can_mount(test) {
        return;
    }
    if !["/sbin/mount.fuse3", "/sbin/mount.fuse"]
        .iter()
        .any(|helper| Path::new(helper).exists())
    {
        return skip(test, "neither mount.fuse3 nor mount.fuse is installed");
    }
    let dir = temp();
    fs::create_dir(dir.path().join("mnt")).expect("mkdir");
    // The helper searches in the directories of the system only.
    let script = r#"
        ln -s "$2" /sbin/dwarfs
        look() { wc -c <"$1/mnt/only"; grep " $1/mnt " /proc/self/mounts; umount "$1/mnt"; }
        mount -t fuse.dwarfs "$3" "$1/mnt"; look "$1"
        mount -t fuse.dwarfs "$3" "$1/mnt" -o ro,allow_other,nosuid,nodev,cachesize=1m; look "$1"
        mount -t fuse "dwarfs#$3" "$1/mnt" -o readonly; look "$1"
        for line in "dwarfs#$3 $1/mnt fuse noauto,defaults,user,cachesize=1g 0 0" \
            "$3 $1/mnt fuse.dwarfs defaults,allow_other,ro 0 0"; do
            printf '%s\n' "$line" >"$1/fstab"
            mount --bind "$1/fstab" /etc/fstab
            mount "$1/mnt"; look "$1"
            umount /etc/fstab
        done"#;
    let image = golden("one").image.canonicalize().expect("a path");
    let script = format!("{LINK_IN_SBIN}\n{script}");
    let Some(output) = in_namespace(test, &script, dir.path(), &[image.as_os_str()]) else {
        return;
    };
    let (text, errors) = (stdout(&output), stderr(&output));
    assert!(output.status.success(), "{text}{errors}");
    let mounts: Vec<&str> = text
        .lines()
        .filter(|l| l.contains(" fuse.dwarfs ro,"))
        .collect();
    assert_eq!(mounts.len(), 5, "{text}{errors}");
    for line in &mounts {
        assert!(
            line.starts_with(image.to_str().expect("a plain path")),
            "{line}"
        );
    }
    assert!(
        mounts[1].contains("nosuid") && mounts[1].contains("allow_other"),
        "{text}"
    );
}

#[test]
fn versions_helps_and_manuals() {
    for (tool, path) in [
        ("mkdwarfs", env!("CARGO_BIN_EXE_mkdwarfs")),
        ("dwarfs", DWARFS),
        ("dwarfsck", env!("CARGO_BIN_EXE_dwarfsck")),
        ("dwarfsextract", env!("CARGO_BIN_EXE_dwarfsextract")),
        ("redwarfs", env!("CARGO_BIN_EXE_redwarfs")),
    ] {
        let run = |arguments: &[&str]| {
            let output = Command::new(path)
                .args(arguments)
                .stdin(Stdio::null())
                .output();
            let output = output.expect("the program can be started");
            assert_eq!(output.status.code(), Some(0), "{tool} {arguments:?}");
            assert_eq!(stderr(&output), "", "{tool} {arguments:?}");
            stdout(&output)
        };
        assert_eq!(
            run(&["--version"]),
            format!("{tool} {} (RedwarFS)\n", env!("CARGO_PKG_VERSION"))
        );
        let help = run(&["--help"]);
        assert!(help.contains(&format!("\nUsage: {tool} ")), "{help}");
        let manual = run(&["--man"]);
        assert!(manual.starts_with(&format!("{tool}(1) -- ")), "{manual}");
        for title in [
            "SYNOPSIS",
            "DESCRIPTION",
            "OPTIONS",
            "EXIT STATUS",
            "SEE ALSO",
        ] {
            assert!(
                manual.contains(&format!("\n{title}\n        ")),
                "{tool} {title}"
            );
        }
        assert!(!manual.contains('\u{1b}'), "{tool}");
        if tool == "dwarfs" {
            assert_eq!(run(&["-V"]), run(&["--version"]));
            assert_eq!(run(&["-h"]), help);
            let long = |line: &&str| line.chars().count() > 80;
            assert_eq!(help.lines().find(long), None);
        }
    }
}

#[test]
fn manual_on_a_terminal_uses_the_pager_and_the_width() {
    let test = "manual_on_a_terminal_uses_the_pager_and_the_width";
    let terminal = |pager: Option<&str>, term: &str, width: u32| {
        let line = format!("stty cols {width}; exec '{DWARFS}' --man");
        let mut command = Command::new("script");
        command.args(["-qec", &line, "/dev/null"]);
        command.env_remove("PAGER").env("TERM", term);
        if let Some(pager) = pager {
            command.env("PAGER", pager);
        }
        let output = command.stdin(Stdio::null()).output().ok()?;
        Some(stdout(&output).replace('\r', ""))
    };
    let Some(plain) = terminal(Some("cat"), "dumb", 60) else {
        return skip(test, "no program 'script' here");
    };
    if !plain.contains("SYNOPSIS") {
        return skip(test, "no terminal can be made here");
    }
    assert!(!plain.contains('\u{1b}'));
    let width = |text: &str| {
        let running = text
            .lines()
            .filter(|line| !line.contains("  dwarfs") && !line.contains("/data"));
        running
            .map(|line| line.chars().count())
            .filter(|&n| n < 130)
            .max()
    };
    let text = plain.split("EXAMPLES").next().unwrap_or_default();
    let text = text.split("MOUNT(8)").next().unwrap_or_default();
    assert!(
        width(text).is_some_and(|n| (50..60).contains(&n)),
        "{plain}"
    );
    let wide = terminal(Some("cat"), "dumb", 120).expect("worked before");
    assert!(wide.lines().count() < plain.lines().count());
    let fancy = terminal(Some("\"cat\""), "xterm", 60).expect("worked before");
    assert!(fancy.contains("\u{1b}[1mSYNOPSIS\u{1b}[22m"), "{fancy}");
    let paged = terminal(Some("sed s/^/page:/"), "xterm", 60).expect("worked before");
    assert!(
        paged.lines().all(|line| line.starts_with("page:")),
        "{paged}"
    );
    let missing = terminal(Some("/no/such/pager"), "xterm", 60).expect("worked before");
    assert!(missing.contains("SYNOPSIS"), "{missing}");
}
