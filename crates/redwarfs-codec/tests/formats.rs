//! Payloads of every shape that the format allows, and the nearest that it does not.

use crate::common::{compress, compressor, decode_by_parts, decode_in_steps, noise, text};
use redwarfs_codec::{CompressionId as Id, Decoder, Error, decompress, library_versions, raw_size};

const LIMIT: u64 = 1 << 30;

const PLAIN: &[u8] = include_bytes!("data/plain.bin");

/// Streams of `PLAIN` from another encoder.
const STREAMS: [(&str, &[u8]); 11] = [
    ("no check", include_bytes!("data/check-none.xz")),
    ("CRC32", include_bytes!("data/check-crc32.xz")),
    ("CRC64", include_bytes!("data/check-crc64.xz")),
    ("SHA-256", include_bytes!("data/check-sha256.xz")),
    ("delta", include_bytes!("data/delta.xz")),
    ("four filters", include_bytes!("data/chain-of-four.xz")),
    ("powerpc", include_bytes!("data/bcj-powerpc.xz")),
    ("ia64", include_bytes!("data/bcj-ia64.xz")),
    ("armthumb", include_bytes!("data/bcj-armthumb.xz")),
    ("sparc", include_bytes!("data/bcj-sparc.xz")),
    ("three blocks", include_bytes!("data/blocks.xz")),
];

fn assert_corrupt(id: Id, payload: &[u8], what: &str) {
    for outcome in [
        decompress(id, payload, LIMIT),
        decode_in_steps(id, payload, LIMIT, 100),
        decode_by_parts(id, payload, LIMIT),
    ] {
        assert!(
            matches!(outcome, Err(Error::Corrupt { .. })),
            "{what}: {outcome:?}"
        );
    }
}

fn assert_decodes(id: Id, payload: &[u8], raw: &[u8], what: &str) {
    assert_eq!(raw_size(id, payload).unwrap(), raw.len() as u64, "{what}");
    assert!(decompress(id, payload, LIMIT).unwrap() == raw, "{what}");
    assert!(
        decode_by_parts(id, payload, LIMIT).unwrap() == raw,
        "{what}"
    );
    for step in [1, 7, 8192, raw.len().max(1) - 1] {
        assert!(
            decode_in_steps(id, payload, LIMIT, step.max(1)).unwrap() == raw,
            "{what}"
        );
    }
}

#[test]
fn ids_and_sizes_of_every_codec() {
    let raw = text(20_000, 3);
    let table = [
        ("zstd", Id::ZSTD),
        ("zstd:level=-5", Id::ZSTD),
        ("zstd:level=3:long", Id::ZSTD),
        ("lzma", Id::LZMA),
        ("lzma:level=0", Id::LZMA),
        (
            "lzma:level=6:extreme:dict_size=12:mode=normal:mf=hc3:nice=3:depth=9",
            Id::LZMA,
        ),
        ("lz4", Id::LZ4),
        ("lz4hc:level=0", Id::LZ4),
        ("lz4hc:level=12", Id::LZ4),
        ("brotli", Id::BROTLI),
        ("brotli:quality=0:lgwin=10", Id::BROTLI),
        ("brotli:quality=5:lgwin=30", Id::BROTLI),
    ];
    for (spec, expected) in table {
        let (id, payload) = compress(spec, &raw);
        assert_eq!(id, expected, "{spec}");
        assert!(payload.len() < raw.len());
        assert_decodes(id, &payload, &raw, spec);
        if id == Id::LZ4 {
            assert_decodes(Id::LZ4HC, &payload, &raw, spec);
        }
    }
}

#[test]
fn what_does_not_shrink_is_stored() {
    let random = noise(5000, 9);
    for spec in [
        "null",
        "zstd",
        "zstd:long",
        "lzma",
        "lzma:binary=x86",
        "lz4",
        "lz4hc",
        "brotli",
    ] {
        let mut compressor = compressor(spec);
        for raw in [&[][..], &[7], &[7, 7], b"abcdefg", &random] {
            let result = compressor.compress(raw).unwrap();
            assert_eq!((result.id, result.data), (Id::NONE, None), "{spec}");
        }
    }
    assert_decodes(Id::NONE, &random, &random, "stored");
}

#[test]
fn a_payload_is_strictly_smaller_than_its_data() {
    for spec in ["zstd", "lzma:level=3", "lz4", "lz4hc", "brotli:quality=5"] {
        let mut compressor = compressor(spec);
        // Around the size where compression starts to pay.
        let mut stored = 0;
        for size in 0..400 {
            let raw: Vec<u8> = (0..size).map(|i: u32| (i % 23) as u8).collect();
            match compressor.compress(&raw).unwrap().data {
                Some(payload) => assert!(payload.len() < raw.len(), "{spec} {size}"),
                None => stored += 1,
            }
        }
        assert!(stored > 4 && stored < 200, "{spec} {stored}");
    }
}

#[test]
fn earlier_blocks_do_not_matter() {
    let blocks = [
        text(70_000, 1),
        text(300, 2),
        noise(40_000, 3),
        text(130_000, 4),
    ];
    for spec in [
        "zstd:level=7:long",
        "lzma:level=2:binary=arm64",
        "lz4",
        "lz4hc:level=5",
        "brotli:quality=4",
    ] {
        let mut reused = compressor(spec);
        for round in 0..2 {
            for block in &blocks {
                let fresh = compressor(spec).compress(block).unwrap();
                assert_eq!(
                    reused.compress(block).unwrap(),
                    fresh,
                    "{spec} round {round}"
                );
            }
        }
    }
}

#[test]
fn limits_hold_before_anything_is_decoded() {
    let raw = text(50_000, 5);
    for spec in ["zstd", "lzma:level=1", "lz4", "brotli:quality=3"] {
        let (id, payload) = compress(spec, &raw);
        assert!(decompress(id, &payload, 50_000).is_ok(), "{spec}");
        let error = decompress(id, &payload, 49_999).unwrap_err();
        assert!(matches!(error, Error::Limit(_)), "{spec}: {error}");
        assert!(Decoder::new(id, payload, 49_999).is_err(), "{spec}");
    }
    assert!(matches!(
        decompress(Id::NONE, &raw, 10),
        Err(Error::Limit(_))
    ));
}

#[test]
fn unsupported_ids_say_so() {
    for id in [Id(8), Id(0xffff)] {
        assert!(matches!(raw_size(id, &[0; 64]), Err(Error::Unsupported(_))));
        assert!(matches!(
            decompress(id, &[0; 64], LIMIT),
            Err(Error::Unsupported(_))
        ));
    }
    let error = raw_size(Id(8), &[]).unwrap_err().to_string();
    assert_eq!(error, "unsupported: compression type 8");
}

#[test]
fn payloads_too_short_for_their_framing() {
    for id in [
        Id::LZMA,
        Id::ZSTD,
        Id::LZ4,
        Id::BROTLI,
        Id::FLAC,
        Id::RICEPP,
    ] {
        for size in 0..4 {
            assert_corrupt(id, &[0xff; 4][..size], "short");
        }
    }
}

#[test]
fn misuse_is_an_error() {
    let raw = text(10_000, 6);
    let (id, payload) = compress("zstd", &raw);
    let mut decoder = Decoder::new(id, payload, LIMIT).unwrap();
    decoder.fill(&mut []).unwrap();
    assert!(decoder.fill(&mut vec![0; 10_001]).is_err());
    assert!(decoder.finish().is_err(), "not at the end");
    let mut out = vec![0; 10_000];
    decoder.fill(&mut out).unwrap();
    assert_eq!(out, raw);
    assert!(format!("{decoder:?}").contains("Finished"));
    assert!(decoder.decode_start(&mut out, 1).is_err(), "used before");
    let decoder = || Decoder::new(id, compress("zstd", &raw).1, LIMIT).unwrap();
    let mut longer = vec![0; 10_001];
    for len in [9_999, 10_001] {
        let result = decoder().decode_start(&mut longer[..len], 1);
        assert!(result.is_err(), "memory of {len} bytes");
    }
    assert!(decoder().decode_start(&mut out, 10_001).is_err());
}

#[test]
fn lz4_is_exact() {
    let raw = text(3000, 7);
    let (id, good) = compress("lz4", &raw);
    let announce = |size: u32| [&size.to_le_bytes()[..], &good[4..]].concat();
    assert_corrupt(id, &announce(2999), "more than announced");
    assert_corrupt(id, &announce(3001), "less than announced");
    assert_corrupt(id, &announce(0), "nothing announced");
    assert_corrupt(
        id,
        &announce(LIMIT as u32),
        "beyond what the block can hold",
    );
    assert_corrupt(id, &[&good[..], &[0]].concat(), "trailing byte");
    assert_decodes(id, &[0, 0, 0, 0, 0], &[], "empty block");
    let decoder = Decoder::new(id, good, LIMIT).unwrap();
    assert!(!decoder.is_incremental());
}

fn skippable(data: &[u8]) -> Vec<u8> {
    let mut frame = 0x184d_2a57u32.to_le_bytes().to_vec();
    frame.extend_from_slice(&(data.len() as u32).to_le_bytes());
    frame.extend_from_slice(data);
    frame
}

/// A frame of one raw block: magic, descriptor (single segment, one-byte content
/// size), the size, block header, data.
fn raw_frame(data: &[u8]) -> Vec<u8> {
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x20, data.len() as u8];
    let header = (data.len() as u32) << 3 | 1;
    frame.extend_from_slice(&header.to_le_bytes()[..3]);
    frame.extend_from_slice(data);
    frame
}

#[test]
fn zstd_accepts_one_frame_and_nothing_behind_it_that_holds_data() {
    let raw = text(3000, 8);
    let (id, good) = compress("zstd:level=5", &raw);
    let empty = raw_frame(b"");
    let joined = |parts: &[&[u8]]| parts.concat();
    assert_decodes(id, &raw_frame(b"hello"), b"hello", "raw frame");
    assert_decodes(id, &empty, b"", "empty frame");
    assert_decodes(id, &joined(&[&good, &skippable(b"abc")]), &raw, "skippable");
    assert_decodes(
        id,
        &joined(&[&good, &empty, &skippable(b""), &empty]),
        &raw,
        "empty",
    );
    assert_corrupt(id, &joined(&[&good, &raw_frame(b"x")]), "second frame");
    let mut liar = empty.clone();
    liar[5] = 5;
    assert_corrupt(id, &joined(&[&good, &liar]), "announced data");
    assert_corrupt(id, &joined(&[&good, &[0]]), "garbage");
    assert_corrupt(id, &joined(&[&good, b"garbage!"]), "garbage");
    assert_corrupt(
        id,
        &joined(&[&good, &skippable(b"abc")[..9]]),
        "cut skippable frame",
    );
    assert_corrupt(
        id,
        &joined(&[&skippable(b"abc"), &good]),
        "leading skippable frame",
    );
    assert_corrupt(id, &joined(&[&empty, &good]), "leading empty frame");
    // The frame descriptor without the content size and with a window byte.
    let sizeless = [0x28, 0xb5, 0x2f, 0xfd, 0x00, 0x00, 0x01, 0x00, 0x00];
    assert_corrupt(id, &sizeless, "no content size");
    let mut wrong = raw_frame(b"hello");
    wrong[5] = 4;
    assert_corrupt(id, &wrong, "content size too small");
    wrong[5] = 6;
    assert_corrupt(id, &wrong, "content size too large");
}

#[test]
fn zstd_frames_carry_their_size_and_no_checksum() {
    for spec in ["zstd", "zstd:level=1:long", "zstd:level=-7"] {
        for size in [300, 512, 513, 100_000] {
            let (_, payload) = compress(spec, &text(size, 9));
            let descriptor = payload[4];
            assert_eq!(descriptor & 0x04, 0, "{spec}: checksum");
            assert_eq!(descriptor & 0x03, 0, "{spec}: dictionary");
            assert_eq!(descriptor & 0x20, 0x20, "{spec}: single segment");
        }
    }
}

#[test]
fn zstd_windows_larger_than_the_data_are_fine_and_cost_nothing() {
    // Window descriptor 0xa8: 2^31 bytes; content size of two bytes, 256 less.
    let mut frame = vec![0x28, 0xb5, 0x2f, 0xfd, 0x40, 0xa8];
    frame.extend_from_slice(&(300u16 - 256).to_le_bytes());
    frame.extend_from_slice(&((300u32 << 3) | 1).to_le_bytes()[..3]);
    let raw = text(300, 10);
    frame.extend_from_slice(&raw);
    if cfg!(target_pointer_width = "32") {
        // Too large for zstd on such a processor.
        assert_corrupt(Id::ZSTD, &frame, "2 GiB window");
        frame[5] = 0xa0;
        assert_decodes(Id::ZSTD, &frame, &raw, "1 GiB window");
        return;
    }
    assert_decodes(Id::ZSTD, &frame, &raw, "2 GiB window");
    frame[5] = 0xa9;
    let whole = decompress(Id::ZSTD, &frame, LIMIT);
    assert!(matches!(whole, Err(Error::Unsupported(_))), "{whole:?}");
    assert!(decode_in_steps(Id::ZSTD, &frame, LIMIT, 100).is_err());
}

#[test]
fn zstd_frames_refer_to_themselves_only() {
    let before = noise(4096, 3);
    for size in [1 << 20, 9 << 20] {
        let mut raw = before.clone();
        raw.extend(noise(size - raw.len(), 4));
        let mut encoder = zstd_safe::CCtx::create();
        encoder.ref_prefix(&before).unwrap();
        let mut payload = Vec::with_capacity(zstd_safe::compress_bound(size));
        encoder.compress2(&mut payload, &raw[..]).unwrap();
        for _ in 0..2 {
            let whole = decompress(Id::ZSTD, &payload, LIMIT);
            assert!(matches!(whole, Err(Error::Corrupt { .. })), "{size}");
            let steps = decode_in_steps(Id::ZSTD, &payload, LIMIT, 100_000);
            assert!(matches!(steps, Err(Error::Corrupt { .. })), "{size}");
        }
    }
}

#[test]
fn zstd_matches_far_back_are_decoded() {
    let far = noise(1 << 20, 9);
    let mut raw = noise(9 << 20, 10);
    for (n, piece) in far.chunks(400).enumerate() {
        let start = n * 400;
        raw[start..start + piece.len()].copy_from_slice(piece);
        raw.extend_from_slice(&(n as u32).to_le_bytes());
        raw.extend_from_slice(piece);
    }
    let (id, payload) = compress("zstd:level=3:long", &raw);
    assert!(payload.len() < (9 << 20) + (1 << 19));
    assert!(decompress(id, &payload, LIMIT).unwrap() == raw);
    assert!(decode_in_steps(id, &payload, LIMIT, 1 << 20).unwrap() == raw);
}

#[test]
fn zstd_long_finds_what_is_far_away() {
    let start = noise(600_000, 11);
    let raw = [&start[..], &text(3_000_000, 12), &start[..]].concat();
    let (id, long) = compress("zstd:level=1:long", &raw);
    let (_, short) = compress("zstd:level=1", &raw);
    assert!(
        long.len() + 400_000 < short.len(),
        "{} {}",
        long.len(),
        short.len()
    );
    assert!(decompress(id, &long, LIMIT).unwrap() == raw);
    assert!(decode_in_steps(id, &long, LIMIT, 65_536).unwrap() == raw);
}

#[test]
fn xz_checks_and_filters() {
    for (what, stream) in STREAMS {
        assert_decodes(Id::LZMA, stream, PLAIN, what);
        let padded = [stream, &[0; 8]].concat();
        assert_decodes(Id::LZMA, &padded, PLAIN, what);
        assert_corrupt(Id::LZMA, &[stream, &[0; 3]].concat(), "odd padding");
        assert_corrupt(Id::LZMA, &[stream, b"junk"].concat(), "garbage");
        assert_corrupt(Id::LZMA, &[&[0; 4], stream].concat(), "leading zeros");
        assert_corrupt(Id::LZMA, &[stream, stream].concat(), "two streams");
    }
    assert_corrupt(Id::LZMA, include_bytes!("data/alone.lzma"), "LZMA_alone");
}

#[test]
fn blocks_of_xz_streams_are_parts() {
    let parts = |stream: &[u8]| Decoder::new(Id::LZMA, stream, LIMIT).unwrap().parts();
    assert_eq!(parts(STREAMS[10].1), 3);
    assert_eq!(parts(STREAMS[2].1), 1);
    let (id, payload) = compress("zstd:level=3", PLAIN);
    assert_eq!(Decoder::new(id, payload, LIMIT).unwrap().parts(), 1);
}

#[test]
fn damage_is_judged_alike_by_parts_and_from_front_to_back() {
    let stream = STREAMS[10].1;
    let mut refused = 0;
    for at in 0..stream.len() {
        let mut damaged = stream.to_vec();
        damaged[at] ^= 1 << (at % 8);
        let whole = decompress(Id::LZMA, &damaged, LIMIT).map_err(|e| e.to_string());
        let parts = decode_by_parts(Id::LZMA, &damaged, LIMIT).map_err(|e| e.to_string());
        assert!(
            whole == parts,
            "byte {at}: {:?}, {:?}",
            whole.err(),
            parts.err()
        );
        refused += usize::from(whole.is_err());
    }
    assert_eq!(refused, stream.len());
}

#[test]
fn of_several_damaged_blocks_the_first_one_is_named() {
    let stream = STREAMS[10].1;
    let verdict = |header: bool, data: bool| {
        let mut damaged = stream.to_vec();
        if header {
            // The size of the first block's header.
            damaged[12] = 0;
        }
        if data {
            let end = damaged.len() - 60;
            damaged[end] ^= 0x55;
        }
        let whole = decompress(Id::LZMA, &damaged, LIMIT).unwrap_err();
        let parts = decode_by_parts(Id::LZMA, &damaged, LIMIT).unwrap_err();
        assert_eq!(whole.to_string(), parts.to_string());
        parts.to_string()
    };
    let (header, data) = (verdict(true, false), verdict(false, true));
    assert_ne!(header, data);
    assert_eq!(verdict(true, true), header);
}

#[test]
fn an_empty_xz_stream_holds_nothing() {
    let mut stream = vec![
        0xfd, b'7', b'z', b'X', b'Z', 0, 0, 4, 0xe6, 0xd6, 0xb4, 0x46,
    ];
    let index = [0, 0, 0, 0];
    stream.extend_from_slice(&index);
    stream.extend_from_slice(&crc32(&index).to_le_bytes());
    let tail = [1, 0, 0, 0, 0, 4];
    stream.extend_from_slice(&crc32(&tail).to_le_bytes());
    stream.extend_from_slice(&tail);
    stream.extend_from_slice(b"YZ");
    assert_decodes(Id::LZMA, &stream, b"", "empty stream");
    let full = STREAMS[2].1;
    assert_corrupt(Id::LZMA, &[&stream, full].concat(), "empty stream first");
    assert_corrupt(Id::LZMA, &[full, &stream].concat(), "empty stream last");
}

fn crc32(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for &byte in bytes {
        crc ^= u32::from(byte);
        for _ in 0..8 {
            crc = crc >> 1 ^ if crc & 1 == 1 { 0xedb8_8320 } else { 0 };
        }
    }
    !crc
}

#[test]
fn xz_dictionaries_larger_than_the_data_are_fine_and_cost_nothing() {
    // The block header of this stream: size, flags, filter 0x21 with one byte.
    let mut stream = STREAMS[1].1.to_vec();
    assert_eq!(&stream[12..16], &[2, 0, 0x21, 1]);
    // 1 GiB, 1.5 GiB, 3 GiB, 4 GiB - 1.
    for dictionary in [36, 37, 39, 40] {
        stream[16] = dictionary;
        let crc = crc32(&stream[12..20]).to_le_bytes();
        stream[20..24].copy_from_slice(&crc);
        assert_decodes(Id::LZMA, &stream, PLAIN, "large dictionary");
    }
    stream[16] = 41;
    let crc = crc32(&stream[12..20]).to_le_bytes();
    stream[20..24].copy_from_slice(&crc);
    let error = decompress(Id::LZMA, &stream, LIMIT).unwrap_err();
    assert!(matches!(error, Error::Unsupported(_)), "{error}");
}

#[test]
fn xz_end_is_verified_with_the_last_byte() {
    let stream = STREAMS[2].1;
    // The last byte of the CRC64 in front of the index, which takes eight bytes.
    let index = stream.len() - 12 - 12;
    let mut damaged = stream.to_vec();
    damaged[index - 1] ^= 1;
    let mut decoder = Decoder::new(Id::LZMA, damaged, LIMIT).unwrap();
    let mut out = vec![0; PLAIN.len() - 1];
    decoder.fill(&mut out).unwrap();
    assert_eq!(out, PLAIN[..PLAIN.len() - 1]);
    assert!(decoder.fill(&mut [0]).is_err());
    assert!(decoder.finish().is_err());
}

#[test]
fn dictionaries_and_windows_follow_the_data() {
    let raw = text(100_000, 13);
    let (_, payload) = compress("lzma:level=9", &raw);
    // LZMA2's dictionary byte: 13 stands for 384 KiB / 4 = 96 KiB, 14 for 128 KiB.
    let lzma2 = payload[12..40]
        .windows(2)
        .position(|w| w == [0x21, 1])
        .unwrap();
    assert!(payload[12 + lzma2 + 2] <= 12, "{:?}", &payload[12..24]);

    // The large-window format starts with 0x11 after the varint.
    let (id, payload) = compress("brotli:quality=5:lgwin=30", &raw);
    assert_ne!(payload[3], 0x11);
    assert_decodes(id, &payload, &raw, "small data, large window");
}

#[test]
fn brotli_large_windows() {
    let start = noise(200_000, 14);
    let raw = [&start[..], &vec![0; 17 << 20], &start[..]].concat();
    let (id, payload) = compress("brotli:quality=2:lgwin=30", &raw);
    assert_eq!(payload[4], 0x11);
    assert_eq!(payload[5] & 0x3f, 25);
    assert!(decompress(id, &payload, LIMIT).unwrap() == raw);
    assert!(decode_in_steps(id, &payload, LIMIT, 1 << 20).unwrap() == raw);
    let (id, payload) = compress("brotli:quality=2:lgwin=16", &raw);
    assert!(decompress(id, &payload, LIMIT).unwrap() == raw);
}

#[test]
fn brotli_framing() {
    let raw = text(3000, 15);
    let (id, good) = compress("brotli:quality=6", &raw);
    assert_decodes(
        id,
        &[&good[..], b"trailing"].concat(),
        &raw,
        "trailing bytes",
    );
    let stream = &good[2..];
    let padded = [&[0xb8, 0x97, 0x80, 0x00][..], stream].concat();
    assert_decodes(id, &padded, &raw, "padded varint");
    assert_corrupt(id, &[&[0xb7, 0x17][..], stream].concat(), "size too small");
    assert_corrupt(id, &[&[0xb9, 0x17][..], stream].concat(), "size too large");
    assert_corrupt(id, &[0x80; 12], "endless varint");
    let huge = [
        &[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x01][..],
        stream,
    ]
    .concat();
    assert!(matches!(
        decompress(id, &huge, u64::MAX),
        Err(Error::Limit(_))
    ));
}

/// Bytes that look like x86 code: calls to a few functions from many places.
fn machine_code(calls: u32) -> Vec<u8> {
    let mut code = Vec::new();
    for i in 0..calls {
        let target = [0x1000u32, 0x2340, 0x7770][(i % 3) as usize];
        code.extend_from_slice(&[0x55, 0x48, 0x89, 0xe5, 0xe8]);
        let next = code.len() as u32 + 4;
        code.extend_from_slice(&target.wrapping_sub(next).to_le_bytes());
        code.extend_from_slice(&[0x5d, 0xc3]);
    }
    code
}

#[test]
fn the_better_of_filtered_and_plain_wins() {
    let code = machine_code(4000);
    let prose = text(40_000, 16);
    for (raw, filter_wins) in [(&code, true), (&prose, false)] {
        let (id, plain) = compress("lzma:level=6", raw);
        let (_, best) = compress("lzma:level=6:binary=x86", raw);
        assert_eq!(best.len() < plain.len(), filter_wins);
        assert_eq!(best == plain, !filter_wins);
        assert_decodes(id, &best, raw, "branch filter");
    }
    let (_, plain) = compress("lzma:level=6", &code);
    let (_, best) = compress("lzma:level=6:binary=x86", &code);
    assert!(
        best.len() * 2 < plain.len(),
        "{} {}",
        best.len(),
        plain.len()
    );
}

#[test]
fn every_branch_filter_round_trips() {
    // Words with few distinct high bytes, so that each filter finds something.
    let raw: Vec<u8> = (0..4000u32)
        .flat_map(|i| {
            [
                (i * 4) as u8,
                (i >> 6) as u8,
                0xf0,
                [0xeb, 0x94, 0x48, 0xef][i as usize % 4],
            ]
        })
        .collect();
    for name in "x86 powerpc ia64 arm armthumb arm64 sparc riscv".split(' ') {
        let spec = format!("lzma:level=4:binary={name}");
        let (id, payload) = compress(&spec, &raw);
        assert_decodes(id, &payload, &raw, &spec);
    }
}

#[test]
fn zstd_expert_settings_reach_the_encoder() {
    let raw = text(60_000, 17);
    let spec = "zstd:level=3:wlog=12:hlog=10:clog=10:slog=3:mml=4:tlen=16:strat=5";
    let (id, payload) = compress(spec, &raw);
    let (_, plain) = compress("zstd:level=3", &raw);
    assert_ne!(payload, plain);
    // A window of 4 KiB: no single segment, and the descriptor says 2^12.
    assert_eq!(payload[4] & 0x20, 0);
    assert_eq!(payload[5], (12 - 10) << 3);
    assert_decodes(id, &payload, &raw, spec);
    let spec = "zstd:level=3:long:lhlog=12:lmml=32:lblog=3:lhrlog=4";
    let (id, payload) = compress(spec, &raw);
    assert_decodes(id, &payload, &raw, spec);
}

#[test]
fn libraries_name_their_versions() {
    let versions = library_versions();
    let names: Vec<_> = versions
        .iter()
        .map(|v| v.rsplit_once('-').unwrap().0)
        .collect();
    assert_eq!(names, ["brotli", "libFLAC", "liblzma", "lz4", "zstd"]);
    for version in versions {
        let number = version.rsplit_once('-').unwrap().1;
        assert!(
            number.split('.').all(|part| part.parse::<u32>().is_ok()),
            "{version}"
        );
    }
}
