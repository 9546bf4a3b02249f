//! The metadata of a tree whose data lies in blocks already.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicBool;

use redwarfs_format::history::History;
use redwarfs_format::metadata::{Extent, Metadata, MetadataHistoryEntry, XattrScope};
use redwarfs_format::section::MetadataId;
use sha2::{Digest as _, Sha256};

use crate::contents::{Chunk, ChunkRange, Content, Files, Origin, Stored, StoredValues};
use crate::context::Context;
use crate::error::{Error, Result};
use crate::memory::Watch;
use crate::options::BuildOptions;
use crate::progress::Progress;
use crate::source::Source;
use crate::stages::emit::{self, Emitter};
use crate::stages::tree;

/// Categories of the blocks of an image.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct BlockCategories {
    /// Names of the categories.
    pub names: Vec<Vec<u8>>,
    /// Category of each block, as an index in `names`.
    pub of_block: Vec<u32>,
    /// JSON objects that describe blocks.
    pub descriptions: Vec<Vec<u8>>,
    /// The description of a block, as an index in `descriptions`.
    pub description_of: BTreeMap<u32, u32>,
}

/// The value of an extended attribute in the place of its bytes: a SHA-256 digest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ValueDigest([u8; 32]);

impl ValueDigest {
    /// That of a value.
    #[must_use]
    pub fn of(value: &[u8]) -> Self {
        Self(Sha256::digest(value).into())
    }
}

/// Where data lies in the blocks of an image. Takes 12 bytes for each extent and 8 for each content.
#[derive(Debug, Default)]
pub struct Placed {
    chunks: Vec<Chunk>,
    contents: Vec<ChunkRange>,
    value_chunks: Vec<Chunk>,
    values: HashMap<ValueDigest, ChunkRange>,
    blocks: u32,
    /// Categories of the blocks, if they are recorded.
    pub categories: Option<BlockCategories>,
    /// Records of earlier versions of the metadata.
    pub versions: Option<Vec<MetadataHistoryEntry>>,
    /// Additional kinds of extended attributes that were recorded.
    pub scope: XattrScope,
}

impl Placed {
    /// Nothing in `blocks` blocks.
    #[must_use]
    pub fn new(blocks: u32) -> Self {
        Self {
            blocks,
            ..Self::default()
        }
    }

    /// Adds a content. Returns its number: contents count from 0. Extents without a size are left out.
    ///
    /// # Errors
    /// [`Error::Limit`] if there are too many extents.
    pub fn content(&mut self, extents: impl IntoIterator<Item = Extent>) -> Result<u32> {
        let number = u32::try_from(self.contents.len());
        let number = number.map_err(|_| Error::Limit("too many different files".into()))?;
        let range = add(&mut self.chunks, extents)?;
        self.contents.push(range);
        Ok(number)
    }

    /// Adds the place of a value of extended attributes.
    ///
    /// # Errors
    /// As [`content`](Self::content).
    pub fn value(
        &mut self,
        value: ValueDigest,
        extents: impl IntoIterator<Item = Extent>,
    ) -> Result<()> {
        if !self.values.contains_key(&value) {
            let range = add(&mut self.value_chunks, extents)?;
            self.values.insert(value, range);
        }
        Ok(())
    }
}

/// Adds extents. Returns where they are.
fn add(chunks: &mut Vec<Chunk>, extents: impl IntoIterator<Item = Extent>) -> Result<ChunkRange> {
    let first = chunks.len();
    let sized = extents.into_iter().filter(|extent| extent.size() > 0);
    chunks.extend(sized.map(|extent| match extent {
        Extent::Hole { size } => Chunk::hole(size),
        Extent::Data {
            block,
            offset,
            size,
        } => Chunk {
            block: block.0,
            offset,
            size,
        },
    }));
    let number = |n| {
        u32::try_from(n)
            .map_err(|_| Error::Limit("too many chunks; use a larger block size".into()))
    };
    Ok((number(first)?, number(chunks.len() - first)?))
}

/// A finished image whose blocks were there before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub struct Assembled {
    /// Uncompressed size of the metadata in bytes.
    pub metadata_size: u64,
    /// Inodes.
    pub inodes: u64,
    /// Chunks.
    pub chunks: u64,
    /// The identity of the tree.
    pub tree: MetadataId,
}

/// Writes everything that follows the blocks of an image: metadata for the tree of `source`, `history`
/// and section index. `content_of` gives the number that a regular file's content has in `placed`; only
/// hidden sections may be written after it.
///
/// No file of `source` is opened. Problems with single entries are counted and logged, as in a build.
///
/// # Errors
/// If the root cannot be read, a file has no content, the output cannot be written, options are
/// invalid, something is too large, or `stop` is set.
#[expect(
    clippy::too_many_arguments,
    reason = "the parts of an image come from different places"
)]
pub fn assemble(
    options: &BuildOptions,
    source: &dyn Source,
    content_of: &dyn Fn(&[u8]) -> Option<u32>,
    placed: Placed,
    history: Option<History>,
    emitter: &mut Emitter<'_>,
    progress: &dyn Progress,
    stop: &AtomicBool,
) -> Result<Assembled> {
    options.check()?;
    let context = Context {
        options,
        source,
        base: None,
        progress,
        stop,
        watch: &Watch::new(options),
    };
    let tree = tree::list(context)?;
    let load = tree.load();
    let Placed {
        chunks,
        contents: ranges,
        value_chunks,
        values,
        blocks,
        categories,
        versions,
        scope,
    } = placed;
    let mut stored = Stored {
        chunks,
        ..Stored::default()
    };
    let mut contents: Vec<Content> = Vec::new();
    // Index in `contents` by the number in `placed`.
    let mut known: Vec<u32> = vec![u32::MAX; ranges.len()];
    for (file, details) in (0u32..).zip(&tree.files) {
        let path = tree.path(details.entry);
        let missing = || Error::Limit(format!("no content for '{}'", source.display_path(&path)));
        let number = content_of(&path).ok_or_else(missing)? as usize;
        let (Some(index), Some(range)) = (known.get_mut(number), ranges.get(number)) else {
            return Err(missing());
        };
        match contents.get_mut(*index as usize) {
            Some(content) => content.files.push(file, None),
            None => {
                *index = contents.len() as u32;
                stored.ranges.push(*range);
                contents.push(Content {
                    size: details.size,
                    files: Files::One(file),
                    origin: Origin::Files,
                    parts: None,
                });
            }
        }
    }
    drop((known, ranges));
    let long = tree.extended.long_values();
    let places = long
        .filter(|_| !values.is_empty())
        .filter_map(|(id, value)| Some((id, *values.get(&ValueDigest::of(value))?)));
    stored.values = StoredValues {
        ranges: places.collect(),
        chunks: value_chunks,
    };
    drop(values);
    let describe = |metadata: &mut Metadata| {
        if options.category_names
            && let Some(categories) = categories
        {
            metadata.category_names = Some(categories.names);
            metadata.block_categories = Some(categories.of_block);
            if options.category_metadata {
                metadata.category_metadata_json = Some(categories.descriptions);
                metadata.block_category_metadata = Some(categories.description_of);
            }
        }
        metadata.metadata_version_history = versions;
        if let Some(xattrs) = &mut metadata.xattrs {
            xattrs.scope |= scope.0;
        }
    };
    let emitted = emit::describe(
        context, emitter, tree, contents, stored, blocks, describe, history, load,
    )?;
    Ok(Assembled {
        metadata_size: emitted.metadata_size,
        inodes: emitted.inodes,
        chunks: emitted.chunks,
        tree: emitted.tree,
    })
}
