//! Checking the stored bytes of an image.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use crossbeam_channel::bounded;
use redwarfs_format::section::{
    CompressionId, Container, IndexState, Section, SectionHasher, SectionType,
};
use redwarfs_format::{Error, Result};

use crate::image::Image;
use crate::payload::Payloads;

/// What is compared.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum VerifyMode {
    /// XXH3-64 of every section.
    Fast,
    /// SHA-512/256 of every section, and XXH3-64 as well.
    Integrity,
}

/// What became of a section.
#[derive(Debug)]
pub enum SectionOutcome {
    /// The hashes match.
    Good,
    /// The section has no hashes (formats 2.0 and 2.1).
    NoHash,
    /// A hash differs.
    Mismatch,
    /// The section could not be read.
    Failed(Error),
}

impl SectionOutcome {
    /// True unless something is wrong.
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Good | Self::NoHash)
    }
}

/// Result for one section.
#[derive(Debug)]
pub struct SectionReport {
    /// Position in file order, starting from 0.
    pub position: u32,
    /// Number in the header.
    pub number: u32,
    /// Type.
    pub ty: SectionType,
    /// Compression of the payload.
    pub compression: Option<CompressionId>,
    /// Offset of the header in the file.
    pub offset: u64,
    /// Length of the payload in bytes.
    pub length: u64,
    /// What was found.
    pub outcome: SectionOutcome,
}

/// Result for the whole image.
#[derive(Debug, Default)]
pub struct VerifySummary {
    /// Sections looked at.
    pub sections: usize,
    /// Sections whose bytes are wrong or unreadable.
    pub failed: usize,
    /// Payload bytes read.
    pub bytes: u64,
    /// What is wrong with the image as a whole, one sentence each: an unusable index, section
    /// types that occur twice.
    pub problems: Vec<String>,
}

impl VerifySummary {
    /// True if nothing is wrong.
    pub fn is_ok(&self) -> bool {
        self.failed == 0 && self.problems.is_empty()
    }
}

/// Most threads that are used.
const MAX_THREADS: usize = 256;

impl Image {
    /// Reads every section once and compares its hashes, on `threads` threads (at least one).
    ///
    /// The sections are found by walking their headers, not by the index. `report` is called on
    /// the calling thread, in file order. Every thread needs 1 MiB.
    ///
    /// # Errors
    /// As when opening an image without an index, if the headers do not form a chain. A section
    /// that is wrong is no error but a report.
    pub fn verify(
        &self,
        mode: VerifyMode,
        threads: usize,
        report: &mut dyn FnMut(SectionReport),
    ) -> Result<VerifySummary> {
        let source = self.source();
        let container = Container::open_scanning(
            &|at, buf| source.read_exact_at(at, buf),
            source.len()?,
            self.container().offset,
            self.0.image_size,
        )?;
        let mut summary = VerifySummary {
            problems: problems(&container),
            ..VerifySummary::default()
        };
        let payloads = Payloads::new(
            source.clone(),
            container.into(),
            self.0.payloads.block_size(),
        );
        let sections = &payloads.container().sections;
        let next = AtomicUsize::new(0);
        let stop = AtomicBool::new(false);
        let threads = threads.clamp(1, MAX_THREADS).min(sections.len().max(1));
        std::thread::scope(|scope| {
            // However the scope is left, also by a panic in `report`, the threads end.
            let _stop = StopOnDrop(&stop);
            let (sender, receiver) = bounded(threads * 4);
            let mut spawned = 0;
            for number in 0..threads {
                let (sender, next, stop, payloads) = (sender.clone(), &next, &stop, &payloads);
                let work = move || {
                    while !stop.load(Ordering::Relaxed) {
                        let index = next.fetch_add(1, Ordering::Relaxed);
                        let Some(section) = payloads.container().sections.get(index) else {
                            break;
                        };
                        let outcome = examine(payloads, section, mode);
                        if sender.send((index, outcome)).is_err() {
                            break;
                        }
                    }
                };
                let thread = std::thread::Builder::new().name(format!("redwarfs-ver{number}"));
                match thread.spawn_scoped(scope, work) {
                    Ok(_) => spawned += 1,
                    Err(e) if spawned == 0 => return Err(Error::Io(e)),
                    Err(_) => break,
                }
            }
            drop(sender);
            let mut early = BTreeMap::new();
            let mut expected = 0;
            for (index, outcome) in receiver {
                early.insert(index, outcome);
                while let Some(outcome) = early.remove(&expected)
                    && let Some(section) = sections.get(expected)
                {
                    expected += 1;
                    summary.add(section, &outcome);
                    report(SectionReport {
                        position: section.position,
                        number: section.number,
                        ty: section.ty,
                        compression: section.compression,
                        offset: payloads
                            .container()
                            .offset
                            .saturating_add(section.header_offset),
                        length: section.length,
                        outcome,
                    });
                }
            }
            Ok(())
        })?;
        if summary.sections < sections.len() {
            summary.problems.push(format!(
                "only {} of {} sections could be examined",
                summary.sections,
                sections.len()
            ));
        }
        Ok(summary)
    }
}

impl VerifySummary {
    fn add(&mut self, section: &Section, outcome: &SectionOutcome) {
        self.sections += 1;
        self.failed += usize::from(!outcome.is_ok());
        self.bytes = self.bytes.saturating_add(section.length);
    }
}

struct StopOnDrop<'a>(&'a AtomicBool);

impl Drop for StopOnDrop<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

fn examine(payloads: &Payloads, section: &Section, mode: VerifyMode) -> SectionOutcome {
    let mut hasher = section.header.as_ref().map(|header| match mode {
        VerifyMode::Fast => SectionHasher::xxh(header),
        VerifyMode::Integrity => SectionHasher::both(header),
    });
    let read = payloads.stream(section, |bytes| {
        if let Some(hasher) = &mut hasher {
            hasher.update(bytes);
        }
    });
    match (read, hasher) {
        (Err(e), _) => SectionOutcome::Failed(e),
        (Ok(()), None) => SectionOutcome::NoHash,
        (Ok(()), Some(hasher)) => {
            if hasher.matches() {
                SectionOutcome::Good
            } else {
                SectionOutcome::Mismatch
            }
        }
    }
}

fn problems(container: &Container) -> Vec<String> {
    let mut problems = Vec::new();
    if let IndexState::Invalid(reason) = &container.index {
        problems.push(format!("the section index is invalid: {reason}"));
    }
    let mut seen = BTreeSet::new();
    let mut reported = BTreeSet::new();
    for section in &container.sections {
        if section.ty == SectionType::BLOCK || section.ty == SectionType::HISTORY {
            continue;
        }
        if !seen.insert(section.ty.0) && reported.insert(section.ty.0) {
            problems.push(format!("more than one {} section", section.ty));
        }
    }
    problems
}
