//! In-place view.

use std::borrow::Cow;
use std::collections::BTreeSet;
use std::marker::PhantomData;
use std::ops::Range;

use super::model::{FsOptions, Metadata};
use super::types::{Counts, Extent, FileType, Stat, Totals};
use crate::error::{Error, Result};
use crate::ids::{BlockNo, CategoryId, EntryIndex, InodeNo};

/// In-place, read-only access to the metadata of an image.
#[derive(Debug)]
pub struct MetadataView {}

/// The pieces of a file.
#[derive(Debug, Clone)]
pub struct Extents<'a> {
    view: PhantomData<&'a MetadataView>,
}

fn later<T>() -> Result<T> {
    Err(Error::Unsupported("metadata view".into()))
}

#[allow(missing_docs, unused_variables, clippy::missing_errors_doc)]
impl MetadataView {
    pub fn parse(schema: &[u8], data: Vec<u8>) -> Result<Self> {
        later()
    }
    pub fn check(&self, block_count: u32, block_sizes: Option<&[u64]>) -> Result<()> {
        later()
    }
    pub fn thaw(&self) -> Result<Metadata> {
        later()
    }
    pub fn block_size(&self) -> u32 {
        0
    }
    pub fn inode_count(&self) -> u32 {
        0
    }
    pub fn entry_count(&self) -> u32 {
        0
    }
    pub fn counts(&self) -> Counts {
        Counts::default()
    }
    pub fn root_entry(&self) -> EntryIndex {
        EntryIndex(0)
    }
    pub fn file_type(&self, ino: InodeNo) -> Result<FileType> {
        later()
    }
    pub fn stat(&self, ino: InodeNo) -> Result<Stat> {
        later()
    }
    pub fn entries(&self, dir: InodeNo) -> Result<Range<u32>> {
        later()
    }
    pub fn entry_inode(&self, e: EntryIndex) -> Result<InodeNo> {
        later()
    }
    pub fn entry_name(&self, e: EntryIndex) -> Result<Cow<'_, [u8]>> {
        later()
    }
    pub fn entry_name_into(&self, e: EntryIndex, out: &mut Vec<u8>) -> Result<()> {
        later()
    }
    pub fn find(&self, dir: InodeNo, name: &[u8]) -> Result<Option<EntryIndex>> {
        later()
    }
    pub fn parent(&self, dir: InodeNo) -> Result<InodeNo> {
        later()
    }
    pub fn self_entry(&self, dir: InodeNo) -> Result<EntryIndex> {
        later()
    }
    pub fn symlink(&self, ino: InodeNo) -> Result<Cow<'_, [u8]>> {
        later()
    }
    pub fn extents(&self, ino: InodeNo) -> Result<Extents<'_>> {
        later()
    }
    pub fn content_id(&self, ino: InodeNo) -> Result<u32> {
        later()
    }
    pub fn content_extents(&self, content: u32) -> Result<Extents<'_>> {
        later()
    }
    pub fn totals(&self) -> Totals {
        Totals::default()
    }
    pub fn features(&self) -> &BTreeSet<Vec<u8>> {
        static EMPTY: BTreeSet<Vec<u8>> = BTreeSet::new();
        &EMPTY
    }
    pub fn options(&self) -> &FsOptions {
        static O: std::sync::OnceLock<FsOptions> = std::sync::OnceLock::new();
        O.get_or_init(FsOptions::default)
    }
    pub fn dwarfs_version(&self) -> Option<&[u8]> {
        None
    }
    pub fn create_timestamp(&self) -> Option<u64> {
        None
    }
    pub fn category_names(&self) -> Result<Option<Vec<Vec<u8>>>> {
        later()
    }
    pub fn block_category(&self, block: BlockNo) -> Result<Option<CategoryId>> {
        later()
    }
    pub fn preferred_path_separator(&self) -> u8 {
        b'/'
    }
}

impl Extents<'_> {
    /// Number of pieces.
    #[must_use]
    pub fn len(&self) -> usize {
        0
    }
    /// True for an empty file.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        true
    }
    /// Piece number `i` of the whole file.
    ///
    /// # Errors
    /// `Corrupt`
    pub fn get(&self, i: usize) -> Result<Extent> {
        let _ = i;
        later()
    }
}

impl Iterator for Extents<'_> {
    type Item = Result<Extent>;
    fn next(&mut self) -> Option<Self::Item> {
        None
    }
}
