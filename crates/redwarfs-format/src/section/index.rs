use super::{SectionHeader, SectionType};

/// Bits of an entry that hold the offset; the type is above them.
const OFFSET_BITS: u32 = 48;
const OFFSET_MASK: u64 = (1 << OFFSET_BITS) - 1;
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
        .flat_map(|&(ty, offset)| {
            (u64::from(ty.0) << OFFSET_BITS | offset & OFFSET_MASK).to_le_bytes()
        })
        .collect()
}

/// Type and offset of one entry.
pub(super) fn split(entry: u64) -> (SectionType, u64) {
    (
        SectionType((entry >> OFFSET_BITS) as u16),
        entry & OFFSET_MASK,
    )
}

/// Decodes and checks the payload of an index whose header is at offset `own`.
///
/// Offsets must start at 0 and leave room for a header between any two, which also bounds the
/// number of entries by the size of the image.
pub(super) fn parse(payload: &[u8], own: u64) -> Result<Vec<(SectionType, u64)>, String> {
    let (chunks, rest) = payload.as_chunks::<ENTRY_LEN>();
    if !rest.is_empty() {
        return Err(format!(
            "length {} is not a multiple of {ENTRY_LEN}",
            payload.len()
        ));
    }
    let entries: Vec<_> = chunks
        .iter()
        .map(|&bytes| split(u64::from_le_bytes(bytes)))
        .collect();
    if entries.len() < MIN_ENTRIES {
        return Err(format!("only {} entries", entries.len()));
    }
    if let Some(&(_, offset)) = entries.first().filter(|(_, offset)| *offset != 0) {
        return Err(format!("first offset is {offset} instead of 0"));
    }
    for (position, (&(_, this), &(_, next))) in
        entries.iter().zip(entries.iter().skip(1)).enumerate()
    {
        if next < this + SectionHeader::LEN as u64 {
            return Err(format!(
                "offset {next} of entry {} does not follow {this}",
                position + 1
            ));
        }
    }
    if entries.last() != Some(&(SectionType::SECTION_INDEX, own)) {
        return Err("last entry is not the index itself".into());
    }
    Ok(entries)
}
