//! Options of the runtime.

mod support;

use std::fs;
use std::process::Command;

use rustix::process::Signal;
use support::{App, Running, can_mount, must, stderr, stdout};

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
    first.child.wait().unwrap();
    assert_eq!(
        fs::read_to_string(format!("{point}/usr/bin/x")).unwrap(),
        "x"
    );
    second.signal(Signal::TERM);
    second.child.wait().unwrap();
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
