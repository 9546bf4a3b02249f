//! Copies of files that are to be repaired.

use std::ops::Range;
use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_io::{Medium, Source};

use crate::PIECE;
use crate::error::{Error, Result};
use crate::locate::RecoveryData;

/// Bytes of which one that cannot be read makes all unreadable, and that are left out of the copy if they are zeros.
const SMALL: usize = 4096;

/// A copy of a file of which some bytes could not be read.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Copied {
    /// Ranges of the copy that have zeros instead. They are in order, and do not touch.
    unreadable: Vec<Range<u64>>,
}

impl Copied {
    /// Ranges of the copy, relative to the image, that have zeros because the file could not be read there, and that
    /// nothing restores. `data` is the recovery data that was found for the copy.
    ///
    /// # Errors
    /// [`Error::Io`] if the length of the copy is not known.
    pub fn zeros(&self, data: &RecoveryData, copy: &dyn Source) -> Result<Vec<(i64, u64)>> {
        let image = data.image_offset();
        let relative = |at: u64| at.cast_signed().saturating_sub(image);
        let mut zeros = Vec::new();
        let blanks = data.parts.iter().flat_map(|part| part.header.blanks);
        let blanks = blanks.map(|blank| (blank.start, blank.length));
        for (start, length) in data.unprotected(copy)?.into_iter().chain(blanks) {
            let end = start.saturating_add_unsigned(length);
            for range in &self.unreadable {
                let from = relative(range.start).max(start);
                let to = relative(range.end).min(end);
                if from < to {
                    zeros.push((from, to.abs_diff(from)));
                }
            }
        }
        zeros.sort_unstable();
        Ok(zeros)
    }

    fn add(&mut self, at: u64, length: u64) {
        match self.unreadable.last_mut() {
            Some(last) if last.end == at => last.end += length,
            _ => self.unreadable.push(at..at + length),
        }
    }
}

impl RecoveryData {
    /// Copies a file to `out`, an empty one, so that the copy can be repaired. Bytes that the file has lost at its start
    /// become zeros, and so does what cannot be read. Zeros are not written: they are holes, if the file system has
    /// holes. `done` gets the number of bytes after each piece.
    ///
    /// # Errors
    /// [`Error::LostTooMuch`] if more is lost at the start than can be restored, [`Error::Io`] if the copy cannot be
    /// written, [`Error::Interrupted`] if `stop` is set.
    pub fn copy(
        &self,
        file: &dyn Source,
        out: &dyn Medium,
        done: &dyn Fn(u64),
        stop: &AtomicBool,
    ) -> Result<Copied> {
        let lost = self.lost_at_start()?;
        let len = file.len()?;
        let end = lost.checked_add(len);
        let end = end.ok_or_else(|| std::io::Error::from(std::io::ErrorKind::FileTooLarge))?;
        out.set_len(end)?;
        let mut copied = Copied::default();
        let mut buffer = vec![0; PIECE];
        let mut at = 0;
        while at < len {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            // A medium that does not know its holes, or fails here, is read.
            let next = file.next_data(at).unwrap_or(at).clamp(at, len);
            if next > at {
                done(next - at);
                at = next;
                continue;
            }
            let n = usize::try_from(len - at).map_or(PIECE, |left| left.min(PIECE));
            let piece = buffer.get_mut(..n).unwrap_or_default();
            if file.read_exact_at(at, piece).is_err() {
                for (place, small) in (at..).step_by(SMALL).zip(piece.chunks_mut(SMALL)) {
                    if file.read_exact_at(place, small).is_err() {
                        small.fill(0);
                        copied.add(lost + place, small.len() as u64);
                    }
                }
            }
            write_data(out, lost + at, piece)?;
            done(n as u64);
            at += n as u64;
        }
        Ok(copied)
    }
}

/// Writes what is not zero.
fn write_data(out: &dyn Medium, mut at: u64, piece: &[u8]) -> Result<()> {
    let is_zero = |small: &[u8]| small.iter().all(|byte| *byte == 0);
    let runs = piece.chunks(SMALL).collect::<Vec<_>>();
    let mut rest = piece;
    for run in runs.chunk_by(|a, b| is_zero(a) == is_zero(b)) {
        let length = run.iter().map(|small| small.len()).sum();
        let (data, behind) = rest.split_at(length);
        if !is_zero(data) {
            out.write_all_at(at, data)?;
        }
        at += length as u64;
        rest = behind;
    }
    Ok(())
}
