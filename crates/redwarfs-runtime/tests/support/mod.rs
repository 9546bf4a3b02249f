//! Self-mounting files for the tests, and what happens to them.
#![allow(dead_code, reason = "every test binary uses a part of this")]

use std::fs::{self, Permissions};
use std::io::{BufRead, BufReader};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Output, Stdio};
use std::time::{Duration, Instant};

#[allow(unused_imports)]
pub(crate) use redwarfs_testkit::can_mount;
use redwarfs_testkit::skip;
use tempfile::TempDir;

pub(crate) const RUNTIME: &str = env!("CARGO_BIN_EXE_dwarfs-runtime");

/// The user `nobody`.
pub(crate) const NOBODY: u32 = 65534;

/// What makes FUSE useless, and runs the file.
pub(crate) const WITHOUT_FUSE: &str = "mount --bind /dev/null /dev/fuse; exec \"$@\"";

const PATIENCE: Duration = Duration::from_secs(30);

/// A self-mounting file in a directory of its own, and a directory for mount points.
pub(crate) struct App {
    pub(crate) dir: TempDir,
    pub(crate) file: PathBuf,
    pub(crate) image: Vec<u8>,
}

impl App {
    /// A file whose `AppRun` is a shell script.
    pub(crate) fn new(script: &str) -> Self {
        let script = format!("#!/bin/sh\n{script}\n");
        Self::with(&[("AppRun", &script), ("usr/share/text", "text\n")])
    }

    /// A file with these files in its image. All may be executed.
    pub(crate) fn with(files: &[(&str, &str)]) -> Self {
        Self::changed(files, &|_| {})
    }

    /// The same, after `change` has done something to the tree.
    pub(crate) fn changed(files: &[(&str, &str)], change: &dyn Fn(&Path)) -> Self {
        Self::built(files, change, redwarfs::BuildOptions::level(1))
    }

    /// The same, with options for the image.
    pub(crate) fn built(
        files: &[(&str, &str)],
        change: &dyn Fn(&Path),
        options: redwarfs::BuildOptions,
    ) -> Self {
        let dir = TempDir::with_prefix("redwarfs-runtime-").expect("a temporary directory");
        fs::set_permissions(dir.path(), Permissions::from_mode(0o755)).expect("chmod");
        let tree = dir.path().join("tree");
        for (name, text) in files {
            let path = tree.join(name);
            fs::create_dir_all(path.parent().expect("a directory")).expect("mkdir");
            fs::write(&path, text).expect("write");
            fs::set_permissions(&path, Permissions::from_mode(0o755)).expect("chmod");
        }
        change(&tree);
        let mut image = Vec::new();
        let builder = redwarfs::Builder::new(&tree).options(options);
        builder.write(&mut image).expect("an image");
        let temporary = dir.path().join("tmp");
        fs::create_dir(&temporary).expect("mkdir");
        fs::set_permissions(&temporary, Permissions::from_mode(0o1777)).expect("chmod");
        let app = Self {
            file: dir.path().join("my app.AppImage"),
            image,
            dir,
        };
        app.write(&app.file, &[&app.image]);
        app
    }

    /// Writes an executable file: the runtime, and behind it `parts`. Another process writes it: what is open for
    /// writing here would be in every process that another test starts at the same time, and nobody could execute it.
    pub(crate) fn write(&self, file: &Path, parts: &[&[u8]]) {
        let rest = self.dir.path().join("rest");
        fs::write(&rest, parts.concat()).expect("write");
        let script = "cat \"$1\" \"$2\" >\"$3\" && chmod 755 \"$3\"";
        let written = Command::new("sh")
            .args(["-c", script, "sh", RUNTIME])
            .arg(rest)
            .arg(file)
            .status();
        assert!(written.expect("a shell").success());
    }

    pub(crate) fn temporary(&self) -> PathBuf {
        self.dir.path().join("tmp")
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// Starts the file, with nothing of the environment that decides what it does.
    pub(crate) fn command(&self) -> Command {
        let mut command = Command::new(&self.file);
        self.prepare(&mut command);
        command
    }

    pub(crate) fn prepare(&self, command: &mut Command) {
        command
            .env_clear()
            .env(
                "PATH",
                "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            )
            .env("TMPDIR", self.temporary())
            .current_dir(self.dir.path())
            .stdin(Stdio::null());
    }

    /// Starts the file by a shell script of root, which is its own namespace of mounts. `"$@"` in it is the file.
    pub(crate) fn in_namespace(&self, script: &str) -> Command {
        let mut command = Command::new("unshare");
        command
            .args(["-m", "sh", "-ec", script, "sh"])
            .arg(&self.file);
        self.prepare(&mut command);
        command
    }

    /// What there is below the directory for mount points.
    pub(crate) fn left(&self) -> Vec<String> {
        let entries = fs::read_dir(self.temporary()).expect("the directory");
        let name = |entry: std::io::Result<fs::DirEntry>| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        };
        entries.map(name).collect()
    }

    /// Waits until nothing is mounted, and nothing left, in the directory for mount points.
    pub(crate) fn wait_until_clean(&self) {
        wait_until("everything is removed", || self.left().is_empty());
        assert_eq!(mounts_below(&self.temporary()), Vec::<String>::new());
    }

    /// What is mounted in the directory for mount points.
    pub(crate) fn mounts(&self) -> Vec<String> {
        mounts_below(&self.temporary())
    }

    /// The keeper of the only shared directory.
    pub(crate) fn keeper(&self) -> u32 {
        let shared = self.left().pop().expect("a shared directory");
        let text = fs::read_to_string(self.temporary().join(shared).join("keeper"));
        let text = text.expect("the keeper says who it is");
        text.split(' ')
            .next()
            .and_then(|pid| pid.parse().ok())
            .expect("a number")
    }
}

impl Drop for App {
    fn drop(&mut self) {
        for point in self.mounts() {
            let _ = Command::new("umount").arg("-l").arg(point).output();
        }
    }
}

fn mounts_below(directory: &Path) -> Vec<String> {
    let table = fs::read_to_string("/proc/self/mounts").expect("the mount table");
    let directory = directory.to_string_lossy().into_owned();
    let points = table.lines().filter_map(|line| line.split(' ').nth(1));
    points
        .filter(|point| point.starts_with(&directory))
        .map(str::to_owned)
        .collect()
}

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// A running program, killed at the end.
pub(crate) struct Running {
    pub(crate) child: Child,
    out: BufReader<ChildStdout>,
}

impl Running {
    pub(crate) fn start(mut command: Command) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("it starts");
        let out = BufReader::new(child.stdout.take().expect("standard output"));
        Self { child, out }
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).expect("a line");
        line.trim_end().to_owned()
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        signal_to(self.child.id(), signal);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

pub(crate) fn signal_to(process: u32, signal: rustix::process::Signal) {
    let process = rustix::process::Pid::from_raw(process.cast_signed()).expect("a process");
    rustix::process::kill_process(process, signal).expect("kill");
}

pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// Runs a program that has to succeed without a message; its output.
pub(crate) fn must(mut command: Command) -> String {
    let output = command.output().expect("it starts");
    assert!(output.status.success(), "{output:?}");
    assert_eq!(stderr(&output), "", "{output:?}");
    stdout(&output)
}

/// False, with a note, where users cannot make namespaces.
pub(crate) fn can_unshare(test: &str) -> bool {
    let mut command = Command::new("unshare");
    command.args(["-Um", "true"]).uid(NOBODY).gid(NOBODY);
    if command.output().is_ok_and(|output| output.status.success()) {
        return true;
    }
    skip(test, "users cannot make namespaces");
    false
}

/// False, with a note, where there is no program that mounts for users.
pub(crate) fn has_helper(test: &str) -> bool {
    if Path::new("/usr/bin/fusermount3").exists() {
        return true;
    }
    skip(test, "fusermount3 is not installed");
    false
}
