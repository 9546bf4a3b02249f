//! The index of anchors of blocks, by which an append finds data in old blocks (format chapter 12).

use std::ops::Range;

use super::Section;
use super::anchors::Anchor;
use super::hidden::{Binding, Footer, Prelude};
use super::index::OFFSET_MASK;
use crate::error::{Error, Result};

/// Log2 of the mean distance of the anchors in bytes that a writer stores.
pub const MATCH_BITS: u32 = 12;

const TAG: [u8; 4] = *b"DWMI";
const HEAD: usize = 40;
const ENTRY: usize = 12;
/// Largest fan-out that a writer makes: a table of 64 MiB.
const MOST_FAN_OUT: u32 = 24;
/// Entries of one range of the fan-out that are looked at. Hashes are evenly distributed in an index that is right.
const MOST_CANDIDATES: u32 = 4096;

/// Reads bytes of the payload of the section.
pub type ReadPayload<'a> = dyn Fn(u64, &mut [u8]) -> std::io::Result<()> + 'a;

/// A place of an anchor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct AnchorPlace {
    /// Offset of the header of the block.
    pub block: u64,
    /// Offset behind the window, in the data of the block.
    pub end: u32,
}

/// Where the parts of an index are in the payload of its section. Nothing of it is in memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MatchTable {
    /// Log2 of the mean distance of its anchors.
    pub bits: u32,
    /// Offset of the header of the index of older blocks. None if there is none.
    pub previous: Option<u64>,
    fan_out: u32,
    blocks: u32,
    anchors: u32,
}

/// An index that is being made.
#[derive(Debug, Default)]
pub struct MatchBuilder {
    blocks: Vec<u64>,
    /// Hash, index in the blocks, end.
    anchors: Vec<(u32, u32, u32)>,
}

impl MatchBuilder {
    /// Adds the anchors of a block, whose header has an offset. Beyond 2^32 of them, the rest is left out.
    pub fn block(&mut self, header_offset: u64, anchors: &[Anchor]) {
        let number = self.blocks.len() as u32;
        self.blocks.push(header_offset);
        let room = (u32::MAX as usize).saturating_sub(self.anchors.len());
        let added = anchors.iter().take(room);
        self.anchors
            .extend(added.map(|anchor| (anchor.hash, number, anchor.end)));
    }

    /// Whether it has no anchors.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.anchors.is_empty()
    }

    /// Encodes the body of the section, and its prelude. `previous` is the offset of the header of the index of
    /// older blocks.
    #[must_use]
    pub fn encode(mut self, previous: Option<u64>) -> (Prelude, Vec<u8>) {
        self.anchors.sort_unstable();
        // About 64 entries in each range.
        let fan_out = (self.anchors.len() / 64).max(1).ilog2().min(MOST_FAN_OUT);
        let mut body = Vec::new();
        body.extend(MATCH_BITS.to_le_bytes());
        body.extend(fan_out.to_le_bytes());
        body.extend((self.blocks.len() as u64).to_le_bytes());
        body.extend((self.anchors.len() as u64).to_le_bytes());
        body.extend(previous.unwrap_or(0).to_le_bytes());
        body.extend([0; 8]);
        for block in &self.blocks {
            body.extend(block.to_le_bytes());
        }
        for part in 0..=1_u64 << fan_out {
            let first = (self.anchors).partition_point(|(hash, ..)| part_of(*hash, fan_out) < part);
            body.extend((first as u32).to_le_bytes());
        }
        for (hash, block, end) in self.anchors {
            body.extend(hash.to_le_bytes());
            body.extend(block.to_le_bytes());
            body.extend(end.to_le_bytes());
        }
        let prelude = Prelude {
            tag: TAG,
            major: 1,
            minor: 0,
            flags: 0,
            binding: Binding::None,
        };
        (prelude, body)
    }
}

/// The range of the fan-out that a hash is in.
fn part_of(hash: u32, fan_out: u32) -> u64 {
    u64::from(hash) >> (32 - fan_out)
}

impl MatchTable {
    /// Bytes at the start of the payload that [`parse`](Self::parse) needs.
    pub const START: usize = Prelude::LEN + HEAD;

    /// Reads the start of the payload of a section.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if the parts do not fill the section, [`Error::Unsupported`] for a later version.
    pub fn parse(start: &[u8; Self::START], section: &Section) -> Result<Self> {
        let bad = || Error::corrupt("is no index of anchors");
        let (prelude, body) = Prelude::parse(start)?;
        let head = start.get(Prelude::LEN..).unwrap_or_default();
        if prelude.tag != TAG || body != Prelude::LEN as u64 {
            return Err(bad());
        }
        if prelude.major != 1 || prelude.flags >> 16 != 0 {
            return Err(Error::Unsupported("a later index of anchors".into()));
        }
        let n32 = |at: usize| {
            let bytes = head.get(at..).and_then(<[u8]>::first_chunk);
            bytes
                .map(|bytes| u32::from_le_bytes(*bytes))
                .ok_or_else(bad)
        };
        let n64 =
            |at: usize| -> Result<u64> { Ok(u64::from(n32(at)?) | u64::from(n32(at + 4)?) << 32) };
        let (bits, fan_out) = (n32(0)?, n32(4)?);
        let number = |n: u64| u32::try_from(n).map_err(|_| bad());
        let (blocks, anchors) = (number(n64(8)?)?, number(n64(16)?)?);
        let previous: u64 = n64(24)?;
        if !(1..=32).contains(&bits) || fan_out > MOST_FAN_OUT || previous > OFFSET_MASK {
            return Err(bad());
        }
        let table = Self {
            bits,
            previous: (previous != 0).then_some(previous),
            fan_out,
            blocks,
            anchors,
        };
        let end = table.places().end + Footer::LEN as u64;
        if end != section.length || previous >= section.header_offset.max(1) {
            return Err(bad());
        }
        Ok(table)
    }

    fn offsets(&self) -> Range<u64> {
        let start = Self::START as u64;
        start..start + 8 * u64::from(self.blocks)
    }

    fn starts(&self) -> Range<u64> {
        let start = self.offsets().end;
        start..start + 4 * ((1 << self.fan_out) + 1)
    }

    fn places(&self) -> Range<u64> {
        let start = self.starts().end;
        start..start + ENTRY as u64 * u64::from(self.anchors)
    }

    /// Adds up to `most` places of anchors with a hash to `found`. Takes three reads, of a few hundred bytes each.
    /// The checksum of the section is not verified for that: the caller compares the data.
    ///
    /// # Errors
    /// [`Error::Io`] if reading fails, [`Error::Corrupt`] for numbers out of range.
    pub fn find(
        &self,
        hash: u32,
        most: usize,
        read: &ReadPayload<'_>,
        found: &mut Vec<AnchorPlace>,
    ) -> Result<()> {
        let bad = || Error::corrupt("is no index of anchors");
        let mut range = [0; 8];
        read(
            self.starts().start + 4 * part_of(hash, self.fan_out),
            &mut range,
        )?;
        let range = u64::from_le_bytes(range);
        let (first, end) = (range as u32, (range >> 32) as u32);
        if first > end || end > self.anchors {
            return Err(bad());
        }
        let count = (end - first).min(MOST_CANDIDATES);
        let mut entries = vec![0; count as usize * ENTRY];
        read(
            self.places().start + ENTRY as u64 * u64::from(first),
            &mut entries,
        )?;
        let mut left = most;
        for entry in entries.chunks_exact(ENTRY) {
            let n32 = |at: usize| {
                let bytes = entry.get(at..).and_then(<[u8]>::first_chunk);
                bytes
                    .map(|bytes| u32::from_le_bytes(*bytes))
                    .ok_or_else(bad)
            };
            if left == 0 || n32(0)? != hash {
                continue;
            }
            let (block, end) = (n32(4)?, n32(8)?);
            if block >= self.blocks {
                return Err(bad());
            }
            let mut offset = [0; 8];
            read(self.offsets().start + 8 * u64::from(block), &mut offset)?;
            found.push(AnchorPlace {
                block: u64::from_le_bytes(offset),
                end,
            });
            left -= 1;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::section::{SectionHeader, SectionType, encode_hidden_section};

    fn section(payload: &[u8]) -> Section {
        Section {
            position: 0,
            number: 0,
            ty: SectionType::MATCH,
            compression: None,
            header_offset: 1 << 30,
            payload_offset: 0,
            length: payload.len() as u64,
            header: None,
        }
    }

    fn payload(builder: MatchBuilder, previous: Option<u64>) -> Vec<u8> {
        let (prelude, body) = builder.encode(previous);
        let footer = Footer {
            open_offset: 0,
            open_length: 0,
            index: Some(9),
        };
        let section = encode_hidden_section(0, SectionType::MATCH, &prelude, &body, &footer);
        section[SectionHeader::LEN..].to_vec()
    }

    fn built(count: u32) -> Vec<u8> {
        let mut builder = MatchBuilder::default();
        assert!(builder.is_empty());
        for block in 0..3_u64 {
            let anchors: Vec<Anchor> = (0..count)
                .map(|n| Anchor {
                    end: n + 100,
                    hash: n.wrapping_mul(0x9e37_79b9),
                })
                .collect();
            builder.block(1000 * block, &anchors);
        }
        payload(builder, Some(77))
    }

    fn parse(payload: &[u8]) -> Result<MatchTable> {
        let start = payload.first_chunk().ok_or(Error::corrupt("short"))?;
        MatchTable::parse(start, &section(payload))
    }

    fn find(table: &MatchTable, payload: &[u8], hash: u32) -> Result<Vec<AnchorPlace>> {
        let read = |at: u64, out: &mut [u8]| {
            let at = usize::try_from(at).unwrap();
            let bytes = payload.get(at..at + out.len());
            out.copy_from_slice(bytes.ok_or(std::io::ErrorKind::UnexpectedEof)?);
            Ok(())
        };
        let mut found = Vec::new();
        table.find(hash, 8, &read, &mut found)?;
        Ok(found)
    }

    #[test]
    fn what_was_stored_is_found() {
        for count in [0, 1, 5000] {
            let bytes = built(count);
            let table = parse(&bytes).unwrap();
            assert_eq!((table.bits, table.previous), (MATCH_BITS, Some(77)));
            for n in (0..count).step_by(97) {
                let found = find(&table, &bytes, n.wrapping_mul(0x9e37_79b9)).unwrap();
                let places = [0, 1000, 2000].map(|block| AnchorPlace {
                    block,
                    end: n + 100,
                });
                assert_eq!(found, places);
            }
            assert!(find(&table, &bytes, 3).unwrap().is_empty());
        }
        assert_eq!(
            parse(&payload(MatchBuilder::default(), None))
                .unwrap()
                .previous,
            None
        );
    }

    #[test]
    fn wrong_tables_are_refused_or_find_nothing() {
        let good = built(200);
        for at in 0..good.len() {
            for value in [0, 1, 0x7f, 0xff] {
                let mut bytes = good.clone();
                bytes[at] = value;
                if let Ok(table) = parse(&bytes) {
                    for hash in [0, 0x9e37_79b9, u32::MAX] {
                        let found = find(&table, &bytes, hash);
                        assert!(found.is_err() || found.is_ok_and(|found| found.len() <= 8));
                    }
                }
            }
        }
        for length in 0..good.len() {
            assert!(parse(&good[..length]).is_err());
        }
    }
}
