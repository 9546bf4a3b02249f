//! Patches: the corrected bytes of a file (format chapter 11, section 7).

use twox_hash::XxHash3_128;

use crate::error::{Error, Result};

/// What a patch begins with.
const MAGIC: &[u8; 8] = b"DwRSpat1";

/// XXH3-128 of bytes that come in pieces.
pub struct FileHasher(XxHash3_128);

impl FileHasher {
    /// Of nothing yet.
    #[must_use]
    pub fn new() -> Self {
        Self(XxHash3_128::new())
    }

    /// Takes the next bytes.
    pub fn update(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The hash, low half first.
    #[must_use]
    pub fn finish(&self) -> [u8; 16] {
        self.0.finish_128().to_le_bytes()
    }
}

impl Default for FileHasher {
    fn default() -> Self {
        Self::new()
    }
}

impl std::fmt::Debug for FileHasher {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("FileHasher").finish_non_exhaustive()
    }
}

/// The start of a patch. Entries follow it: for each, an [`EntryHead`] and its bytes. Later ones count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PatchHeader {
    /// Length of the file with the patch.
    pub length: u64,
    /// XXH3-128 of that file, low half first.
    pub file: [u8; 16],
    /// Number of entries.
    pub entries: u64,
    /// Length of the patch.
    pub patch: u64,
    /// XXH3-128 of what follows the header.
    pub body: [u8; 16],
}

impl PatchHeader {
    /// Encoded length in bytes.
    pub const LEN: usize = 64;

    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.length.to_le_bytes());
        bytes[16..32].copy_from_slice(&self.file);
        bytes[32..40].copy_from_slice(&self.entries.to_le_bytes());
        bytes[40..48].copy_from_slice(&self.patch.to_le_bytes());
        bytes[48..].copy_from_slice(&self.body);
        bytes
    }

    /// Decodes it.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is none, or its numbers contradict each other.
    pub fn parse(bytes: &[u8; Self::LEN]) -> Result<Self> {
        let [m0, m1, m2, m3, m4, m5, m6, m7, rest @ ..] = *bytes;
        let (words, _) = rest.as_chunks::<8>();
        let [length, f0, f1, entries, patch, b0, b1] = *words else {
            return Err(Error::corrupt("start of a patch is cut off"));
        };
        let pair = |a: [u8; 8], b: [u8; 8]| {
            let mut out = [0; 16];
            out[..8].copy_from_slice(&a);
            out[8..].copy_from_slice(&b);
            out
        };
        let header = Self {
            length: u64::from_le_bytes(length),
            file: pair(f0, f1),
            entries: u64::from_le_bytes(entries),
            patch: u64::from_le_bytes(patch),
            body: pair(b0, b1),
        };
        if [m0, m1, m2, m3, m4, m5, m6, m7] != *MAGIC {
            return Err(Error::corrupt("is no patch"));
        }
        // Each entry has a byte at least.
        let least = header.entries.checked_mul(EntryHead::LEN as u64 + 1);
        let least = least.and_then(|bytes| bytes.checked_add(Self::LEN as u64));
        if least.is_none_or(|least| least > header.patch) {
            return Err(Error::corrupt("a patch with more entries than bytes"));
        }
        Ok(header)
    }
}

/// The start of an entry, in front of its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryHead {
    /// Where the bytes belong in the file.
    pub position: u64,
    /// Their number, at least 1.
    pub length: u64,
}

impl EntryHead {
    /// Encoded length in bytes.
    pub const LEN: usize = 16;

    /// Encodes it.
    #[must_use]
    pub fn encode(&self) -> [u8; Self::LEN] {
        let mut bytes = [0; Self::LEN];
        bytes[..8].copy_from_slice(&self.position.to_le_bytes());
        bytes[8..].copy_from_slice(&self.length.to_le_bytes());
        bytes
    }

    /// Decodes it.
    #[must_use]
    pub fn parse(bytes: &[u8; Self::LEN]) -> Self {
        let (words, _) = bytes.as_chunks::<8>();
        let [position, length] =
            [0, 1].map(|at| words.get(at).map_or(0, |w| u64::from_le_bytes(*w)));
        Self { position, length }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_come_back_and_nonsense_is_refused() {
        let header = PatchHeader {
            length: 1 << 40,
            file: [7; 16],
            entries: 3,
            patch: 64 + 3 * 17,
            body: [9; 16],
        };
        let bytes = header.encode();
        assert_eq!(PatchHeader::parse(&bytes).unwrap(), header);
        for (at, value) in [(0, 0_u64), (32, 4), (32, u64::MAX), (40, 114), (40, 0)] {
            let mut edited = bytes;
            edited[at..at + 8].copy_from_slice(&value.to_le_bytes());
            assert!(PatchHeader::parse(&edited).is_err(), "{at} {value}");
        }
        let head = EntryHead {
            position: 5,
            length: 1 << 33,
        };
        assert_eq!(EntryHead::parse(&head.encode()), head);
    }
}
