//! FLAC payloads: what they are made of, every layout of samples, and what damage does to them.

use crate::common::{audio, compress_with, compressor, decode_in_steps, noise, put_sample, text};
use proptest::prelude::*;
use redwarfs_codec::{
    ByteOrder, CodecSpec, CompressionId as Id, Content, Decoder, Error, Padding, PcmFormat,
    decompress, raw_size,
};

const LIMIT: u64 = 1 << 30;

const CD: PcmFormat = PcmFormat {
    channels: 2,
    bits: 16,
    bytes: 2,
    byte_order: ByteOrder::Little,
    signed: true,
    padding: Padding::Lsb,
};

const ORDERS: [ByteOrder; 2] = [ByteOrder::Little, ByteOrder::Big];
const PADDINGS: [Padding; 2] = [Padding::Msb, Padding::Lsb];

fn encode(raw: &[u8], format: PcmFormat) -> Vec<u8> {
    let (id, payload) = compress_with("flac", raw, &Content::Pcm(format));
    assert_eq!(id, Id::FLAC);
    payload
}

fn decode(payload: &[u8]) -> Result<Vec<u8>, Error> {
    let whole = decompress(Id::FLAC, payload, LIMIT);
    let steps = decode_in_steps(Id::FLAC, payload, LIMIT, 1000);
    match (&whole, &steps) {
        (Ok(whole), Ok(steps)) => assert!(whole == steps),
        (Err(_), Err(_)) => {}
        _ => panic!("{:?} at once, {:?} in steps", whole.is_ok(), steps.is_ok()),
    }
    whole
}

fn assert_corrupt(payload: &[u8], what: &str) {
    let outcome = decode(payload);
    assert!(
        matches!(outcome, Err(Error::Corrupt { .. })),
        "{what}: {outcome:?}"
    );
}

/// A payload cut into its parts: size, header, STREAMINFO block, frames.
struct Parts {
    size: Vec<u8>,
    header: Vec<u8>,
    info: Vec<u8>,
    frames: Vec<u8>,
}

impl Parts {
    fn of(payload: &[u8]) -> Self {
        let marker = payload.windows(4).position(|w| w == b"fLaC").unwrap();
        let size = payload.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
        let mut at = marker + 4;
        loop {
            let last = payload[at] & 0x80 != 0;
            at += 4 + u32::from_be_bytes([0, payload[at + 1], payload[at + 2], payload[at + 3]])
                as usize;
            if last {
                break;
            }
        }
        Self {
            size: payload[..size].to_vec(),
            header: payload[size..marker].to_vec(),
            info: payload[marker + 4..][..38].to_vec(),
            frames: payload[at..].to_vec(),
        }
    }

    /// Joins them, with more metadata blocks behind STREAMINFO.
    fn join(&self, more: &[(u8, &[u8])]) -> Vec<u8> {
        let mut blocks = vec![(self.info[0] & 0x7f, &self.info[4..])];
        blocks.extend_from_slice(more);
        let mut payload = [&self.size, &self.header, &b"fLaC"[..]].concat();
        for (i, (kind, data)) in blocks.iter().enumerate() {
            let last = if i + 1 == blocks.len() { 0x80 } else { 0 };
            payload.push(kind | last);
            payload.extend_from_slice(&(data.len() as u32).to_be_bytes()[1..]);
            payload.extend_from_slice(data);
        }
        payload.extend_from_slice(&self.frames);
        payload
    }
}

#[test]
fn fronts_are_as_other_writers_make_them() {
    let mono = |bits, bytes, byte_order, signed| PcmFormat {
        channels: 1,
        bits,
        bytes,
        byte_order,
        signed,
        padding: Padding::Lsb,
    };
    let stereo = |format| PcmFormat {
        channels: 2,
        ..format
    };
    use ByteOrder::{Big, Little};
    let table: [(PcmFormat, usize, &[u8]); 4] = [
        (
            mono(16, 2, Little, true),
            6000,
            &[0xf0, 0x2e, 0x14, 0x02, 0x13, 0x10, 0x13, 0x61, 0x00],
        ),
        (
            stereo(mono(16, 2, Big, true)),
            24000,
            &[0xc0, 0xbb, 0x01, 0x14, 0x04, 0x13, 0x10, 0x13, 0xe1, 0x00],
        ),
        (
            mono(8, 1, Little, false),
            3000,
            &[0xb8, 0x17, 0x14, 0x02, 0x13, 0x08, 0x13, 0x20, 0x00],
        ),
        (
            stereo(mono(20, 4, Little, true)),
            24000,
            &[0xc0, 0xbb, 0x01, 0x14, 0x04, 0x13, 0x14, 0x13, 0x63, 0x00],
        ),
    ];
    for (format, size, front) in table {
        let raw = audio(&format, size / format.frame_bytes(), 1);
        assert_eq!(raw.len(), size);
        let payload = encode(&raw, format);
        let stream = payload.strip_prefix(front).expect("the front");
        assert_eq!(stream[..8], *b"fLaC\0\0\0\x22");
        let info = &stream[8..42];
        // Rate (20 bits), channels - 1 (3), bits - 1 (5), samples (36), MD5.
        let packed = u64::from_be_bytes(*info[10..].first_chunk().unwrap());
        assert_eq!(packed >> 44, 48000);
        assert_eq!((packed >> 41 & 7) + 1, u64::from(format.channels));
        assert_eq!((packed >> 36 & 31) + 1, u64::from(format.bits));
        assert_eq!(packed & 0xf_ffff_ffff, (size / format.frame_bytes()) as u64);
        assert_ne!(info[18..], [0; 16]);
        assert_eq!(raw_size(Id::FLAC, &payload).unwrap(), size as u64);
        assert_eq!(
            Content::of_payload(Id::FLAC, &payload).unwrap(),
            Content::Pcm(format)
        );
        assert!(decode(&payload).unwrap() == raw);
    }
}

#[test]
fn every_layout_of_samples() {
    let mut count = 0;
    for bytes in 1..=4u8 {
        for bits in 8..=8 * bytes {
            // Near the size of the container, and where a byte begins.
            if 8 * bytes - bits > 5 && bits % 8 > 1 {
                continue;
            }
            for (byte_order, padding, signed) in ORDERS.into_iter().flat_map(|order| {
                PADDINGS
                    .into_iter()
                    .flat_map(move |padding| [(order, padding, true), (order, padding, false)])
            }) {
                let format = PcmFormat {
                    channels: 1 + bits % 3,
                    bits,
                    bytes,
                    byte_order,
                    signed,
                    padding,
                };
                let raw = audio(&format, 1500, u64::from(bits));
                let payload = encode(&raw, format);
                assert!(decode(&payload).unwrap() == raw, "{format:?}");
                count += 1;
            }
        }
    }
    assert!(count > 200, "{count} layouts");
}

#[test]
fn extreme_samples_and_all_channel_counts() {
    for channels in 1..=8 {
        for (bits, bytes) in [(8, 1), (16, 2), (24, 3), (32, 4)] {
            let format = PcmFormat {
                channels,
                bits,
                bytes,
                ..CD
            };
            let (low, high) = (-1i64 << (bits - 1), (1i64 << (bits - 1)) - 1);
            let mut raw = Vec::new();
            // Long runs, then jumps over the whole range, in opposite directions per channel.
            for i in 0..6000 {
                for channel in 0..i64::from(channels) {
                    let jump = i > 5500 && (i + channel) % 2 == 0;
                    put_sample(&format, if jump { low } else { high }, &mut raw);
                }
            }
            let payload = encode(&raw, format);
            assert!(decode(&payload).unwrap() == raw, "{format:?}");
        }
    }
}

#[test]
fn settings_reach_the_encoder() {
    let raw = audio(&CD, 30_000, 3);
    let content = Content::Pcm(CD);
    // The block size of the first frames is in STREAMINFO.
    for (spec, block_size) in [
        ("flac:level=0", 1152),
        ("flac:level=2", 1152),
        ("flac:level=3", 4096),
        ("flac:level=8", 4096),
        ("flac:level=8:exhaustive", 4096),
    ] {
        let (_, payload) = compress_with(spec, &raw, &content);
        let info = Parts::of(&payload).info;
        assert_eq!(u16::from_be_bytes([info[4], info[5]]), block_size, "{spec}");
        assert!(decode(&payload).unwrap() == raw, "{spec}");
    }
    // A tone, where predictors differ.
    let mut tone = Vec::new();
    for i in 0..40_000 {
        let t = f64::from(i);
        let value = 9000.0 * (t / 7.0).sin() + 5000.0 * (t / 31.0).sin() + 800.0 * (t * 1.3).sin();
        put_sample(&CD, value as i64, &mut tone);
        put_sample(&CD, (value * 0.7) as i64, &mut tone);
    }
    let size = |spec| compress_with(spec, &tone, &content).1.len();
    let sizes = [
        size("flac:level=8:exhaustive"),
        size("flac:level=5"),
        size("flac:level=0"),
    ];
    assert!(sizes[0] <= sizes[1] && sizes[1] < sizes[2], "{sizes:?}");
}

#[test]
fn what_the_encoder_does_not_take() {
    let raw = audio(&CD, 4000, 4);
    let take = |raw: &[u8], content: Content| {
        let result = compressor("flac").compress_with(raw, &content).unwrap();
        assert_eq!(result.data.is_none(), result.id == Id::NONE);
        result.id
    };
    assert_eq!(take(&raw, Content::Pcm(CD)), Id::FLAC);
    assert_eq!(take(&raw, Content::Bytes), Id::NONE);
    for cut in 1..4 {
        assert_eq!(take(&raw[cut..], Content::Pcm(CD)), Id::NONE, "{cut}");
    }
    for size in [0, 1, 4, 40, 80] {
        assert_eq!(take(&raw[..size], Content::Pcm(CD)), Id::NONE, "{size}");
    }
    assert_eq!(take(&noise(40_000, 5), Content::Pcm(CD)), Id::NONE);
    for wrong in [
        PcmFormat { channels: 0, ..CD },
        PcmFormat { channels: 9, ..CD },
        PcmFormat { bits: 7, ..CD },
        PcmFormat { bits: 17, ..CD },
        PcmFormat { bytes: 0, ..CD },
        PcmFormat { bytes: 5, ..CD },
    ] {
        assert_eq!(take(&raw, Content::Pcm(wrong)), Id::NONE, "{wrong:?}");
    }
}

#[test]
fn one_stray_padding_bit_sends_the_block_to_the_fallback() {
    let zstd: CodecSpec = "zstd:level=5".parse().unwrap();
    for (padding, stray) in [(Padding::Lsb, 0x01), (Padding::Msb, 0x10)] {
        for signed in [false, true] {
            let format = PcmFormat {
                channels: 1,
                bits: 20,
                bytes: 4,
                padding,
                signed,
                ..CD
            };
            let content = Content::Pcm(format);
            let clean = audio(&format, 20_000, 6);
            let mut compressor = compressor("flac").with_fallback(&zstd);
            let result = compressor.compress_with(&clean, &content).unwrap();
            assert_eq!(result.id, Id::FLAC);
            for place in [0, 40_000, 79_996] {
                let mut raw = clean.clone();
                let byte = if padding == Padding::Lsb { 0 } else { 3 };
                raw[place + byte] ^= stray;
                let result = compressor.compress_with(&raw, &content).unwrap();
                assert_eq!(result.id, Id::ZSTD, "{padding:?} {place}");
                let payload = result.data.unwrap();
                assert!(decompress(Id::ZSTD, &payload, LIMIT).unwrap() == raw);
            }
        }
    }
    let mut compressor = compressor("flac").with_fallback(&zstd);
    let result = compressor.compress(&text(4000, 7)).unwrap();
    assert_eq!(result.id, Id::ZSTD);
    let result = compressor.compress_with(&noise(400, 7), &Content::Pcm(CD));
    assert_eq!(result.unwrap().id, Id::NONE);
}

#[test]
fn requirements_and_granularity() {
    let spec: CodecSpec = "flac:level=3".parse().unwrap();
    let content = Content::Pcm(PcmFormat { channels: 6, ..CD });
    assert_eq!(spec.requires().to_string(), "PCM audio");
    assert!(spec.accepts(&content) && !spec.accepts(&Content::Bytes));
    assert!(!spec.accepts(&Content::Pcm(PcmFormat { channels: 9, ..CD })));
    assert_eq!(spec.granularity(&content), 12);
}

#[test]
fn metadata_is_skipped_and_its_claims_are_not_believed() {
    let raw = audio(&CD, 9000, 8);
    let mut parts = Parts::of(&encode(&raw, CD));
    assert!(decode(&parts.join(&[])).unwrap() == raw);
    // Padding, application, seek table, comment, cue sheet, picture, an unknown type.
    let junk = noise(300, 9);
    let more: Vec<(u8, &[u8])> = [1, 2, 3, 4, 5, 6, 77]
        .into_iter()
        .map(|kind| (kind, &junk[..usize::from(kind) * 3]))
        .collect();
    assert!(decode(&parts.join(&more)).unwrap() == raw);
    for (what, kind, data) in [
        ("invalid type", 0x7f, &junk[..]),
        ("second STREAMINFO", 0, &parts.info.clone()[4..]),
    ] {
        assert_corrupt(&parts.join(&[(kind, data)]), what);
    }
    let trailing = [&parts.join(&[])[..], &junk].concat();
    assert!(decode(&trailing).unwrap() == raw);

    // Samples and MD5: none, and wrong ones.
    for value in [0, 0xff] {
        parts.info[4 + 14..].fill(value);
        assert!(decode(&parts.join(&[])).unwrap() == raw);
    }
    // The last metadata block is longer than the stream.
    let whole = parts.join(&[]);
    let frames = parts.frames.len();
    let mut long = whole[..whole.len() - frames].to_vec();
    let block = long.len() - 38;
    long[block] &= 0x7f;
    long.extend_from_slice(&[0x81, 0xff, 0xff, 0xff]);
    long.extend_from_slice(&parts.frames);
    assert_corrupt(&long, "long metadata block");
    // No STREAMINFO, or a short one.
    let front = parts.size.len() + parts.header.len();
    for kind in [1, 4, 0x81] {
        let mut other = whole.clone();
        other[front + 4] = kind;
        assert_corrupt(&other, "no STREAMINFO");
    }
    let mut short = whole.clone();
    short[front + 7] = 33;
    assert_corrupt(&short, "short STREAMINFO");
    let mut nothing = whole.clone();
    nothing[front] = b'F';
    assert_corrupt(&nothing, "no marker");
    assert_corrupt(&whole[..front + 42], "no frames");
}

#[test]
fn frames_have_to_be_what_the_header_says() {
    let raw = audio(&CD, 9000, 10);
    let parts = Parts::of(&encode(&raw, CD));
    let with = |format: PcmFormat, size: usize| {
        let mut payload = Vec::new();
        let mut rest = size;
        while rest >= 0x80 {
            payload.push(rest as u8 | 0x80);
            rest >>= 7;
        }
        payload.push(rest as u8);
        let sample = format.bytes - 1;
        let flags = sample
            | 0x40
            | if format.padding == Padding::Lsb {
                0x20
            } else {
                0
            };
        payload.extend_from_slice(&[0x14, format.channels * 2, 0x13, format.bits, 0x13, flags, 0]);
        payload.extend_from_slice(&parts.join(&[])[parts.size.len() + parts.header.len()..]);
        payload
    };
    assert!(decode(&with(CD, raw.len())).unwrap() == raw);
    for (what, format) in [
        ("channels", PcmFormat { channels: 1, ..CD }),
        ("channels", PcmFormat { channels: 4, ..CD }),
        ("bits", PcmFormat { bits: 15, ..CD }),
        ("bits", PcmFormat { bits: 8, ..CD }),
    ] {
        assert_corrupt(&with(format, raw.len()), what);
    }
    assert_corrupt(&with(CD, raw.len() - 4), "more than announced");
    assert_corrupt(&with(CD, raw.len() + 4), "less than announced");
    assert_corrupt(&with(CD, raw.len() - 1), "part of a frame");
    assert_corrupt(&with(CD, 0x3fff_fff0), "far less than announced");
    assert!(decode(&with(CD, 0)).unwrap().is_empty());
    // 16 bits in wider containers: the same samples, more bytes.
    let wide = PcmFormat {
        bytes: 4,
        padding: Padding::Msb,
        ..CD
    };
    let wide = decode(&with(wide, raw.len() * 2)).unwrap();
    assert!(wide.chunks(4).zip(raw.chunks(2)).all(|(w, r)| &w[..2] == r));
}

#[test]
fn a_hole_between_frames_is_damage() {
    let raw = audio(&CD, 40_000, 11);
    let payload = encode(&raw, CD);
    let parts = Parts::of(&payload);
    // Frames start with a sync code and have a fixed block size of 4096 here.
    let starts: Vec<usize> = parts
        .frames
        .windows(5)
        .enumerate()
        .filter(|(_, w)| w[..2] == [0xff, 0xf8] && w[2] >> 4 == 0xc)
        .map(|(at, _)| at)
        .collect();
    assert!(starts.len() >= 9, "{starts:?}");
    let mut holed = Parts::of(&payload);
    holed.frames.drain(starts[3]..starts[5]);
    assert_corrupt(&holed.join(&[]), "two frames are missing");
    // What comes before it is delivered.
    let mut decoder = Decoder::new(Id::FLAC, holed.join(&[]), LIMIT).unwrap();
    let mut out = vec![0; 3 * 4096 * 4];
    decoder.fill(&mut out).unwrap();
    assert!(out == raw[..out.len()]);
    let mut rest = vec![0; 4096];
    assert!(decoder.fill(&mut rest).is_err());
    assert!(decoder.fill(&mut rest).is_err());
}

#[test]
fn cut_and_damaged_payloads() {
    let format = PcmFormat { channels: 1, ..CD };
    let raw = audio(&format, 3000, 12);
    let payload = encode(&raw, format);
    for size in (0..payload.len()).rev().step_by(7) {
        assert_corrupt(&payload[..size], "cut off");
    }
    let frames = payload.len() - Parts::of(&payload).frames.len();
    for bit in (0..payload.len() * 8).step_by(5) {
        let mut damaged = payload.clone();
        damaged[bit / 8] ^= 1 << (bit % 8);
        // The library's checksums cover the frames.
        match decode(&damaged) {
            Ok(out) => assert!(bit / 8 < frames || out == raw, "bit {bit}"),
            Err(e) => assert!(!matches!(e, Error::Limit(_)) || bit < 24, "{e}"),
        }
    }
}

#[test]
fn decoding_can_be_given_up_anywhere() {
    let raw = audio(&CD, 20_000, 13);
    let payload = encode(&raw, CD);
    for read in [0, 1, 5000, 16_384, 79_999] {
        let mut decoder = Decoder::new(Id::FLAC, &payload[..], LIMIT).unwrap();
        let mut out = vec![0; read];
        decoder.fill(&mut out).unwrap();
        assert!(out == raw[..read]);
        assert!(decoder.is_incremental());
    }
    // From another thread.
    let mut decoder = Decoder::new(Id::FLAC, &payload[..], LIMIT).unwrap();
    decoder.fill(&mut [0; 100]).unwrap();
    let rest = std::thread::spawn(move || {
        let mut rest = vec![0; 79_900];
        decoder.fill(&mut rest).map(|()| rest)
    });
    assert!(rest.join().unwrap().unwrap() == raw[100..]);
}

fn formats() -> impl Strategy<Value = PcmFormat> {
    (
        1..=8u8,
        1..=4u8,
        0..25u8,
        any::<bool>(),
        any::<bool>(),
        any::<bool>(),
    )
        .prop_map(|(channels, bytes, spare, big, signed, lsb)| PcmFormat {
            channels,
            bits: (8 * bytes).saturating_sub(spare).max(8),
            bytes,
            byte_order: ORDERS[usize::from(big)],
            signed,
            padding: PADDINGS[usize::from(lsb)],
        })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn round_trips(
        format in formats(),
        frames in prop_oneof![1..40usize, 1..9000usize],
        seed: u64,
        level in 0..=8,
        step in prop_oneof![1..64usize, 1..100_000usize],
    ) {
        let raw = audio(&format, frames, seed);
        let content = Content::Pcm(format);
        let spec = format!("flac:level={level}");
        let result = compressor(&spec).compress_with(&raw, &content).unwrap();
        let Some(payload) = result.data else {
            return Ok(());
        };
        prop_assert!(payload.len() < raw.len());
        prop_assert_eq!(Content::of_payload(Id::FLAC, &payload).unwrap(), content);
        let limit = raw.len() as u64;
        prop_assert!(decompress(Id::FLAC, &payload, limit).unwrap() == raw);
        prop_assert!(decode_in_steps(Id::FLAC, &payload, limit, step).unwrap() == raw);
    }

    /// Anything at all, said to be audio, comes back exactly, by whatever codec.
    #[test]
    fn any_bytes_said_to_be_audio(
        format in formats(),
        bytes in proptest::collection::vec(any::<u8>(), 0..2000),
        repeat in 1..20usize,
    ) {
        let raw = bytes.repeat(repeat);
        let zstd: CodecSpec = "zstd:level=1".parse().unwrap();
        let result = compressor("flac")
            .with_fallback(&zstd)
            .compress_with(&raw, &Content::Pcm(format))
            .unwrap();
        let payload = result.data.unwrap_or_else(|| raw.clone());
        prop_assert!(decompress(result.id, &payload, LIMIT).unwrap() == raw);
    }
}

#[test]
fn frames_that_no_encoder_here_writes() {
    // Verbatim, constant, and a fixed predictor with a Rice code; 20 samples of 8 bits each.
    let seed = include_bytes!("../../../fuzz/corpus/codecs/flac-three-frames");
    let coded = [
        0, -1, 1, 5, -9, 2, 2, -3, 0, 7, 1, -2, 4, 4, -6, 8, 0, 1, -1, 3i8,
    ];
    let raw: Vec<u8> = (0..20u8)
        .map(|i| i.wrapping_mul(7))
        .chain([0x55; 20])
        .chain(coded.map(|sample| sample as u8))
        .collect();
    assert_eq!(seed[0], Id::FLAC.0 as u8);
    assert_eq!(decode(&seed[1..]).unwrap(), raw);
}
