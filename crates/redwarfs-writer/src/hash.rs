//! Hashes that find duplicate files.

use std::fmt;
use std::str::FromStr;

use sha2::Digest as _;
use twox_hash::{XxHash3_64, XxHash3_128};

macro_rules! hashes {
    ($($(#[$doc:meta])* $variant:ident, $name:literal, $state:ty;)*) => {
        /// A hash function for finding duplicate files.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
        #[non_exhaustive]
        pub enum FileHash {
            /// XXH3, 64 bits.
            Xxh3_64,
            /// XXH3, 128 bits: the default.
            Xxh3_128,
            $($(#[$doc])* $variant,)*
        }

        impl FileHash {
            /// Every hash, in the order of its name.
            pub const ALL: &[FileHash] = &[$(FileHash::$variant,)* FileHash::Xxh3_64, FileHash::Xxh3_128];

            /// The name on the command line.
            pub fn name(self) -> &'static str {
                match self {
                    FileHash::Xxh3_64 => "xxh3-64",
                    FileHash::Xxh3_128 => "xxh3-128",
                    $(FileHash::$variant => $name,)*
                }
            }

            /// Whether no method is known to make different contents with the same digest.
            pub fn is_cryptographic(self) -> bool {
                use FileHash::{Md5, Md5Sha1, Ripemd160, Sha1, Xxh3_64, Xxh3_128};
                !matches!(self, Xxh3_64 | Xxh3_128 | Md5 | Md5Sha1 | Ripemd160 | Sha1)
            }

            pub(crate) fn hasher(self) -> Hasher {
                match self {
                    FileHash::Xxh3_64 => Hasher::Xxh3_64(Box::new(XxHash3_64::new())),
                    FileHash::Xxh3_128 => Hasher::Xxh3_128(Box::new(XxHash3_128::new())),
                    $(FileHash::$variant => Hasher::$variant(Box::new(<$state>::new())),)*
                }
            }
        }

        /// State of a hash.
        pub(crate) enum Hasher {
            Xxh3_64(Box<XxHash3_64>),
            Xxh3_128(Box<XxHash3_128>),
            $($variant(Box<$state>),)*
        }

        impl Hasher {
            pub(crate) fn update(&mut self, data: &[u8]) {
                match self {
                    Hasher::Xxh3_64(h) => std::hash::Hasher::write(h.as_mut(), data),
                    Hasher::Xxh3_128(h) => h.write(data),
                    $(Hasher::$variant(h) => h.update(data),)*
                }
            }

            /// The digest. For XXH3 the bytes are the reverse of the canonical form. The order of inode
            /// numbers is defined by this form.
            pub(crate) fn finish(self) -> Digest {
                match self {
                    Hasher::Xxh3_64(h) => Digest::new(&std::hash::Hasher::finish(h.as_ref()).to_le_bytes()),
                    Hasher::Xxh3_128(h) => Digest::new(&h.finish_128().to_le_bytes()),
                    $(Hasher::$variant(h) => Digest::new(&h.finalize()),)*
                }
            }
        }
    };
}

hashes! {
    /// BLAKE2b, 512 bits.
    Blake2b512, "blake2b512", blake2::Blake2b512;
    /// BLAKE2s, 256 bits.
    Blake2s256, "blake2s256", blake2::Blake2s256;
    /// MD5.
    Md5, "md5", md5::Md5;
    /// MD5 and SHA-1 one after the other.
    Md5Sha1, "md5-sha1", Md5Sha1;
    /// RIPEMD-160.
    Ripemd160, "ripemd160", ripemd::Ripemd160;
    /// SHA-1.
    Sha1, "sha1", sha1::Sha1;
    /// SHA-224.
    Sha224, "sha224", sha2::Sha224;
    /// SHA-256.
    Sha256, "sha256", sha2::Sha256;
    /// SHA3-224.
    Sha3_224, "sha3-224", sha3::Sha3_224;
    /// SHA3-256.
    Sha3_256, "sha3-256", sha3::Sha3_256;
    /// SHA3-384.
    Sha3_384, "sha3-384", sha3::Sha3_384;
    /// SHA3-512.
    Sha3_512, "sha3-512", sha3::Sha3_512;
    /// SHA-384.
    Sha384, "sha384", sha2::Sha384;
    /// SHA-512.
    Sha512, "sha512", sha2::Sha512;
    /// SHA-512/224.
    Sha512_224, "sha512-224", sha2::Sha512_224;
    /// SHA-512/256.
    Sha512_256, "sha512-256", sha2::Sha512_256;
    /// SM3.
    Sm3, "sm3", sm3::Sm3;
}

/// MD5 followed by SHA-1 of the same bytes.
pub(crate) struct Md5Sha1(md5::Md5, sha1::Sha1);

impl Md5Sha1 {
    fn new() -> Self {
        Self(md5::Md5::new(), sha1::Sha1::new())
    }

    fn update(&mut self, data: &[u8]) {
        self.0.update(data);
        self.1.update(data);
    }

    fn finalize(self) -> Vec<u8> {
        let mut out = self.0.finalize().to_vec();
        out.extend_from_slice(&self.1.finalize());
        out
    }
}

impl Hasher {
    /// Adds `count` zero bytes.
    pub(crate) fn update_zeros(&mut self, mut count: u64) {
        static ZEROS: [u8; 4096] = [0; 4096];
        while count > 0 {
            let n = count.min(ZEROS.len() as u64) as usize;
            self.update(&ZEROS[..n]);
            count -= n as u64;
        }
    }
}

/// A digest of up to 64 bytes, compared as a byte string. Those of one hash function are all
/// short or all long.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub(crate) enum Digest {
    Short([u8; 16]),
    Long(Box<[u8; 64]>),
}

impl Digest {
    fn new(digest: &[u8]) -> Self {
        if digest.len() <= 16 {
            Digest::Short(padded(digest))
        } else {
            Digest::Long(Box::new(padded(digest)))
        }
    }

    /// The digest with these [`bytes`](Self::bytes).
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        matches!(bytes.len(), 16 | 64).then(|| Digest::new(bytes))
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Digest::Short(bytes) => bytes,
            Digest::Long(bytes) => bytes.as_slice(),
        }
    }
}

fn padded<const N: usize>(digest: &[u8]) -> [u8; N] {
    let mut bytes = [0; N];
    for (to, from) in bytes.iter_mut().zip(digest) {
        *to = *from;
    }
    bytes
}

/// A hash name that is not known.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("unknown file hash function '{0}' (none, or one of {names})", names = names())]
pub struct UnknownFileHash(pub String);

fn names() -> String {
    let names: Vec<&str> = FileHash::ALL.iter().map(|hash| hash.name()).collect();
    names.join(", ")
}

impl FromStr for FileHash {
    type Err = UnknownFileHash;

    fn from_str(name: &str) -> Result<Self, UnknownFileHash> {
        Self::ALL
            .iter()
            .copied()
            .find(|hash| hash.name() == name)
            .ok_or_else(|| UnknownFileHash(name.to_owned()))
    }
}

impl fmt::Display for FileHash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip() {
        for hash in FileHash::ALL {
            assert_eq!(hash.name().parse::<FileHash>().unwrap(), *hash);
        }
        assert!("none".parse::<FileHash>().is_err());
    }

    #[test]
    fn digests_tell_contents_apart() {
        for &hash in FileHash::ALL {
            let digest = |data: &[u8]| {
                let mut hasher = hash.hasher();
                hasher.update(data);
                hasher.finish()
            };
            assert_eq!(digest(b"abc"), digest(b"abc"));
            assert_ne!(digest(b"abc"), digest(b"abd"), "{hash}");
            let mut zeros = hash.hasher();
            zeros.update_zeros(100_000);
            assert_eq!(zeros.finish(), digest(&vec![0; 100_000]));
        }
    }

    #[test]
    fn xxh3_digests_are_the_reversed_canonical_form() {
        let mut hasher = FileHash::Xxh3_64.hasher();
        hasher.update(b"");
        assert_eq!(
            hasher.finish().bytes()[..8],
            0x2d06_8005_38d3_94c2u64.to_le_bytes()
        );
    }
}
