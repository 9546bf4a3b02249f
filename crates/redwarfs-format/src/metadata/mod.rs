//! The metadata of an image: model, in-place view, packing and checks (format chapters 04, 05).
//!
//! [`MetadataView`] answers questions straight from the bit-packed bytes and is what a reader
//! uses. [`Metadata`] is the same as an owned value, for building and rewriting.

mod categories;
mod check;
mod directories;
mod encoded;
mod extents;
mod inspect;
mod model;
mod once;
mod open;
mod pack;
mod strings;
mod subtree;
mod sums;
mod symlinks;
mod table;
mod types;
mod unknown;
mod view;
mod xattr_check;
mod xattrs;

use crate::error::Result;
use crate::frozen::{Widths, freeze_value};

pub use crate::frozen::{Frozen, Table};
pub use encoded::EncodedTables;
pub use extents::Extents;
pub use inspect::{LayoutField, MemoryPart, MemoryRow, MemoryUsage, PartKind, metadata_type};
pub use model::{
    Chunk, DirEntry, Directory, FileFlags, FsOptions, InodeData, InodeSizeCache, Metadata,
    MetadataHistoryEntry, StringTable, XattrPair, XattrTables, XattrValue,
};
pub use pack::{Compress, Packing, StringPacking, build_string_table};
pub use types::{Attributes, Counts, Extent, FileType, Stat, Timestamp, Totals, mode_string};
pub use unknown::unknown_members;
pub use view::MetadataView;
pub use xattrs::{
    MAX_XATTR_NAME, MAX_XATTR_VALUE, STORED_FLAGS, TABLE_VERSION, Xattr, XattrCounts, XattrData,
    XattrScope, Xattrs, place_sets,
};

/// Encodes metadata with minimal widths, as the reference does (format chapter 03, section 6.3).
///
/// # Errors
/// `Limit` if something does not fit the encoding.
pub fn freeze(m: &Metadata) -> Result<Frozen> {
    freeze_value(m, Widths::Minimal)
}

/// Encodes metadata for a compressor: all integers in lists take whole bytes.
///
/// # Errors
/// `Limit` if something does not fit the encoding.
pub fn freeze_for_compression(m: &Metadata) -> Result<Frozen> {
    freeze_value(m, Widths::Bytes)
}

/// Decodes metadata into an owned value. Apart from bounds nothing is checked.
///
/// # Errors
/// `Corrupt` if the schema is invalid or something lies outside of the data.
pub fn thaw(schema: &[u8], data: &[u8]) -> Result<Metadata> {
    use crate::frozen::{BitSource, Pos, Schema, Shaper, Value};
    let schema = Schema::parse(schema)?;
    let root = Shaper::new(&schema).root::<Metadata>()?;
    Metadata::read(&BitSource::new(data), &root, Pos::default())
}

#[cfg(test)]
mod tests;
