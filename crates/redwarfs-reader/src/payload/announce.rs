//! Tells a source on a server which blocks will be read.

use std::ops::Range;

use redwarfs_format::BlockNo;
use redwarfs_format::section::{SectionHeader, SectionType};

use super::Payloads;

/// Bytes between ranges that are fetched with them even if they are there: another request costs more (64 KiB).
const SMALL_GAP: u64 = 64 << 10;

/// Bytes between ranges that are never fetched together (more than 1 MiB).
const LARGE_GAP: u64 = 1 << 20;

/// Bytes of the header of a section.
const HEADER: u64 = SectionHeader::LEN as u64;

/// Stored bytes of all blocks of an image that come with its metadata (64 KiB): asking for each of these blocks when it is read
/// takes longer.
const SMALL_IMAGE: u64 = 64 << 10;

/// A block that a source is to fetch, and its range of the file.
type Placed = (BlockNo, Range<u64>);

impl Payloads {
    /// Says that nothing more is needed to open the image. The blocks of a small one come without a request for them.
    pub(crate) fn opened(&self) {
        self.source.opened();
        if !self.remote {
            return;
        }
        let mut blocks = self.container.section_of_type(SectionType::BLOCK);
        let stored = blocks.try_fold(0_u64, |sum, block| {
            let sum = sum.checked_add(block.length)?.checked_add(HEADER)?;
            (sum <= SMALL_IMAGE).then_some(sum)
        });
        if stored.is_some() {
            let all = (0..self.container.block_count()).map(BlockNo);
            self.announce_missing_later(all, |_| false);
        }
    }

    /// Lets a source on a server begin to fetch blocks that will be needed soon, with their headers.
    pub(crate) fn announce(&self, blocks: impl IntoIterator<Item = BlockNo>) {
        self.announce_missing(blocks, |_| false);
    }

    /// The same for blocks of which a cache in memory has nothing. Those that it `knows` are not fetched with others because
    /// they are between these.
    pub(crate) fn announce_missing(
        &self,
        blocks: impl IntoIterator<Item = BlockNo>,
        knows: impl Fn(BlockNo) -> bool,
    ) {
        for row in self.rows(blocks, knows) {
            self.source.will_need(&row);
        }
    }

    /// The same for blocks that no request needs so far.
    pub(crate) fn announce_missing_later(
        &self,
        blocks: impl IntoIterator<Item = BlockNo>,
        knows: impl Fn(BlockNo) -> bool,
    ) {
        for row in self.rows(blocks, knows) {
            self.source.may_need(&row);
        }
    }

    /// The same, if all that is between these blocks is there already.
    pub(crate) fn announce_around(&self, blocks: impl IntoIterator<Item = BlockNo>) {
        self.announce_missing_later(blocks, |_| true);
    }

    fn rows(
        &self,
        blocks: impl IntoIterator<Item = BlockNo>,
        knows: impl Fn(BlockNo) -> bool,
    ) -> Vec<Vec<Range<u64>>> {
        let is_there = |block| knows(block) || self.is_on_disk(block);
        rows(self.placed(blocks), is_there)
    }

    /// Blocks with the ranges that they and their headers have, unless they are in the cache on disk. None if the source
    /// is not on a server.
    fn placed(&self, blocks: impl IntoIterator<Item = BlockNo>) -> Vec<Placed> {
        if !self.remote {
            return Vec::new();
        }
        let missing = blocks.into_iter().filter(|block| !self.is_on_disk(*block));
        let placed = missing.map(|block| Some((block, self.place(block)?)));
        placed.flatten().collect()
    }
}

/// Groups of ranges that may be joined: with little between them, or only blocks that are not there.
fn rows(mut blocks: Vec<Placed>, is_there: impl Fn(BlockNo) -> bool) -> Vec<Vec<Range<u64>>> {
    blocks.sort_by_key(|(_, range)| range.start);
    let close = |one: &Placed, two: &Placed| {
        let gap = two.1.start.saturating_sub(one.1.end);
        let between = || (one.0.0..two.0.0).skip(1).map(BlockNo);
        gap <= SMALL_GAP || (gap <= LARGE_GAP && !between().any(&is_there))
    };
    let rows = blocks.chunk_by(close);
    rows.map(|row| row.iter().map(|(_, range)| range.clone()).collect())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_that_are_there_are_not_fetched_again_with_others() {
        const K: u64 = 1 << 10;
        let wanted = vec![
            (BlockNo(9), 900 * K..999 * K),
            (BlockNo(11), 2100 * K..2200 * K),
            (BlockNo(0), 0..9 * K),
            (BlockNo(1), 9 * K..99 * K),
            (BlockNo(3), 150 * K..200 * K),
            (BlockNo(5), 400 * K..450 * K),
        ];
        let starts = |there: &[u32]| -> Vec<Vec<u64>> {
            let rows = rows(wanted.clone(), |block| there.contains(&block.0));
            let starts = |row: &Vec<Range<u64>>| row.iter().map(|at| at.start / K).collect();
            rows.iter().map(starts).collect()
        };
        // Block 2 is short.
        assert_eq!(starts(&[2]), [vec![0, 9, 150, 400, 900], vec![2100]]);
        assert_eq!(starts(&[4]), [vec![0, 9, 150], vec![400, 900], vec![2100]]);
        assert_eq!(
            starts(&[2, 4, 7, 8]),
            [vec![0, 9, 150], vec![400], vec![900], vec![2100]]
        );
        assert!(rows(Vec::new(), |_| true).is_empty());
    }
}
