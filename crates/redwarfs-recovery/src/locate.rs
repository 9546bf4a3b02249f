//! Finding recovery data in a file of which anything may be damaged.

use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::recovery::{HeaderPage, PAGE};
use redwarfs_format::section::tail_pointer;
use redwarfs_io::Source;

use crate::PIECE;
use crate::error::{Error, Result};
use crate::range::Range;

/// What a page begins with.
const MAGIC: &[u8] = b"DwRSrec1";

/// The recovery data of an image.
#[derive(Debug, Clone, Copy)]
pub struct RecoveryData {
    pub(crate) header: HeaderPage,
    /// Where the image starts in the file; below 0 if the file has lost its start.
    pub(crate) image: i64,
}

impl RecoveryData {
    /// How the protected bytes are cut.
    #[must_use]
    pub fn geometry(&self) -> redwarfs_format::recovery::Geometry {
        self.header.geometry
    }

    /// Where the image starts in the file, or should: below 0 if the file has lost its start.
    #[must_use]
    pub fn image_offset(&self) -> i64 {
        self.image
    }

    /// Size of the whole image, with the recovery data.
    #[must_use]
    pub fn image_size(&self) -> u64 {
        self.header.image_size
    }

    /// The position in the file of an offset of the image. None if the file does not have it.
    pub(crate) fn position(&self, offset: u64) -> Option<u64> {
        self.image.checked_add_unsigned(offset)?.try_into().ok()
    }

    pub(crate) fn range<'s>(&self, source: &'s dyn Source) -> Range<'s> {
        let geometry = self.header.geometry;
        Range {
            source,
            geometry,
            start: self.image.saturating_add(geometry.start()),
            blanks: self.header.blanks,
        }
    }
}

/// Finds the last recovery data of a file, by any of its header pages. Neither the section index nor any
/// other part of the image is needed.
///
/// Time: if the end of the file is intact, a few reads; otherwise the file is searched from its end.
///
/// # Errors
/// [`Error::NotFound`] if there is none that the file ends with; [`Error::Format`] if what is there needs a later
/// version; [`Error::Interrupted`] if `stop` is set.
pub fn locate(source: &dyn Source, stop: &AtomicBool) -> Result<RecoveryData> {
    let len = source.len()?;
    let mut unknown = None;
    let mut end = len;
    while end > 0 {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let start = end.saturating_sub(PIECE as u64);
        // A page that begins in this part ends at most so far behind it.
        let there = (len - start).min((PIECE + PAGE) as u64);
        let mut bytes = vec![0; there as usize];
        read_what_can_be(source, start, &mut bytes)?;
        let starts = (0..(end - start) as usize).rev();
        for at in starts.filter(|&at| bytes.get(at..).is_some_and(|b| b.starts_with(MAGIC))) {
            let Some(page) = bytes.get(at..).and_then(<[u8]>::first_chunk) else {
                continue;
            };
            match HeaderPage::parse(page) {
                Ok((header, position)) => {
                    let at = (start + at as u64).cast_signed();
                    let found = RecoveryData {
                        header,
                        image: at - position.cast_signed(),
                    };
                    if found.ends(source, len)? {
                        return Ok(found);
                    }
                }
                Err(error @ redwarfs_format::Error::Unsupported(_)) => unknown = Some(error),
                Err(_) => {}
            }
        }
        end = start;
    }
    Err(unknown.map_or(Error::NotFound, Error::Format))
}

impl RecoveryData {
    /// Whether the file ends with this data, or inside of it, or with an append that was not finished. Data of an
    /// image inside this one does not, nor does what claims more than the file can hold.
    fn ends(&self, source: &dyn Source, len: u64) -> Result<bool> {
        // One copy of the checksums has to be there.
        if self.header.hash_pages.saturating_mul(PAGE as u64) > len {
            return Ok(false);
        }
        let end = self.position(self.header.image_size).unwrap_or(0);
        if end >= len {
            return Ok(true);
        }
        let mut last = [0; 8];
        source.read_exact_at(len.saturating_sub(last.len() as u64), &mut last)?;
        Ok(u64::from_le_bytes(last) == tail_pointer(self.header.index))
    }

    /// Whether what is in front of the image is as long as when the data was made. Otherwise it is something
    /// else, which is neither compared nor changed.
    pub(crate) fn keeps_front(&self) -> bool {
        u64::try_from(self.image) == Ok(self.header.leading)
    }

    /// Whether a data shard begins in front of the image, where something else is now.
    pub(crate) fn is_foreign(&self, shard: u64) -> bool {
        let geometry = self.header.geometry;
        let (at, _) = geometry.data_range(shard);
        !self.keeps_front() && geometry.start().saturating_add_unsigned(at) < 0
    }
}

/// Reads a range; parts that the medium does not give are zeros.
fn read_what_can_be(source: &dyn Source, at: u64, out: &mut [u8]) -> Result<()> {
    if source.read_exact_at(at, out).is_ok() {
        return Ok(());
    }
    for (number, part) in (0_u64..).zip(out.chunks_mut(PAGE)) {
        if source
            .read_exact_at(at + number * PAGE as u64, part)
            .is_err()
        {
            part.fill(0);
        }
    }
    Ok(())
}
