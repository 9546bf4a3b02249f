//! The differences between operating systems.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(windows)]
pub(crate) use windows::*;

use std::path::Path;

use crate::source::extended::XattrFilter;
use crate::source::{Meta, Timestamp};

/// Longest relative path given to the system in one call; longer ones are opened in steps.
pub(crate) const PATH_STEP: usize = 3800;

/// Attributes of an entry, and the number of the mount that shows it.
pub(crate) struct Found {
    pub(crate) meta: Meta,
    /// Absent if the kernel does not number mounts (before Linux 5.8).
    pub(crate) mount: Option<u64>,
    /// Birth time, if the file system has one.
    pub(crate) birth: Option<Timestamp>,
}

/// Where an entry is whose extended attributes are read.
#[derive(Clone, Copy)]
#[cfg_attr(not(unix), allow(dead_code))]
pub(crate) struct EntryLocation<'a> {
    /// The root of the tree, and the path of the directory below it.
    pub(crate) root: &'a Path,
    pub(crate) path: &'a [u8],
    /// The directory.
    pub(crate) dir: DirRef<'a>,
    /// The name in it; `.` for the directory itself.
    pub(crate) name: &'a [u8],
    /// Whether to follow a symlink.
    pub(crate) follow: bool,
}

/// Which of them are read.
#[derive(Clone, Copy)]
#[cfg_attr(not(unix), allow(dead_code))]
pub(crate) struct Wanted<'a> {
    pub(crate) xattrs: &'a XattrFilter,
    pub(crate) flags: bool,
}
