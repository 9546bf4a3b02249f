use super::header::V1Header;
use super::{
    Container, FIRST_V2_MINOR, MAGIC, MAJOR, ReadAt, SectionHeader, SectionType, V1_HEADER_LEN,
};
use crate::error::{Error, Result};
use std::cell::Cell;

/// Bytes examined at a time. This is all the memory a search needs.
const WINDOW: usize = 1 << 20;
/// Magic and major version.
const PATTERN: [u8; 7] = [
    MAGIC[0], MAGIC[1], MAGIC[2], MAGIC[3], MAGIC[4], MAGIC[5], MAJOR,
];
/// Bytes that a candidate needs to be judged. Windows overlap by one less, so that each
/// candidate is complete in some window.
const CANDIDATE: usize = SectionHeader::LEN;
/// Highest compression id that existed when images had no magic in section headers.
const MAX_V1_COMPRESSION: u16 = 4;

/// Where data may begin: the first offset from the given one on that is not known to be a hole,
/// the file size if there is none.
pub type NextData<'a> = dyn Fn(u64) -> std::io::Result<u64> + 'a;

/// Finds the first image in a file of `file_size` bytes and returns its offset.
///
/// A match needs, besides magic and version, a plausible second section (format chapter 01
/// section 6). Positions that fail are passed over one by one, so a false match never hides an
/// image. Memory is constant; time is linear in the file size, because a candidate costs one
/// small read, wherever its length points.
///
/// # Errors
/// [`Error::NotAnImage`] if there is none; [`Error::Io`] if reading fails.
pub fn locate_image(file_size: u64, read: &ReadAt<'_>) -> Result<u64> {
    locate_image_from(0, file_size, read)
}

/// Like [`locate_image`], but ignores everything before offset `start`.
///
/// # Errors
/// See [`locate_image`].
pub fn locate_image_from(start: u64, file_size: u64, read: &ReadAt<'_>) -> Result<u64> {
    search(start, file_size, read, &Ok)
}

/// Finds the `number`th image of a file, counted from 1, and returns its offset. Holes that
/// `next_data` knows are skipped.
///
/// The search for the next image begins after the end of the previous one. Data that looks like an
/// image, but has no sections that can be listed, also counts. Then the search continues after its
/// magic.
///
/// Time is linear in the file size: each section of the file is listed once.
///
/// # Errors
/// [`Error::NotAnImage`] with the number of images if there are fewer. [`Error::Limit`] if many
/// sections overlap, so that listing them would take very long; only a hostile file has these.
/// [`Error::Io`] if reading fails.
pub fn locate_image_number(
    number: u32,
    file_size: u64,
    read: &ReadAt<'_>,
    next_data: &NextData<'_>,
) -> Result<u64> {
    // If images do not overlap, each of their sections has its own header, and so do the few other
    // reads that opening an image takes.
    let reads = Cell::new(0_u64);
    let most = file_size / V1_HEADER_LEN as u64 + 1024;
    let counted = |at: u64, buf: &mut [u8]| {
        reads.set(reads.get().saturating_add(1));
        if reads.get() > most {
            return Err(std::io::Error::other("too many sections in one file"));
        }
        read(at, buf)
    };
    let mut start = 0;
    for found in 0..number {
        let at = match search(start, file_size, read, next_data) {
            Err(Error::NotAnImage(_)) if found > 0 => {
                let images = if found == 1 { "image" } else { "images" };
                return Err(Error::NotAnImage(format!(
                    "no filesystem number {number}, the file holds {found} {images}"
                )));
            }
            other => other?,
        };
        if found + 1 == number {
            return Ok(at);
        }
        let listed = Container::open(&counted, file_size, at, None);
        if reads.get() > most {
            return Err(Error::Limit("too many sections in one file".into()));
        }
        let end = match listed {
            Ok(container) => at.checked_add(container.size),
            Err(error @ Error::Io(_)) => return Err(error),
            Err(_) => None,
        };
        start = end.unwrap_or(at + MAGIC.len() as u64);
    }
    Err(Error::NotAnImage("images are counted from 1".into()))
}

fn search(start: u64, file_size: u64, read: &ReadAt<'_>, next_data: &NextData<'_>) -> Result<u64> {
    let window_len = usize::try_from(file_size.saturating_sub(start))
        .unwrap_or(WINDOW)
        .min(WINDOW);
    let mut buffer = vec![0; window_len];
    let mut base = start;
    while base < file_size {
        // Never back, whatever the function says.
        base = next_data(base)?.max(base);
        if base >= file_size {
            break;
        }
        let length = usize::try_from(file_size - base)
            .unwrap_or(WINDOW)
            .min(window_len);
        let window = Window {
            base,
            bytes: {
                let bytes = &mut buffer[..length];
                read(base, bytes)?;
                bytes
            },
            file_size,
            read,
        };
        let at_end = file_size - base == length as u64;
        // Candidates in the overlap are left to the next window, where they are complete.
        let end = if at_end {
            length
        } else {
            length - (CANDIDATE - 1)
        };
        let mut from = 0;
        while let Some(position) = find_pattern(window.bytes, from, end) {
            if window.is_image(position)? {
                return Ok(base + position as u64);
            }
            from = position + 1;
        }
        if at_end {
            break;
        }
        base += end as u64;
    }
    Err(Error::NotAnImage("no filesystem found".into()))
}

/// First occurrence of the pattern that starts in `from..end`.
fn find_pattern(bytes: &[u8], mut from: usize, end: usize) -> Option<usize> {
    /// Bytes that are tested together, which compilers turn into vector instructions.
    const GROUP: usize = 64;
    loop {
        let rest = bytes.get(from..end)?;
        let groups = rest
            .chunks_exact(GROUP)
            .take_while(|group| {
                !group
                    .iter()
                    .fold(false, |any, &byte| any | (byte == PATTERN[0]))
            })
            .count();
        let rest = &rest[groups * GROUP..];
        from += groups * GROUP + rest.iter().position(|&byte| byte == PATTERN[0])?;
        if bytes[from..].starts_with(&PATTERN) {
            return Some(from);
        }
        from += 1;
    }
}

struct Window<'w> {
    /// Absolute offset of the first byte.
    base: u64,
    bytes: &'w [u8],
    file_size: u64,
    read: &'w ReadAt<'w>,
}

impl Window<'_> {
    fn is_image(&self, position: usize) -> Result<bool> {
        let Some(&minor) = self.bytes.get(position + PATTERN.len()) else {
            return Ok(false);
        };
        let start = self.base + position as u64;
        if minor < FIRST_V2_MINOR {
            self.is_v1(start)
        } else {
            self.is_v2(start)
        }
    }

    fn is_v2(&self, start: u64) -> Result<bool> {
        let Some(first) = self.v2_header(Some(start))? else {
            return Ok(false);
        };
        if first.number != 0 {
            return Ok(false);
        }
        let next = (start + SectionHeader::LEN as u64).checked_add(first.length);
        Ok(self
            .v2_header(next)?
            .is_some_and(|second| second.version.major == MAJOR && second.number == 1))
    }

    fn is_v1(&self, start: u64) -> Result<bool> {
        let at = start + V1_HEADER_LEN as u64;
        let Some(first) = self.v1_header(at)? else {
            return Ok(false);
        };
        let next = at + V1_HEADER_LEN as u64 + u64::from(first.length);
        let Some(second) = self.v1_header(next)? else {
            return Ok(false);
        };
        Ok(match first.ty {
            SectionType::BLOCK => {
                matches!(
                    second.ty,
                    SectionType::BLOCK | SectionType::METADATA_V2_SCHEMA
                )
            }
            SectionType::METADATA_V2_SCHEMA => second.ty == SectionType::METADATA_V2,
            _ => false,
        })
    }

    fn v2_header(&self, at: Option<u64>) -> Result<Option<SectionHeader>> {
        let mut bytes = [0; SectionHeader::LEN];
        let Some(at) = at else { return Ok(None) };
        Ok(self
            .fetch(at, &mut bytes)?
            .then(|| SectionHeader::parse(&bytes).ok())
            .flatten())
    }

    /// A section header that a v1 image can begin with: neither empty nor with a codec from
    /// later times.
    fn v1_header(&self, at: u64) -> Result<Option<V1Header>> {
        let mut bytes = [0; V1_HEADER_LEN];
        if !self.fetch(at, &mut bytes)? {
            return Ok(None);
        }
        let header = V1Header::parse(bytes);
        Ok((header.length > 0 && header.compression.0 <= MAX_V1_COMPRESSION).then_some(header))
    }

    /// Fills `out` from the window or the file. False if the bytes, and one more, are not
    /// inside the file: an image does not end with a section header.
    fn fetch(&self, at: u64, out: &mut [u8]) -> Result<bool> {
        match at.checked_add(out.len() as u64) {
            Some(end) if end < self.file_size => {}
            _ => return Ok(false),
        }
        let in_window = at
            .checked_sub(self.base)
            .and_then(|offset| usize::try_from(offset).ok())
            .and_then(|offset| self.bytes.get(offset..)?.get(..out.len()));
        match in_window {
            Some(bytes) => out.copy_from_slice(bytes),
            None => (self.read)(at, out)?,
        }
        Ok(true)
    }
}
