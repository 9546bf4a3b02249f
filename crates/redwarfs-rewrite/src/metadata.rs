//! Converting metadata of any version to the current one, with changes.

use std::collections::{BTreeSet, HashMap};

use redwarfs_format::metadata::{
    Attributes, Chunk, DirEntry, Directory, FileType, FsOptions, InodeSizeCache, Metadata,
    MetadataHistoryEntry, MetadataView, Stat,
};
use redwarfs_format::section::Version;
use redwarfs_format::{EntryIndex, Error as FormatError, InodeNo};
use redwarfs_reader::Image;
use redwarfs_writer::emit::program_version;
use redwarfs_writer::{HoleTable, MIN_CACHED_CHUNKS};

use crate::attributes;
use crate::error::{Error, Result};
use crate::extensions;
use crate::options::Rebuild;
use crate::recut::{Joiner, NewExtent, Recut};

fn bad(what: &str) -> Error {
    FormatError::corrupt(what).into()
}

fn number(n: usize, what: &str) -> Result<u32> {
    u32::try_from(n).map_err(|_| Error::limit(format!("too many {what}")))
}

/// The old inodes, entries and contents for the new ones.
struct Numbering {
    /// Attributes of the new inodes.
    stats: Vec<Stat>,
    /// New inode of each entry.
    of_entry: Vec<u32>,
    /// Old number of each new content; contents with one inode come first.
    contents: Vec<u32>,
    /// The content of an inode, if it is not the only one with its content.
    shared: Vec<u32>,
}

impl Numbering {
    fn new(view: &MetadataView) -> Result<Self> {
        if view.is_legacy() {
            Self::legacy(view)
        } else {
            Self::current(view)
        }
    }

    /// Everything keeps its number.
    fn current(view: &MetadataView) -> Result<Self> {
        let counts = view.counts();
        let stats = (0..counts.inodes).map(|i| view.stat(InodeNo(i)));
        let of_entry = (0..counts.entries).map(|e| Ok(view.entry_inode(EntryIndex(e))?.0));
        Ok(Self {
            stats: stats.collect::<Result<_, FormatError>>()?,
            of_entry: of_entry.collect::<Result<_, FormatError>>()?,
            contents: (0..counts.contents).collect(),
            shared: (0..counts.shared_files)
                .map(|i| view.shared_file(i))
                .collect::<Result<_, FormatError>>()?,
        })
    }

    /// These images do not distinguish equal files from hard links. Names of one inode number become
    /// inodes that share a content: one inode for all names with the same attributes.
    fn legacy(view: &MetadataView) -> Result<Self> {
        let counts = view.counts();
        let mut inodes: Vec<Vec<Names>> = Vec::new();
        inodes.resize_with(counts.inodes as usize, Vec::new);
        let mut known: HashMap<(u32, Attributes), usize> = HashMap::new();
        for e in 0..counts.entries {
            let inode = view.entry_inode(EntryIndex(e))?;
            let stat = view.entry_stat(EntryIndex(e))?;
            let of_inode = inodes
                .get_mut(inode.index())
                .ok_or_else(|| bad("entry of an inode that does not exist"))?;
            let next = of_inode.len();
            let at = *known.entry((inode.0, stat.attributes())).or_insert(next);
            match of_inode.get_mut(at) {
                Some(names) => names.entries.push(e),
                None => of_inode.push(Names {
                    stat,
                    entries: vec![e],
                }),
            }
        }
        let files = counts.file_offset..counts.device_offset;
        let with = |i: u32, single: bool| {
            inodes
                .get(i as usize)
                .is_some_and(|names| (names.len() == 1) == single)
        };
        let mut order: Vec<u32> = (0..counts.file_offset).collect();
        order.extend(files.clone().filter(|&i| with(i, true)));
        let unique = order.len() - counts.file_offset as usize;
        order.extend(files.filter(|&i| with(i, false)));
        order.extend(counts.device_offset..counts.inodes);

        let mut numbering = Self {
            stats: Vec::with_capacity(counts.inodes as usize),
            of_entry: vec![0; counts.entries as usize],
            contents: Vec::new(),
            shared: Vec::new(),
        };
        for old in order {
            let of_inode = inodes.get(old as usize).map_or(&[][..], Vec::as_slice);
            let is_file = (counts.file_offset..counts.device_offset).contains(&old);
            let single = matches!(of_inode, [names] if names.entries.len() == 1);
            if of_inode.is_empty() || (!is_file && !single) {
                return Err(bad("inode without an entry of its own"));
            }
            if is_file {
                let content = number(numbering.contents.len(), "contents")?;
                if let Some(s) = content.checked_sub(number(unique, "contents")?) {
                    let sharing = std::iter::repeat_n(s, of_inode.len());
                    numbering.shared.extend(sharing);
                }
                numbering.contents.push(view.content_id(InodeNo(old))?);
            }
            for names in of_inode {
                let new = number(numbering.stats.len(), "inodes")?;
                numbering.stats.push(names.stat);
                for &e in &names.entries {
                    if let Some(inode) = numbering.of_entry.get_mut(e as usize) {
                        *inode = new;
                    }
                }
            }
        }
        Ok(numbering)
    }
}

/// Entries of one inode number with the same attributes.
struct Names {
    stat: Stat,
    entries: Vec<u32>,
}

/// The metadata of `image` in the current version, unpacked, with the changes of `rebuild`. `version` is
/// the version of the old image, and `blocks` the number of blocks of the new one. `recut` gives the
/// new places of data if `block_size` differs from the old one.
pub(crate) fn build(
    image: &Image,
    version: Version,
    rebuild: &Rebuild,
    block_size: u32,
    blocks: u32,
    recut: Option<&Recut>,
) -> Result<Metadata> {
    let view = image.metadata();
    let old_options = *view.options();
    let resolution = attributes::resolution(&old_options, rebuild)?;
    let mut old = view.thaw()?;
    // These take most of the memory, and are made again.
    old.chunks = Vec::new();
    let (inodes, dir_entries) = (std::mem::take(&mut old.inodes), old.dir_entries.take());
    let name_of: Vec<u32> = match dir_entries {
        Some(entries) => entries.iter().map(|entry| entry.name_index).collect(),
        None => inodes.iter().map(|entry| entry.name_index_v2_2).collect(),
    };
    drop(inodes);
    let numbering = Numbering::new(view)?;
    let counts = view.counts();

    let mut metadata = Metadata {
        block_size,
        symlink_table: old.symlink_table,
        devices: Some(old.devices.unwrap_or_default()),
        // The targets and their separators stay unchanged.
        preferred_path_separator: Some(old.preferred_path_separator.unwrap_or(u32::from(b'/'))),
        dwarfs_version: Some(program_version()),
        create_timestamp: rebuild.create_timestamp,
        features: Some(BTreeSet::new()),
        ..Metadata::default()
    };
    let names = (0..counts.names).map(|k| view.name_string(k).map(Into::into));
    metadata.names = names.collect::<Result<_, FormatError>>()?;
    let targets = (0..counts.symlink_targets).map(|k| view.target_string(k).map(Into::into));
    metadata.symlinks = targets.collect::<Result<_, FormatError>>()?;

    let mut options = FsOptions {
        inodes_have_nlink: rebuild.hardlink_table,
        ..FsOptions::default()
    };
    entries(view, &numbering, &name_of, &mut metadata)?;
    let births = match rebuild.extensions {
        true => extensions::births(view)?,
        false => Vec::new(),
    };
    attributes::store(
        &numbering.stats,
        &births,
        resolution,
        rebuild,
        &mut metadata,
        &mut options,
    );
    files(view, &numbering, blocks, recut, &mut metadata)?;
    totals(&numbering, rebuild.hardlink_table, &mut metadata);
    if rebuild.extensions {
        let modes = |ino: u32| {
            let inode = metadata.inodes.get(ino as usize)?;
            metadata.modes.get(inode.mode_index as usize).copied()
        };
        let old_xattrs = old
            .xattrs
            .filter(|_| view.has_xattrs() && !view.is_legacy());
        let xattrs = old_xattrs
            .map(|tables| extensions::changed(tables, rebuild, image, &modes))
            .transpose()?
            .flatten();
        metadata.xattrs = xattrs
            .map(|tables| extensions::moved(tables, recut))
            .transpose()?;
        metadata.file_flags = extensions::file_flags(view, old.file_flags);
    }
    metadata.shared_files_table = Some(numbering.shared);
    metadata.options = Some(options);

    if rebuild.category_names {
        metadata.category_names = old.category_names;
        metadata.block_categories = old.block_categories;
        if rebuild.category_metadata {
            metadata.category_metadata_json = old.category_metadata_json;
            metadata.block_category_metadata = old.block_category_metadata;
        }
        if let Some(recut) = recut {
            categories(recut, &mut metadata)?;
        }
    }
    if rebuild.version_history {
        let mut history = old.metadata_version_history.unwrap_or_default();
        history.push(MetadataHistoryEntry {
            major: version.major,
            minor: version.minor,
            dwarfs_version: old.dwarfs_version,
            block_size: old.block_size,
            options: old.options,
        });
        metadata.metadata_version_history = Some(history);
    }
    Ok(metadata)
}

/// Entries and directories.
fn entries(
    view: &MetadataView,
    numbering: &Numbering,
    name_of: &[u32],
    metadata: &mut Metadata,
) -> Result<()> {
    let counts = view.counts();
    if name_of.len() != numbering.of_entry.len() {
        return Err(bad("entry without a name"));
    }
    let mut entries: Vec<DirEntry> = name_of
        .iter()
        .zip(&numbering.of_entry)
        .map(|(&name_index, &inode_num)| DirEntry {
            name_index,
            inode_num,
        })
        .collect();
    // The entry of the root, which has no name.
    if let Some(root) = entries.first_mut() {
        root.name_index = 0;
    }
    metadata.dir_entries = Some(entries);
    let directories = (0..counts.directories).map(|i| {
        let directory = InodeNo(i);
        Ok(Directory {
            parent_entry: view.self_entry(view.parent(directory)?)?.0,
            first_entry: view.directory_record(i)?.first_entry,
            self_entry: view.self_entry(directory)?.0,
        })
    });
    metadata.directories = directories.collect::<Result<_>>()?;
    metadata.directories.push(Directory {
        first_entry: counts.entries,
        ..Directory::default()
    });
    Ok(())
}

/// Calls `sink` with the extents of all contents, in their new order, and with `None` after
/// each content.
fn extents(
    view: &MetadataView,
    numbering: &Numbering,
    recut: Option<&Recut>,
    sink: &mut dyn FnMut(Option<NewExtent>) -> Result<()>,
) -> Result<()> {
    for &content in &numbering.contents {
        let mut joiner = Joiner::default();
        for extent in view.content_extents(content)? {
            joiner.extent(extent?, recut, &mut |new| sink(Some(new)))?;
        }
        joiner.flush(&mut |new| sink(Some(new)))?;
        sink(None)?;
    }
    Ok(())
}

/// Chunks, contents and their sizes.
fn files(
    view: &MetadataView,
    numbering: &Numbering,
    blocks: u32,
    recut: Option<&Recut>,
    metadata: &mut Metadata,
) -> Result<()> {
    let (mut largest, mut count) = (0, 0usize);
    extents(view, numbering, recut, &mut |extent| {
        match extent {
            Some(NewExtent::Data(piece)) => {
                largest = largest.max(piece.size);
                count += 1;
            }
            Some(NewExtent::Hole(_)) => count += 1,
            None => {}
        }
        Ok(())
    })?;
    number(count, "chunks; use a larger block size")?;
    let mut holes = HoleTable::new(blocks, metadata.block_size, largest);
    let mut chunks = Vec::with_capacity(count);
    let mut table = Vec::with_capacity(numbering.contents.len() + 1);
    let mut cache = InodeSizeCache {
        min_chunk_count: MIN_CACHED_CHUNKS,
        ..InodeSizeCache::default()
    };
    table.push(0);
    let (mut size, mut hole, mut first) = (0u64, 0u64, 0);
    extents(view, numbering, recut, &mut |extent| {
        match extent {
            Some(NewExtent::Data(piece)) => {
                size = size.saturating_add(u64::from(piece.size));
                chunks.push(Chunk {
                    block: piece.block,
                    offset: piece.offset,
                    size: piece.size,
                });
            }
            Some(NewExtent::Hole(n)) => {
                size = size.saturating_add(n);
                hole = hole.saturating_add(n);
                chunks.push(holes.store(n)?);
            }
            None => {
                if (chunks.len() - first) as u64 >= MIN_CACHED_CHUNKS {
                    let content = number(table.len() - 1, "contents")?;
                    cache.size_lookup.insert(content, size);
                    if hole > 0 {
                        cache.allocated_size_lookup.insert(content, size - hole);
                    }
                }
                (size, hole, first) = (0, 0, chunks.len());
                table.push(number(chunks.len(), "chunks")?);
            }
        }
        Ok(())
    })?;
    metadata.chunks = chunks;
    metadata.chunk_table = table;
    let counts = view.counts();
    metadata.reg_file_size_cache = (counts.files > 0).then_some(cache);
    holes.finish(metadata);
    Ok(())
}

/// Sizes of the whole, and link counts.
fn totals(numbering: &Numbering, store_links: bool, metadata: &mut Metadata) {
    let mut links = vec![0u32; numbering.stats.len()];
    for &inode in &numbering.of_entry {
        if let Some(links) = links.get_mut(inode as usize) {
            *links += 1;
        }
    }
    let (mut size, mut allocated, mut linked) = (0u64, 0u64, 0u64);
    for ((stat, &links), inode) in numbering.stats.iter().zip(&links).zip(&mut metadata.inodes) {
        let Some(kind @ (FileType::Regular | FileType::Symlink)) = stat.file_type() else {
            continue;
        };
        size = size.saturating_add(stat.size);
        allocated = allocated.saturating_add(stat.allocated);
        if kind == FileType::Regular {
            let more = links.saturating_sub(1);
            linked = linked.saturating_add(stat.size.saturating_mul(u64::from(more)));
            if store_links {
                inode.nlink_minus_one = more;
            }
        }
    }
    metadata.total_fs_size = size;
    metadata.total_allocated_fs_size = (allocated != size).then_some(allocated);
    metadata.total_hardlink_size = (linked > 0).then_some(linked);
}

/// Gives the new blocks the categories of the old blocks from which their data comes.
fn categories(recut: &Recut, metadata: &mut Metadata) -> Result<()> {
    if metadata.block_categories.is_some() {
        let categories = recut.kinds().map(|kind| {
            kind.and_then(|kind| kind.category)
                .map(|category| category.0)
                .ok_or_else(|| bad("block without a category"))
        });
        metadata.block_categories = Some(categories.collect::<Result<_>>()?);
    }
    if let (Some(texts), Some(of_block)) = (
        &metadata.category_metadata_json,
        &mut metadata.block_category_metadata,
    ) {
        *of_block = (0u32..)
            .zip(recut.kinds())
            .filter_map(|(block, kind)| {
                let description = kind?.description.as_ref()?;
                let text = texts.iter().position(|text| text == description)?;
                Some((block, u32::try_from(text).ok()?))
            })
            .collect();
    }
    Ok(())
}
