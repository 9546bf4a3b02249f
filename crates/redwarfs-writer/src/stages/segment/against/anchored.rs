//! Finding new data in blocks of all generations of the image that the build continues.
//!
//! The newest blocks are decoded, up to [`LOADED`] bytes. Their anchors (format chapter 12) are in memory, as one
//! table. If an anchor of the new data is in it, the bytes around both are compared.
//!
//! Memory: [`LOADED`], and about a tenth of it for the anchors. Nothing is decoded before it is needed.

use std::sync::OnceLock;

use redwarfs_format::section::anchors;

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
struct Place {
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
    places: Vec<Place>,
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
            let mut best: Option<(usize, usize, &Place)> = None;
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
            // A damaged block is not referred to.
            let Ok(bytes) = image.block_start(number, left) else {
                continue;
            };
            left -= bytes.len().min(left);
            let block = loaded.blocks.len() as u32;
            anchors(&bytes, DENSE, |anchor| {
                loaded.places.push(Place {
                    hash: anchor.hash,
                    block,
                    end: anchor.end,
                });
            });
            loaded.blocks.push((number, bytes));
        }
        loaded.places.sort_unstable();
        loaded
    }
}
