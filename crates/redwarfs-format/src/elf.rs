//! The program in front of an image, if it is an ELF file: where it ends, and where its sections are.
//!
//! An image may be appended to a program that mounts it. The program ends where its table of sections ends, so
//! that the image is found without a search. Tools for AppImages put texts into sections of the program.

use crate::section::ReadAt;

/// Bytes of the file header that are looked at; the one of 32 bits is shorter.
const HEADER: usize = 64;

/// Largest part of the names of sections that is read.
const MOST_NAMES: u64 = 64 << 10;

/// The table of sections of an ELF file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Elf {
    wide: bool,
    little: bool,
    machine: u16,
    table: u64,
    entry: u64,
    count: u64,
    /// Number of the section with the names of all.
    names: u64,
}

/// Where a section lies in its file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ElfSection {
    /// Its first byte.
    pub offset: u64,
    /// Its length in bytes.
    pub size: u64,
}

impl Elf {
    /// Reads the header of a file. None if it is no ELF file, or one without sections, or cannot be read.
    pub fn read(read: &ReadAt<'_>) -> Option<Self> {
        let mut header = [0; HEADER];
        read(0, &mut header).ok()?;
        Self::parse(&header)
    }

    fn parse(header: &[u8; HEADER]) -> Option<Self> {
        let [0x7f, b'E', b'L', b'F', class @ (1 | 2), order @ (1 | 2), ..] = *header else {
            return None;
        };
        let (wide, little) = (class == 2, order == 1);
        let fields = match wide {
            true => [(40, 8), (58, 2), (60, 2), (62, 2), (18, 2)],
            false => [(32, 4), (46, 2), (48, 2), (50, 2), (18, 2)],
        };
        let field = |(at, len)| number(header, at, len, little);
        let [table, entry, count, names, machine] = fields.map(field);
        Some(Self {
            wide,
            little,
            machine: u16::try_from(machine?).ok()?,
            table: table.filter(|&table| table > 0)?,
            entry: entry?,
            count: count?,
            names: names?,
        })
    }

    /// The end of the file: behind the table of sections, which linkers write last.
    #[must_use]
    pub fn end(self) -> Option<u64> {
        self.table.checked_add(self.entry * self.count)
    }

    /// The processor that it runs on, as `uname -m` names it. None for one that is not known here.
    #[must_use]
    pub fn machine(self) -> Option<&'static str> {
        Some(match (self.machine, self.wide, self.little) {
            (3, false, true) => "i686",
            (62, true, true) => "x86_64",
            (40, false, true) => "armv7l",
            (183, true, true) => "aarch64",
            (243, true, true) => "riscv64",
            (243, false, true) => "riscv32",
            (258, true, true) => "loongarch64",
            (21, true, true) => "ppc64le",
            (21, true, false) => "ppc64",
            (22, true, false) => "s390x",
            _ => return None,
        })
    }

    /// The section with a name. None if there is none, or the table cannot be read.
    pub fn section(self, read: &ReadAt<'_>, name: &str) -> Option<ElfSection> {
        let (_, place) = self.entry(read, self.names)?;
        let mut names = vec![0; usize::try_from(place.size.min(MOST_NAMES)).ok()?];
        read(place.offset, &mut names).ok()?;
        (0..self.count).find_map(|index| {
            let (at, place) = self.entry(read, index)?;
            let found = names.get(usize::try_from(at).ok()?..)?;
            let same = found.strip_prefix(name.as_bytes())?.first() == Some(&0);
            same.then_some(place)
        })
    }

    /// Where the name of a section starts in the section with the names of all, and its place.
    fn entry(self, read: &ReadAt<'_>, index: u64) -> Option<(u64, ElfSection)> {
        let mut entry = [0; HEADER];
        let length = if self.wide { 64 } else { 40 };
        let at = self.table.checked_add(index.checked_mul(self.entry)?)?;
        read(at, entry.get_mut(..length)?).ok()?;
        let fields = match self.wide {
            true => [(0, 4), (24, 8), (32, 8)],
            false => [(0, 4), (16, 4), (20, 4)],
        };
        let [name, offset, size] = fields.map(|(at, len)| number(&entry, at, len, self.little));
        let (offset, size) = (offset?, size?);
        Some((name?, ElfSection { offset, size }))
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

/// Sections of a program in front of an image into which tools for AppImages write.
pub mod appimage {
    use super::{Elf, ElfSection};
    use crate::section::ReadAt;

    /// Name of the section with update information; 1,024 bytes.
    pub const UPDATE_INFORMATION: &str = ".upd_info";
    /// Name of the section with a signature of the whole file; 1,024 bytes.
    pub const SIGNATURE: &str = ".sha256_sig";
    /// Name of the section with the key of the signature; 8,192 bytes.
    pub const KEY: &str = ".sig_key";

    /// Names of all.
    pub const ALL: [&str; 3] = [UPDATE_INFORMATION, SIGNATURE, KEY];

    /// Largest of them that counts.
    const MOST: u64 = 64 << 10;

    /// The sections with some of these names in the program in front of an image at `image`, in the order of their
    /// places. They do not overlap. There are none if the program is no ELF file.
    pub fn sections(read: &ReadAt<'_>, image: u64, names: &[&str]) -> Vec<ElfSection> {
        let Some(elf) = Elf::read(read) else {
            return Vec::new();
        };
        let found = names.iter().filter_map(|name| elf.section(read, name));
        let mut found: Vec<_> = found
            .filter(|section| (1..=MOST).contains(&section.size))
            .collect();
        found.sort_by_key(|section| section.offset);
        let mut free = 0;
        found.retain(|section| {
            let end = section.offset.checked_add(section.size);
            let end = end.filter(|&end| section.offset >= free && end <= image);
            free = end.unwrap_or(free);
            end.is_some()
        });
        found
    }
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
        header[18..20].copy_from_slice(&[62, 0]);
        assert_eq!(end(&header), None);
        header[40..48].copy_from_slice(&1000_u64.to_le_bytes());
        header[58..62].copy_from_slice(&[64, 0, 3, 0]);
        assert_eq!(end(&header), Some(1192));
        assert_eq!(Elf::parse(&header).unwrap().machine(), Some("x86_64"));
        header[40..48].copy_from_slice(&u64::MAX.to_le_bytes());
        assert_eq!(end(&header), None);
        // Big-endian, 32 bits.
        header = [0; HEADER];
        header[..6].copy_from_slice(b"\x7fELF\x01\x02");
        header[32..36].copy_from_slice(&1000_u32.to_be_bytes());
        header[46..50].copy_from_slice(&[0, 40, 0, 2]);
        assert_eq!(end(&header), Some(1080));
        assert_eq!(Elf::parse(&header).unwrap().machine(), None);
    }
}
