//! Archives of `dwarfsextract`: formats, judged by independent programs.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;

use crate::extract_support;
use crate::extract_support::{Sample, files_below, have, list, stderr, tree_with_links};
use redwarfs_testkit::skip;

pub(crate) fn has_libarchive() -> bool {
    let found = redwarfs_extractor::libarchive_version().is_some();
    if !found {
        skip("formats of libarchive", "no libarchive");
    }
    found
}

fn unpack(archive: &Path, to: &Path) {
    let done = Command::new("bsdtar")
        .arg("-xpf")
        .arg(archive)
        .arg("-C")
        .arg(to)
        .env("LC_ALL", "C.UTF-8")
        .output()
        .unwrap();
    assert!(done.status.success(), "{archive:?}: {}", stderr(&done));
}

/// Compares an unpacked archive with the source of its image.
fn compare(sample: &Sample, out: &Path, format: &str, links: bool) {
    let source = sample.source();
    assert_eq!(files_below(out), files_below(&source), "{format}");
    assert!(out.join("empty").is_dir(), "{format}");
    for file in files_below(&source) {
        let (want, got) = (source.join(&file), out.join(&file));
        let kind = want.symlink_metadata().unwrap().file_type();
        if kind.is_symlink() {
            assert_eq!(fs::read_link(&got).unwrap(), Path::new("a.txt"), "{format}");
        } else {
            assert!(
                fs::read(want).unwrap() == fs::read(got).unwrap(),
                "{format} {file}"
            );
        }
    }
    let meta = |name: &str| out.join(name).metadata().unwrap();
    // libarchive makes everything readable in these.
    if format != "iso9660" {
        assert_eq!(meta("docs").mode() & 0o777, 0o750, "{format}");
    }
    assert_eq!(meta("a.txt").mtime(), 1_000_000_000, "{format}");
    let linked = meta("a.txt").ino() == meta("twin").ino();
    assert_eq!(linked, links, "{format}");
}

#[test]
fn formats_hold_the_tree() {
    if !have("bsdtar") {
        return;
    }
    let library = has_libarchive();
    let fill = |dir: &Path| {
        tree_with_links(dir);
        let file = fs::File::create(dir.join("holes")).unwrap();
        std::os::unix::fs::FileExt::write_all_at(&file, b"middle", 2_000_000).unwrap();
        file.set_len(3_000_000).unwrap();
        fs::write(dir.join("dä"), "name").unwrap();
    };
    let sample = Sample::with(fill, &["--keep-all-times", "--time-resolution=ns"]);
    let own = ["pax", "ustar", "gnutar", "newc", "odc", "cpio", "zip"];
    let others = ["paxr", "v7tar", "bsdtar", "bin", "7zip", "iso9660", "xar"];
    let formats = own
        .iter()
        .chain(others.iter().take(if library { 99 } else { 0 }));
    for &format in formats {
        let archive = format!("archive.{format}");
        let done = sample.extract(&["-f", format, "-o", &archive]);
        assert_eq!(done.status.code(), Some(0), "{format}: {}", stderr(&done));
        let out = sample.dir(&format!("out-{format}"));
        let archive = sample.path().join(archive);
        unpack(&archive, &out);
        let links = !matches!(format, "zip" | "7zip");
        compare(&sample, &out, format, links);
        if format == "pax" {
            let meta = out.join("a.txt").metadata().unwrap();
            assert_eq!(meta.mtime_nsec(), 123_456_789);
        }
        if matches!(format, "pax" | "gnutar" | "paxr") {
            assert!(fs::metadata(&archive).unwrap().len() < 100_000, "{format}");
        }
        // The same through a pipe.
        let piped = sample.extract(&["-f", format]);
        assert_eq!(piped.status.code(), Some(0), "{format}");
        if own.contains(&format) {
            assert!(piped.stdout == fs::read(&archive).unwrap(), "{format}");
        }
    }
}

#[test]
fn text_formats_name_the_entries() {
    if !has_libarchive() {
        return;
    }
    let sample = Sample::new(tree_with_links);
    for format in ["mtree", "shar"] {
        let done = sample.extract(&["-f", format]);
        assert_eq!(done.status.code(), Some(0), "{format}: {}", stderr(&done));
        let text = String::from_utf8_lossy(&done.stdout).into_owned();
        for path in ["docs/deep/C.TXT", "empty", "a.txt", "link"] {
            assert!(text.contains(path), "{format} {path}");
        }
    }
    // Without directories, and one entry only.
    let done = sample.extract(&["-f", "raw", "docs/b.txt"]);
    assert_eq!((done.status.code(), &done.stdout[..]), (Some(0), &b"b"[..]));
    let done = sample.extract(&["-f", "ar", "*.txt"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    assert!(done.stdout.starts_with(b"!<arch>\n"));
}

/// Every name of a file is described in full.
#[test]
fn hard_links_in_mtree_have_size_and_digest() {
    if !has_libarchive() {
        return;
    }
    let sample = Sample::new(tree_with_links);
    let options = "--format-options=mtree:sha256";
    let done = sample.extract(&["-f", "mtree", options]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    let text = String::from_utf8(done.stdout).unwrap();
    let described = |name: &str| {
        let line = text.lines().find(|line| line.starts_with(name)).unwrap();
        let mut values = line.split(' ').filter(|v| {
            ["size=", "sha256digest=", "nlink="]
                .iter()
                .any(|key| v.starts_with(key))
        });
        values.by_ref().collect::<Vec<_>>().join(" ")
    };
    let file = described("./a.txt ");
    assert!(
        file.contains("size=14") && file.contains("sha256digest="),
        "{file}"
    );
    assert_eq!(described("./twin "), file);
}

#[test]
fn directories_are_in_tar_once_and_after_what_is_in_them() {
    let sample = Sample::new(tree_with_links);
    let paxr = has_libarchive().then_some("paxr");
    for format in ["pax", "ustar", "gnutar"].into_iter().chain(paxr) {
        let done = sample.extract(&["-f", format, "-o", "x.tar"]);
        assert_eq!(done.status.code(), Some(0), "{format}: {}", stderr(&done));
        let archive = sample.path().join("x.tar");
        if let Some(listed) = list(&archive) {
            let mut names = listed.clone();
            names.sort();
            names.dedup();
            assert_eq!(names.len(), listed.len(), "{format}: {listed:?}");
            let at = |name: &str| {
                listed
                    .iter()
                    .position(|n| n.trim_start_matches("./") == name)
            };
            let order = ["docs/deep/C.TXT", "docs/deep/", "docs/"].map(at);
            assert!(
                order.is_sorted() && order[0].is_some(),
                "{format}: {listed:?}"
            );
            assert!(at("empty/").is_some(), "{format}: {listed:?}");
        }
        // GNU tar sets the times of a directory when it leaves it.
        for program in ["tar", "bsdtar"].into_iter().filter(|p| have(p)) {
            let out = sample.dir(&format!("{program}-{format}"));
            let done = Command::new(program)
                .args(["-xpf", "x.tar", "-C"])
                .arg(&out)
                .current_dir(sample.path())
                .output()
                .unwrap();
            assert!(done.status.success(), "{}", stderr(&done));
            let docs = out.join("docs").metadata().unwrap();
            assert_eq!((docs.mtime(), docs.mode() & 0o777), (1_000_000_000, 0o750));
        }
    }
}

/// A tree with times that not all formats hold.
fn tree_with_far_times(dir: &Path) {
    let far = [("early", -86_400), ("zero", 0), ("late", 7_258_118_400)];
    for (name, sec) in far {
        fs::write(dir.join(name), name).unwrap();
        let spec = rustix::fs::Timespec {
            tv_sec: sec,
            tv_nsec: 0,
        };
        let times = rustix::fs::Timestamps {
            last_access: spec,
            last_modification: spec,
        };
        let flags = rustix::fs::AtFlags::empty();
        rustix::fs::utimensat(rustix::fs::CWD, dir.join(name), &times, flags).unwrap();
        let set = dir.join(name).metadata().unwrap().mtime();
        assert_eq!(set, sec, "the file system of the test holds these times");
    }
}

#[test]
fn times_come_back_exactly_or_are_errors() {
    let sample = Sample::new(tree_with_far_times);
    // What comes back of "early" and "late".
    let own = [
        ("pax", true, true),
        ("gnutar", true, true),
        ("ustar", false, true),
        ("newc", false, false),
        ("odc", false, true),
        ("zip", false, false),
    ];
    let others = [
        ("paxr", true, true),
        ("v7tar", false, true),
        ("bin", false, false),
        ("7zip", false, true),
        ("iso9660", true, false),
        ("xar", true, true),
        ("mtree", true, true),
    ];
    let library = if has_libarchive() { others.len() } else { 0 };
    for &(format, early, late) in own.iter().chain(&others[..library]) {
        let exact = |name: &str| match name {
            "early" => early,
            "late" => late,
            _ => true,
        };
        let strict_name = format!("strict.{format}");
        let strict = sample.extract(&["-f", format, "-o", &strict_name]);
        assert_eq!(
            strict.status.code(),
            Some(if early && late { 0 } else { 1 }),
            "{format}: {}",
            stderr(&strict)
        );
        if !(early && late) {
            let text = stderr(&strict);
            let start = format!("dwarfsextract: extraction aborted: {format} cannot hold: ");
            assert!(text.starts_with(&start), "{text}");
            assert!(text.contains(": modification time "), "{text}");
            assert!(!sample.path().join(&strict_name).exists());
        }
        let archive = format!("archive.{format}");
        let done = sample.extract(&["-f", format, "-o", &archive, "--continue-on-error"]);
        let lost = usize::from(!early) + usize::from(!late);
        assert_eq!(
            done.status.code(),
            Some(if lost > 0 { 2 } else { 0 }),
            "{format}"
        );
        let text = stderr(&done);
        for name in ["early", "late"].into_iter().filter(|name| !exact(name)) {
            let line = format!("left out: {name}: {format} cannot hold it: modification time ");
            assert!(text.contains(&line), "{text}");
        }
        if lost > 0 {
            let count = format!("extraction finished with {lost} error(s)");
            assert!(text.contains(&count), "{text}");
        }
        if format == "mtree" {
            let text = fs::read_to_string(sample.path().join(archive)).unwrap();
            assert!(text.contains("time=-86400.0"), "{text}");
        } else if have("bsdtar") {
            let out = sample.dir(&format!("times-{format}"));
            unpack(&sample.path().join(archive), &out);
            for (name, sec) in [("early", -86_400), ("zero", 0), ("late", 7_258_118_400)] {
                let found = out.join(name).metadata().map(|meta| meta.mtime());
                assert_eq!(found.ok(), exact(name).then_some(sec), "{format} {name}");
            }
        }
    }
}

#[test]
fn fractions_that_a_format_does_not_hold_are_counted() {
    let sample = Sample::with(tree_with_links, &["--time-resolution=ns"]);
    for (format, rounded) in [("ustar", true), ("newc", true), ("pax", false)] {
        let done = sample.extract(&["-f", format, "-o", "x"]);
        assert_eq!(done.status.code(), Some(0), "{format}: {}", stderr(&done));
        let text = stderr(&done);
        let said = format!("{format} holds times less finely than the image: the times of ");
        assert_eq!(text.contains(&said), rounded, "{text}");
        assert_eq!(text.lines().count(), usize::from(rounded), "{text}");
    }
}

/// A tree for what zip has in its own way: large and many files, modes, times, names, links.
pub(crate) fn tree_for_zip(dir: &Path) {
    use std::os::unix::fs::PermissionsExt;
    tree_with_links(dir);
    fs::write(dir.join("nothing"), "").unwrap();
    fs::write(dir.join("text"), "some words ".repeat(100_000)).unwrap();
    // More than is compressed before its header is written.
    let noise: Vec<u8> = (0..3_000_000_u32)
        .map(|n| (n.wrapping_mul(2_654_435_761) >> 13) as u8)
        .collect();
    fs::write(dir.join("noise"), noise).unwrap();
    fs::write(dir.join("dä ö"), "name").unwrap();
    fs::write(dir.join("tool"), "#!/bin/sh\n").unwrap();
    fs::set_permissions(dir.join("tool"), fs::Permissions::from_mode(0o4751)).unwrap();
}

#[test]
fn zip_is_read_by_other_programs() {
    let sample = Sample::with(tree_for_zip, &["--keep-all-times"]);
    let done = sample.extract(&["-f", "zip", "-o", "x.zip"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    let archive = sample.path().join("x.zip");
    let source = sample.source();
    let check = |out: &Path, by: &str| {
        assert_eq!(files_below(out), files_below(&source), "{by}");
        assert!(out.join("empty").is_dir(), "{by}");
        assert_eq!(
            fs::read_link(out.join("link")).unwrap(),
            Path::new("a.txt"),
            "{by}"
        );
        for file in files_below(&source) {
            let (want, got) = (source.join(&file), out.join(&file));
            if want.symlink_metadata().unwrap().is_symlink() {
                continue;
            }
            let (w, g) = (want.metadata().unwrap(), got.metadata().unwrap());
            assert_eq!(w.mode() & 0o777, g.mode() & 0o777, "{by} {file}");
            assert_eq!(w.mtime(), g.mtime(), "{by} {file}");
            assert!(
                fs::read(want).unwrap() == fs::read(got).unwrap(),
                "{by} {file}"
            );
        }
    };
    for (program, args) in [
        ("unzip", &["-q", "-X", "x.zip", "-d"][..]),
        ("bsdtar", &["-xpf", "x.zip", "-C"]),
        ("7z", &["x", "-snl", "x.zip"]),
    ] {
        if !have(program) {
            continue;
        }
        let out = sample.dir(program);
        let mut command = Command::new(program);
        command
            .args(args)
            .current_dir(sample.path())
            .env("LC_ALL", "C.UTF-8");
        let done = match program {
            "7z" => command.arg(format!("-o{}", out.display())).output(),
            _ => command.arg(&out).output(),
        };
        let done = done.unwrap();
        assert!(done.status.success(), "{program}: {}", stderr(&done));
        check(&out, program);
    }
    if have("unzip") {
        let done = Command::new("unzip")
            .arg("-tq")
            .arg(&archive)
            .output()
            .unwrap();
        assert!(
            done.status.success(),
            "{}",
            String::from_utf8_lossy(&done.stdout)
        );
    }
    if have("python3") {
        // It judges the archive by its directory, and then every entry by its header and checksum.
        let script = "import sys, zipfile, hashlib\n\
            z = zipfile.ZipFile(sys.argv[1])\n\
            assert z.testzip() is None\n\
            for i in z.infolist():\n\
            \x20 print(i.filename, i.file_size, oct(i.external_attr >> 16), i.compress_type)\n";
        let done = Command::new("python3")
            .args(["-c", script])
            .arg(&archive)
            .env("PYTHONIOENCODING", "utf-8")
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", stderr(&done));
        let text = String::from_utf8(done.stdout).unwrap();
        for line in [
            "dä ö 4 0o100644 0",
            "link 5 0o120777 0",
            "docs/ 0 0o40750 0",
            "nothing 0 0o100644 0",
            "noise 3000000 0o100644 8",
            "text 1100000 0o100644 8",
            "tool 10 0o104751 0",
        ] {
            assert!(text.lines().any(|l| l == line), "{line}: {text}");
        }
    }
}

/// What libarchive would change without a word.
#[test]
fn names_owners_and_devices_come_back_exactly_or_are_errors() {
    use std::os::unix::ffi::OsStrExt;
    if !has_libarchive() {
        return;
    }
    let sample = Sample::new(|dir| {
        fs::write(dir.join("plain"), "p").unwrap();
        fs::write(dir.join(std::ffi::OsStr::from_bytes(b"not-\xff-text")), "n").unwrap();
        fs::create_dir(dir.join("d")).unwrap();
        fs::write(dir.join("d/plain"), "q").unwrap();
    });
    for (format, reason, lost) in [
        ("zip", "path is not UTF-8", 1),
        ("7zip", "path is not UTF-8", 1),
        ("xar", "path is not UTF-8", 1),
        ("ar", "path has directories", 1),
    ] {
        let done = sample.extract(&["-f", format, "-o", "x"]);
        assert_eq!(done.status.code(), Some(1), "{format}");
        assert!(stderr(&done).contains(reason), "{}", stderr(&done));
        let done = sample.extract(&["-f", format, "-o", "x", "--continue-on-error"]);
        assert_eq!(done.status.code(), Some(2), "{format}");
        let count = format!("with {lost} error(s)");
        assert!(stderr(&done).contains(&count), "{}", stderr(&done));
    }
    let owned = |id: &str| {
        let ids = [
            &format!("--set-owner={id}")[..],
            &format!("--set-group={id}"),
        ];
        Sample::with(|dir| fs::write(dir.join("f"), "f").unwrap(), &ids)
    };
    for (id, format, holds) in [
        ("65536", "bin", false),
        ("65535", "bin", true),
        ("262144", "odc", false),
        ("262144", "v7tar", false),
        ("2147483648", "xar", false),
        ("4294967294", "zip", true),
    ] {
        let done = owned(id).extract(&["-f", format, "-o", "x"]);
        assert_eq!(done.status.success(), holds, "{format}: {}", stderr(&done));
        assert!(holds || stderr(&done).contains(&format!("user id {id} is too large")));
    }
    if !rustix::process::geteuid().is_root() {
        return skip("devices in archives", "needs root");
    }
    let sample = Sample::with(extract_support::specials, &["--with-devices"]);
    for (format, holds) in [("newc", true), ("7zip", false), ("xar", false)] {
        let done = sample.extract(&["-f", format, "-o", "x"]);
        assert_eq!(done.status.success(), holds, "{format}: {}", stderr(&done));
        assert!(holds || stderr(&done).contains("no field for device numbers"));
    }
}

/// Some versions of libarchive crash on deep trees.
#[test]
fn a_crash_of_libarchive_is_an_error() {
    if !has_libarchive() {
        return;
    }
    let sample = Sample::new(|dir| {
        for n in 0..300_u32 {
            let mut path = dir.to_owned();
            for bit in 0..20 + n % 8 {
                path.push(format!("d{}", n.wrapping_mul(2_654_435_761) >> bit & 1));
            }
            fs::create_dir_all(path).unwrap();
        }
    });
    let done = sample.extract(&["-f", "iso9660", "-o", "x.iso"]);
    let text = stderr(&done);
    match done.status.code() {
        Some(0) => skip(
            "a crash of the library",
            "this version of it does not crash",
        ),
        Some(1) => {
            assert!(
                text.contains("cannot write iso9660 archive: libarchive crashed"),
                "{text}"
            );
            assert_eq!(text.lines().count(), 1, "{text}");
            assert!(!sample.path().join("x.iso").exists());
        }
        other => panic!("{other:?}: {text}"),
    }
}

#[test]
fn patterns_and_old_gnu_sparse_files_in_archives() {
    let sample = Sample::new(|dir| {
        tree_with_links(dir);
        let file = fs::File::create(dir.join("holes")).unwrap();
        for n in 0..60_u64 {
            std::os::unix::fs::FileExt::write_all_at(&file, b"data", n * 300_000).unwrap();
        }
    });
    let done = sample.extract(&["-f", "gnutar", "-o", "x.tar", "holes", "docs/deep"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    let archive = sample.path().join("x.tar");
    if let Some(listed) = list(&archive) {
        let files: Vec<_> = listed.iter().filter(|p| !p.ends_with('/')).collect();
        assert_eq!(files.len(), 2, "{files:?}");
        assert!(listed.iter().any(|p| p == "docs/"), "{listed:?}");
        assert!(!listed.iter().any(|p| p == "empty/"), "{listed:?}");
    }
    if have("tar") {
        let out = sample.dir("out");
        let done = Command::new("tar")
            .arg("-xf")
            .arg(&archive)
            .arg("-C")
            .arg(&out)
            .output()
            .unwrap();
        assert!(done.status.success(), "{}", stderr(&done));
        let want = fs::read(sample.source().join("holes")).unwrap();
        assert!(fs::read(out.join("holes")).unwrap() == want);
    }
}

#[test]
fn what_a_format_cannot_hold_is_an_error_unless_it_is_left_out() {
    let sample = Sample::with(extract_support::specials, &["--with-specials"]);
    let done = sample.extract(&["-f", "pax", "-o", "x.tar"]);
    assert_eq!(done.status.code(), Some(1));
    let text = stderr(&done);
    assert!(
        text.starts_with("dwarfsextract: extraction aborted: pax cannot hold: socket: "),
        "{text}"
    );
    assert!(text.contains("--skip-specials"), "{text}");
    assert!(!sample.path().join("x.tar").exists());
    let done = sample.extract(&["-f", "pax", "-o", "x.tar", "--continue-on-error"]);
    assert_eq!(done.status.code(), Some(2));
    assert!(
        stderr(&done).contains(" left out: socket: "),
        "{}",
        stderr(&done)
    );
    if let Some(listed) = list(&sample.path().join("x.tar")) {
        let files: Vec<_> = listed.iter().filter(|p| !p.ends_with('/')).collect();
        assert_eq!(files, ["fifo", "file"]);
    }
    let done = sample.extract(&["-f", "pax", "--skip-specials"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    // cpio holds everything.
    let done = sample.extract(&["-f", "newc", "-o", "x.cpio"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    if let Some(mut listed) = list(&sample.path().join("x.cpio")) {
        listed.sort();
        assert_eq!(listed, ["fifo", "file", "socket"]);
    }
}

#[test]
fn devices_and_pipes_are_written_directly() {
    let sample = Sample::new(tree_with_links);
    let done = sample.extract(&["-f", "pax", "-o", "/dev/null"]);
    assert_eq!(done.status.code(), Some(0), "{}", stderr(&done));
    use std::os::unix::fs::FileTypeExt;
    let kind = fs::metadata("/dev/null").unwrap().file_type();
    assert!(kind.is_char_device());
    let done = sample.extract(&["-f", "pax", "-o", "/dev/full"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(stderr(&done).contains("no space left"), "{}", stderr(&done));
}
