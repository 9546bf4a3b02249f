use std::cell::RefCell;
use std::rc::Rc;

use proptest::prelude::*;

use super::compare::{common_prefix, common_suffix, uniform};
use super::*;

mod far;

#[derive(Clone, Default)]
struct Blocks(Rc<RefCell<Vec<Arc<Vec<u8>>>>>);

impl BlockSink for Blocks {
    fn block(&mut self, number: u32, data: Arc<Vec<u8>>) -> Result<()> {
        let mut blocks = self.0.borrow_mut();
        assert_eq!(number as usize, blocks.len());
        blocks.push(data);
        Ok(())
    }
}

#[derive(Debug, PartialEq)]
struct Segmented {
    blocks: Vec<Arc<Vec<u8>>>,
    chunks: Vec<Vec<Chunk>>,
    saved: u64,
}

fn options(block_bits: u32, window_bits: u32, window_step: u32, lookback: usize) -> SegmentOptions {
    SegmentOptions {
        block_size: 1 << block_bits,
        granularity: 1,
        window_bits,
        window_step,
        lookback,
        filter_bits: 4,
        rearranged: false,
    }
}

/// Segments contents, scanning `feed` bytes at a time, and checks what must always hold.
fn segment(options: SegmentOptions, contents: &[Vec<u8>], feed: usize) -> Segmented {
    segment_by(options, contents, feed, true)
}

/// The same, with or without ruling out positions by groups.
fn segment_by(
    options: SegmentOptions,
    contents: &[Vec<u8>],
    feed: usize,
    groups: bool,
) -> Segmented {
    let sink = Blocks::default();
    let mut segmenter = Segmenter::new(options, sink.clone());
    segmenter.portion = feed;
    if !groups {
        segmenter.sieve = None;
    }
    let mut chunks = Vec::new();
    for content in contents {
        for part in content.chunks(777) {
            segmenter.data(part).unwrap();
        }
        segmenter.end_extent().unwrap();
        let mut own = Vec::new();
        segmenter.take_chunks(&mut own);
        chunks.push(own);
    }
    let count = segmenter.finish().unwrap();
    let saved = segmenter.saved();
    let blocks = sink.0.borrow().clone();
    assert_eq!(count as usize, blocks.len());
    for (i, block) in blocks.iter().enumerate() {
        if i + 1 < blocks.len() {
            assert_eq!(
                block.len(),
                options.block_size,
                "only the last block may be short"
            );
        } else {
            assert!(!block.is_empty() && block.len() <= options.block_size);
        }
    }
    for (content, own) in contents.iter().zip(&chunks) {
        let mut bytes = Vec::new();
        for chunk in own {
            assert!(chunk.size > 0);
            let start = chunk.offset as usize;
            bytes.extend_from_slice(
                &blocks[chunk.block as usize][start..start + chunk.size as usize],
            );
        }
        assert!(&bytes == content, "chunks do not reassemble to the input");
        for pair in own.windows(2) {
            let merged =
                pair[0].block == pair[1].block && pair[0].offset + pair[0].size == pair[1].offset;
            assert!(
                !merged || uniform(content).is_some() || content.len() > 4096,
                "{pair:?}"
            );
        }
    }
    Segmented {
        blocks,
        chunks,
        saved,
    }
}

/// Bytes without any repetition of note.
fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 7;
            state ^= state << 17;
            (state >> 32) as u8
        })
        .collect()
}

#[test]
fn no_matching_fills_blocks_back_to_back() {
    let contents = vec![noise(1, 3000), noise(1, 3000), Vec::new(), noise(2, 1)];
    for matching in [
        options(10, 0, 0, 1),
        options(10, 4, 1, 0),
        options(10, 12, 1, 1),
    ] {
        let result = segment(matching, &contents, 777);
        assert_eq!(result.saved, 0);
        assert_eq!(result.blocks.len(), 6);
        assert_eq!(result.chunks[0].len(), 3);
        assert!(result.chunks[2].is_empty());
    }
}

#[test]
fn equal_contents_are_one_reference() {
    let data = noise(3, 5000);
    let result = segment(options(16, 8, 2, 1), &[data.clone(), data], 1 << 20);
    assert_eq!(result.blocks.len(), 1);
    assert_eq!(
        result.chunks[1],
        [Chunk {
            block: 0,
            offset: 0,
            size: 5000
        }]
    );
    assert_eq!(result.saved, 5000);
}

#[test]
fn duplicates_of_window_plus_step_are_found_at_any_position() {
    let (window, step) = (256usize, 64usize);
    let base = noise(4, 8192);
    for shift in [0usize, 1, 63, 64, 65, 500, 4001] {
        for (before, after) in [(0usize, 0usize), (1, 1), (300, 0), (1000, 700)] {
            let piece = &base[shift..shift + window + step];
            let mut content = noise(100 + shift as u64, before);
            content.extend_from_slice(piece);
            content.extend(noise(200 + shift as u64, after));
            for feed in [1 << 20, 100] {
                let result = segment(options(16, 8, 2, 1), &[base.clone(), content.clone()], feed);
                assert!(
                    result.chunks[1].iter().any(|c| c.offset as usize <= shift
                        && (c.offset + c.size) as usize >= shift + window + step),
                    "{shift} {before} {after} {feed}: {:?}",
                    result.chunks[1]
                );
            }
        }
    }
}

#[test]
fn matches_extend_over_reads_and_grow_both_ways() {
    let base = noise(5, 60_000);
    let mut content = noise(6, 100);
    content.extend_from_slice(&base[1000..51_000]);
    content.extend(noise(7, 100));
    for feed in [1 << 20, 4096, 333, 1] {
        let result = segment(
            options(18, 10, 1, 1),
            &[base.clone(), content.clone()],
            feed,
        );
        assert_eq!(result.chunks[1].len(), 3, "feed {feed}");
        assert_eq!(
            result.chunks[1][1],
            Chunk {
                block: 0,
                offset: 1000,
                size: 50_000
            }
        );
    }
}

#[test]
fn lookback_limits_the_search() {
    let first = noise(8, 1024);
    let contents = [first.clone(), noise(9, 1024), noise(10, 1024), first];
    for (lookback, saved) in [(1, 0), (2, 0), (3, 0), (4, 1024)] {
        // Blocks 0, 1, 2 are full, block 3 is the current one when the fourth content comes.
        assert_eq!(
            segment(options(10, 6, 1, lookback), &contents, 4096).saved,
            saved,
            "{lookback}"
        );
    }
}

/// The second content repeats pieces of the first one, which is in another block.
#[test]
fn finished_blocks_are_searched_for_long_matches() {
    let base = noise(30, 1 << 16);
    for (window_bits, step) in [(8, 2), (8, 0), (10, 3), (9, 1), (8, 6)] {
        let window = 1usize << window_bits;
        let options = options(16, window_bits, step, 2);
        for at in (0..3000).step_by(317) {
            for (size, whole) in [(2 * window, true), (2 * window - 1, false), (9000, true)] {
                let piece = &base[at..at + size];
                let content = [&noise(31, 100)[..], piece, &noise(32, 5000)].concat();
                for feed in [1 << 20, 700] {
                    let result = segment(options, &[base.clone(), content.clone()], feed);
                    let far = result.chunks[1].iter().filter(|chunk| chunk.block == 0);
                    let far: Vec<_> = far.map(|c| (c.offset as usize, c.size as usize)).collect();
                    let expected = if whole { vec![(at, size)] } else { Vec::new() };
                    assert_eq!(far, expected, "{window} {step} {at} {size} {feed}");
                }
            }
        }
    }
}

#[test]
fn a_chosen_content_stores_little_of_finished_blocks_again() {
    // For each of 5 blocks, 256 bytes may be stored again.
    let (base, none) = (noise(36, 5 << 16), [0u32; 0]);
    let mut options = options(16, 6, 1, 8);
    options.rearranged = true;
    let mut segmenter = Segmenter::new(options, Blocks::default());
    // The blocks, but the present one, to which a content with this part of the data refers.
    let mut refers = |chosen: bool, piece: &[u8]| {
        segmenter.choose(chosen);
        segmenter
            .data(&[&noise(37, 50)[..], piece, &noise(38, 50)].concat())
            .unwrap();
        segmenter.end_extent().unwrap();
        let mut chunks = Vec::new();
        segmenter.take_chunks(&mut chunks);
        let blocks = chunks.iter().map(|chunk| chunk.block);
        blocks
            .filter(|&block| block != segmenter.number)
            .collect::<Vec<_>>()
    };
    assert_eq!(refers(false, &base), [0, 1, 2, 3, 4]);
    assert_eq!(refers(true, &base[5000..5600]), none);
    assert_eq!(refers(true, &base[5000..5600]), none);
    // Of the 1280 bytes, 680 are left.
    assert_eq!(refers(true, &base[7000..7700]), [0]);
    assert_eq!(refers(false, &base[9000..9200]), [0]);
    assert_eq!(refers(true, &base[9000..9200]), none);
    assert_eq!(refers(false, &noise(39, 1 << 16)), [5]);
    // It is in front in the block that is finished now.
    assert_eq!(refers(true, &base[5000..5600]), [5]);
    // It is preferred to a longer match that is not.
    assert_eq!(refers(true, &base[5000..5650]), [5]);
}

#[test]
fn a_match_in_the_block_goes_first() {
    let base = noise(33, 1 << 16);
    // Too short for a match in the first block; windows of both blocks end at the same places.
    let near = [&noise(34, 128)[..], &base[5120..5520], &noise(35, 50)].concat();
    for longer in [0, 511, 512] {
        let content = base[5120..5520 + longer].to_vec();
        let contents = [base.clone(), near.clone(), content];
        let result = segment(options(16, 8, 2, 2), &contents, 1 << 20);
        assert_eq!(result.chunks[1].len(), 1);
        let found: Vec<_> = result.chunks[2].iter().map(|c| (c.block, c.size)).collect();
        match longer {
            0 => assert_eq!(found, [(1, 400)]),
            511 => assert_eq!(found, [(1, 400), (1, 511)]),
            _ => assert_eq!(found, [(1, 400), (0, 512)]),
        }
    }
}

#[test]
fn matches_stop_at_block_borders() {
    let data = noise(11, 3000);
    let result = segment(options(10, 6, 1, 4), &[data.clone(), data], 1 << 20);
    assert_eq!(result.saved, 3000);
    assert_eq!(result.chunks[1].len(), 3);
}

#[test]
fn a_content_matches_itself() {
    let piece = noise(12, 2000);
    let data = [piece.clone(), noise(13, 50), piece].concat();
    let result = segment(options(16, 8, 2, 1), &[data], 1 << 20);
    assert_eq!(result.saved, 2000);
    assert_eq!(result.chunks[0].len(), 2);
}

#[test]
fn long_runs_need_few_chunks_and_little_space() {
    for size in [5000usize, 100_000, 3 << 20, 20 << 20] {
        let result = segment(options(22, 12, 3, 1), &[vec![0; size]], 1 << 20);
        let stored: usize = result.blocks.iter().map(|b| b.len()).sum();
        assert!(
            result.chunks[0].len() <= 64,
            "{size}: {}",
            result.chunks[0].len()
        );
        assert!(size < 100_000 || stored <= size / 3, "{size}: {stored}");
    }
    let mut mixed = noise(14, 10_000);
    mixed.extend(vec![0; 300_000]);
    mixed.extend(noise(15, 10_000));
    mixed.extend(vec![0xff; 300_000]);
    mixed.extend(vec![0; 300_000]);
    let result = segment(options(20, 10, 2, 1), &[mixed.clone(), mixed], 1 << 16);
    assert!(result.chunks[0].len() < 60, "{}", result.chunks[0].len());
    assert!(result.saved > 1_200_000);
}

#[test]
fn periodic_data_is_mostly_saved() {
    let data: Vec<u8> = b"abcdefghijkl"
        .iter()
        .copied()
        .cycle()
        .take(36_000)
        .collect();
    let result = segment(options(16, 10, 1, 1), &[data], 1 << 20);
    assert!(result.saved > 30_000);
    assert!(result.chunks[0].len() <= 30, "{}", result.chunks[0].len());
}

#[test]
fn discarded_contents_leave_consistent_state() {
    let sink = Blocks::default();
    let mut segmenter = Segmenter::new(options(12, 6, 1, 1), sink.clone());
    segmenter.data(&noise(16, 3000)).unwrap();
    segmenter.discard().unwrap();
    segmenter.data(&noise(17, 3000)).unwrap();
    segmenter.end_extent().unwrap();
    let mut chunks = Vec::new();
    segmenter.take_chunks(&mut chunks);
    segmenter.finish().unwrap();
    let blocks = sink.0.borrow();
    let bytes: Vec<u8> = chunks
        .iter()
        .flat_map(|c| {
            blocks[c.block as usize][c.offset as usize..(c.offset + c.size) as usize].to_vec()
        })
        .collect();
    assert_eq!(bytes, noise(17, 3000));
}

#[test]
fn holes_keep_their_length() {
    let mut segmenter = Segmenter::new(options(12, 0, 0, 1), Blocks::default());
    segmenter.hole(0);
    segmenter.hole(1 << 40 | 5);
    segmenter.data(b"x").unwrap();
    segmenter.end_extent().unwrap();
    segmenter.hole(1);
    let mut chunks = Vec::new();
    segmenter.take_chunks(&mut chunks);
    let sizes: Vec<_> = chunks.iter().map(|c| (c.hole_size(), c.len())).collect();
    assert_eq!(
        sizes,
        [(Some(1 << 40 | 5), 1 << 40 | 5), (None, 1), (Some(1), 1)]
    );
}

/// Contents made of pieces of a common pool, runs and noise.
fn contents() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let piece = prop_oneof![
        3 => (0usize..20_000, 1usize..3000).prop_map(|(at, len)| noise(42, 23_000)[at..at + len].to_vec()),
        1 => (any::<u8>(), 1usize..3000).prop_map(|(value, len)| vec![value; len]),
        1 => (0u8..2, 1usize..900).prop_map(|(value, len)| vec![value; len]),
        1 => (any::<u64>(), 1usize..500).prop_map(|(seed, len)| noise(seed, len)),
        1 => (1usize..20, 1usize..3000).prop_map(|(period, len)| noise(7, period).iter().copied().cycle().take(len).collect()),
    ];
    let content = prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat());
    prop::collection::vec(content, 0..8)
}

/// Larger contents that are noise, text of few different bytes, periods and runs, with changed
/// bytes and repetitions.
fn alike() -> impl Strategy<Value = Vec<Vec<u8>>> {
    let few = |values: u8| {
        move |mut data: Vec<u8>| {
            data.iter_mut().for_each(|byte| *byte %= values);
            data
        }
    };
    let of_pool = |max: usize| {
        (0usize..30_000, 1usize..max).prop_map(|(at, len)| noise(42, 60_000)[at..at + len].to_vec())
    };
    let piece = prop_oneof![
        4 => of_pool(20_000),
        2 => of_pool(20_000).prop_map(few(2)),
        2 => of_pool(20_000).prop_map(few(5)),
        1 => (0u8..2, 1usize..9000).prop_map(|(value, len)| vec![value; len]),
        2 => (of_pool(3000), 1usize..20_000).prop_map(|(period, len)| {
            period.into_iter().cycle().take(len).collect()
        }),
        2 => (of_pool(20_000), prop::collection::vec(any::<prop::sample::Index>(), 0..20))
            .prop_map(|(mut data, places)| {
                for place in places {
                    let place = place.index(data.len());
                    data[place] ^= 1;
                }
                data
            }),
    ];
    let content = prop::collection::vec(piece, 0..6).prop_map(|pieces| pieces.concat());
    prop::collection::vec(content, 1..6)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(128))]

    #[test]
    fn chunks_always_reassemble(
        contents in contents(),
        block_bits in 10u32..16,
        window_bits in 0u32..12,
        step in 0u32..9,
        lookback in 0usize..4,
        feed in prop_oneof![Just(1usize << 20), 1usize..5000],
    ) {
        segment(options(block_bits, window_bits, step, lookback), &contents, feed);
    }

    /// Ruling out groups of positions changes nothing.
    #[test]
    fn groups_have_the_outcome_of_single_positions(
        contents in alike(),
        block_bits in 13u32..18,
        (window_bits, step) in prop::sample::select(vec![(9u32, 1u32), (10, 1), (10, 2), (11, 3), (12, 2)]),
        lookback in 1usize..5,
        filter_bits in prop::sample::select(vec![0u32, 4, 10]),
        feed in prop_oneof![2 => Just(1usize << 20), 1 => 1usize..20_000],
    ) {
        let options = SegmentOptions { filter_bits, ..options(block_bits, window_bits, step, lookback) };
        let groups = segment_by(options, &contents, feed, true);
        let single = segment_by(options, &contents, feed, false);
        prop_assert!(groups == single);
    }

    /// Extents of whole units become chunks of whole units.
    #[test]
    fn units_stay_whole(
        contents in contents(),
        granularity in prop::sample::select(vec![2usize, 3, 4, 6, 32]),
        block_bits in 10u32..16,
        window_bits in 0u32..9,
        step in 0u32..9,
        lookback in 0usize..4,
        feed in prop_oneof![Just(1usize << 20), 1usize..5000],
    ) {
        let contents: Vec<Vec<u8>> = contents
            .into_iter()
            .map(|mut content| {
                content.truncate(content.len() / granularity * granularity);
                content
            })
            .collect();
        let plain = options(block_bits, window_bits, step, lookback);
        let whole = SegmentOptions {
            block_size: plain.block_size / granularity * granularity,
            granularity,
            ..plain
        };
        let result = segment(whole, &contents, feed);
        for chunk in result.chunks.iter().flatten() {
            prop_assert_eq!(chunk.offset as usize % granularity, 0);
            prop_assert_eq!(chunk.size as usize % granularity, 0);
        }
    }
}

#[test]
fn duplicates_are_found_in_units() {
    let data = noise(3, 6000);
    let options = SegmentOptions {
        block_size: 60_000,
        granularity: 6,
        ..options(16, 5, 2, 1)
    };
    // Moved by two units, then by two bytes.
    let moved = [&noise(4, 12)[..], &data].concat();
    let shifted = [&noise(5, 8)[..], &data[..5998]].concat();
    for feed in [1 << 20, 700] {
        let found = segment(options, &[data.clone(), moved.clone()], feed);
        assert_eq!(found.saved, 6000);
        let missed = segment(options, &[data.clone(), shifted.clone()], feed);
        assert_eq!(missed.saved, 0);
    }
}

#[test]
fn what_is_given_up_leaves_whole_units() {
    let sink = Blocks::default();
    let options = SegmentOptions {
        block_size: 60_000,
        granularity: 6,
        ..options(16, 0, 0, 1)
    };
    let mut segmenter = Segmenter::new(options, sink.clone());
    segmenter.data(&noise(1, 100)).unwrap();
    segmenter.discard().unwrap();
    segmenter.data(&noise(2, 60)).unwrap();
    segmenter.end_extent().unwrap();
    let mut chunks = Vec::new();
    segmenter.take_chunks(&mut chunks);
    let expected = Chunk {
        block: 0,
        offset: 102,
        size: 60,
    };
    assert_eq!(chunks, [expected]);
}

#[test]
fn where_reads_end_does_not_matter() {
    let text: Vec<u8> = noise(8, 700).into_iter().cycle().take(300_000).collect();
    let runs = [vec![5; 300_001], noise(9, 20_000), vec![5; 250_000]].concat();
    let data = [noise(10, 400_000), text, runs, noise(10, 400_000)].concat();
    for (window_bits, step, lookback) in [(1, 0, 1), (8, 2, 1), (12, 3, 1), (8, 2, 3), (12, 3, 3)] {
        let images = [1usize, 1000, 262_143, 1 << 30].map(|read| {
            let sink = Blocks::default();
            let options = options(18, window_bits, step, lookback);
            let mut segmenter = Segmenter::new(options, sink.clone());
            for part in data.chunks(read) {
                segmenter.data(part).unwrap();
            }
            segmenter.end_extent().unwrap();
            let mut chunks = Vec::new();
            segmenter.take_chunks(&mut chunks);
            segmenter.finish().unwrap();
            (chunks, sink.0.borrow().clone())
        });
        assert!(images.iter().all(|image| *image == images[0]));
    }
}

#[test]
fn groups_are_for_long_windows_of_bytes() {
    let used = |options| Segmenter::new(options, Blocks::default()).sieve.is_some();
    assert!(used(options(24, 11, 3, 1)) && used(options(24, 12, 2, 1)));
    assert!(used(options(24, 9, 1, 1)) && used(options(16, 12, 4, 1)));
    for other in [
        options(24, 11, 0, 1),
        options(24, 11, 4, 1),
        options(24, 8, 1, 1),
        options(10, 11, 3, 1),
        SegmentOptions {
            granularity: 2,
            ..options(24, 11, 3, 1)
        },
    ] {
        assert!(!used(other), "{other:?}");
    }
}

#[test]
fn common_ends_are_counted_to_the_byte() {
    let data = noise(1, 900);
    for size in [0usize, 1, 7, 8, 9, 255, 256, 257, 600] {
        for more in [0usize, 1, 5, 9] {
            let mut other = data[100..100 + size + more].to_vec();
            if more > 0 {
                other[size] ^= 1;
            }
            assert_eq!(common_prefix(&data[100..], &other), size, "{size} {more}");
            assert_eq!(common_prefix(&other, &data[100..]), size, "{size} {more}");
            let mut other = data[800 - size - more..800].to_vec();
            if more > 0 {
                other[more - 1] ^= 1;
            }
            assert_eq!(common_suffix(&data[..800], &other), size, "{size} {more}");
            assert_eq!(common_suffix(&other, &data[..800]), size, "{size} {more}");
        }
    }
}

/// What was compared, summed anew or moved for each byte of the contents.
fn work_per_byte(options: SegmentOptions, contents: &[Vec<u8>]) -> u64 {
    let mut segmenter = Segmenter::new(options, Blocks::default());
    let mut size = 0;
    for content in contents {
        segmenter.data(content).unwrap();
        segmenter.end_extent().unwrap();
        size += content.len() as u64;
    }
    segmenter.finish().unwrap();
    segmenter.looked / size
}

#[test]
fn work_per_byte_does_not_grow_with_the_window() {
    for window_bits in [12, 16, 18] {
        for (step, granularity) in [(0, 1), (2, 1), (3, 2)] {
            let options = SegmentOptions {
                granularity,
                ..options(22, window_bits, step, 8)
            };
            let window = granularity << window_bits;
            // Silence between sounds: each run is a little too short to be treated as one.
            let mut silence = Vec::new();
            // A few places where 64 bytes are equal.
            let mut even = noise(40, 6 << 20);
            for seed in 0.. {
                if silence.len() > 6 << 20 {
                    break;
                }
                silence.extend(noise(41 + seed, window / 2));
                silence.resize(silence.len() + window - 2, 0);
            }
            for place in (0..even.len() - 128).step_by((window / 8).max(512)) {
                even[place..place + 128].fill(7);
            }
            // Periodic pieces of less than two windows, in finished blocks and again.
            let mut periodic = Vec::new();
            for seed in 0..8 {
                let piece = [1u8, 2, 3, 4, 5, 9].into_iter().cycle();
                periodic.extend(noise(90 + seed, 1 << 20));
                periodic.extend(piece.take((window * 7 / 4).min(1 << 20)));
                periodic.truncate(periodic.len() / granularity * granularity);
            }
            for (what, content) in [("silence", silence), ("even", even), ("periodic", periodic)] {
                let work = work_per_byte(options, &[content]);
                assert!(work < 40, "{what} {window} {step} {granularity}: {work}");
            }
        }
    }
}

#[test]
fn comparing_to_no_avail_is_bounded_and_comes_back() {
    let mut patience = Patience::new(1 << 10);
    assert!(patience.has_any(0));
    // Twice as much as there is.
    patience.spend(32 << 20);
    assert!(!patience.has_any(1 << 20));
    assert!(patience.has_any((1 << 20) + 1));
    patience.spend(16);
    assert!(!patience.has_any((1 << 20) + 1));
    // No more than that comes back.
    assert!(patience.has_any(1 << 40));
    patience.spend(16 << 20);
    assert!(!patience.has_any(1 << 40));
}
