//! The golden images, extracted on Windows.

#![cfg(windows)]

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::time::UNIX_EPOCH;

use redwarfs_extractor::{ExtractOptions, ExtractSummary, Progress, extract_to_directory};
use redwarfs_reader::{Image, OpenOptions};
use redwarfs_testkit::{Entry, Golden, Manifest, compat_images, golden_images};
use redwarfs_windows::file::{self, Access};
use redwarfs_windows::name;
use sha2::{Digest, Sha256};

/// Larger files are not extracted: Wine has no holes.
const LARGEST: u64 = 64 << 20;

/// Keeps what is said.
#[derive(Default)]
struct Lines(Mutex<Vec<String>>);

impl Progress for Lines {
    fn left_out(&self, path: &str, reason: &str) {
        self.0.lock().unwrap().push(format!("{path}: {reason}"));
    }

    fn warn(&self, message: &str) {
        self.0.lock().unwrap().push(format!("warning: {message}"));
    }
}

const TYPE: u32 = 0o170_000;
const REGULAR: u32 = 0o100_000;
const DIRECTORY: u32 = 0o040_000;
const SYMLINK: u32 = 0o120_000;

/// Paths that Windows can hold: those with good names, of which the first of equal ones counts.
fn possible(manifest: &Manifest) -> BTreeSet<Vec<u8>> {
    let mut folded: BTreeMap<String, &[u8]> = BTreeMap::new();
    let mut possible = BTreeSet::new();
    for path in manifest.0.keys().filter(|path| *path != b".") {
        let parent = path.iter().rposition(|&b| b == b'/').map(|at| &path[..at]);
        if parent.is_some_and(|parent| !possible.contains(parent)) {
            continue;
        }
        let last = path.rsplit(|&b| b == b'/').next().unwrap();
        let key = String::from_utf8_lossy(path).to_lowercase();
        if name::check(last).is_ok() && folded.insert(key, path).is_none() {
            possible.insert(path.clone());
        }
    }
    possible
}

fn extract(golden: &Golden, to: &Path) -> (ExtractSummary, Vec<String>) {
    let image = Image::open(&golden.image, &OpenOptions::default()).unwrap();
    let mut options = ExtractOptions::default();
    options.continue_on_error = true;
    let metadata = image.metadata();
    let large: BTreeSet<Vec<u8>> = image
        .walk()
        .map(|item| item.unwrap())
        .filter(|item| metadata.entry_stat(item.entry).unwrap().size > LARGEST)
        .map(|item| item.path.to_vec())
        .collect();
    options.select = Some(redwarfs_extractor::Selection::new(move |path, _| {
        !large.contains(path)
    }));
    let lines = Lines::default();
    let summary = extract_to_directory(&image, to, &options, &lines).unwrap();
    (summary, lines.0.into_inner().unwrap())
}

fn on_disk(root: &Path, path: &[u8]) -> PathBuf {
    let names = path
        .split(|&b| b == b'/')
        .map(|part| name::os_string(part).unwrap());
    names.fold(root.to_owned(), |path, part| path.join(part))
}

fn check_file(path: &Path, want: &Entry, what: &str) {
    let bytes = std::fs::read(path).unwrap_or_else(|e| panic!("{what}: {e}"));
    assert_eq!(bytes.len() as u64, want.size, "{what}");
    let hash: String = Sha256::digest(&bytes)
        .iter()
        .map(|b| format!("{b:02x}"))
        .collect();
    assert_eq!(Some(hash), want.sha256, "{what}");
    let metadata = path.metadata().unwrap();
    assert_eq!(
        metadata.permissions().readonly(),
        want.mode & 0o200 == 0,
        "{what}"
    );
    check_time(&metadata, want, what);
}

fn check_time(metadata: &std::fs::Metadata, want: &Entry, what: &str) {
    let modified = metadata.modified().unwrap();
    let found = match modified.duration_since(UNIX_EPOCH) {
        Ok(after) => after.as_nanos() as i128,
        Err(before) => -(before.duration().as_nanos() as i128),
    };
    // Units of 100 ns.
    assert_eq!(
        found.div_euclid(100),
        want.mtime_ns.div_euclid(100),
        "{what}"
    );
}

#[test]
fn golden_images_show_what_windows_can_hold() {
    let (mut files, mut lost, mut links) = (0, 0, 0);
    for golden in golden_images().into_iter().chain(compat_images()) {
        let manifest = golden.manifest();
        let possible = possible(&manifest);
        let out = tempfile::tempdir().unwrap();
        // A root below which no entry of the image has been checked yet.
        let root = std::fs::canonicalize(out.path()).unwrap();
        let (summary, lines) = extract(&golden, &root);
        let mut missing = 0;
        let mut inodes: BTreeMap<u64, (u64, u64)> = BTreeMap::new();
        for (path, want) in manifest.0.iter().filter(|(path, _)| *path != b".") {
            let what = format!("{}: {}", golden.name, path.escape_ascii());
            let kind = want.mode & TYPE;
            if kind == REGULAR && want.size > LARGEST {
                continue;
            }
            let is_there = possible.contains(path) && matches!(kind, REGULAR | DIRECTORY | SYMLINK);
            let at = possible.contains(path).then(|| on_disk(&root, path));
            match (is_there, kind) {
                (true, REGULAR) => {
                    let at = at.unwrap();
                    check_file(&at, want, &what);
                    files += 1;
                    let identity = file::info(&file::open(&at, Access::Examine).unwrap())
                        .unwrap()
                        .identity;
                    if want.nlink > 1 && !image_is_old(&golden) {
                        assert_eq!(
                            *inodes.entry(want.ino).or_insert(identity),
                            identity,
                            "{what}"
                        );
                    }
                }
                (true, DIRECTORY) => {
                    let metadata = at.unwrap().symlink_metadata().unwrap();
                    assert!(metadata.is_dir(), "{what}");
                    check_time(&metadata, want, &what);
                }
                (true, _) => match at.unwrap().symlink_metadata() {
                    Ok(found) => {
                        assert!(found.is_symlink(), "{what}");
                        links += 1;
                    }
                    Err(_) => missing += 1,
                },
                (false, _) => missing += 1,
            }
        }
        assert_eq!(summary.damaged, missing, "{}: {lines:#?}", golden.name);
        lost += missing;
    }
    eprintln!(
        "{files} files compared, {links} symbolic links made, {lost} entries counted as left out"
    );
    assert!(files > 100 && lost > 0);
}

/// Whether the attributes of a name decide which names are links (formats 2.0 to 2.2).
fn image_is_old(golden: &Golden) -> bool {
    let image = Image::open(&golden.image, &OpenOptions::default()).unwrap();
    image.metadata().is_legacy()
}

#[test]
fn extracting_again_replaces_files_and_keeps_others() {
    let golden = redwarfs_testkit::golden::golden("basic-l0");
    let out = tempfile::tempdir().unwrap();
    std::fs::write(out.path().join("other"), "mine").unwrap();
    let (first, _) = extract(&golden, out.path());
    let (second, _) = extract(&golden, out.path());
    assert_eq!((first.files, first.damaged), (second.files, second.damaged));
    assert_eq!(std::fs::read(out.path().join("other")).unwrap(), b"mine");
}
