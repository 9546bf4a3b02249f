//! The container: section headers and hashes, the section index, opening an image and finding
//! one inside a larger file (format chapter 01); hidden sections and generations (chapter 10), snapshots (chapter 12).
//!
//! Files are accessed through a [`ReadAt`] function, so this module works on anything that can
//! be read by position.

mod anchors;
mod container;
mod generations;
mod header;
mod hidden;
mod image_range;
mod index;
mod leaves;
mod link;
mod locate;
mod match_table;
mod snapshots;
mod trailer;

pub use anchors::{ANCHOR_WINDOW, Anchor, anchors};
pub use container::{Container, IndexState, Section};
pub use header::{CompressionId, SectionHasher, SectionHeader, SectionType, Version};
pub use hidden::{
    Binding, Footer, GenerationId, HiddenClass, HiddenPayload, MetadataId, Prelude,
    encode_hidden_section,
};
pub use index::{encode_section_index, parse_section_index, tail_pointer};
pub use leaves::LeafDigests;
pub use link::Link;
pub use locate::{NextData, locate_image, locate_image_from, locate_image_number};
pub use match_table::{AnchorPlace, MATCH_BITS, MatchBuilder, MatchTable, ReadPayload};
pub use snapshots::{
    MAX_SNAPSHOT_NAME, MAX_SNAPSHOTS, SNAPSHOTS_START, Snapshot, SnapshotTable, TableChain,
    may_have_archived, snapshot_name_error, snapshot_time_name,
};
pub use trailer::Opening;

/// Fills the buffer with the bytes at an absolute file offset, or fails. A file that ends too
/// early is an error of kind `UnexpectedEof`.
pub type ReadAt<'a> = dyn Fn(u64, &mut [u8]) -> std::io::Result<()> + 'a;

/// What every image starts with.
pub const MAGIC: [u8; 6] = *b"DWARFS";
/// The only major version there is.
pub const MAJOR: u8 = 2;
/// Minor version that is written.
pub const WRITTEN_MINOR: u8 = 5;
/// Highest minor version that is read. It is reserved, and has no defined contents.
pub const MAX_MINOR: u8 = 6;
/// First minor version with 64-byte section headers.
const FIRST_V2_MINOR: u8 = 2;
/// First minor version that may have a section index.
const FIRST_INDEX_MINOR: u8 = 4;
/// Length of the file header, and of each section header, of images with minor version 0 or 1.
const V1_HEADER_LEN: usize = 8;

#[cfg(test)]
mod concatenated_tests;
#[cfg(test)]
mod generation_tests;
#[cfg(test)]
mod golden_tests;
#[cfg(test)]
pub(crate) mod tests;
