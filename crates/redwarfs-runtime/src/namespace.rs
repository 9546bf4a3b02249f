//! Mounting where there is no helper program: in namespaces of users and mounts of the process's own.
//!
//! In there an ordinary user may mount FUSE (Linux 4.18). The keeper makes the namespaces; programs enter
//! them, so that they see its mount. Everything else looks as before, except that there is only one user and
//! one group: the others appear as `nobody`.

use std::fs::{self, File};
use std::io;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;

use rustix::mount::{MountPropagationFlags, mount_change};
use rustix::process::{getegid, geteuid};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};

use crate::os;

/// Moves this process to new namespaces, with the same user and group.
pub(crate) fn make() -> io::Result<()> {
    let (user, group) = (geteuid().as_raw(), getegid().as_raw());
    os::unshare_users_and_mounts()?;
    // Kernels before 3.19 have no such file, and need none.
    let _ = fs::write("/proc/self/setgroups", "deny");
    fs::write("/proc/self/uid_map", format!("{user} {user} 1"))?;
    fs::write("/proc/self/gid_map", format!("{group} {group} 1"))?;
    // What is mounted outside still appears. It fails where the root is no mount, and so it was before.
    let _ = mount_change(
        "/",
        MountPropagationFlags::DOWNSTREAM | MountPropagationFlags::REC,
    );
    Ok(())
}

/// The namespace of mounts that this process is in.
pub(crate) fn current() -> io::Result<u64> {
    Ok(fs::metadata("/proc/self/ns/mnt")?.ino())
}

/// Enters the namespaces of another process of the same user, if its namespace of mounts is the one expected.
/// The working directory stays.
pub(crate) fn enter(process: u32, expected: u64) -> io::Result<()> {
    let open = |name: &str| File::open(format!("/proc/{process}/ns/{name}"));
    let (users, mounts) = (open("user")?, open("mnt")?);
    if mounts.metadata()?.ino() != expected {
        return Err(io::Error::other("the process is in another namespace"));
    }
    let directory = std::env::current_dir()?;
    move_into_link_name_space(users.as_fd(), Some(LinkNameSpaceType::User))?;
    move_into_link_name_space(mounts.as_fd(), Some(LinkNameSpaceType::Mount))?;
    std::env::set_current_dir(directory)
}
