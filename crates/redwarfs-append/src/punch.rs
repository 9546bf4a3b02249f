//! Giving the space of deleted generations back in place: their data becomes a hole of the file.
//!
//! A block that only they use becomes an empty one, as in a compacted copy, and what is left of it a PAD section, which
//! is a hole. Their schemas, metadata and histories become PAD sections. So every section of the file stays a valid
//! one, and the headers can still be walked.
//!
//! No byte that a kept generation uses is written. The order of writes makes each state a valid image:
//!
//! 1. A new table says that the data of the deleted generations is gone. It counts before anything else is written.
//! 2. Headers of PAD sections are written into the data that goes.
//! 3. Headers of blocks become those of empty ones.
//! 4. The data becomes holes.
//!
//! Each step is on the medium before the next one begins. If the program ends on the way, blocks that nobody uses
//! may have wrong checksums, until the data is given back again.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::section::{
    CompressionId, Container, SectionHeader, SectionType, Snapshot, SnapshotTable, Version,
};
use redwarfs_io::Medium;
use redwarfs_reader::{CacheGroup, Image, ImageOffset, OpenOptions};

use crate::error::{Error, Result};
use crate::table::{open, put_table};
use crate::used::blocks_in_use;

/// Shortest payload that is worth a hole.
const SHORTEST: u64 = 8 << 10;
/// Longest payload: its checksums are made in memory.
const LONGEST: u64 = 1 << 30;
/// Of file systems.
const PAGE: u64 = 4096;

const HEADER: u64 = SectionHeader::LEN as u64;

/// What giving space back comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[non_exhaustive]
pub struct Punched {
    /// Deleted generations.
    pub snapshots: u32,
    /// Blocks that become empty.
    pub blocks: u32,
    /// Bytes that become holes, rounded to whole pages of 4 KiB.
    pub bytes: u64,
}

/// A payload that goes.
#[derive(Debug, Clone, Copy)]
struct Dead {
    /// Offset of the header from the start of the image.
    header: u64,
    /// Length of the payload.
    length: u64,
    is_block: bool,
    /// Of its header, and so of the PAD section.
    number: u32,
    version: Version,
    /// Whether it still has its data.
    is_new: bool,
}

impl Dead {
    /// The data that becomes a hole.
    fn hole(&self) -> (u64, u64) {
        match self.is_block {
            // The header of the PAD section is in front.
            true => (self.header + 2 * HEADER, self.length - HEADER),
            false => (self.header + HEADER, self.length),
        }
    }
}

/// A plan to give space back.
#[derive(Debug)]
pub struct Punching {
    offset: u64,
    table: SnapshotTable,
    changes_table: bool,
    dead: Vec<Dead>,
    result: Punched,
}

impl Punching {
    /// Looks for data of the image in a file, whose newest generation is open, that no generation needs.
    ///
    /// # Errors
    /// [`Error::Format`] if the metadata of a generation that is not deleted cannot be read, [`Error::Unfit`] if
    /// the image has no section index, or has recovery data, which would count the holes as damage.
    pub fn of(image: &Image) -> Result<Self> {
        let (mut table, _) = image.snapshot_tables()?;
        if image.generation()?.is_none() {
            return Err(Error::Unfit("the image has no section index"));
        }
        let offset = image.container().offset;
        let mut found = Found::default();
        let mut result = Punched::default();
        // Whatever the table says of it.
        found.kept(image)?;
        let mut open = OpenOptions::default();
        open.cache_group = Some(CacheGroup::new(&open.cache));
        // While one of an archive is open, the others need not decode it again.
        let mut before: Option<Image> = None;
        for snapshot in table.present().filter(|snapshot| snapshot.end.is_some()) {
            let source = Arc::clone(image.source());
            let kept = Image::from_snapshot(source, offset, snapshot, &open)?;
            found.kept(before.insert(kept))?;
        }
        for snapshot in table.snapshots.iter().filter(|snapshot| snapshot.deleted) {
            match found.deleted(image, snapshot) {
                Ok(()) => {}
                Err(error @ Error::Io(_)) => return Err(error),
                // It stays as it is.
                Err(error) => tracing::warn!("deleted snapshot {}: {error}", snapshot.number),
            }
        }
        let deleted = table.snapshots.iter_mut().filter(|one| one.deleted);
        let gone = deleted.filter_map(|one| one.end.take()).count();
        result.snapshots = u32::try_from(gone).unwrap_or(u32::MAX);
        if found.has_recovery {
            return Err(Error::Recovery);
        }
        let mut dead = Vec::new();
        let blocks = found.blocks.iter().map(|at| (*at, SectionType::BLOCK));
        let others = found.metadata.iter().map(|(at, ty)| (*at, *ty));
        for (at, ty) in blocks.chain(others) {
            if !found.live.contains_key(&at) {
                dead.extend(found.dead(image, at, ty)?);
            }
        }
        dead.sort_unstable_by_key(|one: &Dead| one.header);
        for one in dead.iter().filter(|one| one.is_new) {
            let (start, length) = one.hole();
            let first = (offset + start).next_multiple_of(PAGE);
            let last = (offset + start + length) / PAGE * PAGE;
            result.bytes += last.saturating_sub(first);
            result.blocks += u32::from(one.is_block);
        }
        Ok(Self {
            offset,
            table,
            changes_table: gone > 0,
            dead,
            result,
        })
    }

    /// What it comes to.
    #[must_use]
    pub fn result(&self) -> Punched {
        self.result
    }

    fn run(&self, file: &Arc<dyn Medium>, image: &Image, stop: &AtomicBool) -> Result<()> {
        // The file system says whether it can make holes, behind the end of the file.
        let behind = file.len()?.next_multiple_of(PAGE);
        file.punch(behind, PAGE)?;
        // Writing it also cuts off what an interrupted change has left.
        if self.changes_table || image.container().unused_tail > 0 {
            put_table(file, image, &self.table)?;
        }
        let check = || match stop.load(Ordering::Relaxed) {
            true => Err(Error::from(redwarfs_writer::Error::Interrupted)),
            false => Ok(()),
        };
        let mut zeros = Vec::new();
        for one in self.dead.iter().filter(|one| one.is_new) {
            check()?;
            let (start, length) = one.hole();
            // It has been read from a header that fits into the file.
            let length = usize::try_from(length).unwrap_or(0);
            let more = length.saturating_sub(zeros.len());
            let many = |_| redwarfs_format::Error::Limit("a section that is too large".into());
            zeros.try_reserve_exact(more).map_err(many)?;
            zeros.resize(length.max(zeros.len()), 0);
            let payload = zeros.get(..length).unwrap_or_default();
            let sealed =
                SectionHeader::seal(one.number, SectionType::PAD, CompressionId::NONE, payload);
            let pad = SectionHeader {
                version: one.version,
                ..sealed
            };
            file.write_all_at(self.offset + start - HEADER, &pad.encode())?;
        }
        file.sync()?;
        for one in self.dead.iter().filter(|one| one.is_new && one.is_block) {
            let mut header = [0; SectionHeader::LEN];
            file.read_exact_at(self.offset + one.header, &mut header)?;
            let old = SectionHeader::parse(&header)?;
            let empty = SectionHeader {
                version: one.version,
                ..SectionHeader::seal(old.number, old.ty, CompressionId::NONE, &[])
            };
            file.write_all_at(self.offset + one.header, &empty.encode())?;
        }
        file.sync()?;
        for one in &self.dead {
            check()?;
            let (start, length) = one.hole();
            file.punch(self.offset + start, length)?;
        }
        file.sync()?;
        Ok(())
    }
}

/// Gives the space of deleted generations of the image in a file back. The file keeps its length, and has holes then.
///
/// # Errors
/// As [`Punching::of`]; [`Error::Io`] with [`std::io::ErrorKind::Unsupported`] if the file system makes no holes, before
/// anything is written; [`Error::Write`] if `stop` is set.
pub fn punch(file: &Arc<dyn Medium>, offset: ImageOffset, stop: &AtomicBool) -> Result<Punched> {
    let image = open(file, offset)?;
    let plan = Punching::of(&image)?;
    if plan.changes_table || !plan.dead.is_empty() {
        plan.run(file, &image, stop)?;
    }
    Ok(plan.result)
}

#[derive(Debug, Default)]
struct Found {
    /// Sections that a kept generation needs: offsets of their headers, and where they end.
    live: BTreeMap<u64, u64>,
    /// Offsets of the headers of blocks that are listed anywhere.
    blocks: BTreeSet<u64>,
    /// Schemas, metadata and histories of deleted generations, by the offsets of their headers.
    metadata: BTreeMap<u64, SectionType>,
    has_recovery: bool,
}

impl Found {
    fn container(&mut self, container: &Container) {
        let mut trailers = container.trailers.iter();
        self.has_recovery |= trailers.any(|section| section.ty == SectionType::RECOVERY);
        let blocks = container.blocks();
        self.blocks.extend(blocks.map(|block| block.header_offset));
    }

    fn kept(&mut self, image: &Image) -> Result<()> {
        let container = image.container();
        self.container(container);
        let used = blocks_in_use(image)?;
        for section in container.sections.iter().chain(&container.trailers) {
            let at = section.header_offset;
            if section.ty != SectionType::BLOCK || used.contains(&at) {
                let section = image.section_with_header(section)?;
                let end = section.payload_offset.saturating_add(section.length);
                self.live.insert(at, end);
            }
        }
        Ok(())
    }

    /// `image` is any generation of the file.
    fn deleted(&mut self, image: &Image, snapshot: &Snapshot) -> Result<()> {
        let source = image.source();
        let offset = image.container().offset;
        // The table may say already that its data is gone. Its index stays, and lists what there was.
        let mut header = [0; SectionHeader::LEN];
        source.read_exact_at(offset.saturating_add(snapshot.index), &mut header)?;
        let header = SectionHeader::parse(&header)?;
        let mut payload = Vec::new();
        let length = usize::try_from(header.length.min(source.len()?)).unwrap_or(usize::MAX);
        let many = |_| redwarfs_format::Error::Limit("an index that is too large".into());
        payload.try_reserve_exact(length).map_err(many)?;
        payload.resize(length, 0);
        let start = snapshot.index.saturating_add(HEADER);
        source.read_exact_at(offset.saturating_add(start), &mut payload)?;
        if header.ty != SectionType::SECTION_INDEX || !header.xxh_matches(&payload) {
            return Err(redwarfs_format::Error::corrupt("its index is damaged").into());
        }
        for entry in payload.chunks_exact(8) {
            let entry = entry.try_into().map_or(0, u64::from_le_bytes);
            let (ty, at) = (SectionType((entry >> 48) as u16), entry & ((1 << 48) - 1));
            match ty {
                SectionType::BLOCK => {
                    self.blocks.insert(at);
                }
                SectionType::METADATA_V2_SCHEMA
                | SectionType::METADATA_V2
                | SectionType::HISTORY => {
                    self.metadata.insert(at, ty);
                }
                _ => {}
            }
        }
        // Its trailers. If space was given back before, it is no generation any more, and had none that matters.
        let read = |at, out: &mut [u8]| source.read_exact_at(at, out);
        let end = start.saturating_add(header.length);
        if let Ok(container) = Container::open_generation(&read, source.len()?, offset, end) {
            self.container(&container);
        }
        Ok(())
    }

    /// What goes of a section. None if it is short.
    fn dead(&self, image: &Image, at: u64, ty: SectionType) -> Result<Option<Dead>> {
        let is_block = ty == SectionType::BLOCK;
        let offset = image.container().offset;
        let header_at = |at: u64| -> Result<Option<SectionHeader>> {
            let mut bytes = [0; SectionHeader::LEN];
            let read = image
                .source()
                .read_exact_at(offset.saturating_add(at), &mut bytes);
            match read {
                Ok(()) => Ok(SectionHeader::parse(&bytes).ok()),
                Err(error) if error.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
                Err(error) => Err(error.into()),
            }
        };
        let Some(header) = header_at(at)? else {
            return Ok(None);
        };
        let dead = |length, is_new| {
            let dead = Dead {
                header: at,
                length,
                is_block,
                number: header.number,
                version: header.version,
                is_new,
            };
            let end = at.saturating_add(HEADER).saturating_add(length);
            let before = self.live.range(..end).next_back();
            // Nor does it reach into what is needed, as no writer makes it.
            let fits = end <= image.container().size && before.is_none_or(|(_, last)| *last <= at);
            (fits && (SHORTEST..=LONGEST).contains(&length)).then_some(dead)
        };
        let is_pad = |header: &SectionHeader| header.ty == SectionType::PAD;
        Ok(match (is_block, header.length) {
            // Emptied before. The hole may not have been made.
            (true, 0) => header_at(at.saturating_add(HEADER))?
                .filter(is_pad)
                .and_then(|pad| dead(pad.length.saturating_add(HEADER), false)),
            (false, length) if is_pad(&header) => dead(length, false),
            (_, length) if header.ty == ty => dead(length, true),
            _ => None,
        })
    }
}
