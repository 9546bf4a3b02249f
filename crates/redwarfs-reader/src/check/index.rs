//! Reads the section index of an image that may be damaged, and compares the headers with it.

use redwarfs_format::section::{CompressionId, Footer, IndexState, SectionHasher, SectionType};
use redwarfs_format::{Error, Result};

use super::scanner::{HEADER, INDEX_MINOR, Scanner};
use crate::payload::PIECE;

/// Errors of an index.
enum IndexError {
    Io(std::io::Error),
    Unusable(String),
}

impl From<std::io::Error> for IndexError {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl Scanner<'_> {
    /// An image with long headers.
    pub(super) fn long(&mut self, minor: u8) -> Result<IndexState> {
        if minor >= INDEX_MINOR {
            match self.read_index() {
                Ok(Some(entries)) => {
                    self.follow(&entries)?;
                    return Ok(IndexState::Valid);
                }
                Ok(None) => {}
                Err(IndexError::Io(e)) => return Err(e.into()),
                Err(IndexError::Unusable(reason)) => {
                    self.walk_long()?;
                    return Ok(IndexState::Invalid(reason));
                }
            }
        }
        self.walk_long()?;
        // The index that was not found from the end.
        let own = self
            .sections
            .iter()
            .rfind(|e| e.section.ty == SectionType::SECTION_INDEX && !e.lost)
            .map(|e| e.section.header_offset);
        let Some(own) = own else {
            return Ok(IndexState::Absent);
        };
        if minor < INDEX_MINOR {
            let reason = format!("section index in an image of format {}", self.version);
            return Ok(IndexState::Invalid(reason));
        }
        match self.index_at(own) {
            Ok(entries) if self.agrees(&entries) => Ok(IndexState::Valid),
            Ok(_) => Ok(IndexState::Invalid(
                "section index does not list the sections of the image".into(),
            )),
            Err(IndexError::Io(e)) => Err(e.into()),
            Err(IndexError::Unusable(reason)) => Ok(IndexState::Invalid(reason)),
        }
    }

    fn agrees(&self, entries: &[(SectionType, u64)]) -> bool {
        let found = self
            .sections
            .iter()
            .map(|e| (e.section.ty, e.section.header_offset));
        found.eq(entries.iter().copied())
    }

    /// The index whose last entry is at the end of the file, if there is one.
    fn read_index(&self) -> Result<Option<Vec<(SectionType, u64)>>, IndexError> {
        let mut last = [0; 8];
        let Some(at) = self.size.checked_sub(last.len() as u64) else {
            return Ok(None);
        };
        self.read(at, &mut last)?;
        let (ty, own) = split(u64::from_le_bytes(last));
        if ty != SectionType::SECTION_INDEX || own >= self.size {
            return Ok(None);
        }
        self.index_at(own).map(Some)
    }

    fn index_at(&self, own: u64) -> Result<Vec<(SectionType, u64)>, IndexError> {
        let bad = |reason: &str| IndexError::Unusable(reason.to_owned());
        let header = match self.header(own) {
            Ok(Some(header)) => header,
            Ok(None) => return Err(bad("header of the section index is damaged")),
            Err(Error::Io(e)) => return Err(IndexError::Io(e)),
            Err(e) => return Err(IndexError::Unusable(e.to_string())),
        };
        if header.ty != SectionType::SECTION_INDEX {
            return Err(bad("header of the section index is damaged"));
        }
        if header.compression != CompressionId::NONE {
            return Err(bad("section index is compressed"));
        }
        if !self.fits(own, header.length) || header.length % 8 != 0 {
            return Err(bad("length of the section index is wrong"));
        }
        let mut entries: Vec<(SectionType, u64)> = Vec::new();
        let mut hasher = SectionHasher::xxh(&header);
        let mut buffer = vec![0; PIECE];
        let mut done = 0;
        while done < header.length {
            let n = usize::try_from(header.length - done).map_or(PIECE, |left| left.min(PIECE));
            let part = buffer.get_mut(..n).unwrap_or_default();
            self.read(own.saturating_add(HEADER).saturating_add(done), part)?;
            hasher.update(part);
            for bytes in part.as_chunks::<8>().0 {
                let (ty, at) = split(u64::from_le_bytes(*bytes));
                let low = entries
                    .last()
                    .map_or(0, |(_, previous)| previous.saturating_add(HEADER));
                // This bounds the number of entries by the size of the image.
                if at < low || (entries.is_empty() && at != 0) || at > own {
                    return Err(bad("offsets in the section index are not in order"));
                }
                entries.push((ty, at));
            }
            done = done.saturating_add(n as u64);
        }
        if !hasher.matches() {
            return Err(bad("checksum of the section index does not match"));
        }
        if entries.last() != Some(&(SectionType::SECTION_INDEX, own)) {
            return Err(bad("last entry of the section index is not its own"));
        }
        Ok(entries)
    }

    /// Takes the sections from the index and compares the headers with it. Then come its trailers.
    pub(super) fn follow(&mut self, entries: &[(SectionType, u64)]) -> Result<()> {
        let own = entries.last().map_or(0, |(_, at)| *at);
        let length = self.header(own)?.map_or(0, |header| header.length);
        let end = own.saturating_add(HEADER).saturating_add(length);
        let ends = entries.iter().skip(1).map(|(_, at)| *at);
        for (&(ty, at), end) in entries.iter().zip(ends.chain([end])) {
            let room = end.saturating_sub(at).saturating_sub(HEADER);
            let header = self.header(at)?;
            let problem = match &header {
                None => Some("it has no magic".to_owned()),
                Some(h) if h.ty != ty => {
                    Some(format!("it says {}, the section index says {ty}", h.ty))
                }
                Some(h) if h.length > room => Some(format!(
                    "its length is {} where there are {room} bytes",
                    h.length
                )),
                Some(_) => None,
            };
            if let Some(why) = problem {
                let place = self.push(ty, at, room, None)?;
                self.lost(place, &why);
                continue;
            }
            let length = header.map_or(room, |h| h.length);
            let place = self.push(ty, at, length, header)?;
            if length < room && !self.is_part {
                let from = place.offset.saturating_add(length);
                match self.sections_between(from, end)? {
                    Some(dead) => self.next_number = self.next_number.saturating_add(dead),
                    None => self.gap(from, room - length),
                }
            }
        }
        self.trailers(own, end)
    }

    /// The number of sections that fill a range, if sections fill it: those of older generations, which
    /// the index does not list.
    fn sections_between(&self, mut at: u64, end: u64) -> Result<Option<u32>> {
        let mut sections = 0_u32;
        let mut next = self.next_number;
        while at < end {
            let Some(header) = self.header(at)?.filter(|h| self.fits(at, h.length)) else {
                return Ok(None);
            };
            at = at.saturating_add(HEADER).saturating_add(header.length);
            // Otherwise it is the rest of a section that was emptied.
            if !header.fills(next) {
                sections = sections.saturating_add(1);
            }
            next = header.number.saturating_add(1);
        }
        Ok((at == end).then_some(sections))
    }

    /// Takes the hidden sections from `at` on that belong to the index at `own`.
    fn trailers(&mut self, own: u64, mut at: u64) -> Result<()> {
        while let Some(header) = self.header(at)? {
            let mut footer = [0; Footer::LEN];
            let payload = at.saturating_add(HEADER);
            let room = header.length.checked_sub(footer.len() as u64);
            let (Some(room), true) = (room, header.ty.is_hidden() && self.fits(at, header.length))
            else {
                break;
            };
            self.read(payload.saturating_add(room), &mut footer)?;
            if Footer::parse(&footer).index != Some(own) {
                break;
            }
            self.push(header.ty, at, header.length, Some(header))?;
            at = payload.saturating_add(header.length);
        }
        Ok(())
    }
}

/// Type and offset of an entry of the index.
fn split(entry: u64) -> (SectionType, u64) {
    (SectionType((entry >> 48) as u16), entry & ((1 << 48) - 1))
}
