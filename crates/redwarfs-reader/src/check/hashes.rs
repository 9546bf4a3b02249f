//! Compares the stored bytes of all sections with their hashes, and decodes the payloads if the options
//! ask for it.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crossbeam_channel::unbounded;
use redwarfs_format::Error;
use redwarfs_format::section::SectionHasher;
use redwarfs_io::Source;

use super::finding::{Finding, FindingKind};
use super::options::{CheckOptions, VerifyMode};
use super::payload_size::decode_small;
use super::sections::{ListedSection, SectionList};

use crate::image::Image;
use crate::payload::{PIECE, stream};
use crate::sys::pin;

/// Sections that a source on a server begins to fetch before they are examined.
const FETCHED_AHEAD: usize = 8;

/// Largest number of threads.
const MAX_THREADS: usize = 256;

/// The result of the check of one section.
#[derive(Debug, Clone)]
pub enum SectionOutcome {
    /// The hashes match.
    Good,
    /// The section has no hashes (formats 2.0 and 2.1).
    NoHash,
    /// A hash differs.
    Mismatch,
    /// The section cannot be read.
    Failed(Arc<Error>),
    /// The header is damaged, so there is no hash to compare with.
    Lost,
    /// The hashes match, but the payload cannot be decoded.
    Undecodable(Arc<Error>),
}

impl SectionOutcome {
    /// True unless there is an error.
    #[must_use]
    pub fn is_ok(&self) -> bool {
        matches!(self, Self::Good | Self::NoHash)
    }
}

/// The check of one section after the other, by several threads.
struct SectionCheck<'a> {
    source: &'a dyn Source,
    list: &'a SectionList,
    mode: VerifyMode,
    /// The image, if payloads are decoded.
    decoder: Option<&'a Image>,
    /// Called with the number of bytes after each piece.
    done: &'a (dyn Fn(u64) + Sync),
    next: AtomicUsize,
    /// Sections before this one have been announced to the source.
    announced: AtomicUsize,
}

/// Checks all sections of `list`. The outcomes are in file order. If `decoder` is an image, payloads
/// are decoded as well.
///
/// Every thread needs 1 MiB, or about two and a half blocks if blocks are decoded.
pub(super) fn check_all(
    source: &dyn Source,
    list: &SectionList,
    decoder: Option<&Image>,
    options: &CheckOptions,
    done: &(dyn Fn(u64) + Sync),
) -> Vec<SectionOutcome> {
    let check = SectionCheck {
        source,
        list,
        mode: options.mode,
        decoder,
        done,
        next: AtomicUsize::new(0),
        announced: AtomicUsize::new(0),
    };
    let mut outcomes: Vec<Option<SectionOutcome>> = Vec::new();
    outcomes.resize_with(list.sections.len(), || None);
    std::thread::scope(|scope| {
        let (sender, receiver) = unbounded();
        for number in 1..threads(list, decoder, options) {
            let (sender, check) = (sender.clone(), &check);
            let work = move || {
                pin(options.affinity);
                let mut buffer = vec![0; PIECE];
                while let Some(found) = check.next(&mut buffer) {
                    if sender.send(found).is_err() {
                        break;
                    }
                }
            };
            // Fewer threads are enough.
            let _ = std::thread::Builder::new()
                .name(format!("redwarfs-chk{number}"))
                .spawn_scoped(scope, work);
        }
        drop(sender);
        let mut put = |(index, outcome): (usize, _)| {
            if let Some(place) = outcomes.get_mut(index) {
                *place = Some(outcome);
            }
        };
        let mut buffer = vec![0; PIECE];
        while let Some(found) = check.next(&mut buffer) {
            put(found);
            receiver.try_iter().for_each(&mut put);
        }
        receiver.iter().for_each(put);
    });
    let missing = || failed(std::io::Error::other("it could not be examined"));
    let outcomes = outcomes.into_iter();
    outcomes
        .map(|outcome| outcome.unwrap_or_else(missing))
        .collect()
}

/// Number of threads of the check, including the calling one.
fn threads(list: &SectionList, decoder: Option<&Image>, options: &CheckOptions) -> usize {
    let threads = options
        .threads
        .clamp(1, MAX_THREADS)
        .min(list.sections.len().max(1));
    let Some(image) = decoder else {
        return threads;
    };
    let block = u64::from(image.metadata().block_size()).max(1);
    let fitting = options.memory / block.saturating_mul(5).div_ceil(2);
    threads.min(usize::try_from(fitting).unwrap_or(threads).max(1))
}

impl SectionCheck<'_> {
    /// Checks the next section; returns its index and the outcome.
    fn next(&self, buffer: &mut [u8]) -> Option<(usize, SectionOutcome)> {
        let index = self.next.fetch_add(1, Ordering::Relaxed);
        let listed = self.list.sections.get(index)?;
        if self.source.is_remote() {
            self.announce(index);
        }
        Some((index, self.examine(listed, buffer)))
    }

    /// Lets the source fetch some sections from this one on.
    fn announce(&self, index: usize) {
        let end = index
            .saturating_add(FETCHED_AHEAD)
            .min(self.list.sections.len());
        let from = self.announced.load(Ordering::Relaxed);
        // In groups, so that neighbours are one request.
        let wanted = from < end && from < index.saturating_add(FETCHED_AHEAD / 2);
        let took = |to| {
            self.announced
                .compare_exchange(from, to, Ordering::Relaxed, Ordering::Relaxed)
        };
        if !wanted || took(end).is_err() {
            return;
        }
        let group = self.list.sections.get(from..end).unwrap_or_default();
        let ranges: Vec<Range<u64>> = group
            .iter()
            .map(|listed| {
                let start = self
                    .list
                    .offset
                    .saturating_add(listed.section.payload_offset);
                start..start.saturating_add(listed.section.length)
            })
            .collect();
        self.source.will_need(&ranges);
    }

    fn examine(&self, listed: &ListedSection, buffer: &mut [u8]) -> SectionOutcome {
        if listed.lost {
            return SectionOutcome::Lost;
        }
        let section = &listed.section;
        tracing::trace!(bytes = section.length, "verifying {}", listed.place());
        let mut hasher = section.header.as_ref().map(|header| match self.mode {
            VerifyMode::Fast => SectionHasher::xxh(header),
            VerifyMode::Integrity => SectionHasher::both(header),
        });
        let start = self.list.offset.saturating_add(section.payload_offset);
        let read = stream(self.source, start, section.length, buffer, |piece| {
            if let Some(hasher) = &mut hasher {
                hasher.update(piece);
            }
            (self.done)(piece.len() as u64);
        });
        if let Err(e) = read {
            return failed(e);
        }
        let outcome = match hasher.map(SectionHasher::matches) {
            None => SectionOutcome::NoHash,
            Some(true) => SectionOutcome::Good,
            Some(false) => return SectionOutcome::Mismatch,
        };
        let Some(image) = self.decoder else {
            return outcome;
        };
        let decoded = match listed.block {
            // Dropped at once: each thread has one block in memory.
            Some(block) => image.decode_block(block).map(drop),
            None => decode_small(self.source, self.list.offset, section).map(drop),
        };
        match decoded {
            Ok(()) => outcome,
            Err(e) => SectionOutcome::Undecodable(Arc::new(e)),
        }
    }
}

fn failed(error: std::io::Error) -> SectionOutcome {
    SectionOutcome::Failed(Arc::new(error.into()))
}

/// The finding for an outcome. Lost headers are findings of the list already.
pub(super) fn finding(
    listed: &ListedSection,
    outcome: &SectionOutcome,
    mode: VerifyMode,
) -> Option<Finding> {
    let place = listed.place();
    match outcome {
        SectionOutcome::Good | SectionOutcome::NoHash | SectionOutcome::Lost => None,
        SectionOutcome::Mismatch => {
            let (kind, what) = match mode {
                VerifyMode::Fast => (FindingKind::Checksum, "checksum error"),
                VerifyMode::Integrity => (FindingKind::Integrity, "integrity check error"),
            };
            Some(Finding::at(kind, format!("{what} in {place}"), place))
        }
        SectionOutcome::Failed(e) => {
            let what = format!("cannot read {place}");
            Some(Finding::at(FindingKind::Read, what, place).because(Arc::clone(e)))
        }
        SectionOutcome::Undecodable(e) => {
            let what = format!("cannot decode {place}");
            Some(Finding::at(FindingKind::Decode, what, place).because(Arc::clone(e)))
        }
    }
}
