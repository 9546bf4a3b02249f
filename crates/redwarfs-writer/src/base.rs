//! The image that a build continues.

use std::fmt::Debug;
use std::io;

use redwarfs_format::history::HistoryEntry;
use redwarfs_format::metadata::{Extent, Timestamp};
use redwarfs_format::section::{GenerationId, MetadataId, SectionType};

use crate::error::Result;
use crate::stages::emit::Emitter;

/// Number of a content of the image that a build continues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BaseContent(pub u32);

/// The category of a block that is already there.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BaseBlock {
    /// The name of the category; empty for none.
    pub category: Vec<u8>,
    /// Parameters of the category, as JSON.
    pub parameters: Option<Vec<u8>>,
}

/// A generation, when its sections up to the index are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NewGeneration {
    /// Offset of the header of its index.
    pub index: u64,
    /// Offset behind its index.
    pub end: u64,
    /// The identity of its index.
    pub generation: GenerationId,
    /// The identity of its tree.
    pub tree: MetadataId,
    /// Total size of the files.
    pub size: u64,
    /// Number of inodes.
    pub inodes: u32,
    /// Whether it gets hints of its own, in the place of those of the image.
    pub hints: bool,
}

/// An image whose blocks a new generation of it refers to.
///
/// The build stores nothing that the image holds, and writes behind its end
/// ([`Builder::append`](crate::Builder::append)).
pub trait BaseImage: Send + Sync + Debug {
    /// Type and offset of the blocks that the new index lists first. The first one is at offset 0.
    fn sections(&self) -> Vec<(SectionType, u64)>;

    /// The category of each of these blocks.
    fn blocks(&self) -> Vec<BaseBlock>;

    /// Where the image ends.
    fn end(&self) -> u64;

    /// The number that the next section gets.
    fn next_number(&self) -> u32;

    /// The first bytes that are written: hidden sections, with numbers from `number` on, and how many.
    fn start(&self, number: u32) -> (Vec<u8>, u32);

    /// The smallest block size that the new metadata may have.
    fn block_size(&self) -> u32;

    /// The history so far.
    fn history(&self) -> Vec<HistoryEntry>;

    /// The content of the file at `path`, if size and time say that it has not changed.
    fn unchanged(&self, path: &[u8], size: u64, mtime: Timestamp) -> Option<BaseContent>;

    /// The content of the file at `path`, which may have changed.
    fn at(&self, path: &[u8]) -> Option<BaseContent>;

    /// How many of the newest generations hold a content, at least 1.
    fn held(&self, content: BaseContent) -> u32;

    /// The contents with a size above 0, in the order of their places.
    fn of_size(&self, size: u64) -> &[BaseContent];

    /// The pieces of a content, whose blocks are numbered as [`sections`](Self::sections) lists them.
    ///
    /// # Errors
    /// Damage of the metadata.
    fn extents(&self, content: BaseContent) -> Result<Vec<Extent>>;

    /// Reads a content at an offset. Fewer bytes only at its end.
    ///
    /// # Errors
    /// Those of the medium, and damage.
    fn read_at(&self, content: BaseContent, offset: u64, buf: &mut [u8]) -> io::Result<usize>;

    /// Decodes the first bytes of a block of [`blocks`](Self::blocks): `most`, or all if it is not longer.
    ///
    /// # Errors
    /// Those of the medium, and damage.
    fn block_start(&self, block: u32, most: usize) -> io::Result<Vec<u8>>;

    /// Adds places of anchors with a hash in indexes of old blocks ([`MatchTable`]) to `found`: blocks and offsets.
    /// Nothing if there is no such index, or it is damaged.
    ///
    /// [`MatchTable`]: redwarfs_format::section::MatchTable
    fn find_anchor(&self, hash: u32, found: &mut Vec<(u32, u32)>);

    /// Offset of the header of the newest index of anchors.
    fn match_table(&self) -> Option<u64>;

    /// Writes the hidden sections of the new generation behind its index.
    ///
    /// # Errors
    /// Those of the emitter.
    fn trailers(&self, new: &NewGeneration, emitter: &mut Emitter<'_>) -> Result<()>;
}
