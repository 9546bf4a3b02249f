//! Mounting a FUSE connection on a directory, and unmounting it.
//!
//! Root mounts with `mount(2)`, and so does the owner of a user namespace. All other users, and `auto_unmount`, use the helper program
//! `fusermount3`. It passes the opened device back over a socket, by the protocol of libfuse's
//! `mount.c`: the environment variable `_FUSE_COMMFD` names the socket, and one byte has the descriptor
//! attached.
//!
//! A caller may also have opened and mounted the device itself; then it unmounts, too.

use std::ffi::{CString, OsStr, OsString};
use std::fs::OpenOptions;
use std::io::{self, IoSliceMut, Read};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

use rustix::io::{Errno, FdFlags, fcntl_setfd};
use rustix::mount::{MountFlags, UnmountFlags, unmount};
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SocketFlags, SocketType,
    recvmsg, socketpair,
};
use rustix::process::{getegid, geteuid};
use rustix::thread::CapabilitySet;

use crate::error::{Error, Result};
use crate::guard::Guard;
use crate::mount_table::{
    MountPlace, devices_on, has_overlay, helpers, is_dead, place_of, run_helper,
};
use crate::options::MountOptions;

/// The result of unmounting.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmounted {
    /// The file system is gone.
    Gone,
    /// It was in use and is detached from the tree; programs that still use it lose it when the
    /// driver's process ends.
    Detached,
    /// The caller mounted it, and must unmount it.
    NotOurs,
}

/// A mount that this process serves.
#[derive(Debug)]
pub(crate) struct KernelMount {
    mountpoint: PathBuf,
    /// The caller made it. Its place is unknown, and this process does not unmount it.
    foreign: bool,
    /// Device number of the mounted file system: from the mount table if that can be read, otherwise
    /// from [`KernelMount::probe`].
    device: OnceLock<u64>,
    /// It is an overlay with this lower directory, which has no other.
    overlay: Option<PathBuf>,
    /// The socket to the helper with `auto_unmount`: when it closes, the helper unmounts.
    _helper: Mutex<Option<(OwnedFd, Child)>>,
}

impl KernelMount {
    /// Mounts and hands out the device through which the requests come.
    pub(crate) fn new(mountpoint: &Path, options: &MountOptions) -> Result<(OwnedFd, Self)> {
        let target = target_of(mountpoint)?;
        let before = devices_on(&target);
        let direct = if may_mount() && !options.auto_unmount {
            mount_directly(&target, options)?
        } else {
            None
        };
        let (device, helper) = match direct {
            Some(device) => (device, None),
            None => mount_by_helper(&target, options)?,
        };
        let mounted = OnceLock::new();
        if let (Some(before), Some(after)) = (before, devices_on(&target)) {
            // If the mount is already gone, it was unmounted on purpose. Without its number, a later
            // clean-up could take another mount for it.
            let ours = after.into_iter().find(|number| !before.contains(number));
            let number = ours.ok_or_else(|| Error::Session(Errno::NOTCONN.into()))?;
            let _ = mounted.set(number);
        }
        Ok((
            device,
            Self {
                mountpoint: target,
                foreign: false,
                overlay: None,
                device: mounted,
                _helper: Mutex::new(helper),
            },
        ))
    }

    /// A mount that the caller made, with a name for messages.
    pub(crate) fn foreign(name: &Path) -> Self {
        Self {
            mountpoint: name.to_owned(),
            foreign: true,
            overlay: None,
            device: OnceLock::new(),
            _helper: Mutex::new(None),
        }
    }

    /// An overlay that this process has just mounted on `target`. `lower` is its lower directory.
    pub(crate) fn overlay(target: &Path, lower: &Path) -> Self {
        Self {
            mountpoint: target.to_owned(),
            foreign: false,
            overlay: Some(lower.to_owned()),
            device: OnceLock::new(),
            _helper: Mutex::new(None),
        }
    }

    /// Lets a guard take off the mount if this process dies.
    pub(crate) fn watch(&self, guard: &mut Guard) -> io::Result<()> {
        match &self.overlay {
            Some(lower) => guard.watch_overlay(&self.mountpoint, lower),
            None => guard.watch(&self.mountpoint, self.device()),
        }
    }

    pub(crate) fn mountpoint(&self) -> &Path {
        &self.mountpoint
    }

    /// Device number of the mount; 0 before it is known.
    pub(crate) fn device(&self) -> u64 {
        self.device.get().copied().unwrap_or_default()
    }

    /// Proves that requests are served, and learns the device number that later identifies the mount.
    pub(crate) fn probe(&self) -> io::Result<()> {
        if self.foreign {
            return Ok(());
        }
        rustix::fs::statfs(&self.mountpoint)?;
        let _ = self.device.set(device_of(&self.mountpoint)?);
        Ok(())
    }

    /// The state of the mount in the mount table; `Top` if it is unknown.
    fn place(&self) -> MountPlace {
        if self.foreign {
            return MountPlace::Gone;
        }
        if let Some(lower) = &self.overlay
            && !has_overlay(&self.mountpoint, lower)
        {
            return MountPlace::Gone;
        }
        let Some(&device) = self.device.get() else {
            return MountPlace::Top;
        };
        place_of(&self.mountpoint, device)
    }

    /// Unmounts; a file system in use is detached.
    pub(crate) fn unmount(&self) -> io::Result<Unmounted> {
        if self.foreign {
            return Ok(Unmounted::NotOurs);
        }
        if self.unmount_unused()? {
            return Ok(Unmounted::Gone);
        }
        match unmount(&self.mountpoint, UnmountFlags::DETACH) {
            Ok(()) => Ok(Unmounted::Detached),
            // Gone in the meantime.
            Err(Errno::INVAL | Errno::NOENT) => Ok(Unmounted::Gone),
            Err(Errno::PERM) if run_helper(&self.mountpoint, &["-u", "-z"])? => {
                Ok(Unmounted::Detached)
            }
            Err(Errno::PERM) => Err(io::Error::other("fusermount3 could not unmount")),
            Err(error) => Err(error.into()),
        }
    }

    /// Unmounts if the file system is not in use. Returns false if it is in use, or if that is unknown.
    pub(crate) fn unmount_unused(&self) -> io::Result<bool> {
        if self.foreign {
            return Ok(false);
        }
        match self.place() {
            MountPlace::Top => {}
            MountPlace::Gone => return Ok(true),
            // The path leads to another mount, which this process must not unmount.
            MountPlace::Covered => {
                return Err(io::Error::new(
                    io::ErrorKind::ResourceBusy,
                    "another file system is mounted on top of it",
                ));
            }
        }
        match unmount(&self.mountpoint, UnmountFlags::empty()) {
            Ok(()) => Ok(true),
            Err(Errno::BUSY) => Ok(false),
            // Gone in the meantime.
            Err(Errno::INVAL | Errno::NOENT) => Ok(true),
            Err(Errno::PERM) => run_helper(&self.mountpoint, &["-u", "-q"]),
            Err(error) => Err(error.into()),
        }
    }

    /// Removes the dead mount after the driver's end of the connection was closed. Usually the mount is
    /// already gone, and another one may have got its device number: that one answers.
    pub(crate) fn clear_remains(&self) {
        // An overlay whose lower directory is dead shows that only for some files.
        if !self.foreign && (self.overlay.is_some() || is_dead(&self.mountpoint)) {
            self.abandon();
        }
    }

    /// Unmounts a mount that could not be put into service. No caller could use an error here.
    pub(crate) fn abandon(&self) {
        if self.place() == MountPlace::Top
            && let Err(Errno::PERM) = unmount(&self.mountpoint, UnmountFlags::DETACH)
        {
            let _ = run_helper(&self.mountpoint, &["-u", "-q", "-z"]);
        }
    }
}

/// The directory to mount on, without symbolic links.
pub(crate) fn target_of(mountpoint: &Path) -> Result<PathBuf> {
    let inaccessible = |source| Error::MountPoint {
        path: mountpoint.to_owned(),
        source,
    };
    let target = mountpoint.canonicalize().map_err(inaccessible)?;
    let meta = target.metadata().map_err(inaccessible)?;
    match meta.is_dir() {
        true => Ok(target),
        false => Err(inaccessible(Errno::NOTDIR.into())),
    }
}

/// Whether the system call may succeed: for root, and for the user of a namespace of its own.
pub(crate) fn may_mount() -> bool {
    geteuid().is_root()
        || rustix::thread::capabilities(None)
            .is_ok_and(|sets| sets.effective.contains(CapabilitySet::SYS_ADMIN))
}

/// The device number of what is mounted on `mountpoint`. The driver is not asked: a reply with the attributes of the
/// root is written into the inode while another process that sees the new mount may read it, and would see a part of
/// the old values.
fn device_of(mountpoint: &Path) -> io::Result<u64> {
    use rustix::fs::{AtFlags, CWD, StatxFlags, makedev, stat, statx};

    // `AT_STATX_DONT_SYNC`, which rustix has not for every processor.
    const DONT_SYNC: u32 = 0x4000;
    match statx(
        CWD,
        mountpoint,
        AtFlags::from_bits_retain(DONT_SYNC),
        StatxFlags::empty(),
    ) {
        Ok(found) => Ok(makedev(found.stx_dev_major, found.stx_dev_minor)),
        // Before Linux 4.11.
        Err(Errno::NOSYS) => Ok(stat(mountpoint)?.st_dev),
        Err(error) => Err(error.into()),
    }
}

pub(crate) fn kernel_flags(options: &MountOptions) -> MountFlags {
    let mut flags = MountFlags::empty();
    flags.set(MountFlags::RDONLY, options.layer.is_none());
    flags.set(MountFlags::NOSUID, options.flags.nosuid);
    flags.set(MountFlags::NODEV, options.flags.nodev);
    flags.set(MountFlags::NOEXEC, options.flags.noexec);
    flags
}

/// The file system specific options that kernel and helper share.
fn common_options(options: &MountOptions) -> String {
    let mut list = String::new();
    if options.checks_permissions() {
        list.push_str(",default_permissions");
    }
    if options.lets_others_in() {
        list.push_str(",allow_other");
    }
    if let Some(limit) = options.max_read {
        list.push_str(&format!(",max_read={limit}"));
    }
    list
}

/// Mounts with the syscall. `None` if this process may not.
fn mount_directly(target: &Path, options: &MountOptions) -> Result<Option<OwnedFd>> {
    let device = OpenOptions::new()
        .read(true)
        .write(true)
        .open(crate::device::PATH)
        .map_err(Error::Device)?;
    let data = format!(
        "fd={},rootmode=40000,user_id={},group_id={}{}",
        device.as_raw_fd(),
        geteuid().as_raw(),
        getegid().as_raw(),
        common_options(options)
    );
    let refused = |source| Error::Mount {
        path: target.to_owned(),
        source,
    };
    let data = CString::new(data).map_err(|error| refused(error.into()))?;
    let fs_type = format!("fuse.{}", options.subtype);
    // A separate string: nothing in it can be parsed as an option.
    match rustix::mount::mount(
        options.source.as_os_str(),
        target,
        fs_type.as_str(),
        kernel_flags(options),
        data.as_c_str(),
    ) {
        Ok(()) => Ok(Some(device.into())),
        Err(Errno::PERM) => Ok(None),
        Err(error) => Err(wrong_device().unwrap_or_else(|| refused(error.into()))),
    }
}

/// The reason for a refusal if something else is in the place of the device, such as `/dev/null`.
fn wrong_device() -> Option<Error> {
    /// Numbers of the device.
    const FUSE: (u32, u32) = (10, 229);
    let found = rustix::fs::stat(crate::device::PATH).ok()?;
    let number = found.st_rdev;
    ((rustix::fs::major(number), rustix::fs::minor(number)) != FUSE)
        .then(|| Error::Device(io::Error::other("something else is in its place")))
}

/// Escapes commas and backslashes for an option list. The helper program removes the escapes, so the
/// mount table looks the same for every user.
fn escape(value: &OsStr) -> OsString {
    let mut out = Vec::with_capacity(value.len());
    for &byte in value.as_bytes() {
        if matches!(byte, b',' | b'\\') {
            out.push(b'\\');
        }
        out.push(byte);
    }
    OsString::from_vec(out)
}

fn helper_options(options: &MountOptions) -> OsString {
    let mut list = OsString::from(match options.layer {
        None => "ro",
        Some(_) => "rw",
    });
    for (on, yes, no) in [
        (options.flags.nosuid, "nosuid", "suid"),
        (options.flags.nodev, "nodev", "dev"),
        (options.flags.noexec, "noexec", "exec"),
    ] {
        list.push(",");
        list.push(if on { yes } else { no });
    }
    list.push(common_options(options));
    if options.auto_unmount {
        list.push(",auto_unmount");
    }
    list.push(",subtype=");
    list.push(escape(OsStr::new(&options.subtype)));
    list.push(",fsname=");
    list.push(escape(&options.source));
    list
}

type Helped = (OwnedFd, Option<(OwnedFd, Child)>);

fn mount_by_helper(target: &Path, options: &MountOptions) -> Result<Helped> {
    let pair = || -> io::Result<(OwnedFd, OwnedFd)> {
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::empty(),
            None,
        )?;
        // Only the helper's end may survive `exec`.
        fcntl_setfd(&ours, FdFlags::CLOEXEC)?;
        Ok((ours, theirs))
    };
    let (ours, theirs) = pair().map_err(Error::Session)?;
    let mut child = spawn_helper(&theirs, &helper_options(options), target)?;
    drop(theirs);
    match receive_descriptor(&ours) {
        Ok(device) => {
            fcntl_setfd(&device, FdFlags::CLOEXEC).map_err(|e| Error::Session(e.into()))?;
            if options.auto_unmount {
                return Ok((device, Some((ours, child))));
            }
            drop(ours);
            let _ = child.wait();
            Ok((device, None))
        }
        Err(error) => {
            drop(ours);
            let mut text = String::new();
            if let Some(mut stderr) = child.stderr.take() {
                let _ = stderr.read_to_string(&mut text);
            }
            let _ = child.wait();
            let text = text.trim().replace('\n', "; ");
            Err(match wrong_device() {
                Some(wrong) => wrong,
                None if text.is_empty() => Error::Mount {
                    path: target.to_owned(),
                    source: error,
                },
                None => Error::Helper(text),
            })
        }
    }
}

fn spawn_helper(socket: &OwnedFd, options: &OsStr, target: &Path) -> Result<Child> {
    let mut missing = io::Error::from(Errno::NOENT);
    for helper in helpers() {
        let child = Command::new(helper)
            .arg("-o")
            .arg(options)
            .arg("--")
            .arg(target)
            .env("_FUSE_COMMFD", socket.as_raw_fd().to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::piped())
            .spawn();
        match child {
            Ok(child) => return Ok(child),
            Err(error) => missing = error,
        }
    }
    Err(Error::HelperMissing(missing))
}

fn receive_descriptor(socket: &OwnedFd) -> io::Result<OwnedFd> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0u8];
    let message = loop {
        match recvmsg(
            socket.as_fd(),
            &mut [IoSliceMut::new(&mut byte)],
            &mut control,
            RecvFlags::empty(),
        ) {
            Err(Errno::INTR) => {}
            other => break other?,
        }
    };
    if message.bytes == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message
            && let Some(descriptor) = descriptors.next()
        {
            return Ok(descriptor);
        }
    }
    Err(io::ErrorKind::InvalidData.into())
}

impl Drop for KernelMount {
    fn drop(&mut self) {
        let helper = self
            ._helper
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        if let Some((socket, mut child)) = helper {
            // Closing the socket makes the helper unmount and end; it must not stay a zombie.
            drop(socket);
            let patience = Instant::now() + Duration::from_secs(2);
            while Instant::now() < patience && matches!(child.try_wait(), Ok(None)) {
                std::thread::sleep(Duration::from_millis(5));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::options::Access;

    #[test]
    fn source_cannot_become_an_option() {
        let options = MountOptions {
            source: OsString::from("/a,suid\\,dev.dwarfs\n"),
            default_permissions: Some(true),
            ..MountOptions::default()
        };
        assert_eq!(
            helper_options(&options),
            "ro,nosuid,nodev,exec,default_permissions,subtype=dwarfs,\
             fsname=/a\\,suid\\\\\\,dev.dwarfs\n"
        );
    }

    #[test]
    fn options_reach_the_helper() {
        let options = MountOptions {
            access: Access::Everyone,
            auto_unmount: true,
            default_permissions: Some(false),
            max_read: Some(65536),
            ..MountOptions::default()
        };
        assert_eq!(
            helper_options(&options),
            "ro,nosuid,nodev,exec,allow_other,max_read=65536,auto_unmount,subtype=dwarfs,\
             fsname=dwarfs"
        );
    }
}
