//! Programs that run from the image behind the runtime.

mod support;

use std::fs::{self, File, Permissions};
use std::io::Write;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::process::ExitStatusExt;
use std::process::Command;

use redwarfs::format::hints::{Hint, Hints};
use redwarfs_format::recovery::{Geometry, HeaderPage};
use redwarfs_testkit::mutate::Rng;
use rustix::process::Signal;
use support::{
    App, Running, WITHOUT_FUSE, can_mount, can_unshare, has_helper, must, signal_to, stderr,
    stdout, wait_until,
};

/// Prints that it runs, and waits.
const WAITS: &str = r#"echo "$APPDIR"; exec sleep 60"#;

#[test]
fn arguments_and_exit_status_are_those_of_the_program() {
    if !can_mount("arguments_and_exit_status_are_those_of_the_program") {
        return;
    }
    let app = App::new(r#"printf '<%s>' "$@"; cat "$APPDIR/usr/share/text"; exit 42"#);
    let arguments = ["a b", "", "-h", "--appimage-help", "\u{e9}"];
    let output = app.command().args(arguments).output().unwrap();
    assert_eq!(output.status.code(), Some(42), "{output:?}");
    assert_eq!(
        stdout(&output),
        "<a b><><-h><--appimage-help><\u{e9}>text\n"
    );
    assert_eq!(stderr(&output), "");
    app.wait_until_clean();
}

#[test]
fn the_program_is_told_where_it_is() {
    if !can_mount("the_program_is_told_where_it_is") {
        return;
    }
    let app = App::new(
        r#"printf '%s\n' "$APPIMAGE" "$ARGV0" "$OWD" "$PWD" "$HOME" "$0"; echo "$APPDIR""#,
    );
    let link = app.path("link");
    symlink(&app.file, &link).unwrap();
    let mut command = Command::new("./link");
    app.prepare(&mut command);
    command.env("HOME", "/root");
    let text = must(command);
    let lines: Vec<&str> = text.lines().collect();
    let [file, called, before, at, home, run, mounted] = lines[..] else {
        panic!("{text}");
    };
    assert_eq!(file, app.file.to_str().unwrap());
    assert_eq!(called, "./link");
    assert_eq!((before, at), (app.dir.path().to_str().unwrap(), before));
    assert_eq!(home, "/root");
    assert_eq!(run, format!("{mounted}/AppRun"));
    let name = mounted
        .strip_prefix(app.temporary().to_str().unwrap())
        .unwrap();
    assert!(name.starts_with("/.mount_my_app.AppIm-"), "{name}");
    // Directories beside the file take the place of the user's.
    let mut command = app.command();
    command.arg("--appimage-portable-home");
    let made = must(command);
    assert_eq!(made.trim_end(), format!("{file}.home"));
    let text = must(app.command());
    assert_eq!(text.lines().nth(4), Some(made.trim_end()));
    app.wait_until_clean();
}

#[test]
fn signals_reach_the_program() {
    if !can_mount("signals_reach_the_program") {
        return;
    }
    let app = App::new(WAITS);
    let mut running = Running::start(app.command());
    let point = running.line();
    assert_eq!(app.mounts(), [point]);
    // The driver does not hear what a terminal sends to all.
    signal_to(app.keeper(), Signal::INT);
    signal_to(app.keeper(), Signal::TERM);
    assert_eq!(app.mounts().len(), 1);
    running.signal(Signal::TERM);
    assert_eq!(running.child.wait().unwrap().signal(), Some(15));
    app.wait_until_clean();
}

#[test]
fn the_mount_stays_for_processes_that_the_program_leaves() {
    if !can_mount("the_mount_stays_for_processes_that_the_program_leaves") {
        return;
    }
    // One that inherits everything, and one that has closed everything and stands in the mount.
    for left in [
        r#"sh -c 'read x <"$1"; cat "$APPDIR/usr/share/text" >"$2"' sh "$1" "$2" &"#,
        r#"cd "$APPDIR/usr"; python3 -c 'import os, subprocess, sys
subprocess.Popen(["/bin/sh", "-c", "read x <\"$1\"; cat share/text >\"$2\"", "sh"] + sys.argv[1:], close_fds=True)' \
"$1" "$2""#,
    ] {
        let app = App::new(&format!("{left}\nexit 0"));
        let (pipe, out) = (app.path("pipe"), app.path("out"));
        let made = Command::new("mkfifo").arg(&pipe).status().unwrap();
        assert!(made.success());
        let mut command = app.command();
        command.arg(&pipe).arg(&out);
        assert!(command.status().unwrap().success());
        assert_eq!(app.mounts().len(), 1);
        fs::write(&pipe, "go on\n").unwrap();
        app.wait_until_clean();
        assert_eq!(fs::read_to_string(out).unwrap(), "text\n");
    }
}

#[test]
fn processes_share_a_mount() {
    if !can_mount("processes_share_a_mount") {
        return;
    }
    let app = App::new(WAITS);
    let mut first = Running::start(app.command());
    let point = first.line();
    let keeper = app.keeper();
    let mut second = Running::start(app.command());
    assert_eq!(second.line(), point);
    assert_eq!((app.mounts().len(), app.keeper()), (1, keeper));
    // The first one, whose child the driver was, crashes.
    first.signal(Signal::KILL);
    first.child.wait().unwrap();
    let mut third = Running::start(app.command());
    assert_eq!(third.line(), point);
    assert_eq!(
        fs::read_to_string(format!("{point}/usr/share/text")).unwrap(),
        "text\n"
    );
    second.signal(Signal::KILL);
    second.child.wait().unwrap();
    assert_eq!(app.keeper(), keeper);
    assert_eq!(
        fs::read_to_string(format!("{point}/usr/share/text")).unwrap(),
        "text\n"
    );
    drop(third);
    app.wait_until_clean();
}

/// Bytes that a process has read.
fn bytes_read_by(process: u32) -> u64 {
    let text = fs::read_to_string(format!("/proc/{process}/io")).expect("counters of the process");
    let line = text.lines().find_map(|line| line.strip_prefix("rchar: "));
    line.and_then(|line| line.parse().ok()).expect("a number")
}

#[test]
fn blocks_that_the_image_has_hints_for_are_loaded() {
    const SIZE: usize = 4 << 20;
    if !can_mount("blocks_that_the_image_has_hints_for_are_loaded") {
        return;
    }
    let mut noise = Rng::new(1);
    let noise: Vec<u8> = (0..SIZE).map(|_| noise.bits() as u8 % 64).collect();
    let hint = Hint {
        after: 0,
        offset: 0,
        length: SIZE as u64,
        path: b"usr/lib/large".to_vec(),
    };
    let mut options = redwarfs::BuildOptions::level(1);
    options.block_size_bits = 20;
    options.hints = Some(Hints {
        generation: None,
        list: vec![hint],
    });
    let script = format!("#!/bin/sh\n{WAITS}\n");
    let add = |tree: &std::path::Path| {
        fs::create_dir_all(tree.join("usr/lib")).unwrap();
        fs::write(tree.join("usr/lib/large"), &noise).unwrap();
    };
    let app = App::built(&[("AppRun", &script)], &add, options);
    let mut running = Running::start(app.command());
    let point = running.line();
    assert_eq!(app.mounts(), [point]);
    let keeper = app.keeper();
    // The program reads nothing of it. It has two bits less in each byte.
    wait_until("the blocks are read", || {
        bytes_read_by(keeper) >= SIZE as u64 / 2
    });
    running.signal(Signal::TERM);
    running.child.wait().unwrap();
    app.wait_until_clean();
}

#[test]
fn many_that_start_at_once_share_a_mount() {
    if !can_mount("many_that_start_at_once_share_a_mount") {
        return;
    }
    let app = App::new(r#"cat "$APPDIR/usr/share/text"; echo "$APPDIR""#);
    for _ in 0..5 {
        let children: Vec<_> = (0..6)
            .map(|_| {
                app.command()
                    .stdout(std::process::Stdio::piped())
                    .spawn()
                    .unwrap()
            })
            .collect();
        for child in children {
            let output = child.wait_with_output().unwrap();
            assert!(output.status.success(), "{output:?}");
            assert!(stdout(&output).starts_with("text\n/"), "{output:?}");
        }
    }
    app.wait_until_clean();
}

#[test]
fn another_state_of_the_file_is_another_mount() {
    if !can_mount("another_state_of_the_file_is_another_mount") {
        return;
    }
    let app = App::new(WAITS);
    let mut first = Running::start(app.command());
    let point = first.line();
    let other = App::new("cat \"$APPDIR/usr/share/text\"; echo \"$APPDIR\"");
    fs::rename(&other.file, &app.file).unwrap();
    let text = must(app.command());
    assert!(
        text.starts_with("text\n") && !text.contains(&point),
        "{text}"
    );
    drop(first);
    app.wait_until_clean();
}

#[test]
fn a_driver_that_was_killed_is_replaced() {
    if !can_mount("a_driver_that_was_killed_is_replaced") {
        return;
    }
    let app = App::new(WAITS);
    let mut first = Running::start(app.command());
    let point = first.line();
    signal_to(app.keeper(), Signal::KILL);
    wait_until("the driver is gone", || fs::metadata(&point).is_err());
    let mut second = Running::start(app.command());
    assert_eq!(second.line(), point);
    assert!(fs::metadata(&point).is_ok());
    drop(first);
    drop(second);
    app.wait_until_clean();
}

#[test]
fn a_mount_stays_as_long_as_it_is_told_to() {
    if !can_mount("a_mount_stays_as_long_as_it_is_told_to") {
        return;
    }
    let app = App::new("exit 0");
    let mut command = app.command();
    must({
        command.env("NO_UNMOUNT", "1");
        command
    });
    let keeper = app.keeper();
    assert_eq!(app.mounts().len(), 1);
    must(app.command());
    assert_eq!((app.mounts().len(), app.keeper()), (1, keeper));
    // Somebody unmounts it.
    let point = app.mounts().pop().unwrap();
    assert!(
        Command::new("umount")
            .arg(&point)
            .status()
            .unwrap()
            .success()
    );
    app.wait_until_clean();
}

#[test]
fn the_file_may_be_in_memory() {
    if !can_mount("the_file_may_be_in_memory") {
        return;
    }
    let app = App::new("echo \"$APPIMAGE\"; cat \"$APPDIR/usr/share/text\"");
    let memory = rustix::fs::memfd_create("program", rustix::fs::MemfdFlags::empty()).unwrap();
    let mut memory = File::from(memory);
    memory.write_all(&fs::read(&app.file).unwrap()).unwrap();
    let mut command = Command::new(format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        memory.as_raw_fd()
    ));
    app.prepare(&mut command);
    command.env("APPIMAGE", "/opt/x.AppImage");
    assert_eq!(must(command), "/opt/x.AppImage\ntext\n");
    app.wait_until_clean();
}

#[test]
fn users_run_it_with_the_helper_program() {
    let test = "users_run_it_with_the_helper_program";
    if !can_mount(test) || !has_helper(test) {
        return;
    }
    let app = App::new("id -u; cat \"$APPDIR/usr/share/text\"; exit 7");
    let mut command = app.in_namespace(&format!("{DEVICE}{AS_NOBODY}"));
    let output = command.output().unwrap();
    assert_eq!(
        (output.status.code(), stderr(&output).as_str()),
        (Some(7), "")
    );
    assert_eq!(stdout(&output), "65534\ntext\n");
    app.wait_until_clean();
}

/// A device that every user may open.
const DEVICE: &str = r#"
    mount -t tmpfs none "$TMPDIR/../tree"
    mknod -m 666 "$TMPDIR/../tree/fuse" c 10 229
    mount --bind "$TMPDIR/../tree/fuse" /dev/fuse
"#;

/// Runs the file as the user `nobody`.
const AS_NOBODY: &str =
    r#"exec setpriv --reuid=65534 --regid=65534 --clear-groups --inh-caps=-all "$@""#;

/// Makes the helper program useless.
const WITHOUT_HELPER: &str = r#"
    for helper in /usr/bin/fusermount3 /usr/bin/fusermount; do
        [ ! -e $helper ] || mount --bind /bin/false "$(readlink -f $helper)"
    done
"#;

#[test]
fn users_run_it_without_the_helper_program_in_a_namespace() {
    let test = "users_run_it_without_the_helper_program_in_a_namespace";
    if !can_mount(test) || !can_unshare(test) {
        return;
    }
    let without = format!("{DEVICE}{WITHOUT_HELPER}{AS_NOBODY}");
    let app = App::new("id -u; pwd; cat \"$APPDIR/usr/share/text\"; exec cat");
    let mut first = {
        let mut command = app.in_namespace(&without);
        command.stdin(std::process::Stdio::piped());
        Running::start(command)
    };
    assert_eq!(first.line(), "65534");
    assert_eq!(first.line(), app.dir.path().to_str().unwrap());
    assert_eq!(first.line(), "text");
    let keeper = app.keeper();
    // Nobody else sees the mount, and another process enters it.
    assert_eq!(app.mounts(), Vec::<String>::new());
    let second = app.in_namespace(&without).output().unwrap();
    assert_eq!(stderr(&second), "");
    assert!(stdout(&second).ends_with("text\n"), "{second:?}");
    assert_eq!(app.keeper(), keeper);
    drop(first);
    app.wait_until_clean();
    // The same where there is a helper program, if somebody asks for it.
    let mut command = app.in_namespace(&format!("{DEVICE}{AS_NOBODY}"));
    command.arg("--appimage-unshare");
    assert!(must(command).ends_with("text\n"));
    app.wait_until_clean();
}

#[test]
fn without_fuse_the_program_runs_from_a_copy() {
    let test = "without_fuse_the_program_runs_from_a_copy";
    if !can_mount(test) {
        return;
    }
    let app =
        App::new(r#"printf '<%s>' "$@"; cat "$APPDIR/usr/share/text"; echo "$APPDIR"; exec cat"#);
    let mut command = app.in_namespace(WITHOUT_FUSE);
    let output = command.args(["a", "b"]).output().unwrap();
    assert!(output.status.success(), "{output:?}");
    assert!(stdout(&output).starts_with("<a><b>text\n"), "{output:?}");
    let said = stderr(&output);
    assert!(
        said.starts_with(
            "dwarfs-runtime: cannot open FUSE device: /dev/fuse: something else is in its place: "
        ) && said.ends_with(": the program runs from a copy instead\n")
            && said.lines().count() == 1,
        "{said}"
    );
    app.wait_until_clean();
    // Two share a copy. The second one needs no message.
    let extract = || {
        let mut command = app.command();
        command.env("APPIMAGE_EXTRACT_AND_RUN", "1");
        command
    };
    let mut first = {
        let mut command = extract();
        command.stdin(std::process::Stdio::piped());
        Running::start(command)
    };
    assert_eq!(first.line(), "<>text");
    let tree = first.line();
    assert!(tree.contains("/.extracted_my_app.AppIm-"), "{tree}");
    let identity = fs::metadata(&tree).unwrap().ino();
    assert!(must(extract()).contains(&tree));
    first.signal(Signal::KILL);
    first.child.wait().unwrap();
    app.wait_until_clean();
    // A copy that stays is used again.
    let mut kept = Vec::new();
    for _ in 0..2 {
        let mut command = extract();
        command.env("NO_CLEANUP", "1");
        assert!(must(command).contains(&tree));
        kept.push(fs::metadata(&tree).unwrap().ino());
    }
    assert!(kept[0] == kept[1], "{kept:?} {identity}");
    must(extract());
    app.wait_until_clean();
}

#[test]
fn what_is_in_the_way_is_said() {
    if !can_mount("what_is_in_the_way_is_said") {
        return;
    }
    let app = App::new("echo runs");
    let failed = |command: &mut Command, code: i32, parts: &[&str]| {
        let output = command.output().unwrap();
        let said = stderr(&output);
        assert_eq!(
            (output.status.code(), said.lines().count()),
            (Some(code), 1),
            "{output:?}"
        );
        assert!(said.starts_with("dwarfs-runtime: "), "{said}");
        assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    };
    // No directory for mount points that can be written to.
    let script = "mount -t tmpfs -o ro,mode=700 none \"$XDG_RUNTIME_DIR\"; exec \"$@\"";
    failed(
        app.in_namespace(script)
            .env_remove("TMPDIR")
            .env("XDG_RUNTIME_DIR", app.temporary()),
        127,
        &[
            "cannot create directory: ",
            "/tmp/.mount_",
            "ead-only file system: set TMPDIR to a directory that you can write to",
        ],
    );
    // A copy that has no room, and one that may not be executed.
    let script = "mount -t tmpfs -o nr_inodes=7 none \"$TMPDIR\"; exec \"$@\"";
    failed(
        app.in_namespace(script).arg("--appimage-extract-and-run"),
        127,
        &["cannot extract: ", "o space left", ": set TMPDIR to "],
    );
    let script = "mount -t tmpfs -o noexec none \"$TMPDIR\"; exec \"$@\"";
    failed(
        app.in_namespace(script).arg("--appimage-extract-and-run"),
        127,
        &[
            "cannot run: ",
            "/AppRun: permission denied: its file system is mounted with noexec: set TMPDIR to a directory on a file \
             system without noexec, or use --appimage-extract ",
        ],
    );
    failed(
        app.command().arg("--appimage-nonsense"),
        1,
        &["no such option: --appimage-nonsense"],
    );
    failed(
        app.in_namespace(WITHOUT_FUSE).arg("--appimage-mount"),
        127,
        &[
            "cannot open FUSE device: ",
            ": --appimage-extract works without FUSE",
        ],
    );
    // The runtime alone, a damaged image, an image without a program.
    let alone = app.path("alone");
    app.write(&alone, &[]);
    let mut command = Command::new(&alone);
    app.prepare(&mut command);
    failed(
        &mut command,
        127,
        &[
            "there is no image behind the program: ",
            "/alone",
            "--appimage-version",
        ],
    );
    let mut image = app.image.clone();
    let middle = image.len() / 2;
    image.truncate(middle);
    app.write(&alone, &[&image]);
    failed(
        &mut command,
        127,
        &["image: ", "/alone", "damaged or not complete"],
    );
    // Recovery data beside the file or in it helps more than getting the file again.
    let sidecar = app.path("alone.dwrec");
    fs::write(&sidecar, "").unwrap();
    let repair = ": dwarfsck --repair FILE can repair it";
    failed(&mut command, 127, &["image: ", "/alone", repair]);
    fs::remove_file(sidecar).unwrap();
    let length = image.len() as u64;
    let geometry = Geometry::new(0, length, 5.0, None).unwrap();
    let page = HeaderPage::lay_out(geometry).unwrap().encode(3);
    let filling = vec![0; 3 << 20];
    app.write(&alone, &[&image, &page, &filling]);
    failed(&mut command, 127, &["image: ", "/alone", repair]);
    failed(command.arg("--appimage-check"), 1, &["/alone", repair]);
    // What ends within the program cannot start, but another runtime can look at it.
    let part = app.path("part");
    let bytes = fs::read(&app.file).unwrap();
    fs::write(&part, &bytes[..bytes.len() / 2]).unwrap();
    failed(
        app.command().env("TARGET_APPIMAGE", &part),
        127,
        &["the file ends within the program in front: ", "/part"],
    );
    let other = App::with(&[("bin/x", "x")]);
    failed(
        &mut other.command(),
        127,
        &["there is no AppRun in the image"],
    );
    other.wait_until_clean();
    app.wait_until_clean();
}

#[test]
fn a_directory_that_somebody_else_has_made_is_not_used() {
    if !can_mount("a_directory_that_somebody_else_has_made_is_not_used") {
        return;
    }
    let app = App::new("echo \"$APPDIR\"");
    let usual = must(app.command());
    app.wait_until_clean();
    let shared = usual.trim_end().strip_suffix("/mnt").unwrap();
    fs::create_dir(shared).unwrap();
    fs::set_permissions(shared, Permissions::from_mode(0o777)).unwrap();
    assert_eq!(must(app.command()).trim_end(), format!("{shared}.1/mnt"));
    fs::remove_dir(shared).unwrap();
    app.wait_until_clean();
}

#[test]
fn a_program_that_cannot_run_is_explained() {
    if !can_mount("a_program_that_cannot_run_is_explained") {
        return;
    }
    let said = |files: &[(&str, &str)], change: &dyn Fn(&std::path::Path)| {
        let app = App::changed(files, change);
        let output = app.command().output().unwrap();
        assert_eq!(output.status.code(), Some(127), "{output:?}");
        app.wait_until_clean();
        stderr(&output)
    };
    let nothing: &dyn Fn(&std::path::Path) = &|_| {};
    for (files, change, expected) in [
        (
            &[("AppRun", "#!/bin/sh\n")],
            &(|tree: &std::path::Path| {
                fs::set_permissions(tree.join("AppRun"), Permissions::from_mode(0o644)).unwrap();
            }) as &dyn Fn(&std::path::Path),
            "permission denied: it is not executable in the image",
        ),
        (
            &[("AppRun", "#! /none/sh -e\n")],
            nothing,
            "its interpreter is missing on this system: /none/sh\n",
        ),
        (
            &[("x", "")],
            &|tree: &std::path::Path| symlink("usr/none", tree.join("AppRun")).unwrap(),
            "no such file or directory: it is a link to usr/none\n",
        ),
    ] {
        let said = said(files, change);
        assert!(said.contains(expected), "{expected}: {said}");
    }
}

#[test]
fn an_empty_dev_is_like_no_fuse() {
    let test = "an_empty_dev_is_like_no_fuse";
    if !can_mount(test) {
        return;
    }
    let app = App::new("echo runs");
    let script = "mount -t tmpfs none /dev; exec \"$@\"";
    let output = app.in_namespace(script).output().unwrap();
    assert_eq!(stdout(&output), "runs\n", "{output:?}");
    assert!(
        stderr(&output).contains("the program runs from a copy instead"),
        "{output:?}"
    );
    app.wait_until_clean();
}
