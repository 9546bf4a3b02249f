//! Finding recovery data in a file of which anything may be damaged.

use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::recovery::{Geometry, HeaderPage, PAGE};
use redwarfs_format::section::{
    Binding, Footer, GenerationId, Prelude, SectionHeader, locate_image, tail_pointer,
};
use redwarfs_io::Source;

use crate::PIECE;
use crate::add::{container, sound_generation};
use crate::error::{Error, Result};
use crate::part::{Part, Sidecar, matches, page_at};

/// What a page begins with.
const MAGIC: &[u8] = b"DwRSrec1";
/// Bytes that may be compared for a shard, in each direction, to find an image that has lost both ends.
const WORK: u64 = 32 << 30;
/// What files are cut at, mostly.
const SECTOR: u64 = 512;
/// Shards that are compared to tell where an image is.
const SAMPLES: u64 = 64;

/// The recovery data of a file: that of the whole image, or one part for each append.
#[derive(Debug, Clone)]
pub struct RecoveryData {
    /// In the order of what they protect. There is at least one.
    pub(crate) parts: Vec<Part>,
    /// Bytes of the image in front of the first part whose recovery data is lost.
    lost: u64,
}

impl RecoveryData {
    /// How the protected bytes of each part are cut, in their order.
    pub fn geometries(&self) -> impl Iterator<Item = Geometry> {
        self.parts.iter().map(|part| part.header.geometry)
    }

    /// Bytes of data and parity that a check reads.
    #[must_use]
    pub fn bytes(&self) -> u64 {
        let of = |geometry: Geometry| {
            geometry.length() + geometry.parity_shards() * geometry.shard_size() as u64
        };
        self.geometries().map(of).fold(0, u64::saturating_add)
    }

    /// Bytes that are protected.
    #[must_use]
    pub fn protected(&self) -> u64 {
        let lengths = self.geometries().map(|geometry| geometry.length());
        lengths.fold(0, u64::saturating_add)
    }

    /// Where the image starts in the file, or should: below 0 if the file has lost its start.
    #[must_use]
    pub fn image_offset(&self) -> i64 {
        self.parts.first().map_or(0, |part| part.image)
    }

    /// Bytes that the file has lost at its start. They are no more than the parity can restore and what was in front of
    /// the image, so that a copy may be made with room for them.
    ///
    /// # Errors
    /// [`Error::LostTooMuch`] if more are gone.
    pub fn lost_at_start(&self) -> Result<u64> {
        let start = self.parts.first().map_or(0, |part| {
            let start = part.header.geometry.start().min(0);
            part.image.saturating_add(start)
        });
        let lost = start.min(0).unsigned_abs();
        let most = self.parts.iter().map(|part| {
            let geometry = part.header.geometry;
            let parity = geometry.parity_shards();
            parity.saturating_mul(geometry.shard_size() as u64)
        });
        let most = most.fold(0, u64::saturating_add);
        let leading = self.parts.first().map_or(0, |part| {
            let front = part.header.geometry.start().min(0).unsigned_abs();
            part.header.leading.min(front)
        });
        match lost <= most.saturating_add(leading) {
            true => Ok(lost),
            false => Err(Error::LostTooMuch(lost)),
        }
    }

    /// Bytes in front of the image that are not compared: sections of a program into which tools for AppImages write
    /// ([`redwarfs_format::elf::appimage`]).
    #[must_use]
    pub fn left_out(&self) -> u64 {
        let blanks = self.parts.iter().flat_map(|part| part.header.blanks);
        let lengths = blanks.map(|blank| blank.length);
        lengths.fold(0, u64::saturating_add)
    }

    /// Whether the recovery data is in another file.
    #[must_use]
    pub fn is_sidecar(&self) -> bool {
        self.parts.iter().any(|part| part.sidecar.is_some())
    }

    /// Ranges of a file, relative to the image, that nothing protects: something else in front of the image than was
    /// protected there, older parts whose recovery data is lost, and what was appended later.
    ///
    /// # Errors
    /// [`Error::Io`] if the length of the file is not known.
    pub fn unprotected(&self, source: &dyn Source) -> Result<Vec<(i64, u64)>> {
        let mut ranges = Vec::new();
        if let Some(first) = self.parts.first()
            && first.header.geometry.start() < 0
            && first.image > 0
            && !first.keeps_front()
        {
            ranges.push((-first.image, first.image.unsigned_abs()));
        }
        if self.lost > 0 {
            ranges.push((0, self.lost));
        }
        if let Some(last) = self.parts.last()
            && !last.ends(source)?
        {
            let at = match last.sidecar {
                Some(_) => last.end(),
                None => last.position(last.header.image_size).unwrap_or(0),
            };
            let behind = source.len()?.saturating_sub(at);
            let start = at.cast_signed().saturating_sub(last.image);
            ranges.push((start, behind));
        }
        Ok(ranges)
    }
}

/// Finds the last recovery data of a file, by any of its header pages, and that of older parts of the image. Neither the
/// section index nor any other part of the image is needed.
///
/// Time: if the end of the file is intact, a few reads; otherwise the file is searched from its end.
///
/// # Errors
/// [`Error::NotFound`] if there is none of the image in the file; [`Error::Format`] if what is there needs a later
/// version; [`Error::Interrupted`] if `stop` is set.
pub fn locate(source: &dyn Source, stop: &AtomicBool) -> Result<RecoveryData> {
    let len = source.len()?;
    // Where the image is, once that is asked for.
    let mut start = None;
    let found = search(source, 0, len, stop, &mut |header, at| {
        let part = Part {
            header,
            image: at,
            base: at,
            sidecar: None,
        };
        let own = !header.is_sidecar() && fits(&header, len);
        let is_it = own && (part.is_last(source)? || part.is_continued(source, len, &mut start)?);
        Ok(is_it.then_some(part))
    })?;
    let mut parts = vec![found];
    let mut lost = 0;
    // Each part lies in front of the one that names it, so this ends.
    while let Some(part) = parts.last()
        && part.header.previous > 0
    {
        match older(source, part, stop)? {
            Some(older) => parts.push(older),
            None => {
                lost = part.header.geometry.start().unsigned_abs();
                break;
            }
        }
    }
    parts.reverse();
    Ok(RecoveryData { parts, lost })
}

/// Finds the recovery data of a file in its sidecar, and the place of the image in the file, of which anything
/// may be damaged, also its start.
///
/// # Errors
/// [`Error::NotFound`] if the sidecar has no recovery data, [`Error::Foreign`] if nothing of the file fits it,
/// [`Error::Changed`] if the file has an intact image that is another one; otherwise as [`locate`].
pub fn locate_sidecar(
    source: &dyn Source,
    sidecar: Sidecar,
    stop: &AtomicBool,
) -> Result<RecoveryData> {
    let len = sidecar.source().len()?;
    let (header, base) = search(sidecar.source(), 0, len, stop, &mut |header, at| {
        Ok((header.is_sidecar() && fits(&header, len)).then_some((header, at)))
    })?;
    let mut part = Part {
        header,
        image: header.leading.cast_signed(),
        base,
        sidecar: Some(sidecar),
    };
    part.image = part.find_image(source, stop)?;
    part.refuse_changed(source)?;
    Ok(RecoveryData {
        parts: vec![part],
        lost: 0,
    })
}

/// Searches a range of a file, from its end, for header pages. `take` gets what a page says, and where in the file the
/// positions in it count from; its first result ends the search.
fn search<T>(
    source: &dyn Source,
    from: u64,
    mut end: u64,
    stop: &AtomicBool,
    take: &mut dyn FnMut(HeaderPage, i64) -> Result<Option<T>>,
) -> Result<T> {
    let len = source.len()?;
    let mut unknown = None;
    while end > from {
        if stop.load(Ordering::Relaxed) {
            return Err(Error::Interrupted);
        }
        let start = end.saturating_sub(PIECE as u64).max(from);
        // A page that begins in this part ends at most so far behind it.
        let there = (len - start).min(end - start + PAGE as u64);
        let mut bytes = vec![0; there as usize];
        read_what_can_be(source, start, &mut bytes)?;
        let starts = (0..(end - start) as usize).rev();
        for at in starts.filter(|&at| bytes.get(at..).is_some_and(|b| b.starts_with(MAGIC))) {
            let Some(page) = bytes.get(at..).and_then(<[u8]>::first_chunk) else {
                continue;
            };
            match HeaderPage::parse(page) {
                Ok((header, position)) => {
                    let at = (start + at as u64).cast_signed();
                    if let Some(found) = take(header, at - position.cast_signed())? {
                        return Ok(found);
                    }
                }
                Err(error @ redwarfs_format::Error::Unsupported(_)) => unknown = Some(error),
                Err(_) => {}
            }
        }
        end = start;
    }
    Err(unknown.map_or(Error::NotFound, Error::Format))
}

/// Whether one copy of the checksums can be in a file of a length, which so bounds what is allocated and compared for them.
fn fits(header: &HeaderPage, len: u64) -> bool {
    header.hash_pages.saturating_mul(PAGE as u64) <= len
}

/// The recovery data that a later part names.
fn older(source: &dyn Source, later: &Part, stop: &AtomicBool) -> Result<Option<Part>> {
    let (section, end) = (later.header.previous, later.header.geometry.start());
    let len = source.len()?;
    let of = |header: HeaderPage| Part {
        header,
        ..later.clone()
    };
    let is_it = |header: &HeaderPage| {
        let there = header.section == section && header.image_size.cast_signed() == end;
        there && fits(header, len)
    };
    // The last page, where it has to be.
    let behind = (PAGE + Footer::LEN) as u64;
    let last = u64::try_from(end)
        .ok()
        .and_then(|end| end.checked_sub(behind));
    let page = last.and_then(|at| page_at(source, later.position(at)?));
    if let Some(Ok((header, _))) = page.map(|page| HeaderPage::parse(&page))
        && is_it(&header)
    {
        return Ok(Some(of(header)));
    }
    let limit = u64::try_from(end).ok().and_then(|end| later.position(end));
    let from = later.position(section).unwrap_or(0);
    let limit = limit.unwrap_or(0).min(len);
    let found = search(source, from, limit, stop, &mut |header, at| {
        Ok((is_it(&header) && at == later.image).then_some(header))
    });
    match found {
        Ok(header) => Ok(Some(of(header))),
        Err(Error::NotFound | Error::Format(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Whether a link or a trailer is at a place, where an image goes on.
fn hidden_at(source: &dyn Source, at: u64) -> bool {
    let mut bytes = [0; SectionHeader::LEN];
    source.read_exact_at(at, &mut bytes).is_ok()
        && SectionHeader::parse(&bytes).is_ok_and(|header| header.ty.is_hidden())
}

impl Part {
    /// Where what this belongs to ends in the file.
    fn behind(&self) -> Option<u64> {
        match self.sidecar {
            Some(_) => Some(self.end()),
            None => self.position(self.header.image_size),
        }
    }

    /// Whether nothing but an append that was not finished is in the file behind what this belongs to. A link or a trailer
    /// that follows, such as a signature, is more.
    pub(crate) fn ends(&self, source: &dyn Source) -> Result<bool> {
        let goes_on = self.behind().is_some_and(|end| hidden_at(source, end));
        Ok(!goes_on && self.is_last(source)?)
    }

    /// Whether the file ends with what this belongs to, or its end leads to the same index.
    fn is_last(&self, source: &dyn Source) -> Result<bool> {
        let len = source.len()?;
        let end = self.behind();
        if end.unwrap_or(0) >= len {
            return Ok(true);
        }
        let mut last = [0; 8];
        source.read_exact_at(len.saturating_sub(last.len() as u64), &mut last)?;
        let pointer = u64::from_le_bytes(last);
        Ok(self.header.index > 0 && pointer == tail_pointer(self.header.index))
    }

    /// Whether later generations of the image in the file follow. Data of an image inside this one does not count.
    fn is_continued(
        &self,
        source: &dyn Source,
        len: u64,
        start: &mut Option<Option<u64>>,
    ) -> Result<bool> {
        let read = |at, out: &mut [u8]| source.read_exact_at(at, out);
        let start = *start.get_or_insert_with(|| locate_image(len, &read).ok());
        if start.is_some_and(|start| u64::try_from(self.image).is_ok_and(|image| image != start)) {
            return Ok(false);
        }
        let end = self.position(self.header.image_size);
        Ok(end.is_some_and(|end| hidden_at(source, end)))
    }

    /// Where the image is in the file: where it was, or where most of what is compared is right.
    fn find_image(&self, source: &dyn Source, stop: &AtomicBool) -> Result<i64> {
        let (hashes, _) = self.hashes(source)?;
        let len = source.len()?.cast_signed();
        let there = self.header.leading.cast_signed();
        // Without checksums, nothing can be told.
        if hashes.iter().all(Option::is_none) {
            return Ok(there);
        }
        let end = self.header.geometry.end().unwrap_or(len);
        let fits = |image: i64| self.moved(image).samples(source, &hashes);
        let mut best = (fits(there), there);
        // Nearly everything is where it was.
        if best.0 < SAMPLES.min(self.header.geometry.data_shards()) / 2 + 1 {
            let read = |at, out: &mut [u8]| source.read_exact_at(at, out);
            let found = locate_image(source.len()?, &read);
            let found = found.ok().map(u64::cast_signed);
            for image in [Some(len.saturating_sub(end)), found].into_iter().flatten() {
                let right = fits(image);
                if right > best.0 {
                    best = (right, image);
                }
            }
        }
        // Both ends may be lost, or be other ones.
        if best.0 <= 1
            && let Some(image) = self.search_image(source, &hashes, stop)?
        {
            best = (fits(image).max(1), image);
        }
        match best {
            // Parity might restore all of it, but nothing says that it is this file. All of a small image may be in one
            // damaged shard.
            (0, image) if !self.moved(image).is_bound(source) => {
                match self.is_changed(source, image) {
                    true => Err(Error::Changed),
                    false => Err(Error::Foreign),
                }
            }
            (_, image) => Ok(image),
        }
    }

    /// The generation that a sidecar was made for. None if it was made for an image without an index, or its start is damaged.
    fn binding(&self) -> Option<GenerationId> {
        let mut bytes = [0; Prelude::LEN];
        let sidecar = self.sidecar.as_ref()?.source();
        sidecar.read_exact_at(self.place(0)?, &mut bytes).ok()?;
        match Prelude::parse(&bytes).ok()?.0.binding {
            Binding::Generation(generation) => Some(generation),
            _ => None,
        }
    }

    /// Whether the index of the generation that the sidecar was made for is where it was.
    fn is_bound(&self, source: &dyn Source) -> bool {
        let generation = || {
            let image = self.generation(source).ok()?;
            sound_generation(source, &image)
        };
        self.header.index > 0
            && self
                .binding()
                .is_some_and(|bound| generation() == Some(bound))
    }

    /// Whether an intact image is at a place that is not the one that the sidecar was made for, and not a later state of it.
    fn is_changed(&self, source: &dyn Source, image: i64) -> bool {
        let Some(bound) = self.binding() else {
            return false;
        };
        let part = self.moved(image);
        let found = |offset: u64| sound_generation(source, &container(source, offset).ok()?);
        let there = u64::try_from(image).ok().and_then(found);
        // Something else may be in front of the other image.
        let there = there.or_else(|| {
            let len = source.len().ok()?;
            let read = |at, out: &mut [u8]| source.read_exact_at(at, out);
            let offset = locate_image(len, &read).ok()?;
            let image = container(source, offset).ok()?;
            let ends = offset
                .saturating_add(image.size)
                .saturating_add(image.unused_tail);
            (ends == len).then(|| sound_generation(source, &image))?
        });
        there.is_some_and(|there| there != bound)
            && !part.is_bound(source)
            && !hidden_at(source, part.end())
    }

    fn refuse_changed(&self, source: &dyn Source) -> Result<()> {
        match self.is_changed(source, self.image) {
            true => Err(Error::Changed),
            false => Ok(()),
        }
    }

    /// Where the image is, by shards from its middle: a number of sectors from where it was, as far as can be repaired, or
    /// a number of bytes, up to a limit.
    fn search_image(
        &self,
        source: &dyn Source,
        hashes: &[Option<u64>],
        stop: &AtomicBool,
    ) -> Result<Option<i64>> {
        let geometry = self.header.geometry;
        let size = geometry.shard_size() as u64;
        let there = self.header.leading.cast_signed();
        let most = geometry.parity_shards().saturating_mul(size);
        let most = most.saturating_add(self.header.leading);
        let len = source.len()?;
        for step in [SECTOR, 1] {
            let most = most.min(WORK / size * step);
            for quarter in 1..4 {
                let shard = geometry.data_shards() * quarter / 4;
                let (_, whole) = geometry.data_range(shard);
                let at = self.moved(there).range(source).position(shard);
                let (Some(at), true) = (at, whole as u64 == size) else {
                    continue;
                };
                // As far from where it was as a number of steps.
                let mut place = at - most.min(at) / step * step;
                let end = at.saturating_add(most).min(len.saturating_sub(size));
                while place <= end {
                    if stop.load(Ordering::Relaxed) {
                        return Err(Error::Interrupted);
                    }
                    let last = end.min(place + PIECE as u64 - 1);
                    let mut bytes = vec![0; (last - place + size) as usize];
                    read_what_can_be(source, place, &mut bytes)?;
                    for (skip, found) in bytes
                        .windows(size as usize)
                        .enumerate()
                        .step_by(step as usize)
                    {
                        let moved = (place + skip as u64).cast_signed() - at.cast_signed();
                        let image = there.saturating_add(moved);
                        if matches(hashes, shard, found)
                            && self.moved(image).samples(source, hashes) > 1
                        {
                            return Ok(Some(image));
                        }
                    }
                    place += (last - place) / step * step + step;
                }
            }
        }
        Ok(None)
    }

    fn moved(&self, image: i64) -> Self {
        Self {
            image,
            ..self.clone()
        }
    }

    /// How many of some data shards are right.
    fn samples(&self, source: &dyn Source, hashes: &[Option<u64>]) -> u64 {
        let geometry = self.header.geometry;
        let range = self.range(source);
        let count = geometry.data_shards().min(SAMPLES);
        let mut bytes = vec![0; geometry.shard_size()];
        let mut right = 0;
        for sample in 0..count {
            let shard = (u128::from(sample) * u128::from(geometry.data_shards())
                / u128::from(count)) as u64;
            let there = !self.is_foreign(shard) && range.read(shard, &mut bytes).is_ok();
            right += u64::from(there && matches(hashes, shard, &bytes));
        }
        right
    }
}

/// Reads a range; parts that the medium does not give are zeros.
pub(crate) fn read_what_can_be(source: &dyn Source, at: u64, out: &mut [u8]) -> Result<()> {
    if source.read_exact_at(at, out).is_ok() {
        return Ok(());
    }
    for (number, part) in (0_u64..).zip(out.chunks_mut(PAGE)) {
        if source
            .read_exact_at(at + number * PAGE as u64, part)
            .is_err()
        {
            part.fill(0);
        }
    }
    Ok(())
}
