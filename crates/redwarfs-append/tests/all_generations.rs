//! The check of all generations of a file: what it says of each snapshot, compared with reading them.

use std::collections::BTreeMap;
use std::io;
use std::sync::{Arc, Mutex};

use crate::support::{Files, append, archived, build, changed, nights, open, options, read};
use redwarfs_append::TableChange;
use redwarfs_format::GenerationNo;
use redwarfs_format::metadata::FileType;
use redwarfs_format::section::{
    CompressionId, SectionHeader, SectionType, encode_section_index, parse_section_index,
};
use redwarfs_io::{MemorySource, Source};
use redwarfs_reader::check::{
    CheckOptions, CheckReport, DeclaredImage, Finding, FindingKind, GenerationsCheck,
    GenerationsReport, SectionList, SnapshotVerdict, UncoveredReason, VerifyMode,
};
use redwarfs_reader::{Image, ImageOffset, OpenOptions};
use redwarfs_testkit::tree::Random;

fn check_options(mode: VerifyMode, decode: bool) -> CheckOptions {
    let mut options = CheckOptions::default();
    (options.mode, options.decode, options.threads) = (mode, decode, 2);
    options
}

/// The check of the newest generation, as far as it can be opened.
fn newest(
    source: &Arc<dyn Source>,
    options: &CheckOptions,
) -> redwarfs_format::Result<CheckReport> {
    match Image::from_source(Arc::clone(source), &OpenOptions::default()) {
        Ok(image) => {
            let list = image.list_sections()?;
            image.check(list, DeclaredImage::default(), options, &|_| {})
        }
        Err(error) => {
            let list = SectionList::read(source.as_ref(), 0, None)?;
            let mut report = list.check(source.as_ref(), options, &|_| {});
            let lost = Finding::new(FindingKind::Open, error.to_string());
            report.findings.push(lost);
            Ok(report)
        }
    }
}

fn checked(
    source: &Arc<dyn Source>,
    options: &CheckOptions,
) -> redwarfs_format::Result<(CheckReport, GenerationsReport)> {
    let first = newest(source, options)?;
    let check = GenerationsCheck::find(Arc::clone(source), &OpenOptions::default())?;
    let report = check.check(&first, options, &|_| {});
    Ok((first, report))
}

fn source(bytes: &[u8]) -> Arc<dyn Source> {
    Arc::new(MemorySource::new(bytes.to_vec()))
}

/// Nights, of which the first ones are in an archive, one is deleted, and later ones follow.
fn history() -> (Vec<u8>, BTreeMap<u32, Files>) {
    let (image, states) = nights(11, 4);
    let mut model: BTreeMap<u32, Files> = (1..).zip(states).collect();
    let mut image = archived(&image, 1);
    let mut random = Random::new(12);
    let mut files = model[&4].clone();
    for number in 5..=8 {
        files.insert(format!("g{}", number % 3), random.text(4_000));
        image = append(&image, &files, &format!("n{number}"), &options(1));
        model.insert(number, files.clone());
    }
    let delete = |number| TableChange::Delete(GenerationNo(number));
    let image = changed(&image, &[delete(2), delete(6)]);
    model.retain(|number, _| ![2, 6].contains(number));
    (image, model)
}

/// The paths whose contents are not those of the model. None if the snapshot cannot be opened.
fn unreadable(source: &Arc<dyn Source>, report: &GenerationsReport, number: u32) -> Option<Files> {
    let mut found = report.snapshots.iter();
    let found = found.find(|one| one.snapshot.number.0 == number).unwrap();
    let options = OpenOptions::default();
    let image = Image::from_snapshot(Arc::clone(source), 0, &found.snapshot, &options).ok()?;
    let mut bad = Files::new();
    for entry in image.walk() {
        let entry = entry.unwrap();
        if image.metadata().file_type(entry.inode).unwrap() == FileType::Regular {
            let mut bytes = vec![0; image.stat(entry.inode).unwrap().size as usize];
            if image.read_at(entry.inode, 0, &mut bytes).is_err() {
                bad.insert(String::from_utf8(entry.path.to_vec()).unwrap(), bytes);
            }
        }
    }
    Some(bad)
}

#[test]
fn an_intact_file_is_covered_completely() {
    let (bytes, model) = history();
    for (mode, decode) in [(VerifyMode::Integrity, true), (VerifyMode::Fast, false)] {
        let options = check_options(mode, decode);
        let (first, report) = checked(&source(&bytes), &options).unwrap();
        assert!(first.is_ok(), "{:?}", first.findings);
        assert!(report.findings.is_empty(), "{:?}", report.findings);
        let numbers: Vec<u32> = report
            .snapshots
            .iter()
            .map(|one| one.snapshot.number.0)
            .collect();
        assert_eq!(numbers, model.keys().copied().collect::<Vec<_>>());
        for one in &report.snapshots {
            match one.verdict {
                SnapshotVerdict::Good { files } => {
                    assert_eq!(files as usize, model[&one.snapshot.number.0].len());
                }
                ref other => panic!("{other:?}"),
            }
        }
        let reasons: Vec<_> = report.uncovered.iter().map(|one| one.reason).collect();
        match mode {
            VerifyMode::Integrity => assert_eq!(reasons, []),
            VerifyMode::Fast => assert_eq!(reasons, [UncoveredReason::Digests]),
        }
    }
}

#[test]
fn verdicts_are_what_reading_says() {
    let (bytes, model) = history();
    let mut random = Random::new(3);
    let (mut lost, mut damaged, mut none) = (0, 0, 0);
    for case in 0..250 {
        let mut bad = bytes.clone();
        for _ in 0..1 + random.below(2) {
            let at = random.below(bad.len() as u64) as usize;
            bad[at] ^= 1 << random.below(8);
        }
        let source = source(&bad);
        // Every damage is found with all checksums.
        let all = checked(&source, &check_options(VerifyMode::Integrity, false));
        if let Ok((first, report)) = &all {
            assert!(!first.is_ok() || !report.findings.is_empty(), "{case}");
        }
        let decode = case % 2 == 0;
        let Ok((_, report)) = checked(&source, &check_options(VerifyMode::Fast, decode)) else {
            continue;
        };
        for one in &report.snapshots {
            let number = one.snapshot.number.0;
            if !model.contains_key(&number) {
                // What has deleted it is damaged.
                continue;
            }
            match (&one.verdict, unreadable(&source, &report, number)) {
                (SnapshotVerdict::Good { files }, Some(bad)) => {
                    assert_eq!(bad.len(), 0, "{case}: {number}");
                    assert_eq!(*files as usize, model[&number].len());
                    none += 1;
                }
                (SnapshotVerdict::Damaged { affected, .. }, Some(bad)) => {
                    assert_eq!(*affected, Some(bad.len() as u64), "{case}: {number}");
                    damaged += 1;
                }
                (SnapshotVerdict::Lost(_), None) => lost += 1,
                (verdict, read) => panic!("{case}: {number}: {verdict:?}, {:?}", read.is_some()),
            }
        }
    }
    let counts = (lost, damaged, none);
    assert!(lost > 20 && damaged > 20 && none > 200, "{counts:?}");
}

#[test]
fn damage_of_a_shared_block_is_one_error_of_the_newest_snapshot_that_has_it() {
    let mut random = Random::new(5);
    let mut files: Files = [("a", 40_000), ("b", 30_000)]
        .map(|(name, size)| (name.to_owned(), random.bytes(size)))
        .into();
    let mut image = build(&files);
    for name in ["two", "three"] {
        files.remove("a");
        files.insert(name.into(), random.bytes(20_000));
        image = append(&image, &files, name, &options(1));
    }
    // The first block has the contents of both first files.
    let at = SectionHeader::LEN + 100;
    let mut bad = image.clone();
    bad[at] ^= 1;
    let options = check_options(VerifyMode::Fast, false);
    let (first, report) = checked(&source(&bad), &options).unwrap();
    let lost = first
        .findings
        .iter()
        .filter(|one| one.lost_block().is_some());
    assert_eq!((lost.count(), report.findings.len()), (1, 0));
    let affected: Vec<_> = report
        .snapshots
        .iter()
        .map(|one| match one.verdict {
            SnapshotVerdict::Damaged {
                errors, affected, ..
            } => (errors, affected),
            _ => (0, None),
        })
        .collect();
    assert_eq!(affected, [(1, Some(2)), (1, Some(1)), (1, Some(1))]);

    // Metadata that only the second snapshot has.
    let second = open(&image, Some("two"));
    let tree = second
        .container()
        .only_section_of_type(SectionType::METADATA_V2);
    let mut bad = image.clone();
    bad[tree.unwrap().payload_offset as usize] ^= 1;
    let (first, report) = checked(&source(&bad), &options).unwrap();
    assert!(first.is_ok());
    let kinds: Vec<_> = report.findings.iter().map(|one| one.finding.kind).collect();
    assert_eq!(kinds, [FindingKind::Checksum, FindingKind::Open]);
    let of: Vec<_> = report.findings.iter().map(|one| one.snapshot).collect();
    assert_eq!(of, [Some(GenerationNo(2)); 2]);
    let names = report.snapshots.iter().map(|one| one.verdict.name());
    assert_eq!(names.collect::<Vec<_>>(), ["ok", "lost", "ok"]);
}

/// Or many indexes could lead to the same large metadata, which would be decoded for each.
#[test]
fn a_generation_with_the_metadata_of_an_older_one_is_lost_alone() {
    let (mut image, _) = nights(7, 4);
    let of = |name, ty| {
        let image = open(&image, Some(name));
        let section = image.container().only_section_of_type(ty).unwrap();
        section.header_offset
    };
    let moved = [SectionType::METADATA_V2_SCHEMA, SectionType::METADATA_V2]
        .map(|ty| (ty, of("n3", ty), of("n2", ty)));
    let third = open(&image, Some("n3"));
    let index = third.container().sections.last().unwrap().clone();
    let (start, end) = (
        index.payload_offset as usize,
        (index.payload_offset + index.length) as usize,
    );
    let mut entries = parse_section_index(&image[start..end]).unwrap();
    for entry in &mut entries {
        for (ty, from, to) in moved {
            if *entry == (ty, from) {
                entry.1 = to;
            }
        }
    }
    entries.sort_by_key(|(_, at)| *at);
    let payload = encode_section_index(&entries);
    let (ty, none) = (SectionType::SECTION_INDEX, CompressionId::NONE);
    let header = SectionHeader::seal(index.number, ty, none, &payload).encode();
    image.splice(
        index.header_offset as usize..end,
        [&header[..], &payload].concat(),
    );
    let options = check_options(VerifyMode::Integrity, true);
    let (first, report) = checked(&source(&image), &options).unwrap();
    assert!(first.is_ok());
    let names = report.snapshots.iter().map(|one| one.verdict.name());
    assert_eq!(names.collect::<Vec<_>>(), ["ok", "ok", "lost", "ok"]);
    let causes: Vec<String> = report
        .findings
        .iter()
        .map(|one| format!("{:?}", one.finding))
        .collect();
    assert!(
        causes
            .iter()
            .any(|text| text.contains("that of another snapshot")),
        "{causes:?}"
    );
}

/// Counts how often each byte is read.
#[derive(Debug)]
struct Counting {
    bytes: MemorySource,
    reads: Mutex<Vec<u32>>,
}

impl Source for Counting {
    fn len(&self) -> io::Result<u64> {
        self.bytes.len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut reads = self.reads.lock().unwrap();
        let end = (offset as usize + buf.len()).min(reads.len());
        if let Some(read) = reads.get_mut(offset as usize..end) {
            read.iter_mut().for_each(|count| *count += 1);
        }
        self.bytes.read_exact_at(offset, buf)
    }
}

#[test]
fn a_block_of_many_snapshots_is_read_once() {
    let mut random = Random::new(6);
    let mut files: Files = [("big".to_owned(), random.bytes(60_000))].into();
    let mut image = build(&files);
    for number in 2..=12 {
        files.insert("small".into(), random.bytes(5_000));
        image = append(&image, &files, &format!("n{number}"), &options(1));
    }
    let reads = Mutex::new(vec![0; image.len()]);
    let counting = Arc::new(Counting {
        bytes: MemorySource::new(image.clone()),
        reads,
    });
    let source: Arc<dyn Source> = counting.clone();
    let options = check_options(VerifyMode::Integrity, true);
    let first = newest(&source, &options).unwrap();
    let before = counting.reads.lock().unwrap().clone();
    // A search for the start of the image would read it all.
    let mut at_start = OpenOptions::default();
    at_start.offset = ImageOffset::At(0);
    let check = GenerationsCheck::find(source, &at_start).unwrap();
    let report = check.check(&first, &options, &|_| {});
    assert!(first.is_ok() && report.findings.is_empty());
    let after = counting.reads.lock().unwrap();
    // Its end may be read together with an index behind it.
    let big = SectionHeader::LEN..SectionHeader::LEN + 50_000;
    assert!(after[big.clone()] == before[big]);
    // What only the second snapshot has.
    let second = open(&image, Some("n2"));
    let tree = second
        .container()
        .only_section_of_type(SectionType::METADATA_V2)
        .unwrap();
    let at = (tree.payload_offset + tree.length - 1) as usize;
    assert!(after[at] > before[at]);
    assert_eq!(read(&second)["small"].len(), 5_000);
}
