//! Any tree, written as an archive, makes the image of the tree.

use std::collections::{BTreeMap, HashMap};
use std::sync::atomic::AtomicBool;

use crate::common::{Header, Log, padded, pax};
use proptest::prelude::*;
use redwarfs_archive::{ArchiveOptions, read_stream};
use redwarfs_format::device::makedev;
use redwarfs_writer::{
    BuildOptions, Builder, FileType, MemoryExtent, MemoryNode, MemoryTree, Source, TimeResolution,
    Timestamp,
};

/// An entry to be: where it goes, what it is, and its attributes.
#[derive(Debug, Clone)]
struct Wanted {
    names: Vec<u8>,
    kind: u8,
    permissions: u32,
    owner: u32,
    sec: i64,
    nsec: u32,
    size: usize,
    seed: u8,
}

fn wanted() -> impl Strategy<Value = Wanted> {
    (
        proptest::collection::vec(0..5u8, 1..4),
        0..10u8,
        0..0o10000u32,
        prop_oneof![0..3u32, Just(3_000_000)],
        prop_oneof![0..2_000_000_000i64, -1000..1000i64],
        prop_oneof![Just(0u32), 1..1_000_000_000u32],
        0..5000usize,
        any::<u8>(),
    )
        .prop_map(
            |(names, kind, permissions, owner, sec, nsec, size, seed)| Wanted {
                names,
                kind,
                permissions,
                owner,
                sec,
                nsec,
                size,
                seed,
            },
        )
}

const NAMES: [&[u8]; 5] = [b"a", b"bb", b"\xff", b"with space", &[b'n'; 120]];

fn data(wanted: &Wanted) -> Vec<u8> {
    let bytes = (0..wanted.size).map(|i| (i as u8 / 16).wrapping_mul(wanted.seed));
    bytes.collect()
}

/// The tree, and its archive with entries in the order in which they come.
fn both(all: &[Wanted]) -> (MemoryTree, Vec<u8>) {
    let mut nodes: BTreeMap<Vec<u8>, MemoryNode> = BTreeMap::new();
    let mut archive = Vec::new();
    let mut files: Vec<Vec<u8>> = Vec::new();
    let mut newest: Option<Timestamp> = None;
    for (number, wanted) in all.iter().enumerate() {
        let names: Vec<&[u8]> = wanted
            .names
            .iter()
            .map(|&n| NAMES[usize::from(n)])
            .collect();
        let path = names.join(&b'/');
        // Only what is not there yet, and not below something that is no directory.
        let above = (1..names.len()).map(|end| names[..end].join(&b'/'));
        let usable = above.clone().all(|path| {
            nodes
                .get(&path)
                .is_none_or(|node| node.meta.kind == FileType::Directory)
        });
        let there = nodes.contains_key(&path);
        if there || !usable {
            continue;
        }
        for path in above {
            nodes.entry(path).or_insert_with(|| {
                let mut node = MemoryNode::new(FileType::Directory);
                // Filled in below: the time of an implied directory.
                node.meta.identity = (1, 0);
                node
            });
        }
        let mtime = Timestamp {
            sec: wanted.sec,
            nsec: wanted.nsec,
        };
        let target = files.last().cloned();
        let (flag, mut node, stored, link) = match (wanted.kind, target) {
            (0, _) => (
                b'5',
                MemoryNode::new(FileType::Directory),
                Vec::new(),
                Vec::new(),
            ),
            (1, _) => {
                let to = vec![b't'; 1 + wanted.size % 200];
                (b'2', MemoryNode::symlink(to.clone()), Vec::new(), to)
            }
            (2, _) => (
                b'6',
                MemoryNode::new(FileType::Fifo),
                Vec::new(),
                Vec::new(),
            ),
            (3, _) => {
                let mut node = MemoryNode::new(FileType::CharDevice);
                node.meta.rdev = makedev(8, 300);
                (b'3', node, Vec::new(), Vec::new())
            }
            (4, Some(target)) => (b'1', nodes[&target].clone(), Vec::new(), target),
            (5, _) => {
                let bytes = [vec![1; 600], vec![2; 700]].concat();
                let node = MemoryNode::sparse(vec![
                    MemoryExtent::Hole(5000),
                    MemoryExtent::Data(bytes[..600].to_vec()),
                    MemoryExtent::Hole(9000),
                    MemoryExtent::Data(bytes[600..].to_vec()),
                    MemoryExtent::Hole(1),
                ]);
                (b'0', node, bytes, Vec::new())
            }
            _ => {
                let bytes = data(wanted);
                (b'0', MemoryNode::file(bytes.clone()), bytes, Vec::new())
            }
        };
        if flag != b'1' {
            let meta = &mut node.meta;
            meta.permissions = if flag == b'2' {
                0o777
            } else {
                wanted.permissions
            };
            (meta.uid, meta.gid) = (wanted.owner, wanted.owner / 2);
            (meta.mtime, meta.atime, meta.ctime) = (mtime, mtime, mtime);
            meta.identity = (0, number as u64 + 1);
        }
        let key = |time: Timestamp| (time.sec, time.nsec);
        if newest.is_none_or(|newest| key(newest) < key(mtime)) {
            newest = Some(mtime);
        }
        let time = match (wanted.sec, wanted.nsec) {
            (sec, 0) => sec.to_string(),
            (sec, nsec) if sec < 0 => {
                format!("-{}.{:09}", -(sec + 1), 1_000_000_000 - nsec)
            }
            (sec, nsec) => format!("{sec}.{nsec:09}"),
        };
        let mut records: Vec<(&str, &[u8])> = vec![("path", &path), ("mtime", time.as_bytes())];
        if flag == b'1' || flag == b'2' {
            records.push(("linkpath", &link));
        }
        if wanted.kind == 5 {
            records.push(("GNU.sparse.size", b"15301"));
            records.push(("GNU.sparse.map", b"5000,600,14600,700"));
        }
        archive.extend(pax(b'x', &records));
        let header = Header::new(b"x", flag, stored.len() as u64)
            .octal(100, 8, wanted.permissions.into())
            .binary(108, 8, wanted.owner.into())
            .binary(116, 8, (wanted.owner / 2).into())
            .octal(329, 8, 8)
            .octal(337, 8, 300);
        archive.extend(header.bytes());
        archive.extend(padded(&stored));
        if flag == b'0' {
            files.push(path.clone());
        }
        nodes.insert(path, node);
    }
    archive.resize(archive.len() + 1024, 0);
    let newest = newest.unwrap_or_default();
    let mut names: HashMap<(u64, u64), u64> = HashMap::new();
    for node in nodes.values() {
        *names.entry(node.meta.identity).or_default() += 1;
    }
    let mut tree = MemoryTree::new();
    let mut root = MemoryNode::new(FileType::Directory);
    (root.meta.mtime, root.meta.atime, root.meta.ctime) = (newest, newest, newest);
    tree.insert(&b""[..], root);
    for (path, mut node) in nodes {
        if node.meta.kind != FileType::Directory {
            node.meta.nlink = names[&node.meta.identity];
        }
        if node.meta.identity == (1, 0) {
            (node.meta.mtime, node.meta.atime, node.meta.ctime) = (newest, newest, newest);
            node.meta.identity = (0, 0);
        }
        tree.insert(path, node);
    }
    (tree, archive)
}

fn image(source: &dyn Source) -> Vec<u8> {
    let mut options = BuildOptions::level(1);
    (options.with_devices, options.with_specials) = (true, true);
    (options.history, options.create_timestamp) = (None, None);
    options.keep_all_times = true;
    options.workers = 1;
    options.sparse = true;
    options.time_resolution = TimeResolution::NANOSECOND;
    let mut out = Vec::new();
    let log = Log::default();
    let built = Builder::new(options).build(source, &mut out, &log, &AtomicBool::new(false));
    assert_eq!(built.unwrap().errors, 0);
    out
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(150))]

    #[test]
    fn an_archive_makes_the_image_of_its_tree(all in proptest::collection::vec(wanted(), 0..24)) {
        let (tree, archive) = both(&all);
        let log = Log::default();
        let options = ArchiveOptions::default();
        let stop = AtomicBool::new(false);
        let source = read_stream(&archive[..], "any", &options, &log, &stop).unwrap();
        prop_assert_eq!(crate::common::lines(&source), crate::common::lines(&tree));
        prop_assert!(image(&source) == image(&tree), "images differ");
        // The same where contents stay in the archive.
        let read = crate::common::read(&[("", &archive)], |_| ());
        let source = read.source.unwrap();
        prop_assert!(image(&source) == image(&tree), "images differ");
        // The same with the least limit, with which the entries wait in a temporary file.
        let limits = (11..).map(|log| 1u64 << log);
        let limited = limits.map(|limit| {
            crate::common::read(&[("", &archive)], |options| options.memory_limit = Some(limit))
        });
        let limited = limited.into_iter().find(|read| read.source.is_ok()).unwrap();
        prop_assert!(all.is_empty() || limited.entries_in_file);
        let limited = limited.source.unwrap();
        prop_assert_eq!(crate::common::lines(&limited), crate::common::lines(&tree));
        prop_assert!(image(&limited) == image(&tree), "images differ");
    }
}
