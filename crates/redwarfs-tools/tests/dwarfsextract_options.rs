//! Every option of `dwarfsextract` but the formats, on small images that are made here.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};

use crate::extract_support;
use crate::extract_support::{Sample, files_below, list, stderr, tree_with_links};
use redwarfs_extractor::{ExtractOptions, Silent, extract_to_directory};
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_testkit::skip;

#[test]
fn patterns_select_files_and_paths_select_trees() {
    let sample = Sample::new(tree_with_links);
    let cases: [(&[&str], &[&str]); 12] = [
        (&["*.txt"], &["a.txt"]),
        (&["docs"], &["docs/b.txt", "docs/deep/C.TXT"]),
        (&["docs/"], &["docs/b.txt", "docs/deep/C.TXT"]),
        (&["docs/**"], &["docs/b.txt", "docs/deep/C.TXT"]),
        (&["**/*.txt"], &["a.txt", "docs/b.txt"]),
        (&["i:**/*.txt"], &["a.txt", "docs/b.txt", "docs/deep/C.TXT"]),
        (&[":docs/b.txt"], &["docs/b.txt"]),
        (&["{a,docs/?}.txt"], &["a.txt", "docs/b.txt"]),
        (&["docs/[!a].txt"], &["docs/b.txt"]),
        (&["--pattern=a.txt", "link"], &["a.txt", "link"]),
        (
            &["--pattern", "a.txt", "--pattern", "twin"],
            &["a.txt", "twin"],
        ),
        (
            &["."],
            &["a.txt", "docs/b.txt", "docs/deep/C.TXT", "link", "twin"],
        ),
    ];
    for (patterns, wanted) in cases {
        let out = sample.dir("out");
        let done = sample.extract(&[&["-o", "out"], patterns].concat());
        assert_eq!(
            done.status.code(),
            Some(0),
            "{patterns:?}: {}",
            stderr(&done)
        );
        assert_eq!(stderr(&done), "", "{patterns:?}");
        assert_eq!(files_below(&out), wanted, "{patterns:?}");
        fs::remove_dir_all(out).unwrap();
    }
}

#[test]
fn parents_of_a_match_have_their_attributes_and_empty_directories_need_a_path() {
    let sample = Sample::new(tree_with_links);
    let out = sample.dir("out");
    let done = sample.extract(&["-o", "out", "docs/deep/*"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert_eq!(files_below(&out), ["docs/deep/C.TXT"]);
    let docs = out.join("docs").metadata().unwrap();
    assert_eq!((docs.mode() & 0o7777, docs.mtime()), (0o750, 1_000_000_000));
    assert!(!out.join("empty").exists());
    assert_eq!(
        sample.extract(&["-o", "out", "empty"]).status.code(),
        Some(0)
    );
    assert!(out.join("empty").is_dir());
}

#[test]
fn a_pattern_without_match_is_a_warning_and_exit_3() {
    let sample = Sample::new(tree_with_links);
    let out = sample.dir("out");
    let done = sample.extract(&["-o", "out", "nope*"]);
    assert_eq!(done.status.code(), Some(3));
    assert!(stderr(&done).ends_with(" no matching files found\n"));
    let done = sample.extract(&["-o", "out", "a.txt", "nope*"]);
    assert_eq!(done.status.code(), Some(3));
    assert!(
        stderr(&done).ends_with(" no matching files found for nope*\n"),
        "{}",
        stderr(&done)
    );
    assert_eq!(files_below(&out), ["a.txt"]);
}

#[test]
fn a_bad_pattern_is_an_error() {
    let sample = Sample::new(tree_with_links);
    for (pattern, text) in [
        ("a[", "unmatched '[' in pattern: a["),
        ("a]", "unmatched ']' in pattern: a]"),
        ("{a", "unmatched '{' in pattern: {a"),
        ("a\\", "trailing backslash in pattern: a\\"),
        (
            "[z-a]",
            "invalid range 'z-a' in character class in pattern: [z-a]",
        ),
        (
            "[/]",
            "invalid character '/' in character class in pattern: [/]",
        ),
    ] {
        let done = sample.extract(&["--pattern", pattern]);
        assert_eq!(done.status.code(), Some(1), "{pattern}");
        assert_eq!(stderr(&done), format!("dwarfsextract: {text}\n"));
    }
}

#[test]
fn one_file_goes_to_standard_output() {
    let sample = Sample::new(|dir| {
        tree_with_links(dir);
        let file = fs::File::create(dir.join("holes")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"end", 3_000_000).unwrap();
    });
    for (path, file) in [
        ("a.txt", "a.txt"),
        ("/docs//b.txt", "docs/b.txt"),
        ("twin", "a.txt"),
        ("holes", "holes"),
    ] {
        let done = sample.extract(&["--stdout", path]);
        assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
        let want = fs::read(sample.source().join(file)).unwrap();
        assert!(done.stdout == want, "{path}");
    }
    for (path, cause) in [
        ("docs", "is a directory"),
        ("link", "is a symbolic link to a.txt"),
        ("nope", "no such file in the image"),
        ("a.txt/", "is not a directory"),
    ] {
        let done = sample.extract(&["--stdout", path]);
        assert_eq!(done.status.code(), Some(1), "{path}");
        let want = format!("dwarfsextract: cannot extract: {path}: {cause}\n");
        assert_eq!(stderr(&done), want);
        assert!(done.stdout.is_empty());
    }
    let done = sample.extract(&["--stdout", "a.txt", "-f", "pax"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        stderr(&done).contains("cannot combine"),
        "{}",
        stderr(&done)
    );
}

#[test]
fn missing_input_and_output_are_named() {
    let sample = Sample::new(tree_with_links);
    let done = extract_support::dwarfsextract(sample.path(), &[]);
    assert_eq!(done.status.code(), Some(1));
    assert!(stderr(&done).starts_with("dwarfsextract: no image given"));
    for (args, start) in [
        (
            &["-o", "nope"][..],
            "cannot open output directory: nope: no such file or directory",
        ),
        (&["-o", "image.dwarfs"], "output is not a directory: image"),
        (&["-o", "-"], "an archive format is needed"),
        (
            &["-f", "pax", "-o", "nope/x.tar"],
            "extraction aborted: cannot write archive: nope/x.tar: no such file",
        ),
    ] {
        let done = sample.extract(args);
        assert_eq!(done.status.code(), Some(1), "{args:?}");
        let start = format!("dwarfsextract: {start}");
        assert!(stderr(&done).starts_with(&start), "{}", stderr(&done));
    }
    // The current directory is the default.
    let here = sample.dir("here");
    let image = sample.image();
    let done = extract_support::dwarfsextract(&here, &["-i", image.to_str().unwrap(), "twin"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert_eq!(files_below(&here), ["twin"]);
}

#[test]
fn the_image_may_be_the_first_argument() {
    let sample = Sample::new(tree_with_links);
    let run = |args: &[&str]| extract_support::dwarfsextract(sample.path(), args);
    let all = sample.dir("all");
    let done = run(&["image.dwarfs", "-o", "all"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert_eq!(files_below(&all), files_below(&sample.source()));
    // What follows is a pattern, wherever the options are.
    let some = sample.dir("some");
    let done = run(&["-o", "some", "-O", "0", "image.dwarfs", "twin"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert_eq!(files_below(&some), ["twin"]);
    let done = run(&["image.dwarfs", "--stdout", "a.txt"]);
    assert_eq!(done.stdout, b"contents of a\n");
    let done = run(&["image.dwarfs", "--stdout", "a.txt", "twin"]);
    assert_eq!(done.status.code(), Some(1));
    // With the option, all arguments are patterns.
    let done = sample.extract(&["-o", "all", "image.dwarfs"]);
    assert_eq!(done.status.code(), Some(3), "{}", stderr(&done));
}

#[test]
fn links_can_be_left_out() {
    let sample = Sample::new(tree_with_links);
    let all = files_below(&sample.source());
    for (option, lost) in [("--skip-symlinks", "link"), ("--skip-hardlinks", "twin")] {
        let want: Vec<_> = all.iter().filter(|name| *name != lost).cloned().collect();
        let out = sample.dir(lost);
        let to = ["-o", lost, option, "--log-level=verbose"];
        let done = sample.extract(&to);
        assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
        assert_eq!(files_below(&out), want, "{option}");
        let said = "skipped 1 devices, specials and links";
        assert!(stderr(&done).contains(said), "{}", stderr(&done));
        let done = sample.extract(&["-f", "pax", "-o", "x.tar", option]);
        assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
        if let Some(listed) = extract_support::list(&sample.path().join("x.tar")) {
            let mut files: Vec<_> = listed.into_iter().filter(|n| !n.ends_with('/')).collect();
            files.sort();
            assert_eq!(files, want, "{option}");
        }
    }
}

#[test]
fn devices_and_specials_can_be_left_out() {
    let sample = Sample::with(
        extract_support::specials,
        &["--with-devices", "--with-specials"],
    );
    let device = sample.source().join("null").exists();
    let out = sample.dir("all");
    let done = sample.extract(&["-o", "all"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    let mut want = vec!["fifo", "file", "null", "socket"];
    if !device {
        skip("a device", "needs root");
        want.retain(|name| *name != "null");
    }
    assert_eq!(files_below(&out), want);
    use std::os::unix::fs::FileTypeExt;
    let kind = |name: &str| out.join(name).symlink_metadata().unwrap().file_type();
    assert!(kind("socket").is_socket() && kind("fifo").is_fifo());
    let out = sample.dir("none");
    let done = sample.extract(&["-o", "none", "--skip-devices", "--skip-specials"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert_eq!(files_below(&out), ["file"]);
}

#[test]
fn image_offsets() {
    let sample = Sample::new(tree_with_links);
    let image = fs::read(sample.image()).unwrap();
    fs::write(
        sample.path().join("headed"),
        [&vec![b'#'; 4096][..], &image].concat(),
    )
    .unwrap();
    let run = |args: &[&str]| {
        let args = [&["-i", "headed", "--stdout", "a.txt"], args].concat();
        extract_support::dwarfsextract(sample.path(), &args)
    };
    for args in [
        &[][..],
        &["-O", "auto"],
        &["-O4096"],
        &["--image-offset=4096"],
    ] {
        let done = run(args);
        assert_eq!(done.status.code(), Some(0), "{args:?}: {}", stderr(&done));
        assert_eq!(
            done.stdout,
            fs::read(sample.source().join("a.txt")).unwrap()
        );
    }
    for (offset, part) in [
        ("-O7", "an image starts at offset 4096"),
        ("-O-7", "image offset must be positive"),
        ("-Ofoo", "failed to parse image offset: foo"),
    ] {
        let done = run(&[offset]);
        assert_eq!(done.status.code(), Some(1), "{offset}");
        assert!(stderr(&done).contains(part), "{}", stderr(&done));
    }
}

#[test]
fn threads_writers_and_cache_do_not_change_the_result() {
    let sample = Sample::with(extract_support::scattered, &["-S14", "-B30"]);
    for (number, options) in [
        &["-n", "1", "-s", "1"][..],
        &["--num-workers=3", "--num-disk-writers=5"],
        &["--cache-size=1m", "--num-disk-writers", "1"],
    ]
    .into_iter()
    .enumerate()
    {
        let name = format!("out{number}");
        let out = sample.dir(&name);
        let done = sample.extract(&[&["-o", &name], options].concat());
        assert_eq!(
            done.status.code(),
            Some(0),
            "{options:?}: {}",
            stderr(&done)
        );
        for file in files_below(&sample.source()) {
            let same = fs::read(sample.source().join(&file)).unwrap()
                == fs::read(out.join(&file)).unwrap();
            assert!(same, "{options:?} {file}");
        }
    }
    let done = sample.extract(&["-f", "pax", "-o", "x.tar", "--num-disk-writers=2"]);
    let text = stderr(&done);
    let info = "--num-disk-writers option is only used when extracting to disk\n";
    assert!(text.starts_with("I ") && text.ends_with(info), "{text}");
    for bad in [
        ["-n", "0"],
        ["-n", "x"],
        ["-s", "1q"],
        ["--num-disk-writers", "-1"],
    ] {
        assert_eq!(sample.extract(&bad).status.code(), Some(1), "{bad:?}");
    }
}

#[test]
fn scattered_images_are_decoded_once_in_bounded_memory() {
    let sample = Sample::with(extract_support::scattered, &["-S14", "-B30"]);
    let image = Image::open(sample.image(), &OpenOptions::default()).unwrap();
    let blocks = u64::from(image.container().block_count());
    assert!(blocks > 40, "{blocks}");
    for (memory, threads, writers, limit) in [
        (0, 1, 1, 1 << 14),
        (3 << 14, 4, 4, 3 << 14),
        (1 << 30, 2, 2, 3 << 14),
    ] {
        let out = tempfile::tempdir().unwrap();
        let mut options = ExtractOptions::default();
        (options.memory, options.threads, options.writers) = (memory, threads, writers);
        let done = extract_to_directory(&image, out.path(), &options, &Silent).unwrap();
        assert_eq!(done.blocks, blocks);
        assert!(
            (1..=limit).contains(&done.peak_block_bytes),
            "{} of {limit}",
            done.peak_block_bytes
        );
    }
}

#[test]
fn archives_of_a_part_decode_nothing_else() {
    let sample = Sample::with(extract_support::one_block_each, &["-l0", "-S20"]);
    let decoded = |args: &[&str]| {
        let done = sample.extract(&[&["--log-level=verbose"], args].concat());
        let text = stderr(&done);
        assert_eq!(done.status.code(), Some(0), "{text}");
        let number = text
            .split_once(" decoded ")
            .and_then(|(_, rest)| rest.split(' ').next());
        number.unwrap().parse::<usize>().unwrap()
    };
    // Each in a block of its own, between others.
    assert_eq!(decoded(&["-f", "pax", "small"]), 1);
    assert_eq!(decoded(&["-f", "pax", "good", "small"]), 2);
    assert_eq!(decoded(&["--stdout", "good"]), 1);
    let image = Image::open(sample.image(), &OpenOptions::default()).unwrap();
    let blocks = image.container().block_count() as usize;
    assert!(blocks > 3);
    assert_eq!(decoded(&["-f", "pax"]), blocks);
}

#[test]
fn damage_is_named_and_leaves_no_file() {
    let sample = Sample::with(extract_support::one_block_each, &["-l0", "-S20"]);
    sample.damage(b"small-and-damaged");
    sample.damage(b"large-and-damaged");
    let out = sample.dir("out");
    let done = sample.extract(&["-o", "out"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        stderr(&done).starts_with("dwarfsextract: extraction aborted: cannot read: "),
        "{}",
        stderr(&done)
    );
    fs::remove_dir_all(&out).unwrap();
    fs::create_dir(&out).unwrap();
    for args in [&["-o", "out"][..], &["-f", "pax", "-o", "out.tar"]] {
        let done = sample.extract(&[args, &["--continue-on-error"]].concat());
        let text = stderr(&done);
        assert_eq!(done.status.code(), Some(2), "{text}");
        for file in ["large", "large-link", "small"] {
            assert!(text.contains(&format!(" cannot read: {file}: ")), "{text}");
        }
        assert!(
            text.ends_with(" extraction finished with 3 error(s)\n"),
            "{text}"
        );
        assert!(!text.contains("zeros"), "{text}");
    }
    let good = ["good", "large-and-good"];
    assert_eq!(files_below(&out), good);
    if let Some(listed) = list(&sample.path().join("out.tar")) {
        let mut files: Vec<_> = listed.into_iter().filter(|p| !p.ends_with('/')).collect();
        files.sort();
        assert_eq!(files, good);
    }
    // An archive that cannot be completed leaves the old file.
    fs::write(sample.path().join("old.tar"), "precious").unwrap();
    let done = sample.extract(&["-f", "pax", "-o", "old.tar"]);
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(
        fs::read(sample.path().join("old.tar")).unwrap(),
        b"precious"
    );
}

#[test]
fn the_integrity_check_can_be_switched_off() {
    let sample = Sample::with(extract_support::one_block_each, &["-l0", "-S20"]);
    sample.damage(b"small-and-damaged");
    let done = sample.extract(&["--stdout", "small"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(
        stderr(&done).contains("checksum error"),
        "{}",
        stderr(&done)
    );
    let done = sample.extract(&["--stdout", "small", "--disable-integrity-check"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    let want = fs::read(sample.source().join("small")).unwrap();
    let different = want.iter().zip(&done.stdout).filter(|(a, b)| a != b);
    assert_eq!((done.stdout.len(), different.count()), (want.len(), 1));
}

#[test]
fn damaged_compressed_blocks_are_safe_without_the_check() {
    for codec in ["zstd", "lzma:level=1", "lz4", "brotli:quality=3"] {
        let sample = Sample::with(extract_support::one_block_each, &["-S20", "-C", codec]);
        let size = fs::metadata(sample.image()).unwrap().len();
        for part in 1..8 {
            sample.flip(size * part / 16);
        }
        let out = sample.dir("out");
        let done = sample.extract(&["-o", "out", "--disable-integrity-check"]);
        assert!(
            matches!(done.status.code(), Some(0 | 1)),
            "{codec}: {}",
            stderr(&done)
        );
        drop(out);
    }
}

#[test]
fn progress_counts_to_a_hundred() {
    let sample = Sample::with(extract_support::scattered, &[]);
    sample.dir("out");
    for args in [&["-o", "out"][..], &["-f", "pax", "-o", "x.tar"]] {
        let done = sample.extract(&[args, &["--stdout-progress"]].concat());
        assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
        let text = String::from_utf8(done.stdout).unwrap();
        assert!(
            text.starts_with("\r0%") && text.ends_with("\r100%\n"),
            "{text:?}"
        );
        let numbers: Vec<u32> = text
            .trim_end()
            .split('\r')
            .skip(1)
            .map(|n| n.strip_suffix('%').unwrap().parse().unwrap())
            .collect();
        assert!(numbers.is_sorted_by(|a, b| a < b), "{numbers:?}");
    }
    for args in [&["-f", "pax"][..], &["-f", "pax", "-o", "-"]] {
        let done = sample.extract(&[args, &["--stdout-progress"]].concat());
        assert_eq!(done.status.code(), Some(1));
        assert_eq!(
            stderr(&done),
            "dwarfsextract: cannot use --stdout-progress with --output=-\n"
        );
    }
}

#[test]
fn times_are_measured() {
    let sample = Sample::new(tree_with_links);
    let done = sample.extract(&[
        "--stdout=a.txt",
        "--perfmon=inode_reader_v2,block_cache",
        "--perfmon-trace=trace.json",
    ]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert!(
        stderr(&done).contains("inode_reader_v2"),
        "{}",
        stderr(&done)
    );
    let trace = fs::read_to_string(sample.path().join("trace.json")).unwrap();
    assert!(trace.contains("inode_reader_v2"), "{trace}");
    let done = sample.extract(&["--stdout=a.txt", "--perfmon=foo"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(stderr(&done).contains("foo"), "{}", stderr(&done));
    let done = sample.extract(&["--stdout=a.txt", "--perfmon-trace=t"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(stderr(&done).contains("--perfmon"), "{}", stderr(&done));
}

#[test]
fn progress_can_be_chosen() {
    let sample = Sample::new(tree_with_links);
    let text = |args: &[&str]| {
        let done = sample.extract(&[&["-f", "pax", "-o", "x.tar"], args].concat());
        assert_eq!(done.status.code(), Some(0));
        assert!(!stderr(&done).contains('\x1b'));
        stderr(&done)
    };
    // Redrawing needs a terminal.
    for mode in ["simple", "ascii", "unicode"] {
        let text = text(&["--progress", mode]);
        assert!(
            text.contains("==> extracting 99%, ") && text.contains("I "),
            "{text}"
        );
        assert!(text.contains(" extracted "), "{text}");
    }
    for none in [&[][..], &["--no-progress"], &["--progress=none"]] {
        assert_eq!(text(none), "");
    }
    let done = sample.extract(&["-f", "pax", "--progress=x"]);
    assert!(stderr(&done).contains("(none, simple, ascii, unicode)"));
}

#[test]
fn levels_of_the_log() {
    let sample = Sample::new(tree_with_links);
    sample.dir("out");
    let log = |level: &str| stderr(&sample.extract(&["-o", "out", "--log-level", level, "docs"]));
    // Without a terminal there is silence unless something is wrong.
    assert_eq!(log("info"), "");
    let verbose = log("verbose");
    for part in [
        " opened the image, version=2.5, offset=0, ",
        " extracted 2 files, ",
        " found 2 matching files\n",
        " extraction finished without errors\n",
    ] {
        assert!(verbose.contains(part), "{verbose}");
    }
    assert!(!verbose.contains("extracting "));
    let debug = log("debug");
    assert!(
        debug.contains(" extracting docs/b.txt (1 bytes)\n"),
        "{debug}"
    );
    assert!(!debug.contains("\nT "), "{debug}");
    let trace = log("trace");
    assert!(trace.contains("] section 0 BLOCK, at="), "{trace}");
    // From verbose on a message says where it comes from, and at others if it is asked to.
    assert!(
        verbose.contains(" [image.rs:") && verbose.contains(" [mod.rs:"),
        "{verbose}"
    );
    assert_eq!(
        log("foo"),
        "dwarfsextract: invalid logger level: foo (one of error, warn, info, verbose, debug, trace)\n"
    );
    let done = sample.extract(&["-o", "out", "--log-with-context", "nope"]);
    let text = stderr(&done);
    assert!(
        text.ends_with("] no matching files found\n") && text.contains(" [mod.rs:"),
        "{text}"
    );
    let done = sample.extract(&["-o", "out", "nope"]);
    assert!(!stderr(&done).contains('['), "{}", stderr(&done));
}

#[test]
fn help_manual_and_version() {
    let sample = Sample::new(|_| {});
    for (option, part) in [
        ("--help", "--continue-on-error"),
        ("-h", "--continue-on-error"),
        ("--man", "EXIT STATUS"),
        ("--version", "RedwarFS"),
    ] {
        let done = extract_support::dwarfsextract(sample.path(), &[option]);
        assert_eq!(done.status.code(), Some(0), "{option}");
        let text = String::from_utf8(done.stdout).unwrap();
        assert!(text.contains(part), "{option}: {text}");
    }
}

#[test]
fn existing_things_are_replaced_but_not_followed() {
    let sample = Sample::new(tree_with_links);
    let out = sample.dir("out");
    let outside = sample.dir("outside");
    fs::write(outside.join("b.txt"), "precious").unwrap();
    fs::write(out.join("kept"), "k").unwrap();
    fs::write(out.join("a.txt"), "old").unwrap();
    fs::set_permissions(out.join("a.txt"), fs::Permissions::from_mode(0o400)).unwrap();
    std::os::unix::fs::symlink(&outside, out.join("docs")).unwrap();
    std::os::unix::fs::symlink(outside.join("b.txt"), out.join("twin")).unwrap();
    let done = sample.extract(&["-o", "out"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert_eq!(fs::read(outside.join("b.txt")).unwrap(), b"precious");
    assert_eq!(fs::read(out.join("kept")).unwrap(), b"k");
    assert_eq!(
        fs::read(out.join("twin")).unwrap(),
        fs::read(sample.source().join("a.txt")).unwrap()
    );
    assert!(out.join("docs").symlink_metadata().unwrap().is_dir());
    let ino = |name: &str| out.join(name).metadata().unwrap().ino();
    assert_eq!(ino("a.txt"), ino("twin"));
}
