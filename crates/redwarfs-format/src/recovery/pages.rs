//! Pages of 4 KiB that say where they are.

use twox_hash::{XxHash3_64, XxHash3_128};

use super::geometry::Geometry;
use crate::error::{Error, Result};
use crate::section::{Footer, Prelude, SectionHeader};

/// Bytes of a page.
pub const PAGE: usize = 4096;
/// What each page starts with.
const MAGIC: &[u8; 8] = b"DwRSrec1";
/// Bytes before the content of a page.
const HEAD: usize = 32;
/// Checksums in a page.
const HASHES: usize = (PAGE - HEAD) / 8;
/// Where the ranges that count as zeros are in a header page.
const FIRST_BLANK: usize = 160;
/// The code: Reed-Solomon over GF(2^16), as chapter 11 describes it.
const CODE: u32 = 1;

/// Bytes of a section before its first page: the header and the prelude.
const FRAME: u64 = (SectionHeader::LEN + Prelude::LEN) as u64;

/// What a page holds.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PageKind {
    /// The geometry.
    Header,
    /// Checksums of shards.
    Hashes,
}

/// The checksum of a shard.
#[must_use]
pub fn shard_hash(shard: &[u8]) -> u64 {
    XxHash3_64::oneshot(shard)
}

/// Pages for the checksums of so many shards.
#[must_use]
pub fn hash_pages(shards: u64) -> u64 {
    shards.div_ceil(HASHES as u64)
}

/// The kind of an intact page, and the position that it states.
#[must_use]
pub fn page_kind(page: &[u8; PAGE]) -> Option<(PageKind, i64)> {
    let (kind, _, position) = open(page)?;
    match kind {
        0 => Some((PageKind::Header, position)),
        1 => Some((PageKind::Hashes, position)),
        _ => None,
    }
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> [u8; N] {
    let mut out = [0; N];
    let found = bytes.get(at..).and_then(<[u8]>::first_chunk);
    out.copy_from_slice(found.unwrap_or(&[0; N]));
    out
}

fn checksum(page: &[u8; PAGE]) -> u64 {
    let mut hasher = XxHash3_64::new();
    std::hash::Hasher::write(&mut hasher, &page[..24]);
    std::hash::Hasher::write(&mut hasher, &[0; 8]);
    std::hash::Hasher::write(&mut hasher, &page[HEAD..]);
    std::hash::Hasher::finish(&hasher)
}

/// Kind, number and position of an intact page.
fn open(page: &[u8; PAGE]) -> Option<(u32, u32, i64)> {
    (page.starts_with(MAGIC) && u64::from_le_bytes(number(page, 24)) == checksum(page)).then(|| {
        (
            u32::from_le_bytes(number(page, 8)),
            u32::from_le_bytes(number(page, 12)),
            i64::from_le_bytes(number(page, 16)),
        )
    })
}

/// Fills in everything but the content.
pub(super) fn seal(page: &mut [u8; PAGE], kind: u32, number: u32, position: i64) {
    page[..8].copy_from_slice(MAGIC);
    page[8..12].copy_from_slice(&kind.to_le_bytes());
    page[12..16].copy_from_slice(&number.to_le_bytes());
    page[16..24].copy_from_slice(&position.to_le_bytes());
    let sum = checksum(page);
    page[24..32].copy_from_slice(&sum.to_le_bytes());
}

/// A range in front of the image that counts as zeros, because tools write into it later.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Blank {
    /// Its start, relative to the image: below 0.
    pub start: i64,
    /// Its length in bytes; 0 if there is no such range.
    pub length: u64,
}

impl Blank {
    /// Its end, relative to the image; none if that is behind the start of the image.
    fn end(self) -> Option<i64> {
        let end = self.start.checked_add_unsigned(self.length);
        end.filter(|&end| end <= 0)
    }
}

/// The content of the four header pages, which are the same but for number and position.
///
/// All positions are relative to the image. In a sidecar, those of parts of the recovery data are relative to
/// the sidecar.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct HeaderPage {
    /// How the range is cut.
    pub geometry: Geometry,
    /// Header of the section, and end of the protected range. 0 in a sidecar.
    pub section: u64,
    /// The first of the two copies of all hash pages.
    pub hashes_a: u64,
    /// The second one.
    pub hashes_b: u64,
    /// The first parity shard.
    pub parity: u64,
    /// Hash pages of a copy.
    pub hash_pages: u64,
    /// Header of the active index. With a sidecar, 0 if the image has none.
    pub index: u64,
    /// The header of the previous RECOVERY section, 0 if there is none. It protects what is in front of it, and this
    /// section what is behind it.
    pub previous: u64,
    /// Where the recovery data ends: size of the image with this section, or of the sidecar.
    pub image_size: u64,
    /// XXH3-128 of all checksums in their order.
    pub hashes_id: [u8; 16],
    /// Length of what was in front of the image when the data was made.
    pub leading: u64,
    /// Ranges that count as zeros, in ascending order; those that are not used are behind the others.
    pub blanks: [Blank; Self::BLANKS],
}

impl HeaderPage {
    /// Copies of the header page.
    pub const COPIES: u32 = 4;

    /// Most ranges that count as zeros.
    pub const BLANKS: usize = 4;

    /// The layout of a section right behind the protected range. Between the prelude and the footer it has a header
    /// page, the checksums, a header page, half of the parity, and a header page. Then come the other half,
    /// the checksums once more, and the last header page. What does not follow from the geometry is 0.
    ///
    /// # Errors
    /// [`Error::Limit`] if the end is beyond the offsets of the format, [`Error::Corrupt`] if the range ends in
    /// front of the image.
    pub fn lay_out(geometry: Geometry) -> Result<Self> {
        let section = protected_end(&geometry)?;
        Self::lay_out_between(geometry, section, FRAME, Footer::LEN as u64)
    }

    /// The layout of a sidecar: the same without section header and footer. What does not follow from the geometry is
    /// 0.
    ///
    /// # Errors
    /// As [`HeaderPage::lay_out`].
    pub fn lay_out_sidecar(geometry: Geometry) -> Result<Self> {
        protected_end(&geometry)?;
        Self::lay_out_between(geometry, 0, Prelude::LEN as u64, 0)
    }

    /// Whether the recovery data is in a file of its own.
    #[must_use]
    pub fn is_sidecar(&self) -> bool {
        self.section == 0
    }

    /// The layout of pages and parity from `section` on, with so many bytes before and behind them.
    fn lay_out_between(geometry: Geometry, section: u64, before: u64, behind: u64) -> Result<Self> {
        let page = PAGE as u64;
        let hash_pages = hash_pages(geometry.all_shards());
        let hashes_a = section + before + page;
        let parity = hashes_a + hash_pages * page + page;
        let shards = geometry.parity_shards() * geometry.shard_size() as u64;
        let hashes_b = parity + shards + page;
        let image_size = hashes_b + hash_pages * page + page + behind;
        if image_size >> 48 != 0 {
            return Err(too_large());
        }
        Ok(Self {
            geometry,
            section,
            hashes_a,
            hashes_b,
            parity,
            hash_pages,
            index: 0,
            previous: 0,
            image_size,
            hashes_id: [0; 16],
            leading: 0,
            blanks: [Blank::default(); Self::BLANKS],
        })
    }

    /// Where the copies of this page are.
    #[must_use]
    pub fn copies(&self) -> [u64; Self::COPIES as usize] {
        let page = PAGE as u64;
        let rows = u64::from(self.geometry.first_rows()) * u64::from(self.geometry.groups());
        [
            self.hashes_a - page,
            self.parity - page,
            self.parity + rows * self.geometry.shard_size() as u64,
            self.hashes_b + self.hash_pages * page,
        ]
    }

    /// Where a parity shard is, by its number behind those of the data shards.
    #[must_use]
    pub fn parity_at(&self, shard: u64) -> u64 {
        let geometry = &self.geometry;
        let stored = shard - geometry.data_shards();
        let rows = u64::from(geometry.first_rows()) * u64::from(geometry.groups());
        let page = if stored >= rows { PAGE as u64 } else { 0 };
        self.parity + stored * geometry.shard_size() as u64 + page
    }

    /// Encodes a copy.
    #[must_use]
    pub fn encode(&self, copy: u32) -> [u8; PAGE] {
        let mut page = [0; PAGE];
        let geometry = &self.geometry;
        let shard_size = geometry.shard_size() as u32;
        for (at, value) in [
            (32, CODE),
            (36, shard_size),
            (48, geometry.groups()),
            (52, geometry.parity()),
        ] {
            page[at..at + 4].copy_from_slice(&value.to_le_bytes());
        }
        for (at, value) in [
            (40, geometry.data_shards()),
            (56, geometry.start().cast_unsigned()),
            (64, geometry.length()),
            (72, self.section),
            (80, self.hashes_a),
            (88, self.hashes_b),
            (96, self.parity),
            (104, self.hash_pages),
            (112, self.index),
            (120, self.previous),
            (128, self.image_size),
            (152, self.leading),
        ] {
            page[at..at + 8].copy_from_slice(&value.to_le_bytes());
        }
        page[136..152].copy_from_slice(&self.hashes_id);
        let blanks = page[FIRST_BLANK..].as_chunks_mut::<16>().0.iter_mut();
        for (slot, blank) in blanks.zip(self.blanks) {
            slot[..8].copy_from_slice(&blank.start.to_le_bytes());
            slot[8..].copy_from_slice(&blank.length.to_le_bytes());
        }
        let copies = self.copies();
        let position = copies.get(copy as usize).copied().unwrap_or(0);
        seal(&mut page, 0, copy, position.cast_signed());
        page
    }

    /// Decodes an intact page. Also returns its position.
    ///
    /// # Errors
    /// [`Error::Corrupt`] for a damaged page or one whose numbers contradict each other;
    /// [`Error::Unsupported`] for another code.
    pub fn parse(page: &[u8; PAGE]) -> Result<(Self, u64)> {
        let Some((0, copy, position)) = open(page) else {
            return Err(Error::corrupt("header page of recovery data is damaged"));
        };
        let small = |at| u32::from_le_bytes(number(page, at));
        let large = |at| u64::from_le_bytes(number(page, at));
        if small(32) != CODE {
            return Err(Error::Unsupported(format!("recovery code {}", small(32))));
        }
        let geometry = Geometry::from_parts(
            small(36),
            large(40),
            small(48),
            small(52),
            large(56).cast_signed(),
            large(64),
        )
        .map_err(|error| Error::corrupt(format!("recovery data: {error}")))?;
        let header = Self {
            geometry,
            section: large(72),
            hashes_a: large(80),
            hashes_b: large(88),
            parity: large(96),
            hash_pages: large(104),
            index: large(112),
            previous: large(120),
            image_size: large(128),
            hashes_id: number(page, 136),
            leading: large(152),
            blanks: std::array::from_fn(|number| {
                let at = FIRST_BLANK + 16 * number;
                Blank {
                    start: large(at).cast_signed(),
                    length: large(at + 8),
                }
            }),
        };
        let contradiction = || Error::corrupt("positions in recovery data do not fit together");
        // Nearly everything follows from the geometry.
        let laid_out = Self {
            index: header.index,
            previous: header.previous,
            hashes_id: header.hashes_id,
            leading: header.leading,
            blanks: header.blanks,
            ..match header.section {
                0 => Self::lay_out_sidecar(geometry)?,
                _ => Self::lay_out(geometry)?,
            }
        };
        let position = u64::try_from(position).map_err(|_| contradiction())?;
        // What an earlier section protects is left out.
        let starts = match u64::try_from(geometry.start()) {
            Ok(0) => header.previous == 0,
            Ok(start) => (1..start).contains(&header.previous) && !header.is_sidecar(),
            Err(_) => header.previous == 0 && geometry.start().unsigned_abs() == header.leading,
        };
        if header != laid_out
            || header.copies().get(copy as usize) != Some(&position)
            || header.index >= protected_end(&geometry)?
            || !starts
            || !header.blanks_fit()
        {
            return Err(contradiction());
        }
        Ok((header, position))
    }

    /// Whether the ranges that count as zeros are in order, and in the protected range in front of the image.
    fn blanks_fit(&self) -> bool {
        let mut free = Some(self.geometry.start());
        self.blanks.iter().all(|&blank| {
            if blank.length == 0 {
                free = None;
                return blank == Blank::default();
            }
            let fits = free.is_some_and(|free| blank.start >= free);
            free = blank.end();
            fits && free.is_some()
        })
    }
}

fn too_large() -> Error {
    Error::Limit("the recovery data would be too large".into())
}

/// Where the protected range ends. It is so small that no sum of places in recovery data overflows.
fn protected_end(geometry: &Geometry) -> Result<u64> {
    let end = geometry.end().and_then(|end| u64::try_from(end).ok());
    let end = end.ok_or_else(|| Error::corrupt("a range in front of the image"))?;
    match end >> 48 {
        0 => Ok(end),
        _ => Err(too_large()),
    }
}

/// Some of the checksums of all shards.
#[derive(Debug, Clone, Copy)]
pub struct HashPage;

impl HashPage {
    /// Encodes page number `page` of a copy that begins at `copy`, with its part of all checksums.
    #[must_use]
    pub fn encode(hashes: &[u64], page: u32, copy: u64) -> [u8; PAGE] {
        let mut bytes = [0; PAGE];
        let first = page as usize * HASHES;
        let part = hashes.iter().skip(first).take(HASHES);
        for (slot, hash) in bytes[HEAD..].as_chunks_mut::<8>().0.iter_mut().zip(part) {
            *slot = hash.to_le_bytes();
        }
        let position = copy + u64::from(page) * PAGE as u64;
        seal(&mut bytes, 1, page, position.cast_signed());
        bytes
    }

    /// Puts the checksums of an intact page in their places. False if the page is damaged, or is not number
    /// `page` of a copy that begins at `copy`.
    #[must_use]
    pub fn read(bytes: &[u8; PAGE], page: u32, copy: u64, hashes: &mut [Option<u64>]) -> bool {
        let position = copy.saturating_add(u64::from(page).saturating_mul(PAGE as u64));
        if open(bytes) != Some((1, page, position.cast_signed())) {
            return false;
        }
        let first = (page as usize).saturating_mul(HASHES);
        let slots = hashes.iter_mut().skip(first).take(HASHES);
        for (slot, hash) in slots.zip(bytes[HEAD..].as_chunks::<8>().0) {
            *slot = Some(u64::from_le_bytes(*hash));
        }
        true
    }

    /// The identity of all checksums.
    #[must_use]
    pub fn identity(hashes: &[u64]) -> [u8; 16] {
        let mut hasher = XxHash3_128::new();
        for hash in hashes {
            hasher.write(&hash.to_le_bytes());
        }
        hasher.finish_128().to_le_bytes()
    }
}
