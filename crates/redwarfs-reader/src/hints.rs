//! Hints: which blocks a program needs first. Reads the HINTS sections of an image.
//!
//! Hints are advice. Whatever they say, reading the image gives the same bytes, and a section that is damaged, of a
//! later version, or of another generation is left out.

use std::cell::OnceCell;

use redwarfs_format::hints::{HintKind, HintTable, Hints, MAX_HINTS_SECTION};
use redwarfs_format::section::{
    GenerationId, IndexState, Section, SectionType, encode_section_index,
};
use redwarfs_format::{BlockNo, Error, Result};

use crate::error::in_section;
use crate::image::{Image, OpenImage};

/// HINTS sections that are looked at, from the last one on: nobody writes more than one of each kind.
pub const MOST_HINTS: usize = 8;

/// A HINTS section of an image.
#[derive(Debug)]
#[non_exhaustive]
pub struct StoredHints {
    /// Where it is.
    pub section: Section,
    /// Its contents, or why it has no effect. That is [`Error::Unsupported`] for those of a later version or of another
    /// generation. It is the same if the image has to have digests, which do not cover hints. Damage is [`Error::Corrupt`] or
    /// [`Error::Limit`].
    pub table: Result<HintTable>,
}

impl OpenImage {
    /// The identity of the generation, from what was read at opening. None if the image has no valid index.
    pub(crate) fn generation_id(&self) -> Option<GenerationId> {
        let container = self.payloads.container();
        let sections = container.sections.iter();
        let entries: Vec<_> = sections.map(|s| (s.ty, s.header_offset)).collect();
        let valid = container.index == IndexState::Valid;
        valid.then(|| GenerationId::of(&encode_section_index(&entries)))
    }

    /// The hints in a section, if they are those of `generation`, which is that of this image.
    pub(crate) fn hints_in(
        &self,
        section: &Section,
        generation: Option<GenerationId>,
    ) -> Result<HintTable> {
        if self.payloads.digests().is_some() {
            return Err(Error::Unsupported("hints that no digest covers".into()));
        }
        if section.length > MAX_HINTS_SECTION {
            let e = Error::Limit(format!("hints of {} bytes", section.length));
            return Err(in_section(e, section));
        }
        let generation =
            generation.ok_or_else(|| Error::Unsupported("hints without a section index".into()))?;
        let section = self.payloads.with_header(section)?;
        if !self.payloads.checksum_is_right(&section)? {
            return Err(in_section(Error::corrupt("wrong checksum"), &section));
        }
        let payload = self.payloads.read_vec(&section)?;
        HintTable::parse(&payload, generation).map_err(|e| in_section(e, &section))
    }

    fn stored_hints(&self) -> impl DoubleEndedIterator<Item = StoredHints> {
        // It needs the list of all sections.
        let generation = OnceCell::new();
        let trailers = self.payloads.container().trailers.iter();
        trailers
            .filter(|section| section.ty == SectionType::HINTS)
            .map(move |section| StoredHints {
                section: section.clone(),
                table: self.hints_in(section, *generation.get_or_init(|| self.generation_id())),
            })
    }

    fn hints(&self) -> Result<Vec<HintTable>> {
        let mut tables: Vec<HintTable> = Vec::new();
        for stored in self.stored_hints().rev().take(MOST_HINTS) {
            match stored.table {
                Ok(table) if tables.iter().all(|later| later.kind != table.kind) => {
                    tables.push(table);
                }
                Ok(_) => {}
                Err(error @ Error::Io(_)) => return Err(error),
                Err(error) => tracing::info!("hints have no effect: {error}"),
            }
            if tables.len() == HintKind::ALL.len() {
                break;
            }
        }
        tables.reverse();
        Ok(tables)
    }

    /// The blocks that hints name and that exist, each once: those of `first`, those that are needed at the start, in order,
    /// and then those to keep, by their weight.
    pub(crate) fn hinted_blocks(&self, first: Option<&Hints>) -> Result<Vec<BlockNo>> {
        let mut hinted = Vec::new();
        if let Some(first) = first {
            hinted.extend(first.blocks(&self.view)?.blocks);
        }
        let mut tables = self.hints().unwrap_or_else(|error| {
            tracing::info!("hints have no effect: {error}");
            Vec::new()
        });
        for kind in HintKind::ALL {
            let at = tables.iter().position(|table| table.kind == kind);
            let Some(mut table) = at.map(|at| tables.swap_remove(at)) else {
                continue;
            };
            if kind == HintKind::Keep {
                table.blocks.sort_by_key(|b| std::cmp::Reverse(b.value));
            }
            hinted.append(&mut table.blocks);
        }
        let count = self.payloads.container().block_count();
        let mut seen = vec![false; count as usize];
        let mut new = |block: &BlockNo| {
            let place = seen.get_mut(block.index());
            place.is_some_and(|seen| !std::mem::replace(seen, true))
        };
        let blocks = hinted.into_iter().map(|hinted| hinted.block);
        Ok(blocks.filter(|block| new(block)).collect())
    }
}

impl Image {
    /// The identity of the generation that is open, without reading anything. None if it has no valid index.
    #[must_use]
    pub fn generation_id(&self) -> Option<GenerationId> {
        self.0.generation_id()
    }

    /// All HINTS sections, in their order. The table of each is read when the iterator comes to it; there may be as many as
    /// fit into the image, of 16 MiB each.
    pub fn stored_hints(&self) -> impl DoubleEndedIterator<Item = StoredHints> {
        self.0.stored_hints()
    }

    /// The hints that have an effect: the last valid section of each kind, in the order of the sections. Only the last [`MOST_HINTS`]
    /// sections are looked at.
    ///
    /// # Errors
    /// [`Error::Io`] if a section cannot be read.
    pub fn hints(&self) -> Result<Vec<HintTable>> {
        self.0.hints()
    }

    /// Whether the image has hints, right or wrong.
    #[must_use]
    pub fn has_hints(&self) -> bool {
        let mut trailers = self.container().trailers.iter();
        trailers.any(|section| section.ty == SectionType::HINTS)
    }
}
