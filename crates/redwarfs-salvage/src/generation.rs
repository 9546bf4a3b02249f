//! Which sections belong together.

use std::collections::BTreeMap;

use redwarfs_format::BlockNo;
use redwarfs_format::section::{
    CompressionId, Container, Section, SectionType, Version, parse_section_index,
};
use redwarfs_io::Source;

use crate::error::Result;
use crate::find::FoundSection;

/// Longest index that is read (256 MiB): that of 32 million sections.
const INDEX_LIMIT: u64 = 256 << 20;

/// A tree, and the blocks that it may need.
#[derive(Debug, Clone)]
pub(crate) struct Generation {
    schema: FoundSection,
    metadata: FoundSection,
    /// The block with each number; none if it is lost.
    blocks: Vec<Option<FoundSection>>,
    /// Whether an index says which blocks there are.
    pub(crate) indexed: bool,
}

/// All generations with intact schema and metadata, the newest first.
pub(crate) fn generations(source: &dyn Source, found: &[FoundSection]) -> Result<Vec<Generation>> {
    let indexes = indexes(source, found)?;
    let mut out = Vec::new();
    for at in (1..found.len()).rev() {
        let (Some(schema), Some(metadata)) = (found.get(at - 1), found.get(at)) else {
            continue;
        };
        let is_pair = schema.header.ty == SectionType::METADATA_V2_SCHEMA
            && metadata.header.ty == SectionType::METADATA_V2
            && schema.intact
            && metadata.intact
            && schema.end() == metadata.at;
        if !is_pair {
            continue;
        }
        let listed = indexes.iter().find(|index| index.lists(schema, metadata));
        let blocks = match listed {
            Some(index) => index.blocks(found),
            None => by_number(found.get(..at - 1).unwrap_or_default(), schema),
        };
        out.push(Generation {
            schema: *schema,
            metadata: *metadata,
            blocks,
            indexed: listed.is_some(),
        });
    }
    Ok(out)
}

/// An intact index: where the sections are in the file.
struct Index(Vec<(SectionType, u64)>);

impl Index {
    fn lists(&self, schema: &FoundSection, metadata: &FoundSection) -> bool {
        [schema, metadata]
            .iter()
            .all(|section| self.0.contains(&(section.header.ty, section.at)))
    }

    fn blocks(&self, found: &[FoundSection]) -> Vec<Option<FoundSection>> {
        let blocks = self.0.iter().filter(|(ty, _)| *ty == SectionType::BLOCK);
        blocks
            .map(|(ty, at)| {
                let place = found.binary_search_by_key(at, |section| section.at).ok()?;
                let section = found.get(place)?;
                (section.intact && section.header.ty == *ty).then_some(*section)
            })
            .collect()
    }
}

fn indexes(source: &dyn Source, found: &[FoundSection]) -> Result<Vec<Index>> {
    let mut out = Vec::new();
    for section in found.iter().rev() {
        let header = &section.header;
        let usable = section.intact
            && header.ty == SectionType::SECTION_INDEX
            && header.compression == CompressionId::NONE
            && header.length <= INDEX_LIMIT;
        if !usable {
            continue;
        }
        let mut payload = vec![0; usize::try_from(header.length).unwrap_or(0)];
        source.read_exact_at(section.payload_at(), &mut payload)?;
        let Some(entries) = parse_section_index(&payload) else {
            continue;
        };
        // The last entry is the index itself, which says where the image begins.
        let Some((_, own)) = entries.last() else {
            continue;
        };
        let moved = i128::from(section.at) - i128::from(*own);
        let places = entries.iter().map(|(ty, at)| {
            // In front of the file, where nothing is found.
            let place = u64::try_from(i128::from(*at) + moved).unwrap_or(u64::MAX);
            (*ty, place)
        });
        out.push(Index(places.collect()));
    }
    Ok(out)
}

/// The blocks in front of a schema without index. In an image that was never appended to, a block has the number of
/// its section.
fn by_number(before: &[FoundSection], schema: &FoundSection) -> Vec<Option<FoundSection>> {
    let mut own: BTreeMap<u32, FoundSection> = BTreeMap::new();
    let mut limit = schema.header.number;
    let mut plain = true;
    for section in before.iter().rev() {
        // The number of an intact section is right; those of an earlier image in the file are not smaller.
        if !section.intact {
            continue;
        }
        if section.header.number >= limit {
            break;
        }
        limit = section.header.number;
        plain &= section.header.ty == SectionType::BLOCK;
        own.insert(section.header.number, *section);
    }
    if plain {
        return (0..schema.header.number)
            .map(|number| own.get(&number).copied())
            .collect();
    }
    // Older metadata is between the blocks. What is behind a gap may be any block.
    let mut blocks = Vec::new();
    for (expected, (number, section)) in (0..).zip(own) {
        if expected != number {
            break;
        }
        if section.header.ty == SectionType::BLOCK {
            blocks.push(Some(section));
        }
    }
    blocks
}

fn section(position: u32, found: &FoundSection) -> Section {
    Section {
        position,
        number: found.header.number,
        ty: found.header.ty,
        compression: Some(found.header.compression),
        header_offset: found.at,
        payload_offset: found.payload_at(),
        length: found.header.length,
        header: Some(found.header),
    }
}

impl Generation {
    /// The version of its sections.
    fn version(&self) -> Version {
        self.metadata.header.version
    }

    /// Numbers of its blocks that are lost.
    pub(crate) fn lost(&self) -> impl Iterator<Item = BlockNo> {
        (0..)
            .zip(&self.blocks)
            .filter(|(_, block)| block.is_none())
            .map(|(number, _)| BlockNo(number))
    }

    pub(crate) fn block_count(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// Offset of its schema in the file.
    pub(crate) fn at(&self) -> u64 {
        self.schema.at
    }

    /// Its sections, with offsets in the file. A lost block is empty, so that whatever needs bytes of it fails.
    pub(crate) fn container(&self, len: u64) -> Container {
        let lost = |position| Section {
            position,
            number: position,
            ty: SectionType::BLOCK,
            compression: Some(CompressionId::NONE),
            header_offset: len,
            payload_offset: len,
            length: 0,
            header: None,
        };
        let mut sections: Vec<Section> = (0..)
            .zip(&self.blocks)
            .map(|(position, block)| match block {
                Some(found) => section(position, found),
                None => lost(position),
            })
            .collect();
        let count = self.block_count();
        sections.push(section(count, &self.schema));
        sections.push(section(count + 1, &self.metadata));
        Container::of_sections(self.version(), len, sections)
    }
}
