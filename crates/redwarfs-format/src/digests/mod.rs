//! Digests of all sections of a generation, and signatures of them (format chapter 13).
//!
//! A DIGESTS section has a cryptographic digest of every section that the index lists, and of the index. What
//! is signed is its payload without the footer: the [message](encode_message).

mod codec;
mod signature;

pub use codec::{Digests, LeafGroup, Leaves, SectionDigest, encode_message, parse_message};
pub use signature::{SignatureBody, SignatureKind};

use std::fmt;

use sha2::{Digest as _, Sha512_256};

use crate::section::SectionHeader;

/// The tag of a DIGESTS section.
pub const DIGESTS_TAG: [u8; 4] = *b"DWDG";
/// The tag of a SIGNATURE section.
pub const SIGNATURE_TAG: [u8; 4] = *b"DWSG";

/// Bytes of a digest.
pub const DIGEST_LEN: usize = 32;

/// A digest of 256 bits.
pub type Digest = [u8; DIGEST_LEN];

/// How digests are computed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum DigestAlgorithm {
    /// SHA-512/256 of XXH3, number, type, compression, length and payload: what the header of the section has.
    Sha512_256,
    /// BLAKE3 of number, type, compression, length and payload.
    #[default]
    Blake3,
}

impl DigestAlgorithm {
    /// The number in the file.
    #[must_use]
    pub fn id(self) -> u32 {
        match self {
            Self::Sha512_256 => 1,
            Self::Blake3 => 2,
        }
    }

    /// The algorithm with this number, if it is known.
    #[must_use]
    pub fn from_id(id: u32) -> Option<Self> {
        [Self::Sha512_256, Self::Blake3]
            .into_iter()
            .find(|algorithm| algorithm.id() == id)
    }

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Sha512_256 => "SHA-512/256",
            Self::Blake3 => "BLAKE3",
        }
    }

    /// The digest of bytes.
    #[must_use]
    pub fn digest(self, bytes: &[u8]) -> Digest {
        match self {
            Self::Sha512_256 => Sha512_256::digest(bytes).into(),
            Self::Blake3 => *blake3::hash(bytes).as_bytes(),
        }
    }
}

/// Computes the digest of a section whose payload arrives in pieces.
#[derive(Clone)]
pub struct SectionDigester(RunningHash);

#[derive(Clone)]
enum RunningHash {
    Sha(Sha512_256),
    Blake3(Box<blake3::Hasher>),
}

impl fmt::Debug for SectionDigester {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.0 {
            RunningHash::Sha(_) => "Sha512_256",
            RunningHash::Blake3(_) => "Blake3",
        };
        f.debug_tuple("SectionDigester").field(&name).finish()
    }
}

impl SectionDigester {
    /// Starts with the header of the section.
    #[must_use]
    pub fn new(algorithm: DigestAlgorithm, header: &SectionHeader) -> Self {
        let mut this = Self(match algorithm {
            DigestAlgorithm::Sha512_256 => RunningHash::Sha(Sha512_256::new()),
            DigestAlgorithm::Blake3 => RunningHash::Blake3(Box::default()),
        });
        if algorithm == DigestAlgorithm::Sha512_256 {
            this.update(&header.xxh.to_le_bytes());
        }
        this.update(&header.hashed_part());
        this
    }

    /// Takes the next bytes of the payload.
    pub fn update(&mut self, bytes: &[u8]) {
        match &mut self.0 {
            RunningHash::Sha(hasher) => hasher.update(bytes),
            RunningHash::Blake3(hasher) => {
                hasher.update(bytes);
            }
        }
    }

    /// The digest of everything.
    #[must_use]
    pub fn finish(self) -> Digest {
        match self.0 {
            RunningHash::Sha(hasher) => hasher.finalize().into(),
            RunningHash::Blake3(hasher) => *hasher.finalize().as_bytes(),
        }
    }
}

#[cfg(test)]
mod tests;
