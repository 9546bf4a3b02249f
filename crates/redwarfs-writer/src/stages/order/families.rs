//! Moving contents next to others that they share data with, as far as locality allows.
//!
//! 1. The fingerprint of a content is a set of features. Two contents with at least three equal
//!    features are a pair; more equal features make a stronger pair. Pairs whose members are near each
//!    other in the order of names are joined first. Joined pairs form families, and the members of a
//!    family follow its first member.
//! 2. A pair whose members are far apart would save data if one of them moved. A trial measures how
//!    much: for a few dozen pairs it compresses the second member twice, once after the first member and
//!    once after its present predecessor. If all moves together save less than half a percent of the
//!    stream, nothing moves.
//! 3. The data of a directory, at any depth, should stay within the blocks that it takes in the order of
//!    names. Some additional blocks are free: half as many (rounded up) as the data of the directory
//!    needs. Each further block must save a share of a block ([`FamilyOptions::least_saving`]). The strongest
//!    pairs are tried first. Moves shift the borders of blocks, but blocks are counted as they are in the
//!    order of names.
//!
//! Memory: 12 bytes for each feature, 12 bytes for each pair, and 24 bytes for each move; together about
//! 300 bytes for a content larger than 1 KiB, at most 700 bytes. The time grows a little faster than the number of contents.

use std::cmp::Reverse;
use std::collections::{HashMap, HashSet};

use super::novelty::Growth;
use super::trial::Trial;
use super::view::StreamView;
use crate::fingerprint::FEATURES;
use crate::options::FamilyOptions;

/// Number of later contents with the same feature that are examined.
const NEIGHBOURS: usize = 8;
/// Features that two contents must share.
const SHARED: u32 = 3;
/// Bytes of a family, at most; it is meant to lie in one block.
const FAMILY: u64 = 8 << 20;
/// Contents within this number of bytes are near, but at most within half a block.
const NEAR: u64 = 2 << 20;
/// Directories above a content that count.
pub(super) const LEVELS: usize = 64;
/// Saving less than this is not worth a move: bytes, and the part of the content.
const LITTLE: u64 = 64;
const SMALL_PART: u64 = 20;
/// All moves together must save one part in this number.
const WORTHWHILE: u128 = 200;
/// Pairs that are tried with a codec.
const TRIALS: usize = 48;

/// Distance in bytes over which every codec finds equal data, with blocks of this size.
pub(super) fn near(block: u64) -> u64 {
    NEAR.min(block / 2).max(1)
}

/// Two contents, as places in the sequence.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Pair {
    shared: u32,
    first: u32,
    second: u32,
}

/// A move that may be worth it.
#[derive(Debug, Clone, Copy)]
struct Move {
    pair: Pair,
    /// Bytes of new data that are seen at the other place.
    gain: u64,
}

/// The sequence that is worked on.
pub(super) struct Families<'a, C> {
    contents: &'a C,
    sequence: &'a [u32],
    options: FamilyOptions,
    /// Bytes of a block.
    block: u64,
    /// Bytes in the blocks before each place.
    positions: Vec<u64>,
    total: u64,
    /// The family of a place is the tree that it is in; a root is its first place.
    parents: Vec<u32>,
    sizes: Vec<u64>,
}

impl<'a, C: StreamView> Families<'a, C> {
    pub(super) fn new(
        contents: &'a C,
        sequence: &'a [u32],
        options: FamilyOptions,
        block: u64,
    ) -> Self {
        let mut growth = Growth::default();
        let positions = sequence
            .iter()
            .map(|&item| {
                let at = growth.position();
                growth.add(contents.size(item), contents.features(item));
                at
            })
            .collect();
        Self {
            contents,
            sequence,
            options,
            block,
            positions,
            total: growth.position(),
            parents: (0..sequence.len() as u32).collect(),
            sizes: sequence.iter().map(|&item| contents.size(item)).collect(),
        }
    }

    /// The new sequence.
    pub(super) fn run(mut self) -> Vec<u32> {
        let mut pairs = self.pairs();
        // Per place, its best partner nearby.
        let mut partners: HashMap<u32, (u32, u32)> = HashMap::new();
        for pair in &pairs {
            if !self.is_near(pair) {
                continue;
            }
            partners
                .entry(pair.second)
                .or_insert((pair.shared, pair.first));
            let fewer = self
                .features(pair.first)
                .len()
                .min(self.features(pair.second).len());
            if pair.shared as usize * 4 >= fewer {
                self.join(pair.first, pair.second);
            }
        }
        // Lists of the near and of the far ones would take as much again.
        pairs.retain(|pair| !self.is_near(pair));
        let moves = self.moves(pairs, &partners);
        if let Some(price) = self.price(&moves, &partners) {
            Spread::new(&self, &moves, price).apply(&mut self, &moves);
        }
        let roots: Vec<u32> = (0..self.sequence.len() as u32)
            .map(|place| self.root(place))
            .collect();
        let mut places: Vec<u32> = (0..self.sequence.len() as u32).collect();
        places.sort_by_key(|&place| roots[place as usize]);
        places
            .into_iter()
            .map(|place| self.sequence[place as usize])
            .collect()
    }

    fn item(&self, place: u32) -> u32 {
        self.sequence[place as usize]
    }

    fn features(&self, place: u32) -> &'a [u32] {
        self.contents.features(self.item(place))
    }

    fn position(&self, place: u32) -> u64 {
        self.positions[place as usize]
    }

    fn is_near(&self, pair: &Pair) -> bool {
        self.position(pair.second) - self.position(pair.first) <= near(self.block)
    }

    fn root(&mut self, mut at: u32) -> u32 {
        while self.parents[at as usize] != at {
            let up = self.parents[self.parents[at as usize] as usize];
            self.parents[at as usize] = up;
            at = up;
        }
        at
    }

    /// The same without a change.
    fn find(&self, mut at: u32) -> u32 {
        while self.parents[at as usize] != at {
            at = self.parents[at as usize];
        }
        at
    }

    fn join(&mut self, a: u32, b: u32) {
        let (a, b) = (self.root(a), self.root(b));
        let size = self.sizes[a as usize].saturating_add(self.sizes[b as usize]);
        if a != b && size <= FAMILY {
            let (low, high) = (a.min(b), a.max(b));
            self.parents[high as usize] = low;
            self.sizes[low as usize] = size;
        }
    }

    /// Pairs of contents that share features, the pairs with most features first.
    fn pairs(&self) -> Vec<Pair> {
        let count = self.sequence.len();
        let mut occurrences: Vec<u64> = Vec::new();
        let mut starts: Vec<usize> = Vec::with_capacity(count + 1);
        for place in 0..count as u32 {
            starts.push(occurrences.len());
            let features = self.features(place);
            if features.len() >= SHARED as usize {
                let place = u64::from(place);
                occurrences.extend(features.iter().map(|&f| u64::from(f) << 32 | place));
            }
        }
        starts.push(occurrences.len());
        occurrences.sort_unstable();
        // Per content, where its features are among all.
        let mut own = vec![0u32; occurrences.len().min(u32::MAX as usize)];
        let mut fill = starts.clone();
        for (i, &occurrence) in (0u32..).zip(&occurrences) {
            let slot = &mut fill[occurrence as u32 as usize];
            if let Some(index) = own.get_mut(*slot) {
                *index = i;
            }
            *slot += 1;
        }
        drop(fill);
        let mut pairs = Vec::new();
        let mut found: Vec<u32> = Vec::with_capacity(FEATURES * NEIGHBOURS);
        for (place, range) in (0u32..).zip(starts.windows(2)) {
            found.clear();
            for &index in own.get(range[0]..range[1]).unwrap_or_default() {
                let (_, rest) = occurrences.split_at(index as usize);
                let others = rest.iter().skip(1).take(NEIGHBOURS);
                let same = others.take_while(|&&other| other >> 32 == rest[0] >> 32);
                // Two features of a content may have the same number.
                found.extend(
                    same.map(|&other| other as u32)
                        .filter(|&other| other != place),
                );
            }
            found.sort_unstable();
            for same in found.chunk_by(|a, b| a == b) {
                let shared = same.len() as u32;
                if shared >= SHARED {
                    pairs.push(Pair {
                        shared,
                        first: place,
                        second: same[0],
                    });
                }
            }
        }
        pairs.sort_unstable_by_key(|p| (Reverse(p.shared), p.second - p.first, p.first));
        pairs
    }

    /// Of the pairs that are far apart, those with something to gain.
    fn moves(&self, far: Vec<Pair>, partners: &HashMap<u32, (u32, u32)>) -> Vec<Move> {
        let gain = |pair: Pair| {
            let near = partners.get(&pair.second).map_or(0, |&(shared, _)| shared);
            let size = self.contents.size(self.item(pair.second));
            let features = self.features(pair.second).len().max(1) as u64;
            let gain = size.saturating_mul(u64::from(pair.shared.saturating_sub(near))) / features;
            let enough = gain >= LITTLE && gain >= size / SMALL_PART;
            enough.then_some(Move { pair, gain })
        };
        far.into_iter().filter_map(gain).collect()
    }

    /// What a directory that gets into one more block must gain, in bytes of new data; `None` if
    /// all moves together are not worth it, or if the build has no zstd to try it with.
    fn price(&self, moves: &[Move], partners: &HashMap<u32, (u32, u32)>) -> Option<u64> {
        let mut seen = HashSet::new();
        // The best move of each content.
        let best: Vec<Move> = moves
            .iter()
            .copied()
            .filter(|m| seen.insert(m.pair.second))
            .collect();
        let gain = best.iter().fold(0u64, |sum, m| sum.saturating_add(m.gain));
        let step = best.len().div_ceil(TRIALS).max(1);
        let mut trial = Trial::new("zstd:level=3")?;
        for m in best.iter().step_by(step) {
            let second = m.pair.second;
            let here = match partners.get(&second) {
                Some(&(_, partner)) => Some(partner),
                None => second.checked_sub(1),
            };
            let item = |place: u32| self.item(place);
            trial.add(
                self.contents,
                item(second),
                here.map(item),
                item(m.pair.first),
                m.gain,
            );
        }
        // Compressed bytes, for 2^32 bytes of gain and of data.
        let saved = trial.saved.max(0) as u128 * (1 << 32) / u128::from(trial.gain.max(1));
        let cost = u128::from(trial.compressed) * (1 << 32) / u128::from(trial.size.max(1));
        if saved == 0 || u128::from(gain) * saved * WORTHWHILE < u128::from(self.total) * cost {
            return None;
        }
        let share = self.options.share(self.block);
        u64::try_from(share * cost / saved).ok()
    }

    /// The directories above a place, innermost first, without the root.
    fn above(&self, place: u32) -> impl Iterator<Item = u32> + '_ {
        let mut at = self.contents.entry(self.item(place));
        std::iter::from_fn(move || {
            at = self.contents.parent(at);
            (at != 0).then_some(at)
        })
        .take(LEVELS)
    }

    fn block_of(&self, place: u32) -> u64 {
        self.position(place) / self.block.max(1)
    }
}

/// In which blocks the data of directories are, and in which they may be.
#[derive(Default)]
struct Spread {
    /// Directory and block.
    present: HashSet<(u32, u64)>,
    /// More blocks that a directory may get into for nothing.
    free: HashMap<u32, u64>,
    /// Directories that pay for a block.
    paid: HashSet<(u32, u64)>,
}

impl Spread {
    fn new<C: StreamView>(families: &Families<'_, C>, moves: &[Move], price: u64) -> Self {
        let mut spread = Self::default();
        // Only directories that something could leave.
        let mut concerned = HashSet::new();
        for m in moves {
            concerned.extend(families.above(m.pair.first));
            concerned.extend(families.above(m.pair.second));
        }
        let mut sizes: HashMap<u32, u64> = HashMap::new();
        for place in 0..families.sequence.len() as u32 {
            let start = families.position(place);
            let end = families.positions.get(place as usize + 1);
            let size = end.copied().unwrap_or(families.total) - start;
            for directory in families.above(place).filter(|d| concerned.contains(d)) {
                spread.present.insert((directory, families.block_of(place)));
                let sum = sizes.entry(directory).or_default();
                *sum = sum.saturating_add(size);
            }
        }
        let half = |size: u64| size.div_ceil(families.block.max(1)).max(1).div_ceil(2);
        spread.free = sizes.into_iter().map(|(d, size)| (d, half(size))).collect();
        let mut sums: HashMap<(u32, u64), u64> = HashMap::new();
        let mut seen = HashSet::new();
        for m in moves.iter().filter(|m| seen.insert(m.pair.second)) {
            let block = families.block_of(families.find(m.pair.first));
            for directory in families.above(m.pair.second) {
                let sum = sums.entry((directory, block)).or_default();
                *sum = sum.saturating_add(m.gain);
            }
        }
        let enough = |(pair, sum): ((u32, u64), u64)| (sum >= price).then_some(pair);
        spread.paid = sums.into_iter().filter_map(enough).collect();
        spread
    }

    /// Whether the contents at `from` may move to `to`. If so, the move is recorded.
    fn allow<C: StreamView>(&mut self, families: &Families<'_, C>, from: u32, to: u32) -> bool {
        let block = families.block_of(to);
        let there: Vec<u32> = families.above(to).collect();
        let leaving: Vec<u32> = families
            .above(from)
            .take_while(|directory| !there.contains(directory))
            .filter(|&directory| !self.present.contains(&(directory, block)))
            .collect();
        let mut unpaid = leaving
            .iter()
            .filter(|&&d| !self.paid.contains(&(d, block)));
        if unpaid.any(|directory| self.free.get(directory).is_none_or(|&left| left == 0)) {
            return false;
        }
        for directory in leaving {
            self.present.insert((directory, block));
            if !self.paid.contains(&(directory, block))
                && let Some(left) = self.free.get_mut(&directory)
            {
                *left -= 1;
            }
        }
        true
    }

    fn apply<C: StreamView>(mut self, families: &mut Families<'_, C>, moves: &[Move]) {
        for m in moves {
            let (a, b) = (families.root(m.pair.first), families.root(m.pair.second));
            let size = families.sizes[a as usize].saturating_add(families.sizes[b as usize]);
            if a == b || size > FAMILY {
                continue;
            }
            // The family that begins later moves.
            let (to, from) = if a < b {
                (a, m.pair.second)
            } else {
                (b, m.pair.first)
            };
            if self.allow(families, from, to) {
                families.join(a, b);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fingerprint::{Sketcher, Sketches, mix_feature as mix};

    /// Contents with one directory each; directories are entries 1 to 99 below the root.
    struct Fake {
        contents: Vec<(u32, Vec<u8>)>,
        features: Vec<Vec<u32>>,
    }

    impl Fake {
        fn new(contents: Vec<(u32, Vec<u8>)>) -> Self {
            let features = contents.iter().map(|(_, data)| {
                let mut sketcher = Sketcher::new();
                sketcher.update(data);
                let mut sketches = Sketches::default();
                let number = sketches.push(&sketcher.finish());
                sketches.get(number).to_vec()
            });
            Self {
                features: features.collect(),
                contents,
            }
        }

        fn run(&self, gain: u32, block: u64) -> Vec<u32> {
            let sequence: Vec<u32> = (0..self.contents.len() as u32).collect();
            let options = FamilyOptions::new(gain);
            let mut result = Families::new(self, &sequence, options, block).run();
            let found = result.clone();
            result.sort_unstable();
            assert_eq!(result, sequence);
            found
        }

        /// In how many blocks the contents of a directory are, in this sequence.
        fn blocks(&self, sequence: &[u32], directory: u32, block: u64) -> usize {
            let mut position = 0;
            let mut blocks = HashSet::new();
            for &item in sequence {
                let (of, data) = &self.contents[item as usize];
                if *of == directory {
                    blocks.insert(position / block);
                }
                position += data.len() as u64;
            }
            blocks.len()
        }
    }

    impl StreamView for Fake {
        fn entry(&self, item: u32) -> u32 {
            100 + item
        }

        fn names(&self, item: u32) -> impl Iterator<Item = u32> + '_ {
            std::iter::once(self.entry(item))
        }

        fn parent(&self, entry: u32) -> u32 {
            let item = entry.checked_sub(100);
            item.map_or(0, |item| self.contents[item as usize].0)
        }

        fn size(&self, item: u32) -> u64 {
            self.contents[item as usize].1.len() as u64
        }

        fn features(&self, item: u32) -> &[u32] {
            &self.features[item as usize]
        }

        fn read(&self, item: u32, limit: usize, out: &mut Vec<u8>) -> bool {
            out.extend(self.contents[item as usize].1.iter().take(limit));
            true
        }
    }

    fn random(seed: u64, size: usize) -> Vec<u8> {
        (0..size as u64)
            .map(|i| mix(mix(seed).wrapping_add(i)) as u8)
            .collect()
    }

    /// The same with a few bytes of another kind in every 4000.
    fn changed(data: &[u8], seed: u64) -> Vec<u8> {
        let mut data = data.to_vec();
        for part in data.chunks_mut(4000) {
            let change = random(seed, 40.min(part.len()));
            part[..change.len()].copy_from_slice(&change);
        }
        data
    }

    /// Two directories of 5 MB, with data between them; the second has versions of what is in the
    /// first one.
    fn versions() -> Fake {
        let mut contents = Vec::new();
        for file in 0..50 {
            contents.push((1, random(file, 100_000)));
        }
        for file in 0..30 {
            contents.push((2, random(1000 + file, 100_000)));
        }
        for file in 0..50 {
            contents.push((3, changed(&random(file, 100_000), 2000 + file)));
        }
        Fake::new(contents)
    }

    #[test]
    fn near_ones_follow_each_other() {
        let a = random(1, 10_000);
        let fake = Fake::new(vec![
            (1, a.clone()),
            (1, random(2, 10_000)),
            (2, changed(&a, 3)),
            (2, random(4, 10_000)),
        ]);
        assert_eq!(fake.run(1000, 1 << 20), [0, 2, 1, 3]);
    }

    #[test]
    fn what_pays_moves_far() {
        let fake = versions();
        let sequence = fake.run(20, 1 << 20);
        for file in 0..50u32 {
            let place = sequence.iter().position(|&i| i == file).unwrap();
            assert_eq!(sequence[place + 1], file + 80);
        }
    }

    #[test]
    fn directories_spread_over_few_blocks_if_that_is_asked_for() {
        // Versions of every fourth file of a large directory.
        let mut contents: Vec<_> = (0..200).map(|file| (1, random(file, 100_000))).collect();
        let copies = (0..50).map(|file| (3, changed(&random(4 * file, 100_000), 2000 + file)));
        contents.extend(copies);
        let fake = Fake::new(contents);
        let block = 1 << 20;
        let unmoved: Vec<u32> = (0..fake.contents.len() as u32).collect();
        let before = fake.blocks(&unmoved, 3, block);
        let sequence = fake.run(1000, block);
        let after = fake.blocks(&sequence, 3, block);
        // Half of what it needs is free. What moves to a block may push some of it into the next.
        assert!(
            after > before && after <= before + 2 * before.div_ceil(2) + 1,
            "{after}"
        );
        let scattered = fake.blocks(&fake.run(0, block), 3, block);
        assert!(scattered >= 20, "{scattered}");
    }

    #[test]
    fn likeness_that_saves_nothing_moves_nothing() {
        // Records of few words: the same windows everywhere, but never the same text.
        let words: Vec<Vec<u8>> = (0..60).map(|word| random(word, 24)).collect();
        let text = |seed: u64| -> Vec<u8> {
            let word = |i: u64| &words[(mix(seed * 100_000 + i) % 60) as usize];
            (0..4000).flat_map(|i| word(i).iter().copied()).collect()
        };
        let contents = (0..60).map(|file| (1 + file / 30, text(u64::from(file))));
        let fake = Fake::new(contents.collect());
        let pairs = Families::new(
            &fake,
            &(0..60).collect::<Vec<u32>>(),
            FamilyOptions::default(),
            1 << 20,
        )
        .pairs();
        assert!(pairs.iter().any(|pair| pair.second - pair.first > 25));
        // Those that are near may change places.
        for (place, &item) in fake.run(0, 1 << 20).iter().enumerate() {
            assert!(
                (place as i64 - i64::from(item)).unsigned_abs() < 45,
                "{item} at {place}"
            );
        }
        assert_eq!(fake.blocks(&fake.run(0, 1 << 20), 2, 1 << 20), 4);
    }

    #[test]
    fn families_are_bounded() {
        let data = random(1, 1 << 20);
        let contents = (0..20).map(|i| (1, changed(&data, i))).collect();
        let fake = Fake::new(contents);
        let sequence: Vec<u32> = (0..20).collect();
        let mut families = Families::new(&fake, &sequence, FamilyOptions::default(), 16 << 20);
        for other in 1..20 {
            families.join(0, other);
        }
        let root = families.root(0);
        assert_eq!(families.sizes[root as usize], FAMILY);
    }
}
