//! The sequence in which contents enter the blocks.

use std::cmp::Ordering;
use std::collections::HashMap;

use crate::options::Order;
use crate::scan::{Content, Item};
use crate::source::Source;
use crate::tree::Tree;

/// Histogram of hashed four-byte sequences for the similarity digest (format/08 section 3.2).
pub(crate) struct Similarity {
    counts: [u64; 256],
    /// The last four bytes.
    last: u32,
    /// Bytes seen, 4 at most.
    seen: u32,
}

impl Similarity {
    pub(crate) fn new() -> Self {
        Self {
            counts: [0; 256],
            last: 0,
            seen: 0,
        }
    }

    pub(crate) fn update(&mut self, data: &[u8]) {
        // Four histograms, so that equal buckets in a row do not wait for each other.
        let mut partial = [[0u32; 256]; 4];
        let bucket = |x: u32| (mix(x.wrapping_add(0x9e37_79b9)) >> 24) as usize;
        for part in data.chunks(1 << 20) {
            let (start, rest) = part.split_at(part.len().min(3));
            for &byte in start {
                self.last = (self.last << 8) | u32::from(byte);
                self.seen = (self.seen + 1).min(4);
                if self.seen == 4 {
                    partial[0][bucket(self.last)] += 1;
                }
            }
            // From here on, every sequence lies within the part.
            if !rest.is_empty() {
                let [p0, p1, p2, p3] = &mut partial;
                let mut done = 0;
                for eight in part.windows(8).step_by(4) {
                    let Ok(eight) = <[u8; 8]>::try_from(eight) else {
                        break;
                    };
                    let x = u64::from_be_bytes(eight);
                    p0[bucket((x >> 32) as u32)] += 1;
                    p1[bucket((x >> 24) as u32)] += 1;
                    p2[bucket((x >> 16) as u32)] += 1;
                    p3[bucket((x >> 8) as u32)] += 1;
                    done += 4;
                }
                for four in part.get(done..).unwrap_or_default().windows(4) {
                    if let Ok(four) = <[u8; 4]>::try_from(four) {
                        self.last = u32::from_be_bytes(four);
                        p0[bucket(self.last)] += 1;
                    }
                }
                self.seen = 4;
            }
            for counts in &mut partial {
                for (total, count) in self.counts.iter_mut().zip(counts.iter_mut()) {
                    *total += u64::from(std::mem::take(count));
                }
            }
        }
    }

    /// The four fullest buckets, fullest first, one byte each.
    pub(crate) fn finish(&self) -> u32 {
        let mut best = [(0u64, 0u32); 4];
        let mut filled = 0usize;
        for (bucket, &count) in (0u32..).zip(&self.counts) {
            let place = best
                .iter()
                .take(filled)
                .position(|b| count > b.0)
                .unwrap_or(filled);
            if place < 4 {
                filled = (filled + 1).min(4);
                if let Some(tail) = best.get_mut(place..filled) {
                    tail.rotate_right(1);
                    if let Some(slot) = tail.first_mut() {
                        *slot = (count, bucket);
                    }
                }
            }
        }
        best.iter()
            .fold(0, |digest, (_, bucket)| (digest << 8) | bucket)
    }
}

fn mix(mut x: u32) -> u32 {
    x ^= x >> 16;
    x = x.wrapping_mul(0x21f0_aaad);
    x ^= x >> 15;
    x = x.wrapping_mul(0x735a_2d97);
    x ^ (x >> 15)
}

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
    // Siblings with different names: what follows a directory's name in the path is a slash.
    let tail = |at: u32, leaf: u32| {
        let slash: &[u8] = if at == leaf { b"" } else { b"/" };
        tree.name(at).iter().chain(slash)
    };
    tail(x, a).cmp(tail(y, b))
}

/// Puts the items of a stream into order: indices into `items`.
pub(crate) fn order(
    order: &Order,
    limited: bool,
    tree: &Tree,
    contents: &[Content],
    items: &[Item],
    source: &dyn Source,
) -> Vec<u32> {
    let mut sequence: Vec<u32> = (0..items.len() as u32).collect();
    let content = |i: u32| &contents[items[i as usize].content as usize];
    let entry = |i: u32| tree.files[content(i).first_file() as usize].entry;
    match order {
        Order::None => {
            sequence.sort_by_cached_key(|&i| {
                source
                    .list_position(&tree.path(entry(i)))
                    .unwrap_or(u64::MAX)
            });
        }
        Order::Path => sequence.sort_by(|&a, &b| forward_path(tree, entry(a), entry(b))),
        Order::RevPath => sequence.sort_by(|&a, &b| reverse_path(tree, entry(a), entry(b))),
        Order::Similarity => sequence.sort_by(|&a, &b| {
            let (x, y) = (&items[a as usize], &items[b as usize]);
            // Without a limit nothing lacks a digest but what could not be read.
            let digest = |c: &Item| {
                if limited {
                    c.similarity
                } else {
                    Some(c.similarity.unwrap_or(0))
                }
            };
            digest(x)
                .cmp(&digest(y))
                .then_with(|| y.size.cmp(&x.size))
                .then_with(|| reverse_path(tree, entry(a), entry(b)))
        }),
        Order::Explicit(list) => {
            let positions: HashMap<&[u8], usize> = list
                .iter()
                .enumerate()
                .rev()
                .map(|(i, path)| (path.as_slice(), i))
                .collect();
            sequence.sort_by_cached_key(|&i| {
                // Any name of the content counts.
                content(i)
                    .files
                    .iter()
                    .filter_map(|&f| positions.get(tree.file_path(f).as_slice()).copied())
                    .min()
                    .unwrap_or(usize::MAX)
            });
        }
    }
    sequence
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(data: &[u8]) -> u32 {
        let mut similarity = Similarity::new();
        similarity.update(data);
        similarity.finish()
    }

    #[test]
    fn short_contents_have_the_empty_digest() {
        assert_eq!(digest(b""), 0x0001_0203);
        assert_eq!(digest(b"abc"), 0x0001_0203);
    }

    #[test]
    fn one_bucket_comes_first() {
        let bucket = mix(0u32.wrapping_add(0x9e37_79b9)) >> 24;
        let value = digest(&[0; 100]);
        assert_eq!(value >> 24, bucket);
        let mut expected: Vec<u32> = (0..256).filter(|&b| b != bucket).take(3).collect();
        expected.insert(0, bucket);
        assert_eq!(value.to_be_bytes().map(u32::from).to_vec(), expected);
    }

    #[test]
    fn pieces_do_not_matter() {
        let data: Vec<u8> = (0..10_000u32).map(|i| ((i * i) >> 5) as u8).collect();
        let mut pieces = Similarity::new();
        for part in data.chunks(7) {
            pieces.update(part);
        }
        assert_eq!(pieces.finish(), digest(&data));
    }
}
