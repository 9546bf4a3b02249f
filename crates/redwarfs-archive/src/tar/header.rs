//! The header block of a tar archive: v7, ustar, GNU and star.

use redwarfs_format::device::makedev;
use redwarfs_writer::Timestamp;

use crate::error::Fault;

/// Pieces of a sparse file: offset and size.
pub(super) type Pairs = Vec<(u64, u64)>;

/// Size of a block in bytes.
pub(crate) const BLOCK: usize = 512;

/// Flavour of a header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Flavour {
    Old,
    Posix,
    /// With times where POSIX has the end of the prefix.
    Star,
    Gnu,
}

/// A block whose checksum is right.
pub(super) struct Header<'a> {
    block: &'a [u8; BLOCK],
    flavour: Flavour,
}

/// Whether a block is a header: its checksum is right.
pub(crate) fn is_header(block: &[u8; BLOCK]) -> bool {
    let Ok(Some(stored)) = number(&block[148..156]) else {
        return false;
    };
    let (mut unsigned, mut signed) = (0i128, 0i128);
    for (at, &byte) in block.iter().enumerate() {
        let byte = if (148..156).contains(&at) { b' ' } else { byte };
        unsigned += i128::from(byte);
        signed += i128::from(byte.cast_signed());
    }
    // Old programs added signed characters.
    stored == unsigned || stored == signed
}

/// A number in octal digits or in binary, big-endian; `None` if the field is blank.
fn number(field: &[u8]) -> Result<Option<i128>, ()> {
    if let [first, rest @ ..] = field
        && first & 0x80 != 0
    {
        // The rest of the first byte belongs to the number. Its second bit is the sign.
        let mut value = match first & 0x40 {
            0 => i128::from(first & 0x7f),
            _ => i128::from(first.cast_signed()),
        };
        for &byte in rest {
            value = value.checked_mul(256).ok_or(())? + i128::from(byte);
        }
        return Ok(Some(value));
    }
    let end = field
        .iter()
        .position(|&b| b == 0)
        .map_or(field, |end| field.get(..end).unwrap_or_default());
    let digits = end.trim_ascii();
    if digits.is_empty() {
        return Ok(None);
    }
    let mut value = 0i128;
    for &digit in digits {
        match digit {
            b'0'..=b'7' => value = value * 8 + i128::from(digit - b'0'),
            _ => return Err(()),
        }
    }
    Ok(Some(value))
}

/// Up to the first NUL.
fn text(field: &[u8]) -> &[u8] {
    field.split(|&b| b == 0).next().unwrap_or_default()
}

impl<'a> Header<'a> {
    /// # Errors
    /// The checksum is wrong.
    pub(super) fn new(block: &'a [u8; BLOCK]) -> Result<Self, Fault> {
        if !is_header(block) {
            return Err(Fault::damaged("the checksum of a header is wrong"));
        }
        let flavour = match &block[257..265] {
            b"ustar  \0" => Flavour::Gnu,
            magic if magic.starts_with(b"ustar") => match &block[508..512] {
                b"tar\0" => Flavour::Star,
                _ => Flavour::Posix,
            },
            _ => Flavour::Old,
        };
        Ok(Self { block, flavour })
    }

    pub(super) fn flavour(&self) -> Flavour {
        self.flavour
    }

    pub(super) fn type_flag(&self) -> u8 {
        self.block[156]
    }

    /// Name, with the prefix.
    pub(super) fn path(&self) -> Vec<u8> {
        let name = text(&self.block[..100]);
        let prefix = match self.flavour {
            Flavour::Posix => text(&self.block[345..500]),
            Flavour::Star => text(&self.block[345..476]),
            Flavour::Old | Flavour::Gnu => &[],
        };
        match prefix.is_empty() {
            true => name.to_vec(),
            false => [prefix, b"/", name].concat(),
        }
    }

    pub(super) fn link(&self) -> Vec<u8> {
        text(&self.block[157..257]).to_vec()
    }

    fn field(&self, from: usize, to: usize, name: &str) -> Result<i128, Fault> {
        match number(&self.block[from..to]) {
            Ok(value) => Ok(value.unwrap_or(0)),
            Err(()) => Err(Fault::damaged(format!(
                "the {name} in a header is no number"
            ))),
        }
    }

    pub(super) fn mode(&self) -> Result<u32, Fault> {
        // Some programs store the type, too.
        Ok((self.field(100, 108, "mode")? & 0o7777) as u32)
    }

    pub(super) fn uid(&self) -> Result<i128, Fault> {
        self.field(108, 116, "owner")
    }

    pub(super) fn gid(&self) -> Result<i128, Fault> {
        self.field(116, 124, "group")
    }

    pub(super) fn size(&self) -> Result<u64, Fault> {
        size(self.field(124, 136, "size")?)
    }

    pub(super) fn mtime(&self) -> Result<Timestamp, Fault> {
        time(self.field(136, 148, "time")?)
    }

    /// Access and change time, where the flavour has them.
    pub(super) fn other_times(&self) -> Result<[Option<Timestamp>; 2], Fault> {
        let (first, second) = match self.flavour {
            Flavour::Gnu => (345, 357),
            Flavour::Star => (476, 488),
            Flavour::Old | Flavour::Posix => return Ok([None, None]),
        };
        let one = |at: usize| match self.block[at] {
            0 => Ok(None),
            _ => time(self.field(at, at + 12, "time")?).map(Some),
        };
        Ok([one(first)?, one(second)?])
    }

    /// Device number, in the encoding of the host.
    pub(super) fn device(&self) -> Result<u64, Fault> {
        let part = |value: i128| {
            u32::try_from(value).map_err(|_| Fault::damaged("a device number is out of range"))
        };
        if self.flavour == Flavour::Old {
            return Ok(0);
        }
        let major = part(self.field(329, 337, "device")?)?;
        let minor = part(self.field(337, 345, "device")?)?;
        Ok(makedev(major, minor))
    }

    /// The pairs of offset and size in a block of GNU's old sparse format, which begin at `from`.
    pub(super) fn pairs(block: &[u8; BLOCK], from: usize, count: usize) -> Result<Pairs, Fault> {
        let bad = |()| Fault::damaged("a sparse map is no list of numbers");
        let mut out = Vec::new();
        for at in (from..).step_by(24).take(count) {
            let (offset, bytes) = (&block[at..at + 12], &block[at + 12..at + 24]);
            if offset[0] == 0 {
                break;
            }
            let offset = number(offset).map_err(bad)?.unwrap_or(0);
            let bytes = number(bytes).map_err(bad)?.unwrap_or(0);
            out.push((size(offset)?, size(bytes)?));
        }
        Ok(out)
    }

    /// The sparse map in the header, whether blocks with more of it follow, and the size with holes.
    pub(super) fn sparse(&self) -> Result<(Pairs, bool, u64), Fault> {
        let pairs = Self::pairs(self.block, 386, 4)?;
        let real = size(self.field(483, 495, "size")?)?;
        Ok((pairs, self.block[482] != 0, real))
    }
}

/// A size that positions in files can have.
pub(super) fn size(value: i128) -> Result<u64, Fault> {
    match i64::try_from(value) {
        Ok(value) if value >= 0 => Ok(value.cast_unsigned()),
        _ => Err(Fault::damaged(format!("the size {value} is out of range"))),
    }
}

fn time(value: i128) -> Result<Timestamp, Fault> {
    match i64::try_from(value) {
        Ok(sec) => Ok(Timestamp { sec, nsec: 0 }),
        Err(_) => Err(Fault::damaged("a time is out of range")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_in_all_forms() {
        for (field, value) in [
            (&b"0000644\0"[..], Ok(Some(0o644))),
            (b"   644 \0", Ok(Some(0o644))),
            (b"644\0junk", Ok(Some(0o644))),
            (b"77777777", Ok(Some(0o7777_7777))),
            (b"\0\0\0\0\0\0\0\0", Ok(None)),
            (b"        ", Ok(None)),
            (b"0000648\0", Err(())),
            (b"\x80\0\0\0\0\0\x01\0", Ok(Some(256))),
            (b"\xff\xff\xff\xff\xff\xff\xff\xfe", Ok(Some(-2))),
            (b"\x81\0\0\0\0\0\0\0", Ok(Some(1 << 56))),
        ] {
            assert_eq!(number(field), value, "{field:?}");
        }
    }

    #[test]
    fn sizes_are_those_of_files() {
        assert_eq!(size(8 << 30).unwrap(), 8 << 30);
        assert!(size(-1).is_err());
        assert!(size(1 << 63).is_err());
    }
}
