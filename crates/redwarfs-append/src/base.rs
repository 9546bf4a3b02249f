//! An image as a build sees it that continues it.

use std::collections::HashMap;
use std::fmt;
use std::io;
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use redwarfs_format::history::HistoryEntry;
use redwarfs_format::metadata::{Extent, FileType, Timestamp};
use redwarfs_format::section::{
    Binding, GenerationId, HiddenClass, HiddenPayload, IndexState, Link, Section, SectionType,
    Snapshot, SnapshotTable, TableChain, snapshot_name_error, tail_pointer,
};
use redwarfs_format::{BlockNo, GenerationNo, InodeNo};
use redwarfs_io::Source;
use redwarfs_reader::{BlockMemory, Image, ImageOffset, OpenOptions};
use redwarfs_writer::emit::{Emitter, write_hints};
use redwarfs_writer::{BaseBlock, BaseContent, BaseImage, NewGeneration};

use crate::error::{Error, Result};
use crate::matching::Matching;
use crate::moved::Names;
use crate::older::Older;

/// Contents that are not read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Trust {
    /// Those of files whose path, size and modification time are as before. A file that was changed
    /// after the image was begun, or in the same second, is read.
    #[default]
    Times,
    /// None: every file is read.
    Nothing,
}

/// How an image is continued.
#[derive(Debug, Clone)]
#[non_exhaustive]
pub struct BaseOptions {
    /// Where the image begins in its file.
    pub offset: ImageOffset,
    /// The contents that are not read.
    pub trust: Trust,
    /// The name of the new snapshot.
    pub name: String,
    /// Whether the name gets a number if there is a snapshot with it. Otherwise that is an error.
    pub numbered: bool,
    /// The time that the new snapshot shows, since 1970.
    pub time: Timestamp,
}

impl BaseOptions {
    /// With a name and a time, trusting times.
    #[must_use]
    pub fn new(name: impl Into<String>, time: Timestamp) -> Self {
        Self {
            offset: ImageOffset::Auto,
            trust: Trust::Times,
            name: name.into(),
            numbered: false,
            time,
        }
    }
}

/// The image that a build continues.
///
/// Memory: 8 bytes for each content of the newest generation, and 16 for each distinct size, besides an open
/// image; and older generations, within bounds (`older`).
pub struct Base {
    image: Image,
    options: BaseOptions,
    table: SnapshotTable,
    tables: TableChain,
    index: Section,
    generation: GenerationId,
    /// An inode of each content.
    inodes: HashMap<BaseContent, InodeNo>,
    by_size: HashMap<u64, Vec<BaseContent>>,
    older: Older,
    names: OnceLock<Names>,
    matching: Option<Matching>,
    /// The generation that was built last.
    made: Mutex<Option<GenerationId>>,
    /// Files with this time or a later one may have changed while the image was built.
    begun: Option<i64>,
}

impl fmt::Debug for Base {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Base")
            .field("snapshots", &self.table.snapshots.len())
            .field("contents", &self.inodes.len())
            .finish_non_exhaustive()
    }
}

impl Base {
    /// Opens the newest generation of the image in `source`, to continue it.
    ///
    /// # Errors
    /// * [`Error::Format`] if it cannot be read.
    /// * [`Error::Unfit`] if it has no index, begins with no block, or other data follows it.
    /// * [`Error::OnlyArchive`] if what followed an archive is gone.
    /// * [`Error::Name`] and [`Error::Exists`] for the name of the new snapshot.
    pub fn open(source: Arc<dyn Source>, options: BaseOptions) -> Result<Self> {
        if let Some(why) = snapshot_name_error(&options.name) {
            return Err(Error::Name {
                name: options.name,
                why,
            });
        }
        let mut open = OpenOptions::default();
        open.offset = options.offset;
        let image = Image::from_source(source, &open)?;
        if image.is_archived() {
            return Err(Error::OnlyArchive);
        }
        let container = image.container();
        let index = match (&container.index, container.sections.last()) {
            (IndexState::Valid, Some(index)) => index.clone(),
            _ => return Err(Error::Unfit("the image has no section index")),
        };
        if container
            .sections
            .first()
            .is_none_or(|first| first.ty != SectionType::BLOCK)
        {
            return Err(Error::Unfit("the image has no data, so nothing is saved"));
        }
        if image.trailing_bytes() != container.unused_tail {
            return Err(Error::Unfit("other data follows the image"));
        }
        let generation = image
            .generation()?
            .ok_or(Error::Unfit("the image has no section index"))?;
        let (table, tables) = image.snapshot_tables()?;
        let mut base = Self {
            begun: image
                .metadata()
                .create_timestamp()
                .map(|time| i64::try_from(time).unwrap_or(i64::MAX)),
            options,
            table,
            tables,
            index,
            generation,
            inodes: HashMap::new(),
            by_size: HashMap::new(),
            older: Older::default(),
            names: OnceLock::new(),
            matching: None,
            made: Mutex::default(),
            image,
        };
        base.options.name = base.free_name()?;
        base.list_contents()?;
        let generations = std::iter::once(&base.image).chain(base.older.images());
        base.matching = Some(Matching::of(&base.image, generations));
        Ok(base)
    }

    fn free_name(&self) -> Result<String> {
        let name = &self.options.name;
        if self.table.named(name).is_none() {
            return Ok(name.clone());
        }
        if !self.options.numbered {
            return Err(Error::Exists(name.clone()));
        }
        let mut names = (2_u32..).map(|number| format!("{name}-{number}"));
        let free = names.find(|name| self.table.named(name).is_none());
        Ok(free.unwrap_or_default())
    }

    fn list_contents(&mut self) -> Result<()> {
        let view = self.image.metadata();
        for number in 0..view.inode_count() {
            let inode = InodeNo(number);
            if view.file_type(inode)? != FileType::Regular {
                continue;
            }
            let content = BaseContent(view.content_id(inode)?);
            if self.inodes.insert(content, inode).is_none() {
                let size = view.stat(inode)?.size;
                if size > 0 {
                    self.by_size.entry(size).or_default().push(content);
                }
            }
        }
        let newest = self.inodes.keys().copied();
        self.older = Older::open(&self.image, &self.table, newest)?;
        for (content, size) in self.older.contents()? {
            if size > 0 {
                self.by_size.entry(size).or_default().push(content);
            }
        }
        for contents in self.by_size.values_mut() {
            contents.sort_unstable();
        }
        Ok(())
    }

    /// The identity of the generation that the last build has made. It is known before the output counts.
    #[must_use]
    pub fn made(&self) -> Option<GenerationId> {
        *self.made.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The old image.
    #[must_use]
    pub fn image(&self) -> &Image {
        &self.image
    }

    /// Where new bytes begin in the file.
    #[must_use]
    pub fn end_in_file(&self) -> u64 {
        let container = self.image.container();
        container.offset.saturating_add(container.size)
    }

    /// The last eight bytes of the image.
    #[must_use]
    pub fn tail_pointer(&self) -> [u8; 8] {
        tail_pointer(self.index.header_offset).to_le_bytes()
    }

    /// The name of the new snapshot.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.options.name
    }

    /// The number of the new snapshot.
    #[must_use]
    pub fn number(&self) -> GenerationNo {
        next_number(&self.table)
    }

    fn inode(&self, path: &[u8]) -> Option<InodeNo> {
        let inode = self.image.find_path(path).ok()??;
        let kind = self.image.metadata().file_type(inode).ok()?;
        (kind == FileType::Regular).then_some(inode)
    }

    /// Whether a file has the time that is stored, and had it before the image was begun.
    fn has_time(&self, stored: Timestamp, found: Timestamp) -> bool {
        let options = self.image.metadata().options();
        let unit = i64::from(options.time_resolution_sec.unwrap_or(1).max(1));
        let multiplier = options.subsecond_resolution_nsec_multiplier;
        let nanoseconds = multiplier.map_or(0, |m| found.nsec / m.max(1) * m);
        found.sec.div_euclid(unit) == stored.sec.div_euclid(unit)
            && nanoseconds == stored.nsec
            && self.begun.is_none_or(|begun| found.sec < begun)
    }
}

fn as_write_error(error: Error) -> redwarfs_writer::Error {
    match error {
        Error::Format(error) => redwarfs_writer::Error::Format(error),
        other => redwarfs_writer::Error::Limit(other.to_string()),
    }
}

fn as_io(error: redwarfs_format::Error) -> io::Error {
    match error {
        redwarfs_format::Error::Io(error) => error,
        other => io::Error::new(io::ErrorKind::InvalidData, other.to_string()),
    }
}

/// The number of a generation behind those of a table.
pub(crate) fn next_number(table: &SnapshotTable) -> GenerationNo {
    let last = table.snapshots.last();
    GenerationNo(last.map_or(1, |last| last.number.0.saturating_add(1)))
}

/// The trailers of an image that are true for any generation of it.
pub(crate) fn lasting(image: &Image) -> Result<Vec<(SectionType, Vec<u8>)>> {
    let mut kept = Vec::new();
    for section in &image.container().trailers {
        // Hints are about the blocks of one generation.
        if section.ty.hidden_class() != Some(HiddenClass::Copy) || section.ty == SectionType::HINTS
        {
            continue;
        }
        match image.stored_payload(section) {
            Ok(payload) => kept.push((section.ty, payload)),
            Err(error @ redwarfs_format::Error::Io(_)) => return Err(error.into()),
            // A damaged one is ignored by all readers.
            Err(_) => {}
        }
    }
    Ok(kept)
}

impl BaseImage for Base {
    fn sections(&self) -> Vec<(SectionType, u64)> {
        let blocks = self.image.container().blocks();
        blocks
            .map(|block| (block.ty, block.header_offset))
            .collect()
    }

    fn blocks(&self) -> Vec<BaseBlock> {
        let view = self.image.metadata();
        let names = view.category_names().ok().flatten().unwrap_or_default();
        let of = |number| {
            let category = view.block_category(BlockNo(number)).ok().flatten();
            let name = category.and_then(|id| names.get(id.index()).cloned());
            BaseBlock {
                category: name.unwrap_or_default(),
                parameters: view.block_metadata(BlockNo(number)).ok().flatten(),
            }
        };
        (0..self.image.container().block_count()).map(of).collect()
    }

    fn end(&self) -> u64 {
        self.image.container().size
    }

    fn next_number(&self) -> u32 {
        self.image.container().next_number()
    }

    fn start(&self, number: u32) -> (Vec<u8>, u32) {
        let link = Link {
            base_size: self.end(),
            base: self.generation,
            generation: self.number(),
        };
        (link.encode(number), 1)
    }

    fn block_size(&self) -> u32 {
        self.image.metadata().block_size()
    }

    fn history(&self) -> Vec<HistoryEntry> {
        self.image
            .history()
            .map_or_else(|_| Vec::new(), |h| h.entries)
    }

    fn unchanged(&self, path: &[u8], size: u64, mtime: Timestamp) -> Option<BaseContent> {
        if self.options.trust == Trust::Nothing {
            return None;
        }
        let inode = self.inode(path)?;
        let stat = self.image.stat(inode).ok()?;
        if stat.size != size || !self.has_time(stat.mtime, mtime) {
            return None;
        }
        self.image
            .metadata()
            .content_id(inode)
            .ok()
            .map(BaseContent)
    }

    fn at(&self, path: &[u8]) -> Option<BaseContent> {
        let moved = || {
            // What is damaged is stored again.
            let names = self
                .names
                .get_or_init(|| Names::of(&self.image).unwrap_or_default());
            names.find(path)
        };
        let inode = match self.inode(path) {
            Some(inode) => inode,
            None => match self.older.at(path) {
                Some(content) => return Some(content),
                None => moved()?,
            },
        };
        let content = self.image.metadata().content_id(inode);
        content.ok().map(BaseContent)
    }

    fn held(&self, content: BaseContent) -> u32 {
        let newest = u32::from(self.inodes.contains_key(&content));
        self.older.held(content).saturating_add(newest).max(1)
    }

    fn of_size(&self, size: u64) -> &[BaseContent] {
        self.by_size.get(&size).map_or(&[], Vec::as_slice)
    }

    fn extents(&self, content: BaseContent) -> redwarfs_writer::Result<Vec<Extent>> {
        let old = self.older.extents(content).map_err(as_write_error)?;
        if let Some(extents) = old {
            return Ok(extents);
        }
        let extents = self.image.metadata().content_extents(content.0)?;
        Ok(extents.collect::<redwarfs_format::Result<_>>()?)
    }

    fn read_at(&self, content: BaseContent, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let (image, inode) = match self.older.inode(content) {
            Some(found) => found,
            None => {
                let inode = self.inodes.get(&content);
                (&self.image, *inode.ok_or(io::ErrorKind::NotFound)?)
            }
        };
        image.read_at(inode, offset, buf).map_err(as_io)
    }

    fn block_start(&self, block: u32, most: usize) -> io::Result<Vec<u8>> {
        let (mut payload, mut memory) = (Vec::new(), BlockMemory::default());
        let decoded =
            self.image
                .decode_block_start(BlockNo(block), most as u64, &mut payload, &mut memory);
        decoded.map_err(as_io)?;
        let bytes = memory.bytes();
        Ok(bytes.get(..most).unwrap_or(bytes).to_vec())
    }

    fn find_anchor(&self, hash: u32, found: &mut Vec<(u32, u32)>) {
        if let Some(matching) = &self.matching {
            matching.find(hash, found);
        }
    }

    fn match_table(&self) -> Option<u64> {
        self.matching.as_ref().and_then(Matching::newest)
    }

    fn trailers(
        &self,
        new: &NewGeneration,
        emitter: &mut Emitter<'_>,
    ) -> redwarfs_writer::Result<()> {
        *self.made.lock().unwrap_or_else(PoisonError::into_inner) = Some(new.generation);
        let number = self.number();
        let parent = self.table.snapshots.last().map(|last| last.number);
        let mut table = self.table.clone();
        table.snapshots.push(Snapshot {
            number,
            name: self.options.name.clone(),
            index: new.index,
            end: Some(new.end),
            pinned: false,
            deleted: false,
            archived: false,
            seconds: self.options.time.sec,
            nanoseconds: self.options.time.nsec,
            tree: new.tree,
            size: new.size,
            // With what follows, which is small.
            added: new.end.saturating_sub(self.end()),
            inodes: new.inodes,
            parent,
        });
        let table = self.tables.next(&table);
        let prelude = table.prelude(new.generation);
        emitter.trailer(SectionType::SNAPSHOTS, &prelude, &table.encode())?;
        let lasting = lasting(&self.image).map_err(as_write_error)?;
        for (ty, payload) in lasting {
            if let Ok(hidden) = HiddenPayload::parse(&payload)
                && hidden.prelude.binding == Binding::None
            {
                emitter.trailer(ty, &hidden.prelude, hidden.body)?;
            }
        }
        if !new.hints {
            // Blocks keep their numbers, and unchanged files their blocks.
            for table in self.image.hints()? {
                write_hints(&table, emitter)?;
            }
        }
        Ok(())
    }
}
