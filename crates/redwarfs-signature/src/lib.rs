//! Digests and signatures of images (format chapter 13).
//!
//! [`make_digests`] computes the digests of an image, [`add_digests`] stores them behind it, and
//! [`add_signature`] a signature of them. [`SecretKey`] signs, and [`PublicKeys`] verifies: keys and signatures are
//! those of minisign and of SSH. [`verify_all`] compares a whole image with its digests.
//!
//! For reading only what is signed, give [`PublicKeys`] to the reader:
//! [`Verification::Signed`](redwarfs_reader::Verification::Signed).
//!
//! Secret keys and passwords are in no error and no `Debug` output.
#![forbid(unsafe_code)]

mod digests;
mod error;
mod keys;
mod minisign_keys;
mod secret;
mod ssh;
mod trailer;
mod verify;

pub use digests::{DigestOptions, make_digests};
pub use error::{Error, Result};
pub use keys::{PublicKeys, verification};
pub use redwarfs_format::digests::{DigestAlgorithm, Digests, SignatureKind};
pub use secret::{LockedKey, LockedText, SecretKey, signature_kind};
pub use trailer::{Added, add_digests, add_signature};
pub use verify::{Mismatch, WholeImage, verify_all};

/// Bytes that are read at a time.
const PIECE: usize = 1 << 20;
/// Namespace of SSH signatures.
const NAMESPACE: &str = "dwarfs";
