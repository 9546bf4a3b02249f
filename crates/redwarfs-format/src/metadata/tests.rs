//! The worked example of the format description (chapters 03 section 8 and 04 section 13).

#![allow(clippy::unwrap_used, reason = "tests")]

use std::sync::Arc;

use super::*;
use crate::error::{Error, Result};
use crate::frozen::{Field, Layout, LazyBytes, Schema};
use crate::ids::{BlockNo, EntryIndex, InodeNo};

const SCHEMA: &str = "111b2d4c001500140a1b0018000002150014041b0018000004150014081b0018000006150014101b\
     024c041404140000061404140700180000081500140e1b034c021400140300041402140000061406\
     1400001800000a150014061b001800000c1500140c1b024c04140a14000006140a1405001800000e\
     1500140e1b034c02140014030004140214000006140c140000180000101500140c1b024c04140214\
     00000e140414030018000012150014101b034c02140014050004140a140000061410140000180000\
     141500140c1b0018000016150014101b034c02141414030004140214000006140214000018000018\
     150014021b001800001a150014021b014c0414181400001800001c150014141b001800001e150014\
     0e1b034c02141414010004141814000006141c140000180000201500140e1b00180000221500140e\
     1b034c02141414010004141814000006142014000018000024150014201b0018000026150014101b\
     034c021414140300041402140000061424140000180000281500143e1b001800002a1500142a1b00\
     1800002c150014021b014c0214181400001800002e150014041b024c021418140000101418140100\
     18000030150014061b024c02141814000004142e140100180000321500140c1b024c02140a140000\
     04140a14050018000034150014121b034c02141414050004140a1400000614321400001800003615\
     0014141b024c02141814000004143414010018000038150014041b014c0414021400001800003a15\
     0014061b024c0214181400000414381401001800003c150014181b024c021414140000041414140b\
     001800003e1500141a1b024c02141814000004143c14010018000040150014181b024c0214201400\
     00041400140d0018000042150014141b034c02142014050004140a14000006140014000018000044\
     1500142c1b024c021440140000061442141700180000461500142e1b024c02141814000004144414\
     010018000048150014141b024c02142014000004140a140d001800004a150014101b001800004c15\
     0014141b034c02144a14030004140214000006140a1400001800004e150014281b024c0214481400\
     0006144c141300180000501500142a1b024c02141814000004144e140100180000521500140e1b02\
     4c02141814000004141414010018000054150014101b014c04144a14000018000056150014121b02\
     4c0214181400000414541401001800005815341492031b154c02140814000004140e140d00061412\
     141b00081416142b000c141a143b000e141e143d00101422144b001214261459001814281469001e\
     142a14a7010020140014d1010022142c14db010024143014dd010026143614e3010028143a14f701\
     002c143e14fd01003014461497020032145014c5020034145214ef020036142c14fd02003c145614\
     ff02001800001458150200";

const DATA: &str = "eab9ffe4e573141040b20c0000f9b7dbf35b6c8dcfaf81df0101b06b416900042294550924e80364\
     ed41a481ffa100a84d4c0a6c69626477617266732076302e31352e332d31332d6765303436356139\
     333533206f6e206272616e6368206d61696e612e747874622e747874632e7478746c696e6b737562\
     a0a8372d612e747874280000000000000000";

fn bytes(hex: &str) -> Vec<u8> {
    hex.as_bytes()
        .chunks(2)
        .map(|pair| u8::from_str_radix(std::str::from_utf8(pair).unwrap(), 16).unwrap())
        .collect()
}

fn table(strings: &[&str]) -> StringTable {
    let strings: Vec<&[u8]> = strings.iter().map(|s| s.as_bytes()).collect();
    build_string_table(
        &strings,
        StringPacking {
            compress: Compress::IfSmaller,
            pack_index: false,
        },
    )
}

fn example() -> Metadata {
    let inode = |mode_index, mtime_offset| InodeData {
        mode_index,
        mtime_offset,
        ..InodeData::default()
    };
    let entry = |name_index, inode_num| DirEntry {
        name_index,
        inode_num,
    };
    Metadata {
        chunks: vec![
            Chunk {
                block: 0,
                offset: 0,
                size: 11,
            },
            Chunk {
                block: 0,
                offset: 11,
                size: 6,
            },
        ],
        directories: vec![
            Directory {
                parent_entry: 0,
                first_entry: 1,
                self_entry: 0,
            },
            Directory {
                parent_entry: 0,
                first_entry: 5,
                self_entry: 4,
            },
            Directory {
                parent_entry: 0,
                first_entry: 6,
                self_entry: 0,
            },
        ],
        inodes: vec![
            inode(0, 1),
            inode(0, 2),
            inode(2, 0),
            inode(1, 9),
            inode(1, 5),
            inode(1, 9),
        ],
        chunk_table: vec![0, 1, 2],
        symlink_table: vec![0],
        uids: vec![1000],
        gids: vec![100],
        modes: vec![0o040_755, 0o100_644, 0o120_777],
        timestamp_base: 1_704_067_200,
        block_size: 1 << 20,
        total_fs_size: 28,
        devices: Some(Vec::new()),
        options: Some(FsOptions {
            mtime_only: true,
            inodes_have_nlink: true,
            ..FsOptions::default()
        }),
        dir_entries: Some(vec![
            entry(0, 0),
            entry(0, 4),
            entry(2, 3),
            entry(3, 2),
            entry(4, 1),
            entry(1, 5),
        ]),
        shared_files_table: Some(vec![0, 0]),
        dwarfs_version: Some(b"libdwarfs v0.15.3-13-ge0465a9353 on branch main".to_vec()),
        compact_names: Some(table(&["a.txt", "b.txt", "c.txt", "link", "sub"])),
        compact_symlinks: Some(table(&["a.txt"])),
        preferred_path_separator: Some(47),
        features: Some(std::collections::BTreeSet::new()),
        reg_file_size_cache: Some(InodeSizeCache {
            min_chunk_count: 128,
            ..InodeSizeCache::default()
        }),
        ..Metadata::default()
    }
}

#[test]
fn freezing_yields_the_listed_bytes() {
    let frozen = freeze(&example()).unwrap();
    assert_eq!(frozen.data, bytes(DATA));
    assert_eq!(frozen.schema, bytes(SCHEMA));
    assert_eq!(thaw(&frozen.schema, &frozen.data).unwrap(), example());
}

#[test]
fn the_view_shows_the_listed_files() {
    let view = MetadataView::parse(&bytes(SCHEMA), bytes(DATA)).unwrap();
    view.check(1, Some(&[17])).unwrap();
    assert!(view.check(0, None).is_err(), "the block does not exist");
    assert!(
        view.check(1, Some(&[16])).is_err(),
        "the block is too short"
    );
    assert_eq!(view.thaw().unwrap(), example());
    let counts = view.counts();
    assert_eq!(
        (counts.directories, counts.symlinks, counts.files),
        (2, 1, 3)
    );
    assert_eq!(
        (counts.unique_files, counts.shared_files, counts.contents),
        (1, 2, 2)
    );
    let root = view.entries(InodeNo::ROOT).unwrap();
    assert_eq!(root, 1..5);
    let e = view.find(InodeNo::ROOT, b"c.txt").unwrap().unwrap();
    let ino = view.entry_inode(e).unwrap();
    assert_eq!((e, ino), (EntryIndex(2), InodeNo(3)));
    let stat = view.stat(ino).unwrap();
    assert_eq!(
        (stat.mode, stat.size, stat.nlink, stat.blocks()),
        (0o100_644, 11, 1, 1)
    );
    assert_eq!(
        (stat.uid, stat.gid, stat.mtime.sec),
        (1000, 100, 1_704_067_209)
    );
    let extents: Vec<_> = view
        .extents(InodeNo(5))
        .unwrap()
        .map(|e| e.unwrap())
        .collect();
    assert_eq!(
        extents,
        [Extent::Data {
            block: BlockNo(0),
            offset: 11,
            size: 6
        }]
    );
    assert_eq!(
        view.content_id(InodeNo(4)).unwrap(),
        view.content_id(InodeNo(5)).unwrap()
    );
    assert_eq!(view.symlink(InodeNo(2)).unwrap().as_ref(), b"a.txt");
    assert_eq!(view.find(InodeNo::ROOT, b"b.txt").unwrap(), None);
    assert_eq!(
        view.find(InodeNo(1), b"b.txt").unwrap(),
        Some(EntryIndex(5))
    );
    assert_eq!(view.parent(InodeNo(1)).unwrap(), InodeNo::ROOT);
    assert_eq!(view.totals().size, 28);
    assert!(view.stat(InodeNo(6)).is_err());
    assert!(view.entries(InodeNo(2)).is_err());
}

#[test]
fn holes_times_and_links_follow_the_description() {
    let mut m = example();
    m.hole_block_index = Some(1);
    m.features = Some([b"sparsefiles".to_vec()].into());
    m.large_hole_size = Some(vec![1 << 40]);
    m.chunks = vec![
        Chunk {
            block: 0,
            offset: 0,
            size: 17,
        },
        Chunk {
            block: 1,
            offset: 5,
            size: 3,
        },
        Chunk {
            block: 1,
            offset: u32::MAX,
            size: 0,
        },
    ];
    m.chunk_table = vec![0, 2, 3];
    m.timestamp_base = (-10_i64).cast_unsigned();
    m.options = Some(FsOptions {
        subsecond_resolution_nsec_multiplier: Some(1000),
        ..FsOptions::default()
    });
    m.inodes[3].atime_offset = 12;
    m.inodes[3].mtime_subsec = 999_999;
    if let Some(entries) = &mut m.dir_entries {
        entries[5].inode_num = 3;
    }
    let frozen = freeze(&m).unwrap();
    let view = MetadataView::parse(&frozen.schema, frozen.data).unwrap();
    view.check(1, None).unwrap();
    let stat = view.stat(InodeNo(3)).unwrap();
    assert_eq!((stat.size, stat.allocated), (17 + (3 << 20) + 5, 17));
    assert_eq!((stat.nlink, view.stat(InodeNo(4)).unwrap().nlink), (2, 1));
    assert_eq!(
        stat.mtime,
        Timestamp {
            sec: -1,
            nsec: 999_999_000
        }
    );
    assert_eq!(stat.atime, Timestamp { sec: 2, nsec: 0 });
    let stat = view.stat(InodeNo(5)).unwrap();
    assert_eq!((stat.size, stat.allocated, stat.blocks()), (1 << 40, 0, 0));
}

#[test]
fn defects_are_found() {
    type Break = fn(&mut Metadata);
    let cases: &[(&str, Break)] = &[
        ("root twice", |m| {
            m.dir_entries.as_mut().unwrap()[5].inode_num = 0;
        }),
        ("directory twice", |m| {
            m.dir_entries.as_mut().unwrap()[5].inode_num = 1;
        }),
        ("inode", |m| {
            m.dir_entries.as_mut().unwrap()[5].inode_num = 6;
        }),
        ("name index", |m| {
            m.dir_entries.as_mut().unwrap()[5].name_index = 5;
        }),
        ("name order", |m| {
            m.dir_entries.as_mut().unwrap()[1].name_index = 4;
        }),
        ("mode index", |m| m.inodes[4].mode_index = 3),
        ("inode order", |m| m.inodes[4].mode_index = 2),
        ("file type", |m| m.modes[1] = 0o644),
        ("owner index", |m| m.inodes[4].owner_index = 1),
        ("sentinel", |m| m.directories[2].first_entry = 5),
        ("first entry", |m| m.directories[1].first_entry = 7),
        ("self entry", |m| m.directories[1].self_entry = 3),
        ("parent entry", |m| m.directories[1].parent_entry = 4),
        ("directories", |m| m.directories.truncate(2)),
        ("chunk table", |m| m.chunk_table[2] = 1),
        ("chunk table order", |m| m.chunk_table = vec![1, 0, 2]),
        ("shared files", |m| m.shared_files_table = Some(vec![0, 1])),
        ("shared gap", |m| m.shared_files_table = Some(vec![1, 1])),
        ("shared unset", |m| m.shared_files_table = None),
        ("block", |m| m.chunks[0].block = 1),
        ("chunk end", |m| m.chunks[0].size = (1 << 20) + 1),
        ("empty chunk", |m| m.chunks[0].size = 0),
        ("block size", |m| m.block_size = 3 << 19),
        ("holes without feature", |m| m.hole_block_index = Some(1)),
        ("both name tables", |m| m.names = vec![b"a".to_vec()]),
        ("no compact table", |m| m.compact_names = None),
        ("name", |m| {
            m.compact_names = Some(table(&["a.txt", "b.txt", "c/txt", "link", "sub"]));
        }),
        ("empty target", |m| m.compact_symlinks = Some(table(&[""]))),
        ("symlink", |m| m.symlink_table[0] = 1),
        ("devices", |m| m.devices = Some(vec![1])),
        ("size cache", |m| {
            let cache = m.reg_file_size_cache.as_mut().unwrap();
            cache.min_chunk_count = 1;
            cache.size_lookup.insert(1, 7);
        }),
        ("block categories", |m| m.block_categories = Some(vec![0])),
        ("resolution", |m| {
            m.options.as_mut().unwrap().time_resolution_sec = Some(0);
        }),
    ];
    for (name, break_it) in cases {
        let mut m = example();
        break_it(&mut m);
        let frozen = freeze(&m).unwrap();
        let result =
            MetadataView::parse(&frozen.schema, frozen.data).and_then(|v| v.check(1, None));
        assert!(
            matches!(result, Err(crate::Error::Corrupt { .. })),
            "{name}: {result:?}"
        );
    }
    let mut m = example();
    m.features = Some([b"sparsefiles".to_vec(), b"telepathy".to_vec()].into());
    let frozen = freeze(&m).unwrap();
    let error = MetadataView::parse(&frozen.schema, frozen.data).unwrap_err();
    assert_eq!(
        error.to_string(),
        "unsupported: the image uses unknown features: telepathy"
    );
}

#[test]
fn a_cycle_is_found() {
    // Directories 1 and 2 are inside each other.
    let mut m = example();
    m.inodes.insert(2, m.inodes[1]);
    let directory = |parent_entry, first_entry, self_entry| Directory {
        parent_entry,
        first_entry,
        self_entry,
    };
    m.directories = vec![
        directory(0, 1, 0),
        directory(5, 4, 7),
        directory(7, 6, 5),
        directory(0, 8, 0),
    ];
    let entry = |name_index, inode_num| DirEntry {
        name_index,
        inode_num,
    };
    let entries = [
        (0, 0),
        (0, 5),
        (2, 4),
        (3, 3),
        (1, 6),
        (4, 2),
        (0, 6),
        (4, 1),
    ];
    m.dir_entries = Some(entries.map(|(name, inode)| entry(name, inode)).to_vec());
    for packed in [false, true] {
        if packed {
            m.pack(&Packing {
                directories: true,
                ..Packing::none()
            });
        }
        let frozen = freeze(&m).unwrap();
        let view = MetadataView::parse(&frozen.schema, frozen.data).unwrap();
        let error = view.check(1, None).unwrap_err();
        assert!(error.to_string().contains("inside itself"), "{error}");
    }
}

/// Widens and reorders: every member at byte offsets, elements byte-sized.
fn widen(layout: &Layout, schema: &Schema, out: &mut Vec<Layout>, list: bool, depth: u32) -> u16 {
    let mut fields = Vec::new();
    let mut at = 0u32;
    for field in layout.fields.iter().rev() {
        let inner = &schema.layouts[usize::from(field.layout_id)];
        let id = widen(inner, schema, out, depth > 0 && field.id == 3, depth + 1);
        fields.push(Field {
            id: field.id,
            layout_id: id,
            offset: i16::try_from(at).unwrap(),
        });
        at += u32::from(out[usize::from(id)].bits).div_ceil(8);
    }
    fields.sort_by_key(|f| f.id);
    let bits = if layout.fields.is_empty() {
        layout.bits.max(8)
    } else {
        u16::try_from(at * 8).unwrap()
    };
    let size = if list { u32::from(bits).div_ceil(8) } else { 0 };
    out.push(Layout { size, bits, fields });
    u16::try_from(out.len() - 1).unwrap()
}

#[test]
fn byte_offsets_and_byte_sized_elements_are_read() {
    let chunk = |block, offset, size| Chunk {
        block,
        offset,
        size,
    };
    let m = Metadata {
        chunks: vec![chunk(3, 200, 7), chunk(1, 255, 5)],
        names: vec![b"ab".to_vec(), b"c".to_vec()],
        ..Metadata::default()
    };
    let frozen = freeze(&m).unwrap();
    let narrow = Schema::parse(&frozen.schema).unwrap();
    let mut wide = Schema {
        file_version: 1,
        ..Schema::default()
    };
    let mut layouts = Vec::new();
    wide.root = widen(
        &narrow.layouts[usize::from(narrow.root)],
        &narrow,
        &mut layouts,
        false,
        0,
    );
    wide.layouts = layouts;
    // Distances count from the byte part of the list's own position.
    let root = &wide.layouts[usize::from(wide.root)];
    let offset = |l: &Layout, id| {
        l.field(id)
            .map(|f| (usize::try_from(f.offset).unwrap(), usize::from(f.layout_id)))
            .unwrap()
    };
    let mut data = vec![0u8; usize::from(root.bits / 8)];
    let areas = data.len();
    for (member, count, distance) in [(1, 2u8, areas), (10, 2, areas + 6)] {
        let (at, list) = offset(root, member);
        let list = &wide.layouts[list];
        data[at + offset(list, 2).0] = count;
        data[at + offset(list, 1).0] = u8::try_from(distance - at).unwrap();
    }
    let chunk = &wide.layouts[offset(&wide.layouts[offset(root, 1).1], 3).1];
    assert_eq!(chunk.size, 3);
    for c in &m.chunks {
        let mut element = [0u8; 3];
        for (id, value) in [(1, c.block), (2, c.offset), (3, c.size)] {
            element[offset(chunk, id).0] = u8::try_from(value).unwrap();
        }
        data.extend(element);
    }
    let name = &wide.layouts[offset(&wide.layouts[offset(root, 10).1], 3).1];
    assert_eq!(name.size, 2);
    // Distances of byte-sized strings count from their own element.
    for (count, distance) in [(2u8, 4u8), (1, 4)] {
        let mut element = [0u8; 2];
        element[offset(name, 1).0] = distance;
        element[offset(name, 2).0] = count;
        data.extend(element);
    }
    data.extend_from_slice(b"abc\0\0\0\0\0\0\0\0");
    assert_eq!(thaw(&wide.encode(), &data).unwrap(), m);
    assert_eq!(thaw(&wide.encode_legacy(), &data).unwrap(), m);
}

#[test]
fn strings_that_share_their_bytes_are_not_multiplied() {
    let mut strings = vec![vec![b'a'; 500]];
    strings.resize(30, b"b".to_vec());
    let m = Metadata {
        category_names: Some(strings),
        ..Metadata::default()
    };
    let frozen = freeze(&m).unwrap();
    assert_eq!(thaw(&frozen.schema, &frozen.data).unwrap(), m);
    let mut schema = Schema::parse(&frozen.schema).unwrap();
    // category_names, its value, its elements: without width, all of them are the first one.
    let mut at = usize::from(schema.root);
    for id in [28, 2, 3] {
        at = usize::from(schema.layouts[at].field(id).unwrap().layout_id);
    }
    assert!(schema.layouts[at].bits > 0);
    schema.layouts[at].bits = 0;
    let e = thaw(&schema.encode(), &frozen.data).unwrap_err();
    assert!(e.to_string().contains("overlap"), "{e}");
}

/// The metadata as bytes that are all there, and as bytes that are loaded when they are needed.
fn both_ways(metadata: &Metadata) -> [Result<MetadataView>; 2] {
    let frozen = freeze(metadata).unwrap();
    let data: Arc<[u8]> = frozen.data.clone().into();
    let lazy = LazyBytes::new(data.len(), move |range| Ok(data[range].into()));
    [
        MetadataView::parse(&frozen.schema, frozen.data),
        MetadataView::parse(&frozen.schema, lazy),
    ]
}

#[test]
fn packed_tables_that_are_wrong_are_errors_of_opening_or_of_using() {
    type Use = fn(&MetadataView) -> Result<()>;
    type Change = fn(&mut Metadata);
    fn packed() -> Metadata {
        let mut metadata = example();
        let packing = Packing {
            names: false,
            symlinks: false,
            ..Packing::all()
        };
        metadata.pack(&packing);
        for table in [&mut metadata.compact_names, &mut metadata.compact_symlinks] {
            let table = table.as_mut().unwrap();
            table.index = table.index.windows(2).map(|two| two[1] - two[0]).collect();
            table.packed_index = true;
        }
        metadata
    }
    fn too_long(table: &mut Option<StringTable>) {
        let lengths = &mut table.as_mut().unwrap().index;
        lengths[0] = u32::MAX;
        lengths.push(1);
    }
    let of_directory: [Use; 2] = [
        |view| view.parent(InodeNo(1)).map(drop),
        |view| view.self_entry(InodeNo(0)).map(drop),
    ];
    let entries: Use = |view| view.entries(InodeNo(1)).map(drop);
    let name: Use = |view| view.entry_name(EntryIndex(1)).map(drop);
    let target: Use = |view| {
        let first = view.counts().symlink_offset;
        view.stat(InodeNo(first)).map(drop)
    };
    let chunks: Use = |view| view.content_extents(0).map(drop);
    let all = [
        of_directory[0],
        of_directory[1],
        entries,
        name,
        target,
        chunks,
    ];
    let [whole, lazy] = both_ways(&packed()).map(Result::unwrap);
    for used in all {
        used(&whole).unwrap();
        used(&lazy).unwrap();
    }
    let cases: [(Change, &[usize]); 6] = [
        (
            |m| {
                m.chunk_table[0] = u32::MAX;
                m.chunk_table[1] = 1;
            },
            &[5],
        ),
        (
            |m| {
                m.directories[0].first_entry = u32::MAX;
                m.directories[1].first_entry = 1;
            },
            &[0, 1, 2],
        ),
        (
            |m| m.dir_entries.as_mut().unwrap()[1].inode_num = 0,
            &[0, 1],
        ),
        (
            |m| {
                for entry in m.dir_entries.as_mut().unwrap() {
                    entry.inode_num = entry.inode_num.max(2);
                }
            },
            &[0, 1],
        ),
        (|m| too_long(&mut m.compact_names), &[3]),
        (|m| too_long(&mut m.compact_symlinks), &[4]),
    ];
    for (case, (change, fails)) in cases.into_iter().enumerate() {
        let mut metadata = packed();
        change(&mut metadata);
        let [whole, lazy] = both_ways(&metadata);
        assert!(matches!(whole, Err(Error::Corrupt { .. })), "{case}");
        let lazy = lazy.unwrap();
        for _ in 0..2 {
            for (number, used) in all.into_iter().enumerate() {
                let result = used(&lazy);
                let expected = fails.contains(&number);
                assert_eq!(result.is_err(), expected, "{case} {number} {result:?}");
                if let Err(e) = result {
                    assert!(matches!(e, Error::Corrupt { .. }), "{e}");
                }
            }
        }
        let checked = lazy.check(1, None);
        assert!(matches!(checked, Err(Error::Corrupt { .. })), "{case}");
    }
}
