//! Where the program ends in its file, so that the image behind it begins, and what its sections hold.

use std::fs::File;
use std::os::unix::fs::FileExt;

/// Bytes of the file header that are looked at; the one of 32 bits is shorter.
const HEADER: usize = 64;

/// Largest part of a section that is read. The ones that are asked for have 1 KiB.
const MOST: u64 = 64 << 10;

/// The table of sections of an ELF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Elf {
    wide: bool,
    little: bool,
    table: u64,
    entry: u64,
    count: u64,
    /// Number of the section with the names of all.
    names: u64,
}

impl Elf {
    /// Reads the header of a file. None if it is no ELF file, or one without sections.
    pub(crate) fn of(file: &File) -> Option<Self> {
        let mut header = [0; HEADER];
        file.read_exact_at(&mut header, 0).ok()?;
        Self::parse(&header)
    }

    fn parse(header: &[u8; HEADER]) -> Option<Self> {
        let [0x7f, b'E', b'L', b'F', class @ (1 | 2), order @ (1 | 2), ..] = *header else {
            return None;
        };
        let (wide, little) = (class == 2, order == 1);
        let fields = match wide {
            true => [(40, 8), (58, 2), (60, 2), (62, 2)],
            false => [(32, 4), (46, 2), (48, 2), (50, 2)],
        };
        let field = |(at, len)| number(header, at, len, little);
        let [table, entry, count, names] = fields.map(field);
        Some(Self {
            wide,
            little,
            table: table.filter(|&table| table > 0)?,
            entry: entry?,
            count: count?,
            names: names?,
        })
    }

    /// The end of the file: behind the table of sections, which linkers write last.
    pub(crate) fn end(self) -> Option<u64> {
        self.table.checked_add(self.entry * self.count)
    }

    /// The contents of the section with a name.
    pub(crate) fn section(self, file: &File, name: &str) -> Option<Vec<u8>> {
        let names = self.entry(file, self.names)?.contents(file)?;
        (0..self.count).find_map(|index| {
            let entry = self.entry(file, index)?;
            let found = names.get(usize::try_from(entry.name).ok()?..)?;
            let same = found.strip_prefix(name.as_bytes())?.first() == Some(&0);
            // A section without contents in the file is of no use to anybody.
            same.then(|| entry.contents(file).unwrap_or_default())
        })
    }

    fn entry(self, file: &File, index: u64) -> Option<SectionEntry> {
        let mut entry = [0; HEADER];
        let length = if self.wide { 64 } else { 40 };
        let at = self.table.checked_add(index.checked_mul(self.entry)?)?;
        file.read_exact_at(entry.get_mut(..length)?, at).ok()?;
        let fields = match self.wide {
            true => [(0, 4), (24, 8), (32, 8)],
            false => [(0, 4), (16, 4), (20, 4)],
        };
        let [name, offset, size] = fields.map(|(at, len)| number(&entry, at, len, self.little));
        Some(SectionEntry {
            name: name?,
            offset: offset?,
            size: size?,
        })
    }
}

/// One entry of the table of sections.
struct SectionEntry {
    /// Where the name starts in the section with the names of all.
    name: u64,
    offset: u64,
    size: u64,
}

impl SectionEntry {
    /// At most [`MOST`] bytes. None if the file does not have them.
    fn contents(&self, file: &File) -> Option<Vec<u8>> {
        let mut bytes = vec![0; usize::try_from(self.size.min(MOST)).ok()?];
        file.read_exact_at(&mut bytes, self.offset).ok()?;
        Some(bytes)
    }
}

/// The number in `len` bytes.
fn number(bytes: &[u8], at: usize, len: usize, little: bool) -> Option<u64> {
    let bytes = bytes.get(at..at + len)?;
    let add = |sum: u64, byte: &u8| sum << 8 | u64::from(*byte);
    Some(match little {
        true => bytes.iter().rev().fold(0, add),
        false => bytes.iter().fold(0, add),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_end_is_behind_the_sections() {
        let end = |header: &[u8; HEADER]| Elf::parse(header).and_then(Elf::end);
        let mut header = [0; HEADER];
        assert_eq!(end(&header), None);
        header[..6].copy_from_slice(b"\x7fELF\x02\x01");
        assert_eq!(end(&header), None);
        header[40..48].copy_from_slice(&1000_u64.to_le_bytes());
        header[58..62].copy_from_slice(&[64, 0, 3, 0]);
        assert_eq!(end(&header), Some(1192));
        header[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(end(&header), None);
        // Big-endian, 32 bits.
        header = [0; HEADER];
        header[..6].copy_from_slice(b"\x7fELF\x01\x02");
        header[32..36].copy_from_slice(&1000_u32.to_be_bytes());
        header[46..50].copy_from_slice(&[0, 40, 0, 2]);
        assert_eq!(end(&header), Some(1080));
    }

    #[test]
    fn sections_of_this_program() {
        let file = File::open("/proc/self/exe").unwrap();
        let elf = Elf::of(&file).unwrap();
        let size = file.metadata().unwrap().len();
        let end = elf.end().unwrap();
        assert!(end <= size && end > size / 2, "{end} of {size}");
        for (name, length) in [
            (".upd_info", 1024),
            (".sha256_sig", 1024),
            (".sig_key", 8192),
        ] {
            assert_eq!(elf.section(&file, name), Some(vec![0; length]), "{name}");
        }
        assert_eq!(elf.section(&file, ".upd"), None);
    }
}
