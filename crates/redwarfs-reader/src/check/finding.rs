//! Findings: one for each damage of an image.

use std::fmt;
use std::sync::Arc;

use redwarfs_format::section::SectionType;
use redwarfs_format::{BlockNo, Error};

/// The kind of a damage.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum FindingKind {
    /// The XXH3-64 of a section differs from its header.
    Checksum,
    /// The SHA-512/256 of a section, or its XXH3-64, differs from its header.
    Integrity,
    /// The section cannot be read.
    Read,
    /// A section header is damaged.
    Header,
    /// The section index is damaged.
    Index,
    /// A section type that occurs once in an image occurs twice.
    Duplicate,
    /// A section has the wrong number.
    Order,
    /// Bytes belong to no section.
    Gap,
    /// A payload with the right checksum cannot be decoded.
    Decode,
    /// Files need more data than a block has.
    Size,
    /// The metadata contradicts itself.
    Metadata,
    /// Bytes of unknown origin follow the image.
    Trailing,
    /// The end of the image may be missing.
    End,
    /// The image cannot be opened.
    Open,
}

impl FindingKind {
    /// The name for programs, such as `checksum`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Checksum => "checksum",
            Self::Integrity => "integrity",
            Self::Read => "read",
            Self::Header => "header",
            Self::Index => "index",
            Self::Duplicate => "duplicate",
            Self::Order => "order",
            Self::Gap => "gap",
            Self::Decode => "decode",
            Self::Size => "size",
            Self::Metadata => "metadata",
            Self::Trailing => "trailing",
            Self::End => "end",
            Self::Open => "open",
        }
    }
}

/// The damaged section.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SectionPlace {
    /// Position in file order, starting from 0.
    pub position: u32,
    /// Type, if it is known.
    pub ty: Option<SectionType>,
    /// Block number, if the section is a block.
    pub block: Option<BlockNo>,
    /// Offset of the payload from the start of the image.
    pub offset: u64,
}

impl fmt::Display for SectionPlace {
    /// `section 4 (BLOCK 4) at offset 80619`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "section {}", self.position)?;
        match (self.ty, self.block) {
            (Some(ty), Some(block)) => write!(f, " ({ty} {block})")?,
            (Some(ty), None) => write!(f, " ({ty})")?,
            (None, _) => {}
        }
        write!(f, " at offset {}", self.offset)
    }
}

/// The paths of the files that a damaged block affects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AffectedPaths {
    /// Number of paths.
    pub count: u64,
    /// The first few, in tree order.
    pub first: Vec<Vec<u8>>,
}

/// A declaration about the image with which the same check would not give the finding.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Declaration {
    /// Several images are in the file, and this one is meant
    /// ([`ImageOffset::Nth`](crate::ImageOffset::Nth)).
    ImageNumber,
    /// The image has this size ([`OpenOptions::image_size`](crate::OpenOptions::image_size)).
    ImageSize(u64),
}

/// A damage.
#[derive(Debug)]
pub struct Finding {
    /// The kind.
    pub kind: FindingKind,
    /// The message, without the cause.
    pub what: String,
    /// The error that shows the damage.
    pub cause: Option<Arc<Error>>,
    /// The section, if the damage lies in one.
    pub section: Option<SectionPlace>,
    /// The declaration with which the finding does not occur, if the image is intact.
    pub unless_declared: Option<Declaration>,
    /// The affected files, if the damage lies in a block and the metadata can be read.
    pub affected: Option<AffectedPaths>,
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.what)?;
        match &self.cause {
            Some(cause) => write!(f, ": {cause}"),
            None => Ok(()),
        }
    }
}

impl Finding {
    /// A finding about the image as a whole.
    #[must_use]
    pub fn new(kind: FindingKind, what: impl Into<String>) -> Self {
        Self {
            kind,
            what: what.into(),
            cause: None,
            section: None,
            unless_declared: None,
            affected: None,
        }
    }

    /// A finding about a section.
    pub(super) fn at(kind: FindingKind, what: impl Into<String>, section: SectionPlace) -> Self {
        Self {
            section: Some(section),
            ..Self::new(kind, what)
        }
    }

    /// The same with its cause.
    #[must_use]
    pub fn because(self, cause: impl Into<Arc<Error>>) -> Self {
        Self {
            cause: Some(cause.into()),
            ..self
        }
    }

    /// The block whose data is lost, if the damage lies in one.
    #[must_use]
    pub fn lost_block(&self) -> Option<BlockNo> {
        match self.kind {
            FindingKind::Checksum
            | FindingKind::Integrity
            | FindingKind::Read
            | FindingKind::Header
            | FindingKind::Decode
            | FindingKind::Size => self.section.and_then(|section| section.block),
            _ => None,
        }
    }
}
