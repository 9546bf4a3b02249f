//! The body of a SIGNATURE section.

use crate::error::{Error, Result};

/// The form of a signature.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SignatureKind {
    /// The text of a signature file of minisign, pre-hashed.
    Minisign,
    /// The armor of an SSH signature with the namespace `dwarfs`.
    Ssh,
}

impl SignatureKind {
    /// The number in the file.
    #[must_use]
    pub fn id(self) -> u32 {
        match self {
            Self::Minisign => 1,
            Self::Ssh => 2,
        }
    }

    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Minisign => "minisign",
            Self::Ssh => "SSH",
        }
    }

    fn from_id(id: u32) -> Option<Self> {
        [Self::Minisign, Self::Ssh]
            .into_iter()
            .find(|kind| kind.id() == id)
    }
}

/// The body of a SIGNATURE section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SignatureBody<'s> {
    /// Its form.
    pub kind: SignatureKind,
    /// Offset of the header of the DIGESTS section, from the start of the image.
    pub digests: u64,
    /// The signature of its message.
    pub signature: &'s [u8],
}

/// Bytes of the body before the signature.
const FIXED: usize = 16;

impl<'s> SignatureBody<'s> {
    /// Longest signature that is written or read (64 KiB). Those of large RSA keys stay below 4 KiB.
    pub const MOST: usize = 64 << 10;

    /// Encodes the body.
    ///
    /// # Errors
    /// [`Error::Limit`] for a signature of more than [`SignatureBody::MOST`] bytes.
    pub fn encode(&self) -> Result<Vec<u8>> {
        if self.signature.len() > Self::MOST {
            return Err(too_long(self.signature.len()));
        }
        let mut out = Vec::with_capacity(FIXED + self.signature.len());
        out.extend(self.kind.id().to_le_bytes());
        out.extend((self.signature.len() as u32).to_le_bytes());
        out.extend(self.digests.to_le_bytes());
        out.extend(self.signature);
        Ok(out)
    }

    /// Decodes a body.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a kind that is not known, [`Error::Limit`] for a very long signature, and
    /// [`Error::Corrupt`] if the body is cut off.
    pub fn parse(body: &'s [u8]) -> Result<Self> {
        let cut = || Error::corrupt("a signature is cut off");
        let (fixed, rest) = body.split_first_chunk::<FIXED>().ok_or_else(cut)?;
        let [k0, k1, k2, k3, l0, l1, l2, l3, digests @ ..] = *fixed;
        let kind = u32::from_le_bytes([k0, k1, k2, k3]);
        let kind = SignatureKind::from_id(kind)
            .ok_or_else(|| Error::Unsupported(format!("signature of kind {kind}")))?;
        let length = u32::from_le_bytes([l0, l1, l2, l3]) as usize;
        if length > Self::MOST {
            return Err(too_long(length));
        }
        Ok(Self {
            kind,
            digests: u64::from_le_bytes(digests),
            signature: rest.get(..length).ok_or_else(cut)?,
        })
    }
}

fn too_long(length: usize) -> Error {
    Error::Limit(format!("a signature of {length} bytes"))
}
