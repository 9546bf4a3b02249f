//! What an image must prove.

use redwarfs_reader::Verification;

use crate::error::{Error, Result};

/// Understands what an image must prove before anything of it is used, as the tools do:
///
/// | text | meaning |
/// |---|---|
/// | `signed:KEY` | digests of all sections that a key has signed. `KEY` is a public key of minisign or SSH, or a file with keys |
/// | `digests` | digests of all sections, of whoever made them |
/// | `checksums` | the checksums of sections, as without this |
///
/// ```
/// # let work = tempfile::tempdir()?;
/// # std::fs::write(work.path().join("note"), "x")?;
/// # let mut bytes = Vec::new();
/// # redwarfs::Builder::new(work.path()).level(1).write(&mut bytes)?;
/// # let source = std::sync::Arc::new(redwarfs::io::MemorySource::new(bytes));
/// let mut options = redwarfs::OpenOptions::default();
/// options.verification =
///     redwarfs::verification("signed:RWQf6LRCGA9i53mlYecO4IzT51TGPpvWucNSCh1CBM0QTaLn73Y7GFO3")?;
/// // This image is not signed.
/// assert!(redwarfs::Image::from_source(source, &options).is_err());
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
/// [`Error::Verification`] if the text is none of these, or there is no such key.
pub fn verification(text: &str) -> Result<Verification> {
    redwarfs_signature::verification(text).map_err(|source| Error::Verification {
        text: text.to_owned(),
        source,
    })
}
