//! The differences between operating systems.

#[cfg(unix)]
mod unix;
#[cfg(windows)]
mod windows;

#[cfg(unix)]
pub(crate) use unix::*;
#[cfg(windows)]
pub(crate) use windows::*;

use crate::source::Meta;

/// Longest relative path given to the system in one call; longer ones are opened in steps.
pub(crate) const PATH_STEP: usize = 3800;

/// Attributes of an entry, and the number of the mount that shows it.
pub(crate) struct Found {
    pub(crate) meta: Meta,
    /// Absent if the kernel does not number mounts (before Linux 5.8).
    pub(crate) mount: Option<u64>,
}
