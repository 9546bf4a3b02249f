//! What the trailers of a generation have in common.

use super::hidden::{Binding, Footer, GenerationId, Prelude, seal_hidden_section};
use super::index::tail_pointer;
use super::{Container, IndexState, SectionHeader, SectionType};

impl Prelude {
    /// The prelude of a section that describes a generation, in the first version of its type.
    #[must_use]
    pub fn of_generation(tag: [u8; 4], generation: GenerationId) -> Self {
        Self {
            tag,
            major: 1,
            minor: 0,
            flags: 0,
            binding: Binding::Generation(generation),
        }
    }
}

/// The generation that trailers belong to: where its index is, and what opening it takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Opening {
    start: u64,
    index: u64,
    /// Where recovery data begins. It is large, so the range ends in front of it.
    most: u64,
}

impl Opening {
    /// Of the generation whose index lists these sections, the last one being the index itself. None if it is
    /// not.
    #[must_use]
    pub fn of_sections(
        sections: impl DoubleEndedIterator<Item = (SectionType, u64)>,
    ) -> Option<Self> {
        let mut sections = sections.rev();
        let (ty, index) = sections.next()?;
        let schema = sections.find(|(ty, _)| *ty == SectionType::METADATA_V2_SCHEMA);
        (ty == SectionType::SECTION_INDEX).then_some(Self {
            start: schema.map_or(index, |(_, at)| at),
            index,
            most: u64::MAX,
        })
    }

    /// Of the generation that a container lists. None if it has no valid index.
    #[must_use]
    pub fn of(container: &Container) -> Option<Self> {
        let sections = container.sections.iter();
        let valid = container.index == IndexState::Valid;
        let opening = Self::of_sections(sections.map(|s| (s.ty, s.header_offset)))?;
        let mut trailers = container.trailers.iter();
        let recovery = trailers.find(|section| section.ty == SectionType::RECOVERY);
        valid.then_some(Self {
            most: recovery.map_or(u64::MAX, |section| section.header_offset),
            ..opening
        })
    }

    /// Offset of the header of the index.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.index
    }

    /// The last bytes of the image after each trailer.
    #[must_use]
    pub fn tail_pointer(&self) -> [u8; 8] {
        tail_pointer(self.index).to_le_bytes()
    }

    /// The end of a trailer. `end` is the offset behind the index and the small trailers so far, by which the range
    /// ends that opening takes. If recovery data is among them, the range ends in front of it.
    #[must_use]
    pub fn footer(&self, end: u64) -> Footer {
        Footer {
            open_offset: self.start,
            open_length: end.min(self.most).saturating_sub(self.start),
            index: Some(self.index),
        }
    }

    /// The header and the payload of a small trailer whose header is at the offset `at`. The range that opening takes
    /// includes it.
    #[must_use]
    pub fn seal_trailer(
        &self,
        at: u64,
        number: u32,
        ty: SectionType,
        prelude: &Prelude,
        body: &[u8],
    ) -> (SectionHeader, Vec<u8>) {
        let length = SectionHeader::LEN + Prelude::LEN + body.len() + Footer::LEN;
        let footer = self.footer(at.saturating_add(length as u64));
        seal_hidden_section(number, ty, prelude, body, &footer)
    }

    /// As [`seal_trailer`](Self::seal_trailer), as one piece.
    #[must_use]
    pub fn encode_trailer(
        &self,
        at: u64,
        number: u32,
        ty: SectionType,
        prelude: &Prelude,
        body: &[u8],
    ) -> Vec<u8> {
        let (header, payload) = self.seal_trailer(at, number, ty, prelude, body);
        [&header.encode()[..], &payload].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::section::HiddenPayload;

    #[test]
    fn a_trailer_belongs_to_what_opening_takes() {
        let list = [
            (SectionType::BLOCK, 0),
            (SectionType::METADATA_V2_SCHEMA, 100),
            (SectionType::METADATA_V2, 200),
            (SectionType::SECTION_INDEX, 300),
        ];
        let opening = Opening::of_sections(list.into_iter()).unwrap();
        assert_eq!(opening.index(), 300);
        let prelude = Prelude::of_generation(*b"DWSN", GenerationId([7; 16]));
        let section = opening.encode_trailer(400, 4, SectionType::SNAPSHOTS, &prelude, b"body");
        assert!(section.ends_with(&opening.tail_pointer()));
        let hidden = HiddenPayload::parse(&section[SectionHeader::LEN..]).unwrap();
        assert_eq!(hidden.prelude, prelude);
        assert_eq!(hidden.footer.open_offset, 100);
        assert_eq!(hidden.footer.open_length, 300 + section.len() as u64);
        assert_eq!(Opening::of_sections(list[..3].iter().copied()), None);
        let short = Opening::of_sections(list[3..].iter().copied()).unwrap();
        assert_eq!(short.footer(340).open_offset, 300);
    }
}
