//! Metadata of golden images: what the view shows, and freezing with identical bytes.

use std::collections::BTreeMap;
use std::fs::File;

use crate::common::Golden;
use redwarfs_format::frozen::Schema;
use redwarfs_format::metadata::{
    FileType, MetadataView, Packing, Timestamp, freeze, freeze_for_compression, thaw,
};
use redwarfs_format::{EntryIndex, InodeNo};
use serde_json::Value;

/// A path of a manifest: `\udcXX` stands for a byte XX that is not UTF-8.
fn unescape(text: &str) -> Vec<u8> {
    let mut parts = text.split("\\udc");
    let mut out = parts.next().unwrap().as_bytes().to_vec();
    for part in parts {
        out.push(u8::from_str_radix(&part[..2], 16).unwrap());
        out.extend_from_slice(&part.as_bytes()[2..]);
    }
    out
}

fn manifest(golden: &Golden) -> BTreeMap<Vec<u8>, Value> {
    let file = File::open(golden.path.with_extension("json.gz")).unwrap();
    let list: Vec<Value> = serde_json::from_reader(flate2::read::GzDecoder::new(file)).unwrap();
    list.into_iter()
        .map(|e| (unescape(e["path"].as_str().unwrap()), e))
        .collect()
}

fn nanoseconds(t: Timestamp) -> i128 {
    i128::from(t.sec) * 1_000_000_000 + i128::from(t.nsec)
}

fn number(value: &Value) -> i128 {
    value.to_string().parse().unwrap()
}

/// All differences between an entry and what the manifest says about it.
fn differences(view: &MetadataView, e: EntryIndex, entry: &Value) -> Vec<String> {
    let ino = view.entry_inode(e).unwrap();
    let stat = view.entry_stat(e).unwrap();
    if !view.is_legacy() {
        assert_eq!(view.stat(ino).unwrap(), stat);
    }
    let mode = u32::from_str_radix(&entry["mode"].as_str().unwrap()[2..], 8).unwrap();
    let mut pairs = vec![
        ("mode", i128::from(stat.mode), i128::from(mode)),
        (
            "blocks",
            i128::from(stat.blocks()),
            number(&entry["blocks"]),
        ),
        ("mtime", nanoseconds(stat.mtime), number(&entry["mtime_ns"])),
        ("atime", nanoseconds(stat.atime), number(&entry["atime_ns"])),
        ("ctime", nanoseconds(stat.ctime), number(&entry["ctime_ns"])),
        ("ino", i128::from(stat.ino.0) + 1, number(&entry["ino"])),
        ("uid", i128::from(stat.uid), number(&entry["uid"])),
        ("gid", i128::from(stat.gid), number(&entry["gid"])),
        ("nlink", i128::from(stat.nlink), number(&entry["nlink"])),
        ("size", i128::from(stat.size), number(&entry["size"])),
    ];
    if let Some(rdev) = entry["rdev"].as_array() {
        // The kernel's encoding of 32 bits: 12 for the major number, 8 + 12 for the minor one.
        let (major, minor) = (
            (stat.rdev >> 8) & 0xfff,
            (stat.rdev & 0xff) | ((stat.rdev >> 12) & 0xf_ff00),
        );
        pairs.push(("major", i128::from(major), number(&rdev[0])));
        pairs.push(("minor", i128::from(minor), number(&rdev[1])));
    }
    let mut out: Vec<String> = pairs
        .into_iter()
        .filter(|(_, got, want)| got != want)
        .map(|(what, got, want)| format!("{what}: {got}, expected {want}"))
        .collect();
    let is_link = view.file_type(ino).unwrap() == FileType::Symlink;
    let target = is_link.then(|| view.symlink(ino).unwrap().into_owned());
    if target != entry["target"].as_str().map(unescape) {
        out.push(format!("target: {target:?}"));
    }
    if view.file_type(ino).unwrap() == FileType::Regular {
        let extents = view.extents(ino).unwrap();
        for i in 0..extents.len() {
            assert_eq!(
                extents.get(i).unwrap(),
                extents.clone().nth(i).unwrap().unwrap()
            );
        }
        let total: u64 = extents.map(|e| e.unwrap().size()).sum();
        if total != stat.size {
            out.push(format!("extents cover {total} bytes"));
        }
    }
    out
}

fn walk(view: &MetadataView) -> Vec<(Vec<u8>, EntryIndex)> {
    let mut out = vec![(b".".to_vec(), view.root_entry())];
    let mut todo = vec![(Vec::new(), InodeNo::ROOT)];
    while let Some((path, dir)) = todo.pop() {
        for e in view.entries(dir).unwrap() {
            let e = EntryIndex(e);
            let name = view.entry_name(e).unwrap();
            assert_eq!(view.find(dir, &name).unwrap(), Some(e));
            let mut full: Vec<u8> = path.clone();
            if !full.is_empty() {
                full.push(b'/');
            }
            full.extend_from_slice(&name);
            let ino = view.entry_inode(e).unwrap();
            if view.file_type(ino).unwrap() == FileType::Directory {
                assert_eq!(view.parent(ino).unwrap(), dir);
                assert_eq!(view.self_entry(ino).unwrap(), e);
                todo.push((full.clone(), ino));
            }
            out.push((full, e));
        }
    }
    out
}

fn compare(golden: &Golden, view: &MetadataView) {
    let mut expected = manifest(golden);
    let mut problems = Vec::new();
    for (path, e) in walk(view) {
        let name = path.escape_ascii();
        match expected.remove(&path) {
            None => problems.push(format!("{name}: not expected")),
            Some(entry) => problems.extend(
                differences(view, e, &entry)
                    .into_iter()
                    .map(|d| format!("{name}: {d}")),
            ),
        }
    }
    problems.extend(
        expected
            .into_keys()
            .map(|p| format!("{}: missing", p.escape_ascii())),
    );
    assert!(
        problems.is_empty(),
        "{}:\n{}",
        golden.name,
        problems.join("\n")
    );
}

#[test]
fn views_show_what_the_manifests_say() {
    for golden in crate::common::current() {
        let view = MetadataView::parse(&golden.schema, golden.data.clone()).unwrap();
        view.check(golden.blocks, None)
            .unwrap_or_else(|e| panic!("{}: {e}", golden.name));
        compare(&golden, &view);
    }
}

#[test]
fn views_of_older_images_show_what_the_manifests_say() {
    for golden in crate::common::older() {
        let view = MetadataView::parse(&golden.schema, golden.data.clone()).unwrap();
        view.check(golden.blocks, None)
            .unwrap_or_else(|e| panic!("{}: {e}", golden.name));
        compare(&golden, &view);
    }
}

#[test]
fn freezing_reproduces_the_reference() {
    for golden in crate::common::current() {
        let frozen = freeze(&thaw(&golden.schema, &golden.data).unwrap()).unwrap();
        assert!(frozen.schema == golden.schema, "schema of {}", golden.name);
        assert!(frozen.data == golden.data, "data of {}", golden.name);
    }
}

#[test]
fn older_images_survive_freezing() {
    for golden in crate::common::older() {
        let schema = Schema::parse(&golden.schema).unwrap();
        assert!(schema.encode_legacy() == golden.schema, "{}", golden.name);
        let metadata = thaw(&golden.schema, &golden.data).unwrap();
        let frozen = freeze(&metadata).unwrap();
        assert!(
            thaw(&frozen.schema, &frozen.data).unwrap() == metadata,
            "{}",
            golden.name
        );
        // Releases before 0.5.0 aligned areas; all others have the same layout as today.
        if metadata.dir_entries.is_some() {
            assert!(
                Schema::parse(&frozen.schema).unwrap() == schema,
                "{}",
                golden.name
            );
            assert!(frozen.data == golden.data, "{}", golden.name);
        }
        let view = MetadataView::parse(&frozen.schema, frozen.data).unwrap();
        view.check(golden.blocks, None).unwrap();
    }
}

#[test]
fn packed_metadata_shows_the_same() {
    let all = Packing::all();
    let packings = [
        all,
        Packing { force: true, ..all },
        Packing::auto(),
        Packing {
            chunk_table: true,
            ..Packing::none()
        },
        Packing {
            directories: true,
            ..Packing::plain()
        },
        Packing {
            shared_files: true,
            names_index: true,
            ..Packing::auto()
        },
    ];
    for name in [
        "many-pack-plain",
        "names-auto",
        "basic-default",
        "empty",
        "basic-no-hardlink-table",
    ] {
        let golden = crate::common::one(name);
        let mut plain = thaw(&golden.schema, &golden.data).unwrap();
        let view = MetadataView::parse(&golden.schema, golden.data.clone()).unwrap();
        // Undo the compression of names and targets, which is all that these images have.
        let counts = view.counts();
        let mut names = vec![Vec::new(); counts.names as usize];
        for (e, entry) in (0u32..).zip(plain.dir_entries.iter().flatten()).skip(1) {
            names[entry.name_index as usize] = view.entry_name(EntryIndex(e)).unwrap().into_owned();
        }
        let mut targets = vec![Vec::new(); counts.symlink_targets as usize];
        for (ino, target) in (counts.symlink_offset..).zip(&plain.symlink_table) {
            targets[*target as usize] = view.symlink(InodeNo(ino)).unwrap().into_owned();
        }
        (plain.names, plain.symlinks) = (names, targets);
        (plain.compact_names, plain.compact_symlinks) = (None, None);
        for packing in packings {
            let mut packed = plain.clone();
            packed.pack(&packing);
            let frozen = freeze(&packed).unwrap();
            let view = MetadataView::parse(&frozen.schema, frozen.data).unwrap();
            view.check(golden.blocks, None)
                .unwrap_or_else(|e| panic!("{name} {packing:?}: {e}"));
            assert!(view.thaw().unwrap() == packed);
            compare(&golden, &view);
        }
    }
}

#[test]
fn whole_bytes_hold_the_same() {
    for golden in crate::common::current()
        .into_iter()
        .chain(crate::common::older())
    {
        let metadata = thaw(&golden.schema, &golden.data).unwrap();
        let frozen = freeze_for_compression(&metadata).unwrap();
        assert!(thaw(&frozen.schema, &frozen.data).unwrap() == metadata);
        let mut end = 0;
        for table in &frozen.tables {
            assert!(table.start >= end && table.bits % 8 == 0, "{table:?}");
            end = table.start + table.len;
            assert_eq!(table.len % (table.bits as usize / 8).max(1), 0);
        }
        assert!(end <= frozen.data.len());
        let view = MetadataView::parse(&frozen.schema, frozen.data).unwrap();
        view.check(golden.blocks, None).unwrap();
    }
}

#[test]
fn packing_everything_equals_the_reference_but_for_the_symbol_table() {
    let reference = crate::common::one("many-pack-all");
    let reference = thaw(&reference.schema, &reference.data).unwrap();
    let golden = crate::common::one("many-pack-plain");
    let mut ours = thaw(&golden.schema, &golden.data).unwrap();
    ours.pack(&Packing::all());
    assert_eq!(ours.chunk_table, reference.chunk_table);
    assert_eq!(ours.directories, reference.directories);
    assert_eq!(ours.shared_files_table, reference.shared_files_table);
    assert_eq!(ours.options, reference.options);
}
