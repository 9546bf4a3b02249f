//! Finding long duplicates in earlier blocks of the stream, up to about 24 GiB back ([`PIECES`]).
//!
//! Blocks that are not searched any longer are not in memory, but digests of their pieces are. A hash
//! of its last bytes decides where a piece ends, on average after 6 KiB. So equal data has equal
//! pieces, wherever it begins.
//!
//! Pieces that follow each other both in the input and in a block become one reference, if they have at
//! least [`LONG`] bytes together. Shorter references are not made, because each one makes a content
//! depend on one more block. The digests are cryptographic, so equal digests need no comparison of
//! bytes.
//!
//! Only extents of at least [`EXTENT`] bytes are searched. Two kinds of pieces are left to the search
//! in recent blocks: pieces without a content-defined end, as in runs of one value, and pieces that
//! repeat the previous piece.

use std::collections::VecDeque;

use hashbrown::HashTable;
use sha2::{Digest as _, Sha256};

use super::scan::Scan;
use super::{BlockSink, Segmenter};
use crate::error::Result;

/// Smallest number of bytes of a match, and of a searched extent.
pub(super) const LONG: usize = 32 << 10;
pub(super) const EXTENT: usize = 64 << 10;
/// Log2 of the number of bytes of which one ends a piece, on average.
const SPARSE: u32 = 12;
/// Smallest and largest size of a piece in bytes.
const SHORTEST: usize = 2 << 10;
const LONGEST: usize = 32 << 10;
/// Bytes that decide whether a piece ends.
const WINDOW: usize = 64;

/// Number of latest pieces that are remembered: on average those of 24 GiB.
const PIECES: usize = 1 << 22;
/// Memory of each piece in bytes, including its place in the table while the table grows.
const PIECE: u64 = 56;

/// Largest number of bytes that the pieces of this much input take.
pub(super) fn memory(bytes: u64) -> u64 {
    (bytes / SHORTEST as u64)
        .min(PIECES as u64)
        .saturating_mul(PIECE)
}

/// Part of a SHA-256 digest.
type Key = [u8; 24];

fn key(bytes: &[u8]) -> Key {
    let digest: [u8; 32] = Sha256::digest(bytes).into();
    *digest.first_chunk().unwrap_or(&[0; 24])
}

/// A hash value for each byte, from a fixed sequence of random numbers.
const GEAR: [u64; 256] = {
    let mut table = [0; 256];
    let mut state = 0u64;
    let mut i = 0;
    while i < table.len() {
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        table[i] = z ^ (z >> 31);
        i += 1;
    }
    table
};

/// A piece in a block.
struct RememberedPiece {
    key: Key,
    block: u32,
    offset: u32,
}

const _: () = assert!(size_of::<RememberedPiece>() == 32);

/// Pieces by digest.
struct Index {
    /// The oldest piece, which the next one replaces if there is no more room.
    pieces: Vec<RememberedPiece>,
    oldest: usize,
    most: usize,
    table: HashTable<u32>,
}

impl Index {
    fn new(most: usize) -> Self {
        Self {
            pieces: Vec::new(),
            oldest: 0,
            most,
            table: HashTable::new(),
        }
    }

    fn hash(key: &Key) -> u64 {
        u64::from_le_bytes(*key.first_chunk().unwrap_or(&[0; 8]))
    }

    fn get(&self, key: &Key) -> Option<&RememberedPiece> {
        let at = self.table.find(Self::hash(key), |&at| {
            self.pieces.get(at as usize).is_some_and(|p| p.key == *key)
        })?;
        self.pieces.get(*at as usize)
    }

    /// Adds a piece, unless there is one with its digest.
    fn insert(&mut self, piece: RememberedPiece) {
        if self.get(&piece.key).is_some() {
            return;
        }
        let hash = Self::hash(&piece.key);
        let mut at = self.pieces.len();
        if at < self.most {
            self.pieces.push(piece);
        } else {
            at = self.oldest;
            self.oldest = (at + 1) % self.most;
            let Some(place) = self.pieces.get_mut(at) else {
                return;
            };
            let old = std::mem::replace(place, piece);
            let entry = self
                .table
                .find_entry(Self::hash(&old.key), |&i| i as usize == at);
            if let Ok(entry) = entry {
                entry.remove();
            }
        }
        let pieces = &self.pieces;
        self.table.insert_unique(hash, at as u32, |&at| {
            pieces.get(at as usize).map_or(0, |p| Self::hash(&p.key))
        });
    }
}

/// Consecutive pieces that are also consecutive in a block.
struct Run {
    block: u32,
    offset: u32,
    size: u32,
    /// Whether it is long enough, and represented.
    taken: bool,
}

/// A piece of the content whose place in a block is not known yet.
struct Mark {
    key: Key,
    /// In the content.
    start: u64,
    size: u64,
}

/// The search between the input and the search in recent blocks.
pub(super) struct Distant {
    index: Index,
    granularity: usize,
    /// Log2 of the number of units of which one ends a piece, on average.
    sparse: u32,
    /// Bytes of the extent; the bytes before `start` are passed on or represented.
    held: Vec<u8>,
    start: usize,
    /// Start of the incomplete piece. Between `start` and this place there is a run that may be too
    /// short.
    cut: usize,
    /// The next position that may be the end of the piece.
    next: usize,
    /// Whether the extent is long enough to be searched.
    long: bool,
    run: Option<Run>,
    last: Option<Key>,
    /// Position of `start` in the content.
    position: u64,
    marks: VecDeque<Mark>,
    /// A chunk of the content, and its start: marks refer to no earlier chunk.
    chunk: (usize, u64),
}

impl Distant {
    pub(super) fn new(granularity: usize) -> Self {
        Self {
            index: Index::new(PIECES),
            granularity,
            sparse: SPARSE.saturating_sub(granularity.ilog2()).max(1),
            held: Vec::new(),
            start: 0,
            cut: 0,
            next: 0,
            long: false,
            run: None,
            last: None,
            position: 0,
            marks: VecDeque::new(),
            chunk: (0, 0),
        }
    }

    pub(super) fn hole(&mut self, size: u64) {
        self.position += size;
    }

    pub(super) fn end_extent(&mut self) {
        self.held.clear();
        (self.start, self.cut, self.next) = (0, 0, 0);
        self.long = false;
        self.run = None;
        self.last = None;
    }

    pub(super) fn end_content(&mut self) {
        self.end_extent();
        self.position = 0;
        self.marks.clear();
        self.chunk = (0, 0);
    }

    /// The end of the piece that begins at `cut`, and whether this end is content-defined.
    fn piece_end(&mut self) -> Option<(usize, bool)> {
        let whole = |size: usize| size - size % self.granularity;
        let longest = self.cut + whole(LONGEST);
        let from = self.next.max(self.cut + SHORTEST);
        let to = self.held.len().min(longest);
        let mut hash = 0u64;
        let add = |hash: u64, byte: u8| (hash << 1).wrapping_add(GEAR[usize::from(byte)]);
        for &byte in self
            .held
            .get(from - WINDOW..from.min(to))
            .unwrap_or_default()
        {
            hash = add(hash, byte);
        }
        // The hash covers the bytes before `at`.
        let mut at = from;
        for &byte in self.held.get(from..to).unwrap_or_default() {
            if hash >> (u64::BITS - self.sparse) == 0 && whole(at - self.cut) == at - self.cut {
                return Some((at, true));
            }
            hash = add(hash, byte);
            at += 1;
        }
        self.next = at;
        (to == longest).then_some((longest, false))
    }
}

impl<S: BlockSink> Segmenter<S> {
    /// Takes the next bytes of an extent, or its end.
    pub(super) fn look_far(&mut self, far: &mut Distant, data: &[u8], last: bool) -> Result<()> {
        far.held.extend_from_slice(data);
        far.long |= far.held.len() >= EXTENT;
        if far.long {
            while let Some((end, own)) = far.piece_end() {
                self.piece(far, end, own)?;
                far.cut = end;
                far.next = end;
            }
        }
        if last {
            let end = far.held.len();
            if far.long && far.cut < end {
                self.piece(far, end, true)?;
            }
            self.pass_on(far, end)?;
        }
        // Between pieces, so that little is moved.
        far.held.drain(..far.start);
        far.cut -= far.start.min(far.cut);
        far.next -= far.start.min(far.next);
        far.start = 0;
        self.remember(far);
        Ok(())
    }

    /// Completes the piece from `cut` to `end`.
    fn piece(&mut self, far: &mut Distant, end: usize, own: bool) -> Result<()> {
        let bytes = far.held.get(far.cut..end).unwrap_or_default();
        let size = bytes.len() as u32;
        let key = own.then(|| key(bytes)).filter(|key| far.last != Some(*key));
        if own {
            far.last = key.or(far.last);
        }
        let found = key.and_then(|key| far.index.get(&key));
        // Others are searched byte by byte.
        let found = found.filter(|piece| {
            let back = self.number.saturating_sub(piece.block);
            back as usize >= self.lookback
        });
        let found = found.map(|piece| (piece.block, piece.offset));
        if let Some((block, offset)) = found {
            let goes_on = far.run.as_ref().is_some_and(|run| {
                run.block == block && run.offset.checked_add(run.size) == Some(offset)
            });
            if !goes_on {
                self.pass_on(far, far.cut)?;
            }
            let run = far.run.get_or_insert(Run {
                block,
                offset,
                size: 0,
                taken: false,
            });
            run.size += size;
            if run.size as usize >= LONG {
                let (from, new) = if run.taken {
                    (offset, size)
                } else {
                    (run.offset, run.size)
                };
                run.taken = true;
                self.end_scan()?;
                self.reference(block, from as usize, new as usize);
                far.position += (end - far.start) as u64;
                far.start = end;
            }
            return Ok(());
        }
        self.pass_on(far, far.cut)?;
        if let Some(key) = key {
            let (start, size) = (far.position, u64::from(size));
            far.marks.push_back(Mark { key, start, size });
        }
        self.pass_on(far, end)
    }

    /// The bytes before `end` are searched in recent blocks.
    fn pass_on(&mut self, far: &mut Distant, end: usize) -> Result<()> {
        far.run = None;
        let bytes = far.held.get(far.start..end).unwrap_or_default();
        self.feed(bytes)?;
        far.position += bytes.len() as u64;
        far.start = far.start.max(end);
        Ok(())
    }

    /// Remembers pieces that are in a block already.
    pub(super) fn remember(&mut self, far: &mut Distant) {
        while let Some(mark) = far.marks.front() {
            let end = mark.start + mark.size;
            if end > self.represented {
                break;
            }
            let (at, begins) = &mut far.chunk;
            while let Some(chunk) = self.chunks.get(*at)
                && *begins + chunk.len() <= mark.start
            {
                *begins += chunk.len();
                *at += 1;
            }
            if let Some(chunk) = self.chunks.get(*at)
                && chunk.hole_size().is_none()
                && end <= *begins + chunk.len()
            {
                far.index.insert(RememberedPiece {
                    key: mark.key,
                    block: chunk.block,
                    offset: chunk.offset + (mark.start - *begins) as u32,
                });
            }
            far.marks.pop_front();
        }
    }

    /// Puts the bytes that were read into blocks.
    pub(super) fn end_scan(&mut self) -> Result<()> {
        if self.matching {
            self.scan(true)?;
            self.buffer.clear();
            self.state = Scan::default();
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn piece(number: u32) -> RememberedPiece {
        RememberedPiece {
            key: key(&number.to_le_bytes()),
            block: number,
            offset: 2 * number,
        }
    }

    #[test]
    fn the_oldest_pieces_are_forgotten() {
        let mut index = Index::new(100);
        for number in 0..1000 {
            index.insert(piece(number));
            // It stays where it was found first.
            index.insert(RememberedPiece {
                block: 7,
                ..piece(number)
            });
            for known in 0..=number {
                let found = index.get(&piece(known).key).map(|p| (p.block, p.offset));
                let expected = (known + 100 > number).then_some((known, 2 * known));
                assert_eq!(found, expected, "{known} {number}");
            }
        }
        assert_eq!((index.pieces.len(), index.table.len()), (100, 100));
    }

    #[test]
    fn memory_is_bounded() {
        assert_eq!(memory(0), 0);
        assert_eq!(memory(1 << 20), 512 * PIECE);
        assert_eq!(memory(1 << 40), memory(1 << 50));
        assert!(memory(u64::MAX) <= 224 << 20);
    }
}
