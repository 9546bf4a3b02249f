//! Putting digests into a sequence in which neighbours are alike.
//!
//! Clusters form recursively. A greedy chain then sorts the members of each cluster, and another one
//! sorts the clusters (format/08 section 3.3). Several threads work on different clusters. The result
//! does not depend on the threads.

use std::cmp::Ordering as Compare;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use crate::error::Result;
use crate::fingerprint::Digest;
use crate::options::NilsimsaOptions;
use crate::ordered::thread;
use crate::progress::{add, thread_cpu_ns};

/// Distance below which everything is one cluster at first.
const WIDEST: u32 = 128;
/// Distance that is as good as none.
const EQUAL: u32 = 1;
/// Clusters up to this size are put in order at once instead of becoming a job.
const SMALL: usize = 256;
/// Distances that are computed between two looks at the result.
const STRIPE: usize = 64;

/// The items to put into a sequence.
pub(super) trait Elements: Sync {
    /// A thread begins to work.
    fn begin(&self) {}

    fn digest(&self, element: u32) -> Digest;
    fn size(&self, element: u32) -> u64;
    /// Larger ones first; never equal for different elements.
    fn compare(&self, a: u32, b: u32) -> Compare;
}

/// Number of bits that differ.
#[inline(always)]
fn distance(a: &Digest, b: &Digest) -> u32 {
    let [a0, a1, a2, a3] = a;
    let [b0, b1, b2, b3] = b;
    (a0 ^ b0).count_ones()
        + (a1 ^ b1).count_ones()
        + (a2 ^ b2).count_ones()
        + (a3 ^ b3).count_ones()
}

/// A sequence of elements, finished.
struct Ordered {
    elements: Vec<u32>,
    /// Bytes of all contents.
    size: u64,
}

/// Where the result of a job belongs: node and place among its children. `None` is the root.
type NodePlace = Option<(usize, usize)>;

enum Job {
    /// Elements within `distance` of each other, more or less.
    Arrange {
        set: Vec<u32>,
        distance: u32,
        place: NodePlace,
    },
    /// All children are done.
    Join {
        children: Vec<Ordered>,
        place: NodePlace,
    },
}

struct Node {
    children: Vec<Option<Ordered>>,
    missing: usize,
    place: NodePlace,
}

/// The remaining jobs, and the finished parts.
#[derive(Default)]
struct Clustering {
    jobs: Vec<Job>,
    nodes: Vec<Node>,
    result: Option<Vec<u32>>,
    /// A thread has panicked, the others need not wait.
    broken: bool,
}

struct Arranger<'a, E> {
    elements: &'a E,
    max_children: usize,
    max_cluster_size: usize,
    stop: &'a AtomicBool,
    state: Mutex<Clustering>,
    wake: Condvar,
}

/// The sequence for `set`, whose digests are all different. In addition to `set`, memory for at most 80
/// bytes per element, and 1 KiB for each cluster with several elements of the sets that are divided at
/// the moment. When `stop` is set, the sequence is without meaning.
///
/// # Errors
/// If threads cannot be started.
pub(super) fn arrange<E: Elements>(
    elements: &E,
    set: Vec<u32>,
    options: &NilsimsaOptions,
    workers: usize,
    stop: &AtomicBool,
    cpu_ns: &AtomicU64,
) -> Result<Vec<u32>> {
    if set.is_empty() {
        return Ok(set);
    }
    let at_least_one =
        |number: std::num::NonZeroU64| usize::try_from(number.get()).unwrap_or(usize::MAX);
    let workers = workers.min(set.len().div_ceil(SMALL)).max(1);
    let arranger = Arranger {
        elements,
        max_children: at_least_one(options.max_children),
        max_cluster_size: at_least_one(options.max_cluster_size),
        stop,
        state: Mutex::new(Clustering {
            jobs: vec![Job::Arrange {
                set,
                distance: WIDEST,
                place: None,
            }],
            ..Clustering::default()
        }),
        wake: Condvar::new(),
    };
    std::thread::scope(|scope| {
        let run = || {
            elements.begin();
            let start = thread_cpu_ns();
            arranger.work();
            add(cpu_ns, thread_cpu_ns().saturating_sub(start));
        };
        let mut threads = Vec::new();
        for _ in 0..workers {
            match thread(scope, "order", run) {
                Ok(thread) => threads.push(thread),
                Err(error) => {
                    arranger.lock().broken = true;
                    arranger.wake.notify_all();
                    return Err(error);
                }
            }
        }
        for thread in threads {
            if let Err(panic) = thread.join() {
                std::panic::resume_unwind(panic);
            }
        }
        Ok(())
    })?;
    Ok(arranger.lock().result.take().unwrap_or_default())
}

/// Wakes the other threads when this one panics.
struct Alarm<'a, 'b, E: Elements>(&'a Arranger<'b, E>);

impl<E: Elements> Drop for Alarm<'_, '_, E> {
    fn drop(&mut self) {
        if std::thread::panicking() {
            self.0.lock().broken = true;
            self.0.wake.notify_all();
        }
    }
}

impl<E: Elements> Arranger<'_, E> {
    fn lock(&self) -> MutexGuard<'_, Clustering> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn work(&self) {
        let alarm = Alarm(self);
        while let Some(job) = self.next() {
            match job {
                Job::Arrange {
                    set,
                    distance,
                    place,
                } => self.divide(set, distance, place),
                Job::Join { children, place } => self.deliver(place, self.join(children)),
            }
        }
        drop(alarm);
    }

    fn next(&self) -> Option<Job> {
        let mut state = self.lock();
        loop {
            if state.result.is_some() || state.broken {
                return None;
            }
            if let Some(job) = state.jobs.pop() {
                return Some(job);
            }
            state = self
                .wake
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Puts a result where it belongs.
    fn deliver(&self, place: NodePlace, ordered: Ordered) {
        let mut state = self.lock();
        let Some((node, slot)) = place else {
            state.result = Some(ordered.elements);
            drop(state);
            self.wake.notify_all();
            return;
        };
        let Some(node) = state.nodes.get_mut(node) else {
            return;
        };
        if let Some(slot) = node.children.get_mut(slot) {
            *slot = Some(ordered);
            node.missing -= 1;
        }
        if node.missing == 0 {
            let children = std::mem::take(&mut node.children);
            let job = Job::Join {
                children: children.into_iter().flatten().collect(),
                place: node.place,
            };
            state.jobs.push(job);
            drop(state);
            self.wake.notify_one();
        }
    }

    /// Whether a set is small enough, or cannot be divided further. `distance` is the one by which it
    /// came together.
    fn is_leaf(&self, set: &[u32], distance: u32) -> bool {
        set.len() <= self.max_cluster_size || distance <= EQUAL
    }

    /// Clusters a set. Small clusters are put in order on the way, the others become jobs.
    fn divide(&self, set: Vec<u32>, distance: u32, place: NodePlace) {
        if place.is_some() && self.is_leaf(&set, distance * 2) {
            return self.deliver(place, self.leaf(set));
        }
        let clusters = self.clusters(&set, distance);
        drop(set);
        let mut children: Vec<Option<Ordered>> = Vec::with_capacity(clusters.len());
        let mut larger = Vec::new();
        for (slot, cluster) in clusters.into_iter().enumerate() {
            if cluster.len() <= SMALL && self.is_leaf(&cluster, distance) {
                children.push(Some(self.leaf(cluster)));
            } else {
                children.push(None);
                larger.push((slot, cluster));
            }
        }
        if larger.is_empty() {
            let children = children.into_iter().flatten().collect();
            return self.deliver(place, self.join(children));
        }
        let mut state = self.lock();
        let node = state.nodes.len();
        state.nodes.push(Node {
            children,
            missing: larger.len(),
            place,
        });
        // Later ones are taken up first: the largest clusters are early ones most of the time,
        // so that they would be started last.
        let jobs = larger.into_iter().map(|(slot, set)| Job::Arrange {
            set,
            distance: distance / 2,
            place: Some((node, slot)),
        });
        let jobs: Vec<Job> = jobs.collect();
        state.jobs.extend(jobs.into_iter().rev());
        drop(state);
        self.wake.notify_all();
    }

    /// Puts every element of `set`, one after the other, into the first cluster whose centroid
    /// is near enough.
    fn clusters(&self, set: &[u32], near: u32) -> Vec<Vec<u32>> {
        let mut centroids: Vec<Digest> = Vec::new();
        let mut clusters: Vec<Cluster> = Vec::new();
        for &element in set {
            if self.stopped() {
                break;
            }
            let digest = self.elements.digest(element);
            let mut found = first_within(&centroids, &digest, near);
            if found.is_none() && centroids.len() >= self.max_children {
                let nearest = centroids.iter().enumerate();
                found = nearest
                    .min_by_key(|(_, centroid)| distance(centroid, &digest))
                    .map(|(at, _)| at);
            }
            match found.and_then(|at| centroids.get_mut(at).zip(clusters.get_mut(at))) {
                Some((centroid, cluster)) => *centroid = cluster.join(centroid, element, &digest),
                None => {
                    centroids.push(digest);
                    clusters.push(Cluster {
                        members: vec![element],
                        counts: None,
                    });
                }
            }
        }
        clusters.into_iter().map(|c| c.members).collect()
    }

    /// The chain through one cluster. If a cluster is too large because it could not be divided, it is
    /// split, which bounds the time.
    fn leaf(&self, mut set: Vec<u32>) -> Ordered {
        let sizes = set.iter().map(|&e| self.elements.size(e));
        let size = sizes.fold(0, u64::saturating_add);
        for part in set.chunks_mut(self.max_cluster_size) {
            if part.len() < 2 {
                continue;
            }
            part.sort_by(|&a, &b| self.elements.compare(a, b));
            let digests: Vec<Digest> = part.iter().map(|&e| self.elements.digest(e)).collect();
            let sequence = chain(&digests, &digests, self.stop);
            let before = part.to_vec();
            for (to, from) in part.iter_mut().zip(sequence) {
                *to = before[from as usize];
            }
        }
        Ordered {
            elements: set,
            size,
        }
    }

    /// The chain through the children of a node.
    fn join(&self, mut children: Vec<Ordered>) -> Ordered {
        children.sort_by_key(|child| std::cmp::Reverse(child.size));
        let digest = |element: Option<&u32>| element.map_or([0; 4], |&e| self.elements.digest(e));
        let firsts: Vec<Digest> = children
            .iter()
            .map(|c| digest(c.elements.first()))
            .collect();
        let lasts: Vec<Digest> = children.iter().map(|c| digest(c.elements.last())).collect();
        let sequence = chain(&firsts, &lasts, self.stop);
        let total = children.iter().map(|c| c.elements.len()).sum();
        let mut elements = Vec::with_capacity(total);
        let sizes = children.iter().map(|c| c.size);
        let size = sizes.fold(0, u64::saturating_add);
        for child in sequence {
            elements.append(&mut children[child as usize].elements);
        }
        Ordered { elements, size }
    }
}

/// The first centroid that is at most `near` bits away.
#[inline(always)]
fn first_within(centroids: &[Digest], digest: &Digest, near: u32) -> Option<usize> {
    centroids
        .iter()
        .position(|centroid| distance(centroid, digest) <= near)
}

struct Cluster {
    members: Vec<u32>,
    /// How many members have each bit; only when there is more than one.
    counts: Option<Box<[u32; 256]>>,
}

impl Cluster {
    /// Adds a member. Returns the new centroid: the bits that more than half of the members
    /// have.
    fn join(&mut self, centroid: &Digest, element: u32, digest: &Digest) -> Digest {
        let counts = self.counts.get_or_insert_with(|| {
            let mut counts = Box::new([0; 256]);
            count(&mut counts, centroid);
            counts
        });
        self.members.push(element);
        count(counts, digest);
        let half = self.members.len() as u32 / 2;
        let mut centroid = [0u64; 4];
        for (word, counts) in centroid.iter_mut().zip(counts.chunks_exact(64)) {
            for (bit, &count) in counts.iter().enumerate() {
                *word |= u64::from(count > half) << bit;
            }
        }
        centroid
    }
}

fn count(counts: &mut [u32; 256], digest: &Digest) {
    for (word, counts) in digest.iter().zip(counts.chunks_exact_mut(64)) {
        for (bit, count) in counts.iter_mut().enumerate() {
            *count += (word >> bit) as u32 & 1;
        }
    }
}

/// The greedy chain: it begins with the first element. After each element comes the nearest of the
/// remaining ones, and among equally near ones the first. `firsts` and `lasts` are the digests with
/// which elements begin and end.
fn chain(firsts: &[Digest], lasts: &[Digest], stop: &AtomicBool) -> Vec<u32> {
    // Larger than any key of an element that is left.
    const GONE: u64 = 1 << 63;
    let mut sequence = Vec::with_capacity(firsts.len());
    let mut digests = firsts.to_vec();
    let mut keys: Vec<u64> = (0..firsts.len() as u64).collect();
    let mut gone = 0;
    let mut nearest = 0;
    while let Some(key) = keys.get_mut(nearest).filter(|key| **key < GONE) {
        let element = *key as u32;
        sequence.push(element);
        *key |= GONE;
        gone += 1;
        if sequence.len() == firsts.len() {
            break;
        }
        if gone > 16 + keys.len() / 8 {
            let mut left = keys.iter();
            digests.retain(|_| left.next().is_some_and(|key| *key < GONE));
            keys.retain(|key| *key < GONE);
            gone = 0;
        }
        let last = if stop.load(Ordering::Relaxed) {
            None
        } else {
            lasts.get(element as usize)
        };
        match last {
            Some(last) => nearest = nearest_of(&digests, &keys, last),
            // The rest is not needed.
            None => {
                sequence.extend(
                    keys.iter()
                        .filter(|key| **key < GONE)
                        .map(|key| *key as u32),
                );
                break;
            }
        }
    }
    sequence
}

/// Index of the digest with the smallest distance, with the smallest key among equals. Stops at the
/// first one that is almost equal.
#[inline(always)]
fn nearest_of(digests: &[Digest], keys: &[u64], to: &Digest) -> usize {
    let (mut best, mut at) = (u64::MAX, 0);
    let stripes = digests.chunks(STRIPE).zip(keys.chunks(STRIPE));
    for (number, (digests, keys)) in stripes.enumerate() {
        for (i, (digest, key)) in digests.iter().zip(keys).enumerate() {
            let key = (u64::from(distance(digest, to)) << 32) + key;
            if key < best {
                (best, at) = (key, number * STRIPE + i);
            }
        }
        if best >> 32 <= u64::from(EQUAL) {
            break;
        }
    }
    at
}

#[cfg(test)]
mod tests {
    use std::num::NonZeroU64;

    use super::*;

    struct Plain(Vec<Digest>);

    impl Elements for Plain {
        fn digest(&self, element: u32) -> Digest {
            self.0[element as usize]
        }

        fn size(&self, element: u32) -> u64 {
            1 + u64::from(element * 7 % 100)
        }

        fn compare(&self, a: u32, b: u32) -> Compare {
            let sizes = self.size(b).cmp(&self.size(a));
            sizes.then(a.cmp(&b))
        }
    }

    /// Families of digests that differ in a few bits from each other, in mixed order.
    fn families(number: u32, members: u32) -> Plain {
        let mut x = 1u64;
        let mut random = || {
            x ^= x << 13;
            x ^= x >> 7;
            x ^= x << 17;
            x.wrapping_mul(0x9e37_79b9_7f4a_7c15)
        };
        let bases: Vec<Digest> = (0..number)
            .map(|_| [random(), random(), random(), random()])
            .collect();
        let digests = (0..number * members).map(|i| {
            let mut digest = bases[(i % number) as usize];
            for _ in 0..3 {
                let bit = random();
                digest[(bit % 4) as usize] ^= 1 << ((bit >> 8) % 64);
            }
            digest
        });
        Plain(digests.collect())
    }

    fn run(elements: &Plain, children: u64, size: u64, workers: usize) -> Vec<u32> {
        let options = NilsimsaOptions {
            max_children: NonZeroU64::new(children).expect("not zero"),
            max_cluster_size: NonZeroU64::new(size).expect("not zero"),
        };
        let mut set: Vec<u32> = (0..elements.0.len() as u32).collect();
        set.sort_by_key(|&i| elements.digest(i));
        set.dedup_by_key(|i| elements.digest(*i));
        let (stop, cpu) = (AtomicBool::new(false), AtomicU64::new(0));
        arrange(elements, set, &options, workers, &stop, &cpu).expect("threads start")
    }

    fn length(elements: &Plain, sequence: &[u32]) -> u64 {
        let pairs = sequence.windows(2);
        pairs
            .map(|p| u64::from(distance(&elements.digest(p[0]), &elements.digest(p[1]))))
            .sum()
    }

    #[test]
    fn families_stay_together() {
        let (number, members) = (40, 50);
        let elements = families(number, members);
        for (children, size) in [(16384, 16384), (16384, 60), (8, 100), (1, 1), (3, 7)] {
            let sequence = run(&elements, children, size, 1);
            let mut all = sequence.clone();
            all.sort_unstable();
            all.dedup();
            assert_eq!(all.len(), sequence.len(), "every one once");
            if size < 60 {
                continue;
            }
            let changes = sequence.windows(2);
            let changes = changes.filter(|p| p[0] % number != p[1] % number).count();
            // A family may be divided where clusters have to be.
            assert!(
                (changes as u32) < 3 * number,
                "{children} {size}: {changes}"
            );
            let limit = 6 * u64::from(number * members) + 3 * 128 * u64::from(number);
            assert!(length(&elements, &sequence) < limit, "{children} {size}");
        }
    }

    #[test]
    fn threads_do_not_matter() {
        let elements = families(300, 20);
        for (children, size) in [(16384, 16384), (16, 300), (100, 5), (2, 2)] {
            let want = run(&elements, children, size, 1);
            for workers in [2, 3, 8] {
                assert_eq!(run(&elements, children, size, workers), want);
            }
        }
    }

    /// The chain, from its definition.
    #[test]
    fn chains_go_to_the_nearest() {
        let elements = families(7, 40);
        let digests = &elements.0;
        let mut left: Vec<u32> = (0..digests.len() as u32).collect();
        let mut want = vec![left.remove(0)];
        while let Some(&last) = want.last() {
            let to = |i: &u32| distance(&digests[last as usize], &digests[*i as usize]).max(1);
            let Some(at) = (0..left.len()).min_by_key(|&at| to(&left[at])) else {
                break;
            };
            want.push(left.remove(at));
        }
        // Equal digests and such with one bit of difference count the same.
        let sequence = chain(digests, digests, &AtomicBool::new(false));
        assert_eq!(sequence.len(), want.len());
        assert!(length(&elements, &sequence) <= length(&elements, &want) + 40);
        let distinct = families(280, 1);
        let sequence = chain(&distinct.0, &distinct.0, &AtomicBool::new(false));
        assert_eq!(sequence.first(), Some(&0));
        for (i, pair) in sequence.windows(2).enumerate() {
            let to = |e: &u32| {
                (
                    distance(&distinct.digest(pair[0]), &distinct.digest(*e)),
                    *e,
                )
            };
            let nearest = sequence[i + 1..].iter().min_by_key(|e| to(e));
            assert_eq!(nearest, Some(&pair[1]));
        }
    }

    #[test]
    fn centroids_are_majorities() {
        let mut cluster = Cluster {
            members: vec![0],
            counts: None,
        };
        let first = [0b0111, 0, 0, 1 << 63];
        let second = cluster.join(&first, 1, &[0b0011, 0, 0, 0]);
        assert_eq!(second, [0b0011, 0, 0, 0], "more than half of two is two");
        let third = cluster.join(&second, 2, &[0b0101, 0, 0, 1 << 63]);
        assert_eq!(third, [0b0111, 0, 0, 1 << 63]);
    }

    #[test]
    fn it_can_be_stopped() {
        let elements = families(100, 100);
        let set: Vec<u32> = (0..elements.0.len() as u32).collect();
        let (stop, cpu) = (AtomicBool::new(true), AtomicU64::new(0));
        let options = NilsimsaOptions::default();
        assert!(arrange(&elements, set, &options, 2, &stop, &cpu).is_ok());
    }
}
