//! Every member of the metadata matters to what a reader shows, or is known not to.
//!
//! For each member there is a change of a small image; the view of the changed image is another one
//! where a member is honoured, and the same where it only informs. A member that is in neither list
//! fails the test.

use std::collections::BTreeSet;
use std::fmt::Write as _;

use redwarfs_format::frozen::TypeInfo;
use redwarfs_format::metadata::{
    Chunk, Compress, DirEntry, Directory, FileFlags, FileType, FsOptions, InodeData,
    InodeSizeCache, Metadata, MetadataHistoryEntry, MetadataView, StringPacking, StringTable,
    XattrPair, XattrTables, XattrValue, build_string_table, freeze, metadata_type,
};
use redwarfs_format::{BlockNo, EntryIndex, InodeNo, Result};

const BLOCK: u32 = 1 << 20;
const BLOCKS: u32 = 2;

/// Everything that a mount or an extraction of the image shows, as text.
fn shown(metadata: &Metadata) -> Result<String> {
    let frozen = freeze(metadata).unwrap();
    let view = MetadataView::parse(&frozen.schema, frozen.data)?;
    let mut out = String::new();
    for e in (0..view.entry_count()).map(EntryIndex) {
        let ino = view.entry_inode(e)?;
        let name = view.entry_name(e)?;
        let stat = (view.entry_stat(e)?, view.stat(ino)?);
        writeln!(out, "{e} {} {ino} {stat:?}", name.escape_ascii()).unwrap();
    }
    for ino in (0..view.inode_count()).map(InodeNo) {
        for xattr in view.xattrs(ino)? {
            let (name, value) = (xattr.name()?, xattr.value()?);
            writeln!(out, "{ino} {} {value:?}", name.escape_ascii()).unwrap();
        }
        let flags = view.file_flags(ino)?;
        writeln!(out, "{ino} {:?} {flags:x}", view.birth_time(ino)?).unwrap();
        match view.file_type(ino)? {
            FileType::Directory => {
                let places = (view.entries(ino)?, view.parent(ino)?, view.self_entry(ino)?);
                writeln!(out, "{ino} {places:?}").unwrap();
            }
            FileType::Symlink => {
                let target = view.symlink(ino)?;
                assert_eq!(view.stat(ino)?.size, target.len() as u64);
                writeln!(out, "{ino} {}", target.escape_ascii()).unwrap();
            }
            FileType::Regular => {
                let pieces: Vec<_> = view.extents(ino)?.collect::<Result<_>>()?;
                writeln!(out, "{ino} {pieces:?}").unwrap();
            }
            _ => {}
        }
    }
    let totals = view.totals();
    writeln!(
        out,
        "{} {} {}",
        totals.size,
        totals.allocated,
        view.block_size()
    )
    .unwrap();
    Ok(out)
}

fn names() -> Vec<Vec<u8>> {
    let names = ["a", "b", "c", "d", "device", "fifo", "link", "sub"];
    names.map(|name| name.as_bytes().to_vec()).to_vec()
}

/// Two directories, a symlink, a file with two names, two that share a content, a device, a pipe.
fn plain() -> Metadata {
    let inode = |mode_index, n: u64| InodeData {
        mode_index,
        owner_index: 1,
        group_index: 1,
        atime_offset: n,
        mtime_offset: 10 + n,
        ctime_offset: 20 + n,
        atime_subsec: 30 + n,
        mtime_subsec: 40 + n,
        ctime_subsec: 50 + n,
        ..InodeData::default()
    };
    let mut inodes: Vec<InodeData> = [0, 0, 2, 1, 1, 1, 3, 4]
        .into_iter()
        .zip(0..)
        .map(|(mode, n)| inode(mode, n))
        .collect();
    // One more than there is, so that counting gives another result.
    inodes[3].nlink_minus_one = 2;
    let directory = |parent_entry, first_entry, self_entry| Directory {
        parent_entry,
        first_entry,
        self_entry,
    };
    let chunk = |block, offset, size| Chunk {
        block,
        offset,
        size,
    };
    let entries = [
        (0, 0),
        (0, 3),
        (1, 3),
        (2, 4),
        (4, 6),
        (5, 7),
        (6, 2),
        (7, 1),
        (3, 5),
    ];
    Metadata {
        chunks: vec![
            chunk(0, 0, 11),
            chunk(BLOCKS, 5, 3),
            chunk(1, 3, 5),
            chunk(BLOCKS, u32::MAX, 0),
        ],
        directories: vec![directory(0, 1, 0), directory(0, 8, 7), directory(0, 9, 0)],
        inodes,
        chunk_table: vec![0, 2, 4],
        symlink_table: vec![1],
        uids: vec![10, 11],
        gids: vec![20, 21],
        modes: vec![
            0o040_755, 0o100_644, 0o120_777, 0o020_600, 0o010_600, 0o100_600,
        ],
        names: names(),
        symlinks: vec![b"else".to_vec(), b"sub\\d".to_vec()],
        timestamp_base: 1_000_000,
        block_size: BLOCK,
        total_fs_size: 5_000_000,
        devices: Some(vec![2049]),
        options: Some(FsOptions {
            subsecond_resolution_nsec_multiplier: Some(1000),
            inodes_have_nlink: true,
            ..FsOptions::default()
        }),
        dir_entries: Some(
            entries
                .map(|(name_index, inode_num)| DirEntry {
                    name_index,
                    inode_num,
                })
                .to_vec(),
        ),
        shared_files_table: Some(vec![0, 0]),
        total_hardlink_size: Some(11),
        dwarfs_version: Some(b"someone".to_vec()),
        create_timestamp: Some(1_700_000_000),
        preferred_path_separator: Some(u32::from(b'\\')),
        features: Some([b"sparsefiles".to_vec()].into()),
        category_names: Some(vec![b"text".to_vec(), b"noise".to_vec()]),
        block_categories: Some(vec![0, 1]),
        reg_file_size_cache: Some(InodeSizeCache {
            size_lookup: [(0, 1111), (1, 2222)].into(),
            min_chunk_count: 2,
            allocated_size_lookup: [(0, 11), (1, 5)].into(),
        }),
        category_metadata_json: Some(vec![b"{}".to_vec(), b"{\"a\":1}".to_vec()]),
        block_category_metadata: Some([(0, 0), (1, 1)].into()),
        metadata_version_history: Some(vec![MetadataHistoryEntry {
            major: 2,
            minor: 3,
            dwarfs_version: Some(b"someone before".to_vec()),
            block_size: BLOCK,
            options: Some(FsOptions::default()),
        }]),
        hole_block_index: Some(BLOCKS),
        large_hole_size: Some(vec![1 << 40]),
        total_allocated_fs_size: Some(16),
        ..Metadata::default()
    }
}

fn table(strings: &[Vec<u8>], pack_index: bool) -> StringTable {
    let strings: Vec<&[u8]> = strings.iter().map(Vec::as_slice).collect();
    let compress = Compress::Always;
    build_string_table(
        &strings,
        StringPacking {
            compress,
            pack_index,
        },
    )
}

/// The same with extended attributes, flags and birth times, in sparse form.
fn extended() -> Metadata {
    let mut m = plain();
    for (inode, n) in m.inodes.iter_mut().zip(60..) {
        (inode.btime_offset, inode.btime_subsec) = (n, n + 10);
    }
    options(&mut m).has_btime = true;
    let pair = |name, value| XattrPair { name, value };
    let value = |data: &[u8], first_chunk, chunk_count| XattrValue {
        data: data.to_vec(),
        first_chunk,
        chunk_count,
    };
    let chunk = |offset, size| Chunk {
        block: 1,
        offset,
        size,
    };
    m.xattrs = Some(XattrTables {
        version: 1,
        scope: 1 << 8 | 1,
        inodes: vec![3, 4],
        sets: vec![1, 2],
        set_start: vec![0, 0, 2, 3],
        pairs: vec![pair(0, 0), pair(1, 1), pair(1, 2)],
        names: vec![b"user.a".to_vec(), b"user.b".to_vec()],
        values: vec![value(b"one", 0, 0), value(b"two", 0, 0), value(b"", 1, 2)],
        chunks: vec![chunk(0, 1), chunk(10, 2000), chunk(20, 7), chunk(30, 8)],
    });
    m.file_flags = Some(FileFlags {
        version: 1,
        inodes: vec![3, 5],
        indices: vec![1, 2],
        values: vec![0, 0x10, 0x20],
    });
    m
}

/// The same with compressed strings.
fn compact() -> Metadata {
    let mut m = plain();
    m.compact_names = Some(table(&std::mem::take(&mut m.names), false));
    m.compact_symlinks = Some(table(&std::mem::take(&mut m.symlinks), true));
    m
}

/// Format 2.2: entries have the attributes, and their own table leads to them.
fn legacy() -> Metadata {
    let entry = |name_index_v2_2, inode_v2_2, mode_index| InodeData {
        name_index_v2_2,
        inode_v2_2,
        mode_index,
        mtime_offset: u64::from(name_index_v2_2),
        ..InodeData::default()
    };
    Metadata {
        chunks: vec![Chunk {
            block: 0,
            offset: 0,
            size: 9,
        }],
        directories: [1, 4]
            .map(|first_entry| Directory {
                first_entry,
                ..Directory::default()
            })
            .to_vec(),
        inodes: vec![
            entry(0, 0, 0),
            entry(0, 1, 1),
            entry(1, 1, 1),
            entry(2, 2, 1),
        ],
        chunk_table: vec![0, 1, 1],
        entry_table_v2_2: vec![0, 1, 3],
        uids: vec![10],
        gids: vec![20],
        modes: vec![0o040_755, 0o100_644],
        names: names(),
        block_size: BLOCK,
        total_fs_size: 18,
        ..Metadata::default()
    }
}

type Change = fn(&mut Metadata);
type Row = (&'static str, fn() -> Metadata, Change);

fn options(m: &mut Metadata) -> &mut FsOptions {
    m.options.as_mut().unwrap()
}

fn xattrs(m: &mut Metadata) -> &mut XattrTables {
    m.xattrs.as_mut().unwrap()
}

fn flags(m: &mut Metadata) -> &mut FileFlags {
    m.file_flags.as_mut().unwrap()
}

fn entry(m: &mut Metadata, e: usize) -> &mut DirEntry {
    &mut m.dir_entries.as_mut().unwrap()[e]
}

fn cache(m: &mut Metadata) -> &mut InodeSizeCache {
    m.reg_file_size_cache.as_mut().unwrap()
}

fn targets(m: &mut Metadata) -> &mut StringTable {
    m.compact_symlinks.as_mut().unwrap()
}

fn earlier(m: &mut Metadata) -> &mut MetadataHistoryEntry {
    &mut m.metadata_version_history.as_mut().unwrap()[0]
}

/// Members that decide what a reader shows.
const HONOURED: &[Row] = &[
    ("metadata.chunks", plain, |m| m.chunks.swap(0, 2)),
    ("metadata.directories", plain, |m| {
        m.directories[0].first_entry = 2;
    }),
    ("metadata.inodes", plain, |m| m.inodes.swap(3, 4)),
    ("metadata.chunk_table", plain, |m| m.chunk_table[1] = 1),
    ("metadata.entry_table_v2_2", legacy, |m| {
        m.entry_table_v2_2[1] = 2;
    }),
    ("metadata.symlink_table", plain, |m| m.symlink_table[0] = 0),
    ("metadata.uids", plain, |m| m.uids[1] = 12),
    ("metadata.gids", plain, |m| m.gids[1] = 22),
    ("metadata.modes", plain, |m| m.modes[1] = 0o100_444),
    ("metadata.names", plain, |m| m.names[0] = b"aa".to_vec()),
    ("metadata.symlinks", plain, |m| {
        m.symlinks[1] = b"sub\\c".to_vec();
    }),
    ("metadata.timestamp_base", plain, |m| m.timestamp_base += 1),
    ("metadata.block_size", plain, |m| m.block_size *= 2),
    ("metadata.total_fs_size", plain, |m| m.total_fs_size += 1),
    ("metadata.devices", plain, |m| m.devices = Some(vec![2050])),
    ("metadata.options", plain, |m| m.options = None),
    ("metadata.dir_entries", plain, |m| {
        entry(m, 8).name_index = 2;
    }),
    ("metadata.shared_files_table", plain, |m| {
        m.shared_files_table = None;
    }),
    ("metadata.compact_names", compact, |m| {
        m.compact_names = None;
    }),
    ("metadata.compact_symlinks", compact, |m| {
        m.compact_symlinks = None;
    }),
    ("metadata.preferred_path_separator", plain, |m| {
        m.preferred_path_separator = None;
    }),
    ("metadata.features", plain, |m| {
        m.features = Some([b"telepathy".to_vec()].into());
    }),
    ("metadata.reg_file_size_cache", plain, |m| {
        m.reg_file_size_cache = None;
    }),
    ("metadata.hole_block_index", plain, |m| {
        m.hole_block_index = None;
    }),
    ("metadata.large_hole_size", plain, |m| {
        m.large_hole_size = Some(vec![1 << 41]);
    }),
    ("metadata.total_allocated_fs_size", plain, |m| {
        m.total_allocated_fs_size = None;
    }),
    ("chunk.block", plain, |m| m.chunks[0].block = 1),
    ("chunk.offset", plain, |m| m.chunks[0].offset = 1),
    ("chunk.size", plain, |m| m.chunks[0].size = 12),
    ("directory.parent_entry", plain, |m| {
        m.directories[1].parent_entry = 7;
    }),
    ("directory.first_entry", plain, |m| {
        m.directories[1].first_entry = 7;
    }),
    ("directory.self_entry", plain, |m| {
        m.directories[1].self_entry = 6;
    }),
    ("inode_data.mode_index", plain, |m| {
        m.inodes[4].mode_index = 5;
    }),
    ("inode_data.owner_index", plain, |m| {
        m.inodes[4].owner_index = 0;
    }),
    ("inode_data.group_index", plain, |m| {
        m.inodes[4].group_index = 0;
    }),
    ("inode_data.atime_offset", plain, |m| {
        m.inodes[4].atime_offset += 1;
    }),
    ("inode_data.mtime_offset", plain, |m| {
        m.inodes[4].mtime_offset += 1;
    }),
    ("inode_data.ctime_offset", plain, |m| {
        m.inodes[4].ctime_offset += 1;
    }),
    ("inode_data.atime_subsec", plain, |m| {
        m.inodes[4].atime_subsec += 1;
    }),
    ("inode_data.mtime_subsec", plain, |m| {
        m.inodes[4].mtime_subsec += 1;
    }),
    ("inode_data.ctime_subsec", plain, |m| {
        m.inodes[4].ctime_subsec += 1;
    }),
    ("inode_data.nlink_minus_one", plain, |m| {
        m.inodes[3].nlink_minus_one = 6;
    }),
    ("inode_data.name_index_v2_2", legacy, |m| {
        m.inodes[3].name_index_v2_2 = 3;
    }),
    ("inode_data.inode_v2_2", legacy, |m| {
        m.inodes[2].inode_v2_2 = 2;
    }),
    ("dir_entry.name_index", plain, |m| {
        entry(m, 8).name_index = 2;
    }),
    ("dir_entry.inode_num", plain, |m| entry(m, 8).inode_num = 4),
    ("fs_options.mtime_only", plain, |m| {
        options(m).mtime_only = true;
    }),
    ("fs_options.time_resolution_sec", plain, |m| {
        options(m).time_resolution_sec = Some(2);
    }),
    ("fs_options.packed_chunk_table", plain, |m| {
        options(m).packed_chunk_table = true;
    }),
    ("fs_options.packed_directories", plain, |m| {
        options(m).packed_directories = true;
    }),
    ("fs_options.packed_shared_files_table", plain, |m| {
        options(m).packed_shared_files_table = true;
    }),
    (
        "fs_options.subsecond_resolution_nsec_multiplier",
        plain,
        |m| {
            options(m).subsecond_resolution_nsec_multiplier = Some(1);
        },
    ),
    ("fs_options.inodes_have_nlink", plain, |m| {
        options(m).inodes_have_nlink = false;
    }),
    ("string_table.buffer", compact, |m| {
        targets(m).buffer.rotate_left(1);
    }),
    ("string_table.symtab", compact, |m| targets(m).symtab = None),
    ("string_table.index", compact, |m| targets(m).index[0] -= 1),
    ("string_table.packed_index", compact, |m| {
        targets(m).packed_index = false;
    }),
    ("inode_size_cache.size_lookup", plain, |m| {
        *cache(m).size_lookup.get_mut(&0).unwrap() += 1;
    }),
    ("inode_size_cache.min_chunk_count", plain, |m| {
        cache(m).min_chunk_count = 3;
    }),
    ("inode_size_cache.allocated_size_lookup", plain, |m| {
        cache(m).allocated_size_lookup.clear();
    }),
    ("metadata.xattrs", extended, |m| m.xattrs = None),
    ("metadata.file_flags", extended, |m| m.file_flags = None),
    ("inode_data.btime_offset", extended, |m| {
        m.inodes[4].btime_offset = 77;
    }),
    ("inode_data.btime_subsec", extended, |m| {
        m.inodes[4].btime_subsec = 77;
    }),
    ("fs_options.has_btime", extended, |m| {
        options(m).has_btime = false;
    }),
    ("xattr_tables.version", extended, |m| xattrs(m).version = 2),
    ("xattr_tables.inodes", extended, |m| xattrs(m).inodes[1] = 6),
    ("xattr_tables.sets", extended, |m| xattrs(m).sets[1] = 1),
    ("xattr_tables.set_start", extended, |m| {
        xattrs(m).set_start[2] = 1;
    }),
    ("xattr_tables.pairs", extended, |m| {
        xattrs(m).pairs.swap(1, 2);
    }),
    ("xattr_tables.names", extended, |m| {
        xattrs(m).names[1].push(b'c');
    }),
    ("xattr_tables.values", extended, |m| {
        xattrs(m).values.swap(0, 1);
    }),
    ("xattr_tables.chunks", extended, |m| {
        xattrs(m).chunks.swap(1, 3);
    }),
    ("xattr_pair.name", extended, |m| {
        xattrs(m).pairs[2].name = 0;
    }),
    ("xattr_pair.value", extended, |m| {
        xattrs(m).pairs[2].value = 0;
    }),
    ("xattr_value.data", extended, |m| {
        xattrs(m).values[0].data.push(b's');
    }),
    ("xattr_value.first_chunk", extended, |m| {
        xattrs(m).values[2].first_chunk = 2;
    }),
    ("xattr_value.chunk_count", extended, |m| {
        xattrs(m).values[2].chunk_count = 1;
    }),
    ("file_flags.version", extended, |m| flags(m).version = 2),
    ("file_flags.inodes", extended, |m| flags(m).inodes[1] = 6),
    ("file_flags.indices", extended, |m| flags(m).indices[1] = 1),
    ("file_flags.values", extended, |m| flags(m).values[2] = 0x40),
];

/// Members that describe the image, and those that no release has ever written.
const INFORMATIVE: &[Row] = &[
    ("metadata.total_hardlink_size", plain, |m| {
        m.total_hardlink_size = None;
    }),
    ("metadata.dwarfs_version", plain, |m| {
        m.dwarfs_version = None;
    }),
    ("metadata.create_timestamp", plain, |m| {
        m.create_timestamp = None;
    }),
    ("metadata.category_names", plain, |m| {
        m.category_names = None;
    }),
    ("metadata.block_categories", plain, |m| {
        m.block_categories = None;
    }),
    ("metadata.category_metadata_json", plain, |m| {
        m.category_metadata_json = None;
    }),
    ("metadata.block_category_metadata", plain, |m| {
        m.block_category_metadata = None;
    }),
    ("metadata.metadata_version_history", plain, |m| {
        m.metadata_version_history = None;
    }),
    ("xattr_tables.scope", extended, |m| xattrs(m).scope = 1 << 9),
    ("history_entry.major", plain, |m| earlier(m).major = 3),
    ("history_entry.minor", plain, |m| earlier(m).minor = 4),
    ("history_entry.dwarfs_version", plain, |m| {
        earlier(m).dwarfs_version = None;
    }),
    ("history_entry.block_size", plain, |m| {
        earlier(m).block_size *= 2;
    }),
    ("history_entry.options", plain, |m| {
        earlier(m).options = None;
    }),
];

/// `struct.member` of all structs inside of a type.
fn members(ty: &TypeInfo, out: &mut BTreeSet<String>) {
    match ty {
        TypeInfo::Optional(inner)
        | TypeInfo::List(inner)
        | TypeInfo::Set(inner)
        | TypeInfo::Map(inner) => members(inner, out),
        TypeInfo::Pair(types) => {
            members(&types.0, out);
            members(&types.1, out);
        }
        TypeInfo::Struct(info) => {
            for member in &info.members {
                out.insert(format!("{}.{}", info.name, member.name));
                members(&member.ty, out);
            }
        }
        TypeInfo::Unsigned(_) | TypeInfo::Bool | TypeInfo::Bytes => {}
    }
}

#[test]
fn no_member_is_forgotten() {
    let mut all = BTreeSet::new();
    members(&metadata_type(), &mut all);
    let rows = || HONOURED.iter().chain(INFORMATIVE);
    let listed: BTreeSet<String> = rows().map(|row| row.0.to_owned()).collect();
    assert_eq!(listed.len(), rows().count(), "a member is listed twice");
    assert_eq!(listed, all);
}

#[test]
fn members_that_are_honoured_change_what_is_shown() {
    for (name, base, change) in HONOURED {
        let mut m = base();
        let before = shown(&m).unwrap();
        change(&mut m);
        // What is refused has been looked at, too.
        let after = shown(&m).unwrap_or_else(|e| e.to_string());
        assert_ne!(before, after, "{name}");
    }
}

#[test]
fn members_that_inform_change_nothing() {
    for (name, base, change) in INFORMATIVE {
        let mut m = base();
        let before = shown(&m).unwrap();
        let stored = freeze(&m).unwrap().data;
        change(&mut m);
        assert_ne!(freeze(&m).unwrap().data, stored, "{name}: no change");
        assert_eq!(before, shown(&m).unwrap(), "{name}");
    }
}

/// The rebuild of other programs clears the flag and leaves the numbers.
#[test]
fn birth_times_without_the_flag_are_ignored() {
    let mut m = extended();
    options(&mut m).has_btime = false;
    let without = shown(&m).unwrap();
    for inode in &mut m.inodes {
        (inode.btime_offset, inode.btime_subsec) = (0, 0);
    }
    assert_eq!(shown(&m).unwrap(), without);
}

#[test]
fn packed_tables_show_the_same() {
    let before = shown(&plain()).unwrap();
    assert_eq!(shown(&compact()).unwrap(), before);
    let mut packed = plain();
    packed.pack(&redwarfs_format::metadata::Packing {
        chunk_table: true,
        directories: true,
        shared_files: true,
        ..redwarfs_format::metadata::Packing::none()
    });
    assert_eq!(shown(&packed).unwrap(), before);
}

/// Targets have `/` between their components, whatever the image has, and keep their length.
#[test]
fn targets_have_the_separator_of_the_host() {
    let target = |m: &Metadata| {
        let frozen = freeze(m).unwrap();
        let view = MetadataView::parse(&frozen.schema, frozen.data).unwrap();
        let link = InodeNo(2);
        let target = view.symlink(link).unwrap().into_owned();
        assert_eq!(view.stat(link).unwrap().size, target.len() as u64);
        // What is stored stays what it is.
        assert_eq!(*view.target_string(1).unwrap(), *b"sub\\d");
        (view.preferred_path_separator(), target)
    };
    for mut m in [plain(), compact()] {
        assert_eq!(target(&m), (b'\\', b"sub/d".to_vec()));
        m.preferred_path_separator = Some(u32::from(b'u'));
        assert_eq!(target(&m), (b'u', b"s/b\\d".to_vec()));
        for none in [None, Some(47), Some(0x80), Some(0x15c), Some(u32::MAX)] {
            m.preferred_path_separator = none;
            assert_eq!(target(&m), (b'/', b"sub\\d".to_vec()), "{none:?}");
        }
    }
}

/// What informs can be asked for.
#[test]
fn what_informs_is_readable() {
    let frozen = freeze(&plain()).unwrap();
    let view = MetadataView::parse(&frozen.schema, frozen.data).unwrap();
    assert_eq!(view.totals().hardlink_size, 11);
    assert_eq!(view.dwarfs_version(), Some(&b"someone"[..]));
    assert_eq!(view.create_timestamp(), Some(1_700_000_000));
    let names = view.category_names().unwrap().unwrap();
    let category = view.block_category(BlockNo(1)).unwrap().unwrap();
    assert_eq!(names[category.0 as usize], b"noise");
    let object = view.block_metadata(BlockNo(1)).unwrap();
    assert_eq!(object, Some(b"{\"a\":1}".to_vec()));
    assert_eq!(
        view.thaw().unwrap().metadata_version_history,
        plain().metadata_version_history
    );
}
