//! What compressors choose by themselves: chains for tables, filters, effort.

use crate::common::{compress, compressor, decode_by_parts, decode_in_steps, noise, text};
use proptest::prelude::*;
use redwarfs_codec::{CompressionId as Id, Table, decompress};

const LIMIT: u64 = 1 << 30;

/// Records of eight bytes that count upwards, as tables of metadata do, then text.
fn records() -> (Vec<u8>, Vec<Table>) {
    let mut raw = text(3000, 1);
    let start = raw.len();
    for i in 0..20_000u32 {
        raw.extend_from_slice(&(i * 3 + i % 7).to_le_bytes());
        raw.extend_from_slice(&(1_000_000 + i * 5 + i % 11).to_le_bytes());
    }
    let table = Table {
        range: start..raw.len(),
        record: 8,
    };
    raw.extend_from_slice(&text(50_000, 2));
    (raw, vec![table])
}

#[test]
fn tables_get_chains_of_their_own() {
    let (raw, tables) = records();
    let (_, plain) = compress("lzma:level=6", &raw);
    let made = compressor("lzma:level=6")
        .compress_tables(&raw, &tables, raw.len())
        .unwrap();
    assert_eq!(made.id, Id::LZMA);
    let payload = made.data.unwrap();
    assert_eq!(decompress(Id::LZMA, &payload, LIMIT).unwrap(), raw);
    assert_eq!(
        decode_in_steps(Id::LZMA, &payload, LIMIT, 777).unwrap(),
        raw
    );
    assert_eq!(decode_by_parts(Id::LZMA, &payload, LIMIT).unwrap(), raw);
    assert!(
        payload.len() * 3 < plain.len() * 2,
        "{} and {}",
        payload.len(),
        plain.len()
    );
}

#[test]
fn payloads_beyond_a_limit_are_given_up() {
    let (raw, tables) = records();
    for spec in ["lzma:level=6", "zstd:level=3"] {
        let of = |limit| compressor(spec).compress_tables(&raw, &tables, limit);
        let size = of(raw.len()).unwrap().data.unwrap().len();
        let limits = [0, 1, 12, 100, size / 2, size - 1, size];
        for limit in limits {
            let made = of(limit).unwrap();
            assert_eq!((made.id, made.data), (Id::NONE, None), "{spec} {limit}");
        }
        let made = of(size + 1).unwrap();
        assert_eq!(made.data.map(|data| data.len()), Some(size), "{spec}");
    }
}

#[test]
fn codecs_without_chains_take_tables_as_one_block() {
    let (raw, tables) = records();
    for spec in ["zstd:level=3", "brotli:quality=5", "lz4", "null"] {
        let made = compressor(spec)
            .compress_tables(&raw, &tables, raw.len())
            .unwrap();
        assert_eq!(made, compressor(spec).compress(&raw).unwrap(), "{spec}");
    }
}

#[test]
fn tables_without_redundancy_are_stored() {
    let raw = noise(5000, 4);
    let table = Table {
        range: 1000..3000,
        record: 4,
    };
    let made = compressor("lzma")
        .compress_tables(&raw, &[table], raw.len())
        .unwrap();
    assert_eq!((made.id, made.data), (Id::NONE, None));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn any_tables_come_back(
        length in 0usize..20_000,
        tables in prop::collection::vec((0usize..25_000, 0usize..25_000, 0usize..400), 0..6),
        seed in any::<u64>(),
    ) {
        let raw = text(length, seed);
        let mut tables: Vec<Table> = tables
            .into_iter()
            .map(|(a, b, record)| Table { range: a.min(b)..a.max(b), record })
            .collect();
        tables.sort_by_key(|table| table.range.start);
        let made = compressor("lzma:level=1").compress_tables(&raw, &tables, raw.len()).unwrap();
        if let Some(payload) = made.data {
            prop_assert!(payload.len() < raw.len());
            prop_assert_eq!(&decompress(made.id, &payload, LIMIT).unwrap(), &raw);
            prop_assert_eq!(decode_by_parts(made.id, &payload, LIMIT).unwrap(), raw);
        }
    }
}

#[test]
fn the_quick_level_will_do_for_what_gets_small() {
    // One part in fifty, or one in two.
    let small: Vec<u8> = noise(10_000, 1).repeat(50);
    let large: Vec<u8> = noise(400_000, 2).iter().map(|byte| byte & 15).collect();
    let spec = "zstd:level=17:quick=5";
    assert_eq!(compress(spec, &small), compress("zstd:level=5", &small));
    assert_eq!(compress(spec, &large), compress("zstd:level=17", &large));
    assert_ne!(
        compress("zstd:level=5", &large),
        compress("zstd:level=17", &large)
    );
}

#[test]
fn repetitive_blocks_are_searched_thoroughly() {
    // Every record has a number of its own, and the rest is one of few.
    let kinds = noise(4000, 3);
    let mut log = Vec::new();
    for i in 0..4000u32 {
        let kind = (i.wrapping_mul(2_654_435_761) >> 29) as usize;
        log.extend_from_slice(&kinds[kind * 400..][..400]);
        log.extend_from_slice(&i.wrapping_mul(40_503).to_le_bytes()[..3]);
    }
    let words = text(600_000, 4);
    let plain = "zstd:level=19:slog=2:tlen=32";
    let deep = "zstd:level=19:slog=2:tlen=32:deep=16";
    let thorough = "zstd:level=19:slog=6:tlen=256";
    let size = |spec, raw| compress(spec, raw).1.len();
    assert!(size(deep, &log) <= size(thorough, &log));
    assert!(size(deep, &log) < size(plain, &log));
    assert_eq!(compress(deep, &words), compress(plain, &words));
    assert_ne!(compress(plain, &words), compress(thorough, &words));
    // The quick level will not do for them.
    let both = "zstd:level=19:slog=2:tlen=32:quick=5:deep=16";
    assert_eq!(compress(both, &log), compress(deep, &log));
    // One encoder takes both kinds in turn.
    let mut encoder = compressor(deep);
    for raw in [&log, &words, &log, &words] {
        let made = encoder.compress(raw).unwrap();
        assert_eq!((made.id, made.data.unwrap()), compress(deep, raw));
    }
    // What is settled by hand is no less than asked for.
    let more = "zstd:level=19:slog=7:tlen=512:deep=16";
    assert!(size(more, &log) <= size("zstd:level=19:slog=7:tlen=512", &log));
}

/// Rows of measurements every five seconds, of which one changes now and then.
fn rows(size: usize) -> Vec<u8> {
    let noise = noise(size / 20, 7);
    let mut random = noise.iter().map(|&byte| u32::from(byte));
    let mut values = [2100, 3205, 170, 880, 1200, 990];
    let mut rows = Vec::new();
    for seconds in (0..).step_by(5) {
        if rows.len() >= size {
            break;
        }
        let (chance, which, by) = (random.next(), random.next(), random.next());
        if chance.unwrap() < 13 {
            values[which.unwrap() as usize % 6] += by.unwrap();
        }
        let [h, m, s] = [seconds / 3600 % 24, seconds / 60 % 60, seconds % 60];
        let time = format!("2024-03-01T{h:02}:{m:02}:{s:02};unit-17");
        rows.extend_from_slice(time.as_bytes());
        for value in values {
            rows.extend_from_slice(format!(";{}.{:02}", value / 100, value % 100).as_bytes());
        }
        rows.extend_from_slice(b";OK\n");
    }
    rows
}

#[test]
fn matches_are_preferred_to_literals_where_that_is_smaller() {
    let deep = "zstd:level=19:wlog=24:deep=8";
    let thorough = "zstd:level=19:wlog=24:slog=6:tlen=256";
    let size = |spec, raw| compress(spec, raw).1.len();
    let table = rows(1 << 20);
    let (by_matches, before) = (size(deep, &table), size(thorough, &table));
    assert!(by_matches < before - before / 20, "{by_matches} {before}");

    // A number without a pattern in each row is made of literals.
    let random = noise(1 << 16, 8);
    let mut numbers = Vec::new();
    for number in random
        .chunks_exact(8)
        .map(|bytes| u64::from_le_bytes(bytes.try_into().unwrap()))
    {
        let text = "periodic self test completed without findings, next one as scheduled";
        let number = number % 1_000_000;
        let row = format!("level=info component=controller duration_us={number:06} {text}\n");
        numbers.extend_from_slice(row.as_bytes());
    }
    assert_eq!(compress(deep, &numbers), compress(thorough, &numbers));
    // Whatever lies in the middle.
    let mixed = [&numbers[..], &table[..numbers.len() / 4], &numbers[..]].concat();
    assert_eq!(compress(deep, &mixed), compress(thorough, &mixed));
}

/// Calls of a few functions from everywhere, as in machine code.
fn calls(prefix: &[u8], target_at: impl Fn(u32, u32) -> [u8; 4]) -> Vec<u8> {
    let mut code = Vec::new();
    let filler = noise(1 << 16, 9);
    for i in 0..60_000u32 {
        code.extend_from_slice(&filler[(i as usize * 7) % 60_000..][..4]);
        code.extend_from_slice(prefix);
        let here = code.len() as u32;
        code.extend_from_slice(&target_at(
            here,
            4096 * (i.wrapping_mul(2_654_435_761) >> 28),
        ));
    }
    code
}

#[test]
fn automatic_filters_are_those_that_help() {
    let x86 = calls(&[0xe8], |here, target| {
        target.wrapping_sub(here + 4).to_le_bytes()
    });
    let arm64 = calls(&[], |here, target| {
        let distance = target.wrapping_sub(here) >> 2;
        (0x9400_0000 | (distance & 0x03ff_ffff)).to_le_bytes()
    });
    // Two versions: calls of the same functions are the same distances in both, but not the same places.
    let versions = [&x86[..], &[0x90; 1001], &x86].concat();
    assert_eq!(
        compress("lzma:level=2:binary=auto", &versions),
        compress("lzma:level=2", &versions)
    );
    for (name, code) in [("x86", x86), ("arm64", arm64)] {
        let (id, chosen) = compress("lzma:level=2:binary=auto", &code);
        let fixed = compress(&format!("lzma:level=2:binary={name}"), &code);
        assert_eq!((id, &chosen), (fixed.0, &fixed.1), "{name}");
        let (_, plain) = compress("lzma:level=2", &code);
        assert!(chosen.len() < plain.len(), "{name}");
        assert_eq!(decompress(id, &chosen, LIMIT).unwrap(), code);
    }
    let words = text(500_000, 3);
    assert_eq!(
        compress("lzma:level=2:binary=auto", &words),
        compress("lzma:level=2", &words)
    );
}

#[test]
fn large_blocks_that_gain_less_than_one_per_cent_are_stored() {
    for spec in [
        "lz4",
        "zstd:level=3",
        "zstd:level=22",
        "lzma:level=5",
        "brotli:quality=5",
    ] {
        for (per_mille, stored) in [(7, true), (20, false)] {
            let mut raw = noise(1 << 20, 9);
            let zeros = raw.len() * per_mille / 1000;
            raw[..zeros].fill(0);
            let made = compressor(spec).compress(&raw).unwrap();
            assert_eq!(made.data.is_none(), stored, "{spec}: {per_mille} per mille");
            // Of a small block, any gain is taken.
            raw.truncate(200_000);
            assert_ne!(compress(spec, &raw).0, Id::NONE, "{spec}");
        }
    }
}

#[test]
fn hopeless_blocks_are_stored() {
    // One byte in five hundred is a repetition; the first blocks of the frame hold them all.
    let mut raw = noise(1 << 19, 7);
    for i in 0..16 {
        raw.copy_within(i * 64..(i + 1) * 64, 50_000 + i * 4000);
    }
    let spec = "zstd:level=19";
    let made = compressor(spec).compress(&raw).unwrap();
    assert_eq!((made.id, made.data), (Id::NONE, None));
    // Of small blocks as little is taken, since they cost no time.
    let (id, small) = compress(spec, &raw[..250_000]);
    assert_eq!(id, Id::ZSTD);
    assert!(small.len() > 250_000 - 250_000 / 256);
    // What gains more is compressed.
    raw[..1 << 14].fill(0);
    assert_eq!(compress(spec, &raw).0, Id::ZSTD);
}
