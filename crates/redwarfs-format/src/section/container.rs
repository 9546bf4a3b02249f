use super::image_range::{FoundIndex, ImageRange};
use super::{CompressionId, FIRST_V2_MINOR, ReadAt, SectionHeader, SectionType, Version};
use crate::error::{Error, Result};
use crate::ids::BlockNo;
use std::ops::Range;

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
    /// Size of the image with its trailers, without following data in the file.
    pub size: u64,
    /// The sections of the newest generation in file order, those of unknown type included. Sections
    /// that the index does not list are not among them.
    pub sections: Vec<Section>,
    /// The hidden sections behind the index. Their positions follow those of `sections`.
    pub trailers: Vec<Section>,
    /// Bytes behind the image whose end points to its index: an append that was not finished, or data
    /// that somebody put there.
    pub unused_tail: u64,
    /// What became of the section index.
    pub index: IndexState,
    /// Positions of the BLOCK sections.
    pub(super) blocks: Vec<u32>,
}

impl Container {
    /// Lists the sections of the image at `offset` of a file of `file_size` bytes.
    ///
    /// With `image_size`, the image is exactly that long, or up to the end of the file. Without it, the
    /// end is found: after a valid section index, or else after the last well-formed section from the
    /// metadata on. Whatever follows, another image or other data, is left out. Only a file that ends
    /// within a section, or before the metadata, is truncated.
    ///
    /// If the image ends with a pointer to a usable section index, only the sections that this index lists
    /// exist, and no BLOCK header is read. The trailers behind the index are listed, too; those that
    /// do not belong to it are [unused](Container::unused_tail). If that pointer or its index is damaged,
    /// the sections are found by their headers: the newest generation counts whose index is intact, and,
    /// if there are several, whose schema and metadata have the right checksums. Without any index, that
    /// is the last schema with its metadata, and the blocks before them.
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
            FoundIndex::Usable(sections) => return image.with_trailers(sections),
            FoundIndex::Absent => IndexState::Absent,
            FoundIndex::Invalid(reason) => IndexState::Invalid(reason),
        };
        let walked = image.walk(image_size.is_none())?;
        image.settle(walked, state, image_size.is_none())
    }

    /// Like [`Container::open`], but without a look at the start of the image, for files whose every read costs a round
    /// trip. Before it reads what opening takes, it passes that range of the file to `will_need`. `None` if the image
    /// does not end with a usable index.
    ///
    /// # Errors
    /// [`Error::NotAnImage`] if it is too small. [`Error::Io`] if reading failed.
    pub fn open_by_index(
        read: &ReadAt<'_>,
        will_need: &dyn Fn(Range<u64>),
        file_size: u64,
        offset: u64,
        image_size: Option<u64>,
    ) -> Result<Option<Self>> {
        let image = ImageRange::by_its_end(read, will_need, file_size, offset, image_size)?;
        let Some(image) = image else {
            return Ok(None);
        };
        match image.find_index_announced(will_need)? {
            FoundIndex::Usable(sections) => image.with_trailers(sections).map(Some),
            FoundIndex::Absent | FoundIndex::Invalid(_) => Ok(None),
        }
    }

    /// The sections of an image that were found in another way. Their offsets are from the start of the file, which
    /// has `size` bytes; there is no index.
    #[must_use]
    pub fn of_sections(version: Version, size: u64, sections: Vec<Section>) -> Self {
        let blocks = sections
            .iter()
            .filter(|section| section.ty == SectionType::BLOCK)
            .map(|section| section.position)
            .collect();
        Self {
            version,
            offset: 0,
            size,
            sections,
            trailers: Vec::new(),
            unused_tail: 0,
            index: IndexState::Absent,
            blocks,
        }
    }

    /// Lists the sections of an older generation of the image at `offset`: the first `end` bytes of the
    /// image, which its index ends. Its trailers are behind them.
    ///
    /// # Errors
    /// As [`Container::open`], and [`Error::Corrupt`] if no usable index ends there.
    pub fn open_generation(
        read: &ReadAt<'_>,
        file_size: u64,
        offset: u64,
        end: u64,
    ) -> Result<Self> {
        let older = ImageRange::new(read, file_size, offset, Some(end))?;
        let sections = match older.find_index()? {
            FoundIndex::Usable(sections) if older.size == end => sections,
            _ => {
                return Err(Error::corrupt(format!(
                    "no generation of the image ends at offset {end}"
                )));
            }
        };
        let file = ImageRange::new(read, file_size, offset, None)?;
        let mut container = file.with_trailers(sections)?;
        // Later generations follow.
        container.unused_tail = 0;
        match container.sections.last() {
            Some(index) if index.payload_offset + index.length == end => Ok(container),
            _ => Err(Error::corrupt(format!(
                "the generation that ends at offset {end} has another end"
            ))),
        }
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
        image.settle(walked, IndexState::Absent, image_size.is_none())
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

    /// A section that is not listed, by its type and the offset of its header. Checks its magic, type and length.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if there is no such section, [`Error::Io`] if reading failed.
    pub fn hidden_section(
        &self,
        read: &ReadAt<'_>,
        ty: SectionType,
        header_offset: u64,
    ) -> Result<Section> {
        let image = ImageRange {
            read,
            version: self.version,
            offset: self.offset,
            size: self.size,
        };
        image.load(self.sections.len() as u32, ty, header_offset)
    }

    /// A number for a new section behind the image.
    #[must_use]
    pub fn next_number(&self) -> u32 {
        let all = self.sections.iter().chain(&self.trailers);
        let last = all.map(|section| section.number).max();
        last.map_or(0, |number| number.saturating_add(1))
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
