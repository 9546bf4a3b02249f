//! Lookups of names, which may ignore case.

#[cfg_attr(not(feature = "case-insensitive"), path = "absent.rs")]
mod index;

use redwarfs_format::Result;
use redwarfs_format::ids::{EntryIndex, InodeNo};
use redwarfs_format::metadata::MetadataView;

pub(crate) use index::CaseIndex;

use crate::options::MountOptions;

impl CaseIndex {
    /// The index if [`MountOptions::case_insensitive`] needs one.
    ///
    /// # Errors
    /// The metadata is corrupt, or this build has no such lookups.
    pub(crate) fn wanted(meta: &MetadataView, options: &MountOptions) -> Result<Option<Self>> {
        options
            .case_insensitive
            .then(|| Self::new(meta))
            .transpose()
    }
}

/// The entry of a directory with a name. With an index, a name in other letter case counts, unless there
/// is an exact match.
///
/// # Errors
/// The metadata is corrupt.
pub(crate) fn find(
    meta: &MetadataView,
    index: Option<&CaseIndex>,
    dir: InodeNo,
    name: &[u8],
) -> Result<Option<EntryIndex>> {
    match (meta.find(dir, name)?, index) {
        (None, Some(index)) => index.find(meta, dir, name),
        (found, _) => Ok(found),
    }
}
