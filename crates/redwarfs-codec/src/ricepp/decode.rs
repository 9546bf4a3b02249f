//! Decoding bit streams.

use super::framing::{CODE_BITS, CODE_RAW, CODE_SAME, Framing, load, store};
use crate::codec::Decode;
use crate::{Error, Result};

/// Pixels of a Rice block that are taken from the 56 bits of one refill; those of usual pictures
/// have 5 to 12.
const PER_REFILL: usize = 4;

/// Takes bits from a byte slice, which is passed to each call that may need more of it.
///
/// Invariants: the low `count` bits of `bits` are the next bits of the stream, and `count <= 63`
/// between calls. Every bit of `bits` above them is zero, or equal to the bit of the stream at this
/// place, so the bits of the stream can be added again.
#[derive(Debug, Clone, Copy)]
struct BitReader {
    bits: u64,
    count: u32,
    /// Where the next byte is that `count` does not include.
    next: usize,
}

impl BitReader {
    fn new(start: usize) -> Self {
        Self {
            bits: 0,
            count: 0,
            next: start,
        }
    }

    /// Takes in what fits: afterwards there are at least 56 bits, or all that is left.
    #[inline(always)]
    fn refill(&mut self, data: &[u8]) {
        if let Some(word) = data.get(self.next..).and_then(|rest| rest.first_chunk()) {
            self.bits |= u64::from_le_bytes(*word) << self.count;
            // With `count <= 63` this is the number of whole bytes that fit.
            self.next += ((63 - self.count) >> 3) as usize;
            self.count |= 56;
        } else {
            self.refill_bytewise(data);
        }
    }

    #[cold]
    fn refill_bytewise(&mut self, data: &[u8]) {
        while self.count < 56 {
            let Some(&byte) = data.get(self.next) else {
                return;
            };
            self.bits |= u64::from(byte) << self.count;
            self.next += 1;
            self.count += 8;
        }
    }

    /// Drops `count` bits, which must be there: `count <= self.count`.
    #[inline(always)]
    fn consume(&mut self, count: u32) {
        self.bits >>= count;
        self.count -= count;
    }

    /// Takes the next `count` bits, at most 16.
    #[inline(always)]
    fn take(&mut self, data: &[u8], count: u32) -> Result<u64> {
        if self.count < count {
            self.refill(data);
            if self.count < count {
                return Err(incomplete());
            }
        }
        let value = self.bits & ((1 << count) - 1);
        self.consume(count);
        Ok(value)
    }

    /// The next difference of a Rice block with `low` low bits, for which 56 bits are not enough
    /// or not there.
    #[cold]
    fn long_delta(&mut self, data: &[u8], low: u32) -> Result<u16> {
        // No difference has more than 16 bits, so this many zeros are damage.
        let limit = u32::from(u16::MAX) >> low;
        let mut zeros = 0;
        loop {
            self.refill(data);
            if self.count == 0 {
                return Err(incomplete());
            }
            let run = self.bits.trailing_zeros();
            if run < self.count {
                zeros += run;
                self.consume(run);
                self.consume(1);
                break;
            }
            zeros += self.count;
            // Not `consume`: all bits that are left may be duplicates of later ones, and stay.
            self.bits = self.bits.checked_shr(self.count).unwrap_or(0);
            self.count = 0;
            if zeros > limit {
                return Err(too_large());
            }
        }
        if zeros > limit {
            return Err(too_large());
        }
        let rest = self.take(data, low)?;
        // At most 16 bits: `zeros <= 0xffff >> low`, `rest < 1 << low`.
        Ok(((zeros << low) | rest as u32) as u16)
    }
}

#[cold]
fn incomplete() -> Error {
    Error::corrupt("RICEPP stream ends early")
}

#[cold]
fn too_large() -> Error {
    Error::corrupt("RICEPP stream has a difference of more than 16 bits")
}

/// Decodes one bit stream, group by group.
///
/// Memory: one group, at most 2 KiB.
pub(super) struct RiceppDecoder {
    framing: Framing,
    reader: BitReader,
    /// The pixel before the next one, for each component.
    last: [u16; 2],
    started: bool,
    /// Number of decoded bytes, including pending ones.
    decoded: u64,
    /// The group that was decoded for only a part of it.
    group: Vec<u8>,
    /// Where the part that has not been delivered starts in it.
    pending: usize,
}

impl RiceppDecoder {
    pub(super) fn new(payload: &[u8]) -> Result<Self> {
        let framing = Framing::parse(payload)?;
        let groups = framing.raw_size.div_ceil(framing.group_bytes() as u64);
        // Smallest size of the payload, even for constant data, so that memory is taken only for data
        // that the payload can decode to.
        let components = u64::from(framing.format.components);
        let bits = groups
            .saturating_mul(u64::from(CODE_BITS))
            .saturating_add(16)
            .saturating_mul(components);
        let stream = payload.len().saturating_sub(framing.stream) as u64;
        if framing.raw_size > 0 && bits.div_ceil(8) > stream {
            return Err(incomplete());
        }
        Ok(Self {
            reader: BitReader::new(framing.stream),
            framing,
            last: [0; 2],
            started: false,
            decoded: 0,
            group: Vec::new(),
            pending: 0,
        })
    }

    fn decode_group(&mut self, payload: &[u8], out: &mut [u8]) -> Result<()> {
        let components = usize::from(self.framing.format.components);
        if !self.started {
            self.started = true;
            for last in &mut self.last[..components] {
                *last = self.reader.take(payload, 16)? as u16;
            }
        }
        for component in 0..components {
            let block = match (components, self.framing.format.byte_order.is_big()) {
                (1, false) => Self::decode_block::<1, false>,
                (1, true) => Self::decode_block::<1, true>,
                (_, false) => Self::decode_block::<2, false>,
                (_, true) => Self::decode_block::<2, true>,
            };
            block(self, payload, out, component)?;
        }
        Ok(())
    }

    /// Decodes the block of one component of a group of pixels with `C` components each.
    fn decode_block<const C: usize, const BIG: bool>(
        &mut self,
        payload: &[u8],
        out: &mut [u8],
        component: usize,
    ) -> Result<()> {
        let unused = u32::from(self.framing.format.unused_lsb);
        let (pixels, _) = out.as_chunks_mut::<2>();
        let (pixels, _) = pixels.as_chunks_mut::<C>();
        // A copy, so that the loops keep it in registers.
        let mut reader = self.reader;
        let mut last = self.last[component];
        match reader.take(payload, CODE_BITS)? {
            CODE_SAME => {
                let bytes = store::<BIG>(last, unused);
                for pixel in pixels {
                    pixel[component % C] = bytes;
                }
            }
            CODE_RAW => {
                for pixel in pixels {
                    let bytes = (reader.take(payload, 16)? as u16).to_le_bytes();
                    pixel[component % C] = bytes;
                    last = load::<BIG>(bytes, unused);
                }
            }
            code => {
                // 0..=13
                let low = code as u32 - 1;
                let mask = (1u64 << low) - 1;
                for pixels in pixels.chunks_mut(PER_REFILL) {
                    reader.refill(payload);
                    for pixel in pixels {
                        let zeros = reader.bits.trailing_zeros();
                        let length = zeros + 1 + low;
                        let delta = if length <= reader.count {
                            // At most 63 bits: `count` never exceeds that.
                            let rest = (reader.bits >> 1 >> zeros) & mask;
                            reader.consume(length);
                            let delta = (u64::from(zeros) << low) | rest;
                            u16::try_from(delta).map_err(|_| too_large())?
                        } else {
                            reader.long_delta(payload, low)?
                        };
                        // Even differences are positive, odd ones negative.
                        let difference = (delta >> 1) ^ (delta & 1).wrapping_neg();
                        last = last.wrapping_add(difference);
                        // The remainder changes nothing but saves a check in each turn.
                        pixel[component % C] = store::<BIG>(last, unused);
                    }
                }
            }
        }
        self.reader = reader;
        self.last[component] = last;
        Ok(())
    }
}

impl Decode for RiceppDecoder {
    fn fill(&mut self, payload: &[u8], mut out: &mut [u8], _done: u64, _whole: bool) -> Result<()> {
        while !out.is_empty() {
            let waiting = &self.group[self.pending..];
            if !waiting.is_empty() {
                let length = waiting.len().min(out.len());
                let (now, later) = out.split_at_mut(length);
                now.copy_from_slice(&waiting[..length]);
                self.pending += length;
                out = later;
                continue;
            }
            let left = self.framing.raw_size - self.decoded;
            if left == 0 {
                return Err(incomplete());
            }
            let size = left.min(self.framing.group_bytes() as u64);
            // A group has at most 2 KiB.
            let size = size as usize;
            if out.len() >= size {
                let (now, later) = out.split_at_mut(size);
                self.decode_group(payload, now)?;
                out = later;
            } else {
                let mut group = std::mem::take(&mut self.group);
                group.resize(size, 0);
                self.decode_group(payload, &mut group)?;
                self.group = group;
                self.pending = 0;
            }
            self.decoded += size as u64;
        }
        Ok(())
    }

    /// Bytes after the stream are ignored, as the format's readers do.
    fn finish(&mut self, _payload: &[u8]) -> Result<()> {
        self.group = Vec::new();
        self.pending = 0;
        Ok(())
    }
}
