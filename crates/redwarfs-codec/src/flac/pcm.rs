//! Converts samples between their form in the data and that of FLAC, which are signed numbers of a
//! given width.

use crate::content::{Padding, PcmFormat};

/// How a sample in the data relates to its value.
#[derive(Debug, Clone, Copy)]
struct Mapping {
    bits: u32,
    signed: bool,
    /// Padding bits below the value.
    shift: u32,
}

impl Mapping {
    /// `format` must be valid.
    fn new(format: &PcmFormat) -> Self {
        let bits = u32::from(format.bits);
        Self {
            bits,
            signed: format.signed,
            shift: match format.padding {
                Padding::Msb => 0,
                Padding::Lsb => (8 * u32::from(format.bytes)).saturating_sub(bits),
            },
        }
    }

    /// The value of zero in unsigned samples.
    #[inline(always)]
    fn bias(self) -> u32 {
        if self.signed { 0 } else { 1 << (self.bits - 1) }
    }

    /// The value of a container read as an unsigned number, and whether it is one of `bits` bits
    /// whose padding is as it must be. `kept` are the bits of the container.
    #[inline(always)]
    fn load(self, unit: u32, kept: u32) -> (i32, bool) {
        let value = (unit >> self.shift).wrapping_sub(self.bias());
        // Sign extension.
        let unused = 32 - self.bits;
        let sample = ((value << unused) as i32) >> unused;
        (sample, self.store(sample) & kept == unit)
    }

    /// The container of a value; bits beyond it are to be dropped.
    #[inline(always)]
    fn store(self, sample: i32) -> u32 {
        (sample as u32).wrapping_add(self.bias()) << self.shift
    }
}

/// Converts whole frames of `raw` and appends their samples, channels in turns. False if a sample could
/// not be restored exactly, because its padding bits differ from the expected ones.
pub(super) fn load(format: &PcmFormat, raw: &[u8], samples: &mut Vec<i32>) -> bool {
    let load = match (format.bytes, format.byte_order.is_big()) {
        (1, _) => load_all::<1, false>,
        (2, false) => load_all::<2, false>,
        (2, true) => load_all::<2, true>,
        (3, false) => load_all::<3, false>,
        (3, true) => load_all::<3, true>,
        (_, false) => load_all::<4, false>,
        (_, true) => load_all::<4, true>,
    };
    load(Mapping::new(format), raw, samples)
}

fn load_all<const B: usize, const BIG: bool>(
    mapping: Mapping,
    raw: &[u8],
    samples: &mut Vec<i32>,
) -> bool {
    let (units, _) = raw.as_chunks::<B>();
    let kept = u32::MAX >> (32 - 8 * B);
    let mut exact = true;
    samples.extend(units.iter().map(|unit| {
        let mut bytes = [0; 4];
        let value = if BIG {
            bytes[4 - B..].copy_from_slice(unit);
            u32::from_be_bytes(bytes)
        } else {
            bytes[..B].copy_from_slice(unit);
            u32::from_le_bytes(bytes)
        };
        let (sample, same) = mapping.load(value, kept);
        exact &= same;
        sample
    }));
    exact
}

/// Writes the samples of one channel into frames of all channels.
pub(super) fn store(format: &PcmFormat, channel: usize, samples: &[i32], frames: &mut [u8]) {
    let store = match (format.bytes, format.byte_order.is_big()) {
        (1, _) => store_all::<1, false>,
        (2, false) => store_all::<2, false>,
        (2, true) => store_all::<2, true>,
        (3, false) => store_all::<3, false>,
        (3, true) => store_all::<3, true>,
        (_, false) => store_all::<4, false>,
        (_, true) => store_all::<4, true>,
    };
    let channels = usize::from(format.channels);
    store(Mapping::new(format), channels, channel, samples, frames);
}

fn store_all<const B: usize, const BIG: bool>(
    mapping: Mapping,
    channels: usize,
    channel: usize,
    samples: &[i32],
    frames: &mut [u8],
) {
    let (units, _) = frames.as_chunks_mut::<B>();
    let units = units.iter_mut().skip(channel).step_by(channels.max(1));
    for (unit, &sample) in units.zip(samples) {
        let value = mapping.store(sample);
        if BIG {
            unit.copy_from_slice(&value.to_be_bytes()[4 - B..]);
        } else {
            unit.copy_from_slice(&value.to_le_bytes()[..B]);
        }
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)] // a test fails by panicking

    use proptest::prelude::*;

    use super::*;
    use crate::content::ByteOrder;

    fn format(bits: u8, bytes: u8, signed: bool, padding: Padding) -> PcmFormat {
        PcmFormat {
            channels: 1,
            bits,
            bytes,
            byte_order: ByteOrder::Big,
            signed,
            padding,
        }
    }

    fn one(format: &PcmFormat, unit: &[u8]) -> Option<i32> {
        let mut samples = Vec::new();
        load(format, unit, &mut samples).then(|| samples[0])
    }

    #[test]
    fn values() {
        use Padding::{Lsb, Msb};
        type Row = (u8, u8, bool, Padding, &'static [u8], Option<i32>);
        let table: [Row; 20] = [
            (8, 1, true, Msb, &[0x80], Some(-128)),
            (8, 1, false, Lsb, &[0x80], Some(0)),
            (8, 1, false, Lsb, &[0], Some(-128)),
            (16, 2, true, Lsb, &[0xff, 0xfe], Some(-2)),
            (16, 2, false, Msb, &[0xff, 0xff], Some(32767)),
            (12, 2, true, Msb, &[0xff, 0xfe], Some(-2)),
            (12, 2, true, Msb, &[0xf8, 0x00], Some(-2048)),
            (12, 2, true, Msb, &[0x08, 0x00], None),
            (12, 2, true, Lsb, &[0x80, 0x10], Some(-2047)),
            (12, 2, true, Lsb, &[0x80, 0x11], None),
            (12, 2, false, Msb, &[0x0f, 0xff], Some(2047)),
            (12, 2, false, Msb, &[0x10, 0x00], None),
            (12, 2, false, Lsb, &[0xff, 0xf0], Some(2047)),
            (12, 2, false, Lsb, &[0xff, 0xf1], None),
            (24, 3, true, Msb, &[0x80, 0, 0], Some(-0x80_0000)),
            (20, 3, true, Msb, &[0xf8, 0, 0], Some(-0x8_0000)),
            (24, 4, true, Msb, &[0xff, 0x80, 0, 1], Some(-0x7f_ffff)),
            (24, 4, true, Msb, &[0x00, 0x80, 0, 1], None),
            (32, 4, true, Lsb, &[0x80, 0, 0, 0], Some(i32::MIN)),
            (32, 4, false, Lsb, &[0, 0, 0, 0], Some(i32::MIN)),
        ];
        for (bits, bytes, signed, padding, unit, expected) in table {
            let big = format(bits, bytes, signed, padding);
            let little = PcmFormat {
                byte_order: ByteOrder::Little,
                ..big
            };
            let reversed: Vec<u8> = unit.iter().rev().copied().collect();
            assert_eq!(one(&big, unit), expected, "{big:?} {unit:?}");
            assert_eq!(one(&little, &reversed), expected, "{little:?} {unit:?}");
        }
    }

    proptest! {
        #[test]
        fn what_is_taken_comes_back(
            bytes in 1..=4u8,
            spare in 0..25u8,
            big: bool,
            signed: bool,
            lsb: bool,
            channels in 1..=8u8,
            raw in proptest::collection::vec(any::<u8>(), 0..400),
        ) {
            let format = PcmFormat {
                channels,
                bits: (8 * bytes).saturating_sub(spare).max(8),
                bytes,
                byte_order: ByteOrder::from_big(big),
                signed,
                padding: if lsb { Padding::Lsb } else { Padding::Msb },
            };
            prop_assert!(format.is_valid());
            let frames = raw.len() / format.frame_bytes();
            let raw = &raw[..frames * format.frame_bytes()];
            let mut samples = Vec::new();
            let exact = load(&format, raw, &mut samples);
            let range = 1i64 << (format.bits - 1);
            prop_assert!(samples.iter().all(|&s| (-range..range).contains(&i64::from(s))));
            let mut back = vec![0xaa; raw.len()];
            for channel in 0..usize::from(channels) {
                let of_channel: Vec<i32> =
                    samples.iter().skip(channel).step_by(channels.into()).copied().collect();
                store(&format, channel, &of_channel, &mut back);
            }
            prop_assert_eq!(back == raw, exact);
            if format.bits == 8 * bytes {
                prop_assert!(exact);
            }
            // What came back is clean, so it comes back again.
            prop_assert!(load(&format, &back, &mut Vec::new()));
        }
    }
}
