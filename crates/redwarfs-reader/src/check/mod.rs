//! The one verifier: checks an image section by section, and finds the files that damage affects.
//!
//! `dwarfsck` and fuzzing use all of it, rewriting the first two steps without decoding. A check has
//! these steps:
//!
//! 1. `scanner.rs` and `index.rs` list the sections, even if some are damaged ([`SectionList`]).
//! 2. `hashes.rs` compares the stored bytes with the hashes in the headers, on several threads, and
//!    decodes the payloads if the options ask for it ([`SectionOutcome`]).
//! 3. `contents.rs` checks that all data of files lies within their blocks, and that the metadata and
//!    the history are consistent.
//! 4. `surroundings.rs` looks at the bytes around the image ([`Uncovered`]).
//! 5. `affected.rs` finds the files with data in damaged blocks ([`AffectedFiles`]).
//!
//! `generations.rs` then does the same for older generations of the file ([`GenerationsCheck`]).
//!
//! The result is a [`CheckReport`] with a [`Finding`] for each damage. It names at most 1,000 damaged
//! headers.

mod affected;
mod contents;
mod finding;
mod generations;
mod hashes;
mod index;
mod options;
mod payload_size;
mod scanner;
mod sections;
mod surroundings;

use redwarfs_format::Result;
use redwarfs_io::Source;

pub use affected::AffectedFiles;
pub use finding::{AffectedPaths, Declaration, Finding, FindingKind, SectionPlace};
pub use generations::{
    FileSections, GenerationsCheck, GenerationsReport, OlderFinding, SnapshotReport,
    SnapshotVerdict,
};
pub use hashes::SectionOutcome;
pub use options::{CheckOptions, VerifyMode};
pub use payload_size::PayloadSize;
pub use sections::{ListedSection, SectionList};
pub use surroundings::{DeclaredImage, Uncovered, UncoveredReason};

use crate::image::Image;

/// The result of a check.
#[derive(Debug)]
pub struct CheckReport {
    /// The sections.
    pub list: SectionList,
    /// One outcome for each section of the list.
    pub outcomes: Vec<SectionOutcome>,
    /// All findings.
    pub findings: Vec<Finding>,
    /// Sizes of the blocks, in the order of their numbers; `None` for lost ones. Empty unless
    /// [`Image::check`] made the report.
    pub block_sizes: Vec<Option<PayloadSize>>,
    /// The files with data in damaged blocks, if any is damaged and the metadata can be read.
    pub affected: Option<AffectedFiles>,
    /// Bytes of the file that the check does not cover.
    pub uncovered: Vec<Uncovered>,
}

impl CheckReport {
    /// True if nothing is wrong.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        self.findings.is_empty()
    }
}

impl From<SectionList> for CheckReport {
    /// The report of a check that looks at nothing but the list.
    fn from(mut list: SectionList) -> Self {
        Self {
            findings: list.take_findings(),
            list,
            outcomes: Vec::new(),
            block_sizes: Vec::new(),
            affected: None,
            uncovered: Vec::new(),
        }
    }
}

impl SectionList {
    /// Compares all sections of `source` with their hashes. `done` is called with the number of bytes
    /// after each piece, on any thread.
    #[must_use]
    pub fn check(
        self,
        source: &dyn Source,
        options: &CheckOptions,
        done: &(dyn Fn(u64) + Sync),
    ) -> CheckReport {
        self.check_with(source, None, options, done)
    }

    /// The same, and decodes payloads if `decoder` is an image.
    fn check_with(
        self,
        source: &dyn Source,
        decoder: Option<&Image>,
        options: &CheckOptions,
        done: &(dyn Fn(u64) + Sync),
    ) -> CheckReport {
        let outcomes = hashes::check_all(source, &self, decoder, options, done);
        self.with_outcomes(outcomes, options.mode)
    }

    /// The report of a check with these outcomes, one for each section.
    fn with_outcomes(self, outcomes: Vec<SectionOutcome>, mode: VerifyMode) -> CheckReport {
        let mut report = CheckReport::from(self);
        let checked = report.list.sections.iter().zip(&outcomes);
        let mut findings: Vec<Finding> = checked
            .filter_map(|(listed, outcome)| hashes::finding(listed, outcome, mode))
            .collect();
        findings.append(&mut report.findings);
        findings.sort_by_key(|f| f.section.map_or(u32::MAX, |section| section.position));
        CheckReport {
            outcomes,
            findings,
            ..report
        }
    }
}

impl Image {
    /// Lists the sections and compares their hashes.
    ///
    /// # Errors
    /// As [`SectionList::read`]. Damage is not an error but a finding.
    pub fn check_sections(&self, options: &CheckOptions) -> Result<CheckReport> {
        let list = self.list_sections()?;
        Ok(list.check(self.source().as_ref(), options, &|_| {}))
    }

    /// Checks everything: the hashes of the listed sections, the contents of the image, and what
    /// surrounds it. `list` is from [`Image::list_sections`]. `done` is called with the number of
    /// bytes after each piece, on any thread.
    ///
    /// # Errors
    /// [`Error::Io`](crate::Error::Io) if the data after the image cannot be read. Damage is not an
    /// error but a finding.
    pub fn check(
        &self,
        list: SectionList,
        declared: DeclaredImage,
        options: &CheckOptions,
        done: &(dyn Fn(u64) + Sync),
    ) -> Result<CheckReport> {
        let source = self.source().as_ref();
        let block_sizes: Vec<_> = self.block_sizes(&list);
        let decode = options.decode || !list.has_hashes();
        let mut report = list.check_with(source, decode.then_some(self), options, done);
        let (list, findings) = (&report.list, &mut report.findings);
        findings.extend(contents::oversized(self.metadata(), list, &block_sizes));
        findings.extend(contents::histories(source, list, &report.outcomes));
        findings.extend(contents::hints(self, list, &report.outcomes));
        findings.extend(contents::metadata(self, list));
        let around = surroundings::look(self, list, options.mode, declared)?;
        findings.extend(around.findings);
        report.uncovered = around.uncovered;
        report.block_sizes = block_sizes;
        self.find_affected(&mut report);
        Ok(report)
    }

    /// Sizes of all blocks of the list, in the order of their numbers; `None` for lost ones.
    #[must_use]
    pub fn block_sizes(&self, list: &SectionList) -> Vec<Option<PayloadSize>> {
        let source = self.source().as_ref();
        let blocks = list.blocks();
        blocks
            .map(|listed| listed.payload_size(source, list.offset))
            .collect()
    }

    fn find_affected(&self, report: &mut CheckReport) {
        let findings = &mut report.findings;
        if findings.iter().all(|f| f.lost_block().is_none()) {
            return;
        }
        let (view, blocks) = (self.metadata(), self.container().block_count());
        let found = AffectedFiles::of(view, blocks, findings).and_then(|files| {
            files.add_to(view, findings)?;
            Ok(files)
        });
        match found {
            Ok(files) => report.affected = Some(files),
            Err(e) => findings.push(
                Finding::new(
                    FindingKind::Metadata,
                    "cannot find out which files are affected",
                )
                .because(e),
            ),
        }
    }
}
