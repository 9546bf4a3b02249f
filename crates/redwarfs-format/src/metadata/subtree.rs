//! The tree of one directory as metadata of its own (format chapter 12, section 7).

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::Hash;

use super::extents::LARGE_HOLE;
use super::model::{
    Chunk, DirEntry, Directory, FileFlags, FsOptions, InodeData, InodeSizeCache, Metadata,
    XattrPair, XattrTables, XattrValue,
};
use super::open::SizeMap;
use super::pack::Packing;
use super::strings::Strings;
use super::table::{Column, NodePosition};
use super::view::{MetadataView, bad};
use super::xattrs::{TABLE_VERSION, place_sets};
use crate::error::{Error, Result};
use crate::ids::{BlockNo, EntryIndex, InodeNo};

/// Bytes that the strings of a tree may take for each byte of the metadata that they come from. A compressed string
/// has up to 8 times its stored bytes.
const EXPANSION: u64 = 8;
/// Memory that tables of a tree may take for each byte of the metadata that they come from. The worst that writers
/// produce is about 10: empty directories. Elements of a hostile list may have no bits at all.
const TABLE_EXPANSION: u64 = 16;
/// Memory that they may take in any case, in bytes (4 MiB).
const FREE_TABLES: u64 = 4 << 20;
/// Most empty strings of a tree.
const MAX_EMPTY: u32 = 4096;

impl MetadataView {
    /// The tree of a directory as metadata of its own, in which the directory is the root. Block numbers stay. `blocks`
    /// is their number.
    ///
    /// Whatever the metadata says, time and memory follow from its size: parts that overlap are errors. Strings take at
    /// most 8 bytes for each byte of the metadata. All other tables but the inodes take 16 together, and 4 MiB in any case.
    /// An inode has an entry with its number, and takes 80 bytes.
    /// Versions of the metadata before a rebuild are left out, and so are tables of attributes that no entry of the tree has.
    ///
    /// # Errors
    /// `Limit` for a tree that takes more.
    /// `Unsupported` for format 2.2 and older. `Corrupt` if `dir` is no directory, or the tables are inconsistent.
    pub fn subtree(&self, dir: InodeNo, blocks: u32) -> Result<Metadata> {
        if self.is_legacy() {
            return Err(Error::Unsupported(
                "a tree of snapshots in metadata of an old version".into(),
            ));
        }
        let tree = Tree::of(self, dir)?;
        let bytes = self.data().bit_len() / 8;
        let mut budget = Budget {
            strings: bytes.saturating_mul(EXPANSION),
            tables: bytes.saturating_mul(TABLE_EXPANSION).max(FREE_TABLES),
            empty: MAX_EMPTY,
        };
        let mut metadata = Metadata {
            block_size: self.t.block_size,
            timestamp_base: self.t.timestamp_base,
            options: Some(FsOptions {
                packed_chunk_table: false,
                packed_directories: false,
                packed_shared_files_table: false,
                ..*self.options()
            }),
            preferred_path_separator: self.t.separator,
            dwarfs_version: self.t.dwarfs_version.clone(),
            create_timestamp: self.t.create_timestamp,
            features: Some(self.features().clone()),
            hole_block_index: self.t.hole_block,
            ..Metadata::default()
        };
        tree.inodes(&mut metadata)?;
        tree.entries(&mut metadata, &mut budget)?;
        tree.symlinks_and_devices(&mut metadata, &mut budget)?;
        tree.files(&mut metadata, &mut budget)?;
        metadata.xattrs = tree.xattrs(&mut budget)?;
        metadata.file_flags = tree.file_flags(&mut budget)?;
        self.categories_of(blocks, &mut metadata, &mut budget)?;
        metadata.pack(&Packing::none());
        Ok(metadata)
    }

    /// Categories of all blocks.
    fn categories_of(&self, blocks: u32, new: &mut Metadata, budget: &mut Budget) -> Result<()> {
        let root = NodePosition::root(self.data(), &self.root);
        if let Some(names) = root.member(28)?.value()? {
            let names = Strings::plain(names)?;
            budget.elements::<Vec<u8>>(names.len())?;
            let all = (0..names.len()).map(|k| budget.string(&names, self, k));
            new.category_names = Some(all.collect::<Result<_>>()?);
        }
        let of = (0..blocks).map(|block| self.block_category(BlockNo(block)));
        let of: Option<Vec<_>> = of.collect::<Result<_>>()?;
        new.block_categories = of.map(|of| of.into_iter().map(|category| category.0).collect());
        let (Some(texts), Some(map)) = (root.member(31)?.value()?, root.member(32)?.value()?)
        else {
            return Ok(());
        };
        let (texts, map) = (Strings::plain(texts)?, SizeMap::resolve(map)?);
        let mut known: Once<u64> = Once::default();
        let mut of_block = BTreeMap::new();
        for block in 0..blocks {
            if let Some(text) = map.find(self.data(), block)? {
                of_block.insert(block, known.number(text)?);
            }
        }
        budget.elements::<Vec<u8>>(number_of(known.values.len())?)?;
        let all = known.values.iter().map(|&text| {
            let text = u32::try_from(text).unwrap_or(u32::MAX);
            budget.string(&texts, self, text)
        });
        new.category_metadata_json = Some(all.collect::<Result<_>>()?);
        new.block_category_metadata = Some(of_block);
        Ok(())
    }
}

/// What the parts of a tree may still take.
struct Budget {
    /// Bytes of strings.
    strings: u64,
    /// Bytes of elements of tables.
    tables: u64,
    /// Number of empty strings.
    empty: u32,
}

impl Budget {
    fn take(&mut self, bytes: usize) -> Result<()> {
        let left = self.strings.checked_sub(bytes as u64);
        self.strings =
            left.ok_or_else(|| Error::Limit("strings of a tree that take too much".into()))?;
        if bytes == 0 {
            let left = self.empty.checked_sub(1);
            self.empty = left.ok_or_else(|| Error::Limit("a tree of empty strings".into()))?;
        }
        Ok(())
    }

    /// Is asked before so many elements of a table are made.
    fn elements<T>(&mut self, count: u32) -> Result<()> {
        let bytes = u64::from(count).saturating_mul(size_of::<T>() as u64);
        let left = self.tables.checked_sub(bytes);
        self.tables =
            left.ok_or_else(|| Error::Limit("tables of a tree that take far more than it".into()))?;
        Ok(())
    }

    fn string(&mut self, strings: &Strings, view: &MetadataView, k: u32) -> Result<Vec<u8>> {
        let string = strings.get(view.data(), k)?;
        self.take(string.len())?;
        Ok(string.into_owned())
    }
}

/// Distinct values, numbered in the order of their first use.
struct Once<T> {
    numbers: HashMap<T, u32>,
    values: Vec<T>,
}

impl<T> Default for Once<T> {
    fn default() -> Self {
        Self {
            numbers: HashMap::new(),
            values: Vec::new(),
        }
    }
}

impl<T: Copy + Eq + Hash> Once<T> {
    fn number(&mut self, value: T) -> Result<u32> {
        if let Some(&number) = self.numbers.get(&value) {
            return Ok(number);
        }
        let number = number_of(self.values.len())?;
        self.numbers.insert(value, number);
        self.values.push(value);
        Ok(number)
    }
}

fn number_of(count: usize) -> Result<u32> {
    let number = u32::try_from(count).ok();
    number.ok_or_else(|| Error::Limit("a tree with 2^32 or more parts of a kind".into()))
}

/// The part of a view below a directory.
struct Tree<'a> {
    view: &'a MetadataView,
    /// Old numbers of all inodes, by their new ones.
    old: Vec<u32>,
    /// The reverse.
    new: HashMap<u32, u32>,
    /// Number of entries of each inode, by its new number.
    links: Vec<u32>,
    /// Number of directories.
    directories: usize,
    /// Old numbers of the contents, by their new ones.
    contents: Vec<u32>,
    /// Contents of the files that share theirs, counted from the first shared one.
    shared: Vec<u32>,
}

impl<'a> Tree<'a> {
    fn of(view: &'a MetadataView, root: InodeNo) -> Result<Self> {
        let [l, r, d, _] = view.t.offsets;
        let mut dirs = vec![root.0];
        let mut links: BTreeMap<u32, u32> = BTreeMap::new();
        let (mut next, mut left) = (0, view.entry_count());
        while let Some(&dir) = dirs.get(next) {
            next += 1;
            let entries = view.entries(InodeNo(dir))?;
            // Directories that share entries would cost more than there is.
            let rest = left.checked_sub(entries.end - entries.start);
            left = rest.ok_or_else(|| bad("directories with the same entries"))?;
            for entry in entries {
                let inode = view.entry_inode(EntryIndex(entry))?.0;
                let count = links.entry(inode).or_insert(0);
                *count += 1;
                if inode < l {
                    if *count > 1 || inode == root.0 {
                        return Err(bad("a directory is in two directories"));
                    }
                    dirs.push(inode);
                }
            }
        }
        // Their order says which one is above another, and groups what is alike.
        if let Some(below) = dirs.get_mut(1..) {
            below.sort_unstable();
        }
        let directories = dirs.len();
        let mut old = dirs;
        old.extend(links.range(l..r).map(|(&inode, _)| inode));
        let mut files: BTreeMap<u32, Vec<u32>> = BTreeMap::new();
        for (&inode, _) in links.range(r..d) {
            let content = view.content_id(InodeNo(inode))?;
            files.entry(content).or_default().push(inode);
        }
        let (mut contents, mut shared) = (Vec::new(), Vec::new());
        for (&content, of) in files.iter().filter(|(_, of)| of.len() == 1) {
            contents.push(content);
            old.extend(of);
        }
        let several = files.iter().filter(|(_, of)| of.len() > 1);
        for ((&content, of), number) in several.zip(0..) {
            contents.push(content);
            old.extend(of);
            shared.extend(of.iter().map(|_| number));
        }
        old.extend(links.range(d..).map(|(&inode, _)| inode));
        number_of(old.len())?;
        Ok(Self {
            view,
            new: old.iter().copied().zip(0..).collect(),
            links: old
                .iter()
                .map(|inode| links.get(inode).copied().unwrap_or(1))
                .collect(),
            old,
            directories,
            contents,
            shared,
        })
    }

    /// Attributes of all inodes.
    fn inodes(&self, new: &mut Metadata) -> Result<()> {
        let (view, t, data) = (self.view, &self.view.t, self.view.data());
        let (mut modes, mut uids, mut gids) = (Once::default(), Once::default(), Once::default());
        // Without a table, the index is the value itself.
        let id = |table: &Column, index: u32, ids: &mut Once<u32>| match table.len() {
            0 => Ok(index),
            len if index < len => ids.number(table.get32(data, index)?),
            _ => Err(bad("owner or group index out of range")),
        };
        new.inodes.reserve_exact(self.old.len());
        for (&inode, links) in self.old.iter().zip(&self.links) {
            let mut made = InodeData {
                mode_index: modes.number(view.mode(inode)?)?,
                owner_index: id(&t.uids, t.owner_index.get32(data, inode)?, &mut uids)?,
                group_index: id(&t.gids, t.group_index.get32(data, inode)?, &mut gids)?,
                atime_offset: t.times[0].get(data, inode)?,
                mtime_offset: t.times[1].get(data, inode)?,
                ctime_offset: t.times[2].get(data, inode)?,
                atime_subsec: t.subsecs[0].get(data, inode)?,
                mtime_subsec: t.subsecs[1].get(data, inode)?,
                ctime_subsec: t.subsecs[2].get(data, inode)?,
                ..InodeData::default()
            };
            if let Some((offset, subsec)) = &t.btime {
                made.btime_offset = offset.get(data, inode)?;
                made.btime_subsec = subsec.get(data, inode)?;
            }
            let is_file = (t.offsets[1]..t.offsets[2]).contains(&inode);
            if t.options.inodes_have_nlink && is_file {
                made.nlink_minus_one = links.saturating_sub(1);
            }
            new.inodes.push(made);
        }
        (new.modes, new.uids, new.gids) = (modes.values, uids.values, gids.values);
        Ok(())
    }

    /// Names, entries and directories.
    fn entries(&self, new: &mut Metadata, budget: &mut Budget) -> Result<()> {
        let view = self.view;
        let mut names = Once::default();
        budget.elements::<Directory>(number_of(self.directories)?.saturating_add(1))?;
        // The root has an entry without a name.
        let mut entries = vec![DirEntry::default()];
        let mut directories = vec![Directory::default(); self.directories];
        for number in 0..self.directories {
            let old = self.old.get(number).copied().unwrap_or(0);
            if let Some(own) = directories.get_mut(number) {
                own.first_entry = number_of(entries.len())?;
            }
            let of_directory = view.entries(InodeNo(old))?;
            budget.elements::<DirEntry>(of_directory.end - of_directory.start)?;
            for entry in of_directory {
                let inode = view.entry_inode(EntryIndex(entry))?.0;
                let inode_num = self.new.get(&inode).copied().unwrap_or(0);
                let at = number_of(entries.len())?;
                if let Some(child) = directories.get_mut(inode_num as usize) {
                    // First, which directory it is in; below, the entry of that directory.
                    (child.self_entry, child.parent_entry) = (at, number_of(number)?);
                }
                entries.push(DirEntry {
                    name_index: names.number(view.name_index(EntryIndex(entry))?)?,
                    inode_num,
                });
            }
        }
        let own: Vec<u32> = directories.iter().map(|one| one.self_entry).collect();
        for directory in &mut directories {
            let parent = own.get(directory.parent_entry as usize);
            directory.parent_entry = parent.copied().unwrap_or(0);
        }
        directories.push(Directory {
            first_entry: number_of(entries.len())?,
            ..Directory::default()
        });
        budget.elements::<Vec<u8>>(number_of(names.values.len())?)?;
        let names = names.values.into_iter();
        let names = names.map(|name| budget.string(&view.t.names, view, name));
        new.names = names.collect::<Result<_>>()?;
        new.dir_entries = Some(entries);
        new.directories = directories;
        Ok(())
    }

    /// Old numbers of the inodes in a range of old numbers, in the order of both.
    fn old_in(&self, range: std::ops::Range<u32>) -> impl Iterator<Item = u32> {
        let all = self.old.iter().copied();
        all.filter(move |inode| range.contains(inode))
    }

    fn symlinks_and_devices(&self, new: &mut Metadata, budget: &mut Budget) -> Result<()> {
        let (view, t, data) = (self.view, &self.view.t, self.view.data());
        let [l, r, d, o] = t.offsets;
        let mut targets = Once::default();
        let all = self.old_in(l..r).map(|inode| {
            let target = t.symlink_table.get32(data, inode - l)?;
            targets.number(target)
        });
        new.symlink_table = all.collect::<Result<_>>()?;
        budget.elements::<Vec<u8>>(number_of(targets.values.len())?)?;
        let strings = targets.values.into_iter();
        let strings = strings.map(|target| budget.string(&t.targets, view, target));
        new.symlinks = strings.collect::<Result<_>>()?;
        if let Some(devices) = &t.devices {
            let all = self.old_in(d..o).map(|inode| devices.get(data, inode - d));
            new.devices = Some(all.collect::<Result<_>>()?);
        }
        Ok(())
    }

    /// Chunks, contents, sizes and totals.
    fn files(&self, new: &mut Metadata, budget: &mut Budget) -> Result<()> {
        let (view, t, data) = (self.view, &self.view.t, self.view.data());
        let [l, r, d, _] = t.offsets;
        let mut cache = t.size_cache.as_ref().map(|cache| InodeSizeCache {
            min_chunk_count: cache.min_chunk_count,
            ..InodeSizeCache::default()
        });
        let mut holes = Once::default();
        let (mut left, mut sizes) = (t.chunk_size.len(), HashMap::new());
        new.chunk_table.push(0);
        for (&content, number) in self.contents.iter().zip(0..) {
            let range = view.chunk_range(content)?;
            let count = range.end - range.start;
            // Contents that share chunks would cost more than there is.
            let rest = left.checked_sub(count);
            left = rest.ok_or_else(|| bad("file contents with the same chunks"))?;
            budget.elements::<Chunk>(count)?;
            for i in range.clone() {
                let mut chunk = Chunk {
                    block: t.chunk_block.get32(data, i)?,
                    offset: t.chunk_offset.get32(data, i)?,
                    size: t.chunk_size.get32(data, i)?,
                };
                if t.hole_block == Some(chunk.block) && chunk.offset == LARGE_HOLE {
                    chunk.size = holes.number(chunk.size)?;
                }
                new.chunks.push(chunk);
            }
            new.chunk_table.push(number_of(new.chunks.len())?);
            let (size, allocated) = view.sum(range)?;
            sizes.insert(content, (size, allocated));
            if let Some(cache) = &mut cache
                && u64::from(count) >= cache.min_chunk_count
            {
                cache.size_lookup.insert(number, size);
                if allocated != size {
                    cache.allocated_size_lookup.insert(number, allocated);
                }
            }
        }
        let large = holes.values.into_iter().map(|hole| match &t.large_holes {
            Some(table) if hole < table.len() => table.get(data, hole),
            _ => Err(bad("size of a hole is missing")),
        });
        let large = large.collect::<Result<Vec<u64>>>()?;
        new.large_hole_size = t.large_holes.as_ref().map(|_| large);
        new.reg_file_size_cache = cache;
        new.shared_files_table = Some(self.shared.clone());

        let (mut size, mut allocated, mut linked) = (0u64, 0u64, 0u64);
        for inode in self.old_in(l..r) {
            let target = view.stored_target(InodeNo(inode))?.len() as u64;
            size = size.saturating_add(target);
            allocated = allocated.saturating_add(target);
        }
        for (&inode, &links) in self.old.iter().zip(&self.links) {
            if !(r..d).contains(&inode) {
                continue;
            }
            let content = view.content_id(InodeNo(inode))?;
            let (own, stored) = sizes.get(&content).copied().unwrap_or_default();
            size = size.saturating_add(own);
            allocated = allocated.saturating_add(stored);
            let more = u64::from(links.saturating_sub(1));
            linked = linked.saturating_add(own.saturating_mul(more));
        }
        new.total_fs_size = size;
        new.total_allocated_fs_size = (allocated != size).then_some(allocated);
        new.total_hardlink_size = (linked > 0).then_some(linked);
        Ok(())
    }

    /// Extended attributes, if there are tables.
    fn xattrs(&self, budget: &mut Budget) -> Result<Option<XattrTables>> {
        let Some(columns) = &self.view.t.xattrs else {
            return Ok(None);
        };
        let data = self.view.data();
        let (mut sets, mut of) = (Once::default(), Vec::new());
        for (&inode, number) in self.old.iter().zip(0..) {
            let set = columns.of.get(data, InodeNo(inode))?;
            if set != 0 {
                // Set 0 is the empty one.
                of.push((number, sets.number(set)? + 1));
            }
        }
        // As in a build of the tree.
        if of.is_empty() {
            return Ok(None);
        }
        let (mut used, mut left) = (BTreeSet::new(), columns.pair_name.len());
        for &set in &sets.values {
            let pairs = columns.pairs(data, set)?;
            // Sets that share attributes would cost more than there is.
            let rest = left.checked_sub(pairs.end - pairs.start);
            left = rest.ok_or_else(|| bad("sets with the same attributes"))?;
            budget.elements::<XattrPair>(pairs.end - pairs.start)?;
            for pair in pairs {
                used.insert(columns.pair_name.get32(data, pair)?);
            }
        }
        budget.elements::<Vec<u8>>(number_of(used.len())?)?;
        // Sorted as before.
        let names: HashMap<u32, u32> = used.iter().copied().zip(0..).collect();
        let strings = used.iter().map(|&name| {
            let string = columns.names.stored(data, name)?;
            budget.take(string.len())?;
            Ok(string.into_owned())
        });
        let mut tables = XattrTables {
            version: TABLE_VERSION,
            scope: columns.scope.0,
            set_start: vec![0, 0],
            names: strings.collect::<Result<_>>()?,
            ..XattrTables::default()
        };
        let mut values = Once::default();
        for &set in &sets.values {
            for pair in columns.pairs(data, set)? {
                let name = columns.pair_name.get32(data, pair)?;
                tables.pairs.push(XattrPair {
                    name: names.get(&name).copied().unwrap_or(0),
                    value: values.number(columns.pair_value.get32(data, pair)?)?,
                });
            }
            tables.set_start.push(number_of(tables.pairs.len())?);
        }
        budget.elements::<XattrValue>(number_of(values.values.len())?)?;
        let mut left = columns.chunk_size.len();
        for value in values.values {
            let chunks = columns.chunks(data, value)?;
            let count = chunks.end - chunks.start;
            let rest = left.checked_sub(count);
            left = rest.ok_or_else(|| bad("attributes with the same chunks"))?;
            budget.elements::<Chunk>(count)?;
            let mut made = XattrValue::default();
            if count == 0 {
                let bytes = columns.data.stored(data, value)?;
                budget.take(bytes.len())?;
                made.data = bytes.into_owned();
            } else {
                made.first_chunk = number_of(tables.chunks.len())?;
                made.chunk_count = count;
            }
            for i in chunks {
                tables.chunks.push(Chunk {
                    block: columns.chunk_block.get32(data, i)?,
                    offset: columns.chunk_offset.get32(data, i)?,
                    size: columns.chunk_size.get32(data, i)?,
                });
            }
            tables.values.push(made);
        }
        (tables.inodes, tables.sets) = place_sets(&of, number_of(self.old.len())?);
        Ok(Some(tables))
    }

    /// Flags of files, if there is a table.
    fn file_flags(&self, budget: &mut Budget) -> Result<Option<FileFlags>> {
        if !self.view.has_file_flags() {
            return Ok(None);
        }
        let (mut flags, mut of) = (Once::default(), Vec::new());
        flags.number(0)?;
        for (&inode, number) in self.old.iter().zip(0..) {
            let flags_of = self.view.file_flags(InodeNo(inode))?;
            if flags_of != 0 {
                of.push((number, flags.number(flags_of)?));
            }
        }
        if of.is_empty() {
            return Ok(None);
        }
        budget.elements::<u32>(number_of(of.len())?)?;
        let (inodes, indices) = place_sets(&of, number_of(self.old.len())?);
        Ok(Some(FileFlags {
            version: TABLE_VERSION,
            inodes,
            indices,
            values: flags.values,
        }))
    }
}
