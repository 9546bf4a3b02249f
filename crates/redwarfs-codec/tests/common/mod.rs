//! Data and codecs for the tests.

// Each test file uses a part of this.
#![allow(dead_code, unreachable_pub)]

use redwarfs_codec::{CodecSpec, CompressionId, Compressor};

/// Numbers from a fixed sequence (xorshift64*).
pub struct Random(pub u64);

impl Random {
    pub fn next(&mut self) -> u64 {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
}

/// Compressible bytes: words from a small set, with some noise in between.
pub fn text(size: usize, seed: u64) -> Vec<u8> {
    const WORDS: [&str; 12] = [
        "block ",
        "section ",
        "of ",
        "the ",
        "image ",
        "\n",
        "0123456789",
        "redwarfs",
        " <- ",
        "    ",
        "}\n",
        "entry",
    ];
    let mut random = Random(seed | 1);
    let mut data = Vec::with_capacity(size + 16);
    while data.len() < size {
        let value = random.next() >> 16;
        if value.is_multiple_of(31) {
            data.extend_from_slice(&value.to_le_bytes());
        } else {
            data.extend_from_slice(WORDS[value as usize % WORDS.len()].as_bytes());
        }
    }
    data.truncate(size);
    data
}

pub fn noise(size: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed | 1);
    (0..size).map(|_| (random.next() >> 40) as u8).collect()
}

pub fn compressor(spec: &str) -> Compressor {
    spec.parse::<CodecSpec>().unwrap().compressor()
}

/// Compresses `raw`, which must get smaller.
pub fn compress(spec: &str, raw: &[u8]) -> (CompressionId, Vec<u8>) {
    let result = compressor(spec).compress(raw).unwrap();
    (result.id, result.data.expect("the data is compressible"))
}
