//! Storing a new version of a file as references to its old version, which is in the image that the build
//! continues, and the data between them.

use std::collections::HashMap;

use redwarfs_format::metadata::Extent;

use crate::base::{BaseContent, BaseImage};
use crate::error::Result;
use crate::segmenter::{BlockSink, Segmenter};

/// Bytes of the new version that are compared at a time (8 MiB).
const PIECE: usize = 8 << 20;
/// So much further the old version is searched, in both directions.
const SLACK: u64 = 8 << 20;
/// Bytes of a window. Windows of the old version begin at multiples of this.
const WINDOW: usize = 64;
/// Shortest reference. Each one takes metadata in this and in all later generations.
const SHORTEST: usize = 1 << 10;
/// Bytes that may be compared without a result, for each byte of the new version.
const PATIENCE: usize = 8;

/// The old version of a file.
pub(super) struct Against<'a> {
    image: &'a dyn BaseImage,
    content: BaseContent,
    extents: Vec<Extent>,
    /// Size of the old version; 0 if it cannot be read.
    size: u64,
    /// Bytes of the new version that wait, and where they begin.
    waiting: Vec<u8>,
    at: u64,
    old: Vec<u8>,
    /// Bytes that were found in the old version.
    pub(super) found: u64,
}

impl<'a> Against<'a> {
    /// None if nothing of it can be found.
    pub(super) fn new(image: &'a dyn BaseImage, content: BaseContent) -> Option<Self> {
        let extents = image.extents(content).ok()?;
        let sizes = extents.iter().map(|extent| match extent {
            Extent::Hole { size } => *size,
            Extent::Data { size, .. } => u64::from(*size),
        });
        let size = sizes.fold(0, u64::saturating_add);
        (size >= SHORTEST as u64).then(|| Self {
            image,
            content,
            extents,
            size,
            waiting: Vec::new(),
            at: 0,
            old: Vec::new(),
            found: 0,
        })
    }

    /// The next bytes of the new version.
    pub(super) fn data<S: BlockSink>(
        &mut self,
        segmenter: &mut Segmenter<S>,
        mut data: &[u8],
    ) -> Result<()> {
        while !data.is_empty() {
            let (now, later) = data.split_at(data.len().min(PIECE - self.waiting.len()));
            self.waiting.extend_from_slice(now);
            if self.waiting.len() == PIECE {
                self.flush(segmenter)?;
            }
            data = later;
        }
        Ok(())
    }

    /// A hole of the new version.
    pub(super) fn hole<S: BlockSink>(
        &mut self,
        segmenter: &mut Segmenter<S>,
        size: u64,
    ) -> Result<()> {
        self.flush(segmenter)?;
        self.at = self.at.saturating_add(size);
        segmenter.hole(size);
        Ok(())
    }

    /// Stores the bytes that wait. The extent ends.
    pub(super) fn flush<S: BlockSink>(&mut self, segmenter: &mut Segmenter<S>) -> Result<()> {
        let new = std::mem::take(&mut self.waiting);
        let start = self.at.saturating_sub(SLACK).min(self.size);
        let end = self
            .at
            .saturating_add(new.len() as u64)
            .saturating_add(SLACK);
        let length = end.min(self.size).saturating_sub(start) as usize;
        self.old.resize(length, 0);
        let mut filled = 0;
        while let Some(room) = self.old.get_mut(filled..).filter(|room| !room.is_empty()) {
            match self
                .image
                .read_at(self.content, start + filled as u64, room)
            {
                Ok(n) if n > 0 => filled += n,
                // Damaged: what follows is stored as if there were no old version.
                _ => {
                    self.size = start + filled as u64;
                    break;
                }
            }
        }
        self.old.truncate(filled);
        let mut done = 0;
        for found in matches(&new, &self.old) {
            let literal = new.get(done..found.new).unwrap_or_default();
            store(segmenter, literal)?;
            done = found.new;
            let old = start + found.old as u64;
            for (offset, part) in self.places(old, found.size as u64) {
                let bytes = new.get(done..done + offset as usize).unwrap_or_default();
                match part {
                    Some((block, at)) => {
                        segmenter.base(block, at, offset as u32);
                        self.found += offset;
                    }
                    None => store(segmenter, bytes)?,
                }
                done += bytes.len();
            }
        }
        store(segmenter, new.get(done..).unwrap_or_default())?;
        self.at = self.at.saturating_add(new.len() as u64);
        self.waiting = new;
        self.waiting.clear();
        Ok(())
    }

    /// Where a range of the old version is: sizes, and blocks with offsets, or nothing for holes.
    fn places(&self, start: u64, size: u64) -> Vec<(u64, Option<(u32, u32)>)> {
        let (mut at, end) = (0_u64, start + size);
        let mut places = Vec::new();
        for extent in &self.extents {
            let (length, place) = match *extent {
                Extent::Hole { size } => (size, None),
                Extent::Data {
                    block,
                    offset,
                    size,
                } => (u64::from(size), Some((block.0, offset))),
            };
            let (from, to) = (at.max(start), at.saturating_add(length).min(end));
            if from < to {
                let within = (from - at) as u32;
                let place = place.map(|(block, offset)| (block, offset.saturating_add(within)));
                places.push((to - from, place));
            }
            at = at.saturating_add(length);
            if at >= end {
                break;
            }
        }
        places
    }
}

fn store<S: BlockSink>(segmenter: &mut Segmenter<S>, bytes: &[u8]) -> Result<()> {
    if bytes.is_empty() {
        return Ok(());
    }
    segmenter.data(bytes)?;
    segmenter.end_extent()
}

/// Bytes that are equal in two versions.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Match {
    new: usize,
    old: usize,
    size: usize,
}

/// A multiplier of the rolling checksum: any odd number with mixed bits.
const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

fn checksum(window: &[u8]) -> u64 {
    let step = |sum: u64, &byte: &u8| sum.wrapping_mul(FACTOR).wrapping_add(u64::from(byte) + 1);
    window.iter().fold(0, step)
}

/// Ranges of `new` that are in `old`, in ascending order, without overlaps.
fn matches(new: &[u8], old: &[u8]) -> Vec<Match> {
    let mut found = Vec::new();
    if new.len() < SHORTEST || old.len() < SHORTEST {
        return found;
    }
    let mut windows: HashMap<u64, u32> = HashMap::with_capacity(old.len() / WINDOW);
    for (number, window) in (0..).zip(old.chunks_exact(WINDOW)) {
        windows.entry(checksum(window)).or_insert(number);
    }
    let oldest = (0..WINDOW).fold(1_u64, |power, _| power.wrapping_mul(FACTOR));
    let mut left = new.len().saturating_mul(PATIENCE);
    let (mut at, mut done) = (0, 0);
    let mut sum = checksum(new.get(..WINDOW).unwrap_or_default());
    while at + WINDOW <= new.len() {
        let candidate = windows.get(&sum).map(|&number| number as usize * WINDOW);
        if let Some(place) = candidate
            && left > 0
        {
            let behind = common(new.get(at..), old.get(place..));
            let before = common_end(new.get(done..at), old.get(..place));
            let size = before + behind;
            if behind >= WINDOW && size >= SHORTEST {
                found.push(Match {
                    new: at - before,
                    old: place - before,
                    size,
                });
                at += behind;
                done = at;
                sum = checksum(new.get(at..at + WINDOW).unwrap_or_default());
                continue;
            }
            left = left.saturating_sub(size.max(1));
        }
        let (Some(&out), Some(&next)) = (new.get(at), new.get(at + WINDOW)) else {
            break;
        };
        sum = sum
            .wrapping_mul(FACTOR)
            .wrapping_add(u64::from(next) + 1)
            .wrapping_sub((u64::from(out) + 1).wrapping_mul(oldest));
        at += 1;
    }
    found
}

/// Number of equal bytes at the start of two.
fn common(a: Option<&[u8]>, b: Option<&[u8]>) -> usize {
    let (a, b) = (a.unwrap_or_default(), b.unwrap_or_default());
    let words = a.chunks_exact(64).zip(b.chunks_exact(64));
    let equal = words.take_while(|(a, b)| a == b).count() * 64;
    let rest = |bytes: &'_ [u8]| bytes.get(equal..).map_or(0, <[u8]>::len);
    let (a_rest, b_rest) = (rest(a), rest(b));
    let pairs = a.iter().zip(b).skip(equal).take(a_rest.min(b_rest).min(64));
    equal + pairs.take_while(|(a, b)| a == b).count()
}

/// Number of equal bytes at the end of two.
fn common_end(a: Option<&[u8]>, b: Option<&[u8]>) -> usize {
    let (a, b) = (a.unwrap_or_default(), b.unwrap_or_default());
    let pairs = a.iter().rev().zip(b.iter().rev());
    pairs.take_while(|(a, b)| a == b).count()
}

#[cfg(test)]
mod tests {
    use redwarfs_testkit::tree::Random;

    use super::*;

    /// Checks matches, and returns the bytes that they do not cover.
    fn rest(new: &[u8], old: &[u8]) -> usize {
        let mut done = 0;
        let mut rest = new.len();
        for found in matches(new, old) {
            assert!(found.new >= done && found.size >= SHORTEST);
            assert_eq!(
                new[found.new..found.new + found.size],
                old[found.old..found.old + found.size]
            );
            done = found.new + found.size;
            rest -= found.size;
        }
        rest
    }

    #[test]
    fn what_stays_is_found() {
        let mut random = Random::new(1);
        let old = random.bytes(100_000);
        assert_eq!(rest(&old, &old), 0);
        let mut new = old.clone();
        new[50_000] ^= 1;
        assert!(rest(&new, &old) <= 1);
        new.splice(20_000..20_010, random.bytes(500));
        new.drain(70_000..70_100);
        assert!((490..=502).contains(&rest(&new, &old)));
        // The other way round, and cut.
        new.rotate_left(30_000);
        assert!(rest(&new, &old) < 600);
        assert!(rest(&new[..5000], &old[..3000]) <= 5000);
        let other = random.bytes(100_000);
        assert_eq!(rest(&other, &old), 100_000);
    }

    #[test]
    fn short_and_monotonous_data_ends() {
        for (new, old) in [
            (vec![0; 500_000], vec![0; 300_000]),
            (vec![1; 100], vec![1; 100]),
            (Vec::new(), vec![1; 5000]),
            (b"ab".repeat(100_000), b"aba".repeat(100_000)),
        ] {
            assert!(rest(&new, &old) <= new.len());
        }
    }

    #[test]
    fn equal_starts_and_ends() {
        let data: Vec<u8> = (0..300_u32).map(|n| n as u8).collect();
        for equal in 0..200 {
            let mut other = data.clone();
            other[equal] ^= 1;
            assert_eq!(common(Some(&data), Some(&other)), equal);
            other.reverse();
            let back: Vec<u8> = data.iter().rev().copied().collect();
            assert_eq!(common_end(Some(&back), Some(&other)), equal);
        }
        assert_eq!(common(Some(&data), Some(&data[..131])), 131);
    }
}
