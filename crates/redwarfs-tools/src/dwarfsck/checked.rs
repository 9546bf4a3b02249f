//! The result of inspecting or checking an image, from which all output is made.

use std::sync::Arc;

use redwarfs_format::frozen::Schema;
use redwarfs_format::section::{SectionType, SnapshotTable};
use redwarfs_format::{BlockNo, Error};
use redwarfs_io::Source;
use redwarfs_reader::Image;
use redwarfs_reader::check::{
    CheckReport, GenerationsReport, ListedSection, PayloadSize, Uncovered,
};

/// An image, or the usable part of one, and the findings of its check.
pub(super) struct Checked {
    pub(super) source: Arc<dyn Source>,
    /// None if it cannot be opened.
    pub(super) image: Option<Image>,
    /// Without outcomes if nothing was verified.
    pub(super) report: CheckReport,
    /// What a check of all generations found beside it.
    pub(super) generations: Option<GenerationsReport>,
    /// The snapshots of the file, if a check of its newest one has found any.
    pub(super) snapshots: Option<SnapshotTable>,
    /// Whether this was a check, and not only a look.
    pub(super) verified: bool,
}

impl Checked {
    /// What no check covers.
    pub(super) fn uncovered(&self) -> &[Uncovered] {
        match &self.generations {
            Some(generations) => &generations.uncovered,
            None => &self.report.uncovered,
        }
    }

    /// Sizes of a section.
    pub(super) fn sizes(&self, listed: &ListedSection) -> Option<PayloadSize> {
        match listed.block {
            Some(BlockNo(block)) if !self.report.block_sizes.is_empty() => {
                let sizes = self.report.block_sizes.get(block as usize);
                sizes.copied().flatten()
            }
            _ => listed.payload_size(self.source.as_ref(), self.report.list.offset),
        }
    }

    /// The schema of the metadata.
    pub(super) fn schema(&self) -> redwarfs_format::Result<Schema> {
        let none = || Error::corrupt("no METADATA_V2_SCHEMA section");
        let image = self.image.as_ref().ok_or_else(none)?;
        let mut sections = image
            .container()
            .section_of_type(SectionType::METADATA_V2_SCHEMA);
        let section = sections.next().ok_or_else(none)?;
        Schema::parse(&image.decode_section(section)?)
    }
}
