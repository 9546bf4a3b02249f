//! Lists the sections of an image that may be damaged anywhere.
//!
//! The scanner reads every header and compares it with its neighbours and with the index. After a
//! damaged header it searches for the next one.

use std::collections::HashMap;

use redwarfs_format::section::{
    CompressionId, Container, IndexState, MAGIC, MAJOR, MAX_MINOR, Section, SectionHasher,
    SectionHeader, SectionType, Version,
};
use redwarfs_format::{BlockNo, Error, Result};
use redwarfs_io::Source;

use super::finding::{Finding, FindingKind, SectionPlace};
use super::sections::{LONG_MINOR, ListedSection, SectionList, UNKNOWN};
use crate::image::Image;
use crate::payload::{PIECE, stream};

/// Length of a section header with hashes.
pub(super) const HEADER: u64 = SectionHeader::LEN as u64;
/// Length of the file header and of section headers without hashes.
const SHORT_HEADER: u64 = 8;
/// First minor version with an index.
pub(super) const INDEX_MINOR: u8 = 4;
/// Most sections of an image without magic in its headers; see `Container`.
const MAX_SHORT: usize = 1 << 20;
/// Most damaged places in the headers that the scanner reports. A file that has more is no image with
/// a damage, and every place costs a search.
const MAX_DAMAGES: usize = 1000;

impl SectionList {
    /// Lists the sections of the image at `offset` of `source`. The image ends after `size` bytes if
    /// its size is known.
    ///
    /// # Errors
    /// [`Error::NotAnImage`] or [`Error::Unsupported`] if there is no image of a known version,
    /// [`Error::Io`] if a header cannot be read, [`Error::Limit`] for more sections than an image
    /// has. Any other damage becomes a finding of the check.
    pub fn read(source: &dyn Source, offset: u64, size: Option<u64>) -> Result<Self> {
        let available = source.len()?.saturating_sub(offset);
        let size = size.map_or(available, |size| size.min(available));
        let mut start = [0; SHORT_HEADER as usize];
        if size < SHORT_HEADER {
            return Err(Error::NotAnImage(format!("image too small ({size} bytes)")));
        }
        source.read_exact_at(offset, &mut start)?;
        let [magic @ .., major, minor] = start;
        if magic != MAGIC {
            return Err(Error::NotAnImage("magic not found".into()));
        }
        let version = Version { major, minor };
        if major != MAJOR || minor > MAX_MINOR {
            return Err(Error::Unsupported(format!("image format {version}")));
        }
        let mut scanner = Scanner::new(source, version, offset, size);
        let index = if minor < LONG_MINOR {
            scanner.walk_short()?;
            IndexState::Absent
        } else {
            scanner.long(minor)?
        };
        let mut list = Self {
            version,
            offset,
            sections: scanner.sections,
            index,
            trailing: scanner.trailing,
            findings: scanner.findings,
        };
        list.find_duplicates();
        Ok(list)
    }

    /// Lists the sections of a generation whose index has been read, and its trailers. The image of all generations has `size`
    /// bytes. Headers in `known` are not read again.
    ///
    /// # Errors
    /// [`Error::Io`] if a header cannot be read.
    pub(super) fn of_generation(
        source: &dyn Source,
        container: &Container,
        size: u64,
        known: &HashMap<u64, SectionHeader>,
    ) -> Result<Self> {
        let mut scanner = Scanner::new(source, container.version, container.offset, size);
        scanner.is_part = true;
        scanner.known = Some(known);
        let sections = container.sections.iter();
        let entries: Vec<_> = sections
            .map(|section| (section.ty, section.header_offset))
            .collect();
        if source.is_remote() {
            let unknown = entries.iter().filter(|(_, at)| !known.contains_key(at));
            let header = |at: u64| {
                let at = container.offset.saturating_add(at);
                at..at.saturating_add(HEADER)
            };
            let headers: Vec<_> = unknown.map(|(_, at)| header(*at)).collect();
            source.will_need(&headers);
        }
        scanner.follow(&entries)?;
        let mut list = Self {
            version: container.version,
            offset: container.offset,
            sections: scanner.sections,
            index: IndexState::Valid,
            trailing: 0,
            findings: scanner.findings,
        };
        list.find_duplicates();
        Ok(list)
    }
}

impl Image {
    /// Lists the sections of this image for a check, from their stored headers.
    ///
    /// # Errors
    /// As [`SectionList::read`].
    pub fn list_sections(&self) -> Result<SectionList> {
        let container = self.container();
        let (offset, size) = (container.offset, container.size);
        if self.is_remote() {
            // Each header would be a round trip.
            let header = |section: &Section| {
                let at = offset.saturating_add(section.header_offset);
                at..at.saturating_add(HEADER)
            };
            let headers: Vec<_> = container.sections.iter().map(header).collect();
            self.source().will_need(&headers);
        }
        let mut list = SectionList::read(self.source().as_ref(), offset, Some(size))?;
        list.trailing = list.trailing.max(self.trailing_bytes());
        if let (IndexState::Invalid(_), IndexState::Valid) = (&container.index, &list.index) {
            list.index = container.index.clone();
        }
        Ok(list)
    }
}

pub(super) struct Scanner<'a> {
    source: &'a dyn Source,
    pub(super) version: Version,
    offset: u64,
    /// From the start of the image to the end of the file.
    pub(super) size: u64,
    pub(super) sections: Vec<ListedSection>,
    findings: Vec<Finding>,
    blocks: u32,
    /// The expected values of the next section header.
    pub(super) next_number: u32,
    trailing: u64,
    /// Whether the sections are those of one generation of many, which says nothing about what lies between them.
    pub(super) is_part: bool,
    /// Headers that need not be read, by their offsets.
    known: Option<&'a HashMap<u64, SectionHeader>>,
}

impl<'a> Scanner<'a> {
    fn new(source: &'a dyn Source, version: Version, offset: u64, size: u64) -> Self {
        Self {
            source,
            version,
            offset,
            size,
            sections: Vec::new(),
            findings: Vec::new(),
            blocks: 0,
            next_number: 0,
            trailing: 0,
            is_part: false,
            known: None,
        }
    }
}

impl Scanner<'_> {
    pub(super) fn read(&self, at: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.source
            .read_exact_at(self.offset.saturating_add(at), out)
    }

    /// The header at `at`, if there is one; its length is not judged.
    pub(super) fn header(&self, at: u64) -> Result<Option<SectionHeader>> {
        if let Some(header) = self.known.and_then(|known| known.get(&at)) {
            return Ok(Some(*header));
        }
        if at.checked_add(HEADER).is_none_or(|end| end > self.size) {
            return Ok(None);
        }
        let mut bytes = [0; SectionHeader::LEN];
        self.read(at, &mut bytes)?;
        Ok(SectionHeader::parse(&bytes).ok())
    }

    /// Whether a header at `at` leaves its payload inside the image.
    pub(super) fn fits(&self, at: u64, length: u64) -> bool {
        at.checked_add(HEADER)
            .and_then(|payload| payload.checked_add(length))
            .is_some_and(|end| end <= self.size)
    }

    pub(super) fn push(
        &mut self,
        ty: SectionType,
        at: u64,
        length: u64,
        header: Option<SectionHeader>,
    ) -> Result<SectionPlace> {
        let position = u32::try_from(self.sections.len())
            .map_err(|_| Error::Limit("more than 2^32 sections".into()))?;
        let block = (ty == SectionType::BLOCK).then(|| {
            self.blocks = self.blocks.saturating_add(1);
            BlockNo(self.blocks - 1)
        });
        let entry = ListedSection {
            section: Section {
                position,
                number: header.map_or(position, |h| h.number),
                ty,
                compression: header.map(|h| h.compression),
                header_offset: at,
                payload_offset: at.saturating_add(HEADER),
                length,
                header,
            },
            block,
            lost: header.is_none(),
        };
        let place = entry.place();
        match &header {
            Some(header) => self.judge(header, &place),
            None => self.next_number = self.next_number.saturating_add(1),
        }
        self.sections.push(entry);
        Ok(place)
    }

    /// What neither of the hashes covers, and the number.
    fn judge(&mut self, header: &SectionHeader, place: &SectionPlace) {
        if header.version != self.version {
            self.findings.push(Finding::at(
                FindingKind::Header,
                format!(
                    "version {} instead of {} in the header of {}",
                    header.version, self.version, place
                ),
                // The data is not affected.
                SectionPlace {
                    block: None,
                    ..*place
                },
            ));
        }
        let follows = header.number == self.next_number || header.fills(self.next_number);
        if !follows && !self.is_part {
            self.findings.push(Finding::at(
                FindingKind::Order,
                format!("number {} in the header of {}", header.number, place),
                *place,
            ));
        }
        self.next_number = header.number.saturating_add(1);
    }

    pub(super) fn lost(&mut self, place: SectionPlace, why: &str) {
        let message = format!("damaged header of {}: {why}", place);
        self.findings
            .push(Finding::at(FindingKind::Header, message, place));
    }

    pub(super) fn gap(&mut self, at: u64, bytes: u64) {
        let message = format!("{bytes} bytes at offset {at} belong to no section");
        self.findings.push(Finding::new(FindingKind::Gap, message));
    }

    /// Goes from header to header.
    pub(super) fn walk_long(&mut self) -> Result<()> {
        let mut at = 0;
        let mut damages = 0;
        while at < self.size {
            let header = self.header(at)?;
            if let Some(header) = header
                && self.fits(at, header.length)
                && !self.is_next_image(&header)
            {
                let end = at.saturating_add(HEADER).saturating_add(header.length);
                self.push(header.ty, at, header.length, Some(header))?;
                at = end;
                continue;
            }
            if header.is_some_and(|h| self.is_next_image(&h)) || self.is_complete() {
                self.trailing = self.size - at;
                return Ok(());
            }
            damages += 1;
            if damages > MAX_DAMAGES {
                let message = "too many damaged headers, the rest is left out".to_owned();
                self.findings
                    .push(Finding::new(FindingKind::Header, message));
                return Ok(());
            }
            at = self.resume(at, header.as_ref())?;
        }
        Ok(())
    }

    /// Nothing but trailers follows the index.
    fn is_complete(&self) -> bool {
        let is_end = |ty: SectionType| ty == SectionType::SECTION_INDEX || ty.is_hidden();
        self.sections
            .last()
            .is_some_and(|e| is_end(e.section.ty) && !e.lost)
    }

    /// Whether this header starts another image.
    fn is_next_image(&self, header: &SectionHeader) -> bool {
        let has = |ty| self.sections.iter().rev().any(|e| e.section.ty == ty);
        header.starts_next_image()
            && !self.sections.is_empty()
            && has(SectionType::METADATA_V2)
            && has(SectionType::METADATA_V2_SCHEMA)
    }

    /// Reports that there is no usable header at `at`, and finds the place to continue.
    fn resume(&mut self, at: u64, header: Option<&SectionHeader>) -> Result<u64> {
        // The length of the previous section may be wrong. Then its checksum is wrong, too, and the
        // next header is inside of its apparent payload.
        if let Some(entry) = self.sections.last()
            && let Some(own) = entry.section.header
            && !entry.lost
            && !self.checksum_is_right(&entry.section, &own)?
        {
            let from = entry.section.header_offset.saturating_add(HEADER);
            let place = entry.place();
            if let Some(next) = self.search(from, at, self.next_number)? {
                let length = next - from;
                let why = format!("its length is {} instead of {length}", entry.section.length);
                if let Some(entry) = self.sections.last_mut() {
                    entry.section.length = length;
                    entry.lost = true;
                }
                self.lost(place, &why);
                return Ok(next);
            }
        }
        let why = match header {
            Some(header) => format!(
                "its length is {} where there are {} bytes",
                header.length,
                self.size.saturating_sub(at).saturating_sub(HEADER)
            ),
            None if self.size - at < HEADER => "it is truncated".to_owned(),
            None => "it has no magic".to_owned(),
        };
        let position = u32::try_from(self.sections.len()).unwrap_or(u32::MAX);
        let after = self.next_number.saturating_add(1);
        let next = self.search(at.saturating_add(1), self.size, after)?;
        let place = SectionPlace {
            position,
            ty: header.map(|h| h.ty),
            block: None,
            offset: at.saturating_add(HEADER),
        };
        let Some(next) = next else {
            let message = format!(
                "damaged header of {}: {why}; nothing can be found behind it",
                place
            );
            self.findings
                .push(Finding::at(FindingKind::Header, message, place));
            return Ok(self.size);
        };
        // The type of a lost section is not known for sure; but nearly all sections are blocks, and
        // nothing but blocks comes before them.
        let number = self.header(next)?.map_or(0, |h| h.number);
        let length = next.saturating_sub(at).saturating_sub(HEADER);
        let ty = header.map_or_else(
            || {
                if self.header(next).ok().flatten().map(|h| h.ty) == Some(SectionType::BLOCK) {
                    SectionType::BLOCK
                } else {
                    UNKNOWN
                }
            },
            |h| h.ty,
        );
        let place = self.push(ty, at, length, None)?;
        self.lost(place, &why);
        // Several sections may be gone in one damage; the numbers tell how many.
        if number > self.next_number {
            let message = format!(
                "{} more sections are lost before number {number}",
                number - self.next_number
            );
            self.findings.push(Finding::new(FindingKind::Gap, message));
            self.next_number = number;
        }
        Ok(next)
    }

    fn checksum_is_right(&self, section: &Section, header: &SectionHeader) -> Result<bool> {
        let mut hasher = SectionHasher::xxh(header);
        let start = self.offset.saturating_add(section.payload_offset);
        let mut buffer = vec![0; PIECE];
        stream(self.source, start, section.length, &mut buffer, |piece| {
            hasher.update(piece);
        })?;
        Ok(hasher.matches())
    }

    /// The first position in `from..end` of a header with at least the number `number` that another
    /// one, or the end of the image, follows.
    fn search(&self, from: u64, end: u64, number: u32) -> Result<Option<u64>> {
        let mut buffer = vec![0; PIECE];
        let mut base = from;
        while base < end {
            base = self
                .source
                .next_data(self.offset.saturating_add(base))?
                .saturating_sub(self.offset);
            if base >= end {
                break;
            }
            let n = usize::try_from(self.size.saturating_sub(base))
                .map_or(PIECE, |left| left.min(PIECE));
            let part = buffer.get_mut(..n).unwrap_or_default();
            self.read(base, part)?;
            let mut skip = 0;
            while let Some(i) = part
                .get(skip..)
                .unwrap_or_default()
                .iter()
                .position(|b| *b == MAGIC[0])
            {
                let i = skip + i;
                skip = i + 1;
                let candidate = base.saturating_add(i as u64);
                if candidate >= end {
                    return Ok(None);
                }
                let rest = part.get(i..).unwrap_or_default();
                if !rest.starts_with(MAGIC.get(..rest.len().min(MAGIC.len())).unwrap_or_default()) {
                    continue;
                }
                if self.is_chained(candidate, number)? {
                    return Ok(Some(candidate));
                }
            }
            if n < PIECE {
                break;
            }
            base = base.saturating_add(n as u64);
        }
        Ok(None)
    }

    fn is_chained(&self, at: u64, number: u32) -> Result<bool> {
        let Some(header) = self.header(at)? else {
            return Ok(false);
        };
        if header.version.major != MAJOR || header.number < number || !self.fits(at, header.length)
        {
            return Ok(false);
        }
        let end = at.saturating_add(HEADER).saturating_add(header.length);
        Ok(end == self.size
            || header.ty == SectionType::SECTION_INDEX
            || self
                .header(end)?
                .is_some_and(|next| next.number == header.number.saturating_add(1)))
    }

    /// Formats 2.0 and 2.1: nothing in these headers could be recognised in a search.
    fn walk_short(&mut self) -> Result<()> {
        let mut at = SHORT_HEADER;
        while at < self.size {
            if self.sections.len() >= MAX_SHORT {
                return Err(Error::Limit(format!("more than {MAX_SHORT} sections")));
            }
            let position = u32::try_from(self.sections.len()).unwrap_or(u32::MAX);
            let payload = at.saturating_add(SHORT_HEADER);
            let place = SectionPlace {
                position,
                ty: None,
                block: None,
                offset: payload,
            };
            if payload > self.size {
                self.lost(place, "it is truncated");
                return Ok(());
            }
            let mut bytes = [0; SHORT_HEADER as usize];
            self.read(at, &mut bytes)?;
            let [t0, t1, compression, _, l0, l1, l2, l3] = bytes;
            let ty = SectionType(u16::from_le_bytes([t0, t1]));
            let compression = CompressionId(compression.into());
            let length = u64::from(u32::from_le_bytes([l0, l1, l2, l3]));
            let end = payload.saturating_add(length);
            if ty.name().is_none() || compression.name().is_none() || end > self.size {
                self.lost(place, "its type, compression or length is impossible");
                return Ok(());
            }
            let block = (ty == SectionType::BLOCK).then(|| {
                self.blocks = self.blocks.saturating_add(1);
                BlockNo(self.blocks - 1)
            });
            self.sections.push(ListedSection {
                section: Section {
                    position,
                    number: position,
                    ty,
                    compression: Some(compression),
                    header_offset: at,
                    payload_offset: payload,
                    length,
                    header: None,
                },
                block,
                lost: false,
            });
            at = end;
        }
        Ok(())
    }
}
