//! Extended attributes, birth times and flags through the builder and back through the reader.

use std::collections::BTreeMap;

use crate::common::{blocks, build, open};
use proptest::prelude::*;
use redwarfs_format::metadata::{TABLE_VERSION, XattrScope};
use redwarfs_format::{BlockNo, InodeNo};
use redwarfs_reader::Image;
use redwarfs_writer::{
    BuildOptions, ExtendedAttributes, FileType, MemoryNode, MemoryTree, ModeTransform,
    TimeResolution, Timestamp, Xattr, XattrFilter,
};

type Set = BTreeMap<Vec<u8>, Vec<u8>>;

fn options() -> BuildOptions {
    let mut options = BuildOptions::level(1);
    options.workers = 1;
    options.block_size_bits = 12;
    options
}

fn inode(image: &Image, path: &str) -> InodeNo {
    image.find_path(path.as_bytes()).unwrap().unwrap()
}

fn stored(image: &Image, ino: InodeNo) -> Set {
    let xattrs = image.xattrs(ino).unwrap();
    xattrs
        .map(|xattr| {
            let name = xattr.name().unwrap().into_owned();
            let value = image.xattr_value(&xattr).unwrap().into_owned();
            assert_eq!(image.xattr(ino, &name).unwrap().unwrap(), value);
            assert_eq!(xattr.value().unwrap().size(), value.len() as u64);
            (name, value)
        })
        .collect()
}

fn with(kind: FileType, xattrs: &[(&str, &[u8])]) -> MemoryNode {
    let mut node = MemoryNode::new(kind);
    for (name, value) in xattrs {
        node.meta.extended.set(*name, *value);
    }
    node
}

fn set(xattrs: &[(&str, &[u8])]) -> Set {
    xattrs
        .iter()
        .map(|(name, value)| (name.as_bytes().to_vec(), value.to_vec()))
        .collect()
}

/// A value that no other length begins with.
fn long(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 256 + len) as u8).collect()
}

#[derive(Debug, Clone)]
struct Entry {
    kind: FileType,
    xattrs: Vec<(String, Vec<u8>)>,
    birth: Option<Timestamp>,
    flags: u32,
}

fn entry() -> impl Strategy<Value = Entry> {
    let kind = prop::sample::select(vec![
        FileType::Directory,
        FileType::Regular,
        FileType::Regular,
        FileType::Symlink,
        FileType::Fifo,
    ]);
    let name = prop::sample::select(vec![
        "user.a",
        "user.b",
        "user.dwarfs.driver.pid",
        "system.nfs4_acl",
        "security.selinux",
        "trusted.x",
    ]);
    let value = prop_oneof![
        prop::sample::select(vec![0usize, 1, 1024, 1025, 5000, 65536]).prop_map(long),
        prop::collection::vec(any::<u8>(), 0..40),
    ];
    let xattrs = prop::collection::vec((name.prop_map(String::from), value), 0..4);
    let birth = prop::option::of((-5_000_000_000i64..5_000_000_000, 0u32..1_000_000_000));
    let flags = prop::sample::select(vec![0u32, 0, 0x10, 0x20, 0x8_0000, 0x2000_0010]);
    (kind, xattrs, birth, flags).prop_map(|(kind, xattrs, birth, flags)| Entry {
        kind,
        xattrs,
        birth: birth.map(|(sec, nsec)| Timestamp { sec, nsec }),
        flags,
    })
}

fn tree(entries: &[Entry]) -> MemoryTree {
    let mut tree = MemoryTree::new();
    let mut dirs = vec![String::new()];
    for (i, entry) in entries.iter().enumerate() {
        let mut node = match entry.kind {
            FileType::Regular => MemoryNode::file(format!("content {}", i % 5)),
            FileType::Symlink => MemoryNode::symlink("target"),
            kind => MemoryNode::new(kind),
        };
        node.meta.mtime.sec = i as i64;
        for (name, value) in &entry.xattrs {
            node.meta.extended.set(name.as_bytes(), value.clone());
        }
        if let Some(birth) = entry.birth {
            node.meta.extended.set_birth(birth);
        }
        node.meta.extended.set_flags(entry.flags);
        let path = format!("{}{i}", dirs[i % dirs.len()]);
        if entry.kind == FileType::Directory {
            dirs.push(format!("{path}/"));
        }
        tree.insert(path, node);
    }
    tree
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(48))]

    #[test]
    fn what_goes_in_comes_out(
        entries in prop::collection::vec(entry(), 0..24),
        choice in 0u8..3,
        births in any::<bool>(),
        flags in any::<bool>(),
        everywhere in any::<bool>(),
        nanoseconds in any::<bool>(),
        empty in any::<bool>(),
    ) {
        let tree = tree(&entries);
        let mut options = options();
        options.with_specials = true;
        options.xattrs = match choice {
            0 => XattrFilter::none(),
            1 => XattrFilter::all(),
            _ => XattrFilter::new(|name| name.starts_with(b"user.")),
        };
        options.keep_birth_times = births;
        options.file_flags = flags;
        options.remove_empty_dirs = empty;
        if nanoseconds {
            options.time_resolution = TimeResolution::NANOSECOND;
        }
        if everywhere {
            options.set_xattrs = vec![
                Xattr { name: b"user.a".to_vec(), value: b"replaced".to_vec() },
                Xattr { name: b"user.a".to_vec(), value: b"of all".to_vec() },
                Xattr { name: b"security.b".to_vec(), value: long(3000) },
            ];
        }
        let (bytes, summary) = build(&options, &tree);
        prop_assert_eq!(summary.errors, 0);
        options.workers = 4;
        prop_assert_eq!(&build(&options, &tree).0, &bytes);
        let image = open(bytes);
        let view = image.metadata();
        prop_assert_eq!(view.options().has_btime, births);
        let mut any = false;
        for (path, node) in tree.iter() {
            let Some(ino) = image.find_path(path).unwrap() else {
                prop_assert!(empty);
                continue;
            };
            let mut expected: Set = node.meta.extended.xattrs().iter()
                .filter(|xattr| options.xattrs.keeps(&xattr.name))
                .map(|xattr| (xattr.name.clone(), xattr.value.clone()))
                .collect();
            for set in &options.set_xattrs {
                let fits = matches!(node.meta.kind, FileType::Regular | FileType::Directory);
                if fits || !set.name.starts_with(b"user.") {
                    expected.insert(set.name.clone(), set.value.clone());
                }
            }
            any |= !expected.is_empty();
            // Each name is there once.
            prop_assert_eq!(view.xattrs(ino).unwrap().len(), expected.len());
            prop_assert_eq!(stored(&image, ino), expected);
            let birth = node.meta.extended.birth().unwrap_or(node.meta.mtime);
            let nsec = if nanoseconds { birth.nsec } else { 0 };
            let birth = births.then_some(Timestamp { sec: birth.sec, nsec });
            prop_assert_eq!(view.birth_time(ino).unwrap(), birth);
            let known = node.meta.extended.flags() & !0x8_0000;
            prop_assert_eq!(view.file_flags(ino).unwrap(), if flags { known } else { 0 });
        }
        prop_assert_eq!(view.has_xattrs(), any);
    }
}

#[test]
fn an_image_without_attributes_does_not_know_of_them() {
    let mut tree = MemoryTree::new();
    tree.insert("a", MemoryNode::file("a"));
    tree.insert("b", MemoryNode::file("b"));
    let (plain, _) = build(&options(), &tree);
    let mut all = options();
    all.file_flags = true;
    assert_eq!(build(&all, &tree).0, plain);
    // Attributes that are not chosen leave no trace.
    let mut file = MemoryNode::file("a");
    file.meta.extended.set("user.a", "1");
    file.meta.extended.set_birth(Timestamp { sec: 1, nsec: 2 });
    file.meta.extended.set_flags(0x10);
    tree.insert("a", file);
    let mut none = options();
    none.xattrs = XattrFilter::none();
    assert_eq!(build(&none, &tree).0, plain);
    assert_ne!(build(&options(), &tree).0, plain);
}

#[test]
fn long_values_lie_in_blocks_of_their_own_once() {
    let mut tree = MemoryTree::new();
    let (a, b) = (long(9000), long(1025));
    for (name, value) in [("1", &a), ("2", &a), ("3", &b)] {
        let mut node = with(FileType::Regular, &[("user.v", value), ("user.w", &a)]);
        node.pieces = MemoryNode::file(format!("file {name}")).pieces;
        node.meta.size = 6;
        tree.insert(name, node);
    }
    let (bytes, _) = build(&options(), &tree);
    let image = open(bytes);
    let stored_blocks = blocks(&image);
    let names: Vec<&str> = stored_blocks
        .iter()
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(names, ["<default>", "xattr", "xattr", "xattr"]);
    let sizes = (1..4).map(|b| image.decode_block(BlockNo(b)).unwrap().len());
    assert_eq!(sizes.sum::<usize>(), 9000 + 1025);
    let counts = image.metadata().xattr_counts().unwrap().unwrap();
    assert_eq!((counts.inodes, counts.sets, counts.values), (3, 2, 2));
    assert_eq!(counts.block_bytes, 9000 + 1025);
    for (name, value) in [("1", &a), ("2", &a), ("3", &b)] {
        let expected = set(&[("user.v", value), ("user.w", &a)]);
        assert_eq!(stored(&image, inode(&image, name)), expected);
    }
    // And nothing else, if there are no other data.
    let mut only = MemoryTree::new();
    only.insert("d", with(FileType::Directory, &[("user.v", &a)]));
    let image = open(build(&options(), &only).0);
    assert!(blocks(&image).iter().all(|(name, _)| name == "xattr"));
    assert_eq!(stored(&image, inode(&image, "d")), set(&[("user.v", &a)]));
}

#[test]
fn equal_sets_are_stored_once_in_the_smaller_form() {
    let mut tree = MemoryTree::new();
    let label = |n: usize| format!("system_u:object_r:type_{n}_t:s0\0").into_bytes();
    for i in 0..400 {
        let value = label(i % 7);
        let xattrs: &[(&str, &[u8])] = match i % 100 {
            0 => &[("security.selinux", &value), ("user.rare", b"x")],
            _ => &[("security.selinux", &value)],
        };
        tree.insert(format!("{i:03}"), with(FileType::Regular, xattrs));
    }
    let image = open(build(&options(), &tree).0);
    let tables = image.metadata().thaw().unwrap().xattrs.unwrap();
    assert_eq!(tables.version, TABLE_VERSION);
    assert!(tables.inodes.is_empty() && tables.sets.len() == 401);
    assert_eq!((tables.names.len(), tables.values.len()), (2, 8));
    // The root has none; 0, 100, 200 and 300 have four different labels.
    assert_eq!(tables.set_start.len(), 1 + 7 + 4 + 1);
    let scope = XattrScope(tables.scope);
    for part in [XattrScope::USER, XattrScope::ACL, XattrScope::SECURITY] {
        assert!(scope.contains(part));
    }
    assert!(!scope.contains(XattrScope::TRUSTED) && !scope.contains(XattrScope::INCOMPLETE));

    let mut rare = MemoryTree::new();
    for i in 0..400 {
        let xattrs: &[(&str, &[u8])] = match i {
            17 | 300 => &[("user.rare", b"x")],
            _ => &[],
        };
        rare.insert(format!("{i:03}"), with(FileType::Regular, xattrs));
    }
    let mut options = options();
    options.xattrs = XattrFilter::new(|name| name == b"user.rare");
    let image = open(build(&options, &rare).0);
    let tables = image.metadata().thaw().unwrap().xattrs.unwrap();
    assert_eq!((tables.inodes.len(), tables.sets), (2, vec![1, 1]));
    let bits = tables.scope & 0xff;
    assert_eq!(bits, XattrScope::USER.0);
}

/// Tag, permissions and id of the entries of a list.
fn acl(entries: &[(u16, u16, u32)]) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    for (tag, permissions, id) in entries {
        value.extend(tag.to_le_bytes());
        value.extend(permissions.to_le_bytes());
        value.extend(id.to_le_bytes());
    }
    value
}

#[test]
fn access_lists_that_say_no_more_than_the_mode_are_left_out() {
    let (access, default) = ("system.posix_acl_access", "system.posix_acl_default");
    let minimal = acl(&[(1, 6, !0), (4, 4, !0), (32, 4, !0)]);
    let named = |mask| {
        acl(&[
            (1, 6, !0),
            (2, 7, 1000),
            (4, 4, !0),
            (16, mask, !0),
            (32, 4, !0),
        ])
    };
    let mut tree = MemoryTree::new();
    tree.insert("mode", with(FileType::Regular, &[(access, &minimal)]));
    tree.insert("named", with(FileType::Regular, &[(access, &named(4))]));
    let directory = [(access, &minimal[..]), (default, &named(6))];
    tree.insert("default", with(FileType::Directory, &directory));
    tree.insert("none", with(FileType::Directory, &[(default, &acl(&[]))]));
    let image = open(build(&options(), &tree).0);
    let at = |image: &Image, path| stored(image, inode(image, path));
    assert_eq!(at(&image, "mode"), set(&[]));
    assert_eq!(at(&image, "named"), set(&[(access, &named(4))]));
    // The list of the directory differs from its mode, 0755.
    assert_eq!(at(&image, "default"), set(&directory));
    assert_eq!(at(&image, "none"), set(&[]));

    // As if `chmod` had been called.
    let mut changed = options();
    changed.chmod = Some(ModeTransform::new(|mode| mode & 0o7700 | 0o060));
    let image = open(build(&changed, &tree).0);
    let expected = acl(&[
        (1, 6, !0),
        (2, 7, 1000),
        (4, 4, !0),
        (16, 6, !0),
        (32, 0, !0),
    ]);
    assert_eq!(at(&image, "named"), set(&[(access, &expected)]));
    assert_eq!(at(&image, "mode"), set(&[]));
}

#[test]
fn losses_are_counted() {
    let mut tree = MemoryTree::new();
    let mut file = MemoryNode::file("x");
    file.meta.extended.set("user.good", "1");
    file.meta.extended.set(vec![b'u'; 256], "2");
    file.meta.extended.set("user.long", vec![0; 65537]);
    file.meta.extended.add_unreadable("user.secret");
    tree.insert("f", file);
    let (bytes, summary) = build(&options(), &tree);
    assert_eq!(summary.errors, 3);
    let image = open(bytes);
    assert_eq!(
        stored(&image, inode(&image, "f")),
        set(&[("user.good", b"1")])
    );
    let scope = image.metadata().xattr_scope().unwrap();
    assert!(scope.contains(XattrScope::INCOMPLETE));
    assert_eq!(ExtendedAttributes::default().memory(), 0);
}

#[test]
fn hard_links_and_memory() {
    let mut tree = MemoryTree::new();
    for name in ["a", "b"] {
        let mut node = with(FileType::Regular, &[("user.a", b"both")]);
        (node.meta.nlink, node.meta.identity) = (2, (1, 7));
        tree.insert(name, node);
    }
    let image = open(build(&options(), &tree).0);
    assert_eq!(inode(&image, "a"), inode(&image, "b"));
    assert_eq!(image.metadata().xattr_counts().unwrap().unwrap().inodes, 1);

    // Values count: what does not fit the limit is an error, and not swapped.
    for i in 0..2000u64 {
        let mut value = vec![0; 60_000];
        value[..8].copy_from_slice(&i.to_le_bytes());
        tree.insert(
            format!("{i}"),
            with(FileType::Regular, &[("user.a", &value)]),
        );
    }
    let mut options = options();
    options.memory_limit = Some(100 << 20);
    let progress = redwarfs_writer::SilentProgress::default();
    let stop = std::sync::atomic::AtomicBool::new(false);
    let error = redwarfs_writer::Builder::new(options)
        .build(&tree, &mut std::io::sink(), &progress, &stop)
        .unwrap_err();
    assert!(
        matches!(error, redwarfs_writer::Error::MemoryLimit { .. }),
        "{error}"
    );
}
