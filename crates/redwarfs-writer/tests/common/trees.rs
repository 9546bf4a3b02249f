//! Random trees and options.

use proptest::prelude::*;
use redwarfs_format::metadata::Packing;
use redwarfs_writer::{
    BuildOptions, FamilyOptions, FileHash, FileType, HistoryOptions, MemoryExtent, MemoryNode,
    MemoryTree, ModeTransform, NilsimsaOptions, Order, TimeResolution, Timestamp,
};

pub fn noise(seed: u32, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9) | 1;
    (0..len)
        .map(|_| {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            (state >> 24) as u8
        })
        .collect()
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        "[a-d]{1,2}".prop_map(String::into_bytes),
        "\\PC{1,8}".prop_map(String::into_bytes),
        prop::collection::vec(any::<u8>(), 1..10),
        Just(vec![b'x'; 255]),
    ]
    .prop_map(|mut name| {
        for byte in &mut name {
            if *byte == b'/' || *byte == 0 {
                *byte = b'_';
            }
        }
        if name == b"." || name == b".." {
            b"dots".to_vec()
        } else {
            name
        }
    })
}

fn piece() -> impl Strategy<Value = MemoryExtent> {
    prop_oneof![
        4 => (0usize..3000, 1usize..3000).prop_map(|(at, len)| MemoryExtent::Data(noise(1, 6000)[at..at + len].to_vec())),
        1 => (0u8..3, 1usize..6000).prop_map(|(value, len)| MemoryExtent::Data(vec![value; len])),
        1 => (any::<u32>(), 1usize..2000).prop_map(|(seed, len)| MemoryExtent::Data(noise(seed, len))),
        1 => (1u64..100_000).prop_map(MemoryExtent::Hole),
    ]
}

fn time() -> impl Strategy<Value = Timestamp> {
    let sec = prop_oneof![
        1_600_000_000i64..1_700_000_000,
        -100_000i64..100_000,
        -400_000_000_000i64..400_000_000_000
    ];
    (sec, 0u32..1_000_000_000).prop_map(|(sec, nsec)| Timestamp { sec, nsec })
}

#[derive(Debug, Clone)]
enum Kind {
    Dir,
    File(Vec<MemoryExtent>),
    /// Copies the content of, or is a hard link to, an earlier file.
    Again(prop::sample::Index, bool),
    Link(Vec<u8>),
    Device(bool, u64),
    Special(bool),
}

fn kind() -> impl Strategy<Value = Kind> {
    prop_oneof![
        3 => Just(Kind::Dir),
        5 => prop::collection::vec(piece(), 0..4).prop_map(Kind::File),
        3 => (any::<prop::sample::Index>(), any::<bool>()).prop_map(|(i, hard)| Kind::Again(i, hard)),
        2 => prop::collection::vec(1u8.., 1..30).prop_map(Kind::Link),
        1 => (any::<bool>(), any::<u64>()).prop_map(|(block, rdev)| Kind::Device(block, rdev)),
        1 => any::<bool>().prop_map(Kind::Special),
    ]
}

type Entry = (
    prop::sample::Index,
    Vec<u8>,
    Kind,
    (u32, u32, u32),
    [Timestamp; 3],
);

pub fn tree() -> impl Strategy<Value = MemoryTree> {
    let ids = (
        0u32..0o10000,
        prop_oneof![0u32..3, any::<u32>()],
        prop_oneof![0u32..3, any::<u32>()],
    );
    let entry = (
        any::<prop::sample::Index>(),
        name(),
        kind(),
        ids,
        [time(), time(), time()],
    );
    prop::collection::vec(entry, 0..40).prop_map(assemble)
}

fn assemble(entries: Vec<Entry>) -> MemoryTree {
    let mut tree = MemoryTree::new();
    let mut dirs = vec![Vec::new()];
    let mut files: Vec<Vec<u8>> = Vec::new();
    let mut identity = 0u64;
    for (parent, name, kind, (mode, uid, gid), times) in entries {
        let mut path: Vec<u8> = parent.get(&dirs).clone();
        if !path.is_empty() {
            path.push(b'/');
        }
        path.extend_from_slice(&name);
        if tree.get(&path).is_some() {
            continue;
        }
        identity += 1;
        let mut node = match kind {
            Kind::Dir => {
                dirs.push(path.clone());
                MemoryNode::new(FileType::Directory)
            }
            Kind::File(pieces) => {
                files.push(path.clone());
                MemoryNode::sparse(pieces)
            }
            Kind::Again(which, hard) if !files.is_empty() => {
                let other = which.get(&files).clone();
                let mut node = tree.get(&other).unwrap().clone();
                if hard {
                    node.meta.nlink = 2;
                    tree.insert(other, node.clone());
                    files.push(path.clone());
                    tree.insert(path, node);
                    continue;
                }
                node.meta.nlink = 1;
                files.push(path.clone());
                node
            }
            Kind::Again(..) => MemoryNode::file(""),
            Kind::Link(target) => MemoryNode::symlink(target),
            Kind::Device(block, rdev) => {
                let mut node = MemoryNode::new(if block {
                    FileType::BlockDevice
                } else {
                    FileType::CharDevice
                });
                node.meta.rdev = rdev;
                node
            }
            Kind::Special(fifo) => MemoryNode::new(if fifo {
                FileType::Fifo
            } else {
                FileType::Socket
            }),
        };
        node.meta.identity = (1, identity);
        node.meta.permissions = mode;
        node.meta.uid = uid;
        node.meta.gid = gid;
        [node.meta.mtime, node.meta.atime, node.meta.ctime] = times;
        tree.insert(path, node);
    }
    tree
}

pub fn options() -> impl Strategy<Value = BuildOptions> {
    let segment = (10u32..15, 0u32..12, 0u32..9, 0u32..4);
    let codec = prop::sample::select(vec![
        "null",
        "lz4",
        "lz4hc:level=3",
        "zstd:level=3",
        "lzma:level=1",
        "brotli:quality=1",
    ]);
    let order = prop_oneof![
        Just(Order::None),
        Just(Order::Path),
        Just(Order::RevPath),
        Just(Order::Similarity),
        Just(Order::Nilsimsa(NilsimsaOptions::default())),
        (0u32..1001).prop_map(|gain| Order::Versions(FamilyOptions::new(gain))),
        (0u32..1001).prop_map(|gain| Order::Families(FamilyOptions::new(gain))),
        prop::collection::vec(name(), 0..5).prop_map(Order::Explicit),
    ];
    let flags = any::<[bool; 9]>();
    let hash = prop::option::weighted(0.9, prop::sample::select(FileHash::ALL));
    let resolution = prop::sample::select(vec![
        1u64,
        1000,
        100_000_000,
        1_000_000_000,
        2_000_000_000,
        3_600_000_000_000,
    ]);
    let packing = prop_oneof![
        Just(Packing::auto()),
        Just(Packing::none()),
        Just(Packing::plain()),
        Just(Packing::all()),
        any::<[bool; 10]>().prop_map(|p| Packing {
            automatic: p[9],
            chunk_table: p[0],
            directories: p[1],
            shared_files: p[2],
            names: p[3],
            names_index: p[4],
            symlinks: p[5],
            symlinks_index: p[6],
            force: p[7],
            plain: p[8],
        }),
    ];
    let fixed = (
        prop::option::weighted(0.2, any::<u32>()),
        prop::option::weighted(0.2, -10_000i64..2_000_000_000),
        prop::option::weighted(0.3, 0u64..4000),
        prop::option::weighted(0.2, any::<u32>()),
        prop::option::of(0u64..1 << 33),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.2),
        prop::bool::weighted(0.1),
    );
    (
        segment,
        codec,
        order,
        flags,
        hash,
        resolution,
        packing,
        fixed,
        prop::option::of(Just(b"#!/bin/sh\nexit\n".to_vec())),
    )
        .prop_map(
            |(segment, codec, order, flags, hash, resolution, packing, fixed, header)| {
                let chmod;
                let [
                    devices,
                    specials,
                    sparse,
                    times,
                    index,
                    links,
                    history,
                    metadata,
                    command_line,
                ] = flags;
                let mut options = BuildOptions::level(1);
                (
                    options.block_size_bits,
                    options.window_bits,
                    options.window_step,
                    options.lookback,
                ) = segment;
                options.compression = codec.parse().unwrap();
                if metadata {
                    options.metadata_compression = codec.parse().unwrap();
                }
                options.order = order;
                options.file_hash = hash;
                options.time_resolution = TimeResolution::from_nanos(resolution).unwrap();
                options.packing = packing;
                (
                    options.set_owner,
                    options.set_time,
                    options.max_similarity_size,
                    options.set_group,
                    options.create_timestamp,
                    options.remove_empty_dirs,
                    chmod,
                    options.hollow,
                ) = fixed;
                options.chmod = chmod.then(|| ModeTransform::new(super::chmod));
                options.with_devices = devices;
                options.with_specials = specials;
                options.sparse = sparse || options.hollow;
                options.keep_all_times = times;
                options.section_index = index;
                options.hardlink_table = links;
                options.history = history.then(|| {
                    let mut history = HistoryOptions::default();
                    history.arguments = command_line.then(|| vec!["mkdwarfs".to_owned()]);
                    history.timestamp = options.create_timestamp;
                    history
                });
                options.header = header;
                options.workers = 2;
                options
            },
        )
}
