//! What can be wrong with what the tools are given: each gives one line that says what, where and
//! why, the documented exit code, and leaves everything as it was.

use std::ffi::{OsStr, OsString};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::support::{DWARFS, DWARFSCK, DWARFSEXTRACT, MKDWARFS};
use redwarfs_format::metadata::{DirEntry, Directory, InodeData, Metadata, freeze};
use redwarfs_format::section::{CompressionId, SectionHeader, SectionType};
use redwarfs_testkit::golden::golden;
use redwarfs_testkit::skip;

const OTHERS: u32 = 65534;

/// One mistake and what the tool has to say about it.
struct Case {
    program: &'static str,
    args: Vec<OsString>,
    /// Standard error without `tool: `; `{}` stands for the directory of the test.
    want: String,
    code: i32,
}

fn case<S: AsRef<OsStr>>(program: &'static str, args: &[S], want: &str, code: i32) -> Case {
    Case {
        program,
        args: args.iter().map(|arg| arg.as_ref().to_owned()).collect(),
        want: want.to_owned(),
        code,
    }
}

/// The same image for the three tools that read one.
fn readers(image: &str, cause: &str, dwarfs_cause: &str) -> Vec<Case> {
    let line = |cause: &str| format!("cannot open image: {image}: {cause}");
    vec![
        case(DWARFSCK, &[image], &line(cause), 1),
        case(DWARFSEXTRACT, &["-i", image, "-o", "out"], &line(cause), 1),
        case(DWARFS, &[image, "mnt"], &line(dwarfs_cause), 1),
    ]
}

/// Sections of an image with long headers: type, position and length of the payload.
fn sections(image: &[u8]) -> Vec<(u16, usize, usize)> {
    let mut list = Vec::new();
    let mut at = 0;
    while at < image.len() {
        let header = SectionHeader::parse(image[at..at + 64].try_into().unwrap()).unwrap();
        let length = usize::try_from(header.length).unwrap();
        list.push((header.ty.0, at + 64, length));
        at += 64 + length;
    }
    list
}

/// An image with one empty directory that says it needs a feature nobody has.
fn image_of_the_future() -> Vec<u8> {
    let directory = Directory {
        parent_entry: 0,
        first_entry: 1,
        self_entry: 0,
    };
    let metadata = Metadata {
        block_size: 1 << 16,
        directories: vec![directory; 2],
        inodes: vec![InodeData::default()],
        chunk_table: vec![0],
        uids: vec![0],
        gids: vec![0],
        modes: vec![0o040_755],
        dir_entries: Some(vec![DirEntry {
            name_index: 0,
            inode_num: 0,
        }]),
        features: Some(std::iter::once(b"timetravel".to_vec()).collect()),
        ..Metadata::default()
    };
    let frozen = freeze(&metadata).unwrap();
    let mut image = Vec::new();
    for (number, ty, payload) in [
        (0, SectionType::METADATA_V2_SCHEMA, &frozen.schema),
        (1, SectionType::METADATA_V2, &frozen.data),
    ] {
        let header = SectionHeader::seal(number, ty, CompressionId::NONE, payload);
        image.extend_from_slice(&header.encode());
        image.extend_from_slice(payload);
    }
    image
}

/// A directory with images that have something wrong with them.
pub(crate) fn workplace() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    for name in ["out", "mnt", "dir"] {
        fs::create_dir(at(name)).unwrap();
    }
    fs::write(at("text"), "this is no image\n").unwrap();
    fs::write(at("empty"), "").unwrap();
    fs::write(at("old"), "precious").unwrap();
    let good = fs::read(golden("basic-zstd-small-blocks").image).unwrap();
    fs::write(at("good"), &good).unwrap();
    fs::write(at("header"), [b"#!/bin/sh\n", good.as_slice()].concat()).unwrap();
    fs::write(at("future"), image_of_the_future()).unwrap();
    let list = sections(&good);
    for (name, ty) in [
        ("block", SectionType::BLOCK),
        ("schema", SectionType::METADATA_V2_SCHEMA),
        ("metadata", SectionType::METADATA_V2),
        ("history", SectionType::HISTORY),
        ("index", SectionType::SECTION_INDEX),
    ] {
        let (_, start, length) = *list.iter().find(|(t, ..)| *t == ty.0).unwrap();
        let mut bytes = good.clone();
        bytes[start + length / 2] ^= 4;
        fs::write(at(&format!("flip-{name}")), &bytes).unwrap();
        fs::write(at(&format!("cut-{name}")), &good[..start + length / 2]).unwrap();
    }
    for (name, byte, value) in [("major", 6, 9), ("minor", 7, 77)] {
        let mut bytes = good.clone();
        bytes[byte] = value;
        fs::write(at(name), bytes).unwrap();
    }
    dir
}

/// Names and sizes of all that is there.
fn inventory(dir: &Path) -> Vec<(PathBuf, u64)> {
    let mut todo = vec![dir.to_owned()];
    let mut found = Vec::new();
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let entry = entry.unwrap();
            let meta = entry.metadata().unwrap();
            if meta.is_dir() {
                todo.push(entry.path());
            }
            found.push((entry.path(), if meta.is_dir() { 0 } else { meta.len() }));
        }
    }
    found.sort();
    found
}

fn run_all(dir: &Path, cases: Vec<Case>, wrap: &[&str]) {
    let before = inventory(dir);
    let mut wrong = Vec::new();
    for Case {
        program,
        args,
        want,
        code,
    } in cases
    {
        // Without libarchive, nobody knows which formats it has.
        if want.starts_with("No such format") && redwarfs_extractor::libarchive_version().is_none()
        {
            skip("unknown formats of archives", "no libarchive");
            continue;
        }
        let name = Path::new(program).file_name().unwrap().to_str().unwrap();
        let mut command = match wrap {
            [] => Command::new(program),
            [first, rest @ ..] => {
                let mut command = Command::new(first);
                command.args(rest).arg(program);
                command
            }
        };
        let done = command.args(&args).current_dir(dir).output().unwrap();
        let text = String::from_utf8_lossy(&done.stderr).into_owned();
        let want = format!("{name}: {}\n", want.replace("{}", dir.to_str().unwrap()));
        // A long list of what is known need not be written down.
        let as_wanted = match want.strip_suffix("...)\n") {
            Some(start) => {
                text.starts_with(start) && text.ends_with(")\n") && text.lines().count() == 1
            }
            None => text == want,
        };
        if !as_wanted || done.status.code() != Some(code) || !done.stdout.is_empty() {
            wrong.push(format!(
                "{name} {args:?}: {}, expected {code}\n  is:     {text}  wanted: {want}",
                done.status
            ));
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert_eq!(inventory(dir), before, "something was left behind");
    assert_eq!(fs::read(dir.join("old")).unwrap(), b"precious");
}

#[test]
fn every_mistake_gives_one_line() {
    let dir = workplace();
    let none = "not a DwarFS image: no filesystem found";
    let no_magic = "not a DwarFS image: magic not found at offset 0";
    let newer = "(made by newer software: a newer version of this program may read it)";
    let mut cases = Vec::new();
    cases.extend(readers("text", none, no_magic));
    cases.extend(readers(
        "empty",
        none,
        "not a DwarFS image: image too small (0 bytes at offset 0)",
    ));
    let directory = "is a directory, not an image file";
    // It could be full of images.
    let for_the_driver = "is a directory without images (*.dwarfs)";
    cases.extend(readers("dir", directory, for_the_driver));
    let missing = "no such file or directory";
    cases.extend(readers("missing", missing, missing));
    let parent = "not a directory";
    cases.extend(readers("text/x", parent, parent));
    cases.push(case(
        DWARFS,
        &["header", "mnt"],
        &format!(
            "cannot open image: header: {no_magic} (an image starts at offset 10: use -o offset=auto)"
        ),
        1,
    ));
    for (program, args) in [
        (DWARFSCK, &["-O0", "header"][..]),
        (DWARFSEXTRACT, &["-O0", "-i", "header"]),
    ] {
        cases.push(case(
            program,
            args,
            &format!(
                "cannot open image: header: {no_magic} (an image starts at offset 10: use --image-offset=auto)"
            ),
            1,
        ));
    }

    let good = fs::read(dir.path().join("good")).unwrap();
    let list = sections(&good);
    for (name, ty) in [
        ("block", 0),
        ("schema", 7),
        ("metadata", 8),
        ("history", 10),
        ("index", 9),
    ] {
        let number = list.iter().position(|(t, ..)| *t == ty).unwrap();
        let cause = format!(
            "corrupt image: truncated section data (section {number} at offset {})",
            list[number].1
        );
        let image = format!("cut-{name}");
        let with_size = |option: &str| {
            format!(
                "{cause} (the file is incomplete, or the image is not all of it: then give its size \
                 with {option})"
            )
        };
        let mut three = readers(
            &image,
            &format!("{cause} (the file is incomplete, or something follows the image)"),
            &with_size("-o imagesize=BYTES"),
        );
        let line = with_size("--image-size=BYTES");
        three[0].want = format!("cannot open image: {image}: {line}");
        cases.extend(three);
        if matches!(name, "schema" | "metadata") {
            let cause = format!(
                "corrupt image: checksum error in section: {} (section {number} at offset {})",
                SectionType(ty),
                list[number].1
            );
            cases.extend(readers(&format!("flip-{name}"), &cause, &cause));
        }
    }
    let cause = format!("unsupported: major version of image format 9.5 {newer}");
    cases.extend(readers("major", &cause, &cause));
    let cause = format!("unsupported: minor version of image format 2.77 {newer}");
    cases.extend(readers("minor", &cause, &cause));
    let cause = format!("unsupported: the image uses unknown features: timetravel {newer}");
    cases.extend(readers("future", &cause, &cause));

    let table: [(&'static str, &[&str], &str, i32); 40] = [
        // Where things should go.
        (
            DWARFSEXTRACT,
            &["-i", "good", "-o", "nowhere"],
            "cannot open output directory: nowhere: no such file or directory (create the directory first)",
            1,
        ),
        (
            DWARFSEXTRACT,
            &["-i", "good", "-o", "old"],
            "output is not a directory: old (give a directory to extract to, or a format (-f pax) to write an archive)",
            1,
        ),
        (
            DWARFSEXTRACT,
            &["-i", "good", "-f", "pax", "-o", "nowhere/x"],
            "extraction aborted: cannot write archive: nowhere/x: no such file or directory",
            1,
        ),
        (
            DWARFSEXTRACT,
            &["-i", "good", "-f", "pax", "-o", "dir"],
            "extraction aborted: cannot write archive: dir: is a directory",
            1,
        ),
        (
            DWARFSEXTRACT,
            &["-i", "flip-block", "-f", "pax", "-o", "old"],
            "extraction aborted: cannot read: sparse: corrupt image: checksum error in section: BLOCK \
             (section 0 at offset 64) (--continue-on-error leaves out files that cannot be read)",
            1,
        ),
        (
            DWARFSEXTRACT,
            &["-i", "good", "-o", "-"],
            "an archive format is needed to write to standard output (for example -f pax)",
            1,
        ),
        (
            DWARFSEXTRACT,
            &["-i", "good", "-f", "pax", "--stdout-progress"],
            "cannot use --stdout-progress with --output=-",
            1,
        ),
        (
            DWARFSCK,
            &["-H", "good"],
            "filesystem does not contain a header: good",
            2,
        ),
        (
            MKDWARFS,
            &["-i", "missing", "-o", "x"],
            "cannot read input: missing: no such file or directory",
            1,
        ),
        (
            MKDWARFS,
            &["-i", "dir", "-o", "old"],
            "cannot write image: old: file exists, use --force to overwrite",
            1,
        ),
        (
            MKDWARFS,
            &["-i", "dir", "-o", "nowhere/x"],
            "cannot write image: nowhere/x: no such file or directory",
            1,
        ),
        // Values and combinations.
        (
            DWARFSEXTRACT,
            &["-i", "good", "-f", "tarx"],
            "No such format 'tarx' (one of pax, ustar, gnutar, ...)",
            1,
        ),
        (
            DWARFSEXTRACT,
            &["-i", "good", "-n0"],
            "failed to parse value '0' for option '--num-workers': must be at least 1",
            1,
        ),
        (
            DWARFSEXTRACT,
            &["-i", "good", "-s", "5q"],
            "failed to parse value '5q' for option '--cache-size': unsupported size suffix: q (one of k, m, g, t)",
            1,
        ),
        (
            DWARFSEXTRACT,
            &["-i", "good", "-O", "foo"],
            "failed to parse image offset: foo (a number of bytes, auto, or auto:N)",
            1,
        ),
        (
            DWARFSEXTRACT,
            &["-i", "good", "-O", "-1"],
            "image offset must be positive",
            1,
        ),
        (
            DWARFSEXTRACT,
            &["-i", "good", "-O", "5"],
            "cannot open image: good: not a DwarFS image: magic not found at offset 5 \
             (an image starts at offset 0: use --image-offset=auto)",
            1,
        ),
        (
            DWARFSEXTRACT,
            &["-i", "good", "-i", "good"],
            "option '--input' cannot be specified more than once",
            1,
        ),
        (
            DWARFSEXTRACT,
            &["-i"],
            "the argument for option '--input' is missing",
            1,
        ),
        (
            DWARFSCK,
            &["good", "--checksum=foo"],
            "checksum algorithm not available: foo (one of blake2b512, blake2s256, ...)",
            1,
        ),
        (
            DWARFSCK,
            &["good", "-n", "x"],
            "failed to parse value 'x' for option '--num-workers': must be a number from 1 to 1024",
            1,
        ),
        (
            DWARFSCK,
            &["good", "--log-level=loud"],
            "invalid logger level: loud (one of error, warn, info, verbose, debug, trace)",
            1,
        ),
        (
            DWARFSCK,
            &["good", "-d", "foo"],
            "invalid feature: \"foo\" (one of a level from 0 to 7, version, ...)",
            1,
        ),
        (
            DWARFSCK,
            &["good", "--bogus"],
            "unrecognised option '--bogus' (try 'dwarfsck --help')",
            1,
        ),
        (
            DWARFSCK,
            &["good", "-i", "good"],
            "option '--input' cannot be specified more than once",
            1,
        ),
        (
            DWARFSCK,
            &["good", "--no-check", "--check-integrity"],
            "--no-check and --check-integrity are mutually exclusive",
            1,
        ),
        (
            DWARFSCK,
            &["good", "-H", "-l"],
            "--print-header is mutually exclusive with --json, --export-metadata, --check-integrity, --list and --checksum",
            1,
        ),
        (
            MKDWARFS,
            &["-i", "dir", "-o", "x", "-l", "10"],
            "invalid compression level: 10 (must be between 0 and 9)",
            1,
        ),
        (
            MKDWARFS,
            &["-i", "dir", "-o", "x", "--bogus"],
            "unrecognised option '--bogus' (try 'mkdwarfs --help')",
            1,
        ),
        (
            DWARFS,
            &["good"],
            "no mountpoint specified (dwarfs IMAGE MOUNTPOINT)",
            1,
        ),
        (
            DWARFS,
            &["good", "mnt", "more"],
            "too many non-option arguments",
            1,
        ),
        (
            DWARFS,
            &["good", "mnt", "-o", "bogus"],
            "unknown option: -o bogus (try 'dwarfs --help')",
            3,
        ),
        (
            DWARFS,
            &["good", "mnt", "--bogus"],
            "unknown option: --bogus (try 'dwarfs --help')",
            3,
        ),
        (
            DWARFS,
            &["good", "mnt", "-o", "cachesize=5q"],
            "unsupported size suffix: q (one of k, m, g, t)",
            1,
        ),
        (
            DWARFS,
            &["good", "mnt", "-o", "workers=x"],
            "invalid value for option 'workers': x",
            1,
        ),
        (
            DWARFS,
            &["good", "mnt", "-o", "decratio=2"],
            "decratio must be between 0.0 and 1.0",
            1,
        ),
        (
            DWARFS,
            &["good", "mnt", "-o", "offset=-3"],
            "image offset must be positive",
            1,
        ),
        (
            DWARFS,
            &["good", "mnt", "-o", "debuglevel=loud"],
            "invalid logger level: loud (one of error, warn, info, verbose, debug, trace)",
            1,
        ),
        (
            DWARFS,
            &["good", "mnt", "--auto-mountpoint"],
            "cannot combine <mountpoint> with --auto-mountpoint",
            1,
        ),
        (
            DWARFS,
            &["good", "--auto-mountpoint"],
            "cannot select mountpoint directory for file with no extension",
            1,
        ),
    ];
    cases.extend(
        table
            .into_iter()
            .map(|(program, args, want, code)| case(program, args, want, code)),
    );
    run_all(dir.path(), cases, &[]);
}

#[test]
fn mount_points_are_checked() {
    if !Path::new("/dev/fuse").exists() {
        return skip("mount points that are none", "no /dev/fuse");
    }
    let dir = workplace();
    let cases = vec![
        case(
            DWARFS,
            &["good", "nowhere"],
            "cannot access mount point: nowhere: no such file or directory (create the directory first)",
            4,
        ),
        case(
            DWARFS,
            &["good", "old"],
            "cannot access mount point: old: not a directory (a mount point has to be a directory)",
            4,
        ),
    ];
    run_all(dir.path(), cases, &[]);
}

#[test]
fn missing_permissions_are_named() {
    let dir = workplace();
    for name in ["out", "mnt", "."] {
        fs::set_permissions(dir.path().join(name), fs::Permissions::from_mode(0o755)).unwrap();
    }
    fs::set_permissions(dir.path().join("good"), fs::Permissions::from_mode(0o000)).unwrap();
    let root = rustix::process::geteuid().is_root();
    let id = OTHERS.to_string();
    let (uid, gid) = (format!("--reuid={id}"), format!("--regid={id}"));
    let wrap = ["setpriv", uid.as_str(), gid.as_str(), "--clear-groups"];
    if root {
        let probe = Command::new(wrap[0])
            .args(&wrap[1..])
            .arg(DWARFSCK)
            .arg("--version")
            .output();
        if !probe.is_ok_and(|done| done.status.success()) {
            return skip(
                "missing permissions",
                "no setpriv, or the programs are out of reach",
            );
        }
    }
    let denied = "permission denied";
    let mut cases = readers("good", denied, denied);
    if root {
        // For somebody else the directories are closed as well.
        cases.push(case(
            MKDWARFS,
            &["-i", "dir", "-o", "x"],
            "cannot write image: x: permission denied",
            1,
        ));
        cases.push(case(
            DWARFSEXTRACT,
            &["-i", "header", "-f", "pax", "-o", "x"],
            "extraction aborted: cannot write archive: x: permission denied",
            1,
        ));
    }
    run_all(dir.path(), cases, if root { &wrap } else { &[] });
}
