//! Builds without case-insensitive lookups.

use redwarfs_format::ids::{EntryIndex, InodeNo};
use redwarfs_format::metadata::MetadataView;
use redwarfs_format::{Error, Result};

/// There is none.
#[derive(Debug)]
pub(crate) enum CaseIndex {}

impl CaseIndex {
    /// # Errors
    /// Always.
    pub(super) fn new(_meta: &MetadataView) -> Result<Self> {
        Err(Error::Unsupported(
            "case-insensitive lookups are not in this build".into(),
        ))
    }

    pub(super) fn find(
        &self,
        _meta: &MetadataView,
        _dir: InodeNo,
        _name: &[u8],
    ) -> Result<Option<EntryIndex>> {
        match *self {}
    }
}
