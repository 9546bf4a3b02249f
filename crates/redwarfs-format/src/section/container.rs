use super::header::V1Header;
use super::{
    CompressionId, FIRST_INDEX_MINOR, FIRST_V2_MINOR, MAGIC, MAJOR, MAX_MINOR, ReadAt,
    SectionHasher, SectionHeader, SectionType, V1_HEADER_LEN, Version,
    index::{self, IndexParser},
};
use crate::error::{Error, Result};
use crate::ids::BlockNo;

/// Most sections of an image with 8-byte headers. Without this bound, a hole in a sparse file
/// would be an endless row of empty blocks. Images of that time with a million blocks would be
/// larger than a tebibyte.
const MAX_V1_SECTIONS: usize = 1 << 20;

/// Bytes of a section index that are read at a time; a multiple of an entry's length.
const INDEX_PART: usize = 64 << 10;

/// A section of an open image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Section {
    /// Position in file order, starting from 0.
    pub position: u32,
    /// Number in the header. Equal to `position` for 8-byte headers or if the header has not
    /// been read.
    pub number: u32,
    /// The kind of payload.
    pub ty: SectionType,
    /// How the payload is compressed; `None` if the header has not been read.
    pub compression: Option<CompressionId>,
    /// Offset of the header from the start of the image.
    pub header_offset: u64,
    /// Offset of the payload from the start of the image.
    pub payload_offset: u64,
    /// Length of the stored payload in bytes. If the header has not been read, the distance to
    /// the next section in the index.
    pub length: u64,
    /// The header. `None` for 8-byte headers or if the header has not been read.
    pub header: Option<SectionHeader>,
}

/// What became of the section index.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum IndexState {
    /// There is none.
    Absent,
    /// It is there and correct as far as that has been checked.
    Valid,
    /// It is there but cannot be used, for the given reason.
    Invalid(String),
}

/// The sections of an image.
#[derive(Debug, Clone)]
pub struct Container {
    /// Format version.
    pub version: Version,
    /// Offset of the image in the file.
    pub offset: u64,
    /// Size of the image, without following data in the file.
    pub size: u64,
    /// All sections in file order, those of unknown type included.
    pub sections: Vec<Section>,
    /// What became of the section index.
    pub index: IndexState,
    /// Positions of the BLOCK sections.
    blocks: Vec<u32>,
}

impl Container {
    /// Lists the sections of the image at `offset` of a file of `file_size` bytes.
    ///
    /// With `image_size`, the image is exactly that long, or up to the end of the file. Without it, the
    /// end is found: after a valid section index, or else after the last well-formed section from the
    /// metadata on. Whatever follows, another image or other data, is left out. Only a file that ends
    /// within a section, or before the metadata, is truncated.
    ///
    /// If there is a usable section index, no BLOCK header is read; a damaged index is ignored.
    ///
    /// # Errors
    /// * [`Error::NotAnImage`] if it is too small or has no magic.
    /// * [`Error::Unsupported`] for other versions.
    /// * [`Error::Corrupt`] for headers that do not form a gapless chain up to the end of the
    ///   image; for 8-byte headers, unknown types or compression ids.
    /// * [`Error::Io`] if reading failed.
    pub fn open(
        read: &ReadAt<'_>,
        file_size: u64,
        offset: u64,
        image_size: Option<u64>,
    ) -> Result<Self> {
        let image = ImageRange::new(read, file_size, offset, image_size)?;
        let state = match image.find_index()? {
            FoundIndex::Usable(sections) => {
                return Ok(image.container(sections, IndexState::Valid));
            }
            FoundIndex::Absent => IndexState::Absent,
            FoundIndex::Invalid(reason) => IndexState::Invalid(reason),
        };
        let walked = image.walk(image_size.is_none())?;
        if walked.end == image.size {
            return Ok(image.container(walked.sections, state));
        }
        // The index at the end of the file belongs to another image.
        let image = image.up_to(walked.end);
        let state = image.judge_index(&walked.sections)?;
        Ok(image.container(walked.sections, state))
    }

    /// Like [`Container::open`], but reads every header and compares the index with them.
    #[cfg(test)]
    pub(crate) fn open_scanning(
        read: &ReadAt<'_>,
        file_size: u64,
        offset: u64,
        image_size: Option<u64>,
    ) -> Result<Self> {
        let image = ImageRange::new(read, file_size, offset, image_size)?;
        let walked = image.walk(image_size.is_none())?;
        let image = image.up_to(walked.end);
        let state = image.judge_index(&walked.sections)?;
        Ok(image.container(walked.sections, state))
    }

    /// The section at `position` with its header. Reads the header unless it is already known,
    /// and then checks its magic, its type against the index, and its length.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the header differs from the index, or there is no such section.
    /// [`Error::Io`] if reading failed.
    pub fn load_header(&self, read: &ReadAt<'_>, position: u32) -> Result<Section> {
        let section = self
            .sections
            .get(position as usize)
            .ok_or_else(|| Error::corrupt(format!("there is no section {position}")))?;
        if section.compression.is_some() {
            return Ok(section.clone());
        }
        let image = ImageRange {
            read,
            version: self.version,
            offset: self.offset,
            size: self.size,
        };
        image.load(position, section.ty, section.header_offset)
    }

    /// The BLOCK sections in the order of their block numbers.
    pub fn blocks(&self) -> impl Iterator<Item = &Section> {
        self.blocks
            .iter()
            .filter_map(|&position| self.sections.get(position as usize))
    }

    /// Number of BLOCK sections.
    #[must_use]
    pub fn block_count(&self) -> u32 {
        self.blocks.len() as u32
    }

    /// The section of a block, if there is one with that number.
    #[must_use]
    pub fn block(&self, block: BlockNo) -> Option<&Section> {
        let position = *self.blocks.get(block.index())?;
        self.sections.get(position as usize)
    }

    /// The sections of the given type, in file order.
    pub fn section_of_type(&self, ty: SectionType) -> impl Iterator<Item = &Section> {
        self.sections.iter().filter(move |section| section.ty == ty)
    }

    /// The only section of the given type.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is none or more than one.
    pub fn only_section_of_type(&self, ty: SectionType) -> Result<&Section> {
        let mut sections = self.section_of_type(ty);
        match (sections.next(), sections.next()) {
            (Some(section), None) => Ok(section),
            (None, _) => Err(Error::corrupt(format!("no {ty} section"))),
            (Some(_), Some(second)) => Err(Error::corrupt_at(
                format!("more than one {ty} section"),
                second.position,
                second.header_offset,
            )),
        }
    }

    /// True if the sections have 64-byte headers with hashes.
    #[must_use]
    pub fn has_hashes(&self) -> bool {
        self.version.minor >= FIRST_V2_MINOR
    }

    /// Offset of a section's payload in the file.
    #[must_use]
    pub fn file_offset(&self, section: &Section) -> u64 {
        // Both summands were checked against the file size when the section was found.
        self.offset.saturating_add(section.payload_offset)
    }
}

/// The part of a file that is an image with a readable version.
struct ImageRange<'r> {
    read: &'r ReadAt<'r>,
    version: Version,
    offset: u64,
    size: u64,
}

/// Sections that were found one after the other.
struct Walked {
    sections: Vec<Section>,
    /// Where the last one ends.
    end: u64,
}

enum FoundIndex {
    Absent,
    Invalid(String),
    Usable(Vec<Section>),
}

impl<'r> ImageRange<'r> {
    fn new(
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

    fn container(&self, sections: Vec<Section>, index: IndexState) -> Container {
        let blocks = sections
            .iter()
            .filter(|section| section.ty == SectionType::BLOCK)
            .map(|section| section.position)
            .collect();
        Container {
            version: self.version,
            offset: self.offset,
            size: self.size,
            sections,
            index,
            blocks,
        }
    }

    /// Reads at an offset inside the image. The caller has checked that the range is inside.
    fn read(&self, at: u64, out: &mut [u8]) -> Result<()> {
        Ok((self.read)(self.offset + at, out)?)
    }

    /// The same image, which turned out to be shorter.
    fn up_to(&self, end: u64) -> Self {
        Self { size: end, ..*self }
    }

    /// Lists the sections by their headers, up to the end of the file or, if `find_end`, to the
    /// end of the image.
    fn walk(&self, find_end: bool) -> Result<Walked> {
        if self.version.minor < FIRST_V2_MINOR {
            self.walk_v1(find_end)
        } else {
            self.walk_v2(find_end)
        }
    }

    fn walk_v2(&self, find_end: bool) -> Result<Walked> {
        let mut sections: Vec<Section> = Vec::new();
        let mut has_metadata = false;
        let mut at = 0;
        while at < self.size {
            let position = next_position(&sections)?;
            if find_end && has_metadata {
                let complete = sections
                    .last()
                    .is_some_and(|last| last.ty == SectionType::SECTION_INDEX)
                    && self.up_to(at).judge_index(&sections)? == IndexState::Valid;
                if complete || !self.goes_on(at)? {
                    break;
                }
            }
            let section = self.header_at(position, at)?;
            has_metadata |= section.ty == SectionType::METADATA_V2;
            at = section.payload_offset + section.length;
            sections.push(section);
        }
        Ok(Walked { sections, end: at })
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
        Ok(Walked { sections, end: at })
    }

    /// Reads and checks the 64-byte header at `at`.
    fn header_at(&self, position: u32, at: u64) -> Result<Section> {
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
    fn load(&self, position: u32, ty: SectionType, at: u64) -> Result<Section> {
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
    fn find_index(&self) -> Result<FoundIndex> {
        let Some(own) = self.index_offset()? else {
            return Ok(FoundIndex::Absent);
        };
        let entries = match self.read_index(own) {
            Ok(entries) => entries,
            Err(IndexError::Io(error)) => return Err(error),
            Err(IndexError::Unusable(reason)) => return Ok(FoundIndex::Invalid(reason)),
        };
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

    fn parse_index(&self, section: &Section) -> Result<Vec<(SectionType, u64)>, IndexError> {
        let unusable = |reason: &str| Err(IndexError::Unusable(reason.into()));
        if section.compression != Some(CompressionId::NONE) {
            return unusable("section index is compressed");
        }
        if section.payload_offset + section.length != self.size {
            return unusable("section index is not the last section");
        }
        let Some(header) = &section.header else {
            return unusable("section index has no checksum");
        };
        let structure = |reason| IndexError::Unusable(format!("section index: {reason}"));
        let mut hasher = SectionHasher::xxh(header);
        let mut parser = IndexParser::default();
        let mut buffer = vec![0; INDEX_PART];
        let mut at = section.payload_offset;
        while at < self.size {
            let length = usize::try_from(self.size - at).unwrap_or(INDEX_PART);
            let part = &mut buffer[..length.min(INDEX_PART)];
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

    /// Compares the index with sections that were found by walking.
    fn judge_index(&self, sections: &[Section]) -> Result<IndexState> {
        let Some(section) = sections
            .iter()
            .rfind(|section| section.ty == SectionType::SECTION_INDEX)
        else {
            return Ok(IndexState::Absent);
        };
        if self.version.minor < FIRST_INDEX_MINOR {
            return Ok(IndexState::Invalid(format!(
                "section index in an image of format {}",
                self.version
            )));
        }
        let entries = match self.parse_index(section) {
            Ok(entries) => entries,
            Err(IndexError::Io(error)) => return Err(error),
            Err(IndexError::Unusable(reason)) => return Ok(IndexState::Invalid(reason)),
        };
        let found = sections
            .iter()
            .map(|section| (section.ty, section.header_offset));
        Ok(if found.eq(entries.iter().copied()) {
            IndexState::Valid
        } else {
            IndexState::Invalid("section index does not list the sections of the image".into())
        })
    }
}

enum IndexError {
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
fn next_position(sections: &[Section]) -> Result<u32> {
    u32::try_from(sections.len())
        .ok()
        .filter(|&position| position < u32::MAX)
        .ok_or_else(|| Error::Limit("more than 2^32 sections".into()))
}
