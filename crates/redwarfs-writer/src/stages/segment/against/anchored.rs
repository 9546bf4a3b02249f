//! Finding new data in blocks of all generations of the image that the build continues.
//!
//! The newest blocks are decoded, up to [`LOADED`] bytes. Their anchors (format chapter 12) are in memory, as one
//! table. If an anchor of the new data is in it, the bytes around both are compared.
//!
//! What is not found is searched in the indexes of anchors that the image has, if it has any. Their anchors are
//! further apart ([`MATCH_BITS`]). A block is decoded if so much is found that decoding it takes less time than
//! compressing that again would.
//!
//! Memory: twice [`LOADED`], and about a tenth of it for the anchors, at most 24 MiB. Nothing is decoded before it is needed.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::sync::OnceLock;

use redwarfs_format::section::{MATCH_BITS, anchors};

use super::choice::Part;
use super::matches::{SHORTEST, common, common_end};
use crate::base::BaseImage;
use crate::options::BuildOptions;

/// Bytes of old blocks that are decoded (64 MiB). Every append that has new data takes the time for this.
const LOADED: usize = 64 << 20;
/// Their part of a memory limit: one in this number.
const SHARE: u64 = 8;
/// Log2 of the mean distance of anchors of these blocks.
const DENSE: u32 = 7;
/// Largest number of their anchors in memory, four times as many as random data has. Data can be made of nothing but anchors.
const MOST_PLACES: usize = LOADED >> (DENSE - 2);
/// Shortest data that is searched in indexes.
const FAR: usize = 8 << 10;
/// Decoding so many bytes takes about as long as compressing one.
const WORTH: u64 = 256;
/// Places of an anchor that are looked at.
const CANDIDATES: usize = 16;
/// Bytes that may be compared without a result, for each byte of the new data.
const PATIENCE: usize = 8;

/// The blocks of the image that the build continues.
pub(in crate::stages::segment) struct OldBlocks<'a> {
    image: &'a dyn BaseImage,
    /// Bytes that are decoded.
    most: usize,
    loaded: OnceLock<Loaded>,
}

/// Where an anchor is. The newest places come first among equal hashes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct AnchorPlace {
    hash: u32,
    /// Index in the loaded blocks, the newest of which is the first.
    block: u32,
    /// Where its window ends.
    end: u32,
}

#[derive(Default)]
struct Loaded {
    /// Numbers and first bytes of blocks.
    blocks: Vec<(u32, Vec<u8>)>,
    places: Vec<AnchorPlace>,
}

impl<'a> OldBlocks<'a> {
    pub(in crate::stages::segment) fn new(
        image: &'a dyn BaseImage,
        options: &BuildOptions,
    ) -> Self {
        let limit = options
            .memory_limit
            .map_or(usize::MAX, |limit| (limit / SHARE) as usize);
        Self {
            image,
            most: LOADED.min(limit),
            loaded: OnceLock::new(),
        }
    }

    /// Divides data into what old blocks have, and the rest.
    pub(super) fn divide(&self, data: &[u8], parts: &mut Vec<Part>) {
        let loaded = self
            .loaded
            .get_or_init(|| Loaded::of(self.image, self.most));
        if self.image.match_table().is_none() {
            return loaded.divide(data, parts);
        }
        let mut near = Vec::new();
        loaded.divide(data, &mut near);
        let mut at = 0;
        for part in near {
            let rest = data.get(at..at + part.size).unwrap_or_default();
            at += part.size;
            match part.place.is_none() && rest.len() >= FAR {
                true => self.indexed(rest).divide(rest, parts),
                false => parts.push(part),
            }
        }
    }

    /// Decodes the blocks in which indexes have enough of the anchors of data.
    fn indexed(&self, data: &[u8]) -> Loaded {
        let mut found = Vec::new();
        anchors(data, MATCH_BITS, |anchor| {
            self.image.find_anchor(anchor.hash, &mut found);
        });
        // Anchors in each block, and how far they reach.
        let mut blocks: BTreeMap<u32, (u64, u32)> = BTreeMap::new();
        for (block, end) in found {
            let (count, reach) = blocks.entry(block).or_default();
            *count += 1;
            *reach = end.max(*reach);
        }
        let pays = |&(_, (count, reach)): &(u32, (u64, u32))| {
            (count << MATCH_BITS).saturating_mul(WORTH) >= u64::from(reach)
        };
        let mut blocks: Vec<_> = blocks.into_iter().filter(pays).collect();
        // Most anchors first, and the newest among equal ones.
        blocks.sort_by_key(|&(block, (count, _))| Reverse((count, block)));
        let mut loaded = Loaded::default();
        let mut left = self.most;
        for (block, (_, reach)) in blocks {
            let most = (reach as usize).saturating_add(data.len()).min(left);
            left -= loaded.add(self.image, block, most).min(left);
        }
        loaded.places.sort_unstable();
        loaded
    }
}

impl Loaded {
    /// Divides data into what these blocks have, and the rest.
    fn divide(&self, data: &[u8], parts: &mut Vec<Part>) {
        let loaded = self;
        let mut done = 0;
        let mut left = data.len().saturating_mul(PATIENCE);
        anchors(data, DENSE, |anchor| {
            let at = anchor.end as usize;
            if at < done || left == 0 {
                return;
            }
            let from = loaded
                .places
                .partition_point(|place| place.hash < anchor.hash);
            let places = loaded.places.iter().skip(from);
            let places = places.take_while(|place| place.hash == anchor.hash);
            let mut best: Option<(usize, usize, &AnchorPlace)> = None;
            for place in places.take(CANDIDATES) {
                let (_, block) = &loaded.blocks[place.block as usize];
                let end = place.end as usize;
                let before = common_end(data.get(done..at), block.get(..end));
                let behind = common(data.get(at..), block.get(end..));
                left = left.saturating_sub(before + behind);
                if best.is_none_or(|(b, e, _)| b + e < before + behind) {
                    best = Some((before, behind, place));
                }
            }
            let Some((before, behind, place)) = best.filter(|(b, e, _)| b + e >= SHORTEST) else {
                return;
            };
            let start = at - before;
            parts.push(Part::new(start - done));
            done = at + behind;
            parts.push(Part {
                size: done - start,
                place: Some((
                    loaded.blocks[place.block as usize].0,
                    place.end - before as u32,
                )),
            });
            // It was not in vain.
            left = left.saturating_add(before + behind);
        });
        parts.push(Part::new(data.len() - done));
        parts.retain(|part| part.size > 0);
    }
}

impl Loaded {
    fn of(image: &dyn BaseImage, most: usize) -> Self {
        let mut loaded = Self::default();
        let mut left = most;
        for number in (0..image.blocks().len() as u32).rev() {
            if left == 0 {
                break;
            }
            left -= loaded.add(image, number, left).min(left);
        }
        loaded.places.sort_unstable();
        loaded
    }

    /// Decodes the first bytes of a block. Returns how many.
    fn add(&mut self, image: &dyn BaseImage, number: u32, most: usize) -> usize {
        // A damaged block is not referred to.
        let Ok(bytes) = image.block_start(number, most) else {
            return 0;
        };
        let (length, block) = (bytes.len(), self.blocks.len() as u32);
        anchors(&bytes, DENSE, |anchor| {
            if self.places.len() < MOST_PLACES {
                self.places.push(AnchorPlace {
                    hash: anchor.hash,
                    block,
                    end: anchor.end,
                });
            }
        });
        self.blocks.push((number, bytes));
        length
    }
}
