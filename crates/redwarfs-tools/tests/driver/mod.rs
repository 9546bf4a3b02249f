//! What the tests with real mounts share.

use std::ffi::OsStr;
use std::fs;
use std::io::{self, Read};
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

pub(crate) use redwarfs_testkit::can_mount;
use redwarfs_testkit::skip;
use tempfile::TempDir;

pub(crate) const DWARFS: &str = env!("CARGO_BIN_EXE_dwarfs");

pub(crate) const PATIENCE: Duration = Duration::from_secs(20);

pub(crate) fn temp() -> TempDir {
    TempDir::with_prefix("redwarfs-driver-").expect("a temporary directory")
}

pub(crate) fn dwarfs() -> Command {
    let mut command = Command::new(DWARFS);
    command.stdin(Stdio::null());
    command
}

pub(crate) fn run(arguments: &[&OsStr]) -> Output {
    dwarfs()
        .args(arguments)
        .output()
        .expect("the program can be started")
}

pub(crate) fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

pub(crate) fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let end = Instant::now() + PATIENCE;
    while !condition() {
        assert!(Instant::now() < end, "waited too long: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The line of the mount table for a mount point.
pub(crate) fn table_line(path: &Path) -> Option<String> {
    // Tests beside this one mount on names that are not UTF-8.
    let table = fs::read("/proc/self/mounts").expect("the mount table");
    let table = String::from_utf8_lossy(&table);
    let path = path.to_str().expect("temporary paths are plain");
    table
        .lines()
        .find(|line| line.split(' ').nth(1) == Some(path))
        .map(str::to_owned)
}

/// A mounted image; unmounted at the end, whatever happens.
pub(crate) struct Mount {
    pub(crate) dir: TempDir,
    pub(crate) child: Option<Child>,
}

impl Mount {
    pub(crate) fn point(&self) -> &Path {
        self.dir.path()
    }

    /// What is, or will be, mounted on a directory.
    pub(crate) fn on(dir: TempDir) -> Self {
        Self { dir, child: None }
    }

    pub(crate) fn new_dir() -> TempDir {
        TempDir::with_prefix("redwarfs-mount-").expect("a temporary directory")
    }

    /// Mounts in the background and checks that the mount is there at once.
    pub(crate) fn background(image: &Path, options: &str) -> Self {
        let mount = Self::on(Self::new_dir());
        let mut command = dwarfs();
        command.arg(image).arg(mount.point());
        if !options.is_empty() {
            command.arg("-o").arg(options);
        }
        let output = command.output().expect("the program can be started");
        assert!(
            output.status.success(),
            "{}: {:?} {}",
            image.display(),
            output.status,
            stderr(&output)
        );
        assert!(
            table_line(mount.point()).is_some(),
            "mounted when it returns"
        );
        mount
    }

    pub(crate) fn foreground(image: &Path, options: &[&str]) -> Self {
        let dir = Self::new_dir();
        let child = dwarfs()
            .arg("-f")
            .args(options)
            .arg(image)
            .arg(dir.path())
            .stderr(Stdio::piped())
            .spawn()
            .expect("the program can be started");
        let mut mount = Mount {
            dir,
            child: Some(child),
        };
        wait_until("the mount", || {
            let child = mount.child.as_mut().expect("a child");
            assert!(
                child.try_wait().expect("wait").is_none(),
                "the driver ended early"
            );
            table_line(mount.dir.path()).is_some()
        });
        mount
    }

    /// Waits for the end of a foreground driver; exit code and standard error.
    pub(crate) fn finish(&mut self) -> (Option<i32>, String) {
        let mut child = self.child.take().expect("a foreground driver");
        let mut status = None;
        wait_until("the end of the driver", || {
            status = child.try_wait().expect("wait");
            status.is_some()
        });
        let mut text = String::new();
        if let Some(mut pipe) = child.stderr.take() {
            pipe.read_to_string(&mut text).expect("text");
        }
        (status.and_then(|status| status.code()), text)
    }

    pub(crate) fn signal(&self, signal: rustix::process::Signal) {
        let child = self.child.as_ref().expect("a foreground driver");
        kill(child.id(), signal);
    }
}

pub(crate) fn kill(pid: u32, signal: rustix::process::Signal) {
    let pid = i32::try_from(pid).expect("a process id");
    let pid = rustix::process::Pid::from_raw(pid).expect("not zero");
    rustix::process::kill_process(pid, signal).expect("the process exists");
}

impl Drop for Mount {
    fn drop(&mut self) {
        // What a failed test left running must not keep the directory busy.
        let _ = rustix::mount::unmount(self.dir.path(), rustix::mount::UnmountFlags::DETACH);
        if let Some(mut child) = self.child.take() {
            let _ = child.kill();
            let _ = child.wait();
        }
    }
}

pub(crate) fn xattr(path: &Path, name: &str) -> io::Result<String> {
    let mut buffer = vec![0u8; 4096];
    let length = rustix::fs::lgetxattr(path, name, &mut buffer[..])?;
    Ok(String::from_utf8_lossy(&buffer[..length]).into_owned())
}

pub(crate) fn errno<T>(result: io::Result<T>) -> i32 {
    match result {
        Ok(_) => 0,
        Err(error) => error.raw_os_error().unwrap_or(-1),
    }
}

/// Process id of the driver of a mount, from its attribute.
pub(crate) fn driver_of(point: &Path) -> u32 {
    let pid = xattr(point, "user.dwarfs.driver.pid").expect("the attribute");
    pid.parse().expect("a number")
}

/// A field of `/proc/PID/stat`, counted from the one behind the name (the state, 0); `None` if
/// there is no such process.
pub(crate) fn stat_field(pid: u32, index: usize) -> Option<String> {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // The name may hold anything, spaces and parentheses too.
    let (_, fields) = stat.rsplit_once(')')?;
    fields.split_whitespace().nth(index).map(str::to_owned)
}

/// Whether a process runs. One that has ended counts as gone even if nobody has waited for it:
/// in containers process 1 often does not.
pub(crate) fn alive(pid: u32) -> bool {
    stat_field(pid, 0).is_some_and(|state| state != "Z" && state != "X")
}

/// Sets up `/dev` of a mount namespace; a test adds to it in `$new` and moves it to its place.
pub(crate) const PRIVATE_DEV: &str = r#"
    new=$1/dev; mkdir "$new"; mount -t tmpfs none "$new"
    for node in null zero fuse; do
        if [ -e "/dev/$node" ]; then : >"$new/$node"; mount --bind "/dev/$node" "$new/$node"; fi
    done
"#;

/// A private `/dev` where users may mount, and `user COMMAND...`, which runs it as nobody in particular
/// (65534). Ends with code 77 if that is impossible here.
pub(crate) const PLAIN_USER: &str = r#"
    umount "$new/fuse"; rm "$new/fuse"; mknod -m 666 "$new/fuse" c 10 229
    ln -s /proc/self/fd "$new/fd"; mount --move "$new" /dev
    user() { setpriv --reuid=65534 --regid=65534 --clear-groups "$@"; }
    user fusermount3 -V >/dev/null && user "$2" --version >/dev/null || exit 77
"#;

/// `/sbin` of a mount namespace gets the link that an installation makes. Ends with code 78 if that is impossible here.
pub(crate) const LINK_IN_SBIN: &str = r#"
    sbin=$(readlink -f /sbin)
    mkdir "$1/up"
    mount -t tmpfs none "$1/up"; mkdir "$1/up/u" "$1/up/w"
    mount -t overlay none -o "lowerdir=$sbin,upperdir=$1/up/u,workdir=$1/up/w" "$sbin" || exit 78
    ln -s "$2" /sbin/mount.dwarfs
"#;

/// As [`in_namespace`], for a script that has [`PLAIN_USER`]; anybody may enter `dir`.
pub(crate) fn as_user(
    test: &str,
    script: &str,
    dir: &Path,
    arguments: &[&OsStr],
) -> Option<Output> {
    use std::os::unix::fs::PermissionsExt;
    fs::set_permissions(dir, fs::Permissions::from_mode(0o755)).expect("chmod");
    let script = format!("{PRIVATE_DEV}{PLAIN_USER}{script}");
    let output = in_namespace(test, &script, dir, arguments)?;
    if output.status.code() == Some(77) {
        skip(
            test,
            "no setpriv, no fusermount3, or the program cannot be reached by users",
        );
        return None;
    }
    Some(output)
}

/// A shell script in a mount namespace of its own, so that nothing it mounts is seen outside;
/// `None`, with a note, if there can be none. `$1` is `dir`, `$2` the program, and from `$3` on
/// come the `arguments`.
pub(crate) fn in_namespace(
    test: &str,
    script: &str,
    dir: &Path,
    arguments: &[&OsStr],
) -> Option<Output> {
    let possible = Command::new("unshare").args(["-m", "true"]).output();
    if !possible.is_ok_and(|output| output.status.success()) {
        skip(test, "there can be no mount namespace of its own");
        return None;
    }
    let output = Command::new("unshare")
        .args(["-m", "--propagation", "private", "sh", "-euc", script, "sh"])
        .arg(dir)
        .arg(DWARFS)
        .args(arguments)
        .stdin(Stdio::null())
        .output();
    let output = output.expect("unshare can be started");
    if output.status.code() == Some(78) {
        skip(test, "there is no overlay file system for /sbin");
        return None;
    }
    Some(output)
}

/// What a program printed on standard output.
pub(crate) fn stdout(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Unmounts. Programs that other tests start at this moment may still hold what is open here.
pub(crate) fn unmount(point: &Path) {
    let flags = rustix::mount::UnmountFlags::empty();
    wait_until("the unmount", || {
        match rustix::mount::unmount(point, flags) {
            Ok(()) => true,
            Err(rustix::io::Errno::BUSY) => false,
            Err(error) => panic!("{}: {error}", point.display()),
        }
    });
}
