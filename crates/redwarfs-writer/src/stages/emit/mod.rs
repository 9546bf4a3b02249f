//! Finishing an image: `Tree`, contents and `Stored` -> metadata, history and index.
//!
//! The [`Emitter`] writes the sections of new and of rewritten images.

mod hints;
mod history;
mod metadata;
mod sections;

use redwarfs_format::history::History;
use redwarfs_format::metadata::{Metadata, MetadataView};
use redwarfs_format::section::{Anchor, MatchBuilder, MetadataId, SectionType};

pub use self::hints::{hint_table, write_hints};
pub use self::history::{history_entry, program_version};
pub use self::sections::{Emitter, MetadataCodecs, WORTHWHILE, freeze_for, records};
use crate::base::{BaseImage, NewGeneration};
use crate::category::{self, StreamKey};
use crate::contents::{Content, Files, Stored};
use crate::context::Context;
use crate::error::Result;
use crate::memory::{self, Load};
use crate::progress::add;
use crate::settings::StreamSettings;
use crate::tree::{Tree, check};

/// The sections after the blocks of an image.
pub(crate) struct Emitted {
    /// Uncompressed size of the metadata.
    pub(crate) metadata_size: u64,
    pub(crate) inodes: u64,
    pub(crate) chunks: u64,
    pub(crate) tree: MetadataId,
}

/// Writes everything that follows the blocks. `load` decides whether the memory limit leaves room
/// for a second codec of the metadata.
pub(crate) fn finish(
    context: Context<'_>,
    emitter: &mut Emitter<'_>,
    tree: Tree,
    contents: Vec<Content>,
    mut stored: Stored,
    streams: &[StreamSettings<'_>],
    load: Load,
) -> Result<Emitted> {
    let options = context.options;
    let stored_categories = std::mem::take(&mut stored.categories);
    let blocks = stored_categories.block_count();
    let categories = !options.categorizers.is_empty()
        || tree.marks.has_categories()
        || tree.extended.long_bytes() > 0;
    let categories = categories || stored_categories.has_base_categories();
    let categories = |metadata: &mut Metadata| {
        if categories && options.category_names {
            let keys: Vec<StreamKey> = streams.iter().map(|stream| stream.key).collect();
            let parameters = options.category_metadata;
            category::describe(&keys, &stored_categories, parameters, metadata);
        }
    };
    let history = options.history.as_ref().map(|history| {
        let mut entries = context.base.map_or_else(Vec::new, BaseImage::history);
        entries.push(history_entry(history));
        History { entries }
    });
    describe(
        context, emitter, tree, contents, stored, blocks, categories, history, load,
    )
}

/// As [`finish`], with `categories` to describe the `blocks` blocks in the metadata, and any history.
#[expect(
    clippy::too_many_arguments,
    reason = "the parts of an image come from different stages"
)]
pub(crate) fn describe(
    context: Context<'_>,
    emitter: &mut Emitter<'_>,
    tree: Tree,
    contents: Vec<Content>,
    mut stored: Stored,
    blocks: u32,
    categories: impl FnOnce(&mut Metadata),
    history: Option<History>,
    load: Load,
) -> Result<Emitted> {
    let options = context.options;
    let counters = context.counters();
    add(&counters.chunks, stored.chunks.len() as u64);
    let base = context.base;
    let anchors = std::mem::take(&mut stored.anchors);
    let of_base = base.map_or(0, BaseImage::block_size);
    let block_size = options.block_size().max(of_base);
    let mut contents: Vec<Files> = contents.into_iter().map(|content| content.files).collect();
    // The allocation may be that of the contents.
    contents.shrink_to_fit();
    let file = tree.file();
    let built = metadata::build(options, tree, contents, stored, (blocks, block_size));
    // It may be the reason for an error.
    check(file.as_ref())?;
    drop(file);
    let (mut metadata, tables) = built?;
    categories(&mut metadata);
    let inodes = tables.inode_count();
    let chunks = metadata.chunks.len() as u64;
    add(&counters.inodes, inodes);
    let size = metadata.total_fs_size;
    let frozen = tables.freeze(&metadata)?;
    drop(metadata);
    let tree = MetadataId::of(&frozen.schema, &frozen.data);
    let hints = match &options.hints {
        Some(hints) => {
            let view = MetadataView::parse(&frozen.schema, frozen.data.clone())?;
            hint_table(hints, &view, context.progress)?
        }
        None => None,
    };
    context.check_stop()?;
    let metadata_size = frozen.data.len() as u64;
    let codecs = MetadataCodecs {
        schema: &options.schema_compression,
        main: &options.metadata_compression,
        alternative: options.metadata_alternative.as_ref(),
        has_room: &|codec, frozen, payload| {
            memory::has_room(options, codec, load, (frozen, payload))
        },
    };
    emitter.metadata(frozen, &codecs)?;
    if let Some(history) = history {
        let codec = &options.history_compression;
        emitter.section(SectionType::HISTORY, codec, history.encode())?;
    }
    if options.section_index {
        emitter.index()?;
    }
    if let (Some(base), Some((index, generation))) = (base, emitter.generation()) {
        let new = NewGeneration {
            index,
            end: emitter.offset(),
            generation,
            tree,
            size,
            inodes: u32::try_from(inodes).unwrap_or(u32::MAX),
            hints: options.hints.is_some(),
        };
        base.trailers(&new, emitter)?;
    }
    if let Some(table) = hints {
        write_hints(&table, emitter)?;
    }
    match_table(emitter, base, &anchors)?;
    emitter.finish()?;
    context.check_stop()?;
    Ok(Emitted {
        metadata_size,
        inodes,
        chunks,
        tree,
    })
}

/// Writes the index of the anchors of new blocks, if there are any.
fn match_table(
    emitter: &mut Emitter<'_>,
    base: Option<&dyn BaseImage>,
    anchors: &[Vec<Anchor>],
) -> Result<()> {
    let mut table = MatchBuilder::default();
    let blocks = emitter.blocks();
    let old = blocks.len().saturating_sub(anchors.len());
    for (block, anchors) in blocks.into_iter().skip(old).zip(anchors) {
        table.block(block, anchors);
    }
    if table.is_empty() {
        return Ok(());
    }
    let (prelude, body) = table.encode(base.and_then(BaseImage::match_table));
    emitter.trailer(SectionType::MATCH, &prelude, &body)
}
