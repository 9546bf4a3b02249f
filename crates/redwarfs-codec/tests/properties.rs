//! Round trips over sizes, settings and step sizes, and what damage does.

use crate::common::{Random, compress, compressor, decode_in_steps, noise, text};
use proptest::prelude::*;
use redwarfs_codec::{CompressionId as Id, Decoder, decompress};

/// Cheap settings of every codec.
const SPECS: [&str; 12] = [
    "null",
    "zstd:level=1",
    "zstd:level=5:long",
    "zstd:level=12",
    "zstd:level=-50",
    "lzma:level=0",
    "lzma:level=3:binary=x86",
    "lz4",
    "lz4hc:level=4",
    "brotli:quality=1:lgwin=12",
    "brotli:quality=4",
    "brotli:quality=9:lgwin=28",
];

/// Beginnings that get arbitrary bytes past the first checks.
const FRONTS: [&[u8]; 8] = [
    &[],
    &[0x28, 0xb5, 0x2f, 0xfd],
    &[0xfd, b'7', b'z', b'X', b'Z', 0, 0, 4],
    &[100, 0, 0, 0],
    &[0x80, 0x01, 0x11],
    &[
        0x80, 0x01, 0x15, 0x20, 0x14, 0x02, 0x13, 0x02, 0x13, 0x00, 0x11, 0x14, 0x02, 0x00,
    ],
    &[
        0x80, 0x01, 0x15, 0x20, 0x14, 0x04, 0x13, 0x02, 0x13, 0x03, 0x12, 0x14, 0x02, 0x00, 0x00,
        0x00, 0x00, 0x00,
    ],
    // Mono, 8 bits; marker, STREAMINFO, sync code of a frame.
    &[
        0x80, 0x01, 0x14, 0x02, 0x13, 0x08, 0x13, 0x20, 0x00, b'f', b'L', b'a', b'C', 0x80, 0, 0,
        34, 0x10, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0x0b, 0xb8, 0x00, 0x70, 0, 0, 0, 0, 0, 0, 0, 0, 0,
        0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xf8,
    ],
];

fn data() -> impl Strategy<Value = Vec<u8>> {
    let size = prop_oneof![0..600usize, 0..200 * 1024usize];
    (size, any::<u64>(), 0..4).prop_map(|(size, seed, kind)| match kind {
        0 => noise(size, seed),
        1 => vec![seed as u8; size],
        2 => {
            let half = text(size / 2, seed);
            let mut all = noise(size - half.len(), seed);
            all.extend_from_slice(&half);
            all
        }
        _ => text(size, seed),
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn round_trips(
        raw in data(),
        spec in proptest::sample::select(&SPECS[..]),
        steps in proptest::collection::vec(prop_oneof![1..64usize, 1..100_000usize], 1..6),
    ) {
        let result = compressor(spec).compress(&raw).unwrap();
        let payload = match result.data {
            Some(payload) => {
                prop_assert!(payload.len() < raw.len());
                payload
            }
            None => {
                prop_assert_eq!(result.id, Id::NONE);
                raw.clone()
            }
        };
        let limit = raw.len() as u64;
        prop_assert!(decompress(result.id, &payload, limit).unwrap() == raw);

        for len in steps.iter().map(|step| step % (raw.len() + 1)).chain([raw.len()]) {
            let mut out = vec![0xa5; raw.len()];
            let decoder = Decoder::new(result.id, payload.clone(), limit).unwrap();
            prop_assert_eq!(&decoder.decode_start(&mut out, len).unwrap(), &payload);
            prop_assert!(out[..len] == raw[..len]);
        }

        let mut decoder = Decoder::new(result.id, payload, limit).unwrap();
        let mut out = Vec::new();
        // Many tiny steps are covered by the first few; finish in large ones.
        let mut turns = steps.iter().cycle();
        for turn in 0.. {
            let left = raw.len() - out.len();
            if left == 0 {
                break;
            }
            let step = turns.next().copied().unwrap_or(1);
            let step = if turn > 200 { left } else { step.min(left) };
            let mut part = vec![0; step];
            decoder.fill(&mut part).unwrap();
            out.extend_from_slice(&part);
        }
        decoder.finish().unwrap();
        prop_assert!(out == raw);
    }

    #[test]
    fn arbitrary_payloads_do_no_harm(
        id in 0..9u16,
        front in proptest::sample::select(&FRONTS[..]),
        rest in proptest::collection::vec(any::<u8>(), 0..300),
    ) {
        let payload = [front, &rest[..]].concat();
        let limit = 1 << 20;
        if let Ok(raw) = decompress(Id(id), &payload, limit) {
            prop_assert!(raw.len() as u64 <= limit);
        }
        let _ = in_steps(Id(id), &payload, limit);
    }
}

/// Decodes in steps that first are small.
fn in_steps(id: Id, payload: &[u8], limit: u64) -> Option<Vec<u8>> {
    let mut decoder = Decoder::new(id, payload, limit).ok()?;
    let mut out = Vec::new();
    let mut step = 16;
    while decoder.position() < decoder.raw_size() {
        let left = (decoder.raw_size() - decoder.position()) as usize;
        let mut part = vec![0; step.min(left)];
        decoder.fill(&mut part).ok()?;
        out.extend_from_slice(&part);
        step *= 4;
    }
    decoder.finish().ok()?;
    Some(out)
}

/// Small payloads of every codec with their data.
fn small_payloads() -> Vec<(&'static str, Id, Vec<u8>, Vec<u8>)> {
    let raw = text(700, 21);
    let mut payloads = Vec::new();
    for spec in SPECS {
        let result = compressor(spec).compress(&raw).unwrap();
        if let Some(payload) = result.data {
            payloads.push((spec, result.id, payload, raw.clone()));
        }
    }
    assert!(payloads.len() >= SPECS.len() - 2);
    payloads
}

#[test]
fn truncated_payloads_are_refused() {
    for (spec, id, payload, raw) in small_payloads() {
        for size in 0..payload.len() {
            let cut = &payload[..size];
            assert!(decompress(id, cut, 700).is_err(), "{spec}: {size} bytes");
            if let Some(out) = in_steps(id, cut, 700) {
                panic!("{spec}: {size} bytes gave {} of {}", out.len(), raw.len());
            }
        }
    }
}

#[test]
fn flipped_bits_are_noticed_or_change_data_only() {
    for (spec, id, payload, raw) in small_payloads() {
        let checked = id == Id::LZMA;
        for bit in 0..payload.len() * 8 {
            let mut damaged = payload.clone();
            damaged[bit / 8] ^= 1 << (bit % 8);
            let limit = 1 << 16;
            let whole = decompress(id, &damaged, limit).ok();
            let steps = in_steps(id, &damaged, limit);
            // The two ways agree on what is acceptable.
            assert_eq!(whole, steps, "{spec}: bit {bit}");
            if let Some(out) = whole {
                assert!(!checked || out == raw, "{spec}: bit {bit} went unnoticed");
                assert!(out.len() as u64 <= limit);
            }
        }
    }
}

/// Words in any order, in lines that are repeated with changes, from far back mostly.
fn far_apart(size: usize) -> Vec<u8> {
    let mut random = Random(77);
    let words: Vec<Vec<u8>> = (0..4000).map(|n| noise(3 + n % 7, n as u64 + 1)).collect();
    let mut raw = Vec::with_capacity(size + 8);
    while raw.len() < size {
        raw.extend_from_slice(&words[(random.next() >> 20) as usize % words.len()]);
        if raw.len() > 300_000 && (random.next() >> 20).is_multiple_of(3) {
            let far = raw.len() - 270_000;
            let start = (random.next() >> 20) as usize % far;
            let len = 4 + (random.next() >> 20) as usize % 60;
            raw.extend_from_within(start..start + len);
        }
    }
    raw.truncate(size);
    raw
}

/// Many short sequences and a few whose lengths and offsets take so many bits that a word does not
/// hold them; some matches overlap what they are copied to.
fn long_among_short(size: usize) -> Vec<u8> {
    let mut random = Random(78);
    let mut below = |n: usize| (random.next() >> 20) as usize % n;
    let mut raw = noise(size / 3, 79);
    while raw.len() < size {
        let long = below(300) == 0;
        let literals = if long { 2000 + below(1000) } else { 1 };
        raw.extend(noise(literals, raw.len() as u64));
        let len = if long {
            2000 + below(3000)
        } else {
            5 + below(8)
        };
        let back = match below(20) {
            _ if long => 1 + below(raw.len()),
            0 => 1 + below(15),
            1..7 => 1 + below(raw.len()),
            _ => 60 + below(400),
        };
        for _ in 0..len {
            raw.push(raw[raw.len() - back]);
        }
    }
    raw.truncate(size);
    raw
}

/// A block decoded at once, in place, and through a window takes three ways through the library. They
/// must agree on what is damaged.
#[test]
fn damage_is_judged_alike_at_once_and_by_steps() {
    const LIMIT: u64 = 1 << 21;
    let words = far_apart(900_000);
    let mixed = long_among_short(2_000_000);
    for (spec, raw, flips) in [
        ("zstd:level=3", &words, 3),
        ("zstd:level=17", &words, 3),
        ("zstd:level=19:wlog=20:mml=3", &words, 3),
        // Much of it is literals that are stored as they are, so it takes more to hit sequences.
        ("zstd:level=3", &mixed, 30),
        ("zstd:level=19", &mixed, 30),
    ] {
        let (id, payload) = compress(spec, raw);
        assert!(decompress(id, &payload, LIMIT).unwrap() == *raw, "{spec}");
        assert!(decode_in_steps(id, &payload, LIMIT, 70_000).unwrap() == *raw);
        let mut random = Random(payload.len() as u64);
        let (mut good, mut bad) = (0, 0);
        for case in 0..150 {
            let mut damaged = payload.clone();
            for _ in 0..=case % flips {
                let at = 12 + (random.next() >> 16) as usize % (damaged.len() - 12);
                damaged[at] ^= 1 << (random.next() >> 50 & 7);
            }
            let whole = decompress(id, &damaged, LIMIT);
            let steps = decode_in_steps(id, &damaged, LIMIT, 200_000);
            match (whole, steps) {
                (Ok(whole), Ok(steps)) => {
                    good += 1;
                    assert!(whole == steps, "{spec}: case {case}");
                }
                (Err(_), Err(_)) => bad += 1,
                (whole, steps) => panic!(
                    "{spec}: case {case}: {:?} and {:?}",
                    whole.err(),
                    steps.err()
                ),
            }
        }
        assert!(good > 10 && bad > 10, "{spec}: {good} and {bad}");
    }
}
