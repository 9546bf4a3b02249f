//! Damage to the payloads of blocks where their codecs keep sizes, tables and flags. Checksums
//! inside of a payload are repaired as well.

use redwarfs_codec::{CodecSpec, decompress};
use redwarfs_format::section::CompressionId;

use super::{Part, Rng, bytes};

/// Largest raw size of a block that is decoded in order to be encoded again (bytes).
const RAW_LIMIT: u64 = 1 << 24;

/// The codecs that can encode any bytes.
pub const CODECS: [&str; 6] = [
    "null",
    "zstd:level=1",
    "lzma:level=0",
    "lz4",
    "lz4hc:level=3",
    "brotli:quality=1",
];

/// Damages the header or a table of a payload.
pub fn header(part: &mut Part, rng: &mut Rng) {
    let data = &mut part.payload;
    match part.compression {
        CompressionId::LZ4 | CompressionId::LZ4HC => {
            let old = data.first_chunk().map_or(0, |b| u32::from_le_bytes(*b));
            let new = near(u64::from(old), rng) as u32;
            let size = data.len().min(4);
            data[..size].copy_from_slice(&new.to_le_bytes()[..size]);
        }
        CompressionId::BROTLI => size_prefix(data, rng),
        CompressionId::FLAC | CompressionId::RICEPP => {
            if rng.one_in(2) {
                size_prefix(data, rng);
            } else {
                // The parameters follow the size. The stream starts after byte 16.
                let mut head: Vec<u8> = data.drain(..data.len().min(24)).collect();
                bytes(&mut head, rng);
                data.splice(..0, head);
            }
        }
        CompressionId::ZSTD => zstd_frame(data, rng),
        CompressionId::LZMA => xz_stream(data, rng),
        _ => {
            let keep = near(data.len() as u64, rng).min(data.len() as u64 + 4096);
            data.resize(keep as usize, 0x5a);
        }
    }
}

/// Encodes the contents of a block again: with another codec, another length, or both.
pub fn recode(part: &mut Part, rng: &mut Rng) {
    let Ok(mut raw) = decompress(part.compression, &part.payload, RAW_LIMIT) else {
        return header(part, rng);
    };
    if rng.one_in(2) {
        let len = near(raw.len() as u64, rng).min(RAW_LIMIT);
        raw.resize(len as usize, 0);
    }
    set_raw(part, &raw, CODECS[rng.below(CODECS.len())]);
}

/// Gives a block these bytes, encoded with `codec`.
pub fn set_raw(part: &mut Part, raw: &[u8], codec: &str) {
    let spec: CodecSpec = codec.parse().expect("a codec that exists");
    let Ok(out) = spec.compressor().compress(raw) else {
        return;
    };
    part.compression = out.id;
    part.payload = out.data.unwrap_or_else(|| raw.to_vec());
}

/// A size close to another, or an edge case.
fn near(old: u64, rng: &mut Rng) -> u64 {
    match rng.below(6) {
        0 => old.wrapping_add(1),
        1 => old.wrapping_sub(1),
        2 => old / 2,
        3 => old.wrapping_mul(2),
        _ => rng.edge(usize::try_from(old).unwrap_or(1)),
    }
}

/// Changes an unsigned LEB128 number at the start.
fn size_prefix(data: &mut Vec<u8>, rng: &mut Rng) {
    let end = data
        .iter()
        .position(|b| b & 0x80 == 0)
        .map_or(data.len(), |at| at + 1);
    let old = data[..end]
        .iter()
        .take(9)
        .rev()
        .fold(0u64, |value, b| value << 7 | u64::from(b & 0x7f));
    let mut value = near(old, rng);
    let mut out = Vec::new();
    let padding = if rng.one_in(4) { rng.below(12) } else { 0 };
    while value > 0x7f || out.len() < padding {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
    data.splice(..end, out);
}

/// Changes the descriptor, the window, the content size or a block header of a zstd frame.
fn zstd_frame(data: &mut Vec<u8>, rng: &mut Rng) {
    const SIZES: [usize; 4] = [0, 2, 4, 8];
    let Some(&descriptor) = data.get(4) else {
        return bytes(data, rng);
    };
    let single = descriptor & 0x20 != 0;
    let window = usize::from(!single);
    let dictionary = [0, 1, 2, 4][usize::from(descriptor & 3)];
    let size_at = 5 + window + dictionary;
    let mut size_len = SIZES[usize::from(descriptor >> 6)];
    if size_len == 0 && single {
        size_len = 1;
    }
    let first_block = size_at + size_len;
    match rng.below(5) {
        0 => data[4] ^= 1 << rng.below(8),
        1 if window == 1 && data.len() > 5 => data[5] = rng.bits() as u8,
        1 | 2 if data.len() >= first_block && size_len > 0 => {
            let mut old = [0; 8];
            old[..size_len].copy_from_slice(&data[size_at..first_block]);
            let new = near(u64::from_le_bytes(old), rng).to_le_bytes();
            data[size_at..first_block].copy_from_slice(&new[..size_len]);
        }
        3 if data.len() >= first_block + 3 => {
            let at = first_block + rng.below(3);
            data[at] ^= 1 << rng.below(8);
        }
        // Frames that may be skipped, or a second one.
        4 if rng.one_in(2) => {
            let length = near(4, rng) as u32;
            let mut skipped = 0x184d_2a50u32.to_le_bytes().to_vec();
            skipped.extend(length.to_le_bytes());
            skipped.extend(vec![0; length.min(64) as usize]);
            if rng.one_in(2) {
                data.splice(..0, skipped);
            } else {
                data.extend(skipped);
            }
        }
        4 => data.extend(data.clone()),
        _ => bytes(data, rng),
    }
}

/// Changes the stream flags, the block header, the index or the footer of an xz stream and
/// repairs their checksums.
fn xz_stream(data: &mut Vec<u8>, rng: &mut Rng) {
    const EDGE: usize = 12;
    let len = data.len();
    if len < 2 * EDGE + 8 {
        return bytes(data, rng);
    }
    let footer = len - EDGE;
    let word = |data: &[u8], at: usize| {
        let mut word = [0; 4];
        word.copy_from_slice(&data[at..at + 4]);
        u32::from_le_bytes(word) as usize
    };
    let seal = |data: &mut [u8], from: usize, to: usize, at: usize| {
        let sum = crc32(&data[from..to]).to_le_bytes();
        data[at..at + 4].copy_from_slice(&sum);
    };
    let any = |rng: &mut Rng| rng.bits() as u8;
    match rng.below(4) {
        0 => {
            data[6 + rng.below(2)] = any(rng) & 0x0f;
            seal(data, 6, 8, 8);
            if rng.one_in(2) {
                data.copy_within(6..8, footer + 8);
                seal(data, footer + 4, footer + 10, footer);
            }
        }
        1 => {
            let size = (usize::from(data[EDGE]) + 1) * 4;
            let end = EDGE + size;
            if end >= footer {
                return bytes(data, rng);
            }
            let at = EDGE + rng.below(size - 4);
            data[at] = if rng.one_in(2) {
                data[at] ^ 1 << rng.below(8)
            } else {
                any(rng)
            };
            let end = EDGE + (usize::from(data[EDGE]) + 1) * 4;
            if end < len {
                seal(data, EDGE, end - 4, end - 4);
            }
        }
        2 => {
            let size = (word(data, footer + 4) + 1) * 4;
            let Some(index) = footer.checked_sub(size) else {
                return bytes(data, rng);
            };
            let at = index + rng.below(size - 4);
            data[at] = if rng.one_in(2) {
                any(rng)
            } else {
                data[at].wrapping_add(1)
            };
            seal(data, index, footer - 4, footer - 4);
        }
        _ => {
            let value = near(word(data, footer + 4) as u64, rng) as u32;
            data[footer + 4..footer + 8].copy_from_slice(&value.to_le_bytes());
            seal(data, footer + 4, footer + 10, footer);
        }
    }
}

/// CRC-32 of IEEE 802.3, bit by bit: the inputs are a few bytes.
fn crc32(data: &[u8]) -> u32 {
    !data.iter().fold(u32::MAX, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            crc >> 1 ^ (0xedb8_8320 & (crc & 1).wrapping_neg())
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksums_are_those_of_xz() {
        assert_eq!(crc32(b"123456789"), 0xcbf4_3926);
    }

    #[test]
    fn damage_reaches_every_codec_and_passes_its_framing_sometimes() {
        let raw: Vec<u8> = (0..20_000u32).flat_map(|n| (n / 7).to_le_bytes()).collect();
        for codec in CODECS {
            let mut fails = 0;
            for seed in 0..200 {
                let mut part = Part {
                    ty: redwarfs_format::section::SectionType::BLOCK,
                    compression: CompressionId::NONE,
                    payload: Vec::new(),
                };
                set_raw(&mut part, &raw, codec);
                let mut rng = Rng::new(seed);
                if rng.one_in(3) {
                    recode(&mut part, &mut rng);
                } else {
                    header(&mut part, &mut rng);
                }
                let out = decompress(part.compression, &part.payload, 1 << 20);
                fails += u32::from(out.is_err());
            }
            assert!(
                (2..199).contains(&fails) || codec == "null",
                "{codec}: {fails} of 200"
            );
        }
    }
}
