//! The commands by which users make self-mounting files.

mod support;

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;

use redwarfs_testkit::skip;
use support::{App, can_mount, must};

#[test]
fn mkdwarfs_makes_a_program() {
    let test = "mkdwarfs_makes_a_program";
    if !can_mount(test) {
        return;
    }
    // Cargo builds it beside the runtime, if it builds it.
    let mkdwarfs = Path::new(support::RUNTIME).with_file_name("mkdwarfs");
    if !mkdwarfs.exists() {
        skip(test, "mkdwarfs is not built");
        return;
    }
    let app = App::new("");
    fs::create_dir(app.path("AppDir")).unwrap();
    fs::write(app.path("AppDir/AppRun"), "#!/bin/sh\necho \"$@\"\n").unwrap();
    fs::set_permissions(app.path("AppDir/AppRun"), Permissions::from_mode(0o755)).unwrap();
    let mut command = Command::new(&mkdwarfs);
    app.prepare(&mut command);
    command.args([
        "-i",
        "AppDir",
        "-o",
        "Hello.AppImage",
        "--header=runtime",
        "--log-level=warn",
    ]);
    assert_eq!(must(command), "");
    let mut command = Command::new("./Hello.AppImage");
    app.prepare(&mut command);
    command.args(["Hello,", "world"]);
    assert_eq!(must(command), "Hello, world\n");
    app.wait_until_clean();
    assert_eq!(
        &fs::read(app.path("Hello.AppImage")).unwrap()[8..11],
        b"AI\x02"
    );
    // What the program in front does not read, is not written.
    fs::write(app.path("AppDir/data"), "data ".repeat(10_000)).unwrap();
    let mut command = Command::new(&mkdwarfs);
    app.prepare(&mut command);
    command.args(["-i", "AppDir", "-o", "Other.AppImage", "--header=runtime"]);
    command.args(["--log-level=warn", "-C", "brotli"]);
    let output = command.output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(
        said.contains("the runtime in front does not read BROTLI"),
        "{said}"
    );
    assert!(!app.path("Other.AppImage").exists());
    // By hand.
    let mut command = Command::new("sh");
    app.prepare(&mut command);
    let script = "\"$1\" -i AppDir -o image.dwarfs --log-level=warn && cat \"$2\" image.dwarfs >By.AppImage &&
        printf 'AI\\002' | dd of=By.AppImage bs=1 seek=8 conv=notrunc status=none &&
        chmod +x By.AppImage && ./By.AppImage by hand";
    command
        .args(["-ec", script, "sh"])
        .arg(&mkdwarfs)
        .arg(support::RUNTIME);
    assert_eq!(must(command), "by hand\n");
    app.wait_until_clean();
}
