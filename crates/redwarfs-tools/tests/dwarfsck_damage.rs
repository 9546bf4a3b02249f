//! What `dwarfsck` says about damaged images: which section, where, and which files.

use crate::support::{DWARFSCK, run};
use redwarfs_format::section::{CompressionId, SectionHeader, SectionType};
use redwarfs_testkit::golden::{compat_images, golden};
use redwarfs_testkit::mutate::{Part, Parts, Rng};
use redwarfs_testkit::skip;
use serde_json::Value;
use std::collections::BTreeSet;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// A directory for damaged images.
pub(crate) struct TestDir(pub(crate) tempfile::TempDir);

impl TestDir {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn put(&self, image: &[u8]) -> PathBuf {
        let path = self.0.path().join("damaged.dwarfs");
        fs::write(&path, image).unwrap();
        path
    }
}

pub(crate) fn check(image: &Path, options: &[&str]) -> Output {
    let mut args: Vec<&OsStr> = vec![image.as_ref()];
    args.extend(options.iter().map(OsStr::new));
    run(DWARFSCK, args)
}

/// The messages of a run, without letters and times.
fn messages(done: &Output) -> Vec<String> {
    text(&done.stderr)
        .lines()
        .map(|line| {
            let log = line.get(..2).is_some_and(|l| l == "E " || l == "W ");
            if log {
                line[18..].to_owned()
            } else {
                line.to_owned()
            }
        })
        .collect()
}

/// The messages of a run that finds something.
pub(crate) fn found(image: &Path, options: &[&str]) -> Vec<String> {
    let done = check(image, &[&["-q"], options].concat());
    assert_eq!(done.status.code(), Some(1), "{}", text(&done.stderr));
    assert!(done.stdout.is_empty());
    messages(&done)
}

/// The list of errors in JSON.
pub(crate) fn errors(image: &Path, options: &[&str]) -> Vec<Value> {
    let done = check(image, &[&["-j", "-d0"], options].concat());
    assert_eq!(done.status.code(), Some(1));
    let all: Value = serde_json::from_slice(&done.stdout).unwrap();
    all["errors"].as_array().unwrap().clone()
}

pub(crate) fn image() -> Vec<u8> {
    fs::read(golden("basic-zstd-small-blocks").image).unwrap()
}

/// Type, offset of the header and length of the payload of each section.
pub(crate) fn sections(image: &[u8]) -> Vec<(SectionType, usize, usize)> {
    let mut list = Vec::new();
    let mut at = 0;
    while at < image.len() {
        let header = SectionHeader::parse(image[at..at + 64].try_into().unwrap()).unwrap();
        let length = usize::try_from(header.length).unwrap();
        list.push((header.ty, at, length));
        at += 64 + length;
    }
    list
}

fn position_of(image: &[u8], ty: SectionType) -> (usize, usize, usize) {
    let list = sections(image);
    let position = list.iter().position(|(t, ..)| *t == ty).unwrap();
    (position, list[position].1, list[position].2)
}

/// The files of a tree that have chunks in some blocks.
fn files_of(node: &Value, prefix: &str, blocks: &[u64], out: &mut BTreeSet<String>) {
    for child in node["inodes"].as_array().into_iter().flatten() {
        let path = format!("{prefix}{}", child["name"].as_str().unwrap());
        let mut chunks = child["chunks"].as_array().into_iter().flatten();
        if chunks.any(|c| c["block"].as_u64().is_some_and(|b| blocks.contains(&b))) {
            out.insert(path.clone());
        }
        files_of(child, &format!("{path}/"), blocks, out);
    }
}

#[test]
fn damaged_blocks_and_their_files_are_named() {
    let place = TestDir::new();
    let mut bytes = image();
    let list = sections(&bytes);
    for block in [0, 3] {
        bytes[list[block].1 + 100] ^= 1;
    }
    let path = place.put(&bytes);
    let offset = |block: usize| list[block].1 + 64;

    let short = found(&path, &[]);
    assert_eq!(short.len(), 2, "{short:?}");
    for (line, block) in short.iter().zip([0, 3]) {
        let start = format!(
            "checksum error in section {block} (BLOCK {block}) at offset {}: ",
            offset(block)
        );
        assert!(line.starts_with(&start), "{line}");
        assert!(
            line.contains(" are affected: ") || line.contains(" is affected: "),
            "{line}"
        );
    }

    // The names are those of the files with chunks in these blocks.
    let tree = check(
        &path,
        &["-j", "-d", "directory_tree,chunk_details", "--no-check"],
    );
    let tree: Value = serde_json::from_slice(&tree.stdout).unwrap();
    let mut users = BTreeSet::new();
    files_of(&tree["root"], "", &[0, 3], &mut users);
    assert!(users.len() > 3);
    let long = found(&path, &["-v"]);
    assert!(
        long[0].ends_with(&format!("at offset {}", offset(0))),
        "{long:?}"
    );
    let named: BTreeSet<String> = long
        .iter()
        .filter_map(|line| line.strip_prefix("affected file: "))
        .map(|rest| rest.rsplit_once(" (block").unwrap().0.to_owned())
        .collect();
    // Names that are not text are escaped here.
    assert_eq!(named.len(), users.len());

    // JSON says the same.
    let done = check(&path, &["-j", "-v", "-d0"]);
    assert_eq!(done.status.code(), Some(1));
    let all: Value = serde_json::from_slice(&done.stdout).unwrap();
    let files = all["affected_files"].as_array().unwrap();
    let listed: BTreeSet<String> = files
        .iter()
        .map(|f| f["path"].as_str().unwrap().to_owned())
        .collect();
    assert_eq!(listed, users);
    assert_eq!(files.len(), named.len());
    let mut total = 0;
    for (error, block) in all["errors"].as_array().unwrap().iter().zip([0, 3]) {
        assert_eq!(error["kind"], "checksum");
        assert_eq!(error["section"], block);
        assert_eq!(error["block"], block);
        assert_eq!(error["offset"], offset(block));
        assert_eq!(error["type"], "BLOCK");
        let count = error["affected"]["count"].as_u64().unwrap();
        let users = files
            .iter()
            .filter(|f| f["blocks"].as_array().unwrap().contains(&block.into()))
            .count();
        assert_eq!(count, users as u64);
        let first = error["affected"]["first"].as_array().unwrap();
        assert_eq!(first.len(), users.min(3));
        total += count;
    }
    assert!(total >= files.len() as u64);
    // Everything else is shown nevertheless.
    let shown = text(&check(&path, &["-d3"]).stdout);
    assert_eq!(shown.matches("[CHECKSUM ERROR]").count(), 2);
    assert!(shown.contains("inode count: "));
    // Nothing is verified and nothing reported without checks, but the details are right.
    let unchecked = check(&path, &["--no-check", "-d3"]);
    assert_eq!(unchecked.status.code(), Some(0));
    assert_eq!(
        text(&unchecked.stdout).matches("[CHECKSUM ERROR]").count(),
        2
    );
}

#[test]
fn other_sections_are_named_too() {
    let place = TestDir::new();
    for (ty, fatal) in [
        (SectionType::HISTORY, false),
        (SectionType::SECTION_INDEX, false),
        (SectionType::METADATA_V2, true),
        (SectionType::METADATA_V2_SCHEMA, true),
    ] {
        let mut bytes = image();
        let (position, at, length) = position_of(&bytes, ty);
        bytes[at + 64 + length / 2] ^= 1;
        // A block as well: one damage does not hide the other.
        bytes[100] ^= 1;
        let path = place.put(&bytes);
        let lines = found(&path, &[]);
        let name = format!("section {position} ({ty}) at offset {}", at + 64);
        assert!(
            lines
                .iter()
                .any(|l| l.starts_with("checksum error in section 0 (BLOCK 0)"))
        );
        if fatal {
            let last = lines.last().unwrap();
            assert!(
                last.starts_with("dwarfsck: cannot open image: "),
                "{lines:?}"
            );
            assert!(
                last.ends_with(&format!("{ty} (section {position} at offset {})", at + 64)),
                "{last}"
            );
        } else {
            assert!(
                lines
                    .iter()
                    .any(|l| *l == format!("checksum error in {name}")),
                "{lines:?}"
            );
        }
        let list = errors(&path, &[]);
        let wanted = list.iter().find(|e| e["section"] == position).unwrap();
        assert_eq!(wanted["kind"], "checksum");
        assert_eq!(wanted["type"], ty.to_string());
        assert_eq!(wanted["offset"], at + 64);
        assert_eq!(list.iter().any(|e| e["kind"] == "open"), fatal);
        let index = ty == SectionType::SECTION_INDEX;
        assert_eq!(
            lines
                .iter()
                .any(|l| l.starts_with("the section index is invalid: ")),
            index,
            "{lines:?}"
        );
        if index {
            let shown = text(&check(&path, &["-d", "section_details"]).stdout);
            assert!(shown.contains(" [INVALID]"));
        }
    }
}

#[test]
fn damaged_headers_do_not_hide_the_rest() {
    let place = TestDir::new();
    let intact = image();
    let list = sections(&intact);
    let name = |block: usize| {
        format!(
            "section {block} (BLOCK {block}) at offset {}",
            list[block].1 + 64
        )
    };

    // With an index, everything is known but what the header says.
    let mut bytes = intact.clone();
    bytes[list[2].1] ^= 1;
    bytes[list[5].1 + 100] ^= 1;
    let path = place.put(&bytes);
    let lines = found(&path, &[]);
    assert!(lines[0].starts_with(&format!("damaged header of {}: it has no magic: ", name(2))));
    assert!(lines[0].contains("affected: "), "{lines:?}");
    assert!(lines[1].starts_with(&format!("checksum error in {}", name(5))));
    let shown = text(&check(&path, &["-d", "section_details"]).stdout);
    assert!(shown.contains("num=2, type=BLOCK, compression=?, length=6571 [HEADER ERROR]"));
    // A length that leads astray, and one that leaves a gap.
    for (change, start) in [(5_i64, "its length is "), (-5, "")] {
        let mut bytes = intact.clone();
        let length = (list[2].2 as i64 + change) as u64;
        bytes[list[2].1 + 56..list[2].1 + 64].copy_from_slice(&length.to_le_bytes());
        let lines = found(&place.put(&bytes), &[]);
        if change > 0 {
            assert!(lines[0].starts_with(&format!("damaged header of {}: {start}", name(2))));
        } else {
            assert!(
                lines
                    .iter()
                    .any(|l| l.starts_with(&format!("checksum error in {}", name(2))))
            );
            let at = list[2].1 + 64 + list[2].2 - 5;
            assert!(
                lines.contains(&format!("5 bytes at offset {at} belong to no section")),
                "{lines:?}"
            );
        }
    }
    // Another type than the index says.
    let mut bytes = intact.clone();
    bytes[list[2].1 + 0x34] = 10;
    let lines = found(&place.put(&bytes), &[]);
    assert!(
        lines[0].contains("it says HISTORY, the section index says BLOCK"),
        "{lines:?}"
    );

    // Without an index, the headers that follow are searched for.
    let end = position_of(&intact, SectionType::SECTION_INDEX).1;
    let cut = &intact[..end];
    let mut bytes = cut.to_vec();
    bytes[list[2].1] ^= 1;
    bytes[list[5].1 + 100] ^= 1;
    let path = place.put(&bytes);
    let lines = found(&path, &[]);
    assert_eq!(lines.len(), 2, "{lines:?}");
    assert_eq!(lines[0], format!("checksum error in {}", name(5)));
    assert!(
        lines[1].ends_with(&format!("(section 2 at offset {})", list[2].1)),
        "{lines:?}"
    );
    let list_of_errors = errors(&path, &[]);
    assert_eq!(list_of_errors[0]["kind"], "header");
    assert_eq!(list_of_errors[0]["section"], 2);
    assert_eq!(list_of_errors[0]["block"], 2);

    let mut bytes = cut.to_vec();
    let wrong = (list[2].2 as u64 + 7).to_le_bytes();
    bytes[list[2].1 + 56..list[2].1 + 64].copy_from_slice(&wrong);
    let lines = found(&place.put(&bytes), &[]);
    assert!(
        lines[0].starts_with(&format!(
            "damaged header of {}: its length is {} instead of {}",
            name(2),
            list[2].2 + 7,
            list[2].2
        )),
        "{lines:?}"
    );

    // Several sections gone at once.
    let mut bytes = cut.to_vec();
    bytes[list[2].1..list[5].1].fill(0);
    let kinds: Vec<Value> = errors(&place.put(&bytes), &[]);
    assert!(
        kinds
            .iter()
            .any(|e| e["message"] == "2 more sections are lost before number 5"),
        "{kinds:?}"
    );
}

#[test]
fn what_no_checksum_covers_is_compared() {
    let place = TestDir::new();
    let intact = image();
    let list = sections(&intact);
    let mut bytes = intact.clone();
    bytes[list[3].1 + 7] = 99;
    let lines = found(&place.put(&bytes), &[]);
    assert_eq!(
        lines,
        [format!(
            "version 2.99 instead of 2.5 in the header of section 3 (BLOCK 3) at offset {}",
            list[3].1 + 64
        )]
    );
    assert_eq!(errors(&place.put(&bytes), &[])[0]["kind"], "header");

    // Sections in another order, with right checksums: the numbers tell.
    let parts = Parts::of(&intact);
    let mut image = Vec::new();
    for (number, part) in [0, 1, 3, 2].into_iter().chain(4..).zip(&parts.0) {
        image
            .extend(SectionHeader::seal(number, part.ty, part.compression, &part.payload).encode());
        image.extend_from_slice(&part.payload);
    }
    let kinds = errors(&place.put(&image), &[]);
    assert!(kinds.iter().all(|e| e["kind"] == "order"), "{kinds:?}");
    assert_eq!((&kinds[0]["section"], kinds.len()), (&2.into(), 3));
    assert!(
        kinds[0]["message"]
            .as_str()
            .unwrap()
            .starts_with("number 3 in the header of section 2")
    );
}

#[test]
fn the_strong_digest_is_a_check_of_its_own() {
    let place = TestDir::new();
    let mut bytes = image();
    let list = sections(&bytes);
    // The digest itself is not covered by the fast checksum.
    bytes[list[1].1 + 10] ^= 1;
    let path = place.put(&bytes);
    assert_eq!(check(&path, &["-q"]).status.code(), Some(0));
    let lines = found(&path, &["--check-integrity"]);
    assert_eq!(lines.len(), 1);
    let start = format!(
        "integrity check error in section 1 (BLOCK 1) at offset {}",
        list[1].1 + 64
    );
    assert!(lines[0].starts_with(&start), "{lines:?}");
    assert_eq!(
        errors(&path, &["--check-integrity"])[0]["kind"],
        "integrity"
    );
    // And the other way round.
    let mut bytes = image();
    bytes[list[1].1 + 0x28] ^= 1;
    let path = place.put(&bytes);
    assert_eq!(errors(&path, &[])[0]["kind"], "checksum");
    assert_eq!(
        errors(&path, &["--check-integrity"])[0]["kind"],
        "integrity"
    );
}

/// The parts of the image with another payload for block 1.
fn with_block(compression: CompressionId, payload: Vec<u8>) -> Vec<u8> {
    let mut parts = Parts::of(&image());
    parts.0[1] = Part {
        ty: SectionType::BLOCK,
        compression,
        payload,
    };
    parts.assemble()
}

#[test]
fn payloads_that_cannot_be_decoded_are_found_by_decoding() {
    let place = TestDir::new();
    let parts = Parts::of(&image());
    // A frame that says how long it is and then goes wrong, with the right checksums.
    let mut payload = parts.0[1].payload.clone();
    let middle = payload.len() / 2;
    payload[middle..].fill(0xff);
    let path = place.put(&with_block(parts.0[1].compression, payload));
    for options in [&["-q"][..], &["-q", "--check-integrity"]] {
        assert_eq!(check(&path, options).status.code(), Some(0));
    }
    for cache in ["0", "512m"] {
        let lines = found(&path, &["--decode", "-s", cache]);
        assert_eq!(lines.len(), 1);
        assert!(
            lines[0].starts_with("cannot decode section 1 (BLOCK 1) at offset "),
            "{lines:?}"
        );
        assert!(lines[0].contains("affected: "), "{lines:?}");
    }
    assert_eq!(errors(&path, &["--decode"])[0]["kind"], "decode");
    let shown = text(&check(&path, &["--decode", "-d", "section_details"]).stdout);
    assert!(shown.contains("[DECODING ERROR]"));
}

#[test]
fn blocks_that_are_too_short_are_noticed() {
    let place = TestDir::new();
    let path = place.put(&with_block(CompressionId::NONE, vec![7; 100]));
    let lines = found(&path, &[]);
    assert!(
        lines[0].starts_with("files use ")
            && lines[0].contains(" bytes of section 1 (BLOCK 1) at offset "),
        "{lines:?}"
    );
    assert!(lines[0].contains(" which has 100: "), "{lines:?}");
    assert!(lines[0].contains(" affected: "), "{lines:?}");
    assert_eq!(errors(&path, &[])[0]["kind"], "size");
}

#[test]
fn old_images_without_checksums_are_decoded() {
    let place = TestDir::new();
    let old = compat_images();
    let old = old.iter().find(|i| i.name == "setuidgid-v0.4.1").unwrap();
    // Formats 2.0 and 2.1 have no checksums; this one has them, its blocks are compressed.
    let bytes = fs::read(&old.image).unwrap();
    assert_eq!(bytes[7], 2);
    // The same blocks in an image without: 8-byte headers.
    let parts = Parts::of(&bytes);
    let short = |damage: bool| {
        let mut image = b"DWARFS\x02\x00".to_vec();
        for part in &parts.0 {
            let mut payload = part.payload.clone();
            if damage && part.ty == SectionType::BLOCK && part.compression != CompressionId::NONE {
                let end = payload.len();
                payload[end / 3..].fill(0xee);
            }
            image.extend(part.ty.0.to_le_bytes());
            image.extend([part.compression.0 as u8, 0]);
            image.extend((payload.len() as u32).to_le_bytes());
            image.extend(payload);
        }
        image
    };
    let good = check(&place.put(&short(false)), &["-q"]);
    assert_eq!(
        (good.status.code(), text(&good.stderr)),
        (Some(0), String::new())
    );
    let lines = found(&place.put(&short(true)), &[]);
    assert!(lines[0].starts_with("cannot decode section "), "{lines:?}");
}

#[test]
fn what_follows_an_image_is_an_error_unless_declared() {
    let place = TestDir::new();
    let intact = image();
    let other = fs::read(golden("one").image).unwrap();
    let size = format!("--image-size={}", intact.len());
    for tail in [&b"something else"[..], &other] {
        let path = place.put(&[&intact[..], tail].concat());
        let list = errors(&path, &[]);
        assert_eq!(list.len(), 1, "{list:?}");
        assert_eq!(list[0]["kind"], "trailing");
        let lines = found(&path, &[]);
        let start = format!("{} bytes ", tail.len());
        assert!(
            lines.len() == 1 && lines[0].starts_with(&start),
            "{lines:?}"
        );
        let mut declared = vec![&size[..]];
        if tail == other {
            declared.push("-Oauto:1");
        }
        for option in declared {
            let done = check(&path, &["-j", "-d3", option]);
            assert_eq!(
                (done.status.code(), text(&done.stderr)),
                (Some(0), String::new())
            );
            let all: Value = serde_json::from_slice(&done.stdout).unwrap();
            assert_eq!(all["trailing_bytes"], tail.len());
            assert_eq!(all["errors"].as_array().unwrap().len(), 0);
            let behind = &all["uncovered"].as_array().unwrap()[1];
            assert_eq!(behind["reason"], "behind");
            assert_eq!(behind["offset"], intact.len());
        }
    }
    // Zeros up to the end of a sector are looked at.
    let padded = place.put(&[&intact[..], &[0; 300]].concat());
    let done = check(&padded, &["-q", "--check-integrity"]);
    assert_eq!(
        (done.status.code(), text(&done.stderr)),
        (Some(0), String::new())
    );
}

#[test]
fn images_on_block_devices_need_not_fill_them() {
    let place = TestDir::new();
    let intact = image();
    let index = sections(&intact).last().unwrap().1;
    for (image, code) in [(&intact[..], 0), (&intact[..index], 1)] {
        let mut bytes = image.to_vec();
        bytes.resize(1 << 20, 0xa5);
        let file = place.put(&bytes);
        let made = Command::new("losetup")
            .args(["--find", "--show", "--read-only"])
            .arg(&file)
            .output();
        let device = match made {
            Ok(made) if made.status.success() => text(&made.stdout).trim_end().to_owned(),
            _ => {
                return skip(
                    "an image on a block device",
                    "losetup needs root and a device",
                );
            }
        };
        let done = check(Path::new(&device), &["--check-integrity", "-d0"]);
        let detached = run("losetup", ["--detach", &device]);
        assert!(detached.status.success(), "{device}");
        assert_eq!(done.status.code(), Some(code), "{}", text(&done.stderr));
        if code == 0 {
            let behind = format!(
                "; not covered: {} bytes behind the image\n",
                (1 << 20) - image.len()
            );
            assert!(
                text(&done.stdout).ends_with(&behind),
                "{}",
                text(&done.stdout)
            );
        }
    }
}

/// The program itself; `every_bit.rs` of the reader asks the library about every bit.
#[test]
fn flipped_bits_and_missing_ends_make_the_exit_code() {
    let place = TestDir::new();
    let intact = fs::read(golden("one").image).unwrap();
    let last = sections(&intact).last().unwrap().1;
    // The number in the last header becomes 0, as if another image began there.
    let mut flips = vec![(last + 48, 2)];
    let mut rng = Rng::new(48);
    flips.extend((0..40).map(|_| (rng.below(intact.len()), rng.below(8))));
    for (at, bit) in flips {
        let mut bytes = intact.clone();
        bytes[at] ^= 1 << bit;
        let done = check(&place.put(&bytes), &["-q", "--check-integrity"]);
        assert_eq!(done.status.code(), Some(1), "bit {bit} of byte {at}");
        assert!(!done.stderr.is_empty());
    }
    let mut lengths: Vec<usize> = (0..15).map(|_| rng.below(intact.len())).collect();
    lengths.extend(
        sections(&intact)
            .iter()
            .flat_map(|(_, at, _)| [*at, at + 3, at + 64]),
    );
    for length in lengths {
        let done = check(&place.put(&intact[..length]), &["-q", "--check-integrity"]);
        assert_eq!(done.status.code(), Some(1), "{length} bytes");
        assert_eq!(
            text(&done.stderr).lines().count(),
            1,
            "{length} bytes: {}",
            text(&done.stderr)
        );
    }
}

#[test]
fn the_verdict_counts_errors_and_affected_files() {
    let place = TestDir::new();
    let mut bytes = image();
    let list = sections(&bytes);
    for block in [0, 3] {
        bytes[list[block].1 + 100] ^= 1;
    }
    let path = place.put(&bytes);
    let done = check(&path, &["-j", "-v", "-d0"]);
    let all: Value = serde_json::from_slice(&done.stdout).unwrap();
    let affected = all["affected_files"].as_array().unwrap().len();
    let shown = text(&check(&path, &["-d0"]).stdout);
    assert_eq!(
        shown.lines().next_back().unwrap(),
        format!("damaged: 2 errors, {affected} files affected")
    );
    let mut bytes = image();
    let (_, at, _) = position_of(&bytes, SectionType::HISTORY);
    bytes[at + 70] ^= 1;
    let shown = text(&check(&place.put(&bytes), &["-d0"]).stdout);
    assert_eq!(shown.lines().next_back().unwrap(), "damaged: 1 error");
}

#[test]
fn images_that_end_too_early_are_fatal() {
    let place = TestDir::new();
    let intact = image();
    let list = sections(&intact);
    for (cut, position) in [
        (list[4].1 + 200, 4),
        (list[4].1 + 20, 4),
        (list[9].1 + 100, 9),
    ] {
        let path = place.put(&intact[..cut]);
        let lines = found(&path, &[]);
        assert_eq!(lines.len(), 1, "{lines:?}");
        assert!(
            lines[0].contains(&format!("(section {position} at offset ")),
            "{lines:?}"
        );
        let list = errors(&path, &[]);
        assert!(list.iter().any(|e| e["section"] == position), "{list:?}");
    }
    for options in [&["-q"][..], &["-j"], &["-l"]] {
        let done = check(&place.put(b"no image at all"), options);
        assert_eq!(done.status.code(), Some(1));
        assert!(done.stdout.is_empty());
    }
}
