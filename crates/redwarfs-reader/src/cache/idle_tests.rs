//! Tests: dropping idle blocks, the kinds of memory, and blocks that cannot be read.

use redwarfs_io::Fault;

use std::sync::atomic::AtomicU64;

use super::tests::{ALL, BLOCK_SIZE, COMPRESSED, eventually, fixture, quiet};
use super::*;
use crate::ahead::Need;
use crate::options::BlockAllocator;
use crate::options::Tidy;
use crate::perfmon::Component;

/// Often enough for a test.
const OFTEN: Duration = Duration::from_millis(1);

#[test]
fn old_blocks_are_dropped_by_a_thread_of_the_cache() {
    let f = fixture(ALL);
    let cache = f.cache(CacheOptions {
        tidy: Tidy::Time {
            interval: OFTEN,
            max_age: Duration::ZERO,
        },
        ..quiet()
    });
    let held = cache.get(BlockNo(0), 0, 10).unwrap();
    for block in 1..ALL.len() {
        f.check(&cache, block, 0, f.raw[block].len());
    }
    eventually("all but the block in use are dropped", || {
        cache.stats().blocks == 1 && cache.stats().blocks_tidied == ALL.len() as u64 - 1
    });
    let mut out = [0; 10];
    cache.copy(&held, 0, &mut out, &mut Vec::new()).unwrap();
    assert_eq!(out, f.raw[0][..10]);
    drop(held);
    eventually("everything is dropped", || cache.stats().used == 0);
    assert_eq!(cache.stats().blocks_evicted, 0);
    f.check(&cache, 3, 5, 500);
}

#[test]
fn young_blocks_stay() {
    let f = fixture(ALL);
    let cache = f.cache(CacheOptions {
        tidy: Tidy::Time {
            interval: OFTEN,
            max_age: Duration::from_secs(3600),
        },
        ..quiet()
    });
    for block in 0..ALL.len() {
        f.check(&cache, block, 0, 10);
    }
    assert_eq!(cache.shared.tidy_old(Duration::from_secs(3600)), 0);
    assert_eq!(cache.stats().blocks, ALL.len() as u64);
}

#[test]
fn blocks_that_are_swapped_out_are_dropped() {
    let f = fixture(ALL);
    let cache = f.cache(CacheOptions {
        tidy: Tidy::Swap { interval: OFTEN },
        ..quiet()
    });
    // As if the second piece of block 1 was in swap: one part is enough.
    let segment = f.raw[1][slot::SEGMENT..2 * slot::SEGMENT].to_vec();
    cache
        .shared
        .group
        .tidier
        .set_probe(Box::new(move |bytes| bytes == segment));
    for block in 0..ALL.len() {
        f.check(&cache, block, 0, 3 * slot::SEGMENT);
    }
    eventually("the block in swap is dropped", || {
        cache.stats().blocks_tidied == 1
    });
    assert!(!cache.contains(BlockNo(1), 1));
    assert_eq!(cache.stats().blocks, ALL.len() as u64 - 1);
    drop(cache);

    let past = std::time::Instant::now();
    let cache = f.cache(quiet());
    for block in 0..ALL.len() {
        f.check(&cache, block, 0, 10);
    }
    // Blocks that were used after the last look stay.
    let now = std::time::Instant::now();
    assert_eq!(cache.shared.tidy_swapped(past, &mut |_| true), 0);
    assert_eq!(cache.shared.tidy_swapped(now, &mut |_| false), 0);
    // And so do those in use, whatever the system did with them, and those that are not in memory.
    let held = cache.get(BlockNo(1), 0, 3 * slot::SEGMENT as u64).unwrap();
    let now = std::time::Instant::now();
    assert_eq!(cache.shared.tidy_swapped(now, &mut |_| true), 4);
    assert_eq!(cache.stats().blocks_tidied, 4);
    assert!(held.has(3 * slot::SEGMENT as u64));
}

#[test]
fn mapped_memory_holds_the_same_bytes() {
    let f = fixture(COMPRESSED);
    let cache = f.cache(CacheOptions {
        allocator: BlockAllocator::Mmap,
        ..quiet()
    });
    for block in 0..COMPRESSED.len() {
        for (offset, len) in [(10, 20), (3 * slot::SEGMENT, 5), (0, f.raw[block].len())] {
            f.check(&cache, block, offset, len);
        }
    }
    // Whole pages are counted.
    let stats = cache.stats();
    assert!(stats.used > stats.bytes_decoded);
    assert_eq!(cache.tidy(Duration::ZERO), COMPRESSED.len() as u64);
    assert_eq!(cache.stats().used, 0);
}

#[test]
fn a_block_that_cannot_be_read_for_now_holds_up_nobody_else() {
    let f = fixture(&["zstd:level=3", "lz4", "null", "lzma:level=1"]);
    let cache = f.cache(CacheOptions {
        size: 2 * BLOCK_SIZE as u64,
        workers: 1,
        ..quiet()
    });
    let (at, len) = f.stored[0];
    f.source.add(Fault::Stall(at..at + len));
    std::thread::scope(|scope| {
        let waiters: Vec<_> = (0..3)
            .map(|n| {
                let cache = &cache;
                let f = &f;
                scope.spawn(move || f.check(cache, 0, n * 1000, 1000))
            })
            .collect();
        eventually("one reads, one waits, and one joins it", || {
            f.source.stalled() == 1 && cache.stats().request_sets_merged == 1
        });
        // Room has to be made for these.
        for block in [1, 2, 3, 1] {
            f.check(&cache, block, 0, f.raw[block].len());
        }
        assert!(cache.stats().blocks_evicted > 0);
        assert_eq!(cache.get_cached(BlockNo(0), 1).map(drop), None);
        assert!(!cache.contains(BlockNo(0), 1));
        assert_eq!(cache.stats().active_set_size.p99, 1);
        assert!(waiters.iter().all(|waiter| !waiter.is_finished()));
        f.source.heal();
    });
    assert_eq!(cache.stats().errors, 0);
}

#[test]
fn a_cache_can_be_closed_while_a_read_is_stalled() {
    let f = fixture(ALL);
    let cache = f.cache(CacheOptions {
        workers: 2,
        ..CacheOptions::default()
    });
    let all: Vec<_> = f.stored.iter().map(|(at, len)| *at..at + len).collect();
    for range in all {
        f.source.add(Fault::Stall(range));
    }
    // More than there are threads and places in the queue: nobody waits for a place.
    for _ in 0..20 {
        for block in 0..ALL.len() as u32 {
            cache.decode_soon(Need::ahead(BlockNo(block), 1));
        }
    }
    eventually("both threads are stuck", || f.source.stalled() == 2);
    drop(cache);
    assert_eq!(f.source.stalled(), 2);
    f.source.heal();
    eventually("the threads end", || Arc::strong_count(&f.source) == 2);
}

#[test]
fn work_that_is_done_already_expires() {
    let f = fixture(&["lz4"]);
    let cache = f.cache(quiet());
    f.check(&cache, 0, 0, f.raw[0].len());
    assert_eq!(cache.stats().expired_active_requests, 0);
    assert!(cache.decode_soon(Need::ahead(BlockNo(0), 10)));
    eventually("the job finds nothing to do", || {
        cache.stats().expired_active_requests == 1
    });
}

#[test]
fn threads_that_preload_at_the_same_time_do_not_overfill() {
    let codecs: Vec<&str> = COMPRESSED.iter().cycle().take(24).copied().collect();
    let f = fixture(&codecs);
    let cache = f.cache(CacheOptions {
        size: 5 * BLOCK_SIZE as u64 + 4000,
        ..quiet()
    });
    let next = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for _ in 0..8 {
            scope.spawn(|| {
                loop {
                    let n = next.fetch_add(1, Ordering::Relaxed) as u32;
                    if n >= 24 || !cache.preload(BlockNo(n)).unwrap() {
                        break;
                    }
                }
            });
        }
    });
    let stats = cache.stats();
    assert_eq!(stats.blocks_evicted, 0, "{stats:?}");
    assert!((1..=5).contains(&stats.blocks), "{stats:?}");
    // What is there already needs no room.
    let there = (0..24)
        .find(|&n| cache.contains(BlockNo(n), 900_000))
        .unwrap();
    assert!(cache.preload(BlockNo(there)).unwrap());
}

#[test]
fn operations_are_timed() {
    let f = fixture(&["zstd:level=3", "null"]);
    let perfmon = PerfMonitor::new(&[Component::BlockCache], true);
    let cache = f.monitored(quiet(), &perfmon);
    f.check(&cache, 0, 0, 10);
    f.check(&cache, 0, 0, 10);
    f.check(&cache, 1, 0, 10);
    let text = perfmon.summary().unwrap();
    let samples = |name: &str| {
        let head = format!("[block_cache.{name}]");
        let mut lines = text.lines().skip_while(|line| *line != head).skip(1);
        lines.next().unwrap().trim().to_owned()
    };
    assert_eq!(samples("get"), "samples: 3");
    assert_eq!(samples("process"), "samples: 2");
    assert_eq!(samples("decompress"), "samples: 1");
    let mut trace = Vec::new();
    perfmon.write_trace(&mut trace).unwrap();
    let trace = String::from_utf8(trace).unwrap();
    assert_eq!(trace.matches("\"ph\": \"B\"").count(), 6);
    assert!(trace.contains("\"args\": {\"block\": 1}"), "{trace}");
}
