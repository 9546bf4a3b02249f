//! The generations of a file: which there are, and which one to open.

use std::fmt;
use std::sync::Arc;

use redwarfs_format::frozen::FrozenBytes;
use redwarfs_format::metadata::{MetadataView, freeze};
use redwarfs_format::section::{
    Container, GenerationId, IndexState, MetadataId, SNAPSHOTS_START, Section, SectionType,
    Snapshot, SnapshotTable, TableChain, may_have_archived, snapshot_time_name, tail_pointer,
};
use redwarfs_format::{Error, GenerationNo, InodeNo, Result, date_time};
use redwarfs_io::Source;

use crate::image::Image;
use crate::options::{ImageOffset, OpenOptions};
use crate::payload::Payloads;
use crate::verify::{stored_digests, stored_signatures};

/// Snapshots that an error names.
const NAMED: usize = 5;
/// Largest table of snapshots (256 MiB).
const TABLE_LIMIT: u64 = 256 << 20;

/// A generation by what a user calls it.
///
/// ```
/// use redwarfs_reader::{OpenOptions, SnapshotChoice};
///
/// let mut options = OpenOptions::default();
/// options.snapshot = Some(SnapshotChoice::from("2026-11-28T23:59:59"));
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SnapshotChoice {
    /// Its name or number.
    pub text: String,
    /// If the text is no name and no number: the newest one that is not later than this, in seconds
    /// since 1970.
    pub time: Option<i64>,
}

impl From<&str> for SnapshotChoice {
    /// A name, a number, or a time as [`date_time::parse`] takes it, in UTC unless a zone follows.
    fn from(text: &str) -> Self {
        Self {
            text: text.to_owned(),
            time: date_time::parse(text),
        }
    }
}

impl fmt::Display for SnapshotChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl SnapshotChoice {
    /// The snapshot of a table. A name comes before a number, and a number before a time.
    ///
    /// # Errors
    /// [`Error::NoSnapshot`] if there is none, or it is deleted.
    pub fn find<'t>(&self, table: &'t SnapshotTable) -> Result<&'t Snapshot> {
        let number = self.text.parse().ok();
        let by_number = || {
            let found = table.number(GenerationNo(number?))?;
            (!found.deleted).then_some(found)
        };
        let by_time = || {
            let time = self.time?;
            table.present().rfind(|snapshot| snapshot.seconds <= time)
        };
        table
            .named(&self.text)
            .or_else(by_number)
            .or_else(by_time)
            .ok_or_else(|| Error::NoSnapshot(self.missing_in(table)))
    }

    /// That a table has no such snapshot, and which it has: the newest ones.
    fn missing_in(&self, table: &SnapshotTable) -> String {
        let newest = table.present().rev().take(NAMED);
        let mut named: Vec<String> = newest.map(|one| format!("'{}'", one.name)).collect();
        named.reverse();
        let all = table.present().count();
        let (are, first) = match all {
            0 => return format!("there is no snapshot '{self}', nor any other one"),
            1 => ("is", ""),
            2..=NAMED => ("are", ""),
            _ => ("are", "older ones, "),
        };
        let named = named.join(", ");
        format!("there is no snapshot '{self}'; there {are} {first}{named}")
    }
}

/// The identity of the generation of a container with an index.
fn generation_of(payloads: &Payloads, container: &Container) -> Result<Option<GenerationId>> {
    match container.sections.last() {
        Some(index) if index.ty == SectionType::SECTION_INDEX => {
            Ok(Some(GenerationId::of(&payloads.read_vec(index)?)))
        }
        _ => Ok(None),
    }
}

/// The table of snapshots among the trailers, with the tables that it leads to, and where these are. A damaged one
/// is named in the log, and an earlier one counts.
pub(crate) fn table_of(
    payloads: &Payloads,
    container: &Container,
) -> Result<Option<(SnapshotTable, TableChain)>> {
    let tables = container.trailers.iter();
    let mut tables = tables.filter(|section| is_table(section)).peekable();
    if tables.peek().is_none() {
        return Ok(None);
    }
    let Some(generation) = generation_of(payloads, container)? else {
        return Ok(None);
    };
    let at = |at, buf: &mut [u8]| payloads.source().read_exact_at(at, buf);
    let payload = |section: &Section| {
        if section.length > TABLE_LIMIT {
            return Err(Error::Limit(format!(
                "a table of snapshots of {} bytes",
                section.length
            )));
        }
        payloads.read_vec(section)
    };
    for section in tables.rev() {
        match TableChain::read(container, section, generation, &at, &payload) {
            Ok(found) => return Ok(Some(found)),
            Err(error @ (Error::Io(_) | Error::Limit(_))) => return Err(error),
            Err(error) => tracing::warn!("table of snapshots: {error}"),
        }
    }
    Ok(None)
}

/// The newest snapshot in a generation, if that is an archive according to its table. For other generations, only a few
/// bytes are read.
pub(crate) fn newest_of_archive(
    source: &Arc<dyn Source>,
    container: &Container,
) -> Result<Option<Snapshot>> {
    let mut tables = container
        .trailers
        .iter()
        .filter(|section| is_table(section));
    let (Some(index), Some(last)) = (container.sections.last(), tables.next_back()) else {
        return Ok(None);
    };
    let mut start = [0; SNAPSHOTS_START];
    source.read_exact_at(container.offset + last.payload_offset, &mut start)?;
    if !may_have_archived(&start) {
        return Ok(None);
    }
    let newest = Arc::new(container.clone());
    let payloads = Payloads::new(Arc::clone(source), Arc::clone(&newest), 0);
    let table = match table_of(&payloads, &newest) {
        Ok(Some((table, _))) => table,
        Err(error @ Error::Io(_)) => return Err(error),
        // Then nothing says that it is an archive.
        Ok(None) | Err(_) => return Ok(None),
    };
    let place = index.header_offset;
    let in_it = |one: &&Snapshot| one.archived && one.index == place;
    // Otherwise the table has an entry of this generation as a tree.
    let is_newest = table.snapshots.last().is_some_and(|last| in_it(&last));
    Ok(table.present().rfind(in_it).filter(|_| is_newest).cloned())
}

/// The sections of a generation of a file, whose newest one is `newest`, and its entry in the table. None if there is
/// no table. The tree of the generation is not opened.
///
/// # Errors
/// [`Error::NoSnapshot`] if there is no such snapshot; [`Error::Unsupported`] if its data is gone; [`Error::Corrupt`] if the table is damaged, or
/// does not say where the generation is; [`Error::Io`] if reading fails.
pub fn sections_of_snapshot(
    source: &Arc<dyn Source>,
    newest: Container,
    choice: &SnapshotChoice,
) -> Result<(Container, Option<Snapshot>)> {
    let newest = Arc::new(newest);
    let payloads = Payloads::new(Arc::clone(source), Arc::clone(&newest), 0);
    let Some((table, _)) = table_of(&payloads, &newest)? else {
        if newest.trailers.iter().any(is_table) {
            return Err(no_table());
        }
        // What a file without a table calls its only generation takes its metadata.
        let only = Image::from_source(
            Arc::clone(source),
            &OpenOptions {
                offset: ImageOffset::At(newest.offset),
                ..OpenOptions::default()
            },
        )?;
        choice.find(&only.snapshots()?)?;
        return Ok((Arc::unwrap_or_clone(newest), None));
    };
    let found = choice.find(&table)?;
    let container = generation(source, newest.offset, found)?;
    Ok((container, Some(found.clone())))
}

/// The error of a change of an image whose tables of snapshots are all damaged: the new table would have no old one.
fn no_table() -> Error {
    Error::corrupt("the table of snapshots is damaged, and its snapshots would be lost")
}

fn is_table(section: &Section) -> bool {
    section.ty == SectionType::SNAPSHOTS
}

/// The sections of a generation of a file, whose image begins at `offset`.
pub(crate) fn generation(
    source: &Arc<dyn Source>,
    offset: u64,
    snapshot: &Snapshot,
) -> Result<Container> {
    let name = &snapshot.name;
    let gone = || Error::Unsupported(format!("the data of snapshot '{name}' is gone"));
    let elsewhere = || {
        Error::corrupt(format!(
            "the index of snapshot '{name}' is not where the table says"
        ))
    };
    let end = snapshot.end.ok_or_else(gone)?;
    let read = |at, buf: &mut [u8]| source.read_exact_at(at, buf);
    // Many entries could lead to the same large index, which would be read for each.
    let mut pointer = [0; 8];
    let at = end
        .checked_sub(pointer.len() as u64)
        .ok_or_else(elsewhere)?;
    read(offset.saturating_add(at), &mut pointer)?;
    if pointer != tail_pointer(snapshot.index).to_le_bytes() {
        return Err(elsewhere());
    }
    let container = Container::open_generation(&read, source.len()?, offset, end)?;
    let index = container.sections.last();
    match index.filter(|index| index.header_offset == snapshot.index) {
        Some(_) => Ok(container),
        None => Err(elsewhere()),
    }
}

/// The error of a snapshot whose tree is not what the table names.
pub(crate) fn another_tree(snapshot: &Snapshot) -> Error {
    let name = &snapshot.name;
    Error::corrupt(format!(
        "the tree of snapshot '{name}' is not the one that the table names"
    ))
}

/// Compares the metadata of an archive, which is completely in memory, with what a snapshot says of it.
pub(crate) fn check_archive(
    schema: &[u8],
    archive: &MetadataView,
    snapshot: &Snapshot,
) -> Result<()> {
    match identity_of(schema, archive)? == snapshot.tree {
        true => Ok(()),
        false => Err(another_tree(snapshot)),
    }
}

fn identity_of(schema: &[u8], view: &MetadataView) -> Result<MetadataId> {
    match view.bytes() {
        FrozenBytes::Whole(bytes) => Ok(MetadataId::of(schema, bytes)),
        FrozenBytes::Lazy(_) => Err(Error::Unsupported(
            "a snapshot whose metadata is not in memory".into(),
        )),
    }
}

/// The tree of an archived snapshot, from the metadata of its generation.
pub(crate) fn tree_in_archive(
    archive: &MetadataView,
    snapshot: &Snapshot,
    blocks: u32,
) -> Result<MetadataView> {
    let directory = snapshot.directory().unwrap_or_default();
    let entry = archive.find(InodeNo::ROOT, directory.as_bytes())?;
    let entry = entry.ok_or_else(|| Error::corrupt(format!("there is no tree '{directory}'")))?;
    let mut tree = archive.subtree(archive.entry_inode(entry)?, blocks)?;
    // All snapshots of an archive had a creation time, or none of them.
    if tree.create_timestamp.is_some() {
        tree.create_timestamp = u64::try_from(snapshot.seconds).ok();
    }
    let frozen = freeze(&tree)?;
    MetadataView::parse(&frozen.schema, frozen.data)
}

/// The end of a file at some moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TailOfFile {
    length: u64,
    /// The last bytes.
    pointer: [u8; 8],
}

/// Opens generations of the file of an image. Unlike the image, it holds no metadata and no blocks.
#[derive(Debug, Clone)]
pub struct FileOfImage {
    source: Arc<dyn Source>,
    offset: u64,
    options: OpenOptions,
}

impl FileOfImage {
    /// Opens a generation in the way in which the image was opened. It shares the block cache of the image.
    ///
    /// # Errors
    /// As [`Image::open_snapshot`].
    pub fn open_snapshot(&self, snapshot: &Snapshot) -> Result<Image> {
        Image::from_snapshot(
            Arc::clone(&self.source),
            self.offset,
            snapshot,
            &self.options,
        )
    }
}

impl Image {
    /// What opens other generations of the file of this image.
    pub fn file(&self) -> FileOfImage {
        FileOfImage {
            source: Arc::clone(self.source()),
            offset: self.container().offset,
            options: self.options_in_group(),
        }
    }

    /// The options for other images that share the block cache of this one.
    fn options_in_group(&self) -> OpenOptions {
        OpenOptions {
            cache_group: Some(self.cache_group()),
            ..self.0.options.clone()
        }
    }

    /// The present end of the file of this image. None if the file cannot grow, or the size of the image is given.
    ///
    /// # Errors
    /// Those of the medium.
    pub fn tail_of_file(&self) -> std::io::Result<Option<TailOfFile>> {
        let source = match self.0.options.image_size {
            None => self.source().of_now()?,
            Some(_) => None,
        };
        let Some(source) = source else {
            return Ok(None);
        };
        let length = source.len()?;
        let mut pointer = [0; 8];
        if let Some(at) = length.checked_sub(8) {
            source.read_exact_at(at, &mut pointer)?;
        }
        Ok(Some(TailOfFile { length, pointer }))
    }

    /// Whether another image of the same file is of the same generation.
    ///
    /// # Errors
    /// Those of reading the indexes.
    pub fn is_same_generation(&self, other: &Self) -> Result<bool> {
        let places = [self, other].map(|image| {
            let last = image.container().sections.last();
            last.map(|section| (section.ty, section.header_offset, section.length))
        });
        let same = places[0] == places[1] && self.0.archived == other.0.archived;
        Ok(same && self.generation()? == other.generation()?)
    }

    /// Whether this end of the file leads to the generation that is open.
    pub fn has_tail(&self, tail: &TailOfFile) -> bool {
        let container = self.container();
        let index = container.sections.last();
        match index.filter(|index| index.ty == SectionType::SECTION_INDEX) {
            Some(index) => tail.pointer == tail_pointer(index.header_offset).to_le_bytes(),
            None => tail.length == self.file_size(),
        }
    }

    /// Opens the newest generation that the file has now, in the way in which this one was opened, but with all of its
    /// metadata in memory. They share the block cache.
    ///
    /// # Errors
    /// As [`Image::from_source`]; [`Error::Unsupported`] if the file cannot grow.
    pub fn open_newest(&self) -> Result<Self> {
        let source = self.source().of_now()?;
        let cannot = || Error::Unsupported("the file of the image cannot grow".into());
        let options = OpenOptions {
            offset: ImageOffset::At(self.container().offset),
            snapshot: None,
            // Who follows a file does so in a thread of its own. The one that reads requests must not wait later.
            lazy_metadata: false,
            ..self.options_in_group()
        };
        Self::from_source(source.ok_or_else(cannot)?, &options)
    }

    /// Whether a snapshot of the file of this image has digests with a signature. Nothing is verified, and what is damaged does
    /// not count.
    pub fn snapshot_is_signed(&self, snapshot: &Snapshot) -> bool {
        let source = self.source();
        let signed = || -> Result<bool> {
            let container = generation(source, self.container().offset, snapshot)?;
            let digests = stored_digests(source.as_ref(), &container)?;
            let Some(digests) = digests else {
                return Ok(false);
            };
            let all = stored_signatures(source.as_ref(), &container, digests.header_offset)?;
            Ok(!all.is_empty())
        };
        signed().unwrap_or(false)
    }

    /// The identity of the tree that is open, if all of its metadata is in memory, and it is in no archive.
    ///
    /// # Errors
    /// Those of decoding the schema.
    pub(crate) fn tree_identity(&self) -> Result<MetadataId> {
        let container = self.container();
        let schema = container.only_section_of_type(SectionType::METADATA_V2_SCHEMA)?;
        identity_of(&self.decode_section(schema)?, &self.0.view)
    }

    /// Compares the tree that is open with the table of snapshots. Without this, a table could give a tree the name
    /// of another one.
    ///
    /// # Errors
    /// [`Error::Corrupt`] if it is another one.
    pub(crate) fn check_tree(&self, snapshot: &Snapshot) -> Result<()> {
        match self.tree_identity()? == snapshot.tree {
            true => Ok(()),
            false => Err(another_tree(snapshot)),
        }
    }

    /// Opens the tree of a snapshot, whose sections are known.
    pub(crate) fn of_snapshot(
        source: Arc<dyn Source>,
        container: Container,
        snapshot: &Snapshot,
        options: &OpenOptions,
    ) -> Result<Self> {
        let archived = snapshot.archived.then_some(snapshot);
        // All of its metadata is compared with the table, so nothing is left for later.
        let options = &OpenOptions {
            lazy_metadata: false,
            ..options.clone()
        };
        let image = Self::open_tree(source, container, archived, options)?;
        if archived.is_none() {
            image.check_tree(snapshot)?;
        }
        Ok(image)
    }

    /// Whether the tree is a directory of its generation, which has trees of other snapshots beside it. Then the metadata
    /// of this image is in no section.
    pub fn is_archived(&self) -> bool {
        self.0.archived.is_some()
    }

    /// The metadata of the archive of which the tree is a part.
    pub fn archive(&self) -> Option<&MetadataView> {
        self.0.archive.as_deref()
    }

    /// The identity of the generation that is open, if it has a valid index.
    ///
    /// # Errors
    /// Those of reading the index.
    pub fn generation(&self) -> Result<Option<GenerationId>> {
        if self.container().index != IndexState::Valid {
            return Ok(None);
        }
        generation_of(&self.0.payloads, self.container())
    }

    /// Opens another generation of the file of this image, in the way in which this one was opened. They share the block
    /// cache.
    ///
    /// # Errors
    /// As [`Image::from_source`]; [`Error::Unsupported`] if the data of the snapshot is gone; [`Error::Corrupt`] if its
    /// index or its tree are not those that the table names.
    pub fn open_snapshot(&self, snapshot: &Snapshot) -> Result<Self> {
        self.file().open_snapshot(snapshot)
    }

    /// Opens a generation of the image that begins at `offset`. The place in `options` does not count.
    ///
    /// # Errors
    /// As [`Image::open_snapshot`].
    pub fn from_snapshot(
        source: Arc<dyn Source>,
        offset: u64,
        snapshot: &Snapshot,
        options: &OpenOptions,
    ) -> Result<Self> {
        let container = generation(&source, offset, snapshot)?;
        Self::of_snapshot(source, container, snapshot, options)
    }

    /// All generations of the file, also if this image is not the newest one of them.
    ///
    /// # Errors
    /// As [`snapshots`](Self::snapshots), and those of opening the newest one.
    pub fn snapshots_of_file(&self) -> Result<SnapshotTable> {
        if self.0.options.snapshot.is_none() {
            return self.snapshots();
        }
        let source = self.source();
        let read = |at, buf: &mut [u8]| source.read_exact_at(at, buf);
        let limit = self.0.options.image_size;
        let newest = Container::open(&read, source.len()?, self.container().offset, limit)?;
        let newest = Arc::new(newest);
        let payloads = Payloads::new(Arc::clone(source), Arc::clone(&newest), 0);
        match table_of(&payloads, &newest)? {
            Some((table, _)) => Ok(table),
            // Then this is the only one.
            None => self.snapshots(),
        }
    }

    /// All generations of the file, if its newest one is open. A file without a table has one generation.
    ///
    /// # Errors
    /// Those of reading, and [`Error::Limit`] for a table of more than 256 MiB.
    pub fn snapshots(&self) -> Result<SnapshotTable> {
        match table_of(&self.0.payloads, self.container())? {
            Some((table, _)) => Ok(table),
            None => self.only_snapshot(),
        }
    }

    /// As [`snapshots`](Self::snapshots), with the places of the tables in the file, for a change of the image.
    ///
    /// # Errors
    /// As [`snapshots`](Self::snapshots), and [`Error::Corrupt`] if there are tables, and all are damaged.
    pub fn snapshot_tables(&self) -> Result<(SnapshotTable, TableChain)> {
        let container = self.container();
        match table_of(&self.0.payloads, container)? {
            Some(found) => Ok(found),
            None if container.trailers.iter().any(is_table) => Err(no_table()),
            None => Ok((self.only_snapshot()?, TableChain::default())),
        }
    }

    /// The table that a file without one has.
    fn only_snapshot(&self) -> Result<SnapshotTable> {
        let container = self.container();
        let index = container.sections.last();
        let index = index.filter(|s| s.ty == SectionType::SECTION_INDEX);
        let decode = |ty| self.decode_section(container.only_section_of_type(ty)?);
        let schema = decode(SectionType::METADATA_V2_SCHEMA)?;
        let metadata = decode(SectionType::METADATA_V2)?;
        let view = self.metadata();
        let time = view.create_timestamp();
        let seconds = time.map_or(0, |time| i64::try_from(time).unwrap_or(i64::MAX));
        let end = index.map_or(container.size, |s| s.payload_offset + s.length);
        let only = Snapshot {
            number: GenerationNo(1),
            name: match time {
                // Beyond this, the year is no date.
                Some(_) if seconds < 1 << 40 => snapshot_time_name(seconds),
                _ => "first".into(),
            },
            index: index.map_or(0, |section| section.header_offset),
            end: Some(end),
            pinned: false,
            deleted: false,
            archived: false,
            seconds,
            nanoseconds: 0,
            tree: MetadataId::of(&schema, &metadata),
            size: view.totals().size,
            added: end,
            inodes: view.inode_count(),
            parent: None,
        };
        Ok(SnapshotTable {
            snapshots: vec![only],
            previous: None,
        })
    }
}
