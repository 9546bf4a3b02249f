//! Recognises files by their format. Only formats that say where a file ends are here: a file counts if its end is
//! there, too.

use std::io::Read;

use flate2::bufread::GzDecoder;

/// How certain a recognised file is whole.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Certainty {
    /// Checksums of its format are right, over all of its data.
    Checked,
    /// Its structure leads from its start to its end. Data in between may belong to another file.
    Structure,
}

impl Certainty {
    /// The name in reports.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::Checked => "checked",
            Self::Structure => "structure",
        }
    }
}

/// A file that was recognised.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Recognised {
    /// Where it begins.
    pub offset: usize,
    /// Its length in bytes.
    pub length: usize,
    /// Usual end of the names of such files, without a dot.
    pub extension: &'static str,
    /// How certain it is that this is a whole file.
    pub certainty: Certainty,
}

/// Length and certainty of the file at the start of some bytes; none if it is not whole.
type Measure = fn(&[u8]) -> Option<(usize, Certainty)>;

struct Format {
    magic: &'static [u8],
    extension: &'static str,
    measure: Measure,
}

const FORMATS: [Format; 7] = [
    Format {
        magic: b"\x89PNG\r\n\x1a\n",
        extension: "png",
        measure: png,
    },
    Format {
        magic: b"\xff\xd8\xff",
        extension: "jpg",
        measure: jpeg,
    },
    Format {
        magic: b"\x1f\x8b\x08",
        extension: "gz",
        measure: gzip,
    },
    Format {
        magic: b"PK\x03\x04",
        extension: "zip",
        measure: zip,
    },
    Format {
        magic: b"%PDF-",
        extension: "pdf",
        measure: pdf,
    },
    Format {
        magic: b"\x7fELF",
        extension: "elf",
        measure: elf,
    },
    Format {
        magic: b"RIFF",
        extension: "riff",
        measure: riff,
    },
];

/// Longest file that the search decompresses to see its end (256 MiB).
const DECODED: u64 = 256 << 20;
/// Most bytes that a search for ends looks at in all, so that hostile data cannot make it take forever.
const EFFORT: usize = 16;

/// The files in some bytes, in their order. They do not overlap.
#[must_use]
pub fn recognise(bytes: &[u8]) -> Vec<Recognised> {
    let mut out: Vec<Recognised> = Vec::new();
    let mut at = 0;
    let mut effort = bytes.len().saturating_mul(EFFORT);
    while let Some(rest) = bytes.get(at..).filter(|rest| !rest.is_empty()) {
        let format = FORMATS.iter().find(|format| rest.starts_with(format.magic));
        let Some(format) = format.filter(|_| effort > 0) else {
            at += 1;
            continue;
        };
        match (format.measure)(rest) {
            Some((length, certainty)) => {
                out.push(Recognised {
                    offset: at,
                    length,
                    extension: format.extension,
                    certainty,
                });
                at += length.max(1);
            }
            None => {
                // In the worst case it has looked at everything.
                effort = effort.saturating_sub(rest.len());
                at += 1;
            }
        }
    }
    out
}

fn word(bytes: &[u8], at: usize) -> Option<[u8; 4]> {
    bytes.get(at..)?.first_chunk().copied()
}

fn little(bytes: &[u8], at: usize, len: usize) -> Option<u64> {
    let part = bytes.get(at..)?.get(..len)?;
    let number = part.iter().rev();
    Some(number.fold(0, |number, byte| number << 8 | u64::from(*byte)))
}

/// Chunks with checksums, up to IEND.
fn png(bytes: &[u8]) -> Option<(usize, Certainty)> {
    let mut at = 8;
    loop {
        let length = u32::from_be_bytes(word(bytes, at)?) as usize;
        let kind = word(bytes, at + 4)?;
        let end = (at + 8).checked_add(length)?;
        let mut crc = flate2::Crc::new();
        crc.update(bytes.get(at + 4..end)?);
        if crc.sum() != u32::from_be_bytes(word(bytes, end)?) || (at == 8) != (kind == *b"IHDR") {
            return None;
        }
        at = end + 4;
        if kind == *b"IEND" {
            return Some((at, Certainty::Checked));
        }
    }
}

/// Segments up to the scans, and the scans up to the end of the image.
fn jpeg(bytes: &[u8]) -> Option<(usize, Certainty)> {
    let mut at = 2;
    let mut scanned = false;
    loop {
        let [marker, kind] = *bytes.get(at..)?.first_chunk()?;
        if marker != 0xff {
            return None;
        }
        match kind {
            0xd9 if scanned => return Some((at + 2, Certainty::Structure)),
            // Filling.
            0xff => at += 1,
            0x00 | 0x01 | 0xd0..=0xd9 => return None,
            _ => {
                let [high, low] = *bytes.get(at + 2..)?.first_chunk()?;
                let length = usize::from(u16::from_be_bytes([high, low]));
                if length < 2 {
                    return None;
                }
                at += 2 + length;
                if kind == 0xda {
                    scanned = true;
                    at = after_scan(bytes, at)?;
                }
            }
        }
    }
}

/// Where the next marker is that ends the data of a scan.
fn after_scan(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        let [first, second] = *bytes.get(at..)?.first_chunk()?;
        match (first, second) {
            (0xff, 0x00 | 0xd0..=0xd7) => at += 2,
            (0xff, 0xff) => at += 1,
            (0xff, _) => return Some(at),
            _ => at += 1,
        }
    }
}

/// One member, whose checksum is right.
fn gzip(bytes: &[u8]) -> Option<(usize, Certainty)> {
    let mut rest = bytes;
    let mut decoder = GzDecoder::new(&mut rest).take(DECODED);
    let mut buffer = vec![0; 64 << 10];
    let mut any = false;
    loop {
        match decoder.read(&mut buffer) {
            Ok(0) => break,
            Ok(_) => any = true,
            Err(_) => return None,
        }
    }
    // At the limit nobody knows whether it is whole.
    let whole = any && decoder.limit() > 0;
    drop(decoder);
    whole.then(|| (bytes.len() - rest.len(), Certainty::Checked))
}

/// The end of the central directory, which leads back to the start.
fn zip(bytes: &[u8]) -> Option<(usize, Certainty)> {
    const END: &[u8] = b"PK\x05\x06";
    let mut from = 0;
    loop {
        let rest = bytes.get(from..)?;
        let at = from + rest.windows(END.len()).position(|window| window == END)?;
        let size = usize::try_from(little(bytes, at + 12, 4)?).ok()?;
        let start = usize::try_from(little(bytes, at + 16, 4)?).ok()?;
        let comment = usize::try_from(little(bytes, at + 20, 2)?).ok()?;
        let end = at + 22 + comment;
        let directory = bytes
            .get(start..)
            .is_some_and(|b| b.starts_with(b"PK\x01\x02"));
        if start.checked_add(size) == Some(at) && directory && end <= bytes.len() {
            return Some((end, Certainty::Structure));
        }
        from = at + 1;
    }
}

/// The last end in front of the next document.
fn pdf(bytes: &[u8]) -> Option<(usize, Certainty)> {
    const END: &[u8] = b"%%EOF";
    let document = bytes.get(5..)?;
    let next = document.windows(5).position(|window| window == b"%PDF-");
    let document = document.get(..next.unwrap_or(document.len()))?;
    let end = document.windows(END.len()).rposition(|w| w == END)? + 5 + END.len();
    // The position of the cross references stands in front of it.
    let before = bytes.get(end.saturating_sub(64)..end)?;
    let known = before.windows(9).any(|window| window == b"startxref");
    let mut end = end;
    while let Some(b'\r' | b'\n') = bytes.get(end) {
        end += 1;
    }
    known.then_some((end, Certainty::Structure))
}

/// The table of section headers, which linkers write last. It leads to the names of the sections, so a file that misses a part
/// in the middle is none.
fn elf(bytes: &[u8]) -> Option<(usize, Certainty)> {
    let class = *bytes.get(4)?;
    // Little-endian only: others are rare.
    if *bytes.get(5)? != 1 || *bytes.get(6)? != 1 {
        return None;
    }
    // The width of a position, and where they are: that of the table, the size of a header, the place of a section.
    let (width, offset, sizes, place) = match class {
        1 => (4, 0x20, 0x2e, 0x10),
        2 => (8, 0x28, 0x3a, 0x18),
        _ => return None,
    };
    let table = little(bytes, offset, width)?;
    let size = little(bytes, sizes, 2)?;
    let count = little(bytes, sizes + 2, 2)?;
    let known = matches!((class, size), (1, 40) | (2, 64)) && table > 0 && count > 0;
    let end = table.checked_add(size * count).filter(|_| known)?;
    let end = usize::try_from(end).ok()?;
    let bytes = bytes.get(..end)?;
    let mut headers = bytes
        .get(usize::try_from(table).ok()?..)?
        .chunks_exact(usize::try_from(size).ok()?);
    let first = headers.clone().next()?;
    let names = headers
        .clone()
        .nth(usize::try_from(little(bytes, sizes + 4, 2)?).ok()?)?;
    let contents = |header: &[u8]| {
        let at = usize::try_from(little(header, place, width)?).ok()?;
        let length = usize::try_from(little(header, place + width, width)?).ok()?;
        bytes.get(at..)?.get(..length)
    };
    const STRINGS: u64 = 3;
    let is_strings = little(names, 4, 4)? == STRINGS;
    let names = contents(names).filter(|names| is_strings && names.last() == Some(&0))?;
    // A name begins at the start of the table, or behind another one, or within one whose end it shares.
    let is_name = |at: usize| {
        let name = names.get(at..)?.split(|byte| *byte == 0).next()?;
        Some(name.iter().all(u8::is_ascii_graphic))
    };
    let named = headers.all(|header| {
        let at = little(header, 0, 4).and_then(|at| usize::try_from(at).ok());
        at.and_then(is_name) == Some(true)
    });
    let whole = named && first.iter().take(16).all(|byte| *byte == 0);
    whole.then_some((end, Certainty::Structure))
}

/// A size in the header, of WAVE, AVI and WebP.
fn riff(bytes: &[u8]) -> Option<(usize, Certainty)> {
    let size = usize::try_from(little(bytes, 4, 4)?).ok()?;
    let known = matches!(&word(bytes, 8)?, b"WAVE" | b"AVI " | b"WEBP");
    let end = size.checked_add(8)?.next_multiple_of(2);
    (known && size >= 4 && end <= bytes.len()).then_some((end, Certainty::Structure))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use std::io::Write;

    use super::*;

    /// A small picture: only the structure counts.
    fn png_file() -> Vec<u8> {
        let mut out = b"\x89PNG\r\n\x1a\n".to_vec();
        for (kind, data) in [(b"IHDR", &[0; 13][..]), (b"IDAT", b"data"), (b"IEND", b"")] {
            out.extend((data.len() as u32).to_be_bytes());
            let mut crc = flate2::Crc::new();
            crc.update(kind);
            crc.update(data);
            out.extend(kind);
            out.extend(data);
            out.extend(crc.sum().to_be_bytes());
        }
        out
    }

    fn gzip_file() -> Vec<u8> {
        let mut out = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
        out.write_all(&b"some words ".repeat(100)).unwrap();
        out.finish().unwrap()
    }

    fn jpeg_file() -> Vec<u8> {
        let mut out = b"\xff\xd8\xff\xe0\x00\x04ab".to_vec();
        out.extend(b"\xff\xda\x00\x02scan\xff\x00\xff\xd0more\xff\xd9");
        out
    }

    fn zip_file() -> Vec<u8> {
        let mut out = b"PK\x03\x04 an entry ".to_vec();
        let start = out.len() as u32;
        out.extend(b"PK\x01\x02 a directory");
        let size = out.len() as u32 - start;
        out.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
        out.extend(size.to_le_bytes());
        out.extend(start.to_le_bytes());
        out.extend([2, 0]);
        out.extend(b"hi");
        out
    }

    fn pdf_file() -> Vec<u8> {
        b"%PDF-1.4\nobjects\nstartxref\n9\n%%EOF\n".to_vec()
    }

    fn riff_file() -> Vec<u8> {
        let mut out = b"RIFF\x0c\0\0\0WAVE".to_vec();
        out.extend([1; 8]);
        out
    }

    fn elf_file() -> Vec<u8> {
        let mut out = vec![0; 80 + 128];
        out[..7].copy_from_slice(b"\x7fELF\x02\x01\x01");
        out[0x28] = 80;
        out[0x3a] = 64;
        out[0x3c] = 2;
        out[0x3e] = 1;
        out[64..76].copy_from_slice(b"\0.shstrtab.\0");
        let names = 80 + 64;
        (out[names], out[names + 4]) = (1, 3);
        (out[names + 0x18], out[names + 0x20]) = (64, 12);
        out
    }

    fn files() -> Vec<(&'static str, Vec<u8>)> {
        vec![
            ("png", png_file()),
            ("jpg", jpeg_file()),
            ("gz", gzip_file()),
            ("zip", zip_file()),
            ("pdf", pdf_file()),
            ("elf", elf_file()),
            ("riff", riff_file()),
        ]
    }

    #[test]
    fn whole_files_are_recognised_between_others() {
        let mut bytes = b"some text\n".to_vec();
        let mut expected = Vec::new();
        for (extension, file) in files() {
            expected.push((bytes.len(), file.len(), extension));
            bytes.extend(&file);
            bytes.extend(b" and ");
        }
        let found = recognise(&bytes);
        let found: Vec<_> = found
            .iter()
            .map(|file| (file.offset, file.length, file.extension))
            .collect();
        assert_eq!(found, expected);
    }

    #[test]
    fn a_file_without_its_end_is_none() {
        for (extension, file) in files() {
            let found = recognise(&file);
            assert_eq!(found.len(), 1, "{extension}");
            assert_eq!(found[0].length, file.len(), "{extension}");
            // Line ends behind the end of a document do not count.
            let end = file.len() - usize::from(extension == "pdf");
            for len in 0..end {
                assert!(recognise(&file[..len]).is_empty(), "{extension} {len}");
            }
        }
    }

    #[test]
    fn changed_files_with_checksums_are_none() {
        for file in [png_file(), gzip_file()] {
            assert_eq!(recognise(&file)[0].certainty, Certainty::Checked);
            // The header of gzip has no checksum.
            for at in 10..file.len() {
                let mut changed = file.clone();
                changed[at] ^= 1;
                assert!(recognise(&changed).is_empty(), "{at}");
            }
        }
    }

    #[test]
    fn a_program_that_misses_a_part_is_none() {
        let whole = elf_file();
        // Zeros follow, so the header that has to be empty is, wherever it is looked for.
        for cut in 1..16 {
            let mut bytes = [&whole[..64], &whole[64 + cut..]].concat();
            bytes.extend([0; 300]);
            assert!(recognise(&bytes).is_empty(), "{cut}");
        }
        let program = std::fs::read(std::env::current_exe().unwrap()).unwrap();
        if program.starts_with(b"\x7fELF") {
            assert_eq!(recognise(&program)[0].length, program.len());
        }
    }

    #[test]
    fn hostile_bytes_take_limited_time() {
        for magic in FORMATS.iter().map(|format| format.magic) {
            let bytes = magic.repeat(100_000);
            assert!(recognise(&bytes).len() <= bytes.len());
        }
    }
}
