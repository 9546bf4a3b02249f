//! Properties of the metadata code: freezing is lossless, and no damage makes it panic.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, vec};
use proptest::option;
use proptest::prelude::*;
use redwarfs_format::metadata::{
    Chunk, DirEntry, Directory, FsOptions, InodeData, InodeSizeCache, Metadata,
    MetadataHistoryEntry, MetadataView, Packing, StringTable, freeze, thaw,
};
use redwarfs_format::{EntryIndex, InodeNo};

/// Numbers of all magnitudes.
fn any32() -> impl Strategy<Value = u32> {
    (any::<u32>(), 0u32..=32).prop_map(|(n, shift)| n.checked_shr(shift).unwrap_or(0))
}

fn any64() -> impl Strategy<Value = u64> {
    (any::<u64>(), 0u32..=64).prop_map(|(n, shift)| n.checked_shr(shift).unwrap_or(0))
}

fn string() -> impl Strategy<Value = Vec<u8>> {
    vec(any::<u8>(), 0..12)
}

fn options() -> impl Strategy<Value = FsOptions> {
    (any::<[bool; 6]>(), option::of(any32()), option::of(any32())).prop_map(|(b, sec, nsec)| {
        FsOptions {
            mtime_only: b[0],
            time_resolution_sec: sec,
            packed_chunk_table: b[1],
            packed_directories: b[2],
            packed_shared_files_table: b[3],
            subsecond_resolution_nsec_multiplier: nsec,
            has_btime: b[4],
            inodes_have_nlink: b[5],
        }
    })
}

fn table() -> impl Strategy<Value = StringTable> {
    (
        string(),
        option::of(string()),
        vec(any32(), 0..5),
        any::<bool>(),
    )
        .prop_map(|(buffer, symtab, index, packed_index)| StringTable {
            buffer,
            symtab,
            index,
            packed_index,
        })
}

fn inode() -> impl Strategy<Value = InodeData> {
    (any::<[u32; 6]>(), any::<[u64; 8]>(), 0u32..=64).prop_map(|(a, b, shift)| {
        let (a, b) = (
            a.map(|n| n.checked_shr(shift).unwrap_or(0)),
            b.map(|n| n.checked_shr(shift).unwrap_or(0)),
        );
        InodeData {
            mode_index: a[0],
            owner_index: a[1],
            group_index: a[2],
            atime_offset: b[0],
            mtime_offset: b[1],
            ctime_offset: b[2],
            btime_offset: b[3],
            atime_subsec: b[4],
            mtime_subsec: b[5],
            ctime_subsec: b[6],
            btime_subsec: b[7],
            nlink_minus_one: a[3],
            name_index_v2_2: a[4],
            inode_v2_2: a[5],
        }
    })
}

fn tables() -> impl Strategy<Value = Metadata> {
    (
        vec(any::<(u32, u32, u32)>(), 0..5),
        vec(any::<(u32, u32, u32)>(), 0..5),
        vec(inode(), 0..5),
        vec(vec(any32(), 0..6), 6),
        vec(string(), 0..5),
        vec(string(), 0..5),
        any64(),
        any32(),
    )
        .prop_map(
            |(chunks, directories, inodes, lists, names, symlinks, base, block_size)| Metadata {
                chunks: chunks
                    .into_iter()
                    .map(|(block, offset, size)| Chunk {
                        block,
                        offset,
                        size,
                    })
                    .collect(),
                directories: directories
                    .into_iter()
                    .map(|(parent_entry, first_entry, self_entry)| Directory {
                        parent_entry,
                        first_entry,
                        self_entry,
                    })
                    .collect(),
                inodes,
                chunk_table: lists[0].clone(),
                entry_table_v2_2: lists[1].clone(),
                symlink_table: lists[2].clone(),
                uids: lists[3].clone(),
                gids: lists[4].clone(),
                modes: lists[5].clone(),
                names,
                symlinks,
                timestamp_base: base,
                block_size,
                total_fs_size: base.rotate_left(13),
                ..Metadata::default()
            },
        )
}

fn metadata() -> impl Strategy<Value = Metadata> {
    let first = (
        tables(),
        option::of(vec(any64(), 0..4)),
        option::of(options()),
        option::of(vec((any32(), any32()), 0..5)),
        option::of(vec(any32(), 0..4)),
        option::of(string()),
        option::of(table()),
        option::of(table()),
    );
    let second = (
        option::of(any64()),
        option::of(vec(string(), 0..4)),
        option::of((
            btree_map(any32(), any64(), 0..5),
            any64(),
            btree_map(any32(), any64(), 0..3),
        )),
        option::of(btree_map(any32(), any32(), 0..4)),
        option::of(vec(
            (
                any::<(u8, u8)>(),
                option::of(string()),
                any32(),
                option::of(options()),
            ),
            0..4,
        )),
    );
    (first, second).prop_map(|(a, b)| {
        let (mut m, devices, options, entries, shared, version, names, symlinks) = a;
        let (number, strings, cache, map, history) = b;
        m.devices = devices.clone();
        m.options = options;
        m.dir_entries = entries.map(|list| {
            let entry = |(name_index, inode_num)| DirEntry {
                name_index,
                inode_num,
            };
            list.into_iter().map(entry).collect()
        });
        m.shared_files_table = shared.clone();
        m.total_hardlink_size = number;
        m.dwarfs_version = version;
        m.compact_names = names;
        m.compact_symlinks = symlinks;
        m.features = strings
            .clone()
            .map(|s| s.into_iter().collect::<BTreeSet<_>>());
        m.category_names = strings.clone();
        m.block_categories = shared;
        m.reg_file_size_cache = cache.map(
            |(size_lookup, min_chunk_count, allocated_size_lookup)| InodeSizeCache {
                size_lookup,
                min_chunk_count,
                allocated_size_lookup,
            },
        );
        m.category_metadata_json = strings;
        m.block_category_metadata = map.map(|m: BTreeMap<u32, u32>| m);
        m.metadata_version_history = history.map(|list| {
            list.into_iter()
                .map(
                    |((major, minor), dwarfs_version, block_size, options)| MetadataHistoryEntry {
                        major,
                        minor,
                        dwarfs_version,
                        block_size,
                        options,
                    },
                )
                .collect()
        });
        m.hole_block_index = m.dir_entries.as_ref().map(|e| e.len() as u32);
        m.large_hole_size = devices;
        m.total_allocated_fs_size = number;
        m
    })
}

/// Uses everything that a reader could, ignoring errors.
fn exercise(schema: &[u8], data: &[u8]) {
    let _ = thaw(schema, data);
    let Ok(view) = MetadataView::parse(schema, data.to_vec()) else {
        return;
    };
    let _ = view.check(3, Some(&[1000, 1 << 20]));
    let _ = (view.totals(), view.counts(), view.category_names());
    let limit = view.inode_count().min(500);
    for ino in (0..limit)
        .chain([view.inode_count(), u32::MAX])
        .map(InodeNo)
    {
        let _ = (
            view.stat(ino),
            view.file_type(ino),
            view.parent(ino),
            view.symlink(ino),
        );
        let _ = (view.content_id(ino), view.self_entry(ino));
        if let Ok(range) = view.entries(ino) {
            let _ = view.find(ino, b"name");
            for e in range.take(500).map(EntryIndex) {
                if let Ok(name) = view.entry_name(e) {
                    let _ = view.find(ino, &name);
                }
                let _ = (view.entry_inode(e), view.entry_stat(e));
            }
        }
        if let Ok(extents) = view.extents(ino) {
            let _ = extents.get(extents.len());
            for extent in extents.take(500) {
                let _ = extent;
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn freezing_is_lossless(m in metadata()) {
        let frozen = freeze(&m).unwrap();
        prop_assert_eq!(thaw(&frozen.schema, &frozen.data).unwrap(), m);
        exercise(&frozen.schema, &frozen.data);
    }

    #[test]
    fn random_bytes_never_panic(schema in vec(any::<u8>(), 0..200), data in vec(any::<u8>(), 0..100)) {
        exercise(&schema, &data);
    }
}

/// A small generator, so that failures can be repeated from the numbers in the message.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        ((self.0 >> 33) as usize) % n.max(1)
    }
}

fn damage(bytes: &mut Vec<u8>, random: &mut Random) {
    for _ in 0..=random.below(3) {
        if bytes.is_empty() {
            return;
        }
        let at = random.below(bytes.len());
        match random.below(8) {
            0 => bytes.truncate(at),
            1 => bytes[at] = 0xff,
            2 => bytes[at] = 0,
            3 => bytes[at] = bytes[at].wrapping_add(2),
            4 => bytes[at] = bytes[at].wrapping_sub(2),
            5 => bytes[at] = random.below(256) as u8,
            _ => bytes[at] ^= 1 << random.below(8),
        }
    }
}

#[test]
fn damaged_metadata_never_panics() {
    let names = [
        "basic-l1",
        "many-pack-all-force",
        "many-fragmented",
        "one",
        "empty",
    ];
    let mut samples: Vec<(Vec<u8>, Vec<u8>)> = names
        .iter()
        .map(|name| crate::common::one(name))
        .chain(
            crate::common::older()
                .into_iter()
                .filter(|g| g.name.contains("v0.2.3") || g.name.contains("v0.4.1")),
        )
        .map(|g| (g.schema, g.data))
        .collect();
    let mut plain = thaw(&samples[0].0, &samples[0].1).unwrap();
    plain.pack(&Packing::all());
    let frozen = freeze(&plain).unwrap();
    samples.push((frozen.schema, frozen.data));
    for (i, (schema, data)) in samples.iter().enumerate() {
        let mut random = Random(i as u64);
        for round in 0..400 {
            let (mut schema, mut data) = (schema.clone(), data.clone());
            if round % 2 == 0 {
                damage(&mut data, &mut random);
            } else {
                damage(&mut schema, &mut random);
            }
            exercise(&schema, &data);
        }
    }
}

#[test]
fn truncated_metadata_never_panics() {
    let golden = crate::common::one("one");
    for end in 0..golden.data.len() {
        exercise(&golden.schema, &golden.data[..end]);
    }
    for end in 0..golden.schema.len() {
        assert!(MetadataView::parse(&golden.schema[..end], golden.data.clone()).is_err());
    }
}
