//! Placing the same files of sibling directories side by side.
//!
//! Releases of a program are neighbouring directories with largely the same paths. If files are sorted
//! by path, the versions of one file are as far apart as a release is large. Collating sorts them by the
//! path inside the release, and then by release. Then the versions of a file are neighbours, and the
//! files of each directory stay together.
//!
//! A group of directories is collated if that saves data, and if the saving pays for the additional
//! blocks over which the data of each directory is then spread ([`FamilyOptions::least_saving`]).

use std::cmp::Ordering;
use std::collections::{HashMap, HashSet};

use super::families::{LEVELS, near};
use super::novelty::{Growth, Novelty};
use super::trial::Trial;
use super::view::StreamView;
use crate::fingerprint::mix_feature as mix;
use crate::options::FamilyOptions;
use crate::source::FileType;
use crate::tree::{Tree, tail};

/// Hashes of paths that represent the contents of a directory: the smallest ones.
const PATHS: usize = 32;
/// Percent of them that siblings share if they are versions.
const COMMON: usize = 30;
/// One part in this number of the data must be saved at least.
const WORTHWHILE: u64 = 100;

/// Without sketches, versions of contents of this size save data, if samples do. LZ4 looks back 64
/// KiB.
const SHORT: u64 = 32 << 10;
/// Smallest number of them in a group.
const FOLLOWERS: usize = 16;
/// One in this number is tried, within these bounds.
const SAMPLED: usize = 64;
const SAMPLES: (usize, usize) = (2, 48);

/// What says how much a sequence saves.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Evidence {
    /// Features of all contents.
    Sketches,
    /// Some contents of each group, compressed with LZ4.
    Samples,
}

/// Directories that are versions of each other. During the search, 8 bytes for each path that
/// represents a directory, at most 600 for a directory.
#[derive(Debug, Default)]
pub(crate) struct Versions {
    /// By entry of a directory: the number of its group, and its place in it.
    members: HashMap<u32, (u32, u32)>,
    /// Entries of directories with groups somewhere below.
    above: HashSet<u32>,
}

impl Versions {
    /// Finds those directories in a tree. Places in a group are those of the names, but if `first` is in it: then it comes
    /// first, and those before it come after it, the nearest one first.
    pub(super) fn find(tree: &Tree, first: Option<u32>) -> Self {
        let mut sets: HashMap<u32, Vec<u64>> = HashMap::new();
        for entry in 1..tree.parents.len() as u32 {
            if tree.kind(tree.inodes.at(entry)) == FileType::Directory {
                continue;
            }
            let (mut path, mut at) = (0, entry);
            for _ in 0..LEVELS {
                path = mix(path ^ u64::from(tree.name_ids[at as usize])).wrapping_add(1);
                at = tree.parents[at as usize];
                if at == 0 {
                    break;
                }
                let set = sets.entry(at).or_default();
                set.push(path);
                if set.len() >= 2 * PATHS {
                    smallest(set);
                }
            }
        }
        sets.values_mut().for_each(smallest);
        let mut versions = Self::default();
        let mut groups = 0;
        let set = |entry: &u32| sets.get(entry).map_or(&[][..], Vec::as_slice);
        for dir in &tree.dirs {
            let mut children: Vec<u32> = (dir.first..dir.first + dir.count)
                .filter(|child| !set(child).is_empty())
                .collect();
            children.sort_by(|&a, &b| natural(tree.name(a), tree.name(b)));
            let runs = children.chunk_by(|a, b| alike(set(a), set(b)));
            for run in runs.filter(|run| run.len() > 1) {
                let at = run.iter().position(|&member| Some(member) == first);
                let (before, after) = run.split_at(at.map_or(0, |at| at + 1));
                for (place, &member) in (0u32..).zip(before.iter().rev().chain(after)) {
                    versions.members.insert(member, (groups, place));
                }
                groups += 1;
                let mut up = dir.entry;
                while versions.above.insert(up) && up != 0 {
                    up = tree.parents[up as usize];
                }
            }
        }
        versions
    }
}

fn smallest(set: &mut Vec<u64>) {
    set.sort_unstable();
    set.dedup();
    set.truncate(PATHS);
}

/// Whether enough of the smallest hashes of both are hashes of each.
fn alike(a: &[u64], b: &[u64]) -> bool {
    let (mut i, mut j, mut both, mut all) = (0, 0, 0, 0);
    while all < PATHS && (i < a.len() || j < b.len()) {
        let order = match (a.get(i), b.get(j)) {
            (Some(x), Some(y)) => x.cmp(y),
            (Some(_), None) => Ordering::Less,
            _ => Ordering::Greater,
        };
        both += usize::from(order.is_eq());
        i += usize::from(order.is_le());
        j += usize::from(order.is_ge());
        all += 1;
    }
    both * 100 >= all * COMMON
}

/// Compares names by the values of the numbers in them; never equal for different names.
fn natural(a: &[u8], b: &[u8]) -> Ordering {
    /// Splits off a number: its digits without leading zeros, and the rest.
    fn number(name: &[u8]) -> Option<(&[u8], &[u8])> {
        let digits = name.iter().take_while(|c| c.is_ascii_digit()).count();
        let (number, rest) = name.split_at(digits);
        let zeros = number.iter().take_while(|&&c| c == b'0').count();
        (digits > 0).then(|| (number.split_at(zeros).1, rest))
    }
    let (mut x, mut y) = (a, b);
    loop {
        if let (Some((m, after_m)), Some((n, after_n))) = (number(x), number(y)) {
            let order = m.len().cmp(&n.len()).then_with(|| m.cmp(n));
            if order.is_ne() {
                return order;
            }
            (x, y) = (after_m, after_n);
            continue;
        }
        match (x.split_first(), y.split_first()) {
            (Some((c, after_c)), Some((d, after_d))) if c == d => (x, y) = (after_c, after_d),
            (None, None) => return a.cmp(b),
            (c, d) => return c.map(|(c, _)| c).cmp(&d.map(|(d, _)| d)),
        }
    }
}

/// A sequence of some items, judged.
#[derive(Debug, Clone, Copy, Default)]
struct Judgement {
    /// Bytes of new data.
    new: u64,
    /// Blocks of every member of the group, added up.
    blocks: u64,
}

/// An item, and the member of a group that it is in: its entry and its place in the group.
#[derive(Debug, Clone, Copy)]
struct Placed {
    item: u32,
    root: u32,
    place: u32,
}

/// A member of a group that occurs: its place in the group, its entry, its items.
type Member<'a> = (u32, u32, &'a [u32]);

/// Puts items into a sequence by name.
pub(super) struct Collator<'a, C> {
    pub(super) tree: &'a Tree,
    pub(super) versions: &'a Versions,
    pub(super) contents: &'a C,
    pub(super) options: FamilyOptions,
    pub(super) evidence: Evidence,
    /// Bytes of a block.
    pub(super) block: u64,
}

impl<C: StreamView> Collator<'_, C> {
    /// Rearranges items that are in the sequence of their paths.
    pub(super) fn run(&self, paths: &[u32]) -> Vec<u32> {
        let mut out = Vec::with_capacity(paths.len());
        self.directory(0, paths, 0, &mut out);
        out
    }

    /// The entry of a directory that is above an item, or the item itself.
    fn child(&self, directory: u32, item: u32) -> u32 {
        let mut at = self.contents.entry(item);
        while at != 0 && self.tree.parents[at as usize] != directory {
            at = self.tree.parents[at as usize];
        }
        at
    }

    fn directory(&self, directory: u32, items: &[u32], level: usize, out: &mut Vec<u32>) {
        if level >= LEVELS || !self.versions.above.contains(&directory) {
            out.extend_from_slice(items);
            return;
        }
        let children: Vec<u32> = items.iter().map(|&i| self.child(directory, i)).collect();
        let mut parts: Vec<(u32, &[u32])> = Vec::new();
        let mut rest = items;
        for same in children.chunk_by(|a, b| a == b) {
            let (part, after) = rest.split_at(same.len());
            parts.push((same[0], part));
            rest = after;
        }
        let mut groups: HashMap<u32, Vec<Member<'_>>> = HashMap::new();
        for &(child, part) in &parts {
            if let Some(&(group, place)) = self.versions.members.get(&child) {
                groups.entry(group).or_default().push((place, child, part));
            }
        }
        for (child, part) in parts {
            let Some((group, _)) = self.versions.members.get(&child) else {
                self.directory(child, part, level + 1, out);
                continue;
            };
            // Everything of a group is where its first directory is.
            let Some(mut members) = groups.remove(group) else {
                continue;
            };
            members.sort_unstable_by_key(|&(place, ..)| place);
            match self.collated(*group, &members) {
                Some(together) => out.extend(together),
                None => {
                    for (_, child, part) in members {
                        self.directory(child, part, level + 1, out);
                    }
                }
            }
        }
    }

    /// The items of all members by their paths in them, then by member, if that is better than
    /// one member after the other.
    fn collated(&self, group: u32, members: &[Member<'_>]) -> Option<Vec<u32>> {
        let mut apart: Vec<Placed> = Vec::new();
        for &(place, root, part) in members {
            apart.extend(part.iter().map(|&item| Placed { item, root, place }));
        }
        let mut together = apart.clone();
        let (mut x, mut y) = (Vec::new(), Vec::new());
        together.sort_by(|a, b| {
            self.components(a.item, a.root, &mut x);
            self.components(b.item, b.root, &mut y);
            self.compare(&x, &y).then(a.place.cmp(&b.place))
        });
        let (before, after) = (self.judge(group, &apart), self.judge(group, &together));
        let saved = match self.evidence {
            Evidence::Sketches => before.new.saturating_sub(after.new),
            Evidence::Samples => self.sampled(&apart, &together),
        };
        let share = self.options.share(self.block);
        let price = share * u128::from(after.blocks.saturating_sub(before.blocks));
        let better = saved > before.new / WORTHWHILE && u128::from(saved) >= price;
        better.then(|| together.into_iter().map(|placed| placed.item).collect())
    }

    /// The saving of the second sequence, in bytes of contents that need not be compressed, estimated
    /// from samples. Takes 8 bytes for each item.
    fn sampled(&self, apart: &[Placed], together: &[Placed]) -> u64 {
        let mut before: Vec<(u32, u32)> =
            apart.windows(2).map(|w| (w[1].item, w[0].item)).collect();
        before.sort_unstable();
        let here = |item: u32| {
            let found = before.binary_search_by_key(&item, |&(item, _)| item);
            found.ok().map(|place| before[place].1)
        };
        let short = |item: u32| self.contents.size(item) <= SHORT;
        let (mut x, mut y) = (Vec::new(), Vec::new());
        let mut size = 0u64;
        let mut followers = Vec::new();
        for pair in together.windows(2) {
            let (first, second) = (pair[0], pair[1]);
            if first.place == second.place || !short(first.item) || !short(second.item) {
                continue;
            }
            self.components(first.item, first.root, &mut x);
            self.components(second.item, second.root, &mut y);
            if self.compare(&x, &y).is_eq() {
                size = size.saturating_add(self.contents.size(second.item));
                followers.push((first.item, second.item));
            }
        }
        let Some(mut trial) = Trial::new("lz4").filter(|_| followers.len() >= FOLLOWERS) else {
            return 0;
        };
        let count = (followers.len() / SAMPLED).clamp(SAMPLES.0, SAMPLES.1);
        let step = followers.len().div_ceil(count);
        // Not only the first one of a family, which is less like the others.
        for &(first, second) in followers.iter().skip(step / 2).step_by(step) {
            trial.add(self.contents, second, here(second), first, 0);
        }
        let saved = u128::from(trial.saved.max(0).unsigned_abs());
        (u128::from(size) * saved / u128::from(trial.compressed.max(1))) as u64
    }

    fn judge(&self, group: u32, items: &[Placed]) -> Judgement {
        let mut novelty = Novelty::new(near(self.block));
        let mut growth = Growth::default();
        let mut blocks = HashSet::new();
        for &Placed { item, .. } in items {
            let (size, features) = (self.contents.size(item), self.contents.features(item));
            let first = growth.position() / self.block.max(1);
            growth.add(size, features);
            let last = growth.position().saturating_sub(1) / self.block.max(1);
            novelty.add(size, features);
            // All files with this content need these blocks, too.
            for member in self
                .contents
                .names(item)
                .filter_map(|e| self.member(group, e))
            {
                blocks.insert((member, first));
                blocks.insert((member, last.max(first)));
            }
        }
        Judgement {
            new: novelty.position(),
            blocks: blocks.len() as u64,
        }
    }

    /// The member of a group that an entry is in.
    fn member(&self, group: u32, entry: u32) -> Option<u32> {
        let mut at = entry;
        for _ in 0..LEVELS {
            match self.versions.members.get(&at) {
                Some(&(of, place)) if of == group => return Some(place),
                _ if at == 0 => return None,
                _ => at = self.tree.parents[at as usize],
            }
        }
        None
    }

    /// Entries from an item up to the child of `root`.
    fn components(&self, item: u32, root: u32, out: &mut Vec<u32>) {
        out.clear();
        let mut at = self.contents.entry(item);
        while at != root && at != 0 {
            out.push(at);
            at = self.tree.parents[at as usize];
        }
    }

    /// Compares two paths below members, given from the last to the first component.
    fn compare(&self, x: &[u32], y: &[u32]) -> Ordering {
        let name = |entry: u32| self.tree.name_ids[entry as usize];
        let mut pairs = (1..).zip(x.iter().rev().zip(y.iter().rev()));
        match pairs.find(|(_, (a, b))| name(**a) != name(**b)) {
            None => x.len().cmp(&y.len()),
            Some((i, (&a, &b))) => {
                let (a, b) = (
                    tail(self.tree, a, i == x.len()),
                    tail(self.tree, b, i == y.len()),
                );
                a.cmp(b)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_compare_by_value() {
        let sorted: [&[u8]; 10] = [
            b"a",
            b"a-1.2",
            b"a-1.9",
            b"a-1.10",
            b"a-1.010b",
            b"a-2",
            b"a2",
            b"a10",
            b"a10.1",
            b"b",
        ];
        for (i, a) in sorted.iter().enumerate() {
            for (j, b) in sorted.iter().enumerate() {
                assert_eq!(natural(a, b), i.cmp(&j), "{:?}", (i, j));
            }
        }
        assert_ne!(natural(b"a01", b"a1"), Ordering::Equal);
    }

    #[test]
    fn siblings_share_a_third_of_their_paths() {
        let paths = |from: u64, to: u64| {
            let mut set: Vec<u64> = (from..to).map(mix).collect();
            smallest(&mut set);
            set
        };
        assert!(alike(&paths(0, 500), &paths(100, 700)));
        assert!(!alike(&paths(0, 500), &paths(450, 1000)));
        assert!(alike(&paths(0, 1), &paths(0, 1)));
        assert!(!alike(&paths(0, 1), &paths(1, 2)));
    }
}
