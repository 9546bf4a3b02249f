//! Finds sections by their magic, wherever they are.

use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::section::{
    MAGIC, MAJOR, MAX_MINOR, SectionHasher, SectionHeader, SectionType,
};
use redwarfs_io::Source;

use crate::error::{Error, Result};

/// Bytes that are searched at a time.
const PIECE: usize = 1 << 20;
const HEADER: u64 = SectionHeader::LEN as u64;
/// First minor version with checksums, without which nothing can be told from noise.
const FIRST_MINOR: u8 = 2;
/// Most sections that are remembered: an image of 16 TiB in blocks of 16 MiB has a million.
const MOST: usize = 1 << 22;

/// A section that was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FoundSection {
    /// Offset of its header in the file.
    pub at: u64,
    /// Its header.
    pub header: SectionHeader,
    /// Whether its checksum is right.
    pub intact: bool,
}

impl FoundSection {
    /// Offset behind its payload in the file.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.payload_at().saturating_add(self.header.length)
    }

    /// Offset of its payload in the file.
    #[must_use]
    pub fn payload_at(&self) -> u64 {
        self.at.saturating_add(HEADER)
    }
}

/// A search through a file.
pub(crate) struct Finder<'a> {
    pub(crate) source: &'a dyn Source,
    pub(crate) len: u64,
    pub(crate) done: &'a dyn Fn(u64),
    pub(crate) stop: &'a AtomicBool,
}

impl Finder<'_> {
    /// All sections, in the order of the file. Sections inside the payload of an intact section are not among
    /// them: they belong to an image that is stored there.
    pub(crate) fn all(&self) -> Result<Vec<FoundSection>> {
        let mut found: Vec<FoundSection> = Vec::new();
        let mut at = 0;
        let mut reported = 0;
        while let Some(place) = self.next_magic(at)? {
            (self.done)(place.saturating_sub(reported));
            reported = place;
            at = match self.section(place)? {
                Some(section) if found.len() < MOST => {
                    found.push(section);
                    // A damaged section counts as a whole if the next one begins where it ends.
                    match section.intact || self.is_followed(&section)? {
                        true => section.end(),
                        false => place + 1,
                    }
                }
                _ => place + 1,
            };
        }
        (self.done)(self.len.saturating_sub(reported));
        Ok(found)
    }

    fn stopped(&self) -> Result<()> {
        match self.stop.load(Ordering::Relaxed) {
            true => Err(Error::Interrupted),
            false => Ok(()),
        }
    }

    /// The place of the next magic from `at` on.
    fn next_magic(&self, mut at: u64) -> Result<Option<u64>> {
        let mut buffer = vec![0; PIECE];
        // Pieces overlap, so that no magic is cut.
        let overlap = MAGIC.len() as u64 - 1;
        while at.saturating_add(HEADER) <= self.len {
            self.stopped()?;
            let n = usize::try_from(self.len - at).map_or(PIECE, |left| left.min(PIECE));
            let piece = buffer.get_mut(..n).unwrap_or_default();
            self.source.read_exact_at(at, piece)?;
            let found = piece
                .windows(MAGIC.len())
                .position(|window| window == MAGIC);
            if let Some(found) = found {
                return Ok(Some(at + found as u64));
            }
            if n < PIECE {
                break;
            }
            at += n as u64 - overlap;
        }
        Ok(None)
    }

    /// The header at a place, if it may be one.
    fn header(&self, at: u64) -> Result<Option<SectionHeader>> {
        if at.checked_add(HEADER).is_none_or(|end| end > self.len) {
            return Ok(None);
        }
        let mut bytes = [0; SectionHeader::LEN];
        self.source.read_exact_at(at, &mut bytes)?;
        let Ok(header) = SectionHeader::parse(&bytes) else {
            return Ok(None);
        };
        let version = header.version;
        let known = version.major == MAJOR && (FIRST_MINOR..=MAX_MINOR).contains(&version.minor);
        Ok(Some(header).filter(|_| known))
    }

    fn section(&self, at: u64) -> Result<Option<FoundSection>> {
        let Some(header) = self.header(at)? else {
            return Ok(None);
        };
        let mut section = FoundSection {
            at,
            header,
            intact: false,
        };
        if section.end() <= self.len {
            section.intact = self.is_intact(&section)?;
        }
        Ok(Some(section))
    }

    fn is_intact(&self, section: &FoundSection) -> Result<bool> {
        let mut hasher = SectionHasher::xxh(&section.header);
        let mut buffer = vec![0; PIECE];
        let (mut at, end) = (section.payload_at(), section.end());
        while at < end {
            self.stopped()?;
            let n = usize::try_from(end - at).map_or(PIECE, |left| left.min(PIECE));
            let piece = buffer.get_mut(..n).unwrap_or_default();
            self.source.read_exact_at(at, piece)?;
            hasher.update(piece);
            at += n as u64;
        }
        Ok(hasher.matches())
    }

    /// Whether the next section of the same image begins behind a section.
    fn is_followed(&self, section: &FoundSection) -> Result<bool> {
        let next = self.header(section.end())?;
        Ok(next.is_some_and(|next| {
            next.number == section.header.number.saturating_add(1)
                || next.ty == SectionType::SECTION_INDEX
        }))
    }
}
