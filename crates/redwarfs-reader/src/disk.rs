//! Blocks of an image in a cache on disk.
//!
//! An entry is a block as it is stored: its header is the note, its payload the body. The key is the digest of the
//! block, if the image has digests, and has been compared with it. A digest covers the number of the block, so copies of an
//! image, and its older and newer snapshots, share their blocks. Otherwise the key is the identity of the
//! image, and the place of the block. Payloads from the cache are verified where all payloads are (`payload.rs`). A wrong one
//! is dropped, and fetched from the image.

use redwarfs_format::digests::{Digests, SectionDigester};
use redwarfs_format::section::{Container, GenerationId, Section, SectionHeader, SectionType};
use redwarfs_io::{CacheEntry, CacheKey, DiskCache, Source};

use crate::verify::stored_digests;

/// The blocks of one image in the cache.
#[derive(Debug)]
pub(crate) struct DiskBlocks {
    cache: DiskCache,
    keys: Keys,
}

#[derive(Debug)]
enum Keys {
    Digests(Digests),
    /// The identity of the image.
    Places([u8; 16]),
}

impl DiskBlocks {
    /// The blocks of an image. `headers` are those of its sections, as far as they are known. None if nothing identifies
    /// the image.
    pub(crate) fn new(
        cache: &DiskCache,
        source: &dyn Source,
        container: &Container,
        headers: &[Section],
    ) -> Option<Self> {
        let keys = match Self::digests(source, container) {
            Some(digests) => Keys::Digests(digests),
            None => Keys::Places(identity(source, container, headers)?),
        };
        Some(Self {
            cache: cache.clone(),
            keys,
        })
    }

    /// The digests of the image. Anybody can have made them: they only tell blocks apart.
    fn digests(source: &dyn Source, container: &Container) -> Option<Digests> {
        let mut trailers = container.trailers.iter();
        trailers.find(|section| section.ty == SectionType::DIGESTS)?;
        let stored = stored_digests(source, container).ok()??;
        stored.digests.fit(container).ok()?;
        Some(stored.digests)
    }

    fn key(&self, section: &Section) -> Option<CacheKey> {
        if section.ty != SectionType::BLOCK {
            return None;
        }
        match &self.keys {
            Keys::Digests(digests) => {
                let entry = digests.entries.get(section.position as usize)?;
                let fits = (entry.ty, entry.offset) == (section.ty, section.header_offset);
                let kind = format!("digest{}", digests.algorithm.id());
                fits.then(|| CacheKey::of(&kind, &entry.digest))
            }
            Keys::Places(image) => {
                let place = [&image[..], &section.header_offset.to_le_bytes()].concat();
                Some(CacheKey::of("place", &GenerationId::of(&place).0))
            }
        }
    }

    /// Whether a block is in the cache.
    pub(crate) fn contains(&self, section: &Section) -> bool {
        self.key(section)
            .is_some_and(|key| self.cache.contains(&key))
    }

    /// The header of a block in the cache.
    pub(crate) fn header(&self, section: &Section) -> Option<[u8; SectionHeader::LEN]> {
        let entry = self.cache.find(&self.key(section)?)?;
        entry.note().try_into().ok()
    }

    /// Reads a payload from the cache, which is still to be verified.
    pub(crate) fn find(&self, section: &Section) -> Option<CacheEntry> {
        let entry = self.cache.find(&self.key(section)?)?;
        let header = section.header.as_ref()?;
        (entry.len() == section.length && entry.note() == header.encode()).then_some(entry)
    }

    /// Drops a block that is not what it must be.
    pub(crate) fn drop_damaged(&self, section: &Section) {
        if let Some(key) = self.key(section) {
            tracing::info!(
                "block {} in the cache is damaged: fetched anew",
                section.position
            );
            self.cache.remove_damaged(&key);
        }
    }

    /// Whether a block has the digest that is its key. Without this, an image could pass off other bytes as a block of another
    /// image.
    fn has_digest(&self, section: &Section, header: &SectionHeader, payload: &[u8]) -> bool {
        let Keys::Digests(digests) = &self.keys else {
            return true;
        };
        let mut digester = SectionDigester::new(digests.algorithm, header);
        digester.update(payload);
        let entry = digests.entries.get(section.position as usize);
        entry.is_some_and(|entry| entry.digest == digester.finish())
    }

    /// Waits while many blocks wait to be written.
    pub(crate) fn wait_for_room(&self) {
        self.cache.wait_for_room();
    }

    /// Adds a block that was verified.
    pub(crate) fn insert(&self, section: &Section, payload: &[u8]) {
        if let (Some(key), Some(header)) = (self.key(section), &section.header)
            && !self.cache.contains(&key)
            && self.has_digest(section, header, payload)
        {
            self.cache
                .insert(&key, header.encode().to_vec(), payload.to_vec());
        }
    }
}

/// What tells an image apart from others: the version of its file or object, where its sections are, and the checksums of all
/// sections that are no blocks. None if the source cannot tell its version.
fn identity(source: &dyn Source, container: &Container, headers: &[Section]) -> Option<[u8; 16]> {
    let mut text = source.identity()?.into_bytes();
    text.push(0);
    for number in [container.offset, container.size] {
        text.extend_from_slice(&number.to_le_bytes());
    }
    for section in &container.sections {
        text.extend_from_slice(&section.ty.0.to_le_bytes());
        text.extend_from_slice(&section.header_offset.to_le_bytes());
    }
    for header in headers.iter().filter_map(|section| section.header.as_ref()) {
        text.extend_from_slice(&header.xxh.to_le_bytes());
    }
    // The same function as for generations.
    Some(GenerationId::of(&text).0)
}
