//! Comparing the stored bytes of all sections with their hashes, decoding blocks, and finding out
//! which files a damage affects.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::channel;

use redwarfs_format::metadata::Extent;
use redwarfs_format::section::{SectionHasher, SectionType};
use redwarfs_format::{BlockNo, Error, InodeNo};
use redwarfs_io::Source;
use redwarfs_reader::{Image, VerifyMode};

use super::finding::{Affected, Finding, Kind};
use super::payload::{Sizes, decode};
use super::scan::{Entry, Scan};
use crate::common::env;

/// Piece in which payloads are read.
const PIECE: usize = 1 << 20;
/// Most threads that are used.
const MAX_THREADS: usize = 256;
/// Names that are shown of those that a damage affects.
const FIRST: usize = 3;
/// Damaged blocks for which names are collected; for the others they are counted.
const NAMED_BLOCKS: usize = 1000;

/// What became of the bytes of a section.
#[derive(Debug)]
pub(crate) enum Outcome {
    Good,
    /// The section has no hashes (formats 2.0 and 2.1).
    NoHash,
    Mismatch,
    Failed(Error),
    /// The header is damaged, so there is nothing to compare with.
    Lost,
    /// The hashes match, but the payload cannot be decoded.
    Undecodable(Error),
}

/// What to do with the sections.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Work {
    pub(crate) mode: VerifyMode,
    pub(crate) threads: usize,
    /// Decode blocks, with at most so many bytes of memory (but at least a block at a time).
    pub(crate) decode: Option<u64>,
}

/// Verifies all sections; the outcomes are in file order. `image` is needed for decoding, `done`
/// counts the bytes that were verified.
///
/// Every thread needs 1 MiB, or about two and a half blocks where blocks are decoded.
pub(crate) fn verify(
    source: &dyn Source,
    scan: &Scan,
    image: Option<&Image>,
    work: Work,
    done: &AtomicU64,
) -> Vec<Outcome> {
    let mut threads = work
        .threads
        .clamp(1, MAX_THREADS)
        .min(scan.sections.len().max(1));
    let decoding = work.decode.and_then(|memory| Some((image?, memory)));
    if let Some((image, memory)) = decoding {
        let block = u64::from(image.metadata().block_size()).max(1);
        let fitting = memory / block.saturating_mul(5).div_ceil(2);
        threads = threads.min(usize::try_from(fitting).unwrap_or(threads).max(1));
    }
    let decoder = decoding.map(|(image, _)| image);
    let next = AtomicUsize::new(0);
    let mut outcomes: Vec<Option<Outcome>> = Vec::new();
    outcomes.resize_with(scan.sections.len(), || None);
    let affinity = env::affinity("fscheck");
    std::thread::scope(|scope| {
        let (sender, receiver) = channel();
        for number in 1..threads {
            let (sender, next) = (sender.clone(), &next);
            let body = move || {
                if let Some(cpus) = affinity {
                    let _ = cpus.pin_current_thread();
                }
                let mut buffer = vec![0; PIECE];
                loop {
                    let index = next.fetch_add(1, Ordering::Relaxed);
                    let Some(entry) = scan.sections.get(index) else {
                        break;
                    };
                    let outcome =
                        examine(source, scan, entry, work.mode, decoder, &mut buffer, done);
                    if sender.send((index, outcome)).is_err() {
                        break;
                    }
                }
            };
            // The work gets done by fewer threads as well.
            let _ = std::thread::Builder::new()
                .name(format!("fscheck{number}"))
                .spawn_scoped(scope, body);
        }
        drop(sender);
        let mut buffer = vec![0; PIECE];
        let mut put = |index: usize, outcome| {
            if let Some(slot) = outcomes.get_mut(index) {
                *slot = Some(outcome);
            }
        };
        loop {
            while let Ok((index, outcome)) = receiver.try_recv() {
                put(index, outcome);
            }
            let index = next.fetch_add(1, Ordering::Relaxed);
            let Some(entry) = scan.sections.get(index) else {
                break;
            };
            put(
                index,
                examine(source, scan, entry, work.mode, decoder, &mut buffer, done),
            );
        }
        for (index, outcome) in receiver {
            put(index, outcome);
        }
    });
    outcomes
        .into_iter()
        .map(|outcome| {
            outcome.unwrap_or_else(|| {
                Outcome::Failed(std::io::Error::other("it could not be examined").into())
            })
        })
        .collect()
}

fn examine(
    source: &dyn Source,
    scan: &Scan,
    entry: &Entry,
    mode: VerifyMode,
    decoder: Option<&Image>,
    buffer: &mut [u8],
    counter: &AtomicU64,
) -> Outcome {
    let base = scan.offset;
    if entry.lost {
        return Outcome::Lost;
    }
    let section = &entry.section;
    tracing::trace!(bytes = section.length, "verifying {}", entry.place().text());
    let mut hasher = section.header.as_ref().map(|header| match mode {
        VerifyMode::Fast => SectionHasher::xxh(header),
        VerifyMode::Integrity => SectionHasher::both(header),
    });
    let start = base.saturating_add(section.payload_offset);
    let mut done = 0;
    while done < section.length {
        let n = usize::try_from(section.length - done)
            .map_or(buffer.len(), |left| left.min(buffer.len()));
        let part = buffer.get_mut(..n).unwrap_or_default();
        if let Err(e) = source.read_exact_at(start.saturating_add(done), part) {
            return Outcome::Failed(e.into());
        }
        if let Some(hasher) = &mut hasher {
            hasher.update(part);
        }
        done = done.saturating_add(n as u64);
        counter.fetch_add(n as u64, Ordering::Relaxed);
    }
    let outcome = match hasher.map(SectionHasher::matches) {
        None => Outcome::NoHash,
        Some(true) => Outcome::Good,
        Some(false) => return Outcome::Mismatch,
    };
    if let Some(image) = decoder {
        let decoded = match entry.block {
            // Not kept: one block per thread is in memory at a time.
            Some(block) => image.decode_block(block).map(drop),
            None => decode(source, base, section).map(drop),
        };
        if let Err(e) = decoded {
            return Outcome::Undecodable(e);
        }
    }
    outcome
}

/// What the outcomes say.
pub(crate) fn findings(scan: &Scan, outcomes: &[Outcome], mode: VerifyMode) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (entry, outcome) in scan.sections.iter().zip(outcomes) {
        let place = entry.place();
        let text = place.text();
        findings.extend(match outcome {
            Outcome::Good | Outcome::NoHash | Outcome::Lost => None,
            Outcome::Mismatch => {
                let (kind, what) = match mode {
                    VerifyMode::Fast => (Kind::Checksum, "checksum error"),
                    VerifyMode::Integrity => (Kind::Integrity, "integrity check error"),
                };
                Some(Finding::at(kind, format!("{what} in {text}"), place))
            }
            Outcome::Failed(e) => {
                let message = format!("cannot read {text}: {}", plain(e));
                Some(Finding::at(Kind::Read, message, place))
            }
            Outcome::Undecodable(e) => {
                let message = format!("cannot decode {text}: {}", plain(e));
                Some(Finding::at(Kind::Decode, message, place))
            }
        });
    }
    findings
}

/// An error without the place, which is told in another way.
pub(crate) fn plain(error: &Error) -> String {
    match error {
        Error::Corrupt { what, .. } => what.clone(),
        Error::Io(e) => crate::common::error::io_cause(e),
        other => other.to_string(),
    }
}

/// Blocks of which files use more than there is. `sizes` are those of all blocks.
///
/// Takes 8 bytes per block.
pub(crate) fn oversized(image: &Image, scan: &Scan, sizes: &[Option<Sizes>]) -> Vec<Finding> {
    let view = image.metadata();
    let blocks: Vec<&Entry> = scan.sections.iter().filter(|e| e.block.is_some()).collect();
    let mut used = vec![0_u64; blocks.len()];
    // Contents that overlap in the table of chunks would take forever; the check of the metadata
    // finds them.
    let mut left = u64::from(view.counts().chunks);
    for content in 0..view.counts().contents {
        let Ok(extents) = view.content_extents(content) else {
            continue;
        };
        let Some(rest) = left.checked_sub(extents.len() as u64) else {
            break;
        };
        left = rest;
        for extent in extents.flatten() {
            if let Extent::Data {
                block,
                offset,
                size,
            } = extent
                && let Some(most) = used.get_mut(block.index())
            {
                *most = (*most).max(u64::from(offset).saturating_add(u64::from(size)));
            }
        }
    }
    let mut findings = Vec::new();
    for ((entry, used), sizes) in blocks.into_iter().zip(used).zip(sizes) {
        if let Some(raw) = sizes.and_then(|s| s.raw)
            && used > raw
            && !entry.lost
        {
            let place = entry.place();
            let message = format!("files use {used} bytes of {} which has {raw}", place.text());
            findings.push(Finding::at(Kind::Size, message, place));
        }
    }
    findings
}

/// History sections that cannot be decoded although their checksum is right.
pub(crate) fn history(source: &dyn Source, scan: &Scan, outcomes: &[Outcome]) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (entry, outcome) in scan.sections.iter().zip(outcomes) {
        if entry.section.ty != SectionType::HISTORY
            || !matches!(outcome, Outcome::Good | Outcome::NoHash)
        {
            continue;
        }
        let parsed = decode(source, scan.offset, &entry.section)
            .and_then(|raw| redwarfs_format::history::History::parse(&raw));
        if let Err(e) = parsed {
            let place = entry.place();
            let message = format!("cannot decode {}: {}", place.text(), plain(&e));
            findings.push(Finding::at(Kind::Decode, message, place));
        }
    }
    findings
}

/// Takes a path that is affected and the damaged blocks it has data in.
type Found<'a> = dyn FnMut(&[u8], &BTreeSet<BlockNo>) -> redwarfs_format::Result<()> + 'a;

/// The inodes that have data in damaged blocks.
#[derive(Debug, Default)]
pub(crate) struct Damage {
    blocks: BTreeSet<BlockNo>,
    /// One bit per inode.
    inodes: Vec<u64>,
}

impl Damage {
    /// Finds the inodes that use the blocks of `findings`. Takes a bit per inode.
    ///
    /// # Errors
    /// If the metadata does not say.
    pub(crate) fn of(image: &Image, findings: &[Finding]) -> redwarfs_format::Result<Self> {
        let blocks: BTreeSet<BlockNo> = findings.iter().filter_map(Finding::lost_block).collect();
        let mut inodes = Vec::new();
        if !blocks.is_empty() {
            let users = image.block_users()?;
            inodes = vec![0_u64; image.metadata().inode_count() as usize / 64 + 1];
            for inode in blocks.iter().flat_map(|block| users.inodes(*block)) {
                if let Some(word) = inodes.get_mut(inode.0 as usize / 64) {
                    *word |= 1 << (inode.0 % 64);
                }
            }
        }
        Ok(Self { blocks, inodes })
    }

    fn has(&self, inode: InodeNo) -> bool {
        self.inodes
            .get(inode.0 as usize / 64)
            .is_some_and(|word| word >> (inode.0 % 64) & 1 == 1)
    }

    /// Calls `found` with every path that is affected and the damaged blocks it has data in.
    ///
    /// # Errors
    /// If the tree cannot be walked, and those of `found`.
    pub(crate) fn for_each(
        &self,
        image: &Image,
        found: &mut Found<'_>,
    ) -> redwarfs_format::Result<()> {
        if self.blocks.is_empty() {
            return Ok(());
        }
        image.for_each_path_of(|inode| self.has(inode), &mut |inode, path| {
            let mut blocks = BTreeSet::new();
            for extent in image.metadata().extents(inode)? {
                if let Extent::Data { block, .. } = extent?
                    && self.blocks.contains(&block)
                {
                    blocks.insert(block);
                }
            }
            found(&path, &blocks)
        })
    }

    /// Counts the paths that each finding affects and notes the first of them.
    ///
    /// # Errors
    /// As [`Damage::for_each`].
    pub(crate) fn count(
        &self,
        image: &Image,
        findings: &mut [Finding],
    ) -> redwarfs_format::Result<()> {
        let mut affected: BTreeMap<BlockNo, Affected> = self
            .blocks
            .iter()
            .map(|block| (*block, Affected::default()))
            .collect();
        let mut named = 0;
        self.for_each(image, &mut |path, blocks| {
            for block in blocks {
                let Some(affected) = affected.get_mut(block) else {
                    continue;
                };
                affected.count = affected.count.saturating_add(1);
                if affected.first.len() < FIRST && named < NAMED_BLOCKS * FIRST {
                    affected.first.push(path.to_vec());
                    named += 1;
                }
            }
            Ok(())
        })?;
        for finding in findings {
            if let Some(block) = finding.lost_block() {
                finding.affected = affected.get(&block).cloned();
            }
        }
        Ok(())
    }
}
