use std::fmt;
use std::hash::Hasher;

use sha2::{Digest, Sha512_256};
use twox_hash::XxHash3_64;

use super::{MAGIC, MAJOR, V1_HEADER_LEN, WRITTEN_MINOR};
use crate::error::{Error, Result};

/// What a section contains. Unknown values are possible and kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SectionType(pub u16);

impl SectionType {
    /// File data.
    pub const BLOCK: Self = Self(0);
    /// Frozen2 schema of the metadata.
    pub const METADATA_V2_SCHEMA: Self = Self(7);
    /// Metadata.
    pub const METADATA_V2: Self = Self(8);
    /// Types and offsets of all sections.
    pub const SECTION_INDEX: Self = Self(9);
    /// Who wrote the image.
    pub const HISTORY: Self = Self(10);

    /// The type's name, if it is one of those that every reader knows.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        Some(match self {
            Self::BLOCK => "BLOCK",
            Self::METADATA_V2_SCHEMA => "METADATA_V2_SCHEMA",
            Self::METADATA_V2 => "METADATA_V2",
            Self::SECTION_INDEX => "SECTION_INDEX",
            Self::HISTORY => "HISTORY",
            _ => return None,
        })
    }
}

impl fmt::Display for SectionType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.hidden_class() {
            Some(class) if self.hidden_name().is_none() => {
                f.pad(&format!("EXT_{}({:#06x})", class.name(), self.0))
            }
            _ => display_id(self.name().or_else(|| self.hidden_name()), self.0, f),
        }
    }
}

/// How a section's payload is compressed. Unknown values are possible and kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct CompressionId(pub u16);

impl CompressionId {
    /// Stored as is.
    pub const NONE: Self = Self(0);
    /// An `.xz` stream.
    pub const LZMA: Self = Self(1);
    /// A Zstandard frame.
    pub const ZSTD: Self = Self(2);
    /// Size and LZ4 block.
    pub const LZ4: Self = Self(3);
    /// The same as [`CompressionId::LZ4`].
    pub const LZ4HC: Self = Self(4);
    /// Size and Brotli stream.
    pub const BROTLI: Self = Self(5);
    /// Size, header and FLAC stream.
    pub const FLAC: Self = Self(6);
    /// Size, header and Rice++ bit stream.
    pub const RICEPP: Self = Self(7);

    /// The name if the id is known.
    #[must_use]
    pub fn name(self) -> Option<&'static str> {
        const NAMES: [&str; 8] = [
            "NONE", "LZMA", "ZSTD", "LZ4", "LZ4HC", "BROTLI", "FLAC", "RICEPP",
        ];
        NAMES.get(usize::from(self.0)).copied()
    }
}

impl fmt::Display for CompressionId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        display_id(self.name(), self.0, f)
    }
}

fn display_id(name: Option<&str>, id: u16, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    match name {
        Some(name) => f.pad(name),
        None => f.pad(&format!("UNKNOWN({id})")),
    }
}

/// Version of the image format.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Version {
    /// 2 in every readable image.
    pub major: u8,
    /// 0 to 6 in readable images.
    pub minor: u8,
}

impl Version {
    /// The version that is written.
    pub const WRITTEN: Self = Self {
        major: MAJOR,
        minor: WRITTEN_MINOR,
    };
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.major, self.minor)
    }
}

/// Header of a section since format 2.2.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SectionHeader {
    /// Format version. Only the value in the first header of an image has a meaning.
    pub version: Version,
    /// SHA-512/256 of `xxh`, of the fields below and of the payload.
    pub sha: [u8; 32],
    /// XXH3-64 of the fields below and of the payload.
    pub xxh: u64,
    /// Position of the section in the image.
    pub number: u32,
    /// The kind of payload.
    pub ty: SectionType,
    /// How the payload is compressed.
    pub compression: CompressionId,
    /// Length of the stored payload, in bytes.
    pub length: u64,
}

const VERSION_AT: usize = MAGIC.len();
const SHA_AT: usize = VERSION_AT + 2;
const XXH_AT: usize = SHA_AT + 32;
const NUMBER_AT: usize = XXH_AT + 8;
const TYPE_AT: usize = NUMBER_AT + 4;
const COMPRESSION_AT: usize = TYPE_AT + 2;
const LENGTH_AT: usize = COMPRESSION_AT + 2;

impl SectionHeader {
    /// Encoded length in bytes.
    pub const LEN: usize = LENGTH_AT + 8;

    /// Decodes a header. The version is not judged.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the magic is missing.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self> {
        if !bytes.starts_with(&MAGIC) {
            return Err(Error::corrupt("section header has no magic"));
        }
        Ok(Self {
            version: Version {
                major: bytes[VERSION_AT],
                minor: bytes[VERSION_AT + 1],
            },
            sha: array(bytes, SHA_AT),
            xxh: u64::from_le_bytes(array(bytes, XXH_AT)),
            number: u32::from_le_bytes(array(bytes, NUMBER_AT)),
            ty: SectionType(u16::from_le_bytes(array(bytes, TYPE_AT))),
            compression: CompressionId(u16::from_le_bytes(array(bytes, COMPRESSION_AT))),
            length: u64::from_le_bytes(array(bytes, LENGTH_AT)),
        })
    }

    /// Encodes the header.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..VERSION_AT].copy_from_slice(&MAGIC);
        bytes[VERSION_AT] = self.version.major;
        bytes[VERSION_AT + 1] = self.version.minor;
        bytes[SHA_AT..XXH_AT].copy_from_slice(&self.sha);
        bytes[XXH_AT..NUMBER_AT].copy_from_slice(&self.xxh.to_le_bytes());
        bytes[NUMBER_AT..].copy_from_slice(&self.hashed_part());
        bytes
    }

    /// Whether another image begins with this section, which follows an image: the section has number
    /// 0, and does not have a type that comes after the metadata. Such a section may have a damaged
    /// number.
    #[must_use]
    pub fn starts_next_image(&self) -> bool {
        let follows = [SectionType::SECTION_INDEX, SectionType::HISTORY];
        self.number == 0 && !follows.contains(&self.ty) && !self.ty.is_hidden()
    }

    /// Whether this is the rest of the section in front of it, which was emptied: a PAD section with the same number.
    /// `next` is the number behind that of the section in front.
    #[must_use]
    pub fn fills(&self, next: u32) -> bool {
        self.ty == SectionType::PAD && self.number.checked_add(1) == Some(next)
    }

    /// Makes the header of a new section: computes both hashes of `payload`.
    #[must_use]
    pub fn seal(number: u32, ty: SectionType, compression: CompressionId, payload: &[u8]) -> Self {
        let mut header = Self {
            version: Version::WRITTEN,
            sha: [0; 32],
            xxh: 0,
            number,
            ty,
            compression,
            length: payload.len() as u64,
        };
        header.xxh = xxh_of(&header, payload);
        header.sha = sha_of(&header, payload);
        header
    }

    /// Makes the header of a new section whose payload of `length` bytes is too long for the memory. `payload` is
    /// called twice, and each time hands all of its bytes to the function that it gets: the second
    /// hash covers the first one.
    ///
    /// # Errors
    /// Those of `payload`.
    pub fn seal_in_pieces<E>(
        number: u32,
        ty: SectionType,
        length: u64,
        mut payload: impl FnMut(&mut dyn FnMut(&[u8])) -> std::result::Result<(), E>,
    ) -> std::result::Result<Self, E> {
        let mut header = Self {
            version: Version::WRITTEN,
            sha: [0; 32],
            xxh: 0,
            number,
            ty,
            compression: CompressionId::NONE,
            length,
        };
        let mut xxh = xxh_start(&header);
        payload(&mut |part| xxh.write(part))?;
        header.xxh = xxh.finish();
        let mut sha = sha_start(&header);
        payload(&mut |part| sha.update(part))?;
        header.sha = sha.finalize().into();
        Ok(header)
    }

    /// True if the XXH3-64 hash matches this header with `payload`.
    #[must_use]
    pub fn xxh_matches(&self, payload: &[u8]) -> bool {
        self.xxh == xxh_of(self, payload)
    }

    /// True if the SHA-512/256 digest matches this header with `payload`.
    #[must_use]
    pub fn sha_matches(&self, payload: &[u8]) -> bool {
        self.sha == sha_of(self, payload)
    }

    /// The part that both hashes cover: number, type, compression, length.
    pub(crate) fn hashed_part(&self) -> [u8; Self::LEN - NUMBER_AT] {
        let mut bytes = [0; Self::LEN - NUMBER_AT];
        bytes[..TYPE_AT - NUMBER_AT].copy_from_slice(&self.number.to_le_bytes());
        bytes[TYPE_AT - NUMBER_AT..COMPRESSION_AT - NUMBER_AT]
            .copy_from_slice(&self.ty.0.to_le_bytes());
        bytes[COMPRESSION_AT - NUMBER_AT..LENGTH_AT - NUMBER_AT]
            .copy_from_slice(&self.compression.0.to_le_bytes());
        bytes[LENGTH_AT - NUMBER_AT..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }
}

fn array<const N: usize>(bytes: &[u8; SectionHeader::LEN], at: usize) -> [u8; N] {
    let mut out = [0; N];
    out.copy_from_slice(&bytes[at..at + N]);
    out
}

fn xxh_start(header: &SectionHeader) -> XxHash3_64 {
    let mut hasher = XxHash3_64::new();
    hasher.write(&header.hashed_part());
    hasher
}

fn sha_start(header: &SectionHeader) -> Sha512_256 {
    let mut hasher = Sha512_256::new();
    hasher.update(header.xxh.to_le_bytes());
    hasher.update(header.hashed_part());
    hasher
}

fn xxh_of(header: &SectionHeader, payload: &[u8]) -> u64 {
    let mut hasher = xxh_start(header);
    hasher.write(payload);
    hasher.finish()
}

fn sha_of(header: &SectionHeader, payload: &[u8]) -> [u8; 32] {
    let mut hasher = sha_start(header);
    hasher.update(payload);
    hasher.finalize().into()
}

/// Checks the hashes of a section whose payload arrives in pieces.
#[derive(Clone)]
pub struct SectionHasher {
    xxh: Option<(XxHash3_64, u64)>,
    sha: Option<(Sha512_256, [u8; 32])>,
    missing: i128,
}

impl fmt::Debug for SectionHasher {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SectionHasher")
            .field("xxh", &self.xxh.is_some())
            .field("sha", &self.sha.is_some())
            .field("missing", &self.missing)
            .finish()
    }
}

impl SectionHasher {
    /// Checks XXH3-64, the fast one.
    #[must_use]
    pub fn xxh(header: &SectionHeader) -> Self {
        Self {
            xxh: Some((xxh_start(header), header.xxh)),
            sha: None,
            missing: i128::from(header.length),
        }
    }

    /// Checks SHA-512/256, the cryptographic one.
    #[must_use]
    pub fn sha(header: &SectionHeader) -> Self {
        Self {
            xxh: None,
            sha: Some((sha_start(header), header.sha)),
            missing: i128::from(header.length),
        }
    }

    /// Checks both.
    #[must_use]
    pub fn both(header: &SectionHeader) -> Self {
        Self {
            sha: Self::sha(header).sha,
            ..Self::xxh(header)
        }
    }

    /// Takes the next bytes of the payload.
    pub fn update(&mut self, bytes: &[u8]) {
        if let Some((hasher, _)) = &mut self.xxh {
            hasher.write(bytes);
        }
        if let Some((hasher, _)) = &mut self.sha {
            hasher.update(bytes);
        }
        self.missing -= bytes.len() as i128;
    }

    /// True if the payload had the announced length and all checked hashes match.
    #[must_use]
    pub fn matches(self) -> bool {
        let xxh = self
            .xxh
            .is_none_or(|(hasher, want)| hasher.finish() == want);
        let sha = self
            .sha
            .is_none_or(|(hasher, want)| <[u8; 32]>::from(hasher.finalize()) == want);
        xxh && sha && self.missing == 0
    }
}

/// Section header of format 2.0 and 2.1.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct V1Header {
    pub(super) ty: SectionType,
    pub(super) compression: CompressionId,
    pub(super) length: u32,
}

impl V1Header {
    pub(super) fn parse(bytes: [u8; V1_HEADER_LEN]) -> Self {
        let [t0, t1, compression, _, l0, l1, l2, l3] = bytes;
        Self {
            ty: SectionType(u16::from_le_bytes([t0, t1])),
            compression: CompressionId(u16::from(compression)),
            length: u32::from_le_bytes([l0, l1, l2, l3]),
        }
    }
}
