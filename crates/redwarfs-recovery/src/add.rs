//! Adding recovery data to an image, and removing it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use redwarfs_format::Error as FormatError;
use redwarfs_format::elf::appimage;
use redwarfs_format::recovery::{
    Blank, Geometry, HashPage, HeaderPage, PAGE, ShardGroup, shard_hash,
};
use redwarfs_format::section::{
    Binding, Container, Footer, GenerationId, Opening, Prelude, Section, SectionHeader,
    SectionType, TableChain,
};
use redwarfs_io::{Append, LockedFile, Medium, Source};

use crate::code::Encoder;
use crate::error::{Error, Result};
use crate::part::page_at;
use crate::range::Range;
use crate::{PIECE, SIDECAR, TAG};

/// How an image is protected.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct Protection {
    /// Parity, in per cent of the protected data; above 0.
    pub percent: f64,
    /// Bytes of a shard: a power of two from 1 KiB to 1 MiB. None: by the size of the image.
    pub shard_size: Option<u32>,
    /// Whether what is in front of the image, such as a program, is protected, too. Sections of the program into
    /// which tools for AppImages write ([`redwarfs_format::elf::appimage`]) are not: they count as zeros.
    pub leading: bool,
    /// Whether everything is protected, even if an older snapshot of the image has recovery data. Otherwise that data stays
    /// in use, and only what is behind it is protected.
    pub whole: bool,
    /// Threads, and groups in memory at a time.
    pub threads: usize,
}

impl Protection {
    /// With so much parity, in per cent of the data.
    #[must_use]
    pub fn percent(percent: f64) -> Self {
        Self {
            percent,
            shard_size: None,
            leading: false,
            whole: false,
            threads: 1,
        }
    }
}

/// What was added.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Added {
    /// How the data was cut.
    pub geometry: Geometry,
    /// Bytes of sections of the program in front that are not protected, because tools for AppImages write into
    /// them later.
    pub left_out: u64,
    /// Bytes by which the file has grown.
    pub bytes: u64,
}

/// The sections of the image at an offset of a file.
pub(crate) fn container(source: &dyn Source, offset: u64) -> Result<Container> {
    let read = |at, out: &mut [u8]| source.read_exact_at(at, out);
    Ok(Container::open(&read, source.len()?, offset, None)?)
}

/// What opens an image that has a valid index.
fn opening(image: &Container) -> Result<Opening> {
    Opening::of(image).ok_or(Error::Unfit("the image has no valid section index"))
}

/// Sections of the program in front of an image at `offset` into which tools write when the file is complete.
fn blanks(file: &dyn Source, offset: u64) -> [Blank; HeaderPage::BLANKS] {
    let read = |at, out: &mut [u8]| file.read_exact_at(at, out);
    let mut blanks = [Blank::default(); HeaderPage::BLANKS];
    let sections = appimage::sections(&read, offset, &appimage::ALL);
    for (slot, section) in blanks.iter_mut().zip(sections) {
        *slot = Blank {
            start: section.offset.cast_signed() - offset.cast_signed(),
            length: section.size,
        };
    }
    blanks
}

/// Adds a RECOVERY section behind the image at `offset` of a file, and behind its other trailers. At every moment,
/// the file is a valid image. If the image or an older snapshot of it has recovery data, that stays, and the new section
/// protects what is behind it, unless [`Protection::whole`] asks for everything. `done` gets the number of bytes after each piece that was protected.
///
/// # Errors
/// * [`Error::Geometry`] if the options do not fit the size of the image.
/// * [`Error::Present`] if the image ends with recovery data.
/// * [`Error::Unfit`] if it has no valid index, or other data follows it.
/// * [`Error::Format`] if there is no image, [`Error::Io`] if reading or writing fails, [`Error::Interrupted`]
///   if `stop` is set. The file is unchanged then.
pub fn add(
    file: impl Medium + 'static,
    offset: u64,
    protection: &Protection,
    done: &dyn Fn(u64),
    stop: &AtomicBool,
) -> Result<Added> {
    let image = container(&file, offset)?;
    let opening = opening(&image)?;
    let last = image.trailers.last();
    if last.is_some_and(|section| section.ty == SectionType::RECOVERY) {
        return Err(Error::Present);
    }
    let end = offset.saturating_add(image.size);
    if file.len()? != end.saturating_add(image.unused_tail) {
        return Err(Error::Unfit("other data follows the image"));
    }
    let append = Append::begin(file, end, opening.tail_pointer())?;
    add_to_append(append, end, offset, protection, done, stop)
}

/// A file up to a position.
#[derive(Debug)]
struct Start<'a> {
    file: &'a dyn Source,
    len: u64,
}

impl Source for Start<'_> {
    fn len(&self) -> std::io::Result<u64> {
        Ok(self.len)
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<()> {
        match offset.checked_add(buf.len() as u64) {
            Some(end) if end <= self.len => self.file.read_exact_at(offset, buf),
            _ => Err(std::io::ErrorKind::UnexpectedEof.into()),
        }
    }
}

/// Adds a RECOVERY section as [`add`] does, behind an append that ends at `end` of its file, and commits both together. If
/// anything fails, the file is what it was before the append.
///
/// # Errors
/// As [`add`].
pub fn add_to_append(
    mut append: Append,
    end: u64,
    offset: u64,
    protection: &Protection,
    done: &dyn Fn(u64),
    stop: &AtomicBool,
) -> Result<Added> {
    let (mut header, image) = {
        let file = Start {
            file: append.source(),
            len: end,
        };
        plan(&file, offset, protection)?
    };
    append.reserve(offset + header.image_size)?;
    let write = |at: u64, bytes: &[u8]| append.write_all_at(offset + at, bytes);
    write_parity(
        append.source(),
        &mut header,
        protection.threads,
        done,
        stop,
        &write,
    )?;
    let frame = Frame::of(&header, append.source(), &image)?;
    let payload = header.section + SectionHeader::LEN as u64;
    append.write_all_at(offset + payload, &frame.prelude)?;
    let footer = header.image_size - Footer::LEN as u64;
    append.write_all_at(offset + footer, &frame.footer)?;
    let sealed = frame.seal(append.source(), offset, &header, stop)?;
    append.write_all_at(offset + header.section, &sealed.encode())?;
    append.commit(offset + header.image_size)?;
    Ok(Added::of(&header, header.image_size - image.size))
}

/// Lays out the recovery data of the image at `offset` of a file, which ends with it.
fn plan(
    file: &dyn Source,
    offset: u64,
    protection: &Protection,
) -> Result<(HeaderPage, Container)> {
    let image = container(file, offset)?;
    let opening = opening(&image)?;
    let previous = match protection.whole {
        true => None,
        false => previous(file, &image)?,
    };
    let start = match &previous {
        // What it protects, and the recovery data itself, does not change any more.
        Some(previous) => previous.image_size.cast_signed(),
        None => start(offset, protection)?,
    };
    let geometry = Geometry::new(
        start,
        image.size.saturating_add_signed(start.saturating_neg()),
        protection.percent,
        protection.shard_size,
    )?;
    let mut header = HeaderPage::lay_out(geometry)?;
    header.index = opening.index();
    header.leading = offset;
    header.previous = previous.map_or(0, |previous| previous.section);
    if start < 0 {
        header.blanks = blanks(file, offset);
    }
    Ok((header, image))
}

impl Added {
    fn of(header: &HeaderPage, bytes: u64) -> Self {
        Self {
            geometry: header.geometry,
            left_out: header.blanks.iter().map(|blank| blank.length).sum(),
            bytes,
        }
    }
}

/// Makes a sidecar: writes recovery data of a file, which has an image at `offset`, to `out`, an empty file. It protects
/// the whole file but for the rest of an append that was not finished. The image needs no section index then,
/// and other data may follow it. `done` gets the number of bytes after each piece that was protected.
///
/// # Errors
/// As [`add`], but for [`Error::Present`].
pub fn add_sidecar(
    file: &dyn Source,
    offset: u64,
    protection: &Protection,
    out: &dyn Medium,
    done: &dyn Fn(u64),
    stop: &AtomicBool,
) -> Result<Added> {
    let image = container(file, offset)?;
    let (len, end) = (file.len()?, offset.saturating_add(image.size));
    let end = match end.saturating_add(image.unused_tail) == len {
        true => end,
        false => len,
    };
    let start = start(offset, protection)?;
    let geometry = Geometry::new(
        start,
        (end - offset).saturating_add_signed(start.saturating_neg()),
        protection.percent,
        protection.shard_size,
    )?;
    let mut header = HeaderPage::lay_out_sidecar(geometry)?;
    header.index = Opening::of(&image).map_or(0, |opening| opening.index());
    header.leading = offset;
    if start < 0 {
        header.blanks = blanks(file, offset);
    }
    let write = |at: u64, bytes: &[u8]| out.write_all_at(at, bytes);
    write_parity(file, &mut header, protection.threads, done, stop, &write)?;
    out.write_all_at(0, &sidecar_prelude(file, Some(&image))?.encode())?;
    out.sync()?;
    Ok(Added::of(&header, header.image_size))
}

/// The start of a sidecar: it belongs to the generation of an image that has an index.
pub(crate) fn sidecar_prelude(file: &dyn Source, image: Option<&Container>) -> Result<Prelude> {
    let index = image.filter(|image| Opening::of(image).is_some());
    let index = index.and_then(|image| Some((image.offset, image.sections.last()?)));
    let binding = match index {
        Some((offset, index)) => Binding::Generation(generation(file, offset, index)?),
        None => Binding::None,
    };
    Ok(Prelude {
        tag: TAG,
        major: 1,
        minor: 0,
        flags: SIDECAR,
        binding,
    })
}

/// Where the protected range begins, relative to the image.
fn start(offset: u64, protection: &Protection) -> Result<i64> {
    let leading = if protection.leading { offset } else { 0 };
    let leading = i64::try_from(leading);
    Ok(-leading
        .map_err(|_| Error::Unfit("the image begins too far behind the start of the file"))?)
}

/// The last recovery data among the trailers of a generation. Within that, none if it is damaged: it protects nothing then.
fn last_of(file: &dyn Source, image: &Container) -> Option<Option<HeaderPage>> {
    let is_recovery = |section: &&Section| section.ty == SectionType::RECOVERY;
    let section = image.trailers.iter().rfind(is_recovery)?;
    let at = image.offset + section.payload_offset + Prelude::LEN as u64;
    let page = page_at(file, at).and_then(|page| HeaderPage::parse(&page).ok());
    let header = page.map(|(header, _)| header);
    Some(header.filter(|header| header.section == section.header_offset))
}

/// The newest recovery data of an image and its older generations, if it is there.
fn previous(file: &dyn Source, image: &Container) -> Result<Option<HeaderPage>> {
    if let Some(own) = last_of(file, image) {
        return Ok(own);
    }
    let is_table = |section: &&Section| section.ty == SectionType::SNAPSHOTS;
    let (Some(section), Some(index)) =
        (image.trailers.iter().rfind(is_table), image.sections.last())
    else {
        return Ok(None);
    };
    let generation = generation(file, image.offset, index)?;
    let read = |at, out: &mut [u8]| file.read_exact_at(at, out);
    let payload = |section: &Section| {
        let payload = payload(file, image.offset, section).map_err(|error| match error {
            Error::Io(error) => FormatError::Io(error),
            other => FormatError::corrupt(other.to_string()),
        })?;
        let header = section.header.as_ref();
        match header.is_none_or(|header| header.xxh_matches(&payload)) {
            true => Ok(payload),
            false => Err(FormatError::corrupt("wrong checksum")),
        }
    };
    // Without a table, nobody knows where they are.
    let table = match TableChain::read(image, section, generation, &read, &payload) {
        Ok((table, _)) => table,
        Err(FormatError::Io(error)) => return Err(error.into()),
        Err(_) => return Ok(None),
    };
    let len = file.len()?;
    for snapshot in table.snapshots.iter().rev() {
        let Some(end) = snapshot.end.filter(|end| *end <= index.header_offset) else {
            continue;
        };
        let Ok(older) = Container::open_generation(&read, len, image.offset, end) else {
            continue;
        };
        if let Some(found) = last_of(file, &older) {
            return Ok(found);
        }
    }
    Ok(None)
}

/// Writes parity, pages of checksums, and header pages. What they are made of is in `header`.
fn write_parity(
    source: &dyn Source,
    header: &mut HeaderPage,
    threads: usize,
    done: &dyn Fn(u64),
    stop: &AtomicBool,
    write: &dyn Fn(u64, &[u8]) -> std::io::Result<()>,
) -> Result<()> {
    let geometry = header.geometry;
    let range = Range {
        source,
        geometry,
        start: header.leading.cast_signed() + geometry.start(),
        blanks: header.blanks,
    };
    let layout = *header;
    let hashes = encode(&range, threads, done, stop, &|shard, bytes| {
        Ok(write(layout.parity_at(shard), bytes)?)
    })?;
    header.hashes_id = HashPage::identity(&hashes);
    for copy in [header.hashes_a, header.hashes_b] {
        for page in 0..header.hash_pages as u32 {
            let at = copy + u64::from(page) * PAGE as u64;
            write(at, &HashPage::encode(&hashes, page, copy))?;
        }
    }
    for (copy, at) in (0..).zip(header.copies()) {
        write(at, &header.encode(copy))?;
    }
    Ok(())
}

/// Removes the recovery data that ends the image at `offset` of a file. Other trailers, and recovery data in front of
/// them, stay. Returns the number of bytes that were removed.
///
/// # Errors
/// [`Error::NotFound`] if there is none, [`Error::NotLast`] if trailers follow it, [`Error::Unfit`] if other data follows
/// the image.
pub fn remove(file: &LockedFile, offset: u64) -> Result<u64> {
    let image = container(file, offset)?;
    opening(&image)?;
    let is_recovery = |section: &&Section| section.ty == SectionType::RECOVERY;
    if !image.trailers.iter().any(|section| is_recovery(&section)) {
        return Err(Error::NotFound);
    }
    let last = image.trailers.iter().rev().take_while(is_recovery).last();
    let first = last.ok_or(Error::NotLast)?;
    let (len, end) = (file.len()?, offset.saturating_add(image.size));
    if len != end.saturating_add(image.unused_tail) {
        return Err(Error::Unfit("other data follows the image"));
    }
    let keep = offset + first.header_offset;
    file.set_len(keep)?;
    file.sync()?;
    Ok(len - keep)
}

/// The identity of the generation with an index.
fn generation(source: &dyn Source, offset: u64, index: &Section) -> Result<GenerationId> {
    Ok(GenerationId::of(&payload(source, offset, index)?))
}

/// The identity of the generation of an image whose index is intact.
pub(crate) fn sound_generation(source: &dyn Source, image: &Container) -> Option<GenerationId> {
    Opening::of(image)?;
    let index = image.sections.last()?;
    let bytes = payload(source, image.offset, index).ok()?;
    let header = index.header.as_ref()?;
    header.xxh_matches(&bytes).then(|| GenerationId::of(&bytes))
}

/// The stored payload of a section of an image at `offset`.
fn payload(source: &dyn Source, offset: u64, section: &Section) -> Result<Vec<u8>> {
    let limit = || Error::Format(redwarfs_format::Error::Limit("a very large section".into()));
    let mut payload = Vec::new();
    let length = usize::try_from(section.length).map_err(|_| limit())?;
    payload.try_reserve_exact(length).map_err(|_| limit())?;
    payload.resize(length, 0);
    source.read_exact_at(offset.saturating_add(section.payload_offset), &mut payload)?;
    Ok(payload)
}

/// What is around the pages of the section.
pub(crate) struct Frame {
    number: u32,
    pub(crate) prelude: [u8; Prelude::LEN],
    pub(crate) footer: [u8; Footer::LEN],
}

impl Frame {
    /// Of the section that `header` describes, behind the trailers of an image.
    pub(crate) fn of(header: &HeaderPage, source: &dyn Source, image: &Container) -> Result<Self> {
        let opening = opening(image)?;
        let index = image.sections.last();
        let index = index.ok_or_else(|| redwarfs_format::Error::corrupt("the section index"))?;
        let trailers = image.trailers.iter();
        let before = trailers.take_while(|s| s.header_offset < header.section);
        let last = before.last().unwrap_or(index);
        let end = last.payload_offset.saturating_add(last.length);
        let generation = generation(source, image.offset, index)?;
        Ok(Self {
            number: last.number.saturating_add(1),
            prelude: Prelude::of_generation(TAG, generation).encode(),
            footer: opening.footer(end).encode(),
        })
    }

    /// The header of the section, whose payload is in the file.
    pub(crate) fn seal(
        &self,
        source: &dyn Source,
        offset: u64,
        header: &HeaderPage,
        stop: &AtomicBool,
    ) -> Result<SectionHeader> {
        let start = header.section + SectionHeader::LEN as u64;
        let length = header.image_size.saturating_sub(start);
        let mut buffer = vec![0; PIECE];
        SectionHeader::seal_in_pieces(self.number, SectionType::RECOVERY, length, |take| {
            let mut at = 0;
            while at < length {
                if stop.load(Ordering::Relaxed) {
                    return Err(Error::Interrupted);
                }
                let n = usize::try_from(length - at).map_or(PIECE, |left| left.min(PIECE));
                let part = buffer.get_mut(..n).unwrap_or_default();
                source.read_exact_at(offset + start + at, part)?;
                take(part);
                at += n as u64;
            }
            Ok(())
        })
    }
}

/// Makes the parity of all groups, and hands each shard to `write`. Returns the checksums of all shards.
fn encode(
    range: &Range<'_>,
    threads: usize,
    done: &dyn Fn(u64),
    stop: &AtomicBool,
    write: &dyn Fn(u64, &[u8]) -> Result<()>,
) -> Result<Vec<u64>> {
    let geometry = range.geometry;
    let (size, threads) = (geometry.shard_size(), threads.clamp(1, 256) as u32);
    let mut hashes = vec![0; geometry.all_shards() as usize];
    let mut run = vec![0; size * threads as usize];
    let mut first = 0;
    while first < geometry.groups() {
        let groups = threads.min(geometry.groups() - first);
        let batch = || (first..first + groups).map(ShardGroup);
        let mut encoders = batch()
            .map(|group| Encoder::new(geometry.data_of(group), geometry.parity(), size))
            .collect::<Result<Vec<_>>>()?;
        for row in 0..geometry.data_of(ShardGroup(first)) {
            if stop.load(Ordering::Relaxed) {
                return Err(Error::Interrupted);
            }
            let shard = geometry.data_shard(ShardGroup(first), row);
            let count = (geometry.data_shards() - shard).min(u64::from(groups)) as usize;
            let bytes = &mut run[..count * size];
            range.read(shard, bytes)?;
            let sums = hashes.iter_mut().skip(shard as usize);
            for ((bytes, encoder), sum) in bytes.chunks(size).zip(&mut encoders).zip(sums) {
                *sum = shard_hash(bytes);
                encoder.add(bytes)?;
            }
            done(bytes.len() as u64);
        }
        let parity = thread::scope(|scope| {
            let work = encoders
                .into_iter()
                .map(|encoder| scope.spawn(|| encoder.finish()));
            let work: Vec<_> = work.collect();
            let joined = work.into_iter().map(thread::ScopedJoinHandle::join);
            joined
                .map(|made| made.unwrap_or(Err(Error::Interrupted)))
                .collect::<Vec<_>>()
        });
        for (group, shards) in batch().zip(parity) {
            for (row, bytes) in (0..).zip(shards?) {
                let shard = geometry.parity_shard(group, row);
                if let Some(sum) = hashes.get_mut(shard as usize) {
                    *sum = shard_hash(&bytes);
                }
                write(shard, &bytes)?;
            }
        }
        first += groups;
    }
    Ok(hashes)
}
