//! What `mkdwarfs` does not rewrite: damaged images, with options that do not belong together, with too little memory.

use std::fs;

use crate::rewrite::{TestDir, failure, manifest, open};
use crate::support::{MKDWARFS, must, run};
use redwarfs_format::section::SectionType;
use redwarfs_testkit::Fields;
use redwarfs_testkit::golden::golden;

#[test]
fn damage_is_an_error_and_the_old_file_stays() {
    let place = TestDir::new();
    let source = place.path("damaged.dwarfs");
    let mut bytes = fs::read(golden("basic-zstd-small-blocks").image).unwrap();
    let whole = bytes.len();
    bytes[100] ^= 1;
    fs::write(&source, &bytes).unwrap();
    let output = place.path("old");
    for (options, want) in [
        (
            &["--recompress"][..],
            "input filesystem is corrupt: detected 1 error(s), first: checksum error in section 0 \
             (BLOCK 0) at offset 64",
        ),
        (
            &["--recompress", "--no-check"],
            "checksum error in section: BLOCK",
        ),
        (
            &["--recompress=none", "--no-check"],
            "checksum error in section: BLOCK",
        ),
        (
            &["--change-block-size", "--no-check"],
            "checksum error in section: BLOCK",
        ),
    ] {
        fs::write(&output, b"precious").unwrap();
        let done = run(
            MKDWARFS,
            TestDir::args(&source, &output, &[options, &["-f"]].concat()),
        );
        let text = failure(&done, &format!("{options:?}"));
        assert!(text.starts_with("cannot rewrite image: "), "{text}");
        assert!(text.contains(want), "{text}");
        assert_eq!(fs::read(&output).unwrap(), b"precious");
    }
    // Nor does an image lose anything that is to take its own place.
    let own = ["--recompress", "--no-check", "-f"];
    let done = run(MKDWARFS, TestDir::args(&source, &source, &own));
    failure(&done, "onto itself");
    assert!(fs::read(&source).unwrap() == bytes);
    assert_eq!(fs::read_dir(place.0.path()).unwrap().count(), 2);
    bytes[100] ^= 1;
    for (len, want) in [
        (whole / 2, "truncated section"),
        (10, "truncated section header"),
        (0, "no filesystem found"),
    ] {
        fs::write(&source, &bytes[..len]).unwrap();
        let text = place.refused(&source, &["--recompress"]);
        assert!(text.starts_with("cannot open image: "), "{text}");
        assert!(text.contains(want), "{len}: {text}");
    }
    let text = place.refused(&place.path("nothing"), &["--recompress"]);
    assert!(text.ends_with("no such file or directory"), "{text}");
    let text = place.refused(place.0.path(), &["--recompress"]);
    assert!(text.contains("is a directory"), "{text}");
}

#[test]
fn options_that_do_not_belong_together() {
    let place = TestDir::new();
    let source = golden("basic-default").image;
    for (options, want) in [
        (
            &["--recompress", "--set-owner=1"][..],
            "option '--set-owner' needs '--rebuild-metadata'",
        ),
        (
            &["--recompress", "--no-metadata-version-history"],
            "option '--no-metadata-version-history' needs '--rebuild-metadata'",
        ),
        (
            &["--recompress=metadata", "--recompress-categories=a"],
            "--recompress-categories needs recompression of blocks",
        ),
        (
            &["--recompress", "--remove-empty-dirs"],
            "option '--remove-empty-dirs' cannot be used when an image is rewritten",
        ),
        (
            &["--recompress", "--hollow"],
            "option '--hollow' cannot be used when an image is rewritten",
        ),
        (
            &["--remove-header"],
            "option '--remove-header' needs '--recompress'",
        ),
        (&["--no-check"], "option '--no-check' needs '--recompress'"),
        (
            &["--recompress-categories=a"],
            "option '--recompress-categories' needs '--recompress'",
        ),
        (
            &["--no-metadata-version-history"],
            "option '--no-metadata-version-history' needs '--rebuild-metadata'",
        ),
    ] {
        assert_eq!(place.refused(&source, options), want, "{options:?}");
    }
}

#[test]
fn memory_limits_hold_or_are_refused() {
    let place = TestDir::new();
    let source = golden("basic-zstd-small-blocks").image;
    let text = place.refused(&source, &["--recompress", "-L", "1k"]);
    assert!(
        text.starts_with("memory limit of 1 KiB is too low ("),
        "{text}"
    );
    assert!(
        text.contains(" are needed, -L ") && text.ends_with("m is enough)"),
        "{text}"
    );
    let output = place.path("low.dwarfs");
    let options = ["--recompress", "-L", "40m", "-C", "lz4", "--no-history"];
    must(MKDWARFS, TestDir::args(&source, &output, &options));
    let free = place.rewrite(&source, &["--recompress", "-C", "lz4", "--no-history"]);
    assert!(fs::read(output).unwrap() == fs::read(free).unwrap());
}

#[test]
fn a_damaged_history_is_an_error_unless_it_is_dropped() {
    let place = TestDir::new();
    let golden = golden("basic-default").image;
    let mut bytes = fs::read(&golden).unwrap();
    let image = open(&golden);
    let mut sections = image.container().section_of_type(SectionType::HISTORY);
    let section = image.section_with_header(sections.next().unwrap()).unwrap();
    bytes[image.container().file_offset(&section) as usize + 3] ^= 1;
    let source = place.path("damaged.dwarfs");
    fs::write(&source, &bytes).unwrap();
    // Reading the history warns, so there is more than one line.
    let attempt = |options: &[&str]| {
        let output = place.path("attempt.dwarfs");
        let done = run(MKDWARFS, TestDir::args(&source, &output, options));
        assert_eq!(done.status.success(), output.exists(), "{options:?}");
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        let last = text.lines().last().unwrap_or_default().to_owned();
        (done.status.code(), last, output)
    };
    let (code, last, _) = attempt(&["--recompress"]);
    assert_eq!(code, Some(1));
    assert!(last.contains("first: checksum error in section"), "{last}");
    let (code, last, _) = attempt(&["--recompress", "--no-check"]);
    assert_eq!(code, Some(1));
    assert!(
        last.contains("checksum error in section: HISTORY"),
        "{last}"
    );
    let (code, last, after) = attempt(&["--recompress", "--no-check", "--no-history"]);
    assert_eq!(code, Some(0), "{last}");
    manifest(&golden).assert_same(&manifest(&after), Fields::ALL, "without history");
    assert!(open(&after).history().unwrap().entries.is_empty());
}
