//! The cache over real payloads of all codecs, without metadata.

use std::sync::Barrier;

use redwarfs_codec::CodecSpec;
use redwarfs_format::Error;
use redwarfs_format::section::{
    CompressionId, Container, SectionHeader, SectionType, encode_section_index,
};
use redwarfs_io::{Fault, FaultSource, MemorySource, Source};

use super::slot::SEGMENT;
use super::*;
use crate::ahead::Need;

pub(super) const BLOCK_SIZE: usize = 1 << 20;

/// Compressible bytes that differ from place to place and from block to block.
fn content(block: usize, len: usize) -> Vec<u8> {
    let mut state = (block as u64 + 1).wrapping_mul(0x9e37_79b9_7f4a_7c15);
    (0..len)
        .map(|i| {
            if i % 16 == 0 {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
            }
            (state >> (i % 8)) as u8 & 0x3f
        })
        .collect()
}

pub(super) struct Fixture {
    pub(super) source: Arc<FaultSource>,
    pub(super) payloads: Payloads,
    pub(super) raw: Vec<Vec<u8>>,
    /// Offset and length of each stored payload.
    pub(super) stored: Vec<(u64, u64)>,
}

pub(super) fn fixture(codecs: &[&str]) -> Fixture {
    fixture_of(codecs, BLOCK_SIZE)
}

pub(super) fn fixture_of(codecs: &[&str], block_size: usize) -> Fixture {
    let mut image = Vec::new();
    let mut entries = Vec::new();
    let mut raw = Vec::new();
    let mut stored = Vec::new();
    for (number, codec) in codecs.iter().enumerate() {
        let data = content(number, block_size - number * 1000);
        let spec: CodecSpec = codec.parse().unwrap();
        let compressed = spec.compressor().compress(&data).unwrap();
        let payload = compressed.data.as_ref().unwrap_or(&data);
        let ty = SectionType::BLOCK;
        entries.push((ty, image.len() as u64));
        let header = SectionHeader::seal(number as u32, ty, compressed.id, payload);
        image.extend(header.encode());
        stored.push((image.len() as u64, payload.len() as u64));
        image.extend(payload);
        raw.push(data);
    }
    let ty = SectionType::SECTION_INDEX;
    entries.push((ty, image.len() as u64));
    let index = encode_section_index(&entries);
    let number = codecs.len() as u32;
    image.extend(SectionHeader::seal(number, ty, CompressionId::NONE, &index).encode());
    image.extend(index);
    let size = image.len() as u64;
    let source = Arc::new(FaultSource::new(MemorySource::new(image)));
    let read = |at, buf: &mut [u8]| source.read_exact_at(at, buf);
    let container = Container::open(&read, size, 0, None).unwrap();
    let payloads = Payloads::new(source.clone(), container.into(), block_size as u64);
    Fixture {
        source,
        payloads,
        raw,
        stored,
    }
}

impl Fixture {
    pub(super) fn cache(&self, options: CacheOptions) -> BlockCache {
        self.monitored(options, &PerfMonitor::off())
    }

    pub(super) fn monitored(&self, options: CacheOptions, perfmon: &PerfMonitor) -> BlockCache {
        BlockCache::new(self.payloads.clone(), &options, perfmon)
    }

    pub(super) fn check(&self, cache: &BlockCache, block: usize, offset: usize, len: usize) {
        let end = (offset + len) as u64;
        let data = cache
            .get(BlockNo(block as u32), offset as u64, end)
            .unwrap();
        let mut out = vec![0; len];
        cache
            .copy(&data, offset as u64, &mut out, &mut Vec::new())
            .unwrap();
        assert_eq!(out, self.raw[block][offset..offset + len], "block {block}");
        drop(data);
        cache.trim();
    }
}

pub(super) const ALL: &[&str] = &[
    "null",
    "zstd:level=3",
    "lzma:level=1",
    "brotli:quality=3",
    "lz4",
    "zstd:level=1",
];

/// All that are in memory when they are decoded.
pub(super) const COMPRESSED: &[&str] = ALL.split_at(1).1;

pub(super) fn quiet() -> CacheOptions {
    CacheOptions {
        seq_detector: 0,
        partial_ratio: 2.0,
        ..CacheOptions::default()
    }
}

/// Waits for something that another thread does.
pub(super) fn eventually(what: &str, mut done: impl FnMut() -> bool) {
    for _ in 0..20_000 {
        if done() {
            return;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    panic!("never happened: {what}");
}

#[test]
fn every_codec_in_any_order_of_ranges() {
    let f = fixture(ALL);
    let cache = f.cache(quiet());
    for block in 0..ALL.len() {
        let size = f.raw[block].len();
        for (offset, len) in [
            (10, 20),
            (0, 1),
            (SEGMENT - 1, 2),
            (3 * SEGMENT, SEGMENT),
            (size - 1, 1),
            (5, size - 5),
        ] {
            f.check(&cache, block, offset, len);
        }
    }
    assert_eq!(cache.stats().blocks_created, ALL.len() as u64);
    assert_eq!(cache.stats().misses, ALL.len() as u64);
    let all: usize = f.raw.iter().map(Vec::len).sum();
    assert_eq!(cache.stats().bytes_decoded, all as u64);
}

#[test]
fn decodes_only_what_is_needed_and_goes_on_later() {
    let f = fixture(&["zstd:level=3", "lzma:level=1", "brotli:quality=3"]);
    let cache = f.cache(quiet());
    for block in 0..3 {
        let before = cache.stats().bytes_decoded;
        f.check(&cache, block, 0, 100);
        assert_eq!(cache.stats().bytes_decoded - before, SEGMENT as u64);
        f.check(&cache, block, 2 * SEGMENT, 1);
        assert_eq!(cache.stats().bytes_decoded - before, 3 * SEGMENT as u64);
        assert!(cache.get_cached(BlockNo(block as u32), 10).is_some());
        let far = 4 * SEGMENT as u64;
        assert!(cache.get_cached(BlockNo(block as u32), far).is_none());
    }
}

#[test]
fn what_has_been_decoded_of_a_large_payload_is_given_back() {
    const MIB: usize = 1 << 20;
    let fixture = fixture_of(&["zstd:level=1"], 12 * MIB);
    let (_, stored) = fixture.stored[0];
    assert!(stored > 3 << 20, "{stored}");
    let cache = fixture.cache(quiet());
    for part in 0..11 {
        fixture.check(&cache, 0, part * MIB, 1000);
        let decoded = (part * MIB + 1000).next_multiple_of(SEGMENT) as u64;
        let rest = stored - stored * decoded / (12 << 20);
        let expected = decoded + rest;
        // Compressed data is spread evenly, but it goes back in pieces.
        let used = cache.stats().used;
        assert!(used.abs_diff(expected) < 1 << 20, "{used}, {expected}");
    }
    fixture.check(&cache, 0, 12 * MIB - 5, 5);
    fixture.check(&cache, 0, 0, 12 * MIB);
    let slot = 12 * MIB as u64 + slot::SLOT_OVERHEAD;
    assert_eq!(cache.stats().used, slot);
    // The state of the decoder, and what was left of the payload near the end.
    assert!(cache.stats().peak < slot + (1 << 20));
}

#[test]
fn who_needs_most_of_a_block_decodes_it_to_its_end() {
    const SIZE: usize = 12 << 20;
    let fixture = fixture_of(&["zstd:level=1"], SIZE);
    let cache = fixture.cache(CacheOptions {
        partial_ratio: 0.8,
        ..quiet()
    });
    let slot = cache.shared.find_or_insert(BlockNo(0));
    // Without the threads of the pool.
    cache.shared.ensure(&slot, 10 << 20).unwrap();
    assert!(slot.is_complete());
    assert_eq!(cache.stats().used, SIZE as u64 + slot::SLOT_OVERHEAD);
}

#[test]
fn most_of_a_block_becomes_all_of_it() {
    let f = fixture(&["lzma:level=1"]);
    let cache = f.cache(CacheOptions {
        partial_ratio: 0.5,
        ..quiet()
    });
    let size = f.raw[0].len();
    f.check(&cache, 0, 0, 1);
    f.check(&cache, 0, size / 2 + 1, 1);
    let all = size as u64;
    eventually("the rest is decoded", || cache.contains(BlockNo(0), all));
    // The decoder and the payload are gone.
    eventually("the decoder is dropped", || {
        cache.stats().used <= all + slot::SLOT_OVERHEAD
    });
}

/// A cache with one thread, for `limit` bytes.
fn narrow(fixture: &Fixture, limit: usize, partial_ratio: f64) -> BlockCache {
    fixture.cache(CacheOptions {
        size: limit as u64,
        partial_ratio,
        workers: 1,
        ..quiet()
    })
}

/// Waits until the only thread has done what it had to do.
fn idle(cache: &BlockCache) {
    let (tx, rx) = crossbeam_channel::bounded(0);
    assert!(
        cache
            .shared
            .group
            .pool
            .try_submit(Box::new(move || tx.send(()).unwrap()))
    );
    rx.recv().unwrap();
}

#[test]
fn blocks_read_at_random_are_finished() {
    const SIZE: usize = 4 << 20;
    let fixture = fixture_of(&["zstd:level=1"; 3], SIZE);
    let read = |cache: &BlockCache, at: usize, len: usize| {
        fixture.check(cache, 0, at, len);
        idle(cache);
        cache.contains(BlockNo(0), SIZE as u64)
    };
    let fits = 3 * (SIZE + slot::SLOT_OVERHEAD as usize);

    // Everything fits: one request is enough, unless it begins in the first part of the block.
    let cache = narrow(&fixture, fits, 0.9);
    assert!(!read(&cache, SIZE / 32, SIZE / 4));
    assert!(read(&cache, SIZE / 2, 1));

    // Not everything fits: two, and those of somebody who reads on do not count.
    let cache = narrow(&fixture, fits - 1, 0.9);
    for step in 0..4 {
        assert!(!read(&cache, SIZE / 4 + step * SIZE / 10, SIZE / 10));
    }
    assert!(read(&cache, SIZE / 4 * 3, 1));

    // Two blocks have to fit, or the rest would be dropped at once.
    let cache = narrow(&fixture, fits / 3 * 2 - 1, 0.9);
    for part in 1..4 {
        assert!(!read(&cache, part * SIZE / 4, 1));
    }

    let cache = narrow(&fixture, fits, 1.0);
    for part in 1..4 {
        assert!(!read(&cache, part * SIZE / 4, 1));
    }
}

#[test]
fn one_job_finishes_a_block() {
    const SIZE: usize = 4 << 20;
    let fixture = fixture_of(&["zstd:level=1"], SIZE);
    let cache = narrow(&fixture, 4 * SIZE, 0.5);
    fixture.check(&cache, 0, 0, 1);
    let (release, gate) = crossbeam_channel::bounded::<()>(0);
    let held = Box::new(move || assert!(gate.recv().is_err()));
    assert!(cache.shared.group.pool.try_submit(held));
    for tenth in 6..10 {
        fixture.check(&cache, 0, SIZE / 10 * tenth, 1);
    }
    drop(release);
    idle(&cache);
    assert!(cache.contains(BlockNo(0), SIZE as u64));
    // A second one would have found nothing to do.
    assert_eq!(cache.stats().expired_active_requests, 0);
}

#[test]
fn long_rests_are_not_decoded_for_jumps() {
    const SIZE: usize = 20 << 20;
    let fixture = fixture_of(&["zstd:level=1"], SIZE);
    let cache = narrow(&fixture, 4 * SIZE, 0.9);
    for (at, finished) in [(2 << 20, false), (6 << 20, true)] {
        fixture.check(&cache, 0, at, 1);
        idle(&cache);
        assert_eq!(cache.contains(BlockNo(0), SIZE as u64), finished, "{at}");
    }
}

#[test]
fn who_jumps_into_a_block_while_others_wait_decodes_it_to_its_end() {
    const SIZE: usize = 4 << 20;
    let fixture = fixture_of(&["zstd:level=1"; 2], SIZE);
    let cache = narrow(&fixture, 4 * SIZE, 0.9);
    let shared = &cache.shared;
    // Neither uses the thread of the pool.
    let read = |block| {
        let slot = shared.find_or_insert(BlockNo(block));
        slot.asked_for(1 << 20, (1 << 20) + 1, RestRule::far(SIZE as u64));
        shared.ensure(&slot, (1 << 20) + 1).unwrap();
        slot
    };
    assert!(!read(0).is_complete());
    std::thread::scope(|scope| {
        let mut passes = Vec::new();
        while !shared.group.gate.waiting().1 {
            passes.push(shared.group.gate.pass(false));
        }
        let waiter = scope.spawn(|| drop(shared.group.gate.pass(false)));
        while !shared.group.gate.is_crowded() {
            std::thread::yield_now();
        }
        let reader = scope.spawn(|| read(1));
        eventually("the reader waits, too", || {
            shared.group.gate.waiting().0 == 2
        });
        drop(passes);
        waiter.join().unwrap();
        assert!(reader.join().unwrap().is_complete());
    });
}

#[test]
fn requests_for_the_same_bytes_are_one_jump() {
    let slot = Arc::new(Slot::new(BlockNo(0), &Arc::default()));
    for (start, end, jumps) in [
        (0, 50, 0),
        (100, 110, 0),
        (300, 310, 1),
        (300, 310, 1),
        (250, 320, 1),
        (420, 430, 1),
        (531, 540, 2),
    ] {
        slot.asked_for(start, end, 100);
        assert_eq!(slot.jumps(), jumps, "{start}");
    }
    let finishing = slot.begin_to_finish();
    assert!(finishing.is_some() && slot.begin_to_finish().is_none());
    drop(finishing);
    assert!(slot.begin_to_finish().is_some());
}

#[test]
fn one_decoder_for_many_readers() {
    for codec in ALL {
        let f = fixture(&[codec]);
        let cache = f.cache(quiet());
        let barrier = Barrier::new(8);
        std::thread::scope(|scope| {
            for reader in 0..8 {
                let (f, cache, barrier) = (&f, &cache, &barrier);
                scope.spawn(move || {
                    barrier.wait();
                    for step in 0..4 {
                        let offset = (reader * 4 + step) * 30_000;
                        f.check(cache, 0, offset, 20_000);
                    }
                });
            }
        });
        f.check(&cache, 0, 0, f.raw[0].len());
        let stats = cache.stats();
        assert_eq!(stats.blocks_created, 1);
        assert_eq!(stats.bytes_decoded, f.raw[0].len() as u64);
        assert_eq!(stats.requests, 33);
    }
}

#[test]
fn the_limit_holds_apart_from_blocks_in_use() {
    let codecs: Vec<&str> = ALL.iter().cycle().take(18).copied().collect();
    let f = fixture(&codecs);
    let limit = 3 * BLOCK_SIZE as u64;
    let cache = f.cache(CacheOptions {
        size: limit,
        workers: 2,
        ..CacheOptions::default()
    });
    std::thread::scope(|scope| {
        for thread in 0..8_u64 {
            let (f, cache) = (&f, &cache);
            scope.spawn(move || {
                let mut state = thread + 1;
                let mut random = |n: usize| {
                    state ^= state << 13;
                    state ^= state >> 7;
                    state ^= state << 17;
                    (state % n as u64) as usize
                };
                for _ in 0..60 {
                    let block = random(f.raw.len());
                    let offset = random(f.raw[block].len());
                    let len = random(f.raw[block].len() - offset);
                    f.check(cache, block, offset, len.min(100_000));
                }
            });
        }
    });
    let stats = cache.stats();
    assert!(stats.blocks_evicted > 0, "{stats:?}");
    // Eight readers, two helpers, and three blocks that somebody may come back to, each with data,
    // payload and decoder of one block.
    let each = 3 * BLOCK_SIZE as u64;
    assert!(stats.peak <= limit + 13 * each, "{stats:?}");
    eventually("idle blocks fit", || {
        cache.trim();
        cache.stats().used <= limit.max(3 * each)
    });
    drop(f);
}

#[test]
fn a_limit_of_zero_keeps_blocks_in_use_only() {
    let f = fixture(ALL);
    let cache = f.cache(CacheOptions {
        size: 0,
        workers: 0,
        ..CacheOptions::default()
    });
    for block in 0..ALL.len() {
        f.check(&cache, block, 1000, 1000);
    }
    eventually("two are left", || {
        cache.trim();
        cache.stats().blocks == 2
    });
    for block in 0..ALL.len() {
        f.check(&cache, block, 0, f.raw[block].len());
    }
    eventually("nothing is left", || {
        cache.trim();
        cache.stats().used == 0
    });
    assert_eq!(cache.stats().sequential_prefetches, 0);
}

#[test]
fn the_next_block_of_a_sequence_is_decoded_ahead() {
    let f = fixture(ALL);
    let cache = f.cache(CacheOptions {
        seq_detector: 3,
        ..CacheOptions::default()
    });
    for block in 0..3 {
        f.check(&cache, block, 0, 10);
    }
    assert_eq!(cache.stats().sequential_prefetches, 1);
    let all = f.raw[3].len() as u64;
    eventually("block 3 is there", || cache.contains(BlockNo(3), all));
    f.check(&cache, 3, 0, 10);
    assert_eq!(cache.stats().misses, 3);
}

#[test]
fn what_is_planned_is_decoded_ahead_and_nothing_else() {
    let f = fixture(ALL);
    let cache = f.cache(CacheOptions {
        seq_detector: 1,
        workers: 1,
        ..CacheOptions::default()
    });
    // Block 4 decodes as a whole, block 1 by steps.
    let needs = [(0, 20), (4, 20), (4, 1000), (1, 2000), (0, 10)];
    cache.plan(needs.map(|(block, end)| (BlockNo(block), end)));
    f.check(&cache, 0, 0, 10);
    eventually("block 4 is there", || cache.contains(BlockNo(4), 1000));
    f.check(&cache, 4, 0, 1000);
    eventually("block 1 is there", || cache.contains(BlockNo(1), 2000));
    let all = f.raw[1].len() as u64;
    assert!(!cache.contains(BlockNo(1), all));
    f.check(&cache, 1, 0, 2000);
    assert_eq!(cache.stats().blocks, 3);
    assert_eq!(cache.stats().sequential_prefetches, 2);
    // Something else can be read, and what comes next is guessed again without a plan.
    f.check(&cache, 2, 0, 10);
    assert_eq!(cache.stats().sequential_prefetches, 2);
    cache.plan([]);
    f.check(&cache, 4, 0, 10);
    eventually("block 5 is there", || cache.contains(BlockNo(5), 10));
}

#[test]
fn planned_blocks_are_not_finished_because_they_are_read_at_random() {
    let f = fixture(&["zstd:level=3", "zstd:level=1"]);
    let middle = f.raw[0].len() / 2;
    let finished = |planned: bool| {
        let cache = f.cache(CacheOptions {
            workers: 1,
            seq_detector: 0,
            ..CacheOptions::default()
        });
        if planned {
            cache.plan([(BlockNo(0), middle as u64 + 10)]);
        }
        f.check(&cache, 0, 0, 10);
        f.check(&cache, 0, middle, 10);
        // Behind everything else that the only thread has to do.
        assert!(cache.decode_soon(Need::ahead(BlockNo(1), 10)));
        eventually("block 1 is there", || cache.contains(BlockNo(1), 10));
        cache.contains(BlockNo(0), f.raw[0].len() as u64)
    };
    assert!(finished(false));
    assert!(!finished(true));
}

#[test]
fn plans_have_blocks_that_exist_only() {
    let f = fixture(ALL);
    let cache = f.cache(quiet());
    cache.plan((100..1000).map(|block| (BlockNo(block), 1)));
    assert!(!cache.is_planned());
    cache.plan((5..1000).map(|block| (BlockNo(block), 1)));
    assert!(cache.is_planned());
    cache.plan([]);
    assert!(!cache.is_planned());
}

#[test]
fn errors_reach_everybody_who_waits_and_are_not_kept() {
    for codec in ["null", "zstd:level=3"] {
        let f = fixture(&["lz4", codec]);
        let cache = f.cache(quiet());
        let (at, len) = f.stored[1];
        f.source.add(Fault::FailRange(at..at + len));
        std::thread::scope(|scope| {
            for _ in 0..4 {
                let cache = &cache;
                scope.spawn(move || {
                    let e = cache.get(BlockNo(1), 0, 500_000).unwrap_err();
                    assert!(matches!(e, Error::Io(_)), "{e}");
                    assert!(e.to_string().contains("section 1"), "{e}");
                });
            }
        });
        f.check(&cache, 0, 0, 1000);
        assert_eq!(cache.stats().blocks, 1);
        f.source.heal();
        f.check(&cache, 1, 400_000, 100_000);
    }
}

#[test]
fn damage_is_found_before_use() {
    for codec in ALL {
        let f = fixture(&[codec]);
        let cache = f.cache(quiet());
        let (at, len) = f.stored[0];
        for offset in [at, at + len / 2, at + len - 1] {
            f.source.add(Fault::Flip { offset, mask: 4 });
            let e = cache.get(BlockNo(0), 0, 10).unwrap_err();
            assert!(matches!(e, Error::Corrupt { .. }), "{e}");
            let place = format!("section 0 at offset {at}");
            assert!(e.to_string().contains(&place), "{e}");
            f.source.heal();
        }
        f.check(&cache, 0, 0, 10);
    }
}

#[test]
fn ranges_and_numbers_are_checked() {
    let f = fixture(ALL);
    let cache = f.cache(quiet());
    for block in 0..ALL.len() {
        let size = f.raw[block].len() as u64;
        for end in [size + 1, u64::MAX] {
            let e = cache.get(BlockNo(block as u32), 0, end).unwrap_err();
            assert!(matches!(e, Error::Corrupt { .. }), "{e}");
        }
        f.check(&cache, block, 0, size as usize);
    }
    let e = cache.get(BlockNo(ALL.len() as u32), 0, 1).unwrap_err();
    assert!(matches!(e, Error::Corrupt { .. }), "{e}");
    assert!(!cache.decode_soon(Need::ahead(BlockNo(99), 1)));
}

#[test]
fn an_abandoned_block_fails_its_waiters_and_can_be_read_again() {
    let f = fixture(&["zstd:level=3"]);
    let cache = f.cache(quiet());
    let slot = cache.shared.find_or_insert(BlockNo(0));
    let turn = slot.try_take().unwrap();
    assert!(slot.try_take().is_none());
    std::thread::scope(|scope| {
        let waiter = scope.spawn(|| cache.get(BlockNo(0), 0, 10).map(drop));
        eventually("somebody waits", || cache.stats().active_hits_slow == 1);
        // As when the thread that decodes panics.
        drop(turn);
        assert!(waiter.join().unwrap().is_err());
    });
    f.check(&cache, 0, 0, 10);
}

#[test]
fn preloading_stops_when_full_and_tidying_empties() {
    let f = fixture(COMPRESSED);
    let cache = f.cache(CacheOptions {
        size: 3 * BLOCK_SIZE as u64 + 2000,
        ..quiet()
    });
    let loaded = (0..COMPRESSED.len() as u32)
        .filter(|&n| cache.preload(BlockNo(n)).unwrap())
        .count();
    assert_eq!(loaded, 3);
    assert_eq!(cache.stats().blocks_evicted, 0);
    assert_eq!(cache.tidy(Duration::from_secs(3600)), 0);
    let held = cache.get(BlockNo(1), 0, 1).unwrap();
    assert_eq!(cache.tidy(Duration::ZERO), 2);
    drop(held);
    assert_eq!(cache.tidy(Duration::ZERO), 1);
    assert_eq!(cache.stats().used, 0);
    assert_eq!(cache.stats().blocks_tidied, 3);
}
