//! Extended attributes, birth times and flags through rewriting.

use std::collections::BTreeMap;
use std::sync::atomic::AtomicBool;

use crate::common::{codec, open, rewritten};
use redwarfs_format::InodeNo;
use redwarfs_format::metadata::Timestamp;
use redwarfs_reader::Image;
use redwarfs_rewrite::{Rebuild, RewriteOptions};
use redwarfs_writer::{
    BuildOptions, Builder, FileType, MemoryNode, MemoryTree, ModeTransform, SilentProgress,
    TimeResolution, XattrFilter,
};

/// What an image holds: attributes by name, birth time, flags, for each inode.
type Shown = Vec<(BTreeMap<Vec<u8>, Vec<u8>>, Option<Timestamp>, u32)>;

fn shown(image: &Image) -> Shown {
    let view = image.metadata();
    (0..view.inode_count())
        .map(InodeNo)
        .map(|ino| {
            let xattrs = image.xattrs(ino).unwrap();
            let xattrs = xattrs.map(|xattr| {
                let value = image.xattr_value(&xattr).unwrap();
                (xattr.name().unwrap().into_owned(), value.into_owned())
            });
            let birth = view.birth_time(ino).unwrap();
            (xattrs.collect(), birth, view.file_flags(ino).unwrap())
        })
        .collect()
}

fn access(owner: u16, mask: u16, others: u16) -> Vec<u8> {
    let mut value = 2u32.to_le_bytes().to_vec();
    let named = (2, 7, 1000);
    let entries = [
        (1, owner, !0),
        named,
        (4, 4, !0),
        (16, mask, !0),
        (32, others, !0),
    ];
    for (tag, permissions, id) in entries {
        value.extend(u16::to_le_bytes(tag));
        value.extend(permissions.to_le_bytes());
        value.extend(u32::to_le_bytes(id));
    }
    value
}

const ACCESS: &str = "system.posix_acl_access";

fn sample() -> Image {
    let mut tree = MemoryTree::new();
    for i in 0..60u32 {
        let noise: Vec<u8> = (0..3000u32)
            .map(|n| ((n * n * (i + 3)) >> 3) as u8)
            .collect();
        let mut node = match i % 20 {
            0 => MemoryNode::new(FileType::Directory),
            _ => MemoryNode::file(noise.clone()),
        };
        let extended = &mut node.meta.extended;
        if i % 3 == 0 {
            extended.set("security.selinux", format!("label {}", i % 4));
        }
        if i % 7 == 0 {
            extended.set("user.long", noise);
            extended.set(ACCESS, access(6, 6, 4));
        }
        extended.set_birth(Timestamp {
            sec: i64::from(i) - 30,
            nsec: i * 1_000_000,
        });
        extended.set_flags(if i % 5 == 0 { 0x10 << (i % 2) } else { 0 });
        tree.insert(format!("{i:02}"), node);
    }
    let mut options = BuildOptions::level(1);
    options.block_size_bits = 12;
    options.keep_birth_times = true;
    options.file_flags = true;
    options.time_resolution = TimeResolution::from_nanos(1_000_000).unwrap();
    let mut bytes = Vec::new();
    let progress = SilentProgress::default();
    Builder::new(options)
        .build(&tree, &mut bytes, &progress, &AtomicBool::new(false))
        .unwrap();
    open(&bytes)
}

fn copy() -> RewriteOptions {
    let mut rewrite = RewriteOptions::level(1);
    rewrite.workers = 2;
    rewrite
}

fn rebuild(change: impl FnOnce(&mut Rebuild)) -> RewriteOptions {
    let mut rebuild = Rebuild::default();
    change(&mut rebuild);
    let mut rewrite = copy();
    rewrite.rebuild = Some(rebuild);
    rewrite
}

#[test]
fn every_rewrite_keeps_them() {
    let before = sample();
    let want = shown(&before);
    assert!(want.iter().any(|(xattrs, ..)| xattrs.len() == 3));
    let mut everything = copy();
    (everything.blocks, everything.metadata) = (true, true);
    everything.compression = codec("zstd:level=3");
    everything.metadata_compression = codec("zstd:level=3");
    let mut cases = vec![copy(), everything, rebuild(|_| {})];
    for bits in [10, 11, 14, 20] {
        let mut options = rebuild(|_| {});
        options.block_size_bits = Some(bits);
        options.blocks = true;
        cases.push(options);
    }
    for options in cases {
        let once = rewritten(&before, &options).unwrap().image;
        assert!(shown(&once) == want, "{options:?}");
        let twice = rewritten(&once, &options).unwrap().image;
        assert!(shown(&twice) == want, "{options:?}");
    }
}

#[test]
fn they_can_be_dropped() {
    let options = rebuild(|rebuild| rebuild.extensions = false);
    let image = rewritten(&sample(), &options).unwrap().image;
    let view = image.metadata();
    assert!(!view.has_xattrs() && !view.has_file_flags() && !view.options().has_btime);
    let thawed = view.thaw().unwrap();
    assert!(thawed.xattrs.is_none() && thawed.file_flags.is_none());
    assert!(thawed.inodes.iter().all(|inode| inode.btime_offset == 0));
}

#[test]
fn times_get_coarser_and_equal() {
    let before = sample();
    let options = rebuild(|rebuild| {
        rebuild.time_resolution = Some(TimeResolution::from_nanos(60_000_000_000).unwrap());
    });
    let image = rewritten(&before, &options).unwrap().image;
    for ((_, old, _), (_, new, _)) in shown(&before).iter().zip(shown(&image)) {
        let sec = old.unwrap().sec.div_euclid(60) * 60;
        assert_eq!(new.unwrap(), Timestamp { sec, nsec: 0 });
    }
    let options = rebuild(|rebuild| rebuild.set_time = Some(77));
    let image = rewritten(&before, &options).unwrap().image;
    let set = Some(Timestamp { sec: 77, nsec: 0 });
    assert!(shown(&image).iter().all(|(_, birth, _)| *birth == set));
}

#[test]
fn attributes_are_selected_and_nothing_else_stays() {
    let before = sample();
    for (filter, bits) in [
        (XattrFilter::new(|name| name == b"user.long"), None),
        (XattrFilter::new(|name| name != b"user.long"), Some(10)),
        (XattrFilter::none(), None),
    ] {
        let keeps = filter.clone();
        let mut options = rebuild(|rebuild| rebuild.xattrs = filter);
        options.block_size_bits = bits;
        options.blocks |= bits.is_some();
        let image = rewritten(&before, &options).unwrap().image;
        let mut want = shown(&before);
        for (xattrs, ..) in &mut want {
            xattrs.retain(|name, _| keeps.keeps(name));
        }
        assert!(shown(&image) == want);
        let tables = image.metadata().thaw().unwrap().xattrs;
        assert_eq!(tables.is_none(), keeps.is_none());
        let names = tables.iter().flat_map(|tables| &tables.names);
        assert!(names.into_iter().all(|name| keeps.keeps(name)));
        let long = tables.iter().flat_map(|tables| &tables.chunks).count();
        assert_eq!(long > 0, keeps.keeps(b"user.long"));
    }
}

/// A list of so many named users that it lies in a block.
fn long_access(owner: u16, mask: u16, others: u16, users: u32) -> Vec<u8> {
    let mut value = access(owner, mask, others);
    let group = value.split_off(4 + 2 * 8);
    for id in 0..users {
        value.extend([2, 0, 4, 0]);
        value.extend((2000 + id).to_le_bytes());
    }
    [value, group].concat()
}

#[test]
fn access_lists_in_blocks_and_minimal_ones_follow_chmod() {
    let minimal = |owner: u16, group: u16, others: u16| {
        let mut value = 2u32.to_le_bytes().to_vec();
        for (tag, permissions) in [(1u16, owner), (4, group), (32, others)] {
            value.extend(tag.to_le_bytes());
            value.extend(permissions.to_le_bytes());
            value.extend((!0u32).to_le_bytes());
        }
        value
    };
    let mut tree = MemoryTree::new();
    for i in 0..400u32 {
        let mut node = MemoryNode::file(format!("{i}"));
        node.meta.permissions = 0o644 | (i % 2) << 6;
        let list = match i % 4 {
            0 | 1 => long_access(6, 4, 4, 300),
            // Not the mode, so the writer keeps it.
            2 => minimal(6, 0, 4),
            _ => access(6, 4, 4),
        };
        node.meta.extended.set(ACCESS, list);
        tree.insert(format!("{i:03}"), node);
    }
    let mut bytes = Vec::new();
    let progress = SilentProgress::default();
    let mut options = BuildOptions::level(1);
    options.block_size_bits = 12;
    Builder::new(options)
        .build(&tree, &mut bytes, &progress, &AtomicBool::new(false))
        .unwrap();
    let before = open(&bytes);
    let chunks = |image: &Image| {
        image
            .metadata()
            .thaw()
            .unwrap()
            .xattrs
            .unwrap()
            .chunks
            .len()
    };
    assert!(chunks(&before) > 0);
    for bits in [None, Some(10)] {
        let mut options = rebuild(|rebuild| {
            rebuild.chmod = Some(ModeTransform::new(|mode| match mode & 0o170_000 {
                0o040_000 => mode,
                _ => mode & !0o077 | 0o020,
            }));
        });
        options.block_size_bits = bits;
        options.blocks |= bits.is_some();
        let image = rewritten(&before, &options).unwrap().image;
        image
            .metadata()
            .check(image.container().block_count(), None)
            .unwrap();
        for i in 0..400u32 {
            let path = format!("{i:03}");
            let ino = image.find_path(path.as_bytes()).unwrap().unwrap();
            let found = image.xattr(ino, ACCESS.as_bytes()).unwrap();
            let owner = 6 | (i % 2) as u16;
            let want = match i % 4 {
                0 | 1 => Some(long_access(owner, 2, 0, 300)),
                2 => None,
                _ => Some(access(owner, 2, 0)),
            };
            assert!(found.as_deref() == want.as_deref(), "{path}");
        }
        assert_eq!(chunks(&image), 0);
    }
}

#[test]
fn access_lists_follow_chmod() {
    let before = sample();
    let options = rebuild(|rebuild| {
        rebuild.chmod = Some(ModeTransform::new(|mode| match mode & 0o170_000 {
            0o040_000 => mode,
            _ => mode & 0o7007 | 0o420,
        }));
    });
    let image = rewritten(&before, &options).unwrap().image;
    let mut changed = 0;
    for (ino, (old, new)) in (0u32..).zip(shown(&before).iter().zip(shown(&image))) {
        if !old.0.contains_key(ACCESS.as_bytes()) {
            assert_eq!(old.0, new.0);
            continue;
        }
        let is_file = image.stat(InodeNo(ino)).unwrap().mode & 0o170_000 != 0o040_000;
        // The mode of the directories, 0755, stays.
        let (file, directory) = (access(4, 2, 4), access(7, 5, 5));
        let want = if is_file { &file } else { &directory };
        changed += u32::from(is_file);
        assert_eq!(&new.0[ACCESS.as_bytes()], want);
        assert_eq!(old.0["user.long".as_bytes()], new.0["user.long".as_bytes()]);
    }
    assert!(changed > 5);
}
