//! RICEPP payloads: the bytes they consist of, and what damage does to them.

use crate::common::{Random, compress_with, compressor, decode_in_steps, noise, pixels, text};
use proptest::prelude::*;
use redwarfs_codec::{
    ByteOrder, CodecSpec, CompressionId as Id, Content, Error, PixelFormat, decompress, raw_size,
};
use redwarfs_format::block_header::RiceppBlockHeader;

const LIMIT: u64 = 1 << 30;

const BIG: PixelFormat = PixelFormat {
    components: 1,
    unused_lsb: 0,
    byte_order: ByteOrder::Big,
};

/// The usual header.
const HEADER: RiceppBlockHeader = RiceppBlockHeader {
    block_size: 128,
    component_count: 1,
    bytes_per_sample: 2,
    unused_lsb_count: 0,
    big_endian: true,
    ricepp_version: 1,
};

/// A payload for so many bytes (fewer than 128) with a stream of one's own.
fn payload(size: u8, header: RiceppBlockHeader, stream: &[u8]) -> Vec<u8> {
    assert!(size < 0x80);
    [&[size], &header.encode()[..], stream].concat()
}

/// Bits in the order of the stream, packed into bytes.
fn packed(bits: &str) -> Vec<u8> {
    let bits: Vec<u8> = bits.bytes().filter(|b| b"01".contains(b)).collect();
    let byte = |bits: &[u8]| {
        let values = bits.iter().enumerate();
        values.fold(0, |byte, (i, bit)| byte | (bit - b'0') << i)
    };
    bits.chunks(8).map(byte).collect()
}

fn assert_corrupt(payload: &[u8], what: &str) {
    for outcome in [
        decompress(Id::RICEPP, payload, LIMIT),
        decode_in_steps(Id::RICEPP, payload, LIMIT, 3),
    ] {
        assert!(
            matches!(outcome, Err(Error::Corrupt { .. })),
            "{what}: {outcome:?}"
        );
    }
}

fn big_endian(pixels: &[u16]) -> Vec<u8> {
    pixels.iter().flat_map(|p| p.to_be_bytes()).collect()
}

/// A stream with a block of every kind, and the pixels in it.
fn worked_example() -> (Vec<u8>, Vec<u8>) {
    let raw = big_endian(&[
        100, 102, 101, 105, 105, 105, 105, 105, 3, 40000, 60000, 7, 7, 9,
    ]);
    let stream = packed(
        "0010011000000000 0100 10 0010 11 000010 0000
         1111 0000000011000000 0011100100000010 0101011100000110 0000000011100000
         0100 10 0010 0000",
    );
    let header = RiceppBlockHeader {
        block_size: 4,
        ..HEADER
    };
    (payload(28, header, &stream), raw)
}

#[test]
fn every_kind_of_block() {
    let (payload, raw) = worked_example();
    let bytes = [
        0x1c, 0x15, 0x08, 0x14, 0x02, 0x13, 0x02, 0x13, 0x00, 0x11, 0x14, 0x02, 0x00, 0x64, 0x00,
        0x12, 0x0d, 0xc1, 0x03, 0x0c, 0x70, 0x02, 0xa9, 0x83, 0x01, 0x1c, 0x48, 0x04,
    ];
    assert_eq!(payload, bytes);
    assert_eq!(raw_size(Id::RICEPP, &payload).unwrap(), 28);
    assert_eq!(decompress(Id::RICEPP, &payload, 28).unwrap(), raw);
    for step in 1..28 {
        let steps = decode_in_steps(Id::RICEPP, &payload, 28, step).unwrap();
        assert_eq!(steps, raw, "{step}");
    }
    let trailing = [&payload[..], b"trailing"].concat();
    assert_eq!(decompress(Id::RICEPP, &trailing, 28).unwrap(), raw);
    for size in 0..payload.len() {
        assert_corrupt(&payload[..size], "cut off");
    }
}

#[test]
fn headers() {
    let stream = packed("0010011000000000 0000");
    let with = |change: fn(&mut RiceppBlockHeader)| {
        let mut header = HEADER;
        change(&mut header);
        decompress(Id::RICEPP, &payload(8, header, &stream), LIMIT)
    };
    assert_eq!(with(|_| ()).unwrap(), big_endian(&[100; 4]));
    assert_eq!(with(|h| h.ricepp_version = 0).unwrap(), [0, 100].repeat(4));
    assert_eq!(with(|h| h.big_endian = false).unwrap(), [100, 0].repeat(4));
    assert_eq!(with(|h| h.block_size = 512).unwrap(), [0, 100].repeat(4));
    assert_eq!(
        with(|h| h.unused_lsb_count = 12).unwrap(),
        [0x40, 0x00].repeat(4)
    );
    for (what, outcome) in [
        ("version", with(|h| h.ricepp_version = 2)),
        ("bytes", with(|h| h.bytes_per_sample = 1)),
        ("bytes", with(|h| h.bytes_per_sample = 4)),
    ] {
        assert!(matches!(outcome, Err(Error::Unsupported(_))), "{what}");
    }
    for (what, outcome) in [
        ("components", with(|h| h.component_count = 0)),
        ("components", with(|h| h.component_count = 3)),
        ("components", with(|h| h.component_count = 257)),
        ("block size", with(|h| h.block_size = 0)),
        ("block size", with(|h| h.block_size = 513)),
        ("block size", with(|h| h.block_size = u32::MAX)),
        ("unused bits", with(|h| h.unused_lsb_count = 16)),
    ] {
        assert!(matches!(outcome, Err(Error::Corrupt { .. })), "{what}");
    }
    assert_corrupt(&payload(7, HEADER, &stream), "half a pixel");
    let two = RiceppBlockHeader {
        component_count: 2,
        ..HEADER
    };
    assert_corrupt(&payload(6, two, &[0; 9]), "half a group");
    assert_corrupt(&payload(8, HEADER, &[]), "no stream");
    assert!(
        decompress(Id::RICEPP, &payload(0, HEADER, &[]), 0)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn little_data_announces_no_large_size() {
    // 4 bits can stand for 1 KiB, but no more.
    let header = RiceppBlockHeader {
        block_size: 512,
        ..HEADER
    };
    let announced = |size: [u8; 3], stream: &[u8]| {
        let payload = [&size[..], &header.encode(), stream].concat();
        decompress(Id::RICEPP, &payload, LIMIT)
    };
    // 64 KiB in 64 blocks: 16 + 64 * 4 bits.
    let size = [0x80, 0x80, 0x04];
    assert_eq!(announced(size, &[0; 34]).unwrap(), vec![0; 64 << 10]);
    assert!(matches!(
        announced(size, &[0; 33]),
        Err(Error::Corrupt { .. })
    ));
}

#[test]
fn differences_at_the_limit_and_beyond() {
    // Start value 0, k = 0, the first delta 0, then a run of `zeros`.
    let run = |zeros: usize, low: usize, rest: &str| {
        let code: String = (0..4)
            .map(|bit| if (low + 1) >> bit & 1 == 1 { '1' } else { '0' })
            .collect();
        let bits = format!(
            "{:016} {code} 1{} {}1{rest} {:064}",
            0,
            "0".repeat(low),
            "0".repeat(zeros),
            0
        );
        let stream = packed(&bits);
        let outcome = decompress(Id::RICEPP, &payload(4, HEADER, &stream), LIMIT);
        outcome.map(|raw| u16::from_be_bytes([raw[2], raw[3]]))
    };
    for zeros in [
        0usize, 1, 2, 30, 54, 55, 56, 57, 63, 64, 65, 200, 1000, 65534,
    ] {
        let expected = if zeros % 2 == 0 {
            zeros / 2
        } else {
            65536 - zeros.div_ceil(2)
        };
        assert_eq!(usize::from(run(zeros, 0, "").unwrap()), expected, "{zeros}");
    }
    assert_eq!(run(65535, 0, "").unwrap(), 0x8000);
    // 7 * 8192 + 8191 is the largest difference.
    assert_eq!(run(7, 13, "1111111111111").unwrap(), 0x8000);
    for (zeros, low) in [
        (65536, 0),
        (70000, 0),
        (8, 13),
        (40, 13),
        (50, 13),
        (100, 13),
    ] {
        let error = run(zeros, low, &"0".repeat(low)).unwrap_err();
        assert!(error.to_string().contains("16 bits"), "{zeros}: {error}");
    }
    let endless = packed(&format!("{:016} 1000 1 {}", 0, "0".repeat(800_000)));
    assert_corrupt(&payload(4, HEADER, &endless), "zeros only");
}

#[test]
fn what_the_encoder_does_not_take() {
    let raw = pixels(&BIG, 5000, 1);
    let take = |raw: &[u8], content: Content| {
        let result = compressor("ricepp").compress_with(raw, &content).unwrap();
        assert_eq!(result.data.is_none(), result.id == Id::NONE);
        result.id
    };
    assert_eq!(take(&raw, Content::Pixels(BIG)), Id::RICEPP);
    assert_eq!(take(&raw, Content::Bytes), Id::NONE);
    assert_eq!(take(&raw[1..], Content::Pixels(BIG)), Id::NONE);
    let two = PixelFormat {
        components: 2,
        ..BIG
    };
    assert_eq!(take(&raw, Content::Pixels(two)), Id::RICEPP);
    assert_eq!(take(&raw[2..], Content::Pixels(two)), Id::NONE);
    let dirty = PixelFormat {
        unused_lsb: 2,
        ..BIG
    };
    assert_eq!(take(&raw, Content::Pixels(dirty)), Id::NONE);
    for wrong in [
        PixelFormat {
            components: 3,
            ..BIG
        },
        PixelFormat {
            components: 0,
            ..BIG
        },
        PixelFormat {
            unused_lsb: 9,
            ..BIG
        },
    ] {
        assert_eq!(take(&raw, Content::Pixels(wrong)), Id::NONE, "{wrong:?}");
    }
    for size in [0, 1, 2, 4, 20] {
        assert_eq!(take(&raw[..size], Content::Pixels(BIG)), Id::NONE);
    }
    assert_eq!(take(&noise(9000, 2), Content::Pixels(BIG)), Id::NONE);
}

#[test]
fn one_stray_bit_sends_the_block_to_the_fallback() {
    let format = PixelFormat {
        unused_lsb: 3,
        ..BIG
    };
    let content = Content::Pixels(format);
    let clean = pixels(&format, 4000, 3);
    let zstd: CodecSpec = "zstd:level=5".parse().unwrap();
    let mut compressor = compressor("ricepp").with_fallback(&zstd);
    let result = compressor.compress_with(&clean, &content).unwrap();
    assert_eq!(result.id, Id::RICEPP);
    for place in [1, 4001, 7999] {
        let mut raw = clean.clone();
        raw[place] ^= 4;
        let result = compressor.compress_with(&raw, &content).unwrap();
        assert_eq!(result.id, Id::ZSTD, "{place}");
        let payload = result.data.unwrap();
        assert!(decompress(Id::ZSTD, &payload, LIMIT).unwrap() == raw);
    }
    // What no codec makes smaller is stored.
    let result = compressor.compress_with(&noise(600, 4), &content).unwrap();
    assert_eq!((result.id, result.data), (Id::NONE, None));
    let result = compressor.compress(&text(600, 4)).unwrap();
    assert_eq!(result.id, Id::ZSTD);
}

#[test]
fn requirements_and_granularity() {
    let spec: CodecSpec = "ricepp".parse().unwrap();
    let two = PixelFormat {
        components: 2,
        ..BIG
    };
    assert_eq!(spec.requires().to_string(), "16-bit pixels");
    assert!(spec.accepts(&Content::Pixels(two)) && !spec.accepts(&Content::Bytes));
    assert_eq!(spec.granularity(&Content::Pixels(two)), 4);
    assert_eq!(spec.granularity(&Content::Bytes), 1);
    let zstd: CodecSpec = "zstd".parse().unwrap();
    assert!(zstd.accepts(&Content::Pixels(two)) && zstd.accepts(&Content::Bytes));
    assert_eq!(zstd.granularity(&Content::Pixels(two)), 1);
}

fn formats() -> impl Strategy<Value = PixelFormat> {
    (1..=2u8, 0..=8u8, any::<bool>()).prop_map(|(components, unused_lsb, big)| PixelFormat {
        components,
        unused_lsb,
        byte_order: if big {
            ByteOrder::Big
        } else {
            ByteOrder::Little
        },
    })
}

/// Pixels of very different kinds, block by block: regular, gentle, rough, anything.
fn data(format: PixelFormat, seed: u64, groups: usize) -> Vec<u8> {
    let mut random = Random(seed | 1);
    let mut value = 0u16;
    let mut raw = Vec::new();
    let mut range = 1;
    for i in 0..groups * usize::from(format.components) {
        if i % 50 == 0 {
            range = 1u64 << ((random.next() >> 20) % 17);
        }
        value = value.wrapping_add(((random.next() >> 30) % range) as u16);
        let unit = value << format.unused_lsb;
        raw.extend_from_slice(&match format.byte_order {
            ByteOrder::Little => unit.to_le_bytes(),
            ByteOrder::Big => unit.to_be_bytes(),
        });
    }
    raw
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn round_trips(
        format in formats(),
        seed: u64,
        groups in 1..3000usize,
        block_size in prop_oneof![Just(16u32), Just(128), Just(512), 16..=512u32],
        step in prop_oneof![1..64usize, 1..5000usize],
    ) {
        let raw = data(format, seed, groups);
        let content = Content::Pixels(format);
        let spec = format!("ricepp:block_size={block_size}");
        let result = compressor(&spec).compress_with(&raw, &content).unwrap();
        let Some(payload) = result.data else {
            return Ok(());
        };
        prop_assert!(payload.len() < raw.len());
        prop_assert_eq!(Content::of_payload(Id::RICEPP, &payload).unwrap(), content);
        let limit = raw.len() as u64;
        prop_assert!(decompress(Id::RICEPP, &payload, limit).unwrap() == raw);
        prop_assert!(decode_in_steps(Id::RICEPP, &payload, limit, step).unwrap() == raw);
        for cut in [1, 2, 9, payload.len() / 2] {
            let short = &payload[..payload.len() - cut.min(payload.len())];
            prop_assert!(decompress(Id::RICEPP, short, limit).is_err());
        }
    }

    #[test]
    fn damage_is_noticed_or_changes_pixels_only(
        format in formats(),
        seed: u64,
        hits in proptest::collection::vec((any::<u16>(), 0..8u32), 1..4),
    ) {
        let raw = data(format, seed, 700);
        let result = compressor("ricepp:block_size=32")
            .compress_with(&raw, &Content::Pixels(format))
            .unwrap();
        let Some(mut payload) = result.data else {
            return Ok(());
        };
        for (place, bit) in hits {
            let place = usize::from(place) % payload.len();
            payload[place] ^= 1 << bit;
        }
        let limit = 1 << 16;
        let whole = decompress(Id::RICEPP, &payload, limit).ok();
        let steps = decode_in_steps(Id::RICEPP, &payload, limit, 37).ok();
        prop_assert_eq!(&whole, &steps);
        prop_assert!(whole.is_none_or(|raw| raw.len() as u64 <= limit));
    }
}

#[test]
fn earlier_blocks_do_not_matter() {
    let content = Content::Pixels(BIG);
    let mut reused = compressor("ricepp:block_size=64");
    for seed in [5, 6, 7] {
        let raw = pixels(&BIG, 3000 / seed, seed as u64);
        let (_, fresh) = compress_with("ricepp:block_size=64", &raw, &content);
        let result = reused.compress_with(&raw, &content).unwrap();
        assert_eq!(result.data, Some(fresh));
    }
}
