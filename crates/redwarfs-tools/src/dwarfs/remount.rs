//! Handles `mount -o remount`, which mount(8) passes to its helper.

use std::ffi::OsString;
use std::path::Path;

use rustix::fs::{StatVfsMountFlags, statfs, statvfs};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

use super::exit::EXIT_MOUNT;
use crate::common::error::{Result, ToolError};

/// The option that asks for it.
pub(super) const OPTION: &str = "remount";

/// What statfs(2) says of file systems of this kind, in a number of another type on each processor.
const FUSE_MAGIC: i128 = 0x6573_5546;

/// Flags of a mount: the option that sets it, the option that clears it, its bit in the call, and its
/// bit in the state. Those for times change nothing here, because nothing is written.
const FLAGS: [(&str, &str, MountFlags, StatVfsMountFlags); 3] = [
    (
        "nosuid",
        "suid",
        MountFlags::NOSUID,
        StatVfsMountFlags::NOSUID,
    ),
    ("nodev", "dev", MountFlags::NODEV, StatVfsMountFlags::NODEV),
    (
        "noexec",
        "exec",
        MountFlags::NOEXEC,
        StatVfsMountFlags::NOEXEC,
    ),
];

/// Whether these options ask for a change of a mount that is there.
pub(super) fn is_wanted(options: &[OsString]) -> bool {
    options.iter().any(|option| option == OPTION)
}

/// Changes the flags of the mount at `mountpoint`. Options of the driver itself, and flags that are not
/// named, stay unchanged. With `complete`, as mount(8) calls, the options name all flags that are on:
/// then programs may be run unless an option forbids it. The other flags are on unless the user takes
/// them away, so their absence says nothing. Returns whether an option requested writing in vain.
///
/// # Errors
/// Nothing of FUSE is mounted there, or the system refuses.
pub(super) fn remount(mountpoint: &Path, options: &[OsString], complete: bool) -> Result<bool> {
    let failed = || ToolError::new("cannot remount").path(mountpoint);
    let cannot = |error: std::io::Error| failed().io(&error).code(EXIT_MOUNT);
    let nothing = || {
        failed()
            .cause("no FUSE file system is mounted there")
            .code(EXIT_MOUNT)
    };
    let target = mountpoint.canonicalize().map_err(cannot)?;
    let found = statfs(&target).map_err(|error| cannot(error.into()))?;
    if i128::from(found.f_type) != FUSE_MAGIC {
        return Err(nothing());
    }
    let now = statvfs(&target).map_err(|error| cannot(error.into()))?;
    let now = now.f_flag;
    let last = options
        .iter()
        .rfind(|option| *option == "ro" || *option == "rw");
    // Of this place in the tree: without a writable layer, the file system itself is read-only for good.
    let mut flags = MountFlags::BIND;
    let stays = now.contains(StatVfsMountFlags::RDONLY);
    flags.set(MountFlags::RDONLY, last.map_or(stays, |last| last == "ro"));
    for (_, _, flag, shown) in FLAGS {
        flags.set(flag, now.contains(shown));
    }
    if complete {
        flags.remove(MountFlags::NOEXEC);
    }
    for option in options {
        for (on, off, flag, _) in FLAGS {
            if option == on {
                flags.insert(flag);
            } else if option == off {
                flags.remove(flag);
            }
        }
    }
    match mount_remount(&target, flags, c"") {
        Ok(()) => {}
        // Something in a mount, not the mount itself.
        Err(Errno::INVAL) => return Err(nothing()),
        Err(error) => return Err(cannot(error.into())),
    }
    let after = statvfs(&target).map_err(|error| cannot(error.into()))?;
    let read_only = after.f_flag.contains(StatVfsMountFlags::RDONLY);
    Ok(read_only && last.is_some_and(|option| option == "rw"))
}
