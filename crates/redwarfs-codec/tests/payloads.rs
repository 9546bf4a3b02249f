//! What codecs make of a block is pinned: results that are kept for later builds have the number of these payloads in their key.
//! If one changes, [`PAYLOADS`] grows and the pins are replaced; a new version of a library changes its pins alone.

// Libraries search differently on other architectures.
#![cfg(target_arch = "x86_64")]

use crate::common::{audio, compress, compress_with, noise, pixels, text};
use redwarfs_codec::{ByteOrder, Content, PAYLOADS, Padding, PcmFormat, PixelFormat};

/// FNV-1a.
fn digest(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, |hash, &byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

#[test]
fn payloads_change_with_their_number_only() {
    let mut made = vec![(String::from("number"), u64::from(PAYLOADS))];
    let raw = [text(60_000, 1), noise(3000, 2), vec![0; 5000]].concat();
    for spec in [
        "zstd:level=3",
        "zstd:level=19",
        "lzma:level=6",
        "lz4",
        "lz4hc:level=9",
        "brotli:quality=5",
    ] {
        let (id, payload) = compress(spec, &raw);
        made.push((format!("{spec} {}", id.0), digest(&payload)));
    }
    for (components, unused_lsb, byte_order) in [(1, 0, ByteOrder::Big), (2, 0, ByteOrder::Little)]
    {
        let format = PixelFormat {
            components,
            unused_lsb,
            byte_order,
        };
        let raw = pixels(&format, 6000, 3);
        let (id, payload) = compress_with("ricepp", &raw, &Content::Pixels(format));
        made.push((format!("ricepp {components} {}", id.0), digest(&payload)));
    }
    let format = PcmFormat {
        channels: 2,
        bits: 16,
        bytes: 2,
        byte_order: ByteOrder::Little,
        signed: true,
        padding: Padding::Lsb,
    };
    let raw = audio(&format, 9000, 4);
    let (id, payload) = compress_with("flac:level=5", &raw, &Content::Pcm(format));
    made.push((format!("flac {}", id.0), digest(&payload)));
    let made: Vec<String> = made
        .into_iter()
        .map(|(what, digest)| format!("{what}: {digest:x}"))
        .collect();
    assert_eq!(made, PINS, "{made:#?}");
}

const PINS: [&str; 10] = [
    "number: 1",
    "zstd:level=3 2: 74f4f00e95056209",
    "zstd:level=19 2: 295e9411eaa4125b",
    "lzma:level=6 1: f969c218d5c41ce9",
    "lz4 3: a5e7e55805fbd75a",
    "lz4hc:level=9 3: d857af3924aeac1b",
    "brotli:quality=5 5: e2d3d054c04409f3",
    "ricepp 1 7: 1e8bd1d7ffdecd7a",
    "ricepp 2 7: 64e75c7d3bfdcbce",
    "flac 6: bcd4a618b67884ae",
];
