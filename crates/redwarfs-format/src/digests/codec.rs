//! The message: what a DIGESTS section has between its header and its footer.

use super::{DIGEST_LEN, DIGESTS_TAG, Digest, DigestAlgorithm};
use crate::error::{Error, Result};
use crate::section::{
    Binding, CompressionId, Container, GenerationId, Prelude, SectionHeader, SectionType, Version,
};

/// Bytes of the body before its entries.
const FIXED: usize = 64;
const ENTRY: usize = 8 + DIGEST_LEN;
const GROUP: usize = 8;
const OFFSET_BITS: u32 = 48;

/// The digest of one section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SectionDigest {
    /// Its type.
    pub ty: SectionType,
    /// Offset of its header from the start of the image, below 2^48.
    pub offset: u64,
    /// Its digest.
    pub digest: Digest,
}

/// The digests of the leaves of one uncompressed block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LeafGroup {
    /// Number of its entry.
    pub entry: u32,
    /// The digests of its leaves.
    pub digests: Vec<Digest>,
}

/// The digests of the leaves of uncompressed blocks: pieces of the payload, all but the last of the same size.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaves {
    /// Size of a leaf as a power of two, from 12 to 30.
    pub log_size: u32,
    /// A group for each uncompressed block that is longer than a leaf, ascending.
    pub groups: Vec<LeafGroup>,
}

impl Leaves {
    /// The size that is written: 64 KiB.
    pub const WRITTEN: u32 = 16;

    /// Bytes of a leaf.
    #[must_use]
    pub fn size(&self) -> usize {
        1 << self.log_size
    }
}

/// What a DIGESTS section says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Digests {
    /// How all digests are computed.
    pub algorithm: DigestAlgorithm,
    /// When they were made, in seconds since 1970. It shows whether an image is older than another one.
    pub time: i64,
    /// Version of the image, as in its first header. None if it is not stated.
    pub version: Option<Version>,
    /// The generation that they belong to.
    pub generation: GenerationId,
    /// All sections that the index lists, in ascending order, the index being the last.
    pub entries: Vec<SectionDigest>,
    /// Digests of pieces of uncompressed blocks.
    pub leaves: Option<Leaves>,
}

/// Encodes the message: the payload of the section without its footer.
#[must_use]
pub fn encode_message(digests: &Digests) -> Vec<u8> {
    let prelude = Prelude::of_generation(DIGESTS_TAG, digests.generation);
    let groups = digests.leaves.iter().flat_map(|leaves| &leaves.groups);
    let count = digests.entries.len();
    let leaf_area = Prelude::LEN + FIXED + count * ENTRY;
    let mut out = Vec::with_capacity(leaf_area);
    out.extend(prelude.encode());
    out.extend(digests.algorithm.id().to_le_bytes());
    out.extend((DIGEST_LEN as u32).to_le_bytes());
    out.extend((count as u64).to_le_bytes());
    let log_size = digests.leaves.as_ref().map_or(0, |leaves| leaves.log_size);
    out.extend(log_size.to_le_bytes());
    out.extend((groups.clone().count() as u32).to_le_bytes());
    out.extend((leaf_area as u64).to_le_bytes());
    out.extend(digests.time.to_le_bytes());
    let version = digests.version.map_or([0; 2], |v| [v.major, v.minor]);
    out.extend(version);
    out.resize(Prelude::LEN + FIXED, 0);
    for entry in &digests.entries {
        let place = u64::from(entry.ty.0) << OFFSET_BITS | entry.offset;
        out.extend(place.to_le_bytes());
        out.extend(entry.digest);
    }
    for group in groups {
        out.extend(group.entry.to_le_bytes());
        out.extend((group.digests.len() as u32).to_le_bytes());
        out.extend(group.digests.as_flattened());
    }
    out
}

/// Reads a number or a digest at a position.
fn at<const N: usize>(bytes: &[u8], position: usize) -> Result<[u8; N]> {
    bytes
        .get(position..)
        .and_then(<[u8]>::first_chunk)
        .copied()
        .ok_or_else(|| Error::corrupt("digests are cut off"))
}

fn u32_at(bytes: &[u8], position: usize) -> Result<u32> {
    at(bytes, position).map(u32::from_le_bytes)
}

fn u64_at(bytes: &[u8], position: usize) -> Result<u64> {
    at(bytes, position).map(u64::from_le_bytes)
}

/// Decodes a message.
///
/// # Errors
/// [`Error::Unsupported`] for a newer version or another algorithm, [`Error::Corrupt`] if it contradicts
/// itself or is cut off.
pub fn parse_message(message: &[u8]) -> Result<Digests> {
    let wrong = |what: &str| Error::corrupt(format!("digests: {what}"));
    let (prelude, body_at) = Prelude::parse(message)?;
    if prelude.tag != DIGESTS_TAG {
        return Err(wrong("another tag"));
    }
    if prelude.major > 1 || prelude.flags >> 16 != 0 {
        return Err(Error::Unsupported("a newer version of digests".into()));
    }
    let Binding::Generation(generation) = prelude.binding else {
        return Err(wrong("not bound to a generation"));
    };
    let body_at = usize::try_from(body_at).unwrap_or(usize::MAX);
    let body = message.get(body_at..).ok_or_else(|| wrong("no body"))?;
    let algorithm = u32_at(body, 0)?;
    let algorithm = DigestAlgorithm::from_id(algorithm)
        .ok_or_else(|| Error::Unsupported(format!("digests by algorithm {algorithm}")))?;
    if u32_at(body, 4)? != DIGEST_LEN as u32 {
        return Err(wrong("another digest size"));
    }
    let all = body.get(FIXED..).ok_or_else(|| wrong("cut off"))?;
    let length = usize::try_from(u64_at(body, 8)?)
        .ok()
        .and_then(|count| count.checked_mul(ENTRY));
    let all = length
        .and_then(|length| all.get(..length))
        .ok_or_else(|| wrong("cut off"))?;
    let mut entries: Vec<SectionDigest> = Vec::with_capacity(all.len() / ENTRY);
    for bytes in all.chunks_exact(ENTRY) {
        let place = u64_at(bytes, 0)?;
        let entry = SectionDigest {
            ty: SectionType((place >> OFFSET_BITS) as u16),
            offset: place & ((1 << OFFSET_BITS) - 1),
            digest: at(bytes, 8)?,
        };
        if entries
            .last()
            .is_some_and(|last| last.offset >= entry.offset)
        {
            return Err(wrong("sections are not in ascending order"));
        }
        entries.push(entry);
    }
    let version = match at::<2>(body, 40)? {
        [0, 0] => None,
        [major, minor] => Some(Version { major, minor }),
    };
    let log_size = u32_at(body, 16)?;
    let leaves = match log_size {
        0 => None,
        12..=30 => {
            let area = usize::try_from(u64_at(body, 24)?).unwrap_or(usize::MAX);
            let area = message.get(area..).ok_or_else(|| wrong("cut off"))?;
            Some(parse_leaves(area, log_size, u32_at(body, 20)?, &entries)?)
        }
        _ => return Err(Error::Unsupported(format!("leaves of 2^{log_size} bytes"))),
    };
    Ok(Digests {
        algorithm,
        time: i64::from_le_bytes(at(body, 32)?),
        version,
        generation,
        entries,
        leaves,
    })
}

fn parse_leaves(
    area: &[u8],
    log_size: u32,
    count: u32,
    entries: &[SectionDigest],
) -> Result<Leaves> {
    let wrong = |what: &str| Error::corrupt(format!("digests of leaves: {what}"));
    let mut groups: Vec<LeafGroup> = Vec::new();
    let mut position = 0;
    for _ in 0..count {
        let entry = u32_at(area, position)?;
        let number = u32_at(area, position + 4)? as usize;
        position += GROUP;
        if groups.last().is_some_and(|last| last.entry >= entry) {
            return Err(wrong("not in ascending order"));
        }
        let section = entries.get(entry as usize);
        if section.is_none_or(|section| section.ty != SectionType::BLOCK) {
            return Err(wrong("of a section that is no block"));
        }
        let bytes = number
            .checked_mul(DIGEST_LEN)
            .and_then(|length| area.get(position..)?.get(..length))
            .ok_or_else(|| wrong("cut off"))?;
        position += bytes.len();
        let (digests, _) = bytes.as_chunks::<DIGEST_LEN>();
        groups.push(LeafGroup {
            entry,
            digests: digests.to_vec(),
        });
    }
    Ok(Leaves { log_size, groups })
}

impl Digests {
    /// Whether these are the digests of exactly the sections of an image. Then the digest of a section is the
    /// entry with its position.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a section without digest, a digest without section, or another version.
    pub fn fit(&self, container: &Container) -> Result<()> {
        if self
            .version
            .is_some_and(|version| version != container.version)
        {
            return Err(Error::corrupt("the version is not the one of the digests"));
        }
        if let Some((entry, section)) =
            self.entries
                .iter()
                .zip(&container.sections)
                .find(|(entry, section)| {
                    (entry.ty, entry.offset) != (section.ty, section.header_offset)
                })
        {
            return Err(Error::corrupt_at(
                format!(
                    "the digests name {} at offset {} instead of {}",
                    entry.ty, entry.offset, section.ty
                ),
                section.position,
                section.header_offset,
            ));
        }
        if self.entries.len() != container.sections.len() {
            return Err(Error::corrupt(format!(
                "digests of {} sections, but the image has {}",
                self.entries.len(),
                container.sections.len()
            )));
        }
        Ok(())
    }

    /// The digests of the leaves of a block with this header, if there are any: then they are as many as its
    /// payload has leaves.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if they are more or fewer.
    pub fn leaves_of(&self, position: u32, header: &SectionHeader) -> Result<Option<&[Digest]>> {
        let Some(leaves) = &self.leaves else {
            return Ok(None);
        };
        let found = leaves
            .groups
            .binary_search_by_key(&position, |group| group.entry);
        let group = found.ok().and_then(|at| leaves.groups.get(at));
        let Some(group) = group.filter(|_| header.compression == CompressionId::NONE) else {
            return Ok(None);
        };
        let expected = header.length.div_ceil(leaves.size() as u64);
        if expected != group.digests.len() as u64 {
            return Err(Error::corrupt(
                "the block has another length than its leaves",
            ));
        }
        Ok(Some(&group.digests))
    }
}
