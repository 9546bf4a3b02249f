//! The list of sections that a check works on.

use std::collections::BTreeMap;

use redwarfs_format::BlockNo;
use redwarfs_format::section::{IndexState, Section, SectionType, Version};
use redwarfs_io::Source;

use super::finding::{Finding, FindingKind, SectionPlace};
use super::payload_size::PayloadSize;

/// First minor version with hashes in the section headers.
pub(super) const LONG_MINOR: u8 = 2;

/// Type of a section of which only the place is known.
pub(super) const UNKNOWN: SectionType = SectionType(u16::MAX);

/// A section that was found, or that must have been there.
#[derive(Debug, Clone)]
pub struct ListedSection {
    /// The section. If `lost`, only type and place are known.
    pub section: Section,
    /// Block number, if the section is a block.
    pub block: Option<BlockNo>,
    /// Whether the header is damaged.
    pub lost: bool,
}

impl ListedSection {
    /// Where the section is.
    #[must_use]
    pub fn place(&self) -> SectionPlace {
        let ty = self.section.ty;
        SectionPlace {
            position: self.section.position,
            ty: (!self.lost || ty != UNKNOWN).then_some(ty),
            block: self.block,
            offset: self.section.payload_offset,
        }
    }

    /// Sizes of the payload; `None` if the header is damaged. `base` is [`SectionList::offset`].
    #[must_use]
    pub fn payload_size(&self, source: &dyn Source, base: u64) -> Option<PayloadSize> {
        (!self.lost).then(|| PayloadSize::read(source, base, &self.section))
    }
}

/// The sections of an image, which may be damaged anywhere.
///
/// Opening an image gives up at the first damaged header, and reads no block header if there is a
/// section index. The list comes from all headers, each compared with its neighbours and with the
/// index. After damaged headers it continues.
#[derive(Debug)]
pub struct SectionList {
    /// Format version.
    pub version: Version,
    /// Offset of the image in its file.
    pub offset: u64,
    /// The sections of the newest generation in file order, and its trailers.
    pub sections: Vec<ListedSection>,
    /// What became of the section index.
    pub index: IndexState,
    /// Bytes of the file after the last section.
    pub trailing: u64,
    /// The errors of the headers.
    pub(super) findings: Vec<Finding>,
}

impl SectionList {
    /// Whether sections have hashes (formats from 2.2 on).
    #[must_use]
    pub fn has_hashes(&self) -> bool {
        self.version.minor >= LONG_MINOR
    }

    /// Bytes of all payloads that a check reads.
    #[must_use]
    pub fn payload_bytes(&self) -> u64 {
        let sections = self.sections.iter().filter(|listed| !listed.lost);
        sections.fold(0, |sum, listed| sum.saturating_add(listed.section.length))
    }

    /// The blocks in the order of their numbers.
    pub fn blocks(&self) -> impl Iterator<Item = &ListedSection> {
        self.sections.iter().filter(|listed| listed.block.is_some())
    }

    /// The place of the last section of a type.
    pub(super) fn place_of(&self, ty: SectionType) -> Option<SectionPlace> {
        let mut sections = self.sections.iter();
        let found = sections.rfind(|listed| listed.section.ty == ty);
        found.map(ListedSection::place)
    }

    /// Adds findings for types that may occur only once.
    pub(super) fn find_duplicates(&mut self) {
        let mut seen = BTreeMap::new();
        for listed in &self.sections {
            let ty = listed.section.ty;
            let many = ty == SectionType::BLOCK || ty == SectionType::HISTORY || ty.is_hidden();
            if many || listed.lost {
                continue;
            }
            let count = seen.entry(ty.0).or_insert(0_u32);
            *count += 1;
            if *count == 2 {
                let place = listed.place();
                let what = format!("duplicate section: {place}");
                self.findings
                    .push(Finding::at(FindingKind::Duplicate, what, place));
            }
        }
    }

    /// Takes out the errors of the headers and the index.
    pub(super) fn take_findings(&mut self) -> Vec<Finding> {
        let mut findings = std::mem::take(&mut self.findings);
        if let IndexState::Invalid(reason) = &self.index {
            findings.push(Finding {
                section: self.place_of(SectionType::SECTION_INDEX),
                ..Finding::new(
                    FindingKind::Index,
                    format!("the section index is invalid: {reason}"),
                )
            });
        }
        findings
    }
}
