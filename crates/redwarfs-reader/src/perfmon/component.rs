//! The components that can be monitored.

use std::fmt;
use std::str::FromStr;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Part of the software that can be monitored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Component {
    /// Requests of the kernel.
    Fuse,
    /// Operations of [`Image`](crate::Image).
    Filesystem,
    /// Reading of file contents.
    InodeReader,
    /// Decoded blocks.
    BlockCache,
}

impl Component {
    /// All components, in the order of their names.
    pub const ALL: [Self; 4] = [
        Self::BlockCache,
        Self::Filesystem,
        Self::Fuse,
        Self::InodeReader,
    ];

    /// The name in options, summaries and traces.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Fuse => "fuse",
            Self::Filesystem => "filesystem_v2",
            Self::InodeReader => "inode_reader_v2",
            Self::BlockCache => "block_cache",
        }
    }
}

impl fmt::Display for Component {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// There is no component of that name.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("no such component: {0} (known: block_cache, filesystem_v2, fuse, inode_reader_v2)")]
pub struct UnknownComponent(String);

impl FromStr for Component {
    type Err = UnknownComponent;

    fn from_str(s: &str) -> Result<Self, Self::Err> {
        Self::ALL
            .into_iter()
            .find(|component| component.name() == s)
            .ok_or_else(|| UnknownComponent(s.to_owned()))
    }
}

/// What a timer collects is valid after a panic, too.
pub(super) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
