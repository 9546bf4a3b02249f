//! Opening: resolving all tables, and the basic checks (section 12.1). Most packed tables of metadata that are loaded when
//! they are needed are unpacked when they are first used, all others here.

use std::collections::BTreeSet;

use super::directories::Directories;
use super::model::{FsOptions, Metadata};
use super::strings::Strings;
use super::table::{Column, NodePosition, Numbers};
use super::types::FileType;
use super::view::bad;
use super::xattrs::{FlagColumns, XattrColumns};
use crate::error::{Error, Result};
use crate::frozen::{BitSource, Node, Schema, Shaper};

/// The feature that comes with holes.
pub(super) const SPARSE_FILES: &[u8] = b"sparsefiles";
/// What this reader can handle.
const KNOWN_FEATURES: [&[u8]; 1] = [SPARSE_FILES];
/// More features than any image will list.
const MAX_FEATURES: u32 = 4096;
/// More bytes than the names of all features will have.
const MAX_FEATURE_BYTES: u64 = 64 << 10;

/// A map from u32 to u64.
#[derive(Debug)]
pub(super) struct SizeMap {
    pub(super) keys: Column,
    pub(super) values: Column,
}

impl SizeMap {
    pub(super) fn resolve(place: NodePosition<'_>) -> Result<Self> {
        let list = place.list()?;
        Ok(Self {
            keys: list.column(1)?,
            values: list.column(2)?,
        })
    }

    /// The value of a key, by binary search.
    pub(super) fn find(&self, data: BitSource<'_>, key: u32) -> Result<Option<u64>> {
        let i = partition(self.keys.len(), |i| Ok(self.keys.get32(data, i)? < key))?;
        if i < self.keys.len() && self.keys.get32(data, i)? == key {
            self.values.get(data, i).map(Some)
        } else {
            Ok(None)
        }
    }
}

/// The size cache.
#[derive(Debug)]
pub(super) struct SizeCache {
    pub(super) min_chunk_count: u64,
    pub(super) size: SizeMap,
    pub(super) allocated: SizeMap,
}

/// Everything that the view needs to know about the frozen bytes.
#[derive(Debug)]
pub(super) struct Tables {
    pub(super) inode_count: u32,
    pub(super) entry_count: u32,
    /// L, R, D, O: the first inode number of each rank but the first.
    pub(super) offsets: [u32; 4],
    /// Format 2.2: index in `inodes` of each inode number.
    pub(super) entry_table: Option<Column>,
    pub(super) mode_index: Column,
    pub(super) owner_index: Column,
    pub(super) group_index: Column,
    /// Offsets of atime, mtime, ctime.
    pub(super) times: [Column; 3],
    pub(super) subsecs: [Column; 3],
    pub(super) nlink: Column,
    pub(super) modes: Column,
    pub(super) uids: Column,
    pub(super) gids: Column,
    pub(super) entry_name: Column,
    pub(super) entry_inode: Column,
    pub(super) dirs: Directories,
    pub(super) chunk_block: Column,
    pub(super) chunk_offset: Column,
    pub(super) chunk_size: Column,
    pub(super) chunk_table: Numbers,
    pub(super) shared: Numbers,
    pub(super) symlink_table: Column,
    pub(super) devices: Option<Column>,
    pub(super) names: Strings,
    pub(super) targets: Strings,
    pub(super) size_cache: Option<SizeCache>,
    pub(super) hole_block: Option<u32>,
    pub(super) large_holes: Option<Column>,
    pub(super) block_categories: Option<Column>,
    pub(super) features: BTreeSet<Vec<u8>>,
    pub(super) options: FsOptions,
    pub(super) resolution: u32,
    pub(super) subsec_multiplier: u32,
    pub(super) timestamp_base: u64,
    pub(super) block_size: u32,
    pub(super) total_size: u64,
    pub(super) total_allocated: Option<u64>,
    pub(super) total_hardlink: Option<u64>,
    pub(super) dwarfs_version: Option<Vec<u8>>,
    pub(super) create_timestamp: Option<u64>,
    pub(super) separator: Option<u32>,
    /// Offset and fraction of birth times, if there are any.
    pub(super) btime: Option<(Column, Column)>,
    pub(super) xattrs: Option<Box<XattrColumns>>,
    pub(super) file_flags: Option<FlagColumns>,
}

/// First number in `0..end` for which `before` is false, given that it is true up to there.
pub(super) fn partition(end: u32, mut before: impl FnMut(u32) -> Result<bool>) -> Result<u32> {
    let (mut low, mut high) = (0, end);
    while low < high {
        let middle = low + (high - low) / 2;
        if before(middle)? {
            low = middle + 1;
        } else {
            high = middle;
        }
    }
    Ok(low)
}

/// The elements of an optional list of integers.
fn optional_values(place: NodePosition<'_>) -> Result<Option<Column>> {
    place.value()?.map(|p| p.list()?.values()).transpose()
}

fn features(place: NodePosition<'_>, data: BitSource<'_>) -> Result<BTreeSet<Vec<u8>>> {
    if let Some(set) = place.value()? {
        let list = set.list()?;
        let too_many = || Error::Limit("too many features".into());
        if list.len() > MAX_FEATURES {
            return Err(too_many());
        }
        let lengths = list.column(2)?;
        let mut left = MAX_FEATURE_BYTES;
        for i in 0..lengths.len() {
            left = left
                .checked_sub(lengths.get(data, i)?)
                .ok_or_else(too_many)?;
        }
    }
    let features = place
        .read::<Option<BTreeSet<Vec<u8>>>>()?
        .unwrap_or_default();
    let unknown: Vec<String> = features
        .iter()
        .filter(|f| !KNOWN_FEATURES.contains(&f.as_slice()))
        .map(|f| f.escape_ascii().to_string())
        .collect();
    if unknown.is_empty() {
        Ok(features)
    } else {
        Err(Error::Unsupported(format!(
            "the image uses unknown features: {}",
            unknown.join(", ")
        )))
    }
}

/// Shared files from their counts; at most `limit` of them.
fn unpack_shared(column: Column, data: BitSource<'_>, limit: u32) -> Result<Vec<u32>> {
    let mut out = Vec::new();
    for s in 0..column.len() {
        let n = column.get(data, s)? + 2;
        if out.len() as u64 + n > u64::from(limit) {
            return Err(bad("more shared files than regular files"));
        }
        // Not more than `limit`, which is a u32.
        out.resize(out.len() + n as usize, s);
    }
    Ok(out)
}

impl Tables {
    /// Parses the schema, resolves it and makes the basic checks.
    #[allow(
        clippy::too_many_lines,
        reason = "one table after another, in the order of their dependencies"
    )]
    pub(super) fn open(
        schema: &[u8],
        data: BitSource<'_>,
        ignore_xattrs: bool,
    ) -> Result<(Node, Self)> {
        let schema = Schema::parse(schema)?;
        let node = Shaper::new(&schema).root::<Metadata>()?;
        let root = NodePosition::root(data, &node);

        let features = features(root.member(27)?, data)?;
        let options = root
            .member(18)?
            .read::<Option<FsOptions>>()?
            .unwrap_or_default();

        let inodes = root.member(3)?.list()?;
        let mode_index = inodes.column(2)?;
        let modes = root.member(9)?.list()?.values()?;
        let entries = root.member(19)?.value()?.map(|p| p.list()).transpose()?;
        let (inode_count, entry_count, entry_table, entry_list) = match &entries {
            Some(entries) => (inodes.len(), entries.len(), None, *entries),
            None => {
                let table = root.member(5)?.list()?.values()?;
                (table.len(), inodes.len(), Some(table), inodes)
            }
        };
        let (entry_name, entry_inode) = match entry_table {
            None => (entry_list.column(1)?, entry_list.column(2)?),
            Some(_) => (entry_list.column(1)?, entry_list.column(3)?),
        };
        if inode_count == 0 || entry_count == 0 || modes.len() == 0 {
            return Err(bad("metadata without inodes, entries or modes"));
        }
        // These two are what justifies all memory that depends on numbers of inodes: every inode
        // has an entry, and an entry has the bits to tell inodes apart.
        if inode_count > entry_count {
            return Err(bad("more inodes than entries"));
        }
        if u64::from(inode_count - 1) >> entry_inode.width().min(63) != 0
            || (entry_count > 1
                && (entry_inode.width() == 0
                    || entry_inode.stride() < u64::from(entry_inode.width())))
        {
            return Err(bad("entries cannot refer to all inodes"));
        }

        let rank = |ino: u32| -> Result<u8> {
            let record = entry_table.map_or(Ok(ino), |t| t.get32(data, ino))?;
            let index = mode_index.get32(data, record)?;
            if record >= mode_index.len() || index >= modes.len() {
                return Err(bad(format!("attributes of inode {ino} out of range")));
            }
            let mode = modes.get32(data, index)?;
            FileType::from_mode(mode)
                .map(FileType::rank)
                .ok_or_else(|| bad(format!("inode {ino} has unknown file type, mode {mode:o}")))
        };
        let mut offsets = [0; 4];
        for (limit, offset) in (1u8..).zip(&mut offsets) {
            *offset = partition(inode_count, |ino| Ok(rank(ino)? < limit))?;
        }
        let [l, r, d, o] = offsets;
        if l == 0 || l > r || r > d || d > o {
            return Err(bad("inodes are not ordered by type"));
        }

        let directories = root.member(2)?.list()?;
        if directories.len() != l + 1 {
            return Err(bad(format!(
                "{} directories, expected {l} and a sentinel",
                directories.len()
            )));
        }
        let dirs = Directories::open(
            &directories,
            options.packed_directories,
            entry_table.is_some(),
            entry_inode,
            l,
        )?;

        let symlink_table = root.member(6)?.list()?.values()?;
        if symlink_table.len() != r - l {
            return Err(bad(format!(
                "{} symlinks, expected {}",
                symlink_table.len(),
                r - l
            )));
        }
        let devices = optional_values(root.member(17)?)?;
        if let Some(devices) = &devices
            && devices.len() != o - d
        {
            return Err(bad(format!(
                "{} devices, expected {}",
                devices.len(),
                o - d
            )));
        }

        let files = d - r;
        let chunk_table = root.member(4)?.list()?.values()?;
        if chunk_table.len() == 0 || chunk_table.len() - 1 > files {
            return Err(bad(format!(
                "chunk table of {} elements for {files} files",
                chunk_table.len()
            )));
        }
        let contents = chunk_table.len() - 1;
        let shared = match optional_values(root.member(20)?)? {
            None if contents != files => {
                return Err(bad(format!("{contents} file contents for {files} files")));
            }
            None => Numbers::default(),
            Some(table) if options.packed_shared_files_table => {
                Numbers::Unpacked(unpack_shared(table, data, files)?)
            }
            Some(table) => Numbers::InPlace(table),
        };
        if shared.len() > files {
            return Err(bad("more shared files than regular files"));
        }
        let chunk_table = if options.packed_chunk_table {
            Numbers::packed(chunk_table, false, "packed chunk table")
        } else {
            Numbers::InPlace(chunk_table)
        };
        let chunks = root.member(1)?.list()?;

        let size_cache = match root.member(30)?.value()? {
            None => None,
            Some(cache) => Some(SizeCache {
                min_chunk_count: cache.member(2)?.read()?,
                size: SizeMap::resolve(cache.member(1)?)?,
                allocated: SizeMap::resolve(cache.member(3)?)?,
            }),
        };

        let tables = Self {
            inode_count,
            entry_count,
            offsets,
            entry_table,
            mode_index,
            owner_index: inodes.column(4)?,
            group_index: inodes.column(5)?,
            times: [inodes.column(6)?, inodes.column(7)?, inodes.column(8)?],
            subsecs: [inodes.column(10)?, inodes.column(11)?, inodes.column(12)?],
            nlink: inodes.column(14)?,
            modes,
            uids: root.member(7)?.list()?.values()?,
            gids: root.member(8)?.list()?.values()?,
            entry_name,
            entry_inode,
            dirs,
            chunk_block: chunks.column(1)?,
            chunk_offset: chunks.column(2)?,
            chunk_size: chunks.column(3)?,
            chunk_table,
            shared,
            symlink_table,
            devices,
            names: Strings::resolve(root.member(10)?, root.member(24)?, data, entry_count)?,
            targets: Strings::resolve(root.member(11)?, root.member(25)?, data, entry_count)?,
            size_cache,
            hole_block: root.member(34)?.read()?,
            large_holes: optional_values(root.member(35)?)?,
            block_categories: optional_values(root.member(29)?)?,
            features,
            btime: if options.has_btime {
                Some((inodes.column(9)?, inodes.column(13)?))
            } else {
                None
            },
            xattrs: match root.member(20000)?.value()? {
                Some(tables) if !ignore_xattrs => XattrColumns::resolve(tables, inode_count)?,
                _ => None,
            },
            file_flags: match root.member(20001)?.value()? {
                Some(table) if !ignore_xattrs => FlagColumns::resolve(table, inode_count)?,
                _ => None,
            },
            resolution: options.time_resolution_sec.unwrap_or(1),
            subsec_multiplier: options.subsecond_resolution_nsec_multiplier.unwrap_or(0),
            options,
            timestamp_base: root.member(12)?.read()?,
            block_size: root.member(15)?.read()?,
            total_size: root.member(16)?.read()?,
            total_allocated: root.member(36)?.read()?,
            total_hardlink: root.member(21)?.read()?,
            dwarfs_version: root.member(22)?.read()?,
            create_timestamp: root.member(23)?.read()?,
            separator: root.member(26)?.read()?,
        };
        // Where all bytes are there, a table that cannot be unpacked is an error of opening.
        if !data.is_lazy() {
            tables.unpack(data)?;
        }
        Ok((node, tables))
    }
    /// Unpacks all tables that are unpacked when they are first used.
    ///
    /// # Errors
    /// `Corrupt` if one cannot be unpacked, and the errors of loading `data`.
    fn unpack(&self, data: BitSource<'_>) -> Result<()> {
        self.dirs.unpack(data)?;
        self.chunk_table.unpack(data)?;
        self.names.unpack(data)?;
        self.targets.unpack(data)
    }
}
