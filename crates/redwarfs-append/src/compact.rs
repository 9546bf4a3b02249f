//! A copy of an image without deleted generations, and without data that only they have.
//!
//! A plain copy ([`Compaction::write`]) costs reading and writing. Kept generations keep their schema, metadata and history byte by byte. For that, their blocks keep
//! their numbers: a block that no kept generation uses becomes an empty one, of 64 bytes.
//!
//! [`Compaction::rebuild`] costs as much as a build, and gives what that would give: no small blocks of single
//! appends, and no data that happens to be in a block of which something else is used. Memory: that of a build of all kept
//! trees, about 340 bytes for each entry of each of them. All kept generations are open for this. Each takes the raw size of its metadata, 10 to
//! 25 bytes an entry; they share a cache.
//!
//! Such a copy can have an *archive* ([`Archiving`]): one generation with the trees of many snapshots as directories side by
//! side, whose metadata is as small as that of one build. So history costs what one build of it costs.

use std::collections::BTreeSet;
use std::io::Write;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use redwarfs_format::hints::HintTable;
use redwarfs_format::section::{
    CompressionId, Footer, GenerationId, HiddenPayload, Opening, Prelude, Section, SectionHeader,
    SectionType, Snapshot, SnapshotTable, TableChain, encode_section_index,
};
use redwarfs_io::Source;
use redwarfs_reader::{CacheGroup, Image, OpenOptions};
use redwarfs_rewrite::merge::{MergeOptions, NamedTree, generations};
use redwarfs_writer::emit::Emitter;
use redwarfs_writer::{NewGeneration, Progress};

use crate::base::lasting;
use crate::error::{Error, Result};
use crate::used::blocks_in_use;

/// Bytes that are copied at once.
const PIECE: usize = 1 << 20;

/// What a compaction comes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Compacted {
    /// Bytes of the old file.
    pub old_size: u64,
    /// Bytes of the new one.
    pub new_size: u64,
    /// Snapshots that are kept.
    pub snapshots: u32,
    /// Those of them that are in an archive.
    pub archived: u32,
    /// Blocks of all kept generations.
    pub blocks: u32,
    /// Those with data that one of them uses.
    pub live_blocks: u32,
}

/// Which snapshots the archive of a copy has.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Archiving {
    /// Those that are in an archive already.
    #[default]
    AsBefore,
    /// All but the newest ones, of which there are so many, and at least one. If there are no others, the copy has no
    /// archive.
    AllBut(u32),
}

/// A generation that is kept.
#[derive(Debug)]
struct Kept {
    /// One, or several of an archive.
    snapshots: Vec<Snapshot>,
    sections: Vec<Section>,
}

/// A copy that is planned.
#[derive(Debug)]
pub struct Compaction {
    source: Arc<dyn Source>,
    offset: u64,
    size: u64,
    kept: Vec<Kept>,
    /// How generations are opened. They share a cache.
    open: OpenOptions,
    /// A snapshot of each archive, so that a rebuild need not decode its metadata again.
    archives: Vec<Image>,
    /// Offsets of the headers of blocks that are used.
    live: BTreeSet<u64>,
    lasting: Vec<(SectionType, Vec<u8>)>,
    /// Those of the newest generation, whose blocks keep their numbers.
    hints: Vec<HintTable>,
    /// Types of the trailers of all kept generations.
    trailers: BTreeSet<SectionType>,
}

impl Compaction {
    /// Plans a copy of the image in a file, whose newest generation is open.
    ///
    /// # Errors
    /// [`Error::Format`] if the metadata of a generation cannot be read, [`Error::Unfit`] if its
    /// data is gone, or the image has no table of snapshots.
    pub fn of(image: &Image) -> Result<Self> {
        let (table, _) = image.snapshot_tables()?;
        let container = image.container();
        if image.generation()?.is_none() {
            return Err(Error::Unfit("the image has no section index"));
        }
        let mut open = OpenOptions::default();
        open.cache_group = Some(CacheGroup::new(&open.cache));
        let mut plan = Self {
            source: Arc::clone(image.source()),
            offset: container.offset,
            size: container.size,
            kept: Vec::new(),
            open,
            archives: Vec::new(),
            live: BTreeSet::new(),
            lasting: lasting(image)?,
            hints: image.hints()?,
            trailers: BTreeSet::new(),
        };
        for snapshot in table.present() {
            if snapshot.end.is_none() {
                continue;
            }
            let older = plan.open(snapshot)?;
            plan.live.extend(blocks_in_use(&older)?);
            let trailers = older.container().trailers.iter();
            plan.trailers.extend(trailers.map(|section| section.ty));
            // Only neighbours are joined, so that their numbers ascend.
            if let Some(kept) = plan.kept.last_mut()
                && snapshot.archived
                && kept
                    .snapshots
                    .iter()
                    .all(|one| one.archived && one.index == snapshot.index)
            {
                kept.snapshots.push(snapshot.clone());
                continue;
            }
            let mut sections = older.container().sections.clone();
            for section in &mut sections {
                *section = older.section_with_header(section)?;
            }
            let is_held = |kept: &Kept| {
                let mut all = kept.snapshots.iter();
                all.any(|one| one.archived && one.index == snapshot.index)
            };
            if snapshot.archived && !plan.kept.iter().any(is_held) {
                plan.archives.push(older);
            }
            plan.kept.push(Kept {
                snapshots: vec![snapshot.clone()],
                sections,
            });
        }
        Ok(plan)
    }

    /// Opens a generation.
    fn open(&self, snapshot: &Snapshot) -> Result<Image> {
        let source = Arc::clone(&self.source);
        let image = Image::from_snapshot(source, self.offset, snapshot, &self.open)?;
        Ok(image)
    }

    /// Types of the trailers that any kept generation has.
    pub fn trailers(&self) -> impl Iterator<Item = SectionType> {
        self.trailers.iter().copied()
    }

    fn snapshots(&self) -> impl Iterator<Item = &Snapshot> {
        self.kept.iter().flat_map(|kept| &kept.snapshots)
    }

    /// Writes a copy whose contents are built anew: compressed, ordered and searched for duplicates as a build of
    /// the trees of all kept generations side by side. Block size, codecs, order and threads are those of `options`,
    /// whose other parts do not count. What is in front of the image is copied. The copy has an index of anchors if a kept
    /// generation has one.
    ///
    /// # Errors
    /// As [`write`](Self::write), and [`Error::Rewrite`] if the build fails.
    pub fn rebuild(
        &self,
        options: &MergeOptions,
        archiving: Archiving,
        out: &mut dyn Write,
        progress: &dyn Progress,
        stop: &AtomicBool,
    ) -> Result<Compacted> {
        let mut options = options.clone();
        // All of them are open together.
        options.caches = self.open.cache.size;
        let kept: Vec<&Snapshot> = self.snapshots().collect();
        // The newest one stays what other readers see.
        let most = kept.len().saturating_sub(1);
        let archived = match archiving {
            Archiving::AsBefore => kept.iter().take_while(|one| one.archived).count().min(most),
            Archiving::AllBut(newest) => most.min(kept.len().saturating_sub(newest as usize)),
        };
        let images = kept.iter().map(|snapshot| self.open(snapshot));
        let images: Vec<Image> = images.collect::<Result<_>>()?;
        options.metadata.match_index = self.trailers.contains(&SectionType::MATCH);
        let options = &options;
        let names = kept.iter().map(|one| Snapshot::directory_name(one.number));
        let names: Vec<String> = names.collect();
        let trees: Vec<NamedTree<'_>> = images
            .iter()
            .zip(&names)
            .map(|(image, name)| NamedTree { image, name })
            .collect();
        Copy::new(self, out, stop).bytes(0, self.offset)?;
        let (mut table, mut tables) = (SnapshotTable::default(), TableChain::default());
        let mut finish = |trees: Range<usize>, new: &NewGeneration, emitter: &mut Emitter<'_>| {
            let last = trees.end;
            let before = table.snapshots.last().and_then(|last: &Snapshot| last.end);
            let mut added = new.end.saturating_sub(before.unwrap_or(0));
            for number in trees {
                let Some(&kept) = kept.get(number) else {
                    return Ok(());
                };
                table.snapshots.push(Snapshot {
                    index: new.index,
                    end: Some(new.end),
                    tree: new.tree,
                    // What is added by one of an archive has the first one.
                    added: std::mem::take(&mut added),
                    parent: table.snapshots.last().map(|last| last.number),
                    archived: number < archived,
                    ..kept.clone()
                });
            }
            let next = tables.next(&table);
            tables.push(emitter.offset(), &next);
            emitter.trailer(
                SectionType::SNAPSHOTS,
                &next.prelude(new.generation),
                &next.encode(),
            )?;
            if last == kept.len() {
                for (ty, payload) in &self.lasting {
                    let hidden = HiddenPayload::parse(payload)?;
                    emitter.trailer(*ty, &hidden.prelude, hidden.body)?;
                }
            }
            Ok(())
        };
        let done = generations(&trees, archived, options, out, progress, stop, &mut finish)?;
        Ok(Compacted {
            old_size: self.size,
            new_size: done.size,
            snapshots: kept.len() as u32,
            archived: archived as u32,
            blocks: done.blocks,
            live_blocks: done.blocks,
        })
    }

    /// What it would come to.
    #[must_use]
    pub fn result(&self) -> Compacted {
        let mut counter = Counter::default();
        // Nothing is read for this.
        let blocks = self.lay_out(&mut counter);
        Compacted {
            old_size: self.size,
            new_size: counter.at,
            snapshots: self.snapshots().count() as u32,
            archived: self.snapshots().filter(|one| one.archived).count() as u32,
            blocks,
            live_blocks: self.live.len() as u32,
        }
    }

    /// Counts the bytes of the copy.
    fn lay_out(&self, counter: &mut Counter) -> u32 {
        let mut blocks: BTreeSet<u64> = BTreeSet::new();
        let (mut table, mut tables) = (SnapshotTable::default(), TableChain::default());
        for kept in &self.kept {
            for section in &kept.sections {
                let at = section.header_offset;
                let own = section.ty != SectionType::BLOCK || blocks.insert(at);
                let stub = section.ty == SectionType::BLOCK && !self.live.contains(&at);
                if own {
                    let payload = if stub { 0 } else { section.length };
                    counter.at += SectionHeader::LEN as u64 + payload;
                }
            }
            table.snapshots.extend(kept.snapshots.iter().cloned());
            let hidden = (SectionHeader::LEN + Prelude::LEN + Footer::LEN) as u64;
            let next = tables.next(&table);
            tables.push(counter.at, &next);
            counter.at += hidden + next.encode().len() as u64;
        }
        for (_, payload) in &self.lasting {
            counter.at += (SectionHeader::LEN + payload.len()) as u64;
        }
        for table in &self.hints {
            let around = SectionHeader::LEN + Prelude::LEN + Footer::LEN;
            counter.at += (around + table.encode().len()) as u64;
        }
        blocks.len() as u32
    }

    /// Whether [`write`](Self::write) can make a copy of such a file.
    ///
    /// # Errors
    /// [`Error::OnlyArchive`] if what followed an archive is gone.
    pub fn writable(&self) -> Result<()> {
        match self.snapshots().last().is_some_and(|last| last.archived) {
            true => Err(Error::OnlyArchive),
            false => Ok(()),
        }
    }

    /// Writes the copy, front to back. What is in front of the image is copied, too.
    ///
    /// # Errors
    /// [`Error::Io`] if reading or writing fails, [`Error::Format`] for a section with a wrong checksum,
    /// [`Error::Write`] if `stop` is set; [`Error::OnlyArchive`] if what followed an archive is gone. Then
    /// [`rebuild`](Self::rebuild) helps.
    pub fn write(&self, out: &mut dyn Write, stop: &AtomicBool) -> Result<Compacted> {
        self.writable()?;
        let mut copy = Copy::new(self, out, stop);
        copy.bytes(0, self.offset)?;
        copy.at = 0;
        // Old and new places of blocks, in the order of both.
        let mut places: std::collections::BTreeMap<u64, u64> = std::collections::BTreeMap::new();
        let (mut table, mut tables) = (SnapshotTable::default(), TableChain::default());
        for (number, kept) in self.kept.iter().enumerate() {
            let mut entries: Vec<(SectionType, u64)> = Vec::new();
            for section in &kept.sections {
                if section.ty == SectionType::SECTION_INDEX {
                    continue;
                }
                let known = places.get(&section.header_offset).copied();
                let at = match known.filter(|_| section.ty == SectionType::BLOCK) {
                    Some(at) => at,
                    None => copy.section(section)?,
                };
                if section.ty == SectionType::BLOCK {
                    places.insert(section.header_offset, at);
                }
                entries.push((section.ty, at));
            }
            let index = copy.at;
            entries.push((SectionType::SECTION_INDEX, index));
            let payload = encode_section_index(&entries);
            let generation = GenerationId::of(&payload);
            copy.payload(SectionType::SECTION_INDEX, CompressionId::NONE, &payload)?;
            let end = copy.at;
            for snapshot in &kept.snapshots {
                table.snapshots.push(Snapshot {
                    index,
                    end: Some(end),
                    parent: table.snapshots.last().map(|last: &Snapshot| last.number),
                    ..snapshot.clone()
                });
            }
            let opening = Opening::of_sections(entries.iter().copied())
                .ok_or(Error::Unfit("the image has no section index"))?;
            let mut trailers = vec![(SectionType::SNAPSHOTS, None)];
            let newest = number + 1 == self.kept.len();
            if newest {
                let lasting = self.lasting.iter();
                trailers.extend(lasting.map(|(ty, payload)| (*ty, Some(payload))));
            }
            for (ty, payload) in trailers {
                let (prelude, body) = match payload {
                    None => {
                        let next = tables.next(&table);
                        tables.push(copy.at, &next);
                        (next.prelude(generation), next.encode())
                    }
                    Some(payload) => {
                        let hidden = HiddenPayload::parse(payload)?;
                        (hidden.prelude, hidden.body.to_vec())
                    }
                };
                let bytes = opening.encode_trailer(copy.at, copy.number, ty, &prelude, &body);
                copy.put(&bytes)?;
                copy.number += 1;
            }
            for table in self.hints.iter().filter(|_| newest) {
                let (ty, prelude) = (SectionType::HINTS, HintTable::prelude(generation));
                let body = table.encode();
                let bytes = opening.encode_trailer(copy.at, copy.number, ty, &prelude, &body);
                copy.put(&bytes)?;
                copy.number += 1;
            }
        }
        copy.out.flush()?;
        Ok(Compacted {
            new_size: copy.at,
            ..self.result()
        })
    }
}

#[derive(Default)]
struct Counter {
    at: u64,
}

/// The output of a copy.
struct Copy<'a> {
    plan: &'a Compaction,
    out: &'a mut dyn Write,
    stop: &'a AtomicBool,
    /// From the start of the image.
    at: u64,
    number: u32,
    buffer: Vec<u8>,
}

impl<'a> Copy<'a> {
    fn new(plan: &'a Compaction, out: &'a mut dyn Write, stop: &'a AtomicBool) -> Self {
        Self {
            plan,
            out,
            stop,
            at: 0,
            number: 0,
            buffer: Vec::new(),
        }
    }

    fn put(&mut self, bytes: &[u8]) -> Result<()> {
        self.out.write_all(bytes)?;
        self.at += bytes.len() as u64;
        Ok(())
    }

    /// Copies bytes of the old file.
    fn bytes(&mut self, mut from: u64, mut length: u64) -> Result<()> {
        while length > 0 {
            if self.stop.load(Ordering::Relaxed) {
                return Err(redwarfs_writer::Error::Interrupted.into());
            }
            let n = usize::try_from(length).map_or(PIECE, |length| length.min(PIECE));
            self.buffer.resize(n, 0);
            let part = self.buffer.as_mut_slice();
            self.plan.source.read_exact_at(from, part)?;
            self.out.write_all(part)?;
            self.at += n as u64;
            from += n as u64;
            length -= n as u64;
        }
        Ok(())
    }

    fn payload(
        &mut self,
        ty: SectionType,
        compression: CompressionId,
        payload: &[u8],
    ) -> Result<()> {
        let header = SectionHeader::seal(self.number, ty, compression, payload);
        self.number += 1;
        self.put(&header.encode())?;
        self.put(payload)
    }

    /// Copies a section, or leaves the data of a block out that nothing uses. Returns its place.
    fn section(&mut self, section: &Section) -> Result<u64> {
        let at = self.at;
        if section.ty == SectionType::BLOCK && !self.plan.live.contains(&section.header_offset) {
            self.payload(SectionType::BLOCK, CompressionId::NONE, &[])?;
            return Ok(at);
        }
        if self.stop.load(Ordering::Relaxed) {
            return Err(redwarfs_writer::Error::Interrupted.into());
        }
        let limit = || redwarfs_format::Error::Limit("a section that is too large".into());
        let length = usize::try_from(section.length).map_err(|_| limit())?;
        let mut payload = std::mem::take(&mut self.buffer);
        payload.clear();
        payload.try_reserve_exact(length).map_err(|_| limit())?;
        payload.resize(length, 0);
        let from = self.plan.offset.saturating_add(section.payload_offset);
        self.plan.source.read_exact_at(from, &mut payload)?;
        // The hashes cover the number, so they are made anew.
        let right = section
            .header
            .as_ref()
            .filter(|header| header.xxh_matches(&payload));
        let Some(header) = right else {
            let error = redwarfs_format::Error::corrupt("wrong checksum");
            return Err(error.at(section.position, section.payload_offset).into());
        };
        self.payload(section.ty, header.compression, &payload)?;
        self.buffer = payload;
        Ok(at)
    }
}
