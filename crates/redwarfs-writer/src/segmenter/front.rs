//! Putting what chosen contents need in front in each block.
//!
//! A block is decoded from its start to the last byte that somebody needs. Where contents of many versions of a tree share
//! blocks, a reader of one version decodes most of all of them. So the bytes of a block that chosen contents use move to
//! its start when the block is full, in the order in which they are. The rest follows. Chunks count as before until the stream
//! has ended; then each is split where its bytes have come apart.
//!
//! For a few bytes of a finished block that a later chosen content needs, too, a reader would decode all that is before them. So it
//! stores bytes again that are not in front, up to one in [`AGAIN`] of all bytes before it.
//! Long references to distant blocks stay.
//!
//! A chunk is cut into at most twice as many pieces as its block has ranges. So ranges with little between them are joined, and a block
//! with too many ranges stays as it is.
//!
//! Memory: 12 bytes for each range of bytes in front, and one more block while its bytes move. In the block that is filled,
//! each reference of a chosen content takes 8 bytes.

use std::collections::HashMap;

use crate::contents::Chunk;

/// Bytes between two ranges that move together.
const BETWEEN: u32 = 64;
/// Largest number of ranges in a block.
const RANGES: usize = 4096;

/// Of so many bytes, one may be stored again.
const AGAIN: usize = 256;

/// What chosen contents use of the block that is filled, and what moved in those before it.
#[derive(Debug, Default)]
pub(crate) struct Front {
    /// Whether the present content is a chosen one.
    chosen: bool,
    /// Start and end of what is used of the present block.
    used: Vec<(u32, u32)>,
    /// By number. Of all other blocks, chosen contents use nothing, and each byte is where it was.
    blocks: HashMap<u32, Rearranged>,
    /// Bytes that may still be stored again.
    again: usize,
}

/// A block with something in front.
#[derive(Debug)]
struct Rearranged {
    /// What is in front, in ascending order and apart, at least one range: offset in the block as it was filled, size, and
    /// offset now.
    ranges: Vec<(u32, u32, u32)>,
}

impl Front {
    /// Says whether the contents that follow are chosen.
    pub(super) fn choose(&mut self, chosen: bool) {
        self.chosen = chosen;
    }

    /// The present content uses these bytes of the block that is filled.
    pub(super) fn add(&mut self, offset: usize, size: usize) {
        if !self.chosen || size == 0 {
            return;
        }
        let (start, end) = (offset as u32, (offset + size) as u32);
        match self.used.last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => self.used.push((start, end)),
        }
    }

    /// Whether the present content stores these bytes of a finished block again. Then they are counted.
    pub(super) fn stores_again(&mut self, number: u32, offset: usize, size: usize) -> bool {
        let again = size <= self.again && self.referable(number, offset, size) < size;
        if again {
            self.again -= size;
        }
        again
    }

    /// How many bytes from an offset of a finished block on, at most `size`, the present content refers to.
    pub(super) fn referable(&self, number: u32, offset: usize, size: usize) -> usize {
        if !self.chosen || size > self.again {
            return size;
        }
        let block = self.blocks.get(&number);
        let range = block.and_then(|block| block.in_front(offset as u32));
        range.map_or(0, |(_, left)| size.min(left as usize))
    }

    /// Ends the block with this number. Returns its bytes in their new order, if that is another one.
    pub(super) fn end_block(&mut self, number: u32, data: &[u8]) -> Option<Vec<u8>> {
        self.again += data.len() / AGAIN;
        self.arrange(number, data, BETWEEN)
    }

    fn arrange(&mut self, number: u32, data: &[u8], between: u32) -> Option<Vec<u8>> {
        let mut used = std::mem::take(&mut self.used);
        used.sort_unstable();
        let mut ranges: Vec<(u32, u32, u32)> = Vec::new();
        for (start, end) in used {
            match ranges.last_mut() {
                Some((at, size, _)) if start <= (*at + *size).saturating_add(between) => {
                    *size = (*size).max(end - *at);
                }
                _ => ranges.push((start, end - start, 0)),
            }
        }
        let mut total = 0;
        for (_, size, now) in &mut ranges {
            *now = total;
            total += *size;
        }
        if ranges.len() > RANGES {
            let end = ranges.last().map_or(0, |&(at, size, _)| at + size);
            ranges = vec![(0, end, 0)];
        }
        if ranges.is_empty() {
            return None;
        }
        let block = Rearranged { ranges };
        let moved = block.has_moved().then(|| block.moved(data));
        self.blocks.insert(number, block);
        moved
    }

    /// Whether nothing has moved.
    pub(crate) fn is_empty(&self) -> bool {
        !self.blocks.values().any(Rearranged::has_moved)
    }

    /// Adds the chunks to `out` that now represent what this chunk did. Those of the same extent begin at `start`: the last one
    /// grows if its bytes are followed by those of this chunk.
    pub(crate) fn settle(&self, chunk: Chunk, start: usize, out: &mut Vec<Chunk>) {
        let Some(block) = self.blocks.get(&chunk.block) else {
            out.push(chunk);
            return;
        };
        let (mut offset, mut left) = (chunk.offset, chunk.size);
        while left > 0 {
            let (now, size) = block.run(offset);
            let size = size.min(left);
            match out.get_mut(start..).and_then(<[Chunk]>::last_mut) {
                Some(last) if last.block == chunk.block && last.offset + last.size == now => {
                    last.size += size;
                }
                _ => out.push(Chunk {
                    block: chunk.block,
                    offset: now,
                    size,
                }),
            }
            offset += size;
            left -= size;
        }
    }
}

impl Rearranged {
    /// Whether any byte is somewhere else now.
    fn has_moved(&self) -> bool {
        !matches!(self.ranges.as_slice(), [(0, ..)])
    }

    /// The bytes of the block in their new order.
    fn moved(&self, data: &[u8]) -> Vec<u8> {
        let mut moved = Vec::with_capacity(data.len());
        for &(at, size, _) in &self.ranges {
            moved.extend_from_slice(bytes(data, at, at + size));
        }
        let mut at = 0;
        for &(start, size, _) in &self.ranges {
            moved.extend_from_slice(bytes(data, at, start));
            at = start + size;
        }
        moved.extend_from_slice(bytes(data, at, data.len() as u32));
        moved
    }

    /// Where the byte at an offset is now, and how many bytes from it on are in front with it; nothing if it is not in front.
    fn in_front(&self, offset: u32) -> Option<(u32, u32)> {
        let after = self.ranges.partition_point(|&(start, ..)| start <= offset);
        let &(start, size, now) = self.ranges.get(after.checked_sub(1)?)?;
        let skip = offset - start;
        (skip < size).then(|| (now + skip, size - skip))
    }

    /// Where the byte at an offset is now, and how many bytes from it on, at least 1, stayed together.
    fn run(&self, offset: u32) -> (u32, u32) {
        if let Some(found) = self.in_front(offset) {
            return found;
        }
        let after = self.ranges.partition_point(|&(start, ..)| start <= offset);
        let before = after.checked_sub(1).and_then(|at| self.ranges.get(at));
        let next = self.ranges.get(after);
        let total = self.ranges.last().map_or(0, |&(_, size, now)| now + size);
        let in_front = before.map_or(0, |&(_, size, now)| now + size);
        let until = next.map_or(u32::MAX, |&(start, ..)| start);
        (total + (offset - in_front), until - offset)
    }
}

fn bytes(data: &[u8], start: u32, end: u32) -> &[u8] {
    data.get(start as usize..end as usize).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_is_used_comes_first() {
        let mut front = Front::default();
        front.add(0, 2);
        front.choose(true);
        front.add(7, 2);
        front.add(3, 1);
        front.add(8, 1);
        front.add(4, 1);
        assert_eq!(front.arrange(5, b"0123456789", 0).unwrap(), b"3478012569");
        assert!(!front.is_empty());
        front.again = 9;
        let referable =
            |front: &Front, block| [2, 3, 4, 5, 7].map(|at| front.referable(block, at, 9));
        assert_eq!(referable(&front, 5), [0, 2, 1, 0, 2]);
        assert_eq!(referable(&front, 4), [0; 5]);
        assert_eq!(front.referable(5, 7, 1), 1);
        // More than may be stored again.
        assert_eq!(front.referable(5, 7, 10), 10);
        front.choose(false);
        assert_eq!(referable(&front, 5), [9; 5]);
        front.choose(true);
        assert!(front.stores_again(5, 3, 3) && front.stores_again(4, 0, 4));
        assert!(!front.stores_again(5, 3, 2) && !front.stores_again(4, 0, 3));
        front.again = 9;
        // A part that is in front already.
        front.add(0, 4);
        assert_eq!(front.end_block(6, b"0123456789"), None);
        assert_eq!(referable(&front, 6), [2, 1, 0, 0, 0]);
        // In the next block, nothing is used yet.
        assert_eq!(front.end_block(7, b"0123456789"), None);
        let settled = |offset, size| {
            let mut out = Vec::new();
            let block = 5;
            front.settle(
                Chunk {
                    block,
                    offset,
                    size,
                },
                0,
                &mut out,
            );
            let places = out.into_iter().map(|chunk| (chunk.offset, chunk.size));
            places.collect::<Vec<_>>()
        };
        assert_eq!(settled(3, 2), [(0, 2)]);
        assert_eq!(settled(0, 10), [(4, 3), (0, 2), (7, 2), (2, 2), (9, 1)]);
    }

    #[test]
    fn chunks_go_on_if_their_bytes_have_come_together() {
        let mut front = Front::default();
        front.choose(true);
        front.add(2, 2);
        front.add(6, 2);
        assert_eq!(front.arrange(1, b"01234567", 0).unwrap(), b"23670145");
        let chunk = |block, offset, size| Chunk {
            block,
            offset,
            size,
        };
        let mut out = vec![chunk(1, 0, 2)];
        front.settle(chunk(1, 6, 2), 1, &mut out);
        front.settle(chunk(1, 0, 1), 1, &mut out);
        front.settle(chunk(2, 5, 1), 1, &mut out);
        front.settle(chunk(2, 6, 1), 1, &mut out);
        let other = [chunk(2, 5, 1), chunk(2, 6, 1)];
        assert_eq!(
            out,
            [&[chunk(1, 0, 2), chunk(1, 2, 3)], &other[..]].concat()
        );
    }

    #[test]
    fn little_between_ranges_moves_and_too_many_ranges_do_not() {
        let mut front = Front::default();
        front.choose(true);
        let data: Vec<u8> = (0..1_000_000u32).map(|at| at as u8).collect();
        for count in [5000, 4000] {
            for number in 0..count {
                front.add(100 + number * 67, 2);
            }
            let moved = front.end_block(count as u32, &data);
            assert_eq!(moved.is_some(), count == 4000);
            let between = if count == 4000 { 0 } else { 9 };
            assert_eq!(front.referable(count as u32, 110, 9), between);
        }
        for number in 0..5000 {
            front.add(100 + number * 66, 2);
        }
        let moved = front.end_block(9, &data).unwrap();
        let size = 4999 * 66 + 2;
        assert_eq!(moved[..size], data[100..100 + size]);
    }

    proptest! {
        #[test]
        fn chunks_represent_the_same_bytes(
            data in prop::collection::vec(any::<u8>(), 1..200),
            between in 0u32..9,
            used in prop::collection::vec((0usize..200, 0usize..50), 0..20),
            chunks in prop::collection::vec((0usize..200, 1usize..200), 0..20),
        ) {
            let within = |(start, size): (usize, usize)| {
                let start = start % data.len();
                (start, size.min(data.len() - start))
            };
            let mut front = Front::default();
            front.choose(true);
            let mut in_front = vec![false; data.len()];
            for (start, size) in used.into_iter().map(within) {
                front.add(start, size);
                in_front[start..start + size].fill(true);
            }
            let runs: Vec<usize> = in_front.chunk_by(|a, b| a == b).map(<[bool]>::len).collect();
            let (mut at, last) = (0, in_front.iter().rposition(|&used| used).unwrap_or(0));
            for run in runs {
                if at > 0 && at < last && !in_front[at] && run <= between as usize {
                    in_front[at..at + run].fill(true);
                }
                at += run;
            }
            let moved = front.arrange(0, &data, between).unwrap_or_else(|| data.clone());
            prop_assert_eq!(moved.len(), data.len());
            for (start, size) in chunks.into_iter().map(within) {
                let (offset, size) = (start as u32, size as u32);
                let mut out = Vec::new();
                front.settle(Chunk { block: 0, offset, size }, 0, &mut out);
                let mut read = Vec::new();
                for chunk in out {
                    prop_assert!(chunk.size > 0);
                    read.extend_from_slice(bytes(&moved, chunk.offset, chunk.offset + chunk.size));
                }
                let end = start + size as usize;
                prop_assert_eq!(&read, &data[start..end]);
                // What is used is in front of everything else.
                if in_front[start..end].iter().all(|&used| used) && !front.is_empty() {
                    let total = in_front.iter().filter(|&&used| used).count();
                    let mut out = Vec::new();
                    front.settle(Chunk { block: 0, offset, size }, 0, &mut out);
                    prop_assert!(out.iter().all(|chunk| (chunk.offset + chunk.size) as usize <= total));
                }
            }
        }
    }
}
