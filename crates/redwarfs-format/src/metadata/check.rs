//! The full consistency check (format chapter 04, sections 12.2 and 12.3).
//!
//! Numbers in comments are the items of section 12.2. Everything is a linear pass; nothing
//! recurses, and memory is a few bytes per directory.

use super::extents::LARGE_HOLE;
use super::open::SPARSE_FILES;
use super::table::{Column, NodePosition, Numbers};
use super::types::{Extent, FileType};
use super::view::{MetadataView, bad};
use crate::error::Result;
use crate::frozen::BitSource;
use crate::ids::{BlockNo, EntryIndex, InodeNo};

/// Longest stored name in bytes.
const LONGEST_NAME: usize = 512;
/// Longest stored symlink target in bytes.
const LONGEST_TARGET: usize = 4096;
/// Parent of directories that were not met yet.
const UNKNOWN: u32 = u32::MAX;

fn ensure(ok: bool, what: impl FnOnce() -> String) -> Result<()> {
    if ok { Ok(()) } else { Err(bad(what())) }
}

/// Uncompressed size of a block, or the largest possible one if it is not known.
pub(super) fn block_end(block_size: u32, block: BlockNo, block_sizes: Option<&[u64]>) -> u64 {
    let known = block_sizes.and_then(|sizes| sizes.get(block.index()).copied());
    known.map_or(u64::from(block_size), |size| {
        size.min(u64::from(block_size))
    })
}

pub(super) fn check(view: &MetadataView, blocks: u32, block_sizes: Option<&[u64]>) -> Result<()> {
    let check = Check {
        view,
        data: view.data(),
        root: NodePosition::root(view.data(), &view.root),
    };
    check.sizes()?;
    check.options()?;
    check.indices()?;
    check.directories()?;
    check.chunk_table()?;
    check.strings()?;
    check.chunks(blocks, block_sizes)?;
    check.inode_order()?;
    check.shared_files()?;
    check.size_cache()?;
    check.categories(blocks)?;
    check.tree()?;
    super::xattr_check::check(view, blocks, block_sizes)
}

struct Check<'a> {
    view: &'a MetadataView,
    data: BitSource<'a>,
    root: NodePosition<'a>,
}

impl Check<'_> {
    /// Items 3 to 5 and 9; 1, 2 and the rest were checked when the view was made.
    fn sizes(&self) -> Result<()> {
        let t = &self.view.t;
        let records = t.mode_index.len();
        ensure(
            t.modes.len() <= records && t.uids.len() <= records && t.gids.len() <= records,
            || "more modes, owners or groups than inodes".into(),
        )?;
        ensure(self.root.member(10)?.list()?.len() <= t.entry_count, || {
            "more names than entries".into()
        })?;
        ensure(t.chunk_table.len() <= records, || {
            "chunk table larger than inode table".into()
        })
    }

    fn options(&self) -> Result<()> {
        let t = &self.view.t;
        ensure(t.options.time_resolution_sec != Some(0), || {
            "time resolution is 0".into()
        })?;
        ensure(t.subsec_multiplier < 1_000_000_000, || {
            "sub-second multiplier too large".into()
        })?;
        // 17
        ensure(
            t.hole_block.is_some() == t.features.contains(SPARSE_FILES),
            || "holes and the feature sparsefiles do not go together".into(),
        )?;
        // 18
        ensure(t.block_size.is_power_of_two(), || {
            format!("block size {} is not a power of two", t.block_size)
        })
    }

    /// Items 6 to 8.
    fn indices(&self) -> Result<()> {
        let (t, data) = (&self.view.t, self.data);
        let legacy = self.view.is_legacy();
        let multiplier = u64::from(t.subsec_multiplier);
        for i in 0..t.mode_index.len() {
            let inside = |column: &Column, table: &Column| -> Result<bool> {
                Ok(table.len() == 0 || column.get32(data, i)? < table.len())
            };
            ensure(t.mode_index.get32(data, i)? < t.modes.len(), || {
                format!("mode index of inode {i} out of range")
            })?;
            ensure(
                inside(&t.owner_index, &t.uids)? && inside(&t.group_index, &t.gids)?,
                || format!("owner or group index of inode {i} out of range"),
            )?;
            if multiplier != 0 {
                let btime = t.btime.as_ref().map(|(_, subsec)| subsec);
                for subsec in t.subsecs.iter().chain(btime) {
                    let nsec = subsec.get(data, i)?.checked_mul(multiplier);
                    ensure(nsec.is_some_and(|n| n < 1_000_000_000), || {
                        format!("fraction of a time of inode {i} out of range")
                    })?;
                }
            }
        }
        let names = t.names.len();
        for e in 0..t.entry_count {
            let name = t.entry_name.get32(data, e)?;
            ensure(name == 0 || name < names, || {
                format!("name index of entry {e} out of range")
            })?;
            ensure(t.entry_inode.get32(data, e)? < t.inode_count, || {
                format!("inode number of entry {e} out of range")
            })?;
        }
        if let Some(table) = &t.entry_table {
            for i in 0..table.len() {
                let e = table.get32(data, i)?;
                ensure(
                    e < t.entry_count && t.entry_inode.get32(data, e)? == i,
                    || format!("entry of inode {i} is wrong"),
                )?;
            }
        }
        ensure(t.entry_inode.get32(data, 0)? == 0, || {
            "the first entry is not the root".into()
        })?;
        ensure(
            !legacy || self.view.self_entry(InodeNo::ROOT)?.0 == 0,
            || "the first inode is not the root".into(),
        )
    }

    /// Items 10 and 11.
    fn directories(&self) -> Result<()> {
        let (t, data) = (&self.view.t, self.data);
        let list = self.root.member(2)?.list()?;
        let (parent, first, own) = (list.column(1)?, list.column(2)?, list.column(3)?);
        let entries = t.entry_count;
        let last = list.len() - 1;
        t.dirs.unpack(data)?;
        ensure(
            t.dirs.first.get(data, 0)? == 1 && t.dirs.first.get(data, last)? == entries,
            || "directories do not cover the entries".into(),
        )?;
        if t.options.packed_directories {
            for i in 0..list.len() {
                ensure(parent.get(data, i)? == 0 && own.get(data, i)? == 0, || {
                    format!("packed directory {i} has a parent or self entry")
                })?;
            }
            return Ok(());
        }
        let mut previous = 0;
        for i in 0..list.len() {
            let (p, f, s) = (
                parent.get32(data, i)?,
                first.get32(data, i)?,
                own.get32(data, i)?,
            );
            let stored = t.dirs.own_stored;
            let fine = f >= previous
                && f <= entries
                && s <= entries
                && p < entries
                && f != p
                && if i == 0 {
                    p == 0 && (!stored || s == 0)
                } else if i == last {
                    // Some releases left a value in the sentinel's self entry; it is harmless.
                    p == 0
                } else {
                    !stored || (f != s && s != p)
                };
            ensure(fine, || format!("directory {i} is inconsistent"))?;
            previous = f;
        }
        Ok(())
    }

    /// Item 12.
    fn chunk_table(&self) -> Result<()> {
        let (t, data) = (&self.view.t, self.data);
        let mut previous = 0;
        for k in 0..t.chunk_table.len() {
            let first = t.chunk_table.get(data, k)?;
            ensure(first >= previous, || "chunk table is not ascending".into())?;
            previous = first;
        }
        ensure(
            t.chunk_table.get(data, 0)? == 0 && previous == t.chunk_size.len(),
            || "chunk table does not cover the chunks".into(),
        )
    }

    /// Items 13 to 16.
    fn strings(&self) -> Result<()> {
        let (t, data) = (&self.view.t, self.data);
        for (plain, compact) in [(10, 24), (11, 25)] {
            let both = self.root.member(plain)?.list()?.len() > 0
                && self.root.member(compact)?.value()?.is_some();
            ensure(!both, || "a string table exists in two forms".into())?;
        }
        let greatest = |column: &Column| -> Result<Option<u32>> {
            let mut values = (0..column.len()).map(|i| column.get32(data, i));
            values.try_fold(None, |greatest, value| Ok(greatest.max(Some(value?))))
        };
        let too_large = || bad("string index out of range");
        let names = match greatest(&t.entry_name)? {
            Some(n) if t.entry_count > 1 => n.checked_add(1).ok_or_else(too_large)?,
            _ => 0,
        };
        let targets = match greatest(&t.symlink_table)? {
            Some(n) => n.checked_add(1).ok_or_else(too_large)?,
            None => 0,
        };
        t.names
            .check(data, "name", names, LONGEST_NAME, valid_name)?;
        t.targets
            .check(data, "symlink", targets, LONGEST_TARGET, |s| {
                !s.is_empty() && !s.contains(&0)
            })
    }

    /// Item 19, block numbers and sizes.
    fn chunks(&self, blocks: u32, block_sizes: Option<&[u64]>) -> Result<()> {
        let t = &self.view.t;
        for i in 0..t.chunk_size.len() {
            match self.view.extent(i)? {
                Extent::Hole { size } => {
                    ensure(size > 0, || format!("chunk {i} is an empty hole"))?;
                }
                Extent::Data {
                    block,
                    offset,
                    size,
                } => {
                    let end = u64::from(offset) + u64::from(size);
                    ensure(block.0 < blocks, || {
                        format!("block {block} of chunk {i} does not exist")
                    })?;
                    ensure(size > 0 && offset != LARGE_HOLE, || {
                        format!("chunk {i} is empty")
                    })?;
                    ensure(end <= block_end(t.block_size, block, block_sizes), || {
                        format!("chunk {i} exceeds its block")
                    })?;
                }
            }
        }
        Ok(())
    }

    /// Items 20 to 22.
    fn inode_order(&self) -> Result<()> {
        for ino in 0..self.view.inode_count() {
            // Fails if the type does not belong where the number is.
            self.view.file_type(InodeNo(ino))?;
        }
        let [_, _, d, o] = self.view.t.offsets;
        let devices = self.view.t.devices.map_or(0, |c| c.len());
        // Images of format 2.0 with devices have no place for their numbers.
        ensure(
            devices == o - d || (devices == 0 && self.view.is_legacy()),
            || format!("{devices} device numbers for {} devices", o - d),
        )?;
        if self.view.is_legacy() {
            // Every entry must have a type that fits its inode number.
            let t = &self.view.t;
            for e in 0..t.entry_count {
                let mode = t.mode_index.get32(self.data, e)?;
                let mode = t.modes.get32(self.data, mode)?;
                let own = FileType::from_mode(mode).map(FileType::rank);
                let ino = InodeNo(t.entry_inode.get32(self.data, e)?);
                ensure(own == Some(self.view.file_type(ino)?.rank()), || {
                    format!("entry {e} has the wrong type")
                })?;
            }
        }
        Ok(())
    }

    /// The rest of item 21: the shared files table has no gaps and no single occurrences.
    fn shared_files(&self) -> Result<()> {
        let (t, data) = (&self.view.t, self.data);
        let [_, r, d, _] = t.offsets;
        let shared = match &t.shared {
            Numbers::Unpacked(list) => list.last().map_or(0, |s| u64::from(*s) + 1),
            // Shared files have counts, no differences.
            Numbers::Packed(_) => 0,
            Numbers::InPlace(table) => {
                let mut current = 0;
                let mut run = 0u32;
                for i in 0..table.len() {
                    let s = table.get32(data, i)?;
                    if i > 0 && u64::from(s) == u64::from(current) + 1 && run >= 2 {
                        (current, run) = (s, 1);
                    } else {
                        ensure(s == current, || "shared files table is inconsistent".into())?;
                        run += 1;
                    }
                }
                ensure(run != 1, || {
                    "shared files table has a single occurrence".into()
                })?;
                if table.len() == 0 {
                    0
                } else {
                    u64::from(current) + 1
                }
            }
        };
        let unique = u64::from(d - r).saturating_sub(u64::from(t.shared.len()));
        let contents = u64::from(t.chunk_table.len() - 1);
        ensure(unique + shared == contents, || {
            format!("{contents} file contents, expected {unique} unique and {shared} shared")
        })
    }

    /// Items 23 and 24, and that all sizes fit into 64 bits.
    fn size_cache(&self) -> Result<()> {
        let (t, data) = (&self.view.t, self.data);
        let contents = t.chunk_table.len() - 1;
        for k in 0..contents {
            let sums = self.view.sum(self.view.chunk_range(k)?)?;
            ensure(self.view.content_size(k)? == sums, || {
                format!("size cache is wrong for content {k}")
            })?;
        }
        let Some(cache) = &t.size_cache else {
            return Ok(());
        };
        for (map, allocated) in [(&cache.size, false), (&cache.allocated, true)] {
            let mut previous = None;
            for i in 0..map.keys.len() {
                let k = map.keys.get32(data, i)?;
                ensure(previous < Some(k) && k < contents, || {
                    "size cache: invalid key".into()
                })?;
                previous = Some(k);
                let range = self.view.chunk_range(k)?;
                let (size, stored) = self.view.sum(range.clone())?;
                let expected = if allocated { stored } else { size };
                let count = u64::from(range.end - range.start);
                let fine = map.values.get(data, i)? == expected
                    && count >= cache.min_chunk_count
                    && (!allocated || size != stored);
                ensure(fine, || format!("size cache is wrong for content {k}"))?;
            }
        }
        Ok(())
    }

    fn categories(&self, blocks: u32) -> Result<()> {
        let (t, data) = (&self.view.t, self.data);
        let length = |id| -> Result<u32> {
            Ok(match self.root.member(id)?.value()? {
                Some(list) => list.list()?.len(),
                None => 0,
            })
        };
        if let Some(categories) = &t.block_categories {
            let names = length(28)?;
            ensure(categories.len() == blocks, || {
                format!("{} block categories for {blocks} blocks", categories.len())
            })?;
            for b in 0..blocks {
                ensure(categories.get32(data, b)? < names, || {
                    format!("category of block {b} out of range")
                })?;
            }
        }
        if let Some(map) = self.root.member(32)?.value()? {
            let objects = length(31)?;
            let list = map.list()?;
            let (keys, values) = (list.column(1)?, list.column(2)?);
            for i in 0..list.len() {
                let fine = keys.get32(data, i)? < blocks && values.get32(data, i)? < objects;
                ensure(fine, || "block metadata out of range".into())?;
            }
        }
        Ok(())
    }

    /// Every directory has exactly one entry, in its parent, and there are no cycles. Names are in
    /// order, and parent and self entries are consistent.
    fn tree(&self) -> Result<()> {
        let (t, data) = (&self.view.t, self.data);
        let [directories, symlinks_end, files_end, _] = t.offsets;
        let view = self.view;
        let mut parents = vec![UNKNOWN; directories as usize];
        let mut special = vec![false; (t.inode_count - files_end) as usize];
        let mut symlinks = vec![false; (symlinks_end - directories) as usize];
        if let Some(root) = parents.first_mut() {
            *root = 0;
        }
        let (mut previous, mut name) = (Vec::new(), Vec::new());
        for dir in 0..directories {
            previous.clear();
            for e in view.entries(InodeNo(dir))? {
                name.clear();
                view.entry_name_into(EntryIndex(e), &mut name)?;
                ensure(previous < name, || {
                    format!("names of directory {dir} are not in order")
                })?;
                std::mem::swap(&mut previous, &mut name);
                let ino = t.entry_inode.get32(data, e)?;
                let once = || format!("inode {ino} has several entries");
                if let Some(parent) = parents.get_mut(ino as usize) {
                    ensure(*parent == UNKNOWN, once)?;
                    *parent = dir;
                    ensure(view.self_entry(InodeNo(ino))?.0 == e, || {
                        format!("self entry of directory {ino} is wrong")
                    })?;
                    ensure(view.parent(InodeNo(ino))?.0 == dir, || {
                        format!("parent entry of directory {ino} is wrong")
                    })?;
                } else if let Some(seen) = ino
                    .checked_sub(files_end)
                    .and_then(|i| special.get_mut(i as usize))
                {
                    ensure(!std::mem::replace(seen, true), once)?;
                } else if let Some(seen) = symlinks.get_mut((ino - directories) as usize) {
                    ensure(!std::mem::replace(seen, true), once)?;
                }
            }
        }
        ensure(!parents.contains(&UNKNOWN), || {
            "a directory has no entry".into()
        })?;
        ensure(view.parent(InodeNo::ROOT)?.0 == 0, || {
            "the root has a parent".into()
        })?;

        // Directories known to be below the root; each one's way up is walked once.
        let mut reached = vec![false; directories as usize];
        if let Some(root) = reached.first_mut() {
            *root = true;
        }
        let mut path = Vec::new();
        for dir in 0..directories as usize {
            let mut at = dir;
            while reached.get(at) == Some(&false) {
                ensure(path.len() < parents.len(), || {
                    format!("directory {dir} is inside itself")
                })?;
                path.push(at);
                at = parents.get(at).map_or(0, |p| *p as usize);
            }
            for at in path.drain(..) {
                if let Some(known) = reached.get_mut(at) {
                    *known = true;
                }
            }
        }
        Ok(())
    }
}

fn valid_name(name: &[u8]) -> bool {
    !matches!(name, b"" | b"." | b"..") && !name.contains(&b'/') && !name.contains(&0)
}
