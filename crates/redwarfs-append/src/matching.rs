//! The indexes of anchors of an image.

use std::collections::HashMap;
use std::sync::Arc;

use redwarfs_format::Result;
use redwarfs_format::section::{MatchTable, Section, SectionType};
use redwarfs_io::Source;
use redwarfs_reader::Image;

/// Most indexes that are searched, one for each append that made one.
const MOST_TABLES: usize = 1 << 12;
/// Places of an anchor that are looked at, in each index.
const MOST_PLACES: usize = 8;

/// The indexes of an image, the newest one first. They stay in the file.
#[derive(Debug)]
pub(crate) struct Matching {
    source: Arc<dyn Source>,
    /// Offsets of the payloads in the file.
    tables: Vec<(u64, MatchTable)>,
    /// Offset of the header of the newest one.
    newest: Option<u64>,
    /// Numbers of blocks by the offsets of their headers.
    blocks: HashMap<u64, u32>,
}

impl Matching {
    /// Those of the newest one of some generations that has any: the newest generation comes first.
    pub(crate) fn of<'a>(image: &Image, mut generations: impl Iterator<Item = &'a Image>) -> Self {
        let container = image.container();
        let mut matching = Self {
            source: Arc::clone(image.source()),
            tables: Vec::new(),
            newest: None,
            blocks: HashMap::new(),
        };
        let first = generations.find_map(|generation| {
            let mut trailers = generation.container().trailers.iter();
            trailers
                .rfind(|section| section.ty == SectionType::MATCH)
                .cloned()
        });
        let Some(first) = first else {
            return matching;
        };
        matching.newest = Some(first.header_offset);
        let blocks = container.blocks().zip(0..);
        matching.blocks = blocks
            .map(|(block, number)| (block.header_offset, number))
            .collect();
        if let Err(error) = matching.read(image, first) {
            // What follows is searched without it.
            tracing::warn!("index of anchors: {error}");
        }
        matching
    }

    fn read(&mut self, image: &Image, mut section: Section) -> Result<()> {
        let container = image.container();
        let source = Arc::clone(&self.source);
        let read = |at, out: &mut [u8]| source.read_exact_at(at, out);
        while self.tables.len() < MOST_TABLES {
            let payload = container.offset.saturating_add(section.payload_offset);
            let mut start = [0; MatchTable::START];
            source.read_exact_at(payload, &mut start)?;
            // Its offset is above that of the next one, so the row ends.
            let table = MatchTable::parse(&start, &section)?;
            self.tables.push((payload, table));
            let Some(previous) = table.previous else {
                break;
            };
            section = container.hidden_section(&read, SectionType::MATCH, previous)?;
        }
        Ok(())
    }

    /// Offset of the header of the newest index.
    pub(crate) fn newest(&self) -> Option<u64> {
        self.newest
    }

    /// Adds the places of anchors with a hash.
    pub(crate) fn find(&self, hash: u32, found: &mut Vec<(u32, u32)>) {
        let mut places = Vec::new();
        for (payload, table) in &self.tables {
            let read = |at: u64, out: &mut [u8]| {
                self.source.read_exact_at(payload.saturating_add(at), out)
            };
            // A damaged index finds less.
            if table.find(hash, MOST_PLACES, &read, &mut places).is_err() {
                continue;
            }
        }
        let numbered = places.iter().filter_map(|place| {
            let number = self.blocks.get(&place.block)?;
            Some((*number, place.end))
        });
        found.extend(numbered);
    }
}
