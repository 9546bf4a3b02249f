//! The guard's own process.
#![allow(unsafe_code)]

use std::ffi::{CStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsRawFd, OwnedFd, RawFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::panic::catch_unwind;
use std::path::{Path, PathBuf};

use rustix::fs::{Mode, OFlags};
use rustix::mount::{UnmountFlags, unmount};

use crate::mount_table::{MountPlace, has_overlay, place_of, take_off_dead};

/// Shown by `ps` (15 bytes at most).
const NAME: &CStr = c"dwarfs-guard";
/// Longest path that is accepted; the limit of the system is 4096.
const LONGEST: u32 = 1 << 16;

/// A message from the driver to its guard.
pub(super) enum Message<'a> {
    /// The mount to remove if the driver dies: mount point and device number.
    Watch(&'a Path, u64),
    /// The lower directory of the overlay that the next [`Watch`](Self::Watch) names.
    Overlay(&'a Path),
    /// The directory to remove if the driver dies.
    Remove(&'a Path),
    /// The driver ends in order: do nothing.
    Farewell,
}

impl Message<'_> {
    /// Kind (1 byte), device (8), length of the path (4), path.
    pub(super) fn encode(&self) -> Vec<u8> {
        let (kind, device, path) = match self {
            Self::Watch(path, device) => (b'w', *device, path.as_os_str().as_bytes()),
            Self::Overlay(path) => (b'o', 0, path.as_os_str().as_bytes()),
            Self::Remove(path) => (b'r', 0, path.as_os_str().as_bytes()),
            Self::Farewell => (b'f', 0, &b""[..]),
        };
        let mut out = vec![kind];
        out.extend(device.to_ne_bytes());
        out.extend(u32::try_from(path.len()).unwrap_or(u32::MAX).to_ne_bytes());
        out.extend(path);
        out
    }
}

/// What the guard does if the driver dies.
#[derive(Debug, Default, PartialEq, Eq)]
struct Charge {
    /// The mount to remove: mount point and device number.
    mount: Option<(PathBuf, u64)>,
    /// The lower directory, if that is an overlay.
    overlay: Option<PathBuf>,
    /// The directory to remove afterwards.
    directory: Option<PathBuf>,
}

/// Reads messages until the driver ends. `Err` after a farewell or an invalid message.
fn listen(pipe: &mut impl Read) -> io::Result<Charge> {
    let mut charge = Charge::default();
    loop {
        let (mut kind, mut device, mut len) = ([0; 1], [0; 8], [0; 4]);
        match pipe.read_exact(&mut kind) {
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(charge),
            other => other?,
        }
        pipe.read_exact(&mut device)?;
        pipe.read_exact(&mut len)?;
        let len = u32::from_ne_bytes(len);
        if !matches!(&kind, b"w" | b"r" | b"o") || len > LONGEST {
            return Err(io::ErrorKind::InvalidData.into());
        }
        let mut path = vec![0; len as usize];
        pipe.read_exact(&mut path)?;
        let path = PathBuf::from(OsString::from_vec(path));
        match &kind {
            b"r" => charge.directory = Some(path),
            b"o" => charge.overlay = Some(path),
            _ => charge.mount = Some((path, u64::from_ne_bytes(device))),
        }
    }
}

/// Unmounts the mount, if it is still there and dead.
pub(super) fn clean_up(mountpoint: &Path, device: u64) {
    if place_of(mountpoint, device) != MountPlace::Top {
        return;
    }
    // The system may have given the device number to another mount. `statfs` always reaches the driver:
    // if a driver replies, this is another mount. While the system still closes the files of the dead
    // driver, the call waits, and then fails with the other error.
    take_off_dead(mountpoint);
}

/// Unmounts the overlay with this lower directory, if it is still there.
fn take_off_overlay(mountpoint: &Path, lower: &Path) {
    if has_overlay(mountpoint, lower) {
        // Nobody could use an error here.
        let _ = unmount(mountpoint, UnmountFlags::DETACH);
    }
}

/// Runs the guard until the driver ends.
pub(super) fn run(pipe: OwnedFd) -> ! {
    // Unwinding must not reach the copied stack of the driver.
    let _ = catch_unwind(move || {
        leave(&pipe)?;
        let charge = listen(&mut File::from(pipe))?;
        match (charge.mount, charge.overlay) {
            (Some((mountpoint, _)), Some(lower)) => take_off_overlay(&mountpoint, &lower),
            (Some((mountpoint, device)), None) => clean_up(&mountpoint, device),
            (None, _) => {}
        }
        if let Some(directory) = charge.directory {
            crate::removal::remove_tree(&directory)?;
        }
        io::Result::Ok(())
    });
    // SAFETY: ends the process at once; nothing of the copied driver (buffered output, exit
    // handlers) may run here.
    unsafe { libc::_exit(0) }
}

/// Detaches from the surroundings of the driver: terminal, signals, working directory, files.
fn leave(pipe: &OwnedFd) -> io::Result<()> {
    for signal in [
        libc::SIGINT,
        libc::SIGTERM,
        libc::SIGHUP,
        libc::SIGQUIT,
        libc::SIGPIPE,
    ] {
        // SAFETY: SIG_IGN is a valid disposition for these signals and runs no code.
        unsafe { libc::signal(signal, libc::SIG_IGN) };
    }
    // Fails only for the leader of a process group, which a child is not.
    let _ = rustix::process::setsid();
    // SAFETY: the name is a C string of less than 16 bytes.
    let _ = unsafe { libc::prctl(libc::PR_SET_NAME, NAME.as_ptr()) };
    rustix::process::chdir("/")?;
    let null = rustix::fs::open("/dev/null", OFlags::RDWR | OFlags::CLOEXEC, Mode::empty())?;
    rustix::stdio::dup2_stdin(&null)?;
    rustix::stdio::dup2_stdout(&null)?;
    rustix::stdio::dup2_stderr(&null)?;
    drop(null);
    close_all_but(pipe.as_raw_fd());
    Ok(())
}

/// Closes every descriptor above the standard streams except `keep`. A guard lives as long as its driver:
/// without this, locks that the caller of the program holds through a descriptor would last as long.
fn close_all_but(keep: RawFd) {
    /// Highest number that is tried if the descriptors must be closed one by one.
    const MOST: u64 = 1 << 16;
    let kept = keep.unsigned_abs();
    let mut closed = true;
    for (first, last) in [(3, kept.saturating_sub(1)), (kept + 1, u32::MAX)] {
        if first <= last {
            // SAFETY: closes files of the driver in this copy of it. Their owners never run here:
            // the process ends with `_exit`.
            closed &= unsafe { libc::syscall(libc::SYS_close_range, first, last, 0) } == 0;
        }
    }
    if closed {
        return;
    }
    // Systems before Linux 5.9 do not know the call.
    let limit = rustix::process::getrlimit(rustix::process::Resource::Nofile);
    let end = RawFd::try_from(limit.current.unwrap_or(MOST).min(MOST)).unwrap_or(RawFd::MAX);
    for number in (3..end).filter(|number| *number != keep) {
        // SAFETY: as above.
        unsafe { libc::close(number) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages() {
        let watch = Message::Watch(Path::new("/a b"), 7).encode();
        let other = Message::Watch(Path::new("/c"), 8).encode();
        let farewell = Message::Farewell.encode();
        let listen = |parts: &[&[u8]]| listen(&mut parts.concat().as_slice());
        let nothing = listen(&[]).expect("nothing to guard");
        assert_eq!(nothing, Charge::default());
        let remove = Message::Remove(Path::new("/changes")).encode();
        let lower = Message::Overlay(Path::new("/lower")).encode();
        assert_eq!(
            listen(&[&watch, &remove, &lower, &other]).expect("the driver died"),
            Charge {
                mount: Some((PathBuf::from("/c"), 8)),
                overlay: Some(PathBuf::from("/lower")),
                directory: Some(PathBuf::from("/changes")),
            }
        );
        assert!(listen(&[&watch, &farewell]).is_err());
        assert!(listen(&[&watch[..9]]).is_err());
        assert!(listen(&[b"w", &[0xff; 12]]).is_err());
    }

    #[test]
    fn a_living_file_system_is_left_alone() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let device = rustix::fs::stat(dir.path()).expect("stat").st_dev;
        clean_up(dir.path(), device);
        clean_up(
            Path::new("/proc"),
            rustix::fs::stat("/proc").expect("stat").st_dev,
        );
        assert!(Path::new("/proc/self").exists());
    }
}
