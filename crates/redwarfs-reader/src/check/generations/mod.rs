//! Checks all generations of a file, after a check of its newest one: each section once, whatever number of snapshots
//! needs it.
//!
//! The newest generation comes first, then the older ones. A section that was examined for one of them is not read
//! again. At last come the sections that no snapshot has. They lie in the gaps between the others.
//!
//! `piecewise.rs` does the same for callers that verify the sections themselves.

mod piecewise;

pub use piecewise::FileSections;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::Range;
use std::sync::Arc;

use redwarfs_format::metadata::MetadataView;
use redwarfs_format::section::{
    Container, IndexState, Section, SectionHeader, SectionType, Snapshot, SnapshotTable,
};
use redwarfs_format::{BlockNo, Error, GenerationNo, Result};
use redwarfs_io::Source;

use crate::cache::CacheGroup;
use crate::check::affected::AffectedFiles;
use crate::check::finding::{Finding, FindingKind};
use crate::check::hashes::{self, SectionOutcome};
use crate::check::options::{CheckOptions, VerifyMode};
use crate::check::payload_size::PayloadSize;
use crate::check::scanner::HEADER;
use crate::check::sections::{ListedSection, SectionList};
use crate::check::surroundings::{DIGEST, Uncovered, UncoveredReason};
use crate::check::{CheckReport, contents};
use crate::image::Image;
use crate::options::OpenOptions;
use crate::payload::Payloads;
use crate::{locate, snapshots};

/// Most findings of a report. A table may have a million snapshots that are no generations.
const MOST_FINDINGS: usize = 10_000;

/// The generations of a file, which are to be checked.
#[derive(Debug)]
pub struct GenerationsCheck {
    source: Arc<dyn Source>,
    newest: Container,
    table: SnapshotTable,
    /// The image, if no table is stored: then it has one generation.
    only: Option<Image>,
    open: OpenOptions,
}

/// What a check of all generations found.
#[derive(Debug)]
pub struct GenerationsReport {
    /// The snapshots that are not deleted, in the order of their numbers.
    pub snapshots: Vec<SnapshotReport>,
    /// What is wrong beside the findings of the newest generation.
    pub findings: Vec<OlderFinding>,
    /// Number of the sections that were examined, those of the newest generation among them.
    pub sections: u64,
    /// Bytes that neither this check nor that of the newest generation covers.
    pub uncovered: Vec<Uncovered>,
}

/// A damage that the newest generation does not have.
#[derive(Debug)]
pub struct OlderFinding {
    /// The damage. Numbers of sections and blocks are those of the snapshot's generation.
    pub finding: Finding,
    /// The newest snapshot whose generation has it. None if no snapshot needs the section: then its number is that in
    /// its header.
    pub snapshot: Option<GenerationNo>,
}

/// The result for a snapshot.
#[derive(Debug)]
pub struct SnapshotReport {
    /// Its entry in the table.
    pub snapshot: Snapshot,
    /// What it came to.
    pub verdict: SnapshotVerdict,
}

/// Whether a snapshot can be read.
#[derive(Debug, Clone)]
pub enum SnapshotVerdict {
    /// Everything that it needs is right.
    Good {
        /// Number of its files.
        files: u32,
    },
    /// Something is damaged.
    Damaged {
        /// Number of the findings that concern it.
        errors: u64,
        /// Number of its files.
        files: u32,
        /// Number of the paths that damaged blocks affect, if the tree can be walked.
        affected: Option<u64>,
    },
    /// It cannot be opened.
    Lost(Arc<Error>),
    /// Its data is gone, as the table says.
    Gone,
}

impl SnapshotVerdict {
    /// The name for programs, such as `damaged`.
    #[must_use]
    pub fn name(&self) -> &'static str {
        match self {
            Self::Good { .. } => "ok",
            Self::Damaged { .. } => "damaged",
            Self::Lost(_) => "lost",
            Self::Gone => "gone",
        }
    }

    /// Whether the snapshot cannot be read completely because of damage.
    #[must_use]
    pub fn is_bad(&self) -> bool {
        matches!(self, Self::Damaged { .. } | Self::Lost(_))
    }
}

impl GenerationsCheck {
    /// Finds the generations of the image that `open` chooses. The snapshot that it names does not count.
    ///
    /// # Errors
    /// Those of finding the newest generation, and [`Error::Corrupt`] if no table of snapshots can be read.
    pub fn find(source: Arc<dyn Source>, open: &OpenOptions) -> Result<Self> {
        let mut open = open.clone();
        open.snapshot = None;
        open.lazy_metadata = false;
        let newest = locate::newest(&source, &open)?;
        let shared = Arc::new(newest.clone());
        let payloads = Payloads::new(Arc::clone(&source), shared, 0);
        let (table, only) = match snapshots::table_of(&payloads, &newest)? {
            Some((table, _)) => (table, None),
            None => {
                let image = Image::from_container(Arc::clone(&source), newest.clone(), &open)?;
                (image.snapshot_tables()?.0, Some(image))
            }
        };
        Ok(Self {
            source,
            newest,
            table,
            only,
            open,
        })
    }

    /// Bytes from the start of the image to the end of its newest generation.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        self.newest.size
    }

    /// Checks them. `newest` is from the check of the newest generation with the same options: what that has examined is
    /// not read again. `done` is called with the number of bytes after each piece, on any thread.
    ///
    /// Takes about 200 bytes for each section of the file, and the metadata of one generation.
    #[must_use]
    pub fn check(
        self,
        newest: &CheckReport,
        options: &CheckOptions,
        done: &(dyn Fn(u64) + Sync),
    ) -> GenerationsReport {
        Run::new(&self, newest, options, done).judge_all(newest)
    }
}

/// A section that was examined.
struct Examined {
    outcome: SectionOutcome,
    size: Option<PayloadSize>,
    /// Whether it would have been decoded if the options ask for that.
    could_decode: bool,
}

struct Run<'a> {
    plan: &'a GenerationsCheck,
    options: &'a CheckOptions,
    done: &'a (dyn Fn(u64) + Sync),
    open: OpenOptions,
    /// Sections whose headers are intact, by the offsets of these.
    headers: HashMap<u64, SectionHeader>,
    /// What became of them.
    examined: HashMap<u64, Examined>,
    /// Where sections are whose headers are damaged, in the view of a generation: start and end.
    lost: BTreeMap<u64, u64>,
    /// Findings with a place that are in a report.
    reported: HashSet<(FindingKind, u64)>,
    /// The index of the newest generation, if it is known already that it cannot be opened.
    lost_index: Option<u64>,
    verdicts: BTreeMap<GenerationNo, SnapshotReport>,
    findings: Vec<OlderFinding>,
    /// If nothing is to be read: the offsets of the headers of all sections that are damaged.
    damaged: Option<&'a BTreeSet<u64>>,
}

impl<'a> Run<'a> {
    fn new(
        plan: &'a GenerationsCheck,
        newest: &CheckReport,
        options: &'a CheckOptions,
        done: &'a (dyn Fn(u64) + Sync),
    ) -> Self {
        let mut open = plan.open.clone();
        open.cache_group = Some(CacheGroup::new(&open.cache));
        let index = plan.newest.sections.last();
        let is_lost = |finding: &Finding| finding.kind == FindingKind::Open;
        let is_lost = newest.findings.iter().any(is_lost);
        let mut run = Self {
            plan,
            options,
            done,
            open,
            headers: HashMap::new(),
            examined: HashMap::new(),
            lost: BTreeMap::new(),
            reported: HashSet::new(),
            lost_index: index.filter(|_| is_lost).map(|index| index.header_offset),
            verdicts: BTreeMap::new(),
            findings: Vec::new(),
            damaged: None,
        };
        for (listed, outcome) in newest.list.sections.iter().zip(&newest.outcomes) {
            let size = listed.block.and_then(|block| {
                match newest.block_sizes.get(block.index()) {
                    Some(size) => *size,
                    // They are not known without the metadata.
                    None => listed.payload_size(plan.source.as_ref(), newest.list.offset),
                }
            });
            run.note(listed, outcome.clone(), size, !is_lost);
        }
        let places = newest.findings.iter().filter_map(place_of);
        run.reported.extend(places);
        run
    }

    /// Judges all snapshots.
    fn judge_all(mut self, newest: &CheckReport) -> GenerationsReport {
        let plan = self.plan;
        // Those of an archive are in one generation.
        let mut generations: BTreeMap<u64, Vec<&Snapshot>> = BTreeMap::new();
        for snapshot in plan.table.present() {
            if let Some(image) = &plan.only {
                let blocks = plan.newest.block_count();
                let verdict = verdict(image.metadata(), blocks, &newest.findings);
                self.judge(snapshot, verdict);
                continue;
            }
            match snapshot.end {
                Some(_) => generations
                    .entry(snapshot.index)
                    .or_default()
                    .push(snapshot),
                None => self.judge(snapshot, SnapshotVerdict::Gone),
            }
        }
        let mut rest = generations.iter().rev().peekable();
        while let Some((_, trees)) = rest.next() {
            let older = rest.peek().map_or(0, |(index, _)| **index);
            self.generation(trees, older);
        }
        self.rest();
        self.finish(newest)
    }

    fn note(
        &mut self,
        listed: &ListedSection,
        outcome: SectionOutcome,
        size: Option<PayloadSize>,
        could_decode: bool,
    ) {
        let section = &listed.section;
        let at = section.header_offset;
        let Some(header) = section.header.filter(|_| !listed.lost) else {
            let end = section.payload_offset.saturating_add(section.length);
            // The view with the most sections knows best where it ends.
            let known = self.lost.entry(at).or_insert(end);
            *known = end.min(*known);
            return;
        };
        self.headers.insert(at, header);
        let examined = Examined {
            outcome,
            size,
            could_decode,
        };
        self.examined.insert(at, examined);
    }

    fn judge(&mut self, snapshot: &Snapshot, verdict: SnapshotVerdict) {
        let report = SnapshotReport {
            snapshot: snapshot.clone(),
            verdict,
        };
        self.verdicts.insert(snapshot.number, report);
    }

    /// Examines sections that were not, and adds their outcomes.
    fn examine(&mut self, list: &SectionList, image: Option<&Image>) {
        let decoder = image.filter(|_| self.options.decode);
        let is_new = |listed: &&ListedSection| {
            let known = self.examined.get(&listed.section.header_offset);
            known.is_none_or(|known| !known.could_decode && decoder.is_some())
        };
        let mut fresh = SectionList {
            version: list.version,
            offset: list.offset,
            sections: list.sections.iter().filter(is_new).cloned().collect(),
            index: list.index.clone(),
            trailing: 0,
            findings: Vec::new(),
        };
        let source = self.plan.source.as_ref();
        let outcomes = match self.damaged {
            Some(damaged) => piecewise::outcomes(&fresh, damaged),
            None => hashes::check_all(source, &fresh, decoder, self.options, self.done),
        };
        for (listed, outcome) in fresh.sections.drain(..).zip(outcomes) {
            let size = match listed.block {
                Some(_) => listed.payload_size(source, list.offset),
                None => None,
            };
            self.note(&listed, outcome, size, decoder.is_some());
        }
    }

    /// Lists the sections of the generation of a snapshot.
    fn list(&self, snapshot: &Snapshot) -> Result<(Container, SectionList)> {
        let (source, newest) = (&self.plan.source, &self.plan.newest);
        let container = snapshots::generation(source, newest.offset, snapshot)?;
        let list =
            SectionList::of_generation(source.as_ref(), &container, newest.size, &self.headers)?;
        Ok((container, list))
    }

    /// Checks a generation, which has the trees of some snapshots. The index of the next older one is at `older`.
    fn generation(&mut self, trees: &[&Snapshot], older: u64) {
        let Some(&newest) = trees.last() else {
            return;
        };
        let source = &self.plan.source;
        let (container, mut list) = match self.list(newest) {
            Ok(listed) => listed,
            Err(error) => return self.lost(trees, error),
        };
        let metadata = container
            .sections
            .iter()
            .find(|section| section.ty == SectionType::METADATA_V2);
        // Each has its own, or the same metadata could be read for each.
        if metadata.is_some_and(|section| section.header_offset < older) {
            let what = "its metadata is that of another snapshot";
            return self.lost(trees, Error::corrupt(what));
        }
        let opened = Image::open_tree(Arc::clone(source), container, None, &self.open);
        self.examine(&list, opened.as_ref().ok());
        let outcomes: Vec<SectionOutcome> = list
            .sections
            .iter()
            .map(|listed| {
                let known = self.examined.get(&listed.section.header_offset);
                let known = known.filter(|_| !listed.lost);
                known.map_or(SectionOutcome::Lost, |known| known.outcome.clone())
            })
            .collect();
        let mut findings = list.take_findings();
        findings.extend(
            list.sections
                .iter()
                .zip(&outcomes)
                .filter_map(|(listed, outcome)| {
                    hashes::finding(listed, outcome, self.options.mode)
                }),
        );
        findings.extend(contents::histories(source.as_ref(), &list, &outcomes));
        let image = match opened {
            Ok(image) => image,
            Err(error) => {
                self.report(newest, findings);
                return self.lost(trees, error);
            }
        };
        findings.extend(contents::hints(&image, &list, &outcomes));
        findings.extend(contents::metadata(&image, &list));
        let sizes: Vec<Option<PayloadSize>> = list
            .blocks()
            .map(|listed| {
                let known = self.examined.get(&listed.section.header_offset);
                known.filter(|_| !listed.lost).and_then(|known| known.size)
            })
            .collect();
        let view = image.metadata();
        findings.extend(contents::oversized(view, &list, &sizes));
        if self.options.decode {
            findings.extend(too_large(view, &list, &sizes));
        }
        let blocks = image.container().block_count();
        let found = AffectedFiles::of(view, blocks, &findings)
            .and_then(|files| files.add_to(view, &mut findings));
        if let Err(error) = found {
            let what = "cannot find out which files are affected";
            findings.push(Finding::new(FindingKind::Metadata, what).because(error));
        }
        let identity = image.tree_identity();
        for snapshot in trees {
            let verdict = match &identity {
                Ok(identity) if *identity != snapshot.tree => {
                    Err(snapshots::another_tree(snapshot))
                }
                Ok(_) if snapshot.end != newest.end => {
                    Err(Error::corrupt("the table gives it another end"))
                }
                Ok(_) if snapshot.archived => snapshots::tree_in_archive(view, snapshot, blocks)
                    .map(|tree| verdict(&tree, blocks, &findings)),
                Ok(_) => Ok(verdict(view, blocks, &findings)),
                Err(error) => Err(Error::corrupt(error.to_string())),
            };
            match verdict {
                Ok(verdict) => self.judge(snapshot, verdict),
                Err(error) => self.lost(&[snapshot], error),
            }
        }
        self.report(newest, findings);
    }

    /// Snapshots that cannot be opened.
    fn lost(&mut self, trees: &[&Snapshot], error: Error) {
        let error = Arc::new(error);
        let Some(&newest) = trees.last() else {
            return;
        };
        for snapshot in trees {
            self.judge(snapshot, SnapshotVerdict::Lost(Arc::clone(&error)));
        }
        if self.lost_index == Some(newest.index) {
            return;
        }
        let what = match trees.len() {
            1 => "it cannot be opened".to_owned(),
            2 => "it cannot be opened, nor can another one".to_owned(),
            many => format!("it cannot be opened, nor can {} others", many - 1),
        };
        self.report(
            newest,
            vec![Finding::new(FindingKind::Open, what).because(error)],
        );
    }

    /// Adds findings of the generation of a snapshot that are in no report.
    fn report(&mut self, snapshot: &Snapshot, findings: Vec<Finding>) {
        for finding in findings {
            let is_new = match place_of(&finding) {
                Some(place) => self.reported.insert(place),
                None => true,
            };
            if is_new {
                self.add(finding, Some(snapshot.number));
            }
        }
    }

    fn add(&mut self, finding: Finding, snapshot: Option<GenerationNo>) {
        let finding = match self.findings.len() {
            ..MOST_FINDINGS => finding,
            MOST_FINDINGS => {
                let what = "too much is damaged, the rest is left out";
                Finding::new(FindingKind::Open, what)
            }
            _ => return,
        };
        self.findings.push(OlderFinding { finding, snapshot });
    }

    /// Examines the sections that no snapshot has.
    fn rest(&mut self) {
        let newest = &self.plan.newest;
        if newest.index != IndexState::Valid {
            return;
        }
        let mut known = self.known();
        known.push((newest.size, newest.size));
        let mut sections = Vec::new();
        let mut at = 0;
        for (start, end) in known {
            while let Some(section) = self.section_in(at..start) {
                at = section.payload_offset.saturating_add(section.length);
                // Its content has no meaning.
                if section.ty != SectionType::PAD {
                    sections.push(ListedSection {
                        section,
                        block: None,
                        lost: false,
                    });
                }
            }
            at = at.max(end);
        }
        let list = SectionList {
            version: newest.version,
            offset: newest.offset,
            sections,
            index: IndexState::Valid,
            trailing: 0,
            findings: Vec::new(),
        };
        self.examine(&list, None);
        for listed in &list.sections {
            let examined = self.examined.get(&listed.section.header_offset);
            let found = examined
                .and_then(|examined| hashes::finding(listed, &examined.outcome, self.options.mode));
            let version = listed.section.header.map(|header| header.version);
            let other = version.filter(|version| *version != newest.version);
            let other = other.map(|version| {
                let place = listed.place();
                let what = format!("version {version} in the header of {place}");
                Finding::at(FindingKind::Header, what, place)
            });
            for finding in found.into_iter().chain(other) {
                self.add(finding, None);
            }
        }
    }

    /// Where examined sections are, and those with damaged headers, whose damage is in a report: starts and ends, sorted. A
    /// damaged one ends where the next one begins, at the latest.
    fn known(&self) -> Vec<(u64, u64)> {
        let headers = self.headers.iter();
        let end_of = |at: u64, header: &SectionHeader| {
            at.saturating_add(HEADER).saturating_add(header.length)
        };
        let mut known: Vec<(u64, u64)> = headers
            .map(|(at, header)| (*at, end_of(*at, header)))
            .collect();
        let lost = self
            .lost
            .iter()
            .filter(|(at, _)| !self.headers.contains_key(at));
        known.extend(lost.map(|(at, end)| (*at, *end)));
        known.sort_unstable();
        let starts: Vec<u64> = known.iter().skip(1).map(|(at, _)| *at).collect();
        for ((_, end), next) in known.iter_mut().zip(starts) {
            *end = next.min(*end);
        }
        known
    }

    /// The section at the start of a range, if it lies in the range. Its position is its number.
    fn section_in(&self, range: Range<u64>) -> Option<Section> {
        let mut bytes = [0; SectionHeader::LEN];
        let payload = range.start.checked_add(HEADER)?;
        if payload > range.end {
            return None;
        }
        let at = self.plan.newest.offset.checked_add(range.start)?;
        self.plan.source.read_exact_at(at, &mut bytes).ok()?;
        let header = SectionHeader::parse(&bytes).ok()?;
        let fits = payload.checked_add(header.length)? <= range.end;
        fits.then_some(Section {
            position: header.number,
            number: header.number,
            ty: header.ty,
            compression: Some(header.compression),
            header_offset: range.start,
            payload_offset: payload,
            length: header.length,
            header: Some(header),
        })
    }

    fn finish(self, newest: &CheckReport) -> GenerationsReport {
        let not_again = [UncoveredReason::Older, UncoveredReason::Digests];
        let mut uncovered: Vec<Uncovered> = newest
            .uncovered
            .iter()
            .filter(|one| !not_again.contains(&one.reason))
            .copied()
            .collect();
        let sections = self.examined.len() as u64;
        let container = &self.plan.newest;
        let known = self.known().into_iter();
        let examined = known.fold(0_u64, |sum, (at, end)| {
            sum.saturating_add(end.saturating_sub(at))
        });
        let mut add = |reason, bytes| {
            if bytes > 0 && container.has_hashes() {
                uncovered.push(Uncovered {
                    reason,
                    offset: None,
                    bytes,
                });
            }
        };
        if self.options.mode == VerifyMode::Fast {
            add(UncoveredReason::Digests, sections.saturating_mul(DIGEST));
        }
        add(
            UncoveredReason::Unused,
            container.size.saturating_sub(examined),
        );
        GenerationsReport {
            snapshots: self.verdicts.into_values().collect(),
            findings: self.findings,
            sections,
            uncovered,
        }
    }
}

/// What makes two findings with a place the same one.
fn place_of(finding: &Finding) -> Option<(FindingKind, u64)> {
    finding.section.map(|place| (finding.kind, place.offset))
}

/// Blocks that are larger than the block size of a generation, if they were decoded with that of another one.
fn too_large(
    view: &MetadataView,
    list: &SectionList,
    sizes: &[Option<PayloadSize>],
) -> Vec<Finding> {
    let most = u64::from(view.block_size());
    let blocks = list.blocks().zip(sizes);
    let sized = blocks.filter_map(|(listed, size)| Some((listed.place(), (*size)?.raw?)));
    sized
        .filter(|(_, raw)| *raw > most)
        .map(|(place, raw)| {
            let what = format!("{raw} bytes in {place}, which can have {most}");
            Finding::at(FindingKind::Size, what, place)
        })
        .collect()
}

/// Whether a finding that is not about the data of a block concerns every tree of its generation. A tree does not need the
/// trailers.
fn concerns_all(finding: &Finding) -> bool {
    const NEEDED: [SectionType; 4] = [
        SectionType::METADATA_V2_SCHEMA,
        SectionType::METADATA_V2,
        SectionType::HISTORY,
        SectionType::SECTION_INDEX,
    ];
    match (finding.kind, finding.section) {
        (FindingKind::Open | FindingKind::Metadata, _) => true,
        (_, Some(place)) => place.ty.is_none_or(|ty| NEEDED.contains(&ty)),
        (_, None) => false,
    }
}

/// The verdict for a tree of a generation.
fn verdict(view: &MetadataView, blocks: u32, findings: &[Finding]) -> SnapshotVerdict {
    let files = view.counts().files;
    let (of_blocks, others): (Vec<&Finding>, Vec<&Finding>) = findings
        .iter()
        .partition(|finding| finding.lost_block().is_some());
    let others = others.into_iter().filter(|finding| concerns_all(finding));
    let others = others.count() as u64;
    if others == 0 && of_blocks.is_empty() {
        return SnapshotVerdict::Good { files };
    }
    let mut used: BTreeSet<BlockNo> = BTreeSet::new();
    let mut paths = 0_u64;
    let counted = AffectedFiles::of(view, blocks, findings).and_then(|files| {
        files.for_each_in(view, &mut |_, blocks| {
            used.extend(blocks);
            paths = paths.saturating_add(1);
            Ok(())
        })
    });
    let is_used = |finding: &&&Finding| {
        let block = finding.lost_block();
        counted.is_err() || block.is_some_and(|block| used.contains(&block))
    };
    let errors = others + of_blocks.iter().filter(is_used).count() as u64;
    if errors == 0 {
        return SnapshotVerdict::Good { files };
    }
    SnapshotVerdict::Damaged {
        errors,
        files,
        affected: counted.is_ok().then_some(paths),
    }
}
