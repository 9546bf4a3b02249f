//! Listing the sections of an image that may be damaged anywhere.
//!
//! Opening an image gives up at the first header that is wrong, or does not look at headers at all
//! if there is an index. Here every header is read and compared with its neighbours and with the
//! index, and the walk goes on behind what is damaged.

use redwarfs_format::section::{
    CompressionId, MAGIC, MAJOR, Section, SectionHasher, SectionHeader, SectionType, Version,
};
use redwarfs_format::{BlockNo, Error, Result};
use redwarfs_io::Source;

use super::finding::{Finding, Kind, Place};

/// Length of a section header with hashes.
const HEADER: u64 = SectionHeader::LEN as u64;
/// Length of the file header and of section headers without hashes.
const SHORT_HEADER: u64 = 8;
/// First minor versions with long headers and with an index.
const LONG_MINOR: u8 = 2;
const INDEX_MINOR: u8 = 4;
/// Piece in which the index and the neighbourhood of damaged headers are read.
const PIECE: usize = 1 << 20;
/// Most sections of an image without magic in its headers; see `Container`.
const MAX_SHORT: usize = 1 << 20;
/// Most damaged places in the headers that are looked for and reported. A file that has more is no
/// image with a damage, and every place costs a search.
const MAX_DAMAGES: usize = 1000;

/// What became of the index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Index {
    Absent,
    Valid,
    Invalid(String),
}

/// A section that was found, or of which is known that it should be there.
#[derive(Debug, Clone)]
pub(crate) struct Entry {
    pub(crate) section: Section,
    pub(crate) block: Option<BlockNo>,
    /// Its header cannot be used, so nothing but type and place is known.
    pub(crate) lost: bool,
}

/// Type of a section of which nothing is known but that it was there.
const UNKNOWN: SectionType = SectionType(u16::MAX);

impl Entry {
    pub(crate) fn place(&self) -> Place {
        let ty = self.section.ty;
        Place {
            position: self.section.position,
            ty: (!self.lost || ty != UNKNOWN).then_some(ty),
            block: self.block,
            offset: self.section.payload_offset,
        }
    }
}

/// The sections of an image and what is wrong with their headers.
#[derive(Debug)]
pub(crate) struct Scan {
    pub(crate) version: Version,
    /// Where the image starts in its file.
    pub(crate) offset: u64,
    pub(crate) sections: Vec<Entry>,
    pub(crate) index: Index,
    pub(crate) findings: Vec<Finding>,
    /// Bytes of the file behind the last section.
    pub(crate) trailing: u64,
}

/// Lists the sections of the image at `offset` of `source`, which ends after `size` bytes if that is
/// known.
///
/// # Errors
/// `NotAnImage` or `Unsupported` for what is no image of a known version, `Io` if a header cannot be
/// read, `Limit` for more sections than an image has. Any other damage is a finding.
pub(crate) fn scan(source: &dyn Source, offset: u64, size: Option<u64>) -> Result<Scan> {
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
    if major != MAJOR || minor > redwarfs_format::section::MAX_MINOR {
        return Err(Error::Unsupported(format!("image format {version}")));
    }
    let mut scanner = Scanner {
        source,
        version,
        offset,
        size,
        sections: Vec::new(),
        findings: Vec::new(),
        blocks: 0,
        next_number: 0,
        trailing: 0,
    };
    let index = if minor < LONG_MINOR {
        scanner.walk_short()?;
        Index::Absent
    } else {
        scanner.long(minor)?
    };
    let mut scan = Scan {
        version,
        offset,
        sections: scanner.sections,
        index,
        findings: scanner.findings,
        trailing: scanner.trailing,
    };
    scan.duplicates();
    Ok(scan)
}

impl Scan {
    pub(crate) fn has_hashes(&self) -> bool {
        self.version.minor >= LONG_MINOR
    }

    /// Types that may be there only once.
    fn duplicates(&mut self) {
        let mut seen = std::collections::BTreeMap::new();
        for entry in &self.sections {
            let ty = entry.section.ty;
            if ty == SectionType::BLOCK || ty == SectionType::HISTORY || entry.lost {
                continue;
            }
            let count = seen.entry(ty.0).or_insert(0_u32);
            *count += 1;
            if *count == 2 {
                let place = entry.place();
                let message = format!("duplicate section: {}", place.text());
                self.findings
                    .push(Finding::at(Kind::Duplicate, message, place));
            }
        }
    }
}

struct Scanner<'a> {
    source: &'a dyn Source,
    version: Version,
    offset: u64,
    /// From the start of the image to the end of the file.
    size: u64,
    sections: Vec<Entry>,
    findings: Vec<Finding>,
    blocks: u32,
    /// What the header of the next section has to say.
    next_number: u32,
    trailing: u64,
}

/// Why an index cannot be used.
enum Bad {
    Io(std::io::Error),
    Reason(String),
}

impl From<std::io::Error> for Bad {
    fn from(error: std::io::Error) -> Self {
        Self::Io(error)
    }
}

impl Scanner<'_> {
    fn read(&self, at: u64, out: &mut [u8]) -> std::io::Result<()> {
        self.source
            .read_exact_at(self.offset.saturating_add(at), out)
    }

    /// The header at `at`, if there is one; its length is not judged.
    fn header(&self, at: u64) -> Result<Option<SectionHeader>> {
        if at.checked_add(HEADER).is_none_or(|end| end > self.size) {
            return Ok(None);
        }
        let mut bytes = [0; SectionHeader::LEN];
        self.read(at, &mut bytes)?;
        Ok(SectionHeader::parse(&bytes).ok())
    }

    /// Whether a header at `at` leaves its payload inside the image.
    fn fits(&self, at: u64, length: u64) -> bool {
        at.checked_add(HEADER)
            .and_then(|payload| payload.checked_add(length))
            .is_some_and(|end| end <= self.size)
    }

    fn push(
        &mut self,
        ty: SectionType,
        at: u64,
        length: u64,
        header: Option<SectionHeader>,
    ) -> Result<Place> {
        let position = u32::try_from(self.sections.len())
            .map_err(|_| Error::Limit("more than 2^32 sections".into()))?;
        let block = (ty == SectionType::BLOCK).then(|| {
            self.blocks = self.blocks.saturating_add(1);
            BlockNo(self.blocks - 1)
        });
        let entry = Entry {
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
    fn judge(&mut self, header: &SectionHeader, place: &Place) {
        if header.version != self.version {
            self.findings.push(Finding::at(
                Kind::Header,
                format!(
                    "version {} instead of {} in the header of {}",
                    header.version,
                    self.version,
                    place.text()
                ),
                // The data is not affected.
                Place {
                    block: None,
                    ..*place
                },
            ));
        }
        if header.number != self.next_number {
            self.findings.push(Finding::at(
                Kind::Order,
                format!("number {} in the header of {}", header.number, place.text()),
                *place,
            ));
        }
        self.next_number = header.number.saturating_add(1);
    }

    fn lost(&mut self, place: Place, why: &str) {
        let message = format!("damaged header of {}: {why}", place.text());
        self.findings
            .push(Finding::at(Kind::Header, message, place));
    }

    /// An image with long headers.
    fn long(&mut self, minor: u8) -> Result<Index> {
        if minor >= INDEX_MINOR {
            match self.read_index() {
                Ok(Some(entries)) => {
                    self.follow(&entries)?;
                    return Ok(Index::Valid);
                }
                Ok(None) => {}
                Err(Bad::Io(e)) => return Err(e.into()),
                Err(Bad::Reason(reason)) => {
                    self.walk_long()?;
                    return Ok(Index::Invalid(reason));
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
            return Ok(Index::Absent);
        };
        if minor < INDEX_MINOR {
            let reason = format!("section index in an image of format {}", self.version);
            return Ok(Index::Invalid(reason));
        }
        match self.index_at(own) {
            Ok(entries) if self.agrees(&entries) => Ok(Index::Valid),
            Ok(_) => Ok(Index::Invalid(
                "section index does not list the sections of the image".into(),
            )),
            Err(Bad::Io(e)) => Err(e.into()),
            Err(Bad::Reason(reason)) => Ok(Index::Invalid(reason)),
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
    fn read_index(&self) -> Result<Option<Vec<(SectionType, u64)>>, Bad> {
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

    fn index_at(&self, own: u64) -> Result<Vec<(SectionType, u64)>, Bad> {
        let bad = |reason: &str| Bad::Reason(reason.to_owned());
        let header = match self.header(own) {
            Ok(Some(header)) => header,
            Ok(None) => return Err(bad("header of the section index is damaged")),
            Err(Error::Io(e)) => return Err(Bad::Io(e)),
            Err(e) => return Err(Bad::Reason(e.to_string())),
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

    /// Takes the sections from the index and compares the headers with it.
    fn follow(&mut self, entries: &[(SectionType, u64)]) -> Result<()> {
        let ends = entries.iter().skip(1).map(|(_, at)| *at);
        for (&(ty, at), end) in entries.iter().zip(ends.chain([self.size])) {
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
            if length < room {
                self.gap(place.offset.saturating_add(length), room - length);
            }
        }
        Ok(())
    }

    fn gap(&mut self, at: u64, bytes: u64) {
        let message = format!("{bytes} bytes at offset {at} belong to no section");
        self.findings.push(Finding::new(Kind::Gap, message));
    }

    /// Goes from header to header.
    fn walk_long(&mut self) -> Result<()> {
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
                self.findings.push(Finding::new(Kind::Header, message));
                return Ok(());
            }
            at = self.resume(at, header.as_ref())?;
        }
        Ok(())
    }

    /// Nothing follows the index.
    fn is_complete(&self) -> bool {
        self.sections
            .last()
            .is_some_and(|e| e.section.ty == SectionType::SECTION_INDEX && !e.lost)
    }

    /// Whether this header starts another image.
    fn is_next_image(&self, header: &SectionHeader) -> bool {
        let has = |ty| self.sections.iter().rev().any(|e| e.section.ty == ty);
        header.starts_next_image()
            && !self.sections.is_empty()
            && has(SectionType::METADATA_V2)
            && has(SectionType::METADATA_V2_SCHEMA)
    }

    /// Reports that there is no usable header at `at` and finds where to go on.
    fn resume(&mut self, at: u64, header: Option<&SectionHeader>) -> Result<u64> {
        // The length of the section before may be what is wrong: then its checksum is, too, and the
        // header that follows is to be found inside of what seems to be its payload.
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
        let place = Place {
            position,
            ty: header.map(|h| h.ty),
            block: None,
            offset: at.saturating_add(HEADER),
        };
        let Some(next) = next else {
            let message = format!(
                "damaged header of {}: {why}; nothing can be found behind it",
                place.text()
            );
            self.findings
                .push(Finding::at(Kind::Header, message, place));
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
            self.findings.push(Finding::new(Kind::Gap, message));
            self.next_number = number;
        }
        Ok(next)
    }

    fn checksum_is_right(&self, section: &Section, header: &SectionHeader) -> Result<bool> {
        let mut hasher = SectionHasher::xxh(header);
        let mut buffer = vec![0; PIECE];
        let mut done = 0;
        while done < section.length {
            let n = usize::try_from(section.length - done).map_or(PIECE, |left| left.min(PIECE));
            let part = buffer.get_mut(..n).unwrap_or_default();
            self.read(section.payload_offset.saturating_add(done), part)?;
            hasher.update(part);
            done = done.saturating_add(n as u64);
        }
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
            let place = Place {
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
            self.sections.push(Entry {
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

/// Type and offset of an entry of the index.
fn split(entry: u64) -> (SectionType, u64) {
    (SectionType((entry >> 48) as u16), entry & ((1 << 48) - 1))
}
