//! Builds images of trees in memory and compares what comes back.

#![allow(unreachable_pub)]

pub mod trees;

use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use redwarfs_codec::CompressionId;
use redwarfs_format::BlockNo;
use redwarfs_format::metadata::Extent;
use redwarfs_io::MemorySource;
use redwarfs_reader::{CheckOptions, Image, OpenOptions, VerifyMode};
use redwarfs_writer::{
    BuildOptions, BuildSummary, Builder, FileType, MemoryExtent, MemoryNode, MemoryTree,
    SilentProgress, Source, Timestamp,
};

pub fn build(options: &BuildOptions, source: &dyn Source) -> (Vec<u8>, BuildSummary) {
    let mut bytes = Vec::new();
    let progress = SilentProgress::default();
    let summary = Builder::new(options.clone())
        .build(source, &mut bytes, &progress, &AtomicBool::new(false))
        .unwrap();
    assert_eq!(summary.image_size, bytes.len() as u64);
    (bytes, summary)
}

/// Opens an image with the full check, and verifies all hashes.
pub fn open(bytes: Vec<u8>) -> Image {
    let mut options = OpenOptions::default();
    options.check = true;
    let image = Image::from_source(Arc::new(MemorySource::new(bytes)), &options).unwrap();
    let sizes: Vec<u64> = (0..image.container().block_count())
        .map(|b| image.decode_block(BlockNo(b)).unwrap().len() as u64)
        .collect();
    image
        .metadata()
        .check(image.container().block_count(), Some(&sizes))
        .unwrap();
    for mode in [VerifyMode::Fast, VerifyMode::Integrity] {
        let mut options = CheckOptions::default();
        options.mode = mode;
        let report = image.check_sections(&options).unwrap();
        assert!(report.is_ok(), "{:?}", report.findings);
    }
    image
}

/// Category and compression of every block.
pub fn blocks(image: &Image) -> Vec<(String, CompressionId)> {
    let view = image.metadata();
    let names = view.category_names().unwrap().unwrap_or_default();
    (0..image.container().block_count())
        .map(|number| {
            let block = BlockNo(number);
            let category = view.block_category(block).unwrap().unwrap();
            let name = String::from_utf8(names[category.index()].clone()).unwrap();
            // Blocks come first, so that their numbers are those of the sections.
            let read = |at, buf: &mut [u8]| image.source().read_exact_at(at, buf);
            let section = image.container().load_header(&read, number).unwrap();
            (name, section.compression.unwrap())
        })
        .collect()
}

pub fn dense(pieces: &[MemoryExtent]) -> Vec<u8> {
    let mut out = Vec::new();
    for piece in pieces {
        match piece {
            MemoryExtent::Data(data) => out.extend_from_slice(data),
            MemoryExtent::Hole(size) => out.resize(out.len() + *size as usize, 0),
        }
    }
    out
}

pub fn contents(image: &Image, inode: redwarfs_format::InodeNo) -> Vec<u8> {
    let mut data = vec![0xa5; image.stat(inode).unwrap().size as usize];
    assert_eq!(image.read_at(inode, 0, &mut data).unwrap(), data.len());
    data
}

fn rounded(time: Timestamp, resolution: u64) -> (i64, u32) {
    if resolution >= 1_000_000_000 {
        let unit = (resolution / 1_000_000_000) as i64;
        (time.sec.div_euclid(unit) * unit, 0)
    } else {
        (time.sec, time.nsec / resolution as u32 * resolution as u32)
    }
}

/// The change of permissions that the tests ask for.
pub fn chmod(mode: u32) -> u32 {
    (mode & !0o7022) | 0o400
}

/// Paths that options keep in the image.
fn stored_paths<'t>(
    tree: &'t MemoryTree,
    options: &BuildOptions,
) -> BTreeMap<&'t [u8], &'t MemoryNode> {
    let mut paths: BTreeMap<&[u8], _> = tree
        .iter()
        .filter(|(_, node)| match node.meta.kind {
            FileType::CharDevice | FileType::BlockDevice => options.with_devices,
            FileType::Fifo | FileType::Socket => options.with_specials,
            _ => true,
        })
        .collect();
    if options.remove_empty_dirs {
        let mut used = HashSet::from([&b""[..]]);
        for (&path, node) in &paths {
            if node.meta.kind != FileType::Directory {
                let slashes = path.iter().enumerate().filter(|(_, b)| **b == b'/');
                used.extend(slashes.map(|(at, _)| &path[..at]));
            }
        }
        paths.retain(|path, node| node.meta.kind != FileType::Directory || used.contains(path));
    }
    paths
}

/// Data and holes of a file as the image must have them: lengths, in turn, holes first.
fn map_of(extents: impl IntoIterator<Item = (bool, u64)>) -> Vec<u64> {
    let mut map = vec![0];
    for (hole, size) in extents.into_iter().filter(|(_, size)| *size > 0) {
        if hole != (map.len() % 2 == 1) {
            map.push(0);
        }
        *map.last_mut().unwrap() += size;
    }
    map
}

fn expected_map(node: &MemoryNode, options: &BuildOptions) -> Vec<u64> {
    if options.hollow {
        return map_of([(true, node.meta.size)]);
    }
    map_of(node.pieces.iter().map(|piece| match piece {
        MemoryExtent::Data(data) => (false, data.len() as u64),
        MemoryExtent::Hole(size) => (options.sparse, *size),
    }))
}

/// Compares an image with the tree that it was made from.
pub fn compare(image: &Image, tree: &MemoryTree, options: &BuildOptions) {
    let expected = stored_paths(tree, options);
    let found: BTreeMap<Vec<u8>, _> = image
        .walk()
        .map(|entry| {
            let entry = entry.unwrap();
            (entry.path.clone(), entry.inode)
        })
        .collect();
    let names = |paths: Vec<&[u8]>| paths.into_iter().map(<[u8]>::to_vec).collect::<Vec<_>>();
    assert_eq!(
        found.keys().cloned().collect::<Vec<_>>(),
        names(expected.keys().copied().collect()),
        "paths"
    );
    let mut links: HashMap<(u64, u64), Vec<_>> = HashMap::new();
    for (path, node) in &expected {
        if node.meta.kind == FileType::Regular && node.meta.nlink > 1 {
            links
                .entry(node.meta.identity)
                .or_default()
                .push(found[*path]);
        }
    }
    // Equal contents are stored once, with the holes of one of their files.
    let mut maps: HashMap<u32, Vec<Vec<u64>>> = HashMap::new();
    for (path, node) in &expected {
        if node.meta.kind == FileType::Regular {
            let content = image.metadata().content_id(found[*path]).unwrap();
            let maps = maps.entry(content).or_default();
            maps.push(expected_map(node, options));
        }
    }
    let (mut size, mut allocated, mut hardlinks) = (0u64, 0u64, 0u64);
    let mut seen = HashSet::new();
    for (path, node) in &expected {
        let inode = found[*path];
        let stat = image.stat(inode).unwrap();
        let meta = &node.meta;
        assert_eq!(image.metadata().file_type(inode).unwrap(), meta.kind);
        let permissions = match options.chmod {
            Some(_) => chmod(meta.permissions),
            None => meta.permissions,
        };
        assert_eq!(stat.mode, meta.kind.mode_bits() | permissions);
        assert_eq!(stat.uid, options.set_owner.unwrap_or(meta.uid));
        assert_eq!(stat.gid, options.set_group.unwrap_or(meta.gid));
        let resolution = options.time_resolution.nanos();
        let expect = |time: Timestamp| match options.set_time {
            Some(sec) => rounded(Timestamp { sec, nsec: 0 }, resolution),
            None => rounded(time, resolution),
        };
        let stored = |t: redwarfs_format::metadata::Timestamp| (t.sec, t.nsec);
        assert_eq!(stored(stat.mtime), expect(meta.mtime));
        let others = if options.keep_all_times {
            (meta.atime, meta.ctime)
        } else {
            (meta.mtime, meta.mtime)
        };
        assert_eq!(
            (stored(stat.atime), stored(stat.ctime)),
            (expect(others.0), expect(others.1))
        );
        match meta.kind {
            FileType::Symlink => {
                let target = meta.target.clone().unwrap();
                size += target.len() as u64;
                allocated += target.len() as u64;
                assert_eq!(image.read_link(inode).unwrap(), target);
            }
            FileType::CharDevice | FileType::BlockDevice => assert_eq!(stat.rdev, meta.rdev),
            FileType::Regular => {
                let data = if options.hollow {
                    vec![0; meta.size as usize]
                } else {
                    dense(&node.pieces)
                };
                assert!(contents(image, inode) == data, "content of {path:?}");
                if seen.insert(inode) {
                    size += data.len() as u64;
                    allocated += stat.allocated;
                    hardlinks += data.len() as u64 * u64::from(stat.nlink - 1);
                }
                let group = links.get(&meta.identity).filter(|_| meta.nlink > 1);
                assert_eq!(stat.nlink as usize, group.map_or(1, Vec::len));
                assert!(group.is_none_or(|group| group.iter().all(|&i| i == inode)));
                let extents: Vec<Extent> = image
                    .metadata()
                    .extents(inode)
                    .unwrap()
                    .map(|e| e.unwrap())
                    .collect();
                let map = map_of(extents.iter().map(|extent| match extent {
                    Extent::Hole { size } => (true, *size),
                    Extent::Data { size, .. } => (false, u64::from(*size)),
                }));
                let content = image.metadata().content_id(inode).unwrap();
                assert!(maps[&content].contains(&map), "holes of {path:?}: {map:?}");
                let data: u64 = map.iter().skip(1).step_by(2).sum();
                assert_eq!((stat.size, stat.allocated), (map.iter().sum(), data));
            }
            _ => {}
        }
    }
    let totals = image.metadata().totals();
    assert_eq!(
        (totals.size, totals.allocated, totals.hardlink_size),
        (size, allocated, hardlinks)
    );
}
