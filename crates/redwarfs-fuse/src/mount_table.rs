//! The table of mounts, and the helper program that may unmount for everybody.

use std::ffi::OsString;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, unmount};

/// How long a file system that is being ended may take, and how often it is asked.
const PATIENCE: Duration = Duration::from_secs(10);
const PERIOD: Duration = Duration::from_millis(5);

/// Variable of the environment with the path of the helper program, as programs that bring one along set
/// it for libfuse.
const HELPER_VARIABLE: &str = "FUSERMOUNT_PROG";
/// Names under which the helper program is looked for otherwise.
const HELPERS: [&str; 5] = [
    "fusermount3",
    "/usr/bin/fusermount3",
    "/bin/fusermount3",
    "/sbin/fusermount3",
    "fusermount",
];

/// The names of the helper program, in the order in which they are tried.
pub(crate) fn helpers() -> impl Iterator<Item = OsString> {
    let named = std::env::var_os(HELPER_VARIABLE).filter(|name| !name.is_empty());
    named.into_iter().chain(HELPERS.map(OsString::from))
}

/// Lets the helper program work on a mount point; false if it failed.
pub(crate) fn run_helper(mountpoint: &Path, arguments: &[&str]) -> io::Result<bool> {
    for helper in helpers() {
        let status = Command::new(helper)
            .args(arguments)
            .arg("--")
            .arg(mountpoint)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .status();
        match status {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return other.map(|status| status.success()),
        }
    }
    Err(Errno::NOENT.into())
}

/// Where a mount is among the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum MountPlace {
    /// Not mounted there.
    Gone,
    /// The mount point leads to it.
    Top,
    /// Something else was mounted on it.
    Covered,
}

/// The mounts on `path` in the text of `/proc/self/mountinfo`: number, number of the mount below,
/// device.
fn mounts_on<'a>(
    table: &'a [u8],
    path: &'a [u8],
) -> impl Iterator<Item = (&'a [u8], &'a [u8], &'a [u8])> {
    // Number, number of the mount below, device, root, mount point, ...
    table.split(|&byte| byte == b'\n').filter_map(move |line| {
        let mut fields = line.split(|&byte| byte == b' ');
        let (id, below, device) = (fields.next()?, fields.next()?, fields.next()?);
        (unescape(fields.nth(1)?) == path).then_some((id, below, device))
    })
}

/// Device numbers of all mounts on `path`; none if the mount table cannot be read.
pub(crate) fn devices_on(path: &Path) -> Option<Vec<u64>> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    let number = |device: &[u8]| {
        let (major, minor) = std::str::from_utf8(device).ok()?.split_once(':')?;
        Some(rustix::fs::makedev(
            major.parse().ok()?,
            minor.parse().ok()?,
        ))
    };
    let mounts = mounts_on(&table, path.as_os_str().as_bytes());
    Some(mounts.filter_map(|(.., device)| number(device)).collect())
}

/// Looks for the mount of `device` on `path` in the text of `/proc/self/mountinfo`.
fn place_in(table: &[u8], device: &[u8], path: &[u8]) -> MountPlace {
    let mounts = || mounts_on(table, path);
    let ours = mounts().filter(|(_, _, d)| *d == device);
    let mut found = MountPlace::Gone;
    for (id, ..) in ours {
        if !mounts().any(|(_, below, _)| below == id) {
            return MountPlace::Top;
        }
        found = MountPlace::Covered;
    }
    found
}

/// The mount point of an overlay with this path behind `key` in its options, in the text of `/proc/self/mountinfo`.
fn overlay_in(table: &[u8], key: &[u8], path: &[u8]) -> Option<PathBuf> {
    table.split(|&byte| byte == b'\n').find_map(|line| {
        let point = line.split(|&byte| byte == b' ').nth(4)?;
        let end = line.windows(3).position(|part| part == b" - ")?;
        // Type, source, options.
        let mut fields = line.get(end + 3..)?.split(|&byte| byte == b' ');
        if fields.next()? != b"overlay" {
            return None;
        }
        let mut options = fields.nth(1)?.split(|&byte| byte == b',');
        let found = options.any(|option| {
            // As it was given, with the escapes of overlayfs, or as overlayfs understands it.
            let value = option.strip_prefix(key).map(unescape);
            value.is_some_and(|value| value == path || without_backslashes(&value) == path)
        });
        found.then(|| PathBuf::from(OsString::from_vec(unescape(point))))
    })
}

/// Takes the next byte after a backslash as it is.
fn without_backslashes(text: &[u8]) -> Vec<u8> {
    let mut bytes = text.iter().copied();
    let mut out = Vec::with_capacity(text.len());
    while let Some(byte) = bytes.next() {
        out.push(match byte {
            b'\\' => bytes.next().unwrap_or(byte),
            _ => byte,
        });
    }
    out
}

/// The mount point of an overlay of the kernel that has this upper directory, an absolute path. None if there is none, or
/// if that cannot be told: another namespace may have it, or its options name it in another way.
#[cfg(feature = "layer")]
pub(crate) fn overlay_on(upper: &Path) -> Option<PathBuf> {
    let table = std::fs::read("/proc/self/mountinfo").ok()?;
    overlay_in(&table, b"upperdir=", upper.as_os_str().as_bytes())
}

/// Whether an overlay with this lower directory is mounted on `point`, whatever else is.
pub(crate) fn has_overlay(point: &Path, lower: &Path) -> bool {
    let table = std::fs::read("/proc/self/mountinfo").unwrap_or_default();
    let found = overlay_in(&table, b"lowerdir=", lower.as_os_str().as_bytes());
    found.is_some_and(|found| found == point)
}

/// Undoes the escapes of the mount table: three octal digits after a backslash.
fn unescape(field: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(field.len());
    let mut rest = field;
    while let Some((&byte, tail)) = rest.split_first() {
        rest = tail;
        let code = match (byte, tail) {
            (b'\\', [a @ b'0'..=b'3', b @ b'0'..=b'7', c @ b'0'..=b'7', ..]) => {
                rest = tail.get(3..).unwrap_or_default();
                (a - b'0') << 6 | (b - b'0') << 3 | (c - b'0')
            }
            _ => byte,
        };
        out.push(code);
    }
    out
}

/// The state in the mount table of the file system with this device number; `Top` if the table cannot
/// be read.
pub(crate) fn place_of(path: &Path, device: u64) -> MountPlace {
    let (major, minor) = (rustix::fs::major(device), rustix::fs::minor(device));
    match std::fs::read("/proc/self/mountinfo") {
        Ok(table) => place_in(
            &table,
            format!("{major}:{minor}").as_bytes(),
            path.as_os_str().as_bytes(),
        ),
        Err(_) => MountPlace::Top,
    }
}

/// Whether a mount point shows a FUSE file system whose driver is gone.
pub(crate) fn is_dead(mountpoint: &Path) -> bool {
    let end = Instant::now() + PATIENCE;
    loop {
        match rustix::fs::statfs(mountpoint) {
            Err(Errno::NOTCONN | Errno::CONNABORTED) => return true,
            // What came over io_uring is being ended, the connection has not yet been.
            Err(Errno::CANCELED) if Instant::now() < end => sleep(PERIOD),
            _ => return false,
        }
    }
}

/// Takes off what a driver that died has left on `mountpoint`: a FUSE file system that answers everything with
/// `ENOTCONN`. Does nothing if there is something else, or if it may not.
pub fn take_off_dead(mountpoint: &Path) {
    if is_dead(mountpoint) && unmount(mountpoint, UnmountFlags::DETACH).is_err() {
        // The next step of the caller fails, and says why.
        let _ = run_helper(mountpoint, &["-u", "-q", "-z"]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_table_is_searched_by_device_and_path() {
        let table = b"22 1 0:21 / /proc rw - proc proc rw\n\
            99 22 0:52 / /mnt\\040x ro - fuse.x y ro\n\
            100 22 0:53 / /over ro - fuse.x y ro\n\
            101 100 0:54 / /over ro - fuse.x y ro\n";
        for (device, path, place) in [
            ("0:52", "/mnt x", MountPlace::Top),
            ("0:52", "/mnt", MountPlace::Gone),
            ("0:5", "/mnt x", MountPlace::Gone),
            ("0:53", "/over", MountPlace::Covered),
            ("0:54", "/over", MountPlace::Top),
        ] {
            let found = place_in(table, device.as_bytes(), path.as_bytes());
            assert_eq!(found, place, "{device} {path}");
        }
        assert_eq!(place_in(b"", b"0:5", b"/"), MountPlace::Gone);
        let table = b"22 1 0:21 / /proc rw - proc upperdir=/a upperdir=/a\n\
            23 1 0:22 / /mnt\\040x rw shared:7 - overlay none rw,lowerdir=/l\\134:m,upperdir=/a\\040b\\054c,workdir=/w\n";
        let found = overlay_in(table, b"upperdir=", b"/a b,c");
        assert_eq!(found, Some("/mnt x".into()));
        assert_eq!(overlay_in(table, b"lowerdir=", b"/l:m"), found);
        assert_eq!(overlay_in(table, b"upperdir=", b"/a"), None);
        assert_eq!(unescape(b"a\\134\\04\\"), b"a\\\\04\\");
    }
}
