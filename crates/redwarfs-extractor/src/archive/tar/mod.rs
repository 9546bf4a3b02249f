//! tar, written by ourselves.

mod header;

use std::fmt;
use std::io::Write;
use std::str::FromStr;

use super::entry::{Entry, Holes, Kind, Links, Refusal, Sink};
use super::fields::{Fields, SECOND, Times};
use header::BLOCK;

/// Archives are filled up to a multiple of this, the customary 20 records.
const RECORD: u64 = 20 * BLOCK as u64;

/// The dialects of tar that need no library.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum TarFormat {
    /// POSIX.1-1988: paths up to 255 bytes, files below 8 GiB, whole seconds.
    Ustar,
    /// POSIX.1-2001: no limits. It has extended records only if they are needed, and holes in GNU
    /// sparse format 1.0.
    Pax,
    /// GNU tar: no limits, whole seconds; holes in the old GNU sparse format.
    Gnutar,
}

impl TarFormat {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Ustar, Self::Pax, Self::Gnutar];

    /// The name on command lines.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Ustar => "ustar",
            Self::Pax => "pax",
            Self::Gnutar => "gnutar",
        }
    }
}

impl fmt::Display for TarFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for TarFormat {
    type Err = String;

    fn from_str(s: &str) -> std::result::Result<Self, String> {
        Self::ALL
            .into_iter()
            .find(|format| format.name() == s)
            .ok_or_else(|| format!("No such format '{s}'"))
    }
}

/// Writes a tar archive.
pub(crate) struct Tar<'a> {
    out: &'a mut dyn Write,
    format: TarFormat,
    written: u64,
}

impl<'a> Tar<'a> {
    pub(crate) fn new(out: &'a mut dyn Write, format: TarFormat) -> Self {
        Self {
            out,
            format,
            written: 0,
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.out.write_all(bytes)?;
        self.written += bytes.len() as u64;
        Ok(())
    }
}

impl Sink for Tar<'_> {
    fn name(&self) -> &str {
        self.format.name()
    }

    fn links(&self) -> Links {
        Links::Reference
    }

    fn holes(&self) -> Holes {
        match self.format {
            TarFormat::Ustar => Holes::Zeros,
            TarFormat::Pax | TarFormat::Gnutar => Holes::Left,
        }
    }

    fn fields(&self) -> Fields {
        match self.format {
            TarFormat::Ustar => Fields {
                times: Some(Times::seconds((1 << 33) - 1)),
                atime: false,
                id: Some((1 << 21) - 1),
                size: (1 << 33) - 1,
                device: Some(((1 << 21) - 1, (1 << 21) - 1)),
                ..Fields::ALL
            },
            TarFormat::Gnutar => Fields {
                times: Some(Times::all(SECOND)),
                atime: false,
                ..Fields::ALL
            },
            TarFormat::Pax => Fields {
                xattrs: true,
                ..Fields::ALL
            },
        }
    }

    fn directories_last(&self) -> bool {
        true
    }

    fn has_root(&self) -> bool {
        true
    }

    fn begin(&mut self, entry: &Entry) -> Result<Option<String>, Refusal> {
        let kind = match entry.kind {
            Kind::Directory => header::DIRECTORY,
            Kind::Regular if entry.hard_link.is_some() => header::HARD_LINK,
            Kind::Regular => header::REGULAR,
            Kind::Symlink => header::SYMLINK,
            Kind::CharDevice => header::CHAR_DEVICE,
            Kind::BlockDevice => header::BLOCK_DEVICE,
            Kind::Fifo => header::FIFO,
            Kind::Socket => return Err(Refusal::Entry("sockets have no form in it".to_owned())),
        };
        let mut path = entry.path.clone();
        if entry.kind == Kind::Directory {
            path.push(b'/');
        }
        let link = entry.hard_link.as_ref().unwrap_or(&entry.symlink);
        let mut head = header::Entry {
            path,
            kind,
            mode: entry.mode,
            uid: entry.uid.into(),
            gid: entry.gid.into(),
            size: entry.size,
            mtime: entry.mtime,
            atime: entry.atime,
            link: link.clone(),
            device: (
                redwarfs_format::device::major(entry.rdev),
                redwarfs_format::device::minor(entry.rdev),
            ),
            sparse: None,
            birth: entry.birth,
            flags: match &entry.hard_link {
                Some(_) => 0,
                None => entry.flags,
            },
            xattrs: match &entry.hard_link {
                Some(_) => Vec::new(),
                None => entry.xattrs.clone(),
            },
        };
        let mut map = Vec::new();
        if let Some(ranges) = &entry.ranges
            && self.holes() == Holes::Left
        {
            let data: u64 = ranges.iter().map(|(_, size)| size).sum();
            let ranges = with_end(ranges, entry.size);
            head.size = data;
            if self.format == TarFormat::Pax {
                map = sparse_map(&ranges);
                head.size = data.saturating_add(map.len() as u64);
            }
            head.sparse = Some(header::Sparse {
                real_size: entry.size,
                ranges,
            });
        }
        let bytes = header::encode(self.format, &head).map_err(Refusal::Entry)?;
        self.put(&bytes)?;
        self.put(&map)?;
        Ok(None)
    }

    fn data(&mut self, bytes: &[u8]) -> Result<(), Refusal> {
        self.put(bytes)
    }

    fn end(&mut self) -> Result<Option<String>, Refusal> {
        let rest = self.written.next_multiple_of(BLOCK as u64) - self.written;
        // Less than a record.
        self.put(&[0; BLOCK][..usize::try_from(rest).unwrap_or(0)])?;
        Ok(None)
    }

    fn close(&mut self) -> Result<Option<String>, Refusal> {
        self.put(&[0; 2 * BLOCK])?;
        while !self.written.is_multiple_of(RECORD) {
            self.put(&[0; BLOCK])?;
        }
        self.out.flush()?;
        Ok(None)
    }
}

/// The ranges of data with an empty one at the end if there is a hole.
fn with_end(ranges: &[(u64, u64)], size: u64) -> Vec<(u64, u64)> {
    let mut ranges = ranges.to_vec();
    if ranges
        .last()
        .is_none_or(|(start, length)| start + length != size)
    {
        ranges.push((size, 0));
    }
    ranges
}

/// The map of GNU sparse format 1.0: numbers in decimal, one per line, filled up to a record.
fn sparse_map(ranges: &[(u64, u64)]) -> Vec<u8> {
    let mut map = format!("{}\n", ranges.len());
    for (start, length) in ranges {
        map.push_str(&format!("{start}\n{length}\n"));
    }
    let mut map = map.into_bytes();
    header::pad(&mut map);
    map
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formats_have_names() {
        for format in TarFormat::ALL {
            assert_eq!(format.name().parse(), Ok(format));
        }
        let error = "tarx".parse::<TarFormat>().unwrap_err();
        assert_eq!(error, "No such format 'tarx'");
    }

    #[test]
    fn sparse_maps() {
        let text = |ranges: &[(u64, u64)], size| {
            let map = sparse_map(&with_end(ranges, size));
            assert_eq!(map.len() % BLOCK, 0);
            String::from_utf8(map)
                .unwrap()
                .trim_end_matches('\0')
                .to_owned()
        };
        assert_eq!(text(&[(0, 5), (10, 5)], 15), "2\n0\n5\n10\n5\n");
        assert_eq!(text(&[(0, 5)], 15), "2\n0\n5\n15\n0\n");
        assert_eq!(text(&[], 15), "1\n15\n0\n");
    }
}
