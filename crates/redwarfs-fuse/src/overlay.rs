//! The kernel's overlayfs as the driver of a writable layer.
//!
//! The image is mounted on a private directory, and an overlay of it and the layer on the mount point. Then the private mount
//! is taken out of the tree: the overlay keeps it. When the overlay ends, in whatever way, nothing keeps it any longer, and
//! the kernel ends the connection as after any unmount. So there is one mount to take off, and nothing else to clean up.
//!
//! | | own driver | the kernel |
//! |---|---|---|
//! | access to changed files | through this process | without it |
//! | a file that is open for reading when another program changes it | shows the changes | shows the old data |
//! | inode number of a file when it is changed for the first time | stays | may change |
//! | device number of files that are no directories | that of the mount | another one, which changes with the inode number |
//! | `fusermount3 -u` by users | works | does not: it is no FUSE mount |
//! | who can enter | as the options of the mount say | everybody, with the permissions of the files |
//! | attributes `user.dwarfs.*` of the root | are there | are not |
//!
//! Both refuse to rename directories of the image (`EXDEV`), and break its hard links.

use std::ffi::CString;
use std::fs::DirBuilder;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use rustix::io::Errno;
use rustix::mount::{UnmountFlags, mount, unmount};

use crate::attach::{KernelMount, kernel_flags, may_mount};
use crate::options::{Access, KernelFlags, Layer, MountOptions};
use crate::writable::ForKernel;

/// Options of all overlays. With them the kernel writes nothing that the own driver does not understand. With `xino=on` it
/// would look for the originals of copies by handles, which the mount of the image does not know: copies would fail with `ESTALE`.
const FIXED: &str = "redirect_dir=nofollow,index=off,metacopy=off,nfs_export=off,xino=off";
/// How many names are tried.
const NAMES: u32 = 100;

/// Why the options keep the kernel from being the driver.
pub(crate) fn refusal(options: &MountOptions) -> io::Result<()> {
    let why = if !may_mount() {
        "only root and the owner of a user namespace may mount one"
    } else if options.access != Access::Everyone {
        "everybody can enter an overlay: give allow_other if that is wanted"
    } else if options.idle.is_some() {
        "whether somebody uses it is unknown, so timeout does not go with it"
    } else if options.auto_unmount {
        "auto_unmount does not go with it"
    } else {
        return Ok(());
    };
    Err(io::Error::new(io::ErrorKind::Unsupported, why))
}

/// The options of the mount of the image.
pub(crate) fn of_image(options: &MountOptions) -> MountOptions {
    MountOptions {
        layer: None,
        // For the overlay. It opens the files of the image itself.
        flags: KernelFlags {
            noexec: false,
            ..options.flags
        },
        ..options.clone()
    }
}

/// A layer that is ready for the kernel.
#[derive(Debug)]
pub(crate) struct ReadyLayer {
    upper: PathBuf,
    work: PathBuf,
    in_user: bool,
    keeps: bool,
    lock: OwnedFd,
}

impl ReadyLayer {
    /// # Errors
    /// The kernel does not understand the layer.
    pub(crate) fn new(opened: ForKernel, layer: &Layer) -> io::Result<Self> {
        let in_user = opened.in_user?;
        let path = layer.path().canonicalize()?;
        Ok(Self {
            upper: path.join("upper"),
            work: path.join("work"),
            in_user,
            keeps: layer.keeps(),
            lock: opened.lock,
        })
    }

    /// Whether the kernel mounts such an overlay: mounts one on an empty lower directory, and unmounts it.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn try_out(
        &self,
        lower: &PrivateDirectory,
        options: &MountOptions,
    ) -> io::Result<()> {
        self.mount_at(lower, lower.path(), options, true)?;
        Ok(unmount(lower.path(), UnmountFlags::empty())?)
    }

    /// Mounts the overlay on `target`. Also returns the lock of the layer.
    ///
    /// # Errors
    /// The kernel refuses.
    pub(crate) fn mount(
        self,
        lower: &PrivateDirectory,
        target: &Path,
        options: &MountOptions,
    ) -> io::Result<(KernelMount, OwnedFd)> {
        self.mount_at(lower, target, options, self.keeps)?;
        let mounted = KernelMount::overlay(target, lower.path());
        if let Err(error) = mounted.probe() {
            mounted.abandon();
            return Err(error);
        }
        Ok((mounted, self.lock))
    }

    fn mount_at(
        &self,
        lower: &PrivateDirectory,
        target: &Path,
        options: &MountOptions,
        syncs: bool,
    ) -> io::Result<()> {
        let mut data = Vec::new();
        for (key, path, escaped) in [
            (&b"lowerdir="[..], lower.path(), &b"\\,:"[..]),
            (b",upperdir=", &self.upper, b"\\,"),
            (b",workdir=", &self.work, b"\\,"),
        ] {
            data.extend_from_slice(key);
            for &byte in path.as_os_str().as_bytes() {
                if escaped.contains(&byte) {
                    data.push(b'\\');
                }
                data.push(byte);
            }
        }
        data.push(b',');
        data.extend_from_slice(FIXED.as_bytes());
        if self.in_user {
            data.extend_from_slice(b",userxattr");
        }
        // Such a mount leaves a mark in `work` that keeps the next one out.
        if !syncs {
            data.extend_from_slice(b",volatile");
        }
        let (source, data) = (options.source.as_os_str(), CString::new(data)?);
        let flags = kernel_flags(options);
        Ok(mount(source, target, "overlay", flags, data.as_c_str())?)
    }
}

/// A directory whose name no other mount has, nor had.
#[derive(Debug)]
pub(crate) struct PrivateDirectory(PathBuf);

impl PrivateDirectory {
    pub(crate) fn new() -> io::Result<Self> {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let parent = std::env::temp_dir().canonicalize()?;
        let process = std::process::id();
        let since = SystemTime::now().duration_since(UNIX_EPOCH);
        let time = since.map_or(0, |since| since.as_nanos());
        let mut last = io::Error::from(io::ErrorKind::AlreadyExists);
        for _ in 0..NAMES {
            let number = NEXT.fetch_add(1, Ordering::Relaxed);
            let path = parent.join(format!("dwarfs-lower-{process}-{number}-{time:x}"));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => return Ok(Self(path)),
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => last = error,
                Err(error) => return Err(error),
            }
        }
        Err(last)
    }

    pub(crate) fn path(&self) -> &Path {
        &self.0
    }
}

impl Drop for PrivateDirectory {
    /// Takes what is mounted there out of the tree.
    fn drop(&mut self) {
        match unmount(&self.0, UnmountFlags::DETACH) {
            Ok(()) | Err(Errno::INVAL | Errno::NOENT) => {}
            Err(error) => tracing::warn!("cannot unmount {}: {error}", self.0.display()),
        }
        if let Err(error) = std::fs::remove_dir(&self.0) {
            tracing::warn!("cannot remove {}: {error}", self.0.display());
        }
    }
}
