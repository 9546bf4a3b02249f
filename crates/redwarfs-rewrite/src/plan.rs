//! Decides which blocks are copied, and which codec compresses the others.

use std::collections::HashSet;

use redwarfs_codec::{CodecSpec, CompressionId, Content, ContentKind};
use redwarfs_format::section::Section;
use redwarfs_format::{BlockNo, CategoryId};
use redwarfs_reader::Image;

use crate::error::{Error, Result};
use crate::options::RewriteOptions;

/// Bytes of a payload that hold the parameters of its codec.
const FRAMING: usize = 256;

/// A codec, and its replacement for blocks to which it does not apply.
#[derive(Debug, Clone)]
pub(crate) struct Codec {
    pub(crate) spec: CodecSpec,
    pub(crate) fallback: CodecSpec,
    required: bool,
}

impl Codec {
    /// Memory for compressing `raw` bytes, without the block itself.
    pub(crate) fn memory(&self, raw: usize) -> u64 {
        let own = self.spec.encoder_memory(raw);
        match self.spec.requires() {
            ContentKind::Bytes => own,
            _ => own.saturating_add(self.fallback.encoder_memory(raw)),
        }
    }
}

/// The known properties of a block before it is read.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(crate) struct BlockKind {
    pub(crate) category: Option<CategoryId>,
    /// The stored description of the content.
    pub(crate) description: Option<Vec<u8>>,
    pub(crate) content: Content,
}

/// The codecs for an image.
#[derive(Debug)]
pub(crate) struct Plan {
    /// The default first.
    pub(crate) codecs: Vec<Codec>,
    /// Codec of each category.
    by_category: Vec<usize>,
    /// Categories that are to be recompressed.
    selected: Option<Vec<bool>>,
    recompress: bool,
}

/// Refuses to recompress categories that none of these images has.
pub(crate) fn check_categories(images: &[&Image], options: &RewriteOptions) -> Result<()> {
    let Some(filter) = &options.categories else {
        return Ok(());
    };
    let mut known: HashSet<Vec<u8>> = HashSet::new();
    for image in images {
        known.extend(image.metadata().category_names()?.unwrap_or_default());
    }
    match filter
        .names
        .iter()
        .find(|name| !known.contains(name.as_bytes()))
    {
        Some(name) => Err(Error::invalid(format!(
            "no category '{name}' in input filesystem"
        ))),
        None => Ok(()),
    }
}

impl Plan {
    pub(crate) fn new(image: &Image, options: &RewriteOptions) -> Result<Self> {
        let names = image.metadata().category_names()?.unwrap_or_default();
        let mut codecs = vec![Codec {
            spec: options.compression.clone(),
            fallback: options.compression.clone(),
            required: false,
        }];
        let mut by_category = vec![0; names.len()];
        for own in &options.category_compression {
            for (name, codec) in names.iter().zip(&mut by_category) {
                if name == own.category.as_bytes() {
                    *codec = codecs.len();
                }
            }
            codecs.push(Codec {
                spec: own.codec.clone(),
                fallback: options.compression.clone(),
                required: own.required,
            });
        }
        let selected = match &options.categories {
            None => None,
            Some(filter) => {
                let listed = |name: &Vec<u8>| filter.names.iter().any(|n| n.as_bytes() == name);
                Some(names.iter().map(|n| listed(n) != filter.exclude).collect())
            }
        };
        Ok(Self {
            codecs,
            by_category,
            selected,
            recompress: options.blocks || options.block_size_bits.is_some(),
        })
    }

    /// The codec with number `index`.
    pub(crate) fn codec(&self, index: usize) -> &Codec {
        // All numbers come from `codec_of`.
        &self.codecs[index]
    }

    /// Determines the kind of a block. Reads its start if only the block itself has this information.
    pub(crate) fn kind(
        &self,
        image: &Image,
        block: BlockNo,
        section: &Section,
    ) -> Result<BlockKind> {
        let category = image.metadata().block_category(block)?;
        let description = image.metadata().block_metadata(block)?;
        let content = match &description {
            Some(json) => std::str::from_utf8(json)
                .ok()
                .and_then(|json| Content::from_json(json).ok()),
            None => None,
        };
        let content = match content {
            Some(content) if content != Content::Bytes => content,
            _ => own_content(image, section)?,
        };
        Ok(BlockKind {
            category,
            description,
            content,
        })
    }

    /// The codec for a block to recompress; `None` for a block to copy.
    ///
    /// # Errors
    /// The requested codec needs the sample or pixel format, and the image does not have it.
    pub(crate) fn codec_of(&self, kind: &BlockKind, block: BlockNo) -> Result<Option<usize>> {
        if !self.recompress {
            return Ok(None);
        }
        let category = kind.category.map(CategoryId::index);
        if let Some(selected) = &self.selected
            && !category.is_some_and(|c| selected.get(c).copied().unwrap_or(false))
        {
            return Ok(None);
        }
        self.codec_anew(kind, block).map(Some)
    }

    /// The codec for data that is to be compressed in any case.
    ///
    /// # Errors
    /// As [`codec_of`](Self::codec_of).
    pub(crate) fn codec_anew(&self, kind: &BlockKind, block: BlockNo) -> Result<usize> {
        let category = kind.category.map(CategoryId::index);
        let index = category
            .and_then(|c| self.by_category.get(c).copied())
            .unwrap_or(0);
        let codec = self.codec(index);
        if codec.spec.accepts(&kind.content) {
            Ok(index)
        } else if codec.required {
            Err(Error::invalid(format!(
                "compression '{}' cannot be used for block {block}: the image does not tell what \
                 its content is like",
                codec.spec
            )))
        } else {
            Ok(0)
        }
    }

    /// Memory of the most demanding codec for a block of `raw` bytes.
    pub(crate) fn most_memory(&self, raw: usize) -> u64 {
        let used = self.by_category.iter().copied().chain([0]);
        used.map(|index| self.codec(index).memory(raw))
            .max()
            .unwrap_or(0)
    }
}

/// The sample or pixel format in the payload of a block.
fn own_content(image: &Image, section: &Section) -> Result<Content> {
    let section = image.section_with_header(section)?;
    let Some(id @ (CompressionId::FLAC | CompressionId::RICEPP)) = section.compression else {
        return Ok(Content::Bytes);
    };
    let len = usize::try_from(section.length).map_or(FRAMING, |len| len.min(FRAMING));
    let mut start = vec![0; len];
    let offset = image.container().file_offset(&section);
    image
        .source()
        .read_exact_at(offset, &mut start)
        .map_err(redwarfs_format::Error::from)?;
    // A payload without parameters cannot be decoded, which will be an error later.
    Ok(Content::of_payload(id, &start).unwrap_or_default())
}
