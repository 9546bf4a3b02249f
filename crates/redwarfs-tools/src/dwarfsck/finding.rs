//! What is wrong with an image: one finding per damage, in a form for people and for programs.

use redwarfs_format::BlockNo;
use redwarfs_format::section::SectionType;

/// What sort of damage a finding is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// XXH3-64 differs.
    Checksum,
    /// SHA-512/256 (or, with it, XXH3-64) differs.
    Integrity,
    /// Reading failed.
    Read,
    /// A section header is damaged.
    Header,
    /// The section index is damaged.
    Index,
    /// A section is there twice.
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
    /// Bytes follow the image that nothing explains.
    Trailing,
    /// The end of the image may be missing.
    End,
    /// The image cannot be opened.
    Open,
}

impl Kind {
    pub(crate) fn name(self) -> &'static str {
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

/// The section with which something is wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Place {
    /// Position in file order, from 0.
    pub(crate) position: u32,
    /// What it is, as far as that is known.
    pub(crate) ty: Option<SectionType>,
    /// Its block number.
    pub(crate) block: Option<BlockNo>,
    /// Where its payload starts, relative to the image.
    pub(crate) offset: u64,
}

impl Place {
    /// `section 4 (BLOCK 4) at offset 80619`.
    pub(crate) fn text(&self) -> String {
        let name = match (self.ty, self.block) {
            (Some(ty), Some(block)) => format!(" ({ty} {block})"),
            (Some(ty), None) => format!(" ({ty})"),
            (None, _) => String::new(),
        };
        format!("section {}{name} at offset {}", self.position, self.offset)
    }
}

/// The names that a damage affects.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Affected {
    pub(crate) count: u64,
    /// The first of them, in tree order.
    pub(crate) first: Vec<Vec<u8>>,
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Finding {
    pub(crate) kind: Kind,
    pub(crate) message: String,
    pub(crate) place: Option<Place>,
    /// For damaged blocks of an image whose metadata can be read.
    pub(crate) affected: Option<Affected>,
}

impl Finding {
    pub(crate) fn new(kind: Kind, message: impl Into<String>) -> Self {
        Self {
            kind,
            message: message.into(),
            place: None,
            affected: None,
        }
    }

    pub(crate) fn at(kind: Kind, message: impl Into<String>, place: Place) -> Self {
        Self {
            place: Some(place),
            ..Self::new(kind, message)
        }
    }

    /// The block whose data is not to be had, if that is what is wrong.
    pub(crate) fn lost_block(&self) -> Option<BlockNo> {
        match self.kind {
            Kind::Checksum
            | Kind::Integrity
            | Kind::Read
            | Kind::Header
            | Kind::Decode
            | Kind::Size => self.place.and_then(|place| place.block),
            _ => None,
        }
    }
}
