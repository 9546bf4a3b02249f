//! Computing the digests of an image.

use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::digests::{
    Digest, DigestAlgorithm, Digests, LeafGroup, Leaves, SectionDigest, SectionDigester,
};
use redwarfs_format::section::{
    CompressionId, Container, GenerationId, IndexState, Section, SectionType,
};
use redwarfs_io::Source;

use crate::PIECE;
use crate::error::{Error, Result};

/// How digests are made.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct DigestOptions {
    /// The hash; BLAKE3 by default.
    pub algorithm: DigestAlgorithm,
    /// The time to state, in seconds since 1970.
    pub time: i64,
}

/// The sections of the image at an offset of a file.
pub(crate) fn container(source: &dyn Source, offset: u64) -> Result<Container> {
    let read = |at, out: &mut [u8]| source.read_exact_at(at, out);
    Ok(Container::open(&read, source.len()?, offset, None)?)
}

/// A section with its header.
pub(crate) fn with_header(
    source: &dyn Source,
    container: &Container,
    section: &Section,
) -> Result<Section> {
    let read = |at, out: &mut [u8]| source.read_exact_at(at, out);
    Ok(container.load_header(&read, section.position)?)
}

/// Reads a payload in pieces of [`PIECE`] bytes.
pub(crate) fn read_payload(
    source: &dyn Source,
    container: &Container,
    section: &Section,
    stop: &AtomicBool,
    take: &mut dyn FnMut(&[u8]),
) -> Result<()> {
    let mut buffer = vec![0; PIECE.min(usize::try_from(section.length).unwrap_or(PIECE))];
    let (mut at, mut left) = (container.file_offset(section), section.length);
    while left > 0 {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let n = usize::try_from(left).map_or(PIECE, |left| left.min(PIECE));
        let part = buffer.get_mut(..n).unwrap_or_default();
        source.read_exact_at(at, part)?;
        take(part);
        at = at.saturating_add(n as u64);
        left -= n as u64;
    }
    Ok(())
}

/// Digests of leaves of a size that divides [`PIECE`].
struct LeafMaker {
    algorithm: DigestAlgorithm,
    size: usize,
    digests: Vec<Digest>,
}

impl LeafMaker {
    fn update(&mut self, piece: &[u8]) {
        let leaves = piece.chunks(self.size);
        self.digests
            .extend(leaves.map(|leaf| self.algorithm.digest(leaf)));
    }
}

/// Computes the digests of all sections of an image, and of the leaves of its uncompressed blocks. `done` gets the
/// number of payload bytes after each piece.
///
/// # Errors
/// [`Error::Unfit`] if the image has no valid index, [`Error::Format`] if a header is wrong, [`Error::Io`] if
/// reading fails, [`Error::Interrupted`] if `stop` is set.
pub fn make_digests(
    source: &dyn Source,
    container: &Container,
    options: DigestOptions,
    done: &dyn Fn(u64),
    stop: &AtomicBool,
) -> Result<Digests> {
    if container.index != IndexState::Valid {
        return Err(Error::Unfit("it has no valid section index"));
    }
    let size = 1 << Leaves::WRITTEN;
    let mut entries = Vec::with_capacity(container.sections.len());
    let mut groups = Vec::new();
    let mut generation = None;
    for (number, section) in (0_u32..).zip(&container.sections) {
        let section = with_header(source, container, section)?;
        let header = section
            .header
            .as_ref()
            .ok_or(Error::Unfit("its sections have no checksums"))?;
        let mut digester = SectionDigester::new(options.algorithm, header);
        let in_leaves = section.ty == SectionType::BLOCK
            && section.compression == Some(CompressionId::NONE)
            && section.length > size as u64;
        let mut leaves = LeafMaker {
            algorithm: options.algorithm,
            size,
            digests: Vec::new(),
        };
        let mut index = Vec::new();
        let is_index = section.ty == SectionType::SECTION_INDEX;
        read_payload(source, container, &section, stop, &mut |piece| {
            digester.update(piece);
            if in_leaves {
                leaves.update(piece);
            }
            if is_index {
                index.extend_from_slice(piece);
            }
            done(piece.len() as u64);
        })?;
        if is_index {
            generation = Some(GenerationId::of(&index));
        }
        if in_leaves {
            groups.push(LeafGroup {
                entry: number,
                digests: leaves.digests,
            });
        }
        entries.push(SectionDigest {
            ty: section.ty,
            offset: section.header_offset,
            digest: digester.finish(),
        });
    }
    let leaves = Leaves {
        log_size: Leaves::WRITTEN,
        groups,
    };
    Ok(Digests {
        algorithm: options.algorithm,
        time: options.time,
        version: Some(container.version),
        generation: generation.ok_or(Error::Unfit("it has no section index"))?,
        entries,
        leaves: Some(leaves).filter(|leaves| !leaves.groups.is_empty()),
    })
}
