use std::cell::RefCell;
use std::collections::{HashMap, HashSet};
use std::time::Duration;

use super::*;

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

/// An image on a server, a line with a clock of its own, and one program that reads.
struct Site {
    blocks: u32,
    size: u64,
    line: Line,
    /// Blocks that were fetched, and when they are there, in nanoseconds.
    there: RefCell<HashMap<BlockNo, u64>>,
    on_disk: HashSet<u32>,
    rule: Neighbours,
    now: u64,
    /// When the line has sent everything.
    free: u64,
    requests: usize,
    /// How often the program waited for a request that was sent when it asked.
    depth: usize,
    bytes: u64,
    /// What it asked for.
    asked: HashSet<u32>,
}

impl Stored for Site {
    fn place(&self, block: BlockNo) -> Option<Range<u64>> {
        let start = u64::from(block.0) * self.size;
        (block.0 < self.blocks).then_some(start..start + self.size)
    }

    fn is_missing(&self, block: BlockNo) -> bool {
        // A program that has asked for a block has it.
        !self.asked.contains(&block.0) && !self.on_disk.contains(&block.0)
    }

    fn line(&self) -> Option<Line> {
        Some(self.line)
    }
}

impl Site {
    /// With 12.5 MB a second and a delay in milliseconds.
    fn new(blocks: u32, size: u64, delay: u64) -> Self {
        Self {
            blocks,
            size,
            line: Line {
                rate: 12_500_000,
                delay: Duration::from_millis(delay),
            },
            there: RefCell::default(),
            on_disk: HashSet::new(),
            rule: Neighbours::default(),
            now: 0,
            free: 0,
            requests: 0,
            depth: 0,
            bytes: 0,
            asked: HashSet::new(),
        }
    }

    /// Sends requests, one for each row of neighbours.
    fn send(&mut self, mut blocks: Vec<BlockNo>) {
        let mut there = self.there.borrow_mut();
        blocks.retain(|block| !there.contains_key(block));
        let mut last = None;
        for block in blocks {
            let follows = last.is_some_and(|last: BlockNo| last.0 + 1 == block.0);
            self.requests += usize::from(!follows);
            last = Some(block);
            let first = self.now + u64::try_from(self.line.delay.as_nanos()).unwrap();
            self.free = self.free.max(first) + self.size * 1_000_000_000 / self.line.rate;
            self.bytes += self.size;
            there.insert(block, self.free);
        }
    }

    /// Reads from a block, with or without the rule.
    fn read(&mut self, block: u32, with: bool) {
        let block = BlockNo(block);
        let missing = self.is_missing(block);
        let mut rule = std::mem::take(&mut self.rule);
        let fetch = match with {
            true => rule.requested(block, missing, self).unwrap_or_default(),
            false => Fetch::default(),
        };
        self.rule = rule;
        if missing {
            let sent = self.requests;
            let row = std::iter::once(block).chain(fetch.following);
            self.send(row.collect());
            self.depth += usize::from(self.requests > sent);
        } else {
            self.send(fetch.following);
        }
        let mut others = fetch.others;
        others.sort();
        self.send(others);
        let there = self.there.borrow().get(&block).copied();
        self.now = self.now.max(there.unwrap_or(0)) + 1_000_000;
        self.asked.insert(block.0);
    }

    fn run(mut self, reads: &[u32], with: bool) -> Outcome {
        for &block in reads {
            self.read(block, with);
            assert!(self.rule.bytes <= fetched(Some(self.line)).max(self.size));
        }
        Outcome {
            requests: self.requests,
            depth: self.depth,
            unused: self
                .bytes
                .saturating_sub(self.asked.len() as u64 * self.size)
                / self.size,
            millis: self.now / 1_000_000,
        }
    }
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct Outcome {
    requests: usize,
    depth: usize,
    /// Blocks that were fetched and not read.
    unused: u64,
    millis: u64,
}

/// Numbers that look random: a permutation of `0..count`.
fn shuffled(count: u32, seed: u64) -> Vec<u32> {
    let mut list: Vec<u32> = (0..count).collect();
    let mut state = seed;
    for at in (1..list.len()).rev() {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        list.swap(at, (state >> 33) as usize % (at + 1));
    }
    list
}

/// Outcomes without and with the rule.
fn both(site: impl Fn() -> Site, reads: &[u32]) -> (Outcome, Outcome) {
    (site().run(reads, false), site().run(reads, true))
}

const BLOCK: u64 = 400 * KIB;

/// What programs ask for: the number of blocks of the image, and the blocks in order.
fn patterns() -> Vec<(&'static str, u32, Vec<u32>)> {
    let region = shuffled(18, 3).iter().map(|block| block + 30).collect();
    let pairs = |at: u32| [at, 300 + at];
    // Python starts, from an image with 4,000 other files.
    let python = [
        30, 36, 35, 31, 34, 32, 33, 70, 71, 77, 95, 56, 64, 59, 57, 67, 58, 61, 96, 55, 83, 54, 92,
        63, 62, 81, 79, 69, 88, 78, 85, 90, 80, 99, 86, 75, 76, 98, 60, 65, 84, 66, 100, 91, 52,
    ];
    vec![
        ("walk", 80, (0..80).collect()),
        ("walk back", 80, (0..80).rev().collect()),
        ("two walks", 500, (0..80).flat_map(pairs).collect()),
        ("region", 80, region),
        ("all", 80, shuffled(80, 5)),
        ("python", 101, python.to_vec()),
        ("half", 80, shuffled(80, 5)[..46].to_vec()),
        ("few", 80, shuffled(80, 6)[..10].to_vec()),
        ("every third", 300, (0..100).map(|at| at * 3).collect()),
        ("every tenth", 1000, (0..100).map(|at| at * 10).collect()),
        ("random", 5000, shuffled(5000, 7)[..300].to_vec()),
        (
            "many walks",
            5000,
            (0..320).map(|at| (at % 16) * 300 + at / 16).collect(),
        ),
    ]
}

#[test]
fn reads_in_one_region_wait_less_often() {
    let mut worst: f64 = 0.0;
    for (name, blocks, reads) in patterns() {
        let (without, with) = both(|| Site::new(blocks, BLOCK, 100), &reads);
        let most = match name {
            "walk" | "walk back" | "two walks" => reads.len() / 10,
            "region" | "all" | "python" => reads.len() / 2,
            _ => reads.len(),
        };
        assert!(
            with.depth <= most,
            "{name}: {with:?} instead of {without:?}"
        );
        if most < reads.len() {
            assert!(
                with.millis * 5 <= without.millis * 3,
                "{name}: {with:?} instead of {without:?}"
            );
        }
        worst = worst.max(with.millis as f64 / without.millis as f64);
    }
    assert!(worst <= 1.01, "{worst}");
}

#[test]
fn little_is_lost_on_a_near_server() {
    for delay in [1, 20] {
        for (name, blocks, reads) in patterns() {
            let (without, with) = both(|| Site::new(blocks, BLOCK, delay), &reads);
            // The second number is what the first requests may cost, with which the line gets up to speed.
            let what = format!("{name}: {with:?} instead of {without:?}");
            assert!(with.millis * 100 <= without.millis * 108 + 13_000, "{what}");
            assert!(with.unused as usize <= reads.len() + 4, "{what}");
        }
    }
}

#[test]
fn lone_reads_fetch_nothing_else() {
    for delay in [1, 20, 100, 1000] {
        for (blocks, reads) in [
            (5000, shuffled(5000, 7)[..300].to_vec()),
            (10, vec![5]),
            (500, vec![100, 400]),
        ] {
            let (without, with) = both(|| Site::new(blocks, BLOCK, delay), &reads);
            assert!(
                with == without || (delay > 100 && with.unused < 30),
                "{with:?} instead of {without:?}"
            );
        }
    }
    // A second one nearby fetches no more than keeps the line busy for one delay.
    let with = Site::new(500, BLOCK, 100).run(&[100, 103], true);
    assert!(with.unused * BLOCK <= 1_250_000, "{with:?}");
}

#[test]
fn large_blocks_need_a_walk() {
    let size = 8 * MIB;
    let walk: Vec<u32> = (0..20).collect();
    let with = Site::new(80, size, 20).run(&walk, true);
    assert!(with.depth <= 4 && with.unused <= 2, "{with:?}");
    let (without, with) = both(|| Site::new(80, size, 20), &[3, 5, 9, 12, 1]);
    assert_eq!(with, without);
}

#[test]
fn what_is_on_disk_is_not_fetched() {
    let mut site = Site::new(80, BLOCK, 100);
    site.on_disk = (0..80).filter(|block| block % 2 == 1).collect();
    let mut rule = Neighbours::default();
    let mut fetched = Vec::new();
    for block in (0..20).step_by(2) {
        let missing = site.is_missing(BlockNo(block));
        let fetch = rule.requested(BlockNo(block), missing, &site);
        site.asked.insert(block);
        let fetch = fetch.unwrap_or_default();
        assert_eq!(fetch.following, []);
        fetched.extend(fetch.others);
    }
    assert!(!fetched.is_empty() && fetched.iter().all(|block| block.0 % 2 == 0));
    // Requests for blocks that are on disk are no misses.
    for block in (1..79).step_by(2) {
        assert_eq!(rule.requested(BlockNo(block), false, &site), None);
    }
}

#[test]
fn unused_blocks_are_given_up_and_counted() {
    let mut site = Site::new(4000, BLOCK, 100);
    (0..40).for_each(|block| site.read(block, true));
    let counts = site.rule.take_counts();
    assert!(counts.used >= 30 && counts.unused == 0, "{counts:?}");
    let left = counts.fetched - counts.used;
    assert!(
        left > 0 && site.rule.bytes == left * BLOCK && site.rule.bytes <= fetched(Some(site.line))
    );
    // Elsewhere, and at random.
    for block in shuffled(3900, 1).iter().take(1000) {
        site.read(block + 100, true);
    }
    let counts = site.rule.take_counts();
    assert!(counts.unused >= left && counts.unused_bytes == counts.unused * BLOCK);
    assert!(counts.fetched <= 20, "{counts:?}");
    assert!(site.rule.window <= 4 * BLOCK);
    // Walking starts it again.
    (3000..3400).for_each(|block| site.read(block, true));
    assert!(site.rule.take_counts().used >= 200);
}

#[test]
fn blocks_of_other_rules_count_for_statistics_only() {
    let mut site = Site::new(100, BLOCK, 20);
    let mut rule = Neighbours::default();
    rule.announced(&[BlockNo(1), BlockNo(2), BlockNo(100)], &site);
    rule.announced(&[BlockNo(2)], &site);
    assert_eq!(
        rule.take_counts(),
        AheadCounts {
            fetched: 2,
            ..AheadCounts::default()
        }
    );
    assert_eq!(rule.requested(BlockNo(1), true, &site), None);
    assert_eq!(rule.requested(BlockNo(2), false, &site), None);
    site.asked.extend([1, 2]);
    assert_eq!(
        (rule.take_counts().used, rule.window, rule.bytes),
        (2, 0, 0)
    );
}

#[test]
fn few_reads_fetch_little_over_a_fast_line() {
    // 4 KiB each, of a small image and of a large one.
    for (blocks, size) in [(80, 64 * KIB), (400, 64 * KIB), (100, 400 * KIB)] {
        for seed in 0..20 {
            let mut site = Site::new(blocks, size, 100);
            site.line.rate = 100_000_000;
            let reads = shuffled(blocks, seed);
            let mut used = 0;
            for (number, block) in (1..).zip(&reads[..10]) {
                site.read(*block, true);
                let ahead = site.bytes - number * size;
                used += site.rule.take_counts().used * size;
                // Only what was of use makes it more than 1 MiB with each read.
                assert!(ahead <= MIB * (number - 1) + 16 * used, "{number}: {ahead}");
            }
        }
    }
}

#[test]
fn refused_blocks_are_neither_counted_nor_ahead() {
    let site = Site::new(200, BLOCK, 100);
    let mut rule = Neighbours::default();
    assert_eq!(rule.requested(BlockNo(10), true, &site), None);
    let fetch = rule.requested(BlockNo(11), true, &site).unwrap();
    let all = [fetch.following, fetch.others].concat();
    assert_eq!(all, [BlockNo(12), BlockNo(13)]);
    rule.refused(&all[1..]);
    let counts = rule.take_counts();
    assert_eq!((counts.fetched, rule.bytes), (1, BLOCK));
    assert_eq!((rule.ahead.len(), rule.order.len()), (1, 1));
    // They are asked for again.
    let again = rule.requested(BlockNo(12), false, &site).unwrap();
    assert_eq!(again.following[0], BlockNo(13));
    for block in 14..5000 {
        if let Some(fetch) = rule.requested(BlockNo(block % 200), true, &site) {
            rule.refused(&[fetch.following, fetch.others].concat());
        }
        assert!(rule.order.len() <= MOST_AHEAD && rule.ahead.len() <= 8);
    }
}

#[test]
fn numbers_are_bounded() {
    // A fast line far away, and tiny blocks.
    let mut site = Site::new(u32::MAX, 64, 1000);
    site.line.rate = u64::MAX;
    for block in (0..20_000).chain(u32::MAX - 100..=u32::MAX) {
        let mut rule = std::mem::take(&mut site.rule);
        rule.requested(BlockNo(block), true, &site);
        site.rule = rule;
        site.asked.insert(block);
        assert!(site.rule.ahead.len() <= MOST_AHEAD && site.rule.recent.len() <= RECENT);
        assert!(
            site.rule.order.len() <= 3 * MOST_AHEAD,
            "{}",
            site.rule.order.len()
        );
    }
    assert!(site.rule.take_counts().used > 19_000);
}
