//! Options of the runtime, and variables that it reads.

mod support;

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Command;

use rustix::process::Signal;
use support::{App, Running, WITHOUT_FUSE, can_mount, must, stderr, stdout};

const FILES: [(&str, &str); 5] = [
    ("AppRun", "#!/bin/sh\necho runs\n"),
    ("app.desktop", "[Desktop Entry]\n"),
    ("usr/bin/x", "x"),
    ("usr/share/doc/text", "text"),
    ("usr/share/app.desktop", "no"),
];

#[test]
fn everything_is_extracted() {
    let app = App::with(&FILES);
    let mut command = app.command();
    command.arg("--appimage-extract");
    assert_eq!(must(command), "extracted to squashfs-root\n");
    for (name, text) in FILES {
        let path = app.path("squashfs-root").join(name);
        assert_eq!(fs::read_to_string(path).unwrap(), text);
    }
    let mut command = Command::new(app.path("squashfs-root/AppRun"));
    app.prepare(&mut command);
    assert_eq!(must(command), "runs\n");
    assert_eq!(app.left(), Vec::<String>::new());
}

#[test]
fn patterns_choose_what_is_extracted() {
    let names = |patterns: &[&str]| {
        let app = App::with(&FILES);
        let output = app
            .command()
            .arg("--runtime-extract")
            .args(patterns)
            .output()
            .unwrap();
        let found = FILES
            .iter()
            .filter(|(name, _)| app.path("squashfs-root").join(name).exists());
        let found: Vec<&str> = found.map(|(name, _)| *name).collect();
        (output.status.code(), found, stderr(&output))
    };
    let some = |found: &[&'static str]| (Some(0), found.to_vec(), String::new());
    assert_eq!(names(&["*.desktop"]), some(&["app.desktop"]));
    assert_eq!(
        names(&["usr/share"]),
        some(&["usr/share/doc/text", "usr/share/app.desktop"])
    );
    assert_eq!(
        names(&["usr/*/doc/t?xt", "AppRun"]),
        some(&["AppRun", "usr/share/doc/text"])
    );
    let (code, found, said) = names(&["bin/*"]);
    assert_eq!((code, found.len()), (Some(3), 0));
    assert!(
        said.contains("nothing in the image matches bin/*: "),
        "{said}"
    );
    // Nothing is left of it, and what was there stays.
    let app = App::with(&FILES);
    for expected in [false, true] {
        let mut command = app.command();
        command.args(["--appimage-extract", "nope*"]);
        assert_eq!(command.output().unwrap().status.code(), Some(3));
        let target = app.path("squashfs-root");
        assert_eq!(target.exists(), expected);
        if !expected {
            fs::create_dir(target).unwrap();
        }
    }
    let (_, _, said) = names(&["nosuch", "neither"]);
    assert!(said.contains(" matches nosuch, neither: "), "{said}");
}

#[test]
fn the_offset_is_that_of_the_image() {
    let app = App::with(&FILES);
    let offset = || {
        let mut command = app.command();
        command.arg("--appimage-offset");
        must(command).trim_end().parse::<u64>().unwrap()
    };
    let runtime = fs::metadata(support::RUNTIME).unwrap().len();
    assert_eq!(offset(), runtime);
    // Something between the program and the image.
    app.write(&app.file, &[b"padding", &app.image]);
    assert_eq!(offset(), runtime + 7);
    // Another file.
    let image = app.path("image");
    fs::write(&image, &app.image).unwrap();
    let mut command = app.command();
    command
        .env("TARGET_APPIMAGE", &image)
        .arg("--appimage-offset");
    assert_eq!(must(command), "0\n");
    let mut command = app.command();
    command
        .env("TARGET_APPIMAGE", app.path("none"))
        .arg("--appimage-offset");
    let output = command.output().unwrap();
    assert_eq!(output.status.code(), Some(127));
    assert!(
        stderr(&output).contains("cannot open TARGET_APPIMAGE: "),
        "{output:?}"
    );
}

#[test]
fn a_mount_is_there_until_a_signal() {
    if !can_mount("a_mount_is_there_until_a_signal") {
        return;
    }
    let app = App::with(&FILES);
    let mount = || {
        let mut command = app.command();
        command.arg("--appimage-mount");
        Running::start(command)
    };
    // A shell without job control ignores SIGINT in programs that it starts in the background.
    let mut command = Command::new("sh");
    app.prepare(&mut command);
    let script = r#"trap "" INT; exec "$0" --appimage-mount"#;
    command.args(["-c", script]).arg(&app.file);
    let mut first = Running::start(command);
    let point = first.line();
    assert_eq!(
        fs::read_to_string(format!("{point}/usr/bin/x")).unwrap(),
        "x"
    );
    let mut second = mount();
    assert_eq!(second.line(), point);
    first.signal(Signal::INT);
    assert_eq!(first.child.wait().unwrap().signal(), Some(2));
    assert_eq!(
        fs::read_to_string(format!("{point}/usr/bin/x")).unwrap(),
        "x"
    );
    second.signal(Signal::TERM);
    assert_eq!(second.child.wait().unwrap().signal(), Some(15));
    app.wait_until_clean();
    // It ends when somebody unmounts.
    let mut third = mount();
    let point = third.line();
    assert!(
        Command::new("umount")
            .arg(&point)
            .status()
            .unwrap()
            .success()
    );
    assert!(third.child.wait().unwrap().success());
    app.wait_until_clean();
}

#[test]
fn the_image_is_compared_with_its_checksums() {
    let mut random = redwarfs_testkit::mutate::Rng::new(7);
    let data: String = (0..50_000)
        .map(|_| char::from(b'a' + random.below(26) as u8))
        .collect();
    let app = App::with(&[("AppRun", "#!/bin/sh\n"), ("data", &data)]);
    let check = || {
        let output = app.command().arg("--appimage-check").output().unwrap();
        (output.status.code(), stdout(&output) + &stderr(&output))
    };
    assert_eq!(check(), (Some(0), "the image is intact\n".to_owned()));
    // Bytes of a block, of the index, and of what is in between.
    let length = app.image.len();
    for at in [200, length / 3, length / 2, length - 20] {
        let mut image = app.image.clone();
        image[at] ^= 1;
        app.write(&app.file, &[&image]);
        let (code, said) = check();
        assert_eq!(code, Some(1), "{at} {said}");
        assert!(said.contains("/my app.AppImage: "), "{at} {said}");
        assert_eq!(said.lines().count(), 1, "{at} {said}");
    }
    // What is missing.
    for length in [length / 2, length - 1] {
        app.write(&app.file, &[&app.image[..length]]);
        let (code, said) = check();
        assert_eq!(code, Some(1), "{length} {said}");
        assert!(said.ends_with("damaged or not complete\n"), "{said}");
    }
}

#[test]
fn help_and_version_need_no_image() {
    for (name, start) in [
        (
            "help",
            "dwarfs-runtime: a program with its DwarFS image in one file",
        ),
        ("version", "dwarfs-runtime "),
    ] {
        for prefix in ["--appimage-", "--runtime-"] {
            let output = Command::new(support::RUNTIME)
                .arg(format!("{prefix}{name}"))
                .output()
                .unwrap();
            assert!(output.status.success());
            let text = stdout(&output);
            assert!(text.starts_with(start), "{text}");
            assert!(text.lines().all(|line| line.len() <= 80), "{text}");
        }
    }
}

#[test]
fn sections_for_tools_are_printed() {
    let app = App::with(&FILES);
    let mut command = app.command();
    command.arg("--appimage-signature");
    assert_eq!(must(command), "\n");
    // What a tool that updates AppImages has put there.
    let mut bytes = fs::read(&app.file).unwrap();
    let section = Command::new("readelf")
        .args(["-SW", support::RUNTIME])
        .output();
    let Some(line) = section.ok().and_then(|output| {
        let text = stdout(&output);
        text.lines()
            .find(|line| line.contains(" .upd_info "))
            .map(str::to_owned)
    }) else {
        redwarfs_testkit::skip("sections_for_tools_are_printed", "there is no readelf");
        return;
    };
    let at = line
        .split_whitespace()
        .skip_while(|word| *word != "PROGBITS")
        .nth(2)
        .unwrap();
    let at = usize::from_str_radix(at, 16).unwrap();
    bytes[at..at + 7].copy_from_slice(b"zsync|x");
    let updated = app.path("updated");
    fs::write(&updated, bytes).unwrap();
    let mut command = app.command();
    command.env("TARGET_APPIMAGE", updated);
    command.arg("--appimage-updateinformation");
    assert_eq!(must(command), "zsync|x\n");
}

#[test]
fn a_wrong_value_does_not_stop_the_program() {
    if !can_mount("a_wrong_value_does_not_stop_the_program") {
        return;
    }
    let app = App::new("echo runs");
    let output = app
        .command()
        .env("DWARFS_CACHESIZE", "much")
        .output()
        .unwrap();
    assert_eq!(stdout(&output), "runs\n");
    let said = "dwarfs-runtime: ignoring DWARFS_CACHESIZE: much: not a size such as 512M\n";
    assert_eq!(stderr(&output), said);
    app.wait_until_clean();
}

/// What to do about a `TMPDIR` that is of no use.
const ANOTHER: &str = ": set TMPDIR to a directory that exists and that you can write to";

#[test]
fn a_wrong_directory_or_list_does_not_stop_the_program() {
    if !can_mount("a_wrong_directory_or_list_does_not_stop_the_program") {
        return;
    }
    let app = App::new("echo runs");
    fs::write(app.path("file"), "").unwrap();
    let path = |name: &str| app.path(name).to_str().unwrap().to_owned();
    let wrong = [
        ("TMPDIR", path("none"), "no such file or directory"),
        ("TMPDIR", path("file"), "not a directory"),
        ("TMPDIR", path("file/below"), "not a directory"),
        (
            "DWARFS_ANALYSIS_FILE",
            path("none/list"),
            "no such file or directory",
        ),
        ("DWARFS_ANALYSIS_FILE", path("file/list"), "not a directory"),
        (
            "DWARFS_ANALYSIS_FILE",
            app.temporary().to_str().unwrap().into(),
            "is a directory",
        ),
    ];
    for (name, value, cause) in &wrong {
        for option in ["", "--appimage-extract-and-run"] {
            let mut command = app.command();
            if !option.is_empty() {
                command.arg(option);
            }
            let output = command.env(name, value).output().unwrap();
            let said = stderr(&output);
            assert_eq!(stdout(&output), "runs\n", "{name}={value}: {said}");
            assert_eq!(output.status.code(), Some(0), "{name}={value}: {said}");
            if *name == "DWARFS_ANALYSIS_FILE" && !option.is_empty() {
                assert!(
                    said.contains("nothing is written to DWARFS_ANALYSIS_FILE: "),
                    "{said}"
                );
                continue;
            }
            let start = format!("dwarfs-runtime: ignoring {name}: {value}: ");
            assert!(
                said.starts_with(&start) && said.contains(cause),
                "{name}={value}: {said}"
            );
            assert_eq!(said.lines().count(), 1, "{name}={value}: {said}");
            if *name == "TMPDIR" {
                assert!(said.trim_end().ends_with(ANOTHER), "{said}");
            }
        }
        app.wait_until_clean();
    }
    // One that is not writable, both at once, and a mount for others.
    let script = "mount -t tmpfs -o ro none \"$TMPDIR\"; exec \"$@\"";
    let mut command = app.in_namespace(script);
    let output = command
        .env("DWARFS_ANALYSIS_FILE", path("none/list"))
        .output()
        .unwrap();
    let said = stderr(&output);
    assert_eq!(stdout(&output), "runs\n", "{said}");
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines.len(), 2, "{said}");
    assert!(
        lines[0].starts_with("dwarfs-runtime: ignoring TMPDIR: "),
        "{said}"
    );
    let end = format!("ead-only file system{ANOTHER}");
    assert!(lines[0].ends_with(&end), "{said}");
    assert!(
        lines[1].starts_with("dwarfs-runtime: ignoring DWARFS_ANALYSIS_FILE: "),
        "{said}"
    );
    let mut command = app.command();
    command
        .arg("--appimage-mount")
        .env("DWARFS_ANALYSIS_FILE", path("none/list"));
    let mut mounted = Running::start(command);
    assert!(Path::new(&mounted.line()).join("AppRun").exists());
    mounted.signal(Signal::TERM);
    mounted.child.wait().unwrap();
    app.wait_until_clean();
}

#[test]
fn a_relative_analysis_file_is_in_the_working_directory() {
    if !can_mount("a_relative_analysis_file_is_in_the_working_directory") {
        return;
    }
    let app = App::new("cat \"$APPDIR/usr/share/text\"");
    let mut command = app.command();
    command.env("DWARFS_ANALYSIS_FILE", "profile");
    must(command);
    app.wait_until_clean();
    let profile = fs::read_to_string(app.path("profile")).unwrap();
    assert!(
        profile.lines().any(|line| line == "usr/share/text"),
        "{profile}"
    );
}

#[test]
fn a_list_is_recorded_whoever_else_has_the_file_mounted() {
    if !can_mount("a_list_is_recorded_whoever_else_has_the_file_mounted") {
        return;
    }
    let app = App::new("echo \"$APPDIR\"; exec sleep 60");
    let recording = |name: &str| {
        let mut command = app.command();
        command.env("DWARFS_ANALYSIS_FILE", name);
        Running::start(command)
    };
    let mut plain = Running::start(app.command());
    let shared = plain.line();
    let mut first = recording("list");
    let first_point = first.line();
    assert_ne!(first_point, shared);
    let has = |name: &str| {
        let list = fs::read_to_string(app.path(name)).unwrap();
        list.lines().any(|line| line == "AppRun")
    };
    assert!(has("list"));
    // Another list needs another mount; what runs without one takes no part in either.
    let mut other = recording("other");
    let other_point = other.line();
    assert!(has("other") && other_point != first_point);
    assert_eq!(Running::start(app.command()).line(), shared);
    // What the program starts adds to its list.
    assert_eq!(recording("list").line(), first_point);
    // A list that was removed is written anew, though its mount is still there.
    fs::remove_file(app.path("list")).unwrap();
    let mut again = recording("list");
    assert_ne!(again.line(), first_point);
    assert!(has("list"));
    drop((plain, first, other, again));
    app.wait_until_clean();
    // A run right after another one.
    for _ in 0..5 {
        let app = App::new("exit 0");
        must(app.command());
        let mut command = app.command();
        command.env("DWARFS_ANALYSIS_FILE", "list");
        must(command);
        let list = fs::read_to_string(app.path("list")).unwrap();
        assert_eq!(list, "AppRun\n");
        app.wait_until_clean();
    }
}

#[test]
fn a_copy_says_that_it_records_nothing() {
    if !can_mount("a_copy_says_that_it_records_nothing") {
        return;
    }
    let app = App::new("echo runs");
    for (mut command, lines) in [
        (app.in_namespace(WITHOUT_FUSE), 2),
        (
            {
                let mut command = app.command();
                command.arg("--appimage-extract-and-run");
                command
            },
            1,
        ),
    ] {
        let output = command
            .env("DWARFS_ANALYSIS_FILE", "list")
            .output()
            .unwrap();
        let said = stderr(&output);
        assert_eq!(stdout(&output), "runs\n");
        assert_eq!(said.lines().count(), lines, "{said}");
        assert!(
            said.contains("nothing is written to DWARFS_ANALYSIS_FILE: /"),
            "{said}"
        );
        app.wait_until_clean();
    }
}

#[test]
fn variables_without_effect() {
    if !can_mount("variables_without_effect") {
        return;
    }
    let app = App::new("id -u; echo \"$X\"; echo \"$APPDIR\"");
    let usual = must(app.command());
    fs::write(app.path("my app.AppImage.env"), "X=1\n").unwrap();
    let mut command = app.command();
    for (name, value) in [
        ("ENABLE_FUSE_DEBUG", "1"),
        ("NO_MEMFDEXEC", "1"),
        ("APPIMAGE_TARGET_DIR", "/nowhere"),
        ("RUNIMAGE_TARGET_DIR", "/nowhere"),
        ("APPIMAGE_UNSHARE_ROOT", "1"),
        ("APPIMAGE_UNSHARE_UID", "7"),
        ("APPIMAGE_UNSHARE_GID", "7"),
        ("URUNTIME_EXTRACT", "1"),
        ("URUNTIME_MOUNT", "0"),
        ("URUNTIME_CLEANUP", "0"),
    ] {
        command.env(name, value);
    }
    assert_eq!(must(command), usual);
    app.wait_until_clean();
}
