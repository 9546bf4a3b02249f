//! Extended attributes and file flags in the metadata: what is stored is what is read, and no table,
//! however wrong, is trusted.

use std::collections::{BTreeMap, BTreeSet};

use proptest::collection::{btree_map, vec};
use proptest::prelude::*;
use redwarfs_format::metadata::{
    Chunk, DirEntry, Directory, Extent, FileFlags, Frozen, InodeData, MAX_XATTR_VALUE, Metadata,
    MetadataView, XattrData, XattrPair, XattrScope, XattrTables, XattrValue, freeze,
    freeze_for_compression, place_sets, thaw, unknown_members,
};
use redwarfs_format::{Error, InodeNo};

const BLOCK: u32 = 1 << 16;

/// A root with `files` empty files.
fn tree(files: u32) -> Metadata {
    let inode = |mode_index| InodeData {
        mode_index,
        ..InodeData::default()
    };
    let mut inodes = vec![inode(0)];
    inodes.extend(vec![inode(1); files as usize]);
    let directory = |first_entry| Directory {
        first_entry,
        ..Directory::default()
    };
    let entry = |inode_num: u32| DirEntry {
        name_index: inode_num.saturating_sub(1),
        inode_num,
    };
    Metadata {
        directories: vec![directory(1), directory(files + 1)],
        inodes,
        chunk_table: vec![0; files as usize + 1],
        modes: vec![0o040_755, 0o100_644],
        names: (0..files).map(|n| format!("{n:09}").into_bytes()).collect(),
        devices: Some(Vec::new()),
        dir_entries: Some((0..=files).map(entry).collect()),
        block_size: BLOCK,
        ..Metadata::default()
    }
}

/// Attributes of an inode, by name.
type Set = BTreeMap<Vec<u8>, Vec<u8>>;
type Model = BTreeMap<u32, Set>;

/// Values of at least this many bytes lie in block 0.
const LONG: usize = 30;

/// The plainest way to make tables.
fn tables(model: &Model, dense: Option<bool>, inodes: u32) -> XattrTables {
    let names: BTreeSet<&Vec<u8>> = model.values().flat_map(BTreeMap::keys).collect();
    let values: BTreeSet<&Vec<u8>> = model.values().flat_map(BTreeMap::values).collect();
    let sets: BTreeSet<&Set> = model.values().filter(|set| !set.is_empty()).collect();
    let place = |of: &BTreeSet<&Vec<u8>>, it: &Vec<u8>| of.iter().position(|x| *x == it).unwrap();
    let mut t = XattrTables {
        version: 1,
        set_start: vec![0, 0],
        names: names.iter().map(|name| (*name).clone()).collect(),
        ..XattrTables::default()
    };
    for set in &sets {
        for (name, value) in *set {
            t.pairs.push(XattrPair {
                name: place(&names, name) as u32,
                value: place(&values, value) as u32,
            });
        }
        t.set_start.push(t.pairs.len() as u32);
    }
    for value in &values {
        let mut stored = XattrValue::default();
        if value.len() < LONG {
            stored.data = (*value).clone();
        } else {
            stored.first_chunk = t.chunks.len() as u32;
            stored.chunk_count = 2;
            for size in [1, value.len() as u32 - 1] {
                t.chunks.push(Chunk {
                    block: 0,
                    offset: size,
                    size,
                });
            }
        }
        t.values.push(stored);
    }
    let number = |set: &Set| {
        sets.iter()
            .position(|x| *x == set)
            .map_or(0, |i| i as u32 + 1)
    };
    let of: Vec<(u32, u32)> = model
        .iter()
        .map(|(&ino, set)| (ino, number(set)))
        .filter(|(_, set)| *set > 0)
        .collect();
    (t.inodes, t.sets) = match dense {
        None => place_sets(&of, inodes),
        Some(false) => of.iter().copied().unzip(),
        Some(true) => {
            let of: BTreeMap<u32, u32> = of.into_iter().collect();
            let set = |ino| of.get(&ino).copied().unwrap_or(0);
            (Vec::new(), (0..inodes).map(set).collect())
        }
    };
    t
}

fn open(frozen: Frozen) -> MetadataView {
    MetadataView::parse(&frozen.schema, frozen.data).unwrap()
}

fn compare(view: &MetadataView, model: &Model) {
    let empty = Set::new();
    for ino in 0..view.inode_count() {
        let expected = model.get(&ino).unwrap_or(&empty);
        let xattrs = view.xattrs(InodeNo(ino)).unwrap();
        assert_eq!(xattrs.len(), expected.len());
        for (xattr, (name, value)) in xattrs.clone().zip(expected) {
            assert_eq!(*xattr.name().unwrap(), **name);
            let stored = xattr.value().unwrap();
            assert_eq!(stored.size(), value.len() as u64);
            assert_eq!(xattr.size().unwrap(), value.len() as u64);
            match stored {
                XattrData::Inline(bytes) => assert_eq!(*bytes, **value),
                XattrData::Blocks(extents) => {
                    assert!(value.len() >= LONG);
                    let first = Extent::Data {
                        block: redwarfs_format::BlockNo(0),
                        offset: 1,
                        size: 1,
                    };
                    assert_eq!(extents[0], first);
                }
            }
            let found = xattrs.find(name).unwrap().unwrap();
            assert_eq!(found.value().unwrap(), xattr.value().unwrap());
        }
        for absent in [&b""[..], b"user.absent", &[0xff; 300]] {
            assert!(expected.contains_key(absent) || xattrs.find(absent).unwrap().is_none());
        }
    }
    assert!(view.xattrs(InodeNo(view.inode_count())).is_err());
}

fn model() -> impl Strategy<Value = (u32, Model)> {
    let name = prop::sample::select(vec![
        "security.capability",
        "security.selinux",
        "system.posix_acl_access",
        "user.a",
        "user.b",
        "user.\u{fc}",
    ]);
    let value = vec(prop::sample::select(vec![0u8, b'a', 0xff]), 0..34);
    let set = btree_map(name.prop_map(|name| name.as_bytes().to_vec()), value, 0..4);
    (2u32..40).prop_flat_map(move |inodes| {
        let model = btree_map(0..inodes, set.clone(), 0..inodes as usize);
        (Just(inodes), model)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn tables_show_what_the_model_has((inodes, model) in model()) {
        for dense in [None, Some(false), Some(true)] {
            let mut m = tree(inodes - 1);
            m.xattrs = Some(tables(&model, dense, inodes));
            let frozen = freeze(&m).unwrap();
            prop_assert_eq!(&thaw(&frozen.schema, &frozen.data).unwrap(), &m);
            let view = open(frozen);
            view.check(1, None).unwrap();
            compare(&view, &model);
            let counts = view.xattr_counts().unwrap().unwrap();
            let with = model.values().filter(|set| !set.is_empty()).count();
            prop_assert_eq!(counts.inodes as usize, with);
            let acl = XattrScope::ACL;
            let names = model.values().flat_map(BTreeMap::keys);
            let has = names.into_iter().any(|name| XattrScope::of_name(name) == acl);
            prop_assert_eq!(view.has_acls().unwrap(), has);
            let view = open(freeze_for_compression(&m).unwrap());
            view.check(1, None).unwrap();
            compare(&view, &model);
        }
    }

    /// Whatever the numbers are, reading neither panics nor takes long, and what the check accepts
    /// can be read.
    #[test]
    fn wrong_tables_are_no_danger(
        (inodes, model) in model(),
        list in 0usize..12,
        at in any::<prop::sample::Index>(),
        number in prop_oneof![0u32..8, any::<u32>()],
    ) {
        let mut m = tree(inodes - 1);
        let mut t = tables(&model, None, inodes);
        let change = |list: &mut Vec<u32>| match list.len() {
            0 => list.push(number),
            n => list[at.index(n)] = number,
        };
        match list {
            0 => change(&mut t.inodes),
            1 => change(&mut t.sets),
            2 => change(&mut t.set_start),
            3 => drop(t.set_start.pop()),
            4 => drop(t.sets.pop()),
            5 => t.names.reverse(),
            6 => drop(t.names.pop()),
            7 => drop(t.values.pop()),
            8 => if let Some(v) = t.values.last_mut() { v.chunk_count = number },
            9 => if let Some(v) = t.values.last_mut() { v.first_chunk = number },
            10 => if let Some(p) = t.pairs.first_mut() { p.name = number },
            _ => if let Some(p) = t.pairs.first_mut() { p.value = number },
        }
        m.xattrs = Some(t);
        let frozen = freeze(&m).unwrap();
        let named = |e: &Error| e.to_string().contains("member 20000");
        let ignored = MetadataView::parse_ignoring_xattrs(&frozen.schema, frozen.data.clone());
        prop_assert!(ignored.unwrap().check(1, None).is_ok());
        match MetadataView::parse(&frozen.schema, frozen.data) {
            Err(e) => prop_assert!(named(&e), "{e}"),
            Ok(view) => {
                let check = view.check(1, None);
                if let Err(e) = &check {
                    prop_assert!(named(e), "{e}");
                }
                for ino in 0..inodes {
                    let read = view.xattrs(InodeNo(ino)).and_then(|xattrs| {
                        xattrs.find(b"user.a")?;
                        xattrs.take(64).try_for_each(|x| x.name().and(x.value()).map(drop))
                    });
                    prop_assert!(read.is_ok() || check.is_err());
                }
            }
        }
    }
}

/// Every invariant of the chapter, each broken once.
#[test]
fn the_check_names_what_is_wrong() {
    let set = |name: &str, value: &str| Set::from([(name.into(), value.into())]);
    let long = "x".repeat(30);
    let model = Model::from([
        (2, set("user.a", "1")),
        (3, set("user.b", &long)),
        (5, set("user.c", &"y".repeat(40))),
    ]);
    type Change = fn(&mut XattrTables);
    let cases: &[(&str, Change)] = &[
        ("sets do not cover the pairs", |t| t.set_start[0] = 1),
        ("sets do not cover the pairs", |t| t.set_start[1] = 1),
        ("sets do not cover the pairs", |t| t.set_start[4] = 2),
        ("invalid range of set 2", |t| t.set_start[2] = 3),
        ("no empty set", |t| t.set_start.truncate(1)),
        ("3 inodes with 2 sets", |t| t.sets.truncate(2)),
        ("3 sets for 9 inodes", |t| t.inodes.clear()),
        ("10 inodes with 3 sets", |t| t.inodes = (0..10).collect()),
        ("inode numbers are not in order", |t| t.inodes.swap(0, 1)),
        ("inode numbers are not in order", |t| t.inodes[2] = 9),
        ("inode 3 has the empty set", |t| t.sets[1] = 0),
        ("set 4 does not exist", |t| t.sets[1] = 4),
        ("names of set 1 are not in order", |t| t.pairs[0].name = 3),
        ("names of set 2 are not in order", |t| {
            t.set_start = vec![0, 0, 1, 3, 3];
            t.pairs[1].name = 2;
        }),
        ("value 3 of set 1 does not exist", |t| t.pairs[0].value = 3),
        ("invalid name", |t| t.names[0].clear()),
        ("invalid name", |t| t.names[0][3] = 0),
        ("name too long", |t| t.names[0] = vec![b'a'; 256]),
        ("names are not in order", |t| {
            t.names[1] = t.names[0].clone();
        }),
        ("value 0 is too long", |t| t.values[0].data = vec![1; 65537]),
        ("value 1 has two forms", |t| t.values[1].data.push(1)),
        ("invalid chunks of value 1", |t| t.values[1].chunk_count = 9),
        ("chunks of value 2 are not consecutive", |t| {
            t.values[2].first_chunk = 1;
        }),
        ("chunks without a value", |t| t.values[2].chunk_count = 1),
        ("chunk 0 does not lie in a block", |t| t.chunks[0].block = 1),
        ("chunk 1 does not lie in a block", |t| t.chunks[1].size = 0),
        ("chunk 2 does not lie in a block", |t| {
            t.chunks[2].offset = BLOCK;
        }),
    ];
    for (what, change) in cases {
        let mut m = tree(8);
        let mut t = tables(&model, Some(false), 9);
        change(&mut t);
        m.xattrs = Some(t);
        let frozen = freeze(&m).unwrap();
        let error = MetadataView::parse(&frozen.schema, frozen.data)
            .and_then(|view| view.check(1, None))
            .unwrap_err()
            .to_string();
        let expected = format!("xattrs (member 20000): {what}");
        assert!(error.contains(&expected), "{error}: expected {what}");
    }
}

#[test]
fn values_are_bounded() {
    let mut m = tree(1);
    let mut t = tables(
        &Model::from([(1, Set::from([(b"a".into(), vec![1; 30])]))]),
        None,
        2,
    );
    let chunk = Chunk {
        block: 0,
        offset: 0,
        size: BLOCK,
    };
    let most = MAX_XATTR_VALUE / u64::from(BLOCK);
    for (count, fits) in [(most, true), (most + 1, false)] {
        t.chunks = vec![chunk; count as usize];
        t.values[0].chunk_count = count as u32;
        m.xattrs = Some(t.clone());
        let view = open(freeze(&m).unwrap());
        assert_eq!(view.check(1, None).is_ok(), fits);
        let value = view.xattrs(InodeNo(1)).unwrap().next().unwrap().value();
        match value {
            Ok(value) => assert!(fits && value.size() == MAX_XATTR_VALUE),
            Err(error) => assert!(!fits && matches!(error, Error::Limit(_)), "{error}"),
        }
        let size = view.xattrs(InodeNo(1)).unwrap().next().unwrap().size();
        assert_eq!(size.ok(), fits.then_some(MAX_XATTR_VALUE));
    }
    // Many small pieces, and empty ones.
    for (count, size, error) in [
        (1 << 16, 1, ""),
        (1 << 16 | 1, 1, "more than 65536 chunks"),
        (3, 0, "chunk 0 is empty"),
    ] {
        t.chunks = vec![Chunk { size, ..chunk }; count as usize];
        t.values[0].chunk_count = count;
        m.xattrs = Some(t.clone());
        let view = open(freeze(&m).unwrap());
        assert_eq!(view.check(1, None).is_ok(), error.is_empty());
        let xattr = view.xattrs(InodeNo(1)).unwrap().next().unwrap();
        match (xattr.size(), xattr.value()) {
            (Ok(size), Ok(value)) => assert_eq!((size, value.size()), (1 << 16, 1 << 16)),
            (Err(size), Err(value)) => {
                assert!(
                    !error.is_empty() && size.to_string().contains(error),
                    "{size}"
                );
                assert_eq!(size.to_string(), value.to_string());
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn flags_are_read_and_checked() {
    let mut m = tree(3);
    let good = FileFlags {
        version: 1,
        inodes: vec![1, 3],
        indices: vec![2, 1],
        values: vec![0, 0x10, 0x8000_0020],
    };
    let dense = FileFlags {
        inodes: Vec::new(),
        indices: vec![0, 2, 0, 1],
        ..good.clone()
    };
    for form in [&good, &dense] {
        m.file_flags = Some(form.clone());
        let view = open(freeze(&m).unwrap());
        view.check(0, None).unwrap();
        let flags = |ino| view.file_flags(InodeNo(ino)).unwrap();
        assert_eq!([0, 1, 2, 3].map(flags), [0, 0x8000_0020, 0, 0x10]);
        assert!(view.file_flags(InodeNo(4)).is_err());
    }
    type Change = fn(&mut FileFlags);
    let cases: &[(&str, Change)] = &[
        ("the first combination is not empty", |f| f.values[0] = 1),
        ("the first combination is not empty", |f| f.values.clear()),
        ("set 3 does not exist", |f| f.indices[0] = 3),
        ("inode numbers are not in order", |f| f.inodes = vec![3, 1]),
        ("2 inodes with 1 sets", |f| f.indices.truncate(1)),
    ];
    for (what, change) in cases {
        let mut wrong = good.clone();
        change(&mut wrong);
        m.file_flags = Some(wrong);
        let frozen = freeze(&m).unwrap();
        let error = MetadataView::parse(&frozen.schema, frozen.data)
            .and_then(|view| view.check(0, None))
            .unwrap_err()
            .to_string();
        let expected = format!("file_flags (member 20001): {what}");
        assert!(error.contains(&expected), "{error}: expected {what}");
    }
}

/// Tables that a later version has changed are as good as absent.
#[test]
fn tables_of_another_version_are_ignored() {
    let mut m = tree(2);
    m.xattrs = Some(XattrTables {
        version: 2,
        sets: vec![77],
        ..XattrTables::default()
    });
    m.file_flags = Some(FileFlags {
        version: 2,
        indices: vec![77],
        ..FileFlags::default()
    });
    let view = open(freeze(&m).unwrap());
    view.check(0, None).unwrap();
    assert!(!view.has_xattrs() && !view.has_file_flags());
    assert_eq!(view.ignored_tables().unwrap(), ["xattrs", "file_flags"]);
    assert!(view.xattrs(InodeNo(1)).unwrap().next().is_none());
    assert_eq!(view.file_flags(InodeNo(1)).unwrap(), 0);
}

/// An image without attributes has neither bytes nor layouts for them.
#[test]
fn absent_tables_take_nothing() {
    let m = tree(5);
    let frozen = freeze(&m).unwrap();
    let mut other = m;
    other.xattrs = Some(XattrTables::default());
    let with = freeze(&other).unwrap();
    other.xattrs = None;
    let without = freeze(&other).unwrap();
    assert_eq!(without, frozen);
    assert!(open(without).ignored_tables().unwrap().is_empty());
    assert!(with.schema.len() > frozen.schema.len());
    assert_eq!(unknown_members(&with.schema).unwrap(), Vec::<String>::new());
}

#[test]
fn the_smaller_form_is_taken() {
    // 3 bits for a set, 10 for an inode.
    let some = |n: u32| (0..n).map(|i| (i * 7, 1 + i % 6)).collect::<Vec<_>>();
    assert_eq!(place_sets(&some(100), 1000).0.len(), 100);
    let (inodes, sets) = place_sets(&some(140), 600);
    assert!(inodes.is_empty() && sets.len() == 600);
    assert_eq!(sets[7], 2);
    assert_eq!(place_sets(&[], 1000), (vec![], vec![]));
}

/// The example of format chapter 09.
#[test]
fn the_example_of_the_documentation() {
    let mut acl = vec![2, 0, 0, 0];
    for (tag, permissions) in [(1, 7), (4, 5), (32, 0)] {
        acl.extend([tag, 0, permissions, 0, 255, 255, 255, 255]);
    }
    let comment = Set::from([(b"user.comment".to_vec(), b"draft".to_vec())]);
    let model = Model::from([
        (0, Set::from([(b"system.posix_acl_default".to_vec(), acl)])),
        (1, comment.clone()),
        (3, comment),
    ]);
    let mut m = tree(3);
    let t = tables(&model, None, 4);
    assert_eq!((&t.inodes[..], &t.sets[..]), (&[][..], &[1, 2, 0, 2][..]));
    assert_eq!(t.set_start, [0, 0, 1, 2]);
    m.xattrs = Some(t);
    let view = open(freeze(&m).unwrap());
    view.check(0, None).unwrap();
    compare(&view, &model);
    let usage = view.memory_usage().unwrap();
    assert_eq!(usage.rows.iter().map(|r| r.bytes).sum::<u64>(), usage.total);
    let bytes = |name| {
        let row = usage.rows.iter().find(|row| row.name == name).unwrap();
        let range = row.range.start as usize..row.range.end as usize;
        let all = view.bytes().in_memory().next().unwrap();
        all[range].to_vec()
    };
    assert_eq!(bytes("xattr_sets"), [0x89]);
    assert_eq!(bytes("xattr_set_start"), [0x90]);
    assert_eq!(bytes("xattr_pairs"), [0x0c]);
}
