//! The categories of the blocks of an image (format/04 section 11).

use std::cmp::Reverse;
use std::collections::BTreeMap;

use redwarfs_format::metadata::Metadata;

use super::names::{Category, StreamKey};
use crate::base::BaseBlock;

/// The stream of each block.
#[derive(Debug, Default)]
pub(crate) struct StoredCategories {
    /// Total size of the fragments of each stream, in bytes.
    pub(crate) sizes: Vec<u64>,
    /// The blocks of the image that the build continues, which come first.
    pub(crate) base: Vec<BaseBlock>,
    /// Streams in the order of their blocks, each with the number of the block after its last one.
    pub(crate) blocks: Vec<(u32, u32)>,
}

impl StoredCategories {
    /// Number of all blocks.
    pub(crate) fn block_count(&self) -> u32 {
        let before = self.base.len() as u32;
        self.blocks.last().map_or(before, |&(_, end)| end)
    }

    /// Whether blocks that were there before have categories.
    pub(crate) fn has_base_categories(&self) -> bool {
        let mut base = self.base.iter();
        base.any(|block| !block.category.is_empty())
    }
}

/// Describes categories in the metadata of an image.
pub(crate) fn describe(
    streams: &[StreamKey],
    stored: &StoredCategories,
    with_parameters: bool,
    metadata: &mut Metadata,
) {
    let category = |stream: u32| {
        let key = streams.get(stream as usize);
        key.map_or(Category::Default, |key| key.category)
    };
    let mut sizes: BTreeMap<Category, u64> = BTreeMap::new();
    for (stream, &size) in (0u32..).zip(&stored.sizes).filter(|(_, size)| **size > 0) {
        *sizes.entry(category(stream)).or_default() += size;
    }
    for &(stream, _) in &stored.blocks {
        sizes.entry(category(stream)).or_default();
    }
    let mut names: Vec<(Category, u64)> = sizes.into_iter().collect();
    names.sort_by_key(|&(_, size)| Reverse(size));
    let mut table: Vec<Vec<u8>> = names
        .iter()
        .map(|(category, _)| category.name().as_bytes().to_vec())
        .collect();
    let mut of_blocks = Vec::new();
    let mut texts: Vec<Vec<u8>> = Vec::new();
    let mut parameters = BTreeMap::new();
    for block in &stored.base {
        let name = match block.category.as_slice() {
            b"" => Category::Default.name().as_bytes(),
            name => name,
        };
        let known = table.iter().position(|known| known == name);
        let number = known.unwrap_or_else(|| {
            table.push(name.to_vec());
            table.len() - 1
        });
        if let Some(text) = &block.parameters {
            let known = texts.iter().position(|known| known == text);
            let index = known.unwrap_or_else(|| {
                texts.push(text.clone());
                texts.len() - 1
            });
            parameters.insert(of_blocks.len() as u32, index as u32);
        }
        of_blocks.push(number as u32);
    }
    for &(stream, end) in &stored.blocks {
        let name = names.iter().position(|(c, _)| *c == category(stream));
        let text = streams.get(stream as usize).and_then(StreamKey::json);
        let first = of_blocks.len() as u32;
        of_blocks.resize(end as usize, name.unwrap_or(0) as u32);
        let Some(text) = text.filter(|_| first < end) else {
            continue;
        };
        let index = texts.len() as u32;
        texts.push(text.into_bytes());
        parameters.extend((first..end).map(|block| (block, index)));
    }
    metadata.category_names = Some(table);
    metadata.block_categories = Some(of_blocks);
    if with_parameters {
        metadata.category_metadata_json = Some(texts);
        metadata.block_category_metadata = Some(parameters);
    }
}

#[cfg(test)]
mod tests {
    use redwarfs_codec::{ByteOrder, PixelFormat};

    use super::super::names::Kind;
    use super::*;

    #[test]
    fn names_by_size_and_parameters_by_block() {
        let pixels = StreamKey {
            category: Category::FitsImage,
            kind: Kind::Pixels(PixelFormat {
                components: 1,
                unused_lsb: 0,
                byte_order: ByteOrder::Big,
            }),
        };
        let streams = [
            StreamKey::DEFAULT,
            pixels,
            StreamKey::plain(Category::FitsMetadata),
            StreamKey::plain(Category::Hotness),
        ];
        let stored = StoredCategories {
            sizes: vec![10, 5000, 90, 0],
            base: Vec::new(),
            blocks: vec![(0, 1), (1, 4), (2, 5)],
        };
        let mut metadata = Metadata::default();
        describe(&streams, &stored, true, &mut metadata);
        let names = metadata.category_names.unwrap();
        let names: Vec<_> = names.iter().map(|n| n.escape_ascii().to_string()).collect();
        assert_eq!(names, ["fits/image", "fits/metadata", "<default>"]);
        assert_eq!(metadata.block_categories.unwrap(), [2, 0, 0, 0, 1]);
        assert_eq!(metadata.category_metadata_json.unwrap().len(), 1);
        let parameters: Vec<_> = metadata
            .block_category_metadata
            .unwrap()
            .into_iter()
            .collect();
        assert_eq!(parameters, [(1, 0), (2, 0), (3, 0)]);
        let block = |category: &[u8], parameters: Option<&[u8]>| BaseBlock {
            category: category.to_vec(),
            parameters: parameters.map(<[u8]>::to_vec),
        };
        let base = vec![block(b"", None), block(b"other", Some(b"{}"))];
        let mut continued = Metadata::default();
        let blocks = stored.blocks.iter().map(|&(s, end)| (s, end + 2)).collect();
        let stored = StoredCategories {
            base,
            blocks,
            ..stored
        };
        assert_eq!(stored.block_count(), 7);
        describe(&streams, &stored, true, &mut continued);
        let names = continued.category_names.unwrap();
        let names: Vec<_> = names.iter().map(|n| n.escape_ascii().to_string()).collect();
        assert_eq!(names, ["fits/image", "fits/metadata", "<default>", "other"]);
        assert_eq!(continued.block_categories.unwrap(), [2, 3, 2, 0, 0, 0, 1]);
        let parameters = continued.block_category_metadata.unwrap();
        assert_eq!(
            parameters.into_iter().collect::<Vec<_>>(),
            [(1, 0), (3, 1), (4, 1), (5, 1)]
        );
        let mut without = Metadata::default();
        describe(&streams, &stored, false, &mut without);
        assert!(without.category_names.is_some() && without.category_metadata_json.is_none());
    }
}
