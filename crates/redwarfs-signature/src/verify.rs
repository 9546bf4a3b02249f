//! Comparing a whole image with its digests.

use std::sync::atomic::AtomicBool;

use redwarfs_format::digests::SectionDigester;
use redwarfs_format::section::{Container, Section};
use redwarfs_io::Source;
use redwarfs_reader::StoredDigests;

use crate::digests::{read_payload, with_header};
use crate::error::{Error, Result};

/// A section that is not what its digest says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mismatch {
    /// The section, as the index has it.
    pub section: Section,
    /// Why, as text for the user.
    pub why: String,
}

/// The result of a comparison.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct WholeImage {
    /// Sections that were compared.
    pub sections: usize,
    /// Bytes of their payloads.
    pub bytes: u64,
    /// Those that differ.
    pub mismatches: Vec<Mismatch>,
}

/// Compares all sections of an image with its digests. `done` gets the number of payload bytes after each piece.
///
/// # Errors
/// [`Error::Format`] if the digests name other sections than the image has, [`Error::Io`] if reading fails,
/// [`Error::Interrupted`] if `stop` is set.
pub fn verify_all(
    source: &dyn Source,
    container: &Container,
    digests: &StoredDigests,
    done: &dyn Fn(u64),
    stop: &AtomicBool,
) -> Result<WholeImage> {
    let digests = &digests.digests;
    digests.fit(container)?;
    let mut result = WholeImage::default();
    for (section, entry) in container.sections.iter().zip(&digests.entries) {
        result.sections += 1;
        let differs = |why: String| Mismatch {
            section: section.clone(),
            why,
        };
        let loaded = match with_header(source, container, section) {
            Ok(loaded) => loaded,
            Err(Error::Format(e @ redwarfs_format::Error::Corrupt { .. })) => {
                result.mismatches.push(differs(e.to_string()));
                continue;
            }
            Err(e) => return Err(e),
        };
        let Some(header) = &loaded.header else {
            continue;
        };
        let mut digester = SectionDigester::new(digests.algorithm, header);
        read_payload(source, container, &loaded, stop, &mut |piece| {
            digester.update(piece);
            done(piece.len() as u64);
        })?;
        result.bytes += loaded.length;
        if digester.finish() != entry.digest {
            result
                .mismatches
                .push(differs(format!("{} does not have its digest", section.ty)));
        }
    }
    Ok(result)
}
