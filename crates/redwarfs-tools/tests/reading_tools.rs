//! `dwarfsck` and `dwarfsextract` as programs, on the golden images and on images of old releases.

use crate::support::{DWARFSCK, DWARFSEXTRACT, MKDWARFS, Mount, must, run, whole_seconds};
use redwarfs_extractor::display_path;
use redwarfs_testkit::golden::{Golden, compat_images, golden, golden_images};
use redwarfs_testkit::mutate::with_separator;
use redwarfs_testkit::{Entry, Fields, Manifest, skip};
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};

/// Whether owners and devices can be restored; says so if not.
fn is_root(test: &str) -> bool {
    let root = rustix::process::geteuid().is_root();
    if !root {
        skip(&format!("{test}: owners and devices"), "needs root");
    }
    root
}

/// What must come out of an extraction by this user.
pub(crate) fn extracted(root: bool) -> Fields {
    Fields {
        owner: root,
        ..Fields::EXTRACTED
    }
}

pub(crate) fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

pub(crate) fn check(image: &Path, options: &[&str]) -> Output {
    let mut args: Vec<&OsStr> = vec![image.as_ref()];
    args.extend(options.iter().map(OsStr::new));
    run(DWARFSCK, args)
}

/// Extracts into a new directory `out` of `dir`.
pub(crate) fn extract(image: &Path, dir: &Path, options: &[&str]) -> (Output, PathBuf) {
    let out = dir.join("out");
    fs::create_dir(&out).unwrap();
    let mut args: Vec<&OsStr> = vec!["-i".as_ref(), image.as_ref(), "-o".as_ref(), out.as_ref()];
    args.extend(options.iter().map(OsStr::new));
    (run(DWARFSEXTRACT, args), out)
}

pub(crate) fn file_type(mode: u32) -> u32 {
    mode & 0o170_000
}

pub(crate) const REGULAR: u32 = 0o100_000;

pub(crate) const DIRECTORY: u32 = 0o040_000;

pub(crate) const SYMLINK: u32 = 0o120_000;

/// The tree as an ordinary file system shows it: symbolic links have no modes of their own.
fn on_disk(mut manifest: Manifest) -> Manifest {
    for entry in manifest.0.values_mut() {
        if file_type(entry.mode) == SYMLINK {
            entry.mode = SYMLINK | 0o777;
        }
    }
    manifest
}

/// The tree without what `left_out` picks by its mode.
fn without(mut manifest: Manifest, left_out: impl Fn(u32) -> bool) -> Manifest {
    manifest.0.retain(|_, entry| !left_out(entry.mode));
    manifest
}

fn is_device(mode: u32) -> bool {
    matches!(file_type(mode), 0o020_000 | 0o060_000)
}

fn is_special(mode: u32) -> bool {
    matches!(file_type(mode), 0o010_000 | 0o140_000)
}

#[test]
fn golden_images_are_extracted() {
    let root = is_root("golden_images_are_extracted");
    for image in golden_images() {
        let dir = tempfile::tempdir().unwrap();
        let mut options = Vec::new();
        if !root {
            options.push("--skip-devices");
        }
        let (done, out) = extract(&image.image, dir.path(), &options);
        let mut want = on_disk(image.manifest());
        if !root {
            want = without(want, is_device);
        }
        let got = Manifest::from_directory(&out, true).unwrap();
        assert_eq!(
            (done.status.code(), text(&done.stderr)),
            (Some(0), String::new()),
            "{}",
            image.name
        );
        assert!(done.stdout.is_empty());
        want.assert_same(&got, extracted(root), &image.name);
    }
}

/// Whether names that share an inode have attributes of their own, as before format 2.3.
fn is_old(image: &Golden) -> bool {
    let version = text(
        &must(
            DWARFSCK,
            [
                image.image.as_os_str(),
                "-d1".as_ref(),
                "--no-check".as_ref(),
            ],
        )
        .stdout,
    );
    ["2.0", "2.1", "2.2"]
        .iter()
        .any(|v| version.starts_with(&format!("DwarFS version {v} ")))
}

/// Each name of a mounted old image has its own attributes when it is looked up for the first time.
fn names_have_their_own_attributes(manifest: &Manifest, point: &Path, image: &str) {
    for (path, want) in &manifest.0 {
        let stat = rustix::fs::lstat(point.join(OsStr::from_bytes(path))).unwrap();
        assert_eq!(
            (stat.st_ino, stat.st_mode, stat.st_uid, stat.st_gid),
            (want.ino, want.mode, want.uid, want.gid),
            "{image}: {}",
            String::from_utf8_lossy(path)
        );
        let mtime = i128::from(stat.st_mtime) * 1_000_000_000 + i128::from(stat.st_mtime_nsec);
        assert_eq!(mtime, want.mtime_ns, "{image}: {path:?}");
    }
}

/// Gives the names of a manifest that share an inode the attributes that a mount of an old image
/// shows after all were looked up, provided that they are those of one of these names.
fn per_inode(mut manifest: Manifest, mounted: &Manifest) -> Manifest {
    let attributes = |e: &Entry| (e.mode, e.uid, e.gid, e.mtime_ns, e.atime_ns, e.ctime_ns);
    let mut of_inode: BTreeMap<u64, Vec<Entry>> = BTreeMap::new();
    for entry in manifest.0.values() {
        of_inode.entry(entry.ino).or_default().push(entry.clone());
    }
    for (path, entry) in &mut manifest.0 {
        let Some(shown) = mounted.0.get(path) else {
            continue;
        };
        let mut names = of_inode[&entry.ino].iter();
        if let Some(one) = names.find(|name| attributes(name) == attributes(shown)) {
            *entry = Entry {
                mode: one.mode,
                uid: one.uid,
                gid: one.gid,
                mtime_ns: one.mtime_ns,
                atime_ns: one.atime_ns,
                ctime_ns: one.ctime_ns,
                ..entry.clone()
            };
        }
    }
    manifest
}

#[test]
fn images_of_old_releases_are_extracted_and_mounted() {
    let root = is_root("images_of_old_releases_are_extracted_and_mounted");
    for image in compat_images() {
        let (mut want, mut mounted) = (image.manifest(), image.manifest());
        let old = is_old(&image);
        if old {
            want = want.linked_by_attributes();
        }
        let dir = tempfile::tempdir().unwrap();
        let checked = check(&image.image, &["-q", "--check-integrity"]);
        assert_eq!(
            (checked.status.code(), text(&checked.stderr)),
            (Some(0), String::new()),
            "{}",
            image.name
        );
        let options: &[&str] = if root { &[] } else { &["--skip-devices"] };
        let (done, out) = extract(&image.image, dir.path(), options);
        assert!(
            done.status.success(),
            "{}: {}",
            image.name,
            text(&done.stderr)
        );
        let got = Manifest::from_directory(&out, true).unwrap();
        let unpacked = if root { want } else { without(want, is_device) };
        unpacked.assert_same(&got, extracted(root), &format!("{}, extracted", image.name));
        if !root {
            continue;
        }
        let point = dir.path().join("mnt");
        if let Some(mount) = Mount::new(&image.image, &point, &["-o", "offset=auto,blocksize=0"]) {
            names_have_their_own_attributes(&mounted, &point, &image.name);
            let got = Manifest::from_directory(&point, true).unwrap();
            if old {
                mounted = per_inode(mounted, &got);
            }
            mounted.assert_same(&got, Fields::ALL, &format!("{}, mounted", image.name));
            drop(mount);
        }
    }
}

/// An image whose symlinks were stored with `\` shows `/` in every way, also after its metadata was
/// made anew.
#[test]
fn links_of_windows_images_are_shown_with_slashes() {
    let root = is_root("links_of_windows_images_are_shown_with_slashes");
    let original = golden("basic-default");
    let want = original.manifest();
    let links: Vec<(&Vec<u8>, &Vec<u8>)> = want
        .0
        .iter()
        .filter_map(|(path, entry)| Some((path, entry.target.as_ref()?)))
        .filter(|(_, target)| target.contains(&b'/'))
        .collect();
    assert!(links.len() > 1);
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("windows.dwarfs");
    let bytes = with_separator(&fs::read(&original.image).unwrap(), b'\\');
    fs::write(&image, bytes).unwrap();
    let rebuilt = dir.path().join("rebuilt.dwarfs");
    must(
        MKDWARFS,
        [
            "-i".as_ref(),
            image.as_os_str(),
            "-o".as_ref(),
            rebuilt.as_os_str(),
            "--rebuild-metadata".as_ref(),
        ],
    );
    for (number, image) in [image, rebuilt].iter().enumerate() {
        let dir = dir.path().join(number.to_string());
        fs::create_dir(&dir).unwrap();
        let summary = text(&check(image, &["-d1"]).stdout);
        assert!(
            summary.contains("preferred path separator: \\\n"),
            "{summary}"
        );
        for options in [&["-l", "-v"][..], &["-d", "directory_tree"]] {
            let listed = text(&check(image, options).stdout);
            for (_, target) in &links {
                let end = format!(" -> {}\n", display_path(target));
                assert!(listed.contains(&end), "{options:?}: {end}");
            }
        }
        let json = check(image, &["-j", "-d", "directory_tree"]);
        let json: serde_json::Value = serde_json::from_slice(&json.stdout).unwrap();
        for (path, target) in &links {
            let path = String::from_utf8((*path).clone()).unwrap();
            let mut node = &json["root"];
            for name in path.split('/') {
                let inodes = node["inodes"].as_array().unwrap();
                node = inodes.iter().find(|node| node["name"] == name).unwrap();
            }
            assert_eq!(node["target"], text(target), "{path}");
        }

        let options: &[&str] = if root { &[] } else { &["--skip-devices"] };
        let (done, out) = extract(image, &dir, options);
        assert!(done.status.success(), "{}", text(&done.stderr));
        let unpacked = on_disk(if root {
            want.clone()
        } else {
            without(want.clone(), is_device)
        });
        let got = Manifest::from_directory(&out, true).unwrap();
        unpacked.assert_same(&got, extracted(root), "extracted");

        let archive = dir.join("archive.tar");
        let mut args = vec![
            "-i".as_ref(),
            image.as_os_str(),
            "-o".as_ref(),
            archive.as_os_str(),
            "-f".as_ref(),
            "pax".as_ref(),
            "--skip-specials".as_ref(),
        ];
        args.extend(options.iter().map(OsStr::new));
        must(DWARFSEXTRACT, &args);
        let out = dir.join("tar");
        if unpack(&archive, &out) {
            let got = Manifest::from_directory(&out, true).unwrap();
            let want = without(unpacked, is_special);
            want.assert_same(&got, extracted(root), "from an archive");
        }

        let point = dir.join("mnt");
        if let Some(mount) = Mount::new(image, &point, &["-o", "blocksize=0"]) {
            for (path, target) in &links {
                let link = point.join(OsStr::from_bytes(path));
                let found = fs::read_link(&link).unwrap();
                assert_eq!(found.as_os_str().as_bytes(), target.as_slice());
                let size = fs::symlink_metadata(&link).unwrap().len();
                assert_eq!(size, target.len() as u64);
            }
            drop(mount);
        }
    }
}

#[test]
fn options_of_extraction() {
    let root = is_root("options_of_extraction");
    let image = golden("basic-default");
    let dir = tempfile::tempdir().unwrap();
    let want = without(image.manifest(), |mode| is_device(mode) || is_special(mode));
    for (number, options) in [
        &["--num-disk-writers=1"][..],
        &["--num-disk-writers=7", "-n1", "-s", "1"],
        &["-n", "5", "--cache-size=1m", "--image-offset=0"],
        &["--stdout-progress"],
    ]
    .into_iter()
    .enumerate()
    {
        let dir = dir.path().join(number.to_string());
        fs::create_dir(&dir).unwrap();
        let options = [options, &["--skip-devices", "--skip-specials"]].concat();
        let (done, out) = extract(&image.image, &dir, &options);
        assert!(done.status.success(), "{options:?}: {}", text(&done.stderr));
        let got = Manifest::from_directory(&out, true).unwrap();
        want.assert_same(&got, extracted(root), &format!("{options:?}"));
        let shown = text(&done.stdout);
        if options[0] != "--stdout-progress" {
            assert_eq!(shown, "");
            continue;
        }
        let steps = shown
            .strip_suffix('\n')
            .unwrap()
            .strip_prefix('\r')
            .unwrap();
        let percent: Vec<u32> = steps
            .split('\r')
            .map(|step| step.strip_suffix('%').unwrap().parse().unwrap())
            .collect();
        assert_eq!((percent[0], *percent.last().unwrap()), (0, 100));
        assert!(percent.is_sorted_by(|a, b| a < b), "{percent:?}");
    }
}

#[test]
fn existing_things_are_replaced_or_kept() {
    let dir = tempfile::tempdir().unwrap();
    let image = golden("one");
    let out = dir.path().join("out");
    fs::create_dir(&out).unwrap();
    let outside = dir.path().join("outside");
    fs::write(&outside, "precious").unwrap();
    std::os::unix::fs::symlink(&outside, out.join("only")).unwrap();
    fs::write(out.join("other"), "kept").unwrap();
    must(
        DWARFSEXTRACT,
        [
            "-i".as_ref(),
            image.image.as_os_str(),
            "-o".as_ref(),
            out.as_os_str(),
        ],
    );
    assert!(fs::symlink_metadata(out.join("only")).unwrap().is_file());
    assert_eq!(fs::read(&outside).unwrap(), b"precious");
    assert_eq!(fs::read(out.join("other")).unwrap(), b"kept");
}

/// Unpacks an archive with the system's `tar`; false if there is none.
fn unpack(archive: &Path, to: &Path) -> bool {
    fs::create_dir(to).unwrap();
    let done = Command::new("tar")
        .args(["--numeric-owner", "-xpf"])
        .arg(archive)
        .arg("-C")
        .arg(to)
        .output();
    match done {
        Ok(done) => {
            assert!(done.status.success(), "{}", text(&done.stderr));
            true
        }
        Err(error) => {
            skip("archives unpacked by tar", &error.to_string());
            false
        }
    }
}

#[test]
fn archives_hold_everything() {
    let root = is_root("archives_hold_everything");
    let cases = [
        ("basic-default", "pax"),
        ("bin-categorize", "gnutar"),
        ("basic-all-times-ns", "pax"),
        ("many-default", "gnutar"),
        ("basic-header", "pax"),
        ("names-auto", "pax"),
        ("names-auto", "gnutar"),
        ("many-fragmented", "ustar"),
        ("empty", "ustar"),
        ("bin-categorize", "ustar"),
    ];
    for (name, format) in cases {
        let what = format!("{name} as {format}");
        let image = golden(name);
        let dir = tempfile::tempdir().unwrap();
        let archive = dir.path().join("archive.tar");
        let mut args = vec![
            "-i".as_ref(),
            image.image.as_os_str(),
            "-o".as_ref(),
            archive.as_os_str(),
            "-f".as_ref(),
            format.as_ref(),
            "--skip-specials".as_ref(),
        ];
        if !root {
            args.push("--skip-devices".as_ref());
        }
        must(DWARFSEXTRACT, &args);
        // Through a pipe the bytes are the same.
        args[3] = "-".as_ref();
        assert!(
            must(DWARFSEXTRACT, &args).stdout == fs::read(&archive).unwrap(),
            "{what}"
        );
        assert_eq!(fs::metadata(&archive).unwrap().len() % 10240, 0);

        let out = dir.path().join("out");
        if !unpack(&archive, &out) {
            return;
        }
        let mut want = without(image.manifest(), |mode| {
            is_special(mode) || !root && is_device(mode)
        });
        if format != "pax" {
            want = whole_seconds(want);
        }
        let got = Manifest::from_directory(&out, true).unwrap();
        want.assert_same(&got, extracted(root), &what);
    }
}

#[test]
fn holes_stay_holes_in_pax() {
    let image = golden("basic-default");
    let out = must(
        DWARFSEXTRACT,
        [
            "-i".as_ref(),
            image.image.as_os_str(),
            "-f".as_ref(),
            "pax".as_ref(),
            "--skip-specials".as_ref(),
        ],
    );
    // The tree has 5 GB of holes and not 10 MB of data.
    assert!(out.stdout.len() < 16 << 20, "{}", out.stdout.len());
}

#[test]
fn a_reader_that_goes_away_ends_the_tools_quietly() {
    let image = golden("basic-l0").image;
    let extract: &[&str] = &["-f", "pax", "--skip-specials"];
    for (program, args) in [
        (DWARFSEXTRACT, extract),
        (DWARFSCK, &["-l", "-v", "--no-check"]),
    ] {
        let mut child = Command::new(program)
            .arg("-i")
            .arg(&image)
            .args(args)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdout = child.stdout.take().unwrap();
        if program == DWARFSEXTRACT {
            let mut one = [0];
            stdout.read_exact(&mut one).unwrap();
        }
        drop(stdout);
        let done = child.wait_with_output().unwrap();
        assert_eq!(text(&done.stderr), "", "{program}");
        // Small outputs may have been written before the reader went.
        assert!(matches!(done.status.code(), Some(0 | 1)), "{}", done.status);
        if program == DWARFSEXTRACT {
            assert_eq!(done.status.code(), Some(1));
        }
    }
    // Writing to a full device is another matter.
    let Ok(full) = File::options().write(true).open("/dev/full") else {
        return skip("a full device", "no /dev/full");
    };
    for (program, args, want) in [
        (
            DWARFSEXTRACT,
            extract,
            "dwarfsextract: extraction aborted: cannot write output: ",
        ),
        (
            DWARFSCK,
            &["-l"],
            "dwarfsck: cannot write to standard output: ",
        ),
        (
            DWARFSCK,
            &["--checksum=md5", "-q"],
            "dwarfsck: cannot write to standard output: ",
        ),
        (DWARFSCK, &[], "dwarfsck: cannot write to standard output: "),
    ] {
        let image = if args.contains(&"--checksum=md5") {
            golden("many-default").image
        } else {
            image.clone()
        };
        let done = Command::new(program)
            .arg("-i")
            .arg(&image)
            .args(args)
            .stdout(full.try_clone().unwrap())
            .stderr(Stdio::piped())
            .output()
            .unwrap();
        assert_eq!(
            text(&done.stderr),
            format!("{want}no space left on device\n")
        );
        assert_eq!(done.status.code(), Some(1));
    }
}

#[test]
fn damaged_files_are_named_and_left_out() {
    let root = is_root("damaged_files_are_named_and_left_out");
    let image = golden("basic-zstd-small-blocks");
    let dir = tempfile::tempdir().unwrap();
    let mut bytes = fs::read(&image.image).unwrap();
    bytes[100..110].fill(0x5a);
    let damaged = dir.path().join("damaged.dwarfs");
    fs::write(&damaged, bytes).unwrap();

    let checked = check(&damaged, &["-q", "-v"]);
    assert_eq!(checked.status.code(), Some(1));
    let log = text(&checked.stderr);
    assert!(
        log.lines()
            .next()
            .unwrap()
            .ends_with("checksum error in section 0 (BLOCK 0) at offset 64"),
        "{log}"
    );
    let named: Vec<&str> = log
        .lines()
        .filter_map(|line| line.split_once("affected file: "))
        .map(|(_, rest)| rest.strip_suffix(" (block 0)").unwrap())
        .collect();
    assert!(!named.is_empty());

    let (done, out) = extract(&damaged, dir.path(), &["--continue-on-error"]);
    assert_eq!(done.status.code(), Some(2));
    let log = text(&done.stderr);
    let want = image.manifest();
    let got = Manifest::from_directory(&out, true).unwrap();
    let missing: Vec<String> = want
        .0
        .keys()
        .filter(|path| !got.0.contains_key(*path))
        .map(|path| display_path(path))
        .collect();
    assert!(!missing.is_empty() && missing.len() < want.0.len() / 2);
    for path in &missing {
        assert!(
            named.contains(&path.as_str()),
            "{path} is said to be affected"
        );
        assert!(
            log.contains(&format!("cannot read: {path}: ")),
            "{path}: {log}"
        );
    }
    assert_eq!(named.len(), missing.len());
    assert!(log.lines().last().unwrap().contains(&format!(
        "extraction finished with {} error(s)",
        missing.len()
    )));
    let mut rest = want.clone();
    rest.0.retain(|path, _| got.0.contains_key(path));
    rest.assert_same(&got, extracted(root), "the undamaged files");

    // Without the option the first one ends it all.
    let stopped = dir.path().join("stopped");
    fs::create_dir(&stopped).unwrap();
    let (done, _) = extract(&damaged, &stopped, &[]);
    assert_eq!(done.status.code(), Some(1));
    let log = text(&done.stderr);
    assert!(
        log.starts_with("dwarfsextract: extraction aborted: "),
        "{log}"
    );
    assert!(log.contains("--continue-on-error"), "{log}");

    let archive = dir.path().join("archive.tar");
    let done = run(
        DWARFSEXTRACT,
        [
            "-i".as_ref(),
            damaged.as_os_str(),
            "-o".as_ref(),
            archive.as_os_str(),
            "-fpax".as_ref(),
            "--continue-on-error".as_ref(),
        ],
    );
    assert_eq!(done.status.code(), Some(2));
    for path in &missing {
        assert!(
            text(&done.stderr).contains(&format!("cannot read: {path}: ")),
            "{path}"
        );
    }

    // An image of few and small files: checksums read all of them.
    let mut bytes = fs::read(golden("bin-categorize").image).unwrap();
    bytes[100..110].fill(0x5a);
    fs::write(&damaged, bytes).unwrap();
    let done = check(&damaged, &["--checksum=md5", "--no-check"]);
    assert_eq!(done.status.code(), Some(1));
    assert!(text(&done.stderr).contains(" cannot read: "));
    assert!(!done.stdout.is_empty());
}

#[test]
fn names_that_are_not_text_are_extracted_as_they_are() {
    let image = golden("names-auto");
    let odd: Vec<Vec<u8>> = image
        .manifest()
        .0
        .into_keys()
        .filter(|path| std::str::from_utf8(path).is_err())
        .collect();
    if odd.is_empty() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let (done, out) = extract(&image.image, dir.path(), &[]);
    assert!(done.status.success());
    for path in odd {
        assert!(
            out.join(OsStr::from_bytes(&path))
                .symlink_metadata()
                .is_ok()
        );
    }
}
