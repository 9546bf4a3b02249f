//! The sequence in which contents enter the blocks.

mod cluster;
mod collate;
mod families;
mod novelty;
mod trial;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering as AtomicOrdering};

use self::cluster::Elements;
pub(crate) use self::collate::Versions;
use self::collate::{Collator, Evidence};
use self::families::Families;
use crate::error::Result;
use crate::fingerprint::{Digest, Sketches};
use crate::options::{BuildOptions, FamilyOptions, NilsimsaOptions, Order, ThreadGroup};
use crate::scan::{Content, Item, Kept};
use crate::source::Source;
use crate::tree::Tree;

/// Compares two entries by path components from the last to the first; a path that runs out
/// first is smaller.
pub(crate) fn reverse_path(tree: &Tree, a: u32, b: u32) -> Ordering {
    let (mut a, mut b) = (a, b);
    while a != b {
        match (a, b) {
            (0, _) => return Ordering::Less,
            (_, 0) => return Ordering::Greater,
            _ => {}
        }
        if tree.name_ids[a as usize] != tree.name_ids[b as usize] {
            return tree.name(a).cmp(tree.name(b));
        }
        a = tree.parents[a as usize];
        b = tree.parents[b as usize];
    }
    Ordering::Equal
}

/// Compares the full paths of two entries as byte strings, without building them.
pub(crate) fn forward_path(tree: &Tree, a: u32, b: u32) -> Ordering {
    let depth = |mut entry: u32| {
        let mut depth = 0usize;
        while entry != 0 {
            entry = tree.parents[entry as usize];
            depth += 1;
        }
        depth
    };
    if a == b {
        return Ordering::Equal;
    }
    let (mut x, mut y) = (a, b);
    let (dx, dy) = (depth(a), depth(b));
    for _ in dy..dx {
        x = tree.parents[x as usize];
    }
    for _ in dx..dy {
        y = tree.parents[y as usize];
    }
    if x == y {
        return dx.cmp(&dy);
    }
    while tree.parents[x as usize] != tree.parents[y as usize] {
        x = tree.parents[x as usize];
        y = tree.parents[y as usize];
    }
    // Siblings with different names.
    tail(tree, x, x == a).cmp(tail(tree, y, y == b))
}

/// The name of an entry and what follows it in a path, unless it is the last one: a slash.
fn tail(tree: &Tree, entry: u32, last: bool) -> impl Iterator<Item = &u8> {
    let slash: &[u8] = if last { b"" } else { b"/" };
    tree.name(entry).iter().chain(slash)
}

/// What orders by name and content look at; items are numbers of fragments in a stream.
trait Contents {
    /// The entry of the first name.
    fn entry(&self, item: u32) -> u32;
    /// The entries of all names, but for further hard links.
    fn names(&self, item: u32) -> impl Iterator<Item = u32> + '_;
    /// The entry of the directory that an entry is in; 0 for the root and what is in it.
    fn parent(&self, entry: u32) -> u32;
    fn size(&self, item: u32) -> u64;
    fn features(&self, item: u32) -> &[u32];
    /// Appends the first bytes, `limit` at most. Returns whether they could be read.
    fn read(&self, item: u32, limit: usize, out: &mut Vec<u8>) -> bool;
}

/// What putting items into order needs to know.
#[derive(Clone, Copy)]
pub(crate) struct OrderJob<'a> {
    pub(crate) options: &'a BuildOptions,
    /// Items without a digest are too large for one and come first.
    pub(crate) limited: bool,
    pub(crate) tree: &'a Tree,
    pub(crate) contents: &'a [Content],
    /// By the numbers in the items.
    pub(crate) digests: &'a [Digest],
    /// The same for another order.
    pub(crate) sketches: &'a Sketches,
    /// Found when the first stream asks for them.
    pub(crate) versions: &'a OnceLock<Versions>,
    /// Small files that were read already.
    pub(crate) kept: &'a Kept,
    /// Bytes of a block.
    pub(crate) block: u64,
    pub(crate) source: &'a dyn Source,
    pub(crate) workers: usize,
    pub(crate) stop: &'a AtomicBool,
    /// CPU time of further threads.
    pub(crate) cpu_ns: &'a AtomicU64,
}

impl OrderJob<'_> {
    fn content(&self, item: &Item) -> &Content {
        &self.contents[item.content as usize]
    }

    fn entry(&self, item: &Item) -> u32 {
        self.tree.files[self.content(item).first_file() as usize].entry
    }

    fn reverse_path(&self, a: &Item, b: &Item) -> Ordering {
        reverse_path(self.tree, self.entry(a), self.entry(b))
    }

    /// Larger ones first.
    fn by_size(&self, a: &Item, b: &Item) -> Ordering {
        let sizes = b.size.cmp(&a.size);
        sizes.then_with(|| self.reverse_path(a, b))
    }

    /// Puts the items of a stream into order: indices into `items`.
    pub(crate) fn run(self, order: &Order, items: &[Item]) -> Result<Vec<u32>> {
        self.arrange(order, items, (0..items.len() as u32).collect())
    }

    /// Puts some of the items into order: indices into `items`, ascending.
    fn arrange(self, order: &Order, items: &[Item], mut sequence: Vec<u32>) -> Result<Vec<u32>> {
        let item = |i: u32| &items[i as usize];
        let entry = |i: u32| self.entry(item(i));
        match order {
            Order::None => sequence.sort_by_cached_key(|&i| {
                let position = self.source.list_position(&self.tree.path(entry(i)));
                position.unwrap_or(u64::MAX)
            }),
            Order::Path => {
                sequence.sort_by(|&a, &b| forward_path(self.tree, entry(a), entry(b)));
            }
            Order::RevPath => sequence.sort_by(|&a, &b| self.reverse_path(item(a), item(b))),
            Order::Similarity => sequence.sort_by(|&a, &b| {
                // Without a limit nothing lacks a digest but what could not be read.
                let digest = |item: &Item| {
                    if self.limited {
                        item.similarity
                    } else {
                        Some(item.similarity.unwrap_or(0))
                    }
                };
                digest(item(a))
                    .cmp(&digest(item(b)))
                    .then_with(|| self.by_size(item(a), item(b)))
            }),
            Order::Versions(options) => {
                return Ok(self.versions(*options, Evidence::Samples, items, sequence));
            }
            Order::Families(options) => return Ok(self.families(*options, items, sequence)),
            Order::Nilsimsa(options) => return self.nilsimsa(options, items, sequence),
            Order::Explicit(list) => {
                let positions: HashMap<&[u8], usize> = list
                    .iter()
                    .enumerate()
                    .rev()
                    .map(|(i, path)| (path.as_slice(), i))
                    .collect();
                sequence.sort_by_cached_key(|&i| {
                    // Any name of the content counts.
                    self.content(item(i))
                        .files
                        .iter()
                        .filter_map(|&f| positions.get(self.tree.file_path(f).as_slice()).copied())
                        .min()
                        .unwrap_or(usize::MAX)
                });
            }
            Order::Script(rest) => {
                let mut keyed = Vec::new();
                sequence.retain(|&i| {
                    let key = self.tree.marks.key(&self.content(item(i)).files);
                    keyed.extend(key.map(|key| (key, i)));
                    key.is_none()
                });
                keyed.sort_by(|(a, i), (b, j)| {
                    let keys = a.cmp(b);
                    keys.then_with(|| forward_path(self.tree, entry(*i), entry(*j)))
                });
                let mut whole: Vec<u32> = keyed.into_iter().map(|(_, i)| i).collect();
                whole.extend(self.arrange(rest, items, sequence)?);
                return Ok(whole);
            }
        }
        Ok(sequence)
    }

    /// By path, with versions of directories collated.
    fn versions(
        self,
        options: FamilyOptions,
        evidence: Evidence,
        items: &[Item],
        mut sequence: Vec<u32>,
    ) -> Vec<u32> {
        let group = Group { job: self, items };
        let entry = |i: u32| group.entry(i);
        sequence.sort_by(|&a, &b| forward_path(self.tree, entry(a), entry(b)));
        if self.options.hollow {
            return sequence;
        }
        let collator = Collator {
            tree: self.tree,
            versions: self.versions.get_or_init(|| Versions::find(self.tree)),
            contents: &group,
            options,
            evidence,
            block: self.block,
        };
        collator.run(&sequence)
    }

    /// By names, then moved by what the contents share.
    fn families(self, options: FamilyOptions, items: &[Item], sequence: Vec<u32>) -> Vec<u32> {
        let sequence = self.versions(options, Evidence::Sketches, items, sequence);
        if self.stop.load(AtomicOrdering::Relaxed) {
            return sequence;
        }
        let group = Group { job: self, items };
        Families::new(&group, &sequence, options, self.block).run()
    }

    /// Beside `sequence`, up to 120 bytes per item.
    fn nilsimsa(
        self,
        options: &NilsimsaOptions,
        items: &[Item],
        mut sequence: Vec<u32>,
    ) -> Result<Vec<u32>> {
        let elements = Group { job: self, items };
        let mut result = Vec::with_capacity(items.len());
        if self.limited {
            result = sequence
                .extract_if(.., |i| elements.item(*i).similarity.is_none())
                .collect();
            result.sort_by(|&a, &b| elements.compare(a, b));
        }
        sequence.sort_by(|&a, &b| {
            let digests = elements.digest(a).cmp(&elements.digest(b));
            digests.then_with(|| self.reverse_path(elements.item(a), elements.item(b)))
        });
        // The first one of each digest stands for all of them.
        let mut first = sequence.clone();
        first.dedup_by_key(|i| elements.digest(*i));
        let unique = first.len() == sequence.len();
        let chain = cluster::arrange(
            &elements,
            first,
            options,
            self.workers,
            self.stop,
            self.cpu_ns,
        )?;
        if unique {
            result.extend(chain);
            return Ok(result);
        }
        for first in chain {
            result.push(first);
            let digest = elements.digest(first);
            let start = sequence.partition_point(|&i| elements.digest(i) < digest);
            let same = sequence.get_mut(start..).unwrap_or_default();
            let count = same.partition_point(|&i| elements.digest(i) == digest);
            if let Some(others) = same.get_mut(1..count).filter(|others| !others.is_empty()) {
                others.sort_by(|&a, &b| elements.compare(a, b));
                result.extend_from_slice(others);
            }
        }
        Ok(result)
    }
}

/// The items of a stream with their digests.
struct Group<'a> {
    job: OrderJob<'a>,
    items: &'a [Item],
}

impl Group<'_> {
    fn item(&self, i: u32) -> &Item {
        &self.items[i as usize]
    }
}

impl Contents for Group<'_> {
    fn entry(&self, item: u32) -> u32 {
        self.job.entry(self.item(item))
    }

    fn names(&self, item: u32) -> impl Iterator<Item = u32> + '_ {
        let files = self.job.content(self.item(item)).files.iter();
        files.map(|&file| self.job.tree.files[file as usize].entry)
    }

    fn parent(&self, entry: u32) -> u32 {
        self.job.tree.parents[entry as usize]
    }

    fn size(&self, item: u32) -> u64 {
        self.item(item).size
    }

    fn features(&self, item: u32) -> &[u32] {
        let sketch = self.item(item).similarity;
        sketch.map_or(&[], |number| self.job.sketches.get(number))
    }

    fn read(&self, item: u32, limit: usize, out: &mut Vec<u8>) -> bool {
        let item = self.item(item);
        let content = self.job.content(item);
        let range = content.ranges_of(item.stream).next().unwrap_or(0..0);
        let size = (range.end - range.start).min(item.size).min(limit as u64) as usize;
        let file = content.first_file();
        if let Some(bytes) = self.job.kept.get(file) {
            let bytes = bytes.get(range.start as usize..).unwrap_or_default();
            out.extend_from_slice(bytes.get(..size).unwrap_or(bytes));
            return true;
        }
        let Ok(opened) = self.job.source.open(&self.job.tree.file_path(file)) else {
            return false;
        };
        let start = out.len();
        out.resize(start + size, 0);
        let mut done = 0;
        while let Some(space) = out
            .get_mut(start + done..)
            .filter(|space| !space.is_empty())
        {
            match opened.read_at(range.start + done as u64, space) {
                Ok(0) => break,
                Ok(count) => done += count,
                Err(_) => {
                    out.truncate(start);
                    return false;
                }
            }
        }
        out.truncate(start + done);
        true
    }
}

impl Elements for Group<'_> {
    fn begin(&self) {
        self.job.options.begin(ThreadGroup::Ordering);
    }

    /// What could not be read, or is empty, has the digest of nothing.
    fn digest(&self, i: u32) -> Digest {
        let number = self.item(i).similarity;
        let digest = number.and_then(|number| self.job.digests.get(number as usize));
        digest.copied().unwrap_or_default()
    }

    fn size(&self, i: u32) -> u64 {
        self.item(i).size
    }

    fn compare(&self, a: u32, b: u32) -> Ordering {
        self.job.by_size(self.item(a), self.item(b))
    }
}
