//! The old version of a file.
//!
//! Its data is searched without its holes, as one row of bytes, so that a file with many short extents is read
//! once. A part of this row is in memory, with a table of its windows. It moves on when the new data does, and what it
//! keeps is not read again.
//!
//! Memory: up to [`SLACK`] on both sides of a piece of new data (24 MiB), 32 bytes for each extent, and a table of about a third of
//! this.

use redwarfs_format::metadata::Extent;

use super::choice::Part;
use super::matches::{Match, SHORTEST, Windows};
use crate::base::{BaseContent, BaseImage};

/// So much further the old version is searched, in both directions.
const SLACK: u64 = 8 << 20;

/// Data of the old version.
#[derive(Debug, Clone, Copy)]
struct OldChunk {
    /// Where it begins in the row.
    start: u64,
    /// Where it begins in the file.
    in_file: u64,
    size: u32,
    block: u32,
    offset: u32,
}

pub(super) struct OldVersion {
    content: BaseContent,
    /// Without gaps.
    pieces: Vec<OldChunk>,
    /// Size of the row, or up to where it can be read.
    size: u64,
    /// The part that is in memory, and where it begins in the row.
    bytes: Vec<u8>,
    start: u64,
    windows: Windows,
}

impl OldVersion {
    /// None if nothing of it can be found.
    pub(super) fn new(image: &dyn BaseImage, content: BaseContent) -> Option<Self> {
        let (mut pieces, mut size, mut in_file) = (Vec::new(), 0_u64, 0_u64);
        for extent in image.extents(content).ok()? {
            match extent {
                Extent::Hole { size } => in_file = in_file.saturating_add(size),
                Extent::Data {
                    block,
                    offset,
                    size: length,
                } => {
                    pieces.push(OldChunk {
                        start: size,
                        in_file,
                        size: length,
                        block: block.0,
                        offset,
                    });
                    size += u64::from(length);
                    in_file = in_file.saturating_add(u64::from(length));
                }
            }
        }
        (size >= SHORTEST as u64).then(|| Self {
            content,
            pieces,
            size,
            bytes: Vec::new(),
            start: 0,
            windows: Windows::default(),
        })
    }

    /// What it has of new data, which begins at an offset of the new file.
    pub(super) fn matches(&mut self, image: &dyn BaseImage, at: u64, new: &[u8]) -> Vec<Match> {
        self.load(image, at, new.len() as u64);
        self.windows.matches(new, &self.bytes)
    }

    /// Where an offset of the file is in the row.
    fn in_row(&self, at: u64) -> u64 {
        let next = self.pieces.partition_point(|piece| piece.in_file <= at);
        let before = next.checked_sub(1).and_then(|last| self.pieces.get(last));
        before.map_or(0, |piece| {
            piece.start + (at - piece.in_file).min(u64::from(piece.size))
        })
    }

    /// Brings what is near a range of the file into memory, unless it is there.
    fn load(&mut self, image: &dyn BaseImage, at: u64, length: u64) {
        let from = self.in_row(at);
        let to = self.in_row(at.saturating_add(length));
        let near = |slack: u64| {
            let start = from.saturating_sub(slack).min(self.size);
            start..to.saturating_add(slack).min(self.size)
        };
        let loaded = self.start..self.start + self.bytes.len() as u64;
        let enough = near(SLACK / 2);
        if !self.bytes.is_empty() && loaded.start <= enough.start && enough.end <= loaded.end {
            return;
        }
        let all = near(SLACK);
        let kept = all.start.max(loaded.start)..all.end.min(loaded.end);
        if kept.is_empty() || kept.start > all.start {
            // Files are read forwards.
            self.bytes.clear();
        } else {
            self.bytes.truncate((kept.end - loaded.start) as usize);
            self.bytes.drain(..(kept.start - loaded.start) as usize);
        }
        self.start = all.start;
        self.read(image, all.end);
        self.windows.index(&self.bytes);
    }

    /// Reads up to an offset of the row.
    fn read(&mut self, image: &dyn BaseImage, end: u64) {
        let mut at = self.start + self.bytes.len() as u64;
        let first = self.pieces.partition_point(|piece| piece.start <= at);
        for piece in self.pieces.iter().skip(first.saturating_sub(1)) {
            let stop = (piece.start + u64::from(piece.size)).min(end);
            while at < stop {
                let filled = self.bytes.len();
                self.bytes.resize(filled + (stop - at) as usize, 0);
                let room = self.bytes.get_mut(filled..).unwrap_or_default();
                let offset = piece.in_file + (at - piece.start);
                match image.read_at(self.content, offset, room) {
                    Ok(n) if n > 0 => {
                        self.bytes.truncate(filled + n);
                        at += n as u64;
                    }
                    // Damaged: what follows is stored as if there were no old version.
                    _ => {
                        self.bytes.truncate(filled);
                        self.size = at;
                        return;
                    }
                }
            }
            if at >= end {
                return;
            }
        }
    }

    /// Where bytes that were found are.
    pub(super) fn places(&self, found: Match, parts: &mut Vec<Part>) {
        let start = self.start + found.old as u64;
        let end = start + found.size as u64;
        let first = self.pieces.partition_point(|piece| piece.start <= start);
        for piece in self.pieces.iter().skip(first.saturating_sub(1)) {
            if piece.start >= end {
                break;
            }
            let from = piece.start.max(start);
            let to = (piece.start + u64::from(piece.size)).min(end);
            if from < to {
                let within = (from - piece.start) as u32;
                parts.push(Part {
                    size: (to - from) as usize,
                    place: Some((piece.block, piece.offset.saturating_add(within))),
                });
            }
        }
    }
}
