//! The sections of an image, by their headers or by the section index.

use super::container::Section;
use super::generations::Counts;
use super::header::V1Header;
use super::hidden::Footer;
use super::index::{self, IndexParser};
use super::{
    CompressionId, FIRST_INDEX_MINOR, FIRST_V2_MINOR, MAGIC, MAJOR, MAX_MINOR, ReadAt,
    SectionHasher, SectionHeader, SectionType, V1_HEADER_LEN, Version,
};
use crate::error::{Error, Result};
use std::ops::{Range, RangeInclusive};

/// Most sections of an image with 8-byte headers. Without this bound, a hole in a sparse file
/// would be an endless row of empty blocks. Images of that time with a million blocks would be
/// larger than a tebibyte.
const MAX_V1_SECTIONS: usize = 1 << 20;

/// Bytes of a section that are read at a time; a multiple of the length of an index entry.
pub(super) const PART: usize = 64 << 10;

/// Lengths of an index that reaches beyond the end of a file which a server sends first (12 KiB to 4 MiB). Some of what is in
/// front of such an index is read with it: that many blocks have much metadata.
const LONG_INDEX: RangeInclusive<u64> = 12 << 10..=4 << 20;
/// Bytes of it for each byte of the index, and at most (256 KiB): the index can be used only when all of this has arrived.
const BEFORE_INDEX: u64 = 4;
const MOST_BEFORE_INDEX: u64 = 256 << 10;

/// The part of a file that is an image with a readable version, and perhaps what follows the image.
pub(super) struct ImageRange<'r> {
    pub(super) read: &'r ReadAt<'r>,
    pub(super) version: Version,
    pub(super) offset: u64,
    pub(super) size: u64,
}

/// Sections that were found one after the other.
pub(super) struct Walked {
    pub(super) sections: Vec<Section>,
    /// Where the last one ends.
    pub(super) end: u64,
    /// Why the walk ended there, if it is neither the end of the image nor that of the file.
    pub(super) error: Option<Error>,
}

pub(super) enum FoundIndex {
    Absent,
    Invalid(String),
    Usable(Vec<Section>),
}

impl<'r> ImageRange<'r> {
    pub(super) fn new(
        read: &'r ReadAt<'r>,
        file_size: u64,
        offset: u64,
        image_size: Option<u64>,
    ) -> Result<Self> {
        let available = file_size.saturating_sub(offset);
        let size = image_size.map_or(available, |size| size.min(available));
        let mut start = [0; V1_HEADER_LEN];
        if size < start.len() as u64 {
            return Err(Error::NotAnImage(format!(
                "image too small ({size} bytes at offset {offset})"
            )));
        }
        read(offset, &mut start)?;
        let [magic @ .., major, minor] = start;
        if magic != MAGIC {
            return Err(Error::NotAnImage(format!(
                "magic not found at offset {offset}"
            )));
        }
        let version = Version { major, minor };
        if major != MAJOR {
            return Err(Error::Unsupported(format!(
                "major version of image format {version}"
            )));
        }
        if minor > MAX_MINOR {
            return Err(Error::Unsupported(format!(
                "minor version of image format {version}"
            )));
        }
        Ok(Self {
            read,
            version,
            offset,
            size,
        })
    }

    /// The image whose end points to an index with a header of a known version. `None` if it does not. If trailers
    /// end it, `will_need` gets the range that they name before the index is read; otherwise a range with the index, if that is
    /// long.
    pub(super) fn by_its_end(
        read: &'r ReadAt<'r>,
        will_need: &dyn Fn(Range<u64>),
        file_size: u64,
        offset: u64,
        image_size: Option<u64>,
    ) -> Result<Option<Self>> {
        let available = file_size.saturating_sub(offset);
        let size = image_size.map_or(available, |size| size.min(available));
        let Some(end_at) = size.checked_sub(Footer::LEN as u64) else {
            return Err(Error::NotAnImage(format!(
                "image too small ({size} bytes at offset {offset})"
            )));
        };
        let mut end = [0; Footer::LEN];
        read(offset + end_at, &mut end)?;
        let footer = Footer::parse(&end);
        let Some(own) = footer.index else {
            return Ok(None);
        };
        let after = own.checked_add(SectionHeader::LEN as u64);
        if after.is_none_or(|after| after > size) {
            return Ok(None);
        }
        // Other bytes than a footer say nothing of this kind.
        let opening = footer.open_offset..footer.open_offset.saturating_add(footer.open_length);
        if opening.contains(&own) && opening.end <= size {
            // With the header of a large trailer behind it.
            let end = opening
                .end
                .saturating_add(SectionHeader::LEN as u64)
                .min(size);
            will_need(offset + opening.start..offset + end);
        } else if LONG_INDEX.contains(&(size - own)) {
            let before = (BEFORE_INDEX * (size - own)).min(MOST_BEFORE_INDEX);
            will_need(offset + own.saturating_sub(before)..offset + size);
        }
        let mut header = [0; SectionHeader::LEN];
        read(offset + own, &mut header)?;
        Ok(SectionHeader::parse(&header)
            .ok()
            .filter(|header| header.ty == SectionType::SECTION_INDEX)
            .map(|header| header.version)
            .filter(|version| {
                version.major == MAJOR && (FIRST_INDEX_MINOR..=MAX_MINOR).contains(&version.minor)
            })
            .map(|version| Self {
                read,
                version,
                offset,
                size,
            }))
    }

    /// Reads at an offset inside the image. The caller has checked that the range is inside.
    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        Ok((self.read)(self.offset + at, out)?)
    }

    /// Lists the sections by their headers, up to the end of the file or, if `find_end`, to the
    /// end of the image.
    pub(super) fn walk(&self, find_end: bool) -> Result<Walked> {
        if self.version.minor < FIRST_V2_MINOR {
            self.walk_v1(find_end)
        } else {
            self.walk_v2(find_end)
        }
    }

    fn walk_v2(&self, find_end: bool) -> Result<Walked> {
        let mut walked = Walked {
            sections: Vec::new(),
            end: 0,
            error: None,
        };
        let mut has_metadata = false;
        let mut counts = Counts::default();
        while walked.end < self.size {
            let at = walked.end;
            let position = next_position(&walked.sections)?;
            if find_end && has_metadata {
                let goes_on = if self.is_complete(&walked.sections, counts)? {
                    self.next_section_fits(at)?
                } else {
                    self.goes_on(at)?
                };
                if !goes_on {
                    break;
                }
            }
            match self.header_at(position, at) {
                Ok(section) => {
                    has_metadata |= section.ty == SectionType::METADATA_V2;
                    counts.add(section.ty);
                    walked.end = section.payload_offset + section.length;
                    walked.sections.push(section);
                }
                Err(error @ Error::Io(_)) => return Err(error),
                Err(error) => {
                    walked.error = Some(error);
                    break;
                }
            }
        }
        Ok(walked)
    }

    /// Whether an image may end after the sections: with the index of a generation, or a hidden section.
    fn is_complete(&self, sections: &[Section], counts: Counts) -> Result<bool> {
        Ok(match sections.last() {
            Some(last) if last.ty == SectionType::SECTION_INDEX => {
                self.generation(last, counts, sections)?.is_ok()
            }
            Some(last) => last.ty.is_hidden(),
            None => false,
        })
    }

    /// Whether a section of this image is at `at`, behind what may be the end.
    fn next_section_fits(&self, at: u64) -> Result<bool> {
        Ok(match self.header_at(0, at) {
            Ok(section) => section
                .header
                .is_some_and(|header| !header.starts_next_image()),
            Err(error @ Error::Io(_)) => return Err(error),
            Err(_) => false,
        })
    }

    /// Whether the data at `at`, after the metadata, belongs to the image: it looks like a section,
    /// perhaps a truncated one, or the index at the end of the file lists it.
    fn goes_on(&self, at: u64) -> Result<bool> {
        let mut bytes = [0; SectionHeader::LEN];
        let there = usize::try_from(self.size - at)
            .unwrap_or(usize::MAX)
            .min(SectionHeader::LEN);
        let (start, _) = bytes.split_at_mut(there);
        self.read(at, start)?;
        let magic = MAGIC.len().min(there);
        if start.get(..magic) == MAGIC.get(..magic) {
            // Otherwise it may be the first section of another image.
            let header = SectionHeader::parse(&bytes);
            return Ok(there < SectionHeader::LEN || header.is_ok_and(|h| !h.starts_next_image()));
        }
        // A section whose header is damaged, followed by sections and an index, or the damaged
        // index itself.
        let Some(own) = self.index_offset()? else {
            return Ok(false);
        };
        if own == at {
            return Ok(true);
        }
        if own < at {
            return Ok(false);
        }
        match self.read_index(own) {
            Ok(_) => Ok(true),
            Err(IndexError::Io(error)) => Err(error),
            Err(IndexError::Unusable(_)) => Ok(false),
        }
    }

    fn walk_v1(&self, find_end: bool) -> Result<Walked> {
        let mut sections: Vec<Section> = Vec::new();
        let mut at = V1_HEADER_LEN as u64;
        while at < self.size {
            // In those releases, no section follows the metadata.
            let is_metadata = |section: &Section| section.ty == SectionType::METADATA_V2;
            if find_end && sections.last().is_some_and(is_metadata) {
                break;
            }
            let position = next_position(&sections)?;
            if sections.len() >= MAX_V1_SECTIONS {
                return Err(Error::Limit(format!(
                    "more than {MAX_V1_SECTIONS} sections in an image of format {}",
                    self.version
                )));
            }
            let payload_offset = self.payload_offset(position, at, V1_HEADER_LEN)?;
            let mut bytes = [0; V1_HEADER_LEN];
            self.read(at, &mut bytes)?;
            let header = V1Header::parse(bytes);
            if header.ty.name().is_none() {
                return Err(Error::corrupt_at(
                    format!("unknown section type {}", header.ty.0),
                    position,
                    at,
                ));
            }
            if header.compression.name().is_none() {
                return Err(Error::corrupt_at(
                    format!("unknown compression id {}", header.compression.0),
                    position,
                    at,
                ));
            }
            let length = u64::from(header.length);
            self.check_length(position, payload_offset, length)?;
            sections.push(Section {
                position,
                number: position,
                ty: header.ty,
                compression: Some(header.compression),
                header_offset: at,
                payload_offset,
                length,
                header: None,
            });
            at = payload_offset + length;
        }
        Ok(Walked {
            sections,
            end: at,
            error: None,
        })
    }

    /// Reads and checks the 64-byte header at `at`.
    pub(super) fn header_at(&self, position: u32, at: u64) -> Result<Section> {
        let payload_offset = self.payload_offset(position, at, SectionHeader::LEN)?;
        let mut bytes = [0; SectionHeader::LEN];
        self.read(at, &mut bytes)?;
        let header = SectionHeader::parse(&bytes).map_err(|error| error.at(position, at))?;
        self.check_length(position, payload_offset, header.length)?;
        Ok(Section {
            position,
            number: header.number,
            ty: header.ty,
            compression: Some(header.compression),
            header_offset: at,
            payload_offset,
            length: header.length,
            header: Some(header),
        })
    }

    /// Like [`Self::header_at`] for a section that an index announced.
    pub(super) fn load(&self, position: u32, ty: SectionType, at: u64) -> Result<Section> {
        let section = self.header_at(position, at)?;
        if section.ty != ty {
            return Err(Error::corrupt_at(
                format!("section is {} but {ty} in the section index", section.ty),
                position,
                at,
            ));
        }
        Ok(section)
    }

    fn payload_offset(&self, position: u32, at: u64, header_len: usize) -> Result<u64> {
        at.checked_add(header_len as u64)
            .filter(|&end| end <= self.size)
            .ok_or_else(|| Error::corrupt_at("truncated section header", position, at))
    }

    fn check_length(&self, position: u32, payload: u64, length: u64) -> Result<()> {
        match payload.checked_add(length) {
            Some(end) if end <= self.size => Ok(()),
            Some(_) => Err(Error::corrupt_at(
                "truncated section data",
                position,
                payload,
            )),
            None => Err(Error::corrupt_at(
                "section length overflow",
                position,
                payload,
            )),
        }
    }

    /// Looks for the index at the end of the image and turns it into sections.
    pub(super) fn find_index(&self) -> Result<FoundIndex> {
        self.find_index_announced(&|_| {})
    }

    /// As [`Self::find_index`]. Passes the range of the file from the first section that is no block to the index to
    /// `will_need` before it reads there.
    pub(super) fn find_index_announced(
        &self,
        will_need: &dyn Fn(Range<u64>),
    ) -> Result<FoundIndex> {
        let Some(own) = self.index_offset()? else {
            return Ok(FoundIndex::Absent);
        };
        let entries = match self.read_index(own) {
            Ok(entries) => entries,
            Err(IndexError::Io(error)) => return Err(error),
            Err(IndexError::Unusable(reason)) => return Ok(FoundIndex::Invalid(reason)),
        };
        let others = entries.iter().filter(|(ty, _)| *ty != SectionType::BLOCK);
        if let Some(first) = others.map(|&(_, at)| at).min() {
            will_need(self.offset + first..self.offset + own);
        }
        let mut sections = Vec::with_capacity(entries.len());
        let ends = entries.iter().skip(1).map(|&(_, at)| at);
        for (&(ty, at), end) in entries.iter().zip(ends.chain([self.size])) {
            let position = next_position(&sections)?;
            if ty == SectionType::BLOCK {
                // In bounds: offsets of a checked index leave room for a header.
                let payload_offset = at + SectionHeader::LEN as u64;
                sections.push(Section {
                    position,
                    number: position,
                    ty,
                    compression: None,
                    header_offset: at,
                    payload_offset,
                    length: end - payload_offset,
                    header: None,
                });
            } else {
                match self.load(position, ty, at) {
                    // What many sections share would be read as often as there are such.
                    Ok(section) if section.payload_offset + section.length > end => {
                        let reason = format!("section {position} reaches into the next one");
                        return Ok(FoundIndex::Invalid(reason));
                    }
                    Ok(section) => sections.push(section),
                    Err(error @ Error::Io(_)) => return Err(error),
                    Err(error) => return Ok(FoundIndex::Invalid(error.to_string())),
                }
            }
        }
        Ok(FoundIndex::Usable(sections))
    }

    /// The position of an index, by the last eight bytes of the image.
    fn index_offset(&self) -> Result<Option<u64>> {
        if self.version.minor < FIRST_INDEX_MINOR {
            return Ok(None);
        }
        let mut last = [0; index::ENTRY_LEN];
        self.read(self.size - last.len() as u64, &mut last)?;
        let (ty, own) = index::split(u64::from_le_bytes(last));
        Ok((ty == SectionType::SECTION_INDEX && own < self.size).then_some(own))
    }

    fn read_index(&self, own: u64) -> Result<Vec<(SectionType, u64)>, IndexError> {
        let section = self.load(0, SectionType::SECTION_INDEX, own)?;
        self.parse_index(&section)
    }

    pub(super) fn parse_index(
        &self,
        section: &Section,
    ) -> Result<Vec<(SectionType, u64)>, IndexError> {
        let unusable = |reason: &str| Err(IndexError::Unusable(reason.into()));
        if section.compression != Some(CompressionId::NONE) {
            return unusable("section index is compressed");
        }
        let Some(header) = &section.header else {
            return unusable("section index has no checksum");
        };
        let structure = |reason| IndexError::Unusable(format!("section index: {reason}"));
        let mut hasher = SectionHasher::xxh(header);
        let mut parser = IndexParser::default();
        let mut buffer = vec![0; PART];
        let mut at = section.payload_offset;
        let end = section.payload_offset + section.length;
        while at < end {
            let length = usize::try_from(end - at).unwrap_or(PART);
            let part = &mut buffer[..length.min(PART)];
            self.read(at, part)?;
            hasher.update(part);
            parser.add(part).map_err(structure)?;
            at += part.len() as u64;
        }
        if !hasher.matches() {
            return unusable("checksum of the section index does not match");
        }
        parser.finish(section.header_offset).map_err(structure)
    }
}

pub(super) enum IndexError {
    Io(Error),
    Unusable(String),
}

impl From<Error> for IndexError {
    fn from(error: Error) -> Self {
        match error {
            Error::Io(_) => Self::Io(error),
            other => Self::Unusable(other.to_string()),
        }
    }
}

/// The position that the next section will have.
pub(super) fn next_position(sections: &[Section]) -> Result<u32> {
    u32::try_from(sections.len())
        .ok()
        .filter(|&position| position < u32::MAX)
        .ok_or_else(|| Error::Limit("more than 2^32 sections".into()))
}
