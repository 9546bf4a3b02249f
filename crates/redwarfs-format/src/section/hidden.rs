//! Hidden sections: what an image has besides its tree, and what readers that do not know it never see
//! (format chapter 10).
//!
//! A hidden section has an ordinary header with a type from 0x4400 to 0x44FF, and no entry in the section
//! index. Most of them are *trailers*: they follow the index, and each ends with a [`Footer`], whose last
//! bytes point to the index as those of the image without them did. So the file is a valid image after
//! each of them.

use twox_hash::XxHash3_128;

use super::index::{ENTRY_LEN, OFFSET_MASK, split, tail_pointer};
use super::{CompressionId, SectionHeader, SectionType};
use crate::error::{Error, Result};

impl SectionType {
    /// JSON with a label, a comment, or data of a vendor. The last one counts.
    pub const NOTE: Self = Self(0x4400);
    /// Blocks that are needed first.
    pub const HINTS: Self = Self(0x4401);
    /// The table of generations. The last one counts.
    pub const SNAPSHOTS: Self = Self(0x4480);
    /// Index of contents and chunks, for deduplication against old generations.
    pub const MATCH: Self = Self(0x4481);
    /// Digests of all sections. The last one counts.
    pub const DIGESTS: Self = Self(0x4482);
    /// Signature of the digests.
    pub const SIGNATURE: Self = Self(0x4483);
    /// Parity and checksums for repairs.
    pub const RECOVERY: Self = Self(0x4484);
    /// Start of a delta file: the image that it belongs to.
    pub const LINK: Self = Self(0x4485);
    /// Filling, without prelude.
    pub const PAD: Self = Self(0x4486);

    const FIRST_HIDDEN: u16 = 0x4400;
    const LAST_HIDDEN: u16 = 0x44ff;

    /// How a program that rewrites images treats sections of this type. None if it is no type of hidden
    /// sections.
    #[must_use]
    pub fn hidden_class(self) -> Option<HiddenClass> {
        Some(match self.0 {
            Self::FIRST_HIDDEN..=0x443f => HiddenClass::Copy,
            0x4440..=0x447f => HiddenClass::Metadata,
            0x4480..=0x44bf => HiddenClass::Bytes,
            0x44c0..=Self::LAST_HIDDEN => HiddenClass::Critical,
            _ => return None,
        })
    }

    /// The name of a type of hidden sections, if it is known.
    pub(super) fn hidden_name(self) -> Option<&'static str> {
        Some(match self {
            Self::NOTE => "NOTE",
            Self::HINTS => "HINTS",
            Self::SNAPSHOTS => "SNAPSHOTS",
            Self::MATCH => "MATCH",
            Self::DIGESTS => "DIGESTS",
            Self::SIGNATURE => "SIGNATURE",
            Self::RECOVERY => "RECOVERY",
            Self::LINK => "LINK",
            Self::PAD => "PAD",
            _ => return None,
        })
    }

    /// Whether sections of this type are hidden.
    #[must_use]
    pub fn is_hidden(self) -> bool {
        self.hidden_class().is_some()
    }
}

/// What a hidden section depends on, by its type. Programs that do not know the type follow it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HiddenClass {
    /// On nothing: it is kept when an image is rewritten.
    Copy,
    /// On the metadata: it is kept if schema and metadata stay the same.
    Metadata,
    /// On offsets or bytes: it is dropped by every rewrite.
    Bytes,
    /// On a feature name, without which the image must not be read.
    Critical,
}

impl HiddenClass {
    /// The name in reports, such as `copy`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Copy => "copy",
            Self::Metadata => "meta",
            Self::Bytes => "bytes",
            Self::Critical => "critical",
        }
    }
}

/// Identity of a tree: XXH3-128 of schema and metadata, both uncompressed, one after the other. Recompressing
/// an image does not change it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct MetadataId(pub [u8; 16]);

impl MetadataId {
    /// The identity of the tree with this schema and metadata.
    #[must_use]
    pub fn of(schema: &[u8], metadata: &[u8]) -> Self {
        let mut hasher = XxHash3_128::new();
        hasher.write(schema);
        hasher.write(metadata);
        Self(hasher.finish_128().to_le_bytes())
    }
}

/// Identity of a generation: XXH3-128 of the payload of its section index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct GenerationId(pub [u8; 16]);

impl GenerationId {
    /// The identity of the generation with this payload of the section index.
    #[must_use]
    pub fn of(index: &[u8]) -> Self {
        Self(XxHash3_128::oneshot(index).to_le_bytes())
    }
}

/// What the contents of a hidden section describe. If the image has another one, the section is ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Binding {
    /// Any image.
    None,
    /// A tree.
    Metadata(MetadataId),
    /// A generation.
    Generation(GenerationId),
}

/// The start of the payload of a hidden section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Prelude {
    /// Four letters that name the type once more.
    pub tag: [u8; 4],
    /// Readers that only know smaller numbers ignore the section.
    pub major: u8,
    /// Additions that older readers may ignore.
    pub minor: u8,
    /// Meaning by type. Unknown ones of the upper half mean: ignore the section.
    pub flags: u32,
    /// What the contents describe.
    pub binding: Binding,
}

impl Prelude {
    /// Encoded length in bytes, of this version.
    pub const LEN: usize = 32;

    /// Encodes the prelude, with the body right behind it.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let (kind, value) = match self.binding {
            Binding::None => (0_u32, [0; 16]),
            Binding::Metadata(id) => (1, id.0),
            Binding::Generation(id) => (2, id.0),
        };
        let mut bytes = [0; Self::LEN];
        bytes[..4].copy_from_slice(&self.tag);
        bytes[4] = self.major;
        bytes[5] = self.minor;
        bytes[6..8].copy_from_slice(&(Self::LEN as u16).to_le_bytes());
        bytes[8..12].copy_from_slice(&self.flags.to_le_bytes());
        bytes[12..16].copy_from_slice(&kind.to_le_bytes());
        bytes[16..].copy_from_slice(&value);
        bytes
    }

    /// Decodes the prelude of a payload, of which the start is enough. Also returns the offset of the body
    /// in the payload, at least [`Prelude::LEN`].
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is too short or the offset is inside the prelude; [`Error::Unsupported`] for
    /// a binding that is not known.
    pub fn parse(payload: &[u8]) -> Result<(Self, u64)> {
        let Some(bytes) = payload.first_chunk::<{ Self::LEN }>() else {
            return Err(Error::corrupt("prelude of a hidden section is cut off"));
        };
        let [
            t0,
            t1,
            t2,
            t3,
            major,
            minor,
            b0,
            b1,
            f0,
            f1,
            f2,
            f3,
            k0,
            k1,
            k2,
            k3,
            value @ ..,
        ] = *bytes;
        let body = u16::from_le_bytes([b0, b1]);
        if usize::from(body) < Self::LEN {
            return Err(Error::corrupt(format!(
                "body of a hidden section at offset {body} of its payload"
            )));
        }
        let binding = match u32::from_le_bytes([k0, k1, k2, k3]) {
            0 => Binding::None,
            1 => Binding::Metadata(MetadataId(value)),
            2 => Binding::Generation(GenerationId(value)),
            other => {
                return Err(Error::Unsupported(format!(
                    "binding {other} of a hidden section"
                )));
            }
        };
        let prelude = Self {
            tag: [t0, t1, t2, t3],
            major,
            minor,
            flags: u32::from_le_bytes([f0, f1, f2, f3]),
            binding,
        };
        Ok((prelude, u64::from(body)))
    }
}

/// The end of the payload of a hidden section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Footer {
    /// First byte of the range that opening the generation takes, normally the header of its schema.
    pub open_offset: u64,
    /// Length of that range, up to the end of the index and of the small trailers behind it.
    pub open_length: u64,
    /// The header of the index of the generation that the section belongs to, below 2^48. None for sections
    /// in front of the index, so that they are never taken for trailers.
    pub index: Option<u64>,
}

impl Footer {
    /// Encoded length in bytes.
    pub const LEN: usize = 16 + ENTRY_LEN;

    /// Encodes the footer.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let pointer = self.index.map_or(0, tail_pointer);
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.open_offset.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.open_length.to_le_bytes());
        bytes[16..].copy_from_slice(&pointer.to_le_bytes());
        bytes
    }

    /// Decodes a footer. What does not point to an index belongs to none.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let (numbers, _) = bytes.as_chunks::<8>();
        let [open_offset, open_length, pointer] =
            [0, 1, 2].map(|at| numbers.get(at).map_or(0, |b| u64::from_le_bytes(*b)));
        let (ty, index) = split(pointer);
        Self {
            open_offset,
            open_length,
            index: (ty == SectionType::SECTION_INDEX).then_some(index),
        }
    }
}

/// Encodes a hidden section: its header, and its payload of prelude, `body` and footer.
///
/// # Panics
/// If the footer names an index at an offset of 2^48 or more.
#[must_use]
pub fn encode_hidden_section(
    number: u32,
    ty: SectionType,
    prelude: &Prelude,
    body: &[u8],
    footer: &Footer,
) -> Vec<u8> {
    let (header, payload) = seal_hidden_section(number, ty, prelude, body, footer);
    [&header.encode()[..], &payload].concat()
}

/// The header and the payload of [`encode_hidden_section`].
pub(super) fn seal_hidden_section(
    number: u32,
    ty: SectionType,
    prelude: &Prelude,
    body: &[u8],
    footer: &Footer,
) -> (SectionHeader, Vec<u8>) {
    assert!(footer.index.is_none_or(|index| index <= OFFSET_MASK));
    let payload = [&prelude.encode()[..], body, &footer.encode()].concat();
    let header = SectionHeader::seal(number, ty, CompressionId::NONE, &payload);
    (header, payload)
}

/// The parts of the payload of a hidden section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HiddenPayload<'p> {
    /// Its start.
    pub prelude: Prelude,
    /// What is between the prelude and the footer.
    pub body: &'p [u8],
    /// Its end.
    pub footer: Footer,
}

impl<'p> HiddenPayload<'p> {
    /// Takes a payload apart.
    ///
    /// # Errors
    /// As [`Prelude::parse`]; [`Error::Corrupt`] if there is no room for a footer behind the start of the body.
    pub fn parse(payload: &'p [u8]) -> Result<Self> {
        let (prelude, body_at) = Prelude::parse(payload)?;
        let (start, footer) = payload
            .split_last_chunk::<{ Footer::LEN }>()
            .ok_or_else(|| Error::corrupt("hidden section without footer"))?;
        let body = usize::try_from(body_at)
            .ok()
            .and_then(|at| start.get(at..))
            .ok_or_else(|| Error::corrupt("body of a hidden section begins behind its end"))?;
        Ok(Self {
            prelude,
            body,
            footer: Footer::parse(footer),
        })
    }
}
