//! Unsigned LEB128, the integer that announces the raw size of some payloads.

/// Reads a varint of at most 64 bits from the front of `input`.
///
/// Returns the value and the number of bytes it took. Padding groups of zero are
/// accepted within the ten bytes that 64 bits can need. `None` if the input ends
/// early or the value does not fit.
pub(crate) fn read(input: &[u8]) -> Option<(u64, usize)> {
    let mut value = 0u64;
    for (i, &byte) in input.iter().take(10).enumerate() {
        let group = u64::from(byte & 0x7f);
        // The tenth group holds the one bit that is left of 64.
        if i == 9 && group > 1 {
            return None;
        }
        value |= group << (7 * i);
        if byte & 0x80 == 0 {
            return Some((value, i + 1));
        }
    }
    None
}

/// Appends `value` in its shortest form.
pub(crate) fn write(mut value: u64, out: &mut Vec<u8>) {
    while value >= 0x80 {
        out.push((value & 0x7f) as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_what_it_writes() {
        for value in [0, 1, 127, 128, 300, 1 << 32, u64::MAX - 1, u64::MAX] {
            let mut bytes = Vec::new();
            write(value, &mut bytes);
            assert_eq!(read(&bytes), Some((value, bytes.len())));
            assert_eq!(read(&bytes[..bytes.len() - 1]), None);
        }
    }

    #[test]
    fn padding_is_accepted_and_overflow_is_not() {
        assert_eq!(read(&[0x85, 0x80, 0x00, 0xff]), Some((5, 3)));
        assert_eq!(read(&[0x80; 11]), None);
        let mut big = [0xff; 10];
        big[9] = 0x02;
        assert_eq!(read(&big), None);
        big[9] = 0x01;
        assert_eq!(read(&big), Some((u64::MAX, 10)));
    }
}
