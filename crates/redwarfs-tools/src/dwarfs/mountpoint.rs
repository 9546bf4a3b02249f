//! The mount point: a directory, created if needed, or a mount that the caller has already set up.

use std::fs;
use std::io;
use std::os::fd::{OwnedFd, RawFd};
use std::path::{Path, PathBuf};

use super::beside::beside;
use super::descriptors::Inherited;
use super::exit::EXIT_MOUNT;
use crate::common::error::{Result, ToolError};

/// Where to mount.
#[derive(Debug)]
pub(super) enum MountPoint {
    /// A directory that was there before.
    Given(PathBuf),
    /// A directory made for the mount.
    Made(MadeDirectory),
    /// `/dev/fd/N`: the caller has opened the device, mounted it, and left it open here.
    Device(OwnedFd, PathBuf),
}

impl MountPoint {
    /// The path on the command line.
    pub(super) fn given(path: &Path, inherited: &mut Inherited) -> Result<Self> {
        let Some(number) = descriptor(path) else {
            return Ok(Self::Given(path.to_owned()));
        };
        match inherited.take(number) {
            Some(device) => Ok(Self::Device(device, path.to_owned())),
            None => Err(ToolError::new("cannot access mount point")
                .path(path)
                .cause("the caller has left no such descriptor open")
                .code(EXIT_MOUNT)),
        }
    }

    /// Whether a mount here hides something.
    pub(super) fn hides_something(&self) -> bool {
        match self {
            // What cannot be listed is not known.
            Self::Given(path) => {
                fs::read_dir(path).is_ok_and(|mut list| matches!(list.next(), Some(Ok(_))))
            }
            Self::Made(_) | Self::Device(..) => false,
        }
    }

    /// The image's path without its extension: an absent or empty directory.
    pub(super) fn automatic(image: &Path) -> Result<Self> {
        let path = beside(image)?;
        match fs::create_dir(&path) {
            Ok(()) => Ok(Self::Made(MadeDirectory(path))),
            Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {
                let empty = fs::read_dir(&path).is_ok_and(|mut list| list.next().is_none());
                if empty {
                    Ok(Self::Given(path))
                } else {
                    Err(
                        ToolError::new("cannot find a suitable empty mountpoint directory")
                            .path(&path),
                    )
                }
            }
            Err(error) => Err(ToolError::new("unable to create mountpoint directory")
                .path(&path)
                .io(&error)),
        }
    }

    pub(super) fn path(&self) -> &Path {
        match self {
            Self::Given(path) | Self::Device(_, path) => path,
            Self::Made(directory) => &directory.0,
        }
    }
}

/// The number in a path of the form `/dev/fd/N`.
fn descriptor(path: &Path) -> Option<RawFd> {
    let number = path.to_str()?.strip_prefix("/dev/fd/")?;
    // Not `+3`.
    number
        .bytes()
        .all(|byte| byte.is_ascii_digit())
        .then_some(())?;
    number.parse().ok()
}

/// A directory that is removed at the end.
#[derive(Debug)]
pub(super) struct MadeDirectory(PathBuf);

impl Drop for MadeDirectory {
    fn drop(&mut self) {
        // Fails harmlessly if something is in it, or still mounted on it.
        let _ = fs::remove_dir(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_of_descriptors() {
        for (path, number) in [
            ("/dev/fd/3", Some(3)),
            ("/dev/fd/017", Some(17)),
            ("/dev/fd/", None),
            ("/dev/fd/+3", None),
            ("/dev/fd/3/x", None),
            ("/dev/fd/99999999999", None),
            ("dev/fd/3", None),
        ] {
            assert_eq!(descriptor(Path::new(path)), number, "{path}");
        }
    }

    #[test]
    fn automatic_directories() {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let image = dir.path().join("a.dwarfs");
        fs::write(&image, "").expect("write");
        let made = MountPoint::automatic(&image).expect("absent directory");
        assert!(made.path().is_dir());
        let made_path = made.path().to_owned();
        drop(made);
        assert!(!made_path.exists());

        fs::create_dir(&made_path).expect("mkdir");
        drop(MountPoint::automatic(&image).expect("empty directory"));
        assert!(made_path.exists());
        fs::write(made_path.join("x"), "").expect("write");
        assert!(MountPoint::automatic(&image).is_err());

        // Names of any bytes, more than one extension, and links.
        use std::os::unix::ffi::OsStrExt;
        for (name, want) in [
            (&b"a b,c\\\n\xff.x.dwarfs"[..], &b"a b,c\\\n\xff.x"[..]),
            (b"y.", b"y"),
            (b".h.d", b".h"),
        ] {
            let name = dir.path().join(std::ffi::OsStr::from_bytes(name));
            fs::write(&name, "").expect("write");
            let made = MountPoint::automatic(&name).expect("a directory");
            let want = dir.path().join(std::ffi::OsStr::from_bytes(want));
            assert_eq!(made.path(), want);
            assert!(want.is_dir());
        }
        let sub = dir.path().join("sub");
        fs::create_dir(&sub).expect("mkdir");
        std::os::unix::fs::symlink("../a.dwarfs", sub.join("l.dwarfs")).expect("link");
        let made = MountPoint::automatic(&sub.join("l.dwarfs")).expect("a directory");
        assert_eq!(made.path(), sub.join("l"));

        let hidden = dir.path().join(".dwarfs");
        assert!(MountPoint::automatic(&hidden).is_err());
        let plain = dir.path().join("plain");
        fs::write(&plain, "").expect("write");
        let error = MountPoint::automatic(&plain).expect_err("no extension");
        assert!(error.line("dwarfs").contains("no extension"));
    }
}
