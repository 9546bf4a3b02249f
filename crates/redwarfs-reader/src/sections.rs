//! Stored sections, for programs that copy or rewrite images.

use redwarfs_format::section::{CompressionId, Section};
use redwarfs_format::{BlockNo, Error, Result};

use crate::error::in_section;
use crate::image::{Image, METADATA_LIMIT, plausible_raw_size};

impl Image {
    /// Whether the image is on a server.
    #[must_use]
    pub fn is_remote(&self) -> bool {
        self.0.payloads.is_remote()
    }

    /// Lets a source on a server begin to fetch blocks that will be decoded soon, in this order. For other sources
    /// nothing happens. Announce a block once: it is forgotten when it was read.
    pub fn will_need_blocks(&self, blocks: impl IntoIterator<Item = BlockNo>) {
        self.0.payloads.announce(blocks);
    }

    /// A section of this image with its header, which is read if it is not known yet.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the header differs from the section index, [`Error::Io`] if reading
    /// failed.
    pub fn section_with_header(&self, section: &Section) -> Result<Section> {
        self.0.payloads.with_header(section)
    }

    /// The section of a block and its stored payload, with a right checksum.
    ///
    /// # Errors
    /// As [`Image::decode_block`], except those of decoding.
    pub fn stored_block(&self, block: BlockNo) -> Result<(Section, Vec<u8>)> {
        let section = self.0.payloads.block_section(block)?;
        let payload = self.0.payloads.read_vec(&section)?;
        Ok((section, payload))
    }

    /// The stored payload of any section, with a right checksum.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the checksum is wrong, [`Error::Limit`] if there is not enough
    /// memory, [`Error::Io`] if reading failed.
    pub fn stored_payload(&self, section: &Section) -> Result<Vec<u8>> {
        self.0.payloads.read_vec(section)
    }

    /// Decodes what [`Image::stored_block`] returned; with `None` the payload is the data.
    ///
    /// # Errors
    /// As [`Image::decode_block`].
    pub fn decode_stored_block(
        &self,
        section: &Section,
        payload: &[u8],
    ) -> Result<Option<Vec<u8>>> {
        match self.0.payloads.compression(section)? {
            CompressionId::NONE => Ok(None),
            id => redwarfs_codec::decompress(id, payload, self.0.payloads.block_size())
                .map(Some)
                .map_err(|e| in_section(e, section)),
        }
    }

    /// Reads and decodes a section that is no block, such as the schema.
    ///
    /// # Errors
    /// As [`Image::stored_payload`], and [`Error::Corrupt`], [`Error::Unsupported`] or
    /// [`Error::Limit`] if the payload cannot be decoded or gets implausibly large.
    pub fn decode_section(&self, section: &Section) -> Result<Vec<u8>> {
        let section = self.section_with_header(section)?;
        if section.length > METADATA_LIMIT {
            let e = Error::Limit(format!(
                "a {} section of {} bytes",
                section.ty, section.length
            ));
            return Err(in_section(e, &section));
        }
        let payload = self.stored_payload(&section)?;
        let limit = plausible_raw_size(section.length).min(METADATA_LIMIT);
        self.0.payloads.decompress(&section, payload, limit)
    }
}
