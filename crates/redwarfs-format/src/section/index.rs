use super::{SectionHeader, SectionType};

/// Bits of an entry that hold the offset; the type is above them.
const OFFSET_BITS: u32 = 48;
pub(super) const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
/// Schema, metadata and the index itself are in every image.
const MIN_ENTRIES: usize = 3;
pub(super) const ENTRY_LEN: usize = 8;

/// Encodes the payload of the SECTION_INDEX section.
///
/// `entries` are type and header offset (relative to the image start, below 2^48) of all
/// sections in file order, the index section itself included as the last one.
#[must_use]
pub fn encode_section_index(entries: &[(SectionType, u64)]) -> Vec<u8> {
    entries
        .iter()
        .flat_map(|&(ty, offset)| entry(ty, offset).to_le_bytes())
        .collect()
}

fn entry(ty: SectionType, offset: u64) -> u64 {
    u64::from(ty.0) << OFFSET_BITS | offset & OFFSET_MASK
}

/// The last eight bytes of an image whose index has its header at an offset below 2^48. Stored
/// little-endian.
#[must_use]
pub fn tail_pointer(index: u64) -> u64 {
    entry(SectionType::SECTION_INDEX, index)
}

/// Type and offset of one entry.
pub(super) fn split(entry: u64) -> (SectionType, u64) {
    (
        SectionType((entry >> OFFSET_BITS) as u16),
        entry & OFFSET_MASK,
    )
}

/// Type and header offset of all sections in the payload of an index whose place is not known. None if it
/// cannot be an index: the last entry must be that of an index.
#[must_use]
pub fn parse_section_index(payload: &[u8]) -> Option<Vec<(SectionType, u64)>> {
    let mut parser = IndexParser::default();
    parser.add(payload).ok()?;
    let (_, own) = *parser.entries.last()?;
    parser.finish(own).ok()
}

/// Decodes and checks the payload of an index, which may arrive in pieces.
///
/// Offsets must start at 0 and leave room for a header between any two. So an image cannot
/// have more entries than its data justifies, not even if it is mostly a hole in a sparse file.
#[derive(Debug, Default)]
pub(super) struct IndexParser {
    entries: Vec<(SectionType, u64)>,
}

impl IndexParser {
    /// Takes the next entries. `payload` must hold whole ones.
    pub(super) fn add(&mut self, payload: &[u8]) -> Result<(), String> {
        let (entries, rest) = payload.as_chunks::<ENTRY_LEN>();
        if !rest.is_empty() {
            return Err(format!("length is not a multiple of {ENTRY_LEN}"));
        }
        for &bytes in entries {
            let (ty, offset) = split(u64::from_le_bytes(bytes));
            match self.entries.last() {
                None if offset != 0 => {
                    return Err(format!("first offset is {offset} instead of 0"));
                }
                Some(&(_, previous)) if offset < previous + SectionHeader::LEN as u64 => {
                    return Err(format!(
                        "offset {offset} of entry {} does not follow {previous}",
                        self.entries.len()
                    ));
                }
                _ => self.entries.push((ty, offset)),
            }
        }
        Ok(())
    }

    /// All entries, if they are complete, and the last one is the entry of the index, whose header is
    /// at offset `own`.
    pub(super) fn finish(self, own: u64) -> Result<Vec<(SectionType, u64)>, String> {
        if self.entries.len() < MIN_ENTRIES {
            return Err(format!("only {} entries", self.entries.len()));
        }
        if self.entries.last() != Some(&(SectionType::SECTION_INDEX, own)) {
            return Err("last entry is not the index itself".into());
        }
        Ok(self.entries)
    }
}
