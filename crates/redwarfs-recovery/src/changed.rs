//! Whether bytes that differ from a sidecar are damage, or those of another image.

use std::collections::HashMap;

use redwarfs_format::section::{Container, SectionHasher, SectionHeader};
use redwarfs_io::Source;

use crate::PIECE;
use crate::add::container;

/// The sections of an image, as far as their checksums have been compared.
#[derive(Debug)]
pub(crate) struct SoundSections {
    image: Option<Container>,
    /// By the offsets of their headers: their lengths with the header if both checksums are right.
    known: HashMap<u64, Option<u64>>,
    /// Whether some bytes were found to be those of another image.
    changed: bool,
}

impl SoundSections {
    /// The sections of the image at a place. None if there is no image whose sections can be found.
    pub(crate) fn of(source: &dyn Source, image: i64) -> Self {
        let offset = u64::try_from(image).ok();
        Self {
            image: offset.and_then(|offset| container(source, offset).ok()),
            known: HashMap::new(),
            changed: false,
        }
    }

    /// Whether each byte of a range that differs, relative to the image, is in a section whose checksums are right. Then
    /// the range is as somebody wrote it.
    pub(crate) fn have(&mut self, source: &dyn Source, start: i64, length: u64) -> bool {
        let Ok(start) = u64::try_from(start) else {
            return false;
        };
        if !self.are_sound(source, start, length) {
            return false;
        }
        if !self.changed {
            // A section that was intact may have been damaged since.
            self.known.retain(|_, length| length.is_none());
            self.changed = self.are_sound(source, start, length);
        }
        self.changed
    }

    /// The same, with what is known already.
    fn are_sound(&mut self, source: &dyn Source, start: u64, length: u64) -> bool {
        let Some(image) = &self.image else {
            return false;
        };
        let mut at = start;
        let end = at.saturating_add(length);
        while at < end {
            let behind = image.sections.partition_point(|s| s.header_offset <= at);
            let section = behind.checked_sub(1).and_then(|n| image.sections.get(n));
            let Some(section) = section.map(|section| section.header_offset) else {
                return false;
            };
            let place = image.offset.saturating_add(section);
            let known = self.known.entry(section);
            let length = *known.or_insert_with(|| sound_length(source, place));
            let next = length.map(|length| section.saturating_add(length));
            match next {
                Some(next) if next > at => at = next,
                _ => return false,
            }
        }
        length > 0
    }
}

/// The length of the section at a place with its header, if its checksums are right.
fn sound_length(source: &dyn Source, at: u64) -> Option<u64> {
    let mut bytes = [0; SectionHeader::LEN];
    source.read_exact_at(at, &mut bytes).ok()?;
    let header = SectionHeader::parse(&bytes).ok()?;
    let mut hasher = SectionHasher::both(&header);
    let mut place = at.checked_add(bytes.len() as u64)?;
    let end = place.checked_add(header.length)?;
    if end > source.len().ok()? {
        return None;
    }
    let mut piece = vec![0; PIECE.min(usize::try_from(header.length).unwrap_or(PIECE))];
    while place < end {
        let n = piece
            .len()
            .min(usize::try_from(end - place).unwrap_or(PIECE));
        let piece = piece.get_mut(..n)?;
        source.read_exact_at(place, piece).ok()?;
        hasher.update(piece);
        place += n as u64;
    }
    hasher.matches().then_some(end - at)
}
