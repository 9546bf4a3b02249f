//! All sections of a file for a caller that verifies them one by one, and what their damage means for the snapshots.

use std::collections::BTreeSet;

use redwarfs_format::section::{IndexState, Section, SectionType};
use redwarfs_format::{GenerationNo, Result};

use super::{GenerationsCheck, GenerationsReport, Run};
use crate::check::hashes::SectionOutcome;
use crate::check::options::{CheckOptions, VerifyMode};
use crate::check::scanner::HEADER;
use crate::check::sections::{ListedSection, SectionList, UNKNOWN};
use crate::image::Image;

/// All sections of a file.
#[derive(Debug)]
pub struct FileSections {
    /// The sections of all generations, and those that no snapshot has, in the order of their places. The position of
    /// each is the number in its header. Of those whose headers are damaged, only the place is known.
    pub list: SectionList,
    /// Snapshots whose sections cannot be listed, because an index is damaged or is not where the table says.
    pub lost: Vec<GenerationNo>,
}

/// The outcomes of sections that were verified before: damaged ones have the offsets of their headers in the set.
pub(super) fn outcomes(list: &SectionList, damaged: &BTreeSet<u64>) -> Vec<SectionOutcome> {
    let sections = list.sections.iter();
    sections
        .map(
            |listed| match damaged.contains(&listed.section.header_offset) {
                _ if listed.lost => SectionOutcome::Lost,
                true => SectionOutcome::Mismatch,
                false => SectionOutcome::Good,
            },
        )
        .collect()
}

impl GenerationsCheck {
    /// Lists all sections of the file. `newest` is the list of its newest generation. Payloads are not read.
    #[must_use]
    pub fn sections(&self, newest: SectionList) -> FileSections {
        let (none, options) = (BTreeSet::new(), CheckOptions::default());
        let good = outcomes(&newest, &none);
        let mut report = newest.with_outcomes(good, options.mode);
        // Nobody asks for them.
        report.block_sizes = report.list.blocks().map(|_| None).collect();
        let mut run = Run::new(self, &report, &options, &|_| {});
        run.damaged = Some(&none);
        let mut lost = Vec::new();
        let mut indexes = BTreeSet::new();
        let stored = self.table.present().filter(|_| self.only.is_none());
        for snapshot in stored.filter(|snapshot| snapshot.end.is_some()) {
            if !indexes.insert((snapshot.index, snapshot.end)) {
                continue;
            }
            match run.list(snapshot) {
                Ok((_, list)) => list.sections.iter().for_each(|listed| {
                    run.note(listed, SectionOutcome::Good, None, false);
                }),
                Err(_) => lost.push(snapshot.number),
            }
        }
        run.rest();
        let list = SectionList {
            version: self.newest.version,
            offset: self.newest.offset,
            sections: run.sections(),
            index: IndexState::Valid,
            trailing: 0,
            findings: Vec::new(),
        };
        FileSections { list, lost }
    }

    /// What the damage of some sections, given by the offsets of their headers, means for the snapshots. `newest` is the
    /// newest generation. Reads the metadata of each generation, but verifies no section.
    ///
    /// # Errors
    /// Those of [`Image::list_sections`].
    pub fn judge(self, newest: &Image, damaged: &BTreeSet<u64>) -> Result<GenerationsReport> {
        let list = newest.list_sections()?;
        let options = CheckOptions {
            mode: VerifyMode::Integrity,
            ..CheckOptions::default()
        };
        let known = outcomes(&list, damaged);
        let mut report = list.with_outcomes(known, options.mode);
        report.block_sizes = newest.block_sizes(&report.list);
        let mut run = Run::new(&self, &report, &options, &|_| {});
        run.damaged = Some(damaged);
        Ok(run.judge_all(&report))
    }
}

impl Run<'_> {
    /// The sections that are known, in the order of their places.
    fn sections(self) -> Vec<ListedSection> {
        let sound = self.headers.iter().map(|(at, header)| Section {
            position: header.number,
            number: header.number,
            ty: header.ty,
            compression: Some(header.compression),
            header_offset: *at,
            payload_offset: at.saturating_add(HEADER),
            length: header.length,
            header: Some(*header),
        });
        // Its content has no meaning.
        let sound = sound.filter(|section| section.ty != SectionType::PAD);
        let mut sections: Vec<ListedSection> = sound
            .map(|section| ListedSection {
                section,
                block: None,
                lost: false,
            })
            .collect();
        let lost = self.lost.iter();
        let lost = lost.filter(|(at, _)| !self.headers.contains_key(at));
        sections.extend(lost.map(|(at, end)| {
            let payload = at.saturating_add(HEADER);
            ListedSection {
                section: Section {
                    position: 0,
                    number: 0,
                    ty: UNKNOWN,
                    compression: None,
                    header_offset: *at,
                    payload_offset: payload,
                    length: end.saturating_sub(payload),
                    header: None,
                },
                block: None,
                lost: true,
            }
        }));
        sections.sort_unstable_by_key(|listed| listed.section.header_offset);
        sections
    }
}
