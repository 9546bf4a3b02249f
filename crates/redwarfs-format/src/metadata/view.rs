//! The in-place view.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::OnceLock;

use super::extents::Extents;
use super::model::{FsOptions, Metadata};
use super::open::Tables;
use super::sums::Sums;
use super::types::{Counts, FileType, Stat, Timestamp, Totals};
use crate::error::{Error, Result};
use crate::frozen::{BitSource, FrozenBytes, Node, Pos, Value};
use crate::ids::{BlockNo, EntryIndex, InodeNo};

/// In-place, read-only access to the metadata of an image.
///
/// Opening resolves the position and width of every member once, so that an access is a few
/// instructions. Nothing is expanded except packed tables. All accessors are bounds-checked; an
/// index that an image gets wrong leads to an error, never to a panic. Where the bytes are loaded when
/// they are needed ([`FrozenBytes::Lazy`]), everything may also fail with an [`Error::Io`].
///
/// Images of format 2.2 and older are presented like later ones: attributes belong to inodes
/// (the "second form" of format chapter 05, section 4.3).
#[derive(Debug)]
pub struct MetadataView {
    pub(super) bytes: FrozenBytes,
    pub(super) root: Node,
    pub(super) t: Tables,
    pub(super) links: OnceLock<Vec<u32>>,
    /// What links save in an image of format 2.2 and older.
    pub(super) legacy_savings: OnceLock<u64>,
    pub(super) sums: OnceLock<Sums>,
}

pub(super) fn bad(what: impl Into<String>) -> Error {
    Error::corrupt(what)
}

impl MetadataView {
    /// Opens metadata from the uncompressed payloads of METADATA_V2_SCHEMA and METADATA_V2.
    ///
    /// Makes the checks of format chapter 04, section 12.1, and checks that the size of `data` bounds
    /// the memory of the unpacked tables. [`MetadataView::check`] makes the others.
    ///
    /// # Errors
    /// `Unsupported` for unknown features, which the error names, and for newer encodings. `Corrupt` or
    /// `Limit` if a check fails. The errors of loading `data`.
    pub fn parse(schema: &[u8], data: impl Into<FrozenBytes>) -> Result<Self> {
        Self::open(schema, data.into(), false)
    }

    /// As [`MetadataView::parse`], as if there were no extended attributes and no file flags: their
    /// tables may be wrong.
    ///
    /// # Errors
    /// Those of [`MetadataView::parse`].
    pub fn parse_ignoring_xattrs(schema: &[u8], data: impl Into<FrozenBytes>) -> Result<Self> {
        Self::open(schema, data.into(), true)
    }

    fn open(schema: &[u8], bytes: FrozenBytes, ignore_xattrs: bool) -> Result<Self> {
        let (root, t) = Tables::open(schema, bytes.bits(), ignore_xattrs)?;
        Ok(Self {
            bytes,
            root,
            t,
            links: OnceLock::new(),
            legacy_savings: OnceLock::new(),
            sums: OnceLock::new(),
        })
    }

    /// Makes the full check (format chapter 04, sections 12.2 and 12.3).
    ///
    /// `block_count` is the number of BLOCK sections, `block_sizes` their uncompressed sizes in
    /// bytes if known. Memory is bounded by a few bytes per inode; nothing recurses.
    ///
    /// # Errors
    /// `Corrupt` with the first violation.
    pub fn check(&self, block_count: u32, block_sizes: Option<&[u64]>) -> Result<()> {
        super::check::check(self, block_count, block_sizes)
    }

    /// The whole metadata as an owned value.
    ///
    /// # Errors
    /// `Corrupt` if something lies outside of the data.
    pub fn thaw(&self) -> Result<Metadata> {
        Metadata::read(&self.data(), &self.root, Pos::default())
    }

    /// The frozen bytes, as given to [`MetadataView::parse`].
    #[must_use]
    pub fn bytes(&self) -> &FrozenBytes {
        &self.bytes
    }

    #[inline]
    pub(super) fn data(&self) -> BitSource<'_> {
        self.bytes.bits()
    }

    /// Nominal size of a block in bytes.
    #[must_use]
    pub fn block_size(&self) -> u32 {
        self.t.block_size
    }

    /// Number of inodes.
    #[must_use]
    pub fn inode_count(&self) -> u32 {
        self.t.inode_count
    }

    /// Number of directory entries, including the entry of the root.
    #[must_use]
    pub fn entry_count(&self) -> u32 {
        self.t.entry_count
    }

    /// Numbers of all kinds of things.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let t = &self.t;
        let [l, r, d, o] = t.offsets;
        let shared = t.shared.len();
        Counts {
            inodes: t.inode_count,
            entries: t.entry_count,
            directories: l,
            symlinks: r - l,
            files: d - r,
            devices: o - d,
            others: t.inode_count - o,
            symlink_offset: l,
            file_offset: r,
            device_offset: d,
            other_offset: o,
            chunks: t.chunk_size.len(),
            contents: t.chunk_table.len().saturating_sub(1),
            unique_files: (d - r).saturating_sub(shared),
            shared_files: shared,
            names: t.names.len(),
            symlink_targets: t.targets.len(),
            uids: t.uids.len(),
            gids: t.gids.len(),
            modes: t.modes.len(),
        }
    }

    /// The entry of the root directory.
    #[must_use]
    pub fn root_entry(&self) -> EntryIndex {
        EntryIndex(0)
    }

    /// True if the image is of format 2.2 or older, where entries carry the attributes.
    #[must_use]
    pub fn is_legacy(&self) -> bool {
        self.t.entry_table.is_some()
    }

    /// Index in `inodes` of the attributes of an inode.
    fn record(&self, ino: InodeNo) -> Result<u32> {
        if ino.0 >= self.t.inode_count {
            return Err(bad(format!("inode {ino} does not exist")));
        }
        match &self.t.entry_table {
            None => Ok(ino.0),
            Some(table) => {
                let e = table.get32(self.data(), ino.0)?;
                if e < self.t.mode_index.len() {
                    Ok(e)
                } else {
                    Err(bad("entry index out of range"))
                }
            }
        }
    }

    pub(super) fn mode(&self, record: u32) -> Result<u32> {
        let i = self.t.mode_index.get32(self.data(), record)?;
        if i < self.t.modes.len() {
            self.t.modes.get32(self.data(), i)
        } else {
            Err(bad("mode index out of range"))
        }
    }

    /// Range of the inode numbers of one rank.
    fn rank_range(&self, rank: u8) -> Range<u32> {
        let [l, r, d, o] = self.t.offsets;
        match rank {
            0 => 0..l,
            1 => l..r,
            2 => r..d,
            3 => d..o,
            _ => o..self.t.inode_count,
        }
    }

    fn type_of(&self, ino: InodeNo, mode: u32) -> Result<FileType> {
        FileType::from_mode(mode)
            .filter(|ty| self.rank_range(ty.rank()).contains(&ino.0))
            .ok_or_else(|| {
                bad(format!(
                    "inode {ino} has mode {mode:o}, which does not fit its number"
                ))
            })
    }

    /// Type of an inode.
    ///
    /// # Errors
    /// `Corrupt` if there is no such inode or its mode is inconsistent.
    pub fn file_type(&self, ino: InodeNo) -> Result<FileType> {
        let mode = self.mode(self.record(ino)?)?;
        self.type_of(ino, mode)
    }

    fn time(&self, offset: u64, subsec: u64) -> Timestamp {
        let units = self.t.timestamp_base.wrapping_add(offset);
        let sec = units
            .wrapping_mul(u64::from(self.t.resolution))
            .cast_signed();
        let nsec = subsec
            .saturating_mul(u64::from(self.t.subsec_multiplier))
            .min(999_999_999);
        Timestamp {
            sec,
            nsec: u32::try_from(nsec).unwrap_or(999_999_999),
        }
    }

    /// Attributes of an inode (format chapter 04, section 9.5).
    ///
    /// # Errors
    /// `Corrupt` if there is no such inode or an index is out of range.
    pub fn stat(&self, ino: InodeNo) -> Result<Stat> {
        self.stat_record(ino, self.record(ino)?)
    }

    /// Attributes of an entry, as the reference shows them for a path.
    ///
    /// They differ from [`MetadataView::stat`] only in images of format 2.2 and older. There, files
    /// with equal contents share an inode number, but not their attributes (format chapter 05, section
    /// 4.3).
    ///
    /// # Errors
    /// Those of [`MetadataView::entry_inode`] and [`MetadataView::stat`].
    pub fn entry_stat(&self, e: EntryIndex) -> Result<Stat> {
        let ino = self.entry_inode(e)?;
        if self.is_legacy() {
            self.stat_record(ino, e.0)
        } else {
            self.stat(ino)
        }
    }

    /// Birth time of an inode, if the image holds birth times.
    ///
    /// # Errors
    /// `Corrupt` if there is no such inode.
    pub fn birth_time(&self, ino: InodeNo) -> Result<Option<Timestamp>> {
        let Some((offset, subsec)) = &self.t.btime else {
            return Ok(None);
        };
        let (record, data) = (self.record(ino)?, self.data());
        Ok(Some(self.time(
            offset.get(data, record)?,
            subsec.get(data, record)?,
        )))
    }

    fn stat_record(&self, ino: InodeNo, record: u32) -> Result<Stat> {
        let (t, data) = (&self.t, self.data());
        let mode = self.mode(record)?;
        let ty = self.type_of(ino, mode)?;
        let id = |table: &super::table::Column, index: u32| {
            if table.len() == 0 {
                Ok(index)
            } else if index < table.len() {
                table.get32(data, index)
            } else {
                Err(bad("owner or group index out of range"))
            }
        };
        let mtime = self.time(
            t.times[1].get(data, record)?,
            t.subsecs[1].get(data, record)?,
        );
        let (atime, ctime) = if t.options.mtime_only {
            (mtime, mtime)
        } else {
            (
                self.time(
                    t.times[0].get(data, record)?,
                    t.subsecs[0].get(data, record)?,
                ),
                self.time(
                    t.times[2].get(data, record)?,
                    t.subsecs[2].get(data, record)?,
                ),
            )
        };
        let (mut nlink, mut rdev, mut size, mut allocated) = (1, 0, 0, None);
        match ty {
            FileType::Directory => {
                let range = self.entries(ino)?;
                size = u64::from(range.end - range.start);
            }
            FileType::Symlink => size = self.stored_target(ino)?.len() as u64,
            FileType::Regular => {
                nlink = self.nlink(ino, record)?;
                let sizes = self.content_size(self.content_id(ino)?)?;
                size = sizes.0;
                allocated = Some(sizes.1);
            }
            FileType::CharDevice | FileType::BlockDevice => {
                if let Some(devices) = &t.devices {
                    rdev = devices.get(data, ino.0 - t.offsets[2])?;
                }
            }
            FileType::Fifo | FileType::Socket => {}
        }
        Ok(Stat {
            ino,
            mode,
            nlink,
            uid: id(&t.uids, t.owner_index.get32(data, record)?)?,
            gid: id(&t.gids, t.group_index.get32(data, record)?)?,
            rdev,
            size,
            allocated: allocated.unwrap_or(size),
            atime,
            mtime,
            ctime,
        })
    }

    fn nlink(&self, ino: InodeNo, record: u32) -> Result<u32> {
        if self.t.options.inodes_have_nlink {
            return Ok(self.t.nlink.get32(self.data(), record)?.saturating_add(1));
        }
        let [_, first, end, _] = self.t.offsets;
        let links = if let Some(links) = self.links.get() {
            links
        } else {
            let mut links = vec![0u32; (end - first) as usize];
            for e in 0..self.t.entry_count {
                let ino = self.t.entry_inode.get32(self.data(), e)?;
                if let Some(n) = ino
                    .checked_sub(first)
                    .and_then(|j| links.get_mut(j as usize))
                {
                    *n = n.saturating_add(1);
                }
            }
            self.links.get_or_init(|| links)
        };
        let n = links.get((ino.0 - first) as usize);
        n.copied().ok_or_else(|| bad("regular inode out of range"))
    }

    /// Entries of a directory, `.` and `..` not included, as a range of entry indices.
    ///
    /// # Errors
    /// `Corrupt` if this is not a directory or the range is invalid.
    pub fn entries(&self, dir: InodeNo) -> Result<Range<u32>> {
        if dir.0 >= self.t.offsets[0] {
            return Err(bad(format!("inode {dir} is not a directory")));
        }
        let first = &self.t.dirs.first;
        let (a, b) = (
            first.get(self.data(), dir.0)?,
            first.get(self.data(), dir.0 + 1)?,
        );
        if a > b || b > self.t.entry_count {
            return Err(bad(format!("invalid entry range of directory {dir}")));
        }
        Ok(a..b)
    }

    /// Inode that an entry refers to.
    ///
    /// # Errors
    /// `Corrupt` if there is no such entry or inode.
    #[inline]
    pub fn entry_inode(&self, e: EntryIndex) -> Result<InodeNo> {
        let ino = self.t.entry_inode.get32(self.data(), e.0)?;
        if e.0 >= self.t.entry_count || ino >= self.t.inode_count {
            return Err(bad(format!(
                "entry {e} does not exist or refers to no inode"
            )));
        }
        Ok(InodeNo(ino))
    }

    pub(super) fn name_index(&self, e: EntryIndex) -> Result<u32> {
        if e.0 >= self.t.entry_count {
            return Err(bad(format!("entry {e} does not exist")));
        }
        self.t.entry_name.get32(self.data(), e.0)
    }

    /// Name of an entry; empty for the root. Borrowed unless names are compressed.
    ///
    /// # Errors
    /// `Corrupt` if there is no such entry or name, or decompression fails.
    pub fn entry_name(&self, e: EntryIndex) -> Result<Cow<'_, [u8]>> {
        let k = self.name_index(e)?;
        if e.0 == 0 {
            return Ok(Cow::Borrowed(&[]));
        }
        self.t.names.get(self.data(), k)
    }

    /// Appends the name of an entry to `out`; nothing for the root.
    ///
    /// # Errors
    /// Those of [`MetadataView::entry_name`].
    pub fn entry_name_into(&self, e: EntryIndex, out: &mut Vec<u8>) -> Result<()> {
        let k = self.name_index(e)?;
        if e.0 == 0 {
            return Ok(());
        }
        self.t.names.append(self.data(), k, out)
    }

    /// The entry of a directory with the given name, by binary search.
    ///
    /// Does not allocate unless names are compressed.
    ///
    /// # Errors
    /// Those of [`MetadataView::entries`] and [`MetadataView::entry_name`].
    pub fn find(&self, dir: InodeNo, name: &[u8]) -> Result<Option<EntryIndex>> {
        let Range {
            start: mut low,
            end: mut high,
        } = self.entries(dir)?;
        let compressed = self.t.names.is_compressed();
        let mut scratch = Vec::new();
        while low < high {
            let middle = low + (high - low) / 2;
            let k = self.t.entry_name.get32(self.data(), middle)?;
            let order = if compressed {
                scratch.clear();
                self.t.names.append(self.data(), k, &mut scratch)?;
                scratch.as_slice().cmp(name)
            } else {
                self.t.names.stored(self.data(), k)?.as_ref().cmp(name)
            };
            match order {
                Ordering::Less => low = middle + 1,
                Ordering::Greater => high = middle,
                Ordering::Equal => return Ok(Some(EntryIndex(middle))),
            }
        }
        Ok(None)
    }

    /// The entry of a directory itself.
    ///
    /// # Errors
    /// `Corrupt` if this is not a directory.
    pub fn self_entry(&self, dir: InodeNo) -> Result<EntryIndex> {
        if dir.0 >= self.t.offsets[0] {
            return Err(bad(format!("inode {dir} is not a directory")));
        }
        Ok(EntryIndex(match &self.t.entry_table {
            Some(table) => table.get32(self.data(), dir.0)?,
            None => self.t.dirs.own(self.data(), dir.0)?,
        }))
    }

    /// The parent directory of a directory. The parent of the root is the root.
    ///
    /// # Errors
    /// `Corrupt` if this is not a directory or its parent is none.
    pub fn parent(&self, dir: InodeNo) -> Result<InodeNo> {
        if dir.0 >= self.t.offsets[0] {
            return Err(bad(format!("inode {dir} is not a directory")));
        }
        if dir == InodeNo::ROOT {
            return Ok(dir);
        }
        let parent = self.t.dirs.parent(self.data(), dir.0)?;
        let parent = match &self.t.entry_table {
            Some(_) => InodeNo(parent),
            None => self.entry_inode(EntryIndex(parent))?,
        };
        if parent.0 >= self.t.offsets[0] {
            return Err(bad(format!("parent of directory {dir} is not a directory")));
        }
        Ok(parent)
    }

    /// Path of an entry of the directory `dir`, relative to the root, without a leading slash.
    ///
    /// # Errors
    /// `Corrupt` if a directory on the way has no name or no parent, or if the path has more directories than a path
    /// of the system can have.
    pub fn path(&self, mut dir: InodeNo, entry: EntryIndex) -> Result<Vec<u8>> {
        /// More do not fit into a path of the system.
        const DEEPEST: usize = 4096;
        let mut parts = vec![self.entry_name(entry)?];
        while dir != InodeNo::ROOT {
            if parts.len() >= DEEPEST {
                return Err(bad("a path of very many directories"));
            }
            parts.push(self.entry_name(self.self_entry(dir)?)?);
            dir = self.parent(dir)?;
        }
        parts.reverse();
        Ok(parts.join(&b'/'))
    }

    /// Number of the content of a regular file: equal for inodes that share it
    /// (format chapter 04, section 5.1).
    ///
    /// # Errors
    /// `Corrupt` if this is not a regular file or the content does not exist.
    pub fn content_id(&self, ino: InodeNo) -> Result<u32> {
        let [_, r, d, _] = self.t.offsets;
        if !(r..d).contains(&ino.0) {
            return Err(bad(format!("inode {ino} is not a regular file")));
        }
        let j = ino.0 - r;
        let unique = (d - r).saturating_sub(self.t.shared.len());
        let k = match j.checked_sub(unique) {
            None => j,
            Some(s) => unique.saturating_add(self.t.shared.get(self.data(), s)?),
        };
        if k < self.t.chunk_table.len().saturating_sub(1) {
            Ok(k)
        } else {
            Err(bad(format!("content of inode {ino} does not exist")))
        }
    }

    /// The pieces of a regular file, in order.
    ///
    /// # Errors
    /// Those of [`MetadataView::content_id`], and `Corrupt` for an invalid range of chunks.
    pub fn extents(&self, ino: InodeNo) -> Result<Extents<'_>> {
        self.content_extents(self.content_id(ino)?)
    }

    /// The pieces of the content with the given number.
    ///
    /// # Errors
    /// `Corrupt` if there is no such content or its range of chunks is invalid.
    pub fn content_extents(&self, content: u32) -> Result<Extents<'_>> {
        let range = self.chunk_range(content)?;
        Ok(Extents::new(self, range))
    }

    /// Size and allocated size of a content, from the size cache where it applies.
    pub(super) fn content_size(&self, content: u32) -> Result<(u64, u64)> {
        let range = self.chunk_range(content)?;
        if let Some(cache) = &self.t.size_cache
            && u64::from(range.end - range.start) >= cache.min_chunk_count
            && let Some(size) = cache.size.find(self.data(), content)?
        {
            return Ok((
                size,
                cache.allocated.find(self.data(), content)?.unwrap_or(size),
            ));
        }
        self.quick_sum(range)
    }

    /// Size and allocated size of a range of chunks, one by one.
    pub(super) fn sum(&self, range: Range<u32>) -> Result<(u64, u64)> {
        let (mut size, mut allocated) = (0u64, 0u64);
        if self.t.hole_block.is_none() {
            for i in range {
                size += u64::from(self.t.chunk_size.get32(self.data(), i)?);
            }
            return Ok((size, size));
        }
        for extent in Extents::new(self, range) {
            let extent = extent?;
            size = size
                .checked_add(extent.size())
                .ok_or_else(|| bad("file size exceeds 64 bits"))?;
            if let super::types::Extent::Data { size, .. } = extent {
                allocated += u64::from(size);
            }
        }
        Ok((size, allocated))
    }

    /// Chunks of the content with the given number.
    pub(super) fn chunk_range(&self, content: u32) -> Result<Range<u32>> {
        let table = &self.t.chunk_table;
        if content >= table.len().saturating_sub(1) {
            return Err(bad(format!("content {content} does not exist")));
        }
        let (a, b) = (
            table.get(self.data(), content)?,
            table.get(self.data(), content + 1)?,
        );
        if a > b || b > self.t.chunk_size.len() {
            return Err(bad(format!("invalid chunk range of content {content}")));
        }
        Ok(a..b)
    }

    /// Sizes of the whole file system as recorded; what links save is computed for images of
    /// format 2.2 and older, which do not record it.
    #[must_use]
    pub fn totals(&self) -> Totals {
        let t = &self.t;
        let mut totals = Totals {
            size: t.total_size,
            allocated: t.total_allocated.unwrap_or(t.total_size),
            hardlink_size: t.total_hardlink.unwrap_or(0),
        };
        if t.total_hardlink.is_none() && self.is_legacy() {
            totals.hardlink_size = match self.legacy_savings.get() {
                Some(savings) => *savings,
                None => self.add_up_savings(),
            };
        }
        totals
    }

    fn add_up_savings(&self) -> u64 {
        let [_, r, d, _] = self.t.offsets;
        let mut complete = true;
        let savings = (r..d)
            .filter_map(|ino| match self.stat(InodeNo(ino)) {
                Ok(stat) => Some(stat),
                Err(e) => {
                    complete &= !matches!(e, Error::Io(_));
                    None
                }
            })
            .map(|stat| {
                let copies = u64::from(stat.nlink.saturating_sub(1));
                stat.size.saturating_mul(copies)
            })
            .fold(0, u64::saturating_add);
        if complete {
            let _ = self.legacy_savings.set(savings);
        }
        savings
    }

    /// Features that the image uses; all of them are known.
    #[must_use]
    pub fn features(&self) -> &BTreeSet<Vec<u8>> {
        &self.t.features
    }

    /// Options of the metadata.
    #[must_use]
    pub fn options(&self) -> &FsOptions {
        &self.t.options
    }

    /// The program that wrote the metadata.
    #[must_use]
    pub fn dwarfs_version(&self) -> Option<&[u8]> {
        self.t.dwarfs_version.as_deref()
    }

    /// Unix time of writing.
    #[must_use]
    pub fn create_timestamp(&self) -> Option<u64> {
        self.t.create_timestamp
    }

    /// Number of the block that marks holes, if the image is sparse.
    #[must_use]
    pub fn hole_block(&self) -> Option<BlockNo> {
        self.t.hole_block.map(BlockNo)
    }
}
