//! Verified reading: an image is what somebody signed, or else it is refused (format chapter 13).
//!
//! Opening verifies the signature of the digests, then the index, schema, metadata and history against their
//! digests. A block is compared with its digest when it is first used, a leaf of an uncompressed block at each
//! use. Bytes that no digest covers are not interpreted: leading headers, checksums in section headers,
//! other trailers.

use std::fmt;
use std::sync::Arc;

use redwarfs_format::digests::{
    Digest, DigestAlgorithm, Digests, SectionDigester, SignatureBody, SignatureKind, parse_message,
};
use redwarfs_format::section::{
    Binding, Container, Footer, GenerationId, IndexState, LeafDigests, Prelude, Section,
    SectionHasher, SectionHeader, SectionType,
};
use redwarfs_format::{Error, Result};
use redwarfs_io::Source;

use crate::error::in_section;

/// Longest DIGESTS section that is read (1 GiB): that of 25 million sections.
const DIGESTS_LIMIT: u64 = 1 << 30;

/// Largest leaf that is compared by itself, as a power of two (256 KiB).
const LARGEST_LEAF: u32 = 18;

/// Says whether a signature is by a key that the caller trusts.
pub trait VerifySignature: fmt::Debug + Send + Sync {
    /// Verifies one signature of `message`. Returns the name of the key.
    ///
    /// # Errors
    /// Why the signature does not count, as text for the user.
    fn verify(
        &self,
        message: &[u8],
        kind: SignatureKind,
        signature: &[u8],
    ) -> Result<String, String>;
}

/// What an image must prove before it is used.
#[derive(Debug, Clone, Default)]
pub enum Verification {
    /// The checksums of its sections, which find accidents.
    #[default]
    Checksums,
    /// Its own digests, which find accidents of any size. Anybody can make them.
    Digests,
    /// Digests that somebody has signed whom the caller trusts.
    Signed(Arc<dyn VerifySignature>),
}

impl PartialEq for Verification {
    fn eq(&self, other: &Self) -> bool {
        match (self, other) {
            (Self::Checksums, Self::Checksums) | (Self::Digests, Self::Digests) => true,
            (Self::Signed(one), Self::Signed(other)) => Arc::ptr_eq(one, other),
            _ => false,
        }
    }
}

/// What an image has proved.
#[derive(Debug, Clone, PartialEq, Eq)]
#[non_exhaustive]
pub struct Verified {
    /// How its digests are computed.
    pub algorithm: DigestAlgorithm,
    /// When the digests were made, in seconds since 1970. An older time than that of another image by the
    /// same signer means that the image was replaced by an older one.
    pub time: i64,
    /// The key that has signed them, if a signature was asked for.
    pub signer: Option<String>,
}

/// The digests of an image, as they are stored.
#[derive(Debug, Clone)]
pub struct StoredDigests {
    /// What they say.
    pub digests: Digests,
    /// What is signed.
    pub message: Vec<u8>,
    /// Offset of the header of their section, from the start of the image.
    pub header_offset: u64,
}

/// A signature of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoredSignature {
    /// Its form.
    pub kind: SignatureKind,
    /// Its text.
    pub text: Vec<u8>,
    /// Offset of the header of its section, from the start of the image.
    pub header_offset: u64,
}

/// Reads the payload of a trailer. None if its checksum is wrong.
fn read_trailer(
    source: &dyn Source,
    container: &Container,
    section: &Section,
    limit: u64,
) -> Result<Option<Vec<u8>>> {
    let too_long = || {
        let e = Error::Limit(format!("{} of {} bytes", section.ty, section.length));
        in_section(e, section)
    };
    let length = usize::try_from(section.length).map_err(|_| too_long())?;
    if section.length > limit {
        return Err(too_long());
    }
    let mut payload = Vec::new();
    payload.try_reserve_exact(length).map_err(|_| too_long())?;
    payload.resize(length, 0);
    source
        .read_exact_at(container.file_offset(section), &mut payload)
        .map_err(|e| in_section(e.into(), section))?;
    let intact = section
        .header
        .as_ref()
        .is_some_and(|header| header.xxh_matches(&payload));
    Ok(intact.then_some(payload))
}

/// The identity of the generation of an image, which must have a usable index.
fn generation(source: &dyn Source, container: &Container) -> Result<GenerationId> {
    let index = container.sections.last();
    let index = index.filter(|section| section.ty == SectionType::SECTION_INDEX);
    let Some(index) = index.filter(|_| container.index == IndexState::Valid) else {
        return Err(Error::Unverified(
            "the image has no valid section index".into(),
        ));
    };
    let length = usize::try_from(index.length).unwrap_or(usize::MAX);
    let mut payload = Vec::new();
    payload
        .try_reserve_exact(length)
        .map_err(|_| in_section(Error::Limit("a very large index".into()), index))?;
    payload.resize(length, 0);
    source
        .read_exact_at(container.file_offset(index), &mut payload)
        .map_err(|e| in_section(e.into(), index))?;
    Ok(GenerationId::of(&payload))
}

/// The digests of an image: the last ones that belong to it. None if it has none.
///
/// # Errors
/// [`Error::Unverified`] if there is no valid index, or the digests are damaged; otherwise those of
/// reading.
pub fn stored_digests(source: &dyn Source, container: &Container) -> Result<Option<StoredDigests>> {
    let generation = generation(source, container)?;
    let mut sections = container.trailers.iter().rev();
    let Some(section) = sections.find(|section| section.ty == SectionType::DIGESTS) else {
        return Ok(None);
    };
    let Some(mut message) = read_trailer(source, container, section, DIGESTS_LIMIT)? else {
        return Err(Error::Unverified("its digests are damaged".into()));
    };
    message.truncate(message.len().saturating_sub(Footer::LEN));
    let digests = parse_message(&message)?;
    if digests.generation != generation {
        return Err(Error::Unverified(
            "its digests belong to another generation".into(),
        ));
    }
    Ok(Some(StoredDigests {
        digests,
        message,
        header_offset: section.header_offset,
    }))
}

/// The signatures of the digests whose section header is at `digests`. Damaged ones are left out.
///
/// # Errors
/// Those of reading.
pub fn stored_signatures(
    source: &dyn Source,
    container: &Container,
    digests: u64,
) -> Result<Vec<StoredSignature>> {
    let mut found = Vec::new();
    for section in &container.trailers {
        if section.ty != SectionType::SIGNATURE {
            continue;
        }
        let limit = SignatureBody::MOST as u64 + (1 << 16);
        let payload = match read_trailer(source, container, section, limit) {
            Ok(Some(payload)) => payload,
            Ok(None) | Err(Error::Limit(_)) => continue,
            Err(error) => return Err(error),
        };
        let Some(signature) = parse_signature(&payload) else {
            continue;
        };
        if signature.digests == digests {
            found.push(StoredSignature {
                kind: signature.kind,
                text: signature.signature.to_vec(),
                header_offset: section.header_offset,
            });
        }
    }
    Ok(found)
}

fn parse_signature(payload: &[u8]) -> Option<SignatureBody<'_>> {
    let (prelude, body) = Prelude::parse(payload).ok()?;
    let known = prelude.tag == redwarfs_format::digests::SIGNATURE_TAG
        && prelude.major <= 1
        && prelude.flags >> 16 == 0
        && matches!(prelude.binding, Binding::Generation(_));
    let end = payload.len().checked_sub(Footer::LEN)?;
    let body = payload.get(usize::try_from(body).ok()?..end)?;
    known.then(|| SignatureBody::parse(body).ok())?
}

/// Digests that an image must have.
#[derive(Debug)]
pub(crate) struct TrustedDigests {
    digests: Digests,
    pub(crate) verified: Verified,
}

impl TrustedDigests {
    /// Those of an image. None if checksums are enough.
    pub(crate) fn of(
        source: &dyn Source,
        container: &Container,
        verification: &Verification,
    ) -> Result<Option<Arc<Self>>> {
        let trust = match verification {
            Verification::Checksums => return Ok(None),
            Verification::Digests => None,
            Verification::Signed(trust) => Some(trust),
        };
        let Some(stored) = stored_digests(source, container)? else {
            let what = match trust {
                Some(_) => "the image is not signed",
                None => "the image has no digests",
            };
            return Err(Error::Unverified(what.into()));
        };
        let signer = match trust {
            Some(trust) => Some(signer(source, container, &stored, trust.as_ref())?),
            None => None,
        };
        stored.digests.fit(container)?;
        let verified = Verified {
            algorithm: stored.digests.algorithm,
            time: stored.digests.time,
            signer,
        };
        Ok(Some(Arc::new(Self {
            digests: stored.digests,
            verified,
        })))
    }

    /// The digest that a section must have.
    fn expected(&self, section: &Section) -> Result<Digest> {
        let entry = self.digests.entries.get(section.position as usize);
        let entry =
            entry.filter(|entry| (entry.ty, entry.offset) == (section.ty, section.header_offset));
        let missing = || Error::Unverified(format!("{} has no digest", section.ty));
        entry.map(|entry| entry.digest).ok_or_else(missing)
    }
}

/// The key of the first signature that counts.
fn signer(
    source: &dyn Source,
    container: &Container,
    stored: &StoredDigests,
    trust: &dyn VerifySignature,
) -> Result<String> {
    let signatures = stored_signatures(source, container, stored.header_offset)?;
    let mut reasons = Vec::new();
    for signature in &signatures {
        match trust.verify(&stored.message, signature.kind, &signature.text) {
            Ok(name) => return Ok(name),
            Err(reason) => reasons.push(reason),
        }
    }
    Err(Error::Unverified(match reasons.is_empty() {
        true => "the image is not signed".into(),
        false => format!("no signature counts: {}", reasons.join("; ")),
    }))
}

/// Compares a payload that arrives in pieces with what is known of it.
pub(crate) enum PayloadCheck {
    Checksum(Box<SectionHasher>),
    Digest(Box<SectionDigester>, Digest),
}

impl PayloadCheck {
    pub(crate) fn checksum(header: &SectionHeader) -> Self {
        Self::Checksum(Box::new(SectionHasher::xxh(header)))
    }

    pub(crate) fn digest(trusted: &TrustedDigests, section: &Section) -> Result<Self> {
        let expected = trusted.expected(section)?;
        // Images without hashes have no index, so no digests.
        let header = section.header.as_ref().ok_or_else(|| {
            in_section(
                Error::Unverified("a section without hashes".into()),
                section,
            )
        })?;
        let digester = SectionDigester::new(trusted.digests.algorithm, header);
        Ok(Self::Digest(Box::new(digester), expected))
    }

    pub(crate) fn update(&mut self, bytes: &[u8]) {
        match self {
            Self::Checksum(hasher) => hasher.update(bytes),
            Self::Digest(digester, _) => digester.update(bytes),
        }
    }

    /// Whether the whole payload is what it must be.
    pub(crate) fn matches(self) -> bool {
        match self {
            Self::Checksum(hasher) => hasher.matches(),
            Self::Digest(digester, expected) => digester.finish() == expected,
        }
    }
}

/// What the leaves of an uncompressed payload are compared with.
#[derive(Debug, Clone)]
pub(crate) enum KnownLeaves {
    /// Digests that this process has made.
    Made(LeafDigests),
    /// Digests of the image.
    Trusted {
        algorithm: DigestAlgorithm,
        size: usize,
        digests: Arc<[Digest]>,
    },
}

impl KnownLeaves {
    /// The leaves of a block in the digests of its image, if they are there.
    pub(crate) fn trusted(trusted: &TrustedDigests, section: &Section) -> Result<Option<Self>> {
        let leaves = trusted.digests.leaves.as_ref();
        let (Some(leaves), Some(header)) = (
            leaves.filter(|leaves| leaves.log_size <= LARGEST_LEAF),
            section.header.as_ref(),
        ) else {
            return Ok(None);
        };
        // The section must be the one that the digests name.
        trusted.expected(section)?;
        let found = trusted
            .digests
            .leaves_of(section.position, header)
            .map_err(|e| in_section(e, section))?;
        Ok(found.map(|digests| Self::Trusted {
            algorithm: trusted.digests.algorithm,
            size: leaves.size(),
            digests: digests.into(),
        }))
    }

    /// Bytes of a leaf: a power of two, at most 256 KiB.
    pub(crate) fn size(&self) -> u64 {
        match self {
            Self::Made(_) => LeafDigests::LEAF as u64,
            Self::Trusted { size, .. } => *size as u64,
        }
    }

    /// As [`LeafDigests::matches`].
    pub(crate) fn matches(&self, first: usize, bytes: &[u8]) -> bool {
        match self {
            Self::Made(leaves) => leaves.matches(first, bytes),
            Self::Trusted {
                algorithm,
                size,
                digests,
            } => {
                let known = digests.get(first..).unwrap_or_default();
                let leaves = bytes.chunks(*size);
                leaves.len() <= known.len()
                    && leaves
                        .zip(known)
                        .all(|(leaf, digest)| algorithm.digest(leaf) == *digest)
            }
        }
    }

    /// Bytes of memory that they take.
    pub(crate) fn memory(&self) -> u64 {
        match self {
            Self::Made(leaves) => leaves.memory(),
            Self::Trusted { digests, .. } => size_of_val::<[Digest]>(digests) as u64,
        }
    }
}
