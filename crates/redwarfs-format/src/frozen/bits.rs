//! Reading and writing of bit ranges (format chapter 03, section 2.1).

use std::borrow::Cow;

use super::bytes::LazyBytes;
use crate::error::{Error, Result};

/// The value of `width` bits (at most 64) at the bit address `bit`.
///
/// Bits beyond the end of `data` read as 0; callers that must tell the difference check the range
/// once, when they resolve a table, or use [`BitSource::load`].
#[inline]
#[must_use]
pub fn load_bits(data: &[u8], bit: u64, width: u32) -> u64 {
    if width == 0 {
        return 0;
    }
    let mask = u64::MAX >> (64 - width.min(64));
    let shift = (bit & 7) as u32;
    let start = usize::try_from(bit >> 3).unwrap_or(usize::MAX);
    let tail = data.get(start..).unwrap_or_default();
    if let Some(word) = tail.first_chunk::<8>() {
        let low = u64::from_le_bytes(*word) >> shift;
        if shift + width <= 64 {
            return low & mask;
        }
        // The value reaches into a ninth byte, so shift is at least 1.
        let ninth = u64::from(tail.get(8).copied().unwrap_or(0));
        return (low | (ninth << (64 - shift))) & mask;
    }
    let mut word = [0u8; 8];
    for (to, from) in word.iter_mut().zip(tail) {
        *to = *from;
    }
    (u64::from_le_bytes(word) >> shift) & mask
}

/// Adds the `width` lowest bits of `value` at the bit address `bit` of zero-initialized bytes.
///
/// Bits that would lie beyond the end of `data` are dropped.
#[inline]
pub(super) fn store_bits(data: &mut [u8], bit: u64, width: u32, value: u64) {
    if width == 0 {
        return;
    }
    let shift = (bit & 7) as u32;
    let start = usize::try_from(bit >> 3).unwrap_or(usize::MAX);
    let wide = u128::from(value) << shift;
    let bytes = (shift + width).div_ceil(8) as usize;
    if let Some(place) = data.get_mut(start..) {
        for (to, from) in place.iter_mut().zip(wide.to_le_bytes()).take(bytes) {
            *to |= from;
        }
    }
}

/// Bytes with checked access to bit ranges.
#[derive(Debug, Clone, Copy)]
pub struct BitSource<'a>(Bytes<'a>);

#[derive(Debug, Clone, Copy)]
enum Bytes<'a> {
    Whole(&'a [u8]),
    Lazy(&'a LazyBytes),
}

impl<'a> BitSource<'a> {
    /// Wraps the payload of a METADATA_V2 section.
    #[must_use]
    pub fn new(data: &'a [u8]) -> Self {
        Self(Bytes::Whole(data))
    }

    /// Bytes that are loaded when they are needed.
    pub(super) fn lazy(data: &'a LazyBytes) -> Self {
        Self(Bytes::Lazy(data))
    }

    /// Whether bytes are loaded when they are needed.
    pub(crate) fn is_lazy(&self) -> bool {
        matches!(self.0, Bytes::Lazy(_))
    }

    fn byte_len(&self) -> usize {
        match self.0 {
            Bytes::Whole(data) => data.len(),
            Bytes::Lazy(data) => data.len(),
        }
    }

    /// Number of bits in the data.
    #[must_use]
    pub fn bit_len(&self) -> u64 {
        self.byte_len() as u64 * 8
    }

    /// The value of `width` bits at the bit address `bit`.
    ///
    /// # Errors
    /// `Corrupt` if the range is not inside the data, and those of loading it.
    #[inline]
    pub fn load(&self, bit: u64, width: u32) -> Result<u64> {
        if width == 0 {
            return Ok(0);
        }
        match bit.checked_add(u64::from(width)) {
            Some(end) if end <= self.bit_len() => self.load_inside(bit, width),
            _ => Err(Error::corrupt("metadata value lies outside of the data")),
        }
    }

    /// Like [`BitSource::load`] for a range that was found to lie inside; bits beyond the end read
    /// as 0.
    #[inline]
    pub(crate) fn load_inside(&self, bit: u64, width: u32) -> Result<u64> {
        match self.0 {
            Bytes::Whole(data) => Ok(load_bits(data, bit, width)),
            Bytes::Lazy(data) => data.bits(bit, width),
        }
    }

    /// `count` bytes from byte `start` on.
    ///
    /// # Errors
    /// `Corrupt` if the range is not inside the data, and those of loading it.
    pub fn bytes(&self, start: u64, count: u64) -> Result<Cow<'a, [u8]>> {
        let range = start
            .checked_add(count)
            .filter(|end| *end <= self.byte_len() as u64)
            .and_then(|end| Some(usize::try_from(start).ok()?..usize::try_from(end).ok()?))
            .ok_or_else(|| Error::corrupt("metadata string lies outside of the data"))?;
        match self.0 {
            Bytes::Whole(data) => Ok(Cow::Borrowed(data.get(range).unwrap_or_default())),
            Bytes::Lazy(data) => data.bytes(range),
        }
    }

    /// Largest number of elements that a list whose elements occupy no bits may claim.
    ///
    /// Every such list in an image accompanies another one whose elements do occupy bits (an
    /// element of `chunks` or `dir_entries`, for instance), so the size of the data bounds it.
    #[must_use]
    pub fn widthless_limit(&self) -> u64 {
        self.bit_len().clamp(64, u64::from(u32::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn slow(data: &[u8], bit: u64, width: u32) -> u64 {
        (0..u64::from(width))
            .map(|i| {
                let k = bit + i;
                let byte = data.get((k / 8) as usize).copied().unwrap_or(0);
                u64::from((byte >> (k % 8)) & 1) << i
            })
            .sum()
    }

    #[test]
    fn loads_agree_with_the_definition() {
        let data: Vec<u8> = (0..23u32).map(|i| (i * 89 + 41) as u8).collect();
        for bit in 0..(data.len() as u64 * 8 + 9) {
            for width in 0..=64 {
                assert_eq!(
                    load_bits(&data, bit, width),
                    slow(&data, bit, width),
                    "{bit} {width}"
                );
            }
        }
    }

    #[test]
    fn stored_bits_are_loaded_again() {
        for bit in 0..20 {
            for width in 1..=64u32 {
                let value = 0xdead_beef_0bad_cafe & (u64::MAX >> (64 - width));
                let mut data = vec![0u8; 16];
                store_bits(&mut data, bit, width, value);
                assert_eq!(load_bits(&data, bit, width), value);
                assert_eq!(load_bits(&data, 0, bit as u32), 0);
                assert_eq!(load_bits(&data, bit + u64::from(width), 40), 0);
            }
        }
    }

    #[test]
    fn ranges_outside_are_refused() {
        let source = BitSource::new(&[1, 2, 3]);
        assert_eq!(source.load(16, 8).ok(), Some(3));
        assert!(source.load(17, 8).is_err());
        assert!(source.load(u64::MAX, 8).is_err());
        assert_eq!(source.load(u64::MAX, 0).ok(), Some(0));
        assert!(source.bytes(2, 2).is_err());
        assert!(source.bytes(u64::MAX, 2).is_err());
    }
}
