//! The metadata of a new image (format/04; default values: its section 14).

use std::collections::{BTreeSet, HashMap};

use redwarfs_codec::CodecSpec;
use redwarfs_format::metadata::{
    Chunk as StoredChunk, DirEntry, Directory, EncodedTables, FsOptions, InodeData, InodeSizeCache,
    Metadata, Packing, build_string_table,
};

use crate::contents::{Files, Stored};
use crate::error::{Error, Result};
use crate::holes::{HoleTable, MIN_CACHED_CHUNKS};
use crate::options::BuildOptions;
use crate::source::{FileType, Timestamp};
use crate::tree::{Tree, reverse_path};

use super::history::program_version;
use super::sections::widths_for;

/// Numbers that tell distinct values apart, in order of first use.
struct Table {
    values: Vec<u32>,
    index: HashMap<u32, u32>,
}

impl Table {
    fn new() -> Self {
        Self {
            values: Vec::new(),
            index: HashMap::new(),
        }
    }

    fn index(&mut self, value: u32) -> u32 {
        *self.index.entry(value).or_insert_with(|| {
            self.values.push(value);
            (self.values.len() - 1) as u32
        })
    }

    /// The number of a value that has one.
    fn of(&self, value: u32) -> u32 {
        self.index.get(&value).copied().unwrap_or(0)
    }
}

/// Builds the metadata, for the number of BLOCK sections and the block size. The largest tables are encoded, and empty in the
/// metadata itself.
///
/// Input that was converted is freed at once: with a million files, the input and the output of this
/// function together would exceed the memory limit.
pub(crate) fn build(
    options: &BuildOptions,
    mut tree: Tree,
    contents: Vec<Files>,
    mut stored: Stored,
    (blocks, block_size): (u32, u32),
) -> Result<(Metadata, EncodedTables)> {
    let mut numbering = Numbering::new(&tree, &contents, &stored);
    let mut metadata = Metadata {
        block_size,
        preferred_path_separator: Some(u32::from(b'/')),
        dwarfs_version: Some(program_version()),
        create_timestamp: options.create_timestamp,
        features: Some(BTreeSet::new()),
        ..Metadata::default()
    };
    let mut fs_options = FsOptions {
        mtime_only: !options.keep_all_times,
        inodes_have_nlink: options.hardlink_table,
        ..FsOptions::default()
    };
    files(&tree, &contents, &stored, &numbering, blocks, &mut metadata)?;
    let values = std::mem::take(&mut stored.values);
    drop((contents, stored));
    (numbering.contents, numbering.files) = (Vec::new(), Vec::new());
    symlinks(&tree, &numbering, &mut metadata);
    metadata.devices = Some(
        numbering
            .devices
            .iter()
            .map(|&i| tree.rdevs[tree.detail(i) as usize])
            .collect(),
    );
    let mut tables = EncodedTables::new(widths_for(&options.metadata_compression));
    inodes(
        options,
        &tree,
        &numbering,
        &mut metadata,
        &mut fs_options,
        &mut tables,
    )?;
    metadata.options = Some(fs_options);
    let extended = std::mem::take(&mut tree.extended);
    extended.store(&numbering.all, &values, options, &mut metadata)?;
    let Numbering { of, walk, dirs, .. } = numbering;
    tree.drop_inodes();
    entries(options, tree, &walk, &dirs, &of, &mut metadata, &mut tables)?;
    metadata.pack(&packing(options));
    Ok((metadata, tables))
}

/// How tables are packed.
fn packing(options: &BuildOptions) -> Packing {
    let compressed = options.metadata_compression != CodecSpec::none();
    options.packing.for_metadata(compressed)
}

/// Which inode of the tree gets which number in the image.
struct Numbering {
    /// Number per inode of the tree.
    of: Vec<u32>,
    /// Inodes of the tree by type, in the order of their numbers.
    symlinks: Vec<u32>,
    devices: Vec<u32>,
    /// Contents in the order of the chunk table; the first `unique` have one file.
    contents: Vec<u32>,
    unique: usize,
    /// Files in the order of their numbers.
    files: Vec<u32>,
    /// All inodes in the order of their numbers.
    all: Vec<u32>,
    /// Entries of the tree in the order of the table of entries.
    walk: Vec<u32>,
    /// Directories of the tree in the order of their numbers.
    dirs: Vec<u32>,
}

impl Numbering {
    /// Numbers everything so that similar parts of the tree have similar numbers. Directories are
    /// sorted by depth, then by path from the last component to the first, so that versions of a
    /// directory are neighbours. Entries and names are sorted by directory, and contents by their
    /// place.
    fn new(tree: &Tree, contents: &[Files], stored: &Stored) -> Self {
        let dir = |number: u32| tree.dirs[number as usize];
        let mut order: Vec<u32> = (0..tree.dirs.len() as u32).collect();
        // Directories above come before those below, since some readers make them in the order of their
        // numbers. Empty directories are last: the first entry of another directory must not have the
        // place of the entry of an empty one, or of its parent.
        let mut depths: Vec<u32> = Vec::with_capacity(tree.dirs.len());
        for dir in &tree.dirs {
            let above = tree.inodes.at(tree.parents[dir.entry as usize]);
            let above = depths.get(tree.detail(above) as usize);
            depths.push(above.map_or(0, |depth| depth + 1));
        }
        order.sort_by(|&a, &b| {
            let key = |number: u32| {
                let empty = number > 0 && dir(number).count == 0;
                (empty, depths[number as usize])
            };
            key(a)
                .cmp(&key(b))
                .then_with(|| reverse_path(tree, dir(a).entry, dir(b).entry))
        });
        drop(depths);
        let mut walk = Vec::with_capacity(tree.inodes.len());
        walk.push(0);
        for &number in &order {
            let dir = dir(number);
            walk.extend(dir.first..dir.first + dir.count);
        }
        let dirs = order
            .iter()
            .map(|&number| tree.inodes.at(dir(number).entry));
        let mut all: Vec<u32> = dirs.collect();
        let (mut symlinks, mut devices, mut others) = (vec![], vec![], vec![]);
        // Where each file is met first.
        let mut met = vec![u32::MAX; tree.files.len()];
        for (at, &entry) in (0u32..).zip(&walk) {
            let inode = tree.inodes.at(entry);
            match tree.kind(inode) {
                FileType::Directory => {}
                FileType::Symlink => symlinks.push(inode),
                FileType::Regular => {
                    let met = &mut met[tree.detail(inode) as usize];
                    *met = at.min(*met);
                }
                FileType::CharDevice | FileType::BlockDevice => devices.push(inode),
                FileType::Fifo | FileType::Socket => others.push(inode),
            }
        }
        let files_of = |i: u32| &contents[i as usize];
        // Those without data first, then by the place of the first chunk.
        let in_order = |single: bool| {
            let group = (0..contents.len() as u32).filter(|&i| (files_of(i).len() == 1) == single);
            let mut empty: Vec<u32> = Vec::new();
            let mut placed: Vec<(u32, u32, u32)> = Vec::new();
            for i in group {
                match stored.chunks_of(i).next() {
                    None => empty.push(i),
                    Some(chunk) => placed.push((chunk.block, chunk.offset, i)),
                }
            }
            placed.sort_unstable();
            empty.extend(placed.into_iter().map(|(.., i)| i));
            empty
        };
        let (mut unique, mut shared) = (in_order(true), in_order(false));
        let mut files: Vec<u32> = unique
            .iter()
            .filter_map(|&i| files_of(i).first().copied())
            .collect();
        for &i in &shared {
            let start = files.len();
            files.extend_from_slice(files_of(i));
            if let Some(group) = files.get_mut(start..) {
                group.sort_by_key(|&file| met[file as usize]);
            }
        }
        drop(met);
        let count = unique.len();
        unique.append(&mut shared);
        all.extend_from_slice(&symlinks);
        all.extend(files.iter().map(|&file| tree.file_inode(file)));
        all.extend_from_slice(&devices);
        all.append(&mut others);
        let mut of = vec![0; tree.inode_count()];
        for (number, &inode) in (0u32..).zip(&all) {
            of[inode as usize] = number;
        }
        Self {
            of,
            symlinks,
            devices,
            contents: unique,
            unique: count,
            files,
            all,
            walk,
            dirs: order,
        }
    }
}

/// Names, directory entries and directories. `numbers` are those of the inodes of the tree.
fn entries(
    options: &BuildOptions,
    tree: Tree,
    walk: &[u32],
    order: &[u32],
    numbers: &[u32],
    metadata: &mut Metadata,
    tables: &mut EncodedTables,
) -> Result<()> {
    let mut rank = vec![u32::MAX; tree.names.len()];
    let mut names = Vec::new();
    for &entry in walk.iter().skip(1) {
        let name = tree.name_ids[entry as usize];
        let rank = &mut rank[name as usize];
        if *rank == u32::MAX {
            *rank = names.len() as u32;
            names.push(name);
        }
    }
    let mut place = vec![0u32; walk.len()];
    for (at, &entry) in (0u32..).zip(walk) {
        place[entry as usize] = at;
    }
    tables.dir_entries(|| {
        walk.iter().map(|&entry| DirEntry {
            name_index: if entry == 0 {
                0
            } else {
                rank[tree.name_ids[entry as usize] as usize]
            },
            inode_num: numbers[tree.inodes.at(entry) as usize],
        })
    })?;
    drop(rank);
    let mut first = 1;
    for &dir in order {
        let dir = tree.dirs[dir as usize];
        metadata.directories.push(Directory {
            parent_entry: place[tree.parents[dir.entry as usize] as usize],
            first_entry: first,
            self_entry: place[dir.entry as usize],
        });
        first += dir.count;
    }
    metadata.directories.push(Directory {
        parent_entry: 0,
        first_entry: tree.inodes.len() as u32,
        self_entry: 0,
    });
    let (order, names) = (names, tree.names);
    drop((tree.parents, tree.name_ids, tree.inodes, tree.dirs));
    let packing = packing(options);
    if packing.plain {
        metadata.names = order.iter().map(|&n| names.get(n).to_vec()).collect();
        return Ok(());
    }
    let strings = order.iter().map(|&n| names.get(n));
    metadata.compact_names = Some(build_string_table(strings, packing.of_names()));
    Ok(())
}

/// Attributes of all inodes.
fn inodes(
    options: &BuildOptions,
    tree: &Tree,
    numbering: &Numbering,
    metadata: &mut Metadata,
    fs_options: &mut FsOptions,
    tables: &mut EncodedTables,
) -> Result<()> {
    let (mut modes, mut uids, mut gids) = (Table::new(), Table::new(), Table::new());
    for &entry in &numbering.walk {
        let attributes = tree.attributes(tree.inodes.at(entry));
        modes.index(attributes.mode);
        uids.index(attributes.uid);
        gids.index(attributes.gid);
    }

    let seconds = i64::from(options.time_resolution.seconds());
    let multiplier = options.time_resolution.multiplier();
    fs_options.time_resolution_sec = (seconds > 1).then_some(seconds as u32);
    fs_options.subsecond_resolution_nsec_multiplier = multiplier;
    let time = |time: Timestamp| options.time(time);
    // Units are counted with the sign, so that times before 1970 come out right for every
    // resolution: readers multiply modulo 2^64.
    let unit = |t: Timestamp| t.sec.div_euclid(seconds);
    fs_options.has_btime = options.keep_birth_times;
    let births = tree.extended.births();
    let birth = |inode: u32| births.get(inode as usize).copied().unwrap_or_default();
    let earliest = |&inode: &u32| {
        let others = options.keep_all_times.then(|| tree.other_times(inode));
        let birth = options.keep_birth_times.then(|| birth(inode));
        let all = [tree.mtime(inode)].into_iter();
        let all = all.chain(others.into_iter().flatten()).chain(birth);
        all.map(|at| unit(time(at))).min()
    };
    let base = numbering.all.iter().filter_map(earliest).min().unwrap_or(0);
    let offset = |t: Timestamp| unit(t).wrapping_sub(base) as u64;
    let subsec = |t: Timestamp| multiplier.map_or(0, |m| u64::from(t.nsec / m));
    metadata.timestamp_base = base as u64;
    tables.inodes(|| {
        numbering.all.iter().map(|&inode| {
            let attributes = tree.attributes(inode);
            let mtime = time(tree.mtime(inode));
            let mut data = InodeData {
                mode_index: modes.of(attributes.mode),
                owner_index: uids.of(attributes.uid),
                group_index: gids.of(attributes.gid),
                mtime_offset: offset(mtime),
                mtime_subsec: subsec(mtime),
                ..InodeData::default()
            };
            if options.keep_all_times {
                let [atime, ctime] = tree.other_times(inode).map(time);
                data.atime_offset = offset(atime);
                data.atime_subsec = subsec(atime);
                data.ctime_offset = offset(ctime);
                data.ctime_subsec = subsec(ctime);
            }
            if options.keep_birth_times {
                let birth = time(birth(inode));
                data.btime_offset = offset(birth);
                data.btime_subsec = subsec(birth);
            }
            if options.hardlink_table && tree.kind(inode) == FileType::Regular {
                let file = tree.files[tree.detail(inode) as usize];
                data.nlink_minus_one = file.links() - 1;
            }
            data
        })
    })?;
    metadata.modes = modes.values;
    metadata.uids = uids.values;
    metadata.gids = gids.values;
    Ok(())
}

fn symlinks(tree: &Tree, numbering: &Numbering, metadata: &mut Metadata) {
    let mut used: Vec<u32> = numbering
        .symlinks
        .iter()
        .map(|&inode| tree.detail(inode))
        .collect();
    used.sort_by(|&a, &b| tree.targets.get(a).cmp(tree.targets.get(b)));
    used.dedup();
    let rank: HashMap<u32, u32> = used.iter().copied().zip(0u32..).collect();
    metadata.symlink_table = numbering
        .symlinks
        .iter()
        .map(|&inode| rank.get(&tree.detail(inode)).copied().unwrap_or(0))
        .collect();
    metadata.symlinks = used
        .iter()
        .map(|&target| tree.targets.get(target).to_vec())
        .collect();
}

/// Chunks, contents, sizes and totals.
fn files(
    tree: &Tree,
    contents: &[Files],
    stored: &Stored,
    numbering: &Numbering,
    blocks: u32,
    metadata: &mut Metadata,
) -> Result<()> {
    let mut totals = Totals::default();
    for &inode in &numbering.symlinks {
        totals.add(tree.targets.get(tree.detail(inode)).len() as u64, 0);
    }
    let data = stored.chunks.iter().filter(|c| c.hole_size().is_none());
    let largest = data.map(|chunk| chunk.size).max().unwrap_or(0);
    let mut holes = HoleTable::new(blocks, metadata.block_size, largest);
    let mut cache = InodeSizeCache {
        min_chunk_count: MIN_CACHED_CHUNKS,
        ..InodeSizeCache::default()
    };
    metadata.chunks.reserve_exact(stored.chunks.len());
    metadata
        .chunk_table
        .reserve_exact(numbering.contents.len() + 1);
    let mut shared = Vec::new();
    for (k, &i) in (0u32..).zip(&numbering.contents) {
        metadata
            .chunk_table
            .push(chunk_number(metadata.chunks.len())?);
        let (mut count, mut size, mut hole) = (0u64, 0u64, 0u64);
        for chunk in stored.chunks_of(i) {
            count += 1;
            size += chunk.len();
            hole += chunk.hole_size().unwrap_or(0);
            metadata.chunks.push(match chunk.hole_size() {
                Some(size) => holes.store(size)?,
                None => StoredChunk {
                    block: chunk.block,
                    offset: chunk.offset,
                    size: chunk.size,
                },
            });
        }
        if count >= MIN_CACHED_CHUNKS {
            cache.size_lookup.insert(k, size);
            if hole > 0 {
                cache.allocated_size_lookup.insert(k, size - hole);
            }
        }
        let files = &contents[i as usize];
        for &file in files.iter() {
            totals.add(size, hole);
            let links = u64::from(tree.files[file as usize].links());
            totals.hardlinks += size * (links - 1);
        }
        if let Some(s) = (k as usize).checked_sub(numbering.unique) {
            shared.extend(std::iter::repeat_n(s as u32, files.len()));
        }
    }
    metadata
        .chunk_table
        .push(chunk_number(metadata.chunks.len())?);
    metadata.shared_files_table = Some(shared);
    metadata.total_fs_size = totals.size;
    metadata.total_allocated_fs_size = (totals.holes > 0).then_some(totals.size - totals.holes);
    metadata.total_hardlink_size = (totals.hardlinks > 0).then_some(totals.hardlinks);
    metadata.reg_file_size_cache = (!numbering.files.is_empty()).then_some(cache);
    holes.finish(metadata);
    Ok(())
}

fn chunk_number(n: usize) -> Result<u32> {
    u32::try_from(n)
        .map_err(|_| Error::Limit("too many chunks; use a larger window or block size".into()))
}

#[derive(Default)]
struct Totals {
    size: u64,
    holes: u64,
    hardlinks: u64,
}

impl Totals {
    fn add(&mut self, size: u64, hole: u64) {
        self.size += size;
        self.holes += hole;
    }
}
