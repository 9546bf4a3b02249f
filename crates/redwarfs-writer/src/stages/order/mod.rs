//! The sequence in which contents enter the blocks: [`Fragments`] and [`Digests`] ->
//! [`Sequences`].

mod cluster;
mod collate;
mod families;
mod novelty;
mod trial;
mod view;

use std::cmp::Ordering;
use std::collections::HashMap;
use std::sync::OnceLock;

use self::cluster::Elements;
use self::collate::{Collator, Evidence, Versions};
use self::families::Families;
use self::view::StreamView;
use crate::contents::{Content, Contents, Fragments, Item, Sequence, Sequences};
use crate::context::Context;
use crate::error::Result;
use crate::fingerprint::Digest;
use crate::options::{FamilyOptions, NilsimsaOptions, Order, ThreadGroup};
use crate::progress::CpuTime;
use crate::settings::StreamSettings;
use crate::stages::digest::Digests;
use crate::tree::{Tree, forward_path, reverse_path};

/// Puts the items of every stream into the order that its settings ask for.
pub(crate) fn arrange(
    context: Context<'_>,
    tree: &Tree,
    contents: &Contents,
    fragments: &Fragments<'_>,
    digests: &Digests,
) -> Result<Sequences> {
    let _cpu = CpuTime::counted_in(&context.counters().order_cpu_ns);
    let job = OrderJob {
        context,
        limited: context.options.max_similarity_size.is_some(),
        tree,
        contents,
        digests,
        versions: &OnceLock::new(),
        block: u64::from(context.options.block_size()),
    };
    let sequence = |(items, settings): (&[Item], &StreamSettings<'_>)| {
        let mut contents = job.stream(settings.order, items)?;
        for place in &mut contents {
            *place = items[*place as usize].content;
        }
        Ok(Sequence {
            stream: items.first().map_or(0, |item| item.stream),
            contents,
            size: items.iter().map(|item| item.size).sum(),
        })
    };
    let sequences = fragments.by_stream().map(sequence);
    let sequences = sequences.collect::<Result<_>>()?;
    context.check_stop()?;
    Ok(sequences)
}

/// Puts items into order.
#[derive(Clone, Copy)]
struct OrderJob<'a> {
    context: Context<'a>,
    /// Items without a digest are too large for one and come first.
    limited: bool,
    tree: &'a Tree,
    contents: &'a Contents,
    digests: &'a Digests,
    /// Found when the first stream asks for them.
    versions: &'a OnceLock<Versions>,
    /// Bytes of a block.
    block: u64,
}

impl OrderJob<'_> {
    fn content(&self, item: &Item) -> &Content {
        &self.contents.list[item.content as usize]
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
    fn stream(self, order: &Order, items: &[Item]) -> Result<Vec<u32>> {
        self.arrange(order, items, (0..items.len() as u32).collect())
    }

    /// Puts some of the items into order: indices into `items`, ascending.
    fn arrange(self, order: &Order, items: &[Item], mut sequence: Vec<u32>) -> Result<Vec<u32>> {
        let item = |i: u32| &items[i as usize];
        let entry = |i: u32| self.entry(item(i));
        match order {
            Order::None => sequence.sort_by_cached_key(|&i| {
                let position = self.context.source.list_position(&self.tree.path(entry(i)));
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
                return Ok(self.collated(*options, Evidence::Samples, items, sequence));
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
    fn collated(
        self,
        options: FamilyOptions,
        evidence: Evidence,
        items: &[Item],
        mut sequence: Vec<u32>,
    ) -> Vec<u32> {
        let group = Group { job: self, items };
        let entry = |i: u32| group.entry(i);
        sequence.sort_by(|&a, &b| forward_path(self.tree, entry(a), entry(b)));
        if self.context.options.hollow {
            return sequence;
        }
        let collator = Collator {
            tree: self.tree,
            versions: self.versions.get_or_init(|| {
                let front = self.context.options.front.as_deref();
                let front = front.and_then(|path| self.tree.directory_at(path));
                Versions::find(self.tree, front)
            }),
            contents: &group,
            options,
            evidence,
            block: self.block,
        };
        collator.run(&sequence)
    }

    /// By names, then moved by shared data.
    fn families(self, options: FamilyOptions, items: &[Item], sequence: Vec<u32>) -> Vec<u32> {
        let sequence = self.collated(options, Evidence::Sketches, items, sequence);
        if self.context.stopped() {
            return sequence;
        }
        let group = Group { job: self, items };
        Families::new(&group, &sequence, options, self.block).run()
    }

    /// In addition to `sequence`, up to 120 bytes per item.
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
        // The first item of each digest represents all items with this digest.
        let mut first = sequence.clone();
        first.dedup_by_key(|i| elements.digest(*i));
        let unique = first.len() == sequence.len();
        let chain = cluster::arrange(
            &elements,
            first,
            options,
            self.context.options.segmenters(),
            self.context.stop,
            &self.context.counters().order_cpu_ns,
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

impl StreamView for Group<'_> {
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
        sketch.map_or(&[], |number| self.job.digests.sketches.get(number))
    }

    fn read(&self, item: u32, limit: usize, out: &mut Vec<u8>) -> bool {
        let item = self.item(item);
        let content = self.job.content(item);
        let range = content.ranges_of(item.stream).next().unwrap_or(0..0);
        let size = (range.end - range.start).min(item.size).min(limit as u64) as usize;
        let file = content.first_file();
        if let Some(bytes) = self.job.contents.kept.get(file) {
            let bytes = bytes.get(range.start as usize..).unwrap_or_default();
            out.extend_from_slice(bytes.get(..size).unwrap_or(bytes));
            return true;
        }
        let Ok(opened) = self.job.context.open(self.job.tree, file) else {
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
        self.job.context.options.begin(ThreadGroup::Ordering);
    }

    /// What could not be read, or is empty, has the digest of nothing.
    fn digest(&self, i: u32) -> Digest {
        let number = self.item(i).similarity;
        let digest = number.and_then(|number| self.job.digests.nilsimsa.get(number as usize));
        digest.copied().unwrap_or_default()
    }

    fn size(&self, i: u32) -> u64 {
        self.item(i).size
    }

    fn compare(&self, a: u32, b: u32) -> Ordering {
        self.job.by_size(self.item(a), self.item(b))
    }
}
