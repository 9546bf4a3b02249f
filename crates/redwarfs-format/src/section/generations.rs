//! Which sections are the newest generation of an image, and which ones behind it are its trailers.

use std::collections::BTreeMap;

use super::container::{Container, IndexState, Section};
use super::hidden::Footer;
use super::image_range::{ImageRange, IndexError, PART, Walked, next_position};
use super::{FIRST_INDEX_MINOR, SectionHasher, SectionType};
use crate::error::{Error, Result};

const NOT_LISTED: &str = "section index does not list the sections of the image";

/// How many sections there are up to one of them.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Counts {
    /// Those that are not hidden.
    plain: usize,
    metadata: usize,
}

impl Counts {
    pub(super) fn add(&mut self, ty: SectionType) {
        self.plain += usize::from(!ty.is_hidden());
        self.metadata += usize::from(ty == SectionType::METADATA_V2);
    }
}

impl ImageRange<'_> {
    /// The generation of the index that the end of the image points to. `sections` end with that index.
    pub(super) fn with_trailers(&self, sections: Vec<Section>) -> Result<Container> {
        let mut container = self.container(sections, IndexState::Valid);
        container.trailers = self.trailers(&container.sections)?;
        container.size = end_of(container.trailers.last().or(container.sections.last()));
        // What follows is no other image, whose end may point to the same place.
        if !self.another_image(container.size)? {
            container.unused_tail = self.size - container.size;
        }
        Ok(container)
    }

    /// The generation of sections that were found by their headers, up to the end of the image or, if
    /// `find_end`, of the file. `state` says why the end of the file does not lead to one.
    pub(super) fn settle(
        &self,
        walked: Walked,
        state: IndexState,
        find_end: bool,
    ) -> Result<Container> {
        // Who says how long the image is means sections up to there.
        if !find_end && let Some(error) = walked.error {
            return Err(error);
        }
        let mut counts = Counts::default();
        let mut indexes = Vec::new();
        for section in &walked.sections {
            counts.add(section.ty);
            if section.ty == SectionType::SECTION_INDEX {
                indexes.push((section, counts));
            }
        }
        let several = counts.metadata > 1;
        let mut reason = None;
        // Many indexes may list the same metadata.
        let mut checked = BTreeMap::new();
        for (index, counts) in indexes.into_iter().rev() {
            match self.generation(index, counts, &walked.sections)? {
                Ok(sections)
                    if sections.len() == walked.sections.len()
                        || self.metadata_matches(&sections, &mut checked)? =>
                {
                    return self.newest(&walked, sections);
                }
                Ok(_) => {}
                Err(why) => {
                    reason.get_or_insert(why);
                }
            }
        }
        if let Some(error) = walked.error {
            return Err(error);
        }
        let state = match (state, reason) {
            (IndexState::Invalid(reason), _) if walked.end == self.size => {
                IndexState::Invalid(reason)
            }
            (state, _) if self.version.minor < FIRST_INDEX_MINOR && walked.end == self.size => {
                state
            }
            (_, Some(reason)) => IndexState::Invalid(reason),
            (_, None) => IndexState::Absent,
        };
        let mut container = match self.last_pair(&walked.sections)? {
            Some(sections) if several => self.container(
                sections,
                IndexState::Invalid("several generations, and no index of any".into()),
            ),
            _ => self.container(walked.sections, state),
        };
        container.size = walked.end;
        Ok(container)
    }

    /// The newest generation that is complete.
    fn newest(&self, walked: &Walked, sections: Vec<Section>) -> Result<Container> {
        let mut container = self.container(sections, IndexState::Valid);
        container.trailers = self.trailers(&container.sections)?;
        container.size = end_of(container.trailers.last().or(container.sections.last()));
        if container.size < walked.end || walked.error.is_some() {
            container.index = IndexState::Invalid(format!(
                "what follows offset {} is no complete generation",
                container.size
            ));
        }
        Ok(container)
    }

    fn container(&self, sections: Vec<Section>, index: IndexState) -> Container {
        let blocks = sections
            .iter()
            .filter(|section| section.ty == SectionType::BLOCK)
            .map(|section| section.position)
            .collect();
        Container {
            version: self.version,
            offset: self.offset,
            size: self.size,
            sections,
            trailers: Vec::new(),
            unused_tail: 0,
            index,
            blocks,
        }
    }

    /// The sections that an index lists, out of all that were found in front of it and behind it. `counts`
    /// are those up to the index. The inner error says why it cannot be used.
    pub(super) fn generation(
        &self,
        index: &Section,
        counts: Counts,
        all: &[Section],
    ) -> Result<Result<Vec<Section>, String>> {
        if self.version.minor < FIRST_INDEX_MINOR {
            return Ok(Err(format!(
                "section index in an image of format {}",
                self.version
            )));
        }
        let entries = match self.parse_index(index) {
            Ok(entries) => entries,
            Err(IndexError::Io(error)) => return Err(error),
            Err(IndexError::Unusable(reason)) => return Ok(Err(reason)),
        };
        let mut sections = Vec::with_capacity(entries.len());
        for (ty, at) in entries {
            let found = all.binary_search_by_key(&at, |section| section.header_offset);
            match found.ok().and_then(|found| all.get(found)) {
                Some(section) if section.ty == ty => sections.push(Section {
                    position: next_position(&sections)?,
                    ..section.clone()
                }),
                _ => return Ok(Err(NOT_LISTED.into())),
            }
        }
        // Before the index of the only generation, nothing but hidden sections may be left out.
        let listed = sections.iter().filter(|s| !s.ty.is_hidden()).count();
        if counts.metadata <= 1 && listed != counts.plain {
            return Ok(Err(NOT_LISTED.into()));
        }
        Ok(Ok(sections))
    }

    /// The hidden sections behind the index, which is the last of `sections`.
    fn trailers(&self, sections: &[Section]) -> Result<Vec<Section>> {
        let mut trailers: Vec<Section> = Vec::new();
        let Some(index) = sections.last() else {
            return Ok(trailers);
        };
        loop {
            let end = end_of(trailers.last().or(Some(index)));
            let position = next_position(sections)?
                .checked_add(trailers.len() as u32)
                .ok_or_else(|| Error::Limit("more than 2^32 sections".into()))?;
            match self.trailer(position, end, index.header_offset)? {
                Some(section) => trailers.push(section),
                None => return Ok(trailers),
            }
        }
    }

    /// The hidden section at `at` that belongs to an index, if there is one.
    fn trailer(&self, position: u32, at: u64, index: u64) -> Result<Option<Section>> {
        let section = match self.header_at(position, at) {
            Ok(section) => section,
            Err(error @ Error::Io(_)) => return Err(error),
            Err(_) => return Ok(None),
        };
        let mut footer = [0; Footer::LEN];
        let room = section.length.checked_sub(footer.len() as u64);
        let Some(room) = room.filter(|_| section.ty.is_hidden()) else {
            return Ok(None);
        };
        self.read(section.payload_offset + room, &mut footer)?;
        Ok((Footer::parse(&footer).index == Some(index)).then_some(section))
    }

    /// Whether the first two sections of an image are at `at`.
    fn another_image(&self, at: u64) -> Result<bool> {
        let mut at = at;
        for number in 0..2 {
            match self.header_at(number, at) {
                Ok(section) if section.number == number => {
                    at = section.payload_offset + section.length;
                }
                Ok(_) => return Ok(false),
                Err(error @ Error::Io(_)) => return Err(error),
                Err(_) => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Whether the checksums of schema and metadata are right, of which there is one each.
    /// `checked` has what is known of sections by their offsets.
    fn metadata_matches(
        &self,
        sections: &[Section],
        checked: &mut BTreeMap<u64, bool>,
    ) -> Result<bool> {
        let mut found = [0; 2];
        for section in sections {
            let kind = match section.ty {
                SectionType::METADATA_V2_SCHEMA => 0,
                SectionType::METADATA_V2 => 1,
                _ => continue,
            };
            found[kind] += 1;
            let matches = match checked.get(&section.header_offset) {
                Some(matches) => *matches,
                None => {
                    let matches = self.checksum_matches(section)?;
                    checked.insert(section.header_offset, matches);
                    matches
                }
            };
            if !matches {
                return Ok(false);
            }
        }
        Ok(found == [1, 1])
    }

    fn checksum_matches(&self, section: &Section) -> Result<bool> {
        let Some(header) = &section.header else {
            return Ok(false);
        };
        let mut hasher = SectionHasher::xxh(header);
        let mut buffer = vec![0; PART];
        let (mut at, mut left) = (section.payload_offset, section.length);
        while left > 0 {
            let length = usize::try_from(left).map_or(PART, |left| left.min(PART));
            let part = &mut buffer[..length];
            self.read(at, part)?;
            hasher.update(part);
            at += length as u64;
            left -= length as u64;
        }
        Ok(hasher.matches())
    }

    /// The last schema with metadata right behind it, both with the right checksums, the blocks in front
    /// of them and the history behind them.
    fn last_pair(&self, all: &[Section]) -> Result<Option<Vec<Section>>> {
        let mut checked = BTreeMap::new();
        for at in (1..all.len()).rev() {
            let (Some(schema), Some(metadata)) = (all.get(at - 1), all.get(at)) else {
                continue;
            };
            let pair = (schema.ty, metadata.ty);
            if pair != (SectionType::METADATA_V2_SCHEMA, SectionType::METADATA_V2)
                || !self.metadata_matches(&[schema.clone(), metadata.clone()], &mut checked)?
            {
                continue;
            }
            let blocks = all[..at - 1].iter().filter(|s| s.ty == SectionType::BLOCK);
            let history = all.get(at + 1).filter(|s| s.ty == SectionType::HISTORY);
            let sections = blocks.chain([schema, metadata]).chain(history);
            let numbered = (0..).zip(sections).map(|(position, section)| Section {
                position,
                ..section.clone()
            });
            return Ok(Some(numbered.collect()));
        }
        Ok(None)
    }
}

/// Where a section ends; it is inside the image.
fn end_of(section: Option<&Section>) -> u64 {
    section.map_or(0, |section| section.payload_offset + section.length)
}
