//! Errors.

/// The result of the functions of this crate.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// What keeps an image from being signed or verified.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The image has no section index, or other data follows it.
    #[error("the image cannot be signed: {0}")]
    Unfit(&'static str),
    /// The image has no digests to sign.
    #[error("the image has no digests")]
    NoDigests,
    /// The image is not what its digests say.
    #[error("the digests of the image are not those of its contents")]
    Stale,
    /// The text names no way to verify an image.
    #[error("no such verification: {0} (one of signed:KEY, digests, checksums)")]
    Choice(String),
    /// The text is no key of a kind that is known.
    #[error("{0}")]
    Key(String),
    /// The password does not open the key.
    #[error("the password does not open the key")]
    Password,
    /// The text is no signature, or no signature by the key.
    #[error("{0}")]
    Signature(String),
    /// The image contradicts itself, or has no trusted signature.
    #[error(transparent)]
    Format(#[from] redwarfs_format::Error),
    /// Reading or writing failed.
    #[error("I/O error: {0}")]
    Io(#[from] std::io::Error),
    /// The caller asked to stop.
    #[error("interrupted")]
    Interrupted,
}
