//! Encoding bit streams, by the rules that make the result unique.

use std::sync::Arc;

use super::framing::{CODE_BITS, CODE_RAW, CODE_SAME, MAX_BLOCK_SIZE, load};
use crate::codec::{Encode, Encoding, Settings};
use crate::content::{Content, ContentKind, PixelFormat};
use crate::grammar::{Kind, option};
use crate::{CompressionId, Result, varint};

pub(crate) static ENCODING: Encoding = Encoding {
    name: "ricepp",
    options: &[option(
        "block_size",
        Kind::Int(16..=512),
        Some(128),
        "pixels per block",
    )],
    id: CompressionId::RICEPP,
    takes: ContentKind::Pixels,
    settings: |values| {
        Ok(Arc::new(RiceppOptions {
            block_size: values.unsigned("block_size").unwrap_or_default(),
        }))
    },
};

/// Settings of the encoder.
#[derive(Debug, Clone, Copy)]
struct RiceppOptions {
    /// Pixels of a block, 16..=512.
    block_size: u32,
}

impl Settings for RiceppOptions {
    fn encoder(&self) -> Box<dyn Encode> {
        Box::new(RiceppEncoder::new(self.block_size))
    }

    /// The stream and, once more, the payload.
    fn memory(&self, raw_size: usize) -> u64 {
        2 * raw_size as u64
    }
}

/// Most low bits of a Rice code.
const MAX_LOW: u32 = 13;

/// Appends bits to a slice that has room for them.
struct BitWriter<'a> {
    out: &'a mut [u8],
    /// Bytes written.
    written: usize,
    bits: u64,
    /// Valid bits in `bits`, fewer than 8 after each call.
    count: u32,
}

impl<'a> BitWriter<'a> {
    fn new(out: &'a mut [u8]) -> Self {
        Self {
            out,
            written: 0,
            bits: 0,
            count: 0,
        }
    }

    /// Appends the low `count <= 56` bits of `value`, which has no others. `None` if the slice
    /// is full.
    #[inline(always)]
    fn put(&mut self, value: u64, count: u32) -> Option<()> {
        debug_assert!(count <= 56 && value >> count == 0);
        self.bits |= value << self.count;
        self.count += count;
        // Writes eight bytes, of which the whole ones count.
        let slot = self.out.get_mut(self.written..)?.first_chunk_mut()?;
        *slot = self.bits.to_le_bytes();
        let whole = self.count >> 3;
        self.written += whole as usize;
        // At most 63 bits are in use, so `whole` is at most 7.
        self.bits >>= 8 * whole;
        self.count &= 7;
        Some(())
    }

    /// Appends the difference `delta` in a Rice code.
    #[inline(always)]
    fn put_rice(&mut self, delta: u16, low: u32) -> Option<()> {
        let mut zeros = u32::from(delta) >> low;
        let rest = u64::from(delta) & ((1 << low) - 1);
        while zeros + 1 + low > 56 {
            let part = zeros.min(32);
            self.put(0, part)?;
            zeros -= part;
        }
        self.put((rest << 1 | 1) << zeros, zeros + 1 + low)
    }

    /// Writes the remaining bits. Returns the length of the stream in bytes.
    fn finish(self) -> usize {
        // The last call of `put` has written the bits of an incomplete byte already.
        self.written + usize::from(self.count > 0)
    }
}

/// Bytes of room that [`BitWriter::put`] needs beyond what it writes in the end.
const SLACK: usize = 8;

/// Compresses blocks with one output buffer.
#[derive(Debug)]
struct RiceppEncoder {
    /// Pixels of a block, 16..=512.
    block_size: u32,
    scratch: Vec<u8>,
}

impl RiceppEncoder {
    fn new(block_size: u32) -> Self {
        debug_assert!((1..=MAX_BLOCK_SIZE).contains(&block_size));
        Self {
            block_size,
            scratch: Vec::new(),
        }
    }

    /// The payload. `None` if the data is not what `format` says, or if it would not be smaller
    /// than the data.
    fn payload(&mut self, raw: &[u8], format: &PixelFormat) -> Result<Option<Vec<u8>>> {
        if !format.is_valid() || raw.is_empty() || !raw.len().is_multiple_of(format.group_bytes()) {
            return Ok(None);
        }
        let mut payload = Vec::new();
        varint::write(raw.len() as u64, &mut payload);
        payload.extend_from_slice(&format.header(self.block_size).encode());
        // A stream that does not fit is of no use, so there is no more room than for the data.
        self.scratch.resize(raw.len() + SLACK, 0);
        let encode = match (format.components, format.byte_order.is_big()) {
            (1, false) => encode_stream::<1, false>,
            (1, true) => encode_stream::<1, true>,
            (_, false) => encode_stream::<2, false>,
            (_, true) => encode_stream::<2, true>,
        };
        let unused = u32::from(format.unused_lsb);
        let block_size = self.block_size as usize;
        let Some(length) = encode(raw, block_size, unused, &mut self.scratch) else {
            return Ok(None);
        };
        let Some(stream) = self.scratch.get(..length) else {
            return Ok(None);
        };
        if payload.len() + length >= raw.len() {
            return Ok(None);
        }
        payload.extend_from_slice(stream);
        Ok(Some(payload))
    }
}

impl Encode for RiceppEncoder {
    fn compress(
        &mut self,
        raw: &[u8],
        content: &Content,
        _probed: Option<usize>,
    ) -> Result<Option<Vec<u8>>> {
        match content {
            Content::Pixels(format) => self.payload(raw, format),
            _ => Ok(None),
        }
    }
}

/// Writes the stream of `raw` and returns its length. `None` if it does not fit, or if bits are
/// set that are said to be unused.
fn encode_stream<const C: usize, const BIG: bool>(
    raw: &[u8],
    block_size: usize,
    unused: u32,
    out: &mut [u8],
) -> Option<usize> {
    let (units, _) = raw.as_chunks::<2>();
    let mut writer = BitWriter::new(out);
    let mut last = [0; C];
    for (last, &unit) in last.iter_mut().zip(units) {
        *last = load::<BIG>(unit, unused);
        writer.put(u64::from(*last), 16)?;
    }
    let mut pixels = [0u16; MAX_BLOCK_SIZE as usize];
    let mut deltas = [0u16; MAX_BLOCK_SIZE as usize];
    let low_bits = (1u16 << unused) - 1;
    for group in units.chunks(block_size * C) {
        let count = group.len() / C;
        for (component, last) in last.iter_mut().enumerate() {
            let pixels = pixels.get_mut(..count)?;
            let deltas = deltas.get_mut(..count)?;
            // The remainder changes nothing but saves a check in each turn.
            let of_component = group
                .as_chunks::<C>()
                .0
                .iter()
                .map(|all| all[component % C]);
            let mut set = 0;
            for (pixel, unit) in pixels.iter_mut().zip(of_component.clone()) {
                set |= load::<BIG>(unit, 0) & low_bits;
                *pixel = load::<BIG>(unit, unused);
            }
            if set != 0 {
                return None;
            }
            let (first_delta, later_deltas) = deltas.split_first_mut()?;
            *first_delta = zigzag(pixels.first()?.wrapping_sub(*last));
            for (delta, pair) in later_deltas.iter_mut().zip(pixels.windows(2)) {
                *delta = zigzag(pair[1].wrapping_sub(pair[0]));
            }
            *last = *pixels.last()?;

            let sum = cost(deltas, 0) - deltas.len() as u32;
            if sum == 0 {
                writer.put(CODE_SAME, CODE_BITS)?;
                continue;
            }
            match choose_low(deltas, sum) {
                Some(low) => {
                    writer.put(u64::from(low) + 1, CODE_BITS)?;
                    for &delta in deltas.iter() {
                        writer.put_rice(delta, low)?;
                    }
                }
                None => {
                    writer.put(CODE_RAW, CODE_BITS)?;
                    for unit in of_component {
                        writer.put(u64::from(u16::from_le_bytes(unit)), 16)?;
                    }
                }
            }
        }
    }
    Some(writer.finish())
}

/// Even numbers for positive differences, odd ones for negative.
#[inline(always)]
fn zigzag(difference: u16) -> u16 {
    (difference << 1) ^ ((difference as i16 >> 15) as u16)
}

/// Bits that a Rice code with `low` low bits takes. At most 512 × (65535 + 17).
fn cost(deltas: &[u16], low: u32) -> u32 {
    let ones: u32 = deltas.iter().map(|&delta| u32::from(delta >> low)).sum();
    ones + deltas.len() as u32 * (low + 1)
}

/// The number of low bits to code with; `None` if the block is better stored raw. `sum` is the sum of
/// all differences, and not zero.
///
/// It climbs from an estimate, and does not search for the best value. Other choices also decode, but
/// every encoder of the format makes these.
fn choose_low(deltas: &[u16], sum: u32) -> Option<u32> {
    let count = deltas.len() as u32;
    let bits_of_mean = (sum / count.max(1))
        .checked_ilog2()
        .map_or(0, |log| log + 1);
    // 0..=14
    let start = bits_of_mean.saturating_sub(2);
    let (here, above) = (cost(deltas, start), cost(deltas, start + 1));
    let (mut low, mut best, up) = if above <= here {
        (start + 1, above, true)
    } else {
        (start, here, false)
    };
    if here != above {
        while 0 < low && low <= MAX_LOW {
            let next = if up { low + 1 } else { low - 1 };
            let trial = cost(deltas, next);
            if trial > best {
                break;
            }
            (low, best) = (next, trial);
        }
    }
    (low <= MAX_LOW && best < 16 * count).then_some(low)
}
