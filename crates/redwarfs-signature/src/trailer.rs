//! Adding digests and signatures behind an image.

use redwarfs_format::digests::{
    DIGESTS_TAG, Digests, SIGNATURE_TAG, SignatureBody, SignatureKind, encode_message,
};
use redwarfs_format::section::{Container, GenerationId, Opening, Prelude, SectionType};
use redwarfs_io::{Append, LockedFile, Source};
use redwarfs_reader::{StoredDigests, stored_digests};

use crate::digests::container;
use crate::error::{Error, Result};

/// What was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Added {
    /// Bytes by which the file has grown.
    pub bytes: u64,
    /// Offset of the header of the new section, from the start of the image.
    pub header_offset: u64,
}

/// Adds a DIGESTS section behind the image at `offset` of a file. At every moment, the file is a valid image.
///
/// # Errors
/// [`Error::Unfit`] if the image has no valid index or other data follows it, [`Error::Stale`] if the digests are those of another image, [`Error::Io`] if writing fails. The file
/// is unchanged then.
pub fn add_digests(file: LockedFile, offset: u64, digests: &Digests) -> Result<Added> {
    let image = container(&file, offset)?;
    if digests.fit(&image).is_err() {
        return Err(Error::Stale);
    }
    let message = encode_message(digests);
    // The prelude is made anew from the same values.
    let body = message.get(Prelude::LEN..).unwrap_or_default();
    append(
        file,
        offset,
        &image,
        SectionType::DIGESTS,
        DIGESTS_TAG,
        digests.generation,
        body,
    )
}

/// Adds a SIGNATURE section for the digests of the image at `offset` of a file. Whether the signature is right is the
/// caller's affair. At every moment, the file is a valid image.
///
/// # Errors
/// [`Error::NoDigests`] if the image has none; [`Error::Stale`] if they are not `digests`; otherwise as
/// [`add_digests`].
pub fn add_signature(
    file: LockedFile,
    offset: u64,
    digests: &StoredDigests,
    kind: SignatureKind,
    signature: &[u8],
) -> Result<Added> {
    let image = container(&file, offset)?;
    let stored = stored_digests(&file, &image)?.ok_or(Error::NoDigests)?;
    if stored.message != digests.message || stored.header_offset != digests.header_offset {
        return Err(Error::Stale);
    }
    let body = SignatureBody {
        kind,
        digests: stored.header_offset,
        signature,
    };
    append(
        file,
        offset,
        &image,
        SectionType::SIGNATURE,
        SIGNATURE_TAG,
        stored.digests.generation,
        &body.encode()?,
    )
}

fn append(
    file: LockedFile,
    offset: u64,
    image: &Container,
    ty: SectionType,
    tag: [u8; 4],
    generation: GenerationId,
    body: &[u8],
) -> Result<Added> {
    let opening = Opening::of(image).ok_or(Error::Unfit("it has no valid section index"))?;
    let end = offset.saturating_add(image.size);
    if file.len()? != end.saturating_add(image.unused_tail) {
        return Err(Error::Unfit("other data follows it"));
    }
    let prelude = Prelude::of_generation(tag, generation);
    let number = image.next_number();
    let section = opening.encode_trailer(image.size, number, ty, &prelude, body);
    let length = section.len() as u64;
    let mut append = Append::begin(file, end, opening.tail_pointer())?;
    append.reserve(end + length)?;
    append.write_all_at(end, &section)?;
    append.commit(end + length)?;
    Ok(Added {
        bytes: length,
        header_offset: image.size,
    })
}
