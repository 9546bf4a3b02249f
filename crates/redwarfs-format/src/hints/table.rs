//! The HINTS section: blocks, each with a number.

use crate::error::{Error, Result};
use crate::ids::BlockNo;
use crate::section::{Binding, GenerationId, HiddenPayload, Prelude};

/// The tag of the section.
pub const HINTS_TAG: [u8; 4] = *b"DWHI";

/// Longest payload that a reader has to take (16 MiB): two million blocks.
pub const MAX_HINTS_SECTION: u64 = 16 << 20;

/// Bytes in front of the list: kind and count.
const HEAD: usize = 8;
/// Bytes of a block in the list.
const ENTRY: usize = 8;

/// What the blocks of a section are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HintKind {
    /// Those that a program needs when it starts, in the order of their first use. Values are milliseconds after the
    /// first read.
    Start,
    /// Those that are used often. Values are weights.
    Keep,
}

impl HintKind {
    /// All kinds, by their numbers.
    pub const ALL: [Self; 2] = [Self::Start, Self::Keep];

    /// Its number.
    #[must_use]
    pub fn id(self) -> u32 {
        match self {
            Self::Start => 1,
            Self::Keep => 2,
        }
    }

    /// Its name, such as `start`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Start => "start",
            Self::Keep => "keep",
        }
    }
}

/// A block, and the number that the kind of the section explains.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HintedBlock {
    /// The block. It need not exist.
    pub block: BlockNo,
    /// Milliseconds or weight.
    pub value: u32,
}

/// The contents of a HINTS section.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HintTable {
    /// What the blocks are.
    pub kind: HintKind,
    /// The blocks, in order.
    pub blocks: Vec<HintedBlock>,
}

impl HintTable {
    /// The prelude of the section, in an image with this generation.
    #[must_use]
    pub fn prelude(generation: GenerationId) -> Prelude {
        Prelude::of_generation(HINTS_TAG, generation)
    }

    /// Encodes the body of the section. Blocks that do not fit into [`MAX_HINTS_SECTION`] are left out.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let most = (MAX_HINTS_SECTION as usize - 4096) / ENTRY;
        let blocks = self.blocks.get(..most).unwrap_or(&self.blocks);
        let mut body = Vec::with_capacity(HEAD + blocks.len() * ENTRY);
        body.extend(self.kind.id().to_le_bytes());
        body.extend((blocks.len() as u32).to_le_bytes());
        for hinted in blocks {
            body.extend(hinted.block.0.to_le_bytes());
            body.extend(hinted.value.to_le_bytes());
        }
        body
    }

    /// Decodes the payload of a section, which must be bound to `generation`.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the payload has no such contents, [`Error::Unsupported`] for a later version, an unknown
    /// kind, or another generation: these are to be ignored.
    pub fn parse(payload: &[u8], generation: GenerationId) -> Result<Self> {
        let hidden = HiddenPayload::parse(payload)?;
        if hidden.prelude.tag != HINTS_TAG {
            return Err(Error::corrupt("hints without their tag"));
        }
        if hidden.prelude.major > 1 || hidden.prelude.flags >> 16 != 0 {
            return Err(Error::Unsupported("hints of a later version".into()));
        }
        if hidden.prelude.binding != Binding::Generation(generation) {
            return Err(Error::Unsupported("hints of another generation".into()));
        }
        let cut = || Error::corrupt("hints are cut off");
        let (head, list) = hidden.body.split_first_chunk::<HEAD>().ok_or_else(cut)?;
        let (head, _) = head.as_chunks::<4>();
        let [kind, count] = [0, 1].map(|at| head.get(at).map_or(0, |n| u32::from_le_bytes(*n)));
        let kind = match kind {
            1 => HintKind::Start,
            2 => HintKind::Keep,
            other => return Err(Error::Unsupported(format!("hints of kind {other}"))),
        };
        let (list, _) = list.as_chunks::<ENTRY>();
        // Later versions may add something behind the list.
        let list = list.get(..count as usize).ok_or_else(cut)?;
        let blocks = list.iter().map(|[a, b, c, d, value @ ..]| HintedBlock {
            block: BlockNo(u32::from_le_bytes([*a, *b, *c, *d])),
            value: u32::from_le_bytes(*value),
        });
        Ok(Self {
            kind,
            blocks: blocks.collect(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::section::{Footer, SectionHeader, SectionType, encode_hidden_section};

    const GENERATION: GenerationId = GenerationId([3; 16]);

    fn payload(prelude: &Prelude, body: &[u8]) -> Vec<u8> {
        let footer = Footer {
            open_offset: 0,
            open_length: 0,
            index: Some(7),
        };
        let section = encode_hidden_section(9, SectionType::HINTS, prelude, body, &footer);
        section[SectionHeader::LEN..].to_vec()
    }

    fn table() -> HintTable {
        let blocks = [(5, 0), (0, 12), (u32::MAX, u32::MAX)];
        HintTable {
            kind: HintKind::Start,
            blocks: blocks
                .map(|(block, value)| HintedBlock {
                    block: BlockNo(block),
                    value,
                })
                .to_vec(),
        }
    }

    #[test]
    fn tables_are_stored() {
        let prelude = HintTable::prelude(GENERATION);
        let mut body = table().encode();
        assert_eq!(body.len(), 8 + 3 * 8);
        assert_eq!(body[..12], [1, 0, 0, 0, 3, 0, 0, 0, 5, 0, 0, 0]);
        let parsed = HintTable::parse(&payload(&prelude, &body), GENERATION);
        assert_eq!(parsed.unwrap(), table());
        // What a later version adds.
        body.extend(b"more");
        let parsed = HintTable::parse(&payload(&prelude, &body), GENERATION);
        assert_eq!(parsed.unwrap(), table());
        let keep = HintTable {
            kind: HintKind::Keep,
            blocks: Vec::new(),
        };
        let parsed = HintTable::parse(&payload(&prelude, &keep.encode()), GENERATION);
        assert_eq!(parsed.unwrap(), keep);
    }

    #[test]
    fn what_does_not_fit_is_refused() {
        let prelude = HintTable::prelude(GENERATION);
        let body = table().encode();
        let cut = |body: &[u8]| HintTable::parse(&payload(&prelude, body), GENERATION);
        for end in 0..body.len() {
            assert!(matches!(cut(&body[..end]), Err(Error::Corrupt { .. })));
        }
        // A count for which no memory would be enough.
        let mut many = body.clone();
        many[4..8].fill(0xff);
        assert!(matches!(cut(&many), Err(Error::Corrupt { .. })));
        let mut other = body.clone();
        other[0] = 3;
        assert!(matches!(cut(&other), Err(Error::Unsupported(_))));
        let refused = |prelude: Prelude| {
            HintTable::parse(&payload(&prelude, &body), GENERATION)
                .unwrap_err()
                .to_string()
        };
        for (text, prelude) in [
            (
                "corrupt image: hints without their tag",
                Prelude {
                    tag: *b"DWSN",
                    ..prelude
                },
            ),
            (
                "unsupported: hints of a later version",
                Prelude {
                    major: 2,
                    ..prelude
                },
            ),
            (
                "unsupported: hints of a later version",
                Prelude {
                    flags: 1 << 16,
                    ..prelude
                },
            ),
            (
                "unsupported: hints of another generation",
                Prelude {
                    binding: Binding::None,
                    ..prelude
                },
            ),
            (
                "unsupported: hints of another generation",
                HintTable::prelude(GenerationId([4; 16])),
            ),
        ] {
            assert_eq!(refused(prelude), text);
        }
        let flagged = Prelude {
            flags: 1,
            minor: 9,
            ..prelude
        };
        assert!(HintTable::parse(&payload(&flagged, &body), GENERATION).is_ok());
    }
}
