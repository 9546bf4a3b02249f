//! Images whose checksums are right, and whose sections contradict each other or make no sense.

use crate::dwarfsck_damage::{TestDir, check, errors, found, image, text};
use redwarfs_format::metadata::Metadata;
use redwarfs_format::section::{CompressionId, SectionHeader, SectionType, encode_section_index};
use redwarfs_testkit::mutate::{Part, Parts};
use serde_json::Value;

#[test]
fn histories_that_make_no_sense_are_noticed() {
    let place = TestDir::new();
    let mut parts = Parts::of(&image());
    *parts.payload(SectionType::HISTORY).unwrap() = vec![0x19, 0xfc, 0xff, 0xff];
    let path = place.put(&parts.assemble());
    for options in [&[][..], &["--decode"]] {
        let lines = found(&path, options);
        assert!(
            lines
                .iter()
                .any(|l| l.starts_with("cannot decode section 10 (HISTORY) at offset ")),
            "{lines:?}"
        );
    }
    // The rest is shown.
    let done = check(&path, &[]);
    assert!(text(&done.stdout).contains("inode count: "));
    assert!(!text(&done.stdout).contains("History:"));
}

#[test]
fn duplicate_sections_are_named() {
    let place = TestDir::new();
    let mut parts = Parts::of(&image());
    let unknown = Part {
        ty: SectionType(77),
        compression: CompressionId::NONE,
        payload: b"what is this".to_vec(),
    };
    let at = parts.0.len();
    parts.0.push(unknown.clone());
    assert_eq!(
        check(&place.put(&parts.assemble()), &["-q"]).status.code(),
        Some(0)
    );
    parts.0.push(unknown);
    let path = place.put(&parts.assemble());
    let lines = found(&path, &[]);
    let wanted = format!(
        "duplicate section: section {} (UNKNOWN(77)) at offset ",
        at + 1
    );
    assert!(lines.iter().any(|l| l.starts_with(&wanted)), "{lines:?}");
    assert_eq!(errors(&path, &[])[0]["kind"], "duplicate");

    let mut parts = Parts::of(&image());
    let metadata = parts
        .0
        .iter()
        .find(|p| p.ty == SectionType::METADATA_V2)
        .unwrap()
        .clone();
    parts.0.push(metadata);
    let list = errors(&place.put(&parts.assemble()), &[]);
    assert!(
        list.iter()
            .any(|e| e["kind"] == "duplicate" && e["type"] == "METADATA_V2")
    );
    assert!(list.iter().any(|e| e["kind"] == "open"));
}

#[test]
fn an_index_that_lies_is_noticed() {
    let place = TestDir::new();
    let parts = Parts::of(&image());
    for damage in [
        // One section less than there is, with a right checksum.
        (|index: &mut Vec<u8>| drop(index.drain(8..16))) as fn(&mut Vec<u8>),
        // An offset that is not in order.
        |index| index[16] ^= 0xff,
    ] {
        let path = place.put(&parts.assemble_with(damage));
        let done = check(&path, &["-q"]);
        assert_eq!(done.status.code(), Some(1), "{}", text(&done.stderr));
    }
    // An index that is right but for a gap: bytes that belong to no section.
    let mut image = Vec::new();
    let mut index = Vec::new();
    for (number, part) in (0..).zip(&parts.0) {
        if part.ty == SectionType::METADATA_V2_SCHEMA {
            image.extend([0; 10]);
        }
        index.push((part.ty, image.len() as u64));
        image
            .extend(SectionHeader::seal(number, part.ty, part.compression, &part.payload).encode());
        image.extend_from_slice(&part.payload);
    }
    index.push((SectionType::SECTION_INDEX, image.len() as u64));
    let payload = encode_section_index(&index);
    let number = index.len() as u32 - 1;
    image.extend(
        SectionHeader::seal(
            number,
            SectionType::SECTION_INDEX,
            CompressionId::NONE,
            &payload,
        )
        .encode(),
    );
    image.extend(payload);
    let path = place.put(&image);
    let lines = found(&path, &[]);
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with("10 bytes at offset "), "{lines:?}");
    assert_eq!(errors(&path, &[])[0]["kind"], "gap");
}

/// The image with other metadata.
fn with_metadata(change: impl FnOnce(&mut Metadata)) -> Vec<u8> {
    let mut parts = Parts::of(&image());
    let mut metadata = parts.metadata().unwrap();
    change(&mut metadata);
    parts.set_metadata(&metadata).unwrap();
    parts.assemble()
}

#[test]
fn inconsistent_metadata_is_reported_and_shown() {
    let place = TestDir::new();
    let path = place.put(&with_metadata(|m| {
        let entries = m.dir_entries.as_mut().unwrap();
        entries.swap(3, 4);
    }));
    let lines = found(&path, &[]);
    assert!(
        lines[0].starts_with("the metadata is inconsistent: "),
        "{lines:?}"
    );
    let list = errors(&path, &[]);
    assert_eq!(
        (&list[0]["kind"], &list[0]["type"]),
        (&"metadata".into(), &"METADATA_V2".into())
    );
    assert!(text(&check(&path, &[]).stdout).contains("inode count: "));
    assert_eq!(check(&path, &["-q", "--no-check"]).status.code(), Some(0));

    // Entries that cannot be shown are left out, everything stays valid, and the exit code tells.
    let path = place.put(&with_metadata(|m| {
        let last = m.dir_entries.as_mut().unwrap().last_mut().unwrap();
        last.name_index = 5000;
    }));
    for options in [&["-l"][..], &["-lv"], &["-d7"], &["-j", "-d7"]] {
        let done = check(&path, &[&["--no-check"], options].concat());
        assert_eq!(done.status.code(), Some(1), "{options:?}");
        assert!(
            !done.stderr.is_empty() && !done.stdout.is_empty(),
            "{options:?}"
        );
        if options[0] == "-j" {
            serde_json::from_slice::<Value>(&done.stdout).unwrap();
        }
    }
}

#[test]
fn text_from_an_image_cannot_break_the_output() {
    let place = TestDir::new();
    let path = place.put(&with_metadata(|m| {
        m.dwarfs_version = Some(b"evil\n\x1b[2J\xff version".to_vec());
        m.category_names = Some(vec![b"no\xfftext\n".to_vec(), b"no\xfftext\n".to_vec()]);
        let blocks = 8;
        m.block_categories = Some((0..blocks).map(|b| b % 2).collect());
        m.category_metadata_json = Some(vec![b"{\"a\": \n nonsense \xff".to_vec()]);
        m.block_category_metadata = Some([(0, 0)].into());
    }));
    let done = check(&path, &["-d7"]);
    assert_eq!(done.status.code(), Some(0), "{}", text(&done.stderr));
    assert!(!done.stdout.contains(&0x1b));
    assert!(std::str::from_utf8(&done.stdout).is_ok());
    let done = check(&path, &["-j", "-d7"]);
    let all: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(all["created_by"], "evil\n\u{1b}[2J\u{fffd} version");
    assert!(all.get("created_by_base64").is_some());
    assert_eq!(all["categories"].as_object().unwrap().len(), 2);
    assert!(all["sections"][0]["metadata_text"].is_string());
    let export = check(&path, &["-q", "--export-metadata=-"]);
    serde_json::from_slice::<Value>(&export.stdout).unwrap();
}
