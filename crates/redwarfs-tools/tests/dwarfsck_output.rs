//! What `dwarfsck` shows: every option, every detail, text and JSON, on the golden images.

use crate::dwarfsck_json::unbase64;
use crate::support::{DWARFSCK, build, must, run};
use redwarfs_extractor::display_path;
use redwarfs_testkit::golden::{compat_images, golden, golden_images};
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::Path;
use std::process::Output;

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn check(image: &Path, options: &[&str]) -> Output {
    let mut args: Vec<&OsStr> = vec![image.as_ref()];
    args.extend(options.iter().map(OsStr::new));
    run(DWARFSCK, args)
}

/// Whether a line is the verdict at the end of the information.
fn is_verdict(line: &str) -> bool {
    line.starts_with("OK: ") || line.starts_with("not checked: ")
}

/// Standard output of a run that finds nothing wrong, without the verdict.
pub(crate) fn shown(image: &Path, options: &[&str]) -> String {
    let out = shown_with_verdict(image, options);
    match out.lines().next_back() {
        Some(last) if is_verdict(last) => out[..out.len() - last.len() - 1].to_owned(),
        _ => out,
    }
}

/// Standard output of a run that finds nothing wrong and has nothing to say about it.
fn shown_with_verdict(image: &Path, options: &[&str]) -> String {
    let done = check(image, options);
    assert_eq!(
        (done.status.code(), text(&done.stderr)),
        (Some(0), String::new()),
        "{} {options:?}",
        image.display()
    );
    String::from_utf8(done.stdout).unwrap()
}

pub(crate) fn json(image: &Path, options: &[&str]) -> Value {
    let options = [&["-j"], options].concat();
    let text = shown(image, &options);
    assert_eq!(text.lines().count(), 1, "one line");
    serde_json::from_str(&text).unwrap()
}

/// What is wrong with the command line.
pub(crate) fn refused(options: &[&str]) -> String {
    let done = check(&golden("one").image, options);
    assert_eq!(done.status.code(), Some(1));
    assert!(done.stdout.is_empty());
    text(&done.stderr)
        .trim_end()
        .strip_prefix("dwarfsck: ")
        .unwrap()
        .to_owned()
}

#[test]
fn levels_add_up() {
    // The first level at which each part is there.
    let parts = [
        ("DwarFS version 2.5 [2]", 1),
        ("block count: ", 1),
        ("time resolution: ", 1),
        ("History:", 2),
        ("metadata memory usage:", 2),
        ("SECTION [V2.5] num=0, type=", 3),
        ("symlink_inode_offset: ", 3),
        ("  00000000..0000", 3),
        ("chunks @ start", 4),
        ("<inode:0> ---drwxr-xr-x (", 4),
        (" chunks in inode ", 5),
        ("metadata {", 6),
        ("Schema {", 7),
    ];
    let image = golden("basic-default").image;
    for level in 0..=8 {
        let out = shown(&image, &["--detail", &level.to_string()]);
        assert!(out.contains("created by: libdwarfs v0.15.3"));
        for (part, first) in parts {
            assert_eq!(out.contains(part), level >= first, "{part} at {level}");
        }
    }
    assert_eq!(shown(&image, &[]), shown(&image, &["-d2"]));
    assert_eq!(shown(&image, &["-d7"]), shown(&image, &["-d", "12"]));
    assert_eq!(shown(&image, &["-d0"]), shown(&image, &["-d", "-3"]));
    assert_eq!(
        shown(&image, &["-d", "metadata_summary,version"]),
        shown(&image, &["-d1"])
    );
    // Chunks are shown inside of the tree only.
    assert!(!shown(&image, &["-d", "chunk_details"]).contains("chunks in inode"));
    let text = refused(&["-d", "foo"]);
    assert!(
        text.starts_with("invalid feature: \"foo\" (one of a level from 0 to 7, version, "),
        "{text}"
    );
}

#[test]
fn parts_come_in_their_order() {
    let out = shown(&golden("bin-categorize").image, &["-d7"]);
    let marks = [
        "DwarFS version",
        "SECTION ",
        "History:",
        "created by:",
        "block size:",
        "categories:",
        "metadata memory usage:",
        "chunks @ start",
        "Schema {",
        "symlink_inode_offset:",
        "metadata {",
        "<inode:0>",
    ];
    let at: Vec<usize> = marks.map(|mark| out.find(mark).unwrap()).to_vec();
    assert!(at.is_sorted(), "{at:?}");
}

#[test]
fn memory_is_accounted_for_by_size_and_by_address() {
    let number = |line: &str| -> u64 {
        let before = line.split(" bytes").next().unwrap();
        let digits = before.rsplit(|c: char| !c.is_ascii_digit()).next();
        digits.unwrap().parse().unwrap()
    };
    for image in golden_images().into_iter().chain(compat_images()) {
        let by_size = shown(&image.image, &["-d", "frozen_analysis"]);
        let rows: Vec<&str> = by_size
            .lines()
            .skip_while(|line| !line.starts_with("metadata memory usage:"))
            .skip(2)
            .filter(|line| !line.contains("|- ") && !line.contains("'- "))
            .collect();
        let sizes: Vec<u64> = rows.iter().map(|line| number(line)).collect();
        assert!(sizes.is_sorted_by(|a, b| a >= b), "{}", image.name);
        let total = by_size
            .lines()
            .find(|l| l.contains("total metadata."))
            .unwrap();
        let total = number(total);
        let sum: u64 = sizes.iter().sum();
        // Old images, and tables that need alignment, have gaps.
        assert!(
            sum <= total && total - sum < 64,
            "{}: {sum} of {total}",
            image.name
        );

        let by_address = shown(&image.image, &["-d", "frozen_analysis,frozen_details"]);
        let starts: Vec<u64> = by_address
            .lines()
            .filter(|line| !line.contains("|- ") && !line.contains("'- "))
            .filter_map(|line| line.trim_start().split_once(".."))
            .filter_map(|(start, _)| u64::from_str_radix(start, 16).ok())
            .skip(1)
            .collect();
        assert_eq!(starts.len(), rows.len());
        assert!(starts.is_sorted(), "{}", image.name);
    }
}

#[test]
fn trees_in_text_show_what_there_is() {
    let out = shown(
        &golden("basic-default").image,
        &["-d", "directory_tree,chunk_details"],
    );
    for line in [
        "<inode:0> ---drwxr-xr-x (22 entries, parent=0)",
        "  <inode:1> ---drwxr-xr-x a (23 entries, parent=0)",
        "      <inode:3> ---drwxr-xr-x c (4 entries, parent=23)",
        "  <inode:44> ----rw-r--r-- all-hole [29, 30] 70000 (allocated: 0)",
        "    1 chunks in inode 44",
        "        [0] -> HOLE (size=70000)",
        "  <inode:63> ---brw-r----- blockdev (block device: 286327664)",
        "  <inode:64> ---crw-r--r-- chardev (char device: 259)",
        "  <inode:65> ---prw-r----- fifo (named pipe)",
        "  <inode:66> ---srwxr-xr-x sock (socket)",
        "  <inode:12> ---lrwxrwxrwx dangling -> /nonexistent/absolute/path",
        "          [0] -> DATA (block=0, offset=20368, size=40000)",
        "      <inode:50> ----rw-r--r-- latin1-\\xe9\\xff [139, 140] 5",
        "      <inode:56> ----rw-r--r-- new\\nline [145, 146] 8",
    ] {
        assert!(
            out.lines().any(|l| l == line || l.trim_end() == line),
            "{line}\n{out}"
        );
    }
}

#[test]
fn names_in_lists_stay_on_their_lines() {
    for image in golden_images() {
        let manifest = image.manifest();
        let names: BTreeSet<Vec<u8>> = manifest
            .0
            .keys()
            .filter(|p| p.as_slice() != b".")
            .cloned()
            .collect();
        let listed = shown(&image.image, &["-l"]);
        let lines: BTreeSet<&str> = listed.lines().collect();
        let want: BTreeSet<String> = names.iter().map(|p| display_path(p)).collect();
        assert_eq!(
            lines,
            want.iter().map(String::as_str).collect(),
            "{}",
            image.name
        );

        for null in ["-0", "--null"] {
            let exact = must(
                DWARFSCK,
                [image.image.as_os_str(), "--list".as_ref(), null.as_ref()],
            );
            let found: BTreeSet<Vec<u8>> = exact
                .stdout
                .split(|b| *b == 0)
                .filter(|p| !p.is_empty())
                .map(<[u8]>::to_vec)
                .collect();
            assert_eq!(found, names, "{}", image.name);
        }
    }
    let image = golden("basic-default").image;
    let long = shown(&image, &["-lv"]);
    let first = long.lines().next().unwrap();
    assert!(
        first.starts_with("---drwxr-xr-x ") && first.ends_with(" ."),
        "{first}"
    );
    assert!(
        long.lines()
            .any(|l| l.ends_with(" dangling -> /nonexistent/absolute/path"))
    );
    let exact = must(DWARFSCK, [image.as_os_str(), "-lv0".as_ref()]).stdout;
    assert!(exact.ends_with(b"\0"));
    assert!(
        exact.windows(9).any(|w| w == b" a/b/new\n"),
        "names as they are"
    );
    assert_eq!(refused(&["--null"]), "--null needs --list or --checksum");
}

#[test]
fn the_last_line_is_the_verdict() {
    let last = |options: &[&str]| {
        let out = text(&check(&golden("basic-default").image, options).stdout);
        out.lines().next_back().unwrap_or_default().to_owned()
    };
    let digests = "; not covered: 160 bytes of digests (see --check-integrity)";
    let good = "OK: 5 sections, 49 files, no errors";
    assert_eq!(last(&["--check-integrity"]), good);
    assert_eq!(last(&[]), format!("{good}{digests}"));
    assert_eq!(last(&["-d0"]), format!("{good}{digests}"));
    assert_eq!(last(&["--no-check"]), "not checked: 5 sections, 49 files");
    // What other programs read has none.
    for options in [
        &["-q"][..],
        &["-l"],
        &["-l", "-v"],
        &["--checksum=md5"],
        &["-j"],
        &["-l", "-j"],
        &["--export-metadata=-"],
    ] {
        assert!(!is_verdict(&last(options)), "{options:?}");
    }
    let image = golden("basic-header").image;
    let out = shown_with_verdict(&image, &["--check-integrity"]);
    let header = must(DWARFSCK, [image.as_os_str(), "-H".as_ref()]).stdout;
    let end = format!("; not covered: {} bytes before the image\n", header.len());
    assert!(out.ends_with(&end), "{out}");
    let all = json(&image, &["-d0", "--check-integrity"]);
    assert_eq!(
        all["uncovered"],
        serde_json::json!([{"bytes": header.len(), "offset": 0, "reason": "before"}])
    );
}

#[test]
fn metadata_is_exported_completely() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("metadata.json");
    let mut odd = false;
    for image in golden_images() {
        let option = format!("--export-metadata={}", file.display());
        assert_eq!(shown(&image.image, &["-q", &option]), "");
        let bytes = fs::read(&file).unwrap();
        assert!(bytes.starts_with(b"{\n  \"chunks\": ["));
        let exported: Value = serde_json::from_slice(&bytes).unwrap();
        let to_stdout = shown(&image.image, &["--export-metadata=-"]);
        assert_eq!(to_stdout.as_bytes(), bytes, "{}", image.name);
        let all = json(&image.image, &["-d", "metadata_details,metadata_full_dump"]);
        for (key, value) in all["full_metadata"].as_object().unwrap() {
            // The short form leaves out what is 0; whatever it has is here, too.
            match value {
                Value::Array(items) => {
                    assert_eq!(
                        items.len(),
                        exported[key].as_array().unwrap().len(),
                        "{key}"
                    );
                }
                Value::Object(_) => assert!(exported[key].is_object()),
                simple => assert_eq!(*simple, exported[key], "{key}"),
            }
        }
        // Names are strings, in unpacked form; those that are not UTF-8 are there exactly as well.
        let manifest = image.manifest();
        let mut names = BTreeSet::new();
        for (k, name) in exported["names"].as_array().unwrap().iter().enumerate() {
            let exact = exported
                .get("names_base64")
                .and_then(|odd| odd.get(k.to_string()));
            odd |= exact.is_some();
            names.insert(match exact {
                Some(exact) => unbase64(exact.as_str().unwrap()),
                None => name.as_str().unwrap().as_bytes().to_vec(),
            });
        }
        let want: BTreeSet<Vec<u8>> = manifest
            .0
            .keys()
            .filter(|p| p.as_slice() != b".")
            .map(|p| p.rsplit(|b| *b == b'/').next().unwrap().to_vec())
            .collect();
        assert_eq!(names, want, "{}", image.name);
        assert_eq!(exported["options"]["packed_chunk_table"], false);
        assert!(exported.get("compact_names").is_none());
    }
    assert!(odd, "some name is not UTF-8");

    let image = golden("one").image;
    let bad = dir.path().join("missing/metadata.json");
    let done = check(
        &image,
        &["-q", &format!("--export-metadata={}", bad.display())],
    );
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(
        text(&done.stderr),
        format!(
            "dwarfsck: failed to open metadata output file: {}: no such file or directory\n",
            bad.display()
        )
    );
    // With a file, the information is shown as well.
    let option = format!("--export-metadata={}", file.display());
    assert!(shown(&image, &["-d1", &option]).starts_with("DwarFS version"));
    assert_eq!(
        fs::read_dir(dir.path()).unwrap().count(),
        1,
        "nothing else is left"
    );
}

#[test]
fn checksums_in_all_algorithms() {
    const LENGTHS: [(&str, usize); 19] = [
        ("blake2b512", 128),
        ("blake2s256", 64),
        ("md5", 32),
        ("md5-sha1", 72),
        ("ripemd160", 40),
        ("sha1", 40),
        ("sha224", 56),
        ("sha256", 64),
        ("sha3-224", 56),
        ("sha3-256", 64),
        ("sha3-384", 96),
        ("sha3-512", 128),
        ("sha384", 96),
        ("sha512", 128),
        ("sha512-224", 56),
        ("sha512-256", 64),
        ("sm3", 64),
        ("xxh3-128", 32),
        ("xxh3-64", 16),
    ];
    let image = golden("one").image;
    for (algorithm, length) in LENGTHS {
        let out = shown(&image, &["--checksum", algorithm]);
        let (digest, path) = out.trim_end().split_once("  ").unwrap();
        assert_eq!((digest.len(), path), (length, "only"), "{algorithm}");
    }
    // What the original prints for this image; others agree with the usual tools.
    for (algorithm, digest) in [
        ("xxh3-64", "c4a7b1cdf37ccc95"),
        (
            "sm3",
            "50f263c717c52a9fde7d2efb47913e497cfe7dfb98bc5488a5b6dbb008730b6a",
        ),
    ] {
        assert_eq!(
            shown(&image, &["--checksum", algorithm]),
            format!("{digest}  only\n")
        );
    }
    for bad in ["foo", "none", ""] {
        let message = refused(&[&format!("--checksum={bad}")]);
        assert!(
            message.contains("checksum algorithm not available") || bad.is_empty(),
            "{message}"
        );
    }
    // Names are escaped as by sha256sum, or not at all where lines end in NUL.
    let dir = tempfile::tempdir().unwrap();
    let tree = dir.path().join("tree");
    fs::create_dir_all(tree.join("a/b")).unwrap();
    for name in ["a/b/new\nline", "a/b/back\\slash", "a/plain", "a/b/same"] {
        fs::write(tree.join(name), &name[..3]).unwrap();
    }
    let image = dir.path().join("image.dwarfs");
    build(&tree, &image, &[]);
    for (workers, cache) in [("1", "0"), ("3", "1m")] {
        let options = ["--checksum=md5", "-n", workers, "-s", cache];
        let lines = shown(&image, &options);
        let mut names: Vec<&str> = lines
            .lines()
            .map(|l| l.split_once("  ").unwrap().1)
            .collect();
        names.sort_unstable();
        assert_eq!(
            names,
            ["a/b/back\\\\slash", "a/b/new\\nline", "a/b/same", "a/plain"]
        );
        assert_eq!(lines.lines().filter(|l| l.starts_with('\\')).count(), 2);
        let exact = check(&image, &[&options[..], &["--null"]].concat()).stdout;
        let parts: Vec<&[u8]> = exact.split(|b| *b == 0).collect();
        assert_eq!(parts.len(), 5);
        assert!(
            parts
                .iter()
                .any(|p| p.ends_with(b"  a/b/new\nline") && p[0] != b'\\')
        );
    }
}

#[test]
fn statistics_are_exact() {
    let out = shown(&golden("basic-default").image, &["-d", "metadata_details"]);
    for line in [
        "chunks: 151",
        "directories: 11",
        "dir_entries: 70",
        "shared_files_table: 3",
        "unique files: 46",
        "single file block refs p50: 1, p75: 1, p90: 1, p95: 1, p99: 1, p99.9: 1",
        "mergeable chunks: 0/151",
    ] {
        assert!(out.lines().any(|l| l == line), "{line}: {out}");
    }
    let details = json(&golden("basic-default").image, &["-d", "metadata_details"]);
    let tree = json(&golden("basic-default").image, &["-d5"]);
    // The largest number of chunks that any file has.
    fn most(node: &Value) -> usize {
        let own = node["chunks"].as_array().map_or(0, Vec::len);
        let inside = node["inodes"]
            .as_array()
            .into_iter()
            .flatten()
            .map(most)
            .max();
        own.max(inside.unwrap_or(0))
    }
    assert_eq!(details["meta"]["chunk_count"]["p99.9"], most(&tree["root"]));
    let packed = shown(&golden("many-pack-all").image, &["-d3"]);
    assert!(packed.contains("\npacked shared_files_table: 81\nunpacked shared_files_table: 306\n"));
    let empty = shown(&golden("empty").image, &["-d3"]);
    assert!(
        empty.contains("p50: N/A") && !empty.contains("nan"),
        "{empty}"
    );
    assert!(
        empty.contains("compressed block size: 0 B (N/A)"),
        "{empty}"
    );
}

#[test]
fn categories_belong_to_their_blocks() {
    let image = golden("audio-categorize").image;
    let out = shown(&image, &["-d", "section_details,metadata_summary"]);
    let all = json(&image, &["-d", "section_details,metadata_summary"]);
    let blocks = all["sections"].as_array().unwrap();
    let lines = out.lines().filter(|l| l.starts_with("SECTION "));
    let mut with_metadata = 0;
    for (line, section) in lines.zip(blocks) {
        let Some(category) = section.get("category") else {
            assert!(!line.contains("category="));
            continue;
        };
        assert!(
            line.contains(&format!("category={}", category.as_str().unwrap())),
            "{line}"
        );
        // Only what is audio has parameters, and it has its own.
        assert_eq!(
            section.get("metadata").is_some(),
            section["compression"] == "FLAC"
        );
        match section.get("metadata") {
            Some(metadata) => {
                let (_, own) = line.split_once("metadata=").unwrap();
                assert_eq!(serde_json::from_str::<Value>(own).unwrap(), *metadata);
                with_metadata += 1;
            }
            None => assert!(!line.contains("metadata="), "{line}"),
        }
    }
    assert_eq!(with_metadata, 7);
    assert_eq!(all["categories"]["pcmaudio/waveform"]["block_count"], 7);
    assert!(out.contains("  pcmaudio/waveform: 7 blocks, "));
}

#[test]
fn every_kind_of_check_finds_good_images_good() {
    for image in golden_images() {
        let size = fs::metadata(&image.image).unwrap().len();
        let size = format!("--image-size={size}");
        let mut thorough = vec!["-q", "--check-integrity", "--num-workers=3"];
        if image.name == "basic-no-index" {
            // Nothing in it says that it is complete.
            let done = check(&image.image, &thorough);
            assert_eq!(done.status.code(), Some(1));
            assert!(text(&done.stderr).contains(&format!("say so with {size}")));
            thorough.push(&size);
        }
        for options in [&thorough[..], &["-q", "--no-check"], &["-q", "-n", "1"]] {
            assert_eq!(shown(&image.image, options), "", "{}", image.name);
        }
        let codec = check(&image.image, &["-q", "--decode", "--cache-size=1m"]);
        let said = text(&codec.stderr);
        if codec.status.code() != Some(0) {
            // A build without FLAC.
            assert!(
                image.name.starts_with("audio-") && said.contains("unsupported"),
                "{said}"
            );
        }
    }
}

#[test]
fn offsets_and_headers() {
    let image = golden("basic-header").image;
    let header = must(DWARFSCK, [image.as_os_str(), "--print-header".as_ref()]).stdout;
    let offset = header.len().to_string();
    for option in ["auto", "auto:1", &offset] {
        let out = shown(&image, &["-O", option, "-d", "version"]);
        assert!(out.starts_with(&format!("DwarFS version 2.5 [2] at offset {offset}\n")));
        let all = json(&image, &["--image-offset", option, "-d3"]);
        assert_eq!(all["image_offset"].to_string(), offset);
        // Places of sections count from the start of the image.
        assert_eq!(all["sections"][0]["offset"], 64);
    }
    let wrong = check(&image, &["-O", "0"]);
    assert_eq!(wrong.status.code(), Some(1));
    assert!(text(&wrong.stderr).contains("use --image-offset=auto"));
    assert!(refused(&["-O", "-1"]).contains("image offset must be positive"));
    let none = check(&golden("one").image, &["-H"]);
    assert_eq!(none.status.code(), Some(2));
    assert!(text(&none.stderr).contains("filesystem does not contain a header"));
}
