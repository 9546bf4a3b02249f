//! Archives of `dwarfsextract`: filters, options, and what chooses the format.

use std::fs;
use std::process::Command;

use crate::dwarfsextract_formats::{has_libarchive, tree_for_zip};
use crate::extract_support::{Sample, files_below, have, list, stderr, tree_with_links};

#[test]
fn filters_are_applied_in_order() {
    if !has_libarchive() {
        return;
    }
    let sample = Sample::new(tree_with_links);
    let plain = sample.extract(&["-f", "pax"]).stdout;
    for (filters, start) in [
        ("gzip", &b"\x1f\x8b"[..]),
        ("xz", b"\xfd7zXZ"),
        ("zstd", b"\x28\xb5\x2f\xfd"),
        ("gzip,b64encode", b"begin-base64"),
        ("zstd,gzip", b"\x1f\x8b"),
    ] {
        let done = sample.extract(&["-f", "pax", "--format-filters", filters, "-o", "x"]);
        assert_eq!(done.status.code(), Some(0), "{filters}: {}", stderr(&done));
        let archive = sample.path().join("x");
        assert!(fs::read(&archive).unwrap().starts_with(start), "{filters}");
        if let Some(listed) = list(&archive) {
            assert!(listed.iter().any(|p| p == "docs/deep/C.TXT"), "{listed:?}");
        }
    }
    // The bytes inside are those of the same archive without filter.
    if have("gzip") {
        let done = sample.extract(&["-f", "pax", "--format-filters=gzip", "-o", "x.gz"]);
        assert_eq!(done.status.code(), Some(0));
        let done = Command::new("gzip")
            .args(["-dc", "x.gz"])
            .current_dir(sample.path())
            .output()
            .unwrap();
        assert!(done.stdout == plain);
        assert_eq!(stderr(&done), "");
    }
}

/// The filters that need no library.
#[test]
fn gzip_and_zstd_have_the_archive_in_them() {
    let sample = Sample::new(tree_for_zip);
    for format in ["pax", "newc", "zip"] {
        let plain = sample.extract(&["-f", format]).stdout;
        for filter in ["gzip", "zstd"] {
            let option = format!("--format-filters={filter}");
            let done = sample.extract(&["-f", format, &option, "-o", "x"]);
            assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
            assert!(fs::metadata(sample.path().join("x")).unwrap().len() < plain.len() as u64);
            if have(filter) {
                let done = Command::new(filter)
                    .arg("-dc")
                    .stdin(fs::File::open(sample.path().join("x")).unwrap())
                    .output()
                    .unwrap();
                assert!(done.status.success(), "{}", stderr(&done));
                assert!(done.stdout == plain, "{format} {filter}");
            }
        }
    }
}

#[test]
fn options_of_formats_are_passed_on() {
    if !has_libarchive() {
        return;
    }
    let sample = Sample::new(tree_with_links);
    let size = |level: &str| {
        let option = format!("--format-options=gzip:compression-level={level}");
        let done = sample.extract(&["-f", "pax", "--format-filters=gzip", &option]);
        assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
        done.stdout.len()
    };
    assert!(size("9") < size("0"));
    let done = sample.extract(&["-f", "pax", "--format-options=foo=1"]);
    assert_eq!(done.status.code(), Some(1));
    assert_eq!(stderr(&done), "dwarfsextract: Undefined option: `foo'\n");
    let done = sample.extract(&["-o", ".", "--format-options=foo=1"]);
    assert_eq!(
        stderr(&done),
        "dwarfsextract: --format-options needs --format\n"
    );
}

#[test]
fn unknown_formats_and_filters_are_errors() {
    let sample = Sample::new(tree_with_links);
    for args in [
        &["-f", "tarx"][..],
        &["-f", "pax", "--format-filters=nope"],
        &["-f", "auto", "-o", "x.foo"],
    ] {
        let done = sample.extract(args);
        assert_eq!(done.status.code(), Some(1), "{args:?}");
        assert_eq!(stderr(&done).lines().count(), 1, "{}", stderr(&done));
    }
    assert_eq!(
        files_below(sample.path())
            .iter()
            .filter(|f| *f == "x.foo")
            .count(),
        0
    );
    if has_libarchive() {
        for (args, text) in [
            (
                &["-f", "tarx"][..],
                "No such format 'tarx' (one of pax, ustar, gnutar, cpio, newc, odc, zip, 7zip, \
                 iso9660, mtree, shar, xar, warc, v7tar)",
            ),
            (
                &["-f", "tar.gz"],
                "No such format 'tar.gz' (write -f pax --format-filters=gzip)",
            ),
            (&["-f", "tar"], "No such format 'tar' (write -f pax)"),
            (&["-f", "7z"], "No such format '7z' (write -f 7zip)"),
            (
                &["-f", "cpio.xz"],
                "No such format 'cpio.xz' (write -f cpio --format-filters=xz)",
            ),
            (
                &["-f", "pax", "--format-filters=nope"],
                "No such filter 'nope' (one of gzip, bzip2, xz, zstd, lz4, lzma, lzip, lzop, \
                 compress, grzip, lrzip, b64encode, uuencode)",
            ),
            (
                &["-f", "auto", "-o", "x.foo"],
                "No such format 'x.foo' (the name of the output says nothing about its format: \
                 -f FORMAT, for example -f pax)",
            ),
        ] {
            let want = format!("dwarfsextract: {text}\n");
            assert_eq!(stderr(&sample.extract(args)), want);
        }
    }
    for (args, text) in [
        (&["-f", "auto"][..], "auto format requires output path"),
        (
            &["-f", "auto", "-o", "-"],
            "auto format requires output path",
        ),
        (
            &["-f", "auto", "-o", "x.tar", "--format-filters=gzip"],
            "auto format does not support filters",
        ),
    ] {
        let done = sample.extract(args);
        assert_eq!(done.status.code(), Some(1));
        assert_eq!(stderr(&done), format!("dwarfsextract: {text}\n"));
    }
}

#[test]
fn the_name_of_the_file_chooses_the_format() {
    if !has_libarchive() {
        return;
    }
    let sample = Sample::new(tree_with_links);
    for (name, start) in [
        ("x.tar", &b"docs/"[..]),
        ("x.tar.zst", b"\x28\xb5\x2f\xfd"),
        ("x.tgz", b"\x1f\x8b"),
        ("x.zip", b"PK\x03\x04"),
        ("x.7z", b"7z\xbc\xaf"),
        ("x.cpio", b"070707"),
    ] {
        let done = sample.extract(&["-f", "auto", "-o", name]);
        assert_eq!(done.status.code(), Some(0), "{name}: {}", stderr(&done));
        let bytes = fs::read(sample.path().join(name)).unwrap();
        let start_of = &bytes[..start.len()];
        if name != "x.tar" {
            assert_eq!(start_of, start, "{name}");
        }
        if let Some(listed) = list(&sample.path().join(name)) {
            assert!(listed.iter().any(|p| p.ends_with("deep/C.TXT")), "{name}");
        }
    }
}

#[test]
fn without_libarchive_the_own_formats_remain() {
    let sample = Sample::new(tree_with_links);
    let run = |args: &[&str]| {
        Command::new(env!("CARGO_BIN_EXE_dwarfsextract"))
            .args(["-i", "image.dwarfs"])
            .args(args)
            .current_dir(sample.path())
            .env("REDWARFS_LIBARCHIVE", "/nonexistent/libarchive.so")
            .output()
            .unwrap()
    };
    for format in ["pax", "ustar", "gnutar", "newc", "odc", "cpio", "zip"] {
        let done = run(&["-f", format]);
        assert_eq!(done.status.code(), Some(0), "{format}: {}", stderr(&done));
        assert!(!done.stdout.is_empty());
    }
    for name in [
        "x.tar",
        "x.zip",
        "x.tgz",
        "x.tar.gz",
        "x.tar.zst",
        "x.cpio.gz",
    ] {
        let done = run(&["-f", "auto", "-o", name]);
        assert_eq!(done.status.code(), Some(0), "{name}: {}", stderr(&done));
    }
    for (args, what) in [
        (&["-f", "7zip"][..], "format '7zip'"),
        (&["-f", "pax", "--format-filters=xz"], "filter 'xz'"),
        (
            &["-f", "pax", "--format-filters=gzip,zstd"],
            "filter 'gzip,zstd'",
        ),
        (&["-f", "zip", "--format-options=store"], "option 'store'"),
    ] {
        let done = run(args);
        assert_eq!(done.status.code(), Some(1));
        let text = stderr(&done);
        let start = format!("dwarfsextract: {what} needs libarchive, which ");
        assert!(text.starts_with(&start), "{text}");
        let end = "pax, ustar, gnutar, newc, odc, cpio and zip, and the filters gzip and zstd\n";
        assert!(text.ends_with(end), "{text}");
        assert_eq!(text.lines().count(), 1);
    }
}
