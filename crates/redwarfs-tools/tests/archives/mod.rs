//! Directories, their archives, and images of both.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::process::{Command, Stdio};

use crate::builder::{Done, TestDir, mkdwarfs};

/// What makes images comparable: nothing that differs from run to run.
pub(crate) const SAME: [&str; 6] = [
    "--no-history",
    "--no-create-timestamp",
    "--with-specials",
    "--with-devices",
    "-l3",
    "--log-level=warn",
];

/// What the message about an unknown format has at its end in a program that cannot load libarchive.
pub(crate) const WITHOUT_LIBARCHIVE: &str =
    " without libarchive (tar, cpio, ar, deb, rpm), which a static program cannot load";

/// A directory with everything that all formats keep. Times are whole seconds.
pub(crate) fn place() -> TestDir {
    let place = TestDir::new(&[
        "docs/a.txt",
        "docs/sub/b.txt",
        "docs/sub/copy",
        "empty/",
        "z.bin",
    ]);
    let at = |name: &str| place.path("in").join(name);
    fs::write(at("docs/sub/copy"), "docs/a.txt").unwrap();
    let noise: Vec<u8> = (0..700_000u32)
        .map(|i| (i.wrapping_mul(i) >> 7) as u8)
        .collect();
    fs::write(at("z.bin"), noise).unwrap();
    fs::write(at("nothing"), "").unwrap();
    fs::write(at("n\u{e4}me with space"), "x").unwrap();
    fs::hard_link(at("docs/a.txt"), at("link.txt")).unwrap();
    symlink("docs/a.txt", at("sym")).unwrap();
    fs::set_permissions(at("docs/sub"), fs::Permissions::from_mode(0o1700)).unwrap();
    fs::set_permissions(at("z.bin"), fs::Permissions::from_mode(0o4711)).unwrap();
    assert!(shell(&place, "mkfifo in/fifo"));
    assert!(shell(&place, "find in -exec touch -h -d @1700000000 {} +"));
    assert!(shell(
        &place,
        "touch -d @1234567890 in/docs/a.txt in/docs/sub"
    ));
    place
}

/// Runs a command in the place.
pub(crate) fn shell(place: &TestDir, command: &str) -> bool {
    let mut shell = Command::new("sh");
    shell.arg("-c").arg(command).current_dir(place.path("."));
    let done = shell.stdout(Stdio::null()).output().unwrap();
    if !done.status.success() {
        println!("{command}: {}", String::from_utf8_lossy(&done.stderr));
    }
    done.status.success()
}

pub(crate) fn has(program: &str) -> bool {
    let mut command = Command::new("sh");
    command.arg("-c").arg(format!("command -v {program}"));
    command.stdout(Stdio::null()).status().unwrap().success()
}

/// The image of these inputs, with messages that are none.
pub(crate) fn image<S: AsRef<OsStr>>(place: &TestDir, args: &[S]) -> Vec<u8> {
    let done = run(place, args);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    fs::read(place.path("out")).unwrap()
}

pub(crate) fn run<S: AsRef<OsStr>>(place: &TestDir, args: &[S]) -> Done {
    let mut command = mkdwarfs();
    command.current_dir(place.path("."));
    command.args(["-fo", "out"]).args(SAME).args(args);
    command.output().unwrap().into()
}

/// The same, with a file as standard input.
pub(crate) fn piped(place: &TestDir, file: &str, args: &[&str]) -> Done {
    let mut cat = Command::new("cat");
    let mut cat = cat
        .arg(place.path(file))
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut command = mkdwarfs();
    command.current_dir(place.path("."));
    command.args(["-fo", "out"]).args(SAME).args(args);
    let done = command.stdin(cat.stdout.take().unwrap()).output().unwrap();
    cat.wait().unwrap();
    done.into()
}
