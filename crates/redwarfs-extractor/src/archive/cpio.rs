//! The cpio formats of this crate: the new ASCII format of SVR4, and the octal format of POSIX.1-1988.
//!
//! Sources: POSIX.1-1988 (odc) and `cpio(5)` of FreeBSD (both).

use std::collections::HashMap;
use std::io::Write;

use super::entry::{Entry, Holes, Kind, Links, Refusal, Sink};
use super::fields::{Fields, Times};

/// Archives are padded to a multiple of this size.
const BLOCK: u64 = 512;

const TRAILER: &[u8] = b"TRAILER!!!";

/// The two formats.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum CpioFormat {
    /// Hexadecimal; files below 4 GiB. The format of initial RAM disks.
    Newc,
    /// Octal; files below 8 GiB, user and group ids below 2^18.
    Odc,
}

/// Writes a cpio archive.
pub(crate) struct Cpio<'a> {
    out: &'a mut dyn Write,
    format: CpioFormat,
    written: u64,
    /// Numbers of files with several names, for the format with short numbers; 16 bytes each.
    numbers: HashMap<u64, u64>,
}

/// The numbers of a header.
#[derive(Debug, Default)]
struct Header {
    ino: u64,
    mode: u64,
    nlink: u64,
    uid: u64,
    gid: u64,
    mtime: u64,
    size: u64,
    major: u64,
    minor: u64,
}

impl<'a> Cpio<'a> {
    pub(crate) fn new(out: &'a mut dyn Write, format: CpioFormat) -> Self {
        Self {
            out,
            format,
            written: 0,
            numbers: HashMap::new(),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }

    fn fill(&mut self, multiple: u64) -> Result<(), Refusal> {
        let rest = self.written.next_multiple_of(multiple) - self.written;
        // Less than `BLOCK`.
        self.put(&[0; BLOCK as usize][..usize::try_from(rest).unwrap_or(0)])
    }

    fn header(&mut self, h: &Header, path: &[u8]) -> Result<(), Refusal> {
        let mut bytes = match self.format {
            CpioFormat::Newc => newc(h, path.len() as u64 + 1),
            CpioFormat::Odc => odc(h, path.len() as u64 + 1),
        }
        .map_err(Refusal::Entry)?;
        bytes.extend_from_slice(path);
        bytes.push(0);
        self.put(&bytes)?;
        self.align()
    }

    fn align(&mut self) -> Result<(), Refusal> {
        match self.format {
            CpioFormat::Newc => self.fill(4),
            CpioFormat::Odc => Ok(()),
        }
    }

    /// The number that names of one file have in common.
    fn number(&mut self, entry: &Entry) -> u64 {
        if self.format == CpioFormat::Newc {
            return entry.ino;
        }
        // Eighteen bits are not enough for all files.
        if entry.kind == Kind::Directory || entry.nlink < 2 {
            return 0;
        }
        let next = self.numbers.len() as u64 + 1;
        *self.numbers.entry(entry.ino).or_insert(next)
    }
}

impl Sink for Cpio<'_> {
    fn name(&self) -> &str {
        match self.format {
            CpioFormat::Newc => "newc",
            CpioFormat::Odc => "odc",
        }
    }

    fn links(&self) -> Links {
        match self.format {
            CpioFormat::Newc => Links::LastHasContents,
            CpioFormat::Odc => Links::EachHasContents,
        }
    }

    fn holes(&self) -> Holes {
        Holes::Zeros
    }

    fn fields(&self) -> Fields {
        let (last, id, size, device) = match self.format {
            CpioFormat::Newc => (
                u32::MAX.into(),
                u32::MAX,
                u32::MAX.into(),
                (u32::MAX, u32::MAX),
            ),
            // The customary packing of two numbers into eighteen bits.
            CpioFormat::Odc => ((1 << 33) - 1, (1 << 18) - 1, (1 << 33) - 1, (0o1777, 0o377)),
        };
        Fields {
            times: Some(Times::seconds(last)),
            atime: false,
            id: Some(id),
            size,
            device: Some(device),
            ..Fields::ALL
        }
    }

    fn begin(&mut self, entry: &Entry) -> Result<Option<String>, Refusal> {
        let header = Header {
            ino: self.number(entry),
            mode: u64::from(entry.kind.mode() | entry.mode),
            nlink: entry.nlink.into(),
            uid: entry.uid.into(),
            gid: entry.gid.into(),
            mtime: u64::try_from(entry.mtime.0)
                .map_err(|_| Refusal::Entry("modification time is before 1970".to_owned()))?,
            size: match entry.kind {
                Kind::Symlink => entry.symlink.len() as u64,
                _ => entry.size,
            },
            major: redwarfs_format::device::major(entry.rdev).into(),
            minor: redwarfs_format::device::minor(entry.rdev).into(),
        };
        self.header(&header, &entry.path)?;
        if entry.kind == Kind::Symlink {
            self.put(&entry.symlink)?;
        }
        Ok(None)
    }

    fn data(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.put(bytes)
    }

    fn end(&mut self) -> Result<Option<String>, Refusal> {
        self.align()?;
        Ok(None)
    }

    fn close(&mut self) -> Result<Option<String>, Refusal> {
        let header = Header {
            nlink: 1,
            ..Header::default()
        };
        self.header(&header, TRAILER)?;
        self.fill(BLOCK)?;
        self.out.flush()?;
        Ok(None)
    }
}

fn newc(h: &Header, name_size: u64) -> Result<Vec<u8>, String> {
    let mut out = b"070701".to_vec();
    for (what, value) in [
        ("inode number", h.ino),
        ("mode", h.mode),
        ("user id", h.uid),
        ("group id", h.gid),
        ("link count", h.nlink),
        ("modification time", h.mtime),
        ("size", h.size),
        ("device number", 0),
        ("device number", 0),
        ("major device number", h.major),
        ("minor device number", h.minor),
        ("path length", name_size),
        ("checksum", 0),
    ] {
        if value > u32::MAX.into() {
            return Err(format!("{what} {value} is too large"));
        }
        out.extend_from_slice(format!("{value:08X}").as_bytes());
    }
    Ok(out)
}

fn odc(h: &Header, name_size: u64) -> Result<Vec<u8>, String> {
    let mut out = b"070707".to_vec();
    // The customary packing of two numbers into eighteen bits.
    if h.major > 0o1777 || h.minor > 0o377 {
        return Err(format!(
            "device number {}:{} is too large",
            h.major, h.minor
        ));
    }
    let device = (h.major << 8) | h.minor;
    for (what, value, width) in [
        ("device number", 0, 6),
        ("number of files with several names", h.ino, 6),
        ("mode", h.mode, 6),
        ("user id", h.uid, 6),
        ("group id", h.gid, 6),
        ("link count", h.nlink, 6),
        ("device number", device, 6),
        ("modification time", h.mtime, 11),
        ("path length", name_size, 6),
        ("size", h.size, 11),
    ] {
        let digits = format!("{value:0width$o}");
        if digits.len() > width {
            return Err(format!("{what} {value} is too large"));
        }
        out.extend_from_slice(digits.as_bytes());
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn write(format: CpioFormat, entry: &Entry, data: &[u8]) -> Result<Vec<u8>, Refusal> {
        let mut out = Vec::new();
        let mut cpio = Cpio::new(&mut out, format);
        cpio.begin(entry)?;
        cpio.data(data)?;
        cpio.end()?;
        cpio.close()?;
        Ok(out)
    }

    #[test]
    fn newc_layout() {
        let file = Entry {
            size: 3,
            ..Entry::sample(Kind::Regular)
        };
        let out = write(CpioFormat::Newc, &file, b"xyz").unwrap();
        assert_eq!(out.len(), 512);
        let head = "07070100000007000081A4000003E80000006400000001";
        assert!(out.starts_with(head.as_bytes()));
        assert_eq!(&out[110..114], b"a/b\0");
        // 114 is filled up to 116.
        assert_eq!(&out[116..120], b"xyz\0");
        assert_eq!(&out[120..126], b"070701");
        assert_eq!(&out[230..241], b"TRAILER!!!\0");
    }

    #[test]
    fn odc_layout() {
        let link = Entry {
            symlink: b"to".to_vec(),
            ..Entry::sample(Kind::Symlink)
        };
        let out = write(CpioFormat::Odc, &link, b"").unwrap();
        assert_eq!(out.len(), 512);
        let head = "0707070000000000001206440017500001440000010000001372741000000000400000000002";
        assert_eq!(std::str::from_utf8(&out[..76]), Ok(head));
        assert_eq!(&out[76..82], b"a/b\0to");
        assert_eq!(&out[82..88], b"070707");
    }

    #[test]
    fn what_does_not_fit_is_named() {
        let cases = [
            (CpioFormat::Newc, u64::from(u32::MAX) + 1, 0),
            (CpioFormat::Odc, 1 << 33, 0),
            (CpioFormat::Odc, 0, 1 << 18),
        ];
        for (format, size, uid) in cases {
            let file = Entry {
                size,
                uid,
                ..Entry::sample(Kind::Regular)
            };
            match write(format, &file, b"") {
                Err(Refusal::Entry(e)) => assert!(e.ends_with("is too large"), "{e}"),
                other => panic!("{other:?}"),
            }
        }
    }
}
