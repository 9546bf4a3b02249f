//! Device numbers, in the encoding of Linux, which images hold.

/// The major number.
#[must_use]
pub const fn major(device: u64) -> u32 {
    ((device >> 32) as u32 & 0xffff_f000) | ((device >> 8) as u32 & 0xfff)
}

/// The minor number.
#[must_use]
pub const fn minor(device: u64) -> u32 {
    ((device >> 12) as u32 & 0xffff_ff00) | (device as u32 & 0xff)
}

/// The device with these numbers.
#[must_use]
pub const fn makedev(major: u32, minor: u32) -> u64 {
    let (major, minor) = (major as u64, minor as u64);
    (major & 0xffff_f000) << 32 | (major & 0xfff) << 8 | (minor & 0xffff_ff00) << 12 | minor & 0xff
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_encoded_as_on_linux() {
        for (numbers, device) in [
            ((1, 3), 0x103),
            ((8, 0), 0x800),
            ((259, 70_000), 0x1111_0370),
            ((0xfff, 0xff), 0xf_ffff),
            ((0x1000, 0x100), 0x1000_0010_0000),
            ((u32::MAX, u32::MAX), u64::MAX),
        ] {
            assert_eq!(makedev(numbers.0, numbers.1), device, "{numbers:?}");
            assert_eq!((major(device), minor(device)), numbers, "{device:x}");
        }
    }
}
