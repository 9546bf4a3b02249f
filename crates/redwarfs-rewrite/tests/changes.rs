//! Changes of metadata, sections that are not known, and what goes wrong.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

use crate::common::{codec, open, rewritten, try_open};
use redwarfs_format::frozen::{Field, Schema};
use redwarfs_format::section::{CompressionId, SectionHeader, SectionType};
use redwarfs_io::{MemorySource, Source};
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_rewrite::{CategoryFilter, Error, Leading, Rebuild, RewriteOptions, rewrite};
use redwarfs_testkit::golden::{golden, golden_images};
use redwarfs_testkit::mutate::{self, Part, Parts, Rng};
use redwarfs_testkit::{Fields, Manifest};
use redwarfs_writer::{
    BuildOptions, Builder, Counters, Error as WriteError, HistoryOptions, Level, MemoryNode,
    MemoryTree, ModeTransform, Progress, SilentProgress, TimeResolution,
};

fn bytes_of(name: &str) -> Vec<u8> {
    std::fs::read(golden(name).image).unwrap()
}

fn copy() -> RewriteOptions {
    let mut rewrite = RewriteOptions::level(1);
    rewrite.workers = 2;
    rewrite
}

fn everything() -> RewriteOptions {
    let mut rewrite = copy();
    rewrite.blocks = true;
    rewrite.metadata = true;
    rewrite
}

fn rebuild(change: impl FnOnce(&mut Rebuild)) -> RewriteOptions {
    let mut rebuild = Rebuild::default();
    rebuild.keep_all_times = true;
    change(&mut rebuild);
    let mut rewrite = copy();
    rewrite.rebuild = Some(rebuild);
    rewrite
}

fn manifest(image: &Image) -> Manifest {
    Manifest::from_image(image, true).unwrap()
}

#[test]
fn attributes_change_as_asked_for() {
    let before = open(&bytes_of("basic-all-times-ns"));
    let mut want = manifest(&before);
    for entry in want.0.values_mut() {
        (entry.uid, entry.gid) = (70_000, 4_000_000_000);
        let type_bits = entry.mode & 0o170_000;
        entry.mode = type_bits | (entry.mode & 0o555);
        (entry.mtime_ns, entry.atime_ns, entry.ctime_ns) =
            (-5_000_000_000, -5_000_000_000, -5_000_000_000);
    }
    let options = rebuild(|r| {
        r.set_owner = Some(70_000);
        r.set_group = Some(4_000_000_000);
        r.set_time = Some(-5);
        r.chmod = Some(ModeTransform::new(|mode| mode & 0o555));
        r.create_timestamp = Some(77);
    });
    let after = rewritten(&before, &options).unwrap().image;
    want.assert_same(&manifest(&after), Fields::ALL, "all attributes");
    assert_eq!(after.metadata().create_timestamp(), Some(77));
    let counts = after.metadata().counts();
    assert_eq!((counts.uids, counts.gids), (1, 1));
    let options = rebuild(|_| {});
    let after = rewritten(&before, &options).unwrap().image;
    assert_eq!(after.metadata().create_timestamp(), None);
}

#[test]
fn times_are_dropped_and_get_coarser() {
    let before = open(&bytes_of("basic-all-times-ns"));
    let seconds = |n: u64| TimeResolution::from_nanos(n * 1_000_000_000).unwrap();
    for resolution in [None, Some(seconds(1)), Some(seconds(60))] {
        for keep in [true, false] {
            let options = rebuild(|r| {
                r.keep_all_times = keep;
                r.time_resolution = resolution;
            });
            let after = rewritten(&before, &options).unwrap().image;
            let mut want = manifest(&before);
            for entry in want.0.values_mut() {
                let unit = resolution.map_or(1, |r| i128::from(r.nanos()));
                for time in [
                    &mut entry.mtime_ns,
                    &mut entry.atime_ns,
                    &mut entry.ctime_ns,
                ] {
                    *time = time.div_euclid(unit) * unit;
                }
                if !keep {
                    entry.atime_ns = entry.mtime_ns;
                    entry.ctime_ns = entry.mtime_ns;
                }
            }
            let what = format!("{resolution:?}, all times: {keep}");
            want.assert_same(&manifest(&after), Fields::ALL, &what);
            assert_eq!(after.metadata().options().mtime_only, !keep, "{what}");
            // The new resolution is that of the next rebuild.
            if resolution.is_some() {
                let finer = rebuild(|r| r.time_resolution = Some(TimeResolution::NANOSECOND));
                let error = rewritten(&after, &finer).unwrap_err().to_string();
                assert!(error.contains("cannot convert time to a finer resolution (1ns)"));
            }
        }
    }
}

#[test]
fn tables_are_left_out() {
    let before = open(&bytes_of("audio-categorize"));
    let names = |image: &Image| image.metadata().category_names().unwrap();
    let described = |image: &Image| {
        let blocks = 0..image.container().block_count();
        let of = |b| {
            image
                .metadata()
                .block_metadata(redwarfs_format::BlockNo(b))
                .unwrap()
        };
        blocks.filter(|&b| of(b).is_some()).count()
    };
    assert!(names(&before).is_some() && described(&before) > 0);
    for (keep_names, keep_metadata) in [(true, true), (true, false), (false, true)] {
        let options = rebuild(|r| {
            r.category_names = keep_names;
            r.category_metadata = keep_metadata;
            r.hardlink_table = false;
        });
        let after = rewritten(&before, &options).unwrap().image;
        assert_eq!(names(&after).is_some(), keep_names);
        assert_eq!(described(&after) > 0, keep_names && keep_metadata);
        assert!(!after.metadata().options().inodes_have_nlink);
        manifest(&before).assert_same(&manifest(&after), Fields::ALL, "left out");
    }
}

#[test]
fn earlier_versions_of_metadata_are_remembered() {
    let mut image = open(&bytes_of("basic-times-min"));
    let versions = |image: &Image| {
        let metadata = image.metadata().thaw().unwrap();
        metadata.metadata_version_history.unwrap_or_default()
    };
    let size = image.metadata().block_size();
    for n in 1..=3 {
        image = rewritten(&image, &rebuild(|_| {})).unwrap().image;
        assert_eq!(versions(&image).len(), n);
    }
    let first = &versions(&image)[0];
    assert_eq!((first.major, first.minor, first.block_size), (2, 5, size));
    assert_eq!(first.options.unwrap().time_resolution_sec, Some(60));
    let forget = rebuild(|r| r.version_history = false);
    image = rewritten(&image, &forget).unwrap().image;
    assert_eq!(versions(&image).len(), 0);
}

#[test]
fn history_is_continued_or_dropped() {
    let before = open(&bytes_of("basic-default"));
    let old = before.history().unwrap().entries;
    assert!(!old.is_empty());
    let mut options = copy();
    let mut history = HistoryOptions::default();
    history.arguments = Some(vec!["mkdwarfs".into(), "--recompress=none".into()]);
    history.timestamp = Some(9);
    options.history = Some(history);
    let after = rewritten(&before, &options).unwrap().image;
    let new = after.history().unwrap().entries;
    assert_eq!(new.len(), old.len() + 1);
    assert_eq!(new[..old.len()], old);
    let last = &new[old.len()];
    assert_eq!(last.timestamp, Some(9));
    assert_eq!(last.arguments.as_ref().unwrap()[1], "--recompress=none");
    options.history = None;
    let after = rewritten(&after, &options).unwrap().image;
    assert_eq!(
        after
            .container()
            .section_of_type(SectionType::HISTORY)
            .count(),
        0
    );
}

#[test]
fn what_is_in_front_is_kept_replaced_or_removed() {
    let bytes = bytes_of("basic-header");
    let before = open(&bytes);
    let header = before.header_bytes().unwrap();
    assert!(!header.is_empty());
    for (leading, want) in [
        (Leading::Keep, header.clone()),
        (Leading::Remove, Vec::new()),
        (
            Leading::Replace(b"#!/bin/sh\n".to_vec()),
            b"#!/bin/sh\n".to_vec(),
        ),
    ] {
        let mut options = copy();
        options.leading = leading;
        let after = rewritten(&before, &options).unwrap();
        assert_eq!(after.image.header_bytes().unwrap(), want);
        assert!(after.bytes.starts_with(&want));
        manifest(&before).assert_same(&manifest(&after.image), Fields::ALL, "header");
    }
}

#[test]
fn only_some_categories_are_recompressed() {
    let before = open(&bytes_of("bin-categorize"));
    let names = before.metadata().category_names().unwrap().unwrap();
    let name = |n: usize| String::from_utf8(names[n].clone()).unwrap();
    let stored = |image: &Image| -> Vec<(usize, CompressionId, Vec<u8>)> {
        let blocks = 0..image.container().block_count();
        let block = |b| {
            let b = redwarfs_format::BlockNo(b);
            let (section, payload) = image.stored_block(b).unwrap();
            let category = image.metadata().block_category(b).unwrap().unwrap();
            (category.index(), section.compression.unwrap(), payload)
        };
        blocks.map(block).collect()
    };
    let old = stored(&before);
    let chosen = old[0].0;
    assert!(old.iter().any(|(category, ..)| *category != chosen));
    for exclude in [false, true] {
        let mut options = everything();
        options.compression = codec("lz4");
        options.categories = Some(CategoryFilter::new(vec![name(chosen)], exclude));
        let new = stored(&rewritten(&before, &options).unwrap().image);
        for (old, new) in old.iter().zip(&new) {
            assert_eq!(old.0, new.0);
            let done = (old.0 == chosen) != exclude;
            if done {
                assert!(matches!(new.1, CompressionId::LZ4 | CompressionId::NONE));
            } else {
                assert!(old == new);
            }
        }
    }
    let mut options = everything();
    options.categories = Some(CategoryFilter::new(vec!["nothing/such".into()], true));
    let error = rewritten(&before, &options).unwrap_err().to_string();
    assert!(
        error.ends_with("no category 'nothing/such' in input filesystem"),
        "{error}"
    );
    options.block_size_bits = Some(12);
    let error = rewritten(&before, &options).unwrap_err().to_string();
    assert!(error.contains("--change-block-size"), "{error}");
}

#[test]
fn sections_of_unknown_types_are_copied() {
    let mut parts = Parts::of(&bytes_of("basic-zstd-small-blocks"));
    let unknown = Part {
        ty: SectionType(4711),
        compression: CompressionId(99),
        payload: b"from the future".to_vec(),
    };
    for at in [0, 3, parts.0.len()] {
        parts.0.insert(at, unknown.clone());
    }
    let before = open(&parts.assemble());
    for mut options in [copy(), everything(), rebuild(|_| {})] {
        for bits in [None, Some(12)] {
            options.block_size_bits = bits;
            options.blocks |= bits.is_some();
            let after = rewritten(&before, &options).unwrap().image;
            let sections = after.container().section_of_type(SectionType(4711));
            let mut count = 0;
            for section in sections {
                let section = after.section_with_header(section).unwrap();
                assert_eq!(section.compression, Some(CompressionId(99)));
                assert_eq!(after.stored_payload(&section).unwrap(), unknown.payload);
                count += 1;
            }
            assert_eq!(count, 3);
            manifest(&before).assert_same(&manifest(&after), Fields::ALL, "unknown sections");
        }
    }
}

#[test]
fn copied_sections_keep_their_checksums() {
    let bytes = bytes_of("basic-lzma");
    let before = open(&bytes);
    let after = rewritten(&before, &copy()).unwrap();
    let history = before
        .container()
        .section_of_type(SectionType::HISTORY)
        .next()
        .unwrap();
    let same = history.header_offset as usize;
    assert!(same > SectionHeader::LEN);
    assert!(bytes[..same] == after.bytes[..same]);
}

/// Where the payload of the block with the given number begins in the file.
fn payload_of_block(image: &Image, number: usize) -> usize {
    let section = image.container().blocks().nth(number).unwrap();
    let section = image.section_with_header(section).unwrap();
    image.container().file_offset(&section) as usize
}

#[test]
fn damage_ends_a_rewrite_with_an_error() {
    let bytes = bytes_of("basic-zstd-small-blocks");
    let at = payload_of_block(&open(&bytes), 1);
    let mut damaged = bytes.clone();
    damaged[at + 5] ^= 0x10;
    let image = open(&damaged);
    let modes = [copy(), everything(), rebuild(|_| {}), {
        let mut o = rebuild(|_| {});
        o.block_size_bits = Some(20);
        o
    }];
    for mut options in modes {
        let mut out = Vec::new();
        let progress = SilentProgress::default();
        let stop = AtomicBool::new(false);
        let checked = rewrite(&image, &options, &mut out, &progress, &stop).unwrap_err();
        assert!(
            matches!(checked, Error::CorruptInput { errors: 1, .. }),
            "{checked}"
        );
        assert!(
            checked.to_string().contains("section 1 (BLOCK 1)"),
            "{checked}"
        );
        assert!(out.is_empty(), "something was written before the check");
        options.check = false;
        let unchecked = rewritten(&image, &options).unwrap_err();
        assert!(
            unchecked.to_string().contains("checksum error"),
            "{unchecked}"
        );
    }
    for len in [bytes.len() / 3, bytes.len() - 100] {
        // Without its index, or in the middle of something.
        if let Ok(image) = try_open(&bytes[..len]) {
            rewritten(&image, &everything()).unwrap();
        }
    }
    assert!(try_open(&bytes[..bytes.len() / 3]).is_err());
}

#[test]
fn hostile_images_end_in_errors_or_in_good_images() {
    let mut rng = Rng::new(20_260_713);
    let sources: Vec<Vec<u8>> = golden_images()
        .iter()
        .map(|golden| std::fs::read(&golden.image).unwrap())
        .filter(|bytes| bytes.len() < 200_000)
        .collect();
    assert!(sources.len() > 10);
    let (mut done, mut failed) = (0, 0);
    for n in 0..400 {
        let mut parts = Parts::of(&sources[rng.below(sources.len())]);
        if let Some(mut metadata) = parts.metadata() {
            for _ in 0..=rng.below(3) {
                mutate::metadata(&mut metadata, &mut rng);
            }
            if parts.set_metadata(&metadata).is_err() {
                continue;
            }
        }
        let Ok(image) = Image::from_source(
            std::sync::Arc::new(redwarfs_io::MemorySource::new(parts.assemble())),
            &redwarfs_reader::OpenOptions::default(),
        ) else {
            continue;
        };
        let mut options = rebuild(|_| {});
        options.blocks = n % 2 == 0;
        options.block_size_bits = (n % 3 == 0).then_some(12);
        match rewritten(&image, &options) {
            Ok(_) => done += 1,
            Err(_) => failed += 1,
        }
    }
    assert!(
        done > 20 && failed > 20,
        "{done} rewritten, {failed} refused"
    );
}

#[test]
fn memory_limits_hold_or_are_refused() {
    let before = open(&bytes_of("basic-zstd-small-blocks"));
    let mut options = everything();
    options.compression = codec("zstd:level=22");
    options.memory_limit = Some(1000);
    let Err(Error::Write(WriteError::MemoryLimit { limit, .. })) = rewritten(&before, &options)
    else {
        panic!("a limit of 1000 bytes was accepted");
    };
    assert_eq!(limit, 1000);
    // What is said to be needed with many threads is enough for many, and more than enough for
    // one; a tenth less is not. It changes no byte.
    options.history = None;
    for bits in [None, Some(16)] {
        options.block_size_bits = bits;
        options.workers = 4;
        options.memory_limit = Some(1000);
        let Err(Error::Write(WriteError::MemoryLimit { needed, .. })) =
            rewritten(&before, &options)
        else {
            panic!("a limit of 1000 bytes was accepted");
        };
        options.memory_limit = Some(needed / 10 * 9);
        assert!(rewritten(&before, &options).is_err(), "{bits:?}");
        options.memory_limit = Some(needed);
        let narrow = rewritten(&before, &options).unwrap();
        options.workers = 1;
        assert!(rewritten(&before, &options).is_ok(), "{bits:?}");
        options.workers = 4;
        options.memory_limit = None;
        let wide = rewritten(&before, &options).unwrap();
        assert!(narrow.bytes == wide.bytes, "{bits:?}");
    }
}

/// A medium with a bug: from a request on, reading the byte at this offset panics.
#[derive(Debug)]
struct Faulty {
    image: MemorySource,
    at: AtomicU64,
}

impl Source for Faulty {
    fn len(&self) -> io::Result<u64> {
        self.image.len()
    }

    fn read_exact_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let read = offset..offset + buf.len() as u64;
        let at = self.at.load(Ordering::Relaxed);
        assert!(!read.contains(&at), "the medium has a bug");
        self.image.read_exact_at(offset, buf)
    }
}

/// The producer waits for memory that the panicking worker, and those with later results, hold.
#[test]
fn a_panic_in_a_worker_ends_the_rewrite() {
    let mut tree = MemoryTree::new();
    let mut rng = Rng::new(7);
    let noise: Vec<u8> = (0..4 << 20).map(|_| rng.below(256) as u8).collect();
    tree.insert(b"noise", MemoryNode::file(noise));
    let mut build = BuildOptions::level(0);
    build.block_size_bits = 14;
    let mut bytes = Vec::new();
    let progress = SilentProgress::default();
    let stop = AtomicBool::new(false);
    Builder::new(build)
        .build(&tree, &mut bytes, &progress, &stop)
        .unwrap();
    let source = Arc::new(Faulty {
        image: MemorySource::new(bytes),
        at: AtomicU64::new(u64::MAX),
    });
    let image = Image::from_source(source.clone(), &OpenOptions::default()).unwrap();
    let third = image.container().blocks().nth(3).unwrap();
    source.at.store(
        image.container().file_offset(third) + 100,
        Ordering::Relaxed,
    );

    let mut options = everything();
    options.compression = codec("lz4");
    (options.check, options.history) = (false, None);
    options.memory_limit = Some(1000);
    let Err(Error::Write(WriteError::MemoryLimit { needed, .. })) = rewritten(&image, &options)
    else {
        panic!("a limit of 1000 bytes was accepted");
    };
    options.memory_limit = Some(needed);
    let (done, ended) = mpsc::channel();
    std::thread::spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(|| rewritten(&image, &options).map(drop)));
        done.send(result.is_err())
    });
    let panicked = ended.recv_timeout(Duration::from_secs(300));
    assert_eq!(panicked, Ok(true), "the rewrite does not end");
}

/// Takes some bytes and then fails.
struct Full(usize);

impl Write for Full {
    fn write(&mut self, buf: &[u8]) -> io::Result<usize> {
        if self.0 == 0 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        let n = buf.len().min(self.0);
        self.0 -= n;
        Ok(n)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_full_output_and_a_request_to_stop_end_the_rewrite() {
    let before = open(&bytes_of("basic-header"));
    let progress = SilentProgress::default();
    for room in [0, 10, 2000] {
        let stop = AtomicBool::new(false);
        let error = rewrite(&before, &everything(), &mut Full(room), &progress, &stop);
        let Err(Error::Write(WriteError::Output(error))) = error else {
            panic!("{room} bytes: {error:?}");
        };
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
    }
    let stop = AtomicBool::new(true);
    let ended = rewrite(&before, &everything(), &mut Full(0), &progress, &stop);
    assert!(
        matches!(ended, Err(Error::Write(WriteError::Interrupted))),
        "{ended:?}"
    );
}

/// Keeps what is logged.
#[derive(Default)]
struct Heard {
    counters: Counters,
    lines: std::sync::Mutex<Vec<(Level, String)>>,
}

impl Progress for Heard {
    fn counters(&self) -> &Counters {
        &self.counters
    }

    fn log(&self, level: Level, message: &str) {
        self.lines.lock().unwrap().push((level, message.to_owned()));
    }
}

#[test]
fn members_of_newer_versions_are_kept_or_their_loss_is_said() {
    let mut parts = Parts::of(&bytes_of("basic-default"));
    let payload = parts.payload(SectionType::METADATA_V2_SCHEMA).unwrap();
    let mut schema = Schema::parse(payload).unwrap();
    let root = usize::from(schema.root);
    let field = |id| Field {
        id,
        layout_id: 0,
        offset: 0,
    };
    schema.layouts[root].fields.push(field(1000));
    let chunks = usize::from(schema.layouts[root].field(1).unwrap().layout_id);
    let chunk = usize::from(schema.layouts[chunks].field(3).unwrap().layout_id);
    schema.layouts[chunk].fields.push(field(4));
    *payload = schema.encode();
    let before = open(&parts.assemble());
    let stop = AtomicBool::new(false);
    let schema_of = |image: &Image| {
        let ty = SectionType::METADATA_V2_SCHEMA;
        let section = image.container().only_section_of_type(ty).unwrap();
        Schema::parse(&image.decode_section(section).unwrap()).unwrap()
    };
    for (options, dropped) in [
        (copy(), false),
        (everything(), false),
        (rebuild(|_| {}), true),
    ] {
        let (heard, mut bytes) = (Heard::default(), Vec::new());
        rewrite(&before, &options, &mut bytes, &heard, &stop).unwrap();
        let after = open(&bytes);
        manifest(&before).assert_same(&manifest(&after), Fields::ALL, "newer metadata");
        let lines = heard.lines.into_inner().unwrap();
        if dropped {
            let [(Level::Warn, line)] = &lines[..] else {
                panic!("{lines:?}");
            };
            assert!(
                line.ends_with(
                    "2 member(s) of the metadata that this version does not know: chunks.4, 1000"
                ),
                "{line}"
            );
        } else {
            assert!(lines.is_empty(), "{lines:?}");
            assert!(schema_of(&after) == schema_of(&before));
        }
    }
}

#[test]
fn a_history_that_is_damaged_is_an_error_unless_it_is_dropped() {
    let parts = Parts::of(&bytes_of("basic-default"));
    // Once with a wrong checksum, once with a right one around what is no history.
    let wrong = {
        let mut bytes = parts.assemble();
        let image = open(&bytes);
        let mut sections = image.container().section_of_type(SectionType::HISTORY);
        let section = image.section_with_header(sections.next().unwrap()).unwrap();
        let at = image.container().file_offset(&section) as usize;
        bytes[at + 3] ^= 1;
        bytes
    };
    let senseless = {
        let mut parts = parts.clone();
        *parts.payload(SectionType::HISTORY).unwrap() = b"\x1c\x19\x19\xff".to_vec();
        parts.assemble()
    };
    for (bytes, checked, want) in [
        (wrong, false, "checksum error in section: HISTORY"),
        (senseless, true, "Thrift data ends early (section 3"),
    ] {
        let image = open(&bytes);
        let mut options = everything();
        // A checksum that is right is all that the check looks at.
        assert!(rewritten(&image, &options).is_err());
        options.check = checked;
        let error = rewritten(&image, &options).unwrap_err().to_string();
        assert!(error.contains(want), "{error}");
        options.history = None;
        let after = rewritten(&image, &options).unwrap().image;
        manifest(&image).assert_same(&manifest(&after), Fields::ALL, want);
        assert!(after.history().unwrap().entries.is_empty());
    }
}
