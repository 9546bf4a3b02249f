//! What tells open images apart.

use std::hash::{DefaultHasher, Hash as _, Hasher as _};

use redwarfs_format::GenerationNo;
use redwarfs_format::section::{Container, Section};

/// Tells images apart, within one process: their sections, and the checksums of schema and metadata.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct ImageIdentity(u64);

impl ImageIdentity {
    pub(crate) fn of(
        container: &Container,
        headers: &[Section],
        archived: Option<GenerationNo>,
    ) -> Self {
        let mut hasher = DefaultHasher::new();
        (container.offset, container.size, archived).hash(&mut hasher);
        for section in &container.sections {
            (section.ty.0, section.header_offset).hash(&mut hasher);
        }
        for header in headers.iter().filter_map(|section| section.header) {
            (header.xxh, header.sha).hash(&mut hasher);
        }
        Self(hasher.finish())
    }
}
