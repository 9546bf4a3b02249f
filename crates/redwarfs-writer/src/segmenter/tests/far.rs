//! Long pieces that lie far back.

use super::*;

/// Bytes of all blocks.
fn stored(result: &Segmented) -> usize {
    result.blocks.iter().map(|block| block.len()).sum()
}

#[test]
fn long_pieces_are_found_again_in_all_of_the_stream() {
    const MIB: usize = 1 << 20;
    let first = noise(60, 3 * MIB);
    let between = noise(61, 5 * MIB);
    let piece = &first[MIB / 2 + 77..2 * MIB + MIB / 2];
    let again = [&noise(62, 300_000)[..], piece, &noise(63, 70_000)].concat();
    let contents = [first.clone(), between, again];
    let all: usize = contents.iter().map(Vec::len).sum();
    for (lookback, least) in [(1, 0), (2, piece.len() / 8 * 7), (4, piece.len() / 8 * 7)] {
        for step in [0, 2] {
            let result = segment(options(20, 10, step, lookback), &contents, 1 << 18);
            assert_eq!(stored(&result) + result.saved as usize, all);
            let saved = result.saved as usize;
            assert!(
                (least..=piece.len()).contains(&saved),
                "{lookback}: {saved}"
            );
            let far = result.chunks[2].iter().filter(|chunk| chunk.block < 3);
            assert!(
                far.clone()
                    .all(|chunk| chunk.size as usize >= distant::LONG)
            );
            assert!(far.count() < 5);
        }
    }
    // Neither pieces that are too short, nor those of contents that are.
    let short = first[MIB..MIB + distant::LONG - 1].to_vec();
    let inside = [&noise(64, MIB)[..], &short, &noise(65, MIB)].concat();
    let small = first[2 * MIB..2 * MIB + distant::EXTENT - 1].to_vec();
    let contents = [first, noise(61, 5 * MIB), inside, small];
    assert_eq!(segment(options(20, 10, 2, 2), &contents, 1 << 18).saved, 0);
}

/// Two films with the same pictures and different sound, interleaved in packets.
#[test]
fn pictures_are_stored_once_beside_different_sound() {
    let mut films = [Vec::new(), Vec::new()];
    let mut sounds = 0;
    for packet in 0..60 {
        let picture = noise(1000 + packet, 60_000 + (packet as usize * 7919) % 180_000);
        for (language, film) in (0..).zip(&mut films) {
            let sound = noise(2000 + 100 * language + packet, 1500 + packet as usize * 11);
            film.extend_from_slice(&sound);
            film.extend_from_slice(&picture);
            sounds += sound.len();
        }
    }
    let best = films[0].len() + sounds / 2;
    let result = segment(options(20, 12, 2, 2), &films, 1 << 18);
    let size = stored(&result);
    assert!(size < best / 100 * 110, "{size} of {best}");
}

#[test]
fn long_pieces_lie_beside_holes_and_in_units() {
    for granularity in [1, 4, 6] {
        let options = SegmentOptions {
            block_size: (1 << 20) / granularity * granularity,
            granularity,
            ..options(20, 8, 2, 2)
        };
        let data = noise(70, (2 << 20) / granularity * granularity);
        let part = data[granularity * 5000..data.len() - granularity * 3000].to_vec();
        let other = noise(71, (3 << 20) / granularity * granularity);
        let sink = Blocks::default();
        let mut segmenter = Segmenter::new(options, sink.clone());
        let mut chunks = Vec::new();
        let contents = [&data, &other, &part, &other, &data];
        for (content, hole) in contents.iter().zip([0, 1 << 33, 12, 60, 0]) {
            for extent in content.chunks(granularity * 200_000) {
                for piece in extent.chunks(30_011) {
                    segmenter.data(piece).unwrap();
                }
                segmenter.end_extent().unwrap();
                segmenter.hole(hole);
            }
            let mut own = Vec::new();
            segmenter.take_chunks(&mut own);
            chunks.push(own);
        }
        segmenter.finish().unwrap();
        let least = (part.len() + other.len() + data.len()) as u64 / 5 * 4;
        assert!(
            segmenter.saved() > least,
            "{granularity}: {}",
            segmenter.saved()
        );
        let blocks = sink.0.borrow();
        for (content, chunks) in contents.iter().zip(chunks) {
            let mut bytes = Vec::new();
            for chunk in chunks.iter().filter(|chunk| chunk.hole_size().is_none()) {
                let start = chunk.offset as usize;
                assert_eq!(start % granularity, 0);
                assert_eq!(chunk.size as usize % granularity, 0);
                let block = &blocks[chunk.block as usize];
                bytes.extend_from_slice(&block[start..start + chunk.size as usize]);
            }
            assert!(&&bytes == content);
        }
    }
}

#[test]
fn runs_and_repeated_pieces_are_no_matter_of_distant_blocks() {
    let zeros = vec![0; 3 << 20];
    let cycle: Vec<u8> = noise(80, 10_000)
        .into_iter()
        .cycle()
        .take(3 << 20)
        .collect();
    for content in [zeros, cycle] {
        let contents = [content.clone(), noise(81, 6 << 20), content];
        let result = segment(options(20, 10, 2, 2), &contents, 1 << 18);
        let last = result.blocks.len() as u32 - 2;
        assert!(result.chunks[2].iter().all(|chunk| chunk.block >= last));
    }
}
