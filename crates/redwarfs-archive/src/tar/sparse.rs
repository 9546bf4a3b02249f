//! Sparse maps, and the encodings of extended attributes.

use redwarfs_writer::DataExtent;

use super::header::BLOCK;
use super::pax::decimal;
use crate::error::Fault;
use crate::stream::Stream;

/// Most entries of a sparse map.
const MOST_ENTRIES: usize = 4 << 20;
/// Longest number in a map, with its end.
const MOST_DIGITS: usize = 21;

fn bad() -> Fault {
    Fault::damaged("a sparse map is no list of numbers")
}

/// Refuses maps that would take too much memory.
pub(super) fn check_count(count: usize) -> Result<(), Fault> {
    match count > MOST_ENTRIES {
        true => Err(Fault::unsupported(format!(
            "a sparse file with more than {MOST_ENTRIES} pieces"
        ))),
        false => Ok(()),
    }
}

/// Version 1.0: the map is in front of the data, in blocks. `left` are the bytes of both.
pub(super) fn in_data(input: &mut Stream<'_>, left: &mut u64) -> Result<Vec<(u64, u64)>, Fault> {
    let mut taken = 0u64;
    let mut number = || -> Result<u64, Fault> {
        let found = input.peek(MOST_DIGITS)?;
        let digits = found.iter().position(|&b| b == b'\n').ok_or_else(bad)?;
        let value = found.get(..digits).and_then(decimal).ok_or_else(bad)?;
        input.skip(digits as u64 + 1)?;
        taken += digits as u64 + 1;
        if taken > *left {
            return Err(bad());
        }
        Ok(value)
    };
    let count = usize::try_from(number()?).map_err(|_| bad())?;
    check_count(count)?;
    let mut pairs = Vec::new();
    for _ in 0..count {
        pairs.push((number()?, number()?));
    }
    let padding = taken.wrapping_neg() % BLOCK as u64;
    input.skip(padding)?;
    *left = left.checked_sub(taken + padding).ok_or_else(bad)?;
    Ok(pairs)
}

/// The extents of a map. They must be ascending, lie in the file of `size` bytes, and have `stored` bytes
/// together.
pub(super) fn check(
    pairs: &[(u64, u64)],
    size: u64,
    stored: u64,
) -> Result<Vec<DataExtent>, Fault> {
    check_count(pairs.len())?;
    let wrong = || Fault::damaged("a sparse map does not fit its file");
    let mut map: Vec<DataExtent> = Vec::new();
    let (mut end, mut sum) = (0u64, 0u64);
    for &(offset, bytes) in pairs {
        let stop = offset.checked_add(bytes).ok_or_else(wrong)?;
        if offset < end || stop > size {
            return Err(wrong());
        }
        (end, sum) = (stop, sum + bytes);
        match map.last_mut() {
            _ if bytes == 0 => {}
            Some(last) if last.offset + last.size == offset => last.size += bytes,
            _ => map.push(DataExtent {
                offset,
                size: bytes,
            }),
        }
    }
    match sum == stored {
        true => Ok(map),
        false => Err(wrong()),
    }
}

/// Bytes in base 64, with or without padding.
pub(super) fn base64(text: &[u8]) -> Option<Vec<u8>> {
    let end = text
        .iter()
        .rposition(|&b| b != b'=')
        .map_or(0, |last| last + 1);
    let mut out = Vec::with_capacity(end * 3 / 4);
    let (mut bits, mut held) = (0u32, 0u32);
    for &byte in text.get(..end)? {
        let value = match byte {
            b'A'..=b'Z' => byte - b'A',
            b'a'..=b'z' => byte - b'a' + 26,
            b'0'..=b'9' => byte - b'0' + 52,
            b'+' => 62,
            b'/' => 63,
            _ => return None,
        };
        bits = bits << 6 | u32::from(value);
        held += 6;
        if held >= 8 {
            held -= 8;
            out.push((bits >> held) as u8);
            bits &= (1 << held) - 1;
        }
    }
    Some(out)
}

/// A name in which some bytes are `%` and two digits.
pub(super) fn percent(mut text: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(text.len());
    while let Some((&byte, rest)) = text.split_first() {
        let digits = rest.get(..2).and_then(|d| std::str::from_utf8(d).ok());
        let code = digits.and_then(|d| u8::from_str_radix(d, 16).ok());
        match code.filter(|_| byte == b'%') {
            Some(code) => {
                out.push(code);
                text = rest.get(2..).unwrap_or_default();
            }
            None => {
                out.push(byte);
                text = rest;
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_must_fit_their_files() {
        let extent = |offset, size| DataExtent { offset, size };
        let good = check(&[(0, 2), (2, 3), (5, 0), (10, 1), (20, 0)], 20, 6).unwrap();
        assert_eq!(good, [extent(0, 5), extent(10, 1)]);
        assert!(check(&[], 20, 0).unwrap().is_empty());
        for (pairs, size, stored) in [
            (&[(5, 1), (3, 1)][..], 20, 2),
            (&[(0, 5), (4, 5)], 20, 10),
            (&[(18, 3)], 20, 3),
            (&[(u64::MAX, 2)], u64::MAX, 2),
            (&[(0, 5)], 20, 4),
        ] {
            assert!(check(pairs, size, stored).is_err(), "{pairs:?}");
        }
    }

    #[test]
    fn attributes_are_decoded() {
        assert_eq!(base64(b"AQIDBA==").unwrap(), [1, 2, 3, 4]);
        assert_eq!(base64(b"AQIDBA").unwrap(), [1, 2, 3, 4]);
        assert!(base64(b"").unwrap().is_empty());
        assert_eq!(base64(b"A-"), None);
        assert_eq!(percent(b"user.a%3db%zz%"), b"user.a=b%zz%");
    }
}
