//! Blocks in use stay, whatever their size, and those that are not compressed stay where they are stored.

use std::sync::atomic::AtomicUsize;

use redwarfs_format::Error;
use redwarfs_format::section::LeafDigests;
use redwarfs_io::Fault;

use super::slot::SLOT_OVERHEAD;
use super::tests::{ALL, BLOCK_SIZE, COMPRESSED, Fixture, eventually, fixture, fixture_of, quiet};
use super::*;

const LEAF: usize = LeafDigests::LEAF;

/// Caches of all sizes in relation to a block.
const LIMITS: [usize; 9] = [
    0,
    1,
    BLOCK_SIZE / 3,
    BLOCK_SIZE,
    BLOCK_SIZE * 3 / 2,
    BLOCK_SIZE * 2 + 2000,
    BLOCK_SIZE * 3 + 3000,
    BLOCK_SIZE * 5,
    BLOCK_SIZE * 100,
];

fn cache(fixture: &Fixture, limit: usize, workers: usize, seq_detector: usize) -> BlockCache {
    fixture.cache(CacheOptions {
        size: limit as u64,
        workers,
        seq_detector,
        ..CacheOptions::default()
    })
}

/// Pieces of all blocks in order.
fn pieces(fixture: &Fixture, piece: usize) -> Vec<(usize, usize, usize)> {
    let blocks = fixture.raw.iter().enumerate();
    blocks
        .flat_map(|(block, raw)| {
            let at = (0..raw.len()).step_by(piece);
            at.map(move |at| (block, at, piece.min(raw.len() - at)))
        })
        .collect()
}

fn total(fixture: &Fixture) -> u64 {
    fixture.raw.iter().map(|raw| raw.len() as u64).sum()
}

#[test]
fn no_byte_is_decoded_twice_in_a_sequential_read() {
    let f = fixture(ALL);
    for piece in [50_000, 128 << 10] {
        let pieces = pieces(&f, piece);
        for limit in LIMITS {
            for (workers, seq_detector) in [(0, 0), (2, 4), (4, 1)] {
                let cache = cache(&f, limit, workers, seq_detector);
                for &(block, at, len) in &pieces {
                    f.check(&cache, block, at, len);
                }
                let stats = cache.stats();
                assert_eq!(
                    stats.bytes_decoded,
                    total(&f),
                    "{limit}, {workers}: {stats:?}"
                );
                assert_eq!(stats.blocks_created, ALL.len() as u64);
            }
        }
    }
}

#[test]
fn nor_by_requests_that_overtake_each_other() {
    let f = fixture(ALL);
    let pieces = pieces(&f, 64 << 10);
    for limit in LIMITS {
        let cache = cache(&f, limit, 2, 4);
        let next = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..3 {
                scope.spawn(|| {
                    while let Some(&(block, at, len)) =
                        pieces.get(next.fetch_add(1, Ordering::Relaxed))
                    {
                        f.check(&cache, block, at, len);
                    }
                });
            }
        });
        let stats = cache.stats();
        assert_eq!(stats.bytes_decoded, total(&f), "{limit}: {stats:?}");
    }
}

#[test]
fn nor_by_as_many_readers_as_there_are_blocks_in_use() {
    // Each reader has its own block, the last one is read by all of them afterwards.
    let f = fixture(&ALL[1..5]);
    for limit in LIMITS {
        for workers in [1, 2] {
            let cache = cache(&f, limit, workers, 0);
            let size = f.raw[3].len();
            for at in (0..size).step_by(100_000) {
                for block in 0..=workers {
                    f.check(&cache, block, at, 100_000.min(size - at));
                }
            }
            let stats = cache.stats();
            let most: u64 = f.raw[..=workers].iter().map(|raw| raw.len() as u64).sum();
            assert!(stats.bytes_decoded <= most, "{limit}: {stats:?}");
            assert_eq!(stats.blocks_created, workers as u64 + 1);
        }
    }
}

#[test]
fn blocks_in_use_are_few_and_those_that_were_read_are_not() {
    let codecs: Vec<&str> = COMPRESSED.iter().cycle().take(20).copied().collect();
    let f = fixture(&codecs);
    for workers in [1, 3] {
        let cache = cache(&f, 0, workers, 0);
        for block in 0..20 {
            f.check(&cache, block, 0, 1000);
            f.check(&cache, block, 70_000, 10);
            assert!(cache.stats().blocks <= workers as u64 + 1);
        }
        assert_eq!(cache.stats().blocks, workers as u64 + 1);
        // Whoever comes to the end does not come back.
        for block in 0..20 {
            for at in (0..f.raw[block].len()).step_by(100_000) {
                f.check(&cache, block, at, 100_000.min(f.raw[block].len() - at));
            }
        }
        let left = |cache: &BlockCache| {
            cache.trim();
            cache.stats().used
        };
        eventually("nothing is left", || left(&cache) == 0);
    }
}

#[test]
fn a_reader_that_goes_back_keeps_its_block() {
    let f = fixture(&["zstd:level=1", "lzma:level=1"]);
    let cache = cache(&f, 0, 1, 0);
    let size = f.raw[0].len();
    // As whoever looks at the end of an archive first.
    f.check(&cache, 0, size - 100, 100);
    for at in (0..size - 1000).step_by(1000) {
        f.check(&cache, 0, at, 1000);
    }
    assert_eq!(cache.stats().bytes_decoded, size as u64);
}

#[test]
fn the_state_of_a_decoder_goes_though_its_block_does_not_fit() {
    const SIZE: usize = 4 << 20;
    let f = fixture_of(&["zstd:level=1"], SIZE);
    let cache = cache(&f, SIZE / 2, 1, 0);
    for at in (0..SIZE * 9 / 10).step_by(100_000) {
        f.check(&cache, 0, at, 100_000);
    }
    eventually("only the bytes are left", || {
        cache.stats().used == SIZE as u64 + SLOT_OVERHEAD
    });
    assert_eq!(cache.stats().bytes_decoded, SIZE as u64);
}

#[test]
fn plain_blocks_stay_where_they_are_stored() {
    let f = fixture(&["null"; 8]);
    let cache = f.cache(quiet());
    for (block, raw) in f.raw.iter().enumerate() {
        for (at, len) in [(5, 10), (LEAF - 1, 2), (3 * LEAF, LEAF), (0, raw.len())] {
            f.check(&cache, block, at, len);
        }
        f.check(&cache, block, raw.len() - 1, 1);
    }
    let stats = cache.stats();
    assert_eq!(stats.bytes_decoded, total(&f), "each is verified once");
    assert_eq!(stats.blocks, 8);
    // 16 bytes for each leaf.
    let most = 8 * (SLOT_OVERHEAD + (BLOCK_SIZE / LEAF) as u64 * 16);
    assert!(stats.used <= most && stats.peak <= most, "{stats:?}");
    assert!(most < total(&f) / 500);
}

#[test]
fn a_plain_block_that_changes_is_never_shown() {
    let f = fixture(&["null", "null"]);
    let cache = f.cache(quiet());
    let (start, len) = f.stored[0];
    let size = len as usize;
    f.check(&cache, 0, 0, 1);
    for at in [0, 1, LEAF - 1, LEAF, 5 * LEAF + 77, size - 1] {
        let offset = start + at as u64;
        f.source.add(Fault::Flip { offset, mask: 1 });
        let leaf = at / LEAF * LEAF;
        let read = |from: usize, to: usize| {
            let data = cache.get(BlockNo(0), from as u64, to as u64).unwrap();
            let mut out = vec![0; to - from];
            let read = cache.copy(&data, from as u64, &mut out, &mut Vec::new());
            (read.map_err(|e| e.to_string()), out)
        };
        // Other leaves are what they were.
        let before = if leaf > 0 { 0..leaf } else { LEAF..2 * LEAF };
        let (read_before, out) = read(before.start, before.end);
        read_before.unwrap();
        assert!(out == f.raw[0][before]);
        // Also if the byte itself is not asked for.
        let e = read(leaf, leaf + 1).0.unwrap_err();
        assert!(e.contains("BLOCK has changed since it was verified"), "{e}");
        assert!(e.contains("section 0"), "{e}");
        // After that, the checksum tells.
        let e = cache.get(BlockNo(0), 0, 1).unwrap_err();
        assert!(matches!(e, Error::Corrupt { .. }), "{e}");
        assert!(e.to_string().contains("checksum error"), "{e}");
        f.source.heal();
        f.check(&cache, 0, 0, size);
    }
    // What was verified is not read for something else.
    f.source.add(Fault::FailRange(start..start + LEAF as u64));
    f.check(&cache, 0, LEAF, size - LEAF);
    let data = cache.get(BlockNo(0), 0, 10).unwrap();
    let e = cache
        .append(&data, 0, 10, true, &mut Vec::new())
        .unwrap_err();
    assert!(matches!(e, Error::Io(_)), "{e}");
    assert_eq!(cache.stats().errors, 6 * 2 + 1);
}

#[test]
fn what_is_not_verified_is_read_as_it_is() {
    let f = fixture(&["null"]);
    let cache = BlockCache::new(
        f.payloads.clone().trusting(true),
        &quiet(),
        &PerfMonitor::off(),
    );
    let (start, _) = f.stored[0];
    // Nothing else is read.
    f.source.add(Fault::FailRange(start..start + 1000));
    f.source.add(Fault::FailRange(start + 1010..start + 2000));
    f.check(&cache, 0, 1000, 10);
    assert_eq!(cache.stats().used, SLOT_OVERHEAD);
}

#[test]
fn without_waiting_there_is_all_or_nothing() {
    let f = fixture(&["null", "zstd:level=1"]);
    let cache = f.cache(quiet());
    let mut out = b"before".to_vec();
    for (block, there) in [(0, false), (1, true)] {
        let data = cache.get(BlockNo(block), 100, 5000).unwrap();
        // A source with faults cannot tell.
        let found = cache.append(&data, 100, 4900, false, &mut out).unwrap();
        assert_eq!(found.is_some(), there);
    }
    assert_eq!(&out[..6], b"before");
    assert!(out[6..] == f.raw[1][100..5000]);
}
