//! Data and codecs for the tests.

#![allow(unreachable_pub)]
#![allow(unsafe_code)] // decoding in place

use redwarfs_codec::{
    ByteOrder, CodecSpec, CompressionId, Compressor, Content, Decoder, Error, Padding, PcmFormat,
    PixelFormat,
};

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

/// Audio: for each channel a random walk, in containers as `format` has them.
pub fn audio(format: &PcmFormat, frames: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed | 1);
    let range = 1i64 << (format.bits - 1);
    let mut level = [0i64; 8];
    let mut data = Vec::with_capacity(frames * format.frame_bytes());
    for _ in 0..frames {
        for level in &mut level[..usize::from(format.channels)] {
            let step = (random.next() >> 40) as i64 % (range / 32) - range / 64;
            *level = (*level + step).clamp(-range, range - 1);
            put_sample(format, *level, &mut data);
        }
    }
    data
}

/// Appends a sample with the value `level`.
pub fn put_sample(format: &PcmFormat, level: i64, data: &mut Vec<u8>) {
    let bytes = usize::from(format.bytes);
    let bias = if format.signed {
        0
    } else {
        1i64 << (format.bits - 1)
    };
    let shift = match format.padding {
        Padding::Msb => 0,
        Padding::Lsb => 8 * format.bytes - format.bits,
    };
    let container = (level + bias) << shift;
    match format.byte_order {
        ByteOrder::Little => data.extend_from_slice(&container.to_le_bytes()[..bytes]),
        ByteOrder::Big => data.extend_from_slice(&container.to_be_bytes()[8 - bytes..]),
    }
}

/// Pixels that vary little, with some bright ones in between.
pub fn pixels(format: &PixelFormat, count: usize, seed: u64) -> Vec<u8> {
    let mut random = Random(seed | 1);
    let mut data = Vec::with_capacity(count * format.group_bytes());
    for i in 0..count * usize::from(format.components) {
        let noise = random.next() >> 40;
        let value = match noise % 97 {
            0 => noise as u16,
            _ => 1000 + (i / 300) as u16 + (noise % 41) as u16,
        };
        let value = value << format.unused_lsb;
        data.extend_from_slice(&match format.byte_order {
            ByteOrder::Little => value.to_le_bytes(),
            ByteOrder::Big => value.to_be_bytes(),
        });
    }
    data
}

/// Compresses `raw`, which must get smaller.
pub fn compress_with(spec: &str, raw: &[u8], content: &Content) -> (CompressionId, Vec<u8>) {
    let result = compressor(spec).compress_with(raw, content).unwrap();
    (result.id, result.data.expect("the data is compressible"))
}

/// Decodes everything at once, with three threads where the payload has parts.
pub fn decode_by_parts(id: CompressionId, payload: &[u8], limit: u64) -> Result<Vec<u8>, Error> {
    let threads = std::num::NonZeroUsize::new(3).unwrap();
    Decoder::new(id, payload, limit)?.decode_by_parts(threads)
}

/// Decodes in steps of `step` bytes, into separate buffers and in place, which must not differ.
pub fn decode_in_steps(
    id: CompressionId,
    payload: &[u8],
    limit: u64,
    step: usize,
) -> Result<Vec<u8>, Error> {
    let outcome = decode_to_parts(id, payload, limit, step);
    let in_place = decode_in_place(id, payload, limit, step);
    match (&outcome, &in_place) {
        (Ok(parts), Ok(whole)) => assert!(parts == whole, "{id}: decoded in place to other bytes"),
        (Err(_), Err(_)) => {}
        _ => panic!("{id}: {outcome:?} in parts, {in_place:?} in place"),
    }
    outcome
}

fn decode_in_place(
    id: CompressionId,
    payload: &[u8],
    limit: u64,
    step: usize,
) -> Result<Vec<u8>, Error> {
    let mut decoder = Decoder::new(id, payload, limit)?;
    let mut out = vec![0; decoder.raw_size() as usize];
    let start = out.as_mut_ptr();
    while decoder.position() < decoder.raw_size() {
        let left = (decoder.raw_size() - decoder.position()) as usize;
        // SAFETY: `out` has as many bytes as the decoder announces, lives longer than it, and is
        // not touched meanwhile.
        unsafe { decoder.fill_in_place(start, step.min(left)) }?;
    }
    decoder.finish()?;
    // SAFETY: as above; nothing is left, so nothing is written.
    assert!(unsafe { decoder.fill_in_place(start, 1) }.is_err());
    assert_eq!(decoder.into_payload(), payload);
    Ok(out)
}

fn decode_to_parts(
    id: CompressionId,
    payload: &[u8],
    limit: u64,
    step: usize,
) -> Result<Vec<u8>, Error> {
    let mut decoder = Decoder::new(id, payload, limit)?;
    let mut out = Vec::new();
    while decoder.position() < decoder.raw_size() {
        let left = (decoder.raw_size() - decoder.position()) as usize;
        let mut part = vec![0; step.min(left)];
        decoder.fill(&mut part)?;
        out.extend_from_slice(&part);
        assert_eq!(decoder.position(), out.len() as u64);
    }
    decoder.finish()?;
    decoder.finish()?;
    assert!(
        decoder.fill(&mut [0]).is_err(),
        "there is no byte after the last"
    );
    Ok(out)
}
