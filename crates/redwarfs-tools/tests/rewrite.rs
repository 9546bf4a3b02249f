//! Drives `mkdwarfs` as a rewriter of images.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Output;

use crate::support::{MKDWARFS, must, reference, run};
use redwarfs_format::BlockNo;
use redwarfs_format::frozen::{Field, Schema};
use redwarfs_format::section::{CompressionId, SectionType, Version};
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::mutate::Parts;
use redwarfs_testkit::{Fields, Golden, Manifest, compat_images, golden_images};

pub(crate) fn open(path: &Path) -> Image {
    let mut options = OpenOptions::default();
    options.check = true;
    Image::open(path, &options).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
}

pub(crate) fn manifest(path: &Path) -> Manifest {
    Manifest::from_image(&open(path), true).unwrap()
}

/// Room for outputs.
pub(crate) struct TestDir(pub(crate) tempfile::TempDir);

impl TestDir {
    pub(crate) fn new() -> Self {
        Self(tempfile::tempdir().unwrap())
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(crate) fn args<'a>(input: &'a Path, output: &'a Path, more: &[&'a str]) -> Vec<&'a OsStr> {
        let mut args: Vec<&OsStr> = vec![
            "-i".as_ref(),
            input.as_ref(),
            "-o".as_ref(),
            output.as_ref(),
        ];
        args.extend(["--log-level=warn", "-l1", "-N2"].map(OsStr::new));
        args.extend(more.iter().copied().map(OsStr::new));
        args
    }

    /// Rewrites an image, which has to succeed and to say nothing.
    pub(crate) fn rewrite(&self, input: &Path, more: &[&str]) -> PathBuf {
        let output = self.path("out.dwarfs");
        let mut args = Self::args(input, &output, more);
        args.push("-f".as_ref());
        let done = must(MKDWARFS, args);
        assert_eq!(String::from_utf8_lossy(&done.stderr), "", "{more:?}");
        output
    }

    /// Rewrites an image, which must fail with a single line.
    pub(crate) fn refused(&self, input: &Path, more: &[&str]) -> String {
        let output = self.path("refused.dwarfs");
        let done = run(MKDWARFS, Self::args(input, &output, more));
        assert!(!output.exists(), "{more:?} left an output");
        failure(&done, &format!("{more:?}"))
    }
}

/// The only line of a program that failed.
pub(crate) fn failure(done: &Output, what: &str) -> String {
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(done.status.code(), Some(1), "{what}: {text}");
    assert_eq!(text.lines().count(), 1, "{what}: {text}");
    assert!(text.starts_with("mkdwarfs: "), "{what}: {text}");
    text.trim_start_matches("mkdwarfs: ").trim_end().to_owned()
}

fn compressions(image: &Image) -> Vec<CompressionId> {
    let section = |section| image.section_with_header(section).unwrap();
    image
        .container()
        .sections
        .iter()
        .map(|s| section(s).compression.unwrap())
        .collect()
}

fn payload(image: &Image, ty: SectionType) -> Vec<u8> {
    let section = image.container().only_section_of_type(ty).unwrap();
    let section = image.section_with_header(section).unwrap();
    image.stored_payload(&section).unwrap()
}

fn blocks(image: &Image) -> Vec<Vec<u8>> {
    let blocks = 0..image.container().block_count();
    blocks
        .map(|b| image.stored_block(BlockNo(b)).unwrap().1)
        .collect()
}

#[test]
fn recompressed_metadata_are_those_of_a_build() {
    let place = TestDir::new();
    let tree = place.path("tree");
    for number in 0..3000 {
        let directory = tree.join(format!("{}", number / 100));
        fs::create_dir_all(&directory).unwrap();
        fs::write(directory.join(format!("file{number}")), number.to_string()).unwrap();
    }
    let [zstd, lzma] = ["zstd:level=3", "lzma:level=9"].map(|codec| {
        let image = place.path(codec);
        let mut args = TestDir::args(&tree, &image, &["--no-create-timestamp", "--no-history"]);
        args.extend(["--metadata-compression", codec].map(OsStr::new));
        must(MKDWARFS, args);
        image
    });
    let options = [
        "--recompress=metadata",
        "--metadata-compression=lzma:level=9",
    ];
    let after = open(&place.rewrite(&zstd, &options));
    for ty in [SectionType::METADATA_V2_SCHEMA, SectionType::METADATA_V2] {
        assert!(payload(&after, ty) == payload(&open(&lzma), ty), "{ty}");
    }
}

#[test]
fn modes_say_what_is_recompressed() {
    let place = TestDir::new();
    let source = golden("basic-lzma").image;
    let before = open(&source);
    let metadata = SectionType::METADATA_V2;
    for (mode, new_blocks, new_metadata) in [
        ("--recompress", true, true),
        ("--recompress=all", true, true),
        ("--recompress=block", true, false),
        ("--recompress=metadata", false, true),
        ("--recompress=none", false, false),
    ] {
        let options = [
            mode,
            "-C",
            "lz4",
            "--metadata-compression",
            "brotli:quality=3",
        ];
        let after = open(&place.rewrite(&source, &options));
        assert_eq!(blocks(&before) != blocks(&after), new_blocks, "{mode}");
        let changed = payload(&before, metadata) != payload(&after, metadata);
        assert_eq!(changed, new_metadata, "{mode}");
        assert_eq!(
            before.metadata().create_timestamp(),
            after.metadata().create_timestamp(),
            "{mode}"
        );
        let now = Manifest::from_image(&after, true).unwrap();
        manifest(&source).assert_same(&now, Fields::ALL, mode);
    }
    let separate = place.rewrite(&source, &["--recompress", "none"]);
    assert_eq!(blocks(&before), blocks(&open(&separate)));
    assert_eq!(
        place.refused(&source, &["--recompress=x"]),
        "invalid recompress mode: x (all, block, metadata, none)"
    );
}

/// Rewrites an image in some ways with the program, and compares.
fn every_way(place: &TestDir, image: &Golden, reference: Option<&Path>) {
    let legacy = open(&image.image).metadata().is_legacy();
    for options in [
        &["--recompress", "-C", "lz4", "--metadata-compression=lz4"][..],
        &["--recompress=none", "--no-section-index"],
        &["--rebuild-metadata", "--keep-all-times", "-P", "all"],
        &[
            "--change-block-size",
            "-S13",
            "--keep-all-times",
            "-C",
            "lz4",
        ],
    ] {
        let what = format!("{} {options:?}", image.name);
        let output = place.rewrite(&image.image, options);
        let after = open(&output);
        assert_eq!(after.container().version, Version::WRITTEN, "{what}");
        let rebuilt = !options[0].starts_with("--recompress");
        // Files of one inode of an old format are inodes of their own afterwards, with the
        // attributes of their entries; the tests of the library look at those.
        let fields = Fields {
            ino: !(legacy && rebuilt),
            mtime: !(legacy && rebuilt),
            atime: !(legacy && rebuilt),
            ctime: !(legacy && rebuilt),
            ..Fields::ALL
        };
        let plain = |image: &Image| {
            let mut manifest = Manifest::from_image(image, true).unwrap();
            if legacy && rebuilt {
                for entry in manifest.0.values_mut() {
                    entry.nlink = 1;
                }
            }
            manifest
        };
        plain(&open(&image.image)).assert_same(&plain(&after), fields, &what);
        if let Some(reference) = reference {
            must(
                reference.join("dwarfsck"),
                [
                    output.as_os_str(),
                    "--check-integrity".as_ref(),
                    "-q".as_ref(),
                ],
            );
        }
    }
}

#[test]
fn golden_images_stay_what_they_are() {
    let place = TestDir::new();
    let reference = reference();
    for image in golden_images() {
        every_way(&place, &image, reference.as_deref());
    }
}

#[test]
fn old_images_are_upgraded() {
    let place = TestDir::new();
    let reference = reference();
    for image in compat_images() {
        every_way(&place, &image, reference.as_deref());
    }
}

#[test]
fn metadata_options_work_on_images() {
    let place = TestDir::new();
    let source = golden("basic-all-times-ns").image;
    let output = place.rewrite(
        &source,
        &[
            "--rebuild-metadata",
            "--set-owner=70001",
            "--set-group=70002",
            "--set-time=2001-02-03 04:05:06",
            "--chmod=u=rwX,go=",
            "--time-resolution=2s",
            "--no-create-timestamp",
            "--no-hardlink-table",
            "-P",
            "plain",
        ],
    );
    let mut want = manifest(&source);
    let time = 981_173_106_i128 * 1_000_000_000;
    for entry in want.0.values_mut() {
        (entry.uid, entry.gid) = (70_001, 70_002);
        (entry.mtime_ns, entry.atime_ns, entry.ctime_ns) = (time, time, time);
    }
    let after = open(&output);
    let mut found = Manifest::from_image(&after, true).unwrap();
    for (path, entry) in &mut found.0 {
        let before = want.0.get_mut(path).unwrap();
        let executable = before.mode & 0o170_000 == 0o040_000 || before.mode & 0o111 != 0;
        let mode = if executable { 0o700 } else { 0o600 };
        assert_eq!(entry.mode & 0o777, mode, "{}", path.escape_ascii());
        entry.mode = before.mode;
    }
    want.assert_same(&found, Fields::ALL, "changed attributes");
    let thawed = after.metadata().thaw().unwrap();
    assert_eq!(thawed.create_timestamp, None);
    assert!(thawed.compact_names.is_none() && !thawed.names.is_empty());
    let options = thawed.options.unwrap();
    assert_eq!(options.time_resolution_sec, Some(2));
    assert!(options.mtime_only && !options.inodes_have_nlink);
    assert_eq!(thawed.metadata_version_history.unwrap().len(), 1);
    let again = place.rewrite(
        &source,
        &["--rebuild-metadata", "--no-metadata-version-history"],
    );
    let thawed = open(&again).metadata().thaw().unwrap();
    assert_eq!(thawed.metadata_version_history, None);
    assert!(thawed.create_timestamp.is_some());
    let options = thawed.options.unwrap();
    assert_eq!(options.subsecond_resolution_nsec_multiplier, Some(1));
    let coarse = golden("basic-times-min").image;
    assert_eq!(
        place.refused(&coarse, &["--rebuild-metadata", "--time-resolution=1ms"]),
        "cannot convert time to a finer resolution (1ms) than the old resolution (60s)"
    );
    let text = place.refused(&coarse, &["--rebuild-metadata", "--time-resolution=90s"]);
    assert!(text.ends_with("(90s) that is not a whole multiple of the old resolution (60s)"));
}

#[test]
fn categories_choose_codecs_and_blocks() {
    let place = TestDir::new();
    let source = golden("audio-categorize").image;
    let count = |path: &Path, id| {
        compressions(&open(path))
            .iter()
            .filter(|&&c| c == id)
            .count()
    };
    // The presets know what to do with waveforms; -l1 is in all command lines here.
    let preset = place.rewrite(&source, &["--recompress"]);
    assert!(count(&preset, CompressionId::FLAC) > 0);
    let plain = place.path("plain.dwarfs");
    fs::copy(
        place.rewrite(
            &source,
            &["--recompress", "-C", "pcmaudio/waveform::zstd:level=1"],
        ),
        &plain,
    )
    .unwrap();
    assert_eq!(count(&plain, CompressionId::FLAC), 0);
    let back = place.rewrite(
        &plain,
        &[
            "--recompress",
            "-C",
            "zstd:level=1",
            "pcmaudio/waveform::flac:level=8",
        ],
    );
    assert!(count(&back, CompressionId::FLAC) > 0);
    manifest(&source).assert_same(&manifest(&back), Fields::ALL, "and back");
    let flac = ["--recompress", "-C", "pcmaudio/waveform::flac"];
    for filter in ["pcmaudio/metadata", "!pcmaudio/waveform"] {
        let option = format!("--recompress-categories={filter}");
        let some = place.rewrite(&plain, &[&flac[..], &[&option]].concat());
        assert_eq!(count(&some, CompressionId::FLAC), 0, "{filter}");
    }
    let some = place.rewrite(
        &plain,
        &[&flac[..], &["--recompress-categories", "pcmaudio/waveform"]].concat(),
    );
    assert!(count(&some, CompressionId::FLAC) > 0);

    // Several categories, as they are and excluded.
    let changed = |filter: &str| {
        let option = format!("--recompress-categories={filter}");
        let after = open(&place.rewrite(&plain, &["--recompress", "-C", "brotli", &option]));
        let before = open(&plain);
        let names = before.metadata().category_names().unwrap().unwrap();
        let blocks = blocks(&before).into_iter().zip(blocks(&after));
        let mut changed: Vec<String> = (0u32..)
            .zip(blocks)
            .filter(|(_, (old, new))| old != new)
            .map(|(b, _)| {
                let category = before.metadata().block_category(BlockNo(b));
                let name = &names[category.unwrap().unwrap().index()];
                String::from_utf8(name.clone()).unwrap()
            })
            .collect();
        changed.dedup();
        changed
    };
    let all = changed("pcmaudio/metadata,pcmaudio/waveform,<default>");
    assert!(all.contains(&"pcmaudio/waveform".to_owned()) && all.len() > 1);
    for name in &all {
        let others: Vec<String> = all.iter().filter(|n| *n != name).cloned().collect();
        assert_eq!(changed(&format!("!{name}")), others);
        assert_eq!(changed(&others.join(",")), others);
        assert_eq!(
            changed(&format!("!{}", others.join(","))),
            std::slice::from_ref(name)
        );
    }

    for (options, want) in [
        (
            &["--recompress-categories=a,pcmaudio/waveform"][..],
            "no category 'a' in input filesystem",
        ),
        (
            &[
                "--change-block-size",
                "--recompress-categories=pcmaudio/waveform",
            ],
            "cannot use --recompress-categories with --change-block-size",
        ),
        (
            &[
                "-C",
                "incompressible::flac",
                "-C",
                "pcmaudio/waveform::ricepp",
            ],
            "the image does not tell what its content is like",
        ),
        (
            &["-C", "foo::null"],
            "unknown category: 'foo' in option '--compression'",
        ),
        (&["-C", "flac"], "cannot be used without a category"),
    ] {
        let text = place.refused(&source, &[&["--recompress"], options].concat());
        assert!(text.contains(want), "{options:?}: {text}");
    }
    // Without descriptions there is nothing to go by, but for the payloads of FLAC themselves.
    let blind = place.path("blind.dwarfs");
    let without = ["--rebuild-metadata", "--no-category-metadata"];
    fs::copy(place.rewrite(&plain, &without), &blind).unwrap();
    let text = place.refused(&blind, &flac);
    assert!(text.contains("the image does not tell"), "{text}");
    assert_eq!(
        count(
            &place.rewrite(&blind, &["--recompress"]),
            CompressionId::FLAC
        ),
        0
    );
    let nameless = place.rewrite(&source, &["--rebuild-metadata", "--no-category-names"]);
    assert_eq!(open(&nameless).metadata().category_names().unwrap(), None);
}

#[test]
fn blocks_are_cut_anew() {
    let place = TestDir::new();
    let source = golden("basic-zstd-small-blocks").image;
    let old = open(&source).container().block_count();
    for (bits, more) in [(11, true), (24, false)] {
        let size = format!("-S{bits}");
        let output = place.rewrite(
            &source,
            &[
                "--change-block-size",
                "--keep-all-times",
                &size,
                "-C",
                "lz4",
            ],
        );
        let after = open(&output);
        assert_eq!(after.metadata().block_size(), 1 << bits);
        assert_eq!(after.container().block_count() > old, more);
        if !more {
            assert_eq!(after.container().block_count(), 1);
        }
        let now = Manifest::from_image(&after, true).unwrap();
        manifest(&source).assert_same(&now, Fields::ALL, "another block size");
    }
    // The size without the wish to change it is warned of.
    let output = place.path("same.dwarfs");
    let done = must(
        MKDWARFS,
        TestDir::args(&source, &output, &["--recompress", "-S11"]),
    );
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(text.contains("'--block-size-bits' has no effect"), "{text}");
    assert_eq!(
        open(&output).metadata().block_size(),
        open(&source).metadata().block_size()
    );
}

#[test]
fn headers_are_kept_replaced_or_removed() {
    let place = TestDir::new();
    let source = golden("basic-header").image;
    let header = |path: &Path| open(path).header_bytes().unwrap();
    let none = "--recompress=none";
    let old = header(&source);
    assert!(!old.is_empty());
    assert_eq!(header(&place.rewrite(&source, &[none])), old);
    assert!(header(&place.rewrite(&source, &[none, "--remove-header"])).is_empty());
    let file = place.path("header");
    fs::write(&file, b"#!/bin/sh\nexit 0\n").unwrap();
    let new = file.to_str().unwrap();
    let output = place.rewrite(&source, &[none, "--header", new]);
    assert_eq!(header(&output), b"#!/bin/sh\nexit 0\n");
    let text = place.refused(&source, &[none, "--header", new, "--remove-header"]);
    assert!(
        text.contains("--remove-header") && text.contains("--header"),
        "{text}"
    );
    let text = place.refused(&source, &[none, "--header", "/no/such/file"]);
    assert!(
        text.starts_with("cannot open header file: /no/such/file"),
        "{text}"
    );
}

#[test]
fn what_follows_an_image_is_left_out_and_said() {
    let place = TestDir::new();
    let source = place.path("longer.dwarfs");
    let mut bytes = fs::read(golden("one").image).unwrap();
    bytes.extend(b"something else");
    fs::write(&source, &bytes).unwrap();
    let output = place.path("out.dwarfs");
    let done = must(
        MKDWARFS,
        TestDir::args(&source, &output, &["--recompress=none"]),
    );
    let said = String::from_utf8_lossy(&done.stderr).into_owned();
    assert_eq!(said.lines().count(), 1, "{said}");
    assert!(said.contains("14 bytes that follow the image"), "{said}");
    assert_eq!(open(&output).trailing_bytes(), 0);
}

#[test]
fn history_is_continued_or_dropped() {
    let place = TestDir::new();
    let source = golden("basic-default").image;
    let entries = |path: &Path| open(path).history().unwrap().entries;
    let old = entries(&source);
    let new = entries(&place.rewrite(&source, &["--recompress=none"]));
    assert_eq!(new[..old.len()], old);
    assert_eq!(new.len(), old.len() + 1);
    let last = new.last().unwrap();
    let arguments = last.arguments.as_ref().unwrap();
    assert!(
        arguments.iter().any(|a| a == "--recompress=none"),
        "{arguments:?}"
    );
    assert!(last.timestamp.is_some());
    let new = entries(&place.rewrite(
        &source,
        &[
            "--recompress=none",
            "--no-history-timestamps",
            "--no-history-command-line",
        ],
    ));
    let last = new.last().unwrap();
    assert_eq!((last.timestamp, &last.arguments), (None, &None));
    assert!(entries(&place.rewrite(&source, &["--recompress=none", "--no-history"])).is_empty());
}

#[test]
fn an_image_can_take_its_own_place() {
    let place = TestDir::new();
    let source = golden("basic-lzma").image;
    let own = place.path("own.dwarfs");
    fs::copy(&source, &own).unwrap();
    let again = ["--recompress", "-C", "zstd:level=1"];
    let done = run(MKDWARFS, TestDir::args(&own, &own, &again));
    let text = failure(&done, "without --force");
    assert!(text.contains("use --force"), "{text}");
    assert_eq!(fs::read(&own).unwrap(), fs::read(&source).unwrap());
    must(
        MKDWARFS,
        TestDir::args(&own, &own, &[&again[..], &["-f"]].concat()),
    );
    assert_ne!(fs::read(&own).unwrap(), fs::read(&source).unwrap());
    manifest(&source).assert_same(&manifest(&own), Fields::ALL, "in place");
}

#[test]
fn standard_output_gets_the_same_bytes() {
    let place = TestDir::new();
    let source = golden("basic-lzma").image;
    let options = ["--recompress", "-C", "lz4", "--no-history"];
    let output = place.rewrite(&source, &options);
    let done = must(MKDWARFS, TestDir::args(&source, Path::new("-"), &options));
    assert!(done.stdout == fs::read(output).unwrap());
}

#[test]
fn what_is_said_of_a_rewrite() {
    let place = TestDir::new();
    let source = golden("basic-zstd-small-blocks").image;
    let output = place.path("out");
    let args = [
        "-i".as_ref(),
        source.as_os_str(),
        "-o".as_ref(),
        output.as_os_str(),
        "--recompress".as_ref(),
        "-l1".as_ref(),
    ];
    let done = must(MKDWARFS, args);
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    let lines: Vec<&str> = text.lines().collect();
    let image = open(&output);
    let n = image.container().block_count();
    let [name, size, content, time, left_out] = lines[..] else {
        panic!("{text}");
    };
    assert_eq!(
        name,
        format!("image:    {}, rewritten without errors", output.display())
    );
    let new = fs::metadata(&output).unwrap().len();
    let new = redwarfs_tools::common::number::format_size(new);
    assert!(size.starts_with(&format!("size:     {new}, ")), "{text}");
    let blocks = redwarfs_tools::common::number::counted(u64::from(n), "block", "blocks");
    assert_eq!(content, format!("content:  {blocks}"));
    assert!(time.starts_with("time:     "), "{text}");
    assert_eq!(left_out, "left out: nothing");
}

#[test]
fn members_of_newer_versions_are_kept_or_their_loss_is_said() {
    let place = TestDir::new();
    let golden = golden("basic-default").image;
    let mut parts = Parts::of(&fs::read(&golden).unwrap());
    let payload = parts.payload(SectionType::METADATA_V2_SCHEMA).unwrap();
    let mut schema = Schema::parse(payload).unwrap();
    let root = usize::from(schema.root);
    schema.layouts[root].fields.push(Field {
        id: 1000,
        layout_id: 0,
        offset: 0,
    });
    *payload = schema.encode();
    let source = place.path("newer.dwarfs");
    fs::write(&source, parts.assemble()).unwrap();
    // Says nothing.
    place.rewrite(&source, &["--recompress"]);
    let output = place.path("rebuilt.dwarfs");
    let done = must(
        MKDWARFS,
        TestDir::args(
            &source,
            &output,
            &["--rebuild-metadata", "--keep-all-times"],
        ),
    );
    let text = String::from_utf8_lossy(&done.stderr).into_owned();
    assert!(
        text.contains("rebuilding drops 1 member(s) of the metadata") && text.contains(": 1000"),
        "{text}"
    );
    manifest(&golden).assert_same(&manifest(&output), Fields::ALL, "rebuilt");
}
