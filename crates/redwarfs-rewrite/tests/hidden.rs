//! Images with hidden sections, and with older generations in the same file: reading, checking and
//! rewriting them.

use std::sync::atomic::AtomicBool;

use crate::common::open;
use redwarfs_format::section::{
    Binding, CompressionId, Footer, GenerationId, HiddenPayload, MetadataId, Prelude,
    SectionHeader, SectionType, encode_hidden_section, encode_section_index, tail_pointer,
};
use redwarfs_reader::check::{DeclaredImage, FindingKind, VerifyMode};
use redwarfs_reader::{CheckOptions, Image};
use redwarfs_rewrite::{Rebuild, RewriteOptions, rewrite};
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::{Fields, Manifest};
use redwarfs_writer::{Counters, Level, Progress};

const COPY_BOUND: SectionType = SectionType(0x4402);
const META: SectionType = SectionType(0x4440);

fn plain() -> Vec<u8> {
    std::fs::read(golden("basic-all-times-ns").image).unwrap()
}

fn add(file: &mut Vec<u8>, ty: SectionType, binding: Binding, body: &[u8]) {
    let image = open(file);
    let container = image.container();
    let number = (container.sections.len() + container.trailers.len()) as u32;
    let index = container.sections.last().unwrap();
    assert_eq!(index.ty, SectionType::SECTION_INDEX);
    let schema = container
        .only_section_of_type(SectionType::METADATA_V2_SCHEMA)
        .unwrap();
    let prelude = Prelude {
        tag: *b"TEST",
        major: 1,
        minor: 2,
        flags: 3,
        binding,
    };
    let footer = Footer {
        open_offset: schema.header_offset,
        open_length: file.len() as u64 - schema.header_offset,
        index: Some(index.header_offset),
    };
    file.extend(encode_hidden_section(number, ty, &prelude, body, &footer));
}

/// The golden image with a hidden section of each class.
fn with_trailers() -> Vec<u8> {
    let mut file = plain();
    let image = open(&file);
    let container = image.container();
    let payload = |ty| {
        let section = container.only_section_of_type(ty).unwrap();
        image.decode_section(section).unwrap()
    };
    let tree = MetadataId::of(
        &payload(SectionType::METADATA_V2_SCHEMA),
        &payload(SectionType::METADATA_V2),
    );
    let generation = GenerationId::of(&payload(SectionType::SECTION_INDEX));
    add(&mut file, SectionType::NOTE, Binding::None, b"{}");
    add(&mut file, COPY_BOUND, Binding::Metadata(tree), b"tree");
    add(&mut file, META, Binding::Metadata(tree), b"more");
    let bound = Binding::Generation(generation);
    add(&mut file, SectionType::SNAPSHOTS, bound, b"table");
    add(&mut file, SectionType::RECOVERY, bound, &[7; 5000]);
    add(&mut file, SectionType::RECOVERY, bound, &[8; 5000]);
    file
}

/// Appends a generation with the tree of the newest one.
fn append(file: &mut Vec<u8>) {
    let image = open(file);
    let container = image.container();
    let last = container.sections.iter().chain(&container.trailers).last();
    let mut number = last.unwrap().number + 1;
    let mut entries: Vec<_> = container
        .blocks()
        .map(|s| (s.ty, s.header_offset))
        .collect();
    for ty in [
        SectionType::METADATA_V2_SCHEMA,
        SectionType::METADATA_V2,
        SectionType::HISTORY,
    ] {
        let Ok(section) = container.only_section_of_type(ty) else {
            continue;
        };
        let payload = image.stored_payload(section).unwrap();
        entries.push((ty, file.len() as u64));
        let compression = section.compression.unwrap();
        file.extend(SectionHeader::seal(number, ty, compression, &payload).encode());
        file.extend(payload);
        number += 1;
    }
    entries.push((SectionType::SECTION_INDEX, file.len() as u64));
    let payload = encode_section_index(&entries);
    let ty = SectionType::SECTION_INDEX;
    file.extend(SectionHeader::seal(number, ty, CompressionId::NONE, &payload).encode());
    file.extend(payload);
}

/// What a check finds, with both hashes.
fn findings(file: &[u8]) -> Vec<(FindingKind, String)> {
    let image = open(file);
    let mut options = CheckOptions::default();
    options.mode = VerifyMode::Integrity;
    let list = image.list_sections().unwrap();
    let report = image
        .check(list, DeclaredImage::default(), &options, &|_| {})
        .unwrap();
    let findings = report.findings.iter();
    findings.map(|f| (f.kind, f.to_string())).collect()
}

fn manifest(image: &Image) -> Manifest {
    Manifest::from_image(image, true).unwrap()
}

fn copy() -> RewriteOptions {
    RewriteOptions::level(1)
}

fn trailers(file: &[u8]) -> Vec<(SectionType, Vec<u8>)> {
    let image = open(file);
    let trailers = image.container().trailers.iter();
    trailers
        .map(|section| {
            let payload = image.stored_payload(section).unwrap();
            let hidden = HiddenPayload::parse(&payload).unwrap();
            assert_eq!((hidden.prelude.minor, hidden.prelude.flags), (2, 3));
            (section.ty, hidden.body.to_vec())
        })
        .collect()
}

/// Collects warnings.
#[derive(Default)]
struct Warnings {
    counters: Counters,
    said: std::sync::Mutex<Vec<String>>,
}

impl Progress for Warnings {
    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn log(&self, level: Level, message: &str) {
        if level == Level::Warn {
            self.said.lock().unwrap().push(message.to_owned());
        }
    }
}

fn rewrite_to(file: &[u8], options: &RewriteOptions) -> (Vec<u8>, Vec<String>) {
    let (mut out, warnings) = (Vec::new(), Warnings::default());
    let stop = AtomicBool::new(false);
    rewrite(&open(file), options, &mut out, &warnings, &stop).unwrap();
    (out, warnings.said.into_inner().unwrap())
}

#[test]
fn images_with_trailers_read_and_check_as_without() {
    let (plain, file) = (plain(), with_trailers());
    manifest(&open(&plain)).assert_same(&manifest(&open(&file)), Fields::ALL, "trailers");
    assert_eq!(findings(&file), []);
    let image = open(&file);
    assert_eq!(image.trailing_bytes(), 0);
    // Damage to a trailer is found, and is no damage to the tree.
    for section in &image.container().trailers {
        let mut damaged = file.clone();
        damaged[section.payload_offset as usize + 33] ^= 1;
        let found = findings(&damaged);
        assert_eq!(found.len(), 1, "{found:?}");
        let (kind, text) = &found[0];
        assert_eq!(*kind, FindingKind::Integrity, "{text}");
        assert!(text.contains(&section.ty.to_string()), "{text}");
        manifest(&open(&plain)).assert_same(&manifest(&open(&damaged)), Fields::ALL, "damaged");
    }
}

#[test]
fn older_generations_are_no_damage() {
    let plain = plain();
    let mut file = with_trailers();
    for _ in 0..3 {
        append(&mut file);
        assert_eq!(findings(&file), []);
        let image = open(&file);
        assert_eq!(image.trailing_bytes(), 0);
        manifest(&open(&plain)).assert_same(&manifest(&image), Fields::ALL, "appended");
    }
    // A gap that is no row of sections is one.
    let dead = open(&plain).container().sections[2].header_offset;
    file[dead as usize] ^= 1;
    let found = findings(&file);
    assert_eq!(
        found.iter().filter(|f| f.0 == FindingKind::Gap).count(),
        1,
        "{found:?}"
    );
    // Rewriting leaves one generation, without gaps.
    let mut file = with_trailers();
    append(&mut file);
    let (out, said) = rewrite_to(&file, &copy());
    assert!(said.is_empty(), "{said:?}");
    assert_eq!(findings(&out), []);
    manifest(&open(&plain)).assert_same(&manifest(&open(&out)), Fields::ALL, "rewritten");
    assert_eq!(
        open(&out).container().sections.len(),
        open(&plain).container().sections.len()
    );
}

#[test]
fn an_unused_tail_is_reported() {
    let mut file = with_trailers();
    let own = open(&file)
        .container()
        .sections
        .last()
        .unwrap()
        .header_offset;
    file.extend([0; 999]);
    file.extend(tail_pointer(own).to_le_bytes());
    manifest(&open(&plain())).assert_same(&manifest(&open(&file)), Fields::ALL, "tail");
    let found = findings(&file);
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(
        found[0].1.contains("unused tail of 1007 bytes"),
        "{found:?}"
    );
    // A copy does not have it.
    let (out, _) = rewrite_to(&file, &copy());
    assert_eq!(findings(&out), []);
    assert_eq!(open(&out).container().unused_tail, 0);
}

#[test]
fn a_rewrite_keeps_what_stays_true() {
    let file = with_trailers();
    let note = (SectionType::NOTE, b"{}".to_vec());
    let tree = (COPY_BOUND, b"tree".to_vec());
    let more = (META, b"more".to_vec());
    let mut rebuild = copy();
    rebuild.rebuild = Some(Rebuild::default());
    let mut blocks = copy();
    blocks.blocks = true;
    let mut metadata = copy();
    metadata.metadata = true;
    let mut bare = copy();
    bare.section_index = false;
    for (options, kept, dropped) in [
        (copy(), vec![note.clone(), tree.clone(), more.clone()], 3),
        (blocks, vec![note.clone(), tree.clone(), more.clone()], 3),
        (metadata, vec![note.clone(), tree.clone(), more.clone()], 3),
        (rebuild, vec![note.clone()], 5),
        (bare, vec![], 6),
    ] {
        let (out, said) = rewrite_to(&file, &options);
        assert_eq!(trailers(&out), kept);
        assert_eq!(findings(&out).len(), usize::from(!options.section_index));
        assert_eq!(said.len(), 1, "{said:?}");
        let what = format!("drops {dropped} hidden section(s)");
        assert!(said[0].contains(&what), "{said:?}");
        if options.section_index {
            // Once more, nothing is left to drop.
            let (again, said) = rewrite_to(&out, &copy());
            assert_eq!((trailers(&again), said.len()), (kept, 0));
        }
    }
    // A damaged one is dropped, too.
    let mut damaged = file.clone();
    let at = open(&file).container().trailers[0].payload_offset as usize;
    damaged[at + 33] ^= 1;
    let (out, said) = rewrite_to(&damaged, &copy());
    assert_eq!(trailers(&out), [tree, more]);
    assert!(
        said[0].contains("drops 4") && said[0].contains("NOTE"),
        "{said:?}"
    );
}
