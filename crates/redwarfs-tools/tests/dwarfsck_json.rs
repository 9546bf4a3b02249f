//! What `dwarfsck` prints for programs.

use crate::dwarfsck_output::{json, shown};
use redwarfs_testkit::golden::{compat_images, golden, golden_images};
use serde_json::Value;
use std::collections::BTreeSet;

#[test]
fn json_has_all_keys_and_agrees_with_itself() {
    let always = [
        "created_by",
        "created_on",
        "errors",
        "features",
        "uncovered",
    ];
    let summary = [
        "block_count",
        "block_size",
        "compressed_block_size",
        "compressed_metadata_size",
        "inode_count",
        "options",
        "original_filesystem_size",
        "preferred_path_separator",
        "time_resolution",
        "uncompressed_block_size",
        "uncompressed_metadata_size",
    ];
    for image in golden_images() {
        let least = json(&image.image, &["-d0"]);
        let keys: Vec<&str> = least
            .as_object()
            .unwrap()
            .keys()
            .map(String::as_str)
            .collect();
        let wanted = always
            .iter()
            .filter(|key| **key != "created_on" || keys.contains(key));
        assert_eq!(keys, wanted.copied().collect::<Vec<_>>(), "{}", image.name);

        let all = json(&image.image, &["-d7"]);
        for key in summary.iter().chain(&[
            "frozen_analysis",
            "frozen_details",
            "frozen_layout",
            "full_metadata",
            "image_offset",
            "meta",
            "root",
            "schema",
            "sections",
            "valid_section_index",
            "version",
        ]) {
            assert!(all.get(key).is_some(), "{}: {key}", image.name);
        }
        assert_eq!(all["errors"], Value::Array(Vec::new()));
        assert_eq!(all["version"]["major"], 2);
        // Libraries are a list of names, not a list of lists.
        if let Some(history) = all.get("history").and_then(|h| h.get(0)) {
            let libraries = history["library_versions"].as_array();
            assert!(libraries.into_iter().flatten().all(Value::is_string));
            // Reproducible images have no times.
            let local = history["timestamp"]["local"].as_str();
            assert!(local.is_none_or(|t| t.contains('T')));
        }
        let sections = all["sections"].as_array().unwrap();
        let mut end = 0;
        for (i, section) in sections.iter().enumerate() {
            assert_eq!(section["number"], i);
            assert_eq!(section["checksum_ok"], true);
            assert_eq!(section["offset"].as_u64().unwrap(), end + 64);
            end += 64 + section["compressed_size"].as_u64().unwrap();
        }
        let blocks: Vec<&Value> = sections.iter().filter(|s| s["type"] == "BLOCK").collect();
        assert_eq!(all["block_count"], blocks.len());
        let sum = |key: &str| -> u64 { blocks.iter().map(|s| s[key].as_u64().unwrap()).sum() };
        assert_eq!(all["compressed_block_size"], sum("compressed_size"));
        assert_eq!(all["uncompressed_block_size"], sum("size"));
        let frozen = &all["frozen_analysis"];
        assert_eq!(frozen["size"], all["uncompressed_metadata_size"]);
        assert_eq!(
            all["full_metadata"]["chunk_table"]
                .as_array()
                .unwrap()
                .len(),
            all["meta"]["chunk_table"].as_u64().unwrap() as usize
        );
        assert_eq!(all["frozen_layout"]["type"], "metadata");
        let root = all["schema"]["root_layout"].as_u64().unwrap();
        let bits = &all["schema"]["layouts"][root as usize]["bits"];
        assert_eq!(*bits, all["frozen_layout"]["bits"]);
    }
}

#[test]
fn json_of_old_images_leaves_out_what_they_lack() {
    for image in compat_images() {
        let all = json(&image.image, &["-d7", "--check-integrity"]);
        assert_eq!(all["errors"], Value::Array(Vec::new()), "{}", image.name);
        assert!(
            all["root"]["inodes"]
                .as_array()
                .is_some_and(|i| !i.is_empty())
        );
        let minor = all["version"]["minor"].as_u64().unwrap();
        assert_eq!(all["version"]["header"], if minor < 2 { 1 } else { 2 });
        assert_eq!(
            all.get("created_by").is_some(),
            minor >= 3,
            "{}",
            image.name
        );
        assert!(shown(&image.image, &["-d7"]).contains(if minor < 2 {
            "SECTION [V1] type="
        } else {
            "SECTION [V2."
        }));
    }
}

/// Paths in a tree of JSON, from the exact names.
fn paths(node: &Value, prefix: &[u8], out: &mut BTreeSet<Vec<u8>>) {
    for child in node["inodes"].as_array().into_iter().flatten() {
        let name = match child.get("name_base64") {
            Some(exact) => {
                let readable = child["name"].as_str().unwrap();
                assert!(readable.contains('\u{fffd}'));
                unbase64(exact.as_str().unwrap())
            }
            None => child["name"].as_str().unwrap().as_bytes().to_vec(),
        };
        let path = if prefix.is_empty() {
            name
        } else {
            [prefix, b"/", &name].concat()
        };
        paths(child, &path, out);
        assert!(out.insert(path));
    }
}

pub(crate) fn unbase64(text: &str) -> Vec<u8> {
    let value = |c: u8| match c {
        b'A'..=b'Z' => c - b'A',
        b'a'..=b'z' => c - b'a' + 26,
        b'0'..=b'9' => c - b'0' + 52,
        b'+' => 62,
        b'/' => 63,
        _ => panic!("{text}"),
    };
    let mut bits = 0_u32;
    let mut count = 0;
    let mut out = Vec::new();
    for c in text.bytes().filter(|c| *c != b'=') {
        bits = bits << 6 | u32::from(value(c));
        count += 6;
        if count >= 8 {
            count -= 8;
            out.push((bits >> count) as u8);
        }
    }
    out
}

#[test]
fn trees_in_json_hold_every_name_exactly() {
    let mut odd = 0;
    for image in golden_images() {
        let tree = json(&image.image, &["-d", "directory_tree,chunk_details"]);
        let mut found = BTreeSet::new();
        paths(&tree["root"], b"", &mut found);
        let manifest = image.manifest();
        let want: BTreeSet<Vec<u8>> = manifest
            .0
            .keys()
            .filter(|p| p.as_slice() != b".")
            .cloned()
            .collect();
        assert_eq!(found, want, "{}", image.name);
        odd += found
            .iter()
            .filter(|p| std::str::from_utf8(p).is_err())
            .count();
    }
    assert!(odd > 0, "some name is not UTF-8");

    let tree = json(&golden("basic-default").image, &["-d5"]);
    let root = tree["root"]["inodes"].as_array().unwrap();
    let named = |name: &str| root.iter().find(|n| n["name"] == name).unwrap();
    assert_eq!(named("dangling")["target"], "/nonexistent/absolute/path");
    assert_eq!(named("fifo")["type"], "fifo");
    assert_eq!(named("sock")["type"], "socket");
    assert_eq!(named("chardev")["device_id"], 259);
    assert_eq!(named("blockdev")["type"], "blockdev");
    assert_eq!(named("dangling")["type"], "link");
    let sparse = named("sparse");
    assert_eq!(
        (&sparse["size"], &sparse["allocated_size"]),
        (&9_000_000.into(), &12_288.into())
    );
    let chunks = sparse["chunks"].as_array().unwrap();
    assert_eq!(
        (&chunks[0]["type"], &chunks[0]["size"]),
        (&"hole".into(), &1_048_576.into())
    );
    let sum: u64 = chunks.iter().map(|c| c["size"].as_u64().unwrap()).sum();
    assert_eq!(sum, 9_000_000);
    assert!(
        json(&golden("basic-default").image, &["-d4"])["root"]["inodes"][0]
            .get("chunks")
            .is_none()
    );
}

#[test]
fn lists_in_json_have_a_line_per_entry() {
    let nanoseconds = |time: &Value| {
        let part = |key: &str| i128::from(time[key].as_i64().unwrap());
        part("sec") * 1_000_000_000 + part("nsec")
    };
    for image in golden_images().into_iter().chain(compat_images()) {
        let mut manifest = image.manifest();
        // What names of one inode show is another matter in old formats.
        let old = json(&image.image, &["-d1"])["version"]["minor"]
            .as_u64()
            .is_some_and(|minor| minor < 3);
        let out = shown(&image.image, &["-l", "-j", "-v", "--no-check"]);
        let names = shown(&image.image, &["-l", "-j", "--no-check"]);
        assert_eq!(out.lines().count(), names.lines().count() + 1);
        for line in out.lines() {
            let entry: Value = serde_json::from_str(line).unwrap();
            let path = match entry.get("path_base64") {
                Some(exact) => unbase64(exact.as_str().unwrap()),
                None => entry["path"].as_str().unwrap().as_bytes().to_vec(),
            };
            let want = manifest.0.remove(&path).unwrap();
            let what = format!("{}: {line}", image.name);
            assert_eq!(entry["inode"].as_u64().unwrap() + 1, want.ino, "{what}");
            assert_eq!(entry["mode"], want.mode, "{what}");
            assert_eq!(entry["uid"], want.uid, "{what}");
            assert_eq!(entry["gid"], want.gid, "{what}");
            assert_eq!(entry["nlink"], want.nlink, "{what}");
            if !old {
                assert_eq!(nanoseconds(&entry["mtime"]), want.mtime_ns, "{what}");
                assert_eq!(nanoseconds(&entry["atime"]), want.atime_ns, "{what}");
                assert_eq!(nanoseconds(&entry["ctime"]), want.ctime_ns, "{what}");
            }
            let rdev = entry.get("rdev").map(|rdev| {
                let part = |key: &str| rdev[key].as_u64().unwrap() as u32;
                (part("major"), part("minor"))
            });
            assert_eq!(rdev, want.rdev, "{what}");
            let size = entry.get("size").map(|size| size.as_u64().unwrap());
            assert!(size.is_none_or(|size| size == want.size), "{what}");
            assert_eq!(
                size.is_some(),
                want.sha256.is_some() || want.target.is_some(),
                "{what}"
            );
            let target = match entry.get("target_base64") {
                Some(exact) => Some(unbase64(exact.as_str().unwrap())),
                None => entry["target"].as_str().map(|t| t.as_bytes().to_vec()),
            };
            assert_eq!(target, want.target, "{what}");
        }
        assert!(manifest.0.is_empty(), "{}: {manifest:?}", image.name);
    }
}

#[test]
fn checksums_in_json_have_a_line_per_file() {
    let image = golden("many-default").image;
    let plain = shown(&image, &["--checksum=md5", "-n1"]);
    let out = shown(&image, &["--checksum=md5", "-n1", "-j"]);
    assert_eq!(out.lines().count(), plain.lines().count());
    for (line, plain) in out.lines().zip(plain.lines()) {
        let entry: Value = serde_json::from_str(line).unwrap();
        assert_eq!(entry["algorithm"], "md5");
        let (digest, path) = plain.split_once("  ").unwrap();
        assert_eq!(
            (&entry["checksum"], &entry["path"]),
            (&digest.into(), &path.into())
        );
    }
    assert!(plain.lines().count() > 20);
}
