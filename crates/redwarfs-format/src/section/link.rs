//! The start of an append (format chapter 12).

use super::hidden::{Binding, Footer, GenerationId, HiddenPayload, Prelude};
use super::snapshots::{number32, number64};
use super::{SectionHeader, SectionType, encode_hidden_section};
use crate::error::{Error, Result};
use crate::ids::GenerationNo;

const LINK_TAG: [u8; 4] = *b"DWLK";
const LINK_BODY: usize = 28;

/// What new bytes of a file begin with: the image that they were appended to. A file that consists of the
/// new bytes alone is a *delta*.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Link {
    /// Bytes of the image that the link follows, trailers included.
    pub base_size: u64,
    /// The identity of its newest generation.
    pub base: GenerationId,
    /// The number of the generation that begins with the link.
    pub generation: GenerationNo,
}

impl Link {
    /// Length of the whole section in bytes.
    pub const SECTION_LEN: usize = SectionHeader::LEN + Prelude::LEN + LINK_BODY + Footer::LEN;

    /// Encodes the whole section.
    #[must_use]
    pub fn encode(&self, section_number: u32) -> Vec<u8> {
        let prelude = Prelude {
            tag: LINK_TAG,
            major: 1,
            minor: 0,
            flags: 0,
            binding: Binding::None,
        };
        let mut body = Vec::with_capacity(LINK_BODY);
        body.extend(self.base_size.to_le_bytes());
        body.extend(self.base.0);
        body.extend(self.generation.0.to_le_bytes());
        let footer = Footer {
            open_offset: 0,
            open_length: 0,
            index: None,
        };
        encode_hidden_section(section_number, SectionType::LINK, &prelude, &body, &footer)
    }

    /// Decodes the whole section, of which `bytes` is the start or more.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is no such section or its checksum is wrong, [`Error::Unsupported`] for a
    /// later version.
    pub fn parse(bytes: &[u8]) -> Result<Self> {
        let wrong = || Error::corrupt("is no start of an append");
        let (header, payload) = bytes
            .split_first_chunk::<{ SectionHeader::LEN }>()
            .ok_or_else(wrong)?;
        let header = SectionHeader::parse(header).map_err(|_| wrong())?;
        let payload = usize::try_from(header.length)
            .ok()
            .filter(|_| header.ty == SectionType::LINK)
            .and_then(|length| payload.get(..length))
            .ok_or_else(wrong)?;
        if !header.xxh_matches(payload) {
            return Err(wrong());
        }
        let hidden = HiddenPayload::parse(payload)?;
        if hidden.prelude.tag != LINK_TAG || hidden.footer.index.is_some() {
            return Err(wrong());
        }
        if hidden.prelude.major != 1 || hidden.prelude.flags >> 16 != 0 {
            return Err(Error::Unsupported("a later start of an append".into()));
        }
        let mut base = GenerationId([0; 16]);
        base.0
            .copy_from_slice(hidden.body.get(8..24).ok_or_else(wrong)?);
        Ok(Self {
            base_size: number64(hidden.body, 0).ok_or_else(wrong)?,
            base,
            generation: GenerationNo(number32(hidden.body, 24).ok_or_else(wrong)?),
        })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn links_come_back() {
        let link = Link {
            base_size: 1 << 40,
            base: GenerationId([7; 16]),
            generation: GenerationNo(4),
        };
        let mut bytes = link.encode(17);
        assert_eq!(bytes.len(), Link::SECTION_LEN);
        assert_eq!(Link::parse(&bytes).unwrap(), link);
        bytes.extend([1; 50]);
        assert_eq!(Link::parse(&bytes).unwrap(), link);
        for at in 0..Link::SECTION_LEN {
            // Version and strong hash are not looked at.
            if !(6..40).contains(&at) {
                bytes[at] ^= 1;
                assert!(Link::parse(&bytes).is_err(), "{at}");
                bytes[at] ^= 1;
            }
        }
    }

    proptest! {
        #[test]
        fn any_bytes_are_taken(bytes: Vec<u8>) {
            let _ = Link::parse(&bytes);
        }
    }
}
